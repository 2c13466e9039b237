"""State shards: what is remembered of one key bucket of one incarnation of a table, as a Lance dataset.

Strategy: a shard is read at the version that a manifest pins, and written once per batch. Records are keyed
by their record keys (`writetime.cassandra.types.byte_comparable`), so a partition is an interval of keys, the
head first and rows in clustering order, and so is a range that is deleted. A B-tree index finds keys; no
function here reads a whole shard, and only the result of `get` has to fit in memory.

**Writing.** The valid version of a dataset is the one that the seal of a batch names, not the newest. A write
is a chain of commits on the pinned base. Commits that are already on the base (from an attempt that crashed,
or from another driver) are undone first, by a restore. Then records are merged in, deleted ones are removed,
and sometimes files are compacted. After each commit the version must be the next one, because Lance rebases a
commit on any commit in between, and would silently duplicate keys. The end of the chain is then recorded in
the shard's lease by one conditional write: of several processes that write the same batch, the version of one
is valid, and all return it.

**Memory.** The number of records in memory is bounded, and so are the bytes of their states: about `HELD`, or
one larger state.

Columns: key (unique, indexed), state (bytes, not decoded here), expires_at (s since the epoch: the next
expiry of the record; null: never). Runs inside Spark tasks but does not know Spark; knows neither types nor rows.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from datetime import timedelta
from functools import lru_cache
from pathlib import Path
from typing import Any, Final, Literal, NamedTuple, TypeVar
from uuid import UUID

import lance
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from lance.dataset import LanceOperation
from xxhash import xxh3_64_intdigest, xxh3_128_intdigest

from spark_jobs.state.places import reached
from writetime.config.pipeline import PipelineConfig
from writetime.errors import BatchError, ChainMismatch, LeaseLost
from writetime.pipeline.documents import Sealed
from writetime.storage import layout
from writetime.storage.lease import Lease, notes
from writetime.storage.store import Store

SCHEMA: Final = pa.schema([("key", pa.binary()), ("state", pa.binary()), ("expires_at", pa.int64())])

_ALL_VERSIONS: Final = 1_000_000_000
"""More versions than a shard can have."""
ASKED: Final = 128
"""Intervals in one question to the index."""
LOOKED_UP: Final = 16_384
"""Keys in one question to the index: each reads the index's pages that hold one of them, and is compared with
all of these."""
STREAMED: Final = 4096
"""Records of a scan that are in memory at once, at most."""
HELD: Final = 64 << 20
"""Bytes of states that are in memory at once, about: of what is read, and of what is to be merged."""
READ_AT_ONCE: Final = 128
"""Records that Lance reads before it looks whether they are too many bytes."""
SLOWLY: Final[dict[str, Any]] = {"batch_size": READ_AT_ONCE, "batch_readahead": 1, "fragment_readahead": 1, "io_buffer_size": 32 << 20}
"""How states are read. Lance would read ahead of who asks, without a limit of bytes; on few cores that takes
longer, too."""
CUT: Final = 8
"""What is too much to be held is asked for again in so many parts."""
SAMPLED: Final = 64
"""A scan of more looks at the keys first and remembers each of so many, to cut its interval where they
are."""
WRITTEN: Final = 250_000
"""Records that are merged in one commit, at most."""
SEARCHED: Final = 5_000
"""A merge finds its keys by the index if there are so many times as many in the shard; else it reads all
keys, which is faster then."""
CACHED: Final = 512 << 20
"""Bytes of indices that a process keeps in memory at most. Batches have large parts of an index in common."""
CACHED_VERSIONS: Final = 8 << 20
"""Bytes of versions' metadata (about 50 KB each) that a process keeps. A batch needs a version twice, to read and
to write; later batches start from others, so that a larger cache would only fill up with what nobody asks for."""
INDEX: Final = "key_idx"
INDEX_PARTS: Final = 16
"""Each write indexes what it wrote by itself; so many parts are made one."""
FRAGMENTS: Final = 40
FRAGMENT_ROWS: Final = 500_000
DELETED: Final = 0.3
"""More than `FRAGMENTS` files are compacted by the write that finds them: those of fewer than `FRAGMENT_ROWS`
records, and those of which a share of `DELETED` is gone."""


T = TypeVar("T")
Gone = Callable[[bytes, bytes], bool]
"""Whether a record, by its key and state, is to be erased."""


def shards_of(config: PipelineConfig, sealed: Sealed, table_id: UUID) -> list[tuple[str, int]]:
    """Path and version of every existing shard of the table's state as of that seal."""
    if (versions := sealed.state.get(str(table_id))) is None:
        return []
    cluster, generation = config.cluster.name, versions.generation
    return [
        (config.state_url(layout.state_shard(cluster, str(table_id), generation, bucket, versions.of)), version)
        for bucket, version in enumerate(versions.buckets)
        if version
    ]


class Record(NamedTuple):
    """One stored record. An empty `state` deletes the record. `expires_at`: s since the epoch, or None."""

    key: bytes
    state: bytes
    expires_at: int | None


class Written(NamedTuple):
    """What a batch wrote to a shard: the version, and the first expiry of its records in s since the epoch
    (None: none expires)."""

    version: int
    earliest_expiry: int | None


class Shard:
    """One shard at one version. `version` 0 = the shard does not exist yet."""

    def __init__(self, uri: str, version: int) -> None:
        self.uri = uri
        self._dataset = _at(uri, version) if version else None

    def get(self, keys: Iterable[bytes]) -> dict[bytes, bytes]:
        """State by record key, for existing records."""
        found: dict[bytes, bytes] = {}
        for _, some in self.get_parts(sorted(set(keys))):
            found.update(some)
        return found

    def get_parts(self, keys: Sequence[bytes]) -> Iterator[tuple[Sequence[bytes], dict[bytes, bytes]]]:
        """`get` in parts, for ascending keys: yields the next keys and their existing records, about `HELD`
        bytes at most."""
        at, size = 0, LOOKED_UP
        while at < len(keys):
            some = keys[at : at + size]
            found = self._hold(pc.field("key").isin(pa.array(some, pa.binary())), any_size=len(some) == 1)
            if found is None:
                size = max(1, len(some) // CUT)
                continue
            yield some, dict(_pairs(found))
            at += len(some)
            # Half of what fits in memory, if the next records are like these.
            size = min(LOOKED_UP, max(1, HELD // 2 * len(some) // max(1, found.nbytes)))

    def scan(self, start: bytes, end: bytes) -> Iterator[tuple[bytes, bytes]]:
        """(record key, state) with start <= key < end, ascending. Holds some thousand records at a time,
        however many there are."""
        return self.scan_all([(start, end)])

    def scan_all(self, intervals: Sequence[tuple[bytes, bytes]]) -> Iterator[tuple[bytes, bytes]]:
        """`scan` of each interval in turn. Intervals ascend and do not overlap; several small ones are read
        by one query."""
        for some in _chunks(intervals, ASKED):
            # A few more than wanted, to see whether there are more.
            found = self._hold(_in_any(some), limit=STREAMED + 1)
            if found is not None and found.num_rows <= STREAMED:
                yield from _pairs(found.sort_by("key"))
                continue
            del found
            for start, end in some:
                yield from self._scan_long(start, end) if len(some) == 1 else self.scan(start, end)

    def _scan_long(self, start: bytes, end: bytes) -> Iterator[tuple[bytes, bytes]]:
        for piece in self._parts(start, end):
            yield from self._scan_piece(*piece)

    def _scan_piece(self, start: bytes, end: bytes, *, any_size: bool = False) -> Iterator[tuple[bytes, bytes]]:
        """`scan` of an interval whose keys fit in memory; their states may not."""
        found = self._hold(_in_any([(start, end)]), any_size=any_size)
        if found is not None:
            yield from _pairs(found.sort_by("key"))
            return
        keys = sorted(self._read(["key"], _in_any([(start, end)]))["key"].to_pylist())
        cuts = keys[:: -(-len(keys) // CUT)][1:]
        for part in zip([start, *cuts], [*cuts, end], strict=True):
            yield from self._scan_piece(*part, any_size=len(keys) <= CUT)

    def batches(self) -> Iterator[pa.RecordBatch]:
        """Keys and states of all records in no order, which is many times faster than `scan`."""
        waiting, size = list[pa.RecordBatch](), 0
        for batch in () if self._dataset is None else self._dataset.scanner(columns=["key", "state"], **SLOWLY).to_batches():
            waiting.append(batch)
            size += batch.nbytes
            if len(waiting) * READ_AT_ONCE >= STREAMED or size >= HELD:
                yield pa.concat_batches(waiting)
                waiting, size = [], 0
        if waiting:
            yield pa.concat_batches(waiting)

    def stored(self, wanted: Callable[[bytes], bool]) -> Iterator[pa.RecordBatch]:
        """The records whose keys are `wanted`, with all columns, in no order."""
        if self._dataset is not None:
            for batch in self._dataset.scanner(columns=SCHEMA.names, **SLOWLY).to_batches():
                yield batch.filter(pa.array(map(wanted, batch["key"].to_pylist()), pa.bool_()))

    def due(self, now: int) -> Iterator[bytes]:
        """Keys of the records in which something has expired at `now` (s), ascending."""
        yield from sorted(self._read(["key"], pc.field("expires_at") <= now)["key"].to_pylist())

    def earliest_expiry(self) -> int | None:
        """The first expiry in s since the epoch; None if nothing expires. Reads a column, unlike
        `Written`."""
        if self._dataset is None:
            return None
        batches = self._dataset.scanner(columns=["expires_at"], filter=pc.field("expires_at").is_valid()).to_batches()
        return min((pc.min(batch["expires_at"]).as_py() for batch in batches if batch.num_rows), default=None)

    def _parts(self, start: bytes, end: bytes) -> Iterator[tuple[bytes, bytes]]:
        """The interval in parts of about `STREAMED` records."""
        assert self._dataset is not None
        sample: list[bytes] = []
        for batch in self._dataset.scanner(columns=["key"], filter=_in_any([(start, end)])).to_batches():
            sample += batch["key"][::SAMPLED].to_pylist()
        cuts = sorted(sample)[STREAMED // SAMPLED :: STREAMED // SAMPLED]
        yield from zip([start, *cuts], [*cuts, end], strict=True)

    def _read(self, columns: list[str], condition: pc.Expression | str) -> pa.Table:
        if self._dataset is None:
            return SCHEMA.empty_table().select(columns)
        return self._dataset.scanner(columns=columns, filter=condition).to_table()

    def _hold(self, condition: pc.Expression | str, *, limit: int | None = None, any_size: bool = False) -> pa.Table | None:
        """Keys and states of some records; None if they exceed the memory bound."""
        wanted = ["key", "state"]
        if self._dataset is None:
            return SCHEMA.empty_table().select(wanted)
        batches, size = [], 0
        for batch in self._dataset.scanner(columns=wanted, filter=condition, limit=limit, **SLOWLY).to_batches():
            size += batch.nbytes
            if size > HELD and not any_size:
                return None
            batches.append(batch)
        return pa.Table.from_batches(batches, pa.schema([SCHEMA.field(name) for name in wanted]))


def _in_any(intervals: Sequence[tuple[bytes, bytes]]) -> str:
    # As text: of an expression with a dozen alternatives, Lance takes minutes to make a plan.
    return " OR ".join(f"(key >= X'{start.hex()}' AND key < X'{end.hex()}')" for start, end in intervals)


def _pairs(table: pa.Table | pa.RecordBatch) -> Iterator[tuple[bytes, bytes]]:
    return zip(table["key"].to_pylist(), table["state"].to_pylist(), strict=True)


def _chunks(items: Sequence[T], size: int) -> Iterator[Sequence[T]]:
    for at in range(0, len(items), size):
        yield items[at : at + size]


# --- writing


def in_batches(records: Iterable[Record]) -> Iterator[pa.RecordBatch]:
    """Records as record batches of SCHEMA, of some thousand records and about `HELD` bytes at most."""
    some: list[Record] = []
    size = 0
    for record in records:
        some.append(record)
        size += len(record.state)
        if len(some) == STREAMED or size >= HELD:
            yield _batch(some)
            some, size = [], 0
    if some:
        yield _batch(some)


def _batch(records: Sequence[Record]) -> pa.RecordBatch:
    columns = zip(zip(*records, strict=True), SCHEMA, strict=True)
    return pa.RecordBatch.from_arrays([pa.array(values, field.type) for values, field in columns], schema=SCHEMA)


def upsert(uri: str, base: int, batch: int, records: Iterable[pa.RecordBatch], store: Store, lease: str, **timing: float) -> Written:
    """Write a batch's records (record batches of SCHEMA; keys are unique, an empty state deletes) on version
    `base` (0: the shard does not exist yet) and return the result. Idempotent, also if several processes run it
    at once: the first to finish decides. `lease` names the shard's lease in the store (`layout.state_lease`);
    `timing` is passed to `Lease`. LeaseLost (retriable) if another process is writing, or finished while this one
    was suspended; BatchError if the shard was written by a later batch, or if this batch wrote it from another
    base or with other records."""
    summed = _Summed(records)
    if (done := _written(notes(store, lease), uri, base, batch, summed)) is not None:
        return done
    with Lease(store, lease, **timing) as held:
        if (done := _written(held.notes, uri, base, batch, summed)) is not None:
            return done
        work = _Chain(uri, base, held)
        try:
            work.write(summed)
            work.tidy()
        except (OSError, RuntimeError):
            # Lance rejects a commit that conflicts with one in between. The lease tells whether that was
            # another driver's.
            held.check()
            raise
        done = Written(work.version, _earliest_expiry(work, held.notes))
        held.finish({"batch": batch, "base": base, "content": summed.digest, **done._asdict()})
    return done


def rewrite(uri: str, base: int, batch: int, gone: Gone, store: Store, lease: str, **timing: float) -> Written:
    """Write all records of version `base` anew, but for those that are `gone`: into new files, so that once
    the older versions are removed (`forget`) nothing of them is left. Idempotent, as `upsert` is, and with
    the same errors."""
    if (done := _rewritten(notes(store, lease), uri, base, batch)) is not None:
        return done
    with Lease(store, lease, **timing) as held:
        if (done := _rewritten(held.notes, uri, base, batch)) is not None:
            return done
        work = _Chain(uri, base, held)
        work.rewrite(gone)
        done = Written(work.version, Shard(uri, work.version).earliest_expiry())
        held.finish({"batch": batch, "base": base, **done._asdict()})
    return done


def fill(uri: str, batch: int, parts: Iterable[pa.RecordBatch], store: Store, lease: str, **timing: float) -> Written:
    """Write a shard from nothing, with record batches of SCHEMA whose keys are unique. Idempotent, as `rewrite` is, and
    with the same errors: the records have to be those of the first run."""
    if (done := _rewritten(notes(store, lease), uri, 0, batch)) is not None:
        return done
    with Lease(store, lease, **timing) as held:
        if (done := _rewritten(held.notes, uri, 0, batch)) is not None:
            return done
        work = _Chain(uri, 0, held)
        work.replace(parts)
        done = Written(work.version, Shard(uri, work.version).earliest_expiry())
        held.finish({"batch": batch, "base": 0, **done._asdict()})
    return done


def _rewritten(found: dict[str, Any], uri: str, base: int, batch: int) -> Written | None:
    """The version that the batch has rewritten; None if it has not."""
    last = found.get("batch", batch - 1)
    if last < batch:
        return None
    if last > batch or found["base"] != base:
        why = f"batch {last} has written it, from version {found['base']}"
        raise ChainMismatch(why, operation=f"rewrite a shard in batch {batch}", obj=uri)
    return Written(found["version"], found["earliest_expiry"])


class _Summed:
    """An iterator over record batches that also computes a digest of their records, which depends neither on their
    order nor on where batches end."""

    def __init__(self, records: Iterable[pa.RecordBatch]) -> None:
        self._records = records
        self._sum = 0

    def __iter__(self) -> Iterator[pa.RecordBatch]:
        for batch in self._records:
            # 0 stands for a record that does not expire.
            expiries = pc.add(batch["expires_at"], 1).fill_null(0).to_numpy().view(np.uint64).tolist()
            seeds = map(xxh3_64_intdigest, batch["key"].to_pylist(), expiries)
            self._sum += sum(map(xxh3_128_intdigest, batch["state"].to_pylist(), seeds))
            yield batch

    @property
    def digest(self) -> str:
        """The digest of the records read so far."""
        return f"{self._sum % 2**128:032x}"


def _earliest_expiry(work: _Chain, noted: dict[str, Any]) -> int | None:
    """The first expiry in the current version. If nothing expires in the base, only the written records
    count, and the column is not read."""
    nothing_expired = not work.base or (noted.get("version") == work.base and noted["earliest_expiry"] is None)
    return work.earliest_written if nothing_expired else Shard(work.uri, work.version).earliest_expiry()


def _written(found: dict[str, Any], uri: str, base: int, batch: int, records: _Summed) -> Written | None:
    """The version that the batch has written; None if it has not. Reads the records to check that they are
    the same."""
    last = found.get("batch", batch - 1)
    if last < batch:
        return None
    if last > batch or found["base"] != base:
        raise ChainMismatch(
            f"batch {last} has written it, from version {found['base']}",
            operation=f"write batch {batch} from version {base}",
            obj=uri,
            hint="A batch that is sealed is not run again; a manifest does not change.",
        )
    for _ in records:
        pass
    if found["content"] != records.digest:
        raise BatchError(
            "an earlier run of the batch wrote other records: its input was not the same",
            operation=f"write batch {batch} from version {base}",
            obj=uri,
            hint="A segment that it read cannot be read any more, or has been replaced. Put it back as it was, and run the batch again.",
        )
    return Written(found["version"], found["earliest_expiry"])


class _Chain:
    """Commits on top of a base, each the very next version; see the module's docstring."""

    def __init__(self, uri: str, base: int, lease: Lease) -> None:
        self.uri, self.base, self._lease = uri, base, lease
        self._dataset: Any = None
        self.version = base
        self.earliest_written: int | None = None
        """The second at which the first of the records that were merged in expires."""

    def write(self, records: Iterable[pa.RecordBatch]) -> None:
        """Merge in all records, in bounded memory."""
        if not self.base:
            self._create()
        for table in _tables(records, self.uri):
            if self._dataset is None:
                self._open_base()
            is_kept = pc.not_equal(pc.binary_length(table["state"]), 0)
            # Most batches delete no record, and a filter copies all states.
            kept = table if pc.all(is_kept).as_py() else table.filter(is_kept)
            self._merge(kept, forget=False)
            if kept.num_rows < table.num_rows:
                self._merge(table.filter(pc.invert(is_kept)).select(["key"]), forget=True)
            self._index()
            expiries = (self.earliest_written, pc.min(kept["expires_at"]).as_py())
            self.earliest_written = min((at for at in expiries if at is not None), default=None)

    def rewrite(self, gone: Gone) -> None:
        """The records of the base but for those that are gone, in files of their own."""
        dataset = _at(self.uri, self.base)

        def kept() -> Iterator[pa.RecordBatch]:
            for batch in dataset.scanner(columns=SCHEMA.names, **SLOWLY).to_batches():
                pairs = zip(batch["key"].to_pylist(), batch["state"].to_pylist(), strict=True)
                yield batch.filter(pa.array([not gone(key, state) for key, state in pairs], pa.bool_()))

        self.replace(kept())

    def replace(self, parts: Iterable[pa.RecordBatch]) -> None:
        """These records, in files of their own, and nothing else."""
        newest = _newest(self.uri)
        self._lease.check()
        made = _write(pa.RecordBatchReader.from_batches(SCHEMA, parts), self.uri, "overwrite" if newest else "create")
        self.version = newest
        self._advance(made)
        made.create_scalar_index("key", "BTREE", name=INDEX)
        self._advance(made)

    def tidy(self) -> None:
        """Compact files, and rewrite files with many deleted records."""
        if self._dataset is not None and len(self._dataset.get_fragments()) > FRAGMENTS:
            self._dataset.optimize.compact_files(target_rows_per_fragment=FRAGMENT_ROWS, materialize_deletions_threshold=DELETED)
            self._advance_neutrally()

    def _create(self) -> None:
        """Create an empty shard. What an earlier attempt left is overwritten."""
        before = _newest(self.uri)
        self._lease.check()
        try:
            dataset = _write(SCHEMA.empty_table(), self.uri, "overwrite" if before else "create")
        except OSError as error:
            if "already exists" not in str(error):
                raise
            raise self._disturbed() from error
        self.version = before
        self._advance(dataset)
        dataset.create_scalar_index("key", "BTREE", name=INDEX)
        self._advance(dataset)

    def _open_base(self) -> None:
        dataset = _at(self.uri, self.base)
        newest = dataset.latest_version
        if newest != self.base:
            self._lease.check()
            dataset.restore()  # type: ignore[no-untyped-call]
            self.version = newest
            self._advance(dataset)
        self._dataset = dataset

    def _merge(self, table: pa.Table, *, forget: bool) -> None:
        if not table.num_rows:
            return
        builder = self._dataset.merge_insert("key").use_index(table.num_rows * SEARCHED < self._dataset.count_rows())
        builder = builder.when_matched_delete() if forget else builder.when_matched_update_all().when_not_matched_insert_all()
        transaction, _ = builder.execute_uncommitted(table)
        self._lease.check()
        options = reached(self.uri).options
        self._advance(lance.LanceDataset.commit(self._dataset, transaction, read_version=self.version, storage_options=options))

    def _index(self) -> None:
        """Update the index: new records form a small part of their own until there are many parts."""
        parts = self._dataset.stats.index_stats(INDEX)["num_indices"]
        self._dataset.optimize.optimize_indices(num_indices_to_merge=0 if parts < INDEX_PARTS else parts)
        self._advance_neutrally()

    def _advance(self, dataset: lance.LanceDataset) -> None:
        if dataset.version != self.version + 1:
            raise self._disturbed()
        self._dataset, self.version = dataset, dataset.version

    def _advance_neutrally(self) -> None:
        """Skip commits that change no record, whoever made them."""
        for version in range(self.version + 1, self._dataset.version + 1):
            if not _is_neutral(self._dataset, version):
                raise self._disturbed()
        self.version = self._dataset.version

    def _disturbed(self) -> LeaseLost:
        return LeaseLost("another process has written to the shard", operation="write a state shard", obj=self.uri, hint="Run it again.")


_NEUTRAL: Final = (LanceOperation.CreateIndex, LanceOperation.Rewrite, LanceOperation.BaseOperation)
"""The last is what Lance shows of a reservation of file numbers, which precedes a rewrite."""


def _is_neutral(dataset: Any, version: int) -> bool:
    try:
        return type(dataset.read_transaction(version).operation) in _NEUTRAL
    except TypeError as error:
        # Lance 14 cannot show a rewrite together with the index that was rewritten for it.
        return "RewrittenIndex" in str(error)


def _tables(records: Iterable[pa.RecordBatch], uri: str) -> Iterator[pa.Table]:
    """Records as tables of at most `WRITTEN` records and about `HELD` bytes, or one batch."""
    some: list[pa.RecordBatch] = []
    rows = size = 0
    for batch in records:
        at = 0
        while at < batch.num_rows:
            part = batch.slice(at, WRITTEN - rows)
            some.append(part)
            at, rows, size = at + part.num_rows, rows + part.num_rows, size + part.nbytes
            if rows == WRITTEN or size >= HELD:
                yield _table(some, uri)
                some, rows, size = [], 0, 0
    if some:
        yield _table(some, uri)


def _table(records: list[pa.RecordBatch], uri: str) -> pa.Table:
    """Records as a table. BatchError for a duplicate key, because Lance would keep both."""
    table = pa.Table.from_batches(records, SCHEMA)
    if pc.count_distinct(table["key"]).as_py() != table.num_rows:
        raise BatchError("duplicate record key", operation="write a state shard", obj=uri, hint="This is a defect of writetime.")
    return table


@lru_cache(maxsize=1)
def _session() -> Any:
    """A Lance session that caches index pages in this process: writing a batch looks up the keys that reading
    it looked up."""
    return lance.Session(  # type: ignore[attr-defined]
        index_cache_size_bytes=CACHED, metadata_cache_size_bytes=CACHED_VERSIONS
    )


def _open(uri: str) -> lance.LanceDataset:
    """The newest version."""
    place = reached(uri)
    return lance.dataset(place.url, storage_options=place.options)


def _write(records: pa.Table | pa.RecordBatchReader, uri: str, mode: Literal["create", "overwrite"]) -> lance.LanceDataset:
    place = reached(uri)
    return lance.write_dataset(records, place.url, mode=mode, storage_options=place.options)


def _at(uri: str, version: int) -> lance.LanceDataset:
    place = reached(uri)
    try:
        return lance.dataset(place.url, version=version, session=_session(), storage_options=place.options)
    except ValueError as error:
        if not _says_absent(error):
            raise
        raise BatchError(
            f"version {version} is gone",
            operation="open a state shard",
            obj=uri,
            hint="Run it again if a batch was sealed meanwhile. Versions that a batch may start from must be kept; the state can be built "
            "again from the archive.",
        ) from error


def _newest(uri: str) -> int:
    """The newest version, 0 if there is no dataset."""
    if "://" not in uri and not Path(uri).exists():
        return 0
    try:
        return int(_open(uri).version)
    except (FileNotFoundError, ValueError) as error:
        if _says_absent(error):
            return 0
        raise


def _says_absent(error: Exception) -> bool:
    # Lance says so by ValueError; anything else is a real failure.
    return "not found" in str(error).lower()


# --- maintenance


def cleanup(uri: str, keep_versions: Collection[int], store: Store, lease: str, **timing: float) -> int:
    """Remove unneeded versions of a shard and the files that only they use; returns the bytes freed. Kept are
    the version of the last batch, the version that it started from, because it may have to start again if it
    is not sealed, and whatever came after them: a caller that was suspended does not know those. Files of unfinished writes
    are removed after a week."""
    with Lease(store, lease, **timing) as held:
        if not _newest(uri):
            return 0
        dataset = _open(uri)
        kept = {*keep_versions, *(held.notes[name] for name in ("version", "base") if name in held.notes)}
        gone = [
            found["version"] for found in dataset.versions() if found["version"] not in kept and found["version"] < max(kept, default=0)
        ]
        held.check()
        return int(dataset.cleanup_old_versions(versions=gone).bytes_removed) if gone else 0


def forget(uri: str, version: int, store: Store, lease: str, **timing: float) -> int:
    """Remove everything before that version, including what unfinished writes left; returns the bytes freed.
    Call it only when the version is sealed and no batch is open. A caller that was suspended removes no version that came later."""
    with Lease(store, lease, **timing) as held:
        newest = _newest(uri)
        if newest != version:
            raise LeaseLost(f"version {newest} came after version {version}", operation="forget a shard's past", obj=uri)
        dataset = _open(uri)
        gone = [found["version"] for found in dataset.versions() if found["version"] < version]
        held.check()
        freed = dataset.cleanup_old_versions(versions=gone).bytes_removed if gone else 0
        held.check()
        # By number, only versions are removed, not the files of unfinished writes; by age, those, and no version.
        left = dataset.cleanup_old_versions(timedelta(0), retain_versions=_ALL_VERSIONS, delete_unverified=True)
        return int(freed + left.bytes_removed)
