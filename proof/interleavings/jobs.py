"""What stands in for Spark: batches and publishing of a few small mutations, around the same commits.

Strategy: a segment is a JSON list of mutations, [table, key, writetime, value], value null for a delete. `SmallBatch` and
`SmallOutbox` replace the stages that Spark runs, reading, merging, and encoding; planning, pinned decisions, fences,
commits, seals, progress and leases are the product's. `installed` puts them, and the doubles, in their places. Knows
no schedule, and no driver."""

from __future__ import annotations

import json
import logging
import pickle
import re
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from itertools import count
from types import SimpleNamespace
from typing import Any, Final, NamedTuple
from unittest import mock
from uuid import UUID

import structlog

from proof.doubles.broker import Broker
from proof.doubles.broker import Fault as BrokerFault
from proof.doubles.broker import installed as broker_installed
from proof.doubles.warehouse import Catalog, DoubleCatalog, DoubleEvents, DoubleWarehouse, IcebergError, state_unknown
from proof.interleavings.world import Current, World
from proof.interleavings.world import installed as world_installed
from proof.interleavings.writes import rules_of
from spark_jobs import erase, ingest, maintain, publish, rebuild, stream
from spark_jobs.sinks.kafka import RECORDS
from spark_jobs.stages import erase_key
from spark_jobs.stages.erase_key import Erasing, ShardOf
from spark_jobs.state import shards
from spark_jobs.state.shards import Written
from tests.cassandra.schema.examples import create_keyspace, create_table
from tests.storage.memory import Fault, MemoryStore
from writetime import storage
from writetime.cassandra.commitlog.encode import encode_mutation
from writetime.cassandra.schema.model import Column, Schema, Table
from writetime.cassandra.schema.system_tables import TABLES
from writetime.config.pipeline import PipelineConfig
from writetime.errors import BatchError, LeaseLost, ObjectNotFound, PreconditionFailed, StoreError
from writetime.pipeline import erase as bucket_erase
from writetime.pipeline import erasures, node_logs, pinned
from writetime.pipeline.documents import Problem, Sealed, SegmentOutcome, Watermark
from writetime.pipeline.erase import Found, Search
from writetime.pipeline.erasures import Erased
from writetime.pipeline.quarantine.kinds import QuarantineKind
from writetime.storage import layout, segment_object
from writetime.storage.checksum import crc32c
from writetime.storage.lease import Lease

CLUSTER: Final = "ring"
PREFIX: Final = "t"


def _table(name: str, table_id: str) -> Table:
    columns = {"id": Column("id", "partition_key", "text", 0), "value": Column("value", "regular", "text")}
    return Table("shop", name, UUID(table_id), columns, cdc=True)


ORDERS: Final = _table("orders", "6cbda380-e583-11f1-817f-f173fd8e050e")
USERS: Final = _table("users", "7cbda380-e583-11f1-817f-f173fd8e050e")
IDS: Final = {table.full_name: table.id for table in (ORDERS, USERS)}
_LONG_AGO: Final = 1_700_000_000_000_000
_DDL: Final = [
    encode_mutation(each, Schema(tables=TABLES))
    for each in (create_keyspace("shop", _LONG_AGO), create_table(ORDERS, _LONG_AGO + 1), create_table(USERS, _LONG_AGO + 2))
]


class Mutation(NamedTuple):
    table: str
    key: str
    at: int
    value: str | None


def segment(mutations: Iterable[Mutation], *, with_schema: bool = False) -> bytes:
    return json.dumps({"schema": with_schema, "mutations": [list(each) for each in mutations]}).encode()


def mutations_of(data: bytes) -> list[Mutation]:
    """What can be read of a segment."""
    document = json.loads(data)
    return [] if document.get("damaged") else [Mutation(*each) for each in document["mutations"]]


def kind_of(data: bytes | None) -> QuarantineKind | None:
    """What is wrong with a segment; None if all of it can be read."""
    if data is None:
        return QuarantineKind.GONE
    return QuarantineKind.UNREADABLE_SECTION if json.loads(data).get("damaged") else None


def damaged(data: bytes) -> bytes:
    """The segment, so that nothing of it can be read."""
    return json.dumps({**json.loads(data), "damaged": True}).encode()


def newer(one: Mutation, other: Mutation | None) -> bool:
    """Whether the first wins: by writetime, then a delete, then the greater value, as cells do."""
    if other is None:
        return True
    return (one.at, one.value is None, one.value or "") > (other.at, other.value is None, other.value or "")


# --- the state


class Shards:
    """All versions of all shards: records by key."""

    def __init__(self, step: Callable[[str], None]) -> None:
        self.step = step
        self.versions: dict[str, dict[int, dict[bytes, bytes]]] = defaultdict(dict)

    def of(self, uri: str) -> dict[int, dict[bytes, bytes]]:
        """The versions of a shard, wherever its bucket is."""
        return self.versions[uri.partition("/")[2]]

    def newest(self, uri: str) -> int:
        return max(self.of(uri), default=0)

    def remove(self, uri: str, goes: Callable[[int], bool]) -> int:
        """Remove versions; how many."""
        gone = [version for version in self.of(uri) if goes(version)]
        for version in gone:
            del self.of(uri)[version]
        return len(gone)

    def at(self, uri: str, version: int) -> dict[bytes, bytes]:
        self.step(f"state: read {_short(uri)}")
        if version and version not in self.of(uri):
            raise BatchError(f"version {version} is gone", operation="open a state shard", obj=uri)
        return dict(self.of(uri)[version]) if version else {}


def chain_over(of: Callable[[], Shards]) -> type:
    """What stands in for Lance in `shards.upsert`: each commit is the very next version, on top of a base."""

    class Chain:
        def __init__(self, uri: str, base: int, lease: Any) -> None:
            self.uri, self.base, self.version, self._lease = uri, base, base, lease

        def write(self, records: Iterable[Any]) -> None:
            found = of().at(self.uri, self.base)
            for batch in records:
                for key, state in zip(batch["key"].to_pylist(), batch["state"].to_pylist(), strict=True):
                    if state:
                        found[key] = state
                    else:
                        found.pop(key, None)
            self._commit(found)

        def rewrite(self, gone: Callable[[bytes, bytes], bool]) -> None:
            self._commit({key: state for key, state in of().at(self.uri, self.base).items() if not gone(key, state)})

        def _commit(self, found: dict[bytes, bytes]) -> None:
            held = of()
            # What an attempt has left on top of the base is restored first.
            before = held.newest(self.uri)
            self._lease.check()
            held.step(f"state: commit {_short(self.uri)}")
            # A number whose version was removed is free again, as in Lance.
            if before + 1 in held.of(self.uri):
                raise LeaseLost("another process has written to the shard", operation="write a state shard", obj=self.uri)
            self.version = before + 1
            held.of(self.uri)[self.version] = found

        def tidy(self) -> None:
            """There are no files."""

    return Chain


def _short(uri: str) -> str:
    return "/".join(uri.rsplit("/", 3)[-3:])


class NoExpiry:
    """What `shards.rewrite` asks of what it has written."""

    def __init__(self, *_: object) -> None:
        pass

    def earliest_expiry(self) -> None:
        """Nothing expires."""


def cleaning(of: Callable[[], Shards]) -> Callable[..., int]:
    """What stands in for `shards.cleanup`: versions that nobody names are gone, but those after all that are named."""

    def cleanup(uri: str, keep_versions: Iterable[int], store: Any, lease: str, **timing: float) -> int:
        held = of()
        with Lease(store, lease, **timing) as taken:
            kept = {*keep_versions, *(taken.notes[name] for name in ("version", "base") if name in taken.notes)}
            held.step(f"state: clean {_short(uri)}")
            return held.remove(uri, lambda version: version not in kept and version < max(kept, default=0))

    return cleanup


def forgetting(of: Callable[[], Shards]) -> Callable[..., int]:
    """What stands in for `shards.forget`: the versions before that one are gone."""

    def forget(uri: str, version: int, store: Any, lease: str, **timing: float) -> int:
        held = of()
        with Lease(store, lease, **timing):
            if held.newest(uri) != version:
                raise LeaseLost(f"version {held.newest(uri)} came after", operation="forget a shard's past", obj=uri)
            held.step(f"state: forget {_short(uri)}")
            return held.remove(uri, lambda each: each < version)

    return forget


# --- ingest


@dataclass
class SmallSurvey:
    """What the batch's segments hold, by index; None: a segment that is not there."""

    found: dict[int, bytes | None]

    @property
    def counts(self) -> Mapping[str, int]:
        return {"problem": 0}

    def rows(self, kind: str, *_: str) -> Iterator[Any]:
        for index, data in self.found.items():
            if kind == "schema" and data is not None and json.loads(data)["schema"]:
                yield from (SimpleNamespace(segment=index, position=at, body=body) for at, body in enumerate(_DDL, start=1))

    @property
    def absent(self) -> list[int]:
        return [index for index, data in self.found.items() if data is None]


@dataclass
class SmallFolded:
    """By table id and bucket: the records that change, and the events in their order."""

    records: dict[UUIDBucket, list[tuple[bytes, bytes]]] = field(default_factory=dict)
    events: dict[Any, list[dict[str, Any]]] = field(default_factory=dict)


UUIDBucket = tuple[Any, int]


class SmallFiles(ingest.WrittenFiles):
    def events_of(self, table: Table, count: int) -> Any:
        return self.events[table.id]


_NO_ROW: Final[Mapping[str, Any]] = {"before": None, "after": None, "ts_micro": 0, "writetime": {}, "expires_at": {}}


def _row(key: str, value: str | None) -> dict[str, str] | None:
    return None if value is None else {"id": key, "value": value}


class SmallBatch(ingest.Batch):
    """A batch whose stages run in the driver."""

    def _merged(self) -> Any:
        self.absent = pinned.absent(self.store, self.manifest)
        surveyed = SmallSurvey(dict(self._read()))
        self._pin_absent(surveyed)
        schema, captured = self._learn(surveyed)  # type: ignore[arg-type]
        self._expect_open()
        self.local = node_logs.settle(self.store, self.manifest, self.base, (), captured, self.logged)
        return surveyed, self._small_merge(surveyed, captured), schema, captured

    def _read(self) -> Iterator[tuple[int, bytes | None]]:
        for index, each in enumerate(pinned.as_pinned(self.manifest.segments, self.absent)):
            try:
                yield index, None if self.absent and each.object in self.absent else self._content(each)
            except ObjectNotFound:
                yield index, None

    def _content(self, each: Any) -> bytes:
        """Where it was, or where another driver has archived it, as a scan looks for it."""
        try:
            return segment_object.read_pinned(self.store, each.object, each.crc32c)
        except ObjectNotFound:
            return segment_object.read_pinned(self.store, each.ref.archived(each.sealed_at), each.crc32c)

    def _with_problem(self, surveyed: Any, kind: QuarantineKind, where: str = "true") -> set[str]:
        return {self.manifest.segments[index].object for index in surveyed.absent} if kind is QuarantineKind.GONE else set()

    def _small_merge(self, surveyed: SmallSurvey, captured: list[Table]) -> SmallFolded:
        news: dict[str, dict[str, Mutation]] = defaultdict(dict)
        came: dict[str, int] = defaultdict(int)
        erased = self._erased()
        for data in surveyed.found.values():
            for each in mutations_of(data) if data is not None else ():
                came[each.table] += 1
                if is_erased(each, erased):
                    continue
                if newer(each, news[each.table].get(each.key)):
                    news[each.table][each.key] = each
        folded = SmallFolded()
        for table in captured:
            self._merge_table(table, news.get(table.full_name, {}), folded)
            if table.id in self._again:
                self._show_again(table, news.get(table.full_name, {}), folded)
            self.accounts[table.label]["duplicate"] = came[table.full_name] - len(news.get(table.full_name, {}))
        return folded

    def _merge_table(self, table: Table, news: Mapping[str, Mutation], folded: SmallFolded) -> None:
        (place,) = self._shards(table).items()
        (_, bucket), (uri, version) = place
        before = {key.decode(): Mutation(*json.loads(state)) for key, state in held_shards(self.spark).at(uri, version).items()}
        records, events = [], []
        for key, each in sorted(news.items()):
            old = before.get(key)
            if not newer(each, old):
                self.accounts[table.label]["superseded"] += 1
                continue
            self.accounts[table.label]["applied"] += 1
            records.append((key.encode(), json.dumps(list(each)).encode()))
            was = old.value if old is not None else None
            if was is not None or each.value is not None:
                op = "d" if each.value is None else "c" if was is None else "u"
                about = {"op": op, "key": {"id": key}, "before": _row(key, was), "after": _row(key, each.value), "ts_micro": each.at}
                events.append({**about, "last": True, "writetime": {}, "expires_at": {}})
        if records:
            folded.records[table.id, bucket] = records
        if events:
            folded.events[table.id] = events
        self.accounts[table.label]["events"] += len(events)

    def _show_again(self, table: Table, news: Mapping[str, Mutation], folded: SmallFolded) -> None:
        """All rows anew, before what has changed in this batch."""
        ((_, (uri, version)),) = self._shards(table).items()
        before = {key.decode(): Mutation(*json.loads(state)) for key, state in held_shards(self.spark).at(uri, version).items()}
        emits, changed = self._again[table.id], folded.events.get(table.id, [])
        rows = [{**_NO_ROW, "op": "t", "key": None, "last": False}] if emits else []
        touched = {event["key"]["id"] for event in changed}
        for key, each in sorted(before.items()):
            if each.value is not None:
                about = {"op": "c", "key": {"id": key}, "after": _row(key, each.value), "ts_micro": each.at}
                rows.append({**_NO_ROW, **about, "last": key not in touched, "untold": not emits})
        folded.events[table.id] = [*rows, *changed]
        self.accounts[table.label]["events"] += len(rows) if emits else 0
        if not emits:
            self.untold.add(table.label)

    def _note_problems(self, surveyed: Any, folded: Any, schema: Any) -> None:
        for index, each in enumerate(self.manifest.segments):
            data = surveyed.found[index]
            mutations = [] if data is None else mutations_of(data)
            count = len(mutations)
            kind = kind_of(data)
            problems = [] if kind is None else [Problem(kind=kind, position=0, size=each.size, message=kind.value)]
            problems += self._of_rejected(mutations)
            self.outcomes[index] = SegmentOutcome(object=each.object, frames=count, updates=count, problems=problems)

    def _of_rejected(self, mutations: Iterable[Mutation]) -> Iterator[Problem]:
        for at, mutation in enumerate(mutations, start=1):
            if (table_id := IDS[mutation.table]) in self.refused:
                kind = QuarantineKind.SCHEMA_ERROR
                yield Problem(kind=kind, position=at, size=1, message=self.refused[table_id].reason, table_id=table_id)

    def _typed_events(self, folded: Any, schema: Any, captured: Any) -> Any:
        events = {}
        for table in captured:
            ordinals = count(1)
            rows = [{"ordinal": None if row.pop("untold", False) else next(ordinals), **row} for row in folded.events.get(table.id, ())]
            events[table.id.bytes] = rows
        return DoubleEvents(events), []

    def _write_files(self, events: Any, of_no_rows: Any, schema: Any, captured: Any) -> Any:
        written = super()._write_files(events, of_no_rows, schema, captured)
        return SmallFiles(written.writes, written.events, written.emitted)

    def _write_shards(self, folded: Any, captured: Any) -> dict[bytes, dict[int, Written]]:
        written: dict[bytes, dict[int, Written]] = defaultdict(dict)
        for table in captured:
            for (table_id, bucket), (uri, base) in self._shards(table).items():
                if records := folded.records.get((table.id, bucket)):
                    batch = shards.in_batches(shards.Record(key, state, None) for key, state in records)
                    after = shards.upsert(uri, base, self.manifest.number, batch, self.store, self._lease(table, bucket))
                    written[table_id][bucket] = after
        return written

    def _note_undecided(self, folded: Any) -> None:
        """No TRUNCATE is undecided."""


class SmallWarehouse(DoubleWarehouse):
    """The double, made with a session as jobs make it."""

    def __init__(self, spark: NoSpark, *given: Any, **named: Any) -> None:
        super().__init__(spark.tables, *given, **named)
        self._taken = spark.place.taken

    def rejection_reason(self, table: Table) -> str | None:
        return "it belongs to somebody else" if table.full_name in self._taken else super().rejection_reason(table)


# --- an erasure


def is_erased(mutation: Mutation, erased: Mapping[bytes, Erased]) -> bool:
    found = erased.get(IDS[mutation.table].bytes)
    until = None if found is None else found.partitions.get(erasures.digest(found.salt, mutation.key.encode()))
    return until is not None and mutation.at <= until


def looked(name: str, content: bytes, search: Search, _: object) -> tuple[Found, bytes]:
    """What the segment holds of the key, and the segment without it: in place of `writetime.pipeline.erase._looked`."""
    document = json.loads(content)
    left = [each for each in document["mutations"] if not is_erased(Mutation(*each), search.erased)]
    gone = len(document["mutations"]) - len(left)
    return Found(object=name, frames=gone), json.dumps({**document, "mutations": left}).encode() if gone else content


class SmallErasing(Erasing):
    """An erasure whose tasks run in the driver."""

    @property
    def _key(self) -> str:
        return self.request.key.decode()

    def _records(self, shard: ShardOf) -> Iterator[tuple[bytes, bytes]]:
        records = held_shards(self.spark).at(shard.uri, shard.version)
        return ((key, state) for key, state in records.items() if key == self.request.key)

    def _shows(self, table: Table, record: bytes, state: bytes, now: int) -> bool:
        return Mutation(*json.loads(state)).value is not None

    def _rewrite_state(self, until: int) -> dict[tuple[str, int], Written]:
        assert self.manifest is not None

        def gone(record: bytes, state: bytes) -> bool:
            return record == self.request.key and Mutation(*json.loads(state)).at <= until

        return {
            (str(shard.table.id), shard.bucket): shards.rewrite(
                shard.uri, shard.version, self.manifest.number, gone, self.store, shard.lease
            )
            for shard in list(self.shards())
        }

    def _matching(self, name: str, columns: str, where: str = "") -> list[Any]:
        since = int(where.rpartition(" ")[2]) if where else 0
        rows = self.spark.tables.load(name).snapshot  # type: ignore[attr-defined]
        found = [row for row in (rows.rows if rows is not None else ()) if self._is_it(row) and row.get("batch", 1) > since]
        return [(len(found),)] if columns == "count(*)" else [(row["batch"], row["ordinal"]) for row in found]

    def _is_it(self, row: Mapping[str, Any]) -> bool:
        of_event = row.get("key", row)
        return bool(of_event is not None and of_event["id"] == self._key)

    def _references(self, name: str) -> Iterator[Any]:
        yield from ()

    @contextmanager
    def _key_view(self) -> Iterator[str]:
        yield "key"

    def _is_key(self, name: str) -> str:
        return self._key


# --- publishing


class SmallOutbox(publish.Outbox):
    """An outbox whose events are encoded and sent in the driver."""

    def _used(self, found: Any, known: Any, part: Any) -> Any:
        """Of all incarnations, with their events counted as publishers read them."""
        each = (
            (self._spans_of(incarnation, self._since(known, name), part), incarnation)
            for name, some in found.items()
            for incarnation in some
        )
        return [publish.Used(incarnation, [], Counter() if spans is None else spans.events) for spans, incarnation in each]

    def _encoders(self, used: Any, left_out: Any, by: Any) -> Any:
        each = ((incarnation.table.id, SimpleNamespace(topic=incarnation.topic)) for incarnation, *_ in used)
        return dict(each), {}

    def _table_records(self, tables: Any, part: Any) -> Any:
        found: list[tuple[Any, ...]] = []
        for incarnation, encoder, since in tables:
            for row in incarnation.changes.rows.collect():
                if since < row["batch"] <= part.last and row["batch"] not in self.without_effect(incarnation.table.id):
                    found.append(record_of(encoder.topic, row, self.kafka.publishers))
        return found

    def _sent(self, records: Any) -> Any:
        ordered = sorted(records, key=lambda row: (row[0], row[3], row[1], row[4]))
        return [SimpleNamespace(sent=pickle.dumps(sent)) for sent in self._publisher.send_all(ordered)]


def record_of(topic: str, row: Mapping[str, Any], publishers: int) -> tuple[Any, ...]:
    value = {name: row[name] for name in ("batch", "ordinal", "op", "before", "after", "ts_micro")}
    key = None if row["key"] is None else row["key"]["id"].encode()
    about = {
        "publisher": sum(key or b"") % publishers,
        "stream": topic,
        "topic": topic,
        "batch": row["batch"],
        "ordinal": row["ordinal"],
        "key": key,
        "value": json.dumps(value).encode(),
        "op": row["op"],
        "deletes": row["op"] == "d",
        "refused": None,
        "placed_by": None,
    }
    return tuple(about[name] for name in RECORDS.names)


# --- the place


class SteppingStore(MemoryStore):
    """A store each of whose requests is a step, and whose clock is the world's, or `ahead` of it by some seconds. `unconditional`:
    names of objects that are written without a condition, as a sabotage has it; `lost`: what was written over by a driver that has
    not seen it, or was written once before."""

    unconditional: re.Pattern[str] | None = None

    def __init__(self, world: World) -> None:
        super().__init__()
        self._world = world
        self.ahead = 0.0
        self.watch: Callable[[bytes], None] | None = None
        self.lost: list[str] = []
        self._seen: dict[tuple[str, str], int] = {}

    def take(self, other: SteppingStore) -> None:
        """Hold what another one holds."""
        self._memory.objects, self._memory.last = dict(other._memory.objects), other._memory.last

    def objects(self) -> Mapping[str, Any]:
        return dict(self._memory.objects)

    def put_back(self, kept: Mapping[str, Any]) -> None:
        """Hold these objects again, as others of the same content and time."""
        there = self._memory.objects
        for name in there.keys() - kept.keys():
            del there[name]
        for name, (info, data) in kept.items():
            if there.get(name) != (info, data):
                self._memory.last += 1
                there[name] = replace(info, generation=self._memory.last), data

    def _require(self, name: str, wanted: int | None, operation: str) -> None:
        if self.unconditional is None or not self.unconditional.match(name):
            super()._require(name, wanted, operation)

    def _strike(self, method: str, name: str) -> Any:
        self._world.step(f"store: {method} {name}")
        if method in ("put", "copy", "delete") and self._world.takes_answer():
            # A client tries again, and may find what it has done itself.
            return Fault.LOST_ANSWER if self._world.random.random() < 0.5 else Fault.LOST_AND_REPEATED
        return super()._strike(method, name)

    def list(self, prefix: str = "", *, start_after: str = "") -> Iterator[Any]:
        for info in super().list(prefix, start_after=start_after):
            self._saw(info.name, info.generation)
            yield info

    def head(self, name: str) -> Any:
        info = super().head(name)
        self._saw(name, 0 if info is None else info.generation)
        return info

    def read(self, name: str, **about: Any) -> bytes:
        found = super().read(name, **about)
        self._saw(name, self._memory.objects[name][0].generation)
        return found

    def _keep(self, name: str, data: bytes, metadata: Mapping[str, str]) -> Any:
        driver, there = self._world.current_driver(), self._memory.objects.get(name)
        if driver is not None and there is not None:
            rules = rules_of(name)
            if rules == {"once"}:
                self.lost.append(f"{driver.name} has written over {name}")
            elif rules <= {"once", "generation"} and self._seen.get((driver.name, name)) != there[0].generation:
                self.lost.append(f"{driver.name} has written over {name} as it has not seen it")
        info = super()._keep(name, data, metadata)
        self._saw(name, info.generation)
        return info

    def _saw(self, name: str, generation: int) -> None:
        if (driver := self._world.current_driver()) is not None:
            self._seen[driver.name, name] = generation

    def put(self, name: str, data: Any, **about: Any) -> Any:
        done = super().put(name, data, **about)
        if name.startswith("complete/") and self.watch is not None:
            self.watch(data)
        return done

    def _created(self, generation: int) -> datetime:
        return datetime.fromtimestamp(self._world.now + self.ahead, UTC)


class NoSpark:
    """What is left of a Spark session: its parallelism, and what is closed at the end."""

    def __init__(self, place: Place) -> None:
        self.place = place
        self.tables = place.catalog
        self.sparkContext = SimpleNamespace(defaultParallelism=1, setJobGroup=lambda *_: None, parallelize=_InDriver)
        self.catalog = SimpleNamespace(clearCache=lambda: None)

    def sql(self, statement: str) -> None:
        """The statement by which an erasure deletes rows of a key."""
        found = re.fullmatch(r"MERGE INTO (\S+) t USING key s ON (\S+) WHEN MATCHED THEN DELETE", statement)
        assert found is not None, statement
        DoubleCatalog(self.tables).delete(found[1], lambda row: (row["key"]["id"] if "key" in row else row["id"]) == found[2])

    def stop(self) -> None:
        """There is nothing to stop."""


class _InDriver:
    """Tasks that run one after the other."""

    def __init__(self, wanted: Iterable[Any], _: int) -> None:
        self._wanted, self._calls = list(wanted), list[Callable[[Any], Any]]()

    def map(self, call: Callable[[Any], Any]) -> _InDriver:
        self._calls.append(call)
        return self

    def collect(self) -> list[Any]:
        found = self._wanted
        for call in self._calls:
            found = [call(each) for each in found]
        return found


class NoMeter:
    def __init__(self, *_: object, **__: object) -> None:
        pass

    def stage(self, *_: object) -> Callable[[Any], Any]:
        return lambda made: made

    share = stage

    def note(self, *_: object) -> None:
        pass

    def costs(self, **_: object) -> list[Any]:
        return []


class Nothing:
    """A part of a session that needs Spark, and concerns no other driver."""

    def __init__(self, *_: object, **__: object) -> None:
        pass

    def __getattr__(self, name: str) -> Callable[..., Any]:
        return lambda *_, **__: None

    @contextmanager
    def watching(self) -> Iterator[None]:
        yield


def held_shards(spark: Any) -> Shards:
    return spark.place.shards


@dataclass
class Place:
    """Where drivers run: one store, broker, warehouse, state and clock. `shipped`: all mutations so far; `logged`: errors;
    `logged_at`: when nodes had logged the segments; `early`: what was said to be complete too early; `counted`: by whoever held the
    lease of a counter; `taken`: the tables whose names in the warehouse somebody else has; `has_forgotten`: the record of publishing
    was put back to before a request to send a table again, of which something was sent."""

    world: World
    store: SteppingStore
    broker: Broker
    catalog: Catalog
    shards: Shards
    config: PipelineConfig
    begin: datetime
    segments: int = 0
    shipped: list[Mutation] = field(default_factory=list)
    logged: list[dict[str, Any]] = field(default_factory=list)
    logged_at: dict[str, datetime] = field(default_factory=dict)
    early: list[str] = field(default_factory=list)
    counted: list[int] = field(default_factory=list)
    taken: set[str] = field(default_factory=set)
    has_forgotten: bool = False

    @classmethod
    def create(cls, world: World) -> Place:
        store = SteppingStore(world)
        config = PipelineConfig.model_validate(
            {
                "pipeline": "small",
                "cluster": {"name": CLUSTER, "datacenters": ["dc1"]},
                "bucket": "bucket",
                "catalog": {"uri": "jdbc:sqlite:none", "warehouse": "none"},
                "kafka": {
                    "bootstrap.servers": "broker:1",
                    "topic.prefix": PREFIX,
                    "publishers": 2,
                    "heartbeat.interval.ms": 0,
                    "include.schema.changes": False,
                },
                "quarantine": {"topic": False},
                "airflow": {"session_poll_seconds": 1},
            }
        ).model_copy(update={"bucket": store.url})
        broker, catalog = Broker(world.clock), Catalog(world.date, step=world.step)
        return cls(world, store, broker, catalog, Shards(world.step), config, world.date())._watched()

    def _watched(self) -> Place:
        self.store.watch = self._expect_complete
        self.catalog.answered = self._answer
        self.broker.step = self._ask_broker
        return self

    def _ask_broker(self, what: str) -> None:
        self.world.step(what)
        if what.startswith(("broker: commit", "broker: init", "broker: produce")) and self.world.takes_answer():
            self.broker.fail(BrokerFault.LOST_ANSWER)

    def _answer(self, _: str) -> None:
        if self.world.takes_answer():
            raise state_unknown()

    def _expect_complete(self, document: bytes) -> None:
        """Note if the time that is said to be complete is later than that of a segment which no sealed batch has."""
        until = Watermark.model_validate_json(document).until
        if until is None:
            return
        with self.world.unhindered():
            known = {layout.plain(name) for name in self._ingested()}
        for name, at in self.logged_at.items():
            if at < until and name not in known:
                self.early.append(f"complete until {until:%H:%M:%S}, and {name} of {at:%H:%M:%S} is in no sealed batch")

    def _ingested(self) -> Iterator[str]:
        """The segments of the sealed batches that take effect, by their names under cdc/."""
        for info in list(self.store.names("batches/")):
            if info.name.endswith("/sealed.json"):
                found = Sealed.model_validate_json(self.store.read(info.name))
                yield from (outcome.object for outcome in found.segments if found.void is None)

    def copied(self, world: World) -> Place:
        """The same in another world."""
        world.now = self.world.now
        world.random.setstate(self.world.random.getstate())
        store = SteppingStore(world)
        store.take(self.store)
        shards_ = Shards(world.step)
        shards_.versions.update({uri: dict(versions) for uri, versions in self.shards.versions.items()})
        return replace(
            self,
            world=world,
            store=store,
            broker=self.broker.copied(world.clock),
            catalog=self.catalog.copied(world.date, world.step),
            shards=shards_,
            config=self.config.model_copy(update={"bucket": store.url}),
            shipped=list(self.shipped),
            logged=[],
            logged_at=dict(self.logged_at),
            early=[],
            counted=[],
            taken=set(),
            has_forgotten=False,
        )._watched()

    def spark(self) -> Any:
        return NoSpark(self)

    def backup(self) -> Callable[[], None]:
        """Keep what the bucket and the state hold, until it is put back."""
        kept = self.store.objects()
        versions = {uri: dict(each) for uri, each in self.shards.versions.items()}

        def put_back() -> None:
            self.store.put_back(kept)
            self.shards.versions.clear()
            self.shards.versions.update(versions)

        return put_back

    def ship(self, mutations: Iterable[Mutation], *, with_schema: bool = False, is_damaged: bool = False) -> str:
        """Put the next segment where shippers put them."""
        some, logged_at = [Mutation(*each) for each in mutations], self.world.date()
        ref = segment_ref(self.segments + 1)
        try:
            content = segment(some, with_schema=with_schema)
            self._put(ref.incoming, damaged(content) if is_damaged else content)
        except StoreError:
            # The answer may be lost, and it is there.
            if self.store.head(ref.incoming) is None:
                raise
        self.segments += 1
        self.shipped += [] if is_damaged else some
        self.logged_at[ref.incoming] = logged_at
        self._sign_off()
        return ref.incoming

    def upload(self, number: int, mutations: Iterable[Mutation]) -> None:
        """Put a segment of that number, whoever has done so before; beside other bytes of that name, if there are some."""
        ref = segment_ref(number)
        found = segment(map(Mutation._make, mutations))
        try:
            self._put(ref.incoming, found)
        except PreconditionFailed:
            there = self.store.head(ref.incoming)
            if there is not None and there.crc32c != crc32c(found):
                self._put(ref.conflict(crc32c(found)), found)

    def _put(self, name: str, content: bytes) -> None:
        about = {"sealed_at": self.world.date().isoformat(), "ending": "completed"}
        self.store.put(name, content, if_generation=0, metadata=about)

    def _sign_off(self) -> None:
        """The shipper says that it has shipped everything so far."""
        at = self.world.date()
        about = {"at": at.isoformat(), "unsynced_ms": 0, "members": {NODE.datacenter: [NODE.host_id]}}
        status = {"host_id": NODE.host_id, "signed_off": about}
        self.store.put(layout.node_status(NODE, at, f"{self.segments:08x}"), json.dumps(status).encode())

    def rows(self, namespace: str) -> list[dict[str, Any]]:
        """All rows of the tables in a namespace of the warehouse, with the table's name as `of`."""
        found = []
        for table in (ORDERS, USERS):
            metadata = self.catalog.metadata(".".join(f"`{piece}`" for piece in ("lake", namespace, table.name)))
            snapshot = None if metadata is None else metadata.snapshot
            found += [{**row, "of": table.full_name} for row in (snapshot.rows if snapshot is not None else ())]
        return found

    def expected(self) -> dict[str, dict[str, Mutation]]:
        """By table and key, the mutation that wins, deletes too."""
        found: dict[str, dict[str, Mutation]] = defaultdict(dict)
        for each in self.shipped:
            if newer(each, found[each.table].get(each.key)):
                found[each.table][each.key] = each
        return found


NODE: Final = layout.NodeName(CLUSTER, "dc1", "7b1c0a52-0c43-4f0a-8a57-0242ac120002")


def segment_ref(number: int) -> layout.SegmentRef:
    return layout.SegmentRef(NODE, layout.SegmentName(id=number, version=7))


class Here:
    """Where the product runs now."""

    def __init__(self) -> None:
        self.current = Current()
        self._place: Place | None = None

    @property
    def has_place(self) -> bool:
        return self._place is not None

    @property
    def place(self) -> Place:
        assert self._place is not None
        return self._place

    @place.setter
    def place(self, place: Place) -> None:
        self._place, self.current.world = place, place.world


def _expired(warehouse: DoubleWarehouse, tables: Iterable[Table], _: int) -> list[Any]:
    """Snapshots but for the last two are gone, as after some days."""
    for table in tables:
        for name in (warehouse.changes_of(table), warehouse.current_of(table)):
            held = None if name is None else warehouse.tables.find(name)
            if held is not None:
                # Maintenance goes on if a table fails.
                with suppress(IcebergError):
                    held.expire(datetime.fromtimestamp(0, UTC) + timedelta(days=100_000), 2)
    return []


def _scrubbed(spark: NoSpark, name: str, check: Callable[[], None]) -> None:
    held = DoubleCatalog(spark.tables).load(name)
    held.rewrite_files()
    check()
    held.expire(datetime.fromtimestamp(0, UTC) + timedelta(days=100_000), 1)


@contextmanager
def _heard(here: Here) -> Iterator[None]:
    """Errors that the product logs are kept with the place; nothing else is logged."""

    def keep(_: object, __: str, event: Mapping[str, Any]) -> Any:
        if here.has_place:
            here.place.logged.append(dict(event))
        raise structlog.DropEvent

    before = structlog.get_config()
    structlog.configure(
        processors=[keep], wrapper_class=structlog.make_filtering_bound_logger(logging.ERROR), cache_logger_on_first_use=False
    )
    try:
        yield
    finally:
        structlog.configure(**before)


@contextmanager
def installed() -> Iterator[Here]:
    """The product runs at a place, which is set for each schedule."""
    here = Here()

    def spark_session(*_: object) -> Any:
        here.place.world.step("spark: start")
        return here.place.spark()

    of_jobs = {"Meter": NoMeter, "Warehouse": SmallWarehouse, "spark_session": spark_session}
    changed: dict[Any, dict[str, Any]] = {
        ingest: {"Batch": SmallBatch, **of_jobs},
        publish: {"Outbox": SmallOutbox, **of_jobs},
        rebuild: {"Outbox": SmallOutbox, "Warehouse": SmallWarehouse, "spark_session": spark_session},
        stream: {
            **dict.fromkeys(("CompletenessWriter", "Compaction", "ExternalTablesWriter", "Watchdog"), Nothing),
            "second_session": lambda spark: spark,
            "spark_session": spark_session,
        },
        maintain: {
            **of_jobs,
            "cleanup": cleaning(lambda: here.place.shards),
            "purge_shard": lambda *_: None,
            "tidy_warehouse": _expired,
        },
        shards: {"_Chain": chain_over(lambda: here.place.shards), "_earliest_expiry": lambda *_: None, "Shard": NoExpiry},
        erase: {"Erasing": SmallErasing, "spark_session": spark_session},
        erase_key: {
            "Erasing": SmallErasing,
            "Warehouse": SmallWarehouse,
            "forget": forgetting(lambda: here.place.shards),
            "scrub": lambda spark, name, _, check: _scrubbed(spark, name, check),
        },
        bucket_erase: {"_looked": looked},
    }
    with ExitStack() as stack:
        stack.enter_context(_heard(here))
        stack.enter_context(world_installed(here.current, [(storage.open_store, lambda _: here.place.store)]))
        stack.enter_context(broker_installed(lambda: here.place.broker))
        for module, attributes in changed.items():
            for name, value in attributes.items():
                stack.enter_context(mock.patch.object(module, name, value))
        yield here
