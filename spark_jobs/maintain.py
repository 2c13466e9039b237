"""The maintenance job: purge expired data from the state. `spark-submit maintain.py --config FILE --batch N`

Strategy: maintenance is a batch of its own kind, numbered and sealed like any other, so that shard versions
stay pinned and nothing else writes at the same time. It reads no segments, and its clock is the clock of the
last batch: what has expired since is emitted by the next batch, and is not purged before. Shards are read as
streams, one task per shard; only records that hold something dead are decoded, and only those that change are
written. The seal's `horizon` records the purge
time and, for each table, the newest writetime that was purged: a replay respects both. The warehouse tables
are maintained too (`tidy`). Then versions that no batch starts from any more are removed: shard versions, the
generations before a TRUNCATE, and parts of segments whose whole files are archived. None of these steps has
to succeed: a failure is logged, and the next maintenance tries again. A table of which a step fails stops no other;
it is named at the end.

Exit code: 0 sealed (or was already), 1 not, or a table could not be maintained. The ingest job also finishes an
unsealed batch of this kind.
"""

from __future__ import annotations

import argparse
import sys
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from datetime import UTC, datetime
from itertools import chain
from math import gcd
from typing import NamedTuple, Protocol
from uuid import UUID

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import structlog
from pyspark import SparkContext
from pyspark.sql import SparkSession

from spark_jobs.failures import going_on, kind_of, reason_of
from spark_jobs.job_exit import reports_failure
from spark_jobs.meter import MAINTENANCE, Meter
from spark_jobs.session import spark_session
from spark_jobs.sinks import voids
from spark_jobs.sinks.bigquery import ExternalTablesWriter
from spark_jobs.sinks.iceberg import Fence, Warehouse
from spark_jobs.sinks.table_maintenance import tidy
from spark_jobs.stages.scan import key_bucket
from spark_jobs.state.shards import Record, Shard, Written, cleanup, fill, in_batches, upsert
from writetime.cassandra.merge import row_codec
from writetime.cassandra.merge.clustering import ClusteringOrder
from writetime.cassandra.merge.partition_fold import Head
from writetime.cassandra.merge.partition_head import decode_head, encode_head
from writetime.cassandra.merge.tombstone_gc import RowPurger, newest_purged, purge_head
from writetime.cassandra.model import NO_TIMESTAMP, PartitionUpdate, Row
from writetime.cassandra.schema.model import Schema, Table
from writetime.cassandra.types.byte_comparable import HEAD, LENGTH_BYTES, PAST_RECORDS, PAST_ROWS, record_key, split_record_key
from writetime.config.pipeline import PipelineConfig, load
from writetime.errors import BatchError, ObjectNotFound, PreconditionFailed, WritetimeError
from writetime.kernels.row_batches import min_deletion_times
from writetime.pipeline.archiver import sweep
from writetime.pipeline.completeness import held_back, purge_clock
from writetime.pipeline.documents import Manifest, Sealed, ShardVersions, Totals, WarehouseFiles
from writetime.pipeline.maintenance_report import Files, Maintained, Tidied, size_of_state
from writetime.pipeline.planner import not_voided, read_local, read_manifest, read_schema, read_sealed, seal
from writetime.pipeline.truncation_reports import sweep_answers
from writetime.pipeline.void import voided_before
from writetime.storage import layout, open_store
from writetime.storage.store import Store

log = structlog.get_logger()

REMEMBERED = 100_000
"""Records with something to purge that a task remembers; a shard with more of them is read in order as a whole."""
_CLEANING_WAITS = 5.0
"""Seconds that cleaning waits for a shard that a batch is writing."""


@reports_failure("maintenance")
def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description="Run one planned batch of maintenance to its seal.")
    parser.add_argument("--config", required=True, help="the pipeline's YAML")
    parser.add_argument("--batch", required=True, type=int, help="number of the planned batch")
    options = parser.parse_args(arguments)
    sealed = run(load(options.config), options.batch)
    print(f"batch {sealed.number} ({sealed.kind}) sealed: purged up to {sealed.horizon}")  # noqa: T201
    return 0


def run(config: PipelineConfig, number: int) -> Sealed:
    """Run the batch, or give the outcome of one that is already sealed. BatchError if it was voided."""
    store = open_store(config.bucket)
    done = read_sealed(store, config.cluster.name, number)
    if done is not None:
        return not_voided(done)
    manifest = read_manifest(store, config.cluster.name, number)
    base = read_sealed(store, config.cluster.name, manifest.base) if manifest.base else None
    if manifest.kind != "maintain" or base is None:
        raise BatchError(f"it is a batch of the kind {manifest.kind}", operation="maintain the state", obj=str(number))
    spark = spark_session(config, f"writetime maintain {config.pipeline} batch {number}")
    try:
        sealed = maintain(config, store, spark, manifest, base, whole=True)
        ExternalTablesWriter(config, store, spark).write(sealed)
        return sealed
    except TablesUnmaintained:
        if (sealed_with_less := read_sealed(store, config.cluster.name, number)) is not None:
            ExternalTablesWriter(config, store, spark).write(sealed_with_less)
        raise
    finally:
        spark.stop()


class TablesUnmaintained(BatchError):
    """The batch is sealed; some tables could not be maintained in it."""


class Task(NamedTuple):
    """One shard to purge: everything that died before the second `before` is removed."""

    table_id: UUID
    bucket: int
    uri: str
    version: int
    lease: str
    before: int


def maintain(config: PipelineConfig, store: Store, spark: SparkSession, manifest: Manifest, base: Sealed, *, whole: bool = False) -> Sealed:
    """Purge every shard, seal, and remove versions that no batch starts from any more. `whole`: the process was
    started for it."""
    meter = Meter(spark.sparkContext, whole=whole, driver=MAINTENANCE, jvm=MAINTENANCE)
    cluster, number = manifest.cluster, manifest.number
    schema = read_schema(store, cluster, base.number).schema()
    failed: dict[str, str] = {}
    tasks = list(tasks_of(config, manifest, base, schema, failed))
    before = size_of_state(open_store(config.state or config.bucket), cluster)
    bucket_url, now = config.bucket, manifest.now

    def purge(task: Task) -> tuple[Task, Purged | None, str]:
        try:
            return task, purge_shard(open_store(bucket_url), task, schema, number, now), ""
        except Exception as error:
            if kind_of(error) != "table":
                raise
            return task, None, reason_of(error)

    done = spark.sparkContext.parallelize(tasks, max(1, len(tasks))).map(purge).collect()
    written: dict[UUID, dict[int, Written]] = defaultdict(dict)
    newest: dict[UUID, int] = {}
    for task, after, trouble in done:
        if trouble:
            log.error("state not purged", batch=number, shard=task.uri, error=trouble)
            failed.setdefault(schema.tables[task.table_id].label, trouble)
        if after is not None:
            written[task.table_id][task.bucket] = after.written
            newest[task.table_id] = max(after.newest, newest.get(task.table_id, after.newest))
    log.info("state purged", batch=number, shards=len(tasks), changed=sum(map(len, written.values())))
    state = {
        table_id: versions.after(written.get(UUID(table_id), {})).purged_up_to(newest.get(UUID(table_id)))
        for table_id, versions in base.state.items()
    }
    state = distribute(config, spark.sparkContext, manifest, state, failed)
    voided, tidied, files = voided_before(store, manifest, base), list[Tidied](), base.files
    if (warehouse := _warehouse(config, store, spark, manifest)) is not None:
        # First, because the snapshots to roll back to may expire.
        refused = {table.table_id for table in base.refused}
        voids.take_back(warehouse, store, manifest, voided, voids.rejected(base), refused)
        # Nothing is tidied before it is looked for what to take back.
        unknown = base.late_rejections.keys() & refused
        tables = [schema.tables[table_id] for table_id in map(UUID, sorted(base.state)) if table_id in schema.tables.keys() - unknown]
        tidied = tidy_warehouse(warehouse, tables, number)
        files = files_of(warehouse, tables, base.files)
    carry_over(store, cluster, base.number, number)
    sealed = base.model_copy(
        update={
            "number": number,
            "kind": manifest.kind,
            "sealed_at": datetime.now(UTC),
            "segments": [],
            "accounting": [],
            "state": state,
            "snapshots_refused": {},
            "horizon": _horizon([task.before for task, after, _ in done if after is not None], base),
            "kept_from": _kept_from(config, manifest, base),
            "events": 0,
            "files": files,
            "totals": (base.totals or Totals()).and_of(manifest.kind, (), (), (), meter.costs()),
            "voided": voided,
        }
    )
    outcome = seal(store, cluster, sealed)
    clean(config, spark.sparkContext, cluster, [base, outcome])
    swept = 0
    try:
        swept = sweep(store, cluster) + sweep_answers(store, cluster)
        log.info("segment parts removed", bytes=swept)
    except WritetimeError as error:
        log.warning("segment parts not removed", **error.as_dict())
    came_to = Maintained(
        batch=number,
        at=datetime.now(UTC),
        shards=len(tasks),
        purged=sum(map(len, written.values())),
        failed=sum(bool(trouble) for _, _, trouble in done),
        before=before,
        after=size_of_state(open_store(config.state or config.bucket), cluster),
        swept=swept,
        tables=tidied,
        held_back=held_back([schema.tables[UUID(name)] for name in base.state if UUID(name) in schema.tables], manifest),
    )
    store.put(layout.maintained(cluster), came_to.to_bytes())
    failed |= {each.name: each.trouble for each in tidied if each.trouble}
    if failed:
        raise _unmaintained(number, failed)
    return outcome


def _unmaintained(number: int, failed: Mapping[str, str]) -> TablesUnmaintained:
    name, reason = next(iter(failed.items()))
    others = f"; {len(failed) - 1} more tables, see the log" if len(failed) > 1 else ""
    hint = "The batch is sealed, all other tables are maintained; the next maintenance tries again."
    return TablesUnmaintained(f"{reason}{others}", operation=f"maintain tables in batch {number}", obj=name, hint=hint)


def tasks_of(config: PipelineConfig, manifest: Manifest, base: Sealed, schema: Schema, failed: dict[str, str]) -> Iterator[Task]:
    """The existing shards, each with its purge time. A table without a known schema is left unchanged, and so
    is a table that is not captured now: its expiries have not been emitted. `failed` receives what fails, by label."""
    for name, versions in sorted(base.state.items()):
        table = schema.tables.get(UUID(name)) if versions.behind is None else None
        if table is not None:
            with going_on(table.label, failed):
                yield from _tasks_of_table(config, manifest, table, versions)


def _tasks_of_table(config: PipelineConfig, manifest: Manifest, table: Table, versions: ShardVersions) -> list[Task]:
    found, clock = [], purge_clock(table, manifest.now, manifest.holds)
    for bucket, version in enumerate(versions.buckets):
        if version:
            place = manifest.cluster, str(table.id), versions.generation, bucket, versions.of
            uri = config.state_url(layout.state_shard(*place))
            found.append(Task(table.id, bucket, uri, version, layout.state_lease(*place), clock.before))
    return found


def _warehouse(config: PipelineConfig, store: Store, spark: SparkSession, manifest: Manifest) -> Warehouse | None:
    if config.catalog is None:
        return None
    return Warehouse.of_batch(config, store, spark, manifest, Fence(store, manifest.cluster))


def tidy_warehouse(warehouse: Warehouse, tables: Sequence[Table], number: int) -> list[Tidied]:
    """Compact files of the tables in the warehouse and expire old snapshots; returns the results."""
    found = tidy(warehouse, tables)
    for done in (each for each in found if not each.trouble):
        changed = {part: f"{getattr(done.before, part, '?')} -> {getattr(done.after, part, '?')}" for part in Files.model_fields}
        log.info("table maintained", batch=number, table=done.name, **changed)
    return found


def files_of(warehouse: Warehouse, tables: Iterable[Table], before: Mapping[str, WarehouseFiles]) -> dict[str, WarehouseFiles]:
    """The files of the live tables now; those of `before` for a table that cannot be read."""
    found = dict(before)
    for table in (table for table in tables if not table.dropped):
        with going_on(table.label, {}):
            found[table.label] = warehouse.files(table)
    return found


class Filling(NamedTuple):
    """One shard of a table whose keys are distributed among `of` buckets, and the shards (URI, version) in which
    these keys are now."""

    table_id: str
    bucket: int
    of: int
    uri: str
    lease: str
    sources: tuple[tuple[str, int], ...]


def distribute(
    config: PipelineConfig, spark: SparkContext, manifest: Manifest, state: dict[str, ShardVersions], failed: dict[str, str]
) -> dict[str, ShardVersions]:
    """The state after the keys of each table with fewer than `buckets` shards were distributed among so many: each
    shard is written in a folder of its own, and nothing refers to it before the seal. A table of which that fails
    stays as it is, and is added to `failed`. A table that is not captured now waits until it is."""
    growing = {
        name: versions
        for name, versions in state.items()
        if len(versions.buckets) < config.buckets and versions.behind is None and not versions.ended
    }
    tasks = [task for name, versions in sorted(growing.items()) for task in _fillings(config, manifest.cluster, name, versions)]
    if not tasks:
        return state
    number, bucket_url = manifest.number, config.bucket

    def work(task: Filling) -> tuple[Filling, Written | None, str]:
        try:
            return task, fill_shard(open_store(bucket_url), task, number), ""
        except Exception as error:
            if kind_of(error) != "table":
                raise
            return task, None, reason_of(error)

    written: dict[str, dict[int, Written]] = defaultdict(dict)
    for task, done, trouble in spark.parallelize(tasks, len(tasks)).map(work).collect():
        if done is None:
            log.error("state not distributed", batch=number, shard=task.uri, error=trouble)
            failed.setdefault(task.table_id, trouble)
        else:
            written[task.table_id][task.bucket] = done
    after = dict(state)
    for name, versions in growing.items():
        if len(written[name]) == config.buckets:
            empty = versions.model_copy(update={"buckets": [0] * config.buckets, "expires": [], "distributed": True})
            after[name] = empty.after(written[name])
            log.info("state distributed", batch=number, table_id=name, buckets=config.buckets, before=len(versions.buckets))
    return after


def _fillings(config: PipelineConfig, cluster: str, name: str, versions: ShardVersions) -> Iterator[Filling]:
    of, before = config.buckets, len(versions.buckets)
    held = {
        bucket: (config.state_url(layout.state_shard(cluster, name, versions.generation, bucket, versions.of)), version)
        for bucket, version in enumerate(versions.buckets)
        if version
    }
    # A hash is in both buckets only if these are equal modulo what their numbers have in common.
    common = gcd(of, before)
    for bucket in range(of):
        place = cluster, name, versions.generation, bucket, of
        sources = tuple(shard for number, shard in held.items() if number % common == bucket % common)
        yield Filling(name, bucket, of, config.state_url(layout.state_shard(*place)), layout.state_lease(*place), sources)


def fill_shard(store: Store, task: Filling, batch: int) -> Written:
    """Write one shard of the distribution."""

    def is_mine(key: bytes) -> bool:
        return key_bucket(split_record_key(key)[0], task.of) == task.bucket

    parts = (part for uri, version in task.sources for part in Shard(uri, version).stored(is_mine))
    return fill(task.uri, batch, parts, store, task.lease)


class Purged(NamedTuple):
    """The result of purging a shard, with the newest writetime (µs) that was removed."""

    written: Written
    newest: int


def purge_shard(store: Store, task: Task, schema: Schema, batch: int, now: int) -> Purged | None:
    """Purge one shard; None if there was nothing to purge."""
    newest = NO_TIMESTAMP

    def records() -> Iterator[Record]:
        nonlocal newest
        for record, gone in purged(Shard(task.uri, task.version), schema.tables[task.table_id], schema, task.before, now):
            newest = max(newest, gone)
            yield record

    found = records()
    first = next(found, None)
    if first is None:
        return None
    written = upsert(task.uri, task.version, batch, in_batches(chain([first], found)), store, task.lease)
    return Purged(written, newest)


class Scanned(Protocol):
    """The part of a shard's interface that purging needs."""

    def batches(self) -> Iterable[pa.RecordBatch]: ...

    def scan_all(self, intervals: Sequence[tuple[bytes, bytes]]) -> Iterable[tuple[bytes, bytes]]: ...


def purged(shard: Scanned, table: Table, schema: Schema, before: int, now: int) -> Iterator[tuple[Record, int]]:
    """The records that change when everything is removed that died before the second `before`, each with the
    newest writetime (µs) removed from it; `now` is the second up to which expiries have been emitted."""
    order = ClusteringOrder(table, schema.types)
    partition: bytes | None = None
    rows = without_head = RowPurger(None, order, before)
    for key, state in shard.scan_all(_purgeable(shard, order, before)):
        pk, row = split_record_key(key)
        if row == HEAD:
            head = decode_head(state, order)
            partition, rows = pk, RowPurger(head.update, order, before)
            update = None if head.update is None else purge_head(head.update, before)
            static = None if update is None else update.static_row
            left = encode_head(Head(update, head.shown), order, schema.types)
            ends = None if static is None else row_codec.next_expiry(row_codec.encode(static), now)
            old: PartitionUpdate | Row | None = head.update
            new: PartitionUpdate | Row | None = update
        else:
            if pk != partition:
                partition, rows = pk, without_head
            old = row_codec.decode(state)
            new = kept = rows.purge(old)
            left = b"" if kept is None else row_codec.encode(kept)
            ends = row_codec.next_expiry(left, now) if left else None
        if left != state:
            yield Record(key, left, ends), newest_purged(old, new)


def _purgeable(shard: Scanned, order: ClusteringOrder, before: int) -> list[tuple[bytes, bytes]]:
    """The intervals, ascending, of the records that may change: rows that hold something dead with the heads of
    their partitions, and partitions whose heads do. Most records are neither, and are not decoded. Everything, if
    it is too much to remember."""
    partitions, rows = set[bytes](), list[bytes]()
    for batch in shard.batches():
        heads = _are_heads(batch["key"])
        for key, state in zip(*(batch[name].filter(heads).to_pylist() for name in ("key", "state")), strict=True):
            head = decode_head(state, order).update
            if head is not None and purge_head(head, before) != head:
                partitions.add(key)
        # A damaged row is reported by who decodes it.
        dying = pa.array(min_deletion_times(batch["state"]) < before)
        rows += batch["key"].filter(pc.and_not(dying, heads)).to_pylist()
        if len(partitions) + len(rows) > REMEMBERED:
            return [(b"", PAST_RECORDS)]
    alone = {key: record_key(split_record_key(key)[0]) for key in rows}
    single = {key for row, head in alone.items() if head not in partitions for key in (head, row)}
    return sorted([*((head, head + PAST_ROWS) for head in partitions), *((key, key + b"\0") for key in single)])


def _are_heads(keys: pa.BinaryArray) -> pa.BooleanArray:
    """Whether each record key is that of a partition's head, which ends with the partition key."""
    prefixes = pc.binary_slice(keys, 0, LENGTH_BYTES).cast(pa.binary(LENGTH_BYTES))
    sizes = np.frombuffer(prefixes.buffers()[1], ">u4", len(keys))
    return pc.equal(pc.binary_length(keys), pa.array(sizes.astype(np.int32) + LENGTH_BYTES))


def _horizon(purged_before: list[int], base: Sealed) -> int | None:
    """The time up to which tombstones have been purged, by this batch or any before: purged data does not
    come back when gc_grace changes."""
    return max([*purged_before, *(() if base.horizon is None else (base.horizon,))], default=None)


def _kept_from(config: PipelineConfig, manifest: Manifest, base: Sealed) -> int | None:
    """The hour before which the archive may delete segments (`writetime.pipeline.archive_packing`) once this
    batch is sealed. It never decreases."""
    days = config.archive.keep_days
    hour = [] if days is None else [int(layout.hour_of(datetime.fromtimestamp(manifest.now - days * 86400, UTC)).timestamp())]
    return max([*hour, *(() if base.kept_from is None else (base.kept_from,))], default=None)


class Unneeded(NamedTuple):
    """What to clean: a shard, with the versions to keep; or all generations of a table's incarnation before
    one (`lease` is empty, `uri` the prefix of its state)."""

    uri: str
    lease: str
    kept: tuple[int, ...] = ()
    before: tuple[int, int] = (0, 0)


def clean(config: PipelineConfig, spark: SparkContext, cluster: str, seals: list[Sealed]) -> None:
    """Remove what none of the last seals names: versions of shards, generations of tables."""
    bucket_url, state_url = config.bucket, config.state or config.bucket

    def free(place: Unneeded) -> tuple[str, int, str]:
        try:
            if place.lease:
                return place.uri, cleanup(place.uri, place.kept, open_store(bucket_url), place.lease, wait=_CLEANING_WAITS), ""
            return place.uri, remove_before(open_store(state_url), place.uri, place.before), ""
        except (WritetimeError, OSError, RuntimeError, ValueError) as error:
            # Lance raises no error classes of its own.
            return place.uri, 0, str(error)

    places = list(unneeded(config, cluster, seals))
    done = spark.parallelize(places, max(1, len(places))).map(free).collect()
    for uri, _, trouble in done:
        if trouble:
            log.warning("old state versions not removed", where=uri, error=trouble)
    log.info("old state versions removed", shards=len(places), bytes=sum(freed for _, freed, _ in done))


def unneeded(config: PipelineConfig, cluster: str, seals: list[Sealed]) -> Iterator[Unneeded]:
    """Shards and generations that may have something that none of the seals names."""
    kept: dict[tuple[str, int, int, int | None], set[int]] = defaultdict(set)
    oldest: dict[str, tuple[int, int]] = {}
    for name, versions in (each for sealed in seals for each in sealed.state.items()):
        generation = versions.generation, versions.of or 0
        oldest[name] = min(generation, oldest.get(name, generation))
        for bucket, version in enumerate(versions.buckets):
            kept[name, versions.generation, bucket, versions.of].add(version)
    for place, versions_kept in (((cluster, *shard), found) for shard, found in kept.items()):
        if any(versions_kept):
            yield Unneeded(config.state_url(layout.state_shard(*place)), layout.state_lease(*place), tuple(sorted(versions_kept - {0})))
    for name, generation in oldest.items():
        if generation > (0, 0):
            yield Unneeded(layout.state_prefix(cluster, name), "", before=generation)


def remove_before(store: Store, prefix: str, generation: tuple[int, int]) -> int:
    """Remove a table's state in the generations before that one (`layout.state_generation`); returns the bytes
    freed."""
    freed = 0
    for held in store.names(prefix):
        found = layout.state_generation(held.name)
        if found[0] > generation[0]:
            break
        if found >= generation:
            continue
        try:
            store.delete(held.name)
        except ObjectNotFound:
            # Another driver of this batch may be cleaning too.
            continue
        freed += held.size
    return freed


def carry_over(store: Store, cluster: str, base: int, number: int) -> None:
    """Copy the base's schema as the schema of this batch. It is only created, so a delayed driver changes
    nothing."""
    local = read_local(store, cluster, base).model_copy(update={"opened": [], "rereads": [], "not_understood": []})
    known = {"schema": store.read(layout.batch_object(cluster, base, "schema")), "local": local.to_bytes()}
    for what, content in known.items():
        with suppress(PreconditionFailed):
            store.put(layout.batch_object(cluster, number, what), content, if_generation=0)


if __name__ == "__main__":
    sys.exit(main())
