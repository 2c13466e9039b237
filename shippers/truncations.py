"""Ships the node's truncation records (`system.local.truncated_at`).

The commit log contains a TRUNCATE only as a mutation of `system.local`, and Cassandra deletes segments
without CDC writes, so the record may be lost. The shipper queries the node and ships the result as one object
that is never overwritten:

    truncations/<cluster>/<dc>/<node>/<utc time>-<crc32c>.json
    {"taken_at": ISO-8601, "truncated_at": [{"table_id": uuid, "segment": id, "position": bytes, "at": ms}, …]}

Strategy: an object is shipped when the records change, and once a day otherwise, which shows that the node
still answers. The last shipment is recorded in the state folder, so that a shipper run by cron does not
repeat it; without the record it is shipped again. Knows nothing about segments.
"""

from __future__ import annotations

import json
import struct
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, Final
from uuid import UUID

from writetime.errors import PreconditionFailed, WritetimeError
from writetime.storage import layout
from writetime.storage.checksum import crc32c
from writetime.storage.store import Store

NOTE: Final = "truncations.json"
AGAIN: Final = timedelta(days=1)
_RECORD: Final = struct.Struct(">qiq")
"""Segment id, position, ms since the epoch (Cassandra 3.0-6.0, SystemKeyspace.truncationAsMapEntry)."""


def take_truncations(session: Any) -> list[dict[str, Any]]:
    """Query the node's records, by table id. Values of another size are skipped: a later release may change
    the format.
    """
    row = session.execute("SELECT truncated_at FROM system.local").one()
    return records(row[0] or {} if row is not None else {})


def records(truncated_at: Mapping[UUID, bytes]) -> list[dict[str, Any]]:
    """Convert the driver's `truncated_at` to JSON values in a stable order."""
    found = []
    for table_id, value in sorted(truncated_at.items(), key=lambda item: str(item[0])):
        if len(value) == _RECORD.size:
            segment, position, at = _RECORD.unpack(bytes(value))
            found.append({"table_id": str(table_id), "segment": segment, "position": position, "at": at})
    return found


@dataclass(frozen=True, slots=True)
class Shipped:
    """The last shipment: checksum, time, store and node. Empty and at the epoch if there was none."""

    checksum: str = ""
    at: datetime = datetime(1970, 1, 1, tzinfo=UTC)
    store: str = ""
    node: str = ""

    @classmethod
    def recall(cls, folder: Path) -> Shipped:
        """Read the record in the state folder; empty if missing or unreadable."""
        try:
            noted = json.loads((folder / NOTE).read_text(encoding="utf-8"))
            at = datetime.fromisoformat(noted["at"]).astimezone(UTC)
            return cls(str(noted["checksum"]), at, str(noted.get("store", "")), str(noted.get("node", "")))
        except (OSError, ValueError, OverflowError, KeyError, TypeError, AttributeError, RecursionError):
            return cls()

    def is_due(self, new: Shipped) -> bool:
        """Whether `new` must be shipped at its time. It is if the clock was set back."""
        same = (new.checksum, new.store, new.node) == (self.checksum, self.store, self.node)
        return not same or not timedelta(0) <= new.at - self.at < AGAIN


class TruncationShipper:
    """Ships the records of one node when due. `state` is the shipper's state folder."""

    def __init__(self, store: Store, state: Path, log: Any) -> None:
        self._store = store
        self._state = state
        self._log = log
        self._shipped = Shipped.recall(state)

    def ship(self, node: layout.NodeName, ask: Callable[[], list[dict[str, Any]]]) -> None:
        """Ship what `ask` returns if it changed or is a day old. A failure does not delay segments.

        `ask` queries the node and raises ShipError while it is unavailable.
        """
        try:
            found = ask()
            due = Shipped(checksum_of(found), datetime.now(UTC), self._store.url, node.path)
            if not self._shipped.is_due(due):
                return
            name = ship_truncations(self._store, node, found, due.at)
            self._shipped = due
            self._log.info("truncation records shipped", object=name, records=len(found))
            note(self._state, due)
        except WritetimeError as error:
            self._log.warning("failed to ship truncation records", **error.as_dict())
        except OSError as error:
            self._log.warning("failed to record the shipped truncation records", message=str(error), hint="Check node.state_dir.")


def checksum_of(found: list[dict[str, Any]]) -> str:
    """A checksum of the records, independent of their object."""
    return f"{crc32c(json.dumps(found, sort_keys=True).encode()):08x}"


def ship_truncations(store: Store, node: layout.NodeName, found: list[dict[str, Any]], now: datetime) -> str:
    """Create the object with these records and return its name. StoreError."""
    name = layout.node_truncations(node, now, checksum_of(found))
    document = {"taken_at": now.isoformat(timespec="seconds"), "truncated_at": found}
    # The object exists if a response was lost: its name contains the second and the checksum.
    with suppress(PreconditionFailed):
        store.put(name, json.dumps(document, indent=1).encode() + b"\n", if_generation=0)
    return name


def note(folder: Path, shipped: Shipped) -> None:
    """Record the shipment for the next start. OSError."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / NOTE).write_text(json.dumps({**asdict(shipped), "at": shipped.at.isoformat()}), encoding="utf-8")
