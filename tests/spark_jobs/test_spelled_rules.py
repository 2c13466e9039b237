"""A rule of `columns` holds, however it is spelled; or it is refused, or reported as one that fits nothing. Without Spark:
from the YAML to every form in which a value is published. `test_columns.py` does the same with whole pipelines."""

from __future__ import annotations

import io
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import fastavro
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from spark_jobs.sinks.avro_files import FileWriter
from spark_jobs.sinks.kafka_records import Encoder, Oversized
from spark_jobs.stages.table_rows import RowShape, changes_schema
from tests.examples import examples
from tests.spark_jobs.examples import events_of, folded, frame, insert, of_kind, paged, schema_of, table
from writetime.cassandra.schema.fingerprint import describe
from writetime.config import base, tables
from writetime.config.kafka import EventsConfig
from writetime.config.pipeline import load
from writetime.errors import ConfigError
from writetime.events.avro import Avro
from writetime.events.envelope import About
from writetime.events.masking import Hiding, Rules, rejection_reason

PEOPLE = table("people", 81, {"id": "int", "ssn": "text", "note": "text", "ssn,old": "text"})
SCHEMA = schema_of(PEOPLE)
SECRET, PLAIN = "4711-0815-secret", "to be seen"
HEAD = "pipeline: p\ncluster: {name: c, datacenters: [d]}\nbucket: b\n"
FORMATS: Final = ("json", "json-schema", "avro")


class _Registry:
    def id_of(self, subject: str, schema: Avro) -> int:
        return 7


def outputs(rules: Rules, folder: Path) -> Iterator[tuple[str, str]]:
    """All that is published of two versions of a row, by where it is. Nothing if the table is rejected."""
    shown = rules.of(PEOPLE, {})
    yield "the reason", repr(rejection_reason(PEOPLE, SCHEMA, rules))
    rows = ({"ssn": SECRET, "note": note} for note in (PLAIN, f"{PLAIN}, later"))
    mutations = [insert(PEOPLE, 1, values, timestamp=10**15 + at, schema=SCHEMA) for at, values in enumerate(rows)]
    yield "dump", repr([Hiding(rules, SCHEMA).mutation(each) for each in mutations])
    if shown.rejection_reason() is not None:
        return
    events = events_of(paged(of_kind(folded([frame(each, schema=SCHEMA) for each in mutations], SCHEMA), "event"), SCHEMA, rules=rules))
    yield "changes", repr(events)
    if any(event["after"] is not None for event in events):
        yield from _records(rules, events, folder)


def _records(rules: Rules, events: list[dict[str, Any]], folder: Path) -> Iterator[tuple[str, str]]:
    of = rules.of(PEOPLE, {}).shown()
    stored = changes_schema(RowShape.of(of, SCHEMA))
    about = {"batch": 3, "processed_at": 0, "schema_version": "v1", "table_id": str(of.id), "late": False}
    batch = pa.RecordBatch.from_pylist([event | about for event in events], schema=stored)
    batch = batch.append_column("publisher", pa.array([0] * batch.num_rows, pa.int32()))
    where = About("ring", "shop", "people", {})
    for form in FORMATS:
        for limit in (10**6, 900):
            encoder = Encoder({"v1": describe(of, {})}, where, "t.shop.people", form, "string", EventsConfig(), stored)  # type: ignore[arg-type]
            encoder.learn("v1", False, _Registry() if form == "avro" else None)  # type: ignore[arg-type]
            encoder.oversized = Oversized("claim-check", limit, str(folder), "ring", None)
            yield f"{form} {limit}", repr([row for out in encoder(iter([batch])) for row in out.to_pylist()])
    writer = FileWriter(encoder, str(folder))
    list(writer(iter([batch.append_column("part", pa.array([0] * batch.num_rows, pa.int32()))])))
    for path in (path for path in folder.rglob("*") if path.is_file()):
        content = path.read_bytes()
        kind = "events" if path.suffix == ".avro" else "claim" if "claims" in str(path) else "other"
        yield f"{kind} {path.name}", repr(list(fastavro.reader(io.BytesIO(content)))) if kind == "events" else content.decode("latin-1")


def found(rules: Rules) -> list[str]:
    """Where the secret is published."""
    with tempfile.TemporaryDirectory() as folder:
        return [name for name, text in outputs(rules, Path(folder)) if SECRET in text]


def outcome(yaml_text: str) -> str:
    """What becomes of a rule in a YAML: refused, reported, hidden; or where the secret is published."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "p.yaml"
        path.write_text(HEAD + yaml_text, encoding="utf-8")
        try:
            rules = load(path).columns.rules
        except ConfigError:
            return "refused"
    if leaks := found(rules):
        return "reported" if rules.unmatched(SCHEMA) else f"published in {leaks}"
    return "hidden"


def test_the_search_finds_a_value_that_nothing_hides() -> None:
    found_in = found(Rules())
    assert {"dump", "changes", *(f"{form} {10**6}" for form in FORMATS)} <= set(found_in)
    assert {"claim", "events"} <= {name.partition(" ")[0] for name in found_in}


# --- spellings

KINDS: Final = {
    "exclude": ["column.exclude.list"],
    "mask": ["column.mask.with.8.chars", "column.mask.with.08.chars", "'column.mask.with.8.chars'", "column.mask.with.9.chars"],
    "hash": [f"column.mask.hash.{name}.with.salt" for name in ("sha256", "SHA-256", "v2.SHA-256", "sha512")],
    "cut": ["column.truncate.to.3.chars", "column.truncate.to.03.chars"],
}
PATTERNS: Final = [
    r"shop\.people\.ssn",
    "shop.people.ssn",
    "SHOP.People.SSN",
    "^shop.people.ssn$",
    " shop.people.ssn ",
    r".*\.ssn",
    r"shop\.people\.s{1,2}n",
    r"shop\.people\.[a-z]{1,3}",
    r"shop\.people\.[r-t,]{3}",
    r"shop\.people\.(ssn|a,b)",
    r"shop\.people\.ssn(,old)?",
    r"shop\.people\.ssn[,]?",
    '"shop"."people"."ssn"',
    "shop.people.'ssn'",
    "people.ssn",
    "ssn",
    "shop.people",
    "shop.people.snn",
    "shop.people.ssn shop.people.note",
    "shop.people.ssn;shop.people.note",
    "shop . people . ssn",
]
OTHERS: Final = [r"shop\.people\.other", r"shop\.people\.o{1,2}", "shop.people.ssn,old"]


def _quoted(text: str) -> str:
    return "'" + text.replace("'", "''") + "'"


@st.composite
def _values(draw: st.DrawFn) -> str:
    """The value of a key: patterns in a text or in a list, one of them for the secret."""
    patterns = [*draw(st.lists(st.sampled_from(OTHERS), max_size=2)), draw(st.sampled_from(PATTERNS))]
    patterns = draw(st.permutations(patterns))
    if draw(st.booleans()):
        return "[" + ", ".join(map(_quoted, patterns)) + "]"
    text = draw(st.sampled_from([",", ", ", " ,\t"])).join(patterns) + draw(st.sampled_from(["", ",", " , "]))
    return _quoted(text)


@st.composite
def _sections(draw: st.DrawFn) -> str:
    """`columns` with a rule for the secret, and with others that may be in its way."""
    kind = draw(st.sampled_from(sorted(KINDS)))
    key, value = draw(st.sampled_from(KINDS[kind])), draw(_values())
    other = draw(st.sampled_from([each for keys in KINDS.values() for each in keys]))
    lines = [f"  {key}: {value}", *draw(st.lists(st.just(f"  {other}: {_quoted('shop.people.note')}"), max_size=1))]
    lines = draw(st.permutations(lines))
    merged = draw(st.sampled_from(["", "  <<: {column.exclude.list: shop.people.note}\n", f"  <<: {{{other}: shop.people.note}}\n"]))
    again = draw(st.sampled_from(["", "columns: {column.exclude.list: shop.people.note}\n", "'columns': {}\n"]))
    return f"columns:\n  salt: a salt\n{merged}{chr(10).join(lines)}\n{again}"


@settings(max_examples=examples(200))
@given(_sections())
def test_a_rule_is_never_lost(text: str) -> None:
    assert outcome(text) in ("hidden", "refused", "reported")


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (r"columns: {column.mask.with.8.chars: 'shop\.people\.[a-z]{1,3}'}", "hidden"),
        ("columns: {column.mask.with.8.chars: shop.people.ssn, column.mask.with.08.chars: shop.people.note}", "hidden"),
        (
            "columns:\n  salt: s\n  column.mask.hash.SHA-256.with.salt: shop.people.ssn\n"
            "  column.mask.hash.v2.SHA-256.with.salt: shop.people.note",
            "hidden",
        ),
        ("columns: {masks: {'8': [shop.people.ssn], +8: [shop.people.note]}}", "hidden"),
        ("columns: {column.include.list: 'shop.people.note'}", "hidden"),
        ("columns: {column.include.list: ''}", "hidden"),
        ("columns: {field.exclude.list: 'Shop.\"people\" . ssn'}", "hidden"),
        ("columns: {field.exclude.list: [shop.people.note, shop.people.ssn]}", "hidden"),
        ("columns: {rows: {Shop.People: \"note > 'z'\"}}", "hidden"),
        ('columns: {rows: {\'"shop"."people"\': "note > \'z\'"}}', "hidden"),
        ("columns: {column.exclude.list: shop.people.ssn, column.exclude.list: shop.people.note}", "refused"),
        ("columns: {column.exclude.list: shop.people.ssn}\nkafka: {bootstrap.servers: 'k:1', topic.prefix: t}\ncolumns: {}", "refused"),
        ("columns: {<<: {column.exclude.list: shop.people.ssn}, column.exclude.list: shop.people.note}", "refused"),
        ("columns: {<<: [{column.exclude.list: shop.people.ssn}, {column.exclude.list: shop.people.note}]}", "refused"),
        ("columns: {exclude: [shop.people.ssn], column.exclude.list: shop.people.note}", "refused"),
        ("columns: {rows: {shop.people: \"note > 'z'\", Shop.People: \"note < 'z'\"}}", "refused"),
        ("columns: {rows: {people: \"note > 'z'\"}}", "refused"),
        ("columns: {column.exclude.list: ['shop.people.note, shop.people.ssn']}", "refused"),
        ("columns: {column.exclude.list: ssn}", "refused"),
        ('columns: {column.exclude.list: \'"shop"."people"."ssn"\'}', "refused"),
        ("columns: {column.exclude.list: [no, shop.people.ssn]}", "refused"),
        ("columns: {column.exclude.list: shop.people.snn}", "reported"),
        # The table is rejected: it has no such field.
        ("columns: {field.exclude.list: shop.people.ssn.street}", "hidden"),
        ("columns: {rows: {shop.peoples: \"note > 'z'\"}}", "reported"),
    ],
)
def test_what_becomes_of_a_spelling(text: str, expected: str) -> None:
    assert outcome(text) == expected


def test_a_reader_that_loses_a_rule_is_found_out(monkeypatch: pytest.MonkeyPatch) -> None:
    """With lists as they were once read, at any comma."""
    broken = r"columns: {column.mask.with.8.chars: 'shop\.people\.([r,]|s)(s)n'}"
    assert outcome(broken) == "hidden"
    monkeypatch.setattr(tables, "_patterns", lambda key, value: [])
    assert outcome(broken).startswith("published in")
    monkeypatch.setattr(tables, "_patterns", lambda key, value: base.comma_list(value))
    with pytest.raises(Exception, match=r"unterminated|missing|unbalanced"):
        outcome(broken)
