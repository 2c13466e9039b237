"""What a schedule does differently, and at which step: otherwise each driver goes on until it ends or waits.

Strategy: a schedule is a few deviations from running the drivers one after the other, so that it can be written down,
repeated and shrunk. Most faults of concurrent programs need two or three. `Seeded` places them at random, `every`
lists all small ones, and `shrunk` leaves out whatever a failure does not need. Knows the world, and no driver."""

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


def seeded(seed: int, steps: int) -> Deviations:
    """A schedule for drivers that make about so many requests."""
    made = random.Random(seed)
    kinds, weights = list(_WEIGHTS), list(_WEIGHTS.values())
    count = made.randint(1, MOST)
    places = sorted(made.sample(range(max(steps, count)), count))
    return Deviations([Deviation(at, made.choices(kinds, weights)[0], made.randrange(4)) for at in places])


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
