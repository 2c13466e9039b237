"""Runs cases in worker processes, monitors them, and reports the results.

Strategy: worker w of n takes every n-th case and records the current one in shared memory. If a worker is
killed by the kernel, by its memory limit or by the watchdog, that number identifies the case, and a new
worker continues with the next. A case depends on its numbers only, so every failure can be repeated.
"""

from __future__ import annotations

import contextlib
import faulthandler
import json
import multiprocessing
import os
import resource
import time
import traceback
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any

from proof.fuzz.cases import make
from proof.fuzz.checks import Broken, Checker, most_unpacked
from proof.fuzz.corpus import Corpus, corpus
from proof.fuzz.twins import TwinsDiffer

MOST_SECONDS = 20.0
"""After so long in one case a worker hangs. A case takes about a millisecond; the machine may be busy."""
MOST_CPU_SECONDS = 2.0
"""Of the processor's time, for one case: no waiting is in it."""
MOST_CPU_SECONDS_PER_MB = 0.5
"""And for each MB that a packed case may unpack to: the readable walk takes a byte at a time where it looks
for a marker.
"""
MOST_MEMORY = 1 << 30
"""Bytes of address space that a worker may add to what it begins with."""
MOST_FAILURES = 20
_POLL = 0.2
_Context = multiprocessing.get_context("fork")


@dataclass(frozen=True, slots=True)
class Failure:
    """A case that failed; `kind` is broken, an exception's name, crash or hang."""

    seed: int
    number: int
    kind: str
    message: str
    how: list[str]
    start: str


@dataclass(slots=True)
class Outcome:
    """The result of a run."""

    seed: int
    cases: int = 0
    seconds: float = 0.0
    seen: Counter[str] = field(default_factory=Counter)
    damage: Counter[str] = field(default_factory=Counter)
    failures: list[Failure] = field(default_factory=list)

    def as_dict(self) -> dict[str, Any]:
        return {
            "seed": self.seed,
            "cases": self.cases,
            "seconds": round(self.seconds, 1),
            "cases_per_second": round(self.cases / self.seconds) if self.seconds else 0,
            "failures": [asdict(failure) for failure in self.failures],
            "damage": dict(sorted(self.damage.items())),
            "seen": dict(sorted(self.seen.items())),
        }


def run_here(seed: int, first: int, count: int, checker: Checker | None = None) -> Outcome:
    """Run cases first .. first+count-1 in this process."""
    material = corpus()
    checker = checker or Checker(material)
    outcome = Outcome(seed)
    begun = time.monotonic()
    for number in range(first, first + count):
        _one(material, checker, outcome, number)
    _last(checker, outcome)
    outcome.seconds = time.monotonic() - begun
    outcome.seen = checker.seen
    return outcome


def _one(material: Corpus, checker: Checker, outcome: Outcome, number: int) -> None:
    case = make(material, outcome.seed, number)
    outcome.cases += 1
    outcome.damage.update(case.how)
    begun = time.process_time()
    try:
        checker.check(case)
        allowed = MOST_CPU_SECONDS + MOST_CPU_SECONDS_PER_MB * most_unpacked(case) / 1e6
        if (spent := time.process_time() - begun) > allowed:
            raise Broken(f"{spent:.1f} s of processor time over {len(case.content)} bytes")
    except Exception as error:  # noqa: BLE001 - whatever it is, it is what was looked for
        outcome.failures.append(_failed(material, outcome.seed, number, error))


def _last(checker: Checker, outcome: Outcome) -> None:
    """Check what is still pooled."""
    try:
        checker.finish()
    except Exception as error:  # noqa: BLE001 - as above
        outcome.failures.append(_failed(corpus(), outcome.seed, outcome.cases - 1, error))


def _failed(material: Corpus, seed: int, number: int, error: Exception) -> Failure:
    if isinstance(error, TwinsDiffer):
        number = error.number
    known = isinstance(error, Broken | TwinsDiffer)
    message = str(error) if known else "".join(traceback.format_exception(error)[-4:])
    case = make(material, seed, number)
    return Failure(seed, number, "broken" if known else type(error).__name__, message, list(case.how), case.seed.name)


@dataclass(slots=True)
class _Worker:
    """A process, its current case, the oldest pooled case, and since when."""

    process: BaseProcess
    at: Any
    oldest: Any
    since: Any


def run(seed: int, cases: int, workers: int, progress: Callable[[int, int], None] = lambda done, failures: None) -> Outcome:
    """Cases 0 .. cases-1 in `workers` processes; `progress` is told how many are done and how many failed."""
    material = corpus()
    Checker(material).check(make(material, seed, 0))  # compile and load before the processes fork
    outcome, begun = Outcome(seed), time.monotonic()
    results = _Context.SimpleQueue()
    running = [_started(results, seed, index, cases, workers, index) for index in range(min(workers, cases))]
    finished = 0
    while finished < len(running):
        while not results.empty():
            _take(outcome, results.get())
        finished = 0
        for index, worker in enumerate(running):
            if worker.process.is_alive() and time.monotonic() - worker.since.value > MOST_SECONDS:
                worker.process.kill()
                worker.process.join()
                outcome.failures.append(_died(material, seed, worker, workers, "hang", f"no end after {MOST_SECONDS} s"))
            elif worker.process.is_alive():
                continue
            elif worker.process.exitcode == 0:
                finished += 1
                continue
            else:
                outcome.failures.append(_died(material, seed, worker, workers, "crash", f"exit code {worker.process.exitcode}"))
            running[index] = _started(results, seed, worker.at.value + workers, cases, workers, index)
        progress(outcome.cases, len(outcome.failures))
        if len(outcome.failures) >= MOST_FAILURES:
            for worker in running:
                worker.process.kill()
            break
        time.sleep(_POLL)
    for worker in running:
        worker.process.join()
    while not results.empty():
        _take(outcome, results.get())
    outcome.seconds = time.monotonic() - begun
    return outcome


def _started(results: Any, seed: int, first: int, cases: int, step: int, index: int) -> _Worker:
    at, oldest = (_Context.Value("q", first, lock=False) for _ in range(2))
    since = _Context.Value("d", time.monotonic(), lock=False)
    arguments = (results, seed, range(first, cases, step), at, oldest, since)
    process = _Context.Process(target=_work, args=arguments, name=f"fuzz-{index}", daemon=True)
    process.start()
    return _Worker(process, at, oldest, since)


def _work(results: Any, seed: int, numbers: Sequence[int], at: Any, oldest: Any, since: Any) -> None:
    faulthandler.enable()
    _limit_memory()
    material, outcome = corpus(), Outcome(seed)
    checker = Checker(material)
    reported = time.monotonic()
    for number in numbers:
        at.value, since.value = number, time.monotonic()
        put_off = checker.twins.oldest
        oldest.value = number if put_off is None else put_off
        _one(material, checker, outcome, number)
        if outcome.failures or since.value - reported > 1:
            outcome.seen = checker.seen
            results.put(outcome)
            outcome, reported = Outcome(seed), since.value
            checker.seen = Counter()
    _last(checker, outcome)
    outcome.seen = checker.seen
    results.put(outcome)


def _limit_memory() -> None:
    used = int(Path("/proc/self/statm").read_text().split()[0]) * os.sysconf("SC_PAGESIZE")
    with contextlib.suppress(ValueError):
        resource.setrlimit(resource.RLIMIT_AS, (used + MOST_MEMORY, resource.RLIM_INFINITY))


def _take(outcome: Outcome, part: Outcome) -> None:
    outcome.cases += part.cases
    outcome.seen += part.seen
    outcome.damage += part.damage
    outcome.failures += part.failures


def _died(material: Corpus, seed: int, worker: _Worker, step: int, kind: str, message: str) -> Failure:
    """The failure that ended a worker. What it had put off is gone through one by one; if none of it dies
    alone, it is the last.
    """
    number = worker.at.value
    if kind == "crash":
        numbers = range(worker.oldest.value, number + 1, step)
        number = next((each for each in numbers if _dies_alone(seed, each)), number)
    case = make(material, seed, number)
    return Failure(seed, number, kind, message, list(case.how), case.seed.name)


def _dies_alone(seed: int, number: int) -> bool:
    process = _Context.Process(target=run_here, args=(seed, number, 1), daemon=True)
    process.start()
    process.join(MOST_SECONDS)
    if process.is_alive():
        process.kill()
        process.join()
    return process.exitcode != 0


def keep(failure: Failure, folder: Path) -> Path:
    """Write the failed case's bytes and facts; the path of the bytes."""
    folder.mkdir(parents=True, exist_ok=True)
    case = make(corpus(), failure.seed, failure.number)
    path = folder / f"seed-{failure.seed}-case-{failure.number}.log"
    path.write_bytes(case.content)
    path.with_suffix(".json").write_text(json.dumps({**asdict(failure), "synced": case.synced}, indent=1), encoding="utf-8")
    return path
