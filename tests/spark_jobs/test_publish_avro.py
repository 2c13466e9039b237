"""Avro through a real registry: schemas that change mid-stream, and one that may not."""

from __future__ import annotations

import io
import json
import urllib.request
import uuid
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import fastavro
import pyarrow as pa
import pytest
from pyspark.sql import DataFrame, SparkSession

from spark_jobs import publish
from spark_jobs.publish import Outbox
from spark_jobs.session import spark_session
from spark_jobs.sinks.iceberg import Warehouse
from spark_jobs.stages.event_pages import page_row, page_schema
from spark_jobs.stages.row_packs import unpacked
from spark_jobs.stages.table_rows import RowShape
from tests.cassandra.schema.examples import create_table
from tests.spark_jobs.examples import THEN, insert, schema_of, table
from tests.spark_jobs.pipeline import Pipeline
from tests.spark_jobs.test_iceberg import events, pages
from tests.spark_jobs.test_kafka import consume
from tests.spark_jobs.test_schema_registry import OTHER, client, full_compatibility
from writetime.cassandra.schema.history import SchemaLearner
from writetime.cassandra.schema.model import Column, Table
from writetime.pipeline.publish_progress import Published

pytestmark = [pytest.mark.spark, pytest.mark.kafka, pytest.mark.timeout(900)]


def schema_by_id(url: str, number: int) -> Any:
    with urllib.request.urlopen(f"{url}/schemas/ids/{number}", timeout=30) as answer:
        return json.loads(json.load(answer)["schema"])


def with_before(spark: SparkSession, found: DataFrame, whole: Table, **values: Any) -> DataFrame:
    """The events as updates of rows that held other values, in the columns of `whole`."""
    columns = page_schema(RowShape.of(whole, schema_of(whole)))
    rows = []
    for row in found.collect():
        (page,) = unpacked([bytes(row.payload)])
        told = [{**event, "op": "u", "before": {**event["after"], **values}} for event in page.to_pylist()]
        rows.append(page_row(bytes(row.table_id), pa.RecordBatch.from_pylist(told, schema=columns)))
    return pages(spark, rows)


@pytest.mark.thorough
def test_a_consumer_with_the_first_schema_reads_on_and_what_is_incompatible_waits_alone(
    tmp_path_factory: pytest.TempPathFactory, kafka_broker: str, schema_registry: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    pipeline = Pipeline.create(tmp_path_factory.mktemp("avro"))
    assert pipeline.config.kafka is not None
    kafka = pipeline.config.kafka.model_copy(
        update={
            "bootstrap_servers": kafka_broker,
            "topic_prefix": f"a{uuid.uuid4().hex[:8]}",
            "format": "avro",
            "schema_registry_url": schema_registry,
        }
    )
    a, b = Column("a", "regular", "text"), Column("b", "regular", "text")
    first = table("evolving", 60, {"id": "int", "a": "text"})
    key = first.columns["id"]
    versions = [first, *(replace(first, columns={"id": key, **rest}) for rest in ({"a": a, "b": b}, {"b": b}, {"a": a, "b": b}))]
    versions[3] = replace(versions[3], columns={**versions[3].columns, "c": Column("c", "regular", "int")})
    stuck = table("stuck", 61, {"id": "int", "v": "text"})
    learner = SchemaLearner()
    for each in (first, stuck):
        learner.apply(create_table(each, THEN))
    monkeypatch.setattr(publish, "read_schema", lambda *_: learner)
    monkeypatch.setattr(publish, "read_manifest", lambda *_: SimpleNamespace(nodes={}, id=None))
    topic = f"{kafka.topic_prefix}.shop.evolving"
    taken = f"{kafka.topic_prefix}.shop.stuck-value"
    with client(schema_registry) as registry:
        registry.id_of(taken, OTHER)
    full_compatibility(schema_registry, taken)
    spark = spark_session(pipeline.config, "tests of publishing in Avro")
    try:
        warehouse = Warehouse(spark, "lake")

        def write(of: Table, batch: int, values: dict[str, Any], **before: Any) -> None:
            schema = schema_of(of)
            told = events(spark, [insert(of, 1, values, timestamp=THEN + batch, schema=schema)], schema)
            warehouse.write_changes(of, schema, with_before(spark, told, versions[1], **before) if before else told, batch)

        def drain(upto: int) -> Published:
            done = Outbox(pipeline.config, kafka, pipeline.store, spark, upto).drain(everything=False)
            assert done.reasons.keys() == done.waiting.keys()
            return done.model_copy(update={"reasons": {}, "topics": {}})

        def loosen(subject: str) -> None:
            body = json.dumps({"compatibility": "NONE"}).encode()
            put = urllib.request.Request(f"{schema_registry}/config/{subject}", body, {"Content-Type": "application/json"}, method="PUT")
            urllib.request.urlopen(put, timeout=30).close()

        write(versions[0], 1, {"a": "one"})
        write(stuck, 1, {"v": "x"})
        assert drain(1) == Published(batch=1, events=1, waiting={"shop.stuck": 0})
        full_compatibility(schema_registry, f"{topic}-value")
        full_compatibility(schema_registry, f"{topic}-key")
        write(versions[1], 2, {"a": "two", "b": "zwei"})
        # The column is dropped: the event of that tells what it held.
        write(versions[2], 3, {"b": "drei"}, a="two")
        write(versions[3], 4, {"a": "four", "b": "vier", "c": 4})
        assert drain(4) == Published(batch=4, events=3, waiting={"shop.stuck": 0})
        # The rule is loosened, and what waited goes.
        loosen(taken)
        assert drain(4) == Published(batch=4, events=1)
    finally:
        spark.stop()
    wanted = kafka.model_copy(update={"partitions": pipeline.config.kafka.partitions})
    found = [(key or b"", value or b"") for _, key, value in consume(wanted, topic)]
    ids = [int.from_bytes(value[1:5], "big") for _, value in found]
    schemas = {number: schema_by_id(schema_registry, number) for number in ids}
    told = [fastavro.schemaless_reader(io.BytesIO(value[5:]), schemas[at], None) for at, (_, value) in zip(ids, found, strict=True)]
    source = {"name": kafka.topic_prefix, "db": "shop", "ts_us": THEN + 4, "sequence": '["4","1"]', "snapshot": "false", "late": False}
    assert {name: told[-1]["source"][name] for name in source} == source
    assert [each["after"] for each in told] == [
        {"id": 1, "a": "one"},
        {"id": 1, "a": "two", "b": "zwei"},
        # A wide row has all columns that the changes table has.
        {"id": 1, "b": "drei", "a": None, "c": None},
        {"id": 1, "a": "four", "b": "vier", "c": 4},
    ]
    assert told[2]["before"] == {"id": 1, "b": "drei", "a": "two", "c": None}
    first_schema = schemas[ids[0]]
    old = [fastavro.schemaless_reader(io.BytesIO(value[5:]), schemas[at], first_schema) for at, (_, value) in zip(ids, found, strict=True)]
    assert [each["after"] for each in old] == [{"id": 1, "a": value} for value in ("one", "two", None, "four")]
    assert {key[:1] for key, _ in found} == {b"\0"}
    assert len({key for key, _ in found}) == 1
