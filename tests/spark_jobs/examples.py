"""Tables of every kind and mutations of them, and the way of a batch from frames to events without Spark."""

from __future__ import annotations

import pickle
from collections.abc import Iterable, Mapping, Sequence
from typing import Any
from uuid import UUID

import pyarrow as pa

from spark_jobs.fold import FOLDED, FoldPlan, folder
from spark_jobs.frames import FRAMES, ROUTED, Routes, router
from writetime.commitlog.encode import encode_mutation
from writetime.commitlog.segment import peek
from writetime.cql.types import CollectionType, UdtType, parse_type
from writetime.model import Cell, DeletionTime, Liveness, Mutation, PartitionUpdate, Row
from writetime.schema.model import Column, Schema, Table, UserType

NOW = 1_700_000_000
THEN = (NOW - 100) * 1_000_000
HOSTS = ["host-a", "host-b", "host-c"]
TYPES = {
    ("shop", "address"): UserType("shop", "address", ("street", "Since when"), ("text", "timestamp")),
    ("shop", "pair"): UserType("shop", "pair", ("a", "b"), ("int", "text")),
}


def table(name: str, number: int, columns: Mapping[str, str], *, partition: int = 1, clustering: int = 0, **options: Any) -> Table:
    """The first `partition` columns are the partition key, the next `clustering` ones the clustering; a type after `static ` is static."""
    made: dict[str, Column] = {}
    for at, (column, kind) in enumerate(columns.items()):
        if at < partition:
            made[column] = Column(column, "partition_key", kind, at)
        elif at < partition + clustering:
            made[column] = Column(column, "clustering", kind, at - partition)
        else:
            made[column] = Column(column, "static" if kind.startswith("static ") else "regular", kind.removeprefix("static "))
    return Table("shop", name, UUID(int=number), made, cdc=True, **options)


ORDERS = table("orders", 1, {"id": "int", "line": "int", "note": "static text", "name": "text", "at": "timestamp"}, clustering=1)
KEYS_ONLY = table("keys_only", 2, {"id": "int", "c": "text"}, clustering=1)
EVERYTHING = table(
    "Everything",
    3,
    {
        "id": "int",
        **{f"c {kind}": kind for kind in ("ascii", "bigint", "blob", "boolean", "date", "decimal", "double", "duration", "float", "inet")},
        **{f"c {kind}": kind for kind in ("int", "smallint", "text", "time", "timestamp", "timeuuid", "tinyint", "uuid", "varint")},
        "Name": "text",
        "name": "int",
        "a.b": "text",
        'with `ticks` and "quotes"': "text",
        "select": "list<int>",
        "tags": "set<text>",
        "by pair": "map<frozen<pair>, int>",
        "names": "map<text, text>",
        "home": "address",
        "work": "frozen<address>",
        "homes": "list<frozen<address>>",
        "two": "tuple<int, text>",
        "v": "vector<float, 2>",
    },
)
COUNTS = table("counts", 4, {"id": "int", "n": "counter"}, flags=frozenset({"compound", "counter"}))
TABLES = (ORDERS, KEYS_ONLY, EVERYTHING, COUNTS)
SCHEMA = Schema(tables={t.id: t for t in TABLES}, types=TYPES)


def schema_of(*tables: Table, types: Mapping[tuple[str, str], UserType] = TYPES) -> Schema:
    return Schema(tables={t.id: t for t in tables}, types=dict(types))


def raw(of: Table, column: str, value: Any, schema: Schema = SCHEMA) -> bytes:
    return value if isinstance(value, bytes) else parse_type(of.columns[column].type, "shop", schema.types).encode(value)


def cells(of: Table, values: Mapping[str, Any], timestamp: int = THEN, schema: Schema = SCHEMA) -> tuple[Cell, ...]:
    """Cells of non-key columns, in wire order. Raw bytes are taken as they are, also those that are no value of the type."""
    simple: list[Cell] = []
    complex_: list[Cell] = []
    for name in sorted(values):
        kind, value = parse_type(of.columns[name].type, "shop", schema.types), values[name]
        if isinstance(value, bytes) or not kind.multicell:
            simple.append(Cell(name, timestamp, raw(of, name, value, schema)))
        elif isinstance(kind, UdtType):
            for index, (part, element) in enumerate(kind.known_fields.items()):
                complex_.append(Cell(name, timestamp, element.encode(value[part]), index.to_bytes(2, "big")))
        else:
            assert isinstance(kind, CollectionType)
            complex_ += [Cell(name, timestamp, *_element(kind, at, element)) for at, element in enumerate(value)]
    return (*simple, *complex_)


def _element(kind: CollectionType, at: int, element: Any) -> tuple[bytes, bytes]:
    if kind.kind == "map":
        return kind.elements[1].encode(element[1]), kind.elements[0].encode(element[0])
    if kind.kind == "set":
        return b"", kind.elements[0].encode(element)
    return kind.elements[0].encode(element), UUID(int=1 << 76 | at << 64 | 1 << 63).bytes


def insert(
    of: Table, key: int, values: Mapping[str, Any] | None = None, *clustering: Any, timestamp: int = THEN, schema: Schema = SCHEMA
) -> Mutation:
    """INSERT of one row; tables have one partition key column, an int."""
    names = [column.name for column in of.clustering]
    path = tuple(raw(of, name, value, schema) for name, value in zip(names, clustering, strict=True))
    row = Row(path, Liveness(timestamp), cells=cells(of, values or {}, timestamp, schema))
    return Mutation((PartitionUpdate(of.id, key.to_bytes(4, "big"), rows=(row,)),))


def delete(of: Table, key: int, timestamp: int = THEN) -> Mutation:
    """DELETE of a whole partition."""
    return Mutation((PartitionUpdate(of.id, key.to_bytes(4, "big"), DeletionTime(timestamp, timestamp // 1_000_000)),))


def frame(mutation: Mutation | bytes, *, segment: int = 0, position: int = 100, schema: Schema = SCHEMA) -> dict[str, Any]:
    """A row of FRAMES."""
    body = mutation if isinstance(mutation, bytes) else encode_mutation(mutation, schema)
    count, table_id, key = peek(body)
    about = {"segment": segment, "kind": "frame", "position": position, "detail": None}
    return {**about, "table_id": table_id.bytes, "updates": count, "key": key, "body": body}


def routed(frames: Iterable[dict[str, Any]], schema: Schema = SCHEMA, **options: Any) -> list[dict[str, Any]]:
    """Rows of ROUTED, by `router` itself; all tables are captured, in one bucket."""
    routes = Routes(schema, options.pop("buckets", dict.fromkeys(schema.tables, 1)), [7] * len(HOSTS), **options)
    batch = pa.RecordBatch.from_pylist(list(frames), schema=FRAMES)
    return [row for out in router(routes)([batch]) for row in out.to_pylist()]


def folded(
    frames: Iterable[dict[str, Any]], schema: Schema = SCHEMA, *, now: int = NOW, shards: Mapping[UUID, tuple[str, int]] | None = None
) -> list[dict[str, Any]]:
    """Rows of FOLDED, by `router` and `folder`, sorted as Spark does."""
    rows = [row for row in routed(frames, schema) if row["kind"] == "update"]
    rows.sort(key=lambda row: [row[name] for name in ("table_id", "bucket", "key", "digest", "segment", "position")])
    places = {(table_id.bytes, 0): (shards or {}).get(table_id, ("", 0)) for table_id in schema.tables}
    expected = {table_id.bytes: 3 for table_id in schema.tables}
    plan = FoldPlan(schema, now, [f"{host}.log" for host in HOSTS], [7] * len(HOSTS), HOSTS, places, expected)
    # As Spark hands it over: pickled, and in several batches.
    function = folder(pickle.loads(pickle.dumps(plan)))
    batches = [pa.RecordBatch.from_pylist(rows[at : at + 2], schema=ROUTED) for at in range(0, len(rows), 2)]
    return [row for out in function(batches) for row in _checked(out).to_pylist()]


def _checked(batch: pa.RecordBatch) -> pa.RecordBatch:
    assert batch.schema == FOLDED
    return batch


def of_kind(rows: Sequence[dict[str, Any]], kind: str) -> list[dict[str, Any]]:
    return [row for row in rows if row["kind"] == kind]


def payloads(rows: Sequence[dict[str, Any]], kind: str) -> list[Any]:
    return [pickle.loads(row["payload"]) for row in of_kind(rows, kind)]
