"""Airflow operators of writetime: thin shells around the core's batch functions, and around spark-submit.

They read the YAML of their DAG's pipeline, hand over, and turn what comes back into XComs, skips and failures with names. They start
Spark jobs by path and never import them. Which YAML, and where the page shows that pipeline, comes to each task as `config` and `page`
from its DAG's `default_args` (`writetime_settings`). Every `.py` in this folder is executed by Airflow under its bare name.
"""

from __future__ import annotations

import os
import time
from abc import abstractmethod
from collections.abc import Callable, Sequence
from datetime import UTC, datetime, timedelta
from functools import partial
from pathlib import Path
from typing import Any
from urllib.parse import quote
from uuid import UUID

from airflow.configuration import conf
from airflow.providers.apache.spark.operators.spark_submit import SparkSubmitOperator
from airflow.sdk import AssetAlias, BaseHook, BaseOperator, BaseOperatorLink, BaseSensorOperator, Context, PokeReturnValue
from airflow.sdk.exceptions import AirflowException, AirflowFailException, AirflowSkipException
from writetime_notices import TOLD_BEFORE
from writetime_page import address, link
from writetime_settings import table_asset

from writetime.cassandra.commitlog.encryption.keystore import Keystore
from writetime.config.airflow import SETTING
from writetime.config.pipeline import PipelineConfig, load
from writetime.errors import BatchBusy, WritetimeError
from writetime.monitoring.watch import watch
from writetime.pipeline.archiver import archive, mark_for_retry
from writetime.pipeline.batch_history import Batches
from writetime.pipeline.bootstrap.run import due
from writetime.pipeline.documents import Manifest
from writetime.pipeline.job_result import listening
from writetime.pipeline.planner import (
    history,
    plan_ingest,
    plan_maintain,
    plan_replay,
    read_sealed,
    store_clock,
)
from writetime.pipeline.publish_progress import publish_due, read_published, tell_of
from writetime.pipeline.quarantine.rejected_tables import failed_tables, let_in, waiting_segments, why_still
from writetime.pipeline.quarantine.retry import release
from writetime.pipeline.segment_check import check_segment
from writetime.storage import open_store
from writetime.storage.layout import SegmentRef, touched_prefix
from writetime.storage.store import Store

ROOT = Path(__file__).resolve().parent.parent
SECRETS = ("WRITETIME_CQL_PASSWORD", "WRITETIME_CQL_KEY_PASSWORD", "WRITETIME_KEYSTORE_PASSWORD", "WRITETIME_KEYSTORE_KEY_PASSWORD")
_TOLD = 20
"""Lines of a message that lists things."""
_OTHERS_TURN = timedelta(minutes=10)
"""How long cdc_ingest leaves a replay or maintenance to the DAG that has begun it: two drivers of one batch harm nothing but the CPU."""
_LOOPBACK = {"spark.driver.host": "127.0.0.1", "spark.driver.bindAddress": "127.0.0.1"}


def opened(path: str) -> tuple[PipelineConfig, Store]:
    """The pipeline that a YAML describes, and its bucket."""
    if not path:
        raise AirflowFailException(f"{SETTING} is not set: let it name the pipeline's YAML, for the DAG processor and all workers")
    try:
        config = load(path)
        _take_own_secrets(config.pipeline)
        return config, open_store(config.bucket)
    except WritetimeError as error:
        raise failure(error) from error


def _take_own_secrets(pipeline: str) -> None:
    """`<NAME>__<PIPELINE>` goes before `<NAME>`, since rings have passwords of their own. It becomes the plain name in this process, which
    is the task's alone, and in the Spark driver that it starts."""
    for name in SECRETS:
        own = os.environ.get(f"{name}__{pipeline.upper()}")
        if own is not None:
            os.environ[name] = own


def failure(error: WritetimeError) -> AirflowException:
    """The error as Airflow should take it: retried where a retry can help, else failed at once."""
    return AirflowException(str(error)) if error.retriable else AirflowFailException(str(error))


class PipelineOperator(BaseOperator):
    """What works on one pipeline: the one whose YAML is `config`. `page`: where the page shows it."""

    def __init__(self, *, config: str = "", page: str = "", **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.config = config
        self.page = page

    def pipeline(self) -> tuple[PipelineConfig, Store]:
        """The pipeline as its YAML says now."""
        return opened(self.config)

    def planned(self, plan: Callable[..., Manifest | None], nothing: str) -> Manifest:
        """What `plan` gives for the pipeline as of now; skips what follows, with `nothing` for the reason, when there is nothing to do."""
        config, store = self.pipeline()
        try:
            cluster = config.cluster.name
            manifest = plan(store, cluster, now=store_clock(store, cluster))
        except WritetimeError as error:
            raise failure(error) from error
        if manifest is None:
            raise AirflowSkipException(nothing)
        return manifest


class PlanBatchOperator(PipelineOperator):
    """Plan the next batch over what has come in or expired; its number is the XCom. Skips what follows when there is nothing to do."""

    def execute(self, context: Context) -> int:
        config, store = self.pipeline()
        try:
            keystore = config.cluster.commitlog_keystore
            released = release(
                store, config.cluster.name, config.columns.rules, None if keystore is None else Keystore.from_environment(keystore)
            )
        except WritetimeError as error:
            raise failure(error) from error
        if released:
            self.log.info("the schema that these waited for is there: %s", ", ".join(released))
        plan = partial(plan_ingest, max_segments=config.segments_per_batch, largest=config.largest_segment)
        manifest = self.planned(plan, "nothing has come in, and nothing captured has expired")
        if manifest.kind != "ingest" and store_clock(store, config.cluster.name) - manifest.created_at < _OTHERS_TURN:
            raise AirflowSkipException(
                f"batch {manifest.number} ({manifest.kind}) is open; its own DAG began it at {manifest.created_at:%H:%M:%S}Z, and is to "
                f"seal it. If it is not sealed {_OTHERS_TURN.seconds // 60} minutes after that, it is run here"
            )
        self.log.info("batch %s (%s): %s segments", manifest.number, manifest.kind, len(manifest.segments))
        return manifest.number


class TurnOperator(PipelineOperator, BaseSensorOperator):
    """Plans a batch, whose number is the XCom, as soon as no other one is open. Meanwhile it takes no slot and spends no retry: the last
    hour of a backfill waits for all others."""

    def __init__(self, **kwargs: Any) -> None:
        super().__init__(**{"mode": "reschedule", "poke_interval": timedelta(seconds=15), "timeout": timedelta(days=1), **kwargs})

    def poke(self, context: Context) -> PokeReturnValue:
        try:
            return PokeReturnValue(is_done=True, xcom_value=self.number(context))
        except AirflowException as error:
            if not isinstance(error.__cause__, BatchBusy):
                raise
            self.log.info("waits for its turn: %s", error)
            return PokeReturnValue(is_done=False)

    @abstractmethod
    def number(self, context: Context) -> int:
        """Plan, or fail for a BatchBusy."""


class PlanReplayOperator(TurnOperator):
    """Plan a batch over the archived segments of an interval of hours. Skips when there are none. A `namespace`: for tables of its own, to
    be compared."""

    template_fields: Sequence[str] = ("start", "end", "namespace")

    def __init__(self, *, start: str, end: str, namespace: str = "", **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.start = start
        self.end = end
        self.namespace = namespace

    def number(self, context: Context) -> int:
        if getattr(context["dag_run"], "run_type", "") == "scheduled":
            raise AirflowSkipException("the schedule only gives backfills their hours; replays are started by people")
        start, end = _moment("start", self.start), _moment("end", self.end)
        plan = partial(plan_replay, start=start, end=end, namespace=self.namespace or None)
        manifest = self.planned(plan, f"no segment in the archive was sealed between {start} and {end}")
        self.log.info("batch %s (replay): %s segments", manifest.number, len(manifest.segments))
        return manifest.number


def _moment(name: str, text: str) -> datetime:
    """A time that somebody has given; UTC if it does not say."""
    try:
        moment = datetime.fromisoformat(text)
    except ValueError:
        raise AirflowFailException(f"`{name}` is no time: {text!r}. Give it as 2026-01-31T10:00Z.") from None
    return moment if moment.tzinfo else moment.replace(tzinfo=UTC)


class PlanMaintainOperator(TurnOperator):
    """Plan a batch of maintenance. Skips while there is no state."""

    def number(self, context: Context) -> int:
        manifest = self.planned(plan_maintain, "no batch has been sealed yet: there is no state to maintain")
        self.log.info("batch %s (maintain)", manifest.number)
        return manifest.number


class PlanBootstrapOperator(PipelineOperator):
    """The tables to be read from the ring: that one, or those due; skips what follows when there are none, nor rows to be read again."""

    template_fields: Sequence[str] = ("table",)

    def __init__(self, *, table: str, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.table = table

    def execute(self, context: Context) -> list[str]:
        if self.table:
            return [self.table]
        config, store = self.pipeline()
        try:
            tables = [table.full_name for table in due(store, config)]
        except WritetimeError as error:
            raise failure(error) from error
        touched = any(True for _ in store.list(touched_prefix(config.cluster.name)))
        if not tables and (not touched or config.cluster.cql is None):
            raise AirflowSkipException("no table is due, and no row is to be read again")
        self.log.info("tables due: %s; rows to be read again: %s", ", ".join(tables) or "none", "yes" if touched else "none")
        return tables


class SparkJobOperator(SparkSubmitOperator):
    """Run one of the project's Spark jobs for the pipeline whose YAML is `config`, by spark-submit, with the jars set-up has locked."""

    has_rivals = False
    """Whether another driver may be at the same work. Then whatever it has failed for may be over when it is tried again."""

    def __init__(
        self,
        *,
        job: str,
        config: str = "",
        page: str = "",
        spark_connection: str = "spark_writetime",
        spark_pool: str | None = None,
        arguments: Sequence[str] = (),
        **kwargs: Any,
    ) -> None:
        if spark_pool:
            kwargs["pool"] = spark_pool
        jars = sorted(str(jar) for jar in (ROOT / "jars" / "spark").glob("*.jar"))
        super().__init__(
            application=str(ROOT / "spark_jobs" / f"{job}.py"),
            application_args=["--config", config, *arguments],
            name=f"writetime {job}",
            conn_id=spark_connection,
            jars=",".join(jars) or None,
            verbose=False,
            **kwargs,
        )
        self.config = config
        self.page = page
        self.report = ""

    def execute(self, context: Context) -> None:
        config, _ = opened(self.config)
        self.name = f"{self.name} {config.pipeline}"
        self.conf = (_LOOPBACK if _is_local(self._conn_id) else {}) | config.spark.submit | (self.conf or {})
        # The driver inherits it from this process, which is the task's own. What the operator calls env_vars would go to the cluster alone
        # where that is Kubernetes, although the driver is here.
        os.environ["PYTHONPATH"] = os.pathsep.join([str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])])
        self.submit(context)

    def submit(self, context: Context) -> None:
        """Run the job. One that fails says itself why, and whether a retry helps: spark-submit knows but its exit code."""
        with listening() as heard:
            try:
                super().execute(context)
            except AirflowException as error:
                words = heard.read()
                if not words.text:
                    raise
                retry = words.retriable or self.has_rivals
                raise (AirflowException if retry else AirflowFailException)(words.text) from error
            finally:
                self.report = heard.read().report


def _is_local(connection: str) -> bool:
    """Whether driver and executors share this machine, so that nothing has to listen on other addresses. On a cluster the executors call
    the driver back, by the name of its machine unless `spark.submit` says another."""
    return (BaseHook.get_connection(connection).host or "").startswith("local")


class BatchLink(BaseOperatorLink):
    """From a task to what the page knows of its batch: where every partition update went."""

    name = "Batch"

    def get_link(self, operator: Any, *, ti_key: Any) -> str:
        """For the batch of a task that has run. Replays into a namespace count their own."""
        beside = f"beside/{operator.namespace}/" if operator.namespace else ""
        return address(f"{operator.page}{beside}batches/{int(operator.batch)}")


class BatchJobOperator(SparkJobOperator):
    """Run a planned batch to its seal, or find that it is sealed. A `namespace`: of a replay that was planned for it."""

    template_fields: Sequence[str] = (*SparkJobOperator.template_fields, "batch", "namespace")
    operator_extra_links = (BatchLink(),)
    has_rivals = True

    def __init__(self, *, batch: str, namespace: str = "", **kwargs: Any) -> None:
        beside = [f"--namespace={namespace}"] if namespace else []
        super().__init__(arguments=["--batch", batch, *beside], **kwargs)
        self.batch = batch
        self.namespace = namespace


class BatchOperator(PipelineOperator):
    """What works on one batch of the pipeline's, or of a replay into a `namespace`."""

    template_fields: Sequence[str] = ("batch", "namespace")
    operator_extra_links = (BatchLink(),)

    def __init__(self, *, batch: str, namespace: str = "", **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.batch = batch
        self.namespace = namespace


class OutcomeOperator(BatchOperator):
    """Red when a replay left something out: a table that cannot be shown, a range of a segment that cannot be used. All else is in."""

    def execute(self, context: Context) -> None:
        config, store = self.pipeline()
        ring = (config.beside(self.namespace) if self.namespace else config).cluster.name
        sealed = read_sealed(store, ring, int(self.batch))
        if sealed is None:
            raise AirflowFailException(f"batch {self.batch} of {ring} is not sealed: clear `ingest`")
        if sealed.void is not None:
            raise AirflowFailException(f"batch {self.batch} of {ring} was voided by {sealed.void.by}: {sealed.void.reason}")
        touched = {account.table for account in sealed.accounting if account.quarantined}
        lines = [f"{table.table}: its rows cannot be shown: {table.reason}" for table in sealed.refused if table.table in touched]
        lines += [f"{each.object} at {problem.position}: {problem.message}" for each in sealed.segments for problem in each.problems]
        if lines:
            more = f"\n… and {len(lines) - _TOLD} more: see the batch on the page" if len(lines) > _TOLD else ""
            raise AirflowFailException(
                f"batch {self.batch} left out what it could not use; all else is in:\n" + "\n".join(lines[:_TOLD]) + more + "\n"
                "Mend what is said there (ship a schema snapshot, mend `columns` in the pipeline's YAML), then replay these hours again."
            )
        self.log.info("batch %s left nothing out", self.batch)


class ArchiveBatchOperator(BatchOperator):
    """Move a sealed batch's segments to the archive and write the ledger. XCom: what became of each object. An asset alias among its
    outlets gets an asset for each table that has changed: a hint, for DAGs that start on it; the seal is what counts."""

    def execute(self, context: Context) -> dict[str, str]:
        if self.namespace:
            raise AirflowSkipException("a replay into a namespace of its own moves nothing")
        config, store = self.pipeline()
        try:
            moved: dict[str, str] = dict(archive(store, config.cluster.name, int(self.batch)))
            sealed = read_sealed(store, config.cluster.name, int(self.batch))
        except WritetimeError as error:
            raise failure(error) from error
        changed = {account.table.partition("@")[0]: account.events for account in sealed.accounting if account.events} if sealed else {}
        for alias in (outlet for outlet in self.outlets if isinstance(outlet, AssetAlias)):
            for table, events in changed.items():
                context["outlet_events"][alias].add(table_asset(config.pipeline, table), extra={"batch": int(self.batch), "events": events})
        return moved


class FailedSegmentsOperator(PipelineOperator):
    """The batch's segments that need a person, as arguments for one task each. Not those that only wait for a table: it has its own. A
    thousand of one cause are one thing to be told of: the first speaks for all."""

    template_fields: Sequence[str] = ("batch",)

    def __init__(self, *, batch: str, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.batch = batch

    def execute(self, context: Context) -> list[dict[str, Any]]:
        config, store = self.pipeline()
        sealed = read_sealed(store, config.cluster.name, int(self.batch))
        found = [o.object for o in sealed.segments if not o.ok and not sealed.waits_for_tables(o)] if sealed else []
        shown = found
        if len(found) > (most := conf.getint("core", "max_map_length")):
            last = history(store, config.cluster.name).sealed
            held = set(last.held if last else ())
            shown = [name for name in found if name in held][:most]
            self.log.warning("%s segments wait, and %s at a time get squares: clear this task once these are good", len(found), most)
        return [{"segment": name, "place": place, "of": len(found)} for place, name in enumerate(shown, 1)]


class SegmentLink(BaseOperatorLink):
    """From a red square to what the page knows of its segment: object, ledger entry, quarantine."""

    name = "Segment"

    def get_link(self, operator: Any, *, ti_key: Any) -> str:
        """For the segment of a task that has run."""
        return address(f"{operator.page}segment", name=operator.segment)


class SegmentOperator(PipelineOperator):
    """One segment that could not be used whole: red until its object is good. Cleared, it is checked again and let into the next batch.
    It is number `place` `of` those of its batch."""

    template_fields: Sequence[str] = ("segment",)
    operator_extra_links = (SegmentLink(),)

    def __init__(self, *, segment: str, place: int = 1, of: int = 1, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.segment = segment
        self.place = place
        self.of = of

    def execute(self, context: Context) -> str:
        # The label of the square in the grid: node and file, not a number.
        context["segment"] = "/".join(self.segment.split("/")[2:])  # type: ignore[typeddict-unknown-key]
        context[TOLD_BEFORE] = self.place > 1  # type: ignore[typeddict-unknown-key]
        config, store = self.pipeline()
        try:
            keystore = config.cluster.commitlog_keystore
            keys = None if keystore is None else Keystore.from_environment(keystore)
            problems = check_segment(store, config.cluster.name, self.segment, keys)
        except WritetimeError as error:
            raise failure(error) from error
        if problems:
            lines = "\n".join(f"  at {problem.position}: {problem.message}" for problem in problems)
            others = f"{self.of - 1} more segments of this batch wait, too. " if self.of > 1 else ""
            raise AirflowFailException(
                f"{self.segment} cannot be used whole:\n{lines}\nThe bytes are in quarantine and everything else has gone on. {others}"
                f"Mend what is said there or put a good copy at that name in {config.bucket}, then clear this task: the segment comes in "
                f"with the next batch.\nLedger: {SegmentRef.from_object(self.segment).ledger}\n"
                f"On the page: {link(f'{self.page}segment', name=self.segment)}"
            )
        mark_for_retry(store, self.segment)
        self.log.info("%s is good now; the next batch takes it in", self.segment)
        return self.segment


class FailedTablesOperator(PipelineOperator):
    """The tables whose rows the batch could not show, as arguments for one task each."""

    template_fields: Sequence[str] = ("batch",)

    def __init__(self, *, batch: str, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.batch = batch

    def execute(self, context: Context) -> list[dict[str, str]]:
        config, store = self.pipeline()
        try:
            found = failed_tables(store, config.cluster.name, int(self.batch))
        except WritetimeError as error:
            raise failure(error) from error
        return [{"table": refused.table, "table_id": str(refused.table_id), "reason": refused.reason} for refused in found]


class TableLink(BaseOperatorLink):
    """From a red square to what the page knows of its table, and of what stands in its way."""

    name = "Table"

    def get_link(self, operator: Any, *, ti_key: Any) -> str:
        """For the table of a task that has run."""
        return f"{address(f'{operator.page}tables')}#{quote(operator.table)}"


class TableOperator(PipelineOperator):
    """One table whose rows could not be shown: red until that is mended. Cleared, it is looked at again, and what waits for it comes in
    with the next batch. What stands in its way in the warehouse only a batch sees: that one will tell of it again."""

    template_fields: Sequence[str] = ("table", "table_id", "reason")
    operator_extra_links = (TableLink(),)

    def __init__(self, *, table: str, table_id: str, reason: str, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.table, self.table_id, self.reason = table, table_id, reason

    def execute(self, context: Context) -> list[str]:
        context["table"] = self.table  # type: ignore[typeddict-unknown-key]
        config, store = self.pipeline()
        cluster, table_id = config.cluster.name, UUID(self.table_id)
        try:
            first = context["ti"].try_number <= 1
            reason = self.reason if first else why_still(store, cluster, table_id, config.columns.rules)
            if reason is not None:
                waiting = len(waiting_segments(store, cluster, table_id))
                raise AirflowFailException(
                    f"{self.table}: its rows cannot be shown: {reason}\n{waiting} segments wait with what they hold of it; all else has "
                    "gone on.\nAs is said there: ship a schema snapshot that tells of its types, mend `columns` in the pipeline's YAML, or "
                    "free its name in the warehouse. Then clear this task: the segments come in with the next batch."
                )
            released = let_in(store, cluster, table_id)
        except WritetimeError as error:
            raise failure(error) from error
        self.log.info("nothing is known to be wrong with %s; the next batch takes in: %s", self.table, ", ".join(released) or "nothing")
        return released


class PublishDueOperator(PipelineOperator):
    """Skips what follows when everything sealed is known to be in Kafka, unless Kafka is to be asked about all of it (`since`)."""

    template_fields: Sequence[str] = ("since",)

    def __init__(self, *, since: str, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.since = since

    def execute(self, context: Context) -> None:
        config, store = self.pipeline()
        if config.kafka is None and config.files is None:
            raise AirflowSkipException("the pipeline has no `kafka`, and `files: null`: nothing is published")
        heartbeat, now = config.kafka.heartbeat_interval_ms if config.kafka else 0, int(time.time() * 1000)
        if self.since == "last" and not publish_due(store, config.cluster.name, heartbeat_ms=heartbeat, now=now):
            raise AirflowSkipException("every sealed batch has been published")


class WaitingTablesOperator(PipelineOperator):
    """The tables whose events could not be published, as arguments for one task each. Those of which people were told already nobody is
    told of again. That is noted in the bucket: runs that an asset has started have no date, by which XComs of others could be found."""

    def execute(self, context: Context) -> list[dict[str, Any]]:
        config, store = self.pipeline()
        cluster = config.cluster.name
        try:
            published = read_published(store, cluster)
            waiting = published.waiting if published else {}
            told = tell_of(store, cluster, waiting)
        except WritetimeError as error:
            raise failure(error) from error
        return [{"table": name, "told_before": name in told} for name in sorted(waiting)]


class WaitingTableOperator(PipelineOperator):
    """One table whose events could not be published: red until a run of `cdc_publish` has sent them, as each tries again."""

    template_fields: Sequence[str] = ("table",)
    operator_extra_links = (TableLink(),)

    def __init__(self, *, table: str, told_before: bool = False, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.table = table
        self.told_before = told_before

    def execute(self, context: Context) -> None:
        context["table"] = self.table  # type: ignore[typeddict-unknown-key]
        context[TOLD_BEFORE] = self.told_before  # type: ignore[typeddict-unknown-key]
        config, store = self.pipeline()
        published = read_published(store, config.cluster.name)
        if published is not None and self.table in published.waiting:
            raise AirflowFailException(
                f"{self.table}: events since batch {published.waiting[self.table]} cannot be published: "
                f"{published.reasons.get(self.table, 'the log of `publish` tells why')}\nThey wait in the changes table, in their order; "
                "all other tables have gone on.\nMend what is said there. The next run of cdc_publish sends them; then clear this task."
            )
        self.log.info("all events of %s up to batch %s are published", self.table, published.batch if published else 0)


class CheckLink(BaseOperatorLink):
    """From a check to its report on the page, or to the list of them if it wrote none."""

    name = "Report"

    def get_link(self, operator: Any, *, ti_key: Any) -> str:
        """For the report of a task that has run."""
        report = operator.report
        return address(f"{operator.page}checks/report", name=report) if report else address(f"{operator.page}checks")


class CheckJobOperator(SparkJobOperator):
    """Run a job that only looks, red when it finds something wrong. Arguments that render empty are left out; with `asks_ring` it skips
    where the pipeline does not say how the ring is asked."""

    operator_extra_links = (CheckLink(),)

    def __init__(self, *, asks_ring: bool = False, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.asks_ring = asks_ring

    def execute(self, context: Context) -> None:
        config, _ = opened(self.config)
        if self.asks_ring and config.cluster.cql is None:
            raise AirflowSkipException("the pipeline has no `cluster.cql`: the ring is not asked")
        self.application_args = [argument for argument in self.application_args or [] if argument]
        super().execute(context)


class WatchOperator(PipelineOperator):
    """Red while something of the pipeline is beyond `airflow.watch`. People are told when there is something new to tell, and not at every
    run again; the XCom `troubles` is what the next run compares with."""

    def execute(self, context: Context) -> None:
        config, store = self.pipeline()
        publishes = config.kafka is not None or config.files is not None
        try:
            found = watch(Batches(store, config.cluster.name), config.airflow.watch, publishes=publishes)
        except WritetimeError as error:
            raise failure(error) from error
        task = context["ti"]
        before = task.xcom_pull(task_ids=self.task_id, key="troubles", include_prior_dates=True) or []
        task.xcom_push(key="troubles", value=[trouble.key for trouble in found])
        if not found:
            self.log.info("nothing is late, stuck, or waits for long")
            return
        context[TOLD_BEFORE] = {trouble.key for trouble in found} <= set(before)  # type: ignore[typeddict-unknown-key]
        raise AirflowFailException("\n".join(trouble.text for trouble in found))
