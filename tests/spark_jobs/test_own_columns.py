"""Which columns were made here, whatever people have done to them since, without a table; tests/spark_jobs/test_users_alter.py
does it to Iceberg."""

from __future__ import annotations

import json
from collections.abc import Iterator
from itertools import count
from typing import Any

import pytest
from pyspark.sql.types import IntegerType, StructType

from spark_jobs.sinks.own_columns import OwnColumns
from tests.spark_jobs.test_schema_evolution import shape

INT = IntegerType()
ROWS = {(): 1, ("after",): 1}
MADE: dict[str, Any] = {"id": INT, "v": INT, "home": {"street": INT, "city": INT}, "after": {"id": INT, "v": INT}}


def described(kind: Any, numbers: Iterator[int]) -> Any:
    """A dict as Iceberg describes a struct."""
    if not isinstance(kind, dict):
        return "int"
    ids = {name: next(numbers) for name in kind}
    fields = [{"id": ids[name], "name": name, "required": False, "type": described(of, numbers)} for name, of in kind.items()]
    return {"type": "struct", "fields": fields}


def as_dict(struct: Any) -> Any:
    return {each["name"]: as_dict(each["type"]) if isinstance(each["type"], dict) else INT for each in struct["fields"]}


class Held:
    """A table that was made with the columns MADE, and what people do to it."""

    def __init__(self) -> None:
        self.struct = described(MADE, count(1))
        self.recorded = OwnColumns.of(shape(MADE), self.struct, None).recorded(self.struct)

    def field(self, path: str) -> tuple[list[Any], int]:
        *parents, name = path.split(".")
        within = self.struct
        for parent in parents:
            within = next(each["type"] for each in within["fields"] if each["name"] == parent)
        fields = within["fields"]
        return fields, next(at for at, each in enumerate(fields) if each["name"] == name)

    def rename(self, path: str, name: str) -> None:
        fields, at = self.field(path)
        fields[at]["name"] = name

    def drop(self, path: str) -> None:
        fields, at = self.field(path)
        del fields[at]

    def first(self, path: str) -> None:
        fields, at = self.field(path)
        fields.insert(0, fields.pop(at))

    def require(self, path: str) -> None:
        fields, at = self.field(path)
        fields[at]["required"] = True

    def add_first(self, sibling: str, name: str, number: int = 99) -> None:
        fields, _ = self.field(sibling)
        fields.insert(0, {"id": number, "name": name, "required": False, "type": "int"})

    def own(self, *, known: bool = True) -> OwnColumns:
        return OwnColumns.of(shape(as_dict(self.struct)), self.struct, self.recorded if known else None)

    def trouble(self, wanted: dict[str, Any] | None = None) -> str:
        found = self.own().trouble(shape(MADE if wanted is None else wanted), ROWS)
        return "" if found is None else f"{found.what}. {found.hint}"


@pytest.mark.parametrize("known", [True, False])
def test_fields_that_were_moved_keep_the_order_in_which_they_were_made(known: bool) -> None:
    held = Held()
    for path in ("v", "home.city", "after", "after.v"):
        held.first(path)
    assert held.own(known=known).as_made == shape(MADE)
    assert held.trouble() == ""


def test_fields_that_somebody_added_are_left_alone() -> None:
    held = Held()
    held.add_first("id", "region", 97)
    held.add_first("home.city", "country", 98)
    assert held.own().as_made == shape(MADE)
    assert held.trouble() == ""
    # Without the property nobody knows.
    assert held.own(known=False).as_made.names == [*MADE, "region"]
    assert held.own(known=False).as_made["home"].dataType.names == ["street", "city", "country"]  # type: ignore[attr-defined]


@pytest.mark.parametrize("path", ["id", "v", "home", "home.street", "after", "after.id", "after.v"])
def test_a_field_that_somebody_renamed_or_dropped_is_named(path: str) -> None:
    renamed, dropped = Held(), Held()
    renamed.rename(path, "other")
    where = ".".join([*path.split(".")[:-1], "other"])
    assert f"has renamed its column {path} (field" in renamed.trouble()
    assert f"RENAME COLUMN {where} TO {path.rpartition('.')[2]}" in renamed.trouble()
    dropped.drop(path)
    assert f"has dropped its column {path} (field" in dropped.trouble()
    for held in (renamed, dropped):
        assert held.own().missing is not None


def test_a_column_that_nobody_wants_any_more_may_go_and_its_name_be_used() -> None:
    held = Held()
    without = {name: kind for name, kind in MADE.items() if name != "home"}
    held.drop("home")
    assert held.trouble(without) == ""
    assert not held.own().is_recorded
    held.recorded = held.own().recorded(held.struct)
    assert held.own().is_recorded
    held.add_first("id", "home")
    assert held.trouble(without) == ""
    assert "somebody has added a column home (field 99)" in held.trouble()


def test_a_key_is_never_unwanted() -> None:
    held = Held()
    held.drop("id")
    assert "dropped its column id" in held.trouble({"key": INT, **{name: kind for name, kind in MADE.items() if name != "id"}})


@pytest.mark.parametrize("name", ["new", "New"])
def test_a_column_of_the_cluster_whose_name_somebody_has_used(name: str) -> None:
    held = Held()
    held.add_first("after.v", name)
    assert held.trouble() == ""
    assert f"somebody has added a column after.{name} (field 99)" in held.trouble({**MADE, "after": {**MADE["after"], "new": INT}})


def test_a_field_that_must_have_a_value_is_named_unless_it_is_a_key() -> None:
    held = Held()
    held.require("id")
    assert held.trouble() == ""
    held.require("v")
    assert "ALTER COLUMN v DROP NOT NULL" in held.trouble()


def test_the_property_names_what_was_made_and_not_what_others_did() -> None:
    held = Held()
    held.add_first("home.city", "country")
    held.first("v")
    assert json.loads(held.own().recorded(held.struct)) == json.loads(held.recorded)
    assert sorted(json.loads(held.recorded).values()) == sorted(
        ["id", "v", "home", "home.street", "home.city", "after", "after.id", "after.v"]
    )
    assert isinstance(held.own().as_made, StructType)
