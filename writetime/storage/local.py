"""A folder as an object store: objects are plain files, usable with `ls`, `cat` and `cp`.

Strategy: an object is written under `<root>/.writetime/tmp`, synced, read back and compared, and only then
gets its name, by a hard link (only if there is none) or by a rename under a lock (overwrite, compare and
set); the folder is synced too. The generation is the file's mtime in nanoseconds, which the store sets
itself, strictly newer than what it replaces. CRC32C and metadata are stored in
`<root>/.writetime/meta/<name>.<generation>.json`, written before the object gets its name. A file that was
copied by hand has another mtime and therefore no record: its CRC32C is computed and its metadata is empty.
This is how an operator repairs an object.

The read-back costs a second pass over every object. It corresponds to the checksum in a remote store's
answer: the sender deletes its copy after that answer, so it must be computed from the stored bytes, not from
those sent.

A bucket holds all keyspaces' data, so a new root is accessible to its user only (0700). Files and folders
below a root get the root's mode, whatever the umask: to share a bucket among users, create its folder first
with the right group and mode.

A limitation compared with remote stores: a name cannot be a prefix folder of another (`a` and `a/b`). All
processes that write must run on one machine (flock). Must not know segments or batches.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import hashlib
import json
import os
import stat
import time
import uuid
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import BinaryIO

from writetime.errors import ChecksumMismatch, ObjectNotFound, PreconditionFailed, StoreError, StoreUnavailable
from writetime.storage.checksum import chunks, crc32c, crc32c_of_stream
from writetime.storage.object_names import is_name, require_name
from writetime.storage.source import opened, sending
from writetime.storage.store import PAGE, Listed, ObjectInfo

_HIDDEN = ".writetime"
_STRIPES = 64
_PRIVATE = 0o700
_TEMPORARY_IS_STALE_AFTER = 24 * 3600.0
_PASSING = frozenset({errno.ENOSPC, errno.EDQUOT, errno.ESTALE, errno.ETIMEDOUT, errno.EAGAIN})
_HINTS = {
    errno.EACCES: "Check owner and mode of the folder and of the user this runs as.",
    errno.EPERM: "Check owner and mode of the folder, and that its file system knows hard links.",
    errno.EOPNOTSUPP: "Keep the folder on a file system that knows hard links.",
    errno.ENOSPC: "Make room on the disk.",
    errno.EDQUOT: "Make room within the quota.",
    errno.EROFS: "The file system is mounted read-only.",
    errno.EEXIST: "Where the name needs a folder, there is an object.",
    errno.ENOTDIR: "Where the name needs a folder, there is an object.",
}


class LocalStore:
    """See the module's docstring. The folder is created by the first write."""

    def __init__(self, root: str | Path) -> None:
        self._root = Path(root).absolute()
        self.url = str(self._root)
        self._swept = False

    def list(self, prefix: str = "", *, start_after: str = "") -> Iterator[ObjectInfo]:
        """See Store.list. Files with invalid names are skipped. Holds the names of one folder at a time in
        memory."""
        for name in self._names("", prefix.encode(), start_after.encode()):
            # None: it was deleted during the listing.
            if (info := self.head(name)) is not None:
                yield info

    def names(self, prefix: str = "", *, start_after: str = "", page: int = PAGE) -> Iterator[Listed]:
        """See Store.names."""
        for name in self._names("", prefix.encode(), start_after.encode()):
            try:
                found = self._root.joinpath(name).stat()
            except (FileNotFoundError, NotADirectoryError):
                # It was deleted during the listing.
                continue
            yield Listed(name, found.st_size, _created(found.st_mtime_ns))

    def folders(self, prefix: str = "") -> Iterator[str]:
        """See Store.folders."""
        folder, _, start = prefix.rpartition("/")
        folder = f"{folder}/" if folder else ""
        for key, is_folder in sorted(self._entries(folder)):
            # A folder may have lost all its files.
            if is_folder and key.startswith(start.encode()) and next(self._names(folder + key.decode(), b"", b""), None) is not None:
                yield folder + key.decode()

    def head(self, name: str) -> ObjectInfo | None:
        """See Store.head."""
        try:
            while True:
                with _explained("look up an object", name), self._open(name) as file:
                    if (info := self._info(name, file)) is not None:
                        return info
        except ObjectNotFound:
            return None

    def read(self, name: str, *, generation: int | None = None, start: int = 0, end: int | None = None) -> bytes:
        """See Store.read. A range beyond the end returns the bytes that exist."""
        with _explained("read an object", name), self._open(name) as file:
            found = os.fstat(file.fileno()).st_mtime_ns
            if generation is not None and found != generation:
                raise ObjectNotFound(
                    f"generation {generation} does not exist, the current one is {found}", operation="read an object", obj=name
                )
            file.seek(start)
            return file.read() if end is None else file.read(max(0, end - start))

    def put(
        self, name: str, data: bytes | Path, *, if_generation: int | None = None, metadata: Mapping[str, str] | None = None
    ) -> ObjectInfo:
        """See Store.put. StoreError if the source cannot be read, the disk is full, or the file system
        rejects the name."""
        target = self._path(name, "write an object")
        with opened(data, "write an object", name) as source, _explained("write an object", name):
            self._require(name, target, if_generation)
            with self._temporary() as path:
                sending(source)
                size, crc = _write(path, chunks(source), self._file_mode())
                _verify(path, name, size, crc)
                return self._publish(path, target, ObjectInfo(name, size, 0, crc, _created(0), dict(metadata or {})), if_generation)

    def copy(self, source: str, target: str, *, if_generation: int | None = 0) -> ObjectInfo:
        """See Store.copy."""
        path = self._path(target, "copy an object")
        with _explained("copy an object", f"{source} to {target}"), self._open(source) as file:
            if (info := self._info(source, file)) is None:
                raise ObjectNotFound("the object was replaced during the call", operation="copy an object", obj=source, retriable=True)
            self._require(target, path, if_generation)
            with self._temporary() as temporary:
                file.seek(0)
                size, crc = _write(temporary, chunks(file), self._file_mode())
                if (size, crc) != (info.size, info.crc32c):
                    raise ChecksumMismatch("the source's bytes do not match its CRC32C", operation="copy an object", obj=source)
                _verify(temporary, target, size, crc)
                return self._publish(temporary, path, replace(info, name=target), if_generation)

    def delete(self, name: str, *, if_generation: int | None = None) -> None:
        """See Store.delete."""
        path = self._path(name, "delete an object")
        with _explained("delete an object", name), self._locked(name):
            found = _generation(path)
            if found is None:
                raise ObjectNotFound("the object does not exist", operation="delete an object", obj=name)
            if if_generation is not None and if_generation != found:
                raise _precondition("delete an object", name, if_generation, found)
            path.unlink()
            _sync_folder(path.parent)
            self._meta(name, found).unlink(missing_ok=True)

    def discard(self, names: Iterable[str]) -> None:
        """See Store.discard."""
        for name in names:
            with contextlib.suppress(ObjectNotFound):
                self.delete(name)

    # --- names and folders

    def _path(self, name: str, operation: str) -> Path:
        require_name(name, operation)
        return self._root.joinpath(*name.split("/"))

    def _names(self, folder: str, prefix: bytes, after: bytes) -> Iterator[str]:
        """Names under `folder` ("" or ending in "/") in order of their UTF-8 bytes; whole folders outside the
        bounds are not entered."""
        for key, is_folder in sorted(self._entries(folder)):
            name = folder.encode() + key
            if is_folder:
                # All names in it start with `name`: skip it if none can carry the prefix or come after
                # `after`.
                fits = name.startswith(prefix) or prefix.startswith(name)
                if fits and (name > after or after.startswith(name)):
                    yield from self._names(name.decode(), prefix, after)
            elif name.startswith(prefix) and name > after:
                yield name.decode()

    def _entries(self, folder: str) -> Iterator[tuple[bytes, bool]]:
        """(sort key, is a folder). A folder's key ends in "/", which makes the walk's order that of the flat
        names."""
        try:
            entries = os.scandir(self._root / folder)
        except (FileNotFoundError, NotADirectoryError):
            return
        with _explained("list objects", folder), entries:
            for entry in entries:
                if (folder == "" and entry.name == _HIDDEN) or not is_name(entry.name):
                    continue
                if entry.is_dir(follow_symlinks=False):
                    yield entry.name.encode() + b"/", True
                elif entry.is_file():
                    yield entry.name.encode(), False

    def _own(self, what: str) -> Path:
        folder = self._root / _HIDDEN / what
        self._make_folder(folder)
        return folder

    def _mode(self) -> int:
        """The mode of the root and of all folders below it."""
        return stat.S_IMODE(self._root.stat().st_mode) & 0o777

    def _file_mode(self) -> int:
        return self._mode() & 0o666

    def _make_folder(self, folder: Path) -> None:
        """Like mkdir -p, and each new entry is synced, so that a name survives a power cut together with its
        folders."""
        if folder.is_dir():
            return
        self._make_folder(folder.parent)
        if folder == self._root:
            folder.mkdir(_PRIVATE, exist_ok=True)
        elif not folder.is_relative_to(self._root):
            # Folders above the bucket are not the bucket's.
            folder.mkdir(exist_ok=True)
        else:
            folder.mkdir(_PRIVATE, exist_ok=True)
            # Another user was faster and set the same mode.
            with contextlib.suppress(PermissionError):
                folder.chmod(self._mode())
        _sync_folder(folder.parent)

    def _meta(self, name: str, generation: int) -> Path:
        return self._root / _HIDDEN / "meta" / f"{name}.{generation}.json"

    # --- reading

    def _open(self, name: str) -> BinaryIO:
        try:
            file = self._path(name, "open an object").open("rb")
        except (FileNotFoundError, IsADirectoryError, NotADirectoryError) as error:
            raise ObjectNotFound("the object does not exist", operation="open an object", obj=name) from error
        return file

    def _info(self, name: str, file: BinaryIO) -> ObjectInfo | None:
        """Facts of an open file. None if it was replaced and its checksum record deleted: retry."""
        found = os.fstat(file.fileno())
        created, meta = _created(found.st_mtime_ns), self._meta(name, found.st_mtime_ns)
        try:
            crc, metadata = _noted(meta.read_bytes())
        except (FileNotFoundError, NotADirectoryError):
            if _generation(self._path(name, "look up an object")) != found.st_mtime_ns:
                return None
            crc, size = crc32c_of_stream(file)
            return ObjectInfo(name, size, found.st_mtime_ns, crc, created)
        except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
            hint = "If the object is as it should be, remove that file: the checksum is computed then."
            raise StoreError(
                f"the object's checksum record is damaged: {error!r}", operation="look up an object", obj=str(meta), hint=hint
            ) from error
        return ObjectInfo(name, found.st_size, found.st_mtime_ns, crc, created, metadata)

    # --- writing

    def _require(self, name: str, target: Path, wanted: int | None) -> int:
        """The current generation (0 = none). PreconditionFailed if it is not the wanted one."""
        if target.is_dir():
            raise StoreError("other objects exist below this name", operation="write an object", obj=name)
        found = _generation(target) or 0
        if wanted is not None and wanted != found:
            raise _precondition("write an object", name, wanted, found)
        return found

    def _publish(self, temporary: Path, target: Path, info: ObjectInfo, if_generation: int | None) -> ObjectInfo:
        """Give a finished file its name. The lock makes look and rename one step among writers; the link is
        safe against anybody."""
        with self._locked(info.name):
            found = self._require(info.name, target, if_generation)
            generation = _set_generation(temporary, found)
            meta = self._meta(info.name, generation)
            self._make_folder(meta.parent)
            _write_synced(meta, json.dumps({"crc32c": info.crc32c, "metadata": dict(info.metadata)}).encode(), self._file_mode())
            self._make_folder(target.parent)
            try:
                _name(temporary, target, only_if_absent=if_generation == 0)
            except FileExistsError as error:
                meta.unlink(missing_ok=True)
                raise _precondition("write an object", info.name, 0, _generation(target) or 0) from error
            _sync_folder(target.parent)
            if found:
                self._meta(info.name, found).unlink(missing_ok=True)
        return replace(info, generation=generation, created=_created(generation))

    @contextlib.contextmanager
    def _temporary(self) -> Iterator[Path]:
        folder = self._own("tmp")
        if not self._swept:
            self._swept = True
            _sweep(folder)
        path = folder / uuid.uuid4().hex
        try:
            yield path
        finally:
            path.unlink(missing_ok=True)

    @contextlib.contextmanager
    def _locked(self, name: str) -> Iterator[None]:
        """Among all processes, one writer at a time of the names that share a lock file."""
        stripe = int.from_bytes(hashlib.blake2b(name.encode(), digest_size=2).digest(), "big") % _STRIPES
        path = self._own("locks") / f"{stripe:02d}"
        with path.open("ab") as file:
            # The mode of another user's lock file cannot be set.
            with contextlib.suppress(PermissionError):
                os.fchmod(file.fileno(), self._file_mode())
            _lock(file, name)
            yield


def _lock(file: BinaryIO, name: str) -> None:
    """Wait for the lock. StoreError if the file system has none: two writers could then replace the same object."""
    try:
        fcntl.flock(file, fcntl.LOCK_EX)
    except OSError as error:
        hint = "Keep the folder on a local disk. NFS needs its lock service or the mount option local_lock=flock."
        what = f"the file system does not lock the file: {error.strerror}: {file.name}"
        raise StoreError(what, operation="lock an object's name", obj=name, hint=hint) from error


def _noted(content: bytes) -> tuple[int, dict[str, str]]:
    """CRC32C and metadata of an object. ValueError or similar if they are missing."""
    noted = json.loads(content)
    crc, metadata = noted["crc32c"], {str(key): str(value) for key, value in noted["metadata"].items()}
    if type(crc) is not int or not 0 <= crc < 1 << 32:
        raise ValueError(f"not a CRC32C: {crc!r}")
    return crc, metadata


def _created(generation: int) -> datetime:
    return datetime.fromtimestamp(generation / 1e9, UTC)


def _name(temporary: Path, target: Path, *, only_if_absent: bool) -> None:
    if only_if_absent:
        os.link(temporary, target)
    else:
        temporary.replace(target)


def _generation(path: Path) -> int | None:
    try:
        found = path.stat()
    except (FileNotFoundError, NotADirectoryError):
        return None
    return None if path.is_dir() else found.st_mtime_ns


def _set_generation(path: Path, newer_than: int) -> int:
    """Set the mtime and return what the file system kept of it, which may be coarser than a nanosecond."""
    wanted, step = max(time.time_ns(), newer_than + 1), 1
    while True:
        os.utime(path, ns=(wanted, wanted))
        if (kept := path.stat().st_mtime_ns) > newer_than:
            return kept
        step *= 1000
        wanted = newer_than + step


def _write(path: Path, chunks: Iterator[bytes], mode: int) -> tuple[int, int]:
    """Write and sync a new file with that mode; returns the size and CRC32C of the input."""
    size = crc = 0
    with path.open("xb", buffering=0) as file:
        os.fchmod(file.fileno(), mode)
        for chunk in chunks:
            view = memoryview(chunk)
            while view:
                view = view[file.write(view) :]
            size, crc = size + len(chunk), crc32c(chunk, crc)
        os.fsync(file.fileno())
    return size, crc


def _verify(path: Path, name: str, size: int, crc: int) -> None:
    """Read the file back, from the disk if the system drops its cached copy."""
    with path.open("rb", buffering=0) as file:
        if hasattr(os, "posix_fadvise"):
            os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
        found_crc, found_size = crc32c_of_stream(file)
    if (found_size, found_crc) != (size, crc):
        raise ChecksumMismatch(
            f"{size} bytes with CRC32C {crc:08x} were written, {found_size} bytes with {found_crc:08x} were read back",
            operation="write an object",
            obj=name,
            hint="The disk or the memory of this machine is not to be trusted.",
        )


def _write_synced(path: Path, data: bytes, mode: int) -> None:
    with path.open("wb") as file:
        os.fchmod(file.fileno(), mode)
        file.write(data)
        file.flush()
        os.fsync(file.fileno())
    _sync_folder(path.parent)


def _sync_folder(folder: Path) -> None:
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    except OSError as error:
        # SMB and some FUSE file systems do not sync folders; their servers decide what survives.
        if error.errno not in (errno.EINVAL, errno.EOPNOTSUPP, errno.ENOSYS):
            raise
    finally:
        os.close(descriptor)


def _sweep(folder: Path) -> None:
    """Remove files of killed writers; no write takes a day."""
    stale = time.time() - _TEMPORARY_IS_STALE_AFTER
    for path in folder.iterdir():
        with contextlib.suppress(FileNotFoundError):
            if path.stat().st_mtime < stale:
                path.unlink()


def _precondition(operation: str, name: str, wanted: int, found: int) -> PreconditionFailed:
    expected = "no object" if wanted == 0 else f"generation {wanted}"
    present = f"generation {found}" if found else "none"
    return PreconditionFailed(f"{expected} was expected, there is {present}", operation=operation, obj=name)


@contextlib.contextmanager
def _explained(operation: str, name: str) -> Iterator[None]:
    """Translate errors of the operating system, with a hint."""
    try:
        yield
    except OSError as error:
        what = f"{error.strerror}: {error.filename}" if error.filename else str(error)
        kind = StoreUnavailable if error.errno in _PASSING else StoreError
        raise kind(what, operation=operation, obj=name, hint=_HINTS.get(error.errno or 0)) from error
