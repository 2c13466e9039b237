"""The shipper's log on stderr: it never delays or stops the work.

Strategy: a line is put into a bounded queue, and a thread of its own writes it. While whoever reads the log
stalls, its disk is full or its reader is gone, lines are dropped and counted, and the work goes on; once lines
can be written again, the log says how many are missing. The stream takes the place of `sys.stderr`, so that
tracebacks, warnings and the command line's last words cannot block either. When the process ends, it waits a
moment for the queue.

Knows nothing about what is logged.
"""

from __future__ import annotations

import atexit
import contextlib
import io
import logging
import os
import queue
import select
import sys
import threading
import time
from typing import Any, Final, TextIO, cast

import structlog
from prometheus_client import Counter

LOST: Final = Counter(
    "writetime_ship_lost_log_lines",
    "Lines of the log that were dropped: its reader stalled or is gone, or its disk is full.",
    registry=None,
)
_LINES: Final = 1000
"""Lines that wait to be written, at most."""
_LAST_SECONDS: Final = 2.0
"""How long a process that ends waits for its log to be written."""


class Stream(io.TextIOBase):
    """A text stream to a file descriptor whose `write` neither blocks nor raises."""

    encoding = "utf-8"
    errors = "backslashreplace"

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor
        self._waiting: queue.Queue[str] = queue.Queue(_LINES)
        self._missing = 0
        """Lines dropped since the log last said so."""
        self._torn = False
        """The last line was written in part."""
        # Without a thread (a limit of the system), all lines are dropped.
        with contextlib.suppress(RuntimeError):
            threading.Thread(target=self._drain, name="log", daemon=True).start()

    def write(self, text: str, /) -> int:
        if not isinstance(text, str):
            raise TypeError(f"text is needed, not {type(text).__name__}")
        try:
            self._waiting.put_nowait(text)
        except queue.Full:
            self._drop(text)
        return len(text)

    def writable(self) -> bool:
        return True

    def fileno(self) -> int:
        return self._descriptor

    def isatty(self) -> bool:
        return os.isatty(self._descriptor)

    def finish(self, seconds: float = _LAST_SECONDS) -> None:
        """Wait until everything is written, but no longer than that."""
        until = time.monotonic() + seconds
        with self._waiting.all_tasks_done:
            while self._waiting.unfinished_tasks and (left := until - time.monotonic()) > 0:
                self._waiting.all_tasks_done.wait(left)

    def _drop(self, text: str) -> None:
        lines = text.count("\n")
        self._missing += lines
        LOST.inc(lines)

    def _drain(self) -> None:
        while True:
            text = self._waiting.get()
            try:
                self._put(text)
            except OSError:
                self._drop(text)
            else:
                self._report_missing()
            self._waiting.task_done()

    def _put(self, text: str) -> None:
        whole = ("\n" if self._torn else "") + text
        left = memoryview(whole.encode(self.encoding, self.errors))
        while left:
            try:
                left = left[os.write(self._descriptor, left) :]
                self._torn = bool(left)
            except BlockingIOError:
                # Another process that writes to the same pipe has made it non-blocking.
                select.select([], [self._descriptor], [])

    def _report_missing(self) -> None:
        # Behind a backlog the report would be dropped itself.
        if self._missing and self._waiting.empty():
            missing, self._missing = self._missing, 0
            structlog.get_logger("ship").warning("log lines were dropped", lines=missing, hint="Check what reads the log, and its disk.")


def configure() -> None:
    """Log to stderr, including libraries' warnings: readable lines on a terminal, JSON otherwise."""
    # Without a stderr, the lowest free descriptor is its own: no other file may take its place.
    stream = Stream(os.open(os.devnull, os.O_WRONLY) if sys.stderr is None else sys.stderr.fileno())
    atexit.register(stream.finish)
    sys.stderr = stream
    stamps: list[Any] = [structlog.processors.add_log_level, structlog.processors.TimeStamper(fmt="iso", utc=True)]
    show: Any = structlog.dev.ConsoleRenderer() if stream.isatty() else structlog.processors.JSONRenderer()
    structlog.configure(processors=[*stamps, show], logger_factory=structlog.WriteLoggerFactory(file=cast(TextIO, stream)))
    strip = structlog.stdlib.ProcessorFormatter.remove_processors_meta
    handler = logging.StreamHandler(stream)
    handler.setFormatter(structlog.stdlib.ProcessorFormatter(foreign_pre_chain=stamps, processors=[strip, show]))
    logging.basicConfig(handlers=[handler], level=logging.WARNING, force=True)
