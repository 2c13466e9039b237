"""One scan of everything the shipper handles on its node: cdc_raw, the spill folders, and the free space.
Changes nothing.
"""

from __future__ import annotations

import time
from collections.abc import Collection
from dataclasses import dataclass
from pathlib import Path
from typing import Self

from shippers import after_crash, disk_space, metrics, spill
from shippers.disk_space import Level, Space
from shippers.folder import Found, State, classify, look
from shippers.node_identity import answers
from writetime.config.node import NodeConfig
from writetime.errors import ShipError

OURS = (State.COMPLETED, State.AFTER_CRASH)
"""States of segments to ship and delete."""
THE_NODES = (State.PREALLOCATED, State.GROWING, State.MOVED_IN)
"""States of segments that the node still owns."""


@dataclass(frozen=True, slots=True)
class View:
    """The result of a scan.

    `here`: files in cdc_raw; `aside`: files in spill folders, with their folder; `unclear`: segments that the
    node may still write to; `spills`: all readable spill folders; `lost`: errors of those that cannot be
    read.
    """

    at: float
    here: list[Found]
    aside: list[tuple[Path, Found]]
    unclear: list[Found]
    space: Space
    level: Level
    spills: list[Path]
    lost: list[ShipError]

    @classmethod
    def of(cls, node: NodeConfig, limit: int | None, *, drain: bool = False) -> Self:
        """Scan. `limit` is cdc_total_space in bytes, None if unknown. With `drain` the node must be stopped.

        ShipError if a folder cannot be read, or in a drain if the node is still running.
        """
        now, found = time.time(), classify(look(node.cdc_raw))
        patience = node.ship.after_crash_seconds
        unclear: list[Found] = []
        if drain:
            found = after_crash.drain(node.cdc_raw, found, now=now, patience=patience, answers=lambda: answers(node))
        else:
            found, unclear = after_crash.settle(node.cdc_raw, found, now=now, patience=patience)
        space = disk_space.measure(node.cdc_raw, found, limit)
        spills, lost = spill.places(node.state, node.spill)
        return cls(now, found, spill.spilled(spills), unclear, space, space.level(node.ship), spills, lost)

    @property
    def all(self) -> list[Found]:
        """Files in cdc_raw, then those in spill folders."""
        return self.here + [item for _, item in self.aside]

    def count(self, states: Collection[State]) -> int:
        """Number of files in cdc_raw in one of these states."""
        return sum(item.state in states for item in self.here)

    @property
    def sight(self) -> metrics.Sight:
        """The scan as numbers."""
        aside = [item for _, item in self.aside if item.state in OURS]
        ours = [item for item in self.here if item.state in OURS] + aside
        return metrics.Sight(
            at=self.at,
            level=self.level.text,
            used=self.space.used,
            limit=self.space.limit,
            share=self.space.share,
            free=self.space.free,
            to_ship=len(ours),
            to_ship_bytes=sum(item.size for item in ours),
            oldest=min((item.mtime for item in ours), default=None),
            waiting=self.count(THE_NODES),
            foreign=self.count((State.FOREIGN,)),
            spilled=len(aside),
            spilled_bytes=sum(item.size for item in aside),
        )
