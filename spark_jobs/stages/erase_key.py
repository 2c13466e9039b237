"""Erases one key: removes all its data up to now from archive, quarantine, state and tables. `writetime
erase`

Strategy: an erasure is a batch of its own kind, numbered and sealed like any other, so that nothing else
writes at the same time, and any driver can run an unfinished one again. It reads no segments. First it
records the key as a hash (`writetime.pipeline.erasures`); from then on no batch ingests what was written to
the key up to that moment, from any source. Then it changes the bucket's objects (`writetime.pipeline.erase`),
rewrites the key's state shards, deletes its rows from the tables, and removes files and snapshots that only
older snapshots need. After the seal it removes older versions of the shards, and the request, which is the
one object that holds the key itself.

A key that the cluster still holds is rejected: its next change would produce half a row. So current rows that
readers see do not change. Every step can be repeated."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from functools import cached_property, partial
from typing import Any, Final, NamedTuple, TypeVar
from uuid import UUID, uuid4

import pyarrow as pa
import structlog
from pyspark.sql import SparkSession
from pyspark.sql.pandas.types import from_arrow_schema

from spark_jobs.failures import kind_of, reason_of
from spark_jobs.maintain import carry_over, remove_before
from spark_jobs.sinks import voids
from spark_jobs.sinks.avro_files import files_up_to, files_with, without_events
from spark_jobs.sinks.iceberg import Fence, Warehouse
from spark_jobs.sinks.iceberg_table import IcebergTable, is_conflict
from spark_jobs.sinks.spark_catalog import comparable
from spark_jobs.sinks.table_maintenance import scrub
from spark_jobs.sinks.voids import Rejected, Voided
from spark_jobs.stages import erased_events
from spark_jobs.stages.erased_events import KeyInEvents
from spark_jobs.stages.scan import key_bucket
from spark_jobs.stages.table_rows import RowShape
from spark_jobs.state.shards import Shard, Written, forget, rewrite
from writetime.cassandra.commitlog.encryption.keystore import Keystore
from writetime.cassandra.merge import row_codec
from writetime.cassandra.merge.clustering import ClusteringOrder
from writetime.cassandra.merge.liveness import live_cells, visible
from writetime.cassandra.merge.partition_head import decode_head
from writetime.cassandra.merge.reconcile import max_timestamp
from writetime.cassandra.model import PartitionUpdate
from writetime.cassandra.schema.history import SchemaLearner
from writetime.cassandra.schema.model import Schema, Table
from writetime.cassandra.types.byte_comparable import HEAD, RowKeys, record_key, split_record_key
from writetime.cassandra.types.types import parse_type
from writetime.config.pipeline import PipelineConfig
from writetime.errors import BatchError, ConfigError, ObjectNotFound, WritetimeError
from writetime.events import envelope
from writetime.events.row_values import TableView
from writetime.pipeline import chains, erasures
from writetime.pipeline import erase as bucket
from writetime.pipeline.documents import Manifest, Sealed, Totals
from writetime.pipeline.erase import Found, Outcome, Search
from writetime.pipeline.erasures import Erasure, Request, erased_of
from writetime.pipeline.planner import (
    expect_no_open_replay,
    read_manifest,
    read_schema,
    seal,
    store_clock,
)
from writetime.pipeline.publish_progress import read_published
from writetime.pipeline.unreached import Unreached, unreached
from writetime.pipeline.void import void, voided_before
from writetime.storage import layout, open_store
from writetime.storage.store import Store

log = structlog.get_logger()

T = TypeVar("T")
_OPERATION: Final = "erase a key"
_PER_TASK: Final = 20
"""Segments of the archive, or objects with events, that one task reads."""
WITH_DELETED: Final = "count_if(t._deleted), count_if(NOT t._deleted)"
"""Counts rows that position deletes hide, and those that readers see: the bytes of both are in the files."""
_AHEAD: Final = timedelta(hours=1)
"""By how much clocks that stamp snapshots may be ahead of this one."""


def erase(config: PipelineConfig, store: Store, spark: SparkSession, manifest: Manifest, base: Sealed) -> Sealed:
    """Run the batch to its seal. BatchError if its request does not exist: only an open batch has one."""
    cluster, number = manifest.cluster, manifest.number
    request = erasures.read_request(store, cluster, manifest.id)
    if request is None:
        raise BatchError(
            "the erase request is missing", operation=_OPERATION, obj=str(number), hint="Void the batch, and erase the key again."
        )
    work = Erasing.writing(config, store, spark, request, base, manifest)
    state, outcome = work.run()
    # A run that goes on after another one finds little that is left.
    outcome.create(store, layout.erasure_done(cluster, number))
    carry_over(store, cluster, base.number, number)
    sealed = seal(store, cluster, work.seal(state))
    after_seal(config, store, spark, manifest, sealed, request)
    return sealed


def after_seal(config: PipelineConfig, store: Store, spark: SparkSession, manifest: Manifest, sealed: Sealed, request: Request) -> None:
    """Remove what only earlier batches needed: older versions of the shards, and the requests with keys."""
    work = Erasing.reading(config, store, spark, request, sealed)
    work.spread(list(work.shards()), lambda store, shard: forget(shard.uri, shard.version, store, shard.lease))
    state = open_store(config.state or config.bucket)
    for table in work.incarnations:
        if (versions := sealed.state.get(str(table.id))) is not None and (versions.generation or versions.distributed):
            remove_before(state, layout.state_prefix(manifest.cluster, str(table.id)), (versions.generation, versions.of or 0))
    erasures.forget_requests(store, manifest.cluster, manifest.number)


class ShardOf(NamedTuple):
    """The shard of one incarnation of the table that holds the key."""

    table: Table
    bucket: int
    uri: str
    version: int
    lease: str


@dataclass
class Erasing:
    """One run over everything that the pipeline holds of a key, as of the batch `base`. Without a `manifest`
    it only searches."""

    config: PipelineConfig
    store: Store
    spark: SparkSession
    request: Request
    base: Sealed
    manifest: Manifest | None = None
    _undeleted: list[str] = field(default_factory=list)

    @classmethod
    def reading(cls, config: PipelineConfig, store: Store, spark: SparkSession, request: Request, base: Sealed) -> Erasing:
        return cls(config, store, spark, request, base)

    @classmethod
    def writing(
        cls, config: PipelineConfig, store: Store, spark: SparkSession, request: Request, base: Sealed, manifest: Manifest
    ) -> Erasing:
        return cls(config, store, spark, request, base, manifest)

    @property
    def cluster(self) -> str:
        return self.config.cluster.name

    @cached_property
    def learner(self) -> SchemaLearner:
        return read_schema(self.store, self.cluster, self.base.number)

    @property
    def schema(self) -> Schema:
        return self.learner.schema()

    @cached_property
    def incarnations(self) -> list[Table]:
        """The incarnations of the table whose keys have the same types as the last one's."""
        found = [table for table in self.schema.tables.values() if table.full_name == self.request.table]
        last = max(found, key=lambda each: (not each.dropped, each.dropped_at or 0, str(each.id)))
        return [table for table in found if _key_types(table) == _key_types(last)]

    @cached_property
    def row(self) -> bytes | None:
        """The key of the row in the state, if only one row is erased."""
        if (clustering := self.request.row) is None:
            return None
        return RowKeys(self.incarnations[0], self.schema.types).key(clustering)

    def search(self, until: int, number: int = 0) -> Search:
        salted = erasures.salt(self.store, self.cluster)
        erased = erased_of([self._erasure(salted, until, number)], salted)
        ids = tuple(table.id for table in self.incarnations)
        return Search(self.schema, frozenset(self.learner.cdc_ever), ids, self.request.key, erased, self.row)

    def _erasure(self, salted: bytes, until: int, number: int) -> Erasure:
        key, row = self.request.key, self.row
        return Erasure(
            number=number,
            table=self.request.table,
            table_ids=[table.id for table in self.incarnations],
            partition=erasures.digest(salted, key).hex(),
            row=None if row is None else erasures.digest(salted, key, row).hex(),
            until=until,
            at=datetime.now(UTC),
            by=self.request.by,
        )

    # --- looking

    def look(self) -> Outcome:
        """Search for the key; nothing is changed."""
        until = int(store_clock(self.store, self.cluster).timestamp() * 1_000_000)
        search, warehouse = self.search(until), self._warehouse()
        keys = self.config.cluster.commitlog_keystore
        rows = {name: self._count(name, "") for name in self._tables(warehouse)}
        failed: dict[str, str] = {}
        left = self._unreached(warehouse, failed)
        return Outcome(
            table=self.request.table,
            live=[*self._alive(), *self._unpublished(warehouse)],
            segments=self._in_objects(bucket.archive_objects(self.store, self.cluster), search, bucket.in_segment, keys),
            waiting=self._in_objects(bucket.waiting_objects(self.store, self.cluster), search, bucket.in_segment, keys),
            pieces=sum(1 for _ in bucket.quarantine_records(self.store, self.cluster, search)),
            touched=bucket.incomplete_rows(self.store, self.cluster, search, erase=False),
            events=self._events_outside(warehouse, erase=False)[0],
            records=sum(1 for shard in self.shards() for _ in self._records(shard)),
            rows=rows,
            troubles=[*self._other_lives(), *_of_tables(failed)],
            beyond=[each.text for each in left],
            unreached=left,
        )

    def _alive(self) -> list[str]:
        now = read_manifest(self.store, self.cluster, self.base.number).now
        return [
            f"{shard.table.label} still has rows of the key: they are not deleted in the ring, or that has not come in"
            for shard in self.shards()
            if shard.table.dropped_at is None and any(self._shows(shard.table, key, state, now) for key, state in self._records(shard))
        ]

    def _shows(self, table: Table, record: bytes, state: bytes, now: int) -> bool:
        if split_record_key(record)[1] == HEAD:
            update = decode_head(state, ClusteringOrder(table, self.schema.types)).update
            return update is not None and bool(live_cells(update.static_row, now=now))
        return visible(row_codec.decode(state), now=now) is not None

    def _unpublished(self, warehouse: Warehouse) -> list[str]:
        """Events of the key that have not been published yet, and would not be after the erasure."""
        places = []
        # Those of a rebuild are not published.
        first = chains.begins_after(self.store, self.cluster, self.base.number)
        if self.config.kafka is not None:
            published = read_published(self.store, self.cluster)
            places.append(("Kafka", published.sent(self.request.table) if published else first))
        if self.config.files is not None:
            places.append(("the files", max(first, files_up_to(self.config.files))))
        changes = [name for table in self.incarnations if (name := warehouse.changes_of(table)) is not None]
        waiting = [(place, sum(self._count(name, f"t.batch > {upto}") for name in changes)) for place, upto in places]
        return [f"{count} events of the key are not in {place} yet" for place, count in waiting if count]

    def _other_lives(self) -> list[str]:
        known = {table.id for table in self.incarnations}
        others = [each for each in self.schema.tables.values() if each.full_name == self.request.table and each.id not in known]
        return [f"{table.label} has a key of other types: nothing was looked for in it" for table in others]

    def _of_one_table(self, name: str, failed: dict[str, str], work: Callable[[], T]) -> T | None:
        """The result of work for one table. What fails of it, `failed` receives: the batch ends all the same, or else no other one
        would begin before somebody has mended that table."""
        try:
            return work()
        except Exception as error:
            if kind_of(error) != "table" or is_conflict(error):
                raise
            log.error("key not erased from a table", table=name, error=reason_of(error))
            failed.setdefault(name, reason_of(error))
            return None

    def _unreached(self, warehouse: Warehouse, failed: dict[str, str]) -> list[Unreached]:
        """What no run reaches, or this one has not. `failed` receives the tables whose snapshots cannot be looked at."""
        found = unreached(self.config, self.store, self.request.table)
        if unknown := self._former_claims()["unknown"]:
            what, until = "events of before a rebuild, in a format that is not read here", "you delete them, or archive.keep_claims_days"
            found.insert(0, Unreached(place=f"{unknown[0].rpartition('/')[0]}/", what=what, until=until, objects=len(unknown)))
        tables = self._tables(warehouse)
        looks = ((name, partial(list[Unreached], self._references(name))) for name in tables)
        return [*(each for name, look in looks for each in self._of_one_table(name, failed, look) or ()), *found]

    def _references(self, name: str) -> Iterator[Unreached]:
        """Snapshots of a table that stay: those of branches and tags, and all if no files may be deleted."""
        held, plain = IcebergTable(self.spark, name), name.replace("`", "")
        held.refresh()
        # What readers see now is a former one after the erasure.
        former = [each.id for each in held.kept if each.id != held.snapshot or self.manifest is None]
        if held.deletes_no_files and former:
            until = (
                f"the catalog's own garbage collector removes them; or set gc.enabled to true (ALTER TABLE {plain} SET TBLPROPERTIES), and "
                "erase the key again"
            )
            what = f"{len(former)} former snapshots, as gc.enabled=false forbids to delete files"
            yield self._held_by_snapshots(name, former, Unreached(place=f"table {plain}", what=what, until=until))
        main = {each.id for each in held.lineage}
        for ref in held.references:
            # Of a branch, those of its own that its retention keeps, too.
            snapshots = [ref.snapshot, *sorted(held.ancestors(ref.snapshot) - main - {ref.snapshot})]
            until = f"you drop it (ALTER TABLE {plain} {ref.dropped_by}), and erase the key again"
            if ref.until is not None:
                until = f"{ref.until:%Y-%m-%d %H:%M} UTC, when it expires; or {until}"
            what = f"snapshot {ref.snapshot}, which the {ref.kind} {ref.name} keeps"
            yield self._held_by_snapshots(name, snapshots, Unreached(place=f"table {plain}", what=what, until=until))

    def _held_by_snapshots(self, name: str, snapshots: Iterable[int], place: Unreached) -> Unreached:
        """The place, with how many rows of the key, deleted ones included, these snapshots have in their files. Of a snapshot
        whose key columns had other names, nobody knows."""
        try:
            rows = sum(sum(self._matching(f"{name} VERSION AS OF {each}", WITH_DELETED, of=name)[0]) for each in snapshots)
        except Exception as error:
            if kind_of(error) != "table":
                raise
            log.warning("snapshots cannot be searched for the key", table=name, error=reason_of(error))
            return place.model_copy(update={"what": f"{place.what}: they cannot be searched", "holds_key": True})
        found = f"{rows} rows of the key" if rows else "no row of the key: at most it is among the bounds of files"
        return place.model_copy(update={"what": f"{place.what}: {found}", "objects": rows or None, "holds_key": bool(rows)})

    # --- erasing

    def run(self) -> tuple[dict[tuple[str, int], Written], Outcome]:
        """All steps before the seal: what was written of the state, and what was found."""
        assert self.manifest is not None
        # Again: since the batch was planned, no more are planned, but one may have been planned at the same time.
        expect_no_open_replay(self.store, self.cluster, "erase a key")
        number, warehouse = self.manifest.number, self._warehouse()
        salted = erasures.salt(self.store, self.cluster)
        until = int(self.manifest.created_at.timestamp() * 1_000_000)
        erasure = erasures.note(self.store, self.cluster, self._erasure(salted, until, number))
        if erasure.revoked:
            # Somebody has begun to void the batch.
            void(self.store, self.cluster, number, reason="an interrupted void", by=erasure.by)
            self._expect_open()
        search, keys = self.search(erasure.until, number), self.config.cluster.commitlog_keystore
        with warehouse.fenced(number):
            return self._run(warehouse, search, erasure.until, keys)

    def _run(self, warehouse: Warehouse, search: Search, until: int, keys: Any) -> tuple[dict[tuple[str, int], Written], Outcome]:
        assert self.manifest is not None
        number = self.manifest.number
        voids.take_back(warehouse, self.store, self.manifest, self._voided, self._rejected)
        self._expect_open()
        segments = self._in_objects(bucket.archive_objects(self.store, self.cluster), search, bucket.from_segment, keys)
        waiting = self._in_objects(bucket.waiting_objects(self.store, self.cluster), search, bucket.in_segment, keys)
        self._expect_open()
        quarantined = list(bucket.quarantine_records(self.store, self.cluster, search))
        self._erase_bytes(warehouse, [record.info.name for record in quarantined])
        for record in quarantined:
            bucket.erase_record(self.store, record, number)
        incomplete = bucket.incomplete_rows(self.store, self.cluster, search, erase=True)
        events, not_erased = self._events_outside(warehouse, erase=True)
        records = sum(1 for shard in self.shards() for _ in self._records(shard))
        state = self._rewrite_state(until)
        failed: dict[str, str] = {}
        rows = {
            name: found
            for name, gone in self._places(warehouse).items()
            if (found := self._of_one_table(name, failed, partial(self._erase_rows, warehouse, name, gone))) is not None
        }
        left = self._unreached(warehouse, failed)
        troubles = [
            *self._other_lives(),
            *not_erased,
            *self._undeleted,
            *(f"{each.object}: {each.trouble}" for each in segments if each.trouble),
        ]
        troubles += _of_tables(failed)
        outcome = Outcome(
            table=self.request.table,
            batch=number,
            done=True,
            segments=segments,
            waiting=waiting,
            pieces=len(quarantined),
            touched=incomplete,
            events=events,
            records=records,
            rows=rows,
            troubles=troubles,
            beyond=[each.text for each in left],
            unreached=left,
        )
        log.info("key erased", batch=number, table=self.request.table, segments=len(segments), records=records, rows=sum(rows.values()))
        return state, outcome

    def seal(self, written: dict[tuple[str, int], Written]) -> Sealed:
        assert self.manifest is not None
        state = dict(self.base.state)
        for (name, bucket_of_key), after in written.items():
            state[name] = state[name].after({bucket_of_key: after})
        return self.base.model_copy(
            update={
                "number": self.manifest.number,
                "kind": self.manifest.kind,
                "sealed_at": datetime.now(UTC),
                "segments": [],
                "accounting": [],
                "state": state,
                "snapshots_refused": {},
                "events": 0,
                "totals": (self.base.totals or Totals()).and_of(self.manifest.kind, (), (), ()),
                "voided": self._voided,
            }
        )

    @cached_property
    def _voided(self) -> dict[int, UUID | None]:
        """The voided batches before this one, which no void changes any more."""
        assert self.manifest is not None, "it only searches"
        return voided_before(self.store, self.manifest, self.base)

    @property
    def _rejected(self) -> Rejected:
        """Batches that rejected the table. It has to be readable now."""
        found = voids.rejected(self.base)
        return {table.id: found[table.id] for table in self.incarnations if table.id in found}

    def _expect_open(self) -> None:
        if self.manifest is not None:
            Fence(self.store, self.cluster).check(self.manifest.number)

    # --- objects of the bucket

    def _in_objects(self, objects: list[str], search: Search, look: Callable[..., Found], keystore: Any) -> list[Found]:
        """The results for objects that hold the key or could not be searched."""

        def each(store: Store, some: list[str]) -> list[Found]:
            keys = None if keystore is None else Keystore.from_environment(keystore)
            return [look(store, name, search, keys) for name in some]

        found = self.spread([objects[at : at + _PER_TASK] for at in range(0, len(objects), _PER_TASK)], each)
        return [each for some in found for each in some if each.frames or each.trouble]

    def spread(self, items: list[T], work: Callable[[Store, T], Any]) -> list[Any]:
        """Run the work for each item in a worker, one task each."""
        url = self.config.bucket
        if not items:
            return []
        return self.spark.sparkContext.parallelize(items, len(items)).map(lambda item: work(open_store(url), item)).collect()

    def _events_outside(self, warehouse: Warehouse, *, erase: bool) -> tuple[int, list[str]]:
        """The number of objects outside the tables that hold events of the key: oversized events, unsent
        events, and files of events, which are rewritten without them if `erase`; and what could not be
        erased. Call it before the tables are changed, which identify these events."""
        found, troubles = 0, []
        for table in self.incarnations:
            if (name := warehouse.changes_of(table)) is None:
                continue
            places = [(row[0], row[1]) for row in self._matching(name, "t.batch, t.ordinal")]
            aside = [each for place in places for each in self._set_aside(table, *place)]
            found += len(aside)
            if erase:
                for each in aside:
                    self._delete(each)
            if self.config.files is not None:
                store = open_store(self.config.files.url)
                files = files_with(store, table, places)
                found += len(files)
                troubles += [trouble for each in files if erase and (trouble := _without_events(store, each, places))]
        former, of_files = self._of_former_chains(erase=erase)
        return found + former, [*troubles, *of_files]

    def _of_former_chains(self, *, erase: bool) -> tuple[int, list[str]]:
        """The same of events that a rebuild took out of the changes tables; not counted are those that cannot be read."""
        mine, troubles = self._former_claims()["mine"], list[str]()
        for name in mine if erase else ():
            erased_events.delete_claim(self.store, name)
        files = self._former_files()
        for name in files if erase else ():
            if trouble := self._without_key(name):
                troubles.append(trouble)
        return len(mine) + len(files), troubles

    def _former_claims(self) -> dict[erased_events.Verdict, list[str]]:
        """Objects with an event of an earlier chain, by whose they are."""
        found: dict[erased_events.Verdict, list[str]] = {"mine": [], "another's": [], "unknown": []}
        if self.config.kafka is not None:
            topic = envelope.topic(self.config.kafka.topic_prefix, *self.request.table.split(".", 1))
            if names := erased_events.former_claims(self.store, self.cluster, topic):
                key = self._key_in_events
                for name, verdict in self._of_each(names, lambda store, name: erased_events.verdict_of(store, name, key)):
                    found[verdict].append(name)
        return found

    def _former_files(self) -> list[str]:
        """Files of events of earlier chains that have events of the key."""
        if self.config.files is None:
            return []
        url, table = self.config.files.url, self.request.table.split(".", 1)
        if not (names := erased_events.former_files(self.store, self.cluster, open_store(url), *table)):
            return []
        key = self._key_in_events
        return [name for name, has in self._of_each(names, lambda _, name: erased_events.has_key(open_store(url), name, key)) if has]

    def _of_each(self, names: list[str], look: Callable[[Store, str], T]) -> Iterator[tuple[str, T]]:
        """What workers say of each object."""
        some = [names[at : at + _PER_TASK] for at in range(0, len(names), _PER_TASK)]
        found = self.spread(some, lambda store, part: [look(store, name) for name in part])
        yield from zip(names, (each for part in found for each in part), strict=True)

    def _without_key(self, name: str) -> str:
        """The error, or ""."""
        assert self.config.files is not None
        try:
            erased_events.without_key(open_store(self.config.files.url), name, self._key_in_events)
        except WritetimeError as error:
            return str(error)
        return ""

    def _set_aside(self, table: Table, batch: int, ordinal: int) -> Iterator[str]:
        """Objects with an event that was too large for its topic or was not sent."""
        if self.config.kafka is None:
            return
        topic = envelope.topic(self.config.kafka.topic_prefix, table.keyspace, table.name)
        claim, stem = layout.claim(topic, batch, ordinal), layout.unpublishable(self.cluster, topic, batch, ordinal)
        yield from (info.name for info in self.store.list(claim) if info.name.removeprefix(claim)[:1] in ("", "~"))
        yield from (info.name for info in self.store.list(f"{stem}."))

    def _delete(self, name: str) -> None:
        with suppress(ObjectNotFound):
            self.store.delete(name)

    # --- state

    def shards(self) -> Iterator[ShardOf]:
        """The shards that hold or would hold the key, at the versions that the base names."""
        for table in self.incarnations:
            versions = self.base.state.get(str(table.id))
            if versions is None or not versions.buckets:
                continue
            bucket_of_key = key_bucket(self.request.key, len(versions.buckets))
            if version := versions.buckets[bucket_of_key]:
                place = self.cluster, str(table.id), versions.generation, bucket_of_key, versions.of
                uri = self.config.state_url(layout.state_shard(*place))
                yield ShardOf(table, bucket_of_key, uri, version, layout.state_lease(*place))

    def _records(self, shard: ShardOf) -> Iterator[tuple[bytes, bytes]]:
        start = record_key(self.request.key) if self.row is None else record_key(self.request.key, self.row)
        end = start + (b"\xff" if self.row is None else b"\0")
        return Shard(shard.uri, shard.version).scan(start, end)

    def _rewrite_state(self, until: int) -> dict[tuple[str, int], Written]:
        assert self.manifest is not None
        number, schema, search = self.manifest.number, self.schema, self.search(until)

        def work(store: Store, shard: ShardOf) -> tuple[tuple[str, int], Written]:
            order = ClusteringOrder(shard.table, schema.types)

            def gone(record: bytes, state: bytes) -> bool:
                return search.is_record(record) and _latest(record, state, order) <= until

            written = rewrite(shard.uri, shard.version, number, gone, store, shard.lease)
            return (str(shard.table.id), shard.bucket), written

        return dict(self.spread(list(self.shards()), work))

    # --- tables

    def _warehouse(self) -> Warehouse:
        if self.config.catalog is None:
            raise ConfigError("`catalog` is missing", operation=_OPERATION, hint="Say in the pipeline's YAML where the tables live.")
        if self.manifest is None:
            return Warehouse.of(self.config, self.store, self.spark)
        return Warehouse.of_batch(self.config, self.store, self.spark, self.manifest, Fence(self.store, self.cluster))

    def _tables(self, warehouse: Warehouse) -> list[str]:
        named = ((warehouse.changes_of(table), warehouse.current_of(table)) for table in self.incarnations)
        return [name for pair in named for name in pair if name is not None]

    def _places(self, warehouse: Warehouse) -> dict[str, Voided]:
        """The tables by name, and the batches whose rows of them do not count."""
        return {
            name: {**self._voided, **self._rejected.get(table.id, {})}
            for table in self.incarnations
            for name in (warehouse.changes_of(table), warehouse.current_of(table))
            if name is not None
        }

    @cached_property
    def _shown_key(self) -> pa.Table:
        """The key as in the tables: masked where the rules say so."""
        table, types = self.incarnations[0], self.schema.types
        rules = self.config.columns.rules.of(table, types)
        view, shape = TableView(table, types), RowShape.of(rules.shown(), self.schema)
        wanted = [c.name for c in (*table.partition_key, *(table.clustering if self.request.row is not None else ()))]
        values = view.key_values(self.request.key, self.request.row)
        shown = shape.values(rules.compiled()({name: values[name] for name in wanted}))
        assert shown is not None
        return pa.Table.from_pylist([shown], schema=pa.schema([shape.key_type.field(column) for column in shown]))

    @property
    def _key_in_events(self) -> KeyInEvents:
        (shown,) = self._shown_key.to_pylist()
        table, types = self.incarnations[0], self.schema.types
        columns = [*table.partition_key, *table.clustering][: len(shown)]
        return KeyInEvents.of(shown, {column.name: parse_type(column.type, table.keyspace, types) for column in columns})

    @contextmanager
    def _key_view(self) -> Iterator[str]:
        view, key = f"key_{uuid4().hex}", self._shown_key
        self.spark.createDataFrame(key, schema=from_arrow_schema(key.schema)).createOrReplaceTempView(view)
        try:
            yield view
        finally:
            self.spark.catalog.dropTempView(view)

    def _is_key(self, name: str) -> str:
        """SQL: whether a row `t` of the table has the key `s`."""
        side = "t.key" if "batch" in self.spark.table(name).columns and "key" in self.spark.table(name).columns else "t"
        return " AND ".join(f"{comparable(side, field)} <=> {comparable('s', field)}" for field in self._shown_key.schema)

    def _matching(self, name: str, columns: str, where: str = "", of: str | None = None) -> list[Any]:
        """`of`: the table, if `name` is that of one of its snapshots."""
        with self._key_view() as view:
            more = f" WHERE {where}" if where else ""
            statement = f"SELECT {columns} FROM {name} t JOIN {view} s ON {self._is_key(of or name)}{more}"  # noqa: S608
            return self.spark.sql(statement).collect()

    def _count(self, name: str, where: str) -> int:
        ((count,),) = self._matching(name, "count(*)", where)
        return int(count)

    def _erase_rows(self, warehouse: Warehouse, name: str, gone: Voided) -> int:
        """Delete the key's rows and all files that held them; returns the number of rows."""
        self._expect_open()
        # Rows that it writes on top cannot be taken back apart from the deletes.
        warehouse.expect_taken_back(name, gone)
        if count := self._count(name, ""):
            with self._key_view() as view:
                self.spark.sql(f"MERGE INTO {name} t USING {view} s ON {self._is_key(name)} WHEN MATCHED THEN DELETE")
        self._expect_open()
        self._scrub(warehouse, name, gone)
        return count

    def _scrub(self, warehouse: Warehouse, name: str, gone: Voided) -> None:
        if left := scrub(self.spark, name, datetime.now(UTC) + _AHEAD, lambda: warehouse.expect_taken_back(name, gone)):
            listed = f"{left[0]}{f' and {len(left) - 1} more' if left[1:] else ''}"
            self._undeleted.append(
                f"{name.replace('`', '')}: files of older snapshots are still there, as the store or the catalog refuses to "
                f"delete them; delete them yourself: {listed}"
            )

    def _erase_bytes(self, warehouse: Warehouse, names: Iterable[str]) -> None:
        """Erase the bytes of quarantine records in the quarantine table."""
        listed = ", ".join(_text(name) for name in names)
        name = warehouse.quarantine()
        if not listed or name is None:
            return
        self._expect_open()
        where = f"cluster = {_text(self.cluster)} AND name IN ({listed}) AND bytes IS NOT NULL"
        self.spark.sql(f"UPDATE {name} SET bytes = NULL WHERE {where}")  # noqa: S608
        self._scrub(warehouse, name, self._voided)


def _of_tables(failed: Mapping[str, str]) -> list[str]:
    """What failed, by the tables' names, as texts."""
    return [f"table {name.replace('`', '')}: {reason}" for name, reason in failed.items()]


def _key_types(table: Table) -> list[tuple[str, str, bool]]:
    return [(column.kind, column.type, column.descending) for column in (*table.partition_key, *table.clustering)]


def _latest(record: bytes, state: bytes, order: ClusteringOrder) -> int:
    """The greatest writetime (µs) in a record of the state."""
    if split_record_key(record)[1] == HEAD:
        update = decode_head(state, order).update
        return max_timestamp(update if update is not None else PartitionUpdate(order.table.id, b""))
    return max_timestamp(PartitionUpdate(order.table.id, b"", rows=(row_codec.decode(state),)))


def _without_events(store: Store, name: str, places: Iterable[tuple[int, int]]) -> str:
    """The error, or ""."""
    try:
        without_events(store, name, places)
    except WritetimeError as error:
        return str(error)
    return ""


def _text(value: str) -> str:
    return "'" + value.replace("\\", "\\\\").replace("'", "\\'") + "'"
