"""Which segments a person means by paths on a command line: files, folders, and objects of a bucket, in log order.

A file is taken as it is, whatever its name. A folder stands for every segment below it, a bucket URL for the object of that name or for
all that lie under it. A node keeps its segments in one folder and gives them increasing ids, so log order is: by node, then by id
(never by name or time); the archive's folders of days and hours do not tell nodes apart. What is not there, or may not be looked
into, is an error of its own that holds up nothing else.

Opens nothing but what it is asked for, one file at a time. Knows nothing of what is inside a segment but where its id stands.
"""

from __future__ import annotations

import os
import re
import stat
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final, Protocol

from writetime.errors import ConfigError, ObjectNotFound, StoreError, WritetimeError
from writetime.storage import open_store
from writetime.storage.layout import is_packed, plain
from writetime.storage.segment_object import unpack
from writetime.storage.store import Store

_SEGMENT: Final = re.compile(r"(CommitLog-\d+-(\d+))(?:~[0-9a-f]{8})?\.log(?:\.zst)?")
"""With a checksum the archive names other bytes of the same segment, with .zst one that is packed (writetime.names)."""
_HOUR: Final = re.compile(r"(?:(?<=/)|^)date=[^/]+/hour=[^/]+(?:/|$)")
"""How the archive parts each node's log (writetime.names)."""
_ID_OFFSET, _ID_END = 4, 12


class _Place(Protocol):
    def read(self, name: str, end: int | None = None) -> bytes: ...


@dataclass(frozen=True, slots=True)
class Input:
    """One file to read. `id` is None if nothing tells it; `size` in bytes."""

    folder: str
    name: str
    id: int | None
    size: int
    place: _Place = field(compare=False, repr=False)

    @property
    def where(self) -> str:
        """What can be given on a command line again."""
        return f"{self.folder}/{self.name}" if self.folder else self.name

    @property
    def node(self) -> str:
        """The folder, without the hours of the archive: it tells one node's log from another's."""
        return _HOUR.sub("", self.folder)

    @property
    def order(self) -> tuple[str, int, str, str]:
        """Inputs sort by it; two files of one node may hold the same segment."""
        return self.node, -1 if self.id is None else self.id, self.folder, self.name

    def read(self) -> bytes:
        """The segment's bytes. Raises StoreError, or CorruptSection of a packed one that is no whole frame."""
        return unpack(self.name, self.place.read(self.name))

    def read_idx(self) -> bytes | None:
        """The `_cdc.idx` beside it, or None if there is none. Raises StoreError."""
        match = _SEGMENT.fullmatch(self.name)
        if match is None:
            return None
        try:
            return self.place.read(f"{match[1]}_cdc.idx")
        except ObjectNotFound:
            return None


def find(paths: Iterable[str]) -> tuple[list[Input], list[WritetimeError]]:
    """The files that `paths` stand for, in log order and each once, and an error for each path that stands for none and for each place
    below one that cannot be looked into. ConfigError for an empty path."""
    found: dict[str, Input] = {}
    errors: list[WritetimeError] = []
    for path in paths:
        if not path:
            # A shell variable that is not set; the folder one happens to be in is not what was meant.
            raise ConfigError("a path is empty", operation="look for segments", hint="For this folder, give .")
        try:
            inputs = list(_find(path, errors))
            if not inputs:
                raise ObjectNotFound("no segment is there", operation="look for segments", obj=path, hint="They are CommitLog-*.log")
        except WritetimeError as error:
            errors.append(error)
        else:
            found.update((each.where, each) for each in inputs)
    # While the archive packs a segment both forms of it lie there.
    found = {where: each for where, each in found.items() if not is_packed(where) or plain(where) not in found}
    return sorted(found.values(), key=lambda each: each.order), errors


def read(path: str) -> bytes:
    """The bytes of one file or object, unpacked. Raises StoreError, or CorruptSection."""
    if _is_url(path):
        root, name = _split_url(path)
        return unpack(name, open_store(root).read(name))
    file = Path(path.removeprefix("file://"))
    return unpack(file.name, _Folder(file.parent).read(file.name))


def _find(path: str, errors: list[WritetimeError]) -> Iterator[Input]:
    return _in_bucket(path) if _is_url(path) else _on_disk(Path(path.removeprefix("file://")), errors)


def _is_url(path: str) -> bool:
    return "://" in path and not path.startswith("file://")


# --- disk -------------------------------------------------------------------------------------------------------------------------


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
    # Path.is_dir raises where a folder may not be looked into.
    if not os.path.isdir(path):
        yield _file(path)
        return
    for folder, folders, names in os.walk(path, onerror=lambda error: errors.append(_disk_error(error, Path(error.filename)))):
        # What a store on disk keeps for itself (writetime.storage.local) is no object.
        folders[:] = [name for name in folders if name != ".writetime"]
        for name in filter(_SEGMENT.fullmatch, names):
            try:
                yield _file(Path(folder, name))
            except StoreError as error:
                errors.append(error)


def _file(path: Path) -> Input:
    try:
        told = path.stat()
    except OSError as error:
        raise _disk_error(error, path) from error
    if not stat.S_ISREG(told.st_mode):
        hint = "Segments are read twice: write it to a file first"
        raise StoreError("it is no regular file", operation="read a file", obj=str(path), hint=hint)
    place = _Folder(path.parent)
    return Input("" if path.parent == Path() else str(path.parent), path.name, _id(path.name, place), told.st_size, place)


def _disk_error(error: OSError, path: Path) -> StoreError:
    kind = ObjectNotFound if isinstance(error, FileNotFoundError) else StoreError
    return kind(error.strerror or str(error), operation="read a file", obj=str(path))


def _id(name: str, place: _Place) -> int | None:
    """The id in the name; of a file that was renamed, the one in its header."""
    match = _SEGMENT.fullmatch(name)
    if match is not None:
        return int(match[2])
    if is_packed(name):
        return None
    header = place.read(name, _ID_END)
    return int.from_bytes(header[_ID_OFFSET:], "big", signed=True) if len(header) == _ID_END else None


# --- buckets ----------------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _Prefix:
    """The objects whose names begin with `prefix`, seen as files of a folder."""

    store: Store
    prefix: str

    def read(self, name: str, end: int | None = None) -> bytes:
        return self.store.read(self.prefix + name, end=end)


def _in_bucket(url: str) -> Iterator[Input]:
    root, name = _split_url(url)
    store = open_store(root)
    name = name.rstrip("/")
    under = f"{name}/" if name else ""
    for info in store.list(name):
        folder, _, file = info.name.rpartition("/")
        wanted = info.name == name or (info.name.startswith(under) and _SEGMENT.fullmatch(file))
        if wanted:
            place = _Prefix(store, f"{folder}/" if folder else "")
            yield Input(f"{root}/{folder}".rstrip("/"), file, _id(file, place), info.size, place)


def _split_url(url: str) -> tuple[str, str]:
    """(scheme and bucket, name in it)."""
    scheme, _, rest = url.partition("://")
    bucket, _, name = rest.partition("/")
    return f"{scheme}://{bucket}", name
