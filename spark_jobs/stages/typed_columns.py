"""Types the events of one table by column: a page without a Python object per value.

Strategy: compiled code finds the cells of all rows (`writetime.kernels.projection`), and each column becomes
an Arrow array as the rules publish it (`column_values`). Changed columns are found by comparing bytes. Row filters
are computed once for each combination of values that they name; the content of rows that they hide is never built. The
readable equivalent is `typed_events.TypedEvents.event`: for a page with any unusual value the result here is
None, and the page is typed there."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from types import ModuleType
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from spark_jobs.stages import table_events
from spark_jobs.stages.column_values import Elements, ElementValues, Places, Published, SimpleValues, SpelledValues, Values
from spark_jobs.stages.event_pages import FIRST_MICROS, LAST_MICROS, page_schema
from spark_jobs.stages.table_rows import RowShape
from writetime.cassandra.merge.counters import total
from writetime.cassandra.types.types import CollectionType, CqlType, NativeType
from writetime.events.arrow import plain_values
from writetime.events.arrow_columns import INJECTIVE
from writetime.events.envelope import encode
from writetime.events.key_spelling import clustering_spelling
from writetime.events.masking import TableRules, comparable
from writetime.events.naming import to_column
from writetime.events.row_values import content
from writetime.kernels.projection import (
    Flags,
    Ints,
    ShownRows,
    differing,
    shown_rows,
    split_keys,
)

_DISTINGUISHED: Final = frozenset({*INJECTIVE, "float", "double"})
_READ_AS_ONE: Final = frozenset({"boolean", "varint"})
"""Types of which all spellings of a value are one value when they are read."""


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
    """A static or regular column. `number`: its own among those that are read; `values`: as the rules publish them."""

    name: str
    kind: CqlType
    number: int
    static: bool
    values: Values[Any]

    @property
    def is_distinguished(self) -> bool:
        """Whether different bytes are always visibly different values."""
        return isinstance(self.kind, NativeType) and self.kind.name in _DISTINGUISHED

    def of(self, side: _Side) -> ShownRows:
        return side.statics if self.static else side.rows

    def sources(self, sides: _Sides) -> list[Any]:
        """What its values are made of."""
        if self.kind.multicell:
            return [Elements(self.of(side), self.number) for side in sides]
        return [Places(self.of(side).data, *self.of(side).values(self.number)) for side in sides]


@dataclass(frozen=True)
class _Side:
    """The rows before or after."""

    rows: ShownRows
    statics: ShownRows

    def only(self, kept: Flags) -> _Side:
        """Without the content of other rows."""
        return _Side(self.rows.only(kept), self.statics.only(kept))


_Sides = tuple[_Side, _Side]
"""Before and after."""


class EventColumns:
    """Makes pages of one table's events, by the rules of `clear`, which become `shown`. `within`: the columns whose
    changed elements are listed."""

    def __init__(self, clear: RowShape, shown: RowShape, rules: TableRules, within: Sequence[str], kernel: ModuleType) -> None:
        table = clear.table
        self.shape, self.within, self.schema = shown, frozenset(within), page_schema(shown)
        self.kernel = kernel
        self.partition = len(table.partition_key)
        clusterings = {column.name for column in table.clustering}
        self.keys = {name: _key_values(Published(name, kind, rules), name in clusterings) for name, kind in clear.keys.items()}
        self.filter = None if rules.filter is None else rules.filter.compiled()
        tested = frozenset[str]() if rules.filter is None else rules.filter.names
        # Excluded columns that a filter names are read, behind the others.
        read: list[_Column] = []
        for group, static in ((table.static_columns, True), (table.regular_columns, False)):
            names = [column.name for column in group if column.name not in rules.excluded]
            names += [column.name for column in group if column.name in rules.excluded & tested]
            for number, name in enumerate(names):
                published = Published(name, clear.columns[name], rules)
                read.append(_Column(name, published.kind, number, static, _values(published, table.columns[name].type == "counter")))
        self.statics, self.regulars = ([column.name for column in read if column.static is static] for static in (True, False))
        self.columns = [column for column in read if column.name not in rules.excluded]
        self.tested = {column.name: column for column in read if column.name in tested}
        self.tested_kinds = {name: clear.columns[name] for name in sorted(tested)}
        self.names = pa.array([column.name for column in self.columns], pa.string())

    def page(self, folded: pa.RecordBatch, start: int, facts: EventFacts) -> pa.RecordBatch | None:
        """The events of FOLDED rows with ordinals after `start`."""
        if pc.not_equal(folded["kind"], "event").true_count:
            return None
        before, after = self._side(folded["before"], folded["static_before"]), self._side(folded["after"], folded["static_after"])
        if before is None or after is None or not np.all(before.rows.there | after.rows.there):
            return None
        sides = before, after
        places = self._key_places(folded["pk"], sides)
        if places is None:
            return None
        key = [self._last(values.arrays(*places[name]), after) for name, values in self.keys.items()]
        shown = self._kept(places, sides)
        pairs = [(old, new) for old, new in (column.values.arrays(*column.sources(shown)) for column in self.columns)]
        shows = [self._shows(column, *pair, sides) for column, pair in zip(self.columns, pairs, strict=True)]
        found = {
            "key": pa.StructArray.from_arrays(key, fields=list(self.shape.key_type)),
            "before": self._rows([*key, *(old for old, _ in pairs)], shown[0]),
            "after": self._rows([*key, *(new for _, new in pairs)], shown[1]),
            "changed": self._named(_matrix(shows, len(folded))),
            "changed_elements": self._elements(pairs, shows, len(folded)),
            **self._facts(shown[1]),
            **_about(folded, start, facts, *((old.rows.there, new.rows.there) for old, new in (sides, shown))),
        }
        arrays = [found[f.name] if f.name in found else pa.nulls(len(folded), f.type) for f in self.schema]
        return pa.RecordBatch.from_arrays(arrays, schema=self.schema)

    def _side(self, rows: Any, statics: Any) -> _Side | None:
        found = shown_rows(self.kernel, rows, self.regulars, len(self.keys) - self.partition)
        if found is None:
            return None
        alone = shown_rows(self.kernel, statics, self.statics, 0, found.there)
        return None if alone is None else _Side(found, alone)

    def _rows(self, arrays: list[Any], side: _Side) -> Any:
        mask = None if side.rows.there.all() else pa.array(~side.rows.there)
        return pa.StructArray.from_arrays(arrays, fields=list(self.shape.row_type), mask=mask)

    # --- keys

    def _key_places(self, pk: Any, sides: _Sides) -> dict[str, list[Places]] | None:
        """Where the values of key columns are: those of clustering columns before and after."""
        split = split_keys(self.kernel, pk, self.partition)
        if split is None:
            return None
        data, parts = split
        clusterings = range(len(self.keys) - self.partition)
        places = [[Places(data, *part)] for part in parts] + [[Places(s.rows.data, *s.rows.part(at)) for s in sides] for at in clusterings]
        return dict(zip(self.keys, places, strict=True))

    @staticmethod
    def _last(found: list[Any], after: _Side) -> Any:
        """Of what a key column has on one side or both: that of the last row."""
        there = after.rows.there
        if len(found) == 1 or not there.any():
            return found[0]
        return found[1] if there.all() else pc.if_else(pa.array(there), found[1], found[0])

    # --- filters

    def _kept(self, places: dict[str, list[Places]], sides: _Sides) -> _Sides:
        """The rows that the filter shows."""
        if self.filter is None:
            return sides
        there = np.concatenate([side.rows.there for side in sides])
        columns: dict[str, tuple[list[Any], Ints]] = {}
        combination = np.zeros(len(there), np.int64)
        for name, kind in self.tested_kinds.items():
            values, which = self._clear(name, places, sides)
            at = pa.concat_arrays(which).cast(pa.int64()).fill_null(len(values)).to_numpy()
            columns[name] = [comparable(kind, value) for value in (*values, None)], at
            combination = np.unique(combination * (len(values) + 1) + at, return_inverse=True)[1]
        _, first, of_row = np.unique(combination[there], return_index=True, return_inverse=True)
        rows = np.flatnonzero(there)
        holds = [self.filter({name: values[at[row]] for name, (values, at) in columns.items()}) for row in rows[first].tolist()]
        kept = np.zeros(len(there), np.bool_)
        kept[rows] = np.array(holds, np.bool_)[of_row]
        before, after = np.split(kept, 2)
        return sides[0].only(before), sides[1].only(after)

    def _clear(self, name: str, places: dict[str, list[Places]], sides: _Sides) -> tuple[list[Any], list[Any]]:
        """The distinct values of a column, and which one each row has before and after."""
        if name in self.keys:
            values, which = self.keys[name].clear(*places[name])
            return values, [self._last(which, sides[1])] * 2
        return self.tested[name].values.clear(*self.tested[name].sources(sides))

    # --- facts

    def _shows(self, column: _Column, old: Any, new: Any, sides: _Sides) -> Flags:
        """By row: whether the column's value changed visibly. `old`, `new`: what shows of it."""
        kind, number = column.kind, column.number
        a, b = (column.of(side) for side in sides)
        if not (a.count[number].any() or b.count[number].any()):
            return np.zeros(len(a.there), np.bool_)
        other = differing(a, b, number, whole=kind.multicell)
        if isinstance(kind, CollectionType) and kind.kind == "list":
            for row in np.flatnonzero(other).tolist():
                other[row] = content(kind, a.of_row(number, row)) != content(kind, b.of_row(number, row))
        had, has = (side.is_valid().to_numpy(zero_copy_only=False) for side in (old, new))
        if column.values.published.mask is not None:
            alike = pc.equal(old, new).fill_null(False).to_numpy(zero_copy_only=False)
            of_masks: Flags = other & (had | has) & ~alike
            return of_masks
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
            _matrix([getattr(column.of(side), name)[column.number] for column in self.columns], len(side.rows.there), np.int64)
            for name in ("count", "latest", "soonest")
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
            if not self.shape.columns[column.name].multicell or column.name not in self.within or not changed.any():
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


def _matrix(columns: list[Any], rows: int, kind: type[np.generic] = np.bool_) -> npt.NDArray[Any]:
    return np.array(columns, kind).T if columns else np.zeros((rows, 0), kind)


def _values(published: Published, is_counter: bool) -> Values[Any]:
    if published.kind.multicell:
        return ElementValues(published)
    return SpelledValues(published, total) if is_counter else SimpleValues(published, published.kind.decode)


def _key_values(published: Published, is_clustering: bool) -> SimpleValues:
    """Those of a clustering column are in the spelling that equal ones share."""
    kind, spell = published.kind, clustering_spelling(published.kind) if is_clustering else None
    if spell is None or str(kind) in _READ_AS_ONE:
        return SimpleValues(published, kind.decode)
    return SpelledValues(published, lambda raw: kind.decode(spell(raw)))


def _about(folded: pa.RecordBatch, start: int, facts: EventFacts, there: tuple[Flags, Flags], shown: tuple[Flags, Flags]) -> dict[str, Any]:
    """The facts of events besides their rows. `there`: which rows are there before and after; `shown`: of which the filter
    shows. Events without a row that shows are not published."""
    (had, has), (showed, shows), size = there, shown, len(folded)
    copies = folded["copies"]
    counts = pc.list_value_length(copies).fill_null(0).to_numpy(zero_copy_only=False).astype(np.int64)
    flat = copies.flatten()
    segment = flat.field("segment").to_numpy(zero_copy_only=False).astype(np.int64)
    rows, ends = np.repeat(np.arange(size), counts), np.cumsum(counts)
    first = pa.array(np.where(counts > 0, ends - counts, 0), mask=counts == 0)
    is_said = has | facts.read_deletions
    snapshot = (
        is_said & (counts > 0) & (np.bincount(rows, ~facts.read[segment], size) == 0) if facts.read.any() else np.zeros(size, np.bool_)
    )
    # A row that begins to match a filter is created, one that stops matching is deleted.
    op = np.where(~shows, 2, np.where(showed, 1, np.where(snapshot & ~had, 3, 0)))
    reason = folded["reason"]
    ts = folded["ts"].to_numpy(zero_copy_only=False)
    return {
        "last": folded["last"],
        "ordinal": pc.if_else(pa.array(showed | shows), pc.add(folded["seq"], start + 1), None),
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
