"""Current rows replaced by their positions: the same as MERGE makes, whatever others do to the table meanwhile."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from py4j.clientserver import ClientServerConnection  # type: ignore[import-untyped]
from py4j.protocol import MEMORY_COMMAND_NAME  # type: ignore[import-untyped]
from pyspark.sql import SparkSession

from spark_jobs.session import spark_session
from spark_jobs.sinks import iceberg, iceberg_table, row_positions
from spark_jobs.sinks.iceberg import Warehouse
from spark_jobs.sinks.iceberg_table import IcebergTable
from spark_jobs.sinks.row_positions import HeldFile, can_look_up, in_shares
from tests.spark_jobs.examples import THEN, delete, insert, schema_of, table
from tests.spark_jobs.pipeline import Pipeline
from tests.spark_jobs.test_iceberg import events, rows
from writetime.cassandra.model import Cell, Mutation, PartitionUpdate, Row
from writetime.cassandra.schema.model import Table
from writetime.config.warehouse import WarehouseConfig
from writetime.errors import BatchBusy

pytestmark = [pytest.mark.spark, pytest.mark.timeout(600)]


@pytest.fixture(scope="module")
def spark(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkSession]:
    session = spark_session(Pipeline.create(tmp_path_factory.mktemp("positions")).config, "tests of positions")
    yield session
    session.stop()


@pytest.fixture(scope="module")
def warehouse(spark: SparkSession) -> Warehouse:
    return Warehouse(spark, "lake", WarehouseConfig(writes="merge-on-read"))


@pytest.fixture
def by_position(monkeypatch: pytest.MonkeyPatch) -> list[tuple[int, int]]:
    """Data and delete files of each commit that replaces rows by position."""
    found: list[tuple[int, int]] = []
    real = IcebergTable.replace_rows

    def noted(held: IcebergTable, target: Any, files: Sequence[Any], deletes: Sequence[Any], *others: Any) -> None:
        real(held, target, files, deletes, *others)
        found.append((len(files), len(deletes)))

    monkeypatch.setattr(IcebergTable, "replace_rows", noted)
    return found


def merge(warehouse: Warehouse, of: Table, batch: int, *mutations: Mutation) -> None:
    schema = schema_of(of)
    warehouse.merge_current(of, schema, events(warehouse.spark, mutations, schema), batch)


def held_rows(warehouse: Warehouse, of: Table) -> list[tuple[Any, ...]]:
    return sorted((tuple(row[name] for name in of.columns) for row in rows(warehouse, f"shop.{of.name}")), key=repr)


def test_rows_are_those_of_a_merge(warehouse: Warehouse, by_position: list[tuple[int, int]]) -> None:
    columns = {"id": "int", "name": "text", "note": "static text", "v": "text", "more": "frozen<list<int>>"}
    ours, theirs = (table(name, number, columns, clustering=1) for name, number in (("places", 90), ("merged", 91)))
    copied = Warehouse(warehouse.spark, "lake", WarehouseConfig(writes="copy-on-write"))
    rng = random.Random(7)

    def mutation(of: Table, key: int, line: str, what: float, at: int) -> Mutation:
        if what < 0.2:
            return delete(of, key, at)
        if what < 0.3:
            static = Row(None, cells=(Cell("note", at, f"n{at}".encode()),))
            return Mutation((PartitionUpdate(of.id, key.to_bytes(4), static_row=static),))
        return insert(of, key, {"v": f"v{at}", "more": [key, at % 7]}, line, timestamp=at, schema=schema_of(of))

    for batch in range(1, 6):
        wanted = [(rng.randint(1, 12), rng.choice("abcé"), rng.random()) for _ in range(25)]
        for of, into in ((ours, warehouse), (theirs, copied)):
            merge(into, of, batch, *(mutation(of, *each, THEN + batch * 100 + n) for n, each in enumerate(wanted)))
        assert held_rows(warehouse, ours) == held_rows(copied, theirs)
    assert len(by_position) == 4
    assert sum(deletes for _, deletes in by_position) > 3
    # One delete file for each data file, whatever the number of commits.
    deletes = warehouse.spark.sql("SELECT * FROM lake.shop.places.delete_files").collect()
    referenced = [row["referenced_data_file"] for row in deletes]
    assert len(set(referenced)) == len(referenced)
    # Iceberg's own count, by records and position deletes, is that of the rows: none is deleted twice.
    assert IcebergTable(warehouse.spark, "lake.shop.places").rows == len(held_rows(warehouse, ours))


def test_files_are_listed_with_few_calls_to_the_jvm(warehouse: Warehouse, monkeypatch: pytest.MonkeyPatch) -> None:
    """A call takes a third of a millisecond, and a small batch lists the files of all its tables."""
    of = table("calls", 96, {"id": "int", "v": "text"})
    calls: list[str] = []
    real = ClientServerConnection.send_command

    def counted(connection: ClientServerConnection, command: str) -> str:
        # Python's collector may let go of objects of earlier tests at any time.
        if not command.startswith(MEMORY_COMMAND_NAME):
            calls.append(command)
        return str(real(connection, command))

    counts = []
    for batch in range(1, 6):
        # Of each earlier file a row goes.
        changed = (insert(of, key, {"v": "a"}, timestamp=THEN + batch, schema=schema_of(of)) for key in (*range(1, batch), 10 * batch))
        merge(warehouse, of, batch, *changed)
        held = IcebergTable(warehouse.spark, "lake.shop.calls")
        assert held.snapshot is not None
        with monkeypatch.context() as patch:
            patch.setattr(ClientServerConnection, "send_command", counted)
            files = held.rows_by_file(held.snapshot)
        assert files is not None
        counts.append((len(files), sum(len(file.deletes) for file in files), len(calls)))
        calls.clear()
    (few, _, first), (many, deletes, last) = counts[1], counts[-1]
    assert (few, many) == (2, 5)
    assert deletes > 1
    assert last - first <= 5 * (many - few), counts


def test_a_batch_that_changes_no_row_is_noted(warehouse: Warehouse, by_position: list[tuple[int, int]]) -> None:
    of = table("unmoved", 92, {"id": "int", "v": "text"})
    merge(warehouse, of, 1, insert(of, 1, {"v": "a"}, schema=schema_of(of)))
    merge(warehouse, of, 2, insert(of, 2, {"v": "b"}, schema=schema_of(of)), delete(of, 2, THEN + 5))
    assert by_position == [(0, 0)]
    assert IcebergTable(warehouse.spark, "lake.shop.unmoved").summaries[-1]["writetime.batch"] == "2"
    merge(warehouse, of, 2, insert(of, 1, {"v": "never"}, timestamp=THEN + 9, schema=schema_of(of)))
    assert held_rows(warehouse, of) == [(1, "a")]


def test_files_of_a_batch_with_too_many_keys_are_not_left(
    warehouse: Warehouse, by_position: list[tuple[int, int]], monkeypatch: pytest.MonkeyPatch
) -> None:
    of = table("many", 93, {"id": "int", "v": "text"})
    merge(warehouse, of, 1, insert(of, 1, {"v": "a"}, schema=schema_of(of)))
    monkeypatch.setattr(iceberg, "MAX_KEY_BYTES", 10)
    merge(warehouse, of, 2, insert(of, 1, {"v": "b"}, timestamp=THEN + 1, schema=schema_of(of)))
    assert (by_position, held_rows(warehouse, of)) == ([], [(1, "b")])
    assert unknown_files(warehouse, of) == set()


def unknown_files(warehouse: Warehouse, of: Table) -> set[str]:
    """Files in the folder of a table that none of its snapshots knows."""
    known = {row["file_path"] for row in warehouse.spark.table(f"lake.shop.{of.name}.all_files").collect()}
    (location,) = {path.partition("/data/")[0] for path in known}
    return {str(path) for path in Path(location).rglob("*.parquet")} - known


@pytest.mark.parametrize(
    ("statement", "expected"),
    [
        ("ALTER TABLE {} SET TBLPROPERTIES ('write.delete.granularity'='partition')", 0),
        ("ALTER TABLE {} SET TBLPROPERTIES ('write.parquet.row-group-size-bytes'='1000')", 0),
        ("ALTER TABLE {} SET TBLPROPERTIES ('format-version'='3')", 0),
        ("ALTER TABLE {} ADD PARTITION FIELD bucket(4, id)", 0),
        ("ALTER TABLE {} ADD COLUMN theirs string", 0),
        ("ALTER TABLE {} SET TBLPROPERTIES ('comment'='ours')", 1),
    ],
)
def test_tables_set_up_otherwise_are_merged(
    warehouse: Warehouse, by_position: list[tuple[int, int]], statement: str, expected: int
) -> None:
    of = table("otherwise", 94, {"id": "int", "v": "text"})
    warehouse.spark.sql("DROP TABLE IF EXISTS lake.shop.otherwise PURGE")
    merge(warehouse, of, 1, insert(of, 1, {"v": "a"}, schema=schema_of(of)))
    warehouse.spark.sql(statement.format("lake.shop.otherwise"))
    merge(warehouse, of, 2, insert(of, 1, {"v": "b"}, timestamp=THEN + 1, schema=schema_of(of)))
    assert (held_rows(warehouse, of), len(by_position)) == ([(1, "b")], expected)


# --- somebody else at the table, between what was looked at and the commit

KEPT = table("kept", 95, {"id": "int", "v": "text"})


def rewritten(spark: SparkSession) -> None:
    spark.sql("CALL lake.system.rewrite_data_files(table => 'shop.kept', options => map('rewrite-all', 'true'))").collect()


def updated(spark: SparkSession) -> None:
    spark.sql("UPDATE lake.shop.kept SET v = 'theirs' WHERE id = 2")


def added(spark: SparkSession) -> None:
    spark.sql("INSERT INTO lake.shop.kept SELECT * FROM lake.shop.kept WHERE id = 2")


def rolled_back(spark: SparkSession) -> None:
    first = spark.sql("SELECT snapshot_id FROM lake.shop.kept.snapshots ORDER BY committed_at").first()
    assert first is not None
    spark.sql(f"CALL lake.system.rollback_to_snapshot('shop.kept', {first[0]})").collect()


OTHERS = {
    "rewritten": (rewritten, {"expect_files"}),
    "updated": (updated, {"expect_no_changes"}),
    "added": (added, {"expect_no_changes"}),
    # Without a snapshot to begin from, all earlier commits would be conflicts.
    "rolled back": (rolled_back, {"since", "expect_no_changes"}),
}


def commit_after(monkeypatch: pytest.MonkeyPatch, spark: SparkSession, action: Callable[[SparkSession], None]) -> None:
    real = IcebergTable.replace_rows
    waiting = [action]

    def late(held: IcebergTable, *arguments: Any) -> None:
        if waiting:
            waiting.pop()(spark)
        real(held, *arguments)

    monkeypatch.setattr(IcebergTable, "replace_rows", late)


def two_batches(warehouse: Warehouse) -> None:
    warehouse.spark.sql("DROP TABLE IF EXISTS lake.shop.kept PURGE")
    schema = schema_of(KEPT)
    merge(warehouse, KEPT, 1, *(insert(KEPT, n, {"v": "a"}, schema=schema) for n in (1, 2, 3)))
    merge(warehouse, KEPT, 2, insert(KEPT, 2, {"v": "b"}, timestamp=THEN + 1, schema=schema))


def third_batch(warehouse: Warehouse) -> None:
    merge(warehouse, KEPT, 3, insert(KEPT, 2, {"v": "c"}, timestamp=THEN + 2, schema=schema_of(KEPT)))


@pytest.mark.parametrize("other", OTHERS)
def test_what_somebody_else_did_meanwhile_is_noticed(warehouse: Warehouse, monkeypatch: pytest.MonkeyPatch, other: str) -> None:
    two_batches(warehouse)
    commit_after(monkeypatch, warehouse.spark, OTHERS[other][0])
    with pytest.raises(BatchBusy):
        third_batch(warehouse)
    assert unknown_files(warehouse, KEPT) == set()
    monkeypatch.undo()
    if other == "added":
        warehouse.spark.sql("DELETE FROM lake.shop.kept WHERE id = 2")
    third_batch(warehouse)
    assert held_rows(warehouse, KEPT) == [(1, "a"), (2, "c"), (3, "a")]


@pytest.mark.parametrize("other", OTHERS)
def test_without_its_check_it_is_not(warehouse: Warehouse, monkeypatch: pytest.MonkeyPatch, other: str) -> None:
    """Each check is needed: without it the commit goes through, and a key is there twice, or a row is lost."""
    action, checks = OTHERS[other]
    two_batches(warehouse)
    monkeypatch.setattr(iceberg_table, "_CHECKS", {name: made for name, made in iceberg_table._CHECKS.items() if name not in checks})
    commit_after(monkeypatch, warehouse.spark, action)
    third_batch(warehouse)
    assert held_rows(warehouse, KEPT) != [(1, "a"), (2, "c"), (3, "a")]


# --- without Spark


def test_what_is_compared_otherwise_is_merged() -> None:
    def kinds(*found: pa.DataType) -> pa.Schema:
        return pa.schema([(f"c{at}", kind) for at, kind in enumerate(found)])

    assert can_look_up(kinds(pa.string(), pa.list_(pa.int32())))
    for kind in (pa.float64(), pa.map_(pa.string(), pa.int32()), pa.list_(pa.struct([("x", pa.float32())]))):
        assert not can_look_up(kinds(pa.string(), kind))
    assert not can_look_up(kinds(pa.list_(pa.int32())))


def test_tasks_share_files_by_their_rows() -> None:
    files = [(str(n), HeldFile(str(n), 1, size, ())) for n, size in enumerate([10, 20, 3 * row_positions.ROWS_PER_TASK, 30])]
    shares = in_shares(files, 2)
    assert sorted(file.path for share in shares for _, file in share) == ["0", "1", "2", "3"]
    assert len(shares) == 4
    assert len(in_shares(files[:2], 8)) == 2
