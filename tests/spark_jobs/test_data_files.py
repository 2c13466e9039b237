"""Data files as tasks write them, without Spark; that Iceberg reads them is shown in test_iceberg."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from random import Random
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from spark_jobs.failures import kind_of
from spark_jobs.sinks import data_files
from spark_jobs.sinks.data_files import FILES, FileTarget, put
from spark_jobs.sinks.iceberg_table import stores_reached
from writetime.errors import ObjectNotFound

COLUMNS = pa.schema([("id", pa.int64()), ("at", pa.timestamp("us", "UTC")), ("tags", pa.map_(pa.string(), pa.list_(pa.int32())))])
TAGS = {"type": "map", "key-id": 4, "key": "string", "value-id": 5, "value": {"type": "list", "element-id": 6, "element": "int"}}
DAY = 86_400_000_000


def metadata(location: str, *, days: bool = True) -> dict[str, Any]:
    fields = [{"id": 1, "type": "long"}, {"id": 2, "type": "timestamptz"}, {"id": 3, "type": TAGS}]
    named = [{**field, "name": column.name} for field, column in zip(fields, COLUMNS, strict=True)]
    spec = [{"name": "at_day", "transform": "day", "source-id": 2, "field-id": 1000}] if days else []
    return {
        "location": location,
        "properties": {"write.metadata.previous-versions-max": "100", "write.parquet.compression-codec": "zstd"},
        "schemas": [{"schema-id": 0, "fields": []}, {"schema-id": 1, "fields": named}],
        "current-schema-id": 1,
        "partition-specs": [{"spec-id": 0, "fields": spec}],
        "default-spec-id": 0,
        "default-sort-order-id": 0,
    }


def target(location: Path | str, **about: Any) -> FileTarget:
    made = FileTarget.of(metadata(str(location), **about), COLUMNS, ["/"])
    assert made is not None
    return made


def batch(*rows: tuple[int, int | None]) -> pa.RecordBatch:
    return pa.RecordBatch.from_pylist([{"id": n, "at": at, "tags": [("k", [n, None])]} for n, at in rows], schema=COLUMNS)


def write(to: FileTarget, *batches: pa.RecordBatch) -> list[dict[str, Any]]:
    found = [row for out in to.written(lambda given: given)(iter(batches)) for row in out.to_pylist()]
    assert all(row.keys() == set(FILES.names) for row in found)
    return found


def test_each_day_has_a_file_with_the_tables_field_ids(tmp_path: Path) -> None:
    found = write(target(tmp_path), batch((1, 0), (2, DAY), (3, 5)), batch((4, -1), (5, DAY + 1)))
    assert {row["day"]: row["rows"] for row in found} == {0: 2, 1: 2, -1: 1}
    assert {Path(row["path"]).parent.name for row in found} == {"at_day=1970-01-01", "at_day=1970-01-02", "at_day=1969-12-31"}
    read = [row for each in found for row in pq.read_table(each["path"], partitioning=None).to_pylist()]
    assert sorted(row["id"] for row in read) == [1, 2, 3, 4, 5]
    assert all(row["tags"] == [("k", [row["id"], None])] for row in read)
    assert all(Path(row["path"]).stat().st_size == row["size"] for row in found)
    schema = str(pq.ParquetFile(found[0]["path"]).schema)
    names = ("id", "at", "tags", "key", "value", "element")
    assert all(re.search(rf"field_id={number} {name}\b", schema) for number, name in enumerate(names, start=1))


def test_only_values_that_repeat_are_looked_up(tmp_path: Path) -> None:
    """Of a column whose values are all different, a dictionary would only take time; of each, Iceberg finds bounds."""
    columns = pa.schema([("id", pa.int64()), ("at", pa.timestamp("us", "UTC"))])
    rows, path = 100_000, str(tmp_path / "some.parquet")
    numbers = Random(7).sample(range(2**62), rows)
    put(path, columns, [pa.table([pa.array(numbers), pa.array([0, DAY] * (rows // 2), columns.field("at").type)], columns)])
    different, repeated = (pq.read_metadata(path).row_group(0).column(at) for at in range(2))
    # Of the rows that were encoded before the writer looked.
    assert different.data_page_offset - different.dictionary_page_offset <= 8 * (1 << 14) + 1000
    assert repeated.total_uncompressed_size < rows
    assert (different.statistics.min, different.statistics.max) == (min(numbers), max(numbers))
    assert repeated.statistics.has_min_max


def test_many_rows_are_several_files_in_bounded_memory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    size = batch((1, 0)).nbytes
    monkeypatch.setattr(data_files, "BYTES_PER_FILE", 3 * size)
    of_one_day = write(target(tmp_path), *(batch((n, 0)) for n in range(7)))
    assert sorted(row["rows"] for row in of_one_day) == [1, 3, 3]

    waiting = 0

    def given() -> Iterator[pa.RecordBatch]:
        nonlocal waiting
        for n in range(40):
            waiting += 1
            yield batch((n, n * DAY))

    most = 0
    for _ in target(tmp_path).written(lambda batches: batches)(given()):
        waiting -= 1
        most = max(most, waiting)
    assert most <= 12


def test_what_a_failed_commit_left_is_deleted_and_nothing_else(tmp_path: Path) -> None:
    kept = write(target(tmp_path), batch((1, 0)))
    mine = target(tmp_path)
    gone = write(mine, batch((2, 0), (3, DAY)))
    mine.discard()
    assert [Path(row["path"]).exists() for row in (*kept, *gone)] == [True, False, False]


def test_a_table_without_partitions_has_no_days(tmp_path: Path) -> None:
    (found,) = write(target(tmp_path, days=False), batch((1, None), (2, DAY)))
    assert found["day"] is None
    assert Path(found["path"]).parent == tmp_path / "data"


def test_a_row_without_a_day_is_not_written(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="at is null in 1 rows"):
        write(target(tmp_path), batch((1, None)))


@pytest.mark.parametrize(
    "changed",
    [
        {"properties": {"write.parquet.compression-codec": "snappy"}},
        {"properties": {"write.object-storage.enabled": "true"}},
        {"properties": {"write.data.path": "s3://elsewhere"}},
        {"properties": {"write.format.default": "orc"}},
        {"default-sort-order-id": 1},
        {"location": "hdfs://names/warehouse"},
        {"location": "abfss://files@account.dfs.core.windows.net/x"},
        {"partition-specs": [{"spec-id": 0, "fields": [{"name": "b", "transform": "bucket[4]", "source-id": 1}]}]},
        {"partition-specs": [{"spec-id": 0, "fields": [{"name": "d", "transform": "day", "source-id": 1}]}]},
        {"partition-specs": [{"spec-id": 0, "fields": [{"name": n, "transform": "day", "source-id": 2} for n in "ab"]}]},
    ],
)
def test_other_tables_are_left_to_sparks_writer(changed: dict[str, Any]) -> None:
    assert FileTarget.of(metadata("/lake/t") | changed, COLUMNS, ["/", "gs://", "s3://"]) is None


@pytest.mark.parametrize(
    ("options", "emulator", "expected"),
    [
        ({"type": "jdbc", "jdbc.user": "u", "gcs.project-id": "p"}, None, ["gs://", "s3://"]),
        ({"type": "rest"}, None, []),
        ({"gcs.oauth2.token": "t"}, None, []),
        ({"gcs.user-project": "payer"}, None, []),
        ({"s3.endpoint": "http://127.0.0.1:1"}, None, []),
        ({"client.assume-role.arn": "arn:aws:iam::1:role/x"}, None, []),
        ({"gcs.service.host": "http://a", "gcs.no-auth": "true"}, "http://a", ["gs://", "s3://"]),
        ({"gcs.service.host": "http://b", "gcs.no-auth": "true"}, "http://a", []),
        ({"io-impl": "org.apache.iceberg.aws.s3.S3FileIO", "s3.path-style-access": "true"}, None, ["gs://", "s3://"]),
        ({"s3.endpoint": "http://127.0.0.1:2", "s3.path-style-access": "true"}, None, ["gs://", "s3://"]),
        ({"s3.endpoint": "http://127.0.0.1:2", "s3.access-key-id": "a"}, None, []),
    ],
)
def test_stores_that_the_catalog_describes_are_left_to_sparks_writer(
    options: dict[str, str], emulator: str | None, expected: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("STORAGE_EMULATOR_HOST", raising=False)
    monkeypatch.setenv("AWS_ENDPOINT_URL_S3", "http://127.0.0.1:2")
    if emulator:
        monkeypatch.setenv("STORAGE_EMULATOR_HOST", emulator)
    monkeypatch.setattr("spark_jobs.sinks.iceberg_table.find_spec", lambda _: object())
    assert stores_reached(options) == expected
    monkeypatch.setattr("spark_jobs.sinks.iceberg_table.find_spec", lambda _: None)
    assert stores_reached(options) == [each for each in expected if each != "s3://"]


@pytest.mark.parametrize("scheme", ["", "file:", "file://"])
def test_a_folder_is_one_however_its_location_is_written(tmp_path: Path, scheme: str) -> None:
    made = dataclasses.replace(target(tmp_path), folder=f"{scheme}{tmp_path}/data")
    (found,) = write(made, batch((1, 0)))
    assert found["path"].startswith(f"{scheme}{tmp_path}/data/")
    (file,) = (tmp_path / "data").rglob("*.parquet")
    assert file.stat().st_size == found["size"]
    for read in (data_files.opened(found["path"]), data_files.opened_in_part(found["path"], found["size"])):
        with read as content:
            assert content.metadata.num_rows == 1
    made.discard()
    assert not file.exists()


@pytest.mark.parametrize("read", [data_files.opened, lambda path: data_files.opened_in_part(path, 10)])
def test_a_file_that_is_gone_concerns_its_table_and_a_folder_that_is_gone_the_disk(tmp_path: Path, read: Callable[[str], Any]) -> None:
    with pytest.raises(ObjectNotFound, match="Put the same file back") as raised:
        read(f"file:{tmp_path}/lost.parquet")
    assert kind_of(raised.value) == "table"
    with pytest.raises(FileNotFoundError) as unmounted:
        read(f"file:{tmp_path}/unmounted/lost.parquet")
    assert kind_of(unmounted.value) == "world"
