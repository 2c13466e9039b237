"""Publish the outbox to Kafka after each seal, and every few minutes. Wiring only."""

from __future__ import annotations

from datetime import timedelta

from airflow.sdk import DAG, Param
from writetime_operators import PublishDueOperator, RejectedTableOperator, RejectedTablesOperator, SparkJobOperator
from writetime_settings import settings

RUNBOOK = """
### cdc_publish
Publishes the events of all sealed batches that are not in Kafka yet; `read_committed` consumers see each event once. `cdc_ingest` publishes
the batch that it seals, so this DAG finds nothing to do unless there is a backlog: after an error, or because it was paused.
Starts when `cdc_ingest` seals a batch, and every few minutes in case an asset event was lost. With `airflow.mode: session`, `cdc_stream`
publishes; this DAG has no schedule then, and runs only to look at all batches or to send a table again.

| red square | what it means | what to do |
|---|---|---|
| `due` | the bucket or the configuration cannot be read | see the message; fix it, then clear the task |
| `publish` | Kafka is unreachable or refuses the events; they stay in the changes tables, ingest continues | fix Kafka; the next run catches up |
| `table` | events of this table cannot be published (one is too large, or its topic or schema is refused); they wait in order, other tables continue | fix the cause; each run tries again |
"""

SINCE, AGAIN = "{{ params.since }}", "{{ params.again or '' }}"
LOOK = "{{ 'beginning' if params.again else params.since }}"

for pipeline in settings():
    with DAG(
        pipeline.dag_id("cdc_publish"),
        description="Change events from the outbox to Kafka",
        schedule=pipeline.publish_schedule,
        **pipeline.common,
        doc_md=RUNBOOK,
        params={
            "since": Param(
                "last",
                enum=["last", "beginning"],
                title="Look at",
                description="Batches sealed since the last run, or all batches (if that record was lost). Only events missing in Kafka are sent.",
            ),
            "again": Param(
                None,
                type=["null", "string"],
                pattern=r"^([^.\s]+\.[^.\s]+)?$",
                title="Send all of a table again",
                description="keyspace.table whose topic was lost or created again: all its events are sent again.",
            ),
        },
        default_args=pipeline.defaults | {"retries": 2, "retry_delay": timedelta(seconds=30)},
    ):
        due = PublishDueOperator(task_id="due", since=LOOK)
        publish = SparkJobOperator(
            task_id="publish", job="publish", arguments=[f"--since={SINCE}", f"--again={AGAIN}", "--request={{ run_id }}"]
        )
        waiting = RejectedTablesOperator(task_id="waiting_tables")
        table = RejectedTableOperator.partial(
            task_id="table", retries=0, map_index_template="{{ table }}", doc_md="Failed: this table's events wait. See the runbook."
        ).expand_kwargs(waiting.output)
        due >> publish >> waiting >> table
