"""Decisions of a batch's first run, which all other runs of the batch use.

Strategy: documents next to the manifest that are created and never overwritten, each before anything is
written that depends on it, so that a rerun, a concurrent run and a late driver produce the same rows:

    config.json           the part of the configuration that determines rows; edits of the YAML apply from the next batch
    absent.json           planned segments that did not exist any more when the batch first read them
    verdicts.json         tables whose rows cannot be converted, and why
    verdicts-0001.json …  one that was found later: each run looks for the next one before each commit, and restarts

Secrets, schedules and endpoints are not pinned, because they determine no row. A salt is a secret, so a
batch that is run again needs the same one. Does not know Spark, or the reasons for which tables are
rejected.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, TypeVar
from uuid import UUID

import structlog
from pydantic import Field, field_validator

from writetime.config.kafka import EventsConfig, PartitionBy, QuarantineConfig
from writetime.config.pipeline import PipelineConfig
from writetime.config.tables import ColumnsConfig, TablesConfig
from writetime.config.warehouse import WarehouseConfig
from writetime.errors import BatchBusy, BatchError, PreconditionFailed
from writetime.pipeline.documents import Document, Manifest, RefusedTable, SegmentInput
from writetime.storage import layout
from writetime.storage.store import Store

_D = TypeVar("_D", bound=Document)

log = structlog.get_logger()


class Deciding(Document):
    """The part of a pipeline's configuration that determines a batch's rows. `columns` is without its
    salt."""

    buckets: int
    datacenters: list[str]
    tables: TablesConfig
    columns: dict[str, Any]
    events: EventsConfig
    snapshot_events: str
    warehouse: WarehouseConfig
    quarantine: QuarantineConfig
    partition_by: PartitionBy = "primary_key"

    @field_validator("columns", mode="after")
    @classmethod
    def _has_all_keys(cls, columns: dict[str, Any]) -> dict[str, Any]:
        # Written by a version without one of them: it had the default's effect.
        return {**ColumnsConfig().model_dump(mode="json", exclude={"salt"}), **columns}

    @classmethod
    def of(cls, config: PipelineConfig) -> Deciding:
        return cls(
            buckets=config.buckets,
            datacenters=config.cluster.datacenters,
            tables=config.tables,
            columns=config.columns.model_dump(mode="json", exclude={"salt"}),
            events=config.events,
            snapshot_events=config.snapshot.events,
            warehouse=config.warehouse,
            quarantine=config.quarantine,
            partition_by=config.partition_by,
        )

    def over(self, config: PipelineConfig) -> PipelineConfig:
        """The given configuration with this part replaced."""
        cluster = config.cluster.model_copy(update={"datacenters": self.datacenters})
        kafka = config.kafka and config.kafka.model_copy(update={"partition_by": self.partition_by})
        return config.model_copy(
            update={
                "buckets": self.buckets,
                "cluster": cluster,
                "tables": self.tables,
                "columns": ColumnsConfig.model_validate({**self.columns, "salt": config.columns.salt}),
                "events": self.events,
                "snapshot": config.snapshot.model_copy(update={"events": self.snapshot_events}),
                "warehouse": self.warehouse,
                "quarantine": self.quarantine,
                "kafka": kafka,
            }
        )


class Absent(Document):
    """Segments of the manifest, by object, that were missing or replaced when the batch first read them."""

    objects: list[str] = Field(default=[])


class Verdicts(Document):
    """Tables whose rows a batch cannot convert."""

    refused: list[RefusedTable] = Field(default=[])


class VerdictAdded(BatchBusy):
    """Another run of the batch has found a table that cannot be written: restart without it."""


@dataclass(frozen=True, slots=True)
class Known:
    """All verdicts of a batch. `begun`: the first run has created them. `additions`: number of those found
    later. `untouched`: the tables rejected before any run could commit something of them."""

    begun: bool
    refused: dict[UUID, RefusedTable]
    additions: int
    untouched: frozenset[UUID] = frozenset()

    @property
    def late(self) -> frozenset[UUID]:
        """The tables that some run may have opened before another one rejected them."""
        return frozenset(self.refused) - self.untouched


def configuration(store: Store, manifest: Manifest, config: PipelineConfig) -> PipelineConfig:
    """The configuration of the batch, as of its first run. BatchError if that needs a salt which is
    missing."""
    mine, name = Deciding.of(config), _object(manifest, "config")
    pinned = mine.create(store, name)
    if pinned == mine:
        return config
    log.warning("batch uses the configuration of its first run", batch=manifest.number, differs=_differing(mine, pinned))
    try:
        return pinned.over(config)
    except ValueError as error:
        raise BatchError(
            f"the pinned configuration does not fit the current one: {error}",
            operation="run a batch",
            obj=name,
            hint="Restore `columns.salt` until the batch is sealed.",
        ) from error


def _differing(mine: Deciding, pinned: Deciding) -> list[str]:
    return [key for key in Deciding.model_fields if getattr(mine, key) != getattr(pinned, key)]


def absent(store: Store, manifest: Manifest) -> frozenset[str] | None:
    """Segments that the batch leaves out; None before its first run has recorded them."""
    found = Absent.read(store, _object(manifest, "absent"))
    return None if found is None else frozenset(found.objects)


def pin_absent(store: Store, manifest: Manifest, gone: set[str]) -> None:
    """Record which segments were missing when the batch first read them. BatchError for one that went
    missing since; BatchBusy, after which a rerun uses the record, if another run has recorded others."""
    name = _object(manifest, "absent")
    noted = set(Absent(objects=sorted(gone)).create(store, name).objects)
    if lost := sorted(gone - noted):
        raise BatchError(
            f"{len(lost)} segments that the batch has read before are missing: {', '.join(lost[:3])}",
            operation="run a batch",
            obj=str(manifest.number),
            hint="Restore the same bytes under those names and run the batch again.",
        )
    if noted - gone:
        raise BatchBusy("another run has left out more segments", operation="run a batch", obj=name, hint="Run it again.")


def as_pinned(segments: list[SegmentInput], without: frozenset[str] | None) -> list[SegmentInput]:
    """The segments, where those in `without` are read as missing, even if they exist again."""
    return [segment.as_absent() if without and segment.object in without else segment for segment in segments]


def verdicts(store: Store, manifest: Manifest) -> Known:
    """All known verdicts of the batch."""
    first = Verdicts.read(store, _object(manifest, "verdicts"))
    found = [*first.refused] if first else []
    number = 0
    while (added := Verdicts.read(store, addition(manifest.cluster, manifest.number, number + 1))) is not None:
        number += 1
        found += added.refused
    untouched = frozenset(table.table_id for table in first.refused) if first else frozenset[UUID]()
    return Known(first is not None, {table.table_id: table for table in reversed(found)}, number, untouched)


def pin_verdicts(store: Store, manifest: Manifest, refused: list[RefusedTable]) -> Known:
    """Record the verdicts of the batch's first run; those of a later run are added if new. Returns all."""
    Verdicts(refused=refused).create(store, _object(manifest, "verdicts"))
    for table in refused:
        add_verdict(store, manifest, table)
    return verdicts(store, manifest)


def add_verdict(store: Store, manifest: Manifest, table: RefusedTable) -> None:
    """Exclude the table from all runs of the batch, from their next commit on."""
    while True:
        known = verdicts(store, manifest)
        if table.table_id in known.refused:
            return
        name = addition(manifest.cluster, manifest.number, known.additions + 1)
        try:
            store.put(name, Verdicts(refused=[table]).to_bytes(), if_generation=0)
        except PreconditionFailed:
            continue


def addition(cluster: str, number: int, at: int) -> str:
    """Name of the additional verdict number `at`, from 1."""
    return layout.batch_object(cluster, number, f"verdicts-{at:04d}")


def _object(manifest: Manifest, what: str) -> str:
    return layout.batch_object(manifest.cluster, manifest.number, what)
