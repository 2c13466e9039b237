"""Reads the warehouse with pyiceberg: current rows and change events, in the form of `values`.

Knows the tables' documented schemas, and none of the product's code except names and, by `consumer`, record keys.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
from pyiceberg.catalog.sql import SqlCatalog
from pyiceberg.io import pyarrow as pyiceberg_pyarrow
from pyiceberg.table import Table
from pyiceberg.types import ListType, MapType

from proof.ring.answer import Row, TableAnswer, key_of, with_numbers
from proof.ring.consumer import record_keys
from proof.ring.values import Json, from_lake
from writetime.events.naming import from_column, to_changes_namespace, to_column, to_namespace, to_table

WRITETIME, EXPIRES_AT = "_writetime", "_expires_at"


class _Projection(pyiceberg_pyarrow.ArrowProjectionVisitor):
    """Reads null lists of structs, and null maps to them, as null: pyiceberg 0.12 puts them together anew
    without their nulls, and they come out empty.
    """

    def list(self, list_type: ListType, list_array: pa.Array | None, value_array: pa.Array | None) -> pa.Array | None:
        return _with_nulls(super().list(list_type, list_array, value_array), list_array)

    def map(
        self, map_type: MapType, map_array: pa.Array | None, key_result: pa.Array | None, value_result: pa.Array | None
    ) -> pa.Array | None:
        return _with_nulls(super().map(map_type, map_array, key_result, value_result), map_array)


def _with_nulls(found: pa.Array | None, stored: pa.Array | None) -> pa.Array | None:
    if found is None or stored is None or stored.null_count == found.null_count:
        return found
    # What is taken from no place is null.
    places = pa.array(range(len(stored)), pa.int64())
    return found.take(pc.if_else(stored.is_valid(), places, pa.scalar(None, pa.int64())))


pyiceberg_pyarrow.ArrowProjectionVisitor = _Projection  # type: ignore[misc]
_FORMER = re.compile(r"_was_\d+_(.+)")
TABLE_ID = "writetime.table-id"
BATCH = "writetime.batch"
"""Property of a snapshot: the batch that committed it."""


@dataclass(frozen=True)
class Event:
    """A change; `key`, `before` and `after` by column of the warehouse, `id` the table incarnation, `record` the key that
    it has in Kafka."""

    batch: int
    ordinal: int
    op: str
    reason: str | None
    key: str
    before: dict[str, Json] | None
    after: dict[str, Json] | None
    changed: list[str]
    ts_micro: int
    id: str
    more: dict[str, Json]
    record: bytes | None = b""

    def __str__(self) -> str:
        place = f"batch {self.batch} ordinal {self.ordinal}"
        return (
            f"{place}: {self.op}{f' ({self.reason})' if self.reason else ''} at {self.ts_micro}: {self.before} -> {self.after}; {self.more}"
        )


class Lake:
    """The tables of one catalog, an SQLite file. `reading`: properties by which pyiceberg reads their files."""

    def __init__(self, catalog: Path, reading: Mapping[str, str]) -> None:
        self._catalog = SqlCatalog("lake", uri=f"sqlite:///{catalog}", **reading)

    def current(self, table: TableAnswer) -> list[Row] | None:
        """The rows of this table incarnation; None if the warehouse has no such table."""
        columns = self._columns((to_namespace(table.keyspace), to_table(table.name)), table.id)
        return None if columns is None else [_row(row, table) for row in columns]

    def current_after(self, table: TableAnswer, batch: int) -> list[Row] | None:
        """The rows as they were after that batch, as docs/history.md finds them; None if no snapshot has
        them."""
        held = self._held((to_namespace(table.keyspace), to_table(table.name)), table.id)
        if held is None or (snapshot := _snapshot_after(held, batch)) is None:
            return None
        return [_row(row, table) for row in _rows_of(held.scan(snapshot_id=snapshot).to_arrow())]

    def changes(self, table: TableAnswer) -> list[Event]:
        """The events of this table incarnation, in fold order."""
        held = self._held((to_changes_namespace(table.keyspace), to_table(table.name)), table.id)
        if held is None:
            return []
        found = held.scan().to_arrow()
        found = found.filter(pc.equal(found["table_id"], table.id))
        records = {(batch, ordinal): key for batch, ordinal, key in record_keys(table, found, held.properties)}
        events = [_event(row, table, records) for row in _rows_of(found)]
        return sorted(events, key=lambda event: (event.batch, event.ordinal))

    def numbers(self, keyspace: str, name: str) -> list[tuple[int, int]]:
        """(batch, ordinal) of every event of all incarnations of the table's name."""
        namespace, plain = to_changes_namespace(keyspace), to_table(name)
        if not self._catalog.namespace_exists(namespace):
            return []
        found: list[tuple[int, int]] = []
        for place in self._catalog.list_tables(namespace):
            # The table of an earlier incarnation has its id in the name.
            if re.fullmatch(f"{re.escape(plain)}(__[0-9a-f]{{8}})?", place[-1]):
                rows = self._catalog.load_table(place).scan(selected_fields=("batch", "ordinal")).to_arrow()
                found += zip(rows["batch"].to_pylist(), rows["ordinal"].to_pylist(), strict=True)
        return sorted(found)

    def _columns(self, place: tuple[str, str], table_id: str) -> list[dict[str, Json]] | None:
        held = self._held(place, table_id)
        return None if held is None else _rows_of(held.scan().to_arrow())

    def _held(self, place: tuple[str, str], table_id: str) -> Table | None:
        """The table at that place, if it holds this incarnation."""
        if not self._catalog.table_exists(place):
            return None
        table = self._catalog.load_table(place)
        return table if table.properties.get(TABLE_ID) == table_id else None


def _rows_of(found: pa.Table) -> list[dict[str, Json]]:
    columns = {name: from_lake(found[name]) for name in found.column_names}
    return [{name: column[at] for name, column in columns.items()} for at in range(found.num_rows)]


def _snapshot_after(table: Table, batch: int) -> int | None:
    """The snapshot of the last commit up to that batch; one without a number, a compaction, belongs to the
    batch before it."""
    snapshot, after = table.current_snapshot(), None
    while snapshot is not None:
        number = snapshot.summary and snapshot.summary.additional_properties.get(BATCH)
        if number is None:
            after = after or snapshot.snapshot_id
        elif int(number) <= batch:
            return after or snapshot.snapshot_id
        else:
            after = None
        parent = snapshot.parent_snapshot_id
        snapshot = None if parent is None else table.snapshot_by_id(parent)
    return None


def _row(row: dict[str, Json], table: TableAnswer) -> Row:
    values = {name: value for name, value in row.items() if name not in (WRITETIME, EXPIRES_AT) and not _FORMER.fullmatch(name)}
    values = with_numbers(values, table.numbers)
    facts = (dict(row[column] or []) for column in (WRITETIME, EXPIRES_AT))
    return Row(key_of(values, table.keys), values, *facts)


def _event(row: dict[str, Any], table: TableAnswer, records: Mapping[tuple[int, int], bytes | None]) -> Event:
    taken = ("batch", "ordinal", "op", "reason", "before", "after", "ts_micro")
    row = {**row, **{part: row[part] and with_numbers(_joined(row[part]), table.numbers) for part in ("key", "before", "after")}}
    key = key_of(row["key"], table.keys) if row["key"] is not None else ""
    changed = [to_column(name) for name in row["changed"] or []]
    more = {name: row[name] for name in ("nodes", "replicas_expected", "file", "pos") if name in row}
    return Event(
        **{name: row[name] for name in taken},
        key=key,
        changed=changed,
        id=row["table_id"],
        more=more,
        record=records[row["batch"], row["ordinal"]],
    )


def _joined(values: dict[str, Json]) -> dict[str, Json]:
    """The values with maps under their own names that are in former columns, because the type of their keys has got a
    field since (docs/types.md)."""
    former = {found[1]: value for name, value in values.items() if (found := _FORMER.fullmatch(name)) and _has_struct_keys(value)}
    return {name: former.get(name) if value is None else value for name, value in values.items() if not _FORMER.fullmatch(name)}


def _has_struct_keys(value: Json) -> bool:
    return isinstance(value, list) and bool(value) and isinstance(value[0], list) and isinstance(value[0][0], dict)


def cql_name(column: str) -> str:
    return from_column(column)
