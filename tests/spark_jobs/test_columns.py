"""Columns and rows that must not leave: in events, and in everything that a whole pipeline writes, says and
sends."""

from __future__ import annotations

import io
import json
import sys
import uuid
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import urlencode

import fastavro
import pyarrow.parquet as pq
import pytest
import yaml
from confluent_kafka.admin import AdminClient
from fastapi.testclient import TestClient

from benchmarks.page import Everybody
from spark_jobs import publish
from spark_jobs.stages.typed_events import EventPlan, TypedEvents
from tests.damage import flip_a_byte_of_a_captured_frame
from tests.spark_jobs.examples import (
    NOW,
    ORDERS,
    SCHEMA,
    THEN,
    events_of,
    folded,
    frame,
    insert,
    of_kind,
    paged,
    schema_of,
    table,
)
from tests.spark_jobs.pipeline import Pipeline
from tests.spark_jobs.test_kafka import consume
from tools import ROOT, verify
from writetime.cassandra.model import Mutation
from writetime.cli import main
from writetime.config.kafka import FilesConfig, KafkaConfig
from writetime.config.tables import ColumnsConfig
from writetime.pipeline.batch_history import Batches
from writetime.pipeline.documents import Sealed
from writetime.pipeline.planner import read_manifest
from writetime.pipeline.quarantine.record import list_records


def told(rules: ColumnsConfig, *mutations: Mutation) -> list[tuple[int | None, dict[str, Any]]]:
    """The events of one partition as the sinks get them, with their ordinals."""
    rows = of_kind(folded([frame(mutation) for mutation in mutations]), "event")
    return [(event["ordinal"], event) for event in events_of(paged(rows, rules=rules.rules))]


def test_masks_are_in_keys_rows_and_what_is_told_of_them() -> None:
    given = {"salt": "s", "column.mask.hash.sha256.with.salt": "shop.orders.line", "column.exclude.list": "shop.orders.name"}
    ((ordinal, event),) = told(ColumnsConfig.model_validate(given), insert(ORDERS, 1, {"name": "Ada", "at": 5}, 7))
    assert ordinal == 1
    assert event["key"] == {"id": 1, "line": event["after"]["line"]}
    assert len(event["key"]["line"]) == 64
    assert event["after"].keys() == {"id", "line", "note", "at"}
    assert (event["changed"], event["writetime"]) == (["at"], {"at": THEN})


def test_a_hidden_field_is_in_no_value_and_in_nothing_that_is_told_of_changes() -> None:
    of = table("people", 77, {"id": "int", "home": "address", "all": "frozen<list<frozen<pair>>>"})
    schema, hidden = schema_of(of), {"field.exclude.list": "shop.people.home.street, shop.people.all.b"}
    mutations = (
        insert(of, 1, {"home": {"street": street, "Since when": since}, "all": [{"a": 1, "b": street}]}, timestamp=THEN + at, schema=schema)
        for at, (street, since) in enumerate([("clear 1", 5), ("clear 2", 5), ("clear 2", 6)])
    )
    rows = of_kind(folded([frame(each, schema=schema) for each in mutations], schema), "event")
    created, moved, since = events_of(paged(rows, schema, rules=ColumnsConfig.model_validate(hidden).rules))
    assert created["after"]["home"]["street"] is None
    assert created["after"]["all"] == [{"a": 1, "b": None}]
    # Of a change that nobody may see, the event says nothing; of another one, what anybody may.
    assert (moved["changed"], moved["changed_elements"], since["changed"]) == ([], None, ["home"])
    assert "street" not in since["changed_elements"]
    assert "clear" not in repr([created, moved, since])


def test_the_salt_shows_in_nothing_that_is_printed() -> None:
    """It travels with the plan, in tasks that see the clear values anyway; what is printed of either must not
    have it."""
    config = ColumnsConfig.model_validate({"salt": "a salt", "column.mask.hash.sha256.with.salt": "shop.orders.(line|name)"})
    plan = EventPlan(SCHEMA, NOW, [], [], {}, rules=config.rules)
    events, of_table = TypedEvents(plan, ORDERS.id), config.rules.of(ORDERS, SCHEMA.types)
    assert of_table.masks["line"].salt == "a salt"
    told = [repr(config), config.model_dump_json(), str(config), *map(repr, (config.rules, plan, of_table, of_table.masks, vars(events)))]
    assert [text for text in told if "a salt" in text] == []


def test_a_row_that_leaves_the_filter_is_deleted_and_one_that_comes_is_created() -> None:
    rules = ColumnsConfig.model_validate({"rows": {"shop.orders": "name != 'out'"}})
    values = ["out", "in", "in too", "out", "out still"]
    found = told(rules, *(insert(ORDERS, 1, {"name": value}, 1, timestamp=THEN + at) for at, value in enumerate(values)))
    names = [[part and part["name"] for part in (event["before"], event["after"])] for _, event in found]
    assert names == [[None, None], [None, "in"], ["in", "in too"], ["in too", None], [None, "out still"]]
    assert [event["op"] for _, event in found] == ["d", "c", "u", "d", "c"]
    assert [ordinal for ordinal, _ in found] == [None, 2, 3, 4, 5]


# --- a whole pipeline

SALT = "a salt that is a secret"
RULES: dict[str, Any] = {
    "salt": SALT,
    "column.mask.hash.sha256.with.salt": "shop.*.customer_id, shop.customers.email",
    "column.mask.with.6.chars": "shop.customers.(name|phones)",
    "column.exclude.list": "shop.orders.client_ip",
    "rows": {"shop.orders": "status != 'returned'"},
}
SPELLINGS: dict[str, dict[str, Any]] = {
    "as documented": RULES,
    "two keys of one rule, commas within patterns, names in another case": {
        "salt": SALT,
        "column.mask.hash.SHA-256.with.salt": ["SHOP.[a-z]{1,20}.Customer_ID"],
        "column.mask.hash.v2.SHA-256.with.salt": "shop.customers.e[a-z,]{1,2}il",
        "column.mask.with.06.chars": "shop.customers.(name|a,b) , ",
        "column.mask.with.6.chars": "shop.customers.phones",
        "column.exclude.list": "shop.orders.client_ip{1,1}",
        "rows": {'"Shop" . orders': "status != 'returned'"},
    },
    "names in quotes": {
        "salt": SALT,
        "hashes": {"sha256": [r"shop\..*\.customer_id"], "SHA-256": ["^shop.customers.email$"]},
        "masks": {"6": [" shop.customers.name "], "06": ["shop.customers.phones"]},
        "field.exclude.list": 'shop."orders"."client_ip"',
        "rows": {"SHOP.ORDERS": "status != 'returned'"},
    },
}
SECRET_STORES = ("cdc", "cdc_archive", "state", "schemas")
"""What holds the ring's own bytes, by its purpose; of the quarantine its `.bin`."""


def texts(pipeline: Pipeline) -> Iterator[tuple[str, str]]:
    """Everything under the pipeline's folders that is no secret store, unpacked, by name."""
    bucket = Path(pipeline.config.bucket)
    assert pipeline.config.catalog is not None
    assert pipeline.config.files is not None
    warehouse, files = Path(pipeline.config.catalog.warehouse), Path(pipeline.config.files.url)
    for path in sorted({*bucket.rglob("*"), *warehouse.rglob("*"), *files.rglob("*"), *pipeline.site.catalog.parent.glob("*.db")}):
        inside = path.relative_to(bucket).parts[0] if path.is_relative_to(bucket) else ""
        if not path.is_file() or inside in SECRET_STORES or path.suffix == ".bin":
            continue
        if path.suffix == ".parquet":
            yield f"unpacked {path}", json.dumps(pq.read_table(path).to_pylist(), default=str, ensure_ascii=False)
        elif path.suffix == ".avro":
            yield f"unpacked {path}", repr(list(fastavro.reader(io.BytesIO(path.read_bytes()))))
        yield str(path), path.read_bytes().decode("utf-8", "replace")


def records(kafka: KafkaConfig) -> Iterator[tuple[str, str]]:
    """Every record of every topic that has the prefix in its name."""
    topics = AdminClient({"bootstrap.servers": kafka.bootstrap_servers}).list_topics(timeout=30).topics
    for topic, about in topics.items():
        if kafka.topic_prefix in topic:
            of_topic = kafka.model_copy(update={"partitions": len(about.partitions)})
            for at, (_, key, value) in enumerate(consume(of_topic, topic)):
                yield f"{topic}, record {at}", b" ".join((key or b"", value or b"")).decode("utf-8", "replace")


def pages(pipeline: Pipeline) -> Iterator[tuple[str, str]]:
    """Every view of the page in Airflow, by somebody who may see values."""
    sys.path.insert(0, str(ROOT / "plugins"))
    try:
        from writetime_page_app import Shown, build
    finally:
        sys.path.pop(0)
    batches = Batches(pipeline.store, pipeline.cluster)
    access = Everybody()
    access.shows_values = True
    client = TestClient(build(Shown(pipeline.cluster, lambda: batches, lambda: pipeline.config.columns.rules), access))
    found, _ = list_records(batches)
    assert found
    segments = [f"segment?{urlencode({'name': segment.object})}" for segment in read_manifest(pipeline.store, pipeline.cluster, 1).segments]
    records = [f"quarantine/record?{urlencode({'name': record.name})}" for record in found]
    for address in ("", "segments", "batches", "batches/1", "tables", "quarantine", *segments, *records):
        answer = client.get(f"/{address}")
        assert answer.status_code == 200, (address, answer.text)
        yield f"page {address}", answer.text


def commands(pipeline: Pipeline, rules: dict[str, Any], folder: Path, capfd: pytest.CaptureFixture[str]) -> Iterator[tuple[str, str]]:
    """What the command line shows, with the pipeline's configuration."""
    config = folder / "masked.yaml"
    config.write_text(yaml.safe_dump(yaml.safe_load(pipeline.site.config.read_text()) | {"columns": rules}))
    found, _ = list_records(Batches(pipeline.store, pipeline.cluster))
    segments = sorted(str(path) for path in (Path(pipeline.config.bucket) / "cdc_archive").rglob("*.log"))
    assert segments
    for command in (
        *(["dump", *form, "--config", str(config), *segments] for form in ([], ["--json"])),
        *([name, "--config", str(config), "--json"] for name in ("status", "batches")),
        ["batch", "1", "--config", str(config)],
        ["metrics", "--config", str(config)],
        ["config", "show", str(config)],
        ["quarantine", "list", "--config", str(config)],
        *(["quarantine", "show", record.name, "--values", "--config", str(config)] for record in found),
    ):
        code = main(command)
        said = capfd.readouterr()
        assert code == 0, (command, said)
        yield " ".join(command[:3]), said.out + said.err


class Published(NamedTuple):
    """Everything that a pipeline has published, by place, and the clear values that it must not contain."""

    pipeline: Pipeline
    kafka: KafkaConfig
    files: FilesConfig
    sealed: Sealed
    orders: list[dict[str, Any]]
    secrets: set[str]
    found: dict[str, str]

    @property
    def leaks(self) -> list[tuple[str, str]]:
        return [(name, secret) for name, text in self.found.items() for secret in self.secrets if secret in text]


def published(
    rules: dict[str, Any], tmp_path_factory: pytest.TempPathFactory, broker: str, schema_registry: str, capfd: pytest.CaptureFixture[str]
) -> Published:
    """A batch of the recording, published in all formats by a pipeline with these rules."""
    pipeline = Pipeline.create(tmp_path_factory.mktemp("masked"))
    assert pipeline.config.kafka is not None
    kafka = pipeline.config.kafka.model_copy(update={"bootstrap_servers": broker, "topic_prefix": f"m{uuid.uuid4().hex[:8]}"})
    logs = tmp_path_factory.mktemp("event-logs")
    told = {"spark.eventLog.enabled": "true", "spark.eventLog.compress": "false", "spark.eventLog.dir": logs.as_uri()}
    spark = pipeline.config.spark.model_copy(update={"conf": {**pipeline.config.spark.conf, **told}})
    kafka = kafka.model_copy(update={"heartbeat_interval_ms": 1})
    files = FilesConfig(url=str(tmp_path_factory.mktemp("files")))
    update = {"columns": ColumnsConfig.model_validate(rules), "kafka": kafka, "files": files, "spark": spark}
    config = pipeline.config.model_copy(update=update)
    pipeline = replace(pipeline, config=config)
    first, *_ = pipeline.stage()
    flip_a_byte_of_a_captured_frame(first)
    pipeline.ship()
    sealed = pipeline.batch()
    assert publish.run(config).waiting == {}
    for form in ("json-schema", "avro"):
        more = {"format": form, "topic_prefix": f"{kafka.topic_prefix}-{form}", "schema_registry_url": schema_registry}
        again = config.model_copy(update={"kafka": kafka.model_copy(update=more), "files": None})
        assert publish.run(again, everything=True).waiting == {}
    customers, orders = (
        [row["values"] for row in verify.expected_rows(pipeline.recording, "shop", table)] for table in ("customers", "orders")
    )
    secrets = {str(row["email"]) for row in customers} | {str(row["name"]) for row in customers if " " in str(row["name"])}
    secrets |= {str(row["customer_id"]) for row in customers + orders} | {"+49 30", "198.51.100.", "2001:db8::", SALT}
    # Of a row without one.
    secrets.discard("None")
    assert len(secrets) > 100
    found = dict(texts(pipeline))
    found |= dict(records(kafka))
    found |= {f"Spark's {path.name}": path.read_text("utf-8") for path in logs.rglob("*") if path.is_file()}
    said = capfd.readouterr()
    found |= {"stdout": said.out, "stderr": said.err, "the batch": sealed.model_dump_json()}
    found |= dict(pages(pipeline))
    found |= dict(commands(pipeline, rules, tmp_path_factory.mktemp("command"), capfd))
    return Published(pipeline, kafka, files, sealed, orders, secrets, found)


@pytest.mark.thorough
@pytest.mark.spark
@pytest.mark.kafka
@pytest.mark.timeout(900)
def test_the_search_finds_a_mask_that_is_left_out(
    tmp_path_factory: pytest.TempPathFactory, kafka_broker: str, schema_registry: str, capfd: pytest.CaptureFixture[str]
) -> None:
    rules = {**RULES, "column.mask.with.6.chars": "shop.customers.name"}
    done = published(rules, tmp_path_factory, kafka_broker, schema_registry, capfd)
    assert {secret for _, secret in done.leaks} == {"+49 30"}
    places = {name for name, _ in done.leaks}
    for form in ("", "-json-schema", "-avro"):
        assert any(name.startswith(f"{done.kafka.topic_prefix}{form}.shop.customers, record") for name in places), form
    assert any(name.startswith(f"unpacked {done.files.url}") for name in places)
    assert sum(name.startswith("unpacked") and name.endswith(".parquet") for name in places) >= 2, "current rows and changes"


@pytest.mark.thorough
@pytest.mark.spark
@pytest.mark.kafka
@pytest.mark.timeout(900)
@pytest.mark.parametrize("rules", SPELLINGS.values(), ids=SPELLINGS.keys())
def test_a_search_through_every_output_finds_no_clear_value(
    rules: dict[str, Any],
    tmp_path_factory: pytest.TempPathFactory,
    kafka_broker: str,
    schema_registry: str,
    capfd: pytest.CaptureFixture[str],
) -> None:
    done = published(rules, tmp_path_factory, kafka_broker, schema_registry, capfd)
    pipeline, kafka, files, sealed, orders, found = done.pipeline, done.kafka, done.files, done.sealed, done.orders, done.found
    assert done.leaks == []
    # The search sees what it should: what is not masked, and all kinds of files.
    assert sum("delivered" in text for name, text in found.items() if name.startswith("unpacked") and name.endswith(".parquet")) > 0
    for form in ("", "-json-schema", "-avro"):
        topic = f"{kafka.topic_prefix}{form}.shop.orders"
        assert sum("delivered" in text for name, text in found.items() if name.startswith(f"{topic}, record")) > 0
    assert any("quarantine" in name for name in found)
    assert any("_writetime" in name and name.endswith(".parquet") for name in found)
    assert any("__quarantine, record" in name for name in found)
    assert any("__debezium-heartbeat" in name for name in found)
    assert any("CREATE TABLE" in text for name, text in found.items() if name.startswith(f"{kafka.topic_prefix}, record"))
    assert any("delivered" in text for name, text in found.items() if name.startswith(f"unpacked {files.url}"))
    assert "hidden: " in found["dump --json --config"]
    assert any(
        "the configuration hides columns" in text
        for name, text in found.items()
        if "quarantine/record" in name or "quarantine show" in name
    )
    assert any(name.startswith("Spark's") and "MapInArrow" in text for name, text in found.items())
    expected = [row for row in orders if row["status"] not in (None, "returned")]
    # What a filter hides is not told, and not counted as if it were.
    (account,) = [account for account in sealed.accounting if account.table == "shop.orders"]
    assert account.events == len(pipeline.rows("shop__changes", "orders")) > 0
    rows = pipeline.rows("shop", "orders")
    assert {row["status"] for row in rows} == {row["status"] for row in expected}
    assert len(rows) == len(expected) < len(orders)
    assert len({row["customer_id"] for row in rows}) == len({row["customer_id"] for row in expected})
    assert {row["name"] for row in pipeline.rows("shop", "customers")} <= {"******", None}
