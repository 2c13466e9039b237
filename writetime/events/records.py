"""Keys and values of many events at once, as JSON and as Avro: what `Shape` and `serialization` make of each row, byte
for byte.

Strategy: the envelope's fields are columns or constants, known by `Records`; a form writes them side by side, row by row
(`json_columns`, `avro_columns`). Rows that are rare stay with `Shape`, as `takes` says: events of a whole table or of
many rows, values of dropped columns, keys that lack a required column. Must not know Kafka.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache, reduce
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

import writetime
from writetime.cassandra.types.types import CollectionType, CqlType, TupleType, UdtType, VectorType
from writetime.errors import DecodeError
from writetime.events import avro_columns, json_columns
from writetime.events.arrow import arrow_type
from writetime.events.converters import JSON, NUMBERS, AvroForm, JsonForm
from writetime.events.envelope import LONG_AGO, About, Shape, encode
from writetime.events.serialization import CELL, SOURCE, TIMES, Codec
from writetime.events.values import fields_of
from writetime.kernels.row_parts import Part, elements

Parts = list[Part]
Fact = Any
"""A field of the envelope: an Arrow array, or what it is in all rows."""
_Columns = json_columns.Columns | avro_columns.Columns
_UNWRITTEN: Final = {"deletion_ts": None, "set": False, "writetime": None}
"""Of a cell of which only the value is known."""
_CELL_BYTES: Final = 80
"""About what a cell takes beside its name and value."""
_INT64: Final = np.iinfo(np.int64)
_PAGE: Final = 1 << 24
"""Bytes of rows that are encoded at once: an Arrow array of strings holds 2 GB."""


@dataclass(frozen=True, slots=True)
class Records:
    """Encodes rows of one schema version. `heads`: what each key and value begins with: the schema of json-schema up to
    the payload, or the id of Avro's."""

    shape: Shape
    about: About
    heads: tuple[bytes, bytes] | None = None

    def takes(self, batch: pa.RecordBatch) -> Any:
        """Which rows these are, as an array of booleans."""
        key = batch["key"]
        left = [key.is_null()]
        left += [batch["bounds"].is_valid()] if "bounds" in batch.schema.names else []
        fields = enumerate(self.shape.record_keys.items())
        required = [(key.field(at), kind) for at, (name, kind) in fields if name in self.shape.required]
        left += [column.is_null() for column, _ in required]
        left += [pc.equal(column, "").fill_null(True) for column, kind in required if self._is_null_if_empty(kind)]
        for part in (batch["before"], batch["after"]):
            others = [
                place for column in self.shape.shown for place, _ in column.places if not _holds(column.kind, part.type.field(place).type)
            ]
            left += [pc.and_(part.is_valid(), part.field(place).is_valid()) for place in (*self.shape.dropped_at, *others)]
        return pc.invert(reduce(pc.or_, left))

    def encode(self, batch: pa.RecordBatch) -> tuple[Any, Any]:
        """Keys and values (binary) of rows that it takes. DecodeError for a value that the form cannot have."""
        if not batch.num_rows:
            return pa.array([], pa.binary()), pa.array([], pa.binary())
        names = sum(len(column.shown) + _CELL_BYTES * self.shape.cells for column in self.shape.shown)
        size = batch.nbytes + batch.num_rows * (sum(map(len, self.heads or ())) + 2 * names)
        rows = max(1, batch.num_rows // (1 + size // _PAGE))
        found = [self._page(batch.slice(at, rows)) for at in range(0, batch.num_rows, rows)]
        if len(found) == 1:
            return found[0]
        keys, values = zip(*found, strict=True)
        return pa.concat_arrays(keys), pa.concat_arrays(values)

    def _page(self, batch: pa.RecordBatch) -> tuple[Any, Any]:
        raise NotImplementedError

    def _is_null_if_empty(self, kind: CqlType) -> bool:
        """Whether the form has no text for a value of no bytes: of numbers, Avro's of uuids too."""
        if str(kind) in ("uuid", "timeuuid"):
            return isinstance(self.shape.form, AvroForm)
        return str(kind) in NUMBERS and self.shape.form.number_mode(str(kind)) != "string"

    def _row(self, columns: _Columns, batch: pa.RecordBatch, part: str) -> Parts:
        """The parts of before or after."""
        rows = batch[part]
        if rows.null_count == len(rows):
            return [columns.null]
        cells = _Cells(batch, [column.name for column in self.shape.shown]) if self.shape.cells and part == "after" else None
        fields: dict[str, Parts] = {}
        for number, column in enumerate(self.shape.shown):
            value = self._value(columns, column.kind, [rows.field(place) for place, _ in column.places])
            if self.shape.cells:
                facts = _UNWRITTEN if cells is None else cells.facts(number)
                value = self._cell(value, {**facts, "set": True} if column.name in self.shape.keys else facts)
            fields[column.shown] = value
        return columns.or_null(columns.record(fields), rows)

    @staticmethod
    def _value(columns: _Columns, kind: CqlType, stored: Sequence[Any]) -> Parts:
        """The parts of a column that is in one of several places, or in none."""
        held = [each for each in stored if _holds(kind, each.type)]
        if len(held) == 1:
            return columns.parts(kind, held[0])
        found: Any = None
        for each in reversed(held):
            values = columns.values(kind, each)
            found = values if found is None else pc.if_else(each.is_valid(), values, found)
        return [columns.null if found is None else columns.as_it_is(found)]

    def _cell(self, value: Parts, facts: Mapping[str, Fact]) -> Parts:
        """The parts of a column as a cell, with facts by the names of CELL."""
        raise NotImplementedError

    def _times(self, moments: Any) -> dict[str, Fact]:
        """A moment as the fields of the envelope; nanoseconds saturate."""
        micros = moments.view(pa.int64()).to_numpy()
        most = _INT64.max // 1000
        nanos = np.where(micros > most, _INT64.max, np.where(micros < -most, _INT64.min, np.clip(micros, -most, most) * 1000))
        return {"ts_ms": pa.array(micros // 1000), "ts_us": pa.array(micros), "ts_ns": pa.array(nanos)}

    def _source(self, batch: pa.RecordBatch) -> dict[str, Fact]:
        """The fields of `source` but `bounds`."""
        about = self.about
        hosts = batch["nodes"]
        addresses = _by_value(elements(hosts)[0], lambda host: about.addresses.get(host) or host)
        seen = pc.list_value_length(hosts)
        place = {"file": batch["file"], "pos": batch["pos"]}
        of_table = {"keyspace": about.keyspace, "table": about.table}
        replicas = {
            "table_id": batch["table_id"],
            "hostname": _first(addresses, seen),
            "nodes": _with_values(hosts, addresses),
            "replicas_seen": seen,
            "replicas_expected": batch["replicas_expected"],
        }
        cause = {name: batch[name] for name in ("reason", "schema_version")}
        product = {"version": writetime.__version__, "connector": "writetime"}
        is_snapshot = pc.fill_null(pc.equal(batch["reason"], "snapshot"), False)
        times = self._times(batch["ts_micro"])
        debezium = {
            **product,
            "name": about.name,
            "ts_ms": times["ts_ms"],
            "snapshot": pc.if_else(is_snapshot, "true", "false"),
            "db": about.keyspace,
            "sequence": _sequences(batch["batch"], batch["ordinal"]),
            "ts_us": times["ts_us"],
            "ts_ns": times["ts_ns"],
            "cluster": about.cluster,
            **place,
            **of_table,
        }
        complete = _by_value(batch["batch"], lambda number: about.complete.get(number, LONG_AGO), pa.int64()).to_numpy()
        is_late = pc.and_not(pa.array(batch["ts_micro"].view(pa.int64()).to_numpy() < complete), is_snapshot)
        return {**debezium, **replicas, **cause, "late": is_late}


class JsonRecords(Records):
    """As JSON; with `heads`, as json-schema."""

    __slots__ = ()

    def _page(self, batch: pa.RecordBatch) -> tuple[Any, Any]:
        assert isinstance(self.shape.form, JsonForm)
        columns, plain = json_columns.Columns(self.shape.form), json_columns.plain
        key = columns.fields(self.shape.record_keys, self.shape.key_columns(batch["key"]))
        source = {name: plain(fact) for name, fact in self._source(batch).items()}
        value = columns.record(
            {
                "before": self._row(columns, batch, "before"),
                "after": self._row(columns, batch, "after"),
                "op": plain(batch["op"]),
                **{name: plain(fact) for name, fact in self._times(batch["processed_at"]).items()},
                "changed": plain(batch["changed"]),
                "changed_elements": self._elements(batch),
                "source": columns.record({**source, "bounds": columns.null}),
            }
        )
        return self._whole(key, 0, batch.num_rows), self._whole(value, 1, batch.num_rows)

    def _cell(self, value: Parts, facts: Mapping[str, Fact]) -> Parts:
        return json_columns.object_of({"value": value, **{name: json_columns.plain(facts[name]) for name in CELL}})

    def _whole(self, parts: Parts, which: int, rows: int) -> Any:
        if self.heads is not None:
            parts = [self.heads[which].decode(), *parts, "}"]
        return json_columns.joined(parts, rows).cast(pa.binary())

    def _elements(self, batch: pa.RecordBatch) -> Part:
        """Objects, or with schemas text, which is null where nothing changed."""
        found = _changed_elements(batch, None if self.heads is not None else "{}")
        if self.heads is not None:
            return json_columns.plain(found)
        return found if isinstance(found, str) else json_columns.as_they_are(found)


class AvroRecords(Records):
    """As Avro, by the schemas of `serialization.avro_schemas`, the narrow ones."""

    __slots__ = ()

    def _page(self, batch: pa.RecordBatch) -> tuple[Any, Any]:
        assert isinstance(self.shape.form, AvroForm)
        assert self.heads is not None
        columns, plain = avro_columns.Columns(self.shape.form), avro_columns.plain
        key = columns.fields(self.shape.record_keys, self.shape.key_columns(batch["key"]), self.shape.required)
        source, times = self._source(batch), self._times(batch["processed_at"])
        value = [
            *self._row(columns, batch, "before"),
            *self._row(columns, batch, "after"),
            plain("string", batch["op"]),
            *(plain("long", times[name]) for name in TIMES),
            plain("string*", batch["changed"]),
            plain("string?", _changed_elements(batch, None)),
            *(plain(kind, source[name]) for name, kind in SOURCE.items()),
            # Neither bounds nor a claim.
            *([columns.null] if self.shape.clustering else []),
            columns.null,
        ]
        key_head, value_head = self.heads
        rows = batch.num_rows
        return avro_columns.joined([key_head, *key], rows), avro_columns.joined([value_head, *value], rows)

    def _cell(self, value: Parts, facts: Mapping[str, Fact]) -> Parts:
        return [avro_columns.VALUE, *value, *(avro_columns.plain(kind, facts[name]) for name, kind in CELL.items())]


class _Cells:
    """What is known of the cells of `after`, by number of their column among `names`."""

    def __init__(self, batch: pa.RecordBatch, names: Sequence[str]) -> None:
        self._names, self._rows = pa.array(names, pa.string()), batch.num_rows
        self._written, self._expires = self._facts(batch, "writetime"), self._facts(batch, "expires_at")
        if np.any(np.abs(self._expires[0]) > _INT64.max // 1_000_000):
            message = "an expiry is beyond 64 bits of microseconds"
            raise DecodeError(message, operation="encode events as cells", hint="They are encoded one by one.")
        written, is_written = self._written
        self._set = is_written & (written == batch["ts_micro"].view(pa.int64()).to_numpy())
        changed = batch["changed"]
        self._set[self._places(changed, changed.values)[1]] = True

    def facts(self, number: int) -> dict[str, Fact]:
        """By the names of CELL."""
        (written, is_written), (expires, is_mortal) = ([each[number] for each in fact] for fact in (self._written, self._expires))
        return {
            "deletion_ts": pa.array(expires * 1_000_000, mask=~is_mortal) if is_mortal.any() else None,
            "set": pa.array(self._set[number]),
            "writetime": pa.array(written, mask=~is_written) if is_written.any() else None,
        }

    def _facts(self, batch: pa.RecordBatch, name: str) -> tuple[Any, Any]:
        """Numbers by column and row, and which of them are there."""
        shape = len(self._names), self._rows
        found, there = np.zeros(shape, np.int64), np.zeros(shape, np.bool_)
        if name in batch.schema.names:
            maps = batch[name]
            known, place = self._places(maps, maps.keys)
            found[place], there[place] = maps.items.to_numpy()[known], True
        return found, there

    def _places(self, lists: Any, named: Any) -> tuple[Any, tuple[Any, Any]]:
        """Which of the names within lists are those of columns, and their numbers and rows."""
        ends = lists.offsets.to_numpy()
        row_of = np.repeat(np.arange(self._rows), np.diff(ends))
        number = pc.index_in(named.slice(ends[0], ends[-1] - ends[0]), self._names).fill_null(-1).to_numpy()
        known = np.flatnonzero((number >= 0) & lists.is_valid().to_numpy(zero_copy_only=False)[row_of])
        return known + ends[0], (number[known], row_of[known])


def records_of(shape: Shape, about: About, codec: Codec) -> Records:
    """The records as a codec of events that are not wide writes them."""
    made = AvroRecords if isinstance(shape.form, AvroForm) else JsonRecords
    return made(shape, about, codec.heads)


@lru_cache(maxsize=4096)
def _holds(kind: CqlType, stored: pa.DataType) -> bool:
    """Whether a stored column is of the type. Fields of user types are by place, and may have become more."""
    if isinstance(kind, CollectionType) and kind.kind == "map":
        return pa.types.is_map(stored) and all(map(_holds, kind.elements, (stored.key_type, stored.item_type)))
    if isinstance(kind, CollectionType | VectorType):
        element = kind.element if isinstance(kind, VectorType) else kind.elements[0]
        return pa.types.is_list(stored) and _holds(element, stored.value_type)
    if isinstance(kind, TupleType | UdtType):
        return pa.types.is_struct(stored) and all(map(_holds, fields_of(kind).values(), [field.type for field in stored]))
    return bool(arrow_type(kind) == stored)


def key_lists(kinds: Sequence[CqlType], keys: Any) -> Any:
    """The first columns of keys (a struct), which have these types, as JSON lists (binary), in the default form."""
    columns, parts = json_columns.Columns(JSON), Parts()
    for at, kind in enumerate(kinds):
        parts += ["," if at else "[", *columns.parts(kind, keys.field(at))]
    return json_columns.joined([*parts, "]"], len(keys)).cast(pa.binary())


def _changed_elements(batch: pa.RecordBatch, nothing: str | None) -> Fact:
    """What changed within collections, as JSON texts; `nothing` where that is so."""
    stored = batch["changed_elements"] if "changed_elements" in batch.schema.names else None
    if stored is None or stored.null_count == len(stored):
        return nothing

    def converted(text: str | None) -> str | None:
        changed = json.loads(text or "{}")
        return encode(changed).decode() if changed else nothing

    return _by_value(stored, converted)


def _sequences(batches: Any, ordinals: Any) -> Any:
    """Places of events as Debezium writes them: a text with a JSON list of two texts."""
    number = json_columns.plain
    return json_columns.joined(['["', number(batches), '","', number(ordinals), '"]'], len(batches))


def _with_values(lists: Any, values: Any) -> Any:
    """The lists with other values, which stand for their flat elements."""
    return pa.ListArray.from_arrays(pc.subtract(lists.offsets, lists.offsets[0]), values)


def _first(values: Any, lengths: Any) -> Any:
    """The first of each list's flat elements; null of an empty one."""
    counts = lengths.to_numpy()
    begins = np.concatenate(([0], np.cumsum(counts)))[:-1]
    return values.take(pa.array(begins, pa.int64(), mask=counts == 0))


def _by_value(values: Any, convert: Callable[[Any], Any], kind: Any = None) -> Any:
    """Each value of an array converted, to text or another type; equal ones once."""
    found = values.dictionary_encode(null_encoding="encode")
    return pa.array([convert(value) for value in found.dictionary.to_pylist()], kind or pa.string()).take(found.indices)
