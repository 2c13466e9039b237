"""The ingest job: run one planned batch to its seal. `spark-submit ingest.py --config FILE --batch N
[--namespace NAME] [--publish]`

    manifest ─► survey ─► learn schema and truncates ─► route ─► shuffle by (table, key bucket) ─► explode ─► sort ─► merge
             ─► files of changes and current rows ─► commits: quarantine, changes, state, current rows ─► seal

Everything before the commits only reads pinned versions, and writes files that nothing refers to. Every commit
is idempotent, so an unsealed batch can be run again after a crash at any point. The seal is the last step; it is
created and never overwritten.
Exit code: 0 the batch is sealed, 1 it is not."""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from functools import cached_property, lru_cache
from itertools import accumulate, groupby
from operator import itemgetter
from typing import Any
from uuid import UUID

import pyarrow as pa
import structlog
from pyspark.sql import DataFrame, Row, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.pandas.types import from_arrow_schema

from spark_jobs.completeness import CompletenessWriter
from spark_jobs.failures import COMMITTERS, TablesFailed, concerning, kind_of, of_each, reason_of, reporting
from spark_jobs.job_exit import reports_failure
from spark_jobs.maintain import TablesUnmaintained, maintain
from spark_jobs.meter import Meter
from spark_jobs.publish import publish_at_once
from spark_jobs.rejected_tables import Attempts, without_rejected
from spark_jobs.session import spark_session
from spark_jobs.sinks import voids
from spark_jobs.sinks.batch_files import Events, tasks_of
from spark_jobs.sinks.bigquery import ExternalTablesWriter
from spark_jobs.sinks.iceberg import Fence, Rows, TableWrite, Warehouse, Write
from spark_jobs.sinks.quarantine import STORED, QuarantineWriter, Wanted, frame_writer
from spark_jobs.stages import table_events
from spark_jobs.stages.arrow_runs import by_shard
from spark_jobs.stages.erase_key import erase
from spark_jobs.stages.event_pages import PAGES
from spark_jobs.stages.explode import ExplodePlan, exploder
from spark_jobs.stages.incomplete_rows import IncompleteRows, put_keys
from spark_jobs.stages.merge_stream import FOLDED, FoldPlan, joiner
from spark_jobs.stages.row_packs import (
    EVENTS,
    PACKED,
    RECORDS,
    REJECTED,
    folding,
    packed,
    packing,
    records,
)
from spark_jobs.stages.scan import (
    ROUTED,
    SURVEY,
    Batches,
    Routes,
    groups,
    router,
    surveyor,
    tasks,
)
from spark_jobs.stages.typed_events import EventPlan, of_no_row, typed
from spark_jobs.state.shards import Written, upsert
from writetime.cassandra.commitlog.mutation import EPOCHS_VERSION
from writetime.cassandra.commitlog.system_mutations import Own, decode_own, may_have_epochs
from writetime.cassandra.merge.clustering import dropped_columns
from writetime.cassandra.model import MICROSECONDS, Mutation
from writetime.cassandra.schema.epochs import SchemaMutation, follow
from writetime.cassandra.schema.history import SchemaLearner
from writetime.cassandra.schema.model import Schema, Table
from writetime.cassandra.schema.node_metadata import Truncation
from writetime.cassandra.schema.snapshot import read as read_snapshot
from writetime.cassandra.schema.system_tables import SCHEMA_TABLES
from writetime.cassandra.token_ring import expected_replicas
from writetime.config.pipeline import PipelineConfig, load
from writetime.errors import (
    AccountingMismatch,
    BatchError,
    DecodeError,
    PreconditionFailed,
    SchemaError,
    WritetimeError,
)
from writetime.events.masking import rejection_reason
from writetime.pipeline import again, erasures, node_logs, pace, pinned, watermark
from writetime.pipeline.batch_report import batch_text
from writetime.pipeline.completeness import begun, is_late, node_ends
from writetime.pipeline.documents import (
    CDC_OFF,
    Accounting,
    Apart,
    LocalDocument,
    Manifest,
    Mark,
    PartitionedFrom,
    Problem,
    RefusedTable,
    Sealed,
    SegmentInput,
    SegmentOutcome,
    Settled,
    ShardVersions,
    StageCost,
    TableFiles,
    TablePoint,
    TablePoints,
    Totals,
    WarehouseFiles,
    may_contain,
    released_objects,
    total,
)
from writetime.pipeline.erasures import Erased
from writetime.pipeline.planner import not_voided, read_manifest, read_schema, read_sealed, seal
from writetime.pipeline.publish_progress import read_published
from writetime.pipeline.quarantine.kinds import QuarantineKind
from writetime.pipeline.quarantine.published import of_batch, with_bytes
from writetime.pipeline.quarantine.record import change_note, note_of
from writetime.pipeline.rebuild import expect_readable
from writetime.pipeline.truncations import Purged
from writetime.pipeline.void import voided_before
from writetime.storage import layout, open_store
from writetime.storage.concurrency import at_once
from writetime.storage.store import Store
from writetime.storage.untrusted_objects import AHEAD
from writetime.untrusted import SCHEMA

log = structlog.get_logger()

_FEW_ROWS = 1000
"""Rows of a survey that the driver reads at once: schema changes, records of nodes, and problems of at most
`frame_ranges.BROUGHT` bytes each.
"""
_WRITTEN = pa.schema([("table_id", pa.binary()), ("bucket", pa.int32()), ("version", pa.int64()), ("earliest_expiry", pa.int64())])


@reports_failure("the batch")
def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description="Run one planned batch to its seal.")
    parser.add_argument("--config", required=True, help="the pipeline's YAML")
    parser.add_argument("--batch", required=True, type=int, help="number of the planned batch")
    parser.add_argument("--namespace", default="", help="shadow namespace of the replay")
    parser.add_argument("--publish", action="store_true", help="publish the sealed batch, too, if all earlier ones are published")
    parser.add_argument("--json", action="store_true", help="print the outcome as JSON instead of text for people")
    options = parser.parse_args(arguments)
    config = load(options.config)

    def after(spark: SparkSession, sealed: Sealed) -> None:
        if options.publish:
            publish_at_once(config, options.batch, spark)
        store = open_store(config.bucket)
        CompletenessWriter(config, store, spark).write(options.batch)
        ExternalTablesWriter(config, store, spark).write(sealed)

    sealed = run(config.shadow(options.namespace), options.batch) if options.namespace else run(config, options.batch, then=after)
    print(sealed.model_dump_json() if options.json else batch_text(sealed))  # noqa: T201
    return 0


def run(
    config: PipelineConfig, number: int, session: SparkSession | None = None, *, then: Callable[[SparkSession, Sealed], None] | None = None
) -> Sealed:
    """Run the batch and return its seal; if it is sealed already, return the existing one. A given `session`
    stays open. `then` is called after a batch that this run has sealed, while Spark runs. BatchError if the
    batch was voided."""
    store = open_store(config.bucket)
    done = read_sealed(store, config.cluster.name, number)
    if done is not None:
        return not_voided(done)
    manifest = read_manifest(store, config.cluster.name, number)
    base = read_sealed(store, config.cluster.name, manifest.base) if manifest.base else None
    if manifest.base and base is None:
        raise BatchError(
            f"its base, batch {manifest.base}, is not sealed", operation="run a batch", obj=str(number), hint="Run the base batch first."
        )
    if manifest.kind not in ("maintain", "erase"):
        config = pinned.configuration(store, manifest, config)
    spark = session or spark_session(config, f"writetime ingest {config.pipeline} batch {number}")
    began = time.monotonic()
    try:
        sealed = _run(config, store, spark, manifest, base, whole=session is None)
        _note_pace(config, store, manifest, time.monotonic() - began)
        if then is not None:
            then(spark, sealed)
        return sealed
    except WritetimeError as error:
        done = read_sealed(store, config.cluster.name, number)
        if done is None or isinstance(error, TablesUnmaintained):
            raise
        not_voided(done)
        log.warning("another driver has sealed the batch", batch=number, **error.as_dict())
        return done
    finally:
        if session is None:
            spark.stop()
        else:
            session.catalog.clearCache()


def _note_pace(config: PipelineConfig, store: Store, manifest: Manifest, seconds: float) -> None:
    """What the run took, for the size of the next batches. The batch is sealed, whatever becomes of that."""
    try:
        pace.note(store, manifest, seconds, config.batch_seconds)
    except WritetimeError as error:
        log.warning("failed to note what the batch took", batch=manifest.number, **error.as_dict())


def _run(config: PipelineConfig, store: Store, spark: SparkSession, manifest: Manifest, base: Sealed | None, *, whole: bool) -> Sealed:
    if manifest.kind == "maintain" and base is not None:
        return maintain(config, store, spark, manifest, base, whole=whole)
    if manifest.kind == "erase" and base is not None:
        return erase(config, store, spark, manifest, base)
    voided = voided_before(store, manifest, base)
    meter = Meter(spark.sparkContext, whole=whole)
    attempts = Attempts()

    def batch(only: Collection[Table] | None = None) -> Batch:
        ids = None if only is None else frozenset(table.id for table in only)
        return Batch(config, store, spark, manifest, base, meter, voided=voided, attempts=attempts, only=ids)

    return without_rejected(lambda: batch().run(), lambda tables: batch(tables).try_out(), attempts, store, manifest, spark)


@dataclass(frozen=True)
class Survey:
    """What was found in the batch's segments: rows of SURVEY, and by segment the detail of its row `done`."""

    frame: DataFrame
    done: Mapping[int, dict[str, Any]]

    @classmethod
    def of(cls, frame: DataFrame) -> Survey:
        """Read the segments; their rows stay in Spark."""
        kept = frame.persist()
        found = kept.filter("kind = 'done'").select("segment", "detail").collect()
        return cls(kept, {row.segment: json.loads(row.detail) for row in found})

    @cached_property
    def counts(self) -> Counter[str]:
        """Rows by kind, without `done`."""
        return sum((Counter(done["others"]) for done in self.done.values()), Counter())

    @cached_property
    def _few(self) -> list[Row]:
        return self.frame.filter("kind <> 'done'").collect()

    def rows(self, kind: str, *columns: str) -> Iterator[Row]:
        """The rows of that kind. One job of Spark reads all kinds if they have few rows, and none if there are no
        rows; an iterator runs a job for each partition, which takes a twentieth of a second."""
        if not self.counts[kind]:
            return iter(())
        if self.counts.total() <= _FEW_ROWS:
            return (row for row in self._few if row.kind == kind)
        return self.frame.filter(F.col("kind") == kind).select(*columns).toLocalIterator()


@dataclass
class WrittenFiles:
    """What is written and not committed. `writes`: what has been looked at, by table id; `events`: from which rows can
    be made, of each table whose rows change; `emitted`: how many events of each table the stream tells."""

    writes: Mapping[UUID, TableWrite]
    events: Mapping[UUID, Events]
    emitted: Mapping[bytes, int]

    def events_of(self, table: Table, count: int) -> Events:
        """A table's events, few of them in one task."""
        return replace(self.events[table.id], tables=(table.id.bytes,), tasks=tasks_of(count), is_sorted=True)

    def discard(self) -> None:
        for write in self.writes.values():
            write.discard()


@dataclass
class Batch:
    """One run of one batch. The stages fill in what is known of segments, tables and snapshots. `refused` are
    the tables whose rows cannot be projected, with the reason. By table id: `reshaped` may be affected by
    DDL; `altered` have another set of dropped columns now (the value is the table before); `since` is the
    second up to which the events of a table go that the base did not capture; `ending` were dropped, and the
    DROP is not emitted yet. `events` counts emitted events by shard. `earlier` are the tables for which an
    earlier attempt may have emitted events. By name: `rebuilt` start with a new state; `untold` have changes
    that are not emitted; `rows`, `current_files` and `changes_files` are the row counts and files of changed
    tables, None if unknown. By table id, `points` is where tables stand that were committed to; `living` are captured and not
    dropped. `absent` are the missing segments, `not_in_log` as in a seal, `apart` the tables that are there by choice, and `additions` the
    number of verdicts found after the first run (`writetime.pipeline.pinned`).
    `logged` are the places at which nodes' logs drop tables and create them again. `voided` are the earlier batches
    without effect, with their ids. `attempts`: what is known of runs before this one; `only`: the tables that are
    tried out, None: all."""

    config: PipelineConfig
    store: Store
    spark: SparkSession
    manifest: Manifest
    base: Sealed | None
    meter: Meter
    outcomes: dict[int, SegmentOutcome] = field(default_factory=dict)
    accounts: dict[str, dict[str, int]] = field(default_factory=lambda: defaultdict(lambda: defaultdict(int)))
    events: dict[tuple[bytes, int], int] = field(default_factory=dict)
    refused: dict[UUID, RefusedTable] = field(default_factory=dict)
    not_in_log: dict[str, str] = field(default_factory=dict)
    apart: dict[UUID, Table] = field(default_factory=dict)
    reshaped: set[UUID] = field(default_factory=set)
    altered: dict[bytes, Table] = field(default_factory=dict)
    since: dict[bytes, int] = field(default_factory=dict)
    ending: set[UUID] = field(default_factory=set)
    earlier: list[Table] = field(default_factory=list)
    untold: set[str] = field(default_factory=set)
    rebuilt: set[str] = field(default_factory=set)
    rows: dict[str, int | None] = field(default_factory=dict)
    current_files: dict[str, TableFiles | None] = field(default_factory=dict)
    changes_files: dict[str, TableFiles | None] = field(default_factory=dict)
    points: dict[UUID, TablePoints] = field(default_factory=dict)
    living: frozenset[UUID] = frozenset()
    snapshots_refused: dict[str, str] = field(default_factory=dict)
    absent: frozenset[str] | None = None
    additions: int = 0
    local: LocalDocument = field(default_factory=LocalDocument)
    logged: node_logs.SchemaPlaces | None = None
    voided: dict[int, UUID | None] = field(default_factory=dict)
    attempts: Attempts = field(default_factory=Attempts)
    only: frozenset[UUID] | None = None

    def run(self) -> Sealed:
        surveyed, folded, schema, captured = self._merged()
        self._expect_open()
        self._note_problems(surveyed, folded, schema)
        events, of_no_rows = self._typed_events(folded, schema, captured)
        gone = self.voided, voids.rejected(self.base), self.refused
        voids.take_back(self._warehouse(), self.store, self.manifest, *gone)
        written = self._write_files(events, of_no_rows, schema, captured)
        try:
            self._account_events(written.emitted, schema, captured)
            self._commit_quarantine()
            self._commit_changes(written, schema, captured)
            state = self._commit_state(folded, captured)
            self._note_undecided(folded)
            self.rebuilt = {table.label for table in captured if table.id in self.local.opened}
            self._commit_current(written, schema, captured)
        finally:
            written.discard()
        voids.expect_settled(self._warehouse(), self.store, self.manifest, *gone)
        self._expect_open()
        return self._seal(state)

    def try_out(self) -> None:
        """All that a run does for its tables before it commits. Nothing remains of it."""
        try:
            _, folded, schema, captured = self._merged()
            events, of_no_rows = self._typed_events(folded, schema, captured)
            self._write_files(events, of_no_rows, schema, captured).discard()
        finally:
            self.spark.catalog.clearCache()

    def _merged(self) -> tuple[Survey, DataFrame, Schema, list[Table]]:
        """What the segments hold, and it merged with the state; the schema and the captured tables."""
        surveyed = Survey.of(self._survey())
        self._pin_absent(surveyed)
        schema, captured = self._learn(surveyed)
        # Another driver may have moved segments that are read again.
        self._expect_open()
        self.local = node_logs.settle(self.store, self.manifest, self.base, self._node_records(surveyed), captured, self.logged)
        ended = of_each(captured, lambda table: self._shard_versions(table).ended)
        self.ending = {table.id for table, is_over in zip(captured, ended, strict=True) if table.dropped and not is_over}
        for reason in self.local.not_understood:
            log.error("node log could not be decoded", batch=self.manifest.number, reason=reason)
        # Bodies of mutations are read once; only their results are cached.
        folded = self._fold(self._route(schema, captured), schema, captured).persist()
        self._account(surveyed, folded, schema)
        return surveyed, folded, schema, captured

    # --- reading

    @property
    def segments(self) -> list[SegmentInput]:
        """Everything that the batch reads, in the order of the indexes."""
        return node_logs.all_segments(self.manifest, self.local)

    def _of_origin(self, *origins: layout.Origin) -> frozenset[int]:
        """Indexes of the segments whose frames have that origin."""
        return frozenset(index for index, segment in enumerate(self.segments) if segment.ref.node.origin in origins)

    @property
    def _readings(self) -> frozenset[int]:
        """Indexes of the segments that a reader of the cluster has written, not a node."""
        return frozenset(index for index, segment in enumerate(self.segments) if segment.ref.node.is_reading)

    @property
    def _again(self) -> dict[UUID, bool]:
        """Tables whose rows are made again from their state, and whether events tell all of them: if columns are dropped in
        this batch, in any case. One whose state starts empty is told as a whole anyway."""
        asked, gone = self.manifest.again, self.local.opened
        return {i: emits or i.bytes in self.altered for i, emits in asked.items() if i in self.living and i not in gone}

    @property
    def _made_again(self) -> dict[UUID, bool]:
        """The same with those whose state starts empty."""
        return self._again | {table_id: True for table_id in self.local.opened if table_id in self.manifest.again}

    @property
    def _apart(self) -> frozenset[bytes]:
        return frozenset(table_id.bytes for table_id in self.apart)

    def _survey(self) -> DataFrame:
        """The contents of the segments as counts, and the mutations of schema and node tables."""
        self.absent = pinned.absent(self.store, self.manifest)
        segments = pinned.as_pinned(self.manifest.segments, self.absent)
        survey = self.meter.stage("scan")(surveyor(self.config.bucket, self.config.cluster.commitlog_keystore))
        self.meter.note(StageCost(stage="scan", objects=len(segments), bytes=sum(segment.size for segment in segments)))
        return tasks(self.spark, segments, groups(segments), survey, SURVEY)

    def _pin_absent(self, surveyed: Survey) -> None:
        """Pin the set of missing segments: what was missing when the batch first read them is missing in
        every run."""
        gone = self._with_problem(surveyed, QuarantineKind.GONE)
        if self.manifest.kind == "rebuild":
            # The problem of a packed segment that cannot be unpacked has no bytes, that of a damaged section has some.
            gone |= self._with_problem(surveyed, QuarantineKind.UNREADABLE_SECTION, "length(body) = 0")
            expect_readable(self.store, self.manifest, gone)
        if gone:
            # Another driver may have sealed the batch and archived them.
            self._expect_open()
        pinned.pin_absent(self.store, self.manifest, gone)
        self.absent = frozenset(gone)

    def _with_problem(self, surveyed: Survey, kind: QuarantineKind, where: str = "true") -> set[str]:
        """The segments with a problem of that kind."""
        if not surveyed.counts["problem"]:
            return set()
        problems = surveyed.frame.filter("kind = 'problem'").filter(where)
        mine = problems.filter(F.get_json_object("detail", "$.kind") == kind.value)
        return {self.manifest.segments[row.segment].object for row in mine.select("segment").distinct().collect()}

    def _expect_open(self) -> None:
        """BatchError if another driver has sealed the batch: nothing may be written for it after that."""
        self._fence().check(self.manifest.number)

    def _fence(self) -> Fence:
        return Fence(self.store, self.manifest.cluster, self.additions)

    def _learn(self, surveyed: Survey) -> tuple[Schema, list[Table]]:
        """Apply the schema facts of logs and snapshots to the known schema, and store the result for the next
        batch."""
        learner = read_schema(self.store, self.manifest.cluster, self.base.number if self.base else 0)
        known = learner.schema()
        logged = self._follow(surveyed, learner)
        for _, change in logged:
            learner.apply_logged(change)
        for name in self.manifest.schema_snapshots:
            self._apply_snapshot(learner, name)
        self.logged = _schema_places(logged, learner)
        name = layout.batch_object(self.manifest.cluster, self.manifest.number, "schema")
        try:
            self.store.put(name, learner.to_json().encode(), if_generation=0)
        except PreconditionFailed:
            again, learner = True, read_schema(self.store, self.manifest.cluster, self.manifest.number)
        else:
            again = False
        schema = learner.schema()
        wanted = [*learner.captured(self.config.tables.captures), *learner.views_with_cdc(self.config.tables.captures)]
        unusable = learner.unusable(self.config.tables.captures)
        self.refused = self._refused(wanted, schema) | {
            table_id: RefusedTable(table=name, table_id=table_id, reason=reason) for table_id, (name, reason) in unusable.items()
        }
        if self.only is not None:
            self.refused |= {table.id: _not_tried(table) for table in wanted if table.id not in {*self.only, *self.refused}}
        captured = [table for table in wanted if table.id not in self.refused]
        bypassing = [table for table in wanted if not table.dropped and table.bypasses_log]
        self.not_in_log = {table.label: CDC_OFF for table in wanted if not table.dropped and not table.cdc}
        if self.config.tables.not_in_log == "alarm":
            self.not_in_log |= {table.label: table.bypass for table in bypassing}
        else:
            self.apart = {table.id: table for table in bypassing}
            captured = [table for table in captured if not self._is_left_out(table)]
        if again:
            untouched = pinned.verdicts(self.store, self.manifest).untouched
            self.earlier = [table for table in learner.captured() if table.id not in untouched]
        captured.sort(key=lambda table: (table.full_name, str(table.id)))
        self.living = frozenset(table.id for table in captured if not table.dropped)
        if self.only is None:
            self.attempts.tables = captured
        self._compare(known, schema, captured)
        return schema, captured

    def _follow(self, surveyed: Survey, learner: SchemaLearner) -> list[tuple[layout.SegmentRef, SchemaMutation]]:
        """The schema changes in the logs of all nodes, in the order of each log, ordered by epoch where there are
        epochs. Notes in the learner how far each log has been followed."""
        frames = [(row.segment, row.position, bytes(row.body)) for row in surveyed.rows("schema", "segment", "position", "body")]
        refs = [segment.ref for segment in self.manifest.segments]
        hosts = {
            host
            for at, _, body in frames
            if (host := refs[at].node.host_id) in learner.followed or may_have_epochs(body, version=refs[at].segment.version)
        }
        if hosts:
            nodes = ((row.segment, row.position, bytes(row.body)) for row in surveyed.rows("local", "segment", "position", "body"))
            frames += [frame for frame in nodes if refs[frame[0]].node.host_id in hosts]
        later: set[str] = set()
        decoded: dict[int, list[tuple[int, Mutation]]] = defaultdict(list)
        for segment, position, body in frames:
            try:
                own = _decoded(body, refs[segment].segment.version)
                decoded[segment].append((position, own.mutation))
                later.update(own.unknown)
            except DecodeError as error:
                # Routing finds the same error in this frame and quarantines it.
                log.warning("schema change could not be decoded", batch=self.manifest.number, **error.as_dict())
        if later:
            log.warning("schema has features unknown to this version", batch=self.manifest.number, unknown=sorted(later))
        found: list[tuple[layout.SegmentRef, SchemaMutation]] = []
        for segment in sorted(decoded, key=lambda each: (refs[each].node.host_id, refs[each].segment.id, each)):
            ref, mutations = refs[segment], sorted(decoded[segment], key=itemgetter(0))
            host, number = ref.node.host_id, ref.segment.id
            last = learner.followed.get(host)
            changes, followed = follow(number, mutations, last, has_epochs=ref.segment.version >= EPOCHS_VERSION)
            found += [(ref, change) for change in changes]
            if followed is not None and (last is None or followed.segment >= last.segment):
                learner.followed[host] = followed
        return found

    def _refused(self, wanted: list[Table], schema: Schema) -> dict[UUID, RefusedTable]:
        """The wanted tables that this batch rejects; the same in all its runs."""
        warehouse, rules = self._warehouse(), self.config.columns.rules
        known = pinned.verdicts(self.store, self.manifest).refused
        asked = [table for table in wanted if table.id not in known]
        # Of a table that was fine before, that is found when it is written to.
        before = {table.table_id for table in self.base.refused} if self.base is not None else set()

        def reason(table: Table) -> str | None:
            try:
                found = rejection_reason(table, schema, rules) or warehouse.rejection_reason(table)
                return warehouse.altered(self._shown(table, schema), schema) if found is None and table.id in before else found
            except Exception as error:
                if kind_of(error) != "table":
                    raise
                return reason_of(error)

        reasons = at_once(reason, asked, workers=COMMITTERS)
        found = [
            RefusedTable(table=table.label, table_id=table.id, reason=reason)
            for table, reason in zip(asked, reasons, strict=True)
            if reason
        ]
        verdicts = pinned.pin_verdicts(self.store, self.manifest, found)
        self.additions = verdicts.additions
        return {table.id: verdicts.refused[table.id] for table in wanted if table.id in verdicts.refused}

    def _is_left_out(self, table: Table) -> bool:
        """Whether nothing is taken of the table, as its writes reach no log. One that did before keeps its rows."""
        has_rows = self.base is not None and str(table.id) in self.base.state
        return self.config.tables.not_in_log == "leave_out" and table.id in self.apart and not has_rows

    def _shown(self, table: Table, schema: Schema) -> Table:
        """The table as the warehouse and later stages see it."""
        return self.config.columns.rules.of(table, schema.types).shown()

    def _compare(self, known: Schema, schema: Schema, captured: list[Table]) -> None:
        """Record how each table has changed since it was last captured, usually by the base, whose schema is
        `known`."""
        cluster, last = self.manifest.cluster, self.manifest.base
        schemas, clocks = {last: known}, {}

        def compare(table: Table) -> None:
            number = self.base.captured_by(table.id) if self.base else last
            if number not in schemas:
                schemas[number] = read_schema(self.store, cluster, number).schema()
                clocks[number] = read_manifest(self.store, cluster, number).now
            if number in clocks:
                self.since[table.id.bytes] = clocks[number]
            if _reshaped(schemas[number], schema, table):
                self.reshaped.add(table.id)
            if (old := _altered(schemas[number], schema, table)) is not None:
                self.altered[table.id.bytes] = old

        of_each(captured, compare)

    def _apply_snapshot(self, learner: SchemaLearner, name: str) -> None:
        try:
            latest = (self.manifest.now + int(AHEAD.total_seconds())) * 1_000_000
            document = read_snapshot(self.store.read(name, end=SCHEMA + 1))
            info = self.store.head(name)
            received = int(info.created.timestamp() * 1_000_000) if info is not None else latest
            learner.apply_snapshot(document, latest=latest, received=received)
        except SchemaError as error:
            # It is recorded in the seal; no other table waits for it.
            log.error("schema snapshot refused", batch=self.manifest.number, snapshot=name, reason=str(error))
            self.snapshots_refused[name] = str(error)

    def _node_records(self, surveyed: Survey) -> Iterator[tuple[int, bytes]]:
        for row in surveyed.rows("local", "segment", "body"):
            yield row.segment, bytes(row.body)

    def _route(self, schema: Schema, captured: list[Table]) -> DataFrame:
        """Mutations of captured tables, and one row for each shard in which something may have expired."""
        segments = self.segments
        buckets = dict(of_each(captured, lambda table: (table.id, len(self._shard_versions(table).buckets))))
        shards_before = accumulate(buckets.values(), initial=0)
        first = {table_id.bytes: number for table_id, number in zip(buckets, shards_before, strict=False)}
        route = router(
            Routes(
                schema,
                buckets,
                _versions(segments),
                {table_id: table.reason for table_id, table in self.refused.items()},
                keeps=self.manifest.namespace is None and self.only is None,
            ),
            self.config.bucket,
            self.config.cluster.commitlog_keystore,
            node_logs.only(self.manifest, self.local),
        )
        routed = tasks(
            self.spark, pinned.as_pinned(segments, self.absent), groups(segments), self.meter.stage("scan")(packing(route, first)), PACKED
        )
        shards = [shard for some in of_each(captured, self._due) for shard in some]
        due = [packed(*shard, pa.RecordBatch.from_pylist([_marker(*shard)], schema=ROUTED), first) for shard in shards]
        return routed.unionByName(self.spark.createDataFrame(due, schema=from_arrow_schema(PACKED)))

    def _due(self, table: Table) -> list[tuple[bytes, int]]:
        # All rows of a dropped incarnation were deleted at once.
        known = self._shard_versions(table)
        expires = known.expires or [self.manifest.now] * len(known.buckets)
        return [
            (table.id.bytes, bucket)
            for bucket, (version, at) in enumerate(zip(known.buckets, expires, strict=True))
            if not table.dropped
            and version
            and (table.id.bytes in self.altered or table.id in self._again or (at is not None and at <= self.manifest.now))
        ]

    def _shard_versions(self, table: Table) -> ShardVersions:
        new = ShardVersions(generation=node_logs.first_generation(self.manifest), buckets=[0] * self.config.buckets)
        known = (self.base.state.get(str(table.id)) if self.base else None) or new
        if table.id not in self.local.opened:
            return known
        return ShardVersions(generation=self.local.generations[table.id].generation, buckets=[0] * len(known.buckets))

    # --- folding

    def _purged(self, captured: list[Table]) -> dict[bytes, Purged]:
        """What is left out of tables when it is read again or late: the data that superseded it may have been
        purged since."""
        late, again = self._late(), self.manifest.kind == "replay"
        found = {}

        def look(table: Table) -> None:
            behind = frozenset(
                index
                for index, segment in enumerate(self.segments)
                if again or index in late or (segment.folded_but is not None and table.id not in segment.folded_but)
            )
            if behind and (until := self._shard_versions(table).purged) is not None:
                found[table.id.bytes] = Purged(until, behind)

        of_each(captured, look)
        return found

    def _erased(self) -> dict[bytes, Erased]:
        """Keys whose earlier writes are left out when they are read again or late. Replays into a shadow
        namespace have batch numbers of their own."""
        namespace = self.manifest.namespace
        before = self.manifest.number if namespace is None else None
        return erasures.load(self.store, layout.live(self.manifest.cluster, namespace), before=before)

    def _late(self) -> frozenset[int]:
        """Indexes of segments that are read for the first time after a purge that assumed their logs were
        complete. Held segments are not among them: they hold back the purge of every table that they may
        contain."""
        horizon = self.base.horizon if self.base else None
        if self.base is None or horizon is None:
            return frozenset()
        ends, held = node_ends(self.store, self.manifest.cluster, self.base), set(self.base.held)
        found = frozenset(
            index
            for index, segment in enumerate(self.manifest.segments)
            if segment.object not in held and is_late(segment, ends) and begun(segment).timestamp() < horizon
        )
        for index in sorted(found):
            log.warning("segment is late: what purges may have beaten stays out", object=self.manifest.segments[index].object)
        return found

    def _fold(self, routed: DataFrame, schema: Schema, captured: list[Table]) -> DataFrame:
        """Explode the mutations of each shard and merge the items into its state."""
        segments, events = self.segments, self.config.events
        cuts = node_logs.cuts(self.local, segments, self._purged(captured))
        explode = exploder(
            ExplodePlan(schema, _versions(segments), cuts, erased=self._erased(), apart=self._apart, readings=self._readings)
        )
        shards = {key: place for shards in of_each(captured, self._shards) for key, place in shards.items()}
        before = of_each([table for table in captured if table.id.bytes in self.altered], self._dropped_before)
        plan = FoldPlan(
            schema=schema,
            now=self.manifest.now,
            since=self.manifest.since,
            since_of=self.since,
            shards=shards,
            deletes="placed" if events.deletes == "one" and self.config.partition_by == "partition_key" else events.deletes,
            dropped_before=dict(before),
            untold=self._of_origin("snapshot") if self.config.snapshot.events == "none" else frozenset(),
            again={table_id.bytes: emits for table_id, emits in self._again.items()},
            policy=self.manifest.merge_rule,
        )
        partitions = self.config.spark.shuffle_partitions
        gathered = routed.repartitionById(partitions, "partition").drop("partition").sortWithinPartitions("table_id", "bucket")
        fold = self.meter.stage("merge")(folding(explode, joiner(plan), self.config.partition_by))
        return gathered.mapInArrow(fold, schema=from_arrow_schema(FOLDED))

    def _dropped_before(self, table: Table) -> tuple[bytes, Mapping[str, int]]:
        return table.id.bytes, dropped_columns(self.altered[table.id.bytes])

    def _shards(self, table: Table) -> dict[tuple[bytes, int], tuple[str, int]]:
        versions = self._shard_versions(table)
        return {
            (table.id.bytes, bucket): (self._shard_uri(table.id, versions, bucket), version)
            for bucket, version in enumerate(versions.buckets)
        }

    def _shard_uri(self, table_id: UUID, versions: ShardVersions, bucket: int) -> str:
        return self.config.state_url(layout.state_shard(self.manifest.cluster, str(table_id), versions.generation, bucket, versions.of))

    def _expected_replicas(self, schema: Schema, table: Table) -> int:
        """How many nodes of the shipping datacenters should hold each row; nodes of other datacenters do not
        count."""
        keyspace = schema.keyspaces.get(table.keyspace)
        return expected_replicas(keyspace.replication if keyspace else {}, self.config.cluster.datacenters)

    # --- accounting

    def _account(self, surveyed: Survey, folded: DataFrame, schema: Schema) -> None:
        """Count every partition update once. AccountingMismatch if an update of any table was lost between
        reading and merging."""
        done = list(surveyed.done.values())
        scanned = sum(each["updates"] for each in done)
        read = _single_updates(done, schema)
        counted = _counted(folded)
        if rejected := [row for row in counted if row.kind == REJECTED]:
            raise TablesFailed([_rejected(schema.tables[UUID(bytes=bytes(row.table_id))], row.detail) for row in rejected])
        for row in counted:
            if row.updates is None:
                continue
            if row.kind not in ("parsed", "reread"):
                self.accounts[row.table][row.kind] += row.updates
                continue
            read[row.table] += row.updates
            if row.kind == "reread":
                scanned += row.updates
                self.accounts[row.table]["read_again"] += row.updates
        wrong = self._account_shards(counted)
        accounting = self._accounting()
        wrong += [f"{account.table}: {account.model_dump()}" for account in accounting if not account.balanced]
        wrong += unlike(read, accounting)
        if (came_in := total(accounting).updates_in) != scanned:
            wrong.append(f"{scanned} were scanned, {came_in} were routed")
        if wrong:
            raise self._mismatch(wrong)

    def _mismatch(self, wrong: list[str]) -> AccountingMismatch:
        return AccountingMismatch(
            "; ".join(wrong),
            operation="account for a batch",
            obj=str(self.manifest.number),
            hint="Nothing was committed. This is a defect of writetime: keep the batch and report it.",
        )

    def _account_shards(self, counted: list[Row]) -> list[str]:
        """Add the counts of the shards to the accounts; returns what does not match."""
        wrong = []
        counts: dict[tuple[str, bytes, int], dict[str, int]] = defaultdict(lambda: defaultdict(int))
        for row in counted:
            if row.kind == "account":
                for name, count in json.loads(row.detail).items():
                    counts[row.table, bytes(row.table_id), row.bucket][name] += count * row.rows
        applied_several = {(bytes(row.table_id), row.bucket): row.keys for row in counted if row.kind == "applied"}
        for (table, table_id, bucket), count in counts.items():
            applied = count["applied"] + applied_several.get((table_id, bucket), 0)
            # Data removed by a TRUNCATE, a purged tombstone or an erasure counts as superseded, as does what is
            # not taken for a part of the table.
            superseded = count["folded"] - applied + count["truncated"] + count["purged"] + count["erased"] + count["leaked"]
            account = {"duplicate": count["duplicate"], "applied": applied, "superseded": superseded}
            for name, number in (account | {"events": count["events"], "ties": count["ties"], "undecided": count["undecided"]}).items():
                self.accounts[table][name] += number
            if count["untold"]:
                self.untold.add(table)
            self.events[table_id, bucket] = count["events"]
            if count["made"] != count["items"] or applied > count["folded"]:
                wrong.append(f"{table}, bucket {bucket}: {dict(count)}")
        # A replay counts what it leaves out as superseded, although writes from before the capture may be
        # new.
        self._warn_of("purged", "left out, as what is purged may have beaten it", counts)
        self._warn_of("erased", "left out, as its key was erased", counts)
        self._warn_of("leaked", "left out, as the table is in no log and a read repair wrote it", counts)
        self._warn_of("undecided", "kept, as no record of the node says whether a TRUNCATE took it", counts)
        return wrong

    def _warn_of(self, name: str, what: str, counts: Mapping[tuple[str, bytes, int], Mapping[str, int]]) -> None:
        """Log the number of updates counted under that name by table, if there are any."""
        found: Counter[str] = Counter()
        for (table, *_), count in counts.items():
            found[table] += count.get(name, 0)
        for table, updates in sorted((+found).items()):
            log.warning(what, table=table, updates=updates, batch=self.manifest.number)

    def _accounting(self) -> list[Accounting]:
        found = []
        for table, counts in sorted(self.accounts.items()):
            updates = sum(count for name, count in counts.items() if name not in ("events", "ties", "undecided", "read_again"))
            found.append(Accounting(table=table, updates_in=updates, **counts))
        return found

    def _note_problems(self, surveyed: Survey, folded: DataFrame, schema: Schema) -> None:
        """Quarantine everything that could not be used, and record it, and what is settled, in the outcome of
        its segment."""
        counts = surveyed.done
        writer = QuarantineWriter(self.store, self.manifest, schema)
        torn: dict[int, int] = defaultdict(int)
        for number, position, body, text in self._bad_ranges(surveyed, folded):
            detail = json.loads(text)
            if detail["kind"] == QuarantineKind.TORN_TAIL and self.manifest.segments[number].ending == "after-crash":
                torn[number] += detail["size"]
            else:
                writer.add(number, position, body, detail)
        problems = writer.finish(self._store_frames)
        for index, segment in enumerate(self.manifest.segments):
            found = sorted(problems.get(index, ()), key=lambda p: (p.position, p.size, p.kind, p.message))
            taken = {name: counts[index][name] for name in ("frames", "updates", "mark", "skipped", "differs") if name in counts[index]}
            if "mark" in taken:
                taken["mark"]["tables"] = unsound_tables(segment, found, sound=taken["mark"]["sound"])
                taken["mark"]["sound"] &= not found
            about = {"problems": found, "settled": self._settle(segment, found), "torn": torn[index]}
            outcome = SegmentOutcome.model_validate({"object": segment.object, **about, **taken})
            if outcome.differs:
                log.error("segment differs from its parts", object=segment.object, batch=self.manifest.number)
            self.outcomes[index] = outcome

    def _store_frames(self, wanted: Mapping[int, Wanted]) -> list[dict[str, int]]:
        """Let workers read these segments again and store the wanted bytes. Rows of STORED. BatchError if
        frames are missing."""
        segments = pinned.as_pinned(self.segments, self.absent)
        members = [some for group in groups(segments) if (some := [index for index in group if index in wanted])]
        write = frame_writer(wanted, self.config.bucket, self.config.cluster.commitlog_keystore, puts=self.manifest.namespace is None)
        rows = [row.asDict() for row in tasks(self.spark, segments, members, write, STORED).collect()]
        # Another driver may have sealed the batch meanwhile; the notes, which come next, must not be
        # overwritten.
        self._expect_open()
        if lacking := [row for row in rows if not row["frames"]]:
            raise BatchError(
                f"frames up to position {lacking[0]['last']} are missing",
                operation="quarantine frames",
                obj=segments[lacking[0]["segment"]].object,
                position=lacking[0]["position"],
                hint="Put the segment back, then run the batch again.",
            )
        return rows

    def _bad_ranges(self, surveyed: Survey, folded: DataFrame) -> Iterator[tuple[int, int, bytes | None, str]]:
        for row in surveyed.rows("problem", "segment", "position", "body", "detail"):
            yield row.segment, row.position, None if row.body is None else bytes(row.body), row.detail
        if not any(count.get("quarantined") for count in self.accounts.values()):
            return
        refused = folded.filter("kind = 'quarantined'")
        for row in refused.select("copies", "state", "detail").toLocalIterator():
            for copy in row.copies:
                # Segments that are read again were recorded by their own batch.
                if copy.segment < len(self.manifest.segments):
                    yield copy.segment, copy.position, None if row.state is None else bytes(row.state), row.detail

    def _settle(self, segment: SegmentInput, problems: list[Problem]) -> list[Settled]:
        """The quarantine records of earlier batches that this one could use. Notes in them that they are
        settled."""
        if self.manifest.namespace is not None:
            return []
        if not all(problem.kind.is_single_frame for problem in problems) or (problems and segment.ref.node.origin == "retry"):
            # The contents of a damaged range are unknown. A retried object holds frames of one record only.
            return []
        bad = {problem.quarantined_as for problem in problems}
        many = [problem for problem in problems if problem.frames > 1]
        found = []
        for name in self._notes_of(segment):
            about = json.loads(self.store.read(name))
            if about["quarantined_as"] in bad or any(problem.covers(about) for problem in many):
                continue
            if about.get("settled_in") in (None, self.manifest.number, *self.voided):
                found.append(Settled(**{field: about.get(field) for field in Settled.model_fields}))
                change_note(self.store, name, settled_in=self.manifest.number)
        return found

    def _notes_of(self, segment: SegmentInput) -> list[str]:
        """Names of the notes of the segment's earlier quarantine records, if it was ingested before."""
        if segment.ref.node.origin == "retry":
            held = self.store.head(segment.object)
            record = held.metadata.get("piece") if held is not None else None
            return [note_of(record)] if record else []
        mark = self.base.growing.get(segment.ref.growing) if self.base and not segment.grows else None
        if (self.base and segment.object in self.base.held) or (mark is not None and not mark.sound):
            return [info.name for info in self.store.names(segment.ref.quarantine) if info.name.endswith(".json")]
        return []

    # --- commits

    def _typed_events(self, folded: DataFrame, schema: Schema, captured: list[Table]) -> tuple[Events, list[dict[str, Any]]]:
        """Events with their ordinals: dense within (batch, table name), by incarnation of the table (TRUNCATE
        first, DROP last), bucket, key and writetime; the key is `kafka.partition_by`. And rows of PAGES with those of
        no row."""
        starts: dict[tuple[bytes, int], int] = {}
        of_tables: list[dict[str, Any]] = []
        for _, incarnations in groupby(captured, key=lambda table: table.full_name):
            start = 0
            # The existing incarnation comes last: its events are newer.
            for table in sorted(incarnations, key=lambda table: (not table.dropped, table.dropped_at or 0, str(table.id))):
                with concerning(table):
                    if table.id in self.local.opened:
                        start += 1
                        of_tables.append(of_no_row(self._shown(table, schema), schema, start, self._truncation(schema, table)))
                        self.accounts[table.label]["events"] += 1
                    elif self._again.get(table.id):
                        start += 1
                        event = table_events.again(now=self.manifest.now, expected=self._expected_replicas(schema, table))
                        of_tables.append(of_no_row(self._shown(table, schema), schema, start, event))
                        self.accounts[table.label]["events"] += 1
                    for bucket in range(len(self._shard_versions(table).buckets)):
                        starts[table.id.bytes, bucket] = start
                        start += self.events.get((table.id.bytes, bucket), 0)
                    if table.id in self.ending:
                        start += 1
                        of_tables.append(of_no_row(self._shown(table, schema), schema, start, self._drop(schema, table)))
                        self.accounts[table.label]["events"] += 1
        expected = dict(of_each(captured, lambda table: (table.id.bytes, self._expected_replicas(schema, table))))
        if unreached := sorted(table.full_name for table in captured if not expected[table.id.bytes]):
            # Nothing of them ever arrives; no check of segments can notice.
            log.warning("captured tables have no replica in a datacenter that ships", tables=unreached, batch=self.manifest.number)
        plan = EventPlan(
            schema=schema,
            now=self.manifest.now,
            files=[segment.ref.segment.filename for segment in self.segments],
            hosts=[segment.ref.node.ring_host or "" for segment in self.segments],
            read=self._of_origin("snapshot", "reread"),
            expected=expected,
            starts=starts,
            before=self.altered,
            rules=self.config.columns.rules,
            apart=self._apart,
        )
        events = folded.filter(F.col("kind") == EVENTS).select("table_id", "state")
        return Events(events, typed(plan), is_sorted=False), of_tables

    def _write_files(self, events: Events, of_no_rows: list[dict[str, Any]], schema: Schema, captured: list[Table]) -> WrittenFiles:
        """Let tasks write the files of all tables that they can write, before anything is committed. Nothing refers to
        these files."""
        warehouse, number = self._warehouse(), self.manifest.number
        writes: dict[UUID, TableWrite] = {}
        incarnations = Counter(table.full_name for table in captured)
        with_others = {bytes(row["table_id"]) for row in of_no_rows}

        def look_at(table: Table) -> None:
            # A name that passes between incarnations is looked at when it has passed.
            if incarnations[table.full_name] == 1 and table.id.bytes not in with_others and self._writes(table):
                current = None if table.dropped else self._how(table)
                writes[table.id] = warehouse.open(
                    self._shown(table, schema), schema, number, changes=bool(self._emitted(table)), current=current
                )

        of_each(captured, look_at, workers=COMMITTERS)
        by_tasks = {table_id: write for table_id, write in writes.items() if write.is_by_tasks}
        counts = dict(of_each([write.table for write in by_tasks.values()], lambda table: (table.id.bytes, self._emitted(table))))
        shares = events.shared_by_tables(counts, self.spark.sparkContext.defaultParallelism)
        with warehouse.fenced(number):
            emitted = warehouse.write_files([*by_tasks.values()], shares, number)
        writing = of_each(captured, self._writes)
        apart = [table for table, writes_it in zip(captured, writing, strict=True) if writes_it and table.id not in by_tasks]
        if not apart:
            return WrittenFiles(writes, dict.fromkeys(by_tasks, events), emitted)
        pages = self._pages(events, of_no_rows, apart)
        sources = {**dict.fromkeys(by_tasks, events), **dict.fromkeys([table.id for table in apart], Events.of_pages(pages))}
        return WrittenFiles(writes, sources, {**emitted, **_emitted_by(pages)})

    def _pages(self, events: Events, of_no_rows: list[dict[str, Any]], tables: list[Table]) -> DataFrame:
        """The events of tables whose files tasks have not written, which are made once, and those of no row."""
        made = replace(events, tables=tuple(table.id.bytes for table in tables), is_sorted=True).frame(self.meter.stage("events"))
        rows = self.spark.createDataFrame(pa.Table.from_pylist(of_no_rows, schema=PAGES), schema=from_arrow_schema(PAGES))
        return made.unionByName(rows).persist()

    def _emitted(self, table: Table) -> int:
        return self.accounts[table.label]["events"]

    def _writes(self, table: Table) -> bool:
        """Whether rows of the table change."""
        return bool(self._emitted(table)) or table.label in self.untold or table.id in self._again

    def _how(self, table: Table) -> Rows:
        """What the batch's rows are to the current rows that are there."""
        return "replaced" if table.id in self.local.opened or table.id in self._again else "merged"

    def _account_events(self, emitted: Mapping[bytes, int], schema: Schema, captured: list[Table]) -> None:
        """Compare the number of emitted events with the shards' counts; AccountingMismatch if they differ.
        Events hidden by a filter are subtracted."""
        wrong = []

        def compare(table: Table) -> None:
            number, counted = emitted.get(table.id.bytes, 0), self.accounts.get(table.label, {}).get("events", 0)
            if number < counted and self.config.columns.rules.of(table, schema.types).filter is not None:
                self.accounts[table.label]["events"] = number
            elif number != counted:
                wrong.append(f"{table.label}: {number} events were made, {counted} were counted")

        of_each(captured, compare)
        if wrong:
            raise self._mismatch(wrong)

    def _truncation(self, schema: Schema, table: Table) -> dict[str, Any]:
        truncate = node_logs.last_truncate(self.local, table.id)
        return table_events.truncation(
            truncated_at=truncate.at * 1000,
            now=self.manifest.now,
            nodes=sorted(truncate.records),
            expected=self._expected_replicas(schema, table),
            file=None,
            pos=None,
        )

    def _drop(self, schema: Schema, table: Table) -> dict[str, Any]:
        now = self.manifest.now
        at = now * MICROSECONDS if table.dropped_at is None else table.dropped_at
        return table_events.drop(dropped_at=at, now=now, expected=self._expected_replicas(schema, table))

    def _commit_quarantine(self) -> None:
        """Write new and settled quarantine records to the warehouse."""
        quarantined = of_batch(self.manifest, [self.outcomes[index] for index in range(len(self.manifest.segments))])
        if quarantined and self.config.quarantine.table and self.manifest.namespace is None:
            learner = read_schema(self.store, self.manifest.cluster, self.manifest.number)
            self._warehouse().write_quarantine(with_bytes(quarantined, self.store, learner, self.config), self.manifest.number)
            log.info("quarantine committed", records=len(quarantined), batch=self.manifest.number)

    def _commit_changes(self, written: WrittenFiles, schema: Schema, captured: list[Table]) -> None:
        warehouse, number = self._warehouse(), self.manifest.number
        emitted = of_each(captured, self._emitted)
        with_events = {table.id for table, events in zip(captured, emitted, strict=True) if events}
        # The configuration may have changed since. What was committed of a table that is rejected now stays, as an earlier run
        # may seal it yet: if this one does, the next batch takes it back.
        gone = [table for table in self.earlier if table.id not in with_events and table.id not in self.refused]
        of_each(gone, lambda table: warehouse.take_back(table, number))

        def commit(table: Table) -> None:
            if table.id in with_events:
                events = written.events_of(table, self._emitted(table))
                write = written.writes.get(table.id) or warehouse.write(self._shown(table, schema), schema, events, number, changes=True)
                files = warehouse.commit_changes(write, events, number)
                self._note_point(table, changes=write.changes)
                if not table.dropped:
                    self.changes_files[table.label] = files
                log.info("changes committed", table=table.label, batch=number)

        of_each(captured, commit, workers=COMMITTERS)

    def _commit_state(self, folded: DataFrame, captured: list[Table]) -> dict[str, ShardVersions]:
        """Upsert each changed shard, and collect the versions for the next batch."""
        written = self._write_shards(folded, captured)
        state = {name: versions.captured_up_to(self.base.number) for name, versions in self.base.state.items()} if self.base else {}

        def after_batch(table: Table) -> ShardVersions:
            after = self._shard_versions(table).after(written.get(table.id.bytes, {}))
            return after.model_copy(update={"behind": None, "ended": table.dropped})

        return state | dict(zip((str(table.id) for table in captured), of_each(captured, after_batch), strict=True))

    def _write_shards(self, folded: DataFrame, captured: list[Table]) -> Mapping[bytes, Mapping[int, Written]]:
        """Upsert each changed shard, in the tasks that hold its records; by table id and bucket."""
        number, bucket_url = self.manifest.number, self.config.bucket
        noted = self.config.cluster.cql is not None
        cluster, now = self.manifest.cluster, self.manifest.now
        counters = frozenset(table.id.bytes for table in captured if table.is_counter)

        def places_of(table: Table) -> dict[tuple[bytes, int], tuple[str, int, str]]:
            return {key: (*place, self._lease(table, key[1])) for key, place in self._shards(table).items()}

        places = {key: place for some in of_each(captured, places_of) for key, place in some.items()}

        def write(batches: Batches) -> Batches:
            store = open_store(bucket_url)
            for (table_id, bucket), run in by_shard(batches):
                assert table_id is not None
                assert bucket is not None
                uri, base, lease = places[table_id, bucket]
                with reporting(table_id):
                    notes = IncompleteRows(now, counter=table_id in counters)
                    after = upsert(uri, base, number, notes.of(records(run)) if noted else records(run), store, lease)
                    notes.put(store, layout.incomplete_rows(cluster, number, str(UUID(bytes=table_id)), bucket), number, table_id)
                    row = {"table_id": table_id, "bucket": bucket, **after._asdict()}
                yield pa.RecordBatch.from_pylist([row], schema=_WRITTEN)

        # The fold leaves all rows of a shard in one partition, one after the other.
        found = folded.filter(F.col("kind") == RECORDS).select("table_id", "bucket", "state")
        done = found.mapInArrow(self.meter.stage("state")(write), schema=from_arrow_schema(_WRITTEN)).collect()
        written: dict[bytes, dict[int, Written]] = defaultdict(dict)
        for row in done:
            written[bytes(row.table_id)][row.bucket] = Written(row.version, row.earliest_expiry)
        return written

    def _note_undecided(self, folded: DataFrame) -> None:
        """Record the rows for which no record says whether a TRUNCATE removed them, so that they are read
        from the cluster again."""
        if self.config.cluster.cql is None or not any(account["undecided"] for account in self.accounts.values()):
            return
        number, cluster, bucket_url = self.manifest.number, self.manifest.cluster, self.config.bucket

        def note(rows: Iterable[Any]) -> None:
            keys: dict[tuple[bytes, int], set[bytes]] = defaultdict(set)
            for row in rows:
                keys[bytes(row.table_id), row.bucket].add(bytes(row.state))
            for (table_id, bucket), found in keys.items():
                with reporting(table_id):
                    name = layout.undecided(cluster, number, str(UUID(bytes=table_id)), bucket)
                    put_keys(open_store(bucket_url), name, number, table_id, sorted(key.hex() for key in found), whole=True)

        found = folded.filter("kind = 'undecided'").select("table_id", "bucket", "state")
        found.repartition("table_id", "bucket").foreachPartition(note)

    def _lease(self, table: Table, bucket: int) -> str:
        versions = self._shard_versions(table)
        return layout.state_lease(self.manifest.cluster, str(table.id), versions.generation, bucket, versions.of)

    def _commit_current(self, written: WrittenFiles, schema: Schema, captured: list[Table]) -> None:
        warehouse, number = self._warehouse(), self.manifest.number

        def commit(table: Table) -> None:
            if table.id in self.ending:
                warehouse.empty_current(table, number)
                # Unless another incarnation has the name; it follows when it is written to.
                self.rows.setdefault(table.full_name, None)
                self.current_files.setdefault(table.full_name, None)
                log.info("current rows of a dropped table emptied", table=table.label, batch=number)
            # The rows of a dropped incarnation were deleted by its DROP; only its changes table remains.
            elif self._writes(table) and not table.dropped:
                events = written.events_of(table, self._emitted(table))
                write = written.writes.get(table.id) or warehouse.write(
                    self._shown(table, schema), schema, events, number, current=self._how(table)
                )
                size = warehouse.commit_current(write, events, number)
                self._note_point(table, current=write.current)
                self.rows[table.label], self.current_files[table.label] = size
                log.info("current rows merged", table=table.label, batch=number)
            elif table.id in self.reshaped:
                warehouse.follow(self._shown(table, schema), schema, number)

        of_each(captured, commit, workers=COMMITTERS)

    def _note_point(self, table: Table, *, current: Write | None = None, changes: Write | None = None) -> None:
        """Note where the table stands with what was committed: the batches after this one expect it there."""
        written = {part: write.held.point for part, write in (("current", current), ("changes", changes)) if write is not None}
        news = {part: TablePoint(batch=self.manifest.number, **point._asdict()) for part, point in written.items() if point is not None}
        self.points[table.id] = self.points.get(table.id, TablePoints()).model_copy(update=news)

    def _points(self) -> dict[UUID, TablePoints]:
        """Where all tables stand. What was lost of a table that is made again is forgotten."""
        found = again.expected(self.base, self._made_again)
        for table_id, news in self.points.items():
            found[table_id] = found.get(table_id, TablePoints()).model_copy(
                update={part: point for part in TablePoints.model_fields if (point := getattr(news, part)) is not None}
            )
        return found

    def _late_rejections(self) -> dict[UUID, list[tuple[int, int]]]:
        late = pinned.verdicts(self.store, self.manifest).late if self.refused else ()
        if self.base is not None:
            return self.base.with_late_rejections(late, self.refused, self.manifest.number)
        return {table_id: [(self.manifest.number, self.manifest.number)] for table_id in late}

    def _seal(self, state: dict[str, ShardVersions]) -> Sealed:
        accounting = self._accounting()
        taken_in = {segment.object for segment in self.manifest.segments}
        done_with = taken_in | released_objects(self.store, self.manifest.cluster)
        still_held = [name for name in (self.base.held if self.base else []) if name not in done_with]
        failed = [o.object for o in self.outcomes.values() if not o.ok and self.manifest.kind == "ingest"]
        sealed = Sealed(
            number=self.manifest.number,
            kind=self.manifest.kind,
            sealed_at=datetime.now(UTC),
            segments=list(self.outcomes.values()),
            accounting=accounting,
            state=state,
            held=sorted([*still_held, *failed]),
            growing=self._growing(),
            snapshots_applied=sorted([*(self.base.snapshots_applied if self.base else []), *self.manifest.schema_snapshots]),
            snapshots_refused=self.snapshots_refused,
            refused=sorted(self.refused.values(), key=lambda refused: (refused.table, str(refused.table_id))),
            not_in_log=self.not_in_log,
            apart={table.label: Apart(mode=table.bypass, seconds=self._reading_interval) for table in self.apart.values()},
            undecided=self._undecided(accounting),
            rows={name: n for name, n in {**(self.base.rows if self.base else {}), **self.rows}.items() if n is not None},
            files=self._files(),
            points=self._points(),
            again=again.after(self.base, self._made_again, self.manifest.number),
            totals=self._totals(accounting),
            horizon=self.base.horizon if self.base else None,
            kept_from=self._kept_from(),
            voided=self.voided,
            late_rejections=self._late_rejections(),
            events=sum(account.events for account in accounting),
            complete=watermark.of_seal(self.manifest, self.outcomes.values()),
            partition_by=self._partition_by(),
        )
        return seal(self.store, self.manifest.cluster, sealed)

    @property
    def _reading_interval(self) -> int | None:
        tables = self.config.tables
        return tables.not_in_log_seconds if tables.not_in_log == "read" else None

    def _files(self) -> dict[str, WarehouseFiles]:
        """Files of all tables, those that this batch did not write as they were."""
        found = dict(self.base.files) if self.base else {}
        for part, written in (("current", self.current_files), ("changes", self.changes_files)):
            for name, files in written.items():
                found[name] = found.get(name, WarehouseFiles()).model_copy(update={part: files})
        return found

    def _totals(self, accounting: list[Accounting]) -> Totals:
        before = self.base.totals if self.base else None
        made = self.manifest.kind, self.manifest.segments, self.outcomes.values(), accounting, self.meter.costs()
        # A replay into a shadow namespace publishes nothing.
        published = read_published(self.store, self.manifest.cluster) if self.manifest.namespace is None else None
        so_far = published.costs if published is not None else []
        # Sums that begin with this batch begin with what is published after it.
        return (before or Totals(publishing=so_far)).and_of(*made).and_publishing(so_far)

    def _partition_by(self) -> list[PartitionedFrom]:
        known = self.base.partition_by if self.base else []
        by = self.config.partition_by
        return known if known and known[-1].by == by else [*known, PartitionedFrom(batch=self.manifest.number, by=by)]

    def _kept_from(self) -> int | None:
        """The hour from which the archive is complete, as far as earlier batches and the rebuild that began
        the chain know."""
        chain = self.manifest.chain
        known = (self.base.kept_from if self.base else None, chain.kept_from if chain else None)
        return max((at for at in known if at is not None), default=None)

    def _undecided(self, accounting: Iterable[Accounting]) -> dict[str, int]:
        """What remains undecided: of earlier batches, except for rebuilt tables, and of this batch, unless it
        is read from the cluster again."""
        found = Counter(self.base.undecided if self.base else {})
        for table in self.rebuilt:
            found.pop(table, None)
        if self.config.cluster.cql is None:
            found.update({account.table: account.undecided for account in accounting})
        return dict(sorted((+found).items()))

    def _growing(self) -> dict[str, Mark]:
        """How far segments that exist only as parts are ingested after this batch."""
        marks = dict(self.base.growing if self.base else {})
        for index, segment in enumerate(self.manifest.segments):
            if (mark := self.outcomes[index].mark) is not None:
                marks[segment.object] = mark
            else:
                marks.pop(segment.ref.growing, None)
        return marks

    def _warehouse(self) -> Warehouse:
        cells, complete = self.config.events.shape == "cells", watermark.of_seal(self.manifest, self.outcomes.values())
        about = {"cells": cells, "complete": complete, "meter": self.meter, "points": again.expected(self.base, self.manifest.again)}
        return Warehouse.of_batch(self.config, self.store, self.spark, self.manifest, self._fence(), **about)


@lru_cache(maxsize=1024)
def _decoded(body: bytes, version: int) -> Own:
    """Cached: replicas before 6.0 log the same bytes."""
    return decode_own(body, version=version)


def _schema_places(logged: Iterable[tuple[layout.SegmentRef, SchemaMutation]], learner: SchemaLearner) -> node_logs.SchemaPlaces:
    """Where nodes' logs drop tables and create them again."""
    drops, creates = defaultdict[str, set[Truncation]](set), defaultdict[str, set[Truncation]](set)
    for ref, change in logged:
        for found, tables in ((drops, learner.drops(change.mutation)), (creates, learner.creates_again(change.mutation))):
            for table_id, at in tables.items():
                found[ref.node.host_id].add(Truncation(at // 1000, table_id, ref.segment.id, change.position, at))
    return node_logs.SchemaPlaces(drops, creates)


def _single_updates(done: list[dict[str, Any]], schema: Schema) -> Counter[str]:
    """The number of surveyed frames with one update, by table name as in the accounts. Frames of schema
    tables are left out, because they are parsed."""
    found: Counter[str] = Counter()
    for each in done:
        for name, (*_, single) in each["tables"].items():
            table = schema.tables.get(UUID(name))
            if UUID(name) not in SCHEMA_TABLES:
                found[table.label if table else name] += single
    return found


def _counted(folded: DataFrame) -> list[Row]:
    """Updates by kind, table and shard; accounts of shards (`detail`, and how many `rows` have it); how many
    updates of several items a shard has applied (`keys`). One job, because each reads all merged rows while the
    driver waits."""
    counts = folded.filter(f"updates is not null or kind in ('account', 'applied', '{REJECTED}')")
    detail = F.when(F.col("kind").isin("account", REJECTED), F.col("detail")).alias("detail")
    update = F.when(F.col("kind") == "applied", F.col("key"))
    by = counts.groupBy("kind", "table", "table_id", "bucket", detail)
    return by.agg(F.sum("updates").alias("updates"), F.countDistinct(update).alias("keys"), F.count("*").alias("rows")).collect()


def unsound_tables(segment: SegmentInput, problems: list[Problem], *, sound: bool) -> list[UUID] | None:
    """The tables that the problems of a growing segment concern, those of earlier batches among them; None:
    any. `sound`: what the scan says of the segment so far."""
    before = segment.tail.after if segment.tail is not None else None
    known = set[UUID]() if before is None or before.sound else before.tables
    new = may_contain(problems) if problems else frozenset[UUID]() if sound or known != set() else None
    return None if known is None or new is None else sorted({*known, *new})


def unlike(read: Mapping[str, int], accounting: list[Accounting]) -> list[str]:
    """The tables whose number of updates read differs from the number accounted for, with both numbers."""
    came_in = {account.table: account.updates_in for account in accounting}
    differing = [table for table in sorted({*read, *came_in}) if read.get(table, 0) != came_in.get(table, 0)]
    return [f"{table}: {read.get(table, 0)} were read, {came_in.get(table, 0)} are accounted for" for table in differing]


def _emitted_by(pages: DataFrame) -> dict[bytes, int]:
    """How many events of each table the stream tells. They are made in all tasks, because few of them write them."""
    found = pages.groupBy("table_id").agg(F.sum("told").alias("n")).collect()
    return {bytes(row.table_id): row.n for row in found}


def _marker(table_id: bytes, bucket: int) -> dict[str, Any]:
    """A row of ROUTED without a mutation, so that the shard is visited."""
    return {"kind": "shard", "table_id": table_id, "bucket": bucket}


def _rejected(table: Table, reason: str) -> RefusedTable:
    return RefusedTable(table=table.label, table_id=table.id, reason=reason)


def _not_tried(table: Table) -> RefusedTable:
    return _rejected(table, "other tables are tried without it")


def _reshaped(before: Schema, schema: Schema, table: Table) -> bool:
    """Whether this batch contains DDL that may affect the table."""

    def types(of: Schema) -> dict[str, Any]:
        return {name: kind for (keyspace, name), kind in of.types.items() if keyspace == table.keyspace}

    return before.tables.get(table.id) != table or types(before) != types(schema)


def _altered(before: Schema, schema: Schema, table: Table) -> Table | None:
    """The table as it was, if other columns count as dropped now."""
    old = before.tables.get(table.id)
    return None if old is None or dropped_columns(old) == dropped_columns(table) else old


def _versions(segments: list[SegmentInput]) -> list[int]:
    """Commit log versions by index of the segment."""
    return [segment.ref.segment.version for segment in segments]


if __name__ == "__main__":
    sys.exit(main())
