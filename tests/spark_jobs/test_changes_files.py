"""Changes read from their files with Arrow: hashes as Spark's, columns by field id. That publishing reads the same
events as with Spark's reader is held in test_ddl and test_iceberg."""

from __future__ import annotations

import datetime
from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pyspark.sql import SparkSession
from pyspark.sql import functions as F

from spark_jobs.session import spark_session
from spark_jobs.sinks import changes_files
from spark_jobs.sinks.changes_files import ChangesFiles, DataFile, Span, Spans, Wanted, shared_out
from spark_jobs.sinks.field_ids import with_ids
from spark_jobs.sinks.key_hash import hashes, is_hashable
from tests.examples import examples
from tests.spark_jobs.pipeline import Pipeline

WANTED = Wanted("t", 1, 3, frozenset(), frozenset(), 1, 2)
KEYS = {
    "s": (pa.string(), st.text()),
    "b": (pa.binary(), st.binary(max_size=70)),
    "yes": (pa.bool_(), st.booleans()),
    "tiny": (pa.int8(), st.integers(-(2**7), 2**7 - 1)),
    "small": (pa.int16(), st.integers(-(2**15), 2**15 - 1)),
    "i": (pa.int32(), st.integers(-(2**31), 2**31 - 1)),
    "l": (pa.int64(), st.integers(-(2**63), 2**63 - 1)),
    "day": (pa.date32(), st.dates(datetime.date(1600, 1, 1))),
    "at": (pa.timestamp("us", "UTC"), st.datetimes(datetime.datetime(1600, 1, 1), timezones=st.just(datetime.UTC))),
}
SCHEMA = pa.schema([(name, kind) for name, (kind, _) in KEYS.items()])


@pytest.fixture(scope="module")
def spark(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkSession]:
    session = spark_session(Pipeline.create(tmp_path_factory.mktemp("files")).config, "tests of changes files")
    yield session
    session.stop()


@st.composite
def keys(draw: st.DrawFn) -> list[dict[str, Any]]:
    row = st.fixed_dictionaries({name: st.none() | values for name, (_, values) in KEYS.items()})
    return draw(st.lists(row, min_size=1, max_size=40))


@pytest.mark.spark
@pytest.mark.timeout(300)
def test_keys_hash_as_spark_hashes_them(spark: SparkSession) -> None:
    found: list[dict[str, Any]] = []

    @settings(max_examples=examples(60))
    @given(keys())
    def collect(rows: list[dict[str, Any]]) -> None:
        found.extend(rows)

    collect()
    table = pa.Table.from_pylist(found, schema=SCHEMA)
    expected = [row.h for row in spark.createDataFrame(table).select(F.xxhash64(*SCHEMA.names).alias("h")).collect()]
    (whole,) = table.combine_chunks().to_batches()
    assert len(set(expected)) > 10
    assert hashes(whole.columns, len(found)).tolist() == expected


@pytest.mark.parametrize("kind", [pa.float64(), pa.decimal128(10, 2), pa.list_(pa.int32()), pa.struct([("x", pa.int32())])])
def test_other_keys_are_left_to_spark(kind: pa.DataType) -> None:
    assert not is_hashable(kind)
    schema = pa.schema([("key", pa.struct([("id", pa.int32()), ("line", kind)]))])
    assert [ChangesFiles([], schema).owns_by(number) for number in (1, 2)] == [True, False]
    with pytest.raises(TypeError, match="xxhash64 of"):
        hashes([pa.nulls(1, kind)], 1)


def test_tasks_share_files_by_their_bytes() -> None:
    files = [("t", DataFile(str(n), size)) for n, size in enumerate([1, 1, 98, 50, 50, 300 << 20])]
    assert [[path for _, path in share] for share in shared_out(files, 2)] == [["0", "1", "2", "3", "4", "5"]]
    assert [[path for _, path in share] for share in shared_out(files[:5], 2)] == [["0", "1", "2", "3"], ["4"]]
    assert [[path for _, path in share] for share in shared_out(files[:5], 200)] == [["0", "1"], ["2"], ["3"], ["4"]]
    assert shared_out([], 2) == []
    large = [("t", DataFile(str(n), 40 << 20)) for n in range(3)]
    assert shared_out(large, 1) == [[("t", "0")], [("t", "1")], [("t", "2")]]


# --- columns by field id


def struct(*fields: tuple[int, str, Any]) -> dict[str, Any]:
    return {"type": "struct", "fields": [{"id": number, "name": name, "type": kind} for number, name, kind in fields]}


def rows_of(folder: Path, written: pa.Table, ids: dict[str, Any], columns: pa.Schema, now: dict[str, Any]) -> list[dict[str, Any]]:
    """Rows of a file with these columns, written when the table had `ids`, as a table reads them with `now`."""
    path = folder / "f.parquet"
    pq.write_table(written.cast(with_ids(written.schema, ids)), path, store_schema=False)
    files = ChangesFiles([DataFile(str(path), 1)], with_ids(columns, now))
    batches = [*files.read(str(path), WANTED)]
    assert all(batch.schema.remove(len(columns)).equals(columns) for batch in batches)
    return [row for batch in batches for row in batch.to_pylist()]


COMMON = [("batch", pa.int64()), ("table_id", pa.string()), ("op", pa.string())]
IDS = [(1, "batch", "long"), (2, "table_id", "string"), (3, "op", "string")]


def common(batch: int = 2, **others: Any) -> dict[str, Any]:
    return {"batch": batch, "table_id": "t", "op": "c", **others}


def test_columns_are_found_by_their_ids(tmp_path: Path) -> None:
    place = pa.struct([("x", pa.int32()), ("y", pa.string())])
    was = pa.schema(
        [*COMMON, ("key", pa.struct([("id", pa.int32())])), ("at", place), ("all", pa.map_(place, place)), ("list", pa.list_(place))]
    )

    def nested(first: int, names: tuple[str, str], last: bool) -> dict[str, Any]:
        extra = [(first + 2, "more", "string")] if last else []
        return struct((first, names[0], "long" if last else "int"), (first + 1, names[1], "string"), *extra)

    def ids(last: bool) -> dict[str, Any]:
        names = ("z", "y") if last else ("x", "y")
        kinds = [nested(first, names, last) for first in (20, 30, 40, 50)]
        return struct(
            *IDS,
            (4, "key", struct((10, "key" if last else "id", "int"))),
            (5, "place" if last else "at", kinds[0]),
            (6, "all", {"type": "map", "key-id": 60, "key": kinds[1], "value-id": 61, "value": kinds[2]}),
            (7, "list", {"type": "list", "element-id": 62, "element": kinds[3]}),
            *([(8, "added", "string")] if last else []),
        )

    value, other = {"x": 1, "y": "a"}, {"x": None, "y": "b"}
    written = [
        common(key={"id": 1}, at=value, all=[(value, other), (other, None)], list=[value, None, other]),
        common(key={"id": 2}, at=None, all=None, list=None),
        common(key={"id": 3}, at=other, all=[], list=[]),
    ]
    wide = pa.struct([("z", pa.int64()), ("y", pa.string()), ("more", pa.string())])
    columns = pa.schema(
        [*COMMON, ("key", pa.struct([("key", pa.int32())])), ("place", wide), ("all", pa.map_(wide, wide)), ("list", pa.list_(wide))]
    ).append(pa.field("added", pa.string()))
    found = rows_of(tmp_path, pa.Table.from_pylist(written, schema=was), ids(last=False), columns, ids(last=True))
    value, other = {"z": 1, "y": "a", "more": None}, {"z": None, "y": "b", "more": None}
    assert [{name: row[name] for name in ("key", "place", "all", "list", "added")} for row in found] == [
        {"key": {"key": 1}, "place": value, "all": [(value, other), (other, None)], "list": [value, None, other], "added": None},
        {"key": {"key": 2}, "place": None, "all": None, "list": None, "added": None},
        {"key": {"key": 3}, "place": other, "all": [], "list": [], "added": None},
    ]


def test_rows_are_those_of_the_incarnation_and_the_batches(tmp_path: Path) -> None:
    schema = pa.schema([*COMMON, ("key", pa.struct([("id", pa.int32())])), ("schema_version", pa.string()), ("ordinal", pa.int64())])
    ids = struct(*IDS, (4, "key", struct((10, "id", "int"))), (5, "schema_version", "string"), (6, "ordinal", "long"))
    others = [{"table_id": "u"}, {"op": "r"}, {"op": "t", "key": None}, {"key": {"id": None}}]
    rows = [common(batch, key={"id": batch}, schema_version=f"v{batch - 1}") for batch in (1, 2, 3, 4)] + [
        common(**{"key": {"id": 9}, "schema_version": "v1"} | other) for other in others
    ]
    rows = [row | {"ordinal": at} for at, row in enumerate(rows, start=1)]
    path = tmp_path / "f.parquet"
    pq.write_table(pa.Table.from_pylist(rows, schema=schema).cast(with_ids(schema, ids)), path, store_schema=False)
    files = ChangesFiles([DataFile(str(path), 1)], with_ids(schema, ids))

    def found(wanted: Wanted) -> list[dict[str, Any]]:
        return [row for batch in files.read(str(path), wanted) for row in batch.to_pylist()]

    kept = found(replace(WANTED, skipped=frozenset("r")))
    assert [(row["batch"], row["op"], row["key"]) for row in kept] == [
        (2, "c", {"id": 2}),
        (3, "c", {"id": 3}),
        (2, "t", None),
        (2, "c", {"id": None}),
    ]
    # The rows of batch 2 stand on both sides of that of batch 3.
    both = [Span(str(path), (2, 2), (3, 3), False, frozenset(["v1", "v2"]))]
    assert files.spans(WANTED) == Spans(both, Counter({2: 4, 3: 1}))
    # What is skipped counts: the seals know of it.
    assert files.spans(replace(WANTED, skipped=frozenset("ctr"))) == Spans([], Counter({2: 4, 3: 1}))
    assert files.spans(replace(WANTED, voided=frozenset([2]))) == Spans(
        [Span(str(path), (3, 3), (3, 3), True, frozenset(["v2"]))], Counter({3: 1})
    )
    assert files.spans(replace(WANTED, since=1, upto=1)) == Spans([], Counter())
    # Each publisher's rows are those that all rows have of it.
    of_each = [[row for batch in files.read(str(path), WANTED, publisher) for row in batch.to_pylist()] for publisher in (0, 1)]
    assert of_each == [[row for row in found(WANTED) if row["publisher"] == publisher] for publisher in (0, 1)]
    assert all(of_each)
    # A key of nulls and no key are one publisher's.
    assert kept[2]["publisher"] == kept[3]["publisher"] == 42 % 2
    assert [row["batch"] for row in found(replace(WANTED, voided=frozenset([2])))] == [3]


@pytest.mark.parametrize(("most", "rows"), [(32 << 20, [8192, 1808]), (1, [4096, 4096, 1808])])
def test_of_large_rows_fewer_are_read_at_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, most: int, rows: list[int]) -> None:
    """A publisher has a page of its own rows, unless those of all publishers are too many bytes."""
    schema = pa.schema([*COMMON, ("key", pa.struct([("id", pa.int32())]))])
    ids = struct(*IDS, (4, "key", struct((10, "id", "int"))))
    path = tmp_path / "f.parquet"
    table = pa.Table.from_pylist([common(key={"id": number}) for number in range(10_000)], schema=schema)
    pq.write_table(table.cast(with_ids(schema, ids)), path, store_schema=False)
    files = ChangesFiles([DataFile(str(path), 1)], with_ids(schema, ids))
    monkeypatch.setattr(changes_files, "_BYTES", most)
    found = [[batch.num_rows for batch in files.read(str(path), WANTED, publisher)] for publisher in (0, 1)]
    assert [sum(both) for both in zip(*found, strict=True)] == rows
