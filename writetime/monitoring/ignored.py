"""Ignored objects in the bucket, with the reason: stray objects and invalid documents of nodes.

Strategy: ignored objects do not stop a batch, so they are reported here. At most `LISTED` objects of each
kind are checked. Of batches, only objects before the first and after the last batch are listed: a stray
object between them is harmless, and listing millions of objects is not."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime
from itertools import islice, takewhile
from typing import Final

from writetime import untrusted
from writetime.errors import NotASegment
from writetime.pipeline.batch_history import Batches
from writetime.pipeline.node_facts import read_facts
from writetime.storage import layout, untrusted_objects
from writetime.storage.store import ObjectInfo, Store
from writetime.untrusted import Untrusted

LISTED: Final = 2000
_STRAY: Final = "a stray object: its name is not one that a pipeline uses"


@dataclass(frozen=True, slots=True, order=True)
class Ignored:
    """The name of an object, and why it or part of it is ignored."""

    object: str
    reason: str


def ignored(batches: Batches, *, now: datetime | None = None) -> list[Ignored]:
    """All ignored objects, sorted by name."""
    store, cluster = batches.store, batches.cluster
    found = [*_among_batches(batches), *_segments(store, cluster, batches.largest), *_nodes(store, cluster), *_schemas(store, cluster)]
    found += _truncations(store, cluster)
    return sorted(set(found))


def _among_batches(batches: Batches) -> Iterator[Ignored]:
    prefix = layout.batches_prefix(batches.cluster)
    first = layout.batch_folder(batches.cluster, 0)
    before = takewhile(lambda info: info.name < first, batches.store.names(prefix))
    last = layout.batch_folder(batches.cluster, batches.newest().last)
    after = batches.store.names(prefix, start_after=last)
    for info in (*islice(before, LISTED), *islice(after, LISTED)):
        if layout.batch_number(info.name) is None:
            yield Ignored(info.name, _STRAY)


def _segments(store: Store, cluster: str, largest: int) -> Iterator[Ignored]:
    for prefix in (layout.incoming_prefix(cluster), layout.frames_prefix(cluster), layout.parts_prefix(cluster)):
        for info in islice(store.list(prefix), LISTED):
            if layout.SegmentRef.from_conflict(info.name) is None and (reason := _not_a_segment(info, largest)) is not None:
                yield Ignored(info.name, reason)


def _not_a_segment(info: ObjectInfo, largest: int) -> str | None:
    try:
        layout.SegmentRef.from_object(info.name)
        if info.size > largest:
            return f"{info.size} bytes, more than the {largest} that a segment may have; no batch reads it"
        if info.name.startswith("cdc_parts/"):
            start, end = layout.part_range(info.name)
            if info.size != end - start:
                return f"a part of {end - start} bytes has a size of {info.size}"
            if end > largest:
                return f"a part up to position {end}, more than the {largest} that a segment may have; no batch reads it"
        if "sealed_at" in info.metadata:
            untrusted_objects.moment_of(info, "sealed_at")
    except NotASegment:
        return _STRAY
    except Untrusted as error:
        return f"{error}; its upload time is used"
    return None


def _nodes(store: Store, cluster: str) -> Iterator[Ignored]:
    for facts in read_facts(store, cluster):
        if facts.rejected is not None:
            yield Ignored(facts.object, facts.rejected)
    for info in islice(store.names(layout.nodes_prefix(cluster)), LISTED):
        if layout.NodeName.of_facts(info.name) is None:
            yield Ignored(info.name, _STRAY)


def _schemas(store: Store, cluster: str) -> Iterator[Ignored]:
    for info in islice(store.names(layout.schema_prefix(cluster)), LISTED):
        if not layout.is_schema_snapshot(info.name):
            yield Ignored(info.name, _STRAY)
        elif info.size > untrusted.SCHEMA:
            yield Ignored(info.name, f"{info.size} bytes, more than {untrusted.SCHEMA}")


def _truncations(store: Store, cluster: str) -> Iterator[Ignored]:
    for info in islice(store.names(layout.truncations_prefix(cluster)), LISTED):
        if layout.NodeName.of_truncations(info.name) is None:
            yield Ignored(info.name, _STRAY)
