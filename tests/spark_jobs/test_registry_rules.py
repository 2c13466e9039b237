"""Which DDL a real registry accepts, by its rule of compatibility: the table of docs/events.md. Without a registry: no DDL
changes the schema of a key."""

from __future__ import annotations

import json
import urllib.request
import uuid
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pytest

from spark_jobs.sinks.kafka_records import Encoder
from spark_jobs.stages.table_rows import RowShape, changes_schema
from tests.spark_jobs.examples import schema_of, table
from tests.spark_jobs.test_schema_registry import client
from writetime.cassandra.schema.fingerprint import describe
from writetime.cassandra.schema.model import Table, UserType
from writetime.config.kafka import EventsConfig
from writetime.errors import PublishError
from writetime.events.envelope import About, Shape
from writetime.events.serialization import Schemas, avro_schemas, codec_of, schema_text

RULES = ("BACKWARD", "FORWARD", "FULL")
ABOUT = About("ring", "shop", "orders", {}, "cdc")
BASE = {"id": "frozen<pair>", "line": "int", "v": "text", "p": "frozen<pair>", "n": "int"}
PAIR = UserType("shop", "pair", ("a", "b"), ("int", "text"))


@dataclass(frozen=True)
class Ddl:
    """A statement: the columns and the type after it."""

    text: str
    columns: dict[str, str]
    pair: UserType = PAIR
    options: dict[str, Any] = field(default_factory=dict)
    stored: dict[str, str] | None = None
    """The columns of the changes table, if these are others."""

    @property
    def after(self) -> Table:
        return table("orders", 1, self.columns, clustering=1)

    def shapes(self, format: Any = "avro") -> tuple[Shape, Shape]:
        """How the table shows before and after it."""
        before, after = table("orders", 1, BASE, clustering=1), self.after
        versions = {"v1": describe(before, {("shop", "pair"): PAIR}), "v2": describe(after, {("shop", "pair"): self.pair})}
        kept = table("orders", 1, self.stored or self.columns, clustering=1)
        rows = changes_schema(RowShape.of(kept, schema_of(kept, types={("shop", "pair"): self.pair})))
        events = EventsConfig()
        encoder = Encoder(versions, ABOUT, "cdc.shop.orders", format, "string", events, rows, key_names=["id", "line"])
        later = replace(encoder, events=EventsConfig(**self.options))
        return encoder.shapes(rows)("v1"), later.shapes(rows)("v2")


def without(*names: str, **more: str) -> dict[str, str]:
    return {**{name: kind for name, kind in BASE.items() if name not in names}, **more}


CASES = (
    Ddl("ADD column", {**BASE, "w": "decimal"}),
    Ddl("ADD first static column", {**BASE, "s": "static text"}),
    Ddl("DROP column", without("n"), stored=BASE),
    Ddl("DROP and ADD column, with another type", {**BASE, "n": "text"}, stored={**BASE, "n": "text", "_was_1_n": "int"}),
    Ddl("ALTER TYPE … ADD field, also in the key", BASE, UserType("shop", "pair", ("a", "b", "c"), ("int", "text", "int"))),
    Ddl("ALTER TYPE … RENAME field, also in the key", BASE, UserType("shop", "pair", ("x", "b"), ("int", "text"))),
    Ddl("RENAME key column", {"id": "frozen<pair>", "row": "int", "v": "text", "p": "frozen<pair>", "n": "int"}),
    Ddl("`events.deletes: one`", BASE, options={"deletes": "one"}),
)


def schemas_of(case: Ddl) -> tuple[list[Schemas], list[Schemas]]:
    """What is registered before and after, the widest first, as publishing does."""
    before, after = case.shapes()
    made = [avro_schemas(after, ABOUT, wide=wide) for wide in (True, False) if not wide or after.dropped]
    return [avro_schemas(before, ABOUT, wide=False)], made


@pytest.mark.parametrize("format", ["json", "json-schema", "avro"])
@pytest.mark.parametrize("case", CASES, ids=lambda case: case.text)
def test_no_ddl_changes_the_bytes_of_a_key(case: Ddl, format: Any) -> None:
    ids: dict[str, int] = {}
    found = []
    for shape in case.shapes(format):
        schemas = avro_schemas(shape, ABOUT, wide=False) if format == "avro" else None
        numbers = tuple(ids.setdefault(schema_text(part), len(ids)) for part in (schemas.key, schemas.value)) if schemas else (0, 0)
        registered = {False: (schemas, numbers)} if schemas else {}
        codec = codec_of(format, shape, "cdc.shop.orders", registered, wide=False)  # type: ignore[arg-type]
        names = list(shape.keys)
        value = dict.fromkeys(next(iter(shape.keys.values())).known_fields) | {"b": "x"}  # type: ignore[attr-defined]
        value[next(iter(value))] = 7
        found.append([codec.key(shape.key({"key": {names[0]: value, names[1]: line}})) for line in (1, None)])
    assert found[0] == found[1]
    assert b'[7,\\"x\\"]' in (found[0][0] or b"") or b'[7,"x"]' in (found[0][0] or b"")


def verdicts(url: str, case: Ddl, part: str, rule: str) -> bool:
    """Whether the registry takes the schemas after the statement under that rule."""
    subject = f"{uuid.uuid4().hex}-{part}"
    before, after = schemas_of(case)
    with client(url) as registry:
        for schemas in before:
            registry.id_of(subject, getattr(schemas, part))
        body = json.dumps({"compatibility": rule}).encode()
        put = urllib.request.Request(f"{url}/config/{subject}", body, {"Content-Type": "application/json"}, method="PUT")
        urllib.request.urlopen(put, timeout=30).close()
        try:
            for schemas in after:
                registry.id_of(subject, getattr(schemas, part))
        except PublishError as error:
            if error.retriable:
                raise
            return False
    return True


@pytest.mark.kafka
def test_what_a_registry_accepts_is_what_the_docs_say(schema_registry: str) -> None:
    lines = [f"| | key | {' | '.join(RULES)} |", "|---" * (len(RULES) + 2) + "|"]
    for case in CASES:
        before, after = schemas_of(case)
        assert {schema_text(each.key) for each in (*before, *after)} == {schema_text(before[0].key)}
        by_rule = []
        for rule in RULES:
            single, transitive = (verdicts(schema_registry, case, "value", name) for name in (rule, f"{rule}_TRANSITIVE"))
            assert single == transitive, (case.text, rule)
            assert verdicts(schema_registry, case, "key", f"{rule}_TRANSITIVE")
            by_rule.append("yes" if single else "no")
        lines.append(f"| {case.text} | the same | {' | '.join(by_rule)} |")
    page = (Path(__file__).parents[2] / "docs/events.md").read_text()
    made = "\n".join(lines)
    assert made in page, f"docs/events.md lacks:\n\n{made}"
