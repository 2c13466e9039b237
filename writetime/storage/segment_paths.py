"""Segments from paths on a command line: files, folders and objects of a bucket, in log order.

A file is used whatever its name. A folder stands for every segment below it, a bucket URL for the object with
that name or all objects below it. A node keeps its segments in one folder with increasing ids, so log order
is: by node, then by id (never by name or time); the archive's folders for days and hours do not separate
nodes. A missing or unreadable path is an error of its own and does not stop the others.

Reads one file at a time, on request. Must not know a segment's content except the position of its id.
"""

from __future__ import annotations

import os
import re
import stat
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final, Protocol

from writetime.cassandra.commitlog import idx
from writetime.errors import ConfigError, ObjectNotFound, StoreError, WritetimeError
from writetime.storage import open_store
from writetime.storage.address import is_url, parse_object
from writetime.storage.layout import is_packed, plain
from writetime.storage.segment_object import unpack
from writetime.storage.store import Store

_SEGMENT: Final = re.compile(r"(CommitLog-\d+-(\d+))(?:~[0-9a-f]{8})?\.log(?:\.zst)?")
"""A checksum in the name marks other bytes of the same segment, .zst a packed one
(writetime.storage.layout)."""
_HOUR: Final = re.compile(r"(?:(?<=/)|^)date=[^/]+/hour=[^/]+(?:/|$)")
"""The archive's folders within a node's log (writetime.storage.layout)."""
_ID_OFFSET, _ID_END = 4, 12


class _Place(Protocol):
    def read(self, name: str, end: int | None = None) -> bytes: ...


@dataclass(frozen=True, slots=True)
class Input:
    """One file to read. `id` is None if unknown; `size` in bytes."""

    folder: str
    name: str
    id: int | None
    size: int
    place: _Place = field(compare=False, repr=False)

    @property
    def where(self) -> str:
        """The path as a command line accepts it."""
        return f"{self.folder}/{self.name}" if self.folder else self.name

    @property
    def node(self) -> str:
        """The folder without the archive's hours: it identifies a node's log."""
        return _HOUR.sub("", self.folder)

    @property
    def order(self) -> tuple[str, int, str, str]:
        """The sort key; two files of one node may hold the same segment."""
        return self.node, -1 if self.id is None else self.id, self.folder, self.name

    def read(self) -> bytes:
        """The segment's bytes. Raises StoreError, or CorruptSection if a packed one is not a complete
        frame."""
        return unpack(self.name, self.place.read(self.name))

    def read_idx(self) -> bytes | None:
        """The `_cdc.idx` file next to it, or None if there is none. Raises StoreError."""
        match = _SEGMENT.fullmatch(self.name)
        if match is None:
            return None
        try:
            return self.place.read(f"{match[1]}_cdc.idx", end=idx.MOST_BYTES)
        except ObjectNotFound:
            return None


def find(paths: Iterable[str]) -> tuple[list[Input], list[WritetimeError]]:
    """The files of `paths`, in log order without duplicates, and an error for each path without files and for
    each unreadable folder. ConfigError for an empty path."""
    found: dict[str, Input] = {}
    errors: list[WritetimeError] = []
    for path in paths:
        if not path:
            # An unset shell variable; it must not mean the current folder.
            raise ConfigError("a path is empty", operation="look for segments", hint="For this folder, give .")
        try:
            inputs = list(_find(path, errors))
            if not inputs:
                raise ObjectNotFound("no segment found", operation="look for segments", obj=path, hint="Segments are named CommitLog-*.log")
        except WritetimeError as error:
            errors.append(error)
        else:
            found.update((each.where, each) for each in inputs)
    # While the archive packs a segment, both forms exist.
    found = {where: each for where, each in found.items() if not is_packed(where) or plain(where) not in found}
    return sorted(found.values(), key=lambda each: each.order), errors


def read(path: str) -> bytes:
    """The bytes of one file or object, unpacked. Raises StoreError, or CorruptSection."""
    if is_url(path):
        bucket, name = parse_object(path)
        return unpack(name, open_store(bucket.url).read(name))
    file = Path(path.removeprefix("file://"))
    return unpack(file.name, _Folder(file.parent).read(file.name))


def _find(path: str, errors: list[WritetimeError]) -> Iterator[Input]:
    return _in_bucket(path) if is_url(path) else _on_disk(Path(path.removeprefix("file://")), errors)


# --- disk


@dataclass(frozen=True, slots=True)
class _Folder:
    path: Path

    def read(self, name: str, end: int | None = None) -> bytes:
        try:
            with (self.path / name).open("rb") as file:
                return file.read(-1 if end is None else end)
        except OSError as error:
            raise _disk_error(error, self.path / name) from error


def _on_disk(path: Path, errors: list[WritetimeError]) -> Iterator[Input]:
    # Path.is_dir raises if a folder is not accessible.
    if not os.path.isdir(path):
        yield _file(path)
        return
    for folder, folders, names in os.walk(path, onerror=lambda error: errors.append(_disk_error(error, Path(error.filename)))):
        # The local store's own folder (writetime.storage.local) has no objects.
        folders[:] = [name for name in folders if name != ".writetime"]
        for name in filter(_SEGMENT.fullmatch, names):
            try:
                yield _file(Path(folder, name))
            except StoreError as error:
                errors.append(error)


def _file(path: Path) -> Input:
    try:
        status = path.stat()
    except OSError as error:
        raise _disk_error(error, path) from error
    if not stat.S_ISREG(status.st_mode):
        hint = "Segments are read twice: write the input to a file first"
        raise StoreError("not a regular file", operation="read a file", obj=str(path), hint=hint)
    place = _Folder(path.parent)
    return Input("" if path.parent == Path() else str(path.parent), path.name, _id(path.name, place), status.st_size, place)


def _disk_error(error: OSError, path: Path) -> StoreError:
    kind = ObjectNotFound if isinstance(error, FileNotFoundError) else StoreError
    return kind(error.strerror or str(error), operation="read a file", obj=str(path))


def _id(name: str, place: _Place) -> int | None:
    """The id in the name; for a renamed file, the id in the header."""
    match = _SEGMENT.fullmatch(name)
    if match is not None:
        return int(match[2])
    if is_packed(name):
        return None
    header = place.read(name, _ID_END)
    return int.from_bytes(header[_ID_OFFSET:], "big", signed=True) if len(header) == _ID_END else None


# --- buckets


@dataclass(frozen=True, slots=True)
class _Prefix:
    """The objects with names under `prefix`, as files of a folder."""

    store: Store
    prefix: str

    def read(self, name: str, end: int | None = None) -> bytes:
        return self.store.read(self.prefix + name, end=end)


def _in_bucket(url: str) -> Iterator[Input]:
    bucket, name = parse_object(url)
    root = bucket.url
    store = open_store(root)
    under = f"{name}/" if name else ""
    for info in store.list(name):
        folder, _, file = info.name.rpartition("/")
        wanted = info.name == name or (info.name.startswith(under) and _SEGMENT.fullmatch(file))
        if wanted:
            place = _Prefix(store, f"{folder}/" if folder else "")
            yield Input(f"{root}/{folder}".rstrip("/"), file, _id(file, place), info.size, place)
