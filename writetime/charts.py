"""Text tables for terminals and logs, and SVG charts for browsers, light and dark.

A chart is a list of lines: a name at the left, then colored cells. Must not know what the lines stand for.
"""

from __future__ import annotations

import io
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from html import escape
from typing import Final, Literal

State = Literal["good", "doubtful", "bad"]

_TEXT_WIDTH: Final = 140
_NAMES: Final = 260
_CELLS: Final = 720
_LINE: Final = 22
_STYLE: Final = (
    "text{font:13px system-ui,sans-serif;fill:#222}.b{fill:#e4e4e4}.good{fill:#2e8b57}.doubtful{fill:#e0a100}.bad{fill:#c62828}"
    "@media(prefers-color-scheme:dark){svg{background:#1b1b1b}text{fill:#ddd}.b{fill:#3a3a3a}}"
)


@dataclass(frozen=True, slots=True)
class Cell:
    """A part of a line: start and width as fractions of the line; `title` is the tooltip."""

    at: float
    width: float
    state: State
    title: str


@dataclass(frozen=True, slots=True)
class Line:
    """`remark` is shown if there are no cells."""

    name: str
    cells: Sequence[Cell]
    remark: str = ""


def svg(title: str, lines: Sequence[Line], *, styled: bool = True) -> str:
    """The chart as an SVG document; `styled=False` for a page that has its own style for the classes."""
    height = _LINE * (len(lines) + 2)
    drawn = [f'<text x="8" y="16">{escape(title)}</text>']
    for number, line in enumerate(lines, 1):
        drawn += _line(line, _LINE * number + 6)
    drawn.append(_legend(_LINE * (len(lines) + 1) + 6))
    size = f'width="{_NAMES + _CELLS + 16}" height="{height}" viewBox="0 0 {_NAMES + _CELLS + 16} {height}"'
    style = f"<style>{_STYLE}</style>" if styled else ""
    return f'<svg xmlns="http://www.w3.org/2000/svg" {size}>{style}\n{chr(10).join(drawn)}\n</svg>\n'


def _line(line: Line, y: int) -> list[str]:
    drawn = [
        f'<text x="8" y="{y + 12}">{escape(line.name)}</text>',
        f'<rect class="b" x="{_NAMES}" y="{y}" width="{_CELLS}" height="{_LINE - 6}"/>',
    ]
    for cell in line.cells:
        x, width = _NAMES + cell.at * _CELLS, max(cell.width * _CELLS, 0.8)
        place = f'x="{x:.2f}" y="{y}" width="{width:.2f}" height="{_LINE - 6}"'
        drawn.append(f'<rect class="{cell.state}" {place}><title>{escape(cell.title)}</title></rect>')
    if line.remark:
        drawn.append(f'<text x="{_NAMES + 6}" y="{y + 12}">{escape(line.remark[:100])}</text>')
    return drawn


def _legend(y: int) -> str:
    kinds = (("good", "in order"), ("doubtful", "cannot be said yet"), ("bad", "wrong"), ("b", "not looked at"))
    entries = [
        f'<rect class="{kind}" x="{_NAMES + 160 * at}" y="{y}" width="12" height="12"/>'
        f'<text x="{_NAMES + 160 * at + 18}" y="{y + 11}">{text}</text>'
        for at, (kind, text) in enumerate(kinds)
    ]
    return "".join(entries)


def text_table(headings: Sequence[str], rows: Iterable[Sequence[object]]) -> str:
    """A table without colors, as it also goes into logs; numbers are right-aligned."""
    from rich.box import SIMPLE
    from rich.console import Console
    from rich.table import Table

    listed = [list(row) for row in rows]
    grid = Table(box=SIMPLE, pad_edge=False)
    for at, heading in enumerate(headings):
        numbers = bool(listed) and all(isinstance(row[at], int | float) for row in listed)
        grid.add_column(heading, justify="right" if numbers else "left", overflow="fold")
    for row in listed:
        grid.add_row(*map(str, row))
    out = io.StringIO()
    Console(file=out, width=_TEXT_WIDTH, no_color=True, markup=False, highlight=False).print(grid)
    return "\n".join(line.rstrip() for line in out.getvalue().splitlines() if line.strip())
