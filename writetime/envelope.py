"""The change event as consumers see it: Debezium's envelope, so that what reads Debezium reads this.

Input is a row of a changes table (`rows_of`); output are JSON-ready values for the record's key and value. Knows no Kafka and no Spark.

The key is the full primary key. Static content that stands alone has null for the clustering columns, and so has a delete of many rows that
is told as one event. A truncate and a drop of the table have no key.

Value: `before`, `after` (full rows or null), `op` (c created, u updated, d deleted, t the table was truncated or dropped), `ts_ms` (when it
was processed), `changed` (columns), `changed_elements` (by column, what changed within collections), `source` {version, connector, cluster,
keyspace, table, table_id, hostname, nodes, replicas_seen, replicas_expected, file, pos, ts_micro, sequence [batch, ordinal], snapshot,
reason, schema_version, bounds}. `bounds`, of a range delete that is one event: {start, start_inclusive, end, end_inclusive}, start and end
by clustering column, null where the bound says nothing of it.
"""

from __future__ import annotations

import base64
import json
import re
from collections import defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final

import pyarrow as pa

import writetime
from writetime.cql.arrow import plain_values
from writetime.cql.names import from_column, to_topic
from writetime.cql.values import iso_date, iso_timestamp, json_float, json_real

_ASIDE: Final = re.compile(r"_was_\d+_(.+)")


@dataclass(frozen=True, slots=True)
class About:
    """What all events of one table share. `addresses` maps host ids to the addresses that people know."""

    cluster: str
    keyspace: str
    table: str
    addresses: Mapping[str, str]


def topic(prefix: str, keyspace: str, table: str) -> str:
    """`<topic.prefix>.<keyspace>.<table>`, see `names.to_topic`."""
    return to_topic(prefix, keyspace, table)


def progress_topic(prefix: str) -> str:
    """The compacted topic in which publishers keep how far they are, inside the same transactions as the events."""
    return f"{prefix}.__progress"


def rows_of(batch: pa.RecordBatch) -> list[dict[str, Any]]:
    """Rows of a changes table as plain values, timestamps as µs and dates as days since the epoch (see `arrow.plain_values`)."""
    columns = [plain_values(column) for column in batch.columns]
    return [dict(zip(batch.schema.names, values, strict=True)) for values in zip(*columns, strict=True)]


class Shape:
    """How one version of a table shows in JSON, whatever the table that keeps its events has become since.

    `told` is the Arrow schema of a changes table as that version has it, `stored` that of the table itself. Key columns, fields of user
    types and parts of tuples go by place: they keep theirs when they are renamed. Other columns go by name. One that the version does not
    have shows where it has a value: it was dropped, and the event tells what it held. One that was made anew with another type has its
    older values in `_was_<n>_<name>` (spark_jobs.evolve)."""

    def __init__(self, told: pa.Schema, stored: pa.Schema) -> None:
        self._key = told.field("key").type
        self._bounds = told.field("bounds").type if "bounds" in told.names else None
        self._columns = {
            part: list(_columns(told.field(part).type, stored.field(part).type, self._key.num_fields)) for part in ("before", "after")
        }

    def key(self, row: Mapping[str, Any]) -> dict[str, Any] | None:
        """The record's key of a changes row; None for what happened to the table as a whole."""
        key: dict[str, Any] | None = json_value(row["key"], self._key)
        return key

    def value(self, row: Mapping[str, Any], about: About) -> dict[str, Any]:
        """The envelope of a changes row."""
        nodes = [about.addresses.get(host) or host for host in row["nodes"]]
        return {
            "before": self._row("before", row),
            "after": self._row("after", row),
            "op": row["op"],
            "ts_ms": row["processed_at"] // 1000,
            "changed": row["changed"],
            "changed_elements": json.loads(row.get("changed_elements") or "{}"),
            "source": {
                "version": writetime.__version__,
                "connector": "writetime",
                "cluster": about.cluster,
                "keyspace": about.keyspace,
                "table": about.table,
                "table_id": row["table_id"],
                "hostname": nodes[0] if nodes else None,
                "nodes": nodes,
                "replicas_seen": len(nodes),
                "replicas_expected": row["replicas_expected"],
                "file": row["file"],
                "pos": row["pos"],
                "ts_micro": row["ts_micro"],
                "sequence": [row["batch"], row["ordinal"]],
                "snapshot": False,
                "reason": row["reason"],
                "schema_version": row["schema_version"],
                "bounds": json_value(row["bounds"], self._bounds) if row.get("bounds") else None,
            },
        }

    def _row(self, part: str, row: Mapping[str, Any]) -> dict[str, Any] | None:
        if row[part] is None:
            return None
        values = list(row[part].values())
        shown: dict[str, Any] = {}
        for column in self._columns[part]:
            found = next(((values[place], kind) for place, kind in column.places if values[place] is not None), None)
            if found is not None or column.always:
                shown[column.name] = None if found is None else json_value(*found)
        return shown


@dataclass(frozen=True, slots=True)
class _Column:
    """A column by its CQL name: where a row may hold it, by which type it shows, and whether it does without a value."""

    name: str
    places: list[tuple[int, pa.DataType]]
    always: bool


def _columns(told: pa.StructType, stored: pa.StructType, keys: int) -> Iterator[_Column]:
    """Columns of a row, the first `keys` of which are its key."""
    here = {field.name: field.type for field in told}
    held: dict[str, list[int]] = defaultdict(list)
    for place, field in enumerate(stored):
        aside = None if field.name in here else _ASIDE.fullmatch(field.name)
        if place >= keys:
            held[aside[1] if aside else field.name].append(place)
    for place, field in enumerate(told):
        places = [place] if place < keys else held.pop(field.name, [])
        yield _Column(from_column(field.name), [(each, field.type) for each in places], True)
    for name, places in held.items():
        yield _Column(from_column(name), [(each, stored.field(each).type) for each in places], False)


def encode(value: Any) -> bytes:
    """JSON as UTF-8, compact, keys in the given order."""
    return json.dumps(value, ensure_ascii=False, separators=(",", ":"), allow_nan=False).encode()


def json_value(value: Any, kind: pa.DataType) -> Any:
    """A warehouse value (see `rows_of`) as JSON, led by its Arrow type, in the forms of `writetime.cql.json`: bytes in base64,
    timestamps as ISO-8601 UTC with ms, dates as ISO-8601, NaN and infinities by their names, structs as objects (fields by their CQL
    names; the value's own go by place), maps as objects if their keys are text in Arrow, else as lists of {"key", "value"}."""
    if value is None:
        return None
    if pa.types.is_binary(kind):
        return base64.b64encode(value).decode()
    if pa.types.is_timestamp(kind):
        return iso_timestamp(value // 1000)
    if pa.types.is_date(kind):
        return iso_date(value)
    if pa.types.is_floating(kind):
        return json_float(value) if pa.types.is_float32(kind) else json_real(value)
    if pa.types.is_struct(kind):
        return {from_column(field.name): json_value(part, field.type) for field, part in zip(kind, value.values(), strict=False)}
    if pa.types.is_map(kind):
        pairs = [(json_value(key, kind.key_type), json_value(item, kind.item_type)) for key, item in value]
        return dict(pairs) if pa.types.is_string(kind.key_type) else [{"key": key, "value": item} for key, item in pairs]
    if pa.types.is_list(kind):
        return [json_value(item, kind.value_type) for item in value]
    return value
