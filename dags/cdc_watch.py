"""Check for nodes, batches and events that are late or stuck while no task fails. Wiring only."""

from __future__ import annotations

from datetime import timedelta

from airflow.sdk import DAG
from writetime_operators import WatchOperator
from writetime_settings import settings

RUNBOOK = """
### cdc_watch
Reads the bucket, as `writetime status` does, and fails while a limit of `airflow.watch` in the pipeline's YAML is exceeded.
Changes nothing and starts no Spark job; no other task depends on it. `airflow.on_failure` is notified of new problems only, which the
message names first: `sessions/<cluster>/notified.json` in the bucket lists those of which a notice was sent.

| message | what it means | what to do |
|---|---|---|
| `late: node …` | no completed segment of that node arrived for `late_minutes` (default: the time in which it would fill half of its `cdc_total_space`) | check its shipper; a node without writes looks the same: `node.ship.tail_seconds` makes it ship more often. Ingest continues without it |
| `space: node …` | `cdc_raw` of that node fills up: the level `warn` or `alarm` of the last report of its shipper | check that its shipper keeps up and reaches the store. See "cdc_raw fills up" in the runbook. Never delete segments by hand |
| `stuck: batch …` | it was planned more than `stuck_minutes` ago and is not sealed | check `cdc_ingest` and clear its failed task |
| `backlog: …` | more than `backlog_segments` wait in the bucket | check whether `cdc_ingest` is paused; otherwise it needs more executors |
| `rule without effect: …` | a rule in `columns` fits no column or table, so that it hides nothing | correct the rule; `writetime config check --rules` checks it |
| `unpublished: …` | events of more than `unpublished_batches` of that table are not in Kafka | check `cdc_publish` |

A shipper that cannot reach the bucket cannot report its space there either; its node becomes late instead. The shipper's own metrics always
show it (`writetime_ship_space_level`).
"""

for pipeline in settings():
    with DAG(
        pipeline.dag_id("cdc_watch"),
        description="Check for late nodes and stuck batches",
        schedule=pipeline.airflow.watch.schedule,
        **pipeline.common,
        doc_md=RUNBOOK,
        default_args=pipeline.defaults | {"retries": 2, "retry_delay": timedelta(seconds=30)},
    ):
        # It must not wait for what it watches, nor for a pool that does not exist, nor hang with the store.
        WatchOperator(task_id="watch", pool="default_pool", execution_timeout=timedelta(minutes=10))
