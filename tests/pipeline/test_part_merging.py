"""Parts of a segment that grows slowly become one, and batches read the same bytes as before."""

from __future__ import annotations

from datetime import UTC, datetime
from itertools import pairwise

import pytest

from tests.storage.memory import MemoryStore
from writetime.errors import StoreUnavailable
from writetime.pipeline import part_merging
from writetime.pipeline.documents import Mark
from writetime.pipeline.part_merging import merge_parts
from writetime.storage import layout, segment_parts
from writetime.storage.checksum import crc32c

NODE = layout.NodeName("ring", "dc1", "a")
REF = layout.SegmentRef(NODE, layout.SegmentName(7, 7))
NOW = datetime(2026, 5, 4, 12, 30, tzinfo=UTC)
CONTENT = bytes(range(256)) * 4


@pytest.fixture
def store(monkeypatch: pytest.MonkeyPatch) -> MemoryStore:
    monkeypatch.setattr(part_merging, "MANY", 3)
    store = MemoryStore()
    # Overlapping parts: a shipper that has lost its record begins anew.
    for start, end in [*pairwise(range(0, 1001, 100)), (0, 250), (150, 350), (1000, 1024)]:
        store.put(REF.part(start, end), CONTENT[start:end], metadata={"sealed_at": NOW.isoformat(), "logical_to": str(end)})
    return store


def there(store: MemoryStore) -> list[tuple[int, int]]:
    return [(part.start, part.end) for part in segment_parts.of(store, REF)]


def merged(store: MemoryStore, **mark: object) -> int:
    position = mark.get("position", 800)
    assert isinstance(position, int)
    about = {"position": position, "logical": position, "crc32c": crc32c(CONTENT[:position]), **mark}
    return merge_parts(store, "ring", {REF.growing: Mark.model_validate(about)})


def test_what_is_ingested_becomes_one_part(store: MemoryStore) -> None:
    assert merged(store) == 9
    assert there(store) == [(0, 100), (0, 800), (800, 900), (900, 1000), (1000, 1024)]
    assert store.read(REF.part(0, 800)) == CONTENT[:800]
    # After a rebuild everything is read from the beginning, otherwise from where the last batch stopped.
    for since in (0, 800):
        run = segment_parts.run(segment_parts.of(store, REF), since)
        assert b"".join(store.read(part.info.name) for part in run) == CONTENT[since:]
    assert merged(store) == 0
    assert merged(store, position=1024) == 4
    assert there(store) == [(0, 100), (0, 1024)]


def test_an_open_batch_keeps_its_header(store: MemoryStore) -> None:
    """Planning pins the first part that begins at 0."""
    pinned = next(part.info.name for part in segment_parts.of(store, REF) if part.start == 0)
    merged(store)
    assert store.head(pinned) is not None


@pytest.mark.parametrize("mark", [{"sound": False}, {"logical": None}, {"position": 850}, {"position": 300}])
def test_what_may_be_read_again_stays(store: MemoryStore, mark: dict[str, object]) -> None:
    before = there(store)
    if mark == {"position": 300}:
        store.delete(REF.part(0, 100))
        store.delete(REF.part(0, 250))
        before = there(store)
    assert merged(store, **mark) == 0
    assert there(store) == before


def test_a_crash_before_the_deletion_loses_nothing(store: MemoryStore, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object, **__: object) -> None:
        raise StoreUnavailable("no", operation="delete", obj="")

    with monkeypatch.context() as patched:
        patched.setattr(store, "delete", refuse)
        with pytest.raises(StoreUnavailable):
            merged(store)
    assert (0, 800) in there(store)
    assert merged(store) == 9


def test_other_bytes_than_those_ingested_stay_as_they_are(store: MemoryStore) -> None:
    """A node can write any part below its own prefix."""
    store.put(REF.part(0, 800), b"x" * 800)
    before = there(store)
    assert merged(store) == 0
    assert there(store) == before
    store.delete(REF.part(0, 800))
    assert merged(store) == 9
