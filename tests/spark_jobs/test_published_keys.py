"""The events of each published key are one chain, and an upsert consumer of them ends with the rows that are there."""

from __future__ import annotations

import json
import struct
from collections.abc import Iterable
from decimal import Decimal
from pathlib import Path
from typing import Any, cast

import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from spark_jobs.sinks.kafka_records import Encoder, required_keys
from spark_jobs.stages.event_pages import PAGES, change_rows, pages
from spark_jobs.stages.table_rows import RowShape, changes_schema
from tests.examples import examples
from tests.spark_jobs.examples import NOW, ORDERS, THEN, cells, events_of, folded, frame, of_kind, paged, payloads, schema_of, stored, table
from writetime.cassandra.commitlog.encode import encode_mutation
from writetime.cassandra.model import Cell, DeletionTime, Liveness, Mutation, PartitionUpdate, Row
from writetime.cassandra.schema.fingerprint import describe
from writetime.cassandra.schema.model import Schema, Table, UserType
from writetime.cassandra.types.byte_comparable import encoder
from writetime.cassandra.types.types import parse_type
from writetime.config.kafka import EventsConfig
from writetime.errors import PublishError
from writetime.events.envelope import About
from writetime.events.serialization import avro_schemas

KEY = b"\0\0\0\1"
SECOND = 1_000_000
EVENTS = "event"


def update(**parts: Any) -> Mutation:
    return Mutation((PartitionUpdate(ORDERS.id, KEY, **parts),))


def gone(timestamp: int) -> DeletionTime:
    return DeletionTime(timestamp, timestamp // SECOND)


# --- static content alone, and the row whose clustering has no bytes


def written(what: str, at: int) -> Mutation:
    """A write of the row without bytes, of another row, or of static content, each with its own value."""
    timestamp = THEN + at * SECOND
    line = b"" if what.endswith("empty") else KEY
    match what.split(" ")[0]:
        case "static":
            return update(static_row=Row(None, cells=cells(ORDERS, {"note": str(at)}, timestamp)))
        case "unset":
            return update(static_row=Row(None, cells=(Cell("note", timestamp, b"", None, 0, timestamp // SECOND),)))
        case "write":
            return update(rows=(Row((line,), Liveness(timestamp), cells=cells(ORDERS, {"name": str(at)}, timestamp)),))
        case "delete":
            return update(rows=(Row((line,), deletion=gone(timestamp)),))
    return update(deletion=gone(timestamp))


def rows_after(steps: Iterable[tuple[str, int]]) -> dict[str, Any]:
    """What SELECT returns: by published key, the static column and the row's own."""
    static, rows = None, dict[str, str]()
    for what, at in steps:
        line = None if what.endswith("empty") else 1
        name = json.dumps(line)
        if what == "static":
            static = str(at)
        elif what == "unset":
            static = None
        elif what.startswith("write"):
            rows[name] = str(at)
        elif what.startswith("delete"):
            rows.pop(name, None)
        else:
            static, rows = None, {}
    if static is not None and not rows:
        return {"null": (static, None)}
    return {name: (static, value) for name, value in rows.items()}


STEPS = ["static", "static", "unset", "write empty", "write empty", "delete empty", "write other", "delete other", "partition"]


def played(rows: list[dict[str, Any]], state: dict[str, Any]) -> None:
    """What an upsert consumer does; fails if an event does not begin where the last one of its key ended."""
    numbered = [(row, event) for row, event in zip(of_kind(rows, EVENTS), payloads(rows, EVENTS), strict=True) if row["seq"] is not None]
    for _, event in sorted(numbered, key=lambda pair: pair[0]["seq"]):
        key = json.dumps(event["key"]["line"])
        before, after = (row and (row["note"], row["name"]) for row in (event["before"], event["after"]))
        assert state.get(key) == before, event
        state.pop(key, None)
        if after is not None:
            state[key] = after


@settings(max_examples=examples(60), suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_they_are_one_chain(data: st.DataObject, tmp_path_factory: pytest.TempPathFactory) -> None:
    steps = [(what, at) for at, what in enumerate(data.draw(st.lists(st.sampled_from(STEPS), min_size=1, max_size=12)), 1)]
    engine = data.draw(st.sampled_from(["python", "auto"]))
    options: dict[str, Any] = {}
    cut = data.draw(st.integers(0, len(steps)))
    state: dict[str, Any] = {}
    for number, some in enumerate((steps[:cut], steps[cut:])):
        found = folded([frame(written(*step)) for step in some], engine=engine, now=NOW - 50 + 50 * number, **options)
        played(found, state)
        assert state == rows_after(steps[: cut if number == 0 else len(steps)])
        # Current rows take one event of each row.
        assert sum(row["last"] for row in of_kind(found, EVENTS)) <= 3
        if of_kind(found, "record"):
            options |= {"since": NOW - 50, "shards": {ORDERS.id: stored(tmp_path_factory.mktemp("state"), found)}}


@pytest.mark.parametrize("engine", ["python", "auto"])
@pytest.mark.parametrize(
    ("first", "second", "ops"),
    [
        (["write empty", "static"], ["delete empty"], "dc"),
        (["static"], ["write empty"], "dc"),
        (["static"], ["write empty", "delete empty"], "dcdc"),
        (["static", "write other"], ["delete other", "write empty"], "dcdc"),
    ],
)
def test_what_goes_comes_before_what_is_there_then(engine: Any, first: list[str], second: list[str], ops: str, tmp_path: Path) -> None:
    before, after = ([frame(written(what, at)) for at, what in enumerate(some, start)] for some, start in ((first, 1), (second, 5)))
    shard = stored(tmp_path, folded(before, now=NOW - 50))
    found = folded(after, engine=engine, since=NOW - 50, shards={ORDERS.id: shard})
    of_key = [event for _, event in sorted(zip([row["seq"] for row in of_kind(found, EVENTS)], payloads(found, EVENTS), strict=True))
              if event["key"]["line"] is None]  # fmt: skip
    assert "".join(event["op"] for event in of_key) == ops[-len(of_key) :]
    assert [event["op"] for event in of_key[-2:]] == list(ops[-2:])


# --- keys of any type, in any format

TYPES = {("shop", "pair"): UserType("shop", "pair", ("a", "b"), ("int", "text"))}
TWO = struct.pack(">i", 4)
SPELLINGS: dict[str, list[list[bytes]]] = {
    "int": [[b"\0\0\0\1"], [b"\0\0\0\2"]],
    "varint": [[b"\1", b"\0\1", b"\0\0\1"], [b"\xff", b"\xff\xff"], [b"\0\x80"]],
    "decimal": [[b"\0\0\0\1\x0a", b"\0\0\0\0\1", b"\0\0\0\2\x64", b"\0\0\0\2\0\x64"], [b"\0\0\0\0\2"]],
    "boolean": [[b"\0"], [b"\1", b"\2", b"\xff"]],
    "double": [[bytes.fromhex("7ff8000000000000"), bytes.fromhex("7ff8000000000007")], [bytes(8)], [b"\x80" + bytes(7)]],
    "tuple<int, int>": [[TWO + KEY, TWO + KEY + b"\xff" * 4], [TWO + KEY + bytes(4)], [TWO + KEY + TWO + KEY]],
    "frozen<pair>": [[TWO + KEY, TWO + KEY + b"\xff" * 4], [TWO + KEY + bytes(4)]],
    "uuid": [[bytes(16)], [bytes(15) + b"\1"]],
    "frozen<list<decimal>>": [[struct.pack(">ii", 1, 5) + each for each in (b"\0\0\0\0\1", b"\0\0\0\1\x0a")]],
}
"""By type, the spellings of some values: equal to Cassandra as clusterings, and each a partition of its own."""


def records(of: Table, schema: Schema, found: list[dict[str, Any]], encoder_: Encoder) -> list[dict[str, Any]]:
    """Records of the events, in their order."""
    given = pages(iter([pa.RecordBatch.from_pylist(paged(of_kind(found, EVENTS), schema), schema=PAGES)]))
    about = {"batch": 1, "table_id": str(of.id), "schema_version": "v1"}
    made = [out.to_pylist() for out in encoder_(_published(change_rows(encoder_.stored, about, cells=False)(given)))]
    return sorted((row for out in made for row in out), key=lambda row: row["ordinal"])


def _published(batches: Iterable[pa.RecordBatch]) -> Any:
    return (batch.append_column("publisher", pa.array([0] * batch.num_rows, pa.int32())) for batch in batches)


def encoder_of(of: Table, schema: Schema, format: Any, numbers: Any) -> Encoder:
    stored_as = changes_schema(RowShape.of(of, schema))
    about, events = About("ring", "shop", of.name, {}, "cdc"), EventsConfig()
    made = Encoder({"v1": describe(of, schema.types)}, about, "cdc.shop.t", format, numbers, events, stored_as)
    made.learn("v1", False, None)
    if format == "avro":
        shape = made.shapes(stored_as)("v1")
        made.registered["v1"] = {False: (avro_schemas(shape, about, wide=False), (1, 2))}
    return made


@settings(max_examples=examples(120))
@given(data=st.data())
def test_a_consumer_has_the_rows_that_are_there(data: st.DataObject) -> None:
    of_partition, of_row = (data.draw(st.sampled_from(sorted(SPELLINGS))) for _ in range(2))
    format, numbers = (
        data.draw(st.sampled_from(["json", "json-schema", "avro"])),
        data.draw(st.sampled_from(["string", "precise", "double"])),
    )
    of = table("t", 9, {"id": of_partition, "line": of_row, "v": "int"}, clustering=1)
    schema, order = schema_of(of, types=TYPES), encoder(parse_type(of_row, "shop", TYPES))
    try:
        made = encoder_of(of, schema, format, numbers)
    except PublishError:
        assert numbers == "double"
        assert any(name in f"{of_partition} {of_row}" for name in ("decimal", "varint"))
        return
    there: dict[Any, int] = {}
    frames = []
    for at in range(data.draw(st.integers(1, 10))):
        pk, line = (data.draw(st.sampled_from(data.draw(st.sampled_from(SPELLINGS[kind])))) for kind in (of_partition, of_row))
        row = Row((line,), Liveness(THEN + at), cells=cells(of, {"v": at}, THEN + at, schema))
        is_deletion = data.draw(st.integers(0, 3)) == 0
        row = Row((line,), deletion=gone(THEN + at)) if is_deletion else row
        frames.append(frame(encode_mutation(Mutation((PartitionUpdate(of.id, pk, rows=(row,)),)), schema), position=at))
        there[pk, order(line)] = -1 if is_deletion else at
    found = folded(frames, schema, engine=data.draw(st.sampled_from(["python", "auto"])))
    refused = {each["position"] for each in payloads(found, "quarantined")}
    kept = {}
    for row in records(of, schema, found, made):
        kept[row["key"]] = row["value"] if not row["deletes"] else None
    values = [json.loads(value) for value in kept.values() if value is not None] if format != "avro" else None
    expected = sorted(at for at in there.values() if at >= 0 and at not in refused)
    assert sum(value is not None for value in kept.values()) == len(expected)
    if values is not None:
        assert sorted((value.get("payload") or value)["after"]["v"] for value in values) == expected
    # Only what no driver writes is refused.
    assert all(_is_odd(frames[at], of_partition, of_row) for at in refused)


def _is_odd(row: dict[str, Any], of_partition: str, of_row: str) -> bool:
    spelled = {each for values in SPELLINGS[of_partition] for each in values[1:]} | {b"\0\0\0\4\0\0\0\1"}
    odd = {TWO + KEY, TWO + KEY + bytes(4), b"\0\0\0\2\0\x64", *(spelled if of_partition != "decimal" else ())}
    return any(each in cast(bytes, row["body"]) for each in odd)


def test_keys_that_would_be_rounded_stop_their_table_by_name() -> None:
    for columns in ({"id": "decimal"}, {"id": "int", "c": "frozen<list<varint>>"}):
        of = table("t", 9, columns, clustering=len(columns) - 1)
        with pytest.raises(PublishError, match=r"would be a double.*decimal\.handling\.mode") as raised:
            encoder_of(of, schema_of(of), "json", "double")
        assert "shop.t" in str(raised.value)
        assert not raised.value.retriable


def test_a_partition_of_another_spelling_is_quarantined_alone() -> None:
    of = table("t", 9, {"id": "varint", "v": "int"})
    schema = schema_of(of)

    def insert(pk: bytes, at: int) -> dict[str, Any]:
        row = Row((), Liveness(THEN), cells=cells(of, {"v": at}, THEN, schema))
        return frame(Mutation((PartitionUpdate(of.id, pk, rows=(row,)),)), position=at, schema=schema)

    for engine in ("python", "auto"):
        found = folded([insert(b"\1", 1), insert(b"\0\1", 2), insert(b"\2", 3)], schema, engine=cast(Any, engine))
        assert sorted(event["key"]["id"] for event in payloads(found, EVENTS)) == ["1", "2"]
        (refused,) = payloads(found, "quarantined")
        assert refused["position"] == 2
        assert "not in the one spelling of its value" in refused["detail"]


def test_events_of_a_decimal_clustering_have_one_key(tmp_path: Path) -> None:
    of = table("t", 9, {"id": "int", "line": "decimal", "v": "int"}, clustering=1)
    schema = schema_of(of)

    def insert(line: str, at: int) -> dict[str, Any]:
        raw = parse_type("decimal", "shop", {}).encode(Decimal(line))
        row = Row((raw,), Liveness(THEN + at), cells=cells(of, {"v": at}, THEN + at, schema))
        return frame(Mutation((PartitionUpdate(of.id, KEY, rows=(row,)),)), schema=schema)

    for engine in ("python", "auto"):
        found = folded([insert(line, at) for at, line in enumerate(["1.00", "1", "1.0", "20", "2E+1"])], schema, engine=cast(Any, engine))
        events = payloads(found, EVENTS)
        assert {event["key"]["line"] for event in events} == {"1", "20"}
        assert {row["line"] for event in events for row in (event["before"], event["after"]) if row} == {"1", "20"}
        assert {event["key"]["line"] for event in events_of(paged(of_kind(found, EVENTS), schema))} == {"1", "20"}


def test_which_fields_of_a_key_are_required() -> None:
    """Whatever is added to the table, and whatever deletes are."""
    assert required_keys(ORDERS) == ["id"]
    assert required_keys(table("t", 1, {"a": "int", "b": "text", "c": "int"}, partition=2)) == ["b"]
