"""Whether any process still has a file open for writing: the kernel is asked, by trying to take a read lease on it.

A lease for reading is refused while the file is open or mapped for writing anywhere on this machine, in any container and under any
hard link, and for no other reason; so a segment that gets one is a segment whose node is gone or has died. The lease is given back at
once. Knows nothing of segments.
"""

from __future__ import annotations

import errno
import fcntl
import os
import signal
from pathlib import Path


def nobody_writes(path: Path) -> bool | None:
    """True: no process has it open for writing. False: one has. None: that cannot be told here.

    It cannot where leases are unknown (network file systems), and where the file is neither our user's nor CAP_LEASE ours.
    """
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK)
    except OSError:
        return None
    try:
        # Should somebody open it for writing in this very moment, the kernel sends a signal: one that does nothing by default.
        fcntl.fcntl(descriptor, fcntl.F_SETSIG, signal.SIGURG)
        fcntl.fcntl(descriptor, fcntl.F_SETLEASE, fcntl.F_RDLCK)
        fcntl.fcntl(descriptor, fcntl.F_SETLEASE, fcntl.F_UNLCK)
    except OSError as error:
        return False if error.errno == errno.EAGAIN else None
    finally:
        os.close(descriptor)
    return True
