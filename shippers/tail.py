"""The tail: what a node has synced of a segment that it still writes, shipped as parts. Deletes nothing; the whole file goes up as well.

Strategy: `_cdc.idx` says how far the segment is synced, in positions of the unpacked segment. From marker to marker, the sections that end
up to there are found; nothing behind is read. What is new of them goes up as one object that is named by its bytes' place in the file
(`writetime.storage.segment_parts`), created only if there is none. How far each segment is shipped is noted in the shipper's own folder,
since a node has no right to list: for this store, this node and this very file (its inode). Without such a note, the segment is shipped
from its beginning again, and readers choose among parts that overlap. A part that holds other bytes than the file is never settled here:
that segment's tail stops, and its whole file is shipped when it is finished.

A part is at most `MOST` bytes, since it is held in memory, unless it is one section that is larger: that goes by way of a file of the
shipper's own, as packed segments have a section for each sync of the node's, however much was written.
"""

from __future__ import annotations

import json
import os
import struct
from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Final, NamedTuple

from shippers.io_priority import forget_range
from shippers.upload import put_if_absent, remove
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
    """A part that the store holds now. Whether it held it before is of no matter."""

    name: str
    size: int


class Reached(NamedTuple):
    """How far a segment is shipped, and the inode of the file that it was read from."""

    place: Place
    inode: int


@dataclass(slots=True)
class Growing:
    """One open segment: its header ends at `start`; `seed` is what its markers' CRCs begin with."""

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
        """Where the whole sections behind `place` end, as far as the segment is synced.

        ShipError where no marker stands though the node has synced that far: then this is no segment that can be shipped in parts.
        """
        while place.logical < synced:
            place = self._following(place)
            if place.logical > synced:
                # The idx was read while it was rewritten: half a number is a smaller one.
                return
            yield place

    def _following(self, place: Place) -> Place:
        size = sections.MARKER_SIZE + (_LENGTH.size if self.packed else 0)
        head = self._read(place.position, size)
        following, crc = sections.parse_marker(head, 0) if len(head) == size else (0, 0)
        if following < place.position + size or crc != sections.marker_crc(self.seed, place.position):
            raise ShipError("no sync marker where one should be", operation="ship a tail", obj=str(self.log), position=place.position)
        if not self.packed:
            return Place(following, following)
        (length,) = _LENGTH.unpack_from(head, sections.MARKER_SIZE)
        return Place(following, place.logical + sections.MARKER_SIZE + length)

    def read(self, start: int, end: int) -> bytes:
        """Bytes [start, end) of the file, which are synced. ShipError if they are not all there."""
        data = self._read(start, end - start)
        forget_range(self.file, start, end)
        if len(data) != end - start:
            raise ShipError("the file is shorter than its idx says", operation="ship a tail", obj=str(self.log), position=start)
        return data

    def crc32c(self, start: int, end: int) -> int:
        """Checksum of bytes [start, end), in bounded memory."""
        crc = 0
        for at in range(start, end, CHUNK):
            crc = crc32c(self.read(at, min(at + CHUNK, end)), crc)
        return crc

    def copy(self, start: int, end: int, to: Path) -> int:
        """Copy bytes [start, end) to a file, in bounded memory; their checksum."""
        crc = 0
        try:
            to.parent.mkdir(parents=True, exist_ok=True)
            with to.open("wb", buffering=0) as target:
                for at in range(start, end, CHUNK):
                    chunk = self.read(at, min(at + CHUNK, end))
                    crc = crc32c(chunk, crc)
                    target.write(chunk)
        except OSError as error:
            raise ShipError(f"cannot be written: {error.strerror}", operation="copy a section", obj=str(to)) from error
        return crc

    def _read(self, start: int, size: int) -> bytes:
        return _pread(self.file, self.log, start, size)


class Tail:
    """The tails of a folder's growing segments, and how far each is shipped."""

    def __init__(self, store: Store, folder: Path, state: Path) -> None:
        """`state` is the shipper's own folder: for the note, and for a file to copy large sections to."""
        self._store = store
        self._folder = folder
        self._spare = state / _SPARE
        self._note = state / NOTE
        self._reached = _recall(self._note, store.url)

    def keep(self, growing: Collection[SegmentName]) -> None:
        """Forget all other segments."""
        self._reached = {ref: reached for ref, reached in self._reached.items() if ref.segment in growing}

    def reached(self, ref: SegmentRef) -> Place | None:
        """How far a segment is known to be shipped."""
        reached = self._reached.get(ref)
        return None if reached is None else reached.place

    def ship(self, ref: SegmentRef, synced: int, written: float, metadata: Mapping[str, str]) -> Iterator[Shipped]:
        """Ship what is synced and not shipped yet, part after part; they are yielded once the store has confirmed them.

        `synced` (in positions of the unpacked segment) and `written` (s since the epoch) are its idx's. ShipError if the file is none that
        can be shipped in parts, or if the store holds other bytes; StoreError and its children as the store raises them.
        """
        with _opened(ref, self._folder) as growing:
            place = self._place(growing)
            try:
                while (end := _next_end(growing, place, synced)) is not None:
                    start = 0 if place.position == growing.start else place.position
                    shipped = self._put(growing, start, end, {**metadata, "sealed_at": datetime.fromtimestamp(written, UTC).isoformat()})
                    place = end
                    self._reached[ref] = Reached(place, growing.inode)
                    self._remember()
                    yield shipped
            except ShipError:
                # What is noted may not be of this file: next time it is looked at from its beginning.
                self._reached.pop(ref, None)
                raise
            self._reached[ref] = Reached(place, growing.inode)

    def _place(self, growing: Growing) -> Place:
        """Where to go on: at what is noted of this very file, else behind its header."""
        reached = self._reached.get(growing.ref)
        same = reached is not None and reached.inode == growing.inode
        return reached.place if reached is not None and same else Place(growing.start, growing.start)

    def _remember(self) -> None:
        """Note how far each segment is shipped. Where that fails, the next start ships them from their beginning."""
        reached = {ref.growing: [*place, inode] for ref, (place, inode) in self._reached.items()}
        with suppress(OSError):
            self._note.parent.mkdir(parents=True, exist_ok=True)
            fresh = self._note.with_suffix(".new")
            fresh.write_text(json.dumps({"store": self._store.url, "reached": reached}), encoding="utf-8")
            fresh.replace(self._note)

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
            raise ShipError("the part is not there although the store has it", operation="verify a part", obj=name, retriable=True)
        _require_same(growing, stored, crc, size)
        return Shipped(name, size)


def _next_end(growing: Growing, place: Place, synced: int) -> Place | None:
    """Where the next part ends; None if there is nothing to ship."""
    start = place.position
    found: Place | None = None
    for end in growing.ends(place, synced):
        if found is not None and end.position - start > MOST:
            break
        found = end
    return found


def _recall(note: Path, store: str) -> dict[SegmentRef, Reached]:
    """What an earlier run noted for that store; {} if nothing that can be read."""
    try:
        noted = json.loads(note.read_bytes())
        found = noted["reached"].items() if noted["store"] == store else ()
        return {SegmentRef.from_object(name): _reached(*numbers) for name, numbers in found}
    except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError, NotASegment):
        return {}


def _reached(position: int, logical: int, inode: int) -> Reached:
    """ValueError or TypeError if these are no places in a file."""
    if not all(0 <= number < _LARGEST for number in (position, logical, inode)):
        raise ValueError("no place in a file")
    return Reached(Place(int(position), int(logical)), int(inode))


def _require_same(growing: Growing, stored: ObjectInfo, crc: int, size: int) -> None:
    if (stored.crc32c, stored.size) == (crc, size):
        return
    raise ShipError(
        "the store holds other bytes than the segment has there",
        operation="compare a part with the store",
        obj=stored.name,
        hint="Nothing was overwritten. No more parts of this segment are shipped; its file is, when it is finished. Look whether two nodes "
        "go by one host id.",
    )


@contextmanager
def _opened(ref: SegmentRef, folder: Path) -> Iterator[Growing]:
    """The segment, read without readahead. ShipError if it cannot be opened or its header says something else than its name."""
    log = folder / ref.segment.filename
    try:
        file = os.open(log, os.O_RDONLY)
    except OSError as error:
        raise ShipError(f"cannot be opened: {error.strerror}", operation="ship a tail", obj=str(log)) from error
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
        raise ShipError(f"has no header: {error.message}", operation="ship a tail", obj=str(log)) from error
    if SegmentName(header.id, header.version) != ref.segment:
        raise ShipError("its header names another segment", operation="ship a tail", obj=str(log))
    return Growing(ref, log, file, start, sections.id_crc(header.id), header.codec is not None)


def _pread(file: int, log: Path, start: int, size: int) -> bytes:
    try:
        return os.pread(file, size, start)
    except OSError as error:
        raise ShipError(f"cannot be read: {error.strerror}", operation="ship a tail", obj=str(log)) from error
