"""Compound CQL types: collections, tuples, user types, vectors; and types named by a Java class.

Decoding, encoding and Cassandra's order of values. Source: Cassandra 3.11-5.0, db/marshal/*Type. This module
does not parse type texts (`types`, `marshal`)."""

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
"""Maximum nesting of types, through user types. Deeper ones are considered malicious."""
MAX_PARTS: Final = 10_000
"""Maximum number of types within a type, those of user types counted wherever they are used."""
MAX_DIMENSION: Final = (1 << 31) - 1
"""Maximum dimension of a vector; the minimum is 1 (Cassandra: VectorType uses int)."""
_BARE_NAME = re.compile(r"[a-z_][a-z0-9_]*")

_CUSTOM_FIXED_LENGTH: Final = {"DateType": 8, "LexicalUUIDType": 16}
_CUSTOM_KEY: Final[dict[str, Callable[[bytes], Any]]] = {"LexicalUUIDType": struct.Struct(">qq").unpack}
"""Exceptions from the order by unsigned bytes. LexicalUUIDType compares two signed halves, like Java's
UUID."""


def quoted(name: str) -> str:
    """A name in CQL: in double quotes if necessary."""
    return name if _BARE_NAME.fullmatch(name) and name not in NATIVE else '"' + name.replace('"', '""') + '"'


def shortened(text: str, longest: int = 200) -> str:
    """A text of a node as errors show it."""
    return text if len(text) <= longest else f"{text[:longest]}…"


@dataclass(slots=True)
class Bounds:
    """Counts the types that are parsed of one text and of the user types in it."""

    depth: int = 0
    parts: int = 0
    are_exceeded: bool = False

    def enter(self, error: Callable[[str], Exception]) -> None:
        """Count one type; the next ones are within it until `leave`. Raises `error` of the reason."""
        self.depth, self.parts = self.depth + 1, self.parts + 1
        self.are_exceeded = self.depth > MAX_DEPTH or self.parts > MAX_PARTS
        if self.depth > MAX_DEPTH:
            raise error(f"types are nested more than {MAX_DEPTH} deep")
        if self.parts > MAX_PARTS:
            raise error(f"a type consists of more than {MAX_PARTS} types")

    def leave(self) -> None:
        self.depth -= 1


@dataclass(frozen=True, eq=False)
class CustomType(CqlType):
    """A type named by its Java class (see `writetime.cassandra.types.marshal`). Values are bytes, ordered as
    bytes. `java_class` is the whole text."""

    java_class: str
    multicell: bool = False

    def __str__(self) -> str:
        return f"'{self.java_class}'"

    @property
    def fixed_length(self) -> int | None:  # type: ignore[override]
        return _CUSTOM_FIXED_LENGTH.get(self.class_name)

    @property
    def class_name(self) -> str:
        """The simple class name."""
        return self.java_class.split("(")[0].rsplit(".", 1)[-1]

    def _sort_key(self, data: bytes) -> Any:
        key = _CUSTOM_KEY.get(self.class_name)
        return data if key is None else (True, key(data)) if data else (False,)

    def _decode(self, data: bytes) -> bytes:
        return bytes(data)

    def _encode(self, value: Any) -> bytes:
        return bytes(value)


# --- compound types


def read_value(data: bytes, pos: int) -> tuple[bytes | None, int]:
    """One value with an i32 length prefix (negative = null), and the next position."""
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
        raise ValueError("the element count exceeds the bytes")
    values, pos = [], 4
    for _ in range(count * per_element):
        value, pos = read_value(data, pos)
        values.append(value)
    if pos != len(data):
        raise ValueError("bytes are left over")
    return values


def write_value(value: bytes | None) -> bytes:
    return b"\xff\xff\xff\xff" if value is None else struct.pack(">i", len(value)) + value


def _part_key(kind: CqlType, part: bytes | None) -> Any:
    # Null sorts first. The flag keeps keys comparable.
    return (0,) if part is None else (1, kind.sort_key(part))


def part_value(kind: CqlType, part: bytes | None) -> Any:
    return None if part is None else kind.decode(part)


def _part_bytes(kind: CqlType, value: Any) -> bytes:
    return write_value(None if value is None else kind.encode(value))


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
    """tuple: concatenated fields; missing fields at the end are null."""

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
    """A user type. `fields` is None if its definition is unknown: it can be skipped on the wire, but not
    decoded."""

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
        # Fields added by a later ALTER TYPE are ignored: the schema in force does not have them.
        return dict(zip(fields, _read_fields(tuple(fields.values()), data, exact=False), strict=True))

    def _encode(self, value: Any) -> bytes:
        fields = self.known_fields
        if value is EMPTY:
            return b""
        if unknown := value.keys() - fields.keys():
            raise ValueError(f"the user type has no field {min(unknown)!r}")
        return b"".join(_part_bytes(kind, value.get(name)) for name, kind in fields.items())


def _read_fields(kinds: Sequence[CqlType], data: bytes, *, exact: bool) -> list[Any]:
    values: list[Any] = []
    pos = 0
    for kind in kinds:
        part: bytes | None = None
        if pos < len(data):
            part, pos = read_value(data, pos)
        values.append(part_value(kind, part))
    if exact and pos != len(data):
        raise ValueError("bytes are left over")
    return values


def starting_fields(kinds: Sequence[CqlType], data: bytes) -> list[bytes | None]:
    """The fields of a tuple or user type without nulls at the end, but at least one; none for an empty value.

    Nulls at the end equal missing fields. The empty value comes first, also before a value of nulls only
    (TupleType.compareCustom). An empty field at the end is a field in later 4.0 releases, 4.1 and 5.0. The
    comparator of earlier releases was inconsistent: it treated an empty field as missing if the other value
    ended there, but not if that value had a null there, so whether such rows merged depended on the order of
    comparisons.
    """
    fields: list[bytes | None] = []
    pos = 0
    for _ in kinds:
        if pos >= len(data):
            break
        part, pos = read_value(data, pos)
        fields.append(part)
    while len(fields) > 1 and fields[-1] is None:
        fields.pop()
    return fields


def _fields_key(kinds: Sequence[CqlType], data: bytes) -> Any:
    return tuple(_part_key(kind, part) for kind, part in zip(kinds, starting_fields(kinds, data), strict=False))


@dataclass(frozen=True, eq=False)
class VectorType(CqlType):
    """vector<T, n> (Cassandra 5.0): n elements without a count; each with a vint length prefix if T has
    variable length."""

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
            raise ValueError(f"{len(value)} elements instead of {self.dimension}")
        parts = [self.element.encode(part) for part in value]
        length = self.element.fixed_length
        if length is None:
            return b"".join(write_unsigned(len(part)) + part for part in parts)
        if any(len(part) != length for part in parts):
            raise ValueError(f"an element is not {length} bytes long")
        return b"".join(parts)

    def parts(self, data: bytes) -> list[bytes]:
        """The elements of a non-empty value. Raises ValueError or IndexError if it is invalid."""
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
