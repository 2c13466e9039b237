"""Upload one completed segment, verify it, and delete it from the node's disk.

Strategy: every step can be repeated; after a crash between any two, the next start continues.

    stat, CRC32C       what the store must confirm
    head               only if it may be there: nothing is sent then
    put                only if the object does not exist
    head               a new request: the store's size and CRC32C, and the generation that was just written
    stat               the file has not changed meanwhile
    delete log, idx    in this order: an idx alone means that its log was shipped; a log alone would look new

Only objects of the own node are created or read, so a node needs no permission outside its prefixes and none
to list. A segment that an earlier batch read (its deletion was interrupted, or the node replayed it after a
crash) is uploaded again: planning recognizes it by its ledger. If the object holds other bytes, the segment
is in conflict: the file is uploaded under a second name with its CRC32C, and an operator decides which one is
valid. So an existing object never makes the node run out of space.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from enum import Enum
from pathlib import Path

from shippers.io_priority import forget
from shippers.write_times import moment
from writetime.errors import ChecksumMismatch, PreconditionFailed, ShipError, SourceUnreadable, StoreError
from writetime.storage.checksum import crc32c_of
from writetime.storage.layout import SegmentRef
from writetime.storage.store import ObjectInfo, Store

_UNREADABLE = "The file is kept. Check its owner and mode, and the disk."


class Outcome(Enum):
    """How the store came to hold the segment."""

    UPLOADED = "uploaded"
    ALREADY_THERE = "already there"
    IN_CONFLICT = "in conflict"
    """The object of that name holds other bytes."""


@dataclass(frozen=True, slots=True)
class Local:
    """A completed segment on disk, at the time its checksum was computed."""

    ref: SegmentRef
    log: Path
    size: int
    crc32c: int
    mtime_ns: int
    inode: int

    @property
    def sealed_at(self) -> datetime:
        """When Cassandra last wrote to the segment: the mtime of the log, but not in the future."""
        return moment(self.mtime_ns / 1e9)

    @property
    def idx(self) -> Path:
        return self.log.with_name(self.ref.segment.idx_filename)


class Measured:
    """Cache of measured segments, so that an unavailable store does not cause each to be read again in every
    round.

    A file is unchanged if its folder, inode, size, mtime and ctime are. Keeps the latest `limit` segments.
    """

    def __init__(self, limit: int = 64) -> None:
        self._limit = limit
        self._known: dict[Path, tuple[tuple[int, ...], Local]] = {}

    def of(self, ref: SegmentRef, folder: Path) -> Local:
        """Like `measure`, from the cache if the file is unchanged."""
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


def ship(
    store: Store,
    ref: SegmentRef,
    folder: Path,
    metadata: Mapping[str, str],
    measured: Measured | None = None,
    *,
    look_first: bool = False,
) -> Outcome:
    """Ship one completed segment and delete it from `folder`.

    `metadata` is added to the object's metadata; `measured` is reused between attempts. `look_first`: an earlier attempt
    may have uploaded it, so do not send what the store holds. ShipError if the file
    changed or the store does not confirm the upload; StoreError as the store raises it. After an error the
    segment is still on disk.
    """
    log, measured = folder / ref.segment.filename, measured or Measured()
    try:
        local = measured.of(ref, folder)
        outcome = _upload(store, local, metadata, look_first)
    except (ShipError, ChecksumMismatch):
        # The bytes themselves are in doubt: read them again.
        measured.forget(log)
        raise
    finally:
        # The node may keep its own hard link to the file; then its cached pages would survive the deletion.
        forget(log)
    measured.forget(log)
    _require_unchanged(local)
    remove(local.log)
    remove(local.idx)
    return outcome


def foresee(store: Store, ref: SegmentRef, folder: Path) -> Outcome:
    """Predict the outcome of `ship`. Only reads.

    Without permission to list, a missing object looks like a forbidden one; it then counts as missing.
    """
    local = measure(ref, folder)
    forget(local.log)
    stored = _seen(store, ref.incoming)
    if stored is None:
        return Outcome.UPLOADED
    return Outcome.ALREADY_THERE if _is_same(local, stored) else Outcome.IN_CONFLICT


def _seen(store: Store, name: str) -> ObjectInfo | None:
    """The object, if it exists and may be seen. StoreError (retriable) as the store raises it."""
    try:
        return store.head(name)
    except StoreError as error:
        if error.retriable:
            raise
        return None


def put_if_absent(store: Store, name: str, data: bytes | Path, metadata: Mapping[str, str]) -> ObjectInfo | None:
    """Create the object. None if it exists: from a run that died, an attempt whose response was lost, or
    another writer.

    The caller compares its bytes. ShipError if the file cannot be read; StoreError as the store raises it.
    """
    try:
        return store.put(name, data, if_generation=0, metadata=metadata)
    except PreconditionFailed:
        return None
    except SourceUnreadable as error:
        raise ShipError(error.message, operation="ship a file", obj=str(data), hint=_UNREADABLE) from error


def measure(ref: SegmentRef, folder: Path) -> Local:
    """Size, CRC32C and identity of a segment's file. ShipError if it cannot be read or changes while it
    is."""
    log = folder / ref.segment.filename
    before = _stat(log)
    try:
        crc, size = crc32c_of(log)
    except OSError as error:
        raise ShipError(f"failed to read the file: {error.strerror}", operation="read a segment", obj=str(log)) from error
    local = Local(ref, log, size, crc, before.st_mtime_ns, before.st_ino)
    _require_unchanged(local)
    return local


def is_unanswered(error: object) -> bool:
    """Whether the store is unusable now: unavailable, or access is denied (expired credentials, missing
    permission or bucket).
    """
    return isinstance(error, StoreError) and not isinstance(error, (PreconditionFailed, ChecksumMismatch))


def is_there(path: Path) -> bool:
    """Whether the file exists. ShipError if stat fails."""
    try:
        path.lstat()
    except FileNotFoundError:
        return False
    except OSError as error:
        raise ShipError(f"failed to stat the file: {error.strerror}", operation="look for a segment", obj=str(path)) from error
    return True


def remove(path: Path) -> None:
    """Delete a file and sync its folder. A missing file is not an error."""
    try:
        path.unlink(missing_ok=True)
        descriptor = os.open(path.parent, os.O_RDONLY | os.O_DIRECTORY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
    except OSError as error:
        raise _not_deleted(path, error.strerror) from error
    if is_there(path):
        # A network file system may say that there is none. A log that stays without its idx would look new for ever.
        raise _not_deleted(path, "it is still there")


def _not_deleted(path: Path, why: str | None) -> ShipError:
    hint = "It is safe in the bucket. Run the shipper as a user that may write to cdc_raw."
    return ShipError(f"failed to delete the file: {why}", operation="delete a shipped file", obj=str(path), hint=hint)


def _upload(store: Store, local: Local, metadata: Mapping[str, str], look_first: bool) -> Outcome:
    noted = {"sealed_at": local.sealed_at.isoformat(), "size": str(local.size), "crc32c": str(local.crc32c), **metadata}
    written, confirmed = _create(store, local.ref.incoming, local, noted, look_first)
    if _is_same(local, confirmed):
        return Outcome.UPLOADED if written else Outcome.ALREADY_THERE
    if not written:
        written, confirmed = _create(store, local.ref.conflict(local.crc32c), local, noted, look_first)
    if _is_same(local, confirmed):
        return Outcome.IN_CONFLICT
    raise ShipError(
        f"the store holds {confirmed.size} bytes with CRC32C {confirmed.crc32c:08x}, {local.log} has {local.size} with {local.crc32c:08x}",
        operation="compare a segment with the store",
        obj=confirmed.name,
        hint="Nothing was overwritten or deleted, and the segment is retried. If the error persists, the store or the disk corrupts data.",
    )


def _create(store: Store, name: str, local: Local, metadata: Mapping[str, str], look_first: bool) -> tuple[bool, ObjectInfo]:
    """(whether this call created the object, the object from a new request).

    ShipError (retriable) if the object is missing or is not the one just written.
    """
    if look_first and (found := _seen(store, name)) is not None:
        return False, found
    written = put_if_absent(store, name, local.log, metadata)
    confirmed = store.head(name)
    if confirmed is None:
        raise ShipError(
            "the object is missing although the store accepted it",
            operation="verify an upload",
            obj=name,
            hint="The file is kept and shipped again. If a batch archived the object meanwhile, the next batch skips the copy.",
            retriable=True,
        )
    if written is not None and confirmed.generation != written.generation:
        raise ShipError(
            f"the object was replaced: wrote generation {written.generation}, found {confirmed.generation}",
            operation="verify an upload",
            obj=name,
            hint="Another writer replaced the object. The next round compares it again.",
            retriable=True,
        )
    return written is not None, confirmed


def _is_same(local: Local, stored: ObjectInfo) -> bool:
    return (stored.size, stored.crc32c) == (local.size, local.crc32c)


def _require_unchanged(local: Local) -> None:
    now = _stat(local.log)
    if (now.st_size, now.st_mtime_ns, now.st_ino) != (local.size, local.mtime_ns, local.inode):
        raise ShipError(
            "the file changed during the upload",
            operation="ship a segment",
            obj=str(local.log),
            hint="The file is kept and compared again in the next round.",
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
            f"failed to stat the file: {error.strerror}",
            operation="ship a segment",
            obj=str(path),
            hint="If it is missing, another process deletes segments; with cdc_block_writes: false Cassandra does.",
        ) from error
