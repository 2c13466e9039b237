"""The files of cdc_raw and of spill folders, scanned at a cost that does not follow the number of segments that wait.

Strategy: a segment whose idx says that it is completed does not change any more, so what was found of it is kept; only files
that are new, grow or are not understood are looked at in each scan. Names are listed again when the folder's own mtime
changes, as it does with each file that comes, goes or is renamed, whoever does that. A folder that was changed within the
last seconds is listed each time, because a change within one tick of its clock shows no new mtime. Once in `AGAIN` seconds
everything is looked at again: an idx that was rewritten in place, a network file system that answered from its cache.

Two threads call it. Knows neither the node nor the store; `folder` says what a file is.
"""

from __future__ import annotations

import os
import time
from dataclasses import replace
from pathlib import Path
from threading import RLock
from typing import Final, NamedTuple

from shippers.folder import Entry, Found, State, classify, entry, listing_failed, stem_of
from shippers.write_times import WriteTimes

AGAIN: Final = 60.0
_SLACK_NS: Final = 2 * 10**9
_FINAL: Final = frozenset({State.COMPLETED})
_FINAL_ASIDE: Final = frozenset({State.COMPLETED, State.PREALLOCATED, State.MOVED_IN})
"""In a spill folder every segment is completed, with or without an idx."""


class Aside(NamedTuple):
    """The files of one spill folder, each with its folder, oldest first. `segments`, `size` and `oldest` (last write in s
    since the epoch, None if there is none) count the segments."""

    files: list[tuple[Path, Found]]
    segments: int
    size: int
    oldest: float | None


class Listings:
    """The folders of one node. `state` is the shipper's state folder, into which `records` allows to write."""

    def __init__(self, state: Path, *, records: bool = False) -> None:
        self.times = WriteTimes(state)
        self._records = records
        self._lock = RLock()
        self._here: dict[Path, _Folder] = {}
        self._aside: dict[Path, tuple[_Folder, list[Found], Aside]] = {}

    def here(self, folder: Path, now: float) -> list[Found]:
        """As `classify(look(folder))`; not to be changed. `now`: the time of the scan. ShipError if it cannot be listed."""
        with self._lock:
            found = self._here.setdefault(folder, _Folder(folder, self.times, _FINAL)).found(now)
            self._keep_times()
            return found

    def aside(self, folder: Path, now: float) -> Aside:
        """The files of a spill folder: segments as COMPLETED, and leftover idx files. ShipError as `here`."""
        with self._lock:
            known, before, aside = self._aside.get(folder) or (_Folder(folder, self.times, _FINAL_ASIDE), [], Aside([], 0, 0, None))
            found = known.found(now) if os.path.isdir(folder) else []
            if found is not before:
                aside = _aside(folder, found)
                self._keep_times()
            self._aside[folder] = known, found, aside
            return aside

    def confirms(self, folder: Path, item: Found) -> bool:
        """Whether the files of a segment are still as they were found; if not, the next scan looks at them again. Its name
        and its inode may be those of another file since."""
        with self._lock:
            known = self._here.get(folder) or (self._aside[folder][0] if folder in self._aside else None)
            return known is None or known.confirms(item)

    def new_odd(self) -> list[tuple[str, float]]:
        """Files that were found with an impossible mtime since the last call, and it."""
        with self._lock:
            found, self.times.odd = list(self.times.odd.items()), {}
            return found

    def _keep_times(self) -> None:
        if self._records:
            self.times.keep()


class _Folder:
    """What is known of one folder."""

    def __init__(self, folder: Path, times: WriteTimes, final: frozenset[State]) -> None:
        self._folder = folder
        self._times = times
        self._final = final
        self._stamp: tuple[int, ...] = ()
        self._quiet = False
        """Whether any change since the last listing has changed the folder's mtime."""
        self._again = 0.0
        self._others: set[str] = set()
        """Names that are not those of settled segments."""
        self._settled: dict[str, Found] = {}
        """By stem."""
        self._names: dict[str, str] = {}
        """The stem of each file of a settled segment."""
        self._order: list[Found] | None = None
        self._last: list[Found] | None = None
        self._live: list[Found] = []

    def found(self, now: float) -> list[Found]:
        try:
            self._list()
        except OSError as error:
            raise listing_failed(self._folder, error) from error
        if not self._others and not self._live and self._last is not None:
            return self._last
        looked = {name: self._entry(name, now) for name in sorted(self._others)}
        # Without its log an idx would be a leftover: if a listed file is not there, the next listing tells about the other.
        vanished = {stem_of(name) for name, made in looked.items() if made is None} - {None}
        entries = [made for name, made in looked.items() if made is not None and stem_of(name) not in vanished]
        live = [self._settle(item) for item in classify(entries)]
        if self._last is None or self._order is None or live != self._live:
            self._last, self._live = self._merged(live), live
        return self._last

    def _list(self) -> None:
        """List the names, if any may have changed."""
        stat = os.stat(self._folder)
        stamp = stat.st_dev, stat.st_ino, stat.st_mtime_ns
        if stamp == self._stamp and self._quiet and time.monotonic() < self._again:
            return
        if time.monotonic() >= self._again or stamp[:2] != self._stamp[:2]:
            self._again = time.monotonic() + AGAIN
            self._settled, self._names, self._order, self._last = {}, {}, None, None
        began = time.time_ns()
        names = set(os.listdir(self._folder))
        self._stamp, self._quiet = stamp, began - stat.st_mtime_ns > _SLACK_NS
        self._others = names - self._names.keys()
        changed = {self._names[name] for name in self._names.keys() - names}
        changed |= {stem for name in self._others if (stem := stem_of(name)) in self._settled}
        for stem in changed:
            self._unsettle(stem)
        self._others &= names

    def confirms(self, item: Found) -> bool:
        """See Listings."""
        if item.segment is None or (settled := self._settled.get(item.segment.stem)) is None:
            return True
        names = (item.segment.filename, item.segment.idx_filename)
        found = classify(made for name in names if (made := self._entry(name, time.time())) is not None)
        if len(found) == 1 and found[0].state in self._final and replace(found[0], state=State.COMPLETED) == settled:
            return True
        self._unsettle(item.segment.stem)
        return False

    def _unsettle(self, stem: str) -> None:
        item = self._settled.pop(stem)
        assert item.segment is not None
        for name in (item.segment.filename, item.segment.idx_filename):
            if self._names.pop(name, None) is not None:
                self._others.add(name)
        self._order = self._last = None

    def _entry(self, name: str, now: float) -> Entry | None:
        path = self._folder / name
        made = entry(path)
        if made is None:
            return None
        written = self._times.of(path, made.size, made.mtime, now)
        return made if written == made.mtime else replace(made, mtime=written, dated=False)

    def _settle(self, item: Found) -> Found:
        """Keep what was found if it is final."""
        segment = item.segment
        if segment is None or item.state not in self._final:
            return item
        item = replace(item, state=State.COMPLETED)
        self._settled[segment.stem] = item
        for name in (segment.filename, segment.idx_filename):
            if name in self._others:
                self._others.discard(name)
                self._names[name] = segment.stem
        self._order = None
        return item

    def _merged(self, live: list[Found]) -> list[Found]:
        """Segments oldest first, then foreign files."""
        if self._order is None:
            self._order = sorted(self._settled.values(), key=_age)
        segments = [item for item in live if item.segment is not None and item.segment.stem not in self._settled]
        foreign = [item for item in live if item.segment is None]
        if segments and self._order and _age(segments[0]) < _age(self._order[-1]):
            return sorted([*self._order, *segments], key=_age) + foreign
        return [*self._order, *segments, *foreign]


def _aside(folder: Path, found: list[Found]) -> Aside:
    files = [(folder, _as_completed(item)) for item in found]
    ours = [item for _, item in files if item.state is State.COMPLETED]
    return Aside(files, len(ours), sum(item.size for item in ours), min((item.mtime for item in ours), default=None))


def _as_completed(item: Found) -> Found:
    other = item.segment is None or item.state in (State.COMPLETED, State.LEFTOVER_IDX)
    return item if other else replace(item, state=State.COMPLETED)


def _age(item: Found) -> tuple[int, int, str]:
    assert item.segment is not None
    return item.segment.id, item.segment.version, item.name
