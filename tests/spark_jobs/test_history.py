"""The statements of docs/history.md: a table as it was after each of several batches, by snapshot and from its
changes."""

from __future__ import annotations

import re
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from pyiceberg.catalog.sql import SqlCatalog
from pyspark.sql import DataFrame, SparkSession

from spark_jobs import table_history
from spark_jobs.session import spark_session
from tests.spark_jobs.synthetic import START, Ring, delete_partition, delete_row, insert, update
from tools import ROOT

pytestmark = [pytest.mark.spark, pytest.mark.thorough, pytest.mark.timeout(900)]

PAGE = (ROOT / "docs" / "history.md").read_text(encoding="utf-8")
FIND, READ, COMPLETE, FOLD = re.findall(r"```sql\n(.*?)```", PAGE, re.DOTALL)
SNAPSHOT_AFTER = re.findall(r"```python\n(.*?)\n\n\nprint", PAGE, re.DOTALL)[0]

Rows = dict[tuple[int, int], dict[str, int]]


@pytest.fixture(scope="module")
def ring(tmp_path_factory: pytest.TempPathFactory) -> Ring:
    return Ring.create(tmp_path_factory.mktemp("history"), "a", "b")


@pytest.fixture(scope="module")
def states(ring: Ring) -> dict[int, Rows]:
    """The table after each batch, by number, as it was read then."""
    found: dict[int, Rows] = {}

    def batch(at: float) -> None:
        ring.finish_and_ship(at)
        sealed = ring.batch(at + 5)
        found[sealed.number] = ring.current()

    ring.write(insert(1, 1, 1, name=1, note=7))
    ring.write(insert(2, 1, 2, name=2, ttl=150))
    ring.write(insert(3, 1, 2, name=3))
    batch(10)
    ring.write(update(1, 1, 20, amount=5))
    ring.write(delete_row(3, 1, 21))
    ring.write(insert(4, 1, 22, name=4))
    ring.write(insert(4, 2, 22, name=5))
    batch(30)
    compact(ring)
    # Nothing that is not known.
    ring.write(insert(4, 2, 22, name=5))
    batch(60)
    work_on_a_branch(ring)
    # Written again, the rows of a partition deleted, and late.
    ring.write(insert(3, 1, 61, name=33))
    ring.write(delete_partition(4, 62))
    ring.write(update(1, 1, 15, name=9))
    batch(90)
    # The TTL ends, and then all goes.
    ring.write(update(3, 1, 170, amount=1))
    batch(180)
    ring.truncate(200)
    ring.write(insert(5, 1, 201, name=5))
    batch(210)
    work_on_a_branch(ring, again=True)
    compact(ring)
    ring.write(insert(6, 1, 220, name=6))
    batch(230)
    return found


@pytest.fixture
def spark(ring: Ring, states: dict[int, Rows]) -> Iterator[SparkSession]:
    session = spark_session(ring.config, "history")
    yield session
    session.stop()


def work_on_a_branch(ring: Ring, *, again: bool = False) -> None:
    """As a user does: rows go and come, which are not in the table."""
    spark = spark_session(ring.config, "a user")
    if not again:
        spark.sql("ALTER TABLE lake.shop.orders CREATE BRANCH audit")
    spark.sql("DELETE FROM lake.shop.orders.branch_audit")
    spark.sql("INSERT INTO lake.shop.orders.branch_audit (id, line, name) VALUES (77, 1, 77)")
    spark.stop()


def compact(ring: Ring) -> None:
    """Rewrite all files, as maintenance does when there are more of them."""
    spark = spark_session(ring.config, "compaction")
    for table in ("shop.orders", "shop__changes.orders"):
        spark.sql(f"CALL lake.system.rewrite_data_files(table => '{table}', options => map('rewrite-all', 'true'))").collect()
    spark.stop()


def shown(rows: DataFrame) -> Rows:
    """As `Ring.current` shows rows."""
    found: list[dict[str, Any]] = [row.asDict() for row in rows.collect()]
    return {(row["id"], row["line"]): {n: row[n] for n in ("note", "name", "amount") if row[n] is not None} for row in found}


def snapshot(spark: SparkSession, batch: int) -> int | None:
    """The snapshot of that batch, if there is one that is the table after it."""
    assert FIND.count("<= 5") == FIND.count("<=> 5") == 1
    ((found, is_exact),) = spark.sql(FIND.replace("<= 5", f"<= {batch}").replace("<=> 5", f"<=> {batch}")).collect()
    return found if is_exact else None


def by_command(ring: Ring, spark: SparkSession, batch: int) -> int | None:
    """The same by `writetime history`."""
    found = table_history.after(table_history.run(ring.config, "shop.orders", session=spark), batch)
    return found.snapshot if found.exact else None


def by_pyiceberg(ring: Ring, batch: int) -> int | None:
    """The same by the function of the page."""
    lake = SqlCatalog("lake", uri=f"sqlite:///{ring.folder / 'lake' / 'catalog.db'}")
    names: dict[str, Any] = {}
    exec(SNAPSHOT_AFTER, names)
    return names["snapshot_after"](lake.load_table("shop.orders"), batch)  # type: ignore[no-any-return]


def folded(spark: SparkSession, condition: str) -> Rows:
    assert FOLD.count("batch <= 5") == 1
    return shown(spark.sql(FOLD.replace("batch <= 5", condition)))


def test_the_table_after_each_batch(ring: Ring, spark: SparkSession, states: dict[int, Rows]) -> None:
    assert len({str(sorted(rows.items())) for rows in states.values()}) == 6, "batch 3 changes nothing, and every other one something"
    operations = [row["operation"] for row in spark.table("lake.shop.orders.snapshots").collect()]
    assert "replace" in operations, "nothing was compacted"
    for number, expected in states.items():
        found = snapshot(spark, number)
        assert found is not None, number
        assert by_command(ring, spark, number) == by_pyiceberg(ring, number) == found
        assert shown(spark.sql(READ.replace("4711", str(found)))) == expected, f"batch {number}, by snapshot"
        assert folded(spark, f"batch <= {number}") == expected, f"batch {number}, from changes"
        # By the clock of the batch, which a row of changes has.
        clock = spark.sql(f"SELECT max(processed_at) FROM lake.shop__changes.orders WHERE batch <= {number}").collect()[0][0]
        assert folded(spark, f"processed_at <= timestamp_micros({int(clock.timestamp() * 1_000_000)})") == expected
    assert snapshot(spark, 0) is None
    assert folded(spark, "batch <= 0") == {}


def test_by_the_time_of_writes(ring: Ring, spark: SparkSession, states: dict[int, Rows]) -> None:
    """TTL and deletes at their own times."""

    def at(second: float) -> Rows:
        return folded(spark, f"changed_at <= timestamp_micros({int((START + timedelta(seconds=second)).timestamp() * 1_000_000)})")

    assert at(1.5) == {(1, 1): {"note": 7, "name": 1}}
    assert (2, 1) in at(151.9)
    assert (2, 1) not in at(152.1)
    assert at(199) == {(1, 1): {"note": 7, "name": 9, "amount": 5}, (3, 1): {"name": 33, "amount": 1}}


def test_complete_until(spark: SparkSession) -> None:
    """No snapshot claims it here, since these nodes do not sign off; a property of one does."""
    assert spark.sql(COMPLETE).collect()[0][0] is None
    spark.conf.set("spark.sql.iceberg.snapshot-property.writetime.complete-until", "2026-05-04T12:06:00.000+00:00")
    spark.sql("CREATE OR REPLACE TABLE lake.shop.claimed (id INT) USING iceberg")
    spark.sql("INSERT INTO lake.shop.claimed VALUES (1)")
    (claimed,) = [row["snapshot_id"] for row in spark.table("lake.shop.claimed.snapshots").collect() if row["operation"] == "append"]
    assert spark.sql(COMPLETE.replace("shop.orders", "shop.claimed")).collect()[0][0] == claimed
    later = COMPLETE.replace("shop.orders", "shop.claimed").replace("12:05:00", "12:06:01")
    assert spark.sql(later).collect()[0][0] is None


def test_a_snapshot_that_has_expired_is_not_mistaken_for_another(ring: Ring, spark: SparkSession, states: dict[int, Rows]) -> None:
    last = max(states)
    kept = snapshot(spark, 2)
    spark.sql(f"ALTER TABLE lake.shop.orders CREATE TAG q2 AS OF VERSION {kept} RETAIN 365 DAYS")
    moment = datetime.now(UTC) + timedelta(hours=1)
    call = "CALL lake.system.expire_snapshots(table => 'shop.orders', older_than => TIMESTAMP '{}', retain_last => 2)"
    spark.sql(call.format(moment.strftime("%Y-%m-%d %H:%M:%S"))).collect()
    found = {number: snapshot(spark, number) for number in states}
    there = {number for number, each in found.items() if each is not None}
    assert {number: by_command(ring, spark, number) for number in states} == found
    assert {number: by_pyiceberg(ring, number) for number in states} == found
    # Of a compaction whose batch has expired nobody knows what it is of, though a tag keeps it.
    assert last in there <= {2, last - 1, last}
    for number in there:
        assert shown(spark.sql(READ.replace("4711", str(found[number])))) == states[number]
    assert shown(spark.sql(READ.replace("4711", "'q2'"))) == states[2]
    # Changes are not affected.
    assert folded(spark, "batch <= 4") == states[4]
