"""Whether any process still has a file open for writing: the kernel is asked, by trying to take a read lease on it.

A lease for reading is refused while the file is open or mapped for writing anywhere on this machine, in any container and under any
hard link, and for no other reason; so a segment that gets one is a segment whose node is gone or has died. The lease is given back at
once. That holds for file systems that one kernel has to itself: one that it shares with others (FUSE, virtiofs, NFS, CIFS, cluster file
systems) counts the writers of this machine only, or refuses without one. So those are named of which it is known; of others nothing is
known. Knows nothing of segments.
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
    """True: no process has it open for writing. False: one has. None: that is unknown here.

    It cannot on file systems that are shared between machines, or not known to be none, and where the file is neither our user's nor
    CAP_LEASE ours.
    """
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK)
    except OSError:
        return None
    try:
        if _file_system(descriptor) not in _ONE_KERNELS_OWN:
            return None
        # Should somebody open it for writing in this very moment, the kernel sends a signal: one that does nothing by default.
        fcntl.fcntl(descriptor, fcntl.F_SETSIG, signal.SIGURG)
        fcntl.fcntl(descriptor, fcntl.F_SETLEASE, fcntl.F_RDLCK)
        fcntl.fcntl(descriptor, fcntl.F_SETLEASE, fcntl.F_UNLCK)
    except OSError as error:
        return False if error.errno == errno.EAGAIN else None
    finally:
        os.close(descriptor)
    return True


def _file_system(descriptor: int) -> str | None:
    """The type of the file system that an open file lies on; None if the system does not say.

    By the id of the mount: a file's st_dev is not that of its mount on btrfs (a subvolume has its own), nor always on overlay.
    """
    opened = Path(f"/proc/self/fdinfo/{descriptor}").read_text()
    mount = _MOUNT_ID.search(opened)
    return type_of(Path("/proc/self/mountinfo").read_text(errors="surrogateescape"), mount[1]) if mount else None


def type_of(mountinfo: str, mount: str) -> str | None:
    """The type of the file system of that mount id (proc_pid_mountinfo(5): the first field, and the first after ` - `)."""
    for line in mountinfo.splitlines():
        number, _, rest = line.partition(" ")
        if number == mount:
            _, _, what = rest.partition(" - ")
            return what.split(" ", 1)[0] or None
    return None
