"""State shards: what the join remembers of one key bucket of one life of a table, as a Lance dataset.

Strategy: a shard is opened at the version the manifest pins, asked for the partitions a batch touches, and upserted once. One record
per row and one *head* record per partition (partition deletion, range tombstones, static row); `state` holds the record as an
encoded partition update, the same bytes a commit log would hold. An empty `state` says that nothing is left to remember.
A shard has one writer: the batch that is being run. Knows no Spark; is called inside its tasks.

Columns: key (unique: length-prefixed partition key, then the clustering), pk (the partition key, indexed), state, folded_at (the
`now` of the batch that wrote the record, s: what has expired since the partition's last one becomes events of the next).
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import lance
import pyarrow as pa

from writetime.commitlog.encode import encode_update
from writetime.commitlog.mutation import decode_update
from writetime.join.partition import FoldResult, PartitionState
from writetime.model import PartitionUpdate, Row
from writetime.schema.model import Schema, Table

SCHEMA = pa.schema([("key", pa.binary()), ("pk", pa.binary()), ("state", pa.binary()), ("folded_at", pa.int64())])
Clustering = tuple[bytes | None, ...]


@dataclass(frozen=True, slots=True)
class Record:
    """One record of a shard, as it is stored."""

    key: bytes
    pk: bytes
    state: bytes
    folded_at: int


def record_key(pk: bytes, clustering: Clustering | None) -> bytes:
    """Unique name of a row's record (`clustering`) or of its partition's head (None)."""
    head = struct.pack(">I", len(pk)) + pk
    if clustering is None:
        return head
    values = b"".join(b"\x00" if value is None else b"\x01" + struct.pack(">I", len(value)) + value for value in clustering)
    return head + b"r" + values


def records(result: FoldResult, pk: bytes, table: Table, schema: Schema, now: int) -> Iterator[Record]:
    """The records to upsert after a fold: rows that changed, and the head if it did or if what shows has changed by time alone."""
    for clustering, row in result.changed_rows.items():
        update = PartitionUpdate(table_id=table.id, key=pk, rows=(row,)) if row is not None else None
        yield Record(record_key(pk, clustering), pk, _encoded(update, table, schema), now)
    if result.head_changed or result.changes:
        yield Record(record_key(pk, None), pk, _encoded(result.state.head, table, schema), now)


def _encoded(update: PartitionUpdate | None, table: Table, schema: Schema) -> bytes:
    return b"" if update is None else encode_update(update, table, schema.types)


@dataclass(frozen=True, slots=True)
class Known:
    """State of one partition, and the second at which it was last folded (None: never)."""

    state: PartitionState
    folded_at: int | None


class Shard:
    """One shard at one version. `version` 0 = the shard does not exist yet."""

    def __init__(self, uri: str, version: int) -> None:
        self.uri = uri
        self._dataset = lance.dataset(uri, version=version) if version else None

    def partitions(self, keys: Sequence[bytes], table: Table) -> dict[bytes, Known]:
        """What is known of each of the partitions; an empty state for those the shard has never seen."""
        updates: dict[bytes, list[PartitionUpdate]] = {key: [] for key in keys}
        folded_at: dict[bytes, int] = {}
        if self._dataset is not None and keys:
            wanted = ",".join(f"X'{key.hex()}'" for key in keys)
            for batch in self._dataset.scanner(columns=["pk", "state", "folded_at"], filter=f"pk IN ({wanted})").to_batches():
                for row in batch.to_pylist():
                    pk = row["pk"]
                    folded_at[pk] = max(row["folded_at"], folded_at.get(pk, 0))
                    if row["state"]:
                        updates[pk].append(decode_update(row["state"], table))
        return {key: Known(_partition(found), folded_at.get(key)) for key, found in updates.items()}


def _partition(updates: Iterable[PartitionUpdate]) -> PartitionState:
    head: PartitionUpdate | None = None
    rows: dict[Clustering, Row] = {}
    for update in updates:
        if update.rows:
            row = update.rows[0]
            rows[row.clustering or ()] = row
        else:
            head = update
    return PartitionState(head=head, rows=rows)


def upsert(uri: str, batch: int, found: Iterable[Record]) -> int:
    """Write a batch's records into a shard; returns the version that holds them.

    Idempotent: a batch that was applied before has left a tag, and its version is given again. Writing the same records on top of a
    half-done earlier attempt ends in the same content, for keys are unique and the records do not depend on the attempt.
    """
    tag = f"batch-{batch:010d}"
    table = pa.Table.from_pylist([asdict(record) for record in found], schema=SCHEMA)
    dataset = _existing(uri)
    if dataset is None:
        dataset = lance.write_dataset(table, uri, mode="create")
    else:
        tags = dataset.tags.list()
        if tag in tags:
            return int(tags[tag]["version"])
        dataset.merge_insert("key").when_matched_update_all().when_not_matched_insert_all().execute(table)
    if not dataset.list_indices():
        # Here, so that an attempt which died before it got this far leaves no shard without its index.
        dataset.create_scalar_index("pk", "BTREE")
    dataset.tags.create(tag, dataset.version)
    return int(dataset.version)


def _existing(uri: str) -> lance.LanceDataset | None:
    if "://" not in uri and not Path(uri).exists():
        return None
    try:
        return lance.dataset(uri)
    except (FileNotFoundError, ValueError) as error:
        # lance says "was not found" for an absent dataset on an object store, by ValueError; anything else is a real failure.
        if "not found" in str(error).lower():
            return None
        raise
