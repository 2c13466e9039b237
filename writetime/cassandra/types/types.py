"""CQL types: parses type texts and assembles the values of columns.

A type text of system_schema.columns (`map<text, frozen<addr>>`) becomes a `CqlType`. Simple types are in
`native`, compound types in `compound`. Only the outermost type can be multi-cell (a non-frozen collection or
user type): a type inside another one is always frozen.

Python values are those of `native`, and list (list, vector; a set in element order), list of pairs (map),
tuple, dict (user type).

Sources: Cassandra 3.11-5.0, db/marshal/*Type, cql3/CQL3Type. This module does not know Arrow, JSON or the
schema, except for the user types passed to it.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from functools import lru_cache, partial
from typing import Any, Final, Protocol

from writetime.cassandra.schema.model import UserType
from writetime.cassandra.types.compound import (
    MAX_DIMENSION,
    Bounds,
    CollectionType,
    CustomType,
    TupleType,
    UdtType,
    VectorType,
    part_value,
    quoted,
    read_values,
    shortened,
    starting_fields,
)
from writetime.cassandra.types.marshal import class_type
from writetime.cassandra.types.native import (
    EMPTY,
    NATIVE,
    CqlType,
    Duration,
    Empty,
    NativeType,
    timeuuid_key,
    uuid_key,
)
from writetime.errors import DecodeError, SchemaError

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
    "elements",
    "names_user_types",
    "parse_type",
    "parts",
    "quoted",
    "read_values",
    "same_layout",
    "starting_fields",
    "timeuuid_key",
    "uuid_key",
    "wire_shape",
]

Types = Mapping[tuple[str, str], UserType]

MAX_TEXT: Final = 1 << 17
"""Maximum characters of a type text."""


# --- type texts

_TOKEN = re.compile(r"""\s*("(?:[^"]|"")*"|'[^']*'|[A-Za-z_][A-Za-z0-9_]*|\d+|[<>,.])""")
_PUNCTUATION: Final = frozenset("<>,.")


def parse_type(text: str, keyspace: str, types: Types) -> CqlType:
    """The type of a text such as `map<text, frozen<addr>>`; user types are looked up as (keyspace, name) in
    `types`.

    An unknown user type still parses: it can be skipped on the wire, and raises SchemaError when values are
    decoded. Raises SchemaError if the text is not a type, or one of more than MAX_PARTS types in MAX_DEPTH levels,
    those within its user types included: a type may contain itself, or twice one that contains another twice.
    """
    return _Parser(text, keyspace, types, Bounds()).whole(frozen=False)


@lru_cache(maxsize=4096)
def wire_shape(text: str) -> tuple[int | None, bool]:
    """(fixed length, multi-cell) of a type text. This is all that decoding mutations needs, and it needs no
    user types."""
    kind = parse_type(text, "", {})
    return kind.fixed_length, kind.multicell


def elements(kind: CqlType) -> tuple[CqlType, ...]:
    """The types directly within a type. Raises SchemaError if it is a user type that is not known."""
    if isinstance(kind, CollectionType):
        return kind.elements
    if isinstance(kind, TupleType):
        return kind.fields
    if isinstance(kind, UdtType):
        return tuple(kind.known_fields.values())
    return (kind.element,) if isinstance(kind, VectorType) else ()


def parts(kind: CqlType) -> Iterator[CqlType]:
    """A type and all types within it; of a user type that is not known only itself."""
    yield kind
    if not isinstance(kind, UdtType) or kind.fields is not None:
        for each in elements(kind):
            yield from parts(each)


def same_layout(one: CqlType, other: CqlType, *, grown: bool = False) -> bool:
    """Whether two types have equal values as bytes: a user type may be a tuple, and the outermost type frozen. `grown`: user types
    of the second one may have more fields, after those of the first one, whose names are the same."""
    alike = partial(same_layout, grown=grown)
    if isinstance(one, TupleType | UdtType) and isinstance(other, TupleType | UdtType):
        if any(isinstance(each, UdtType) and each.fields is None for each in (one, other)):
            return False
        if grown and isinstance(one, UdtType) and isinstance(other, UdtType):
            names = [*one.known_fields]
            return names == [*other.known_fields][: len(names)] and all(map(alike, elements(one), elements(other)))
        return len(elements(one)) == len(elements(other)) and all(map(alike, elements(one), elements(other)))
    if type(one) is not type(other) or len(elements(one)) != len(elements(other)):
        return False
    if isinstance(one, CollectionType) and isinstance(other, CollectionType) and one.kind != other.kind:
        return False
    if isinstance(one, VectorType) and isinstance(other, VectorType) and one.dimension != other.dimension:
        return False
    return all(map(alike, elements(one), elements(other))) if elements(one) else str(one) == str(other)


@lru_cache(maxsize=4096)
def names_user_types(text: str) -> bool:
    """Whether a type text has user types, which are defined elsewhere. Raises SchemaError."""
    return any(isinstance(part, UdtType) and part.fields is None for part in parts(parse_type(text, "", {})))


class _Parser:
    """Recursive descent over one type text."""

    def __init__(self, text: str, keyspace: str, types: Types, bounds: Bounds) -> None:
        self.text, self.keyspace, self.types, self.bounds = text, keyspace, types, bounds
        if len(text) > MAX_TEXT:
            raise self._error(f"the text of a type has {len(text)} characters, more than {MAX_TEXT}")
        self.tokens = self._tokens()
        self.at = 0

    def type(self, *, frozen: bool) -> CqlType:
        """One type; `frozen`: it is inside another type."""
        self.bounds.enter(self._error)
        kind = self._type(frozen)
        self.bounds.leave()
        return kind

    def _type(self, frozen: bool) -> CqlType:
        token = self._next()
        if token.startswith("'"):
            depth = self.bounds.depth
            try:
                return class_type(token[1:-1], self.bounds)
            except SchemaError:
                if self.bounds.are_exceeded:
                    raise
                self.bounds.depth = depth
                # Values of an invalid class can still be handled as bytes.
                return CustomType(token[1:-1])
        if token.startswith('"'):
            return self._user_type(token[1:-1].replace('""', '"'), frozen)
        name = token.lower()
        if self._peek() == "<":
            return self._parametrized(name, frozen)
        return NATIVE[name] if name in NATIVE else self._user_type(name, frozen)

    def whole(self, *, frozen: bool) -> CqlType:
        """The type of the whole text."""
        kind = self.type(frozen=frozen)
        if self.at != len(self.tokens):
            raise self._error(f"{self.tokens[self.at]!r} is left over")
        return kind

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
            raise self._error(f"there is no type {name} with {len(parameters)} parameters")
        return CollectionType(name, tuple(parameters), multicell=not frozen)

    def _vector(self, element: CqlType) -> VectorType:
        dimension = self._next()
        if element.fixed_length == 0:
            raise self._error(f"vectors of {element} have no elements")
        if not dimension.isdecimal() or len(dimension) > len(str(MAX_DIMENSION)) or not 0 < int(dimension) <= MAX_DIMENSION:
            raise self._error(f"{dimension!r} is not a valid dimension")
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
                field: _Parser(text, keyspace, self.types, self.bounds).whole(frozen=True)
                for field, text in zip(definition.field_names, definition.field_types, strict=True)
            }
        return UdtType(keyspace, name, fields, multicell=not frozen)

    def _tokens(self) -> list[str]:
        tokens, pos, text = [], 0, self.text.rstrip()
        while pos < len(text):
            match = _TOKEN.match(text, pos)
            if match is None:
                raise self._error(f"unexpected character at {pos}")
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
        return SchemaError(message, operation="parse a type", obj=shortened(self.text))


# --- cells to one value


class Held(Protocol):
    """A live cell: the bytes of its value and of its path."""

    @property
    def value(self) -> bytes: ...

    @property
    def path(self) -> bytes | None: ...


def assemble(column_type: CqlType, cells: Sequence[Held]) -> Any:
    """The column's Python value from its live cells (in any order), or None without cells.

    List elements are ordered by timeuuid, set elements and map entries by their type; a user type has all its
    fields. The caller passes only live cells.
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
    return {name: part_value(kind, values.get(index)) for index, (name, kind) in enumerate(column_type.known_fields.items())}
