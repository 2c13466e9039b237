"""The same pipeline over buckets: shippers, jobs and operators meet in Google Cloud Storage (a test server of
it), not in a folder; and the tables lie in another bucket there, by Iceberg's own GCSFileIO."""

from __future__ import annotations

import os
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from google.cloud.storage import Client
from pyiceberg.catalog.rest import RestCatalog
from pyiceberg.catalog.sql import SqlCatalog

from spark_jobs import maintain
from spark_jobs.sinks import table_maintenance
from tests import gcs_server
from tests.spark_jobs.conf import spark_conf
from tests.spark_jobs.pipeline import Pipeline
from tools import jars, verify
from tools.errors import MissingPrerequisite
from tools.java import newest_java
from tools.services.nessie import JDK, WAREHOUSE, Nessie
from writetime.pipeline.archiver import archive
from writetime.pipeline.maintenance_report import read_maintained
from writetime.pipeline.planner import plan_maintain

pytestmark = [pytest.mark.gcs, pytest.mark.spark, pytest.mark.timeout(600), pytest.mark.usefixtures("own_jvm")]


def with_warehouse(pipeline: Pipeline, warehouse: str, url: str, **of_catalog: Any) -> Pipeline:
    """The same with its tables there, and its state in the bucket."""
    config = pipeline.config
    assert config.catalog is not None
    options = {"gcs.service.host": url, "gcs.no-auth": "true", "gcs.project-id": "test"}
    catalog = config.catalog.model_copy(update={"warehouse": warehouse, "options": options, **of_catalog})
    # Workers inherit the environment of the JVM, which another test may have started, with another server.
    workers = {"spark.executorEnv.STORAGE_EMULATOR_HOST": os.environ["STORAGE_EMULATOR_HOST"]}
    conf = spark_conf(pipeline.site.folder, jars.need("gcs")) | workers
    update = {"catalog": catalog, "state": None, "spark": config.spark.model_copy(update={"conf": conf})}
    return replace(pipeline, config=config.model_copy(update=update))


def rows(pipeline: Pipeline, namespace: str, table: str, url: str) -> list[dict[str, Any]]:
    """As pyiceberg reads them from the bucket."""
    options = {"gcs.service.host": url, "gcs.oauth2.token": "any", "gcs.oauth2.token-expires-at": "4102444800000"}
    catalog = SqlCatalog("lake", uri=f"sqlite:///{pipeline.site.catalog}", **options)
    found: list[dict[str, Any]] = catalog.load_table((namespace, table)).scan().to_arrow().to_pylist()
    return found


def test_a_batch_from_bucket_to_tables(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    program = gcs_server.program()
    if program is None:
        pytest.skip("no GCS test server: run make test-gcs")
    with gcs_server.running(program, tmp_path) as url, gcs_server.with_xml(url) as emulator:
        gcs_server.make_bucket(url, "cdc")
        gcs_server.make_bucket(url, "lake")
        monkeypatch.setenv("STORAGE_EMULATOR_HOST", emulator)
        pipeline = with_warehouse(Pipeline.create(tmp_path, bucket="gs://cdc/orders"), "gs://lake/tables", url)
        pipeline.stage()
        pipeline.ship()
        assert not list((tmp_path / "nodes").rglob("*.log"))
        sealed = pipeline.batch()
        assert sealed.held == []
        assert sealed.events > 0
        for keyspace, table in pipeline.recording.cdc_tables:
            expected = verify.expected_rows(pipeline.recording, keyspace, table)
            found = rows(pipeline, keyspace, table, url)
            assert verify.differences(table, expected, [verify.as_recorded(row) for row in found]) == []
        assert not (tmp_path / "lake" / "warehouse").exists(), "a table lies in a folder"
        assert not (tmp_path / "state").exists(), "the state lies in a folder"
        assert {info.name.partition("/")[0] for info in pipeline.store.list("state/")} == {"state"}
        kept = [blob.name for blob in Client.create_anonymous_client().bucket("lake").list_blobs()]
        assert {name.rpartition(".")[2] for name in kept} >= {"parquet", "avro", "json"}
        assert all(name.startswith("tables/") for name in kept)
        names = [info.name for info in pipeline.store.list()]
        assert sum(name.startswith("cdc_archive/") for name in names) == len(sealed.segments)
        assert not [name for name in names if name.startswith("cdc/")]
        assert archive(pipeline.store, pipeline.cluster, sealed.number) == {}


def test_batches_whose_catalog_is_a_server(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Iceberg's REST protocol, as Nessie speaks it. The server decides where tables lie, and tells the jobs."""
    program = gcs_server.program()
    if program is None:
        pytest.skip("no GCS test server: run make test-gcs")
    try:
        newest_java(JDK)
    except MissingPrerequisite as missing:
        pytest.skip(f"Nessie: {missing}")
    with gcs_server.running(program, tmp_path) as url, gcs_server.with_xml(url) as emulator:
        gcs_server.make_bucket(url, "lake")
        with Nessie(tmp_path / "nessie", "gs://lake/tables", url) as nessie:
            monkeypatch.setenv("STORAGE_EMULATOR_HOST", emulator)
            made = Pipeline.create(tmp_path)
            pipeline = with_warehouse(made, WAREHOUSE, url, type="rest", uri=nessie.url)
            pipeline.stage()
            pipeline.ship()
            assert len(pipeline.batches(3)) == 2
            # Orphans are looked for as in tables of some age.
            monkeypatch.setattr(table_maintenance, "_is_older", lambda *_: True)
            manifest = plan_maintain(pipeline.store, pipeline.cluster, now=datetime.now(UTC))
            assert manifest is not None
            maintain.run(pipeline.config, manifest.number)
            maintained = read_maintained(pipeline.store, pipeline.cluster)
            assert maintained is not None
            assert [table.trouble for table in maintained.tables if table.trouble] == []
            options = {"gcs.service.host": url, "gcs.oauth2.token": "any", "gcs.oauth2.token-expires-at": "4102444800000"}
            catalog = RestCatalog("lake", uri=nessie.url, warehouse=WAREHOUSE, **options)
            for keyspace, table in pipeline.recording.cdc_tables:
                held = catalog.load_table((keyspace, table))
                assert held.location().startswith(f"gs://lake/tables/{keyspace}/")
                expected = verify.expected_rows(pipeline.recording, keyspace, table)
                found = held.scan().to_arrow().to_pylist()
                assert verify.differences(table, expected, [verify.as_recorded(row) for row in found]) == []
