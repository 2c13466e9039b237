"""What looks for erased bytes finds them in whatever form a bucket has them."""

from __future__ import annotations

import base64
import gzip
import io
import json
from collections.abc import Callable
from pathlib import Path

import fastavro
import lance
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tests.cassandra.commitlog.packed import KEYS, PACKINGS, repack
from tests.spark_jobs.bytes_of import held_in, holders, searched
from tests.spark_jobs.synthetic import insert
from writetime.cassandra.commitlog.encode import encode_segment
from writetime.errors import WritetimeError
from writetime.storage import open_store, segment_object

KEY, TEXT = 0x5EC2E7A9, 'grün "x" 7'
SEGMENT = encode_segment(1, 7, [insert(1, 1, 1, name=1), insert(KEY, 1, 1, name=1)])
RAW = KEY.to_bytes(4, "big")


def parquet(dictionary: bool) -> bytes:
    out = io.BytesIO()
    pq.write_table(pa.table({"id": [1, KEY], "t": ["a", TEXT]}), out, compression="zstd", use_dictionary=dictionary, write_statistics=False)
    return out.getvalue()


def avro(codec: str) -> bytes:
    out = io.BytesIO()
    fields = [{"name": "id", "type": "long"}, {"name": "low", "type": "bytes"}, {"name": "t", "type": "string"}]
    schema = {"type": "record", "name": "r", "fields": fields}
    fastavro.writer(out, schema, [{"id": KEY, "low": RAW[::-1] * 2, "t": json.dumps({"a": TEXT})}] * 40, codec=codec)
    return out.getvalue()


NUMBERS: dict[str, Callable[[], bytes]] = {
    "CommitLog-7-1.log": lambda: SEGMENT,
    "CommitLog-7-1.log.zst": lambda: segment_object.pack(SEGMENT, 3),
    **{f"{packing}/CommitLog-7-1.log": lambda packing=packing: repack(SEGMENT, packing) for packing in PACKINGS},
    "encrypted/CommitLog-7-1.log.zst": lambda: segment_object.pack(repack(SEGMENT, "encrypted"), 3),
    "x.parquet": lambda: parquet(True),
    "y.parquet": lambda: parquet(False),
    "x.avro": lambda: avro("deflate"),
    "raw": lambda: b"1" + RAW,
    "hex.json": lambda: json.dumps({"key": [RAW.hex()]}).encode(),
    "upper": lambda: RAW.hex().upper().encode(),
    "text.json": lambda: f'{{"id": {KEY}}}'.encode(),
    **{f"base64-{at}": lambda at=at: base64.b64encode(bytes(at) + b"\x01" * at + RAW + b"rest") for at in range(3)},
    "gzipped.json": lambda: gzip.compress(f'{{"id": {KEY}}}'.encode()),
}
TEXTS: dict[str, Callable[[], bytes]] = {
    "x.parquet": lambda: parquet(True),
    "x.avro": lambda: avro("deflate"),
    "escaped.json": lambda: json.dumps({"t": TEXT}).encode(),
    "escaped.txt": lambda: f"a line, {json.dumps(TEXT)}".encode(),
    "twice.json": lambda: json.dumps({"t": json.dumps({"t": TEXT})}).encode(),
    "plain": TEXT.encode,
    "base64": lambda: base64.urlsafe_b64encode(b"a" + TEXT.encode()),
}


@pytest.mark.parametrize("name", NUMBERS)
def test_a_number_is_found(tmp_path: Path, name: str) -> None:
    store = open_store(str(tmp_path))
    store.put(f"some/{name}", NUMBERS[name]())
    store.put("some/other.json", b'{"id": 17}')
    assert held_in(store, KEY, keys=KEYS) == {f"some/{name}"}
    assert held_in(store, KEY ^ 0xFFFF, keys=KEYS) == set()
    assert f"some/{name}" in holders(tmp_path, KEY, keys=KEYS)


@pytest.mark.parametrize("name", TEXTS)
def test_a_text_is_found(tmp_path: Path, name: str) -> None:
    store = open_store(str(tmp_path))
    store.put(name, TEXTS[name]())
    assert held_in(store, TEXT) == {name}
    assert held_in(store, "another text") == set()


def test_state_is_found_in_each_of_its_versions(tmp_path: Path) -> None:
    uri = str(tmp_path / "shard")
    lance.write_dataset(pa.table({"key": [RAW] * 100, "t": [TEXT] * 100}), uri)
    lance.write_dataset(pa.table({"key": [b"k"], "t": ["t"]}), uri, mode="overwrite")
    assert len(holders(tmp_path, KEY)) == len(holders(tmp_path, TEXT)) == 1


def test_a_name_is_searched_too(tmp_path: Path) -> None:
    open_store(str(tmp_path)).put(f"id={KEY}/a", b"")
    assert holders(tmp_path, KEY) >= {f"id={KEY}/a"}


def test_what_is_read_only_as_it_is_has_its_name_listed(tmp_path: Path) -> None:
    store, contents = open_store(str(tmp_path)), {"a.parquet": parquet(True), "b.puffin": b"PFA1", "c.json": b"{}"}
    for name, content in contents.items():
        store.put(name, content)
    found = searched(store)
    assert (found.objects, found.undecoded, found.stored) == (3, {"b.puffin"}, sum(map(len, contents.values())))
    assert found.decoded > 0


def test_what_cannot_be_read_is_no_answer(tmp_path: Path) -> None:
    store = open_store(str(tmp_path))
    store.put("CommitLog-7-1.log", repack(SEGMENT, "encrypted"))
    with pytest.raises(WritetimeError):
        held_in(store, KEY)
