"""A job ends with the processes that started it.

Strategy: a process that is killed can tell nobody, and what it started goes on: a job whose task was killed would keep
its lease and its memory until it has finished, and one whose JVM was killed until it needs it. The task names itself in
the environment (`SETTING`), since spark-submit lies between it and the job. A thread of the job looks at these processes
every second: the kernel reports the end of a process to its children only, and in a JVM already when the thread that
started them ends. A process id is used again, so the time of the start is part of the name.

`before_end` registers what remains to be done for the next job. It gets a few seconds; then the process ends, without
its own cleaning up: what it was doing is what a killed job leaves. Does not know Airflow or Spark.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Final, NamedTuple

import structlog

log = structlog.get_logger()

SETTING: Final = "WRITETIME_PARENTS"
_EVERY: Final = 1.0
_GRACE: Final = 5.0
"""Seconds for what is registered: a store that does not answer must not keep the process."""
_PROC: Final = Path("/proc")
_before_end: list[Callable[[str], None]] = []


class Parent(NamedTuple):
    """A process: what it is to the job, its id, and when it was started, as the kernel writes it."""

    role: str
    pid: int
    started: str

    @property
    def has_ended(self) -> bool:
        try:
            return _started(self.pid) != self.started
        except OSError:
            # This process may have no file descriptor left: that says nothing of the other one.
            return False


def named(processes: Mapping[str, int]) -> str:
    """The value of `SETTING` for these processes, by role. One that cannot be seen from here is left out: the job could
    not see it either."""
    return " ".join(f"{role}:{pid}:{started}" for role, pid in processes.items() if (started := _started(pid)) is not None)


def watch(processes: Mapping[str, int]) -> None:
    """End this process when one of `processes` ends, or one that the environment names."""
    found = [_parsed(text) for text in (*os.environ.get(SETTING, "").split(), *named(processes).split())]
    if not found:
        return
    _end_with(found)
    threading.Thread(target=_watch, args=(found,), name="parents", daemon=True).start()


@contextmanager
def before_end(call: Callable[[str], None]) -> Iterator[None]:
    """Within the context, `call` is called with the reason before the process ends with another one."""
    _before_end.append(call)
    try:
        yield
    finally:
        _before_end.remove(call)


def _parsed(text: str) -> Parent:
    role, pid, started = text.split(":")
    return Parent(role, int(pid), started)


def _watch(parents: list[Parent]) -> None:
    never = threading.Event()
    while not never.wait(_EVERY):
        _end_with(parents)


def _end_with(parents: list[Parent]) -> None:
    """End this process if one of them has ended."""
    ended = next((parent for parent in parents if parent.has_ended), None)
    if ended is None:
        return
    reason = f"its {ended.role} (process {ended.pid}) has ended"
    callbacks = threading.Thread(target=_run_callbacks, args=(reason,), daemon=True)
    callbacks.start()
    callbacks.join(_GRACE)
    os._exit(1)


def _run_callbacks(reason: str) -> None:
    for call in list(_before_end):
        with suppress(Exception):
            call(reason)
    # Last: whoever reads this process's output may be the one that has ended.
    with suppress(Exception):
        log.error("parent process has ended, the job ends", reason=reason)


def _started(pid: int) -> str | None:
    """When a process was started; None if it has ended, also if nobody has taken notice yet."""
    try:
        fields = (_PROC / str(pid) / "stat").read_text(encoding="utf-8", errors="replace").rpartition(")")[2].split()
    except (FileNotFoundError, ProcessLookupError):
        return None if _PROC.joinpath("self", "stat").exists() else _running(pid)
    return None if fields[0] in "ZX" else fields[19]


def _running(pid: int) -> str | None:
    """The same where there is no /proc: the id has to do."""
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return None
    except PermissionError:
        pass
    return "unknown"
