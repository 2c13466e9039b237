"""Keys and values of many events at once, as JSON and as Avro: what `Shape` and `serialization` make of each row, byte
for byte.

Strategy: the envelope's fields are columns or constants, known by `Records`; a form writes them side by side, row by row
(`json_columns`, `avro_columns`). Rows that are rare stay with `Shape`, as `takes` says: events of a whole table or of
many rows, values of dropped columns, keys that lack a required column, columns as cells. Must not know Kafka.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache, reduce
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

import writetime
from writetime.cassandra.types.types import CollectionType, CqlType, TupleType, UdtType, VectorType
from writetime.events import avro_columns, json_columns
from writetime.events.arrow import arrow_type
from writetime.events.converters import JSON, NUMBERS, AvroForm, JsonForm
from writetime.events.envelope import LONG_AGO, About, Shape, encode
from writetime.events.serialization import SOURCE, TIMES, Codec
from writetime.events.values import fields_of
from writetime.kernels.row_parts import Part, elements

Parts = list[Part]
Fact = Any
"""A field of the envelope: an Arrow array, or what it is in all rows."""
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
        if self.shape.cells:
            return pa.array(np.zeros(batch.num_rows, bool))
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
        names = sum(len(column.shown) for column in self.shape.shown)
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

    def _row(self, columns: json_columns.Columns | avro_columns.Columns, rows: Any) -> Parts:
        """The parts of before or after."""
        if rows.null_count == len(rows):
            return [columns.null]
        fields: dict[str, Parts] = {}
        for column in self.shape.shown:
            held = [rows.field(place) for place, _ in column.places if _holds(column.kind, rows.type.field(place).type)]
            if len(held) == 1:
                fields[column.shown] = columns.parts(column.kind, held[0])
                continue
            found: Any = None
            for each in reversed(held):
                values = columns.values(column.kind, each)
                found = values if found is None else pc.if_else(each.is_valid(), values, found)
            fields[column.shown] = [columns.null if found is None else columns.as_it_is(found)]
        return columns.or_null(columns.record(fields), rows)

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
                "before": self._row(columns, batch["before"]),
                "after": self._row(columns, batch["after"]),
                "op": plain(batch["op"]),
                **{name: plain(fact) for name, fact in self._times(batch["processed_at"]).items()},
                "changed": plain(batch["changed"]),
                "changed_elements": self._elements(batch),
                "source": columns.record({**source, "bounds": columns.null}),
            }
        )
        return self._whole(key, 0, batch.num_rows), self._whole(value, 1, batch.num_rows)

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
            *self._row(columns, batch["before"]),
            *self._row(columns, batch["after"]),
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
