"""Tables and bytes for the tests in this folder. Cassandra nodes wrote the bytes in hex."""

from __future__ import annotations

from uuid import UUID

from writetime.cassandra.commitlog.encode import encode_mutation, encode_segment
from writetime.cassandra.model import (
    Bound,
    Cell,
    DeletionTime,
    Liveness,
    Mutation,
    PartitionUpdate,
    RangeTombstone,
    Row,
)
from writetime.cassandra.schema.model import Column, DroppedColumn, Schema, Table

TTL_TABLE = Table(
    "k",
    "dttl",
    UUID("6cbda380-e583-11f1-817f-f173fd8e050e"),
    {"p": Column("p", "partition_key", "int", 0), "v": Column("v", "regular", "int")},
)
RANGES_TABLE = Table(
    "k",
    "rt",
    UUID("6c60b670-e583-11f1-817f-f173fd8e050e"),
    {
        "p": Column("p", "partition_key", "int", 0),
        "c1": Column("c1", "clustering", "int", 0),
        "c2": Column("c2", "clustering", "int", 1, descending=True),
        "c3": Column("c3", "clustering", "text", 2),
        "v": Column("v", "regular", "text"),
    },
)
STATICS_TABLE = Table(
    "k",
    "clust",
    UUID("6c514d20-e583-11f1-817f-f173fd8e050e"),
    {
        "a": Column("a", "partition_key", "text", 0),
        "b": Column("b", "partition_key", "int", 1),
        "c": Column("c", "clustering", "int", 0),
        "s": Column("s", "static", "text"),
        "sm": Column("sm", "static", "map<text, int>"),
        "li": Column("li", "regular", "list<int>"),
        "m": Column("m", "regular", "map<text, int>"),
        "st": Column("st", "regular", "set<text>"),
        "u": Column("u", "regular", "addr"),
        "v": Column("v", "regular", "text"),
        "w": Column("w", "regular", "bigint"),
        "ünï": Column("ünï", "regular", "int"),
    },
    dropped_columns={"gone": DroppedColumn("gone", "regular", "int", 1_700_000_000_000_000)},
)
COUNTER_TABLE = Table(
    "k",
    "ctr",
    UUID("6c8f0a90-e583-11f1-817f-f173fd8e050e"),
    {
        "p": Column("p", "partition_key", "int", 0),
        "c": Column("c", "clustering", "text", 0),
        "n": Column("n", "regular", "counter"),
        "n2": Column("n2", "regular", "counter"),
    },
    flags=frozenset({"compound", "counter"}),
)
VECTOR_TABLE = Table(
    "k",
    "vec",
    UUID("6c8f0a91-e583-11f1-817f-f173fd8e050e"),
    {
        "p": Column("p", "partition_key", "int", 0),
        "f": Column("f", "regular", "vector<float, 3>"),
        "t": Column("t", "regular", "vector<text, 2>"),
        "n": Column("n", "regular", "vector<vector<int, 2>, 2>"),
    },
)
WIDE_TABLE = Table(
    "k",
    "wide",
    UUID("6c8f0a92-e583-11f1-817f-f173fd8e050e"),
    {
        "p": Column("p", "partition_key", "int", 0),
        **{f"c{i:02d}": Column(f"c{i:02d}", "clustering", "text", i) for i in range(40)},
        **{f"v{i:02d}": Column(f"v{i:02d}", "regular", "int") for i in range(80)},
    },
)
EPOCH_TABLE = Table(
    "k",
    "p",
    UUID("1b255f4d-ef25-40a6-0000-000000000005"),
    {"k": Column("k", "partition_key", "int", 0), "v": Column("v", "regular", "text")},
)
TABLES = (TTL_TABLE, RANGES_TABLE, STATICS_TABLE, COUNTER_TABLE, VECTOR_TABLE, WIDE_TABLE)
SCHEMA = Schema(tables={table.id: table for table in (*TABLES, EPOCH_TABLE)})

V8_HEADER_AND_MARKER = bytes.fromhex("00000008 000001a1fd2ac1d3 0002 7b7d 6e64b9b6 000001c3 e3f2575b")
"""The header of a segment of version 8 and its first sync marker."""

TTL_FRAME = bytes.fromhex(
    "00000034 00f02ba9 01 6cbda380e58311f1817ff173fd8e050e 04 00000000 10 fd407a41a8978d f015020a28 c15180 01 01 76 01"
    "2c 00 00 00 1a 00000000 01 5d43a24a"
)
"""INSERT INTO k.dttl (p, v) VALUES (0, 0), with default_time_to_live = 86400."""

RANGES_FRAME = bytes.fromhex(
    "0000003d 792c930d 01 6c60b670e58311f1817ff173fd8e050e 04 00000002 10 fce9d96a43c00c f01500b8a7 00 00 00"
    "02 07 0001 00 00000003 00 00 02 06 0001 00 00000004 00 00 01 7be195e9"
)
"""DELETE FROM k.rt USING TIMESTAMP 1700000000000012 WHERE p = 2 AND c1 > 3 AND c1 <= 4."""

EPOCH_FRAME = bytes.fromhex(
    "0000002e fd92d2d3 00 01 1b255f4def2540a60000000000000005 06 04 00000001 10 fd40aef9b8f29a 00 00 01 01 76 01"
    "24 00 08 03 505f31 01 e5320c17"
)
"""INSERT INTO k.p (k, v) VALUES (1, 'P_1'), by a node of 6.0: version 9, epoch 6."""

STATICS_BODY = bytes.fromhex(
    "01 6c514d20e58311f1817ff173fd8e050e 0b 0001790000040000000100 18 fce9d96a43c00a f01500b8a6 00 02 01 73 02 736d 00"
    "e0 01 05 00 00 00 00 00 00 01"
)
"""DELETE sm, s FROM k.clust WHERE a = 'y' AND b = 1."""


def body_of(frame: bytes) -> bytes:
    return frame[8:-4]


def insert(key: int, value: str = "some text", timestamp: int = 1_700_000_000_000_000) -> Mutation:
    """An INSERT into RANGES_TABLE."""
    row = Row(
        clustering=(key.to_bytes(4, "big"), b"\0\0\0\1", b"x"),
        liveness=Liveness(timestamp),
        cells=(Cell("v", timestamp, value.encode()),),
    )
    return Mutation((PartitionUpdate(RANGES_TABLE.id, key.to_bytes(4, "big"), rows=(row,)),))


def delete_range(key: int, timestamp: int = 1_700_000_000_000_000) -> Mutation:
    tombstone = RangeTombstone(Bound((b"\0\0\0\1",), True), Bound((), True), DeletionTime(timestamp, timestamp // 1_000_000))
    return Mutation((PartitionUpdate(RANGES_TABLE.id, key.to_bytes(4, "big"), range_tombstones=(tombstone,)),))


def small_segment(segment_id: int = 0x1_0000_0007, *, size: int = 0) -> bytes:
    """A segment of three sections with two frames each, closed by an empty section."""
    bodies = [encode_mutation(insert(i) if i % 2 else delete_range(i), SCHEMA) for i in range(6)]
    return encode_segment(segment_id, 7, bodies, per_section=2, size=size)
