"""Errors of system calls on a node's files: the calls of the functions through which the shipper reaches its disk are counted,
and one of them fails.

Strategy: functions of `os`, `io` and `fcntl` are replaced while the block runs. Only calls on paths below one folder count, and
those on files that were opened below it. `Call.path` says which file, so that a test can tell an error of one segment from
one of the folder. A short read returns the first half of what was asked for.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import io
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from writetime.storage import source

ERRORS = (errno.ENOSPC, errno.EPERM, errno.EIO, errno.ESTALE, errno.ENOENT, errno.EINTR)
SHORT = 0
"""Instead of an error: a read returns less than asked for."""
_OF_A_PATH = ("stat", "lstat", "open", "listdir", "scandir", "statvfs", "unlink", "rename", "replace", "mkdir", "rmdir", "utime", "chmod")
_OF_A_FILE = ("pread", "read", "write", "fsync", "fstat", "posix_fadvise")
_READS = ("pread", "read")


class Call(NamedTuple):
    """A call: the function, and the path of its file."""

    name: str
    path: str
    reads: bool = False


class SystemCalls:
    """Counts `calls` on files below `root`. `strike` returns the error of a call, 0 for a short read, or None."""

    def __init__(self, root: Path) -> None:
        self._root = str(root)
        self._files: dict[int, str] = {}
        self.calls: list[Call] = []
        self.struck: list[Call] = []
        self.strike: Callable[[int, Call], int | None] = lambda _, __: None

    def _passes(self, call: Call) -> bool:
        """Whether the call is to be made as it is; False: short. OSError if it fails."""
        number = len(self.calls)
        self.calls.append(call)
        code = self.strike(number, call)
        if code is None or (code == SHORT and not call.reads):
            return True
        self.struck.append(call)
        if code == SHORT:
            return False
        raise OSError(code, os.strerror(code), call.path)

    def _is_below(self, path: object) -> bool:
        return isinstance(path, str | Path) and str(path).startswith(self._root)

    @contextlib.contextmanager
    def watched(self) -> Iterator[None]:
        with pytest.MonkeyPatch.context() as patch:
            for name in _OF_A_PATH:
                patch.setattr(os, name, self._of_a_path(name, getattr(os, name)))
            for name in _OF_A_FILE:
                patch.setattr(os, name, self._of_a_file(name, getattr(os, name)))
            patch.setattr(os, "close", self._closing(os.close))
            patch.setattr(fcntl, "fcntl", self._of_a_file("fcntl", fcntl.fcntl))
            patch.setattr(io, "open", self._opening(io.open))
            patch.setattr(source, "_File", self._source(source._File))
            yield

    def _of_a_path(self, name: str, real: Callable[..., Any]) -> Callable[..., Any]:
        def call(*args: Any, **kwargs: Any) -> Any:
            if not args or not self._is_below(args[0]):
                return real(*args, **kwargs)
            self._passes(Call(name, str(args[0])))
            made = real(*args, **kwargs)
            if name == "open":
                self._files[made] = str(args[0])
            return made

        return call

    def _of_a_file(self, name: str, real: Callable[..., Any]) -> Callable[..., Any]:
        def call(file: Any, *rest: Any) -> Any:
            if file not in self._files:
                return real(file, *rest)
            if self._passes(Call(name, self._files[file], name in _READS)):
                return real(file, *rest)
            return real(file, max(1, rest[0] // 2), *rest[1:])

        return call

    def _closing(self, real: Callable[[int], None]) -> Callable[[int], None]:
        def close(file: int) -> None:
            self._files.pop(file, None)
            real(file)

        return close

    def _opening(self, real: Callable[..., Any]) -> Callable[..., Any]:
        def open_(file: Any, *args: Any, **kwargs: Any) -> Any:
            if not self._is_below(file):
                return real(file, *args, **kwargs)
            self._passes(Call("open", str(file)))
            opened = real(file, *args, **kwargs)
            return _Opened(opened, str(file), self, isinstance(opened, io.FileIO))

        return open_

    def _source(self, real: type[Any]) -> type[Any]:
        calls = self

        class Source(real):  # type: ignore[misc, valid-type]
            """The file of an upload."""

            def __init__(self, path: Path) -> None:
                calls._passes(Call("open", str(path)))
                self._path = str(path)
                super().__init__(path)

            def _kept(self, read: Callable[..., Any], *args: Any) -> Any:
                def made(*args: Any) -> Any:
                    if calls._passes(Call("read", self._path, reads=isinstance(args[0] if args else None, int))):
                        return read(*args)
                    return read(max(1, args[0] // 2) if args[0] > 0 else args[0])

                return super()._kept(made, *args)

        return Source


class _Opened:
    """A file object whose reads and writes are counted. Those without a buffer may be short."""

    def __init__(self, real: Any, path: str, calls: SystemCalls, raw: bool) -> None:
        self._real, self._path, self._calls, self._raw = real, path, calls, raw

    def read(self, *size: int) -> Any:
        short = self._raw and bool(size) and size[0] > 0
        if self._calls._passes(Call("read", self._path, short)):
            return self._real.read(*size)
        return self._real.read(max(1, size[0] // 2))

    def write(self, data: Any) -> Any:
        self._calls._passes(Call("write", self._path))
        return self._real.write(data)

    def __enter__(self) -> _Opened:
        return self

    def __exit__(self, *_: object) -> None:
        self._real.close()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._real, name)
