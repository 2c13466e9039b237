"""Segments that no node writes to any more though nothing in the folder says so, and those of 3.11, of which nothing ever does.

Strategy: the kernel is asked whether a process has the file open for writing (`writer`). What nobody writes to is left to its node for a
while all the same: one that comes back after a crash completes most such segments itself, and then they are shipped like any other. Where
the kernel cannot say, a segment with an idx is never taken for finished by its age alone; only a drain, for which a person has stopped the
node, takes it, and only if neither its age nor an answer on the node's port speaks against that. The whole file is shipped, with what
follows its last sync marker: so it equals what a replay completes later.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import replace
from pathlib import Path

from shippers.folder import Found, State
from shippers.open_file_probe import nobody_writes
from writetime.cassandra.commitlog import descriptor
from writetime.errors import SegmentError, ShipError

_ASKED = (State.PREALLOCATED, State.GROWING, State.MOVED_IN)
_HEAD = 1 << 16
_MARKER_SIZE = 8
_STOP_IT = "Stop the node first (nodetool drain, then stop it): what it writes from now on would be left behind."
_WAIT = " If it is stopped, wait until ship.after_crash_seconds are over."


def settle(folder: Path, found: Iterable[Found], *, now: float, patience: float) -> tuple[list[Found], list[Found]]:
    """(`found` with what nobody writes to as AFTER_CRASH or COMPLETED, those that are old enough but the kernel could not say).

    `now` in s since the epoch, `patience` in s after the last write.
    """
    settled: list[Found] = []
    unclear: list[Found] = []
    for item in found:
        old = now - item.mtime >= patience
        if item.state is State.MOVED_IN:
            alone = nobody_writes(folder / item.name)
            done = old if alone is None else alone
            settled.append(replace(item, state=State.COMPLETED) if done else item)
        elif item.state is State.GROWING and old:
            alone = nobody_writes(folder / item.name)
            settled.append(replace(item, state=State.AFTER_CRASH) if alone else item)
            unclear += [item] if alone is None else []
        else:
            settled.append(item)
    return settled, unclear


def drain(folder: Path, found: Iterable[Found], *, now: float, patience: float, answers: Callable[[], bool]) -> list[Found]:
    """Everything that anything was written into, the node being stopped.

    ShipError if a process still has one open for writing, or may have: where the kernel cannot say, log and idx must not have been written
    to for `patience` s, and the node must not answer. `answers` is asked at most once.
    """
    drained = []
    silent = False
    for item in found:
        if item.state not in _ASKED:
            drained.append(item)
            continue
        alone = nobody_writes(folder / item.name)
        if alone is False:
            raise _refusal(folder, item, "is open for writing", _STOP_IT)
        if alone is None:
            if now - _last_write(folder, item) < patience:
                raise _refusal(folder, item, "may be open for writing: it was written to a short time ago", _STOP_IT + _WAIT)
            if not silent and answers():
                raise _refusal(folder, item, "may be open for writing: the node answers", _STOP_IT)
            silent = True
        if item.state is State.MOVED_IN:
            drained.append(replace(item, state=State.COMPLETED))
        else:
            drained.append(replace(item, state=State.AFTER_CRASH) if is_used(folder / item.name) else item)
    return drained


def _refusal(folder: Path, item: Found, why: str, hint: str) -> ShipError:
    return ShipError(why, operation="drain cdc_raw", obj=str(folder / item.name), hint=hint)


def _last_write(folder: Path, item: Found) -> float:
    """In s since the epoch, to the log or its idx: a node writes to the log through a mapping, whose time may lag behind."""
    assert item.segment is not None
    try:
        return max(item.mtime, (folder / item.segment.idx_filename).stat().st_mtime)
    except FileNotFoundError:
        return item.mtime
    except OSError as error:
        raise _refusal(folder, item, f"its idx cannot be looked at: {error.strerror}", _STOP_IT) from error


def is_used(path: Path) -> bool:
    """Whether a first section has anything in it: a node that stops in order leaves prepared segments with an empty one.

    One whose header cannot be read counts as used: it is for the reader to judge.
    """
    try:
        with path.open("rb", buffering=0) as file:
            head = file.read(_HEAD)
    except OSError as error:
        raise ShipError(f"cannot be read: {error.strerror}", operation="look into a segment", obj=str(path)) from error
    try:
        _, start = descriptor.parse(head, name=path.name)
    except SegmentError:
        return any(head)
    return any(head[start + _MARKER_SIZE :])
