"""Compare what the replicas' logs held, by table, token range and minute. Wiring only."""

from __future__ import annotations

from airflow.sdk import DAG, Param
from writetime_operators import CheckJobOperator
from writetime_settings import settings

RUNBOOK = """
### cdc_audit
Reads the segments of some hours again, and compares what each replica's log held of every captured table, token range and minute with what
it ought to have held: what any replica held, each owner of the tokens should have. Only nodes of the shipping datacenters are expected to
have logged anything. Changes nothing. A gap is told with its node and its reason; **alarms** make the task red.

| reason | what it means | what to do |
|---|---|---|
| `not shipped yet` | the node's log is here up to the time that is told | look at its shipper; an alarm if hours have passed |
| `segment missing` | between two segments that are here one is not | was it lost with a disk, or did nothing captured lie in it? Look at `ledger/` and at the node |
| `segment unreadable` | a segment is here and damaged | its red square in `cdc_ingest` |
| `node down` | the node was down, and hints have not come, or had expired | repair the node; `cdc_verify` tells whether tables lack anything |
| `nothing before` | the node's first segment here is younger | nothing, if that is when it joined or began to ship |
| `one node only` | one node held it, as a repair writes it; no alarm | nothing |
| `not in its log` | the node was up, its log is here, and does not hold it | dropped mutations: look at the node's `MutationStage`; then repair |

What the others held is in the tables all the same: a gap costs redundancy, not rows, unless every replica has one. Then trigger with
*Read again*: token ranges with alarms, or any gap, are read from the ring at ALL (`cluster.cql`; every replica has to be up), and what the
tables lack comes in with the next batch of `cdc_ingest`. The report says how many rows were news. More *Ranges* make less to read.
Report and picture: `audit/<cluster>/<time>.json` and `.svg` in the bucket.
"""

for pipeline in settings():
    with DAG(
        pipeline.dag_id("cdc_audit"),
        description="What each replica's log held, compared",
        schedule=pipeline.airflow.audit_schedule,
        **pipeline.common,
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
                description="End (UTC), excluded. Empty: as many hours before now as *Late* says, so that hints have come.",
            ),
            "late": Param(3, type="integer", minimum=0, maximum=168, title="Late", description="Hours that hints and shippers may take."),
            "ranges": Param(16, type="integer", minimum=1, maximum=1024, title="Ranges", description="Token ranges that are told apart."),
            "reread": Param(
                "none", enum=["none", "alarms", "gaps"], title="Read again", description="Ranges to be read again from the ring, at ALL."
            ),
            "most": Param(64, type="integer", minimum=1, title="Most", description="Token ranges of tables that are read again at most."),
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
