"""CQL types, values and rows as Avro, and back. The column Avro of `writetime.events.type_mapping`; schemas
are plain JSON values.

Every part of a value may be null: a field may be unset, and a zero-length value has no other representation.
Fields, array elements and map values are therefore unions with null. A record's name depends only on its
content, so that a schema stays compatible when columns are added and dropped:

    <keyspace>.<table>.Key, .Row    a table's key and row; fields default to null
    <keyspace>._types.<name>        a user type: defined at its first use, then referenced by name
    cql.duration, cql.tuple_<h>, cql.map_<h>    <h>: of the type's text

`cqlType` holds the CQL type if Avro's type does not determine it, `cqlName` a field's name if
`naming.to_avro` changed it. fastavro reads timestamps and dates as Python's, which end with the year 9999:
use `without_calendar` for later ones. Does not write files.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from typing import Any, Final
from uuid import UUID

from writetime.cassandra.schema.model import Column, Table
from writetime.cassandra.types.integers import to_integer
from writetime.cassandra.types.native import EMPTY, Duration
from writetime.cassandra.types.types import (
    CollectionType,
    CqlType,
    CustomType,
    NativeType,
    TupleType,
    Types,
    UdtType,
    VectorType,
    parse_type,
)
from writetime.events.naming import to_avro
from writetime.events.type_mapping import TABLE
from writetime.events.values import (
    checked_duration,
    fields_of,
    has_text_keys,
    put_together,
    refuse_merged_keys,
    taken_apart,
    text_keyed,
    to_text,
)

Avro = Any
"""A schema as a JSON value: str, list or dict."""

_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_SAID_BY_AVRO: Final = frozenset(
    {"text", "varchar", "blob", "boolean", "int", "bigint", "float", "double", "timestamp", "date", "uuid", "duration"}
)
"""Types that the Avro type determines; others add `cqlType`."""
_CALENDAR: Final = frozenset({"date", "timestamp-millis"})


def avro_type(kind: CqlType) -> Avro:
    """The Avro schema of a CQL type, null not included. Raises SchemaError for an undefined user type."""
    return Names().type(kind)


class Names:
    """Makes the types of one schema, and knows which named ones it has defined. `numbers`: the form of varint and
    of decimal, see `writetime.events.converters`."""

    def __init__(self, numbers: Callable[[str], str] = lambda _: "string") -> None:
        self.numbers = numbers
        self.defined: set[str] = set()

    def type(self, kind: CqlType) -> Avro:
        if isinstance(kind, NativeType):
            return self._native(kind)
        if isinstance(kind, CustomType):
            return {"type": "bytes", "cqlType": str(kind)}
        if has_text_keys(kind):
            assert isinstance(kind, CollectionType)
            return {"type": "map", "values": self.nullable(kind.elements[1])}
        if isinstance(kind, CollectionType) and kind.kind == "map":
            return {
                "type": "array",
                "items": self._record(_digest_name("map", kind), dict(zip(("key", "value"), kind.elements, strict=True))),
            }
        if isinstance(kind, CollectionType | VectorType):
            element = kind.element if isinstance(kind, VectorType) else kind.elements[0]
            return {"type": "array", "items": self.nullable(element)}
        if isinstance(kind, TupleType):
            return self._record(_digest_name("tuple", kind), fields_of(kind))
        assert isinstance(kind, UdtType)
        return self._record(f"{to_avro(kind.keyspace)}._types.{to_avro(kind.name)}", kind.known_fields)

    def nullable(self, kind: CqlType) -> Avro:
        return ["null", self.type(kind)]

    def fields(self, kinds: Mapping[str, CqlType]) -> list[Avro]:
        return [
            {
                "name": to_avro(name),
                "type": self.nullable(kind),
                "default": None,
                **({} if to_avro(name) == name else {"cqlName": name.encode("utf-8", "backslashreplace").decode()}),
            }
            for name, kind in kinds.items()
        ]

    def _record(self, full_name: str, kinds: Mapping[str, CqlType]) -> Avro:
        if full_name in self.defined:
            return full_name
        self.defined.add(full_name)
        namespace, _, name = full_name.rpartition(".")
        return {"type": "record", "name": name, "namespace": namespace, "fields": self.fields(kinds)}

    def _native(self, kind: NativeType) -> Avro:
        if kind.name == "duration":
            return self._duration()
        if kind.name in ("varint", "decimal") and (mode := self.numbers(kind.name)) != "string":
            return self._scaled() if mode == "precise" else {"type": mode, "cqlType": kind.name}
        extra = {} if kind.name in _SAID_BY_AVRO else {"cqlType": kind.name}
        name, _, logical = TABLE[kind.name].avro.partition(" ")
        extra |= {"logicalType": logical[1:-1]} if logical else {}
        return {"type": name, **extra} if extra else name

    def _duration(self) -> Avro:
        return self.plain_record("cql.duration", {"months": "int", "days": "int", "nanoseconds": "long"})

    def _scaled(self) -> Avro:
        return self.plain_record("io.debezium.data.VariableScaleDecimal", {"scale": "int", "value": "bytes"})

    def plain_record(self, full_name: str, fields: Mapping[str, Avro]) -> Avro:
        """A record of fields whose types are Avro's already, or its name where it is defined."""
        if full_name in self.defined:
            return full_name
        self.defined.add(full_name)
        namespace, _, name = full_name.rpartition(".")
        listed = [{"name": field, "type": kind} for field, kind in fields.items()]
        return {"type": "record", "name": name, "namespace": namespace, "fields": listed}


def _digest_name(what: str, kind: CqlType) -> str:
    return f"cql.{what}_{hashlib.sha256(_whole_text(kind).encode('utf-8', 'surrogatepass')).hexdigest()[:16]}"


def _whole_text(kind: CqlType) -> str:
    """The type's text with the keyspaces of its user types: a unique name."""
    if isinstance(kind, CollectionType):
        return f"{kind.kind}<{','.join(map(_whole_text, kind.elements))}>"
    if isinstance(kind, VectorType):
        return f"vector<{_whole_text(kind.element)},{kind.dimension}>"
    if isinstance(kind, TupleType):
        return f"tuple<{','.join(map(_whole_text, kind.fields))}>"
    return f'"{kind.keyspace}"."{kind.name}"' if isinstance(kind, UdtType) else str(kind)


# --- values


def to_avro_value(kind: CqlType, value: Any) -> Any:
    """The value in fastavro's form for `avro_type(kind)`: timestamps as int ms, dates as int days, records
    as dicts.

    A zero-length value is "" where that is text or bytes, else null. DecodeError for a duration
    beyond its field, and for a map that has a text key twice or null, or keys that would become one.
    """
    if value is None:
        return None
    if isinstance(kind, NativeType):
        return _native_value(kind, value)
    if value is EMPTY:
        return None
    out = taken_apart(kind, value, to_avro_value, to_avro)
    if not isinstance(kind, CollectionType) or kind.kind != "map":
        return out
    if has_text_keys(kind):
        return text_keyed(kind, value, out, "convert a value to Avro")
    refuse_merged_keys(kind, value, out, "convert a value to Avro")
    return [{"key": key, "value": element} for key, element in out]


def from_avro_value(kind: CqlType, datum: Any) -> Any:
    """Inverse of `to_avro_value`, on what fastavro reads, with its logical types or without; null stays
    null."""
    if datum is None:
        return None
    if isinstance(kind, NativeType):
        return _from_native_value(kind, datum)
    if has_text_keys(kind):
        assert isinstance(kind, CollectionType)
        key = kind.elements[0]
        datum = [(EMPTY if name == "" and not _is_text(key) else name, element) for name, element in datum.items()]
    elif isinstance(kind, CollectionType) and kind.kind == "map":
        datum = [(entry["key"], entry["value"]) for entry in datum]
    return put_together(kind, datum, from_avro_value, to_avro)


def _native_value(kind: NativeType, value: Any) -> Any:
    if value is EMPTY:
        return _EMPTY_OF.get(kind.name)
    convert = _TO_AVRO.get(kind.name)
    return value if convert is None else convert(kind, value)


def _from_native_value(kind: NativeType, datum: Any) -> Any:
    if datum is EMPTY or (kind.name in _EMPTY_OF and datum == _EMPTY_OF[kind.name]):
        return EMPTY
    convert = _FROM_AVRO.get(kind.name)
    return datum if convert is None else convert(datum)


def _is_text(kind: CqlType) -> bool:
    return isinstance(kind, NativeType) and kind.has_empty


def _milliseconds(datum: Any) -> int:
    milliseconds: int = (datum - _EPOCH) // timedelta(milliseconds=1) if isinstance(datum, datetime) else datum
    return milliseconds


def _days(datum: Any) -> int:
    days: int = (datum - _EPOCH.date()).days if isinstance(datum, date) else datum
    return days


def _uuid(datum: Any) -> UUID:
    return datum if isinstance(datum, UUID) else UUID(datum)


_EMPTY_OF: Final[dict[str, Any]] = {"varint": "", "decimal": "", "inet": "", "empty": b""}
"""The zero-length value of types that can represent it. A uuid cannot: Avro's logical type defines its
text."""
_TO_AVRO: Final[dict[str, Callable[[NativeType, Any], Any]]] = {
    "varint": to_text,
    "decimal": to_text,
    "inet": to_text,
    "uuid": to_text,
    "timeuuid": to_text,
    "duration": lambda _, value: checked_duration(value)._asdict(),
}
_FROM_AVRO: Final[dict[str, Callable[[Any], Any]]] = {
    "timestamp": _milliseconds,
    "date": _days,
    "varint": lambda datum: to_integer(Decimal(datum)),
    "decimal": Decimal,
    "uuid": _uuid,
    "timeuuid": _uuid,
    "duration": lambda datum: Duration(**datum),
}


# --- rows


@dataclass(frozen=True)
class AvroTable:
    """A table's key and row as Avro records. `keys` and `columns`: CQL types by CQL name, as rows hold
    them."""

    key_schema: Avro
    row_schema: Avro
    keys: Mapping[str, CqlType]
    columns: Mapping[str, CqlType]

    @classmethod
    def of(cls, table: Table, types: Types) -> AvroTable:
        """The schemas of a table's current columns. SchemaError if a type is invalid or unknown."""

        def kinds(*columns: Column) -> dict[str, CqlType]:
            return {column.name: parse_type(column.type, table.keyspace, types) for column in columns}

        keys = kinds(*table.partition_key, *table.clustering)
        columns = keys | kinds(*table.static_columns, *table.regular_columns)
        namespace = f"{to_avro(table.keyspace)}.{to_avro(table.name)}"
        return cls(_table_record(namespace, "Key", keys), _table_record(namespace, "Row", columns), keys, columns)

    def key_datum(self, key: Mapping[str, Any]) -> dict[str, Any]:
        """The primary key's values by column name, as fastavro takes them."""
        return {to_avro(name): to_avro_value(kind, key.get(name)) for name, kind in self.keys.items()}

    def row_datum(self, row: Mapping[str, Any]) -> dict[str, Any]:
        """A row's values by column name, as fastavro takes them; columns that it lacks are null."""
        return {to_avro(name): to_avro_value(kind, row.get(name)) for name, kind in self.columns.items()}

    def row(self, datum: Mapping[str, Any]) -> dict[str, Any]:
        """Inverse of `row_datum`."""
        return {name: from_avro_value(kind, datum[to_avro(name)]) for name, kind in self.columns.items()}


def _table_record(namespace: str, name: str, kinds: Mapping[str, CqlType]) -> Avro:
    return {"type": "record", "name": name, "namespace": namespace, "fields": Names().fields(kinds)}


def without_calendar(schema: Avro) -> Avro:
    """The same schema with timestamps and dates as their wire numbers."""
    if isinstance(schema, list):
        return [without_calendar(branch) for branch in schema]
    if not isinstance(schema, dict):
        return schema
    kept = {name: value for name, value in schema.items() if name != "logicalType" or value not in _CALENDAR}
    inner = {name: without_calendar(kept[name]) for name in ("type", "items", "values") if name in kept}
    fields = {"fields": [without_calendar(field) for field in kept["fields"]]} if "fields" in kept else {}
    return {**kept, **inner, **fields}
