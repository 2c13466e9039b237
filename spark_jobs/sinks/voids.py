"""Takes back what voided batches committed; the batches after them do this (`writetime.pipeline.void`).

Strategy: before a batch commits, it checks each table that it or a voided batch knows, and removes what the
voided batch left there. The driver of a voided batch may pause between its check of the seal and its commit,
so several later batches check, not only the first; a commit that was made after a batch has checked is found before
its seal. Costs nothing if no batch was voided recently. Knows the warehouse; must not know what a batch consists of.
"""

from __future__ import annotations

from collections.abc import Mapping
from uuid import UUID

from spark_jobs.failures import COMMITTERS
from spark_jobs.sinks.iceberg import Warehouse
from writetime.cassandra.schema.model import Table
from writetime.errors import BatchBusy
from writetime.pipeline.documents import Manifest
from writetime.pipeline.planner import read_schema
from writetime.pipeline.void import LOOKED_FOR
from writetime.storage import layout
from writetime.storage.concurrency import at_once
from writetime.storage.store import Store

Voided = Mapping[int, UUID | None]
"""Batches that were voided, with their ids."""


def take_back(warehouse: Warehouse, store: Store, manifest: Manifest, voided: Voided) -> None:
    """Revert what recent ones of the `voided` batches committed, whose drivers may still be running.
    BatchError if rows of another batch were written on top; BatchBusy (retriable) if the table is being
    written."""
    recent = _lately(manifest, voided)
    if not recent:
        return
    number = manifest.number
    if manifest.namespace is None:
        warehouse.take_back_voided_records(manifest.cluster, recent, number)
    tables = _tables(store, manifest, recent)
    at_once(lambda table: warehouse.take_back_voided(table, recent, number), tables, workers=COMMITTERS)


def expect_settled(warehouse: Warehouse, store: Store, manifest: Manifest, voided: Voided) -> None:
    """BatchBusy if a driver of a voided batch has committed to one of these tables since `take_back`, above or below
    this batch's own rows: a rerun reverts both and writes its own again."""
    recent = _lately(manifest, voided)
    if not recent:
        return
    tables = _tables(store, manifest, recent)
    settled = at_once(lambda table: warehouse.is_settled(table, recent, manifest.number), tables, workers=COMMITTERS)
    wrong = [table.label for table, good in zip(tables, settled, strict=True) if not good]
    if manifest.namespace is None and not warehouse.has_settled_records(recent):
        wrong.append("the quarantine table")
    if wrong:
        raise BatchBusy(
            f"a driver of a voided batch has written to {', '.join(wrong)} meanwhile",
            operation="seal a batch",
            obj=str(manifest.number),
            hint="Run it again: that takes those rows back.",
        )


def _lately(manifest: Manifest, voided: Voided) -> dict[int, UUID | None]:
    return {number: found for number, found in voided.items() if number >= manifest.number - LOOKED_FOR}


def _tables(store: Store, manifest: Manifest, recent: Voided) -> list[Table]:
    """The tables that this batch, its base or a `recent` one captured, as in the last of them."""
    # The base's schema contains what earlier batches knew, if it was ingested again.
    batches = {*(each for each in recent if each > manifest.base), manifest.base, manifest.number}
    found: dict[UUID, Table] = {}
    for number in sorted(batches - {0}):
        if store.head(layout.batch_object(manifest.cluster, number, "schema")) is not None:
            found |= {table.id: table for table in read_schema(store, manifest.cluster, number).captured()}
    return sorted(found.values(), key=lambda table: (table.full_name, str(table.id)))
