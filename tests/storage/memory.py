"""An object store in this process's memory, with faults on request. It passes the conformance suite; faults are what a remote store does
to its callers, in the store's own errors.

    store = MemoryStore()
    store.fail(Fault.LOST_ANSWER, on="put", prefix="cdc/", times=2)
    store.storm(seed=7, share=0.2)

Stores of one URL share what they hold. Knows no backend: how Google's or Amazon's answers become errors is tested over their stubs.
"""

from __future__ import annotations

import random
import threading
import uuid
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from enum import Enum
from pathlib import Path
from typing import Any

from writetime.errors import ChecksumMismatch, ObjectNotFound, PreconditionFailed, SourceUnreadable, StoreError, StoreUnavailable
from writetime.storage.checksum import crc32c
from writetime.storage.object_names import require_name
from writetime.storage.store import PAGE, Listed, ObjectInfo


class Fault(Enum):
    """What happens to a call."""

    UNAVAILABLE = "503, or a time-out before the store did anything"
    LOST_ANSWER = "a time-out after the store has done it"
    PRECONDITION = "412, although the condition holds"
    LOST_AND_REPEATED = "412, because the call is the second of one whose answer was lost"
    TRUNCATED = "the body breaks off: nothing was written, or nothing can be given"
    DAMAGED = "other bytes were written, and the store says so"
    DAMAGED_UNSEEN = "other bytes were written, and only who looks sees it"
    EXPIRED = "the credentials have expired"
    FORBIDDEN = "the account may not"
    GONE = "the object was written, and somebody deletes it at once"


_BEGIN = 1_767_225_600
_WRITES = frozenset({"put", "copy", "delete"})
_OF_PUTS = frozenset({Fault.DAMAGED, Fault.DAMAGED_UNSEEN, Fault.GONE})
_OF_WRITES = frozenset({Fault.LOST_ANSWER, Fault.PRECONDITION, Fault.LOST_AND_REPEATED})
PASSING = (Fault.UNAVAILABLE, Fault.LOST_ANSWER, Fault.LOST_AND_REPEATED, Fault.TRUNCATED)
"""Faults that any caller has to ride out: nothing is wrong with what the store holds afterwards."""


@dataclass
class _Rule:
    fault: Fault
    on: frozenset[str]
    prefix: str
    skip: int
    times: int


@dataclass
class _Memory:
    objects: dict[str, tuple[ObjectInfo, bytes]] = field(default_factory=dict)
    last: int = 0
    rules: list[_Rule] = field(default_factory=list)
    weather: random.Random | None = None
    share: float = 0.0
    kinds: tuple[Fault, ...] = PASSING
    calls: list[tuple[str, str]] = field(default_factory=list)
    struck: list[tuple[Fault, str, str]] = field(default_factory=list)
    lock: Any = field(default_factory=threading.RLock)


_MEMORIES: dict[str, _Memory] = {}


class MemoryStore:
    """See the module's docstring. `calls` lists what was asked, `struck` which faults came over which
    calls."""

    def __init__(self, url: str = "") -> None:
        self.url = url or f"memory:{uuid.uuid4().hex}"
        self._memory = _MEMORIES.setdefault(self.url, _Memory())

    def __reduce__(self) -> tuple[Any, ...]:
        return MemoryStore, (self.url,)

    @property
    def calls(self) -> list[tuple[str, str]]:
        return self._memory.calls

    @property
    def struck(self) -> list[tuple[Fault, str, str]]:
        return self._memory.struck

    def forget(self) -> None:
        """Nothing of it is needed any more."""
        _MEMORIES.pop(self.url, None)

    # --- faults

    def fail(self, fault: Fault, *, on: str = "", prefix: str = "", times: int = 1, skip: int = 0) -> None:
        """Let a fault come over the next `times` calls, after `skip` of them, whose name starts with
        `prefix`. `on` names methods, separated by spaces; default: all that the fault makes sense for."""
        methods = frozenset(on.split()) or {"list", "head", "read", "put", "copy", "delete"}
        assert fault not in _OF_PUTS or "put" in methods
        assert fault not in _OF_WRITES or methods & _WRITES
        self._memory.rules.append(_Rule(fault, methods, prefix, skip, times))

    def storm(self, seed: int, share: float, kinds: tuple[Fault, ...] = PASSING) -> None:
        """Let a fault of one of `kinds` come over this share of all calls, until `calm`."""
        self._memory.weather, self._memory.share, self._memory.kinds = random.Random(seed), share, kinds

    def calm(self) -> None:
        """No more faults."""
        self._memory.weather = None
        self._memory.rules.clear()

    def damage(self, name: str, data: bytes) -> None:
        """Replace the bytes behind everybody's back: the generation stays, and the CRC32C is that of the new
        bytes."""
        info, _ = self._memory.objects[name]
        self._memory.objects[name] = _info(name, data, info.generation, info.metadata), data

    def _strike(self, method: str, name: str) -> Fault | None:
        memory = self._memory
        memory.calls.append((method, name))
        fault = next((rule.fault for rule in memory.rules if self._falls_to(rule, method, name)), None)
        if fault is None and memory.weather is not None and memory.weather.random() < memory.share:
            fault = memory.weather.choice(memory.kinds)
        if fault is None or (fault in _OF_PUTS and method != "put") or (fault in _OF_WRITES and method not in _WRITES):
            return None
        memory.struck.append((fault, method, name))
        return fault

    @staticmethod
    def _falls_to(rule: _Rule, method: str, name: str) -> bool:
        if method not in rule.on or not name.startswith(rule.prefix) or rule.times == 0:
            return False
        if (rule.fault in _OF_PUTS and method != "put") or (rule.fault in _OF_WRITES and method not in _WRITES):
            return False
        if rule.skip:
            rule.skip -= 1
            return False
        rule.times -= 1
        return True

    # --- the store

    def list(self, prefix: str = "", *, start_after: str = "") -> Iterator[ObjectInfo]:
        with self._memory.lock:
            _before(self._strike("list", prefix), "list objects", prefix)
            found = sorted(self._memory.objects, key=str.encode)
            wanted = [name for name in found if name.startswith(prefix) and name.encode() > start_after.encode()]
            infos = [self._memory.objects[name][0] for name in wanted]
        yield from infos

    def names(self, prefix: str = "", *, start_after: str = "", page: int = PAGE) -> Iterator[Listed]:
        yield from (Listed(info.name, info.size, info.created, info) for info in self.list(prefix, start_after=start_after))

    def folders(self, prefix: str = "") -> Iterator[str]:
        with self._memory.lock:
            _before(self._strike("list", prefix), "list objects", prefix)
            below = (name.removeprefix(prefix).partition("/") for name in self._memory.objects if name.startswith(prefix))
            found = sorted({f"{prefix}{first}/" for first, slash, _ in below if slash}, key=str.encode)
        yield from found

    def head(self, name: str) -> ObjectInfo | None:
        require_name(name, "look up an object")
        with self._memory.lock:
            _before(self._strike("head", name), "look up an object", name)
            held = self._memory.objects.get(name)
        return held[0] if held else None

    def read(self, name: str, *, generation: int | None = None, start: int = 0, end: int | None = None) -> bytes:
        require_name(name, "read an object")
        with self._memory.lock:
            _before(self._strike("read", name), "read an object", name)
            info, data = self._held(name, "read an object")
        if generation not in (None, info.generation):
            raise ObjectNotFound(f"generation {generation} is gone", operation="read an object", obj=name)
        return data[start:] if end is None else data[start : max(start, end)]

    def put(
        self, name: str, data: bytes | Path, *, if_generation: int | None = None, metadata: Mapping[str, str] | None = None
    ) -> ObjectInfo:
        require_name(name, "write an object")
        try:
            sent = data if isinstance(data, bytes) else data.read_bytes()
        except OSError as error:
            raise SourceUnreadable(f"{error.strerror}: {error.filename}", operation="write an object", obj=name) from error
        with self._memory.lock:
            fault = self._strike("put", name)
            _before(fault, "write an object", name)
            self._require(name, if_generation, "write an object")
            kept = sent[:-1] + bytes([sent[-1] ^ 1] if sent else [0]) if fault in (Fault.DAMAGED, Fault.DAMAGED_UNSEEN) else sent
            info = self._keep(name, kept, metadata or {})
            if fault is Fault.GONE:
                del self._memory.objects[name]
        _after(fault, "write an object", name)
        if fault is Fault.DAMAGED:
            raise ChecksumMismatch("the store holds other bytes", operation="verify an object", obj=name)
        return replace(_info(name, sent, info.generation, info.metadata), created=info.created)

    def copy(self, source: str, target: str, *, if_generation: int | None = 0) -> ObjectInfo:
        require_name(source, "copy an object")
        require_name(target, "copy an object")
        with self._memory.lock:
            fault = self._strike("copy", source)
            _before(fault, "copy an object", source)
            info, data = self._held(source, "copy an object")
            self._require(target, if_generation, "copy an object")
            made = self._keep(target, data, info.metadata)
        _after(fault, "copy an object", source)
        return made

    def delete(self, name: str, *, if_generation: int | None = None) -> None:
        require_name(name, "delete an object")
        with self._memory.lock:
            fault = self._strike("delete", name)
            _before(fault, "delete an object", name)
            self._held(name, "delete an object")
            self._require(name, if_generation, "delete an object")
            del self._memory.objects[name]
        _after(fault, "delete an object", name)

    def discard(self, names: Iterable[str]) -> None:
        for name in names:
            with suppress(ObjectNotFound):
                self.delete(name)

    def _created(self, generation: int) -> datetime:
        """The time of a write by the store's clock, which moves with each."""
        return datetime.fromtimestamp(_BEGIN + generation, UTC)

    def _held(self, name: str, operation: str) -> tuple[ObjectInfo, bytes]:
        if name not in self._memory.objects:
            raise ObjectNotFound("the object does not exist", operation=operation, obj=name)
        return self._memory.objects[name]

    def _require(self, name: str, wanted: int | None, operation: str) -> None:
        found = self._memory.objects[name][0].generation if name in self._memory.objects else 0
        if wanted not in (None, found):
            raise PreconditionFailed(f"generation {wanted} was expected, there is {found}", operation=operation, obj=name)

    def _keep(self, name: str, data: bytes, metadata: Mapping[str, str]) -> ObjectInfo:
        self._memory.last += 1
        info = replace(_info(name, data, self._memory.last, metadata), created=self._created(self._memory.last))
        self._memory.objects[name] = info, data
        return info


def _info(name: str, data: bytes, generation: int, metadata: Mapping[str, str]) -> ObjectInfo:
    return ObjectInfo(name, len(data), generation, crc32c(data), datetime.fromtimestamp(_BEGIN + generation, UTC), dict(metadata))


def _before(fault: Fault | None, operation: str, name: str) -> None:
    """Faults that leave the store as it was."""
    if fault in (Fault.UNAVAILABLE, Fault.TRUNCATED):
        raise StoreUnavailable(fault.value, operation=operation, obj=name)
    if fault is Fault.PRECONDITION:
        raise PreconditionFailed(fault.value, operation=operation, obj=name)
    if fault in (Fault.EXPIRED, Fault.FORBIDDEN):
        raise StoreError(fault.value, operation=operation, obj=name, hint="Renew the credentials.")


def _after(fault: Fault | None, operation: str, name: str) -> None:
    """Faults that come when it is done."""
    if fault is Fault.LOST_ANSWER:
        raise StoreUnavailable(fault.value, operation=operation, obj=name)
    if fault is Fault.LOST_AND_REPEATED:
        kind = ObjectNotFound if operation.startswith("delete") else PreconditionFailed
        raise kind(fault.value, operation=operation, obj=name)
