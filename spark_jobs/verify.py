"""The verification job: read token ranges of tables from the cluster, and compare them with the current-row
tables.

    spark-submit verify.py --config FILE [--table ks.t …] [--due | --share 0.1 [--seed N] | --token-range A:B] [--wait SECONDS]

Strategy: a table's snapshot is pinned first and the cluster is read after it, so that the cluster is never
behind. Rows of both sides become documents by token range and key (`writetime.pipeline.verification.Shown`),
are sorted, and are compared as a stream: neither side has to fit in memory. Differences that cannot be called
drift yet are checked again once the table is complete up to the first check (on a quiet cluster without any
batch), as long as `--wait` allows. Columns and rows that the pipeline excludes, masks or filters (`writetime.events.masking`)
are treated the same on both sides. The job only reads; the report goes into the bucket, and how far each table was
compared is recorded (`writetime.pipeline.comparisons`). With `--due` it compares what is due by this record, in
rounds: after each one, report and record are written, and no round begins after half of JOB_HOURS.

Exit code: 0 no drift; 1 drift, or something could not be compared.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from bisect import bisect_left
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence, Set
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from itertools import groupby
from typing import Any, Final
from uuid import UUID

import pyarrow as pa
import structlog
from pyspark.sql import SparkSession
from pyspark.sql.pandas.types import from_arrow_schema

from spark_jobs.cassandra_reader import Ring, RowRate, as_of, token_of
from spark_jobs.failures import kind_of, reason_of
from spark_jobs.job_exit import reports_failure
from spark_jobs.session import spark_session
from spark_jobs.sinks.iceberg import Warehouse
from spark_jobs.sinks.iceberg_table import IcebergTable
from spark_jobs.sinks.schema_evolution import quoted
from spark_jobs.stages.jvm_batches import made_whole
from spark_jobs.stages.scan import Batches, chunked
from spark_jobs.stages.table_rows import EXPIRES_AT, WRITETIME, RowShape
from spark_jobs.state.shards import Shard, shards_of
from spark_jobs.topic_check import TopicChecks
from writetime.cassandra.merge import row_codec
from writetime.cassandra.merge.clustering import ClusteringOrder
from writetime.cassandra.merge.partition_head import decode_head
from writetime.cassandra.model import Row
from writetime.cassandra.schema.model import Schema, Table
from writetime.cassandra.types.byte_comparable import RowKeys, record_key, split_record_key
from writetime.cassandra.types.canonical import ElementPaths
from writetime.cassandra.types.types import CqlType, parse_type
from writetime.config.airflow import JOB_HOURS
from writetime.config.cluster import CqlConfig
from writetime.config.pipeline import PipelineConfig, load
from writetime.config.warehouse import WarehouseConfig
from writetime.errors import BatchError, ConfigError, ObjectNotFound, StoreError
from writetime.events.arrow import from_arrow_value, plain_values
from writetime.events.key_spelling import clustering_spelling, has_spellings, is_distinct
from writetime.events.masking import Rules, TableRules
from writetime.events.naming import to_column
from writetime.pipeline import comparisons, verification, watermark
from writetime.pipeline.bootstrap.rows import Selection
from writetime.pipeline.bootstrap.run import Range, parse_part, split, split_parts
from writetime.pipeline.job_result import leave
from writetime.pipeline.planner import history
from writetime.pipeline.segment_check import known_schema
from writetime.pipeline.verification import (
    Compared,
    Finding,
    RangeResult,
    Shown,
    TableResult,
    TopicResult,
    VerifyReport,
    plain,
)
from writetime.storage import layout, open_store

log = structlog.get_logger()

MOST_FINDINGS: Final = 1000
MOST_SUSPECTS: Final = 100_000
"""Rows that differ: how many are reported, and how many are checked again."""
_LOOK_EVERY: Final = 5.0
"""Seconds between two looks at whether a batch was sealed."""

_SIDES: Final = pa.schema(
    [
        ("range", pa.int32()),
        ("key", pa.string()),
        ("ring", pa.bool_()),
        ("token", pa.int64()),
        ("now", pa.int64()),
        ("row", pa.binary()),
        ("record", pa.binary()),
    ]
)
"""A row of either side; `now` (s) of the ring's is its clock, `record` of ours the key of its record in the
state."""
_FOUND: Final = pa.schema(
    [
        ("range", pa.int32()),
        ("rows", pa.int64()),
        ("key", pa.string()),
        ("token", pa.int64()),
        ("now", pa.int64()),
        ("ring", pa.binary()),
        ("ours", pa.binary()),
        ("twice", pa.bool_()),
        ("record", pa.binary()),
    ]
)
"""A row that differs, or that the table has `twice`; or, without a key, how many `rows` of a range have
passed in a task."""


@dataclass(frozen=True)
class Options:
    """What is compared, and for how long. `at_rest`: nobody writes and all segments are ingested, so every
    difference is drift. `topics`: topics are compared with the tables, too; then the cluster need not be
    configured. `due`: what is due by the record of comparisons, instead of a share or a part."""

    tables: Sequence[str] = ()
    share: float = 1.0
    seed: int = 0
    part: Range | None = None
    wait: float = 0.0
    at_rest: bool = False
    values: bool = False
    topics: bool = False
    due: bool = False


@reports_failure("the verification")
def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description="Compare the tables of current rows with the ring.")
    parser.add_argument("--config", required=True, help="the pipeline's YAML")
    parser.add_argument("--table", action="append", default=[], help="keyspace.table; may be given several times; default: all")
    parser.add_argument(
        "--due",
        action="store_true",
        help="tables that were never compared completely; the next share of others (snapshot.verify_share)",
    )
    parser.add_argument("--share", type=float, default=1.0, help="share of the token ranges to compare (default: 1, all)")
    parser.add_argument("--seed", type=int, default=0, help="seed for the selection of ranges (default: 0)")
    parser.add_argument("--token-range", default="", help="A:B: only tokens > A and <= B")
    parser.add_argument("--wait", type=float, default=0.0, help="seconds to wait for the batch that settles what differs (default: 0)")
    parser.add_argument(
        "--at-rest", action="store_true", help="no writes are in progress and all segments are ingested: every difference is drift"
    )
    parser.add_argument("--values", action="store_true", help="include the values of rows that differ in the report")
    parser.add_argument(
        "--topics",
        action="store_true",
        help="also compare the last record of each key in the topics with the tables, for that share",
    )
    parser.add_argument("--json", action="store_true", help="print the report as JSON")
    given = parser.parse_args(arguments)
    part = parse_part(given.token_range) if given.token_range else None
    options = Options(given.table, given.share, given.seed, part, given.wait, given.at_rest, given.values, given.topics, given.due)
    report = run(load(given.config), options)
    print(report.model_dump_json() if given.json else verification.report_text(report, given.config))  # noqa: T201
    print(f"report: {report.name}", file=sys.stderr)  # noqa: T201
    leave("" if report.ok else verification.in_short(report, given.config), report=report.name)
    return 0 if report.ok else 1


def run(config: PipelineConfig, options: Options) -> VerifyReport:
    """Compare, and put the report into the bucket."""
    if config.cluster.cql is None and not options.topics:
        raise ConfigError("`cluster.cql` is missing", operation="read from the ring", hint="Say in the pipeline's YAML where the ring is.")
    if config.kafka is None and options.topics:
        raise ConfigError("`kafka` is missing", operation="compare topics", hint="The pipeline publishes to no topics: leave out --topics.")
    spark = spark_session(config, f"writetime verify {config.pipeline}")
    try:
        return Verification(config, config.cluster.cql, spark, options).report()
    finally:
        spark.stop()


# --- driver


@dataclass(frozen=True)
class Suspect:
    """A row that differed in a comparison. `since` (µs): when this difference was first seen."""

    token: int
    identity: str
    since: int
    differences: list[verification.Difference]
    ring: Shown | None
    ours: Shown | None
    record: bytes | None = None


@dataclass
class Look:
    """The result of one pass over a table: rows by range, and differences by key. `horizon`: as of the start of
    the pass."""

    at: int
    snapshot: int | None
    horizon: verification.Horizon
    rows: dict[int, int] = field(default_factory=dict)
    suspects: dict[str, tuple[int, Suspect]] = field(default_factory=dict)


@dataclass(frozen=True)
class Subject:
    """A table to compare, with its ranges and columns. `incomplete`: keys of records that are to be read from the
    cluster again: these may differ until that is ingested. `trouble`: why it could not be compared to the end."""

    table: Table
    name: str
    plan: Plan
    looks: list[Look]
    incomplete: Set[bytes] = frozenset()
    trouble: list[str] = field(default_factory=list)


class Verification:
    """One run of the job. The schema is what the bucket knows."""

    def __init__(self, config: PipelineConfig, cql: CqlConfig | None, spark: SparkSession, options: Options) -> None:
        self.config, self.cql, self.spark, self.options = config, cql, spark, options
        self.store, self.cluster = open_store(config.bucket), config.cluster.name
        self.schema: Schema = known_schema(self.store, self.cluster).schema()
        assert config.catalog is not None
        self.catalog = config.catalog.name
        self._written: tuple[int, datetime | None] | None = None
        self._logged = verification.EVER

    def report(self) -> VerifyReport:
        """Compare, and write report and record after each round; returns the report."""
        started, done = datetime.now(UTC), dict[UUID, TableResult]()
        read = comparisons.read_and_ingested(self.store, self.cluster) if self.cql is not None else set()
        for wanted in self._rounds(read, done):
            began = datetime.now(UTC)
            results = self._compared(wanted)
            done |= {each.table_id: verification.both(done.get(each.table_id), each, MOST_FINDINGS) for each in results}
            report = self._report(started, done.values(), [])
            verification.write_report(self.store, report)
            self._record(results, report, began, read)
        report = self._report(started, done.values(), self._topics())
        verification.write_report(self.store, report)
        return report

    def _rounds(self, read: Set[UUID], done: Mapping[UUID, TableResult]) -> Iterator[Sequence[tuple[Table, list[Range] | None]]]:
        """The tables to compare and the parts of each (None: all), round by round. A table that could not be compared
        (`done`) is left alone."""
        if self.cql is None:
            return
        if not self.options.due:
            parts = None if self.options.part is None else [self.options.part]
            yield [(table, parts) for table in self._tables()]
            return
        tables, sealed = self._tables(), history(self.store, self.cluster).sealed
        whole = {table.id for table in tables if hides_tokens(self.config.columns.rules.of(table, self.schema.types))}
        known, rows = comparisons.read(self.store, self.cluster), sealed.rows if sealed else {}
        due = comparisons.due(known, tables, self.config.snapshot, datetime.now(UTC), read=read, rows=rows, whole=whole)
        until = time.monotonic() + JOB_HOURS * 3600 / 2
        for number in range(max((len(each.slices) for each in due), default=0)):
            if number and time.monotonic() > until:
                log.info("the next run continues", slices=number)
                return
            failed = {table_id for table_id, each in done.items() if each.trouble}
            wanted: list[tuple[Table, list[Range] | None]] = [
                (each.table, each.slices[number]) for each in due if number < len(each.slices) and each.table.id not in failed
            ]
            if wanted:
                yield wanted

    def _compared(self, wanted: Iterable[tuple[Table, list[Range] | None]]) -> list[TableResult]:
        subjects: list[Subject] = []
        refused: list[TableResult] = []
        for table, parts in wanted:
            try:
                with table_failures(table):
                    subjects.append(self._subject(table, parts))
            except BatchError as error:
                log.error("table not compared", table=table.full_name, **error.as_dict())
                refused.append(TableResult(table=table.full_name, table_id=table.id, trouble=str(error)))
        self._settle(subjects)
        for each in subjects:
            self._logged = min(self._logged, each.looks[-1].horizon.logged)
        return [*refused, *map(self._result, subjects)]

    def _record(self, results: list[TableResult], report: VerifyReport, began: datetime, read: Set[UUID]) -> None:
        tables = self.schema.tables.values()
        existing = {table.id for table in tables if not table.dropped}
        # A table that is never read by itself lacks what its log lacks.
        counted = existing if self.config.snapshot.mode == "never" else read
        comparisons.record(
            self.store, self.cluster, results, report=report.name, began=began, at=report.finished_at, read=counted, existing=existing
        )

    def _report(self, started: datetime, tables: Iterable[TableResult], topics: list[TopicResult]) -> VerifyReport:
        sealed = history(self.store, self.cluster).sealed
        results = sorted(tables, key=lambda each: each.table)
        return VerifyReport(
            cluster=self.cluster,
            started_at=started,
            finished_at=datetime.now(UTC),
            batch=sealed.number if sealed else 0,
            horizon=verification.moment(self._logged),
            consistency=self.config.snapshot.consistency,
            share=verification.share_of(results) if self.options.due else self.options.share,
            seed=self.options.seed,
            at_rest=self.options.at_rest,
            waiting=sealed.held if sealed else [],
            tables=results,
            topics=topics,
        )

    def _topics(self) -> list[TopicResult]:
        if not self.options.topics:
            return []
        share = self.config.snapshot.verify_share if self.options.due else self.options.share
        checks = TopicChecks(self.config, self.spark, self.schema, share, self.options.seed, values=self.options.values)
        return checks.results(sorted(self._tables(), key=lambda table: table.full_name))

    def _tables(self) -> list[Table]:
        """The requested tables, or all captured tables with a state."""
        if self.options.tables:
            return [_named(self.schema, name) for name in self.options.tables]
        sealed = history(self.store, self.cluster).sealed
        ids = [UUID(name) for name, versions in (sealed.state if sealed else {}).items() if versions.behind is None and not versions.ended]
        return [table for each in ids if (table := self.schema.tables.get(each)) is not None and not table.dropped]

    def _subject(self, table: Table, parts: list[Range] | None) -> Subject:
        """The table, or those parts of it, after a first pass. BatchError if it cannot be compared."""
        name = Warehouse(self.spark, self.catalog).current_of(table)
        if name is None:
            raise BatchError("the table does not exist in the warehouse", operation="compare a table", obj=table.full_name)
        with self._ring() as ring:
            if ring.table_id(table.keyspace, table.name) != table.id.bytes:
                hint = "It was created anew or dropped; compare again when a batch has taken that in."
                raise BatchError(
                    "the cluster has another table with this name", operation="compare a table", obj=table.full_name, hint=hint
                )
            ranges = self._ranges(ring.tokens(), parts)
            of_elements = ring.has_element_times
        chosen = verification.sampled(ranges, self.options.share, self.options.seed)
        assert self.cql is not None
        plan = Plan(self.config, self.cql, table, Schema(types=self.schema.types), chosen, of_elements)
        if hides_tokens(plan.rules) and (parts not in (None, [comparisons.WHOLE]) or self.options.share < 1):
            hint = "Compare all of it: share 1, no token range."
            raise BatchError("its partition key is hashed, which hides tokens", operation="compare a part", obj=table.full_name, hint=hint)
        incomplete = self._incomplete(table)
        return Subject(table, name, plan, [self._look(name, plan, range(len(chosen)))], incomplete)

    def _incomplete(self, table: Table) -> Set[bytes]:
        names = [info.name for info in self.store.names(layout.incomplete_rows_prefix(self.cluster)) if f"-{table.id}-" in info.name]
        notes: list[bytes] = []
        for name in names:
            # cdc_bootstrap deletes it when the rows are read.
            with suppress(ObjectNotFound):
                notes.append(self.store.read(name))
        return {bytes.fromhex(key) for note in notes for key in json.loads(note)["keys"]}

    def _ranges(self, tokens: Sequence[int], parts: list[Range] | None) -> list[Range]:
        wanted = self.config.snapshot.ranges
        if parts is None or not self.options.due:
            return split(tokens, None if parts is None else parts[0], wanted)
        share = sum(end - start for start, end in parts) / comparisons.TOKENS
        return split_parts(tokens, parts, max(self.config.snapshot.readers, round(wanted * share)))

    def _settle(self, subjects: Sequence[Subject]) -> None:
        """Compare differing rows of a table again once its horizon has passed its last pass, while there is
        time."""
        deadline = time.monotonic() + self.options.wait
        while doubtful := [each for each in subjects if _doubtful(each) and len(each.looks) <= _MOST_LOOKS]:
            if time.monotonic() >= deadline:
                break
            ready = [each for each in doubtful if self._horizon(each.table).logged >= each.looks[-1].at]
            for subject in ready:
                with _failing_alone(subject):
                    subject.looks.append(self._again(subject))
            if not ready:
                time.sleep(min(_LOOK_EVERY, max(0.0, deadline - time.monotonic())))

    def _again(self, subject: Subject) -> Look:
        """Another pass over the ranges with differences; rows that did not differ before are ignored."""
        last = subject.looks[-1]
        every = range(len(subject.plan.ranges))
        wanted = every if hides_tokens(subject.plan.rules) else sorted({number for number, _ in last.suspects.values()})
        look = self._look(subject.name, subject.plan, wanted)
        known = {key: found for key, found in look.suspects.items() if key in last.suspects}
        look.suspects = {key: (number, _aged(last.suspects[key][1], found)) for key, (number, found) in known.items()}
        return look

    def _look(self, name: str, plan: Plan, wanted: Iterable[int]) -> Look:
        # Before the snapshot: whatever was logged by then is in it.
        horizon = self._horizon(plan.table)
        held = IcebergTable(self.spark, name)
        held.refresh()
        columns = plan.columns(held.columns.names)
        snapshot = held.snapshot
        numbers = list(wanted)
        schema = from_arrow_schema(_SIDES)
        readers = max(1, min(self.config.snapshot.readers, len(numbers)))
        spread = self.spark.sparkContext.parallelize([(number,) for number in numbers], readers)
        rows = self.spark.createDataFrame(spread, "range int").mapInArrow(plan.ring_side(readers), schema=schema)
        if snapshot is not None:
            chosen = ", ".join(quoted(column) for column in columns)
            stored = self.spark.sql(f"SELECT {chosen} FROM {name} VERSION AS OF {snapshot}")  # noqa: S608 - quoted names only
            rows = rows.unionByName(stored.mapInArrow(plan.our_side(set(numbers)), schema=schema))
        compared = plan.compared(columns)
        ordered = rows.repartition(self.config.spark.shuffle_partitions, "range", "key").sortWithinPartitions("range", "key")
        look: Look | None = None
        for row in ordered.mapInArrow(differing(compared), schema=from_arrow_schema(_FOUND)).toLocalIterator():
            # Rows arrive after the whole range has been read.
            look = look or Look(as_of(0), snapshot, horizon)
            if row["key"] is None:
                look.rows[row["range"]] = look.rows.get(row["range"], 0) + row["rows"]
            elif len(look.suspects) < MOST_SUSPECTS:
                look.suspects[row["key"]] = row["range"], _suspect(compared, row.asDict(), look.at)
        look = look or Look(as_of(0), snapshot, horizon)
        log.info("compared", table=plan.table.full_name, ranges=len(numbers), rows=sum(look.rows.values()), differ=len(look.suspects))
        return look

    def _horizon(self, table: Table) -> verification.Horizon:
        if self.options.at_rest:
            return verification.AT_REST
        sealed = history(self.store, self.cluster).sealed
        number = sealed.number if sealed else 0
        if self._written is None or self._written[0] != number:
            self._written = number, verification.written_until(self.store, self.cluster, sealed)
        complete = watermark.read(self.store, self.cluster, sealed)
        return verification.horizon(self._written[1], complete, table.id, self.config.snapshot.margin_seconds)

    def _ring(self) -> Ring:
        assert self.cql is not None
        return ring_of(self.config, self.cql)

    def _result(self, subject: Subject) -> TableResult:
        with _failing_alone(subject):
            if not subject.trouble:
                return self._counted(subject)
        return TableResult(table=subject.table.full_name, table_id=subject.table.id, trouble=subject.trouble[0])

    def _counted(self, subject: Subject) -> TableResult:
        first, last = subject.looks[0], subject.looks[-1]
        findings: list[Finding] = []
        places = subject.plan.ranges
        if hides_tokens(subject.plan.rules):
            places = [(places[0][0], places[-1][1])]
        ranges = [RangeResult(start=start, end=end, rows=first.rows.get(at, 0)) for at, (start, end) in enumerate(places)]
        ties, incomplete = self._ties(subject, last), subject.incomplete | self._incomplete(subject.table)
        for key, (number, suspect) in sorted(last.suspects.items()):
            verdict = "tie" if key in ties else verification.verdict(suspect.differences, suspect.since, last.horizon)
            if suspect.record in incomplete:
                verdict = "unsettled"
            counted = ranges[number]
            ranges[number] = counted.model_copy(update={verdict: getattr(counted, verdict) + 1})
            if len(findings) < MOST_FINDINGS:
                findings.append(self._finding(key, suspect, verdict))
        findings.sort(key=lambda each: each.verdict)
        table = subject.table
        return TableResult(table=table.full_name, table_id=table.id, snapshot=last.snapshot, ranges=ranges, findings=findings)

    def _ties(self, subject: Subject, look: Look) -> set[str]:
        sealed = history(self.store, self.cluster).sealed
        shards = [] if sealed is None else shards_of(self.config, sealed, subject.table.id)
        return tied_rows(look, shards, ClusteringOrder(subject.table, self.schema.types), subject.plan.elements, int(time.time()))

    def _finding(self, key: str, suspect: Suspect, verdict: verification.Verdict) -> Finding:
        values = {"ring": suspect.ring and suspect.ring.values, "ours": suspect.ours and suspect.ours.values} if self.options.values else {}
        since = verification.moment(suspect.since)
        assert since is not None
        listed = [(each.kind, each.column) for each in suspect.differences]
        return Finding(key=key, token=suspect.token, verdict=verdict, differences=listed, first_seen=since, **values)


_MOST_LOOKS: Final = 5


def tied_rows(look: Look, shards: Sequence[tuple[str, int]], order: ClusteringOrder, elements: frozenset[str], now: int) -> set[str]:
    """Keys of rows that differ only in cells that the state marks as ties, which a 3.11 cluster may resolve
    otherwise. `elements`: the columns with a cell per element."""
    wanted = {
        key: suspect
        for key, (_, suspect) in look.suspects.items()
        if suspect.record is not None and verification.may_be_ties(suspect.differences, suspect.ring, elements)
    }
    keys = sorted({key for each in wanted.values() if each.record for key in (each.record, _head_of(each.record))})
    found: dict[bytes, bytes] = {}
    for uri, version in shards if keys else ():
        found |= Shard(uri, version).get(keys)
    return {
        key
        for key, each in wanted.items()
        if each.record and verification.are_ties(each.differences, *_state_of(found, each.record, order), now)
    }


def _state_of(records: Mapping[bytes, bytes], key: bytes, order: ClusteringOrder) -> tuple[Row | None, Row | None]:
    """The row of a record and the static row of its partition, as far as the state has them."""
    head = decode_head(records.get(_head_of(key), b""), order)
    static = head.update.static_row if head.update else None
    if _head_of(key) == key:
        return static, static
    state = records.get(key, b"")
    return row_codec.decode(state) if state else None, static


def _head_of(record: bytes) -> bytes:
    return record_key(split_record_key(record)[0])


@contextmanager
def table_failures(table: Table) -> Iterator[None]:
    """Whatever is raised about one table becomes a BatchError with its name, so that the others are compared. What
    concerns all is raised as it is: an outage of the store."""
    try:
        yield
    except Exception as error:
        if isinstance(error, BatchError) or kind_of(error) == "driver" or (isinstance(error, StoreError) and error.retriable):
            raise
        raise BatchError(reason_of(error), operation="compare a table", obj=table.full_name) from error


@contextmanager
def _failing_alone(subject: Subject) -> Iterator[None]:
    try:
        with table_failures(subject.table):
            yield
    except BatchError as error:
        log.error("table not compared", table=subject.table.full_name, **error.as_dict())
        subject.trouble.append(str(error))


def _doubtful(subject: Subject) -> bool:
    """Whether another pass could change the result."""
    if subject.trouble:
        return False
    last = subject.looks[-1]
    return any(verification.verdict(each.differences, each.since, last.horizon) == "unsettled" for _, each in last.suspects.values())


def _aged(before: Suspect, now: Suspect) -> Suspect:
    return replace(now, since=before.since) if before.identity == now.identity else now


def _suspect(compared: Compared, row: Mapping[str, Any], at: int) -> Suspect:
    ring, ours = (None if row[side] is None else Shown.from_bytes(bytes(row[side])) for side in ("ring", "ours"))
    twice = [verification.Difference("row twice", "", 0)] if row["twice"] else []
    found = twice + verification.differences(compared, ring, ours, row["now"])
    return Suspect(
        row["token"], verification.identity(row["ring"], row["ours"]), at, found, ring, ours, row["record"] and bytes(row["record"])
    )


def _named(schema: Schema, name: str) -> Table:
    for table in schema.tables.values():
        if not table.dropped and table.full_name == name:
            return table
    raise ConfigError("unknown table name", operation="compare a table", obj=name, hint="Write keyspace.table, as in CQL without quotes.")


def ring_of(config: PipelineConfig, cql: CqlConfig) -> Ring:
    snapshot = config.snapshot
    return Ring(cql, datacenter=config.cluster.read_in, consistency=snapshot.consistency, page_rows=snapshot.page_rows)


# --- both sides


class Plan:
    """What a worker needs to build the rows of either side."""

    def __init__(
        self, config: PipelineConfig, cql: CqlConfig, table: Table, types: Schema, ranges: Sequence[Range], of_elements: bool
    ) -> None:
        self.config, self.cql, self.table, self.types, self.ranges, self.of_elements = config, cql, table, types, list(ranges), of_elements
        self.rules = config.columns.rules.of(table, types.types)

    def columns(self, stored: Sequence[str]) -> list[str]:
        """Columns of the warehouse's table that are read: one that the ring has dropped stays there, and is
        nobody's business here."""
        hidden = _internal_columns(self.table)
        wanted = {to_column(name) for name in self.rules.shown().columns if name not in hidden} | {WRITETIME, EXPIRES_AT}
        return [name for name in stored if name in wanted]

    def compared(self, columns: Sequence[str]) -> Compared:
        """The columns that are compared; `columns` are those read from the warehouse's table."""
        shown = self.rules.shown().columns.keys() - _internal_columns(self.table)
        values = [column for column in self.table.columns.values() if column.kind in ("static", "regular") and column.name in shown]
        elements = self.elements & {column.name for column in values}
        timed = WRITETIME in columns
        untold = frozenset(column.name for column in values if not timed or (column.name in elements and not self.of_elements))
        return Compared(frozenset(column.name for column in values), elements, untold)

    @property
    def elements(self) -> frozenset[str]:
        """Names of the columns with a cell per element."""
        values = (*self.table.static_columns, *self.table.regular_columns)
        return frozenset(column.name for column in values if self._kind(column.type).multicell)

    def ring_side(self, readers: int) -> Callable[[Batches], Batches]:
        """Numbers of ranges to _SIDES, by one of `readers`."""
        config, cql, table, types, ranges, of_elements = self.config, self.cql, self.table, self.types, self.ranges, self.of_elements

        def read(batches: Batches) -> Batches:
            rows = Rows(table, types, of_elements, config.columns.rules, config.warehouse)
            rate = RowRate(config.snapshot.rows_per_second, readers)
            with ring_of(config, cql) as ring:
                for number in (number for batch in batches for number in batch["range"].to_pylist()):
                    yield from chunked(rows.of_ring(ring, number, ranges[number], rate), _SIDES)

        return read

    def our_side(self, wanted: set[int]) -> Callable[[Batches], Batches]:
        """Rows of the warehouse to _SIDES, of the wanted ranges."""
        table, types, ranges, of_elements, rules = self.table, self.types, self.ranges, self.of_elements, self.config.columns.rules
        warehouse = self.config.warehouse

        def read(batches: Batches) -> Batches:
            rows = Rows(table, types, of_elements, rules, warehouse)
            for batch in made_whole(batches):
                yield from chunked(rows.of_lake(batch, ranges, wanted), _SIDES)

        return read

    def _kind(self, text: str) -> CqlType:
        return parse_type(text, self.table.keyspace, self.types.types)


class Rows:
    """Rows of one table, from either side, as documents."""

    def __init__(
        self, table: Table, types: Schema, of_elements: bool, rules: Rules | None = None, warehouse: WarehouseConfig | None = None
    ) -> None:
        found = (rules or Rules()).of(table, types.types)
        self.blind = hides_tokens(found)
        self.change, self.keeps = found.compiled(), found.keeps()
        self.shape, self.shown = RowShape.of(table, types), RowShape.of(found.shown(), types)
        self.selection = Selection(table, types.types, of_elements=of_elements)
        self.paths = ElementPaths(table, types.types)
        self.key = [column.name for column in table.partition_key]
        self.clustering = [column.name for column in table.clustering]
        # A masked key does not identify a record of the state.
        self.keys = None if {*self.key, *self.clustering} & found.hidden else RowKeys(table, types.types)
        # To Cassandra decimals 1.0 and 1.00 are one clustering, and replicas may show either.
        self.spelled = {name: spell for name in self.clustering if (spell := clustering_spelling(self.shape.columns[name])) is not None}
        self.respelled = {name: kind for name, kind in self.shape.keys.items() if has_spellings(kind)}
        self.digits = (warehouse or WarehouseConfig()).numbers.of(found.shown())
        values = [column for column in self.selection.selected if column.kind in ("static", "regular")]
        self.asked = {column.name for column in self.selection.selected}
        self.facts = {column.name: of_elements or not self.shape.columns[column.name].multicell for column in values}
        self.counters = {column.name for column in values if column.type == "counter"}

    # --- the cluster's side

    def of_ring(self, ring: Ring, number: int, tokens: Range, rate: RowRate) -> Iterator[dict[str, Any]]:
        bounds = [token.to_bytes(8, "big", signed=True) for token in tokens]
        for page in ring.pages(self.selection.of_range(), bounds, 0):
            for answer in page.rows:
                found = self.answered(answer, page.reading.now)
                if found is not None:
                    key, token, shown = found
                    place = {"range": 0 if self.blind else number, "key": key, "ring": True, "token": token}
                    yield place | {"now": page.reading.now, "row": shown.to_bytes(), "record": None}
            rate.wait(len(page.rows))

    def answered(self, answer: Sequence[bytes | None], now: int) -> tuple[str, int, Shown] | None:
        """Key, token and document of a row of the cluster; None if the pipeline's filter excludes it, or if it reads as
        another row: its mutations are in quarantine, which reports them."""
        fields = iter(answer)
        raw = {name: next(fields) if name in self.asked else None for name in self.shape.keys}
        if not all(is_distinct(kind, raw[name] or b"", by_type=name in self.clustering) for name, kind in self.respelled.items()):
            return None
        writetime: dict[str, int] = {}
        expires_at: dict[str, int] = {}
        for name, cells in self.facts.items():
            raw[name] = next(fields)
            if cells and name not in self.shown.columns:
                next(fields), next(fields)
            elif cells:
                elements = self.shape.columns[name].multicell
                written, left = _facts(next(fields), 8, elements), _facts(next(fields), 4, elements)
                writetime |= {name: max(written)} if written else {}
                expires_at |= {name: now + min(left)} if left else {}
        # Filters and masks may name what CQL does not show.
        raw = dict.fromkeys(self.shape.columns) | raw
        typed = {name: self._value(name, each) for name, each in raw.items()}
        if not self.keeps(typed):
            return None
        values = self.shown.values(self.change(typed)) or {}
        token = token_of(_partition_key([raw[name] or b"" for name in self.key]))
        key, shown = self._shown(values, writetime, expires_at)
        return key, token, shown

    def _value(self, name: str, raw: bytes | None) -> Any:
        if raw is None:
            return None
        # CQL returns a counter's value; only a log has its shards.
        if name in self.counters:
            return int.from_bytes(raw, "big", signed=True)
        raw = self.spelled[name](raw) if name in self.spelled else self.paths.whole(name, raw)
        return self.shape.columns[name].decode(raw)

    # --- the warehouse's side

    def of_lake(self, batch: pa.RecordBatch, ranges: Sequence[Range], wanted: set[int]) -> Iterator[dict[str, Any]]:
        ends = [end for _, end in ranges]
        columns = {name: plain_values(batch.column(name)) for name in batch.schema.names}
        for at in range(batch.num_rows):
            row = {name: column[at] for name, column in columns.items()}
            pk = b"" if self.blind else _partition_key([self._encoded(name, row[to_column(name)]) for name in self.key])
            token = 0 if self.blind else token_of(pk)
            number = 0 if self.blind else bisect_left(ends, token)
            if self.blind or (number in wanted and ranges[number][0] < token):
                record = self._record(pk, row)
                writetime, expires_at = (self._facts_of(row.pop(name, None)) for name in (WRITETIME, EXPIRES_AT))
                key, shown = self._shown(row, writetime, expires_at)
                yield {"range": number, "key": key, "ring": False, "token": token, "now": 0, "row": shown.to_bytes(), "record": record}

    def _record(self, pk: bytes, row: Mapping[str, Any]) -> bytes | None:
        """The key of a row's record in the state; for static content alone, of its partition's head."""
        if self.keys is None:
            return None
        clustering = [row[to_column(name)] for name in self.clustering]
        alone = any(value is None for value in clustering)
        raw = tuple(self._encoded(name, value) for name, value in zip(self.clustering, clustering, strict=True))
        return record_key(pk) if alone else record_key(pk, self.keys.key(raw))

    def _encoded(self, name: str, value: Any) -> bytes:
        kind = self.shape.columns[name]
        return b"" if value is None else kind.encode(from_arrow_value(kind, value))

    def _facts_of(self, facts: Any) -> dict[str, int]:
        """Facts of cells, a map by CQL name."""
        return {name: value for name, value in facts or () if name in self.facts and name in self.shown.columns}

    # --- comparison

    def _shown(self, row: Mapping[str, Any], writetime: dict[str, int], expires_at: dict[str, int]) -> tuple[str, Shown]:
        named = {name: self._plain(name, row.get(to_column(name))) for name in self.shown.columns}
        key = json.dumps({name: named.pop(name) for name in self.shape.keys})
        return key, Shown({name: value for name, value in named.items() if value is not None}, writetime, expires_at)

    def _plain(self, name: str, value: Any) -> verification.Json:
        if name in self.digits and value is not None:
            # Of no bytes, a number of current rows is null.
            return verification.one_spelling(str(value)) if str(value) else None
        return plain(value)


def _internal_columns(table: Table) -> set[str]:
    """Columns with values that CQL does not show, of a table WITH COMPACT STORAGE."""
    values = {column.name for column in (*table.static_columns, *table.regular_columns)}
    return values - {column.name for column in table.cql_columns}


def hides_tokens(rules: TableRules) -> bool:
    """Whether a row's token cannot be computed from the warehouse, because a partition key column is hashed
    there."""
    return any(column.name in rules.hidden for column in rules.table.partition_key)


def _partition_key(parts: Sequence[bytes]) -> bytes:
    return parts[0] if len(parts) == 1 else b"".join(len(part).to_bytes(2, "big") + part + b"\0" for part in parts)


def _facts(raw: bytes | None, size: int, elements: bool) -> list[int]:
    """Writetimes or TTLs of a result: one value, or a list with one per element, some of which may be
    null."""
    if not raw:
        return []
    if not elements:
        return [int.from_bytes(raw, "big", signed=True)]
    found, at = [], 4
    while at < len(raw):
        length = int.from_bytes(raw[at : at + 4], "big", signed=True)
        at += 4
        if length == size:
            found.append(int.from_bytes(raw[at : at + size], "big", signed=True))
        at += max(length, 0)
    return found


def differing(compared: Compared) -> Callable[[Batches], Batches]:
    """_SIDES, sorted by range and key, to _FOUND."""

    def compare(batches: Batches) -> Batches:
        yield from chunked(_differing(compared, (row for batch in batches for row in batch.to_pylist())), _FOUND)

    return compare


def _differing(compared: Compared, rows: Iterable[dict[str, Any]]) -> Iterator[dict[str, Any]]:
    for number, of_range in groupby(rows, key=lambda row: row["range"]):
        passed = 0
        for key, pair in groupby(of_range, key=lambda row: row["key"]):
            passed += 1
            found = list(pair)
            ring = next((row for row in found if row["ring"]), None)
            ours = next((row for row in found if not row["ring"]), None)
            documents = [None if side is None else side["row"] for side in (ring, ours)]
            twice = sum(not row["ring"] for row in found) > 1
            if documents[0] == documents[1] and not twice:
                continue
            # Where the ring shows nothing there is no clock of its either: what was to expire by now may
            # have.
            now = ring["now"] if ring else int(time.time())
            shown, held = (None if document is None else Shown.from_bytes(document) for document in documents)
            if twice or verification.differences(compared, shown, held, now):
                about = {"token": found[0]["token"], "now": now, "ring": documents[0], "ours": documents[1], "twice": twice}
                about["record"] = ours["record"] if ours else None
                yield {"range": number, "rows": 0, "key": key} | about
        yield dict.fromkeys(_FOUND.names) | {"range": number, "rows": passed}


if __name__ == "__main__":
    sys.exit(main())
