"""A node's schema as one JSON document: the rows of `system_schema`, as the node has them.

The log alone cannot be relied on for the schema: a segment without any CDC write is not kept, and a CREATE TABLE in it is gone
with it. Each row keeps its writetime in µs, so that a reader can merge a snapshot with what the log says in any order. Column
names in the rows are those of Cassandra; what a row means is for the reader to know. What was shipped last is noted in the shipper's own
folder, so that each version goes up once a node. Knows no store.

    {"taken_at": ISO-8601 UTC, "schema_version": uuid text, "agreed": whether all peers have that version,
     "keyspaces": [row…], "tables": […], "columns": […], "dropped_columns": […], "types": […], "views": […]}

Values: collections as lists and objects, sets sorted, uuids as text, blobs as hex, timestamps as ms since the epoch.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Set
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final, Self
from uuid import UUID

# Table to a regular column that every one of its rows has: WRITETIME can only be asked of a column.
TABLES = {
    "keyspaces": "durable_writes",
    "tables": "id",
    "columns": "kind",
    "dropped_columns": "dropped_time",
    "types": "field_names",
    "views": "id",
}
# Columns that Cassandra itself has dropped carry the greatest time there is, which the driver cannot make a datetime of.
_FETCH = {"timestamp": "toUnixTimestamp({})"}
NOTE: Final = "schema.json"


@dataclass(frozen=True, slots=True)
class Shipped:
    """The snapshot that was shipped last: into which store, of which node, and its version as its object's name has it."""

    store: str = ""
    node: str = ""
    label: str = ""

    @classmethod
    def recall(cls, folder: Path) -> Self:
        """By the note in the shipper's folder; nothing if there is none that can be read."""
        try:
            noted = json.loads((folder / NOTE).read_text(encoding="utf-8"))
            return cls(str(noted["store"]), str(noted["node"]), str(noted["label"]))
        except (OSError, ValueError, KeyError, TypeError, RecursionError):
            return cls()

    def note(self, folder: Path) -> None:
        """Keep it for the next start. OSError."""
        folder.mkdir(parents=True, exist_ok=True)
        (folder / NOTE).write_text(json.dumps(asdict(self)), encoding="utf-8")


def take_snapshot(session: Any) -> dict[str, Any]:
    """Read the schema through a driver session on one node, whose rows are tuples (the driver's default).

    The version is read before and after, until both agree, so that the rows are those of one version. The driver's errors pass
    through as they are.
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
    """Whether all peers that the node knows have its schema, also those that are down: they may have changed it meanwhile."""
    return all(str(row[0]) == version for row in session.execute("SELECT schema_version FROM system.peers"))


def plain(value: Any) -> Any:
    """A driver's value as JSON has it."""
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
    """All rows of one table of system_schema, each with its `writetime`. CQL has no `SELECT *, WRITETIME(…)`: ask for the names first."""
    columns = session.execute(
        "SELECT column_name, type FROM system_schema.columns WHERE keyspace_name = 'system_schema' AND table_name = %s", (table,)
    )
    asked = {name: _FETCH.get(type_, "{}").format(name) for name, type_ in sorted(columns)}
    # The names are those of Cassandra's own tables; nothing here comes from a user.
    statement = f"SELECT {', '.join(asked.values())}, WRITETIME({column}) FROM system_schema.{table}"  # noqa: S608
    return [dict(zip([*asked, "writetime"], map(plain, row), strict=True)) for row in session.execute(statement)]
