"""Free space for the node's CDC, its level, and the rate limit. Measures only; moves and deletes nothing.

Strategy: the nearer of two limits applies: cdc_total_space, which Cassandra compares with the sizes of the
files in cdc_raw, and the free space on their disk. A preallocated segment counts with its full size, and
Cassandra needs space for one more before it creates it; the share in use is computed against what remains
after that. At WARN the rate limit is lifted, at ALARM an operator is
alerted and segments may be spilled.
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
from writetime.config.node import ShipConfig
from writetime.errors import ShipError

_DEFAULT_SPACE = 4 << 30
_DEFAULT_SHARE_OF_DISK = 8
_LEAST_FREE = 1 << 30
_SHARE_LEFT = 0.15
"""Default share of the disk that is reserved for the database: compactions need space too."""
_STEP_SECONDS = 1.0
_WARN_AT = 0.5
_ALARM_AT = 0.8
"""Shares in use."""


class Level(IntEnum):
    OK = 0
    WARN = 1
    ALARM = 2

    @property
    def text(self) -> str:
        return self.name.lower()


@dataclass(frozen=True, slots=True)
class Space:
    """Sizes in bytes: segments in cdc_raw (`used` of `limit`), the largest `segment`, and the disk (`free` of
    `total`).
    """

    used: int
    limit: int
    segment: int
    free: int
    total: int = 0

    @property
    def share(self) -> float:
        """Share in use of the space in which Cassandra can still create a segment. From 1 on it rejects CDC
        writes.
        """
        return self.used / max(1, self.limit - self.segment)

    def level(self, config: ShipConfig) -> Level:
        reserve: int = _LEAST_FREE if config.disk_reserve is None else config.disk_reserve
        if self.share >= _ALARM_AT or self.free < reserve:
            return Level.ALARM
        if self.share >= _WARN_AT or self.free < 2 * reserve:
            return Level.WARN
        return Level.OK

    def may_spill(self, config: ShipConfig) -> bool:
        """Whether moving segments out of cdc_raw helps: the disk must have space for the segments that
        follow.
        """
        default = max(_LEAST_FREE, int(self.total * _SHARE_LEFT))
        reserve: int = default if config.disk_reserve is None else config.disk_reserve
        return self.share >= _ALARM_AT and self.free >= reserve


def measure(folder: Path, found: Iterable[Found], limit: int | None) -> Space:
    """Measure `folder`, which contains `found`. `limit` None: Cassandra's default. ShipError if the disk
    cannot be read.
    """
    try:
        disk = shutil.disk_usage(folder)
    except OSError as error:
        raise ShipError(f"failed to read the free disk space: {error.strerror}", operation="measure the disk", obj=str(folder)) from error
    sizes = [item.size for item in found]
    allowed = limit or min(_DEFAULT_SPACE, disk.total // _DEFAULT_SHARE_OF_DISK)
    return Space(sum(sizes), allowed, max(sizes, default=0), disk.free, disk.total)


class Pace:
    """Rate limit: delays the loop so that on average `rate` bytes per second pass. None: no limit."""

    def __init__(self, rate: int | None, stop: Event, clock: Callable[[], float] = time.monotonic) -> None:
        self._rate = rate
        self._stop = stop
        self._clock = clock
        self._free_at = clock()

    def spent(self, size: int) -> None:
        """Account for `size` shipped bytes."""
        if self._rate is not None:
            # Idle time gives no credit: the limit also applies after a quiet hour.
            self._free_at = max(self._free_at, self._clock() - _STEP_SECONDS) + size / self._rate

    def wait(self, in_a_hurry: Callable[[], bool]) -> None:
        """Return when the average allows more, when `in_a_hurry()` is true, or when the shipper must stop."""
        while (left := self._free_at - self._clock()) > 0 and not in_a_hurry():
            if self._stop.wait(min(left, _STEP_SECONDS)):
                return
        if self._free_at > self._clock():
            self._free_at = self._clock()
