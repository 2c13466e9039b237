"""The run: a cluster with a shipper for each node, a streaming session that ingests and publishes, somebody who
writes, and a reader that is started again and again, all at the same time.

    first      tables that were full before cdc was enabled, and tables captured from their first write on, are read
    again      they are read again, wholly or in parts, while elements and counters are written for the most part
    unseen     cdc is disabled, rows, cells and elements are deleted, cdc is enabled, and the tables are due again

Strategy: all parts are the product's: shippers that send parts of growing segments, `spark_jobs.stream` and
`spark_jobs.bootstrap` as processes. Readings are slow, so that log batches are sealed while a reading lasts, and
between a reading and the batch of its frames. During some readings one node's shipper stands still; during others
all do until the frames are in, so that frames come before their log. Readers and sessions are killed (SIGKILL;
driver, JVM and workers) at random moments.

At the end of each act nobody writes, what had a short TTL has expired, everything is shipped, ingested and
published, and incomplete rows are read again until none is left. Then tables and an upsert consumer of the topics
must equal the cluster's answer. At the end all is read once more, which must emit nothing.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from random import Random
from typing import Final

import yaml

from proof.bootstrap import sabotage, topics
from proof.bootstrap.workload import KEYSPACE, LATE, MARKS, TABLES, Workload
from proof.harness.cassandra import Ring
from proof.harness.node import Node
from proof.ring import answer, check
from proof.ring.answer import Answer
from proof.ring.check import Mismatch
from proof.ring.lake import Lake
from shippers.agent import Agent, Mode
from shippers.node_identity import Link
from tests.spark_jobs.conf import spark_conf
from tools import ROOT
from tools.console import say
from tools.services.kafka import Kafka
from writetime.config.node import NodeConfig, ShipConfig
from writetime.config.pipeline import PipelineConfig, load
from writetime.pipeline.bootstrap import run as bootstrap
from writetime.pipeline.documents import Watermark
from writetime.pipeline.planner import history, read_sealed
from writetime.pipeline.publish_progress import publish_due
from writetime.pipeline.segment_check import known_schema
from writetime.storage import layout, open_store
from writetime.storage.store import Store

CLUSTER: Final = "reading"
"""No other cluster's name: nodes of one name find each other, whoever has started them."""
PREFIX: Final = "p"
PAGE_ROWS: Final = 5000
MARGIN: Final = 4.0
"""Seconds before a reading that are left to the log: a write may take that long on a busy machine."""
RATE: Final = 30.0
"""Writes a second."""
LONGEST: Final = 1200.0
"""Seconds after which a job that nobody killed counts as stuck."""
PATIENCE: Final = 900.0
"""Seconds until what is written has to be in tables and topics."""
MOMENTS: Final = (0.5, 3.0)
"""When something is killed: so many times the seconds after which a reader begins to read on this machine."""
_FIRST_READ: Final = 8.0
"""Those seconds, until they are measured."""
_SHOWN: Final = 5
_EVER: Final = datetime.min.replace(tzinfo=UTC)
_DRAINS: Final = 12
"""At most so many times incomplete rows are read again at the end of an act."""

Read = tuple[str, ...]
"""The arguments of a reading."""
_DUE: Final[Read] = ("--due",)
_TOUCHED: Final[Read] = ("--touched",)


@dataclass
class Act:
    """One part of a run. `kills`: how many it has; `elements`: whether elements and counters are written for the
    most part."""

    name: str
    kills: int
    elements: bool = False


@dataclass
class Result:
    """What a run did, and what was wrong."""

    done: Counter[str] = field(default_factory=Counter)
    kills: Counter[str] = field(default_factory=Counter)
    rows: int = 0
    mismatches: list[Mismatch] = field(default_factory=list)
    troubles: list[str] = field(default_factory=list)


def configured(folder: Path, ring: Ring, kafka: Kafka, rows: int, rule: str = "") -> Path:
    """The pipeline's YAML."""
    (folder / "lake").mkdir(parents=True)
    conf = spark_conf(folder) | {"spark.driver.memory": "1g", "spark.executorEnv.PYTHONPATH": str(ROOT)}
    if rule:
        conf |= {"spark.python.daemon.module": "proof.bootstrap.daemon", f"spark.executorEnv.{sabotage.VARIABLE}": rule}
    document = {
        "pipeline": CLUSTER,
        "cluster": {
            "name": CLUSTER,
            "datacenters": ["dc1"],
            "cql": {"contact_points": [node.address for node in ring.nodes], "port": ring.nodes[0].port},
        },
        "tables": {"include": [f"{KEYSPACE}.*"]},
        "bucket": str(folder / "bucket"),
        "catalog": {"uri": f"jdbc:sqlite:{folder / 'lake' / 'catalog.db'}", "warehouse": str(folder / "lake" / "warehouse")},
        "kafka": {"bootstrap.servers": kafka.bootstrap, "topic.prefix": PREFIX},
        "snapshot": {
            "mode": "always",
            "ranges": 8,
            "page_rows": max(20, rows // 40),
            # A table takes some seconds, in which batches are sealed.
            "rows_per_second": max(100, rows // 6),
            "margin_seconds": MARGIN,
        },
        "airflow": {"mode": "session", "session_poll_seconds": 0.5},
        "spark": {"conf": {"spark.sql.shuffle.partitions": "2", **conf}},
        "buckets": 2,
    }
    path = folder / "pipeline.yaml"
    path.write_text(yaml.safe_dump(document), encoding="utf-8")
    return path


class Run:
    """One cluster, one pipeline. `seed` decides what is written, read, held back and killed, and when."""

    def __init__(self, folder: Path, ring: Ring, kafka: Kafka, rows: int, seed: int, *, rule: str = "") -> None:
        """`rule`: the sabotage that the jobs run under."""
        self.folder, self.ring, self.kafka, self._rule = folder, ring, kafka, rule
        self._yaml = configured(folder, ring, kafka, rows, rule)
        self.config: PipelineConfig = load(self._yaml)
        self.store: Store = open_store(self.config.bucket)
        self.lake = Lake(folder / "lake" / "catalog.db", {})
        several = len(ring.nodes) > 1
        session, writers = ring.session("ALL" if several else "ONE"), ring.session("QUORUM" if several else "ONE")
        of_elements = int(ring.version.partition(".")[0]) >= 5
        self.workload = Workload(session, writers, rows, len(ring.nodes), seed, of_elements=of_elements)
        self.result = Result()
        self._random = Random(f"{seed} actions")
        self._begun = time.monotonic()
        self._shippers = {node.number: Shipper(self.config, node, folder) for node in ring.nodes}
        self._session = self._job("session", "--minutes", "60")
        self._checked = 0
        self._first_read = _FIRST_READ
        self._frames = False
        """Whether the last reading has written frames."""

    # --- the whole

    def play(self, acts: Sequence[Act]) -> Result:
        self.workload.create()
        self._tell(f"fill {self.workload.rows} rows")
        with ExitStack() as stack:
            stack.callback(self._hold, *self.ring.nodes)
            self._release(*self.ring.nodes)
            stack.callback(self._session.stop)
            self._session.start()
            self.workload.fill()
            for act in acts:
                self._tell(f"act `{act.name}`: {act.kills} kills")
                with self.workload.writing(RATE, elements=act.elements):
                    {"first": self._first, "again": self._again, "unseen": self._unseen}[act.name](act)
                self._compare(f"after `{act.name}`")
            self._read_in_vain()
        if self.workload.longest_write > MARGIN:
            self._tell(f"a write took {self.workload.longest_write:.1f} s: longer than the margin of {MARGIN} s")
        self.result.done.update({f"writes {name}": count for name, count in self.workload.done.items()})
        self.result.done.update({f"refused {name}": count for name, count in self.workload.refused.items()})
        return self.result

    def _first(self, act: Act) -> None:
        self.workload.fill_short()
        self.workload.cdc(True)
        self._until(self._knows_tables, "the schema of all tables is in the bucket")
        kills = self._kills(act)
        while (kill := next(kills)) or not self._all_read():
            self._read(
                self._random.choice((_some(self._random, TABLES), _TOUCHED) if self._all_read() else (_DUE, _DUE, _TOUCHED)), kill=kill
            )

    def _again(self, act: Act) -> None:
        kills, left = self._kills(act), set(TABLES)
        while (kill := next(kills)) or left:
            what = self._random.choice((_some(self._random, sorted(left) or TABLES), _TOUCHED if kill else _some(self._random, TABLES)))
            if self._read(what, kill=kill):
                left -= {each.removeprefix(f"{KEYSPACE}.") for each in what}

    def _unseen(self, act: Act) -> None:
        self.workload.cdc(False)
        self._tell("cdc is off")
        self.workload.delete_unseen()
        time.sleep(MARGIN)
        self.workload.cdc(True)
        self._tell("cdc is on")
        since, kills = datetime.now(UTC), self._kills(act)
        while (kill := next(kills)) or not self._all_read(LATE, since):
            self._read(self._random.choice((_DUE, _DUE, _TOUCHED)), kill=kill)

    def _kills(self, act: Act) -> Iterator[bool]:
        """Before each reading of an act, whether something is to be killed during it."""
        before = self.result.kills.total()
        while True:
            yield self.result.kills.total() - before < act.kills

    # --- readings

    def _read(self, what: Read, *, kill: bool = False) -> bool:
        """One reading, under some weather; whether it came to its end."""
        held = self._random.choices(("none", "one", "all"), (5, 2, 3))[0]
        one = self._random.choice(self.ring.nodes)
        nodes = {"none": [], "one": [one], "all": list(self.ring.nodes)}[held]
        victim = self._random.choices(("reader", "session", "none"), (6, 3, 1))[0] if kill else "none"
        moment = self._random.uniform(*MOMENTS) * self._first_read
        before, incomplete = self._sealed(), self._waits(layout.incomplete_rows_prefix(CLUSTER))
        self._hold(*nodes)
        reader = self._job("read", *what)
        try:
            self._watch(reader, what, victim, moment)
        finally:
            reader.kill()
        done = self._ended(reader, what)
        if done and held == "all":
            self._until(lambda: not self._frames_waiting(), "frames that came before their log are ingested")
            self.result.done["frames before their log"] += self._frames
        self._release(*nodes)
        meanwhile = self._sealed() - before
        self.result.done["readings"] += done
        self.result.done["readings of incomplete rows"] += done and incomplete and what == _TOUCHED
        self.result.done["readings during which batches were sealed"] += done and meanwhile > 0
        self._tell(f"read {' '.join(what)}: {'done' if done else 'killed'}; {meanwhile} batches meanwhile, shippers held: {held}")
        return done

    def _watch(self, reader: Job, what: Read, victim: str, moment: float) -> None:
        """Start a reader and wait for its end; kill the victim at its moment."""
        reader.start()
        begun, reads, self._frames = time.monotonic(), False, False
        while reader.running:
            now = time.monotonic() - begun
            self._keep_session()
            self._frames = self._frames or self._frames_waiting()
            if not reads and reader.said("reading a table"):
                self._first_read, reads = now, True
            if victim != "none" and now >= moment:
                self._kill(victim, reader, what)
                victim = "none"
            if now > LONGEST:
                raise AssertionError(f"a reading was stuck for {LONGEST:.0f} s: {reader.last_words()}")
            time.sleep(0.1)

    def _ended(self, reader: Job, what: Read) -> bool:
        if reader.code == 0:
            return True
        if reader.code != -signal.SIGKILL:
            self.result.troubles.append(f"reading {' '.join(what)} failed ({reader.code}): {reader.last_words()}")
            if len(self.result.troubles) > 20:
                raise AssertionError("readings fail again and again: " + self.result.troubles[-1])
        return False

    def _kill(self, victim: str, reader: Job, what: Read) -> None:
        job = reader if victim == "reader" else self._session
        if job.kill():
            self.result.kills[victim] += 1
            self._tell(f"kill {self.result.kills.total()}: {victim}, during read {' '.join(what)}")

    def _keep_session(self) -> None:
        """Start the session again if it was killed."""
        if self._session.running:
            return
        if self._session.code not in (-signal.SIGKILL, None):
            self.result.troubles.append(f"the session ended ({self._session.code}): {self._session.last_words()}")
            if len(self.result.troubles) > 20:
                raise AssertionError("sessions fail again and again: " + self.result.troubles[-1])
        self._session.start()

    def _read_in_vain(self) -> None:
        """Read all tables while nobody writes: nothing is news."""
        tables = [table for table in self._answer().tables if table.name != MARKS]
        before = topics.records(self.kafka.bootstrap, PREFIX, tables)
        self._read(_tables(TABLES))
        self._settle()
        news = topics.records(self.kafka.bootstrap, PREFIX, tables) - before
        self._tell(f"read all tables once more: {news} records")
        if news:
            self.result.mismatches.append(Mismatch("news", "a reading while nobody writes", "*", ring="no record", ours=f"{news} records"))

    # --- quiet points

    def _compare(self, where: str) -> None:
        """Everything is in and nobody writes: tables and topics equal the cluster."""
        self._release(*self.ring.nodes)
        left = self.workload.expired_by + 2 - time.time()
        self._tell(f"nobody writes; what expires has expired in {max(0.0, left):.0f} s")
        self._until_hints_are_delivered()
        time.sleep(max(0.0, self.workload.expired_by + 2 - time.time()))
        self._settle()
        for _ in range(_DRAINS):
            waiting = sum(1 for _ in self.store.list(layout.incomplete_rows_prefix(CLUSTER)))
            if not waiting:
                break
            self._tell(f"{waiting} records of incomplete rows")
            self._read(_TOUCHED)
            self._settle()
        else:
            self.result.troubles.append(f"{where}: incomplete rows remain after {_DRAINS} readings")
        found = self._answer()
        mismatches = [*check.check(found, self.lake, where), *topics.check_topics(found, self.kafka.bootstrap, PREFIX, where)]
        mismatches += self._accounts()
        self.result.rows += sum(len(table.rows) for table in found.tables)
        self.result.mismatches += mismatches
        kinds = Counter(f"{each.check} {each.table} {each.column or 'row'}" for each in mismatches)
        self._tell(f"{where}: {sum(len(table.rows) for table in found.tables)} rows, {len(mismatches)} mismatches")
        for kind, count in kinds.most_common(40):
            say(f"          {count:5} {kind}")
        for each in [each for each in mismatches if each.check not in ("table", "topic")][:_SHOWN]:
            say(str(each)[:2000])

    def _settle(self) -> None:
        """Wait until everything written so far is in the tables and in Kafka, and all frames are."""
        marked = self.workload.mark()

        def is_in() -> bool:
            self._keep_session()
            complete = Watermark.read(self.store, layout.complete(CLUSTER))
            if complete is None or complete.until is None or complete.until.timestamp() <= marked:
                return False
            waiting = (layout.incoming_prefix(CLUSTER), layout.frames_prefix(CLUSTER))
            return not any(self._waits(prefix) for prefix in waiting) and not publish_due(self.store, CLUSTER)

        self._until(is_in, "everything written is in tables and topics")

    def _answer(self) -> Answer:
        reader = self.ring.session("ALL")
        try:
            return answer.read(reader, page_rows=PAGE_ROWS)
        finally:
            reader.cluster.shutdown()

    def _accounts(self) -> Iterator[Mismatch]:
        """Each batch since the last quiet point balances and has no problems."""
        last = self._sealed()
        for number in range(self._checked + 1, last + 1):
            sealed = read_sealed(self.store, CLUSTER, number)
            if sealed is not None and sealed.void is None:
                yield from check.check_batch(sealed, None, f"batch {number}")
        self.result.done["batches"], self._checked = last, last

    # --- what is where

    def _sealed(self) -> int:
        sealed = history(self.store, CLUSTER).sealed
        return 0 if sealed is None else sealed.number

    def _frames_waiting(self) -> bool:
        return self._waits(layout.frames_prefix(CLUSTER))

    def _waits(self, prefix: str) -> bool:
        return next(iter(self.store.list(prefix)), None) is not None

    def _knows_tables(self) -> bool:
        """Whether a snapshot of the schema with cdc on has come into a batch."""
        self._keep_session()
        sealed = history(self.store, CLUSTER).sealed
        if sealed is None:
            return False
        tables = {each.full_name: each.cdc for each in known_schema(self.store, CLUSTER).schema().tables.values() if not each.dropped}
        return all(tables.get(f"{KEYSPACE}.{name}") for name in TABLES)

    def _all_read(self, tables: Sequence[str] = TABLES, since: datetime = _EVER) -> bool:
        """Whether each table was read completely since then."""

        def is_read(run: bootstrap.Run) -> bool:
            return run.part is None and run.finished_at is not None and run.started_at >= since

        return all(any(map(is_read, bootstrap.runs(self.store, CLUSTER, KEYSPACE, name))) for name in tables)

    def _until(self, holds: Callable[[], bool], what: str) -> None:
        deadline = time.monotonic() + PATIENCE
        while not holds():
            if time.monotonic() > deadline:
                raise AssertionError(f"not within {PATIENCE:.0f} s: {what}; the session: {self._session.last_words()}")
            time.sleep(0.3)

    def _until_hints_are_delivered(self) -> None:
        since = time.monotonic()
        while time.monotonic() - since < 2:
            if any(path for node in self.ring.nodes for path in node.hints.glob("*.hints")):
                self._until(lambda: not any(p for node in self.ring.nodes for p in node.hints.glob("*.hints")), "hints are delivered")
                since = time.monotonic()
            time.sleep(0.2)

    # --- processes

    def _hold(self, *nodes: Node) -> None:
        for node in nodes:
            self._shippers[node.number].stop()

    def _release(self, *nodes: Node) -> None:
        for node in nodes:
            self._shippers[node.number].start()

    def _job(self, name: str, *arguments: str) -> Job:
        command = [sys.executable, "-m", "proof.bootstrap.child", name, "--config", str(self._yaml), *arguments]
        return Job(command, self.folder / f"{name}.log", {sabotage.VARIABLE: self._rule})

    def _tell(self, text: str) -> None:
        say(f"{time.monotonic() - self._begun:6.0f} s  {text}")


def _tables(names: Iterable[str]) -> Read:
    return tuple(each for name in names for each in ("--table", f"{KEYSPACE}.{name}"))


def _some(random: Random, tables: Sequence[str]) -> Read:
    """Some tables, or a part of one."""
    some = _tables(random.sample(tables, min(len(tables), random.randint(1, 3))))
    if random.random() < 0.75:
        return some
    low = random.randrange(-(2**62), 2**61)
    return (*some[:2], f"--token-range={low}:{low + 2**62}")


class Shipper:
    """A node's shipper, in a thread; it may stand still for a while."""

    def __init__(self, config: PipelineConfig, node: Node, folder: Path) -> None:
        ship = ShipConfig(tail_seconds=1, listen=None)
        self._about = NodeConfig(
            cdc_raw=node.cdc_raw,
            address=node.address,
            port=node.port,
            poll_seconds=1,
            state_dir=folder / f"shipper-{node.number}",
            ship=ship,
        )
        self._config = config.model_copy(update={"node": self._about})
        self._stop = threading.Event()
        self._thread: threading.Thread | None = None

    def start(self) -> None:
        if self._thread is None:
            self._stop = threading.Event()
            self._thread = threading.Thread(target=self._run, args=(self._stop,), daemon=True)
            self._thread.start()

    def stop(self) -> None:
        if self._thread is not None:
            self._stop.set()
            self._thread.join(PATIENCE)
            self._thread = None

    def _run(self, stop: threading.Event) -> None:
        with Link(self._about) as link:
            Agent(self._config, open_store(self._config.bucket), link=link, stop=stop).run(Mode.SERVICE)


class Job:
    """A job as a process group, which is killed as a whole."""

    def __init__(self, command: list[str], log: Path, environment: Mapping[str, str]) -> None:
        self._command, self._log, self._environment = command, log, {**os.environ, **environment}
        self._process: subprocess.Popen[bytes] | None = None
        self._from = 0

    def start(self) -> None:
        with self._log.open("ab") as log:
            self._from = log.tell()
            self._process = subprocess.Popen(self._command, cwd=ROOT, env=self._environment, stdout=log, stderr=log, start_new_session=True)

    @property
    def running(self) -> bool:
        return self._process is not None and self._process.poll() is None

    @property
    def code(self) -> int | None:
        return None if self._process is None else self._process.poll()

    def kill(self) -> bool:
        """Whether it was running."""
        if self._process is None or not self.running:
            return False
        with suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)
        return self._process.wait() == -signal.SIGKILL

    def stop(self) -> None:
        """Ask it to end, and wait."""
        if self._process is None or not self.running:
            return
        self._process.terminate()
        try:
            self._process.wait(PATIENCE)
        except subprocess.TimeoutExpired:
            self.kill()

    def said(self, text: str) -> bool:
        """Whether its output contains the text."""
        return text in self._output()

    def last_words(self) -> str:
        lines = [line for line in self._output().splitlines() if "rror" in line or "failed" in line]
        return " | ".join(lines[-3:])[:1500]

    def _output(self) -> str:
        with self._log.open(encoding="utf-8", errors="replace") as log:
            log.seek(self._from)
            return log.read()
