"""CQL types that are made of others: collections, tuples, user types, vectors; and types named by a Java class.

Bytes to Python values and back, and Cassandra's order of values. Sources: Cassandra 3.11-5.0, db/marshal/*Type. Knows no type texts
(`types`, `marshal`)."""

from __future__ import annotations

import re
import struct
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Final

from writetime.cassandra.types.native import (
    EMPTY,
    NATIVE,
    CqlType,
    Empty,
)
from writetime.cassandra.types.vint import read_unsigned, write_unsigned
from writetime.errors import SchemaError

MAX_DEPTH: Final = 100
"""Types in types: more of them are no honest text."""
MAX_DIMENSION: Final = (1 << 31) - 1
"""Of a vector, and 1 is the least (Cassandra: VectorType counts in int)."""
_BARE_NAME = re.compile(r"[a-z_][a-z0-9_]*")

_CUSTOM_FIXED_LENGTH: Final = {"DateType": 8, "LexicalUUIDType": 16}
_CUSTOM_KEY: Final[dict[str, Callable[[bytes], Any]]] = {"LexicalUUIDType": struct.Struct(">qq").unpack}
"""By unsigned bytes, but for these. LexicalUUIDType compares as Java's UUIDs do: two signed halves."""


def quoted(name: str) -> str:
    """A name as CQL writes it: bare if it can be, else in double quotes."""
    return name if _BARE_NAME.fullmatch(name) and name not in NATIVE else '"' + name.replace('"', '""') + '"'


@dataclass(frozen=True, eq=False)
class CustomType(CqlType):
    """A type named by its Java class (see `writetime.cassandra.types.marshal`): its values stay bytes, so ordered. `java_class`: the whole
    text."""

    java_class: str
    multicell: bool = False

    def __str__(self) -> str:
        return f"'{self.java_class}'"

    @property
    def fixed_length(self) -> int | None:  # type: ignore[override]
        return _CUSTOM_FIXED_LENGTH.get(self.class_name)

    @property
    def class_name(self) -> str:
        """Simple name of the class."""
        return self.java_class.split("(")[0].rsplit(".", 1)[-1]

    def _sort_key(self, data: bytes) -> Any:
        key = _CUSTOM_KEY.get(self.class_name)
        return data if key is None else (True, key(data)) if data else (False,)

    def _decode(self, data: bytes) -> bytes:
        return bytes(data)

    def _encode(self, value: Any) -> bytes:
        return bytes(value)


# --- types made of others ---------------------------------------------------------------------------------------------------------


def _read_value(data: bytes, pos: int) -> tuple[bytes | None, int]:
    """One value behind its i32 length (negative = null), and the next position."""
    (length,) = struct.unpack_from(">i", data, pos)
    pos += 4
    if length < 0:
        return None, pos
    if pos + length > len(data):
        raise ValueError(f"the value at {pos} reaches past the end")
    return data[pos : pos + length], pos + length


def read_values(data: bytes, per_element: int) -> list[bytes | None]:
    """The values of a frozen collection: i32 count, then count x per_element values."""
    (count,) = struct.unpack_from(">i", data)
    if count < 0 or count * per_element * 4 > len(data) - 4:
        raise ValueError("its elements do not fit")
    values, pos = [], 4
    for _ in range(count * per_element):
        value, pos = _read_value(data, pos)
        values.append(value)
    if pos != len(data):
        raise ValueError("bytes are left over")
    return values


def _write_value(value: bytes | None) -> bytes:
    return b"\xff\xff\xff\xff" if value is None else struct.pack(">i", len(value)) + value


def _part_key(kind: CqlType, part: bytes | None) -> Any:
    # Null sorts first. The flag keeps keys comparable.
    return (0,) if part is None else (1, kind.sort_key(part))


def part_value(kind: CqlType, part: bytes | None) -> Any:
    return None if part is None else kind.decode(part)


def _part_bytes(kind: CqlType, value: Any) -> bytes:
    return _write_value(None if value is None else kind.encode(value))


@dataclass(frozen=True, eq=False)
class CollectionType(CqlType):
    """list, set or map; `elements` is (element,) or (key, value)."""

    kind: str
    elements: tuple[CqlType, ...]
    multicell: bool
    fixed_length: int | None = None

    def __str__(self) -> str:
        text = f"{self.kind}<{', '.join(map(str, self.elements))}>"
        return text if self.multicell else f"frozen<{text}>"

    def _sort_key(self, data: bytes) -> Any:
        if not data:
            return (False,)
        return True, tuple(_part_key(self._at(i), part) for i, part in enumerate(read_values(data, len(self.elements))))

    def _at(self, index: int) -> CqlType:
        return self.elements[index % len(self.elements)]

    def _decode(self, data: bytes) -> list[Any] | Empty:
        if not data:
            return EMPTY
        values = [part_value(self._at(i), part) for i, part in enumerate(read_values(data, len(self.elements)))]
        return values if self.kind != "map" else list(zip(values[::2], values[1::2], strict=True))

    def _encode(self, value: Any) -> bytes:
        if value is EMPTY:
            return b""
        flat = [part for pair in value for part in pair] if self.kind == "map" else list(value)
        encoded = [_part_bytes(self._at(i), part) for i, part in enumerate(flat)]
        return struct.pack(">i", len(value)) + b"".join(encoded)


@dataclass(frozen=True, eq=False)
class TupleType(CqlType):
    """tuple: fields one after the other; missing ones at the end are null."""

    fields: tuple[CqlType, ...]
    multicell: bool = False
    fixed_length: int | None = None

    def __str__(self) -> str:
        return f"tuple<{', '.join(map(str, self.fields))}>"

    def _sort_key(self, data: bytes) -> Any:
        return _fields_key(self.fields, data)

    def _decode(self, data: bytes) -> tuple[Any, ...] | Empty:
        return tuple(_read_fields(self.fields, data, exact=True)) if data else EMPTY

    def _encode(self, value: Any) -> bytes:
        if value is EMPTY:
            return b""
        return b"".join(_part_bytes(kind, part) for kind, part in zip(self.fields, value, strict=True))


@dataclass(frozen=True, eq=False)
class UdtType(CqlType):
    """A user type. `fields` is None if nobody has told its definition: it has its shape on the wire, but no values."""

    keyspace: str
    name: str
    fields: dict[str, CqlType] | None
    multicell: bool
    fixed_length: int | None = None

    def __str__(self) -> str:
        name = quoted(self.name)
        return name if self.multicell else f"frozen<{name}>"

    @property
    def known_fields(self) -> dict[str, CqlType]:
        """Field name -> type, in order. Raises SchemaError if the user type is not known."""
        if self.fields is None:
            raise SchemaError(
                "the user type is not known", operation="decode a value", obj=f"{self.keyspace}.{self.name}", hint="Ship a schema snapshot"
            )
        return self.fields

    def _sort_key(self, data: bytes) -> Any:
        return _fields_key(tuple(self.known_fields.values()), data)

    def _decode(self, data: bytes) -> dict[str, Any] | Empty:
        fields = self.known_fields
        if not data:
            return EMPTY
        # Fields that a later ALTER TYPE added are passed over: the schema in force does not name them.
        return dict(zip(fields, _read_fields(tuple(fields.values()), data, exact=False), strict=True))

    def _encode(self, value: Any) -> bytes:
        fields = self.known_fields
        if value is EMPTY:
            return b""
        if unknown := value.keys() - fields.keys():
            raise ValueError(f"it has no field {min(unknown)!r}")
        return b"".join(_part_bytes(kind, value.get(name)) for name, kind in fields.items())


def _read_fields(kinds: Sequence[CqlType], data: bytes, *, exact: bool) -> list[Any]:
    values: list[Any] = []
    pos = 0
    for kind in kinds:
        part: bytes | None = None
        if pos < len(data):
            part, pos = _read_value(data, pos)
        values.append(part_value(kind, part))
    if exact and pos != len(data):
        raise ValueError("bytes are left over")
    return values


def starting_fields(kinds: Sequence[CqlType], data: bytes) -> list[bytes | None]:
    """The fields of a tuple or user type up to the last that is not null; of nulls alone the first; of no bytes none.

    Nulls at the end are the same as fields that are not there, and the value of no bytes comes before all others, also before the one of
    nulls alone (TupleType.compareCustom). A field of no bytes at the end is a field: so say Cassandra's later 4.0 releases, 4.1 and 5.0.
    Before, the comparator took it for missing when the other value stops there, but not when that one has a null there, which is no
    order: such rows merged or not as they happened to be compared.
    """
    fields: list[bytes | None] = []
    pos = 0
    for _ in kinds:
        if pos >= len(data):
            break
        part, pos = _read_value(data, pos)
        fields.append(part)
    while len(fields) > 1 and fields[-1] is None:
        fields.pop()
    return fields


def _fields_key(kinds: Sequence[CqlType], data: bytes) -> Any:
    return tuple(_part_key(kind, part) for kind, part in zip(kinds, starting_fields(kinds, data), strict=False))


@dataclass(frozen=True, eq=False)
class VectorType(CqlType):
    """vector<T, n> (Cassandra 5.0): n elements without a count; each behind a vint length if T is of variable length."""

    element: CqlType
    dimension: int
    multicell: bool = False

    def __str__(self) -> str:
        return f"vector<{self.element}, {self.dimension}>"

    @property
    def fixed_length(self) -> int | None:  # type: ignore[override]
        return None if self.element.fixed_length is None else self.element.fixed_length * self.dimension

    def _sort_key(self, data: bytes) -> Any:
        return tuple(self.element.sort_key(part) for part in self.parts(data)) if data else ()

    def _decode(self, data: bytes) -> list[Any] | Empty:
        return [self.element.decode(part) for part in self.parts(data)] if data else EMPTY

    def _encode(self, value: Any) -> bytes:
        if value is EMPTY:
            return b""
        if len(value) != self.dimension:
            raise ValueError(f"{len(value)} elements")
        parts = [self.element.encode(part) for part in value]
        length = self.element.fixed_length
        if length is None:
            return b"".join(write_unsigned(len(part)) + part for part in parts)
        if any(len(part) != length for part in parts):
            raise ValueError(f"an element without its {length} bytes")
        return b"".join(parts)

    def parts(self, data: bytes) -> list[bytes]:
        """The elements of a value that has bytes. Raises ValueError or IndexError if it is none."""
        parts, pos = [], 0
        for _ in range(self.dimension):
            length = self.element.fixed_length
            if length is None:
                length, pos = read_unsigned(data, pos)
            if pos + length > len(data):
                raise ValueError("an element reaches past the end")
            parts.append(data[pos : pos + length])
            pos += length
        if pos != len(data):
            raise ValueError("bytes are left over")
        return parts
