"""Random types and values: CQL types that Cassandra 5.0 accepts, and values as its Python driver accepts
them.

Strategy: a few values per native type, including edge cases, so that equal ones recur; sometimes any value.
Values are encoded by the driver, not by the product; only the grammar of type texts is shared. What the driver
would not write is `Raw`, which statements write as a call of `blobas…`: an empty value (no bytes, unlike null), and
elements in other spellings.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from decimal import Decimal
from random import Random
from typing import Any, Final
from uuid import UUID

from cassandra.util import Date, Duration, OrderedMap, Time

from writetime.cassandra.schema.model import UserType
from writetime.cassandra.types.types import (
    CollectionType,
    CqlType,
    NativeType,
    TupleType,
    UdtType,
    VectorType,
    parse_type,
)


@dataclass(frozen=True)
class Raw:
    """A value of a native type as bytes; by default the one without any, which is not null."""

    kind: str
    data: bytes = b""


HAS_EMPTY: Final = ("bigint", "boolean", "decimal", "double", "float", "inet", "int", "timestamp", "timeuuid", "uuid", "varint")
"""Types that take no bytes for a value though they are no text."""

_ENDS: Final = {"tinyint": 7, "smallint": 15, "int": 31, "bigint": 63}


def _timeuuid(random: Random) -> UUID:
    time = random.getrandbits(60)
    return UUID(
        int=(time & 0xFFFFFFFF) << 96 | (time >> 32 & 0xFFFF) << 80 | 1 << 76 | (time >> 48) << 64 | 2 << 62 | random.getrandbits(62)
    )


def _word(random: Random) -> str:
    return "".join(random.choice("abé木z ") for _ in range(random.randint(1, 12)))


NATIVE: Final[Mapping[str, Sequence[Any]]] = {
    "ascii": ("a", "b", "", "~", "aa"),
    "bigint": (1, 0, -1, 2**63 - 1, -(2**63)),
    "blob": (b"a", b"", b"\0", b"\xff\xff", b"a\0"),
    "boolean": (True, False),
    "date": (Date(0), Date(-1), Date(20_000), Date(-(10**5)), Date(10**6)),
    "decimal": tuple(map(Decimal, ("1.0", "0", "-0.1", "1E+10", "12345678901234567890.000001"))),
    "double": (1.5, 0.0, -0.0, -1.5, 1e300, float("inf"), float("nan")),
    "duration": (Duration(0, 0, 0), Duration(1, 2, 3), Duration(-1, -2, -3), Duration(0, 0, 2**40)),
    "float": (1.5, 0.0, -0.0, -1.5, float("-inf"), float("nan")),
    "inet": ("127.0.0.1", "255.255.255.255", "::1", "2001:db8::ffff", "10.0.0.1"),
    "int": (1, 0, -1, 2**31 - 1, -(2**31)),
    "smallint": (1, 0, -1, 2**15 - 1, -(2**15)),
    "text": ("a", "b", "", "grün 木 😀", "aa"),
    "time": (Time(0), Time(86_399_999_999_999), Time(1), Time(45_000_000_000_000)),
    # Milliseconds since 1970.
    "timestamp": (0, 1, -1, 1_700_000_000_000, 253_402_300_799_000),
    "timeuuid": tuple(
        map(UUID, ("8d3e1c60-0000-11f1-8000-000000000000", "8d3e1c60-0000-11f1-8080-808080808080", "00000000-0000-1000-8000-00000000007f"))
    ),
    "tinyint": (1, 0, -1, 127, -128),
    "uuid": (
        UUID(int=0),
        UUID(int=2**128 - 1),
        *map(UUID, ("6b8d1a2e-93a1-4a5e-8b0d-0a1b2c3d4e5f", "8d3e1c60-0000-11f1-8000-000000000000")),
    ),
    "varchar": ("a", "", "é"),
    "varint": (1, 0, -1, 127, 128, 2**70, -(2**70)),
}
"""Values of every native type but counter; no two of a type that Cassandra compares as equal."""

EQUALS: Final = tuple(map(Decimal, ("1.00", "1")))
"""Decimals that are the same clustering and element as 1.0, but not the same partition key."""

SPELLINGS: Final[Mapping[str, Sequence[bytes]]] = {
    "boolean": (b"\2", b"\xff"),
    "decimal": (b"\0\0\0\2\0\0\x64", b"\0\0\0\5\0"),
    "double": (b"\x7f\xf8\0\0\0\0\0\1", b"\xff" * 8),
    "float": (b"\x7f\xc0\0\1", b"\xff" * 4),
    "varint": (b"\0\1", b"\0\0\x7f", b"\xff\xff", b"\0\0"),
}
"""Other spellings of values in `NATIVE`: equal as elements."""

ONES: Final[Mapping[str, Sequence[bytes]]] = {
    "decimal": (b"\0\0\0\0\1", b"\0\0\0\1\x0a", b"\0\0\0\2\0\0\x64"),
    "varint": (b"\1", b"\0\1", b"\0\0\0\1"),
}
"""Spellings of 1."""

_ANY: Final[Mapping[str, Callable[[Random], Any]]] = {
    "ascii": lambda random: "".join(chr(random.randrange(32, 127)) for _ in range(random.randint(1, 20))),
    "blob": lambda random: random.randbytes(random.randint(1, 40)),
    "date": lambda random: Date(random.randrange(-(10**5), 10**5)),
    "decimal": lambda random: Decimal(random.randrange(-(10**9), 10**9)).scaleb(-random.randint(0, 6)),
    "double": lambda random: random.uniform(-1e6, 1e6),
    "duration": lambda random: Duration(random.randrange(50), random.randrange(50), random.randrange(10**9)),
    "float": lambda random: random.randrange(-(2**20), 2**20) / 64,
    "inet": lambda random: f"198.51.100.{random.randrange(256)}",
    "text": _word,
    "time": lambda random: Time(random.randrange(86_400_000_000_000)),
    "timestamp": lambda random: random.randrange(10**12, 2 * 10**12),
    "timeuuid": _timeuuid,
    "uuid": lambda random: UUID(int=random.getrandbits(128), version=4),
    "varchar": _word,
    "varint": lambda random: random.randrange(-(2**90), 2**90),
}


def fresh(kind: str, number: int) -> Any:
    """A value of a type with room, another one for every number, and none of `NATIVE`."""
    made: dict[str, Callable[[], Any]] = {
        "int": lambda: 1000 + number,
        "bigint": lambda: 10**12 + number,
        "varint": lambda: 10**30 + number,
        "text": lambda: f"fresh {number}",
        "ascii": lambda: f"fresh {number}",
        "blob": lambda: b"fresh" + number.to_bytes(4, "big"),
        "uuid": lambda: UUID(int=number, version=4),
        "timestamp": lambda: 10**9 + number,
    }
    return made[kind]()


ROOMY: Final = ("int", "bigint", "varint", "text", "ascii", "blob", "uuid", "timestamp")


class Values:
    """Values of types, from one source of chance."""

    def __init__(self, random: Random) -> None:
        self.random = random
        self._few: dict[str, list[tuple[Any, ...]]] = {}

    def of(self, kind: CqlType, *, empty: bool = False) -> Any:
        """A value that is not null. With `empty`, now and then one without bytes at the top."""
        if isinstance(kind, NativeType):
            if empty and kind.name in HAS_EMPTY and self.random.random() < 0.5:
                return Raw(kind.name)
            return self._native(kind.name)
        return self._made_of_others(kind)

    def _native(self, name: str) -> Any:
        if self.random.random() < 0.6 or name == "boolean":
            return self.random.choice(NATIVE[name])
        if name in _ENDS:
            return self.random.randrange(-(2 ** _ENDS[name]), 2 ** _ENDS[name])
        return _ANY[name](self.random)

    def _made_of_others(self, kind: CqlType) -> Any:
        if isinstance(kind, CollectionType):
            count = self.random.choice((0, 1, 1, 2, 3))
            if kind.kind == "list":
                return [self.of(kind.elements[0]) for _ in range(count)]
            keys = self.keys(kind, count)
            return keys if kind.kind == "set" else OrderedMap([(key, self.of(kind.elements[1])) for key in keys])
        if isinstance(kind, VectorType):
            return [self.of(kind.element) for _ in range(kind.dimension)]
        assert isinstance(kind, TupleType | UdtType)
        parts = kind.fields if isinstance(kind, TupleType) else tuple(kind.known_fields.values())
        return tuple(None if self.random.random() < 0.2 else self.of(part) for part in parts)

    def keys(self, kind: CollectionType, count: int) -> list[Any]:
        """Elements of a set or keys of a map, out of few, so that equal ones recur; not always in one spelling."""
        return distinct([self._key(kind.elements[0]) for _ in range(count)])

    def element(self, kind: CollectionType) -> Any:
        """One of them, also in spellings that the driver does not write."""
        name = str(kind.elements[0])
        if name in SPELLINGS and self.random.random() < 0.5:
            return Raw(name, self.random.choice(SPELLINGS[name]))
        return self._key(kind.elements[0])

    def _key(self, kind: CqlType) -> Any:
        if isinstance(kind, NativeType):
            return self.random.choice((*NATIVE[kind.name], *EQUALS) if kind.name == "decimal" else NATIVE[kind.name])
        if isinstance(kind, TupleType | UdtType):
            return self._out_of_few(kind)
        return self.of(kind)

    def _out_of_few(self, kind: TupleType | UdtType) -> tuple[Any, ...]:
        """Fields that the type has got since are mostly null: equal to a value of before."""
        few = self._few.setdefault(f"{kind.keyspace}.{kind.name}" if isinstance(kind, UdtType) else str(kind), [])
        if len(few) < 3:
            few.append(self.of(kind))
        fields = list(kind.known_fields.values()) if isinstance(kind, UdtType) else list(kind.fields)
        value = self.random.choice(few)
        more = [None] * (len(fields) - len(value))
        if more and self.random.random() < 0.2:
            more[-1] = self.of(fields[-1])
        return (*value, *more)

    def some(self, kind: CqlType, count: int) -> list[Any]:
        """Up to `count` different values for a key column."""
        known = list(NATIVE[kind.name]) if isinstance(kind, NativeType) else [self.of(kind) for _ in range(count)]
        self.random.shuffle(known)
        return distinct(known)[:count]


def distinct(values: Sequence[Any]) -> list[Any]:
    """Without those that look the same."""
    return list({repr(value): value for value in values}.values())


class Types:
    """Type texts by chance; `udts` are the user types of the keyspace, in the order in which they are
    made."""

    def __init__(self, random: Random, keyspace: str, udts: Mapping[str, UserType]) -> None:
        self.random, self.keyspace = random, keyspace
        self.know(udts)

    def know(self, udts: Mapping[str, UserType]) -> None:
        """The user types as they are from now on."""
        self.udts = dict(udts)
        self._parsed: dict[str, CqlType] = {}

    def parse(self, text: str) -> CqlType:
        if text not in self._parsed:
            self._parsed[text] = parse_type(text, self.keyspace, {(self.keyspace, name): udt for name, udt in self.udts.items()})
        return self._parsed[text]

    def regular(self) -> str:
        """A type of a regular or static column."""
        make = self.random.choice((self._native, self._native, self._collection, self._collection, self._frozen, self._frozen, self._udt))
        return make()

    def clustering(self) -> str:
        """A type that a clustering column may have: no duration inside, nothing that is not frozen."""
        if self.random.random() < 0.75:
            return self._native(duration=False)
        return self._frozen(duration=False)

    def _native(self, *, duration: bool = True) -> str:
        return self.random.choice([name for name in NATIVE if duration or name != "duration"])

    def _collection(self) -> str:
        """One that is not frozen."""
        kind = self.random.choice(("list", "set", "map"))
        if kind == "list":
            return f"list<{self._inside()}>"
        key = self._native(duration=False) if self.random.random() < 0.6 else self._frozen(duration=False, udt=self._udt())
        return f"set<{key}>" if kind == "set" else f"map<{key}, {self._inside()}>"

    def _udt(self) -> str:
        return quoted(self.random.choice([name for name in self.udts if name != KEY_TYPE]))

    def _inside(self, *, duration: bool = True) -> str:
        return self._native(duration=duration) if self.random.random() < 0.75 else self._frozen(duration=duration)

    def _frozen(self, *, duration: bool = True, udt: str | None = None) -> str:
        """`udt`: the user type if it becomes one; else any, or the one that keys of rows may have."""
        shape = self.random.choice(("list", "set", "map", "tuple", "udt", "vector"))
        if shape == "udt":
            return f"frozen<{udt or (self._udt() if duration else KEY_TYPE)}>"
        first, second = self._native(duration=duration and shape not in ("set", "map")), self._native(duration=duration)
        if shape == "tuple":
            return f"tuple<{first}, {second}>"
        if shape == "vector":
            return f"vector<{self.random.choice(('float', 'int', 'text'))}, {self.random.randint(1, 3)}>"
        nested = f"frozen<list<{second}>>" if self.random.random() < 0.3 else second
        return f"frozen<map<{first}, {nested}>>" if shape == "map" else f"frozen<{shape}<{first}>>"


KEY_TYPE: Final = "pair"
"""The user type that keys of rows may be made of: it is never altered."""


def quoted(name: str) -> str:
    """A name in double quotes, which any name may have."""
    return '"' + name.replace('"', '""') + '"'
