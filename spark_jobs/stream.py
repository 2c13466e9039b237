"""The streaming job: one Spark application that runs batch after batch for an hour. `spark-submit stream.py
--config FILE [--minutes 60]`

    archive the last batch ─► plan ─► ingest ─┬─► compact now and then ─► archive ─► plan …
                                              └─► publish, in a second thread

Strategy: starting Spark takes longer than a small batch, so the application stays and calls the jobs' `run`.
It adds nothing to a batch: manifest, seal, ledger and progress are those of a run by `cdc_ingest` and
`cdc_publish`, and a session that is killed leaves what a killed job leaves. A lease keeps a second session
out; two sessions that both believe to hold it are two drivers of one batch, which is safe.

The session ends between two batches: after its time, on request, and if the configuration or the version of
writetime changes, so that a new process reads them. It fails if a batch fails several times or makes no
progress for ten minutes. The next one is started by Airflow (DAG `cdc_stream`). Exit code: 0 ended as
intended, 1 failed.

Must not know what a batch consists of."""

from __future__ import annotations

import argparse
import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from hashlib import sha256
from pathlib import Path
from typing import Any, Final
from uuid import uuid4

import structlog
import tenacity
from pyspark.sql import SparkSession

import writetime
from spark_jobs import ingest, publish
from spark_jobs.completeness import CompletenessWriter
from spark_jobs.job_exit import reports_failure
from spark_jobs.session import second_session, spark_session
from spark_jobs.sinks.bigquery import ExternalTablesWriter
from spark_jobs.sinks.compaction import Compaction
from writetime.cassandra.commitlog.encryption.keystore import Keystore
from writetime.config.pipeline import PipelineConfig, load
from writetime.errors import BatchBusy, BatchError, LeaseLost, WritetimeError
from writetime.pipeline import parents, sessions
from writetime.pipeline.archiver import archive, archive_last
from writetime.pipeline.documents import Manifest, Sealed
from writetime.pipeline.job_result import cause, leave_error
from writetime.pipeline.planner import OWNERS_TURN, history, plan_ingest, read_sealed
from writetime.pipeline.publish_progress import publish_due, read_published
from writetime.pipeline.quarantine.rejected_tables import release_made_again
from writetime.pipeline.quarantine.retry import release
from writetime.pipeline.rule_check import rule_check
from writetime.pipeline.sessions import SessionState, StoreClock
from writetime.signals import stop_on
from writetime.storage import layout, open_store
from writetime.storage.lease import Lease
from writetime.storage.store import Store

log = structlog.get_logger()

_ATTEMPTS: Final = 4
"""How often a batch is tried before the session fails: a new process may help, and the failure is seen."""
_LONGEST_PAUSE: Final = 30.0
_LEASE_WAIT: Final = 60.0
"""Seconds to wait for the lease of a session that was killed."""
_RELEASE_EVERY: Final = 60.0
_STATE_EVERY: Final = 30.0
_LOOK_EVERY: Final = 10.0
"""Seconds between two looks at requests, the configuration, and the lease, while there is nothing to do."""
_WAITING_EVERY: Final = 60.0
"""Seconds after which events that could not be published are tried again without a new batch."""
_PUBLISH: Final = "publish"
"""Group of the Spark jobs of publishing."""


@reports_failure("the session")
def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description="Run batch after batch in one Spark application.")
    parser.add_argument("--config", required=True, help="the pipeline's YAML")
    parser.add_argument("--minutes", type=float, default=None, help="how long the session runs (default: airflow.session_minutes)")
    options = parser.parse_args(arguments)
    source = Source(Path(options.config))
    config = load(options.config)
    stop = stop_on(signal.SIGTERM)
    minutes = config.airflow.session_minutes if options.minutes is None else options.minutes
    ended = run(config, source=source, seconds=minutes * 60, stop=stop)
    print(f"session ended: {ended}")  # noqa: T201
    return 0


def run(config: PipelineConfig, *, source: Source, seconds: float, stop: threading.Event, session: SparkSession | None = None) -> str:
    """Run batches until the session ends; returns why it ended. A given Spark `session` stays open.

    Raises LeaseLost (retriable) if another session runs or takes over, and what a batch raises that fails
    repeatedly."""
    store = open_store(config.bucket)
    with (
        Lease(store, layout.session(config.cluster.name, "lease"), wait=_LEASE_WAIT) as lease,
        parents.before_end(lambda _: lease.release()),
    ):
        spark = session or spark_session(config, f"writetime stream {config.pipeline}")
        try:
            return Session(config, store, spark, lease, source=source, seconds=seconds, stop=stop).run()
        finally:
            if session is None:
                spark.stop()


class Source:
    """The YAML and the installed version that a session started from."""

    def __init__(self, config: Path) -> None:
        self._files = {"configuration": config, "version of writetime": Path(writetime.__file__)}
        self._digests = self._read()

    def changed(self) -> str:
        """What has changed since, for people; empty if nothing has."""
        now = self._read()
        changed = [name for name, digest in now.items() if digest != self._digests[name]]
        return f"the {' and the '.join(changed)} changed" if changed else ""

    def _read(self) -> dict[str, bytes]:
        return {name: sha256(file.read_bytes()).digest() if file.exists() else b"" for name, file in self._files.items()}


class Session:
    """One session, which holds the lease."""

    def __init__(
        self,
        config: PipelineConfig,
        store: Store,
        spark: SparkSession,
        lease: Lease,
        *,
        source: Source,
        seconds: float,
        stop: threading.Event,
    ) -> None:
        self._config, self._store, self._spark, self._lease, self._source, self._stop = config, store, spark, lease, source, stop
        self._cluster = config.cluster.name
        self._clock = StoreClock(store, self._cluster)
        self._until = time.monotonic() + seconds
        self._next_look = self._next_release = self._next_note = 0.0
        self._noting = threading.Lock()
        now = datetime.now(UTC)
        self._state_generation = 0
        self._state = SessionState(id=uuid4().hex, started_at=now, updated_at=now, until=now + timedelta(seconds=seconds))
        self._publishing = Publishing(config, store, spark, self._note) if config.kafka or config.files else None
        self._completeness = CompletenessWriter(config, store, spark)
        self._compaction = Compaction(config, store, spark)
        self._external = ExternalTablesWriter(config, store, spark)
        self._looks, self._waiting = 0, ""
        self._watchdog = Watchdog(spark, self._current_work, config.airflow.no_progress_minutes * 60)

    def run(self) -> str:
        """Run batches until the session ends; returns why it ended."""
        log.info("session started", session=self._state.id, until=f"{self._state.until:%H:%M:%S}Z")
        last = history(self._store, self._cluster).sealed
        # The session before may have been killed between the seal and its report.
        self._note(failed=[last.number] if last is not None and needs_people(last) else [], **self._lasting_problems(last))
        try:
            with parents.before_end(self._killed), self._watchdog.watching():
                with self._published():
                    ended = self._run()
                    self._note(step="publish what is sealed")
                self._completeness.finish(self._state.batch)
        except LeaseLost:
            # The state is another session's now.
            raise
        except BaseException as error:
            self._note(step="", ended=f"failed: {error}")
            raise
        self._note(step="", ended=ended)
        log.info("session ended", session=self._state.id, reason=ended, batches=self._state.batches)
        return ended

    def _killed(self, reason: str) -> None:
        """Airflow calls nobody for a task whose process was killed: the state says it, for the next session and for people."""
        self._note(step="", ended=sessions.KILLED + reason)

    def _run(self) -> str:
        while not (ended := self._ended()):
            is_idle = not self._batch()
            self._completeness.write_if_due(self._state.batch)
            if is_idle:
                self._rest()
        return ended

    def _current_work(self) -> str:
        """What the session is doing; differs after each look at the bucket."""
        return f"{self._state.step or 'plan'} ({self._looks})"

    @contextmanager
    def _published(self) -> Iterator[None]:
        """Publish in a second thread; at the end, everything that is sealed by then."""
        if self._publishing is None:
            yield
            return
        with self._publishing.running():
            yield

    def _ended(self) -> str:
        """Why the session ends now; empty if it goes on."""
        if self._stop.is_set():
            return "the process was asked to stop"
        if time.monotonic() >= self._until:
            return "its time is over"
        if time.monotonic() < self._next_look:
            return ""
        self._next_look = time.monotonic() + _LOOK_EVERY
        self._lease.check()
        if (request := sessions.stop_requested(self._store, self._cluster, self._state.id)) is not None:
            return f"stop requested by {request.by}"
        return self._source.changed()

    def _rest(self) -> None:
        """Wait for the next look at the bucket."""
        if time.monotonic() >= self._next_note:
            self._note()
        self._stop.wait(self._config.airflow.session_poll_seconds)

    def _batch(self) -> bool:
        """Run the next batch; whether there was one. Retriable errors are retried, for as long as a batch of
        `cdc_ingest` would be."""
        return bool(self._retrying()(self._next))

    def _retrying(self) -> tenacity.Retrying:
        def before_sleep(state: tenacity.RetryCallState) -> None:
            log.warning("batch failed, retrying", attempt=state.attempt_number, error=str(state.outcome and state.outcome.exception()))

        return tenacity.Retrying(
            retry=tenacity.retry_if_exception(lambda error: isinstance(error, WritetimeError) and error.retriable),
            stop=tenacity.stop_any(tenacity.stop_after_attempt(_ATTEMPTS), tenacity.stop_when_event_set(self._stop)),
            wait=tenacity.wait_random_exponential(multiplier=1, max=_LONGEST_PAUSE),
            sleep=tenacity.sleep_using_event(self._stop),
            before_sleep=before_sleep,
            reraise=True,
        )

    def _next(self) -> bool:
        """Plan the next batch and run it to its archive; whether there was one."""
        begun = time.monotonic()
        self._looks += 1
        manifest = self._plan()
        if manifest is None:
            return False
        self._waiting, planned = "", time.monotonic()
        self._note(step=f"batch {manifest.number}: ingest ({manifest.kind}, {len(manifest.segments)} segments)")
        sealed = self._ingest(manifest)
        if sealed is not None:
            if self._publishing is not None:
                self._publishing.wake()
            ingested = time.monotonic()
            self._compact(sealed)
            compacted = time.monotonic()
            self._note(step=f"batch {manifest.number}: archive")
            archive(self._store, self._cluster, sealed.number)
            steps = {"plan": planned - begun, "ingest": ingested - planned, "compact": compacted - ingested}
            self._sealed(sealed, **steps, archive=time.monotonic() - compacted)
            self._external.write(sealed)
        self._note(step="")
        # Requests are read between any two batches.
        self._next_look = 0.0
        return True

    def _ingest(self, manifest: Manifest) -> Sealed | None:
        """The seal; None if the batch was voided."""
        try:
            return ingest.run(self._config, manifest.number, session=self._spark)
        except BatchError as error:
            sealed = read_sealed(self._store, self._cluster, manifest.number)
            if sealed is None or sealed.void is None:
                raise
            log.warning("batch was voided", batch=manifest.number, **error.as_dict())
            return None

    def _compact(self, sealed: Sealed) -> None:
        """Before the batch is archived: until then, nobody plans the next one."""
        if due := self._compaction.due(sealed):
            self._note(step=f"batch {sealed.number}: compact")
            self._compaction.run(sealed, due)

    def _sealed(self, sealed: Sealed, **seconds: float) -> None:
        """Log the batch and note it; `seconds` by step."""
        failed = self._state.failed
        if needs_people(sealed):
            failed = [*failed, sealed.number][-sessions.LISTED :]
        events = sum(account.events for account in sealed.accounting)
        total = sum(seconds.values())
        steps = {f"{step}_seconds": round(each, 2) for step, each in seconds.items()}
        about = {"batch": sealed.number, "kind": sealed.kind, "segments": len(sealed.segments), "events": events}
        log.info("batch finished", **about, seconds=round(total, 1), **steps)
        self._note(batches=self._state.batches + 1, batch=sealed.number, batch_seconds=total, failed=failed)

    # --- planning

    def _plan(self) -> Manifest | None:
        """The manifest to run next; None if there is nothing to do, or if it is the turn of another DAG."""
        try:
            self._release()
            manifest = self._planned()
        except BatchBusy as error:
            self._log_waiting(str(error))
            return None
        if manifest is None or manifest.kind == "ingest" or self._clock.now() - manifest.created_at >= OWNERS_TURN:
            return manifest
        # Its own DAG runs it.
        return None

    def _planned(self) -> Manifest | None:
        now = self._clock.now()
        past = history(self._store, self._cluster)
        if not past.open and (turn := sessions.turn_requested(self._store, self._cluster, now)) is not None:
            self._log_waiting(f"the next batch is left to {turn.by}")
            return None
        try:
            return self._plan_ingest(now)
        except BatchBusy:
            # The last batch may be sealed and not archived: its driver was interrupted.
            archive_last(self._store, self._cluster)
            return self._plan_ingest(now)

    def _log_waiting(self, reason: str) -> None:
        """Once for each reason: it is found again with each look, for as long as a rebuild takes."""
        if reason != self._waiting:
            log.info("no batch is planned", reason=reason)
        self._waiting = reason

    def _plan_ingest(self, now: datetime) -> Manifest | None:
        config = self._config
        return plan_ingest(
            self._store,
            self._cluster,
            now=now,
            max_segments=config.segments_per_batch,
            batch_seconds=config.batch_seconds,
            datacenters=config.cluster.datacenters,
            check=rule_check(self._store, config),
        )

    def _release(self) -> None:
        """Release held segments that waited for a schema that is known by now. Batches do not depend on
        it."""
        if time.monotonic() < self._next_release:
            return
        self._next_release = time.monotonic() + _RELEASE_EVERY
        keystore = self._config.cluster.commitlog_keystore
        try:
            keys = None if keystore is None else Keystore.from_environment(keystore)
            released = release(self._store, self._cluster, self._config.columns.rules, keys)
            released += release_made_again(self._store, self._cluster)
        except BatchBusy:
            raise
        except WritetimeError as error:
            log.error("failed to release held segments", **error.as_dict())
            return
        if released:
            log.info("released from quarantine", segments=released)

    # --- state

    def _lasting_problems(self, last: Sealed | None) -> dict[str, Any]:
        """What the session before could not publish, unless it was published since: then it has begun with that session."""
        if self._publishing is None:
            return {}
        published = read_published(self._store, self._cluster)
        self._state = self._state.with_problems_of(sessions.read_state(self._store, self._cluster))
        over = last is None or (published is not None and published.batch == last.number)
        return {"waiting": published.waiting if published else {}, **({"publish_error": ""} if over else {})}

    def _note(self, **changes: Any) -> None:
        """Update the session's state in the bucket, for people and alerts. A failure is only logged."""
        with self._noting:
            self._state = self._state.noted(datetime.now(UTC), **changes)
            self._next_note = time.monotonic() + _STATE_EVERY
            try:
                self._state_generation = sessions.write_state(self._store, self._cluster, self._state, self._state_generation)
            except WritetimeError as error:
                log.warning("failed to write the session's state", **error.as_dict())


def needs_people(sealed: Sealed) -> bool:
    """Whether the batch has segments or tables that need an operator."""
    return bool(sealed.refused) or any(not outcome.ok for outcome in sealed.segments)


class Publishing:
    """The thread that publishes sealed batches while the next one is ingested. An error is reported and tried
    again: the events wait in the changes tables, and ingest continues."""

    def __init__(self, config: PipelineConfig, store: Store, spark: SparkSession, note: Callable[..., None]) -> None:
        self._config, self._store, self._note = config, store, note
        self._spark = second_session(spark)
        self._woken, self._over = threading.Event(), threading.Event()
        self._runs = 0
        self._watchdog = Watchdog(spark, self._current_work, config.airflow.no_progress_minutes * 60, publishing=True)
        self._failures, self._not_before, self._last = 0, 0.0, 0.0

    def wake(self) -> None:
        """A batch was sealed."""
        self._woken.set()

    @contextmanager
    def running(self) -> Iterator[None]:
        """Publish meanwhile, and after it what is sealed then."""
        thread = threading.Thread(target=self._loop, name="publish", daemon=True)
        thread.start()
        with self._watchdog.watching():
            try:
                yield
            finally:
                self._over.set()
                self._woken.set()
                thread.join()

    def _current_work(self) -> str:
        return f"publish ({self._runs})"

    def _loop(self) -> None:
        self._spark.sparkContext.setJobGroup(_PUBLISH, "publish sealed batches")
        while True:
            self._runs += 1
            # Others seal batches too.
            self._woken.wait(_LOOK_EVERY)
            self._woken.clear()
            over = self._over.is_set()
            try:
                if over or time.monotonic() >= self._not_before:
                    self._publish_if_due()
            except Exception as error:  # noqa: BLE001 - whatever it is, events wait and ingest continues
                self._failed(error)
            if over:
                return

    def _publish_if_due(self) -> None:
        if not self._is_due():
            return
        published = publish.run(self._config, session=self._spark)
        self._last, self._failures = time.monotonic(), 0
        self._note(published=published.batch, waiting=published.waiting, publish_error="")
        log.info("published", batch=published.batch, events=published.events)

    def _is_due(self) -> bool:
        if self._failures:
            return True
        store, cluster = self._store, self._config.cluster.name
        if time.monotonic() - self._last >= _WAITING_EVERY:
            heartbeat = self._config.kafka.heartbeat_interval_ms if self._config.kafka else 0
            return publish_due(store, cluster, heartbeat_ms=heartbeat, now=int(time.time() * 1000))
        sealed, published = history(store, cluster).sealed, read_published(store, cluster)
        return sealed is not None and (published is None or published.batch != sealed.number)

    def _failed(self, error: Exception) -> None:
        self._failures += 1
        self._not_before = time.monotonic() + min(_LONGEST_PAUSE, 2.0**self._failures)
        text = cause(error)
        log.error("publishing failed, retrying", error=text, attempt=self._failures)
        self._note(publish_error=text)


class Watchdog:
    """Ends the process if its `work` makes no progress for `seconds`: a task that hangs would otherwise stop
    the pipeline until somebody looks. Progress is other work, or a count that Spark has changed: of the jobs
    of `publishing`, or of all others."""

    def __init__(self, spark: SparkSession, work: Callable[[], str], seconds: float, *, publishing: bool = False) -> None:
        self._context = spark.sparkContext
        self._work, self._seconds, self._publishing = work, seconds, publishing

    @contextmanager
    def watching(self) -> Iterator[None]:
        over = threading.Event()
        threading.Thread(target=self._watch, args=(over,), name="watchdog", daemon=True).start()
        try:
            yield
        finally:
            over.set()

    def _watch(self, over: threading.Event) -> None:
        seen, since = self._progress(), time.monotonic()
        while not over.wait(min(_LOOK_EVERY, self._seconds / 4)):
            now = self._progress()
            if now != seen:
                seen, since = now, time.monotonic()
            elif time.monotonic() - since >= self._seconds:
                self._expire(now[0])

    def _progress(self) -> tuple[str, list[tuple[Any, ...]]]:
        """The current work, and of each running stage the counts that grow while its tasks run."""
        stages = self._context._jsc.sc().statusStore().activeStages()
        if not stages.size():
            return self._work(), []
        # As many calls of the JVM as jobs are remembered.
        published = self._stages_of_publishing()
        running = [stage for stage in map(stages.apply, range(stages.size())) if (stage.stageId() in published) == self._publishing]
        counts = [
            (stage.stageId(), stage.numCompleteTasks(), stage.inputRecords(), stage.shuffleReadRecords(), stage.shuffleWriteRecords())
            for stage in running
        ]
        return self._work(), counts

    def _stages_of_publishing(self) -> set[int]:
        tracker = self._context.statusTracker()
        found = (tracker.getJobInfo(job) for job in tracker.getJobIdsForGroup(_PUBLISH))
        return {stage for info in found if info is not None for stage in info.stageIds}

    def _expire(self, work: str) -> None:
        error = BatchError(
            f"no progress for {self._seconds / 60:.0f} minutes",
            operation="run a session",
            obj=work,
            retriable=True,
            hint="The next session runs the same batch again. If it hangs again, look at the driver's log and at the store, the "
            "catalog and the broker; a batch that needs longer for one task: airflow.no_progress_minutes.",
        )
        log.error("no progress, the session ends", **error.as_dict())
        leave_error("the session failed", error)
        # A hanging thread would keep the process alive.
        os._exit(1)


if __name__ == "__main__":
    sys.exit(main())
