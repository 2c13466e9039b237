"""The documents of the streaming session (`spark_jobs/stream.py`): its state, its failures, and what others
ask of it.

    sessions/<cluster>/lease.json      the session that runs (`writetime.storage.lease`)
                       state.json      what it is doing; written by the session
                       failures.json   how often it failed in a row; written by the task that starts it
                       stop.json       a request to end after the current batch
                       turn.json       a request to leave the next batch to another DAG

Strategy: requests are objects that the session reads between two batches, so that anybody who may write to
the bucket can make them, and none is lost if the session restarts. A request applies to the session that runs
when it is made: `stop` names it, and `turn` expires by itself. The state is for people and alerts: nothing
that must be exact depends on it, since batches have their own documents.

Knows neither Spark nor Airflow.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from typing import Any, Final

from pydantic import Field

from writetime.errors import ObjectNotFound, PreconditionFailed
from writetime.pipeline.documents import Document
from writetime.pipeline.planner import store_clock
from writetime.storage import layout
from writetime.storage.store import Store

KILLED: Final = "killed: "
"""Beginning of `ended` of a session whose task or JVM was killed."""
LISTED: Final = 100
"""Maximum number of batches that the state lists."""
LONGEST_PAUSE: Final = timedelta(minutes=5)
"""Maximum pause between a failed session and the next one."""
_FIRST_PAUSE: Final = timedelta(seconds=10)
_TURN: Final = timedelta(seconds=60)
"""How long a session waits for the batch of another DAG. Its task looks every 15 s."""
_CLOCK_SECONDS: Final = 60.0


class SessionState(Document):
    """What a session did last. `step`: its current work, for people; `batch`, `published`: the last batch
    that is sealed, and the last that is in Kafka; `batch_seconds`: duration of its last batch, from planning
    to archive. `failed`: the last batches with segments or tables that need an operator; `waiting`: tables
    whose events cannot be published, as they are since `waiting_since`; `publish_error`: why publishing fails at the moment,
    `failing_since`: since when. `ended`: why the session ended, empty while it runs.
    """

    id: str
    started_at: datetime
    updated_at: datetime
    until: datetime
    step: str = ""
    batches: int = 0
    batch: int = 0
    published: int = 0
    batch_seconds: float | None = None
    failed: list[int] = Field(default_factory=list)
    waiting: dict[str, int] = Field(default_factory=dict)
    publish_error: str = ""
    waiting_since: datetime | None = None
    failing_since: datetime | None = None
    ended: str = ""

    def noted(self, now: datetime, **changes: Any) -> SessionState:
        """The state with changes. What begins with them has begun `now`: a problem that comes again is another one."""
        after = self.model_copy(update={**changes, "updated_at": now})
        waits = self.waiting_since if after.waiting == self.waiting and self.waiting_since else now
        fails = self.failing_since if self.publish_error and self.failing_since else now
        since = {"waiting_since": waits if after.waiting else None, "failing_since": fails if after.publish_error else None}
        return after.model_copy(update=since)

    def with_problems_of(self, before: SessionState | None) -> SessionState:
        """With what the session before has left: its problems last until publishing says otherwise."""
        kept = {"waiting", "waiting_since", "publish_error", "failing_since"}
        return self if before is None else self.model_copy(update=before.model_dump(include=kept))


class Failures(Document):
    """Sessions that failed in a row, the last one at `at` because of `reason`."""

    count: int = 0
    at: datetime | None = None
    reason: str = ""

    def pause(self, now: datetime) -> float:
        """Seconds until the next session may start."""
        if self.at is None or not self.count:
            return 0.0
        pause = min(LONGEST_PAUSE, _FIRST_PAUSE * (1 << min(self.count - 1, 10)))
        # Never more than the pause: this machine's clock may have been set back.
        return max(0.0, min(pause, self.at + pause - now).total_seconds())


class StopRequest(Document):
    """A request that session `id` ends."""

    id: str
    by: str
    at: datetime


class TurnRequest(Document):
    """A request that the next batch is left to `by`."""

    by: str
    at: datetime


def read_state(store: Store, cluster: str) -> SessionState | None:
    return SessionState.read(store, layout.session(cluster, "state"))


def write_state(store: Store, cluster: str, state: SessionState, generation: int = 0) -> int:
    """Write the session's state, unless a later session has written its own: this one was suspended then. `generation`: what the
    session's last call has returned, with which one request is enough."""
    name = layout.session(cluster, "state")
    while True:
        with suppress(PreconditionFailed):
            return store.put(name, state.to_bytes(), if_generation=generation).generation
        with suppress(ObjectNotFound):
            info = store.head(name)
            generation = 0 if info is None else info.generation
            before = None if info is None else SessionState.model_validate_json(store.read(name, generation=generation))
            if before is not None and before.id != state.id and before.started_at > state.started_at:
                return 0


def request_stop(store: Store, cluster: str, by: str) -> SessionState | None:
    """Ask the running session to end after its current batch. Returns its state; None if none runs."""
    state = read_state(store, cluster)
    if state is None or state.ended:
        return None
    store.put(layout.session(cluster, "stop"), StopRequest(id=state.id, by=by, at=datetime.now(UTC)).to_bytes())
    return state


def stop_requested(store: Store, cluster: str, session_id: str) -> StopRequest | None:
    """The request that this session ends."""
    found = StopRequest.read(store, layout.session(cluster, "stop"))
    return found if found is not None and found.id == session_id else None


def request_turn(store: Store, cluster: str, by: str) -> None:
    """Ask the session to leave the next batch to another DAG, which plans it within a minute."""
    store.put(layout.session(cluster, "turn"), TurnRequest(by=by, at=datetime.now(UTC)).to_bytes())


def end_turn(store: Store, cluster: str) -> None:
    """Withdraw the request: the batch is planned."""
    with suppress(ObjectNotFound):
        store.delete(layout.session(cluster, "turn"))


def turn_requested(store: Store, cluster: str, now: datetime) -> TurnRequest | None:
    """The current request, by the store's clock `now`; an old one has expired."""
    info = store.head(layout.session(cluster, "turn"))
    if info is None or now - info.created > _TURN:
        return None
    return TurnRequest.read(store, layout.session(cluster, "turn"))


def read_failures(store: Store, cluster: str) -> Failures:
    return Failures.read(store, layout.session(cluster, "failures")) or Failures()


def note_failure(store: Store, cluster: str, reason: str, *, now: datetime) -> Failures:
    """Record one more failed session."""
    noted = Failures.update(
        store,
        layout.session(cluster, "failures"),
        lambda before: Failures(count=(before or Failures()).count + 1, at=now, reason=reason),
    )
    assert noted is not None
    return noted


def forget_failures(store: Store, cluster: str) -> None:
    """A session ended as intended: the next one starts at once."""
    Failures.update(store, layout.session(cluster, "failures"), lambda before: Failures() if before is not None and before.count else None)


class StoreClock:
    """The store's clock (`planner.store_clock`), read once a minute and continued by this machine's monotonic
    clock: each reading is a write."""

    def __init__(self, store: Store, cluster: str, *, monotonic: Callable[[], float] = time.monotonic) -> None:
        self._store, self._cluster, self._monotonic = store, cluster, monotonic
        self._read: tuple[datetime, float] | None = None

    def now(self) -> datetime:
        at = self._monotonic()
        if self._read is None or at - self._read[1] >= _CLOCK_SECONDS:
            self._read = store_clock(self._store, self._cluster), at
        return self._read[0] + timedelta(seconds=at - self._read[1])
