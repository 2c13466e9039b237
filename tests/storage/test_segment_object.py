"""Segments as the archive stores them: packed and plain give the same bytes, to whoever asks by either
name."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.shippers.faults import FaultyStore
from writetime.errors import CorruptSection, ObjectNotFound
from writetime.storage import layout, segment_object
from writetime.storage.checksum import crc32c
from writetime.storage.local import LocalStore
from writetime.storage.store import ObjectInfo

REF = layout.SegmentRef(layout.NodeName("ring", "dc1", "host-1"), layout.SegmentName(7, 7))
PLAIN = REF.archived(datetime(2026, 5, 4, 12, 30, tzinfo=UTC))
CONTENT = b"segment " * 1000


@pytest.fixture
def store(tmp_path: Path) -> LocalStore:
    return LocalStore(tmp_path / "bucket")


def put_packed(store: LocalStore, content: bytes = CONTENT, name: str = PLAIN) -> None:
    noted = {"size": str(len(content)), "crc32c": str(crc32c(content)), "sealed_at": "2026-05-04T12:30:00+00:00"}
    store.put(layout.packed(name), segment_object.pack(content, 3), metadata=noted)


@given(st.binary(max_size=300), st.integers(1, 22))
def test_any_content_comes_back(content: bytes, level: int) -> None:
    stored = segment_object.pack(content, level)
    assert segment_object.unpack("CommitLog-7-1.log.zst", stored) == content
    assert segment_object.unpack("CommitLog-7-1.log", content) == content
    # As a stream whose length nobody knows: so does `zstd -d`.
    assert pa.input_stream(pa.py_buffer(stored), compression="zstd").read() == content


@pytest.mark.parametrize("stored", [b"", CONTENT, segment_object.pack(CONTENT, 3)[:-1], segment_object.pack(CONTENT, 3) + b"\0"])
def test_what_is_no_whole_frame_is_told(stored: bytes) -> None:
    if stored == b"":
        assert segment_object.unpack(layout.packed(PLAIN), stored) == b""
        return
    with pytest.raises(CorruptSection, match=r"CommitLog-7-7\.log\.zst"):
        segment_object.unpack(layout.packed(PLAIN), stored)


def test_the_content_of_a_packed_one_stands_in_its_metadata(store: LocalStore) -> None:
    put_packed(store)
    info = store.head(layout.packed(PLAIN))
    assert info is not None
    assert segment_object.content_of(info) == (len(CONTENT), crc32c(CONTENT))
    store.put(layout.packed(PLAIN), b"by hand", metadata={"size": "many"})
    info = store.head(layout.packed(PLAIN))
    assert info is not None
    assert segment_object.content_of(info) == (info.size, info.crc32c)


def test_who_pinned_the_plain_one_gets_its_bytes_from_the_packed(store: LocalStore) -> None:
    generation = store.put(PLAIN, CONTENT).generation
    assert segment_object.read(store, PLAIN, generation=generation, crc32c_of_it=crc32c(CONTENT)) == CONTENT
    put_packed(store)
    store.delete(PLAIN)
    assert segment_object.read(store, PLAIN, generation=generation, crc32c_of_it=crc32c(CONTENT)) == CONTENT
    assert segment_object.read(store, layout.packed(PLAIN)) == CONTENT
    with pytest.raises(ObjectNotFound):
        segment_object.read(store, PLAIN, generation=generation)
    with pytest.raises(ObjectNotFound):
        segment_object.read(store, PLAIN, generation=generation, crc32c_of_it=crc32c(b"other bytes"))


@pytest.mark.parametrize("name", [PLAIN, layout.packed(PLAIN)])
def test_who_pinned_a_segment_gets_what_erasures_have_left_of_it(store: LocalStore, name: str) -> None:
    left, before = b"left", b"what a first erasure had left"

    def put(content: bytes, **metadata: int) -> None:
        if layout.is_packed(name):
            metadata |= {"size": len(content), "crc32c": crc32c(content)}
            content = segment_object.pack(content, 3)
        store.put(name, content, metadata={key: str(value) for key, value in metadata.items()})

    erased = {
        "original_size": len(CONTENT),
        "original_crc32c": crc32c(CONTENT),
        "replaced_size": len(before),
        "replaced_crc32c": crc32c(before),
    }
    put(left, **erased)
    for pinned in (CONTENT, before, left):
        assert segment_object.read_pinned(store, PLAIN, crc32c(pinned)) == left
    with pytest.raises(ObjectNotFound):
        segment_object.read_pinned(store, PLAIN, crc32c(b"other bytes"))
    put(left)
    with pytest.raises(ObjectNotFound):
        segment_object.read_pinned(store, PLAIN, crc32c(CONTENT))
    store.put(REF.incoming, left, metadata={key: str(value) for key, value in erased.items()})
    with pytest.raises(ObjectNotFound):
        segment_object.read_pinned(store, REF.incoming, crc32c(CONTENT))


def test_nothing_outside_the_archive_is_looked_for_packed(store: LocalStore) -> None:
    put_packed(store, name=REF.incoming)
    with pytest.raises(ObjectNotFound):
        segment_object.read(store, REF.incoming, crc32c_of_it=crc32c(CONTENT))
    assert segment_object.held(store, REF.incoming) is None


def test_each_segment_is_listed_once(store: LocalStore) -> None:
    other = PLAIN.replace("-7.log", "-8.log")
    store.put(PLAIN, CONTENT)
    put_packed(store)
    put_packed(store, name=other)
    store.put(f"{layout.archive_prefix('ring')}README", b"nothing of ours")
    assert [info.name for info in segment_object.listed(store, layout.archive_prefix("ring"))] == [PLAIN, layout.packed(other)]
    held = (
        segment_object.held(store, PLAIN),
        segment_object.held(store, other),
        segment_object.held(store, PLAIN.replace("-7.log", "-9.log")),
    )
    assert [info.name if info else None for info in held] == [PLAIN, layout.packed(other), None]


def test_what_is_packed_while_names_are_listed_is_not_missed(store: LocalStore) -> None:
    plain = [PLAIN.replace("-7.log", f"-{number}.log") for number in range(1, 6)]
    for name in plain:
        store.put(name, CONTENT)

    class Meddled(FaultyStore):
        def list(self, prefix: str = "", *, start_after: str = "") -> Iterator[ObjectInfo]:
            for number, info in enumerate(store.list(prefix, start_after=start_after)):
                yield info
                # The folder's names have been read by now.
                if number == 1 and store.head(plain[3]) is not None:
                    put_packed(store, name=plain[3])
                    store.delete(plain[3])

    prefix = layout.archive_prefix("ring")
    first = Meddled(store)
    assert [info.name for info in segment_object.listed(first, prefix)] == [*plain[:3], plain[4]], "this look misses one"
    store.put(plain[3], CONTENT)
    store.delete(layout.packed(plain[3]))
    found = segment_object.every(Meddled(store), prefix)
    assert [info.name for info in found] == [*plain[:3], layout.packed(plain[3]), plain[4]]
    assert [layout.plain(info.name) for info in segment_object.every(store, prefix, start_after=plain[2])] == plain[3:]


def test_a_packed_name_is_of_the_same_segment() -> None:
    for name in (PLAIN, REF.archived(datetime(2026, 5, 4, tzinfo=UTC), crc32c=7)):
        assert layout.SegmentRef.from_object(layout.packed(name)) == REF
        assert layout.plain(layout.packed(name)) == layout.plain(name) == name
    assert layout.archive_hour(layout.packed(PLAIN)) == datetime(2026, 5, 4, 12, tzinfo=UTC)
    assert layout.archive_hour(f"{layout.archive_prefix('ring')}date=2026-13-04/hour=12/x") is None
    assert layout.archive_hour(REF.incoming) is None
