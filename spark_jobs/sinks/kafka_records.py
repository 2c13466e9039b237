"""Converts rows of a changes table to Kafka records. A function for `mapInArrow`, made in the driver.

Strategy: an event is encoded by its own schema version, so the driver resolves each version once: its
definition (stored with the changes table) and, for Avro, its id in the registry. Tasks encode the events and
set aside those that are too large for their topic. Knows Kafka's records; must not know the Kafka client.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial, reduce
from typing import Any, Final, Literal, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql.pandas.types import to_arrow_schema

from spark_jobs.sinks.changes_files import ChangesFiles
from spark_jobs.sinks.iceberg import Changes
from spark_jobs.sinks.kafka import RECORDS
from spark_jobs.sinks.schema_registry import Registry
from spark_jobs.stages.scan import Batches
from spark_jobs.stages.table_rows import RowShape
from writetime.cassandra.schema.fingerprint import described
from writetime.cassandra.schema.model import Schema, Table
from writetime.cassandra.types.types import CqlType
from writetime.config.kafka import EventsConfig, KafkaConfig, PartitionBy
from writetime.errors import DecodeError, PreconditionFailed, PublishError
from writetime.events.converters import JSON, Convert, Form, Numbers, Times, Varints, has_doubles
from writetime.events.envelope import About, Shape, encode, rows_of
from writetime.events.records import Records, key_lists, records_of
from writetime.events.serialization import (
    QUARANTINED,
    Codec,
    Format,
    Schemas,
    avro_schemas,
    codec_of,
    form_of,
)
from writetime.pipeline.quarantine.kinds import QuarantineKind
from writetime.pipeline.quarantine.published import table_row, topic_record
from writetime.pipeline.quarantine.record import QuarantineRecord
from writetime.storage import layout, open_store
from writetime.storage.checksum import crc32c
from writetime.storage.store import ObjectInfo, Store

Pair = tuple[bytes | None, bytes | None]
"""A record's key and value."""
PUT_ASIDE: Final = "quarantined"
"""The op of a record that tells of a piece in quarantine."""
Versions = Mapping[str, Mapping[str, Any]]
"""By schema version what it is, see `writetime.cassandra.schema.fingerprint.describe`."""


@dataclass(frozen=True, slots=True)
class Incarnation:
    """One incarnation of a table: its current changes, what its events share, their topic, and the files with events
    that may be unsent, if Arrow can read them."""

    table: Table
    changes: Changes
    about: About
    topic: str
    files: ChangesFiles | None = None

    @property
    def has_unsent(self) -> bool:
        """Whether some of its events may be unsent."""
        return self.files is None or bool(self.files.files)

    @property
    def stored(self) -> pa.Schema:
        return to_arrow_schema(self.changes.rows.schema)

    def dropped(self) -> dict[str, list[str]]:
        """By schema version, the fields of rows with values of dropped columns."""
        if not self.changes.versions:
            return {}
        stored = self.stored
        shape_of, rows = _shapes(self.changes.versions, self.about, stored, EventsConfig()), stored.field("after").type
        return {version: shape_of(version).dropped_fields(rows) for version in self.changes.versions}


@dataclass(frozen=True, slots=True)
class Oversized:
    """The policy for a record whose key and value exceed `limit` bytes: it stays and blocks its topic; or it
    is stored in the bucket, and an event with its location is sent instead; or it is put into the quarantine
    of `cluster`, whose topic is `quarantine`."""

    policy: Literal["wait", "claim-check", "quarantine"]
    limit: int
    bucket: str
    cluster: str
    quarantine: QuarantineTopic | None = None


@dataclass(frozen=True, slots=True)
class QuarantineTopic:
    """The topic of quarantine records: its format, and for Avro the ids of its schemas."""

    topic: str
    format: Format
    ids: tuple[int, int] | None

    def record(self, record: QuarantineRecord) -> tuple[bytes, bytes]:
        return QUARANTINED.record(self.format, *topic_record(record), self.ids)


class Encoded(NamedTuple):
    """A row as bytes: the record's key and value, or why it cannot be encoded; and what decides the partition, if not
    the key."""

    key: bytes | None = None
    value: bytes | None = None
    refused: str | None = None
    placed_by: bytes | None = None


class Aside(NamedTuple):
    """A record that is sent to another topic instead of an event. Without a value, nothing is sent."""

    pair: Pair
    topic: str


class Placed(NamedTuple):
    """RECORDS of some rows of a batch, and which these are."""

    rows: Any
    records: pa.RecordBatch


@dataclass(slots=True)
class Encoder:
    """Encodes RECORDS of one incarnation's rows, which have their `publisher`. It is sent to executors."""

    versions: Versions
    about: About
    topic: str
    format: Format
    numbers: Numbers
    events: EventsConfig
    stored: pa.Schema
    times: Times = "isostring"
    varints: Varints | None = None
    registered: dict[str, dict[bool, tuple[Schemas, tuple[int, int]]]] = field(default_factory=dict)
    oversized: Oversized | None = None
    partition_by: PartitionBy = "primary_key"
    key_names: Sequence[str] = ()

    @classmethod
    def of(cls, kafka: KafkaConfig, events: EventsConfig, incarnation: Incarnation, by: PartitionBy = "primary_key") -> Encoder:
        return cls(
            incarnation.changes.versions,
            incarnation.about,
            incarnation.topic,
            kafka.format,
            kafka.decimal_handling_mode,
            events,
            incarnation.stored,
            kafka.time_precision_mode,
            kafka.varint_handling_mode,
            partition_by=by,
            key_names=incarnation.changes.key_names,
        )

    def learn(self, version: str, wide: bool, registry: Registry | None) -> None:
        """Prepare for events of a version; `wide`: some of them have values in dropped columns. PublishError
        if the version is unknown, keys would be rounded or the registry rejects its schemas; SchemaError for an
        unknown user type."""
        shape = self.shapes(self.stored)(version)
        if rounded := [name for name, kind in shape.record_keys.items() if has_doubles(shape.form, kind)]:
            raise PublishError(
                f"key column {', '.join(rounded)} would be a double, which is equal for different keys",
                operation="publish events",
                obj=f"{self.about.keyspace}.{self.about.table}",
                hint="Set kafka.decimal.handling.mode to string or precise (of a varint, kafka.varint.handling.mode); its events wait.",
            )
        if registry is None:
            return
        # The narrow schema last, so that it is the subject's latest one.
        for each in (True, False) if wide else (False,):
            schemas = avro_schemas(shape, self.about, wide=each)
            ids = tuple(registry.id_of(f"{self.topic}-{part}", getattr(schemas, part)) for part in ("key", "value"))
            self.registered.setdefault(version, {})[each] = schemas, (ids[0], ids[1])

    def __call__(self, batches: Batches) -> Batches:
        known: dict[str, _Version] = {}
        for batch in batches:
            versions = batch["schema_version"].unique().to_pylist()
            if news := set(versions) - known.keys():
                shape_of = self.shapes(batch.schema)
                known |= {version: self._version(version, shape_of(version)) for version in news}
            found = [self._of_version(known[version], batch, pc.equal(batch["schema_version"], version)) for version in versions]
            yield from _in_order([part for parts in found for part in parts])

    def _of_version(self, version: _Version, batch: pa.RecordBatch, mine: Any) -> Iterator[Placed]:
        """The records of its rows: of most of them at once, of the others one by one."""
        together = pc.and_(mine, version.records.takes(batch))
        rows = _filtered(batch, together)
        try:
            keys, values = version.records.encode(rows)
        except DecodeError:
            # One by one they tell which of them it is.
            yield self._one_by_one(version, batch, mine)
            return
        if self.oversized is not None and self.oversized.policy != "wait":
            sizes = pc.add(pc.binary_length(keys).cast(pa.int64()), pc.binary_length(values).cast(pa.int64()))
            fits = pc.less_equal(sizes, self.oversized.limit)
            if not pc.all(fits).as_py():
                rows, keys, values = rows.filter(fits), keys.filter(fits), values.filter(fits)
                together = pc.replace_with_mask(together, together, fits)
        yield Placed(_indices(together), self._records(rows, keys, values, version.places(rows["key"])))
        rare = pc.and_not(mine, together)
        if pc.any(rare).as_py():
            yield self._one_by_one(version, batch, rare)

    def _records(self, rows: pa.RecordBatch, keys: Any, values: Any, places: Any) -> pa.RecordBatch:
        count = rows.num_rows
        topic = pa.array([self.topic], pa.string()).take(pa.array(np.zeros(count, np.int64)))
        columns = {
            "publisher": rows["publisher"],
            "stream": topic,
            "topic": topic,
            "batch": rows["batch"],
            "ordinal": rows["ordinal"],
            "key": keys,
            "value": values,
            "op": rows["op"],
            "deletes": pc.and_(pc.equal(rows["op"], "d"), rows["before"].is_valid()),
            "refused": pa.nulls(count, pa.string()),
            "placed_by": places,
        }
        return pa.RecordBatch.from_arrays([columns[field.name].cast(field.type) for field in RECORDS], schema=RECORDS)

    def _one_by_one(self, version: _Version, whole: pa.RecordBatch, wanted: Any) -> Placed:
        batch = whole.filter(wanted)
        rows = rows_of(batch)
        encoded = [version.encoded(row) for row in rows]
        pairs: list[Pair] = [(each.key, each.value) for each in encoded]
        aside: dict[int, Aside] = {}
        if self.oversized is not None and self.oversized.policy != "wait":
            for at, (row, pair) in enumerate(zip(rows, pairs, strict=True)):
                found = self._fitting(row, pair, version, self.oversized)
                if isinstance(found, Aside):
                    aside[at] = found
                pairs[at] = found.pair if isinstance(found, Aside) else found
        columns = {
            "publisher": batch["publisher"],
            "stream": [self.topic] * len(rows),
            "topic": [aside[at].topic if at in aside else self.topic for at in range(len(rows))],
            "batch": batch["batch"],
            "ordinal": batch["ordinal"],
            "key": [key for key, _ in pairs],
            "value": [value for _, value in pairs],
            "op": [PUT_ASIDE if at in aside else row["op"] for at, row in enumerate(rows)],
            # The key of a delete of many rows is not a row's key, so it needs no tombstone.
            "deletes": [at not in aside and row["op"] == "d" and row["before"] is not None for at, row in enumerate(rows)],
            "refused": [each.refused for each in encoded],
            "placed_by": [None if at in aside else each.placed_by for at, each in enumerate(encoded)],
        }
        records = pa.RecordBatch.from_pydict(columns, schema=RECORDS)
        # A quarantined event without a quarantine topic has no value.
        sent = reduce(pc.or_, (pc.is_valid(records[name]) for name in ("value", "refused")))
        return Placed(_indices(wanted).filter(sent), records.filter(sent))

    def _fitting(self, row: Mapping[str, Any], pair: Pair, version: _Version, rule: Oversized) -> Pair | Aside:
        """The record, or what is sent instead. An oversized value is stored before anything refers to it, and
        is the same in every run."""
        key, value = pair
        size = len(key or b"") + len(value or b"")
        if value is None or size <= rule.limit:
            return pair
        store = open_store(rule.bucket)
        if rule.policy == "quarantine":
            return self._put_aside(store, row, pair, rule)
        held = _claimed(store, layout.claim(self.topic, row["batch"], row["ordinal"]), value)
        return key, version.claim(row, url=f"{store.url.rstrip('/')}/{held.name}", size=held.size, crc32c=held.crc32c)

    def _put_aside(self, store: Store, row: Mapping[str, Any], pair: Pair, rule: Oversized) -> Aside:
        key, value = (part or b"" for part in pair)
        stem = layout.unpublishable(rule.cluster, self.topic, row["batch"], row["ordinal"])
        record = QuarantineRecord(
            name=f"{stem}.bin",
            cluster=rule.cluster,
            kind=QuarantineKind.OVERSIZED,
            message=f"{len(key) + len(value)} bytes are more than the {rule.limit} that a message may have",
            size=len(value),
            batch=row["batch"],
            at=row["processed_at"] // 1_000_000,
            table=f"{self.about.keyspace}.{self.about.table}",
            topic=self.topic,
            ordinal=row["ordinal"],
        )
        about = {
            "kind": str(record.kind),
            "topic": self.topic,
            "sequence": [row["batch"], row["ordinal"]],
            "message": record.message,
            "size": record.size,
            "key": key.hex(),
            "piece": table_row(record),
        }
        store.put(f"{stem}.bin", value)
        store.put(f"{stem}.json", json.dumps(about, indent=1).encode())
        return Aside((None, None), self.topic) if rule.quarantine is None else Aside(rule.quarantine.record(record), rule.quarantine.topic)

    def shapes(self, stored: pa.Schema) -> Callable[[str], Shape]:
        """A function that returns the shape of a version. PublishError for an unknown version."""
        form = form_of(self.format, self.numbers, self.times, self.varints)
        return _shapes(self.versions, self.about, stored, self.events, form=form, key_names=self.key_names)

    def _version(self, version: str, shape: Shape) -> _Version:
        codec = partial(codec_of, self.format, shape, self.topic, self.registered.get(version, {}))
        codecs = {wide: codec(wide=wide) for wide in self._needed(version)}
        placing = self._partition_key(version, shape) if self.partition_by == "partition_key" else {}
        records = records_of(shape, self.about, codecs[False])
        return _Version(shape, self.about, codecs, records, placing, JSON.fields(placing))

    def _partition_key(self, version: str, shape: Shape) -> dict[str, CqlType]:
        table, _ = described(self.versions[version], self.about.keyspace, self.about.table)
        return dict([*shape.record_keys.items()][: len(table.partition_key)])

    def _needed(self, version: str) -> tuple[bool, ...]:
        return tuple(self.registered[version]) if self.format == "avro" else (False, True)


@dataclass(frozen=True, slots=True)
class _Version:
    """How events of one schema version are encoded: one by one, by whether they are wide, and many at once.
    `placing`: the columns whose values decide the partition, whatever the format, its options, and their names:
    none of them changes where events go; empty: the key decides."""

    shape: Shape
    about: About
    codecs: Mapping[bool, Codec]
    records: Records
    placing: Mapping[str, CqlType]
    placing_values: Convert

    def places(self, keys: Any) -> Any:
        return key_lists([*self.placing.values()], self.shape.key_columns(keys)) if self.placing else pa.nulls(len(keys), pa.binary())

    def _place(self, key: Mapping[str, Any] | None) -> bytes | None:
        return encode([*self.placing_values(self.shape.key_values(key)).values()]) if self.placing and key is not None else None

    def encoded(self, row: Mapping[str, Any]) -> Encoded:
        """A changes row as bytes. A row that cannot be encoded says why: others of its table wait behind it, and
        other tables do not."""
        try:
            return Encoded(*self.record(row), placed_by=self._place(row["key"]))
        except (PublishError, DecodeError) as error:
            return Encoded(refused=f"{error.message}. {error.hint or ''}".strip())

    def record(self, row: Mapping[str, Any]) -> Pair:
        """Key and value of a changes row. PublishError if the key lacks a column that its schema requires."""
        codec, key = self.codecs[self.shape.is_wide(row)], self.shape.key(row)
        return codec.key(key), codec.value(self.shape.value(row, self.about))

    def claim(self, row: Mapping[str, Any], **where: Any) -> bytes:
        """The value of an event whose content is in the bucket."""
        return self.codecs[self.shape.is_wide(row)].value(self.shape.claim(row, self.about, **where))


def _filtered(batch: pa.RecordBatch, wanted: Any) -> pa.RecordBatch:
    """Without a copy if all rows are wanted."""
    return batch if pc.all(wanted).as_py() else batch.filter(wanted)


def _indices(wanted: Any) -> Any:
    return pa.array(np.flatnonzero(wanted.to_numpy(zero_copy_only=False)))


def _in_order(found: Sequence[Placed]) -> Batches:
    """The records in the order of their rows."""
    some = [part for part in found if part.records.num_rows]
    if len(some) == 1:
        yield some[0].records
    elif some:
        rows = np.concatenate([part.rows.to_numpy() for part in some])
        yield from pa.Table.from_batches([part.records for part in some]).take(pa.array(np.argsort(rows))).combine_chunks().to_batches()


def _claimed(store: Store, name: str, value: bytes) -> ObjectInfo:
    """Store the value as an object. If another run stored a different value under the name, that one stays:
    it may have been sent in another format. An equal value is stored again, because objects are deleted by
    age, and the earlier run may have crashed before it sent the claim."""
    crc = crc32c(value)
    try:
        return store.put(name, value, if_generation=0)
    except PreconditionFailed:
        held = store.head(name)
        return store.put(name if held is not None and held.crc32c == crc else f"{name}~{crc:08x}", value)


def _shapes(
    versions: Versions, about: About, stored: pa.Schema, events: EventsConfig, *, form: Form = JSON, key_names: Sequence[str] = ()
) -> Callable[[str], Shape]:
    """A function that returns the shape of a version. PublishError for a version that the changes table does
    not define."""
    rows = {version: _row_shape(described(text, about.keyspace, about.table)) for version, text in versions.items()}

    def shape(version: str) -> Shape:
        if version not in rows:
            raise PublishError(
                f"the changes table does not say what schema version {version} is",
                operation="publish events",
                obj=f"{about.keyspace}.{about.table}",
                hint=f"Its property writetime.schema.{version} was taken away: set it again.",
            )
        shown, history = rows[version], [other.columns for other in rows.values()]
        return Shape(
            shown.keys,
            shown.columns,
            stored,
            form=form,
            history=history,
            cells=events.shape == "cells",
            required=required_keys(shown.table),
            key_names=key_names,
        )

    return shape


def required_keys(table: Table) -> list[str]:
    """The key columns that each key of an event has, whatever the table and its pipeline become. Static content without a
    row has no clustering columns, a delete of many rows that is one event has some of them, and one of several columns
    of a partition key may have no bytes, which is null in most types."""
    columns = table.partition_key
    return [column.name for column in columns if len(columns) == 1 or column.type in _NEVER_NULL]


_NEVER_NULL: Final = frozenset({"ascii", "text", "varchar", "blob", "inet"})
"""Types with a value of no bytes in every format."""


def _row_shape(found: tuple[Table, Any]) -> RowShape:
    table, types = found
    return RowShape.of(table, Schema(types=types))
