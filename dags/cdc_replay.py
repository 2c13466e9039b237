"""Fold the archived segments of some hours again. Wiring only; works with `airflow backfill create` and from the UI."""

from __future__ import annotations

from datetime import timedelta

from airflow.sdk import DAG, CronDataIntervalTimetable, Param
from writetime_operators import ArchiveBatchOperator, BatchJobOperator, OutcomeOperator, PlanReplayOperator
from writetime_settings import settings

RUNBOOK = """
### cdc_replay
Folds the archived segments of a data interval into the state again, as a batch of its own. What the tables already hold changes
nothing and is published by nobody twice; what was missing comes in.

* From a shell: `airflow backfill create --dag-id cdc_replay --from-date 2026-01-31T10:00 --to-date 2026-01-31T12:00 --reprocess-behavior completed`
* From the UI: trigger with `start` and `end`.
* **To compare**: with `namespace`, say `check`, the rows go into tables of their own (`<keyspace>__check`, `<keyspace>__check__changes`), made
  of these hours alone. Nothing is published, and tables, state and batches of the pipeline stay as they are. Hours before the purge horizon
  go this way only. Several runs into one namespace add up. What to compare with, and how to remove it: `docs/runbook.md`.

| red square | what it means | what to do |
|---|---|---|
| `plan` | for a day another batch was open, the hours are older than what the archive or the state still knows, or the bucket cannot be read | the message says which |
| `ingest` | the batch did not reach its seal; nothing is lost or doubled | read the message, clear the task: the very same batch runs again |
| `archive` | the ledger could not be written | the message names the object; clear the task |
| `outcome` | something of these hours could not be used and was left out; all else is in | mend what the message says, then replay the hours again |

Its own hourly schedule does nothing: it is there because a backfill needs one. Those empty runs are why a backfill has to say
`--reprocess-behavior completed` (in the UI: All Runs): Airflow would pass over their hours. `plan` waits for its turn while another batch is open.
"""

BATCH = "{{ ti.xcom_pull(task_ids='plan') }}"
NAMESPACE = "{{ params.namespace or '' }}"

for pipeline in settings():
    with DAG(
        pipeline.dag_id("cdc_replay"),
        description="Archived segments of some hours, once more",
        schedule=CronDataIntervalTimetable("0 * * * *", timezone="UTC"),
        **pipeline.common,
        doc_md=RUNBOOK,
        default_args=pipeline.defaults | {"retries": 2, "retry_delay": timedelta(seconds=30)},
        params={
            "start": Param(
                None, type=["null", "string"], format="date-time", title="From", description="First hour (UTC). Empty: the run's."
            ),
            "end": Param(
                None, type=["null", "string"], format="date-time", title="To", description="End (UTC), excluded. Empty: the run's."
            ),
            "namespace": Param(
                None,
                type=["null", "string"],
                pattern="^[a-z][a-z0-9]*(_[a-z0-9]+)*$",
                title="Namespace",
                description="Empty: the live tables. Else tables of their own, to be compared, are called after it.",
            ),
        },
    ):
        plan = PlanReplayOperator(
            task_id="plan",
            start="{{ params.start or data_interval_start.isoformat() }}",
            end="{{ params.end or data_interval_end.isoformat() }}",
            namespace=NAMESPACE,
        )
        ingest = BatchJobOperator(task_id="ingest", job="ingest", batch=BATCH, namespace=NAMESPACE, outlets=[pipeline.outbox])
        archive = ArchiveBatchOperator(task_id="archive", batch=BATCH, namespace=NAMESPACE, outlets=[pipeline.tables])
        # A replay into a namespace skips `archive`.
        outcome = OutcomeOperator(
            task_id="outcome", batch=BATCH, namespace=NAMESPACE, retries=0, trigger_rule="none_failed_min_one_success"
        )
        plan >> ingest >> archive >> outcome
        ingest >> outcome
