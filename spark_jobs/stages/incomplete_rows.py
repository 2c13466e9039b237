"""Rows with an incomplete state: the log changed them, and the result depends on values that the log does not
hold (`writetime.pipeline.bootstrap.unknown_marker`). A batch records their keys, and the bootstrap job reads
them from the cluster again. The record is the same on every run of a batch."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from uuid import UUID

import pyarrow as pa

from writetime.cassandra.types.byte_comparable import HEAD, split_record_key
from writetime.pipeline.bootstrap.unknown_marker import is_unknown
from writetime.storage.store import Store


class IncompleteRows:
    """Collects the keys of incomplete rows of one shard, at `now` (s)."""

    def __init__(self, now: int) -> None:
        self._now = now
        self._keys: list[str] = []

    def of(self, records: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Yield the records (`shards.SCHEMA`) unchanged, and remember those that are incomplete."""
        for batch in records:
            for key, state in zip(batch["key"].to_pylist(), batch["state"].to_pylist(), strict=True):
                if state and is_unknown(state, self._now, head=split_record_key(key)[1] == HEAD):
                    self._keys.append(key.hex())
            yield batch

    def put(self, store: Store, name: str, batch: int, table_id: bytes) -> None:
        """Write the keys to the store, if there are any."""
        if self._keys:
            put_keys(store, name, batch, table_id, sorted(self._keys))


def put_keys(store: Store, name: str, batch: int, table_id: bytes, keys: list[str], *, whole: bool = False) -> None:
    """Write record keys (hex) to the store. `whole`: all replicas must be read, so a row that none of them
    holds is deleted."""
    document = {"batch": batch, "table_id": str(UUID(bytes=table_id)), "keys": keys} | ({"whole": True} if whole else {})
    store.put(name, json.dumps(document, indent=1).encode() + b"\n")
