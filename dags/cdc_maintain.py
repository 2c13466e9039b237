"""Purge the state, maintain the warehouse tables and pack the archive, once a day. Wiring only."""

from __future__ import annotations

from datetime import timedelta

from airflow.sdk import DAG
from writetime_operators import ArchiveBatchOperator, BatchJobOperator, PlanMaintainOperator, SparkJobOperator
from writetime_settings import settings

RUNBOOK = """
### cdc_maintain
Purges tombstones and expired cells that are older than their table's gc_grace and than a day from the state, as compaction does in
Cassandra. This is a batch of its own kind: it reads no segments and changes no row. Its seal records the purge horizon (`horizon`):
`cdc_replay` can replay older segments only into a shadow namespace, and leaves out rows that a purged tombstone may have deleted.

Then the warehouse tables: small files are compacted, deletes applied, and snapshots older than `warehouse.keep_snapshots_days` expired. The
task logs the files of each table before and after. No batch is ingested meanwhile. (A session merges small files by itself between two runs,
after 40 batches with events of a table.)

Finally the archive: segments older than `archive.compress_after_days` are packed, segments older than `archive.keep_days` deleted, and their
records pruned, for an hour at most. Batches continue meanwhile. `writetime status` shows the progress and the bytes before
and after.

| red square | what it means | what to do |
|---|---|---|
| `plan` | another batch was open for a day, or the bucket cannot be read | see the message; fix it, then clear the task |
| `maintain` | the batch was not sealed; nothing is lost | clear the task: the same batch runs again; or wait: `cdc_ingest` finishes it ten minutes after it was planned |
| `shelve` | some segments could not be packed or deleted; the log lists them with the reason | fix the cause; the next run tries again |
"""

BATCH = "{{ ti.xcom_pull(task_ids='plan') }}"

for pipeline in settings():
    with DAG(
        pipeline.dag_id("cdc_maintain"),
        description="Purge the state, maintain the warehouse, pack the archive",
        schedule=pipeline.airflow.maintain_schedule,
        **pipeline.common,
        doc_md=RUNBOOK,
        default_args=pipeline.defaults | {"retries": 2, "retry_delay": timedelta(seconds=30)},
    ):
        plan = PlanMaintainOperator(task_id="plan")
        maintain = BatchJobOperator(task_id="maintain", job="maintain", batch=BATCH)
        archive = ArchiveBatchOperator(task_id="archive", batch=BATCH)
        # It needs no batch, so it also runs while there is no state to maintain.
        archive_packing = SparkJobOperator(task_id="shelve", job="pack_archive", trigger_rule="none_failed")
        plan >> maintain >> archive >> archive_packing
