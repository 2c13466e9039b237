"""A run on a real cluster: executes operations and the steps of the schedule, and compares at every quiet
point.

At a quiet point every node is up, hints are delivered, and all but the long TTLs have expired. The cluster
answers at ALL; then its segments are completed (dropping a table does so on every node), shipped and read
until none is left; then everything is compared.
"""

from __future__ import annotations

import os
import time
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from random import Random
from typing import Any

from cassandra import ConsistencyLevel, DriverException, InvalidRequest
from cassandra.cluster import NoHostAvailable, Session
from cassandra.connection import ConnectionException
from cassandra.query import BatchStatement, BatchType, SimpleStatement

from proof.harness.cassandra import VERSIONS, Ring, seen_up
from proof.harness.node import Node
from proof.ring import answer, check, held
from proof.ring.answer import OWN_KEYSPACE, SINGLE_KEYSPACE, Answer
from proof.ring.check import Mismatch
from proof.ring.operations import Generator, Operation
from proof.ring.pipeline import CLUSTER, Pipeline
from proof.ring.schedule import MISSED, PLANNED, Step
from proof.ring.topology import ONE_DATACENTER, Topology
from shippers.truncations import records
from tools.console import say
from tools.errors import ServiceError
from writetime.pipeline.truncations import SAME_TRUNCATE_MS
from writetime.storage import layout

HEAP = "400M"
SETTLE_SECONDS = 4.0
PASSING_SECONDS = 40
"""TTL of what is there when a batch begins, and gone at the next quiet point."""
_PASSING = f"{OWN_KEYSPACE}.passing"
_HELD, _PURGED = f"{OWN_KEYSPACE}.held", f"{OWN_KEYSPACE}.purged"
"""Tables whose tombstones may be forgotten a second after they were written."""
_ALTERED = f"{OWN_KEYSPACE}.altered"
"""A table that is altered while a node is down. Its keyspace has no user types: with one, what a node logs of the
schema at its start would not look like a CREATE in any order.
"""
_SINGLE = f"{SINGLE_KEYSPACE}.marks"
"""A captured table of which each row is on one node, which keeps the segment then."""
PURGE_SECONDS = 2.5
"""After a deletion: by then it is older than gc_grace, by whole seconds."""
HINTS_SECONDS = 180.0
SEAL_SECONDS = 90.0
_REFUSED_HINT = b"CoordinatorBehindException: Couldn't find table with id"
_TWO_VERSIONS = "operations while nodes had two versions"
_WITH_TWO_VERSIONS = 20
_WITHOUT_A_NODE = "schema changes while a node was down"
_LEVELS = ("ONE", "QUORUM", "QUORUM", "ALL")
_LEVELS_OF_TWO = ("LOCAL_ONE", "LOCAL_QUORUM", "QUORUM", "EACH_QUORUM", "ALL")
_WITH_ALL_UP = ("ALL", "EACH_QUORUM", "LOCAL_QUORUM")
"""Levels that a node which is down may make impossible."""


@dataclass(frozen=True)
class Cut:
    """Nodes that go on without the others; whether they keep hints for these."""

    nodes: list[Node]
    hints: bool = False


@dataclass
class Outcome:
    """The result of a run."""

    done: Counter[str] = field(default_factory=Counter)
    failed: Counter[str] = field(default_factory=Counter)
    steps: Counter[str] = field(default_factory=Counter)
    answers: list[Answer] = field(default_factory=list)
    points: list[tuple[int, Answer]] = field(default_factory=list)
    """The last batch before each quiet point, and the answer at it."""
    as_of_comparisons: int = 0
    """Tables compared as they were at an earlier quiet point."""
    mismatches: list[Mismatch] = field(default_factory=list)
    segments: int = 0
    batches: int = 0
    events: int = 0
    wanted: Counter[str] = field(default_factory=Counter)
    """Steps that have to be among `steps` so many times."""
    unreadable: dict[str, str] = field(default_factory=dict)
    """Tables that Cassandra itself failed to read at a quiet point, and what it said: there they were not
    compared.
    """

    def look_back(self, pipeline: Pipeline, answer: Answer, where: str) -> list[Mismatch]:
        """Compare the tables as they were at the earlier quiet points, and remember this one."""
        compared, found = check.check_history(self.points, pipeline.lake, where)
        self.as_of_comparisons += compared
        self.points.append((pipeline.sealed[-1].number, answer))
        return found


_SHOWN = 5


def show(mismatches: list[Mismatch]) -> None:
    """Print the first mismatches at once: a run may not reach its end."""
    for mismatch in mismatches[:_SHOWN]:
        say(f"  {mismatch}"[:2000])


def _exceptions(nodes: list[Node]) -> str:
    """Exceptions in the nodes' logs, each once."""
    lines = (line for node in nodes for line in node.log.read_text(encoding="utf-8", errors="replace").splitlines())
    return (
        "; ".join(sorted({line.strip()[:300] for line in lines if line.startswith(("Caused by: ", "java.lang."))})) or "nothing in the logs"
    )


def ring_of(topology: Topology, folder: Path, version: str = VERSIONS[0], *, compatibility: str | None = None) -> Ring:
    settings = {"auto_snapshot": False, "hinted_handoff_throttle_in_kb": 10240, "num_tokens": 1}
    return Ring(
        folder,
        nodes=len(topology.nodes),
        spares=2,
        version=version,
        heap=HEAP,
        cluster_name=CLUSTER,
        datacenter=topology.nodes,
        segment_mb=1,
        compatibility=compatibility,
        settings=settings,
        settings_of=topology.settings,
        options=["-Dcassandra.hints_dispatch_interval_ms=1000", "-XX:TieredStopAtLevel=1", "-XX:ReservedCodeCacheSize=128m"],
    )


class Live:
    """One run. `schedule` lists the steps; `seed` selects consistency levels; `upgrade_to` is the version that
    its steps `upgrade` give to the nodes.
    """

    def __init__(
        self,
        ring: Ring,
        pipeline: Pipeline,
        generator: Generator,
        schedule: list[Step],
        seed: int,
        topology: Topology = ONE_DATACENTER,
        *,
        upgrade_to: str | None = None,
    ) -> None:
        self.ring, self.pipeline, self.generator, self.schedule = ring, pipeline, generator, schedule
        self.topology = topology
        self.outcome = Outcome()
        self._random = Random(f"{seed} levels")
        self._begun = datetime.now(UTC)
        self._session: Session | None = None
        self._prepared: dict[str, Any] = {}
        self._quiet = 0
        self._fillers = 0
        self._apart: list[Node] = []
        self._to_be_apart: Cut | None = None
        self._unrepaired = False
        self._passed = 0.0
        self._held: list[str] = []
        self._given_up: list[str] = []
        self._purgeable = 0.0
        self._gone: set[str] = set()
        self._departed = float("-inf")
        self._aside = ThreadPoolExecutor(1)
        self._upgrade_to = upgrade_to
        self._refused = Counter[int]()
        self._former: set[str] = set()
        self._change: tuple[Future[object], Callable[[], None]] | None = None

    def run(self) -> Outcome:
        """Execute the whole run; mismatches do not end it."""
        session = self._all_up()
        session.execute(f"CREATE KEYSPACE {OWN_KEYSPACE} WITH replication = {self.topology.replication}")
        session.execute(f"CREATE TABLE {_PASSING} (p int, c int, goes text, stays text, PRIMARY KEY (p, c)) WITH cdc = true")
        for table in (_HELD, _PURGED):
            session.execute(f"CREATE TABLE {table} (p int PRIMARY KEY, v text) WITH cdc = true AND gc_grace_seconds = 1")
        session.execute(f"CREATE KEYSPACE {SINGLE_KEYSPACE} WITH replication = {self.topology.single}")
        session.execute(f"CREATE TABLE {_SINGLE} (p int PRIMARY KEY) WITH cdc = true")
        for statement in self.generator.schema():
            session.execute(statement)
        self.outcome.wanted = Counter(step.what for step in self.schedule if step.what in PLANNED)
        if self._upgrade_to is not None:
            self.outcome.wanted[_TWO_VERSIONS] = _WITH_TWO_VERSIONS
        # Every node's shipper runs once at the start, so that it knows the node's identity.
        self._do_ship_all(self.ring.nodes[0])
        steps = iter([*self.schedule, None])
        step = next(steps)
        number = 0
        for number, operation in enumerate(self.generator):
            while step is not None and step.at <= number:
                self._step(step)
                step = next(steps)
            self._operate(operation)
        while step is not None:
            self._step(step)
            step = next(steps)
        self.outcome.mismatches += self._replayed()
        if self.topology.datacenters > 1:
            self.outcome.mismatches += self._audited()
        self.outcome.mismatches += check.check_rows_seen(self.outcome.answers, "end")
        return self.outcome

    # --- operations

    def _operate(self, operation: Operation) -> None:
        """Execute an operation. A write that was not acknowledged may be in the log or not; it is compared
        either way.
        """
        if not operation.cql:
            return  # omitted
        if operation.needs_one_version:
            self._end_upgrade()
        if operation.needs_all_up:
            self._all_up()
        if operation.serial:
            # A conditional write that times out may have reached one node alone. If that node then gives its
            # range away, the cluster has lost the write, and its log still has it: neither answer is wrong.
            self._changed()
        if operation.after_batch:
            self._ship_everything()
            self._do_batch(self.ring.nodes[0])
        if operation.cql.startswith(("TRUNCATE", "DROP TABLE")):
            self._let_departures_settle()
        if operation.kept_by is not None:
            self._truncate(operation, operation.kept_by)
            return
        if operation.needs_all_up or operation.ddl or operation.serial or (operation.batch is not None and self._is_one_alone()):
            # An isolated node can execute none of these: a logged batch needs a second node.
            self._together()
        elif self._to_be_apart is not None:
            self._cut_off(self._to_be_apart)
        if operation.ddl:
            self._changed()
        if operation.flush:
            for node in self.ring.nodes:
                if node.running:
                    node.nodetool("flush")
        level = operation.consistency or self._random.choice(_LEVELS if self.topology.datacenters == 1 else _LEVELS_OF_TWO)
        if self._apart:
            level = "ONE" if self._is_one_alone() else "LOCAL_QUORUM"
            self.outcome.steps[f"operations that one {'node' if self._is_one_alone() else 'datacenter'} alone took"] += 1
        elif level in _WITH_ALL_UP and (self._change is not None or not all(node.running for node in self.ring.nodes)):
            level = "QUORUM"
        if self._change is not None:
            self.outcome.steps["operations while the ring changed"] += 1
        if len({node.version for node in self.ring.nodes}) > 1:
            self.outcome.steps[_TWO_VERSIONS] += 1
        try:
            self._execute(self._current(), operation, ConsistencyLevel.name_to_value[level])
        except InvalidRequest as error:
            raise ServiceError(f"{operation}: {error}") from error
        except (DriverException, NoHostAvailable, ConnectionException) as error:
            self.outcome.failed[operation.kind] += 1
            say(f"  {operation.kind}: {type(error).__name__}: {error}"[:300])
        else:
            self.outcome.done[operation.kind] += 1
            if operation.ddl and not all(node.running for node in self.ring.nodes):
                self.outcome.steps[_WITHOUT_A_NODE] += 1
        if operation.ddl:
            # Statements prepared before have the old columns.
            self._prepared = {}

    def _let_departures_settle(self) -> None:
        """Wait until no node left less than a TRUNCATE's time-out ago. What such a node logged last is kept,
        and counted as undecided: no record says whether it took part (`writetime.pipeline.truncations`).
        """
        self._changed()
        time.sleep(max(0.0, self._departed + SAME_TRUNCATE_MS / 1000 - time.monotonic()))

    def _truncate(self, operation: Operation, kept_by: int) -> None:
        """A TRUNCATE with nobody writing, in segments of its own: a node keeps none of them without a
        captured write. For one that is to be kept, a row is written that is on one node only.

        It counts if that many nodes keep the segment that their record points to.
        """
        self._wait_for_hints()
        self._do_roll(self.ring.nodes[0])
        session = self._current()
        session.execute(operation.cql)
        for _ in range(kept_by):
            self._fillers += 1
            session.execute(f"INSERT INTO {_SINGLE} (p) VALUES ({self._fillers})")
        self._do_roll(self.ring.nodes[0])
        kept = sum(self._keeps_last_truncate(node) for node in self._shipped())
        if kept == kept_by:
            self.outcome.done[operation.kind] += 1
        else:
            say(f"  {operation.kind}: {kept} nodes keep the segment")

    def _keeps_last_truncate(self, node: Node) -> bool:
        """Whether the node has an index of the segment that its last record of a TRUNCATE points to."""
        session = self._current()
        (host,) = (host for host in session.cluster.metadata.all_hosts() if host.address == node.address)
        (row,) = session.execute("SELECT truncated_at FROM system.local", host=host)
        last = max(records(row.truncated_at), key=lambda record: int(record["at"]))
        return any(node.cdc_raw.glob(f"CommitLog-*-{last['segment']}_cdc.idx"))

    def _execute(self, session: Session, operation: Operation, level: int) -> None:
        if operation.batch is not None:
            first = operation.cql.upper()
            kind = BatchType.UNLOGGED if "UNLOGGED" in first else BatchType.COUNTER if "COUNTER" in first else BatchType.LOGGED
            batch = BatchStatement(kind, consistency_level=level)
            for cql, values in operation.batch:
                batch.add(self._statement(session, cql), values)
            session.execute(batch)
            return
        if "?" not in operation.cql:
            session.execute(SimpleStatement(operation.cql, consistency_level=level), operation.values or None)
            return
        statement = self._statement(session, operation.cql).bind(operation.values)
        statement.consistency_level = level
        session.execute(statement)

    def _statement(self, session: Session, cql: str) -> Any:
        if cql not in self._prepared:
            self._prepared[cql] = session.prepare(cql)
        return self._prepared[cql]

    def _current(self) -> Session:
        """A session on the nodes that are up."""
        if self._session is None:
            self._session = self.ring.session("QUORUM", only=self._apart)
            self._prepared = {}
        return self._session

    def _forget_session(self) -> None:
        if self._session is not None:
            self._session.cluster.shutdown()
        self._session = None

    def _all_up(self) -> Session:
        self._changed()
        self._together()
        for node in self.ring.nodes:
            if not node.running:
                self._start(node)
        return self._current()

    # --- steps

    def _step(self, step: Step) -> None:
        if step.what not in _WHILE_CHANGING:
            self._changed()
        node = self.ring.nodes[step.node]
        begun = time.monotonic()
        done = getattr(self, f"_do_{step.what.replace(' ', '_')}")(node)
        if done is not False:
            self.outcome.steps[step.what] += 1
            say(
                f"  before operation {step.at}: {step.what} {node.name if step.what in _OF_A_NODE else ''} {time.monotonic() - begun:.1f} s"
            )

    def _do_stop(self, node: Node) -> bool:
        return self._end(node, kill=False)

    def _do_kill(self, node: Node) -> bool:
        return self._end(node, kill=True)

    def _end(self, node: Node, *, kill: bool) -> bool:
        self._together()
        if not all(other.running for other in self.ring.nodes):
            return False
        self._forget_session()
        (self.ring.kill if kill else self.ring.stop)(node)
        return True

    def _do_start(self, node: Node) -> bool:
        return not node.running and self._start(node)

    def _start(self, node: Node) -> bool:
        self._forget_session()
        self.ring.restart(node)
        return True

    def _do_alone(self, node: Node) -> bool:
        """Isolate the node before the next operation that one node can execute."""
        self._to_be_apart = Cut([node])
        return False

    def _do_cut(self, node: Node) -> bool:
        """Let the node's datacenter go on alone, before the next operation that it can execute. The other one
        gets hints afterwards.
        """
        self._to_be_apart = Cut([each for each in self.ring.nodes if each.datacenter == node.datacenter], hints=True)
        return False

    def _do_cut_for_long(self, node: Node) -> bool:
        """The same for longer than hints are kept."""
        self._to_be_apart = Cut([each for each in self.ring.nodes if each.datacenter == node.datacenter])
        return False

    def _is_one_alone(self) -> bool:
        """Whether an operation now is one node's alone."""
        return len(self._to_be_apart.nodes if self._to_be_apart else self._apart) == 1

    def _cut_off(self, cut: Cut) -> None:
        """Isolate the nodes. Without hints their writes reach no other node before a repair."""
        if self._change is not None or not all(node.running for node in self.ring.nodes):
            return
        self._together()
        self._to_be_apart = None
        self._forget_session()
        for node in cut.nodes if not cut.hints else ():
            node.nodetool("disablehandoff")
        for other in self._others(cut.nodes):
            other.nodetool("disablegossip")
        self._apart, self._unrepaired = cut.nodes, self._unrepaired or not cut.hints
        for node in cut.nodes:
            self._wait_for_view(node, {each.address for each in cut.nodes})
        self.outcome.steps["alone" if len(cut.nodes) == 1 else "cut" if cut.hints else "cut for long"] += 1
        say(f"  {', '.join(node.name for node in cut.nodes)} alone")

    def _do_together(self, _: Node) -> bool:
        self._to_be_apart = None
        return self._together()

    def _together(self) -> bool:
        if not self._apart:
            return False
        nodes, self._apart = self._apart, []
        self._forget_session()
        for other in self._others(nodes):
            other.nodetool("enablegossip")
        for node in nodes:
            node.nodetool("enablehandoff")
        self.ring.wait_until_connected()
        return True

    def _others(self, nodes: list[Node]) -> list[Node]:
        return [other for other in self.ring.nodes if other not in nodes]

    def _wait_for_view(self, node: Node, up: set[str]) -> None:
        deadline = time.monotonic() + HINTS_SECONDS
        while (seen := seen_up(node)) != up:
            if time.monotonic() > deadline:
                raise ServiceError(f"{node.name} sees {sorted(seen)} up, not {sorted(up)}")
            time.sleep(0.5)

    def _do_flush(self, node: Node) -> bool:
        return node.running and bool(node.nodetool("flush") or True)

    def _do_repair(self, node: Node) -> bool:
        if not all(other.running for other in self.ring.nodes):
            return False
        self._together()
        for keyspace in self._keyspaces():
            self._repair(node, keyspace)
        return True

    @staticmethod
    def _repair(node: Node, *keyspaces: str) -> None:
        """Up to six times: a stream to a node that has come back a moment ago may break."""
        for left in (5, 4, 3, 2, 1, 0):
            try:
                node.nodetool("repair", "--full", *keyspaces)
                return
            except ServiceError:
                if not left:
                    raise
                time.sleep(10)

    def _do_expire(self, _: Node) -> bool:
        """Read an expiring row and an expiring cell from all logs in a batch; no later write changes them."""
        session = self._all_up()
        key = self.outcome.steps["expire"]
        session.execute(f"INSERT INTO {_PASSING} (p, c, goes) VALUES ({key}, 0, 'soon') USING TTL {PASSING_SECONDS}")
        session.execute(f"INSERT INTO {_PASSING} (p, c, stays) VALUES ({key}, 1, 'for good')")
        session.execute(f"UPDATE {_PASSING} USING TTL {PASSING_SECONDS} SET goes = 'soon' WHERE p = {key} AND c = 1")
        self._passed = time.monotonic() + PASSING_SECONDS
        self._ship_everything()
        return self._do_batch(self.ring.nodes[0])

    def _do_hold(self, node: Node) -> None:
        """Take in segments of which a part cannot be used: in one node's a write that the other replicas have
        too, and in every node's one writes of `_HELD`, one of which is deleted at once. A row of `_PURGED` is
        in the same segments, and is deleted too.
        """
        session = self._all_up()
        number = self.outcome.steps["hold"]
        key, given_up, late = 10 * number, f"proof: given up {number}", f"proof: held {number}"
        self._write(f"INSERT INTO {_HELD} (p, v) VALUES ({key}, '{given_up}')", session)
        self._ship_everything()
        self._given_up = self.pipeline.damage(given_up.encode(), held.flip, most=1)
        rows = [(_PURGED, key, "goes"), (_PURGED, key + 1, "stays"), (_HELD, key + 1, late), (_HELD, key + 2, late)]
        for table, p, text in rows:
            self._write(f"INSERT INTO {table} (p, v) VALUES ({p}, '{text}')", session)
        self._ship_everything()
        self._held = self.pipeline.damage(late.encode(), held.garble)
        self._do_batch(node)
        for name in (*self._given_up, *self._held):
            if name not in self.pipeline.held():
                self.outcome.mismatches.append(Mismatch("problem", "held", name, ring="held", ours="not held"))
        self._write(f"DELETE FROM {_PURGED} WHERE p = {key}", self._current())
        self._write(f"DELETE FROM {_HELD} WHERE p = {key + 1}", self._current())
        self._purgeable = time.monotonic() + PURGE_SECONDS

    def _do_purge(self, node: Node) -> bool:
        """Whether a purge changed anything while segments are held."""
        self._all_up()
        time.sleep(max(0.0, self._purgeable - time.monotonic()))
        self._ship_everything()
        time.sleep(PURGE_SECONDS)
        while self._do_batch(node):
            pass
        for name in self._given_up:
            self.pipeline.release(name)
            self.outcome.steps["segments released"] += 1
        changed = self.pipeline.purge()
        self.outcome.steps["shards purged"] += changed
        return changed > 0 and bool(self._held)

    def _do_let_in(self, node: Node) -> bool:
        """Repair the segments that were held during the purge."""
        waiting, self._held = self._held, []
        for name in waiting:
            self.pipeline.repair(name)
            self.outcome.steps["segments let in"] += 1
        return bool(waiting) and self._do_batch(node)

    def _do_miss_a_change(self, node: Node) -> bool:
        """Drop a column and add it again while a node is down. Back again, the node logs the whole schema as it
        was when it went, then what it has missed, and captures writes in that segment.
        """
        session, number = self._all_up(), self.outcome.steps[MISSED]
        session.execute(f"CREATE TABLE IF NOT EXISTS {_ALTERED} (p int PRIMARY KEY, goes text, stays text) WITH cdc = true")
        rows = [10 * number + each for each in range(4)]
        for p in rows[:3]:
            self._write(f"INSERT INTO {_ALTERED} (p, goes, stays) VALUES ({p}, 'before', 'before')", session)
        for each in self.ring.nodes:
            # What a memtable holds of a dropped column is neither there nor not.
            each.nodetool("flush", OWN_KEYSPACE)
        if not self._end(node, kill=number % 2 == 1):
            return False
        session = self._current()
        for change in ("DROP goes", "ADD goes text"):
            session.execute(f"ALTER TABLE {_ALTERED} {change}")
            self.outcome.steps[_WITHOUT_A_NODE] += 1
        session.execute(f"UPDATE {_ALTERED} SET goes = 'since' WHERE p = {rows[0]}")
        session.execute(f"DELETE FROM {_ALTERED} WHERE p = {rows[1]}")
        self._start(node)
        self._write(f"INSERT INTO {_ALTERED} (p, goes) VALUES ({rows[3]}, 'since')", self._current())
        return True

    def _write(self, cql: str, session: Session) -> None:
        """Write to every node."""
        session.execute(SimpleStatement(cql, consistency_level=ConsistencyLevel.ALL))

    def _do_roll(self, _: Node) -> bool:
        """Dropping a table ends the current segment on every node (Cassandra 4.0-5.0,
        CommitLog.forceRecycleAllSegments).
        """
        self._end_upgrade()
        self._together()
        self._fillers += 1
        table = f"{OWN_KEYSPACE}.filler_{self._fillers}"
        session = self._current()
        session.execute(f"CREATE TABLE {table} (p int PRIMARY KEY)")
        session.execute(f"DROP TABLE {table}")
        return True

    def _do_ship(self, node: Node, *, drain: bool = False) -> None:
        if node.datacenter not in self.topology.shipped:
            return
        shipped = self.pipeline.ship(node, drain=drain)
        self.outcome.mismatches += [Mismatch("problem", node.name, "shipper", ring="shipped", ours=str(error)) for error in shipped.failed]

    def _do_ship_all(self, _: Node) -> None:
        for node in self._shipped():
            self._do_ship(node)

    def _shipped(self) -> list[Node]:
        """The nodes whose logs are shipped."""
        return [node for node in self.ring.nodes if node.datacenter in self.topology.shipped]

    def _do_batch(self, _: Node) -> bool:
        """Whether there was a batch to run."""
        sealed = self.pipeline.batch()
        if sealed is None:
            return False
        where = f"batch {sealed.number}"
        self.outcome.mismatches += check.check_batch(sealed, self.pipeline.updates(sealed), where, self.pipeline.damaged)
        self.outcome.batches += 1
        self.outcome.segments += len(sealed.segments)
        self.outcome.events += sealed.events
        return True

    def _do_quiet(self, _: Node) -> None:
        self._quiet += 1
        where = f"quiet point {self._quiet}"
        self._end_upgrade()
        self._all_up()
        self._wait_for_hints()
        if self._unrepaired and self.topology.shipping < self.topology.datacenters:
            # What only nodes without a shipper have comes into no table before that.
            self._unrepaired = False
            self._do_repair(self.ring.nodes[0])
        time.sleep(max(0.0, self._passed - time.monotonic()) + SETTLE_SECONDS)
        session = self.ring.session("ALL")
        found = answer.read(session)
        session.cluster.shutdown()
        self.outcome.answers.append(found)
        self._ship_everything()
        try:
            while self._do_batch(self.ring.nodes[0]):
                pass
        finally:
            # A failed batch needs the answer most: for a replay.
            if self.pipeline.kept is not None:
                self.pipeline.kept.keep_answer(where, found)
        mismatches = [*check.check(found, self.pipeline.lake, where), *left_behind(self.pipeline, where)]
        mismatches += self.outcome.look_back(self.pipeline, found, where)
        if self.topology.datacenters > 1:
            shipped = {_host_id(node) for node in self._shipped()}
            mismatches += check.check_replicas(found, self.pipeline.lake, where, shipped)
        self.outcome.mismatches += mismatches
        for label, why in found.unreadable.items():
            self.outcome.unreadable[f"{where}: {label}"] = why
            say(f"{where}: Cassandra fails to read {label}: {why}; {_exceptions(self.ring.nodes)}")
        rows = sum(len(table.rows) for table in found.tables)
        say(f"{where}: {len(found.tables)} tables, {rows} rows, {self.outcome.events} events so far, {len(mismatches)} mismatches")
        show(mismatches)

    def _replayed(self) -> Iterator[Mismatch]:
        """Replay everything: only expiry events, and the same tables."""
        yield from replay_changes_nothing(self.pipeline, self.outcome.answers[-1])

    def _audited(self) -> Iterator[Mismatch]:
        """Audit the logs of the whole run. Its nodes are those that ship. A node that was cut off without hints
        has missed writes for good; otherwise all have logged everything.
        """
        report = self.pipeline.audit(self._begun)
        wanted = sorted((_host_id(node), node.datacenter) for node in self._shipped())
        if (found := sorted((node.host_id, node.datacenter) for node in report.nodes)) != wanted:
            yield Mismatch("audit", "end", "*", column="nodes", ring=wanted, ours=found)
        if not report.groups or not all(node.expected for node in report.nodes):
            yield Mismatch("audit", "end", "*", column="expected", ring="mutations of every node", ours=str(report.nodes))
        if not any(step.what in _LEAVES_GAPS for step in self.schedule):
            for gap in report.gaps:
                yield Mismatch("audit", "end", gap.table, column="gap", ring="none", ours=str(gap))
        self.outcome.steps["mutations that the audit has found"] += sum(node.held for node in report.nodes)

    # --- a ring that changes

    def _do_join(self, _: Node) -> None:
        """A fourth node joins and receives its share of the data."""
        self._all_up()
        node = self.ring.newcomer()
        self._begin_change(node.start, lambda: self._welcome(node))

    def _do_leave(self, node: Node) -> None:
        """The node is decommissioned; its data is streamed to the others."""
        self._all_up()
        self._ask_for_the_last_time(node)
        self._begin_change(lambda: node.nodetool("decommission"), lambda: self._part_with(node))

    def _do_replace(self, node: Node) -> None:
        """The node dies with its disk, and a new one with another address replaces it."""
        self._all_up()
        # The cluster would lose writes that only this node has, but its log was shipped.
        self._do_repair(node)
        self._ask_for_the_last_time(node)
        self._do_kill(node)
        self._part_with(node)
        newcomer = self.ring.newcomer(replacing=node)
        self._begin_change(newcomer.start, lambda: self._welcome(newcomer))

    def _ask_for_the_last_time(self, node: Node) -> None:
        """Ship the node's truncation records before it is gone; its log must not delay purges afterwards."""
        self._do_ship(node)
        self._gone.add(_host_id(node))

    def _begin_change(self, change: Callable[[], object], after: Callable[[], None]) -> None:
        """Change the topology while operations continue."""
        self._change = self._aside.submit(change), after

    def _changed(self) -> None:
        """Wait until the topology change is done: meanwhile the schema must not change and no node may
        leave."""
        if self._change is not None:
            (done, after), self._change = self._change, None
            done.result()
            after()

    def _welcome(self, node: Node) -> None:
        self.ring.nodes.append(node)
        self._forget_session()
        self.ring.wait_until_connected()
        self._do_ship(node)

    def _part_with(self, node: Node) -> None:
        """Take all that the node has left: its last segment too, which one that leaves does not seal
        (Cassandra 5.0, StorageService.drain: not after a decommission), no more than one that dies.
        """
        self._forget_session()
        node.stop()
        self.ring.nodes.remove(node)
        self._departed = time.monotonic()
        self._do_ship(node, drain=True)
        self.outcome.mismatches += [
            Mismatch("problem", "shipper", str(path), ring="shipped", ours="left on a node that is gone")
            for path in _with_captured_writes(node.cdc_raw)
        ]
        for host_id in self._gone:
            self.pipeline.forget_node(host_id)
        self.ring.wait_until_connected()

    # --- an upgrade

    def _do_upgrade(self, node: Node) -> bool:
        """Upgrade the node, if it has not been, while operations continue."""
        self._all_up()
        if self._upgrade_to is None or node.version == self._upgrade_to:
            return False
        version = self._upgrade_to
        self._former.add(_host_id(node))
        self._begin_change(lambda: self.ring.upgrade(node, version), self._upgraded)
        return True

    def _upgraded(self) -> None:
        """Have the ring of one version again, if that was the last node."""
        self._forget_session()
        self.ring.wait_until_connected()
        version = self._upgrade_to
        if version is not None and {node.version for node in self.ring.nodes} == {version} != {self.ring.version}:
            self.ring.upgraded(version)
            # With metadata of its own, a ring of 6.0 gives its nodes other ids. The former ones would hold purges back.
            self._do_ship_all(self.ring.nodes[0])
            for host_id in self._former - {_host_id(each) for each in self.ring.nodes}:
                self.pipeline.forget_node(host_id)

    def _end_upgrade(self) -> None:
        """Upgrade the rest of the nodes if it was begun: a ring of two versions must not change its schema."""
        self._changed()
        while len({node.version for node in self.ring.nodes}) > 1:
            for node in self.ring.nodes:
                if self._do_upgrade(node):
                    self.outcome.steps["upgrade"] += 1
                self._changed()

    # --- quiet

    def _wait_for_hints(self) -> None:
        """Wait until all hints are delivered. If that takes too long, repair, as an operator would."""
        deadline, repaired = time.monotonic() + HINTS_SECONDS, False
        quiet_since = time.monotonic()
        while time.monotonic() - quiet_since < 2.5:
            if waiting := self._hints():
                quiet_since = time.monotonic()
            if self._is_blocked(waiting):
                self._repair_instead_of_hints("there are hints of a dropped table")
            elif time.monotonic() > deadline:
                if repaired or not all(node.running for node in self.ring.nodes):
                    raise ServiceError(f"hints are not delivered after {HINTS_SECONDS:.0f} s: {waiting}")
                self._repair_instead_of_hints(f"{len(waiting)} files of hints are not delivered after {HINTS_SECONDS:.0f} s")
                deadline, repaired = time.monotonic() + HINTS_SECONDS, True
            time.sleep(0.25)

    def _hints(self) -> list[Path]:
        """Files of hints that wait. Those for a replaced node are neither delivered nor deleted."""
        found = [path for node in self.ring.nodes for path in node.hints.glob("*.hints")]
        return [path for path in found if not path.name.startswith(tuple(self._gone))] if self._gone else found

    def _is_blocked(self, waiting: list[Path]) -> bool:
        """Whether hints wait that are never delivered. 6.0-alpha2 refuses a hint of a table that was dropped
        meanwhile (a CoordinatorBehindException, which its HintMessage does not take for an unknown table), and
        sends all hints of that page again every ten seconds. Each time they are captured writes, so that no
        segment stays without.
        """
        if not waiting or not all(node.running for node in self.ring.nodes):
            return False
        return any(count > self._refused[node] for node, count in self._refusals().items())

    def _refusals(self) -> Counter[int]:
        """How many hints each node has refused, by its log: nothing else tells."""
        return Counter({node.number: node.log.read_bytes().count(_REFUSED_HINT) for node in self.ring.nodes})

    def _repair_instead_of_hints(self, why: str) -> None:
        """As an operator would: the other replicas have what the hints say."""
        say(f"  {why}: repaired instead")
        for node in self.ring.nodes:
            self._repair(node)
        for node in self.ring.nodes:
            node.nodetool("truncatehints")
        self._refused = self._refusals()
        self.outcome.steps["repair instead of hints"] += 1

    def _ship_everything(self) -> None:
        """Ship until every segment with a captured write is in the bucket."""
        deadline = time.monotonic() + SEAL_SECONDS
        self._do_roll(self.ring.nodes[0])
        rolled = time.monotonic()
        while True:
            time.sleep(1.0)
            self._do_ship_all(self.ring.nodes[0])
            left = [path for node in self._shipped() for path in _with_captured_writes(node.cdc_raw)]
            if not left:
                return
            if self._is_blocked(self._hints()):
                self._repair_instead_of_hints("there are hints of a dropped table")
                deadline = time.monotonic() + SEAL_SECONDS
            elif time.monotonic() > deadline:
                self.outcome.mismatches += [Mismatch("problem", "shipper", str(path), ring="shipped", ours="still there") for path in left]
                return
            if time.monotonic() - rolled > 10.0:
                self._do_roll(self.ring.nodes[0])
                rolled = time.monotonic()

    def _keyspaces(self) -> list[str]:
        rows = self._current().execute("SELECT keyspace_name FROM system_schema.keyspaces")
        return [
            row.keyspace_name
            for row in rows
            if not row.keyspace_name.startswith("system") and row.keyspace_name not in (OWN_KEYSPACE, SINGLE_KEYSPACE)
        ]


_LEAVES_GAPS = frozenset(["alone", "cut for long", "kill", "hold"])
_WHILE_CHANGING = frozenset(["flush", "ship", "ship all", "batch"])
_OF_A_NODE = frozenset(
    ["alone", "cut", "cut for long", "stop", "kill", "start", "flush", "repair", "ship", "leave", "replace", "upgrade", MISSED]
)


def _host_id(node: Node) -> str:
    return next(line.split(":")[1].strip() for line in node.nodetool("info").splitlines() if line.startswith("ID "))


def _with_captured_writes(cdc_raw: Path) -> list[Path]:
    """Segments with an idx: they contain captured writes."""
    found = []
    for index in cdc_raw.glob("*_cdc.idx"):
        log = cdc_raw / f"{index.name.removesuffix('_cdc.idx')}.log"
        with suppress(FileNotFoundError):
            os.stat(log)
            found.append(log)
    return sorted(found)


def left_behind(pipeline: Pipeline, where: str) -> Iterator[Mismatch]:
    """Segments that no batch has read although nothing was left to do."""
    for info in pipeline.store.list(layout.incoming_prefix(CLUSTER)):
        yield Mismatch("problem", where, info.name, ring="taken in", ours="still there")


def replay_changes_nothing(pipeline: Pipeline, last: Answer) -> Iterator[Mismatch]:
    """A replay of the whole archive may emit only expiry events, and must leave the tables unchanged."""
    before = {table.label: len(pipeline.lake.changes(table)) for table in last.tables}
    sealed = pipeline.replay()
    if sealed is None:
        yield Mismatch("replay", "end", "*", ring="an archive", ours="nothing to replay")
        return
    yield from check.check_batch(sealed, None, f"replay, batch {sealed.number}", pipeline.damaged)
    for table in last.tables:
        for event in pipeline.lake.changes(table)[before[table.label] :]:
            if event.reason != "expiry":
                yield Mismatch("replay", "end", table.label, event.key, ring="no event", ours=str(event))
    yield from check.check(last, pipeline.lake, "after a replay")
