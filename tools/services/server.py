"""A server of one process: started, stopped, and ready when it answers.

Strategy: a subclass starts its process and passes it to `_ready`, which waits; a server that does not become
ready is stopped again. `with` starts and stops it.
"""

from __future__ import annotations

import urllib.error
import urllib.request
from abc import ABC, abstractmethod
from collections.abc import Callable
from types import TracebackType
from typing import Self

from tools.console import say
from tools.services import process


def responds(url: str) -> bool:
    """Whether the URL, one on loopback, is answered with 200."""
    try:
        with urllib.request.urlopen(url, timeout=2) as answer:  # noqa: S310 - our own loopback
            return bool(answer.status == 200)
    except (urllib.error.URLError, OSError):
        return False


class Server(ABC):
    """`with` starts and stops it. `port`: on which it listens on loopback, 0 before it has been started."""

    def __init__(self) -> None:
        self.port = 0
        self.service: process.Service | None = None

    @abstractmethod
    def start(self) -> Self:
        """Start it and wait until it answers. ServiceError if it does not."""

    def stop(self) -> None:
        """Stop it, if it is running."""
        if self.service is not None:
            self.service.stop()
            self.service = None

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.stop()

    def _ready(self, service: process.Service, answers: Callable[[], bool], what: str, *, seconds: float) -> Self:
        """Wait until the started process answers; `what` it is for people."""
        self.service = service
        try:
            took = service.wait(answers, seconds=seconds)
        except BaseException:
            self.stop()
            raise
        say(f"✓ {what} on {service.detail}: {took:.1f} s")
        return self
