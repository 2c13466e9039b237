"""Types named by Java classes, such as `org.apache.cassandra.db.marshal.CompositeType(…)`, with Thrift's two
composites.

Cassandra writes a class name if a type has no CQL name. Classes with a CQL name become that type, at any
depth. Values of composites are bytes, but have Cassandra's order and can be split. Any other class is bytes
with a class name.

    CompositeType(T1, T2, …)       a component: u16 size ‖ bytes ‖ u8 end;  prefix 0xFFFF: static
    DynamicCompositeType(a=>T, …)  a component: u16 (0x8000 | alias) or u16 size ‖ class name, then as above

Sources: Cassandra 3.11-5.0, db/marshal/TypeParser, AbstractCompositeType, CompositeType,
DynamicCompositeType, ReversedType. This module does not know the CQL grammar.
"""

from __future__ import annotations

import re
import struct
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, Final, NamedTuple

from writetime.cassandra.types.compound import (
    MAX_DIMENSION,
    Bounds,
    CollectionType,
    CustomType,
    TupleType,
    UdtType,
    VectorType,
    shortened,
)
from writetime.cassandra.types.native import NATIVE, CqlType, NativeType
from writetime.errors import MalformedMutation, SchemaError

PACKAGE: Final = "org.apache.cassandra.db.marshal."
NATIVE_CLASSES: Final[dict[str, str]] = {
    "AsciiType": "ascii",
    "BooleanType": "boolean",
    "ByteType": "tinyint",
    "BytesType": "blob",
    "CounterColumnType": "counter",
    "DecimalType": "decimal",
    "DoubleType": "double",
    "DurationType": "duration",
    "EmptyType": "empty",
    "FloatType": "float",
    "InetAddressType": "inet",
    "Int32Type": "int",
    "IntegerType": "varint",
    "LongType": "bigint",
    "ShortType": "smallint",
    "SimpleDateType": "date",
    "TimeType": "time",
    "TimeUUIDType": "timeuuid",
    "TimestampType": "timestamp",
    "UTF8Type": "text",
    "UUIDType": "uuid",
}
"""Simple class name -> CQL type. DateType and LexicalUUIDType are missing: they are not ordered like
timestamp and uuid."""

_CLASS_OF: Final = {**{cql: java for java, cql in NATIVE_CLASSES.items()}, "varchar": "UTF8Type"}
_COLLECTIONS: Final = {"ListType": "list", "SetType": "set", "MapType": "map"}
_ALIAS: Final = 0x8000
_STATIC: Final = b"\xff\xff"
_PUNCTUATION: Final = frozenset({"(", ")", ",", ":", "=>"})
_TOKEN = re.compile(r"\s*([(),:]|=>|[^\s(),:=]+)")


class Component(NamedTuple):
    """One part of a composite. `header` is the type, only in dynamic composites; `end` is -1, 0 or 1."""

    header: bytes
    value: bytes
    end: int


class Descending:
    """A sort key in reverse order (Cassandra reverses empty values too, but never nulls)."""

    __slots__ = ("key",)

    def __init__(self, key: Any) -> None:
        self.key = key

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Descending) and bool(self.key == other.key)

    def __hash__(self) -> int:
        return hash(self.key)

    def __lt__(self, other: Descending) -> bool:
        return bool(other.key < self.key)

    def __le__(self, other: Descending) -> bool:
        return not self.key < other.key

    def __repr__(self) -> str:
        return f"Descending({self.key!r})"


@dataclass(frozen=True, eq=False)
class ReversedType(CqlType):
    """Values of another type in reverse order. `java_class` is the whole text."""

    java_class: str
    base: CqlType
    multicell: bool = False

    def __str__(self) -> str:
        return f"'{self.java_class}'"

    @property
    def fixed_length(self) -> int | None:  # type: ignore[override]
        return self.base.fixed_length

    def _sort_key(self, data: bytes) -> Any:
        return Descending(self.base.sort_key(data))

    def _decode(self, data: bytes) -> Any:
        return self.base.decode(data)

    def _encode(self, value: Any) -> bytes:
        return self.base.encode(value)


@dataclass(frozen=True, eq=False)
class CompositeType(CustomType):
    """CompositeType: at most as many components as the class has parameters."""

    kinds: tuple[CqlType, ...] = ()

    def split(self, data: bytes) -> tuple[bool, list[Component]]:
        """Whether it is static, and its components. Raises MalformedMutation if the bytes are not a
        composite."""
        static = data[:2] == _STATIC
        return static, _components(data, 2 if static else 0, dynamic=False)

    def join(self, components: Sequence[Component], *, static: bool = False) -> bytes:
        """Inverse of `split`."""
        return (_STATIC if static else b"") + _joined(components)

    def _sort_key(self, data: bytes) -> Any:
        static, parts = self.split(data)
        return bool(data), not static, tuple((kind.sort_key(p.value), p.end) for kind, p in zip(self.kinds, parts, strict=False))


@dataclass(frozen=True, eq=False)
class DynamicCompositeType(CustomType):
    """DynamicCompositeType: every component has its type, as an alias or a class name."""

    aliases: tuple[tuple[str, CqlType], ...] = ()

    def split(self, data: bytes) -> list[Component]:
        """Its components. Raises MalformedMutation if the bytes are not a composite."""
        return _components(data, 0, dynamic=True)

    def join(self, components: Sequence[Component]) -> bytes:
        """Inverse of `split`."""
        return _joined(components)

    def kind_of(self, component: Component) -> CqlType:
        """The type of a component. Raises MalformedMutation for an unknown alias or an invalid class name."""
        (size,) = struct.unpack_from(">H", component.header)
        try:
            if not size & _ALIAS:
                return class_type(component.header[2:].decode())
            return dict(self.aliases)[chr(size & 0xFF)]
        except (SchemaError, UnicodeDecodeError, KeyError) as error:
            raise MalformedMutation(
                f"a component has an unknown type: {error}", operation="read a composite", obj=self.java_class
            ) from error

    def _sort_key(self, data: bytes) -> Any:
        return tuple((*_typed_key(self.kind_of(part), part.value), part.end) for part in self.split(data))


def _typed_key(kind: CqlType, value: bytes) -> tuple[str, str, Any]:
    # Components of different types are ordered by class name (DynamicCompositeType.getComparator).
    base = class_name(kind.base) if isinstance(kind, ReversedType) else ""
    return class_name(kind), base, kind.sort_key(value)


def _components(data: bytes, pos: int, *, dynamic: bool) -> list[Component]:
    found: list[Component] = []
    while pos < len(data):
        start = pos
        if dynamic:
            size = _size(data, pos)
            pos += 2 if size & _ALIAS else 2 + size
        header, size = data[start:pos], _size(data, pos)
        pos += 2 + size + 1
        if pos > len(data):
            raise MalformedMutation("a component reaches past the end", operation="read a composite", position=start)
        found.append(Component(header, data[pos - size - 1 : pos - 1], data[pos - 1] - ((data[pos - 1] & 0x80) << 1)))
    return found


def _size(data: bytes, pos: int) -> int:
    if pos + 2 > len(data):
        raise MalformedMutation("a size is missing", operation="read a composite", position=pos)
    return int.from_bytes(data[pos : pos + 2], "big")


def _joined(components: Sequence[Component]) -> bytes:
    return b"".join(part.header + struct.pack(">H", len(part.value)) + part.value + struct.pack(">b", part.end) for part in components)


# --- class texts


def class_type(text: str, bounds: Bounds | None = None) -> CqlType:
    """The type of a class with its parameters; classes without a package are Cassandra's own. An unknown
    class becomes a CustomType. Raises SchemaError if a known class has invalid parameters, or the type exceeds the
    bounds."""
    try:
        parser = _ClassParser(text, bounds or Bounds())
        kind = parser.type()
        parser.end()
    except (IndexError, ValueError, UnicodeDecodeError) as error:
        raise SchemaError(f"not a valid class name with parameters: {error}", operation="parse a type", obj=shortened(text)) from error
    return kind


def class_text(kind: CqlType) -> str:
    """The class of a type with its parameters, which needs no definitions of user types. Inverse of `class_type`.
    Raises SchemaError if a user type is not known."""
    if isinstance(kind, CustomType | ReversedType):
        return kind.java_class
    if isinstance(kind, NativeType):
        return PACKAGE + _CLASS_OF[kind.name]
    if isinstance(kind, CollectionType):
        parameters = [class_text(each) for each in kind.elements]
    elif isinstance(kind, TupleType):
        parameters = [class_text(each) for each in kind.fields]
    elif isinstance(kind, VectorType):
        parameters = [class_text(kind.element), str(kind.dimension)]
    else:
        assert isinstance(kind, UdtType)
        parameters = [kind.keyspace, _hex(kind.name), *(f"{_hex(name)}:{class_text(each)}" for name, each in kind.known_fields.items())]
    text = f"{PACKAGE}{class_name(kind)}({','.join(parameters)})"
    return text if kind.multicell or not isinstance(kind, CollectionType | UdtType) else f"{PACKAGE}FrozenType({text})"


def _hex(name: str) -> str:
    return name.encode("utf-8", "surrogateescape").hex()


def class_name(kind: CqlType) -> str:
    """The simple class name of a type from `class_type`."""
    if isinstance(kind, CustomType | ReversedType):
        return kind.java_class.split("(", 1)[0].rsplit(".", 1)[-1].strip()
    if isinstance(kind, CollectionType):
        return next(java for java, name in _COLLECTIONS.items() if name == kind.kind)
    shapes: dict[type[CqlType], str] = {TupleType: "TupleType", UdtType: "UserType", VectorType: "VectorType"}
    return shapes[type(kind)] if type(kind) in shapes else next(java for java, name in NATIVE_CLASSES.items() if name == str(kind))


class _ClassParser:
    """Recursive descent over `Class(parameter, …)`; a parameter is a class, a number, `alias=>class` or
    `hex:class`."""

    def __init__(self, text: str, bounds: Bounds) -> None:
        self.text, self.bounds = text, bounds
        self.tokens: list[tuple[str, int, int]] = []
        pos, end = 0, len(text.rstrip())
        while pos < end:
            match = _TOKEN.match(text, pos)
            if match is None:
                raise ValueError(f"unexpected character at {pos}")
            self.tokens.append((match[1], match.start(1), match.end(1)))
            pos = match.end()
        self.at = 0

    def type(self, *, frozen: bool = False) -> CqlType:
        self.bounds.enter(ValueError)
        kind = self._type(frozen)
        self.bounds.leave()
        return kind

    def _type(self, frozen: bool) -> CqlType:
        start = self.tokens[self.at][1]
        name = self._next()
        if name in _PUNCTUATION:
            raise ValueError(f"{name!r} is not a class name")
        package, _, simple = name.rpartition(".")
        known = not package or f"{package}." == PACKAGE
        if known and simple in NATIVE_CLASSES:
            return NATIVE[NATIVE_CLASSES[simple]]
        if known and simple in _PARAMETRIZED:
            kind = self._parametrized(simple, frozen)
            # Types without a CQL name keep their text.
            return replace(kind, java_class=self._text_since(start)) if isinstance(kind, CustomType | ReversedType) else kind
        if self._peek() == "(":
            self._skip()
        return CustomType(self._text_since(start))

    def end(self) -> None:
        if self.at != len(self.tokens):
            raise ValueError(f"{self.tokens[self.at][0]!r} is left over")

    def _parametrized(self, name: str, frozen: bool) -> CqlType:
        if name == "UserType":
            return self._user_type(frozen)
        if name == "DynamicCompositeType":
            return DynamicCompositeType("", aliases=tuple(self._aliases()))
        if name == "VectorType":
            return self._vector()
        kinds = self._types(frozen=name not in ("CompositeType", "ReversedType"))
        if name in _COLLECTIONS:
            if len(kinds) != (2 if name == "MapType" else 1):
                raise ValueError(f"{name} cannot have {len(kinds)} parameters")
            return CollectionType(_COLLECTIONS[name], tuple(kinds), multicell=not frozen)
        if name == "TupleType":
            return TupleType(tuple(kinds))
        if name == "CompositeType":
            return CompositeType("", kinds=tuple(kinds))
        (kind,) = kinds
        return ReversedType("", kind) if name == "ReversedType" else kind

    def _types(self, *, frozen: bool) -> list[CqlType]:
        self._expect("(")
        kinds = [self.type(frozen=frozen)]
        while self._peek() == ",":
            self._expect(",")
            kinds.append(self.type(frozen=frozen))
        self._expect(")")
        return kinds

    def _vector(self) -> VectorType:
        self._expect("(")
        element = self.type(frozen=True)
        self._expect(",")
        dimension = int(self._next())
        if not 0 < dimension <= MAX_DIMENSION or element.fixed_length == 0:
            raise ValueError(f"{dimension} is not a valid dimension")
        self._expect(")")
        return VectorType(element, dimension)

    def _aliases(self) -> list[tuple[str, CqlType]]:
        aliases: list[tuple[str, CqlType]] = []
        if self._peek() != "(":
            return aliases
        self._expect("(")
        while self._peek() != ")":
            if aliases:
                self._expect(",")
            alias = self._next()
            self._expect("=>")
            aliases.append((alias, self.type(frozen=True)))
        self._expect(")")
        return aliases

    def _user_type(self, frozen: bool) -> UdtType:
        self._expect("(")
        keyspace = self._next()
        self._expect(",")
        name = bytes.fromhex(self._next()).decode()
        fields: dict[str, CqlType] = {}
        while self._peek() == ",":
            self._expect(",")
            field = bytes.fromhex(self._next()).decode()
            self._expect(":")
            if field in fields:
                raise ValueError("a user type has two fields of one name")
            fields[field] = self.type(frozen=True)
        self._expect(")")
        return UdtType(keyspace, name, fields, multicell=not frozen)

    def _skip(self) -> None:
        """Skip the parameters of an unknown class."""
        depth = 0
        while True:
            token = self._next()
            depth += (token == "(") - (token == ")")  # noqa: S105 - of a grammar
            if not depth:
                return

    def _text_since(self, start: int) -> str:
        return self.text[start : self.tokens[self.at - 1][2]]

    def _peek(self) -> str | None:
        return self.tokens[self.at][0] if self.at < len(self.tokens) else None

    def _next(self) -> str:
        if self.at >= len(self.tokens):
            raise ValueError("the text ends early")
        self.at += 1
        return self.tokens[self.at - 1][0]

    def _expect(self, token: str) -> None:
        if self._peek() != token:
            raise ValueError(f"{token!r} is missing")
        self.at += 1


_PARAMETRIZED: Final = frozenset(
    {*_COLLECTIONS, "CompositeType", "DynamicCompositeType", "FrozenType", "ReversedType", "TupleType", "UserType", "VectorType"}
)
