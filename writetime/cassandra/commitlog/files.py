"""Segment files of this machine."""

from __future__ import annotations

import mmap
from pathlib import Path
from typing import cast


def mapped(path: Path) -> bytes:
    """A file's content without reading it: it behaves as bytes, and its pages come from the system's cache when they are looked at.

    For files that nobody cuts short meanwhile, as segments are: linked and removed as they are. Raises OSError.
    """
    with path.open("rb") as file:
        if file.seek(0, 2) == 0:
            return b""
        return cast(bytes, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ))
