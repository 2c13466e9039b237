"""Both decoders from bodies to Arrow on the same bodies: batches, errors and mutations must be exactly
equal."""

from __future__ import annotations

import subprocess
import sys
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import replace
from pathlib import Path
from random import Random
from typing import Any
from uuid import UUID

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from proof.fuzz.structure import with_any_epochs
from proof.recording.recording import Recording
from tests.cassandra.commitlog.examples import (
    COUNTER_TABLE,
    RANGES_FRAME,
    RANGES_TABLE,
    SCHEMA,
    STATICS_BODY,
    STATICS_TABLE,
    TTL_FRAME,
    TTL_TABLE,
    VECTOR_TABLE,
    WIDE_TABLE,
    body_of,
    delete_range,
    insert,
)
from tests.cassandra.commitlog.test_encode import deletions, rows, updates
from tests.cassandra.commitlog.test_mutation import CLUSTERINGS, DELETION_TIMES, REAL, ROWS, WRONG
from tests.cassandra.schema.examples import change, column_row, create_table, deleted_row, dropped_row
from tests.examples import examples
from writetime.cassandra.commitlog.encode import encode_mutation, encode_segment
from writetime.cassandra.commitlog.files import mapped
from writetime.cassandra.commitlog.mutation import decode_mutation
from writetime.cassandra.commitlog.mutation_json import learn
from writetime.cassandra.commitlog.segment import Engine, Frame, scan
from writetime.cassandra.model import (
    NO_TIMESTAMP,
    Bound,
    Cell,
    DeletionTime,
    Liveness,
    Mutation,
    PartitionUpdate,
    RangeTombstone,
    Row,
)
from writetime.cassandra.schema.history import SchemaLearner
from writetime.cassandra.schema.model import Column, DroppedColumn, Schema, Table
from writetime.cassandra.types.vint import write_unsigned
from writetime.errors import CorruptFrame, MalformedMutation, UnknownColumn, UnknownTable, WritetimeError
from writetime.kernels import mutation_buffers
from writetime.kernels.mutation_columns import (
    CELLS,
    COMPLEX_DELETIONS,
    MOST_BYTES,
    RANGES,
    SCHEMAS,
    Decoded,
    Dictionaries,
    chunks,
    flatten,
    name_bytes,
    unflatten,
)
from writetime.kernels.mutation_decoder import decode, decode_segment
from writetime.kernels.segment_walk import Frames

ENGINES: tuple[Engine, ...] = ("python", "numba")


def image_of(bodies: Sequence[bytes]) -> tuple[bytes, list[Frame]]:
    """The bodies one behind the other, and frames for them."""
    frames, at = [], 0
    for body in bodies:
        frames.append(Frame(at + len(body) + 4, at - 8, at, len(body)))
        at += len(body)
    return b"".join(bodies), frames


def told(error: WritetimeError) -> dict[str, Any]:
    return error.as_dict()


def batches(decoded: Decoded) -> list[Any]:
    return [decoded.updates, decoded.rows, decoded.cells, decoded.complex_deletions, decoded.ranges]


def assert_equal(left: Decoded, right: Decoded) -> None:
    for schema, one, other in zip(SCHEMAS, batches(left), batches(right), strict=True):
        for batch in (one, other):
            batch.validate(full=True)
            assert batch.schema.equals(schema)
        assert one.equals(other), (one.to_pylist(), other.to_pylist())
    assert [(failure.frame, told(failure.error)) for failure in left.failures] == [(f.frame, told(f.error)) for f in right.failures]


def both(bodies: Sequence[bytes], schema: Schema = SCHEMA, *, version: int = 7, chunk_bytes: int = 1 << 20) -> list[Decoded]:
    """What both engines say of the bodies, which is one thing, and what `decode_mutation` says of each."""
    image, frames = image_of(bodies)
    return both_of(image, frames, schema, version=version, chunk_bytes=chunk_bytes)


def both_of(image: bytes, frames: Sequence[Frame], schema: Schema, *, version: int = 7, chunk_bytes: int = 1 << 20) -> list[Decoded]:
    in_python, compiled = (
        list(decode(image, frames, schema, version=version, engine=engine, chunk_bytes=chunk_bytes)) for engine in ENGINES
    )
    assert len(in_python) == len(compiled)
    for left, right in zip(in_python, compiled, strict=True):
        assert_equal(left, right)
    assert [pair for chunk in compiled for pair in unflatten(chunk)] == list(decoded_one_by_one(image, frames, schema, version))
    return compiled


def decoded_one_by_one(image: bytes, frames: Iterable[Frame], schema: Schema, version: int) -> Iterable[tuple[int, Mutation]]:
    for frame in frames:
        try:
            body = image[frame.body_offset : frame.body_offset + frame.body_length]
            yield frame.position, decode_mutation(body, schema, version=version)
        except WritetimeError:
            continue


# --- bodies

BOUNDARIES = ROWS + bytes.fromhex(
    "02 01 0001 00 00000001 00 00  02 02 0001 00 00000003 00 00 05 00  02 05 0001 00 00000007 05 00 00 00  02 06 0000 00 00  01"
)
VECTORS = (
    b"\1"
    + VECTOR_TABLE.id.bytes
    + bytes.fromhex(
        "04 00000001 10 00 00 00 03 01 66 01 6e 01 74 01 24 00"
        "08 3f000000 3f800000 40000000 08 00000001 00000000 00000003 00000004 08 04 00 02 c3a9 01"
    )
)
COUNTERS = b"\1" + COUNTER_TABLE.id.bytes + bytes.fromhex("04 00000001 10 00 00 00 02 01 6e 02 6e32 01 20 00 01 63 00 00 24") + bytes(36)
COUNTERS += bytes.fromhex("00 00 24") + bytes(36) + b"\1"
EMPTY_UPDATE = b"\1" + TTL_TABLE.id.bytes + b"\4" + bytes(4) + b"\1"
TWO_TABLES = b"\2" + body_of(TTL_FRAME)[1:] + body_of(RANGES_FRAME)[1:]


def deletion_time_body(base: int, delta: int, ttl: int) -> bytes:
    bases = write_unsigned(0) + write_unsigned(base) + write_unsigned(ttl)
    row = bytes.fromhex("2c 00 00") + write_unsigned(delta)
    return b"\1" + TTL_TABLE.id.bytes + b"\4" + bytes(4) + b"\x10" + bases + b"\0\1" + row + b"\1"


def everything() -> Mutation:
    """One update with one of each thing."""
    live, gone = Liveness(7, 60, 1_700_000_060), DeletionTime(5, 1_700_000_000)
    cells = (
        Cell("gone", 7, b"1234", None, 60, 1_700_000_060),
        Cell("v", 9, b""),
        Cell("w", 8, b"", None, 0, 1_700_000_001),
        Cell("ünï", -1, b"abcd"),
        Cell("li", 7, b"one", b"p" * 16),
        Cell("m", 7, b"two" * 50, b"k" * 200),
        Cell("m", 2**63 - 1, b"", b"l", 0, 1_700_000_001),
        Cell("st", 7, b"", b""),
    )
    rows = (
        Row((bytes(4),), live, gone, True, cells, {"li": gone, "u": DeletionTime(6, 7)}),
        Row((b"\0\0\0\3",), cells=(Cell("v", 1, b"x"),)),
    )
    static = Row(None, cells=(Cell("s", 4, b"static"), Cell("sm", 4, b"\0\0\0\1", b"k")), complex_deletions={"sm": gone})
    tombstone = RangeTombstone(Bound((b"\0\0\0\1",), False), Bound((b"\0\0\0\2",), True), gone)
    update = PartitionUpdate(STATICS_TABLE.id, b"key", DeletionTime(3, 4), static, rows, (tombstone,))
    return Mutation((update, PartitionUpdate(TTL_TABLE.id, b"key")))


EVERYTHING = encode_mutation(everything(), SCHEMA)

BODIES: list[tuple[str, bytes]] = [
    *((name, body) for name, body, _ in REAL),
    ("boundaries", BOUNDARIES),
    ("vectors", VECTORS),
    ("counters", COUNTERS),
    ("an empty update", EMPTY_UPDATE),
    ("two tables", TWO_TABLES),
    ("everything", EVERYTHING),
    ("an insert", encode_mutation(insert(1), SCHEMA)),
    ("a range to the end", encode_mutation(delete_range(1), SCHEMA)),
    *((f"time: {name}", deletion_time_body(base, delta, ttl)) for name, _, base, delta, ttl, _ in DELETION_TIMES),
    *(
        (f"40 clusterings {i}", encode_mutation(Mutation((PartitionUpdate(WIDE_TABLE.id, b"k", rows=(Row(ck, Liveness(5)),)),)), SCHEMA))
        for i, ck in enumerate(CLUSTERINGS)
    ),
]


@pytest.mark.parametrize("version", [6, 7, 8])
@pytest.mark.parametrize("body", [case[1] for case in BODIES], ids=[case[0] for case in BODIES])
def test_good_bodies(body: bytes, version: int) -> None:
    (chunk,) = both([body], version=version)
    assert chunk.failures == ()
    assert chunk.updates.num_rows >= 1


@pytest.mark.parametrize("body", [case[1] for case in BODIES], ids=[case[0] for case in BODIES])
def test_good_bodies_with_flags_and_epochs(body: bytes) -> None:
    """The same content as in version 8, in every chunk and to the last cut."""
    rng = Random(7)
    bodies = [with_any_epochs(rng, body, SCHEMA) for _ in range(8)]
    (chunk,) = both(bodies, version=9)
    (before,) = both([body] * 8, version=8)
    assert chunk.failures == ()
    assert chunk.updates["flags"].to_pylist()[:: len(chunk.updates) // 8] == [each[0] for each in bodies]
    assert chunk.updates["epoch"].null_count == 0
    assert before.updates["epoch"].null_count == before.updates["flags"].null_count == len(before.updates)
    assert chunk.rows.equals(before.rows)
    assert chunk.cells.equals(before.cells)
    (chunk,) = both([bodies[0][:cut] for cut in range(len(bodies[0]))] + [bodies[0] + b"\0"], version=9)
    assert len(chunk.failures) == len(bodies[0]) + 1


def test_flipped_bytes_with_flags_and_epochs() -> None:
    body = with_any_epochs(Random(1), TWO_TABLES, SCHEMA)
    places = [(at, mask) for at in range(len(body)) for mask in (1, 8, 0x40, 0x80, 0xFF)]
    both([body[:at] + bytes((body[at] ^ mask,)) + body[at + 1 :] for at, mask in places], version=9)


@pytest.mark.parametrize("body", [case[1] for case in WRONG], ids=[case[0] for case in WRONG])
def test_wrong_bodies_leave_nothing_behind(body: bytes) -> None:
    (chunk,) = both([EVERYTHING, body, EVERYTHING])
    assert [type(failure.error) for failure in chunk.failures] == [MalformedMutation]
    assert chunk.updates.num_rows == 4


@pytest.mark.parametrize("body", [case[1] for case in BODIES], ids=[case[0] for case in BODIES])
def test_every_cut_is_noticed_with_the_rest_in_sight(body: bytes) -> None:
    """The bytes behind a cut are those that were cut off: who looks at them takes the body for good."""
    frames = [Frame(cut + 4, -8, 0, cut) for cut in range(len(body))]
    (chunk,) = both_of(body, frames, SCHEMA)
    assert len(chunk.failures) == len(body)
    assert chunk.updates.num_rows == chunk.cells.num_rows == 0
    (chunk,) = both([body + b"\0"])
    assert "left over" in str(chunk.failures[0].error)


def wide_body(total: int, subset: bytes, cells: int) -> bytes:
    """A row of WIDE_TABLE with a header of its first `total` columns, and so many cells."""
    header = write_unsigned(total) + b"".join(b"\3" + f"v{i:02d}".encode() for i in range(total))
    clustering = write_unsigned((1 << 64) - 1) + write_unsigned((1 << 16) - 1)
    return (
        b"\1" + WIDE_TABLE.id.bytes + bytes.fromhex("01 6b 10 00 00 00") + header + b"\1\0" + clustering + subset + bytes(6) * cells + b"\1"
    )


@pytest.mark.parametrize(
    ("total", "subset", "cells", "good"),
    [
        (80, write_unsigned(0), 80, True),
        (80, write_unsigned(41) + bytes(range(39)), 39, True),
        (80, write_unsigned(40) + bytes(range(40)), 40, True),
        (80, write_unsigned(41) + bytes(39), 1, True),  # an index that comes again counts once
        (80, write_unsigned(3) + bytes((79, 0, 5)), 77, True),
        (80, write_unsigned(80), 0, True),
        (80, write_unsigned(81), 80, False),
        (80, write_unsigned(-1), 80, False),
        (80, write_unsigned(-(2**63)), 80, False),
        (80, write_unsigned(1) + write_unsigned(80), 79, False),
        (80, write_unsigned(1) + write_unsigned(-1), 79, False),
        (80, write_unsigned(79) + write_unsigned(80), 1, False),
        (64, write_unsigned(1) + b"\0", 63, True),
        (63, write_unsigned(1), 62, True),
        (63, write_unsigned((1 << 63) - 1), 0, True),
        (63, write_unsigned(1 << 63), 63, False),
        (63, write_unsigned(-1), 63, False),
    ],
)
def test_column_subsets(total: int, subset: bytes, cells: int, good: bool) -> None:
    (chunk,) = both([wide_body(total, subset, cells)])
    assert (chunk.cells.num_rows, len(chunk.failures)) == ((cells, 0) if good else (0, 1))


GUARDED = """
import ctypes, mmap, sys
from tests.kernels.test_mutation_columns import BODIES, SCHEMA
from writetime.kernels.mutation_decoder import decode
from writetime.cassandra.commitlog.segment import Frame

page = mmap.PAGESIZE
memory = mmap.mmap(-1, 2 * page)
address = ctypes.addressof(ctypes.c_char.from_buffer(memory))
assert ctypes.CDLL(None, use_errno=True).mprotect(ctypes.c_void_p(address + page), page, 0) == 0
image = memoryview(memory)[:page]
count = 0
for _, body in BODIES:
    for cut in range(min(len(body), page) + 1):
        image[page - cut :] = body[:cut]
        for chunk in decode(image, [Frame(page + 4, 0, page - cut, cut)], SCHEMA, version=7, engine="numba"):
            assert len(chunk.failures) == (cut < len(body))
            count += 1
print(count)
if sys.argv[1:]:
    ctypes.string_at(address + page, 1)
"""


@pytest.mark.thorough
def test_nothing_behind_the_buffer_is_read() -> None:
    """Every cut of every body ends where memory ends: one byte further is a page that kills the process."""
    command = [sys.executable, "-c", GUARDED]
    root = Path(__file__).parents[2]
    done = subprocess.run(command, cwd=root, check=True, capture_output=True, text=True)
    assert int(done.stdout) == sum(len(body) + 1 for _, body in BODIES)
    assert subprocess.run([*command, "look"], cwd=root, capture_output=True).returncode < 0


def test_nothing_behind_the_output_is_written(monkeypatch: pytest.MonkeyPatch) -> None:
    """With hardly any room at first, and known bytes behind each array."""
    guarded: list[Any] = []

    def empty(size: int, kind: Any) -> Any:
        array = np.empty(size + 8, kind)
        array.view(np.uint8)[:] = 0xA5
        guarded.append(array[size:])
        return array[:size]

    monkeypatch.setattr(mutation_buffers, "_empty", empty)
    monkeypatch.setattr(mutation_buffers, "_LEAST_ROOM", 1)
    monkeypatch.setattr(mutation_buffers._Decoder, "_expect", lambda *_: None)
    bodies = [body for _, body in BODIES] + [body for _, body in WRONG]
    (chunk,) = both(bodies)
    assert len(chunk.failures) == len(WRONG)
    assert len(guarded) > 200
    assert all((behind.view(np.uint8) == 0xA5).all() for behind in guarded)


@pytest.mark.parametrize("body", [case[1] for case in BODIES[:12]], ids=[case[0] for case in BODIES[:12]])
def test_flipped_bytes(body: bytes) -> None:
    changed = []
    for position in range(len(body)):
        for mask in (0x01, 0x08, 0x40, 0x80, 0xFF):
            copy = bytearray(body)
            copy[position] ^= mask
            changed.append(bytes(copy))
    both(changed, version=8)


# --- what hypothesis finds


@settings(max_examples=examples(80))
@given(st.lists(st.lists(updates(), min_size=1, max_size=3), max_size=4), st.sampled_from([6, 7, 8]), st.integers(1, 600))
def test_any_updates(found: list[list[PartitionUpdate]], version: int, chunk_bytes: int) -> None:
    bodies = [encode_mutation(Mutation(tuple(item)), SCHEMA) for item in found]
    assert sum(len(chunk.failures) for chunk in both(bodies, version=version, chunk_bytes=chunk_bytes)) == 0


damage = st.lists(st.tuples(st.integers(0, 10_000), st.binary(min_size=1, max_size=9)), min_size=1, max_size=3)


@settings(max_examples=examples(150))
@given(updates(), st.lists(damage, min_size=1, max_size=6), st.sampled_from([7, 8]))
def test_any_damage(update: PartitionUpdate, damages: list[list[tuple[int, bytes]]], version: int) -> None:
    body = encode_mutation(Mutation((update,)), SCHEMA)
    bodies = []
    for changes in damages:
        copy = bytearray(body)
        for position, content in changes:
            at = 17 + position % max(1, len(body) - 17)
            copy[at : at + len(content)] = content
        bodies.append(bytes(copy))
    both(bodies, version=version)


@settings(max_examples=examples(150))
@given(st.lists(st.binary(max_size=60), max_size=5), st.sampled_from([STATICS_TABLE, RANGES_TABLE, WIDE_TABLE]))
def test_any_bytes(contents: list[bytes], table: Table) -> None:
    """Behind a head that leads into rows."""
    head = b"\1" + table.id.bytes + bytes.fromhex("01 6b 10 00 00 00 01")
    name = table.regular_columns[-1].name.encode()
    both([head + bytes((len(name),)) + name + content for content in contents] + contents)


TYPES = ("text", "int", "bigint", "uuid", "boolean", "tinyint", "vector<float, 3>")
FIXED = {"text": None, "int": 4, "bigint": 8, "uuid": 16, "boolean": 1, "tinyint": None, "vector<float, 3>": 12}
COMPLEX = ("list<int>", "set<text>", "map<text, int>", "some_type")


@st.composite
def any_mutations(draw: st.DrawFn) -> tuple[Schema, Mutation]:
    """Rows of a table with any number of clusterings and columns; more than 63 of these are likely."""
    simple = {f"s{i}": draw(st.sampled_from(TYPES)) for i in range(draw(st.sampled_from([0, 1, 3, 63, 64, 70])))}
    multi = {f"a{i}": draw(st.sampled_from(COMPLEX)) for i in range(draw(st.integers(0, 2)))}
    keys = [draw(st.sampled_from(TYPES)) for _ in range(draw(st.sampled_from([0, 1, 2, 31, 32, 33, 65])))]
    columns = {"p": Column("p", "partition_key", "int", 0)}
    columns |= {f"c{i}": Column(f"c{i}", "clustering", kind, i) for i, kind in enumerate(keys)}
    columns |= {name: Column(name, "regular", kind) for name, kind in (simple | multi).items()}
    columns |= {name: Column(f"{name}", "static", "text") for name in ("t",)}
    dropped = {"s0": DroppedColumn("s0", "static", "int", 5)}
    table = Table("k", "any", UUID(int=77), columns, dropped)
    found = []
    for _ in range(draw(st.integers(1, 3))):
        chosen = draw(st.sets(st.sampled_from(sorted(simple)), max_size=70)) if simple else set()
        cells = [
            Cell(name, draw(st.integers(-9, 9)), b"" if draw(st.booleans()) else bytes(FIXED[simple[name]] or 3)) for name in sorted(chosen)
        ]
        values = [draw(st.sampled_from([None, b"", b"v" * (FIXED[kind] or 200)])) for kind in keys]
        more = draw(rows(clustering=tuple(values), simple={}, complex_=sorted(multi)))
        found.append(replace(more, cells=(*cells, *more.cells)))
    static = draw(st.none() | st.just(Row(None, cells=(Cell("s0", 3, b"1234"), Cell("t", 4, b"")))))
    update = PartitionUpdate(table.id, draw(st.binary(max_size=300)), draw(st.none() | deletions), static, tuple(found))
    return Schema(tables={table.id: table, TTL_TABLE.id: TTL_TABLE}), Mutation((update,))


@settings(max_examples=examples(100))
@given(any_mutations())
def test_any_table(given_: tuple[Schema, Mutation]) -> None:
    schema, mutation = given_
    (chunk,) = both([encode_mutation(mutation, schema)], schema, version=8)
    assert unflatten(chunk)[0][1] == mutation


@settings(max_examples=examples(60), suppress_health_check=[HealthCheck.filter_too_much])
@given(st.lists(updates(), max_size=4))
def test_flatten_and_back(found: list[PartitionUpdate]) -> None:
    pairs = [(i, Mutation((update, update))) for i, update in enumerate(found)]
    assert unflatten(flatten(pairs, Dictionaries.of(SCHEMA))) == pairs


def test_the_recorded_ring(tmp_path: Path) -> None:
    """All that a node of the recording wrote, system tables and schema changes included."""
    recording = Recording.open()
    folder = recording.stage(tmp_path)[recording.nodes[0].host_id]
    scans = [scan(path.read_bytes(), name=path.name) for path in sorted(folder.glob("*.log"))]
    learner = SchemaLearner()
    for scanned in scans:
        learn(scanned, learner)
    seen: Counter[str] = Counter()
    for scanned in scans:
        for chunk in both_of(scanned.image, scanned.frames, learner.schema(), version=7, chunk_bytes=100_000):
            seen += Counter(dict(zip(("updates", "rows", "cells", "complex", "ranges"), (b.num_rows for b in batches(chunk)), strict=True)))
    assert min(seen.values()) > 0
    assert len(seen) == 5
    assert seen["cells"] > 5_000


# --- schema


def test_unknown_tables_and_columns_are_told_apart() -> None:
    columns = {name: column for name, column in STATICS_TABLE.columns.items() if name != "w"}
    schema = Schema(tables={TTL_TABLE.id: TTL_TABLE, STATICS_TABLE.id: replace(STATICS_TABLE, columns=columns)})
    (chunk,) = both([TWO_TABLES, EVERYTHING, body_of(TTL_FRAME), body_of(RANGES_FRAME)], schema)
    assert [type(failure.error) for failure in chunk.failures] == [UnknownTable, UnknownColumn, UnknownTable]
    assert chunk.failures[0].frame.body_offset == 0
    assert chunk.updates.num_rows == 1


def test_no_schema_at_all() -> None:
    (chunk,) = both([EVERYTHING, b""], Schema())
    assert [type(failure.error) for failure in chunk.failures] == [UnknownTable, MalformedMutation]


def test_a_type_that_nobody_can_read_costs_only_its_table() -> None:
    broken = replace(TTL_TABLE, columns={**TTL_TABLE.columns, "v": Column("v", "regular", "list<")})
    schema = Schema(tables={**SCHEMA.tables, broken.id: broken})
    (chunk,) = both([body_of(RANGES_FRAME), body_of(TTL_FRAME)], schema)
    assert [failure.error.as_dict()["kind"] for failure in chunk.failures] == ["SchemaError"]
    assert chunk.ranges.num_rows == 1


@pytest.mark.parametrize("size", [1, 2, 100])
def test_a_table_is_found_among_many(size: int) -> None:
    tables = [replace(TTL_TABLE, id=UUID(int=(i * 0x9E3779B97F4A7C15F39CC0605CEDC835) % (1 << 128))) for i in range(size)]
    tables += [replace(table, id=UUID(int=table.id.int ^ 1)) for table in tables]
    schema = Schema(tables={table.id: table for table in tables})
    bodies = [b"\1" + table.id.bytes + body_of(TTL_FRAME)[17:] for table in [*tables, *tables[::-3]]]
    (chunk,) = both(bodies, schema)
    assert chunk.cells.num_rows == len(bodies)


def test_names_in_any_order_and_names_that_are_no_text() -> None:
    names = ["a", "aa", "b", "\udcff\udcfe", "é"]
    columns = {"p": TTL_TABLE.columns["p"], **{name: Column(name, "regular", "int") for name in names}}
    columns["\ud800"] = Column("\ud800", "regular", "int")
    table = replace(TTL_TABLE, columns=columns)
    schema = Schema(tables={table.id: table})
    head = b"\1" + table.id.bytes + b"\4" + bytes(4) + bytes.fromhex("10 00 00 00 05")
    raws = [raw for name in names if (raw := name_bytes(name)) is not None]
    orders = [raws, raws[::-1], raws[2:] + raws[:2]]
    row = b"\x20" + bytes(6) * 5
    bodies = [head + b"".join(bytes((len(raw),)) + raw for raw in order) + b"\1" + row + b"\1" for order in orders]
    (chunk,) = both(bodies, schema)
    assert [chunk.cells.column("column")[i].as_py() for i in range(15)] == [raw for order in orders for raw in order]
    assert name_bytes("\ud800") is None
    assert name_bytes("\udcc3\udca9") is None, "it reads as é"


def test_the_same_name_may_be_static_and_regular() -> None:
    table = replace(TTL_TABLE, columns={**TTL_TABLE.columns, "s": Column("s", "static", "text")})
    table = replace(table, dropped_columns={"s": DroppedColumn("s", "regular", "int", 1), "v": DroppedColumn("v", "regular", "text", 1)})
    schema = Schema(tables={table.id: table})
    row, static = Row((), cells=(Cell("s", 5, b"1234"), Cell("v", 5, b"1234"))), Row(None, cells=(Cell("s", 5, b"longer than int"),))
    mutation = Mutation((PartitionUpdate(table.id, b"k", None, static, (row,)),))
    (chunk,) = both([encode_mutation(mutation, schema)], schema)
    assert unflatten(chunk)[0][1] == mutation


# --- chunks and places


@pytest.mark.parametrize(
    ("lengths", "size", "expected"),
    [
        ([], 10, []),
        ([3, 3, 3], 10, [(0, 3)]),
        ([5, 5, 1], 10, [(0, 2), (2, 3)]),
        ([11, 1, 30, 1], 10, [(0, 1), (1, 2), (2, 3), (3, 4)]),
        ([0, 0, 10, 0, 1], 10, [(0, 4), (4, 5)]),
    ],
)
def test_chunks(lengths: list[int], size: int, expected: list[tuple[int, int]]) -> None:
    assert list(chunks(lengths, size)) == expected


@pytest.mark.parametrize("chunk_bytes", [1, 200, 1000, 1 << 20])
def test_a_chunk_is_complete_in_itself(chunk_bytes: int) -> None:
    bodies = [body for _, body in BODIES] * 3
    decoded = both(bodies, chunk_bytes=chunk_bytes)
    assert len(decoded) == len(list(chunks([len(body) for body in bodies], chunk_bytes)))


def test_a_segment_file(tmp_path: Path) -> None:
    path = tmp_path / "CommitLog-7-5.log"
    path.write_bytes(encode_segment(5, 7, [EVERYTHING, body_of(TTL_FRAME)] * 40, per_section=7, size=30_000))
    scanned = scan(mapped(path), name=path.name)
    assert len(scanned.frames) == 80
    for engine in ENGINES:
        decoded = list(decode_segment(scanned, SCHEMA, engine=engine, chunk_bytes=1000))
        assert len(decoded) > 10
        assert sum(chunk.updates.num_rows for chunk in decoded) == 120
    (tmp_path / "empty").touch()
    assert mapped(tmp_path / "empty") == b""


def test_frames_of_a_scan_are_made_when_asked_for() -> None:
    content = encode_segment(5, 7, [EVERYTHING] * 5)
    lazy, made = (scan(content, engine=engine).frames for engine in ("numba", "python"))
    assert lazy == made
    assert made == lazy
    assert (lazy[0], lazy[-1], len(lazy), list(lazy)) == (made[0], made[-1], 5, made)
    assert lazy[1:4:2] == made[1:4:2]
    assert lazy != made[1:]
    for part in (slice(1, 4), slice(None, None, -2)):
        (chunk,) = decode(content, lazy[part], SCHEMA, version=7, engine="numba")
        assert chunk.updates.column("position").to_pylist()[::2] == [frame.position for frame in made[part]]
    with pytest.raises(IndexError):
        lazy[5]


@pytest.mark.parametrize("engine", ENGINES)
def test_no_frames(engine: Engine) -> None:
    assert list(decode(b"", [], SCHEMA, version=7, engine=engine)) == []


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize(("offset", "length"), [(0, 11), (10, 1), (11, 0), (-1, 1), (5, -1), (2**62, 2**62)])
def test_frames_of_another_image_are_refused(engine: Engine, offset: int, length: int) -> None:
    with pytest.raises(CorruptFrame, match="out of the 10 bytes"):
        list(decode(bytes(10), [Frame(0, 0, offset, length)], SCHEMA, version=7, engine=engine))


@pytest.mark.parametrize("engine", ENGINES)
def test_what_offsets_of_32_bits_cannot_count_is_refused(engine: Engine, tmp_path: Path) -> None:
    path = tmp_path / "sparse"
    with path.open("wb") as file:
        file.truncate(1 << 31)
    with pytest.raises(CorruptFrame, match="cannot count"):
        list(decode(mapped(path), [Frame(0, 0, 0, 1 << 31)], SCHEMA, version=7, engine=engine))
    # As much as that in many frames is more than one chunk, whatever is asked for.
    assert list(chunks([MOST_BYTES, 1, MOST_BYTES - 1, 1], 1 << 40)) == [(0, 1), (1, 3), (3, 4)]


def test_more_entries_than_offsets_can_count_are_refused() -> None:
    decoder = mutation_buffers._Decoder(b"", mutation_buffers.places([]), SCHEMA, 7)
    decoder.room[0] = MOST_BYTES // 2 + 1
    decoder._make_room(0)
    assert decoder.room[0] == MOST_BYTES
    with pytest.raises(CorruptFrame, match="cannot count"):
        decoder._make_room(0)


def test_frames_in_uneven_or_narrow_columns() -> None:
    image, frames = image_of([EVERYTHING, body_of(TTL_FRAME)])
    columns: list[Any] = [np.array([frame[i] for frame in frames], np.int32) for i in (0, 2, 3)]
    narrow, wide = (next(decode(image, given_, SCHEMA, version=7, engine="numba")) for given_ in (Frames(*columns), frames))
    assert_equal(narrow, wide)
    with pytest.raises(ValueError, match="1 positions, 2 offsets"):
        list(decode(image, Frames(columns[0][:1], *columns[1:]), SCHEMA, version=7, engine="numba"))


@pytest.mark.parametrize("dimension", [-1, 1 << 28, 1 << 29])
def test_no_length_of_the_schema_sends_the_decoder_astray(dimension: int) -> None:
    """Of a column and of a clustering: a text of the schema may say anything."""
    kind = f"'org.apache.cassandra.db.marshal.VectorType(org.apache.cassandra.db.marshal.DoubleType , {dimension})'"
    columns = {**TTL_TABLE.columns, "c": Column("c", "clustering", kind, position=0), "v": Column("v", "regular", kind)}
    table = replace(TTL_TABLE, columns=columns)
    head = b"\1" + table.id.bytes + bytes.fromhex("04 00000001 10 00 00 00 01 01 76 01")
    rows_ = (bytes.fromhex(text) for text in ("24 00 01 78 00 01 79 01", "24 00 01 78 00 ff", "24 01 00 04 01", "24 00 00 00 00 01", "24"))
    both([head + row for row in rows_], Schema(tables={table.id: table}))
    lengths = mutation_buffers._lengths([None, -4, 0, 7, 1 << 40])
    assert lengths.tolist() == [-1, 0, 0, 7, MOST_BYTES]


def test_engines_that_disagree_are_a_bug(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(mutation_buffers, "decode_mutation", lambda *_, **__: Mutation(()))
    with pytest.raises(RuntimeError, match="the Python decoder does not"):
        list(decode(b"x", [Frame(13, 0, 0, 1)], SCHEMA, version=7, engine="numba"))


# --- what stands where


@pytest.mark.parametrize("engine", ENGINES)
def test_columns_say_what_they_should(engine: Engine) -> None:
    image, frames = image_of([EVERYTHING])
    (chunk,) = decode(image, frames, SCHEMA, version=8, engine=engine)
    assert chunk.updates.to_pylist() == [
        {
            "position": len(EVERYTHING) + 4,
            "ordinal": 0,
            "flags": None,
            "table": STATICS_TABLE.id.bytes,
            "epoch": None,
            "key": b"key",
            "deletion_timestamp": 3,
            "deletion_time": 4,
        },
        {
            "position": len(EVERYTHING) + 4,
            "ordinal": 1,
            "flags": None,
            "table": TTL_TABLE.id.bytes,
            "epoch": None,
            "key": b"key",
            "deletion_timestamp": None,
            "deletion_time": None,
        },
    ]
    assert [row["clustering"] for row in chunk.rows.to_pylist()] == [None, [bytes(4)], [b"\0\0\0\3"]]
    assert [row["liveness_ttl"] for row in chunk.rows.to_pylist()] == [0, 60, 0]
    assert chunk.cells.num_rows == 2 + 8 + 1
    by_column = {(item["row"], item["column"], item["path"]): item for item in chunk.cells.to_pylist()}
    assert by_column[1, b"w", None]["local_deletion_time"] == 1_700_000_001
    assert by_column[1, b"st", b""]["value"] == b""
    assert by_column[1, "ünï".encode(), None]["timestamp"] == -1
    assert [(item["row"], item["column"], item["deletion_timestamp"]) for item in chunk.complex_deletions.to_pylist()] == [
        (0, b"sm", 5),
        (1, b"li", 5),
        (1, b"u", 6),
    ]
    assert [(item["start"], item["start_inclusive"], item["end"], item["end_inclusive"]) for item in chunk.ranges.to_pylist()] == [
        ([b"\0\0\0\1"], False, [b"\0\0\0\2"], True)
    ]


def test_a_complex_deletion_that_deletes_nothing_is_left_out() -> None:
    row = Row((bytes(4),), complex_deletions={"m": DeletionTime(NO_TIMESTAMP, 1), "st": DeletionTime(5, 6)})
    (chunk,) = both([encode_mutation(Mutation((PartitionUpdate(STATICS_TABLE.id, b"k", rows=(row,)),)), SCHEMA)])
    assert chunk.complex_deletions.column("column").to_pylist() == [b"st"]


def test_schemas_hold_no_null_where_none_is_meant() -> None:
    nullable = {field.name for schema in SCHEMAS for field in schema if field.nullable}
    assert nullable == {
        "deletion_timestamp", "deletion_time", "clustering", "liveness_timestamp", "liveness_expires_at", "local_deletion_time", "path",
        "epoch", "flags",
    }  # fmt: skip
    assert all(not schema.field("deletion_timestamp").nullable for schema in (COMPLEX_DELETIONS, RANGES))
    assert CELLS.field("value").type == pa.binary()


def test_static_row_example() -> None:
    (chunk,) = both([STATICS_BODY])
    assert chunk.rows.column("static").to_pylist() == [True]


def test_a_base_of_no_timestamp_is_the_epoch() -> None:
    bases = write_unsigned(-(2**63) - 1_442_880_000_000_000) + b"\0\0"
    body = b"\1" + TTL_TABLE.id.bytes + b"\4" + bytes(4) + b"\x10" + bases + b"\0\1" + bytes.fromhex("24 07 01")
    (chunk,) = both([body])
    assert chunk.rows["liveness_timestamp"].to_pylist() == [1_442_880_000_000_007]


def test_what_was_dropped_is_told_by_the_log() -> None:
    """The log has `dropped_time` in ms, which is no measure for cells of the same one."""
    at = 1_700_000_000_000_000
    columns = {name: Column(name, "regular", kind) for name, kind in (("v", "int"), ("w", "text"))}
    table = Table("k", "t", UUID(int=5), {"p": Column("p", "partition_key", "int", 0), **columns})
    learner = SchemaLearner()
    learner.apply(create_table(table, at))
    row = Row((), Liveness(at + 10), cells=(Cell("v", at + 10, bytes.fromhex("01020304")), Cell("w", at + 10, b"hello")))
    mutation = Mutation((PartitionUpdate(table.id, bytes(4), rows=(row,)),))
    body = encode_mutation(mutation, learner.schema())
    drop = dropped_row("t", "v", at + 100, "regular", "int", (at + 100) // 1000)
    learner.apply(change("k", columns=[deleted_row(("t", "v"), at + 100)], dropped_columns=[drop]))
    learner.apply(change("k", columns=[column_row("t", "v", at + 200, "regular", "varint")]))
    (chunk,) = both([body], learner.schema())
    assert [each for _, each in unflatten(chunk)] == [mutation]


@pytest.mark.parametrize("back", ["varint", "blob", "int"])
@pytest.mark.parametrize("kind", ["int", "text", "bigint"])
def test_a_column_that_has_come_back_as_another_type(kind: str, back: str) -> None:
    """Cells up to the drop are of the type in force then, later ones of that in force since, also beside each
    other in one mutation."""
    dropped = 1_700_000_000_000_100
    keys = {"p": Column("p", "partition_key", "int", 0), "c": Column("c", "clustering", "int", 0), "w": Column("w", "regular", "text")}
    old = Table("k", "t", UUID(int=5), {**keys, "v": Column("v", "regular", kind)})
    gone = {"v": DroppedColumn("v", "regular", kind, dropped)}
    new = replace(old, columns={**keys, "v": Column("v", "regular", back)}, dropped_columns=gone)
    sizes = {"int": 4, "bigint": 8}
    values = [
        number.to_bytes(8, "big", signed=True)[-sizes.get(kind, 8) :] for number in (5, 1, 0x03010203, -1, 70_000, 0, 2**24, 0x7F000001)
    ]

    def mutation(value: bytes, at: int) -> Mutation:
        row = Row((bytes(4),), Liveness(at), cells=(Cell("v", at, value), Cell("w", at + 1_000, b"hello")))
        return Mutation((PartitionUpdate(old.id, bytes(4), rows=(row,)),))

    before = [mutation(value, at) for value in values for at in (dropped - 90, dropped)]
    after = [mutation(value[-sizes.get(back, 1) :], dropped + 1) for value in values]
    schema = Schema(tables={new.id: new})
    bodies = [encode_mutation(each, Schema(tables={old.id: old})) for each in before]
    bodies += [encode_mutation(each, schema) for each in after]
    (chunk,) = both(bodies, schema)
    assert [each for _, each in unflatten(chunk)] == before + after
    # The state encodes what it has in the same way.
    assert bodies == [encode_mutation(each, schema) for each in before + after]


@pytest.mark.parametrize("back", ["varint", "int"])
@pytest.mark.parametrize("kind", ["int", "text"])
def test_an_epoch_says_which_type_a_column_had(kind: str, back: str) -> None:
    """Whatever timestamps the client gave: `USING TIMESTAMP`, and a clock that is wrong."""
    dropped = 1_700_000_000_000_100
    keys = {"p": Column("p", "partition_key", "int", 0)}
    old = Table("k", "t", UUID(int=5), {**keys, "v": Column("v", "regular", kind)})
    gone = {"v": DroppedColumn("v", "regular", kind, dropped, dropped, said_epoch=7)}
    new = replace(old, columns={**keys, "v": Column("v", "regular", back)}, dropped_columns=gone)

    def mutation(value: bytes, at: int, epoch: int) -> Mutation:
        row = Row((), Liveness(at), cells=(Cell("v", at, value),))
        return Mutation((PartitionUpdate(old.id, bytes(4), rows=(row,), epoch=epoch),), 0)

    times = (dropped - 90, dropped, dropped + 1, dropped + 10**9)
    before = [mutation(bytes(4), at, epoch) for at in times for epoch in (0, 6)]
    after = [mutation(bytes(4), at, epoch) for at in times for epoch in (7, 9, 2**62)]
    bodies = [encode_mutation(each, Schema(tables={old.id: old}), version=9) for each in before]
    bodies += [encode_mutation(each, Schema(tables={new.id: replace(new, dropped_columns={})}), version=9) for each in after]
    schema = Schema(tables={new.id: new})
    (chunk,) = both(bodies, schema, version=9)
    assert [each for _, each in unflatten(chunk)] == before + after
    assert bodies == [encode_mutation(each, schema, version=9) for each in before + after]


@pytest.mark.parametrize("version", [7, 8, 9])
@pytest.mark.parametrize(("kind", "back"), [("int", "text"), ("text", "int"), ("bigint", "int"), ("int", "varint")])
def test_timestamps_that_a_client_has_chosen_do_not_hide_how_a_mutation_was_written(kind: str, back: str, version: int) -> None:
    """A table that was dropped and created again with its id, rows of before with a time in the future, and of after
    with one in the past; of version 9 where the epoch of the drop is not known."""
    dropped = 1_700_000_000_000_100
    keys = {"p": Column("p", "partition_key", "int", 0)}
    old = Table("k", "t", UUID(int=5), {**keys, "v": Column("v", "regular", kind), "w": Column("w", "static", "text")})
    gone = {"v": DroppedColumn("v", "regular", kind, dropped, dropped)}
    new = replace(old, columns={**old.columns, "v": Column("v", "regular", back)})
    values = {"int": bytes.fromhex("000000ff"), "bigint": bytes.fromhex("00000000000000fe"), "text": b"some text", "varint": b"\x7f\x01"}

    def mutation(value: bytes, *times: int) -> Mutation:
        updates = tuple(PartitionUpdate(old.id, bytes(4), rows=(Row((), cells=(Cell("v", at, value),)),), epoch=_epoch) for at in times)
        return Mutation(updates, None if version < 9 else 0)

    _epoch = None if version < 9 else 3
    before = [mutation(values[kind], *times) for times in ((dropped + 1,), (dropped - 1, dropped + 10**9), (dropped + 1, dropped + 2))]
    after = [mutation(values[back], *times) for times in ((dropped,), (1000, dropped + 1), (dropped - 1, 1000))]
    bodies = [encode_mutation(each, Schema(tables={old.id: old}), version=version) for each in before]
    bodies += [encode_mutation(each, Schema(tables={new.id: new}), version=version) for each in after]
    schema = Schema(tables={new.id: replace(new, dropped_columns=gone)})
    (chunk,) = both(bodies, schema, version=version)
    assert not chunk.failures
    assert [each for _, each in unflatten(chunk)] == before + after


def test_what_fits_no_layout_is_not_decoded() -> None:
    """The error is that of the layout by timestamps."""
    dropped = 1_700_000_000_000_100
    keys = {"p": Column("p", "partition_key", "int", 0)}
    old = Table("k", "t", UUID(int=5), {**keys, "v": Column("v", "regular", "int")})
    gone = {"v": DroppedColumn("v", "regular", "int", dropped, dropped)}
    new = replace(old, columns={**keys, "v": Column("v", "regular", "text")}, dropped_columns=gone)
    row = Row((), cells=(Cell("v", dropped + 1, bytes.fromhex("000000ff")),))
    body = encode_mutation(Mutation((PartitionUpdate(old.id, bytes(4), rows=(row,)),)), Schema(tables={old.id: old}))
    (chunk,) = both([body[:-2], body, body[:-1] + b"\2", body], Schema(tables={new.id: new}))
    assert len(chunk.failures) == 2
    (alone,) = both([body[:-2]], Schema(tables={new.id: replace(new, dropped_columns={})}))
    assert told(chunk.failures[0].error) == told(alone.failures[0].error)
    assert chunk.updates.num_rows == 2
