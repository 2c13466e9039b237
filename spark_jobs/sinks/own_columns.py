"""Which columns of a warehouse table writetime made, by their field ids, whatever people have done to the table since.

Strategy: a field's id stays when it is renamed, moved or made wider, and no other field ever gets it. A table property
names the fields that were made here (`recorded`), nested ones too. So a field that is not in it is somebody else's and is
left alone, and one that has another name by now, or is gone, is noticed before anything is written: values of the column
would go elsewhere. The order of ids is the order in which fields were made, whatever their places are: keys first, and
the fields of a user type as in CQL. A table without the property is one of an earlier version: all its columns are taken for
made here. Sources: the Iceberg table specification (schemas, column projection). Knows the JSON of a schema and Spark's
types; must not know what the columns hold."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Final, NamedTuple

from pyspark.sql.types import ArrayType, DataType, MapType, StructField, StructType

from spark_jobs.sinks.schema_evolution import Path

PROPERTY: Final = "writetime.columns"
"""The fields that were made here: a JSON object of their paths by their ids."""


class Field(NamedTuple):
    """A field of a struct: where it is, and whether it must have a value."""

    path: Path
    required: bool


class Trouble(NamedTuple):
    """Why columns cannot be written, and what to do about it."""

    what: str
    hint: str


@dataclass(frozen=True)
class OwnColumns:
    """A table's columns, and which of them were made here. `columns`: as Spark reads them; `struct`: the same in Iceberg's JSON
    format; `made`: the paths that the fields were made with, by id, None: not known."""

    columns: StructType
    struct: Mapping[str, Any]
    made: Mapping[int, Path] | None

    @classmethod
    def of(cls, columns: StructType, struct: Mapping[str, Any], text: str | None) -> OwnColumns:
        """`text`: the value of the property, None: the table has none."""
        made = None if text is None else {int(number): tuple(path.split(".")) for number, path in json.loads(text).items()}
        return cls(columns, struct, made)

    @cached_property
    def fields(self) -> dict[int, Field]:
        """All fields, by id."""
        return dict(_fields(self.struct, ()))

    @cached_property
    def own(self) -> dict[int, Path]:
        """The paths of the fields that were made here and are called as they were then, by id."""
        return {number: self.fields[number].path for number, path in self._made.items() if self._has(number, path)}

    @cached_property
    def _made(self) -> Mapping[int, Path]:
        # No name that is made here has a dot.
        plain = ((number, field.path) for number, field in self.fields.items() if not any("." in name for name in field.path))
        return dict(plain) if self.made is None else self.made

    def _has(self, number: int, path: Path) -> bool:
        return number in self.fields and self.fields[number].path[-1] == path[-1]

    @cached_property
    def as_made(self) -> StructType:
        """The columns that were made here, in the order in which they were."""
        found = self._ordered(self.columns, self.struct)
        assert isinstance(found, StructType)
        return found

    def _ordered(self, kind: DataType, described: Any) -> DataType:
        if isinstance(kind, StructType):
            pairs = zip(kind.fields, described["fields"], strict=True)
            mine = sorted(((each["id"], field, each["type"]) for field, each in pairs if each["id"] in self.own), key=lambda one: one[0])
            return StructType([StructField(field.name, self._ordered(field.dataType, of), field.nullable) for _, field, of in mine])
        if isinstance(kind, ArrayType):
            return ArrayType(self._ordered(kind.elementType, described["element"]), kind.containsNull)
        if isinstance(kind, MapType):
            of_key, of_value = self._ordered(kind.keyType, described["key"]), self._ordered(kind.valueType, described["value"])
            return MapType(of_key, of_value, kind.valueContainsNull)
        return kind

    # --- what people have done

    def trouble(self, wanted: StructType, rows: Mapping[Path, int]) -> Trouble | None:
        """What somebody has done to fields so that the wanted columns cannot be written; None if nothing. `rows`: as in
        `schema_evolution.steps`."""
        needed = {path for path, _ in _paths(wanted, ())}
        return self._missing(needed, rows) or self._in_the_way(needed) or self._not_null(rows)

    @property
    def missing(self) -> Trouble | None:
        """The first field of all that were made here that is renamed or gone; None if there is none."""
        return self._missing({*self._made.values()}, {})

    def _missing(self, needed: set[Path], rows: Mapping[Path, int]) -> Trouble | None:
        """The first field that is renamed or gone and cannot be done without: a column that is wanted, a key, or a field of a
        type, which is known by its place."""
        left = set[Path]()
        for number, path in sorted(self._made.items(), key=lambda one: len(one[1])):
            if self._has(number, path) or any(path[:size] in left for size in range(1, len(path))):
                continue
            if path not in needed and path[:-1] in rows and not self._is_key(number, path, rows):
                left.add(path)
                continue
            now, was = self.fields.get(number), ".".join(path)
            if now is None:
                return Trouble(
                    f"somebody has dropped its column {was} (field {number}), and with it the values of all rows",
                    "Drop the table from the catalog and make it again from the archive with `writetime rebuild`.",
                )
            called = ".".join(now.path)
            return Trouble(
                f"somebody has renamed its column {was} (field {number}) to {called}",
                f"Name it as it was (`ALTER TABLE … RENAME COLUMN {called} TO {path[-1]}`); a view may call it otherwise.",
            )
        return None

    def _is_key(self, number: int, path: Path, rows: Mapping[Path, int]) -> bool:
        siblings = sorted(other for other, place in self._made.items() if place[:-1] == path[:-1])
        return number in siblings[: rows[path[:-1]]]

    def _in_the_way(self, needed: set[Path]) -> Trouble | None:
        """A field of somebody else with the name of one that is wanted, for readers that do not tell A from a."""
        names = {tuple(name.lower() for name in path): path for path in (*needed, *self.own.values())}
        for number, field in self.fields.items():
            if number not in self.own and (same := names.get(tuple(name.lower() for name in field.path))) is not None:
                called = ".".join(field.path)
                return Trouble(
                    f"somebody has added a column {called} (field {number}), and the table has a column {'.'.join(same)} of its own",
                    f"Rename the added one (`ALTER TABLE … RENAME COLUMN {called} TO …`) or drop it.",
                )
        return None

    def _not_null(self, rows: Mapping[Path, int]) -> Trouble | None:
        """A field that must have a value and may get none. Key columns have one."""
        for number, field in self.fields.items():
            if field.required and not (field.path[:-1] in rows and number in self.own and self._is_key(number, field.path, rows)):
                called = ".".join(field.path)
                return Trouble(
                    f"somebody has made its column {called} (field {number}) required, and rows may lack it",
                    f"Make it optional again (`ALTER TABLE … ALTER COLUMN {called} DROP NOT NULL`).",
                )
        return None

    # --- the property

    @property
    def is_recorded(self) -> bool:
        """Whether the property says what is there."""
        return self.made == self.own

    def recorded(self, after: Mapping[str, Any]) -> str:
        """The value of the property for these columns, which steps have led to: fields of somebody else are still theirs."""
        theirs = self.fields.keys() - self.own.keys()
        return json.dumps({str(number): ".".join(field.path) for number, field in _fields(after, ()) if number not in theirs})


def _fields(kind: Any, path: Path) -> Iterator[tuple[int, Field]]:
    """The fields of all structs of a type in Iceberg's JSON format."""
    if not isinstance(kind, Mapping):
        return
    for each in kind.get("fields", ()):
        yield each["id"], Field((*path, each["name"]), each["required"])
        yield from _fields(each["type"], (*path, each["name"]))
    for part in ("element", "key", "value"):
        yield from _fields(kind.get(part), (*path, part))


def _paths(kind: DataType, path: Path) -> Iterator[tuple[Path, DataType]]:
    """The fields of all structs of one of Spark's types."""
    if isinstance(kind, StructType):
        for each in kind.fields:
            yield (*path, each.name), each.dataType
            yield from _paths(each.dataType, (*path, each.name))
    elif isinstance(kind, ArrayType):
        yield from _paths(kind.elementType, (*path, "element"))
    elif isinstance(kind, MapType):
        yield from _paths(kind.keyType, (*path, "key"))
        yield from _paths(kind.valueType, (*path, "value"))
