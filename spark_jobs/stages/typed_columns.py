"""Types the events of one table by column: a page without a Python object per value.

Strategy: compiled code finds the cells of all rows (`writetime.kernels.projection`), and each column becomes
an Arrow array. Nearly all columns are converted by `writetime.events.arrow_columns`; other values are
converted one by one, each distinct value once per page. Changed columns are found by comparing bytes. The
readable equivalent is `typed_events.TypedEvents.event`: for a page with any unusual value the result here is
None, and the page is typed there. Knows no masking rules: nothing is hidden here."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from types import ModuleType
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from spark_jobs.stages import table_events
from spark_jobs.stages.event_pages import FIRST_MICROS, LAST_MICROS, page_schema
from spark_jobs.stages.table_rows import RowShape
from writetime.cassandra.merge.counters import total
from writetime.cassandra.types.types import CollectionType, CqlType, NativeType, UdtType, assemble
from writetime.events import arrow_columns as cql_columns
from writetime.events.arrow import arrow_converter, plain_values
from writetime.events.arrow_columns import arrow_type
from writetime.events.envelope import encode
from writetime.events.key_spelling import clustering_spelling
from writetime.events.naming import to_column
from writetime.events.row_values import content
from writetime.kernels.projection import (
    Flags,
    Ints,
    Places,
    ShownRows,
    differing,
    shown_rows,
    split_keys,
)

_IN_BYTE_ORDER: Final = frozenset({"ascii", "text", "varchar", "blob", "date", "time"})
_DISTINGUISHED: Final = frozenset({*cql_columns.INJECTIVE, "float", "double"})
_READ_AS_ONE: Final = frozenset({"boolean", "varint"})
"""Types of which all spellings of a value are one value when they are read."""
_IN_ORDER_OF_NUMBERS: Final = frozenset({"tinyint", "smallint", "int", "bigint", "timestamp"})


@dataclass(frozen=True)
class EventFacts:
    """Facts of events besides their rows; see `typed_events.EventPlan`. `read`: by segment, whether its
    frames were read from the cluster; `read_deletions`: whether deletions show that, too."""

    now: int
    files: Sequence[str]
    hosts: Sequence[str]
    expected: int
    read: Flags
    snapshot: tuple[str, str]
    read_deletions: bool = False


@dataclass(frozen=True)
class _Column:
    """A static or regular column, with its number among them."""

    name: str
    kind: CqlType
    counter: bool
    static: bool
    at: int

    @property
    def is_distinguished(self) -> bool:
        """Whether different bytes are always visibly different values."""
        return isinstance(self.kind, NativeType) and self.kind.name in _DISTINGUISHED


@dataclass(frozen=True)
class _Side:
    """The visible row before or after."""

    rows: ShownRows
    statics: ShownRows

    def of(self, column: _Column) -> ShownRows:
        return self.statics if column.static else self.rows


class EventColumns:
    """Makes pages of one table's events. `within`: the columns whose changed elements are listed."""

    def __init__(self, shape: RowShape, within: Sequence[str], kernel: ModuleType) -> None:
        table = shape.table
        self.shape, self.within, self.schema = shape, frozenset(within), page_schema(shape)
        self.kernel = kernel
        self.keys = list(shape.keys.values())
        self.partition = len(table.partition_key)
        groups = (table.static_columns, True), (table.regular_columns, False)
        self.columns = [
            _Column(column.name, shape.columns[column.name], column.type == "counter", static, at)
            for group, static in groups
            for at, column in enumerate(group)
        ]
        self.names = pa.array([column.name for column in self.columns], pa.string())

    def page(self, folded: pa.RecordBatch, start: int, facts: EventFacts) -> pa.RecordBatch | None:
        """The events of FOLDED rows with ordinals after `start`."""
        if pc.not_equal(folded["kind"], "event").true_count:
            return None
        before, after = self._side(folded["before"], folded["static_before"]), self._side(folded["after"], folded["static_after"])
        if before is None or after is None or not np.all(before.rows.there | after.rows.there):
            return None
        key = self._keys(folded["pk"], before.rows, after.rows)
        if key is None:
            return None
        pairs = [self._pair(column, before, after) for column in self.columns]
        shows = [self._shows(column, *pair, before, after) for column, pair in zip(self.columns, pairs, strict=True)]
        found = {
            "key": pa.StructArray.from_arrays(key, fields=list(self.shape.key_type)),
            "before": self._rows([*key, *(old for old, _ in pairs)], before),
            "after": self._rows([*key, *(new for _, new in pairs)], after),
            "changed": self._named(_matrix(shows, len(folded))),
            "changed_elements": self._elements(pairs, shows, len(folded)),
            **self._facts(after),
            **_about(folded, start, facts, before.rows.there, after.rows.there),
        }
        arrays = [found[f.name] if f.name in found else pa.nulls(len(folded), f.type) for f in self.schema]
        return pa.RecordBatch.from_arrays(arrays, schema=self.schema)

    def _side(self, rows: Any, statics: Any) -> _Side | None:
        table = self.shape.table
        found = shown_rows(self.kernel, rows, [c.name for c in self.columns if not c.static], len(table.clustering))
        if found is None:
            return None
        alone = shown_rows(self.kernel, statics, [c.name for c in self.columns if c.static], 0, found.there)
        return None if alone is None else _Side(found, alone)

    def _rows(self, arrays: list[Any], side: _Side) -> Any:
        mask = None if side.rows.there.all() else pa.array(~side.rows.there)
        return pa.StructArray.from_arrays(arrays, fields=list(self.shape.row_type), mask=mask)

    # --- keys

    def _keys(self, pk: Any, before: ShownRows, after: ShownRows) -> list[Any] | None:
        """The key columns."""
        split = split_keys(self.kernel, pk, self.partition)
        if split is None:
            return None
        data, parts = split
        partition = [self._values(kind, data, places) for kind, places in zip(self.keys, parts, strict=False)]
        old, new = (
            [self._clustering(kind, side.data, side.part(at)) for at, kind in enumerate(self.keys[self.partition :])]
            for side in (before, after)
        )
        there = after.there
        last = (
            new if there.all() else old if not there.any() else [pc.if_else(pa.array(there), n, o) for o, n in zip(old, new, strict=True)]
        )
        return [*partition, *last]

    def _clustering(self, kind: CqlType, data: Any, places: Places) -> Any:
        """Values of a clustering column, in the spelling that equal ones share."""
        spell = clustering_spelling(kind)
        if spell is None or str(kind) in _READ_AS_ONE:
            return self._values(kind, data, places)
        return self._one_by_one(kind, lambda raw: kind.decode(spell(raw)), data, places, {})

    # --- values

    def _values(self, kind: CqlType, data: Any, places: Places) -> Any:
        """Values of one cell each, or of keys."""
        found = cql_columns.column(kind, data, *places)
        return found if found is not None else self._one_by_one(kind, kind.decode, data, places, {})

    def _one_by_one(self, kind: CqlType, decode: Callable[[bytes], Any], data: Any, places: Places, known: dict[bytes, Any]) -> Any:
        convert, buf = arrow_converter(kind), memoryview(data)
        made: list[Any] = []
        for at, length in zip(places[0].tolist(), places[1].tolist(), strict=True):
            if length < 0:
                made.append(None)
                continue
            raw = bytes(buf[at : at + length])
            if raw not in known:
                known[raw] = convert(decode(raw))
            made.append(known[raw])
        return pa.array(made, arrow_type(kind))

    def _pair(self, column: _Column, before: _Side, after: _Side) -> tuple[Any, Any]:
        """A column's value before and after."""
        sides = before.of(column), after.of(column)
        if column.kind.multicell:
            cells: dict[Any, Any] = {}
            old, new = (self._collections(column, side, cells) for side in sides)
            return old, new
        decode = total if column.counter else column.kind.decode
        known: dict[bytes, Any] = {}
        made = []
        for side in sides:
            places = side.values(column.at)
            found = None if column.counter else cql_columns.column(column.kind, side.data, *places)
            made.append(self._one_by_one(column.kind, decode, side.data, places, known) if found is None else found)
        return made[0], made[1]

    def _collections(self, column: _Column, side: ShownRows, known: dict[Any, Any]) -> Any:
        if not side.count[column.at].any():
            return pa.nulls(len(side.there), arrow_type(column.kind))
        found = self._by_elements(column, side)
        if found is not None:
            return found
        convert, made = arrow_converter(column.kind), []
        for row, count in enumerate(side.count[column.at].tolist()):
            cells = side.of_row(column.at, row) if count else None
            key = cells and tuple(cells)
            if cells and key not in known:
                known[key] = convert(assemble(column.kind, cells))
            made.append(known[key] if cells else None)
        return pa.array(made, arrow_type(column.kind))

    def _by_elements(self, column: _Column, side: ShownRows) -> Any:
        """The cells of all rows, each row's in the order of `assemble`; None if they must be converted one by
        one."""
        cells, count = side.of_column(column.at), side.count[column.at]
        rows, found = np.repeat(np.arange(len(count)), count), side.cells
        if isinstance(column.kind, UdtType):
            return self._by_fields(column.kind, side, cells, rows, count > 0)
        assert isinstance(column.kind, CollectionType)
        order = self._order(column.kind, side, cells, rows)
        if order is None:
            return None
        cells = cells[order]
        paths, values = (found.path_at[cells], found.path_length[cells]), (found.value_at[cells], found.value_length[cells])
        wanted = {"list": [values], "set": [paths], "map": [paths, values]}[column.kind.kind]
        end = np.concatenate((np.zeros(1, np.int32), np.cumsum(count, dtype=np.int32)))
        return cql_columns.collections(column.kind, side.data, wanted, end, count > 0)

    def _by_fields(self, kind: UdtType, side: ShownRows, cells: Ints, rows: Ints, there: Flags) -> Any:
        """User types: a cell's path is the number of a field."""
        paths = side.cells.path_at[cells], side.cells.path_length[cells]
        field = None if np.any(paths[1] != 2) else cql_columns.numbers(2, side.data, *paths)
        if field is None or np.any(field[0] < 0):
            return None
        known = field[0] < len(kind.known_fields)
        cells, place = cells[known], (field[0][known], rows[known])
        at, length = (np.full((len(kind.known_fields), len(there)), -1, np.int64) for _ in range(2))
        at[place], length[place] = side.cells.value_at[cells], side.cells.value_length[cells]
        return cql_columns.structs(kind, side.data, at, length, there)

    def _order(self, kind: CollectionType, side: ShownRows, cells: Ints, rows: Ints) -> Any:
        """The order of elements (`assemble`) of a column's cells; None if they must be converted one by
        one."""
        at, length = side.cells.path_at[cells], side.cells.path_length[cells]
        if np.any(length < 0):
            return None
        name = "timeuuid" if kind.kind == "list" else str(kind.elements[0])
        if kind.kind == "list" or name in _IN_ORDER_OF_NUMBERS:
            width = 16 if kind.kind == "list" else cql_columns.WIDTHS[name]
            if np.any(length != width):
                return None
            if kind.kind == "list":
                return _by_time(side.data, at, rows)
            found = cql_columns.numbers(width, side.data, at, length)
            return None if found is None else np.lexsort((found[0], rows))
        return slice(None) if name in _IN_BYTE_ORDER else None

    # --- facts

    def _shows(self, column: _Column, old: Any, new: Any, before: _Side, after: _Side) -> Flags:
        """By row: whether the column's value changed visibly."""
        kind = column.kind
        a, b = before.of(column), after.of(column)
        if not (a.count[column.at].any() or b.count[column.at].any()):
            return np.zeros(len(a.there), np.bool_)
        other = differing(a, b, column.at, whole=kind.multicell)
        if isinstance(kind, CollectionType) and kind.kind == "list":
            for row in np.flatnonzero(other).tolist():
                other[row] = content(kind, a.of_row(column.at, row)) != content(kind, b.of_row(column.at, row))
        had, has = (side.is_valid().to_numpy(zero_copy_only=False) for side in (old, new))
        shows: Flags = other & ((had | has) if column.is_distinguished else (had != has))
        both = np.flatnonzero(other & had & has)
        if len(both) and not column.is_distinguished:
            shows[both] = [table_events.differ(*values) for values in _both(old, new, both)]
        return shows

    def _named(self, there: npt.NDArray[np.bool_]) -> Any:
        """Names of columns, by row (from a matrix of rows and columns)."""
        ends = np.concatenate((np.zeros(1, np.int32), np.cumsum(there.sum(axis=1), dtype=np.int32)))
        return pa.ListArray.from_arrays(pa.array(ends, pa.int32()), self.names.take(pa.array(np.nonzero(there)[1])))

    def _facts(self, side: _Side) -> dict[str, Any]:
        """Writetime and expiry of columns with a value."""
        count, latest, soonest = (
            np.concatenate((getattr(side.statics, name), getattr(side.rows, name))).T for name in ("count", "latest", "soonest")
        )
        there = count > 0
        return {
            "writetime": self._map(there, latest),
            "expires_at": self._map(there & (soonest != self.kernel.NEVER), soonest),
        }

    def _map(self, there: npt.NDArray[np.bool_], values: Ints) -> Any:
        named = self._named(there)
        return pa.MapArray.from_arrays(named.offsets, named.values, pa.array(values[there]))

    def _elements(self, pairs: list[tuple[Any, Any]], shows: list[Flags], size: int) -> Any:
        """The changed elements, for rows in which an unfrozen collection or user type changed and is not null
        before or after."""
        events: dict[int, tuple[dict[str, Any], dict[str, Any], list[str]]] = {}
        for column, (old, new), changed in zip(self.columns, pairs, shows, strict=True):
            if not column.kind.multicell or column.name not in self.within or not changed.any():
                continue
            both = np.flatnonzero(changed & old.is_valid().to_numpy(zero_copy_only=False) & new.is_valid().to_numpy(zero_copy_only=False))
            for row, (was, now) in zip(both.tolist(), _both(old, new, both), strict=True):
                before, after, names = events.setdefault(row, ({}, {}, []))
                before[to_column(column.name)], after[to_column(column.name)] = was, now
                names.append(column.name)
        if not events:
            return pa.nulls(size, pa.string())
        encoded: list[str | None] = [None] * size
        for row, (before, after, names) in events.items():
            encoded[row] = encode(table_events.changed_elements(self.shape, {"before": before, "after": after, "changed": names})).decode()
        return pa.array(encoded, pa.string())


def _both(old: Any, new: Any, rows: Ints) -> zip[tuple[Any, Any]]:
    """The values of two columns in some rows."""
    there = pa.array(rows)
    return zip(plain_values(old.take(there)), plain_values(new.take(there)), strict=True)


def _matrix(columns: list[Flags], rows: int) -> npt.NDArray[np.bool_]:
    return np.array(columns, np.bool_).T if columns else np.zeros((rows, 0), np.bool_)


def _by_time(data: Any, at: Ints, rows: Ints) -> Ints:
    """The order of list elements by their timeuuids (`native.timeuuid_key`)."""
    raw = data[at[:, None] + np.arange(16)]
    high, low = (np.ascontiguousarray(half).view(">u8")[:, 0].astype(np.uint64) for half in (raw[:, :8], raw[:, 8:] ^ 0x80))
    time = (
        (high & np.uint64(0x0FFF)) << np.uint64(48) | (high >> np.uint64(16) & np.uint64(0xFFFF)) << np.uint64(32) | high >> np.uint64(32)
    )
    return np.lexsort((low, time, rows))


def _about(folded: pa.RecordBatch, start: int, facts: EventFacts, had: Flags, has: Flags) -> dict[str, Any]:
    """The facts of events besides their rows."""
    size = len(folded)
    copies = folded["copies"]
    counts = pc.list_value_length(copies).fill_null(0).to_numpy(zero_copy_only=False).astype(np.int64)
    flat = copies.flatten()
    segment = flat.field("segment").to_numpy(zero_copy_only=False).astype(np.int64)
    rows, ends = np.repeat(np.arange(size), counts), np.cumsum(counts)
    first = pa.array(np.where(counts > 0, ends - counts, 0), mask=counts == 0)
    shown = has | facts.read_deletions
    snapshot = shown & (counts > 0) & (np.bincount(rows, ~facts.read[segment], size) == 0) if facts.read.any() else np.zeros(size, np.bool_)
    op = np.where(had & has, 1, np.where(had, 2, np.where(snapshot, 3, 0)))
    reason = folded["reason"]
    ts = folded["ts"].to_numpy(zero_copy_only=False)
    return {
        "last": folded["last"],
        "ordinal": pc.add(folded["seq"], start + 1),
        "op": pa.array(["c", "u", "d", facts.snapshot[1]]).take(pa.array(op)),
        "reason": pc.if_else(pa.array(snapshot), facts.snapshot[0], reason) if snapshot.any() else reason,
        "ts_micro": folded["ts"],
        "changed_at": pa.array(np.clip(ts, FIRST_MICROS, LAST_MICROS)).cast(pa.timestamp("us", "UTC")),
        "processed_at": pa.repeat(pa.scalar(facts.now * 1_000_000, pa.timestamp("us", "UTC")), size),
        "nodes": _nodes(facts.hosts, segment, rows, size),
        "replicas_expected": pa.repeat(pa.scalar(facts.expected, pa.int32()), size),
        "file": pa.array(facts.files, pa.string()).take(pa.array(segment).take(first)),
        "pos": flat.field("position").take(first),
    }


def _nodes(hosts: Sequence[str], segment: Ints, rows: Ints, size: int) -> Any:
    """By row, the sorted, distinct hosts that hold a copy. A host of "" is left out."""
    names = sorted({host for host in hosts if host})
    numbers = {host: number for number, host in enumerate(names)}
    of_segment = np.array([numbers.get(host, -1) for host in hosts] or [-1], np.int64)[segment]
    known = of_segment >= 0
    pairs = np.unique(rows[known] * max(len(names), 1) + of_segment[known])
    ends = np.concatenate((np.zeros(1, np.int32), np.cumsum(np.bincount(pairs // max(len(names), 1), minlength=size), dtype=np.int32)))
    return pa.ListArray.from_arrays(pa.array(ends, pa.int32()), pa.array(names, pa.string()).take(pa.array(pairs % max(len(names), 1))))
