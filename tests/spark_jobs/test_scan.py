"""Survey and routing against the plain way: every frame as a row of its own, equal digests brought together
afterwards."""

from __future__ import annotations

import json
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any
from uuid import UUID

import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from proof.decoder import packed
from proof.recording.recording import Recording
from spark_jobs.stages import scan
from spark_jobs.stages.scan import (
    GROUP_BYTES,
    ROUTED,
    SEGMENTS,
    SMALL_GROUP_BYTES,
    SURVEY,
    Routes,
    groups,
    router,
    surveyor,
)
from tests.cassandra.commitlog.packed import COMPRESSORS, repack
from tests.cassandra.commitlog.test_system_mutations import later, unknown_table
from tests.cassandra.schema.examples import create_table
from tests.examples import examples
from tests.spark_jobs import every_frame
from tests.spark_jobs.examples import COUNTS, KEYS_ONLY, ORDERS, SCHEMA, insert, schema_of, table
from writetime.cassandra.commitlog.encode import encode_mutation, encode_segment
from writetime.cassandra.commitlog.mutation import decode_mutation
from writetime.cassandra.model import Cell, Liveness, Mutation, PartitionUpdate, Row
from writetime.cassandra.schema.epochs import METADATA_LOG
from writetime.cassandra.schema.history import SchemaLearner
from writetime.cassandra.schema.model import Schema
from writetime.cassandra.schema.system_tables import LOCAL, SCHEMA_TABLES, TABLES, system_table_id
from writetime.cassandra.types.vint import write_unsigned
from writetime.errors import BatchError
from writetime.pipeline.archive_packing import pack
from writetime.pipeline.documents import Mark, SegmentInput, Tail
from writetime.pipeline.quarantine import frame_ranges
from writetime.storage import layout, open_store, segment_object
from writetime.storage.checksum import crc32c

Rows = list[dict[str, Any]]
HOSTS = [str(UUID(int=number)) for number in range(1, 4)]


class Bucket:
    """Segments in a store, and both ways over them. The version of each is what its name says."""

    def __init__(self, folder: Path, segments: Sequence[tuple[str, bytes]], keystore: Path | None = None) -> None:
        self.url, self.keystore = str(folder), keystore
        store = open_store(self.url)
        names = [f"cdc/c/dc1/{UUID(int=at)}/{name}" for at, (name, _) in enumerate(segments)]
        self.places = [(at, name, store.put(name, data).crc32c) for at, (name, (_, data)) in enumerate(zip(names, segments, strict=True))]
        self.versions = [int(name.split("-")[1]) for name, _ in segments]

    def scanned(self) -> Rows:
        """Rows of `every_frame.FRAMES`."""
        return _rows(every_frame.scanner(self.url, self.keystore), _columns(self.places, every_frame.SEGMENTS))

    def surveyed(self, tasks: Iterable[Sequence[int]] | None = None) -> Rows:
        return _rows(surveyor(self.url, self.keystore), self._tasks(tasks), SURVEY)

    def routed(self, routes: Routes, tasks: Iterable[Sequence[int]] | None = None, only: scan.Only | None = None) -> Rows:
        return _rows(router(routes, self.url, self.keystore, only), self._tasks(tasks), ROUTED)

    def _tasks(self, tasks: Iterable[Sequence[int]] | None) -> pa.RecordBatch:
        every = [range(len(self.places))] if tasks is None else tasks
        names = ("segment", "object", "crc32c")
        made = [{"segments": [dict(zip(names, self.places[at], strict=True)) for at in task]} for task in every]
        return pa.RecordBatch.from_pylist(made, schema=SEGMENTS)

    def routes(self, schema: Schema, *, captured: Iterable[UUID], refused: Mapping[UUID, str] | None = None, buckets: int = 4) -> Routes:
        return Routes(schema, dict.fromkeys(captured, buckets), self.versions, dict(refused or {}))


def _rows(function: Any, batch: pa.RecordBatch, schema: pa.Schema | None = None) -> Rows:
    found = list(function([batch]))
    assert schema is None or all(each.schema == schema for each in found)
    return [row for each in found for row in each.to_pylist()]


def _columns(rows: Sequence[tuple[Any, ...]], schema: pa.Schema) -> pa.RecordBatch:
    return pa.RecordBatch.from_pylist([dict(zip(schema.names, row, strict=True)) for row in rows], schema=schema)


def surveyed_plainly(scanned: Rows) -> Rows:
    """What the survey ought to say."""
    found: Rows = []
    tables: dict[int, dict[str, list[int]]] = defaultdict(lambda: defaultdict(lambda: [0, 0, 0]))
    others: dict[int, Counter[str]] = defaultdict(Counter)
    for row in scanned:
        detail = row["detail"]
        if row["kind"] == "frame":
            table_id = UUID(bytes=row["table_id"])
            counts = tables[row["segment"]][str(table_id)]
            counts[0] += 1
            counts[1] += row["updates"]
            counts[2] += row["updates"] == 1
            is_schema = TABLES.get(table_id, ORDERS).keyspace == "system_schema" or table_id == METADATA_LOG.id
            kind = "schema" if is_schema else "local" if table_id == LOCAL.id else None
            if kind is None:
                continue
            row = {**row, "kind": kind}
            others[row["segment"]][kind] += 1
        elif row["kind"] == "problem":
            others[row["segment"]]["problem"] += 1
        elif row["kind"] == "done":
            about = {"tables": dict(sorted(tables[row["segment"]].items())), "others": dict(sorted(others[row["segment"]].items()))}
            detail = json.dumps({**json.loads(detail), **about})
        row = {name: detail if name == "detail" else row[name] for name in SURVEY.names}
        found.append({**row, "body": None} if row["kind"] == "problem" and is_long(row) else row)
    return found


def is_long(row: Mapping[str, Any]) -> bool:
    """Whether the bytes are put by a worker that reads the segment again."""
    return len(row["body"]) > frame_ranges.BROUGHT


def without_body(row: dict[str, Any]) -> dict[str, Any]:
    return {**row, "body": None, "detail": json.dumps({**json.loads(row["detail"]), "size": len(row["body"])})}


def routed_plainly(scanned: Rows, routes: Routes, tasks: Iterable[Sequence[int]]) -> Rows:
    """What routing ought to give, with no thought of speed."""
    found: Rows = []
    for task in tasks:
        rows = [each for row in scanned if row["kind"] == "frame" and row["segment"] in task for each in every_frame.route(row, routes)]
        distinct: dict[tuple[bytes, bytes], dict[str, Any]] = {}
        others: Counter[tuple[str, bytes]] = Counter()
        for row in rows:
            copy = {"segment": row.pop("segment"), "position": row.pop("position")}
            if row["kind"] == "update":
                distinct.setdefault((row["table_id"], row["digest"]), {**row, "copies": []})["copies"].append(copy)
            elif row["kind"] == "quarantined":
                found.append({**row, "copies": [copy]})
            else:
                others[row["table"], row["table_id"]] += row["updates"]
        found = together(found)
        found += distinct.values()
        found += [
            {**dict.fromkeys(ROUTED.names), "kind": "not_ours", "table": name, "table_id": table_id, "updates": updates}
            for (name, table_id), updates in others.items()
        ]
    return found


def together(rows: Rows) -> Rows:
    """Of the frames that cannot be used, those of a table that has many in a segment as one row."""
    groups: dict[tuple[Any, ...], Rows] = defaultdict(list)
    for row in rows:
        detail = json.loads(row["detail"] or "{}")
        bad = row["kind"] == "quarantined" and "frames" not in detail
        about = row["copies"][0]["segment"] if row["copies"] else 0, row["table_id"], detail.get("kind"), detail.get("table_id")
        groups[about if bad else (id(row),)].append(row)
    found = []
    for several in groups.values():
        if len(several) <= frame_ranges.NAMED:
            found += [without_body(row) if row["kind"] == "quarantined" and is_long(row) else row for row in several]
            continue
        several.sort(key=lambda row: row["copies"][0]["position"])
        size = len(frame_ranges.pack(row["body"] for row in several))
        message = frame_ranges.message(json.loads(row["detail"])["message"] for row in several)
        about = {"message": message, "frames": len(several), "last": several[-1]["copies"][0]["position"], "size": size}
        detail = json.dumps({**json.loads(several[0]["detail"]), **about})
        found.append({**several[0], "body": b"", "detail": detail, "updates": sum(row["updates"] for row in several)})
    return found


def ordered(rows: Rows) -> Rows:
    return sorted(({name: row[name] for name in sorted(row)} for row in rows), key=repr)


def check(bucket: Bucket, routes: Routes, tasks: Sequence[Sequence[int]]) -> Rows:
    """Both ways give the same, and every update that was counted is routed, table by table. Gives the
    rows."""
    scanned = bucket.scanned()
    surveyed = bucket.surveyed(tasks)
    assert ordered(surveyed) == ordered(surveyed_plainly(scanned))
    everything = bucket.routed(routes, tasks)
    routed = [row for row in everything if row["kind"] != "parsed"]
    assert ordered(routed) == ordered(routed_plainly(scanned, routes, tasks))
    done = [json.loads(row["detail"]) for row in surveyed if row["kind"] == "done"]
    assert sum(row["updates"] * len(row["copies"] or [None]) for row in routed) == sum(each["updates"] for each in done)
    counted: Counter[str] = Counter()
    for each in done:
        counted.update({name: single for name, (*_, single) in each["tables"].items() if UUID(name) not in SCHEMA_TABLES})
    counted.update(_by_table(row for row in everything if row["kind"] == "parsed"))
    assert +counted == _by_table(routed)
    return routed


def _by_table(rows: Iterable[dict[str, Any]]) -> Counter[str]:
    found: Counter[str] = Counter()
    for row in rows:
        found[str(UUID(bytes=row["table_id"]))] += row["updates"] * len(row["copies"] or [None])
    return found


def learnt(bucket: Bucket) -> SchemaLearner:
    learner = SchemaLearner()
    for row in bucket.surveyed():
        if row["kind"] == "schema":
            learner.apply(decode_mutation(row["body"], Schema(tables=TABLES), version=bucket.versions[row["segment"]]))
    return learner


def bodies(*mutations: Mutation, schema: Schema = SCHEMA) -> list[bytes]:
    return [encode_mutation(mutation, schema) for mutation in mutations]


def name_of(at: int, version: int = 7) -> str:
    return f"CommitLog-{version}-{at + 1}.log"


def segments_of(*contents: Sequence[bytes]) -> list[tuple[str, bytes]]:
    return [(name_of(at), encode_segment(at + 1, 7, list(each), per_section=2)) for at, each in enumerate(contents)]


def damaged(data: bytes, *places: int) -> bytes:
    changed = bytearray(data)
    for place in places:
        changed[place] ^= 0x55
    return bytes(changed)


# --- against what real nodes wrote


@pytest.fixture(scope="module")
def ring(tmp_path_factory: pytest.TempPathFactory) -> Bucket:
    """All segments of the recorded ring, node after node; three are damaged, one is no segment at all."""
    folders = Recording.open().stage(tmp_path_factory.mktemp("nodes"))
    paths = [path for folder in folders.values() for path in sorted(folder.glob("CommitLog-*.log"))]
    contents = [(path.name, path.read_bytes()) for path in paths]
    half = len(contents[0][1]) // 2
    spoilt = [(name, damaged(data, half, half // 2, 3 * half // 2)) for name, data in contents[:3]]
    return Bucket(tmp_path_factory.mktemp("bucket"), [*contents, *spoilt, ("CommitLog-7-1.log", b"none")])


def test_the_recorded_ring(ring: Bucket) -> None:
    learner = learnt(ring)
    routes = ring.routes(learner.schema(), captured=learner.cdc_ever)
    count = len(ring.places)
    routed = check(ring, routes, [range(count)])
    kinds = Counter(row["kind"] for row in routed)
    assert kinds["update"] > 100
    assert kinds["not_ours"] > 3
    assert max(len({copy["segment"] for copy in row["copies"]}) for row in routed if row["kind"] == "update") > 3
    apart = check(ring, routes, [[at] for at in range(count)])
    assert sum(row["kind"] == "update" for row in apart) > 2 * kinds["update"]


def test_the_recorded_ring_where_half_is_not_known(ring: Bucket) -> None:
    learner = learnt(ring)
    schema = learner.schema()
    captured = sorted(learner.cdc_ever, key=str)
    del schema.tables[captured[0]]
    routes = ring.routes(schema, captured=captured[3:], refused={captured[1]: "cannot be shown"})
    routed = check(ring, routes, [range(0, len(ring.places), 2), range(1, len(ring.places), 2)])
    reasons = {json.loads(row["detail"])["kind"] for row in routed if row["kind"] == "quarantined"}
    assert reasons == {"UnknownTable", "SchemaError"}


@pytest.mark.parametrize("recording", packed.recordings(), ids=lambda recording: recording.name)
def test_packed_segments_of_real_nodes(recording: packed.Packed, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    if recording.keystore:
        monkeypatch.setenv("WRITETIME_KEYSTORE_PASSWORD", recording.password)
    contents = [(path.name, path.read_bytes()) for path in recording.stage(tmp_path / "node")]
    spoilt = [(name, damaged(data, len(data) // 2)) for name, data in contents[:1]]
    bucket = Bucket(tmp_path / "bucket", [*contents, *spoilt], recording.keystore)
    learner = learnt(bucket)
    routed = check(bucket, bucket.routes(learner.schema(), captured=learner.cdc_ever), [range(len(bucket.places))])
    assert sum(row["kind"] == "update" for row in routed) > 100


def test_nodes_tell_of_themselves(ring: Bucket) -> None:
    rows = ring.surveyed()
    local = {row["segment"] for row in rows if row["kind"] == "local"}
    assert local
    assert all(row["body"][1:17] == LOCAL.id.bytes for row in rows if row["kind"] == "local")


# --- any content, any order

STRANGER = table("stranger", 99, {"id": "int", "v": "text"})
EVERY = schema_of(*SCHEMA.tables.values(), STRANGER)
BODIES = [
    *bodies(*(insert(ORDERS, key, {"name": "n" * key}, 1) for key in range(4))),
    *bodies(insert(KEYS_ONLY, 7, None, "x"), insert(COUNTS, 1, {}), insert(STRANGER, 3, {"v": "v"}, schema=EVERY), schema=EVERY),
    *bodies(
        Mutation((insert(ORDERS, 7, {"name": "n"}, 1).updates[0], insert(KEYS_ONLY, 7, None, "x").updates[0])),
        Mutation((*insert(KEYS_ONLY, 8, None, "x").updates, *insert(ORDERS, 8, {}, 1).updates, *insert(ORDERS, 8, {}, 2).updates)),
        Mutation((*insert(COUNTS, 9, {}).updates, *insert(ORDERS, 9, {}, 1).updates)),
        Mutation((PartitionUpdate(ORDERS.id, b""),)),
        Mutation((PartitionUpdate(ORDERS.id, b"k" * 300),)),
    ),
    encode_mutation(Mutation((*insert(ORDERS, 9, {}, 1).updates, *insert(STRANGER, 9, {}, schema=EVERY).updates)), EVERY),
    b"\2" + bodies(insert(ORDERS, 5, {"name": "n"}, 1))[0][1:],
    b"\1" + system_table_id("system_schema", "tables").bytes + b"\4shop" + b"\0" + b"\xff" * 4,
    b"\1" * 12,
    b"\0" * 40,
    write_unsigned(1 << 40) + b"\0" * 40,
    b"\1" + b"\0" * 16 + b"\xff" * 9,
    b"\x80\1" + bodies(insert(ORDERS, 6, {"name": "n"}, 1))[0][1:],
    b"\xff" + (1).to_bytes(8, "big") + bodies(insert(ORDERS, 6, {"name": "n"}, 1))[0][1:],
]


@settings(max_examples=examples(60), suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_any_order_and_any_duplication(data: st.DataObject, tmp_path_factory: pytest.TempPathFactory) -> None:
    segments = data.draw(st.lists(st.lists(st.sampled_from(BODIES), max_size=12), min_size=1, max_size=5))
    captured = data.draw(st.sets(st.sampled_from([ORDERS.id, KEYS_ONLY.id, COUNTS.id])))
    refused = data.draw(st.sets(st.sampled_from([KEYS_ONLY.id, COUNTS.id]))) - captured
    bucket = Bucket(tmp_path_factory.mktemp("bucket"), segments_of(*segments))
    cut = data.draw(st.integers(0, len(segments)))
    tasks = [range(cut), range(cut, len(segments))]
    check(bucket, bucket.routes(SCHEMA, captured=captured, refused=dict.fromkeys(refused, "no")), tasks)


def test_schema_changes_of_a_later_cassandra_are_routed_as_what_they_are(tmp_path: Path) -> None:
    """Nothing of them is quarantined, and every update of them is accounted for, be the unknown table the
    first one or not."""
    table = unknown_table("labels", 1)
    labelled = PartitionUpdate(
        table.id, ORDERS.keyspace.encode(), rows=(Row((b"orders",), Liveness(1), cells=(Cell("rank", 1, bytes(4)),)),)
    )
    told = create_table(ORDERS, 1_700_000_000_000_000)
    both = Schema(tables={**SCHEMA_TABLES, table.id: table})
    changes = [later(told, {"lane": "int"}), *bodies(Mutation((labelled, *told.updates)), Mutation((*told.updates, labelled)), schema=both)]
    bucket = Bucket(tmp_path, segments_of(changes))
    surveyed = bucket.surveyed()
    assert sorted(row["body"] for row in surveyed if row["kind"] == "schema") == sorted(changes)
    routed = bucket.routed(bucket.routes(Schema(tables={**TABLES, ORDERS.id: ORDERS}), captured=[ORDERS.id]))
    assert {row["kind"] for row in routed} == {"not_ours", "parsed"}
    (done,) = [json.loads(row["detail"]) for row in surveyed if row["kind"] == "done"]
    assert sum(row["updates"] for row in routed if row["kind"] == "not_ours") == done["updates"] == 3 * len(told.updates) + 2


@pytest.mark.parametrize("packing", list(COMPRESSORS))
def test_packed_segments_give_what_plain_ones_do(packing: str, tmp_path: Path) -> None:
    plain = segments_of(BODIES, BODIES[::-1])
    repacked = [(name, repack(data, packing)) for name, data in plain]
    rows = []
    for folder, contents in (("plain", plain), ("packed", repacked)):
        bucket = Bucket(tmp_path / folder, contents)
        rows.append(ordered(check(bucket, bucket.routes(SCHEMA, captured=[ORDERS.id]), [range(2)])))
    positions = [[row.pop("copies") for row in each] for each in rows]
    assert rows[0] == rows[1]
    assert [len(copies or []) for copies in positions[0]] == [len(copies or []) for copies in positions[1]]


def test_without_the_compiled_walk_it_is_the_same(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    bucket = Bucket(tmp_path, segments_of(BODIES, BODIES[::-1]))
    routes = bucket.routes(SCHEMA, captured=[ORDERS.id])
    compiled = bucket.surveyed(), bucket.routed(routes)
    monkeypatch.setattr("writetime.cassandra.commitlog.segment.uses_kernel", lambda engine: False)
    assert (bucket.surveyed(), bucket.routed(routes)) == compiled


def test_messages_stay_small(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("spark_jobs.stages.scan._BYTES_PER_BATCH", 1000)
    made = bodies(*(insert(ORDERS, key, {"name": "n" * 400}, 1) for key in range(5)))
    bucket = Bucket(tmp_path, segments_of(made, made))
    found = list(router(bucket.routes(SCHEMA, captured=[ORDERS.id]), bucket.url)([bucket._tasks(None)]))
    assert [batch.num_rows for batch in found] == [2, 2, 1]
    assert [row["body"] for batch in found for row in batch.to_pylist()] == made


def test_what_was_packed_since_it_was_pinned_is_read_all_the_same(tmp_path: Path) -> None:
    (segment,) = segments_of(BODIES)
    store = open_store(str(tmp_path))
    name = f"cdc_archive/c/date=2026-05-04/hour=12/dc1/{HOSTS[0]}/{segment[0]}"
    store.put(name, segment[1])
    place = {"segment": 0, "object": name, "crc32c": crc32c(segment[1]), "tail": None}
    row = pa.RecordBatch.from_pylist([{"segments": [place]}], schema=SEGMENTS)
    plain = _rows(surveyor(str(tmp_path)), row, SURVEY)
    assert pack(store, name, 3).after < len(segment[1])
    assert _rows(surveyor(str(tmp_path)), row, SURVEY) == plain
    store.put(layout.packed(name), segment_object.pack(b"another segment", 3))
    (done,) = [each for each in _rows(surveyor(str(tmp_path)), row, SURVEY) if each["kind"] != "done"]
    assert json.loads(done["detail"])["kind"] == "gone"
    store.put(layout.packed(name), b"no frame")
    broken = {**place, "object": layout.packed(name)}
    row = pa.RecordBatch.from_pylist([{"segments": [broken]}], schema=SEGMENTS)
    (done,) = [each for each in _rows(surveyor(str(tmp_path)), row, SURVEY) if each["kind"] != "done"]
    assert json.loads(done["detail"])["kind"] == "CorruptSection"


# --- segments that are read again


def test_of_a_segment_that_is_read_again_only_what_is_asked_for_comes(tmp_path: Path) -> None:
    made = bodies(
        insert(ORDERS, 1, {"name": "before"}, 1),
        insert(ORDERS, 1, {"name": "after"}, 1),
        insert(KEYS_ONLY, 1, None, "x"),
        Mutation((*insert(KEYS_ONLY, 8, None, "x").updates, *insert(ORDERS, 8, {}, 1).updates)),
        insert(COUNTS, 1, {}),
    )
    odd = [BODIES[12], b"\1" * 12, BODIES[13]]
    bucket = Bucket(tmp_path, segments_of([*made, *odd], made))
    routes = bucket.routes(SCHEMA, captured=[ORDERS.id, KEYS_ONLY.id])
    first = next(row["position"] for row in bucket.scanned() if row["kind"] == "frame" and row["segment"] == 0)
    rows = bucket.routed(routes, only={0: (frozenset([ORDERS.id]), first)})
    places = {(row["table"], row["body"]): [copy["segment"] for copy in row["copies"]] for row in rows if row["kind"] == "update"}
    assert places == {
        ("shop.orders", made[0]): [1],
        ("shop.orders", made[1]): [0, 1],
        ("shop.orders", made[3]): [0, 1],
        ("shop.keys_only", made[2]): [1],
        ("shop.keys_only", made[3]): [1],
    }
    bad = [row for row in rows if row["kind"] == "quarantined"]
    assert sorted((row["body"], row["updates"]) for row in bad) == sorted([(BODIES[12], 2), (BODIES[13], 2)])
    # Of what cannot be parsed it is known whose its first update is.
    reread = {row["table"]: row["updates"] for row in rows if row["kind"] == "reread"}
    assert sum(reread.values()) == 2 + 2 + 2
    assert reread["shop.orders"] >= 2
    new = json.loads(next(row["detail"] for row in bucket.surveyed() if row["kind"] == "done" and row["segment"] == 1))["updates"]
    routed = [row for row in rows if row["kind"] not in ("parsed", "reread")]
    assert sum(row["updates"] * len(row["copies"] or [0]) for row in routed) == new + sum(reread.values())


def test_past_the_last_position_there_is_nothing(tmp_path: Path) -> None:
    bucket = Bucket(tmp_path, segments_of(BODIES))
    assert bucket.routed(bucket.routes(SCHEMA, captured=[ORDERS.id]), only={0: (frozenset([ORDERS.id]), 1 << 40)}) == []


def test_what_cannot_be_read_again_is_no_empty_segment(tmp_path: Path) -> None:
    """No survey tells of it: it was surveyed by an earlier batch."""
    bucket = Bucket(tmp_path, segments_of(BODIES))
    open_store(bucket.url).delete(bucket.places[0][1])
    routes = bucket.routes(SCHEMA, captured=[ORDERS.id])
    with pytest.raises(BatchError, match=r"a truncated table needs this segment again: .*does not exist"):
        bucket.routed(routes, only={0: (frozenset([ORDERS.id]), 1)})


# --- tasks


def inputs(*segments: tuple[int, int, int]) -> list[SegmentInput]:
    """(node, minute at which it was sealed, size in MiB)."""
    start = datetime(2026, 1, 1, tzinfo=UTC)
    return [
        SegmentInput(
            object=f"cdc/c/dc1/{HOSTS[node]}/CommitLog-7-{at + 1}.log",
            generation=1,
            size=size << 20,
            crc32c=0,
            sealed_at=start + timedelta(minutes=minute),
        )
        for at, (node, minute, size) in enumerate(segments)
    ]


def test_what_replicas_wrote_at_the_same_time_goes_into_one_task() -> None:
    by_node = inputs(*((node, 10 * turn + node, 32) for node in range(3) for turn in range(4)))
    assert groups(by_node) == [[0, 4, 8], [1, 5, 9], [2, 6, 10], [3, 7, 11]]


def test_small_segments_share_a_task() -> None:
    assert groups(inputs(*((0, minute, 1) for minute in range(20)))) == [list(range(16)), list(range(16, 20))]


def test_a_task_has_no_more_bytes_than_it_may() -> None:
    large = GROUP_BYTES >> 20
    assert groups(inputs((0, 0, large + 1), (1, 1, large // 2), (2, 2, large // 2), (0, 3, 1))) == [[0], [1, 2], [3]]


@given(st.lists(st.tuples(st.integers(0, 2), st.integers(0, 5), st.integers(0, 200)), max_size=40))
def test_every_segment_is_in_one_task(drawn: list[tuple[int, int, int]]) -> None:
    segments = inputs(*drawn)
    made = groups(segments)
    assert sorted(index for group in made for index in group) == list(range(len(segments)))
    for group in made:
        size = sum(segments[index].size for index in group)
        nodes = {segments[index].ref.node.host_id for index in group}
        assert group == sorted(group)
        assert size <= SMALL_GROUP_BYTES or len(nodes) == len(group) or len(group) == 1 or size <= GROUP_BYTES
        assert size <= GROUP_BYTES or len(group) == 1


def test_groups_as_rows() -> None:
    segments = inputs((0, 0, 1), (1, 0, 1), (2, 0, 1))
    segments[1] = segments[1].model_copy(update={"tail": Tail(after=Mark(position=9, logical=9))})
    told = [segment.tail and segment.tail.model_dump_json() for segment in segments]
    places = [{"segment": at, "object": segment.object, "crc32c": 0, "tail": told[at]} for at, segment in enumerate(segments)]
    rows = [batch.to_pylist() for batch in scan.task_rows(segments, [[0, 2], [1]])]
    assert rows == [[{"segments": [places[0], places[2]]}], [{"segments": [places[1]]}]]
