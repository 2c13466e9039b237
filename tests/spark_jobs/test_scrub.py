"""What stays of a table after rows were deleted for good: no byte of them, be it in files of rows or in lists
of files."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from spark_jobs.session import spark_session
from spark_jobs.sinks.iceberg_table import IcebergTable
from spark_jobs.sinks.table_maintenance import scrub
from spark_jobs.stages.erase_key import WITH_DELETED
from tests.spark_jobs.bytes_of import holders
from tests.spark_jobs.synthetic import Ring

pytestmark = [pytest.mark.spark, pytest.mark.timeout(600), pytest.mark.thorough]
MARK = "zz-the-mark-zz"


@pytest.fixture
def session(tmp_path: Path) -> Iterator[SparkSession]:
    spark = spark_session(Ring.create(tmp_path).config, "scrub")
    spark.sql("CREATE NAMESPACE lake.own")
    yield spark
    spark.stop()


@pytest.mark.parametrize("mode", ["merge-on-read", "copy-on-write"])
def test_no_byte_of_deleted_rows_is_left(tmp_path: Path, session: SparkSession, mode: str) -> None:
    """However many files and lists of files there are: each table gets its files by the numbers in its name,
    the marked row among them."""
    lake, now = tmp_path / "lake", datetime.now(UTC) + timedelta(hours=1)
    for files in ([[MARK]], [["a"], [MARK]], [["a", MARK]], [["a"], [MARK, "b"], ["c"]], [[MARK], [MARK]]):
        name = f"lake.own.t{'_'.join(str(len(each)) for each in files)}_{sum(map(len, files))}_{files[0][0] == MARK}"
        settings = f"'format-version'='2', 'write.delete.mode'='{mode}'"
        session.sql(f"CREATE TABLE {name} (v STRING) USING iceberg TBLPROPERTIES ({settings})")
        for values in files:
            session.createDataFrame([(value,) for value in values], "v STRING").coalesce(1).writeTo(name).append()
        assert holders(lake, MARK)
        session.sql(f"DELETE FROM {name} WHERE v = '{MARK}'")
        assert scrub(session, name, now) == []
        assert holders(lake, MARK) == set(), files
        assert sorted(row.v for row in session.table(name).collect()) == sorted(v for each in files for v in each if v != MARK)
        # Once more there is nothing to do, and nothing changes.
        assert scrub(session, name, now) == []
        assert session.table(f"{name}.snapshots").count() == 1
        assert "commit.manifest.target-size-bytes" not in {row.key for row in session.sql(f"SHOW TBLPROPERTIES {name}").collect()}


def test_no_snapshot_goes_before_the_check(session: SparkSession) -> None:
    """What it finds may be in the summary of one of them."""
    name = "lake.own.checked"
    session.sql(f"CREATE TABLE {name} (v STRING) USING iceberg TBLPROPERTIES ('format-version'='2')")
    for value in (MARK, "a"):
        session.createDataFrame([(value,)], "v STRING").writeTo(name).append()
    session.sql(f"DELETE FROM {name} WHERE v = '{MARK}'")
    before = {row.snapshot_id for row in session.table(f"{name}.snapshots").collect()}

    def found() -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        scrub(session, name, datetime.now(UTC) + timedelta(hours=1), found)
    assert before <= {row.snapshot_id for row in session.table(f"{name}.snapshots").collect()}


def test_only_what_somebody_has_named_stays(tmp_path: Path, session: SparkSession) -> None:
    """Not what a retention of main would keep; nothing goes while no files may be deleted. Rows that position deletes hide are
    found in a snapshot that stays."""
    name, now = "lake.own.named", datetime.now(UTC) + timedelta(hours=1)
    session.sql(f"CREATE TABLE {name} (v STRING) USING iceberg TBLPROPERTIES ('format-version'='2', 'write.delete.mode'='merge-on-read')")
    session.createDataFrame([(MARK,), ("a",)], "v STRING").coalesce(1).writeTo(name).append()
    session.sql(f"DELETE FROM {name} WHERE v = '{MARK}'")
    session.sql(f"ALTER TABLE {name} CREATE TAG kept RETAIN 365 DAYS")
    session.sql(f"ALTER TABLE {name} REPLACE BRANCH main WITH SNAPSHOT RETENTION 100 SNAPSHOTS 90 DAYS")
    session.sql(f"ALTER TABLE {name} SET TBLPROPERTIES ('gc.enabled'='false')")
    before = session.table(f"{name}.snapshots").count()
    scrub(session, name, now)
    held = IcebergTable(session, name)
    assert held.deletes_no_files
    assert len(held.kept) >= before
    session.sql(f"ALTER TABLE {name} SET TBLPROPERTIES ('gc.enabled'='true')")
    scrub(session, name, now)
    held.refresh()
    (tag,) = held.references
    assert (tag.name, tag.kind, tag.dropped_by) == ("kept", "tag", "DROP TAG `kept`")
    assert tag.until is not None
    assert timedelta(days=364) < tag.until - now < timedelta(days=366)
    assert {each.id for each in held.kept} == {tag.snapshot, held.snapshot}
    rows = f"SELECT {{}} FROM {name} VERSION AS OF {tag.snapshot} t WHERE t.v = '{MARK}'"
    assert tuple(session.sql(rows.format(WITH_DELETED)).collect()[0]) == (1, 0), "its bytes are there"
    assert session.sql(rows.format("count(*)")).collect()[0][0] == 0, "readers do not see it"
    assert holders(tmp_path / "lake", MARK)
    session.sql(f"ALTER TABLE {name} {tag.dropped_by}")
    scrub(session, name, now)
    assert holders(tmp_path / "lake", MARK) == set()


def files_of_deleted_rows(session: SparkSession, name: str) -> Path:
    """A table of which a row was deleted; returns the file that has it."""
    session.sql(f"CREATE TABLE {name} (v STRING) USING iceberg TBLPROPERTIES ('format-version'='2')")
    session.createDataFrame([("a",), (MARK,)], "v STRING").coalesce(1).writeTo(name).append()
    ((file,),) = session.table(f"{name}.files").select("file_path").collect()
    session.sql(f"DELETE FROM {name} WHERE v = '{MARK}'")
    return Path(file.removeprefix("file:"))


def test_a_file_that_the_store_does_not_delete_is_reported(session: SparkSession) -> None:
    """Iceberg warns in the log of Spark, and goes on."""
    file = files_of_deleted_rows(session, "lake.own.kept")

    def undeletable() -> None:
        file.rename(file.with_suffix(".moved"))
        (file / "in it").mkdir(parents=True)

    left = scrub(session, "lake.own.kept", datetime.now(UTC) + timedelta(hours=1), undeletable)
    assert [Path(each.removeprefix("file:")) for each in left] == [file]
