"""Keys and values of many events as JSON at once: what `Shape` and `serialization` make of each row, byte for
byte.

Strategy: the envelope's fields are parts of JSON texts (`json_columns`), written side by side row by row. Rows that
are rare stay with `Shape`, as `takes` says: events of a whole table or of many rows, values of dropped columns,
keys that lack a required column, columns as cells. Must not know Kafka.
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
from writetime.events.arrow import arrow_type
from writetime.events.converters import JSON, NUMBERS, JsonForm
from writetime.events.envelope import LONG_AGO, About, Shape, encode
from writetime.events.json_columns import (
    NULL,
    Columns,
    Part,
    Parts,
    Texts,
    array_of,
    as_they_are,
    booleans,
    elements,
    joined,
    numbers,
    object_of,
    or_null,
    quoted,
    quotes,
    same_or,
)
from writetime.events.values import fields_of

_INT64: Final = np.iinfo(np.int64)
_PARTS: Final = 1 << 24
"""Bytes of rows whose texts are made at once: an Arrow array of strings holds 2 GB."""


@dataclass(frozen=True, slots=True)
class Records:
    """Encodes rows of one schema version. `prefix`: of key and value, the schemas of json-schema up to the payload;
    None: plain JSON."""

    shape: Shape
    about: About
    prefix: tuple[bytes, bytes] | None = None

    def takes(self, batch: pa.RecordBatch) -> Any:
        """Which rows these are, as an array of booleans."""
        if not isinstance(self.shape.form, JsonForm) or self.shape.cells:
            return pa.array(np.zeros(batch.num_rows, bool))
        key = batch["key"]
        left = [key.is_null()]
        left += [batch[name].is_valid() for name in ("bounds", "former") if name in batch.schema.names]
        left += [pc.fill_null(batch["alone"], False)] if "alone" in batch.schema.names else []
        required = [(key.field(at), kind) for at, (name, kind) in enumerate(self.shape.keys.items()) if name in self.shape.required]
        left += [column.is_null() for column, _ in required]
        # As a number, one without digits is null.
        left += [pc.equal(column, "").fill_null(True) for column, kind in required if self._is_number(kind)]
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
        size = batch.nbytes + batch.num_rows * (sum(map(len, self.prefix or ())) + 2 * names)
        rows = max(1, batch.num_rows // (1 + size // _PARTS))
        found = [self._encode(batch.slice(at, rows)) for at in range(0, batch.num_rows, rows)]
        if len(found) == 1:
            return found[0]
        keys, values = zip(*found, strict=True)
        return pa.concat_arrays(keys), pa.concat_arrays(values)

    def _encode(self, batch: pa.RecordBatch) -> tuple[Any, Any]:
        columns = Columns(self.shape.form)  # type: ignore[arg-type]
        key = columns.fields(self.shape.keys, batch["key"])
        value = object_of(
            {
                "before": self._row(columns, batch["before"]),
                "after": self._row(columns, batch["after"]),
                "op": quotes(batch["op"]),
                **self._times(batch["processed_at"]),
                "changed": array_of(batch["changed"], *map(quotes, elements(batch["changed"]))),
                "changed_elements": self._elements(batch),
                "source": object_of(self._source(batch)),
            }
        )
        return self._wrapped(key, 0, batch.num_rows), self._wrapped(value, 1, batch.num_rows)

    def _is_number(self, kind: CqlType) -> bool:
        return str(kind) in NUMBERS and self.shape.form.number_mode(str(kind)) != "string"

    def _wrapped(self, parts: Parts, which: int, rows: int) -> Any:
        if self.prefix is not None:
            parts = [self.prefix[which].decode(), *parts, "}"]
        return joined(parts, rows).cast(pa.binary())

    def _row(self, columns: Columns, rows: Any) -> Parts:
        if rows.null_count == len(rows):
            return [NULL]
        return or_null(self._present(columns, rows), rows)

    def _present(self, columns: Columns, rows: Any) -> Parts:
        fields: dict[str, Part | Parts] = {}
        for column in self.shape.shown:
            held = [rows.field(place) for place, _ in column.places if _holds(column.kind, rows.type.field(place).type)]
            if len(held) == 1:
                fields[column.shown] = columns.parts(column.kind, held[0])
                continue
            found: Any = None
            for each in reversed(held):
                texts = columns.texts(column.kind, each)
                found = texts if found is None else pc.if_else(each.is_valid(), texts, found)
            fields[column.shown] = NULL if found is None else as_they_are(found)
        return object_of(fields)

    def _times(self, moments: Any) -> dict[str, Any]:
        micros = moments.view(pa.int64()).to_numpy()
        if (micros == micros[0]).all():
            return {name: joined([part], 1)[0].as_py() for name, part in self._parts_of_times(micros[:1]).items()}
        return self._parts_of_times(micros)

    def _parts_of_times(self, micros: Any) -> dict[str, Part]:
        found = {"ts_ms": numbers(pa.array(micros // 1000))}
        if self.shape.contract == 2:
            most = _INT64.max // 1000
            nanos = np.where(micros > most, _INT64.max, np.where(micros < -most, _INT64.min, np.clip(micros, -most, most) * 1000))
            found |= {"ts_us": numbers(pa.array(micros)), "ts_ns": numbers(pa.array(nanos))}
        return found

    def _elements(self, batch: pa.RecordBatch) -> Part:
        """Objects, or with schemas text, which is null where nothing changed."""
        as_text = self.prefix is not None

        def converted(text: str | None) -> str:
            elements = json.loads(text or "{}")
            if as_text:
                return quoted(encode(elements).decode()) if elements else NULL
            return quoted(elements)

        stored = batch["changed_elements"] if "changed_elements" in batch.schema.names else None
        if stored is None or stored.null_count == len(stored):
            return converted(None)
        return as_they_are(_by_value(stored, converted))

    def _source(self, batch: pa.RecordBatch) -> dict[str, Any]:
        about, contract = self.about, self.shape.contract
        hosts = batch["nodes"]
        addresses = _by_value(elements(hosts)[0], lambda host: quoted(about.addresses.get(host) or host))
        nodes = array_of(hosts, as_they_are(addresses))
        seen = pc.list_value_length(hosts)
        place = {"file": same_or(quotes, batch["file"]), "pos": numbers(batch["pos"])}
        of_table = {"keyspace": quoted(about.keyspace), "table": quoted(about.table)}
        replicas = {
            "table_id": same_or(quotes, batch["table_id"]),
            "hostname": as_they_are(_first(addresses, seen)),
            "nodes": nodes,
            "replicas_seen": same_or(numbers, seen),
            "replicas_expected": same_or(numbers, batch["replicas_expected"]),
        }
        cause = {name: same_or(quotes, batch[name]) for name in ("reason", "schema_version")}
        product = {"version": quoted(writetime.__version__), "connector": quoted("writetime")}
        is_snapshot = pc.fill_null(pc.equal(batch["reason"], "snapshot"), False)
        snapshot = same_or(booleans, is_snapshot)
        batches, ordinals = same_or(numbers, batch["batch"]), numbers(batch["ordinal"])
        if contract == 1:
            order = {
                "ts_micro": numbers(batch["ts_micro"].view(pa.int64())),
                "sequence": ["[", batches, ",", ordinals, "]"],
                "snapshot": snapshot,
            }
            return {**product, "cluster": quoted(about.cluster), **of_table, **replicas, **place, **order, **cause, "bounds": NULL}
        times = self._times(batch["ts_micro"])
        debezium = {
            **product,
            "name": quoted(about.name),
            "ts_ms": times["ts_ms"],
            "snapshot": ['"', snapshot, '"'],
            "db": quoted(about.keyspace),
            "sequence": [r'"[\"', batches, r"\",\"", ordinals, r'\"]"'],
            "ts_us": times["ts_us"],
            "ts_ns": times["ts_ns"],
            "cluster": quoted(about.cluster),
            **place,
            **of_table,
        }
        complete = _by_value(batch["batch"], lambda number: about.complete.get(number, LONG_AGO), pa.int64()).to_numpy()
        is_late = pc.and_not(pa.array(batch["ts_micro"].view(pa.int64()).to_numpy() < complete), is_snapshot)
        return {**debezium, **replicas, **cause, "late": same_or(booleans, is_late), "bounds": NULL}


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
    columns, parts = Columns(JSON), Parts()
    for at, kind in enumerate(kinds):
        parts += ["," if at else "[", *columns.parts(kind, keys.field(at))]
    return joined([*parts, "]"], len(keys)).cast(pa.binary())


def _first(elements: Texts, lengths: Any) -> Texts:
    """The first element of each list; null of an empty one."""
    counts = lengths.to_numpy()
    begins = np.concatenate(([0], np.cumsum(counts)))[:-1]
    return elements.take(pa.array(begins, pa.int64(), mask=counts == 0))


def _by_value(values: Any, convert: Callable[[Any], Any], kind: Any = None) -> Any:
    """Each value of an array converted, to text or another type; equal ones once."""
    found = values.dictionary_encode(null_encoding="encode")
    return pa.array([convert(value) for value in found.dictionary.to_pylist()], kind or pa.string()).take(found.indices)
