"""Local segment files."""

from __future__ import annotations

import mmap
from pathlib import Path
from typing import cast


def mapped(path: Path) -> bytes:
    """Map a file into memory: the result behaves as bytes, and pages are loaded on access.

    Only for files that are not truncated meanwhile. Segments are linked and removed, never truncated. Raises
    OSError.
    """
    with path.open("rb") as file:
        if file.seek(0, 2) == 0:
            return b""
        return cast(bytes, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ))
