"""Events that are no row's, and what changed within collections."""

from __future__ import annotations

from typing import Any

import pytest

from spark_jobs.stages.table_events import bounds, changed_elements, deletion, truncation
from spark_jobs.stages.table_rows import RowShape
from tests.spark_jobs.examples import schema_of, table
from writetime.cassandra.model import Bound, DeletionTime, RangeTombstone
from writetime.cassandra.types.types import parse_type

TABLE = table(
    "elements",
    40,
    {
        "id": "int",
        "line": "int",
        "day": "date",
        "tags": "set<text>",
        "list": "list<double>",
        "map": "map<text, timestamp>",
        "by number": "map<int, frozen<list<int>>>",
        "home": "address",
        "frozen": "frozen<set<text>>",
        "n": "int",
    },
    clustering=2,
)
SHAPE = RowShape.of(TABLE, schema_of(TABLE))
NAN = float("nan")


def within(column: str, before: Any, after: Any) -> Any:
    """What is told of one column; values as CQL has them."""
    rows = [SHAPE.values({**dict.fromkeys(SHAPE.columns), "id": 1, column: value}) for value in (before, after)]
    return changed_elements(SHAPE, {"before": rows[0], "after": rows[1], "changed": [column]}).get(column)


@pytest.mark.parametrize(
    ("column", "before", "after", "told"),
    [
        ("tags", ["a", "b"], ["b", "c", "d"], {"added": ["c", "d"], "removed": ["a"]}),
        ("list", [1.0, 2.0], [1.0, 2.0, 3.0], {"at": 2, "removed": [], "added": [3.0]}),
        ("list", [1.0, 2.0], [0.0, 1.0, 2.0], {"at": 0, "removed": [], "added": [0.0]}),
        ("list", [1.0, 2.0, 3.0], [1.0, 9.0, 3.0], {"at": 1, "removed": [2.0], "added": [9.0]}),
        ("list", [1.0, 1.0, 1.0], [1.0, 1.0], {"at": 2, "removed": [1.0], "added": []}),
        ("list", [NAN, 1.0], [NAN, 2.0], {"at": 1, "removed": [1.0], "added": [2.0]}),
        ("list", [0.0, 1.0], [-0.0, 1.0], {"at": 0, "removed": [0.0], "added": [-0.0]}),
        ("map", [("a", 0), ("b", 1)], [("a", 0), ("b", 2), ("c", 3)],
            {"set": {"b": "1970-01-01T00:00:00.002Z", "c": "1970-01-01T00:00:00.003Z"}, "removed": []}),
        ("map", [("a", 0)], [("b", 0)], {"set": {"b": "1970-01-01T00:00:00.000Z"}, "removed": ["a"]}),
        ("by number", [(1, [1]), (2, [2])], [(2, [2, 3])], {"set": [{"key": 2, "value": [2, 3]}], "removed": [1]}),
        ("home", {"street": "s", "Since when": 0}, {"street": "s", "Since when": None}, {"set": {"Since when": None}}),
        ("home", {"street": None, "Since when": 0}, {"street": "t", "Since when": 0}, {"set": {"street": "t"}}),
        ("frozen", ["a"], ["b"], None),
        ("n", 1, 2, None),
        ("tags", None, ["a"], None),
        ("tags", ["a"], None, None),
    ],
    ids=str,
)  # fmt: skip
def test_what_changed_within(column: str, before: Any, after: Any, told: Any) -> None:
    assert within(column, before, after) == told


def test_a_row_that_comes_or_goes_has_nothing_that_changed_within() -> None:
    row = SHAPE.values({**dict.fromkeys(SHAPE.columns), "id": 1, "tags": ["a"]})
    assert changed_elements(SHAPE, {"before": None, "after": row, "changed": ["tags"]}) == {}
    assert changed_elements(SHAPE, {"before": row, "after": None, "changed": ["tags"]}) == {}


def test_a_truncate_is_of_no_row() -> None:
    event = truncation(truncated_at=5_000_000, now=7, nodes=["host-a"], expected=3, file="CommitLog-7-1.log", pos=9)
    assert (event["op"], event["reason"], event["ts_micro"], event["now"]) == ("t", "truncate", 5_000_000, 7)
    assert {event[part] for part in ("key", "before", "after")} == {None}


def test_a_delete_of_many_rows_as_one_event() -> None:
    source = {"nodes": ["host-a"], "replicas_expected": 3, "file": "CommitLog-7-1.log", "pos": 9}
    line, day = (parse_type(kind, "shop", {}) for kind in ("int", "date"))
    gone = DeletionTime(5, 0)
    one_day = RangeTombstone(Bound((line.encode(1), day.encode(2)), False), Bound((line.encode(1),), True), gone)
    told = bounds(SHAPE, one_day, SHAPE.values)
    assert told == {"start": {"line": 1, "day": 2}, "end": {"line": 1}, "start_inclusive": False, "end_inclusive": True}
    assert bounds(SHAPE, RangeTombstone(Bound((), True), Bound((), True), gone), SHAPE.values)["start"] is None
    key = {"id": 1, "line": None, "day": None}
    event = deletion(key=key, within=told, ts_micro=5, now=7, source=source)
    assert (event["op"], event["reason"], event["key"], event["bounds"], event["pos"]) == ("d", "range_delete", key, told, 9)
    whole = deletion(key=key, within=None, ts_micro=5, now=7, source=source)
    assert (whole["reason"], whole["bounds"]) == ("partition_delete", None)
