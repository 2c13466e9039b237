"""Arbitrarily nested types and their values, for property tests."""

from __future__ import annotations

from collections.abc import Mapping
from decimal import Decimal
from typing import Any

from hypothesis import strategies as st

from writetime.cassandra.schema.model import UserType
from writetime.cassandra.types.types import (
    EMPTY,
    CollectionType,
    CqlType,
    CustomType,
    Duration,
    NativeType,
    TupleType,
    UdtType,
    VectorType,
    parse_type,
)
from writetime.events.values import TEXT_KEYS

TYPES = {
    ("k", "addr"): UserType("k", "addr", ("street", "zip", "tags"), ("text", "int", "frozen<set<text>>")),
    ("k", "person"): UserType("k", "person", ("name", "home", "work"), ("text", "frozen<addr>", "frozen<addr>")),
    ("k", "Odd Name"): UserType("k", "Odd Name", ("x", "X", "a.b", "größe", "_x58_"), ("int", "uuid", "varint", "duration", "text")),
}
TEXT = st.text(st.characters(exclude_categories=["Cs"]), max_size=12)
CUSTOM = "'org.example.Custom'"


def decimal_of(sign: int, unscaled: int, scale: int) -> Decimal:
    return Decimal((sign, tuple(map(int, str(unscaled))), -scale))


NATIVE_VALUES: dict[str, st.SearchStrategy[Any]] = {
    "ascii": st.text(st.characters(max_codepoint=127), max_size=12),
    "text": TEXT,
    "varchar": TEXT,
    "blob": st.binary(max_size=12),
    "boolean": st.booleans(),
    "tinyint": st.integers(-(2**7), 2**7 - 1),
    "smallint": st.integers(-(2**15), 2**15 - 1),
    "int": st.integers(-(2**31), 2**31 - 1),
    "bigint": st.integers(-(2**63), 2**63 - 1),
    "timestamp": st.integers(-(2**63), 2**63 - 1),
    "float": st.floats(width=32),
    "double": st.floats(),
    "varint": st.integers() | st.integers(-(10**4400), 10**4400),
    "decimal": st.builds(decimal_of, st.integers(0, 1), st.integers(1, 10**60), st.integers(-(2**31), 2**31 - 1))
    | st.builds(decimal_of, st.just(0), st.just(0), st.integers(-(2**31), 2**31 - 1)),
    "date": st.integers(-(2**31), 2**31 - 1),
    "time": st.integers(-(2**63), 2**63 - 1) | st.integers(0, 86_399_999_999_999),
    "duration": st.builds(Duration, st.integers(0, 2**31 - 1), st.integers(0, 2**31 - 1), st.integers(0, 2**63 - 1))
    | st.builds(Duration, st.integers(-(2**31), 0), st.integers(-(2**31), 0), st.integers(-(2**63), 0)),
    "inet": st.ip_addresses().map(str),
    "uuid": st.uuids(),
    "timeuuid": st.uuids(version=1),
    "empty": st.just(EMPTY),
}
"""All types except counters, which cannot be encoded."""

_NATIVES = sorted(NATIVE_VALUES)
_LEAVES = (*_NATIVES, "frozen<addr>", "frozen<person>", 'frozen<"Odd Name">', CUSTOM)
_SHAPES = ("leaf", "list", "set", "map", "tuple", "vector")


def _text(draw: st.DrawFn, depth: int) -> str:
    """Text of a frozen type, up to `depth` deep."""
    shape = draw(st.sampled_from(_SHAPES)) if depth > 1 else "leaf"
    if shape == "leaf":
        return draw(st.sampled_from(_LEAVES))
    inner = _text(draw, depth - 1)
    if shape == "map":
        key = draw(st.sampled_from(_NATIVES)) if draw(st.booleans()) else _text(draw, depth - 1)
        return f"frozen<map<{key}, {inner}>>"
    if shape == "tuple":
        return f"tuple<{inner}, {draw(st.sampled_from(_LEAVES))}>"
    if shape == "vector":
        # Empty elements only would give an empty vector.
        return f"vector<{'int' if inner == 'empty' else inner}, {draw(st.integers(1, 3))}>"
    return f"frozen<{shape}<{inner}>>"


def kind_of(text: str) -> CqlType:
    return parse_type(text, "k", TYPES)


Limits = Mapping[str, st.SearchStrategy[Any]]


@st.composite
def typed_values(draw: st.DrawFn, depth: int = 4, limits: Limits | None = None, empty_keys: bool = True) -> tuple[str, Any]:
    """A type's text, up to `depth` deep, and a value of it. `limits`: other strategies for some natives. Not
    all keys can be empty everywhere."""
    text = _text(draw, depth)
    return text, _Drawn(draw, {**NATIVE_VALUES, **(limits or {})}, empty_keys).value(kind_of(text))


@st.composite
def values_of(draw: st.DrawFn, text: str, limits: Limits | None = None) -> Any:
    """A value of the type of this text."""
    return _Drawn(draw, {**NATIVE_VALUES, **(limits or {})}, True).value(kind_of(text))


class _Drawn:
    """Draws values step by step, because building nested strategies takes far longer."""

    def __init__(self, draw: st.DrawFn, natives: Limits, empty_keys: bool) -> None:
        self.draw, self.natives, self.empty_keys = draw, natives, empty_keys

    def value(self, kind: CqlType, *, empty: bool = True) -> Any:
        may_be_empty = empty and not isinstance(kind, CustomType) and not (isinstance(kind, NativeType) and kind.has_empty)
        if may_be_empty and self.draw(st.integers(0, 5)) == 5:
            return EMPTY
        if isinstance(kind, NativeType):
            return self.draw(self.natives[kind.name])
        return self.draw(st.binary(max_size=8)) if isinstance(kind, CustomType) else self._made_of(kind)

    def _made_of(self, kind: CqlType) -> Any:
        count = self.draw(st.integers(0, 3))
        if isinstance(kind, CollectionType) and kind.kind == "map":
            return [(key, self._part(kind.elements[1])) for key in self._keys(kind.elements[0], count)]
        if isinstance(kind, CollectionType):
            return [self._part(kind.elements[0]) for _ in range(count)]
        if isinstance(kind, VectorType):
            return [self.value(kind.element, empty=kind.element.fixed_length is None) for _ in range(kind.dimension)]
        if isinstance(kind, UdtType):
            return {name: self._part(field) for name, field in kind.known_fields.items()}
        assert isinstance(kind, TupleType)
        return tuple(self._part(field) for field in kind.fields)

    def _part(self, kind: CqlType) -> Any:
        return None if self.draw(st.integers(0, 5)) == 5 else self.value(kind)

    def _keys(self, kind: CqlType, count: int) -> list[Any]:
        empty = self.empty_keys or str(kind) in TEXT_KEYS
        keys = [self.value(kind, empty=empty and str(kind) != "empty") for _ in range(count)]
        # Arrow and Avro reject keys that differ only in an empty and a null part; a separate test covers
        # that.
        return list({exact(shown(kind, key, frozenset())): key for key in keys}.values())


def exact(value: Any) -> str:
    """A text that is equal only for identical values: it distinguishes 1 from True, 0.0 from -0.0, 1.0 from
    1.00."""
    if isinstance(value, dict):
        return exact(sorted(value.items()))
    if isinstance(value, Duration):
        return repr(value)
    if isinstance(value, list | tuple):
        return f"{type(value).__name__}({', '.join(map(exact, value))})"
    return hex(value) if isinstance(value, int) and not isinstance(value, bool) else repr(value)


def shown(kind: CqlType, value: Any, keeps: frozenset[str]) -> Any:
    """The value with EMPTY as null, except in types named in `keeps` and in text keys."""
    if value is None:
        return None
    if value is EMPTY:
        return EMPTY if isinstance(kind, NativeType) and kind.name in keeps else None
    if isinstance(kind, CollectionType) and kind.kind == "map":
        key, element = kind.elements
        in_keys = keeps | TEXT_KEYS
        return [(shown(key, k, in_keys if str(key) in TEXT_KEYS else keeps), shown(element, v, keeps)) for k, v in value]
    if isinstance(kind, CollectionType):
        return [shown(kind.elements[0], one, keeps) for one in value]
    if isinstance(kind, VectorType):
        return [shown(kind.element, one, keeps) for one in value]
    if isinstance(kind, UdtType):
        return {name: shown(field, value[name], keeps) for name, field in kind.known_fields.items()}
    if isinstance(kind, TupleType):
        return tuple(shown(field, one, keeps) for field, one in zip(kind.fields, value, strict=True))
    return value
