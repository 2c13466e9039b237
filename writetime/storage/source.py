"""What is to be written to a store: bytes, or a file on this machine's disk, read in bounded memory.

Strategy: the libraries that send a file turn whatever goes wrong meanwhile into errors of the network, and repeat the request. So the
file itself keeps the error of a read that failed, and that error counts, whatever a library has made of it. Knows no store.
"""

from __future__ import annotations

import contextlib
import io
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, BinaryIO, TypeVar, cast

from writetime.errors import SourceUnreadable
from writetime.storage.checksum import crc32c_of_stream

T = TypeVar("T")


class _File(io.FileIO):
    """A file that keeps the error of the first read that failed."""

    failed: OSError | None = None

    def read(self, size: int | None = -1, /) -> bytes:
        return self._kept(super().read, -1 if size is None else size)

    def readall(self) -> bytes:
        return self._kept(super().readall)

    def readinto(self, buffer: Any, /) -> int:
        return self._kept(super().readinto, buffer)

    def _kept(self, read: Callable[..., T], *args: Any) -> T:
        try:
            return read(*args)
        except OSError as error:
            self.failed = self.failed or error
            raise


@contextlib.contextmanager
def opened(data: bytes | Path, operation: str, name: str) -> Iterator[BinaryIO]:
    """What `Store.put` takes, to be read and sent. SourceUnreadable if the file cannot be opened, or could not be read to its end."""
    if isinstance(data, bytes):
        yield io.BytesIO(data)
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
    """CRC32C and size of what `opened` gives, which is then at its beginning again."""
    found = crc32c_of_stream(source)
    source.seek(0)
    return found


def _unreadable(path: Path, error: OSError, operation: str, name: str) -> SourceUnreadable:
    return SourceUnreadable(f"the file cannot be read: {error.strerror}: {path}", operation=operation, obj=name)
