"""A file of one table is lost: that table is refused by name, the others are complete in the same batch, and with the file
back everything is. Real Spark, Iceberg and state."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, Final

import pytest
from py4j.protocol import Py4JJavaError  # type: ignore[import-untyped]
from pyspark.sql import SparkSession

from spark_jobs import ingest
from spark_jobs.session import spark_session
from tests.spark_jobs.synthetic import CLUSTER, ORDERS
from tests.spark_jobs.test_one_table import AFTER, ALL, BEFORE, Lab
from tools import ROOT
from writetime.cassandra.schema.model import Table
from writetime.pipeline.archiver import archive
from writetime.pipeline.documents import Sealed
from writetime.pipeline.quarantine.rejected_tables import release_table

pytestmark = [pytest.mark.spark, pytest.mark.timeout(1800)]


class Shop(Lab):
    """A lab whose batches share a session."""

    spark: SparkSession

    def begin(self) -> None:
        """A session that has read nothing yet: one that has read a table's metadata needs the file no more, and its next commit
        writes another."""
        if hasattr(self, "spark"):
            self.spark.stop()
        self.spark = spark_session(self.ring.config, "tests of lost files")

    def run(self, number: int) -> Sealed:
        sealed = ingest.run(self.ring.config, number, self.spark)
        archive(self.ring.store, CLUSTER, sealed.number)
        return sealed

    def held(self, namespace: str = "shop", table: Table = ORDERS) -> Any:
        return self.lake.load_table((namespace, table.name))

    def lost(self, names: Iterable[str]) -> dict[Path, bytes]:
        """Lose these files; what they held."""
        kept = {}
        for name in names:
            path = Path(name.removeprefix("file:"))
            for each in (path, path.with_name(f".{path.name}.crc")):
                if each.exists():
                    kept[each] = each.read_bytes()
                    each.unlink()
        return kept

    def expect_refused(self, *tables: Table) -> None:
        """By a batch that is complete for the others."""
        sealed = self.run(self.planned())
        assert [each.table for each in sealed.refused] == [table.label for table in tables]
        assert [self.lacks(each, range(1, self.step + 1)) for each in ALL if each not in tables] == [""] * (len(ALL) - len(tables))

    def expect_recovered(self, kept: Mapping[Path, bytes], *tables: Table) -> None:
        """With the files back, and what waits released."""
        for path, content in kept.items():
            path.write_bytes(content)
        for table in tables:
            release_table(self.ring.store, CLUSTER, table.id)
        assert self.run(self.planned()).refused == []
        assert [self.lacks(each, range(1, self.step + 1)) for each in ALL] == ["", "", ""]


@pytest.fixture(scope="module")
def shop(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Shop]:
    made = Shop.create(tmp_path_factory.mktemp("lost") / "ring")
    assert isinstance(made, Shop)
    made.begin()
    assert made.run(made.planned()).refused == []
    yield made
    made.spark.stop()


def of_metadata(shop: Shop) -> list[str]:
    return [shop.held().metadata_location]


def of_changes(shop: Shop) -> list[str]:
    return [shop.held("shop__changes").metadata_location]


def of_manifests(shop: Shop) -> list[str]:
    held = shop.held()
    return [each.manifest_path for each in held.current_snapshot().manifests(held.io)]


def of_snapshot(shop: Shop) -> list[str]:
    return [shop.held().current_snapshot().manifest_list]


def of_rows(shop: Shop) -> list[str]:
    return [task.file.file_path for task in shop.held().scan().plan_files()]


def of_state(shop: Shop) -> list[str]:
    found = [str(path) for path in shop.ring.folder.rglob("*.lance") if str(ORDERS.id) in str(path) and path.parent.name == "data"]
    assert found
    return found


def of_state_versions(shop: Shop) -> list[str]:
    return [str(path) for path in shop.ring.folder.rglob("*.manifest") if str(ORDERS.id) in str(path)]


LOST: Final = [of_rows, of_manifests, of_snapshot, of_metadata, of_changes, of_state, of_state_versions]
NEEDED_ONCE: Final = LOST[3:]


@pytest.mark.parametrize("lost", LOST)
def test_a_lost_file_is_its_tables_matter(shop: Shop, lost: Callable[[Shop], list[str]]) -> None:
    kept = shop.lost(lost(shop))
    if lost in NEEDED_ONCE:
        shop.begin()
    shop.expect_refused(ORDERS)
    shop.expect_recovered(kept, ORDERS)


@pytest.mark.advice("Put the same file back")
def test_two_tables_lose_files_at_once(shop: Shop) -> None:
    kept = shop.lost(task.file.file_path for table in (BEFORE, ORDERS) for task in shop.held(table=table).scan().plan_files())
    shop.expect_refused(BEFORE, ORDERS)
    shop.expect_recovered(kept, BEFORE, ORDERS)


def test_a_table_that_cannot_be_read_is_dropped_by_the_runbooks_words(shop: Shop) -> None:
    Path(shop.held().metadata_location.removeprefix("file:")).unlink()
    shop.begin()
    # Spark reads the table before it drops it.
    with pytest.raises(Py4JJavaError, match="NotFoundException"):
        shop.spark.sql(f"DROP TABLE lake.shop.{ORDERS.name}")
    page = (ROOT / "docs" / "runbook.md").read_text(encoding="utf-8")
    words = page.partition("## A file of a table is lost")[2].partition("```python")[2].partition("```")[0]
    exec(words.replace("var/demo/lake", str(shop.ring.folder / "lake")))
    assert not shop.lake.table_exists(("shop", ORDERS.name))
    (refused,) = shop.run(shop.planned()).refused
    assert f"`writetime again {ORDERS.full_name} --rows`" in refused.reason
    assert [shop.lacks(each, range(1, shop.step + 1)) for each in (BEFORE, AFTER)] == ["", ""]
