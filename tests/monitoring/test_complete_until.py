"""Up to when tables and topics are complete, as metrics, the status and cdc_watch show it."""

from __future__ import annotations

from datetime import timedelta
from pathlib import Path
from uuid import UUID

import pytest

from tests.pipeline.test_watermark import CLUSTER, NOW, TABLE, A, B, at, plan, planned, problem, run, ship, sign
from writetime.cassandra.schema.history import SchemaLearner
from writetime.config.airflow import WatchConfig
from writetime.monitoring.complete_until import complete_until
from writetime.monitoring.metrics import samples
from writetime.monitoring.status import as_document, as_text
from writetime.monitoring.watch import watch
from writetime.pipeline.batch_history import Batches
from writetime.pipeline.publish_progress import Published, write_published
from writetime.storage import layout, open_store
from writetime.storage.local import LocalStore


@pytest.fixture
def batches(tmp_path: Path) -> Batches:
    """Two batches: with the second one a table is held, and node B has not signed off since."""
    store = open_store(str(tmp_path / "bucket"))
    assert isinstance(store, LocalStore)
    for node in (A, B):
        sign(store, node, NOW - timedelta(hours=1), [A, B])
    ship(store, A, 1)
    run(store, planned(store))
    for node in (A, B):
        sign(store, node, NOW - timedelta(minutes=40), [A, B])
    bad = ship(store, A, 2)
    run(store, planned(store), {bad.incoming: [problem(TABLE)]})
    sign(store, A, NOW, [A, B])
    assert plan(store) is None
    for number in (1, 2):
        store.put(layout.batch_object(CLUSTER, number, "schema"), SchemaLearner().to_json().encode())
    write_published(store, CLUSTER, Published(batch=1, events=0))
    return Batches(store, CLUSTER)


def test_what_is_complete_and_what_holds_it(batches: Batches) -> None:
    found = complete_until(batches)
    assert found is not None
    assert (found.tables, found.all_tables) == (at(NOW - timedelta(minutes=40)), at(NOW - timedelta(hours=1)))
    assert found.topics == at(NOW - timedelta(hours=1)), "batch 2 is not published"
    assert (found.nodes, found.by) == ([B], None)
    assert {name: held.until for name, held in found.held.items()} == {str(UUID(int=1)): at(NOW - timedelta(hours=1))}


def test_metrics(batches: Batches) -> None:
    values = {
        (name, labels.get("in") or labels.get("host_id")): value for name, labels, value in samples(batches) if "complete_until" in name
    }
    everywhere, node = "writetime_complete_until_timestamp_seconds", "writetime_node_complete_until_timestamp_seconds"
    assert values == {
        (everywhere, "tables"): at(NOW - timedelta(hours=1)).timestamp(),
        (everywhere, "topics"): at(NOW - timedelta(hours=1)).timestamp(),
        (node, "a"): at(NOW).timestamp(),
        (node, "b"): at(NOW - timedelta(minutes=40)).timestamp(),
    }


def test_the_status_names_what_holds_it(batches: Batches) -> None:
    lines = [line for line in as_text(batches, 5).splitlines() if line.startswith("complete up to")]
    assert len(lines) == 2
    assert lines[0].endswith("held by node b (dc1)")
    assert "CommitLog-7-2.log" in lines[1]
    assert as_document(batches, 5)["complete_until"]["nodes"] == ["b"]


def test_cdc_watch_fails_when_it_stands_still(batches: Batches) -> None:
    def troubles(minutes: float | None) -> list[str]:
        found = watch(batches, WatchConfig(complete_minutes=minutes), publishes=False)
        return [trouble.text for trouble in found if trouble.key == "completeness"]

    assert len(troubles(30)) == 1
    assert "held by node b (dc1)" in troubles(30)[0]
    assert troubles(24 * 60) == troubles(None) == []


def test_nothing_is_known_before_the_first_batch(tmp_path: Path) -> None:
    store = open_store(str(tmp_path / "bucket"))
    batches = Batches(store, CLUSTER)
    assert complete_until(batches) is None
    assert as_document(batches, 5)["complete_until"] is None
