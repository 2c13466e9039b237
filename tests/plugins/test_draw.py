"""Numbers to shapes: that they are where they belong, at the edges too."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from tests.monitoring import bucket
from writetime.monitoring.nodes import coverage
from writetime.pipeline.batch_history import BatchFacts, Taken

PLUGINS = Path(__file__).resolve().parents[2] / "plugins"


@pytest.fixture(scope="session")
def draw() -> Iterator[Any]:
    sys.path.insert(0, str(PLUGINS))
    try:
        import writetime_page_draw

        yield writetime_page_draw
    finally:
        sys.path.remove(str(PLUGINS))


def facts(number: int, *, newest: float, oldest: float, frames: int = 1) -> BatchFacts:
    sealed = bucket.minute(number)
    taken = Taken(2, frames, 1, 0, sealed - timedelta(seconds=oldest), sealed - timedelta(seconds=newest))
    node = bucket.NODES[0]
    return BatchFacts(number, "ingest", sealed, sealed, 2, 0, 0, (), {node: taken}, {(node, sealed): (1, frames)})


def test_the_lag_lies_between_the_ticks(draw: Any) -> None:
    plot = draw.lag_plot([facts(2, newest=30, oldest=60), facts(1, newest=0, oldest=45)])
    assert [text for _, text in plot.ticks] == ["0 s", "30 s", "60 s"]
    (bottom, middle, top) = (y for y, _ in plot.ticks)
    assert [(dot.y, dot.title) for dot in plot.dots] == [(bottom, "batch 1: 0 s to 45 s"), (middle, "batch 2: 30 s to 60 s")]
    assert plot.dots[0].x < plot.dots[1].x <= plot.width
    assert f",{top:.1f}" in plot.band


@pytest.mark.parametrize("count", [0, 1])
def test_a_line_needs_two_batches(draw: Any, count: int) -> None:
    assert draw.lag_plot([facts(1, newest=0, oldest=1)] * count) is None


@pytest.mark.parametrize(("newest", "oldest"), [(0, 0), (-500, -400), (10**9, 10**10)])
def test_clocks_that_are_wrong_break_nothing(draw: Any, newest: float, oldest: float) -> None:
    plot = draw.lag_plot([facts(1, newest=newest, oldest=oldest)] * 2)
    assert all(0 <= dot.y <= plot.height for dot in plot.dots)


def test_the_heat_map_grades_by_frames(draw: Any) -> None:
    found = draw.heat_map(
        coverage([bucket.NODES[0]], [facts(n, newest=0, oldest=0, frames=f) for n, f in ((1, 1000), (2, 10), (3, 0))]), {}
    )
    assert [cell.kind for cell in found.cells] == ["level5", "level1", "level1"]
    assert draw.heat_map(coverage(bucket.NODES, []), {}) is None


def test_bars_stand_on_the_ground(draw: Any) -> None:
    assert draw.bars([]) == draw.bars([0, 0]) == ""
    assert draw.bars([0, 1, 2], height=20).count("M") == 2
    assert "v-20.0" in draw.bars([0, 1, 2], height=20)
    assert draw.bars([1] * 100).count("M") == 40
