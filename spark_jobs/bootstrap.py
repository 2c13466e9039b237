"""The bootstrap job: read tables from the cluster, and write what the pipeline lacks to the bucket as frames,
which the next batch ingests.

    spark-submit bootstrap.py --config FILE --table ks.t [--token-range A:B]     a table, or a part of it
    spark-submit bootstrap.py --config FILE --due                                the tables that are due
    spark-submit bootstrap.py --config FILE --touched                            the incomplete rows that batches recorded

Strategy: a table is read token range by token range, each by one worker. The worker compares the range with
the state and writes frames only for differences (`writetime.pipeline.bootstrap.difference`). A second run
therefore adds nothing, and counters and lists are compared with what is known of them. A row that the state
has and the cluster does not return is read once more before it gets a tombstone. A worker records each
finished range, which is not read again. Writes to the cluster and the pipeline may continue meanwhile: a frame says
what the cluster has, as of its reading, and not what the state lacks, so frames merge with the log in any order.

Exit code: 0 everything was read, 1 something was not."""

from __future__ import annotations

import argparse
import json
import sys
import threading
import time
from bisect import bisect_left
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from itertools import groupby
from typing import Any, Final
from uuid import UUID

import pyarrow as pa
import structlog
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession
from pyspark.sql.pandas.types import from_arrow_schema

from spark_jobs.cassandra_reader import Page, Ring, as_of, token_of
from spark_jobs.failures import kind_of, reason_of
from spark_jobs.job_exit import reports_failure
from spark_jobs.session import spark_session
from spark_jobs.spark_errors import OURS, why
from spark_jobs.stages.scan import Batches, chunked
from spark_jobs.state.shards import Shard, shards_of
from writetime.cassandra.merge import row_codec
from writetime.cassandra.merge.clustering import ClusteringOrder
from writetime.cassandra.merge.partition_head import decode_head
from writetime.cassandra.merge.reconcile import Policy
from writetime.cassandra.model import Row
from writetime.cassandra.schema.model import Schema, Table, short_id
from writetime.cassandra.types.byte_comparable import HEAD, PAST_RECORDS, RowKeys, record_key, split_record_key
from writetime.cassandra.types.types import CollectionType, parse_type
from writetime.config.cluster import CqlConfig, SnapshotConfig
from writetime.config.pipeline import PipelineConfig, load
from writetime.errors import BatchError, ConfigError, ObjectNotFound, PreconditionFailed, WritetimeError
from writetime.events.row_values import split_partition_key
from writetime.pipeline.bootstrap import run as runs
from writetime.pipeline.bootstrap.difference import Comparison
from writetime.pipeline.bootstrap.frames import FramesWriter, frame
from writetime.pipeline.bootstrap.rows import MICROSECONDS, Reading, RingRow, Selection
from writetime.pipeline.bootstrap.run import RangeDone, Run
from writetime.pipeline.documents import Sealed
from writetime.pipeline.node_facts import read_facts
from writetime.pipeline.planner import history, merge_rule, read_manifest
from writetime.pipeline.segment_check import known_schema
from writetime.storage import layout, open_store
from writetime.storage.store import ObjectInfo, Store

log = structlog.get_logger()

OBJECTS_PER_RANGE: Final = 10_000
_ASKED_AT_ONCE: Final = 16
"""Single rows that a worker has asked the ring for and waits for."""
_ASKED_BETWEEN_PAUSES: Final = 256
_REPORT_EVERY: Final = 5.0
"""Seconds between two looks at how far a run is."""

_RECORDS: Final = pa.schema([("range", pa.int32()), ("key", pa.binary()), ("state", pa.binary())])
"""What the state holds, by range; of each range to be read there is one row without a key."""
_DONE: Final = pa.schema([("range", pa.int32()), ("rows", pa.int64()), ("frames", pa.int64())])


@reports_failure("the bootstrap")
def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description="Read tables from the ring; put what is news into the bucket as frames.")
    parser.add_argument("--config", required=True, help="the pipeline's YAML")
    parser.add_argument("--table", action="append", default=[], help="keyspace.table; may be given several times")
    parser.add_argument("--token-range", default="", help="A:B: only tokens > A and <= B")
    parser.add_argument("--due", action="store_true", help="without --table: the tables that are due")
    parser.add_argument("--touched", dest="incomplete_rows", action="store_true", help="read incomplete rows again")
    parser.add_argument("--json", action="store_true", help="print the runs as JSON, one a line")
    options = parser.parse_args(arguments)
    tables = [name for name in options.table if name]
    made = run(
        load(options.config),
        tables=tables,
        part=runs.part_of(tables, options.token_range),
        due=options.due,
        incomplete_rows=options.incomplete_rows,
    )
    for each in made:
        print(each.model_dump_json() if options.json else each.line())  # noqa: T201
    return 0


def run(
    config: PipelineConfig,
    *,
    tables: Sequence[str] = (),
    part: runs.Range | None = None,
    due: bool = False,
    incomplete_rows: bool = False,
    notify: Callable[[Run], None] | None = None,
) -> list[Run]:
    """Read the tables, or the due tables if none are given; then the incomplete rows. A failed read does not
    stop the others: the first error is raised at the end. `notify` is called regularly with a run's
    progress."""
    if config.cluster.cql is None:
        raise ConfigError("`cluster.cql` is missing", operation="read from the ring", hint="Say in the pipeline's YAML where the ring is.")
    spark = spark_session(config, f"writetime bootstrap {config.pipeline}")
    made: list[Run] = []
    failed: list[WritetimeError] = []
    try:
        job = Bootstrap(config, config.cluster.cql, open_store(config.bucket), spark, notify or _log)
        found = [runs.table_named(job.schema, name) for name in tables]
        found += runs.due(job.store, config) if due and not tables else []
        for table in found:
            with _going_on(table.full_name, failed):
                made.append(job.read_table(table, None if part is None else [part]))
        if incomplete_rows:
            job.read_incomplete_rows(failed)
    finally:
        spark.stop()
    if failed:
        raise failed[0]
    return made


@contextmanager
def _going_on(name: str, failed: list[WritetimeError]) -> Iterator[None]:
    """Log why a table cannot be read, and record it in `failed`, so that others continue."""
    try:
        yield
    except Exception as error:
        if kind_of(error) == "driver" and not isinstance(error, BatchError):
            raise
        found = _as_ours(error, name)
        log.error("table not read", table=name, **found.as_dict())
        failed.append(found)


def read_again(config: PipelineConfig, spark: SparkSession, parts: Mapping[str, Sequence[runs.Range]]) -> Iterator[Run | WritetimeError]:
    """Read parts of tables (by full name) at ALL. Returns, in their order, the run or the reason why there is
    none."""
    if config.cluster.cql is None:
        raise ConfigError("`cluster.cql` is missing", operation="read from the ring", hint="Say in the pipeline's YAML where the ring is.")
    snapshot = config.snapshot.model_copy(update={"consistency": "ALL"})
    job = Bootstrap(config.model_copy(update={"snapshot": snapshot}), config.cluster.cql, open_store(config.bucket), spark, _log)
    for name, some in parts.items():
        failed: list[WritetimeError] = []
        with _going_on(name, failed):
            yield job.read_table(runs.table_named(job.schema, name), runs.joined(some))
        yield from failed


def _as_ours(error: Exception, name: str) -> WritetimeError:
    """The error of a table as one of writetime's; of one in a Spark worker, what that said."""
    if isinstance(error, WritetimeError):
        return error
    reason = why(error) if isinstance(error, PySparkException) else reason_of(error)
    reason = reason.partition(": ")[2] if reason.startswith(OURS) else reason
    return BatchError(reason, operation="read a table from the ring", obj=name, retriable=kind_of(error) != "table")


# --- driver


@dataclass
class Bootstrap:
    """One process of the job. The schema is what the bucket knows, the state that of the last seal."""

    config: PipelineConfig
    cql: CqlConfig
    store: Store
    spark: SparkSession
    notify: Callable[[Run], None]

    def __post_init__(self) -> None:
        self.cluster = self.config.cluster.name
        self.schema: Schema = known_schema(self.store, self.cluster).schema()
        self.sealed: Sealed | None = history(self.store, self.cluster).sealed
        before = read_manifest(self.store, self.cluster, self.sealed.number) if self.sealed else None
        # The rule by which the next batch merges what is read.
        self._policy = merge_rule(read_facts(self.store, self.cluster), base=before)

    def read_table(self, table: Table, parts: Sequence[runs.Range] | None = None) -> Run:
        """Start a run of the table or of parts of the token ring (in order, disjoint), or resume one, until
        all its ranges are read."""
        now = datetime.now(UTC)
        snapshot = self.config.snapshot
        plan = self._plan(table)
        run = runs.unfinished(self.store, self.cluster, table, parts, snapshot.consistency)
        if run is None:
            part = None if parts is None else (parts[0][0], parts[-1][1])
            with plan.ring() as ring:
                tokens = ring.tokens()
            ranges = runs.split(tokens, None, snapshot.ranges) if parts is None else runs.split_parts(tokens, parts, snapshot.ranges)
            run = runs.begin(self.store, self.cluster, table, part=part, ranges=ranges, consistency=snapshot.consistency, now=now)
        elif run.failed_at is not None:
            run = runs.update(self.store, run, now)
        done = runs.finished_ranges(self.store, run)
        wanted = [number for number in range(len(run.ranges)) if number not in done]
        log.info("reading a table", table=table.full_name, run=run.run, ranges=len(run.ranges), finished=len(done))
        try:
            with self._reporting(run):
                self._read(plan, run, wanted)
        except Exception as error:
            runs.update(self.store, run, datetime.now(UTC), error=str(_as_ours(error, table.full_name)))
            raise
        run = runs.update(self.store, run, datetime.now(UTC))
        if run.finished_at is not None and parts is None:
            runs.no_longer_due(self.store, self.cluster, table)
        return run

    def read_incomplete_rows(self, failed: list[WritetimeError]) -> int:
        """Read the rows again that batches recorded as incomplete; returns their number. The errors of tables
        that could not be read are added to `failed`, and their records stay."""
        by_table: dict[tuple[UUID, bool], dict[str, None]] = {}
        notes: dict[tuple[UUID, bool], list[ObjectInfo]] = defaultdict(list)
        for info in self.store.list(layout.incomplete_rows_prefix(self.cluster)):
            document = json.loads(self.store.read(info.name))
            if self.sealed is not None and document["batch"] <= self.sealed.number:
                about = UUID(document["table_id"]), bool(document.get("whole"))
                notes[about].append(info)
                by_table.setdefault(about, {}).update(dict.fromkeys(document["keys"]))
        count = 0
        for (table_id, whole), keys in by_table.items():
            table = self.schema.tables.get(table_id)
            with _going_on(str(table_id) if table is None else table.full_name, failed):
                if table is not None and not table.dropped:
                    count += self._read_keys(table, [bytes.fromhex(key) for key in keys], whole=whole)
                self._forget(notes[table_id, whole])
        return count

    def _forget(self, notes: Iterable[ObjectInfo]) -> None:
        for info in notes:
            # Another run has read the same, or a batch has recorded it again.
            with suppress(ObjectNotFound, PreconditionFailed):
                self.store.delete(info.name, if_generation=info.generation)

    # --- planning

    def _plan(self, table: Table) -> ReadPlan:
        """The read plan of a table. BatchError if the cluster has another table under its name, or if CQL does not
        show all of its columns: what is missing in an answer would be deleted."""
        if len(table.cql_columns) < len(table.columns):
            raise BatchError(
                "CQL does not show all columns of the table WITH COMPACT STORAGE",
                operation="read a table from the ring",
                obj=table.full_name,
                hint="Its log is ingested all the same; ALTER TABLE … DROP COMPACT STORAGE shows all of them.",
            )
        snapshot, datacenter = self.config.snapshot, self.config.cluster.read_in
        first = table.id not in runs.read_to_the_end(runs.runs(self.store, self.cluster, table.keyspace, table.name))
        plan = ReadPlan(self.config.bucket, self.cql, datacenter, snapshot, self.schema, table.id, first, self._policy)
        with plan.ring() as ring:
            if ring.table_id(table.keyspace, table.name) != table.id.bytes:
                raise BatchError(
                    "the cluster has no table with this name and id",
                    operation="read a table from the ring",
                    obj=table.full_name,
                    retriable=True,
                    hint="It comes with the next schema that a shipper ships.",
                )
        return plan

    def _shards(self, table: Table) -> list[tuple[str, int]]:
        """Path and version of every shard of the table's state."""
        return [] if self.sealed is None else shards_of(self.config, self.sealed, table.id)

    def _read(self, plan: ReadPlan, run: Run, wanted: list[int]) -> None:
        if not wanted:
            return
        context = self.spark.sparkContext
        schema = from_arrow_schema(_RECORDS)
        markers = self.spark.createDataFrame([(number, None, None) for number in wanted], schema=schema)
        shards = self._shards(plan.table)
        found = markers
        if shards:
            places = self.spark.createDataFrame(context.parallelize(shards, len(shards)), schema="uri string, version long")
            found = markers.unionByName(places.mapInArrow(_by_range(run, frozenset(wanted)), schema=schema))
        readers = min(len(wanted), self.config.snapshot.readers)
        # A range's marker comes first, because nulls sort first.
        sorted_ = found.repartition(readers, "range").sortWithinPartitions("range", "key")
        done = sorted_.mapInArrow(_reader(plan, run, readers), schema=from_arrow_schema(_DONE)).collect()
        if missing := set(wanted) - {row.range for row in done}:
            raise BatchError(
                f"{len(missing)} token ranges could not be read", operation="read a table from the ring", obj=run.name, retriable=True
            )

    def _read_keys(self, table: Table, keys: list[bytes], *, whole: bool) -> int:
        """`whole`: read at ALL, because a row counts as deleted only if no replica has it."""
        assert self.sealed is not None
        plan, shards = self._plan(table), self._shards(table)
        if whole:
            plan = replace(plan, snapshot=plan.snapshot.model_copy(update={"consistency": "ALL"}))
        readers = min(len(keys), self.config.snapshot.readers)
        node = layout.NodeName.made(self.cluster, "reread", f"{self.sealed.number:010d}-{short_id(table.id)}{'-all' if whole else ''}")

        def read(part: int, rows: Iterable[bytes]) -> Iterator[int]:
            wanted = sorted(rows)
            states = {key: state for uri, version in shards for key, state in Shard(uri, version).get(wanted).items()}
            with TableReader(plan, node, first=part * OBJECTS_PER_RANGE + 1, readers=readers) as reader:
                reader.again([(key, states.get(key, b"")) for key in wanted])
            yield reader.frames

        made = self.spark.sparkContext.parallelize(keys, readers).mapPartitionsWithIndex(read).sum()
        log.info("read again", table=table.full_name, rows=len(keys), frames=made)
        return len(keys)

    @contextmanager
    def _reporting(self, run: Run) -> Iterator[None]:
        """Record and report the run's progress at intervals."""
        stop = threading.Event()

        def notify() -> None:
            while not stop.wait(_REPORT_EVERY):
                self.notify(runs.update(self.store, run, datetime.now(UTC)))

        reporter = threading.Thread(target=notify, daemon=True)
        reporter.start()
        try:
            yield
        finally:
            stop.set()
            reporter.join()


def _log(run: Run) -> None:
    log.info("reading", table=f"{run.keyspace}.{run.table}", rows=run.rows, frames=run.frames, remaining=run.remaining)


def _by_range(run: Run, wanted: frozenset[int]) -> Callable[[Batches], Batches]:
    """Shards to their records, each with the token range of its partition."""
    ends = [end for _, end in run.ranges]

    def records(batches: Batches) -> Batches:
        for batch in batches:
            for row in batch.to_pylist():
                yield from chunked(_placed(Shard(row["uri"], row["version"]).scan(b"", PAST_RECORDS)), _RECORDS)

    def _placed(found: Iterable[tuple[bytes, bytes]]) -> Iterator[dict[str, Any]]:
        for pk, group in groupby(found, key=lambda record: split_record_key(record[0])[0]):
            token = token_of(pk)
            number = bisect_left(ends, token)
            if number in wanted and token > run.ranges[number][0]:
                yield from ({"range": number, "key": key, "state": state} for key, state in group)

    return records


def _reader(plan: ReadPlan, run: Run, readers: int) -> Callable[[Batches], Batches]:
    """_RECORDS, sorted, to _DONE."""

    def read(batches: Batches) -> Batches:
        rows = (row for batch in batches for row in batch.to_pylist())
        for number, group in groupby(rows, key=lambda row: row["range"]):
            states = {row["key"]: row["state"] for row in group if row["key"] is not None}
            with TableReader(plan, run.node, first=number * OBJECTS_PER_RANGE + 1, readers=readers) as reader:
                reader.read(run.ranges[number], states)
            done = RangeDone(rows=reader.rows, frames=reader.frames, objects=reader.objects)
            runs.finish_range(open_store(plan.bucket), run, number, done)
            yield pa.RecordBatch.from_pylist([{"range": number, "rows": done.rows, "frames": done.frames}], schema=_DONE)

    return read


# --- worker


@dataclass(frozen=True)
class ReadPlan:
    """The plan of a worker. It contains no secrets."""

    bucket: str
    cql: CqlConfig
    datacenter: str
    snapshot: SnapshotConfig
    schema: Schema
    table_id: UUID
    first: bool
    policy: Policy

    @property
    def table(self) -> Table:
        return self.schema.tables[self.table_id]

    def ring(self) -> Ring:
        snapshot = self.snapshot
        return Ring(self.cql, datacenter=self.datacenter, consistency=snapshot.consistency, page_rows=snapshot.page_rows)


@dataclass
class TableReader:
    """Reads rows of a table from the cluster and writes frames for the differences from their states. A
    context manager: leaving it writes the last frames."""

    plan: ReadPlan
    node: layout.NodeName
    first: int
    readers: int = 1
    rows: int = 0
    _asked: int = 0

    def __post_init__(self) -> None:
        plan, table, types = self.plan, self.plan.table, self.plan.schema.types
        self._ring = plan.ring()
        self._selection = Selection(table, types, of_elements=self._ring.has_element_times)
        self._keys, self._order = RowKeys(table, types), ClusteringOrder(table, types)
        kinds = {column.name: parse_type(column.type, table.keyspace, types) for column in (*table.static_columns, *table.regular_columns)}
        lists = frozenset(name for name, kind in kinds.items() if _is_list(kind))
        untold = frozenset() if self._ring.has_element_times else frozenset(name for name, kind in kinds.items() if kind.multicell)
        self._comparison = Comparison(lists, untold, table.is_counter, plan.snapshot.consistency == "ALL", plan.first, plan.policy)
        self._as_of = as_of(plan.snapshot.margin_seconds)
        self._began = time.monotonic()
        sealed_at = datetime.fromtimestamp(self._as_of / MICROSECONDS, UTC)
        self._writer = FramesWriter(open_store(plan.bucket), self.node, sealed_at, self.first)

    def __enter__(self) -> TableReader:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        self._ring.__exit__(None, None, None)
        if kind is None:
            self._writer.flush()

    @property
    def frames(self) -> int:
        return self._writer.count

    @property
    def objects(self) -> list[str]:
        return self._writer.objects

    def read(self, part: runs.Range, states: Mapping[bytes, bytes]) -> None:
        """Read all rows of a range. `states`: the state by record key."""
        rest = dict(states)
        last: bytes | None = None
        for page in self._ring.pages(self._selection.of_range(), [_bigint(token) for token in part], self._as_of):
            reading = self._reading(page)
            for answer in page.rows:
                row = self._selection.row(answer, reading)
                if row.key != last:
                    last = row.key
                    self._statics(row.key, rest.pop(record_key(row.key), b""), row, reading)
                if row.clustering is not None:
                    state = rest.pop(record_key(row.key, self._keys.key(row.clustering)), b"")
                    self._row(row.key, state, row, reading)
            self.rows += len(page.rows)
            self._pause()
        # Read once more: only a row that is missing in both reads was deleted.
        reading = Reading(self._as_of, self._as_of // MICROSECONDS)
        self.again([(key, state) for key, state in sorted(rest.items()) if self._is_phantom(key, state, reading)])

    def again(self, records: Sequence[tuple[bytes, bytes]]) -> None:
        """Read the row of each record key from the cluster again, or the static cells of its partition;
        several at once, because a query for one row is mostly waiting. Takes record keys and states; a record
        without a state was removed since."""
        with ThreadPoolExecutor(_ASKED_AT_ONCE) as pool:
            for at in range(0, len(records), _ASKED_BETWEEN_PAUSES):
                some = records[at : at + _ASKED_BETWEEN_PAUSES]
                for (key, state), page in zip(some, pool.map(self._ask, *zip(*some, strict=True)), strict=True):
                    self._answered(key, state, page)
                self._asked += len(some)
                self._pause()

    def _ask(self, key: bytes, state: bytes) -> Page:
        pk, name = split_record_key(key)
        parts = split_partition_key(pk, len(self.plan.table.partition_key))
        if name == HEAD:
            return self._ring.rows(self._selection.of_statics(), parts, self._as_of)
        if not state:
            return Page([], Reading(self._as_of, 0))
        return self._ring.rows(self._selection.of_row(), [*parts, *(row_codec.decode(state).clustering or ())], self._as_of)

    def _answered(self, key: bytes, state: bytes, page: Page) -> None:
        pk, name = split_record_key(key)
        reading = self._reading(page)
        rows = [self._selection.row(answer, reading) for answer in page.rows]
        if name == HEAD:
            self._statics(pk, state, rows[0] if rows else None, self._now(reading))
        elif state:
            self._row(pk, state, next((row for row in rows if row.clustering is not None), None), self._now(reading))

    # --- comparing

    def _statics(self, key: bytes, state: bytes, row: RingRow | None, reading: Reading) -> None:
        if self.plan.table.static_columns:
            self._put(key, self._comparison.statics(self._static(state), row.static_cells if row else (), reading))

    def _row(self, key: bytes, state: bytes, row: RingRow | None, reading: Reading) -> None:
        ring = Row(row.clustering, cells=row.cells) if row is not None else None
        self._put(key, self._comparison.row(row_codec.decode(state) if state else None, ring, reading))

    def _is_phantom(self, key: bytes, state: bytes, reading: Reading) -> bool:
        if split_record_key(key)[1] == HEAD:
            return self._comparison.statics(self._static(state), (), reading) is not None
        return self._comparison.row(row_codec.decode(state), None, reading) is not None

    def _static(self, state: bytes) -> Row | None:
        update = decode_head(state, self._order).update
        return None if update is None else update.static_row

    def _put(self, key: bytes, row: Row | None) -> None:
        if row is not None:
            self._writer.add(frame(self.plan.table, self.plan.schema, key, row))

    def _reading(self, page: Page) -> Reading:
        """The time of a page, as far as clocks agree within the margin."""
        margin = self.plan.snapshot.margin_seconds
        since, until = (int(second * MICROSECONDS) for second in (page.asked - margin, page.answered + margin))
        return replace(page.reading, as_of=max(self._as_of, since), until=until)

    def _now(self, reading: Reading) -> Reading:
        """The time of the query; for a result without rows, the time at its start, which is early enough."""
        return reading if reading.now > 0 else Reading(self._as_of, self._as_of // MICROSECONDS)

    def _pause(self) -> None:
        """Wait so that this reader keeps to its share of the rate limit."""
        rate = self.plan.snapshot.rows_per_second
        if rate is not None:
            ahead = (self.rows + self._asked) / (rate / self.readers) - (time.monotonic() - self._began)
            time.sleep(max(0.0, ahead))


def _is_list(kind: Any) -> bool:
    return isinstance(kind, CollectionType) and kind.multicell and kind.kind == "list"


def _bigint(number: int) -> bytes:
    return number.to_bytes(8, "big", signed=True)


if __name__ == "__main__":
    sys.exit(main())
