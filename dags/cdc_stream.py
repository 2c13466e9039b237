"""Run batch after batch in one warm Spark application (`airflow.mode: session`). Wiring only."""

from __future__ import annotations

from datetime import timedelta

from airflow.sdk import DAG
from writetime_session import SessionOperator
from writetime_settings import settings

RUNBOOK = """
### cdc_stream
Keeps one Spark application that plans, ingests, archives and publishes batch after batch, for `airflow.session_minutes`; then the next run
starts. Runs with `airflow.mode: session`; in mode `batch`, `cdc_ingest` and `cdc_publish` do the same, with a Spark start for each batch.

Segments and tables that need a person are red squares in `cdc_report`, which this DAG triggers when there is something to report.
A batch is the same in both modes: to change the mode, change the YAML. The session ends after its batch.

| red square | what it means | what to do |
|---|---|---|
| `session` | a batch failed several times, or made no progress for ten minutes; nothing is lost or duplicated | see the last error in the log. The next session starts by itself, after a pause of up to five minutes, and runs the same batch again |

`… holds the lease`: another session of the pipeline runs (docs/runbook.md, *A session holds the lease*). A session ends within seconds
of its task, also of one that was killed; then no failure is reported, and the next session logs that the last one was interrupted.

To stop it: pause the DAG and mark its run as failed. The session ends at once, and its batch runs again later.
"""

for pipeline in settings():
    with DAG(
        pipeline.dag_id("cdc_stream"),
        description="Process segments and publish them, batch after batch in one Spark application",
        schedule="@continuous" if pipeline.is_session else None,
        **pipeline.common,
        doc_md=RUNBOOK,
        # The pause after a failure is longer than that of a retry, and survives the run.
        default_args=pipeline.defaults | {"retries": 0, "execution_timeout": timedelta(minutes=pipeline.airflow.session_minutes + 60)},
    ):
        # It runs all the time, so it takes no slot of the pools in which jobs wait for each other.
        SessionOperator(task_id="session", report_dag=pipeline.dag_id("cdc_report"), pool="default_pool", spark_pool=None)
