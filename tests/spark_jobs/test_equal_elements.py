"""Elements of sets and keys of maps are equal by type, from the log to events and state, with both engines."""

from __future__ import annotations

import json
import struct
from pathlib import Path
from typing import Any

import pytest

from spark_jobs.stages.row_packs import unpacked
from tests.cassandra.types.test_canonical import SPELLINGS, decimal, fields
from tests.spark_jobs.examples import NOW, THEN, folded, frame, paged, schema_of, stored, table
from writetime.cassandra.merge.row_codec import Engine
from writetime.cassandra.model import Cell, Mutation, PartitionUpdate, Row
from writetime.cassandra.schema.model import Schema, UserType

ENGINES: list[Engine] = ["auto", "python"]
TABLE = table(
    "elements",
    50,
    {
        "id": "int",
        "plain": "set<text>",
        "numbers": "set<decimal>",
        "homes": "map<frozen<u>, int>",
        "c": "int",
    },
)
OLD = schema_of(TABLE, types={("shop", "u"): UserType("shop", "u", ("a", "b"), ("int", "text"))})
NEW = schema_of(TABLE, types={("shop", "u"): UserType("shop", "u", ("a", "b", "c"), ("int", "text", "decimal"))})
ONE, TWO = (struct.pack(">i", number) for number in (1, 2))


def cell(column: str, at: int, path: bytes, value: bytes | None = b"") -> Cell:
    """A write of an element, or its removal."""
    timestamp = THEN + at
    return Cell(column, timestamp, b"", path, 0, timestamp // 10**6) if value is None else Cell(column, timestamp, value, path)


def write(*cells: Cell) -> Mutation:
    return Mutation((PartitionUpdate(TABLE.id, ONE, rows=(Row((), cells=cells),)),))


def told(mutations: list[Mutation], engine: Engine, schema: Schema = OLD, **options: Any) -> list[dict[str, Any]]:
    frames = [frame(mutation, position=100 * at, schema=schema) for at, mutation in enumerate(mutations)]
    rows = folded(frames, schema, engine=engine, **options)
    pages = paged([row for row in rows if row["kind"] == "event"], schema)
    # Maps as pairs: neither all keys can be hashed, nor would one be noticed that is there twice.
    return [event for page in unpacked(row["payload"] for row in pages) for event in page.to_pylist()]


@pytest.mark.parametrize("engine", ENGINES)
def test_two_spellings_are_one_element(engine: Engine) -> None:
    one, again, other = decimal("0a", 1), decimal("64", 2), decimal("02", 0)
    found = told(
        [
            write(cell("numbers", 1, one), cell("plain", 1, b"x")),
            write(cell("numbers", 2, again), cell("numbers", 2, other)),
            write(cell("numbers", 3, one, None)),
        ],
        engine,
    )
    assert [event["after"]["numbers"] for event in found] == [["1"], ["1", "2"], ["2"]]
    assert [json.loads(event["changed_elements"] or "{}") for event in found[1:]] == [
        {"numbers": {"added": ["2"], "removed": []}},
        {"numbers": {"added": [], "removed": ["1"]}},
    ]


@pytest.mark.parametrize("engine", ENGINES)
def test_an_element_of_before_a_field_was_added_is_removed_after_it(engine: Engine, tmp_path: Path) -> None:
    """In another batch, with the type as it is by then."""
    short, long = fields(ONE, b"x"), fields(ONE, b"x", None)
    first = [frame(write(cell("homes", 1, short, ONE), cell("plain", 1, b"x")), schema=OLD)]
    shard = stored(tmp_path, folded(first, OLD, engine=engine, now=NOW - 50))
    later = {"shards": {TABLE.id: shard}, "since": NOW - 50}
    put = told([write(cell("homes", 2, long, TWO))], engine, NEW, **later)
    assert [event["after"]["homes"] for event in put] == [[({"a": 1, "b": "x", "c": None}, 2)]]
    gone = told([write(cell("homes", 3, long, None))], engine, NEW, **later)
    assert [(event["changed"], event["after"]["homes"]) for event in gone] == [(["homes"], None)]


@pytest.mark.parametrize("engine", ENGINES)
def test_keys_of_a_static_map(engine: Engine) -> None:
    with_rows = table("with_rows", 51, {"id": "int", "k": "int", "s": "static map<varint, int>", "c": "int"}, clustering=1)
    schema = schema_of(with_rows)
    put = [
        Mutation((PartitionUpdate(with_rows.id, ONE, static_row=Row(None, cells=(cell("s", at, path, value),))),))
        for at, path, value in ((1, b"\1", ONE), (2, b"\0\1", TWO), (3, b"\0\0\1", None))
    ]
    found = told(put, engine, schema)
    assert [event["after"] and event["after"]["s"] for event in found] == [[("1", 1)], [("1", 2)], None]


TYPES = ["decimal", "varint", "boolean", "float", "double", "tuple<int, text>", "frozen<list<varint>>", "vector<float, 2>"]


@pytest.mark.parametrize("kind", TYPES)
def test_every_spelling_in_every_engine_and_order(kind: str) -> None:
    """A set with each value in all its spellings has each value once; then, in any spelling, all are removed."""
    of = table("any", 52, {"id": "int", "st": f"set<{kind}>", "m": f"map<{kind}, int>", "c": "int"})
    schema = schema_of(of)
    # Arrow has no empty int: beside a null in the same place it would be the same key.
    values = [spellings for spellings in SPELLINGS[kind] if all(spellings) and fields(b"") not in spellings]
    put = [
        Mutation((PartitionUpdate(of.id, ONE, rows=(Row((), cells=(cell(column, 1 + at, path, b"" if column == "st" else ONE), *keep)),)),))
        for keep in [(Cell("c", THEN, ONE),)]
        for column in ("m", "st")
        for spellings in values
        for at, path in enumerate(spellings)
    ]
    remove = [
        Mutation((PartitionUpdate(of.id, ONE, rows=(Row((), cells=(cell(column, 50, spellings[-1], None),)),)),))
        for column in ("m", "st")
        for spellings in values
    ]
    results = []
    for engine in ENGINES:
        for mutations in (put, put[::-1], [*remove, *put], [*put, *remove]):
            last = told(mutations, engine, schema)[-1]["after"]
            results.append((last["st"], last["m"]))
    for at, (st, m) in enumerate(results):
        if at % 4 < 2:
            assert len(st) == len(m) == len(values)
            assert (repr(st), repr(m)) == (repr(results[0][0]), repr(results[0][1]))
        else:
            assert (st, m) == (None, None)
