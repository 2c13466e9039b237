"""The command `writetime void`, and what the other commands print of a voided batch."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.cassandra.schema.examples import create_table
from tests.pipeline.planning import plan_ingest
from tests.pipeline.test_planner import CLUSTER, NOW, seal, ship
from tests.spark_jobs.synthetic import ORDERS
from writetime import cli
from writetime.cassandra.schema.history import SchemaLearner
from writetime.pipeline.documents import Manifest, Sealed, ShardVersions
from writetime.pipeline.planner import history
from writetime.storage import layout, open_store
from writetime.storage.local import LocalStore

REASON = "node 7 lost CommitLog-7-1777890000010"


class Terminal:
    """Somebody who answers."""

    def __init__(self, answer: str) -> None:
        self.answer = answer

    def isatty(self) -> bool:
        return True

    def readline(self, *_: int) -> str:
        return self.answer + "\n"


@pytest.fixture
def store(tmp_path: Path) -> LocalStore:
    made = open_store(str(tmp_path / "bucket"))
    assert isinstance(made, LocalStore)
    return made


@pytest.fixture
def ran(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Callable[..., tuple[int, str, str]]:
    """Run the command line; code, stdout, stderr."""
    config = tmp_path / "pipeline.yaml"
    config.write_text(f"pipeline: p\ncluster: {{name: {CLUSTER}, datacenters: [dc1]}}\nbucket: {tmp_path / 'bucket'}\n")

    def run(*arguments: str) -> tuple[int, str, str]:
        code = cli.main([*arguments, "--config", str(config)])
        return code, *capsys.readouterr()

    return run


def test_tables_are_asked_for_by_name(store: LocalStore, ran: Callable[..., tuple[int, str, str]]) -> None:
    code, _, wrong = ran("again", "shop.orders")
    assert (code, "No batch has taken in a table yet" in wrong) == (2, True)
    begun(store)
    learner, sealed = SchemaLearner(), history(store, CLUSTER).sealed
    learner.apply(create_table(ORDERS, 1))
    assert sealed is not None
    store.put(layout.batch_object(CLUSTER, 1, "schema"), learner.to_json().encode())
    state = {str(ORDERS.id): ShardVersions(buckets=[1])}
    store.put(layout.batch_object(CLUSTER, 1, "sealed"), sealed.model_copy(update={"state": state}).to_bytes())
    code, _, wrong = ran("again", "shop.orders", "shop.other")
    assert (code, "shop.other: no table with a state has this name. Known are shop.orders." in wrong) == (2, True)
    assert list(store.names("again/")) == []

    code, said, _ = ran("again", "shop.orders", "--rows")
    assert (code, said) == (0, "shop.orders: the next batch makes its current rows, from the state\n")
    code, said, _ = ran("again", "shop.orders", "--json")
    assert code == 0
    # After the open batch, which is planned without it.
    assert {name: json.loads(said)[name] for name in ("table", "since", "with_events")} == {
        "table": "shop.orders",
        "since": 2,
        "with_events": True,
    }


def begun(store: LocalStore) -> Manifest:
    """One batch is sealed, another open."""
    ship(store, 1)
    first = plan_ingest(store, CLUSTER, now=NOW)
    assert first is not None
    seal(store, first)
    ship(store, 2)
    manifest = plan_ingest(store, CLUSTER, now=NOW)
    assert manifest is not None
    return manifest


def test_it_voids_the_open_batch_once(store: LocalStore, ran: Callable[..., tuple[int, str, str]], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LOGNAME", "ann")
    begun(store)
    code, out, _ = ran("void", "2", "--reason", REASON, "--yes")
    assert code == 0
    assert "batch 2 was voided by ann at" in out
    assert REASON in out
    assert "reverted by the next batch (cdc_ingest)" in out
    assert history(store, CLUSTER).voided
    again = ran("void", "2", "--reason", "another", "--yes", "--json")
    assert (again[0], json.loads(again[1])["void"]) == (0, {"reason": REASON, "by": "ann", "base": 1})
    assert "batch 2 was voided by ann" in ran("batch", "2")[1]
    listed = ran("batches")[1]
    assert f": {REASON}" in listed
    assert [line.split()[:2] for line in listed.splitlines()[2:4]] == [["1", "ingest"], ["2", "void"]]
    status = json.loads(ran("status", "--json")[1])
    assert [each["number"] for each in status["voids"]] == [2]
    assert [each["number"] for each in status["batches"]] == [1]
    assert REASON in ran("status")[1]


@pytest.mark.parametrize(
    ("number", "reason", "said"),
    [("1", REASON, "the batch is sealed"), ("3", REASON, "batch 2 is"), ("2", " ", "a reason is missing")],
)
def test_what_cannot_be_voided_stays(
    store: LocalStore, ran: Callable[..., tuple[int, str, str]], number: str, reason: str, said: str
) -> None:
    begun(store)
    code, _, err = ran("void", number, "--reason", reason, "--yes")
    assert code == 1
    assert said in err
    assert history(store, CLUSTER).open


@pytest.mark.parametrize(("answer", "voided"), [("n", False), ("y", True)])
def test_at_a_terminal_it_asks(
    store: LocalStore, ran: Callable[..., tuple[int, str, str]], monkeypatch: pytest.MonkeyPatch, answer: str, voided: bool
) -> None:
    begun(store)
    terminal: Any = Terminal(answer)
    monkeypatch.setattr("sys.stdin", terminal)
    monkeypatch.setattr("click.termui.visible_prompt_func", lambda _: answer)
    code, _, err = ran("void", "2", "--reason", REASON)
    assert (code == 0, history(store, CLUSTER).voided) == (voided, voided)
    assert err or voided


def test_a_replay_is_named_by_its_namespace(store: LocalStore, ran: Callable[..., tuple[int, str, str]]) -> None:
    chain = layout.shadow_chain(CLUSTER, "look")
    for number in (1, 2):
        manifest = Manifest(
            number=number, kind="replay", cluster=chain, created_at=NOW, now=1, base=number - 1, segments=[], namespace="look"
        )
        store.put(layout.batch_object(chain, number, "manifest"), manifest.to_bytes())
    first = Sealed(number=1, kind="replay", sealed_at=NOW, segments=[], accounting=[], state={})
    store.put(layout.batch_object(chain, 1, "sealed"), first.to_bytes())
    code, out, _ = ran("void", "2", "--reason", REASON, "--namespace", "look")
    assert code == 0, "nobody is asked where there is no terminal"
    assert "reverted by the next replay into that namespace" in out
    assert history(store, chain).voided
    assert not history(store, CLUSTER).voided


@pytest.mark.advice("`writetime batches` lists those that are sealed")
def test_a_batch_that_is_not_sealed_is_named_by_the_status(store: LocalStore, ran: Callable[..., tuple[int, str, str]]) -> None:
    begun(store)
    code, _, err = ran("batch", "2")
    assert (code, "batch is not sealed" in err) == (1, True)
    code, out, _ = ran("batches", "--json")
    assert (code, [json.loads(line)["number"] for line in out.splitlines()]) == (0, [1])
    code, out, _ = ran("status")
    assert "batch 2 is open" in out
    code, out, _ = ran("batch", "1", "--json")
    assert (code, json.loads(out)["number"]) == (0, 1)
