"""Rows on their way through Spark, packed by the batch, so that Spark moves a few large values instead of a
million small ones.

Strategy: between two Python stages Spark takes every row of a batch apart and puts it together again, which
costs more than the stages themselves. So the rows of a shard travel as record batches in Arrow's stream
format, a few MB per value. What Spark would have sorted is sorted here: in memory, or, if that does not
suffice, in sorted runs in a file that are merged.

    packing     SEGMENTS -> ROUTED         becomes  SEGMENTS -> PACKED
    folding     ROUTED -> ITEMS -> FOLDED  becomes  PACKED -> FOLDED, with events and records packed

Events are in the order of rows, as they were merged, or in that of writetimes within their partition. Knows
the columns by which rows are ordered, and nothing else of their contents."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable, Iterable, Iterator, Mapping
from itertools import chain
from operator import itemgetter
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from spark_jobs.failures import TablesFailed, concerning
from spark_jobs.stages.arrow_runs import (
    Ints,
    by_shard,
    fixed,
    joined,
    lengths,
    record_keys,
    starts,
    whole,
)
from spark_jobs.stages.merge_stream import FOLDED
from spark_jobs.stages.scan import Batches
from spark_jobs.state.shards import SCHEMA as RECORD
from writetime.config.kafka import PartitionBy
from writetime.kernels.mutation_columns import chunks

PACKED: Final = pa.schema([("table_id", pa.binary()), ("bucket", pa.int32()), ("partition", pa.int32()), ("rows", pa.binary())])
"""Rows of one shard, and where Spark gathers them; all null: of none. Only equal shards have to meet, but shards of a hash
do so by chance: of four in four partitions, all are apart in one case of ten."""
EVENTS: Final = "events"
RECORDS: Final = "records"
REJECTED: Final = "rejected"
"""Kinds of FOLDED rows: those that stand for many, whose `state` is the batch; and of a shard whose table cannot be
merged, with the reason in `detail`."""
BYTES_PER_PACK: Final = 4 << 20
SORTED_BYTES: Final = 64 << 20
"""Bytes of rows that are sorted in memory. More are sorted by so many."""

_COMPRESSED: Final = pa.ipc.IpcWriteOptions(compression="lz4", use_threads=False)
"""Spark copies a value half a dozen times on its way, and compresses it itself only after the first three."""

_KINDS: Final = {"event": EVENTS, "deletion": EVENTS, "record": RECORDS}
_COLUMNS: Final = {
    EVENTS: [name for name in FOLDED.names if name not in ("key", "state", "expires_at", "updates", "detail")],
    RECORDS: RECORD.names,
}


def pack(batch: pa.RecordBatch) -> bytes:
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, batch.schema, options=_COMPRESSED) as stream:
        stream.write_batch(batch)
    return sink.getvalue().to_pybytes()  # type: ignore[no-any-return]


def unpacked(values: Iterable[bytes]) -> Batches:
    for value in values:
        with pa.ipc.open_stream(value) as stream:
            yield from stream


def records(batches: Batches) -> Batches:
    """The state records in packed FOLDED rows, as `shards.upsert` takes them."""
    return unpacked(value for found in batches for value in found["state"].to_pylist())


def packed(table_id: bytes | None, bucket: int | None, rows: pa.RecordBatch, first: Mapping[bytes, int]) -> dict[str, Any]:
    """A row of PACKED. `first`: the partition of each table's first shard."""
    partition = None if table_id is None or bucket is None else first[table_id] + bucket
    return {"table_id": table_id, "bucket": bucket, "partition": partition, "rows": pack(rows)}


# --- packing and unpacking


def packing(route: Callable[[Batches], Batches], first: Mapping[bytes, int]) -> Callable[[Batches], Batches]:
    """SEGMENTS to PACKED, from a function to ROUTED. `first`: the partition of each table's first shard."""

    def pack_batches(batches: Batches) -> Batches:
        for batch in route(batches):
            for (table_id, bucket), rows in _of_shards(batch):
                yield pa.RecordBatch.from_pylist([packed(table_id, bucket, rows, first)], schema=PACKED)

    return pack_batches


def _of_shards(batch: pa.RecordBatch) -> Iterator[tuple[tuple[bytes | None, int | None], pa.RecordBatch]]:
    """The rows of each shard. A row without a bucket belongs to none."""
    none = batch.filter(pc.is_null(batch["bucket"]))
    if none.num_rows:
        yield (None, None), none
    rest = batch.filter(pc.is_valid(batch["bucket"])) if none.num_rows else batch
    if not rest.num_rows:
        return
    rest = rest.take(pc.sort_indices(rest.select(["table_id", "bucket"]), [("table_id", "ascending"), ("bucket", "ascending")]))
    for shard, runs in by_shard([rest]):
        yield shard, whole(list(runs))


def folding(
    explode: Callable[[Batches], Batches], join: Callable[[Batches], Batches], order: PartitionBy = "primary_key"
) -> Callable[[Batches], Batches]:
    """PACKED, sorted by shard, to FOLDED, from a function from ROUTED to ITEMS and one from ITEMS to
    FOLDED."""

    def fold_batches(batches: Batches) -> Batches:
        for (table_id, bucket), run in by_shard(batches):
            routed = unpacked(value for batch in run for value in batch["rows"].to_pylist())
            if table_id is None or bucket is None:
                yield from join(explode(routed))
                continue
            try:
                with concerning(table_id):
                    folded = join(in_order(explode(in_order(routed, by_digest)), by_place))
                    yield from _packed(folded if order == "primary_key" else by_writetime(folded))
            except TablesFailed as error:
                yield from (_rejected(table_id, bucket, each.reason) for each in error.refused)

    return fold_batches


def _rejected(table_id: bytes, bucket: int, reason: str) -> pa.RecordBatch:
    row = {**dict.fromkeys(FOLDED.names), "kind": REJECTED, "table_id": table_id, "bucket": bucket, "detail": reason}
    return pa.RecordBatch.from_pylist([row], schema=FOLDED)


def _packed(batches: Batches) -> Batches:
    """FOLDED rows of one shard, events and records packed."""
    waiting: dict[str, list[pa.RecordBatch]] = {EVENTS: [], RECORDS: []}
    about: dict[str, Any] = {}
    for batch in batches:
        for kind, rows in _of_kinds(batch):
            if kind is None:
                yield rows
                continue
            about = about or {name: rows[name][0].as_py() for name in ("table", "table_id", "bucket")}
            waiting[kind].append(rows.select(_COLUMNS[kind]))
            if sum(each.nbytes for each in waiting[kind]) >= BYTES_PER_PACK:
                yield _pack_row(kind, about, waiting[kind])
                waiting[kind] = []
    for kind, some in waiting.items():
        if some:
            yield _pack_row(kind, about, some)


def _pack_row(kind: str, about: dict[str, Any], rows: list[pa.RecordBatch]) -> pa.RecordBatch:
    row = {**dict.fromkeys(FOLDED.names), **about, "kind": kind, "state": pack(whole(rows))}
    return pa.RecordBatch.from_pylist([row], schema=FOLDED)


def _of_kinds(batch: pa.RecordBatch) -> Iterator[tuple[str | None, pa.RecordBatch]]:
    """Rows by the kind of their pack, in their order."""
    begins = starts(batch, ["kind"])
    ends = [*begins[1:].tolist(), batch.num_rows]
    kinds = [_KINDS.get(kind) for kind in batch["kind"].take(pa.array(begins)).to_pylist()]
    for kind in dict.fromkeys(kinds):
        parts = [batch.slice(b, e - b) for k, b, e in zip(kinds, begins.tolist(), ends, strict=True) if k == kind]
        yield kind, whole(parts)


# --- order

Key = Callable[[pa.RecordBatch], Any]


def by_digest(routed: pa.RecordBatch) -> Any:
    """Sort key of ROUTED: copies of one mutation are adjacent."""
    return pc.fill_null(joined(record_keys(routed["key"]), routed["digest"]), b"")


def by_place(items: pa.RecordBatch) -> Any:
    """Sort key of ITEMS: `explode.ORDER` as one value. The position of rows that are not items does not
    matter."""
    # No partition's key is a prefix of another. A row's may be, if clusterings have fewer values than
    # columns.
    rows = joined(pc.replace_substring(items["row"], b"\0", b"\0\xff"), pa.scalar(b"\0\0", pa.binary()))
    times = ascending(items["ts"].to_numpy())
    return pc.binary_join_element_wise(items["pk"], rows, times, items["content"], pa.scalar(b"", pa.binary()))


def ascending(numbers: Ints) -> Any:
    """64-bit numbers as bytes in the same order."""
    return fixed((numbers.view(np.uint64) ^ np.uint64(1 << 63)).astype(">u8").view(np.uint8).reshape(-1, 8))


def is_ascending(keys: Any) -> bool:
    """Whether sort keys (binary) are in order."""
    return len(keys) < 2 or bool(pc.all(pc.less_equal(keys[:-1], keys[1:])).as_py())


def by_writetime(folded: Batches) -> Batches:
    """FOLDED rows of one shard: those that are not events as they come, then the events by partition key and
    writetime, numbered anew (`seq`)."""
    events, found = Sorter(itemgetter("place")), 0
    for batch in folded:
        for kind, rows in _of_kinds(batch):
            if kind == EVENTS:
                events.add(rows.append_column("place", _place(rows, found)))
                found += rows.num_rows
            else:
                yield rows
    numbered = 0
    for batch in events.rows():
        is_numbered = batch["seq"].is_valid().to_numpy(zero_copy_only=False)
        seq = pa.array(numbered + np.cumsum(is_numbered) - 1, pa.int64(), mask=~is_numbered)
        numbered += int(is_numbered.sum())
        yield batch.set_column(batch.schema.get_field_index("seq"), FOLDED.field("seq"), seq).select(FOLDED.names)


def _place(events: pa.RecordBatch, start: int) -> Any:
    """Sort key of events: partition key, writetime, expiries before others, and how many events were before it,
    from `start` on. A schema change, and what is told again, precedes all other events whatever its timestamp (`partition_fold`)."""
    times = pc.if_else(pc.or_(_is(events, "alter"), _is(events, "again")), pa.scalar(-(2**63), pa.int64()), events["ts"]).to_numpy()
    written = pc.if_else(_is(events, "expiry"), pa.scalar(b"\0"), pa.scalar(b"\1"))
    numbers = ascending(start + np.arange(events.num_rows))
    return joined(record_keys(events["pk"]), joined(ascending(times), joined(written, numbers)))


def _is(events: pa.RecordBatch, reason: str) -> Any:
    return pc.equal(events["reason"], reason).fill_null(False)


class Sorter:
    """Sorts rows by their keys (binary), in bounded memory: beyond `SORTED_BYTES`, sorted runs are kept in
    files."""

    def __init__(self, key: Key) -> None:
        self._key = key
        self._runs: list[Iterator[pa.RecordBatch]] = []
        self._pending: list[pa.RecordBatch] = []
        self._size = 0

    def add(self, batch: pa.RecordBatch) -> None:
        self._pending.append(batch)
        self._size += batch.nbytes
        if self._size >= SORTED_BYTES:
            self._runs.append(_filed(_sorted(self._pending, self._key)))
            self._pending, self._size = [], 0

    def rows(self) -> Batches:
        """All rows, ascending, in batches of bounded size."""
        runs = [*self._runs, *([_sorted(self._pending, self._key)] if self._pending else [])]
        return runs[0] if len(runs) == 1 else _merged(runs, self._key)


def in_order(batches: Batches, key: Key) -> Batches:
    """All rows, ascending by their keys, as of a `Sorter`."""
    found = Sorter(key)
    for batch in batches:
        found.add(batch)
    yield from found.rows()


def _sorted(batches: list[pa.RecordBatch], key: Key) -> Iterator[pa.RecordBatch]:
    rows = whole(batches)
    order = pc.sort_indices(key(rows))
    sizes: Any = sum(lengths(column) for column in rows.columns if pa.types.is_binary(column.type))
    for start, end in chunks(sizes[order.to_numpy()], BYTES_PER_PACK):
        yield rows.take(order.slice(start, end - start))


def spill_folder() -> str | None:
    """Where Spark wants large temporary files; None: the system's folder."""
    return os.environ.get("SPARK_LOCAL_DIRS", "").split(",")[0] or None


def _filed(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """The same batches, written to a file at once and read from it."""
    file = tempfile.TemporaryFile(dir=spill_folder())  # noqa: SIM115 - it is read as long as the batches are
    first = next(batches)
    with pa.ipc.new_stream(file, first.schema) as stream:
        for batch in chain([first], batches):
            stream.write_batch(batch)
    file.seek(0)
    return _read(file)


def _read(file: Any) -> Iterator[pa.RecordBatch]:
    with file, pa.ipc.open_stream(file) as stream:
        yield from stream


def _merged(runs: list[Iterator[pa.RecordBatch]], key: Key) -> Iterator[pa.RecordBatch]:
    """Merge sorted runs: repeatedly yields everything up to the smallest last key of the runs' current
    batches."""
    heads = [(batch, key(batch), run) for run in runs if (batch := next(run, None)) is not None]
    while heads:
        bound = min(keys[-1].as_py() for _, keys, _ in heads)
        ready, left = [], []
        for batch, keys, run in heads:
            count = pc.sum(pc.less_equal(keys, pa.scalar(bound, pa.binary()))).as_py()
            ready.append(batch.slice(0, count))
            if count < batch.num_rows:
                left.append((batch.slice(count), keys.slice(count), run))
            elif (after := next(run, None)) is not None:
                left.append((after, key(after), run))
        heads = left
        yield from _sorted(ready, key)
