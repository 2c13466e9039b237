"""Report what the batches of a session left for people: failed segments, rejected tables, and asset events.
Wiring only."""

from __future__ import annotations

from datetime import timedelta

from airflow.sdk import DAG, Param
from writetime_operators import (
    CompletedHoursOperator,
    RejectedTableOperator,
    RejectedTablesOperator,
    add_squares,
)
from writetime_session import ChangedTablesOperator, PublishedOperator
from writetime_settings import settings

RUNBOOK = """
### cdc_report
Triggered by `cdc_stream` when a batch has failed segments or rejected tables, when events cannot be published, when an hour is complete,
and every few minutes for the asset events of changed tables. To look at an earlier batch again, trigger it with its number.

| red square | what it means | what to do |
|---|---|---|
| `segment` | this segment is damaged, contains a table with an unknown schema, or its decryption key is missing; all other data was processed | upload a good copy under its name, ship a schema snapshot, or configure the keystore, then clear the task: the next batch reads it again |
| `table` | this table was rejected: a type is unknown, a rule in `columns` does not match, its name in the warehouse is in use, or the warehouse refuses writes; segments that contain it wait | fix the cause, then clear the task: the next batch reads the segments that wait |
| `published` | Kafka is unreachable or refuses the events; they stay in the changes tables, ingest continues | fix Kafka; the session tries again by itself; then clear the task |
| `waiting_table` | events of this table cannot be published (one is too large, or its topic or schema is refused); they wait in order, other tables continue | fix the cause; the session tries again every minute; then clear the task |
"""

BATCH = "{{ params.batch }}"

for pipeline in settings():
    with DAG(
        pipeline.dag_id("cdc_report"),
        description="Red squares and asset events of a session's batches",
        schedule=None,
        **pipeline.common,
        doc_md=RUNBOOK,
        params={
            "batch": Param(0, type="integer", minimum=0, title="Batch", description="The batch to report; 0: none."),
            "changed_since": Param(
                0, type="integer", minimum=0, title="Changed since", description="The batch after which tables changed."
            ),
            "changed_upto": Param(0, type="integer", minimum=0, title="Changed up to", description="The last batch that changed tables."),
        },
        default_args=pipeline.defaults | {"retries": 2, "retry_delay": timedelta(seconds=30)},
    ):
        add_squares(BATCH)
        waiting = RejectedTablesOperator(task_id="waiting_tables")
        waiting_table = RejectedTableOperator.partial(
            task_id="waiting_table",
            retries=0,
            map_index_template="{{ table }}",
            doc_md="Failed: this table's events wait. See the runbook.",
        ).expand_kwargs(waiting.output)
        PublishedOperator(task_id="published", retries=0)
        since, upto = "{{ params.changed_since }}", "{{ params.changed_upto }}"
        ChangedTablesOperator(task_id="changed_tables", since=since, upto=upto, outlets=[pipeline.tables])
        CompletedHoursOperator(task_id="completed_hours", outlets=[pipeline.complete], doc_md="An asset event for each completed hour.")
        waiting >> waiting_table
