"""The object store protocol: a flat namespace of immutable objects with generation numbers.

One small protocol, one module per backend (`local`, `gcs`, `s3`), one conformance suite for all of them.
Names are `/`-separated text without a leading slash. The semantics are those of Google Cloud Storage, the
strictest that all backends can keep:

* an object appears whole or not at all, and has a *generation* that changes with every write of its name;
* `if_generation=0` means "only if the object does not exist", another number "only if this is the current generation";
  otherwise PreconditionFailed;
* every write is verified: the CRC32C of the data must equal the one that the store reports, else ChecksumMismatch.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import datetime
from itertools import islice
from pathlib import Path
from typing import Final, NamedTuple, Protocol

from writetime.errors import ObjectNotFound, PreconditionFailed, StoreUnavailable
from writetime.storage.concurrency import at_once

PAGE: Final = 1000
"""Names that a remote store lists with one request, at most."""
_DISCARDED: Final = 100
"""Names that one thread deletes."""


@dataclass(frozen=True, slots=True)
class ObjectInfo:
    """Facts of one object: `size` in bytes, `crc32c` as unsigned int, `created` in UTC, user `metadata`."""

    name: str
    size: int
    generation: int
    crc32c: int
    created: datetime
    metadata: Mapping[str, str] = field(default_factory=dict)


class Listed(NamedTuple):
    """What every store's listing says of an object: `size` in bytes, `created` in UTC. `info`: all facts, if this
    store's listing has them; None: a look at the object tells them."""

    name: str
    size: int
    created: datetime
    info: ObjectInfo | None = None


def require_facts(info: ObjectInfo) -> ObjectInfo:
    """Return `info`. ValueError if the store returned impossible facts: no time, or negative numbers."""
    numbers = (info.size, info.generation, info.crc32c)
    if any(number < 0 for number in numbers) or not isinstance(info.created, datetime) or info.created.tzinfo is None:
        raise ValueError(f"invalid object facts: {numbers}, {info.created}")
    return info


def require_nothing(info: ObjectInfo, start: int) -> bytes:
    """The empty content after a store refused `start` as beyond the end. StoreUnavailable if it is not."""
    if info.size > start:
        raise StoreUnavailable(f"range refused although the object has {info.size} bytes", operation="read an object", obj=info.name)
    return b""


class Store(Protocol):
    """See the module's docstring. Errors: StoreError and its subclasses."""

    url: str

    def list(self, prefix: str = "", *, start_after: str = "") -> Iterator[ObjectInfo]:
        """Objects whose names start with `prefix`, in order of their UTF-8 names, those after `start_after`
        only. Of S3, one more request for each object: see `names`."""

    def names(self, prefix: str = "", *, start_after: str = "", page: int = PAGE) -> Iterator[Listed]:
        """The same objects in the same order, with one request for each `page` of them, as they are consumed.
        `page`: how many the caller expects to consume, at most `PAGE`."""

    def folders(self, prefix: str = "") -> Iterator[str]:
        """The distinct beginnings, up to the next `/` and with it, of names that start with `prefix`, in order;
        without a look at what is below them."""

    def head(self, name: str) -> ObjectInfo | None:
        """The object's facts, or None if it does not exist. Missing permission and time-outs raise."""

    def read(self, name: str, *, generation: int | None = None, start: int = 0, end: int | None = None) -> bytes:
        """Bytes [start, end) of the object. ObjectNotFound if it, or that generation, does not exist."""

    def put(
        self,
        name: str,
        data: bytes | Path,
        *,
        if_generation: int | None = None,
        metadata: Mapping[str, str] | None = None,
    ) -> ObjectInfo:
        """Write the object whole and verified. A Path is streamed from disk in bounded memory."""

    def copy(self, source: str, target: str, *, if_generation: int | None = 0) -> ObjectInfo:
        """Copy bytes and metadata within the store; `if_generation` is the target's."""

    def delete(self, name: str, *, if_generation: int | None = None) -> None:
        """Delete the object. ObjectNotFound if it does not exist, so that no deletion is reported that did
        not happen."""

    def discard(self, names: Iterable[str]) -> None:
        """Delete objects of which nobody needs to know whether they were there: whatever their generation, and
        without an error for a name that does not exist. Of S3, one request for a thousand; of the others, one
        for each."""


def discard_at_once(store: Store, names: Iterable[str]) -> None:
    """`Store.discard` of very many, in parallel."""
    wanted = iter(names)
    at_once(store.discard, iter(lambda: list(islice(wanted, _DISCARDED)), []))


def facts(store: Store, listed: Iterable[Listed]) -> list[ObjectInfo]:
    """The facts of listed objects, in their order, without those that do not exist any more."""
    found = at_once(lambda each: each.info or store.head(each.name), listed)
    return [info for info in found if info is not None]


def change_object(store: Store, name: str, change: Callable[[bytes | None], bytes | None]) -> None:
    """Replace an object, under its generation, by what `change` makes of its content; None: it stays, or is not there. If
    another process has written it meanwhile, `change` is called again with that."""
    tried: bytes | None = None
    while True:
        info = store.head(name)
        try:
            before = None if info is None else store.read(name, generation=info.generation)
        except ObjectNotFound:
            # Written again since `head`.
            continue
        if tried is not None and before == tried:
            # The write succeeded, and its answer was lost.
            return
        tried = change(before)
        if tried is None:
            return
        with suppress(PreconditionFailed):
            store.put(name, tried, if_generation=info.generation if info is not None else 0)
            return
