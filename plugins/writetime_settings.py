"""Parse-time settings of the DAGs, from the pipelines' YAMLs: names, schedules and task defaults. Opens no
store.

Strategy: a DAG file creates its DAG once for each item of `settings()`. With one file in WRITETIME_CONFIG the
DAGs have their plain names; with several, `__<pipeline>` is appended (`writetime.config.installation`). An
invalid YAML yields no DAGs and does not affect other pipelines; `raise_problems` turns it into an import
error, which Airflow shows at the top of every page, to all users: with several pipelines it names none of them. The
YAMLs are read at each parse, so a change needs no restart."""

from __future__ import annotations

import logging
import os
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any

from airflow.sdk import Asset, AssetAlias, AssetOrTimeSchedule, CronTriggerTimetable
from writetime_notices import Notice, RunNotice, key_of, notifier
from writetime_page import link

from writetime.config.airflow import JOB_HOURS, AirflowConfig
from writetime.config.installation import SETTING, Pipeline, Pipelines, Problem, pipelines
from writetime.errors import ConfigError


@dataclass(frozen=True, slots=True)
class Settings:
    """Settings of one pipeline. `config`: path of its YAML, empty if there is none; `several`: whether DAG
    ids end in its name; `reads_cluster`: whether it has `cluster.cql`."""

    pipeline: str
    config: str
    several: bool
    airflow: AirflowConfig
    reads_cluster: bool = False
    start_date: datetime = datetime(2020, 1, 1, tzinfo=UTC)

    def dag_id(self, name: str) -> str:
        """The id of this pipeline's DAG `name`."""
        return dag_id(name, self.pipeline if self.several else None)

    @property
    def common(self) -> dict[str, Any]:
        """Arguments of all DAGs. One run at a time: two runs would plan or publish the same."""
        tags = ["writetime", self.pipeline]
        on_failure = {"on_failure_callback": RunNotice(self.config, self.page)} if self.airflow.on_failure else {}
        return {"start_date": self.start_date, "catchup": False, "max_active_runs": 1, "tags": tags, **on_failure}

    @property
    def page(self) -> str:
        """The pipeline's path on the page."""
        return page_of(self.pipeline) if self.several else ""

    @property
    def defaults(self) -> dict[str, Any]:
        """Default arguments of all tasks. Operators read their pipeline from `config`, not from the worker's
        environment."""
        on_failure = {"on_failure_callback": Notice(self.config, self.page)} if self.airflow.on_failure else {}
        pools = {"pool": self.airflow.pool, "spark_pool": self.airflow.spark_pool or self.airflow.pool}
        return {
            "owner": self.airflow.owner,
            "config": self.config,
            "page": self.page,
            "spark_connection": self.airflow.spark_connection,
            "execution_timeout": timedelta(hours=JOB_HOURS),
            **{kind: pool for kind, pool in pools.items() if pool},
            **on_failure,
        }

    @property
    def outbox(self) -> Asset:
        """The asset of sealed batches to be published."""
        name = f"writetime_outbox__{self.pipeline}" if self.several else "writetime_outbox"
        return Asset(name, uri=f"writetime://{self.pipeline}/outbox")

    @property
    def complete(self) -> Asset:
        """The asset of complete hours: an event for each hour, with the hour as partition key."""
        name = f"writetime_complete__{self.pipeline}" if self.several else "writetime_complete"
        return Asset(name, uri=f"writetime://{self.pipeline}/complete")

    @property
    def tables(self) -> AssetAlias:
        """Alias for the tables that a batch changes. They are known only after the batch."""
        return AssetAlias(f"writetime_tables_{self.pipeline}")

    @property
    def is_session(self) -> bool:
        """Whether cdc_stream runs the batches, instead of cdc_ingest and cdc_publish."""
        return self.airflow.mode == "session"

    @property
    def ingest_schedule(self) -> str | None:
        return None if self.is_session else self.airflow.ingest_schedule

    @property
    def verify_schedule(self) -> str | None:
        return self.airflow.verify_schedule if self.reads_cluster else None

    @property
    def publish_schedule(self) -> AssetOrTimeSchedule | list[Asset] | None:
        """Every seal, and a cron schedule as a fallback, since Airflow may lose an asset event."""
        if self.is_session:
            return None
        if self.airflow.publish_fallback is None:
            return [self.outbox]
        return AssetOrTimeSchedule(timetable=CronTriggerTimetable(self.airflow.publish_fallback, timezone="UTC"), assets=[self.outbox])


def settings() -> Iterator[Settings]:
    """The settings of each pipeline. Without WRITETIME_CONFIG the DAGs load with the pipeline name
    `unconfigured`, so that the UI can show what is missing."""
    known = _known()
    for pipeline in known.found:
        yield Settings(pipeline.name, str(pipeline.path), known.several, pipeline.config.airflow, pipeline.config.cluster.cql is not None)
    if not known.found and not known.problems:
        yield Settings("unconfigured", "", False, AirflowConfig())


def raise_problems() -> None:
    """Raise a ConfigError if there are problems of pipelines' YAMLs, and log them all. A pipeline with an invalid YAML
    has no DAGs until it is fixed. One with an unusable notifier runs, but sends no notifications through it."""
    known = _known()
    problems = [*known.problems, *(problem for pipeline in known.found for problem in notifier_problems(pipeline))]
    if not problems:
        return
    text = "".join(f"\n* {problem}" for problem in problems)
    if not known.several:
        raise ConfigError(text, operation="read the pipelines", obj=os.environ.get(SETTING, ""))
    # Airflow shows the import error of a file without DAGs to users of any DAG.
    logging.getLogger(__name__).error("files of pipelines cannot be used, or not completely:%s", text)
    hint = (
        f"{link('')} lists them with the reasons, to users who may see the pipeline's DAGs, and the DAG processor's log of this "
        "file lists all."
    )
    raise ConfigError("files cannot be used, or not completely", operation="read the pipelines", obj=SETTING, hint=hint)


def notifier_problems(pipeline: Pipeline) -> Iterator[Problem]:
    """The notifiers of a pipeline's YAML that cannot be used."""
    for number, wanted in enumerate(pipeline.config.airflow.on_failure):
        try:
            notifier(wanted)
        except ConfigError as error:
            text = f"`{key_of(number)}`: {error}. The DAGs run, but this notifier sends nothing."
            yield Problem(ConfigError(text, obj=str(pipeline.path)), frozenset({pipeline.name}))


def dag_id(name: str, pipeline: str | None) -> str:
    """The id of the DAG `name` of a pipeline; without a pipeline, the plain name."""
    return name if pipeline is None else f"{name}__{pipeline}"


def page_of(pipeline: str) -> str:
    """The path of this pipeline on a page that shows several."""
    return f"pipeline/{pipeline}/"


def table_asset(pipeline: str, table: str) -> Asset:
    """The asset of a table's rows in a pipeline. `table` is `keyspace.table`, of letters, digits and `_`."""
    return Asset(uri=f"writetime://{pipeline}/{table.replace('.', '/')}")


def _known() -> Pipelines:
    return pipelines(os.environ.get(SETTING))
