"""Finding segments: each way in, page by page, and what it may read for it."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.monitoring import bucket
from writetime.monitoring import ledger
from writetime.monitoring.ledger import Query, Row, find, minute_of, search
from writetime.pipeline.batch_history import Batches
from writetime.storage.local import LocalStore


def everything(batches: Batches, query: Query, size: int = 4) -> list[Row]:
    rows, cursor = [], ""
    while True:
        page = search(batches, query, cursor=cursor, size=size)
        rows += page.rows
        if not page.next:
            return rows
        assert page.next != cursor
        cursor = page.next


def test_all_of_them_the_newest_first(batches: Batches) -> None:
    rows = everything(batches, Query())
    assert len({row.object for row in rows}) == len(rows) == 8 * 6 - 2
    assert [row.sealed_at for row in rows] == sorted((row.sealed_at for row in rows), reverse=True)
    assert {row.state for row in rows} == {"archived", "quarantined"}


def test_a_page_reads_the_entries_that_it_shows(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store = LocalStore(folder)
    batches = Batches(store, bucket.CLUSTER)
    read: list[str] = []
    listed: list[str] = []
    real_read, real_list = store.read, store.list
    monkeypatch.setattr(store, "read", lambda name, **more: read.append(name) or real_read(name, **more))
    monkeypatch.setattr(store, "list", lambda prefix="", **more: listed.append(prefix) or real_list(prefix, **more))
    assert len(search(batches, Query(), size=3).rows) == 3
    assert len([name for name in read if name.startswith("ledger/")]) == 3
    assert not [prefix for prefix in listed if prefix.startswith("ledger/")]


@pytest.mark.parametrize(
    ("query", "count"),
    [
        (Query(node="00000002"), 14),
        (Query(node="no such node"), 0),
        (Query(state="quarantined"), 1),
        (Query(state="archived", node="00000001"), 15),
        (Query(state="growing"), 1),
        (Query(state="waiting"), 1),
        (Query(state="retry"), 0),
        (Query(minute=bucket.minute(4)), 6),
        (Query(minute=bucket.minute(4), node="00000003"), 2),
        (Query(minute=bucket.minute(3)), 6),
        (Query(minute=bucket.minute(3), state="quarantined"), 1),
        (Query(minute=bucket.minute(600)), 0),
        (Query(name="CommitLog-7-1777890000008.log"), 3),
        (Query(name="1777890000008"), 3),
        (Query(name="1777890000008", node="00000003"), 1),
        (Query(name="CommitLog-7-177789000000"), 3 * 8 - 2),
        (Query(name="1777890000004"), 2),
        (Query(name="99"), 0),
        (Query(name="../../etc/passwd"), 0),
        (Query(name="<script>"), 0),
        (Query(name=bucket.ref(0, 6).incoming), 1),
        (Query(name=bucket.ref(0, 8).archived(bucket.minute(4))), 1),
    ],
    ids=str,
)
def test_what_is_asked_for_is_found(batches: Batches, query: Query, count: int) -> None:
    rows = everything(batches, query)
    assert len(rows) == count
    assert all(query.takes(row) for row in rows)


def test_a_segment_that_nobody_has_taken_in_waits(batches: Batches) -> None:
    row = find(batches, bucket.ref(0, 10**6).incoming)
    assert row is not None
    assert (row.state, row.entry) == ("waiting", None)
    assert find(batches, bucket.ref(0, 10**6).incoming.replace("Prod", "Other")) is None
    assert find(batches, "cdc/x") is None


def test_of_many_names_that_begin_alike_some_are_shown_and_it_says_so(batches: Batches, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ledger, "_ALIKE", 5)
    page = search(batches, Query(name="CommitLog-7-17"))
    assert len(page.rows) == 5
    assert "first 5 names" in page.note
    assert search(batches, Query(name="CommitLog-7-1777890000008")).note == ""


@pytest.mark.parametrize("cursor", ["x", "9999999999999999999999.0", "-1.-1", "99.99", "²"])
def test_a_cursor_that_is_none_breaks_nothing(batches: Batches, cursor: str) -> None:
    assert len(search(batches, Query(), cursor=cursor, size=3).rows) in (0, 3)
    search(batches, Query(state="quarantined"), cursor=cursor)


def test_minutes_as_people_write_them() -> None:
    assert minute_of("2026-05-04T12:04") == minute_of("2026-05-04 12:04:59Z") == minute_of("2026-05-04T14:04+02:00") == bucket.minute(4)
    assert minute_of("noon") is None
