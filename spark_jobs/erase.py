"""The erase job: find and erase one key in all data of the pipeline. `writetime erase`

Strategy: this module parses the key and plans the batch; the batch itself is `spark_jobs.stages.erase_key`,
which the ingest job runs.
"""

from __future__ import annotations

import json
from typing import Any, Final, NamedTuple

from pyspark.sql import SparkSession

from spark_jobs import ingest
from spark_jobs.session import spark_session
from spark_jobs.stages.erase_key import Erasing, after_seal
from writetime.cassandra.schema.history import SchemaLearner
from writetime.cassandra.schema.model import Table
from writetime.cassandra.types.types import parse_type
from writetime.config.pipeline import PipelineConfig
from writetime.errors import BatchError, ConfigError, DecodeError
from writetime.events.json import from_json_value
from writetime.pipeline.archiver import archive, archive_last
from writetime.pipeline.erase import Outcome
from writetime.pipeline.erasures import Request
from writetime.pipeline.planner import (
    as_of,
    expect_settled,
    history,
    plan_erase,
    read_schema,
    store_clock,
)
from writetime.storage import layout, open_store
from writetime.storage.store import Store

_OPERATION: Final = "erase a key"
_NO_BATCH: Final = "Let cdc_ingest run first: segments that were shipped may hold the key."
_NAMES: Final = "Write keyspace.table, as in CQL without quotes."


class Key(NamedTuple):
    """A key of a table, as requested. `clustering`: None for the whole partition."""

    table: Table
    pk: bytes
    clustering: tuple[bytes | None, ...] | None


def parse_key(learner: SchemaLearner, full_name: str, text: str) -> Key:
    """The key in the JSON object `text`: all columns of the partition key or of the primary key, by name,
    with values as in events. ConfigError if it is invalid."""
    schema = learner.schema()
    found = learner.captured(lambda name: name == full_name)
    if not found:
        raise ConfigError("no table of that name is captured", operation=_OPERATION, obj=full_name, hint=_NAMES)
    table = max(found, key=lambda each: (not each.dropped, each.dropped_at or 0, str(each.id)))
    values = _object(text)
    partition, clustering = [c.name for c in table.partition_key], [c.name for c in table.clustering]
    if set(values) not in (set(partition), {*partition, *clustering}):
        wanted = f"{', '.join(partition)}" + (f", or also {', '.join(clustering)}" if clustering else "")
        raise ConfigError("columns do not match the key", operation=_OPERATION, obj="--key", hint=f"Give {wanted}.")

    def encoded(name: str) -> bytes | None:
        kind = parse_type(table.columns[name].type, table.keyspace, schema.types)
        try:
            return None if values[name] is None else kind.encode(from_json_value(kind, values[name]))
        except (DecodeError, ValueError, TypeError, OverflowError, ArithmeticError) as error:
            raise ConfigError(f"{name} is not a valid {kind}: {error}", operation=_OPERATION, obj="--key") from error

    parts = [encoded(name) for name in partition]
    if any(part is None for part in parts):
        raise ConfigError("partition key column must not be null", operation=_OPERATION, obj="--key")
    row = tuple(encoded(name) for name in clustering) if clustering and clustering[0] in values else None
    return Key(table, _joined([part or b"" for part in parts]), row)


def _object(text: str) -> dict[str, Any]:
    try:
        values = json.loads(text)
    except ValueError as error:
        raise ConfigError(f"not valid JSON: {error}", operation=_OPERATION, obj="--key") from error
    if not isinstance(values, dict):
        raise ConfigError("not a JSON object", operation=_OPERATION, obj="--key", hint='Such as {"id": 7}.')
    return values


def _joined(parts: list[bytes]) -> bytes:
    """Inverse of `split_partition_key`."""
    return parts[0] if len(parts) == 1 else b"".join(len(part).to_bytes(2, "big") + part + b"\0" for part in parts)


# --- the command


def run(config: PipelineConfig, full_name: str, key: str, *, by: str, yes: bool = False, spark: SparkSession | None = None) -> Outcome:
    """Look for the key, and with `yes` erase it. Goes on with a batch that was begun for the same key.

    ConfigError for a key that is none; BatchError while the ring holds the key, or its events are not
    published; BatchBusy while another batch is open."""
    store, cluster = open_store(config.bucket), config.cluster.name
    past = history(store, cluster)
    if past.sealed is None:
        expect_settled(store, cluster, past, _OPERATION)
        raise BatchError("no batch is sealed yet", operation=_OPERATION, obj=cluster, hint=_NO_BATCH)
    asked = parse_key(read_schema(store, cluster, past.sealed.number), full_name, key)
    request = Request.of(full_name, asked.pk, asked.clustering, by)
    session = spark or spark_session_of(config)
    try:
        with as_of(store, cluster, past.sealed, _OPERATION):
            found = Erasing.reading(config, store, session, request, past.sealed).look()
        if not yes:
            return found
        if found.live:
            raise BatchError("; ".join(found.live), operation=_OPERATION, obj=full_name, hint=_HOW_TO_GO_ON)
        return _run_batch(config, store, session, request, past.sealed.number)
    finally:
        if spark is None:
            session.stop()


_HOW_TO_GO_ON: Final = "Delete it in the ring, let cdc_ingest and cdc_publish run, and erase it then."


def spark_session_of(config: PipelineConfig) -> SparkSession:
    return spark_session(config, f"writetime erase {config.pipeline}")


def _run_batch(config: PipelineConfig, store: Store, spark: SparkSession, request: Request, looked: int) -> Outcome:
    cluster = config.cluster.name
    archive_last(store, cluster)
    manifest = plan_erase(store, cluster, request, looked, now=store_clock(store, cluster))
    sealed = ingest.run(config, manifest.number, spark)
    archive(store, cluster, sealed.number)
    # Another run of the batch may have sealed it and still be doing this.
    after_seal(config, store, spark, manifest, sealed, request)
    outcome = Outcome.read(store, layout.erasure_done(cluster, manifest.number))
    assert outcome is not None, "it is put before the seal"
    return outcome
