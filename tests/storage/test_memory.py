"""The faults of the store in memory strike as they say: what it holds afterwards, and what its caller was
told."""

from __future__ import annotations

import pytest

from tests.storage.memory import PASSING, Fault, MemoryStore
from writetime.errors import ChecksumMismatch, ObjectNotFound, PreconditionFailed, StoreError, StoreUnavailable
from writetime.storage.checksum import crc32c


def held(store: MemoryStore) -> bytes | None:
    try:
        return store.read("a")
    except ObjectNotFound:
        return None


@pytest.mark.parametrize(
    ("fault", "told", "left"),
    [
        (Fault.UNAVAILABLE, StoreUnavailable, None),
        (Fault.LOST_ANSWER, StoreUnavailable, b"one"),
        (Fault.PRECONDITION, PreconditionFailed, None),
        (Fault.LOST_AND_REPEATED, PreconditionFailed, b"one"),
        (Fault.TRUNCATED, StoreUnavailable, None),
        (Fault.DAMAGED, ChecksumMismatch, b"ond"),
        (Fault.EXPIRED, StoreError, None),
        (Fault.FORBIDDEN, StoreError, None),
    ],
)
def test_faults_of_a_write(fault: Fault, told: type[StoreError], left: bytes | None) -> None:
    store = MemoryStore()
    store.fail(fault, on="put", prefix="a", skip=1)
    store.put("a", b"zero")
    store.delete("a")
    store.put("b", b"other names are spared")
    with pytest.raises(told) as caught:
        store.put("a", b"one", if_generation=0)
    assert type(caught.value) is told
    assert caught.value.retriable == (told is StoreUnavailable)
    assert (held(store), store.struck) == (left, [(fault, "put", "a")])
    store.put("a", b"two")
    assert held(store) == b"two"


def test_other_bytes_show_only_to_who_looks() -> None:
    store = MemoryStore()
    store.fail(Fault.DAMAGED_UNSEEN)
    told, found = store.put("a", b"one"), store.head("a")
    assert found is not None
    assert (told.crc32c, told.generation) == (crc32c(b"one"), found.generation)
    assert found.crc32c == crc32c(b"ond")
    store.damage("a", b"one")
    assert store.head("a") == told


def test_an_object_that_goes_at_once() -> None:
    store = MemoryStore()
    store.fail(Fault.GONE)
    assert store.put("a", b"one").size == 3
    assert store.head("a") is None


def test_a_deletion_whose_answer_was_lost() -> None:
    store = MemoryStore()
    store.put("a", b"one")
    store.fail(Fault.LOST_AND_REPEATED, on="delete")
    with pytest.raises(ObjectNotFound):
        store.delete("a")
    assert store.head("a") is None


@pytest.mark.parametrize("method", ["list", "head", "read", "put", "copy", "delete"])
def test_no_method_is_spared(method: str) -> None:
    store = MemoryStore()
    store.put("a", b"one")
    calls = {
        "list": lambda: list(store.list("a")),
        "head": lambda: store.head("a"),
        "read": lambda: store.read("a"),
        "put": lambda: store.put("a", b""),
        "copy": lambda: store.copy("a", "b"),
        "delete": lambda: store.delete("a"),
    }
    store.fail(Fault.UNAVAILABLE, on=method)
    with pytest.raises(StoreUnavailable):
        calls[method]()
    assert store.read("a") == b"one"


def test_a_storm_is_the_same_by_its_seed_and_ends() -> None:
    def weather(seed: int) -> list[str]:
        store, seen = MemoryStore(), []
        store.storm(seed, 0.5)
        for number in range(60):
            try:
                store.put(f"{number}", b"")
                seen.append("")
            except StoreError as error:
                seen.append(error.message)
        store.calm()
        store.put("calm", b"")
        assert {fault for fault, _, _ in store.struck} == set(PASSING)
        return seen

    assert weather(1) == weather(1) != weather(2)
    assert 10 < weather(1).count("") < 50
