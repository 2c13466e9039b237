"""Leases over every backend: one holder at a time, and nobody finishes who no longer is one."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any

import pytest

from tests.storage.conftest import Backend
from writetime.errors import LeaseLost
from writetime.storage.lease import Lease, notes
from writetime.storage.local import LocalStore
from writetime.storage.store import ObjectInfo, Store

NAME = "leases/thing.json"


def stalled(backend: Backend) -> Lease:
    """A lease whose holder has not renewed it for long: as it is when its machine slept."""
    lease = Lease(backend.open(), NAME, seconds=3600)
    lease._take()
    assert lease._generation
    old = {**json.loads(backend.open().read(NAME)), "until": time.time() - 60}
    lease._generation = backend.open().put(NAME, json.dumps(old).encode(), if_generation=lease._generation).generation
    lease._renewed = old["until"] - 3600
    return lease


def test_notes_go_from_holder_to_holder(backend: Backend) -> None:
    assert notes(backend.open(), NAME) == {}
    with Lease(backend.open(), NAME) as lease:
        lease.check()
        lease.finish({"batch": 1})
    with Lease(backend.open(), NAME) as lease:
        assert lease.notes == {"batch": 1}
    assert notes(backend.open(), NAME) == {"batch": 1}


@pytest.mark.advice("Run it again: completed work is kept.")
def test_another_waits_in_vain_while_it_is_held(backend: Backend) -> None:
    with (
        Lease(backend.open(), NAME) as held,
        pytest.raises(LeaseLost, match="holds the lease"),
        Lease(backend.open(), NAME, wait=0),
    ):
        pytest.fail("two hold it")
    held.check()
    with Lease(backend.open(), NAME, wait=0):
        pass


def test_it_is_renewed_while_its_holder_works(backend: Backend) -> None:
    with Lease(backend.open(), NAME, seconds=0.3) as lease:
        first = lease._generation
        give_up = time.monotonic() + 30
        while lease._generation == first and time.monotonic() < give_up:
            time.sleep(0.05)
        assert lease._generation != first


def test_who_slept_can_finish_nothing(backend: Backend) -> None:
    sleeper = stalled(backend)
    with Lease(backend.open(), NAME, wait=0) as second:
        second.finish({"by": "the second"})
    with pytest.raises(LeaseLost, match="another process took"):
        sleeper.check()
    with pytest.raises(LeaseLost, match="another process took"):
        sleeper.finish({"by": "the sleeper"})
    assert notes(backend.open(), NAME) == {"by": "the second"}


def test_a_dead_holder_whose_clock_was_ahead_blocks_for_one_lease_only(backend: Backend) -> None:
    dead = Lease(backend.open(), NAME, seconds=3600)
    dead._take()
    begun = time.monotonic()
    with Lease(backend.open(), NAME, seconds=0.3, skew=0.2):
        assert time.monotonic() - begun > 0.5
    with pytest.raises(LeaseLost, match="another process took"):
        dead.finish({"by": "the dead one"})


def test_one_that_is_released_early_is_taken_at_once_and_finishes_nothing(backend: Backend) -> None:
    """By a process that is about to end, while its other threads still work."""
    with Lease(backend.open(), NAME) as ending:
        ending.release()
        ending.release()
        with Lease(backend.open(), NAME, wait=0), pytest.raises(LeaseLost, match="another process took"):
            ending.finish({"by": "the one that ends"})
    assert notes(backend.open(), NAME) == {}


def test_an_error_inside_lets_go_and_leaves_the_notes(backend: Backend) -> None:
    with Lease(backend.open(), NAME) as lease:
        lease.finish({"batch": 1})
    with pytest.raises(ValueError, match="inside"), Lease(backend.open(), NAME):
        raise ValueError("inside")
    with Lease(backend.open(), NAME, wait=0) as lease:
        assert lease.notes == {"batch": 1}


def test_it_is_renewed_no_oftener_than_it_has_to_be(backend: Backend) -> None:
    """Stores take about one write a second of one object."""
    with Lease(backend.open(), NAME, seconds=3600) as lease:
        first = lease._generation
        for _ in range(3):
            lease.check()
        assert lease._generation == first
        for elsewhen in (-1201, 60):
            lease._renewed = time.time() + elsewhen
            lease.check()
        assert lease._generation not in (first, 0)
        assert abs(lease._renewed - time.time()) < 60


class Repeating:
    """A store whose client writes once more because it has not heard the first answer."""

    def __init__(self, store: Store) -> None:
        self.store = store

    def __getattr__(self, name: str) -> Any:
        return getattr(self.store, name)

    def put(self, name: str, data: bytes, **conditions: Any) -> ObjectInfo:
        self.store.put(name, data, **conditions)
        return self.store.put(name, data, **conditions)


def test_a_write_that_went_through_unheard_is_no_loss(backend: Backend) -> None:
    store: Any = Repeating(backend.open())
    with Lease(store, NAME, wait=0) as lease:
        lease._renewed = 0.0
        lease.check()
        lease.finish({"batch": 1})
    assert notes(backend.open(), NAME) == {"batch": 1}
    with Lease(store, NAME, wait=0), pytest.raises(LeaseLost, match="holds the lease"), Lease(store, NAME, wait=0):
        pytest.fail("two hold it")


def test_one_that_is_taken_again_while_it_is_looked_at_is_lost(tmp_path: Path) -> None:
    """Two others were faster, the second between `head` and `read`: that is a lost lease, no missing
    object."""

    class Raced(LocalStore):
        def read(self, name: str, **more: Any) -> bytes:
            if more.get("generation"):
                self.put(name, b'{"owner": "third", "until": 0, "notes": {}}')
            return super().read(name, **more)

    lease = Lease(Raced(tmp_path), NAME)
    lease._generation = 0
    LocalStore(tmp_path).put(NAME, b'{"owner": "second", "until": 0, "notes": {}}')
    with pytest.raises(LeaseLost, match="took the lease over"):
        lease._put("first", 0.0, {})
