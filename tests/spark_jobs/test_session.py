"""What Spark is told of a pipeline's catalog. No session is started."""

from __future__ import annotations

import os
import re
import sys
from pathlib import Path

import pytest
import yaml
from pyspark.sql import SparkSession

from spark_jobs.session import lineage_name, options, spark_session
from tests.cli.test_app import OPEN_OPTIONS, SECRET_OPTIONS
from writetime.config.pipeline import PipelineConfig, load
from writetime.errors import ConfigError


def pipeline(folder: Path, catalog: dict[str, object] | None) -> PipelineConfig:
    document = {"pipeline": "p", "cluster": {"name": "c", "datacenters": ["dc1"]}, "bucket": "bucket", "catalog": catalog}
    (folder / "pipeline.yaml").write_text(yaml.safe_dump(document), encoding="utf-8")
    return load(folder / "pipeline.yaml")


def test_a_database(tmp_path: Path) -> None:
    told = options(pipeline(tmp_path, {"uri": "jdbc:sqlite:/c.db", "warehouse": "lake"}))
    assert told["spark.sql.catalog.lake"] == "org.apache.iceberg.spark.SparkCatalog"
    assert told["spark.sql.catalog.lake.type"] == "jdbc"
    assert told["spark.sql.catalog.lake.jdbc.schema-version"] == "V1"
    assert told["spark.sql.catalog.lake.warehouse"] == str(tmp_path / "lake")
    assert int(told["spark.sql.codegen.cache.maxEntries"]) > 100, "the code of a batch's queries"


@pytest.mark.parametrize(("kind", "uri"), [("rest", "https://catalog.example/api"), ("hive", "thrift://metastore:9083")])
def test_a_catalog_server(kind: str, uri: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CATALOG_CREDENTIAL", "id:hush")
    settings = {
        "name": "house",
        "type": kind,
        "uri": uri,
        "warehouse": "gs://lake/tables" if kind == "hive" else "production",
        "options": {"io-impl": "org.apache.iceberg.gcp.gcs.GCSFileIO"},
        "secrets": {"credential": "${CATALOG_CREDENTIAL}", "header.x-odd-name": "${CATALOG_CREDENTIAL}"},
    }
    config = pipeline(tmp_path, settings)
    told = options(config)
    assert {
        name.removeprefix("spark.sql.catalog.house."): value for name, value in told.items() if name.startswith("spark.sql.catalog.house.")
    } == {
        "type": kind,
        "uri": uri,
        "warehouse": settings["warehouse"],
        "io-impl": "org.apache.iceberg.gcp.gcs.GCSFileIO",
        "credential": "id:hush",
        "header.x-odd-name": "id:hush",
        "unique-table-location": "true",
    }
    # Nothing else that holds it, and no place where it would be shown.
    shown = re.compile(told["spark.redaction.regex"].removeprefix("(?i)"), re.IGNORECASE)
    assert {name for name, value in told.items() if "hush" in value} == {
        f"spark.sql.catalog.house.{name}" for name in ("credential", "header.x-odd-name")
    }
    assert all(shown.search(name) for name, value in told.items() if "hush" in value)
    assert "hush" not in repr(config)
    # On Spark's pages, as in `writetime config show`, if people wrote them among the options.
    assert all(shown.search(name) for name in (*SECRET_OPTIONS["catalog.options"], *SECRET_OPTIONS["spark.conf"]))
    assert not any(shown.search(name) for name in (*OPEN_OPTIONS["catalog.options"], *OPEN_OPTIONS["spark.conf"]))


def test_no_catalog(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="catalog"):
        options(pipeline(tmp_path, None))


@pytest.mark.parametrize(
    ("name", "told"),
    [
        ("writetime ingest orders batch 17", "writetime_ingest_orders"),
        ("writetime publish orders", "writetime_publish_orders"),
        ("writetime verify batch", "writetime_verify_batch"),
    ],
)
def test_a_job_has_one_name_in_lineage_whatever_its_batch(name: str, told: str) -> None:
    assert lineage_name(name) == told


def test_workers_have_the_python_that_is_configured(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """On a cluster, executors have a Python of their own."""
    monkeypatch.setattr(SparkSession.Builder, "getOrCreate", lambda _: None)
    # Set first, so that whatever the jobs leave is undone.
    monkeypatch.setenv("PYSPARK_PYTHON", "any")
    monkeypatch.delenv("PYSPARK_PYTHON")
    plain = pipeline(tmp_path, {"uri": "jdbc:sqlite:/c.db", "warehouse": "lake"})
    spark_session(plain, "any")
    assert os.environ["PYSPARK_PYTHON"] == sys.executable
    conf = {"spark.pyspark.python": "./environment/bin/python"}
    spark_session(plain.model_copy(update={"spark": plain.spark.model_copy(update={"conf": conf})}), "any")
    assert os.environ["PYSPARK_PYTHON"] == "./environment/bin/python"
