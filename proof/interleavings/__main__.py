"""`python -m proof.interleavings --seed 1 --schedules 1000`. Exit code 0: nothing was violated, or the sabotage was noticed."""

from __future__ import annotations

import argparse
import json
import os
import sys
from concurrent.futures import as_completed

from rich.console import Console
from rich.progress import Progress
from rich.table import Table

from proof.interleavings import run
from proof.interleavings.run import Found
from proof.interleavings.sabotage import RULES
from proof.interleavings.scenario import ALL

OUT = Console()


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument(
        "--schedules", type=int, default=1000, help="random ones, shared by the scenarios; with --sabotage, at most that of each"
    )
    parser.add_argument("--scenario", action="append", choices=sorted(ALL), help="only these")
    parser.add_argument("--exhaustive", type=int, metavar="DEVIATIONS", help="all schedules with at most so many deviations")
    parser.add_argument("--replay", metavar="SCHEDULE", help="one schedule of a scenario, as a failure names it, as a story")
    parser.add_argument("--sabotage", choices=["all", *RULES], help="leave out a fence: it has to be noticed")
    parser.add_argument("--workers", type=int, default=os.cpu_count() or 1)
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args(arguments)
    names = options.scenario or list(ALL)
    if options.replay is not None:
        return _replay(names[0], options.replay, options.sabotage)
    if options.sabotage is not None:
        return _sabotages(list(RULES) if options.sabotage == "all" else [options.sabotage], options.scenario, options)
    found = _play(names, options)
    if options.json:
        print(json.dumps([each.as_dict() for each in found.values()]))
    else:
        _show(found.values())
    return int(any(each.failures for each in found.values()))


def _play(names: list[str], options: argparse.Namespace) -> dict[str, Found]:
    found = {name: Found(name) for name in names}
    with run.pool(options.workers) as pool, Progress(console=Console(stderr=True)) as progress:
        if options.exhaustive is not None:
            work = [pool.submit(run.exhausted, name, options.exhaustive) for name in names]
        else:
            work = [pool.submit(run.share, name, seeds, None) for name, seeds in run.shares(names, options.seed, options.schedules)]
        bar = progress.add_task("schedules", total=len(work))
        for done in as_completed(work):
            found[done.result().scenario].add(done.result())
            progress.advance(bar)
    return found


def _show(found: object) -> None:
    table = Table("scenario", "schedules", "steps", "seconds", "failures")
    for each in found:  # type: ignore[attr-defined]
        steps = each.as_dict()["steps"]
        table.add_row(each.scenario, f"{each.schedules:,}", str(steps), f"{each.seconds:.0f}", str(each.failures))
    OUT.print(table)
    for each in found:  # type: ignore[attr-defined]
        for kind, schedule in each.failed.items():
            OUT.print(f"[bold]{each.scenario}[/bold]: {kind}\n  --scenario {each.scenario} --replay '{schedule}'", highlight=False)


def _replay(name: str, schedule: str, rule: str | None) -> int:
    result = run.story(name, schedule, rule)
    OUT.print("\n".join([*result.trace, "", *result.violations]), highlight=False, markup=False)
    return int(bool(result.violations))


def _sabotages(rules: list[str], names: list[str] | None, options: argparse.Namespace) -> int:
    """Play until each is noticed: at most so many random schedules of each scenario, or all with so many deviations."""
    unnoticed = 0
    table = Table("rule", "what is left out", "noticed by", "schedules", "what does not hold")
    seeds = range(options.seed * 10_000_000, options.seed * 10_000_000 + options.schedules)
    play, given = (run.share, seeds) if options.exhaustive is None else (run.exhausted, options.exhaustive)
    with run.pool(options.workers) as pool:
        for rule in rules:
            scenarios = names or RULES[rule].by or list(ALL)
            done = [pool.submit(play, name, given, rule, first_only=True) for name in scenarios]
            found = next((each.result() for each in as_completed(done) if each.result().failures), None)
            for each in done:
                each.cancel()
            played = sum(each.result().schedules for each in done if each.done() and not each.cancelled())
            unnoticed += found is None
            kind, schedule = next(iter(found.failed.items())) if found else ("", "")
            where = f"{found.scenario}: {schedule}" if found else "[red]nobody[/red]"
            table.add_row(rule, RULES[rule].what, where, str(played), kind)
            OUT.print(f"{rule}: {where}")
    OUT.print(table)
    return int(bool(unnoticed))


if __name__ == "__main__":
    sys.exit(main())
