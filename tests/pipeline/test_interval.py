"""Times that people ask for: one check for all that take them."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta, timezone

import pytest

from tests.storage.memory import MemoryStore
from writetime.errors import ConfigError
from writetime.pipeline.interval import checked_interval, replay_hours
from writetime.pipeline.planner import plan_replay


def at(hour: int, minute: int = 0) -> datetime:
    return datetime(2026, 5, 4, hour, minute, tzinfo=UTC)


@pytest.mark.parametrize(
    ("start", "end", "found"),
    [
        ("2026-05-04T12:30", "2026-05-04T13:01", (12, 14)),
        ("2026-05-04 12:00:00+00:00", "2026-05-04T13:00:00Z", (12, 13)),
        # As a form with another time zone sends it, at half an hour.
        ("2026-05-04T18:00:00+05:30", " 2026-05-04T18:30:00+05:30 ", (12, 13)),
        (datetime(2026, 5, 4, 12, tzinfo=timezone(timedelta(hours=-2))), "2026-05-04T14:59:59.5Z", (14, 15)),
    ],
)
def test_whole_hours_of_utc(start: str | datetime, end: str, found: tuple[int, int]) -> None:
    assert replay_hours(start, end) == tuple(map(at, found))


@pytest.mark.parametrize(
    ("start", "end", "why"),
    [
        ("", "2026-05-04T13:00", "`start` is missing"),
        ("2026-05-04T13:00", "", "`end` is missing"),
        ("2026-05-04T13:00", "2026-05-04T12:00", "`start` is not before `end`"),
        ("2026-05-04T13:00", "2026-05-04T13:00", "`start` is not before `end`"),
        ("2026-05-04T13:00Z", "2026-05-04T14:00+02:00", "`start` is not before `end`"),
        ("noon", "2026-05-04T13:00", "`start` is not a time: 'noon'"),
        ("2026-05-04T12:00", "None", "`end` is not a time: 'None'"),
        ("0001-01-01T00:00+10:00", "2026-05-04T12:00", "`start` is not a time"),
        ("2026-05-04T12:00", "2026-06-04T12:01", "more than 31 days"),
    ],
)
def test_what_is_no_interval_says_why_and_is_not_retried(start: str, end: str, why: str) -> None:
    with pytest.raises(ConfigError, match=why) as caught:
        replay_hours(start, end)
    assert not caught.value.retriable
    assert caught.value.hint


def test_the_planner_checks_too() -> None:
    """Whoever calls it: otherwise swapped hours are a replay of nothing, and nobody is told."""
    with pytest.raises(ConfigError, match="is not before"):
        plan_replay(MemoryStore(), "c", start=at(13), end=at(12), now=at(14))


def test_an_audit_may_be_long_and_takes_minutes() -> None:
    assert checked_interval("2026-01-01T00:05", "2026-05-04T12:30", "audit an interval") == (
        datetime(2026, 1, 1, 0, 5, tzinfo=UTC),
        at(12, 30),
    )


@pytest.mark.advice("Give `start` and `end`")
@pytest.mark.advice("Give the earlier time as `start`")
@pytest.mark.advice("Replay them in several runs")
@pytest.mark.advice("Use the format 2026-01-31T10:00Z")
@pytest.mark.parametrize(
    ("wrong", "right"),
    [
        (("", ""), [("2026-05-04T12:00Z", "2026-05-04T13:00Z")]),
        (("2026-05-04T13:00Z", "2026-05-04T12:00Z"), [("2026-05-04T12:00Z", "2026-05-04T13:00Z")]),
        (
            ("2026-04-01T00:00Z", "2026-05-31T00:00Z"),
            [("2026-04-01T00:00Z", "2026-05-01T00:00Z"), ("2026-05-01T00:00Z", "2026-05-31T00:00Z")],
        ),
        (("31.01.2026 10:00", "2026-01-31T11:00Z"), [("2026-01-31T10:00Z", "2026-01-31T11:00Z")]),
    ],
)
def test_what_its_errors_advise(wrong: tuple[str, str], right: list[tuple[str, str]]) -> None:
    with pytest.raises(ConfigError):
        replay_hours(*wrong)
    for times in right:
        assert replay_hours(*times)
