"""Keys that were erased: what is kept of them, and how their earlier writes are told from later ones.

Strategy: of an erased key the bucket keeps a keyed hash and the writetime up to which it was erased. All that the key's logs hold up to
that writetime is left out by every batch that meets it, as a late segment, a replay or a segment that is put again may bring it; what is
written later is not. The key of the hash (`erasures/<cluster>/salt`) is made once, so a batch hashes each key once, whatever the number
of erasures; where a table has none, nothing is hashed. A hash names nobody, but who may read the bucket can try keys against it.

An erasure is of a whole partition, or of one row of it: of that one, what deletes ranges or the partition stays, for it is of other rows
too. Pure but for `load`; knows no segment, no table of the warehouse and no Spark.
"""

from __future__ import annotations

import secrets
from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field, replace
from datetime import datetime
from hashlib import blake2b
from typing import Final
from uuid import UUID

from writetime.cassandra.merge.partition import max_timestamp
from writetime.cassandra.merge.tombstone_gc import newer_than
from writetime.cassandra.model import PartitionUpdate, Row
from writetime.cassandra.types.byte_comparable import HEAD, RowKeys, record_key
from writetime.errors import ObjectNotFound, PreconditionFailed
from writetime.pipeline.documents import Document
from writetime.storage import layout
from writetime.storage.store import Store

_SALT_BYTES: Final = 32
_DIGEST_BYTES: Final = 16


class Erasure(Document):
    """A key of `table` (its full name; `table_ids` are its incarnations) that batch `number` erases.
    `partition` and `row` are keyed hashes in hex: of the partition key, and of the primary key where one row
    of the partition was erased. `until`: the last writetime that goes, µs."""

    number: int
    table: str
    table_ids: list[UUID]
    partition: str
    row: str | None = None
    until: int
    at: datetime
    by: str


class Request(Document):
    """The key itself, raw: of `clustering` null where the whole partition is to go. It stays in the bucket until its batch is sealed."""

    table: str
    partition_key: str
    clustering: list[str | None] | None = None
    by: str

    @classmethod
    def of(cls, table: str, key: bytes, clustering: tuple[bytes | None, ...] | None, by: str) -> Request:
        values = None if clustering is None else [None if value is None else value.hex() for value in clustering]
        return cls(table=table, partition_key=key.hex(), clustering=values, by=by)

    @property
    def key(self) -> bytes:
        return bytes.fromhex(self.partition_key)

    @property
    def row(self) -> tuple[bytes | None, ...] | None:
        if self.clustering is None:
            return None
        return tuple(None if value is None else bytes.fromhex(value) for value in self.clustering)

    def is_of(self, other: Request) -> bool:
        """Whether both want the same key gone, whoever asked."""
        return (self.table, self.partition_key, self.clustering) == (other.table, other.partition_key, other.clustering)


def salt(store: Store, cluster: str) -> bytes:
    """What hashes of the cluster's keys are keyed with; made up the first time."""
    name = layout.erasure_salt(cluster)
    with suppress(PreconditionFailed):
        store.put(name, secrets.token_hex(_SALT_BYTES).encode(), if_generation=0)
    return bytes.fromhex(store.read(name).decode())


def digest(salted: bytes, key: bytes, row: bytes = HEAD) -> bytes:
    """Stands for a partition key, or for a row's: `row` is its key (`writetime.cassandra.types.byte_comparable`), in which equal values are
    spelled alike."""
    return blake2b(record_key(key, row), key=salted, digest_size=_DIGEST_BYTES).digest()


@dataclass(frozen=True, slots=True)
class Erased:
    """The erased keys of one table: by hash of the partition key up to which writetime (µs) all of it went, and which rows did, by
    theirs. Travels to the executors."""

    salt: bytes = field(repr=False)
    partitions: Mapping[bytes, int] = field(default_factory=dict)
    rows: Mapping[bytes, Mapping[bytes, int]] = field(default_factory=dict)

    def concerns(self, key: bytes) -> bool:
        """Whether anything of that partition was erased."""
        hashed = digest(self.salt, key)
        return hashed in self.partitions or hashed in self.rows

    def left(self, update: PartitionUpdate, keys: RowKeys, *, counter: bool) -> PartitionUpdate | None:
        """The update without what was erased: the same object if that is nothing, None if it is all."""
        hashed = digest(self.salt, update.key)
        until = self.partitions.get(hashed)
        if until is not None:
            if max_timestamp(update) <= until:
                return None
            newer = newer_than(until, update, counter=counter)
            update = update if newer == update else newer
        rows = self.rows.get(hashed)
        return update if rows is None else self._without_rows(update, rows, keys, counter)

    def _without_rows(self, update: PartitionUpdate, rows: Mapping[bytes, int], keys: RowKeys, counter: bool) -> PartitionUpdate | None:
        kept: list[Row] = []
        changed = False
        for row in update.rows:
            until = rows.get(digest(self.salt, update.key, keys.key(row.clustering or ())))
            alone = PartitionUpdate(update.table_id, update.key, rows=(row,))
            left = alone if until is None else newer_than(until, alone, counter=counter)
            changed = changed or left != alone
            kept += left.rows
        if not changed:
            return update
        made = replace(update, rows=tuple(kept))
        return None if made == PartitionUpdate(update.table_id, update.key) else made


def erased_of(found: Iterable[Erasure], salted: bytes) -> dict[bytes, Erased]:
    """By table id (16 bytes). Of a key that was erased several times the last writetime counts."""
    partitions: dict[bytes, dict[bytes, int]] = {}
    rows: dict[bytes, dict[bytes, dict[bytes, int]]] = {}
    for each in found:
        key = bytes.fromhex(each.partition)
        for table_id in each.table_ids:
            if each.row is None:
                known, place = partitions.setdefault(table_id.bytes, {}), key
            else:
                known, place = rows.setdefault(table_id.bytes, {}).setdefault(key, {}), bytes.fromhex(each.row)
            known[place] = max(each.until, known.get(place, each.until))
    return {table: Erased(salted, partitions.get(table, {}), rows.get(table, {})) for table in {*partitions, *rows}}


def listed(store: Store, cluster: str, *, before: int | None = None) -> list[Erasure]:
    """All erasures of the cluster, those by batches below `before` only, in their order."""
    found = []
    for info in store.list(layout.erasures_prefix(cluster)):
        number = info.name.removeprefix(layout.erasures_prefix(cluster)).removesuffix(".json")
        if not number.isascii() or not number.isdecimal() or (before is not None and int(number) >= before):
            continue
        erasure = Erasure.read(store, info.name)
        if erasure is not None:
            found.append(erasure)
    return found


def load(store: Store, cluster: str, *, before: int | None = None) -> dict[bytes, Erased]:
    """What batches are to leave out, by table id (16 bytes); empty where nothing was ever erased."""
    found = listed(store, cluster, before=before)
    return erased_of(found, salt(store, cluster)) if found else {}


def note(store: Store, cluster: str, erasure: Erasure) -> Erasure:
    """Keep the erasure; the one that is there if an earlier run of its batch has."""
    name = layout.erasure(cluster, erasure.number)
    try:
        store.put(name, erasure.to_bytes(), if_generation=0)
    except PreconditionFailed:
        return Erasure.read(store, name) or erasure
    return erasure


def read_request(store: Store, cluster: str, batch_id: UUID | None) -> Request | None:
    """The key that the batch of that id erases; None once it is sealed."""
    return Request.read(store, layout.erasure_request(cluster, str(batch_id)))


def forget_requests(store: Store, cluster: str, *, but: UUID | None = None) -> None:
    """Delete the keys that were to be erased, but for that of the open batch: their batches are sealed or voided."""
    kept = layout.erasure_request(cluster, str(but))
    for info in store.list(layout.erasure_requests(cluster)):
        if info.name != kept:
            with suppress(ObjectNotFound, PreconditionFailed):
                store.delete(info.name, if_generation=info.generation)
