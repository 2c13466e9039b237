"""Names of keyspaces, tables, columns, types and fields in other systems: Avro, Spark and Iceberg, Kafka.
Reversible, injective, valid.

A plain name (one that CQL accepts without quotes) is not changed. Any other name starts with `_`, which a
plain name cannot, and every character that the system does not allow becomes `_x<hex>_`, its code point:

    CQL          Avro            Spark, Iceberg     topic part
    order_id     order_id        order_id           order_id
    "Name"       Name            __x4e_ame          Name
    "a.b c"      _a_x2e_b_x20_c  _a_x2e_b_x20_c     _a_x2e_b_x20_c
    "größe"      _gr_xf6__xdf_e  größe              _gr_xf6__xdf_e
    "1st"        _1st            _1st               1st
    "_ttl"       __ttl           __ttl              __ttl
    ""           _               _                  _

A `_` that would begin such an escape by accident is escaped itself. Names that Thrift clients made of bytes
that are no UTF-8 come as lone surrogates (surrogateescape) and go the same way.

Spark and many catalogs do not tell upper from lower case; so capitals, and whatever else some reader might
take for another letter, are escaped there, and "Name" and name never meet in one table, whenever either was
added. A name depends on nothing but itself.

Namespaces and tables are folders, whose names have at most 255 bytes, and Iceberg, generations and shadow replays
add to them. A name that would be longer than `MAX_FOLDER` becomes `__x61_<hash>_<its beginning>`: 40 capitals do.

Sources: the Avro 1.12 specification (Names); Kafka, internals/Topic; Spark, caseInsensitiveResolution (Java's
equalsIgnoreCase). This module knows no schema and no sink.
"""

from __future__ import annotations

import hashlib
import re
from collections import defaultdict
from collections.abc import Callable, Iterable
from functools import lru_cache
from typing import Final

from writetime.errors import SchemaError

MAX_TOPIC: Final = 249
"""Characters that Kafka allows in a topic's name."""

MAX_FOLDER: Final = 200
"""Bytes that a namespace or a table may have before more is added: the id of an incarnation, and a UUID by Iceberg."""
_HASHED: Final = "__x61_"
"""How a hashed name begins: no other name does, since `a` is never escaped."""
_SHOWN: Final = 64

OWN_NAMESPACE: Final = "_writetime"
"""The namespace of writetime's own tables in the warehouse; `to_column` never returns this name."""

_ESCAPE = re.compile(r"_x([0-9a-f]{1,6})_")
_ESCAPE_BUT_FOR_ITS_FIRST = re.compile(r"x[0-9a-f]{1,6}_")
_CHANGES: Final = "__changes"
_LIKE_CHANGES = re.compile(f"{_CHANGES}_*$")
_PREFIX = re.compile(r"[a-zA-Z0-9._-]+")
_SHADOW = re.compile(r"[a-z][a-z0-9]*(_[a-z0-9]+)*")


def to_avro(name: str) -> str:
    """The name in Avro: [A-Za-z_][A-Za-z0-9_]*."""
    return _escaped(name, _in_avro)


def from_avro(name: str) -> str:
    """Inverse of `to_avro`. SchemaError for other names."""
    return _unescaped(name, _in_avro, "an Avro name")


@lru_cache(maxsize=4096)
def to_column(name: str) -> str:
    """The name of a column or field in Spark and Iceberg: letters that have no other case,
    digits and `_`."""
    return _escaped(name, _in_column)


@lru_cache(maxsize=4096)
def from_column(name: str) -> str:
    """Inverse of `to_column`. SchemaError for other names."""
    return _unescaped(name, _in_column, "a column's name")


@lru_cache(maxsize=4096)
def to_table(name: str) -> str:
    """The name of a table in Spark and Iceberg: `to_column`'s, or a hash and the beginning if it is too long for a
    folder."""
    called = to_column(name)
    if len(called.encode()) <= MAX_FOLDER:
        return called
    digest = hashlib.blake2b(name.encode(errors="surrogatepass"), digest_size=16).hexdigest()
    return f"{_HASHED}{digest}_{re.sub('[^a-z0-9]', '_', name.lower())[:_SHOWN]}"


def to_namespace(keyspace: str, shadow: str | None = None) -> str:
    """The namespace of a keyspace's current rows: `to_table`'s name, kept apart from the namespaces of
    changes. `shadow`: the shadow namespace of a replay, `<keyspace>__<shadow>`; a keyspace may have that name
    (`namespace_clash`)."""
    called = to_table(keyspace)
    called = f"{called}_" if _LIKE_CHANGES.search(called) else called
    return called if shadow is None else f"{called}__{shadow}"


def to_changes_namespace(keyspace: str, shadow: str | None = None) -> str:
    """The namespace of a keyspace's changes, distinct from every keyspace's; `shadow` as above."""
    return f"{to_table(keyspace) if shadow is None else to_namespace(keyspace, shadow)}{_CHANGES}"


def is_shadow_name(text: str) -> bool:
    """Whether the text is a valid shadow name: namespaces of different keyspaces and shadow names stay
    distinct."""
    return _SHADOW.fullmatch(text) is not None and f"__{text}" != _CHANGES


def namespace_clash(keyspaces: Iterable[str], shadow: str) -> str | None:
    """A keyspace whose name equals the shadow namespace of another one, or None."""
    keyspaces = set(keyspaces)
    taken = {to_namespace(keyspace): keyspace for keyspace in keyspaces}
    return next((taken[made] for keyspace in sorted(keyspaces) if (made := to_namespace(keyspace, shadow)) in taken), None)


def to_topic(prefix: str, keyspace: str, table: str) -> str:
    """`<prefix>.<keyspace>.<table>`; the prefix is used unescaped. SchemaError if Kafka would reject the
    name."""
    if not _PREFIX.fullmatch(prefix):
        raise SchemaError(
            "not a valid part of a topic name", operation="name a topic", obj=prefix, hint="Use letters, digits, `.`, `_`, `-`."
        )
    topic = ".".join((prefix, _escaped(keyspace, _in_topic), _escaped(table, _in_topic)))
    if len(topic) > MAX_TOPIC:
        raise SchemaError(
            f"the topic name has {len(topic)} characters, Kafka allows {MAX_TOPIC}",
            operation="name a topic",
            obj=topic,
            hint="Use a shorter topic prefix.",
        )
    return topic


def progress_topic(prefix: str) -> str:
    """The compacted topic of the publishers' progress, written in the same transactions as the events."""
    return f"{prefix}.__progress"


def quarantine_topic(prefix: str) -> str:
    """The compacted topic of quarantine records, keyed by their names."""
    return f"{prefix}.__quarantine"


def from_topic(topic: str) -> tuple[str, str, str]:
    """Prefix, keyspace and table of a topic. SchemaError for other names."""
    parts = topic.rsplit(".", 2)
    if len(parts) != 3 or not _PREFIX.fullmatch(parts[0]) or len(topic) > MAX_TOPIC:
        raise SchemaError("not <prefix>.<keyspace>.<table>", operation="read a name", obj=topic)
    prefix, keyspace, table = parts
    return prefix, _unescaped(keyspace, _in_topic, "a topic's part"), _unescaped(table, _in_topic, "a topic's part")


def topic_clashes(topics: Iterable[str]) -> list[list[str]]:
    """Groups of topics of which Kafka creates only the first: `.` and `_` collide in metric names
    (Topic.hasCollision)."""
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
        raise SchemaError(f"not {what} that writetime creates", operation="read a name", obj=name)
    return found


def _in_avro(c: str) -> bool:
    return c == "_" or (c.isascii() and c.isalnum())


def _in_topic(c: str) -> bool:
    return c in "_-" or (c.isascii() and c.isalnum())


def _in_column(c: str) -> bool:
    """A letter that is its own small letter and no other capital's, or a decimal digit, or `_`: what Java too
    takes for one, so that Iceberg need not change the name in Parquet."""
    if c == "_":
        return True
    upper = c.upper()
    lower = (upper if len(upper) == 1 else c).lower()
    return (c.isalpha() or c.isdecimal()) and lower == c
