"""One spelling for each key: what is published as one key is one row of Cassandra, and the other way round.

Cassandra compares clusterings by type: decimals 1.0 and 1.00 are one row, and so are user types with and without
nulls at their end. Partition keys are compared by their bytes: a varint 1 of one byte and of two, booleans 01 and
02, a short tuple are partitions of their own, which no column of a published type can tell apart.

Strategy: a clustering is published in the spelling that all equal values share (`one_spelling`). A partition key is
accepted in the bytes that its published value stands for (`is_distinct`), and its updates go to quarantine in all
others: they would be one key and one row with another partition. So would two clusterings that differ only in a
part of no bytes, as null. Must not know a store, nor an output format beyond the two that lose something.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from decimal import Decimal
from functools import lru_cache
from typing import Any, Final

from writetime.cassandra.merge.clustering import EQUAL_ONLY_TO_ITSELF
from writetime.cassandra.schema.model import Table, UserType
from writetime.cassandra.types.byte_comparable import RowKeys, encoder
from writetime.cassandra.types.native import EMPTY
from writetime.cassandra.types.types import (
    CqlType,
    CustomType,
    NativeType,
    parse_type,
)
from writetime.events.arrow import from_arrow_value, to_arrow_value
from writetime.events.json import from_json_value, to_json_value
from writetime.events.type_mapping import MAX_PRECISION
from writetime.events.values import parts_of, put_together, taken_apart

Convert = Callable[[Any], Any]


# --- clusterings: equal by type


@lru_cache(maxsize=4096)
def one_spelling(kind: CqlType) -> Convert | None:
    """The conversion of a value to the spelling that all values share which Cassandra orders as equal; None: unchanged.
    Decoding has made one of all spellings of other types."""
    if isinstance(kind, NativeType):
        return _NATIVE.get(kind.name)
    parts = {part: found for part in parts_of(kind) if (found := one_spelling(part)) is not None}
    if not parts:
        return None

    def of_part(part: CqlType, value: Any) -> Any:
        change = parts.get(part)
        return value if value is None or change is None else change(value)

    def convert(value: Any) -> Any:
        return EMPTY if value is EMPTY else put_together(kind, taken_apart(kind, value, of_part), _unchanged)

    return convert


def _unchanged(_: CqlType, value: Any) -> Any:
    return value


def _decimal(value: Any) -> Any:
    return value if value is EMPTY else _shortest(value)


def _shortest(value: Decimal) -> Decimal:
    """The number without zeros at the end of its fraction; as an integer where its digits are few."""
    sign, digits, exponent = value.as_tuple()
    assert isinstance(exponent, int), "a decimal has no infinities"
    size = len(digits)
    while size and digits[size - 1] == 0:
        size -= 1
    if not size:
        return Decimal(0)
    exponent += len(digits) - size
    zeros = exponent if 0 < exponent <= MAX_PRECISION - size else 0
    return Decimal((sign, digits[:size] + (0,) * zeros, exponent - zeros))


def decimal_text(text: str) -> str:
    """The text of a decimal, of no bytes if it has none, in the one spelling."""
    return str(_shortest(Decimal(text))) if text else text


def _real(value: Any) -> Any:
    return float("nan") if value is not EMPTY and value != value else value


_NATIVE: Final[dict[str, Convert]] = {"decimal": _decimal, "float": _real, "double": _real}


# --- what can be told apart


def has_spellings(kind: CqlType) -> bool:
    """Whether several byte strings can be published as one value."""
    return str(kind) not in EQUAL_ONLY_TO_ITSELF


def is_distinct(kind: CqlType, data: bytes, *, by_type: bool) -> bool:
    """Whether a part of a key is told apart from all others in what is published: from those of other bytes, or
    `by_type` from those that are not equal. DecodeError for bytes that are no value of the type, or one that Arrow
    cannot hold."""
    if not data or not has_spellings(kind) or (by_type and isinstance(kind, NativeType)):
        return True
    published = kind.encode(_published(kind, kind.decode(data)))
    return _order(kind)(published) == _order(kind)(data) if by_type else published == data


def _published(kind: CqlType, value: Any) -> Any:
    """The value as it comes back from what is published: Arrow has no value of no bytes in most types, and JSON one
    NaN."""
    read = from_arrow_value(kind, to_arrow_value(kind, value))
    return from_json_value(kind, json.loads(json.dumps(to_json_value(kind, read))))


_order = lru_cache(maxsize=4096)(encoder)


# --- static content alone


def like_alone(table: Table, types: Mapping[tuple[str, str], UserType]) -> bytes | None:
    """The row key (`RowKeys`) of the clustering of no bytes, if it is published as the clustering of static content alone:
    all its columns null, in some format. None if there is no such row."""
    kinds = [parse_type(column.type, table.keyspace, types) for column in table.clustering]
    if not kinds or not table.static_columns or not all(map(_is_null_of_no_bytes, kinds)):
        return None
    return RowKeys(table, types).key((b"",) * len(kinds))


def _is_null_of_no_bytes(kind: CqlType) -> bool:
    return not isinstance(kind, CustomType) and str(kind) not in _OF_NO_BYTES


_OF_NO_BYTES: Final = frozenset({"ascii", "text", "varchar", "blob", "inet", "empty"})
"""Types with a value of no bytes in every format."""
