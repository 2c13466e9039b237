"""Parts of growing segments in the bucket, and which of them are contiguous.

A part is a sequence of whole sections of one segment: the bytes [start, end) of its file, by its name. A
shipper that lost an answer of the store, or its own position, ships again from an earlier offset, so parts
may overlap; overlapping parts hold the same bytes, and all start and end between sections. Used by planning.
Must not read parts.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Generic, NamedTuple, TypeVar

from writetime.errors import NotASegment
from writetime.storage import layout
from writetime.storage.store import Listed, ObjectInfo, Store, facts

Object = TypeVar("Object", Listed, ObjectInfo)


class Part(NamedTuple, Generic[Object]):
    """Bytes [start, end) of a segment's file, and the object that holds them, as listed or with its facts."""

    start: int
    end: int
    info: Object


def found(store: Store, prefix: str) -> Iterator[tuple[layout.SegmentRef, Part[Listed]]]:
    """The parts below `prefix` in order of their names; other names are skipped."""
    for each in store.names(prefix):
        try:
            yield layout.SegmentRef.from_object(each.name), Part(*layout.part_range(each.name), each)
        except NotASegment:
            continue


def of(store: Store, ref: layout.SegmentRef) -> list[Part[ObjectInfo]]:
    """The parts of one segment, with their facts."""
    return with_facts(store, (part for _, part in found(store, f"{ref.growing}/")))


def with_facts(store: Store, parts: Iterable[Part[Listed]]) -> list[Part[ObjectInfo]]:
    """The parts with the facts of their objects, without those that do not exist any more."""
    return [Part(*layout.part_range(info.name), info) for info in facts(store, (part.info for part in parts))]


def run(parts: Iterable[Part[Object]], since: int, until: int | None = None) -> list[Part[Object]]:
    """The fewest parts that cover the file from `since` without a gap, none beyond `until`.

    Of several candidates, the one that reaches furthest."""
    chosen: list[Part[Object]] = []
    reached = since
    best: Part[Object] | None = None
    for part in sorted((part for part in parts if until is None or part.end <= until), key=lambda part: part[:2]):
        if part.start > reached and best is not None:
            chosen.append(best)
            reached, best = best.end, None
        if part.start > reached:
            break
        if part.end > (best.end if best else reached):
            best = part
    if best is not None:
        chosen.append(best)
    return chosen
