"""Events of a key outside the tables, known by their content: those of before a rebuild."""

from __future__ import annotations

import io
import json
from datetime import UTC, datetime
from pathlib import Path
from typing import Any
from uuid import uuid4

import fastavro
import pytest

from spark_jobs.sinks.avro_files import files_with, without_events
from spark_jobs.stages import erased_events
from spark_jobs.stages.erased_events import KeyInEvents
from tests.spark_jobs.synthetic import CLUSTER, ORDERS
from writetime.cassandra.types.types import parse_type
from writetime.events.converters import AvroForm, JsonForm
from writetime.pipeline import chains
from writetime.pipeline.documents import Chain
from writetime.storage import layout, open_store

TOPIC = "p.shop.orders"
VALUES = {
    "int": 7,
    "text": 'ü"x',
    "bigint": 2**40,
    "uuid": "6cbda380-e583-11f1-817f-f173fd8e050e",
    "blob": b"\x00\xff",
    "timestamp": 1_777_890_000_123_000,
    "date": 20_000,
    "boolean": True,
    "decimal": "1.50",
    "varint": "123456789012345678901234567890",
    "frozen<list<int>>": [1, 2],
}
"""Values of key columns, as tables have them."""


@pytest.mark.parametrize("form", [JsonForm(), JsonForm("precise", "adaptive"), JsonForm("double", "microseconds")], ids=str)
@pytest.mark.parametrize("kind", VALUES)
def test_a_key_is_known_in_each_form_of_json(kind: str, form: JsonForm) -> None:
    kinds = {"id": parse_type(kind, "shop", {}), "line": parse_type("int", "shop", {})}
    key = KeyInEvents.of({"id": VALUES[kind], "line": 3}, kinds)
    row = form.fields(kinds)({"id": VALUES[kind], "line": 3})
    for event in (
        {"before": None, "after": {**row, "name": 1}},
        {"before": {**row, "name": 1}, "after": None},
        {"schema": {}, "payload": {"before": None, "after": row}},
        {"before": None, "after": {name: {"value": value, "set": True, "deletion_ts": None} for name, value in row.items()}},
    ):
        assert key.verdict(json.dumps(event).encode()) == "mine", event
    assert key.verdict(json.dumps({"before": None, "after": {**row, "line": 4}}).encode()) == "another's"
    assert key.verdict(json.dumps({"before": None, "after": None}).encode()) == "another's"


@pytest.mark.parametrize("content", [b"\x00\x00\x00\x00\x01rest", b"[1]", b"7", b'{"after": 7}'])
def test_what_is_no_event_is_not_said_to_be_anothers(content: bytes) -> None:
    assert KeyInEvents.of({"id": 7}, {"id": parse_type("int", "shop", {})}).verdict(content) == "unknown"


@pytest.mark.parametrize("kind", ["int", "text", "uuid", "blob", "timestamp", "date", "decimal"])
def test_a_key_is_known_in_avro(kind: str) -> None:
    """As fastavro reads what it has written."""
    avro: Any = {
        "int": "int",
        "text": "string",
        "decimal": "string",
        "uuid": {"type": "string", "logicalType": "uuid"},
        "blob": "bytes",
        "timestamp": {"type": "long", "logicalType": "timestamp-millis"},
        "date": {"type": "int", "logicalType": "date"},
    }
    kinds = {"id": parse_type(kind, "shop", {})}
    (value,) = AvroForm().fields(kinds)({"id": VALUES[kind]}).values()
    row = {"type": "record", "name": "Row", "fields": [{"name": "id", "type": avro[kind]}]}
    schema = {
        "type": "record",
        "name": "Event",
        "fields": [{"name": part, "type": ["null", row if part == "before" else "Row"]} for part in ("before", "after")],
    }
    out = io.BytesIO()
    fastavro.writer(out, fastavro.parse_schema(schema), [{"before": None, "after": {"id": value}}])
    (event,) = fastavro.reader(io.BytesIO(out.getvalue()))
    assert KeyInEvents.of({"id": VALUES[kind]}, kinds).is_in(event)


def avro_file(*events: tuple[int, int, int]) -> bytes:
    """A file of events (key, batch, ordinal)."""
    row = {"type": "record", "name": "Row", "fields": [{"name": "id", "type": "int"}]}
    source = {"type": "record", "name": "Source", "fields": [{"name": "sequence", "type": "string"}]}
    fields = [{"name": "before", "type": ["null", row]}, {"name": "after", "type": ["null", "Row"]}, {"name": "source", "type": source}]
    out = io.BytesIO()
    schema = fastavro.parse_schema({"type": "record", "name": "Event", "fields": fields})
    places = ({"sequence": f'["{b}","{o}"]'} for _, b, o in events)
    rows = [{"before": None, "after": {"id": key}, "source": place} for (key, *_), place in zip(events, places, strict=True)]
    fastavro.writer(out, schema, rows, codec="deflate")
    return out.getvalue()


def keys_in(content: bytes) -> list[int]:
    return [event["after"]["id"] for event in fastavro.reader(io.BytesIO(content))]


def test_files_and_claims_of_before_a_rebuild_are_found(tmp_path: Path) -> None:
    store = open_store(str(tmp_path))
    key = KeyInEvents.of({"id": 7}, {"id": parse_type("int", "shop", {})})
    assert erased_events.first_batch(store, CLUSTER) == 0
    chain = Chain(id=uuid4(), first=5, generation=1)
    chains.begin(store, CLUSTER, chains.Rebuild(chain=chain, begun_at=datetime(2026, 1, 1, tzinfo=UTC), segments=1))
    assert erased_events.first_batch(store, CLUSTER) == 5
    of_files, folder = open_store(str(tmp_path / "events")), layout.table_folder("shop", "orders")
    for name, content in {
        f"{folder}/0000000003-x.avro": avro_file((7, 3, 1), (8, 3, 2)),
        f"{folder}/0000000006-x.avro": avro_file((7, 6, 1)),
    }.items():
        of_files.put(name, content)
    (old,) = erased_events.former_files(store, CLUSTER, of_files, "shop", "orders")
    assert erased_events.has_key(of_files, old, key)
    erased_events.without_key(of_files, old, key)
    assert keys_in(of_files.read(old)) == [8]
    assert not erased_events.has_key(of_files, old, key)

    mine, other = (json.dumps({"before": None, "after": {"id": each}}).encode() for each in (7, 8))
    unsent = layout.unpublishable(CLUSTER, TOPIC, 4, 2)
    kept = {layout.claim(TOPIC, 4, 9): other, layout.claim(TOPIC, 5, 1): mine, layout.claim("p.shop.orders2", 4, 1): mine}
    gone = {layout.claim(TOPIC, 4, 1): mine, f"{layout.claim(TOPIC, 4, 1)}~0000abcd": mine, f"{unsent}.bin": mine}
    for name, content in {**kept, **gone, f"{unsent}.json": b"{}"}.items():
        store.put(name, content)
    found = erased_events.former_claims(store, CLUSTER, TOPIC)
    assert set(found) == {*gone, layout.claim(TOPIC, 4, 9)}
    for name in found:
        if erased_events.verdict_of(store, name, key) == "mine":
            erased_events.delete_claim(store, name)
    assert {each.name for each in store.names("claims/")} == set(kept)
    assert list(store.names("quarantine/")) == []


def test_events_of_a_file_are_found_by_their_place(tmp_path: Path) -> None:
    store, name = open_store(str(tmp_path)), f"{layout.table_folder('shop', 'orders')}/0000000003-x.avro"
    store.put(name, avro_file((7, 3, 1), (8, 3, 2)))
    assert files_with(store, ORDERS, [(3, 9)]) == []
    assert files_with(store, ORDERS, [(3, 1)]) == [name]
    without_events(store, name, [(3, 1)])
    assert keys_in(store.read(name)) == [8]
