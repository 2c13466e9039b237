"""Completed segments put aside while the store is down: renamed out of cdc_raw, to be shipped from there.

A rename on one file system copies nothing and frees the space that Cassandra counts; the disk's own is not freed. The log goes first,
then its idx: a death in between leaves an idx without a log, which is how an interrupted deletion looks too, but for the log that lies
here; the idx follows it then, as it says how the segment ended. What lies here was completed, with an idx or without. Nothing is ever
overwritten: a name that is taken stays in cdc_raw.

Knows no store and does not decide when; that is for the agent.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from pathlib import Path

from shippers.folder import Found, State, classify, look
from shippers.upload import is_there
from writetime.errors import ConfigError, ShipError


def require_place(spill: Path, cdc_raw: Path) -> None:
    """Make the spill folder if it is not there. ConfigError if it lies in cdc_raw or on another file system."""
    if spill.resolve().is_relative_to(cdc_raw.resolve()):
        raise ConfigError(
            "lies in cdc_raw, where Cassandra counts it", operation="prepare the spill folder", obj=str(spill), hint="Set ship.spill_dir."
        )
    try:
        spill.mkdir(parents=True, exist_ok=True)
        same = spill.stat().st_dev == cdc_raw.stat().st_dev
    except OSError as error:
        raise ShipError(f"cannot be made: {error.strerror}", operation="prepare the spill folder", obj=str(spill)) from error
    if not same:
        raise ConfigError(
            "is on another file system than cdc_raw", operation="prepare the spill folder", obj=str(spill), hint="Set ship.spill_dir."
        )


def spilled(spill: Path) -> list[Found]:
    """What lies aside, oldest first: segments as COMPLETED, leftover idx files. Nothing if there is no folder."""
    return list(_as_completed(classify(look(spill)))) if os.path.isdir(spill) else []


def put_aside(cdc_raw: Path, spill: Path, items: Iterable[Found], while_: Callable[[], bool]) -> Iterator[Found]:
    """Move completed segments, as long as that holds. ShipError if one cannot be moved; it is then where it was."""
    for item in items:
        if not while_():
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
        yield item


def is_owed(spill: Path, item: Found) -> bool:
    """Whether this idx belongs to a log that was put aside without it. ShipError if that cannot be told."""
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


def _sync(folder: Path) -> None:
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
