"""Bodies written by Cassandra, deletion times of all versions, and invalid bodies."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import replace
from uuid import UUID

import pytest

from tests.cassandra.commitlog.examples import (
    COUNTER_TABLE,
    EPOCH_FRAME,
    EPOCH_TABLE,
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
)
from writetime.cassandra.commitlog.encode import encode_mutation
from writetime.cassandra.commitlog.mutation import INVALID_DELETION_TIME, decode_mutation, decode_update, without_epochs
from writetime.cassandra.model import (
    NO_DELETION_TIME,
    Bound,
    Cell,
    DeletionTime,
    Liveness,
    Mutation,
    PartitionUpdate,
    RangeTombstone,
    Row,
)
from writetime.cassandra.schema.model import Schema
from writetime.cassandra.types.types import parse_type
from writetime.cassandra.types.vint import write_unsigned
from writetime.errors import MalformedMutation, UnknownColumn, UnknownTable, WritetimeError

INSERTED = 1_795_248_808_466_317
EXPIRES = 1_795_335_208
DELETED = DeletionTime(1_700_000_000_000_012, 1_442_880_000 + 0x1500B8A7)

REAL: list[tuple[str, bytes, PartitionUpdate]] = [
    (
        "an insert that expires",
        body_of(TTL_FRAME),
        PartitionUpdate(
            TTL_TABLE.id,
            bytes(4),
            rows=(Row((), Liveness(INSERTED, 86_400, EXPIRES), cells=(Cell("v", INSERTED, bytes(4), None, 86_400, EXPIRES),)),),
        ),
    ),
    (
        "a range tombstone",
        body_of(RANGES_FRAME),
        PartitionUpdate(
            RANGES_TABLE.id,
            b"\0\0\0\2",
            range_tombstones=(RangeTombstone(Bound((b"\0\0\0\3",), False), Bound((b"\0\0\0\4",), True), DELETED),),
        ),
    ),
    (
        "a static row with a whole map deleted",
        STATICS_BODY,
        PartitionUpdate(
            STATICS_TABLE.id,
            bytes.fromhex("0001790000040000000100"),
            static_row=Row(
                None,
                cells=(Cell("s", 1_700_000_000_000_010, b"", None, 0, 1_442_880_000 + 0x1500B8A6),),
                complex_deletions={"sm": DeletionTime(1_700_000_000_000_010, 1_442_880_000 + 0x1500B8A6)},
            ),
        ),
    ),
]


@pytest.mark.parametrize(("body", "expected"), [case[1:] for case in REAL], ids=[case[0] for case in REAL])
def test_real_bytes(body: bytes, expected: PartitionUpdate) -> None:
    assert decode_mutation(body, SCHEMA) == Mutation((expected,))
    assert encode_mutation(Mutation((expected,)), SCHEMA) == body


def test_counters_keep_their_contexts() -> None:
    shard = bytes.fromhex("00018000949499a8c8464040807200e97b4e9b50000660c4ef80d818")
    shards = [shard + count.to_bytes(8, "big", signed=True) for count in (92, -3)]
    row = bytes.fromhex("20 00 01 63 00 00 24") + shards[0] + bytes.fromhex("00 00 24") + shards[1]
    body = b"\1" + COUNTER_TABLE.id.bytes + bytes.fromhex("04 00000001 10 00 00 00 02 01 6e 02 6e32 01") + row + b"\1"
    (update,) = decode_mutation(body, SCHEMA).updates
    assert update.rows[0].clustering == (b"c",)
    assert [(cell.column, cell.value) for cell in update.rows[0].cells] == [("n", shards[0]), ("n2", shards[1])]
    assert update.rows[0].liveness is None
    assert [parse_type("counter", "k", {}).decode(cell.value) for cell in update.rows[0].cells] == [92, -3]


def test_vectors_of_fixed_length_have_no_length() -> None:
    cells = bytes.fromhex("08 3f000000 3f800000 40000000 08 00000001 00000000 00000003 00000004 08 04 00 02 c3a9")
    body = b"\1" + VECTOR_TABLE.id.bytes + bytes.fromhex("04 00000001 10 00 00 00 03 01 66 01 6e 01 74 01 24 00") + cells + b"\1"
    (update,) = decode_mutation(body, SCHEMA, version=8).updates
    values = {c.column: parse_type(VECTOR_TABLE.columns[c.column].type, "k", {}).decode(c.value) for c in update.rows[0].cells}
    assert values == {"f": [0.5, 1.0, 2.0], "n": [[1, 0], [3, 4]], "t": ["", "é"]}


def test_a_batch_over_two_tables() -> None:
    one, two = body_of(TTL_FRAME), body_of(RANGES_FRAME)
    mutation = decode_mutation(b"\2" + one[1:] + two[1:], SCHEMA)
    assert [update.table_id for update in mutation.updates] == [TTL_TABLE.id, RANGES_TABLE.id]


def test_a_mutation_of_version_9_has_flags_and_epochs() -> None:
    mutation = decode_mutation(body_of(EPOCH_FRAME), SCHEMA, version=9)
    (update,) = mutation.updates
    assert (mutation.flags, update.table_id, update.epoch, update.key) == (0, EPOCH_TABLE.id, 6, b"\0\0\0\1")
    assert [(cell.column, cell.value) for cell in update.rows[0].cells] == [("v", b"P_1")]
    assert encode_mutation(mutation, SCHEMA, version=9) == body_of(EPOCH_FRAME)


def test_without_flags_and_epochs_it_is_one_of_version_8() -> None:
    body = body_of(EPOCH_FRAME)
    mutation = decode_mutation(without_epochs(body, SCHEMA, version=9), SCHEMA, version=8)
    assert mutation == Mutation((replace(decode_mutation(body, SCHEMA, version=9).updates[0], epoch=None),))
    assert encode_mutation(mutation, SCHEMA, version=9) == body[:18] + b"\0" + body[19:]


def test_each_update_of_a_batch_has_an_epoch_and_so_has_an_empty_one() -> None:
    body = body_of(EPOCH_FRAME)
    empty = TTL_TABLE.id.bytes + b"\xc1\x51\x80" + b"\4" + b"\0\0\0\1" + b"\1"
    mutation = decode_mutation(b"\1\2" + empty + body[2:], SCHEMA, version=9)
    assert (mutation.flags, [update.epoch for update in mutation.updates]) == (1, [86_400, 6])
    assert mutation.updates[0].is_empty
    assert encode_mutation(mutation, SCHEMA, version=9) == b"\1\2" + empty + body[2:]
    before = without_epochs(b"\1\2" + empty + body[2:], SCHEMA, version=9)
    assert before == encode_mutation(mutation, SCHEMA, version=8) == without_epochs(before, SCHEMA, version=8)


@pytest.mark.parametrize("epoch", [0, 127, 128, 2**63 - 1, -1, -(2**63)])
def test_epochs_of_any_size(epoch: int) -> None:
    mutation = Mutation((PartitionUpdate(EPOCH_TABLE.id, b"\0\0\0\1", epoch=epoch),), 0xFF)
    assert decode_mutation(encode_mutation(mutation, SCHEMA, version=9), SCHEMA, version=9) == mutation


def test_a_mutation_of_version_9_that_is_cut_short() -> None:
    body = body_of(EPOCH_FRAME)
    for cut in range(len(body)):
        with pytest.raises(MalformedMutation):
            decode_mutation(body[:cut], SCHEMA, version=9)
    with pytest.raises(MalformedMutation, match="0 partition updates"):
        decode_mutation(b"\0\0" + body[2:], SCHEMA, version=9)


def test_an_empty_update() -> None:
    body = b"\1" + TTL_TABLE.id.bytes + b"\4" + bytes(4) + b"\1"
    assert decode_mutation(body, SCHEMA) == Mutation((PartitionUpdate(TTL_TABLE.id, bytes(4)),))


def test_boundaries_are_split_into_pairs() -> None:
    markers = bytes.fromhex(
        "02 01 0001 00 00000001 00 00"  # [1, deleted at 0
        "02 02 0001 00 00000003 00 00 05 00"  # 3): [3, deleted at 5
        "02 05 0001 00 00000007 05 00 00 00"  # 7]: (7, deleted at 0
        "02 06 0000 00 00"  # the end
    )
    body = b"\1" + RANGES_TABLE.id.bytes + bytes.fromhex("04 00000002 10 00 00 00 00 00") + markers + b"\1"
    (update,) = decode_mutation(body, SCHEMA).updates
    at_zero, at_five = DeletionTime(1_442_880_000_000_000, 1_442_880_000), DeletionTime(1_442_880_000_000_005, 1_442_880_000)
    assert update.range_tombstones == (
        RangeTombstone(Bound((b"\0\0\0\1",), True), Bound((b"\0\0\0\3",), False), at_zero),
        RangeTombstone(Bound((b"\0\0\0\3",), True), Bound((b"\0\0\0\7",), True), at_five),
        RangeTombstone(Bound((b"\0\0\0\7",), False), Bound((), True), at_zero),
    )


CLUSTERINGS: list[tuple[bytes | None, ...]] = [
    tuple(f"{i:02d}".encode() for i in range(40)),
    tuple(None if i % 3 == 0 else b"" if i % 3 == 1 else b"x" for i in range(40)),
    (None,) * 40,
    (b"",) * 40,
]


@pytest.mark.parametrize("clustering", CLUSTERINGS, ids=["values", "mixed", "nulls", "empties"])
def test_more_clustering_columns_than_a_header_holds(clustering: tuple[bytes | None, ...]) -> None:
    update = PartitionUpdate(WIDE_TABLE.id, b"k", rows=(Row(clustering, Liveness(5)),))
    assert decode_mutation(encode_mutation(Mutation((update,)), SCHEMA), SCHEMA) == Mutation((update,))


@pytest.mark.parametrize("present", [1, 2, 30, 31, 39, 40, 41, 62, 63, 64, 79])
@pytest.mark.parametrize("total", [2, 63, 64, 80])
def test_column_subsets(present: int, total: int) -> None:
    names = [f"v{i:02d}" for i in range(total)]
    ck = tuple(b"c" for _ in range(40))
    full = Row(ck, cells=tuple(Cell(name, 5, bytes(4)) for name in names))
    for chosen in (names[:present], names[-present:], names[::2][:present]):
        partial = Row(ck, cells=tuple(Cell(name, 6, bytes(4)) for name in chosen))
        mutation = Mutation((PartitionUpdate(WIDE_TABLE.id, b"k", rows=(full, partial)),))
        assert decode_mutation(encode_mutation(mutation, SCHEMA), SCHEMA) == mutation


BASE = 1_442_880_000
LATE = 2_425_969_339
DELETION_TIMES: list[tuple[str, int, int, int, int, int]] = [
    # what, version, difference of the base, difference of the time, ttl, expected
    ("now", 7, 352_455_208, 0, 86_400, BASE + 352_455_208),
    ("past 2038 from a base of now, read as v7", 7, 352_455_208, 700_000_000, 86_400, BASE + 1_052_455_208),
    ("past 2038, version 8", 8, 352_455_208, 700_000_000, 86_400, BASE + 1_052_455_208),
    ("a base past 2038, version 8", 8, LATE - BASE, 0, 86_400, LATE),
    ("a base past 2038, before version 8: overflown", 7, LATE - BASE, 0, 86_400, INVALID_DELETION_TIME),
    ("none at all, version 8", 8, 0xFFFFFFFF - BASE, 0, 86_400, NO_DELETION_TIME),
    ("earlier than its ttl", 7, -BASE, 100, 86_400, INVALID_DELETION_TIME),
    ("the mark of a view has any time", 7, -BASE, 100, 0x7FFFFFFF, 100),
]


@pytest.mark.parametrize(
    ("version", "base", "delta", "ttl", "expected"), [case[1:] for case in DELETION_TIMES], ids=[case[0] for case in DELETION_TIMES]
)
def test_deletion_times(version: int, base: int, delta: int, ttl: int, expected: int) -> None:
    bases = write_unsigned(0) + write_unsigned(base) + write_unsigned(ttl)
    row = bytes.fromhex("2c 00 00") + write_unsigned(delta)
    body = b"\1" + TTL_TABLE.id.bytes + b"\4" + bytes(4) + b"\x10" + bases + b"\0\1" + row + b"\1"
    (update,) = decode_mutation(body, SCHEMA, version=version).updates
    assert update.rows[0].liveness == Liveness(1_442_880_000_000_000, ttl, expected)


def test_a_base_of_no_timestamp_is_the_epoch() -> None:
    """Cassandra's reader does this. Neither its writer nor ours uses such a base, even if a deletion has that
    timestamp."""
    bases = write_unsigned(-(2**63) - 1_442_880_000_000_000) + b"\0\0"
    body = b"\1" + TTL_TABLE.id.bytes + b"\4" + bytes(4) + b"\x10" + bases + b"\0\1" + bytes.fromhex("24 07 01")
    (update,) = decode_mutation(body, SCHEMA).updates
    assert update.rows[0].liveness == Liveness(1_442_880_000_000_007)
    nothing = PartitionUpdate(TTL_TABLE.id, bytes(4), DeletionTime(-(2**63), 7), rows=(Row((), Liveness(5)),))
    written = encode_mutation(Mutation((nothing,)), SCHEMA)
    assert decode_mutation(written, SCHEMA).updates == (nothing,)
    assert written[23:24] == b"\0"


def test_an_unknown_table_is_named() -> None:
    with pytest.raises(UnknownTable) as raised:
        decode_mutation(body_of(TTL_FRAME), Schema())
    assert raised.value.table_id == str(TTL_TABLE.id)
    assert raised.value.position == 1


def test_an_unknown_table_in_second_place() -> None:
    body = b"\2" + body_of(TTL_FRAME)[1:] + body_of(RANGES_FRAME)[1:]
    with pytest.raises(UnknownTable) as raised:
        decode_mutation(body, Schema(tables={TTL_TABLE.id: TTL_TABLE}))
    assert raised.value.table_id == str(RANGES_TABLE.id)


def test_an_unknown_column_is_named() -> None:
    columns = {name: column for name, column in TTL_TABLE.columns.items() if name != "v"}
    with pytest.raises(UnknownColumn, match="'v'"):
        decode_mutation(body_of(TTL_FRAME), Schema(tables={TTL_TABLE.id: replace(TTL_TABLE, columns=columns)}))


def test_a_key_column_is_no_column_of_rows() -> None:
    columns = {**TTL_TABLE.columns, "v": replace(TTL_TABLE.columns["v"], kind="clustering", position=0)}
    with pytest.raises(UnknownColumn):
        decode_mutation(body_of(TTL_FRAME), Schema(tables={TTL_TABLE.id: replace(TTL_TABLE, columns=columns)}))


def test_dropped_columns_decode_by_their_type() -> None:
    update = PartitionUpdate(STATICS_TABLE.id, b"k", rows=(Row((bytes(4),), cells=(Cell("gone", 5, b"\0\0\0\7"),)),))
    assert decode_mutation(encode_mutation(Mutation((update,)), SCHEMA), SCHEMA).updates == (update,)


@pytest.mark.parametrize("body", [body_of(TTL_FRAME), body_of(RANGES_FRAME), STATICS_BODY], ids=["ttl", "ranges", "statics"])
def test_every_cut_is_noticed(body: bytes) -> None:
    for cut in range(len(body)):
        with pytest.raises(WritetimeError):
            decode_mutation(body[:cut], SCHEMA)
    with pytest.raises(MalformedMutation, match="left over"):
        decode_mutation(body + b"\0", SCHEMA)


@pytest.mark.parametrize("body", [body_of(TTL_FRAME), body_of(RANGES_FRAME), STATICS_BODY], ids=["ttl", "ranges", "statics"])
def test_flipped_bytes_raise_nothing_but_our_own_errors(body: bytes) -> None:
    for position in range(len(body)):
        for mask in (0x01, 0x08, 0x40, 0x80, 0xFF):
            changed = bytearray(body)
            changed[position] ^= mask
            with suppress(WritetimeError):
                assert decode_mutation(bytes(changed), SCHEMA).updates


ROWS = b"\1" + RANGES_TABLE.id.bytes + bytes.fromhex("04 00000002 10 00 00 00 00 00")
WRONG: list[tuple[str, bytes]] = [
    ("no update", b"\0"),
    ("more updates than bytes", b"\x7f" + body_of(TTL_FRAME)[1:]),
    ("a marker of no kind", ROWS + bytes.fromhex("02 03 0000 00 00 01")),
    ("a range that closes without opening", ROWS + bytes.fromhex("02 06 0000 00 00 01")),
    ("a range that opens twice", ROWS + bytes.fromhex("02 01 0000 00 00 02 01 0000 00 00 01")),
    ("a range that never closes", ROWS + bytes.fromhex("02 01 0000 00 00 01")),
    ("a range whose ends differ", ROWS + bytes.fromhex("02 01 0000 00 00 02 06 0000 01 00 01")),
    ("a bound of too many values", ROWS + bytes.fromhex("02 01 0009 00 00 01")),
    ("a static row among rows", ROWS + bytes.fromhex("80 01 01")),
    ("columns that are not there", ROWS + bytes.fromhex("00 00 00000001 00000001 00 07 01")),
    ("a column twice", b"\1" + TTL_TABLE.id.bytes + b"\4" + bytes(4) + bytes.fromhex("10 00 00 00 02 01 76 01 76 00 01")),
    ("reversed", b"\1" + TTL_TABLE.id.bytes + b"\4" + bytes(4) + b"\2" + bytes(8)),
    ("a cell refers to no liveness", b"\1" + TTL_TABLE.id.bytes + b"\4" + bytes(4) + bytes.fromhex("10 00 00 00 01 01 76 01 20 0c 01")),
    ("a static row that is none", b"\1" + STATICS_TABLE.id.bytes + b"\4" + bytes(4) + bytes.fromhex("18 00 00 00 00 00 20 00 01")),
]


@pytest.mark.parametrize("body", [case[1] for case in WRONG], ids=[case[0] for case in WRONG])
def test_what_does_not_follow_the_grammar(body: bytes) -> None:
    with pytest.raises(MalformedMutation):
        decode_mutation(body, SCHEMA)


def test_names_that_are_no_text_survive() -> None:
    name = b"\xff\xfe".decode("utf-8", "surrogateescape")
    table = replace(TTL_TABLE, id=UUID(int=5), columns={**TTL_TABLE.columns, name: replace(TTL_TABLE.columns["v"], name=name)})
    schema = Schema(tables={table.id: table})
    mutation = Mutation((PartitionUpdate(table.id, b"k", rows=(Row((), cells=(Cell(name, 1, bytes(4)),)),)),))
    body = encode_mutation(mutation, schema)
    assert b"\2\xff\xfe" in body
    assert decode_mutation(body, schema) == mutation


def test_left_over_bytes_behind_stored_state() -> None:
    with pytest.raises(MalformedMutation, match="left over"):
        decode_update(body_of(TTL_FRAME)[1:] + b"\1", TTL_TABLE)


def test_a_table_that_changed_is_looked_at_anew() -> None:
    """The cached shape of a table belongs to one definition of it."""
    decode_mutation(body_of(TTL_FRAME), SCHEMA)
    altered = replace(TTL_TABLE, columns={**TTL_TABLE.columns, "v": replace(TTL_TABLE.columns["v"], type="text")})
    with pytest.raises(MalformedMutation):
        decode_mutation(body_of(TTL_FRAME), Schema(tables={altered.id: altered}))
    assert decode_mutation(body_of(TTL_FRAME), SCHEMA).updates
