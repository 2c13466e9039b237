"""Selects the updates to show: by table, by partition key, and by whether the table is captured.

Tables that never had CDC are hidden by default, because a log contains the data of every keyspace. Updates of
unknown tables are always selected, so that the failure is visible. This module knows only table ids and raw
keys.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Collection, Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Final
from uuid import UUID

from writetime.cassandra.schema.model import Schema, Table, short_id
from writetime.cassandra.types.literal import parse_literal
from writetime.cassandra.types.types import parse_type
from writetime.errors import ConfigError, DecodeError

_TABLE: Final = re.compile(r"""("(?:[^"]|"")+"|[^".]+)\.("(?:[^"]|"")+"|[^"]+)""")
_OLD: Final = re.compile(r"_OLD_([0-9a-f]{8})$")
_KEY_PART: Final = re.compile(r"\s*('(?:[^']|'')*'|[^':]*)\s*")


@dataclass(slots=True)
class Selection:
    """The result of `select`. `tables` None = all; `keys` None = every key. Counts updates of tables that are
    not captured."""

    tables: frozenset[UUID] | None
    captured: frozenset[UUID] | None
    known: Collection[UUID]
    keys: Mapping[UUID, frozenset[bytes]] | None = None
    left_out: Counter[UUID] = field(default_factory=Counter)

    def __call__(self, table_id: UUID, key: bytes) -> bool:
        if table_id not in self.known:
            return True
        if self.tables is not None and table_id not in self.tables:
            return False
        if self.keys is not None and key not in self.keys.get(table_id, ()):
            return False
        if self.captured is not None and table_id not in self.captured:
            self.left_out[table_id] += 1
            return False
        return True

    @property
    def is_everything(self) -> bool:
        """Whether every update is selected."""
        return self.tables is None and self.captured is None and self.keys is None

    def left_out_as_text(self) -> str:
        if not self.left_out:
            return ""
        return f"{self.left_out.total()} updates of {len(self.left_out)} tables without cdc left out (--all-tables shows them)"


def select(schema: Schema, cdc_ever: Collection[UUID], *, tables: Iterable[str], keys: Iterable[str], all_tables: bool) -> Selection:
    """The selection of a command line. Raises ConfigError for a table that is unknown or not captured, and
    for a key that fits no table."""
    wanted = [table for name in tables for table in _tables(schema, cdc_ever, name, all_tables=all_tables)]
    of_tables = frozenset(table.id for table in wanted) if wanted else None
    captured = None if all_tables else frozenset(cdc_ever)
    asked = [*keys]
    if not asked:
        return Selection(of_tables, captured, schema.tables.keys())
    among = wanted or [table for table in schema.tables.values() if captured is None or table.id in captured]
    found = {table.id: frozenset(raw for text in asked for raw in _raw_keys(table, schema, text)) for table in among}
    for text in asked:
        if not any(_raw_keys(table, schema, text) for table in among):
            raise ConfigError("no table has a partition key of this form", operation="select", obj=f"--key {text}", hint=_KEY_HINT)
    return Selection(of_tables, captured, schema.tables.keys(), found)


_KEY_HINT = "Write 42, text, 'a:b' or 'a':1 for a composite key; or 0x and the raw bytes"


def _tables(schema: Schema, cdc_ever: Collection[UUID], name: str, *, all_tables: bool) -> list[Table]:
    """All incarnations of a table, or the one that an id or the name of an old incarnation selects."""
    found = [table for table in schema.tables.values() if _is_named(table, name)]
    if not found:
        raise ConfigError(
            "table is unknown: neither the log nor --schema defines it",
            operation="select",
            obj=f"--table {name}",
            hint="`writetime schema` lists the known tables",
        )
    allowed = [table for table in found if all_tables or table.id in cdc_ever]
    if not allowed:
        raise ConfigError("the table never had cdc", operation="select", obj=f"--table {name}", hint="Use --all-tables to show it anyway")
    return allowed


def _is_named(table: Table, name: str) -> bool:
    if name in (str(table.id), table.label):
        return True
    match = _TABLE.fullmatch(name)
    if match is None:
        return False
    keyspace, plain = (_unquoted(part) for part in match.groups())
    old = _OLD.search(plain)
    if old is not None and short_id(table.id) == old[1]:
        plain = plain[: old.start()]
    return (table.keyspace, table.name) == (keyspace, plain)


def _unquoted(name: str) -> str:
    return name[1:-1].replace('""', '"') if name.startswith('"') else name


def _raw_keys(table: Table, schema: Schema, text: str) -> list[bytes]:
    """The raw keys that a text can mean in a table; empty if it does not match the key's types."""
    raw = []
    if text.startswith("0x"):
        try:
            raw.append(bytes.fromhex(text[2:]))
        except ValueError as error:
            raise ConfigError(f"{error}", operation="select", obj=f"--key {text}") from error
    with suppress(DecodeError):
        raw.append(_encode_key(table, schema, text))
    return raw


def _encode_key(table: Table, schema: Schema, text: str) -> bytes:
    types = [parse_type(column.type, table.keyspace, schema.types) for column in table.partition_key]
    if len(types) == 1:
        return types[0].encode(parse_literal(types[0], text))
    parts = [match[1].strip() for match in _split(text)]
    if len(parts) != len(types):
        raise DecodeError(f"the key has {len(parts)} parts, its table {len(types)}", operation="read a key")
    values = [kind.encode(parse_literal(kind, part)) for kind, part in zip(types, parts, strict=True)]
    return b"".join(len(value).to_bytes(2, "big") + value + b"\0" for value in values)


def _split(text: str) -> list[re.Match[str]]:
    matches: list[re.Match[str]] = []
    pos = 0
    while True:
        match = _KEY_PART.match(text, pos)
        if match is None:
            return matches
        matches.append(match)
        if match.end() == len(text):
            return matches
        if text[match.end()] != ":":
            raise DecodeError("expected `:` between the parts of a key", operation="read a key", position=match.end())
        pos = match.end() + 1
