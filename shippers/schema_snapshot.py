"""A node's schema as one JSON document: the rows of its `system_schema` tables.

The commit log alone does not suffice for the schema: Cassandra deletes segments without CDC writes, and the
CREATE TABLE statements in them are lost.

Strategy: each row keeps its writetime in µs, so that a reader can merge snapshots and log in any order. Rows
use Cassandra's column names; the reader interprets them. The last shipped version is recorded in the state
folder, so that each version is shipped once per node. Knows nothing about the store.

    {"taken_at": ISO-8601 UTC, "schema_version": uuid text, "agreed": whether all peers have that version,
     "keyspaces": [row…], "tables": […], "columns": […], "dropped_columns": […], "types": […], "views": […]}

Values: collections as lists and objects, sets sorted, uuids as text, blobs as hex, timestamps as ms since the
epoch.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Set
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final, Self
from uuid import UUID

# Per table, a regular column that every row has: WRITETIME() needs a column.
TABLES = {
    "keyspaces": "durable_writes",
    "tables": "id",
    "columns": "kind",
    "dropped_columns": "dropped_time",
    "types": "field_names",
    "views": "id",
}
# Columns that Cassandra itself dropped have the maximum timestamp, which the driver cannot convert to a
# datetime.
_FETCH = {"timestamp": "toUnixTimestamp({})"}
NOTE: Final = "schema.json"


@dataclass(frozen=True, slots=True)
class Shipped:
    """The last shipped snapshot: store, node, and the version as in its object's name."""

    store: str = ""
    node: str = ""
    label: str = ""

    @classmethod
    def recall(cls, folder: Path) -> Self:
        """Read the record in the state folder; empty if missing or unreadable."""
        try:
            noted = json.loads((folder / NOTE).read_text(encoding="utf-8"))
            return cls(str(noted["store"]), str(noted["node"]), str(noted["label"]))
        except (OSError, ValueError, KeyError, TypeError, RecursionError):
            return cls()

    def note(self, folder: Path) -> None:
        """Record it for the next start. OSError."""
        folder.mkdir(parents=True, exist_ok=True)
        (folder / NOTE).write_text(json.dumps(asdict(self)), encoding="utf-8")


def take_snapshot(session: Any) -> dict[str, Any]:
    """Read the schema through a driver session on one node, whose rows are tuples (the driver's default).

    Repeated until the version is the same before and after, so that all rows belong to one version. Driver
    errors are not caught.
    """
    while True:
        version = schema_version(session)
        rows = {table: _rows(session, table, column) for table, column in TABLES.items()}
        if schema_version(session) == version:
            return {"taken_at": datetime.now(UTC).isoformat(), "schema_version": version, "agreed": _is_agreed(session, version), **rows}


def schema_version(session: Any) -> str:
    """The schema version of the node behind the session."""
    return str(session.execute("SELECT schema_version FROM system.local").one()[0])


def _is_agreed(session: Any, version: str) -> bool:
    """Whether all peers, including those that are down, have the node's schema version: they may have changed
    it.
    """
    return all(str(row[0]) == version for row in session.execute("SELECT schema_version FROM system.peers"))


def plain(value: Any) -> Any:
    """Convert a driver value to a JSON value."""
    if isinstance(value, bytes | bytearray):
        return value.hex()
    if isinstance(value, UUID):
        return str(value)
    if isinstance(value, Mapping):
        return {str(key): plain(item) for key, item in value.items()}
    if isinstance(value, str) or not isinstance(value, Iterable):
        return value
    items = [plain(item) for item in value]
    return sorted(items) if isinstance(value, Set) else items


def _rows(session: Any, table: str, column: str) -> list[dict[str, Any]]:
    """All rows of one table of system_schema, each with its `writetime`.

    CQL does not support `SELECT *, WRITETIME(…)`, so the column names are queried first.
    """
    columns = session.execute(
        "SELECT column_name, type FROM system_schema.columns WHERE keyspace_name = 'system_schema' AND table_name = %s", (table,)
    )
    asked = {name: _FETCH.get(type_, "{}").format(name) for name, type_ in sorted(columns)}
    # The names are those of Cassandra's own tables; nothing here comes from a user.
    statement = f"SELECT {', '.join(asked.values())}, WRITETIME({column}) FROM system_schema.{table}"  # noqa: S608
    return [dict(zip([*asked, "writetime"], map(plain, row), strict=True)) for row in session.execute(statement)]
