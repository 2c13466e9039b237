"""What a pipeline cost, as tables for a terminal and as a JSON document."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

from writetime.monitoring.grids import as_lines, new_grid
from writetime.pipeline.costs import DayCost

NOTHING: Final = "No batch of these days has noted its cost: batches of this version do."
_SHOWN: Final = 20
"""Tables of a day in the text."""


def as_document(found: Sequence[DayCost]) -> dict[str, Any]:
    """Sizes in bytes, CPU in seconds, days in UTC."""
    return {"days": [day.to_document() for day in found]}


def as_text(found: Sequence[DayCost]) -> str:
    """The stages of each day, and its most expensive tables."""
    return "\n\n".join(_day(day) for day in found) or NOTHING


def _day(day: DayCost) -> str:
    stages = new_grid("stage", right=("CPU s", "requests", "objects", "MiB"))
    for cost in (*day.stages, day.all):
        numbers = f"{cost.cpu_seconds:.1f}", str(cost.requests), str(cost.objects), f"{cost.bytes / 2**20:.1f}"
        stages.add_row(cost.stage, *numbers)
    tables = new_grid("table", right=("CPU s", "own", "shared", "updates in", "events", "files", "MiB"))
    for table in day.tables[:_SHOWN]:
        seconds = (f"{seconds:.1f}" for seconds in (table.cpu_seconds, table.own, table.shared))
        tables.add_row(table.table, *seconds, *map(str, (table.updates, table.events, table.objects)), f"{table.bytes / 2**20:.1f}")
    more = [f"{len(day.tables) - _SHOWN} more tables; `--json` has them"] if len(day.tables) > _SHOWN else []
    return "\n".join([f"{day.day}: {day.batches} batches", as_lines(stages), "", as_lines(tables), *more])
