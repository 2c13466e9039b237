"""Leases: one object says who may write to a thing now, and what the last who did has left there.

Strategy: the object's generation is the fence. Taking, renewing and finishing replace exactly the generation that was read, so that of two
who try one wins, and who was stalled while another took over can finish nothing. `Lease.finish` lets go of the lease and leaves its notes
in that same step: they are there if and only if the holder still was one.

    {"owner": "<who holds it>" | null, "until": <UTC, seconds>, "notes": {…}}

A lease runs out `seconds` after its last renewal, which a thread does meanwhile, and `check` where that is due: stores take about one write
a second of one object. A write that is refused may be one's own, of which the answer was lost and which the client repeated: what stands
there tells. Clocks of two machines may differ by `SKEW`; if they differ by more, two may believe to hold one lease, and still only one can
finish. This module knows nothing of what is written under a lease.
"""

from __future__ import annotations

import json
import os
import platform
import threading
import time
import uuid
from types import TracebackType
from typing import Any, Final, Self

from writetime.errors import LeaseLost, ObjectNotFound, PreconditionFailed, StoreError
from writetime.storage.store import Store

SECONDS: Final = 30.0
SKEW: Final = 5.0
"""By how much (s) the clocks of two machines may differ before a lease is taken from one who is alive."""


class Lease:
    """A lease on what `name` stands for, held inside `with`. LeaseLost (retriable) if another holds it for longer than `wait` seconds."""

    def __init__(self, store: Store, name: str, *, seconds: float = SECONDS, wait: float = 600.0, skew: float = SKEW) -> None:
        self._store, self._name = store, name
        self._seconds, self._wait, self._skew = seconds, wait, skew
        self._owner = f"{platform.node()}:{os.getpid()}:{uuid.uuid4().hex[:8]}"
        self._generation = 0
        self._renewed = 0.0
        self._lock = threading.Lock()
        self._over = threading.Event()
        self.notes: dict[str, Any] = {}
        """What the last holder has left by `finish`; empty if nobody has."""

    def __enter__(self) -> Self:
        self._take()
        threading.Thread(target=self._keep, name=f"lease {self._name}", daemon=True).start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        if not self._over.is_set():
            try:
                self._let_go(self.notes)
            except StoreError:
                # It runs out by itself, or is another's by now; what went wrong inside matters more.
                if error is None:
                    raise

    def check(self) -> None:
        """Renew it if a third of its time is over. LeaseLost if another has taken it over, which nobody may before."""
        with self._lock:
            if not self._over.is_set() and not 0 <= time.time() - self._renewed < self._seconds / 3:
                self._put(self._owner, time.time() + self._seconds, self.notes)

    def finish(self, notes: dict[str, Any]) -> None:
        """Leave notes for the next holder and let go, in one step. LeaseLost, and nothing is left, if another has taken it over."""
        self._let_go(notes)
        self.notes = notes

    def _let_go(self, notes: dict[str, Any]) -> None:
        with self._lock:
            self._over.set()
            self._put(None, 0.0, notes)

    def _take(self) -> None:
        give_up = time.monotonic() + self._wait
        while True:
            owner, until = self._read()
            if owner is None or until + self._skew < time.time():
                try:
                    self._put(self._owner, time.time() + self._seconds, self.notes)
                except LeaseLost:
                    # Another was faster.
                    continue
                return
            if time.monotonic() > give_up:
                raise self._lost(f"{owner} holds the lease")
            time.sleep(min(0.1, self._wait))

    def _read(self) -> tuple[str | None, float]:
        info = self._store.head(self._name)
        if info is None:
            self._generation, self.notes = 0, {}
            return None, 0.0
        try:
            found = json.loads(self._store.read(self._name, generation=info.generation))
        except ObjectNotFound:
            return "somebody", time.time()
        self._generation, self.notes = info.generation, found["notes"]
        return found["owner"], found["until"]

    def _put(self, owner: str | None, until: float, notes: dict[str, Any]) -> None:
        data = json.dumps({"owner": owner, "until": until, "notes": notes}).encode()
        started = time.time()
        try:
            self._generation = self._store.put(self._name, data, if_generation=self._generation).generation
        except PreconditionFailed as error:
            found = self._store.head(self._name)
            if found is None or self._store.read(self._name, generation=found.generation) != data:
                raise self._lost("another has taken the lease") from error
            self._generation = found.generation
        self._renewed = started

    def _keep(self) -> None:
        while not self._over.wait(self._seconds / 3):
            try:
                self.check()
            except LeaseLost:
                # The holder is told by its next check or by `finish`, which look at the generation too.
                return
            except StoreError:
                # The next turn tries again; if the lease runs out meanwhile, the generation tells.
                continue

    def _lost(self, why: str) -> LeaseLost:
        return LeaseLost(why, operation="hold a lease", obj=self._name, hint="Run it again: what was done is found, or done then.")


def notes(store: Store, name: str) -> dict[str, Any]:
    """What the last holder has left, without taking the lease; empty if nobody has."""
    try:
        found: dict[str, Any] = json.loads(store.read(name))["notes"]
    except ObjectNotFound:
        return {}
    return found
