"""The registry client against a real registry, and against one that is out of order."""

from __future__ import annotations

import json
import threading
import urllib.request
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import Any, ClassVar

import pytest

from spark_jobs.sinks.schema_registry import Registry
from tools.services import registry as service
from writetime.config.kafka import KafkaConfig
from writetime.errors import ConfigError, PublishError
from writetime.pipeline.used_schemas import UsedSchemas

ROW = {"type": "record", "name": "Row", "namespace": "shop.orders", "fields": [{"name": "id", "type": ["null", "int"], "default": None}]}
WIDER = {**ROW, "fields": [*ROW["fields"], {"name": "v", "type": ["null", "string"], "default": None}]}  # type: ignore[misc]
OTHER = {**ROW, "fields": [{"name": "id", "type": "string"}]}


def client(url: str, *, known: UsedSchemas | None = None, topics: set[str] | None = None, **more: Any) -> Registry:
    given = {"bootstrap.servers": "127.0.0.1:1", "topic.prefix": "t", "format": "avro", "schema.registry.url": url, **more}
    return Registry(KafkaConfig.model_validate(given), known, lambda: topics or set())


def full_compatibility(url: str, subject: str) -> None:
    body = json.dumps({"compatibility": "FULL"}).encode()
    headers = {"Content-Type": "application/json"}
    request = urllib.request.Request(f"{url}/config/{subject}", body, headers, method="PUT")
    urllib.request.urlopen(request, timeout=30).close()


@pytest.mark.kafka
def test_schemas_are_registered_once_and_incompatible_ones_are_refused(schema_registry: str) -> None:
    subject = f"{uuid.uuid4().hex}-value"
    with client(schema_registry) as registry:
        first = registry.id_of(subject, ROW)
        full_compatibility(schema_registry, subject)
        wider = registry.id_of(subject, WIDER)
        assert wider != first
        with pytest.raises(PublishError, match="not compatible") as raised:
            registry.id_of(subject, OTHER)
        assert not raised.value.retriable
    with client(f"{schema_registry}/") as again:
        assert [again.id_of(subject, each) for each in (ROW, WIDER, ROW)] == [first, wider, first]
    with urllib.request.urlopen(f"{schema_registry}/subjects/{subject}/versions", timeout=30) as answer:
        assert len(json.load(answer)) == 2


@pytest.mark.kafka
def test_a_registry_that_comes_back_empty_is_noticed(schema_registry: str, tmp_path: Path) -> None:
    """It says of ids in use that there is no such schema, and gives none of them out."""
    subject = f"t.{uuid.uuid4().hex}-value"
    with client(schema_registry) as registry:
        registry.id_of(subject, ROW)
        registry.id_of(subject, WIDER)
        known = registry.new
    topics = {subject.removesuffix("-value")}
    with client(schema_registry, known=known, topics=topics) as registry:
        assert len(registry.used) == 2
        registry.expect_used()
    with service.Registry(tmp_path) as empty, client(empty.url, known=known, topics=topics) as registry:
        assert [*registry.lost().values()] == ["no schema", "no schema"]
        with pytest.raises(PublishError, match=f"records of {subject} have the schema id .* no schema, nor 1 others now") as raised:
            registry.id_of(subject, ROW)
        assert not raised.value.retriable
        with urllib.request.urlopen(f"{empty.url}/subjects", timeout=30) as answer:
            assert json.load(answer) == []


class Answers(BaseHTTPRequestHandler):
    """One answer to all questions, by path or `*`; what was asked is kept."""

    given: ClassVar[dict[str, tuple[int, str]]] = {}
    asked: ClassVar[list[tuple[str, str | None, bytes]]] = []

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["Content-Length"]))
        self.asked.append((self.path, self.headers.get("Authorization"), body))
        status, text = next(answer for path, answer in self.given.items() if path == "*" or self.path.startswith(path))
        self.send_response(status)
        self.send_header("Content-Length", str(len(text)))
        if status in range(300, 400):
            self.send_header("Location", text)
        self.end_headers()
        self.wfile.write(text.encode())

    def log_message(self, *_: Any) -> None:
        pass


@contextmanager
def answering(**given: tuple[int, str]) -> Iterator[str]:
    Answers.given, Answers.asked = {name.replace("_", "/"): answer for name, answer in given.items()} or {}, []
    server = HTTPServer(("127.0.0.1", 0), Answers)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}"
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


@pytest.mark.parametrize(
    ("status", "text", "said", "retriable"),
    [
        (503, "busy", "HTTP 503: busy", True),
        (429, "", "HTTP 429", True),
        (401, "who?", "HTTP 401: who", False),
        (200, "<html>", "no JSON", False),
        (404, "", "no Confluent API", False),
        (409, "{}", "not compatible", False),
        (200, "{}", "no answer of a registry: no valid `id` in {}", False),
        (200, '["id"]', "no answer of a registry", False),
        (200, "null", "no Confluent API", False),
        (200, '{"id": null, "error": "x"}', "no answer of a registry: .*error", False),
        (302, "https://login.example/?next=secret", "HTTP 302: it redirects to https://login.example; write", False),
        (308, "/v2/subjects", "HTTP 308: it redirects to another path", False),
        (302, "http://[bad", "HTTP 302: it redirects to what is no URL", False),
        (302, "//login.example/x", "HTTP 302: it redirects to https://login.example; write", False),
        (200, '{"id": 4294967296}', "no answer of a registry: no valid `id`", False),
        (200, '{"id": -1}', "no answer of a registry: no valid `id`", False),
        (200, "[" * 200_000, "no JSON", False),
        (422, '{"error_code": 42205, "message": "in read-only mode"}', "in read-only mode.*READWRITE", False),
    ],
)
def test_what_a_registry_may_answer(status: int, text: str, said: str, retriable: bool) -> None:
    with answering(**{"*": (status, text)}) as url, client(url) as registry, pytest.raises(PublishError, match=said) as raised:
        registry.id_of("t-value", ROW)
    assert raised.value.retriable == retriable


@pytest.mark.parametrize(
    ("messages", "told"), [('"too new"', "latest: too new"), ("5", "latest: 5"), ('["a", "b"]', "latest: a; b"), ("null", "latest")]
)
def test_why_a_schema_is_incompatible_in_whatever_form_it_is_told(messages: str, told: str) -> None:
    verdict = f'{{"is_compatible": false, "messages": {messages}}}'
    answers = {"_subjects": (404, "{}"), "_compatibility": (200, verdict)}
    with answering(**answers) as url, client(url) as registry, pytest.raises(PublishError, match=told):
        registry.id_of("t-value", ROW)


def test_a_registry_that_does_not_answer_may_do_so_later() -> None:
    with client("http://127.0.0.1:1") as registry, pytest.raises(PublishError, match="ConnectError") as raised:
        registry.id_of("t-value", ROW)
    assert raised.value.retriable


def test_credentials_are_sent_and_not_told() -> None:
    more = {"schema.registry.basic.auth.user.info": "me:sesame:2"}
    with answering(_subjects=(500, "no")) as url, client(url, **more) as registry, pytest.raises(PublishError) as raised:
        registry.id_of("t-value", ROW)
    assert Answers.asked[0][1] == "Basic bWU6c2VzYW1lOjI="
    assert "sesame" not in str(raised.value)


def test_a_certificate_that_cannot_be_read_says_so(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="read certificates"):
        client("https://127.0.0.1:1", **{"schema.registry.ssl.ca.location": str(tmp_path / "none.pem")})
