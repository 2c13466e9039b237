"""What is called sound can be decoded and shown; what any client writes is called so."""

from __future__ import annotations

import struct
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from spark_jobs.stages.validate_batch import Values, sound, sound_elements, sound_keys
from tests.cassandra.types.typed import NATIVE_VALUES, kind_of, typed_values
from tests.examples import examples
from writetime.cassandra.model import Cell
from writetime.cassandra.types.types import CqlType, assemble
from writetime.errors import DecodeError
from writetime.events.arrow import arrow_type, to_arrow_value
from writetime.events.row_values import split_partition_key


def places(values: list[bytes]) -> Values:
    """The values in another order, and apart, in their array."""
    data, starts = b"\x80", {}
    for at, value in reversed(list(enumerate(values))):
        starts[at] = len(data)
        data += value + b"\xff"
    return Values(
        np.frombuffer(data, np.uint8),
        np.array([starts[at] for at in range(len(values))], np.int64),
        np.array([len(value) for value in values], np.int64),
    )


def shows(kind: CqlType, value: bytes) -> bool:
    try:
        pa.array([to_arrow_value(kind, kind.decode(value))], arrow_type(kind))
    except DecodeError:
        return False
    return True


@st.composite
def damaged(draw: st.DrawFn, data: bytes) -> bytes:
    at = draw(st.integers(0, len(data)))
    before, after = data[:at], data[at:]
    return draw(st.sampled_from([data, before, before + draw(st.binary(max_size=5)) + after, before + b"\xff" + after[1:]]))


@settings(max_examples=examples(600))
@given(data=st.data())
def test_what_is_sound_shows(data: st.DataObject) -> None:
    text, value = data.draw(typed_values(depth=3))
    kind = kind_of(text)
    raw = [data.draw(damaged(kind.encode(value))) for _ in range(3)] + [data.draw(st.binary(max_size=24))]
    for one, said in zip(raw, sound(kind, places(raw)).tolist(), strict=True):
        assert not said or shows(kind, one), (text, one)


MANY = [
    *((name, values) for name, values in NATIVE_VALUES.items() if name not in ("empty", "timestamp", "decimal", "varint", "duration")),
    ("timestamp", st.integers(-(2**50), 2**50)),
    ("decimal", st.decimals(allow_nan=False, allow_infinity=False, places=3)),
    ("varint", st.integers(-(2**200), 2**200)),
    ("frozen<list<text>>", st.lists(st.none() | st.text(max_size=5), max_size=4)),
    ("frozen<map<text, int>>", st.dictionaries(st.text(max_size=5), st.integers(-5, 5), max_size=4).map(lambda found: list(found.items()))),
    ("frozen<set<uuid>>", st.lists(st.uuids(), max_size=3)),
    ("tuple<int, text>", st.tuples(st.none() | st.integers(0, 9), st.none() | st.text(max_size=3))),
    ("vector<float, 3>", st.lists(st.just(0.5), min_size=3, max_size=3)),
]


@pytest.mark.parametrize(("text", "values"), MANY, ids=[text for text, _ in MANY])
def test_usual_values_are_sound(text: str, values: st.SearchStrategy[Any]) -> None:
    @settings(max_examples=examples(30), database=None)
    @given(st.lists(values, max_size=6))
    def check(drawn: list[Any]) -> None:
        kind = kind_of(text)
        assert sound(kind, places([kind.encode(value) for value in drawn])).all()

    check()


@pytest.mark.parametrize(
    ("text", "raw"),
    [
        ("text", b"\xc3"),
        ("text", b"\xed\xa0\x80"),
        ("ascii", "é".encode()),
        ("int", b"\0\0\0"),
        ("timestamp", struct.pack(">q", 2**62)),
        ("inet", b"12345"),
        ("frozen<list<int>>", struct.pack(">ii", 1, 4)),
        ("frozen<list<int>>", struct.pack(">i", -1)),
        ("frozen<map<float, int>>", struct.pack(">iii", 1, -1, -1)),
        ("frozen<map<text, int>>", struct.pack(">iii", 1, -1, -1)),
        ("tuple<int>", struct.pack(">ii", 4, 7) + b"more"),
    ],
)
def test_bad_values_are_not(text: str, raw: bytes) -> None:
    good = kind_of("text").encode("é")
    found = sound(kind_of(text), places([raw, raw]))
    assert not found.any()
    if text == "text":
        assert sound(kind_of(text), places([good, raw, good])).tolist() == [True, False, True]


@settings(max_examples=examples(200))
@given(data=st.data())
def test_elements_that_are_sound_make_a_value(data: st.DataObject) -> None:
    keys, values = ("text", "int", "uuid", "float", "timestamp"), ("text", "int", "blob")
    key, value = data.draw(st.sampled_from(keys)), data.draw(st.sampled_from(values))
    kind = kind_of(data.draw(st.sampled_from([f"map<{key}, {value}>", f"set<{key}>", f"list<{value}>", "addr", "person"])))
    binary = st.binary(max_size=4) | st.binary(min_size=16, max_size=16) | st.sampled_from([b"\0\0", b"\0\1", b"\0\2"])
    pairs = data.draw(st.lists(st.tuples(binary, binary), max_size=5, unique_by=lambda pair: pair[0]))
    said = sound_elements(kind, places([path for path, _ in pairs]), places([raw for _, raw in pairs]))
    cells = [Cell("c", 1, raw, path) for (path, raw), good in zip(pairs, said.tolist(), strict=True) if good]
    pa.array([to_arrow_value(kind, assemble(kind, cells))], arrow_type(kind))


@settings(max_examples=examples(200))
@given(data=st.data())
def test_keys_that_are_sound_come_apart(data: st.DataObject) -> None:
    kinds = [kind_of(text) for text in data.draw(st.lists(st.sampled_from(["int", "text", "uuid"]), min_size=1, max_size=3))]
    parts = [data.draw(st.binary(max_size=5) | st.just(b"\0\0\0\1") | st.just(b"\1" * 16)) for _ in kinds]
    whole = parts[0] if len(kinds) == 1 else b"".join(struct.pack(">H", len(part)) + part + b"\0" for part in parts)
    raw = [whole, data.draw(damaged(whole))]
    said = sound_keys(kinds, places(raw)).tolist()
    parts_are = all(bool(sound(kind, places([part]))[0]) for kind, part in zip(kinds, parts, strict=True))
    assert said[0] == (whole != b"" and parts_are)
    for one, good in zip(raw, said, strict=True):
        if good:
            for kind, part in zip(kinds, split_partition_key(one, len(kinds)), strict=True):
                assert shows(kind, part)
