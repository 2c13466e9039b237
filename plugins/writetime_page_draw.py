"""Coordinates of the page's charts: the lag plot, the heat maps, the bars in tables. The templates write the
SVG, and the style sheet has the colours."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta

from writetime.monitoring.checks import Completeness
from writetime.monitoring.durations import span
from writetime.monitoring.nodes import Coverage
from writetime.pipeline.batch_history import BatchFacts
from writetime.storage import layout

_LEVELS = 5
_NICE = (1, 2, 5, 10, 20, 30, 60, 120, 300, 600, 1800, 3600, 7200, 14400, 43200, 86400, 7 * 86400, 30 * 86400, 365 * 86400)


@dataclass(frozen=True, slots=True)
class Dot:
    """A batch in the lag plot."""

    x: float
    y: float
    title: str


@dataclass(frozen=True, slots=True)
class Plot:
    """`band`: points of the polygon between the lags of newest and oldest segment; `line`: those of the
    newest; `ticks`: (y, text)."""

    width: int
    height: int
    band: str
    line: str
    dots: tuple[Dot, ...]
    ticks: tuple[tuple[float, str], ...]
    first: str
    last: str


def lag_plot(batches: Sequence[BatchFacts], *, width: int = 960, height: int = 180) -> Plot | None:
    """Seconds from the completion of a segment to the seal of its batch, over seal time. None with fewer than
    two batches."""
    found = [(batch, batch.lag) for batch in reversed(batches) if batch.lag is not None]
    if len(found) < 2:
        return None
    begin, end = found[0][0].sealed_at, found[-1][0].sealed_at
    top = _round_up(max(lag[1] for _, lag in found if lag))
    left, right, above, below = 56, 12, 10, 24

    def x(moment: datetime) -> float:
        return left + (width - left - right) * ((moment - begin) / (end - begin) if end > begin else 1.0)

    def y(seconds: float) -> float:
        return above + (height - above - below) * (1 - max(0.0, seconds) / top)

    lower = [(x(batch.sealed_at), y(lag[0])) for batch, lag in found if lag]
    upper = [(x(batch.sealed_at), y(lag[1])) for batch, lag in found if lag]
    return Plot(
        width=width,
        height=height,
        band=_points([*upper, *reversed(lower)]),
        line=_points(lower),
        dots=tuple(
            Dot(x(batch.sealed_at), y(lag[0]), f"batch {batch.number}: {span(lag[0])} to {span(lag[1])}") for batch, lag in found if lag
        ),
        ticks=tuple((y(top * part), span(top * part)) for part in (0, 0.5, 1)),
        first=f"{begin:%m-%d %H:%M}Z",
        last=f"{end:%m-%d %H:%M}Z",
    )


@dataclass(frozen=True, slots=True)
class Cell:
    """One node in one time step. `kind`: `level0` to `level5`, or `gap`."""

    x: int
    y: int
    kind: str
    title: str
    node: str
    minute: str


@dataclass(frozen=True, slots=True)
class Heat:
    """The heat map. `labels`: (y, node), `times`: (x, text)."""

    width: int
    height: int
    size: int
    cells: tuple[Cell, ...]
    labels: tuple[tuple[int, str], ...]
    times: tuple[tuple[int, str], ...]
    minutes: int


def heat_map(coverage: Coverage, addresses: dict[layout.NodeName, str]) -> Heat | None:
    """Frames by node and time. None if there are none."""
    if not coverage.starts:
        return None
    left, size = 130, 16
    cells, labels = [], []
    for row, node in enumerate(coverage.nodes):
        name = addresses.get(node) or node.host_id[:13]
        labels.append((row * size + 12, f"{node.datacenter} {name}"[:20]))
        for column, (segments, frames) in enumerate(coverage.cells[node]):
            gap = coverage.gap(node, column)
            kind = "gap" if gap else f"level{_level(frames, segments, coverage.most)}"
            start = coverage.starts[column]
            title = (
                f"{name}, {start:%m-%d %H:%M}Z: {'no segments, but other nodes have' if gap else f'{segments} segments, {frames} frames'}"
            )
            cells.append(Cell(left + column * size, row * size, kind, title, node.host_id, f"{start:%Y-%m-%dT%H:%M}"))
    height = size * len(coverage.nodes)
    times = tuple((left + column * size, f"{coverage.starts[column]:%H:%M}") for column in range(0, len(coverage.starts), 6))
    width = left + size * len(coverage.starts) + 24
    return Heat(width, height + 20, size - 2, tuple(cells), tuple(labels), times, coverage.minutes)


def completeness_map(held: Completeness) -> Heat:
    """The share of expected mutations that each replica's log contained. `level5`: all; `level0`: none were
    expected."""
    left, size = 130, 16
    cells, labels = [], []
    for row, node in enumerate(held.nodes):
        labels.append((row * size + 12, node.node[:20]))
        for column, (expected, there) in enumerate(zip(node.expected, node.held, strict=True)):
            start = held.start + timedelta(minutes=column * held.minutes)
            kind = "level0" if not expected else "level5" if there == expected else "gap" if not there else _part(there / expected)
            title = f"{node.node}, {start:%m-%d %H:%M}Z: " + (f"{there} of {expected} mutations" if expected else "no writes")
            cells.append(Cell(left + column * size, row * size, kind, title, node.node, f"{start:%Y-%m-%dT%H:%M}"))
    columns = len(held.nodes[0].expected) if held.nodes else 0
    times = tuple(
        (left + column * size, f"{held.start + timedelta(minutes=column * held.minutes):%H:%M}") for column in range(0, columns, 6)
    )
    return Heat(left + size * columns + 24, size * len(held.nodes) + 20, size - 2, tuple(cells), tuple(labels), times, held.minutes)


def _part(share: float) -> str:
    """A level below 5, which is for complete steps only."""
    return f"level{min(_LEVELS - 1, max(1, math.ceil(share * (_LEVELS - 1))))}"


def bars(numbers: Sequence[int], *, width: int = 120, height: int = 22) -> str:
    """The SVG path of bars for the newest 40 numbers."""
    shown = list(numbers)[-40:]
    most = max(shown, default=0)
    if most == 0:
        return ""
    step = width / 40
    parts = []
    for index, number in enumerate(shown):
        if number:
            tall = max(1.0, height * number / most)
            parts.append(f"M{index * step:.1f} {height}v{-tall:.1f}h{step - 0.6:.1f}v{tall:.1f}z")
    return "".join(parts)


def _level(frames: int, segments: int, most: int) -> int:
    """On a square-root scale, which also shows differences between quiet nodes. A segment without frames has
    level 1."""
    if not segments:
        return 0
    return max(1, math.ceil(_LEVELS * math.sqrt(frames / most))) if most else 1


def _round_up(seconds: float) -> float:
    return float(next((nice for nice in _NICE if nice >= seconds), math.ceil(seconds)))


def _points(points: Sequence[tuple[float, float]]) -> str:
    return " ".join(f"{x:.1f},{y:.1f}" for x, y in points)
