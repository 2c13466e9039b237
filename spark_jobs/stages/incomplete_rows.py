"""The rows that a log has touched and that rest on something nobody knows (`writetime.pipeline.bootstrap.unknown_marker`): noted as a batch
writes them, to be read from the ring again by the bootstrap job. The note is the same however often a batch is run."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from uuid import UUID

from spark_jobs.state.shards import Record
from writetime.cassandra.types.byte_comparable import HEAD, split_record_key
from writetime.pipeline.bootstrap.unknown_marker import is_opaque
from writetime.storage.store import Store


class Touched:
    """Keys of such records among those of one shard, at `now` (s)."""

    def __init__(self, now: int) -> None:
        self._now = now
        self._keys: list[str] = []

    def of(self, records: Iterable[Record]) -> Iterator[Record]:
        """The same records."""
        for record in records:
            if record.state and is_opaque(record.state, self._now, head=split_record_key(record.key)[1] == HEAD):
                self._keys.append(record.key.hex())
            yield record

    def put(self, store: Store, name: str, batch: int, table_id: bytes) -> None:
        """Nothing if there are none."""
        if self._keys:
            put_keys(store, name, batch, table_id, sorted(self._keys))


def put_keys(store: Store, name: str, batch: int, table_id: bytes, keys: list[str], *, whole: bool = False) -> None:
    """Note keys of records (hex). `whole`: all replicas are to be asked, so that what none of them has is gone."""
    document = {"batch": batch, "table_id": str(UUID(bytes=table_id)), "keys": keys} | ({"whole": True} if whole else {})
    store.put(name, json.dumps(document, indent=1).encode() + b"\n")
