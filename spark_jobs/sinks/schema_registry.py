"""A schema registry by the Confluent API, as far as publishing needs it: the id of a schema, once it is known
to be compatible.

Strategy: a schema that the subject has already is looked up and never judged again; a new one is checked
against the subject's latest by the registry's own rule, and only then registered. Ids are kept for the life
of the client. What ids meant that records have is compared with what they mean now: when a process begins, and
before anything is registered, because a registry that was lost gives the next id out again. Knows no Spark and no
Kafka; what speaks HTTP is httpx, because Confluent's client brings a second one and an OAuth library along for a few
calls (docs/adr/0005, docs/adr/0064).
"""

from __future__ import annotations

import json
import re
import ssl
from collections.abc import Callable
from functools import cached_property
from types import TracebackType
from typing import Any, Self, TypeVar
from urllib.parse import urlsplit

import httpx

from spark_jobs.sinks.http_proxy import proxy_of
from writetime.config.kafka import KafkaConfig
from writetime.errors import ConfigError, PublishError
from writetime.events.avro import Avro
from writetime.events.serialization import schema_text
from writetime.pipeline.used_schemas import UsedSchema, UsedSchemas
from writetime.storage.concurrency import at_once

Value = TypeVar("Value", int, bool, str)

_TYPE = "application/vnd.schemaregistry.v1+json"
_TIMEOUT_SECONDS = 30.0
_AT_ONCE = 8
"""Questions to a registry, which are about one schema each."""
_IDS = range(2**31)
"""A record has four bytes for the id of its schema, which Java reads with a sign."""
_READ_ONLY = '"error_code":42205'
_NOT_FOUND = (404,)
_INCOMPATIBLE = (409,)


class Registry:
    """One registry. `known`: the ids that records have; those of `topics` have to stay what they are. `new`: what was asked for.
    Errors: PublishError, retriable if the registry may answer later."""

    def __init__(self, kafka: KafkaConfig, known: UsedSchemas | None = None, topics: Callable[[], set[str]] = set) -> None:
        assert kafka.schema_registry_url is not None, "the configuration asks for it with Avro"
        self.url = kafka.schema_registry_url.rstrip("/")
        user_info = kafka.schema_registry_user_info
        user, _, password = (user_info.get_secret_value() if user_info else "").partition(":")
        self._client = httpx.Client(
            auth=(user, password) if user_info else None,
            verify=_tls(kafka),
            proxy=proxy_of(self.url),
            # What it reads of the environment itself, `proxy_of` and the TLS context do.
            trust_env=False,
            timeout=_TIMEOUT_SECONDS,
            headers={"Content-Type": _TYPE, "Accept": f"{_TYPE}, application/json"},
        )
        self._known_ids, self._topics, self.new = known or UsedSchemas(), topics, UsedSchemas()
        self._ids: dict[tuple[str, str], int] = {}

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self._client.close()

    def id_of(self, subject: str, schema: Avro) -> int:
        """The schema's id under the subject, registered if it is new there. PublishError, not retriable, if
        it is not compatible."""
        text = schema_text(schema)
        if (subject, text) not in self._ids:
            number = self._known(subject, text)
            if number is None:
                self.expect_used()
                number = self._registered(subject, text)
            self._expect_meant(number, text)
            self.new = self.new.and_({number: UsedSchema(text=text, subjects=[subject])})
            self._ids[subject, text] = number
        return self._ids[subject, text]

    @cached_property
    def used(self) -> dict[int, UsedSchema]:
        """The ids in use, with their schemas."""
        return self._known_ids.of(self._topics()) if self._known_ids.ids else {}

    def expect_used(self) -> None:
        """PublishError, not retriable, if an id that records have is not the id of its schema any more."""
        if lost := self.lost():
            number, found = next(iter(lost.items()))
            others = f", nor {len(lost) - 1} others" if len(lost) > 1 else ""
            raise self._lost(number, f"{found}{others}")

    def lost(self) -> dict[int, str]:
        """The ids in use that do not have their schemas now, and what they are instead."""
        found = at_once(lambda item: (item[0], self._meaning(*item)), self.used.items(), workers=_AT_ONCE)
        return {number: what for number, what in found if what}

    def _meaning(self, number: int, used: UsedSchema) -> str:
        """What an id is instead of its schema; empty if it is that."""
        answer = self._ask("GET", f"/schemas/ids/{number}", f"schema {number}")
        if answer is None:
            return "no schema"
        text = self._in(answer, "schema", str, f"schema {number}")
        if _same(text, used.text) or any(self._known(subject, used.text) == number for subject in used.subjects):
            return ""
        return f"another schema ({text[:80]}…)"

    def _expect_meant(self, number: int, text: str) -> None:
        known = self._known_ids.ids.get(number)
        if known is not None and not _same(known.text, text) and number in self.used:
            raise self._lost(number, f"another schema ({text[:80]}…)")

    def _lost(self, number: int, what: str) -> PublishError:
        return PublishError(
            f"records of {', '.join(self.used[number].subjects)} have the schema id {number}, which is {what} now",
            operation=f"ask the schema registry {self.url}",
            obj=f"schema {number}",
            hint="The registry was lost, put back from a backup, or is another one. Nothing is sent before it has these ids again: put it "
            "back, or run `writetime registry --restore`; docs/runbook.md says what else helps.",
        )

    def restore(self) -> list[int]:
        """Register the schemas of the ids in use that are missing, under these ids. PublishError, not retriable, if one of them
        has another schema, or the registry takes no ids."""
        lost = self.lost()
        if taken := {number: what for number, what in lost.items() if what != "no schema"}:
            number, what = next(iter(taken.items()))
            raise self._lost(number, what)
        subjects = {subject: number for number in lost for subject in self.used[number].subjects}
        for subject in sorted(subjects):
            self._put_mode(subject, "IMPORT")
            try:
                for number in sorted(number for number in lost if subject in self.used[number].subjects):
                    body = {"schema": self.used[number].text, "id": number}
                    if self._post(f"/subjects/{subject}/versions", subject, body) is None:
                        raise self._failure(subject, "HTTP 404: the URL is no Confluent API's", retriable=False)
            finally:
                self._put_mode(subject, "READWRITE")
        return sorted(lost)

    def _put_mode(self, subject: str, mode: str) -> None:
        # Forced: the subject may have other schemas.
        if self._ask("PUT", f"/mode/{subject}?force=true", subject, {"mode": mode}) is None:
            raise self._failure(subject, f"HTTP 404: it has no mode {mode}", retriable=False)

    def schema(self, number: int) -> Avro:
        """The schema with that id. PublishError if there is none."""
        answer = self._ask("GET", f"/schemas/ids/{number}", f"schema {number}")
        if answer is None:
            raise self._failure(f"schema {number}", "HTTP 404: there is no schema of this id", retriable=False)
        return json.loads(self._in(answer, "schema", str, f"schema {number}"))

    def _known(self, subject: str, text: str) -> int | None:
        answer = self._post(f"/subjects/{subject}", subject, {"schema": text})
        return None if answer is None else self._in(answer, "id", int, subject)

    def _registered(self, subject: str, text: str) -> int:
        verdict = self._post(f"/compatibility/subjects/{subject}/versions/latest?verbose=true", subject, {"schema": text})
        # A new subject has no schema to be compatible with.
        if verdict is not None and not self._in(verdict, "is_compatible", bool, subject):
            reasons = verdict.get("messages") or ()
            raise _incompatible(subject, "; ".join(map(str, reasons)) if isinstance(reasons, list | tuple) else str(reasons))
        answer = self._post(f"/subjects/{subject}/versions", subject, {"schema": text})
        if answer is None:
            raise self._failure(subject, "HTTP 404: the URL is no Confluent API's", retriable=False)
        return self._in(answer, "id", int, subject)

    def _in(self, answer: Any, key: str, kind: type[Value], subject: str) -> Value:
        """A value of an answer. PublishError if the answer, which may be a proxy's or a gateway's, has none."""
        found = answer.get(key) if isinstance(answer, dict) else None
        if not isinstance(found, kind) or (kind is int and found not in _IDS):
            raise self._failure(subject, f"no answer of a registry: no valid `{key}` in {str(answer)[:200]}", retriable=False)
        return found

    def _post(self, path: str, subject: str, body: dict[str, Any]) -> dict[str, Any] | None:
        return self._ask("POST", path, subject, body)

    def _ask(self, method: str, path: str, subject: str, body: dict[str, Any] | None = None) -> dict[str, Any] | None:
        """The response; None if the subject, version or schema does not exist."""
        try:
            answer = self._client.request(method, self.url + path, json=body)
        except (httpx.HTTPError, httpx.InvalidURL) as error:
            raise self._failure(subject, f"{type(error).__name__}: {error}", retriable=True) from error
        if answer.has_redirect_location:
            # The credentials are not for another place.
            there = _place_of(answer.headers["location"])
            raise self._failure(subject, f"HTTP {answer.status_code}: it redirects to {there}; write the URL that it has", retriable=False)
        if answer.status_code in _NOT_FOUND:
            return None
        if answer.status_code in _INCOMPATIBLE:
            raise _incompatible(subject, answer.text[:500])
        if answer.is_error:
            again = answer.status_code in (408, 429) or answer.status_code >= 500
            if _READ_ONLY in re.sub(r"\s", "", answer.text):
                raise _read_only(subject, answer.text[:500])
            raise self._failure(subject, f"HTTP {answer.status_code}: {answer.text[:500]}", retriable=again)
        try:
            found: dict[str, Any] = answer.json()
        except (ValueError, RecursionError) as error:
            raise self._failure(subject, f"no JSON: {answer.text[:200]}", retriable=False) from error
        return found

    def _failure(self, subject: str, message: str, *, retriable: bool) -> PublishError:
        hint = "Events stay in the changes tables and go out with the next run. Check `kafka.schema.registry.*`."
        return PublishError(message, operation=f"ask the schema registry {self.url}", obj=subject, retriable=retriable, hint=hint)


def _same(one: str, other: str) -> bool:
    """Whether two texts are the same schema, however it is spelled."""
    try:
        return bool(json.loads(one) == json.loads(other))
    except ValueError:
        return one == other


def _tls(kafka: KafkaConfig) -> ssl.SSLContext:
    key = "kafka.schema.registry.ssl.ca.location"
    try:
        context = ssl.create_default_context(cafile=None if kafka.schema_registry_ca is None else str(kafka.schema_registry_ca))
        if kafka.schema_registry_certificate is not None:
            key = f"kafka.schema.registry.ssl.{'certificate' if kafka.schema_registry_key is None else 'key'}.location"
            context.load_cert_chain(kafka.schema_registry_certificate, kafka.schema_registry_key, password=_no_password)
    except (OSError, ValueError) as error:
        raise ConfigError(f"{error}", operation="read certificates", obj=key) from error
    return context


def _place_of(location: str) -> str:
    """Where a redirection leads, for people."""
    try:
        where = urlsplit(location)
        return f"{where.scheme or 'https'}://{where.hostname}" if where.hostname else "another path"
    except ValueError:
        return "what is no URL"


def _read_only(subject: str, why: str) -> PublishError:
    hint = "Set the mode of the subject or of the registry to READWRITE (PUT /mode). Events of this table wait; other tables continue."
    return PublishError(why, operation="register a schema", obj=subject, hint=hint)


def _no_password() -> str:
    # Without this, OpenSSL asks for one at the terminal.
    raise ValueError("the key is encrypted, and there is no password for it")


def _incompatible(subject: str, why: str) -> PublishError:
    return PublishError(
        f"the schema is not compatible with the subject's latest{': ' if why else ''}{why}",
        operation="register a schema",
        obj=subject,
        hint="Events of this table wait; other tables continue. Loosen the subject's compatibility, or delete it, and publish again.",
    )
