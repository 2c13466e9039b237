"""Take in what the shippers have uploaded: plan a batch, run it in Spark, archive its segments. Wiring only."""

from __future__ import annotations

from datetime import timedelta

from airflow.sdk import DAG
from writetime_operators import (
    ArchiveBatchOperator,
    BatchJobOperator,
    FailedSegmentsOperator,
    FailedTablesOperator,
    PlanBatchOperator,
    SegmentOperator,
    TableOperator,
)
from writetime_settings import settings

RUNBOOK = """
### cdc_ingest
Plans a batch over all segments that have come in, runs it in Spark to its seal, archives the segments. Nothing to do: skipped.

| red square | what it means | what to do |
|---|---|---|
| `plan` | the bucket or the configuration cannot be read | the message says which; clear when mended |
| `ingest` | the batch did not reach its seal; nothing is lost or doubled | read the log's last error, clear the task: the very same batch runs again |
| `archive` | a segment could not be moved | the message names the object; clear the task |
| `segment` | this one file is damaged, holds a table whose schema is unknown, or is encrypted and its key lacks; all else has gone on | put a good copy at its name in the bucket, ship a schema snapshot, or name the keystore in the configuration, then clear the square: it comes in with the next batch |
| `table` | the rows of this table cannot be shown: a type is unknown, a rule of `columns` does not fit, its name in the warehouse is somebody else's, or the warehouse refuses to be written; what segments hold of it waits, all else has gone on | mend what the message says, then clear the square: what waits comes in with the next batch |

Batches: `batches/<cluster>/<number>/` in the bucket. One segment's story: `ledger/<cluster>/<dc>/<node>/`.
"""

BATCH = "{{ ti.xcom_pull(task_ids='plan') }}"

for pipeline in settings():
    with DAG(
        pipeline.dag_id("cdc_ingest"),
        description="Segments from the ring into changes and tables",
        schedule=pipeline.airflow.ingest_schedule,
        **pipeline.common,
        doc_md=RUNBOOK,
        default_args=pipeline.defaults | {"retries": 2, "retry_delay": timedelta(seconds=30)},
    ):
        plan = PlanBatchOperator(task_id="plan", doc_md="Freeze the next batch's input, or hand out an unsealed one again.")
        ingest = BatchJobOperator(task_id="ingest", job="ingest", batch=BATCH, outlets=[pipeline.outbox])
        archive = ArchiveBatchOperator(task_id="archive", batch=BATCH, outlets=[pipeline.tables])
        failed = FailedSegmentsOperator(task_id="failed_segments", batch=BATCH)
        segment = SegmentOperator.partial(
            task_id="segment", retries=0, map_index_template="{{ segment }}", doc_md="Red: this file needs a person. See the runbook."
        ).expand_kwargs(failed.output)
        refused = FailedTablesOperator(task_id="failed_tables", batch=BATCH)
        table = TableOperator.partial(
            task_id="table", retries=0, map_index_template="{{ table }}", doc_md="Red: this table needs a person. See the runbook."
        ).expand_kwargs(refused.output)
        plan >> ingest >> archive
        # Beside it: people are told of bad files although another one could not be moved.
        ingest >> [failed, refused]
        failed >> segment
        refused >> table
