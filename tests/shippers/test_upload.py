"""One segment: what is confirmed before it is deleted, and what is done when the store holds something else."""

from __future__ import annotations

import json
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from shippers import upload
from shippers.upload import Outcome, ship
from tests.shippers.conftest import SEALED, Folder, ref
from tests.shippers.faults import FaultyStore
from writetime.batch.documents import LedgerEntry, SegmentInput
from writetime.batch.shelve import let_go, pack
from writetime.errors import ShipError, StoreUnavailable
from writetime.store.checksum import crc32c
from writetime.store.local import LocalStore

SEALED_AT = datetime.fromtimestamp(SEALED, UTC)


def process(store: LocalStore, number: int, state: str = "archived", *, keep_incoming: bool = False) -> LedgerEntry:
    """What the pipeline does to a segment under cdc/."""
    segment = ref(number)
    info = store.head(segment.incoming)
    assert info is not None
    target = segment.archived(SEALED_AT)
    if state == "archived":
        store.copy(segment.incoming, target)
    entry = LedgerEntry.model_validate(
        {
            "object": segment.incoming,
            "state": state,
            "size": info.size,
            "crc32c": info.crc32c,
            "sealed_at": SEALED_AT,
            "batch": 1,
            "archived_as": target if state == "archived" else None,
            "updated_at": SEALED_AT,
        }
    )
    store.put(segment.ledger, entry.to_bytes())
    if state == "archived" and not keep_incoming:
        store.delete(segment.incoming)
    return entry


def test_a_segment_is_uploaded_verified_and_deleted(store: LocalStore, folder: Folder) -> None:
    data = folder.segment(1)
    assert ship(store, ref(1), folder.path, {"host_id": "host-1"}) is Outcome.UPLOADED
    assert folder.names == []
    assert store.read("cdc/ring/dc1/host-1/CommitLog-7-1.log") == data
    info = store.head(ref(1).incoming)
    assert info is not None
    assert info.metadata == {
        "sealed_at": "2026-01-01T00:00:00+00:00",
        "size": str(len(data)),
        "crc32c": str(crc32c(data)),
        "host_id": "host-1",
    }
    assert SegmentInput.from_object(info).sealed_at == SEALED_AT


def test_it_was_there_already(store: LocalStore, folder: Folder) -> None:
    data = folder.segment(1)
    before = store.put(ref(1).incoming, data, metadata={"sealed_at": "2026-01-01T00:00:00+00:00"})
    assert ship(store, ref(1), folder.path, {}) is Outcome.ALREADY_THERE
    assert folder.names == []
    assert store.head(ref(1).incoming) == before


@pytest.mark.parametrize("other", [b"", b"other bytes", b"segment 1 " * 39])
def test_other_bytes_are_there(store: LocalStore, folder: Folder, other: bytes) -> None:
    data = folder.segment(1)
    before = store.put(ref(1).incoming, other)
    for _ in range(2):
        with pytest.raises(ShipError, match="the store holds") as caught:
            ship(store, ref(1), folder.path, {})
        assert not caught.value.retriable
    assert (folder.path / "CommitLog-7-1.log").read_bytes() == data
    assert len(folder.names) == 2
    assert store.head(ref(1).incoming) == before


def test_a_segment_that_comes_back_after_it_was_processed(store: LocalStore, folder: Folder) -> None:
    folder.segment(1)
    ship(store, ref(1), folder.path, {})
    process(store, 1)
    folder.segment(1)
    assert ship(store, ref(1), folder.path, {}) is Outcome.ALREADY_PROCESSED
    assert folder.names == []
    assert store.head(ref(1).incoming) is None


def test_a_segment_that_comes_back_with_other_bytes(store: LocalStore, folder: Folder) -> None:
    folder.segment(1)
    ship(store, ref(1), folder.path, {})
    process(store, 1)
    folder.segment(1, b"replayed differently")
    with pytest.raises(ShipError, match="cdc_archive"):
        ship(store, ref(1), folder.path, {})
    assert len(folder.names) == 2
    assert store.head(ref(1).incoming) is None


@pytest.mark.parametrize("noted", [True, False])
def test_a_segment_that_was_packed_since_is_known(store: LocalStore, folder: Folder, noted: bool) -> None:
    """`noted` False: it is packed between the look at the ledger and the look at the archive."""
    folder.segment(1)
    ship(store, ref(1), folder.path, {})
    entry = process(store, 1)
    assert entry.archived_as is not None
    pack(store, entry.archived_as, 3)
    if not noted:
        store.put(ref(1).ledger, entry.to_bytes())
    folder.segment(1)
    assert ship(store, ref(1), folder.path, {}) is Outcome.ALREADY_PROCESSED
    assert folder.names == []
    folder.segment(1, b"replayed differently")
    with pytest.raises(ShipError, match=r"cdc_archive.*\.zst"):
        ship(store, ref(1), folder.path, {})
    assert len(folder.names) == 2


def test_a_segment_that_the_archive_has_let_go_is_known_by_the_ledger(store: LocalStore, folder: Folder) -> None:
    folder.segment(1)
    ship(store, ref(1), folder.path, {})
    entry = process(store, 1)
    assert entry.archived_as is not None
    held = store.head(entry.archived_as)
    assert held is not None
    let_go(store, held)
    folder.segment(1)
    assert ship(store, ref(1), folder.path, {}) is Outcome.ALREADY_PROCESSED
    assert folder.names == []
    folder.segment(1, b"replayed differently")
    with pytest.raises(ShipError, match="ledger/"):
        ship(store, ref(1), folder.path, {})
    assert len(folder.names) == 2


def test_the_ledger_alone_is_not_believed(store: LocalStore, folder: Folder) -> None:
    folder.segment(1)
    ship(store, ref(1), folder.path, {})
    entry = process(store, 1)
    assert entry.archived_as is not None
    store.delete(entry.archived_as)
    folder.segment(1)
    with pytest.raises(ShipError, match="not there"):
        ship(store, ref(1), folder.path, {})
    assert len(folder.names) == 2


@pytest.mark.parametrize("content", [b"", b"[]", b"{}", b'{"state": "archived"}'])
def test_a_ledger_entry_that_is_none(store: LocalStore, folder: Folder, content: bytes) -> None:
    folder.segment(1)
    store.put(ref(1).ledger, content)
    with pytest.raises(ShipError, match="no ledger entry"):
        ship(store, ref(1), folder.path, {})
    assert len(folder.names) == 2


@pytest.mark.parametrize("state", ["quarantined", "retry"])
def test_a_quarantined_segment_is_still_compared_with_the_incoming_one(store: LocalStore, folder: Folder, state: str) -> None:
    folder.segment(1)
    ship(store, ref(1), folder.path, {})
    process(store, 1, state)
    folder.segment(1)
    assert ship(store, ref(1), folder.path, {}) is Outcome.ALREADY_THERE
    assert folder.names == []


def after_put(store: LocalStore, then: Callable[[], Any]) -> FaultyStore:
    """A store in which `then` happens between the upload and its verification."""

    class Meddled(FaultyStore):
        def put(self, *args: Any, **kwargs: Any) -> Any:
            info = super().put(*args, **kwargs)
            then()
            return info

    return Meddled(store)


def test_a_batch_takes_it_in_while_it_is_looked_for(store: LocalStore, folder: Folder) -> None:
    """An earlier shipper died after the upload. Between any two looks of this one the object is archived: it is not put there again."""
    for moment in (("head", 0), ("head", 1), ("read", 0), ("read", 1)):
        own = LocalStore(f"{store.url}-{moment[0]}-{moment[1]}")
        data = folder.segment(1)
        own.put(ref(1).incoming, data)

        class Meddled(FaultyStore):
            def _call(self, what: str, name: str, *args: Any, at: tuple[str, int] = moment, to: LocalStore = own, **kwargs: Any) -> Any:
                if what == at[0] and not at[1] and to.head(ref(1).incoming):
                    process(to, 1)
                try:
                    return super()._call(what, name, *args, **kwargs)
                finally:
                    if what == at[0] and at[1] and to.head(ref(1).incoming):
                        process(to, 1)

        assert ship(Meddled(own), ref(1), folder.path, {}) in (Outcome.ALREADY_THERE, Outcome.ALREADY_PROCESSED)
        if own.head(ref(1).incoming):
            process(own, 1)
        assert [info.name for info in own.list("cdc")] == [ref(1).archived(SEALED_AT)]
        assert folder.names == []


def test_a_batch_takes_it_in_at_that_very_moment(store: LocalStore, folder: Folder) -> None:
    folder.segment(1)
    assert ship(after_put(store, lambda: process(store, 1)), ref(1), folder.path, {}) is Outcome.ALREADY_PROCESSED
    assert folder.names == []


@pytest.mark.parametrize("what", ["deleted", "replaced", "other bytes"])
def test_what_happens_to_the_object_before_it_is_verified(store: LocalStore, folder: Folder, what: str) -> None:
    data = folder.segment(1)
    name = ref(1).incoming
    harm: dict[str, Callable[[], Any]] = {
        "deleted": lambda: store.delete(name),
        "replaced": lambda: store.put(name, data),
        "other bytes": lambda: store.put(name, b"x" * len(data)),
    }
    with pytest.raises(ShipError) as caught:
        ship(after_put(store, harm[what]), ref(1), folder.path, {})
    assert caught.value.retriable == (what != "other bytes")
    assert (folder.path / "CommitLog-7-1.log").read_bytes() == data


def test_the_file_changes_while_it_is_shipped(store: LocalStore, folder: Folder) -> None:
    data = folder.segment(1)

    def rewrite() -> None:
        (folder.path / "CommitLog-7-1.log").write_bytes(b"y" * len(data))

    with pytest.raises(ShipError, match="changed") as caught:
        ship(after_put(store, rewrite), ref(1), folder.path, {})
    assert caught.value.retriable
    assert len(folder.names) == 2
    with pytest.raises(ShipError, match="the store holds"):
        ship(store, ref(1), folder.path, {})


def test_the_file_vanishes_underfoot(store: LocalStore, folder: Folder) -> None:
    folder.segment(1)
    with pytest.raises(ShipError, match="cdc_block_writes"):
        ship(after_put(store, (folder.path / "CommitLog-7-1.log").unlink), ref(1), folder.path, {})
    with pytest.raises(ShipError, match="cdc_block_writes"):
        ship(store, ref(2), folder.path, {})


def test_a_file_that_cannot_be_read(store: LocalStore, folder: Folder, monkeypatch: pytest.MonkeyPatch) -> None:
    folder.segment(1)

    def refuse(_: object) -> None:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(upload, "crc32c_of", refuse)
    with pytest.raises(ShipError, match="Permission denied"):
        ship(store, ref(1), folder.path, {})
    assert store.head(ref(1).incoming) is None


def test_a_file_that_cannot_be_deleted(store: LocalStore, folder: Folder, monkeypatch: pytest.MonkeyPatch) -> None:
    data = folder.segment(1)

    def refuse(*_: object, **__: object) -> None:
        raise PermissionError(13, "Permission denied")

    with monkeypatch.context() as patch:
        patch.setattr(upload.Path, "unlink", refuse)
        with pytest.raises(ShipError, match="safe in the bucket"):
            upload.remove(folder.path / "CommitLog-7-1.log")
    assert (folder.path / "CommitLog-7-1.log").read_bytes() == data
    assert ship(store, ref(1), folder.path, {}) is Outcome.UPLOADED


def test_an_empty_completed_segment_is_shipped_too(store: LocalStore, folder: Folder) -> None:
    folder.segment(1, b"")
    assert ship(store, ref(1), folder.path, {}) is Outcome.UPLOADED
    assert store.read(ref(1).incoming) == b""
    assert folder.names == []


def test_the_store_is_asked_anew_after_the_upload(store: LocalStore, folder: Folder) -> None:
    folder.segment(1)
    watched = FaultyStore(store)
    ship(watched, ref(1), folder.path, {})
    incoming = ref(1).incoming
    assert watched.calls == [("head", incoming), ("read", ref(1).ledger), ("put", incoming), ("head", incoming)]


def test_an_unavailable_store_is_passed_on(store: LocalStore, folder: Folder, monkeypatch: pytest.MonkeyPatch) -> None:
    folder.segment(1)

    def unavailable(*_: object, **__: object) -> None:
        raise StoreUnavailable("503")

    monkeypatch.setattr(store, "put", unavailable)
    with pytest.raises(StoreUnavailable):
        ship(store, ref(1), folder.path, {})
    assert len(folder.names) == 2


def test_the_ledger_is_read_as_the_pipeline_writes_it(store: LocalStore, folder: Folder) -> None:
    folder.segment(1)
    ship(store, ref(1), folder.path, {})
    process(store, 1)
    assert {"state", "archived_as"} <= json.loads(store.read(ref(1).ledger)).keys()


def test_what_was_measured_is_kept_while_the_file_is_the_same(folder: Folder, monkeypatch: pytest.MonkeyPatch) -> None:
    read, real = [], upload.crc32c_of

    def crc32c_of(path: Path) -> tuple[int, int]:
        read.append(path.name)
        return real(path)

    monkeypatch.setattr(upload, "crc32c_of", crc32c_of)
    measured = upload.Measured(limit=2)
    folder.segment(1)
    before = measured.of(ref(1), folder.path)
    assert measured.of(ref(1), folder.path) == before
    assert len(read) == 1
    changed = folder.segment(1, b"x" * before.size)
    assert measured.of(ref(1), folder.path).crc32c == crc32c(changed), "size and mtime are as before"
    for number in (2, 3):
        folder.segment(number)
        measured.of(ref(number), folder.path)
    measured.of(ref(3), folder.path)
    assert len(read) == 4
    measured.of(ref(1), folder.path)
    assert len(read) == 5, "no more than the limit are kept"


def test_bytes_in_doubt_are_read_again(store: LocalStore, folder: Folder) -> None:
    folder.segment(1)
    store.put(ref(1).incoming, b"other bytes")
    measured = upload.Measured()
    with pytest.raises(ShipError, match="the store holds"):
        ship(store, ref(1), folder.path, {}, measured)
    assert not measured._known
