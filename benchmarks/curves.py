"""How a batch's cost grows with one thing at a time, as curves: `make bench NAME=growth`, or `python -m
benchmarks.curves [--only columns …] [--json]`.

Strategy: tables of one key, one clustering column, and texts are written by batches of the same number of rows in the
whole path (`whole.Pipeline`: bucket, tables, state, Kafka). For each value of a dimension, a first batch inserts
all rows, and the next ones, which are measured, change them. Everything else is as in `Shape`. Table sizes are
measured as by `growth.py`, without Kafka. The curves go to build/growth.json and build/growth.html.
"""

from __future__ import annotations

import argparse
import json
import logging
import random
import statistics
import sys
import tempfile
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import structlog
from rich.console import Console
from rich.table import Table as Grid

from benchmarks import growth, judge_page, whole
from benchmarks.batch import log_of
from benchmarks.figures import Found
from benchmarks.judge import Bench, Session, Size, session_of
from benchmarks.report import report
from tests.cassandra.schema.examples import create_keyspace, create_table
from tools import ROOT
from tools.console import say
from writetime.cassandra.commitlog.encode import encode_mutation
from writetime.cassandra.model import Cell, DeletionTime, Liveness, Mutation, PartitionUpdate, Row
from writetime.cassandra.schema.model import Column, Schema, Table
from writetime.cassandra.schema.system_tables import TABLES

KEYSPACE = "curves"
FOLDER = ROOT / "build"
_WRITTEN_AT = 1_750_000_000_000_000
_SEGMENT_BYTES = 128 << 20
_SMALL = 1000


@dataclass(frozen=True)
class Shape:
    """What the batches write: rows over so many tables; columns of so many bytes; shares of deleted rows, and of rows in
    one partition.
    """

    rows: int = 20_000
    tables: int = 1
    columns: int = 4
    bytes: int = 50
    deletes: float = 0.0
    hot: float = 0.0
    replicas: int = 1


DIMENSIONS: dict[str, tuple[str, tuple[Shape, ...], Callable[[Shape], float]]] = {
    "tables": ("tables touched", tuple(Shape(tables=count) for count in (1, 20, 200)), lambda shape: shape.tables),
    "columns": ("columns", tuple(Shape(columns=count) for count in (2, 10, 100)), lambda shape: shape.columns),
    "row-size": ("bytes a row", tuple(Shape(bytes=size // 4) for size in (100, 1000, 10_000)), lambda shape: shape.columns * shape.bytes),
    "deletes": ("share of deletes", tuple(Shape(deletes=share) for share in (0.0, 0.1, 0.5)), lambda shape: shape.deletes),
    "hot-partition": ("share of rows in one partition", tuple(Shape(hot=share) for share in (0.0, 0.5, 1.0)), lambda shape: shape.hot),
    "replicas": ("replicas", tuple(Shape(replicas=count) for count in (1, 3, 5)), lambda shape: shape.replicas),
}
SIZES, BATCHES = "table-size", "batches"
"""Dimensions that are measured in other ways: rows of the table, and batches since the last compaction."""


def main(arguments: list[str]) -> int:
    names = (SIZES, *DIMENSIONS, BATCHES)
    parser = argparse.ArgumentParser(prog="python -m benchmarks.curves", description=__doc__.partition("\n\n")[0])
    parser.add_argument("--only", nargs="+", choices=names, metavar="NAME", default=names, help=f"dimensions: {', '.join(names)}")
    parser.add_argument("--batch", type=int, default=20_000, help="rows of a batch (default: 20,000)")
    parser.add_argument("--passes", type=int, default=3, help="measured batches of each point (default: 3)")
    parser.add_argument("--rows", type=int, nargs="+", default=list(growth.SIZES), help="table sizes (default: 1 and 10 million)")
    parser.add_argument("--changed", type=int, default=growth.CHANGED, help="changed rows of a batch to these (default: 100,000)")
    parser.add_argument("--commits", type=int, default=120, help="batches of the last curve (default: 120)")
    parser.add_argument("--cores", type=int, default=2, help="cores that Spark may use (default: 2)")
    parser.add_argument("--buckets", type=int, default=4, help="key buckets, which are state shards, of a table (default: 4)")
    parser.add_argument("--out", type=Path, default=FOLDER, help="folder of growth.json and growth.html (default: build)")
    parser.add_argument("--json", action="store_true", help="print the figures as JSON")
    options = parser.parse_args(arguments)
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.WARNING))
    return report(lambda: measure(options), show, as_json=options.json)


def measure(options: argparse.Namespace) -> dict[str, Any]:
    """The points of each dimension; also written to `options.out`."""
    curves: dict[str, Any] = {}
    document = {"batch": options.batch, "passes": options.passes, "cores": options.cores, "buckets": options.buckets, "curves": curves}
    with tempfile.TemporaryDirectory(prefix="writetime-bench-") as temporary:
        bench = Bench(Size(), options.cores, Path(temporary), Found())
        with session_of(bench, options.buckets) as session:
            _batches(session, "warm-up", Shape(rows=options.batch), 1)
            for name in (each for each in DIMENSIONS if each in options.only):
                what, shapes, value = DIMENSIONS[name]
                points = [_point(session, name, replace(shape, rows=options.batch), value(shape), options.passes) for shape in shapes]
                curves[name] = {"what": what, "points": points}
            if BATCHES in options.only:
                curves[BATCHES] = {"what": "batches since the last compaction", "points": _since_compaction(session, options.commits)}
            if SIZES in options.only:
                sizes = _sizes(session, options.rows, options.changed, options.passes)
                curves[SIZES] = {"what": "rows of the table", "points": [{"value": each["rows"], **each} for each in sizes["sizes"]]}
                document |= {"changed": options.changed, **sizes}
    options.out.mkdir(exist_ok=True)
    (options.out / "growth.json").write_text(json.dumps(document, indent=1) + "\n", encoding="utf-8")
    (options.out / "growth.html").write_text(judge_page.curves_page(document), encoding="utf-8")
    return document


def _sizes(session: Session, sizes: Sequence[int], changed: int, passes: int) -> dict[str, Any]:
    """The figures of `growth.py`."""
    config = session.config.model_copy(update={"bucket": f"{session.config.bucket}-sizes"})
    found = growth.passes_of(growth.Bench.create(session.spark, config, sizes), sizes, changed, passes)
    whole.Pipeline(session.spark, config, session.kafka).forget()
    return growth.figures_of(found)


def _point(session: Session, name: str, shape: Shape, value: float, passes: int) -> dict[str, Any]:
    """For a value of the dimension the medians of the batches: s to ingest and publish, s of ingest, and its CPU."""
    steps = _batches(session, f"{name}-{value:g}", shape, passes)
    seconds = [whole.seconds_of(each) for each in steps]
    say(f"  {name} {value:g}: {statistics.median(seconds):.2f} s")
    return {
        "value": value,
        "seconds": statistics.median(seconds),
        "ingest": statistics.median(each["ingest"].seconds for each in steps),
        "cpu": statistics.median(each["ingest"].cpu for each in steps),
        "spread": [min(seconds), max(seconds)],
    }


def _batches(session: Session, name: str, shape: Shape, passes: int) -> list[whole.Steps]:
    """The steps of each measured batch."""
    pipeline = session.pipeline(name)
    tables = [table_of(number, shape.columns) for number in range(shape.tables)]
    found: list[whole.Steps] = []
    for number in range(1 + passes):
        bodies = [*(ddl_of(tables) if number == 0 else ()), *bodies_of(tables, shape, number)]
        found.append({})
        logs = [log_of(bodies, seed, _SEGMENT_BYTES) for seed in range(shape.replicas)]
        pipeline.batch(logs, found[-1], max(4 << 20, max(sum(map(len, part)) + 12 * len(part) for log in logs for part in log) + (1 << 20)))
    pipeline.forget()
    return found[1:]


def _since_compaction(session: Session, commits: int) -> list[dict[str, Any]]:
    """Small batches one after the other, as in a session, and what it takes to read the table after some of them."""
    shape = Shape(rows=_SMALL)
    pipeline = session.pipeline("since-compaction")
    table = table_of(0, shape.columns)
    pipeline.batch([[[*ddl_of([table]), *bodies_of([table], replace(shape, rows=200_000), 0)]]], {}, _SEGMENT_BYTES)
    every = max(1, commits // 8)
    points = []
    for number in range(1, commits + 1):
        steps: whole.Steps = {}
        pipeline.batch([[list(bodies_of([table], shape, number))]], steps)
        if number == 1 or number % every == 0:
            points.append({"value": number, "seconds": whole.seconds_of(steps), "read": session.read(table.full_name, "part n c00")})
    pipeline.forget()
    return points


# --- what is written


def table_of(number: int, columns: int) -> Table:
    """(part, n) and so many columns of text."""
    named = {"part": Column("part", "partition_key", "bigint", 0), "n": Column("n", "clustering", "bigint", 0)}
    named |= {f"c{at:02}": Column(f"c{at:02}", "regular", "text") for at in range(columns)}
    return Table(KEYSPACE, f"t{number}", uuid.UUID(int=(2 << 76) + number), named, cdc=True)


def ddl_of(tables: Sequence[Table]) -> Iterator[bytes]:
    system = Schema(tables=TABLES)
    for change in (create_keyspace(KEYSPACE, _WRITTEN_AT - 100), *(create_table(table, _WRITTEN_AT - 99) for table in tables)):
        yield encode_mutation(change, system)


def bodies_of(tables: Sequence[Table], shape: Shape, number: int) -> Iterator[bytes]:
    """The mutations of a batch; those of batch 0 insert every row."""
    draw = random.Random(number)
    at = _WRITTEN_AT + 1_000_000 * number
    each = max(1, shape.rows // len(tables))
    for table in tables:
        schema = Schema(tables={**TABLES, table.id: table})
        for row in range(each):
            part = 0 if row < shape.hot * each else row + 1
            key = (part.to_bytes(8, "big"), row.to_bytes(8, "big"))
            deleted = number > 0 and draw.random() < shape.deletes
            yield encode_mutation(_mutation(table, key, at, draw, None if deleted else shape.bytes), schema)


def _mutation(table: Table, key: tuple[bytes, bytes], at: int, draw: random.Random, size: int | None) -> Mutation:
    """An insert with texts of so many bytes, or the deletion of the row."""
    part, clustering = key
    if size is None:
        row = Row((clustering,), deletion=DeletionTime(at, at // 1_000_000))
    else:
        names = [name for name, column in table.columns.items() if column.kind == "regular"]
        cells = tuple(Cell(name, at, draw.randbytes((size + 1) // 2).hex()[:size].encode()) for name in names)
        row = Row((clustering,), Liveness(at), cells=cells)
    return Mutation((PartitionUpdate(table.id, part, rows=(row,)),))


# --- for people


def show(document: Mapping[str, Any]) -> None:
    for name, curve in document["curves"].items():
        rows = {BATCHES: _SMALL, SIZES: document.get("changed")}.get(name, document["batch"])
        grid = Grid(title=f"{name}: {rows:,} rows a batch, s")
        parts = [part for part in ("seconds", "ingest", "cpu", "read") if part in curve["points"][0]]
        for column in (curve["what"], *({"seconds": "ingest and publish", "cpu": "CPU of ingest"}.get(part, part) for part in parts)):
            grid.add_column(column, justify="right")
        for point in curve["points"]:
            grid.add_row(f"{point['value']:,g}", *(f"{point[part]:.2f}" for part in parts))
        Console().print(grid)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
