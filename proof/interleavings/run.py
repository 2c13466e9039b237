"""Many schedules, their figures, and the stories of those that fail.

Strategy: scenarios are shared among processes, seeds by scenario. Each failure is shrunk and printed as a story: who did
what, and what does not hold then. Knows no driver."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, field
from functools import partial
from multiprocessing import get_context
from statistics import median
from time import perf_counter
from typing import Final

from proof.interleavings import sabotage
from proof.interleavings.jobs import installed
from proof.interleavings.scenario import ALL, Result, Stage
from proof.interleavings.schedule import Deviation, Deviations, Seeded, every, shrunk

_SHARE: Final = 250
"""Schedules that a process takes at once."""
_STORIES: Final = 3


@dataclass
class Found:
    """What some schedules of a scenario have come to. `failed`: by what does not hold, the schedule, shrunk if it was the first."""

    scenario: str
    schedules: int = 0
    seconds: float = 0.0
    steps: list[int] = field(default_factory=list)
    failed: dict[str, str] = field(default_factory=dict)
    failures: int = 0

    def add(self, other: Found) -> None:
        self.schedules, self.seconds, self.failures = (
            self.schedules + other.schedules,
            self.seconds + other.seconds,
            self.failures + other.failures,
        )
        self.steps += other.steps
        self.failed = {**other.failed, **self.failed}

    def as_dict(self) -> dict[str, object]:
        steps = {"median": median(self.steps), "most": max(self.steps)} if self.steps else {}
        return {
            "scenario": self.scenario,
            "schedules": self.schedules,
            "steps": steps,
            "seconds": round(self.seconds, 1),
            "failures": self.failures,
            "failed": self.failed,
        }


def kind_of(violation: str) -> str:
    """What does not hold, without what differs between schedules: as a failure is counted once."""
    return "".join("N" if each.isdigit() else each for each in violation)[:120]


def share(name: str, seeds: Sequence[int], rule: str | None, *, first_only: bool = False) -> Found:
    """Play these seeds of a scenario. `first_only`: until one fails."""
    with sabotage.applied(rule), installed() as here:
        return seeds_of(Stage(here), name, seeds, first_only=first_only)


def seeds_of(stage: Stage, name: str, seeds: Sequence[int], *, first_only: bool = False) -> Found:
    begun, found = perf_counter(), Found(name)
    alone = stage.play(ALL[name], Deviations([]))
    for seed in seeds:
        _note(found, stage, name, Seeded(seed, alone.steps, alone.writes))
        if first_only and found.failures:
            break
    found.seconds = perf_counter() - begun
    return found


def _note(found: Found, stage: Stage, name: str, schedule: Deviations | Seeded) -> Result:
    result = stage.play(ALL[name], schedule)
    found.schedules += 1
    found.steps.append(result.steps)
    found.failures += bool(result.violations)
    for violation in result.violations:
        kind = kind_of(violation)
        if kind in found.failed:
            continue
        found.failed[kind] = str(schedule)
        if len(found.failed) <= _STORIES:
            found.failed[kind] = str(shrunk(schedule.given, partial(_still, stage, name, kind)))
    return result


def _still(stage: Stage, name: str, kind: str, schedule: Deviations) -> bool:
    return any(kind_of(each) == kind for each in stage.play(ALL[name], schedule).violations)


def exhausted(name: str, most: int, rule: str | None = None, *, first_only: bool = False) -> Found:
    """All schedules of a scenario with at most so many deviations. `first_only`: until one fails."""
    begun, found = perf_counter(), Found(name)
    with sabotage.applied(rule), installed() as here:
        stage = Stage(here)
        for _ in every(partial(_note, found, stage, name), most, max(1, len(ALL[name].rivals) - 1)):
            if first_only and found.failures:
                break
    found.seconds = perf_counter() - begun
    return found


def story(name: str, text: str, rule: str | None = None) -> Result:
    """One schedule, with who did what."""
    with sabotage.applied(rule), installed() as here:
        return Stage(here).play(ALL[name], Deviations([Deviation.parse(each) for each in text.split()]), keep=True)


def shares(names: Sequence[str], seed: int, schedules: int) -> Iterator[tuple[str, range]]:
    """So many schedules of all scenarios together, in shares; each scenario has as many."""
    each = -(-schedules // len(names))
    for begin in range(0, each, _SHARE):
        for name in names:
            first = seed * 10_000_000 + begin
            yield name, range(first, first + min(_SHARE, each - begin))


def pool(workers: int) -> ProcessPoolExecutor:
    return ProcessPoolExecutor(workers, mp_context=get_context("spawn"))
