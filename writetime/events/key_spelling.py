"""One spelling for each key: what is published as one key is one row of Cassandra, and the other way round.

Cassandra compares clusterings by type: decimals 1.0 and 1.00 are one row, and so are user types with and without
nulls at their end. Partition keys are compared by their bytes: a varint 1 of one byte and of two, booleans 01 and
02, a short tuple are partitions of their own, which no column of a published type can tell apart.

Strategy: a clustering is published in the spelling that all equal values share (`canonical`). A partition key is
accepted in the bytes that its published value stands for (`is_distinct`), and its updates go to quarantine in all
others: they would be one key and one row with another partition. So would two clusterings that differ only in a
part of no bytes, as null. Must not know a store, nor an output format beyond the two that lose something.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from functools import lru_cache
from typing import Any, Final

from writetime.cassandra.schema.model import Table, UserType
from writetime.cassandra.types.byte_comparable import RowKeys
from writetime.cassandra.types.canonical import canonical
from writetime.cassandra.types.types import CqlType, CustomType, NativeType, parse_type
from writetime.events.arrow import from_arrow_value, to_arrow_value
from writetime.events.json import from_json_value, to_json_value

_OF_NO_BYTES: Final = frozenset({"ascii", "text", "varchar", "blob", "inet", "empty"})
"""Types with a value of no bytes in every format."""
_canonical = lru_cache(maxsize=4096)(canonical)


def clustering_spelling(kind: CqlType) -> Callable[[bytes], bytes] | None:
    """The function from valid clusterings of a type to the spelling in which they are published; None if each has only
    one."""
    return _canonical(kind)


def has_spellings(kind: CqlType) -> bool:
    """Whether several byte strings can be published as one value."""
    return _canonical(kind) is not None


def is_distinct(kind: CqlType, data: bytes, *, by_type: bool) -> bool:
    """Whether a part of a key is told apart from all others in what is published: from those of other bytes, or
    `by_type` from those that are not equal. DecodeError for bytes that are no value of the type, or one that Arrow
    cannot hold."""
    spell = _canonical(kind)
    if not data or spell is None or (by_type and isinstance(kind, NativeType)):
        return True
    published = kind.encode(_published(kind, kind.decode(data)))
    return spell(published) == spell(data) if by_type else published == data


def _published(kind: CqlType, value: Any) -> Any:
    """The value as it comes back from what is published: Arrow has no value of no bytes in most types, and JSON one
    NaN."""
    read = from_arrow_value(kind, to_arrow_value(kind, value))
    return from_json_value(kind, json.loads(json.dumps(to_json_value(kind, read))))


def like_alone(table: Table, types: Mapping[tuple[str, str], UserType]) -> bytes | None:
    """The row key (`RowKeys`) of the clustering of no bytes, if it is published as the clustering of static content alone:
    all its columns null, in some format. None if there is no such row."""
    kinds = [parse_type(column.type, table.keyspace, types) for column in table.clustering]
    if not kinds or not table.static_columns or not all(map(_is_null_of_no_bytes, kinds)):
        return None
    return RowKeys(table, types).key((b"",) * len(kinds))


def _is_null_of_no_bytes(kind: CqlType) -> bool:
    return not isinstance(kind, CustomType) and str(kind) not in _OF_NO_BYTES
