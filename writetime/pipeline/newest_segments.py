"""The newest whole segment of each node that any batch so far has taken in. A segment with a greater id cannot be in
the ledger, so planning does not ask for it: that was one request for each segment.

Strategy: ids of a node increase, so what arrives is newer than all before, except for segments that arrive late or
again, and except after a node's clock was set back; those are asked for as before. Each batch records the ids in its
document (`LocalDocument.newest`). The first batch of a chain, and the first one after an upgrade from a version that
has not recorded them, searches the ledger: a number of listings for each node, whatever the ledger's size. Ids of
other than 13 digits do not sort by number in a listing, so they are always asked for. Does not know manifests of open
batches: planning starts from sealed ones.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from functools import partial
from typing import Final

from writetime.pipeline.documents import SegmentInput
from writetime.storage import layout
from writetime.storage.concurrency import at_once
from writetime.storage.layout import SegmentRef
from writetime.storage.store import Store

_SORTED: Final = range(10**12 + 1, 10**13)
"""Ids that a listing has in their order: those that a node gives between the years 2001 and 2286 (ms since the epoch)."""


def is_newer(ref: SegmentRef, newest: Mapping[str, int] | None) -> bool:
    """Whether no batch can have taken in the whole segment; `newest`: None if that is not known of any node."""
    return newest is not None and ref.node.origin == "log" and ref.segment.id in _SORTED and ref.segment.id > newest.get(ref.node.path, 0)


def newest_after(known: Mapping[str, int], segments: Iterable[SegmentInput]) -> dict[str, int]:
    """The ids after a batch of these segments, by `NodeName.path`. Growing segments do not count: the whole ones
    arrive after their parts."""
    newest = dict(known)
    for ref in (segment.ref for segment in segments if not segment.grows):
        if ref.node.origin == "log" and ref.segment.id in _SORTED:
            newest[ref.node.path] = max(ref.segment.id, newest.get(ref.node.path, 0))
    return dict(sorted(newest.items()))


def newest_in_ledger(store: Store, cluster: str) -> dict[str, int]:
    """The newest id of each node in the ledger, of those that sort by number."""
    datacenters = list(store.folders(layout.ledger_of(cluster)))
    folders = [folder for found in at_once(lambda each: list(store.folders(each)), datacenters) for folder in found]
    newest = at_once(partial(_newest, store), folders)
    return {ref.node.path: ref.segment.id for ref in newest if ref is not None}


def _newest(store: Store, folder: str) -> SegmentRef | None:
    found, after = [], folder
    while (first := next(_refs(store, folder, after), None)) is not None:
        version = f"{folder}CommitLog-{first.segment.version}-"
        found.append(_newest_of(store, version))
        after = f"{version}~"
    return max((ref for ref in found if ref is not None), key=lambda ref: ref.segment.id, default=None)


def _newest_of(store: Store, version: str) -> SegmentRef | None:
    """The one with the greatest id, by bisection: each step asks for the first one beyond the middle."""
    low, high, newest = _SORTED.start - 1, _SORTED.stop - 1, None
    while low < high:
        middle = (low + high) // 2
        beyond = (ref for ref in _refs(store, version, f"{version}{middle}.json") if ref.segment.id in _SORTED)
        if (found := next(beyond, None)) is None:
            high = middle
        else:
            newest, low = found, found.segment.id
    return newest


def _refs(store: Store, prefix: str, after: str) -> Iterator[SegmentRef]:
    found = (SegmentRef.from_ledger(each.name) for each in store.names(prefix, start_after=after, page=1))
    return (ref for ref in found if ref is not None)
