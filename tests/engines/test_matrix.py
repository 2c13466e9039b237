"""The table of engines in docs/warehouse.md, by runs: each reads current rows with delete files, numbers by rule and
changes, and gets what Spark gets."""

from __future__ import annotations

import json
import os
import re
import subprocess
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pyarrow as pa
import pytest
from pyspark.sql import SparkSession

from spark_jobs.session import spark_session
from tests.engines.readers import ENGINES, plain
from tests.spark_jobs.pipeline import Pipeline
from tools import ROOT, environment
from tools.errors import MissingPrerequisite
from tools.java import newest_java
from tools.services.trino import JDK, Trino
from writetime.config.warehouse import WarehouseConfig

pytestmark = [pytest.mark.spark, pytest.mark.engines, pytest.mark.timeout(900)]

PYTHON = environment.program("engines", "python")
PAGE = ROOT / "docs" / "warehouse.md"
PACKAGES = {"pyiceberg": "pyiceberg", "polars": "polars", "duckdb": "duckdb", "clickhouse": "chdb", "trino": "trino"}
CURRENT = (
    *("customer_id", "placed_at", "order_id", "amount", "attributes", "deliver_on", "discount", "checksum", "items", "paid", "price"),
    *("ratings", "receipt", "status", "tags", "weight", "_writetime", "_expires_at"),
)
CHANGES = ("batch", "ordinal", "op", "reason", "changed_at", "ts_micro", "key", "before", "after", "changed")
TABLES = {"shop.orders": CURRENT, "shop__changes.orders": CHANGES}


@pytest.fixture(scope="module")
def pipeline(tmp_path_factory: pytest.TempPathFactory) -> Pipeline:
    """The recorded cluster in several batches, the later of which merge."""
    if not PYTHON.exists():
        pytest.skip("no engines: run make prove NAME=engines")
    made = Pipeline.create(tmp_path_factory.mktemp("engines"))
    rules = {"decimal": {"*.*.*": "decimal(38, 9)"}, "varint": {"*.*.*": "decimal(38)"}}
    assert made.config.catalog is not None
    # Trino reads no path without a scheme.
    catalog = made.config.catalog.model_copy(update={"warehouse": Path(made.config.catalog.warehouse).as_uri()})
    update = {"warehouse": WarehouseConfig.model_validate(rules), "catalog": catalog}
    made = replace(made, config=made.config.model_copy(update=update))
    made.stage()
    made.ship()
    made.batches(3)
    return made


@pytest.fixture(scope="module")
def spark(pipeline: Pipeline) -> Iterator[SparkSession]:
    session = spark_session(pipeline.config, "engines")
    yield session
    session.stop()


@pytest.fixture(scope="module")
def expected(spark: SparkSession) -> dict[str, list[str]]:
    """By table what Spark reads."""
    found: dict[str, list[str]] = {}
    for name, columns in TABLES.items():
        rows: pa.Table = spark.table(f"lake.{name}").select(*columns).toArrow()
        found[name] = sorted(json.dumps([plain(row[column]) for column in columns]) for row in rows.to_pylist())
    return found


@pytest.fixture(scope="module")
def trino(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Trino]:
    try:
        newest_java(JDK)
    except MissingPrerequisite as error:
        pytest.skip(str(error))
    with Trino(tmp_path_factory.mktemp("trino")) as server:
        yield server


def test_the_tables_have_what_is_to_be_read(spark: SparkSession) -> None:
    files = spark.table("lake.shop.orders.files").groupBy("content").count().collect()
    assert {row["content"] for row in files} == {0, 1}, "no delete files"
    kinds = {field.name: field.dataType.simpleString() for field in spark.table("lake.shop.orders").schema}
    assert "decimal(38,9)" in kinds.values()
    (numbers,) = spark.sql("SELECT count(discount) FROM lake.shop.orders").collect()
    assert numbers[0] > 10


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("name", TABLES)
def test_an_engine_reads_what_spark_reads(
    engine: str, name: str, pipeline: Pipeline, expected: dict[str, list[str]], request: pytest.FixtureRequest
) -> None:
    server = {"TRINO_PORT": str(request.getfixturevalue("trino").port)} if engine == "trino" else {}
    reader = Path(__file__).with_name("readers.py")
    command = [str(PYTHON), str(reader), engine, str(pipeline.site.catalog), name, *TABLES[name]]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=300, env=os.environ | server)
    assert done.returncode == 0, done.stderr[-3000:]
    found = sorted(done.stdout.splitlines())
    assert len(found) == len(expected[name]) > 500
    differ = [(theirs, ours) for theirs, ours in zip(found, expected[name], strict=True) if theirs != ours]
    assert differ[:1] == []


def pinned() -> dict[str, str]:
    text = (ROOT / "tools" / "engines.txt").read_text(encoding="utf-8")
    return dict(re.findall(r"^([a-z0-9-]+)==(\S+)", text, re.MULTILINE))


def rows_of_the_page() -> dict[str, list[str]]:
    """By package, the cells of the table of engines."""
    section = PAGE.read_text(encoding="utf-8").partition("## Engines")[2].partition("\n## ")[0]
    cells = [[cell.strip() for cell in line.strip("|").split("|")] for line in section.splitlines() if line.startswith("| ")]
    return {match[1]: row for row in cells if (match := re.search(r"`([a-z]+)` \d", row[0]))}


def test_the_page_has_the_engines_and_their_versions() -> None:
    found = rows_of_the_page()
    assert found.keys() == {*PACKAGES.values()}
    for package, row in found.items():
        assert f"`{package}` {pinned()[package]}" in row[0]
