"""Findings of `verify` as tables for people: one of segments, one of what is in them. Knows rich, and no bytes."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from typing import Final

from rich import box
from rich.console import Console
from rich.table import Table

from writetime.commitlog.verify import Findings, Verdict

_STYLES: Final[dict[Verdict, str]] = {"good": "green", "undecodable": "yellow", "damaged": "bold red"}
_WIDEST: Final = 10_000


def show_findings(all_findings: Iterable[Findings]) -> None:
    """Print both tables to stdout."""
    all_findings = list(all_findings)
    console = Console(highlight=False, markup=False)
    if not console.is_terminal:
        # A file has no width, and nobody wants numbers cut off in one.
        console = Console(highlight=False, markup=False, width=_WIDEST)
    console.print(_segments(all_findings))
    console.print(_contents(all_findings))


def _segments(all_findings: Iterable[Findings]) -> Table:
    table = Table(box=box.SIMPLE)
    for heading in ("segment", "verdict", "version", "codec"):
        table.add_column(heading, overflow="fold")
    for heading in ("bytes", "sections", "frames", "ends at"):
        table.add_column(heading, justify="right")
    for heading in ("ending", "idx"):
        table.add_column(heading, overflow="fold")
    table.add_column("damaged", justify="right")
    table.add_column("not decoded", justify="right")
    for each in all_findings:
        numbers = map(str, (each.size, each.sections, each.frames, each.end))
        trouble = (str(len(each.problems)), str(len(each.failures)))
        table.add_row(
            each.name, each.verdict, str(each.version), each.codec, *numbers, each.ending, each.idx, *trouble, style=_STYLES[each.verdict]
        )
    return table


def _contents(all_findings: Iterable[Findings]) -> Table:
    updates: Counter[str] = Counter()
    unknown: Counter[str] = Counter()
    captured: set[str] = set()
    for each in all_findings:
        updates += each.updates
        unknown += each.unknown_tables
        captured |= each.captured
    table = Table(box=box.SIMPLE)
    table.add_column("table", overflow="fold")
    table.add_column("cdc")
    table.add_column("updates", justify="right")
    for name, count in sorted(updates.items(), key=lambda item: (item[0] not in captured, item[0])):
        table.add_row(name, "yes" if name in captured else "no", str(count))
    for name, count in sorted(unknown.items()):
        table.add_row(f"unknown table {name} (mutations)", "?", str(count), style="yellow")
    return table
