"""Names of keyspaces, tables, columns, types and fields in other houses: Avro, Spark and Iceberg, Kafka. Reversible, injective, valid.

A plain name, which is every name that CQL takes without quotes, stays what it is. Any other name begins with `_`, which no plain name
does, and in it every character that the house does not take stands as `_x<hex>_`, its code point:

    CQL          Avro            Spark, Iceberg     topic part
    order_id     order_id        order_id           order_id
    "Name"       Name            __x4e_ame          Name
    "a.b c"      _a_x2e_b_x20_c  _a_x2e_b_x20_c     _a_x2e_b_x20_c
    "größe"      _gr_xf6__xdf_e  größe              _gr_xf6__xdf_e
    "1st"        _1st            _1st               1st
    "_ttl"       __ttl           __ttl              __ttl
    ""           _               _                  _

A `_` that would begin such an escape by accident is escaped itself. Names that Thrift clients made of bytes that are no UTF-8 come as lone
surrogates (surrogateescape) and go the same way.

Spark and many catalogs do not tell upper from lower case; so capitals, and whatever else some reader might take for another letter, are
escaped there, and "Name" and name never meet in one table, whenever either was added. A name depends on nothing but itself.

Sources: the Avro 1.12 specification (Names); Kafka, internals/Topic; Spark, caseInsensitiveResolution (Java's equalsIgnoreCase). This
module knows no schema and no sink.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Callable, Iterable
from functools import lru_cache
from typing import Final

from writetime.errors import SchemaError

MAX_TOPIC: Final = 249
"""Characters that Kafka allows in a topic's name."""

OWN_NAMESPACE: Final = "_writetime"
"""Of tables in the warehouse that are no keyspace's: `_` before what is plain without it is a name that `to_column` never gives."""

_ESCAPE = re.compile(r"_x([0-9a-f]{1,6})_")
_ESCAPE_BUT_FOR_ITS_FIRST = re.compile(r"x[0-9a-f]{1,6}_")
_CHANGES: Final = "__changes"
_LIKE_CHANGES = re.compile(f"{_CHANGES}_*$")
_PREFIX = re.compile(r"[a-zA-Z0-9._-]+")
_BESIDE = re.compile(r"[a-z][a-z0-9]*(_[a-z0-9]+)*")


def to_avro(name: str) -> str:
    """The name in Avro: [A-Za-z_][A-Za-z0-9_]*."""
    return _escaped(name, _in_avro)


def from_avro(name: str) -> str:
    """Inverse of `to_avro`. SchemaError for what it never gives."""
    return _unescaped(name, _in_avro, "an Avro name")


@lru_cache(maxsize=4096)
def to_column(name: str) -> str:
    """The name of a namespace, table, column or field in Spark and Iceberg: letters that have no other case, digits and `_`."""
    return _escaped(name, _in_column)


@lru_cache(maxsize=4096)
def from_column(name: str) -> str:
    """Inverse of `to_column`. SchemaError for what it never gives."""
    return _unescaped(name, _in_column, "a column's name")


def to_namespace(keyspace: str, beside: str | None = None) -> str:
    """The namespace of a keyspace's current rows: `to_column`'s name, kept apart from the namespaces of changes. `beside`: that of rows
    that were replayed to be compared, `<keyspace>__<beside>`; a keyspace may be called so (`namespace_clash`)."""
    called = to_column(keyspace)
    called = f"{called}_" if _LIKE_CHANGES.search(called) else called
    return called if beside is None else f"{called}__{beside}"


def to_changes_namespace(keyspace: str, beside: str | None = None) -> str:
    """The namespace of a keyspace's changes, which is no keyspace's own; `beside` as above."""
    return f"{to_column(keyspace) if beside is None else to_namespace(keyspace, beside)}{_CHANGES}"


def is_beside(text: str) -> bool:
    """Whether replays may go into a namespace of that name: no two pairs of keyspace and name are one then."""
    return _BESIDE.fullmatch(text) is not None and f"__{text}" != _CHANGES


def namespace_clash(keyspaces: Iterable[str], beside: str) -> str | None:
    """A keyspace that is called as another one's replays are, if there is one."""
    keyspaces = set(keyspaces)
    taken = {to_namespace(keyspace): keyspace for keyspace in keyspaces}
    return next((taken[made] for keyspace in sorted(keyspaces) if (made := to_namespace(keyspace, beside)) in taken), None)


def to_topic(prefix: str, keyspace: str, table: str) -> str:
    """`<prefix>.<keyspace>.<table>`; the prefix is a piece of a topic's name already. SchemaError if Kafka would not take it."""
    if not _PREFIX.fullmatch(prefix):
        raise SchemaError(
            "it is no part of a topic's name", operation="name a topic", obj=prefix, hint="Use letters, digits, `.`, `_`, `-`."
        )
    topic = ".".join((prefix, _escaped(keyspace, _in_topic), _escaped(table, _in_topic)))
    if len(topic) > MAX_TOPIC:
        raise SchemaError(
            f"{len(topic)} characters, Kafka takes {MAX_TOPIC}", operation="name a topic", obj=topic, hint="A shorter topic prefix may do."
        )
    return topic


def from_topic(topic: str) -> tuple[str, str, str]:
    """Prefix, keyspace and table of a topic. SchemaError if it is none of `to_topic`'s."""
    pieces = topic.rsplit(".", 2)
    if len(pieces) != 3 or not _PREFIX.fullmatch(pieces[0]) or len(topic) > MAX_TOPIC:
        raise SchemaError("not <prefix>.<keyspace>.<table>", operation="read a name", obj=topic)
    prefix, keyspace, table = pieces
    return prefix, _unescaped(keyspace, _in_topic, "a topic's part"), _unescaped(table, _in_topic, "a topic's part")


def topic_clashes(topics: Iterable[str]) -> list[list[str]]:
    """Groups of topics of which Kafka makes only the first: `.` and `_` are one in the names of its metrics (Topic.hasCollision)."""
    groups: dict[str, set[str]] = defaultdict(set)
    for topic in topics:
        groups[topic.replace(".", "_")].add(topic)
    return [sorted(group) for group in groups.values() if len(group) > 1]


def _escaped(name: str, stays: Callable[[str], bool]) -> str:
    """The rule of all three. From the end, so that each `_` is seen with what follows it in the result."""
    if name and name[0] != "_" and all(map(stays, name)) and (stays("-") or not name[0].isdigit()):
        return name
    out = ""
    for c in reversed(name):
        looks_like_one = c == "_" and _ESCAPE_BUT_FOR_ITS_FIRST.match(out)
        out = (c if stays(c) and not looks_like_one else f"_x{ord(c):x}_") + out
    return "_" + out


def _unescaped(name: str, stays: Callable[[str], bool], what: str) -> str:
    try:
        found = _ESCAPE.sub(lambda match: chr(int(match[1], 16)), name[1:]) if name.startswith("_") else name
    except (ValueError, OverflowError):
        found = None
    if found is None or _escaped(found, stays) != name:
        raise SchemaError(f"{what} that stands for no name", operation="read a name", obj=name)
    return found


def _in_avro(c: str) -> bool:
    return c == "_" or (c.isascii() and c.isalnum())


def _in_topic(c: str) -> bool:
    return c in "_-" or (c.isascii() and c.isalnum())


def _in_column(c: str) -> bool:
    """A letter that is its own small letter and no other capital's, or a decimal digit, or `_`: what Java too takes for one, so that
    Iceberg need not change the name in Parquet."""
    if c == "_":
        return True
    upper = c.upper()
    lower = (upper if len(upper) == 1 else c).lower()
    return (c.isalpha() or c.isdecimal()) and lower == c
