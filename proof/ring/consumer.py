"""The record keys of a table's topic, for an upsert consumer, who knows a row by the bytes of its key (`check`).

Strategy: there is no broker. Each event of the changes table gets the key that publishing gives it, with its schema in
it (`json-schema`), so that a key whose schema changes is another one.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from proof.ring.answer import TableAnswer
from spark_jobs.sinks.kafka_records import Encoder
from spark_jobs.stages.table_rows import RowShape
from writetime.cassandra.schema.fingerprint import described
from writetime.cassandra.schema.model import Schema
from writetime.config.kafka import EventsConfig
from writetime.events.envelope import About, rows_of
from writetime.events.serialization import JsonSchema

TOPIC = "proof"
_VERSION, _NAMES = "writetime.schema.", "writetime.keys.first"
"""Properties of a changes table."""


def record_keys(table: TableAnswer, found: pa.Table, properties: Mapping[str, str]) -> Iterator[tuple[int, int, bytes | None]]:
    """Batch, ordinal and record key of each event of the changes table's rows."""
    versions = {name.removeprefix(_VERSION): json.loads(text) for name, text in properties.items() if name.startswith(_VERSION)}
    names = json.loads(properties[_NAMES])
    about, events = About("proof", table.keyspace, table.name, {}), EventsConfig()
    for version in found["schema_version"].unique().to_pylist():
        of_version, types = described(versions[version], table.keyspace, table.name)
        keys = RowShape.of(of_version, Schema(types=types)).key_type
        mine = found.filter(pc.equal(found["schema_version"], version))
        stored = pa.schema([("after", keys)])
        encoder = Encoder({version: versions[version]}, about, TOPIC, "json-schema", "string", events, stored, key_names=names)
        shape = encoder.shapes(stored)(version)
        codec = JsonSchema(shape, TOPIC, wide=False)
        places = zip(mine["batch"].to_pylist(), mine["ordinal"].to_pylist(), _keys(mine["key"], keys), strict=True)
        yield from ((batch, ordinal, codec.key(shape.key({"key": key}))) for batch, ordinal, key in places)


def _keys(column: pa.ChunkedArray, kind: pa.StructType) -> list[dict[str, Any] | None]:
    """Stored keys as their version had them: by place, as fields keep theirs."""
    array = column.combine_chunks()
    found = rows_of(pa.RecordBatch.from_arrays([_as(array, kind)], names=["key"]))
    return [row["key"] for row in found]


def _as(array: Any, kind: pa.DataType) -> Any:
    """The array in a type of the same parts, by place; it may have more fields than these."""
    if pa.types.is_struct(kind):
        parts = [_as(array.field(at), kind.field(at).type) for at in range(kind.num_fields)]
        return pa.StructArray.from_arrays(parts, fields=list(kind), mask=array.is_null())
    if pa.types.is_map(kind):
        entries = [_as(array.keys, kind.key_type), _as(array.items, kind.item_type)]
        return pa.MapArray.from_arrays(array.offsets, *entries, type=kind)
    if pa.types.is_list(kind):
        there = [*array.is_valid().to_pylist(), True]
        offsets = pa.array([at if valid else None for at, valid in zip(array.offsets.to_pylist(), there, strict=True)], pa.int32())
        return pa.ListArray.from_arrays(offsets, _as(array.values, kind.value_type), type=kind)
    return array.cast(kind)
