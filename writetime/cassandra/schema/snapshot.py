"""A snapshot of system_schema as a node returned it over CQL. It is shipped along with the segments, because
DDL in the log may be lost with its segment.

    {"taken_at": ISO-8601, "schema_version": text,
     "tables": [{"keyspace_name": …, "table_name": …, "id": …, …, "writetime": µs}, …],
     "columns": […], "dropped_columns": […], "types": […], "keyspaces": […], "views": […]}

Each list holds the rows of the table of that name: text, numbers and booleans unchanged, uuids as text,
blobs as hex, timestamps as ms since the epoch, lists and sets as lists, maps as objects; a null or missing
column is not set. Rows of `tables` may have `transactional_mode`, which is in no column of Cassandra's:
then `schema_version` has the epoch of the cluster's metadata (from 6.0 on). The `writetime` of a row says
when it was written. A snapshot is converted to the mutations that would have written it, and these are
processed like those in the log. A missing row proves nothing, unless the snapshot has `"agreed": true`:
then the node's peers had the same schema version, and a missing table was dropped in the whole cluster.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Mapping
from datetime import datetime
from typing import Any, Final
from uuid import UUID

from writetime import untrusted
from writetime.cassandra.model import Cell, Liveness, Mutation, PartitionUpdate, Row
from writetime.cassandra.schema.epochs import epoch_of_version
from writetime.cassandra.schema.model import Column, Table
from writetime.cassandra.schema.system_tables import SCHEMA_TABLES
from writetime.cassandra.types.types import CollectionType, CqlType, parse_type
from writetime.errors import SchemaError, WritetimeError

WRITETIME = "writetime"
LATEST: Final = untrusted.I64
_LONGEST_NAME: Final = 256
"""In characters, of a keyspace. Cassandra allows 48, and 222 since 5.0."""
_TABLES = {table.name: table for table in SCHEMA_TABLES.values()}
_FROM_JSON: dict[str, Callable[[Any], Any]] = {
    "uuid": UUID,
    "blob": lambda text: bytes.fromhex(text.removeprefix("0x")),
}


def whole_at(document: Mapping[str, Any], *, received: int = LATEST) -> int | None:
    """When the snapshot was taken (µs), if it is complete and the nodes agreed on it: missing rows then count
    as dropped. None otherwise. `received`: an upper limit (µs), because the node's clock may be wrong."""
    return taken_at(document, received=received) if document.get("agreed") is True and is_complete(document) else None


def is_complete(document: Mapping[str, Any]) -> bool:
    """Whether a snapshot has all rows that its node had."""
    keyspaces = document.get("keyspaces")
    if not isinstance(keyspaces, list) or not isinstance(document.get("taken_at"), str):
        return False
    # Every node has these rows: a document without them is not a complete snapshot.
    is_own = (row.get("keyspace_name") == "system_schema" for row in keyspaces)
    return bool(document.get("tables")) and bool(document.get("columns")) and any(is_own)


def taken_at(document: Mapping[str, Any], *, received: int = LATEST) -> int:
    """When a complete snapshot was taken (µs), at most `received`. Raises SchemaError."""
    at = document["taken_at"]
    try:
        taken = int(datetime.fromisoformat(at).timestamp() * 1_000_000)
    except (ValueError, OverflowError, OSError) as error:
        raise SchemaError(f"invalid taken_at {at!r}", operation="read a schema snapshot") from error
    return min(taken, received)


def read(text: str | bytes) -> dict[str, Any]:
    """Parse a snapshot's JSON. Raises SchemaError."""
    try:
        return untrusted.parse_object(text.encode() if isinstance(text, str) else text, largest=untrusted.SCHEMA)
    except untrusted.Untrusted as error:
        raise SchemaError(str(error), operation="read a schema snapshot") from error


def parse(text: str | bytes, *, latest: int | None = None) -> list[Mutation]:
    """The mutations of a snapshot's JSON, one for each keyspace. `latest`: the highest writetime (µs) that is
    accepted; a later one would override every future change. Raises SchemaError."""
    return mutations(read(text), latest=LATEST if latest is None else latest)


def mutations(document: Mapping[str, Any], *, latest: int = LATEST) -> list[Mutation]:
    """The mutations of a snapshot, one for each keyspace, in the order of their names. Raises SchemaError."""
    rows: dict[str, dict[str, list[Row]]] = {}
    for name, table in _TABLES.items():
        entries = document.get(name) or []
        if not isinstance(entries, list):
            raise SchemaError(f"not a list but {type(entries).__name__}", operation="read a schema snapshot", obj=name)
        for index, values in enumerate(entries):
            keyspace, row = _row(table, values, f"{name}[{index}]", latest)
            rows.setdefault(keyspace, {}).setdefault(name, []).append(row)
    return [
        Mutation(tuple(PartitionUpdate(_TABLES[name].id, keyspace.encode(), rows=tuple(found)) for name, found in sorted(tables.items())))
        for keyspace, tables in sorted(rows.items())
    ]


def epoch(document: Mapping[str, Any]) -> int | None:
    """The epoch that the snapshot shows, which is in its version; None before 6.0, and while a cluster is being
    upgraded to it."""
    try:
        return epoch_of_version(UUID(document["schema_version"]))
    except (KeyError, TypeError, ValueError, AttributeError):
        return None


def modes(document: Mapping[str, Any]) -> dict[UUID, tuple[int, str]]:
    """By table id: (epoch, transactional mode), of the tables for which the snapshot has one. Raises
    SchemaError."""
    found = [row for row in document.get("tables") or () if isinstance(row, Mapping) and row.get("transactional_mode") is not None]
    try:
        epoch = UUID(document["schema_version"]).int & LATEST if found else 0
        return {UUID(row["id"]): (epoch, untrusted.text(row["transactional_mode"], "transactional_mode", longest=64)) for row in found}
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise SchemaError(f"{type(error).__name__}: {error}", operation="read a schema snapshot", obj="tables") from error


def _row(table: Table, values: Mapping[str, Any], where: str, latest: int) -> tuple[str, Row]:
    """(keyspace, row) of one entry. Unknown columns are skipped."""
    try:
        written = untrusted.integer(values[WRITETIME], WRITETIME, low=-(2**63), high=latest)
        keyspace = untrusted.text(values["keyspace_name"], "keyspace_name", longest=_LONGEST_NAME)
        clustering = tuple(_encode(column, values[column.name]) for column in table.clustering)
        cells = tuple(
            Cell(column.name, written, _encode(column, values[column.name]))
            for column in table.regular_columns
            if values.get(column.name) is not None
        )
        return keyspace, Row(clustering, Liveness(written), cells=cells)
    except (WritetimeError, KeyError, TypeError, ValueError, AttributeError, OverflowError, struct.error) as error:
        raise SchemaError(f"{type(error).__name__}: {error}", operation="read a schema snapshot", obj=where) from error


def _encode(column: Column, value: Any) -> bytes:
    kind = parse_type(column.type, "system_schema", {})
    return kind.encode(_from_json(kind, value))


def _from_json(kind: CqlType, value: Any) -> Any:
    if not isinstance(kind, CollectionType):
        return _FROM_JSON.get(str(kind), lambda same: same)(value)
    if kind.kind == "map":
        key, element = kind.elements
        return sorted((_from_json(key, k), _from_json(element, v)) for k, v in value.items())
    elements = [_from_json(kind.elements[0], element) for element in value]
    return sorted(elements) if kind.kind == "set" else elements
