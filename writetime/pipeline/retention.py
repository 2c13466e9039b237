"""Documents that nobody asks for any more: ledger entries of segments that the archive has let go, documents of old batches, old reports,
pieces of quarantine that are settled, events that were too large for their topics.

Strategy: what is kept is what can be named that somebody needs; all else goes, the oldest first.

* A ledger entry is kept as long as the archive holds its segment, or it waits for a person: shippers, parts and the page go by it. One
  whose segment was let go only keeps a late copy of it from coming in again. With the entry gone such a copy would be taken in: what the
  state still holds makes nothing of it; what was purged since may stand up again, as it may in Cassandra when a node is repaired late.
* Of the batches these are kept: the last `LAST_BATCHES`, at which planner, status, page and `cdc_verify` look; those that a publisher has
  not done with; and each that was the last to capture a table (`Sealed.captured_by`), whose schema and TRUNCATEs count when the table is
  captured again. The rest is asked for when a TRUNCATE is corrected, and there a lack of it means to build anew
  (`writetime.pipeline.node_logs`).
* What lies in quarantine is kept as long as nobody could use it. Once a batch could, its bytes are in the archive, too, and what became of
  it is in the quarantine's table.
* Of verifying and auditing the last report is kept: it says how things stand, whatever its age. So is each node's last status; earlier
  ones are of no use to anybody, and go after `STATUSES`. What shippers up to 0.1 said of their space counts for two days
  (`writetime.monitoring.nodes`).
* An event that was too large for its topic is kept for as long as a consumer may come to the record that claims it: only people know.

Of a batch the manifest goes first and the seal last: what is there of it never looks like a batch that is to be run. Knows no Spark.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Iterator
from datetime import datetime, timedelta
from itertools import groupby, takewhile
from typing import Final

from writetime.errors import ObjectNotFound, PreconditionFailed
from writetime.pipeline.documents import LedgerEntry, Sealed
from writetime.storage import layout, segment_object
from writetime.storage.store import ObjectInfo, Store

STATUSES: Final = timedelta(days=2)
"""How long statuses of nodes stay that are not the last, for whoever looks back."""
LAST_BATCHES: Final = 1000
"""Batches whose documents stay, however old they are."""
_ORDER: Final = {"manifest.json": 0, "sealed.json": 2}


def entries(store: Store, cluster: str, before: datetime) -> Iterator[ObjectInfo]:
    """Ledger entries of segments sealed before then that the archive does not hold any more.

    A node's entries lie in the order of its log, so of each node, and each version of its log, they are read up to the first that is too
    young: a million of them cost a look or two."""
    start = ""
    while (first := next(store.list(layout.ledger_of(cluster), start_after=start), None)) is not None:
        log, _, last = first.name.rpartition("-")
        if not log.rpartition("/")[2].startswith("CommitLog-") or not last.removesuffix(".json").isdecimal():
            start = first.name
            continue
        for info in store.list(f"{log}-"):
            entry = LedgerEntry.read(store, info.name)
            if entry is None:
                continue
            if entry.sealed_at >= before:
                break
            if entry.state == "expired" or (entry.state == "archived" and not _is_held(store, entry)):
                yield info
        # Past all digits.
        start = f"{log}-~"


def _is_held(store: Store, entry: LedgerEntry) -> bool:
    """Whether the archive has the segment: somebody else's rule of the bucket may have taken it away."""
    return entry.archived_as is not None and segment_object.held(store, layout.plain(entry.archived_as)) is not None


def batches(store: Store, cluster: str, sealed: Sealed, before: datetime, published: int) -> Iterator[list[ObjectInfo]]:
    """The documents of each batch that may go, in the order in which they are to: of batches up to `published`, all of whose documents are
    older than `before`. `sealed` is the last seal."""
    last = min(sealed.number - LAST_BATCHES, published - 1)
    needed = {versions.behind for versions in sealed.state.values()}
    for number, found in groupby(store.list(layout.batches_prefix(cluster)), key=lambda info: layout.batch_number(info.name)):
        documents = list(found)
        if number is None:
            # Stray objects: no batch's, so not ours to remove.
            continue
        if number > last or max(info.created for info in documents) >= before:
            return
        if number not in needed:
            yield sorted(documents, key=lambda info: (_order(info.name.rpartition("/")[2]), info.name))


def _order(document: str) -> int:
    """What a seal names goes after it."""
    return 3 if document.startswith("held-") else _ORDER.get(document, 1)


def reports(store: Store, cluster: str, before: datetime) -> Iterator[ObjectInfo]:
    """Reports, their pictures, and what was told of space, written before then; but the last report of each kind."""
    for prefix in (layout.verify_prefix(cluster), layout.audit_prefix(cluster)):
        found = list(store.list(prefix))
        last = max((info.name.rpartition(".")[0] for info in found), default="")
        yield from (info for info in found if info.created < before and info.name.rpartition(".")[0] != last)
    # Days ascend.
    yield from takewhile(lambda info: info.created < before, store.list(layout.spaces_prefix(cluster)))


def statuses(store: Store, cluster: str, before: datetime) -> Iterator[ObjectInfo]:
    """Statuses of nodes written before then, but for the last of each node."""
    newest: dict[layout.NodeName, ObjectInfo] = {}
    for info in store.list(layout.nodes_prefix(cluster)):
        node = layout.NodeName.of_facts(info.name)
        if node is None or info.name == layout.node_facts(node):
            continue
        last = newest.get(node)
        newest[node] = info if last is None else max(last, info, key=lambda each: (each.created, each.name))
        older = last if newest[node] is info else info
        if older is not None and older.created < before:
            yield older


def settled(store: Store, cluster: str, before: datetime, voided: Collection[int] = ()) -> Iterator[ObjectInfo]:
    """Pieces of quarantine, bytes and note, that a batch could use before then, other than one that was
    `voided`. The note goes last: without it nobody finds the bytes."""
    bytes_of: ObjectInfo | None = None
    for info in store.list(layout.quarantine_prefix(cluster)):
        if info.name.endswith(".bin"):
            bytes_of = info
        elif info.name.endswith(".json") and info.created < before and _is_settled(store, info.name, voided):
            if bytes_of is not None and bytes_of.name.removesuffix(".bin") == info.name.removesuffix(".json"):
                yield bytes_of
            yield info


def claims(store: Store, topic_prefix: str, before: datetime) -> Iterator[ObjectInfo]:
    """Events too large for topics of that prefix, put there before then."""
    for info in store.list(layout.claims_prefix(topic_prefix)):
        if info.created < before and info.name.split("/")[1].rsplit(".", 2)[0] == topic_prefix:
            yield info


def _is_settled(store: Store, note: str, voided: Collection[int]) -> bool:
    try:
        about = json.loads(store.read(note))
    except (ObjectNotFound, ValueError):
        return False
    return isinstance(about, dict) and about.get("settled_in") not in (None, *voided)


def remove(store: Store, info: ObjectInfo) -> int:
    """Delete one of them; the bytes freed."""
    try:
        store.delete(info.name, if_generation=info.generation)
    except (ObjectNotFound, PreconditionFailed):
        # Another run was here, too; or a ledger entry was written again, for its segment has come again.
        return 0
    return info.size
