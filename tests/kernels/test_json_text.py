"""Texts that the kernel writes are those of Python's own writer of JSON."""

from __future__ import annotations

import base64
import json
from datetime import UTC, datetime, timedelta
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.examples import examples
from writetime.events.values import iso_date, iso_timestamp
from writetime.kernels import row_parts
from writetime.kernels.json_text import written
from writetime.kernels.row_parts import BASE64, BOOL, DATE, INT, LIST, OPTIONAL, RAW, TEXT, TIMESTAMP, Column, elements

FIRST, LAST = -30_610_224_000_000, 253_402_300_799_999
"""The years 1000 to 9999, ms."""


def texts_of(parts: Any, rows: int) -> list[str]:
    offsets, content = written(parts, rows)
    return pa.Array.from_buffers(pa.string(), rows, [None, offsets, content]).to_pylist()  # type: ignore[no-any-return]


def dumped(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False, separators=(",", ":"))


rows = st.fixed_dictionaries(
    {
        "text": st.none() | st.text(),
        "number": st.none() | st.integers(-(2**63), 2**63 - 1),
        "flag": st.none() | st.booleans(),
        "moment": st.none() | st.integers(FIRST, LAST),
        "day": st.none() | st.integers(FIRST // 86_400_000, LAST // 86_400_000),
        "blob": st.none() | st.binary(max_size=20),
        "list": st.none() | st.lists(st.none() | st.text(max_size=3), max_size=4),
        "map": st.none() | st.dictionaries(st.text(max_size=3), st.none() | st.integers(-9, 9), max_size=3),
        "object": st.none() | st.fixed_dictionaries({"a": st.none() | st.text(max_size=3), "n": st.lists(st.booleans(), max_size=2)}),
    }
)


@settings(max_examples=examples(300))
@given(st.lists(rows, max_size=8), st.integers(0, 3), st.integers(0, 9))
def test_every_form_as_python_writes_it(made: list[dict[str, Any]], skipped: int, count: int) -> None:
    """Of whole arrays, and of slices."""

    def array(name: str, kind: pa.DataType) -> Any:
        values = [row[name] for row in made]
        if name == "moment":
            values = [None if value is None else value * 1000 + 999 for value in values]
        if name == "map":
            values = [None if value is None else list(value.items()) for value in values]
        return pa.array(values, kind).slice(skipped, count)

    lists, maps = array("list", pa.list_(pa.string())), array("map", pa.map_(pa.string(), pa.int64()))
    objects = array("object", pa.struct([("a", pa.string()), ("n", pa.list_(pa.bool_()))]))
    flags = objects.field(1)
    (texts,), (keys, values) = elements(lists), elements(maps)
    inside = ['{"a":', Column(TEXT, objects.field(0)), ',"n":', Column(LIST, flags, [Column(BOOL, *elements(flags))]), "}"]
    parts = [
        *('["ü",', Column(TEXT, array("text", pa.string()))),
        *(",", Column(INT, array("number", pa.int64()))),
        *(",", Column(BOOL, array("flag", pa.bool_()))),
        *(",", Column(TIMESTAMP, array("moment", pa.int64()))),
        *(",", Column(DATE, array("day", pa.int64()))),
        *(",", Column(BASE64, array("blob", pa.binary()))),
        *(",", Column(LIST, lists, [Column(TEXT, texts)])),
        *(",", Column(LIST, maps, [Column(TEXT, keys), ":", Column(INT, values)], "{}")),
        *(",", Column(OPTIONAL, objects, inside)),
        "]",
    ]
    expected = [
        dumped(
            [
                *("ü", row["text"], row["number"], row["flag"]),
                None if row["moment"] is None else iso_timestamp(row["moment"]),
                None if row["day"] is None else iso_date(row["day"]),
                None if row["blob"] is None else base64.b64encode(row["blob"]).decode(),
                *(row["list"], row["map"]),
                None if row["object"] is None else {"a": row["object"]["a"], "n": row["object"]["n"]},
            ]
        )
        for row in made[skipped : skipped + count]
    ]
    assert texts_of(parts, len(expected)) == expected


@pytest.mark.parametrize("room", [1, 100, 5000])
def test_room_is_made_where_it_lacks(room: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """The estimate is of texts in which little is escaped."""
    lay_out = row_parts._lay_out
    monkeypatch.setattr(row_parts, "_lay_out", lambda *arguments: lay_out(*arguments) * 0 + room)
    values = ["\1" * length for length in range(300)]
    expected = [f"<{dumped(value)}>" for value in values]
    assert texts_of(["<", Column(TEXT, pa.array(values)), ">"], len(values)) == expected


def test_more_than_arrow_holds_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(row_parts, "_MOST", 2000)
    with pytest.raises(OverflowError):
        written(["x" * 1000], 3)
    assert texts_of(["x" * 100], 3) == ["x" * 100] * 3


def test_each_character_that_is_escaped() -> None:
    values = [chr(code) for code in range(256)]
    assert texts_of([Column(TEXT, pa.array(values))], 256) == [dumped(value) for value in values]
    assert texts_of([Column(RAW, pa.array([*values, None]))], 257) == [*values, "null"]


def test_numbers_of_all_lengths() -> None:
    values = sorted({sign * (10**power + more) for power in range(19) for more in (-1, 0, 1) for sign in (1, -1)})
    assert texts_of([Column(INT, pa.array(values, pa.int64()))], len(values)) == [str(value) for value in values]


def test_every_day_of_some_centuries() -> None:
    days = np.arange(-40_000, 100_000)
    expected = [(datetime(1970, 1, 1, tzinfo=UTC) + timedelta(int(day))).strftime('"%Y-%m-%d"') for day in days]
    assert texts_of([Column(DATE, pa.array(days))], len(days)) == expected


@pytest.mark.parametrize(
    ("kind", "array"),
    [(TEXT, pa.array(["a"], pa.large_string())), (INT, pa.array([1], pa.int32())), (LIST, pa.array([[1]], pa.large_list(pa.int64())))],
)
def test_arrays_of_another_layout_are_refused(kind: int, array: Any) -> None:
    with pytest.raises(TypeError):
        written([Column(kind, array)], 1)
