"""Something that runs in a thread while something else does."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager


@contextmanager
def in_background(run: Callable[[threading.Event], None]) -> Iterator[None]:
    """Call `run` in a thread, with the event that tells it to end, and wait for it at the end."""
    over = threading.Event()
    thread = threading.Thread(target=run, args=(over,), daemon=True)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()
