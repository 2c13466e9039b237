"""The page over a small bucket: what each part shows, that nothing of it can be made into markup, who may,
and what the buttons do.

Airflow's part is a stand-in here, which test_access holds against the real one; tests/airflow has that one."""

from __future__ import annotations

import html
import json
import re
import shutil
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest

from tests.monitoring import bucket
from writetime.config.airflow import WatchConfig
from writetime.config.installation import Problem
from writetime.errors import ConfigError
from writetime.events.masking import Rules
from writetime.pipeline import audit, sessions, verification
from writetime.pipeline.archive_packing import let_go, pack
from writetime.pipeline.audit import AuditReport, NodeAudit
from writetime.pipeline.batch_history import Batches
from writetime.pipeline.documents import Accounting, LedgerEntry, Manifest, RefusedTable, Sealed
from writetime.pipeline.maintenance_report import Files, Maintained, Size, Tidied
from writetime.pipeline.publish_progress import Published, write_published
from writetime.pipeline.verification import Finding, RangeResult, TableResult, VerifyReport
from writetime.storage import layout
from writetime.storage.checksum import crc32c
from writetime.storage.local import LocalStore

pytest.importorskip("fastapi", reason="FastAPI comes with the extra `airflow`")
from fastapi import FastAPI, HTTPException, Request
from fastapi.testclient import TestClient

from tests.node_objects import put_space
from tests.plugins.access_contract import RIGHTS

PLUGINS = Path(__file__).resolve().parents[2] / "plugins"
PAGES = ("", "segments", "batches", "batches/3", "tables", "checks", "quarantine", "cost", "replay")
OWN = {"origin": "http://testserver"}
BAD = bucket.ref(0, 6)


@pytest.fixture(scope="session")
def page() -> Iterator[Any]:
    """The module, by its bare name, as Airflow has it."""
    sys.path.insert(0, str(PLUGINS))
    try:
        import writetime_page_app

        yield writetime_page_app
    finally:
        sys.path.remove(str(PLUGINS))


@dataclass
class Guard:
    """Airflow as the page knows it: the header `user` says who asks."""

    started: Any
    shows_values: bool = False
    hosts: frozenset[str] = frozenset({"airflow.example"})
    runs: list[tuple[str, str, dict[str, str]]] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)

    async def user(self, request: Request) -> str:
        if "user" not in request.headers:
            raise HTTPException(401, "Not authenticated")
        if request.headers["user"] not in (*RIGHTS, ""):
            raise HTTPException(403, "Invalid token")
        return request.headers["user"]

    def may_read(self, user: str, dag_id: str) -> bool:
        return self._may(user, "GET", dag_id)

    def may_trigger(self, user: str, dag_id: str) -> bool:
        return self._may(user, "POST", dag_id)

    def _may(self, user: str, method: str, dag_id: str) -> bool:
        return any(fnmatchcase(dag_id, pattern) for pattern in RIGHTS.get(user, {}).get(method, ()))

    def name(self, user: str) -> str:
        return f"{user} <o>"

    def trigger(self, user: str, dag_id: str, settings: dict[str, str], note: str) -> Any:
        if "nosuch" in dag_id:
            raise HTTPException(409, f"Airflow did not start {dag_id}")
        self.runs.append((user, dag_id, settings))
        self.notes.append(note)
        return self.started(dag_id, "manual__<b>", True)


@dataclass
class Browser:
    client: TestClient
    guard: Guard

    def get(self, path: str, user: str = "operator", status: int = 200) -> str:
        answer = self.client.get(f"/writetime/{path}", headers={"user": user})
        assert answer.status_code == status, answer.text
        return answer.text

    def post(self, path: str, form: dict[str, str], user: str = "operator", status: int = 303, headers: dict[str, str] = OWN) -> str:
        answer = self.client.post(f"/writetime/{path}", data=form, headers={"user": user, **headers}, follow_redirects=False)
        assert answer.status_code == status, answer.text
        return answer.headers.get("location", answer.text)


def browse(page: Any, folder: Path) -> Browser:
    guard = Guard(page.Started)
    batches = Batches(LocalStore(folder), bucket.CLUSTER)
    root = FastAPI()
    root.mount("/writetime", page.build(page.Shown("orders", lambda: batches, Rules), guard))
    return Browser(TestClient(root), guard)


@pytest.fixture(scope="session")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    found = tmp_path_factory.mktemp("bucket")
    bucket.small(found)
    return found


@pytest.fixture
def browser(page: Any, folder: Path) -> Browser:
    return browse(page, folder)


@pytest.fixture
def own(page: Any, folder: Path, tmp_path: Path) -> Browser:
    """With a bucket of its own, to press buttons in."""
    shutil.copytree(folder, tmp_path / "bucket")
    return browse(page, tmp_path / "bucket")


def text(markup: str) -> str:
    return " ".join(html.unescape(re.sub(r"<[^>]+>", " ", markup)).split())


# --- what is shown


def test_the_ring_and_its_nodes(browser: Browser) -> None:
    found = browser.get("")
    assert "Prod <1>" in text(found)
    assert "dc1 00000001 10.0.0.1 5.0.6" in text(found)
    assert f'title="read up to byte 1,008 of {bucket.ref(0, 17).segment.filename}"' in found
    assert "1 segment in quarantine needs an operator" in text(found)
    assert found.count('class="gap"') == 1
    assert found.count("<circle") == 8


def test_health_comes_first_with_links_to_the_reasons(own: Browser, tmp_path: Path) -> None:
    store = LocalStore(tmp_path / "bucket")
    write_published(store, bucket.CLUSTER, Published(batch=8, events=0, waiting={"shop.orders": 5}, reasons={"shop.orders": "<b>big"}))
    found = own.get("")
    headings = re.findall(r"<h2>([^<]+)</h2>", found)
    assert headings == ["Tables", "Lag of the batches", "Nodes", "Log coverage by node", "Replica completeness"]
    badges = re.findall(r'<a class="level (\w+)" href="/writetime/([^"]+)" title="([^"]+)">', found)
    assert ("warning", "tables#shop.orders", "events since batch 5 cannot be published: &lt;b&gt;big") in badges
    assert len(badges) == len(bucket.TABLES)
    assert '<a href="/writetime/segments?state=quarantined">1 segment in quarantine needs an operator</a>' in found
    assert 'class="level warning"' in own.get("tables")
    for place in {place.partition("#")[0] for _, place, _ in badges}:
        own.get(place)


def test_healthy_tables_are_folded_where_there_are_many(page: Any, own: Browser, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert "healthy tables" not in own.get("")
    monkeypatch.setattr(page, "_LISTED", 2)
    store = LocalStore(tmp_path / "bucket")
    write_published(store, bucket.CLUSTER, Published(batch=8, events=0, waiting={"shop.orders": 5}))
    # The nodes of this bucket are late, which concerns all tables.
    unlimited = WatchConfig(late_minutes=None, complete_minutes=None, stuck_minutes=None)
    shown = page.Shown("orders", lambda: Batches(store, bucket.CLUSTER), Rules, expected=lambda: page.Expected(unlimited))
    root = FastAPI()
    root.mount("/writetime", page.build(shown, own.guard))
    listed, _, folded = Browser(TestClient(root), own.guard).get("").partition("<details><summary>2 healthy tables</summary>")
    assert ("shop.orders" in listed, "shop.customers" in listed) == (True, False)
    assert "shop.customers" in folded


def test_a_rule_that_fits_nothing_is_shown(page: Any, own: Browser, tmp_path: Path) -> None:
    store, rules = LocalStore(tmp_path / "bucket"), Rules(masks={8: ["shop.orders.<b>"]})
    expected = page.Expected(rules=rules)
    shown = page.Shown("orders", lambda: Batches(store, bucket.CLUSTER), lambda: rules, expected=lambda: expected)
    root = FastAPI()
    root.mount("/writetime", page.build(shown, own.guard))
    text = Browser(TestClient(root), own.guard).get("")
    assert "rule without effect: `columns.column.mask.with.8.chars`: `shop.orders.&lt;b&gt;` fits no column" in text


def test_system_and_uncaptured_tables_are_folded_away(own: Browser, tmp_path: Path) -> None:
    store, name = LocalStore(tmp_path / "bucket"), layout.batch_object(bucket.CLUSTER, 8, "sealed")
    sealed = Sealed.model_validate_json(store.read(name))
    counted = Accounting(table="system.local", updates_in=1234, not_ours=1234)
    store.put(name, sealed.model_copy(update={"accounting": [*sealed.accounting, counted]}).to_bytes())
    for place in ("tables", "batches/8"):
        shown, _, folded = own.get(place).partition("<details><summary>")
        assert "1 system and uncaptured tables" in folded
        assert ("system.local" in shown, "system.local" in folded) == (False, True)
        assert "1,234" in folded
    assert "system.local" not in own.get("")


def test_what_is_empty_says_what_fills_it(page: Any, tmp_path: Path) -> None:
    nothing = browse(page, tmp_path / "nothing")
    for place, words in {
        "": ("run `writetime ship --config …` on each node", "unpause cdc_ingest", "ALTER TABLE … WITH cdc = true", "trigger cdc_audit"),
        "batches": ("unpause cdc_ingest (in mode `session`, cdc_stream)",),
        "tables": ("ALTER TABLE … WITH cdc = true",),
        "checks": ("writetime verify-tables --config", "writetime audit --config", "trigger cdc_maintain"),
    }.items():
        found = text(nothing.get(place))
        assert [each for each in words if each not in found] == [], place


def test_cost_by_day_stage_and_table(page: Any, browser: Browser, monkeypatch: pytest.MonkeyPatch) -> None:
    assert "No batch of these days has noted its cost" in browser.get("cost")
    everything = page.costs
    monkeypatch.setattr(page, "costs", lambda batches, days: everything(batches, days=days, now=bucket.minute(20)))
    found = text(browser.get("cost?days=31"))
    assert "2026-05-04 8 batches: 26 s of CPU, 112 requests" in found
    assert "changes 2.0 16 8 360 B" in found
    assert "shop.orders 7.3 2.0 5.3 240 80 8 360 B" in found
    for days in ("0", "-1", "100000000"):
        browser.get(f"cost?days={days}")


def test_the_session_is_shown_with_its_trouble(own: Browser, tmp_path: Path) -> None:
    store = LocalStore(tmp_path / "bucket")
    assert "Session since" not in own.get("")
    state = sessions.SessionState(id="1", started_at=bucket.START, updated_at=bucket.START, until=bucket.START, batches=3, published=7)
    sessions.write_state(store, bucket.CLUSTER, state)
    assert "3 batches: waiting for segments; published up to batch 7" in own.get("")
    trouble = {"publish_error": "<b>no answer</b>", "step": "batch 8: ingest"}
    sessions.write_state(store, bucket.CLUSTER, state.model_copy(update=trouble))
    shown = own.get("")
    assert "batch 8: ingest" in shown
    assert "publishing fails: &lt;b&gt;no answer&lt;/b&gt;" in shown


def test_segments_page_by_page(page: Any, browser: Browser, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(page.ledger.search, "__kwdefaults__", {"cursor": "", "size": 20})
    path, seen = "segments", []
    while path:
        found = browser.get(path)
        seen += re.findall(r'href="/writetime/segment\?name=([^"]+)"', found)
        more = re.search(r'href="/writetime/(segments\?[^"]*cursor=[^"]*)"', found)
        path = html.unescape(more[1]) if more else ""
    assert len(seen) == len(set(seen)) == 46


@pytest.mark.parametrize(
    ("query", "count"),
    [
        ("node=00000002", 14),
        ("state=quarantined", 1),
        ("minute=2026-05-04T12:04", 6),
        ("name=1777890000008", 3),
        ("name=%3Cscript%3E", 0),
        ("state=%3Cscript%3E", 46),
        ("minute=noon", 0),
        ("cursor=%00", 46),
    ],
)
def test_search(browser: Browser, query: str, count: int) -> None:
    assert len(re.findall(r'href="/writetime/segment\?', browser.get(f"segments?{query}"))) == count


def test_one_segment(browser: Browser) -> None:
    found = browser.get(f"segment?name={BAD.incoming.replace('%', '%25')}")
    assert BAD.ledger in text(found)
    assert "4,711" in text(found)
    assert "MalformedMutation" in found
    assert "/writetime/rerun?name=" in found
    for name in ("cdc/x", "..%2F..%2Fetc%2Fpasswd", "%00", "ledger/" + "x" * 3000):
        browser.get(f"segment?name={name}", status=404)


def test_a_segment_that_was_packed_and_then_let_go(own: Browser, tmp_path: Path) -> None:
    store, ref = LocalStore(tmp_path / "bucket"), bucket.ref(0, 8)
    entry = LedgerEntry.read(store, ref.ledger)
    assert entry is not None
    assert entry.archived_as is not None
    # Its object holds something else than the bucket's builder notes.
    content = store.read(entry.archived_as)
    store.put(ref.ledger, entry.model_copy(update={"size": len(content), "crc32c": crc32c(content)}).to_bytes())
    packed = pack(store, entry.archived_as, 3)
    address = f"segment?name={ref.incoming.replace('%', '%25')}"
    assert f"{entry.archived_as}.zst , packed to {packed.after} bytes" in text(own.get(address))
    (held,) = store.list(layout.packed(entry.archived_as))
    let_go(store, held)
    assert "deleted ( archive.keep_days ): it cannot be replayed" in text(own.get(address))
    assert own.get("segments?state=expired").count(ref.segment.stem) > 0


def test_batches_and_their_accounting(browser: Browser) -> None:
    assert "8 ingest 2026-05-04 12:10:20Z 6 0 90 30 60 0 0 0 30" in text(browser.get("batches"))
    assert "8 ingest" not in text(browser.get("batches?before=8"))
    assert "shop.orders 30 10 20 0 0 0 10" in text(browser.get("batches/3"))
    browser.get("batches/9", status=404)
    browser.get("batches/10000000000", status=404)
    browser.get("batches/-1", status=404)


def test_a_batch_that_is_not_sealed_says_so(own: Browser, tmp_path: Path) -> None:
    store = LocalStore(tmp_path / "bucket")
    begun = Manifest.model_validate_json(store.read(layout.batch_object(bucket.CLUSTER, 8, "manifest"))).model_copy(update={"number": 9})
    store.put(layout.batch_object(bucket.CLUSTER, 9, "manifest"), begun.to_bytes())
    found = text(own.get("batches/9"))
    assert "It is not sealed yet" in found
    assert begun.segments[0].object in html.unescape(found)


def test_a_batch_of_a_replay_beside_is_its_own(own: Browser, tmp_path: Path) -> None:
    store, chain = LocalStore(tmp_path / "bucket"), layout.shadow_chain(bucket.CLUSTER, "check")
    for what in ("manifest", "sealed"):
        store.put(layout.batch_object(chain, 3, what), store.read(layout.batch_object(bucket.CLUSTER, 3, what)))
    assert "Batch 3 of the namespace check" in text(own.get("beside/check/batches/3"))
    own.get("beside/check/batches/4", status=404)
    own.get("beside/other/batches/3", status=404)
    own.get("beside/changes/batches/3", status=404)


def test_tables(browser: Browser) -> None:
    assert "shop.orders 2.3 min 1 2026-05-04 12:10:20Z 10.9 80 8,000 240 80" in text(browser.get("tables"))


def test_a_table_that_is_refused_or_waits_is_named_with_its_reason(own: Browser, tmp_path: Path) -> None:
    store = LocalStore(tmp_path / "bucket")
    last = layout.batch_object(bucket.CLUSTER, 8, "sealed")
    refused = [RefusedTable(table="shop.new", table_id=bucket.SECRET, reason="its type <b>x</b> is unknown")]
    news = {"refused": refused, "not_in_log": {"shop.customers": "full"}}
    sealed = Sealed.model_validate_json(store.read(last)).model_copy(update=news)
    store.put(last, sealed.to_bytes())
    write_published(store, bucket.CLUSTER, Published(batch=8, events=0, waiting={"shop.orders": 5}, reasons={"shop.orders": "too large"}))
    found = own.get("tables")
    assert 'id="shop.new"' in found
    assert "Table shop.new was rejected: its type <b>x</b> is unknown" in html.unescape(text(found))
    assert "Events of shop.orders after batch 5 cannot be published: too large" in text(found)
    assert "Writes to shop.customers are missing: its transactional_mode is full" in text(found)


def test_segments_that_wait_for_a_reader_are_counted_by_node(own: Browser, tmp_path: Path) -> None:
    ref = layout.SegmentRef(bucket.NODES[0], layout.SegmentName(1_777_999_000_000, 10))
    assert "for a reader" not in text(own.get(""))
    LocalStore(tmp_path / "bucket").put(ref.incoming, b"whatever")
    assert "waiting for a reader: 1 segments of node 10.0.0.1 (dc1" in text(own.get(""))


def test_checks_and_what_maintenance_came_to(own: Browser, tmp_path: Path) -> None:
    assert "No report yet: trigger cdc_verify and cdc_audit" in own.get("checks")
    assert "No audit yet: trigger cdc_audit" in own.get("")
    store = LocalStore(tmp_path / "bucket")
    finding = Finding(key='{"id": "hunter2"}', token=5, verdict="drift", differences=[("value", "note")], first_seen=bucket.START)
    ranges = [RangeResult(start=0, end=9, rows=9, drift=1)]
    table = TableResult(table="shop.<b>X", table_id=bucket.ORDERS, ranges=ranges, findings=[finding])
    about: dict[str, Any] = {"cluster": bucket.CLUSTER, "started_at": bucket.START, "finished_at": bucket.START}
    drifted = verification.write_report(
        store, VerifyReport(**about, batch=8, horizon=None, consistency="ALL", share=0.5, seed=0, tables=[table])
    )
    nodes = [
        NodeAudit(host_id="h", address="10.0.0.1", datacenter="dc1", segments=1, expected_by_step=[4, 0, 4, 4], held_by_step=[4, 0, 0, 3])
    ]
    hours = {"start": bucket.START, "end": bucket.minute(4), "datacenters": ["dc1"], "ranges": [(0, 9)], "step": 1}
    audit.write_report(store, AuditReport(**about, **hours, nodes=nodes, tables=[], gaps=[], groups=[]))
    size, files = Size(objects=9, bytes=4096, index_objects=2, index_bytes=512), Files(data=5, bytes=2048, deletes=3, snapshots=4)
    tidied = [Tidied(name="lake.shop.orders", before=files, after=files.model_copy(update={"data": 1})), Tidied(name="x", trouble="boo")]
    came_to = {"batch": 8, "at": bucket.START, "shards": 3, "purged": 2, "failed": 0, "before": size, "after": size, "swept": 0}
    store.put(layout.maintained(bucket.CLUSTER), Maintained(**came_to, tables=tidied).to_bytes())
    found = text(own.get("checks"))
    assert "verify 1 tables, 50% of the tokens, 9 rows drift in 1 rows details" in found
    assert "audit 05-04 12:00Z to 05-04 12:04Z no gap details" in found
    assert "2 of 3 shards of the state were purged" in found
    assert "its indexes 2 2 512 B 512 B" in found
    assert "lake.shop.orders 5 1 2.0 KiB 2.0 KiB 3 3 4 4" in found
    assert "x boo" in found
    # Keys of rows are for those who may see values.
    look = f"checks/report?name={quote(drifted)}"
    own.guard.shows_values = True
    assert "hunter2" in own.get(look)
    assert "hunter2" not in own.get(look, "viewer")
    assert "drift in 1 of 9 rows" in text(own.get(look, "viewer"))
    own.guard.shows_values = False
    assert "hunter2" not in own.get(look)
    assert "<b>X" not in own.get(look)
    assert "<style" not in own.get(look)
    assert "<svg" in own.get(look)
    for name in ("verify/x.json", drifted.replace(".json", ".svg"), layout.published(bucket.CLUSTER), drifted.replace("T12", "T13")):
        own.get(f"checks/report?name={quote(name)}", status=404)
    rings = own.get("")
    assert rings.count('class="gap"') == 2, "one node without segments, one step of which nothing was held"
    assert "10.0.0.1, 05-04 12:03Z: 3 of 4 mutations" in rings


def test_what_is_settled_waits_for_nobody(own: Browser, tmp_path: Path) -> None:
    assert " waiting " in text(own.get("quarantine"))
    store = LocalStore(tmp_path / "bucket")
    (note,) = [info.name for info in store.list(layout.quarantine_prefix(bucket.CLUSTER)) if info.name.endswith(".json")]
    store.put(note, json.dumps(json.loads(store.read(note)) | {"settled_in": 5}).encode())
    assert "settled in 5" in text(own.get("quarantine"))
    (link,) = re.findall(r'href="/writetime/(quarantine/record\?name=[^"]+)"', own.get("quarantine"))
    assert "no action needed" in text(own.get(html.unescape(link)))


@pytest.mark.parametrize(("user", "asked", "shown"), [("operator", True, True), ("viewer", True, False), ("operator", False, False)])
def test_values_in_quarantine_need_permission_and_configuration(browser: Browser, user: str, asked: bool, shown: bool) -> None:
    browser.guard.shows_values = asked
    found = browser.get("quarantine", user)
    (link,) = re.findall(r'href="/writetime/(quarantine/record\?name=[^"]+)"', found)
    found = browser.get(html.unescape(link), user)
    assert "shop.orders" in found
    assert ("hunter2" in found) == shown
    assert ("68 75 6e 74" in found) == shown


def test_records_that_are_none(browser: Browser) -> None:
    for name in (BAD.incoming, BAD.ledger, "quarantine/x.bin", "%00.bin"):
        browser.get(f"quarantine/record?name={name.replace('%', '%25')}", status=404)


def test_names_are_no_markup(browser: Browser) -> None:
    record = re.findall(r'href="/writetime/(quarantine/record\?name=[^"]+)"', browser.get("quarantine"))[0]
    segment = f"segment?name={BAD.incoming.replace('%', '%25')}"
    hostile = ("segments?name=%22%3E%3Cscript%3Eboo", "segments?node=%3Cscript%3Eboo", "started?dag=cdc_ingest&run=%3Cscript%3Eboo")
    for path in (*PAGES, html.unescape(record), segment, *hostile, f"rerun?{segment.split('?')[1]}", "replay?start=%3Cscript%3Eboo"):
        found = browser.get(path)
        assert "<script>boo" not in found, path
        assert "<b>X" not in found, path
        assert "Prod <1>" not in found, path
        assert found.count("<script") == 1, path


def test_what_a_browser_is_told(browser: Browser) -> None:
    answer = browser.client.get("/writetime/", headers={"user": "operator"})
    policy = answer.headers["content-security-policy"]
    assert "default-src 'none'" in policy
    assert "frame-ancestors 'self'" in policy
    assert "style=" not in answer.text
    assert not re.search(r'<[^>]* on\w+="', answer.text)
    assert answer.headers["cache-control"] == "no-store"
    assert browser.client.get("/writetime/files/page.css").headers["content-type"].startswith("text/css")
    assert browser.client.get("/writetime/files/../templates/base.html").status_code != 200


# --- who may


@pytest.mark.parametrize("path", [*PAGES, "started?dag=cdc_ingest&run=x", "rerun?name=x", "segment?name=x", "quarantine/record?name=x"])
def test_only_who_may_see_the_dag_sees_anything(browser: Browser, path: str) -> None:
    assert browser.client.get(f"/writetime/{path}").status_code == 401
    assert "Prod" not in browser.get(path, "stranger", 403)


@pytest.mark.parametrize("several", [False, True])
def test_a_new_route_needs_no_check_of_its_own(page: Any, folder: Path, several: bool) -> None:
    """Rights come before routing: whoever adds a route cannot forget them."""
    batches, guard = Batches(LocalStore(folder), bucket.CLUSTER), Guard(page.Started)
    shown = page.Shown("bets", lambda: batches, Rules, "cdc_ingest__bets", "cdc_replay__bets")
    app = page.build_all([shown], [], guard, ingest_of) if several else page.build(shown, guard)
    place = next(route.app for route in app.routes if route.path == "/pipeline/bets") if several else app
    place.add_api_route("/new", lambda: "news")
    client, path = TestClient(app), "/pipeline/bets/new" if several else "/new"
    answers = [client.get(path, headers=headers) for headers in ({}, {"user": "stranger"}, {"user": "bookmaker"})]
    assert [(answer.status_code, "news" in answer.text) for answer in answers] == [(401, False), (403, False), (200, True)]


@pytest.mark.parametrize("user", ["viewer", "replayer", "stranger", ""])
def test_only_who_may_trigger_reruns(own: Browser, user: str) -> None:
    own.get(f"rerun?name={BAD.incoming.replace('%', '%25')}", user, 403)
    own.post("rerun", {"name": BAD.incoming}, user, 403)
    assert own.guard.runs == []
    assert "/writetime/rerun" not in own.get(f"segment?name={BAD.incoming.replace('%', '%25')}", "viewer")


@pytest.mark.parametrize("user", ["viewer", "stranger"])
def test_only_who_may_trigger_replays(own: Browser, user: str) -> None:
    own.get("replay", user, 403)
    assert "Replay hours" not in own.get("", user, 200 if user == "viewer" else 403)
    own.post("replay", {"start": "2026-05-04T12:00", "end": "2026-05-04T13:00"}, user, 403)
    assert own.guard.runs == []


@pytest.mark.parametrize(
    "headers",
    [
        {},
        {"origin": "http://evil.example"},
        {"origin": "null"},
        {"origin": "http://testserver.evil.example"},
        {"origin": "http://testserver", "sec-fetch-site": "cross-site"},
        {"origin": "http://testserver", "sec-fetch-site": "same-site"},
        {"sec-fetch-site": "none"},
        {"referer": "http://testserver/writetime/rerun"},
    ],
    ids=str,
)
def test_no_other_site_presses_a_button(own: Browser, headers: dict[str, str]) -> None:
    own.post("rerun", {"name": BAD.incoming}, status=403, headers=headers)
    own.post("replay", {"start": "2026-05-04T12:00", "end": "2026-05-04T13:00"}, status=403, headers=headers)
    assert own.guard.runs == []


@pytest.mark.parametrize("headers", [OWN, {"origin": "https://airflow.example"}, {"sec-fetch-site": "same-origin"}], ids=str)
def test_the_page_itself_does(own: Browser, headers: dict[str, str]) -> None:
    own.post("rerun", {"name": BAD.incoming}, headers=headers)
    assert own.guard.runs == [("operator", "cdc_ingest", {})]


# --- what is done


def test_a_rerun_asks_once_marks_the_segment_and_starts_a_run(own: Browser, tmp_path: Path) -> None:
    store = LocalStore(tmp_path / "bucket")
    asked = own.get(f"rerun?name={BAD.incoming.replace('%', '%25')}")
    assert asked.count('method="post"') == 1
    assert own.guard.runs == []
    there = own.post("rerun", {"name": BAD.incoming})
    entry = LedgerEntry.read(store, BAD.ledger)
    assert entry is not None
    assert (entry.state, entry.history[-1]["state"]) == ("retry", "quarantined")
    found = own.get(there.removeprefix("/writetime/"))
    assert "cdc_ingest was started" in text(found)
    assert "The DAG is paused" in text(found)
    assert "/dags/cdc_ingest/runs/manual__%3Cb%3E" in found
    # Pressed a second time, there is nothing left to do.
    assert "it is retry" in own.post("rerun", {"name": BAD.incoming}, status=409)
    assert len(own.guard.runs) == 1


def begin(folder: Path, number: int = 9, chain: str = bucket.CLUSTER, **about: Any) -> LocalStore:
    """An open batch."""
    store = LocalStore(folder / "bucket")
    at = datetime(2026, 5, 4, 13, tzinfo=UTC)
    given = {"kind": "ingest", "base": number - 1, "segments": [], **about}
    store.put(
        layout.batch_object(chain, number, "manifest"), Manifest(number=number, cluster=chain, created_at=at, now=1, **given).to_bytes()
    )
    return store


def test_a_void_asks_for_a_reason_and_starts_the_run_that_takes_back(own: Browser, tmp_path: Path) -> None:
    store = begin(tmp_path)
    assert "/writetime/void?number=9" in own.get("batches/9")
    assert own.get("void?number=9").count('method="post"') == 1
    assert "A reason is required" in own.post("void", {"number": "9", "reason": "  "}, status=422)
    assert (own.guard.runs, store.head(layout.batch_object(bucket.CLUSTER, 9, "sealed"))) == ([], None)
    there = own.post("void", {"number": "9", "reason": "lost <i>"})
    assert "cdc_ingest was started" in text(own.get(there.removeprefix("/writetime/")))
    assert own.guard.runs == [("operator", "cdc_ingest", {})]
    assert own.guard.notes == ["batch 9 was voided: lost <i>"]
    sealed = Sealed.read(store, layout.batch_object(bucket.CLUSTER, 9, "sealed"))
    assert sealed is not None
    assert sealed.void is not None
    assert (sealed.void.reason, sealed.void.by, sealed.void.base) == ("lost <i>", "operator <o>", 8)
    shown = own.get("batches/9")
    assert "It was voided by operator <o>: lost <i>" in text(shown)
    assert "<i>" not in shown
    assert "/writetime/void" not in shown
    assert "9 void" in text(own.get("batches"))
    assert "batch 9" not in text(own.get("")).lower(), "the last batch that takes effect is shown"


def test_only_the_open_batch_is_voided_by_who_may(own: Browser, tmp_path: Path) -> None:
    own.post("void", {"number": "8", "reason": "x"}, status=409)
    store = begin(tmp_path)
    for form, status in (({"number": "7"}, 409), ({"number": "10"}, 409), ({"number": "x"}, 404), ({}, 404)):
        own.post("void", {"reason": "x", **form}, status=status)
    for user in ("viewer", "replayer", "stranger", ""):
        own.get("void?number=9", user, 403)
        own.post("void", {"number": "9", "reason": "x"}, user, 403)
    assert "/writetime/void" not in own.get("batches/9", "viewer")
    own.post("void", {"number": "9", "reason": "x"}, status=403, headers={"origin": "http://evil.example"})
    assert (own.guard.runs, store.head(layout.batch_object(bucket.CLUSTER, 9, "sealed"))) == ([], None)


def test_a_replay_into_a_namespace_is_voided_by_who_may_replay(own: Browser, tmp_path: Path) -> None:
    chain = layout.shadow_chain(bucket.CLUSTER, "look")
    store = begin(tmp_path, 2, chain, kind="replay", namespace="look")
    first = Sealed(number=1, kind="replay", sealed_at=datetime(2026, 5, 4, tzinfo=UTC), segments=[], accounting=[], state={})
    store.put(layout.batch_object(chain, 1, "sealed"), first.to_bytes())
    assert "/writetime/void?number=2&amp;namespace=look" in own.get("beside/look/batches/2", "replayer")
    own.get("void?number=2&namespace=../x", status=404)
    there = own.post("void", {"number": "2", "namespace": "look", "reason": "wrong hours"}, "replayer")
    assert there == "/writetime/beside/look/batches/2"
    assert "voided by replayer" in text(own.get("beside/look/batches/2"))
    assert own.guard.runs == []


def test_only_what_waits_is_run_again(own: Browser) -> None:
    own.post("rerun", {"name": bucket.ref(0, 8).incoming}, status=409)
    own.post("rerun", {"name": "cdc/x"}, status=404)
    own.post("rerun", {}, status=404)
    assert own.guard.runs == []


def test_a_replay_asks_once_and_takes_whole_hours(own: Browser) -> None:
    asked = own.get("replay?start=2026-05-04T12:30&end=2026-05-04T13:01", "replayer")
    assert "2026-05-04 12:00:00Z to 2026-05-04 14:00:00Z" in text(asked)
    assert "45 of them" in text(asked)
    start, end = re.findall(r'name="(?:start|end)" value="([^"]+)"', asked)
    own.post("replay", {"start": start, "end": end}, "replayer")
    times = {"start": "2026-05-04T12:00:00+00:00", "end": "2026-05-04T14:00:00+00:00"}
    assert own.guard.runs == [("replayer", "cdc_replay", times)]


@pytest.fixture
def in_berlin(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setenv("TZ", "Europe/Berlin")
    time.tzset()
    yield
    monkeypatch.undo()
    time.tzset()


TWICE, MISSING = datetime(2026, 10, 25, 0, tzinfo=UTC), datetime(2026, 3, 29, 1, tzinfo=UTC)
"""In Berlin, the hour from 2:00 to 3:00 begins at the first one, and again an hour later; at the second one, clocks go from
2:00 to 3:00."""


@pytest.mark.usefixtures("in_berlin")
@pytest.mark.parametrize(
    ("start", "hour"),
    [
        ("2026-10-25T00:00", TWICE),
        ("2026-10-25T02:00", TWICE + timedelta(hours=2)),
        ("2026-10-25T02:00+02:00", TWICE),
        ("2026-10-25T02:00+01:00", TWICE + timedelta(hours=1)),
        ("2026-03-29T02:00", MISSING + timedelta(hours=1)),
        ("2026-03-29T02:00+01:00", MISSING),
    ],
)
def test_hours_of_a_replay_are_those_of_utc_where_clocks_change(own: Browser, tmp_path: Path, start: str, hour: datetime) -> None:
    store = LocalStore(tmp_path / "bucket")
    for place in range(4):
        for number in range(hour.hour + 1 if place == hour.hour else 9):
            sealed_at = hour.replace(hour=place, minute=10 + number)
            ref = layout.SegmentRef(bucket.NODES[0], layout.SegmentName(int(sealed_at.timestamp()) * 1000, 7))
            store.put(ref.archived(sealed_at), b"x", metadata={"sealed_at": sealed_at.isoformat()})
    end = datetime.fromisoformat(start) + timedelta(hours=1)
    shown = own.get(f"replay?start={quote(start)}&end={quote(end.isoformat())}")
    assert f"{hour:%Y-%m-%d %H:00:00}Z to {hour + timedelta(hours=1):%Y-%m-%d %H:00:00}Z" in text(shown)
    assert f"{hour.hour + 1} of them are in the archive" in text(shown)
    begin, until = re.findall(r'name="(?:start|end)" value="([^"]+)"', shown)
    own.post("replay", {"start": begin, "end": until})
    times = {"start": hour.isoformat(), "end": (hour + timedelta(hours=1)).isoformat()}
    assert own.guard.runs == [("operator", "cdc_replay", times)]


@pytest.mark.usefixtures("in_berlin")
def test_all_times_on_the_page_are_utc_and_say_so(browser: Browser) -> None:
    shown = " ".join(text(browser.get(path)) for path in (*PAGES, f"segment?name={quote(BAD.incoming)}"))
    ends = {end.rstrip(",.;:)") for end in re.findall(r"\d\d-\d\d[ T]\d\d:\d\d(?::\d\d)?(?:\.\d+)?(\S*)", shown)}
    assert ends <= {"Z", "+00:00"}
    # In Berlin that was 14:10:20.
    assert "2026-05-04 12:10:20Z" in shown
    assert "14:10:20" not in shown


def test_a_replay_to_compare_goes_into_a_namespace(own: Browser) -> None:
    hours = "start=2026-05-04T12:00&end=2026-05-04T13:00"
    assert "shop__check" not in text(own.get("replay?" + hours))
    assert "<keyspace>__check" in html.unescape(text(own.get(f"replay?{hours}&namespace=check")))
    own.post("replay", {"start": "2026-05-04T12:00", "end": "2026-05-04T13:00", "namespace": "check"}, "replayer")
    assert own.guard.runs[0][2]["namespace"] == "check"
    for name in ("Check", "changes", "a__b", "<b>"):
        assert "A namespace is made of" in own.get(f"replay?{hours}&namespace={name}")
        own.post("replay", {"start": "2026-05-04T12:00", "end": "2026-05-04T13:00", "namespace": name}, status=422)


def test_what_is_behind_the_horizon_goes_into_a_namespace_only(own: Browser, tmp_path: Path) -> None:
    store = LocalStore(tmp_path / "bucket")
    last = layout.batch_object(bucket.CLUSTER, 8, "sealed")
    sealed = Sealed.model_validate_json(store.read(last)).model_copy(update={"horizon": int(bucket.minute(90).timestamp())})
    store.put(last, sealed.to_bytes())
    assert "before 2026-05-04 13:30:00Z may have been purged" in text(own.get("replay"))
    hours = {"start": "2026-05-04T12:00", "end": "2026-05-04T13:00"}
    asked = "replay?start=2026-05-04T12:00&end=2026-05-04T13:00"
    assert "rows that they deleted would reappear" in text(own.get(asked))
    own.post("replay", hours, status=422)
    assert own.guard.runs == []
    assert "45 of them" in text(own.get(f"{asked}&namespace=check"))
    own.post("replay", {**hours, "namespace": "check"})


@pytest.mark.parametrize(
    ("start", "end"), [("", ""), ("x", "2026-05-04T13:00"), ("2026-05-04T13:00", "2026-05-04T13:00"), ("2020-01-01", "2026-01-01")]
)
def test_a_replay_of_no_hours_is_refused(own: Browser, start: str, end: str) -> None:
    refused = own.post("replay", {"start": start, "end": end}, status=422)
    assert "plan a replay: " in refused
    if start:
        assert "plan a replay: " in text(own.get(f"replay?start={start}&end={end}"))
    assert own.guard.runs == []


def test_a_bucket_that_cannot_be_read_is_told(page: Any) -> None:
    from writetime.errors import StoreUnavailable

    def broken() -> Batches:
        raise StoreUnavailable("no answer", operation="list objects", obj="<cdc>")

    client = TestClient(page.build(page.Shown("orders", broken, Rules), Guard(page.Started)))
    answer = client.get("/", headers={"user": "operator"})
    assert answer.status_code == 503
    assert "list objects: <cdc>: no answer" in text(answer.text)


# --- several pipelines


@pytest.fixture
def several(page: Any, folder: Path, tmp_path: Path) -> Browser:
    """Two pipelines, and a file that is wrong. One has a bucket that cannot be read, the other a name that is
    a path of the page."""
    from writetime.errors import StoreUnavailable

    shutil.copytree(folder, tmp_path / "bucket")
    store, now = LocalStore(tmp_path / "bucket"), datetime.now(UTC)
    space = {"at": now.isoformat(), "level": "alarm", "used": 90, "limit": 100, "share": 0.93, "disk_free": 7}
    put_space(store, bucket.NODES[0], space)
    batches = Batches(store, bucket.CLUSTER)

    def broken() -> Batches:
        raise StoreUnavailable("no answer", operation="list objects", obj="<bets>")

    def shown(name: str, opened: Any) -> Any:
        return page.Shown(name, opened, Rules, f"cdc_ingest__{name}", f"cdc_replay__{name}")

    guard = Guard(page.Started)
    problems = [Problem(ConfigError("<b>wrong", obj="typo.yaml"), frozenset({"files", "typo"}))]
    root = FastAPI()
    root.mount("/writetime", page.build_all([shown("files", lambda: batches), shown("bets", broken)], problems, guard, ingest_of))
    return Browser(TestClient(root), guard)


def ingest_of(name: str) -> str:
    return f"cdc_ingest__{name}" if name else "cdc_ingest"


def test_the_list_of_pipelines(several: Browser) -> None:
    found = several.get("")
    assert "critical files Prod <1> 3 " in text(found)
    assert 'href="/writetime/pipeline/files/"' in found
    assert "unknown bets list objects: <bets>: no answer" in text(found)
    assert '<td class="n bad">1</td>' in found, "a node is short of space"
    assert "typo.yaml: <b>wrong" in text(found)
    assert "<b>wrong" not in found
    assert "Segments" not in text(found)


def test_each_pipeline_has_its_own_page(several: Browser) -> None:
    found = several.get("pipeline/files/")
    assert "all / files" in text(found)
    assert "alarm 93%" in text(found)
    links = set(re.findall(r'(?:href|action)="([^"?]*)', found))
    assert {link for link in links if not link.startswith("/writetime/pipeline/files/")} == {
        "/writetime/",
        "/writetime/files/icon.svg",
        "/writetime/files/page.css",
    }
    several.get("pipeline/bets/", status=503)
    several.get("pipeline/typo/", status=404)
    assert several.client.get("/writetime/files/page.css").headers["cache-control"] == "max-age=300"
    answer = several.client.get("/writetime/pipeline/files/segments", headers={"user": "operator"})
    assert answer.headers["cache-control"] == "no-store"
    assert "default-src 'none'" in answer.headers["content-security-policy"]


@pytest.mark.parametrize("headers", [{"host": "airflow.example"}, {"host": "evil.example"}], ids=str)
def test_a_redirect_stays_where_the_browser_is(several: Browser, headers: dict[str, str]) -> None:
    """Behind a proxy that ends TLS the request has another scheme, and maybe another host, than the browser."""
    for path, there in (
        ("pipeline/files", "/writetime/pipeline/files/"),
        ("pipeline/files/segments/?node=x", "/writetime/pipeline/files/segments?node=x"),
    ):
        answer = several.client.get(f"/writetime/{path}", headers={"user": "operator", **headers}, follow_redirects=False)
        assert (answer.status_code, answer.headers["location"]) == (307, there)


def test_one_sees_the_pipelines_whose_dags_one_sees(several: Browser) -> None:
    found = several.get("", "bookmaker")
    assert "Prod" not in found
    assert "bets" in found
    for path in PAGES:
        several.get(f"pipeline/files/{path}", "bookmaker", 403)
        assert several.client.get(f"/writetime/pipeline/files/{path}").status_code == 401
    several.get("", "stranger", 403)
    assert several.client.get("/writetime/").status_code == 401


def test_buttons_trigger_the_dags_of_their_pipeline(several: Browser) -> None:
    asked = several.get(f"pipeline/files/rerun?name={BAD.incoming.replace('%', '%25')}")
    assert "trigger cdc_ingest__files" in text(asked)
    there = several.post("pipeline/files/rerun", {"name": BAD.incoming})
    assert there.startswith("/writetime/pipeline/files/started?")
    found = several.get(there.removeprefix("/writetime/"))
    assert 'href="/dags/cdc_ingest__files/runs/' in found
    several.post("pipeline/files/replay", {"start": "2026-05-04T12:00", "end": "2026-05-04T13:00"}, "replayer")
    assert [dag for _, dag, _ in several.guard.runs] == ["cdc_ingest__files", "cdc_replay__files"]
    several.get("pipeline/files/started?dag=cdc_ingest&run=x", status=404)


def test_if_no_file_can_be_used_that_is_told(page: Any) -> None:
    problems = [Problem(ConfigError("wrong", obj="typo.yaml"), frozenset({"typo"}))]
    client = TestClient(page.build_all([], problems, Guard(page.Started), ingest_of))
    assert "typo.yaml: wrong" in text(client.get("/", headers={"user": "operator"}).text)
    assert client.get("/", headers={"user": "stranger"}).status_code == 403
