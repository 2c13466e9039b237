"""Takes back what voided batches committed, and what batches committed of tables that they rejected in the end; the batches
after them do this (`writetime.pipeline.void`).

Strategy: before a batch commits, it checks each table that it or a voided batch knows, and removes what the
voided batch left there. The driver of a voided batch may pause between its check of the seal and its commit,
so several later batches check, not only the first; a commit that was made after a batch has checked is found before
its seal. The same goes for a run that has opened a table which another run of its batch rejects. Costs nothing if no batch
was voided recently. Knows the warehouse; must not know what a batch consists of.
"""

from __future__ import annotations

from collections.abc import Container, Mapping
from uuid import UUID

import structlog

from spark_jobs.failures import COMMITTERS, kind_of, reason_of
from spark_jobs.sinks.iceberg import Warehouse
from writetime.cassandra.schema.model import Table
from writetime.errors import BatchBusy
from writetime.pipeline.documents import Manifest, Sealed
from writetime.pipeline.planner import read_schema
from writetime.pipeline.void import LOOKED_FOR
from writetime.storage import layout
from writetime.storage.concurrency import at_once
from writetime.storage.store import Store

Voided = Mapping[int, UUID | None]
"""Batches that were voided, with their ids."""
Rejected = Mapping[UUID, Voided]
"""By table id: batches that rejected the table."""

log = structlog.get_logger()


def rejected(base: Sealed | None) -> Rejected:
    """Of the tables that earlier batches rejected, what to take back."""
    if base is None:
        return {}
    return {table_id: dict.fromkeys(base.without_effect(table_id) - base.voided.keys()) for table_id in base.late_rejections}


def take_back(
    warehouse: Warehouse, store: Store, manifest: Manifest, voided: Voided, rejected: Rejected, refused: Container[UUID] = ()
) -> None:
    """Revert what recent ones of the `voided` batches committed, whose drivers may still be running, and what batches
    committed of tables that they `rejected`; of those that are `refused` now, too, as far as they are readable. BatchError if
    rows of another batch were written on top; BatchBusy (retriable) if the table is being written."""
    recent, number = _lately(manifest, voided), manifest.number
    if recent and manifest.namespace is None:
        warehouse.take_back_voided_records(manifest.cluster, recent, number)
    tables = _tables(store, manifest, recent, rejected)

    def of_table(table: Table, batches: Voided) -> None:
        try:
            warehouse.take_back_voided(table, batches, number)
        except Exception as error:
            if table.id not in refused or kind_of(error) != "table":
                raise
            log.warning("rejected table not looked at", table=table.label, batch=number, reason=reason_of(error))

    at_once(lambda each: of_table(*each), tables, workers=COMMITTERS)


def expect_settled(
    warehouse: Warehouse, store: Store, manifest: Manifest, voided: Voided, rejected: Rejected, refused: Container[UUID] = ()
) -> None:
    """BatchBusy if a driver of such a batch has committed to one of these tables since `take_back`, above or below
    this batch's own rows: a rerun reverts both and writes its own again. Those that are `refused` are not looked at."""
    recent = _lately(manifest, voided)
    tables = [(table, each) for table, each in _tables(store, manifest, recent, rejected) if table.id not in refused]
    settled = at_once(lambda each: warehouse.is_settled(*each, manifest.number), tables, workers=COMMITTERS)
    wrong = [table.label for (table, _), good in zip(tables, settled, strict=True) if not good]
    if recent and manifest.namespace is None and not warehouse.has_settled_records(recent):
        wrong.append("the quarantine table")
    if wrong:
        raise BatchBusy(
            f"a driver of a batch without effect has written to {', '.join(wrong)} meanwhile",
            operation="seal a batch",
            obj=str(manifest.number),
            hint="Run it again: that takes those rows back.",
        )


def _lately(manifest: Manifest, voided: Voided) -> dict[int, UUID | None]:
    return {number: found for number, found in voided.items() if number >= manifest.number - LOOKED_FOR}


def _tables(store: Store, manifest: Manifest, recent: Voided, rejected: Rejected) -> list[tuple[Table, Voided]]:
    """The tables that this batch, its base or a `recent` one captured, as in the last of them, and what of them is taken back."""
    if not recent and not rejected:
        return []
    # The base's schema contains what earlier batches knew, if it was ingested again.
    batches = {*(each for each in recent if each > manifest.base), manifest.base, manifest.number}
    found: dict[UUID, Table] = {}
    for number in sorted(batches - {0}):
        if store.head(layout.batch_object(manifest.cluster, number, "schema")) is not None:
            found |= {table.id: table for table in read_schema(store, manifest.cluster, number).captured()}
    tables = sorted(found.values(), key=lambda table: (table.full_name, str(table.id)))
    each = [(table, {**recent, **rejected.get(table.id, {})}) for table in tables]
    return [(table, batches) for table, batches in each if batches]
