"""The node's status in the bucket, for monitoring without access to the node: identity, space, shipped
positions.

    nodes/<cluster>/<dc>/<node>/<utc time>-<crc32c>.json
    {"at": "2026-05-04T12:05:01+00:00", "host_id": …, "address": …, "release_version": …, "partitioner": …,
     "tokens": [decimal text, …],
     "settings": {"cdc_enabled": true, "cdc_block_writes": true, …},
     "space": {"level": "alarm", "used": bytes, "limit": bytes, "share": 0.92, "disk_free": bytes},
     "log": {"to_ship": segments, "to_ship_bytes": bytes, "oldest": s since the epoch or null, "spilled": segments,
             "growing": [{"segment": …, "synced": bytes, "written": s since the epoch, "shipped": bytes or null}, …]},
     "loaded": [{"keyspace": …, "table": …, "table_id": …, "at": ISO-8601, "files": how many}, …],
     "signed_off": {"at": …, "unsynced_ms": …, "members": {datacenter: [host id, …], …}}}

Strategy: objects are created and never overwritten, at most one per `GAP`: at once when the node's identity,
settings or space level change, every `EVERY` while its log advances, every `AGAIN` otherwise. With tails,
there is one every `SIGNED_OFF` besides, which says up to when everything synced is shipped (`sign_off`): a
quiet node has no other way to say so. The last written status is recorded in the state folder, so that these
intervals also hold for a shipper run by cron; without the record it is written again. Jobs delete all but the
latest. The agent decides whether the store is available.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, Final

from shippers.disk_space import Level, Space
from shippers.loaded import Loaded
from shippers.metrics import Sight, TailSeen
from shippers.node_identity import NodeFacts
from shippers.scan import View
from shippers.sign_off import SignedOff
from writetime.cassandra.cdc_settings import CdcSettings
from writetime.errors import PreconditionFailed, StoreError
from writetime.storage import layout
from writetime.storage.checksum import crc32c
from writetime.storage.store import Store

NOTE: Final = "report.json"
GAP: Final = timedelta(minutes=1)
EVERY: Final = timedelta(minutes=10)
AGAIN: Final = timedelta(hours=1)
SIGNED_OFF: Final = timedelta(seconds=15)


@dataclass(frozen=True, slots=True)
class Reported:
    """The last written status: checksums of its node part and its log part, its time, and the node's settings
    if known.

    Empty and at the epoch if none was written.
    """

    node: str = ""
    log: str = ""
    at: datetime = datetime(1970, 1, 1, tzinfo=UTC)
    settings: CdcSettings | None = None

    @classmethod
    def recall(cls, folder: Path) -> Reported:
        """Read the record in the state folder; empty if missing or unreadable."""
        try:
            noted = json.loads((folder / NOTE).read_text(encoding="utf-8"))
            settings = CdcSettings.parse(noted["settings"]) if noted.get("settings") else None
            return cls(str(noted["node"]), str(noted["log"]), datetime.fromisoformat(noted["at"]).astimezone(UTC), settings)
        except (OSError, ValueError, OverflowError, KeyError, TypeError, AttributeError, RecursionError):
            return cls()

    def is_recent(self, now: datetime) -> bool:
        """Whether no status can be due at `now`. A cheap check after each segment, before the document is
        built.
        """
        return timedelta(0) <= now - self.at < GAP

    def is_due(self, new: Reported) -> bool:
        """Whether `new` must be written at its time. It is if the clock was set back."""
        age = new.at - self.at
        if age < timedelta(0):
            return True
        return age >= (GAP if new.node != self.node else EVERY if new.log != self.log else AGAIN)


class StatusReporter:
    """Writes the status of one node when due. `state` is the shipper's state folder."""

    def __init__(self, store: Store, state: Path, log: Any) -> None:
        self._store = store
        self._state = state
        self._log = log
        self._last = Reported.recall(state)
        self._fails = False
        self._asked = -SIGNED_OFF.total_seconds()
        """When a sign-off was asked for, by the monotonic clock."""
        self._given: SignedOff | None = None

    def write_if_due(
        self,
        facts: NodeFacts,
        view: View,
        tails: Sequence[TailSeen],
        settings: CdcSettings | None,
        sign_off: Callable[[], SignedOff | None] = lambda: None,
        loaded: Sequence[Loaded] = (),
    ) -> None:
        """Write the status if it is due. A failure is only logged. `sign_off` queries the node. `loaded`: the tables into
        which the node has loaded SSTables."""
        now = datetime.now(UTC)
        signed_off = self._signed_off(sign_off)
        if signed_off is None and self._last.is_recent(now):
            return
        # While the node is down, use its last answer, including one to an earlier run.
        settings = settings or self._last.settings
        due, document = about(self._store.url, facts, view.space, view.level, view.sight, tails, settings, now, loaded)
        if signed_off is None and not self._last.is_due(due):
            return
        # Readers look at the latest status only.
        if (given := self._given) is not None and time.monotonic() - self._asked < 2 * SIGNED_OFF.total_seconds():
            document["signed_off"] = given.to_document()
        try:
            name = report(self._store, facts.name, document, now)
        except StoreError as error:
            if not self._fails:
                self._log.warning("failed to write the node status", **error.as_dict())
            self._fails = True
            if error.retriable:
                return
            # Permission errors persist: retry only when the next status is due.
        else:
            self._fails = False
            self._log.debug("node status written", object=name)
        self._last = due
        try:
            note(self._state, due)
        except OSError as error:
            self._log.warning("failed to record the written node status", message=str(error), hint="Check node.state_dir.")

    def _signed_off(self, sign_off: Callable[[], SignedOff | None]) -> SignedOff | None:
        """A sign-off, if one is due and the node gives a new one."""
        if time.monotonic() < self._asked + SIGNED_OFF.total_seconds():
            return None
        self._asked = time.monotonic()
        before, self._given = self._given, sign_off()
        return self._given if self._given != before else None


def about(
    store: str,
    facts: NodeFacts,
    space: Space,
    level: Level,
    sight: Sight,
    tails: Sequence[TailSeen],
    settings: CdcSettings | None,
    now: datetime,
    loaded: Sequence[Loaded] = (),
) -> tuple[Reported, dict[str, Any]]:
    """(the record, the document) of the status at `now` for the store with that URL."""
    node: dict[str, Any] = {key: value for key, value in asdict(facts).items() if value is not None}
    if settings is not None and (known_settings := settings.to_document()):
        node["settings"] = known_settings
    if loaded:
        node["loaded"] = [each._asdict() for each in loaded]
    room = {"used": space.used, "limit": space.limit, "share": round(space.share, 4), "disk_free": space.free}
    log = {
        "to_ship": sight.to_ship,
        "to_ship_bytes": sight.to_ship_bytes,
        "oldest": sight.oldest,
        "spilled": sight.spilled,
        "growing": [asdict(tail) for tail in tails],
    }
    # The free space changes constantly; only a change of its level makes a status due at once.
    known = Reported(_checksum([store, node, level.text, space.limit]), _checksum([log, space.used]), now, settings)
    return known, {"at": now.isoformat(timespec="seconds"), **node, "space": {"level": level.text, **room}, "log": log}


def report(store: Store, node: layout.NodeName, document: dict[str, Any], now: datetime) -> str:
    """Create the object and return its name. StoreError."""
    content = json.dumps(document, indent=1).encode() + b"\n"
    name = layout.node_status(node, now, f"{crc32c(content):08x}")
    # The object exists if a response was lost: its name contains the second and the checksum.
    with suppress(PreconditionFailed):
        store.put(name, content, if_generation=0)
    return name


def note(folder: Path, reported: Reported) -> None:
    """Record the written status for the next start. OSError."""
    folder.mkdir(parents=True, exist_ok=True)
    settings = None if reported.settings is None else reported.settings.to_document()
    noted = {"node": reported.node, "log": reported.log, "at": reported.at.isoformat(), "settings": settings}
    (folder / NOTE).write_text(json.dumps(noted), encoding="utf-8")


def _checksum(value: object) -> str:
    return f"{crc32c(json.dumps(value, sort_keys=True).encode()):08x}"
