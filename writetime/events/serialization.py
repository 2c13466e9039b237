"""Keys and values of events as bytes: JSON, JSON with a Kafka Connect schema in each record, Avro in
Confluent's wire format.

    json           {"before": …, "after": …, …}
    json-schema    {"schema": {"type": "struct", …}, "payload": {…}}, as Connect's JsonConverter reads it; names of records as Debezium's
    avro           00, id of the schema in the registry (u32, big-endian), the datum

A `Shape` defines the content of an event, this module its names and types. In the formats with a schema, rows
have the columns of their schema version; a *wide* one, for events that show what a dropped column held, has
all that the changes table has. All fields of rows and keys may be null and are so by default, so that schemas
of before and after any ADD, DROP and re-ADD read each other. `changed_elements`, which has no fixed schema,
is JSON text there. Callers supply schema ids: this module must not know a registry.
"""

from __future__ import annotations

import io
import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final, Literal, Protocol

import fastavro

from writetime.cassandra.types.types import (
    CollectionType,
    CqlType,
    CustomType,
    NativeType,
    TupleType,
    UdtType,
    VectorType,
)
from writetime.events.avro import Avro, Names
from writetime.events.converters import AvroForm, Form, JsonForm, Numbers, Times, Varints
from writetime.events.envelope import About, Shape, encode
from writetime.events.naming import to_avro
from writetime.events.values import TEXT_KEYS, fields_of

Format = Literal["json", "json-schema", "avro"]
MAGIC: Final = b"\0"
_CLAIM: Final = {"url": "string", "size": "long", "crc32c": "long"}
SOURCE: Final = {
    "version": "string",
    "connector": "string",
    "name": "string",
    "ts_ms": "long",
    "snapshot": "string",
    "db": "string",
    "sequence": "string?",
    "ts_us": "long",
    "ts_ns": "long",
    "cluster": "string",
    "file": "string?",
    "pos": "long?",
    "keyspace": "string",
    "table": "string",
    "table_id": "string",
    "hostname": "string?",
    "nodes": "string*",
    "replicas_seen": "int",
    "replicas_expected": "int?",
    "reason": "string?",
    "schema_version": "string",
    "late": "boolean",
}
"""Fields of `source` except `bounds`: Avro types, `?` nullable, `*` a list."""
CELL: Final = {"deletion_ts": "long?", "set": "boolean", "writetime": "long?"}
"""Fields of a column as a cell, behind its `value`."""
TIMES: Final = ("ts_ms", "ts_us", "ts_ns")
"""Times of the envelope: when the event was made."""


@dataclass(frozen=True, slots=True)
class Schemas:
    """A record's key and value as Avro."""

    key: Avro
    value: Avro


class Codec(Protocol):
    """Encodes the values of a `Shape` as bytes. `heads`: what each key and value begins with."""

    heads: tuple[bytes, bytes] | None

    def key(self, key: dict[str, Any] | None) -> bytes | None: ...

    def value(self, value: dict[str, Any]) -> bytes: ...


def form_of(format: Format, numbers: Numbers, times: Times = "isostring", varints: Varints | None = None) -> Form:
    """The form of values for a format. Avro's logical types say what times are."""
    return AvroForm(numbers, varints) if format == "avro" else JsonForm(numbers, times, varints)


# --- JSON


class Json:
    """Without a schema."""

    heads: tuple[bytes, bytes] | None = None

    def key(self, key: dict[str, Any] | None) -> bytes | None:
        return None if key is None else encode(key)

    def value(self, value: dict[str, Any]) -> bytes:
        return encode(value)


class JsonSchema:
    """With its schema in each record."""

    def __init__(self, shape: Shape, topic: str, *, wide: bool) -> None:
        connect = _Connect(shape, topic)
        key, value = (b'{"schema":' + encode(each) + b',"payload":' for each in (connect.key(), connect.value(wide)))
        self.heads: tuple[bytes, bytes] | None = (key, value)
        self._key_head, self._value_head = key, value

    def key(self, key: dict[str, Any] | None) -> bytes | None:
        return None if key is None else self._key_head + encode(key) + b"}"

    def value(self, value: dict[str, Any]) -> bytes:
        return self._value_head + encode(with_text(value)) + b"}"


def with_text(value: dict[str, Any]) -> dict[str, Any]:
    """The envelope with `changed_elements` as text, null if there are none."""
    elements = value["changed_elements"]
    return {**value, "changed_elements": encode(elements).decode() if elements else None}


class _Connect:
    """Schemas as Connect's JsonConverter writes them (org.apache.kafka.connect.data.Schema), with Debezium's
    semantic type names."""

    def __init__(self, shape: Shape, topic: str) -> None:
        self.shape, self.topic = shape, topic
        self.times = shape.form.times if isinstance(shape.form, JsonForm) else "isostring"

    def key(self) -> dict[str, Any]:
        fields = {name: {**self.type(kind), "optional": name not in self.shape.required} for name, kind in self.shape.record_keys.items()}
        return {**_connect_struct(f"{self.topic}.Key", fields), "optional": False}

    def value(self, wide: bool) -> dict[str, Any]:
        row = self._row({**self.shape.columns, **(self.shape.dropped if wide else {})})
        source = {name: _connect_plain(kind) for name, kind in SOURCE.items()}
        if self.shape.clustering:
            source["bounds"] = self._bounds()
        claim = {name: _connect_plain(kind) for name, kind in _CLAIM.items()}
        fields = {
            "before": row,
            "after": row,
            "op": _connect_plain("string"),
            **{name: _connect_plain("long") for name in TIMES},
            "changed": _connect_plain("string*"),
            "changed_elements": _connect_plain("string?"),
            "source": {**_connect_struct("writetime.Source", source), "optional": False},
            "claim": _connect_struct("writetime.Claim", claim),
        }
        return {**_connect_struct(f"{self.topic}.Envelope", fields), "optional": False}

    def _row(self, columns: Mapping[str, CqlType]) -> dict[str, Any]:
        name = f"{self.topic}.Value"
        if not self.shape.cells:
            return self._struct(name, columns)
        facts = {name: _connect_plain(kind) for name, kind in CELL.items()}
        cells = {column: _connect_struct(None, {"value": self.type(kind), **facts}) for column, kind in columns.items()}
        return _connect_struct(name, cells)

    def _bounds(self) -> dict[str, Any]:
        bound, flag = self._struct(None, self.shape.clustering), _connect_plain("boolean")
        return _connect_struct("writetime.Bounds", {"start": bound, "start_inclusive": flag, "end": bound, "end_inclusive": flag})

    def _struct(self, name: str | None, kinds: Mapping[str, CqlType]) -> dict[str, Any]:
        return _connect_struct(name, {field: self.type(kind) for field, kind in kinds.items()})

    def type(self, kind: CqlType) -> dict[str, Any]:
        """The schema of a type; every type is nullable."""
        if isinstance(kind, CustomType):
            return {"type": "bytes", "optional": True}
        if isinstance(kind, NativeType):
            return self._native(kind.name)
        if isinstance(kind, CollectionType) and kind.kind == "map":
            key, value = kind.elements
            if str(key) in TEXT_KEYS | {"varint", "decimal"}:
                return {"type": "map", "keys": {"type": "string", "optional": False}, "values": self.type(value), "optional": True}
            pair = _connect_struct(None, {"key": self.type(key), "value": self.type(value)})
            return {"type": "array", "items": pair, "optional": True}
        if isinstance(kind, CollectionType | VectorType):
            element = kind.element if isinstance(kind, VectorType) else kind.elements[0]
            return {"type": "array", "items": self.type(element), "optional": True}
        assert isinstance(kind, TupleType | UdtType)
        return self._struct(None, fields_of(kind))

    def _native(self, name: str) -> dict[str, Any]:
        mode = self.shape.form.number_mode(name) if name in ("varint", "decimal") else None
        if mode == "precise":
            scaled = {"scale": _connect_plain("int"), "value": {"type": "bytes", "optional": False}}
            return {**_connect_struct("io.debezium.data.VariableScaleDecimal", scaled), "version": 1}
        if mode in ("double", "long"):
            return _connect_plain(f"{mode}?")
        if name == "duration":
            return _connect_struct("cql.duration", {"months": _INT32, "days": _INT32, "nanoseconds": _connect_plain("long")})
        return {**(_CONNECT_TIMES[self.times].get(name) or _CONNECT.get(name, {"type": "string"})), "optional": True}


_INT32: Final = {"type": "int32", "optional": False}
_CONNECT_NAMES: Final = {"string": "string", "int": "int32", "long": "int64", "boolean": "boolean", "double": "double", "float": "float"}
_CONNECT: Final[dict[str, dict[str, Any]]] = {
    "blob": {"type": "bytes"},
    "empty": {"type": "bytes"},
    "boolean": {"type": "boolean"},
    **{name: {"type": "int32"} for name in ("tinyint", "smallint", "int")},
    **{name: {"type": "int64"} for name in ("bigint", "counter", "time")},
    "float": {"type": "float"},
    "double": {"type": "double"},
    "uuid": {"type": "string", "name": "io.debezium.data.Uuid", "version": 1},
    "timeuuid": {"type": "string", "name": "io.debezium.data.Uuid", "version": 1},
}
"""What is no text, but for times."""
_CONNECT_TIMES: Final[dict[Times, dict[str, dict[str, Any]]]] = {
    "isostring": {
        "timestamp": {"type": "string", "name": "io.debezium.time.ZonedTimestamp", "version": 1},
        "date": {"type": "string", "name": "io.debezium.time.IsoDate", "version": 1},
    },
    "adaptive": {
        "timestamp": {"type": "int64", "name": "io.debezium.time.Timestamp", "version": 1},
        "date": {"type": "int32", "name": "io.debezium.time.Date", "version": 1},
    },
    "microseconds": {
        "timestamp": {"type": "int64", "name": "io.debezium.time.MicroTimestamp", "version": 1},
        "date": {"type": "int32", "name": "io.debezium.time.Date", "version": 1},
    },
}


def _connect_plain(text: str) -> dict[str, Any]:
    kind = {"type": _CONNECT_NAMES[text.rstrip("?*")], "optional": text.endswith("?")}
    return {"type": "array", "items": kind, "optional": False} if text.endswith("*") else kind


def _connect_struct(name: str | None, fields: Mapping[str, dict[str, Any]]) -> dict[str, Any]:
    listed = [{**kind, "field": field} for field, kind in fields.items()]
    return {"type": "struct", "fields": listed, "optional": True, **({} if name is None else {"name": name})}


# --- Avro


def avro_schemas(shape: Shape, about: About, *, wide: bool) -> Schemas:
    """The schemas to register. SchemaError for an undefined user type."""
    space = f"{to_avro(about.keyspace)}.{to_avro(about.table)}"
    names = Names(shape.form.number_mode)
    key_fields = [
        {field: held for field, held in {**each, "type": each["type"][1]}.items() if field != "default"} if name in shape.required else each
        for name, each in zip(shape.record_keys, names.fields(shape.record_keys), strict=True)
    ]
    key = {"type": "record", "name": "Key", "namespace": space, "fields": key_fields}
    names = Names(shape.form.number_mode)
    columns = {**shape.columns, **(shape.dropped if wide else {})}
    row = {
        "type": "record",
        "name": "Row",
        "namespace": space,
        "fields": (_cells(names, columns, space) if shape.cells else names.fields(columns)),
    }
    source = [{"name": name, **_avro_plain(kind)} for name, kind in SOURCE.items()]
    if shape.clustering:
        source.append({"name": "bounds", "type": ["null", _bounds(names, shape, space)], "default": None})
    claim = [{"name": name, "type": kind} for name, kind in _CLAIM.items()]
    fields: list[dict[str, Any]] = [
        {"name": "before", "type": ["null", row], "default": None},
        {"name": "after", "type": ["null", f"{space}.Row"], "default": None},
        {"name": "op", "type": "string"},
        *({"name": name, "type": "long"} for name in TIMES),
        {"name": "changed", **_avro_plain("string*")},
        {"name": "changed_elements", **_avro_plain("string?")},
        {"name": "source", "type": {"type": "record", "name": "Source", "namespace": "writetime", "fields": source}},
        {
            "name": "claim",
            "type": ["null", {"type": "record", "name": "Claim", "namespace": "writetime", "fields": claim}],
            "default": None,
        },
    ]
    return Schemas(key, {"type": "record", "name": "Envelope", "namespace": space, "fields": fields})


def _avro_plain(text: str) -> dict[str, Any]:
    kind = text.rstrip("?*")
    if text.endswith("?"):
        return {"type": ["null", kind], "default": None}
    return {"type": {"type": "array", "items": kind} if text.endswith("*") else kind}


def _cells(names: Names, columns: Mapping[str, CqlType], space: str) -> list[Avro]:
    fields: list[Avro] = []
    for column, field in zip(columns, names.fields(columns), strict=True):
        facts = ({"name": name, **_avro_plain(kind)} for name, kind in CELL.items())
        parts = [{"name": "value", "type": field["type"], "default": None}, *facts]
        cell = {"type": "record", "name": to_avro(column), "namespace": f"{space}._cells", "fields": parts}
        fields.append({**field, "type": ["null", cell]})
    return fields


def _bounds(names: Names, shape: Shape, space: str) -> Avro:
    bound = {"type": "record", "name": "Bound", "namespace": space, "fields": names.fields(shape.clustering)}
    fields = [
        {"name": "start", "type": ["null", bound], "default": None},
        {"name": "start_inclusive", "type": "boolean"},
        {"name": "end", "type": ["null", f"{space}.Bound"], "default": None},
        {"name": "end_inclusive", "type": "boolean"},
    ]
    return {"type": "record", "name": "Bounds", "namespace": space, "fields": fields}


class AvroCodec:
    """The datum behind the id of its schema. `ids`: of key and value."""

    def __init__(self, schemas: Schemas, ids: tuple[int, int]) -> None:
        self._key, self._value = fastavro.parse_schema(schemas.key), fastavro.parse_schema(schemas.value)
        self._key_head, self._value_head = (MAGIC + number.to_bytes(4, "big") for number in ids)
        self.heads: tuple[bytes, bytes] | None = (self._key_head, self._value_head)
        self._row = row_name(schemas)

    def key(self, key: dict[str, Any] | None) -> bytes | None:
        return None if key is None else _datum(self._key_head, self._key, key)

    def value(self, value: dict[str, Any]) -> bytes:
        return _datum(self._value_head, self._value, avro_value(value, self._row))


def row_name(schemas: Schemas) -> str:
    """Full name of the row record."""
    return f"{schemas.value['namespace']}.Row"


def avro_value(value: dict[str, Any], row: str) -> dict[str, Any]:
    """The envelope for fastavro. Rows are tagged with their record name, so that it need not search the
    union."""
    event = with_text(value)
    event.update({part: None if value[part] is None else (row, value[part]) for part in ("before", "after")})
    return event


def _datum(head: bytes, schema: Any, value: Any) -> bytes:
    out = io.BytesIO()
    out.write(head)
    fastavro.schemaless_writer(out, schema, value)
    return out.getvalue()


Registered = Mapping[bool, tuple[Schemas, tuple[int, int]]]
"""Schemas and their ids (of key and value), by whether they are the wide ones."""


def codec_of(format: Format, shape: Shape, topic: str, registered: Registered, *, wide: bool) -> Codec:
    """The codec of plain or of wide events. KeyError if it takes a registry and the schemas are none of the
    registered ones."""
    if format == "json":
        return Json()
    if format == "json-schema":
        return JsonSchema(shape, topic, wide=wide)
    return AvroCodec(*registered[wide])


# --- records that are no row's


@dataclass(frozen=True, slots=True)
class Plain:
    """Records with fixed fields, such as DDL: the Avro type by field (as in `SOURCE`), or the fields of a
    struct."""

    name: str
    key_fields: Mapping[str, Any]
    value_fields: Mapping[str, Any]

    def schemas(self) -> Schemas:
        """The schemas to register."""
        return Schemas(_avro_record(f"{self.name}.Key", self.key_fields), _avro_record(f"{self.name}.Value", self.value_fields))

    def record(self, format: Format, key: dict[str, Any], value: dict[str, Any], ids: tuple[int, int] | None) -> tuple[bytes, bytes]:
        """Key and value as bytes; `ids` of the schemas for Avro."""
        if format == "avro":
            assert ids is not None, "they are registered before"
            schemas = self.schemas()
            heads = [MAGIC + number.to_bytes(4, "big") for number in ids]
            return _datum(heads[0], fastavro.parse_schema(schemas.key), key), _datum(heads[1], fastavro.parse_schema(schemas.value), value)
        if format == "json":
            return encode(key), encode(value)
        key_schema, value_schema = (
            _connect_record(f"{self.name}.{part}", fields) for part, fields in (("Key", self.key_fields), ("Value", self.value_fields))
        )
        return encode({"schema": key_schema, "payload": key}), encode({"schema": value_schema, "payload": value})


def _avro_record(name: str, fields: Mapping[str, Any]) -> Avro:
    space, _, short = name.rpartition(".")
    listed = [
        {"name": field, **({"type": _avro_record(f"{name}.{field}", kind)} if isinstance(kind, Mapping) else _avro_plain(kind))}
        for field, kind in fields.items()
    ]
    return {"type": "record", "name": short, "namespace": space, "fields": listed}


def _connect_record(name: str, fields: Mapping[str, Any]) -> dict[str, Any]:
    listed = {
        field: _connect_record(f"{name}.{field}", kind) if isinstance(kind, Mapping) else _connect_plain(kind)
        for field, kind in fields.items()
    }
    return {**_connect_struct(name, listed), "optional": False}


DDL: Final = Plain(
    "writetime.Ddl",
    {"keyspace": "string"},
    {
        "keyspace": "string",
        "ddl": "string",
        "ts_ms": "long",
        "source": {
            "version": "string",
            "connector": "string",
            "cluster": "string",
            "keyspace": "string",
            "table": "string?",
            "table_id": "string?",
            "sequence": "long*",
            "snapshot": "boolean",
        },
    },
)
QUARANTINED: Final = Plain(
    "writetime.Quarantined",
    {"name": "string"},
    {
        "name": "string",
        "cluster": "string",
        "kind": "string",
        "message": "string",
        "size": "long",
        "batch": "long",
        "ts_ms": "long",
        "datacenter": "string?",
        "node": "string?",
        "segment": "string?",
        "position": "long?",
        "table": "string?",
        "object": "string?",
        "topic": "string?",
        "ordinal": "long?",
        "settled_in": "long?",
        "bytes": "string?",
    },
)
"""Fields of a quarantine record, see `writetime.pipeline.quarantine.published.topic_record`; `bytes` in
base64."""
HEARTBEAT: Final = Plain("writetime.Heartbeat", {"serverName": "string"}, {"ts_ms": "long", "complete_until_ms": "long?"})
"""`complete_until_ms`: all topics hold every event of a mutation that was logged before (ms); null: unknown."""


def schema_text(schema: Avro) -> str:
    """A schema in the registry's form."""
    return json.dumps(schema, separators=(",", ":"))
