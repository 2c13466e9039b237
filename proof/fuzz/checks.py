"""Invariants for arbitrary bytes, checked on one case.

Strategy: each check is a function that raises `Broken` with a sentence; a `Checker` runs them all and counts
what was reached, so that a run can show its coverage. Other exceptions than writetime's own are not caught:
the runner reports them as failures.
"""

from __future__ import annotations

import re
import resource
import struct
import tracemalloc
import zlib
from collections import Counter
from itertools import pairwise

from proof.fuzz.cases import Case
from proof.fuzz.corpus import Corpus
from proof.fuzz.guard import Guarded
from proof.fuzz.twins import Twins
from tests.cassandra.commitlog.packed import KEYS
from writetime.cassandra.commitlog import codecs, sections, segment
from writetime.cassandra.commitlog.encode import encode_mutation
from writetime.cassandra.commitlog.mutation import STATE_VERSION, decode_mutation, table_shape
from writetime.cassandra.commitlog.segment import Scan, peek, scan
from writetime.cassandra.model import Mutation
from writetime.cassandra.schema.history import SchemaLearner
from writetime.cassandra.schema.system_tables import SCHEMA_TABLES, TABLES
from writetime.cassandra.types.types import CqlType, parse_type
from writetime.errors import (
    CorruptDescriptor,
    DecodeError,
    MalformedMutation,
    NotASegment,
    SchemaError,
    SegmentError,
    UnknownColumn,
    UnknownTable,
    UnsupportedSegment,
)
from writetime.kernels import mutation_buffers, segment_walk

ROOM = 1 << 16
MOST_GROWTH_KIB = 48 << 10
"""How much the process may grow in one case, in KiB: cases have a few KiB, and nothing may be made of lengths
that they claim.
"""
MOST_TRACED = 4 << 20
"""Bytes that Python may have allocated at one moment of a traced case."""
TRACED_EVERY = 128
_NOT_ZERO = re.compile(rb"[^\0]")
_HEADER_ERRORS = (NotASegment, CorruptDescriptor, UnsupportedSegment)
_BODY_ERRORS = (UnknownTable, UnknownColumn, MalformedMutation)


class Broken(AssertionError):
    """An invariant does not hold."""


class Checker:
    """Checks cases in order; `seen` counts the outcomes."""

    def __init__(self, corpus: Corpus) -> None:
        segment_walk.compile_ahead()
        mutation_buffers.compile_ahead()
        self.corpus = corpus
        self.seen: Counter[str] = Counter()
        self.guarded = Guarded(ROOM)
        self.twins = Twins(corpus.schema)
        self.types: dict[tuple[str, str], CqlType] = {}
        start = corpus.seeds[0]
        self.twins.load(next(iter(start.frames.values())), start.version)

    def check(self, case: Case) -> None:
        """Raises Broken, or an unexpected exception of the code under test."""
        self.seen[f"began as version {case.seed.version}"] += 1
        before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        if case.number % TRACED_EVERY == 0:
            self._traced(case)
        else:
            self._check(case)
        grown = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before
        if grown > MOST_GROWTH_KIB + (most_unpacked(case) >> 10):
            raise Broken(f"the process grew by {grown} KiB over {len(case.content)} bytes")

    def finish(self) -> None:
        """Check the bodies that are still pooled."""
        self.twins.flush()
        self.seen["cells decoded twice"] += self.twins.cells
        self.twins.cells = 0

    def _traced(self, case: Case) -> None:
        self.twins.flush()  # what other cases have put off is not this one's memory
        tracemalloc.start()
        try:
            self._check(case)
            _, peak = tracemalloc.get_traced_memory()
        finally:
            tracemalloc.stop()
        if peak > MOST_TRACED + most_unpacked(case):
            raise Broken(f"{peak} bytes were allocated at once over {len(case.content)} bytes")

    def _check(self, case: Case) -> None:
        found = self._both_engines(case)
        if found is None:
            return
        self._sound(found, case)
        self._as_it_was(found, case)
        for frame in found.frames:
            self._body(found.body(frame), found.descriptor.version)
            self.twins.take(case.number, found.body(frame), found.descriptor.version)

    # --- container

    def _both_engines(self, case: Case) -> Scan | None:
        python, numba = (_scan(case, engine) for engine in ("python", "numba"))
        if isinstance(python, SegmentError) or isinstance(numba, SegmentError):
            if type(python) is not type(numba) or str(python) != str(numba):
                raise Broken(f"python: {python!s}; numba: {numba!s}")
            self.seen[f"header: {type(python).__name__}"] += 1
            return None
        _same("frames", python.frames, numba.frames)
        _same("problems", _plain(python), _plain(numba))
        _same("end", (python.end, python.ending), (numba.end, numba.ending))
        self._within_bounds(python, case)
        for problem in python.problems:
            self.seen[f"problem: {type(problem.error).__name__}: {_kind_of(problem.error.message)}"] += 1
        self.seen[f"ending: {python.ending}"] += 1
        self.seen["frames"] += len(python.frames)
        return python

    def _within_bounds(self, found: Scan, case: Case) -> None:
        """The compiled scan in guarded memory."""
        image, segment_id = found.image, found.descriptor.id
        if len(image) > ROOM:
            return
        start = _first_section(image)
        length = len(image) if case.synced is None else max(start, min(len(image), case.synced))
        place = self.guarded.at_the_beginning if case.number % 4 == 0 else self.guarded.at_the_end
        walked = segment_walk.walk(place(image), start, length, segment_id, version=found.descriptor.version).as_python()
        _same("the guarded walk's frames", walked[0], segment.walk(image, start, length, segment_id)[0])

    def _sound(self, found: Scan, case: Case) -> None:
        """Frames are whole by a reading of their CRCs of this check's own, in order, apart; all bytes are
        accounted for.
        """
        image, taken = found.image, []
        for frame in found.frames:
            size, size_crc = struct.unpack_from(">II", image, frame.start)
            (crc,) = struct.unpack_from(">I", image, frame.position - 4)
            body = found.body(frame)
            if (frame.body_offset, frame.position) != (frame.start + 8, frame.start + 12 + size) or len(body) != size:
                raise Broken(f"{frame} is not where its size says")
            head = zlib.crc32(image[frame.start : frame.start + 4])
            if size_crc != head or crc != zlib.crc32(body, head):
                raise Broken(f"{frame} was delivered with a wrong CRC")
            taken.append((frame.start, frame.position))
        if any(first[1] > second[0] for first, second in pairwise(taken)):
            raise Broken("frames overlap or are out of order")
        for problem in found.problems:
            place = found.file if problem.in_file else image
            if not 0 <= problem.position <= problem.position + problem.size <= len(place):
                raise Broken(f"{problem} lies outside the file")
            if not problem.in_file:
                taken.append((problem.position, problem.position + problem.size))
        if case.synced is None:
            self._accounted(found, sorted(taken))

    def _accounted(self, found: Scan, taken: list[tuple[int, int]]) -> None:
        """Bytes outside of frames and problems are sync markers, zeros, or a rest at the end of a section
        that is too short for a frame.
        """
        image, pos = found.image, _first_section(found.image)
        seed = sections.id_crc(found.descriptor.id)
        for start, end in [*taken, (len(image), len(image))]:
            while pos < start:
                at = _next_marker(image, pos, start, seed)
                passed = image[pos:at]
                if passed[3:].strip(b"\0"):
                    raise Broken(f"nobody speaks of the bytes from {pos} to {at}: {passed[:16].hex(' ')}")
                pos = at + sections.MARKER_SIZE if at < start else start
            pos = max(pos, end)

    def _as_it_was(self, found: Scan, case: Case) -> None:
        """With CRCs left as they were, nothing comes out that did not go in.

        It stands where it stood, unless a packed section could not be unpacked: how much was in it is not
        known then.
        """
        if case.may_deliver is None:
            return
        moved = any(problem.in_file for problem in found.problems)
        for frame in found.frames:
            body = found.body(frame)
            if body not in case.may_deliver:
                raise Broken(f"the frame at {frame.position} was never written")
            if case.in_place and not moved and case.seed.frames.get(frame.position) != body:
                raise Broken(f"the frame at {frame.position} stood elsewhere")
        self.seen["frames as they were"] += len(found.frames)

    # --- bodies

    def _body(self, body: bytes, version: int) -> None:
        mutation = self._decoded(body, version)
        if mutation is None:
            return
        self.seen["decoded"] += 1
        first = mutation.updates[0]
        _same("peek", peek(body, version=version), (len(mutation.updates), first.table_id, first.key))
        self.seen["decoded, with epochs"] += first.epoch is not None
        self._goes_around(mutation, max(version, STATE_VERSION))
        self._values(mutation)
        if any(update.table_id in SCHEMA_TABLES for update in mutation.updates):
            self._taught(mutation)

    def _decoded(self, body: bytes, version: int) -> Mutation | None:
        try:
            return decode_mutation(body, self.corpus.schema, version=version)
        except DecodeError as error:
            if type(error) not in _BODY_ERRORS:
                raise
            if error.position is None or not 0 <= error.position <= len(body):
                raise Broken(f"an error outside the body: {error}") from error
            self.seen[f"not decoded: {type(error).__name__}"] += 1
            return None

    def _goes_around(self, mutation: Mutation, version: int) -> None:
        """A decoded mutation can be encoded, or is rejected; the encoded bytes decode and encode to the
        same."""
        try:
            written = encode_mutation(mutation, self.corpus.schema, version=version)
        except DecodeError:
            self.seen["not encoded"] += 1
            return
        again = decode_mutation(written, self.corpus.schema, version=version)
        _same("flags", again.flags, mutation.flags)
        _same("epochs", [update.epoch for update in again.updates], [update.epoch for update in mutation.updates])
        _same("what was written twice", encode_mutation(again, self.corpus.schema, version=version), written)

    def _values(self, mutation: Mutation) -> None:
        for update in mutation.updates:
            table = self.corpus.schema.tables[update.table_id]
            for row in (*update.rows, *([update.static_row] if update.static_row else [])):
                for cell in row.cells:
                    column = table.columns.get(cell.column)
                    if column is None or cell.path is not None:
                        continue
                    kind = self.types.get((table.keyspace, column.type))
                    if kind is None:
                        kind = self.types[table.keyspace, column.type] = parse_type(column.type, table.keyspace, self.corpus.schema.types)
                    try:
                        kind.decode(cell.value)
                        self.seen["values"] += 1
                    except DecodeError:
                        self.seen["no value of its type"] += 1

    def _taught(self, mutation: Mutation) -> None:
        learner = SchemaLearner()
        try:
            learner.apply(mutation)
            schema = learner.schema()
            for table in schema.tables.values():
                if table.id not in TABLES:
                    table_shape(table)
                    for column in (*table.columns.values(), *table.dropped_columns.values()):
                        parse_type(column.type, table.keyspace, schema.types)
            text = learner.to_json()
            _same("what was learnt", SchemaLearner.from_json(text).to_json(), text)
            self.seen["schema left out" if learner.left_out else "schema learnt"] += 1
        except SchemaError:
            self.seen["schema refused"] += 1


def most_unpacked(case: Case) -> int:
    """What a packed segment may unpack to by the ratio of its codec; for a plain one nothing is added."""
    return 3 * codecs.most_of("ZstdCompressor", len(case.content)) if b"compressionClass" in case.content[:200] else 0


def _scan(case: Case, engine: segment.Engine) -> Scan | SegmentError:
    try:
        return scan(case.content, synced=case.synced, engine=engine, keys=KEYS)
    except _HEADER_ERRORS as error:
        return error


def _plain(found: Scan) -> list[tuple[object, ...]]:
    return [(problem.kind, problem.position, problem.size, str(problem.error)) for problem in found.problems]


def _first_section(image: bytes) -> int:
    return 18 + int.from_bytes(image[12:14], "big")


def _next_marker(image: bytes, pos: int, end: int, seed: int) -> int:
    """Where the next marker stands whose CRC holds, or `end`. A CRC has a byte that is not zero: holes of
    megabytes are leapt over.
    """
    tried = pos
    for match in _NOT_ZERO.finditer(image, pos, end):
        for at in range(max(tried, match.start() - 7), min(match.start() - 3, end - 7)):
            if sections.parse_marker(image, at)[1] == sections.marker_crc(seed, at):
                return at
        tried = max(tried, match.start() - 3)
    return end


def _same(what: str, one: object, other: object) -> None:
    if one != other:
        raise Broken(f"{what} differ: {str(one)[:400]} / {str(other)[:400]}")


def _kind_of(message: str) -> str:
    """The message without the variable parts: the text in the last brackets, and numbers."""
    return re.sub(r"\b\d+\b", "N", message.rpartition(" (")[0])
