"""What the DAGs need to know while they are parsed: names and schedules, from the pipeline's YAML. No store is opened here."""

from __future__ import annotations

import os
from dataclasses import dataclass
from datetime import UTC, datetime

from airflow.sdk import Asset, AssetAlias, AssetOrTimeSchedule, CronTriggerTimetable

from writetime.config import AirflowConfig, load


@dataclass(frozen=True, slots=True)
class Settings:
    """Parse-time facts of the pipeline that WRITETIME_CONFIG names."""

    pipeline: str
    owner: str
    ingest_schedule: str | None
    bootstrap_schedule: str | None
    maintain_schedule: str | None
    verify_schedule: str | None
    audit_schedule: str | None
    publish_schedule: AssetOrTimeSchedule | list[Asset]
    outbox: Asset
    tables: AssetAlias
    start_date: datetime = datetime(2020, 1, 1, tzinfo=UTC)


def read_settings() -> Settings:
    """Without WRITETIME_CONFIG the DAGs still load, under the name `unconfigured`, so that the UI can say what is missing."""
    path = os.environ.get("WRITETIME_CONFIG")
    config = load(path) if path else None
    airflow = config.airflow if config else AirflowConfig()
    pipeline = config.pipeline if config else "unconfigured"
    outbox = Asset("writetime_outbox", uri=f"writetime://{pipeline}/outbox")
    return Settings(
        pipeline=pipeline,
        owner=airflow.owner,
        ingest_schedule=airflow.ingest_schedule,
        bootstrap_schedule=airflow.bootstrap_schedule,
        maintain_schedule=airflow.maintain_schedule,
        verify_schedule=airflow.verify_schedule,
        audit_schedule=airflow.audit_schedule,
        publish_schedule=publish_schedule(outbox, airflow.publish_fallback),
        outbox=outbox,
        tables=AssetAlias(f"writetime_tables_{pipeline}"),
    )


def table_asset(pipeline: str, table: str) -> Asset:
    """What stands for the rows of a table (`keyspace.table`, whose names are letters, digits and `_`) that a pipeline keeps."""
    return Asset(uri=f"writetime://{pipeline}/{table.replace('.', '/')}")


def publish_schedule(outbox: Asset, fallback: str | None) -> AssetOrTimeSchedule | list[Asset]:
    """On every seal; and by the clock besides, since Airflow may lose an asset's event."""
    if fallback is None:
        return [outbox]
    return AssetOrTimeSchedule(timetable=CronTriggerTimetable(fallback, timezone="UTC"), assets=[outbox])


settings = read_settings()
