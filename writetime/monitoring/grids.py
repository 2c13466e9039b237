"""Tables for a terminal."""

from __future__ import annotations

import io
from collections.abc import Iterable
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from rich.table import Table

_WIDTH: Final = 160


def new_grid(*left: str, right: Iterable[str]) -> Table:
    """An empty table with these headings, aligned to the left and to the right."""
    from rich.box import SIMPLE
    from rich.table import Table

    grid = Table(box=SIMPLE, pad_edge=False)
    for heading in left:
        grid.add_column(heading, no_wrap=True)
    for heading in right:
        grid.add_column(heading, justify="right", overflow="fold")
    return grid


def as_lines(grid: Table) -> str:
    """The table without colours, since it is also written to logs."""
    from rich.console import Console

    out = io.StringIO()
    Console(file=out, width=_WIDTH, no_color=True, markup=False, highlight=False).print(grid)
    return "\n".join(line.rstrip() for line in out.getvalue().splitlines() if line.strip())
