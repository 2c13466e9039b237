"""The shipper's loop: look at cdc_raw, decide, act, sleep.

Strategy: a round is complete in itself and remembers nothing that the folders and the bucket do not say, so a shipper may be killed at
any point. Segments go oldest first; the schema goes before the segments that were seen completed before it was read. One segment's
trouble is reported and left for the next round, and holds up no other; only a store that does not answer or refuses us, several segments in
a row, ends the round; and a node that runs short of space while older segments are shipped from aside, which the next round, at once, sets
right. Segments that still grow come last in a round, and between two of them. A stop request is honoured between two files.
While the store is down, or does not answer at all, a thread beside the loop puts segments aside if that is wanted: the node writes on
while an upload hangs.

Knows the order of things; what a file is say `folder` and `after_crash`, how one is shipped says `upload`, and `tail` while it grows, how
much room there is says `guard`, who the node is says `node`.
"""

from __future__ import annotations

import json
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass, field, replace
from datetime import UTC, datetime
from enum import Enum
from pathlib import Path
from threading import Event, Lock, Thread
from typing import Any

import structlog
import tenacity

from shippers import (
    disk_space,
    metrics,
    node_identity,
    report,
    schema_snapshot,
    spill,
    truncations,
    upload,
)
from shippers.cdc_settings import SettingsMonitor
from shippers.disk_space import Level, Pace
from shippers.folder import Found, State
from shippers.lock import only_shipper
from shippers.scan import OURS, THE_NODES, View
from shippers.tail import Tail
from writetime.config.pipeline import PipelineConfig
from writetime.errors import ChecksumMismatch, ConfigError, PreconditionFailed, ShipError, StoreError, WritetimeError
from writetime.storage import layout
from writetime.storage.layout import SegmentRef
from writetime.storage.store import Store

_ATTEMPTS = 5
_LONGEST_PAUSE = 30.0
_IN_A_ROW = 3
_RELIEF_SECONDS = 0.5
_HANGS = 5.0
"""Seconds after which an upload that has not come back counts as one to a store that is down, if space is short."""
_LOOK_AGAIN = 1.0
"""Seconds after which, while what was put aside is shipped, one looks again whether the node has space."""
_TAIL_RESTS = 60.0
"""Seconds that a tail with which something is wrong is left alone: the comparison reads all of it."""
_DISAGREED = 20
"""How often the schema is read again because peers do not have it yet: one that is down for long never has."""
_AFTER_CRASH = "after-crash"
_UNCLEAR = "If its node is to go, stop it first, then `writetime ship --drain`, as the user that owns the files."


class Mode(Enum):
    """How long the shipper runs."""

    SERVICE = "until it is asked to stop"
    ONCE = "one round"
    DRAIN = "one round, which takes the segments of a stopped node too"


@dataclass(slots=True)
class Round:
    """What one look at the folder came to."""

    shipped: Counter[upload.Outcome] = field(default_factory=Counter)
    failed: list[WritetimeError] = field(default_factory=list)
    waiting: int = 0
    foreign: int = 0
    seen: frozenset[str] = frozenset()
    """Segments that were to be shipped when it began."""
    unanswered: int = 0
    """Segments in a row that failed because the store did not answer, or refused us."""
    cut_short: bool = False
    """It ended before all was tried, for a round that takes what is more urgent first."""

    @property
    def ok(self) -> bool:
        return not self.failed

    def after(self, earlier: Round) -> Round:
        """Both as one."""
        return replace(self, shipped=earlier.shipped + self.shipped, failed=earlier.failed + self.failed, seen=earlier.seen)


class Agent:
    """A shipper for one cdc_raw folder. `link` is None when nothing is asked of the node; `pause` seeds the back-off, in seconds."""

    def __init__(self, config: PipelineConfig, store: Store, *, link: node_identity.Link | None, stop: Event, pause: float = 0.5) -> None:
        self._config = config
        self._node = node_identity.require_node(config)
        self._store = store
        self._link = link
        self._stop = stop
        self._pause = pause
        self._measured = upload.Measured()
        self._pace = Pace(self._node.ship.rate, stop)
        self._log = structlog.get_logger("ship").bind(folder=str(self._node.cdc_raw), store=store.url)
        self._facts: node_identity.NodeFacts | None = None
        self._named: node_identity.NodeFacts | None = None
        self._schema_version: str | None = None
        self._schema_shipped = schema_snapshot.Shipped.recall(self._node.state)
        self._disagreed = 0
        self._truncations = truncations.Shipped.recall(self._node.state)
        self._reported: set[str] = set()
        self._limit: int | None = self._node.ship.cdc_total_space
        self._settings = SettingsMonitor(self._log)
        self._level = Level.OK
        self._view: View | None = None
        self._reported_last = report.Reported.recall(self._node.state)
        self._reporting_fails = False
        self._noting_fails = False
        self._moving = Lock()
        self._in_hand: tuple[str, float] | None = None
        self._looked = 0.0
        self._put_aside: set[str] = set()
        self._store_is_down = False
        self._tail = Tail(store, self._node.cdc_raw, self._node.state)
        self._next_tail = 0.0
        self._tails: list[metrics.TailSeen] = []
        self._tails_failed: list[WritetimeError] = []
        self._next_fill = time.monotonic() + (self._node.ship.filler.every_seconds if self._node.ship.filler else 0.0)
        self._resting: dict[layout.SegmentName, tuple[float, WritetimeError]] = {}
        self.metrics = metrics.Metrics()
        self.pulse = metrics.Pulse()

    def run(self, mode: Mode) -> bool:
        """Ship until stopped, or one round. Whether the last round shipped all it could. ShipError if another shipper is here."""
        with only_shipper(self._node.cdc_raw), self._relief(mode):
            while True:
                done = self._survive_round(mode)
                if mode is not Mode.SERVICE or self._pause_is_last():
                    return done

    @contextmanager
    def _relief(self, mode: Mode) -> Iterator[None]:
        """Relieve the node meanwhile, if that is wanted."""
        if self._node.ship.when_store_is_down != "spill":
            yield
            return
        error = spill.trouble(self._node.spill, self._node.cdc_raw)
        self.metrics.can_spill(error is None)
        if error is not None:
            # What is finished is shipped all the same.
            self._log.error("segments cannot be spilled while the store is down", **error.as_dict())
        else:
            self._note_spill()
        over = Event()
        if mode is Mode.SERVICE:
            Thread(target=self._relieve, args=(over,), name="relief", daemon=True).start()
        try:
            yield
        finally:
            over.set()

    def _note_spill(self) -> None:
        """Note where segments are put aside while there is room for a note: without it none is, later."""
        try:
            spill.note_place(self._node.state, self._node.spill)
        except (ShipError, OSError) as error:
            about = error.as_dict() if isinstance(error, ShipError) else {"message": str(error)}
            self._log.error("failed to note the spill folder", **about)

    def round(self, *, drain: bool = False) -> Round:
        """One look at the folder. Raises only what concerns the folder or the node as a whole."""
        self.pulse.beat()
        self._ask_settings()
        with self._moving:
            self._put_aside.clear()
        view = self._see(drain=drain)
        if self._finish_moves(view):
            view = self._see(drain=drain)
        seen_now = frozenset(item.name for item in view.all if item.state in OURS)
        result = Round(waiting=view.count(THE_NODES), foreign=view.count((State.FOREIGN,)), seen=seen_now)
        self._report_foreign(view.here)
        result.failed += self._unreadable(view)
        try:
            facts = self._identify()
        except ShipError as error:
            # Nothing has a name yet, so nothing can be shipped; what is finished can be put aside all the same.
            result.failed.append(error)
            self._make_room()
            self._note(result)
            raise
        self._named = facts
        self._report(facts, result)
        self._ship_schema(facts)
        self._ship_truncations(facts)
        self._looked = time.monotonic()
        for folder, item in self._in_order(view):
            if self._stop.is_set() or result.unanswered >= _IN_A_ROW:
                break
            if folder != self._node.cdc_raw and self._has_come_short(result):
                result.cut_short = True
                break
            if item.state is State.LEFTOVER_IDX:
                self._remove_leftover(folder, item, result)
            if item.state in OURS and self._take_in_hand(item):
                self._ship_segment(facts, folder, item, result)
                self._in_hand = None
                self._report(facts, result)
        self._report(facts, result)
        if result.unanswered:
            self._make_room()
        elif not drain:
            self._ship_tails()
            result.failed += self._tails_failed
            self._fill(result)
        self._note(result)
        return result

    def _pause_is_last(self) -> bool:
        """Wait for the next round, and ship tails meanwhile. Whether the shipper is to stop."""
        if self._node.ship.tail_seconds is None:
            return self._stop.wait(self._node.poll_seconds)
        until = time.monotonic() + self._node.poll_seconds
        while (left := until - time.monotonic()) > 0:
            tail = max(0.0, self._next_tail - time.monotonic())
            if self._stop.wait(min(left, tail)):
                return True
            if tail < left:
                self.pulse.beat()
                self._ship_tails()
        return self._stop.is_set()

    def _survive_round(self, mode: Mode) -> bool:
        """A round whose trouble ends the run only if it is the only one, or if no later one can do better."""
        try:
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
            # A defect, or something of the machine that nobody foresaw: the node must not run out of space for it.
            if mode is not Mode.SERVICE:
                raise
            self.metrics.failed(type(error).__name__)
            self._log.exception("round failed unexpectedly", error=type(error).__name__, message=str(error))
            return False
        if mode is not Mode.SERVICE or result.shipped or result.failed:
            counts = {outcome.name.lower(): count for outcome, count in result.shipped.items()}
            self._log.info("round", **counts, failed=len(result.failed), waiting=result.waiting, foreign=result.foreign)
        return result.ok and (mode is Mode.SERVICE or self._nothing_left(result, drain=mode is Mode.DRAIN))

    def _nothing_left(self, result: Round, *, drain: bool) -> bool:
        """Whether nothing waits to be shipped, by a look of its own: a round may have been interrupted, or, at a drain, been too early for
        some. A node that runs completes segments all the time: what it has completed since is for the next run."""
        view = self._see(drain=drain)
        ours = (*OURS, State.UNREADABLE) if drain else OURS
        left = [item.name for item in view.all if item.state in ours and (drain or item.name in result.seen)]
        if left:
            self._log.error("not all is shipped", left=len(left), oldest=left[0], hint="Run it again. Do not wipe the node yet.")
        return not left and not (drain and view.lost)

    # --- what there is, and how much room

    def _see(self, *, drain: bool = False) -> View:
        """Look into the folders, and report it: in the metrics always, in the log when the level of the room changes."""
        view = View.of(self._node, self._limit, drain=drain)
        for item in view.unclear:
            if item.name not in self._reported:
                self._reported.add(item.name)
                self._log.warning("not completed for long, and it is unknown whether it is still written to", file=item.name, hint=_UNCLEAR)
        for error in view.lost:
            if str(error) not in self._reported:
                self._reported.add(str(error))
                self._log.error("an earlier spill folder cannot be read", **error.as_dict())
        self.metrics.saw(view.sight)
        self._view = view
        if view.level is not self._level:
            say = {Level.OK: self._log.info, Level.WARN: self._log.warning, Level.ALARM: self._log.error}[view.level]
            space = view.space
            say("space", level=view.level.text, used=space.used, limit=space.limit, share=round(space.share, 3), disk_free=space.free)
            self._level = view.level
        return view

    def _report(self, facts: node_identity.NodeFacts, result: Round) -> None:
        """Write the node's status into the bucket, if one is due and the store answers. That it cannot be written stops nothing."""
        now = datetime.now(UTC)
        if result.unanswered or self._view is None or self._reported_last.is_recent(now):
            return
        # While the node is down its last answer counts, also that to an earlier run.
        settings = self._settings.known or self._reported_last.settings
        due, document = report.about(self._store.url, facts, self._view.space, self._level, self._view.sight, self._tails, settings, now)
        if not self._reported_last.is_due(due):
            return
        try:
            name = report.report(self._store, facts.name, document, now)
        except StoreError as error:
            if not self._reporting_fails:
                self._log.warning("node status not written", **error.as_dict())
            self._reporting_fails = True
            if error.retriable:
                return
            # A bucket that refuses it refuses it each time: not before the next one is due.
        else:
            self._reporting_fails = False
            self._log.debug("node status written", object=name)
        self._reported_last = due
        try:
            report.note(self._node.state, due)
        except OSError as error:
            self._log.warning("failed to note the written node status", message=str(error), hint="Check node.state_dir.")

    def _in_order(self, view: View) -> list[tuple[Path, Found]]:
        """Oldest first; where space is short, those first whose deletion frees the node's."""
        here = [(self._node.cdc_raw, item) for item in view.here if item.segment is not None]
        aside = [found for found in view.aside if found[1].segment is not None]
        if self._level is not Level.OK:
            return here + aside
        # The sort is stable: of two with one name, the one that was put aside is the older.
        return sorted(aside + here, key=lambda found: found[1].segment or layout.SegmentName(0, 0))

    def _has_come_short(self, result: Round) -> bool:
        """Whether the node has got into an alarm by segments that it completed since the round began, and that come before any aside.

        Shipping a backlog of an hour's outage takes long, and cdc_raw, emptied by the spill, fills meanwhile.
        """
        if time.monotonic() < self._looked + _LOOK_AGAIN:
            return False
        view = self._see()
        self._looked = time.monotonic()
        return view.level is Level.ALARM and any(item.state in OURS and item.name not in result.seen for item in view.here)

    def _relieve(self, over: Event) -> None:
        """Beside the loop: make room while a store that is down holds it up, in a pause or in a call that does not come back."""
        while not over.wait(_RELIEF_SECONDS):
            in_hand = self._in_hand
            hangs = in_hand is not None and time.monotonic() > in_hand[1] + _HANGS
            if self._store_is_down or hangs:
                try:
                    self._make_room()
                except WritetimeError as error:
                    self._log.error("no room made", **error.as_dict())
                except Exception as error:  # noqa: BLE001
                    # The thread must live: as long as the store is down nobody else makes room.
                    self._log.exception("no room made", error=type(error).__name__, message=str(error))

    def _take_in_hand(self, item: Found) -> bool:
        """Nobody puts it aside from now on. False if somebody has."""
        with self._moving:
            if item.name in self._put_aside:
                return False
            self._in_hand = item.name, time.monotonic()
            return True

    def _make_room(self) -> None:
        """With the store down, or the node unnamed, and an alarm on: put completed segments aside, if wanted, but for the one in hand."""
        if self._node.ship.when_store_is_down != "spill":
            return
        with self._moving:
            in_hand, view = self._in_hand[0] if self._in_hand is not None else "", self._see()
            if not view.space.may_spill(self._node.ship):
                return
            candidates = [item for item in view.here if item.name != in_hand]
            try:
                if (error := spill.trouble(self._node.spill, self._node.cdc_raw)) is not None:
                    raise error
                spill.note_place(self._node.state, self._node.spill)
                for moved in spill.put_aside(self._node.cdc_raw, self._node.spill, candidates, lambda moved: self._helps(view, moved)):
                    self._put_aside.add(moved.name)
                    self.metrics.put_aside()
                    self._log.warning("put aside", segment=moved.name, spill=str(self._node.spill))
            except WritetimeError as error:
                self._log.error("not put aside", **error.as_dict())

    def _finish_moves(self, view: View) -> bool:
        """Whether an idx went after its log, which a death in the middle of a spill had left without: how it ended stands in the idx."""
        moved = False
        for item in view.here:
            try:
                with self._moving:
                    if (aside := spill.owner(view.spills, item)) is not None:
                        spill.follow(self._node.cdc_raw, aside, item)
                        moved = True
            except ShipError as error:
                self._log.error("not put aside", **error.as_dict())
        return moved

    def _helps(self, view: View, moved: int) -> bool:
        """Whether a spill still helps, after so many bytes: not where the disk itself is full, which a node that goes on writing would
        fill to the brim. By arithmetic and a look at the disk: a folder of thousands of files is not listed for each of them."""
        self.pulse.beat()
        space = disk_space.measure(self._node.cdc_raw, (), view.space.limit)
        return replace(view.space, used=view.space.used - moved, free=space.free).may_spill(self._node.ship)

    def _fill(self, result: Round) -> None:
        """Have the node finish the segment that it writes to, if that is wanted and due. A busy node, that finishes them by itself, is
        left alone, and so is one that is short of space."""
        filler = self._node.ship.filler
        if filler is None or self._link is None or self._stop.is_set():
            return
        if result.shipped:
            self._next_fill = time.monotonic() + filler.every_seconds
        if time.monotonic() < self._next_fill or self._level is not Level.OK:
            return
        self._next_fill = time.monotonic() + filler.every_seconds
        try:
            written = self._link.fill(filler, self._may_not_fill)
        except WritetimeError as error:
            # Wrongly configured or not: what is finished by itself is shipped all the same.
            self.metrics.failed(type(error).__name__)
            self._log.error("no segment filled", **error.as_dict())
        else:
            self.metrics.filled(written)
            self._log.info("segment filled", table=filler.table, bytes=written)

    def _may_not_fill(self) -> bool:
        """Whether it has to end early. Asked before each write, which is a sign of life."""
        self.pulse.beat()
        return self._stop.is_set()

    def _ask_settings(self) -> None:
        """The node's own settings, if it is time; its cdc_total_space counts where the configuration has none."""
        if self._link is None:
            return
        self._settings.refresh(self._link.settings)
        if (found := self._settings.known) is not None:
            self.metrics.saw_settings(found)
            self._limit = self._node.ship.cdc_total_space or found.cdc_total_space

    def _note(self, result: Round) -> None:
        """Note the outcome for `--status`; that it cannot be written down stops nothing."""
        failed = [error.as_dict() for error in result.failed]
        try:
            metrics.note(self._node.state / metrics.NOTE, self._see().sight, failed=failed, tails=[asdict(tail) for tail in self._tails])
            self._noting_fails = False
        except OSError as error:
            if not self._noting_fails:
                self._log.warning("failed to note the shipper's status", message=str(error), hint="Check node.state_dir and its disk.")
            self._noting_fails = True

    def _remember(self, notes: Path, facts: node_identity.NodeFacts) -> None:
        try:
            node_identity.remember(notes, facts)
        except ShipError as error:
            # Of use at a start while the node is down, and no reason to let segments wait, least of all on a full disk.
            self._log.warning("failed to persist the node's identity", **error.as_dict())

    # --- who the node is, and its schema

    def _identify(self) -> node_identity.NodeFacts:
        """Who the node is. Asked until it has answered, and anew over every new connection; until then, what was known before has to do."""
        if self._facts is not None and (self._link is None or self._link.introduced):
            return self._facts
        notes, answer, unanswered = node_identity.notes_file(self._node), {}, False
        if self._link is not None:
            try:
                answer = self._link.facts()
            except ShipError as error:
                self._log.warning("the node did not say who it is", **error.as_dict())
                unanswered = True
                if self._facts is not None:
                    return self._facts
        recalled = node_identity.recall(notes)
        facts = node_identity.merge(self._config, answer, recalled, unanswered=unanswered)
        # Of the two the notes may be the older: they cannot always be written.
        before = self._facts.host_id if self._facts is not None else recalled.get("host_id", facts.host_id)
        if answer and before != facts.host_id:
            self._settings.forget()
        if answer and before != facts.host_id and facts.host_id not in self._reported:
            self._reported.add(facts.host_id)
            hint = "Drain a node before it is wiped."
            self._log.warning("another node has this folder now; all that is in it goes by its name", was=before, hint=hint)
        if answer:
            self._remember(notes, facts)
        if answer or self._link is None:
            self._facts = facts
        return facts

    def _ship_schema(self, facts: node_identity.NodeFacts) -> None:
        """Ship the schema if its version is new to this run; a schema that cannot be had holds up no segment."""
        try:
            if (snapshot := self._new_snapshot()) is not None:
                self._put_schema(facts, snapshot)
        except ConfigError:
            raise
        except WritetimeError as error:
            self._log.warning("schema not shipped", **error.as_dict())

    def _new_snapshot(self) -> dict[str, Any] | None:
        """The node's schema if it has changed; while the node does not answer, the file of the configuration, once."""
        if self._link is not None:
            try:
                return self._link.snapshot() if self._link.schema_version() != self._schema_version else None
            except ShipError as error:
                self._log.warning("failed to ask the node for its schema", **error.as_dict())
        if self._schema_version is None and self._node.schema_file is not None:
            return _read_snapshot(self._node.schema_file)
        return None

    def _put_schema(self, facts: node_identity.NodeFacts, snapshot: dict[str, Any]) -> None:
        """Ship a snapshot that the node's prefix does not have yet. Each node ships its own: it has no right to look at another's."""
        version, agreed = snapshot["schema_version"], snapshot.get("agreed", False)
        # Of a version that peers did not have yet there is another copy once they have: only that one says what is gone.
        shipped = schema_snapshot.Shipped(self._store.url, facts.name.path, f"{version}-agreed" if agreed else version)
        if self._schema_shipped not in (shipped, replace(shipped, label=f"{version}-agreed")):
            name = layout.node_schema(facts.name, datetime.fromisoformat(snapshot["taken_at"]), shipped.label)
            # It is there if an answer was lost on the way: its name holds the second and the version.
            with suppress(PreconditionFailed):
                self._store.put(name, json.dumps(snapshot, indent=1).encode() + b"\n", if_generation=0)
            self._log.info("schema shipped", object=name)
            self._schema_shipped = shipped
            self._note_schema()
        again = snapshot.get("agreed") is False and self._disagreed < _DISAGREED
        self._disagreed = self._disagreed + 1 if again else 0
        self._schema_version = None if again else version

    def _note_schema(self) -> None:
        try:
            self._schema_shipped.note(self._node.state)
        except OSError as error:
            # The next start ships it once more.
            self._log.warning("failed to note the shipped schema", message=str(error), hint="Check node.state_dir.")

    def _ship_truncations(self, facts: node_identity.NodeFacts) -> None:
        """Ship what the node records of its TRUNCATEs, if that is new or a day old; none of it holds up a segment."""
        if self._link is None:
            return
        try:
            found = self._link.truncations()
            due = truncations.Shipped(truncations.checksum_of(found), datetime.now(UTC), self._store.url, facts.name.path)
            if not self._truncations.is_due(due):
                return
            name = truncations.ship_truncations(self._store, facts.name, found, due.at)
            self._truncations = due
            self._log.info("truncation records shipped", object=name, records=len(found))
            truncations.note(self._node.state, self._truncations)
        except WritetimeError as error:
            self._log.warning("truncation records not shipped", **error.as_dict())
        except OSError as error:
            self._log.warning("failed to note the shipped truncation records", message=str(error), hint="Check node.state_dir.")

    # --- segments

    def _ship_segment(self, facts: node_identity.NodeFacts, folder: Path, item: Found, result: Round) -> None:
        assert item.segment is not None
        ref = SegmentRef(facts.name, item.segment)
        log = self._log.bind(segment=item.name)
        self._pace.wait(self._in_a_hurry)
        begun = time.monotonic()
        try:
            outcome = self._retrying(log, result)(upload.ship, self._store, ref, folder, facts.metadata() | _about(item), self._measured)
        except WritetimeError as error:
            log.error("not shipped", **error.as_dict())
            result.failed.append(error)
            self._store_is_down = _is_unanswered(error)
            result.unanswered = result.unanswered + 1 if self._store_is_down else 0
            self.metrics.failed(type(error).__name__)
        else:
            if outcome is upload.Outcome.IN_CONFLICT:
                hint = "Both are kept, and no batch takes either in: see `writetime conflicts list`."
                log.error("segment in conflict: the store holds other bytes under its name", object=ref.incoming, hint=hint)
            else:
                log.info(outcome.value, object=ref.incoming, **({"ending": _AFTER_CRASH} if _crashed(item) else {}))
            result.shipped[outcome] += 1
            result.unanswered, self._store_is_down = 0, False
            self.metrics.shipped(outcome.value, item.size, time.monotonic() - begun)
            self._pace.spent(item.size)
        self.pulse.beat()

    def _in_a_hurry(self) -> bool:
        """Whether the rate limit is lifted. Asked every second while it holds the loop back, which is a sign of life."""
        self.pulse.beat()
        return self._level is not Level.OK or self._see().level is not Level.OK

    # --- tails

    def _ship_tails(self) -> None:
        """Ship what is new of the segments that grow, if that is due. Nothing of it at an alarm: it frees no space."""
        facts, every = self._named, self._node.ship.tail_seconds
        if every is None or time.monotonic() < self._next_tail:
            return
        self._next_tail = time.monotonic() + every
        self._tails_failed = []
        try:
            view = self._see()
        except ShipError as error:
            self._tails_failed.append(error)
            return
        if facts is None or view.level is Level.ALARM:
            return
        growing = [item for item in view.here if item.state is State.GROWING]
        self._tail.keep({item.segment for item in growing if item.segment})
        if any(item.reached is not None and item.reached[0] > (self._shipped_to(item) or 0) for item in growing):
            # What was synced by now may need the schema of now.
            self._ship_schema(facts)
        for item in growing:
            if self._stop.is_set() or any(map(_is_unanswered, self._tails_failed)):
                break
            if item.reached is not None and (trouble := self._ship_tail(facts, item)) is not None:
                self._tails_failed.append(trouble)
        self._tails = [metrics.TailSeen(item.name, *item.reached, self._shipped_to(item)) for item in growing if item.reached is not None]
        self.metrics.saw_tails(self._tails)

    def _shipped_to(self, item: Found) -> int | None:
        """How far a growing segment is known to be shipped, counted as its idx does."""
        if item.segment is None or self._named is None:
            return None
        place = self._tail.reached(SegmentRef(self._named.name, item.segment))
        return None if place is None else place.logical

    def _ship_tail(self, facts: node_identity.NodeFacts, item: Found) -> WritetimeError | None:
        """Ship one segment's tail; what went wrong. Tried again at the next look if the store did not answer, else after a while."""
        assert item.segment is not None
        assert item.reached is not None
        since, trouble = self._resting.get(item.segment, (0.0, None))
        if trouble is not None and time.monotonic() < since + _TAIL_RESTS:
            return trouble
        self._resting.pop(item.segment, None)
        ref = SegmentRef(facts.name, item.segment)
        try:
            for part in self._tail.ship(ref, *item.reached, facts.metadata()):
                self._log.info("part shipped", segment=item.name, object=part.name, bytes=part.size)
                self.metrics.shipped_part(part.size)
                self._pace.spent(part.size)
                self._pace.wait(lambda: self._level is not Level.OK)
                self.pulse.beat()
        except WritetimeError as error:
            self._log.error("tail not shipped", segment=item.name, **error.as_dict())
            self.metrics.failed(type(error).__name__)
            if not _is_unanswered(error):
                self._resting[item.segment] = time.monotonic(), error
            return error
        return None

    def _retrying(self, log: Any, result: Round) -> tenacity.Retrying:
        """Repeats what may succeed later; once only while the store has not answered for the last segment either."""

        def before_sleep(state: tenacity.RetryCallState) -> None:
            error = state.outcome and state.outcome.exception()
            log.warning("again", attempt=state.attempt_number, error=str(error))
            self.pulse.beat()
            self._store_is_down = _is_unanswered(error)
            if self._store_is_down:
                self._make_room()

        attempts = 1 if result.unanswered else _ATTEMPTS
        return tenacity.Retrying(
            retry=tenacity.retry_if_exception(lambda error: isinstance(error, WritetimeError) and error.retriable),
            stop=tenacity.stop_any(tenacity.stop_after_attempt(attempts), tenacity.stop_when_event_set(self._stop)),
            wait=tenacity.wait_random_exponential(multiplier=self._pause, max=_LONGEST_PAUSE),
            sleep=tenacity.sleep_using_event(self._stop),
            before_sleep=before_sleep,
            reraise=True,
        )

    def _remove_leftover(self, folder: Path, item: Found, result: Round) -> None:
        """Finish a deletion. The log is looked for once more: a folder that is written to is not listed in one moment."""
        assert item.segment is not None
        try:
            with self._moving:
                spills, _ = spill.places(self._node.state, self._node.spill)
                owed = folder == self._node.cdc_raw and spill.owner(spills, item) is not None
                if not owed and not upload.is_there(folder / item.segment.filename):
                    upload.remove(folder / item.name)
        except ShipError as error:
            self._log.error("not deleted", **error.as_dict())
            self.metrics.failed(type(error).__name__)
            result.failed.append(error)

    def _unreadable(self, view: View) -> list[WritetimeError]:
        """Segments whose idx cannot be read: nobody can say whether they are finished, and each round fails until somebody has looked."""
        found: list[WritetimeError] = []
        for folder, item in [*((self._node.cdc_raw, item) for item in view.here), *view.aside]:
            if item.state is State.UNREADABLE:
                error = ShipError(
                    item.reason,
                    operation="ship a segment",
                    obj=str(folder / item.name),
                    hint="Run the shipper as the user that owns the files, or restore their mode; it goes on by itself.",
                )
                self._log.error("segment not shipped: its idx is unreadable", **error.as_dict())
                self.metrics.failed(type(error).__name__)
                found.append(error)
        return found

    def _report_foreign(self, found: list[Found]) -> None:
        for item in found:
            if item.state is State.FOREIGN and item.name not in self._reported:
                self._reported.add(item.name)
                self._log.warning("not a segment, left alone", file=item.name, reason=item.reason)


def _is_unanswered(error: object) -> bool:
    """Whether the store is of no use now: away, or it refuses us (expired credentials, no permission, no bucket)."""
    return isinstance(error, StoreError) and not isinstance(error, (PreconditionFailed, ChecksumMismatch))


def _crashed(item: Found) -> bool:
    return item.state is State.AFTER_CRASH or item.replayed


def _about(item: Found) -> dict[str, str]:
    """What the object carries of how the segment ended: after a crash its last section may not be whole, and that is no damage."""
    about = {"ending": _AFTER_CRASH if _crashed(item) else "completed"}
    return about if item.synced is None else about | {"synced": str(item.synced)}


def _read_snapshot(path: Path) -> dict[str, Any]:
    """The schema file of the configuration. ConfigError if it is no snapshot."""
    try:
        snapshot = json.loads(path.read_bytes())
        datetime.fromisoformat(snapshot["taken_at"])
        if not isinstance(snapshot["schema_version"], str):
            raise TypeError("schema_version is no text")
    except OSError as error:
        raise ConfigError(f"cannot be read: {error.strerror}", operation="read node.schema_file", obj=str(path)) from error
    except (ValueError, KeyError, TypeError) as error:
        raise ConfigError(f"is no schema snapshot: {error!r}", operation="read node.schema_file", obj=str(path)) from error
    return dict(snapshot)
