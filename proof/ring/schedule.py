"""The schedule of a run: steps on cluster and pipeline, each before an operation. A function of the seed.

Between two quiet points one node at a time is stopped or killed (kill -9) and restarted; segments are
completed, flushed, shipped from one node or from all, and batches run. Sometimes a node is isolated and
accepts writes that no other one sees. Once between two quiet points a value expires without further writes,
segments are held during a purge, and some arrive later than newer ones of another node. If schema changes have
epochs, a node misses one between two quiet points, and captures writes when it is back. RF is 3, or 2 in each
of two datacenters: one node may always be down. In the second stretch of a long run the topology changes during
operations: a fourth node joins, one leaves, one dies and is replaced; of two datacenters, the link is cut
instead, in each stretch. Knows no cluster.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from random import Random
from typing import Literal

from proof.ring.operations import Operation
from proof.ring.topology import ONE_DATACENTER, Topology

What = Literal[
    "stop",
    "kill",
    "start",
    "alone",
    "cut",
    "cut for long",
    "together",
    "flush",
    "repair",
    "roll",
    "ship",
    "ship all",
    "batch",
    "expire",
    "hold",
    "purge",
    "let in",
    "miss a change",
    "quiet",
    "join",
    "leave",
    "replace",
    "upgrade",
]
HELD = ("hold", "purge", "let in")
MISSED = "miss a change"
PLANNED = (*HELD, MISSED, "upgrade")
"""Each comes as often as it says, or the run proves less than it should."""
LONGEST_STRETCH = 4000
"""Operations between two quiet points, at most."""
_SMALL = 1000
"""Operations of a run that has one quiet point only, and few batches."""
_CHANGES = 2000
"""Operations of a run from which on nodes join and leave."""
_OPS_PER_OUTAGE = 2000
_ALONE = 60
"""Operations after which a node that was cut off is let back at the latest; what needs others ends it
sooner."""


@dataclass(frozen=True)
class Step:
    """`at`: before the operation of that number (from 0). `node` is an index, where it matters."""

    at: int
    what: What
    node: int = 0


def schedule(seed: int, ops: int, *, chaos: bool = True, topology: Topology = ONE_DATACENTER, has_epochs: bool = False) -> list[Step]:
    """The steps, in order; the last one is a quiet point after the last operation. `has_epochs`: whether the
    cluster numbers its schema changes (from 6.0 on).
    """
    random = Random(f"{seed} chaos")
    stretches = max(-(-ops // LONGEST_STRETCH), 2 if ops >= _SMALL else 1)
    bounds = [ops * number // stretches for number in range(stretches + 1)]
    steps: list[Step] = []
    for number, (start, end) in enumerate(pairwise(bounds)):
        nodes = len(topology.nodes)
        stretch = _stretch(random, start, end, chaos, nodes)
        if chaos and has_epochs:
            stretch.append(_missed(Random(f"{seed} missed {number}"), start, end, nodes))
        if chaos:
            stretch += _with_all_there(Random(f"{seed} with all there {number}"), start, end, nodes)
        if chaos and topology.datacenters > 1:
            stretch += _cuts(Random(f"{seed} cuts {number}"), start, end, topology)
        elif chaos and ops >= _CHANGES and number == 1:
            stretch += _changes(Random(f"{seed} changes"), start, end, nodes)
        steps += sorted(stretch, key=lambda step: step.at)
        steps.append(Step(end, "quiet"))
    return steps


def upgrade(operations: Sequence[Operation]) -> list[Step]:
    """Upgrades of the nodes of one datacenter, one after the other, where most operations follow each other that a
    ring of two versions takes: what it may refuse ends the upgrade at once. In the second third of the run, so that
    there is a schema with a past, and a time after it.
    """
    nodes = len(ONE_DATACENTER.nodes)
    third = len(operations) // 3
    stops = [number for number in range(third, 2 * third) if operations[number].needs_one_version]
    start, end = max(pairwise([third - 1, *stops, 2 * third]), key=lambda gap: gap[1] - gap[0])
    return [Step(start + 1 + (end - start) * number // (nodes + 1), "upgrade", number) for number in range(nodes)]


def _stretch(random: Random, start: int, end: int, chaos: bool, nodes: int) -> list[Step]:
    """Steps of one stretch, unordered; steps before the same operation keep the order of this list."""
    steps: list[Step] = []
    if chaos:
        count, size = _outages(start, end)
        for number in range(count):
            steps += _outage(random, start + number * size, size, number, nodes)
        # Ends before the one of `_with_all_there` begins.
        at = random.randint(start, max(start, end - size // 6 - _ALONE))
        steps += [Step(at, "alone", random.randrange(nodes)), Step(min(end - size // 6, at + _ALONE), "together")]
    small = end - start < _SMALL // 2
    counts = (("flush", 1), ("ship", 1)) if small else (("roll", 2), ("flush", 2), ("ship", 3), ("ship all", 2), ("batch", 1))
    for what, count in counts:
        for _ in range(count):
            at = random.randint(start, end)
            steps.append(Step(at, what, random.randrange(nodes)))  # type: ignore[arg-type]
            if what == "roll":
                # Completed segments are read soon, mostly before the others.
                steps += [Step(at, "ship", random.randrange(nodes)), Step(at, "batch")]
    return steps


def _outages(start: int, end: int) -> tuple[int, int]:
    """How many there are, and how many operations each has for itself."""
    count = max(1, (end - start) // _OPS_PER_OUTAGE)
    return count, (end - start) // count


def _missed(random: Random, start: int, end: int, nodes: int) -> Step:
    """When the last outage is over, before what `_with_all_there` does."""
    _, size = _outages(start, end)
    return Step(end - size // 6, MISSED, random.randrange(nodes))


def _with_all_there(random: Random, start: int, end: int, nodes: int) -> list[Step]:
    """What no node may miss: the last outage leaves a sixth of its operations free. Something that is taken
    in expires with nobody touching it. Some segments are damaged, so that they are held over a purge, and are
    let in whole at the end. And what one node alone has taken is in a segment that is sealed, and stays where
    it is while a batch takes in younger ones of another node.
    """
    _, size = _outages(start, end)
    node, other = random.sample(range(nodes), 2)
    at = end - random.randint(size // 12, size // 7)
    together = min(end, at + min(_ALONE, size // 24))
    after: list[What] = ["together", "roll", "roll", "ship", "batch"]
    first, last = end - size // 6, end - size // 7
    middle = random.randint(first, last)
    held = [Step(random.randint(first, middle), "hold", node), Step(random.randint(middle, last), "purge")]
    return [
        *held,
        Step(at, "expire"),
        Step(at, "alone", node),
        *(Step(together, what, other) for what in after),
        # After whatever else the stretch has.
        Step(end, "let in"),
    ]


def _outage(random: Random, start: int, size: int, number: int, nodes: int) -> list[Step]:
    """A node goes and comes back within the stretch of `size` operations, and is repaired there or not."""
    node = random.randrange(nodes)
    away = start + random.randint(size // 10, size // 2)
    back = away + random.randint(size // 10, size // 3)
    steps = [Step(away, random.choice(("stop", "kill")), node), Step(back, "start", node)]
    if number == 0 or random.random() < 0.3:
        steps.append(Step(back + random.randint(0, size // 10), "repair", node))
    return steps


def _cuts(random: Random, start: int, end: int, topology: Topology) -> list[Step]:
    """Before the first outage, the link between the datacenters is cut: each goes on alone, one after the
    other. Afterwards hints bring what the other one has missed; after a long cut, a repair.
    """
    _, size = _outages(start, end)
    part = size // 20
    one, other = random.sample((0, topology.factor), 2)
    what: What = random.choice(("cut", "cut for long"))
    steps = [Step(start, what, one), Step(start + part, what, other), Step(start + 2 * part, "together")]
    return steps if what == "cut" else [*steps, Step(start + 2 * part, "repair", one)]


def _changes(random: Random, start: int, end: int, nodes: int) -> list[Step]:
    """The ring has three nodes again in the end. The first one, whom newcomers ask for the others, stays."""
    third = (end - start) // 3
    places = [start + number * third + random.randrange(third) for number in range(3)]
    return [Step(at, what, random.randrange(1, nodes)) for at, what in zip(places, ("join", "leave", "replace"), strict=True)]
