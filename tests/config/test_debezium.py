"""Debezium's properties as our YAML: every row of the table, and of the page that shows it."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
import yaml

from spark_jobs import config_check
from tests.events.test_source import COLUMNS, KEYS, NAMED, SCHEMA, rows
from writetime.cli import main
from writetime.config import debezium
from writetime.config.pipeline import PipelineConfig
from writetime.errors import ConfigError
from writetime.events.envelope import Shape

ROOT = Path(__file__).parents[2]
PAGE, EXAMPLE = ROOT / "docs" / "debezium.md", ROOT / "docs" / "examples" / "debezium.properties"
GIVEN = {
    "cluster": {"name": "production", "datacenters": ["dc1"]},
    "bucket": "gs://bucket",
    "catalog": {"uri": "jdbc:sqlite:c.db", "warehouse": "w"},
}
LITTLE = {"connector.name": "shop", "topic.prefix": "shop", "kafka.producer.bootstrap.servers": "h:1", "cassandra.hosts": "10.0.0.1"}
VALUES = {
    "connector.name": "Shop-2",
    "kafka.producer.bootstrap.servers": "a:1,b:2",
    "snapshot.mode": "NEVER",
    "snapshot.consistency": "LOCAL_ONE",
    "cassandra.hosts": "10.0.0.1, 10.0.0.2",
    "cassandra.port": "9142",
    "cassandra.ssl.enabled": "true",
    "tombstones.on.delete": "true",
    "skipped.operations": "none",
    "decimal.handling.mode": "PRECISE",
    "varint.handling.mode": "string",
    "time.precision.mode": "microseconds",
    "field.exclude.list": "shop.orders.note,shop.orders.address.street",
    "heartbeat.interval.ms": "5000",
    "event.order.guarantee.mode": "PARTITION_VALUES",
}
"""Of properties whose value is not any text."""
LOADED: dict[str, Any] = {
    "connector.name": "shop_2",
    "snapshot.mode": "never",
    "cassandra.hosts": ["10.0.0.1", "10.0.0.2"],
    "cassandra.port": 9142,
    "cassandra.ssl.enabled": {"ca": None, "certificate": None, "key": None, "check_hostname": True},
    "tombstones.on.delete": True,
    "skipped.operations": [],
    "decimal.handling.mode": "precise",
    "field.exclude.list": ["shop.orders.note", "shop.orders.address.street"],
    "heartbeat.interval.ms": 5000,
    "event.order.guarantee.mode": "partition_key",
}
"""What a key is then, if it is not the text."""


def loaded(properties: dict[str, str]) -> PipelineConfig:
    return PipelineConfig.model_validate(debezium.translate(properties, GIVEN).document)


@pytest.mark.parametrize("known", [each for each in debezium.PROPERTIES if each.key], ids=lambda known: known.name)
def test_each_property_with_a_key_is_loaded(known: debezium.Property) -> None:
    text = VALUES.get(known.name, "text")
    found: Any = loaded(LITTLE | {known.name: text}).model_dump(mode="json", by_alias=True)
    for part in known.key.split("/"):
        found = found[part]
    assert found == LOADED.get(known.name, text)


@pytest.mark.parametrize("known", [each for each in debezium.PROPERTIES if not each.key], ids=lambda known: known.name)
def test_each_other_property_has_a_note(known: debezium.Property) -> None:
    value = "org.apache.kafka.connect.json.JsonConverter" if known.name == "value.converter" else "text"
    found = debezium.translate(LITTLE | {known.name: value}, GIVEN)
    assert found.notes == {known.name: known.note}
    assert known.note


def test_defaults_are_those_of_debezium() -> None:
    config = loaded(LITTLE)
    kafka = config.kafka
    assert kafka is not None
    assert (kafka.tombstones_on_delete, kafka.skipped_operations, kafka.format) == (False, ["t"], "json-schema")
    assert (kafka.decimal_handling_mode, kafka.varint_handling_mode, kafka.time_precision_mode) == ("double", "long", "adaptive")


@pytest.mark.parametrize(
    ("converter", "format"),
    [
        ({}, "json-schema"),
        ({"value.converter.schemas.enable": "false"}, "json"),
        (
            {
                "value.converter": "io.confluent.connect.avro.AvroConverter",
                "value.converter.schema.registry.url": "http://registry:8081",
                "value.converter.basic.auth.user.info": "me:sesame",
            },
            "avro",
        ),
    ],
)
def test_converters_are_formats(converter: dict[str, str], format: str) -> None:
    found = debezium.translate(LITTLE | converter, GIVEN)
    assert found.document["kafka"]["format"] == format
    assert "sesame" not in str(found)
    PipelineConfig.model_validate(found.document)


@pytest.mark.parametrize(
    ("properties", "told"),
    [
        ({"value.converter": "com.blueapron.connect.protobuf.ProtobufConverter"}, r"no such format.*JsonConverter"),
        ({"cassandra.port": "many"}, r"cassandra\.port=many"),
        ({"tombstones.on.delete": "perhaps"}, r"neither true nor false"),
        ({"event.order.guarantee.mode": "none"}, r"none of partition_values, commitlog_file"),
    ],
)
def test_what_has_no_counterpart_is_refused(properties: dict[str, str], told: str) -> None:
    with pytest.raises(ConfigError, match=told):
        debezium.translate(LITTLE | properties, GIVEN)


@pytest.mark.advice("Formats are: ")
def test_a_format_that_is_named_instead_is_taken() -> None:
    with pytest.raises(ConfigError) as caught:
        debezium.translate(LITTLE | {"value.converter": "com.blueapron.connect.protobuf.ProtobufConverter"}, GIVEN)
    named = (caught.value.hint or "").removeprefix("Formats are: ").removesuffix(".").split(", ")
    formats = {debezium.translate(LITTLE | {"value.converter": each}, GIVEN).document["kafka"]["format"] for each in named}
    assert formats == {"json-schema", "avro"}


def test_java_properties_are_read_as_java_does() -> None:
    text = "# no\n! no\na=1\nb : 2\nc 3\nd=x,\\\n   y\n\ne\\:f=4=5\nempty=\na=6\n"
    assert debezium.read_properties(text) == {"a": "6", "b": "2", "c": "3", "d": "x,y", "e:f": "4=5", "empty": ""}


@pytest.mark.parametrize(
    ("text", "read"),
    [
        ("# from C:\\debezium\\\na=1\n", {"a": "1"}),
        ("  ! one\\\n  # two\\\na=1\\\n# 2\nb=3", {"a": "1# 2", "b": "3"}),
        ("a=x\\\\\nb=2\n", {"a": "x\\", "b": "2"}),
        ("a=x\\\\\\\n  y\nb=2\n", {"a": "x\\y", "b": "2"}),
        ("a=shop\\\\.orders\\u002e\\t1\n", {"a": "shop\\.orders.\t1"}),
        ("a = 1\\\r\n   2\r\nb\\ c=3\r", {"a": "12", "b c": "3"}),
        ("a=1\\", {"a": "1"}),
    ],
)
def test_comments_and_backslashes_are_read_as_java_does(text: str, read: dict[str, str]) -> None:
    assert debezium.read_properties(text) == read


def test_references_to_providers_of_kafka_connect_become_variables() -> None:
    properties = {
        "cassandra.username": "${env:CQL_USER}",
        "kafka.producer.sasl.username": "${file:/etc/kafka/kafka.properties:sasl.user-name}",
        "kafka.producer.sasl.password": "${file:/etc/kafka/kafka.properties:password}",
        "kafka.producer.client.id": "cdc-${env:POD}",
    }
    found = debezium.translate(LITTLE | properties, GIVEN)
    assert found.document["cluster"]["cql"]["username"] == "${CQL_USER}"
    producer = {"sasl.username": "${sasl_user_name}", "sasl.password": "${KAFKA_SASL_PASSWORD}", "client.id": "cdc-${POD}"}
    assert found.producer == producer
    assert found.notes["kafka.producer.sasl.username"] == (
        "set sasl_user_name in the environment, for ${file:/etc/kafka/kafka.properties:sasl.user-name}"
    )
    assert found.notes["kafka.producer.sasl.password"] == "set KAFKA_SASL_PASSWORD in the environment"
    assert "cassandra.username" not in found.notes


def test_a_property_that_is_given_twice_is_named(tmp_path: Path) -> None:
    path = tmp_path / "p.properties"
    path.write_text("".join(f"{name}={value}\n" for name, value in LITTLE.items()) + "cassandra.port=9142\ncassandra.port=9143\n")
    found = debezium.pipeline_of(path, GIVEN)
    assert found.document["cluster"]["cql"]["port"] == 9143
    assert found.notes == {"cassandra.port": "is given more than once, and the last one counts, as in Java"}


def test_the_example_becomes_a_pipeline(tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    where = ["--cluster", "production", "--datacenter", "dc1", "--bucket", "gs://shop-cdc", "--catalog", "jdbc:sqlite:c.db"]
    assert main(["config", "from-debezium", str(EXAMPLE), *where, "--warehouse", "gs://shop-lake"]) == 0
    out, err = capsys.readouterr()
    assert "not-in-the-yaml" not in out + err
    assert "kafka.producer.sasl.password: set KAFKA_SASL_PASSWORD in the environment" in err
    assert "cassandra.password: WRITETIME_CQL_PASSWORD" in err
    document = yaml.safe_load(out)
    assert document["kafka"]["producer"]["sasl.password"] == "${KAFKA_SASL_PASSWORD}"
    path = tmp_path / "shop.yaml"
    path.write_text(out, encoding="utf-8")
    monkeypatch.setenv("KAFKA_SASL_PASSWORD", "x")
    assert main(["config", "check", str(path)]) == 0


@pytest.mark.parametrize("table", [debezium.PROPERTIES, debezium.PRODUCER], ids=["properties", "producer"])
def test_the_page_has_each_row_of_the_table(table: tuple[debezium.Property, ...]) -> None:
    page = PAGE.read_text(encoding="utf-8").splitlines()
    rows = [line for line in page if line.startswith("| `") and line in {each.row() for each in table}]
    assert rows == [each.row() for each in table]


PRODUCER_OPTIONS = {
    "acks": "1",
    "batch.size": "0",
    "buffer.memory": "67108864",
    "client.dns.lookup": "use_all_dns_ips",
    "client.id": "debezium",
    "compression.type": "zstd",
    "compression.zstd.level": "3",
    "connections.max.idle.ms": "540000",
    "delivery.timeout.ms": "120000",
    "enable.idempotence": "false",
    "enable.metrics.push": "true",
    "interceptor.classes": "",
    "linger.ms": "5",
    "max.block.ms": "60000",
    "max.in.flight.requests.per.connection": "10",
    "max.request.size": "10485760",
    "metadata.max.age.ms": "300000",
    "metadata.recovery.strategy": "rebootstrap",
    "metadata.recovery.rebootstrap.trigger.ms": "300000",
    "partitioner": "random",
    "partitioner.class": "org.apache.kafka.clients.producer.RoundRobinPartitioner",
    "receive.buffer.bytes": "-1",
    "reconnect.backoff.max.ms": "1000",
    "reconnect.backoff.ms": "50",
    "request.timeout.ms": "30000",
    "retries": "2147483647",
    "retry.backoff.max.ms": "1000",
    "retry.backoff.ms": "100",
    "sasl.kerberos.service.name": "kafka",
    "sasl.login.refresh.window.factor": "0.8",
    "sasl.mechanism": "GSSAPI",
    "security.protocol": "PLAINTEXT",
    "send.buffer.bytes": "131072",
    "socket.connection.setup.timeout.ms": "10000",
    "ssl.cipher.suites": "TLS_AES_256_GCM_SHA384",
    "ssl.enabled.protocols": "TLSv1.2,TLSv1.3",
    "ssl.endpoint.identification.algorithm": "",
    "ssl.keystore.key": "-----BEGIN PRIVATE KEY-----",
    "transaction.timeout.ms": "60000",
}
"""Options of Java's producer, by Kafka's documentation."""
TAKEN = {
    "compression.level": "3",
    "message.max.bytes": "10485760",
    "queue.buffering.max.kbytes": "65536",
    "ssl.endpoint.identification.algorithm": "none",
    "socket.send.buffer.bytes": "131072",
    "retries": "2147483647",
    "ssl.key.pem": "${KAFKA_SSL_KEY_PEM}",
}


def test_of_the_producer_only_what_the_client_takes_is_written() -> None:
    """Every other option is named, with the reason."""
    found = debezium.translate(LITTLE | {f"kafka.producer.{name}": value for name, value in PRODUCER_OPTIONS.items()}, GIVEN)
    found.leave_out(config_check.problems(PipelineConfig.model_validate(found.checkable())))
    producer = found.document["kafka"]["producer"]
    assert TAKEN.items() <= producer.items()
    config = PipelineConfig.model_validate(found.document)
    assert list(config_check.problems(config)) == []
    renamed = {each.name for each in debezium.PRODUCER if each.key and each.key in producer}
    assert {name for name in PRODUCER_OPTIONS if name not in producer and name not in renamed} <= {
        name.removeprefix("kafka.producer.") for name in found.notes
    }
    for name in (
        "acks",
        "partitioner",
        "max.block.ms",
        "delivery.timeout.ms",
        "enable.idempotence",
        "max.in.flight.requests.per.connection",
    ):
        assert name not in producer
    assert "left out: librdkafka refuses it: No such" in found.notes["kafka.producer.sasl.login.refresh.window.factor"]


def test_files_and_keys_that_are_not_here_are_written() -> None:
    tls = {"security.protocol": "SSL", "ssl.keystore.key": "x", "ssl.keystore.location": "/on/a/worker.p12", "ssl.no.such": "1"}
    found = debezium.translate(LITTLE | {f"kafka.producer.{name}": value for name, value in tls.items()}, GIVEN)
    found.leave_out(config_check.problems(PipelineConfig.model_validate(found.checkable())))
    assert found.document["kafka"]["producer"] == {
        "security.protocol": "SSL",
        "ssl.key.pem": "${KAFKA_SSL_KEY_PEM}",
        "ssl.keystore.location": "/on/a/worker.p12",
    }
    assert found.notes.keys() == {"kafka.producer.ssl.keystore.key", "kafka.producer.ssl.no.such"}


def test_properties_of_debezium_3_6_are_known() -> None:
    names = ("poll.dispatch.interval.ms", "topic.heartbeat.name", "custom.sanitize.pattern", "extended.headers.enabled", "transforms")
    found = debezium.translate(LITTLE | dict.fromkeys((*names, "transforms.unwrap.type", "signal.data.collection"), "x"), GIVEN)
    assert found.notes.keys() == {*names, "transforms.unwrap.type", "signal.data.collection"}
    assert not any("is not a property" in note for note in found.notes.values())
    assert debezium.translate(LITTLE | {"no.such": "x"}, GIVEN).notes == {"no.such": "is not a property of Debezium that is known here"}


def test_of_several_registries_the_first_is_written() -> None:
    given = {
        "value.converter": "io.confluent.connect.avro.AvroConverter",
        "value.converter.schema.registry.url": "http://a:8081, http://b:8081",
    }
    found = debezium.translate(LITTLE | given, GIVEN)
    assert found.document["kafka"]["schema.registry.url"] == "http://a:8081"
    assert found.notes == {
        "value.converter": next(each.note for each in debezium.PROPERTIES if each.name == "value.converter"),
        "value.converter.schema.registry.url": "one URL is due: the first of the list",
    }


def _tables() -> list[list[str]]:
    """The cells of all lines of tables."""
    lines = (line for line in PAGE.read_text(encoding="utf-8").splitlines() if line.startswith("| "))
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in lines]


def test_each_field_of_events_is_there() -> None:
    row, *_ = rows()
    found = Shape(KEYS, COLUMNS, SCHEMA).value(row, NAMED)
    ours = [cells[1].strip("`") for cells in _tables() if len(cells) == 3]
    named = [name for name in ours if name.split(".")[0] in ("op", "before", "after", "source", "ts_ms", "ts_us", "ts_ns")]
    assert len(named) > 15
    for name in named:
        part, _, field = name.rpartition(".")
        assert field in (found[part] if part else found), name


def test_each_metric_is_one() -> None:
    known = set(re.findall(r"writetime_\w+", (ROOT / "docs" / "metrics.md").read_text(encoding="utf-8")))
    named = set(re.findall(r"`(writetime_\w+)`", PAGE.read_text(encoding="utf-8")))
    assert len(named) >= 6
    assert named <= known


# --- rules


@pytest.mark.parametrize(
    ("properties", "document"),
    [
        ({"field.blacklist": "shop.people.ssn"}, {"columns": {"field.exclude.list": ["shop.people.ssn"]}}),
        ({"debezium.source.field.exclude.list": "shop.people.ssn"}, {"columns": {"field.exclude.list": ["shop.people.ssn"]}}),
        ({"column.blacklist": r"shop\.people\.s{1,2}n"}, {"columns": {"column.exclude.list": [r"shop\.people\.s{1,2}n"]}}),
        ({"column.include.list": "a.b.c,a.b.d"}, {"columns": {"column.include.list": ["a.b.c", "a.b.d"]}}),
        ({"column.mask.with.12.chars": "a.b.c"}, {"columns": {"column.mask.with.12.chars": ["a.b.c"]}}),
        ({"column.truncate.to.4.chars": "a.b.c"}, {"columns": {"column.truncate.to.4.chars": ["a.b.c"]}}),
        (
            {"column.mask.hash.SHA-256.with.salt.pepper": "a.b.c", "column.mask.hash.v2.SHA-256.with.salt.pepper": "a.b.d"},
            {
                "columns": {
                    "column.mask.hash.SHA-256.with.salt": ["a.b.c"],
                    "column.mask.hash.v2.SHA-256.with.salt": ["a.b.d"],
                    "salt": "${COLUMNS_SALT}",
                }
            },
        ),
        ({"table.exclude.list": r"shop\.people,shop.b"}, {"tables": {"exclude": ["shop.people", "shop.b"]}}),
        ({"table.whitelist": "shop.people"}, {"tables": {"include": ["shop.people"]}}),
    ],
    ids=str,
)
def test_what_hides_something_is_translated(properties: dict[str, str], document: dict[str, Any]) -> None:
    found = debezium.translate(LITTLE | properties, GIVEN)
    assert {part: found.document.get(part) for part in document} == document
    assert "pepper" not in str(found)
    PipelineConfig.model_validate(found.document)


@pytest.mark.parametrize(
    "properties",
    [
        {"keyspace.exclude.list": "shop"},
        {"table.exclude.list": r"shop\..*"},
        {"column.mask.with.length.chars": "shop.people.ssn"},
        {"transforms.r.type": "org.apache.kafka.connect.transforms.ReplaceField$Value"},
        {"debezium.transforms.m.type": "org.apache.kafka.connect.transforms.MaskField$Key"},
        {"transforms.f.type": "io.debezium.transforms.Filter"},
        {"column.mask.hash.SHA-256.with.salt.pepper": "a.b.c", "column.mask.hash.SHA-512.with.salt.hunter2": "a.b.d"},
        {"field.blacklist": "a.b.c", "field.exclude.list": "a.b.d"},
    ],
    ids=str,
)
@pytest.mark.advice("Take it out of the file, and write what it hides into")
def test_what_hides_something_and_has_no_counterpart_is_refused(properties: dict[str, str]) -> None:
    with pytest.raises(ConfigError) as caught:
        debezium.translate(LITTLE | properties, GIVEN)
    assert not any(salt in str(caught.value) for salt in ("pepper", "hunter2"))
    debezium.translate(LITTLE, GIVEN | {"columns": {"column.exclude.list": "shop.people.ssn"}})


@pytest.mark.parametrize("name", ["field.exclude.list", "field.blacklist", "column.mask.hash.SHA-256.with.salt.pepper"])
def test_a_rule_that_is_given_twice_is_refused(tmp_path: Path, name: str) -> None:
    given = "".join(f"{key}={value}\n" for key, value in LITTLE.items())
    (tmp_path / "d.properties").write_text(f"{given}{name}=a.b.c\n{name}=a.b.d\n")
    with pytest.raises(ConfigError, match="more than once") as caught:
        debezium.pipeline_of(tmp_path / "d.properties", GIVEN)
    assert "pepper" not in str(caught.value)


@pytest.mark.parametrize("kind", ["RegexRouter", "InsertField$Value", "TimestampRouter"])
def test_transformations_that_hide_nothing_have_a_note(kind: str) -> None:
    found = debezium.translate(LITTLE | {"transforms.x.type": f"org.apache.kafka.connect.transforms.{kind}"}, GIVEN)
    assert "part of Kafka Connect" in found.notes["transforms.x.type"]


@pytest.mark.parametrize(
    "name", ["sasl.oauthbearer.config", "sasl.kerberos.kinit.cmd", "sasl.password", "ssl.key.password", "ssl.keystore.key"]
)
def test_what_may_be_secret_comes_from_the_environment(name: str) -> None:
    found = debezium.translate(LITTLE | {f"kafka.producer.{name}": "secret=hunter2"}, GIVEN)
    assert "hunter2" not in str(found)
    assert next(iter(found.producer.values())).startswith("${KAFKA_")
