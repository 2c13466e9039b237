"""The schema version of a table: a digest of its columns and their user types. Events carry it, consumers
compare it.

Two tables have the same version if their columns agree in name, kind, position and type, and their user types
agree in all fields. The same DDL therefore gives the same version in every batch. The table id is part of the
digest, options such as gc_grace_seconds are not.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from typing import Any
from uuid import UUID

from writetime.cassandra.schema.model import Column, Table, UserType
from writetime.cassandra.types.types import (
    CollectionType,
    CqlType,
    TupleType,
    UdtType,
    VectorType,
    parse_type,
)


def describe(table: Table, types: Mapping[tuple[str, str], UserType]) -> dict[str, Any]:
    """The table's shape as JSON: `id`, `columns` (keys in order, then static, then regular columns), `types`
    (user types used by the columns, each a list of [field, type])."""
    columns = (*table.partition_key, *table.clustering, *table.static_columns, *table.regular_columns)
    used: dict[str, list[list[str]]] = {}
    for column in columns:
        _collect(parse_type(column.type, table.keyspace, types), used)
    listed = [{"name": c.name, "kind": c.kind, "type": c.type, **({"descending": True} if c.descending else {})} for c in columns]
    return {"id": str(table.id), "columns": listed, "types": dict(sorted(used.items()))}


def described(shape: Mapping[str, Any], keyspace: str, name: str) -> tuple[Table, dict[tuple[str, str], UserType]]:
    """The table and the user types of a shape, as far as `describe` includes them."""
    columns: dict[str, Column] = {}
    for entry in shape["columns"]:
        place = sum(column.kind == entry["kind"] for column in columns.values()) if entry["kind"] in ("partition_key", "clustering") else -1
        columns[entry["name"]] = Column(entry["name"], entry["kind"], entry["type"], place, entry.get("descending", False))
    types = {
        (keyspace, each): UserType(keyspace, each, tuple(field for field, _ in fields), tuple(kind for _, kind in fields))
        for each, fields in shape["types"].items()
    }
    return Table(keyspace, name, UUID(shape["id"]), columns), types


def schema_version(table: Table, types: Mapping[tuple[str, str], UserType]) -> str:
    """The digest of `describe`, 16 hex digits."""
    text = json.dumps(describe(table, types), separators=(",", ":"), sort_keys=True)
    return hashlib.blake2b(text.encode("utf-8", "surrogateescape"), digest_size=8).hexdigest()


def _collect(kind: CqlType, used: dict[str, list[list[str]]]) -> None:
    """Add the user types within a type to `used`, fields in declaration order."""
    if isinstance(kind, UdtType):
        used[kind.name] = [[name, str(field)] for name, field in kind.known_fields.items()]
        for field in kind.known_fields.values():
            _collect(field, used)
    elif isinstance(kind, CollectionType):
        for element in kind.elements:
            _collect(element, used)
    elif isinstance(kind, TupleType):
        for field in kind.fields:
            _collect(field, used)
    elif isinstance(kind, VectorType):
        _collect(kind.element, used)
