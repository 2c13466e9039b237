"""The shipper's main loop: scan cdc_raw, decide, ship, sleep.

Strategy: a round depends only on the folders and the bucket, so the shipper can be killed at any point.
Segments are shipped oldest first; the schema is shipped before the segments that were completed before it was
read. A segment that fails is logged and retried in the next round, and does not delay the others. A round
ends early in two cases: the store is unavailable or denies access for several segments in a row, or the node
runs short of space while older spilled segments are shipped; then the next round starts at once. Growing
segments are shipped last in a round, and between rounds. A stop request takes effect between two files. While
the store is unavailable or an upload hangs, a second thread spills segments if configured, because the node
keeps writing.

Knows only the order of these steps, and neither files nor objects. `scan` finds segments, `completed` and
`growing` ship them, `relief` spills them, `node_identity` identifies the node; each keeps its own state.
"""

from __future__ import annotations

import time
from collections import Counter
from dataclasses import dataclass, field, replace
from enum import Enum
from pathlib import Path
from threading import Event

import structlog

from shippers import upload
from shippers.cdc_settings import SettingsMonitor
from shippers.completed import CompletedSegments
from shippers.disk_space import Level, Pace
from shippers.folder import Found, State
from shippers.growing import GrowingSegments
from shippers.loaded import LoadedTables
from shippers.lock import FolderLock, only_shipper
from shippers.metrics import Metrics, Pulse
from shippers.node_identity import Identity, Link, NodeFacts, require_node
from shippers.relief import Relief
from shippers.report import StatusReporter
from shippers.scan import OURS, THE_NODES, Scanner, View
from shippers.schema_snapshot import SchemaShipper
from shippers.sign_off import CaughtUp, SignOff
from shippers.truncations import TruncationShipper
from writetime.config.pipeline import PipelineConfig
from writetime.errors import ConfigError, ShipError, WritetimeError
from writetime.storage import layout, progress
from writetime.storage.store import Store

_IN_A_ROW = 3
_LOOK_AGAIN = 1.0
"""Seconds between two checks of the node's space while spilled segments are shipped."""


class Mode(Enum):
    """How long the shipper runs."""

    SERVICE = "until it receives a stop request"
    ONCE = "one round"
    DRAIN = "one round, including the incomplete segments of a stopped node"


@dataclass(slots=True)
class Round:
    """The result of one round."""

    shipped: Counter[upload.Outcome] = field(default_factory=Counter)
    failed: list[WritetimeError] = field(default_factory=list)
    waiting: int = 0
    foreign: int = 0
    seen: frozenset[str] = frozenset()
    """Segments that were ready to ship when the round began."""
    unanswered: int = 0
    """Consecutive segments that failed because the store was unavailable or denied access."""
    cut_short: bool = False
    """The round ended early so that the next one can ship more urgent segments first."""

    @property
    def ok(self) -> bool:
        return not self.failed

    def add(self, segment: upload.Outcome | WritetimeError) -> None:
        """Count a segment that was shipped or failed."""
        if isinstance(segment, WritetimeError):
            self.failed.append(segment)
            self.unanswered = self.unanswered + 1 if upload.is_unanswered(segment) else 0
        else:
            self.shipped[segment] += 1
            self.unanswered = 0

    def after(self, earlier: Round) -> Round:
        """Merge this result with that of an earlier round."""
        return replace(self, shipped=earlier.shipped + self.shipped, failed=earlier.failed + self.failed, seen=earlier.seen)


class Agent:
    """A shipper for one cdc_raw folder.

    `link` is None if the node is not queried. `pause` is the base of the back-off in seconds.
    """

    def __init__(self, config: PipelineConfig, store: Store, *, link: Link | None, stop: Event, pause: float = 0.5) -> None:
        self._node = require_node(config)
        self._link = link
        self._stop = stop
        self.metrics = Metrics()
        self.pulse = Pulse()
        self._log = structlog.get_logger("ship").bind(folder=str(self._node.cdc_raw), store=store.url)
        self._settings = SettingsMonitor(self._log)
        self._scanner = Scanner(self._node, self.metrics, self._log)
        self._identity = Identity(config, link, self._settings, self._log)
        self._facts: NodeFacts | None = None
        """The identity in the last round that could determine it."""
        self._schema = SchemaShipper(self._node, store, link, self._log)
        self._truncations = TruncationShipper(store, self._node.state, self._log)
        self._loaded = LoadedTables(self._node, self._log)
        self._reporter = StatusReporter(store, self._node.state, self._log)
        self._relief = Relief(self._node, self._scanner, self.metrics, self.pulse, self._log)
        self._looked = 0.0
        self._finished: CaughtUp | None = None
        pace = Pace(self._node.ship.rate, stop)
        self._completed = CompletedSegments(
            store, self._node.state, self._scanner, self._relief, pace, stop, pause, self.metrics, self.pulse, self._log
        )
        self._growing = GrowingSegments(self._node, store, self._scanner, self._schema, pace, stop, self.metrics, self.pulse, self._log)
        self._sign_off = SignOff(None if link is None else link.ring, config.cluster.datacenters, self._log, self._settings.forget)

    def run(self, mode: Mode) -> bool:
        """Ship until stopped, or for one round. Return whether the last round shipped everything.

        ShipError if another shipper holds the folder.
        """
        with (
            only_shipper(self._node.cdc_raw) as lock,
            progress.reported_to(self.pulse.beat),
            self._relief.prepared(in_background=mode is Mode.SERVICE),
        ):
            while True:
                done = self._survive_round(mode, lock)
                if mode is not Mode.SERVICE or self._pause_is_last():
                    return done

    def round(self, *, drain: bool = False) -> Round:
        """Scan the folder and ship its segments. Raises only errors that concern the whole folder or node."""
        self.pulse.beat()
        self._ask_settings()
        self._relief.begin_round()
        view = self._scanner.scan(drain=drain)
        if self._relief.finish_moves(view):
            view = self._scanner.scan(drain=drain)
        seen_now = frozenset(item.name for item in view.all if item.state in OURS)
        result = Round(waiting=view.count(THE_NODES), foreign=view.count((State.FOREIGN,)), seen=seen_now)
        self._scanner.log_foreign(view.here)
        result.failed += self._scanner.unreadable(view)
        try:
            self._facts = facts = self._identity.determine()
        except ShipError as error:
            # Without the node's identity, segments have no object names. They can still be spilled.
            result.failed.append(error)
            self._relief.make_room()
            self._scanner.note(result.failed, self._growing.seen)
            raise
        self._loaded.look_if_due()
        self._report(facts, result)
        self._schema.ship(facts.name)
        if self._link is not None:
            self._truncations.ship(facts.name, self._link.truncations)
        self._ship_completed(facts, view, result)
        if not result.unanswered and not drain:
            self._growing.ship_if_due(facts)
            if not self._node.ship.tail_seconds:
                self._note_finished()
        self._report(facts, result)
        if result.unanswered:
            self._relief.make_room()
        elif not drain:
            result.failed += self._growing.failed
        self._scanner.note(result.failed, self._growing.seen)
        return result

    def _ship_completed(self, facts: NodeFacts, view: View, result: Round) -> None:
        """Ship the segments of a scan until all are shipped, the store is unavailable or the round is cut
        short.
        """
        self._looked = time.monotonic()
        for folder, item in self._in_order(view):
            if self._stop.is_set() or result.unanswered >= _IN_A_ROW:
                break
            if folder != self._node.cdc_raw and self._has_come_short(result):
                result.cut_short = True
                break
            if item.state is State.LEFTOVER_IDX:
                self._remove_leftover(folder, item, result)
            if item.state in OURS and self._scanner.confirms(folder, item) and self._relief.claim(item):
                try:
                    result.add(self._completed.ship(facts, folder, item, retry=not result.unanswered))
                finally:
                    self._relief.release()
                self._report(facts, result)

    def _note_finished(self) -> None:
        """Without tails, everything is shipped up to the end of the youngest finished segment, if no other
        waits."""
        scanned = time.monotonic()
        youngest, view = self._completed.youngest, self._scanner.scan()
        if youngest is None or not view.all_shipped:
            return
        segment, written = youngest
        # One that a crash has left unfinished is shipped later.
        if not any(item.state is State.GROWING and item.segment is not None and item.segment < segment for item in view.all):
            self._finished = CaughtUp(written, scanned)

    def _pause_is_last(self) -> bool:
        """Wait for the next round and ship tails meanwhile. Return whether the shipper was asked to stop."""
        if self._node.ship.tail_seconds is None:
            self.pulse.beat(rest=self._node.poll_seconds)
            return self._stop.wait(self._node.poll_seconds)
        until = time.monotonic() + self._node.poll_seconds
        while (left := until - time.monotonic()) > 0:
            tail = max(0.0, self._growing.due_at - time.monotonic())
            self.pulse.beat(rest=min(left, tail))
            if self._stop.wait(min(left, tail)):
                return True
            if tail < left:
                self.pulse.beat()
                self._growing.ship_if_due(self._facts)
                if self._facts is not None:
                    self._report(self._facts, Round())
        return self._stop.is_set()

    def _survive_round(self, mode: Mode, lock: FolderLock) -> bool:
        """Run a round. As a service, log its errors and continue, unless a later round cannot succeed
        either."""
        try:
            lock.renew()
            result = self.round(drain=mode is Mode.DRAIN)
            while result.cut_short and not self._stop.is_set():
                result = self.round(drain=mode is Mode.DRAIN).after(result)
        except ConfigError:
            raise
        except WritetimeError as error:
            if mode is not Mode.SERVICE:
                raise
            self.metrics.failed(type(error).__name__)
            self._log.error("round failed", **error.as_dict())
            return False
        except Exception as error:
            # An unexpected error must not end the service: the node would run out of space.
            if mode is not Mode.SERVICE:
                raise
            self.metrics.failed(type(error).__name__)
            self._log.exception("round failed unexpectedly", error=type(error).__name__, message=str(error))
            return False
        if mode is not Mode.SERVICE or result.shipped or result.failed:
            counts = {outcome.name.lower(): count for outcome, count in result.shipped.items()}
            self._log.info("round finished", **counts, failed=len(result.failed), waiting=result.waiting, foreign=result.foreign)
        return result.ok and (mode is Mode.SERVICE or self._nothing_left(result, drain=mode is Mode.DRAIN))

    def _nothing_left(self, result: Round, *, drain: bool) -> bool:
        """Whether every segment was shipped, by another scan: a round may have been interrupted or, in a
        drain, too early.

        Segments that a running node completed meanwhile are left to the next run.
        """
        view = self._scanner.scan(drain=drain)
        ours = (*OURS, State.UNREADABLE) if drain else OURS
        left = [item.name for item in view.all if item.state in ours and (drain or item.name in result.seen)]
        if left:
            self._log.error("segments left unshipped", left=len(left), oldest=left[0], hint="Run it again. Do not wipe the node yet.")
        return not left and not (drain and view.lost)

    def _report(self, facts: NodeFacts, result: Round) -> None:
        """Write the node's status to the bucket, if it is due and the store is available."""
        if not result.unanswered and (view := self._scanner.view) is not None:
            settings = self._settings.known
            caught_up = self._growing.caught_up or self._finished
            tails, loaded = self._growing.seen, self._loaded.found
            self._reporter.write_if_due(facts, view, tails, settings, lambda: self._sign_off.of(caught_up, settings), loaded)

    def _in_order(self, view: View) -> list[tuple[Path, Found]]:
        """Segments oldest first; if space is short, those in cdc_raw first, since only these free CDC
        space."""
        here = [(self._node.cdc_raw, item) for item in view.here if item.segment is not None]
        aside = [found for found in view.aside if found[1].segment is not None]
        if self._scanner.level is not Level.OK:
            return here + aside
        # The sort is stable: of two segments with the same name, the spilled one is older.
        return sorted(aside + here, key=lambda found: found[1].segment or layout.SegmentName(0, 0))

    def _has_come_short(self, result: Round) -> bool:
        """Whether the space level is ALARM and the node completed segments since the round began: they are
        more urgent.

        Shipping the backlog of a long outage takes time, and cdc_raw fills again meanwhile.
        """
        if time.monotonic() < self._looked + _LOOK_AGAIN:
            return False
        view = self._scanner.scan()
        self._looked = time.monotonic()
        return view.level is Level.ALARM and any(item.state in OURS and item.name not in result.seen for item in view.here)

    def _ask_settings(self) -> None:
        """Read the node's settings, if due. Its cdc_total_space applies unless the configuration sets one."""
        if self._link is None:
            return
        self._settings.refresh(self._link.settings)
        if (found := self._settings.known) is not None:
            self.metrics.saw_settings(found)
            self._scanner.limit = self._node.ship.cdc_total_space or found.cdc_total_space

    def _remove_leftover(self, folder: Path, item: Found, result: Round) -> None:
        try:
            self._relief.remove_leftover(folder, item)
        except ShipError as error:
            self._log.error("failed to delete a leftover idx", **error.as_dict())
            self.metrics.failed(type(error).__name__)
            result.failed.append(error)
