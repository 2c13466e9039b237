"""Segments in the archive: plain as their node wrote them, or packed as one Zstandard frame each,
`<name>.zst`, which `zstd -d` restores. The only module that knows both forms.

Strategy: callers use the plain form: its name, size and CRC32C. A packed segment carries size and CRC32C of
the plain form in its metadata, so that a listing shows them. A reader with the name of a plain object that
was packed since gets the same bytes, if their CRC32C matches. pyarrow does the work, imported when needed; it
writes no content checksum into a frame, hence the CRC32C in the metadata. Must not know batches or the
ledger; `writetime.pipeline.archive_packing` decides when to pack.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from typing import Final, NamedTuple

from writetime.cassandra.commitlog.codecs import unpack_zstd
from writetime.errors import CorruptSection, NotASegment, ObjectNotFound
from writetime.storage import layout
from writetime.storage.checksum import crc32c
from writetime.storage.store import ObjectInfo, Store

_LONGEST: Final = 2**31
"""Maximum size of a segment: Cassandra uses 32-bit positions."""
_TRIES: Final = 5
LEVEL: Final = 3
"""Zstandard's, 1 (fast) to 22."""
SIZE: Final = "size"
CRC32C: Final = "crc32c"
"""Metadata keys of the plain form's facts, as the shipper writes them."""
ORIGINAL_SIZE: Final = "original_size"
ORIGINAL_CRC32C: Final = "original_crc32c"
REPLACED_SIZE: Final = "replaced_size"
REPLACED_CRC32C: Final = "replaced_crc32c"
"""Metadata keys of a segment from which a key was erased: facts of the node's original, and of the object
before the last erasure."""


class Content(NamedTuple):
    """Size and CRC32C of a segment."""

    size: int
    crc32c: int


def content_of(info: ObjectInfo) -> Content:
    """The unpacked content of the object. For a packed one without metadata (uploaded by hand), the stored
    bytes."""
    noted = _noted(info, SIZE, CRC32C) if layout.is_packed(info.name) else None
    return noted or Content(info.size, info.crc32c)


def original_of(info: ObjectInfo) -> Content | None:
    """The node's original of a segment from which a key was erased; None if it is unchanged."""
    return _noted(info, ORIGINAL_SIZE, ORIGINAL_CRC32C)


def replaced_by(info: ObjectInfo) -> Content | None:
    """The content before the last erasure; None if there was none."""
    return _noted(info, REPLACED_SIZE, REPLACED_CRC32C)


def stands_for(info: ObjectInfo, content: Content) -> bool:
    """Whether this object holds that content: identical, or after erasures."""
    return content in _contents(info)


def _contents(info: ObjectInfo) -> set[Content]:
    return {each for each in (content_of(info), original_of(info), replaced_by(info)) if each is not None}


def _noted(info: ObjectInfo, size: str, checksum: str) -> Content | None:
    noted = info.metadata.get(size, ""), info.metadata.get(checksum, "")
    return Content(*map(int, noted)) if all(each.isdecimal() and len(each) < 20 for each in noted) else None


def pack(content: bytes, level: int = LEVEL) -> bytes:
    """One Zstandard frame with its content size."""
    import pyarrow as pa

    return bytes(pa.Codec("zstd", compression_level=level).compress(content, asbytes=True))


def unpack(name: str, stored: bytes) -> bytes:
    """The segment in the stored bytes. CorruptSection if they are not a complete frame."""
    if not layout.is_packed(name):
        return stored
    try:
        return unpack_zstd(stored, _LONGEST)
    except CorruptSection as error:
        raise CorruptSection(
            error.message, operation="unpack a segment", obj=name, hint="The object must be one Zstandard frame: check it with `zstd -t`."
        ) from error


def read_pinned(store: Store, name: str, pinned: int) -> bytes:
    """The segment with the CRC32C `pinned` in an object or its packed form, or what is left of it if a key has been erased since.

    ObjectNotFound if there is none, or one with other bytes; CorruptSection."""
    try:
        content = read(store, name, crc32c_of_it=pinned)
        if crc32c(content) == pinned:
            return content
        lacking = ObjectNotFound(f"the content does not have the CRC32C {pinned:08x}", operation="read a segment", obj=name)
    except ObjectNotFound as error:
        lacking = error
    if (left := _left_of(store, name, pinned)) is None:
        raise lacking
    return left


def _left_of(store: Store, name: str, pinned: int) -> bytes | None:
    """What erasures have left of the archived segment with that CRC32C; None if none is known to be that."""
    if not _is_archived(name):
        return None
    for _ in range(_TRIES):
        info = held(store, name)
        if info is None or pinned not in (each.crc32c for each in _contents(info)):
            return None
        # Not found: it has been replaced or packed since.
        with suppress(ObjectNotFound):
            content = read(store, info.name, generation=info.generation)
            return content if crc32c(content) == content_of(info).crc32c else None
    return None


def read(store: Store, name: str, *, generation: int | None = None, crc32c_of_it: int | None = None) -> bytes:
    """The segment in an object, unpacked. If the object is missing, its packed form, if that has the CRC32C.

    ObjectNotFound, CorruptSection."""
    try:
        return unpack(name, store.read(name, generation=generation))
    except ObjectNotFound:
        if crc32c_of_it is None or not _may_be_packed(name):
            raise
        try:
            content = unpack(layout.packed(name), store.read(layout.packed(name)))
        except ObjectNotFound:
            content = None
        if content is None or crc32c(content) != crc32c_of_it:
            raise
        return content


def held(store: Store, name: str) -> ObjectInfo | None:
    """The object of a segment by its plain name, plain or packed; None if it does not exist."""
    # In this order: the packed object is written before the plain one is deleted.
    return store.head(name) or (store.head(layout.packed(name)) if _may_be_packed(name) else None)


def listed(store: Store, prefix: str, *, start_after: str = "") -> Iterator[ObjectInfo]:
    """Segments under the prefix in order of their names, each once: while one is being packed both forms
    exist, and the plain one is returned. May miss a segment, see `every`."""
    last = ""
    for info in store.list(prefix, start_after=start_after):
        try:
            layout.SegmentRef.from_object(info.name)
        except NotASegment:
            continue
        if layout.is_packed(info.name) and layout.plain(info.name) == last:
            continue
        last = info.name
        yield info


def every(store: Store, prefix: str, *, start_after: str = "") -> list[ObjectInfo]:
    """All segments under the prefix, in order of their plain names. Lists twice: names of a page are listed
    before its objects are read, so one listing can miss both forms of a segment that is packed in between."""
    found: dict[str, ObjectInfo] = {}
    for _ in range(2):
        for info in listed(store, prefix, start_after=start_after):
            found.setdefault(layout.plain(info.name), info)
    return [found[name] for name in sorted(found)]


def _may_be_packed(name: str) -> bool:
    return _is_archived(name) and not layout.is_packed(name)


def _is_archived(name: str) -> bool:
    return name.startswith(f"{layout.ARCHIVE}/")
