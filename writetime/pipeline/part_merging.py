"""Merging the parts of segments that grow slowly: a node ships one with each sync, thousands a day, and each
planning lists all that there are.

Strategy: what batches have ingested of a growing segment becomes one part, from the beginning of the file, and
the parts that it covers are deleted. The first part stays: an open batch may have pinned it for its header. No
batch reads the others again, except the first one after a rebuild, which reads the merged part. Parts may
overlap, so a crash between the two steps leaves nothing but work for the next time. Nothing is ever
overwritten.
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from itertools import groupby
from operator import itemgetter
from typing import Final

import structlog

from writetime.errors import PreconditionFailed
from writetime.pipeline.documents import Mark
from writetime.storage import layout, segment_parts
from writetime.storage.checksum import crc32c
from writetime.storage.concurrency import at_once
from writetime.storage.segment_parts import Part
from writetime.storage.store import Listed, Store, discard_at_once

MANY: Final = 64
"""Ingested parts of a segment from which on they are merged."""

log = structlog.get_logger()


def merge_parts(store: Store, cluster: str, growing: Mapping[str, Mark]) -> int:
    """Merge the ingested parts of growing segments that have many; `growing`: how far each is ingested.
    Returns the number of deleted parts."""
    deleted = 0
    for ref, found in groupby(segment_parts.found(store, layout.parts_prefix(cluster)), key=itemgetter(0)):
        mark = growing.get(ref.growing)
        if mark is None or not mark.sound or mark.logical is None:
            continue
        ingested = [part for _, part in found if part.end <= mark.position]
        if len(ingested) > MANY:
            deleted += _merge(store, ref, ingested, mark)
    return deleted


def _merge(store: Store, ref: layout.SegmentRef, ingested: list[Part[Listed]], mark: Mark) -> int:
    name = ref.part(0, mark.position)
    if not _put(store, name, segment_parts.run(ingested, 0, mark.position), mark):
        return 0
    # Of the parts from 0 on, planning takes the header from the one whose name is first.
    first = min(part.info.name for part in ingested if part.start == 0)
    outdated = [part for part in ingested if part.info.name not in (name, first)]
    # Nodes create parts and never replace one.
    discard_at_once(store, (part.info.name for part in outdated))
    log.info("parts merged", object=name, parts=len(outdated), bytes=mark.position)
    return len(outdated)


def _put(store: Store, name: str, run: list[Part[Listed]], mark: Mark) -> bool:
    """Whether the merged part is there, by this call or an earlier one: the bytes that batches have ingested.
    Parts are what a node has written, and may be anything."""
    content, reached = bytearray(), 0
    for part, piece in at_once(lambda part: (part, store.read(part.info.name)), run):
        content += piece[reached - part.start :]
        reached = part.end
    if (len(content), crc32c(bytes(content))) != (mark.position, mark.crc32c):
        log.warning("parts not merged: they differ from what was ingested", object=name)
        return False
    last = next(iter(segment_parts.with_facts(store, run[-1:])), None)
    about = {**(last.info.metadata if last else {}), "size": str(len(content)), "crc32c": str(mark.crc32c)}
    with suppress(PreconditionFailed):
        store.put(name, bytes(content), if_generation=0, metadata=about)
    found = store.head(name)
    return found is not None and (found.size, found.crc32c) == (mark.position, mark.crc32c)
