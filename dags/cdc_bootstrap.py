"""Read tables from the ring, while they are written to. Wiring only."""

from __future__ import annotations

from datetime import timedelta

from airflow.sdk import DAG, CronTriggerTimetable, Param
from writetime_operators import PlanBootstrapOperator, SparkJobOperator
from writetime_settings import settings

RUNBOOK = """
### cdc_bootstrap
Reads tables from the ring and puts what the tables here do not have into the bucket, as frames; the next batch of `cdc_ingest` folds them in.
Nothing has to stop meanwhile, neither writes nor ingest.

* **By itself**, every ten minutes: tables whose cdc was just switched on (`snapshot.mode`: initial, always, never), and rows that a log has
  touched of which a reading could not know all (elements of lists, counters, rows without a column).
* **By hand**: trigger with `table`, and `token_range` for a part. Again whenever tables and ring are to be compared: a second reading of
  what is equal adds nothing, and rows that were deleted while nobody captured it go.

| red square | what it means | what to do |
|---|---|---|
| `plan` | the bucket or the configuration cannot be read | the message says which; clear when mended |
| `read` | a table could not be read to its end; others were, and finished ranges are not read again | at consistency ALL every replica has to be up: start the node, or choose another `snapshot.consistency` (then what the ring does not show is not deleted here); clear the task, it goes on where it was |

**How far is it?** `writetime bootstrap --config … --status`, or `cat bootstrap/<cluster>/<keyspace>.<table>/<run>.json` in the bucket.

**Too much for the ring:** `snapshot.rows_per_second`, `snapshot.readers`. The password comes from WRITETIME_CQL_PASSWORD, on all workers.
"""

for pipeline in settings():
    with DAG(
        pipeline.dag_id("cdc_bootstrap"),
        description="Tables of the ring, read while they live",
        schedule=CronTriggerTimetable(pipeline.airflow.bootstrap_schedule, timezone="UTC") if pipeline.airflow.bootstrap_schedule else None,
        **pipeline.common,
        doc_md=RUNBOOK,
        default_args=pipeline.defaults | {"retries": 3, "retry_delay": timedelta(minutes=1)},
        params={
            "table": Param(
                "",
                type="string",
                pattern=r"^([^.\s]+\.[^.\s]+)?$",
                title="Table",
                description="keyspace.table. Empty: the tables that are due.",
            ),
            "token_range": Param(
                "",
                type="string",
                pattern=r"^(-?\d*:-?\d*)?$",
                title="Token range",
                description="A:B: only tokens > A and <= B of that table. Empty: the whole ring.",
            ),
        },
    ):
        plan = PlanBootstrapOperator(task_id="plan", table="{{ params.table }}")
        read = SparkJobOperator(
            task_id="read",
            job="bootstrap",
            arguments=["--table", "{{ params.table }}", "--token-range={{ params.token_range }}", "--due", "--touched"],
        )
        plan >> read
