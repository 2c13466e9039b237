"""How much room is left for the node's CDC, and what follows from it for the shipper. Measures and judges; moves and deletes nothing.

Strategy: two limits count, whichever is nearer: cdc_total_space, which Cassandra holds against the sizes of the files in cdc_raw, and
the free room on their disk. A preallocated segment counts with its full size, and the node needs room for one more before it creates
one, so a share is one of what is left after that. From OK over WARN to ALARM a level only says what the configuration says: at WARN
the rate limit is lifted, at ALARM a person is called, and files may be put aside (`spill`).
"""

from __future__ import annotations

import shutil
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from enum import IntEnum
from pathlib import Path
from threading import Event

from shippers.folder import Found
from writetime.config.pipeline import ShipConfig
from writetime.errors import ShipError

_DEFAULT_SPACE = 4 << 30
_DEFAULT_SHARE_OF_DISK = 8
_LEAST_FREE = 1 << 30
_SHARE_LEFT = 0.15
"""Of the disk, which is left to the database unless the configuration says otherwise: a compaction needs room too."""
_STEP_SECONDS = 1.0


class Level(IntEnum):
    OK = 0
    WARN = 1
    ALARM = 2

    @property
    def text(self) -> str:
        return self.name.lower()


@dataclass(frozen=True, slots=True)
class Space:
    """Room in bytes: `used` of `limit` by segments in cdc_raw, the largest of them with `segment`, and `free` of `total` on the disk."""

    used: int
    limit: int
    segment: int
    free: int
    total: int = 0

    @property
    def share(self) -> float:
        """Of what may be in use before Cassandra can create no further segment. 1 and more: it refuses CDC writes."""
        return self.used / max(1, self.limit - self.segment)

    def level(self, config: ShipConfig) -> Level:
        reserve: int = _LEAST_FREE if config.disk_reserve is None else config.disk_reserve
        if self.share >= config.alarm_at or self.free < reserve:
            return Level.ALARM
        if self.share >= config.warn_at or self.free < 2 * reserve:
            return Level.WARN
        return Level.OK

    def may_spill(self, config: ShipConfig) -> bool:
        """Whether moving segments out of cdc_raw helps, and the disk has room for those that the node then goes on to write."""
        default = max(_LEAST_FREE, int(self.total * _SHARE_LEFT))
        reserve: int = default if config.disk_reserve is None else config.disk_reserve
        return self.share >= config.alarm_at and self.free >= reserve


def measure(folder: Path, found: Iterable[Found], limit: int | None) -> Space:
    """The room of `folder`, whose content is `found`. `limit` None: Cassandra's own default. ShipError if the disk cannot be asked."""
    try:
        disk = shutil.disk_usage(folder)
    except OSError as error:
        raise ShipError(f"cannot be measured: {error.strerror}", operation="look at the disk", obj=str(folder)) from error
    sizes = [item.size for item in found]
    allowed = limit or min(_DEFAULT_SPACE, disk.total // _DEFAULT_SHARE_OF_DISK)
    return Space(sum(sizes), allowed, max(sizes, default=0), disk.free, disk.total)


class Pace:
    """Holds back the loop so that on average no more than `rate` bytes a second pass. None: as fast as it goes."""

    def __init__(self, rate: int | None, stop: Event, clock: Callable[[], float] = time.monotonic) -> None:
        self._rate = rate
        self._stop = stop
        self._clock = clock
        self._free_at = clock()

    def spent(self, size: int) -> None:
        """So many bytes have been shipped."""
        if self._rate is not None:
            # What was left unused before does not count: after a quiet hour the limit holds as well.
            self._free_at = max(self._free_at, self._clock() - _STEP_SECONDS) + size / self._rate

    def wait(self, in_a_hurry: Callable[[], bool]) -> None:
        """Return once the average allows more, or as soon as there is a hurry or the shipper is to stop."""
        while (left := self._free_at - self._clock()) > 0 and not in_a_hurry():
            if self._stop.wait(min(left, _STEP_SECONDS)):
                return
        if self._free_at > self._clock():
            self._free_at = self._clock()
