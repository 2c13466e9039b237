"""A small proof, with a real ring, Spark and chaos; and that it notices a rule that is broken. `make ring`
takes larger ones."""

from __future__ import annotations

from pathlib import Path

import pytest

from proof.ring.cli import Wanted, noticed, run
from proof.ring.topology import ONE_DATACENTER, Topology

pytestmark = [pytest.mark.cassandra, pytest.mark.spark, pytest.mark.timeout(1500), pytest.mark.thorough]


def test_a_small_ring_equals_its_tables_and_a_broken_rule_shows(tmp_path: Path) -> None:
    kept = tmp_path / "kept"
    wanted = Wanted(seed=2, ops=240, tiny=True)
    outcome, minima = run(wanted, tmp_path / "run", kept)
    assert [str(mismatch) for mismatch in outcome.mismatches] == []
    assert {kind: least for kind, least in minima.items() if outcome.done[kind] < least} == {}
    assert outcome.events
    assert outcome.steps["start"] == outcome.steps["kill"] == 1
    assert outcome.steps["operations that one node alone took"]
    assert outcome.wanted == {"hold": 1, "purge": 1, "let in": 1}
    assert {what: least for what, least in outcome.wanted.items() if outcome.steps[what] < least} == {}
    assert (outcome.steps["segments released"], outcome.steps["segments let in"]) == (1, ONE_DATACENTER.expected)
    for rule in ("partition-deletion", "purge-clock"):
        assert noticed(rule, kept, tmp_path, set()), f"the rule {rule} is broken, and nobody has noticed"


@pytest.mark.parametrize("shipping", [2, 1])
def test_two_datacenters_equal_their_tables(shipping: int, tmp_path: Path) -> None:
    """Whether both ship or one does, with the link between them cut for a while."""
    outcome, minima = run(Wanted(seed=2, ops=240, tiny=True, topology=Topology(2, shipping)), tmp_path / "run")
    assert [str(mismatch) for mismatch in outcome.mismatches] == []
    assert {kind: least for kind, least in minima.items() if outcome.done[kind] < least} == {}
    assert outcome.steps["cut"] + outcome.steps["cut for long"] == 2
    assert outcome.steps["operations that one datacenter alone took"]
    assert outcome.steps["mutations that the audit has found"]
