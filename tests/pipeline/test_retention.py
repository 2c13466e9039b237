"""What of ledger and batches is pruned, and what never is."""

from __future__ import annotations

import json
import os
from datetime import UTC, datetime, timedelta
from pathlib import Path
from uuid import UUID

import pytest

from writetime.pipeline import retention
from writetime.pipeline.documents import LedgerEntry, Sealed, SegmentState, ShardVersions
from writetime.storage import layout
from writetime.storage.local import LocalStore

CLUSTER = "ring"
START = datetime(2026, 5, 4, 12, tzinfo=UTC)
DOCUMENTS = ("archived", "local", "manifest", "schema", "sealed")


@pytest.fixture
def store(tmp_path: Path) -> LocalStore:
    return LocalStore(tmp_path / "bucket")


def entry(store: LocalStore, node: str, number: int, state: SegmentState, *, version: int = 7, day: int = 0, there: bool = False) -> str:
    ref = layout.SegmentRef(layout.NodeName(CLUSTER, "dc1", node), layout.SegmentName(number, version))
    sealed_at = START + timedelta(days=day)
    place = ref.archived(sealed_at)
    if there:
        store.put(place, b"segment")
    noted = LedgerEntry(
        object=ref.incoming,
        state=state,
        size=7,
        crc32c=1,
        sealed_at=sealed_at,
        batch=1,
        archived_as=place if state == "archived" else None,
        updated_at=START,
    )
    store.put(ref.ledger, noted.to_bytes())
    return ref.ledger


def test_entries_of_what_the_archive_has_no_more(store: LocalStore) -> None:
    gone = [
        entry(store, "a", 101, "expired"),
        entry(store, "a", 105, "archived"),
        entry(store, "a", 90, "expired", version=8, day=1),
        entry(store, "b", 101, "expired"),
    ]
    entry(store, "a", 102, "quarantined")
    entry(store, "a", 103, "retry")
    entry(store, "a", 104, "archived", there=True)
    young = entry(store, "a", 106, "expired", day=9)
    store.put("ledger/ring/dc1/a/notes-ä.txt", b"not ours")
    store.put("ledger/ring/README", b"not ours")
    store.put("ledger/ring2/dc1/a/CommitLog-7-1.json", b"{}")
    found = [info.name for info in retention.entries(store, CLUSTER, START + timedelta(days=9))]
    assert sorted(found) == sorted(gone)
    assert young in [info.name for info in retention.entries(store, CLUSTER, START + timedelta(days=10))]


def test_of_a_log_no_more_is_read_than_up_to_the_first_young_one(store: LocalStore, monkeypatch: pytest.MonkeyPatch) -> None:
    for number in range(100, 150):
        entry(store, "a", number, "archived", day=number - 100, there=True)
    read = []
    real = LedgerEntry.read
    monkeypatch.setattr(LedgerEntry, "read", lambda where, name: (read.append(name), real(where, name))[1])
    assert list(retention.entries(store, CLUSTER, START + timedelta(days=3))) == []
    assert len(read) == 4


def test_an_entry_that_is_written_again_stays(store: LocalStore) -> None:
    name = entry(store, "a", 101, "expired")
    (info,) = retention.entries(store, CLUSTER, START + timedelta(days=1))
    entry(store, "a", 101, "archived", there=True)
    assert retention.remove(store, info) == 0
    assert store.head(name) is not None
    (info,) = store.list(name)
    assert retention.remove(store, info) == info.size
    assert retention.remove(store, info) == 0


@pytest.fixture
def batches(store: LocalStore, monkeypatch: pytest.MonkeyPatch) -> LocalStore:
    """Twenty batches, one a day, of which the last five stay."""
    monkeypatch.setattr(retention, "LAST_BATCHES", 5)
    for number in range(1, 21):
        for what in DOCUMENTS:
            name = layout.batch_object(CLUSTER, number, what)
            store.put(name, b"{}")
            at = (START + timedelta(days=number)).timestamp()
            os.utime(Path(store.url, name), (at, at))
    return store


def pruned(store: LocalStore, *, day: float = 99, published: int = 99, behind: int | None = None) -> list[int]:
    versions = ShardVersions(buckets=[1], behind=behind)
    sealed = Sealed(number=20, kind="ingest", sealed_at=START, segments=[], accounting=[], state={str(UUID(int=1)): versions})
    found = list(retention.batches(store, CLUSTER, sealed, START + timedelta(days=day), published))
    assert all(len(documents) == len(DOCUMENTS) for documents in found)
    return [int(documents[0].name.split("/")[2]) for documents in found]


def test_batches_that_nobody_asks_for(batches: LocalStore) -> None:
    assert pruned(batches) == list(range(1, 16))
    assert pruned(batches, day=4) == [1, 2, 3]
    assert pruned(batches, published=10) == list(range(1, 10)), "publishing goes on from the schema of the tenth"
    assert pruned(batches, published=0) == []
    assert pruned(batches, behind=4) == [1, 2, 3, *range(5, 16)]


def test_the_manifest_goes_first_and_the_seal_last(batches: LocalStore) -> None:
    sealed = Sealed(number=20, kind="ingest", sealed_at=START, segments=[], accounting=[], state={})
    first = next(retention.batches(batches, CLUSTER, sealed, START + timedelta(days=99), 99))
    assert [info.name.rpartition("/")[2] for info in first] == [
        "manifest.json",
        "archived.json",
        "local.json",
        "schema.json",
        "sealed.json",
    ]


def test_reports_go_but_for_the_last_of_each(store: LocalStore) -> None:
    def put(name: str, day: int) -> str:
        store.put(name, b"{}")
        at = (START + timedelta(days=day)).timestamp()
        os.utime(Path(store.url, name), (at, at))
        return name

    old = [
        put(layout.verify_report(CLUSTER, START), 0),
        put(layout.verify_report(CLUSTER, START).replace(".json", ".svg"), 0),
        put(layout.audit_report(CLUSTER, START), 0),
    ]
    last = [layout.verify_report(CLUSTER, START + timedelta(days=1)), layout.audit_report(CLUSTER, START + timedelta(days=20))]
    young = layout.audit_report(CLUSTER, START + timedelta(days=9))
    for name, day in zip([*last, young], (1, 20, 9), strict=True):
        put(name, day)
    put(layout.verify_report("other", START), 0)
    found = [info.name for info in retention.reports(store, CLUSTER, START + timedelta(days=7))]
    assert sorted(found) == sorted(old)


def test_statuses_of_nodes_go_but_for_the_last_of_each(store: LocalStore) -> None:
    node, other = (layout.NodeName(CLUSTER, "dc1", host) for host in "ab")

    def put(name: str, day: int) -> str:
        store.put(name, b"{}")
        at = (START + timedelta(days=day)).timestamp()
        os.utime(Path(store.url, name), (at, at))
        return name

    # A node's own clock may be off: what counts is when the object came.
    old = [put(layout.node_status(node, START + timedelta(days=back), "00000000"), day) for back, day in ((9, 0), (0, 1), (5, 2))]
    put(layout.node_status(node, START, "00000001"), 5)
    put(layout.node_status(node, START + timedelta(days=8), "00000002"), 4)
    put(layout.node_status(other, START, "00000000"), 0)
    put(layout.nodes_prefix(CLUSTER) + "stray", 0)
    found = [info.name for info in retention.statuses(store, CLUSTER, START + timedelta(days=3))]
    assert sorted(found) == sorted(old)


def test_claims_of_one_prefix_as_they_age(store: LocalStore) -> None:
    for topic, day in (("t.shop.large", 0), ("t.shop.large", 8), ("t.eu.shop.large", 0), ("u.shop.large", 0)):
        name = layout.claim(topic, 1, day + 1)
        store.put(name, b"{}")
        at = (START + timedelta(days=day)).timestamp()
        os.utime(Path(store.url, name), (at, at))
    found = [info.name for info in retention.claims(store, "t", START + timedelta(days=7))]
    assert found == [layout.claim("t.shop.large", 1, 1)]


def test_records_that_a_voided_batch_had_settled_stay(store: LocalStore) -> None:
    ref = layout.SegmentRef(layout.NodeName(CLUSTER, "dc1", "a"), layout.SegmentName(5, 7))
    for position, settled_in in ((1, 3), (2, 4), (3, None)):
        record = ref.quarantined(position, 9)
        store.put(f"{record}.bin", b"bytes")
        store.put(f"{record}.json", json.dumps({"settled_in": settled_in}).encode())

    def gone(*voided: int) -> list[str]:
        found = retention.settled(store, CLUSTER, datetime.now(UTC) + timedelta(days=1), voided)
        return [info.name for info in found if info.name.endswith(".json")]

    assert gone() == [f"{ref.quarantined(1, 9)}.json", f"{ref.quarantined(2, 9)}.json"]
    assert gone(3) == [f"{ref.quarantined(2, 9)}.json"]
