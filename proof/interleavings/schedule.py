"""What a schedule does differently, and at which step: otherwise each driver goes on until it ends or waits.

Strategy: a schedule is a few deviations from running the drivers one after the other, so that it can be written down,
repeated and shrunk. Most faults of concurrent programs need two or three. `Seeded` places them at random, mostly right before
a request that changes something, `every` lists all small ones, and `shrunk` leaves out whatever a failure does not need.
Knows the world, and no driver."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Final, Literal, TypeVar

from proof.interleavings.world import Choice, Task, World

T = TypeVar("T")
Kind = Literal["go", "stall", "kill", "lose"]
_WEIGHTS: Final[dict[Kind, int]] = {"go": 6, "stall": 3, "kill": 2, "lose": 1}
MOST: Final = 6
_BEFORE_A_READ: Final = 0.15
"""How likely a deviation is before a request that changes nothing, against one that does."""


@dataclass(frozen=True, slots=True, order=True)
class Deviation:
    """At step `at`, another driver goes on, the `other`-th of those that can; the one that was going on may stall or die. Or it
    goes on itself, and the answer to its request is lost."""

    at: int
    kind: Kind = "go"
    other: int = 0

    def __str__(self) -> str:
        return f"{self.at}:{self.kind}:{self.other}"

    @classmethod
    def parse(cls, text: str) -> Deviation:
        at, kind, other = text.split(":")
        assert kind in _WEIGHTS
        return cls(int(at), kind, int(other))  # type: ignore[arg-type]


@dataclass
class Deviations:
    """A schedule by its deviations. `at`: the choices made so far, with more than one possibility or not; `states`: those of the
    world after the last deviation, by choice, if they are kept."""

    given: Sequence[Deviation]
    states: dict[int, int] | None = None
    at: int = 0

    def choose(self, current: Task | None, others: list[Task], world: World) -> Choice:
        if self.states is not None and others and self.at > max((each.at for each in self.given), default=-1):
            self.states[self.at] = world.state(current)
        found = next((each for each in self.given if each.at == self.at), None)
        self.at += 1
        if found is None:
            return Choice(current)
        if found.kind == "lose":
            return Choice(current, lose=True)
        # Who is not stalled comes first, so that a small number means somebody who is at work.
        able = sorted(others, key=lambda task: task.driver.stalled)
        if current is None:
            return Choice(able[found.other % len(able)] if able else None)
        away = [task for task in able if found.kind == "go" or task.driver is not current.driver]
        to = away[found.other % len(away)] if away else None
        if found.kind == "go":
            return Choice(to or current)
        return Choice(to, stall=found.kind == "stall", kill=found.kind == "kill")

    def __str__(self) -> str:
        return " ".join(map(str, self.given))


class Seeded:
    """A schedule by a seed, for drivers that make about so many requests, and so many that change something. `given`: its
    deviations so far."""

    def __init__(self, seed: int, steps: int, writes: int) -> None:
        self._random = random.Random(seed)
        self._most = self._random.randint(1, MOST)
        self._rate = self._most / max(1.0, writes + _BEFORE_A_READ * (steps - writes))
        self._played = Deviations([])
        self.given: list[Deviation] = []

    def choose(self, current: Task | None, others: list[Task], world: World) -> Choice:
        likely = self._rate * (1 if current is None or current.changes else _BEFORE_A_READ)
        if len(self.given) < self._most and self._random.random() < likely:
            (kind,) = self._random.choices(list(_WEIGHTS), list(_WEIGHTS.values()))
            self.given.append(Deviation(self._played.at, kind, self._random.randrange(4)))
            self._played.given = self.given
        return self._played.choose(current, others, world)

    def __str__(self) -> str:
        return str(self._played)


def every(play: Callable[[Deviations], T], most: int, others: int) -> Iterator[tuple[Deviations, T]]:
    """All schedules with at most so many deviations, and what they come to, without those that go on from a state that another one
    has gone on from. `others`: how many others there are to go on."""
    options: list[tuple[Kind, int]] = [(kind, other) for kind in _WEIGHTS for other in range(others)]
    left: list[tuple[Deviation, ...]] = [()]
    seen: dict[int, int] = {}
    while left:
        given = left.pop()
        schedule = Deviations(given, states={})
        yield schedule, play(schedule)
        more = most - len(given)
        for at, state in (schedule.states or {}).items():
            if more > seen.get(state, 0):
                seen[state] = more
                left += [(*given, Deviation(at, *option)) for option in options]


def shrunk(given: Sequence[Deviation], fails: Callable[[Deviations], bool]) -> Deviations:
    """The shortest of what still fails: without deviations that are not needed, by simpler ones, and earlier."""
    best = list(given)
    changed = True
    while changed:
        changed = False
        for candidate in _simpler(best):
            if fails(Deviations(candidate)):
                best, changed = candidate, True
                break
    return Deviations(best)


def _simpler(given: list[Deviation]) -> Iterator[list[Deviation]]:
    for at in range(len(given)):
        yield given[:at] + given[at + 1 :]
    for at, each in enumerate(given):
        if each.kind != "go":
            yield [*given[:at], replace(each, kind="go"), *given[at + 1 :]]
        if each.other:
            yield [*given[:at], replace(each, other=0), *given[at + 1 :]]
