"""Completed segments put aside while the store is down: renamed out of cdc_raw, to be shipped from there.

A rename on one file system copies nothing and frees the space that Cassandra counts; the disk's own is not freed. The log goes first,
then its idx: a death in between leaves an idx without a log, which is how an interrupted deletion looks too, but for the log that lies
here; the idx follows it then, as it says how the segment ended. What lies here was completed, with an idx or without. Nothing is ever
overwritten: a name that is taken stays in cdc_raw.

Each folder that segments were put into is noted in the shipper's own folder before the first of them, and read until it is empty, wherever
the configuration points by then.

Knows no store and does not decide when; that is for the agent.
"""

from __future__ import annotations

import contextlib
import errno
import json
import os
from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Final

from shippers.folder import Found, State, classify, look
from shippers.upload import is_there
from writetime.errors import ConfigError, ShipError, WritetimeError

NOTE: Final = "spill.json"


def trouble(spill: Path, cdc_raw: Path) -> WritetimeError | None:
    """Make the spill folder if it is not there. Why nothing can be put into it; None if all is well."""
    operation, hint = "prepare the spill folder", "Set ship.spill_dir. Until then segments stay in cdc_raw while the store is down."
    if spill.resolve().is_relative_to(cdc_raw.resolve()):
        return ConfigError("lies in cdc_raw, where Cassandra counts it", operation=operation, obj=str(spill), hint=hint)
    try:
        spill.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        return ShipError(f"cannot be made: {error.strerror}", operation=operation, obj=str(spill), hint=hint)
    if (reason := _cannot_move(spill, cdc_raw)) is not None:
        return ConfigError(reason, operation=operation, obj=str(spill), hint=hint)
    return None


def _cannot_move(spill: Path, cdc_raw: Path) -> str | None:
    """Try to rename what is not there: two mounts are found out about before the name is looked up, also those of one file system."""
    nothing = ".writetime-spill-test"
    try:
        os.rename(cdc_raw / nothing, spill / nothing)
    except OSError as error:
        if error.errno == errno.EXDEV:
            return "is on another file system or mount than cdc_raw"
        return None if error.errno == errno.ENOENT else f"nothing can be moved there: {error.strerror}"
    return None


def places(state: Path, current: Path) -> tuple[list[Path], list[ShipError]]:
    """(folders in which segments may lie, the current one first; what keeps others from being found)."""
    try:
        earlier = [path for path in _noted(state) if path != current]
    except ShipError as error:
        return [current], [error]
    hint = f"Mount its disk; what lies in it is shipped then. If nothing does, take it out of {state / NOTE}."
    lost = [
        ShipError("an earlier spill folder is not there", operation="find the spill folders", obj=str(path), hint=hint)
        for path in earlier
        if not path.is_dir()
    ]
    return [current, *(path for path in earlier if path.is_dir())], lost


def note_place(state: Path, spill: Path) -> None:
    """Note the folder, so that it is not forgotten; and forget earlier ones that are empty. One that is not there may be on a disk that is
    not mounted. ShipError if it cannot be noted."""
    noted = _noted(state)
    kept = [path for path in noted if path != spill and not (path.is_dir() and not any(path.iterdir()))]
    if [*kept, spill] == noted:
        return
    try:
        state.mkdir(parents=True, exist_ok=True)
        fresh = (state / NOTE).with_suffix(".new")
        fresh.write_text(json.dumps([str(path) for path in [*kept, spill]]), encoding="utf-8")
        _sync(fresh)
        fresh.replace(state / NOTE)
        _sync(state)
    except OSError as error:
        hint = "Check node.state_dir and its disk. Without the note nothing is put aside."
        raise ShipError(
            f"cannot be written: {error.strerror}", operation="note the spill folder", obj=str(state / NOTE), hint=hint
        ) from error


def _noted(state: Path) -> list[Path]:
    """ShipError if there is a note that cannot be read: what lies in the folders that it names would be left behind."""
    try:
        return [Path(each) for each in json.loads((state / NOTE).read_text(encoding="utf-8"))]
    except (FileNotFoundError, NotADirectoryError):
        return []
    except (OSError, ValueError, TypeError) as error:
        hint = "It is a list of folders. Correct it, or delete it if no other spill folder was ever set."
        raise ShipError(f"cannot be read: {error}", operation="find the spill folders", obj=str(state / NOTE), hint=hint) from error


def spilled(folders: Iterable[Path]) -> list[tuple[Path, Found]]:
    """What lies aside, with its folder, in each oldest first: segments as COMPLETED, leftover idx files. Nothing of a folder that is not
    there. ShipError if one cannot be read."""
    return [(spill, item) for spill in folders if os.path.isdir(spill) for item in _as_completed(classify(look(spill)))]


def put_aside(cdc_raw: Path, spill: Path, items: Iterable[Found], helps: Callable[[int], bool]) -> Iterator[Found]:
    """Move completed segments as long as it helps, given how many bytes were moved. ShipError if one cannot be moved; it is then where it
    was."""
    moved = 0
    for item in items:
        if not helps(moved):
            return
        if item.segment is None or item.state is not State.COMPLETED or (spill / item.name).exists():
            continue
        try:
            os.rename(cdc_raw / item.name, spill / item.name)
            # Without its idx a segment here is as good.
            with contextlib.suppress(FileNotFoundError):
                os.rename(cdc_raw / item.segment.idx_filename, spill / item.segment.idx_filename)
            for folder in (spill, cdc_raw):
                _sync(folder)
        except OSError as error:
            raise ShipError(f"cannot be moved: {error.strerror}", operation="put a segment aside", obj=str(cdc_raw / item.name)) from error
        moved += item.size
        yield item


def owner(folders: Iterable[Path], item: Found) -> Path | None:
    """The folder that the idx's log was put into without it; None if there is none. ShipError if that cannot be found out."""
    return next((spill for spill in folders if is_owed(spill, item)), None)


def is_owed(spill: Path, item: Found) -> bool:
    """Whether this idx belongs to a log that was put aside without it. ShipError if that cannot be found out."""
    if item.state is not State.LEFTOVER_IDX or item.segment is None:
        return False
    return is_there(spill / item.segment.filename) and not is_there(spill / item.name)


def follow(cdc_raw: Path, spill: Path, item: Found) -> None:
    """Finish a move: the idx after its log. ShipError if it cannot be moved."""
    try:
        os.rename(cdc_raw / item.name, spill / item.name)
        for folder in (spill, cdc_raw):
            _sync(folder)
    except OSError as error:
        raise ShipError(f"cannot be moved: {error.strerror}", operation="put an idx aside", obj=str(cdc_raw / item.name)) from error


def _as_completed(found: Iterable[Found]) -> Iterator[Found]:
    for item in found:
        known = item.segment is not None and item.state is not State.LEFTOVER_IDX
        yield replace(item, state=State.COMPLETED) if known else item


def _sync(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
