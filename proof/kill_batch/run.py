"""Batches of a recorded ring through ingest and publish, each a process that is killed again and again, and what came of it.

Strategy: as `proof.orders`, segments of three nodes are cut anew and shuffled, and come in a few at a time. Each batch is
ingested, and now and then published, by jobs that are killed until luck, or the number of kills, lets them through: at each point in turn,
or at a random moment. Now and then two drivers run one batch, or two publishers the same outbox, at once; one is stopped and wakes when its
batch is sealed and archived; segments are put again with the same bytes, before their batch reads them or after it is archived; the
configuration is edited after a batch was begun; two archive one batch at once; a batch that was killed half-way is voided, its input
comes in with the next, and a driver that was stopped in it wakes up. Once in a run `batches/` is restored from a backup of before the
last batches: the next batch has to be refused, and a rebuild, killed like all jobs, makes state and tables again. Now and then the broker
is killed under a publisher, within a transaction say, and comes back after a while; and once in a while it is away for so long that whole
batches are ingested meanwhile. In the end a consumer that reads committed records must have seen each event of the changes tables once,
those of a key in order; the tables must be what the ring answered; and the changes must fold to the tables.
"""

from __future__ import annotations

import json
import os
import pickle
import shutil
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from itertools import cycle
from pathlib import Path
from random import Random
from threading import Thread
from typing import Any

from confluent_kafka import Consumer, KafkaError, TopicPartition

from proof.kill_batch import points, sabotage
from proof.orders import Order, Orders, Piece, rows_of
from proof.recording.recording import Recording
from tools import ROOT
from tools.console import say
from tools.services.kafka import Kafka
from writetime.config.pipeline import ColumnsConfig, EventsConfig, PipelineConfig
from writetime.events import envelope
from writetime.events.naming import to_changes_namespace, to_column
from writetime.pipeline import chains, pinned
from writetime.pipeline.archiver import archive
from writetime.pipeline.documents import Manifest, Sealed
from writetime.pipeline.planner import plan_ingest, plan_replay, read_sealed
from writetime.pipeline.void import void

LONGEST = 600.0
"""Seconds after which a job that was not killed counts as stuck."""
MOMENTS = (2.0, 30.0)
"""Between how many seconds after its start a job is killed that is not killed at a point."""
AWAY = (4.0, 30.0)
"""Between how many seconds after its death the broker is back."""
VOIDED = 0.4
"""Share of the batches that are voided and planned again."""
ABSENCE = 3
"""Batches that are ingested while there is no broker for long."""


@dataclass
class Result:
    """What a run came to."""

    seed: int
    kills: Counter[str] = field(default_factory=Counter)
    jobs: Counter[str] = field(default_factory=Counter)
    rivals: int = 0
    outages: int = 0
    absences: int = 0
    late: int = 0
    again: int = 0
    edited: int = 0
    voids: int = 0
    restored: int = 0
    failed: int = 0
    batches: int = 0
    events: int = 0
    lost: int = 0
    doubled: int = 0
    problems: list[str] = field(default_factory=list)

    @property
    def holds(self) -> bool:
        return not (self.lost or self.doubled or self.problems)

    def __str__(self) -> str:
        runs = ", ".join(f"{count} of {job}" for job, count in sorted(self.jobs.items()))
        return (
            f"seed {self.seed}: {self.kills.total()} kills at {len(self.kills)} points; {runs}; two at once {self.rivals} times, late "
            f"{self.late} times, {self.again} segments put again, {self.edited} batches with an edited configuration, "
            f"{self.voids} voided, batches/ restored {self.restored} times, broker killed {self.outages} times within a job, "
            f"away for {ABSENCE} batches {self.absences} times, {self.failed} jobs failed for it or for "
            f"a rival; {self.batches} batches, {self.events} events: lost {self.lost}, doubled {self.doubled}, "
            f"{len(self.problems)} other problems"
        )


class Kills(Orders):
    """One run under `folder`: with `kills` at points and moments by chance, or only at those of a broken `rule`."""

    def __init__(self, folder: Path, seed: int, kills: int, *, rule: str | None = None, pieces: int = 8) -> None:
        super().__init__(folder, pieces=pieces)
        self.random = Random(f"{seed} kills")
        self.wanted, self.rule = kills, rule
        self.result = Result(seed)
        self.pipeline = self._empty(seed)
        self.kafka = Kafka(folder / "kafka")
        self._returning: Thread | None = None
        self._told_until = 0
        self._sent: Counter[tuple[str, int, int]] = Counter()
        self._silent_upto = 0
        self._sleepers: list[tuple[str, subprocess.Popen[bytes], Path]] = []
        self._points = {job: cycle(self.random.sample(found, len(found))) for job, found in _POINTS.items()}

    def play(self) -> Result:
        """All of it; what came of it."""
        with self.kafka:
            self._configure()
            pieces = list(self._pieces(self.random))
            hours = [piece.sealed_at.replace(minute=0, second=0, microsecond=0) for piece in pieces]
            self._hours = min(hours), max(hours) + timedelta(hours=1)
            restores = sabotage.RULES[self.rule].restores if self.rule is not None else True
            middle, late = self._keep_back(pieces) if restores else ([], [])
            self.random.shuffle(pieces)
            while pieces:
                self._bring_in([pieces.pop() for _ in range(min(len(pieces), self.random.randint(1, 3)))])
                if self.rule is None and self.random.random() < 0.25 and len(pieces) > ABSENCE:
                    self._be_without_broker(pieces)
                if self.random.random() < 0.7:
                    self._run("publish")
            if restores:
                self._restore(middle, late)
            while self.result.kills.total() < self.wanted:
                self._replay_all()
                self._run("publish")
            if self.result.voids and self.rule is None:
                # What a driver has committed that was held up is taken back by the next batch.
                self._replay_all()
            self._run("publish")
            self._wait_for_broker()
            self._compare_topics()
        order = Order(self.result.seed)
        self._compare(self.pipeline, order)
        self.result.problems += order.problems
        return self.result

    def _configure(self) -> None:
        """The configuration of the jobs, where they find it: with points in Spark's workers, too."""
        config = self.pipeline.config
        assert config.kafka is not None
        spark = {**config.spark.conf, "spark.python.daemon.module": "proof.kill_batch.daemon"}
        update = {
            "kafka": config.kafka.model_copy(update={"bootstrap_servers": self.kafka.bootstrap}),
            "spark": config.spark.model_copy(update={"conf": spark}),
        }
        self.config: PipelineConfig = config.model_copy(update=update)
        self._config_file = self.pipeline.site.folder / "config.pickle"
        self._config_file.write_bytes(pickle.dumps(self.config))
        # What it says would show in every event and row.
        edit = {"columns": ColumnsConfig.model_validate({"column.mask.with.3.chars": ".*"}), "events": EventsConfig(versions="last")}
        self._edited_file = self.pipeline.site.folder / "edited.pickle"
        self._edited_file.write_bytes(pickle.dumps(self.config.model_copy(update=edit)))

    # --- jobs ------------------------------------------------------------------------------------------------------------------------

    def _bring_in(self, pieces: Sequence[Piece]) -> None:
        store, cluster = self.pipeline.store, self.pipeline.cluster
        for piece in pieces:
            self._put(piece)
        manifest = plan_ingest(store, cluster, now=datetime.now(UTC))
        self._put_again(pieces, 0.3)
        self._batch(manifest)
        self._put_again(pieces, 0.15)

    def _put(self, piece: Piece) -> None:
        self.pipeline.store.put(piece.name, piece.data, metadata={"sealed_at": piece.sealed_at.isoformat()})

    def _put_again(self, pieces: Sequence[Piece], chance: float) -> None:
        """Some of them once more, with the same bytes."""
        for piece in pieces:
            if self.rule is None and self.random.random() < chance:
                self._put(piece)
                self.result.again += 1

    def _keep_back(self, pieces: list[Piece]) -> tuple[list[Piece], list[Piece]]:
        """Take the last two pieces of each node's log away: nothing in them is known from another node's before they come."""
        of_node: dict[str, list[Piece]] = {}
        for piece in sorted(pieces, key=lambda piece: piece.sealed_at):
            of_node.setdefault(piece.name.rpartition("/")[0], []).append(piece)
        middle, late = ([found[at] for found in of_node.values()] for at in (-2, -1))
        for piece in (*middle, *late):
            pieces.remove(piece)
        return middle, late

    def _restore(self, middle: Sequence[Piece], late: Sequence[Piece]) -> None:
        """`batches/` is put back as it was before the last two batches: what follows is refused, and then rebuilt."""
        folder = Path(self.config.bucket) / "batches"
        shutil.copytree(folder, self.folder / "backup")
        self._bring_in(middle[:1])
        self._bring_in(middle[1:])
        self._run("publish")
        self._wait_for_broker()
        self._sent = self._changes()
        shutil.rmtree(folder)
        shutil.copytree(self.folder / "backup", folder)
        self.result.restored += 1
        say("  batches/ restored from before the last two batches")
        for piece in late:
            self._put(piece)
        manifest = plan_ingest(self.pipeline.store, self.pipeline.cluster, now=datetime.now(UTC))
        assert manifest is not None
        refused = not self._ended("ingest", self._start("ingest", str(manifest.number)), "restored")
        if not refused or "another chain" not in self._last_line():
            self.result.problems.append(f"a batch after batches/ was restored was not refused: {self._last_line()}")
        if self._rebuild():
            self._batch(plan_ingest(self.pipeline.store, self.pipeline.cluster, now=datetime.now(UTC)))
        self._run("publish")

    def _rebuild(self) -> bool:
        """Whether it is finished: until then nothing else is planned."""
        if self.rule is None:
            self._run("rebuild")
        elif not self._ended("rebuild", self._start("rebuild")):
            self.result.problems.append(f"the rebuild failed: {self._last_line()}")
        done = chains.current(self.pipeline.store, self.pipeline.cluster)
        if done is None or done.chain.upto is None:
            self.result.problems.append("the rebuild is not finished")
            return False
        self._silent_upto = done.chain.upto
        return True

    def _changes(self) -> Counter[tuple[str, int, int]]:
        """The events that the changes tables hold: topic, batch, ordinal."""
        assert self.config.kafka is not None
        found: Counter[tuple[str, int, int]] = Counter()
        for keyspace, table in Recording.open().cdc_tables:
            topic = envelope.topic(self.config.kafka.topic_prefix, keyspace, table)
            changes = rows_of(self.pipeline, to_changes_namespace(keyspace), to_column(table))
            found.update((topic, change["batch"], change["ordinal"]) for change in changes)
        return found

    def _replay_all(self) -> None:
        """The archive once more: nothing is new, however often it is tried."""
        store, cluster = self.pipeline.store, self.pipeline.cluster
        told = self._batch(plan_replay(store, cluster, start=self._hours[0], end=self._hours[1], now=datetime.now(UTC))).events
        self.result.problems += [f"a replay told of {told} events"] if told else []

    def _batch(self, manifest: Manifest | None) -> Sealed:
        store, cluster = self.pipeline.store, self.pipeline.cluster
        assert manifest is not None
        rule = sabotage.RULES[self.rule] if self.rule is not None else None
        void_it = rule.voids if rule is not None else self.random.random() < VOIDED
        if void_it and manifest.kind == "ingest" and (following := self._void(manifest)) is not None:
            manifest = following
        edited = rule.edited if rule is not None else self.random.random() < 0.25
        if edited:
            # The batch was begun with the configuration that the runs do not find any more.
            pinned.configuration(store, manifest, self.config)
            self.result.edited += 1
        self._run("ingest", str(manifest.number), config=self._edited_file if edited else self._config_file)
        sealed = read_sealed(store, cluster, manifest.number)
        assert sealed is not None
        self.result.problems += [
            f"batch {sealed.number}: {account} does not balance" for account in sealed.accounting if not account.balanced
        ]
        with ThreadPoolExecutor(2) as pool:
            list(pool.map(lambda _: archive(store, cluster, sealed.number), range(self.random.choice((1, 2)))))
        self._wake()
        self.result.batches += 1
        return sealed

    def _void(self, manifest: Manifest) -> Manifest | None:
        """Kill the batch half-way, or leave a driver of it stopped, and void it; the batch that takes its
        input in. None if it was sealed.

        The driver that was stopped wakes when a later batch is sealed, or, by chance, before the next one
        begins."""
        store, cluster = self.pipeline.store, self.pipeline.cluster
        self._present_config = self._config_file
        point = self.random.choice(points.COMMITTING) if self.rule is None else points.COMMITTING[-1]
        if self.rule is None and not self._sleepers and self.random.random() < 0.4:
            self._start_and_stop("ingest", str(manifest.number), point=self.random.choice((point, points.PAST_FENCE)))
        if read_sealed(store, cluster, manifest.number) is None:
            self._ended("ingest", self._start("ingest", str(manifest.number), point=point), point)
        if read_sealed(store, cluster, manifest.number) is not None:
            return None
        void(store, cluster, manifest.number, reason="killed half-way", by="kill")
        self.result.voids += 1
        say(f"  batch {manifest.number} voided")
        if self.rule is None and self.random.random() < 0.5:
            self._wake()
        following = plan_ingest(store, cluster, now=datetime.now(UTC))
        assert following is not None
        lost = {segment.object for segment in manifest.segments} - {segment.object for segment in following.segments}
        self.result.problems += [f"batch {following.number} lacks segments of the voided one: {lost}"] if lost else []
        return following

    def _run(self, job: str, *arguments: str, config: Path | None = None) -> None:
        """Start a job until one of it has come to its end."""
        self._present_config = config or self._config_file
        for plan in self._plans(job):
            if plan.startswith("late "):
                if self._ended_early(job, self._start_and_stop(job, *arguments, point=plan.removeprefix("late "))):
                    return
                continue
            if plan == "rivals":
                self.result.rivals += 1
                both = [self._start(job, *arguments) for _ in range(2)]
                ended = [self._ended(job, process, plan) for process in both]
                if all(ended):
                    return
                continue
            if plan == "outage":
                if self._ended(job, self._start_and_lose_broker(job, *arguments), plan):
                    return
                continue
            at = self.random.choice((0, 0, 1)) if plan in points.INGEST + points.PUBLISH else 0
            process = self._start(job, *arguments, point=plan, at=at)
            if plan == "moment":
                self._kill_later(process)
            if self._ended(job, process, plan):
                return
        raise AssertionError("plans never end")

    def _plans(self, job: str) -> Iterator[str]:
        """What happens to each attempt: a point, `moment`, `rivals`, `outage` (of the broker), or `` for nothing."""
        if self.rule is not None:
            rule = sabotage.RULES[self.rule]
            yield from [point for point in rule.points if point in (*_POINTS[job], *(_EXTRA if job == "publish" else ()))]
            if rule.rivals and job == "publish":
                yield "rivals"
        if self.rule is None and job == "rebuild":
            # There is one in a run: it is killed, however many kills there were before.
            yield next(self._points[job])
        while self.rule is None and self.result.kills.total() < self.wanted:
            chance = self.random.random()
            if chance < 0.08 and job != "rebuild":
                yield "rivals"
            elif chance < 0.28 and job == "publish":
                yield "outage"
            elif chance < 0.4:
                yield "moment"
            elif chance < 0.5 and job == "ingest" and not self._sleepers:
                yield f"late {next(self._points[job])}"
            elif chance < 0.9:
                yield next(self._points[job])
            else:
                break
        yield from cycle([""])

    def _start(
        self, job: str, *arguments: str, point: str = "", at: int = 0, victim: str = "", stopped: str = ""
    ) -> subprocess.Popen[bytes]:
        environment = {**os.environ, "PYTHONPATH": str(ROOT), points.POINT: point, points.AT: str(at), sabotage.RULE: self.rule or ""}
        environment |= {points.VICTIM: victim, points.STOPPED: stopped}
        command = [sys.executable, "-m", "proof.kill_batch.child", str(self._present_config), job, *arguments]
        self.result.jobs[job] += 1
        with (self.folder / "jobs.log").open("ab") as log:
            self._told_until = log.tell()
            return subprocess.Popen(command, cwd=ROOT, env=environment, stdout=log, stderr=log, start_new_session=True)

    def _ended(self, job: str, process: subprocess.Popen[bytes], plan: str = "") -> bool:
        """Wait for the end of a job: whether it came to it by itself, and in peace."""
        try:
            code = process.wait(LONGEST)
        except subprocess.TimeoutExpired:
            self.result.problems.append(f"{job} was stuck for {LONGEST:.0f} s")
            _kill(process)
            return False
        if code == -signal.SIGKILL:
            self.result.kills[plan] += 1
            say(f"  {self.result.kills.total()}: {job} killed, {plan}")
        elif code != 0:
            self.result.failed += 1
            say(f"  {job} failed{f' ({plan})' if plan else ''}: {self._last_line()}")
        return code == 0

    def _start_and_stop(self, job: str, *arguments: str, point: str) -> subprocess.Popen[bytes]:
        """A job that is stopped at a point, if it passes that, or has come to its end."""
        file = self.folder / f"stopped-{self.result.jobs.total()}"
        process = self._start(job, *arguments, point=point, stopped=str(file))
        give_up = time.monotonic() + LONGEST
        while process.poll() is None and not file.exists() and time.monotonic() < give_up:
            time.sleep(0.1)
        if process.poll() is None and file.exists():
            say(f"  {job} stopped, {point}")
            self._sleepers.append((job, process, file))
        return process

    def _ended_early(self, job: str, process: subprocess.Popen[bytes]) -> bool:
        """Whether a job that was to be stopped has come to its end instead, and in peace."""
        return not any(process is each for _, each, _ in self._sleepers) and self._ended(job, process)

    def _wake(self) -> None:
        """Let what was stopped go on. Another has done its work meanwhile: it may find that, or fail, and changes nothing."""
        while self._sleepers:
            job, process, file = self._sleepers.pop()
            self.result.late += 1
            for group in {int(each) for each in file.read_text().split()}:
                with suppress(ProcessLookupError):
                    os.killpg(group, signal.SIGCONT)
            self._ended(job, process, "late")

    def _kill_later(self, process: subprocess.Popen[bytes]) -> None:
        with suppress(subprocess.TimeoutExpired):
            process.wait(self.random.uniform(*MOMENTS))
            return
        _kill(process)

    def _start_and_lose_broker(self, job: str, *arguments: str) -> subprocess.Popen[bytes]:
        """A job under which the broker dies at a point, if it passes that; the broker is back some seconds later."""
        self._wait_for_broker()
        service = self.kafka.service
        assert service is not None
        point, away = self.random.choice(points.OUTAGES), self.random.uniform(*AWAY)
        process = self._start(job, *arguments, point=point, victim=str(service.pid))

        def watch() -> None:
            while service.alive and process.poll() is None:
                time.sleep(0.1)
            if not service.alive:
                self.result.outages += 1
                say(f"  broker killed under {job}, {point}; back in {away:.0f} s")
                time.sleep(away)
                self.kafka.stop()
                self.kafka.start()

        self._returning = Thread(target=watch)
        self._returning.start()
        return process

    def _wait_for_broker(self) -> None:
        if self._returning is not None:
            self._returning.join()

    def _be_without_broker(self, pieces: list[Piece]) -> None:
        """Batches come in while there is no broker, and publishing fails; then all of it is to be caught up with."""
        self._wait_for_broker()
        say(f"  broker away for {ABSENCE} batches")
        self.result.absences += 1
        self.kafka.stop()
        for _ in range(ABSENCE):
            self._bring_in([pieces.pop()])
        if self._ended("publish", self._start("publish"), "without a broker"):
            self.result.problems.append("publishing came to its end without a broker")
        self.kafka.start()

    def _last_line(self) -> str:
        with (self.folder / "jobs.log").open(errors="replace") as log:
            log.seek(self._told_until)
            lines = log.read().splitlines()
        return next((line for line in reversed(lines) if "failed:" in line), "")[:300]

    # --- what came of it -------------------------------------------------------------------------------------------------------------

    def _compare_topics(self) -> None:
        """Each event of the changes tables once, those of a key in order; those that were sent before a rebuild, and none of its own."""
        present = Counter({event: count for event, count in self._changes().items() if event[1] > self._silent_upto})
        for keyspace, table in Recording.open().cdc_tables:
            assert self.config.kafka is not None
            topic = envelope.topic(self.config.kafka.topic_prefix, keyspace, table)
            of_topic = ((event, count) for event, count in (self._sent + present).items() if event[0] == topic)
            expected = Counter({event[1:]: count for event, count in of_topic})
            of_key: dict[bytes | None, list[tuple[int, int]]] = {}
            for key, value in committed(self.kafka.bootstrap, topic):
                if value is not None:
                    of_key.setdefault(key, []).append(tuple(json.loads(value)["source"]["sequence"]))
            found = Counter(sequence for sequences in of_key.values() for sequence in sequences)
            self.result.events += expected.total()
            self.result.lost += (expected - found).total()
            self.result.doubled += (found - expected).total()
            if expected and max(expected.values()) > 1:
                self.result.problems.append(f"{keyspace}.{table}: an event stands twice in the changes")
            wrong = [key for key, sequences in of_key.items() if sequences != sorted(sequences)]
            self.result.problems += [f"{keyspace}.{table}: events of {key!r} are out of order" for key in wrong]


_POINTS = {"ingest": points.INGEST, "publish": points.PUBLISH, "rebuild": points.INGEST}
_EXTRA = (sabotage.BETWEEN,)


def _kill(process: subprocess.Popen[bytes]) -> None:
    with suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()


def committed(bootstrap: str, topic: str) -> Iterator[tuple[bytes | None, bytes | None]]:
    """Keys and values of a topic, as consumers of committed records see them, partition by partition."""
    consumer = Consumer(
        {
            "bootstrap.servers": bootstrap,
            "group.id": f"kills-{time.monotonic_ns()}",
            "isolation.level": "read_committed",
            "enable.partition.eof": True,
        }
    )
    try:
        listed: Any = consumer.list_topics(topic, timeout=30).topics[topic]
        for partition in listed.partitions:
            consumer.assign([TopicPartition(topic, partition, 0)])
            while (message := consumer.poll(60)) is not None:
                error = message.error()
                if error is None:
                    yield message.key(), message.value()
                elif error.code() == KafkaError._PARTITION_EOF:
                    break
                else:
                    raise AssertionError(str(error))
    finally:
        consumer.close()
