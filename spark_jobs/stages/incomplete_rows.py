"""Rows with an incomplete state: a reading of the cluster and the log have said what does not add up, or depends on
values that neither holds (`writetime.cassandra.merge.stand_ins`). A batch records the keys of those that it has
changed, and of those in which something expires; the bootstrap job reads them from the cluster again. What was just
read is recorded only if that holds for it, too. The record is the same on every run of a batch."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from uuid import UUID

import pyarrow as pa

from writetime.cassandra.merge import row_codec
from writetime.cassandra.merge.partition_head import static_row_of
from writetime.cassandra.merge.stand_ins import is_unknown
from writetime.cassandra.merge.unknown_marker import may_be_unknown
from writetime.cassandra.types.byte_comparable import HEAD, split_record_key
from writetime.storage.store import Store


class IncompleteRows:
    """Collects the keys of incomplete rows of one shard, at `now` (s). `counter`: of a table of counters."""

    def __init__(self, now: int, *, counter: bool) -> None:
        self._now, self._counter = now, counter
        self._keys: list[str] = []

    def of(self, records: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Yield the records (`shards.SCHEMA`) unchanged, and remember those that are incomplete."""
        for batch in records:
            for key, state in zip(batch["key"].to_pylist(), batch["state"].to_pylist(), strict=True):
                if state and may_be_unknown(state) and self._is_incomplete(key, state):
                    self._keys.append(key.hex())
            yield batch

    def _is_incomplete(self, key: bytes, state: bytes) -> bool:
        row = static_row_of(state) if split_record_key(key)[1] == HEAD else state
        return bool(row) and is_unknown(row_codec.decode(row), self._now, counter=self._counter)

    def put(self, store: Store, name: str, batch: int, table_id: bytes) -> None:
        """Write the keys to the store, if there are any."""
        if self._keys:
            put_keys(store, name, batch, table_id, sorted(self._keys))


def put_keys(store: Store, name: str, batch: int, table_id: bytes, keys: list[str], *, whole: bool = False) -> None:
    """Write record keys (hex) to the store. `whole`: all replicas must be read, so a row that none of them
    holds is deleted."""
    document = {"batch": batch, "table_id": str(UUID(bytes=table_id)), "keys": keys} | ({"whole": True} if whole else {})
    store.put(name, json.dumps(document, indent=1).encode() + b"\n")
