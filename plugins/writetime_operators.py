"""Airflow operators of writetime: thin wrappers around the core's batch functions and spark-submit.

Strategy: an operator reads the YAML of its pipeline, calls the core and turns the result into an XCom, a skip
or a failure. Spark jobs are started by path and never imported. Each task gets the path of the YAML and of
the pipeline's page as `config` and `page` from its DAG's `default_args` (`writetime_settings`). Airflow
executes every `.py` in this folder under its bare name."""

from __future__ import annotations

import os
import re
import time
from abc import abstractmethod
from collections.abc import Callable, Mapping, Sequence
from datetime import datetime, timedelta
from functools import partial
from pathlib import Path
from typing import Any
from urllib.parse import quote
from uuid import UUID

from airflow.configuration import conf
from airflow.providers.apache.spark.operators.spark_submit import SparkSubmitOperator
from airflow.sdk import (
    Asset,
    AssetAlias,
    BaseHook,
    BaseOperator,
    BaseOperatorLink,
    BaseSensorOperator,
    Connection,
    Context,
    PokeReturnValue,
)
from airflow.sdk.exceptions import AirflowException, AirflowFailException, AirflowRuntimeError, AirflowSkipException
from airflow.sdk.execution_time import task_runner
from airflow.sdk.log import mask_secret
from writetime_notices import NOTIFIED_BEFORE, WHEN_NOTIFIED
from writetime_page import address, link
from writetime_settings import table_asset

from writetime.cassandra.commitlog.encryption.keystore import Keystore
from writetime.config.base import secrets_of
from writetime.config.installation import SETTING
from writetime.config.pipeline import PipelineConfig, load
from writetime.errors import BatchBusy, WritetimeError
from writetime.monitoring.health import Expected
from writetime.monitoring.watch import watch
from writetime.pipeline import parents, sessions
from writetime.pipeline.archiver import archive, archive_last, mark_for_retry, whereabouts
from writetime.pipeline.batch_history import Batches
from writetime.pipeline.bootstrap.run import due, part_of
from writetime.pipeline.completed_hours import MOST, completed_hours, key_of, record_notified
from writetime.pipeline.documents import Manifest, Sealed
from writetime.pipeline.interval import replay_hours
from writetime.pipeline.job_result import listening
from writetime.pipeline.notified import Notified
from writetime.pipeline.planner import (
    OWNERS_TURN,
    history,
    plan_ingest,
    plan_maintain,
    plan_replay,
    read_manifest,
    read_sealed,
    store_clock,
)
from writetime.pipeline.publish_progress import publish_due, read_published
from writetime.pipeline.quarantine.rejected_tables import (
    failed_tables,
    release_made_again,
    release_table,
    remaining_reason,
    task_arguments,
    waiting_segments,
)
from writetime.pipeline.quarantine.retry import release
from writetime.pipeline.rule_check import rule_check
from writetime.pipeline.segment_check import check_segment
from writetime.storage import layout, open_store
from writetime.storage.layout import SegmentRef, incomplete_rows_prefix
from writetime.storage.store import Store

ROOT = Path(__file__).resolve().parent.parent
SECRETS = ("WRITETIME_CQL_PASSWORD", "WRITETIME_CQL_KEY_PASSWORD", "WRITETIME_KEYSTORE_PASSWORD", "WRITETIME_KEYSTORE_KEY_PASSWORD")
_LONGEST_LABEL = 250
"""Characters of `rendered_map_index` in Airflow's database."""
_MAX_LINES = 20
"""Maximum number of items that an error message lists."""
_LOCAL = re.compile(r"local(\[.*\])?")
"""Spark's masters without a cluster: `local`, `local[2]`, `local[*, 4]`."""
_LOOPBACK = {"spark.driver.host": "127.0.0.1", "spark.driver.bindAddress": "127.0.0.1"}
SMALL_BATCH = 1 << 30
"""Bytes of segments up to which a batch is over before optimised code pays for its compilation."""
QUICK_START = {
    "spark.driver.extraJavaOptions": "-XX:TieredStopAtLevel=1 -XX:ReservedCodeCacheSize=192m -XX:+UseSerialGC",
    "spark.shuffle.compress": "false",
}
"""The JVM compiles quickly instead of well, and has no threads for garbage: on two cores 38 s instead of 45 s for
a batch of 2 MB, with 37 s of CPU instead of 61 s; for one of 300 MB 36 s of CPU instead of 54 s, and as the fifth in
one session 15 s instead of 18 s. In an application that has run for minutes, the optimising compiler still takes most
of the JVM's CPU, and Python does the work. Without the size, 48 MB hold the code of this compiler; once they are full,
as with many tables they soon are, nothing more is compiled. What a batch shuffles is packed with LZ4 already: to
compress it again costs 3 % of the CPU."""


def opened(path: str) -> tuple[PipelineConfig, Store]:
    """The pipeline that a YAML describes, and its store."""
    if not path:
        raise AirflowFailException(f"{SETTING} is not set: set it to the pipeline's YAML, for the DAG processor and all workers")
    try:
        config = load(path)
        _take_own_secrets(config.pipeline)
        _mask_secrets(config)
        return config, open_store(config.bucket)
    except WritetimeError as error:
        raise failure(error) from error


def _take_own_secrets(pipeline: str) -> None:
    """Let `<NAME>__<PIPELINE>` override `<NAME>`, since clusters have different passwords. The plain name is
    set in this process, which runs this task only, and is inherited by the Spark driver."""
    for name in SECRETS:
        own = os.environ.get(f"{name}__{pipeline.upper()}")
        if own is not None:
            os.environ[name] = own


def _mask_secrets(config: PipelineConfig) -> None:
    """Let Airflow mask these in the log of the task, which has what the job, Spark and their libraries say."""
    for secret in {*secrets_of(config), *filter(None, map(os.environ.get, SECRETS))}:
        mask_secret(secret)


def failure(error: WritetimeError) -> AirflowException:
    """Convert an error: a retriable one lets Airflow retry the task, any other fails it at once."""
    return AirflowException(str(error)) if error.retriable else AirflowFailException(str(error))


def expect_params(context: Context) -> None:
    """Fail if Airflow is configured to ignore what a run was asked for: the task would do something else, or nothing."""
    run = context.get("dag_run")
    ignored = sorted((getattr(run, "conf", None) or {}).keys() & context.get("params", {}).keys())
    if ignored and not conf.getboolean("core", "dag_run_conf_overrides_params"):
        raise AirflowFailException(
            f"Airflow ignores what this run was asked for ({', '.join(ignored)}), since its setting `core.dag_run_conf_overrides_params` "
            "is False. Set it to True for scheduler, workers and API server, then clear this task."
        )


class PipelineOperator(BaseOperator):
    """Base of the operators of one pipeline. `config`: path of its YAML; `page`: its path on the page."""

    def __init__(self, *, config: str = "", page: str = "", **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.config = config
        self.page = page

    def pre_execute(self, context: Any) -> None:
        expect_params(context)

    def pipeline(self) -> tuple[PipelineConfig, Store]:
        """The pipeline by the current contents of its YAML, and its store."""
        return opened(self.config)

    def planned(self, plan: Callable[..., Manifest | None], nothing: str) -> Manifest:
        """The manifest that `plan` returns. Skips the task, with `nothing` as the reason, if there is nothing
        to do."""
        config, store = self.pipeline()
        try:
            cluster = config.cluster.name
            manifest = plan(store, cluster, now=store_clock(store, cluster))
        except WritetimeError as error:
            raise failure(error) from error
        if manifest is None:
            raise AirflowSkipException(nothing)
        return manifest

    def emit_table_events(self, context: Context, pipeline: str, changed: Mapping[str, int], batch: int) -> None:
        """Create an asset event for each changed table, with its count of events up to `batch`, where an asset
        alias is among the outlets."""
        for alias in (outlet for outlet in self.outlets if isinstance(outlet, AssetAlias)):
            for table, events in changed.items():
                context["outlet_events"][alias].add(table_asset(pipeline, table), extra={"batch": batch, "events": events})

    def archive_last(self) -> dict[str, str]:
        """Archive the last sealed batch if its run was interrupted before that: planning requires it."""
        config, store = self.pipeline()
        try:
            return dict(archive_last(store, config.cluster.name))
        except WritetimeError as error:
            raise failure(error) from error


class ArchiveLastOperator(PipelineOperator):
    """Archive the last sealed batch if its run was interrupted before that. XCom: the result of each
    object."""

    def execute(self, context: Context) -> dict[str, str]:
        return self.archive_last()


class ReleaseOperator(PipelineOperator):
    """Release held segments that only waited for a schema that is known by now. XCom: their objects."""

    def execute(self, context: Context) -> list[str]:
        config, store = self.pipeline()
        try:
            keystore = config.cluster.commitlog_keystore
            keys = None if keystore is None else Keystore.from_environment(keystore)
            released = release(store, config.cluster.name, config.columns.rules, keys)
            released += release_made_again(store, config.cluster.name)
        except WritetimeError as error:
            raise failure(error) from error
        self.log.info("released from quarantine: %s", ", ".join(released) or "nothing")
        return released


class PlanBatchOperator(PipelineOperator):
    """Plan the next batch over incoming segments and expired rows. XCom: its number. Skips if there is
    nothing to do."""

    def execute(self, context: Context) -> int:
        config, store = self.pipeline()
        if config.airflow.mode == "session":
            raise AirflowSkipException(f"airflow.mode is session: cdc_stream of {config.pipeline} plans and runs the batches")
        plan = partial(
            plan_ingest,
            max_segments=config.segments_per_batch,
            batch_seconds=config.batch_seconds,
            check=rule_check(store, config),
        )
        manifest = self.planned(plan, "there are no new segments and no captured rows have expired")
        if manifest.kind != "ingest" and store_clock(store, config.cluster.name) - manifest.created_at < OWNERS_TURN:
            raise AirflowSkipException(
                f"batch {manifest.number} ({manifest.kind}) is open: its own DAG planned it at {manifest.created_at:%H:%M:%S}Z and should "
                f"seal it. If it is not sealed {OWNERS_TURN.seconds // 60} minutes after that, cdc_ingest runs it"
            )
        self.log.info("batch %s (%s): %s segments", manifest.number, manifest.kind, len(manifest.segments))
        return manifest.number


class TurnOperator(PipelineOperator, BaseSensorOperator):
    """Plan a batch as soon as no other one is open. XCom: its number. While it waits, it takes no slot and
    uses no retry: the last hour of a backfill waits for all others."""

    def __init__(self, **kwargs: Any) -> None:
        super().__init__(**{"mode": "reschedule", "poke_interval": timedelta(seconds=15), "timeout": timedelta(days=1), **kwargs})

    def poke(self, context: Context) -> PokeReturnValue:
        try:
            # In each poke: other DAGs seal batches while this task waits.
            self.archive_last()
            number = self.number(context)
            self._end_turn()
            return PokeReturnValue(is_done=True, xcom_value=number)
        except AirflowException as error:
            if not isinstance(error.__cause__, BatchBusy):
                raise
            self._request_turn()
            self.log.info("waiting, another batch is open: %s", error)
            return PokeReturnValue(is_done=False)

    def _request_turn(self) -> None:
        """Ask a running session to leave the next batch to this task: between two looks of it, a session can
        begin and seal a batch."""
        config, store = self.pipeline()
        if config.airflow.mode == "session":
            sessions.request_turn(store, config.cluster.name, self.dag_id)

    def _end_turn(self) -> None:
        config, store = self.pipeline()
        if config.airflow.mode == "session":
            sessions.end_turn(store, config.cluster.name)

    @abstractmethod
    def number(self, context: Context) -> int:
        """Plan a batch and return its number. Fails, caused by BatchBusy, while another batch is open."""


class PlanReplayOperator(TurnOperator):
    """Plan a batch over the archived segments of an interval of hours. Skips if there are none. With
    `namespace`, the batch writes to the tables of a shadow namespace."""

    template_fields: Sequence[str] = ("start", "end", "namespace")

    def __init__(self, *, start: str, end: str, namespace: str = "", **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.start = start
        self.end = end
        self.namespace = namespace

    def number(self, context: Context) -> int:
        run_type = getattr(context["dag_run"], "run_type", "")
        if run_type == "scheduled":
            raise AirflowSkipException("scheduled runs do nothing: trigger a replay or a backfill by hand")
        if run_type == "backfill":
            _expect_own_params(context)
        try:
            start, end = replay_hours(self.start, self.end)
        except WritetimeError as error:
            raise failure(error) from error
        plan = partial(plan_replay, start=start, end=end, namespace=self.namespace or None)
        manifest = self.planned(plan, f"no segment in the archive was sealed between {start} and {end}")
        self.log.info("batch %s (replay): %s segments sealed between %s and %s", manifest.number, len(manifest.segments), start, end)
        return manifest.number


def _expect_own_params(context: Context) -> None:
    """Fail if this run of a backfill has parameters of something else. A backfill without parameters takes over the run that
    is there for the same hour, with the parameters that somebody gave it by hand."""
    given = [name for name in ("start", "end", "namespace") if context["params"].get(name)]
    by_hand = not context["dag_run"].run_id.startswith(("backfill__", "scheduled__"))
    if given if by_hand else {"start", "end"} & set(given):
        raise AirflowFailException(
            f"a run of a backfill replays its own hour, but this one has {', '.join(f'`{name}`' for name in given)}"
            + (": it was triggered by hand before, and Airflow kept its parameters" if by_hand else "")
            + ". Without a backfill, trigger cdc_replay with `start` and `end`. For a backfill, delete this run first, and give no times."
        )


class PlanMaintainOperator(TurnOperator):
    """Plan a maintenance batch. Skips while there is no state."""

    def number(self, context: Context) -> int:
        manifest = self.planned(plan_maintain, "no batch has been sealed yet: there is no state to maintain")
        self.log.info("batch %s (maintain)", manifest.number)
        return manifest.number


class PlanBootstrapOperator(PipelineOperator):
    """List the tables to read from the cluster: `table`, or those that are due. Skips if no table is due and
    no row is to be read again. Fails before Spark is started if `part` is no range of tokens, or has no table."""

    template_fields: Sequence[str] = ("table", "part")

    def __init__(self, *, table: str, part: str = "", **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.table = table
        self.part = part

    def execute(self, context: Context) -> list[str]:
        try:
            part_of([self.table] if self.table else [], self.part)
        except WritetimeError as error:
            raise failure(error) from error
        if self.table:
            return [self.table]
        config, store = self.pipeline()
        try:
            tables = [table.full_name for table in due(store, config)]
        except WritetimeError as error:
            raise failure(error) from error
        incomplete_rows = any(True for _ in store.names(incomplete_rows_prefix(config.cluster.name), page=1))
        if not tables and (not incomplete_rows or config.cluster.cql is None):
            raise AirflowSkipException("no table is due, and no row is to be read again")
        self.log.info("tables due: %s; rows to be read again: %s", ", ".join(tables) or "none", "yes" if incomplete_rows else "none")
        return tables


class SparkJobOperator(SparkSubmitOperator):
    """Run one of the project's Spark jobs for a pipeline through spark-submit, with the locked jars.
    `config`: the YAML."""

    has_rivals = False
    """Whether another driver may run the same batch. Then any failure may be transient and is retried."""

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

    def pre_execute(self, context: Any) -> None:
        expect_params(context)

    def execute(self, context: Context) -> None:
        config, store = opened(self.config)
        self.name = f"{self.name} {config.pipeline}"
        connection = BaseHook.get_connection(self._conn_id)
        expect_client_mode(connection, config)
        local = _LOOPBACK | self.local_conf(config, store) if _is_local(connection) else {}
        self.conf = local | config.spark.submit | (self.conf or {})
        if more := self.conf.pop("spark.jars", ""):
            # spark-submit would ignore these because of its own option.
            self.jars = ",".join(filter(None, [self.jars, more]))
        # The driver inherits this from the process, which runs this task only. On Kubernetes the operator's
        # env_vars are passed to the executors only, although the driver runs here.
        os.environ["PYTHONPATH"] = os.pathsep.join([str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])])
        os.environ[parents.SETTING] = parents.named(_own_processes())
        self.submit(context)

    def local_conf(self, config: PipelineConfig, store: Store) -> dict[str, str]:
        """Spark's options if driver and executors are one process on this machine. `spark.submit` overrides
        them."""
        return {}

    def submit(self, context: Context) -> None:
        """Run the job. A failed job reports the reason and whether a retry helps; spark-submit returns only
        an exit code."""
        with listening() as result:
            try:
                super().execute(context)
            except AirflowException as error:
                job = result.read()
                if not job.text:
                    raise
                retry = job.retriable or self.has_rivals
                raise (AirflowException if retry else AirflowFailException)(job.text) from error
            finally:
                self.report = result.read().report


def expect_client_mode(connection: Connection, config: PipelineConfig) -> None:
    """Fail if the driver would not stay with the task: it reads the YAML and the environment of this machine, it ends
    with the task, and what it reports is read here."""
    wanted = {
        f"`deploy-mode` of the connection `{connection.conn_id}`": connection.extra_dejson.get("deploy-mode"),
        f"`spark.submit` of {config.pipeline}": config.spark.submit.get("spark.submit.deployMode"),
    }
    if by := [where for where, mode in wanted.items() if mode not in (None, "", "client")]:
        raise AirflowFailException(
            f"{' and '.join(by)} asks for another deploy mode than `client`, in which the driver stays with the task: it needs this "
            "machine's files and environment. Set `client`; the executors run on the cluster all the same (docs/clusters.md)."
        )


def _is_local(connection: Connection) -> bool:
    """Whether driver and executors run on this machine, so that loopback addresses suffice. On a cluster the
    executors connect to the driver by its host name, unless `spark.submit` sets another address. With a port, the
    host is that of a cluster, whatever it is called."""
    return not connection.port and _LOCAL.fullmatch(connection.host or "") is not None


def _own_processes() -> dict[str, int]:
    """This process, and Airflow's supervisor if it is the parent: without it, nobody sends heartbeats, and Airflow starts the
    task again. Under `dag.test()` the parent is a shell, of which a task does not depend."""
    supervised = hasattr(getattr(task_runner, "SUPERVISOR_COMMS", None), "socket")
    return {"task": os.getpid(), **({"supervisor": os.getppid()} if supervised else {})}


def batch_number(text: str) -> int:
    """The number that `plan` has returned. A task that is marked as successful by hand returns nothing, and no retry
    brings it."""
    try:
        return int(text)
    except ValueError:
        raise AirflowFailException(
            f"the task `plan` of this run has returned no batch, but {text!r}: it was marked as successful by hand, or its XCom was "
            "deleted. Clear `plan` with the tasks after it: they run with the batch that it returns."
        ) from None


def expect_sealed(store: Store, cluster: str, number: int) -> Sealed:
    """The seal of a batch whose job was successful. Fails if there is none: the job's task was marked by hand."""
    sealed = read_sealed(store, cluster, number)
    if sealed is None:
        raise AirflowFailException(
            f"batch {number} of {cluster} is not sealed: its task was marked as successful by hand, or the batch is so old that its "
            "documents were pruned. If it is the last batch: clear the task that runs it."
        )
    return sealed


class BatchLink(BaseOperatorLink):
    """Link from a task to its batch on the page."""

    name = "Batch"

    def get_link(self, operator: Any, *, ti_key: Any) -> str:
        """The address. Batches of a shadow namespace have numbers of their own."""
        shadow = f"beside/{operator.namespace}/" if operator.namespace else ""
        number = str(operator.batch)
        return address(f"{operator.page}{shadow}batches/{number}" if number.isdecimal() else f"{operator.page}batches")


class BatchJobOperator(SparkJobOperator):
    """Run a planned batch until it is sealed; does nothing if it already is. `namespace`: the shadow
    namespace of a replay. `publish_dag`: the DAG that publishes; unless it is paused, the job publishes the
    batch, too."""

    template_fields: Sequence[str] = (*SparkJobOperator.template_fields, "batch", "namespace")
    operator_extra_links = (BatchLink(),)
    has_rivals = True

    def __init__(self, *, batch: str, namespace: str = "", publish_dag: str = "", **kwargs: Any) -> None:
        shadow = [f"--namespace={namespace}"] if namespace else []
        super().__init__(arguments=["--batch", batch, *shadow], **kwargs)
        self.batch = batch
        self.namespace = namespace
        self.publish_dag = publish_dag

    def execute(self, context: Context) -> None:
        batch_number(self.batch)
        super().execute(context)

    def local_conf(self, config: PipelineConfig, store: Store) -> dict[str, str]:
        cluster = (config.shadow(self.namespace) if self.namespace else config).cluster.name
        try:
            manifest = read_manifest(store, cluster, int(self.batch))
        except WritetimeError as error:
            raise failure(error) from error
        # A batch of maintenance has no segments; how much it does depends on the tables.
        return QUICK_START if manifest.segments and sum(each.size for each in manifest.segments) <= SMALL_BATCH else {}

    def submit(self, context: Context) -> None:
        if self._publishes(context):
            self.application_args = [*(self.application_args or ()), "--publish"]
        super().submit(context)

    def _publishes(self, context: Context) -> bool:
        if not self.publish_dag:
            return False
        try:
            return not context["ti"].get_dag(self.publish_dag).is_paused
        except AirflowRuntimeError as error:
            self.log.warning("failed to read whether %s is paused, so the batch is left to it: %s", self.publish_dag, error)
            return False


class BatchOperator(PipelineOperator):
    """Base of the operators of one batch. `namespace`: the shadow namespace of a replay."""

    template_fields: Sequence[str] = ("batch", "namespace")
    operator_extra_links = (BatchLink(),)

    def __init__(self, *, batch: str, namespace: str = "", **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.batch = batch
        self.namespace = namespace


class OutcomeOperator(BatchOperator):
    """Fails if a replay left out a table that cannot be projected, or a range of a segment. All other rows
    are merged."""

    def execute(self, context: Context) -> None:
        config, store = self.pipeline()
        cluster = (config.shadow(self.namespace) if self.namespace else config).cluster.name
        number = batch_number(self.batch)
        sealed = expect_sealed(store, cluster, number)
        if sealed.void is not None:
            raise AirflowFailException(f"batch {self.batch} of {cluster} was voided by {sealed.void.by}: {sealed.void.reason}")
        quarantined = {account.table for account in sealed.accounting if account.quarantined}
        lines = [f"{table.table}: table rejected: {table.reason}" for table in sealed.refused if table.table in quarantined]
        lines += [f"{each.object} at {problem.position}: {problem.message}" for each in sealed.segments for problem in each.problems]
        if lines:
            more = f"\n… and {len(lines) - _MAX_LINES} more: see the page of the batch" if len(lines) > _MAX_LINES else ""
            raise AirflowFailException(
                f"batch {self.batch} left out data; all other rows are merged:\n" + "\n".join(lines[:_MAX_LINES]) + more + "\n"
                "Fix the cause (ship a schema snapshot, correct `columns` in the pipeline's YAML), then replay these hours again."
            )
        self.log.info("batch %s left nothing out", self.batch)


class ArchiveBatchOperator(BatchOperator):
    """Move a sealed batch's segments to the archive and write the ledger. XCom: the result of each object. An
    asset alias among the outlets gets an asset for each changed table, as a hint for other DAGs; the seal is
    authoritative."""

    def execute(self, context: Context) -> dict[str, str]:
        if self.namespace:
            raise AirflowSkipException("a replay into a shadow namespace archives nothing")
        number = batch_number(self.batch)
        config, store = self.pipeline()
        try:
            moved: dict[str, str] = dict(archive(store, config.cluster.name, number))
            sealed = read_sealed(store, config.cluster.name, number)
        except WritetimeError as error:
            raise failure(error) from error
        changed = {account.table.partition("@")[0]: account.events for account in sealed.accounting if account.events} if sealed else {}
        self.emit_table_events(context, config.pipeline, changed, number)
        return moved


class CompletedHoursOperator(PipelineOperator):
    """Create an event of each outlet for each hour (UTC) that was completed since the last run, with the hour
    as partition key. XCom: the hours. Skips if there is none."""

    def __init__(self, **kwargs: Any) -> None:
        super().__init__(**{"on_success_callback": _record_hours, **kwargs})
        self.hours: list[datetime] = []

    def execute(self, context: Context) -> list[str]:
        config, store = self.pipeline()
        try:
            self.hours = completed_hours(store, config.cluster.name)
        except WritetimeError as error:
            raise failure(error) from error
        if not self.hours:
            raise AirflowSkipException("no hour has been completed since the last event")
        if len(self.hours) == MOST:
            self.log.warning("at most %s hours get an event at once: those before %s get none", MOST, key_of(self.hours[0]))
        keys = [key_of(hour) for hour in self.hours]
        for asset in (outlet for outlet in self.outlets if isinstance(outlet, Asset)):
            context["outlet_events"][asset].add_partitions(keys)
        return keys

    def record(self) -> None:
        """Record that the events were created."""
        config, store = self.pipeline()
        record_notified(store, config.cluster.name, self.hours)


def _record_hours(context: Context) -> None:
    """Airflow creates the events with the task's success, and calls this afterwards. If it fails, or the
    process was killed, the next run creates them again."""
    task: Any = context["task"]
    task.record()


def label(name: str) -> str:
    """The label of a mapped task. Airflow's database refuses longer ones, and the state of the task with them. The end says
    which segment or table it is."""
    return name if len(name) <= _LONGEST_LABEL else "…" + name[1 - _LONGEST_LABEL :]


class FailedSegmentsOperator(PipelineOperator):
    """List the batch's segments that need an operator, as arguments of one mapped task each. Segments that
    only wait for a rejected table are left out: the table has its own task. Only the first segment sends a
    notification. Batch 0: none."""

    template_fields: Sequence[str] = ("batch",)

    def __init__(self, *, batch: str, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.batch = batch

    def execute(self, context: Context) -> list[dict[str, Any]]:
        number = batch_number(self.batch)
        if not number:
            return []
        config, store = self.pipeline()
        sealed = expect_sealed(store, config.cluster.name, number)
        found = [o.object for o in sealed.segments if not o.ok and not sealed.waits_for_tables(o)]
        shown = found
        if len(found) > (most := conf.getint("core", "max_map_length")):
            last = history(store, config.cluster.name).sealed
            held = set(last.held if last else ())
            shown = [name for name in found if name in held][:most]
            self.log.warning("%s segments are held, tasks exist for %s of them: clear this task after fixing these", len(found), most)
        return [{"segment": name, "place": place, "of": len(found)} for place, name in enumerate(shown, 1)]


class SegmentLink(BaseOperatorLink):
    """Link from a task to its segment on the page."""

    name = "Segment"

    def get_link(self, operator: Any, *, ti_key: Any) -> str:
        """The address of the segment."""
        return address(f"{operator.page}segment", name=operator.segment)


class SegmentOperator(PipelineOperator):
    """A segment that could not be read completely: fails until its object is good. When cleared, it checks
    the segment again and lets the next batch read it, or says that it has been archived since. `place`, `of`: its
    number among the failed segments of the batch, and their count. Not a template: see `add_squares`."""

    operator_extra_links = (SegmentLink(),)

    def __init__(self, *, segment: str, place: int = 1, of: int = 1, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.segment = segment
        self.place = place
        self.of = of

    def execute(self, context: Context) -> str:
        # The label of the mapped task in the grid: node and file, not an index.
        context["segment"] = label("/".join(self.segment.split("/")[2:]))  # type: ignore[typeddict-unknown-key]
        context[NOTIFIED_BEFORE] = self.place > 1  # type: ignore[typeddict-unknown-key]
        config, store = self.pipeline()
        try:
            if (elsewhere := whereabouts(store, config.cluster.name, self.segment)) is not None:
                self.log.info("%s: nothing is left to do. %s", self.segment, elsewhere)
                return self.segment
            keystore = config.cluster.commitlog_keystore
            keys = None if keystore is None else Keystore.from_environment(keystore)
            problems = check_segment(store, config.cluster.name, self.segment, keys)
        except WritetimeError as error:
            raise failure(error) from error
        if problems:
            lines = "\n".join(f"  at {problem.position}: {problem.message}" for problem in problems)
            others = f"{self.of - 1} more segments of this batch are held. " if self.of > 1 else ""
            raise AirflowFailException(
                f"{self.segment} cannot be read completely:\n{lines}\nThese bytes are in quarantine; all other data was processed. {others}"
                f"Fix the cause or upload a good copy under that name to {config.bucket}, then clear this task: the next batch reads "
                f"the segment again.\nLedger: {SegmentRef.from_object(self.segment).ledger}\n"
                f"Page: {link(f'{self.page}segment', name=self.segment)}"
            )
        mark_for_retry(store, self.segment)
        self.log.info("%s is readable now, the next batch reads it", self.segment)
        return self.segment


class FailedTablesOperator(PipelineOperator):
    """List the tables that the batch rejected, as arguments of one mapped task each. Batch 0: none."""

    template_fields: Sequence[str] = ("batch",)

    def __init__(self, *, batch: str, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.batch = batch

    def execute(self, context: Context) -> list[dict[str, str]]:
        number = batch_number(self.batch)
        if not number:
            return []
        config, store = self.pipeline()
        try:
            expect_sealed(store, config.cluster.name, number)
            found = failed_tables(store, config.cluster.name, number)
        except WritetimeError as error:
            raise failure(error) from error
        most = conf.getint("core", "max_map_length")
        if len(found) > most:
            self.log.warning("%s tables are rejected, tasks exist for %s of them", len(found), most)
        return task_arguments(found, most)


class TableLink(BaseOperatorLink):
    """Link from a task to its table on the page."""

    name = "Table"

    def get_link(self, operator: Any, *, ti_key: Any) -> str:
        """The address of the table."""
        return f"{address(f'{operator.page}tables')}#{quote(operator.table)}"


class TableOperator(PipelineOperator):
    """A table that a batch rejected: fails until the cause is fixed. When cleared, it checks the table again
    and lets the next batch read the segments that wait for it. Only a batch can see problems in the
    warehouse; it reports them again. Not a template: see `add_squares`."""

    operator_extra_links = (TableLink(),)

    def __init__(self, *, table: str, table_id: str, reason: str, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.table, self.table_id, self.reason = table, table_id, reason

    def execute(self, context: Context) -> list[str]:
        context["table"] = label(self.table)  # type: ignore[typeddict-unknown-key]
        config, store = self.pipeline()
        cluster, table_id = config.cluster.name, UUID(self.table_id)
        try:
            first = context["ti"].try_number <= 1
            reason = self.reason if first else remaining_reason(store, cluster, table_id, config.columns.rules)
            if reason is not None:
                waiting = len(waiting_segments(store, cluster, table_id))
                raise AirflowFailException(
                    f"{self.table}: table rejected: {reason}\n{waiting} segments wait for it; all other data was processed.\n"
                    "Depending on the reason: ship a schema snapshot with its types, correct `columns` in the pipeline's YAML, or "
                    "free its name in the warehouse. Then clear this task: the next batch reads the segments again."
                )
            released = release_table(store, cluster, table_id)
        except WritetimeError as error:
            raise failure(error) from error
        self.log.info("no problem found with %s, the next batch reads: %s", self.table, ", ".join(released) or "nothing")
        return released


def add_squares(batch: str) -> list[BaseOperator]:
    """Add the tasks that report a batch's failed segments and rejected tables to the current DAG. Returns the
    two that list them.

    What the mapped tasks get is not rendered: it contains names and types of the cluster, and Airflow renders values of
    `expand_kwargs` in `template_fields` as templates, with access to its connections and variables."""
    failed = FailedSegmentsOperator(task_id="failed_segments", batch=batch)
    segment = SegmentOperator.partial(
        task_id="segment",
        retries=0,
        map_index_template="{{ segment }}",
        doc_md="Failed: this segment needs an operator. See the runbook.",
    ).expand_kwargs(failed.output)
    refused = FailedTablesOperator(task_id="failed_tables", batch=batch)
    table = TableOperator.partial(
        task_id="table", retries=0, map_index_template="{{ table }}", doc_md="Failed: this table needs an operator. See the runbook."
    ).expand_kwargs(refused.output)
    failed >> segment
    refused >> table
    return [failed, refused]


class PublishDueOperator(PipelineOperator):
    """Skips if all sealed batches are known to be in Kafka, unless `since` asks to compare all of them with
    Kafka."""

    template_fields: Sequence[str] = ("since",)

    def __init__(self, *, since: str, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.since = since

    def execute(self, context: Context) -> None:
        config, store = self.pipeline()
        if config.kafka is None and config.files is None:
            raise AirflowSkipException("the pipeline has no `kafka`, and `files: null`: nothing is published")
        if config.airflow.mode == "session" and self.since == "last":
            raise AirflowSkipException(f"airflow.mode is session: cdc_stream of {config.pipeline} publishes")
        heartbeat, now = config.kafka.heartbeat_interval_ms if config.kafka else 0, int(time.time() * 1000)
        if self.since == "last" and not publish_due(store, config.cluster.name, heartbeat_ms=heartbeat, now=now):
            raise AirflowSkipException("every sealed batch has been published")


class RejectedTablesOperator(PipelineOperator):
    """List the tables whose events could not be published, as arguments of one mapped task each. Each table
    is notified once."""

    def execute(self, context: Context) -> list[dict[str, Any]]:
        config, store = self.pipeline()
        cluster = config.cluster.name
        try:
            published = read_published(store, cluster)
            waiting = published.waiting if published else {}
            notified = Notified.still(store, layout.published_notified(cluster), waiting)
        except WritetimeError as error:
            raise failure(error) from error
        return [{"table": name, "notified_before": name in notified} for name in sorted(waiting)]


class RejectedTableOperator(PipelineOperator):
    """A table whose events could not be published: fails until a run of `cdc_publish` has sent them. Each run
    retries. Not a template: see `add_squares`."""

    operator_extra_links = (TableLink(),)

    def __init__(self, *, table: str, notified_before: bool = False, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.table = table
        self.notified_before = notified_before

    def execute(self, context: Context) -> None:
        context["table"] = label(self.table)  # type: ignore[typeddict-unknown-key]
        context[NOTIFIED_BEFORE] = self.notified_before  # type: ignore[typeddict-unknown-key]
        config, store = self.pipeline()
        cluster = config.cluster.name
        published = read_published(store, cluster)
        if published is not None and self.table in published.waiting:
            waits = {self.table: published.waiting[self.table]}
            context[WHEN_NOTIFIED] = partial(Notified.record, store, layout.published_notified(cluster), waits)  # type: ignore[typeddict-unknown-key]
            raise AirflowFailException(
                f"{self.table}: events since batch {published.waiting[self.table]} cannot be published: "
                f"{published.reasons.get(self.table, 'see the log of `publish`')}\nThey stay in the changes table in order; "
                "all other tables are published.\nFix the cause. The next run of cdc_publish sends them; then clear this task."
            )
        self.log.info("all events of %s up to batch %s are published", self.table, published.batch if published else 0)


class CheckLink(BaseOperatorLink):
    """Link from a check to its report on the page, or to the list of reports if it wrote none."""

    name = "Report"

    def get_link(self, operator: Any, *, ti_key: Any) -> str:
        """The address of the report."""
        report = operator.report
        return address(f"{operator.page}checks/report", name=report) if report else address(f"{operator.page}checks")


class CheckJobOperator(SparkJobOperator):
    """Run a read-only check job; fails if it finds a problem. Arguments that render empty are left out. With
    `asks_ring`, the task skips if the pipeline has no `cluster.cql`, unless it is asked about topics."""

    operator_extra_links = (CheckLink(),)

    def __init__(self, *, asks_ring: bool = False, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.asks_ring = asks_ring

    def execute(self, context: Context) -> None:
        config, _ = opened(self.config)
        self.application_args = [argument for argument in self.application_args or [] if argument]
        if self.asks_ring and config.cluster.cql is None and "--topics" not in self.application_args:
            raise AirflowSkipException("the pipeline has no `cluster.cql`: the cluster cannot be read")
        super().execute(context)


class WatchOperator(PipelineOperator):
    """Fails while something exceeds the limits of `airflow.watch`. A notification is sent only if there is a new problem."""

    def execute(self, context: Context) -> None:
        config, store = self.pipeline()
        expected, cluster = Expected.of(config), config.cluster.name
        try:
            found = watch(
                Batches(store, cluster), expected.limits, publishes=expected.publishes, session=expected.session, rules=expected.rules
            )
            keys = dict.fromkeys((trouble.key for trouble in found), 0)
            known = Notified.still(store, layout.watch_notified(cluster), keys)
        except WritetimeError as error:
            raise failure(error) from error
        if not found:
            self.log.info("no limit is exceeded")
            return
        context[NOTIFIED_BEFORE] = known >= keys.keys()  # type: ignore[typeddict-unknown-key]
        context[WHEN_NOTIFIED] = partial(Notified.record, store, layout.watch_notified(cluster), keys)  # type: ignore[typeddict-unknown-key]
        # What is new first: notifiers limit a text.
        lines = [trouble.text for trouble in sorted(found, key=lambda trouble: trouble.key in known)]
        more = f"\n… and {len(lines) - _MAX_LINES} more: `writetime status` lists all" if len(lines) > _MAX_LINES else ""
        raise AirflowFailException("\n".join(lines[:_MAX_LINES]) + more)
