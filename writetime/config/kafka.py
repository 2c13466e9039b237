"""The keys `events`, `kafka`, `files` and `quarantine`: change events and where they go."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Annotated, Any, Final, Literal
from urllib.parse import urlsplit

from pydantic import BeforeValidator, Field, field_validator, model_validator

from writetime.config.base import LOWER, SINGLE_LINE, Model, Secret, StoreUrl, comma_list, has_control_characters
from writetime.config.yaml_file import Unquoted
from writetime.errors import without_secrets
from writetime.events.naming import MAX_TOPIC, quarantine_topic

PartitionBy = Literal["primary_key", "partition_key"]
"""By what events are ordered within a batch, and which records share a partition of their topic."""


class EventsConfig(Model):
    """Content of change events."""

    deletes: Literal["rows", "one"] = Field(
        default="rows",
        description="rows: a range or partition delete becomes one event per deleted row. one: a single event without "
        "rows, whose key holds the prefix.",
    )
    shape: Literal["flat", "cells"] = Field(
        default="flat",
        description="flat: a column of a row is its value. cells: a column is {value, deletion_ts, set, writetime}, in "
        "Kafka only; the changes tables have columns for writetimes and expiries.",
    )


def _operations(value: Any) -> Any:
    """Debezium's spellings: a text with commas, and `none`."""
    found = comma_list(value)
    return [] if found == ["none"] else found


def _option(value: Any) -> Any:
    if isinstance(value, Unquoted):
        raise ValueError(f"`{value}` is a text here, and YAML 1.1 reads something else: write true, false or a number in digits, or quotes")
    if not isinstance(value, str | int | float):
        raise ValueError("a text, a number, true or false is due")
    return value


def _not_a_url(url: str) -> str | None:
    """Why a registry's URL is none, without what may be secret in it."""
    if "@" in url:
        return "has a user or a password: they belong in `schema.registry.basic.auth.user.info`"
    if "," in url or " " in url:
        return "one URL is due; of several registries, give that of a load balancer in front of them"
    try:
        parts = urlsplit(url)
        known = parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
    except ValueError:
        known = False
    return (
        None
        if known and url.isprintable() and not parts.query and not parts.fragment
        else "is not http:// or https://, a host, a port and a path"
    )


_SERVER: Final = re.compile(r"(?:[A-Za-z_]+://)?(?:\[[0-9A-Fa-f:.%]+\]|[^\s:/@\[\]]+)(?::([0-9]{1,5}))?")
ALIASES: Final = {
    "bootstrap.servers": "metadata.broker.list",
    "max.in.flight": "max.in.flight.requests.per.connection",
    "sasl.mechanism": "sasl.mechanisms",
    "linger.ms": "queue.buffering.max.ms",
    "retries": "message.send.max.retries",
    "compression.type": "compression.codec",
    "acks": "request.required.acks",
    "delivery.timeout.ms": "message.timeout.ms",
    "max.partition.fetch.bytes": "fetch.message.max.bytes",
    "sasl.oauthbearer.client.credentials.client.id": "sasl.oauthbearer.client.id",
    "sasl.oauthbearer.client.credentials.client.secret": "sasl.oauthbearer.client.secret",
}
"""librdkafka's options that have two names (CONFIGURATION.md, "Alias for")."""
_PARTITIONERS: Final = frozenset({"consistent", "consistent_random", "murmur2", "murmur2_random", "fnv1a", "fnv1a_random"})


class KafkaConfig(Model):
    """Publishing of change events to Kafka."""

    bootstrap_servers: str = Field(alias="bootstrap.servers", description="host:port, comma separated.")
    topic_prefix: str = Field(
        alias="topic.prefix", description="Topics are <topic.prefix>.<keyspace>.<table>.", pattern=r"^[A-Za-z0-9._-]+$"
    )
    publishers: int = Field(
        default=2, ge=1, le=64, description="Fixed number of transactional publishers; each owns a share of the partition keys."
    )
    partitions: int = Field(default=4, ge=1, le=100_000, description="Partitions of a topic that writetime creates.")
    partition_by: PartitionBy = Field(
        default="primary_key",
        description="primary_key: all events of a row are in one partition of the topic, in order. partition_key: all events of a "
        "Cassandra partition are, in the order of their writetimes. It applies from the next batch on; "
        "docs/events.md says how to switch.",
    )
    replication_factor: int = Field(
        default=-1,
        ge=-1,
        alias="replication.factor",
        description="Replication factor of a topic that writetime creates; -1: the broker's default.",
    )
    tombstones_on_delete: bool = Field(
        default=True, alias="tombstones.on.delete", description="A delete event is followed by a null record."
    )
    skipped_operations: Annotated[list[Literal["c", "u", "d", "t"]], BeforeValidator(_operations)] = Field(
        default=[],
        alias="skipped.operations",
        description="Operations (`op`) that are not published, as a list or separated by commas; `none`: all are published. The changes "
        "tables contain them. A compacted topic does not accept `t`.",
    )
    format: Literal["json", "json-schema", "avro"] = Field(
        default="json",
        description="json: plain. json-schema: with a Kafka Connect schema in each record. avro: Confluent's wire format, with a registry.",
    )
    decimal_handling_mode: Annotated[Literal["string", "precise", "double"], LOWER] = Field(
        default="string",
        alias="decimal.handling.mode",
        description="Format of varint and decimal. string: all digits, exact. precise: {scale, value} as Debezium's "
        "VariableScaleDecimal. double: the nearest double.",
    )
    varint_handling_mode: Annotated[Literal["string", "precise", "double", "long"] | None, LOWER] = Field(
        default=None,
        alias="varint.handling.mode",
        description="Format of varint, if other than that of decimal. long: 64 bits; the events of a table with a larger one wait.",
    )
    time_precision_mode: Annotated[Literal["isostring", "adaptive", "microseconds"], LOWER] = Field(
        default="isostring",
        alias="time.precision.mode",
        description="Format of timestamp and date in JSON. isostring: ISO-8601 text. adaptive: milliseconds and days since the epoch. "
        "microseconds: microseconds and days since the epoch. Avro has logical types.",
    )
    oversized: Literal["wait", "claim-check", "quarantine"] = Field(
        default="claim-check",
        description="Handling of an event above the maximum message size. claim-check: it is stored in the bucket, and an "
        "event without rows refers to it. quarantine: it is quarantined and not sent. wait: its table waits, "
        "others continue.",
    )
    include_schema_changes: bool = Field(
        default=True, alias="include.schema.changes", description="DDL of captured tables is published to the topic <topic.prefix>."
    )
    heartbeat_interval_ms: int = Field(
        default=0,
        ge=0,
        alias="heartbeat.interval.ms",
        description="Minimum interval between heartbeats of a publishing run, with or without events; 0: no heartbeats.",
    )
    heartbeat_topics_prefix: str = Field(
        default="__debezium-heartbeat",
        alias="topic.heartbeat.prefix",
        description="Heartbeats go to <topic.heartbeat.prefix>.<topic.prefix>.",
        pattern=r"^[A-Za-z0-9._-]+$",
    )
    complete_markers: bool = Field(
        default=False,
        description="With each heartbeat, a record without key and value in every partition of every table's topic; its header "
        "writetime.complete_until_ms is the heartbeat's. A topic with cleanup.policy=compact gets none.",
    )
    headers: bool = Field(default=True, description="Records have the headers writetime.table, writetime.op and writetime.sequence.")
    schema_registry_url: str | None = Field(
        default=None,
        alias="schema.registry.url",
        description="Base URL of the registry's Confluent API, one only. Subjects are <topic>-key and <topic>-value.",
    )
    schema_registry_user_info: Secret | None = Field(
        default=None,
        alias="schema.registry.basic.auth.user.info",
        description="user:password for the registry; write ${NAME} and set it in the environment.",
    )
    schema_registry_ca: Path | None = Field(
        default=None, alias="schema.registry.ssl.ca.location", description="PEM of the authorities that are trusted for the registry."
    )
    schema_registry_certificate: Path | None = Field(
        default=None, alias="schema.registry.ssl.certificate.location", description="PEM of the client certificate for the registry."
    )
    schema_registry_key: Path | None = Field(
        default=None, alias="schema.registry.ssl.key.location", description="Its private key; default: in the certificate's file."
    )
    producer: dict[str, Annotated[str | int | float | bool, BeforeValidator(_option)]] = Field(
        default={},
        repr=False,
        description="librdkafka producer options, passed through (TLS, SASL, tuning). `writetime config check` says which ones it refuses.",
    )

    @field_validator("bootstrap_servers")
    @classmethod
    def _are_addresses(cls, servers: str) -> str:
        for server in servers.split(","):
            found = _SERVER.fullmatch(server.strip())
            if found is None or int(found[1] or 1) not in range(1, 65536):
                raise ValueError(f"`{without_secrets(server.strip())}` is not host:port")
        return servers

    @field_validator("schema_registry_url")
    @classmethod
    def _is_one_url(cls, url: str | None) -> str | None:
        if url is not None and (reason := _not_a_url(url)):
            raise ValueError(reason)
        return url

    @field_validator("producer")
    @classmethod
    def _fits_the_publishers(cls, producer: dict[str, Any]) -> dict[str, Any]:
        spelled: dict[str, str] = {"metadata.broker.list": "bootstrap.servers"}
        for option, value in producer.items():
            name = ALIASES.get(option, option)
            if (other := spelled.setdefault(name, option)) != option or name == "metadata.broker.list":
                place = "has a key of its own" if other == "bootstrap.servers" else f"is the same option as `{other}`: write one of them"
                raise ValueError(f"`{option}`: {place}")
            if has_control_characters(str(value)) and not option.endswith(".pem"):
                raise ValueError(f"`{option}`: {SINGLE_LINE}")
        if str(producer.get("partitioner", "murmur2_random")).lower() not in _PARTITIONERS:
            allowed = ", ".join(sorted(_PARTITIONERS))
            raise ValueError(f"`partitioner`: events of a key are in order in one partition only, so it is one of {allowed}")
        if re.fullmatch(r"[0-9]{1,10}", largest := str(producer.get("message.max.bytes", 1))) is None:
            raise ValueError(f"`message.max.bytes`: a whole number of bytes is due, not `{largest}`")
        return producer

    @property
    def largest_message(self) -> int | None:
        """`message.max.bytes` of the producer; None: librdkafka's default."""
        found = self.producer.get("message.max.bytes")
        return None if found is None else int(found)

    @model_validator(mode="after")
    def _reaches_its_brokers(self) -> KafkaConfig:
        spoken = str(self.producer.get("security.protocol", "plaintext")).lower()
        for server in self.bootstrap_servers.split(","):
            scheme, separator, _ = server.strip().partition("://")
            if separator and scheme.lower() != spoken:
                raise ValueError(
                    f"`bootstrap.servers`: librdkafka leaves out brokers under {scheme}://, as `security.protocol` of `producer` is "
                    f"{spoken}: write host:port"
                )
        return self

    @model_validator(mode="after")
    def _can_name_topics(self) -> KafkaConfig:
        own = {self.topic_prefix: "topic.prefix", quarantine_topic(self.topic_prefix): "topic.prefix"}
        if self.heartbeat_interval_ms:
            own[self.heartbeat_topic] = "topic.heartbeat.prefix"
        for topic, key in own.items():
            if topic in (".", "..") or len(topic) > MAX_TOPIC:
                raise ValueError(f"`{key}`: no topic can be named {topic}: Kafka takes at most {MAX_TOPIC} characters, and not . or ..")
        return self

    @property
    def heartbeat_topic(self) -> str:
        return f"{self.heartbeat_topics_prefix}.{self.topic_prefix}"

    @model_validator(mode="after")
    def _avro_has_a_registry(self) -> KafkaConfig:
        if self.format == "avro" and self.schema_registry_url is None:
            raise ValueError("`format: avro` needs `schema.registry.url`")
        return self

    @model_validator(mode="after")
    def _markers_come_with_heartbeats(self) -> KafkaConfig:
        if self.complete_markers and not self.heartbeat_interval_ms:
            raise ValueError("`complete_markers` needs `heartbeat.interval.ms`")
        return self


class FilesConfig(Model):
    """Events as Avro files, instead of Kafka or in addition."""

    url: StoreUrl = Field(description="gs://…, s3://… or a folder: <url>/<keyspace>.<table>/<batch>-….avro, <url>/_published.json.")
    decimal_handling_mode: Annotated[Literal["string", "precise", "double"], LOWER] = Field(
        default="string", alias="decimal.handling.mode", description="Format of varint and decimal, as in `kafka`."
    )


class QuarantineConfig(Model):
    """Where quarantine records (segments, frames, oversized events) are reported, besides the bucket."""

    table: bool = Field(default=True, description="With a `catalog`: its table _writetime.quarantine has a row per quarantine record.")
    topic: bool = Field(
        default=True, description="With `kafka`: each quarantine record is published to the topic <topic.prefix>.__quarantine."
    )
    bytes: Literal["none", "captured"] = Field(
        default="none",
        description="Whether both contain the bytes. none: the location in the bucket only. captured: bytes of whole "
        "frames up to 64 KiB that contain captured tables only, without columns hidden by `columns`.",
    )
