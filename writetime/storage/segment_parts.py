"""Parts of segments that grow, as they lie in the bucket, and which of them follow each other.

A part is whole sections of one segment: the bytes [start, end) of its file, as its name says. A shipper that lost the store's answer, or
its note of how far it was, ships from an earlier place again and further, so parts may overlap; they then hold the same bytes, and all
begin and end between sections. Used by planning to find what can be read. Knows the store's listing, and reads no part.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import NamedTuple

from writetime.errors import NotASegment
from writetime.storage import layout
from writetime.storage.store import ObjectInfo, Store


class Part(NamedTuple):
    """Bytes [start, end) of a segment's file, and the object that holds them."""

    start: int
    end: int
    info: ObjectInfo


def found(store: Store, prefix: str) -> Iterator[tuple[layout.SegmentRef, Part]]:
    """The parts below `prefix` in order of their names; what is not named like one is left out."""
    for info in store.list(prefix):
        try:
            yield layout.SegmentRef.from_object(info.name), Part(*layout.part_range(info.name), info)
        except NotASegment:
            continue


def of(store: Store, ref: layout.SegmentRef) -> list[Part]:
    """The parts of one segment."""
    return [part for _, part in found(store, f"{ref.growing}/")]


def run(parts: Iterable[Part], since: int, until: int | None = None) -> list[Part]:
    """Those that hold the file from `since` on without a gap, as few as there are to that; up to `until`, if given, and none beyond.

    Of several that go on where the one before ended, or before that, the one that reaches furthest."""
    chosen: list[Part] = []
    reached, best = since, None
    for part in sorted((part for part in parts if until is None or part.end <= until), key=lambda part: part[:2]):
        if part.start > reached and best is not None:
            chosen.append(best)
            reached, best = best.end, None
        if part.start > reached:
            break
        if part.end > (best.end if best else reached):
            best = part
    return [*chosen, best] if best else chosen
