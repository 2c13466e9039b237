"""External tables of BigQuery follow the Iceberg tables. BigQuery is a stand-in here: a server with the three calls
of its REST API that are used, as its reference describes them. The service itself was not tested."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from datetime import timedelta
from http.server import BaseHTTPRequestHandler
from pathlib import Path
from typing import Any

import pytest
from pydantic import ValidationError
from pyiceberg.catalog.sql import SqlCatalog
from structlog.testing import capture_logs
from urllib3.util import Retry

from spark_jobs import ingest
from spark_jobs.session import spark_session
from spark_jobs.sinks import bigquery
from spark_jobs.sinks.bigquery import EMULATOR, BigQuery, ExternalTablesWriter, RequestRefused
from tests.spark_jobs.synthetic import CLUSTER, START, Ring, insert
from tests.storage.http_stub import serving
from writetime.config.pipeline import PipelineConfig
from writetime.config.warehouse import BigQueryConfig, WarehouseConfig
from writetime.pipeline.archiver import archive
from writetime.pipeline.documents import Sealed
from writetime.pipeline.external_tables import read_external_tables
from writetime.pipeline.planner import plan_maintain

CONFIG = BigQueryConfig(project="analytics", dataset_prefix="eu_")
FOLDER = "gs://lake/shop/orders/metadata"


@dataclass
class Service:
    """Tables by `dataset/table`, as the service holds them, and what it was asked. `refuse`: the next requests that
    change something are answered so."""

    datasets: set[str] = field(default_factory=lambda: {"shop", "eu_shop", "eu_shop__changes"})
    tables: dict[str, dict[str, Any]] = field(default_factory=dict)
    asked: list[str] = field(default_factory=list)
    refuse: list[tuple[int, str]] = field(default_factory=list)
    etags: int = 0

    def answer(self, method: str, path: str, body: Any, etag: str | None) -> tuple[int, Any]:
        rest, _, query = path.partition("?")
        project, _, place = rest.removeprefix("/bigquery/v2/projects/").partition("/datasets/")
        dataset, _, table = place.partition("/tables")
        name = f"{dataset}{table}"
        self.asked.append(f"{method} {name}")
        if project != "analytics" or dataset not in self.datasets:
            return 404, f"Not found: Dataset {project}:{dataset}"
        if method != "GET" and self.refuse:
            return self.refuse.pop(0)
        if method == "POST":
            name = f"{dataset}/{body['tableReference']['tableId']}"
            return self.put(name, body) if name not in self.tables else (409, f"Already Exists: Table {name}")
        if name not in self.tables:
            return 404, f"Not found: Table {project}:{name}"
        if method == "GET":
            return 200, self.tables[name]
        assert query == "autodetect_schema=true"
        assert body.pop("schema") is None
        return self.put(name, body) if etag == self.tables[name]["etag"] else (412, "Precondition check failed.")

    def put(self, name: str, body: dict[str, Any]) -> tuple[int, Any]:
        self.etags += 1
        self.tables[name] = {**self.tables.get(name, {}), **body, "etag": f"e{self.etags}"}
        return 200, self.tables[name]

    def location(self, name: str) -> str:
        (uri,) = self.tables[name]["externalDataConfiguration"]["sourceUris"]
        return str(uri)


@pytest.fixture
def service(monkeypatch: pytest.MonkeyPatch) -> Iterator[Service]:
    made = Service()

    class Handler(BaseHTTPRequestHandler):
        def _serve(self) -> None:
            size = int(self.headers.get("Content-Length") or 0)
            body = json.loads(self.rfile.read(size)) if size else None
            status, found = made.answer(self.command, self.path, body, self.headers.get("If-Match"))
            text = json.dumps(found if status == 200 else {"error": {"code": status, "message": found}}).encode()
            self.send_response(status)
            self.send_header("Content-Length", str(len(text)))
            self.end_headers()
            self.wfile.write(text)

        do_GET = do_POST = do_PATCH = _serve  # noqa: N815

        def log_message(self, *_: Any) -> None:
            pass

    monkeypatch.setattr(bigquery, "_RETRIES", Retry(total=2, status_forcelist=(503,), allowed_methods=None, raise_on_status=False))
    with serving(Handler) as url:
        monkeypatch.setenv(EMULATOR, url)
        yield made


def test_a_table_is_created_and_its_pointer_moved(service: Service) -> None:
    client = BigQuery(CONFIG)
    for number in (1, 2, 2):
        assert client.point("shop", "orders", f"{FOLDER}/0000{number}-a.metadata.json") == f"{FOLDER}/0000{number}-a.metadata.json"
    assert service.location("shop/orders") == f"{FOLDER}/00002-a.metadata.json"
    assert service.asked == [f"{each} shop" + ("/orders" if each != "POST" else "") for each in ("GET", "POST", "GET", "PATCH", "GET")]
    made = service.tables["shop/orders"]["externalDataConfiguration"]
    assert made["sourceFormat"] == "ICEBERG"


def test_what_somebody_has_set_stays(service: Service) -> None:
    external = {"sourceFormat": "ICEBERG", "sourceUris": [f"{FOLDER}/00001-a.metadata.json"], "connectionId": "analytics.eu.lake"}
    service.put("shop/orders", {"externalDataConfiguration": external, "description": "ours"})
    BigQuery(CONFIG).point("shop", "orders", f"{FOLDER}/00002-a.metadata.json")
    found = service.tables["shop/orders"]
    assert (found["description"], found["externalDataConfiguration"]["connectionId"]) == ("ours", "analytics.eu.lake")
    BigQuery(CONFIG.model_copy(update={"connection": "analytics.eu.new"})).point("shop", "items", f"{FOLDER}/00002-a.metadata.json")
    assert service.tables["shop/items"]["externalDataConfiguration"]["connectionId"] == "analytics.eu.new"


def test_a_late_driver_does_not_move_a_pointer_back(service: Service) -> None:
    client = BigQuery(CONFIG)
    newer = f"{FOLDER}/00010-b.metadata.json"
    client.point("shop", "orders", newer)
    assert client.point("shop", "orders", f"{FOLDER}/00009-a.metadata.json") == newer
    assert service.location("shop/orders") == newer
    # A table that was created again begins with the first file, in another folder.
    again = "gs://lake/shop/orders-2/metadata/00000-c.metadata.json"
    assert client.point("shop", "orders", again) == again


def test_a_pointer_that_moved_between_both_requests_is_left(service: Service, monkeypatch: pytest.MonkeyPatch) -> None:
    client = BigQuery(CONFIG)
    client.point("shop", "orders", f"{FOLDER}/00001-a.metadata.json")
    real = service.answer

    def meanwhile(method: str, path: str, body: Any, etag: str | None) -> tuple[int, Any]:
        found = real(method, path, body, etag)
        if method == "GET":
            service.put("shop/orders", {"externalDataConfiguration": {"sourceFormat": "ICEBERG", "sourceUris": ["theirs"]}})
            found = found[0], {**found[1], "etag": f"e{service.etags - 1}"}
        return found

    monkeypatch.setattr(service, "answer", meanwhile)
    with pytest.raises(RequestRefused, match="412"):
        client.point("shop", "orders", f"{FOLDER}/00002-a.metadata.json")
    assert service.location("shop/orders") == "theirs"


@pytest.mark.parametrize(
    ("dataset", "message"), [("nowhere", "404: Not found: Dataset analytics:nowhere"), ("shop", "no external table of Iceberg")]
)
def test_what_is_refused_is_an_error_with_the_reason(service: Service, dataset: str, message: str) -> None:
    service.put("shop/orders", {"type": "TABLE", "schema": {"fields": []}})
    with pytest.raises(RequestRefused, match=message):
        BigQuery(CONFIG).point(dataset, "orders", f"{FOLDER}/00001-a.metadata.json")
    assert service.tables["shop/orders"]["type"] == "TABLE"


def test_a_busy_service_is_asked_again(service: Service) -> None:
    service.refuse = [(503, "busy"), (503, "busy")]
    BigQuery(CONFIG).point("shop", "orders", f"{FOLDER}/00001-a.metadata.json")
    assert service.location("shop/orders").endswith("00001-a.metadata.json")


def test_tables_that_bigquery_cannot_read_are_an_error_of_the_configuration() -> None:
    document = {
        "pipeline": "p",
        "cluster": {"name": "c", "datacenters": ["d"]},
        "bucket": "gs://b",
        "warehouse": {"bigquery": {"project": "analytics"}},
    }
    with pytest.raises(ValidationError, match="BigQuery reads tables in gs:// only"):
        PipelineConfig.model_validate({**document, "catalog": {"uri": "jdbc:sqlite:c.db", "warehouse": "s3://lake"}})
    PipelineConfig.model_validate({**document, "catalog": {"uri": "jdbc:sqlite:c.db", "warehouse": "gs://lake"}})
    PipelineConfig.model_validate({**document, "catalog": {"type": "rest", "uri": "https://c.example", "warehouse": "lake"}})


# --- the pipeline


@pytest.mark.spark
@pytest.mark.timeout(600)
def test_pointers_follow_batches_and_maintenance(service: Service, tmp_path: Path) -> None:
    ring = Ring.create(tmp_path, "h1")
    # The tables are in a folder, which the service would not read.
    config = ring.config.model_copy(update={"warehouse": WarehouseConfig(bigquery=CONFIG)})
    spark = spark_session(config, "tests of BigQuery")
    writer = ExternalTablesWriter(config, ring.store, spark)

    def batch(at: float, key: int) -> Sealed:
        ring.write(insert(key, 1, at, amount=key))
        ring.finish_and_ship(at + 1)
        sealed = ingest.run(config, ring.plan(at + 2).number, spark)
        writer.write(sealed)
        archive(ring.store, CLUSTER, sealed.number)
        return sealed

    def locations() -> dict[str, str]:
        catalog = SqlCatalog("lake", uri=f"sqlite:///{tmp_path / 'lake' / 'catalog.db'}")
        return {f"eu_{name}/orders": catalog.load_table((name, "orders")).metadata_location for name in ("shop", "shop__changes")}

    def pointers() -> dict[str, str]:
        return {name: service.location(name) for name in service.tables}

    try:
        batch(1, 1)
        first = locations()
        assert pointers() == first
        sealed = batch(5, 2)
        assert pointers() == locations() != first
        service.asked.clear()
        writer.write(sealed)
        assert service.asked == [], "nothing is new"
        # A failure is noted, and the next batch does what failed, in another process.
        service.refuse = [(403, "Access Denied"), (403, "Access Denied")]
        with capture_logs() as logs:
            sealed = batch(10, 3)
        assert {log["event"] for log in logs if log["log_level"] == "error"} == {"failed to point an external table of BigQuery"}
        found = read_external_tables(ring.store, CLUSTER)
        assert found is not None
        assert {(name, each.table, each.error) for name, each in found.failing.items()} == {
            (f"eu_{name}.orders", "shop.orders", "403: Access Denied") for name in ("shop", "shop__changes")
        }
        assert pointers() != locations()
        ExternalTablesWriter(config, ring.store, spark).write(replace_events(sealed, 0))
        assert pointers() == locations()
        assert (read_external_tables(ring.store, CLUSTER) or found).failing == {}
        # Batches before this one were taken back, from tables that it does not write.
        spark.sql("ALTER TABLE lake.shop.orders SET TBLPROPERTIES ('comment' = 'changed')")
        writer.write(replace_events(sealed, 0))
        assert pointers() != locations()
        writer.write(replace_events(sealed, 0).model_copy(update={"voided": {2: None}}))
        assert pointers() == locations()
        # After maintenance, old metadata files may be gone.
        before = locations()
        manifest = plan_maintain(ring.store, CLUSTER, now=START + timedelta(seconds=20))
        assert manifest is not None
        writer.write(ingest.run(config, manifest.number, spark))
        assert pointers() == locations()
        assert service.asked, before
    finally:
        spark.stop()


def replace_events(sealed: Sealed, events: int) -> Sealed:
    """The batch as if it had written so many events."""
    return sealed.model_copy(update={"accounting": [each.model_copy(update={"events": events}) for each in sealed.accounting]})


def test_without_the_option_nothing_is_asked(service: Service, tmp_path: Path) -> None:
    ring = Ring.create(tmp_path, "h1")
    nothing: Any = None
    ExternalTablesWriter(ring.config, ring.store, nothing).write(nothing)
    assert (service.asked, read_external_tables(ring.store, CLUSTER)) == ([], None)


def test_a_service_that_is_not_reached_stops_no_batch(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    ring = Ring.create(tmp_path, "h1")
    config = ring.config.model_copy(update={"warehouse": WarehouseConfig(bigquery=CONFIG)})
    writer = ExternalTablesWriter(config, ring.store, replace)  # type: ignore[arg-type]
    broken: Any = Sealed.model_construct(number=7)
    with capture_logs() as logs:
        writer.write(broken)
    assert [(log["event"], log["batch"]) for log in logs] == [("failed to point BigQuery's external tables", 7)]
