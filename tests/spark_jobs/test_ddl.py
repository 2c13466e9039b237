"""DDL and TRUNCATE in the warehouse, with real Spark and Iceberg: what the tables hold then, rows that nobody
touches too."""

from __future__ import annotations

import json
import time
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import replace
from decimal import Decimal
from types import SimpleNamespace
from typing import Any

import pytest
from pyspark.sql import DataFrame, Row, SparkSession
from pyspark.sql.pandas.types import from_arrow_schema

from proof.doubles.broker import Broker, installed
from spark_jobs import publish
from spark_jobs.publish import Outbox, Part, Unsent
from spark_jobs.session import spark_session
from spark_jobs.sinks.changes_files import ChangesFiles
from spark_jobs.sinks.iceberg import Changes, Warehouse
from spark_jobs.sinks.iceberg_table import IcebergTable
from spark_jobs.sinks.kafka import RECORDS, Publisher, Sent
from spark_jobs.sinks.kafka_records import Encoder, Incarnation
from spark_jobs.stages.event_pages import page_of, page_row
from spark_jobs.stages.table_events import deletion, truncation
from spark_jobs.stages.table_rows import RowShape
from tests.cassandra.schema.examples import create_table
from tests.spark_jobs.examples import NOW, THEN, insert, schema_of, table
from tests.spark_jobs.pipeline import Pipeline
from tests.spark_jobs.test_iceberg import events, pages, rows, write
from writetime.cassandra.model import DeletionTime, Mutation
from writetime.cassandra.schema.fingerprint import schema_version
from writetime.cassandra.schema.history import SchemaLearner
from writetime.cassandra.schema.model import Column, DroppedColumn, Table, UserType
from writetime.config.warehouse import WarehouseConfig
from writetime.errors import BatchError, PublishError
from writetime.events.envelope import About, place_of
from writetime.pipeline.publish_progress import Published, read_published

pytestmark = [pytest.mark.spark, pytest.mark.timeout(600)]


@pytest.fixture(scope="module")
def pipeline(tmp_path_factory: pytest.TempPathFactory) -> Pipeline:
    return Pipeline.create(tmp_path_factory.mktemp("ddl"))


@pytest.fixture(scope="module")
def spark(pipeline: Pipeline) -> Iterator[SparkSession]:
    session = spark_session(pipeline.config, "tests of DDL")
    yield session
    session.stop()


@pytest.fixture(scope="module")
def warehouse(spark: SparkSession) -> Warehouse:
    return Warehouse(spark, "lake")


def nothing(spark: SparkSession) -> DataFrame:
    return pages(spark, [])


def commits(warehouse: Warehouse, name: str) -> list[tuple[str, str]]:
    """Batch and step of each snapshot, in order."""
    found = warehouse.spark.table(f"lake.{name}.snapshots").orderBy("committed_at").collect()
    return [(row["summary"]["writetime.batch"], row["summary"]["writetime.step"]) for row in found]


def properties(warehouse: Warehouse, name: str) -> dict[str, str]:
    return {row["key"]: row["value"] for row in warehouse.spark.sql(f"SHOW TBLPROPERTIES lake.{name}").collect()}


def published(pipeline: Pipeline, warehouse: Warehouse, of: Table, upto: int) -> list[tuple[Any, Any, bool]]:
    """Keys and values of the table's events as they would go out, and whether a tombstone follows."""
    return [(key, value, row["deletes"]) for key, value, row in outgoing(pipeline, warehouse, of, upto)]


def outgoing(pipeline: Pipeline, warehouse: Warehouse, of: Table, upto: int) -> list[tuple[Any, Any, Row]]:
    found = records_of(pipeline, warehouse, of, upto)
    return [(row["key"] and json.loads(row["key"]), json.loads(row["value"]), row) for row in found]


def records_of(pipeline: Pipeline, warehouse: Warehouse, of: Table, upto: int) -> list[Row]:
    kafka = pipeline.config.kafka
    assert kafka is not None
    outbox = Outbox(pipeline.config, kafka, pipeline.store, warehouse.spark, upto)
    changes = warehouse.open_changes(of)
    assert changes is not None
    incarnation = Incarnation(of, changes, About(pipeline.cluster, of.keyspace, of.name, {}), outbox._topic(of))
    encoder = Encoder.of(kafka, pipeline.config.events, incarnation)

    def records(files: ChangesFiles | None) -> list[Row]:
        (unsent,) = outbox._table_records([(replace(incarnation, files=files), encoder, 0)], Part(upto, "primary_key"))
        return unsent.records().orderBy("batch", "ordinal", "publisher").collect()

    # The same with both readers.
    found, files = records(None), changes.files(0, upto)
    assert files is not None
    assert records(files) == found
    return found


PLACE = UserType("shop", "place", ("x", "y"), ("int", "int"))
RENAMED = table(
    "renamed", 30, {"id": "int", "line": "int", "name": "text", "at": "frozen<place>", "all": "map<frozen<place>, int>"}, clustering=1
)


@pytest.mark.thorough
def test_keys_and_fields_are_renamed_and_history_keeps_its_place(pipeline: Pipeline, warehouse: Warehouse) -> None:
    before = schema_of(RENAMED, types={("shop", "place"): PLACE})
    values = {"name": "n", "at": {"x": 1, "y": 2}, "all": [({"x": 1, "y": 2}, 5)]}
    write(warehouse, RENAMED, 1, insert(RENAMED, 1, values, 7, schema=before), insert(RENAMED, 2, {}, 7, schema=before), schema=before)

    # ALTER TABLE … RENAME line TO name would be refused; without `name` it is not.
    columns = {name: column for name, column in RENAMED.columns.items() if name not in ("line", "name")}
    columns["name"] = Column("name", "clustering", "int", 0)
    after = replace(RENAMED, columns=columns, dropped_columns={"name": DroppedColumn("name", "regular", "text", THEN)})
    wide = UserType("shop", "place", ("z", "y", "more"), ("int", "int", "text"))
    schema = schema_of(after, types={("shop", "place"): wide})
    for _ in range(2):
        warehouse.follow(after, schema, 2)
    stored = warehouse.spark.table("lake.shop.renamed")
    found = stored.selectExpr("id", "name", "_was_1_name", "at", "map_entries(all)[0] AS entry", "_writetime").orderBy("id").collect()
    place = {"z": 1, "y": 2, "more": None}
    one, two = (row.asDict(recursive=True) for row in found)
    assert (one["name"], one["_was_1_name"], one["at"], one["entry"]) == (7, None, place, {"key": place, "value": 5})
    assert one["_writetime"].keys() == {"at", "all"}
    assert (two["name"], two["at"], two["entry"]) == (7, None, None)
    assert commits(warehouse, "shop.renamed") == [("1", "rows"), ("2", "dropped"), ("2", "refill")]
    assert json.loads(properties(warehouse, "shop.renamed")["writetime.keys"]) == ["id", "name"]

    write(warehouse, after, 3, insert(after, 1, {"at": {"z": 3, "y": 4, "more": "m"}}, 8, schema=schema), schema=schema)
    changes = sorted(rows(warehouse, "shop__changes.renamed"), key=lambda row: (row["batch"], row["ordinal"]))
    assert [row["key"] for row in changes] == [{"id": 1, "name": 7}, {"id": 2, "name": 7}, {"id": 1, "name": 8}]
    assert [(row["after"]["name"], row["after"]["_was_1_name"]) for row in changes] == [(7, "n"), (7, None), (8, None)]
    assert changes[0]["after"]["at"] == place
    versions = [schema_version(*pair) for pair in ((RENAMED, before.types), (after, schema.types))]
    assert [row["schema_version"] for row in changes] == [versions[0], versions[0], versions[1]]
    known = properties(warehouse, "shop__changes.renamed")
    assert [json.loads(known[f"writetime.schema.{version}"])["columns"][1]["name"] for version in versions] == ["line", "name"]

    # What is published is what was told at the time, whatever has been done to the table since.
    first, _, last = published(pipeline, warehouse, after, 3)
    place = {"x": 1, "y": 2}
    assert first[0] == {"id": 1, "line": 7}
    assert first[1]["after"] == {"id": 1, "line": 7, "name": "n", "at": place, "all": [{"key": place, "value": 5}]}
    # A key keeps the names with which its records began.
    assert last[0] == {"id": 1, "line": 8}
    assert last[1]["after"] == {"id": 1, "name": 8, "at": {"z": 3, "y": 4, "more": "m"}, "all": None}


@pytest.mark.thorough
def test_events_tell_what_a_column_held_before_it_was_dropped_or_made_anew(pipeline: Pipeline, warehouse: Warehouse) -> None:
    first = table("told", 37, {"id": "int", "v": "text", "w": "int"})
    schema = schema_of(first)
    write(warehouse, first, 1, insert(first, 1, {"v": "old", "w": 1}, schema=schema), schema=schema)
    gone = replace(first, columns={name: column for name, column in first.columns.items() if name != "v"})
    gone = replace(gone, dropped_columns={"v": DroppedColumn("v", "regular", "text", THEN + 5)})
    rows_of_it = {"key": {"id": 1}, "before": {"id": 1, "v": "old", "w": 1}, "after": {"id": 1, "w": 1}}
    event = {**of_the_table("u", "alter", THEN + 5), **rows_of_it, "changed": ["v"]}
    # As it is typed: with the column that has gone.
    warehouse.write_changes(gone, schema_of(gone), told(warehouse.spark, first, (event, False)), 2)
    anew = replace(gone, columns={**gone.columns, "v": Column("v", "regular", "blob")})
    write(warehouse, anew, 3, insert(anew, 1, {"v": b"new"}, timestamp=THEN + 9, schema=schema_of(anew)), schema=schema_of(anew))
    for upto in (1, 2, 3):
        sent = [(value["before"], value["after"], value["changed"]) for _, value, _ in published(pipeline, warehouse, anew, upto)]
        assert (
            sent
            == [
                (None, {"id": 1, "v": "old", "w": 1}, ["v", "w"]),
                ({"id": 1, "w": 1, "v": "old"}, {"id": 1, "w": 1}, ["v"]),
                (None, {"id": 1, "v": "bmV3", "w": None}, ["v"]),
            ][:upto]
        )


def test_nothing_of_a_life_is_published_after_its_drop(pipeline: Pipeline, warehouse: Warehouse) -> None:
    old, new = (replace(table("over", number << 96, {"id": "int", "v": "int"}), dropped=number == 0xAB) for number in (0xAB, 0xCD))
    write(warehouse, replace(old, dropped=False), 1, insert(old, 1, {"v": 1}, schema=schema_of(old)), schema=schema_of(old))
    schema = schema_of(old, new)
    last = events(warehouse.spark, [insert(old, 2, {"v": 2}, schema=schema)], schema)
    drop = told(warehouse.spark, old, (of_the_table("t", "drop", THEN + 5), False), start=1)
    warehouse.write_changes(old, schema, last.union(drop), 2)
    # A node was down, and its log comes late.
    warehouse.write_changes(old, schema, events(warehouse.spark, [insert(old, 3, {"v": 3}, schema=schema)], schema), 3)
    warehouse.write_changes(new, schema, events(warehouse.spark, [insert(new, 1, {"v": 4}, schema=schema)], schema, start=1), 3)
    sent = published(pipeline, warehouse, old, 3)
    assert [(value["op"], value["source"]["reason"], place_of(value)) for _, value, _ in sent] == [
        ("c", None, (1, 1)),
        ("c", None, (2, 1)),
        ("t", "drop", (2, 2)),
    ]
    assert (sent[-1][0], sent[-1][2]) == (None, False)
    assert {value["source"]["table_id"] for _, value, _ in sent} == {str(old.id)}
    assert [(key, value["source"]["table_id"]) for key, value, _ in published(pipeline, warehouse, new, 3)] == [({"id": 1}, str(new.id))]
    assert len(rows(warehouse, "shop__changes.over__000000ab")) == 4


class Counting(Publisher):
    """A publisher that says how many events it was given."""

    def send_all(self, found: Iterable[Any]) -> Iterator[Sent]:
        topics = Counter(row[RECORDS.get_field_index("topic")] for row in found)
        stuck = {topic: PublishError("one is too large") for topic in topics if topic.endswith(".large")}
        yield Sent(sum(count for topic, count in topics.items() if topic not in stuck), stuck)


@pytest.mark.thorough
def test_a_table_that_cannot_be_published_holds_up_no_other(
    pipeline: Pipeline, spark: SparkSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    long = "漢" * 36
    tables = [table(name, number, {"id": "int"}) for number, name in ((40, "fine"), (41, "foreign"), (42, long), (43, "large"))]
    learner = SchemaLearner()
    for each in tables:
        learner.apply(create_table(each, THEN))
    refusals: dict[str, BatchError] = {"foreign": BatchError("somebody else made it")}

    def opened(_: Warehouse, of: Table, __: Any = ()) -> Changes:
        if of.name in refusals:
            raise refusals[of.name]
        return Changes(spark.createDataFrame([], "batch bigint, ordinal bigint, table_id string, schema_version bigint"), {})

    def records(_: Outbox, tables: Iterable[tuple[Incarnation, Encoder, int]], part: Part) -> list[Unsent]:
        event = bytearray(b"k"), bytearray(b"v"), "u", False, None, None
        found = [
            (0, incarnation.topic, incarnation.topic, batch, 1, *event)
            for incarnation, _, since in tables
            for batch in range(since + 1, part.last + 1)
        ]
        return [Unsent(spark.createDataFrame(found, schema=from_arrow_schema(RECORDS)), lambda batches: batches)]

    monkeypatch.setattr(publish, "message_limits", lambda *_: ({}, {}))
    monkeypatch.setattr(publish, "read_schema", lambda *_: learner)
    monkeypatch.setattr(publish, "read_manifest", lambda *_: SimpleNamespace(nodes={}, id=None))
    monkeypatch.setattr(publish, "ensure_topics", lambda *_: {})
    monkeypatch.setattr(publish, "expect_own", lambda *_: None)
    monkeypatch.setattr(publish, "Publisher", Counting)
    monkeypatch.setattr(Warehouse, "open_changes", opened)
    monkeypatch.setattr(Outbox, "_table_records", records)
    kafka, broker = pipeline.config.kafka, Broker(time.time)
    assert kafka is not None

    def drained(batch: int) -> Published:
        with installed(broker):
            done = Outbox(pipeline.config, kafka, pipeline.store, spark, batch).drain(everything=False)
        assert done == read_published(pipeline.store, pipeline.cluster)
        assert done.reasons.keys() == done.waiting.keys()
        return done

    # Kafka allows no topic that would have to be called after the last one.
    first = drained(1)
    assert (first.batch, first.events, first.waiting) == (1, 1, {"shop.foreign": 0, "shop.large": 0, f"shop.{long}": 0})
    refusals.clear()
    last = drained(2)
    assert (last.batch, last.events, last.waiting) == (2, 1 + 2, {"shop.large": 0, f"shop.{long}": 0})
    refusals["foreign"] = BatchError("another driver is at it", retriable=True)
    with pytest.raises(BatchError, match="another driver"):
        drained(3)
    assert read_published(pipeline.store, pipeline.cluster) == last


def test_a_key_that_is_spelled_otherwise_is_the_same_record(pipeline: Pipeline, warehouse: Warehouse) -> None:
    prices = table("spelled", 44, {"id": "int", "price": "decimal", "v": "int"}, clustering=1)
    schema = schema_of(prices)

    def again(key: int) -> Mutation:
        (update,) = insert(prices, key, {"v": 2}, Decimal("1.00"), timestamp=THEN + 2, schema=schema).updates
        return Mutation((replace(update, deletion=DeletionTime(THEN + 1, THEN // 10**6)),))

    first = [insert(prices, key, {"v": 1}, Decimal("1.0"), schema=schema) for key in range(1, 21)]
    write(warehouse, prices, 1, *first, schema=schema)
    write(warehouse, prices, 2, *first, *(again(key) for key in range(1, 11)), schema=schema)
    kept = {row["key"]: (row["publisher"], json.loads(row["value"])["after"]) for row in records_of(pipeline, warehouse, prices, 2)}
    assert sorted((after["id"], after["price"], after["v"]) for _, after in kept.values()) == [
        *((key, "1", 2) for key in range(1, 11)),
        *((key, "1", 1) for key in range(11, 21)),
    ]


@pytest.mark.thorough
def test_no_rename_gives_a_key_to_another_publisher(pipeline: Pipeline, warehouse: Warehouse) -> None:
    """Who sends an event decides whose progress says that it was sent."""
    columns = {"id": "int", "line": "frozen<map<frozen<place>, double>>", "v": "int"}
    before = table("shared", 36, columns, clustering=1)
    types = {("shop", "place"): PLACE}
    narrow = schema_of(before, types=types)
    keys = [(key, [({"x": key, "y": None}, 0.5)] if key % 3 else []) for key in range(1, 21)]
    write(warehouse, before, 1, *(insert(before, key, {"v": 1}, line, schema=narrow) for key, line in keys), schema=narrow)
    shares = [row["publisher"] for _, _, row in outgoing(pipeline, warehouse, before, 1)]
    assert set(shares) == {0, 1}

    renamed = {("key" if name == "id" else name): column for name, column in before.columns.items()}
    renamed["key"] = replace(renamed["key"], name="key")
    after = replace(before, columns=renamed)
    wide = schema_of(after, types=types)
    write(warehouse, after, 2, *(insert(after, key, {"v": 2}, line, timestamp=THEN + 1, schema=wide) for key, line in keys), schema=wide)
    found = outgoing(pipeline, warehouse, after, 2)
    # A record's key keeps its names: it would be another one, in another partition.
    assert [key for key, _, _ in found[:20]] == [key for key, _, _ in found[20:]]
    assert [value["after"].keys() & {"id", "key"} for _, value, _ in found] == [{"id"}] * 20 + [{"key"}] * 20
    assert [row["publisher"] for _, _, row in found] == shares + shares


@pytest.mark.parametrize("facts", ["map", "none"])
def test_what_was_dropped_does_not_come_back(spark: SparkSession, facts: Any) -> None:
    warehouse = Warehouse(spark, "lake", WarehouseConfig(cell_facts=facts, writes="copy-on-write"))
    name = f"dropped_{facts}"
    first = table(name, 31, {"id": "int", "it's": "text", "v": "text"})
    schema = schema_of(first)
    batch = [insert(first, key, {"it's": "x", "v": "old"}, timestamp=THEN + 10 * key, schema=schema) for key in (1, 2, 3)]
    write(warehouse, first, 1, *batch, schema=schema)
    # Dropped, and added again, before the next batch; row 3 was written ahead of the clock.
    again = replace(first, dropped_columns={"v": DroppedColumn("v", "regular", "text", THEN + 20)})
    schema = schema_of(again)
    write(warehouse, again, 2, insert(again, 2, {"v": "new"}, timestamp=THEN + 100, schema=schema), schema=schema)
    found = {row["id"]: row for row in rows(warehouse, f"shop.{name}")}
    # Where there are no writetimes it is the fold that knows row 1 from row 3, and tells of it with the batch
    # that learns of the drop.
    assert {key: row["v"] for key, row in found.items()} == {1: "old" if facts == "none" else None, 2: "new", 3: "old"}
    assert found[1]["_it_x27_s"] == "x"
    if facts == "none":
        assert "_writetime" not in found[1]
    else:
        dated = {key: row["_writetime"] for key, row in found.items()}
        assert dated[1] == {"it's": THEN + 10}
        assert dated[3] == {"it's": THEN + 30, "v": THEN + 30}
        assert dated[2]["v"] == THEN + 100

    # Dropped again and made anew with another type, in rows that nobody touches.
    gone = {"v": DroppedColumn("v", "regular", "text", THEN + 200)}
    third = replace(again, dropped_columns=gone, columns={**again.columns, "v": Column("v", "regular", "blob")})
    for _ in range(2):
        warehouse.follow(third, schema_of(third), 3)
    assert {(row["v"], row["_was_1_v"]) for row in rows(warehouse, f"shop.{name}")} == {(None, None)}
    told = [("1", "rows"), ("2", "dropped"), ("2", "rows"), ("3", "dropped"), ("3", "refill")]
    assert commits(warehouse, f"shop.{name}") == [each for each in told if each != ("2", "dropped") or facts != "none"]
    history = sorted((row["batch"], row["ordinal"], row["after"]["_was_1_v"]) for row in rows(warehouse, f"shop__changes.{name}"))
    assert [value for _, _, value in history] == ["old", "old", "old", "new"]
    assert properties(warehouse, f"shop.{name}")["write.merge.mode"] == "copy-on-write"
    Warehouse(spark, "lake").follow(third, schema_of(third), 4)
    assert properties(warehouse, f"shop.{name}")["write.merge.mode"] == "merge-on-read"


def test_a_table_made_anew_is_empty_until_it_is_written_to(warehouse: Warehouse, monkeypatch: pytest.MonkeyPatch) -> None:
    old = table("anew", 0xABCDEF01 << 96, {"id": "int", "v": "int"})
    new = table("anew", 0x12345678 << 96, {"id": "int", "v": "text"})
    write(warehouse, old, 1, insert(old, 1, {"v": 1}, schema=schema_of(old)), schema=schema_of(old))
    warehouse.follow(new, schema_of(replace(old, dropped=True), new), 2)
    assert rows(warehouse, "shop.anew") == []
    assert [row["v"] for row in rows(warehouse, "shop.anew__abcdef01")] == [1]
    # Whoever publishes the old one's changes may have looked for them before they move.
    held = IcebergTable(warehouse.spark, "lake.shop__changes.anew")
    write(warehouse, new, 3, insert(new, 1, {"v": "x"}, schema=schema_of(new)), schema=schema_of(new))
    changes = warehouse.open_changes(old)
    assert changes is not None
    assert [row["after"]["v"] for row in changes.rows.collect()] == [1]
    monkeypatch.setattr(warehouse, "changes_of", lambda _: "lake.shop__changes.anew")
    for name, loads in (("when the name is known", IcebergTable), ("when the table is loaded", lambda *_: held)):
        monkeypatch.setattr("spark_jobs.sinks.spark_catalog.IcebergTable", loads)
        with pytest.raises(BatchError, match="created again under another id") as raised:
            warehouse.open_changes(old)
        assert raised.value.retriable, name
    monkeypatch.undo()
    # A table that has never had rows gets none: nobody has told of it.
    never = table("never", 33, {"id": "int"})
    warehouse.follow(never, schema_of(never), 2)
    assert not warehouse.spark.catalog.tableExists("lake.shop.never")


def of_the_table(op: str, reason: str, at: int) -> dict[str, Any]:
    """An event without rows."""
    event = truncation(truncated_at=at, now=NOW, nodes=["host-a"], expected=3, file=None, pos=None)
    return {**event, "op": op, "reason": reason}


def told(spark: SparkSession, of: Table, *found: tuple[dict[str, Any], bool], start: int = 0) -> DataFrame:
    """Events that the stream tells, and others that are the last of their rows and have no ordinal."""
    listed = [(None if last else start + at, last, event) for at, (event, last) in enumerate(found, 1)]
    return pages(spark, [page_row(of.id.bytes, page_of(RowShape.of(of, schema_of(of)), listed))])


def test_a_truncate_takes_all_rows_in_one_commit_and_is_one_event(pipeline: Pipeline, warehouse: Warehouse) -> None:
    cut = table("cut", 34, {"id": "int", "line": "int", "v": "text"}, clustering=1)
    schema = schema_of(cut)
    write(warehouse, cut, 1, *(insert(cut, key, {"v": "old"}, 1, schema=schema) for key in (1, 2, 3)), schema=schema)
    event = truncation(truncated_at=THEN + 5, now=NOW, nodes=["host-a"], expected=3, file="CommitLog-7-1.log", pos=9)
    after = events(warehouse.spark, [insert(cut, 2, {"v": "new"}, 1, timestamp=THEN + 9, schema=schema)], schema, start=1)
    for _ in range(2):
        warehouse.write_changes(cut, schema, told(warehouse.spark, cut, (event, False)).union(after), 2)
        warehouse.replace_current(cut, schema, told(warehouse.spark, cut, (event, False)).union(after), 2)
    assert [(row["id"], row["v"]) for row in rows(warehouse, "shop.cut")] == [(2, "new")]
    assert commits(warehouse, "shop.cut") == [("1", "rows"), ("2", "rows")]
    # And once more, with nothing after it.
    warehouse.replace_current(cut, schema, nothing(warehouse.spark), 3)
    assert rows(warehouse, "shop.cut") == []
    key, value, deletes = published(pipeline, warehouse, cut, 3)[3]
    assert (key, value["op"], value["before"], value["after"], deletes) == (None, "t", None, None, False)
    assert (value["source"]["reason"], place_of(value), value["source"]["ts_us"]) == ("truncate", (2, 1), THEN + 5)


def test_the_rows_of_a_dropped_table_go_whatever_its_name_is_by_now(warehouse: Warehouse) -> None:
    old = table("emptied", 0xABCDEF02 << 96, {"id": "int", "v": "int"})
    new = table("emptied", 0x12345679 << 96, {"id": "int", "v": "text"})
    write(warehouse, old, 1, *(insert(old, key, {"v": key}, schema=schema_of(old)) for key in (1, 2)), schema=schema_of(old))
    gone = replace(old, dropped=True)
    for _ in range(2):
        warehouse.empty_current(gone, 2)
    assert rows(warehouse, "shop.emptied") == []
    assert commits(warehouse, "shop.emptied") == [("1", "rows"), ("2", "rows")]
    assert len(rows(warehouse, "shop__changes.emptied")) == 2
    both = schema_of(gone, new)
    write(warehouse, new, 3, insert(new, 1, {"v": "text"}, schema=both), schema=both)
    warehouse.empty_current(gone, 4)
    assert commits(warehouse, "shop.emptied__abcdef02")[2:] == [("4", "rows")]
    assert [row["v"] for row in rows(warehouse, "shop.emptied")] == ["text"]
    # One that never had rows has nothing to lose, and gets no table.
    warehouse.empty_current(replace(table("never_was", 36, {"id": "int"}), dropped=True), 4)
    assert not warehouse.spark.catalog.tableExists("lake.shop.never_was")


def test_a_delete_of_many_rows_as_one_event(pipeline: Pipeline, warehouse: Warehouse) -> None:
    ranged = table("ranged", 35, {"id": "int", "line": "int", "v": "text"}, clustering=1)
    schema = schema_of(ranged)
    write(warehouse, ranged, 1, *(insert(ranged, 1, {"v": "old"}, line, schema=schema) for line in (1, 2)), schema=schema)
    source = {"nodes": ["host-a"], "replicas_expected": 3, "file": "CommitLog-7-1.log", "pos": 9}
    within = {"start": {"line": 2}, "start_inclusive": True, "end": None, "end_inclusive": False}
    one = deletion(key={"id": 1, "line": None}, within=within, ts_micro=THEN + 5, now=NOW, source=source)
    key = {"id": 1, "line": 2}
    row = {**one, "key": key, "before": {**key, "v": "old"}, "changed": ["v"], "bounds": None}
    found = told(warehouse.spark, ranged, (one, False), (row, True))
    warehouse.write_changes(ranged, schema, found, 2)
    warehouse.merge_current(ranged, schema, found, 2)
    assert [row["line"] for row in rows(warehouse, "shop.ranged")] == [1]
    sent = published(pipeline, warehouse, ranged, 2)
    assert len(sent) == 3
    key, value, deletes = sent[-1]
    assert (key, value["op"], value["before"], deletes) == ({"id": 1, "line": None}, "d", None, False)
    assert value["source"]["bounds"] == within
