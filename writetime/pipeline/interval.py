"""The time that people ask for, of a replay or an audit: one check for the page's form, the parameters of DAGs, and
commands. Knows none of them."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Final

from writetime.errors import ConfigError

LONGEST_REPLAY: Final = timedelta(days=31)
"""A replay is one batch. Several replays add up."""
_HOUR: Final = timedelta(hours=1)


def checked_interval(start: str | datetime, end: str | datetime, operation: str) -> tuple[datetime, datetime]:
    """Start and end (UTC) as they were given, in ISO 8601; UTC if there is no offset. ConfigError unless the start is before
    the end."""
    begin, until = _moment("start", start, operation), _moment("end", end, operation)
    if begin >= until:
        hint = "Give the earlier time as `start`."
        raise ConfigError("`start` is not before `end`", operation=operation, obj=_text(begin, until), hint=hint)
    return begin, until


def replay_hours(start: str | datetime, end: str | datetime) -> tuple[datetime, datetime]:
    """The whole hours that cover these times. ConfigError as `checked_interval`, and for too many hours."""
    begin, until = checked_interval(start, end, "plan a replay")
    begin, rest = begin.replace(minute=0, second=0, microsecond=0), until - until.replace(minute=0, second=0, microsecond=0)
    until += _HOUR - rest if rest else timedelta()
    if until - begin > LONGEST_REPLAY:
        raise ConfigError(
            f"more than {LONGEST_REPLAY.days} days",
            operation="plan a replay",
            obj=_text(begin, until),
            hint="Replay them in several runs.",
        )
    return begin, until


def _text(start: datetime, end: datetime) -> str:
    return f"{start:%Y-%m-%dT%H:%MZ} to {end:%Y-%m-%dT%H:%MZ}"


def _moment(name: str, given: str | datetime, operation: str) -> datetime:
    if not given:
        hint = "Give `start` and `end`: a run without a logical date has no interval of its own."
        raise ConfigError(f"`{name}` is missing", operation=operation, hint=hint)
    try:
        moment = given if isinstance(given, datetime) else datetime.fromisoformat(given.strip())
        return moment.replace(tzinfo=UTC) if moment.tzinfo is None else moment.astimezone(UTC)
    except (ValueError, OverflowError):
        hint = "Use the format 2026-01-31T10:00Z."
        raise ConfigError(f"`{name}` is not a time: {str(given)[:100]!r}", operation=operation, hint=hint) from None
