"""What `writetime config check` finds by making the clients: by key, without a secret, without a connection."""

from __future__ import annotations

import os
import re
import time
from importlib.metadata import EntryPoint
from pathlib import Path
from typing import Any

import pytest
import yaml
from confluent_kafka import Consumer, Producer
from confluent_kafka.admin import AdminClient
from pydantic import ValidationError

from spark_jobs import config_check
from spark_jobs.sinks.kafka_clients import _refused, make, problems
from writetime import cli
from writetime.config.kafka import ALIASES, KafkaConfig
from writetime.config.pipeline import load
from writetime.errors import ConfigError, PublishError

UNREACHABLE = "203.0.113.1:9092"
"""An address for documentation (RFC 5737): nobody answers there."""
OIDC = {
    "security.protocol": "SASL_PLAINTEXT",
    "sasl.mechanism": "OAUTHBEARER",
    "sasl.oauthbearer.method": "oidc",
    "sasl.oauthbearer.client.id": "id",
    "sasl.oauthbearer.client.secret": "hunter2",
    "sasl.oauthbearer.token.endpoint.url": "https://203.0.113.1/token",
}


def kafka(**more: Any) -> KafkaConfig:
    return KafkaConfig.model_validate({"bootstrap.servers": UNREACHABLE, "topic.prefix": "t", **more})


@pytest.mark.parametrize(
    "producer",
    [
        {},
        {"linger.ms": 0.5, "message.max.bytes": 10_000_000, "socket.keepalive.enable": True, "acks": "all"},
        {"client.id": "010", "partitioner": "consistent_random", "retries": "5"},
        {"security.protocol": "SASL_PLAINTEXT", "sasl.mechanism": "SCRAM-SHA-512", "sasl.username": "u", "sasl.password": "p"},
        OIDC,
        {**OIDC, "sasl.oauthbearer.metadata.authentication.type": "azure_imds", "sasl.oauthbearer.config": "query=a"},
    ],
)
def test_what_a_client_takes(producer: dict[str, Any]) -> None:
    assert problems(kafka(producer=producer)) == []


@pytest.mark.parametrize(
    ("producer", "keys"),
    [
        ({"queue.buffering.max.kbytes": "10MB"}, ["queue.buffering.max.kbytes"]),
        ({"socket.timeout.ms": 2**32 + 60_000}, ["socket.timeout.ms"]),
        ({"batch.size": "010"}, ["batch.size"]),
        ({"batch.size": "0x10"}, ["batch.size"]),
        ({"batch.size": 5.5}, ["batch.size"]),
        ({"linger.ms": "5ms"}, ["linger.ms"]),
        ({"socket.keepalive.enable": "yes"}, ["socket.keepalive.enable"]),
        ({"security.protocol": "kerberos"}, ["security.protocol"]),
        ({"compression.type": "brotli", "acks": "1", "no.such.option": 1}, ["compression.type", "no.such.option", "acks"]),
        ({"retries": 0}, ["retries"]),
        ({"delivery.timeout.ms": 120_000}, ["delivery.timeout.ms"]),
        ({"max.in.flight": 10}, ["max.in.flight"]),
        ({"ssl.ca.location": "/no/such/file.pem"}, ["ssl.ca.location"]),
        ({"security.protocol": "SSL", "ssl.key.pem": "hunter2"}, ["ssl.key.pem"]),
        ({"security.protocol": "SASL_SSL", "sasl.mechanism": "PLAIN"}, ["sasl.username"]),
        ({"security.protocol": "SASL_SSL", "sasl.mechanism": "OAUTHBEARER"}, ["sasl.mechanism"]),
        ({**OIDC, "sasl.oauthbearer.method": "oauth"}, ["sasl.mechanism"]),
        ({name: value for name, value in OIDC.items() if not name.endswith(".url")}, ["sasl.oauthbearer.method"]),
        ({"ssl.endpoint.identification.algorithm": ""}, ["ssl.endpoint.identification.algorithm"]),
        ({"error_cb": "print"}, ["error_cb"]),
        ({"compression.type": "hunter2", "sasl.password": "hunter2"}, ["compression.type"]),
    ],
)
def test_what_a_client_refuses_is_named_by_its_key(producer: dict[str, Any], keys: list[str], capfd: pytest.CaptureFixture[str]) -> None:
    found = problems(kafka(producer=producer))
    assert [problem.key for problem in found] == [f"kafka.producer.{key}" for key in keys]
    said = capfd.readouterr()
    assert "hunter2" not in f"{found} {said}"
    assert said.err == ""


@pytest.mark.parametrize(
    ("producer", "said"),
    [
        ({"metadata.broker.list": "a:1"}, "`metadata.broker.list`: has a key of its own"),
        ({"bootstrap.servers": "a:1"}, "`bootstrap.servers`: has a key of its own"),
        ({"retries": 5, "message.send.max.retries": 5}, "`message.send.max.retries`: is the same option as `retries`"),
        ({"sasl.mechanisms": "PLAIN", "sasl.mechanism": "PLAIN"}, "`sasl.mechanism`: is the same option as `sasl.mechanisms`"),
        ({"partitioner": "random"}, "`partitioner`: events of a key are in order in one partition only"),
        ({"message.max.bytes": "10MB"}, "`message.max.bytes`: a whole number of bytes is due"),
        ({"message.max.bytes": "1e6"}, "`message.max.bytes`: a whole number of bytes is due"),
        ({"sasl.password": "a\nb"}, "`sasl.password`: has a line break"),
        ({"client.rack": [1]}, "a text, a number, true or false is due"),
    ],
)
def test_what_a_configuration_refuses_itself(producer: dict[str, Any], said: str) -> None:
    with pytest.raises(ValidationError, match=said):
        kafka(producer=producer)


@pytest.mark.parametrize(("name", "other"), ALIASES.items())
def test_aliases_are_options_of_librdkafka(name: str, other: str) -> None:
    for each in (name, other):
        assert "No such configuration property" not in str(_refused(Producer, {each: "x"})), each


@pytest.mark.parametrize("producer", [{}, OIDC, {"security.protocol": "SSL"}], ids=["plain", "oidc", "tls"])
def test_clients_are_ended_and_wait_for_nobody(producer: dict[str, Any], capfd: pytest.CaptureFixture[str]) -> None:
    tasks = len(os.listdir("/proc/self/task"))
    began = time.process_time(), time.monotonic()
    assert problems(kafka(producer=producer)) == []
    assert time.process_time() - began[0] < 5
    deadline = time.monotonic() + 30
    while len(os.listdir("/proc/self/task")) > tasks and time.monotonic() < deadline:
        time.sleep(0.05)
    assert len(os.listdir("/proc/self/task")) == tasks, "threads of librdkafka"
    assert capfd.readouterr().err == "", "a client that connects says that it cannot"


@pytest.mark.parametrize("kind", [Producer, AdminClient, Consumer])
def test_a_job_that_makes_such_a_client_names_the_key_too(kind: Any) -> None:
    with pytest.raises(
        PublishError, match=r"create a Kafka client: kafka\.producer\.linger\.mss: librdkafka refuses it: No such"
    ) as caught:
        make(kind, {"bootstrap.servers": UNREACHABLE, "group.id": "g", "linger.mss": 5, "sasl.password": "linger.mss"})
    assert caught.value.__cause__ is None


# --- the command


@pytest.fixture
def check(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Any:
    point = EntryPoint("kafka", "spark_jobs.config_check:problems", cli.CHECKS)
    monkeypatch.setattr(cli, "entry_points", lambda *, group: [point] if group == cli.CHECKS else [])

    def run(**more: Any) -> tuple[int, str]:
        given = {"bootstrap.servers": UNREACHABLE, "topic.prefix": "t", **more}
        document = {"pipeline": "p", "cluster": {"name": "c", "datacenters": ["d"]}, "bucket": "b", "kafka": given}
        path = tmp_path / "p.yaml"
        path.write_text(yaml.safe_dump(document))
        return cli.main(["config", "check", str(path)]), capsys.readouterr().err

    return run


def test_the_command_names_file_and_keys(check: Any, tmp_path: Path) -> None:
    assert check() == (0, "")
    code, said = check(producer={"acks": "1", "ssl.ca.location": "ca.pem"})
    assert code == 2
    assert said.startswith(f"writetime: check the configuration: {tmp_path / 'p.yaml'}: ")
    assert f"`kafka.producer.ssl.ca.location`: there is no file {tmp_path / 'ca.pem'}" in said
    assert "`kafka.producer.acks`: librdkafka refuses it: `acks` must be set to `all`" in said
    (tmp_path / "ca.pem").write_text("")
    assert check(producer={"ssl.ca.location": "ca.pem"}) == (0, "")


def test_the_command_makes_the_client_of_the_registry(check: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    avro = {"format": "avro", "schema.registry.url": "http://203.0.113.1:8081"}
    assert check(**avro) == (0, "")
    code, said = check(**avro, **{"schema.registry.ssl.ca.location": "ca.pem"})
    assert (code, "`kafka.schema.registry.ssl.ca.location`: [Errno 2]" in said) == (2, True)
    monkeypatch.setenv("http_proxy", "http://me:hunter2@a b:1")
    code, said = check(**avro)
    assert (code, "`HTTP_PROXY`: its value is not the URL of a proxy" in said, "hunter2" in said) == (2, True, False)


@pytest.mark.parametrize(
    ("more", "said"),
    [
        ({"schema.registry.url": "http://a:8081,http://b:8081"}, r"`kafka\.schema\.registry\.url`: one URL is due.*\(line "),
        ({"schema.registry.url": "http://a:8081, http://b:8081"}, r"`kafka\.schema\.registry\.url`: one URL is due"),
        ({"schema.registry.url": "http://me:hunter2@a:8081"}, r"`kafka\.schema\.registry\.url`: has a user or a password"),
        ({"schema.registry.url": "http://a:port"}, r"`kafka\.schema\.registry\.url`: is not http"),
        ({"schema.registry.url": "ftp://a"}, r"`kafka\.schema\.registry\.url`: is not http"),
        ({"schema.registry.basic.auth.user.info": "me:hunter2\n"}, r"`kafka\.schema\.registry\.basic\.auth\.user\.info`: has a line break"),
        ({"partitions": 300_000}, r"`kafka\.partitions`: Input should be less than or equal to 100000"),
        ({"topic.prefix": ".."}, r"`kafka\.topic\.prefix`: no topic can be named \.\."),
        ({"topic.prefix": "p" * 238}, r"`kafka\.topic\.prefix`: .* at most 249 characters"),
        ({"topic.prefix": "p" * 230, "heartbeat.interval.ms": 9}, r"`kafka\.topic\.heartbeat\.prefix`: .* at most 249"),
        ({"bootstrap.servers": "a:1,SASL_SSL://b:1"}, r"`kafka\.bootstrap\.servers`: librdkafka leaves out brokers under SASL_SSL://"),
        ({"bootstrap.servers": "PLAINTEXT://b:1", "producer": {"security.protocol": "ssl"}}, r"`security\.protocol` of `producer` is ssl"),
        ({"bootstrap.servers": "a b:1"}, r"`kafka\.bootstrap\.servers`: `a b:1` is not host:port"),
        ({"bootstrap.servers": "a:1,,b:1"}, r"`kafka\.bootstrap\.servers`: `` is not host:port"),
        ({"bootstrap.servers": "a:99999"}, r"`kafka\.bootstrap\.servers`: `a:99999` is not host:port"),
        ({"bootstrap.servers": "SSL://me:hunter2@a:1"}, r"`kafka\.bootstrap\.servers`: .* is not host:port"),
    ],
)
def test_values_that_a_configuration_refuses_have_key_and_line(check: Any, more: dict[str, Any], said: str) -> None:
    code, err = check(**more)
    assert code == 2
    assert re.search(said, err), err
    assert "hunter2" not in err
    assert "Traceback" not in err


@pytest.mark.parametrize("servers", ["a:1", "a", "a:1, b:2", "[::1]:9092", "plaintext://a.example:9093", "10.0.0.1:9092"])
def test_brokers_that_are_addresses(servers: str) -> None:
    assert kafka(**{"bootstrap.servers": servers}).bootstrap_servers == servers


def test_words_that_yaml_reads_in_two_ways_are_refused_where_any_type_fits(tmp_path: Path) -> None:
    path = tmp_path / "p.yaml"
    head = "pipeline: p\ncluster: {name: c, datacenters: [no]}\nbucket: b\nkafka:\n  bootstrap.servers: k:1\n  topic.prefix: t\n"
    path.write_text(f"{head}  headers: no\n")
    config = load(path)
    assert config.kafka is not None
    assert (config.cluster.datacenters, config.kafka.headers) == (["no"], False)
    for word in ("no", "010", "1_000", "1:30"):
        path.write_text(f"{head}  producer:\n    linger.ms: {word}\n")
        with pytest.raises(ConfigError, match=rf"`kafka\.producer\.linger\.ms`: `{word}` is a text here.*\(line 8\)"):
            load(path)


def test_what_is_not_installed_is_not_checked(check: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    missing = EntryPoint("kafka", "no_such_package:problems", cli.CHECKS)
    monkeypatch.setattr(cli, "entry_points", lambda *, group: [missing] if group == cli.CHECKS else [])
    code, said = check(producer={"acks": "1"})
    assert (code, said) == (0, "not checked here: kafka: No module named 'no_such_package'\n")


def test_a_pipeline_without_kafka_and_cluster_has_nothing_to_check(tmp_path: Path) -> None:
    path = tmp_path / "p.yaml"
    path.write_text("pipeline: p\ncluster: {name: c, datacenters: [d]}\nbucket: b\n")
    assert list(config_check.problems(load(path))) == []


def test_certificates_of_the_cluster_are_read(tmp_path: Path) -> None:
    path = tmp_path / "p.yaml"
    path.write_text("pipeline: p\ncluster: {name: c, datacenters: [d], cql: {contact_points: [n], tls: {ca: ca.pem}}}\nbucket: b\n")
    (found,) = config_check.problems(load(path))
    assert (found.key, "No such file" in found.text) == ("cluster.cql.tls", True)


@pytest.mark.parametrize(
    ("catalog", "spark", "said"),
    [
        ({"warehouse": "s3://lake/a"}, {}, "Iceberg would ask Hadoop for s3://"),
        ({"warehouse": "s3://lake/a", "options": {"io-impl": "org.apache.iceberg.aws.S3FileIO"}}, {}, "Iceberg has no org"),
        ({"warehouse": "s3://lake/a", "options": {"io-impl": "org.apache.iceberg.aws.s3.S3FileIO"}}, {}, None),
        ({"warehouse": "s3://lake/a", "options": {"io-impl": "org.apache.iceberg.hadoop.HadoopFileIO"}}, {}, None),
        ({"warehouse": "s3://lake/a", "options": {"io-impl": "com.example.OurIO"}}, {}, None),
        ({"warehouse": "s3://lake/a"}, {"conf": {"spark.hadoop.fs.s3.impl": "org.apache.hadoop.fs.s3a.S3AFileSystem"}}, None),
        ({"warehouse": "s3://lake/a", "type": "rest", "uri": "https://c"}, {}, None),
        ({"warehouse": "gs://lake/a"}, {}, None),
        ({"warehouse": "lake"}, {}, None),
    ],
    ids=str,
)
def test_how_iceberg_reaches_the_files(tmp_path: Path, catalog: dict[str, Any], spark: dict[str, Any], said: str | None) -> None:
    path = tmp_path / "p.yaml"
    document = {"pipeline": "p", "cluster": {"name": "c", "datacenters": ["d"]}, "bucket": "b", "spark": spark}
    path.write_text(yaml.safe_dump(document | {"catalog": {"uri": "jdbc:sqlite:c.db", **catalog}}))
    found = list(config_check.problems(load(path)))
    assert [problem.key for problem in found] == ([] if said is None else ["catalog.options.io-impl"])
    assert said is None or said in found[0].text
