"""The first two stages of a batch: read what segments contain, and the bytes of the wanted mutations.
Functions for `mapInArrow`.

    survey   counts, damaged ranges, and the bodies of mutations of system_schema, of the metadata log (from 6.0
             on) and of system.local; no other bodies leave a worker
    route    once the schema is known: the bodies of captured tables by (table, key bucket), all else as counts

Strategy: each stage reads the segments again, because scanning is faster than storing the result. A task has
a *group* of segments of different nodes and about the same time, so that copies on several replicas are
dropped before the shuffle. Memory holds one segment at a time, and one body of each distinct mutation. The
frames of a segment are arrays of positions in its image; the only thing computed for each frame is a digest.
Only mutations of several updates, and those of the schema, are parsed.

Parts of an active segment are read from the position that earlier batches reached; so is the whole file
later, if it begins with exactly the bytes of the parts. Both stages read the same bytes, so their results
agree.

A damaged range becomes a row with its bytes; nothing is dropped: the counts of survey and route must be
equal. Knows only the driver state that it is given.
"""

from __future__ import annotations

import hashlib
import json
import zlib
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple
from uuid import UUID

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from spark_jobs.stages.arrow_runs import Ints, fixed
from writetime.cassandra.commitlog.encryption.keystore import Keystore
from writetime.cassandra.commitlog.frames import BODY_OFFSET
from writetime.cassandra.commitlog.mutation import EPOCHS_VERSION, Head, read_head
from writetime.cassandra.commitlog.sections import Place
from writetime.cassandra.commitlog.segment import MOST_PROBLEMS, Frame, Scan, scan
from writetime.cassandra.commitlog.system_mutations import decode_own, is_schema_change, may_be_own
from writetime.cassandra.schema.epochs import METADATA_LOG
from writetime.cassandra.schema.model import Schema
from writetime.cassandra.schema.system_tables import LOCAL, SCHEMA_TABLES, TABLES
from writetime.errors import (
    BatchError,
    CorruptSection,
    DecodeError,
    MalformedMutation,
    ObjectNotFound,
    SegmentError,
    UnknownTable,
    UnsupportedSegment,
    WritetimeError,
)
from writetime.kernels import mutation_columns, mutation_decoder
from writetime.pipeline.documents import Mark, PartInput, SegmentInput, Tail
from writetime.pipeline.quarantine import frame_ranges
from writetime.pipeline.quarantine.kinds import QuarantineKind, of_error
from writetime.storage import layout, open_store, segment_object
from writetime.storage.checksum import crc32c
from writetime.storage.store import Store

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

Batches = Iterable[pa.RecordBatch]

_PLACE = pa.struct([("segment", pa.int32()), ("object", pa.string()), ("crc32c", pa.int64()), ("tail", pa.string())])
SEGMENTS = pa.schema([("segments", pa.list_(_PLACE))])
"""A task each: its segments by their index in the manifest, ascending. `tail` is a `Tail` as JSON, if the
segment has one."""

SURVEY = pa.schema(
    [
        ("kind", pa.string()),  # problem | done | schema | local
        ("segment", pa.int32()),  # index into the manifest's segments
        ("position", pa.int64()),  # where the frame ends, or the damaged range begins
        ("body", pa.binary()),  # the mutation, or the damaged bytes; null if these are more than `frame_ranges.BROUGHT`
        ("detail", pa.string()),  # JSON: of a problem its kind, size and message; of `done` the counts
    ]
)
"""`done` comes once a segment: `frames`, `updates`, `tables`: [frames, updates, frames of one update] by the
table id of a frame's first update; `others`: how many rows of other kinds the segment has, without zeros; and of
what was taken in part by part, `mark`, `skipped` and `differs` as in a SegmentOutcome."""

COPIES = pa.list_(pa.struct([("segment", pa.int32()), ("position", pa.int64())]))
ROUTED = pa.schema(
    [
        ("kind", pa.string()),  # update | not_ours | quarantined | parsed | reread
        ("table", pa.string()),
        ("table_id", pa.binary()),
        ("bucket", pa.int32()),
        ("key", pa.binary()),
        ("digest", pa.binary()),
        ("copies", COPIES),
        ("updates", pa.int32()),
        ("body", pa.binary()),
        ("detail", pa.string()),
    ]
)
"""`update`: a distinct mutation of a task each, and each captured table in it; `copies` says where it stands,
ascending, `updates` how many of its updates are the table's, in each copy. `quarantined`: one frame each, and
each table in it that is not to be had, without its body but with its `size` in the detail if that is more
than `frame_ranges.BROUGHT`; or many frames (`frames`), whose bytes are put already. `not_ours`: the number of
`updates` of a table in a task, all copies counted. Of those before, but counted apart where they were read,
for each table: `reread`, how many `updates` come from segments of an earlier batch, and `parsed`, of this
batch's, how many from frames that had to be parsed."""

GROUP_BYTES = 128 << 20
"""Bytes of segments that one task reads, unless one alone has more."""
SMALL_GROUP_BYTES = 16 << 20
"""Up to so many bytes, segments go into one task whoever wrote them: a task ought to be worth its start."""
_BYTES_PER_BATCH = 4 << 20
_LONGEST_HEADER = 18 + 0xFFFF
_DIGEST_BYTES = 16
"""128 bits of a cryptographic hash: nobody can make two mutations look like one."""

Only = Mapping[int, tuple[frozenset[UUID], int]]
"""By index of a segment: tables, and the position past which frames of them are wanted. All else in that
segment is passed over."""


@dataclass(frozen=True, slots=True)
class Routes:
    """The input of routing: the schema in force, the captured tables with their number of key buckets, the
    commit log version of each segment of the manifest, and the rejected tables with the reason."""

    schema: Schema
    buckets: dict[UUID, int]
    versions: list[int]
    refused: dict[UUID, str] = field(default_factory=dict)
    keeps: bool = True
    """Whether the workers put what is kept by many frames into quarantine; what is only compared leaves no
    trace there."""

    def name(self, table_id: UUID) -> str:
        table = self.schema.tables.get(table_id)
        return table.label if table else str(table_id)


def key_bucket(key: bytes, buckets: int) -> int:
    """The key bucket of a partition key. It is the same on every machine and in every version, because state
    shards are named by it."""
    return zlib.crc32(key) % buckets


# --- groups of segments


def groups(segments: Sequence[SegmentInput]) -> list[list[int]]:
    """Groups of segment indexes, ascending in each group: one segment per node, of about the same time,
    within a limit of bytes."""
    order = sorted(range(len(segments)), key=lambda index: (segments[index].sealed_at, segments[index].object))
    made: list[_Group] = []
    for index in order:
        segment = segments[index]
        if not made or not made[-1].takes(segment):
            made.append(_Group())
        made[-1].add(index, segment)
    return [sorted(group.members) for group in made]


class _Group:
    def __init__(self) -> None:
        self.members: list[int] = []
        self.nodes: set[str] = set()
        self.size = 0

    def takes(self, segment: SegmentInput) -> bool:
        size = self.size + segment.size
        return size <= SMALL_GROUP_BYTES or (size <= GROUP_BYTES and segment.ref.node.host_id not in self.nodes)

    def add(self, index: int, segment: SegmentInput) -> None:
        self.members.append(index)
        self.nodes.add(segment.ref.node.host_id)
        self.size += segment.size


def task_rows(segments: Sequence[SegmentInput], members: Iterable[Iterable[int]]) -> list[pa.RecordBatch]:
    """Groups as SEGMENTS, one row each."""
    places = ([_place(index, segments[index]) for index in group] for group in members)
    return [pa.RecordBatch.from_pylist([{"segments": group}], schema=SEGMENTS) for group in places]


def _place(index: int, segment: SegmentInput) -> dict[str, Any]:
    tail = segment.tail.model_dump_json() if segment.tail is not None else None
    return {"segment": index, "object": segment.object, "crc32c": segment.crc32c, "tail": tail}


def content(store: Store, place: Mapping[str, Any]) -> bytes:
    """The whole segment at a place of SEGMENTS. ObjectNotFound, CorruptSection."""
    return segment_object.read_pinned(store, place["object"], place["crc32c"])


def _read_part(store: Store, part: PartInput, start: int, end: int) -> bytes:
    """Bytes [start, end) of a pinned part. ObjectNotFound if it does not exist or has other bytes."""
    info = store.head(part.object)
    if info is None or not part.is_in(info):
        raise ObjectNotFound("it is gone, or has other bytes than were pinned", operation="read a part", obj=part.object)
    return store.read(part.object, generation=info.generation, start=start, end=end)


def tasks(
    spark: SparkSession,
    segments: Sequence[SegmentInput],
    members: Sequence[Sequence[int]],
    function: Callable[[Batches], Batches],
    schema: pa.Schema,
) -> DataFrame:
    """Apply `function` (SEGMENTS to `schema`) to the groups, one task each."""
    from pyspark.sql.pandas.types import from_arrow_schema

    rows = task_rows(segments, members)

    def read(batches: Batches) -> Batches:
        return function(rows[number] for batch in batches for number in batch["id"].to_pylist())

    # The range is counted in the JVM: rows from Python would pass through another Python worker first.
    return spark.range(0, len(rows), numPartitions=max(1, len(rows))).mapInArrow(read, schema=from_arrow_schema(schema))


# --- a segment as arrays


class _Frames(NamedTuple):
    """Frames with a readable table id, in log order, as in `writetime.kernels.segment_walk.Walk`; `table` is
    an index into `tables`."""

    position: Ints
    offset: Ints
    length: Ints
    updates: Ints
    table: Ints
    key_offset: Ints
    key_length: Ints


@dataclass(frozen=True, slots=True)
class Segment:
    number: int
    version: int
    image: bytes
    frames: _Frames
    tables: list[UUID]
    size: int
    problems: list[dict[str, Any]]
    taken: dict[str, Any] = field(default_factory=dict)

    def body(self, at: int) -> bytes:
        offset = int(self.frames.offset[at])
        return self.image[offset : offset + int(self.frames.length[at])]

    def key(self, at: int) -> bytes:
        offset = int(self.frames.key_offset[at])
        return self.image[offset : offset + int(self.frames.key_length[at])]

    def put_together(self, indexes: Sequence[int], obj: str, store: Store | None) -> Iterator[tuple[range, int]]:
        """Store these frames in quarantine, several per record. Yields the indexes in each record and its
        bytes. Without a store they are only counted. Names and bytes follow from the frames, so storing them
        again changes nothing; without a note they have no effect."""
        ref = layout.SegmentRef.from_object(obj)
        for start, end in frame_ranges.runs(self.frames.length[list(indexes)].tolist()):
            some = indexes[start:end]
            body = frame_ranges.pack(map(self.body, some)) if len(some) > 1 else self.body(some[0])
            if store is not None:
                store.put(f"{ref.quarantined(int(self.frames.position[some[0]]), len(body), len(some))}.bin", body)
            yield range(start, end), len(body)


class Reader:
    """Opens the segments of a task's rows."""

    def __init__(self, bucket_url: str, keystore: Path | None) -> None:
        self.store: Store = open_store(bucket_url)
        self.keys = None if keystore is None else Keystore.from_environment(keystore)

    def segments(self, batches: Batches) -> Iterator[list[dict[str, Any]]]:
        for batch in batches:
            for row in batch.to_pylist():
                yield row["segments"]

    def open(self, place: dict[str, Any]) -> Segment:
        number, tail = place["segment"], place["tail"] and Tail.model_validate_json(place["tail"])
        try:
            read = self._read(place, tail) if tail else _Read(content(self.store, place))
        except ObjectNotFound as error:
            return _unreadable(number, b"", error, {} if tail is None else _stuck(tail))
        except SegmentError as error:
            return _unreadable(number, b"", error, {})
        try:
            found = scan(read.buffer, name=f"{place['object']}.log" if read.grown else place["object"], keys=self.keys, begin=read.begin)
        except SegmentError as error:
            return _unreadable(number, read.buffer[read.start :], error, {} if tail is None else _stuck(tail))
        segment = _segment(number, found, read)
        if len(segment.tables) > frame_ranges.MOST_TABLES:
            most = f"it has frames of {len(segment.tables)} tables, more than {frame_ranges.MOST_TABLES}"
            refused = UnsupportedSegment(most, operation="read a segment", obj=place["object"])
            taken = {} if tail is None else _stuck(tail)
            return _unreadable(number, read.buffer[read.start :], refused, taken)
        return segment

    def _read(self, place: dict[str, Any], tail: Tail) -> _Read:
        """The bytes after the mark, at their position in the file."""
        after = tail.after or Mark()
        if not tail.parts:
            buffer = content(self.store, place)
            same = len(buffer) >= after.position and crc32c(buffer[: after.position]) == after.crc32c
            return _Read(buffer, after=after if same else None, differs=not same)
        parts, position = [], after.position
        for part in tail.parts:
            start, end = part.range
            parts.append(_read_part(self.store, part, position - start, end - start))
            position = end
        head = b""
        if tail.header is not None:
            head = _read_part(self.store, tail.header, 0, min(_LONGEST_HEADER, after.position))
        data = b"".join(parts)
        grown = after.model_copy(update={"position": position, "crc32c": crc32c(data, after.crc32c)})
        return _Read(head.ljust(after.position, b"\0") + data, after=tail.after, grown=grown)


class _Read(NamedTuple):
    """A segment's bytes; those before `after` were ingested earlier. `grown`: the end position, if they come
    from parts. `differs`: the whole file does not begin with the bytes of its parts."""

    buffer: bytes
    after: Mark | None = None
    grown: Mark | None = None
    differs: bool = False

    @property
    def begin(self) -> Place | None:
        return self.after.place if self.after else None

    @property
    def start(self) -> int:
        return self.after.position if self.after else 0

    def taken(self, found: Scan) -> dict[str, Any]:
        """The fields of a SegmentOutcome."""
        if self.grown is None:
            return {"skipped": self.after.frames} if self.after else {"differs": True} if self.differs else {}
        mark = self.grown.model_copy(update={"logical": found.end, "frames": self.grown.frames + len(found.frames)})
        return {"mark": mark.model_dump(mode="json")}


def _stuck(tail: Tail) -> dict[str, Any]:
    """For parts that cannot be read: the ingested position stays, and no further parts are ingested."""
    return (
        {"mark": (tail.after or Mark()).model_copy(update={"logical": None, "sound": False}).model_dump(mode="json")} if tail.parts else {}
    )


def _unreadable(number: int, buffer: bytes, error: WritetimeError, taken: dict[str, Any]) -> Segment:
    nothing = np.zeros(0, np.int64)
    problems = [_problem(number, of_error(error), 0, buffer, str(error))]
    return Segment(number, 0, b"", _Frames(*(nothing for _ in _Frames._fields)), [], 0, problems, taken)


def _segment(number: int, found: Scan, read: _Read) -> Segment:
    frames, ids, refused = _peeked(found)
    problems = [_problem(number, each.kind, each.position, each.body, each.message) for each in refused]
    # A torn tail of a finished segment is a loss too: the node will not complete it.
    problems += [_problem(number, QuarantineKind(item.kind), item.position, found.lost(item), str(item.error)) for item in found.problems]
    tables = pa.Array.from_buffers(pa.binary(16), len(ids), [None, pa.py_buffer(ids)]).dictionary_encode()
    codes = tables.indices.to_numpy(zero_copy_only=False).astype(np.int64)
    known = [UUID(bytes=table_id) for table_id in tables.dictionary.to_pylist()]
    taken, version = read.taken(found), found.descriptor.version
    return Segment(number, version, found.image, frames._replace(table=codes), known, len(found.frames), problems, taken)


class _Refused(NamedTuple):
    """A frame without a readable table id, or the range over many of them."""

    kind: QuarantineKind
    position: int
    body: bytes
    message: str


def _peeked(found: Scan) -> tuple[_Frames, npt.NDArray[np.uint8], list[_Refused]]:
    """The frames with a readable table id, the ids of their tables (16 bytes per row), and the other frames
    with the reason."""
    position, offset, length = _columns(found)
    count, ids, key_offset, key_length = _peeks(found)
    refused: list[int] = []
    errors: list[DecodeError] = []
    for at in np.flatnonzero((count < 1) | (count > length)).tolist():
        try:
            # The compiled walk gives no reasons, and rejects integers that are encoded with unnecessary
            # bytes.
            head = _head(found.body(found.frames[at]), found.descriptor.version)
        except DecodeError as error:
            refused.append(at)
            if len(errors) <= MOST_PROBLEMS:
                errors.append(error)
            continue
        count[at], ids[at] = head.updates, np.frombuffer(head.table_id.bytes, np.uint8)
        key_offset[at], key_length[at] = offset[at] + head.key_offset, head.key_length
    frames = _Frames(position, offset, length, count, count, key_offset, key_length)
    if refused:
        good = np.ones(len(position), bool)
        good[refused] = False
        frames, ids = _Frames(*(column[good] for column in frames)), ids[good]
    return frames, np.ascontiguousarray(ids), _named(found, refused, errors)


def _named(found: Scan, refused: list[int], errors: list[DecodeError]) -> list[_Refused]:
    """Frames without a readable table id, by index; if there are too many, the range from the first to the
    last."""
    if len(refused) <= MOST_PROBLEMS:
        places = [found.frames[at] for at in refused]
        return [
            _Refused(of_error(error), place.position, found.body(place), str(error)) for place, error in zip(places, errors, strict=True)
        ]
    start, end = found.frames[refused[0]].start, found.frames[refused[-1]].position
    message = f"{len(refused)} frames are no mutations; this is from the first to the last, and good frames between them are read"
    error = CorruptSection(f"{message}; the first: {errors[0]}", operation="read a segment", position=start)
    return [_Refused(QuarantineKind.CORRUPT_SECTION, start, found.image[start:end], str(error))]


def _columns(found: Scan) -> tuple[Ints, Ints, Ints]:
    frames: Any = found.frames
    if hasattr(frames, "peeks"):
        return frames.position, frames.body_offset, frames.body_length
    table = np.array(frames, np.int64).reshape(-1, 4)
    return table[:, 0], table[:, 2], table[:, 3]


def _peeks(found: Scan) -> tuple[Ints, npt.NDArray[np.uint8], Ints, Ints]:
    """Number of updates (0 if unknown), table ids, key offsets and lengths."""
    peeks = getattr(found.frames, "peeks", None)
    if peeks is None:
        nothing = np.zeros((4, len(found.frames)), np.int64)
        return nothing[0], np.zeros((len(found.frames), 16), np.uint8), nothing[2], nothing[3]
    ids = np.stack((peeks.table_hi, peeks.table_lo), axis=1).astype(">u8").view(np.uint8).reshape(-1, 16)
    return peeks.update_count.copy(), ids, peeks.key_offset.copy(), peeks.key_length.copy()


def _head(body: bytes, version: int) -> Head:
    """As `read_head`. Raises MalformedMutation also for a number of updates that cannot be."""
    head = read_head(body, version=version)
    if not 0 < head.updates <= len(body):
        raise MalformedMutation(f"a mutation of {head.updates} partition updates", operation="peek into a mutation", position=0)
    return head


# --- survey


def surveyor(bucket_url: str, keystore: Path | None = None) -> Callable[[Batches], Batches]:
    """SEGMENTS to SURVEY. `keystore` is a file on the worker, and its password is in the worker's
    environment: neither keys nor passwords are sent."""

    def survey_batches(batches: Batches) -> Batches:
        reader = Reader(bucket_url, keystore)
        for places in reader.segments(batches):
            for place in places:
                yield from chunked(_survey(reader.open(place)), SURVEY)

    return survey_batches


def _survey(segment: Segment) -> Iterator[dict[str, Any]]:
    others = Counter({"problem": len(segment.problems)})
    for problem in segment.problems:
        # A segment that cannot be read at all (its key is missing, say) is one damaged range, too large for
        # the driver.
        yield problem if len(problem["body"]) <= frame_ranges.BROUGHT else problem | {"body": None}
    frames = segment.frames
    teaching = {code: kind for code, table_id in enumerate(segment.tables) if (kind := _teaches(table_id))}
    for at in np.flatnonzero(np.isin(frames.table, list(teaching))).tolist():
        body, kind = segment.body(at), teaching[int(frames.table[at])]
        if kind == "perhaps" and not is_schema_change(body, version=segment.version):
            continue
        kind = "schema" if kind == "perhaps" else kind
        others[kind] += 1
        yield _surveyed(kind, segment.number, int(frames.position[at]), body, None)
    size = len(segment.tables)
    numbers = [np.bincount(frames.table, weights=each, minlength=size) for each in (None, frames.updates, frames.updates == 1)]
    tables = {str(table_id): [int(column[code]) for column in numbers] for code, table_id in enumerate(segment.tables)}
    counts = {"frames": segment.size, "updates": int(frames.updates.sum()), "tables": dict(sorted(tables.items())), **segment.taken}
    counts["others"] = dict(sorted((+others).items()))
    yield _surveyed("done", segment.number, 0, None, json.dumps(counts))


def _teaches(table_id: UUID) -> str | None:
    """The kind of a frame by its first table; `perhaps` if it may be a system table of a later Cassandra."""
    if table_id in SCHEMA_TABLES or table_id in (LOCAL.id, METADATA_LOG.id):
        return "local" if table_id == LOCAL.id else "schema"
    return "perhaps" if table_id not in TABLES and may_be_own(table_id) else None


def _problem(segment: int, kind: QuarantineKind, position: int, body: bytes, message: str) -> dict[str, Any]:
    """A problem with its bytes, whatever their number: see `_survey`."""
    return _surveyed("problem", segment, position, body, json.dumps({"kind": kind, "size": len(body), "message": message}))


def _surveyed(kind: str, segment: int, position: int, body: bytes | None, detail: str | None) -> dict[str, Any]:
    return {"kind": kind, "segment": segment, "position": position, "body": body, "detail": detail}


# --- route


def router(routes: Routes, bucket_url: str, keystore: Path | None = None, only: Only | None = None) -> Callable[[Batches], Batches]:
    """SEGMENTS to ROUTED. `keystore` as for `surveyor`."""

    def route_batches(batches: Batches) -> Batches:
        reader = Reader(bucket_url, keystore)
        for places in reader.segments(batches):
            task = _Task(routes, only or {}, reader.store)
            for place in places:
                segment = reader.open(place)
                if not segment.image and place["segment"] in task.only:
                    raise _not_read_again(segment, place)
                task.take(segment, place["object"])
            yield from task.batches()

    return route_batches


def _not_read_again(segment: Segment, place: dict[str, Any]) -> BatchError:
    """An earlier batch could read the segment: without its frames a table would silently lack rows."""
    reason = json.loads(segment.problems[0]["detail"])["message"]
    return BatchError(
        f"a truncated table needs this segment again: {reason}",
        operation="read a segment again",
        obj=place["object"],
        hint="Put it back, or give workers what they need to read it, then run the batch again.",
    )


_Bad = tuple[int, int, str]
"""A frame that cannot be used: its index in the segment, how many of its updates are the table's, and why."""


class _Task:
    """Collects the contents of one task's segments: distinct mutations in the order of their first copies,
    and all their positions."""

    def __init__(self, routes: Routes, only: Only, store: Store) -> None:
        self.routes, self.only, self.store = routes, only, store
        self.tables = list(routes.buckets)
        self.codes = {table_id: code for code, table_id in enumerate(self.tables)}
        self.ordinals: dict[bytes, int] = {}
        self.copies: list[tuple[Ints, Ints, Ints]] = []
        self.fresh: list[list[Any]] = []
        self.not_ours: Counter[UUID] = Counter()
        self.parsed: Counter[UUID] = Counter()
        self.reread: Counter[UUID] = Counter()
        self.quarantined: list[dict[str, Any]] = []
        self._bad: dict[tuple[UUID, str], list[_Bad]] = {}

    def take(self, segment: Segment, obj: str) -> None:
        """Add the next segment, of that object; segments come in the order of their numbers."""
        frames = segment.frames
        wanted = np.ones(len(frames.table), bool)
        parsed = frames.updates > 1
        only = self.only.get(segment.number)
        if only is None:
            # A schema mutation is parsed too: an error in it must be reported.
            parsed |= self._of(segment, lambda table_id: table_id in SCHEMA_TABLES)
        else:
            wanted = (frames.position > only[1]) & (parsed | self._of(segment, lambda table_id: table_id in only[0]))
        self._take_single(segment, wanted & ~parsed)
        self._take_parsed(segment, np.flatnonzero(wanted & parsed), None if only is None else only[0])
        if only is not None:
            for code, size in enumerate(np.bincount(frames.table[wanted & ~parsed], minlength=len(segment.tables)).tolist()):
                self.reread[segment.tables[code]] += size
        self._keep_bad(segment, obj, kept=self.routes.keeps and only is None)

    @staticmethod
    def _of(segment: Segment, is_it: Callable[[UUID], bool]) -> npt.NDArray[np.bool_]:
        """The frames whose first table is of that kind."""
        kinds = np.array([is_it(table_id) for table_id in segment.tables], bool)
        return kinds[segment.frames.table]

    def _take_single(self, segment: Segment, wanted: npt.NDArray[np.bool_]) -> None:
        """Frames with one update."""
        frames = segment.frames
        captured = wanted & self._of(segment, lambda table_id: table_id in self.codes and table_id not in self.routes.refused)
        codes = np.array([self.codes.get(table_id, -1) for table_id in segment.tables], np.int64)
        at = np.flatnonzero(captured)
        self._keep(segment, at, codes[frames.table[at]], frames.updates[at], self._digests(segment, at))
        for code, size in enumerate(np.bincount(frames.table[wanted & ~captured], minlength=len(segment.tables)).tolist()):
            table_id = segment.tables[code]
            if size and table_id in self.routes.schema.tables and table_id not in self.routes.refused:
                self.not_ours[table_id] += size
            elif size:
                self._refuse(
                    ((each, 1) for each in np.flatnonzero(wanted & (frames.table == code)).tolist()), table_id, self._reason(table_id)
                )

    def _reason(self, table_id: UUID) -> dict[str, str]:
        if table_id in self.routes.refused:
            return {"kind": QuarantineKind.SCHEMA_ERROR, "message": self.routes.refused[table_id], "table_id": str(table_id)}
        name = str(table_id)
        return _detail(UnknownTable("no schema is known for this table id", operation="route a frame", obj=name, table_id=name), table_id)

    def _take_parsed(self, segment: Segment, at: Ints, only: frozenset[UUID] | None) -> None:
        """Add frames whose tables are known only after parsing."""
        keys: list[bytes] = []
        entries: list[tuple[int, int, int]] = []
        counted = self.parsed if only is None else self.reread
        for index, tables in self._parse(segment, at):
            first = segment.tables[int(segment.frames.table[index])]
            if isinstance(tables, WritetimeError):
                if only is None or first in only:
                    updates = int(segment.frames.updates[index])
                    counted[first] += updates
                    self._refuse([(index, updates)], first, _detail(tables, first))
                continue
            for table_id, updates in tables.items():
                if only is not None and table_id not in only:
                    continue
                counted[table_id] += updates
                if table_id in self.routes.refused:
                    self._refuse([(index, updates)], table_id, self._reason(table_id))
                elif table_id not in self.codes:
                    self.not_ours[table_id] += updates
                else:
                    entries.append((index, self.codes[table_id], updates))
                    keys.append(_digest(segment.body(index), segment.version) + table_id.bytes)
        columns = np.array(entries, np.int64).reshape(-1, 3)
        self._keep(segment, columns[:, 0], columns[:, 1], columns[:, 2], keys)

    def _parse(self, segment: Segment, at: Ints) -> Iterator[tuple[int, dict[UUID, int] | WritetimeError]]:
        """By index of a frame: its tables in order, with the number of their updates, or the error."""
        frames = segment.frames
        places = [
            Frame(position, offset - BODY_OFFSET, offset, length)
            for position, offset, length in zip(*(column[at].tolist() for column in frames[:3]), strict=True)
        ]
        found: dict[int, dict[UUID, int] | WritetimeError] = {}
        version = self.routes.versions[segment.number]
        for chunk in mutation_decoder.decode(segment.image, places, self.routes.schema, version=version):
            for failure in chunk.failures:
                place = failure.frame
                body = segment.image[place.body_offset : place.body_offset + place.body_length]
                found[place.position] = _read_past(body, version) or failure.error
            ids = [UUID(bytes=table_id) for table_id in chunk.updates["table"].dictionary.to_pylist()]
            for position, code in zip(chunk.updates["position"].to_pylist(), chunk.updates["table"].indices.to_pylist(), strict=True):
                tables = found.setdefault(position, {})
                assert isinstance(tables, dict)
                tables[ids[code]] = tables.get(ids[code], 0) + 1
        for index, place in zip(at.tolist(), places, strict=True):
            yield index, found[place.position]

    def _refuse(self, frames: Iterable[tuple[int, int]], table_id: UUID, detail: dict[str, str]) -> None:
        """Quarantine frames of the current segment, by index, with the number of their updates of that
        table."""
        bad = self._bad.setdefault((table_id, json.dumps(detail | {"message": ""})), [])
        bad.extend((index, updates, detail["message"]) for index, updates in frames)

    def _keep_bad(self, segment: Segment, obj: str, *, kept: bool) -> None:
        """Frames that cannot be used, one per row. If a table has many of them in the segment, many are in
        one row and their bytes are stored from here, because those of a hot table would not fit in the
        driver."""
        for (table_id, text), frames in self._bad.items():
            frames.sort()
            found = self._together(segment, frames, obj, kept=kept) if len(frames) > frame_ranges.NAMED else _apart(segment, frames)
            for some, body, about in found:
                row = self._row("quarantined", table_id, sum(updates for _, updates, _ in some))
                first = some[0][0]
                copies = [{"segment": segment.number, "position": int(segment.frames.position[first])}]
                detail = json.dumps(json.loads(text) | about)
                self.quarantined.append(row | {"key": segment.key(first), "copies": copies, "body": body, "detail": detail})
        self._bad.clear()

    def _together(
        self, segment: Segment, frames: list[_Bad], obj: str, *, kept: bool
    ) -> Iterator[tuple[list[_Bad], bytes, dict[str, Any]]]:
        for at, size in segment.put_together([index for index, *_ in frames], obj, self.store if kept else None):
            some = frames[at.start : at.stop]
            last = int(segment.frames.position[some[-1][0]])
            about = {"message": frame_ranges.message([message for *_, message in some]), "frames": len(some), "last": last, "size": size}
            yield some, b"", about

    def _row(self, kind: str, table_id: UUID, updates: int) -> dict[str, Any]:
        about = {"kind": kind, "table": self.routes.name(table_id), "table_id": table_id.bytes, "updates": updates}
        return dict.fromkeys(ROUTED.names) | about

    @staticmethod
    def _digests(segment: Segment, at: Ints) -> list[bytes]:
        image = memoryview(segment.image)
        starts = segment.frames.offset[at]
        ends = starts + segment.frames.length[at]
        return [_digest(image[start:end], segment.version) for start, end in zip(starts.tolist(), ends.tolist(), strict=True)]

    def _keep(self, segment: Segment, at: Ints, tables: Ints, updates: Ints, keys: list[bytes]) -> None:
        """Record the positions of captured mutations, and keep those that are new. A key begins with the
        digest."""
        known, before = self.ordinals, len(self.ordinals)
        ordinals = np.array([known.setdefault(key, len(known)) for key in keys], np.int64)
        self.copies.append((ordinals, np.full(len(ordinals), segment.number, np.int64), segment.frames.position[at]))
        later = np.flatnonzero(ordinals >= before)
        _, first = np.unique(ordinals[later], return_index=True)
        new = later[first]
        sizes = segment.frames.length[at[new]]
        for start, end in mutation_columns.chunks(sizes, _BYTES_PER_BATCH):
            some = new[start:end]
            self.fresh.append(self._columns(segment, at[some], tables[some], updates[some], [keys[i] for i in some.tolist()]))

    def _columns(self, segment: Segment, at: Ints, tables: Ints, updates: Ints, keys: list[bytes]) -> list[Any]:
        """The columns of ROUTED except `copies`."""
        frames, size = segment.frames, len(at)
        key_values = _slices(segment.image, frames.key_offset[at], frames.key_length[at])
        buckets = np.array([self.routes.buckets[table_id] for table_id in self.tables], np.int64)[tables]
        hashes = np.fromiter(map(zlib.crc32, key_values), np.int64, size)
        digests = np.frombuffer(b"".join(key[:_DIGEST_BYTES] for key in keys), np.uint8).reshape(-1, _DIGEST_BYTES)
        codes = pa.array(tables, pa.int32())
        return [
            pa.repeat("update", size),
            pa.array([self.routes.name(table_id) for table_id in self.tables], pa.string()).take(codes),
            pa.array([table_id.bytes for table_id in self.tables], pa.binary()).take(codes),
            pa.array(hashes % buckets, pa.int32()),
            _binary(key_values),
            fixed(digests),
            pa.array(updates, pa.int32()),
            _binary(_slices(segment.image, frames.offset[at], frames.length[at])),
            pa.nulls(size, pa.string()),
        ]

    def batches(self) -> Batches:
        """All rows, in batches of bounded size."""
        copies = self._copies()
        start = 0
        while self.fresh:
            columns = self.fresh.pop(0)
            size = len(columns[0])
            columns.insert(ROUTED.get_field_index("copies"), copies.slice(start, size))
            yield pa.RecordBatch.from_arrays(columns, schema=ROUTED)
            start += size
        yield from chunked(self._others(), ROUTED)

    def _copies(self) -> Any:
        ordinals, segments, positions = (np.concatenate(parts) for parts in zip(*self.copies, strict=True)) if self.copies else _NOTHING
        order = np.argsort(ordinals, kind="stable")
        ends = np.concatenate((np.zeros(1, np.int64), np.cumsum(np.bincount(ordinals, minlength=len(self.ordinals)))))
        children = [pa.array(segments[order], pa.int32()), pa.array(positions[order], pa.int64())]
        items = pa.StructArray.from_arrays(children, fields=list(COPIES.value_type))
        return pa.ListArray.from_arrays(pa.array(ends, pa.int32()), items, type=COPIES)

    def _others(self) -> Iterator[dict[str, Any]]:
        yield from self.quarantined
        for kind, counts in (("not_ours", self.not_ours), ("parsed", self.parsed), ("reread", self.reread)):
            yield from (self._row(kind, table_id, updates) for table_id, updates in sorted(counts.items()) if updates)


_NOTHING: tuple[Ints, Ints, Ints] = (np.zeros(0, np.int64), np.zeros(0, np.int64), np.zeros(0, np.int64))


def _apart(segment: Segment, frames: list[_Bad]) -> Iterator[tuple[list[_Bad], bytes | None, dict[str, Any]]]:
    for frame in frames:
        body = segment.body(frame[0])
        brought = len(body) <= frame_ranges.BROUGHT
        yield [frame], body if brought else None, {"message": frame[2]} | ({} if brought else {"size": len(body)})


def _digest(body: bytes | memoryview, version: int) -> bytes:
    # The same bytes are another mutation where flags and epochs are read from them.
    layout_of = b"epochs" if version >= EPOCHS_VERSION else b""
    return hashlib.blake2b(body, digest_size=_DIGEST_BYTES, person=layout_of).digest()


def _read_past(body: bytes, version: int) -> dict[UUID, int] | None:
    """The tables, with the number of their updates, of a schema change that only a later Cassandra's schema
    describes completely."""
    try:
        return dict(Counter(decode_own(body, version=version).tables)) if is_schema_change(body, version=version) else None
    except DecodeError:
        return None


def _detail(error: WritetimeError, first: UUID) -> dict[str, str]:
    unknown = error.table_id if isinstance(error, UnknownTable) else str(first)
    return {"kind": of_error(error), "message": str(error), "table_id": unknown}


def _slices(image: bytes, starts: Ints, lengths: Ints) -> list[bytes]:
    return [image[start : start + length] for start, length in zip(starts.tolist(), lengths.tolist(), strict=True)]


def _binary(values: list[bytes]) -> Any:
    ends = np.zeros(len(values) + 1, np.int32)
    np.cumsum(np.fromiter(map(len, values), np.int64, len(values)), out=ends[1:])
    return pa.Array.from_buffers(pa.binary(), len(values), [None, pa.py_buffer(ends), pa.py_buffer(b"".join(values))])


def chunked(rows: Iterable[dict[str, Any]], schema: pa.Schema) -> Batches:
    """Rows as record batches of bounded size, so that one large segment does not become one large message."""
    pending: list[dict[str, Any]] = []
    size = 0
    for row in rows:
        pending.append(row)
        size += 64 + sum(len(value) for value in row.values() if isinstance(value, bytes))
        if size >= _BYTES_PER_BATCH:
            yield pa.RecordBatch.from_pylist(pending, schema=schema)
            pending, size = [], 0
    if pending:
        yield pa.RecordBatch.from_pylist(pending, schema=schema)
