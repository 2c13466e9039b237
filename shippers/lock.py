"""One shipper per folder, by an flock on the cdc_raw folder itself.

Strategy: the folder is locked rather than a lock file, so that two shippers with different settings conflict
too. The kernel releases the lock when the process ends in any way. On a file system that has no locks the
shipper does not start: a lock elsewhere, such as a file or a socket's name, would not be seen by a shipper in
another container or with another state folder, or would outlast its process. The lock is on a folder, not on its name, so it is renewed
when another folder has the name. Knows nothing about segments.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
from collections.abc import Iterator
from pathlib import Path

from writetime.errors import ShipError

_NO_LOCKS = (
    "Nothing is shipped. Keep cdc_raw on a local disk. NFS needs its lock service or the mount option local_lock=flock, "
    "FUSE a file system with flock."
)


class FolderLock:
    """The lock on a folder, held from the start. ShipError at once if another shipper holds it."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._descriptor = _locked(folder)

    def renew(self) -> None:
        """Lock the folder that has the name now, if it is another one: a disk was mounted over it, or it was moved and made anew.
        ShipError if there is none, or if another shipper holds it."""
        with contextlib.suppress(FileNotFoundError):
            if os.path.samestat(os.fstat(self._descriptor), os.stat(self._folder)):
                return
        fresh = _locked(self._folder)
        self.close()
        self._descriptor = fresh

    def close(self) -> None:
        os.close(self._descriptor)


@contextlib.contextmanager
def only_shipper(folder: Path) -> Iterator[FolderLock]:
    """Lock the folder while the block runs. ShipError at once if another shipper holds the lock."""
    with contextlib.closing(FolderLock(folder)) as lock:
        yield lock


def _locked(folder: Path) -> int:
    """A descriptor of the folder, which is locked until that is closed."""
    try:
        descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    except OSError as error:
        raise ShipError(
            f"failed to open the folder: {error.strerror}",
            operation="lock cdc_raw",
            obj=str(folder),
            hint="Check node.cdc_raw and its mode.",
        ) from error
    try:
        _lock(descriptor, folder)
    except BaseException:
        os.close(descriptor)
        raise
    return descriptor


def _lock(descriptor: int, folder: Path) -> None:
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError as error:
        raise ShipError(
            "another shipper holds the lock on this folder", operation="lock cdc_raw", obj=str(folder), hint="Stop one of the two."
        ) from error
    except OSError as error:
        raise ShipError(
            f"the file system does not lock the folder: {error.strerror}", operation="lock cdc_raw", obj=str(folder), hint=_NO_LOCKS
        ) from error
