"""Clients of Kafka: their options, and what librdkafka refuses of them.

Strategy: every client is made here, so that an option which librdkafka refuses is an error that names the key in the
YAML. `problems` makes each kind of client once to find such options (`writetime config check`), without brokers, so
that nothing is connected, and ends it at once. librdkafka reads numbers as C does, up to the first character that is no
digit, and in base 8 after a 0: what it would read as another number is refused here. No message has a secret's value.
Must not know topics.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, Final, TypeVar

from confluent_kafka import Consumer, KafkaException, Producer
from confluent_kafka.admin import AdminClient

from writetime.config.base import Problem, is_secret
from writetime.config.kafka import ALIASES, KafkaConfig
from writetime.errors import MASK, PublishError

Client = TypeVar("Client", Producer, Consumer, AdminClient)
Options = Mapping[str, Any]

PATH: Final = "kafka.producer"
_OF_EVERY_CLIENT = (
    *("security.", "sasl.", "ssl.", "https.", "enable.ssl.", "enable.sasl."),
    *("socket.", "broker.", "client.", "metadata.", "topic.metadata.", "reconnect.", "retry.backoff.", "api.version."),
    *("receive.message.", "connections.", "log", "debug"),
)
"""How librdkafka's names of options begin that are neither a producer's nor a consumer's own
(CONFIGURATION.md, column C/P: `*`)."""
_FRACTIONS: Final = frozenset({"linger.ms", "queue.buffering.max.ms"})
"""Options that may have a fraction; all other numbers are C's int."""
_NUMBER: Final = re.compile(r"-?(0|[1-9][0-9]*)")
_FRACTION: Final = re.compile(r"-?(0|[1-9][0-9]*)(\.[0-9]+)?")
_BEGINS_AS_NUMBER: Final = re.compile(r"\s*[-+]?\.?[0-9]")
_GREATEST: Final = 2**31 - 1
_NAMED: Final = re.compile(r'property:? "([^"]+)"|bool value for "([^"]+)"|`([a-z][a-z0-9._]+)`|\b([a-z][a-z0-9]*(?:\.[a-z0-9]+)+)\b')
_CREATING: Final = re.compile(r"Failed to create [a-z ]+: ")
_NOWHERE: Final = "http://127.0.0.1:1/"
"""Nobody answers there, so that a client that is made only to check it gets no token."""
_SECURITY: Final = ("security.", "sasl.", "ssl.", "enable.sasl.", "enable.ssl.", "https.")
"""Options that are refused together: without one, others are refused as well."""


def client_options(kafka: KafkaConfig) -> dict[str, Any]:
    """Options that all clients of this pipeline share: the brokers, and the connection options of
    `kafka.producer`."""
    shared = {option: value for option, value in kafka.producer.items() if option.startswith(_OF_EVERY_CLIENT)}
    return {"bootstrap.servers": kafka.bootstrap_servers, **shared}


def producer_options(kafka: KafkaConfig) -> dict[str, Any]:
    """Of a producer without transactions."""
    return {**kafka.producer, **client_options(kafka)}


def publisher_options(kafka: KafkaConfig, transactional_id: str) -> dict[str, Any]:
    """Of a transactional producer."""
    return {
        "linger.ms": 20,
        "compression.type": "lz4",
        # As the Java client partitions, so that consumers may join our topics with those of Java
        # producers.
        "partitioner": "murmur2_random",
        **kafka.producer,
        **client_options(kafka),
        # The client makes no object and no call for a record that was delivered.
        "delivery.report.only.error": True,
        "enable.idempotence": True,
        "transactional.id": transactional_id,
    }


def reader_options(kafka: KafkaConfig, group: str) -> dict[str, Any]:
    """Of a consumer that reads partitions to their end."""
    return {
        **client_options(kafka),
        "group.id": group,
        "enable.auto.commit": False,
        "isolation.level": "read_committed",
        "enable.partition.eof": True,
    }


def make(kind: type[Client], options: Options) -> Client:
    """A client. PublishError, not retriable, for options that it refuses."""
    try:
        return kind(dict(options))
    except (KafkaException, TypeError, ValueError) as error:
        found = _problem(options, error)
        hint = "Events stay in the changes tables. `writetime config check` names all such values."
        raise PublishError(found.text, operation="create a Kafka client", obj=found.key, hint=hint) from None


def problems(kafka: KafkaConfig) -> list[Problem]:
    """What the pipeline's clients refuse of `kafka.producer`. Nothing is connected."""
    found = [*_misread(kafka.producer), *_missing_files(kafka.producer), *_without_tokens(kafka.producer)]
    kept = dict(kafka.producer)
    for problem in found:
        kept = _without(kept, problem.key.removeprefix(f"{PATH}."))
    kinds: list[tuple[Callable[[KafkaConfig], Options], type[Any]]] = [
        (lambda each: publisher_options(each, f"{each.topic_prefix}.publisher.0"), Producer),
        (producer_options, Producer),
        (client_options, AdminClient),
        (lambda each: reader_options(each, f"{each.topic_prefix}.progress-reader"), Consumer),
    ]
    for options_of, kind in kinds:
        while refused := _refused(kind, options_of(kafka.model_copy(update={"producer": kept}))):
            found.append(refused)
            before, kept = kept, _without(kept, refused.key.removeprefix(f"{PATH}."))
            if kept == before:
                break
    return list(dict.fromkeys(found))


def _without(producer: Options, option: str) -> dict[str, Any]:
    """The others, to find the next one that is refused."""
    together = _SECURITY if option.startswith(_SECURITY) else (option,)
    return {
        name: value for name, value in producer.items() if not (name == option or (together is _SECURITY and name.startswith(together)))
    }


def _refused(kind: type[Any], options: Options) -> Problem | None:
    """What a client of these options is refused for; it is made and ended."""
    offline = _offline(options)
    try:
        client = kind(offline, logger=_SILENT)
    except (KafkaException, TypeError, ValueError) as error:
        return _problem(options, error)
    if isinstance(client, Consumer):
        client.close()
    # The last reference: librdkafka ends the client's threads.
    del client
    return None


def _offline(options: Options) -> dict[str, Any]:
    """The same without anything that a client connects to by itself."""
    found = {option: value for option, value in options.items() if option not in ("bootstrap.servers", "metadata.broker.list")}
    for option in ("sasl.oauthbearer.token.endpoint.url",):
        if option in found:
            found[option] = _NOWHERE
    if str(found.get("sasl.oauthbearer.metadata.authentication.type", "none")).lower() != "none":
        # Its address is fixed.
        found["security.protocol"] = "plaintext"
    return found


def _problem(options: Options, error: BaseException) -> Problem:
    reason: Any = error.args[0] if error.args else error
    text = _CREATING.sub("", str(reason.str() if isinstance(error, KafkaException) else reason).strip())
    option = _named(options, text)
    for secret in (str(value) for name, value in options.items() if is_secret(name) and str(value)):
        text = text.replace(secret, MASK)
    return Problem(f"{PATH}.{option}" if option else PATH, f"librdkafka refuses it: {text}")


def _named(options: Options, text: str) -> str:
    """The option that an error is about, as it is spelled here; empty if the error names none."""
    if "SASL mechanism" in text:
        text = f"`sasl.mechanisms` {text}"
    names = [name for groups in _NAMED.findall(text) for name in groups if name]
    spelled = {ALIASES.get(option, option): option for option in options}
    found = [spelled[name] for name in (ALIASES.get(name, name) for name in names) if name in spelled]
    return next(iter(found), None) or next((option for option in options if option in text.split()), names[0] if names else "")


def _misread(producer: Options) -> Iterator[Problem]:
    """Numbers that librdkafka reads as other ones."""
    for option, value in producer.items():
        text = str(value)
        if isinstance(value, bool) or not _BEGINS_AS_NUMBER.match(text):
            continue
        if option in _FRACTIONS:
            is_read = _FRACTION.fullmatch(text)
        else:
            is_read = _NUMBER.fullmatch(text) if abs(int(text) if _NUMBER.fullmatch(text) else 0) <= _GREATEST else None
        if not is_read and _is_number(option):
            kind = "a number" if option in _FRACTIONS else "a whole number"
            yield Problem(f"{PATH}.{option}", f"{kind} in digits, at most {_GREATEST}, is due: librdkafka would read another one")


def _is_number(option: str) -> bool:
    """Whether librdkafka takes no text for the option."""
    refused = _refused(Producer, {option: "x"})
    return refused is not None and "No such configuration property" not in refused.text


def _missing_files(producer: Options) -> Iterator[Problem]:
    for option, value in producer.items():
        if option.endswith((".location", ".keytab")) and isinstance(value, str) and value not in ("", "probe") and not Path(value).exists():
            yield Problem(f"{PATH}.{option}", f"there is no file {value}")


def _without_tokens(producer: Options) -> Iterator[Problem]:
    name = next((name for name in ("sasl.mechanism", "sasl.mechanisms") if name in producer), "")
    if str(producer.get(name, "")).upper() != "OAUTHBEARER":
        return
    method = str(producer.get("sasl.oauthbearer.method", "default")).lower()
    unsecured = str(producer.get("enable.sasl.oauthbearer.unsecure.jwt", "false")).lower() in ("true", "1", "t")
    if method != "oidc" and not unsecured:
        yield Problem(
            f"{PATH}.{name}", "OAUTHBEARER has no source of tokens: set `sasl.oauthbearer.method: oidc` and its URL, id and secret"
        )


_SILENT: Final = logging.Logger("kafka-check")
_SILENT.addHandler(logging.NullHandler())
