"""What every backend has to do, as one suite over all of them (see conftest)."""

from __future__ import annotations

import pickle
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC
from pathlib import Path

import pytest

from tests.storage.conftest import Backend
from writetime.errors import ObjectNotFound, PreconditionFailed, SourceUnreadable, StoreError
from writetime.storage.checksum import crc32c
from writetime.storage.store import ObjectInfo, Store

ODD_NAMES = [
    "a",
    "with space/and+plus",
    "percent%2Fescaped/%25",
    "question?/hash#/star*",
    "ünïcode/日本語/😀.json",
    "quote'/double\"/back\\slash",
    "date=2026-01-01/hour=07/x.log",
    "~tilde/.hidden/..dots..",
    "x" * 220,
]
NO_NAMES = ["", "/a", "a/", "a//b", ".", "a/../b", "..", "nul\0", "line\nfeed", ".writetime/x", "y" * 221, "z/" * 520 + "z", "\udc80"]


def names(store: Store, prefix: str = "", start_after: str = "") -> list[str]:
    return [info.name for info in store.list(prefix, start_after=start_after)]


def test_put_tells_what_the_store_holds(store: Store) -> None:
    info = store.put("a/b.bin", b"hello", metadata={"sealed_at": "2026-01-01T00:00:00+00:00", "x": "ü"})
    assert (info.name, info.size, info.crc32c) == ("a/b.bin", 5, crc32c(b"hello"))
    assert info.metadata == {"sealed_at": "2026-01-01T00:00:00+00:00", "x": "ü"}
    assert info.generation > 0
    assert info.created.tzinfo is not None
    assert info.created.astimezone(UTC).year > 2000


def test_head_and_list_agree_with_put(store: Store) -> None:
    info = store.put("a/b", b"hello", metadata={"k": "v"})
    assert store.head("a/b") == info
    assert list(store.list()) == [info]


def test_nothing_is_there_at_first(store: Store) -> None:
    assert names(store) == []
    assert store.head("a") is None
    with pytest.raises(ObjectNotFound):
        store.read("a")


def test_an_empty_object(store: Store) -> None:
    info = store.put("empty", b"")
    assert (info.size, info.crc32c) == (0, 0)
    assert store.read("empty") == b""
    assert store.read("empty", start=0, end=5) == b""
    assert store.head("empty") == info


@pytest.mark.parametrize("name", ODD_NAMES)
def test_odd_names(store: Store, name: str) -> None:
    store.put(name, name.encode())
    assert store.read(name) == name.encode()
    assert names(store) == [name]
    store.delete(name)
    assert store.head(name) is None


@pytest.mark.parametrize("name", NO_NAMES)
def test_names_that_are_refused(store: Store, name: str) -> None:
    for call in (lambda: store.put(name, b""), lambda: store.read(name), lambda: store.head(name), lambda: store.delete(name)):
        with pytest.raises(StoreError, match="invalid object name"):
            call()
    assert names(store) == []


@pytest.mark.parametrize(
    ("start", "end", "expected"),
    [
        (0, None, b"0123456789"),
        (3, None, b"3456789"),
        (0, 4, b"0123"),
        (3, 7, b"3456"),
        (5, 5, b""),
        (8, 99, b"89"),
        (10, None, b""),
        (50, 60, b""),
    ],
)
def test_ranges(store: Store, start: int, end: int | None, expected: bytes) -> None:
    store.put("digits", b"0123456789")
    assert store.read("digits", start=start, end=end) == expected


def test_a_read_can_be_pinned_to_a_generation(store: Store) -> None:
    first = store.put("a", b"one")
    assert store.read("a", generation=first.generation) == b"one"
    second = store.put("a", b"two")
    assert second.generation != first.generation
    assert store.read("a", generation=second.generation) == b"two"
    with pytest.raises(ObjectNotFound):
        store.read("a", generation=first.generation)


def test_create_only(store: Store) -> None:
    first = store.put("a", b"one", if_generation=0)
    with pytest.raises(PreconditionFailed):
        store.put("a", b"two", if_generation=0)
    assert store.head("a") == first
    assert store.read("a") == b"one"


def test_compare_and_set(store: Store) -> None:
    first = store.put("a", b"one")
    second = store.put("a", b"two", if_generation=first.generation, metadata={"now": "two"})
    with pytest.raises(PreconditionFailed):
        store.put("a", b"three", if_generation=first.generation)
    with pytest.raises(PreconditionFailed):
        store.put("absent", b"three", if_generation=first.generation)
    assert store.head("a") == second
    assert store.read("a") == b"two"


def test_of_many_creators_one_wins(backend: Backend) -> None:
    def create(number: int) -> int | None:
        try:
            backend.open().put("claim", f"by {number}".encode(), if_generation=0)
        except PreconditionFailed:
            return None
        return number

    with ThreadPoolExecutor(16) as pool:
        winners = [number for number in pool.map(create, range(16)) if number is not None]
    assert len(winners) == 1
    assert backend.open().read("claim") == f"by {winners[0]}".encode()


def test_no_update_is_lost_among_many_writers(backend: Backend) -> None:
    backend.open().put("counter", b"0")

    def increment(_: int) -> None:
        store = backend.open()
        while True:
            info = store.head("counter")
            assert info is not None
            try:
                value = int(store.read("counter", generation=info.generation))
                store.put("counter", str(value + 1).encode(), if_generation=info.generation)
            except (PreconditionFailed, ObjectNotFound):
                continue
            return

    with ThreadPoolExecutor(4) as pool:
        list(pool.map(increment, range(20)))
    assert backend.open().read("counter") == b"20"


def test_listing_is_in_order_of_the_utf8_names(store: Store) -> None:
    given = ["a.b", "a/b", "a-b", "a0", "a/b.c", "a/b0/c", "a/b-c", "Z", "é/x", "e", "日", "😀", "\uffee", "a b"]
    for name in given:
        store.put(name, b"")
    expected = sorted(given, key=str.encode)
    assert names(store) == expected
    for after in [*expected, "a/", "a/b0", "a/zzz", "0", "zz"]:
        assert names(store, start_after=after) == [n for n in expected if n.encode() > after.encode()]
    for prefix in ["a", "a/", "a/b", "a/b0/", "é", "nothing", "a/b.c"]:
        assert names(store, prefix) == [n for n in expected if n.startswith(prefix)]
    assert names(store, "a/", start_after="a/b-c") == ["a/b.c", "a/b0/c"]


def test_listing_knows_no_folders(store: Store) -> None:
    store.put("x/y/z", b"1")
    store.put("x/y2", b"2")
    assert names(store, "x/y") == ["x/y/z", "x/y2"]
    store.delete("x/y/z")
    assert names(store) == ["x/y2"]


def test_names_are_those_of_the_listing(store: Store) -> None:
    given = ["a.b", "a/b", "a-b", "a0", "a/b.c", "a/b0/c", "é/x", "日", "a b", *(f"many/{number:02d}" for number in range(11))]
    for size, name in enumerate(given):
        store.put(name, b"x" * size)
    for prefix, after in [("", ""), ("a", ""), ("a/", "a/b"), ("many/", "many/04"), ("", "a/"), ("nothing", "")]:
        expected = [(info.name, info.size, int(info.created.timestamp())) for info in store.list(prefix, start_after=after)]
        for page in (1, 4, 1000):
            found = store.names(prefix, start_after=after, page=page)
            assert [(each.name, each.size, int(each.created.timestamp())) for each in found] == expected


def test_folders_are_the_next_part_of_the_names(store: Store) -> None:
    for name in [
        "top",
        "a.b",
        "a/b",
        "a/b.c",
        "a/b0/c",
        "a/b0/d",
        "a/b-/d/e",
        "é/x",
        "z/1",
        *(f"many/{n}/{m}" for n in range(9) for m in range(4)),
    ]:
        store.put(name, b"")
    assert list(store.folders()) == ["a/", "many/", "z/", "é/"]
    assert list(store.folders("a/")) == ["a/b-/", "a/b0/"]
    assert list(store.folders("a/b0")) == ["a/b0/"]
    assert list(store.folders("many/")) == [f"many/{n}/" for n in range(9)]
    assert list(store.folders("a/b0/")) == list(store.folders("nothing/")) == []
    store.delete("z/1")
    assert list(store.folders("z")) == []


def test_a_file_is_streamed(store: Store, tmp_path: Path) -> None:
    data = bytes(range(256)) * 4 * 1024 * 20 + b"end"
    path = tmp_path / "segment.log"
    path.write_bytes(data)
    info = store.put("big", path, if_generation=0, metadata={"from": "disk"})
    assert (info.size, info.crc32c, info.metadata) == (len(data), crc32c(data), {"from": "disk"})
    assert store.read("big", start=len(data) - 5) == data[-5:]
    assert store.read("big") == data
    with pytest.raises(PreconditionFailed):
        store.put("big", path, if_generation=0)


def test_a_small_and_an_empty_file(store: Store, tmp_path: Path) -> None:
    path = tmp_path / "f"
    for data in (b"", b"tiny\r\n--boundary\r\n"):
        path.write_bytes(data)
        assert store.put("f", path).crc32c == crc32c(data)
        assert store.read("f") == data


def test_a_file_that_is_not_there(store: Store, tmp_path: Path) -> None:
    with pytest.raises(SourceUnreadable, match="nowhere"):
        store.put("a", tmp_path / "nowhere")
    assert store.head("a") is None


def test_a_file_that_cannot_be_read(store: Store) -> None:
    """It opens, and its first byte is an I/O error."""
    with pytest.raises(SourceUnreadable, match="Input/output error") as caught:
        store.put("a", Path("/proc/self/mem"))
    assert not caught.value.retriable
    assert store.head("a") is None


def test_overwriting_replaces_metadata(store: Store) -> None:
    store.put("a", b"1", metadata={"old": "yes"})
    store.put("a", b"2", metadata={"new": "yes"})
    found = store.head("a")
    assert found is not None
    assert found.metadata == {"new": "yes"}
    assert store.put("a", b"3").metadata == {}


def test_copy_takes_bytes_and_metadata_along(store: Store) -> None:
    source = store.put("cdc/x.log", b"bytes", metadata={"sealed_at": "now"})
    target = store.copy("cdc/x.log", "archive/date=1/x.log")
    assert (target.name, target.size, target.crc32c, target.metadata) == ("archive/date=1/x.log", 5, source.crc32c, {"sealed_at": "now"})
    assert store.head("archive/date=1/x.log") == target
    assert store.head("cdc/x.log") == source
    with pytest.raises(ObjectNotFound):
        store.copy("absent", "b")


def test_copy_does_not_overwrite_unasked(backend: Backend, store: Store) -> None:
    backend.needs("copy_precondition")
    store.put("a", b"a")
    held = store.put("b", b"b")
    with pytest.raises(PreconditionFailed):
        store.copy("a", "b")
    assert store.head("b") == held
    with pytest.raises(PreconditionFailed):
        store.copy("a", "b", if_generation=held.generation + 1)
    assert store.copy("a", "b", if_generation=held.generation).generation != held.generation
    store.put("a", b"A")
    store.copy("a", "b", if_generation=None)
    assert store.read("b") == b"A"


def test_delete(store: Store) -> None:
    info = store.put("a", b"1")
    store.delete("a", if_generation=info.generation)
    assert store.head("a") is None
    for generation in (None, info.generation):
        with pytest.raises(ObjectNotFound):
            store.delete("a", if_generation=generation)


def test_discard(store: Store) -> None:
    """Many at once, some of which are not there, with names that XML and URLs have to escape."""
    names = ["a", "b/c", "d&<e>", "f g", "ä%20"]
    for name in (*names, "stays"):
        store.put(name, b"1")
    store.discard([*names, "never", *(f"none/{number:04d}" for number in range(1000))])
    store.discard([])
    store.discard(["a"])
    assert [each.name for each in store.names()] == ["stays"]
    assert store.put("a", b"2", if_generation=0).size == 1
    with pytest.raises(StoreError):
        store.discard(["../a"])


def test_delete_of_another_generation(backend: Backend, store: Store) -> None:
    backend.needs("delete_precondition")
    first = store.put("a", b"1")
    second = store.put("a", b"2")
    with pytest.raises(PreconditionFailed):
        store.delete("a", if_generation=first.generation)
    assert store.head("a") == second


def test_a_name_that_was_deleted_gets_a_new_generation(store: Store) -> None:
    first = store.put("a", b"1", metadata={"m": "1"})
    store.delete("a")
    second = store.put("a", b"1", if_generation=0)
    assert second.generation != first.generation
    assert second.metadata == {}


def test_a_store_travels_to_another_process(store: Store) -> None:
    store.put("a", b"1")
    again: Store = pickle.loads(pickle.dumps(store))
    assert again.url == store.url
    info = again.head("a")
    assert isinstance(info, ObjectInfo)
    assert pickle.loads(pickle.dumps(info)) == info
