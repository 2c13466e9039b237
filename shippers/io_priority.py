"""Lower priority than the database: less of the processor and the disk, and no use of the page cache.

Niceness sets the share of the disk too, as long as no I/O class is given (ionice of a process that has none follows its niceness).
"""

from __future__ import annotations

import contextlib
import mmap
import os
from pathlib import Path


def lower_priority(nice: int) -> None:
    """Add to the niceness. Already lower is as well; a system that refuses is none of our business."""
    with contextlib.suppress(OSError):
        if (more := nice - os.nice(0)) > 0:
            os.nice(more)


def forget(path: Path) -> None:
    """Let the system drop the file's pages from its cache. Those that another process has mapped stay; so does what is not written yet."""
    with contextlib.suppress(OSError):
        descriptor = os.open(path, os.O_RDONLY)
        try:
            os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
        finally:
            os.close(descriptor)


def forget_range(file: int, start: int, end: int) -> None:
    """As `forget`, of the pages with bytes [start, end) of an open file."""
    first = start - start % mmap.PAGESIZE
    with contextlib.suppress(OSError):
        os.posix_fadvise(file, first, end - first + mmap.PAGESIZE, os.POSIX_FADV_DONTNEED)
