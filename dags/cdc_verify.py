"""Compare the tables with the cluster by token range. Wiring only."""

from __future__ import annotations

from airflow.sdk import DAG, Param
from writetime_operators import CheckJobOperator
from writetime_settings import settings

RUNBOOK = """
### cdc_verify
Reads token ranges of the captured tables from the cluster and compares values, writetimes and expiry times with the tables. Changes nothing.
A scheduled run compares completely what was never compared since its first reading, then of each other table the next `snapshot.verify_share`
of the tokens, and again where rows differed. It reads at most `snapshot.rows_per_second`.
Differences that may be in flight are compared again once the table is complete up to the first comparison, for at most *Wait* seconds. Those that remain and are
not in flight are **drift**, and the task fails.

| what the task says | what it means | what to do |
|---|---|---|
| `drift …` | rows in the table differ from the cluster | run the commands that the message names, then see the report (docs/runbook.md, `cdc_verify is red`) |
| `tie …` | if one of two cells with equal timestamps expires, Cassandra 3.11 picks one depending on its clock; not a failure | nothing, or `cdc_bootstrap` of the table |
| `unsettled …` | the row changed recently, and the table is not complete up to then, or it is to be read from the cluster again; not a failure | compare again, with *At rest* if there are no writes |
| `waits for a person: …` | a segment is held, and its data is missing | resolve its failed task in `cdc_ingest` first |
| `in the ring it is another table by now` | a DROP, CREATE or TRUNCATE has not been processed yet | compare again after the next batch |
| `topic …: drift of …` | the last record of a key is not the row of the table | was the topic written to, or its progress? `cdc_publish`, *Send all of a table again* |
| `topic … could not be compared` | retention has deleted records, or a setting keeps some out of the topic | only a topic that has the last record of every key can be compared |
| `NoHostAvailable`, `Unavailable` | a replica is down; at ALL each replica must answer | compare when all nodes are up, or set `snapshot.consistency` |

Report and chart: `verify/<cluster>/<time>.json` and `.svg` in the bucket; how far each table was compared: `verify/<cluster>.json`. Requires
`cluster.cql` in the pipeline's YAML; without it there is no schedule, and the task skips, unless *Topics* is chosen.
"""

for pipeline in settings():
    with DAG(
        pipeline.dag_id("cdc_verify"),
        description="Compare the tables with the cluster",
        schedule=pipeline.verify_schedule,
        **pipeline.common,
        doc_md=RUNBOOK,
        default_args=pipeline.defaults | {"retries": 0},
        params={
            "table": Param(
                None,
                type=["null", "string"],
                pattern=r"^([^.\s]+\.[^.\s]+)?$",
                title="Table",
                description="keyspace.table; empty: all captured tables.",
            ),
            "share": Param(
                None,
                type=["null", "number"],
                exclusiveMinimum=0,
                maximum=1,
                title="Share",
                description="Share of the token ranges to compare, different ones each day; 1: all. Empty: all of the table or tokens that are "
                "given, or else what is due, as in a scheduled run.",
            ),
            "token_range": Param(
                None,
                type=["null", "string"],
                pattern=r"^(-?\d*:-?\d*)?$",
                title="Tokens",
                description="A:B: only tokens > A and <= B. Empty: all tokens.",
            ),
            "wait": Param(900, type="integer", minimum=0, title="Wait", description="Seconds to wait until differences can be judged."),
            "at_rest": Param(
                False,
                type="boolean",
                title="At rest",
                description="There are no writes and all segments are processed: any difference is drift at once.",
            ),
            "tell_values": Param(False, type="boolean", title="Values", description="Include values of differing rows in the report."),
            "topics": Param(
                False,
                type="boolean",
                title="Topics",
                description="Also compare the last record of each key in the tables' topics with the tables, for that share of the keys. "
                "Reads the topics from their beginning.",
            ),
        },
    ):
        CheckJobOperator(
            task_id="verify",
            job="verify",
            asks_ring=True,
            arguments=[
                "{{ '--share=' ~ (params.share or 1) if params.share or params.table or params.token_range else '--due' }}",
                "--seed={{ dag_run.run_after.strftime('%Y%m%d') }}",
                "--wait={{ params.wait }}",
                "{{ '--table=' ~ params.table if params.table else '' }}",
                "{{ '--token-range=' ~ params.token_range if params.token_range else '' }}",
                "{{ '--at-rest' if params.at_rest else '' }}",
                "{{ '--values' if params.tell_values else '' }}",
                "{{ '--topics' if params.topics else '' }}",
            ],
        )
