"""Documents and metadata that nodes write, read from the store with the limits of `writetime.untrusted`."""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import Any, Final

from writetime import untrusted
from writetime.errors import ObjectNotFound
from writetime.storage.store import Listed, ObjectInfo, Store

AHEAD: Final = timedelta(days=1)
"""Maximum lead of a node's clock over the store's."""


def read_object(store: Store, info: ObjectInfo | Listed, *, largest: int = untrusted.FACTS) -> dict[str, Any]:
    """The JSON document in the object; a larger one is not read. Raises Untrusted, also if the object is
    missing."""
    return untrusted.parse_object(read(store, info, largest=largest), largest=largest)


def read(store: Store, info: ObjectInfo | Listed, *, largest: int) -> bytes:
    """The object's bytes; a larger object is not read. Raises Untrusted, also if the object is missing."""
    if info.size > largest:
        raise untrusted.Untrusted(f"{info.size} bytes, more than {largest}")
    try:
        # It may have been replaced by a larger one since it was listed.
        return store.read(info.name, end=largest + 1)
    except ObjectNotFound as error:
        raise untrusted.Untrusted("the object does not exist") from error


def moment_of(info: ObjectInfo, key: str) -> datetime:
    """The time in an object's metadata under `key`. Raises Untrusted, also if it is far ahead of the store's
    clock: values derived from it (the archive's hours, the time up to which logs are complete) would stay
    ahead."""
    found = untrusted.moment(info.metadata.get(key), key)
    if found > info.created + AHEAD:
        raise untrusted.Untrusted(f"{key} is more than a day ahead of the store's clock")
    return found
