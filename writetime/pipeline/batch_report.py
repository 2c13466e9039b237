"""The outcome of a batch as text: the accounting of partition updates by table. Programs read the document
itself.
"""

from __future__ import annotations

import io
from collections import Counter
from collections.abc import Iterable, Iterator
from datetime import datetime
from typing import TYPE_CHECKING, Final

from writetime.pipeline.documents import Accounting, Sealed, Void, total

if TYPE_CHECKING:
    from rich.table import Table

_CLASSES: Final = ("updates_in", "applied", "duplicate", "superseded", "not_ours", "quarantined", "events")
_WIDTH: Final = 140
_TOTAL: Final = "all"
_NAMED: Final = 100
"""Maximum number of problems that are listed individually."""


def batch_text(sealed: Sealed) -> str:
    """One batch: its accounting as a table, rejected tables and snapshots, and quarantined ranges."""
    if sealed.void is not None:
        return void_text(sealed.number, sealed.void, sealed.sealed_at)
    lines = [f"batch {sealed.number} ({sealed.kind}) sealed: {len(sealed.segments)} segments, {sealed.events} events"]
    if sealed.accounting:
        lines.append(_text(_accounting(sealed.accounting)))
    if ties := total(sealed.accounting).ties:
        lines.append(f"{ties} cells won against one of another expiry by the rule of Cassandra 3.11: the cluster may differ")
    lines += [f"rejected schema snapshot {name}: {message}" for name, message in sealed.snapshots_refused.items()]
    lines += [f"rejected table {table.table}: {table.reason}" for table in sealed.refused]
    for outcome in sealed.segments:
        if outcome.differs:
            lines.append(f"ALARM: {outcome.object} does not begin with its parts; the whole file was ingested")
        if outcome.torn:
            lines.append(f"not synced before its node crashed: {outcome.torn} bytes at the end of {outcome.object}")
        lines += [f"resolved {p.object} at {p.position}, quarantined by batch {p.batch}" for p in outcome.settled]
    return "\n".join([*lines, *_problems(sealed)])


def void_text(number: int, void: Void, at: datetime) -> str:
    """A voided batch: the reason, and the operator."""
    return f"batch {number} was voided by {void.by} at {at:%Y-%m-%d %H:%M:%S}Z: {void.reason}"


def _problems(sealed: Sealed) -> Iterator[str]:
    """The first problems, and the totals by kind and table."""
    found = [(outcome.object, problem) for outcome in sealed.segments for problem in outcome.problems]
    for name, p in found[:_NAMED]:
        many = f", {p.frames} frames" if p.frames > 1 else ""
        yield f"quarantined {name} at {p.position}{many}: {p.message}"
    counts: Counter[tuple[str, str]] = Counter()
    for _, p in found:
        counts[p.kind, p.table or ""] += p.frames
    if len(found) > 1:
        yield from (f"{kind}{' of ' if table else ''}{table}: {count} in quarantine" for (kind, table), count in sorted(counts.items()))


def batches_text(batches: Iterable[Sealed]) -> str:
    """Several batches, one line each, and the reasons of voided ones."""
    batches = list(batches)
    grid = _grid("batch", "kind", "sealed at", "segments", left=3)
    for sealed in batches:
        kind = sealed.kind if sealed.void is None else "void"
        about = (str(sealed.number), kind, f"{sealed.sealed_at:%Y-%m-%d %H:%M:%S}Z", str(len(sealed.segments)))
        grid.add_row(*about, *_numbers(total(sealed.accounting)))
    voids = [void_text(sealed.number, sealed.void, sealed.sealed_at) for sealed in batches if sealed.void is not None]
    return "\n".join([_text(grid), *voids])


def _accounting(accounts: list[Accounting]) -> Table:
    grid = _grid("table", left=1)
    for account in accounts:
        grid.add_row(account.table, *_numbers(account))
    if len(accounts) > 1:
        grid.add_section()
        grid.add_row(_TOTAL, *_numbers(total(accounts)))
    return grid


def _numbers(account: Accounting) -> list[str]:
    return [str(getattr(account, name)) for name in _CLASSES]


def _grid(*headings: str, left: int) -> Table:
    from rich.box import SIMPLE
    from rich.table import Table

    grid = Table(box=SIMPLE, pad_edge=False)
    for number, heading in enumerate((*headings, *(name.replace("_", " ") for name in _CLASSES))):
        grid.add_column(heading, justify="left" if number < left else "right", overflow="fold")
    return grid


def _text(grid: Table) -> str:
    """The table without colours: it is logged as well."""
    from rich.console import Console

    out = io.StringIO()
    Console(file=out, width=_WIDTH, no_color=True, markup=False, highlight=False).print(grid)
    return "\n".join(line.rstrip() for line in out.getvalue().splitlines() if line.strip())
