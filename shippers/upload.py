"""One completed segment: into the bucket, verified, and only then off the node's disk.

Strategy: every step can be repeated, and a death between any two leaves a state from which the next start goes on.

    stat, CRC32C       what is to be confirmed
    head               there already, of an earlier run that died? it must be the same bytes
    ledger             processed already? then the archive must hold the same bytes, or have held them before it let them go
    put                only if there is none; if there is one, it must be the same bytes
    head               asked anew: the store's own size and CRC32C, and the generation that was just written
    stat               the file has not changed meanwhile
    delete log, idx    in this order: an idx alone says that its log is done, a log alone would look like a new one

Other bytes under the same name are never settled here: the file stays, and the error comes again until a person has looked.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from enum import Enum
from pathlib import Path

from shippers.gentle import forget
from writetime import archived
from writetime.errors import ChecksumMismatch, ObjectNotFound, PreconditionFailed, ShipError
from writetime.names import SegmentRef, plain
from writetime.store import ObjectInfo, Store
from writetime.store.checksum import crc32c_of


class Outcome(Enum):
    """How the store came to hold the segment."""

    UPLOADED = "uploaded"
    ALREADY_THERE = "already there"
    ALREADY_PROCESSED = "already processed"


@dataclass(frozen=True, slots=True)
class Local:
    """A completed segment on disk, as it was when its checksum was taken."""

    ref: SegmentRef
    log: Path
    size: int
    crc32c: int
    mtime_ns: int
    inode: int

    @property
    def sealed_at(self) -> datetime:
        """When Cassandra wrote last to the segment: the mtime of the log."""
        return datetime.fromtimestamp(self.mtime_ns / 1e9, UTC)

    @property
    def idx(self) -> Path:
        return self.log.with_name(self.ref.segment.idx_filename)


class Measured:
    """Segments that were measured and could not be shipped, so that a store that is away does not have each read anew in every round.

    A file counts as the same while its folder, inode, size, mtime and ctime are. At most `limit` are kept, the latest.
    """

    def __init__(self, limit: int = 64) -> None:
        self._limit = limit
        self._known: dict[Path, tuple[tuple[int, ...], Local]] = {}

    def of(self, ref: SegmentRef, folder: Path) -> Local:
        """As `measure`."""
        log = folder / ref.segment.filename
        identity = _identity(log)
        known = self._known.pop(log, None)
        local = known[1] if known is not None and known[0] == identity and known[1].ref == ref else measure(ref, folder)
        self._known[log] = (identity, local)
        while len(self._known) > self._limit:
            del self._known[next(iter(self._known))]
        return local

    def forget(self, log: Path) -> None:
        self._known.pop(log, None)


def ship(store: Store, ref: SegmentRef, folder: Path, metadata: Mapping[str, str], measured: Measured | None = None) -> Outcome:
    """Ship one completed segment and delete it from `folder`.

    `metadata` is added to the object's; `measured` is kept from one attempt to the next. ShipError when the store holds other bytes under
    the name, or when the file changed; StoreError and its children as the store raises them. Whatever is raised, the segment is still on
    disk.
    """
    log, measured = folder / ref.segment.filename, measured or Measured()
    try:
        local = measured.of(ref, folder)
        outcome = _known(store, local) or _upload(store, local, metadata)
    except (ShipError, ChecksumMismatch):
        # There is doubt about the bytes themselves: they are read again.
        measured.forget(log)
        raise
    finally:
        # The node may hold a link of its own to the file: its pages would outlive the deletion.
        forget(log)
    measured.forget(log)
    _require_unchanged(local)
    remove(local.log)
    remove(local.idx)
    return outcome


def foresee(store: Store, ref: SegmentRef, folder: Path) -> Outcome:
    """What `ship` would come to, errors included. Only reads."""
    local = measure(ref, folder)
    forget(local.log)
    return _known(store, local) or Outcome.UPLOADED


def measure(ref: SegmentRef, folder: Path) -> Local:
    """Size, CRC32C and identity of a segment's file. ShipError if it cannot be read or changes while it is."""
    log = folder / ref.segment.filename
    before = _stat(log)
    try:
        crc, size = crc32c_of(log)
    except OSError as error:
        raise ShipError(f"cannot be read: {error.strerror}", operation="read a segment", obj=str(log)) from error
    local = Local(ref, log, size, crc, before.st_mtime_ns, before.st_ino)
    _require_unchanged(local)
    return local


def is_there(path: Path) -> bool:
    """ShipError if that cannot be told."""
    try:
        path.lstat()
    except FileNotFoundError:
        return False
    except OSError as error:
        raise ShipError(f"cannot be looked at: {error.strerror}", operation="look for a segment", obj=str(path)) from error
    return True


def remove(path: Path) -> None:
    """Delete a file and sync its folder. A file that is gone already is as good."""
    try:
        path.unlink(missing_ok=True)
        descriptor = os.open(path.parent, os.O_RDONLY | os.O_DIRECTORY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
    except OSError as error:
        raise ShipError(
            f"cannot be deleted: {error.strerror}",
            operation="delete a shipped file",
            obj=str(path),
            hint="It is safe in the bucket. The shipper must run as a user that may write to cdc_raw.",
        ) from error


def _known(store: Store, local: Local) -> Outcome | None:
    """How the store holds the segment already, or None.

    In this order: the pipeline writes its ledger before it takes the object away, so what is neither there nor, after that, in the
    ledger has never been there, and cannot be uploaded twice.
    """
    stored = store.head(local.ref.incoming)
    if stored is None:
        return _processed(store, local)
    _require_same(local, stored)
    return Outcome.ALREADY_THERE


def _upload(store: Store, local: Local, metadata: Mapping[str, str]) -> Outcome:
    noted = {"sealed_at": local.sealed_at.isoformat(), "size": str(local.size), "crc32c": str(local.crc32c), **metadata}
    written: ObjectInfo | None = None
    try:
        written = store.put(local.ref.incoming, local.log, if_generation=0, metadata=noted)
    except PreconditionFailed:
        # By an earlier run that died, or by an attempt whose answer was lost: what counts is which bytes are there.
        written = None
    confirmed = store.head(local.ref.incoming)
    if confirmed is None:
        return _taken_in_meanwhile(store, local)
    _require_same(local, confirmed)
    if written is not None and confirmed.generation != written.generation:
        raise ShipError(
            f"generation {written.generation} was written, {confirmed.generation} is there",
            operation="verify an upload",
            obj=local.ref.incoming,
            hint="Somebody replaced the object. The next round compares it again.",
            retriable=True,
        )
    return Outcome.ALREADY_THERE if written is None else Outcome.UPLOADED


def _taken_in_meanwhile(store: Store, local: Local) -> Outcome:
    """The object is gone: either a batch has archived it in this very moment, or it was lost."""
    if (processed := _processed(store, local)) is not None:
        return processed
    raise ShipError(
        "the object is not there although the store accepted it, and no batch has taken it in",
        operation="verify an upload",
        obj=local.ref.incoming,
        hint="The file is kept and shipped again.",
        retriable=True,
    )


def _processed(store: Store, local: Local) -> Outcome | None:
    """Whether the pipeline has archived this very segment before; asks the archive itself, the ledger only says where. What the archive has
    let go since, on purpose, the ledger has to answer for.

    A segment can come back: its deletion was cut short, or the node replayed it after a crash.
    """
    noted = _noted(store, local.ref.ledger)
    if noted is None:
        return None
    if isinstance(noted, archived.Content):
        _require_content(local, noted, local.ref.ledger)
        return Outcome.ALREADY_PROCESSED
    stored = archived.held(store, plain(noted))
    if stored is None:
        raise ShipError("the ledger says it was archived, but it is not there", operation="look into the archive", obj=noted)
    _require_same(local, stored)
    return Outcome.ALREADY_PROCESSED


def _noted(store: Store, ledger: str) -> str | archived.Content | None:
    """Where the ledger says that the segment was archived, or what it was if the archive keeps it no longer; None if neither."""
    try:
        entry = json.loads(store.read(ledger))
        if entry["state"] == "expired":
            return archived.Content(int(entry["size"]), int(entry["crc32c"]))
        return str(entry["archived_as"]) if entry["state"] == "archived" else None
    except ObjectNotFound:
        return None
    except (ValueError, KeyError, TypeError) as error:
        raise ShipError(f"is no ledger entry: {error!r}", operation="read the ledger", obj=ledger) from error


def _require_same(local: Local, stored: ObjectInfo) -> None:
    _require_content(local, archived.content_of(stored), stored.name)


def _require_content(local: Local, found: archived.Content, name: str) -> None:
    if found == (local.size, local.crc32c):
        return
    raise ShipError(
        f"the store holds {found.size} bytes with CRC32C {found.crc32c:08x}, {local.log} has {local.size} with {local.crc32c:08x}",
        operation="compare a segment with the store",
        obj=name,
        hint="Nothing was overwritten or deleted. Find out which of the two is right; the shipper goes on with other segments.",
    )


def _require_unchanged(local: Local) -> None:
    now = _stat(local.log)
    if (now.st_size, now.st_mtime_ns, now.st_ino) != (local.size, local.mtime_ns, local.inode):
        raise ShipError(
            "the file changed while it was shipped",
            operation="ship a segment",
            obj=str(local.log),
            hint="It is kept, and compared again in the next round.",
            retriable=True,
        )


def _identity(log: Path) -> tuple[int, ...]:
    now = _stat(log)
    return now.st_ino, now.st_size, now.st_mtime_ns, now.st_ctime_ns


def _stat(path: Path) -> os.stat_result:
    try:
        return path.stat()
    except OSError as error:
        raise ShipError(
            f"cannot be looked at: {error.strerror}",
            operation="ship a segment",
            obj=str(path),
            hint="If it vanished, somebody else deletes segments: cdc_block_writes: false lets Cassandra do so.",
        ) from error
