"""What a table's shape is called: a digest of its columns and of the user types in them, that events carry and consumers compare.

Two shapes have one version if they have the same columns, by name, kind, place and type, and the same fields in the same types: so the
same DDL gives the same version in every batch, whoever computes it. Options such as gc_grace_seconds are no part of it, the table's id is.
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
    """The table's shape as JSON: `id`, `columns` (keys in order, then static, then regular ones), `types` (those that columns are made of,
    each a list of [field, type])."""
    columns = (*table.partition_key, *table.clustering, *table.static_columns, *table.regular_columns)
    used: dict[str, list[list[str]]] = {}
    for column in columns:
        _collect(parse_type(column.type, table.keyspace, types), used)
    listed = [{"name": c.name, "kind": c.kind, "type": c.type, **({"descending": True} if c.descending else {})} for c in columns]
    return {"id": str(table.id), "columns": listed, "types": dict(sorted(used.items()))}


def described(shape: Mapping[str, Any], keyspace: str, name: str) -> tuple[Table, dict[tuple[str, str], UserType]]:
    """The table and the user types whose shape that is, as far as `describe` told."""
    columns: dict[str, Column] = {}
    for told in shape["columns"]:
        place = sum(column.kind == told["kind"] for column in columns.values()) if told["kind"] in ("partition_key", "clustering") else -1
        columns[told["name"]] = Column(told["name"], told["kind"], told["type"], place, told.get("descending", False))
    types = {
        (keyspace, each): UserType(keyspace, each, tuple(field for field, _ in fields), tuple(kind for _, kind in fields))
        for each, fields in shape["types"].items()
    }
    return Table(keyspace, name, UUID(shape["id"]), columns), types


def schema_version(table: Table, types: Mapping[tuple[str, str], UserType]) -> str:
    """16 hex digits of the digest of `describe`."""
    text = json.dumps(describe(table, types), separators=(",", ":"), sort_keys=True)
    return hashlib.blake2b(text.encode("utf-8", "surrogateescape"), digest_size=8).hexdigest()


def _collect(kind: CqlType, used: dict[str, list[list[str]]]) -> None:
    """The user types in a type, fields in their own order."""
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
