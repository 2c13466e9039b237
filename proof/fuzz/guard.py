"""Guarded memory: reading one byte before or after the data kills the process.

Strategy: anonymous pages between two inaccessible ones. Compiled code does not check bounds; the memory
management unit does.
"""

from __future__ import annotations

import ctypes
import mmap

_NOTHING_ALLOWED = 0
_libc = ctypes.CDLL(None, use_errno=True)
_libc.mprotect.argtypes = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int)


class Guarded:
    """Room for up to `size` bytes between two inaccessible pages."""

    def __init__(self, size: int) -> None:
        self.room = -(-size // mmap.PAGESIZE) * mmap.PAGESIZE
        self._map = mmap.mmap(-1, self.room + 2 * mmap.PAGESIZE)
        address = ctypes.addressof(ctypes.c_char.from_buffer(self._map))
        for page in (address, address + mmap.PAGESIZE + self.room):
            if _libc.mprotect(page, mmap.PAGESIZE, _NOTHING_ALLOWED) != 0:
                raise OSError(ctypes.get_errno(), "failed to protect the guard pages")
        self._view = memoryview(self._map)[mmap.PAGESIZE : mmap.PAGESIZE + self.room]

    def at_the_end(self, content: bytes) -> memoryview:
        """The bytes, directly before the guard page. Valid until the next call."""
        view = self._view[self.room - len(content) :]
        view[:] = content
        return view

    def at_the_beginning(self, content: bytes) -> memoryview:
        """The bytes, directly after the guard page."""
        view = self._view[: len(content)]
        view[:] = content
        return view
