"""What the first run of a batch decides, and every other run of it goes by.

Strategy: documents beside the manifest that are created and never overwritten, each before the first thing is written that depends on
it, so that a rerun, a rival and a driver that is late come to the same rows:

    config.json           the part of the configuration that decides which rows come about; an edit of the YAML counts from the next batch
    absent.json           segments that were planned, and not there any more when the batch first read them
    verdicts.json         tables whose rows cannot be shown, and why
    verdicts-0001.json …  one that was found later: everybody looks for the next one before each commit, and begins anew with it

Secrets, schedules and endpoints are not pinned: they decide no row. A salt is a secret, so a batch that is run again has to be given the
same one. Knows no Spark, and nothing of what a table is refused for.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, TypeVar
from uuid import UUID

import structlog
from pydantic import Field

from writetime.config.pipeline import (
    ColumnsConfig,
    EventsConfig,
    PipelineConfig,
    QuarantineConfig,
    TablesConfig,
    WarehouseConfig,
)
from writetime.errors import BatchBusy, BatchError, PreconditionFailed
from writetime.pipeline.documents import Document, Manifest, RefusedTable, SegmentInput, Unwritable
from writetime.storage import layout
from writetime.storage.store import Store

_D = TypeVar("_D", bound=Document)

log = structlog.get_logger()


class Deciding(Document):
    """The part of a pipeline's configuration that decides which rows a batch brings about. `columns` is without its salt."""

    buckets: int
    datacenters: list[str]
    tables: TablesConfig
    columns: dict[str, Any]
    events: EventsConfig
    snapshot_events: str
    warehouse: WarehouseConfig
    quarantine: QuarantineConfig

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
        )

    def over(self, config: PipelineConfig) -> PipelineConfig:
        """The configuration with this part in the place of its own."""
        cluster = config.cluster.model_copy(update={"datacenters": self.datacenters})
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
            }
        )


class Absent(Document):
    """Segments of the manifest, by object, that were gone or replaced when the batch first read them."""

    objects: list[str] = Field(default=[])


class Verdicts(Document):
    """Tables whose rows a batch cannot show."""

    refused: list[RefusedTable] = Field(default=[])


class VerdictAdded(BatchBusy):
    """Another run of the batch has found a table that cannot be written: this one has to begin anew without it."""


@dataclass(frozen=True, slots=True)
class Known:
    """All verdicts of a batch. `begun`: whether the first run has come so far. `additions`: how many were found later."""

    begun: bool
    refused: dict[UUID, RefusedTable]
    additions: int


def configuration(store: Store, manifest: Manifest, config: PipelineConfig) -> PipelineConfig:
    """The configuration that the batch goes by: as it was when its first run began. BatchError if that needs a salt which is not given."""
    mine, name = Deciding.of(config), _object(manifest, "config")
    pinned = _created(store, name, mine)
    if pinned == mine:
        return config
    log.warning("batch goes by the configuration that it was begun with", batch=manifest.number, differs=_differing(mine, pinned))
    try:
        return pinned.over(config)
    except ValueError as error:
        raise BatchError(
            f"the configuration that it was begun with does not fit the present one: {error}",
            operation="run a batch",
            obj=name,
            hint="Give `columns.salt` back until the batch is sealed.",
        ) from error


def _differing(mine: Deciding, pinned: Deciding) -> list[str]:
    return [key for key in Deciding.model_fields if getattr(mine, key) != getattr(pinned, key)]


def absent(store: Store, manifest: Manifest) -> frozenset[str] | None:
    """Segments that the batch goes without; None before its first run has looked."""
    found = Absent.read(store, _object(manifest, "absent"))
    return None if found is None else frozenset(found.objects)


def pin_absent(store: Store, manifest: Manifest, gone: set[str]) -> None:
    """Note which segments were gone as the batch first read them. BatchError for one that has gone since; BatchBusy, and a rerun goes by
    what was noted, if another run has noted others."""
    name = _object(manifest, "absent")
    noted = set(_created(store, name, Absent(objects=sorted(gone))).objects)
    if lost := sorted(gone - noted):
        raise BatchError(
            f"{len(lost)} segments are gone that the batch has read before: {', '.join(lost[:3])}",
            operation="run a batch",
            obj=str(manifest.number),
            hint="Put the same bytes back at those names and run it again.",
        )
    if noted - gone:
        raise BatchBusy("another run has read it without some segments", operation="run a batch", obj=name, hint="Run it again.")


def as_pinned(segments: list[SegmentInput], without: frozenset[str] | None) -> list[SegmentInput]:
    """The segments, of which those the batch goes `without` are read as gone, whatever lies there by now."""
    return [segment.as_absent() if without and segment.object in without else segment for segment in segments]


def verdicts(store: Store, manifest: Manifest) -> Known:
    """All that is known by now of tables that the batch cannot show."""
    first = Verdicts.read(store, _object(manifest, "verdicts"))
    # A batch that was begun by a version before this one.
    old = Unwritable.read(store, _object(manifest, "unwritable"))
    found = [*(first.refused if first else []), *(old.tables if old else [])]
    number = 0
    while (added := Verdicts.read(store, addition(manifest.cluster, manifest.number, number + 1))) is not None:
        number += 1
        found += added.refused
    return Known(first is not None, {table.table_id: table for table in reversed(found)}, number)


def pin_verdicts(store: Store, manifest: Manifest, refused: list[RefusedTable]) -> Known:
    """Note the verdicts of the batch's first run, if this is it; all there are. Those of a later run that are news are added."""
    _created(store, _object(manifest, "verdicts"), Verdicts(refused=refused))
    for table in refused:
        add_verdict(store, manifest, table)
    return verdicts(store, manifest)


def add_verdict(store: Store, manifest: Manifest, table: RefusedTable) -> None:
    """Let all runs of the batch go without the table from their next commit on."""
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
    """Name of a batch's verdict number `at`, from 1, of those that were found later."""
    return layout.batch_object(cluster, number, f"verdicts-{at:04d}")


def _object(manifest: Manifest, what: str) -> str:
    return layout.batch_object(manifest.cluster, manifest.number, what)


def _created(store: Store, name: str, document: _D) -> _D:
    """The document, or the one that was there before."""
    try:
        store.put(name, document.to_bytes(), if_generation=0)
    except PreconditionFailed:
        return type(document).model_validate_json(store.read(name))
    return document
