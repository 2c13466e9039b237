"""How a warehouse table follows its CQL table: which columns have to be renamed, widened, set aside and
added, and doing so in one commit.

Strategy: a table's shape says all. The columns of a primary key keep their places for the life of a table
(CREATE fixes them, ALTER renames them only), and so do the fields of a user type (ALTER TYPE adds at the end
or renames): these go by place, so that a name that differs is a rename. Places are those in CQL, in which the table's
columns were made, wherever people have moved them since (`OwnColumns.as_made`). All other columns go by name: one
that is not there is new, one that nobody wants any more stays with its history. A column that is wider than it needs to
be stays so. One whose type cannot become what is wanted (re-added with another type) is set aside under a name that no CQL
column can have, and made anew.

Sources: Cassandra 3.11-5.0, cql3 AlterTableStatement and AlterTypeStatement; Iceberg, SchemaUpdate. Knows
Spark's types; knows neither a table nor a CQL schema.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

from pyspark.sql.types import (
    ArrayType,
    ByteType,
    DataType,
    DecimalType,
    DoubleType,
    FloatType,
    IntegerType,
    LongType,
    MapType,
    ShortType,
    StructField,
    StructType,
)

_PIECE: Final = re.compile(r"`((?:[^`]|``)*)`")
Path = tuple[str, ...]

_HELD_AS: Final[dict[type[DataType], type[DataType]]] = {ByteType: IntegerType, ShortType: IntegerType}
"""What Iceberg makes of types that it lacks."""
_WIDER: Final[set[tuple[type[DataType], type[DataType]]]] = {(IntegerType, LongType), (FloatType, DoubleType)}
"""What Iceberg promotes in place."""


@dataclass(frozen=True)
class Steps:
    """The steps from one shape to another. Paths of renames are those before the renames; all other paths are
    those after."""

    aside: list[tuple[Path, str]] = field(default_factory=list)
    renamed: list[tuple[Path, str]] = field(default_factory=list)
    widened: list[tuple[Path, DataType]] = field(default_factory=list)
    added: list[tuple[Path, DataType]] = field(default_factory=list)

    @property
    def replaced(self) -> dict[str, str]:
        """Top-level columns that are created again, with the names under which their values were set
        aside."""
        new = {path for path, _ in self.added if len(path) == 1}
        return {path[0]: name for path, name in self.aside if path in new}

    def __bool__(self) -> bool:
        return bool(self.aside or self.renamed or self.widened or self.added)

    def take(self, other: Steps) -> None:
        self.aside.extend(other.aside)
        self.renamed.extend(other.renamed)
        self.widened.extend(other.widened)
        self.added.extend(other.added)


class _Clash(Exception):
    """A type that cannot become the other in place."""


def steps(wanted: StructType, stored: StructType, rows: Mapping[Path, int]) -> Steps:
    """The steps after which `stored` can hold rows of `wanted`. `stored`: the table's columns that were made here, in the
    order in which they were. `rows`: the structs that are rows of the table, by path (`()` is the top), with the number of
    their first columns that are matched by position."""
    if wanted == stored:
        return Steps()
    return _of_row(wanted, stored, rows, (), ())


def _of_row(wanted: StructType, stored: StructType, rows: Mapping[Path, int], was: Path, now: Path) -> Steps:
    """`was` and `now`: the row's path before and after renames."""
    found = Steps()
    keys = rows[was]
    taken = {*stored.names, *wanted.names}
    held = {each.name: each for each in stored.fields[keys:]}
    for place, each in enumerate(wanted.fields):
        by_place = place < min(keys, len(stored.fields))
        old = stored.fields[place] if by_place else held.get(each.name)
        if by_place and each.name in held:
            # A key takes the name of a column that is no more.
            found.aside.append(((*was, each.name), _aside(held.pop(each.name).name, taken)))
        if old is None:
            found.added.append(((*now, each.name), each.dataType))
            continue
        try:
            found.take(_of_column(each.dataType, old.dataType, rows, (*was, old.name), (*now, each.name)))
        except _Clash:
            found.aside.append(((*was, old.name), _aside(old.name, taken)))
            found.added.append(((*now, each.name), each.dataType))
            continue
        if old.name != each.name:
            found.renamed.append(((*was, old.name), each.name))
    return found


def _of_column(wanted: DataType, stored: DataType, rows: Mapping[Path, int], was: Path, now: Path) -> Steps:
    if isinstance(wanted, StructType) and isinstance(stored, StructType):
        return _of_row(wanted, stored, rows, was, now) if was in rows else _of_fields(wanted, stored, rows, was, now)
    if isinstance(wanted, ArrayType) and isinstance(stored, ArrayType):
        return _of_column(wanted.elementType, stored.elementType, rows, (*was, "element"), (*now, "element"))
    if isinstance(wanted, MapType) and isinstance(stored, MapType):
        if _of_column(wanted.keyType, stored.keyType, rows, (*was, "key"), (*now, "key")):
            raise _Clash  # Iceberg does not evolve keys of maps
        return _of_column(wanted.valueType, stored.valueType, rows, (*was, "value"), (*now, "value"))
    if isinstance(wanted, DecimalType) and isinstance(stored, DecimalType):
        return _of_decimal(wanted, stored, now)
    asked, held = type(wanted), type(stored)
    asked = _HELD_AS.get(asked, asked)
    if (held, asked) in _WIDER:
        return Steps(widened=[(now, asked())])
    if asked is not held and (asked, held) not in _WIDER:
        raise _Clash
    return Steps()


def _of_decimal(wanted: DecimalType, stored: DecimalType, now: Path) -> Steps:
    if wanted.scale == stored.scale:
        return Steps(widened=[(now, wanted)] if wanted.precision > stored.precision else [])
    raise _Clash  # Iceberg does not change a scale


def _of_fields(wanted: StructType, stored: StructType, rows: Mapping[Path, int], was: Path, now: Path) -> Steps:
    """Steps for the fields of a user type or tuple, all matched by position."""
    found = Steps()
    for old, each in zip(stored.fields, wanted.fields, strict=False):
        found.take(_of_column(each.dataType, old.dataType, rows, (*was, old.name), (*now, each.name)))
        if old.name != each.name:
            found.renamed.append(((*was, old.name), each.name))
    found.added.extend(((*now, each.name), each.dataType) for each in wanted.fields[len(stored.fields) :])
    return found


def _aside(name: str, taken: set[str]) -> str:
    """An unused name. It begins with `_`, as no column's own name does (`names.to_column`)."""
    number = 1
    while (free := f"_was_{number}_{name}") in taken:
        number += 1
    taken.add(free)
    return free


def converted(value: str, stored: DataType, wanted: DataType, depth: int = 0) -> str:
    """SQL that converts a value to a type whose structs have more fields, which Iceberg cannot do in
    place."""
    if isinstance(wanted, StructType) and isinstance(stored, StructType):
        parts = []
        for place, each in enumerate(wanted.fields):
            old = stored.fields[place] if place < len(stored.fields) else None
            part = "NULL" if old is None else converted(f"{value}.{quoted(old.name)}", old.dataType, each.dataType, depth)
            parts.append(f"CAST({part} AS {type_ddl(each.dataType)}) AS {quoted(each.name)}")
        return f"IF({value} IS NULL, NULL, struct({', '.join(parts)}))"
    name = f"x{depth}"
    if isinstance(wanted, ArrayType) and isinstance(stored, ArrayType):
        return f"transform({value}, {name} -> {converted(name, stored.elementType, wanted.elementType, depth + 1)})"
    if isinstance(wanted, MapType) and isinstance(stored, MapType):
        key = converted(f"{name}.key", stored.keyType, wanted.keyType, depth + 1)
        item = converted(f"{name}.value", stored.valueType, wanted.valueType, depth + 1)
        return f"map_from_entries(transform(map_entries({value}), {name} -> struct({key}, {item})))"
    return f"try_cast({value} AS {type_ddl(wanted)})"


def no_wider(stored: DataType, wanted: DataType) -> DataType:
    """The stored type as narrow as the wanted one, which has the same fields in the same order, wherever it is wider."""
    if isinstance(wanted, StructType) and isinstance(stored, StructType):
        pairs = zip(stored.fields, wanted.fields, strict=False)
        made = [StructField(old.name, no_wider(old.dataType, new.dataType), old.nullable) for old, new in pairs]
        return StructType([*made, *stored.fields[len(made) :]])
    if isinstance(wanted, ArrayType) and isinstance(stored, ArrayType):
        return ArrayType(no_wider(stored.elementType, wanted.elementType), stored.containsNull)
    if isinstance(wanted, MapType) and isinstance(stored, MapType):
        key, value = no_wider(stored.keyType, wanted.keyType), no_wider(stored.valueType, wanted.valueType)
        return MapType(key, value, stored.valueContainsNull)
    asked = _HELD_AS.get(type(wanted), type(wanted))
    return asked() if (asked, type(stored)) in _WIDER else stored


def type_ddl(kind: DataType) -> str:
    """The type in Spark SQL's syntax."""
    if isinstance(kind, StructType):
        return "STRUCT<" + ", ".join(f"{quoted(field.name)}: {type_ddl(field.dataType)}" for field in kind) + ">"
    if isinstance(kind, ArrayType):
        return f"ARRAY<{type_ddl(kind.elementType)}>"
    if isinstance(kind, MapType):
        return f"MAP<{type_ddl(kind.keyType)}, {type_ddl(kind.valueType)}>"
    return kind.simpleString()


def quoted(name: str) -> str:
    return "`" + name.replace("`", "``") + "`"


def unquoted(name: str) -> list[str]:
    """The pieces of a name whose pieces are all quoted."""
    return [piece.replace("``", "`") for piece in _PIECE.findall(name)]


def literal(text: str) -> str:
    """A text as a literal of Spark SQL, which reads backslashes as escapes, and `${…}` as a variable of its environment."""
    return "'" + text.replace("\\", "\\\\").replace("'", "\\'").replace("$", "\\u0024") + "'"
