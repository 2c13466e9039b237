"""Checks whether any process has a file open for writing, by taking a read lease on it.

Strategy: the kernel refuses a read lease (fcntl F_SETLEASE) only while the file is open or mapped for writing
on this machine, in any container and under any hard link. A segment that gets one belongs to a node that is
gone or has died. The lease is released at once. This is valid only for file systems of a single kernel:
shared ones (FUSE, virtiofs, NFS, CIFS, cluster file systems) count the writers of this machine only, or
refuse leases without a writer. So the valid file systems are listed, and for all others the result is
unknown. Knows nothing about segments.
"""

from __future__ import annotations

import errno
import fcntl
import os
import re
import signal
from pathlib import Path

_ONE_KERNELS_OWN = frozenset({"ext2", "ext3", "ext4", "xfs", "btrfs", "zfs", "tmpfs", "overlay"})
_MOUNT_ID = re.compile(r"^mnt_id:\s*(\d+)$", re.MULTILINE)


def nobody_writes(path: Path) -> bool | None:
    """True: no process has the file open for writing. False: a process has. None: unknown.

    Unknown on file systems that are not in the list, and if the process neither owns the file nor has
    CAP_LEASE.
    """
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK)
    except OSError:
        return None
    try:
        if _file_system(descriptor) not in _ONE_KERNELS_OWN:
            return None
        # If a process opens the file meanwhile, the kernel sends a signal: choose one that is ignored by
        # default.
        fcntl.fcntl(descriptor, fcntl.F_SETSIG, signal.SIGURG)
        fcntl.fcntl(descriptor, fcntl.F_SETLEASE, fcntl.F_RDLCK)
        fcntl.fcntl(descriptor, fcntl.F_SETLEASE, fcntl.F_UNLCK)
    except OSError as error:
        return False if error.errno == errno.EAGAIN else None
    finally:
        os.close(descriptor)
    return True


def _file_system(descriptor: int) -> str | None:
    """The type of the file system of an open file; None if unknown.

    Uses the mount id: a file's st_dev differs from its mount's on btrfs (a subvolume has its own), and may on
    overlay.
    """
    opened = Path(f"/proc/self/fdinfo/{descriptor}").read_text()
    mount = _MOUNT_ID.search(opened)
    return type_of(Path("/proc/self/mountinfo").read_text(errors="surrogateescape"), mount[1]) if mount else None


def type_of(mountinfo: str, mount: str) -> str | None:
    """The file system type of a mount id (proc_pid_mountinfo(5): the first field, and the first after ` -
    `)."""
    for line in mountinfo.splitlines():
        number, _, rest = line.partition(" ")
        if number == mount:
            _, _, what = rest.partition(" - ")
            return what.split(" ", 1)[0] or None
    return None
