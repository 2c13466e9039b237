"""Which nodes hold T, by the last answers of all: a node that belongs to the ring is never passed because an answer
lacks it, and one that has left does not hold T for ever."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Any, Final

import pytest
from hypothesis import given
from hypothesis import strategies as st

from writetime.pipeline import watermark
from writetime.pipeline.documents import Watermark
from writetime.pipeline.node_facts import NodeFacts, SignedOff
from writetime.storage import layout

NOON = datetime(2026, 5, 4, 12, tzinfo=UTC)


def node(name: str) -> layout.NodeName:
    """`d…` is in the datacenter dc2."""
    return layout.NodeName("c", "dc2" if name.startswith("d") else "dc1", name)


def answer(
    name: str, at: float, names: str, *, synced: float | None = None, tokens: Iterable[int] = (), ships: str = "dc1 dc2"
) -> NodeFacts:
    """The node's status: at second `at` it has named those nodes."""
    written = NOON + timedelta(seconds=at)
    members = frozenset(node(each).path for each in names.split())
    signed = SignedOff(
        NOON + timedelta(seconds=at if synced is None else synced),
        written,
        timedelta(seconds=25),
        members,
        frozenset(f"c/{each}" for each in ships.split()),
    )
    return NodeFacts(node(name), f"nodes/{name}/{at}", signed_off=signed, tokens=tuple(tokens))


def silent(name: str) -> NodeFacts:
    """A status without a sign-off, as a shipper writes it whose node does not answer."""
    return NodeFacts(node(name), f"nodes/{name}")


def members(facts: Iterable[NodeFacts], *datacenters: str) -> str:
    return " ".join(sorted(path.rsplit("/", 1)[1] for path in watermark.members(facts, datacenters or None)))


CASES: Final[dict[str, tuple[list[NodeFacts], str]]] = {
    "one of the others does not name it, and is the only one later than its own": (
        [answer("a", -5, "a b n"), answer("b", 2, "a b"), answer("c", -7, "a b c n"), answer("n", 0, "a b c n", synced=-600)],
        "a b c n",
    ),
    "the others were restarted and have not answered since": ([silent("a"), answer("b", 2, "a b c"), silent("c"), silent("n")], "a b c n"),
    "the one that names it has been silent for an hour": (
        [answer("a", 0, "a b c"), answer("b", 0, "a b c"), answer("c", -3600, "a b c n"), answer("n", -3700, "a b c n")],
        "a b c n",
    ),
    "it names itself and was the last to answer": ([answer("a", 0, "a"), answer("b", 20, "a b")], "a b"),
    "another one has not answered": ([answer("a", 0, "a b"), answer("n", -9999, "a b n")], "a b n"),
    "it has joined and has no shipper": ([answer("a", 0, "a n")], "a n"),
    "all others answer without it, but for less than a minute": (
        [answer("a", 59, "a b"), answer("b", 58, "a b"), answer("n", 0, "a b n")],
        "a b n",
    ),
    "all others answer without it": ([answer("a", 60, "a b"), answer("b", 61, "a b"), answer("n", 0, "a b n")], "a b"),
    "it has left long ago and never answered": ([answer("a", 60, "a b"), answer("b", 61, "a b"), silent("n")], "a b"),
    "one left after another": ([answer("a", 900, "a"), answer("m", 400, "a m"), answer("n", 0, "a m n")], "a"),
    "one left, and then one that has not answered since": (
        [answer("a", 900, "a b"), answer("b", 900, "a b"), answer("n", 0, "a b m n"), silent("m")],
        "a b",
    ),
    "two halves do not see each other": (
        [answer("a", 999, "a b"), answer("b", 999, "a b"), answer("m", 0, "m n"), answer("n", 0, "m n")],
        "a b m n",
    ),
    "two that died together name each other": ([answer("a", 999, "a"), answer("m", 0, "a m n"), answer("n", 0, "a m n")], "a m n"),
    "it was replaced by a node with its tokens, with the one that names it": (
        [
            answer("a", 999, "a b", tokens=[1, 2]),
            answer("b", 999, "a b", tokens=[3]),
            answer("m", 0, "m n", tokens=[1, 2]),
            answer("n", 0, "m n", tokens=[3]),
        ],
        "a b",
    ),
    "a node claims its tokens, and others name it": (
        [answer("a", 999, "a b n", tokens=[1, 2]), answer("b", 999, "a b", tokens=[1, 3]), answer("n", 0, "n", tokens=[1])],
        "a b n",
    ),
    "it has the tokens of one that was first, and some of its own": (
        [answer("a", 999, "a n", tokens=[1]), answer("b", 0, "a b", tokens=[1, 2])],
        "a b n",
    ),
    "a shipper's YAML lacks its datacenter": ([answer("a", 999, "a", ships="dc1"), answer("d", 0, "a d")], "a d"),
    "it was the last of its datacenter": ([answer("a", 999, "a"), answer("d", 0, "a d")], "a"),
    "nobody answers": ([silent("a"), silent("n")], "a n"),
    "only itself answers": ([answer("n", 0, "n")], "n"),
}


@pytest.mark.parametrize("case", CASES)
def test_members(case: str) -> None:
    facts, expected = CASES[case]
    assert members(facts) == expected
    assert members(reversed(facts)) == expected


def test_datacenters_that_do_not_ship_do_not_count() -> None:
    """One was taken away: its nodes name each other, and their statuses are still there."""
    facts = [answer("a", 999, "a", ships="dc1"), answer("d1", 0, "a d1 d2"), answer("d2", 0, "a d1 d2")]
    assert members(facts) == "a d1 d2"
    assert members(facts, "dc1") == "a"


def test_a_person_says_that_two_have_left_by_deleting_their_statuses() -> None:
    facts, _ = CASES["two that died together name each other"]
    assert members(each for each in facts if each.node.host_id == "a") == "a"


def test_t_does_not_pass_a_node_that_one_answer_lacks() -> None:
    facts, _ = CASES["one of the others does not name it, and is the only one later than its own"]
    found = watermark.planned(None, Watermark(), None, facts)  # type: ignore[arg-type]
    assert found.until == NOON - timedelta(seconds=600 + 27)
    assert watermark.behind(found) == [node("n").path]


def test_a_node_that_is_named_again_holds_t_and_t_does_not_go_back() -> None:
    """All others answered without it, and were wrong, or it has come back."""
    facts = [answer("a", 70, "a"), answer("n", 0, "a n", synced=-600)]
    before = watermark.planned(None, Watermark(), None, facts)  # type: ignore[arg-type]
    assert before.until == NOON + timedelta(seconds=70 - 27)
    facts = [answer("a", 90, "a n"), answer("n", 80, "a n", synced=-500)]
    after = watermark.planned(None, before, None, facts)  # type: ignore[arg-type]
    assert after.until == before.until
    assert watermark.behind(after) == [node("n").path]


# --- histories

NAMES: Final = ("w", "a", "b", "d1", "d2")


@dataclass
class Cluster:
    """A ring and what its shippers have last written. `w` never leaves; `wrong`: by node, whom it does not name."""

    ring: dict[str, int] = field(default_factory=lambda: {"w": 0})
    """By name, when it joined."""
    dead: set[str] = field(default_factory=set)
    wrong: dict[str, set[str]] = field(default_factory=dict)
    facts: dict[str, NodeFacts] = field(default_factory=dict)
    answered: dict[str, int] = field(default_factory=dict)
    now: int = 0

    def step(self, kind: str, name: str, other: str) -> None:
        self.now += 15
        if kind == "joins" and name not in self.ring:
            self.ring[name] = self.now
            self.dead.discard(name)
        elif kind == "leaves" and name != "w":
            self.ring.pop(name, None)
        elif kind == "dies":
            self.dead.add(name)
        elif kind == "returns":
            self.dead.discard(name)
        elif kind == "forgets" and name != "w" and other not in ("w", name):
            self.wrong.setdefault(name, set()).add(other)
        elif kind == "answers" and name in self.ring and name not in self.dead:
            self.answer(name)
        elif kind == "restarts" and name in self.ring and name not in self.answered:
            self.facts[name] = silent(name)

    def answer(self, name: str) -> None:
        named = " ".join(each for each in self.ring if each not in self.wrong.get(name, ()))
        self.facts[name] = answer(name, self.now, named)
        self.answered[name] = self.now


KINDS: Final = ("joins", "leaves", "dies", "returns", "forgets", "answers", "answers", "answers", "restarts")
STEPS: Final[Any] = st.lists(st.tuples(st.sampled_from(KINDS), st.sampled_from(NAMES), st.sampled_from(NAMES)), max_size=60)


@given(STEPS)
def test_while_one_member_knows_the_ring_no_node_of_it_is_passed(steps: list[tuple[str, str, str]]) -> None:
    """Whatever the others answer, and whoever has not answered for long. `w` knows the ring, and all know `w`."""
    cluster = Cluster()
    for step in steps:
        cluster.step(*step)
        known = {
            name
            for name, joined in cluster.ring.items()
            if cluster.answered.get(name, -1) >= joined or cluster.answered.get("w", -1) >= joined
        }
        found = {path.rsplit("/", 1)[1] for path in watermark.members(cluster.facts.values())}
        assert known <= found


@given(STEPS)
def test_when_all_that_remain_have_answered_rightly_those_that_left_do_not_count(steps: list[tuple[str, str, str]]) -> None:
    """If they left one after the other: those that go together may name each other."""
    cluster = Cluster()
    for kind, name, other in steps:
        cluster.step(kind, name, other)
        cluster.wrong.clear()
        cluster.dead.clear()
        if kind == "leaves":
            cluster.now += 60
            for each in cluster.ring:
                cluster.answer(each)
    cluster.now += 60
    for each in cluster.ring:
        cluster.answer(each)
    assert watermark.members(cluster.facts.values()) == {node(each).path for each in cluster.ring}
