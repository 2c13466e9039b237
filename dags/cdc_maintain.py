"""Drop from the state what may be forgotten, and tidy the warehouse, once a day. Wiring only."""

from __future__ import annotations

from datetime import timedelta

from airflow.sdk import DAG
from writetime_operators import ArchiveBatchOperator, PlanMaintainOperator, SparkJobOperator
from writetime_settings import settings

RUNBOOK = """
### cdc_maintain
Purges tombstones and expired cells from the state, when they are older than their table's gc_grace and than a day, as compaction does in
the ring. A batch of its own kind, between two of `cdc_ingest`: it takes nothing in, and no row shows differently for it. The seal says
how far it went (`horizon`): `cdc_replay` refuses what is older, and leaves out what the purged may have deleted.

Then the warehouse: small files of each table are put together, deletes applied, and snapshots older than `warehouse.keep_snapshots_days` let
go. The task's log tells of each table what it lay in before and after (`table tidied`). No batch is ingested meanwhile.

| red square | what it means | what to do |
|---|---|---|
| `plan` | another batch is open (it is retried), or the bucket cannot be read | the message says which; clear when mended |
| `maintain` | the batch did not reach its seal; nothing is lost | clear the task: the very same batch runs again; or leave it to `cdc_ingest`, which finishes it too |
"""

BATCH = "{{ ti.xcom_pull(task_ids='plan') }}"

for pipeline in settings():
    with DAG(
        pipeline.dag_id("cdc_maintain"),
        description="Purge what the state may forget, tidy the warehouse",
        schedule=pipeline.airflow.maintain_schedule,
        start_date=pipeline.start_date,
        catchup=False,
        max_active_runs=1,
        doc_md=RUNBOOK,
        tags=pipeline.tags,
        default_args=pipeline.defaults | {"retries": 2, "retry_delay": timedelta(seconds=30)},
    ):
        plan = PlanMaintainOperator(task_id="plan", retries=20, retry_delay=timedelta(seconds=15))
        maintain = SparkJobOperator(task_id="maintain", job="maintain", arguments=["--batch", BATCH])
        archive = ArchiveBatchOperator(task_id="archive", batch=BATCH)
        plan >> maintain >> archive
