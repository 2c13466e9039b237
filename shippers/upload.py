"""One completed segment: into the bucket, verified, and only then off the node's disk.

Strategy: every step can be repeated, and a death between any two leaves a state from which the next start goes on.

    stat, CRC32C       what is to be confirmed
    put                only if there is none
    head               asked anew: the store's own size and CRC32C, and the generation that was just written
    stat               the file has not changed meanwhile
    delete log, idx    in this order: an idx alone says that its log is done, a log alone would look like a new one

Nothing but objects of its own node is created or looked at, so a node needs no right outside its prefixes, and none to list. A segment
that a batch took in long ago (its deletion was cut short, or the node replayed it after a crash) goes up again: planning knows it by its
ledger. Other bytes under the name are a segment in conflict: these go up beside it, named by their CRC32C, and a person decides which
count. So nobody's object can make the node run out of space.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from enum import Enum
from pathlib import Path

from shippers.io_priority import forget
from writetime.errors import ChecksumMismatch, PreconditionFailed, ShipError, SourceUnreadable, StoreError
from writetime.storage.checksum import crc32c_of
from writetime.storage.layout import SegmentRef
from writetime.storage.store import ObjectInfo, Store

_UNREADABLE = "It is kept. Check the owner and mode of the file, and the disk."


class Outcome(Enum):
    """How the store came to hold the segment."""

    UPLOADED = "uploaded"
    ALREADY_THERE = "already there"
    IN_CONFLICT = "in conflict"
    """The store holds other bytes under its name as well."""


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

    `metadata` is added to the object's; `measured` is kept from one attempt to the next. ShipError when the file changed, or the store
    does not confirm what it accepted; StoreError and its children as the store raises them. Whatever is raised, the segment is still
    on disk.
    """
    log, measured = folder / ref.segment.filename, measured or Measured()
    try:
        local = measured.of(ref, folder)
        outcome = _upload(store, local, metadata)
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
    """What `ship` would come to, as far as the store lets it be seen: without the right to list, what is missing looks like what is
    forbidden. Only reads."""
    local = measure(ref, folder)
    forget(local.log)
    try:
        stored = store.head(ref.incoming)
    except StoreError as error:
        if error.retriable:
            raise
        stored = None
    if stored is None:
        return Outcome.UPLOADED
    return Outcome.ALREADY_THERE if _is_same(local, stored) else Outcome.IN_CONFLICT


def put_if_absent(store: Store, name: str, data: bytes | Path, metadata: Mapping[str, str]) -> ObjectInfo | None:
    """What was created under the name. None if there is an object: of an earlier run that died, of an attempt whose answer was lost, or
    of somebody else; which bytes it holds is for the caller to compare. ShipError if the file cannot be read; StoreError as the store
    raises it."""
    try:
        return store.put(name, data, if_generation=0, metadata=metadata)
    except PreconditionFailed:
        return None
    except SourceUnreadable as error:
        raise ShipError(error.message, operation="ship a file", obj=str(data), hint=_UNREADABLE) from error


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
    """ShipError if that cannot be found out."""
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


def _upload(store: Store, local: Local, metadata: Mapping[str, str]) -> Outcome:
    noted = {"sealed_at": local.sealed_at.isoformat(), "size": str(local.size), "crc32c": str(local.crc32c), **metadata}
    written, confirmed = _create(store, local.ref.incoming, local, noted)
    if _is_same(local, confirmed):
        return Outcome.UPLOADED if written else Outcome.ALREADY_THERE
    if not written:
        written, confirmed = _create(store, local.ref.conflict(local.crc32c), local, noted)
    if _is_same(local, confirmed):
        return Outcome.IN_CONFLICT
    raise ShipError(
        f"the store holds {confirmed.size} bytes with CRC32C {confirmed.crc32c:08x}, {local.log} has {local.size} with {local.crc32c:08x}",
        operation="compare a segment with the store",
        obj=confirmed.name,
        hint="Nothing was overwritten or deleted, and the segment is tried again. If it stays so, the store or the disk damages bytes.",
    )


def _create(store: Store, name: str, local: Local, metadata: Mapping[str, str]) -> tuple[bool, ObjectInfo]:
    """(whether this call created the object, what the store holds under the name, asked anew). ShipError (retriable) if that is nothing,
    or is not what was just written."""
    written = put_if_absent(store, name, local.log, metadata)
    confirmed = store.head(name)
    if confirmed is None:
        raise ShipError(
            "the object is not there although the store has accepted it",
            operation="verify an upload",
            obj=name,
            hint="The file is kept and shipped again. If a batch took the object in at this very moment, the next one passes it over.",
            retriable=True,
        )
    if written is not None and confirmed.generation != written.generation:
        raise ShipError(
            f"generation {written.generation} was written, {confirmed.generation} is there",
            operation="verify an upload",
            obj=name,
            hint="Somebody replaced the object. The next round compares it again.",
            retriable=True,
        )
    return written is not None, confirmed


def _is_same(local: Local, stored: ObjectInfo) -> bool:
    return (stored.size, stored.crc32c) == (local.size, local.crc32c)


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
