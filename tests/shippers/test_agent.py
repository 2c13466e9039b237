"""The loop: order, precedence, independence of failures, and how it ends."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from threading import Event
from typing import Any

import pytest
from structlog.testing import capture_logs

from shippers import listing, report, schema_snapshot, upload
from shippers.agent import Agent, Mode
from shippers.folder import read_idx
from shippers.lock import only_shipper
from shippers.upload import Outcome
from tests.shippers.conftest import NODE, FakeLink, Folder, ref
from tests.shippers.faults import FaultyStore
from writetime.cassandra.commitlog.descriptor import Descriptor
from writetime.config.pipeline import PipelineConfig
from writetime.errors import ConfigError, ShipError, StoreError, StoreUnavailable
from writetime.storage import layout
from writetime.storage.checksum import crc32c
from writetime.storage.local import LocalStore

MakeAgent = Callable[..., Agent]
SNAPSHOT = {"taken_at": "2026-01-02T03:04:05+00:00", "schema_version": "from-file", "tables": []}


def changed(settings: PipelineConfig, **node: Any) -> PipelineConfig:
    assert settings.node is not None
    return settings.model_copy(update={"node": settings.node.model_copy(update=node)})


def failing(store: LocalStore, error: Exception, *, times: int, only: str = "") -> FaultyStore:
    """A store whose puts of names containing `only` fail a number of times."""
    left = [times]

    class Failing(FaultyStore):
        def put(self, name: str, *args: Any, **kwargs: Any) -> Any:
            if only in name and left[0] > 0:
                self.calls.append(("put", name))
                left[0] -= 1
                raise error
            return super().put(name, *args, **kwargs)

    return Failing(store)


def puts(store: FaultyStore, prefix: str = "cdc/") -> list[str]:
    return [name for what, name in store.calls if what == "put" and name.startswith(prefix)]


def test_a_round_ships_what_is_completed_and_nothing_else(store: LocalStore, folder: Folder, agent_over: MakeAgent) -> None:
    written = {number: folder.segment(number) for number in (100, 99)}
    folder.segment(101, idx=b"12")
    folder.segment(102, idx=None)
    (folder.path / "notes.log").write_text("by hand")
    watched = FaultyStore(store)
    result = agent_over(watched).round()
    assert (result.shipped, result.failed, result.waiting, result.foreign) == ({Outcome.UPLOADED: 2}, [], 2, 1)
    assert puts(watched) == [ref(99).incoming, ref(100).incoming], "oldest first"
    assert {number: store.read(ref(number).incoming) for number in written} == written
    assert folder.names == ["CommitLog-7-101.log", "CommitLog-7-101_cdc.idx", "CommitLog-7-102.log", "notes.log"]


def test_a_segment_is_shipped_once_it_is_completed(store: LocalStore, folder: Folder, agent_over: MakeAgent) -> None:
    agent = agent_over(store)
    for idx in (None, b"", b"5", b"50\nCOMP"):
        folder.segment(1, idx=idx)
        assert agent.round().shipped == {}
    folder.segment(1, idx=b"50\nCOMPLETED")
    assert agent.round().shipped == {Outcome.UPLOADED: 1}
    assert agent.round().shipped == {}


@pytest.mark.parametrize("params", [{"compressionClass": "LZ4Compressor"}, {"encCipher": "AES/CBC/PKCS5Padding", "encKeyAlias": "a"}])
def test_a_packed_segment_is_shipped_though_its_idx_counts_more_than_the_file(
    params: dict[str, str], store: LocalStore, folder: Folder, agent_over: MakeAgent
) -> None:
    data = Descriptor(7, 1, params).encode() + b"packed sections"
    folder.segment(1, data, idx=b"33554432\nCOMPLETED")
    assert agent_over(store).round().shipped == {Outcome.UPLOADED: 1}
    assert store.read(ref(1).incoming) == data


def test_corrupt_bytes_are_shipped_as_they_are(store: LocalStore, folder: Folder, agent_over: MakeAgent) -> None:
    folder.segment(1, b"\x00\xffno commit log at all")
    assert agent_over(store).round().ok
    assert store.read(ref(1).incoming) == b"\x00\xffno commit log at all"


def test_a_foreign_file_is_reported_once_a_run(store: LocalStore, folder: Folder, agent_over: MakeAgent) -> None:
    (folder.path / "notes.log").write_text("by hand")
    with capture_logs() as logs:
        agent = agent_over(store)
        agent.round()
        agent.round()
    assert [(log["file"], log["log_level"]) for log in logs if "not a segment" in log["event"]] == [("notes.log", "warning")]
    assert folder.names == ["notes.log"]


def test_an_idx_whose_log_was_missed_in_the_listing_is_kept(
    store: LocalStore, folder: Folder, agent_over: MakeAgent, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder.segment(1)
    real = os.listdir
    with monkeypatch.context() as patch:
        patch.setattr(listing.os, "listdir", lambda path: [name for name in real(path) if not name.endswith(".log")])
        agent_over(store).round()
    assert folder.names == ["CommitLog-7-1.log", "CommitLog-7-1_cdc.idx"]
    (folder.path / "CommitLog-7-1.log").unlink()
    agent_over(store).round()
    assert folder.names == []


def test_a_segment_in_trouble_holds_up_no_other_and_is_reported_every_round(
    store: LocalStore, folder: Folder, agent_over: MakeAgent
) -> None:
    written = [folder.segment(number) for number in (1, 2, 3)]
    for name in (ref(2).incoming, ref(2).conflict(crc32c(written[1]))):
        store.put(name, b"other bytes")
    agent = agent_over(store)
    with capture_logs() as logs:
        first, second = agent.round(), agent.round()
    assert first.shipped == {Outcome.UPLOADED: 2}
    assert [type(error) for error in first.failed + second.failed] == [ShipError, ShipError]
    assert len([log for log in logs if log["log_level"] == "error" and log["segment"] == "CommitLog-7-2.log"]) == 2
    assert folder.names == ["CommitLog-7-2.log", "CommitLog-7-2_cdc.idx"]


def test_a_segment_in_conflict_is_an_error_in_the_log_and_no_failure(store: LocalStore, folder: Folder, agent_over: MakeAgent) -> None:
    folder.segment(1)
    store.put(ref(1).incoming, b"other bytes")
    agent = agent_over(store)
    with capture_logs() as logs:
        result = agent.round()
    assert (result.shipped, result.ok) == ({Outcome.IN_CONFLICT: 1}, True)
    (log,) = [log for log in logs if log["log_level"] == "error"]
    assert log["event"] == "segment in conflict: the store holds other bytes under its name"
    assert (log["segment"], log["object"]) == ("CommitLog-7-1.log", ref(1).incoming)
    assert "writetime conflicts list" in log["hint"]
    samples = [sample for family in agent.metrics.registry.collect() for sample in family.samples]
    assert [sample.value for sample in samples if sample.labels == {"outcome": "in conflict"} and sample.name.endswith("_total")] == [1]


def test_only_what_a_retry_may_help_is_retried(store: LocalStore, folder: Folder, agent_over: MakeAgent) -> None:
    folder.segment(1)
    patient = failing(store, StoreUnavailable("503"), times=3, only="cdc/")
    assert agent_over(patient).round().shipped == {Outcome.UPLOADED: 1}
    assert len(puts(patient)) == 4
    folder.segment(2)
    refused = failing(store, StoreError("403"), times=3, only="cdc/")
    assert not agent_over(refused).round().ok
    assert len(puts(refused)) == 1
    gone = failing(store, StoreUnavailable("503"), times=1000, only="cdc/")
    assert not agent_over(gone).round().ok
    assert len(puts(gone)) == 5
    assert folder.names == ["CommitLog-7-2.log", "CommitLog-7-2_cdc.idx"]


def test_a_stop_request_lets_the_file_in_hand_be_finished(
    store: LocalStore, folder: Folder, agent_over: MakeAgent, monkeypatch: pytest.MonkeyPatch
) -> None:
    for number in (1, 2, 3):
        folder.segment(number)
    stop = Event()
    real = store.put

    def stopped_meanwhile(name: str, *args: Any, **kwargs: Any) -> Any:
        if name.startswith("cdc/"):
            stop.set()
        return real(name, *args, **kwargs)

    monkeypatch.setattr(store, "put", stopped_meanwhile)
    assert agent_over(store, stop=stop).run(Mode.SERVICE)
    assert [info.name for info in store.list("cdc/")] == [ref(1).incoming]
    assert folder.names == [f"CommitLog-7-{n}{end}" for n in (2, 3) for end in (".log", "_cdc.idx")]


def test_the_loop_survives_a_bad_round(store: LocalStore, folder: Folder, agent_over: MakeAgent, monkeypatch: pytest.MonkeyPatch) -> None:
    stop, rounds = Event(), []
    agent = agent_over(store, stop=stop)
    real = Agent.round

    def bad_first(self: Agent, **_: Any) -> Any:
        rounds.append(1)
        if len(rounds) == 1:
            raise ShipError("the folder cannot be listed")
        if len(rounds) == 3:
            stop.set()
        return real(self)

    monkeypatch.setattr(Agent, "round", bad_first)
    with capture_logs() as logs:
        assert agent.run(Mode.SERVICE)
    assert len(rounds) == 3
    assert [log["message"] for log in logs if log["event"] == "round failed"] == ["the folder cannot be listed"]
    rounds.clear()
    with pytest.raises(ShipError):
        agent.run(Mode.ONCE)


def test_the_loop_survives_a_defect(store: LocalStore, folder: Folder, agent_over: MakeAgent, monkeypatch: pytest.MonkeyPatch) -> None:
    stop = Event()
    agent = agent_over(store, stop=stop)
    folder.segment(1)
    rounds = []

    def ask_settings() -> None:
        rounds.append(1)
        if len(rounds) == 1:
            raise RuntimeError("nobody foresaw this")
        stop.set()

    monkeypatch.setattr(agent, "_ask_settings", ask_settings)
    with capture_logs() as logs:
        agent.run(Mode.SERVICE)
    (line,) = [each for each in logs if each["event"] == "round failed unexpectedly"]
    assert (line["error"], line["message"]) == ("RuntimeError", "nobody foresaw this")
    assert len(rounds) == 2
    samples = [sample for family in agent.metrics.registry.collect() for sample in family.samples]
    assert [sample.value for sample in samples if sample.labels == {"error": "RuntimeError"} and sample.name.endswith("_total")] == [1]


@pytest.mark.parametrize("mode", [Mode.ONCE, Mode.DRAIN])
def test_a_segment_whose_idx_cannot_be_read_is_a_failure_by_its_name(
    mode: Mode, store: LocalStore, folder: Folder, agent_over: MakeAgent, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder.segment(1)
    folder.segment(2)
    real = read_idx

    def read_bytes(path: Path) -> bytes:
        if path.name == "CommitLog-7-1_cdc.idx":
            raise PermissionError(13, "Permission denied")
        return real(path)

    monkeypatch.setattr("shippers.folder.read_idx", read_bytes)
    with capture_logs() as logs:
        assert not agent_over(store).run(mode)
    assert store.head(ref(2).incoming) is not None
    assert store.head(ref(1).incoming) is None
    lines = [each for each in logs if each["event"] == "failed to read an idx"]
    assert lines
    assert lines[0]["object"].endswith("CommitLog-7-1.log")
    assert "Permission denied" in lines[0]["message"]
    monkeypatch.setattr("shippers.folder.read_idx", real)
    assert agent_over(store).run(mode)
    assert store.head(ref(1).incoming) is not None


def test_a_second_shipper_does_not_start(store: LocalStore, folder: Folder, agent_over: MakeAgent) -> None:
    folder.segment(1)
    with only_shipper(folder.path), pytest.raises(ShipError, match="another shipper"):
        agent_over(store).run(Mode.ONCE)
    assert len(folder.names) == 2


def test_metadata_says_where_a_segment_came_from(store: LocalStore, folder: Folder, agent_over: MakeAgent) -> None:
    folder.segment(1)
    agent_over(store, link=FakeLink()).round()
    info = store.head(ref(1).incoming)
    assert info is not None
    assert {"host_id": "host-1", "datacenter": "dc1", "address": "192.0.2.1", "release_version": "5.0.6"}.items() <= info.metadata.items()


def statuses(store: LocalStore) -> list[dict[str, Any]]:
    found = [json.loads(store.read(info.name)) for info in store.list(f"{layout.node_documents(NODE)}/")]
    return sorted(found, key=lambda document: str(document["at"]))


def test_who_the_node_is_is_written_when_it_changes(store: LocalStore, agent_over: MakeAgent, monkeypatch: pytest.MonkeyPatch) -> None:
    agent_over(store, link=FakeLink()).round()
    (first,) = statuses(store)
    assert FakeLink().facts_now.items() <= first.items()
    monkeypatch.setattr(report, "GAP", timedelta(0))
    agent_over(store, link=FakeLink()).round()
    assert statuses(store) == [first]
    newer = FakeLink()
    newer.facts_now["release_version"] = "5.0.7"
    agent_over(store, link=newer).round()
    assert sorted(document["release_version"] for document in statuses(store)) == ["5.0.6", "5.0.7"]


def test_the_schema_goes_before_the_segments_and_again_when_it_changes(store: LocalStore, folder: Folder, agent_over: MakeAgent) -> None:
    link, watched = FakeLink(), FaultyStore(store)
    agent = agent_over(watched, link=link)
    folder.segment(1)
    agent.round()

    def shipped() -> list[str]:
        return [name for name in puts(watched, "") if not name.startswith(("nodes/", "truncations/"))]

    assert shipped() == ["schemas/ring/dc1/host-1/20260101T000000Z-v1.json", ref(1).incoming]
    agent.round()
    link.version = "v2"
    folder.segment(2)
    agent.round()
    assert shipped()[2:] == ["schemas/ring/dc1/host-1/20260101T000000Z-v2.json", ref(2).incoming]
    assert link.asked.count("snapshot") == 2


def schemas(store: LocalStore) -> list[str]:
    return [info.name for info in store.list("schemas/")]


def test_each_node_ships_its_own(store: LocalStore, agent_over: MakeAgent) -> None:
    """It has no permission to read other nodes' schemas, and does not."""
    store.put("schemas/ring/20250101T000000Z-v1.json", b"{}")
    store.put("schemas/ring/dc1/host-2/20250101T000000Z-v1.json", b"{}")
    watched = FaultyStore(store)
    agent_over(watched, link=FakeLink()).round()
    assert "schemas/ring/dc1/host-1/20260101T000000Z-v1.json" in schemas(store)
    assert {what for what, name in watched.calls if name.startswith("schemas/")} == {"put"}


def test_a_new_run_does_not_ship_the_same_schema_again(store: LocalStore, agent_over: MakeAgent) -> None:
    for _ in range(2):
        watched = FaultyStore(store)
        agent_over(watched, link=FakeLink()).round()
    assert puts(watched, "schemas/") == []
    assert schemas(store) == ["schemas/ring/dc1/host-1/20260101T000000Z-v1.json"]


def test_another_store_gets_the_schema_too(store: LocalStore, agent_over: MakeAgent, tmp_path: Path) -> None:
    agent_over(store, link=FakeLink()).round()
    other = LocalStore(tmp_path / "other")
    agent_over(other, link=FakeLink()).round()
    assert schemas(other) == schemas(store)


def test_another_node_ships_the_schema_too(store: LocalStore, agent_over: MakeAgent, settings: PipelineConfig) -> None:
    agent_over(store, link=FakeLink()).round()
    other = FakeLink()
    other.facts_now["host_id"] = "host-2"
    agent_over(store, link=other, config=changed(settings, host_id="host-2")).round()
    assert schemas(store) == [f"schemas/ring/dc1/host-{number}/20260101T000000Z-v1.json" for number in (1, 2)]


@pytest.mark.parametrize("note", [b"", b"[]", b"{}", b'{"store": 5}', b"\xff", b"null"])
def test_a_schema_note_that_cannot_be_read_ships_it_once_more(
    note: bytes, store: LocalStore, agent_over: MakeAgent, settings: PipelineConfig
) -> None:
    assert settings.node is not None
    agent_over(store, link=FakeLink()).round()
    (settings.node.state / schema_snapshot.NOTE).write_bytes(note)
    watched = FaultyStore(store)
    assert agent_over(watched, link=FakeLink()).round().ok
    assert puts(watched, "schemas/") == schemas(store), "it is there, and that is as good"
    again = FaultyStore(store)
    agent_over(again, link=FakeLink()).round()
    assert puts(again, "schemas/") == []


def test_a_schema_whose_answer_was_lost_is_shipped_again(store: LocalStore, agent_over: MakeAgent) -> None:
    class Lost(FaultyStore):
        def put(self, name: str, *args: Any, **kwargs: Any) -> Any:
            super().put(name, *args, **kwargs)
            if name.startswith("schemas/"):
                raise StoreUnavailable("503")

    agent_over(Lost(store), link=FakeLink()).round()
    watched = FaultyStore(store)
    agent_over(watched, link=FakeLink()).round()
    assert puts(watched, "schemas/") == schemas(store)


def test_a_version_that_is_back_is_shipped_again(store: LocalStore, agent_over: MakeAgent, monkeypatch: pytest.MonkeyPatch) -> None:
    """Tables created meanwhile are gone, which the older object of that version does not show."""
    link = FakeLink()
    agent = agent_over(store, link=link)
    for day, version in enumerate(("v1", "v2", "v1"), 1):
        link.version, link.taken_at = version, f"2026-01-0{day}T00:00:00+00:00"
        agent.round()
    assert [name.rpartition("/")[2] for name in schemas(store)] == [
        "20260101T000000Z-v1.json",
        "20260102T000000Z-v2.json",
        "20260103T000000Z-v1.json",
    ]


def test_a_version_that_peers_take_over_is_shipped_again(store: LocalStore, agent_over: MakeAgent) -> None:
    """Only a snapshot on which all peers agree shows what was dropped."""
    link = FakeLink()
    agent = agent_over(store, link=link)
    for agreed in (False, False, True, True):
        link.agreed = agreed
        agent.round()
    assert [name.rsplit("Z-")[1] for name in schemas(store)] == ["v1-agreed.json", "v1.json"]
    assert link.asked.count("snapshot") == 3
    # A later start at which the node has not heard from a peer yet ships it no second time.
    again = FakeLink()
    again.agreed = False
    watched = FaultyStore(store)
    agent_over(watched, link=again).round()
    assert puts(watched, "schemas/") == []


def test_peers_that_never_agree_are_not_asked_about_for_ever(store: LocalStore, agent_over: MakeAgent) -> None:
    link = FakeLink()
    link.agreed = False
    agent = agent_over(store, link=link)
    for _ in range(50):
        agent.round()
    assert link.asked.count("snapshot") == 21


def test_a_schema_file_when_there_is_no_node_to_ask(
    store: LocalStore, folder: Folder, agent_over: MakeAgent, settings: PipelineConfig, tmp_path: Path
) -> None:
    file = tmp_path / "schema.json"
    file.write_text(json.dumps(SNAPSHOT))
    for _ in range(2):
        agent_over(store, config=changed(settings, schema_file=file)).round()
    assert schemas(store) == ["schemas/ring/dc1/host-1/20260102T030405Z-from-file.json"]
    assert json.loads(store.read("schemas/ring/dc1/host-1/20260102T030405Z-from-file.json")) == SNAPSHOT


@pytest.mark.parametrize(
    "content", [b"", b"[]", b"{}", b'{"taken_at": "yesterday", "schema_version": "v"}', b'{"taken_at": "2026-01-01", "schema_version": 5}']
)
def test_a_schema_file_that_is_none(
    store: LocalStore, agent_over: MakeAgent, settings: PipelineConfig, tmp_path: Path, content: bytes
) -> None:
    file = tmp_path / "schema.json"
    file.write_bytes(content)
    with pytest.raises(ConfigError, match=r"not a schema snapshot.*|.*schema\.json"):
        agent_over(store, config=changed(settings, schema_file=file)).round()
    with pytest.raises(ConfigError, match="failed to read the file"):
        agent_over(store, config=changed(settings, schema_file=tmp_path / "nowhere")).round()


def test_a_node_that_is_down_holds_up_nothing(
    store: LocalStore, folder: Folder, agent_over: MakeAgent, settings: PipelineConfig, tmp_path: Path
) -> None:
    file = tmp_path / "schema.json"
    file.write_text(json.dumps(SNAPSHOT))
    folder.segment(1)
    link = FakeLink(down=True)
    agent = agent_over(store, link=link, config=changed(settings, schema_file=file))
    assert agent.round().shipped == {Outcome.UPLOADED: 1}
    assert schemas(store) == ["schemas/ring/dc1/host-1/20260102T030405Z-from-file.json"]
    link.down = False
    agent.round()
    assert schemas(store)[0] == "schemas/ring/dc1/host-1/20260101T000000Z-v1.json"
    assert store.head(ref(1).incoming) is not None


def test_the_status_says_more_once_the_node_answers(store: LocalStore, agent_over: MakeAgent, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(report, "GAP", timedelta(0))
    link = FakeLink(down=True)
    agent = agent_over(store, link=link)
    agent.round()
    link.down = False
    agent.round()
    assert sorted(document.get("rack", "") for document in statuses(store)) == ["", "r1"]


def test_what_the_node_once_answered_is_remembered(
    store: LocalStore, folder: Folder, agent_over: MakeAgent, settings: PipelineConfig
) -> None:
    asking = changed(settings, host_id=None, datacenter=None)
    with pytest.raises(ShipError, match=r"node\.host_id") as caught:
        agent_over(store, link=FakeLink(down=True), config=asking).round()
    assert caught.value.retriable
    with pytest.raises(ConfigError, match=r"node\.host_id"):
        agent_over(store, config=asking).round()
    agent_over(store, link=FakeLink(), config=asking).round()
    folder.segment(1)
    agent_over(store, link=FakeLink(down=True), config=asking).round()
    assert store.head(ref(1).incoming) is not None


def test_a_node_that_was_away_is_asked_anew_who_it_is(
    store: LocalStore, folder: Folder, agent_over: MakeAgent, settings: PipelineConfig
) -> None:
    """It may be another node at the same address: its segments must not use the former identity."""
    link = FakeLink()
    agent = agent_over(store, link=link, config=changed(settings, host_id=None, datacenter=None))
    for number in (1, 2):
        folder.segment(number)
        agent.round()
    assert link.asked.count("facts") == 1
    link.down = True
    folder.segment(3)
    assert agent.round().shipped == {Outcome.UPLOADED: 1}, "until it answers, it is who it was"
    assert store.head(ref(3).incoming) is not None
    link.down = False
    link.facts_now["host_id"] = "host-2"
    folder.segment(4)
    with capture_logs() as logs:
        agent.round()
    assert store.head("cdc/ring/dc1/host-2/CommitLog-7-4.log") is not None
    assert store.head(ref(4).incoming) is None
    assert [log["was"] for log in logs if "node identity changed" in log["event"]] == ["host-1"]


@pytest.mark.parametrize("only", ["nodes/", "schemas/", "truncations/"])
def test_a_bucket_that_refuses_facts_or_schema_still_takes_segments(
    store: LocalStore, folder: Folder, agent_over: MakeAgent, only: str
) -> None:
    folder.segment(1)
    with capture_logs() as logs:
        agent_over(failing(store, StoreError("403"), times=9, only=only), link=FakeLink()).round()
    assert folder.names == []
    assert [log["event"] for log in logs if log["log_level"] == "warning"]


def test_a_defect_fails_the_run_and_keeps_the_file(
    store: LocalStore, folder: Folder, agent_over: MakeAgent, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder.segment(1)

    def bug(*_: Any) -> None:
        raise ZeroDivisionError

    monkeypatch.setattr(upload, "_upload", bug)
    assert not agent_over(store).run(Mode.ONCE)
    assert len(folder.names) == 2
