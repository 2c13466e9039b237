"""Drain the outbox to Kafka whenever a batch was sealed, and every few minutes besides. Wiring only."""

from __future__ import annotations

from datetime import timedelta

from airflow.sdk import DAG, Param
from writetime_operators import PublishDueOperator, SparkJobOperator, WaitingTableOperator, WaitingTablesOperator
from writetime_settings import settings

RUNBOOK = """
### cdc_publish
Sends the events of all sealed batches that Kafka does not hold yet; each event once for `read_committed` consumers.
Starts when `cdc_ingest` has sealed a batch, and every few minutes in case that hint was lost.

| red square | what it means | what to do |
|---|---|---|
| `due` | the bucket or the configuration cannot be read | the message says which; clear when mended |
| `publish` | Kafka cannot be reached or refuses; events wait in the changes tables, ingest goes on | mend Kafka; the next run catches up by itself |
| `table` | events of this table cannot be sent (one is too large, its topic or schema is refused); they wait in order, others go on | mend what the message says; each run tries again, so the next one is green |
"""

SINCE, AGAIN = "{{ params.since }}", "{{ params.again }}"
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
                description="What was sealed since the last run, or everything (after the note of it was lost). Kafka says what it lacks.",
            ),
            "again": Param(
                "",
                type="string",
                pattern=r"^([^.\s]+\.[^.\s]+)?$",
                title="Send all of a table again",
                description="keyspace.table whose topic was lost or made anew: all its events go out again, whatever Kafka says it holds.",
            ),
        },
        default_args=pipeline.defaults | {"retries": 2, "retry_delay": timedelta(seconds=30)},
    ):
        due = PublishDueOperator(task_id="due", since=LOOK)
        publish = SparkJobOperator(task_id="publish", job="publish", arguments=["--since", SINCE, "--again", AGAIN])
        waiting = WaitingTablesOperator(task_id="waiting_tables")
        table = WaitingTableOperator.partial(
            task_id="table", retries=0, map_index_template="{{ table }}", doc_md="Red: this table's events wait. See the runbook."
        ).expand_kwargs(waiting.output)
        due >> publish >> waiting >> table
