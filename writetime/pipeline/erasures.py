"""Erased keys: what is stored about them, and how their earlier writes are distinguished from later ones.

Strategy: for an erased key the bucket keeps a keyed hash, and the writetime up to which it was erased. Every
batch leaves out the key's logged data up to that writetime, which a late segment, a replay or a repeated
upload may contain; later writes are merged. The salt (`erasures/<cluster>/salt`) is created once, so a batch
hashes each key once, whatever the number of erasures; keys of tables without erasures are not hashed. A hash
does not reveal the key, but a reader of the bucket can test guesses against it.

An erasure covers a whole partition or one row. For one row, deletions of ranges or of the partition stay,
because they cover other rows too. Pure except `load`; does not know segments, the warehouse's tables or
Spark.
"""

from __future__ import annotations

import secrets
from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from hashlib import blake2b
from typing import Final
from uuid import UUID

from writetime.cassandra.merge.reconcile import max_timestamp
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
    """A key of `table` (full name; `table_ids` are its incarnations) that batch `number` erases. `partition`
    and `row` are keyed hashes in hex, of the partition key and, for one row, of the primary key. `until`:
    last erased writetime, µs. `revoked`: the batch was voided before it had erased anything, and nothing is left out."""

    number: int
    table: str
    table_ids: list[UUID]
    partition: str
    row: str | None = None
    until: int
    at: datetime
    by: str
    revoked: bool = False


class Request(Document):
    """The key in raw form; `clustering` is null for a whole partition. It stays in the bucket until its
    batch is sealed, which has this `number` unless another batch is created first."""

    table: str
    partition_key: str
    clustering: list[str | None] | None = None
    by: str
    number: int = 0

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
    """The hash of a partition key, or of a row's: `row` is its key
    (`writetime.cassandra.types.byte_comparable`), in which equal values have equal bytes."""
    return blake2b(record_key(key, row), key=salted, digest_size=_DIGEST_BYTES).digest()


@dataclass(frozen=True, slots=True)
class Erased:
    """The erased keys of one table, as hashes: partitions with the writetime (µs) up to which they are
    erased, and rows likewise. Sent to the executors."""

    salt: bytes = field(repr=False)
    partitions: Mapping[bytes, int] = field(default_factory=dict)
    rows: Mapping[bytes, Mapping[bytes, int]] = field(default_factory=dict)

    def concerns(self, key: bytes) -> bool:
        """Whether anything of that partition was erased."""
        hashed = digest(self.salt, key)
        return hashed in self.partitions or hashed in self.rows

    def left(self, update: PartitionUpdate, keys: RowKeys, *, counter: bool) -> PartitionUpdate | None:
        """The update without erased data: the same object if there is none, None if nothing is left."""
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
        return None if made.is_empty else made


def erased_of(found: Iterable[Erasure], salted: bytes) -> dict[bytes, Erased]:
    """By table id (16 bytes). If a key was erased several times, the last writetime counts."""
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
    """All erasures of the cluster in order; with `before`, those of earlier batches only."""
    found = []
    for info in store.names(layout.erasures_prefix(cluster)):
        number = info.name.removeprefix(layout.erasures_prefix(cluster)).removesuffix(".json")
        if not number.isascii() or not number.isdecimal() or (before is not None and int(number) >= before):
            continue
        erasure = Erasure.read(store, info.name)
        if erasure is not None:
            found.append(erasure)
    return found


def load(store: Store, cluster: str, *, before: int | None = None) -> dict[bytes, Erased]:
    """The data that batches leave out, by table id (16 bytes); empty if nothing was erased."""
    found = [each for each in listed(store, cluster, before=before) if not each.revoked]
    return erased_of(found, salt(store, cluster)) if found else {}


def note(store: Store, cluster: str, erasure: Erasure) -> Erasure:
    """Store the erasure, or return the existing one of an earlier run of its batch."""
    return erasure.create(store, layout.erasure(cluster, erasure.number))


def revoke(store: Store, cluster: str, number: int, *, by: str) -> None:
    """Before batch `number` is voided: if none of its runs has stored the erasure, none can from now on. Otherwise a late run
    would change what the batches after it leave out. One that is stored stays, because data is erased by then."""
    erasure = Erasure(number=number, table="", table_ids=[], partition="", until=0, at=datetime.now(UTC), by=by, revoked=True)
    erasure.create(store, layout.erasure(cluster, number))


def read_request(store: Store, cluster: str, batch_id: UUID | None) -> Request | None:
    """The key that the batch of that id erases; None once it is sealed."""
    return Request.read(store, layout.erasure_request(cluster, str(batch_id)))


def forget_requests(store: Store, cluster: str, upto: int) -> None:
    """Delete the requests that no batch needs any more, as batch `upto` is sealed or voided: their number is not above it, whether
    their batch had it or another one."""
    for info in store.list(layout.erasure_requests(cluster)):
        request = Request.read(store, info.name)
        if request is not None and request.number <= upto:
            with suppress(ObjectNotFound, PreconditionFailed):
                store.delete(info.name, if_generation=info.generation)
