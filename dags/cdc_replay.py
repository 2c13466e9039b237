"""Process the archived segments of some hours again. Wiring only; works with `airflow backfill create` and
from the UI."""

from __future__ import annotations

from datetime import timedelta

from airflow.sdk import DAG, CronDataIntervalTimetable, Param
from writetime_operators import ArchiveBatchOperator, BatchJobOperator, OutcomeOperator, PlanReplayOperator
from writetime_settings import BACKFILLS, settings

RUNBOOK = """
### cdc_replay
Merges the archived segments of a data interval into the state again, in a batch of its own. Rows that were merged before do not change
and are not published twice; missing rows are added.

* From a shell: `airflow backfill create --dag-id cdc_replay --from-date 2026-01-31T10:00Z --to-date 2026-01-31T12:00Z --reprocess-behavior completed`
* From the UI, the API or `airflow dags trigger`: give `start` and `end`, at most 31 days; the whole hours around them are replayed. Without
  a logical date there is no data interval, and both are required.
* **To compare**: with a `namespace`, for example `check`, the rows are written to a shadow namespace (`<keyspace>__check`,
  `<keyspace>__check__changes`) that contains only these hours. Nothing is published, and the tables, state and batches of the pipeline do not
  change. Hours before the purge horizon can be replayed only this way. Several runs into one namespace add up. How to compare and how to
  remove it: `docs/runbook.md`.

| red square | what it means | what to do |
|---|---|---|
| `plan` | `start` or `end` is missing, or not before the other; another batch was open for a day; the hours are older than the archive or the purge horizon; or the bucket cannot be read | see the message; times are corrected in a new run |
| `ingest` | the batch was not sealed; nothing is lost or duplicated | see the message, then clear the task: the same batch runs again |
| `archive` | the ledger could not be written | the message names the object; clear the task |
| `outcome` | some data of these hours could not be read and was left out; all other rows are merged | fix the cause, then replay the hours again |

The hourly schedule does nothing: a backfill requires a schedule. Because of these empty runs a backfill needs
`--reprocess-behavior completed` (in the UI: All Runs); otherwise Airflow skips their hours. `plan` waits while another batch is open.
"""

BATCH = "{{ ti.xcom_pull(task_ids='plan') }}"
NAMESPACE = "{{ params.namespace or '' }}"

for pipeline in settings():
    with DAG(
        pipeline.dag_id("cdc_replay"),
        description="Process archived segments again",
        schedule=CronDataIntervalTimetable("0 * * * *", timezone="UTC"),
        **pipeline.common | BACKFILLS,
        doc_md=RUNBOOK,
        default_args=pipeline.defaults | {"retries": 2, "retry_delay": timedelta(seconds=30)},
        params={
            "start": Param(
                None,
                type=["null", "string"],
                format="date-time",
                title="From",
                description="First hour (UTC). Empty: start of the data interval, if the run has a logical date.",
            ),
            "end": Param(
                None,
                type=["null", "string"],
                format="date-time",
                title="To",
                description="End (UTC), exclusive. Empty: end of the data interval, if the run has a logical date.",
            ),
            "namespace": Param(
                None,
                type=["null", "string"],
                pattern="^[a-z][a-z0-9]*(_[a-z0-9]+)*$",
                title="Namespace",
                description="Empty: the live tables. Otherwise the suffix of the shadow namespace.",
            ),
        },
    ):
        plan = PlanReplayOperator(
            task_id="plan",
            start="{{ params.start or (data_interval_start | default('', true)) }}",
            end="{{ params.end or (data_interval_end | default('', true)) }}",
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
