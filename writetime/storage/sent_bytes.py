"""The bytes of sources (`source.opened`) that this thread has handed to a connection or a disk, repeated ones included.

A rate limit counts them, whatever became of the write. Bytes that are only read for a checksum or a signature do not count.
"""

from __future__ import annotations

import threading

_thread = threading.local()


def count(size: int) -> None:
    _thread.sent = sent() + size


def sent() -> int:
    """The number since this thread began."""
    return int(getattr(_thread, "sent", 0))
