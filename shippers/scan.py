"""One scan of everything the shipper handles on its node: cdc_raw, the spill folders, and the free space.

Strategy: a `View` is one scan. The `Scanner` of a running shipper keeps the last one, exports it as metrics
and to the status file, and logs what an operator must know; two threads call it. Changes nothing in the
folders, and knows nothing about the store.
"""

from __future__ import annotations

import time
from collections.abc import Collection, Iterable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Self

from shippers import after_crash, disk_space, metrics, spill
from shippers.disk_space import Level, Space
from shippers.folder import Found, State
from shippers.listing import Aside, Listings
from shippers.node_identity import answers
from writetime.config.node import NodeConfig
from writetime.errors import ShipError, WritetimeError

OURS = (State.COMPLETED, State.AFTER_CRASH)
"""States of segments to ship and delete."""
THE_NODES = (State.PREALLOCATED, State.GROWING, State.MOVED_IN)
"""States of segments that the node still owns."""
_CLOCK = "Check this machine's clock. The file counts as written when the shipper first saw it."
_UNCLEAR = "To remove its node, stop it first, then run `writetime ship --drain` as the user that owns the files."


@dataclass(frozen=True, slots=True)
class View:
    """The result of a scan.

    `here`: files in cdc_raw; `spilled`: those in spill folders; `unclear`: segments that the node may still write
    to; `spills`: all readable spill folders; `lost`: errors of those that cannot be read.
    """

    at: float
    here: list[Found]
    spilled: Aside
    unclear: list[Found]
    space: Space
    level: Level
    spills: list[Path]
    lost: list[ShipError]

    @classmethod
    def of(cls, node: NodeConfig, limit: int | None, *, drain: bool = False, listings: Listings | None = None) -> Self:
        """Scan. `limit` is cdc_total_space in bytes, None if unknown. With `drain` the node must be stopped. `listings`:
        what earlier scans have found.

        ShipError if cdc_raw cannot be read, or in a drain if the node is still running.
        """
        now, listings = time.time(), listings or Listings(node.state)
        found = listings.here(node.cdc_raw, now)
        patience = node.ship.after_crash_seconds
        unclear: list[Found] = []
        if drain:
            found = after_crash.drain(node.cdc_raw, found, now=now, patience=patience, answers=lambda: answers(node))
        else:
            found, unclear = after_crash.settle(node.cdc_raw, found, now=now, patience=patience)
        space = disk_space.measure(node.cdc_raw, found, limit)
        spills, lost = spill.places(node.state, node.spill)
        spilled, unreadable = spill.spilled(spills, listings, now)
        return cls(now, found, spilled, unclear, space, space.level(node.ship), spills, lost + unreadable)

    @property
    def aside(self) -> list[tuple[Path, Found]]:
        """Files in spill folders, with their folder."""
        return self.spilled.files

    @property
    def all(self) -> list[Found]:
        """Files in cdc_raw, then those in spill folders."""
        return self.here + [item for _, item in self.aside]

    @property
    def all_shipped(self) -> bool:
        """Whether no segment waits that the node has finished, or may have finished."""
        return not self.lost and not any(item.state in (*OURS, State.UNREADABLE, State.MOVED_IN) for item in self.all)

    def count(self, states: Collection[State]) -> int:
        """Number of files in cdc_raw in one of these states."""
        return sum(item.state in states for item in self.here)

    @property
    def sight(self) -> metrics.Sight:
        """The scan as numbers."""
        ours, aside = [item for item in self.here if item.state in OURS], self.spilled
        oldest = [item.mtime for item in ours] + ([] if aside.oldest is None else [aside.oldest])
        return metrics.Sight(
            at=self.at,
            level=self.level.text,
            used=self.space.used,
            limit=self.space.limit,
            share=self.space.share,
            free=self.space.free,
            to_ship=len(ours) + aside.segments,
            to_ship_bytes=sum(item.size for item in ours) + aside.size,
            oldest=min(oldest, default=None),
            waiting=self.count(THE_NODES),
            foreign=self.count((State.FOREIGN,)),
            spilled=aside.segments,
            spilled_bytes=aside.size,
        )


class Scanner:
    """Scans the node's folders, and reports what it finds."""

    def __init__(self, node: NodeConfig, exported: metrics.Metrics, log: Any) -> None:
        self._node = node
        self._metrics = exported
        self._log = log
        self._listings = Listings(node.state, records=True)
        self._logged: set[str] = set()
        self._noting_fails = False
        self.limit: int | None = node.ship.cdc_total_space
        """cdc_total_space in bytes; None while it is unknown."""
        self.view: View | None = None
        """The last scan."""

    @property
    def level(self) -> Level:
        """The space level at the last scan."""
        return Level.OK if self.view is None else self.view.level

    def scan(self, *, drain: bool = False) -> View:
        """Scan and update the metrics. A change of the space level is logged. ShipError as `View.of`."""
        view = View.of(self._node, self.limit, drain=drain, listings=self._listings)
        for file, mtime in self._listings.new_odd():
            self._log.warning("last write to a file is in the future or before 1970", file=file, mtime=mtime, hint=_CLOCK)
        for item in view.unclear:
            if self._is_new(item.name):
                self._log.warning("segment is incomplete and may still be open for writing", file=item.name, hint=_UNCLEAR)
        for error in view.lost:
            if self._is_new(str(error)):
                self._log.error("failed to read a spill folder", **error.as_dict())
        self._metrics.saw(view.sight)
        before, self.view = self.level, view
        if view.level is not before:
            log = {Level.OK: self._log.info, Level.WARN: self._log.warning, Level.ALARM: self._log.error}[view.level]
            space, event = view.space, "space level changed"
            log(event, level=view.level.text, used=space.used, limit=space.limit, share=round(space.share, 3), disk_free=space.free)
        return view

    def confirms(self, folder: Path, item: Found) -> bool:
        """Whether a segment is still as it was found: what was kept of it may be older than this scan."""
        return self._listings.confirms(folder, item)

    def log_foreign(self, found: Iterable[Found]) -> None:
        for item in found:
            if item.state is State.FOREIGN and self._is_new(item.name):
                self._log.warning("not a segment, ignored", file=item.name, reason=item.reason)

    def unreadable(self, view: View) -> list[ShipError]:
        """One error per segment whose idx cannot be read: whether it is completed is unknown until an
        operator repairs it.
        """
        found: list[ShipError] = []
        for folder, item in [*((self._node.cdc_raw, item) for item in view.here), *view.aside]:
            if item.state is State.UNREADABLE:
                error = ShipError(
                    item.reason,
                    operation="ship a segment",
                    obj=str(folder / item.name),
                    hint="Run the shipper as the user that owns the files, or restore their mode. It is retried in each round.",
                )
                event = "failed to read an idx" if item.reason.startswith("idx: ") else "failed to read a segment"
                self._log.error(event, **error.as_dict())
                self._metrics.failed(type(error).__name__)
                found.append(error)
        return found

    def note(self, errors: Iterable[WritetimeError], tails: Iterable[metrics.TailSeen]) -> None:
        """Record another scan and the result of a round for `--status`. A failure is only logged."""
        failed = [error.as_dict() for error in errors]
        try:
            metrics.note(self._node.state / metrics.NOTE, self.scan().sight, failed=failed, tails=[asdict(tail) for tail in tails])
            self._noting_fails = False
        except OSError as error:
            if not self._noting_fails:
                self._log.warning("failed to record the shipper's status", message=str(error), hint="Check node.state_dir and its disk.")
            self._noting_fails = True

    def _is_new(self, name: str) -> bool:
        """Whether nothing was logged under this name in this run."""
        new = name not in self._logged
        self._logged.add(name)
        return new
