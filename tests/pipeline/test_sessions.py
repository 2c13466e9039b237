"""The documents of a streaming session: requests reach the session they are for, and pauses grow."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from pathlib import Path

from writetime.pipeline import sessions
from writetime.pipeline.sessions import Failures, SessionState, StoreClock
from writetime.storage.local import LocalStore

CLUSTER = "c"
NOW = datetime(2026, 5, 1, 12, tzinfo=UTC)


def state(number: str, ended: str = "") -> SessionState:
    return SessionState(id=number, started_at=NOW, updated_at=NOW, until=NOW, ended=ended)


def test_a_stop_is_for_the_session_that_runs(tmp_path: Path) -> None:
    store = LocalStore(tmp_path)
    assert sessions.request_stop(store, CLUSTER, "a person") is None
    sessions.write_state(store, CLUSTER, state("one", ended="its time is over"))
    assert sessions.request_stop(store, CLUSTER, "a person") is None
    sessions.write_state(store, CLUSTER, state("two"))
    assert sessions.request_stop(store, CLUSTER, "a person") == state("two")
    found = sessions.stop_requested(store, CLUSTER, "two")
    assert found is not None
    assert found.by == "a person"
    # The next session is not ended by an old request.
    assert sessions.stop_requested(store, CLUSTER, "three") is None


def test_a_problem_that_comes_again_is_another_one() -> None:
    def minute(number: int) -> datetime:
        return NOW + timedelta(minutes=number)

    fails = state("one").noted(minute(1), publish_error="no broker")
    assert (fails.updated_at, fails.failing_since, fails.waiting_since) == (minute(1), minute(1), None)
    assert fails.noted(minute(2), publish_error="no answer").failing_since == minute(1)
    works = fails.noted(minute(3), publish_error="", waiting={"shop.a": 5})
    assert (works.failing_since, works.waiting_since) == (None, minute(3))
    more = works.noted(minute(4), publish_error="no broker", waiting={"shop.a": 5, "shop.b": 7})
    assert (more.failing_since, more.waiting_since) == (minute(4), minute(4))
    # The next session goes on with it, and a problem that it finds over is over.
    following = state("two").with_problems_of(more).noted(minute(5), failed=[3])
    assert (following.id, following.failing_since, following.waiting_since) == ("two", minute(4), minute(4))
    assert following.noted(minute(6), publish_error="no broker", waiting=more.waiting).failing_since == minute(4)
    assert following.noted(minute(6), waiting={}).waiting_since is None
    assert state("three").with_problems_of(None) == state("three")
    # Written by a version that knew no times.
    assert state("four").model_copy(update={"publish_error": "no broker"}).noted(minute(7)).failing_since == minute(7)


def test_a_suspended_session_does_not_write_over_its_successor(tmp_path: Path) -> None:
    store = LocalStore(tmp_path)
    first = state("one")
    second = first.model_copy(update={"id": "two", "started_at": NOW + timedelta(minutes=1)})
    known = sessions.write_state(store, CLUSTER, first)
    known = sessions.write_state(store, CLUSTER, first, known)
    assert sessions.read_state(store, CLUSTER) == first
    sessions.write_state(store, CLUSTER, second)
    for generation in (known, 0):
        sessions.write_state(store, CLUSTER, first, generation)
        assert sessions.read_state(store, CLUSTER) == second


def test_a_turn_expires_unless_it_is_asked_for_again(tmp_path: Path) -> None:
    store = LocalStore(tmp_path)
    now = datetime.now(UTC)
    assert sessions.turn_requested(store, CLUSTER, now) is None
    sessions.request_turn(store, CLUSTER, "cdc_maintain")
    found = sessions.turn_requested(store, CLUSTER, now + timedelta(seconds=30))
    assert found is not None
    assert found.by == "cdc_maintain"
    assert sessions.turn_requested(store, CLUSTER, now + timedelta(seconds=120)) is None
    sessions.end_turn(store, CLUSTER)
    sessions.end_turn(store, CLUSTER)
    assert sessions.turn_requested(store, CLUSTER, now) is None


def test_pauses_double_up_to_five_minutes_and_end_with_a_session_that_ends_well(tmp_path: Path) -> None:
    store = LocalStore(tmp_path)
    pauses = []
    for _ in range(8):
        pauses.append(sessions.note_failure(store, CLUSTER, "no answer", now=NOW).pause(NOW))
    assert pauses == [10, 20, 40, 80, 160, 300, 300, 300]
    assert sessions.read_failures(store, CLUSTER).pause(NOW + timedelta(seconds=100)) == 200
    assert sessions.read_failures(store, CLUSTER).pause(NOW + timedelta(hours=1)) == 0
    # A clock that was set back does not make it longer than the longest.
    assert Failures(count=99, at=NOW).pause(NOW - timedelta(hours=1)) == 300
    sessions.forget_failures(store, CLUSTER)
    assert sessions.read_failures(store, CLUSTER).pause(NOW) == 0


def test_the_store_is_asked_for_its_time_once_a_minute(tmp_path: Path) -> None:
    store = LocalStore(tmp_path)
    monotonic = [0.0]
    clock = StoreClock(store, CLUSTER, monotonic=lambda: monotonic[0])
    first = clock.now()
    monotonic[0] = 59.0
    assert clock.now() == first + timedelta(seconds=59)
    monotonic[0] = 60.0
    assert clock.now() < first + timedelta(seconds=30)
