"""Packing and letting go against a real folder store: nothing is lost wherever it dies, and a second attempt
ends the same."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from tests.shippers.faults import Died, Faults, FaultyStore, Harm
from tests.storage import gcs_stub
from writetime.errors import ChecksumMismatch, ObjectNotFound, PreconditionFailed
from writetime.pipeline.archive_packing import (
    Done,
    Work,
    let_go,
    pack,
    to_let_go,
    to_pack,
)
from writetime.pipeline.documents import LedgerEntry
from writetime.storage import layout, open_store, segment_object
from writetime.storage.checksum import crc32c
from writetime.storage.local import LocalStore
from writetime.storage.store import Store

NODE = layout.NodeName("ring", "dc1", "host-1")
NOON = datetime(2026, 5, 4, 12, 30, tzinfo=UTC)
CONTENT = b"mutation " * 500


@dataclass
class Archive:
    """An archive with its ledger."""

    store: Store

    def put(self, number: int, sealed_at: datetime = NOON, content: bytes = CONTENT, *, noted: bool = True) -> str:
        ref = layout.SegmentRef(NODE, layout.SegmentName(number, 7))
        name = ref.archived(sealed_at)
        self.store.put(name, content, metadata={"sealed_at": sealed_at.isoformat()})
        entry = LedgerEntry(
            object=ref.incoming,
            state="archived",
            size=len(content),
            crc32c=crc32c(content),
            sealed_at=sealed_at,
            batch=3,
            frames=7,
            archived_as=name,
            updated_at=sealed_at,
        )
        if noted:
            self.store.put(ref.ledger, entry.to_bytes())
        return name

    def entry(self, number: int) -> LedgerEntry:
        entry = LedgerEntry.read(self.store, layout.SegmentRef(NODE, layout.SegmentName(number, 7)).ledger)
        assert entry is not None
        return entry

    @property
    def names(self) -> list[str]:
        return [info.name for info in self.store.list("cdc_archive/")]


@pytest.fixture(params=["folder", "gcs"])
def archive(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Archive]:
    if request.param == "folder":
        yield Archive(LocalStore(tmp_path / "bucket"))
        return
    with gcs_stub.running() as stub:
        monkeypatch.setenv("STORAGE_EMULATOR_HOST", stub.url)
        yield Archive(open_store(f"gs://{gcs_stub.BUCKET}"))


def test_a_segment_is_packed_and_the_ledger_says_so(archive: Archive) -> None:
    name = archive.put(1)
    done = pack(archive.store, name, 3)
    (held,) = archive.store.list("cdc_archive/")
    assert held.name == layout.packed(name)
    assert (done.before, done.after, done.trouble) == (len(CONTENT), held.size, "")
    assert held.size < len(CONTENT) / 10
    assert segment_object.read(archive.store, held.name) == CONTENT
    assert held.metadata["sealed_at"] == NOON.isoformat()
    entry = archive.entry(1)
    assert (entry.state, entry.archived_as, entry.stored, entry.size, entry.crc32c) == (
        "archived",
        held.name,
        held.size,
        len(CONTENT),
        crc32c(CONTENT),
    )
    assert (entry.batch, entry.frames, entry.history) == (3, 7, [])


def test_what_cannot_be_made_smaller_is_packed_once_all_the_same(archive: Archive) -> None:
    name = archive.put(1, content=b"\x8f")
    assert pack(archive.store, name, 3).after > 1
    assert segment_object.read(archive.store, layout.packed(name)) == b"\x8f"


def dying(store: Store, point: int) -> FaultyStore:
    """A store whose caller dies at that point: before or after one of its calls."""
    return FaultyStore(store, Faults(point, Harm.DEATH))


def is_whole(archive: Archive, name: str) -> None:
    """The segment is there, and the ledger leads to it."""
    entry = archive.entry(1)
    assert entry.archived_as in archive.names
    assert entry.archived_as is not None
    assert segment_object.read(archive.store, entry.archived_as) == CONTENT
    assert segment_object.read(archive.store, name, crc32c_of_it=crc32c(CONTENT)) == CONTENT, "as a manifest has pinned it"
    (listed,) = segment_object.listed(archive.store, "cdc_archive/")
    assert segment_object.content_of(listed) == (len(CONTENT), crc32c(CONTENT))


def test_death_at_every_step_of_packing_loses_nothing(tmp_path: Path) -> None:
    steps = 0
    for point in range(100):
        archive = Archive(LocalStore(tmp_path / f"bucket-{point}"))
        name = archive.put(1)
        try:
            pack(dying(archive.store, point), name, 3)
            break
        except Died:
            steps += 1
        is_whole(archive, name)
        if name in archive.names:
            pack(archive.store, name, 3)
        assert archive.names == [layout.packed(name)]
        assert archive.entry(1).archived_as == layout.packed(name)
        is_whole(archive, name)
    # Before and after head, read; head, put; read; head; head, read, put; delete.
    assert steps == 20


def test_two_at_once_end_the_same(archive: Archive) -> None:
    name = archive.put(1)

    class Meddled(FaultyStore):
        def put(self, *args: Any, **kwargs: Any) -> Any:
            if args[0] == layout.packed(name):
                pack(archive.store, name, 9)
            return super().put(*args, **kwargs)

    pack(Meddled(archive.store), name, 3)
    assert archive.names == [layout.packed(name)]
    is_whole(archive, name)
    with pytest.raises(ObjectNotFound):
        pack(archive.store, name, 3)


@pytest.mark.parametrize(
    "spoil",
    [
        lambda store, name: store.put(layout.packed(name), segment_object.pack(b"other", 3)),
        lambda store, name: store.put(layout.packed(name), segment_object.pack(CONTENT, 3)),
        lambda store, name: store.put(layout.packed(name), segment_object.pack(CONTENT, 3), metadata={"size": "4500", "crc32c": "1"}),
    ],
)
def test_a_packed_form_that_is_not_the_same_deletes_nothing(archive: Archive, spoil: Callable[[Store, str], None]) -> None:
    name = archive.put(1)
    spoil(archive.store, name)
    with pytest.raises(ChecksumMismatch, match="Nothing was deleted"):
        pack(archive.store, name, 3)
    assert archive.names == [name, layout.packed(name)]
    assert archive.entry(1).archived_as == name


def test_a_ledger_that_says_otherwise_deletes_nothing(archive: Archive) -> None:
    name = archive.put(1)
    archive.store.put(name, b"mended by hand")
    with pytest.raises(ChecksumMismatch, match="the ledger entry has 4500 bytes"):
        pack(archive.store, name, 3)
    assert name in archive.names


def test_other_bytes_of_a_segment_are_packed_beside_it(archive: Archive) -> None:
    name = archive.put(1)
    other = layout.SegmentRef(NODE, layout.SegmentName(1, 7)).archived(NOON, crc32c=crc32c(b"other"))
    archive.store.put(other, b"other")
    pack(archive.store, other, 3)
    assert archive.entry(1).archived_as == name, "of the other bytes it does not speak"
    assert archive.names == sorted([name, layout.packed(other)])
    assert segment_object.read(archive.store, layout.packed(other)) == b"other"


def test_a_ledger_that_others_write_is_looked_at_again(archive: Archive) -> None:
    name = archive.put(1)
    turns = iter(range(100))

    class Meddled(FaultyStore):
        def put(self, *args: Any, **kwargs: Any) -> Any:
            if args[0].startswith("ledger/") and next(turns) < 2:
                archive.store.put(args[0], archive.entry(1).model_copy(update={"frames": 99}).to_bytes())
            return super().put(*args, **kwargs)

    pack(Meddled(archive.store), name, 3)
    assert (archive.entry(1).frames, archive.entry(1).archived_as) == (99, layout.packed(name))

    class Busy(FaultyStore):
        def put(self, *args: Any, **kwargs: Any) -> Any:
            if args[0].startswith("ledger/"):
                raise PreconditionFailed("again", operation="put", obj=args[0])
            return super().put(*args, **kwargs)

    other = archive.put(2)
    with pytest.raises(PreconditionFailed, match="changed concurrently"):
        pack(Busy(archive.store), other, 3)
    assert other in archive.names


def test_what_is_to_be_packed(archive: Archive) -> None:
    early, noon, late = (archive.put(10 + at, NOON + timedelta(days=at)) for at in (-2, 0, 1))
    pack(archive.store, archive.put(1, NOON), 3)
    archive.store.put(f"{layout.archive_prefix('ring')}README", b"nothing of ours")

    def found(before: datetime, since: datetime | None = None) -> list[str]:
        return list(to_pack(archive.store, "ring", before, since))

    assert found(NOON + timedelta(days=9)) == [early, noon, late]
    assert found(NOON + timedelta(minutes=30)) == [early, noon]
    assert found(NOON + timedelta(minutes=29)) == [early], "that hour is not over"
    assert found(NOON + timedelta(minutes=30), NOON) == [noon]


def test_what_is_let_go_stands_in_the_ledger(archive: Archive) -> None:
    gone = [archive.put(1), archive.put(2), archive.put(3, noted=False)]
    kept = archive.put(4, NOON + timedelta(hours=1))
    pack(archive.store, gone[1], 3)
    found = list(to_let_go(archive.store, "ring", datetime(2026, 5, 4, 13, tzinfo=UTC)))
    assert [layout.plain(info.name) for info in found] == gone
    assert [let_go(archive.store, info) for info in found] == [info.size for info in found]
    assert archive.names == [kept]
    for number in (1, 2):
        entry = archive.entry(number)
        assert (entry.state, entry.archived_as, entry.stored, entry.size) == ("expired", None, None, len(CONTENT))
        assert [step["state"] for step in entry.history] == ["archived"]
    assert archive.entry(4).state == "archived"
    assert [let_go(archive.store, info) for info in found] == [0, 0, 0]


def test_death_at_every_step_of_letting_go(tmp_path: Path) -> None:
    steps = 0
    for point in range(100):
        archive = Archive(LocalStore(tmp_path / f"bucket-{point}"))
        archive.put(1)
        (info,) = archive.store.list("cdc_archive/")
        try:
            let_go(dying(archive.store, point), info)
            break
        except Died:
            steps += 1
        entry = archive.entry(1)
        assert entry.archived_as is None or entry.archived_as in archive.names, "the ledger never leads to what is gone"
        for left in archive.store.list("cdc_archive/"):
            let_go(archive.store, left)
        assert (archive.names, archive.entry(1).state, len(archive.entry(1).history)) == ([], "expired", 1)
    # Before and after head, read, put; delete.
    assert steps == 8


def test_both_forms_of_a_segment_are_let_go(archive: Archive) -> None:
    """A packing that died left both."""
    name = archive.put(1)
    with pytest.raises(Died):
        pack(dying(archive.store, 16), name, 3)
    assert archive.names == [name, layout.packed(name)]
    for info in to_let_go(archive.store, "ring", NOON + timedelta(hours=1)):
        let_go(archive.store, info)
    assert archive.names == []
    assert (archive.entry(1).state, len(archive.entry(1).history)) == ("expired", 1)


def test_sums() -> None:
    one = Done(packed=Work(objects=1, before=10, after=2), failed=1)
    two = Done(packed=Work(objects=2, before=5, after=3), let_go=Work(objects=1, before=7), failed=2)
    assert one.with_(two) == Done(packed=Work(objects=3, before=15, after=5), let_go=Work(objects=1, before=7), failed=3)
