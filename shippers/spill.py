"""Spilling: moves completed segments out of cdc_raw while the store is unavailable, to ship them from there.

Strategy: a rename on one file system copies nothing and frees the space that Cassandra counts, but not the
disk's. The log is moved first, then its idx. A crash in between leaves an idx without a log in cdc_raw, like
an interrupted deletion, but with its log in the spill folder; the idx is moved later, because it says how the
segment ended. Every segment in a spill folder is completed, with or without an idx. Nothing is overwritten:
if the name exists, the segment stays in cdc_raw.

Each spill folder is recorded in the state folder before its first segment, and read until it is empty, even
if the configuration changes meanwhile.

Knows nothing about the store and does not decide when to spill; `relief` does.
"""

from __future__ import annotations

import contextlib
import errno
import json
import os
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Final

from shippers.folder import Found, State
from shippers.listing import Aside, Listings
from shippers.upload import is_there
from writetime.errors import ConfigError, ShipError, WritetimeError

NOTE: Final = "spill.json"


def trouble(spill: Path, cdc_raw: Path) -> WritetimeError | None:
    """Create the spill folder if it is missing. Returns the error if it is unusable, otherwise None."""
    operation, hint = "prepare the spill folder", "Set ship.spill_dir. Until then segments stay in cdc_raw while the store is unavailable."
    if spill.resolve().is_relative_to(cdc_raw.resolve()):
        return ConfigError("the spill folder is inside cdc_raw, where Cassandra counts it", operation=operation, obj=str(spill), hint=hint)
    try:
        spill.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        return ShipError(f"failed to create the folder: {error.strerror}", operation=operation, obj=str(spill), hint=hint)
    if (reason := _cannot_move(spill, cdc_raw)) is not None:
        return ConfigError(reason, operation=operation, obj=str(spill), hint=hint)
    return None


def _cannot_move(spill: Path, cdc_raw: Path) -> str | None:
    """Why a file cannot be renamed into the spill folder, or None. Tries it with a missing file.

    The kernel reports EXDEV for different mounts, even of one file system, before it looks up the name.
    """
    nothing = ".writetime-spill-test"
    try:
        os.rename(cdc_raw / nothing, spill / nothing)
    except OSError as error:
        if error.errno == errno.EXDEV:
            return "the spill folder is on another file system or mount than cdc_raw"
        return None if error.errno == errno.ENOENT else f"failed to move a file there: {error.strerror}"
    return None


def places(state: Path, current: Path) -> tuple[list[Path], list[ShipError]]:
    """(spill folders that may contain segments, the current one first; errors of folders that cannot be
    read).
    """
    try:
        earlier = [path for path in _noted(state) if path != current]
    except ShipError as error:
        return [current], [error]
    hint = f"Mount its disk, then its segments are shipped. If it has none, remove it from {state / NOTE}."
    lost = [
        ShipError("an earlier spill folder is missing", operation="find the spill folders", obj=str(path), hint=hint)
        for path in earlier
        if not path.is_dir()
    ]
    return [current, *(path for path in earlier if path.is_dir())], lost


def note_place(state: Path, spill: Path) -> None:
    """Record the folder and remove earlier ones that are empty. A missing one may be on a disk that is not
    mounted.

    ShipError if that fails.
    """
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
        hint = "Check node.state_dir and its disk. Nothing is spilled until the file can be written."
        raise ShipError(
            f"failed to write the file: {error.strerror}", operation="record the spill folder", obj=str(state / NOTE), hint=hint
        ) from error


def _noted(state: Path) -> list[Path]:
    """The recorded folders. ShipError if the record is unreadable: segments in those folders would never be
    shipped.
    """
    try:
        return [Path(each) for each in json.loads((state / NOTE).read_text(encoding="utf-8"))]
    except (FileNotFoundError, NotADirectoryError):
        return []
    except (OSError, ValueError, TypeError) as error:
        hint = "It lists folders. Correct it, or delete it if no other spill folder was ever configured."
        raise ShipError(
            f"failed to read the file: {error}", operation="find the spill folders", obj=str(state / NOTE), hint=hint
        ) from error


def spilled(folders: Iterable[Path], listings: Listings, now: float) -> tuple[Aside, list[ShipError]]:
    """(the files in the spill folders, errors of folders that cannot be listed). Missing folders are skipped."""
    found: list[Aside] = []
    lost: list[ShipError] = []
    for spill in folders:
        try:
            found.append(listings.aside(spill, now))
        except ShipError as error:
            lost.append(error)
    if len(found) == 1:
        return found[0], lost
    oldest = [each.oldest for each in found if each.oldest is not None]
    files = [file for each in found for file in each.files]
    return Aside(files, sum(each.segments for each in found), sum(each.size for each in found), min(oldest, default=None)), lost


def put_aside(cdc_raw: Path, spill: Path, items: Iterable[Found], helps: Callable[[int], bool]) -> Iterator[Found]:
    """Move completed segments while `helps(moved bytes)` is true. ShipError if a segment cannot be moved; it
    then stays.
    """
    moved = 0
    for item in items:
        if not helps(moved):
            return
        if item.segment is None or item.state is not State.COMPLETED or (spill / item.name).exists():
            continue
        try:
            os.rename(cdc_raw / item.name, spill / item.name)
            # A spilled segment does not need its idx.
            with contextlib.suppress(FileNotFoundError):
                os.rename(cdc_raw / item.segment.idx_filename, spill / item.segment.idx_filename)
            for folder in (spill, cdc_raw):
                _sync(folder)
        except OSError as error:
            obj = str(cdc_raw / item.name)
            raise ShipError(f"failed to move the file: {error.strerror}", operation="spill a segment", obj=obj) from error
        moved += item.size
        yield item


def owner(folders: Iterable[Path], item: Found) -> Path | None:
    """The spill folder that contains the log of this idx but not the idx; None if there is none. ShipError if
    stat fails.
    """
    return next((spill for spill in folders if is_owed(spill, item)), None)


def is_owed(spill: Path, item: Found) -> bool:
    """Whether this idx belongs to a log that was spilled without it. ShipError if stat fails."""
    if item.state is not State.LEFTOVER_IDX or item.segment is None:
        return False
    return is_there(spill / item.segment.filename) and not is_there(spill / item.name)


def follow(cdc_raw: Path, spill: Path, item: Found) -> None:
    """Move the idx of a spilled log. ShipError if that fails."""
    try:
        os.rename(cdc_raw / item.name, spill / item.name)
        for folder in (spill, cdc_raw):
            _sync(folder)
    except OSError as error:
        raise ShipError(f"failed to move the file: {error.strerror}", operation="spill an idx", obj=str(cdc_raw / item.name)) from error


def _sync(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
