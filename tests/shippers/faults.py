"""Faults at numbered points: before and after every store call, and before and after every deletion of a
local file.

Strategy: a `Faults` counts the points of a run and injects a fault at one of them; a run per number covers
all points. The underlying store is a real one.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Iterator, Mapping
from enum import Enum
from pathlib import Path
from typing import Any

import pytest

from writetime.errors import ChecksumMismatch, StoreUnavailable
from writetime.storage.store import PAGE, Listed, ObjectInfo, Store


class Died(BaseException):
    """The process was killed; nothing may catch this."""


class Harm(Enum):
    """What happens at the chosen point."""

    DEATH = "the process dies"
    OUTAGE = "the store does not answer, five times"
    MISMATCH = "the store holds other bytes"


class Faults:
    """Counts points; injects `harm` at point number `at` (from 0). `passed` lists all points afterwards."""

    def __init__(self, at: int, harm: Harm) -> None:
        self._at = at
        self._harm = harm
        self.passed: list[str] = []

    @property
    def struck(self) -> bool:
        return len(self.passed) > self._at

    def point(self, what: str, *, store: bool = True) -> None:
        self.passed.append(what)
        offset = len(self.passed) - 1 - self._at
        if self._harm is Harm.DEATH and offset == 0:
            raise Died(what)
        if self._harm is Harm.OUTAGE and 0 <= offset < 5 and store:
            raise StoreUnavailable("503", operation=what)
        if self._harm is Harm.MISMATCH and offset == 0 and store:
            raise ChecksumMismatch("other bytes", operation=what)


class FaultyStore:
    """A store in front of another; see the module's docstring. `calls` lists the calls with object names."""

    def __init__(self, inner: Store, faults: Faults | None = None) -> None:
        self._inner = inner
        self._faults = faults or Faults(1 << 60, Harm.DEATH)
        self.url = inner.url
        self.calls: list[tuple[str, str]] = []

    def _call(self, what: str, name: str, *args: Any, **kwargs: Any) -> Any:
        self.calls.append((what, name))
        self._faults.point(f"before {what} {name}")
        answer = getattr(self._inner, what)(name, *args, **kwargs)
        self._faults.point(f"after {what} {name}")
        return answer

    def list(self, prefix: str = "", *, start_after: str = "") -> Iterator[ObjectInfo]:
        return iter(list(self._call("list", prefix, start_after=start_after)))

    def names(self, prefix: str = "", *, start_after: str = "", page: int = PAGE) -> Iterator[Listed]:
        return (Listed(info.name, info.size, info.created, info) for info in self.list(prefix, start_after=start_after))

    def folders(self, prefix: str = "") -> Iterator[str]:
        return iter(list(self._call("folders", prefix)))

    def head(self, name: str) -> ObjectInfo | None:
        found: ObjectInfo | None = self._call("head", name)
        return found

    def read(self, name: str, *, generation: int | None = None, start: int = 0, end: int | None = None) -> bytes:
        return bytes(self._call("read", name, generation=generation, start=start, end=end))

    def put(
        self, name: str, data: bytes | Path, *, if_generation: int | None = None, metadata: Mapping[str, str] | None = None
    ) -> ObjectInfo:
        info: ObjectInfo = self._call("put", name, data, if_generation=if_generation, metadata=metadata)
        return info

    def copy(self, source: str, target: str, *, if_generation: int | None = 0) -> ObjectInfo:
        info: ObjectInfo = self._call("copy", source, target, if_generation=if_generation)
        return info

    def delete(self, name: str, *, if_generation: int | None = None) -> None:
        self._call("delete", name, if_generation=if_generation)

    def discard(self, names: Iterable[str]) -> None:
        self._call("discard", list(names))


@contextlib.contextmanager
def deletions_too(faults: Faults, folder: Path) -> Iterator[None]:
    """Points before and after each deletion of a file in `folder`."""
    real = Path.unlink

    def unlink(path: Path, missing_ok: bool = False) -> None:
        if path.parent != folder:
            real(path, missing_ok)
            return
        faults.point(f"before unlink {path.name}", store=False)
        real(path, missing_ok)
        faults.point(f"after unlink {path.name}", store=False)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Path, "unlink", unlink)
        yield
