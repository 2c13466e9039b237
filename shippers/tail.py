"""The tail: the synced beginning of a segment that is still growing, shipped as parts.

Deletes nothing; the whole file is shipped too when it is completed.

Strategy: `_cdc.idx` contains the synced position, in positions of the unpacked segment. The sections up to
there are found from sync marker to sync marker; nothing behind is read. New sections are uploaded as one
object, named by its byte range (`writetime.storage.segment_parts`), if it does not exist yet. The shipped
position of each segment is recorded in the state folder, since a node has no permission to list: per store,
node and file (inode). Without a record, or if it is ahead of the idx (the machine was set back to an earlier
state), the segment is shipped from its beginning again, and readers choose among overlapping parts. If a part
in the store differs from the file, the segment's tail stops and its whole file is shipped when completed.

A part is at most `MOST` bytes, because it is held in memory. A single section may be larger: packed segments
have one section per sync, however much was written. It is uploaded from a temporary file in the state folder.
"""

from __future__ import annotations

import json
import os
import struct
from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Final, NamedTuple

from shippers import state_file
from shippers.io_priority import forget_range
from shippers.upload import put_if_absent, remove
from shippers.write_times import moment
from writetime.cassandra.commitlog import descriptor, sections
from writetime.cassandra.commitlog.sections import Place
from writetime.errors import NotASegment, SegmentError, ShipError
from writetime.storage.checksum import CHUNK, crc32c
from writetime.storage.layout import SegmentName, SegmentRef
from writetime.storage.store import ObjectInfo, Store

MOST: Final = 3 << 20
NOTE: Final = "tails.json"
_SPARE: Final = "section"
_LARGEST: Final = 2**63
_FIXED: Final = 14
_CRC: Final = 4
_LENGTH: Final = struct.Struct(">I")


class Shipped(NamedTuple):
    """A part that the store has confirmed, new or not."""

    name: str
    size: int


class Reached(NamedTuple):
    """The position up to which a segment is shipped, and the inode of its file."""

    place: Place
    inode: int


@dataclass(slots=True)
class Growing:
    """An open segment. Its header ends at `start`; `seed` is the initial value of its markers' CRCs."""

    ref: SegmentRef
    log: Path
    file: int
    start: int
    seed: int
    packed: bool

    @property
    def inode(self) -> int:
        return os.fstat(self.file).st_ino

    def ends(self, place: Place, synced: int) -> Iterator[Place]:
        """The ends of the complete sections after `place`, up to the synced position.

        ShipError if a sync marker is missing before that position: the segment cannot be shipped in parts.
        """
        while place.logical < synced:
            place = self._following(place)
            if place.logical > synced:
                # The idx may have been read while it was rewritten; a truncated number is smaller.
                return
            yield place

    def _following(self, place: Place) -> Place:
        size = sections.MARKER_SIZE + (_LENGTH.size if self.packed else 0)
        head = self._read(place.position, size)
        following, crc = sections.parse_marker(head, 0) if len(head) == size else (0, 0)
        if following < place.position + size or crc != sections.marker_crc(self.seed, place.position):
            raise ShipError("sync marker is missing or invalid", operation="ship a tail", obj=str(self.log), position=place.position)
        if not self.packed:
            return Place(following, following)
        (length,) = _LENGTH.unpack_from(head, sections.MARKER_SIZE)
        return Place(following, place.logical + sections.MARKER_SIZE + length)

    def read(self, start: int, end: int) -> bytes:
        """Bytes [start, end) of the file, which are synced. ShipError if the file is shorter."""
        data = self._read(start, end - start)
        forget_range(self.file, start, end)
        if len(data) != end - start:
            raise ShipError("the file is shorter than its idx states", operation="ship a tail", obj=str(self.log), position=start)
        return data

    def crc32c(self, start: int, end: int) -> int:
        """Checksum of bytes [start, end), in bounded memory."""
        crc = 0
        for at in range(start, end, CHUNK):
            crc = crc32c(self.read(at, min(at + CHUNK, end)), crc)
        return crc

    def copy(self, start: int, end: int, to: Path) -> int:
        """Copy bytes [start, end) to a file, in bounded memory. Returns their checksum."""
        crc = 0
        try:
            to.parent.mkdir(parents=True, exist_ok=True)
            with to.open("wb", buffering=0) as target:
                for at in range(start, end, CHUNK):
                    chunk = self.read(at, min(at + CHUNK, end))
                    crc = crc32c(chunk, crc)
                    target.write(chunk)
        except OSError as error:
            raise ShipError(f"failed to write the file: {error.strerror}", operation="copy a section", obj=str(to)) from error
        return crc

    def _read(self, start: int, size: int) -> bytes:
        return _pread(self.file, self.log, start, size)


class Tail:
    """The tails of a folder's growing segments, and the position up to which each is shipped."""

    def __init__(self, store: Store, folder: Path, state: Path) -> None:
        """`state` is the shipper's state folder, for the record of positions and for copies of large
        sections.
        """
        self._store = store
        self._folder = folder
        self._spare = state / _SPARE
        self._note = state / NOTE
        self._reached = _recall(self._note, store.url)
        self._behind: dict[SegmentRef, int] = {}
        """What the idx of a segment said the last time, where that was less than what is shipped."""

    def keep(self, growing: Collection[SegmentName]) -> None:
        """Forget all other segments."""
        self._reached = {ref: reached for ref, reached in self._reached.items() if ref.segment in growing}
        self._behind = {ref: synced for ref, synced in self._behind.items() if ref.segment in growing}

    def reached(self, ref: SegmentRef) -> Place | None:
        """The position up to which a segment is known to be shipped."""
        reached = self._reached.get(ref)
        return None if reached is None else reached.place

    def ship(self, ref: SegmentRef, synced: int, written: float, metadata: Mapping[str, str]) -> Iterator[Shipped]:
        """Ship the synced sections that are not shipped yet. Yields each part once the store has confirmed
        it.

        `synced` (a position of the unpacked segment) and `written` (s since the epoch) come from its idx.
        ShipError if the file cannot be shipped in parts or the store holds other bytes; StoreError as the
        store raises it.
        """
        with _opened(ref, self._folder) as growing:
            place = self._place(growing)
            if place.logical > synced and place.position != growing.start:
                if self._behind.get(ref) != synced:
                    # An idx that is being rewritten can show a truncated number, but hardly the same one twice.
                    self._behind[ref] = synced
                    return
                place = Place(growing.start, growing.start)
            self._behind.pop(ref, None)
            try:
                while (end := _next_end(growing, place, synced)) is not None:
                    start = 0 if place.position == growing.start else place.position
                    shipped = self._put(growing, start, end, {**metadata, "sealed_at": moment(written).isoformat()})
                    place = end
                    self._reached[ref] = Reached(place, growing.inode)
                    self._remember()
                    yield shipped
            except ShipError:
                # The recorded position may belong to another file: start from the beginning next time.
                self._reached.pop(ref, None)
                raise
            self._reached[ref] = Reached(place, growing.inode)

    def _place(self, growing: Growing) -> Place:
        """The position to continue from: the recorded one of this file, otherwise the end of its header."""
        reached = self._reached.get(growing.ref)
        same = reached is not None and reached.inode == growing.inode
        return reached.place if reached is not None and same else Place(growing.start, growing.start)

    def _remember(self) -> None:
        """Record the shipped positions. If that fails, the next start ships the segments from their
        beginning.
        """
        reached = {ref.growing: [*place, inode] for ref, (place, inode) in self._reached.items()}
        noted = {"store": self._store.url, "reached": reached}
        with suppress(OSError):
            state_file.replace(self._note, json.dumps({**noted, "crc32c": _crc_of(noted)}))

    def _put(self, growing: Growing, start: int, end: Place, metadata: Mapping[str, str]) -> Shipped:
        name, size = growing.ref.part(start, end.position), end.position - start
        data: bytes | Path = growing.read(start, end.position) if size <= MOST else self._spare
        crc = crc32c(data) if isinstance(data, bytes) else growing.copy(start, end.position, data)
        noted = {"size": str(size), "crc32c": str(crc), "logical_to": str(end.logical), **metadata}
        try:
            stored = put_if_absent(self._store, name, data, noted) or self._store.head(name)
        finally:
            if size > MOST:
                remove(self._spare)
        if stored is None:
            raise ShipError("the part is missing although the store accepted it", operation="verify a part", obj=name, retriable=True)
        _require_same(growing, stored, crc, size)
        return Shipped(name, size)


def _next_end(growing: Growing, place: Place, synced: int) -> Place | None:
    """The end of the next part; None if there is nothing to ship."""
    start = place.position
    found: Place | None = None
    for end in growing.ends(place, synced):
        if found is not None and end.position - start > MOST:
            break
        found = end
    return found


def _recall(note: Path, store: str) -> dict[SegmentRef, Reached]:
    """The positions that an earlier run recorded for that store; {} if missing, unreadable or damaged: a damaged position
    may be that of another section, and the parts would have a gap."""
    try:
        noted = json.loads(note.read_bytes())
        expected = noted.pop("crc32c")
        found = noted["reached"].items() if (noted["store"], _crc_of(noted)) == (store, expected) else ()
        return {SegmentRef.from_object(name): _reached(*numbers) for name, numbers in found}
    except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError, NotASegment):
        return {}


def _crc_of(noted: object) -> int:
    return crc32c(json.dumps(noted).encode())


def _reached(position: int, logical: int, inode: int) -> Reached:
    """ValueError or TypeError if the numbers are not valid file positions."""
    if not all(0 <= number < _LARGEST for number in (position, logical, inode)):
        raise ValueError("invalid file position")
    return Reached(Place(int(position), int(logical)), int(inode))


def _require_same(growing: Growing, stored: ObjectInfo, crc: int, size: int) -> None:
    if (stored.crc32c, stored.size) == (crc, size):
        return
    raise ShipError(
        "the part in the store differs from the segment",
        operation="compare a part with the store",
        obj=stored.name,
        hint="Nothing was overwritten. No more parts of this segment are shipped; its file is shipped when completed. Check whether two "
        "nodes use one host id.",
    )


@contextmanager
def _opened(ref: SegmentRef, folder: Path) -> Iterator[Growing]:
    """The segment, opened without readahead. ShipError if it cannot be opened or its header does not match
    its name.
    """
    log = folder / ref.segment.filename
    try:
        file = os.open(log, os.O_RDONLY)
    except OSError as error:
        raise ShipError(f"failed to open the file: {error.strerror}", operation="ship a tail", obj=str(log)) from error
    try:
        os.posix_fadvise(file, 0, 0, os.POSIX_FADV_RANDOM)
        yield _growing(ref, log, file)
    finally:
        os.close(file)


def _growing(ref: SegmentRef, log: Path, file: int) -> Growing:
    fixed = _pread(file, log, 0, _FIXED)
    head = _pread(file, log, 0, _FIXED + int.from_bytes(fixed[_FIXED - 2 :], "big") + _CRC)
    try:
        header, start = descriptor.parse(head, name=log.name)
    except SegmentError as error:
        raise ShipError(f"invalid segment header: {error.message}", operation="ship a tail", obj=str(log)) from error
    if SegmentName(header.id, header.version) != ref.segment:
        raise ShipError("segment id in the header does not match the file name", operation="ship a tail", obj=str(log))
    return Growing(ref, log, file, start, sections.id_crc(header.id), header.codec is not None)


def _pread(file: int, log: Path, start: int, size: int) -> bytes:
    """Up to `size` bytes at `start`, fewer only at the end of the file: network file systems return what they have."""
    found = b""
    try:
        while len(found) < size and (more := os.pread(file, size - len(found), start + len(found))):
            found += more
    except OSError as error:
        raise ShipError(f"failed to read the file: {error.strerror}", operation="ship a tail", obj=str(log)) from error
    return found
