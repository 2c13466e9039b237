"""Record keys: encodes clusterings as bytes with Cassandra's clustering order and equality.

Strategy: values are encoded so that unsigned byte order equals the order of `CqlType.sort_key`, and so that
no encoding is a prefix of another. Therefore columns can be concatenated, and a reversed column is the
complement of its bytes. A row's key is

    01 ‖ column ‖ column … ‖ 02        a column: 01 = null, 02 ‖ value
    01 ‖ columns of a prefix ‖ 00      just before all rows of the prefix: start of an inclusive range, end of an exclusive one
    01 ‖ columns of a prefix ‖ 03      just after all of them: start of an exclusive range, end of an inclusive one

so a range tombstone is an interval of bytes. A partition head has no row key and sorts before all rows.
Values:

    fixed length     00 = no bytes, 01 ‖ the value with its sign bit inverted (floats in Java's order, UUIDs by version and time)
    bytes and text   00 becomes 00 FF, then 00 00
    varint           80 + length ‖ magnitude (FF ‖ u32 length from 127 bytes on), negative ones the complement of -1 - n
    decimal          sign ‖ exponent ‖ digits, two per byte; zero is one byte
    collections      element by element: 01 = null, 02 ‖ value, 00 ends them
    tuples, UDTs     likewise, up to the last field that is not null (at least one field); no bytes: the 00 only

The order by types, and its reasons: `writetime.cassandra.merge.clustering`. This module does not know rows,
state or Arrow. Keys are stored, so an encoding must not change.

Source: Cassandra 3.11-5.0, db/ClusteringComparator, db/marshal/*Type.compareCustom.
"""

from __future__ import annotations

import math
import struct
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Final

from writetime.cassandra.model import Bound
from writetime.cassandra.schema.model import Column, Table, UserType
from writetime.cassandra.types.integers import to_decimal
from writetime.cassandra.types.marshal import CompositeType, DynamicCompositeType, ReversedType, class_name
from writetime.cassandra.types.native import CqlType, NativeType, reason
from writetime.cassandra.types.types import (
    CollectionType,
    CustomType,
    TupleType,
    UdtType,
    VectorType,
    parse_type,
    read_values,
    starting_fields,
)
from writetime.errors import MalformedMutation

Clustering = tuple[bytes | None, ...]
Encoder = Callable[[bytes], bytes]

HEAD: Final = b""
"""The row key in the record key of a partition's head."""

_ROW: Final = b"\x01"
_BEFORE: Final = b"\x00"
_NULL: Final = b"\x01"
_VALUE: Final = b"\x02"
_AFTER: Final = b"\x03"

_END: Final = b"\x00"
_EMPTY: Final = b"\x00"
_FULL: Final = b"\x01"
_TERMINATOR: Final = b"\x00\x00"
_ESCAPED_ZERO: Final = b"\x00\xff"
_COMPLEMENT: Final = bytes(range(255, -1, -1))
_SIGN_TURNED: Final = [_FULL + bytes([byte ^ 0x80]) for byte in range(256)]
_SIGNED_ORDER: Final = bytes(byte ^ 0x80 for byte in range(256))
_LENGTH = struct.Struct(">I")
LENGTH_BYTES: Final = _LENGTH.size
"""Bytes of a record key before the partition key."""
PAST_RECORDS: Final = b"\xff"
"""Sorts after all record keys, because a partition key has at most 65535 bytes."""
PAST_ROWS: Final = b"\x02"
"""Appended to a head's record key, it sorts after all rows of the partition."""
_LONG: Final = 127


def record_key(pk: bytes, row: bytes = HEAD) -> bytes:
    """Unique key of a record in a state shard. `row` is a row's key (`RowKeys.key`), or `HEAD` for the
    partition's head.

    Records are ordered by length of the partition key, partition key, and row; a head comes before its rows.
    """
    return _LENGTH.pack(len(pk)) + pk + row


def split_record_key(key: bytes) -> tuple[bytes, bytes]:
    """Inverse of `record_key`: (partition key, row key or `HEAD`)."""
    end = LENGTH_BYTES + _LENGTH.unpack_from(key)[0]
    return key[LENGTH_BYTES:end], key[end:]


class RowKeys:
    """Keys of one table's rows and range bounds, as bytes in Cassandra's clustering order.

    Keys are equal if the clusterings identify the same row. A range bound never equals a row's key; `start <
    key < end` holds for the rows that a range deletes. Raises SchemaError if a clustering type cannot be
    parsed or, when a value is encoded, if its user type is not known; MalformedMutation if bytes are not a
    valid value of their type.
    """

    def __init__(self, table: Table, types: Mapping[tuple[str, str], UserType]) -> None:
        self._encoders = tuple(_column_encoder(column, table.keyspace, types) for column in table.clustering)

    def key(self, clustering: Clustering) -> bytes:
        """The key of a row."""
        return self._prefix(clustering, _VALUE)

    def start(self, bound: Bound) -> bytes:
        """The key of a range's start."""
        return self._prefix(bound.values, _BEFORE if bound.inclusive or not bound.values else _AFTER)

    def end(self, bound: Bound) -> bytes:
        """The key of a range's end."""
        return self._prefix(bound.values, _AFTER if bound.inclusive or not bound.values else _BEFORE)

    def _prefix(self, values: Clustering, last: bytes) -> bytes:
        # Static compact and Thrift tables have clusterings with fewer values than columns.
        columns = [_NULL if value is None else encode(value) for encode, value in zip(self._encoders, values, strict=False)]
        return _ROW + b"".join(columns) + last


def _column_encoder(column: Column, keyspace: str, types: Mapping[tuple[str, str], UserType]) -> Encoder:
    kind = parse_type(column.type, keyspace, types)
    ascending = encoder(kind)
    encode = _reversed(ascending) if column.descending else ascending

    def value(data: bytes) -> bytes:
        try:
            return _VALUE + encode(data)
        except (struct.error, IndexError, ValueError, ArithmeticError) as error:
            raise MalformedMutation(
                f"{len(data)} bytes are not a valid {kind}: {reason(error)}",
                operation="order a value",
                hint="The schema in force may not match the data",
            ) from error

    return value


def encoder(kind: CqlType) -> Encoder:
    """An encoder of a type's serialized values to bytes in the order of `kind.sort_key`; no result is a
    prefix of another.

    It raises the standard library's errors for bytes that are not a valid value of the type.
    """
    if isinstance(kind, NativeType):
        return _NATIVE.get(kind.name, _escaped)
    if isinstance(kind, ReversedType):
        return _reversed(encoder(kind.base))
    return _MADE_OF_OTHERS[type(kind)](kind)


def _reversed(encode: Encoder) -> Encoder:
    return lambda data: encode(data).translate(_COMPLEMENT)


# --- simple types


def _escaped(data: bytes) -> bytes:
    return data.replace(b"\x00", _ESCAPED_ZERO) + _TERMINATOR


def _or_empty(encode: Encoder) -> Encoder:
    """Empty values come first."""
    return lambda data: _FULL + encode(data) if data else _EMPTY


def _signed(size: int) -> Encoder:
    def encode(data: bytes) -> bytes:
        if len(data) == size:
            return _SIGN_TURNED[data[0]] + data[1:]
        if data:
            raise ValueError(f"expected {size} bytes")
        return _EMPTY

    return encode


def _boolean(data: bytes) -> bytes:
    if len(data) != 1:
        raise ValueError("a boolean is one byte")
    return b"\x00" if data == b"\x00" else b"\x01"


def _real(fmt: str) -> Encoder:
    size = struct.calcsize(fmt)
    nan = b"\xff" * size

    def encode(data: bytes) -> bytes:
        # Java's order: -0 before 0, every NaN equal and last.
        if math.isnan(struct.unpack(fmt, data)[0]):
            return nan
        return data.translate(_COMPLEMENT) if data[0] & 0x80 else bytes([data[0] | 0x80]) + data[1:]

    return encode


def _uuid(data: bytes) -> bytes:
    """Version, then time (version 1) or the other bits of the high half, then the low half
    (UUIDType.compareCustom)."""
    version, high = data[6] & 0xF0, _high_half(data)
    rest = _time(high) if version == 0x10 else (high >> 16) << 12 | high & 0x0FFF
    return (version << 56 | rest).to_bytes(8, "big") + data[8:]


def _timeuuid(data: bytes) -> bytes:
    """Time, then the low half as signed bytes (TimeUUIDType.compareCustom)."""
    return _time(_high_half(data)).to_bytes(8, "big") + data[8:].translate(_SIGNED_ORDER)


def _high_half(data: bytes) -> int:
    if len(data) != 16:
        raise ValueError("a UUID is 16 bytes")
    return int.from_bytes(data[:8], "big")


def _time(high: int) -> int:
    return (high & 0x0FFF) << 48 | (high >> 16 & 0xFFFF) << 32 | high >> 32


def _varint(data: bytes) -> bytes:
    value = int.from_bytes(data, "big", signed=True)
    return _natural(value) if value >= 0 else _natural(~value).translate(_COMPLEMENT)


def _natural(value: int) -> bytes:
    size = (value.bit_length() + 7) // 8
    head = bytes([0x80 + size]) if size < _LONG else b"\xff" + _LENGTH.pack(size)
    return head + value.to_bytes(size, "big")


_NEGATIVE: Final = b"\x00"
_ZERO: Final = b"\x01"
_POSITIVE: Final = b"\x02"


def _decimal(data: bytes) -> bytes:
    """Scale (i32), then the unscaled value as a varint. Written as 0.d1d2… times a power of ten, so that the
    scale does not matter."""
    (scale,) = struct.unpack_from(">i", data)
    sign, digits, _ = to_decimal(int.from_bytes(data[4:], "big", signed=True)).as_tuple()
    text = bytes(digits).rstrip(b"\x00")
    if not text:
        return _ZERO
    size = struct.pack(">Q", (1 << 63) + len(digits) - scale)
    magnitude = size + bytes(_pairs(text)) + _END
    return _NEGATIVE + magnitude.translate(_COMPLEMENT) if sign else _POSITIVE + magnitude


def _pairs(digits: bytes) -> Iterator[int]:
    for at in range(0, len(digits), 2):
        yield 1 + digits[at] * 10 + (digits[at + 1] if at + 1 < len(digits) else 0)


_NATIVE: Final[dict[str, Encoder]] = {
    "tinyint": _signed(1),
    "smallint": _signed(2),
    "int": _signed(4),
    "bigint": _signed(8),
    "timestamp": _signed(8),
    "boolean": _or_empty(_boolean),
    "float": _or_empty(_real(">f")),
    "double": _or_empty(_real(">d")),
    "varint": _or_empty(_varint),
    "decimal": _or_empty(_decimal),
    "uuid": _or_empty(_uuid),
    "timeuuid": _or_empty(_timeuuid),
}
"""All other types are ordered by their bytes."""


# --- compound types


def _part(encode: Encoder, data: bytes | None) -> bytes:
    return _NULL if data is None else _VALUE + encode(data)


def _collection(kind: CollectionType) -> Encoder:
    encoders = tuple(encoder(element) for element in kind.elements)

    def encode(data: bytes) -> bytes:
        parts = read_values(data, len(encoders))
        return b"".join(_part(encoders[at % len(encoders)], part) for at, part in enumerate(parts)) + _END

    return _or_empty(encode)


def _fields(kinds: Iterable[CqlType]) -> Encoder:
    kinds = tuple(kinds)
    encoders = tuple(encoder(kind) for kind in kinds)
    return lambda data: b"".join(map(_part, encoders, starting_fields(kinds, data))) + _END


def _user_type(kind: UdtType) -> Encoder:
    if kind.fields is None:
        # Fails only when a value is encoded.
        return lambda data: _fields(kind.known_fields.values())(data)
    return _fields(kind.fields.values())


def _vector(kind: VectorType) -> Encoder:
    element = encoder(kind.element)
    return _or_empty(lambda data: b"".join(map(element, kind.parts(data))))


def _custom(kind: CustomType) -> Encoder:
    return _or_empty(_halves) if kind.class_name == "LexicalUUIDType" else _escaped


def _halves(data: bytes) -> bytes:
    if len(data) != 16:
        raise ValueError("a UUID is 16 bytes")
    return b"".join(bytes([data[at] ^ 0x80]) + data[at + 1 : at + 8] for at in (0, 8))


def _composite(kind: CompositeType) -> Encoder:
    encoders = tuple(encoder(component) for component in kind.kinds)

    def encode(data: bytes) -> bytes:
        static, parts = kind.split(data)
        ordered = (_VALUE + component(part.value) + _end_byte(part.end) for component, part in zip(encoders, parts, strict=False))
        return (b"\x00" if static else b"\x01") + b"".join(ordered) + _END

    return _or_empty(encode)


def _dynamic_composite(kind: DynamicCompositeType) -> Encoder:
    def component(of: CqlType, value: bytes, end: int) -> bytes:
        # Components of different types are ordered by the names of their classes
        # (DynamicCompositeType.getComparator).
        base = class_name(of.base) if isinstance(of, ReversedType) else ""
        return _VALUE + _escaped(class_name(of).encode()) + _escaped(base.encode()) + encoder(of)(value) + _end_byte(end)

    return lambda data: b"".join(component(kind.kind_of(part), part.value, part.end) for part in kind.split(data)) + _END


def _end_byte(end: int) -> bytes:
    return bytes([end + 0x80])


_MADE_OF_OTHERS: Final[dict[type, Callable[..., Encoder]]] = {
    CollectionType: _collection,
    TupleType: lambda kind: _fields(kind.fields),
    UdtType: _user_type,
    VectorType: _vector,
    CustomType: _custom,
    CompositeType: _composite,
    DynamicCompositeType: _dynamic_composite,
}
