"""Batches of a recorded cluster through ingest and publish, with jobs killed repeatedly, and the comparison
of the results.

Strategy: as in `proof.orders`, segments of three nodes are split again and shuffled, and arrive a few at a
time. Each batch is ingested, and sometimes published, by jobs that are killed until chance or the number of
kills lets one finish: at each point in turn, or at a random moment. Sometimes two drivers run one batch, or
two publishers one outbox; a driver is stopped and resumed after its batch is sealed and archived; segments
are uploaded again with the same bytes, before or after their batch; the configuration is edited after a batch
was begun; two processes archive one batch; an incomplete batch is voided, so that the next one reads its
input, and a driver that was stopped in it is resumed. All of a table is sent again, by a request that is killed,
stopped and repeated, beside a publisher or a session. Once per run `batches/` is restored from a backup of
before the last batches: the next batch must be rejected, and a rebuild, killed like all jobs and beside another
driver of it or a publisher, makes state and tables again. Sometimes the broker is killed during a publish, for
example in a transaction, and restarted later; once in a while it is down for several batches. Half-way,
`kafka.partition_by` may be switched to `partition_key`. At the end, a consumer that reads committed records must have
received each event of the changes tables once, or once more for each request to send it again, those of one key in
order each time; after a switch, those of one partition key in one partition of the topic, in order, and none of them
before the marker; tables must equal the cluster's answers; and the changes must fold to the tables.
"""

from __future__ import annotations

import json
import os
import pickle
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from itertools import cycle
from pathlib import Path
from random import Random
from threading import Thread
from typing import Any

from confluent_kafka import Consumer, KafkaError, TopicPartition

from proof import in_s3
from proof.kill_batch import points, sabotage
from proof.orders import Order, Orders, Segment, rows_of
from proof.recording.recording import Recording
from tests.spark_jobs.pipeline import Pipeline
from tools import ROOT
from tools.console import say
from tools.services.kafka import Kafka
from writetime.config.kafka import EventsConfig
from writetime.config.pipeline import PipelineConfig
from writetime.config.tables import ColumnsConfig
from writetime.events import envelope
from writetime.events.naming import to_changes_namespace, to_column
from writetime.pipeline import chains, pinned
from writetime.pipeline.archiver import archive
from writetime.pipeline.documents import Manifest, Sealed
from writetime.pipeline.planner import history, plan_ingest, plan_replay, read_schema, read_sealed
from writetime.pipeline.publish_progress import read_published
from writetime.pipeline.void import void

LONGEST = 600.0
"""Seconds after which a job that was not killed counts as stuck."""
MOMENTS = (2.0, 30.0)
"""Between how many seconds after its start a job is killed that is not killed at a point."""
AWAY = (4.0, 30.0)
"""Between how many seconds after its death the broker is back."""
VOIDED = 0.4
"""Share of the batches that are voided and planned again."""
_SENT_AGAIN = 0.2
"""How often all of a table is sent again after some segments came in."""
ABSENCE = 3
"""Batches that are ingested while there is no broker for long."""


@dataclass
class Result:
    """The result of a run."""

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
    requests: int = 0
    failed: int = 0
    batches: int = 0
    events: int = 0
    switched: int = 0
    """Events since `kafka.partition_by` was switched."""
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
            f"{self.voids} voided, batches/ restored {self.restored} times, a table sent again {self.requests} times, "
            f"broker killed {self.outages} times within a job, "
            f"away for {ABSENCE} batches {self.absences} times, {self.failed} jobs failed for it or for "
            f"a rival; {self.batches} batches, {self.events} events, {self.switched} of them since a switch of partitions: "
            f"lost {self.lost}, doubled {self.doubled}, {len(self.problems)} other problems"
        )


class Kills(Orders):
    """A run under `folder`: `kills` at random points and moments, or only the kills of a broken `rule`. With
    `session`, streaming sessions ingest and publish, sometimes against a job of the other mode. With `switches`,
    `kafka.partition_by` is switched half-way. `store`: where bucket, state and tables are; `in_s3.serving` runs it."""

    def __init__(
        self,
        folder: Path,
        seed: int,
        kills: int,
        *,
        rule: str | None = None,
        segments: int = 8,
        session: bool = False,
        switches: bool = False,
        store: str = "folder",
    ) -> None:
        super().__init__(folder, segments=segments)
        self.session = session
        self.switches = switches or (rule is not None and sabotage.RULES[rule].switches)
        self.random = Random(f"{seed} kills")
        self.wanted, self.rule = kills, rule
        self.result = Result(seed)
        pipeline = Pipeline.create(folder / f"order-{seed}")
        self.pipeline = self.filled(_in_s3(pipeline) if store == "s3" else pipeline)
        self.kafka = Kafka(folder / "kafka", port=0)
        self._returning: Thread | None = None
        self._log_offset = 0
        self._sent: Counter[tuple[str, int, int]] = Counter()
        self._silent_upto = 0
        self._requests: list[tuple[str, int]] = []
        self._switched: int | None = None
        self._sleepers: list[tuple[str, subprocess.Popen[bytes], Path]] = []
        self._points = {job: cycle(self.random.sample(found, len(found))) for job, found in _POINTS.items()}

    def play(self) -> Result:
        """Execute the run and return its result."""
        with self.kafka:
            self._configure()
            segments = list(self.cut(self.random))
            hours = [segment.sealed_at.replace(minute=0, second=0, microsecond=0) for segment in segments]
            self._hours = min(hours), max(hours) + timedelta(hours=1)
            restores = sabotage.RULES[self.rule].restores if self.rule is not None else True
            middle, late = self._keep_back(segments) if restores else ([], [])
            self.random.shuffle(segments)
            if self.switches:
                # What comes in after the switch is new then.
                late_in_log = {segment.name for log in _logs(segments) for segment in log[len(log) // 2 :]}
                segments.sort(key=lambda segment: segment.name not in late_in_log)
            half = len(segments) // 2
            while segments:
                if self.switches and len(segments) <= half:
                    self._switch()
                upto = half if self.switches else 0
                self._bring_in([segments.pop() for _ in range(min(len(segments) - upto, self.random.randint(1, 3)))])
                if self.rule is None and self.random.random() < 0.25 and len(segments) > ABSENCE:
                    self._be_without_broker(segments)
                if self.random.random() < 0.7:
                    self._run(self._publisher)
                if self.rule is None and self.random.random() < _SENT_AGAIN:
                    self._send_again()
            if restores:
                self._restore(middle, late)
            while self.result.kills.total() < self.wanted:
                self._replay_all()
                self._run(self._publisher)
            if self.result.voids and self.rule is None:
                # The next batch reverts late commits of a driver that was stopped.
                self._replay_all()
            self._run(self._publisher)
            self._wake()
            self._wait_for_broker()
            self._compare_topics()
            if self._switched is not None and not self.result.switched:
                self.result.problems.append("no event since the switch: it shows nothing")
        order = Order(self.result.seed)
        self._compare(self.pipeline, order)
        self.result.problems += order.problems
        return self.result

    def _configure(self) -> None:
        """Write the jobs' configuration, with points in Spark's workers."""
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
        # Its effect would be visible in every event and row.
        edit = {"columns": ColumnsConfig.model_validate({"column.mask.with.3.chars": ".*"}), "events": EventsConfig(deletes="one")}
        self._edited_file = self.pipeline.site.folder / "edited.pickle"
        self._edited_file.write_bytes(pickle.dumps(self.config.model_copy(update=edit)))

    def _switch(self) -> None:
        """Edit the configuration, once: the next batch is partitioned by partition keys."""
        self.switches = False
        self._switched = history(self.pipeline.store, self.pipeline.cluster).last + 1
        for file in (self._config_file, self._edited_file):
            config = pickle.loads(file.read_bytes())
            kafka = config.kafka.model_copy(update={"partition_by": "partition_key"})
            file.write_bytes(pickle.dumps(config.model_copy(update={"kafka": kafka})))
        self.config = pickle.loads(self._config_file.read_bytes())
        say("  partition_by switched to partition_key")

    @property
    def _publisher(self) -> str:
        return "session" if self.session else "publish"

    # --- jobs

    def _bring_in(self, segments: Sequence[Segment]) -> None:
        store, cluster = self.pipeline.store, self.pipeline.cluster
        for segment in segments:
            self._put(segment)
        manifest = plan_ingest(store, cluster, now=datetime.now(UTC))
        self._put_again(segments, 0.3)
        self._batch(manifest)
        self._put_again(segments, 0.15)

    def _put(self, segment: Segment) -> None:
        self.pipeline.store.put(segment.name, segment.data, metadata={"sealed_at": segment.sealed_at.isoformat()})

    def _put_again(self, segments: Sequence[Segment], chance: float) -> None:
        """Upload some of the segments again with the same bytes."""
        for segment in segments:
            if self.rule is None and self.random.random() < chance:
                self._put(segment)
                self.result.again += 1

    def _keep_back(self, segments: list[Segment]) -> tuple[list[Segment], list[Segment]]:
        """Remove the last two segments of each node's log, so that nothing in them is known from another
        node.
        """
        middle, late = ([found[at] for found in _logs(segments)] for at in (-2, -1))
        for segment in (*middle, *late):
            segments.remove(segment)
        return middle, late

    def _restore(self, middle: Sequence[Segment], late: Sequence[Segment]) -> None:
        """Restore `batches/` from before the last two batches: the next batch must be rejected; then
        rebuild."""
        store = self.pipeline.store
        backup = [(info, store.read(info.name)) for info in store.list("batches/")]
        self._bring_in(middle[:1])
        self._bring_in(middle[1:])
        self._run(self._publisher)
        self._wait_for_broker()
        self._sent = self._changes()
        store.discard([each.name for each in store.names("batches/")])
        for info, content in backup:
            store.put(info.name, content, metadata=info.metadata)
        self.result.restored += 1
        say("  batches/ restored from before the last two batches")
        for segment in late:
            self._put(segment)
        manifest = plan_ingest(self.pipeline.store, self.pipeline.cluster, now=datetime.now(UTC))
        assert manifest is not None
        refused = not self._ended("ingest", self._start("ingest", str(manifest.number)), "restored")
        if not refused or "another chain" not in self._last_line():
            self.result.problems.append(f"a batch after batches/ was restored was not refused: {self._last_line()}")
        if self._rebuild():
            self._batch(plan_ingest(self.pipeline.store, self.pipeline.cluster, now=datetime.now(UTC)))
        self._run(self._publisher)

    def _send_again(self) -> None:
        """Ask that all of a table is sent again, until one attempt at it succeeds: all are the same request."""
        published = read_published(self.pipeline.store, self.pipeline.cluster)
        if published is None or not published.batch or self.switches or self._switched is not None:
            # After a switch, events of before would stand behind the marker.
            return
        keyspace, table = self.random.choice(sorted(Recording.open().cdc_tables))
        assert self.config.kafka is not None
        topic = envelope.topic(self.config.kafka.topic_prefix, keyspace, table)
        self._requests.append((topic, published.sent(f"{keyspace}.{table}")))
        self.result.requests += 1
        say(f"  {keyspace}.{table} is to be sent again")
        self._run("again", f"{keyspace}.{table}", f"request-{self.result.requests}")

    def _rebuild(self) -> bool:
        """Whether the rebuild finished: nothing else is planned before."""
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
        """The events in the changes tables: topic, batch, ordinal."""
        assert self.config.kafka is not None
        found: Counter[tuple[str, int, int]] = Counter()
        for keyspace, table in Recording.open().cdc_tables:
            topic = envelope.topic(self.config.kafka.topic_prefix, keyspace, table)
            changes = rows_of(self.pipeline, to_changes_namespace(keyspace), to_column(table))
            found.update((topic, change["batch"], change["ordinal"]) for change in changes)
        return found

    def _replay_all(self) -> None:
        """Replay the archive: it must emit no event."""
        store, cluster = self.pipeline.store, self.pipeline.cluster
        events = self._batch(plan_replay(store, cluster, start=self._hours[0], end=self._hours[1], now=datetime.now(UTC))).events
        self.result.problems += [f"a replay emitted {events} events"] if events else []

    def _batch(self, manifest: Manifest | None) -> Sealed:
        store, cluster = self.pipeline.store, self.pipeline.cluster
        assert manifest is not None
        rule = sabotage.RULES[self.rule] if self.rule is not None else None
        void_it = rule.voids if rule is not None else self.random.random() < VOIDED
        if void_it and manifest.kind == "ingest" and (following := self._void(manifest)) is not None:
            manifest = following
        edited = rule.edited if rule is not None else self.random.random() < 0.25
        if edited:
            # The batch was begun with a configuration that its later runs no longer find.
            pinned.configuration(store, manifest, self.config)
            self.result.edited += 1
        # A session leaves a replay to its own DAG.
        job = "session" if self.session and manifest.kind == "ingest" else "ingest"
        self._run(job, str(manifest.number), config=self._edited_file if edited else self._config_file)
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
        """Kill the batch half-way, or leave a driver of it stopped, and void it. Returns the batch that reads
        its input; None if it was sealed.

        A stopped driver is resumed when a later batch is sealed or, at random, before the next one begins.
        """
        store, cluster = self.pipeline.store, self.pipeline.cluster
        self._present_config = self._config_file
        point = self.random.choice(points.COMMITTING) if self.rule is None else points.COMMITTING[-1]
        if self.rule is None and not self._sleepers and self.random.random() < 0.4:
            self._start_and_stop("ingest", str(manifest.number), point=self.random.choice((point, points.PAST_FENCE, points.FILES_WRITTEN)))
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
        """Start the job repeatedly until one attempt finishes. A publisher that was stopped is resumed then;
        a driver of a batch later, when that is archived."""
        self._run_until_done(job, *arguments, config=config)
        if job in ("publish", "again"):
            self._wake("publish", "again")

    def _run_until_done(self, job: str, *arguments: str, config: Path | None) -> None:
        self._present_config = config or self._config_file
        for plan in self._plans(job):
            if plan.startswith("late "):
                if self._ended_early(job, self._start_and_stop(job, *arguments, point=plan.removeprefix("late "))):
                    return
                continue
            if plan == "rivals":
                self.result.rivals += 1
                rival = self._rival(job, *arguments)
                theirs = arguments if rival == job or job == "session" else ()
                both = [(job, self._start(job, *arguments)), (rival, self._start(rival, *theirs))]
                ended = [self._ended(each, process, plan) for each, process in both]
                # Whoever starts a rebuild that is finished begins another one.
                if all(ended) or (job == "rebuild" and ended[0]):
                    return
                continue
            if plan == "outage":
                if self._ended(job, self._start_and_lose_broker(job, *arguments), plan):
                    return
                continue
            at = self.random.choice((0, 0, 1)) if self.rule is None and plan in points.INGEST + points.PUBLISH else 0
            process = self._start(job, *arguments, point=plan, at=at)
            if plan == "moment":
                self._kill_later(process)
            if self._ended(job, process, plan):
                return
        raise AssertionError("plans never end")

    def _rival(self, job: str, *arguments: str) -> str:
        """The job that runs at the same time as `job`: the same, a publisher, or that of the other mode."""
        if job in ("again", "rebuild") and self.random.random() < 0.5:
            return self._publisher
        if job == "session" and self.random.random() < 0.5:
            return "ingest" if arguments else "publish"
        return job

    def _plans(self, job: str) -> Iterator[str]:
        """The plan for each attempt: a point, `moment`, `rivals`, `outage` (of the broker), or `` for
        none."""
        if self.rule is not None:
            rule = sabotage.RULES[self.rule]
            yield from [point for point in rule.points if point in (*_POINTS[job], *(_EXTRA if job == "publish" else ()))]
            if rule.late and job == "publish":
                yield f"late {rule.late}"
        if self.rule is None and job == "rebuild":
            # There is one rebuild per run: it is always killed once.
            yield next(self._points[job])
        while self.rule is None and self.result.kills.total() < self.wanted:
            chance = self.random.random()
            if chance < 0.08:
                yield "rivals"
            elif chance < 0.28 and job in ("publish", "session", "again") and self.kafka.service is not None:
                yield "outage"
            elif chance < 0.4:
                yield "moment"
            elif chance < 0.5 and job != "rebuild" and not self._sleepers:
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
            self._log_offset = log.tell()
            return subprocess.Popen(command, cwd=ROOT, env=environment, stdout=log, stderr=log, start_new_session=True)

    def _ended(self, job: str, process: subprocess.Popen[bytes], plan: str = "") -> bool:
        """Wait for the end of a job; whether it finished successfully."""
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
        """Start a job and stop it at a point, unless it finishes before."""
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
        """Whether a job that should have been stopped finished successfully instead."""
        return not any(process is each for _, each, _ in self._sleepers) and self._ended(job, process)

    def _wake(self, *jobs: str) -> None:
        """Resume stopped jobs, or only these. Another job has done their work: they may notice or fail, and
        must change nothing.
        """
        woken = [sleeper for sleeper in self._sleepers if not jobs or sleeper[0] in jobs]
        for sleeper in woken:
            self._sleepers.remove(sleeper)
            job, process, file = sleeper
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
        """Start a job during which the broker is killed at a point, if it passes that; the broker restarts
        some seconds later.
        """
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

    def _be_without_broker(self, segments: list[Segment]) -> None:
        """Run batches while the broker is down and publishing fails; publishing must catch up afterwards."""
        self._wait_for_broker()
        say(f"  broker away for {ABSENCE} batches")
        self.result.absences += 1
        self.kafka.stop()
        for _ in range(ABSENCE):
            self._bring_in([segments.pop()])
        if self._ended("publish", self._start("publish"), "without a broker"):
            self.result.problems.append("publishing came to its end without a broker")
        self.kafka.start()

    def _last_line(self) -> str:
        with (self.folder / "jobs.log").open(errors="replace") as log:
            log.seek(self._log_offset)
            lines = log.read().splitlines()
        return next((line for line in reversed(lines) if "failed:" in line), "")[:300]

    # --- what came of it

    def _compare_topics(self) -> None:
        """Each event of the changes tables once, those of one key in order; events sent before a rebuild, and
        none of the rebuild.
        """
        present = Counter({event: count for event, count in self._changes().items() if event[1] > self._silent_upto})
        for keyspace, table in Recording.open().cdc_tables:
            assert self.config.kafka is not None
            topic = envelope.topic(self.config.kafka.topic_prefix, keyspace, table)
            asked = [upto for each, upto in self._requests if each == topic]
            of_topic = ((event, count) for event, count in (self._sent + present).items() if event[0] == topic)
            once = Counter({event[1:]: count for event, count in of_topic})
            # What was published meanwhile may be sent again, too.
            least = Counter({event: count + sum(event[0] <= upto for upto in asked) for event, count in once.items()})
            most = Counter({event: count + len(asked) for event, count in once.items()})
            of_key: dict[bytes | None, list[tuple[int, int]]] = {}
            received = list(committed(self.kafka.bootstrap, topic))
            for _, key, value in received:
                if value is not None:
                    of_key.setdefault(key, []).append(envelope.place_of(json.loads(value)))
            self.result.problems += self._misplaced(keyspace, table, received)
            found = Counter(sequence for sequences in of_key.values() for sequence in sequences)
            self.result.events += least.total()
            self.result.lost += _counted("lost", topic, least - found)
            self.result.doubled += _counted("doubled", topic, found - most)
            if once and max(once.values()) > 1:
                self.result.problems.append(f"{keyspace}.{table}: an event stands twice in the changes")
            for key, sequences in of_key.items():
                # By a switch, a row's later events come in another partition.
                there = [each for each in sequences if self._switched is None or each[0] < self._switched]
                if ascents(there) > 1 + len(asked):
                    self.result.problems.append(f"{keyspace}.{table}: events of {key!r} are out of order")

    def _misplaced(self, keyspace: str, table: str, received: Sequence[tuple[int, bytes | None, bytes | None]]) -> list[str]:
        if (switched := self._switched) is None:
            return []
        last = history(self.pipeline.store, self.pipeline.cluster).sealed
        assert last is not None
        schema = read_schema(self.pipeline.store, self.pipeline.cluster, last.number).schema()
        of = next(each for each in schema.tables.values() if each.full_name == f"{keyspace}.{table}" and not each.dropped)
        batches = (envelope.place_of(json.loads(value))[0] for _, _, value in received if value is not None)
        self.result.switched += sum(batch >= switched for batch in batches)
        wrong = misplaced(received, switched, [column.name for column in of.partition_key])
        return [f"{keyspace}.{table}: {each}" for each in wrong]


def _in_s3(pipeline: Pipeline) -> Pipeline:
    config = in_s3.moved(pipeline.config, pipeline.site.folder)
    return replace(pipeline, config=config, site=replace(pipeline.site, elsewhere=config.bucket, lake=in_s3.reading(config)))


def _logs(segments: Sequence[Segment]) -> list[list[Segment]]:
    """The segments of each node, in the order of its log."""
    of_node: dict[str, list[Segment]] = {}
    for segment in sorted(segments, key=lambda segment: segment.sealed_at):
        of_node.setdefault(segment.name.rpartition("/")[0], []).append(segment)
    return list(of_node.values())


_POINTS = {
    "ingest": points.INGEST,
    "publish": points.PUBLISH,
    "rebuild": points.INGEST,
    "session": (*points.INGEST, *points.PUBLISH),
    "again": points.PUBLISH,
}
_EXTRA = (sabotage.BETWEEN,)


def _counted(what: str, topic: str, events: Counter[tuple[int, int]]) -> int:
    """How many events of a topic are lost or doubled; says of which batches they are."""
    if events:
        of_batch: Counter[int] = Counter()
        for (batch, _), count in events.items():
            of_batch[batch] += count
        say(f"  {what} in {topic}, by batch: {dict(sorted(of_batch.items()))}")
    return events.total()


def ascents(sequences: Sequence[tuple[int, int]]) -> int:
    """How many times they begin anew."""
    return sum(before is None or after < before for before, after in zip([None, *sequences], sequences, strict=False))


def misplaced(received: Sequence[tuple[int, bytes | None, bytes | None]], switched: int, partition_key: Sequence[str]) -> Iterator[str]:
    """What is wrong with the events of one topic whose partition key decides from batch `switched` on."""
    places: dict[str, set[int]] = {}
    last: dict[str, tuple[int, int]] = {}
    times: dict[tuple[str, int], int] = {}
    marked: set[int] = set()
    for partition, key, value in received:
        if value is None:
            marked |= {partition} if key is None else set()
            continue
        event = json.loads(value)
        source, (batch, ordinal) = event["source"], envelope.place_of(event)
        if (batch >= switched) != (partition in marked):
            yield f"event {batch, ordinal} is on the wrong side of the marker in partition {partition}"
        if key is None or batch < switched:
            continue
        named = json.loads(key)
        pk = json.dumps([named[name] for name in partition_key])
        places.setdefault(pk, set()).add(partition)
        if len(places[pk]) > 1:
            yield f"{pk} is in the partitions {sorted(places[pk])}"
        if last.get(pk, (0, 0)) > (batch, ordinal):
            yield f"{pk}: event {batch, ordinal} comes after {last[pk]}"
        last[pk] = batch, ordinal
        if source["reason"] != "alter":
            if times.get((pk, batch), -(2**63)) > source["ts_us"]:
                yield f"{pk}: event {batch, ordinal} is older than the one before it"
            times[pk, batch] = source["ts_us"]


def _kill(process: subprocess.Popen[bytes]) -> None:
    with suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()


def committed(bootstrap: str, topic: str) -> Iterator[tuple[int, bytes | None, bytes | None]]:
    """Partitions, keys and values of a topic as a read-committed consumer receives them, partition by
    partition."""
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
                    yield partition, message.key(), message.value()
                elif error.code() == KafkaError._PARTITION_EOF:
                    break
                else:
                    raise AssertionError(str(error))
    finally:
        consumer.close()
