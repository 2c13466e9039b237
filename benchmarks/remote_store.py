"""An object store in memory that answers like a remote one: each request takes a time, and all are counted.

Strategy: what one call of the store costs in requests is a property of the backend, and is kept here as a table;
a test compares the table with the real backends over their stubs. A call sleeps as long as its requests take one
after the other. Requests from the thread that made the store are counted apart: they are what nobody else does
meanwhile, so they set the time whatever the number of threads. Objects that are put in bulk have no content, only
facts that are made when they are asked for: a million of them fit into memory. Knows no batches.
"""

from __future__ import annotations

import itertools
import threading
import time
from bisect import bisect_left, bisect_right, insort
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from datetime import datetime
from pathlib import Path
from typing import Final, Literal

from writetime.errors import ObjectNotFound, PreconditionFailed
from writetime.storage.checksum import crc32c
from writetime.storage.store import PAGE, Listed, ObjectInfo

Kind = Literal["gcs", "s3"]
LOOKS: Final = 8
"""Objects that the backend for S3 looks up at once when it lists."""


@dataclass(frozen=True)
class Cost:
    """Requests of one call: those that stores charge as writes (uploads, copies, listings), as reads, and deletions,
    which are free."""

    writes: int = 0
    reads: int = 0
    deletions: int = 0

    @property
    def requests(self) -> int:
        return self.writes + self.reads + self.deletions


COSTS: Final[dict[Kind, dict[str, Cost]]] = {
    "gcs": {
        "page": Cost(writes=1),
        "look": Cost(),
        "head": Cost(reads=1),
        "read": Cost(reads=1),
        "put": Cost(writes=1),
        "replace": Cost(writes=1),
        "copy": Cost(writes=1, reads=2),
        "delete": Cost(deletions=1),
        "delete generation": Cost(deletions=1),
        "discard": Cost(),
    },
    "s3": {
        "page": Cost(writes=1),
        "look": Cost(reads=1),
        "head": Cost(reads=1),
        "read": Cost(reads=1),
        "put": Cost(writes=1, reads=1),
        "replace": Cost(writes=1, reads=3),
        "copy": Cost(writes=3, reads=2),
        "delete": Cost(reads=1, deletions=1),
        "delete generation": Cost(reads=2, deletions=1),
        "discard": Cost(deletions=1),
    },
}
"""By call. `look`: of each object that is listed with its facts; `replace`: a put on a generation; `discard`: of up to a
thousand objects, or none if each is deleted by itself."""


@dataclass
class Used:
    """Requests so far: by what they cost, how many were made one by one, and by call and first part of the name."""

    writes: int = 0
    reads: int = 0
    deletions: int = 0
    one_by_one: int = 0
    calls: Counter[tuple[str, str]] = field(default_factory=Counter)

    @property
    def requests(self) -> int:
        return self.writes + self.reads + self.deletions

    def since(self, before: Used) -> Used:
        return Used(
            self.writes - before.writes,
            self.reads - before.reads,
            self.deletions - before.deletions,
            self.one_by_one - before.one_by_one,
            self.calls - before.calls,
        )


class RemoteStore:
    """See the module's docstring. `latency`: seconds of a request. Names for which `apart` holds are not counted:
    requests that depend on the clock, as those that keep a lease."""

    def __init__(self, kind: Kind, latency: float, *, at: datetime, apart: Callable[[str], bool] = lambda _: False) -> None:
        self.url = f"remote:{kind}:{id(self)}"
        self.latency, self.now = latency, at
        self._costs, self._apart = COSTS[kind], apart
        self._objects: dict[str, tuple[ObjectInfo, bytes] | Callable[[str], ObjectInfo]] = {}
        self._names: list[str] = []
        self._generations = itertools.count(1)
        self._lock, self._main = threading.Lock(), threading.get_ident()
        self._used = Used()

    @property
    def used(self) -> Used:
        with self._lock:
            return replace(self._used, calls=Counter(self._used.calls))

    # --- what others do, at no cost

    def fill(self, names: list[str], facts: Callable[[str], ObjectInfo]) -> None:
        """Objects of others, whose facts are made when they are asked for."""
        self._objects |= dict.fromkeys(names, facts)
        self._names = sorted({*self._names, *names})

    def place(
        self, name: str, data: bytes = b"", *, size: int | None = None, crc: int | None = None, metadata: Mapping[str, str] | None = None
    ) -> None:
        """An object of somebody else."""
        facts = len(data) if size is None else size, next(self._generations), crc32c(data) if crc is None else crc
        self._set(ObjectInfo(name, *facts, self.now, dict(metadata or {})), data)

    # --- the store

    def list(self, prefix: str = "", *, start_after: str = "") -> Iterator[ObjectInfo]:
        names = self.names(prefix, start_after=start_after)
        look = self._costs["look"]
        while some := list(itertools.islice(names, 4 * LOOKS)):
            if look.requests:
                self._spend("look", some[0].name, len(some), waits=-(-len(some) // LOOKS))
            yield from (info for each in some if (info := self._info(each.name)) is not None)

    def names(self, prefix: str = "", *, start_after: str = "", page: int = PAGE) -> Iterator[Listed]:
        after = max(prefix, start_after)
        inclusive = not start_after.startswith(prefix) or not start_after
        while True:
            self._spend("page", prefix)
            with self._lock:
                start = bisect_left(self._names, after) if inclusive else bisect_right(self._names, after)
                found = list(itertools.takewhile(lambda name: name.startswith(prefix), self._names[start : start + page]))
            for name in found:
                if (info := self._info(name)) is not None:
                    yield Listed(name, info.size, info.created, None if self._costs["look"].requests else info)
            if len(found) < page:
                return
            after, inclusive = found[-1], False

    def folders(self, prefix: str = "") -> Iterator[str]:
        found: list[str] = []
        with self._lock:
            at = bisect_left(self._names, prefix)
            while at < len(self._names) and self._names[at].startswith(prefix):
                first, slash, _ = self._names[at].removeprefix(prefix).partition("/")
                found += [f"{prefix}{first}/"] if slash else []
                at = bisect_left(self._names, f"{prefix}{first}0", at + 1) if slash else at + 1
        for number, folder in enumerate(found):
            if number % PAGE == 0:
                self._spend("page", prefix)
            yield folder
        if not found:
            self._spend("page", prefix)

    def head(self, name: str) -> ObjectInfo | None:
        self._spend("head", name)
        return self._info(name)

    def read(self, name: str, *, generation: int | None = None, start: int = 0, end: int | None = None) -> bytes:
        self._spend("read", name)
        with self._lock:
            held = self._objects.get(name)
        if not isinstance(held, tuple) or generation not in (None, held[0].generation):
            raise ObjectNotFound("it is not there", operation="read", obj=name)
        return held[1][start:end]

    def put(
        self, name: str, data: bytes | Path, *, if_generation: int | None = None, metadata: Mapping[str, str] | None = None
    ) -> ObjectInfo:
        assert isinstance(data, bytes)
        self._spend("replace" if if_generation else "put", name)
        with self._lock:
            self._require(name, if_generation)
            return self._set(ObjectInfo(name, len(data), next(self._generations), crc32c(data), self.now, dict(metadata or {})), data)

    def copy(self, source: str, target: str, *, if_generation: int | None = 0) -> ObjectInfo:
        self._spend("copy", source)
        with self._lock:
            info = self._info(source)
            if info is None:
                raise ObjectNotFound("it is not there", operation="copy", obj=source)
            self._require(target, if_generation)
            return self._set(replace(info, name=target, generation=next(self._generations), created=self.now), b"")

    def delete(self, name: str, *, if_generation: int | None = None) -> None:
        self._spend("delete" if if_generation is None else "delete generation", name)
        with self._lock:
            if name not in self._objects:
                raise ObjectNotFound("it is not there", operation="delete", obj=name)
            self._require(name, if_generation)
            del self._objects[name]
            del self._names[bisect_left(self._names, name)]

    def discard(self, names: Iterable[str]) -> None:
        wanted = list(names)
        if wanted and self._costs["discard"].requests:
            self._spend("discard", wanted[0], -(-len(wanted) // PAGE))
        for name in wanted:
            if not self._costs["discard"].requests:
                self._spend("delete", name)
            with self._lock:
                if self._objects.pop(name, None) is not None:
                    del self._names[bisect_left(self._names, name)]

    # --- inside

    def _spend(self, call: str, name: str, times: int = 1, *, waits: int | None = None) -> None:
        """Count the requests of a call and take their time; `waits`: as many one after the other."""
        cost = self._costs[call]
        waits = cost.requests * times if waits is None else waits
        if not self._apart(name):
            with self._lock:
                used = self._used
                used.writes += cost.writes * times
                used.reads += cost.reads * times
                used.deletions += cost.deletions * times
                used.one_by_one += waits if threading.get_ident() == self._main else 0
                used.calls[call, name.partition("/")[0]] += times
        if self.latency:
            time.sleep(self.latency * waits)

    def _info(self, name: str) -> ObjectInfo | None:
        held = self._objects.get(name)
        return None if held is None else held[0] if isinstance(held, tuple) else held(name)

    def _require(self, name: str, wanted: int | None) -> None:
        info = self._info(name)
        if wanted is not None and wanted != (info.generation if info else 0):
            raise PreconditionFailed("another generation is there", operation="write", obj=name)

    def _set(self, info: ObjectInfo, data: bytes) -> ObjectInfo:
        if info.name not in self._objects:
            insort(self._names, info.name)
        self._objects[info.name] = info, data
        return info
