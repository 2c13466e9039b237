"""The number of requests to stores that this process has sent, retries included. A folder has none."""

from __future__ import annotations

from threading import Lock
from typing import Any

_lock = Lock()
_sent = 0


def count(*_: Any, **__: Any) -> None:
    """Count one request; a hook of the stores' libraries, whose arguments do not matter."""
    global _sent
    with _lock:
        _sent += 1


def sent() -> int:
    """The number since the process began."""
    return _sent
