"""Drop from the state what may be forgotten, tidy the warehouse, pack the archive, once a day. Wiring only."""

from __future__ import annotations

from datetime import timedelta

from airflow.sdk import DAG
from writetime_operators import ArchiveBatchOperator, BatchJobOperator, PlanMaintainOperator, SparkJobOperator
from writetime_settings import settings

RUNBOOK = """
### cdc_maintain
Purges tombstones and expired cells from the state, when they are older than their table's gc_grace and than a day, as compaction does in
the ring. A batch of its own kind, between two of `cdc_ingest`: it takes nothing in, and no row shows differently for it. The seal says
how far it went (`horizon`): `cdc_replay` takes what is older only into a namespace of its own, and leaves out what the purged may have
deleted.

Then the warehouse: small files of each table are put together, deletes applied, and snapshots older than `warehouse.keep_snapshots_days` let
go. The task's log tells of each table what it lay in before and after (`table tidied`). No batch is ingested meanwhile.

At last the archive: segments older than `archive.compress_after_days` are packed, those older than `archive.keep_days` let go, and what is
noted of them pruned, for `archive.minutes_per_run` at most. Batches go on meanwhile. `writetime status` tells how far that is, and the bytes
before and after.

| red square | what it means | what to do |
|---|---|---|
| `plan` | for a day another batch was open (it waits for its turn), or the bucket cannot be read | the message says which; clear when mended |
| `maintain` | the batch did not reach its seal; nothing is lost | clear the task: the very same batch runs again; or leave it to `cdc_ingest`, which finishes it ten minutes after it was begun |
| `shelve` | segments stay as they are; its log names them, and why | mend what it says; the next run tries again |
"""

BATCH = "{{ ti.xcom_pull(task_ids='plan') }}"

for pipeline in settings():
    with DAG(
        pipeline.dag_id("cdc_maintain"),
        description="Purge what the state may forget, tidy the warehouse, pack the archive",
        schedule=pipeline.airflow.maintain_schedule,
        **pipeline.common,
        doc_md=RUNBOOK,
        default_args=pipeline.defaults | {"retries": 2, "retry_delay": timedelta(seconds=30)},
    ):
        plan = PlanMaintainOperator(task_id="plan")
        maintain = BatchJobOperator(task_id="maintain", job="maintain", batch=BATCH)
        archive = ArchiveBatchOperator(task_id="archive", batch=BATCH)
        # It needs no batch: also where there is no state to maintain.
        shelve = SparkJobOperator(task_id="shelve", job="shelve", trigger_rule="none_failed")
        plan >> maintain >> archive >> shelve
