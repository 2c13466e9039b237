"""Leases: one object per resource names the current writer and keeps the notes of the last one.

Strategy: the object's generation is the fence. Acquiring, renewing and finishing replace exactly the
generation that was read, so that one of two competitors wins, and a holder that stalled while another took
over cannot finish. `Lease.finish` releases the lease and stores its notes in one write: the notes exist if
and only if the holder still had the lease.

    {"owner": "<holder>" | null, "until": <UTC, seconds>, "notes": {…}, "by": "<who wrote this>"}

A lease expires `seconds` after its last renewal. A thread renews it, and so does `check` when that is due:
stores accept about one write per second and object. A refused write may be this holder's own, repeated by the
client after a lost answer; the object's content decides. Clocks of two machines may differ by `SKEW`; if they
differ by more, two holders may believe to hold the lease, but only one can finish. A dead holder whose clock was
ahead blocks nobody for longer: whoever waits takes a lease over that was not renewed while it waited. Must not know
what is written under a lease.
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
"""Maximum clock difference (s) before a lease can be taken from a live holder."""


class Lease:
    """The lease in the object `name`, held inside `with`. LeaseLost (retriable) if another holds it for
    longer than `wait` seconds."""

    def __init__(self, store: Store, name: str, *, seconds: float = SECONDS, wait: float = 600.0, skew: float = SKEW) -> None:
        self._store, self._name = store, name
        self._seconds, self._wait, self._skew = seconds, wait, skew
        self._owner = f"{platform.node()}:{os.getpid()}:{uuid.uuid4().hex[:8]}"
        self._generation = 0
        self._renewed = 0.0
        self._lock = threading.Lock()
        self._over = threading.Event()
        self.notes: dict[str, Any] = {}
        """The notes of the last holder's `finish`; empty if there are none."""

    def __enter__(self) -> Self:
        self._take()
        threading.Thread(target=self._keep, name=f"lease {self._name}", daemon=True).start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        try:
            self.release()
        except StoreError:
            # The lease expires by itself or has another holder; the original error matters more.
            if error is None:
                raise

    def release(self) -> None:
        """Release the lease before the end of its context, for a process that is about to end. What it still does is
        refused as soon as another holder has the lease."""
        if not self._over.is_set():
            self._release(self.notes)

    def check(self) -> None:
        """Renew the lease if a third of its time has passed. LeaseLost if another holder took it over."""
        with self._lock:
            if not self._over.is_set() and not 0 <= time.time() - self._renewed < self._seconds / 3:
                self._put(self._owner, time.time() + self._seconds, self.notes)

    def finish(self, notes: dict[str, Any]) -> None:
        """Store notes for the next holder and release the lease in one write. LeaseLost, and nothing is
        stored, if another holder took it over."""
        self._release(notes)
        self.notes = notes

    def _release(self, notes: dict[str, Any]) -> None:
        with self._lock:
            self._over.set()
            self._put(None, 0.0, notes)

    def _take(self) -> None:
        give_up = time.monotonic() + self._wait
        seen, since = -1, 0.0
        while True:
            owner, until = self._read()
            if self._generation != seen:
                seen, since = self._generation, time.monotonic()
            unrenewed = time.monotonic() - since
            if owner is None or until + self._skew < time.time() or unrenewed > self._seconds + self._skew:
                try:
                    self._put(self._owner, time.time() + self._seconds, self.notes)
                except LeaseLost:
                    # Another process was faster.
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
        data = json.dumps({"owner": owner, "until": until, "notes": notes, "by": self._owner}).encode()
        started = time.time()
        try:
            self._generation = self._store.put(self._name, data, if_generation=self._generation).generation
        except PreconditionFailed as error:
            generation = self._generation_with(data)
            if generation is None:
                raise self._lost("another process took the lease over") from error
            self._generation = generation
        self._renewed = started

    def _generation_with(self, data: bytes) -> int | None:
        """The lease's generation if it holds these bytes: then the write succeeded, and its answer was
        lost."""
        found = self._store.head(self._name)
        try:
            if found is None or self._store.read(self._name, generation=found.generation) != data:
                return None
        except ObjectNotFound:
            # Written again since `head`, by another holder.
            return None
        return found.generation

    def _keep(self) -> None:
        while not self._over.wait(self._seconds / 3):
            try:
                self.check()
            except LeaseLost:
                # The holder's next `check` or `finish` raises the error: both compare the generation.
                return
            except StoreError:
                # Retried in the next round; if the lease expires meanwhile, the generation shows it.
                continue

    def _lost(self, why: str) -> LeaseLost:
        return LeaseLost(why, operation="hold a lease", obj=self._name, hint="Run it again: completed work is kept.")


def notes(store: Store, name: str) -> dict[str, Any]:
    """The notes of the last holder, without acquiring the lease; empty if there are none."""
    try:
        found: dict[str, Any] = json.loads(store.read(name))["notes"]
    except ObjectNotFound:
        return {}
    return found
