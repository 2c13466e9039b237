"""Segments whose upload was tried and which are still here: the store may hold them.

Strategy: they are recorded in the state folder when an attempt fails, so that a shipper run by cron, or one that is restarted
again and again, does not send them each time. All others are not looked for before they are sent: without the right to list,
a look for an object that does not exist is refused. Without the record, a segment is sent once more. Knows no files or objects.
"""

from __future__ import annotations

import json
from contextlib import suppress
from pathlib import Path
from typing import Final

from shippers import state_file
from writetime.errors import NotASegment
from writetime.storage.layout import SegmentName

NOTE: Final = "tried.json"
MOST: Final = 1000
"""How many are recorded, the latest: more fail only if they are few enough to be sent once more."""


class Tried:
    """The segments of one node that were tried with one store. `state` is the shipper's state folder."""

    def __init__(self, state: Path, store: str) -> None:
        self._note = state / NOTE
        self._store = store
        self._segments = dict.fromkeys(_recalled(self._note, store))

    def __contains__(self, segment: SegmentName) -> bool:
        return segment in self._segments

    def add(self, segment: SegmentName) -> None:
        if segment not in self._segments:
            self._segments[segment] = None
            while len(self._segments) > MOST:
                del self._segments[next(iter(self._segments))]
            self._record()

    def discard(self, segment: SegmentName) -> None:
        if segment in self._segments:
            del self._segments[segment]
            self._record()

    def _record(self) -> None:
        with suppress(OSError):
            segments = [each.filename for each in self._segments]
            state_file.replace(self._note, json.dumps({"store": self._store, "segments": segments}))


def _recalled(note: Path, store: str) -> list[SegmentName]:
    """The record for that store; empty if missing or unreadable."""
    try:
        noted = json.loads(note.read_bytes())
        return [SegmentName.parse(each) for each in noted["segments"]] if noted["store"] == store else []
    except (OSError, ValueError, KeyError, TypeError, RecursionError, NotASegment):
        return []
