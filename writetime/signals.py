"""An end that somebody asks for by a signal, as an event that the process's loop waits for."""

from __future__ import annotations

import signal
from queue import SimpleQueue
from threading import Event, Thread


def stop_on(*numbers: signal.Signals) -> Event:
    """An event that these signals set. Call it in the main thread."""
    stop, signals = Event(), SimpleQueue[int]()

    def wait() -> None:
        signals.get()
        stop.set()

    # Not in the handler: it interrupts the main thread, which may just then hold the lock of the event.
    Thread(target=wait, name="signals", daemon=True).start()
    for number in numbers:
        signal.signal(number, lambda received, _: signals.put(received))
    return stop
