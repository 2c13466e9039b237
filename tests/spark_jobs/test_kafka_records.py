"""Records that are too large for their topic, without Spark."""

from __future__ import annotations

import json
import os
import pickle
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pytest

from spark_jobs.sinks.kafka import PACKS, RECORDS, Publisher, Row, Sent, Stretch, _sending_order, by_publisher, sending_key
from spark_jobs.sinks.kafka_records import Encoder, Oversized, QuarantineTopic
from spark_jobs.stages import row_packs
from spark_jobs.stages.table_rows import RowShape, changes_schema
from tests.spark_jobs.examples import schema_of, table
from writetime.cassandra.schema.fingerprint import describe
from writetime.config.kafka import EventsConfig, KafkaConfig
from writetime.events.envelope import About, place_of
from writetime.pipeline.quarantine.published import unsent
from writetime.storage.checksum import crc32c
from writetime.storage.local import LocalStore

TABLE = table("large", 70, {"id": "int", "v": "text"})
ABOUT = About("ring", "shop", "large", {})


def encoded(
    folder: Path, policy: str, values: list[str], limit: int = 2000, quarantine: QuarantineTopic | None = None, **kafka: Any
) -> list[dict[str, Any]]:
    stored = changes_schema(RowShape.of(TABLE, schema_of(TABLE)))
    version = {"v1": describe(TABLE, {})}
    config = KafkaConfig.model_validate({"bootstrap.servers": "127.0.0.1:1", "topic.prefix": "t", **kafka})
    encoder = Encoder(version, ABOUT, "t.shop.large", config.format, config.decimal_handling_mode, EventsConfig(), stored)
    encoder.oversized = Oversized(policy, limit, str(folder), "ring", quarantine)  # type: ignore[arg-type]
    rows = [
        {"batch": 3, "ordinal": at, "op": "c", "processed_at": 0, "key": {"id": at}, "before": None, "after": {"id": at, "v": value}}
        | {"changed": ["v"], "nodes": [], "ts_micro": 5, "table_id": str(TABLE.id), "schema_version": "v1", "replicas_expected": 1}
        for at, value in enumerate(values, start=1)
    ]
    batch = pa.RecordBatch.from_pylist(rows, schema=stored).append_column("publisher", pa.array([0] * len(rows), pa.int32()))
    return [row for out in encoder(iter([batch])) for row in out.to_pylist()]


def test_a_claim_goes_in_its_place(tmp_path: Path) -> None:
    small, large = encoded(tmp_path, "claim-check", ["s", "x" * 3000])
    assert json.loads(small["value"])["after"] == {"id": 1, "v": "s"}
    told = json.loads(large["value"])
    assert (told["after"], told["op"], place_of(told), json.loads(large["key"])) == (None, "c", (3, 2), {"id": 2})
    store = LocalStore(tmp_path)
    url = told["claim"]["url"]
    content = store.read(url.removeprefix(store.url.rstrip("/") + "/"))
    assert url.endswith("claims/t.shop.large/0000000003-2")
    assert (told["claim"]["size"], told["claim"]["crc32c"]) == (len(content), crc32c(content))
    assert json.loads(content)["after"] == {"id": 2, "v": "x" * 3000}
    # The same again, as new as its last sending, and with other bytes where the first may have been sent.
    os.utime(tmp_path / "claims/t.shop.large/0000000003-2", (0, 0))
    assert encoded(tmp_path, "claim-check", ["s", "x" * 3000]) == [small, large]
    assert (tmp_path / "claims/t.shop.large/0000000003-2").stat().st_mtime > 0
    other = encoded(tmp_path, "claim-check", ["s", "x" * 3000], format="json-schema", limit=8000)[1]
    assert "claim" not in json.loads(other["value"])["payload"]
    again = json.loads(encoded(tmp_path, "claim-check", ["s", "y" * 3000])[1]["value"])["claim"]
    assert "0000000003-2~" in again["url"]
    assert store.read("claims/t.shop.large/0000000003-2") == content


def test_or_nothing_goes_and_the_quarantine_holds_it(tmp_path: Path) -> None:
    (small,) = encoded(tmp_path, "quarantine", ["s", "x" * 3000])
    assert (small["ordinal"], small["topic"], small["stream"]) == (1, "t.shop.large", "t.shop.large")
    store = LocalStore(tmp_path)
    stem = "quarantine/ring/unpublished/t.shop.large/0000000003-2"
    about = json.loads(store.read(f"{stem}.json"))
    assert (about["kind"], about["sequence"], json.loads(bytes.fromhex(about["key"]))) == ("oversized", [3, 2], {"id": 2})
    assert json.loads(store.read(f"{stem}.bin"))["after"] == {"id": 2, "v": "x" * 3000}


def test_and_another_topic_is_told_in_its_place(tmp_path: Path) -> None:
    quarantine = QuarantineTopic("t.__quarantine", "json", None)
    rows = ["s", "x" * 3000, "t"]
    small, aside, after = encoded(tmp_path, "quarantine", rows, quarantine=quarantine)
    assert [(row["stream"], row["topic"], row["ordinal"]) for row in (small, aside, after)] == [
        ("t.shop.large", "t.shop.large", 1),
        ("t.shop.large", "t.__quarantine", 2),
        ("t.shop.large", "t.shop.large", 3),
    ]
    assert (aside["op"], aside["deletes"]) == ("quarantined", False)
    name = "quarantine/ring/unpublished/t.shop.large/0000000003-2.bin"
    told = json.loads(aside["value"])
    assert (json.loads(aside["key"]), told["name"], told["kind"], told["bytes"]) == ({"name": name}, name, "oversized", None)
    assert (told["table"], told["topic"], told["batch"], told["ordinal"]) == ("shop.large", "t.shop.large", 3, 2)
    assert "xxx" not in aside["value"].decode()
    store = LocalStore(tmp_path)
    assert told["size"] == len(store.read(name))
    # The warehouse is told the same, by the note.
    (record,) = unsent(store, "ring", 2, 3)
    assert quarantine.record(record) == (aside["key"], aside["value"])
    assert list(unsent(store, "ring", 3, 9)) == []
    assert encoded(tmp_path, "quarantine", rows, quarantine=quarantine) == [small, aside, after]


def test_or_the_sender_meets_it(tmp_path: Path) -> None:
    assert len(encoded(tmp_path, "wait", ["s", "x" * 3000])) == 2
    assert list(LocalStore(tmp_path).list()) == []


def test_what_cannot_be_encoded_says_why() -> None:
    of = table("numbers", 71, {"id": "int", "line": "int", "n": "varint"}, clustering=1)
    stored = changes_schema(RowShape.of(of, schema_of(of)))
    events = EventsConfig()
    encoder = Encoder({"v1": describe(of, {})}, ABOUT, "t.shop.numbers", "json", "string", events, stored, varints="long")
    keys, numbers = [(1, 1), (1, None), (1, 3)], ["1", str(2**63), "4"]
    about = {"op": "c", "processed_at": 0, "before": None, "changed": ["n"], "nodes": [], "ts_micro": 5}
    about |= {"table_id": str(of.id), "schema_version": "v1", "replicas_expected": 1, "batch": 3}
    rows = [
        about | {"ordinal": at, "key": {"id": key, "line": line}, "after": {"id": key, "line": line, "n": number}}
        for at, ((key, line), number) in enumerate(zip(keys, numbers, strict=True), start=1)
    ]
    batch = pa.RecordBatch.from_pylist(rows, schema=stored).append_column("publisher", pa.array([0] * len(rows), pa.int32()))
    first, large, last = (row for out in encoder(iter([batch])) for row in out.to_pylist())
    assert [json.loads(each["value"])["after"]["n"] for each in (first, last)] == [1, 4]
    assert large["value"] is None
    assert large["refused"].startswith("a varint is larger than 64 bits. Set kafka.varint.handling.mode")


# --- packs


def test_packs_keep_each_publishers_records_in_sending_order(monkeypatch: pytest.MonkeyPatch) -> None:
    places = [(p, stream, batch, n) for n in (3, 1, 10, 2) for batch in (2, 1) for stream in ("t.a", "t.a.b") for p in (1, 0)]
    about = {**dict.fromkeys(RECORDS.names), "topic": "t", "key": b"k", "deletes": False}
    rows = [{**about, "publisher": p, "stream": stream, "batch": batch, "ordinal": n} for p, stream, batch, n in places]
    given = iter([pa.RecordBatch.from_pylist(rows[:7], schema=RECORDS), pa.RecordBatch.from_pylist(rows[7:], schema=RECORDS)])
    packs = sorted(
        (row for out in by_publisher(lambda batches: batches)(given) for row in out.to_pylist()),
        key=lambda row: (row["publisher"], row["first"]),
    )
    sent: list[Any] = []
    publisher = Publisher(KafkaConfig.model_validate({"bootstrap.servers": "127.0.0.1:1", "topic.prefix": "t"}))
    monkeypatch.setattr(Publisher, "send_all", lambda _, records: iter([Sent(len([sent.append(Row._make(row)) for row in records]))]))
    results = list(publisher.send_packs(pa.Table.from_pylist(packs, schema=PACKS).to_batches(max_chunksize=1)))
    assert [pickle.loads(out["sent"][0].as_py()).events for out in results] == [16, 16]
    assert [(row.publisher, row.batch, row.stream, row.ordinal) for row in sent] == sorted((p, b, s, n) for p, s, b, n in places)


def test_packs_that_overlap_with_no_other_are_not_kept_back(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of those that overlap, as after a compaction of several batches, what does not fit in memory is in a file."""
    monkeypatch.setattr(row_packs, "SORTED_BYTES", 1000)
    about = {**dict.fromkeys(RECORDS.names), "publisher": 0, "topic": "t", "stream": "t", "batch": 1, "value": bytes(300), "deletes": False}
    shares = [range(1, 10), range(10, 60, 2), range(11, 60, 5), range(12, 60, 10), range(60, 70)]
    made = [
        list(
            by_publisher(lambda batches: batches)(
                iter([pa.RecordBatch.from_pylist([{**about, "ordinal": n} for n in some], schema=RECORDS)])
            )
        )
        for some in shares
    ]
    asked: list[int] = []

    def given() -> Iterator[pa.RecordBatch]:
        for number, (pack,) in enumerate(made):
            asked.append(number)
            yield pack

    sent: list[tuple[int, int]] = []

    def send(_: Publisher, records: Iterable[Any]) -> Iterator[Sent]:
        sent.extend((row.ordinal, asked[-1]) for row in map(Row._make, records))
        return iter([Sent(len(sent))])

    monkeypatch.setattr(Publisher, "send_all", send)
    list(Publisher(KafkaConfig.model_validate({"bootstrap.servers": "127.0.0.1:1", "topic.prefix": "t"})).send_packs(given()))
    assert [ordinal for ordinal, _ in sent] == sorted(n for some in shares for n in some)
    assert {ordinal: number for ordinal, number in sent if ordinal in (1, 69)} == {1: 1, 69: 4}


def test_stretches_are_sent_in_order_by_each_publisher(monkeypatch: pytest.MonkeyPatch) -> None:
    """Those that are in order and overlap with no other are not kept back."""
    about = {**dict.fromkeys(RECORDS.names), "topic": "t", "value": b"v", "deletes": False}
    sources = [("t.a", 2, [5, 6, 7, 8]), ("t.a", 2, [1, 2, 4]), ("t.a", 2, [3]), ("t", 1, [4, 3, 2, 1]), ("t.b", 1, [1, 2])]
    asked: list[int] = []

    def stretch(at: int, stream: str, batch: int, numbers: list[int]) -> Stretch:
        rows = [{**about, "publisher": n % 2, "stream": stream, "batch": batch, "ordinal": n} for n in numbers]

        def records(publisher: int) -> Iterator[pa.RecordBatch]:
            asked.append(at)
            yield pa.RecordBatch.from_pylist([row for row in rows if row["publisher"] == publisher], schema=RECORDS)

        keys = [sending_key(batch, stream, n) for n in numbers]
        assert keys == pc.cast(_sending_order(pa.RecordBatch.from_pylist(rows, schema=RECORDS)), pa.binary()).to_pylist()
        return Stretch(min(keys), max(keys), keys == sorted(keys), records)

    sent: list[Any] = []

    def send(_: Publisher, records: Iterable[Any]) -> Iterator[Sent]:
        found = [(row.batch, row.stream, row.ordinal, row.publisher, asked[-1]) for row in map(Row._make, records)]
        sent.append(found)
        return iter([Sent(len(found))])

    monkeypatch.setattr(Publisher, "send_all", send)
    publisher = Publisher(KafkaConfig.model_validate({"bootstrap.servers": "127.0.0.1:1", "topic.prefix": "t"}))
    made = publisher.send_stretches([stretch(at, *source) for at, source in enumerate(sources)])
    results = list(made(iter([pa.RecordBatch.from_pydict({"id": [0]}), pa.RecordBatch.from_pydict({"id": [1]})])))
    places = sorted((batch, stream, n, n % 2) for stream, batch, numbers in sources for n in numbers)
    assert [[row[:4] for row in found] for found in sent] == [[place for place in places if place[3] == each] for each in (0, 1)]
    assert [pickle.loads(out["sent"][0].as_py()).events for out in results] == [len(found) for found in sent]
    assert {row[4] for row in sent[0] if row[:2] == (1, "t.b")} == {4}
    assert {row[4] for row in sent[0] if row[:3] == (2, "t.a", 8)} == {0}
