"""Tell in the bucket how much room a node has, for people who see the bucket and not this machine.

    space/<cluster>/date=<day>/<dc>/<node>/<utc time>-<level>.json
    {"at": "2026-05-04T12:05:01+00:00", "level": "alarm", "used": 3900000000, "limit": 4294967296, "share": 0.92, "disk_free": 80000000000}

Strategy: an object at a change of level, and one a day besides, so that nobody has to look further back than to yesterday. Objects are
created and never overwritten, as all that nodes write. What was told last is noted in the shipper's own folder, so that a shipper run by
cron does not tell it each time; without the note it is told once more. Changes of level within a minute wait, but for the worse. Whether
and when it may be told is the agent's business.
"""

from __future__ import annotations

import json
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, date, datetime, timedelta
from pathlib import Path

from shippers.guard import Level, Space
from writetime import names
from writetime.errors import PreconditionFailed
from writetime.store import Store

NOTE = "space.json"
_PAUSE = timedelta(minutes=1)


@dataclass(frozen=True, slots=True)
class Told:
    """What was told last, and when; `ok`, long ago, if nothing ever was."""

    level: Level = Level.OK
    at: datetime = datetime(1970, 1, 1, tzinfo=UTC)

    @classmethod
    def recall(cls, folder: Path) -> Told:
        """By the note in the shipper's folder; if there is none that can be read, nothing was told."""
        try:
            known = json.loads((folder / NOTE).read_text(encoding="utf-8"))
            return cls(Level[known["level"].upper()], datetime.fromisoformat(known["at"]))
        except (OSError, ValueError, KeyError, TypeError, AttributeError):
            return cls()

    def is_due(self, level: Level, now: datetime) -> bool:
        """Whether there is something new to tell."""
        if level is self.level:
            return _day(now) > _day(self.at)
        return level > self.level or now - self.at >= _PAUSE


def tell(store: Store, node: names.NodeName, folder: Path, space: Space, level: Level, now: datetime) -> Told:
    """Put it into the bucket and note it. StoreError, OSError."""
    document = {
        "at": now.isoformat(timespec="seconds"),
        "level": level.text,
        "used": space.used,
        "limit": space.limit,
        "share": round(space.share, 4),
        "disk_free": space.free,
    }
    text = json.dumps(document)
    # It is there if an answer was lost on the way: only this node's shipper writes here, and within a second it tells a level once.
    with suppress(PreconditionFailed):
        store.put(names.node_space(node, now, level.text), text.encode(), if_generation=0)
    folder.mkdir(parents=True, exist_ok=True)
    (folder / NOTE).write_text(text, encoding="utf-8")
    return Told(level, now)


def _day(at: datetime) -> date:
    return at.astimezone(UTC).date()
