"""The schema learned from a real node's log, printed as CQL and run on it under another name, gives the same
schema."""

from __future__ import annotations

import re
import time
from typing import TYPE_CHECKING, Any

import pytest

from shippers.schema_snapshot import take_snapshot
from writetime.cassandra.commitlog.mutation_json import learn
from writetime.cassandra.commitlog.segment import scan
from writetime.cassandra.schema.create_statements import schema_cql
from writetime.cassandra.schema.history import SchemaLearner
from writetime.cassandra.schema.model import Schema
from writetime.cassandra.schema.system_tables import TABLES, system_table_id
from writetime.cassandra.types.types import wire_shape

if TYPE_CHECKING:
    from proof.harness.node import Node

pytestmark = [pytest.mark.cassandra, pytest.mark.thorough]

DDL = """
CREATE KEYSPACE taught WITH replication = {'class': 'SimpleStrategy', 'replication_factor': 1} AND durable_writes = true;
CREATE TABLE taught.captured (k int PRIMARY KEY) WITH cdc = true;
CREATE TYPE taught.zip (code text, "Country" text);
CREATE TYPE taught."Address" (street text, zip frozen<zip>);
CREATE TYPE taught.a_person (name text, homes map<text, frozen<"Address">>);
CREATE TABLE taught.everything (
    tenant text, "Day" date, at timeuuid, seq int, "order" int, shared set<text> static, home "Address", people list<frozen<a_person>>,
    pair tuple<int, text>, place vector<float, 3>, texts vector<text, 2>, nested map<int, frozen<list<frozen<set<blob>>>>>, price decimal,
    "Née" inet, gone int, back int, PRIMARY KEY ((tenant, "Day"), at, seq)
) WITH CLUSTERING ORDER BY (at DESC, seq ASC) AND cdc = true AND default_time_to_live = 3600 AND gc_grace_seconds = 7;
ALTER TABLE taught.everything DROP gone;
ALTER TABLE taught.everything DROP back;
ALTER TABLE taught.everything ADD back int;
ALTER TABLE taught.everything ADD late duration;
ALTER TABLE taught.everything RENAME seq TO number;
ALTER TYPE taught.zip ADD plus4 int;
CREATE TABLE taught.counts (k int PRIMARY KEY, n counter, m counter) WITH cdc = true;
CREATE TABLE taught."KeysOnly" (k uuid, c timestamp, PRIMARY KEY (k, c));
CREATE TABLE taught.dropped (k int PRIMARY KEY);
DROP TABLE taught.dropped;
CREATE TABLE taught.off (k int PRIMARY KEY, v text) WITH cdc = true;
ALTER TABLE taught.off WITH cdc = false;
"""
NAMES = {"captured", "counts", "everything", "KeysOnly", "off"}


@pytest.fixture(scope="module")
def schema(cassandra_node: Node) -> Schema:
    """What the node's log says of the keyspace, once it has all been synced."""
    session = cassandra_node.session()
    create_keyspace, *others = [statement for statement in DDL.split(";\n") if statement.strip()]
    session.execute(create_keyspace)
    for statement in others:
        session.execute(statement)
        # A segment without a captured write is not kept, nor is the DDL in it.
        session.execute("INSERT INTO taught.captured (k) VALUES (1)")
    deadline = time.monotonic() + 60
    while True:
        learner = SchemaLearner()
        for path in cassandra_node.cdc_raw.glob("CommitLog-*.log"):
            learn(scan(path.read_bytes(), name=path.name), learner)
        found = learner.schema()
        off = found.table("taught", "off")
        if off is not None and not off.cdc:
            return found
        assert time.monotonic() < deadline, "the schema did not reach the log"
        time.sleep(1)  # the log is synced every ten seconds


def test_the_cql_makes_the_same_schema(cassandra_node: Node, schema: Schema) -> None:
    session = cassandra_node.session()
    text = "\n\n".join(schema_cql(schema))
    ours = [statement for statement in statements(text) if re.search(r"\btaught\b", statement)]
    assert len(ours) == 1 + 3 + len(NAMES)
    for statement in ours:
        session.execute(re.sub(r"\btaught\b", "taught_again", statement))
    snapshot = take_snapshot(session)
    assert {row["table_name"] for row in rows(snapshot, "tables", "taught")} == NAMES
    for table in ("keyspaces", "tables", "columns", "types"):
        assert rows(snapshot, table, "taught_again") == rows(snapshot, table, "taught"), table


def test_cassandras_own_tables_are_known_by_heart(cassandra_node: Node) -> None:
    """Every column of every table that this version writes to its log, with a type that reads the same
    bytes."""
    columns = "keyspace_name, table_name, column_name, kind, position, type"
    own = cassandra_node.session().execute(
        f"SELECT {columns} FROM system_schema.columns WHERE keyspace_name IN ('system', 'system_schema')"
    )
    asked = [tuple(row) for row in own]
    assert len(asked) > 200
    for keyspace, table, name, kind, position, type_text in asked:
        known = TABLES[system_table_id(keyspace, table)].columns[name]
        assert (known.kind, known.position, wire_shape(known.type)) == (kind, position, wire_shape(type_text)), f"{keyspace}.{table}.{name}"


def statements(text: str) -> list[str]:
    """As cqlsh would take them: comments are passed over."""
    code = "\n".join(line for line in text.splitlines() if not line.startswith("--"))
    return [statement for statement in code.split(";\n") if statement.strip()]


def rows(snapshot: dict[str, Any], table: str, keyspace: str) -> list[dict[str, Any]]:
    """Rows of one keyspace without what tells it from another: names, ids, times of writing; and cdc off is
    as good as never on."""
    found = [
        {name: value for name, value in row.items() if name not in ("keyspace_name", "id", "writetime")}
        | ({"cdc": bool(row["cdc"])} if "cdc" in row else {})
        for row in snapshot[table]
        if row["keyspace_name"] == keyspace
    ]
    return sorted(found, key=lambda row: [str(row.get(name)) for name in ("table_name", "column_name", "type_name")])
