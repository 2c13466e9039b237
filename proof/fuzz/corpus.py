"""The fuzzer's corpus: small valid segments, and the schema to decode them with.

Strategy: frames of the recorded cluster, a few per table and number of updates, are put unchanged into
segments of some hundred bytes, so that a case takes less than a millisecond; the beginnings of real files are
used as they are. What the recording lacks (counters, vectors, forty clustering columns, range tombstones,
user types, columns that have come back as another type) is encoded from random updates. Some segments are
compressed or encrypted. The corpus has its own seed and is the same in every run.
"""

from __future__ import annotations

import tempfile
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from random import Random
from uuid import UUID

from proof.fuzz.structure import random_mutation, with_any_epochs
from proof.recording.recording import Recording
from tests.cassandra.commitlog.examples import RANGES_FRAME, SCHEMA, STATICS_BODY, TTL_FRAME, body_of
from tests.cassandra.commitlog.packed import KEYS, PACKINGS, pack
from writetime.cassandra.commitlog.encode import encode_mutation, encode_segment
from writetime.cassandra.commitlog.frames import encode_frame
from writetime.cassandra.commitlog.mutation import EPOCHS_VERSION
from writetime.cassandra.commitlog.mutation_json import learn
from writetime.cassandra.commitlog.segment import peek, scan
from writetime.cassandra.schema.history import SchemaLearner
from writetime.cassandra.schema.model import Column, DroppedColumn, Schema, Table, UserType
from writetime.errors import WritetimeError

LARGEST_BODY = 900
HEAD_OF_A_FILE = 2048
_PER_KIND = 12
_SEED = 20
_VERSIONS = (6, 7, 7, 8, 9, 9)

_NATIVES = "ascii bigint blob boolean date decimal double duration float inet int smallint text time timestamp timeuuid tinyint uuid varint"
_OTHERS = {
    "Name": "text",
    "name": "int",
    "a.b": "list<frozen<map<text, int>>>",
    "home": "address",
    "homes": "list<frozen<address>>",
    "names": "map<text, text>",
    "nested": "frozen<map<frozen<list<int>>, frozen<set<text>>>>",
    "tags": "set<text>",
    "two": "tuple<int, text>",
    "v": "vector<float, 2>",
    "w": "vector<text, 2>",
    "work": "frozen<address>",
    "x": "'org.apache.cassandra.db.marshal.DateType'",
}
TYPES = {("k", "address"): UserType("k", "address", ("street", "Since when"), ("text", "timestamp"))}
EVERYTHING = Table(
    "k",
    "Everything",
    UUID(int=3),
    {
        "id": Column("id", "partition_key", "int", 0),
        "ck": Column("ck", "clustering", "decimal", 0, descending=True),
        "st": Column("st", "static", "list<int>"),
        **{f"c {kind}": Column(f"c {kind}", "regular", kind) for kind in _NATIVES.split()},
        **{name: Column(name, "regular", kind) for name, kind in _OTHERS.items()},
    },
)
KEYS_ONLY = Table(
    "k", "keys", UUID(int=4), {"id": Column("id", "partition_key", "int", 0), "c": Column("c", "clustering", "varint", 0, descending=True)}
)
COME_BACK = Table(
    "k",
    "come back",
    UUID(int=5),
    {
        "id": Column("id", "partition_key", "int", 0),
        "ck": Column("ck", "clustering", "int", 0),
        "st": Column("st", "static", "bigint"),
        "a": Column("a", "regular", "text"),
        "b": Column("b", "regular", "int"),
        "c": Column("c", "regular", "uuid"),
    },
    {
        "st": DroppedColumn("st", "static", "text", 1_700_000_000_000_000, 1_700_000_000_000_300, 100),
        "a": DroppedColumn("a", "regular", "bigint", 1_700_000_000_000_000, 1_700_000_000_000_500, 150),
        "b": DroppedColumn("b", "regular", "text", 1_700_000_000_000_000, 1_700_000_000_000_700, 200),
        "c": DroppedColumn("c", "regular", "int", 1_700_000_000_000_000, 1_700_000_000_000_500),
    },
)
"""Columns that were dropped and have come back as another type, at epochs and times like those of `structure`."""


@dataclass(frozen=True, slots=True)
class Seed:
    """A segment in order: its bytes, its frames as position -> body, and how its sections are packed, if they
    are.
    """

    name: str
    content: bytes
    version: int
    frames: dict[int, bytes]
    packing: str | None = None


@dataclass(frozen=True, slots=True)
class Corpus:
    """All seeds, and the schema of their tables."""

    seeds: list[Seed]
    schema: Schema


@cache
def corpus() -> Corpus:
    """The corpus; built once per process."""
    rng = Random(_SEED)
    heads, bodies, learner = _recorded()
    learnt = learner.schema()
    tables = [*SCHEMA.tables.values(), EVERYTHING, KEYS_ONLY, COME_BACK]
    schema = Schema(
        keyspaces=learnt.keyspaces,
        tables={**learnt.tables, **{table.id: table for table in tables}},
        types={**learnt.types, **TYPES},
    )
    seeds = [_seed(f"head of {name}", content) for name, content in heads.items()]
    kinds = sorted(bodies)
    for number, kind in enumerate(kinds):
        # Its own kind and two others, so that swaps bring strangers together.
        mixed = bodies[kind][:3] + [rng.choice(bodies[rng.choice(kinds)]) for _ in range(2)]
        seeds.append(_made(f"recorded {kind[0]} × {kind[1]}", number, mixed, rng, schema))
    known = [body_of(TTL_FRAME), body_of(RANGES_FRAME), STATICS_BODY]
    seeds.append(_made("bodies of other nodes", 900, known, rng, schema))
    for number in range(24):
        version = rng.choice(_VERSIONS)
        made = _encodable(rng, [tables[number % len(tables)], rng.choice(tables)], schema, version)
        seeds.append(_segment(f"made {number}", 1000 + number, version, made, rng))
    for number, packing in enumerate(PACKINGS):
        version = rng.choice((7, 8, 9))
        mixed = _in_version(version, [body for kind in rng.sample(kinds, 3) for body in bodies[kind][:2]], rng, schema)
        contents = [b"".join(map(encode_frame, mixed[at : at + 2])) for at in (0, 2, 4)]
        packed = pack([*contents, b""], packing, version=version, segment_id=2000 + number, chunk=300)
        seeds.append(_seed(f"packed: {packing}", packed.file, packing))
    return Corpus(seeds, schema)


def _recorded() -> tuple[dict[str, bytes], dict[tuple[str, int], list[bytes]], SchemaLearner]:
    """Beginnings of the recorded files by name, small bodies by (table, number of updates), and all that the
    files teach.
    """
    learner = SchemaLearner()
    heads: dict[str, bytes] = {}
    bodies: dict[tuple[str, int], list[bytes]] = defaultdict(list)
    with tempfile.TemporaryDirectory() as folder:
        for staged in Recording.open().stage(Path(folder)).values():
            for path in sorted(staged.glob("*.log")):
                content = path.read_bytes()
                found = scan(content, name=path.name)
                learn(found, learner)
                heads[path.name] = content[:HEAD_OF_A_FILE]
                for frame in found.frames:
                    body = found.body(frame)
                    if len(body) <= LARGEST_BODY:
                        count, table_id, _ = peek(body, version=found.descriptor.version)
                        bodies[str(table_id), count].append(body)
    names = {str(table.id): table.full_name for table in learner.schema().tables.values()}
    rng = Random(_SEED)
    named = {(names.get(table, table), count): rng.sample(found, min(_PER_KIND, len(found))) for (table, count), found in bodies.items()}
    return heads, named, learner


def _encodable(rng: Random, tables: Sequence[object], schema: Schema, version: int) -> list[bytes]:
    """Three bodies of random updates, made anew until the encoder takes them."""
    made: list[bytes] = []
    while len(made) < 3:
        try:
            body = encode_mutation(random_mutation(rng, tables, schema), schema, version=version)
        except WritetimeError:
            continue
        if len(body) <= LARGEST_BODY:
            made.append(body)
    return made


def _in_version(version: int, bodies: list[bytes], rng: Random, schema: Schema) -> list[bytes]:
    """Bodies of an earlier version as that version has them."""
    return bodies if version < EPOCHS_VERSION else [with_any_epochs(rng, body, schema) for body in bodies]


def _made(name: str, number: int, bodies: list[bytes], rng: Random, schema: Schema) -> Seed:
    version = rng.choice(_VERSIONS)
    return _segment(name, number, version, _in_version(version, bodies, rng, schema), rng)


def _segment(name: str, number: int, version: int, bodies: list[bytes], rng: Random) -> Seed:
    segment_id = rng.choice((number + 1, 0x1_0000_0000 + number, 1_795_263_035_973 + number))
    padding = rng.choice((0, 0, 7, 64))
    content = encode_segment(segment_id, version, bodies, per_section=rng.choice((0, 1, 2)))
    return _seed(name, content + bytes(padding))


def _seed(name: str, content: bytes, packing: str | None = None) -> Seed:
    found = scan(content, engine="python", keys=KEYS)
    frames = {frame.position: found.body(frame) for frame in found.frames}
    return Seed(name, content, found.descriptor.version, frames, packing)
