"""Properties of Debezium's connector for Cassandra as a pipeline's YAML (`writetime config from-debezium`).

Strategy: one table, PROPERTIES, has every property of the connector with the key that it becomes, or with what
replaces it. docs/debezium.md shows the table, and a test loads each row. Where Debezium's default is another than
ours, the key is written out. What a file of properties cannot say (the bucket, the warehouse, the cluster's name)
is asked for. Secrets do not get into the YAML: it names environment variables instead.

Property names and defaults: https://debezium.io/documentation/reference/stable/connectors/cassandra.html
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from pydantic import ValidationError

from writetime.config import debezium_rules
from writetime.config.base import Problem, comma_list, is_secret
from writetime.config.debezium_rules import OPERATION
from writetime.config.pipeline import PipelineConfig, explain
from writetime.errors import ConfigError

_PRODUCER: Final = "kafka.producer."
_ENTRY: Final = re.compile(r"((?:\\.|[^\\ \t\f=:])*)[ \t\f]*[=:]?[ \t\f]*(.*)", re.DOTALL)
_ESCAPE: Final = re.compile(r"\\(?:u([0-9A-Fa-f]{4})|(.))", re.DOTALL)
_ESCAPED: Final = {"t": "\t", "n": "\n", "r": "\r", "f": "\f"}
_PROVIDED: Final = re.compile(r"\$\{(\w+):(?:[^{}]*:)?([A-Za-z_][^{}:]*)\}")
_CONVERTERS: Final = {
    "org.apache.kafka.connect.json.JsonConverter": "json-schema",
    "io.confluent.connect.avro.AvroConverter": "avro",
}


@dataclass(frozen=True, slots=True)
class Property:
    """A property of Debezium. `key`: our key, its parts separated by `/`; empty if there is none. `note`: what is
    different, or what takes its place. `default`: Debezium's default, if ours is another one."""

    name: str
    key: str = ""
    note: str = ""
    convert: Callable[[str], Any] = str
    default: str | None = None

    def row(self) -> str:
        """Its line in docs/debezium.md."""
        ours = f"`{self.key.replace('/', ': ')}`" if self.key else "–"
        return f"| `{self.name}` | {ours} | {self.note} |"


@dataclass
class Translated:
    """A pipeline as a document for YAML, and what people have to know or do, by property."""

    document: dict[str, Any]
    notes: dict[str, str] = field(default_factory=dict)

    @property
    def producer(self) -> dict[str, Any]:
        """librdkafka's options."""
        found: dict[str, Any] = self.document.setdefault("kafka", {}).setdefault("producer", {})
        return found

    def checkable(self) -> dict[str, Any]:
        """The document without files, which may be on another machine, and without keys that come from the environment."""
        kept = {option: value for option, value in self.producer.items() if not option.endswith((".location", ".keytab", ".pem"))}
        return {**self.document, "kafka": {**self.document["kafka"], "producer": kept}}

    def leave_out(self, problems: Iterable[Problem]) -> None:
        """Leave out the options that a client refuses, and say so."""
        for key, text in problems:
            option = key.removeprefix("kafka.producer.")
            if option in self.producer:
                del self.producer[option]
                self.notes[f"{_PRODUCER}{option}"] = f"left out: {text}"
        if not self.producer:
            del self.document["kafka"]["producer"]


def pipeline_of(file: Path, given: Mapping[str, Any]) -> Translated:
    """The pipeline of a file of properties. ConfigError if it cannot be read, or if the pipeline is not valid."""
    try:
        text = file.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"{error}", operation=OPERATION, obj=str(file)) from error
    found = translate(read_properties(text), given)
    given_twice = [name for name, count in Counter(name for name, _ in _entries(text)).items() if count > 1]
    debezium_rules.expect_once(given_twice)
    found.notes |= dict.fromkeys(given_twice, "is given more than once, and the last one counts, as in Java")
    try:
        PipelineConfig.model_validate(found.document)
    except ValidationError as error:
        raise ConfigError(explain(error), operation=OPERATION, obj=str(file)) from error
    return found


def read_properties(text: str) -> dict[str, str]:
    """A file of Java properties. The last of several lines with one name counts."""
    return dict(_entries(text))


def _entries(text: str) -> Iterator[tuple[str, str]]:
    """Names and values, as java.util.Properties reads them."""
    for line in _logical_lines(text):
        if entry := _ENTRY.fullmatch(line):
            yield _unescaped(entry[1]), _unescaped(entry[2].strip())


def _logical_lines(text: str) -> Iterator[str]:
    """Lines that are no comments, joined where one ends in a backslash. A comment goes on to its end, whatever that is."""
    lines = iter(re.split(r"\r\n|\n|\r", text))
    for line in lines:
        joined = line.lstrip(" \t\f")
        if not joined or joined[0] in "#!":
            continue
        while (len(joined) - len(joined.rstrip("\\"))) % 2:
            joined = joined[:-1] + next(lines, "").lstrip(" \t\f")
        yield joined


def _unescaped(text: str) -> str:
    return _ESCAPE.sub(lambda found: chr(int(found[1], 16)) if found[1] else _ESCAPED.get(found[2], found[2]), text)


def translate(properties: Mapping[str, str], given: Mapping[str, Any]) -> Translated:
    """The pipeline of these properties. `given` has the keys that Debezium has no property for. ConfigError for a
    value that has no counterpart."""
    found = Translated(dict(given))
    properties = {name: _by_environment(found, name, value) for name, value in debezium_rules.plain_names(properties).items()}
    properties = debezium_rules.take(properties, found.document, found.notes)
    for each in PROPERTIES:
        value = properties.get(each.name, each.default)
        if each.key and value is not None:
            _set(found.document, each.key, _converted(each, value))
        elif each.name in properties:
            found.notes[each.name] = each.note
    _set(found.document, "kafka/format", _format(properties))
    for name, key in _REGISTRY.items():
        if (value := properties.get(f"value.converter.{name}")) is not None:
            first, *more = value.split(",") if key == "schema.registry.url" else [value]
            if more:
                found.notes[f"value.converter.{name}"] = "one URL is due: the first of the list"
            _set(found.document, f"kafka/{key}", _secret(found, f"value.converter.{name}", key, first.strip()))
    for name, value in properties.items():
        if name.startswith(_PRODUCER) and name != f"{_PRODUCER}bootstrap.servers":
            _producer_option(found, name, value)
    known = {each.name for each in PROPERTIES} | {f"{part}.converter.{name}" for part in ("key", "value") for name in _OF_CONVERTERS}
    unknown = [name for name in properties if name not in known and not name.startswith((_PRODUCER, "kafka.consumer."))]
    found.notes |= {name: _note_of_family(name) or "is not a property of Debezium that is known here" for name in unknown}
    return found


def _by_environment(found: Translated, name: str, value: str) -> str:
    """The value with environment variables for references to a provider of Kafka Connect: `${env:NAME}`, `${file:/path:key}`."""

    def variable(reference: re.Match[str]) -> str:
        called = re.sub(r"\W", "_", reference[2])
        if reference[1] != "env":
            found.notes[name] = f"set {called} in the environment, for {reference[0]}"
        return f"${{{called}}}"

    return _PROVIDED.sub(variable, value)


def _note_of_family(name: str) -> str | None:
    return next((note for family, note in FAMILIES.items() if name == family or name.startswith(f"{family}.")), None)


def _set(document: dict[str, Any], key: str, value: Any) -> None:
    *parents, last = key.split("/")
    for parent in parents:
        document = document.setdefault(parent, {})
    document[last] = value


def _converted(known: Property, value: str) -> Any:
    try:
        return known.convert(value)
    except ValueError as error:
        raise ConfigError(f"{error}", operation=OPERATION, obj=f"{known.name}={value}", hint=known.note) from error


def _format(properties: Mapping[str, str]) -> str:
    converter = properties.get("value.converter", next(iter(_CONVERTERS)))
    found = _CONVERTERS.get(converter)
    if found is None:
        hint = f"Formats are: {', '.join(_CONVERTERS)}."
        raise ConfigError("there is no such format", operation=OPERATION, obj=f"value.converter={converter}", hint=hint)
    plain = found == "json-schema" and properties.get("value.converter.schemas.enable", "true").lower() == "false"
    return "json" if plain else found


def _producer_option(found: Translated, name: str, value: str) -> None:
    option = name.removeprefix(_PRODUCER)
    java = next((each for each in PRODUCER if each.name == option), None)
    if java is None:
        found.producer[option] = _secret(found, name, option, value)
    elif not java.key or (converted := _converted(java, value)) is None:
        found.notes[name] = java.note
    else:
        found.producer[java.key] = _secret(found, name, java.key, converted)


def _secret(found: Translated, name: str, option: str, value: str) -> str:
    """The value, or the environment variable that has to hold it."""
    if not is_secret(option):
        return value
    variable = "KAFKA_" + re.sub(r"\W", "_", option).upper()
    found.notes[name] = f"set {variable} in the environment"
    return f"${{{variable}}}"


# --- conversions


def _pipeline(value: str) -> str:
    name = re.sub(r"[^a-z0-9]+", "_", value.lower()).strip("_")
    return name if name[:1].isalpha() else f"p_{name}"


def _is_true(value: str) -> bool:
    if value.lower() not in ("true", "false"):
        raise ValueError("is neither true nor false")
    return value.lower() == "true"


def _partition_by(value: str) -> str:
    modes = {"partition_values": "partition_key", "commitlog_file": "primary_key"}
    if value.lower() not in modes:
        raise ValueError(f"is none of {', '.join(modes)}")
    return modes[value.lower()]


_REGISTRY: Final = {
    "schema.registry.url": "schema.registry.url",
    "basic.auth.user.info": "schema.registry.basic.auth.user.info",
}
_OF_CONVERTERS: Final = ("schemas.enable", *_REGISTRY, "basic.auth.credentials.source")
_TRANSACTIONS: Final = "events are sent in transactions: all replicas acknowledge them, retries double nothing, and order is kept"
_TIME: Final = "a record has the time of its transaction: `transaction.timeout.ms`"
_PLACES: Final = "a key decides the partition, as in Java (`murmur2_random`): events of a key are in order in one partition only"
_PEM: Final = "librdkafka reads PEM: `ssl.ca.location`"
_OPENSSL: Final = "librdkafka has OpenSSL, not Java's TLS"
_NO_METRICS: Final = "Java's metrics; `statistics.interval.ms` is librdkafka's"
_NO_LOGIN: Final = "librdkafka logs in itself: `sasl.username` and `sasl.password`, or `sasl.oauthbearer.method: oidc`"


_NO_QUEUES: Final = "there are no queues in memory: a batch reads segments, and events wait in the changes tables"
_NO_OFFSETS: Final = "progress is in Kafka, in the transactions of the events"
_ARCHIVED: Final = "the shipper uploads segments to the bucket, and archiving moves them there (`archive`)"

_NO_CONNECT: Final = "part of Kafka Connect, and writetime publishes without it"
FAMILIES: Final = {
    "transforms": f"{_NO_CONNECT}; `columns`, `events: shape` and `kafka: format` say what records are like",
    "predicates": _NO_CONNECT,
    "post.processors": _NO_CONNECT,
    "commit.log.transfer": _ARCHIVED,
    "signal": "DAGs take requests: cdc_bootstrap, cdc_replay, cdc_publish",
    "notification": "`airflow: on_failure` and the metrics",
    "openlineage": "Airflow and Spark report lineage (docs/airflow.md)",
    "guardrail": "`tables` says what is captured",
    "internal": "an internal setting of Debezium",
}
"""Properties by the first words of their names, with the reason why they have no counterpart."""


def _unless_negative(value: str) -> str | None:
    """-1 is the system's default in Java."""
    return None if int(value) < 0 else value


def _positive(value: str) -> str | None:
    return value if int(value) > 0 else None


PRODUCER: Final = (
    Property("max.request.size", "message.max.bytes"),
    Property("buffer.memory", "queue.buffering.max.kbytes", "in KiB", lambda value: str(max(1, int(value) // 1024))),
    Property("send.buffer.bytes", "socket.send.buffer.bytes", "-1: the system's default, as without it", _unless_negative),
    Property("receive.buffer.bytes", "socket.receive.buffer.bytes", "-1: the system's default, as without it", _unless_negative),
    Property("batch.size", "batch.size", "0: no batches in Java; librdkafka always has them", _positive),
    Property("connections.max.idle.ms", "connections.max.idle.ms", "-1: never, as without it", _unless_negative),
    Property("compression.gzip.level", "compression.level"),
    Property("compression.lz4.level", "compression.level"),
    Property("compression.zstd.level", "compression.level"),
    Property(
        "ssl.endpoint.identification.algorithm", "ssl.endpoint.identification.algorithm", "empty: `none`", lambda value: value or "none"
    ),
    Property("ssl.keystore.certificate.chain", "ssl.certificate.pem"),
    Property("ssl.keystore.key", "ssl.key.pem"),
    Property("ssl.truststore.certificates", "ssl.ca.pem"),
    Property("acks", "acks", _TRANSACTIONS, lambda value: "all" if value.strip().lower() in ("all", "-1") else None),
    Property("retries", "retries", _TRANSACTIONS, _positive),
    Property("enable.idempotence", "", _TRANSACTIONS),
    Property("transactional.id", "", "each publisher has its own"),
    Property("transaction.two.phase.commit.enable", "", "each publisher ends its own transactions"),
    Property(
        "max.in.flight.requests.per.connection",
        "max.in.flight.requests.per.connection",
        "5 at most, or order is lost",
        lambda value: value if 0 < int(value) <= 5 else None,
    ),
    Property("delivery.timeout.ms", "", _TIME),
    Property("max.block.ms", "", "nothing is blocked: a run waits for Kafka, and is tried again"),
    Property("metadata.max.idle.ms", "", "librdkafka keeps the metadata of topics that it knows"),
    Property("socket.connection.setup.timeout.max.ms", "", "the timeout does not grow: `socket.connection.setup.timeout.ms`"),
    Property("partitioner", "", _PLACES),
    Property("partitioner.class", "", _PLACES),
    Property("partitioner.ignore.keys", "", _PLACES),
    Property("partitioner.adaptive.partitioning.enable", "", _PLACES),
    Property("partitioner.availability.timeout.ms", "", _PLACES),
    Property("key.serializer", "", "writetime encodes events itself"),
    Property("value.serializer", "", "writetime encodes events itself"),
    Property("interceptor.classes", "", "classes of Java"),
    Property("metric.reporters", "", _NO_METRICS),
    Property("metrics.num.samples", "", _NO_METRICS),
    Property("metrics.recording.level", "", _NO_METRICS),
    Property("metrics.sample.window.ms", "", _NO_METRICS),
    Property("auto.include.jmx.reporter", "", _NO_METRICS),
    Property("config.providers", "", "`${NAME}` is replaced from the environment"),
    Property("security.providers", "", "classes of Java"),
    Property("ssl.truststore.location", "", _PEM),
    Property("ssl.truststore.password", "", _PEM),
    Property("ssl.truststore.type", "", _PEM),
    Property("ssl.keystore.type", "", "librdkafka reads PKCS12, or PEM in `ssl.certificate.location` and `ssl.key.location`"),
    Property("ssl.cipher.suites", "", f"{_OPENSSL}: the names of `ssl.cipher.suites` are others"),
    Property("ssl.enabled.protocols", "", _OPENSSL),
    Property("ssl.protocol", "", _OPENSSL),
    Property("ssl.provider", "", _OPENSSL),
    Property("ssl.keymanager.algorithm", "", _OPENSSL),
    Property("ssl.trustmanager.algorithm", "", _OPENSSL),
    Property("ssl.secure.random.implementation", "", _OPENSSL),
    Property("ssl.engine.factory.class", "", _OPENSSL),
    Property("sasl.jaas.config", "", "librdkafka has `sasl.username` and `sasl.password`"),
    Property("sasl.client.callback.handler.class", "", _NO_LOGIN),
    Property("sasl.login.callback.handler.class", "", _NO_LOGIN),
    Property("sasl.login.class", "", _NO_LOGIN),
)
"""Options of Java's producer that librdkafka does not have by that name, or not with every value: ours, within `kafka:
producer`, or the reason. Others have the same names."""

PROPERTIES: Final = (
    Property("connector.name", "pipeline", "lower case; other characters than letters and digits become `_`", _pipeline),
    Property("topic.prefix", "kafka/topic.prefix", "topics are `<topic.prefix>.<keyspace>.<table>`, as Debezium's"),
    Property("kafka.producer.bootstrap.servers", "kafka/bootstrap.servers"),
    Property("snapshot.mode", "snapshot/mode", "a bootstrap reads tables while they are in use, and goes on after a crash"),
    Property("snapshot.consistency", "snapshot/consistency"),
    Property("cassandra.cluster.name", "", "`cluster: name`, which the command is given (`--cluster`)"),
    Property("cassandra.hosts", "cluster/cql/contact_points", "", comma_list),
    Property("cassandra.port", "cluster/cql/port", "", int),
    Property("cassandra.username", "cluster/cql/username"),
    Property("cassandra.password", "", "`WRITETIME_CQL_PASSWORD` in the environment of the workers"),
    Property(
        "cassandra.ssl.enabled", "cluster/cql/tls", "`{}`: TLS with the system's authorities", lambda value: {} if _is_true(value) else None
    ),
    Property("cassandra.ssl.config.path", "", "PEM files: `ca`, `certificate` and `key` of `cluster: cql: tls`"),
    Property("cassandra.driver.config.file", "", "`cluster: cql` has what a read needs"),
    Property("cassandra.config", "", "`node: cdc_raw` of the shipper is `cdc_raw_directory` of that file"),
    Property("cassandra.node.id", "", "the shipper asks the node for its host id"),
    Property("key.converter", "", "keys have the format of values"),
    Property("value.converter", "", "`kafka: format`: json-schema, json (with `schemas.enable=false`) or avro"),
    Property("tombstones.on.delete", "kafka/tombstones.on.delete", "ours is true", _is_true, "false"),
    Property("skipped.operations", "kafka/skipped.operations", "nothing is skipped by ours", default="t"),
    Property("decimal.handling.mode", "kafka/decimal.handling.mode", "ours is `string`, which is exact", default="double"),
    Property(
        "varint.handling.mode", "kafka/varint.handling.mode", "`long`: a larger number holds up its table; Debezium cuts it", default="long"
    ),
    Property("time.precision.mode", "kafka/time.precision.mode", "timestamps are milliseconds in Debezium: `adaptive`", default="adaptive"),
    Property(
        "field.exclude.list",
        "columns/field.exclude.list",
        "`keyspace.table.column`, or a field of a user type, which is null then",
        comma_list,
    ),
    Property(
        "event.order.guarantee.mode",
        "kafka/partition_by",
        "`PARTITION_VALUES` is `partition_key`: all rows of a partition in one order; `COMMITLOG_FILE` is `primary_key`",
        _partition_by,
    ),
    Property("heartbeat.interval.ms", "kafka/heartbeat.interval.ms", "", int),
    Property("topic.heartbeat.prefix", "kafka/topic.heartbeat.prefix"),
    Property("topic.heartbeat.name", "", "always `<topic.heartbeat.prefix>.<topic.prefix>`"),
    Property("topic.naming.strategy", "", "topics are named as by `SchemaTopicNamingStrategy`"),
    Property("topic.delimiter", "", "always `.`"),
    Property("topic.cache.size", "", "nothing is cached"),
    Property("schema.name.adjustment.mode", "", "names in Avro are always valid; other characters are escaped (docs/types.md)"),
    Property("field.name.adjustment.mode", "", "names in Avro are always valid; `cqlName` has the original one"),
    Property("custom.sanitize.pattern", "", "names in Avro are always valid; other characters are escaped (docs/types.md)"),
    Property("extended.headers.enabled", "", "`kafka: headers` are writetime's own: table, op and sequence"),
    Property("converters", "", "`columns` masks, hashes and truncates; types: docs/types.md"),
    Property("http.port", "", "the shipper's `node: ship: listen` serves health and metrics"),
    Property("tracing.enabled", "", "no traces; `source` says where each event is from"),
    Property("custom.metric.tags", "", "metrics have the labels `cluster`, `datacenter`, `host_id` and `address`"),
    Property("errors.max.retries", "", "Airflow retries tasks; a session starts again after a pause"),
    Property("commit.log.real.time.processing.enabled", "", "always: `node: ship: tail_seconds` (1); null waits for whole segments"),
    Property("commit.log.marked.complete.poll.interval.ms", "", "`node: ship: tail_seconds`"),
    Property("commit.log.relocation.dir", "", _ARCHIVED),
    Property("commit.log.relocation.dir.poll.interval.ms", "", _ARCHIVED),
    Property("commit.log.post.processing.enabled", "", _ARCHIVED),
    Property("commit.log.transfer.class", "", _ARCHIVED),
    Property("commit.log.error.reprocessing.enabled", "", "clear the red square of a segment: it is read again"),
    Property("commit.log.processor.shutdown.timeout.seconds", "", "a session ends between batches; one that is killed loses nothing"),
    Property("latest.commit.log.only", "", "all segments are read"),
    Property("offset.backing.store.dir", "", _NO_OFFSETS),
    Property("offset.flush.interval.ms", "", _NO_OFFSETS),
    Property("max.offset.flush.size", "", _NO_OFFSETS),
    Property("max.queue.size", "", _NO_QUEUES),
    Property("max.queue.size.in.bytes", "", _NO_QUEUES),
    Property("max.batch.size", "", _NO_QUEUES),
    Property("poll.interval.ms", "", _NO_QUEUES),
    Property("poll.dispatch.interval.ms", "", _NO_QUEUES),
    Property("num.of.change.event.queues", "", "`kafka: publishers`"),
    Property("schema.refresh.interval.ms", "", "the shipper sends a table's schema when it changes"),
    Property("cdc.dir.poll.interval.ms", "", "`node: poll_seconds` of the shipper"),
    Property("snapshot.scan.interval.ms", "", "`cdc_bootstrap` runs by `airflow: bootstrap_schedule`"),
)
