"""The curves vary one thing at a time, and are measured in the whole path: small, so that the figures mean nothing."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from benchmarks import curves, judge_page
from benchmarks.curves import Shape
from tools import ROOT
from writetime.cassandra.commitlog.mutation import decode_mutation
from writetime.cassandra.schema.model import Schema


@pytest.mark.parametrize(
    ("shape", "partitions", "deleted"),
    [
        (Shape(rows=200, tables=2), 200, range(1)),
        (Shape(rows=200, hot=0.5), 101, range(1)),
        (Shape(rows=200, hot=1.0, columns=2), 1, range(1)),
        (Shape(rows=200, deletes=0.5), 200, range(60, 140)),
    ],
)
def test_a_batch_has_the_rows_of_its_shape(shape: Shape, partitions: int, deleted: range) -> None:
    tables = [curves.table_of(number, shape.columns) for number in range(shape.tables)]
    schema = Schema(tables={table.id: table for table in tables})
    (updates, first) = ([decode_mutation(body, schema).updates[0] for body in curves.bodies_of(tables, shape, number)] for number in (1, 0))
    rows = [row for update in updates for row in update.rows]
    assert len(rows) == len(first) == shape.rows
    assert len({(update.table_id, update.key) for update in updates}) == partitions
    assert sum(row.deletion is not None for row in rows) in deleted
    assert all(row.deletion is None for update in first for row in update.rows)
    assert {len(cell.value) for row in rows for cell in row.cells} == {shape.bytes}
    assert {len(row.cells) for row in rows if row.cells} == {shape.columns}


def test_the_page_draws_a_line_for_each_figure_of_a_point() -> None:
    points = [{"value": value, "seconds": 2.0, "ingest": 1.0, "cpu": 1.5} for value in (1, 20)]
    page = judge_page.curves_page({"batch": 5, "cores": 2, "curves": {"tables": {"what": "tables touched", "points": points}}})
    assert page.count("<polyline") == 3
    assert "tables touched" in page


@pytest.mark.thorough
@pytest.mark.kafka
@pytest.mark.spark
def test_the_curves_are_measured(tmp_path: Path) -> None:
    small = ["--batch", "100", "--passes", "1", "--commits", "2", "--rows", "300", "600", "--changed", "60", "--out", str(tmp_path)]
    command = [sys.executable, "-m", "benchmarks.curves", "--only", "hot-partition", "batches", "table-size", *small, "--json"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-3000:]
    document = json.loads(done.stdout.splitlines()[-1])
    assert {name: len(curve["points"]) for name, curve in document["curves"].items()} == {"hot-partition": 3, "batches": 2, "table-size": 2}
    assert document["ratio_seconds"] > 0
    assert (tmp_path / "growth.html").read_text().count("<svg") == 3
