"""Detects segments that no node writes to any more although their idx does not say so, and segments of
Cassandra 3.11.

Strategy: the kernel knows whether a process has the file open for writing (`open_file_probe`). A segment that
is not open is still left to its node for a while: a node that restarts after a crash completes most such
segments by replay, and then they are shipped like any other. Where the kernel cannot say, age alone never
makes a segment with an idx complete; only a drain, for which an operator has stopped the node, takes it, and
only if it is old enough and the node's CQL port does not answer. The whole file is shipped, including what
follows its last sync marker, so it equals what a later replay completes.
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
_STOP_IT = "Stop the node first (nodetool drain, then stop it): later writes would not be shipped."
_WAIT = " If it is stopped, wait for ship.after_crash_seconds."


def settle(folder: Path, found: Iterable[Found], *, now: float, patience: float) -> tuple[list[Found], list[Found]]:
    """(`found` with closed segments as AFTER_CRASH or COMPLETED, segments that are old enough but may be
    open).

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
    """All segments of a stopped node that contain data, as ready to ship.

    ShipError if a segment is or may be open for writing: where the kernel cannot say, log and idx must be
    unchanged for `patience` s, and the node must not answer. `answers` is called at most once. A segment that cannot be
    read is UNREADABLE, and delays no other.
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
            if now - item.written < patience:
                raise _refusal(folder, item, "may be open for writing: it was modified recently", _STOP_IT + _WAIT)
            if not silent and answers():
                raise _refusal(folder, item, "may be open for writing: the node accepts connections", _STOP_IT)
            silent = True
        if item.state is State.MOVED_IN:
            drained.append(replace(item, state=State.COMPLETED))
        else:
            drained.append(_drained(folder, item))
    return drained


def _drained(folder: Path, item: Found) -> Found:
    try:
        return replace(item, state=State.AFTER_CRASH) if is_used(folder / item.name) else item
    except ShipError as error:
        return replace(item, state=State.UNREADABLE, reason=error.message)


def _refusal(folder: Path, item: Found, why: str, hint: str) -> ShipError:
    return ShipError(why, operation="drain cdc_raw", obj=str(folder / item.name), hint=hint)


def is_used(path: Path) -> bool:
    """Whether the first section contains data: a clean shutdown leaves preallocated segments with an empty
    one.

    A segment with an unreadable header counts as used; its reader decides.
    """
    try:
        with path.open("rb", buffering=0) as file:
            head = file.read(_HEAD)
    except OSError as error:
        raise ShipError(f"failed to read the file: {error.strerror}", operation="read a segment", obj=str(path)) from error
    try:
        _, start = descriptor.parse(head, name=path.name)
    except SegmentError:
        return any(head)
    return any(head[start + _MARKER_SIZE :])
