"""CQL types: the grammar of type texts, bytes <-> Python values, and Cassandra's order of values.

A type text as system_schema.columns holds it (`map<text, frozen<addr>>`) becomes a `CqlType`. Simple types come from the table in
`native`; types made of others are small classes here. Only the outermost type can be multi-cell (a non-frozen collection or user type):
whatever is inside another type is frozen, said or not.

Python values are those of `native`, and list (list, vector; a set in element order), list of pairs (map), tuple, dict (user type).

Sources: Cassandra 3.11-5.0, db/marshal/*Type, cql3/CQL3Type. This module knows no Arrow, no JSON and no schema but the
user types it is given.
"""

from __future__ import annotations

import re
import struct
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, Final, Protocol

from writetime.commitlog.vint import read_unsigned, write_unsigned
from writetime.cql.native import EMPTY, NATIVE, CqlType, Duration, Empty, NativeType, timeuuid_key, uuid_key
from writetime.errors import DecodeError, SchemaError
from writetime.schema.model import UserType

__all__ = [
    "EMPTY",
    "NATIVE",
    "CollectionType",
    "CqlType",
    "CustomType",
    "Duration",
    "Empty",
    "NativeType",
    "TupleType",
    "Types",
    "UdtType",
    "VectorType",
    "assemble",
    "parse_type",
    "quoted",
    "read_values",
    "starting_fields",
    "timeuuid_key",
    "uuid_key",
    "wire_shape",
]

Types = Mapping[tuple[str, str], UserType]

_CUSTOM_FIXED_LENGTH: Final = {"DateType": 8, "LexicalUUIDType": 16}
_CUSTOM_KEY: Final[dict[str, Callable[[bytes], Any]]] = {"LexicalUUIDType": struct.Struct(">qq").unpack}
"""By unsigned bytes, but for these. LexicalUUIDType compares as Java's UUIDs do: two signed halves."""


@dataclass(frozen=True, eq=False)
class CustomType(CqlType):
    """A type named by its Java class (see `writetime.cql.marshal`): its values stay bytes, so ordered. `java_class`: the whole text."""

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


def _part(kind: CqlType, part: bytes | None) -> Any:
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
        values = [_part(self._at(i), part) for i, part in enumerate(read_values(data, len(self.elements)))]
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
        values.append(_part(kind, part))
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


# --- type texts -------------------------------------------------------------------------------------------------------------------

_TOKEN = re.compile(r"""\s*("(?:[^"]|"")*"|'[^']*'|[A-Za-z_][A-Za-z0-9_]*|\d+|[<>,.])""")
MAX_DEPTH: Final = 100
"""Types in types: more of them are no honest text."""
MAX_DIMENSION: Final = (1 << 31) - 1
"""Of a vector, and 1 is the least (Cassandra: VectorType counts in int)."""
_PUNCTUATION: Final = frozenset("<>,.")
_BARE_NAME = re.compile(r"[a-z_][a-z0-9_]*")


def quoted(name: str) -> str:
    """A name as CQL writes it: bare if it can be, else in double quotes."""
    return name if _BARE_NAME.fullmatch(name) and name not in NATIVE else '"' + name.replace('"', '""') + '"'


def parse_type(text: str, keyspace: str, types: Types) -> CqlType:
    """The type of a text such as `map<text, frozen<addr>>`; user types are looked up as (keyspace, name) in `types`.

    A user type that is not there still parses: it has its shape on the wire, and raises SchemaError when values are asked of it.
    Raises SchemaError if the text is no type.
    """
    parser = _Parser(text, keyspace, types)
    kind = parser.type(frozen=False)
    parser.end()
    return kind


@lru_cache(maxsize=4096)
def wire_shape(text: str) -> tuple[int | None, bool]:
    """(fixed length, multi-cell) of a type text: all that a reader of mutations needs of it, and independent of user types."""
    kind = parse_type(text, "", {})
    return kind.fixed_length, kind.multicell


class _Parser:
    """Recursive descent over one type text."""

    def __init__(self, text: str, keyspace: str, types: Types) -> None:
        self.text, self.keyspace, self.types = text, keyspace, types
        self.tokens = self._tokens()
        self.at = self.depth = 0

    def type(self, *, frozen: bool) -> CqlType:
        """One type; `frozen` says that it is inside another."""
        self.depth += 1
        if self.depth > MAX_DEPTH:
            raise self._error(f"it is more than {MAX_DEPTH} deep")
        kind = self._type(frozen)
        self.depth -= 1
        return kind

    def _type(self, frozen: bool) -> CqlType:
        token = self._next()
        if token.startswith("'"):
            # Classes are types made of the types here.
            from writetime.cql.marshal import class_type

            try:
                return class_type(token[1:-1])
            except SchemaError:
                # Whatever the text says, the values have their bytes.
                return CustomType(token[1:-1])
        if token.startswith('"'):
            return self._user_type(token[1:-1].replace('""', '"'), frozen)
        name = token.lower()
        if self._peek() == "<":
            return self._parametrized(name, frozen)
        return NATIVE[name] if name in NATIVE else self._user_type(name, frozen)

    def end(self) -> None:
        if self.at != len(self.tokens):
            raise self._error(f"{self.tokens[self.at]!r} is left over")

    def _parametrized(self, name: str, frozen: bool) -> CqlType:
        self._expect("<")
        if name == "frozen":
            inner = self.type(frozen=True)
            self._expect(">")
            return inner
        parameters = [self.type(frozen=True)]
        while self._peek() == ",":
            self._expect(",")
            if name == "vector":
                return self._vector(parameters[0])
            parameters.append(self.type(frozen=True))
        self._expect(">")
        if name == "tuple":
            return TupleType(tuple(parameters))
        if len(parameters) != {"list": 1, "set": 1, "map": 2}.get(name):
            raise self._error(f"no type {name} with {len(parameters)} parameters")
        return CollectionType(name, tuple(parameters), multicell=not frozen)

    def _vector(self, element: CqlType) -> VectorType:
        dimension = self._next()
        if not dimension.isdecimal() or len(dimension) > len(str(MAX_DIMENSION)) or not 0 < int(dimension) <= MAX_DIMENSION:
            raise self._error(f"{dimension!r} is no dimension")
        self._expect(">")
        return VectorType(element, int(dimension))

    def _user_type(self, name: str, frozen: bool) -> UdtType:
        keyspace = self.keyspace
        if self._peek() == ".":
            self._expect(".")
            keyspace, name = name, self._next().strip('"')
        definition = self.types.get((keyspace, name))
        fields = None
        if definition is not None:
            fields = {
                field: _Parser(text, keyspace, self.types).type(frozen=True)
                for field, text in zip(definition.field_names, definition.field_types, strict=True)
            }
        return UdtType(keyspace, name, fields, multicell=not frozen)

    def _tokens(self) -> list[str]:
        tokens, pos, text = [], 0, self.text.rstrip()
        while pos < len(text):
            match = _TOKEN.match(text, pos)
            if match is None:
                raise self._error(f"nothing known begins at {pos}")
            tokens.append(match[1])
            pos = match.end()
        return tokens

    def _peek(self) -> str | None:
        return self.tokens[self.at] if self.at < len(self.tokens) else None

    def _next(self) -> str:
        token = self._peek()
        if token is None or token in _PUNCTUATION:
            raise self._error("a type is missing")
        self.at += 1
        return token

    def _expect(self, token: str) -> None:
        if self._peek() != token:
            raise self._error(f"{token!r} is missing")
        self.at += 1

    def _error(self, message: str) -> SchemaError:
        return SchemaError(message, operation="parse a type", obj=self.text)


# --- cells to one value -----------------------------------------------------------------------------------------------------------


class Held(Protocol):
    """A live cell: the bytes of its value, and of the key of an element."""

    @property
    def value(self) -> bytes: ...

    @property
    def path(self) -> bytes | None: ...


def assemble(column_type: CqlType, cells: Sequence[Held]) -> Any:
    """The column's Python value from its live cells (in any order): None if there are none.

    List elements come in the order of their timeuuids, set elements and map entries in the order of their type; a user type has all its
    fields. Which cells are live is for the caller to say.
    """
    if not cells:
        return None
    if not column_type.multicell:
        return column_type.decode(cells[0].value)
    if isinstance(column_type, UdtType):
        return _assemble_udt(column_type, cells)
    if not isinstance(column_type, CollectionType):
        raise DecodeError("only collections and user types have a cell per element", operation="assemble a value", obj=str(column_type))
    order: CqlType = NATIVE["timeuuid"] if column_type.kind == "list" else column_type.elements[0]
    ordered = sorted(((cell.path or b"", cell.value) for cell in cells), key=lambda element: order.sort_key(element[0]))
    first, last = column_type.elements[0], column_type.elements[-1]
    if column_type.kind == "list":
        return [first.decode(value) for _, value in ordered]
    if column_type.kind == "set":
        return [first.decode(path) for path, _ in ordered]
    return [(first.decode(path), last.decode(value)) for path, value in ordered]


def _assemble_udt(column_type: UdtType, cells: Sequence[Held]) -> dict[str, Any]:
    values = {int.from_bytes(cell.path or b"", "big"): cell.value for cell in cells}
    return {name: _part(kind, values.get(index)) for index, (name, kind) in enumerate(column_type.known_fields.items())}
