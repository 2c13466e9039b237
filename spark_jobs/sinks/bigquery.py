"""Points external tables of BigQuery at the newest metadata of the pipeline's Iceberg tables.

Strategy: an external table of BigQuery names one metadata file and shows the snapshot of that file until it
is given another. After a batch, each table whose metadata file is new takes two requests: one for the present
pointer with its etag, and one that moves it under that etag, so that a driver that is late cannot move it
back. A table that does not exist yet is created, datasets are not. What was done is noted in the bucket
(`ExternalTables`), so that the next batch, in whichever process, does what failed. No batch fails because of
it: the rows are committed.

Sources: BigQuery's REST reference (v2: tables.get, insert, patch; ExternalDataConfiguration) and its guide to
external tables of Iceberg. Knows no rows and no files but metadata files."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from datetime import UTC, datetime
from typing import Any, Final

import google.auth
import structlog
from google.auth.credentials import AnonymousCredentials
from google.auth.exceptions import GoogleAuthError
from google.auth.transport.requests import AuthorizedSession
from pyspark.sql import SparkSession
from requests import RequestException, Response
from requests.adapters import HTTPAdapter
from urllib3.util import Retry

from spark_jobs.sinks.iceberg import Warehouse
from spark_jobs.sinks.iceberg_table import IcebergTable
from spark_jobs.spark_errors import why
from writetime.config.pipeline import PipelineConfig
from writetime.config.warehouse import BigQueryConfig
from writetime.pipeline.documents import Sealed
from writetime.pipeline.external_tables import ExternalTable, ExternalTables, read_external_tables
from writetime.pipeline.planner import read_schema
from writetime.storage import layout
from writetime.storage.concurrency import at_once
from writetime.storage.store import Store

log = structlog.get_logger()

EMULATOR: Final = "BIGQUERY_EMULATOR_HOST"
"""Environment variable with the URL of a stand-in for the service, as Google's client libraries read it."""
_SERVICE: Final = "https://bigquery.googleapis.com"
_SCOPE: Final = "https://www.googleapis.com/auth/bigquery"
_SECONDS: Final = 30.0
_WORKERS: Final = 8
_RETRIES: Final = Retry(
    total=4, backoff_factor=0.5, status_forcelist=(429, 500, 502, 503, 504), allowed_methods=None, raise_on_status=False
)
_METADATA: Final = re.compile(r"(?P<folder>.*)/v?(?P<number>\d+)[^/]*\.metadata\.json$")


class RequestRefused(Exception):
    """BigQuery did not do what it was asked; the text says why."""


class BigQuery:
    """Tables of one project, by the REST API. RequestRefused says that the service refused; RequestException
    and GoogleAuthError that it was not reached."""

    def __init__(self, config: BigQueryConfig) -> None:
        emulator = os.environ.get(EMULATOR)
        self._tables = f"{(emulator or _SERVICE).rstrip('/')}/bigquery/v2/projects/{config.project}/datasets"
        self._connection = config.connection
        credentials = AnonymousCredentials() if emulator else google.auth.default(scopes=[_SCOPE])[0]  # type: ignore[no-untyped-call]
        self._session: Any = AuthorizedSession(credentials)  # type: ignore[no-untyped-call]
        for scheme in ("https://", "http://"):
            self._session.mount(scheme, HTTPAdapter(max_retries=_RETRIES, pool_maxsize=_WORKERS))

    def point(self, dataset: str, table: str, location: str) -> str:
        """Let the external table name this metadata file, or a newer one that it names already; returns the
        one that it names then. Creates the table if the dataset has none of that name."""
        answer = self._ask("GET", f"{dataset}/tables/{table}")
        if answer.status_code == 404:
            return self._create(dataset, table, location)
        found = _content(answer)
        external = found.get("externalDataConfiguration") or {}
        if external.get("sourceFormat") != "ICEBERG":
            raise RequestRefused("a table of this name exists that is no external table of Iceberg: rename or drop it")
        named = (external.get("sourceUris") or [""])[0]
        if named == location or _is_newer(named, location):
            return str(named)
        kept = {key: external[key] for key in ("connectionId",) if key in external}
        change = {"externalDataConfiguration": {**kept, "sourceFormat": "ICEBERG", "sourceUris": [location]}, "schema": None}
        etag = {"If-Match": found["etag"]} if "etag" in found else {}
        _content(self._ask("PATCH", f"{dataset}/tables/{table}?autodetect_schema=true", change, etag))
        return location

    def _create(self, dataset: str, table: str, location: str) -> str:
        connection = {"connectionId": self._connection} if self._connection else {}
        external = {**connection, "sourceFormat": "ICEBERG", "sourceUris": [location], "autodetect": True}
        made = {"tableReference": {"datasetId": dataset, "tableId": table}, "externalDataConfiguration": external}
        _content(self._ask("POST", f"{dataset}/tables", made))
        return location

    def _ask(self, method: str, path: str, body: Any = None, headers: Any = None) -> Response:
        answer: Response = self._session.request(method, f"{self._tables}/{path}", json=body, headers=headers, timeout=_SECONDS)
        return answer


def _content(answer: Response) -> dict[str, Any]:
    if answer.ok:
        found: dict[str, Any] = answer.json()
        return found
    try:
        reason = answer.json()["error"]["message"]
    except (ValueError, KeyError, TypeError):
        reason = answer.text[:200]
    raise RequestRefused(f"{answer.status_code}: {reason}")


def _is_newer(named: str, location: str) -> bool:
    """Whether the metadata file is a later one of the same table: their names begin with ascending
    numbers."""
    ours, theirs = _METADATA.match(location), _METADATA.match(named)
    return bool(ours and theirs and ours["folder"] == theirs["folder"] and int(theirs["number"]) > int(ours["number"]))


class ExternalTablesWriter:
    """Moves the pointers of one pipeline. It does nothing without `warehouse.bigquery`."""

    def __init__(self, config: PipelineConfig, store: Store, spark: SparkSession) -> None:
        self._config, self._store, self._spark = config, store, spark
        self._service: BigQuery | None = None

    def write(self, sealed: Sealed) -> None:
        """Point the tables that the batch wrote and those that failed before, or all if it may have changed
        others. A failure is logged and noted."""
        if self._config.warehouse.bigquery is None or self._config.catalog is None:
            return
        try:
            self._write(self._config.warehouse.bigquery, sealed)
        except Exception as error:  # noqa: BLE001 - no batch and no session fails because of it
            log.error("failed to point BigQuery's external tables", batch=sealed.number, error=why(error))

    def _write(self, config: BigQueryConfig, sealed: Sealed) -> None:
        before = read_external_tables(self._store, self._config.cluster.name) or ExternalTables()
        due = {
            name: each
            for name, each in self._newest(config, sealed, before)
            if (known := before.tables.get(name)) is None or known.error or known.location != each.location
        }
        if not due and before.voided == sorted(sealed.voided):
            return
        service = self._service = self._service or BigQuery(config)
        pointed = at_once(lambda name: _pointed(service, name, due[name], before.tables.get(name)), due, workers=_WORKERS)
        voided = sorted(sealed.voided)

        def change(known: ExternalTables | None) -> ExternalTables:
            return ExternalTables(tables={**(known.tables if known else {}), **dict(zip(due, pointed, strict=True))}, voided=voided)

        ExternalTables.update(self._store, layout.external_tables(self._config.cluster.name), change)

    def _newest(self, config: BigQueryConfig, sealed: Sealed, before: ExternalTables) -> Iterator[tuple[str, ExternalTable]]:
        """What the tables that may have a new metadata file should be, by their names in BigQuery."""
        warehouse, now = Warehouse.of(self._config, self._store, self._spark), datetime.now(UTC)
        done = {each.table for each in before.tables.values()} - {each.table for each in before.failing.values()}
        written = {account.table for account in sealed.accounting if account.events}
        # Others change any table: maintenance, an erasure, a batch before which others were taken back.
        is_of_few = sealed.kind == "ingest" and before.voided == sorted(sealed.voided)
        for table in read_schema(self._store, self._config.cluster.name, sealed.number).captured():
            if is_of_few and table.label in done - written and table.id not in sealed.late_rejections:
                continue
            for name in filter(None, (warehouse.current_of(table), warehouse.changes_of(table))):
                _, namespace, plain = name.replace("`", "").split(".")
                location = IcebergTable(self._spark, name).metadata_location
                yield f"{config.dataset_prefix}{namespace}.{plain}", ExternalTable(table=table.label, location=location, at=now)


def _pointed(service: BigQuery, name: str, newest: ExternalTable, known: ExternalTable | None) -> ExternalTable:
    """What the table is after the request."""
    dataset, _, table = name.partition(".")
    try:
        return newest.model_copy(update={"location": service.point(dataset, table, newest.location or "")})
    except (RequestRefused, RequestException, GoogleAuthError) as error:
        log.error("failed to point an external table of BigQuery", table=name, location=newest.location, error=str(error))
        before = known or ExternalTable(table=newest.table)
        return before.model_copy(update={"error": str(error), "failing_since": before.failing_since or newest.at})
