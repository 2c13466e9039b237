"""The hours (UTC) for which all tables of a cluster are complete, one notification for each.

Strategy: an hour is completed when T of all tables (`writetime.pipeline.watermark`) passes its end. The end of
the last hour that others were notified of is kept in a document of its own, written after the notification: an
hour may be notified twice, and is not skipped by a crash. Without that document only the last hour counts: a
new consumer does not ask for the time before. Does not know Airflow."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from typing import Final

from writetime.pipeline import watermark
from writetime.pipeline.documents import Document
from writetime.pipeline.planner import history
from writetime.storage import layout
from writetime.storage.store import Store

HOUR: Final = timedelta(hours=1)
MOST: Final = 48
"""Maximum number of hours that are notified at once, after an outage: the last ones."""


class NotifiedHours(Document):
    """`until`: the end of the last hour that was notified."""

    until: datetime


def completed_hours(store: Store, cluster: str) -> list[datetime]:
    """The starts of the completed hours that were not notified yet, the oldest first."""
    complete = watermark.read(store, cluster, history(store, cluster).sealed).of_all
    if complete is None:
        return []
    end = complete.astimezone(UTC).replace(minute=0, second=0, microsecond=0)
    notified = NotifiedHours.read(store, layout.complete_hours(cluster))
    since = end - HOUR if notified is None else max(notified.until, end - MOST * HOUR)
    return [since + number * HOUR for number in range((end - since) // HOUR)]


def record_notified(store: Store, cluster: str, hours: Sequence[datetime]) -> None:
    """These hours were notified."""
    until = max(hours) + HOUR

    def change(before: NotifiedHours | None) -> NotifiedHours | None:
        return NotifiedHours(until=until) if before is None or before.until < until else None

    NotifiedHours.update(store, layout.complete_hours(cluster), change)


def key_of(hour: datetime) -> str:
    """The name of an hour, as in `2026-11-25T21`."""
    return f"{hour.astimezone(UTC):%Y-%m-%dT%H}"
