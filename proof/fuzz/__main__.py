"""Damages segments in many ways and checks that no invalid data is accepted and nothing crashes, hangs or
exhausts memory.

python -m proof.fuzz --cases 1000000 --workers 2        what `make fuzz` runs
python -m proof.fuzz --seed 1 --only 4711               repeat one case
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
from rich.table import Table

from proof.fuzz import run as runner
from tools import ROOT

KEPT = ROOT / "var" / "fuzz"


def main(
    cases: Annotated[int, typer.Option(help="How many cases.")] = 1_000_000,
    seed: Annotated[int, typer.Option(help="What the cases are made from.")] = 1,
    workers: Annotated[int, typer.Option(help="Processes.")] = 2,
    only: Annotated[int | None, typer.Option(help="Run this one case, in this process.")] = None,
    as_json: Annotated[Path | None, typer.Option("--json", help="Write the result there, too.")] = None,
    kept: Annotated[Path, typer.Option(help="Where failed cases go.")] = KEPT,
) -> None:
    """Run the cases and print what came of them. Exit code 1 if anything failed."""
    console = Console(highlight=False)
    outcome = _with_progress(console, seed, cases, workers) if only is None else runner.run_here(seed, only, 1)
    for failure in outcome.failures:
        path = runner.keep(failure, kept)
        console.print(f"[red]case {failure.number}[/] of seed {seed}: {failure.kind} ({', '.join(failure.how)}, from {failure.start})")
        console.print(failure.message, markup=False)
        console.print(f"  kept as {path}; again: python -m proof.fuzz --seed {seed} --only {failure.number}", markup=False)
    _show(console, outcome)
    if as_json is not None:
        as_json.write_text(json.dumps(outcome.as_dict(), indent=1), encoding="utf-8")
    raise typer.Exit(1 if outcome.failures else 0)


def _with_progress(console: Console, seed: int, cases: int, workers: int) -> runner.Outcome:
    columns = (
        TextColumn("fuzzing"),
        BarColumn(),
        MofNCompleteColumn(),
        TextColumn("{task.fields[failures]} failed"),
        TimeRemainingColumn(),
    )
    with Progress(*columns, console=console, refresh_per_second=1) as bar:
        task = bar.add_task("", total=cases, failures=0)
        return runner.run(seed, cases, workers, lambda done, failed: bar.update(task, completed=done, failures=failed))


def _show(console: Console, outcome: runner.Outcome) -> None:
    result = outcome.as_dict()
    for title, counts in (("damage", result["damage"]), ("what came of it", result["seen"])):
        table = Table("what", "times", title=title)
        table.columns[1].justify = "right"
        for name, count in counts.items():
            table.add_row(name, f"{count:,}")
        console.print(table)
    line = f"{result['cases']:,} cases of seed {outcome.seed} in {result['seconds']:,} s ({result['cases_per_second']:,} a second)"
    console.print(f"{line}: {len(outcome.failures)} failed")


if __name__ == "__main__":
    typer.run(main)
