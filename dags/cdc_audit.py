"""Compare the contents of the replicas' logs, by table, token range and minute. Wiring only."""

from __future__ import annotations

from airflow.sdk import DAG, Param
from writetime_operators import CheckJobOperator
from writetime_settings import BACKFILLS, settings

RUNBOOK = """
### cdc_audit
Reads the segments of some hours again and compares each replica's log with its expected contents, by captured table, token range and
minute: a mutation that one replica logged should be in the log of every owner of its token. Only nodes of the shipping datacenters are
expected to have logs. Changes nothing. Each gap is reported with its node and reason; **alarms** fail the task.

| reason | what it means | what to do |
|---|---|---|
| `not shipped yet` | the node's log is in the bucket up to the reported time | check its shipper; an alarm if hours have passed |
| `segment missing` | a segment between two others is not in the bucket | check whether it was lost with a disk or held no captured data: see `ledger/` and the node |
| `segment unreadable` | a segment in the bucket is damaged | see its failed task in `cdc_ingest` |
| `node down` | the node was down, and hints were not delivered or had expired | repair the node; `cdc_verify` shows whether rows are missing |
| `nothing before` | the node's first segment in the bucket is newer | nothing, if the node joined or began to ship at that time |
| `one node only` | only one node has it, as after a repair; no alarm | nothing |
| `not in its log` | the node was up and its log is in the bucket, but lacks it | dropped mutations: check the node's `MutationStage`, then repair |

The tables contain the data of the other replicas: a gap costs redundancy, not rows, unless every replica has one. In that case trigger with
*Read again*: token ranges with alarms, or with any gap, are read from the cluster at ALL (`cluster.cql`; every replica must be up), and the
next batch of `cdc_ingest` adds missing rows. The report contains their number. With more *Ranges*, fewer rows are read.
Report and chart: `audit/<cluster>/<time>.json` and `.svg` in the bucket.
"""

for pipeline in settings():
    with DAG(
        pipeline.dag_id("cdc_audit"),
        description="Compare the logs of the replicas",
        schedule=pipeline.airflow.audit_schedule,
        **pipeline.common | BACKFILLS,
        doc_md=RUNBOOK,
        default_args=pipeline.defaults | {"retries": 0},
        params={
            "start": Param(
                None,
                type=["null", "string"],
                format="date-time",
                title="From",
                description="First minute (UTC). Empty: a day and *Late* before now.",
            ),
            "end": Param(
                None,
                type=["null", "string"],
                format="date-time",
                title="To",
                description="End (UTC), exclusive. Empty: *Late* hours before now, so that hints have been delivered.",
            ),
            "late": Param(
                3, type="integer", minimum=0, maximum=168, title="Late", description="Maximum delay of hints and shippers, in hours."
            ),
            "ranges": Param(16, type="integer", minimum=1, maximum=1024, title="Ranges", description="Number of token ranges to compare."),
            "reread": Param(
                "none", enum=["none", "alarms", "gaps"], title="Read again", description="Ranges to read again from the cluster at ALL."
            ),
            "most": Param(64, type="integer", minimum=1, title="Most", description="Maximum number of token ranges to read again."),
        },
    ):
        CheckJobOperator(
            task_id="audit",
            job="audit",
            arguments=[
                "--end={{ params.end or (dag_run.run_after - macros.timedelta(hours=params.late)).isoformat() }}",
                "--start={{ params.start or (dag_run.run_after - macros.timedelta(hours=params.late + 24)).isoformat() }}",
                "--late={{ params.late }}",
                "--ranges={{ params.ranges }}",
                "--reread={{ params.reread }}",
                "--most={{ params.most }}",
            ],
        )
