"""What consumers of Debezium's events make of ours: Kafka Connect's JsonConverter and Debezium's own
ExtractNewRecordState, in a JVM."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path
from typing import Any

import pytest

from tests.cassandra.types.typed import kind_of
from tests.events.test_envelope import ABOUT, kinds
from tests.events.test_serialization import changed, stored
from tools.jars import need
from tools.java import java
from writetime.events.envelope import About, Shape
from writetime.events.naming import to_column
from writetime.events.serialization import JsonSchema, form_of

pytestmark = pytest.mark.timeout(300)
TOPIC = "cdc.shop.orders"
KEYS = kinds(id="int")
COLUMNS = {
    **KEYS,
    **kinds(v="text", n="bigint", at="timestamp", day="date", raw="blob", exact="decimal", f="float", d="double", ok="boolean"),
    "a b": kind_of("set<text>"),
    "m": kind_of("map<text, int>"),
    "pairs": kind_of("map<int, text>"),
    "two": kind_of("tuple<int, text>"),
}
ROW = {
    "id": 7,
    "v": "é",
    "n": 2**63 - 1,
    "at": 0,
    "day": 0,
    "raw": b"\0\xff",
    "exact": "1.50",
    "f": 0.5,
    "d": 1e300,
    "ok": True,
    "a b": ["x", None],
    "m": [("k", 1), ("l", None)],
    "pairs": [(1, "one")],
    "two": {"field_1": 1, "field_2": None},
}
SHOWN = {
    **ROW,
    "at": "1970-01-01T00:00:00.000Z",
    "day": "1970-01-01",
    "raw": "AP8=",
    "m": {"k": 1, "l": None},
    "pairs": [{"key": 1, "value": "one"}],
}
TOLD = {"__op": "u", "__source_ts_us": 2**63 - 1, "__source_reason": None, "__deleted": "false"}


@pytest.fixture(scope="module")
def classpath() -> str:
    return f"{need('connect')}/*"


def unwrapped(classpath: str, *records: tuple[bytes | None, bytes | None], fields: str = "op,source.ts_us,source.reason") -> list[Any]:
    """What the transform makes of records, given as key and value, with `fields` added; None where nothing comes
    out."""
    lines = "".join(f"{TOPIC}\t{(key or b'').decode()}\t{(value or b'').decode()}\n" for key, value in records)
    command = [java(), "-XX:TieredStopAtLevel=1", "-Xmx256m", "-cp", classpath, str(Path(__file__).with_name("Unwrap.java")), fields]
    done = subprocess.run(command, input=lines, capture_output=True, text=True, check=False, encoding="utf-8")
    assert done.returncode == 0, done.stderr
    return [json.loads(line) if line else None for line in done.stdout.splitlines()]


def record(
    row: dict[str, Any],
    *,
    cells: bool = False,
    numbers: Any = "string",
    claim: bool = False,
    about: About = ABOUT,
    times: Any = "isostring",
) -> tuple[bytes | None, bytes]:
    shape = Shape(KEYS, COLUMNS, SCHEMA, form=form_of("json-schema", numbers, times), cells=cells, required=KEYS)
    codec = JsonSchema(shape, TOPIC, wide=False)
    value = shape.claim(row, about, url="gs://b/claims/1", size=1, crc32c=2) if claim else shape.value(row, about)
    return codec.key(shape.key(row)), codec.value(value)


SCHEMA = stored({to_column(name): kind for name, kind in COLUMNS.items()})


def test_the_transform_reads_every_kind_of_event(classpath: str) -> None:
    held = {to_column(name): value for name, value in ROW.items()}
    updated = changed(SCHEMA, held, held)
    deleted = changed(SCHEMA, held, None, op="d", reason="row_delete")
    truncated = changed(SCHEMA, None, None, op="t", reason="truncate", key=None)
    # A range or partition delete as one event (`events.deletes: one`): no rows, its prefix for a key.
    at_once = changed(SCHEMA, None, None, op="d", reason="range_delete")
    key, _ = record(deleted)
    found = unwrapped(
        classpath,
        record(updated),
        record(deleted),
        (key, None),
        record(updated, numbers="precise"),
        record(updated, cells=True),
        record(updated, claim=True),
        record(truncated),
        record(changed(SCHEMA, None, held, op="c")),
        record(changed(SCHEMA, None, held, op="r")),
        record(at_once),
    )
    assert found[0] == {**SHOWN, **TOLD}
    assert found[1] == {**SHOWN, **TOLD, "__op": "d", "__source_reason": "row_delete", "__deleted": "true"}
    # A tombstone goes with the delete that was rewritten.
    assert found[2] is None
    assert found[3] == {**SHOWN, **TOLD, "exact": {"scale": 2, "value": "AJY="}}
    assert found[4]["v"] == {"value": "é", "deletion_ts": None, "set": False, "writetime": None}
    # Without rows there is nothing to unwrap: of a claim, and of a truncate.
    assert found[5:7] == [None, None]
    # What was new, and what was read from the ring.
    assert found[7:9] == [{**SHOWN, **TOLD, "__op": op} for op in ("c", "r")]
    # Of many rows gone at once there is none to show, either: who unwraps wants an event for each.
    assert found[9] is None


def test_the_transform_adds_all_of_debeziums_fields(classpath: str) -> None:
    held = {to_column(name): value for name, value in ROW.items()}
    row = changed(SCHEMA, held, held, ts_micro=1_777_894_199_123_456)
    fields = "op,ts_ms,ts_us,ts_ns,source.version,source.connector,source.name,source.ts_ms,source.ts_us,source.ts_ns,source.snapshot"
    fields += ",source.db,source.sequence,source.cluster,source.file,source.pos,source.keyspace,source.table,source.late"
    (found,) = unwrapped(classpath, record(row, about=About("ring", "shop", "orders", {}, "cdc")), fields=fields)
    expected = Shape(KEYS, COLUMNS, SCHEMA).value(row, About("ring", "shop", "orders", {}, "cdc"))
    assert {name: found[name] for name in SHOWN} == SHOWN
    for field in fields.split(","):
        part, _, name = field.rpartition(".")
        assert found[f"__{part}_{name}" if part else f"__{name}"] == (expected[part] if part else expected)[name], field


@pytest.mark.parametrize(("times", "at"), [("adaptive", 1_700_000_000_123), ("microseconds", 1_700_000_000_123_000)])
def test_times_are_numbers_of_debeziums_types(classpath: str, times: str, at: int) -> None:
    held = {to_column(name): value for name, value in ROW.items()} | {"at": 1_700_000_000_123_000, "day": 20_000}
    (found,) = unwrapped(classpath, record(changed(SCHEMA, held, held), times=times))
    assert found == {**SHOWN, **TOLD, "at": at, "day": 20_000}
