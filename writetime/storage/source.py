"""The source of a write: bytes, or a local file that is read in bounded memory.

Strategy: client libraries report every failure during an upload as a network error and retry. The file object
therefore keeps the first read error, which takes precedence over the library's. A store says from when on bytes that are
read are sent (`sending`), so that they can be counted (`sent_bytes`). Must not know a store.
"""

from __future__ import annotations

import contextlib
import io
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, BinaryIO, TypeVar, cast

from writetime.errors import SourceUnreadable
from writetime.storage import sent_bytes
from writetime.storage.checksum import crc32c_of_stream
from writetime.storage.progress import Body, moved

T = TypeVar("T")


class _Counted:
    """A source that counts what is read while it is being sent."""

    sends = False
    until_seek = False

    def counted(self, size: int) -> None:
        if self.sends:
            sent_bytes.count(size)


class _Bytes(_Counted, Body):
    def read(self, size: int | None = -1, /) -> bytes:
        data = super().read(size)
        self.counted(len(data))
        return data

    def seek(self, offset: int, whence: int = os.SEEK_SET, /) -> int:
        self.sends = self.sends and not self.until_seek
        return super().seek(offset, whence)


class _File(_Counted, io.FileIO):
    """A file that keeps its first read error."""

    failed: OSError | None = None

    def read(self, size: int | None = -1, /) -> bytes:
        data = self._kept(super().read, -1 if size is None else size)
        self.counted(len(data))
        return data

    def readall(self) -> bytes:
        return self._kept(super().readall)

    def readinto(self, buffer: Any, /) -> int:
        size = self._kept(super().readinto, buffer)
        self.counted(size)
        return size

    def seek(self, offset: int, whence: int = os.SEEK_SET, /) -> int:
        self.sends = self.sends and not self.until_seek
        return super().seek(offset, whence)

    def _kept(self, read: Callable[..., T], *args: Any) -> T:
        moved()
        try:
            return read(*args)
        except OSError as error:
            self.failed = self.failed or error
            raise


@contextlib.contextmanager
def opened(data: bytes | Path, operation: str, name: str) -> Iterator[BinaryIO]:
    """The data of `Store.put` as an open file. SourceUnreadable if the file cannot be opened or read to its
    end."""
    if isinstance(data, bytes):
        yield _Bytes(data)
        return
    try:
        file = _File(data)
    except OSError as error:
        raise _unreadable(data, error, operation, name) from error
    with file:
        try:
            yield cast(BinaryIO, file)
        except Exception:
            if file.failed is None:
                raise
            raise _unreadable(data, file.failed, operation, name) from file.failed


def measured(source: BinaryIO) -> tuple[int, int]:
    """CRC32C and size of an opened source, which is then rewound."""
    found = crc32c_of_stream(source)
    source.seek(0)
    return found


def sending(source: Any, *, until_seek: bool = False) -> None:
    """From now on, bytes that are read from an opened source are sent. `until_seek`: a library rewinds it to read it for
    another purpose."""
    if isinstance(source, _Counted):
        source.sends, source.until_seek = True, until_seek
    elif isinstance(source, io.BytesIO):
        sent_bytes.count(len(source.getbuffer()))
    elif isinstance(source, bytes | bytearray):
        sent_bytes.count(len(source))


def _unreadable(path: Path, error: OSError, operation: str, name: str) -> SourceUnreadable:
    return SourceUnreadable(f"the file cannot be read: {error.strerror}: {path}", operation=operation, obj=name)
