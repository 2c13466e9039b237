"""What a batch's first run decides, and that no other run of it, however late, decides anything else."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest

from tests.storage.memory import MemoryStore
from writetime.config.pipeline import PipelineConfig, load
from writetime.errors import BatchBusy, BatchError
from writetime.pipeline import pinned
from writetime.pipeline.documents import Manifest, RefusedTable, Sealed, SegmentInput, ShardVersions
from writetime.storage import layout

AT = datetime(2026, 5, 4, 12, 0, tzinfo=UTC)
MANIFEST = Manifest(number=3, kind="ingest", cluster="c", created_at=AT, now=1, base=0, segments=[])
ORDERS = RefusedTable(table="shop.orders", table_id=UUID(int=1), reason="its name is taken")
CARTS = RefusedTable(table="shop.carts", table_id=UUID(int=2), reason="it cannot be written")
PLAIN = """
pipeline: p
cluster: {name: c, datacenters: [dc1]}
bucket: BUCKET
"""
MASKED = (
    PLAIN
    + """
buckets: 8
tables: {include: ["shop.*"]}
columns:
  column.mask.with.5.chars: shop.orders.email
  column.mask.hash.SHA-256.with.salt: shop.orders.name
  salt: "${SALT}"
events: {deletes: one}
"""
)


@pytest.fixture
def store() -> MemoryStore:
    return MemoryStore()


def config(folder: Path, text: str) -> PipelineConfig:
    path = folder / "pipeline.yaml"
    path.write_text(text.replace("BUCKET", str(folder / "bucket")))
    return load(path)


def test_an_edit_of_the_configuration_counts_from_the_next_batch(
    store: MemoryStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SALT", "pepper")
    masked, plain = config(tmp_path, MASKED), config(tmp_path, PLAIN)
    assert pinned.configuration(store, MANIFEST, masked) is masked
    by_now = plain.model_copy(update={"columns": plain.columns.model_copy(update={"salt": masked.columns.salt})})
    later = pinned.configuration(store, MANIFEST, by_now)
    assert pinned.Deciding.of(later) == pinned.Deciding.of(masked)
    assert later.columns.rules == masked.columns.rules
    assert later.bucket == plain.bucket
    following = MANIFEST.model_copy(update={"number": 4})
    assert pinned.configuration(store, following, plain) is plain


@pytest.mark.advice("Restore `columns.salt` until the batch is sealed.")
def test_no_secret_is_pinned_and_without_it_the_batch_says_what_it_needs(
    store: MemoryStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SALT", "pepper-and-more")
    pinned.configuration(store, MANIFEST, config(tmp_path, MASKED))
    assert b"pepper" not in store.read(layout.batch_object("c", 3, "config"))
    with pytest.raises(BatchError, match="hashes need a `salt`") as caught:
        pinned.configuration(store, MANIFEST, config(tmp_path, PLAIN))
    assert "pepper" not in str(caught.value)
    restored = pinned.configuration(store, MANIFEST, config(tmp_path, MASKED))
    assert restored.columns.salt is not None


def test_everybody_goes_by_the_verdicts_of_the_first_run(store: MemoryStore) -> None:
    assert pinned.verdicts(store, MANIFEST) == pinned.Known(False, {}, 0)
    first = pinned.pin_verdicts(store, MANIFEST, [ORDERS])
    assert first == pinned.Known(True, {ORDERS.table_id: ORDERS}, 0, frozenset({ORDERS.table_id}))
    other = ORDERS.model_copy(update={"reason": "another reason"})
    assert pinned.pin_verdicts(store, MANIFEST, [other]) == first, "what is refused stays refused, for the reason of the first run"
    second = pinned.pin_verdicts(store, MANIFEST, [CARTS])
    assert second == pinned.Known(True, {ORDERS.table_id: ORDERS, CARTS.table_id: CARTS}, 1, frozenset({ORDERS.table_id}))
    pinned.add_verdict(store, MANIFEST, CARTS)
    assert pinned.verdicts(store, MANIFEST) == second


def test_two_runs_that_add_a_verdict_at_once(store: MemoryStore, monkeypatch: pytest.MonkeyPatch) -> None:
    put = store.put

    def beaten(name: str, *given: Any, **options: Any) -> Any:
        monkeypatch.setattr(store, "put", put)
        pinned.add_verdict(store, MANIFEST, ORDERS)
        return put(name, *given, **options)

    monkeypatch.setattr(store, "put", beaten)
    pinned.add_verdict(store, MANIFEST, CARTS)
    known = pinned.verdicts(store, MANIFEST)
    assert (set(known.refused), known.additions) == ({ORDERS.table_id, CARTS.table_id}, 2)


def test_rows_of_a_table_that_a_run_may_have_opened_before_it_was_rejected_do_not_count() -> None:
    orders, carts = ORDERS.table_id, CARTS.table_id
    sealed = Sealed(number=1, kind="ingest", sealed_at=AT, segments=[], accounting=[], state={str(orders): ShardVersions(buckets=[0])})

    def after(before: Sealed, number: int, late: Sequence[UUID], refused: Sequence[UUID]) -> Sealed:
        state = {name: versions.captured_up_to(before.number) for name, versions in before.state.items()}
        state |= {} if orders in refused else {str(orders): ShardVersions(buckets=[0])}
        found = before.with_late_rejections(late, refused, number)
        return before.model_copy(update={"number": number, "state": state, "late_rejections": found})

    # Rejected by all runs of batch 2, late in batches 3 and 6, by all runs in between; captured in 8, and late again in 9.
    for number, late, refused in ((2, [], [orders]), (3, [orders], [orders]), (5, [], [orders]), (6, [orders], [orders])):
        sealed = after(sealed, number, late, refused)
    assert sealed.late_rejections == {orders: [(3, 6)]}
    sealed = after(after(sealed, 8, [], []), 9, [orders, carts], [orders, carts])
    assert sealed.late_rejections == {orders: [(3, 6), (9, 9)], carts: [(9, 9)]}
    # One that was never captured has no state.
    sealed = after(sealed, 10, [carts], [carts])
    assert sealed.late_rejections == {orders: [(3, 6), (9, 9)], carts: [(9, 10)]}
    assert sealed.model_copy(update={"voided": {7: None}}).without_effect(orders) == {3, 4, 5, 6, 7, 9}
    assert Sealed.model_validate_json(sealed.to_bytes()) == sealed


@pytest.mark.advice("Restore the same bytes under those names and run the batch again.")
def test_what_has_gone_since_a_batch_read_it_is_an_error_and_what_came_back_stays_out(store: MemoryStore) -> None:
    assert pinned.absent(store, MANIFEST) is None
    pinned.pin_absent(store, MANIFEST, {"cdc/a"})
    assert pinned.absent(store, MANIFEST) == {"cdc/a"}
    pinned.pin_absent(store, MANIFEST, {"cdc/a"})
    with pytest.raises(BatchError, match="1 segments that the batch has read before are missing: cdc/b") as lost:
        pinned.pin_absent(store, MANIFEST, {"cdc/a", "cdc/b"})
    assert not lost.value.retriable
    pinned.pin_absent(store, MANIFEST, {"cdc/a"})
    with pytest.raises(BatchBusy):
        pinned.pin_absent(store, MANIFEST, set())


def test_what_a_batch_goes_without_is_read_as_gone() -> None:
    segment = SegmentInput(object="cdc/c/dc1/n/CommitLog-7-1.log", generation=1, size=1, crc32c=1, sealed_at=AT)
    assert pinned.as_pinned([segment], frozenset()) == [segment]
    assert pinned.as_pinned([segment], frozenset({segment.object}))[0].crc32c == -1
