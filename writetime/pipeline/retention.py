"""Delete documents that are not needed any more: ledger entries of expired segments, documents of old
batches, old reports, settled quarantine records, and oversized events.

Strategy: a document is kept if something is known to need it; all others are deleted, oldest first.

* A ledger entry is kept as long as its segment is archived or held: shippers, parts and the page use it. The
  entry of an expired segment only prevents a late copy from being ingested again. Without the entry the copy is
  ingested: data still in the state does not change, but purged data may reappear, as in Cassandra after a late
  repair.
* These batches are kept: the last `LAST_BATCHES`, which planner, status, page and `cdc_verify` read; those that
  are not fully published; and each that was the last to capture a table (`Sealed.captured_by`), whose schema and
  TRUNCATEs are needed when the table is captured again. Older ones are only used when a TRUNCATE is corrected;
  without them the table is built again (`writetime.pipeline.node_logs`).
* A quarantine record is kept until a batch could use it. Then its bytes are in the archive as well, and its
  history is in the quarantine table.
* The last report of verification and of audit is kept, whatever its age, and so is the last status of each node.
  Earlier statuses are deleted after `STATUSES`.
* An event that was too large for its topic is kept as long as a consumer may read the record that refers to it.
  Only the operator knows how long that is.

The manifest of a batch is deleted first and the seal last, so that a partly deleted batch never looks open.
Does not know Spark.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Iterator
from datetime import datetime, timedelta
from itertools import groupby
from typing import Final

from writetime.errors import ObjectNotFound, PreconditionFailed
from writetime.pipeline.documents import LedgerEntry, Sealed
from writetime.storage import layout, segment_object
from writetime.storage.store import Listed, ObjectInfo, Store

STATUSES: Final = timedelta(days=2)
"""How long superseded node statuses are kept for inspection."""
LAST_BATCHES: Final = 1000
"""Number of batches whose documents are kept regardless of age."""
_ORDER: Final = {"manifest.json": 0, "sealed.json": 2}


def entries(store: Store, cluster: str, before: datetime) -> Iterator[ObjectInfo]:
    """Ledger entries of segments sealed before `before` that are not archived any more.

    A node's entries are sorted in the order of its log, so for each node and log version they are read only
    up to the first that is too young."""
    start = ""
    while (first := next(store.names(layout.ledger_of(cluster), start_after=start, page=1), None)) is not None:
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
    """Whether the segment is archived: a lifecycle rule of the bucket may have deleted it."""
    return entry.archived_as is not None and segment_object.held(store, layout.plain(entry.archived_as)) is not None


def batches(store: Store, cluster: str, sealed: Sealed, before: datetime, published: int) -> Iterator[list[Listed]]:
    """The documents of each batch that may be deleted, in the order of deletion: batches up to `published`,
    all of whose documents are older than `before`. `sealed` is the last seal."""
    last = min(sealed.number - LAST_BATCHES, published - 1)
    needed = {versions.behind for versions in sealed.state.values()}
    for number, found in groupby(store.names(layout.batches_prefix(cluster)), key=lambda info: layout.batch_number(info.name)):
        documents = list(found)
        if number is None:
            # Not an object of a batch: do not delete it.
            continue
        if number > last or max(info.created for info in documents) >= before:
            return
        if number not in needed:
            yield sorted(documents, key=lambda info: (_order(info.name.rpartition("/")[2]), info.name))


def _order(document: str) -> int:
    """Objects named by a seal are deleted after it."""
    return 3 if document.startswith("held-") else _ORDER.get(document, 1)


def reports(store: Store, cluster: str, before: datetime) -> Iterator[Listed]:
    """Reports and their charts written before `before`, except the last report of each kind."""
    for prefix in (layout.verify_prefix(cluster), layout.audit_prefix(cluster)):
        found = list(store.names(prefix))
        last = max((info.name.rpartition(".")[0] for info in found), default="")
        yield from (info for info in found if info.created < before and info.name.rpartition(".")[0] != last)


def statuses(store: Store, cluster: str, before: datetime) -> Iterator[Listed]:
    """Node statuses written before `before`, except the last of each node."""
    newest: dict[layout.NodeName, Listed] = {}
    for info in store.names(layout.nodes_prefix(cluster)):
        node = layout.NodeName.of_facts(info.name)
        if node is None:
            continue
        last = newest.get(node)
        newest[node] = info if last is None else max(last, info, key=lambda each: (each.created, each.name))
        older = last if newest[node] is info else info
        if older is not None and older.created < before:
            yield older


def settled(store: Store, cluster: str, before: datetime, voided: Collection[int] = ()) -> Iterator[ObjectInfo]:
    """Quarantine records (bytes and note) that were settled before `before` by a batch that is not in
    `voided`. The note goes last: without it the bytes cannot be found."""
    bytes_of: ObjectInfo | None = None
    for info in store.list(layout.quarantine_prefix(cluster)):
        if info.name.endswith(".bin"):
            bytes_of = info
        elif info.name.endswith(".json") and info.created < before and _is_settled(store, info.name, voided):
            if bytes_of is not None and bytes_of.name.removesuffix(".bin") == info.name.removesuffix(".json"):
                yield bytes_of
            yield info


def claims(store: Store, topic_prefix: str, before: datetime) -> Iterator[ObjectInfo]:
    """Oversized events for topics of that prefix, written before `before`."""
    for info in store.list(layout.claims_prefix(topic_prefix)):
        if info.created < before and info.name.split("/")[1].rsplit(".", 2)[0] == topic_prefix:
            yield info


def _is_settled(store: Store, note: str, voided: Collection[int]) -> bool:
    try:
        about = json.loads(store.read(note))
    except (ObjectNotFound, ValueError):
        return False
    return isinstance(about, dict) and about.get("settled_in") not in (None, *voided)


def remove(store: Store, found: ObjectInfo | Listed) -> int:
    """Delete the object; returns the bytes freed. What was only listed is never written again."""
    info = found.info if isinstance(found, Listed) else found
    try:
        store.delete(found.name, if_generation=info.generation if info else None)
    except (ObjectNotFound, PreconditionFailed):
        # Another run deleted it, or a ledger entry was rewritten because its segment arrived again.
        return 0
    return found.size
