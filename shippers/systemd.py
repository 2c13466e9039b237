"""Notifies systemd that the service is ready and alive (sd_notify(3)). Does nothing if NOTIFY_SOCKET is not
set.
"""

from __future__ import annotations

import os
import socket
from contextlib import suppress


def notify(state: str) -> None:
    """Send a state, such as READY=1 or WATCHDOG=1. Errors are ignored: the watchdog then restarts the
    service.
    """
    address = os.environ.get("NOTIFY_SOCKET", "")
    if not address.startswith(("/", "@")):
        return
    with suppress(OSError), socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC) as sender:
        # A leading @ denotes the zero byte of the abstract namespace.
        sender.sendto(state.encode(), "\0" + address[1:] if address.startswith("@") else address)
