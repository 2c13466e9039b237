"""What status, metrics and `cdc_watch` say of a streaming session, and of one that is missing."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from tests.monitoring import bucket
from writetime.config.airflow import WatchConfig
from writetime.monitoring import metrics
from writetime.monitoring.status import as_document, as_text
from writetime.monitoring.watch import watch
from writetime.pipeline.batch_history import Batches
from writetime.pipeline.sessions import SessionState, write_state
from writetime.storage.local import LocalStore

NOW = datetime.now(UTC)
QUIET = WatchConfig(late_minutes=None, space=None, stuck_minutes=None, backlog_segments=None, unpublished_batches=None)


@pytest.fixture
def batches(tmp_path: Path) -> Batches:
    bucket.small(tmp_path)
    return Batches(LocalStore(tmp_path), bucket.CLUSTER)


def note(batches: Batches, age: timedelta, ended: str = "") -> None:
    state = SessionState(id="1", started_at=NOW - timedelta(hours=1), updated_at=NOW - age, until=NOW, batches=2, batch=8, ended=ended)
    write_state(batches.store, batches.cluster, state)


def test_a_missing_session_is_a_trouble_where_one_has_to_run(batches: Batches) -> None:
    assert watch(batches, QUIET, now=NOW) == []
    (trouble,) = watch(batches, QUIET, session=True, now=NOW)
    assert (trouble.key, "none has reported yet" in trouble.text) == ("session", True)
    note(batches, timedelta(minutes=9))
    assert watch(batches, QUIET, session=True, now=NOW) == []
    note(batches, timedelta(minutes=11), ended="failed: no answer")
    (trouble,) = watch(batches, QUIET, session=True, now=NOW)
    assert "it ended: failed: no answer" in trouble.text


def test_a_session_has_a_sample_from_the_beginning(batches: Batches) -> None:
    def found(session: bool) -> list[float]:
        samples = metrics.samples(batches, session=session)
        return [value for name, _, value in samples if name == "writetime_session_timestamp_seconds"]

    assert (found(False), found(True)) == ([], [0.0])
    note(batches, timedelta(0))
    assert found(True) == [NOW.timestamp()]


def test_status_says_what_the_session_does(batches: Batches) -> None:
    assert "session since" not in as_text(batches, 60)
    assert as_document(batches, 60)["session"] is None
    note(batches, timedelta(minutes=3))
    assert "waiting for segments; 2 batches; published up to 0" in as_text(batches, 60)
    note(batches, timedelta(minutes=3), ended="its time is over")
    assert "ended: its time is over" in as_text(batches, 60)
    assert as_document(batches, 60)["session"]["batch"] == 8
