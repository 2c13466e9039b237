"""Parts of growing segments in the bucket, and which of them are contiguous.

A part is a sequence of whole sections of one segment: the bytes [start, end) of its file, by its name. A
shipper that lost an answer of the store, or its own position, ships again from an earlier offset, so parts
may overlap; overlapping parts hold the same bytes, and all start and end between sections. Used by planning.
Must not read parts.
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
    """The parts below `prefix` in order of their names; other names are skipped."""
    for info in store.list(prefix):
        try:
            yield layout.SegmentRef.from_object(info.name), Part(*layout.part_range(info.name), info)
        except NotASegment:
            continue


def of(store: Store, ref: layout.SegmentRef) -> list[Part]:
    """The parts of one segment."""
    return [part for _, part in found(store, f"{ref.growing}/")]


def run(parts: Iterable[Part], since: int, until: int | None = None) -> list[Part]:
    """The fewest parts that cover the file from `since` without a gap, none beyond `until`.

    Of several candidates, the one that reaches furthest."""
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
