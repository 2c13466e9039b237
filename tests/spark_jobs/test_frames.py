"""Scanning and routing as plain functions over record batches."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from spark_jobs.frames import FRAMES, SEGMENTS, chunked, key_bucket, scanner
from tests.commitlog.packed import ALIAS, COMPRESSORS, make_keystore, repack
from tests.spark_jobs.examples import COUNTS, KEYS_ONLY, ORDERS, SCHEMA, frame, insert, routed, schema_of, table
from writetime.commitlog.encode import encode_mutation, encode_segment
from writetime.commitlog.vint import write_unsigned
from writetime.errors import ConfigError
from writetime.model import Mutation
from writetime.schema.system import system_table_id
from writetime.store import open_store

NAME = "cdc/c/dc1/host/CommitLog-7-9.log"


def scanned(folder: Path, data: bytes, *, generation: int | None = None, keystore: Path | None = None) -> list[dict[str, Any]]:
    store = open_store(str(folder))
    info = store.put(NAME, data)
    segments = pa.RecordBatch.from_pylist([{"segment": 4, "object": NAME, "generation": generation or info.generation}], schema=SEGMENTS)
    return [row for batch in scanner(str(folder), keystore)([segments]) for row in batch.to_pylist()]


def bodies(*mutations: Mutation) -> list[bytes]:
    return [encode_mutation(mutation, SCHEMA) for mutation in mutations]


def test_every_frame_comes_with_its_table_and_key(tmp_path: Path) -> None:
    both = Mutation((insert(KEYS_ONLY, 7, None, "x").updates[0], insert(ORDERS, 7, {"name": "n"}, 1).updates[0]))
    made = bodies(insert(ORDERS, 5, {"name": "n"}, 1), both)
    first, second, done = scanned(tmp_path, encode_segment(9, 7, made, per_section=1))
    assert (first["table_id"], first["key"], first["updates"], first["body"]) == (ORDERS.id.bytes, b"\0\0\0\5", 1, made[0])
    assert (second["table_id"], second["key"], second["updates"], second["body"]) == (KEYS_ONLY.id.bytes, b"\0\0\0\7", 2, made[1])
    assert first["position"] < second["position"]
    assert (done["kind"], json.loads(done["detail"])) == ("done", {"frames": 2, "updates": 3})
    assert {row["segment"] for row in (first, second, done)} == {4}


def test_damage_is_a_row_with_its_bytes_and_the_rest_goes_on(tmp_path: Path) -> None:
    made = bodies(*(insert(ORDERS, key, {"name": "n" * 50}, 1) for key in range(3)))
    whole = encode_segment(9, 7, made)
    at = whole.index(made[1]) + 30
    damaged = whole[:at] + bytes((whole[at] ^ 1,)) + whole[at + 1 :]
    rows = scanned(tmp_path, damaged)
    assert [row["kind"] for row in rows] == ["frame", "frame", "problem", "done"]
    problem = rows[2]
    assert problem["body"] == damaged[problem["position"] : problem["position"] + len(problem["body"])]
    assert made[1][:20] in problem["body"]
    assert json.loads(problem["detail"])["kind"] == "corrupt_frame"
    assert json.loads(rows[3]["detail"]) == {"frames": 2, "updates": 2}


@pytest.mark.parametrize("packing", list(COMPRESSORS))
def test_a_compressed_segment_gives_what_the_plain_one_does(packing: str, tmp_path: Path) -> None:
    made = bodies(*(insert(ORDERS, key, {"name": "n" * 50}, 1) for key in range(3)))
    rows = scanned(tmp_path, repack(encode_segment(9, 7, made, per_section=2), packing))
    assert [row["body"] for row in rows[:-1]] == made
    assert json.loads(rows[-1]["detail"]) == {"frames": 3, "updates": 3}


def test_a_damaged_packed_section_is_a_row_with_the_file_s_bytes(tmp_path: Path) -> None:
    made = bodies(*(insert(ORDERS, key, {"name": "n" * 50}, 1) for key in range(3)))
    whole = repack(encode_segment(9, 7, made, per_section=1), "DeflateCompressor")
    at = whole.index(b"\x78\x9c") + 9
    damaged = whole[:at] + b"\xff\xff\xff" + whole[at + 3 :]
    frames = scanned(tmp_path, damaged)
    assert [row["kind"] for row in frames] == ["frame", "frame", "problem", "done"]
    assert [row["body"] for row in frames[:2]] == made[1:]
    problem = frames[2]
    assert json.loads(problem["detail"])["kind"] == "corrupt_section"
    assert problem["body"] == damaged[problem["position"] : problem["position"] + len(problem["body"])]
    assert damaged[at : at + 3] in problem["body"]


def test_an_encrypted_segment_is_held_until_there_is_a_key_to_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The keystore is the worker's, its password too."""
    keystore, key = make_keystore(tmp_path, "pass-word")
    made = bodies(*(insert(ORDERS, key, {"name": "n" * 50}, 1) for key in range(3)))
    data = repack(encode_segment(9, 7, made), "encrypted", key=key)
    problem, done = scanned(tmp_path, data)
    assert json.loads(problem["detail"])["kind"] == "UnsupportedSegment"
    assert f"`{ALIAS}`" in problem["detail"]
    assert problem["body"] == data
    assert json.loads(done["detail"]) == {"frames": 0, "updates": 0}

    monkeypatch.setenv("WRITETIME_KEYSTORE_PASSWORD", "pass-word")
    assert [row["body"] for row in scanned(tmp_path, data, keystore=keystore)[:-1]] == made
    monkeypatch.setenv("WRITETIME_KEYSTORE_PASSWORD", "another")
    with pytest.raises(ConfigError, match="has another password"):
        scanned(tmp_path, data, keystore=keystore)


@pytest.mark.parametrize("data", [b"", b"no segment at all"])
def test_what_is_no_segment_is_kept_whole(tmp_path: Path, data: bytes) -> None:
    problem, done = scanned(tmp_path, data)
    assert (problem["kind"], problem["body"], json.loads(problem["detail"])["kind"]) == ("problem", data, "NotASegment")
    assert json.loads(done["detail"]) == {"frames": 0, "updates": 0}


def test_an_object_that_is_gone_is_a_problem_of_that_segment_alone(tmp_path: Path) -> None:
    problem, done = scanned(tmp_path, b"whatever", generation=1)
    assert (problem["kind"], json.loads(problem["detail"])["kind"]) == ("problem", "gone")
    assert done["kind"] == "done"


@pytest.mark.parametrize("body", [b"\1" * 12, b"\0" * 40, write_unsigned(1 << 40) + b"\0" * 40, b"\1" + b"\0" * 16 + b"\xff" * 9])
def test_a_frame_that_says_nothing_sensible_is_a_problem_of_that_frame_alone(tmp_path: Path, body: bytes) -> None:
    (good,) = bodies(insert(ORDERS, 1, {"name": "n"}, 1))
    rows = scanned(tmp_path, encode_segment(9, 7, [body, good]))
    assert [row["kind"] for row in rows] == ["problem", "frame", "done"]
    assert rows[0]["body"] == body
    assert json.loads(rows[0]["detail"])["kind"] == "MalformedMutation"


def test_routes_by_table_and_key_bucket() -> None:
    mine, other = routed([frame(insert(ORDERS, 5, {"name": "n"}, 1), segment=2), frame(insert(COUNTS, 1, {}))], buckets={ORDERS.id: 8})
    assert (mine["kind"], mine["table"], mine["bucket"]) == ("update", "shop.orders", key_bucket(b"\0\0\0\5", 8))
    assert (mine["segment"], len(mine["digest"]), mine["body"] is not None) == (2, 16, True)
    assert (other["kind"], other["table"], other["body"], other["digest"]) == ("not_ours", "shop.counts", None, None)


def test_a_mutation_of_several_tables_goes_to_each_once() -> None:
    made = (insert(ORDERS, 7, {"name": "n"}, 1), insert(KEYS_ONLY, 7, None, "x"), insert(ORDERS, 7, {}, 2))
    rows = routed([frame(Mutation(tuple(update for mutation in made for update in mutation.updates)))], buckets={ORDERS.id: 1})
    assert [(row["kind"], row["table"], row["updates"]) for row in rows] == [
        ("update", "shop.orders", 2),
        ("not_ours", "shop.keys_only", 1),
    ]


def test_equal_bytes_have_equal_digests() -> None:
    same, again, other = routed([frame(insert(ORDERS, 1, {"name": name}, 1), segment=i) for i, name in enumerate(("a", "a", "b"))])
    assert same["digest"] == again["digest"] != other["digest"]


def test_key_buckets_never_move() -> None:
    # CRC-32 of the ASCII digits 1 to 9 is the published check value of that checksum.
    assert key_bucket(b"123456789", 4096) == 0xCBF43926 % 4096


def test_an_unknown_table_is_quarantined_with_its_bytes() -> None:
    stranger = table("stranger", 99, {"id": "int"})
    body = encode_mutation(insert(stranger, 1, schema=schema_of(stranger)), schema_of(stranger))
    (row,) = routed([frame(body)])
    assert (row["kind"], row["table"], row["updates"], row["body"]) == ("quarantined", str(stranger.id), 1, body)
    assert json.loads(row["detail"])["table_id"] == str(stranger.id)


def test_a_table_that_cannot_be_shown_is_quarantined_and_its_neighbours_go_on() -> None:
    updates = (*insert(ORDERS, 7, {"name": "n"}, 1).updates, *insert(KEYS_ONLY, 7, None, "x").updates)
    good, bad = routed([frame(Mutation(updates))], refused={KEYS_ONLY.id: "a type that nobody knows"}, buckets={ORDERS.id: 1})
    assert (good["kind"], good["table"]) == ("update", "shop.orders")
    assert (bad["kind"], bad["table"], bad["updates"]) == ("quarantined", "shop.keys_only", 1)
    assert json.loads(bad["detail"])["message"] == "a type that nobody knows"


def test_a_type_that_nobody_can_parse_is_quarantined() -> None:
    odd = table("odd", 98, {"id": "int", "v": "text"})
    body = encode_mutation(Mutation(insert(odd, 1, schema=schema_of(odd)).updates * 2), schema_of(odd))
    (row,) = routed([frame(body)], schema_of(table("odd", 98, {"id": "int", "v": "map<"})), buckets={})
    assert (row["kind"], row["updates"], json.loads(row["detail"])["kind"]) == ("quarantined", 2, "SchemaError")


def test_a_schema_change_that_cannot_be_read_shows() -> None:
    tables = system_table_id("system_schema", "tables")
    body = b"\1" + tables.bytes + b"\4shop" + b"\0" + b"\xff" * 4
    (row,) = routed([frame(body)], schema_of())
    assert row["kind"] == "quarantined"


def test_messages_stay_small(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("spark_jobs.frames._BYTES_PER_BATCH", 1000)
    rows = [frame(insert(ORDERS, key, {"name": "n" * 400}, 1)) for key in range(5)]
    batches = list(chunked(iter(rows), FRAMES))
    assert [batch.num_rows for batch in batches] == [2, 2, 1]
    assert [row for batch in batches for row in batch.to_pylist()] == rows
    assert list(chunked(iter([]), FRAMES)) == []
