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


@pytest.mark.parametrize("uri", ["jdbc:mysql://u:hush@h/db", "jdbc:postgresql://h/db?user=u&password=hush", "jdbc:mysql://u:a@hush@h/db"])
def test_a_password_in_the_uri_is_redacted_by_its_value(uri: str, tmp_path: Path) -> None:
    """Spark looks for the pattern in names and in values; an address without a login is shown."""
    told = options(pipeline(tmp_path, {"uri": uri, "warehouse": "lake"}))
    redacted = re.compile(told["spark.redaction.regex"].removeprefix("(?i)"), re.IGNORECASE)
    assert redacted.search(uri)
    shown = ("jdbc:postgresql://h:5432/db", "https://h:8181/api", "s3://lake/a", "jdbc:sqlite:/c.db", "thrift://h:9083")
    assert not any(map(redacted.search, shown))


def test_a_pattern_of_the_pipeline_adds_to_what_spark_redacts(tmp_path: Path) -> None:
    plain = pipeline(tmp_path, {"uri": "jdbc:sqlite:/c.db", "warehouse": "lake"})
    conf = {"spark.redaction.regex": "(?i)mine", "spark.executor.memory": "2g"}
    told = options(plain.model_copy(update={"spark": plain.spark.model_copy(update={"conf": conf})}))
    assert told["spark.redaction.regex"].startswith(options(plain)["spark.redaction.regex"])
    assert told["spark.redaction.regex"].endswith("|(?:(?i)mine)")
    assert told["spark.executor.memory"] == "2g"


def test_iceberg_is_told_of_the_service_that_the_tasks_write_to(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The environment, or the library's files, may name it without `https://`, which Java's client does not take."""
    monkeypatch.setenv("AWS_ENDPOINT_URL_S3", "minio.example:9000")
    prefix = "spark.sql.catalog.lake.s3."
    place = {"uri": "jdbc:sqlite:/c.db", "warehouse": "s3://lake/tables"}
    told = options(pipeline(tmp_path, place))
    assert (told[f"{prefix}endpoint"], told[f"{prefix}path-style-access"]) == ("https://minio.example:9000", "true")
    own = options(pipeline(tmp_path, place | {"options": {"s3.endpoint": "http://other:9000", "s3.path-style-access": "false"}}))
    assert (own[f"{prefix}endpoint"], own[f"{prefix}path-style-access"]) == ("http://other:9000", "false")
    monkeypatch.delenv("AWS_ENDPOINT_URL_S3")
    monkeypatch.setenv("AWS_CONFIG_FILE", os.devnull)
    assert f"{prefix}endpoint" not in options(pipeline(tmp_path, place))
    assert f"{prefix}endpoint" not in options(pipeline(tmp_path, {"uri": "jdbc:sqlite:/c.db", "warehouse": "lake"}))


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
