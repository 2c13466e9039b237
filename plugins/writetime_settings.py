"""What the DAGs need to know while they are parsed: names, schedules, defaults of tasks, by the pipelines' YAMLs. Opens no store.

Strategy: a DAG file makes its DAG once for each of `settings()`. One file in WRITETIME_CONFIG gives the DAGs their plain names, several put
`__<pipeline>` behind them (`writetime.config.airflow`). A YAML that cannot be used has no DAGs and takes none from the others;
`tell_problems` makes it an import error, which Airflow shows on top of every page. The YAMLs are read at each parse, so that nothing is to
be restarted."""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any

from airflow.sdk import Asset, AssetAlias, AssetOrTimeSchedule, CronTriggerTimetable
from writetime_notices import Notice, notifier

from writetime.config.airflow import SETTING, Pipeline, Pipelines, pipelines
from writetime.config.pipeline import AirflowConfig
from writetime.errors import ConfigError


@dataclass(frozen=True, slots=True)
class Settings:
    """Parse-time facts of one pipeline. `config`: its YAML, empty where there is none; `several`: whether DAGs go by its name."""

    pipeline: str
    config: str
    several: bool
    airflow: AirflowConfig
    start_date: datetime = datetime(2020, 1, 1, tzinfo=UTC)

    def dag_id(self, name: str) -> str:
        """What a DAG of this pipeline is called."""
        return dag_id(name, self.pipeline if self.several else None)

    @property
    def common(self) -> dict[str, Any]:
        """Of all DAGs. One run at a time: two would plan or publish the same."""
        tags = ["writetime", self.pipeline]
        return {"start_date": self.start_date, "catchup": False, "max_active_runs": 1, "tags": tags}

    @property
    def defaults(self) -> dict[str, Any]:
        """Of all tasks. The operators find their pipeline in `config`, whatever the environment of who runs them names first."""
        page = page_of(self.pipeline) if self.several else ""
        on_failure = {"on_failure_callback": Notice(self.config, page)} if self.airflow.on_failure else {}
        pools = {"pool": self.airflow.pool, "spark_pool": self.airflow.spark_pool or self.airflow.pool}
        return {
            "owner": self.airflow.owner,
            "config": self.config,
            "page": page,
            "spark_connection": self.airflow.spark_connection,
            "execution_timeout": timedelta(hours=self.airflow.job_hours),
            **{kind: pool for kind, pool in pools.items() if pool},
            **on_failure,
        }

    @property
    def outbox(self) -> Asset:
        """The sealed batches that are to be published."""
        name = f"writetime_outbox__{self.pipeline}" if self.several else "writetime_outbox"
        return Asset(name, uri=f"writetime://{self.pipeline}/outbox")

    @property
    def tables(self) -> AssetAlias:
        """Stands for the tables that a batch has changed, which are not known before."""
        return AssetAlias(f"writetime_tables_{self.pipeline}")

    @property
    def publish_schedule(self) -> AssetOrTimeSchedule | list[Asset]:
        """On every seal; and by the clock besides, since Airflow may lose an asset's event."""
        if self.airflow.publish_fallback is None:
            return [self.outbox]
        return AssetOrTimeSchedule(timetable=CronTriggerTimetable(self.airflow.publish_fallback, timezone="UTC"), assets=[self.outbox])


def settings() -> Iterator[Settings]:
    """Those of each pipeline. Without WRITETIME_CONFIG the DAGs still load, under the name `unconfigured`, so that the UI can say what is
    missing."""
    known = _known()
    for pipeline in known.found:
        yield Settings(pipeline.name, str(pipeline.path), known.several, pipeline.config.airflow)
    if not known.found and not known.problems:
        yield Settings("unconfigured", "", False, AirflowConfig())


def tell_problems() -> None:
    """ConfigError with all that is wrong with any pipeline's YAML, if anything is: one that cannot be used has no DAGs until it is mended,
    one with a notifier that is not there runs, and would tell nobody."""
    known = _known()
    problems = [*known.problems, *(problem for pipeline in known.found for problem in _notifiers_that_lack(pipeline))]
    if problems:
        text = "\n" + "\n".join(f"* {problem}" for problem in problems)
        raise ConfigError(text, operation="read the pipelines", obj=os.environ.get(SETTING, ""))


def _notifiers_that_lack(pipeline: Pipeline) -> Iterator[str]:
    for wanted in pipeline.config.airflow.on_failure:
        try:
            notifier(wanted)
        except ConfigError as error:
            yield f"{pipeline.path}: airflow.on_failure: {error}. Until that is mended nobody is told by it; the pipeline's DAGs run."


def dag_id(name: str, pipeline: str | None) -> str:
    """What the DAG `name` of a pipeline is called; without a pipeline it is the only one's."""
    return name if pipeline is None else f"{name}__{pipeline}"


def page_of(pipeline: str) -> str:
    """Where the page of several pipelines shows this one, under its own prefix."""
    return f"pipeline/{pipeline}/"


def table_asset(pipeline: str, table: str) -> Asset:
    """What stands for the rows of a table (`keyspace.table`, whose names are letters, digits and `_`) that a pipeline keeps."""
    return Asset(uri=f"writetime://{pipeline}/{table.replace('.', '/')}")


def _known() -> Pipelines:
    return pipelines(os.environ.get(SETTING))
