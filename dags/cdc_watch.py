"""Look whether anything is late, stuck or waits for long while no task fails. Wiring only."""

from __future__ import annotations

from datetime import timedelta

from airflow.sdk import DAG
from writetime_operators import WatchOperator
from writetime_settings import settings

RUNBOOK = """
### cdc_watch
Reads the bucket, as `writetime status` does, and is red while something is beyond the limits under `airflow.watch` in the pipeline's YAML.
Changes nothing and starts no Spark; nothing waits for it. `airflow.on_failure` is told when something new is wrong, not at every run again.

| the task says | what it means | what to do |
|---|---|---|
| `late: node …` | no finished segment of that node has come for `late_minutes` (by default, the time in which it would fill half of its `cdc_total_space`) | look at its shipper; a node that nobody writes to looks the same, and ships more often with `node.ship.tail_seconds`. Ingest goes on without it |
| `space: node …` | `cdc_raw` of that node fills up: `warn` or `alarm` by its shipper's configuration, as it said last | can its shipper keep up, and reach the store? See "cdc_raw fills up" in the runbook. Never delete segments by hand |
| `stuck: batch …` | it was begun `stuck_minutes` ago and is not sealed | look at `cdc_ingest`, and clear its task |
| `backlog: …` | more than `backlog_segments` wait in the bucket | is `cdc_ingest` paused? Else it needs more executors |
| `unpublished: …` | events of more than `unpublished_batches` of that table are not in Kafka | look at `cdc_publish` |

A shipper that cannot reach the bucket cannot tell of its space there either: then its node gets late. Its own metrics tell it at any time
(`writetime_ship_space_level`).
"""

for pipeline in settings():
    with DAG(
        pipeline.dag_id("cdc_watch"),
        description="Whether anything is late, stuck, or waits for long",
        schedule=pipeline.airflow.watch.schedule,
        **pipeline.common,
        doc_md=RUNBOOK,
        default_args=pipeline.defaults | {"retries": 2, "retry_delay": timedelta(seconds=30)},
    ):
        WatchOperator(task_id="watch")
