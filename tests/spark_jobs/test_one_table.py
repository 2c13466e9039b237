"""One table never stops another: each call that is about one table fails in turn, and the other tables are complete in
the same batch. The calls are found, not listed (`table_calls`). Real Spark, Iceberg and state."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from datetime import timedelta
from functools import partial
from pathlib import Path
from typing import Any, Final
from uuid import UUID, uuid4

import pytest
from pyiceberg.catalog.sql import SqlCatalog
from pyspark import SparkContext

from spark_jobs import audit, ingest, maintain, publish
from spark_jobs.maintain import TablesUnmaintained
from tests.cassandra.schema.examples import create_table
from tests.spark_jobs.synthetic import CLUSTER, ORDERS, SCHEMA, START, Ring, i32, micros, seconds
from tests.spark_jobs.table_calls import FOLDER, OF_JAVA, OF_THE_TABLE, OF_THE_WORLD, Call, Calls
from tests.spark_jobs.test_kafka import consume
from writetime.cassandra.commitlog.encode import encode_mutation
from writetime.cassandra.model import Cell, DeletionTime, Liveness, Mutation, PartitionUpdate, Row
from writetime.cassandra.schema.model import Schema, Table
from writetime.cassandra.schema.system_tables import TABLES
from writetime.config.kafka import KafkaConfig
from writetime.pipeline.archiver import archive
from writetime.pipeline.audit import AuditReport
from writetime.pipeline.documents import Sealed
from writetime.pipeline.maintenance_report import Maintained
from writetime.pipeline.planner import plan_maintain
from writetime.pipeline.publish_progress import Published
from writetime.pipeline.quarantine.rejected_tables import release_table
from writetime.storage import layout

pytestmark = [pytest.mark.spark, pytest.mark.timeout(7200)]

BEFORE: Final = replace(ORDERS, name="before", id=UUID("8cbda380-e583-11f1-817f-f173fd8e050e"))
AFTER: Final = replace(ORDERS, name="over", id=UUID("9cbda380-e583-11f1-817f-f173fd8e050e"))
ALL: Final = (BEFORE, ORDERS, AFTER)
"""In the order of their names: what comes before the table that fails, it, and what comes after it."""
WHOLE: Final = Schema(tables={**SCHEMA.tables, **{table.id: table for table in ALL}})
QUICK: Final = 4


def mutations(table: Table, step: int) -> Iterator[bytes]:
    """A row that is new in each step, with static content; another that expires, and the deletion of one before."""
    at = micros(10 * step)

    def row(line: int, ttl: int = 0) -> Row:
        dies = {"ttl": ttl, "local_deletion_time": seconds(10 * step) + ttl} if ttl else {}
        liveness = Liveness(at, ttl, seconds(10 * step) + ttl) if ttl else Liveness(at)
        return Row((i32(line),), liveness, cells=(Cell("amount", at, i32(step), **dies), Cell("name", at, i32(line), **dies)))

    for rows in ((row(1),), (row(2, 5), row(3))):
        static = Row(None, cells=(Cell("note", at, i32(step)),))
        yield encode_mutation(Mutation((PartitionUpdate(table.id, i32(step), static_row=static, rows=rows),)), WHOLE)
    gone = Row((i32(3),), deletion=DeletionTime(at, seconds(10 * step)))
    yield encode_mutation(Mutation((PartitionUpdate(table.id, i32(step - 1), rows=(gone,)),)), WHOLE)


@dataclass
class Lab:
    """A ring of three tables, whose batches go on from each other. `harmed`: what was wrong, by case."""

    ring: Ring
    calls: Calls
    step: int = 0
    harmed: list[str] = field(default_factory=list)

    @classmethod
    def create(cls, folder: Path) -> Lab:
        ring = Ring.create(folder, "a")
        conf = {
            **ring.config.spark.conf,
            "spark.python.daemon.module": "tests.spark_jobs.table_calls",
            f"spark.executorEnv.{FOLDER}": str(folder / "calls"),
        }
        ring.config = ring.config.model_copy(update={"spark": ring.config.spark.model_copy(update={"conf": conf})})
        for table in (BEFORE, AFTER):
            ring.write(encode_mutation(create_table(table, micros(-98)), Schema(tables=TABLES)))
        names = {table.id: [table.label] for table in ALL}
        return cls(ring, Calls(folder / "calls", names, lambda: SparkContext._jvm))

    def planned(self) -> int:
        """The number of a batch with new rows of all tables."""
        self.step += 1
        for table in ALL:
            for body in mutations(table, self.step):
                self.ring.write(body)
        self.ring.finish_and_ship(10 * self.step + 5)
        return self.ring.plan(10 * self.step + 8).number

    def run(self, number: int) -> Sealed:
        sealed = ingest.run(self.ring.config, number)
        archive(self.ring.store, CLUSTER, sealed.number)
        return sealed

    def recovered(self) -> None:
        """What waits comes in again, and every table is complete."""
        release_table(self.ring.store, CLUSTER, ORDERS.id)
        sealed = self.run(self.planned())
        assert sealed.refused == []
        assert [self.lacks(table, range(1, self.step + 1)) for table in ALL] == ["", "", ""]

    def lacks(self, table: Table, steps: range | list[int]) -> str:
        """What of these steps is wrong in a table's rows and events; "" if nothing."""
        rows = {(row["id"], row["line"]): row for row in self._scan("shop", table)}
        events = self._scan("shop__changes", table)
        for step in steps:
            wanted = {(step, 1), *([(step, 3)] if step == self.step else [])}
            there = {key for key in rows if key[0] == step} - {(step, 2)}
            if there != wanted:
                return f"{table.label}: rows {sorted(there)} instead of {sorted(wanted)}"
            created = [event["key"]["line"] for event in events if event["key"]["id"] == step and event["op"] in ("c", "u")]
            if sorted({1, 2, 3} - set(created)) or len(created) != len(set(created)):
                return f"{table.label}: events of {created}"
        ordinals = [(event["batch"], event["ordinal"]) for event in events]
        return "" if len(ordinals) == len(set(ordinals)) else f"{table.label}: events twice"

    @property
    def lake(self) -> SqlCatalog:
        return SqlCatalog("lake", uri=f"sqlite:///{self.ring.folder / 'lake' / 'catalog.db'}")

    def _scan(self, namespace: str, table: Table) -> list[dict[str, Any]]:
        found: list[dict[str, Any]] = self.lake.load_table((namespace, table.name)).scan().to_arrow().to_pylist()
        return found

    def ingest(self, number: int) -> Sealed:
        return ingest.run(self.ring.config, number)

    def audited(self, step: int) -> AuditReport:
        start = START + timedelta(seconds=10 * step)
        hour = start.replace(minute=0, second=0)
        return audit.run(self.ring.config, hour, hour + timedelta(hours=1), late=1, ranges=2)

    # --- cases: a call about the middle table fails in a job

    def case(self, job: str, call: Call, error: str) -> None:
        what = f"{job}: {call} raises {error}"
        is_table = error in OF_THE_TABLE
        work = getattr(self, f"_{job}")()
        try:
            with self.calls.failing(call, error, ORDERS.id):
                done = work()
        except Exception as raised:  # noqa: BLE001 - whatever ends the run
            if is_table and not (isinstance(raised, TablesUnmaintained) and "orders" in str(raised)):
                self.harmed.append(f"{what}: the job fails: {type(raised).__name__}: {str(raised)[:400]}")
            done = work()
        self.harmed += [f"{what}: {wrong}" for wrong in getattr(self, f"_wrong_of_{job}")(done, is_table)]

    def found(self, job: str) -> list[Call]:
        """The calls of a job about one table."""
        work = getattr(self, f"_{job}")()
        with self.calls.finding() as calls:
            done = work()
        assert [*getattr(self, f"_wrong_of_{job}")(done, False)] == []
        return sorted(calls)

    def _ingest(self) -> Callable[[], Sealed]:
        return partial(self.ingest, self.planned())

    def _wrong_of_ingest(self, sealed: Sealed, is_table: bool) -> Iterator[str]:
        archive(self.ring.store, CLUSTER, sealed.number)
        if [table.table for table in sealed.refused] not in ([], *([["shop.orders"]] if is_table else [])):
            yield f"rejected: {sealed.refused}"
        for table in ALL if not sealed.refused else (BEFORE, AFTER):
            if lacks := self.lacks(table, [self.step]):
                yield lacks
        if sealed.refused:
            if any(row["id"] == self.step for row in self._scan("shop", ORDERS)):
                yield "rejected, and its rows are there"
            release_table(self.ring.store, CLUSTER, ORDERS.id)

    def _maintain(self) -> Callable[[], Sealed]:
        self.run(self.planned())
        manifest = plan_maintain(self.ring.store, CLUSTER, now=START + timedelta(seconds=10 * self.step + 9))
        assert manifest is not None
        return partial(maintain.run, self.ring.config, manifest.number)

    def _wrong_of_maintain(self, sealed: Sealed, is_table: bool) -> Iterator[str]:
        report = Maintained.read(self.ring.store, layout.maintained(CLUSTER))
        assert report is not None
        if report.batch == sealed.number:
            yield from (f"not maintained: {each}" for each in report.tables if each.trouble and not (is_table and "orders" in each.name))
            names = {each.name.rpartition(".")[2] for each in report.tables}
            yield from (f"{table.label} not looked at" for table in (BEFORE, AFTER) if table.name not in names)
        if sealed.kind != "maintain":
            yield "not sealed"

    def _audit(self) -> Callable[[], AuditReport]:
        if not self.step:
            self.run(self.planned())
        return partial(self.audited, self.step)

    def _wrong_of_audit(self, report: AuditReport, is_table: bool) -> Iterator[str]:
        if report.trouble.keys() - ({"shop.orders"} if is_table else set()):
            yield f"not audited: {report.trouble}"
        audited = {each.table for each in report.tables}
        yield from (f"{table.label} not audited" for table in (BEFORE, AFTER) if table.label not in audited)

    def _publish(self) -> Callable[[], Published]:
        sealed = self.run(self.planned())
        assert sealed.refused == []
        return partial(publish.run, self.ring.config)

    def _wrong_of_publish(self, published: Published, is_table: bool) -> Iterator[str]:
        if published.waiting.keys() - ({"shop.orders"} if is_table else set()):
            yield f"waiting: {published.reasons}"
        if published.batch != self.step:
            yield f"published up to {published.batch}, not {self.step}"


@pytest.fixture(scope="module")
def lab(tmp_path_factory: pytest.TempPathFactory) -> Lab:
    lab = Lab.create(tmp_path_factory.mktemp("one_table"))
    lab.run(lab.planned())
    return lab


def cases(calls: list[Call], seed: int) -> list[tuple[Call, str]]:
    """Each call with an error of a table and one of the world, in turn. In workers there is no Java."""
    found = []
    for at, call in enumerate(calls):
        for errors in (OF_THE_TABLE, OF_THE_WORLD):
            possible = [error for error in errors if not (call.in_worker and error in OF_JAVA)]
            found.append((call, possible[(at + seed) % len(possible)]))
    return found


def run_cases(lab: Lab, job: str, some: list[tuple[Call, str]]) -> None:
    for at, (call, error) in enumerate(some, start=1):
        lab.case(job, call, error)
        if job == "ingest" and at % 8 == 0:
            lab.recovered()
    if job == "ingest":
        lab.recovered()


def test_some_calls_about_one_table_fail(lab: Lab) -> None:
    calls = lab.found("ingest")
    run_cases(lab, "ingest", random.Random(1).sample(cases(calls, 0), QUICK))
    assert lab.harmed == []


@pytest.mark.thorough
@pytest.mark.parametrize("job", ["ingest", "maintain", "audit"])
def test_each_call_about_one_table_fails_in_turn(tmp_path: Path, job: str) -> None:
    lab = Lab.create(tmp_path)
    lab.run(lab.planned())
    calls = lab.found(job)
    some = cases(calls, 0)
    run_cases(lab, job, some)
    print(f"{job}: {len(calls)} calls found, {len(some)} cases run, {len(lab.harmed)} harmed")
    assert lab.harmed == []


@pytest.mark.thorough
@pytest.mark.kafka
def test_each_call_about_one_table_fails_in_turn_in_publishing(tmp_path: Path, kafka_broker: str) -> None:
    lab = Lab.create(tmp_path)
    kafka = KafkaConfig.model_validate({"bootstrap.servers": kafka_broker, "topic.prefix": f"t{uuid4().hex[:8]}", "partitions": 2})
    lab.ring.config = lab.ring.config.model_copy(update={"kafka": kafka})
    lab.run(lab.planned())
    publish.run(lab.ring.config)
    calls = lab.found("publish")
    some = cases(calls, 0)
    run_cases(lab, "publish", some)
    published = publish.run(lab.ring.config)
    print(f"publish: {len(calls)} calls found, {len(some)} cases run, {len(lab.harmed)} harmed")
    assert (lab.harmed, published.waiting) == ([], {})
    for table in ALL:
        sent = [message for message in consume(kafka, f"{kafka.topic_prefix}.shop.{table.name}") if message[2] is not None]
        assert len(sent) == len(lab._scan("shop__changes", table)), table.label
