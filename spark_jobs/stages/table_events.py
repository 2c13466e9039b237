"""Events that do not belong to one row, and the elements that changed within collections.

Events are dictionaries, as merge and sinks exchange them: `key`, `before`, `after` (rows by the warehouse's
column names, with Arrow values), `op`, `reason`, `changed` (CQL names), `writetime`, `expires_at`,
`ts_micro`, `now`, `nodes`, `replicas_expected`, `file`, `pos`, and `bounds` for a range delete that is one
event. Pure functions; knows neither Spark nor the sinks."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from spark_jobs.stages.table_rows import RowShape
from writetime.cassandra.model import MICROSECONDS, Bound, RangeTombstone
from writetime.cassandra.types.types import CollectionType, CqlType, UdtType
from writetime.events.converters import JSON, Convert
from writetime.events.naming import to_column

Event = dict[str, Any]

TRUNCATE = "t"


# --- events that do not belong to a row


def truncation(*, truncated_at: int, now: int, nodes: Sequence[str], expected: int, file: str | None, pos: int | None) -> Event:
    """A TRUNCATE at `truncated_at` (µs), logged by the nodes in `nodes`: no key, no rows, `op` t."""
    source = {"nodes": list(nodes), "replicas_expected": expected, "file": file, "pos": pos}
    return {**_of_no_row(truncated_at, now), **source, "op": TRUNCATE, "reason": "truncate", "key": None}


def again(*, now: int, expected: int) -> Event:
    """All rows of the table follow as they are: like a TRUNCATE at the batch's clock, by no node."""
    source = {"nodes": [], "replicas_expected": expected, "file": None, "pos": None}
    return {**_of_no_row(now * MICROSECONDS, now), **source, "op": TRUNCATE, "reason": "again", "key": None}


def drop(*, dropped_at: int, now: int, expected: int) -> Event:
    """A DROP TABLE at `dropped_at` (µs): like a TRUNCATE, and the last event of the table's incarnation. It
    has no node."""
    source = {"nodes": [], "replicas_expected": expected, "file": None, "pos": None}
    return {**_of_no_row(dropped_at, now), **source, "op": TRUNCATE, "reason": "drop", "key": None}


def deletion(*, key: Mapping[str, Any], within: Mapping[str, Any] | None, ts_micro: int, now: int, source: Mapping[str, Any]) -> Event:
    """A delete of many rows as one event. `key`: all key columns by the warehouse's names, with the
    partition's values set; `within`: of a range `start`, `end` (clustering columns by name, those of the
    prefix set, or None) and `start_inclusive`, `end_inclusive`; None: the whole partition. `source`: `nodes`,
    `replicas_expected`, `file`, `pos`."""
    reason = "partition_delete" if within is None else "range_delete"
    return {**_of_no_row(ts_micro, now), **source, "op": "d", "reason": reason, "key": dict(key), "bounds": within and dict(within)}


def _of_no_row(ts_micro: int, now: int) -> Event:
    return {"before": None, "after": None, "changed": [], "writetime": {}, "expires_at": {}, "ts_micro": ts_micro, "now": now}


def bounds(shape: RowShape, tombstone: RangeTombstone, shown: Callable[[dict[str, Any]], dict[str, Any] | None]) -> dict[str, Any]:
    """Start and end of a range, as `deletion` takes them; `shown` converts values by CQL name to those of the
    warehouse. DecodeError for a value that is invalid for its column's type."""

    def prefix(bound: Bound) -> dict[str, Any] | None:
        named = zip(shape.table.clustering, bound.values, strict=False)
        values = {column.name: None if raw is None else shape.columns[column.name].decode(raw) for column, raw in named}
        return shown(values) or None

    start, end = tombstone.start, tombstone.end
    inclusive = {"start_inclusive": start.inclusive, "end_inclusive": end.inclusive}
    return {"start": prefix(start), "end": prefix(end), **inclusive}


# --- changes within collections


def changed_elements(shape: RowShape, event: Mapping[str, Any]) -> dict[str, Any]:
    """By CQL name, for each changed column that is an unfrozen collection or user type and stays one: what changed within, as JSON.

        set     {"added": […], "removed": […]}
        map     {"set": …, "removed": […]}      `set` in the form of the map itself: keys with the values that they have now
        list    {"at": index, "removed": […], "added": […]}     one splice: `removed` stood at `at`, `added` stands there
        type    {"set": {field: value, …}}      null for a field that has none now

    A column that was null before or is now has no entry: it came or went as a whole."""
    before, after = event["before"], event["after"]
    if before is None or after is None:
        return {}
    found: dict[str, Any] = {}
    for name in event["changed"]:
        kind, column = shape.columns.get(name), to_column(name)
        if kind is not None and kind.multicell and before.get(column) is not None and after.get(column) is not None:
            found[name] = _within(kind, before[column], after[column])
    return found


def differ(old: Any, new: Any) -> bool:
    """Whether values are shown differently: a value of no bytes is null in types without such a value, and
    Python treats 0.0 and -0.0 as equal."""
    return bool(old != new) or repr(old) != repr(new)


def _same(old: Any, new: Any) -> bool:
    """Whether values are shown alike: in Python NaN does not equal itself, and 0.0 equals -0.0."""
    return bool(_hashable(old) == _hashable(new))


def _within(kind: CqlType, old: Any, new: Any) -> dict[str, Any]:
    if isinstance(kind, UdtType):
        fields = {to_column(name): (name, JSON.converter(field)) for name, field in kind.known_fields.items()}
        differing = [name for name in new if not _same(old.get(name), new[name])]
        return {"set": {fields[name][0]: _json(new[name], fields[name][1]) for name in differing}}
    assert isinstance(kind, CollectionType)
    if kind.kind == "map":
        return _within_map(kind, old, new)
    elements = JSON.converter(kind.elements[0])
    if kind.kind == "set":
        return {"added": _missing(new, old, elements), "removed": _missing(old, new, elements)}
    at, end = _common(old, new)
    cut = {"removed": old[at : len(old) - end], "added": new[at : len(new) - end]}
    return {"at": at, **{name: [_json(value, elements) for value in values] for name, values in cut.items()}}


def _within_map(kind: CollectionType, old: Sequence[tuple[Any, Any]], new: Sequence[tuple[Any, Any]]) -> dict[str, Any]:
    had = {_hashable(key): value for key, value in old}
    has = {_hashable(key) for key, _ in new}
    put = [(key, value) for key, value in new if _hashable(key) not in had or not _same(had[_hashable(key)], value)]
    keys = JSON.converter(kind.elements[0])
    return {"set": _json(put, JSON.converter(kind)), "removed": [_json(key, keys) for key, _ in old if _hashable(key) not in has]}


def _missing(of: Sequence[Any], among: Sequence[Any], convert: Convert | None) -> list[Any]:
    there = {_hashable(value) for value in among}
    return [_json(value, convert) for value in of if _hashable(value) not in there]


def _json(value: Any, convert: Convert | None) -> Any:
    return value if value is None or convert is None else convert(value)


def _common(old: Sequence[Any], new: Sequence[Any]) -> tuple[int, int]:
    """The number of equal elements at the start of two lists, and at the end of the rest."""
    most = min(len(old), len(new))
    start = next((at for at in range(most) if not _same(old[at], new[at])), most)
    end = next((at for at in range(most - start) if not _same(old[-1 - at], new[-1 - at])), most - start)
    return start, end


def _hashable(value: Any) -> Any:
    """A hashable form of a value of lists and dicts; a float as its text."""
    if isinstance(value, dict):
        return tuple((name, _hashable(part)) for name, part in value.items())
    if isinstance(value, list | tuple):
        return tuple(_hashable(part) for part in value)
    return repr(value) if isinstance(value, float) else value
