"""Choose ports on loopback: the preferred one, or the next free one with a message.

A port is free if it can be bound now. If another process takes it before the service does, the service fails,
and a second attempt chooses again.
"""

from __future__ import annotations

import socket
from collections.abc import Callable

from tools.console import say
from tools.errors import ServiceError

LOOPBACK = "127.0.0.1"
_ATTEMPTS = 100


def choose(preferred: int, owner: str, *, avoid: frozenset[int] = frozenset(), notify: Callable[[str], None] = say) -> int:
    """The preferred port, or the next free one above it; `owner` names the service in the message.

    0 asks for any free port. ServiceError if a hundred ports in a row are taken.
    """
    if preferred == 0:
        return any_free()
    for port in range(preferred, min(preferred + _ATTEMPTS, 65536)):
        if port not in avoid and is_free(port):
            if port != preferred:
                notify(f"Port {preferred} is in use: {owner} gets {port} instead.")
            return port
    raise ServiceError(
        f"No free port for {owner}: {preferred} to {preferred + _ATTEMPTS - 1} are all in use. Stop something, or choose another port."
    )


def any_free() -> int:
    """A port that is not bound at the moment."""
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as probe:
        probe.bind((LOOPBACK, 0))
        return int(probe.getsockname()[1])


def is_free(port: int) -> bool:
    """Whether a server could listen on the port on loopback."""
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as probe:
        # As servers do, so that a port whose last connections are still in TIME_WAIT counts as free.
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((LOOPBACK, port))
        except OSError:
            return False
        return True


def answers(port: int, timeout: float = 1.0) -> bool:
    """Whether something accepts connections on the port on loopback."""
    try:
        socket.create_connection((LOOPBACK, port), timeout).close()
    except OSError:
        return False
    return True
