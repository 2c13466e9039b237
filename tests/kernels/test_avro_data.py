"""Avro data that the kernel writes is that of fastavro."""

from __future__ import annotations

import io
from typing import Any

import fastavro
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.examples import examples
from writetime.kernels import row_parts
from writetime.kernels.avro_data import written
from writetime.kernels.row_parts import BOOL, INT, LIST, OPTIONAL, RAW, REAL32, REAL64, TEXT, Column, elements

EDGES = [sign * (1 << bits) + more for bits in range(63) for more in (-1, 0) for sign in (1, -1)]
LONGS = st.integers(-(2**63), 2**63 - 1) | st.sampled_from(EDGES)
ARROW = {
    "text": pa.string(),
    "blob": pa.binary(),
    "number": pa.int64(),
    "flag": pa.bool_(),
    "real": pa.float32(),
    "double": pa.float64(),
    "list": pa.list_(pa.string()),
    "map": pa.map_(pa.string(), pa.int64()),
    "record": pa.struct([("a", pa.string()), ("n", pa.list_(pa.bool_()))]),
    "needed": pa.int64(),
}
FLAGS = {"type": "array", "items": "boolean"}
RECORD = {"type": "record", "name": "R", "fields": [{"name": "a", "type": "string"}, {"name": "n", "type": FLAGS}]}
AVRO: dict[str, Any] = {
    "text": ["null", "string"],
    "blob": ["null", "bytes"],
    "number": ["null", "long"],
    "flag": ["null", "boolean"],
    "real": ["null", "float"],
    "double": ["null", "double"],
    "list": ["null", {"type": "array", "items": ["null", "string"]}],
    "map": ["null", {"type": "map", "values": ["null", "long"]}],
    "record": ["null", RECORD],
    "needed": "long",
}
SCHEMA = fastavro.parse_schema({"type": "record", "name": "T", "fields": [{"name": name, "type": kind} for name, kind in AVRO.items()]})
rows = st.fixed_dictionaries(
    {
        "text": st.none() | st.text(),
        "blob": st.none() | st.binary(max_size=200),
        "number": st.none() | LONGS,
        "flag": st.none() | st.booleans(),
        "real": st.none() | st.floats(width=32),
        "double": st.none() | st.floats(),
        "list": st.none() | st.lists(st.none() | st.text(max_size=3), max_size=4),
        "map": st.none() | st.dictionaries(st.text(max_size=3), st.none() | st.integers(-9, 9), max_size=3),
        "record": st.none() | st.fixed_dictionaries({"a": st.text(max_size=3), "n": st.lists(st.booleans(), max_size=2)}),
        "needed": LONGS,
    }
)


def data_of(parts: Any, rows: int) -> list[bytes]:
    offsets, content = written(parts, rows)
    return pa.Array.from_buffers(pa.binary(), rows, [None, offsets, content]).to_pylist()  # type: ignore[no-any-return]


def by_fastavro(row: dict[str, Any]) -> bytes:
    out = io.BytesIO(b"\0\7")
    out.seek(2)
    fastavro.schemaless_writer(out, SCHEMA, row)
    return out.getvalue()


@settings(max_examples=examples(300))
@given(st.lists(rows, max_size=8), st.integers(0, 3), st.integers(0, 9))
def test_every_form_as_fastavro_writes_it(made: list[dict[str, Any]], skipped: int, count: int) -> None:
    """Of whole arrays, and of slices."""

    def array(name: str) -> Any:
        values = [[*value.items()] if name == "map" and value is not None else value for value in (row[name] for row in made)]
        return pa.array(values, ARROW[name]).slice(skipped, count)

    lists, maps, records = array("list"), array("map"), array("record")
    (texts,), (keys, values) = elements(lists), elements(maps)
    flags = records.field(1)
    inside = [
        Column(TEXT, records.field(0), nullable=False),
        Column(LIST, flags, [Column(BOOL, *elements(flags), nullable=False)], nullable=False),
    ]
    parts = [
        b"\0\7",
        Column(TEXT, array("text")),
        Column(TEXT, array("blob")),
        Column(INT, array("number")),
        Column(BOOL, array("flag")),
        Column(REAL32, array("real")),
        Column(REAL64, array("double")),
        Column(LIST, lists, [Column(TEXT, texts)]),
        Column(LIST, maps, [Column(TEXT, keys, nullable=False), Column(INT, values)]),
        Column(OPTIONAL, records, inside),
        Column(INT, array("needed"), nullable=False),
    ]
    expected = [by_fastavro(row) for row in made[skipped : skipped + count]]
    assert data_of(parts, len(expected)) == expected


@pytest.mark.parametrize("room", [1, 100, 5000])
def test_room_is_made_where_it_lacks(room: int, monkeypatch: pytest.MonkeyPatch) -> None:
    lay_out = row_parts._lay_out
    monkeypatch.setattr(row_parts, "_lay_out", lambda *arguments: lay_out(*arguments) * 0 + room)
    lists = pa.array([[*range(-length, length)] for length in range(100)])
    found = data_of([b"head", Column(LIST, lists, [Column(INT, *elements(lists))]), Column(RAW, pa.array(["x" * 300] * 100))], 100)
    numbers = {"name": "v", "type": ["null", {"type": "array", "items": AVRO["number"]}]}
    schema = fastavro.parse_schema({"type": "record", "name": "W", "fields": [numbers]})
    for row, values in zip(found, lists.to_pylist(), strict=True):
        out = io.BytesIO()
        fastavro.schemaless_writer(out, schema, {"v": values})
        assert row == b"head" + out.getvalue() + b"\2" + b"x" * 300
