"""One segment: what is confirmed before it is deleted, and what happens if the store has other bytes."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from shippers import upload
from shippers.upload import Outcome, ship
from tests.shippers.conftest import SEALED, Folder, ref
from tests.shippers.faults import FaultyStore
from tests.storage.memory import Fault, MemoryStore
from writetime.errors import ShipError, StoreError, StoreUnavailable
from writetime.pipeline.documents import SegmentInput
from writetime.storage.checksum import crc32c
from writetime.storage.layout import SegmentRef
from writetime.storage.local import LocalStore

SEALED_AT = datetime.fromtimestamp(SEALED, UTC)


def take_in(store: LocalStore, number: int) -> None:
    """Archive a segment under cdc/, as a batch does."""
    store.copy(ref(number).incoming, ref(number).archived(SEALED_AT))
    store.delete(ref(number).incoming)


def incoming(store: LocalStore) -> list[str]:
    return [info.name for info in store.list("cdc/")]


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
    """Both are kept, however often the segment returns, and neither takes space on the node."""
    before = store.put(ref(1).incoming, other)
    for _ in range(2):
        data = folder.segment(1)
        assert ship(store, ref(1), folder.path, {"host_id": "host-1"}) is Outcome.IN_CONFLICT
        assert folder.names == []
        assert incoming(store) == [ref(1).incoming, ref(1).conflict(crc32c(data))]
    assert store.head(ref(1).incoming) == before
    conflict = store.head(ref(1).conflict(crc32c(data)))
    assert conflict is not None
    assert conflict.name == f"cdc/ring/dc1/host-1/conflict-{crc32c(data):08x}/CommitLog-7-1.log"
    assert SegmentRef.from_conflict(conflict.name) == (ref(1), crc32c(data))
    assert store.read(conflict.name) == data
    assert conflict.metadata == {
        "sealed_at": "2026-01-01T00:00:00+00:00",
        "size": str(len(data)),
        "crc32c": str(crc32c(data)),
        "host_id": "host-1",
    }


def test_each_of_several_others_is_kept(store: LocalStore, folder: Folder) -> None:
    store.put(ref(1).incoming, b"squat")
    shipped = [folder.segment(1, data) for data in (b"one", b"two", b"one") if ship_once(store, folder, data)]
    assert [store.read(name) for name in incoming(store)[:1]] == [b"squat"]
    assert {store.read(name) for name in incoming(store)[1:]} == set(shipped)


def ship_once(store: LocalStore, folder: Folder, data: bytes) -> bool:
    folder.segment(1, data)
    return ship(store, ref(1), folder.path, {}) is Outcome.IN_CONFLICT


def test_other_bytes_are_there_under_the_name_of_the_conflict_too(store: LocalStore, folder: Folder) -> None:
    data = folder.segment(1)
    before = [store.put(name, b"other bytes") for name in (ref(1).incoming, ref(1).conflict(crc32c(data)))]
    for _ in range(2):
        with pytest.raises(ShipError, match="the store holds") as caught:
            ship(store, ref(1), folder.path, {})
        assert not caught.value.retriable
    assert (folder.path / "CommitLog-7-1.log").read_bytes() == data
    assert len(folder.names) == 2
    assert list(store.list("cdc/")) == before


@pytest.mark.parametrize(
    ("fault", "on"),
    [
        (Fault.UNAVAILABLE, "put"),
        (Fault.LOST_ANSWER, "put"),
        (Fault.GONE, "put"),
        (Fault.DAMAGED_UNSEEN, "put"),
        (Fault.UNAVAILABLE, "head"),
    ],
)
def test_a_conflict_is_confirmed_as_well(fault: Fault, on: str, folder: Folder) -> None:
    """The file stays until the store has confirmed the bytes under the other name."""
    store = MemoryStore()
    data = folder.segment(1)
    conflict = ref(1).conflict(crc32c(data))
    store.put(ref(1).incoming, b"other bytes")
    store.fail(fault, on=on, prefix=conflict)
    with pytest.raises((ShipError, StoreError)):
        ship(store, ref(1), folder.path, {})
    assert len(folder.names) == 2
    if fault is Fault.DAMAGED_UNSEEN:
        # A store that damages bytes twice is beyond help: nothing is deleted.
        with pytest.raises(ShipError, match="the store holds"):
            ship(store, ref(1), folder.path, {})
        assert len(folder.names) == 2
        return
    assert ship(store, ref(1), folder.path, {}) is Outcome.IN_CONFLICT
    assert store.read(conflict) == data
    assert folder.names == []


@pytest.mark.parametrize("data", [None, b"replayed differently"])
def test_a_segment_that_comes_back_after_a_batch_took_it_in_goes_up_again(store: LocalStore, folder: Folder, data: bytes | None) -> None:
    """With the same bytes or with others: planning compares them with its ledger, which a node may not
    read."""
    folder.segment(1)
    ship(store, ref(1), folder.path, {})
    take_in(store, 1)
    again = folder.segment(1, data)
    watched = FaultyStore(store)
    assert ship(watched, ref(1), folder.path, {}) is Outcome.UPLOADED
    assert store.read(ref(1).incoming) == again
    assert {name for _, name in watched.calls} == {ref(1).incoming}
    assert folder.names == []


def after_put(store: LocalStore, then: Callable[[], Any]) -> FaultyStore:
    """A store in which `then` happens between the upload and its verification."""

    class Meddled(FaultyStore):
        def put(self, *args: Any, **kwargs: Any) -> Any:
            info = super().put(*args, **kwargs)
            then()
            return info

    return Meddled(store)


def test_a_batch_takes_it_in_at_that_very_moment(store: LocalStore, folder: Folder) -> None:
    """The bytes were not confirmed, so they are uploaded again."""
    data = folder.segment(1)
    with pytest.raises(ShipError, match="is missing although") as caught:
        ship(after_put(store, lambda: take_in(store, 1)), ref(1), folder.path, {})
    assert caught.value.retriable
    assert len(folder.names) == 2
    assert ship(store, ref(1), folder.path, {}) is Outcome.UPLOADED
    assert store.read(ref(1).incoming) == data


@pytest.mark.parametrize("moment", ["before put", "before head", "after head"])
def test_a_batch_takes_in_what_an_earlier_shipper_uploaded(store: LocalStore, folder: Folder, moment: str) -> None:
    """It died after the upload. Whenever the object is archived meanwhile, the bytes are in the archive or
    under cdc/, and not lost.
    """
    data = folder.segment(1)
    store.put(ref(1).incoming, data)

    class Meddled(FaultyStore):
        def _call(self, what: str, name: str, *args: Any, **kwargs: Any) -> Any:
            if moment == f"before {what}" and store.head(ref(1).incoming):
                take_in(store, 1)
            answer = super()._call(what, name, *args, **kwargs)
            if moment == f"after {what}":
                take_in(store, 1)
            return answer

    meddled = Meddled(store)
    if moment == "before head":
        with pytest.raises(ShipError, match="is missing although"):
            ship(meddled, ref(1), folder.path, {})
        assert len(folder.names) == 2
    expected = Outcome.ALREADY_THERE if moment == "after head" else Outcome.UPLOADED
    assert ship(store if moment == "before head" else meddled, ref(1), folder.path, {}) is expected
    assert folder.names == []
    assert store.read(ref(1).archived(SEALED_AT)) == data
    assert incoming(store) == ([] if moment == "after head" else [ref(1).incoming])


@pytest.mark.parametrize(
    ("what", "then"),
    [("deleted", Outcome.UPLOADED), ("replaced", Outcome.ALREADY_THERE), ("other bytes", Outcome.IN_CONFLICT)],
)
@pytest.mark.advice("Another writer replaced the object.", "The file is kept and shipped again.")
def test_what_happens_to_the_object_before_it_is_verified(store: LocalStore, folder: Folder, what: str, then: Outcome) -> None:
    data = folder.segment(1)
    name = ref(1).incoming
    harm: dict[str, Callable[[], Any]] = {
        "deleted": lambda: store.delete(name),
        "replaced": lambda: store.put(name, data),
        "other bytes": lambda: store.put(name, b"x" * len(data)),
    }
    with pytest.raises(ShipError) as caught:
        ship(after_put(store, harm[what]), ref(1), folder.path, {})
    assert caught.value.retriable
    assert (folder.path / "CommitLog-7-1.log").read_bytes() == data
    assert ship(store, ref(1), folder.path, {}) is then
    assert data in [store.read(found) for found in incoming(store)]


@pytest.mark.advice("The file is kept and compared again in the next round.")
def test_the_file_changes_while_it_is_shipped(store: LocalStore, folder: Folder) -> None:
    data = folder.segment(1)
    other = b"y" * len(data)
    with pytest.raises(ShipError, match="changed") as caught:
        ship(after_put(store, lambda: (folder.path / "CommitLog-7-1.log").write_bytes(other)), ref(1), folder.path, {})
    assert caught.value.retriable
    assert len(folder.names) == 2
    assert ship(store, ref(1), folder.path, {}) is Outcome.IN_CONFLICT
    assert [store.read(name) for name in incoming(store)] == [data, other]


def test_the_file_vanishes_underfoot(store: LocalStore, folder: Folder) -> None:
    folder.segment(1)
    with pytest.raises(ShipError, match="cdc_block_writes"):
        ship(after_put(store, (folder.path / "CommitLog-7-1.log").unlink), ref(1), folder.path, {})
    with pytest.raises(ShipError, match="cdc_block_writes"):
        ship(store, ref(2), folder.path, {})


@pytest.mark.advice("The file is kept. Check its owner and mode")
def test_a_file_that_cannot_be_read(store: LocalStore, folder: Folder, monkeypatch: pytest.MonkeyPatch) -> None:
    folder.segment(1)

    def refuse(_: object) -> None:
        raise PermissionError(13, "Permission denied")

    with monkeypatch.context() as patch:
        patch.setattr(upload, "crc32c_of", refuse)
        with pytest.raises(ShipError, match="Permission denied"):
            ship(store, ref(1), folder.path, {})
    assert store.head(ref(1).incoming) is None
    assert ship(store, ref(1), folder.path, {}) is Outcome.UPLOADED


@pytest.mark.advice("Run the shipper as a user that may write to cdc_raw.")
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
    assert watched.calls == [("put", ref(1).incoming), ("head", ref(1).incoming)]


def test_a_conflict_is_looked_at_only_where_it_is_one(store: LocalStore, folder: Folder) -> None:
    data = folder.segment(1)
    store.put(ref(1).incoming, b"other bytes")
    watched = FaultyStore(store)
    ship(watched, ref(1), folder.path, {})
    conflict = ref(1).conflict(crc32c(data))
    assert watched.calls == [("put", ref(1).incoming), ("head", ref(1).incoming), ("put", conflict), ("head", conflict)]


def test_an_unavailable_store_is_passed_on(store: LocalStore, folder: Folder, monkeypatch: pytest.MonkeyPatch) -> None:
    folder.segment(1)

    def unavailable(*_: object, **__: object) -> None:
        raise StoreUnavailable("503")

    monkeypatch.setattr(store, "put", unavailable)
    with pytest.raises(StoreUnavailable):
        ship(store, ref(1), folder.path, {})
    assert len(folder.names) == 2


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


def test_bytes_in_doubt_are_read_again(folder: Folder) -> None:
    store, measured = MemoryStore(), upload.Measured()
    folder.segment(1)
    store.fail(Fault.DAMAGED_UNSEEN, on="put")
    with pytest.raises(ShipError, match="the store holds"):
        ship(store, ref(1), folder.path, {}, measured)
    assert not measured._known
    assert len(folder.names) == 2


@pytest.mark.parametrize(
    ("stored", "outcome"),
    [(None, Outcome.UPLOADED), (b"", Outcome.IN_CONFLICT), ("same", Outcome.ALREADY_THERE)],
)
def test_what_is_foreseen_comes_true(store: LocalStore, folder: Folder, stored: bytes | str | None, outcome: Outcome) -> None:
    data = folder.segment(1)
    if stored is not None:
        store.put(ref(1).incoming, data if isinstance(stored, str) else stored)
    before = list(store.list())
    assert upload.foresee(store, ref(1), folder.path) is outcome
    assert list(store.list()) == before
    assert len(folder.names) == 2
    assert ship(store, ref(1), folder.path, {}) is outcome
