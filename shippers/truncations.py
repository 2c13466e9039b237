"""Ship what the node records of its own TRUNCATEs (`system.local.truncated_at`).

A TRUNCATE is in the log only as a mutation of `system.local`, and Cassandra keeps no segment without a CDC write: with that segment the
record is lost. So the shipper asks its node and ships the answer, as one object that is created and never overwritten:

    truncations/<cluster>/<dc>/<node>/<utc time>-<crc32c>.json
    {"taken_at": ISO-8601, "truncated_at": [{"table_id": uuid, "segment": id, "position": bytes, "at": ms}, …]}

Strategy: an object when the answer has changed, and one a day besides, which shows that the node still answers. What was
shipped last is noted in the shipper's own folder, so that a shipper run by cron does not ship it each time; without the
note it is shipped once more. Knows no segments.
"""

from __future__ import annotations

import json
import struct
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, Final
from uuid import UUID

from writetime.errors import PreconditionFailed
from writetime.storage import layout
from writetime.storage.checksum import crc32c
from writetime.storage.store import Store

NOTE: Final = "truncations.json"
AGAIN: Final = timedelta(days=1)
_RECORD: Final = struct.Struct(">qiq")
"""Segment id, position, ms since the epoch (Cassandra 3.0-6.0, SystemKeyspace.truncationAsMapEntry)."""


def take_truncations(session: Any) -> list[dict[str, Any]]:
    """The node's records, by table id. A value of another shape is left out: a later release may keep something else there."""
    row = session.execute("SELECT truncated_at FROM system.local").one()
    return records(row[0] or {} if row is not None else {})


def records(truncated_at: Mapping[UUID, bytes]) -> list[dict[str, Any]]:
    """`truncated_at` as the driver gives it, JSON-ready and in one order."""
    found = []
    for table_id, value in sorted(truncated_at.items(), key=lambda item: str(item[0])):
        if len(value) == _RECORD.size:
            segment, position, at = _RECORD.unpack(bytes(value))
            found.append({"table_id": str(table_id), "segment": segment, "position": position, "at": at})
    return found


@dataclass(frozen=True, slots=True)
class Shipped:
    """What was shipped last, by its checksum, when, into which store, and of which node; nothing, long ago, if nothing ever was."""

    checksum: str = ""
    at: datetime = datetime(1970, 1, 1, tzinfo=UTC)
    store: str = ""
    node: str = ""

    @classmethod
    def recall(cls, folder: Path) -> Shipped:
        """By the note in the shipper's folder; nothing if there is none that can be read."""
        try:
            noted = json.loads((folder / NOTE).read_text(encoding="utf-8"))
            at = datetime.fromisoformat(noted["at"]).astimezone(UTC)
            return cls(str(noted["checksum"]), at, str(noted.get("store", "")), str(noted.get("node", "")))
        except (OSError, ValueError, OverflowError, KeyError, TypeError, AttributeError, RecursionError):
            return cls()

    def is_due(self, new: Shipped) -> bool:
        """Whether `new` is to be shipped at its time. A clock that was set back ships it."""
        same = (new.checksum, new.store, new.node) == (self.checksum, self.store, self.node)
        return not same or not timedelta(0) <= new.at - self.at < AGAIN


def checksum_of(found: list[dict[str, Any]]) -> str:
    """The same for the same records."""
    return f"{crc32c(json.dumps(found, sort_keys=True).encode()):08x}"


def ship_truncations(store: Store, node: layout.NodeName, found: list[dict[str, Any]], now: datetime) -> str:
    """Create the object with these records; its name. StoreError."""
    name = layout.node_truncations(node, now, checksum_of(found))
    document = {"taken_at": now.isoformat(timespec="seconds"), "truncated_at": found}
    # It is there if an answer was lost on the way: its name holds the second and the content.
    with suppress(PreconditionFailed):
        store.put(name, json.dumps(document, indent=1).encode() + b"\n", if_generation=0)
    return name


def note(folder: Path, shipped: Shipped) -> None:
    """Keep what was shipped for the next start. OSError."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / NOTE).write_text(json.dumps({**asdict(shipped), "at": shipped.at.isoformat()}), encoding="utf-8")
