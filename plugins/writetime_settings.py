"""What the DAGs need to know while they are parsed: names and schedules, from the pipeline's YAML. No store is opened here."""

from __future__ import annotations

import os
from dataclasses import dataclass
from datetime import UTC, datetime

from writetime.config import AirflowConfig, load


@dataclass(frozen=True, slots=True)
class Settings:
    """Parse-time facts of the pipeline that WRITETIME_CONFIG names."""

    pipeline: str
    owner: str
    ingest_schedule: str | None
    publish_fallback: str
    start_date: datetime = datetime(2020, 1, 1, tzinfo=UTC)


def read_settings() -> Settings:
    """Without WRITETIME_CONFIG the DAGs still load, under the name `unconfigured`, so that the UI can say what is missing."""
    path = os.environ.get("WRITETIME_CONFIG")
    config = load(path) if path else None
    airflow = config.airflow if config else AirflowConfig()
    return Settings(
        pipeline=config.pipeline if config else "unconfigured",
        owner=airflow.owner,
        ingest_schedule=airflow.ingest_schedule,
        publish_fallback=airflow.publish_fallback,
    )


settings = read_settings()
