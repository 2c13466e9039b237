"""The shipper's monitoring: metrics and health over HTTP, the status, the dry run."""

from __future__ import annotations

import json
import os
import socket
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from prometheus_client.parser import text_string_to_metric_families
from structlog.testing import capture_logs
from typer.testing import CliRunner

from shippers import metrics
from shippers.agent import Agent, Mode
from shippers.status import dry_run, status
from tests.shippers.conftest import SEALED, FakeLink, Folder, ref
from tests.shippers.service import running, until
from tests.shippers.test_agent import changed, failing
from tests.shippers.test_disk_space import Down, stuck
from tests.shippers.test_upload import take_in
from writetime.cli import build
from writetime.config.node import ShipConfig
from writetime.config.pipeline import PipelineConfig
from writetime.errors import ShipError
from writetime.storage.checksum import crc32c
from writetime.storage.local import LocalStore

MakeAgent = Callable[..., Agent]


def values(agent: Agent) -> dict[str, float]:
    """All samples, labels behind the name."""
    found = {}
    for family in agent.metrics.registry.collect():
        for sample in family.samples:
            labels = "".join(f" {value}" for value in sample.labels.values())
            found[sample.name.removeprefix("writetime_ship_") + labels] = sample.value
    return found


def test_metrics(store: LocalStore, folder: Folder, agent_over: MakeAgent, settings: PipelineConfig) -> None:
    config = changed(settings, ship=ShipConfig(cdc_total_space=100_000, disk_reserve=0, tail_seconds=None))
    sizes = [len(folder.segment(number)) for number in (1, 2, 3)]
    folder.segment(4, idx=b"5")
    (folder.path / "notes.log").write_text("by hand")
    stuck(store, 2, (folder.path / "CommitLog-7-2.log").read_bytes())
    agent = agent_over(store, config=config)
    agent.round()
    found = values(agent)
    assert found["bytes_total"] == sizes[0] + sizes[2]
    assert found["segments_total uploaded"] == 2
    assert found["failures_total ShipError"] == 1
    assert found["segment_seconds_count"] == 2
    assert (found["to_ship_segments"], found["lag_bytes"]) == (1, sizes[1])
    assert found["oldest_unshipped_timestamp_seconds"] == SEALED
    assert abs(found["lag_seconds"] - (time.time() - SEALED)) < 60
    assert (found["growing_segments"], found["foreign_files"], found["space_level"]) == (1, 1, 0)
    assert found["cdc_used_bytes"] == sizes[1] + len(folder.segment(4, idx=b"5"))
    assert found["cdc_limit_bytes"] == 100_000
    assert found["disk_free_bytes"] > 0
    store.delete(ref(2).conflict(crc32c((folder.path / "CommitLog-7-2.log").read_bytes())))
    agent.round()
    found = values(agent)
    assert found["segments_total in conflict"] == 1
    assert (found["to_ship_segments"], found["lag_bytes"], found["lag_seconds"], found["oldest_unshipped_timestamp_seconds"]) == (
        0,
        0,
        0,
        0,
    )


@pytest.fixture
def served() -> Iterator[tuple[metrics.Server, metrics.Metrics, list[float]]]:
    now = [0.0]
    counted = metrics.Metrics()
    server = metrics.Server("127.0.0.1:0", counted, metrics.Pulse(lambda: now[0]))
    yield server, counted, now
    server.close()


def get(server: metrics.Server, path: str) -> tuple[int, str]:
    try:
        with urllib.request.urlopen(f"http://{server.address}{path}", timeout=30) as answer:
            return answer.status, answer.read().decode()
    except urllib.error.HTTPError as error:
        return error.code, error.read().decode()


def test_metrics_over_http(served: Any) -> None:
    server, counted, _ = served
    counted.shipped("uploaded", 5, 0.1)
    code, text = get(server, "/metrics")
    assert code == 200
    samples = {sample.name: sample.value for family in text_string_to_metric_families(text) for sample in family.samples}
    assert samples["writetime_ship_bytes_total"] == 5
    assert get(server, "/")[0] == 404


def test_health_says_whether_the_loop_moves(served: Any) -> None:
    server, _, now = served
    assert get(server, "/healthz")[0] == 200
    now[0] = metrics.STILL_ALIVE_SECONDS + 1
    code, text = get(server, "/healthz")
    assert (code, json.loads(text)["alive"]) == (503, False)


def test_a_rest_counts_as_alive() -> None:
    """An interval between scans that is longer than what counts as hung."""
    now = [0.0]
    pulse = metrics.Pulse(lambda: now[0])
    pulse.beat(rest=5000)
    now[0] = 5000 + metrics.STILL_ALIVE_SECONDS - 1
    assert pulse.alive
    now[0] += 2
    assert not pulse.alive


@pytest.mark.parametrize("tail_seconds", [None, 5000.0])
def test_the_loop_rests_as_long_as_configured(
    tail_seconds: float | None, agent_over: MakeAgent, settings: PipelineConfig, store: LocalStore
) -> None:
    config = changed(settings, poll_seconds=5000, ship=ShipConfig(tail_seconds=tail_seconds))
    stop = threading.Event()
    agent = agent_over(store, config=config, stop=stop)
    rests: list[float] = []

    def beat(rest: float = 0.0) -> None:
        rests.append(rest)
        if rest:
            stop.set()

    agent.pulse.beat = beat  # type: ignore[method-assign]
    agent.run(Mode.SERVICE)
    assert 4900 < rests[-1] <= 5000


@pytest.mark.thorough
def test_idle_connections_keep_nobody_from_being_answered(served: Any) -> None:
    server, _, _ = served
    host, port = server.address.split(":")
    threads = threading.active_count()
    idle = [socket.create_connection((host, int(port))) for _ in range(150)]
    try:
        for each in idle[:75]:
            each.sendall(b"GET /met")
        for _ in range(20):
            begun = time.monotonic()
            assert get(server, "/healthz")[0] == 200
            assert time.monotonic() - begun < 2
        assert get(server, "/metrics")[0] == 200
        assert threading.active_count() - threads <= metrics.CONNECTIONS + 2
    finally:
        for each in idle:
            each.close()


def test_a_connection_on_which_nothing_is_asked_ends(served: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    server, _, _ = served
    host, port = server.address.split(":")
    monkeypatch.setattr(server._server.RequestHandlerClass, "timeout", 0.2)
    with socket.create_connection((host, int(port)), timeout=10) as idle:
        assert idle.recv(100) == b""


def test_the_loop_beats_while_the_store_is_down(store: LocalStore, folder: Folder, agent_over: MakeAgent) -> None:
    """Problems with the store are not a reason to restart the shipper."""
    folder.segment(1)
    agent = agent_over(Down(store))
    beats = []
    agent.pulse.beat = lambda: beats.append(1)  # type: ignore[method-assign]
    agent.round()
    assert len(beats) >= 6, "at each attempt"


def test_head_answers_as_get_without_a_body(served: Any) -> None:
    server, _, now = served
    for path, code in (("/healthz", 200), ("/metrics", 200), ("/", 404)):
        request = urllib.request.Request(f"http://{server.address}{path}", method="HEAD")
        try:
            with urllib.request.urlopen(request, timeout=30) as answer:
                found, length, body = answer.status, answer.headers["Content-Length"], answer.read()
        except urllib.error.HTTPError as error:
            found, length, body = error.code, error.headers["Content-Length"], error.read()
        assert (found, body) == (code, b"")
        assert int(length) > 0
    now[0] = metrics.STILL_ALIVE_SECONDS + 1
    with pytest.raises(urllib.error.HTTPError, match="503"):
        urllib.request.urlopen(urllib.request.Request(f"http://{server.address}/healthz", method="HEAD"), timeout=30)


def test_other_methods_are_refused(served: Any, capsys: pytest.CaptureFixture[str]) -> None:
    server, _, _ = served
    for method in ("POST", "PUT", "DELETE", "OPTIONS"):
        with pytest.raises(urllib.error.HTTPError, match="501"):
            urllib.request.urlopen(urllib.request.Request(f"http://{server.address}/healthz", data=b"x", method=method), timeout=30)
    assert get(server, "/healthz")[0] == 200
    assert capsys.readouterr().err == ""


@pytest.mark.advice("stop what uses the port")
def test_a_port_that_is_taken_is_reported_and_served_once_it_is_free(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(metrics, "_AGAIN_SECONDS", 0.05)
    with capture_logs() as logs:
        with socket.create_server(("127.0.0.1", 0)) as taken:
            serving = metrics.Serving(f"127.0.0.1:{taken.getsockname()[1]}", metrics.Metrics(), metrics.Pulse())
            assert until(lambda: logs)
            time.sleep(0.3)
        assert until(lambda: serving.server is not None)
    assert serving.server is not None
    assert get(serving.server, "/healthz")[0] == 200
    serving.close()
    assert [(log["event"], log["log_level"]) for log in logs] == [
        ("failed to start the metrics server, retrying", "error"),
        ("metrics server started", "info"),
    ]


def test_a_port_that_does_not_exist_is_reported() -> None:
    with capture_logs() as logs:
        serving = metrics.Serving("127.0.0.1:99999", metrics.Metrics(), metrics.Pulse())
        assert until(lambda: logs)
        serving.close()
    assert logs[0]["event"] == "failed to start the metrics server, retrying"


NO_NAMES = """
import ipaddress, socket, time
asked = socket.getaddrinfo
def answer(host, *more, **options):
    try:
        ipaddress.ip_address(host)
    except ValueError:
        time.sleep(3600)
    return asked(host, *more, **options)
def silent(*_):
    time.sleep(3600)
socket.getaddrinfo = answer
socket.getfqdn = socket.gethostbyaddr = socket.gethostbyname = socket.gethostbyname_ex = socket.getnameinfo = silent
"""


def test_nothing_waits_for_a_name_server_that_does_not_answer(folder: Folder, tmp_path: Path) -> None:
    folder.segment(1)
    with running(folder.path, str(tmp_path / "bucket"), prelude=NO_NAMES, host="0.0.0.0") as service:
        assert until(lambda: folder.names == []), "not shipped"
        assert until(lambda: service.get("/healthz")[0] == 200)
        assert service.stop() == 0


def test_shipping_does_not_wait_for_the_name_to_listen_on(folder: Folder, tmp_path: Path) -> None:
    folder.segment(1)
    with running(folder.path, str(tmp_path / "bucket"), prelude=NO_NAMES, host="metrics.example") as service:
        assert until(lambda: folder.names == []), "not shipped"
        assert service.stop() == 0


def test_ipv6() -> None:
    try:
        socket.create_server(("::1", 0), family=socket.AF_INET6).close()
    except OSError as error:
        pytest.skip(f"no IPv6 loopback here: {error}")
    server = metrics.Server("[::1]:0", metrics.Metrics(), metrics.Pulse())
    assert get(server, "/healthz")[0] == 200
    server.close()


# --- status and dry run


def test_status(store: LocalStore, folder: Folder, agent_over: MakeAgent, settings: PipelineConfig) -> None:
    folder.segment(1)
    other = folder.segment(2)
    folder.segment(3, idx=b"5")
    assert settings.node is not None
    settings.node.spill.mkdir(parents=True)
    (settings.node.spill / "CommitLog-7-9.log").write_bytes(b"aside")
    before = status(settings)
    assert before["shipper"] is None
    assert [(file["name"], file["state"], file["where"]) for file in before["files"]] == [
        ("CommitLog-7-1.log", "completed", "cdc_raw"),
        ("CommitLog-7-2.log", "completed", "cdc_raw"),
        ("CommitLog-7-3.log", "growing", "cdc_raw"),
        ("CommitLog-7-9.log", "completed", "aside"),
    ]
    stuck(store, 2, other)
    agent_over(store, link=FakeLink(space=12345)).round()
    after = status(settings)
    assert [file["name"] for file in after["files"]] == ["CommitLog-7-2.log", "CommitLog-7-3.log"]
    assert (after["limit"], after["shipper"]["pid"]) == (12345, os.getpid()), "the node's limit as the shipper learnt it"
    assert "the store holds" in after["shipper"]["failed"][0]["message"]


def test_a_status_note_that_is_damaged(folder: Folder, settings: PipelineConfig) -> None:
    assert settings.node is not None
    settings.node.state.mkdir()
    for content in (b"", b"[]", b"\xff"):
        (settings.node.state / metrics.NOTE).write_bytes(content)
        assert status(settings)["shipper"] is None


def test_a_note_that_cannot_be_written_stops_nothing(
    store: LocalStore, folder: Folder, agent_over: MakeAgent, settings: PipelineConfig, tmp_path: Path
) -> None:
    """Shipping matters most when the disk is full."""
    (tmp_path / "file").write_bytes(b"")
    config = changed(settings, state_dir=tmp_path / "file" / "state")
    agent = agent_over(store, link=FakeLink(), config=config)
    folder.segment(1)
    with capture_logs() as logs:
        assert agent.round().ok
        assert agent.round().ok
    assert folder.names == []
    warned = [log["event"] for log in logs if log["log_level"] == "warning"]
    assert warned == [
        "failed to persist the node's identity",
        "failed to record the written node status",
        "failed to record the shipped schema",
        "failed to record the shipped truncation records",
        "failed to record the shipper's status",
    ]


def test_a_dry_run_says_what_would_be_done_and_does_nothing(
    store: LocalStore, folder: Folder, settings: PipelineConfig, agent_over: MakeAgent
) -> None:
    for number in (1, 2, 3, 4):
        folder.segment(number)
    agent_over(store).round()
    take_in(store, 1)
    store.put(ref(2).incoming, b"other bytes")
    for number in (1, 2, 3, 5):
        folder.segment(number)
    folder.segment(6, idx=b"5")
    (folder.path / "CommitLog-7-4_cdc.idx").write_bytes(b"4\nCOMPLETED")
    (folder.path / "notes.log").write_text("by hand")
    here = {path.name: path.read_bytes() for path in folder.path.iterdir()}
    there = {info.name: info.generation for info in store.list()}
    actions = {plan["name"]: plan["action"] for plan in dry_run(settings, store, None)}
    assert actions == {
        "CommitLog-7-1.log": "upload, verify, delete",
        "CommitLog-7-2.log": "upload as a conflict, verify, delete: other bytes are there",
        "CommitLog-7-3.log": "delete: already there, the same bytes",
        "CommitLog-7-4_cdc.idx": "delete: its log was shipped",
        "CommitLog-7-5.log": "upload, verify, delete",
        "CommitLog-7-6.log": "wait",
        "notes.log": "not named CommitLog-<version>-<id>.log",
    }
    assert {path.name: path.read_bytes() for path in folder.path.iterdir()} == here
    assert {info.name: info.generation for info in store.list()} == there


def test_a_dry_run_knows_the_node_as_a_round_does(store: LocalStore, folder: Folder, settings: PipelineConfig) -> None:
    folder.segment(1)
    asking = changed(settings, host_id=None)
    (plan,) = dry_run(asking, store, FakeLink())  # type: ignore[arg-type]
    assert plan["object"] == ref(1).incoming
    with pytest.raises(ShipError, match=r"node\.host_id is not configured and the node has not answered yet"):
        dry_run(asking, store, FakeLink(down=True))  # type: ignore[arg-type]


def test_the_commands(store: LocalStore, folder: Folder, tmp_path: Path) -> None:
    folder.segment(1, b"x" * 3_000_000)
    file = tmp_path / "pipeline.yaml"
    node = {"cdc_raw": str(folder.path), "host_id": "host-1", "datacenter": "dc1", "ship": {"disk_reserve": 0, "cdc_total_space": "64MiB"}}
    document = {"pipeline": "p", "cluster": {"name": "ring", "datacenters": ["dc1"]}, "bucket": store.url, "node": node}
    file.write_text(yaml.safe_dump(document))

    def run(*options: str) -> str:
        done = CliRunner().invoke(build(), ["ship", "--config", str(file), *options], catch_exceptions=False)
        assert done.exit_code == 0, done.output
        return done.output

    table = run("--status")
    assert "CommitLog-7-1.log" in table
    assert "completed" in table
    assert "3 MiB of 64 MiB" in table
    assert json.loads(run("--status", "--json"))["lag_bytes"] == 3_000_000
    assert "upload, verify, delete" in run("--dry-run")
    assert [plan["object"] for plan in json.loads(run("--dry-run", "--json"))] == [ref(1).incoming]
    assert list(store.list()) == []
    for wrong in (["--once", "--drain"], ["--status", "--dry-run"], ["--json"]):
        assert CliRunner().invoke(build(), ["ship", "--config", str(file), *wrong]).exit_code == 2


def test_failures_are_counted_by_kind(store: LocalStore, folder: Folder, agent_over: MakeAgent) -> None:
    from writetime.errors import StoreError

    folder.segment(1)
    agent = agent_over(failing(store, StoreError("403"), times=1, only="cdc/"))
    agent.round()
    assert values(agent)["failures_total StoreError"] == 1
