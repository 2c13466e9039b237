"""Segments as the archive stores them: as their node wrote them, or each as one Zstandard frame of its own, `<name>.zst`. The one place
that knows both; `zstd -d` makes the very file of the second.

Strategy: everybody goes by the plain form: its name, its size and its CRC32C. Those of a packed one stand in the object's metadata, so
that a listing tells them. Who pinned a plain object that has been packed since gets its bytes all the same, if their CRC32C is the one that
was pinned. pyarrow does the work, imported when a packed segment is met; it writes no checksum of the content into a frame, which is why
the CRC32C is kept beside it, and compared. Knows no batch and no ledger; when what is packed is `writetime.pipeline.archive_packing`'s.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final, NamedTuple

from writetime.cassandra.commitlog.codecs import unpack_zstd
from writetime.errors import CorruptSection, NotASegment, ObjectNotFound
from writetime.storage import layout
from writetime.storage.checksum import crc32c
from writetime.storage.store import ObjectInfo, Store

_LONGEST: Final = 2**31
"""Bytes that a segment may have: Cassandra counts them in 32 bits."""
SIZE: Final = "size"
CRC32C: Final = "crc32c"
"""Keys of the metadata that tell of the plain form, as the shipper notes them."""
ORIGINAL_SIZE: Final = "original_size"
ORIGINAL_CRC32C: Final = "original_crc32c"
REPLACED_SIZE: Final = "replaced_size"
REPLACED_CRC32C: Final = "replaced_crc32c"
"""Keys of the metadata of a segment from which a key was erased: what its node wrote, and what lay there before the last erasure."""


class Content(NamedTuple):
    """What a segment is: bytes, and their CRC32C."""

    size: int
    crc32c: int


def content_of(info: ObjectInfo) -> Content:
    """What the object holds, unpacked. Of a packed one that carries no such note, as one that came by hand, it is what is stored."""
    noted = _noted(info, SIZE, CRC32C) if layout.is_packed(info.name) else None
    return noted or Content(info.size, info.crc32c)


def original_of(info: ObjectInfo) -> Content | None:
    """What the node wrote, of a segment from which a key was erased since; None of one that is as its node wrote it."""
    return _noted(info, ORIGINAL_SIZE, ORIGINAL_CRC32C)


def replaced_by(info: ObjectInfo) -> Content | None:
    """What the object held before the last erasure from it; None if there was none."""
    return _noted(info, REPLACED_SIZE, REPLACED_CRC32C)


def stands_for(info: ObjectInfo, content: Content) -> bool:
    """Whether the archive holds that content of a segment in this object: to the byte, or without what was erased from it."""
    return content in (content_of(info), original_of(info))


def _noted(info: ObjectInfo, size: str, checksum: str) -> Content | None:
    noted = info.metadata.get(size, ""), info.metadata.get(checksum, "")
    return Content(*map(int, noted)) if all(each.isdecimal() and len(each) < 20 for each in noted) else None


def pack(content: bytes, level: int) -> bytes:
    """One Zstandard frame that says its length. `level`: 1 (fast) to 22."""
    import pyarrow as pa

    return bytes(pa.Codec("zstd", compression_level=level).compress(content, asbytes=True))


def unpack(name: str, stored: bytes) -> bytes:
    """The segment in what is stored under that name. CorruptSection if it is no whole frame."""
    if not layout.is_packed(name):
        return stored
    try:
        return unpack_zstd(stored, _LONGEST)
    except CorruptSection as error:
        raise CorruptSection(
            error.message, operation="unpack a segment", obj=name, hint="It is one Zstandard frame: `zstd -t` says the same of it."
        ) from error


def read_pinned(store: Store, name: str, pinned: int) -> bytes:
    """The segment with the CRC32C `pinned` that an object holds, or its packed form.

    ObjectNotFound if there is none, or one of other bytes; CorruptSection."""
    content = read(store, name, crc32c_of_it=pinned)
    if crc32c(content) != pinned:
        raise ObjectNotFound(f"it has other bytes than those of CRC32C {pinned:08x}", operation="read a segment", obj=name)
    return content


def read(store: Store, name: str, *, generation: int | None = None, crc32c_of_it: int | None = None) -> bytes:
    """The segment that an object holds, unpacked. Where that object is gone, and its packed form holds bytes of the CRC32C, these.

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
    """What the store has of a segment under that plain name or its packed one; None if nothing."""
    # In this order: the packed one is there before the plain one goes.
    return store.head(name) or (store.head(layout.packed(name)) if _may_be_packed(name) else None)


def listed(store: Store, prefix: str, *, start_after: str = "") -> Iterator[ObjectInfo]:
    """Objects under the prefix that are named like segments, in order of their names, each segment once: while one is being packed there
    are two of it, and the plain one is given. For what may lack one: see `every`."""
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
    """The same without exception, in order of their plain names. Looked at twice: the names of a page are listed before its objects are
    looked at, and of a segment that is packed in between the first look sees neither form."""
    found: dict[str, ObjectInfo] = {}
    for _ in range(2):
        for info in listed(store, prefix, start_after=start_after):
            found.setdefault(layout.plain(info.name), info)
    return [found[name] for name in sorted(found)]


def _may_be_packed(name: str) -> bool:
    return name.startswith(f"{layout.ARCHIVE}/") and not layout.is_packed(name)
