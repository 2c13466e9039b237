"""Process uploaded segments: plan a batch, run it in Spark, archive its segments. Wiring only."""

from __future__ import annotations

from datetime import timedelta

from airflow.sdk import DAG
from writetime_operators import (
    ArchiveBatchOperator,
    ArchiveLastOperator,
    BatchJobOperator,
    CompletedHoursOperator,
    PlanBatchOperator,
    ReleaseOperator,
    add_squares,
)
from writetime_settings import settings

RUNBOOK = """
### cdc_ingest
Plans a batch over all incoming segments, runs it in Spark until it is sealed, publishes it, and archives the segments. Skips if there is
nothing to do. If `cdc_publish` is paused, nothing is published; what could not be published, `cdc_publish` publishes.
First it archives the last batch, if its run was interrupted, and releases held segments whose schema is known by now.

| red square | what it means | what to do |
|---|---|---|
| `archive_last` | a segment of the batch before could not be moved; no batch is planned until it is | the message names the object; clear the task, then `plan` |
| `release` | a held segment could not be checked, for example because the keystore is missing; batches run without it | fix what the message names; the next run tries again |
| `plan` | the bucket or the configuration cannot be read, or a rule in `columns` fits no column | see the message; fix it, then clear the task |
| `ingest` | the batch was not sealed; nothing is lost or duplicated | see the last error in the log, then clear the task: the same batch runs again |
| `archive` | a segment could not be moved | the message names the object; clear the task |
| `completed_hours` | the bucket cannot be read; asset events of completed hours wait | the next run creates them |
| `segment` | this segment is damaged, contains a table with an unknown schema, or its decryption key is missing; all other data was processed | upload a good copy under its name, ship a schema snapshot, or configure the keystore, then clear the task: the next batch reads it again |
| `table` | this table was rejected: a type is unknown, a rule in `columns` does not match, its name in the warehouse is in use, or the warehouse refuses writes; segments that contain it wait, all other data was processed | fix the cause, then clear the task: the next batch reads the segments that wait |

With `airflow.mode: session`, `cdc_stream` runs the batches, and this DAG has no schedule and skips.

Batches: `batches/<cluster>/<number>/` in the bucket. History of a segment: `ledger/<cluster>/<dc>/<node>/`.
"""

BATCH = "{{ ti.xcom_pull(task_ids='plan') }}"

for pipeline in settings():
    with DAG(
        pipeline.dag_id("cdc_ingest"),
        description="Process segments into change events and tables",
        schedule=pipeline.ingest_schedule,
        **pipeline.common,
        doc_md=RUNBOOK,
        default_args=pipeline.defaults | {"retries": 2, "retry_delay": timedelta(seconds=30)},
    ):
        archive_last = ArchiveLastOperator(task_id="archive_last", doc_md="Archive the last batch if its run was interrupted.")
        release = ReleaseOperator(task_id="release", doc_md="Release segments that waited for a schema that is known now.")
        # If one of them fails, batches still run: planning itself refuses while the last batch is not
        # archived.
        plan = PlanBatchOperator(task_id="plan", trigger_rule="all_done", doc_md="Plan the next batch, or return the open one again.")
        ingest = BatchJobOperator(
            task_id="ingest", job="ingest", batch=BATCH, publish_dag=pipeline.dag_id("cdc_publish"), outlets=[pipeline.outbox]
        )
        archive = ArchiveBatchOperator(task_id="archive", batch=BATCH, outlets=[pipeline.tables])
        # Hours are completed without new segments too. A failed `plan`, `ingest` or `archive` still fails the
        # run: this task then does not run.
        completed_hours = CompletedHoursOperator(
            task_id="completed_hours",
            trigger_rule="none_failed",
            outlets=[pipeline.complete],
            doc_md="Create an asset event for each hour for which all tables are complete.",
        )
        [archive_last, release] >> plan >> ingest >> archive >> completed_hours
        # In parallel to `archive`: bad segments are reported even if archiving fails.
        ingest >> add_squares(BATCH)
