"""The pipeline's YAML: what is filled in, and what a wrong one is told."""

from __future__ import annotations

import re
import sys
import textwrap
from pathlib import Path
from typing import Any

import pytest
import yaml

from writetime.config.airflow import AirflowConfig, WatchConfig
from writetime.config.gone import INSTEAD
from writetime.config.pipeline import PipelineConfig, example_environment, load
from writetime.errors import ConfigError

MINIMAL: dict[str, Any] = {"pipeline": "shop", "cluster": {"name": "ring", "datacenters": ["dc1"]}, "bucket": "bucket"}


def write(folder: Path, document: Any) -> Path:
    path = folder / "pipeline.yaml"
    path.write_text(document if isinstance(document, str) else yaml.safe_dump(document), encoding="utf-8")
    return path


def test_little_is_needed(tmp_path: Path) -> None:
    config = load(write(tmp_path, MINIMAL))
    assert config.bucket == str(tmp_path / "bucket")
    assert config.tables.include == ["*.*"]
    assert (config.catalog, config.kafka, config.node) == (None, None, None)
    assert config.buckets == 1


def test_folders_are_meant_from_the_files_place(tmp_path: Path) -> None:
    document = MINIMAL | {
        "bucket": "file://../bucket",
        "catalog": {"uri": "jdbc:sqlite:catalog.db", "warehouse": "wh"},
        "node": {"cdc_raw": "raw", "schema_file": "/elsewhere/schema.json"},
        "cluster": {**MINIMAL["cluster"], "commitlog_keystore": "keys/commitlog.p12"},
    }
    config = load(write(tmp_path, document))
    assert config.cluster.commitlog_keystore == tmp_path / "keys" / "commitlog.p12"
    assert config.node is not None
    assert config.catalog is not None
    assert config.bucket == str(tmp_path.parent / "bucket")
    assert config.catalog.warehouse == str(tmp_path / "wh")
    assert config.catalog.uri == f"jdbc:sqlite:{tmp_path / 'catalog.db'}"
    assert (config.node.cdc_raw, config.node.schema_file) == (tmp_path / "raw", Path("/elsewhere/schema.json"))
    assert load(write(tmp_path, MINIMAL | {"bucket": "gs://b/p"})).bucket == "gs://b/p"


@pytest.mark.parametrize(
    ("uri", "found"),
    [
        ("jdbc:sqlite:catalog.db", "jdbc:sqlite:{}/catalog.db"),
        ("jdbc:sqlite:../a/catalog.db?journal_mode=WAL", "jdbc:sqlite:{}/../a/catalog.db?journal_mode=WAL"),
        ("jdbc:sqlite:file:catalog.db?cache=shared", "jdbc:sqlite:file:{}/catalog.db?cache=shared"),
        ("jdbc:sqlite:/var/lib/catalog.db", "jdbc:sqlite:/var/lib/catalog.db"),
        ("jdbc:sqlite:file:/var/lib/catalog.db", "jdbc:sqlite:file:/var/lib/catalog.db"),
        ("jdbc:sqlite::memory:", "jdbc:sqlite::memory:"),
        ("jdbc:sqlite:", "jdbc:sqlite:"),
        ("jdbc:postgresql://h/db", "jdbc:postgresql://h/db"),
    ],
)
def test_a_database_in_a_file_is_meant_from_the_files_place(tmp_path: Path, uri: str, found: str) -> None:
    config = load(write(tmp_path, MINIMAL | {"catalog": {"uri": uri, "warehouse": "w"}}))
    assert config.catalog is not None
    expected = found.format(tmp_path).replace(f"{tmp_path}/../", f"{tmp_path.parent}/")
    assert config.catalog.uri == expected


def test_files_of_librdkafka_are_meant_from_the_files_place(tmp_path: Path) -> None:
    producer = {"ssl.ca.location": "ca.pem", "ssl.key.location": "/k.pem", "ssl.crl.location": "", "client.id": "ca.pem"}
    config = load(write(tmp_path, MINIMAL | {"kafka": {"bootstrap.servers": "k:1", "topic.prefix": "t", "producer": producer}}))
    assert config.kafka is not None
    assert config.kafka.producer == producer | {"ssl.ca.location": str(tmp_path / "ca.pem")}
    probe = {"bootstrap.servers": "k:1", "topic.prefix": "t", "producer": {"ssl.ca.location": "probe"}}
    assert load(write(tmp_path, MINIMAL | {"kafka": probe})).kafka.producer == {"ssl.ca.location": "probe"}  # type: ignore[union-attr]


@pytest.mark.parametrize(
    "change",
    [
        {"catalog": {"uri": "https://c", "type": "rest", "warehouse": "w", "secrets": {"token": "hunter2\n"}}},
        {"node": {"cdc_raw": "x", "password": "hunter2\r"}},
        {"bucket": "sftp://me:hunter2@host/x"},
    ],
)
def test_an_error_has_no_secret(tmp_path: Path, change: dict[str, Any]) -> None:
    with pytest.raises(ConfigError) as caught:
        load(write(tmp_path, MINIMAL | change))
    assert "hunter2" not in f"{caught.value} {caught.value.as_dict()}"
    (key,) = change
    assert f"`{key}" in str(caught.value)


def test_a_key_in_pem_has_lines(tmp_path: Path) -> None:
    node = {"cdc_raw": "x", "password": "-----BEGIN A KEY-----\nA\n"}
    assert load(write(tmp_path, MINIMAL | {"node": node})).node is not None


def test_events_come_out_as_files_where_there_is_no_kafka_unless_nobody_wants_them(tmp_path: Path) -> None:
    def files(**more: Any) -> str | None:
        found = load(write(tmp_path, {**MINIMAL, "bucket": "gs://lake/cdc", **more})).files
        return found.url if found else None

    assert files() == "gs://lake/cdc/events/ring"
    assert files(bucket="bucket") == str(tmp_path / "bucket" / "events" / "ring")
    assert files(files=None) is None
    assert files(files={"url": "s3://other"}) == "s3://other"
    assert files(kafka={"bootstrap.servers": "k:9092", "topic.prefix": "p"}) is None


@pytest.mark.advice(", or write the value into the file if it is not a secret.")
def test_secrets_come_from_the_environment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    document = MINIMAL | {"node": {"cdc_raw": "raw", "username": "u-${WHO}", "password": "${CQL_SECRET}"}}
    path = write(tmp_path, document)
    assert example_environment(path) == ["CQL_SECRET", "WHO"]
    monkeypatch.setenv("WHO", "me")
    with pytest.raises(ConfigError, match=r"node\.password.*CQL_SECRET"):
        load(path)
    monkeypatch.setenv("CQL_SECRET", "sesame")
    config = load(path)
    assert config.node is not None
    assert config.node.password is not None
    assert (config.node.username, config.node.password.get_secret_value()) == ("u-me", "sesame")
    assert "sesame" not in repr(config)


KAFKA = {"bootstrap.servers": "k:9092", "topic.prefix": "t"}


@pytest.mark.parametrize(
    ("change", "key"),
    [
        ({"columns": {"salt": "${env:hunter2}"}}, "columns.salt"),
        ({"columns": {"salt": "${file:/etc/salt.properties:hunter2}"}}, "columns.salt"),
        ({"columns": {"salt": "${hunter2:-none}"}}, "columns.salt"),
        ({"columns": {"salt": "$hunter2"}}, "columns.salt"),
        ({"columns": {"salt": "%hunter2%"}}, "columns.salt"),
        ({"node": {"cdc_raw": "x", "password": "{{ var.value.hunter2 }}"}}, "node.password"),
        ({"kafka": KAFKA | {"schema.registry.basic.auth.user.info": "$hunter2"}}, "kafka.schema.registry.basic.auth.user.info"),
        ({"kafka": KAFKA | {"producer": {"sasl.username": "${env:hunter2}"}}}, "kafka.producer.sasl.username"),
        ({"catalog": {"uri": "jdbc:x:y", "warehouse": "w", "secrets": {"any": "$hunter2"}}}, "catalog.secrets.any"),
        ({"cluster": {"name": "ring", "datacenters": ["dc1", "${ DC2 }"]}}, "cluster.datacenters[1]"),
    ],
)
def test_a_reference_that_nobody_replaces_is_no_value(tmp_path: Path, change: dict[str, Any], key: str) -> None:
    with pytest.raises(ConfigError, match=re.escape(f"`{key}` refers to a value in a way that is not replaced here")) as caught:
        load(write(tmp_path, MINIMAL | change))
    assert "hunter2" not in str(caught.value)


@pytest.mark.advice("Write ${NAME}, and set NAME in the environment: also if the value itself has these characters.")
def test_what_others_replace_and_what_a_variable_holds_stays(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SALT", "$alt ${env:x}")
    told = {"notifier": "some.Notifier", "secrets": {"text": "{{ told }}"}}
    change = {
        "columns": {"salt": "${SALT}"},
        "spark": {"conf": {"spark.x": "${env:HOME}"}},
        "airflow": {"on_failure": [told]},
        "node": {"cdc_raw": "x", "username": "$me", "password": "a$b{c"},
    }
    with pytest.raises(ConfigError, match="not replaced here"):
        load(write(tmp_path, MINIMAL | {"columns": {"salt": "$alt ${env:x}"}}))
    config = load(write(tmp_path, MINIMAL | change))
    assert config.columns.rules.salt == "$alt ${env:x}"
    assert config.spark.conf == {"spark.x": "${env:HOME}"}
    assert config.node is not None
    assert config.node.username == "$me"


@pytest.mark.parametrize(
    ("change", "told"),
    [
        ({"pipline": "x"}, r"`pipline`: is not a known key"),
        ({"warehouse": {"compact": False}}, r"`warehouse\.compact`: is not a known key: maintenance always merges small files"),
        ({"spark": {"shuffle_partitions": 8}}, r"write `spark\.sql\.shuffle\.partitions` in `spark\.conf`"),
        ({"spark": {"conf": {"spark.sql.shuffle.partitions": "many"}}}, "a number of partitions is due, not `many`"),
        ({"pipeline": "Shop-1"}, r"`pipeline`"),
        ({"cluster": {"name": "ring"}}, r"`cluster\.datacenters`: Field required"),
        ({"cluster": {"name": "", "datacenters": []}}, r"`cluster\.name`.*`cluster\.datacenters`"),
        ({"tables": {"include": ["orders"]}}, r"did you mean `orders\.\*`"),
        ({"tables": {"exclude": r"shop\.users"}}, r"`tables\.exclude`: `shop\\\.users` has a \\: it is no regular expression"),
        ({"tables": {"exclude": "shop.(users|payments)"}}, r"`tables\.exclude`: .* has a \("),
        ({"tables": {"exclude": 'shop."Users"'}}, r"`tables\.exclude`: .* names are not quoted in it"),
        ({"tables": {"include": [".*.*"]}}, r"`tables\.include`: .* is not a keyspace\.table pattern"),
        ({"buckets": 0}, r"`buckets`"),
        (
            {"bucket": "abfss://c@account.dfs.core.windows.net/x"},
            r"`bucket`: `abfss://.*no kind of object store.*Azure Blob Storage is not supported.*gs://",
        ),
        ({"bucket": "az://container/x"}, r"`bucket`: `az://.*Azure Blob Storage is not supported"),
        ({"bucket": "https://a.blob.core.windows.net/container"}, r"`bucket`: `https://.*Azure Blob Storage is not supported"),
        ({"state": "hdfs://host/state"}, r"`state`: .*no kind of object store"),
        ({"files": {"url": "ftp://host/events"}}, r"`files\.url`: .*no kind of object store"),
        ({"snapshot": {"consistency": "ANY"}}, r"`snapshot\.consistency`"),
        ({"tables": {"not_in_log": "often"}}, r"`tables\.not_in_log`"),
        ({"tables": {"not_in_log": "read"}}, r"tables\.not_in_log: read needs `cluster\.cql`"),
        ({"buckets": "many"}, r"`buckets`"),
        ({"node": {}}, r"`node\.cdc_raw`: Field required"),
        ({"node": {"cdc_raw": "x", "port": 0}}, r"`node\.port`"),
        ({"node": {"cdc_raw": "x", "poll_seconds": 0}}, r"`node\.poll_seconds`"),
        ({"kafka": {"bootstrap.servers": "h:1", "topic.prefix": "a b"}}, r"`kafka\.topic\.prefix`"),
        ({"kafka": {"topic.prefix": "a"}}, r"`kafka\.bootstrap\.servers`: Field required"),
        ({"catalog": {"type": "glue", "uri": "u", "warehouse": "w"}}, r"`catalog\.type`"),
        ({"catalog": {"type": "rest", "uri": "jdbc:sqlite:c.db", "warehouse": "w"}}, r"`catalog`.*http"),
        ({"catalog": {"uri": "https://c", "warehouse": "w"}}, r"`catalog`.*jdbc"),
        ({"catalog": {"uri": "jdbc:sqlite:c", "warehouse": "w", "options": {"uri": "x"}}}, r"`catalog`.*key of its own"),
    ],
)
def test_what_a_wrong_one_is_told(tmp_path: Path, change: dict[str, Any], told: str) -> None:
    path = write(tmp_path, MINIMAL | change)
    with pytest.raises(ConfigError, match=told) as caught:
        load(path)
    assert caught.value.obj == str(path)
    assert not caught.value.retriable


SCHEDULES = [f"{dag}_schedule" for dag in ("ingest", "bootstrap", "maintain", "verify", "audit")] + ["publish_fallback", "watch.schedule"]


def scheduled(key: str, value: str | None) -> dict[str, Any]:
    parent, _, child = key.rpartition(".")
    return MINIMAL | {"airflow": {parent: {child: value}} if parent else {child: value}}


@pytest.mark.parametrize("key", SCHEDULES)
@pytest.mark.parametrize(
    "value", ["", "* * * *", "61 * * * *", "0 0 30 2 *", "every 5 minutes", "0:05:00", "@once", "@continuous", "H * * * *"]
)
def test_a_schedule_that_airflow_cannot_run(tmp_path: Path, key: str, value: str) -> None:
    told = rf"`airflow\.{re.escape(key)}`: `{re.escape(value)}` is not a valid cron expression .*or null"
    with pytest.raises(ConfigError, match=told):
        load(write(tmp_path, scheduled(key, value)))


@pytest.mark.parametrize("key", SCHEDULES)
def test_a_schedule_that_airflow_can_run(tmp_path: Path, key: str) -> None:
    presets = ("@hourly", "@daily", "@weekly", "@monthly", "@quarterly", "@yearly")
    for value in (None, "*/5 * * * *", "0 0 29 2 *", "17 3 * * MON-FRI", *presets):
        load(write(tmp_path, scheduled(key, value)))


def test_every_schedule_is_checked() -> None:
    """Those of `SCHEDULES` are all that DAGs have."""
    found = {name for name in AirflowConfig.model_fields if name.endswith(("_schedule", "_fallback"))}
    assert found | {f"watch.{name}" for name in WatchConfig.model_fields if name == "schedule"} == set(SCHEDULES)


def test_schedules_are_not_read_where_airflow_is_not_installed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "croniter", None)
    assert load(write(tmp_path, scheduled("ingest_schedule", "61 * * * *"))).airflow.ingest_schedule == "61 * * * *"


@pytest.mark.parametrize("text", ["", "just text", "- a\n- b", "a: [", "a: b: c", "\t"])
def test_what_is_no_mapping(tmp_path: Path, text: str) -> None:
    with pytest.raises(ConfigError):
        load(write(tmp_path, text))


@pytest.mark.advice("Save the file as UTF-8.")
def test_a_file_in_another_encoding(tmp_path: Path) -> None:
    path = tmp_path / "pipeline.yaml"
    text = yaml.safe_dump(MINIMAL | {"bucket": "größe"}, allow_unicode=True)
    path.write_bytes(text.encode("latin-1"))
    with pytest.raises(ConfigError, match="UTF-8"):
        load(path)
    path.write_bytes(text.encode())
    assert load(path).bucket.endswith("größe")


def test_no_file(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"nowhere\.yaml.*No such file"):
        load(tmp_path / "nowhere.yaml")


def test_all_problems_are_told_at_once(tmp_path: Path) -> None:
    with pytest.raises(ConfigError) as caught:
        load(write(tmp_path, {"pipeline": "shop", "colour": "red"}))
    for key in ("colour", "cluster", "bucket"):
        assert f"`{key}`" in str(caught.value)


def test_choices_and_lists_are_read_as_debezium_writes_them(tmp_path: Path) -> None:
    kafka = {"bootstrap.servers": "h:1", "topic.prefix": "t", "decimal.handling.mode": "PRECISE", "skipped.operations": "c, t"}
    more = {"snapshot": {"mode": "ALWAYS", "consistency": "two"}, "kafka": kafka, "tables": {"include": "shop.*, bets.odds"}}
    found = load(write(tmp_path, MINIMAL | more))
    assert (found.snapshot.mode, found.snapshot.consistency) == ("always", "TWO")
    assert found.kafka is not None
    assert (found.kafka.decimal_handling_mode, found.kafka.skipped_operations) == ("precise", ["c", "t"])
    assert found.tables.include == ["shop.*", "bets.odds"]
    # Nothing but keys, as before: a list that a template left empty must not publish everything.
    assert load(write(tmp_path, MINIMAL | {"columns": {"column.include.list": ""}})).columns.include == [""]
    for none in ("none", ["none"]):
        found = load(write(tmp_path, MINIMAL | {"kafka": kafka | {"skipped.operations": none}}))
        assert found.kafka is not None
        assert found.kafka.skipped_operations == []


def test_every_key_is_explained() -> None:
    def unexplained(model: dict[str, Any]) -> list[str]:
        inner = model["properties"].items()
        return [key for key, field in inner if not field.get("description") and "$ref" not in str(field)]

    schema = PipelineConfig.model_json_schema()
    models = [schema, *schema["$defs"].values()]
    assert [key for model in models for key in unexplained(model)] == []


def test_names_as_kafka_writes_them(tmp_path: Path) -> None:
    text = textwrap.dedent(
        """
        pipeline: shop
        cluster: {name: ring, datacenters: [dc1]}
        bucket: b
        kafka: {bootstrap.servers: "h:1", topic.prefix: cdc, producer: {compression.type: zstd, linger.ms: 5}}
        """
    )
    kafka = load(write(tmp_path, text)).kafka
    assert kafka is not None
    assert (kafka.bootstrap_servers, kafka.topic_prefix, kafka.producer) == ("h:1", "cdc", {"compression.type": "zstd", "linger.ms": 5})


@pytest.mark.parametrize("key", INSTEAD)
def test_a_key_that_is_gone_is_refused_with_what_is_there_instead(tmp_path: Path, key: str) -> None:
    value: Any = 1
    for name in reversed(key.split(".")):
        value = {name: value}
    if "node" in value:
        value["node"]["cdc_raw"] = "x"
    with pytest.raises(ConfigError, match=f"`{re.escape(key)}`: is not a known key: {re.escape(INSTEAD[key])}"):
        load(write(tmp_path, MINIMAL | value))
