"""Operators of the streaming session: the task that runs it, and the tasks that report what its batches left
for people.

Strategy: the session is one long Spark job, and Airflow shows mapped tasks and asset events of a task only
when it has ended. So a thread of the session's task reads the session's state from the bucket and triggers
the DAG `cdc_report` when there is something to report. A run id names the occurrence that it reports: the batch
with its id, or the time at which a problem began. Airflow keeps run ids for ever, and refuses a second run with
the same id: so a session that starts again reports nothing twice, and what comes again is reported again, also in
a bucket that was made anew. The request goes through the channel that each task has to Airflow's API, as that of
TriggerDagRunOperator does, and needs no credentials."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime
from hashlib import sha256
from typing import Any

from airflow.sdk import Context
from airflow.sdk.exceptions import AirflowException, AirflowFailException, AirflowRuntimeError, AirflowSkipException, ErrorType
from airflow.sdk.execution_time import task_runner
from airflow.sdk.execution_time.comms import ErrorResponse, TriggerDagRun
from writetime_notices import NOTIFIED_BEFORE
from writetime_operators import QUICK_START, SMALL_BATCH, PipelineOperator, SparkJobOperator, failure, opened

from writetime.config.pipeline import PipelineConfig
from writetime.errors import WritetimeError
from writetime.pipeline import sessions
from writetime.pipeline.completed_hours import completed_hours, key_of
from writetime.pipeline.documents import Manifest
from writetime.pipeline.planner import history, read_sealed
from writetime.pipeline.sessions import SessionState
from writetime.storage import layout
from writetime.storage.layout import incoming_prefix
from writetime.storage.store import Store

_LOOK_SECONDS = 5.0
_ASSETS_SECONDS = 300.0
"""Seconds between two runs that only create asset events: a session changes tables every few seconds."""
_HOURS_SECONDS = 30.0
"""Seconds between two looks for completed hours."""
_STOP_SECONDS = 40.0
"""How long a task that is asked to end waits for its session. A worker that shuts down asks the task alone; for a run that is
marked as failed, Airflow asks all processes of the task at once and kills them after 5 s, so that the session ends at once."""


class SessionOperator(SparkJobOperator):
    """Run a streaming session until it ends. Skips in mode `batch`. After failed sessions it waits before it
    starts, up to five minutes. `report_dag`: the DAG that reports failures."""

    def __init__(self, *, report_dag: str, **kwargs: Any) -> None:
        super().__init__(job="stream", **kwargs)
        self.report_dag = report_dag

    def execute(self, context: Context) -> None:
        config, store = opened(self.config)
        cluster = config.cluster.name
        if config.airflow.mode != "session":
            raise AirflowSkipException("airflow.mode is batch: cdc_ingest and cdc_publish run the batches")
        failures = sessions.read_failures(store, cluster)
        if pause := failures.pause(datetime.now(UTC)):
            text = "%s sessions failed in a row; the next one starts in %.0f s. Last error: %s"
            self.log.warning(text, failures.count, pause, failures.reason)
            time.sleep(pause)
        self._log_interruption(store, cluster)
        context[NOTIFIED_BEFORE] = failures.count > 0  # type: ignore[typeddict-unknown-key]
        try:
            with Reporter(store, cluster, self.report_dag, self.log).running():
                super().execute(context)
        except (AirflowException, AirflowFailException) as error:
            sessions.note_failure(store, cluster, str(error)[:1000], now=datetime.now(UTC))
            raise
        sessions.forget_failures(store, cluster)

    def _log_interruption(self, store: Store, cluster: str) -> None:
        """Log that the last session did not end by itself. Airflow calls nobody for a task whose process was killed."""
        last = sessions.read_state(store, cluster)
        if last is None or (last.ended and not last.ended.startswith(sessions.KILLED)):
            return
        why = last.ended or f"no end is recorded; it last reported at {last.updated_at:%H:%M:%S}Z, and its lease expires within 35 s"
        self.log.warning("the last session (%s) was interrupted: %s. What it was doing is done again", last.id, why)

    def local_conf(self, config: PipelineConfig, store: Store) -> dict[str, str]:
        """A session's batches are small, unless it begins with a backlog."""
        waiting = 0
        try:
            for info in store.names(incoming_prefix(config.cluster.name)):
                waiting += info.size
                if waiting > SMALL_BATCH:
                    return {}
        except WritetimeError as error:
            raise failure(error) from error
        return QUICK_START

    def on_kill(self) -> None:
        """Ask the session to end after its batch, if there is time for it; kill it if it does not."""
        try:
            config, store = opened(self.config)
            asked = sessions.request_stop(store, config.cluster.name, "Airflow")
            give_up = time.monotonic() + _STOP_SECONDS
            while asked is not None and not asked.ended and time.monotonic() < give_up:
                time.sleep(1)
                asked = sessions.read_state(store, config.cluster.name)
        finally:
            super().on_kill()


class Reporter:
    """The thread that triggers the DAG `report_dag` for what the session's state reports."""

    def __init__(self, store: Store, cluster: str, report_dag: str, log: Any) -> None:
        self._store, self._cluster, self._report_dag, self._log = store, cluster, report_dag, log
        self._triggered: set[str] = set()
        self._batches: dict[int, str] = {}
        self._assets_at, self._assets_upto = time.monotonic(), 0
        self._hours_at = -_HOURS_SECONDS
        self._started_at = datetime.now(UTC)

    @contextmanager
    def running(self) -> Iterator[None]:
        over = threading.Event()
        thread = threading.Thread(target=self._loop, args=(over,), name="report", daemon=True)
        thread.start()
        try:
            yield
        finally:
            over.set()
            thread.join(_LOOK_SECONDS)
            # What the last batch left.
            self.look(last=True)

    def _loop(self, over: threading.Event) -> None:
        while not over.wait(_LOOK_SECONDS):
            self.look()

    def look(self, *, last: bool = False) -> None:
        """Trigger a run for everything that is new. A failure is logged and tried again."""
        try:
            if state := sessions.read_state(self._store, self._cluster):
                self._report_failures(state)
                self._report_changes(state, last)
            self._report_hours(last)
        except Exception:  # noqa: BLE001 - the session goes on without reports
            self._log.exception("failed to report what the session left for people")

    def _report_failures(self, state: SessionState) -> None:
        """What the state asks to report."""
        for batch in state.failed:
            self._trigger(self._name_of(batch, state), {"batch": batch})
        if state.waiting and state.waiting_since:
            self._trigger(f"tables_{_second(state.waiting_since)}_{_digest(str(sorted(state.waiting.items())))}", {"batch": 0})
        if state.publish_error and state.failing_since:
            self._trigger(f"publish_{_second(state.failing_since)}", {"batch": 0})

    def _name_of(self, batch: int, state: SessionState) -> str:
        """Another chain, and another life of the bucket, has other batches of the same numbers."""
        if batch not in self._batches:
            manifest = Manifest.read(self._store, layout.batch_object(self._cluster, batch, "manifest"))
            made = (manifest.created_at, manifest.id) if manifest else (state.started_at, None)
            self._batches[batch] = f"batch_{batch}_{_second(made[0])}" + (f"_{made[1].hex[:8]}" if made[1] else "")
        return self._batches[batch]

    def _report_changes(self, state: SessionState, last: bool) -> None:
        """The batches since the last asset events."""
        if not self._assets_upto:
            self._assets_upto = state.batch - state.batches
        if state.batch > self._assets_upto and (last or time.monotonic() - self._assets_at >= _ASSETS_SECONDS):
            about = {"batch": 0, "changed_since": self._assets_upto, "changed_upto": state.batch}
            if self._trigger(f"changed_{state.batch}_{_second(state.started_at)}", about):
                self._assets_at, self._assets_upto = time.monotonic(), state.batch

    def _report_hours(self, last: bool) -> None:
        """The hours that were completed since their last asset event. Another session asks again for hours whose run failed."""
        if last or time.monotonic() - self._hours_at >= _HOURS_SECONDS:
            self._hours_at = time.monotonic()
            if hours := completed_hours(self._store, self._cluster):
                self._trigger(f"hours_{key_of(hours[-1])}_{_second(self._started_at)}", {"batch": 0})

    def _trigger(self, run_id: str, conf: dict[str, Any]) -> bool:
        """Whether the run is there."""
        if run_id in self._triggered:
            return True
        # Without a logical date: that of another run would be answered by "already exists" too.
        request = TriggerDagRun(dag_id=self._report_dag, run_id=run_id, logical_date=None, conf=conf)
        try:
            answer = task_runner.SUPERVISOR_COMMS.send(request)
        except AirflowRuntimeError as error:
            answer = error.error
        exists = isinstance(answer, ErrorResponse) and answer.error == ErrorType.DAGRUN_ALREADY_EXISTS
        if isinstance(answer, ErrorResponse) and not exists:
            self._log.error("failed to trigger run %s of %s: %s %s", run_id, self._report_dag, answer.error, answer.detail)
            return False
        self._triggered.add(run_id)
        self._log.info("run %s of %s exists already" if exists else "triggered run %s of %s", run_id, self._report_dag)
        return True


def _second(moment: datetime) -> str:
    return f"{moment:%Y%m%dT%H%M%SZ}"


def _digest(text: str) -> str:
    return sha256(text.encode()).hexdigest()[:8]


class ChangedTablesOperator(PipelineOperator):
    """Create an asset event for each table that the batches in (`since`, `upto`] changed, as the task
    `archive` of cdc_ingest does for its batch. Fails unless these are sealed batches, in order."""

    template_fields: Sequence[str] = ("since", "upto")

    def __init__(self, *, since: str, upto: str, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.since, self.upto = since, upto

    def execute(self, context: Context) -> dict[str, int]:
        config, store = self.pipeline()
        since, upto = int(self.since), int(self.upto)
        last = history(store, config.cluster.name).sealed if upto else None
        if since > upto or upto > (last.number if last else 0):
            raise AirflowFailException(
                f"`changed_since` {since} and `changed_upto` {upto} are no batches in order: the last sealed batch of "
                f"{config.cluster.name} is {last.number if last else 0}. Trigger cdc_report again with the batches that are meant."
            )
        events: dict[str, int] = {}
        for number in range(since + 1, upto + 1):
            sealed = read_sealed(store, config.cluster.name, number)
            for account in sealed.accounting if sealed is not None and sealed.void is None else ():
                name = account.table.partition("@")[0]
                events[name] = events.get(name, 0) + account.events
        changed = {table: count for table, count in sorted(events.items()) if count}
        if not changed:
            raise AirflowSkipException("no table was changed")
        self.emit_table_events(context, config.pipeline, changed, upto)
        return changed


class PublishedOperator(PipelineOperator):
    """Fails while the session cannot publish; when cleared, it looks again."""

    def execute(self, context: Context) -> None:
        config, store = self.pipeline()
        try:
            state = sessions.read_state(store, config.cluster.name)
        except WritetimeError as error:
            raise AirflowException(str(error)) from error
        if state is not None and state.publish_error:
            sealed = history(store, config.cluster.name).sealed
            raise AirflowFailException(
                f"publishing fails, and is tried again: {state.publish_error}\nEvents up to batch {state.published} are published, "
                f"batch {sealed.number if sealed else 0} is sealed. Later events wait in the changes tables; ingest continues.\n"
                "Fix the cause; then clear this task."
            )
        self.log.info("publishing works, up to batch %s", state.published if state else 0)
