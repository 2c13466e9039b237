"""Tables whose rows could not be shown: which a batch has to tell of, whether the reason is gone, and what waits for that.

A table is refused as a whole, for a type that nobody knows, for a rule of the configuration that does not fit it, or because somebody else
has its name in the warehouse. Its frames wait in quarantine and in their segments; all other tables have gone on. Once a person has mended
it, the segments are let into the next batch: what else is wrong with them waits again, and what the tables hold already changes nothing.
"""

from __future__ import annotations

from collections.abc import Iterator
from uuid import UUID

from writetime.events.masking import Rules, why_not
from writetime.pipeline.archiver import mark_for_retry
from writetime.pipeline.documents import LedgerEntry, RefusedTable
from writetime.pipeline.planner import history, read_manifest, read_sealed
from writetime.pipeline.segment_check import known_schema
from writetime.storage.concurrency import at_once
from writetime.storage.layout import SegmentRef
from writetime.storage.store import Store


def failed_tables(store: Store, cluster: str, number: int) -> list[RefusedTable]:
    """The tables that a sealed batch has to tell of: updates of them were refused, or they are refused since this batch, or for another
    reason since."""
    sealed = read_sealed(store, cluster, number)
    if sealed is None or not sealed.refused:
        return []
    before = read_sealed(store, cluster, read_manifest(store, cluster, number).base)
    known = {(table.table_id, table.reason) for table in before.refused} if before else set()
    touched = {account.table for account in sealed.accounting if account.quarantined}
    return [table for table in sealed.refused if table.table in touched or (table.table_id, table.reason) not in known]


def why_still(store: Store, cluster: str, table_id: UUID, rules: Rules) -> str | None:
    """Why the table's rows cannot be shown as things are now, by its schema and the rules. None if nothing is known to stand in the way:
    what does in the warehouse only a batch sees."""
    schema = known_schema(store, cluster).schema()
    table = schema.tables.get(table_id)
    return None if table is None else why_not(table, schema, rules)


def waiting_segments(store: Store, cluster: str, table_id: UUID) -> list[str]:
    """The segments in the bucket that are held back and hold updates of the table that were refused."""
    return [entry.object for entry in _held(store, cluster) if any(problem.table_id == table_id for problem in entry.problems)]


def let_in(store: Store, cluster: str, table_id: UUID) -> list[str]:
    """Let the next batch take in what waits for the table; the segments."""
    found = [name for name in waiting_segments(store, cluster, table_id) if store.head(name) is not None]
    for name in found:
        mark_for_retry(store, name)
    return found


def _held(store: Store, cluster: str) -> Iterator[LedgerEntry]:
    sealed = history(store, cluster).sealed
    for entry in at_once(lambda name: LedgerEntry.read(store, SegmentRef.from_object(name).ledger), sealed.held if sealed else ()):
        if entry is not None and entry.state == "quarantined":
            yield entry
