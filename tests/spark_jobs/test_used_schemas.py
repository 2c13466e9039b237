"""A schema registry that is lost, restored from an older backup, or replaced: ids that records have are known, and nothing is sent
or registered while they mean something else. The registry is a stand-in with Confluent's answers; a real one is asked in
test_schema_registry.py."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, HTTPServer
from importlib.metadata import EntryPoint
from pathlib import Path
from types import SimpleNamespace
from typing import Any, ClassVar

import pytest

from spark_jobs import publish
from spark_jobs.sinks.schema_registry import Registry
from tests.spark_jobs.test_schema_registry import OTHER, ROW, WIDER
from writetime import cli
from writetime.config import pipeline
from writetime.config.kafka import KafkaConfig
from writetime.errors import PublishError
from writetime.pipeline.used_schemas import UsedSchema, UsedSchemas, note_used, read_used
from writetime.storage import open_store

ORDERS, ITEMS = "t.shop.orders-value", "t.shop.items-value"


class Held(BaseHTTPRequestHandler):
    """The registry: texts by id, ids by subject, subjects in IMPORT mode."""

    texts: ClassVar[dict[int, str]] = {}
    subjects: ClassVar[dict[str, list[int]]] = {}
    importing: ClassVar[set[str]] = set()
    first: ClassVar[int] = 1

    def _answer(self, status: int, body: Any) -> None:
        text = json.dumps(body).encode()
        self.send_response(status)
        self.send_header("Content-Length", str(len(text)))
        self.end_headers()
        self.wfile.write(text)

    def do_GET(self) -> None:
        number = int(self.path.rpartition("/")[2])
        self._answer(200, {"schema": self.texts[number]}) if number in self.texts else self._answer(404, {})

    def do_PUT(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        subject, _, forced = self.path.removeprefix("/mode/").partition("?")
        if self.subjects.get(subject) and forced != "force=true":
            return self._answer(422, {"error_code": 42205, "message": "Cannot import since found existing subjects"})
        (self.importing.add if body["mode"] == "IMPORT" else self.importing.discard)(subject)
        return self._answer(200, body)

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        _, kind, subject, *versions = self.path.split("/")
        if kind == "compatibility":
            return self._answer(404, {})
        known = next((number for number, text in self.texts.items() if json.loads(text) == json.loads(body["schema"])), None)
        if not versions:
            return self._answer(200, {"id": known}) if known in self.subjects.get(subject, ()) else self._answer(404, {})
        if ("id" in body) != (subject in self.importing):
            return self._answer(422, {"message": "not in IMPORT mode"})
        number = body.get("id") or known or max([self.first - 1, *self.texts]) + 1
        self.texts[number] = body["schema"]
        self.subjects.setdefault(subject, []).append(number)
        return self._answer(200, {"id": number})

    def log_message(self, *_: Any) -> None:
        pass


def lost() -> None:
    """The registry comes back empty, in the same place."""
    Held.texts, Held.subjects, Held.importing = {}, {}, set()


@pytest.fixture
def url() -> Iterator[str]:
    lost()
    server = HTTPServer(("127.0.0.1", 0), Held)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    yield f"http://127.0.0.1:{server.server_port}"
    server.shutdown()
    thread.join()
    server.server_close()


@pytest.fixture
def opened(url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """`opened()`: the registry as a run of a new process opens it, with `captured` tables; `process="old"`: as the next run of
    the same process."""
    monkeypatch.setattr(publish, "_CHECKED", set())
    kafka = KafkaConfig.model_validate(
        {"bootstrap.servers": "127.0.0.1:1", "topic.prefix": "t", "format": "avro", "schema.registry.url": url}
    )
    tables = SimpleNamespace(captures=lambda _: True)
    config: Any = SimpleNamespace(bucket=str(tmp_path), cluster=SimpleNamespace(name="ring"), tables=tables, kafka=kafka)
    names = ["orders", "items"]

    def known(*_: Any) -> Any:
        return SimpleNamespace(captured=lambda _: [SimpleNamespace(keyspace="shop", name=name, dropped=False) for name in names])

    monkeypatch.setattr(publish, "known_schema", known)

    @contextmanager
    def run(process: str = "new", captured: list[str] | None = None, *, check: bool = True) -> Iterator[Registry]:
        names[:] = captured or ["orders", "items"]
        if process == "new":
            publish._CHECKED.clear()
        with publish.opened_registry(config, kafka, open_store(str(tmp_path)), check=check) as registry:
            yield registry

    run.config = config  # type: ignore[attr-defined]
    return run


def used(folder: Path) -> dict[int, list[str]]:
    return {number: each.subjects for number, each in read_used(open_store(str(folder)), "ring").ids.items()}


@pytest.mark.parametrize("process", ["new", "old"])
def test_nothing_is_registered_in_a_registry_that_has_lost_an_id(opened: Any, tmp_path: Path, process: str) -> None:
    with opened() as registry:
        assert [registry.id_of(ORDERS, ROW), registry.id_of(ITEMS, OTHER)] == [1, 2]
    assert used(tmp_path) == {1: [ORDERS], 2: [ITEMS]}
    lost()
    with (
        pytest.raises(PublishError, match=rf"records of {ORDERS} have the schema id 1, which is no schema, nor 1 others now") as raised,
        opened(process) as registry,
    ):
        registry.id_of(ITEMS, OTHER)
    assert not raised.value.retriable
    assert Held.texts == {}, "the next id is not given out"


@pytest.mark.advice("put back from a backup, or is another one")
def test_a_lost_registry_is_filled_again_with_the_same_ids(opened: Any, tmp_path: Path) -> None:
    with opened() as registry:
        before = {subject: registry.id_of(subject, schema) for subject, schema in ((ORDERS, ROW), (ITEMS, OTHER), (ITEMS, WIDER))}
    kept = dict(Held.texts)
    lost()
    with pytest.raises(PublishError, match="or run `writetime registry --restore`"), opened() as registry:
        pass
    with opened(check=False) as registry:
        assert registry.restore() == [1, 2, 3]
        assert registry.restore() == []
    assert (Held.texts, Held.importing) == (kept, set())
    with opened() as registry:
        assert {subject: registry.id_of(subject, schema) for subject, schema in ((ORDERS, ROW), (ITEMS, WIDER))} == before
        assert registry.id_of(ORDERS, WIDER) == before[ITEMS], "one schema has one id"
    assert used(tmp_path)[3] == sorted([ITEMS, ORDERS])


@pytest.mark.parametrize("which", ["an older backup", "another registry"])
def test_an_id_that_means_something_else_is_named(opened: Any, which: str) -> None:
    with opened() as registry:
        assert [registry.id_of(ORDERS, ROW), registry.id_of(ITEMS, OTHER)] == [1, 2]
    if which == "an older backup":
        Held.texts.pop(2)
        Held.subjects.pop(ITEMS)
        Held.texts[2], Held.subjects["theirs"] = '{"type":"string"}', [2]
    else:
        Held.texts[1], Held.texts[2] = Held.texts[2], Held.texts[1]
        Held.subjects = {ORDERS: [2], ITEMS: [1]}
    with pytest.raises(PublishError, match=r"which is another schema"), opened() as registry:
        pass
    # Not even to what asks for nothing that is new: of ids that it knows, another one is noticed.
    with pytest.raises(PublishError, match=r"which is another schema"), opened(check=False) as registry:
        registry.id_of(ITEMS, OTHER)
    with pytest.raises(PublishError, match=r"which is another schema"), opened(check=False) as registry:
        registry.restore()


def test_what_looks_otherwise_or_is_deleted_softly_is_not_lost(opened: Any) -> None:
    with opened() as registry:
        assert registry.id_of(ORDERS, ROW) == 1
    Held.texts[1] = json.dumps(json.loads(Held.texts[1]), indent=1)
    Held.subjects = {}
    with opened() as registry:
        assert registry.id_of(ORDERS, ROW) == 1, "registered under its subject again"


def test_ids_of_a_table_that_is_not_captured_any_more_do_not_count(opened: Any, tmp_path: Path) -> None:
    with opened() as registry:
        assert [registry.id_of(ORDERS, ROW), registry.id_of(ITEMS, OTHER)] == [1, 2]
    Held.texts.pop(2)
    Held.subjects.pop(ITEMS)
    with opened(captured=["orders"]) as registry:
        assert registry.id_of(ORDERS, WIDER) == 2
    assert used(tmp_path) == {1: [ORDERS], 2: [ORDERS]}


def test_a_backup_that_lacks_the_last_ids_is_completed(opened: Any) -> None:
    with opened() as registry:
        assert [registry.id_of(ORDERS, ROW), registry.id_of(ORDERS, WIDER)] == [1, 2]
    kept = dict(Held.texts)
    Held.texts.pop(2)
    Held.subjects[ORDERS] = [1]
    with pytest.raises(PublishError, match=rf"records of {ORDERS} have the schema id 2, which is no schema now"), opened():
        pass
    with opened(check=False) as registry:
        assert registry.restore() == [2]
    assert (Held.texts, Held.subjects, Held.importing) == (kept, {ORDERS: [1, 2]}, set())


def test_a_registry_without_modes_says_so(opened: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    with opened() as registry:
        registry.id_of(ORDERS, ROW)
    lost()
    monkeypatch.setattr(Held, "do_PUT", lambda self: self._answer(404, {}))
    with pytest.raises(PublishError, match="it has no mode IMPORT"), opened(check=False) as registry:
        registry.restore()


def test_an_id_has_the_subjects_of_its_schema(tmp_path: Path) -> None:
    store = open_store(str(tmp_path))
    note_used(store, "ring", {})
    assert read_used(store, "ring") == UsedSchemas()
    note_used(store, "ring", {3: UsedSchema(text="x", subjects=["a-value"])})
    note_used(store, "ring", {3: UsedSchema(text="x", subjects=["b-value"]), 4: UsedSchema(text="y", subjects=["a-key"])})
    assert {number: each.subjects for number, each in read_used(store, "ring").of({"a"}).items()} == {
        3: ["a-value", "b-value"],
        4: ["a-key"],
    }
    assert read_used(store, "ring").of({"c"}) == {}


def test_the_command_says_which_ids_are_wrong_and_registers_them_again(
    opened: Any, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    point = EntryPoint("registry", "spark_jobs.commands:registry", cli.GROUP)
    monkeypatch.setattr(cli, "entry_points", lambda *, group: [point] if group == cli.GROUP else [])
    monkeypatch.setattr(pipeline, "load", lambda _: opened.config)
    command = ["registry", "--config", "pipeline.yaml"]
    assert cli.main(command) == 0
    assert capsys.readouterr().out == "no records with schema ids are known\n"
    with opened() as registry:
        assert [registry.id_of(ORDERS, ROW), registry.id_of(ITEMS, OTHER)] == [1, 2]
    lost()
    assert cli.main(command) == 1
    assert capsys.readouterr().out == f"       1  no schema  {ORDERS}\n       2  no schema  {ITEMS}\n"
    assert cli.main(["registry", "--restore", "--config", "pipeline.yaml", "--json"]) == 0
    said = capsys.readouterr()
    assert json.loads(said.out)[1] == {"id": 2, "subjects": [ITEMS], "lost": None}
    assert said.err == "registered again: 1, 2\n"
    assert cli.main(command) == 0
