"""The data source for notebooks: what it says of the recording and of segments made for it, with real Spark
and without."""

from __future__ import annotations

import json
import pickle
from collections import Counter
from collections.abc import Iterator
from datetime import UTC, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any
from uuid import UUID

import pyarrow as pa
import pytest
import yaml
from pyspark.errors import AnalysisException, PythonException
from pyspark.sql import SparkSession

from proof.recording.recording import Recording
from spark_jobs.data_source import OPTIONS, CassandraCommitlog
from spark_jobs.session import spark_session
from spark_jobs.stages.segment_rows import GENERIC, KINDS
from tests.cassandra.commitlog.dump import dump_lines
from tests.cassandra.commitlog.packed import PACKINGS, pack
from tests.cassandra.schema.examples import change, create_keyspace, create_table, schema_row
from tests.damage import flip_a_byte_of_a_captured_frame
from tests.spark_jobs.examples import COUNTS, EVERYTHING, KEYS_ONLY, ORDERS, SCHEMA, THEN, TYPES, cells, delete, insert, table
from tests.spark_jobs.pipeline import Pipeline
from writetime.cassandra.commitlog.encode import encode_mutation, encode_segment
from writetime.cassandra.commitlog.frames import encode_frame
from writetime.cassandra.model import (
    Bound,
    Cell,
    DeletionTime,
    Liveness,
    Mutation,
    PartitionUpdate,
    RangeTombstone,
    Row,
)
from writetime.cassandra.schema.model import Schema, Table
from writetime.cassandra.schema.system_tables import TABLES
from writetime.cassandra.types.types import parse_type
from writetime.errors import ConfigError, CorruptFrame, ObjectNotFound, UnknownTable
from writetime.storage import segment_object

LATER = THEN + 5


@pytest.fixture(scope="module")
def spark(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkSession]:
    session = spark_session(Pipeline.create(tmp_path_factory.mktemp("data_source")).config, "tests of the data source")
    session.dataSource.register(CassandraCommitlog)
    yield session
    session.stop()


@pytest.fixture(scope="module")
def cdc_raw(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """One recorded node's folder."""
    return next(iter(Recording.open().stage(tmp_path_factory.mktemp("staged")).values()))


def lines_of(folder: Path) -> list[dict[str, Any]]:
    segments = [(path.name, path.read_bytes()) for path in sorted(folder.glob("*.log"))]
    return [json.loads(line) for line in dump_lines(segments) if isinstance(line, str)]


def rows_of(options: dict[str, str], *columns: str) -> list[dict[str, Any]]:
    """What the data source gives, without Spark, but pickled on its ways as Spark does."""
    source = pickle.loads(pickle.dumps(CassandraCommitlog(options)))
    schema = source.schema()
    wanted = schema if not columns else type(schema)([schema[name] for name in columns])
    reader = pickle.loads(pickle.dumps(pickle.loads(pickle.dumps(source)).reader(wanted)))
    partitions = [pickle.loads(pickle.dumps(partition)) for partition in reader.partitions()]
    batches = [batch for partition in partitions for batch in reader.read(partition)]
    assert all(batch.schema.names == wanted.names for batch in batches)
    return [row for batch in batches for row in batch.to_pylist()]


# --- the recording, with Spark


def said(line: dict[str, Any]) -> Iterator[tuple[Any, ...]]:
    """What a line of `writetime dump --json` says, one thing each."""
    for number, update in enumerate(line["updates"]):
        at = line["seg"], line["pos"], number, line["ks"], update["table"], update["id"], line["pk"]
        if "pdel" in update:
            yield *at, "partition_deletion", None, None, None, None, update["pdel"]["ts"], None, update["pdel"]["ldt"]
        for tombstone in update.get("rts", ()):
            yield *at, "range_deletion", tuple(tombstone["start"]["ck"]), None, None, None, tombstone["ts"], None, tombstone["ldt"]
        for row in [*([update["static"]] if "static" in update else []), *update["rows"]]:
            here = *at, tuple(row["ck"]) if "ck" in row else None
            if "live" in row:
                yield *at, "liveness", here[-1], None, None, None, row["live"]["ts"], row["live"].get("ttl"), row["live"].get("ldt")
            if "del" in row:
                yield *at, "row_deletion", here[-1], None, None, None, row["del"]["ts"], None, row["del"]["ldt"]
            for cell in row["cells"]:
                if "complexDeletion" in cell:
                    deletion = cell["complexDeletion"]
                    yield *at, "collection_deletion", here[-1], cell["col"], None, None, deletion["ts"], None, deletion["ldt"]
                    continue
                kind = "tombstone" if cell.get("tombstone") else "cell"
                yield *at, kind, here[-1], cell["col"], cell.get("path"), cell["value"], cell["ts"], cell.get("ttl"), cell.get("ldt")


def told(row: dict[str, Any]) -> tuple[Any, ...]:
    """The same of a generic row."""
    clustering = None if row["clustering"] is None else tuple(None if value is None else value.hex() for value in row["clustering"])
    raws = (None if row[name] is None else row[name].hex() for name in ("path", "value"))
    names = ("segment_id", "position", "update", "keyspace", "table", "table_id")
    numbers = (row[name] for name in ("writetime", "ttl", "local_deletion_time"))
    return *(row[name] for name in names), row["key"].hex(), row["kind"], clustering, row["column"], *raws, *numbers


@pytest.mark.thorough
@pytest.mark.spark
def test_generic_rows_are_what_the_dump_says(spark: SparkSession, cdc_raw: Path) -> None:
    frame = spark.read.format("cassandra_commitlog").option("allTables", "true").load(str(cdc_raw))
    assert frame.rdd.getNumPartitions() == len(list(cdc_raw.glob("*.log"))) >= 2
    rows = frame.toArrow().to_pylist()
    expected = Counter(thing for line in lines_of(cdc_raw) for thing in said(line))
    assert len(expected) > 10_000
    assert Counter(map(told, rows)) == expected
    order = [(row["segment_id"], row["position"], row["update"]) for row in rows]
    assert order == sorted(order)
    assert {row["segment"] for row in rows} == {str(path) for path in cdc_raw.glob("*.log")}


@pytest.mark.spark
def test_typed_rows_are_what_the_dump_says(spark: SparkSession, cdc_raw: Path) -> None:
    frame = spark.read.format("cassandra_commitlog").option("table", "shop.orders").load(str(cdc_raw))
    counted = {row["_op"]: row["count"] for row in frame.groupBy("_op").count().collect()}
    rows = frame.toArrow().to_pylist()
    lines = [line for line in lines_of(cdc_raw) if line["ks"] == "shop"]
    updates = [(line, update) for line in lines for update in line["updates"] if update["table"] == "orders"]
    in_lines = sum(len(update["rows"]) + len(update.get("rts", ())) + ("static" in update) + ("pdel" in update) for _, update in updates)
    assert len(rows) == sum(counted.values()) == in_lines > 1000
    assert {"insert", "update", "delete", "delete_partition", "static"} <= counted.keys()
    shown = Counter((row["_position"], row["customer_id"], row["placed_at"], row["order_id"], row["status"]) for row in rows)
    assert shown == Counter(thing for line, update in updates for thing in _orders(line, update))
    assert all(set(row["_deleted"] or ()) == set() or row["_op"] in ("insert", "update", "static") for row in rows)
    written = {(row["_position"], name, time) for row in rows for name, time in row["_writetime"] or ()}
    live = [(line, cell) for line, cell in _cells(updates) if "complexDeletion" not in cell and not cell.get("tombstone")]
    assert written == {(line["pos"], cell["col"], cell["ts"]) for line, cell in live}


def _cells(updates: list[tuple[dict[str, Any], dict[str, Any]]]) -> Iterator[tuple[dict[str, Any], dict[str, Any]]]:
    for line, update in updates:
        for row in [*update["rows"], *([update["static"]] if "static" in update else [])]:
            yield from ((line, cell) for cell in row["cells"])


def _orders(line: dict[str, Any], update: dict[str, Any]) -> Iterator[tuple[Any, ...]]:
    """(position, customer, time, order, status), by a reading of the raw values of its own."""
    about = line["pos"], str(UUID(line["pk"]))
    for _ in [*update.get("rts", ()), *(["static"] if "static" in update else ()), *(["pdel"] if "pdel" in update else ())]:
        yield *about, None, None, None
    for row in update["rows"]:
        placed_at = datetime.fromtimestamp(int.from_bytes(bytes.fromhex(row["ck"][0]), "big") / 1000, UTC)
        status = [cell["value"] for cell in row["cells"] if cell["col"] == "status" and not cell.get("tombstone")]
        yield *about, placed_at, str(UUID(row["ck"][1])), bytes.fromhex(status[0]).decode() if status else None


@pytest.mark.spark
def test_sql_over_it(spark: SparkSession, cdc_raw: Path) -> None:
    (first, *_) = sorted(cdc_raw.glob("*.log"))
    spark.read.format("cassandra_commitlog").option("table", "shop.orders").load([str(first)]).createOrReplaceTempView("orders")
    answer = spark.sql(
        "SELECT status, count(*) AS n FROM orders WHERE array_contains(_deleted, 'gift_message') IS NOT NULL GROUP BY status"
    )
    lines = [line for line in lines_of(cdc_raw) if line["seg"] == int(first.stem.split("-")[2])]
    expected = sum(len(update["rows"]) for line in lines for update in line["updates"] if update["table"] == "orders")
    assert 0 < sum(row["n"] for row in answer.collect()) <= expected + len(lines)


@pytest.mark.spark
def test_a_damaged_frame_ends_a_typed_read_with_its_place(spark: SparkSession, tmp_path: Path) -> None:
    folder = next(iter(Recording.open().stage(tmp_path).values()))
    damaged = flip_a_byte_of_a_captured_frame(folder)
    read = spark.read.format("cassandra_commitlog").option("table", "shop.orders")
    with pytest.raises(PythonException, match=f"{damaged.path.name} at position") as raised:
        read.load(str(folder)).count()
    assert "CorruptFrame" in str(raised.value)
    assert 'set the option problems to "skip"' in str(raised.value)
    assert read.option("problems", "skip").load(str(folder)).count() > 1000


@pytest.mark.spark
@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"path": "/no/such/place"}, "No such file or directory"),
        ({"path": ".", "tabel": "shop.orders"}, r"unknown options: \['tabel'\]"),
    ],
)
def test_what_is_wrong_is_said_at_planning(spark: SparkSession, options: dict[str, str], message: str) -> None:
    with pytest.raises(AnalysisException, match=message):
        spark.read.format("cassandra_commitlog").options(**options).load()


# --- segments made for it, without Spark


def written(folder: Path, *mutations: Mutation | bytes, tables: tuple[Table, ...] = (ORDERS, KEYS_ONLY, EVERYTHING, COUNTS)) -> str:
    """A segment that teaches its schema and then has these mutations; its path."""
    known = Schema(tables={**TABLES, **SCHEMA.tables}, types=SCHEMA.types)
    types = [schema_row("types", (t.name,), THEN, {"field_names": t.field_names, "field_types": t.field_types}) for t in TYPES.values()]
    taught = [create_keyspace("shop", THEN), change("shop", types=types), *(create_table(made, THEN) for made in tables)]
    bodies = [body if isinstance(body, bytes) else encode_mutation(body, known) for body in (*taught, *mutations)]
    path = folder / "CommitLog-7-9.log"
    path.write_bytes(encode_segment(9, 7, bodies, per_section=3))
    return str(path)


def test_every_kind_of_generic_row(tmp_path: Path) -> None:
    update = PartitionUpdate(
        ORDERS.id,
        b"\0\0\0\7",
        DeletionTime(1, 2),
        Row(None, cells=(Cell("note", 3, b"n"),)),
        (
            Row((b"\0\0\0\1",), Liveness(4, 60, 99), DeletionTime(5, 6), cells=(Cell("name", 4, b"", None, 0, 7),)),
            Row((None,), cells=(Cell("name", 8, b"x", None, 60, 99),)),
        ),
        (RangeTombstone(Bound((b"\0\0\0\2",), True), Bound((), False), DeletionTime(9, 10)),),
    )
    two = Mutation((insert(KEYS_ONLY, 7, None, "c").updates[0], update))
    collection = Row((), cells=(Cell("tags", 5, b"", b"t"),), complex_deletions={"tags": DeletionTime(4, 5)})
    mutations = (two, Mutation((PartitionUpdate(EVERYTHING.id, b"\0\0\0\7", rows=(collection,)),)))
    rows = rows_of({"path": written(tmp_path, *mutations)})
    assert [
        (row["update"], row["table"], row["kind"], row["column"], row["writetime"], row["ttl"], row["local_deletion_time"]) for row in rows
    ] == [
        (0, "keys_only", "liveness", None, THEN, None, None),
        (1, "orders", "partition_deletion", None, 1, None, 2),
        (1, "orders", "range_deletion", None, 9, None, 10),
        (1, "orders", "cell", "note", 3, None, None),
        (1, "orders", "liveness", None, 4, 60, 99),
        (1, "orders", "row_deletion", None, 5, None, 6),
        (1, "orders", "tombstone", "name", 4, None, 7),
        (1, "orders", "cell", "name", 8, 60, 99),
        (0, "Everything", "collection_deletion", "tags", 4, None, 5),
        (0, "Everything", "cell", "tags", 5, None, None),
    ]
    assert [row["clustering"] for row in rows[:8]] == [
        [b"c"],
        None,
        [b"\0\0\0\2"],
        None,
        [b"\0\0\0\1"],
        [b"\0\0\0\1"],
        [b"\0\0\0\1"],
        [None],
    ]
    assert (rows[2]["range_end"], rows[2]["start_inclusive"], rows[2]["end_inclusive"]) == ([], True, False)
    assert [row["static"] for row in rows[2:5]] == [None, True, False]
    assert (rows[9]["path"], rows[9]["value"]) == (b"t", b"")
    assert {row["kind"] for row in rows} | {"problem"} == set(KINDS)


def test_typed_values_of_every_type(tmp_path: Path) -> None:
    values = {
        "c decimal": Decimal("1.50"),
        "c date": 19_000,
        "c timestamp": 1_700_000_000_123,
        "c varint": 2**70,
        "Name": "capital",
        "name": 5,
        "a.b": "dotted",
        "select": [3, 1],
        "tags": ["x", "y"],
        "names": [("k", "v")],
        "home": {"street": "s", "Since when": 0},
        "two": (1, "z"),
        "v": [0.5, 1.0],
    }
    (row,) = rows_of({"path": written(tmp_path, insert(EVERYTHING, 7, values)), "table": 'shop."Everything"'})
    by_cql_name = {name: row[_in_spark(name)] for name in values}
    assert by_cql_name | {"home": None} == {
        "c decimal": "1.50",
        "c date": datetime(2022, 1, 8, tzinfo=UTC).date(),
        "c timestamp": datetime.fromtimestamp(1_700_000_000.123, UTC),
        "c varint": str(2**70),
        "Name": "capital",
        "name": 5,
        "a.b": "dotted",
        "select": [3, 1],
        "tags": ["x", "y"],
        "names": [("k", "v")],
        "home": None,
        "two": {"field_1": 1, "field_2": "z"},
        "v": [0.5, 1.0],
    }
    assert by_cql_name["home"]["street"] == "s"
    assert (row["id"], row["_op"], row["_inserted_at"], row["_deleted_at"], row["_deleted"]) == (7, "insert", THEN, None, [])
    assert {name for name, _ in row["_writetime"]} == set(values)
    assert {time for _, time in row["_writetime"]} == {THEN}


def _in_spark(name: str) -> str:
    from writetime.events.naming import to_column

    return to_column(name)


def test_what_is_deleted_is_named_as_cql_names_it(tmp_path: Path) -> None:
    gone = DeletionTime(LATER, LATER // 1_000_000)
    tombstones = (
        Cell("name", LATER, b"", None, 0, 9),
        Cell("home", LATER, b"", b"\0\1", 0, 9),
        Cell("names", LATER, b"", b"k'", 0, 9),
        Cell("select", LATER, b"", UUID(int=1 << 76).bytes, 0, 9),
        *cells(EVERYTHING, {"tags": ["new"]}, LATER),
    )
    row = Row((), cells=tombstones, complex_deletions={"tags": gone})
    (shown,) = rows_of(
        {"path": written(tmp_path, Mutation((PartitionUpdate(EVERYTHING.id, bytes(4), rows=(row,)),))), "table": str(EVERYTHING.id)}
    )
    assert shown["_op"] == "update"
    assert shown["_deleted"] == ["tags", "name", 'home."Since when"', "names['k''']", f"select[{UUID(int=1 << 76)}]"]
    assert shown["tags"] == ["new"]
    assert shown["_writetime"] == [("tags", LATER)]


def test_deletions_of_rows_ranges_and_partitions(tmp_path: Path) -> None:
    gone = DeletionTime(LATER, LATER // 1_000_000)
    rows = (Row((b"\0\0\0\1",), deletion=gone),)
    ranges = (RangeTombstone(Bound((b"\0\0\0\2",), False), Bound((), True), gone),)
    static = Row(None, cells=(Cell("note", THEN, b"s", None, 60, 99),))
    mutations = (
        delete(ORDERS, 7, LATER),
        Mutation((PartitionUpdate(ORDERS.id, b"\0\0\0\7", static_row=static, rows=rows, range_tombstones=ranges),)),
        insert(KEYS_ONLY, 7, None, "other table"),
    )
    found = rows_of({"path": written(tmp_path, *mutations), "table": "shop.orders"})
    assert [(row["_op"], row["id"], row["line"], row["note"], row["_deleted_at"]) for row in found] == [
        ("delete_partition", 7, None, None, LATER),
        ("delete_range", 7, None, None, LATER),
        ("static", 7, None, "s", None),
        ("delete", 7, 1, None, LATER),
    ]
    assert found[1]["_range"] == {"start": {"line": 2}, "start_inclusive": False, "end": {"line": None}, "end_inclusive": True}
    assert found[2]["_expires_at"] == [("note", 99)]


def test_counters_show_what_the_mutation_carries(tmp_path: Path) -> None:
    shard = bytes.fromhex("00018000949499a8c8464040807200e97b4e9b50000660c4ef80d818") + (92).to_bytes(8, "big")
    update = PartitionUpdate(COUNTS.id, b"\0\0\0\1", rows=(Row((), cells=(Cell("n", THEN, shard),)),))
    (row,) = rows_of({"path": written(tmp_path, Mutation((update,))), "table": "shop.counts"})
    assert (row["id"], row["n"], row["_op"]) == (1, 92, "update")


def test_only_captured_tables_unless_asked(tmp_path: Path) -> None:
    secret = table("secret", 77, {"id": "int"})
    quiet = Table(secret.keyspace, secret.name, secret.id, secret.columns, cdc=False)
    known = Schema(tables={quiet.id: quiet})
    path = written(tmp_path, encode_mutation(insert(quiet, 1, schema=known), known), insert(ORDERS, 1, {}, 1), tables=(ORDERS, quiet))
    assert {row["table"] for row in rows_of({"path": path})} == {"orders"}
    assert {row["table"] for row in rows_of({"path": path, "allTables": "true"})} >= {"orders", "secret", "columns"}
    with pytest.raises(ConfigError, match="the table never had cdc"):
        rows_of({"path": path, "table": "shop.secret"})
    assert len(rows_of({"path": path, "table": "shop.secret", "allTables": "true"})) == 1


SECRETS = ("Ada", b"Ada".hex(), "told", b"told".hex(), "key of tags", "a salt")
SHOP = [
    insert(ORDERS, 1, {"name": "Ada", "at": 5}, 7),
    Mutation((PartitionUpdate(ORDERS.id, b"\0\0\0\1", static_row=Row(None, cells=(Cell("note", 3, b"told"),))),)),
    Mutation(
        (
            PartitionUpdate(
                ORDERS.id,
                b"\0\0\0\1",
                range_tombstones=(RangeTombstone(Bound((b"Ada.",), True), Bound((), False), DeletionTime(9, 10)),),
            ),
        )
    ),
    Mutation((PartitionUpdate(EVERYTHING.id, b"\0\0\0\7", rows=(Row((), cells=(Cell("tags", 5, b"", b"key of tags", 0, 5),)),)),)),
]


def configured(folder: Path, **more: Any) -> str:
    document = {
        "pipeline": "shop",
        "cluster": {"name": "c", "datacenters": ["dc1"]},
        "bucket": str(folder),
        "columns": {
            "salt": "${SALT_OF_MASKS}",
            "column.mask.hash.sha256.with.salt": "shop.orders.line",
            "column.mask.with.3.chars": r"shop\..*\.tags",
            "column.truncate.to.2.chars": "shop.orders.note",
            "column.exclude.list": "shop.orders.name",
        },
    }
    path = folder / "pipeline.yaml"
    path.write_text(yaml.safe_dump(document | more), encoding="utf-8")
    return str(path)


def test_with_a_pipelines_configuration_it_shows_what_that_lets_out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SALT_OF_MASKS", "a salt")
    options = {"path": written(tmp_path, *SHOP, b"Ada"), "config": configured(tmp_path)}
    row, static, ended = rows_of(options | {"table": "shop.orders", "problems": "skip"})
    assert (static["note"], static["_op"], row["at"] is not None, row["id"]) == ("to", "static", True, 1)
    assert "name" not in row
    assert dict(row["_writetime"]).keys() == {"at"}
    assert len(row["line"]) == len(ended["_range"]["start"]["line"]) == 64
    (deleted,) = rows_of(options | {"table": 'shop."Everything"', "problems": "skip"})
    assert deleted["_deleted"] == ["tags"]
    generic = rows_of(options)
    assert {each["kind"] for each in generic} == {"liveness", "range_deletion", "cell", "tombstone", "problem"}
    of_orders = [each for each in generic if each["table"] == "orders"]
    assert {(each["key"], each["clustering"] is None, each["range_end"]) for each in of_orders} == {(None, True, None)}
    assert [each["column"] for each in of_orders if each["value"] is not None] == ["at"]
    told = repr([static, row, ended, deleted, generic])
    assert [secret for secret in SECRETS if secret in told] == []
    clear = repr(rows_of({"path": options["path"]}))
    assert "Ada" in clear
    assert "key of tags" in clear


def test_a_deleted_element_with_a_hidden_field_is_not_named(tmp_path: Path) -> None:
    path = parse_type("frozen<pair>", "shop", SCHEMA.types).encode({"a": 1, "b": "hunter2"})
    gone = Mutation((PartitionUpdate(EVERYTHING.id, b"\0\0\0\7", rows=(Row((), cells=(Cell("by pair", 5, b"", path, 0, 5),)),)),))
    options = {"path": written(tmp_path, gone), "table": 'shop."Everything"', "problems": "skip"}
    config = configured(tmp_path, columns={"field.exclude.list": "shop.Everything.by pair.b"})
    (clear,), (hidden,) = rows_of(options), rows_of(options | {"config": config})
    assert "hunter2" in clear["_deleted"][0]
    assert hidden["_deleted"] == ["by pair"]


def test_nor_does_it_show_what_the_pipeline_does_not(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SALT_OF_MASKS", "a salt")
    options = {"path": written(tmp_path, *SHOP)}
    config = configured(tmp_path, columns={"rows": {"shop.orders": "name != 'Ada'"}}, tables={"exclude": ["shop.Everything"]})
    with pytest.raises(ConfigError, match="does not hold whole rows"):
        rows_of(options | {"config": config, "table": "shop.orders"})
    with pytest.raises(ConfigError, match="the pipeline does not capture it"):
        rows_of(options | {"config": config, "table": 'shop."Everything"'})
    rows = rows_of(options | {"config": config})
    assert {row["table"] for row in rows} == {"orders"}
    named = ("key", "clustering", "path", "value", "range_end")
    assert {row[name] for row in rows for name in named} == {None}
    config = configured(tmp_path, columns={"column.exclude.list": "shop.orders.line"})
    with pytest.raises(ConfigError, match="line is part of the primary key"):
        rows_of(options | {"config": config, "table": "shop.orders"})


def test_fewer_columns(tmp_path: Path) -> None:
    path = written(tmp_path, insert(ORDERS, 1, {"name": "n"}, 1))
    assert rows_of({"path": path}, "value", "kind") == [{"value": None, "kind": "liveness"}, {"value": b"n", "kind": "cell"}]
    assert rows_of({"path": path, "table": "shop.orders"}, "name", "_op") == [{"name": "n", "_op": "insert"}]


def test_what_cannot_be_read_is_a_generic_row_and_the_end_of_a_typed_read(tmp_path: Path) -> None:
    stranger = table("stranger", 99, {"id": "int"})
    known = Schema(tables={stranger.id: stranger})
    strange = encode_mutation(insert(stranger, 1, schema=known), known)
    good = encode_mutation(insert(ORDERS, 1, {"name": "n"}, 1), SCHEMA)
    both = b"\2" + good[1:] + strange[1:]
    path = Path(written(tmp_path, strange, insert(ORDERS, 5, {"name": "here"}, 1)))
    (problem,) = [row for row in rows_of({"path": str(path)}) if row["kind"] == "problem"]
    assert (problem["value"], "no schema is known for table id" in problem["error"]) == (strange, True)
    # Of one update, and of another table: no row of this one can be in it.
    assert [row["name"] for row in rows_of({"path": str(path), "table": "shop.orders"})] == ["here"]
    path = Path(written(tmp_path, both, insert(ORDERS, 5, {"name": "here"}, 1)))
    with pytest.raises(UnknownTable, match='problems to "skip"'):
        rows_of({"path": str(path), "table": "shop.orders"})
    assert [row["name"] for row in rows_of({"path": str(path), "table": "shop.orders", "problems": "skip"})] == ["here"]
    content = bytearray(path.read_bytes())
    content[content.index(b"here")] ^= 1
    path.write_bytes(content)
    damaged = [row for row in rows_of({"path": str(path)}) if row["kind"] == "problem" and "CRC is wrong" in row["error"]]
    assert [row["value"] in bytes(content) for row in damaged] == [True]
    with pytest.raises(CorruptFrame):
        rows_of({"path": str(path), "table": "shop.orders"})


def test_a_file_that_is_no_segment(tmp_path: Path) -> None:
    written(tmp_path, insert(ORDERS, 1, {"name": "n"}, 1))
    (tmp_path / "CommitLog-7-10.log").write_bytes(b"nothing of the kind")
    rows = rows_of({"path": str(tmp_path)})
    assert [(row["kind"], row["value"]) for row in rows][-1] == ("problem", b"nothing of the kind")
    assert len(rows) == 3
    assert len(rows_of({"path": str(tmp_path), "table": "shop.orders", "problems": "skip"})) == 1


@pytest.mark.parametrize("packing", [packing for packing in PACKINGS if packing != "encrypted"])
def test_packed_segments(tmp_path: Path, packing: str) -> None:
    plain = Path(written(tmp_path, insert(ORDERS, 1, {"name": "n"}, 1)))
    rows = rows_of({"path": str(plain)})
    known = Schema(tables={**TABLES, **SCHEMA.tables}, types=SCHEMA.types)
    bodies = [
        encode_mutation(m, known) for m in (create_keyspace("shop", THEN), create_table(ORDERS, THEN), insert(ORDERS, 1, {"name": "n"}, 1))
    ]
    plain.write_bytes(pack([encode_frame(body) for body in bodies], packing, segment_id=9).file)
    assert [row["value"] for row in rows_of({"path": str(plain)})] == [row["value"] for row in rows]


def test_segments_that_the_archive_has_packed(tmp_path: Path) -> None:
    plain = Path(written(tmp_path, insert(ORDERS, 1, {"name": "n"}, 1)))
    rows = rows_of({"path": str(plain)})
    stored = plain.with_name(f"{plain.name}.zst")
    stored.write_bytes(segment_object.pack(plain.read_bytes(), 3))
    plain.unlink()
    assert [row["value"] for row in rows_of({"path": str(tmp_path)})] == [row["value"] for row in rows]
    stored.write_bytes(stored.read_bytes()[:-1])
    assert [row["kind"] for row in rows_of({"path": str(tmp_path)})] == ["problem"]


@pytest.mark.parametrize(
    ("options", "error", "message"),
    [
        ({}, ConfigError, "no path to segments was given"),
        ({"path": "nowhere.log"}, ObjectNotFound, "No such file"),
        ({"table": "shop.nobody"}, ConfigError, "neither the log nor --schema defines it"),
        ({"allTables": "perhaps"}, ConfigError, "'perhaps' is none of false, true"),
        ({"problems": "ignore"}, ConfigError, "'ignore' is none of fail, skip"),
        ({"keystore": "nowhere.jks"}, ConfigError, "WRITETIME_KEYSTORE_PASSWORD"),
    ],
)
def test_options_that_cannot_be(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, options: dict[str, str], error: type[Exception], message: str
) -> None:
    monkeypatch.delenv("WRITETIME_KEYSTORE_PASSWORD", raising=False)
    path = {"path": written(tmp_path, insert(ORDERS, 1, {}, 1))} if options else {}
    with pytest.raises(error, match=message):
        rows_of(path | options)


def test_a_column_that_is_not_there(tmp_path: Path) -> None:
    source = CassandraCommitlog({"path": written(tmp_path, insert(ORDERS, 1, {}, 1))})
    with pytest.raises(ConfigError, match=r"unknown columns: \['nope'\]"):
        source.reader(type(source.schema())().add("nope", "string"))


def test_a_snapshot_stands_in_for_ddl_that_is_gone(tmp_path: Path) -> None:
    recording = Recording.open()
    snapshot = tmp_path / "snapshot.json"
    snapshot.write_text(json.dumps(recording.schema_snapshot))
    path = written(tmp_path, insert(ORDERS, 1, {}, 1), tables=())
    assert [row["kind"] for row in rows_of({"path": path})] == ["problem"]
    # What the snapshot does not tell stays unknown, what it tells is known.
    with pytest.raises(ConfigError, match="neither the log"):
        rows_of({"path": path, "table": "shop.customers"})
    assert rows_of({"path": path, "table": "shop.customers", "schema": str(snapshot)}) == []


def test_all_options_are_told() -> None:
    page = (Path(__file__).parents[2] / "docs" / "notebooks.md").read_text(encoding="utf-8")
    assert all(f"| `{name}` |" in page for name in OPTIONS)
    assert all(f"| `{name}` |" in page for name in GENERIC.names)
    assert all(f"`{kind}`" in page for kind in KINDS)
    assert isinstance(GENERIC, pa.Schema)
