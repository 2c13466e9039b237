"""What cdc_watch is red for: each kind beyond its limit, not before, and not where it is not looked at."""

from __future__ import annotations

import json
import re
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from tests.monitoring import bucket
from tests.node_objects import put_space, status_of
from tests.storage.memory import MemoryStore
from writetime.cassandra.schema.model import NOT_DURABLE, Table
from writetime.config.airflow import WatchConfig
from writetime.config.tables import ColumnsConfig
from writetime.events.masking import Rules
from writetime.monitoring.health import Expected, health
from writetime.monitoring.metrics import samples
from writetime.monitoring.overview import overview
from writetime.monitoring.status import as_document, as_text
from writetime.monitoring.tables import LoadedStatus
from writetime.monitoring.watch import Trouble, watch
from writetime.pipeline.batch_history import Batches
from writetime.pipeline.bootstrap import run as runs
from writetime.pipeline.documents import CDC_OFF, Apart, Sealed
from writetime.pipeline.notified import Notified
from writetime.pipeline.publish_progress import Published
from writetime.storage import layout

NONE = WatchConfig(late_minutes=None, space=None, stuck_minutes=None, backlog_segments=None, unpublished_batches=None)
HOUR = timedelta(hours=1)


def limits(**given: float | str | None) -> WatchConfig:
    return NONE.model_copy(update=given)


def kinds(found: list[Trouble]) -> list[str]:
    return [trouble.text.partition(":")[0] for trouble in found]


@pytest.fixture
def store() -> MemoryStore:
    found = MemoryStore()
    builder = bucket.Builder(found.put)
    for number in range(1, 9):
        builder.batch(number)
    builder.around(8)
    return found


def seen(store: MemoryStore, wanted: WatchConfig, *, after: timedelta = HOUR, **more: bool) -> list[Trouble]:
    return watch(Batches(store, bucket.CLUSTER), wanted, now=bucket.minute(0) + after, **more)


def test_a_problem_is_new_until_people_were_notified_and_when_it_comes_again() -> None:
    store, place = MemoryStore(), layout.watch_notified("c")
    assert Notified.still(store, place, dict.fromkeys(["late a", "session"], 0)) == set()
    assert store.head(place) is None
    Notified.record(store, place, dict.fromkeys(["session", "late a"], 0))
    written = store.head(place)
    assert Notified.still(store, place, dict.fromkeys(["late a", "late b", "session"], 0)) == {"late a", "session"}
    assert store.head(place) == written
    assert Notified.still(store, place, dict.fromkeys(["late b", "session"], 0)) == {"session"}
    assert Notified.still(store, place, dict.fromkeys(["late a", "session"], 0)) == {"session"}
    assert Notified.still(store, place, {}) == Notified.still(store, place, dict.fromkeys(["session"], 0)) == set()


def test_a_node_is_late_from_its_limit_on(store: MemoryStore) -> None:
    store.delete(bucket.ref(0, 10**6).incoming)
    assert seen(store, limits(late_minutes=52), after=HOUR) == []
    found = seen(store, limits(late_minutes=51), after=HOUR)
    assert kinds(found) == ["late"] * 3
    first = found[0]
    assert first.key == f"late {bucket.NODES[0].path}"
    for part in ("10.0.0.1 (dc1", "Prod <1>", "2026-05-04 12:08Z, 51.5 min ago", "shipper", layout.node_documents(bucket.NODES[0])):
        assert part in first.text


@pytest.mark.parametrize(("limit", "minutes"), [(None, 360), (10**9, 1440), (300_000, 70), (1000, 30)])
def test_by_default_a_node_is_late_once_half_of_its_space_would_be_full(store: MemoryStore, limit: int | None, minutes: float) -> None:
    """Two segments of 1 kB a minute: 36 bytes a second."""
    store.delete(bucket.ref(0, 10**6).incoming)
    if limit is not None:
        at = bucket.minute(5)
        told = {"at": at.isoformat(), "level": "ok", "used": 90, "limit": limit, "share": 0.1, "disk_free": 3 << 30}
        put_space(store, bucket.NODES[0], told)
    after = timedelta(minutes=minutes) + timedelta(minutes=8.5)
    key = f"late {bucket.NODES[0].path}"
    auto = limits(late_minutes="auto")
    assert key not in [each.key for each in seen(store, auto, after=after - timedelta(minutes=5))]
    assert key in [each.key for each in seen(store, auto, after=after + timedelta(minutes=5))]


def test_segments_of_an_unknown_version_wait_for_a_reader_and_are_no_backlog(store: MemoryStore) -> None:
    store.delete(bucket.ref(0, 10**6).incoming)
    for number in range(3):
        ref = layout.SegmentRef(bucket.NODES[0], layout.SegmentName(1_777_999_000_000 + number, 10))
        store.put(ref.incoming, b"whatever")
    (found,) = seen(store, limits(backlog_segments=2))
    assert (found.key, kinds([found])) == (f"reader {bucket.NODES[0].path} 10", ["waiting for a reader"])
    for part in ("3 segments", "10.0.0.1 (dc1", "Prod <1>", "commit log version 10", "Upgrade writetime"):
        assert part in found.text


def test_a_node_that_left_is_not_looked_for(store: MemoryStore) -> None:
    gone = layout.NodeName(bucket.CLUSTER, "dc1", "00000009-0000-4000-8000-000000000000")
    store.put(status_of(gone), json.dumps({"address": "10.0.0.9"}).encode())
    late = limits(late_minutes=55)
    (found,) = seen(store, late)
    assert "10.0.0.9" in found.text
    assert "no segment for" in found.text
    store.delete(status_of(gone))
    assert seen(store, late) == []


def test_one_looks_back_as_far_as_it_takes(store: MemoryStore, monkeypatch: pytest.MonkeyPatch) -> None:
    """A node whose last segments came before the batches of the last hour is not taken for one that never
    shipped."""
    monkeypatch.setattr(overview, "__kwdefaults__", {"last": 1, "now": None})
    asked: list[int] = []
    latest = Batches.latest
    monkeypatch.setattr(Batches, "latest", lambda self, count=60, **how: asked.append(count) or latest(self, count, **how))
    seen(store, limits(late_minutes=1))
    assert asked == [1, 1], "of nodes and of tables"
    lost = layout.NodeName(bucket.CLUSTER, "dc1", "00000009-0000-4000-8000-000000000000")
    store.put(status_of(lost), b"{}")
    seen(store, limits(late_minutes=1))
    assert asked == [1, 1, 1, 1, 500]


def test_a_node_is_short_of_space(store: MemoryStore) -> None:
    at = bucket.minute(50)
    for node, level in ((0, "warn"), (1, "alarm"), (2, "ok")):
        told = {"at": at.isoformat(), "level": level, "used": 90, "limit": 100, "share": 0.9, "disk_free": 3 << 30}
        put_space(store, bucket.NODES[node], told)
    assert [trouble.key for trouble in seen(store, limits(space="warn"))] == [
        f"space {bucket.NODES[0].path} warn",
        f"space {bucket.NODES[1].path} alarm",
    ]
    (found,) = seen(store, limits(space="alarm"))
    for part in ("(dc1)", "alarm (2026-05-04 12:50Z): 90% of the limit of cdc_raw", "3.0 GiB", "Delete no segment by hand"):
        assert part in found.text
    assert seen(store, NONE) == []


def test_a_node_is_set_to_drop_captured_writes(store: MemoryStore) -> None:
    at = bucket.minute(50)
    for node, settings in ((0, {"cdc_enabled": True}), (1, {"cdc_enabled": False, "cdc_block_writes": False}), (2, {})):
        space = {"at": at.isoformat(), "level": "ok", "used": 1, "limit": 100, "share": 0.01, "disk_free": 3 << 30}
        put_space(store, bucket.NODES[node], {**space, "settings": settings})
    found = seen(store, NONE)
    assert [trouble.key for trouble in found] == [
        f"settings {bucket.NODES[1].path} cdc_enabled",
        f"settings {bucket.NODES[1].path} cdc_block_writes",
    ]
    for part in (f"settings: node {bucket.NODES[1].host_id} (dc1", "Prod <1>", "cdc_block_writes is false", "JMX", "cdc_bootstrap"):
        assert part in found[1].text


def test_a_batch_is_stuck_that_was_begun_and_does_not_end(store: MemoryStore) -> None:
    assert seen(store, limits(stuck_minutes=1), after=24 * HOUR) == []
    manifest = json.loads(store.read(layout.batch_object(bucket.CLUSTER, 8, "manifest")))
    begun = {**manifest, "number": 9, "base": 8, "created_at": bucket.minute(20).isoformat()}
    store.put(layout.batch_object(bucket.CLUSTER, 9, "manifest"), json.dumps(begun).encode())
    assert seen(store, limits(stuck_minutes=40)) == []
    (found,) = seen(store, limits(stuck_minutes=39))
    assert found.key == "stuck 9"
    assert "batch 9 of Prod <1> was planned 40.0 min ago" in found.text


def test_a_backlog(store: MemoryStore, monkeypatch: pytest.MonkeyPatch) -> None:
    for number in range(4):
        store.put(bucket.ref(1, 10**6 + number).incoming, b"waits")
    assert seen(store, limits(backlog_segments=5)) == []
    (found,) = seen(store, limits(backlog_segments=4))
    assert (found.key, "backlog: 5 segments of Prod <1> wait" in found.text) == ("backlog", True)
    monkeypatch.setattr("writetime.monitoring.nodes.LISTED", 2)
    assert kinds(seen(store, limits(backlog_segments=2000))) == ["backlog"]


def test_events_that_stay(store: MemoryStore) -> None:
    name = layout.published(bucket.CLUSTER)
    store.delete(name)
    store.put(name, Published(batch=5, events=1).to_bytes())
    assert seen(store, limits(unpublished_batches=3)) == []
    found = seen(store, limits(unpublished_batches=2))
    assert [trouble.key for trouble in found] == ["unpublished shop.customers", "unpublished shop.orders"]
    assert seen(store, limits(unpublished_batches=2), publishes=False) == []


def test_nothing_is_wrong_with_a_bucket_in_which_there_is_nothing() -> None:
    assert seen(MemoryStore(), WatchConfig()) == []


def test_limits_are_those_of_the_alert_rules() -> None:
    rules = (Path(__file__).resolve().parents[2] / "deploy" / "prometheus" / "rules.yml").read_text(encoding="utf-8")
    defaults = WatchConfig()
    assert defaults.late_minutes == "auto"
    for alert, limit in {
        "WritetimeNodeLate": "writetime_source_timestamp_seconds > writetime_late_after_seconds",
        "WritetimeBacklog": f"(writetime_waiting_segments) > {defaults.backlog_segments}",
        "WritetimeNotPublished": f"writetime_unpublished_batches > {defaults.unpublished_batches}",
        "WritetimeBatchStuck": f"for: {defaults.stuck_minutes:.0f}m",
    }.items():
        (rule,) = re.findall(rf"alert: {alert}\n(.*?)(?:- alert|\Z)", rules, re.DOTALL)
        assert limit in rule, alert


def test_a_table_that_is_in_no_log_by_choice_is_reported_when_it_is_not_read_in_time(store: MemoryStore) -> None:
    name = layout.batch_object(bucket.CLUSTER, 8, "sealed")
    chosen = {"shop.orders": Apart(mode="full", seconds=600), "shop.two": Apart(mode="tracked")}
    sealed = Sealed.model_validate_json(store.read(name)).model_copy(update={"apart": chosen})
    store.put(name, sealed.to_bytes())
    batches = Batches(store, bucket.CLUSTER)

    def status() -> list[str]:
        return [line.removeprefix("not in the commit log: ") for line in as_text(batches, 5).splitlines() if line.startswith("not in the")]

    left_out = "shop.two: left out, as its writes reach no commit log (tracked)"
    never = "shop.orders: read from the cluster every 600 s, as its writes reach no commit log (full): never read yet, late"
    (found,) = seen(store, NONE)
    assert (found.key, found.severity) == ("not in the log shop.orders", "critical")
    assert f"not in the commit log: shop.orders in {bucket.CLUSTER}: read from the cluster every 600 s" in found.text
    assert status() == [never, left_out]
    assert [value for name, _, value in samples(batches) if name == "writetime_not_in_log_tables"] == [1]
    at = datetime.now(UTC) - timedelta(seconds=1100)
    table = Table("shop", "orders", bucket.ORDERS, {})
    run = runs.begin(store, bucket.CLUSTER, table, part=None, ranges=[(0, 1)], consistency="ALL", now=at)
    runs.finish_range(store, run, 0, runs.RangeDone(rows=1, frames=0, objects=[]))
    runs.update(store, run, at)
    assert seen(store, NONE) == []
    assert status() == [never.replace("never read yet, late", f"as of {at:%Y-%m-%d %H:%M:%S}Z"), left_out]
    assert [value for name, _, value in samples(batches) if name == "writetime_not_in_log_tables"] == [0]
    assert as_document(batches, 5)["apart"]["shop.orders"]["late"] is False


@pytest.mark.advice("If it is captured, read it again: docs/runbook.md, `I bulk-loaded`.")
def test_a_captured_table_into_which_a_node_has_loaded_sstables(store: MemoryStore) -> None:
    batches, at = Batches(store, bucket.CLUSTER), datetime.now(UTC).replace(microsecond=0) - timedelta(hours=1)
    node = bucket.NODES[0]

    def report(*loaded: dict[str, object]) -> None:
        document = json.dumps({"host_id": node.host_id, "address": "192.0.2.9", "loaded": loaded}).encode()
        store.put(layout.node_status(node, datetime.now(UTC) + timedelta(days=1), "0"), document)

    def status() -> list[str]:
        return [line for line in as_text(batches, 5).splitlines() if line.startswith("not in the commit log")]

    of_orders = {"keyspace": "shop", "table": "orders", "table_id": "aa", "at": at.isoformat(), "files": 2}
    report(of_orders, {**of_orders, "table": "not_captured"})
    (found,) = seen(store, NONE)
    assert (found.key, found.severity, found.table) == ("not in the log shop.orders", "critical", "shop.orders")
    assert "2 SSTables came past the commit log of 192.0.2.9" in found.text
    assert "`I bulk-loaded`" in found.text
    assert status() == [f"not in the commit log: shop.orders: {LoadedStatus(2, ('192.0.2.9',), at).text}"]
    assert as_document(batches, 5)["not_in_log"] == {"shop.orders": "loaded"}
    assert [value for name, _, value in samples(batches) if name == "writetime_not_in_log_tables"] == [1]
    # A reading that began before does not have them; one that began after has.
    table = Table("shop", "orders", bucket.ORDERS, {})
    for began, alarms in ((at - timedelta(minutes=1), 1), (at + timedelta(minutes=1), 0)):
        run = runs.begin(store, bucket.CLUSTER, table, part=None, ranges=[(0, 1)], consistency="ALL", now=began)
        runs.finish_range(store, run, 0, runs.RangeDone(rows=1, frames=0, objects=[]))
        runs.update(store, run, began)
        assert len(seen(store, NONE)) == len(status()) == alarms
    report({**of_orders, "at": "yesterday"})
    assert status() == []


def test_a_captured_table_whose_writes_bypass_the_log(store: MemoryStore) -> None:
    name = layout.batch_object(bucket.CLUSTER, 8, "sealed")
    assert "not_in_log" not in json.loads(store.read(name)), "earlier versions reject the key"
    modes = {"shop.orders": "full", "shop.three": CDC_OFF, "shop.two": "mixed_reads", "shop.undurable": NOT_DURABLE}
    sealed = Sealed.model_validate_json(store.read(name)).model_copy(update={"not_in_log": modes})
    store.put(name, sealed.to_bytes())
    found = seen(store, NONE)
    assert [each.key for each in found] == [f"not in the log {name}" for name in modes]
    assert "its keyspace has durable_writes = false: its writes never reach a commit log. Set `durable_writes = true`" in found[3].text
    assert "its transactional_mode is full: its writes go through Accord and never reach a commit log. Set" in found[0].text
    assert "its cdc is off, and was on: no segment holds its writes since then. Set `cdc = true`" in found[1].text
    assert "except for what a read repair writes" in found[2].text
    batches = Batches(store, bucket.CLUSTER)
    lines = [line for line in as_text(batches, 5).splitlines() if line.startswith("not in the commit log")]
    assert [line.split(":")[1].strip() for line in lines] == list(modes)
    assert as_document(batches, 5)["not_in_log"] == sealed.not_in_log
    assert [value for name, _, value in samples(batches) if name == "writetime_not_in_log_tables"] == [4]


def test_a_rule_that_fits_nothing_is_an_alarm_and_a_line_of_the_status(store: MemoryStore) -> None:
    columns = {"column.mask.with.8.chars": "shop.orders.note, shop.orders.nota", "rows": {"shop.order": "note > 'a'"}}
    rules, batches = ColumnsConfig.model_validate(columns).rules, Batches(store, bucket.CLUSTER)
    found = watch(batches, NONE, rules=rules, now=bucket.minute(0) + HOUR)
    assert [(each.key, each.severity) for each in found] == [
        ("rule column.mask.with.8.chars shop.orders.nota", "critical"),
        ("rule rows shop.order", "critical"),
    ]
    assert "`columns.column.mask.with.8.chars`: `shop.orders.nota` fits no column" in found[0].text
    assert "`columns.rows`: `shop.order` fits no table" in found[1].text
    expected = Expected(rules=rules)
    lines = [line for line in as_text(batches, 5, expected).splitlines() if "rule without effect" in line]
    assert [line.startswith("critical: ") for line in lines] == [True, True]
    assert health(batches, overview(batches), expected).level == "critical"
    assert [value for name, _, value in samples(batches, rules=rules) if name == "writetime_unmatched_rules"] == [2]
    assert watch(batches, NONE, rules=Rules(masks={8: ["shop.orders.note"]}), now=bucket.minute(0) + HOUR) == []


def test_rules_are_not_checked_before_a_table_is_known() -> None:
    batches, rules = Batches(MemoryStore(), bucket.CLUSTER), Rules(masks={8: ["shop.orders.nota"]})
    assert watch(batches, NONE, rules=rules, now=bucket.minute(0)) == []
    assert [value for name, _, value in samples(batches, rules=rules) if name == "writetime_unmatched_rules"] == []
    problems = health(batches, overview(batches), Expected(rules=rules)).problems
    assert [(each.level, "not checked yet" in each.text) for each in problems] == [("unknown", True)]
    assert health(batches, overview(batches), Expected()).problems == ()
