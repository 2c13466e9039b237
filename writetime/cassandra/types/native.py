"""The base class of CQL types (`CqlType`) and the simple types, in one table: `NATIVE`.

Python values: int (integers, varint, counter; timestamp = ms since the epoch; date = days since the epoch;
time = ns since midnight), Decimal, float, bool, str (text, ascii, inet), bytes, UUID, `Duration`. Nearly
every type also has an empty value, a legacy of Thrift and `blobAsInt(0x)`: "" for text and blobs, `EMPTY` for
all others. It is not null.

Encoding is canonical: a value that Cassandra accepts in several encodings (a varint with spare bytes, a
boolean of 02) is encoded as Cassandra writes it. A NaN keeps its payload, except for the signalling bit of a
float.

Sources: Cassandra 3.11-5.0, db/marshal/*Type, serializers/*. This module does not know compound types or type
texts.
"""

from __future__ import annotations

import ipaddress
import math
import struct
from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from decimal import Decimal
from enum import Enum
from typing import Any, Final, NamedTuple
from uuid import UUID

from writetime.cassandra.types.integers import EXACT, exponent_of, to_decimal, unscaled
from writetime.cassandra.types.vint import read_signed, write_signed
from writetime.errors import MalformedMutation


class Duration(NamedTuple):
    """A CQL duration. The three parts are all >= 0 or all <= 0."""

    months: int
    days: int
    nanoseconds: int


class Empty(Enum):
    """The empty value of types that have no natural empty value. It is falsy and equal only to itself."""

    EMPTY = "empty"

    def __bool__(self) -> bool:
        return False

    def __repr__(self) -> str:
        return "EMPTY"


EMPTY: Final = Empty.EMPTY


class CqlType(ABC):
    """One type. `fixed_length`: bytes of every value, or None if values carry a length. `multicell`: one cell
    per element."""

    fixed_length: int | None
    multicell: bool

    def decode(self, data: bytes) -> Any:
        """The Python value; `EMPTY` for no bytes, unless they are a normal value. Raises DecodeError if the
        bytes are invalid."""
        try:
            return self._decode(data)
        except (struct.error, IndexError, ValueError, ArithmeticError) as error:
            raise MalformedMutation(
                f"{len(data)} bytes are not a valid {self}: {reason(error)}",
                operation="decode a value",
                hint="The schema in force may not match the data",
            ) from error

    def encode(self, value: Any) -> bytes:
        """The bytes of a Python value (see the module's docstring); null has none. Raises DecodeError if it
        is invalid."""
        try:
            return self._encode(value)
        except (struct.error, TypeError, ValueError, ArithmeticError, AttributeError) as error:
            raise MalformedMutation(f"{_brief(value)} is not a valid {self}: {error}", operation="encode a value") from error

    def sort_key(self, data: bytes) -> Any:
        """A key with the order of Cassandra's comparator. The caller reverses it for DESC.

        Keys compare with keys of the same type only. Raises DecodeError if the bytes are invalid.
        """
        try:
            return self._sort_key(data)
        except (struct.error, IndexError, ValueError, ArithmeticError) as error:
            raise MalformedMutation(f"{len(data)} bytes are not a valid {self}: {reason(error)}", operation="order a value") from error

    @abstractmethod
    def _sort_key(self, data: bytes) -> Any: ...

    @abstractmethod
    def _decode(self, data: bytes) -> Any: ...

    @abstractmethod
    def _encode(self, value: Any) -> bytes: ...


def reason(error: Exception) -> str:
    """The reason of a decoding error without the bytes, because errors are written to logs and reports."""
    return f"{error.reason} at byte {error.start}" if isinstance(error, UnicodeDecodeError) else str(error)


def _brief(value: Any) -> str:
    try:
        return f"{value!r:.200}"
    except ValueError:
        # An integer of thousands of digits.
        return f"a {type(value).__name__}"


@dataclass(frozen=True, eq=False)
class NativeType(CqlType):
    """A simple type. `key` orders non-empty values (None = by unsigned bytes); `has_empty`: b"" is a normal
    value."""

    name: str
    fixed_length: int | None
    from_bytes: Callable[[bytes], Any]
    to_bytes: Callable[[Any], bytes]
    key: Callable[[bytes], Any] | None = None
    has_empty: bool = False
    multicell: bool = False

    def __str__(self) -> str:
        return self.name

    def _sort_key(self, data: bytes) -> Any:
        if self.key is None:
            return data
        return (False,) if not data else (True, self.key(data))

    def _decode(self, data: bytes) -> Any:
        return EMPTY if not data and not self.has_empty else self.from_bytes(data)

    def _encode(self, value: Any) -> bytes:
        return b"" if value is EMPTY and not self.has_empty else self.to_bytes(value)


def _packed(name: str, fmt: str, *, fixed: bool, key: Callable[[bytes], Any] | None = None) -> NativeType:
    packer = struct.Struct(fmt)

    def unpack(data: bytes) -> Any:
        return packer.unpack(data)[0]

    return NativeType(name, packer.size if fixed else None, unpack, packer.pack, key or unpack)


def _varint(data: bytes) -> int:
    return int.from_bytes(data, "big", signed=True)


def _varint_bytes(value: int) -> bytes:
    magnitude = value if value >= 0 else ~value
    return value.to_bytes(magnitude.bit_length() // 8 + 1, "big", signed=True)


def _decimal(data: bytes) -> Decimal:
    (scale,) = struct.unpack_from(">i", data)
    return to_decimal(_varint(data[4:])).scaleb(-scale, EXACT)


def _decimal_bytes(value: Decimal) -> bytes:
    return struct.pack(">i", -exponent_of(value)) + _varint_bytes(unscaled(value))


def _real_key(float_fmt: str, int_fmt: str) -> Callable[[bytes], int | float]:
    def key(data: bytes) -> int | float:
        # Java's order: -0 before 0, every NaN last.
        if math.isnan(struct.unpack(float_fmt, data)[0]):
            return math.inf
        bits: int = struct.unpack(int_fmt, data)[0]
        return bits if bits >= 0 else -(bits & ((1 << (8 * len(data) - 1)) - 1)) - 1

    return key


def _boolean(data: bytes) -> bool:
    if len(data) != 1:
        raise ValueError("a boolean is one byte")
    return data != b"\0"


def _boolean_bytes(value: bool) -> bytes:
    if not isinstance(value, bool):
        raise TypeError("not a bool")
    return b"\1" if value else b"\0"


def _date(data: bytes) -> int:
    days: int = struct.unpack(">I", data)[0]
    return days - (1 << 31)


def _duration(data: bytes) -> Duration:
    months, pos = read_signed(data, 0)
    days, pos = read_signed(data, pos)
    nanoseconds, pos = read_signed(data, pos)
    if pos != len(data):
        raise ValueError("bytes are left over")
    return Duration(months, days, nanoseconds)


def _duration_bytes(value: Duration) -> bytes:
    return b"".join(write_signed(part) for part in value)


def _counter(data: bytes) -> int:
    """Sum of the counts of all shards of a counter context (CounterContext.total): header entries, then
    32-byte shards."""
    (entries,) = struct.unpack_from(">h", data)
    start = 2 + 2 * abs(entries)
    if start > len(data) or (len(data) - start) % 32:
        raise ValueError("a counter's shards are 32 bytes each")
    # An entry is the number of a shard, with or without the highest bit. Sums do without, merging does not.
    named = (entry & 0x7FFF for (entry,) in struct.iter_unpack(">H", data[2:start]))
    if any(number >= (len(data) - start) // 32 for number in named):
        raise ValueError("a counter's header names a shard that does not exist")
    total: int = sum(struct.unpack_from(">q", data, shard + 24)[0] for shard in range(start, len(data), 32))
    # Wraps at 64 bits, like Java's long.
    return (total + (1 << 63)) % (1 << 64) - (1 << 63)


def _counter_bytes(value: int) -> bytes:
    raise ValueError("a counter is stored as a context of shards and cannot be encoded from its sum")


def uuid_key(data: bytes) -> tuple[int, int, bytes]:
    """Order of `uuid`: by version, then time (version 1) or the high half, then the low half
    (UUIDType.compareCustom)."""
    version = data[6] >> 4
    return version, _uuid_time(data) if version == 1 else int.from_bytes(data[:8], "big"), data[8:16]


def timeuuid_key(data: bytes) -> tuple[int, bytes]:
    """Order of `timeuuid`: by time, then the low half as signed bytes (TimeUUIDType.compareCustom)."""
    return _uuid_time(data), bytes(byte ^ 0x80 for byte in data[8:16])


def _uuid_time(data: bytes) -> int:
    if len(data) != 16:
        raise ValueError("a UUID is 16 bytes")
    return (int.from_bytes(data[6:8], "big") & 0x0FFF) << 48 | int.from_bytes(data[4:6], "big") << 32 | int.from_bytes(data[:4], "big")


def _uuid(data: bytes) -> UUID:
    return UUID(bytes=bytes(data))


def _uuid_bytes(value: UUID) -> bytes:
    return value.bytes


def _inet(data: bytes) -> str:
    if len(data) not in (4, 16):
        # The message of `ipaddress` would contain the bytes.
        raise ValueError("an inet is 4 or 16 bytes")
    return str(ipaddress.ip_address(bytes(data)))


def _inet_bytes(value: str) -> bytes:
    if "%" in value:
        raise ValueError("an inet has no scope")
    return ipaddress.ip_address(value).packed


def _empty(data: bytes) -> Any:
    raise ValueError("the empty type has no bytes")


def _no_bytes(value: Any) -> bytes:
    raise ValueError("the empty type has no other value than EMPTY")


def _text(name: str, encoding: str) -> NativeType:
    return NativeType(name, None, lambda data: str(data, encoding), lambda text: text.encode(encoding), has_empty=True)


NATIVE: Final[dict[str, NativeType]] = {
    kind.name: kind
    for kind in (
        _text("ascii", "ascii"),
        _text("text", "utf-8"),
        _text("varchar", "utf-8"),
        NativeType("blob", None, bytes, bytes, has_empty=True),
        NativeType("boolean", 1, _boolean, _boolean_bytes, _boolean),
        _packed("tinyint", ">b", fixed=False),
        _packed("smallint", ">h", fixed=False),
        _packed("int", ">i", fixed=True),
        _packed("bigint", ">q", fixed=True),
        _packed("timestamp", ">q", fixed=True),
        _packed("float", ">f", fixed=True, key=_real_key(">f", ">i")),
        _packed("double", ">d", fixed=True, key=_real_key(">d", ">q")),
        NativeType("varint", None, _varint, _varint_bytes, _varint),
        NativeType("decimal", None, _decimal, _decimal_bytes, _decimal),
        NativeType("counter", None, _counter, _counter_bytes),
        NativeType("date", None, _date, lambda days: struct.pack(">I", days + (1 << 31))),
        NativeType("time", None, lambda data: struct.unpack(">q", data)[0], lambda nanos: struct.pack(">q", nanos)),
        NativeType("duration", None, _duration, _duration_bytes),
        NativeType("inet", None, _inet, _inet_bytes),
        NativeType("uuid", 16, _uuid, _uuid_bytes, uuid_key),
        NativeType("timeuuid", 16, _uuid, _uuid_bytes, timeuuid_key),
        NativeType("empty", 0, _empty, _no_bytes),
    )
}
