"""The keys `spark` and `airflow`: how jobs are submitted, scheduled and watched."""

from __future__ import annotations

import re
from datetime import datetime
from typing import Annotated, Any, Final, Literal

from pydantic import AfterValidator, BeforeValidator, Field, SecretStr, field_validator

from writetime.config.base import Model
from writetime.config.yaml_file import Unquoted

_SHUFFLE: Final = "spark.sql.shuffle.partitions"
JOB_HOURS = 24.0
"""After which a task's job is killed and retried, so that a job that hangs blocks no other. A longer job (reading a huge table) resumes
where it stopped."""


class SparkConfig(Model):
    """How Spark is started for the jobs."""

    master: str = Field(default="local[2]", description="Spark master, unless the Airflow connection defines it.")
    conf: dict[str, str] = Field(
        default={},
        description="Spark options, passed through. `spark.sql.shuffle.partitions` is 4 if it is not set.",
    )
    submit: dict[str, str] = Field(
        default={},
        description="Options that spark-submit needs before a job starts, when `conf` is too late: spark.driver.memory, "
        "spark.archives, spark.pyspark.python, spark.kubernetes.*, spark.yarn.*. They appear in the command "
        "line and the task log: no secrets here.",
    )

    @field_validator("conf")
    @classmethod
    def _has_partitions(cls, conf: dict[str, str]) -> dict[str, str]:
        if re.fullmatch(r"[1-9][0-9]{0,5}", text := conf.get(_SHUFFLE, "4")) is None:
            raise ValueError(f"`{_SHUFFLE}`: a number of partitions is due, not `{text}`")
        return conf

    @property
    def shuffle_partitions(self) -> int:
        """Partitions of the shuffle by key bucket."""
        return int(self.conf.get(_SHUFFLE, "4"))


def _plain(value: Any) -> Any:
    """A value of any type, but none that YAML 1.1 and 1.2 read otherwise."""
    if isinstance(value, Unquoted):
        raise ValueError(f"`{value}` is a text here, and YAML 1.1 reads something else: write true, false or a number in digits, or quotes")
    for part in value.values() if isinstance(value, dict) else value if isinstance(value, list) else ():
        _plain(part)
    return value


_ONLY_AIRFLOW: Final = {"@quarterly": "0 0 1 */3 *"}
"""The presets that Airflow adds to those of croniter."""


def _cron(text: str) -> str:
    """A schedule that Airflow can run. Not checked where croniter, which comes with Airflow, is not installed: no DAG runs there."""
    try:
        from croniter import CroniterError, croniter
    except ModuleNotFoundError:
        return text
    try:
        # The next time too: February 30 is well-formed, and fails in the scheduler.
        croniter(_ONLY_AIRFLOW.get(text, text), datetime(2000, 1, 1)).get_next()
    except CroniterError as error:
        example = "write minute, hour, day of month, month and weekday, such as '*/5 * * * *', or null"
        raise ValueError(f"`{text}` is not a valid cron expression ({error}): {example}") from error
    return text


Cron = Annotated[str, AfterValidator(_cron)]


class NotifierConfig(Model):
    """An Airflow notifier, such as those of the providers for mail or chat."""

    notifier: str = Field(
        description="Import path of the class: airflow.providers.smtp.notifications.smtp.SmtpNotifier.",
        pattern=r"^[A-Za-z_]\w*(\.[A-Za-z_]\w*)+$",
    )
    options: dict[str, Annotated[Any, BeforeValidator(_plain)]] = Field(
        default={},
        description="Arguments. Strings may contain Airflow templates; `{{ told }}` is the report: what happened, where, why, next step.",
    )
    secrets: dict[str, SecretStr] = Field(default={}, description="Secret arguments; write ${NAME}.")


class WatchConfig(Model):
    """Conditions that fail cdc_watch. The alert rules for Prometheus (deploy/prometheus/rules.yml) have the
    same limits."""

    schedule: Cron | None = Field(default="*/15 * * * *", description="Cron expression of cdc_watch (UTC); null: only when triggered.")
    late_minutes: Annotated[float, Field(gt=0)] | Literal["auto"] | None = Field(
        default="auto",
        description="Minutes since a node completed its newest shipped segment. auto: the time in which the node, at its "
        "rate, fills half of its cdc_total_space, between 30 minutes and a day, or six hours if either is "
        "unknown; null: not checked.",
    )
    space: Literal["warn", "alarm"] | None = Field(
        default="warn",
        description="Level of a node's disk space that fails the task: warn at half of cdc_total_space, alarm at 80 %, or where the disk "
        "is short; null: not checked.",
    )
    stuck_minutes: float | None = Field(default=30, gt=0, description="Maximum minutes that a batch may be open; null: not checked.")
    complete_minutes: float | None = Field(
        default=30,
        gt=0,
        description="Maximum minutes that the time up to which the tables are complete may be behind, if it is known; null: not checked, "
        "for nodes without tails.",
    )
    backlog_segments: int | None = Field(
        default=2000, ge=1, le=2000, description="Maximum number of segments waiting in the bucket; null: not checked."
    )
    unpublished_batches: int | None = Field(
        default=10, ge=1, le=60, description="Maximum number of sealed batches per table with events not yet in Kafka; null: not checked."
    )


class AirflowConfig(Model):
    """Schedules and ownership of the DAGs."""

    owner: str = Field(default="writetime", description="Owner of the DAGs.")
    pool: str | None = Field(default=None, min_length=1, description="Airflow pool of all tasks; null: default_pool. The pool must exist.")
    spark_pool: str | None = Field(
        default=None,
        min_length=1,
        description="Airflow pool of tasks that run a Spark job; null: `pool`. Pipelines with the same pool share its slots.",
    )
    spark_connection: str = Field(
        default="spark_writetime", min_length=1, description="Airflow connection of type `spark` that defines where jobs run."
    )
    mode: Literal["session", "batch"] = Field(
        default="batch",
        description="batch: cdc_ingest and cdc_publish start Spark for each batch. session: cdc_stream keeps one Spark application "
        "that runs batch after batch; the DAGs of the other mode skip.",
    )
    session_minutes: float = Field(default=60.0, gt=0, le=1440, description="Minutes after which a session ends and the next one starts.")
    session_poll_seconds: float = Field(
        default=2.0, ge=0.2, le=60, description="Seconds between two looks of an idle session at the bucket; each takes about 12 requests."
    )
    no_progress_minutes: float = Field(
        default=10.0, gt=0, description="Minutes without progress after which a session ends, and the next one runs the same batch again."
    )
    ingest_schedule: Cron | None = Field(default="* * * * *", description="Cron expression of cdc_ingest (UTC); null: only when triggered.")
    publish_fallback: Cron | None = Field(
        default="*/5 * * * *", description="Cron expression (UTC) of cdc_publish, in addition to the seal of each batch; null: none."
    )
    bootstrap_schedule: Cron | None = Field(
        default="*/10 * * * *",
        description="Cron expression (UTC) of cdc_bootstrap, which looks for tables that are due and rows to be read "
        "again; null: only when triggered.",
    )
    maintain_schedule: Cron | None = Field(
        default="17 3 * * *", description="Cron expression of cdc_maintain (UTC); null: only when triggered."
    )
    verify_schedule: Cron | None = Field(
        default="47 4 * * *",
        description="Cron expression (UTC) of cdc_verify; without cluster.cql it has no schedule; null: only when triggered.",
    )
    audit_schedule: Cron | None = Field(default=None, description="Cron expression of cdc_audit (UTC); null: only when triggered.")
    watch: WatchConfig = WatchConfig()
    on_failure: list[NotifierConfig] = Field(
        default=[], description="Notifiers that are called when a task of any DAG fails after its retries."
    )
