"""Compare the tables with the ring, token range by token range. Wiring only."""

from __future__ import annotations

from airflow.sdk import DAG, Param
from writetime_operators import CheckJobOperator
from writetime_settings import settings

RUNBOOK = """
### cdc_verify
Reads token ranges of the captured tables from the ring, and compares values, writetimes and expiries with the tables. Changes nothing.
What differs and may still be on its way is looked at again when the next batch has been sealed, for as long as *Wait* allows; what then
cannot be of that is **drift**, and the task is red.

| what the task says | what it means | what to do |
|---|---|---|
| `drift …` | the table holds another row than the ring | look at the report; was the table written to by somebody else? Then `cdc_replay` of the hours, or a new reading of the table, mends it |
| `tie …` | of cells of equal timestamp, one of which expires, Cassandra 3.11 shows one or the other by its clock; not red | nothing, or `cdc_bootstrap` of the table |
| `unsettled …` | the row changed a moment ago, or no batch has come since; not red | compare again, *At rest* if nobody writes |
| `waits for a person: …` | a segment is held back, and what it holds is missing | clear its red square in `cdc_ingest` first |
| `in the ring it is another table by now` | DROP, CREATE or TRUNCATE is on its way | compare again after the next batch |
| `NoHostAvailable`, `Unavailable` | a replica is down; at ALL each has to answer | compare when the ring is whole, or set `snapshot.consistency` |

Report and picture: `verify/<cluster>/<time>.json` and `.svg` in the bucket. The ring: `cluster.cql` in the pipeline's YAML.
Without it this DAG skips.
"""

for pipeline in settings():
    with DAG(
        pipeline.dag_id("cdc_verify"),
        description="Tables against the ring",
        schedule=pipeline.airflow.verify_schedule,
        **pipeline.common,
        doc_md=RUNBOOK,
        default_args=pipeline.defaults | {"retries": 0},
        params={
            "table": Param(
                None,
                type=["null", "string"],
                pattern=r"^([^.\s]+\.[^.\s]+)?$",
                title="Table",
                description="keyspace.table; empty: all that are captured.",
            ),
            "share": Param(
                0.1,
                type="number",
                exclusiveMinimum=0,
                maximum=1,
                title="Share",
                description="Share of the token ranges that is compared; 1: all. Each day of a schedule takes other ranges.",
            ),
            "token_range": Param(
                None,
                type=["null", "string"],
                pattern=r"^(-?\d*:-?\d*)?$",
                title="Tokens",
                description="A:B: only tokens above A and up to B. Empty: the whole ring.",
            ),
            "wait": Param(
                900, type="integer", minimum=0, title="Wait", description="Seconds to wait for the batch that settles what differs."
            ),
            "at_rest": Param(
                False, type="boolean", title="At rest", description="Nobody writes and all is taken in: whatever differs is drift, at once."
            ),
            "tell_values": Param(False, type="boolean", title="Values", description="Tell values of rows that differ, in the report."),
        },
    ):
        CheckJobOperator(
            task_id="verify",
            job="verify",
            asks_ring=True,
            arguments=[
                "--share={{ params.share }}",
                "--seed={{ dag_run.run_after.strftime('%Y%m%d') }}",
                "--wait={{ params.wait }}",
                "{{ '--table=' ~ params.table if params.table else '' }}",
                "{{ '--token-range=' ~ params.token_range if params.token_range else '' }}",
                "{{ '--at-rest' if params.at_rest else '' }}",
                "{{ '--values' if params.tell_values else '' }}",
            ],
        )
