"""Signs that an upload moves, for whoever tells a slow upload from one that hangs.

Strategy: stores read what they send in small blocks, one after the other, and each block that is asked for
means that the one before it was handed over. A caller names a function that is called then, in its own thread.

Must not know a store.
"""

from __future__ import annotations

import io
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar

_LISTENER: ContextVar[Callable[[], object] | None] = ContextVar("progress", default=None)


@contextmanager
def reported_to(listener: Callable[[], object]) -> Iterator[None]:
    """Call `listener` as bytes are sent by this thread while the block runs. It must not raise."""
    before = _LISTENER.set(listener)
    try:
        yield
    finally:
        _LISTENER.reset(before)


def moved() -> None:
    """A block was handed over, or an answer came."""
    if (listener := _LISTENER.get()) is not None:
        listener()


class Body(io.BytesIO):
    """Bytes to send. As a file, they are sent in blocks: each is progress, and has the whole time-out of a socket
    for itself."""

    def read(self, size: int | None = -1, /) -> bytes:
        moved()
        return super().read(size)
