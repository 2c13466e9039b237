"""Notifies systemd that the service is ready and alive (sd_notify(3)). Does nothing if NOTIFY_SOCKET is not
set.

Strategy: a thread of its own notifies the watchdog while the shipper counts as alive, which is the same rule as
that of /healthz. So an upload over a slow link, or a long interval between scans, is not ended by a watchdog
that is shorter; a shipper that hangs is ended once it does not count as alive any more.
"""

from __future__ import annotations

import os
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Final

_EVERY_SECONDS: Final = 10.0
_PATIENCE_SECONDS: Final = 1.0
"""How long a notification may take: systemd's queue of them may be full."""


def notify(state: str) -> bool:
    """Send a state, such as READY=1 or WATCHDOG=1. False if that fails: the watchdog then restarts the
    service.
    """
    address = os.environ.get("NOTIFY_SOCKET", "")
    if not address.startswith(("/", "@")):
        return False
    with suppress(OSError), socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC) as sender:
        sender.settimeout(_PATIENCE_SECONDS)
        # A leading @ denotes the zero byte of the abstract namespace.
        sender.sendto(state.encode(), "\0" + address[1:] if address.startswith("@") else address)
        return True
    return False


@contextmanager
def watched(is_alive: Callable[[], bool]) -> Iterator[None]:
    """Notify that the service is ready and, while the block runs and `is_alive()`, the watchdog."""
    over = threading.Event()

    def repeat() -> None:
        # Without READY=1 the service counts as not started.
        ready = notify("READY=1")
        while not over.wait(_interval()):
            ready = ready or notify("READY=1")
            if is_alive():
                notify("WATCHDOG=1")

    if os.environ.get("NOTIFY_SOCKET"):
        # Without a thread (a limit of the system), the watchdog restarts the service.
        with suppress(RuntimeError):
            threading.Thread(target=repeat, name="systemd", daemon=True).start()
    try:
        yield
    finally:
        over.set()


def _interval() -> float:
    """A third of the watchdog's time, which the unit may set shorter than ours."""
    wanted = os.environ.get("WATCHDOG_USEC", "")
    return min(_EVERY_SECONDS, int(wanted) / 3e6) if wanted.isascii() and wanted.isdigit() and int(wanted) else _EVERY_SECONDS
