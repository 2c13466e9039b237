"""Read tables from the cluster while they are written to. Wiring only."""

from __future__ import annotations

from datetime import timedelta

from airflow.sdk import DAG, CronTriggerTimetable, Param
from writetime_operators import PlanBootstrapOperator, SparkJobOperator
from writetime_settings import settings

RUNBOOK = """
### cdc_bootstrap
Reads tables from the cluster and writes rows that are missing here to the bucket, as frames; the next batch of `cdc_ingest` merges them.
Writes and ingest continue meanwhile.

* **Automatically**, every ten minutes: tables for which cdc was enabled (`snapshot.mode`: initial, always, never), and incomplete rows that
  were changed during a reading (list elements, counters, rows without columns).
* **Manually**: trigger with `table`, and with `token_range` for a part of it. Reading a table again adds nothing where it is equal, and
  removes rows that were deleted while deletions were not captured.

| red square | what it means | what to do |
|---|---|---|
| `plan` | the bucket or the configuration cannot be read, or a token range has no table | see the message; fix it, then clear the task |
| `read` | a table could not be read completely; other tables and finished ranges are not read again | at consistency ALL every replica must be up: start the node, or set another `snapshot.consistency` (then rows missing in the cluster are not deleted here); clear the task: it continues where it stopped |

**Progress:** `writetime bootstrap --config … --status`, or `cat bootstrap/<cluster>/<keyspace>.<table>/<run>.json` in the bucket.

**Limit the load on the cluster:** `snapshot.rows_per_second`, `snapshot.readers`. Set WRITETIME_CQL_PASSWORD on all workers.
"""

TABLE, PART = "{{ params.table or '' }}", "{{ params.token_range or '' }}"

for pipeline in settings():
    with DAG(
        pipeline.dag_id("cdc_bootstrap"),
        description="Read tables from the cluster",
        schedule=CronTriggerTimetable(pipeline.airflow.bootstrap_schedule, timezone="UTC") if pipeline.airflow.bootstrap_schedule else None,
        **pipeline.common,
        doc_md=RUNBOOK,
        default_args=pipeline.defaults | {"retries": 3, "retry_delay": timedelta(minutes=1)},
        params={
            "table": Param(
                None,
                type=["null", "string"],
                pattern=r"^([^.\s]+\.[^.\s]+)?$",
                title="Table",
                description="keyspace.table. Empty: the tables that are due.",
            ),
            "token_range": Param(
                None,
                type=["null", "string"],
                pattern=r"^(-?\d*:-?\d*)?$",
                title="Token range",
                description="A:B: only tokens > A and <= B of that table. Empty: all tokens.",
            ),
        },
    ):
        plan = PlanBootstrapOperator(task_id="plan", table=TABLE, part=PART)
        read = SparkJobOperator(
            task_id="read",
            job="bootstrap",
            arguments=[f"--table={TABLE}", f"--token-range={PART}", "--due", "--touched"],
        )
        plan >> read
