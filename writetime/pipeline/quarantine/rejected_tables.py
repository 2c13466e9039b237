"""Tables whose rows cannot be converted: which ones a batch reports, whether the reason still holds, and
which segments wait.

A table is rejected as a whole: because of an unknown type, a configuration rule that does not fit it, or a
name in the warehouse that is taken. Its frames are quarantined and their segments held; other tables are not
affected. Once the reason is removed, the segments are released into the next batch: other problems in them
are held again, and data merged before changes nothing.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final
from uuid import UUID

from writetime.events.masking import Rules, rejection_reason
from writetime.pipeline.archiver import mark_for_retry
from writetime.pipeline.documents import LedgerEntry, RefusedTable
from writetime.pipeline.planner import history, read_manifest, read_sealed
from writetime.pipeline.segment_check import known_schema
from writetime.storage.concurrency import at_once
from writetime.storage.layout import SegmentRef
from writetime.storage.store import Store

_NAMED: Final = 20
_LOOKED_FOR: Final = 1000
"""So many batches after a table was made again, segments that have waited for it are looked for."""


def failed_tables(store: Store, cluster: str, number: int) -> list[RefusedTable]:
    """The tables that a sealed batch reports: those with quarantined updates, and those rejected since this
    batch or for a new reason."""
    sealed = read_sealed(store, cluster, number)
    if sealed is None or not sealed.refused:
        return []
    before = read_sealed(store, cluster, read_manifest(store, cluster, number).base)
    known = {(table.table_id, table.reason) for table in before.refused} if before else set()
    changed = {account.table for account in sealed.accounting if account.quarantined}
    return [table for table in sealed.refused if table.table in changed or (table.table_id, table.reason) not in known]


def task_arguments(found: Sequence[RefusedTable], most: int) -> list[dict[str, str]]:
    """The arguments of a task for each table, of at most so many: the last one names tables that have none."""
    shown = [{"table": each.table, "table_id": str(each.table_id), "reason": each.reason} for each in found[:most]]
    if rest := found[most:]:
        names = ", ".join(each.table for each in rest[:_NAMED]) + (", …" if len(rest) > _NAMED else "")
        shown[-1]["reason"] += f"\n{len(rest)} more tables are rejected and have no task: {names}"
    return shown


def remaining_reason(store: Store, cluster: str, table_id: UUID, rules: Rules) -> str | None:
    """Why the table is still rejected, by its schema and the rules. None if no reason is known: a name clash
    in the warehouse is only seen by a batch."""
    learner = known_schema(store, cluster)
    schema = learner.schema()
    table = schema.tables.get(table_id)
    return learner.unusable().get(table_id, ("", None))[1] if table is None else rejection_reason(table, schema, rules)


def waiting_segments(store: Store, cluster: str, table_id: UUID) -> list[str]:
    """The held segments with rejected updates of the table."""
    return [entry.object for entry in _held(store, cluster) if any(problem.table_id == table_id for problem in entry.problems)]


def release_table(store: Store, cluster: str, table_id: UUID) -> list[str]:
    """Release the segments that wait for the table into the next batch; returns them."""
    found = [name for name in waiting_segments(store, cluster, table_id) if store.head(name) is not None]
    for name in found:
        mark_for_retry(store, name)
    return found


def release_made_again(store: Store, cluster: str) -> list[str]:
    """Release the segments that have waited since before a batch made their table again (`writetime.pipeline.again`); returns
    them. If the table is rejected still, they wait."""
    sealed = history(store, cluster).sealed
    if sealed is None or not sealed.held:
        return []
    refused = {table.table_id for table in sealed.refused}
    made = {
        table_id: each.batch
        for table_id, each in sealed.again.items()
        if each.batch >= sealed.number - _LOOKED_FOR and table_id not in refused
    }
    if not made:
        return []
    found = [
        entry.object
        for entry in _held(store, cluster)
        if any(each.table_id is not None and entry.batch <= made.get(each.table_id, 0) for each in entry.problems)
    ]
    found = [name for name in found if store.head(name) is not None]
    for name in found:
        mark_for_retry(store, name)
    return found


def _held(store: Store, cluster: str) -> Iterator[LedgerEntry]:
    sealed = history(store, cluster).sealed
    for entry in at_once(lambda name: LedgerEntry.read(store, SegmentRef.from_object(name).ledger), sealed.held if sealed else ()):
        if entry is not None and entry.state == "quarantined":
            yield entry
