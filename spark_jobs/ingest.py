"""The ingest job: run one planned batch to its seal. `spark-submit ingest.py --config FILE --batch N`

    manifest ─► scan segments ─► learn schema ─► route ─► shuffle by (table, key bucket) ─► fold ─┬─► quarantine
                                                                                                  ├─► changes (outbox)
                                                                                                  ├─► state shards
                                                                                                  ├─► current tables
                                                                                                  └─► seal

Everything before the commits only reads pinned versions, and every commit is idempotent, so an unsealed batch may be run again from
any point of death; the seal is the last step and is created, never overwritten. Exit code: 0 sealed (or was already), 1 not.
"""

from __future__ import annotations

import argparse
import json
import pickle
import sys
from collections import defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from datetime import UTC, datetime
from fnmatch import fnmatchcase
from itertools import groupby
from typing import Any
from uuid import UUID

import structlog
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.pandas.types import from_arrow_schema

from spark_jobs.fold import FOLDED, FoldPlan, folder, unpacked_records
from spark_jobs.frames import FRAMES, ROUTED, SEGMENTS, Routes, router, scanner, segment_rows
from spark_jobs.rows import why_not
from spark_jobs.session import spark_session
from spark_jobs.state import upsert
from spark_jobs.warehouse import Warehouse
from writetime import names
from writetime.batch.documents import Accounting, Manifest, Problem, Sealed, SegmentOutcome, ShardVersions, total
from writetime.batch.plan import read_manifest, read_schema, read_sealed
from writetime.commitlog.mutation import decode_mutation
from writetime.config import PipelineConfig, load
from writetime.errors import AccountingMismatch, BatchError, DecodeError, PreconditionFailed, SchemaError, WritetimeError
from writetime.schema.learn import SchemaLearner
from writetime.schema.model import Schema, Table
from writetime.schema.snapshot import parse as parse_snapshot
from writetime.schema.system import SCHEMA_TABLES, TABLES
from writetime.store import Store, open_store

log = structlog.get_logger()


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description="Run one planned batch to its seal.")
    parser.add_argument("--config", required=True, help="the pipeline's YAML")
    parser.add_argument("--batch", required=True, type=int, help="number of the batch, as planned")
    options = parser.parse_args(arguments)
    try:
        sealed = run(load(options.config), options.batch)
    except WritetimeError as error:
        log.error("batch failed", batch=options.batch, **error.as_dict())
        print(f"batch {options.batch} failed: {error}", file=sys.stderr)  # noqa: T201
        return 1
    print(report(sealed))  # noqa: T201
    return 0


def run(config: PipelineConfig, number: int) -> Sealed:
    """Run the batch, or give the outcome of one that is already sealed."""
    store = open_store(config.bucket)
    done = read_sealed(store, config.cluster.name, number)
    if done is not None:
        return done
    manifest = read_manifest(store, config.cluster.name, number)
    base = read_sealed(store, config.cluster.name, manifest.base) if manifest.base else None
    if manifest.base and base is None:
        raise BatchError(
            f"its base, batch {manifest.base}, is not sealed", operation="run a batch", obj=str(number), hint="Run that one first."
        )
    spark = spark_session(config, f"writetime ingest {config.pipeline} batch {number}")
    try:
        return Batch(config, store, spark, manifest, base).run()
    finally:
        spark.stop()


def report(sealed: Sealed) -> str:
    """The accounting as lines for the job's log."""
    lines = [f"batch {sealed.number} ({sealed.kind}) sealed: {len(sealed.segments)} segments, {sealed.events} events"]
    for account in [*sealed.accounting, total(sealed.accounting)]:
        lines.append(
            f"  {account.table}: in {account.updates_in} = applied {account.applied} + duplicate {account.duplicate} + superseded "
            f"{account.superseded} + not ours {account.not_ours} + quarantined {account.quarantined}; events {account.events}"
        )
    lines += [f"  refused {name}: {message}" for name, message in sealed.snapshots_refused.items()]
    for outcome in sealed.segments:
        lines += [f"  quarantined {outcome.object} at {p.position}: {p.message}" for p in outcome.problems]
    return "\n".join(lines)


@dataclass
class Batch:
    """One run of one batch. What is known of segments, tables and snapshots fills up as the stages go by; `refused` are the tables whose
    rows cannot be shown, with the reason; `known` is the schema as of the base."""

    config: PipelineConfig
    store: Store
    spark: SparkSession
    manifest: Manifest
    base: Sealed | None
    outcomes: dict[int, SegmentOutcome] = field(default_factory=dict)
    accounts: dict[str, dict[str, int]] = field(default_factory=lambda: defaultdict(lambda: defaultdict(int)))
    refused: dict[UUID, str] = field(default_factory=dict)
    known: Schema = field(default_factory=Schema)
    snapshots_refused: dict[str, str] = field(default_factory=dict)

    def run(self) -> Sealed:
        frames = self._scan().persist()
        schema, captured = self._learn(frames)
        routed = self._route(frames, schema, captured).persist()
        folded = self._fold(routed, schema, captured).persist()
        self._account(frames, routed, folded)
        self._note_problems(frames, routed, folded)
        events = self._ordered_events(folded, captured)
        self._commit_changes(events, schema, captured)
        state = self._commit_state(folded, captured)
        self._commit_current(events, schema, captured)
        self._commit_ddl(schema, captured)
        return self._seal(state)

    # --- reading ---------------------------------------------------------------------------------------------------------

    def _scan(self) -> DataFrame:
        """All frames of the batch, each segment read once by one task."""
        rows = segment_rows(self.manifest.segments)
        segments = self.spark.createDataFrame(rows, schema=from_arrow_schema(SEGMENTS))
        spread = segments.repartition(max(1, min(len(rows), 1000)), "segment")
        return spread.mapInArrow(scanner(self.config.bucket, self.config.cluster.commitlog_keystore), schema=from_arrow_schema(FRAMES))

    def _learn(self, frames: DataFrame) -> tuple[Schema, list[Table]]:
        """Fold what the log and the snapshots say of the schema into what was known, and keep it for the next batch."""
        learner = read_schema(self.store, self.manifest.cluster, self.base.number if self.base else 0)
        self.known = learner.schema()
        for name in self.manifest.schema_snapshots:
            self._apply_snapshot(learner, name)
        ids = [bytearray(table_id.bytes) for table_id in SCHEMA_TABLES]
        ddl = frames.filter((F.col("kind") == "frame") & F.col("table_id").isin(*ids)).select("segment", "body")
        versions = self._segment_versions()
        cassandras_own = Schema(tables=TABLES)
        for version, body in sorted({(versions[row.segment], bytes(row.body)) for row in ddl.toLocalIterator()}):
            try:
                learner.apply(decode_mutation(body, cassandras_own, version=version))
            except DecodeError as error:
                # Routing meets the same frame with the same error and quarantines it.
                log.warning("schema change not understood", batch=self.manifest.number, **error.as_dict())
        name = names.batch_object(self.manifest.cluster, self.manifest.number, "schema")
        self.store.put(name, learner.to_json().encode())
        schema = learner.schema()
        wanted = [table for table in schema.tables.values() if table.id in learner.cdc_ever and self._wanted(table)]
        self.refused = {table.id: reason for table in wanted if (reason := why_not(table, schema))}
        captured = [table for table in wanted if table.id not in self.refused]
        return schema, sorted(captured, key=lambda table: (table.full_name, str(table.id)))

    def _apply_snapshot(self, learner: SchemaLearner, name: str) -> None:
        try:
            for mutation in parse_snapshot(self.store.read(name)):
                learner.apply(mutation)
        except SchemaError as error:
            # It stays where it is, and the seal tells of it: no other table waits for it.
            log.error("schema snapshot refused", batch=self.manifest.number, snapshot=name, reason=str(error))
            self.snapshots_refused[name] = str(error)

    def _segment_versions(self) -> list[int]:
        return [segment.ref.segment.version for segment in self.manifest.segments]

    def _wanted(self, table: Table) -> bool:
        tables = self.config.tables
        included = any(fnmatchcase(table.full_name, pattern) for pattern in tables.include)
        return included and not any(fnmatchcase(table.full_name, pattern) for pattern in tables.exclude)

    def _route(self, frames: DataFrame, schema: Schema, captured: list[Table]) -> DataFrame:
        buckets = {table.id: len(self._shard_versions(table).buckets) for table in captured}
        routes = Routes(schema, buckets, self._segment_versions(), self.refused)
        return frames.filter("kind = 'frame'").mapInArrow(router(routes), schema=from_arrow_schema(ROUTED))

    def _shard_versions(self, table: Table) -> ShardVersions:
        known = self.base.state.get(str(table.id)) if self.base else None
        return known or ShardVersions(buckets=[0] * self.config.buckets)

    # --- folding ---------------------------------------------------------------------------------------------------------

    def _fold(self, routed: DataFrame, schema: Schema, captured: list[Table]) -> DataFrame:
        segments = self.manifest.segments
        plan = FoldPlan(
            schema=schema,
            now=self.manifest.now,
            files=[segment.ref.segment.filename for segment in segments],
            versions=self._segment_versions(),
            hosts=[segment.ref.node.host_id for segment in segments],
            shards={key: place for table in captured for key, place in self._shards(table).items()},
            expected={table.id.bytes: self._expected_replicas(schema, table) for table in captured},
        )
        order = ["table_id", "bucket", "key", "digest", "segment", "position"]
        updates = routed.filter("kind = 'update'").repartition("table_id", "bucket").sortWithinPartitions(*order)
        return updates.mapInArrow(folder(plan), schema=from_arrow_schema(FOLDED))

    def _shards(self, table: Table) -> dict[tuple[bytes, int], tuple[str, int]]:
        versions = self._shard_versions(table)
        return {
            (table.id.bytes, bucket): (self._shard_uri(table.id, versions.generation, bucket), version)
            for bucket, version in enumerate(versions.buckets)
        }

    def _shard_uri(self, table_id: UUID, generation: int, bucket: int) -> str:
        name = names.state_shard(self.manifest.cluster, str(table_id), generation, bucket)
        return f"{(self.config.state or self.config.bucket).rstrip('/')}/{name}"

    def _expected_replicas(self, schema: Schema, table: Table) -> int:
        """How many nodes of the shipping datacenters ought to hold each row (design: only those count)."""
        keyspace = schema.keyspaces.get(table.keyspace)
        replication = keyspace.replication if keyspace else {}
        asked = ["replication_factor"] if "replication_factor" in replication else self.config.cluster.datacenters
        # "3/1" is three replicas, one of them transient.
        return sum(int(replication.get(name, "0").split("/")[0]) for name in asked)

    # --- what became of everything ---------------------------------------------------------------------------------------

    def _account(self, frames: DataFrame, routed: DataFrame, folded: DataFrame) -> None:
        """Count every partition update once; AccountingMismatch if one went missing between scan and fold."""
        scanned = frames.filter("kind = 'frame'").agg(F.sum("updates").alias("n")).collect()[0].n or 0
        sums = routed.groupBy("kind", "table").agg(F.sum("updates").alias("n")).collect()
        for row in sums:
            account = self.accounts[row.table]
            account["updates_in"] += row.n
            if row.kind != "update":
                account[row.kind] += row.n
        for row in folded.filter("kind = 'account'").select("table", "payload").collect():
            for name, count in json.loads(bytes(row.payload)).items():
                self.accounts[row.table][name] += count
        accounting = self._accounting()
        wrong = [f"{account.table}: {account.model_dump()}" for account in accounting if not account.balanced]
        if (came_in := total(accounting).updates_in) != scanned:
            wrong.append(f"{scanned} were scanned, {came_in} were routed")
        if wrong:
            raise AccountingMismatch(
                "; ".join(wrong),
                operation="account for a batch",
                obj=str(self.manifest.number),
                hint="Nothing was committed. This is a defect of writetime: keep the batch and report it.",
            )

    def _accounting(self) -> list[Accounting]:
        return [Accounting(table=name, **counts) for name, counts in sorted(self.accounts.items())]

    def _note_problems(self, frames: DataFrame, routed: DataFrame, folded: DataFrame) -> None:
        """Keep the bytes of everything that could not be used, and note it against its segment."""
        counts = {row.segment: json.loads(row.detail) for row in frames.filter("kind = 'done'").select("segment", "detail").collect()}
        problems: dict[int, list[Problem]] = defaultdict(list)
        for number, position, body, detail in self._bad_ranges(frames, routed, folded):
            problems[number].append(self._keep(number, position, body, json.loads(detail)))
        for index, segment in enumerate(self.manifest.segments):
            found = sorted(problems[index], key=lambda p: (p.position, p.size, p.kind, p.message))
            self.outcomes[index] = SegmentOutcome(object=segment.object, problems=found, **counts[index])

    def _bad_ranges(self, frames: DataFrame, routed: DataFrame, folded: DataFrame) -> Iterator[tuple[int, int, bytes, str]]:
        damaged = frames.filter("kind = 'problem'").select("segment", "position", "body", "detail").distinct()
        unknown = routed.filter("kind = 'quarantined'").select("segment", "position", "body", "detail").distinct()
        for row in (*damaged.toLocalIterator(), *unknown.toLocalIterator()):
            yield row.segment, row.position, bytes(row.body), row.detail
        for row in folded.filter("kind = 'quarantined'").select("payload").toLocalIterator():
            place = pickle.loads(bytes(row.payload))  # noqa: S301 - written by this very job
            yield place["segment"], place["position"], place["body"], place["detail"]

    def _keep(self, segment: int, position: int, body: bytes, detail: dict[str, Any]) -> Problem:
        stem = self.manifest.segments[segment].ref.quarantined(position, len(body))
        problem = Problem(kind=detail["kind"], position=position, size=len(body), message=detail["message"], quarantined_as=f"{stem}.bin")
        about = {**problem.model_dump(), "batch": self.manifest.number, "object": self.manifest.segments[segment].object, **detail}
        for name, data in ((f"{stem}.bin", body), (f"{stem}.json", json.dumps(about, indent=1).encode())):
            self.store.put(name, data)
        return problem

    # --- commits ---------------------------------------------------------------------------------------------------------

    def _ordered_events(self, folded: DataFrame, captured: list[Table]) -> DataFrame:
        """Events with their ordinal: dense within (batch, table name), by life of the table, key bucket, key and writetime."""
        events = folded.filter("kind = 'event'")
        counts = {(bytes(r.table_id), r.bucket): r["count"] for r in events.groupBy("table_id", "bucket").count().collect()}
        starts: list[tuple[bytes, int, int]] = []
        for _, lives in groupby(captured, key=lambda table: table.full_name):
            start = 0
            # The life that goes on comes last: its events are the younger ones.
            for table in sorted(lives, key=lambda table: (not table.dropped, str(table.id))):
                for bucket in range(len(self._shard_versions(table).buckets)):
                    starts.append((table.id.bytes, bucket, start))
                    start += counts.get((table.id.bytes, bucket), 0)
        offsets = self.spark.createDataFrame(starts, schema="table_id binary, bucket int, start bigint")
        numbered = events.join(F.broadcast(offsets), ["table_id", "bucket"])
        return numbered.withColumn("ordinal", F.col("start") + F.col("seq") + 1).select("table_id", "ordinal", "last", "payload")

    def _commit_changes(self, events: DataFrame, schema: Schema, captured: list[Table]) -> None:
        warehouse = self._warehouse()
        for table in captured:
            if self.accounts[table.label]["events"]:
                mine = events.filter(F.col("table_id") == F.lit(bytearray(table.id.bytes)))
                warehouse.write_changes(table, schema, mine, self.manifest.number)
                log.info("changes committed", table=table.label, batch=self.manifest.number)

    def _commit_state(self, folded: DataFrame, captured: list[Table]) -> dict[str, ShardVersions]:
        """Upsert each touched shard, one task a shard, and collect the versions for the next batch."""
        number = self.manifest.number
        uris = {key: uri for table in captured for key, (uri, _) in self._shards(table).items()}

        def write(rows: Iterable[Any]) -> Iterator[tuple[bytes, int, int]]:
            dicts = (row.asDict() for row in rows)
            for (table_id, bucket), run in groupby(dicts, key=lambda row: (bytes(row["table_id"]), row["bucket"])):
                yield table_id, bucket, upsert(uris[table_id, bucket], number, unpacked_records(run))

        found = folded.filter("kind = 'record'").select("table_id", "bucket", "payload")
        grouped = found.repartition("table_id", "bucket").sortWithinPartitions("table_id", "bucket")
        written = {(table_id, bucket): version for table_id, bucket, version in grouped.rdd.mapPartitions(write).collect()}
        state = dict(self.base.state) if self.base else {}
        for table in captured:
            known = self._shard_versions(table)
            buckets = [written.get((table.id.bytes, bucket), version) for bucket, version in enumerate(known.buckets)]
            state[str(table.id)] = ShardVersions(generation=known.generation, buckets=buckets)
        return state

    def _commit_current(self, events: DataFrame, schema: Schema, captured: list[Table]) -> None:
        warehouse = self._warehouse()
        for table in captured:
            # The rows of a life that is over went with its DROP; only its changes are history.
            if self.accounts[table.label]["events"] and not table.dropped:
                mine = events.filter(F.col("table_id") == F.lit(bytearray(table.id.bytes)))
                warehouse.merge_current(table, schema, mine, self.manifest.number)
                log.info("current rows merged", table=table.label, batch=self.manifest.number)

    def _commit_ddl(self, schema: Schema, captured: list[Table]) -> None:
        """Tables with events have the ring's shape by now; those without follow it too."""
        for table in captured:
            if not self.accounts[table.label]["events"] and self._reshaped(table, schema):
                self._warehouse().follow(table, schema, self.manifest.number)

    def _reshaped(self, table: Table, schema: Schema) -> bool:
        def types(of: Schema) -> dict[str, Any]:
            return {name: kind for (keyspace, name), kind in of.types.items() if keyspace == table.keyspace}

        return self.known.tables.get(table.id) != table or types(self.known) != types(schema)

    def _warehouse(self) -> Warehouse:
        return Warehouse(self.spark, self._catalog(), self.config.warehouse)

    def _seal(self, state: dict[str, ShardVersions]) -> Sealed:
        accounting = self._accounting()
        taken_in = {segment.object for segment in self.manifest.segments}
        still_held = [name for name in (self.base.held if self.base else []) if name not in taken_in]
        failed = [o.object for o in self.outcomes.values() if not o.ok and self.manifest.kind == "ingest"]
        sealed = Sealed(
            number=self.manifest.number,
            kind=self.manifest.kind,
            sealed_at=datetime.now(UTC),
            segments=list(self.outcomes.values()),
            accounting=accounting,
            state=state,
            held=sorted([*still_held, *failed]),
            snapshots_applied=sorted([*(self.base.snapshots_applied if self.base else []), *self.manifest.schema_snapshots]),
            snapshots_refused=self.snapshots_refused,
            events=sum(account.events for account in accounting),
        )
        name = names.batch_object(self.manifest.cluster, self.manifest.number, "sealed")
        try:
            self.store.put(name, sealed.to_bytes(), if_generation=0)
        except PreconditionFailed:
            # Another driver of this very batch was first; its outcome is the same but for the clock.
            return Sealed.model_validate_json(self.store.read(name))
        return sealed

    def _catalog(self) -> str:
        if self.config.catalog is None:
            raise BatchError("the pipeline has no catalog", operation="commit a batch")
        return self.config.catalog.name


if __name__ == "__main__":
    sys.exit(main())
