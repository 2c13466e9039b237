"""When a file was last written, as far as its mtime can be believed.

Strategy: a clock that was ahead, a restored copy, or a file system with 64-bit times leaves mtimes in the future, some
beyond what dates can express. The age of such a file counts from when the shipper first saw it with that size and that
mtime, by this machine's clock now. That is recorded in the state folder, because `--once` and `--drain` look once; without
the record the age begins anew. All other files keep their mtime. Knows nothing about segments.
"""

from __future__ import annotations

import json
import os
import time
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import Final, NamedTuple

from shippers import state_file

NOTE: Final = "write_times.json"
_SLACK: Final = 60.0
"""Seconds by which an mtime may be ahead: the clock of a file server is never quite this machine's."""
_FORGETS_EVERY: Final = 60.0
"""Seconds between two looks for files that are gone."""


class _Seen(NamedTuple):
    size: int
    mtime: float
    first: float


def is_believable(mtime: float, now: float) -> bool:
    """Whether a file can have been written then (s since the epoch). `mtime` of a clock that was set back is: it is old."""
    return 0 <= mtime <= now + _SLACK


def moment(mtime: float) -> datetime:
    """The time of a write in UTC: not before the epoch, and not after now."""
    return datetime.fromtimestamp(min(max(0.0, mtime), time.time()), UTC)


class WriteTimes:
    """The last writes to files of one node. `state` is the shipper's state folder."""

    def __init__(self, state: Path) -> None:
        self._note = state / NOTE
        self._seen: dict[str, _Seen] | None = None
        self._changed = False
        self.odd: dict[str, float] = {}
        """Files that were found with a new mtime that is not believed, and it."""
        self._forgets_at = 0.0

    def of(self, path: Path, size: int, mtime: float, now: float) -> float:
        """The last write to a file in s since the epoch. `now` is the time of the scan."""
        key = str(path)
        if is_believable(mtime, now):
            return mtime
        if self._seen is None:
            self._seen = _recalled(self._note)
        seen = self._seen.get(key)
        if seen is None or seen[:2] != (size, mtime) or seen.first > now:
            seen = self._seen[key] = _Seen(size, mtime, now)
            self._changed, self.odd[key] = True, mtime
        return seen.first

    def keep(self) -> None:
        """Record what was first seen, and forget now and then what is gone. Without a record the ages begin anew."""
        if self._seen and time.monotonic() >= self._forgets_at:
            self._forgets_at = time.monotonic() + _FORGETS_EVERY
            there = {key: seen for key, seen in self._seen.items() if os.path.lexists(key)}
            self._seen, self._changed = there, self._changed or len(there) < len(self._seen)
        if not self._changed:
            return
        with suppress(OSError):
            state_file.replace(self._note, json.dumps(self._seen))
            self._changed = False


def _recalled(note: Path) -> dict[str, _Seen]:
    """The record; empty if missing or unreadable."""
    try:
        noted = json.loads(note.read_bytes())
        return {str(key): _Seen(int(size), float(mtime), float(first)) for key, (size, mtime, first) in noted.items()}
    except (OSError, ValueError, OverflowError, KeyError, TypeError, AttributeError, RecursionError):
        return {}
