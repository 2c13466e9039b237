"""Voiding: a person's decision that an open batch takes no effect, because it cannot be finished.

Strategy: a void is a seal, the same create-only object, so of a void and a seal only one comes about, and
every driver that looks for the seal before it commits is held back by either. The seal comes first and needs
the bucket only. What the batch has committed by then, or what a driver commits that looked before, is taken
back by the batches after it, each before its own commits: they know the voided ones from the seals. The
number is never used again. State stays at the base, since seals pin its versions. Knows no Spark and no
table.
"""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime
from typing import Final
from uuid import UUID

from writetime.errors import BatchError, PreconditionFailed
from writetime.pipeline.documents import Manifest, Sealed, Void
from writetime.pipeline.identity import id_of
from writetime.pipeline.planner import History, history, read_manifest, read_sealed
from writetime.storage import layout
from writetime.storage.store import Store

LOOKED_FOR: Final = 1000
"""For so many batches after a void each looks for what a late driver of the voided one may have committed."""
_OPERATION: Final = "void a batch"


def void(store: Store, cluster: str, number: int, *, reason: str, by: str) -> Sealed:
    """Void the open batch: its seal says so from then on. The void that is there if it was voided before.

    BatchError if the batch is sealed, is not the open one, or cannot be voided, or if no reason is given."""
    if not reason.strip():
        raise BatchError("a reason is missing", operation=_OPERATION, obj=str(number), hint="Say why: it is kept in the seal.")
    if (done := _voided(store, cluster, number)) is not None:
        return done
    manifest = expect_open(store, cluster, number, history(store, cluster))
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
        # Whoever was first has decided.
        return _voided(store, cluster, number) or sealed
    return sealed


def expect_open(store: Store, cluster: str, number: int, past: History) -> Manifest:
    """The manifest of the batch if that is open and may be voided; else BatchError."""
    if not past.open or number != past.last:
        what = f"batch {past.last} is" if past.open else "no batch is"
        raise BatchError(f"it is not open: {what}", operation=_OPERATION, obj=str(number), hint="Only the open batch can be voided.")
    manifest = read_manifest(store, cluster, number)
    if manifest.namespace is not None and not manifest.base:
        raise BatchError(
            "it is the first batch of its namespace, which holds no rows",
            operation=_OPERATION,
            obj=str(number),
            hint="Plan the replay again: that finishes it.",
        )
    return manifest


def voided_before(store: Store, manifest: Manifest, base: Sealed | None) -> dict[int, UUID | None]:
    """All batches of its chain before this one that were voided, with their ids: what its seal says."""
    news = _between(store, manifest.cluster, manifest.base, manifest.number)
    found = (dict(base.voided) if base else {}) | {number: id_of(store, manifest.cluster, number) for number in news}
    return dict(sorted(found.items()))


def voided_by_now(store: Store, cluster: str, past: History) -> frozenset[int]:
    """All batches that were voided, those too that no seal knows of yet."""
    after = past.last if past.open else past.last + 1
    return frozenset([*(past.sealed.voided if past.sealed else ()), *_between(store, cluster, past.base, after)])


def _between(store: Store, cluster: str, base: int, number: int) -> Iterator[int]:
    """The voided batches that were to start from the base and come right before that number."""
    number -= 1
    while number > base and (sealed := read_sealed(store, cluster, number)) and sealed.void is not None:
        yield number
        number -= 1


def _voided(store: Store, cluster: str, number: int) -> Sealed | None:
    """The seal of a voided batch; None if it is not sealed, BatchError if it is and takes effect."""
    sealed = read_sealed(store, cluster, number)
    if sealed is not None and sealed.void is None:
        raise BatchError(
            "it is sealed: its rows are in the tables, and its events may be in Kafka",
            operation=_OPERATION,
            obj=str(number),
            hint="Replay its hours (cdc_replay) if something in it was wrong, or build everything again from the archive.",
        )
    return sealed
