"""A node's schema as one JSON document, the rows of its `system_schema` tables, and when it is shipped.

The commit log alone does not suffice for the schema: Cassandra deletes segments without CDC writes, and the
CREATE TABLE statements in them are lost.

Strategy: each row keeps its writetime in µs, so that a reader can merge snapshots and log in any order. Rows
use Cassandra's column names; the reader interprets them. The last shipped version is recorded in the state
folder, so that each version is shipped once per node, and again once all peers have it. While the node is
unavailable, the configured schema file is shipped. Knows nothing about segments.

    {"taken_at": ISO-8601 UTC, "schema_version": uuid text, "agreed": whether all peers have that version,
     "keyspaces": [row…], "tables": […], "columns": […], "dropped_columns": […], "types": […], "views": […]}

From Cassandra 6.0 on, rows of `tables` with CDC also have `transactional_mode`, which is in no column of
system_schema: DESCRIBE says it. Writes to a table whose mode is not `off` go through Accord, past the log.

Values: collections as lists and objects, sets sorted, uuids as text, blobs as hex, timestamps as ms since the
epoch.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping, Set
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final, Protocol, Self
from uuid import UUID

from writetime.config.node import NodeConfig
from writetime.errors import ConfigError, PreconditionFailed, ShipError, WritetimeError
from writetime.storage import layout
from writetime.storage.store import Store

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
_SINCE_6_0: Final = "fast_path"
"""A column that the tables of system_schema have from 6.0 on."""
_MODE: Final = re.compile(r"^[\s)]*(?:WITH|AND) transactional_mode = '([a-zA-Z_]{1,64})'", re.MULTILINE)
"""In a comment the quotes would be doubled."""
_QUOTE: Final = '"'
NOTE: Final = "schema.json"
_DISAGREED = 20
"""How often the schema is read again because peers disagree: a peer that stays down never agrees."""


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


class Source(Protocol):
    """The node, which both methods query. ShipError while it is unavailable."""

    def schema_version(self) -> str: ...

    def snapshot(self) -> dict[str, Any]: ...


class SchemaShipper:
    """Ships the schema of one node. `source` is None if the node is not queried."""

    def __init__(self, node: NodeConfig, store: Store, source: Source | None, log: Any) -> None:
        self._node = node
        self._store = store
        self._source = source
        self._log = log
        self._version: str | None = None
        self._shipped = Shipped.recall(node.state)
        self._disagreed = 0

    def ship(self, name: layout.NodeName) -> None:
        """Ship the schema if its version is new to this run. A failure does not delay segments."""
        try:
            if (snapshot := self._new_snapshot()) is not None:
                self._put(name, snapshot)
        except ConfigError:
            raise
        except WritetimeError as error:
            self._log.warning("failed to ship the schema", **error.as_dict())

    def _new_snapshot(self) -> dict[str, Any] | None:
        """The node's schema if it changed; while the node is unavailable, the configured schema file,
        once."""
        if self._source is not None:
            try:
                return self._source.snapshot() if self._source.schema_version() != self._version else None
            except ShipError as error:
                self._log.warning("failed to query the node's schema", **error.as_dict())
        if self._version is None and self._node.schema_file is not None:
            return _read_snapshot(self._node.schema_file)
        return None

    def _put(self, name: layout.NodeName, snapshot: dict[str, Any]) -> None:
        """Ship a snapshot that is not under the node's prefix yet. Each node ships its own: it cannot read
        another's.
        """
        version, agreed = snapshot["schema_version"], snapshot.get("agreed", False)
        # A version is shipped again once all peers agree: only that snapshot proves what was dropped.
        shipped = Shipped(self._store.url, name.path, f"{version}-agreed" if agreed else version)
        if self._shipped not in (shipped, replace(shipped, label=f"{version}-agreed")):
            created = layout.node_schema(name, datetime.fromisoformat(snapshot["taken_at"]), shipped.label)
            # The object exists if a response was lost: its name contains the second and the version.
            with suppress(PreconditionFailed):
                self._store.put(created, json.dumps(snapshot, indent=1).encode() + b"\n", if_generation=0)
            self._log.info("schema shipped", object=created)
            self._shipped = shipped
            self._note()
        again = snapshot.get("agreed") is False and self._disagreed < _DISAGREED
        self._disagreed = self._disagreed + 1 if again else 0
        self._version = None if again else version

    def _note(self) -> None:
        try:
            self._shipped.note(self._node.state)
        except OSError as error:
            # The next start ships it again.
            self._log.warning("failed to record the shipped schema", message=str(error), hint="Check node.state_dir.")


def take_snapshot(session: Any) -> dict[str, Any]:
    """Read the schema through a driver session on one node, whose rows are tuples (the driver's default).

    Repeated until the version is the same before and after, so that all rows belong to one version. Driver
    errors are not caught.
    """
    while True:
        version = schema_version(session)
        rows = {table: _rows(session, table, column) for table, column in TABLES.items()}
        rows["tables"] = [_with_mode(session, row) for row in rows["tables"]]
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


def _with_mode(session: Any, row: dict[str, Any]) -> dict[str, Any]:
    """The row with the table's transactional mode, if it is captured and the node has modes at all."""
    if not row.get("cdc") or _SINCE_6_0 not in row:
        return row
    name = ".".join(f'"{part.replace(_QUOTE, 2 * _QUOTE)}"' for part in (row["keyspace_name"], row["table_name"]))
    described = session.execute(f"DESCRIBE TABLE {name}").one()
    found = None if described is None else _MODE.search(described[-1])
    return row if found is None else {**row, "transactional_mode": found[1].lower()}


def _read_snapshot(path: Path) -> dict[str, Any]:
    """Read the configured schema file. ConfigError if it is not a schema snapshot."""
    try:
        snapshot = json.loads(path.read_bytes())
        datetime.fromisoformat(snapshot["taken_at"])
        if not isinstance(snapshot["schema_version"], str):
            raise TypeError("schema_version is not a string")
    except OSError as error:
        raise ConfigError(f"failed to read the file: {error.strerror}", operation="read node.schema_file", obj=str(path)) from error
    except (ValueError, KeyError, TypeError) as error:
        raise ConfigError(f"not a schema snapshot: {error!r}", operation="read node.schema_file", obj=str(path)) from error
    return dict(snapshot)
