"""Runs the shipper at a lower priority than the database: CPU, disk, and no use of the page cache.

Niceness also sets the disk priority while no I/O class is set (ionice then derives it from the niceness).
"""

from __future__ import annotations

import contextlib
import mmap
import os
from pathlib import Path
from typing import Final

NICE: Final = 10


def lower_priority() -> None:
    """Raise the niceness to `NICE`. A higher niceness is kept; an error is ignored."""
    with contextlib.suppress(OSError):
        if (more := NICE - os.nice(0)) > 0:
            os.nice(more)


def forget(path: Path) -> None:
    """Drop the file's pages from the page cache. Pages that another process has mapped and dirty pages
    stay."""
    with contextlib.suppress(OSError):
        descriptor = os.open(path, os.O_RDONLY)
        try:
            os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
        finally:
            os.close(descriptor)


def forget_range(file: int, start: int, end: int) -> None:
    """Like `forget`, for the pages with bytes [start, end) of an open file."""
    first = start - start % mmap.PAGESIZE
    with contextlib.suppress(OSError):
        os.posix_fadvise(file, first, end - first + mmap.PAGESIZE, os.POSIX_FADV_DONTNEED)
