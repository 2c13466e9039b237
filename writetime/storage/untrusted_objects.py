"""Documents and metadata that nodes write, read from the store within the limits of `writetime.untrusted`."""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import Any, Final

from writetime import untrusted
from writetime.errors import ObjectNotFound
from writetime.storage.store import ObjectInfo, Store

AHEAD: Final = timedelta(days=1)
"""How far a node's clock may be ahead of the store's."""


def read_object(store: Store, info: ObjectInfo, *, largest: int = untrusted.FACTS) -> dict[str, Any]:
    """The JSON object that the object holds; of a larger one nothing is read. Raises Untrusted, also where it is gone."""
    return untrusted.parse_object(read(store, info, largest=largest), largest=largest)


def read(store: Store, info: ObjectInfo, *, largest: int) -> bytes:
    """What the object holds, unless it is larger than that: then nothing is read. Raises Untrusted, also where it is gone."""
    if info.size > largest:
        raise untrusted.Untrusted(f"{info.size} bytes, more than {largest}")
    try:
        # It may have been replaced by a larger one since it was listed.
        return store.read(info.name, end=largest + 1)
    except ObjectNotFound as error:
        raise untrusted.Untrusted("it is gone") from error


def moment_of(info: ObjectInfo, key: str) -> datetime:
    """The time that an object's metadata notes under `key`. Raises Untrusted; also for one that is far ahead of the store's clock: what
    goes by it (the archive's hours, the time up to which logs are in) would run ahead for good."""
    found = untrusted.moment(info.metadata.get(key), key)
    if found > info.created + AHEAD:
        raise untrusted.Untrusted(f"{key} is more than a day ahead of the store's clock")
    return found
