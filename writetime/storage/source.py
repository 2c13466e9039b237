"""The source of a write: bytes, or a local file that is read in bounded memory.

Strategy: client libraries report every failure during an upload as a network error and retry. The file object
therefore keeps the first read error, which takes precedence over the library's. Must not know a store.
"""

from __future__ import annotations

import contextlib
import io
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, BinaryIO, TypeVar, cast

from writetime.errors import SourceUnreadable
from writetime.storage.checksum import crc32c_of_stream
from writetime.storage.progress import Body, moved

T = TypeVar("T")


class _File(io.FileIO):
    """A file that keeps its first read error."""

    failed: OSError | None = None

    def read(self, size: int | None = -1, /) -> bytes:
        return self._kept(super().read, -1 if size is None else size)

    def readall(self) -> bytes:
        return self._kept(super().readall)

    def readinto(self, buffer: Any, /) -> int:
        return self._kept(super().readinto, buffer)

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
        yield Body(data)
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


def _unreadable(path: Path, error: OSError, operation: str, name: str) -> SourceUnreadable:
    return SourceUnreadable(f"the file cannot be read: {error.strerror}: {path}", operation=operation, obj=name)
