"""The generator gives the same for the same seed and all that it promises; Cassandra refuses none of it."""

from __future__ import annotations

import re
from collections import Counter
from itertools import islice, pairwise
from typing import TYPE_CHECKING

import pytest
from cassandra.query import BatchStatement, BatchType

from proof.ring.generate import KINDS, Generator
from proof.ring.operations import Operation
from writetime.cassandra.types.native import NATIVE

if TYPE_CHECKING:
    from cassandra.cluster import Session

    from proof.harness.node import Node

SEEDS = (1, 20_260_301)
OPERATIONS = 1300


@pytest.mark.parametrize("seed", SEEDS)
def test_a_seed_says_everything(seed: int) -> None:
    once, again = Generator(seed, OPERATIONS), Generator(seed, OPERATIONS)
    assert once.schema() == again.schema()
    assert repr(list(once)) == repr(list(again))
    assert repr(list(Generator(seed + 1, OPERATIONS))) != repr(list(once))
    # A longer run begins as a shorter one: a failing run can be cut.
    assert repr(list(islice(Generator(seed, 10 * OPERATIONS), OPERATIONS))) == repr(list(once))


@pytest.mark.parametrize("seed", SEEDS)
def test_a_run_has_its_minima(seed: int) -> None:
    counts = Counter(operation.kind for operation in Generator(seed, 5 * OPERATIONS))
    minimum = Generator(seed, 0).minimum(5 * OPERATIONS)
    assert counts.total() == 5 * OPERATIONS
    assert set(counts) == set(minimum) == set(KINDS)
    assert {kind: counts[kind] for kind in KINDS if counts[kind] < minimum[kind]} == {}
    assert min(minimum.values()) > 0
    assert Generator(seed, 0).minimum(10) == dict.fromkeys(KINDS, 0)


def test_all_types_are_there() -> None:
    schema = " ".join(Generator(1, 0).schema())
    for kind in [*(set(NATIVE) - {"empty"}), "frozen<", "list<", "set<", "map<", "tuple<", "vector<"]:
        assert f" {kind}" in schema or f"<{kind}" in schema, kind


@pytest.mark.parametrize("seed", SEEDS)
def test_elements_have_several_spellings(seed: int) -> None:
    """Those that the driver does not write, equal decimals, and user types that have got fields since."""
    statements = [operation for operation in Generator(seed, 5 * OPERATIONS) if operation.cql]
    assert {"decimal", "varint"} <= {found[1] for each in statements for found in re.finditer(r"[\[{]blobas(\w+)\(0x\w", each.cql)}
    assert any("[blobas" in each.cql and each.cql.startswith("DELETE") for each in statements)
    assert any(" - {blobas" in each.cql for each in statements)
    assert [each for each in statements if each.kind == "add field" and '"Address"' in each.cql]


@pytest.mark.parametrize("seed", SEEDS)
def test_what_is_off_is_not_written(seed: int) -> None:
    """Between cdc off and on there is nothing, and columns go when every node has flushed."""
    operations = list(Generator(seed, OPERATIONS))
    pairs = list(pairwise(operations))
    assert [after.kind for before, after in pairs if before.kind == "cdc off"]
    assert all(after.kind == "cdc on" for before, after in pairs if before.kind == "cdc off")
    assert all(operation.flush and operation.needs_all_up for operation in operations if operation.kind == "drop column")
    assert all(operation.needs_all_up for operation in operations if operation.kind == "truncate")


@pytest.mark.parametrize("seed", SEEDS)
def test_a_table_comes_back_with_its_id_and_key_and_now_and_then_with_other_columns(seed: int) -> None:
    generator = Generator(seed, 5 * OPERATIONS)
    created = {_table(cql): cql for cql in generator.schema() if " id = '" in cql}
    assert len(created) == 2
    seen: Counter[tuple[bool, bool]] = Counter()
    for before, after in pairwise(generator):
        if before.kind == "drop table to create its id again":
            name = before.cql.removeprefix("DROP TABLE ")
            assert (_table(after.cql), _id(after.cql), _key(after.cql)) == (name, _id(created[name]), _key(created[name]))
            assert before.needs_all_up
            assert after.needs_all_up
            seen[after.after_batch, "other columns" in after.kind] += 1
        if after.kind == "rename key column" and (name := after.cql.split(" RENAME ")[0].removeprefix("ALTER TABLE ")) in created:
            old, new = after.cql.split(" RENAME ")[1].split(" TO ")
            created[name] = created[name].replace(old, new)
    assert set(seen) == {(False, False), (False, True), (True, False), (True, True)}


def _table(cql: str) -> str:
    return cql.removeprefix("CREATE TABLE ").split(" (")[0]


def _id(cql: str) -> str:
    return cql.split(" id = '")[1].split("'")[0]


def _key(cql: str) -> str:
    return cql.split("PRIMARY KEY (")[1].split(") WITH")[0]


@pytest.mark.parametrize("seed", SEEDS)
def test_what_no_segment_records_follows_on_a_row_of_a_captured_table(seed: int) -> None:
    pairs = [pair for pair in pairwise(Generator(seed, OPERATIONS)) if pair[1].kept_by is not None]
    assert {after.kept_by for _, after in pairs} == {0, 1}
    for before, after in pairs:
        assert after.needs_all_up
        assert before.cql.startswith(f"INSERT INTO {after.cql.removeprefix('TRUNCATE ')} (")


@pytest.mark.thorough
@pytest.mark.cassandra
def test_cassandra_refuses_nothing(cassandra_node: Node) -> None:
    """Some hundred operations; `python -m proof.ring` runs as many as one likes."""
    session = cassandra_node.session()
    generator = Generator(SEEDS[0], OPERATIONS // 2)
    for statement in generator.schema():
        session.execute(statement.replace("'dc1': 3", "'dc1': 1"))
    for operation in generator:
        execute(session, operation)
    session.execute('DROP KEYSPACE "proof"')
    session.execute('DROP KEYSPACE "Proof_2"')


def execute(session: Session, operation: Operation) -> None:
    """Prepared anew each time: columns may have changed."""
    if operation.batch is not None:
        kinds = {"BEGIN UNLOGGED BATCH": BatchType.UNLOGGED, "BEGIN COUNTER BATCH": BatchType.COUNTER, "BEGIN BATCH": BatchType.LOGGED}
        batch = BatchStatement(kinds[operation.cql])
        for cql, values in operation.batch:
            batch.add(session.prepare(cql), values)
        session.execute(batch)
    elif operation.ddl or not operation.values:
        session.execute(operation.cql)
    else:
        session.execute(session.prepare(operation.cql), operation.values)


def test_no_collection_has_a_name_that_makes_cassandra_forget() -> None:
    named = re.compile(r'"([^\x00-\x7f](?:[^"]|"")*)" ((?:list|set|map)<|"Address"|shape|pair)')
    seen = 0
    for seed in (101, 303):
        generator = Generator(seed, 20_000)
        statements = [*generator.schema(), *(operation.cql for operation in generator if operation.ddl)]
        assert [found for cql in statements for found in named.findall(cql)] == []
        seen += sum('"x😀"' in cql or '"x日本"' in cql for cql in statements)
    assert seen, "no seed would have named one so"


def test_no_column_takes_the_name_of_one_that_was_dropped() -> None:
    """Cassandra refuses such a name another type; only what comes again has the same."""
    gone: set[tuple[str, str]] = set()
    seen = Counter[str]()
    for operation in Generator(101, 20_000):
        if operation.kind.startswith("drop table"):
            table = operation.cql.removeprefix("DROP TABLE ")
            gone = {(of, name) for of, name in gone if of != table}
        if operation.kind in ("add column", "drop column"):
            table, column = re.fullmatch(r'ALTER TABLE (.+?) (?:ADD|DROP) ("(?:[^"]|"")*").*', operation.cql, re.DOTALL).groups()  # type: ignore[union-attr]
            seen[operation.kind] += 1
            if operation.kind == "drop column":
                gone.add((table, column))
            assert operation.kind == "drop column" or (table, column) not in gone, operation
    assert min(seen["add column"], seen["drop column"]) > 50
