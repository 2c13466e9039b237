"""What a batch costs in requests, by the bench of a thousand nodes with a few: the numbers are exact, and hold for a
thousand. A request for each segment or node that comes back, or one that is made while all others wait, fails here."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import structlog

from benchmarks import nodes
from benchmarks.nodes import Load
from benchmarks.remote_store import COSTS, Kind
from tests.storage import gcs_stub, s3_stub
from tests.storage.conftest import s3_memory, stub  # noqa: F401 - fixtures
from writetime.storage import gcs, open_store
from writetime.storage import s3 as s3_module
from writetime.storage.store import Store

SMALL = Load(nodes=12, rate=1.0, tables=5)
"""36 segments a batch, three of each node."""
STEPS = ("plan", "archive", "progress of publishing", "idle look", "page, first view", "page, again", "metrics")


def steps(kind: Kind, load: Load) -> dict[str, Any]:
    return {name: step for name, step in nodes.measure(kind, load, 0.0)["steps"].items() if name in STEPS}


@pytest.mark.parametrize("kind", ["gcs", "s3"])
@pytest.mark.parametrize("tails", [False, True])
def test_nothing_is_asked_one_by_one_for_each_segment_or_node(kind: Kind, tails: bool) -> None:
    few = steps(kind, replace(SMALL, tails=tails))
    many = steps(kind, replace(SMALL, nodes=24, rate=2.0, tails=tails))
    assert {name: step["one_by_one"] for name, step in few.items()} == {name: step["one_by_one"] for name, step in many.items()}
    assert max(step["one_by_one"] for step in many.values()) <= 70


@pytest.mark.parametrize(("kind", "plan", "archive"), [("gcs", 0, 7), ("s3", 1, 12)])
def test_requests_for_a_segment(kind: Kind, plan: int, archive: int) -> None:
    few, many = (steps(kind, replace(SMALL, rate=rate)) for rate in (1.0, 2.0))
    more = 36
    # Of the plan, on S3: a look at the segment. Segments that are newer than all before are not asked for in the ledger.
    assert many["plan"]["requests"] - few["plan"]["requests"] == plan * more
    assert many["archive"]["requests"] - few["archive"]["requests"] == archive * more
    assert many["idle look"]["requests"] == few["idle look"]["requests"] <= 14


@pytest.mark.parametrize("kind", ["gcs", "s3"])
def test_a_longer_backlog_costs_planning_nothing(kind: Kind, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("writetime.pipeline.incoming.MANY", 100)
    short, long = (nodes.drain(kind, 10, waiting, 0.0, rounds=3) for waiting in (2_000, 8_000))
    assert [batch["requests"] for batch in short] == [batch["requests"] for batch in long]
    assert [batch["segments"] for batch in long] == [256, 512, 1024]
    assert all(batch["a_segment"] <= 2.5 for batch in long)


@pytest.fixture
def same_logging() -> Iterator[None]:
    """Commands configure logging for their process, which is that of other tests, too."""
    before = structlog.get_config()
    yield
    structlog.configure(**before)


@pytest.mark.usefixtures("same_logging")
def test_the_command(capsys: pytest.CaptureFixture[str]) -> None:
    arguments = ["--nodes", "5", "--stores", "gcs", "--tails", "off", "--latency", "0", "--backlog", "50"]
    assert nodes.main(arguments) == 0
    assert "page, first view" in capsys.readouterr().out
    assert nodes.main([*arguments, "--json"]) == 0
    batch, backlog = json.loads(capsys.readouterr().out)
    assert batch["day"]["dollars"] > 0
    assert backlog["batches"][0]["segments"] == 50


# --- what a call costs, by the real backends


def _calls(store: Store, folder: Path) -> dict[str, Any]:
    """Each call that the table has, on objects that are there."""
    infos = {name: store.put(name, b"1") for name in ("a/head", "a/replace", "a/copy", "a/delete", "a/delete generation")}
    # What is asked once in the life of a store.
    store.head("a/nothing")
    list(store.list("b/"))
    return {
        "page": lambda: list(store.names("b/")),
        "head": lambda: store.head("a/head"),
        "read": lambda: store.read("a/head"),
        "put": lambda: store.put("a/put", b"1", if_generation=0),
        "replace": lambda: store.put("a/replace", b"2", if_generation=infos["a/replace"].generation),
        "copy": lambda: store.copy("a/copy", "a/copied"),
        "delete": lambda: store.delete("a/delete"),
        "delete generation": lambda: store.delete("a/delete generation", if_generation=infos["a/delete generation"].generation),
    }


def test_the_costs_of_gcs(stub: gcs_stub.Stub, tmp_path: Path) -> None:  # noqa: F811
    store = open_store(f"gs://{gcs_stub.BUCKET}/x")
    assert isinstance(store, gcs.GcsStore)
    made: list[str] = []
    stub.watch = made.append
    for call, make in _calls(store, tmp_path).items():
        made.clear()
        make()
        # The library asks where the bucket is now and then, from a thread of its own.
        assert (call, len([each for each in made if "/b/bucket?" not in each])) == (call, COSTS["gcs"][call].requests)


def test_the_costs_of_s3(s3_memory: s3_stub.Stub, tmp_path: Path) -> None:  # noqa: F811
    store = open_store(f"s3://{s3_stub.BUCKET}/x")
    assert isinstance(store, s3_module.S3Store)
    for call, make in _calls(store, tmp_path).items():
        before = len(s3_memory.requests)
        make()
        made = s3_memory.requests[before:]
        cost = COSTS["s3"][call]
        assert (call, sum(each.startswith(("PUT", "POST")) or "list-type" in each for each in made)) == (call, cost.writes)
        assert (call, sum(each.startswith("DELETE") for each in made)) == (call, cost.deletions)
        assert (call, len(made)) == (call, cost.requests)
    before = len(s3_memory.requests)
    store.discard(f"a/{number}" for number in range(1000))
    assert [each.split()[0] for each in s3_memory.requests[before:]] == ["POST"] * COSTS["s3"]["discard"].requests
    before = len(s3_memory.requests)
    assert len(list(store.list("a/head"))) == 1
    assert len(s3_memory.requests) - before == COSTS["s3"]["page"].requests + COSTS["s3"]["look"].requests
