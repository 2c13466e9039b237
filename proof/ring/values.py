"""One comparable form of values, built from the cluster's bytes and from the warehouse's columns: JSON
without loss.

Strategy: only this module reads the cluster's values, from the bytes of the native protocol, without the
product's code; the types come from the driver. Numbers are numbers (a float's NaN and infinities text),
timestamps and dates counts since the epoch (µs, days), blobs hex, uuids, addresses, decimals and varints
text, lists, sets and vectors lists, maps lists of pairs, tuples and user types objects by field. An empty
value (no bytes) is "" where the warehouse can store it, otherwise null.
"""

from __future__ import annotations

import ipaddress
import math
import struct
from collections.abc import Callable
from decimal import Decimal
from typing import Any, Final
from uuid import UUID

import pyarrow as pa

from writetime.events.naming import to_column

Json = Any


_EMPTY_TYPE: Final = "org.apache.cassandra.db.marshal.EmptyType"
"""Of a column that DROP COMPACT STORAGE has brought to light: its values have no bytes."""

# --- the ring's bytes


def from_ring(kind: Any, raw: bytes | None, elements: bool = False, *, element: bool = False) -> Json:
    """A value as the protocol has it; `kind` is the driver's class of its type. `elements`: of an unfrozen
    collection. `element`: it identifies an element there, so that equal decimals are written alike.
    """
    if raw is None:
        return None
    name = kind.typename
    if name in _MADE_OF_OTHERS or getattr(kind, "fieldnames", None) is not None:
        return _made_of_others(kind, raw, elements, element)
    if name == "decimal" and element and raw:
        return one_spelling(_decimal(raw))
    if name in _LEAVES:
        return _LEAVES[name](raw) if raw or name in ("text", "varchar", "ascii", "blob") else _EMPTY.get(name)
    if _EMPTY_TYPE in name:
        return raw.hex()
    raise ValueError(f"unsupported type {kind.cql_parameterized_type()}")


def _made_of_others(kind: Any, raw: bytes, elements: bool, element: bool) -> Json:
    def part(inner: Any, data: bytes | None, *, identifies: bool = False) -> Json:
        return from_ring(inner, data, element=element or identifies)

    if kind.typename == "frozen":
        return from_ring(kind.subtypes[0], raw, elements, element=element)
    if not raw:
        return None
    if kind.typename == _VECTOR:
        return [part(kind.subtype, data) for data in _vector_parts(kind, raw)]
    if kind.typename in ("list", "set"):
        return [part(kind.subtypes[0], data, identifies=elements and kind.typename == "set") for data in _parts(raw, 4)]
    if kind.typename == "map":
        parts = [part(kind.subtypes[at % 2], data, identifies=elements and at % 2 == 0) for at, data in enumerate(_parts(raw, 4))]
        return [[key, value] for key, value in zip(parts[::2], parts[1::2], strict=True)]
    # The driver gives tuples field names that are None.
    names = [to_column(name) for name in getattr(kind, "fieldnames", None) or () if name is not None]
    names = names or [f"field_{at}" for at in range(1, len(kind.subtypes) + 1)]
    parts_ = _parts(raw, 0)
    # Fields that were added later are missing at the end.
    padded = parts_ + [None] * (len(names) - len(parts_))
    return {name: part(inner, data) for name, inner, data in zip(names, kind.subtypes, padded, strict=True)}


def one_spelling(text: str) -> str:
    """A decimal as it is written where it identifies an element (ADR 53): without zeros at the end of its fraction,
    a whole number in full up to 38 digits.
    """
    sign, digits, scale = Decimal(text).as_tuple()
    significant = "".join(map(str, digits)).rstrip("0")
    exponent = int(scale) + len(digits) - len(significant)
    if not significant:
        return "0"
    if 0 < exponent <= 38 - len(significant):
        significant, exponent = significant + "0" * exponent, 0
    return str(Decimal((sign, tuple(map(int, significant)), exponent)))


def _parts(raw: bytes, at: int) -> list[bytes | None]:
    """Values behind their i32 lengths, from `at` to the end."""
    parts: list[bytes | None] = []
    while at < len(raw):
        (length,) = struct.unpack_from(">i", raw, at)
        parts.append(None if length < 0 else raw[at + 4 : at + 4 + length])
        at += 4 + max(length, 0)
    return parts


def _vector_parts(kind: Any, raw: bytes) -> list[bytes]:
    size = kind.subtype.serial_size()
    if size is not None:
        return [raw[at : at + size] for at in range(0, len(raw), size)]
    parts, at = [], 0
    for _ in range(kind.vector_size):
        length, at = _unsigned(raw, at)
        parts.append(raw[at : at + length])
        at += length
    return parts


def _unsigned(raw: bytes, at: int) -> tuple[int, int]:
    """A variable-length integer: the leading ones of the first byte say how many bytes follow."""
    first = raw[at]
    extra = 8 - (~first & 0xFF).bit_length()
    value = first & (0xFF >> extra)
    for byte in raw[at + 1 : at + 1 + extra]:
        value = value << 8 | byte
    return value, at + 1 + extra


def _duration(raw: bytes) -> Json:
    parts, at = [], 0
    for _ in range(3):
        value, at = _unsigned(raw, at)
        parts.append((value >> 1) ^ -(value & 1))
    return dict(zip(("months", "days", "nanoseconds"), parts, strict=True))


def _decimal(raw: bytes) -> str:
    (scale,) = struct.unpack_from(">i", raw)
    unscaled = int.from_bytes(raw[4:], "big", signed=True)
    return str(Decimal((int(unscaled < 0), tuple(map(int, str(abs(unscaled)))), -scale)))


def _number(form: str) -> Callable[[bytes], Json]:
    return lambda raw: real(struct.unpack(form, raw)[0])


def real(value: Any) -> Json:
    """A float as JSON has it."""
    return value if isinstance(value, int) or math.isfinite(value) else "NaN" if math.isnan(value) else str(value)


def _text(raw: bytes) -> str:
    return raw.decode("utf-8")


def _uuid(raw: bytes) -> str:
    return str(UUID(bytes=bytes(raw)))


_VECTOR: Final = "org.apache.cassandra.db.marshal.VectorType"
_MADE_OF_OTHERS: Final = frozenset(["frozen", "list", "set", "map", "tuple", _VECTOR])
_LEAVES: Final[dict[str, Callable[[bytes], Json]]] = {
    "ascii": _text,
    "text": _text,
    "varchar": _text,
    "blob": bytes.hex,
    "boolean": lambda raw: raw != b"\x00",
    "tinyint": _number(">b"),
    "smallint": _number(">h"),
    "int": _number(">i"),
    "bigint": _number(">q"),
    "counter": _number(">q"),
    "float": _number(">f"),
    "double": _number(">d"),
    "varint": lambda raw: str(int.from_bytes(raw, "big", signed=True)),
    "decimal": _decimal,
    "uuid": _uuid,
    "timeuuid": _uuid,
    "inet": lambda raw: str(ipaddress.ip_address(bytes(raw))),
    "date": lambda raw: int.from_bytes(raw, "big") - 2**31,
    "time": _number(">q"),
    "timestamp": lambda raw: int(struct.unpack(">q", raw)[0]) * 1000,
    "duration": _duration,
}
_EMPTY: Final = dict.fromkeys(["varint", "decimal", "inet", "uuid", "timeuuid"], "")


# --- the warehouse's columns


def from_lake(array: pa.Array | pa.ChunkedArray) -> list[Json]:
    """A column's values."""
    if isinstance(array, pa.ChunkedArray):
        return [value for chunk in array.chunks for value in from_lake(chunk)]
    kind = array.type
    if pa.types.is_struct(kind):
        columns = {field.name: from_lake(column) for field, column in zip(kind, array.flatten(), strict=True)}
        present = array.is_valid().to_pylist()
        return [{name: column[at] for name, column in columns.items()} if there else None for at, there in enumerate(present)]
    if pa.types.is_map(kind):
        pairs = [list(pair) for pair in zip(from_lake(array.keys), from_lake(array.items), strict=True)]
        return _sliced(array, pairs)
    if pa.types.is_list(kind) or pa.types.is_large_list(kind):
        return _sliced(array, from_lake(array.values))
    if pa.types.is_timestamp(kind) or pa.types.is_time64(kind):
        return list(array.view(pa.int64()).to_pylist())
    if pa.types.is_date32(kind):
        return list(array.view(pa.int32()).to_pylist())
    return [_plain(value) for value in array.to_pylist()]


def _sliced(array: pa.Array, elements: list[Json]) -> list[Json]:
    offsets = array.offsets.to_pylist()
    bounds = zip(offsets[:-1], offsets[1:], array.is_valid().to_pylist(), strict=True)
    return [elements[start:end] if there else None for start, end, there in bounds]


def _plain(value: Any) -> Json:
    if isinstance(value, bytes):
        return value.hex()
    return real(value) if isinstance(value, float) else value
