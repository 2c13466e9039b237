"""Voiding: an operator's decision that an open batch takes no effect, because it cannot be finished.

Strategy: a void is a seal, the same create-only object, so only one of both is created, and every driver
that checks for the seal before it commits is stopped by either. The seal comes first and needs only the
bucket. Commits that the batch has made by then, or that a late driver still makes, are reverted by the
following batches before their own commits: they know the voided batches from the seals. The number is never
used again. The state stays at the base, because seals pin its versions. Does not know Spark or tables.
"""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime
from typing import Final
from uuid import UUID

from writetime.errors import BatchError, PreconditionFailed
from writetime.pipeline import erasures
from writetime.pipeline.documents import Manifest, Sealed, Void
from writetime.pipeline.identity import id_of
from writetime.pipeline.planner import History, history, read_manifest, read_sealed
from writetime.storage import layout
from writetime.storage.store import Store

LOOKED_FOR: Final = 1000
"""Number of following batches that look for late commits of a voided batch."""
_OPERATION: Final = "void a batch"


def void(store: Store, cluster: str, number: int, *, reason: str, by: str) -> Sealed:
    """Void the open batch by writing its seal; returns the existing void if there is one.

    Raises BatchError if the batch is sealed, is not the open one, or cannot be voided, or if no reason is
    given."""
    if not reason.strip():
        raise BatchError("a reason is missing", operation=_OPERATION, obj=str(number), hint="Give a reason: it is stored in the seal.")
    if (done := _voided(store, cluster, number)) is not None:
        return done
    manifest = expect_open(store, cluster, number, history(store, cluster))
    if manifest.kind == "erase":
        erasures.revoke(store, cluster, number, by=by)
    sealed = Sealed(
        number=number,
        kind=manifest.kind,
        sealed_at=datetime.now(UTC),
        segments=[],
        accounting=[],
        state={},
        void=Void(reason=reason.strip(), by=by, base=manifest.base),
    )
    try:
        sealed.write(store, layout.batch_object(cluster, number, "sealed"), layout.batch_folder(cluster, number))
    except PreconditionFailed:
        # Another run was first.
        return _voided(store, cluster, number) or sealed
    return sealed


def expect_open(store: Store, cluster: str, number: int, past: History) -> Manifest:
    """The manifest of the batch if it is open and may be voided; else BatchError."""
    if not past.open or number != past.last:
        what = f"batch {past.last} is" if past.open else "no batch is"
        raise BatchError(f"it is not open: {what}", operation=_OPERATION, obj=str(number), hint="Only the open batch can be voided.")
    manifest = read_manifest(store, cluster, number)
    if manifest.namespace is not None and not manifest.base:
        raise BatchError(
            "the first batch of a shadow namespace cannot be voided, it has no rows",
            operation=_OPERATION,
            obj=str(number),
            hint="Plan the replay again to finish it.",
        )
    return manifest


def voided_before(store: Store, manifest: Manifest, base: Sealed | None) -> dict[int, UUID | None]:
    """All voided batches of the chain before this one, with their ids."""
    news = _between(store, manifest.cluster, manifest.base, manifest.number)
    found = (dict(base.voided) if base else {}) | {number: id_of(store, manifest.cluster, number) for number in news}
    return dict(sorted(found.items()))


def voided_by_now(store: Store, cluster: str, past: History) -> frozenset[int]:
    """All voided batches, including those that no seal lists yet."""
    after = past.last if past.open else past.last + 1
    return frozenset([*(past.sealed.voided if past.sealed else ()), *_between(store, cluster, past.base, after)])


def _between(store: Store, cluster: str, base: int, number: int) -> Iterator[int]:
    """The voided batches with this base directly before that number."""
    number -= 1
    while number > base and (sealed := read_sealed(store, cluster, number)) and sealed.void is not None:
        yield number
        number -= 1


def _voided(store: Store, cluster: str, number: int) -> Sealed | None:
    """The seal of a voided batch; None if it is not sealed, BatchError if it is sealed and takes effect."""
    sealed = read_sealed(store, cluster, number)
    if sealed is not None and sealed.void is None:
        raise BatchError(
            "the batch is sealed: its rows are in the tables, and its events may be in Kafka",
            operation=_OPERATION,
            obj=str(number),
            hint="Replay its hours (cdc_replay) if something in it was wrong, or rebuild everything from the archive.",
        )
    return sealed
