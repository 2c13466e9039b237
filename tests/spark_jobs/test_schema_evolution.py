"""What leads from one shape to another, without a table; tests/spark_jobs/test_ddl.py takes the steps with
Iceberg."""

from __future__ import annotations

from typing import Any

import pytest
from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    DataType,
    DecimalType,
    DoubleType,
    FloatType,
    IntegerType,
    LongType,
    MapType,
    ShortType,
    StringType,
    StructField,
    StructType,
)

from spark_jobs.sinks.schema_evolution import Steps, no_wider, steps

INT, TEXT = IntegerType(), StringType()
A, AB = {"a": INT}, {"a": INT, "b": INT}


def shape(fields: dict[str, Any]) -> StructType:
    """Dicts are structs, lists arrays, pairs maps."""
    return StructType([StructField(name, _kind(kind)) for name, kind in fields.items()])


def _kind(kind: Any) -> DataType:
    if isinstance(kind, dict):
        return shape(kind)
    if isinstance(kind, list):
        return ArrayType(_kind(kind[0]))
    if isinstance(kind, tuple):
        return MapType(*map(_kind, kind))
    assert isinstance(kind, DataType)
    return kind


def of(stored: dict[str, Any], wanted: dict[str, Any], keys: int = 1) -> Steps:
    return steps(shape(wanted), shape(stored), {(): keys, ("row",): 1})


@pytest.mark.parametrize(
    ("stored", "wanted"),
    [
        ({"id": INT, "v": TEXT}, {"id": INT, "v": TEXT}),
        ({"id": INT, "old": TEXT, "v": INT}, {"id": INT, "v": ShortType()}),
        ({"id": INT, "u": AB}, {"id": INT, "u": A}),
        ({"id": INT, "row": {"id": INT, "old": INT}}, {"id": INT, "row": {"id": INT}}),
    ],
    ids=["same", "dropped, and held wider", "a type of before", "dropped in a row below"],
)
def test_nothing_to_do(stored: dict[str, Any], wanted: dict[str, Any]) -> None:
    assert not of(stored, wanted)


def test_columns_and_fields_are_added_wherever_they_lack() -> None:
    found = of(
        {"id": INT, "u": A, "l": [A], "m": (TEXT, A), "row": {"id": INT}},
        {"id": INT, "new": INT, "u": AB, "l": [AB], "m": (TEXT, AB), "row": {"id": INT, "new": INT}},
    )
    assert {path for path, _ in found.added} == {("new",), ("u", "b"), ("l", "element", "b"), ("m", "value", "b"), ("row", "new")}
    assert (found.aside, found.renamed, found.widened) == ([], [], [])


def test_keys_and_fields_under_another_name_are_renamed_and_other_columns_are_not() -> None:
    found = of(
        {"a": INT, "v": INT, "row": {"a": INT, "v": INT}, "u": {"x": INT, "y": INT}},
        {"b": INT, "w": INT, "row": {"b": INT, "w": INT}, "u": {"z": INT, "y": INT}},
    )
    assert found.renamed == [(("a",), "b"), (("row", "a"), "b"), (("u", "x"), "z")]
    assert [path for path, _ in found.added] == [("w",), ("row", "w")]


def test_keys_that_swap_their_names() -> None:
    assert of({"a": INT, "b": INT}, {"b": INT, "a": INT}, keys=2).renamed == [(("a",), "b"), (("b",), "a")]


def test_what_lies_below_a_renamed_key_is_added_under_its_new_name() -> None:
    found = of({"a": {"x": INT}}, {"b": {"x": INT, "y": INT}})
    assert (found.renamed, [path for path, _ in found.added]) == ([(("a",), "b")], [("b", "y")])


def test_a_key_that_takes_the_name_of_a_column_that_is_no_more() -> None:
    found = of({"a": INT, "b": TEXT, "_was_1_b": INT}, {"b": INT})
    assert (found.aside, found.renamed) == ([(("b",), "_was_2_b")], [(("a",), "b")])


def test_what_is_wider_than_it_needs_to_be_stays_so() -> None:
    held: dict[str, Any] = {"id": LongType(), "i": LongType(), "f": DoubleType(), "d": DecimalType(12, 2), "l": [{"x": LongType()}]}
    assert not of(held, {"id": INT, "i": ShortType(), "f": FloatType(), "d": DecimalType(10, 2), "l": [{"x": INT}]})
    assert of(held, {**held, "d": DecimalType(10, 1)}).aside == [(("d",), "_was_1_d")]


def test_what_is_wider_can_be_read_as_it_was_made() -> None:
    held = shape({"id": LongType(), "u": {"was": LongType(), "more": INT}, "m": (TEXT, [DoubleType()]), "s": LongType(), "t": TEXT})
    made = shape({"id": INT, "u": {"x": INT}, "m": (TEXT, [FloatType()]), "s": ShortType(), "t": TEXT})
    narrow = shape({"id": INT, "u": {"was": INT, "more": INT}, "m": (TEXT, [FloatType()]), "s": INT, "t": TEXT})
    assert no_wider(held, made) == narrow
    assert no_wider(narrow, made) == narrow


def test_what_can_be_wider_in_place_is_and_what_cannot_is_made_anew() -> None:
    found = of(
        {"id": INT, "i": INT, "f": FloatType(), "t": TEXT, "k": (A, INT)},
        {"id": INT, "i": LongType(), "f": DoubleType(), "t": BinaryType(), "k": (AB, INT)},
    )
    assert found.widened == [(("i",), LongType()), (("f",), DoubleType())]
    assert found.aside == [(("t",), "_was_1_t"), (("k",), "_was_1_k")]
    assert found.added == [(("t",), BinaryType()), (("k",), _kind((AB, INT)))]
