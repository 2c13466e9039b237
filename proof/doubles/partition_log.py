"""What a broker keeps: the records of a partition, and the transactions that they belong to.

Strategy: as Kafka has it. A record keeps its offset for ever; the end of a transaction is a marker, which has an offset
of its own in each partition of the transaction. Readers of committed records go up to the *last stable offset*, the
first record of the earliest transaction without a marker, and leave out what was aborted. Must not know clients,
names of topics, or time."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from operator import attrgetter
from typing import Final, NamedTuple

Headers = list[tuple[str, bytes | None]]

_BATCH_BYTES: Final = 61
"""The header of a batch of records (DefaultRecordBatch.RECORD_BATCH_OVERHEAD)."""
_CLIENT_OVERHEAD: Final = 36


class Record(NamedTuple):
    """`offset` and `at` (milliseconds) are the log's. A marker has neither key nor value and is given to nobody."""

    key: bytes | None
    value: bytes | None
    headers: Headers | None = None
    transaction: Transaction | None = None
    is_marker: bool = False
    offset: int = -1
    at: int = 0

    @property
    def client_size(self) -> int:
        """What librdkafka holds against `message.max.bytes`, nearly `size`."""
        parts = _CLIENT_OVERHEAD + len(self.key or b"") + len(self.value or b"")
        return parts + sum(2 + len(name) + len(value or b"") for name, value in self.headers) if self.headers else parts

    @property
    def size(self) -> int:
        """Bytes in a batch that is not compressed, for small batches: timestamp and offset are deltas."""
        parts = sum(_sized(part) for part in (self.key, self.value))
        parts += sum(_sized(name.encode()) + _sized(value) for name, value in self.headers or ())
        body = 3 + parts + _length(len(self.headers or ()))
        return _length(body) + body


@dataclass(eq=False, slots=True)
class Transaction:
    """One transaction of a producer, as its coordinator knows it. `began`: when the first partition joined; `committed`:
    None while it is open."""

    began: float
    partitions: list[PartitionLog] = field(default_factory=list)
    committed: bool | None = None


@dataclass(eq=False, slots=True)
class PartitionLog:
    """`end` is the offset of the next record (the high watermark), `start` that of the first one there may be."""

    name: str = ""
    records: list[Record] = field(default_factory=list)
    start: int = 0
    end: int = 0
    pending: dict[Transaction, int] = field(default_factory=dict)

    @property
    def stable(self) -> int:
        """The last stable offset."""
        return min(self.pending.values(), default=self.end)

    def append(self, records: list[Record], at: int) -> int:
        """Returns the offset of the first one."""
        first = self.end
        for record in records:
            if record.transaction is not None and not record.is_marker:
                self.pending.setdefault(record.transaction, self.end)
            self.records.append(record._replace(offset=self.end, at=at))
            self.end += 1
        return first

    def mark(self, transaction: Transaction, at: int) -> None:
        """Write the marker of a transaction that is over."""
        self.append([Record(None, None, None, transaction, is_marker=True)], at)
        self.pending.pop(transaction, None)

    def read(self, offset: int, *, committed: bool) -> Iterator[Record]:
        """Records from an offset on that a reader is given."""
        upto = self.stable if committed else self.end
        for record in self.records[bisect_left(self.records, offset, key=attrgetter("offset")) :]:
            if record.offset >= upto:
                return
            is_aborted = record.transaction is not None and not record.transaction.committed
            if not record.is_marker and not (committed and is_aborted):
                yield record

    def copied(self, fresh: Mapping[Transaction, Transaction]) -> PartitionLog:
        """A copy, whose pending transactions are the given ones."""
        pending = {fresh[each]: offset for each, offset in self.pending.items()}
        records = [_belonging_to(each, fresh) for each in self.records] if pending else list(self.records)
        return PartitionLog(self.name, records, self.start, self.end, pending)

    def compact(self) -> None:
        """Keep the last committed record of each key, and nothing of a key that was deleted. What is not stable stays."""
        stable = self.stable
        last = {record.key: record for record in self.read(self.start, committed=True)}
        self.records = [each for each in self.records if each.offset >= stable or (last.get(each.key) is each and each.value is not None)]


def is_larger(records: list[Record], limit: int) -> bool:
    """Whether a batch of these, not compressed, has more bytes than that."""
    if 2 * sum(record.client_size for record in records) < limit:
        return False
    return _BATCH_BYTES + sum(record.size for record in records) > limit


def _belonging_to(record: Record, fresh: Mapping[Transaction, Transaction]) -> Record:
    other = fresh.get(record.transaction) if record.transaction is not None else None
    return record if other is None else record._replace(transaction=other)


def _sized(part: bytes | None) -> int:
    """A part and its length before it; the length of null is -1."""
    return 1 if part is None else _length(len(part)) + len(part)


def _length(number: int) -> int:
    """Bytes of a number as a zigzag varint."""
    return max(1, ((2 * number).bit_length() + 6) // 7)
