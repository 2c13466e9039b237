"""Many events at once are what one by one makes of them, byte for byte: as JSON, and as fastavro writes Avro."""

from __future__ import annotations

import itertools
import json
from collections.abc import Mapping
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.cassandra.types.typed import kind_of, typed_values
from tests.events import test_source as orders
from tests.events.test_envelope import CHANGE, kinds
from tests.events.test_round_trips import IN_ARROW
from tests.events.test_serialization import stored
from tests.examples import examples
from writetime.cassandra.types.types import CqlType
from writetime.errors import DecodeError
from writetime.events.arrow import arrow_type, to_arrow_value
from writetime.events.converters import JSON
from writetime.events.envelope import About, Shape, encode, rows_of
from writetime.events.json_columns import Columns
from writetime.events.records import Records, key_lists, records_of
from writetime.events.serialization import Codec, avro_schemas, codec_of, form_of

KEYS = kinds(id="int", line="text")
KNOWN = pa.map_(pa.string(), pa.int64())
HOST = "00000000-0000-0000-0000-000000000001"
ABOUT = About("ring", "shop", "orders", {HOST: "10.0.0.1"}, "cdc", {3: 1_777_894_199_123_457})


def one_by_one(shape: Shape, codec: Any, batch: pa.RecordBatch) -> list[tuple[bytes | None, bytes]]:
    return [(codec.key(shape.key(row)), codec.value(shape.value(row, ABOUT))) for row in rows_of(batch)]


def narrow_codec(shape: Shape, format: Any) -> Codec:
    schemas = avro_schemas(shape, ABOUT, wide=False) if format == "avro" else None
    return codec_of(format, shape, "cdc.shop.orders", {} if schemas is None else {False: (schemas, (7, 1 << 30))}, wide=False)


def records(shape: Shape, format: Any = "json") -> Records:
    return records_of(shape, ABOUT, narrow_codec(shape, format))


def expect_same(shape: Shape, format: Any, batch: pa.RecordBatch) -> None:
    codec, found = narrow_codec(shape, format), records(shape, format)
    try:
        expected = one_by_one(shape, codec, batch)
    except DecodeError:
        with pytest.raises(DecodeError):
            found.encode(batch)
        return
    keys, values = found.encode(batch)
    assert list(zip(keys.to_pylist(), values.to_pylist(), strict=True)) == expected
    assert found.takes(batch).to_pylist() == [True] * batch.num_rows


def rows(kind: CqlType, values: list[Any], *facts: Mapping[str, Any]) -> pa.RecordBatch:
    """Events of a table with a column of that type: each value is written, and changed to the next one. What else is
    known of them takes turns."""
    columns = {**KEYS, "v": kind}
    held = [None, *({"id": at, "line": f'{at}"\\\n\x7fü木', "v": value} for at, value in enumerate(values)), None]
    key = {"id": 1, "line": 'a\t"'}
    turns = itertools.cycle(facts or [{}])
    made = [{**CHANGE, **next(turns), "key": key, "before": before, "after": after} for before, after in itertools.pairwise(held)]
    schema = stored(columns)
    place = schema.get_field_index("key")
    schema = schema.set(place, schema.field("key").with_type(pa.struct([("id", pa.int32()), ("line", pa.string())])))
    schema = pa.schema([*schema, ("writetime", KNOWN), ("expires_at", KNOWN)])
    return pa.RecordBatch.from_pylist(made, schema=schema)


moments = st.one_of(
    st.integers(-(10**15), 2 * 10**15), st.sampled_from([-(2**63), 2**63 - 1, -1, 999, 9_223_372_036_854_775, 1_777_894_199_123_456])
)
known = st.none() | st.dictionaries(st.sampled_from(["v", "line", 'q"']), st.integers(-9, 9) | st.integers(-(10**12), 10**12)).map(
    lambda known: list(known.items())
)
facts = st.fixed_dictionaries(
    {
        "writetime": known,
        "expires_at": known,
        "ts_micro": moments,
        "batch": st.sampled_from([1, 3]),
        "reason": st.sampled_from([None, "snapshot", "expiry"]),
        "nodes": st.sampled_from([[], [HOST], ["x", HOST]]),
        "changed": st.lists(st.sampled_from(["v", 'q"']), max_size=2),
        "changed_elements": st.sampled_from([None, "{}", '{"v": {"added": ["ü"]}}']),
        "replicas_expected": st.sampled_from([None, 3]),
        "file": st.sampled_from([None, "CommitLog-7-1.log"]),
    }
)


@pytest.mark.parametrize("cells", [False, True])
@pytest.mark.parametrize("format", ["json", "json-schema", "avro"])
@settings(max_examples=examples(400))
@given(
    typed_values(limits=IN_ARROW, empty_keys=False),
    st.sampled_from(["string", "precise", "double"]),
    st.sampled_from([None, "string", "long"]),
    st.sampled_from(["isostring", "adaptive", "microseconds"]),
    st.lists(facts, min_size=1, max_size=2),
)
def test_every_type_and_option(
    format: Any, cells: bool, typed: tuple[str, Any], numbers: Any, varints: Any, times: Any, about: list[dict[str, Any]]
) -> None:
    kind = kind_of(typed[0])
    value = to_arrow_value(kind, typed[1])
    batch = rows(kind, [value, None, value], *about)
    shape = Shape(KEYS, {**KEYS, "v": kind}, batch.schema, form=form_of(format, numbers, times, varints), cells=cells)
    expect_same(shape, format, batch)
    expect_same(shape, format, batch.slice(1, 2))
    expect_same(shape, format, batch.slice(3))
    expect_same(shape, format, batch.slice(0, 0))
    placed = key_lists([*KEYS.values()], batch["key"]).to_pylist()
    assert placed == [encode([*JSON.fields(KEYS)(row["key"]).values()]) for row in rows_of(batch)]


@pytest.mark.parametrize(("kind", "of_bits"), [("float", np.uint32), ("double", np.uint64)])
def test_numbers_of_any_bits(kind: str, of_bits: Any) -> None:
    """And such as people write: with few digits, whole ones, very large and very small ones."""
    random = np.random.default_rng(1)
    stored = arrow_type(kind_of(kind)).to_pandas_dtype()
    written = random.integers(-(10**9), 10**9, 3000) / 10.0 ** random.integers(-8, 15, 3000)
    edges = [0.0, -0.0, 1e-4, 9.999e-5, 1e10, 9999999999.5, 1e16, 9.99e15, 1e30, 1e-30, 1.4e-45]
    any_bits = random.integers(0, np.iinfo(of_bits).max, 3000, of_bits).view(stored)
    values = pa.array(np.concatenate([any_bits, written.astype(stored), np.array(edges, stored)]))
    convert = JSON.converter(kind_of(kind))
    assert convert is not None
    expected = [encode(convert(value)).decode() for value in values.to_pylist()]
    assert Columns(JSON).values(kind_of(kind), values).to_pylist() == expected


def test_rare_rows_stay_with_the_shape() -> None:
    """Events of the whole table or of many rows, values of dropped columns, keys without a required column."""
    changed_rows = list(orders.rows())
    batch = pa.RecordBatch.from_pylist(changed_rows, schema=orders.SCHEMA)
    shape = Shape(orders.KEYS, orders.COLUMNS, orders.SCHEMA, required=["line"])
    expected = [row["key"] is not None for row in changed_rows]
    assert records(shape).takes(batch).to_pylist() == expected
    assert records(Shape(orders.KEYS, orders.COLUMNS, orders.SCHEMA, required=["line"], cells=True)).takes(batch).to_pylist() == expected
    without = {name: kind for name, kind in orders.COLUMNS.items() if name in orders.KEYS}
    dropped = Shape(orders.KEYS, without, orders.SCHEMA, history=[orders.COLUMNS])
    wide = [dropped.is_wide(row) for row in rows_of(batch)]
    assert any(wide)
    assert records(dropped).takes(batch).to_pylist() == [taken and not is_wide for taken, is_wide in zip(expected, wide, strict=True)]


def test_a_value_that_is_stored_as_another_type_stays_with_the_shape() -> None:
    """A column that was made anew with another type: older values are aside, and no version shows them as its own."""
    row = pa.struct([("id", pa.int32()), ("line", pa.string()), ("v", pa.string()), ("_was_1_v", pa.list_(pa.int32()))])
    found = rows(kind_of("text"), ["a", "b"])
    schema = pa.schema([field.with_type(row) if field.name in ("before", "after") else field for field in found.schema])
    made = found.to_pylist()
    batch = pa.RecordBatch.from_pylist(made, schema=schema)
    shape = Shape(KEYS, {**KEYS, "v": kind_of("text")}, schema)
    expect_same(shape, "json", batch)
    made[1]["before"] = {**made[1]["before"], "_was_1_v": [1]}
    aside = pa.RecordBatch.from_pylist(made, schema=schema)
    assert records(shape).takes(aside).to_pylist() == [True, False, True]


@pytest.mark.parametrize("format", ["json", "json-schema", "avro"])
def test_tables_with_clustering_and_required_keys(format: Any) -> None:
    """Their events have bounds, which are null, and keys that are not."""
    batch = pa.RecordBatch.from_pylist([row for row in orders.rows() if row["key"] is not None], schema=orders.SCHEMA)
    form, required = form_of(format, "string"), ["id", "line", "day"]
    expect_same(Shape(orders.KEYS, orders.COLUMNS, orders.SCHEMA, form=form, required=required), format, batch)


@pytest.mark.parametrize("format", ["json", "json-schema", "avro"])
def test_keys_of_user_types_have_the_first_names(format: Any) -> None:
    keys = {"id": kind_of("frozen<addr>"), "renamed": kind_of("frozen<map<int, frozen<addr>>>")}
    batch, key = rows(kind_of("int"), [1, 2]), pa.struct([(name, arrow_type(kind)) for name, kind in keys.items()])
    addresses = [
        {"street": "ü", "zip": 7, "tags": None},
        {"street": None, "zip": 7, "tags": ["a"]},
        {"street": "x", "zip": None, "tags": None},
    ]
    held = [{"id": each, "renamed": [(1, each), (2, None)] if at else None} for at, each in enumerate(addresses)]
    schema = batch.schema.set(batch.schema.get_field_index("key"), pa.field("key", key))
    made = [{**row, "key": value} for row, value in zip(batch.to_pylist(), held, strict=True)]
    batch = pa.RecordBatch.from_pylist(made, schema=schema)
    columns = {**kinds(id="int", renamed="text"), "v": kind_of("int")}
    shape = Shape(keys, columns, schema, form=form_of(format, "string"), required=["id"], key_names=["id", "line"])
    expect_same(shape, format, batch)
    expect_same(shape, format, batch.slice(1))
    found = [shape.key(row) for row in rows_of(batch)]
    assert [list(each or {}) for each in found] == [["id", "line"]] * 3
    assert [(each or {})["id"] for each in found] == ['["ü",7]', '[null,7,["a"]]', '["x"]']
    assert [(each or {})["line"] for each in found][1] == '[{"key":1,"value":[null,7,["a"]]},{"key":2,"value":null}]'


REFUSED = [("json", "decimal", "precise"), ("json", "decimal", "double"), ("avro", "decimal", "double"), ("avro", "uuid", "string")]


@pytest.mark.parametrize(("format", "kind", "numbers"), [*REFUSED, ("json", "decimal", "string"), ("json", "uuid", "string")])
def test_a_required_value_of_no_bytes_stays_with_the_shape(format: Any, kind: str, numbers: Any) -> None:
    """Where it is null in the key, which is refused."""
    keys = kinds(id="int", line=kind)
    batch = rows(kind_of("int"), [1, 2])
    schema = batch.schema
    made = [{**row, "key": {"id": 1, "line": line}} for row, line in zip(batch.to_pylist(), ("1", "", "2"), strict=True)]
    batch = pa.RecordBatch.from_pylist(made, schema=schema)
    shape = Shape(keys, {**keys, "v": kind_of("int")}, schema, form=form_of(format, numbers), required=["line"])
    assert records(shape, format).takes(batch).to_pylist() == [True, (format, kind, numbers) not in REFUSED, True]


def test_a_field_that_avro_requires_is_not_null() -> None:
    batch = rows(kind_of("int"), [1, 2])
    place = batch.schema.get_field_index("table_id")
    without = batch.set_column(place, batch.schema.field(place), pa.nulls(batch.num_rows, pa.string()))
    shape = Shape(KEYS, {**KEYS, "v": kind_of("int")}, batch.schema, form=form_of("avro", "string"))
    with pytest.raises(DecodeError, match="a field is null that must not be"):
        records(shape, "avro").encode(without)


@pytest.mark.parametrize("format", ["json", "avro"])
def test_cells_without_facts_and_with_some_of_another_day(format: Any) -> None:
    """Changes that were stored when events were flat have no facts; an expiry of any number is told one by one."""
    changes = [{"ts_micro": 7, "writetime": [("v", at)], "expires_at": [("v", 60)], "changed": []} for at in (7, 8)]
    batch = rows(kind_of("text"), ["a", "b", "b"], *changes)
    shape = Shape(KEYS, {**KEYS, "v": kind_of("text")}, batch.schema, form=form_of(format, "string"), cells=True)
    expect_same(shape, format, batch)
    after = [json.loads(value)["after"] for value in records(shape).encode(batch)[1].to_pylist()] if format == "json" else []
    assert [row and row["v"]["set"] for row in after] in ([], [True, False, True, None])
    expect_same(shape, format, batch.drop_columns(["writetime", "expires_at"]))
    far = [{"expires_at": [("v", sign * 2**60)]} for sign in (1, -1)]
    for change in far:
        with pytest.raises(DecodeError, match="an expiry is beyond"):
            records(shape, format).encode(rows(kind_of("text"), ["a"], change))


def test_a_column_that_was_dropped_and_added_again() -> None:
    """Its values are in either of two places."""
    row = pa.struct([("id", pa.int32()), ("line", pa.string()), ("v", pa.string()), ("_was_1_v", pa.string())])
    found = rows(kind_of("text"), ["a", "b", "c"])
    schema = pa.schema([field.with_type(row) if field.name in ("before", "after") else field for field in found.schema])
    made = found.to_pylist()
    made[1]["before"] |= {"v": None, "_was_1_v": "z"}
    made[1]["after"] |= {"_was_1_v": "y"}
    batch = pa.RecordBatch.from_pylist(made, schema=schema)
    for format, cells in itertools.product(("json", "avro"), (False, True)):
        expect_same(Shape(KEYS, {**KEYS, "v": kind_of("text")}, schema, form=form_of(format, "string"), cells=cells), format, batch)
