"""Tables of every kind and mutations of them, and the way of a batch from frames to events without Spark."""

from __future__ import annotations

import hashlib
import json
import pickle
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import groupby
from operator import itemgetter
from pathlib import Path
from typing import Any
from uuid import UUID

import pyarrow as pa

from spark_jobs.stages.event_pages import page_row
from spark_jobs.stages.explode import ITEMS, ORDER, ExplodePlan, exploder
from spark_jobs.stages.merge_stream import FOLDED, FoldPlan, joiner
from spark_jobs.stages.row_packs import pack, unpacked
from spark_jobs.stages.scan import ROUTED, Batches
from spark_jobs.stages.typed_events import EventPlan, TypedEvents, typed
from spark_jobs.state.shards import Record, in_batches, upsert
from writetime.cassandra.commitlog.encode import encode_mutation
from writetime.cassandra.commitlog.mutation import decode_mutation
from writetime.cassandra.commitlog.segment import peek
from writetime.cassandra.merge.row_codec import Engine
from writetime.cassandra.model import (
    Cell,
    DeletionTime,
    Liveness,
    Mutation,
    PartitionUpdate,
    Row,
)
from writetime.cassandra.schema.model import Column, Schema, Table, UserType
from writetime.cassandra.types.types import CollectionType, UdtType, parse_type
from writetime.errors import DecodeError
from writetime.events.masking import Rules
from writetime.pipeline.truncations import Cuts
from writetime.storage import open_store

NOW = 1_700_000_000
THEN = (NOW - 100) * 1_000_000
HOSTS = ["host-a", "host-b", "host-c"]
TYPES = {
    ("shop", "address"): UserType("shop", "address", ("street", "Since when"), ("text", "timestamp")),
    ("shop", "pair"): UserType("shop", "pair", ("a", "b"), ("int", "text")),
}


def table(name: str, number: int, columns: Mapping[str, str], *, partition: int = 1, clustering: int = 0, **options: Any) -> Table:
    """The first `partition` columns are the partition key, the next `clustering` ones the clustering; a type
    after `static ` is static."""
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
    """Cells of non-key columns, in wire order. Raw bytes are taken as they are, also those that are no value
    of the type."""
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
    """One copy of a mutation, as a segment holds it."""
    body = mutation if isinstance(mutation, bytes) else encode_mutation(mutation, schema)
    return {"segment": segment, "position": position, "body": body}


def routed(frames: Iterable[dict[str, Any]], schema: Schema = SCHEMA) -> list[dict[str, Any]]:
    """Rows of ROUTED as tasks of one segment each give them; all tables are captured, in one bucket."""
    rows: dict[tuple[Any, ...], dict[str, Any]] = {}
    for each in frames:
        _, first, key = peek(each["body"], version=7)
        digest = hashlib.blake2b(each["body"], digest_size=16).digest()
        for table_id, updates in _tables_of(each["body"], first, schema).items():
            about = {"table": schema.tables[table_id].label, "table_id": table_id.bytes, "bucket": 0, "key": key, "updates": updates}
            row = {**dict.fromkeys(ROUTED.names), **about, "kind": "update", "digest": digest, "body": each["body"], "copies": []}
            place = {"segment": each["segment"], "position": each["position"]}
            rows.setdefault((table_id, digest, each["segment"]), row)["copies"].append(place)
    return [rows[task] for task in sorted(rows, key=lambda task: (task[0].bytes, rows[task]["key"], *task[1:]))]


def _tables_of(body: bytes, first: UUID, schema: Schema) -> Counter[UUID]:
    try:
        return Counter(update.table_id for update in decode_mutation(body, schema).updates)
    except DecodeError:
        return Counter([first])


def folded(
    frames: Iterable[dict[str, Any]],
    schema: Schema = SCHEMA,
    *,
    now: int = NOW,
    since: int | None = None,
    shards: Mapping[UUID, tuple[str, int]] | None = None,
    cuts: Cuts | None = None,
    engine: Engine = "auto",
    readings: frozenset[int] = frozenset(),
    **options: Any,
) -> list[dict[str, Any]]:
    """Rows of FOLDED, from ROUTED by way of ITEMS, sorted as Spark does. `readings`: segments that were read from the
    cluster. `payload` is an event as the sinks
    take it, a record, an account or the place of what is quarantined, pickled."""
    places = {(table_id.bytes, 0): (shards or {}).get(table_id, ("", 0)) for table_id in schema.tables}
    nothing = {**dict.fromkeys(ROUTED.names), "kind": "shard", "bucket": 0}
    found = [*({**nothing, "table_id": table_id.bytes} for table_id in shards or {}), *routed(frames, schema)]
    found.sort(key=lambda row: row["table_id"])
    items = staged(exploder(ExplodePlan(schema, [7] * len(HOSTS), cuts or Cuts(), engine, readings=readings)), found, ROUTED, ITEMS)
    items.sort(key=lambda row: [row[name] for name in ORDER])
    rows = staged(joiner(FoldPlan(schema, now, since, places, engine=engine, **options)), items, ITEMS, FOLDED)
    return list(_with_payloads(rows, EventPlan(schema, now, [f"{host}.log" for host in HOSTS], HOSTS, dict.fromkeys(_ids(schema), 3))))


def paged(rows: Sequence[dict[str, Any]], schema: Schema = SCHEMA, *, start: int = 0, rules: Rules | None = None) -> list[dict[str, Any]]:
    """Rows of PAGES of events as `folded` gives them, a page a table."""
    files, of_tables = [f"{host}.log" for host in HOSTS], dict.fromkeys(_ids(schema), 3)
    starts = {(table_id, 0): start for table_id in of_tables}
    plan = EventPlan(schema, NOW, files, HOSTS, of_tables, starts, rules=rules or Rules())
    found = [{name: row[name] for name in FOLDED.names} for row in rows]
    rows_of_pages = list[dict[str, Any]]()
    for table_id, group in groupby(found, itemgetter("table_id")):
        packs = pa.RecordBatch.from_pylist([{"state": pack(pa.RecordBatch.from_pylist(list(group), schema=FOLDED))}])
        rows_of_pages += [page_row(table_id, page) for page in typed(plan)(iter([packs]))]
    return rows_of_pages


def events_of(pages: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """All events of rows of PAGES."""
    return [event for page in unpacked(row["payload"] for row in pages) for event in page.to_pylist(maps_as_pydicts="strict")]


def _ids(schema: Schema) -> list[bytes]:
    return [table_id.bytes for table_id in schema.tables]


def staged(
    function: Callable[[Batches], Batches], rows: Sequence[dict[str, Any]], given: pa.Schema, made: pa.Schema
) -> list[dict[str, Any]]:
    """A stage as Spark runs it: in several batches."""
    found = []
    for out in function(pa.RecordBatch.from_pylist(rows[at : at + 2], schema=given) for at in range(0, len(rows), 2)):
        assert out.schema == made
        found += out.to_pylist()
    return found


def _with_payloads(rows: Sequence[dict[str, Any]], plan: EventPlan) -> Iterator[dict[str, Any]]:
    counts: Counter[str] = Counter()
    several = {row["key"] for row in of_kind(rows, "applied")}
    for row in rows:
        if row["kind"] in ("event", "deletion"):
            yield {**row, "payload": pickle.dumps(TypedEvents(plan, UUID(bytes=row["table_id"])).event(row))}
        elif row["kind"] == "record":
            yield {**row, "payload": pickle.dumps(Record(row["key"], row["state"], row["expires_at"]))}
        elif row["kind"] == "undecided":
            yield row
        elif row["kind"] == "account":
            counts.update(json.loads(row["detail"]))
        elif row["kind"] == "quarantined":
            counts["quarantined"] += row["updates"]
            for copy in row["copies"]:
                yield {**row, "payload": pickle.dumps({**copy, "body": row["state"], "detail": row["detail"]})}
    # The driver looks for named updates only where some are counted.
    assert counts.pop("several", 0) == len(of_kind(rows, "applied"))
    applied = counts["applied"] + len(several)
    assert counts.pop("made", 0) == counts.pop("items", 0)
    counts["superseded"] = counts.pop("folded", 0) - applied + counts.pop("truncated", 0) + counts.pop("purged", 0)
    yield {"kind": "account", "payload": pickle.dumps({**counts, "applied": applied})}


def of_kind(rows: Sequence[dict[str, Any]], kind: str) -> list[dict[str, Any]]:
    return [row for row in rows if row["kind"] == kind]


def payloads(rows: Sequence[dict[str, Any]], kind: str) -> list[Any]:
    return [pickle.loads(row["payload"]) for row in of_kind(rows, kind)]


def stored(folder: Path, rows: Sequence[dict[str, Any]]) -> tuple[str, int]:
    """The records of a first batch as a shard."""
    uri = str(folder / "shard")
    return uri, upsert(uri, 0, 1, in_batches(payloads(rows, "record")), open_store(str(folder / "bucket")), "lease.json").version
