"""Converts routed mutations to items: each update is split into its effect on each row and on the partition
head.

Strategy: a function from record batches to record batches. Input: ROUTED rows, shard by shard, sorted by key
and digest within a shard (`packs.by_digest`), so that copies found by several tasks are adjacent and become
one. Parts removed by a TRUNCATE are left out; the rest is decoded once, and each value is checked as a sink
will check it: what cannot be ordered, projected or stored goes to quarantine here, with the reason, so that
later stages only see valid values. Output: ITEMS, which `packs` sorts by `ORDER` for the merge.

Most updates only write rows of simple values; these are decoded, checked and packed by column, without a
Python object for each. The others, and those with a value that is not clearly valid, are processed one by
one, which is the readable path (`engine="python"`: all of them). So are updates of a table with earlier
purges in segments that are read again or arrive late: parts of such an update may be too old.

Mutations without an update of a captured table pass through, as counts or with their bytes: the driver
reports them.
"""

from __future__ import annotations

import importlib
import json
from array import array
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import cache
from typing import Any, Final, NamedTuple
from uuid import UUID

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from spark_jobs.stages.arrow_runs import (
    Ints,
    by_shard,
    fixed,
    lengths,
    record_keys,
    starts,
    whole,
)
from spark_jobs.stages.scan import COPIES, Batches, chunked
from spark_jobs.stages.validate_batch import Values, sound, sound_contexts, sound_elements, sound_keys
from spark_jobs.stages.validate_row import Checks
from writetime.cassandra.commitlog.encode import encode_update
from writetime.cassandra.commitlog.frames import BODY_OFFSET
from writetime.cassandra.commitlog.mutation import BY_THE_NODE, column_name, decode_mutation
from writetime.cassandra.commitlog.segment import Frame
from writetime.cassandra.merge import row_codec
from writetime.cassandra.merge.reconcile import max_timestamp
from writetime.cassandra.merge.row_codec import Engine
from writetime.cassandra.merge.tombstone_gc import newer_than
from writetime.cassandra.merge.unknown_marker import PATH_MARK, STATED, UNKNOWN_LIVENESS
from writetime.cassandra.model import NO_TIMESTAMP, NO_TTL, PartitionUpdate
from writetime.cassandra.schema.model import Schema
from writetime.cassandra.types.byte_comparable import HEAD, Clustering, record_key
from writetime.cassandra.types.canonical import ElementPaths
from writetime.errors import DecodeError, WritetimeError
from writetime.kernels import mutation_columns, mutation_decoder, row_batches
from writetime.pipeline.erasures import Erased
from writetime.pipeline.quarantine import frame_ranges
from writetime.pipeline.quarantine.kinds import of_error
from writetime.pipeline.truncations import Cuts, Verdict

ITEMS: Final = pa.schema(
    [
        ("kind", pa.string()),  # item | account | quarantined | not_ours | parsed | reread | undecided
        ("table", pa.string()),
        ("table_id", pa.binary()),
        ("bucket", pa.int32()),
        ("pk", pa.binary()),  # record key of the partition's head: first its length, as in the state
        ("row", pa.binary()),  # row key, or HEAD
        ("ts", pa.int64()),  # greatest timestamp of the update, µs
        ("content", pa.binary()),  # digest of the mutation, place of the update in it
        ("parts", pa.int32()),  # how many items the update has become
        ("updates", pa.int64()),  # of what is no item: how many updates it stands for, all copies counted
        ("copies", COPIES),
        ("item", pa.binary()),  # flat row; of a head, the encoded update; of what is quarantined the mutation or places; undecided: the key
        ("detail", pa.string()),  # JSON: of what is quarantined the reason, of an account its counts
    ]
)
Bools = npt.NDArray[np.bool_]

CHUNK_BYTES: Final = 4 << 20
"""Bytes of routed mutations that are taken apart at once."""
DIGEST_BYTES: Final = 16

ORDER: Final = ("table_id", "bucket", "pk", "row", "ts", "content")
"""In which the join takes items. `packs.by_place` is the same for those of one shard, as one value; tests
hold it against this."""


@dataclass(frozen=True, slots=True)
class ExplodePlan:
    """The input of the stage: the schema in force, the commit log version of each segment, and what TRUNCATEs
    and purges removed."""

    schema: Schema
    versions: list[int]
    cuts: Cuts
    engine: Engine = "auto"
    erased: Mapping[bytes, Erased] = field(default_factory=dict)
    """Keys that were erased, by table id (16 bytes)."""
    apart: frozenset[bytes] = frozenset()
    """Tables (ids) whose writes reach no log: what read repair leaves there of them is a random part."""
    readings: frozenset[int] = frozenset()
    """Indexes of segments that hold what was read from the cluster: only they may hold stand-ins."""


def exploder(plan: ExplodePlan) -> Callable[[Batches], Batches]:
    """ROUTED to ITEMS. A row of the kind `shard` only names a shard, which may have nothing but expiring
    records."""

    def explode_batches(batches: Batches) -> Batches:
        for (table_id, bucket), run in by_shard(batches):
            if table_id is None or bucket is None:
                yield from chunked((_passed(row) for batch in run for row in batch.to_pylist()), ITEMS)
            else:
                yield from _Explosion(plan, table_id, bucket).run(run)

    return explode_batches


_NOTHING: Final = {**dict.fromkeys(ITEMS.names), "pk": b"", "row": b"", "ts": 0, "content": b""}


def _passed(row: dict[str, Any]) -> dict[str, Any]:
    updates = row["updates"] * len(row["copies"] or (None,))
    same = {name: row[name] for name in ("kind", "table", "table_id", "copies", "detail")}
    return {**_NOTHING, **same, "updates": updates, "item": row["body"]}


@dataclass(slots=True)
class _Refused:
    """Frames of a segment that cannot be used for the same kind of reason, beyond those that are passed on
    with their bytes."""

    message: str
    updates: int = 0
    positions: array[int] = field(default_factory=lambda: array("q"))


class _Explosion:
    """One shard's part of a batch."""

    def __init__(self, plan: ExplodePlan, table_id: bytes, bucket: int) -> None:
        self.plan = plan
        self.table = plan.schema.tables[UUID(bytes=table_id)]
        self.shard = {"table": self.table.label, "table_id": table_id, "bucket": bucket}
        self.checks = Checks(plan.schema, self.table.id)
        self.paths = ElementPaths(self.table, plan.schema.types)
        self.kernel = _key_kernel() if row_codec.compiled(plan.engine) is not None else None
        self.purged = plan.cuts.purged(table_id)
        self.erased = plan.erased.get(table_id)
        self.is_apart = table_id in plan.apart
        self.counts: Counter[str] = Counter()
        self.brought = 0
        self.refused: dict[tuple[int, str], _Refused] = {}

    def run(self, batches: Batches) -> Batches:
        for rows in _chunks(batch.filter(pc.equal(batch["kind"], "update")) for batch in batches):
            mutations = _merged(rows)
            versions = np.array(self.plan.versions)[_first_segments(mutations["copies"])]
            for version in np.unique(versions).tolist():
                yield from self._chunk(mutations.take(pa.array(np.flatnonzero(versions == version))), version)
        yield from chunked([*self._places(), self._out("account", detail=json.dumps(dict(self.counts)))], ITEMS)

    def _chunk(self, mutations: Any, version: int) -> Batches:
        """Items of mutations of one version: by column where possible, else one by one."""
        slow = np.ones(mutations.num_rows, bool)
        errors: dict[int, WritetimeError] = {}
        if self.plan.engine != "python" and self.purged is None:
            slow[:] = self._of_erased_keys(mutations["key"])
            bodies = Bodies.of(mutations["body"])
            for decoded in mutation_decoder.decode(bodies.image, bodies.frames, self.plan.schema, version=version, engine=self.plan.engine):
                errors |= {failure.frame.position: failure.error for failure in decoded.failures}
                slow[[failure.frame.position for failure in decoded.failures]] = True
                yield from self._columns(mutations, decoded, slow)
        rest = np.flatnonzero(slow)
        given = zip(rest.tolist(), mutations.take(pa.array(rest)).to_pylist(), strict=True)
        yield from chunked((item for at, mutation in given for item in self._mutation(mutation, version, errors.get(at))), ITEMS)

    def _of_erased_keys(self, keys: Any) -> Bools:
        """Which mutations have keys with erased data: they are processed one by one."""
        found = np.zeros(len(keys), bool)
        if self.erased is not None:
            found[:] = [self.erased.concerns(key) for key in keys.to_pylist()]
        return found

    # --- by column

    def _columns(self, mutations: Any, decoded: mutation_columns.Decoded, slow: Bools) -> Batches:
        """Items of updates that only write rows and whose values are all certainly valid. `slow` receives the
        other mutations."""
        of_mutation = decoded.updates["position"].to_numpy()
        mine = _equals(decoded.updates["table"], self.table.id.bytes)
        of_update = decoded.rows["update"].to_numpy()
        static = decoded.rows["static"].to_numpy(zero_copy_only=False)
        heads = decoded.updates["deletion_timestamp"].is_valid().to_numpy(zero_copy_only=False)
        heads[decoded.ranges["update"].to_numpy()] = True
        heads[of_update[static]] = True
        heads |= np.bincount(of_update, minlength=len(heads)) == 0
        slow[of_mutation[mine & heads]] = True
        asked = mine[of_update] & ~slow[of_mutation[of_update]]
        suspects = self._suspects(decoded, asked)
        suspects |= asked & self._of_nodes(mutations["copies"])[of_mutation[of_update]] & self._with_stand_ins(decoded)
        slow[of_mutation[of_update[suspects]]] = True
        keys = decoded.updates["key"]
        slow[of_mutation[mine & self._odd_keys(keys)]] = True
        names = self._row_names(decoded.rows["clustering"], mine[of_update] & ~slow[of_mutation[of_update]])
        slow[of_mutation[of_update[names.nameless]]] = True
        kept = mine & ~slow[of_mutation]
        if not kept.any():
            return
        yield from self._fast_items(mutations, decoded, kept, names)

    def _of_nodes(self, copies: Any) -> Bools:
        """Which mutations a node's log has."""
        if not self.plan.readings:
            return np.ones(len(copies), bool)
        owners = np.repeat(np.arange(len(copies)), pc.list_value_length(copies).to_numpy())
        segments = pc.struct_field(copies.flatten(), "segment").to_numpy()
        found = np.zeros(len(copies), bool)
        found[owners[~np.isin(segments, list(self.plan.readings))]] = True
        return found

    def _with_stand_ins(self, decoded: mutation_columns.Decoded) -> Bools:
        """Which rows may hold what only a reading of the cluster writes."""
        found: Bools = np.isin(decoded.rows["liveness_ttl"].to_numpy(), UNKNOWN_LIVENESS)
        cells = decoded.cells["value"] if self.table.is_counter else decoded.cells["path"]
        at = pc.find_substring(cells, STATED if self.table.is_counter else PATH_MARK).fill_null(-1).to_numpy(zero_copy_only=False)
        found[decoded.cells["row"].to_numpy()[at >= 0]] = True
        return found

    def _suspects(self, decoded: mutation_columns.Decoded, asked: Bools) -> Bools:
        """Which of the given rows may hold something that cannot be used."""
        suspects = np.zeros(len(asked), bool)
        found = decoded.cells
        of_row = found["row"].to_numpy()
        tombstone = (found["ttl"].to_numpy() == NO_TTL) & found["local_deletion_time"].is_valid().to_numpy(zero_copy_only=False)
        wanted = asked[of_row] & ~tombstone
        if not asked.any():
            return suspects
        paths, values = Values.of(found["path"]), Values.of(found["value"])
        codes = found["column"].indices.to_numpy()
        names = [column_name(raw) for raw in found["column"].dictionary.to_pylist()]
        for code in np.unique(codes[wanted]).tolist():
            kind = self.checks.shape.columns.get(names[code])
            at = np.flatnonzero(wanted & (codes == code))
            if kind is not None:
                good = sound_elements(kind, paths.some(at), values.some(at)) if kind.multicell else sound(kind, values.some(at))
            elif self.table.is_counter:
                good = sound_contexts(values.some(at))
            else:
                # Values of a dropped column are not published.
                continue
            suspects[of_row[at[~good]]] = True
        return suspects | self._odd_clusterings(decoded.rows["clustering"], asked)

    def _odd_clusterings(self, clusterings: Any, asked: Bools) -> Bools:
        columns = self.table.clustering
        if not columns:
            return np.zeros(len(asked), bool)
        sizes = pc.list_value_length(clusterings).fill_null(0).to_numpy(zero_copy_only=False)
        odd: Bools = asked & (sizes != len(columns))
        at = np.flatnonzero(asked & ~odd)
        offsets = clusterings.offsets.to_numpy()[at]
        values = Values.of(clusterings.values)
        odd_values = clusterings.values.is_null().to_numpy(zero_copy_only=False)
        for place, column in enumerate(columns):
            here = offsets + place
            odd[at[odd_values[here] | ~sound(self.checks.shape.columns[column.name], values.some(here))]] = True
        return odd

    def _odd_keys(self, keys: Any) -> Bools:
        kinds = [self.checks.shape.columns[column.name] for column in self.table.partition_key]
        odd: Bools = ~sound_keys(kinds, Values.of(keys))
        return odd

    def _row_names(self, clusterings: Any, asked: Bools) -> _Names:
        """Keys of the given rows."""
        at = np.flatnonzero(asked)
        given = clusterings.take(pa.array(at))
        made = None if self.kernel is None else self.kernel.row_keys(self.table, self.plan.schema.types, given)
        if made is None:
            made = pa.array([self._row_name(tuple(values)) for values in given.to_pylist()], pa.binary())
        keys = made.take(pa.array(np.cumsum(asked) - 1, mask=~asked))
        return _Names(keys, asked & keys.is_null().to_numpy(zero_copy_only=False))

    def _row_name(self, clustering: Clustering) -> bytes | None:
        try:
            return self.checks.keys.key(clustering)
        except DecodeError:
            # A value that can be shown may still have no order.
            return None

    def _fast_items(self, mutations: Any, decoded: mutation_columns.Decoded, kept: Bools, names: _Names) -> Batches:
        of_mutation = decoded.updates["position"].to_numpy()
        of_update = decoded.rows["update"].to_numpy()
        packed = row_batches.pack(self._spelled(decoded, kept), engine=self.plan.engine)
        latest = np.full(len(kept), NO_TIMESTAMP, np.int64)
        np.maximum.at(latest, of_update, packed.max_timestamps.to_numpy())
        parts = np.bincount(of_update, minlength=len(kept))
        copies = mutations["copies"]
        self.counts["duplicate"] += int((pc.list_value_length(copies).to_numpy()[of_mutation[kept]] - 1).sum())
        if self.is_apart:
            leaked = kept & ((decoded.updates["flags"].fill_null(0).to_numpy() & BY_THE_NODE) != 0)
            self.counts["leaked"] += int(leaked.sum())
            kept &= ~leaked
        if self.table.id.bytes in self.plan.cuts.tables:
            decided = [
                (update, self._verdict(copies[of_mutation[update]].as_py(), int(latest[update])))
                for update in np.flatnonzero(kept).tolist()
            ]
            gone = [update for update, verdict in decided if verdict == "gone"]
            self.counts["truncated"] += len(gone)
            kept[gone] = False
            doubtful, notes = np.zeros(len(kept), bool), []
            doubtful[[update for update, verdict in decided if verdict == "undecided"]] = True
            for row in np.flatnonzero(doubtful[of_update]).tolist():
                key = record_key(decoded.updates["key"][of_update[row]].as_py()) + names.keys[row].as_py()
                notes.append(self._out("undecided", item=key))
            if notes:
                yield pa.RecordBatch.from_pylist(notes, schema=ITEMS)
        rows = np.flatnonzero(kept[of_update])
        updates = of_update[rows]
        self.counts["folded"] += int(kept.sum())
        self.counts["made"] += len(rows)
        digests = np.frombuffer(b"".join(mutations["digest"].to_pylist()), np.uint8).reshape(-1, DIGEST_BYTES)
        ordinals = decoded.updates["ordinal"].to_numpy().astype(">u4").view(np.uint8).reshape(-1, 4)
        size = len(rows)
        columns = {
            "kind": pa.repeat("item", size),
            "table": pa.repeat(self.table.label, size),
            "table_id": pa.repeat(pa.scalar(self.table.id.bytes, pa.binary()), size),
            "bucket": pa.repeat(pa.scalar(self.shard["bucket"], pa.int32()), size),
            "pk": record_keys(decoded.updates["key"].take(pa.array(updates))),
            "row": names.keys.take(pa.array(rows)),
            "ts": pa.array(latest[updates]),
            "content": fixed(np.concatenate((digests[of_mutation[updates]], ordinals[updates]), axis=1)),
            "parts": pa.array(parts[updates], pa.int32()),
            "updates": pa.nulls(size, pa.int64()),
            "copies": copies.take(pa.array(of_mutation[updates])),
            "item": packed.rows.take(pa.array(rows)),
            "detail": pa.nulls(size, pa.string()),
        }
        yield pa.RecordBatch.from_arrays([columns[name] for name in ITEMS.names], schema=ITEMS)

    def _spelled(self, decoded: mutation_columns.Decoded, kept: Bools) -> mutation_columns.Decoded:
        """The chunk with the paths of equal elements alike, in rows of the updates `kept`."""
        cells, codes = decoded.cells, decoded.cells["column"].indices.to_numpy()
        names = [column_name(raw) for raw in decoded.cells["column"].dictionary.to_pylist()]
        other: dict[int, bytes] = {}
        for code, name in enumerate(names):
            spell = self.paths.columns.get(name)
            if spell is not None:
                at = np.flatnonzero(codes == code)
                at = at[kept[decoded.rows["update"].to_numpy()[cells["row"].to_numpy()[at]]]]
                paths = Values.of(cells["path"]).some(at).slices()
                # Elements recur.
                known = {path: spell(path) for path in set(paths)}
                other |= {cell: known[path] for cell, path in zip(at.tolist(), paths, strict=True) if known[path] != path}
        if not other:
            return decoded
        mask, place = np.zeros(cells.num_rows, bool), cells.schema.get_field_index("path")
        mask[list(other)] = True
        spelled = pa.array([other[cell] for cell in sorted(other)], pa.binary())
        path = pc.replace_with_mask(cells["path"], pa.array(mask), spelled)
        return replace(decoded, cells=cells.set_column(place, cells.schema.field(place), path))

    # --- one by one

    def _mutation(self, mutation: dict[str, Any], version: int, error: WritetimeError | None) -> Iterator[dict[str, Any]]:
        """The items of one mutation's updates, one by one. `error`: why it cannot be decoded, if known."""
        copies, digest = mutation["copies"], mutation["digest"]
        total = len(copies) * mutation["updates"]
        if isinstance(error, DecodeError):
            yield from self._refuse(mutation, error)
            return
        try:
            decoded = decode_mutation(mutation["body"], self.plan.schema, version=version)
            updates = [(ordinal, update) for ordinal, update in enumerate(decoded.updates) if update.table_id == self.table.id]
            items = [list(self._items(update, digest + ordinal.to_bytes(4, "big"), copies)) for ordinal, update in updates]
        except DecodeError as reason:
            yield from self._refuse(mutation, reason)
            return
        self.counts["duplicate"] += total - len(items)
        for (_, update), of_update in zip(updates, items, strict=True):
            verdict = self._verdict(copies, max_timestamp(update))
            if self.is_apart and (decoded.flags or 0) & BY_THE_NODE:
                self.counts["leaked"] += 1
            elif verdict == "gone":
                self.counts["truncated"] += 1
            elif not of_update:
                self.counts["purged" if self._left(update) is not None else "erased"] += 1
            else:
                self.counts["folded"] += 1
                self.counts["made"] += len(of_update)
                yield from of_update
                if verdict == "undecided":
                    yield from (self._out("undecided", item=item["pk"] + item["row"]) for item in of_update)

    def _refuse(self, mutation: dict[str, Any], error: DecodeError) -> Iterator[dict[str, Any]]:
        """Quarantine a mutation. The first ones of a shard are passed on with their bytes. If a column of a
        busy table is unknown, all of its mutations would not fit in the driver: of the others only positions
        are passed on."""
        body, copies, updates = mutation["body"], mutation["copies"], mutation["updates"]
        kind, message = of_error(error), str(error)
        if self.brought < frame_ranges.NAMED and len(body) <= frame_ranges.BROUGHT:
            self.brought += 1
            yield self._out("quarantined", copies=copies, updates=len(copies) * updates, item=body, detail=self._detail(kind, message))
            return
        for copy in copies:
            refused = self.refused.setdefault((copy["segment"], kind), _Refused(message))
            refused.updates += updates
            refused.positions.append(copy["position"])

    def _places(self) -> Iterator[dict[str, Any]]:
        for (segment, kind), refused in sorted(self.refused.items()):
            positions = sorted(refused.positions)
            about = {"copies": [{"segment": segment, "position": positions[0]}], "item": frame_ranges.places(positions)}
            detail = self._detail(kind, refused.message, places=len(positions))
            yield self._out("quarantined", **about, updates=refused.updates, detail=detail)

    def _detail(self, kind: str, message: str, **more: int) -> str:
        return json.dumps({"kind": kind, "message": message, "table_id": str(self.table.id), **more})

    def _verdict(self, copies: list[dict[str, int]], ts: int) -> Verdict:
        """Whether a TRUNCATE removed an update; counts those that the nodes' records leave undecided."""
        verdict = self.plan.cuts.decide(self.table.id.bytes, [(copy["segment"], copy["position"]) for copy in copies], ts)
        if verdict == "undecided":
            self.counts["undecided"] += 1
        return verdict

    def _items(self, update: PartitionUpdate, content: bytes, copies: list[dict[str, int]]) -> Iterator[dict[str, Any]]:
        """The items of an update; none if all of it was erased, or if purged data may have superseded it.
        DecodeError if something else in the update cannot be used."""
        left = self._left(update)
        if left is None:
            return
        self.checks.update(left)
        if any(copy["segment"] not in self.plan.readings for copy in copies):
            self.checks.of_node(left)
        update = self.paths.update(left)
        if self.purged is not None and self.purged.keeps_out(copy["segment"] for copy in copies):
            if max_timestamp(update) <= self.purged.until:
                return
            update = newer_than(self.purged.until, update, counter=self.table.is_counter)
        parts = [(self.checks.keys.key(row.clustering or ()), row_codec.encode(row)) for row in update.rows]
        head = replace(update, rows=())
        if not parts or not head.is_empty:
            parts.append((HEAD, encode_update(head, self.table, self.plan.schema.types)))
        about = {"pk": record_key(update.key), "ts": max_timestamp(update), "content": content}
        for row, item in parts:
            yield self._out("item", **about, row=row, parts=len(parts), copies=copies, item=item)

    def _left(self, update: PartitionUpdate) -> PartitionUpdate | None:
        """The update without what was erased; None if nothing is left."""
        if self.erased is None:
            return update
        return self.erased.left(update, self.checks.keys, counter=self.table.is_counter)

    def _out(self, kind: str, **columns: Any) -> dict[str, Any]:
        return {**_NOTHING, **self.shard, "kind": kind, **columns}


@cache
def _key_kernel() -> Any:
    return importlib.import_module("writetime.kernels.clustering_keys")


class _Names(NamedTuple):
    """Row keys (binary); null if not requested, and for rows without a key, which are `nameless`."""

    keys: Any
    nameless: Bools


@dataclass(frozen=True, slots=True)
class Bodies:
    """Concatenated bodies of mutations, as the decoder reads them; a frame's position is its number."""

    image: bytes
    frames: list[Frame]

    @classmethod
    def of(cls, bodies: Any) -> Bodies:
        sizes = lengths(bodies)
        ends = np.cumsum(sizes).tolist()
        places = enumerate(zip(ends, sizes.tolist(), strict=True))
        frames = [Frame(number, end - size - BODY_OFFSET, end - size, size) for number, (end, size) in places]
        return cls(b"".join(bodies.to_pylist()), frames)


def _chunks(batches: Batches) -> Batches:
    """The rows in batches of about equal size; copies of one mutation stay together."""
    pending: list[pa.RecordBatch] = []
    size = 0
    for batch in batches:
        pending.append(batch)
        size += batch.nbytes
        if size >= CHUNK_BYTES:
            found = whole(pending)
            last = int(starts(found, ("key", "digest"))[-1])
            if last:
                yield found.slice(0, last)
            pending = [found.slice(last)]
            size = pending[0].nbytes
    if pending and (rest := whole(pending)).num_rows:
        yield rest


def _merged(rows: Any) -> Any:
    """One row per mutation, with all its copies in ascending order. Several tasks may have found the same
    mutation."""
    first = starts(rows, ("key", "digest"))
    if len(first) == rows.num_rows:
        return rows
    sizes = np.diff(np.append(first, rows.num_rows))
    merged = rows.take(pa.array(first))
    copies = _united(rows["copies"], np.repeat(np.arange(len(first)), sizes), len(first))
    return merged.set_column(merged.schema.get_field_index("copies"), "copies", copies)


def _united(copies: Any, owners: Ints, size: int) -> Any:
    """The copies in ascending order by owner, of which there are so many; each row of copies has one. Each once."""
    segments, positions = (each.to_numpy() for each in copies.flatten().flatten())
    of = np.repeat(owners, pc.list_value_length(copies).to_numpy())
    order = np.lexsort((positions, segments, of))
    of, segments, positions = of[order], segments[order], positions[order]
    new = np.ones(len(of), bool)
    new[1:] = (of[1:] != of[:-1]) | (segments[1:] != segments[:-1]) | (positions[1:] != positions[:-1])
    ends = np.concatenate(([0], np.cumsum(np.bincount(of[new], minlength=size))))
    places = pa.StructArray.from_arrays([pa.array(segments[new]), pa.array(positions[new])], fields=list(COPIES.value_type))
    return pa.ListArray.from_arrays(pa.array(ends, pa.int32()), places, type=COPIES)


def _first_segments(copies: Any) -> Any:
    return pc.struct_field(pc.list_element(copies, 0), "segment").to_numpy(zero_copy_only=False)


def _equals(codes: Any, value: bytes) -> Bools:
    """Which values of a dictionary array equal this one."""
    known = codes.dictionary.to_pylist()
    wanted = known.index(value) if value in known else -1
    same: Bools = codes.indices.to_numpy() == wanted
    return same
