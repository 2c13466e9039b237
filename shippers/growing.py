"""When the tails of growing segments are shipped: last in a round, and between rounds.

Strategy: all growing segments are looked at every `ship.tail_seconds`. The schema goes first if any of them
has newly synced bytes. A tail that cannot be shipped is logged and rests for a while, and does not delay the
others; if the store is unavailable, the others wait until the next time. At level ALARM no tail is shipped,
because parts free no space.

Knows only which tails are due; `tail` ships one.
"""

from __future__ import annotations

import time
from collections.abc import Collection, Iterable
from threading import Event
from typing import Any

from shippers.completed import unexpected
from shippers.disk_space import Level, Pace
from shippers.folder import Found, State
from shippers.metrics import Metrics, Pulse, TailSeen
from shippers.node_identity import NodeFacts
from shippers.open_file_probe import nobody_writes
from shippers.scan import Scanner, View
from shippers.schema_snapshot import SchemaShipper
from shippers.sign_off import CaughtUp
from shippers.tail import Tail
from shippers.upload import is_unanswered
from writetime.cassandra.commitlog.descriptor import waits_for_reader
from writetime.config.node import NodeConfig
from writetime.errors import ShipError, WritetimeError
from writetime.storage import sent_bytes
from writetime.storage.layout import SegmentName, SegmentRef
from writetime.storage.store import Store

_REST_SECONDS = 60.0
"""Seconds before a failed tail is retried: the comparison reads all of it."""
_UPGRADE = "Upgrade writetime on this node and where batches run. No segment is lost: they wait in the bucket until then."


class GrowingSegments:
    """The growing segments of one node, and what is known of their tails."""

    def __init__(
        self,
        node: NodeConfig,
        store: Store,
        scanner: Scanner,
        schema: SchemaShipper,
        pace: Pace,
        stop: Event,
        metrics: Metrics,
        pulse: Pulse,
        log: Any,
    ) -> None:
        self._every = node.ship.tail_seconds
        self._folder = node.cdc_raw
        self._scanner = scanner
        self._schema = schema
        self._pace = pace
        self._stop = stop
        self._metrics = metrics
        self._pulse = pulse
        self._log = log
        self._tail = Tail(store, node.cdc_raw, node.state)
        self._unknown: set[int] = set()
        self._resting: dict[SegmentName, tuple[float, WritetimeError]] = {}
        self.due_at = 0.0
        """When tails are due, in seconds of `time.monotonic`."""
        self.seen: list[TailSeen] = []
        """How far the tails were shipped the last time."""
        self.failed: list[WritetimeError] = []
        """The errors of the last time."""
        self.caught_up: CaughtUp | None = None
        """The last scan at which nothing synced was unshipped, as of the shipping that followed it."""

    def ship_if_due(self, facts: NodeFacts | None) -> None:
        """Ship new parts of growing segments, if due. `facts` is None if the node is not identified yet."""
        if self._every is None or time.monotonic() < self.due_at:
            return
        self.due_at = time.monotonic() + self._every
        self.failed = []
        scanned = time.monotonic()
        try:
            view = self._scanner.scan()
        except ShipError as error:
            self.failed.append(error)
            return
        if facts is None or view.level is Level.ALARM:
            return
        growing = [item for item in view.here if item.state is State.GROWING]
        readable = [item for item in growing if item.segment and not self._waits_for_reader(item.segment)]
        self._tail.keep({item.segment for item in growing if item.segment})
        if any(item.reached is not None and item.reached[0] > (self._shipped_to(facts, item) or 0) for item in growing):
            # Newly synced mutations may need the current schema.
            self._schema.ship(facts.name)
        self._ship(facts, readable)
        self.seen = [TailSeen(item.name, *item.reached, self._shipped_to(facts, item)) for item in growing if item.reached is not None]
        self._metrics.saw_tails(self.seen)
        if self._has_caught_up(facts, view, growing):
            self.caught_up = CaughtUp(view.at, scanned, self._is_in_use(view))

    def _waits_for_reader(self, segment: SegmentName) -> bool:
        """Whether the version is unknown: where its sections end cannot be told, so the segment is shipped whole
        when completed. Logged once a version."""
        if not waits_for_reader(segment.version):
            return False
        if segment.version not in self._unknown:
            self._unknown.add(segment.version)
            self._log.warning("commit log version is unknown, shipping its segments when completed", version=segment.version, hint=_UPGRADE)
        return True

    def _has_caught_up(self, facts: NodeFacts, view: View, growing: Collection[Found]) -> bool:
        """Whether everything is shipped that was synced at the scan. An idx that is being rewritten hides
        what is synced: it is empty, or has a smaller number than what is shipped."""
        if not view.all_shipped or self.failed or self._stop.is_set():
            return False
        return all(item.reached is not None and (self._shipped_to(facts, item) or 0) == item.reached[0] for item in growing)

    def _is_in_use(self, view: View) -> bool:
        """Whether a process has a segment open for writing, as far as the kernel can say."""
        # The youngest first: a running node writes to it.
        its = (item for item in reversed(view.here) if item.state in (State.PREALLOCATED, State.GROWING))
        return any(nobody_writes(self._folder / item.name) is not True for item in its)

    def _ship(self, facts: NodeFacts, growing: Iterable[Found]) -> None:
        for item in growing:
            if self._stop.is_set() or any(map(is_unanswered, self.failed)):
                break
            if item.reached is not None and (trouble := self._ship_tail(facts, item)) is not None:
                self.failed.append(trouble)

    def _shipped_to(self, facts: NodeFacts, item: Found) -> int | None:
        """How far a growing segment is shipped, in the positions of its idx. None if unknown."""
        if item.segment is None:
            return None
        place = self._tail.reached(SegmentRef(facts.name, item.segment))
        return None if place is None else place.logical

    def _ship_tail(self, facts: NodeFacts, item: Found) -> WritetimeError | None:
        """Ship one segment's tail; return the error, if any.

        Retried at the next scan if the store was unavailable, otherwise after `_REST_SECONDS`.
        """
        assert item.segment is not None
        assert item.reached is not None
        since, trouble = self._resting.get(item.segment, (0.0, None))
        if trouble is not None and time.monotonic() < since + _REST_SECONDS:
            return trouble
        self._resting.pop(item.segment, None)
        ref = SegmentRef(facts.name, item.segment)
        before = sent_bytes.sent()
        try:
            for part in self._tail.ship(ref, *item.reached, facts.metadata()):
                self._log.info("part shipped", segment=item.name, object=part.name, bytes=part.size)
                self._metrics.shipped_part(part.size)
                self._pace.spent(sent_bytes.sent() - before)
                before = sent_bytes.sent()
                self._pace.wait(lambda: self._scanner.level is not Level.OK)
                self._pulse.beat()
        except WritetimeError as error:
            self._log.error("failed to ship a tail", segment=item.name, **error.as_dict())
            self._metrics.failed(type(error).__name__)
            if not is_unanswered(error):
                self._resting[item.segment] = time.monotonic(), error
            return error
        except Exception as error:  # noqa: BLE001
            # Whatever is wrong with one segment, it delays no other.
            self._log.exception("failed to ship a tail unexpectedly", segment=item.name, error=type(error).__name__, message=str(error))
            self._metrics.failed(type(error).__name__)
            failure = unexpected(error, "ship a tail", self._folder / item.name)
            self._resting[item.segment] = time.monotonic(), failure
            return failure
        finally:
            self._pace.spent(sent_bytes.sent() - before)
        return None
