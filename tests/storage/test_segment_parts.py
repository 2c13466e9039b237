"""Which parts of a segment follow each other."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path

from hypothesis import given
from hypothesis import strategies as st

from writetime.storage import layout, segment_parts
from writetime.storage.layout import NodeName, SegmentName, SegmentRef
from writetime.storage.local import LocalStore
from writetime.storage.segment_parts import Part
from writetime.storage.store import ObjectInfo

REF = SegmentRef(NodeName("ring", "dc1", "host-1"), SegmentName(7, 7))


def part(start: int, end: int) -> Part:
    return Part(start, end, ObjectInfo(REF.part(start, end), end - start, 1, 0, datetime(2026, 1, 1, tzinfo=UTC)))


def ranges(found: list[Part]) -> list[tuple[int, int]]:
    return [(each.start, each.end) for each in found]


def test_parts_that_follow_each_other() -> None:
    there = [part(0, 5), part(5, 9), part(9, 12), part(15, 20)]
    assert ranges(segment_parts.run(there, 0)) == [(0, 5), (5, 9), (9, 12)], "what comes after a gap waits"
    assert ranges(segment_parts.run(there, 5)) == [(5, 9), (9, 12)]
    assert ranges(segment_parts.run(there, 0, 9)) == [(0, 5), (5, 9)]
    assert segment_parts.run(there, 12) == []
    assert segment_parts.run([part(3, 5)], 0) == []


def test_parts_that_overlap() -> None:
    there = [part(0, 5), part(0, 9), part(5, 7), part(9, 10), part(9, 20)]
    assert ranges(segment_parts.run(there, 0)) == [(0, 9), (9, 20)]
    assert ranges(segment_parts.run(there, 7)) == [(0, 9), (9, 20)]
    assert ranges(segment_parts.run(there, 5, 7)) == [(5, 7)]


@given(st.lists(st.tuples(st.integers(0, 12), st.integers(1, 12)), max_size=12), st.integers(0, 12))
def test_a_run_reaches_as_far_as_there_is_no_gap(spans: list[tuple[int, int]], since: int) -> None:
    there = [part(start, start + size) for start, size in spans]
    reached = since
    for _ in there:
        reached = max([reached, *(each.end for each in there if each.start <= reached)])
    found = segment_parts.run(there, since)
    assert (found[-1].end if found else since) == reached
    at = since
    for each in found:
        assert each.start <= at < each.end
        at = each.end


def test_what_lies_among_the_parts_and_is_none(tmp_path: Path) -> None:
    store = LocalStore(tmp_path)
    for name in (REF.part(0, 5), REF.part(5, 6), f"{REF.growing}/README", layout.parts_prefix("ring") + "x", REF.incoming):
        store.put(name, b"12345")
    assert [(ref, each.start, each.end) for ref, each in segment_parts.found(store, layout.parts_prefix("ring"))] == [
        (REF, 0, 5),
        (REF, 5, 6),
    ]
    assert ranges(segment_parts.of(store, REF)) == [(0, 5), (5, 6)]
