"""Learning from schema mutations. Every history is applied in several orders: the schema must not depend on
it."""

from __future__ import annotations

import itertools
import random
from collections.abc import Sequence
from dataclasses import replace
from time import process_time
from uuid import UUID

import pytest

from tests.cassandra.commitlog.examples import RANGES_TABLE, SCHEMA, STATICS_TABLE
from tests.cassandra.schema.examples import (
    change,
    column_row,
    create_keyspace,
    create_table,
    deleted_row,
    drop_keyspace,
    dropped_row,
    schema_row,
    table_rows,
)
from writetime.cassandra.model import (
    Bound,
    Cell,
    DeletionTime,
    Mutation,
    PartitionUpdate,
    RangeTombstone,
    Row,
)
from writetime.cassandra.schema.history import SchemaLearner
from writetime.cassandra.schema.model import Column, DroppedColumn, Schema, Table, UserType
from writetime.cassandra.schema.system_tables import TABLES, system_table_id
from writetime.cassandra.types.types import parse_type
from writetime.errors import SchemaError
from writetime.events.masking import rejection_reason

T = 1_700_000_000_000_000
DAY = 86_400_000_000
ID, OTHER = UUID("11111111-e583-11f1-817f-f173fd8e050e"), UUID("22222222-e583-11f1-817f-f173fd8e050e")
TABLE = Table(
    "k",
    "t",
    ID,
    {
        "p": Column("p", "partition_key", "int", 0),
        "c": Column("c", "clustering", "text", 0, descending=True),
        "v": Column("v", "regular", "map<text, int>"),
    },
    cdc=True,
)


def learnt(history: Sequence[Mutation]) -> SchemaLearner:
    """The learner after the history, having made sure that no order, repetition or pause changes what it
    knows."""
    learner = SchemaLearner()
    for mutation in history:
        learner.apply(mutation)
    orders = (
        list(itertools.permutations(history)) if len(history) <= 4 else [random.Random(n).sample(history, len(history)) for n in range(20)]
    )
    for order in orders:
        other = SchemaLearner()
        for mutation in (*order, *order):
            other.apply(mutation)
            other.schema()
        assert other.schema() == learner.schema()
        assert other.cdc_ever == learner.cdc_ever
        assert other.to_json() == learner.to_json()
    again = SchemaLearner.from_json(learner.to_json())
    assert again.schema() == learner.schema()
    assert again.cdc_ever == learner.cdc_ever
    return learner


def drop(timestamp: int, columns: Sequence[str] = ("p", "c", "v")) -> Mutation:
    return change("k", tables=[deleted_row(("t",), timestamp)], columns=[deleted_row(("t", name), timestamp) for name in columns])


def user_tables(schema: Schema) -> dict[UUID, Table]:
    return {table_id: table for table_id, table in schema.tables.items() if table_id not in TABLES}


@pytest.mark.parametrize("table", [TABLE, *SCHEMA.tables.values()], ids=lambda table: table.name)
def test_a_created_table_comes_out_as_it_was(table: Table) -> None:
    schema = learnt([create_keyspace("k", T), create_table(table, T + 1)]).schema()
    assert user_tables(schema) == {table.id: table}
    assert schema.keyspaces["k"].replication == {"class": "org.apache.cassandra.locator.SimpleStrategy", "replication_factor": "3"}
    assert TABLES.items() <= schema.tables.items()


def test_only_what_is_new_is_said_to_be() -> None:
    learner = SchemaLearner()
    assert learner.apply(create_table(TABLE, T))
    assert not learner.apply(create_table(TABLE, T))
    assert not learner.apply(Mutation((PartitionUpdate(RANGES_TABLE.id, b"k"),)))
    assert not learner.apply(create_table(Table("system", "x", ID, TABLE.columns), T))


def test_add_and_drop_a_column() -> None:
    history = [
        create_table(TABLE, T),
        change("k", tables=table_rows("t", ID, T + DAY, cdc=True), columns=[column_row("t", "w", T + DAY, "regular", "int")]),
        change(
            "k",
            tables=table_rows("t", ID, T + 2 * DAY, cdc=True),
            columns=[deleted_row(("t", "v"), T + 2 * DAY)],
            dropped_columns=[dropped_row("t", "v", T + 2 * DAY, "regular", "map<text, int>", (T + 2 * DAY) // 1000)],
        ),
    ]
    (table,) = user_tables(learnt(history).schema()).values()
    assert set(table.columns) == {"p", "c", "w"}
    assert table.dropped_columns == {"v": DroppedColumn("v", "regular", "map<text, int>", T + 2 * DAY)}
    assert not table.dropped


def test_a_dropped_column_that_is_added_again_is_both() -> None:
    history = [
        create_table(TABLE, T),
        change(
            "k",
            columns=[deleted_row(("t", "v"), T + DAY)],
            dropped_columns=[dropped_row("t", "v", T + DAY, None, "map<text, int>", (T + DAY) // 1000)],
        ),
        change("k", columns=[column_row("t", "v", T + 2 * DAY, "regular", "map<text, int>")]),
    ]
    (table,) = user_tables(learnt(history).schema()).values()
    assert "v" in table.columns
    assert table.dropped_columns["v"].kind == "regular"


def test_rename_of_a_clustering_column() -> None:
    """The old name's row is deleted; were it not honoured, the table would have two clustering columns."""
    history = [
        create_table(TABLE, T),
        change(
            "k",
            tables=table_rows("t", ID, T + DAY, cdc=True),
            columns=[deleted_row(("t", "c"), T + DAY), column_row("t", "c_new", T + DAY, "clustering", "text", 0, "desc")],
        ),
    ]
    learner = learnt(history)
    (table,) = user_tables(learner.schema()).values()
    assert table.clustering == (Column("c_new", "clustering", "text", 0, descending=True),)
    for known in (learner, SchemaLearner.from_json(learner.to_json())):
        (table,) = user_tables(known.schema()).values()
        assert [table.former_names(column) for column in (*table.partition_key, *table.clustering)] == [[], ["c"]]


def test_names_of_a_table_before_are_no_former_names() -> None:
    columns = {"pk": Column("pk", "partition_key", "int", 0), "d": Column("d", "clustering", "text", 0)}
    again = Table("k", "t", UUID(int=2), columns)
    learner = learnt([create_keyspace("k", T), create_table(TABLE, T), drop(T + DAY), create_table(again, T + 2 * DAY)])
    assert learner.schema().tables[again.id].former_keys == ()


def test_rename_that_only_a_snapshot_tells() -> None:
    """A snapshot shows the new name, but not that the old one is gone. The log shows that, and is read
    later."""
    told = change(
        "k", tables=table_rows("t", ID, T + DAY, cdc=True), columns=[column_row("t", "c_new", T + DAY, "clustering", "text", 0, "desc")]
    )
    for history in itertools.permutations([create_table(TABLE, T), told]):
        learner = learnt(history)
        (table,) = user_tables(learner.schema()).values()
        assert table.clustering == (Column("c_new", "clustering", "text", 0, descending=True),)
        assert table.partition_key == TABLE.partition_key
        assert table.former_names(table.clustering[0]) == ["c"]
        assert not learner.left_out


def test_a_dropped_table_stays_as_it_was() -> None:
    learner = learnt([create_keyspace("k", T), create_table(TABLE, T), drop(T + DAY)])
    (table,) = user_tables(learner.schema()).values()
    assert table.dropped
    assert table.columns == TABLE.columns
    assert table.cdc
    assert learner.schema().table("k", "t") is None
    assert learner.cdc_ever == {ID}


def test_a_dropped_keyspace_leaves_its_tables_behind() -> None:
    schema = learnt([create_keyspace("k", T), create_table(TABLE, T), drop_keyspace("k", T + DAY)]).schema()
    assert "k" not in schema.keyspaces
    assert [(table.id, table.dropped, table.columns) for table in user_tables(schema).values()] == [(ID, True, TABLE.columns)]


def test_columns_dropped_as_a_range() -> None:
    deletion = DeletionTime(T + DAY, 0)
    whole_table = RangeTombstone(Bound((b"t",), True), Bound((b"t",), True), deletion)
    columns = PartitionUpdate(system_table_id("system_schema", "columns"), b"k", range_tombstones=(whole_table,))
    other = Table("k", "tt", OTHER, TABLE.columns)
    history = [create_table(TABLE, T), create_table(other, T), change("k", tables=[deleted_row(("t",), T + DAY)]), Mutation((columns,))]
    tables = user_tables(learnt(history).schema())
    assert [(table.name, table.dropped, set(table.columns)) for table in tables.values()] == [
        ("t", True, {"p", "c", "v"}),
        ("tt", False, {"p", "c", "v"}),
    ]


RECREATED = Table("k", "t", OTHER, {"p": Column("p", "partition_key", "text", 0), "z": Column("z", "regular", "blob")})


def test_a_table_created_anew_is_another_one() -> None:
    learner = learnt([create_table(TABLE, T), drop(T + DAY), create_table(RECREATED, T + 2 * DAY)])
    tables = user_tables(learner.schema())
    assert tables[OTHER] == RECREATED
    assert tables[ID].dropped
    assert tables[ID].columns == TABLE.columns
    assert learner.schema().table("k", "t") is tables[OTHER]
    assert learner.cdc_ever == {ID}


def test_a_table_created_anew_whose_drop_was_not_seen() -> None:
    """No deletion separates the columns of the two incarnations; only their writetimes do."""
    tables = user_tables(learnt([create_table(TABLE, T), create_table(RECREATED, T + DAY)]).schema())
    assert tables[ID].dropped
    assert tables[ID].columns == TABLE.columns
    assert tables[OTHER] == RECREATED


def test_three_lives_with_changes_between() -> None:
    third = UUID("33333333-e583-11f1-817f-f173fd8e050e")
    history = [
        create_keyspace("k", T),
        create_table(TABLE, T),
        change("k", columns=[column_row("t", "late", T + 1, "regular", "int")]),
        drop(T + DAY, ("p", "c", "v", "late")),
        create_table(RECREATED, T + 2 * DAY),
        drop(T + 3 * DAY, ("p", "z")),
        create_table(Table("k", "t", third, TABLE.columns), T + 4 * DAY),
    ]
    tables = user_tables(learnt(history).schema())
    assert {table_id: (table.dropped, set(table.columns)) for table_id, table in tables.items()} == {
        ID: (True, {"p", "c", "v", "late"}),
        OTHER: (True, {"p", "z"}),
        third: (False, {"p", "c", "v"}),
    }


def test_a_drop_that_the_next_create_has_covered() -> None:
    """The log of a node that was down for both: of two deletions of the table's row it has only the later
    one, which belongs to the CREATE."""
    dropped = change("k", columns=[deleted_row(("t", name), T + DAY) for name in ("p", "c", "v")])
    for again in (RECREATED, Table("k", "t", OTHER, TABLE.columns)):
        tables = user_tables(learnt([create_table(TABLE, T), create_table(again, T + 2 * DAY), dropped]).schema())
        assert tables == {ID: replace(TABLE, dropped=True), OTHER: again}
        assert (tables[ID].dropped_at, tables[ID].replaced) == (T + DAY, True)


def test_a_life_that_was_told_in_part_does_not_cost_the_others() -> None:
    third = UUID("33333333-e583-11f1-817f-f173fd8e050e")
    history = [create_table(TABLE, T), drop(T + DAY), change("k", tables=table_rows("t", OTHER, T + 2 * DAY, cdc=True))]
    history += [change("k", tables=[deleted_row(("t",), T + 3 * DAY)]), create_table(Table("k", "t", third, TABLE.columns), T + 4 * DAY)]
    learner = learnt(history)
    assert {table_id: table.dropped for table_id, table in user_tables(learner.schema()).items()} == {ID: True, third: False}
    ((name, error),) = learner.left_out.items()
    assert name == "k.t"
    assert "primary key columns are missing" in str(error)


def test_cdc_is_the_present_value_and_cdc_ever_the_past() -> None:
    learner = learnt([create_table(TABLE, T), change("k", tables=table_rows("t", ID, T + DAY, cdc=False))])
    assert not learner.schema().tables[ID].cdc
    assert learner.cdc_ever == {ID}


def test_cdc_of_one_life_is_not_that_of_the_next() -> None:
    learner = learnt([create_table(TABLE, T), drop(T + DAY), create_table(RECREATED, T + 2 * DAY)])
    assert OTHER not in learner.cdc_ever


def test_a_table_told_only_in_part_is_left_out() -> None:
    alter = change("k", tables=table_rows("t", ID, T + DAY), columns=[column_row("t", "w", T + DAY, "regular", "int")])
    assert user_tables(learnt([alter]).schema()) == {}
    hole = change("k", tables=table_rows("t", ID, T), columns=[column_row("t", "b", T, "partition_key", "int", 1)])
    assert user_tables(learnt([hole]).schema()) == {}


def test_user_types() -> None:
    old = schema_row("types", ("addr",), T, {"field_names": ["street"], "field_types": ["text"]})
    new = schema_row("types", ("addr",), T + DAY, {"field_names": ["street", "zip"], "field_types": ["text", "int"]})
    gone = [schema_row("types", ("old",), T, {"field_names": ["a"], "field_types": ["int"]}), deleted_row(("old",), T + 1)]
    history = [change("k", types=[old]), change("k", types=[new]), change("k", types=gone[:1]), change("k", types=gone[1:])]
    assert learnt(history).schema().types == {
        ("k", "addr"): UserType("k", "addr", ("street", "zip"), ("text", "int")),
        ("k", "old"): UserType("k", "old", ("a",), ("int",), dropped=True),
    }


@pytest.mark.parametrize(
    "gone",
    [[drop(T + DAY), change("k", types=[deleted_row(("addr",), T + 2 * DAY)])], [drop_keyspace("k", T + DAY)]],
    ids=["one by one", "all"],
)
def test_a_table_that_was_dropped_with_its_type_can_still_be_shown(gone: list[Mutation]) -> None:
    homes = Table("k", "t", ID, {**TABLE.columns, "v": Column("v", "regular", "list<frozen<addr>>")}, cdc=True)
    told = [(T, ["street"], ["text"]), (T + 1, ["street", "zip"], ["text", "int"])]
    types = [change("k", types=[schema_row("types", ("addr",), at, {"field_names": n, "field_types": k})]) for at, n, k in told]
    learner = learnt([create_table(homes, T + 1), *types, *gone])
    schema = learner.schema()
    assert schema.types == {("k", "addr"): UserType("k", "addr", ("street", "zip"), ("text", "int"), dropped=True)}
    table = schema.tables[ID]
    assert (table.dropped, learner.cdc_ever, rejection_reason(table, schema)) == (True, {ID}, None)
    # And back, as another one.
    again = schema_row("types", ("addr",), T + 3 * DAY, {"field_names": ["x"], "field_types": ["int"]})
    learner.apply(change("k", types=[again]))
    assert learner.schema().types == {("k", "addr"): UserType("k", "addr", ("x",), ("int",))}


def test_views_are_tables() -> None:
    row = schema_row("views", ("mv",), T, {"id": ID, "base_table_name": "t", "base_table_id": OTHER})
    columns = [column_row("mv", "p", T, "partition_key", "int", 0), column_row("mv", "v", T, "regular", "text")]
    (table,) = user_tables(learnt([change("k", views=[row], columns=columns)]).schema()).values()
    assert (table.name, table.flags, set(table.columns)) == ("mv", {"compound"}, {"p", "v"})


def test_flags_and_options() -> None:
    cells = {"id": ID, "flags": ["counter"], "default_time_to_live": 60, "gc_grace_seconds": 0}
    history = [change("k", tables=[schema_row("tables", ("t",), T, cells)], columns=[column_row("t", "p", T, "partition_key", "int", 0)])]
    (table,) = user_tables(learnt(history).schema()).values()
    assert (table.flags, table.default_time_to_live, table.gc_grace_seconds, table.is_counter) == ({"counter"}, 60, 0, True)


def test_unchanged_keyspaces_keep_their_very_tables() -> None:
    learner = learnt([create_table(STATICS_TABLE, T)])
    before = learner.schema().tables[STATICS_TABLE.id]
    learner.apply(create_table(Table("other", "t", ID, TABLE.columns), T))
    assert learner.schema().tables[STATICS_TABLE.id] is before


@pytest.mark.parametrize("text", ["", "[]", "{}", '{"format":2,"partitions":[]}', '{"format":1,"partitions":[{"table":"t"}]}'])
def test_what_is_no_memory_is_refused(text: str) -> None:
    with pytest.raises(SchemaError):
        SchemaLearner.from_json(text)


def test_a_kind_of_column_that_is_not_known_costs_its_table_alone() -> None:
    odd = change("k", tables=table_rows("odd", OTHER, T), columns=[column_row("odd", "p", T, "spatial", "int", 0)])
    learner = learnt([create_table(TABLE, T), odd])
    assert user_tables(learner.schema()).keys() == {ID}
    ((name, error),) = learner.left_out.items()
    assert (name, "spatial" in str(error)) == ("k.odd", True)


@pytest.mark.parametrize(
    "names_and_types",
    [(["a", "b"], ["int"]), (["a", None], ["int", "int"]), (["a"], [None]), ([], []), (None, None)],
    ids=["a type too few", "a name is null", "a type is null", "none", "empty"],
)
def test_a_user_type_of_other_words_costs_only_itself(names_and_types: tuple[list[str | None] | None, list[str | None] | None]) -> None:
    """No node writes this, but it must not prevent learning everything else."""
    kind = parse_type("frozen<list<text>>", "system_schema", {})
    cells = (
        Cell(name, T, kind.encode(value) if value is not None else b"")
        for name, value in zip(("field_names", "field_types"), names_and_types, strict=True)
    )
    row = Row((b"odd",), cells=tuple(cells))
    learner = learnt([create_table(TABLE, T + 1), create_keyspace("k", T), change("k", types=[row])])
    assert user_tables(learner.schema()) == {ID: TABLE}
    odd = learner.schema().types.get(("k", "odd"))
    assert (odd is None) == (names_and_types != ([], []))


def test_a_keyspace_whose_name_is_no_text_costs_nothing() -> None:
    keyspaces = system_table_id("system_schema", "keyspaces")
    row = create_keyspace("k", T).updates[0].rows[0]
    learner = learnt([create_table(TABLE, T + 1), create_keyspace("k", T), Mutation((PartitionUpdate(keyspaces, b"\xff", rows=(row,)),))])
    assert user_tables(learner.schema()) == {ID: TABLE}


@pytest.mark.parametrize("column", ["flags", "default_time_to_live", "gc_grace_seconds", "cdc"])
def test_an_option_of_no_bytes_is_one_that_was_not_told(column: str) -> None:
    row = Row((b"t",), cells=(Cell(column, T + 2, b""),))
    table = user_tables(learnt([create_table(TABLE, T + 1), create_keyspace("k", T), change("k", tables=[row])]).schema())[ID]
    assert (table.flags, table.default_time_to_live, table.gc_grace_seconds) == (table.flags & TABLE.flags, 0, 864_000)


def learner_of_churn() -> SchemaLearner:
    """Of 800 tables of 20 columns, all of them dropped."""
    columns = {name: Column(name, "regular", "text") for name in map("c{}".format, range(19))}
    columns["p"] = Column("p", "partition_key", "int", 0)
    learner = SchemaLearner()
    learner.apply(create_keyspace("k", 1))
    for number in range(800):
        name = f"t{number}"
        learner.apply(create_table(Table("k", name, UUID(int=1000 + number), columns, cdc=True), 1_000 + number))
        gone = 1_000_000 + number
        learner.apply(change("k", tables=[deleted_row((name,), gone)], columns=[deleted_row((name, each), gone) for each in columns]))
    return learner


def seconds_to_learn(learner: SchemaLearner) -> float:
    """CPU time; the best of three, as others use the machine too."""
    found = []
    for again in (SchemaLearner.from_json(learner.to_json()) for _ in range(3)):
        started = process_time()
        tables = again.schema().tables
        found.append(process_time() - started)
        assert sum(table.dropped and len(table.columns) == 20 for table in tables.values()) == 800
    return min(found)


@pytest.mark.thorough
def test_a_keyspace_with_much_churn_is_learnt_in_linear_time() -> None:
    # 0.06 s of CPU; it was 19 s when every table looked at the rows of all.
    assert seconds_to_learn(learner_of_churn()) < 0.3


def test_rows_with_equal_cells_and_other_deletions_are_not_taken_for_each_other() -> None:
    """A cached value of one column is used for another only if all relevant facts are equal."""
    columns = {name: Column(name, "regular", "text") for name in ("gone", "stays", "back")} | {"p": Column("p", "partition_key", "int", 0)}
    gone = change("k", columns=[deleted_row(("t", "gone"), T + 10), deleted_row(("t", "back"), T - 10)])
    learner = learnt([create_keyspace("k", T - 20), create_table(Table("k", "t", ID, columns, cdc=True), T), gone])
    assert learner.schema().tables[ID].columns.keys() == {"p", "stays", "back"}


def test_which_tables_a_mutation_drops() -> None:
    again = replace(TABLE, columns={**TABLE.columns, "w": Column("w", "regular", "int")})
    create, drop, anew = create_table(TABLE, T), change("k", tables=[deleted_row(("t",), T + 100)]), create_table(again, T + 200)
    other = create_table(replace(TABLE, id=OTHER), T + 400)
    learner = learnt([create_keyspace("k", T - 1), create, drop, anew])
    assert learner.schema().tables[ID].columns.keys() == again.columns.keys()
    learner.apply(other)
    assert [learner.drops(each) for each in (create, drop, anew, other)] == [{}, {ID: T + 100}, {}, {}]
    assert [learner.creates_again(each) for each in (create, drop, anew)] == [{}, {}, {ID: T + 200}]
    # As a node passes on what it has: the DROP is in it, and the table that came after it.
    both = change("k", tables=[replace(deleted_row(("t",), T + 100), cells=anew.updates[-1].rows[0].cells)])
    assert learner.drops(both) == {}
    assert learner.drops(drop_keyspace("k", T + 300)) == {ID: T + 300}
    assert learner.drops(drop_keyspace("k", T + 500)) == {OTHER: T + 500}


def test_a_create_with_a_known_id_implies_the_drop_that_no_segment_holds() -> None:
    """In any order, and however often it is logged; a DROP that is known explains it."""
    create, again = create_table(TABLE, T), create_table(TABLE, T + 200)
    for order in ((create, again), (again, create)):
        learner = learnt([*order, again])
        assert [learner.drops(each) for each in (create, again)] == [{}, {ID: T + 199}]
    learner.apply(create_table(TABLE, T + 400))
    assert learner.drops(create_table(TABLE, T + 400)) == {ID: T + 399}
    dropped = change("k", tables=[deleted_row(("t",), T + 100)])
    assert [learnt([create, dropped, again]).drops(each) for each in (create, dropped, again)] == [{}, {ID: T + 100}, {}]
    gone = drop_keyspace("k", T + 100)
    assert learnt([create, gone, again]).drops(again) == {}


@pytest.mark.parametrize(
    "columns",
    [
        pytest.param([], id="an option"),
        pytest.param([column_row("t", "p", T + 200, "partition_key", "int", 0)], id="a masked key"),
        pytest.param(
            [column_row("t", "v", T + 200, "regular", "text"), column_row("t", "w", T + 200, "regular", "int")], id="columns added"
        ),
        pytest.param(
            [deleted_row(("t", "p"), T + 200), column_row("t", "new", T + 200, "partition_key", "int", 0)],
            id="a renamed key",
        ),
    ],
)
def test_an_alter_implies_no_drop(columns: list[Row]) -> None:
    create = create_table(TABLE, T)
    alter = change("k", tables=table_rows("t", ID, T + 200), columns=columns)
    assert learnt([create, alter]).drops(alter) == {}
    assert learnt([create, alter]).creates_again(alter) == {}


def test_a_changed_type_of_all_columns_implies_no_drop() -> None:
    create = create_table(TABLE, T)
    types = [schema_row("types", ("u",), T + 200, {"field_names": ["a"], "field_types": ["int"]})]
    columns = [column_row("t", name, T + 200, column.kind, column.type, column.position) for name, column in TABLE.columns.items()]
    alter = change("k", tables=table_rows("t", ID, T + 200), columns=columns, types=types)
    assert learnt([create, alter]).drops(alter) == {}


def test_columns_of_an_id_before_it_was_dropped_and_created_again() -> None:
    """Frames from before the DROP are decoded with them."""
    first = replace(TABLE, columns={**TABLE.columns, "n": Column("n", "regular", "int"), "gone": Column("gone", "regular", "bigint")})
    again = replace(TABLE, columns={**TABLE.columns, "n": Column("n", "regular", "text")})
    columns = [deleted_row(("t", name), T + 100) for name in first.columns]
    drop = change("k", tables=[deleted_row(("t",), T + 100)], columns=columns)
    history = [create_table(first, T), drop, create_table(again, T + 200)]
    # The second table may be gone, too, by the time that the first one's frames are read.
    gone = [deleted_row(("t", name), T + 300) for name in again.columns]
    dropped_again = change("k", tables=[deleted_row(("t",), T + 300)], columns=gone)
    for changes, dropped in ((history, False), ([*history, dropped_again], True)):
        table = learnt(changes).schema().tables[ID]
        assert (table.dropped, table.columns) == (dropped, again.columns)
        assert table.dropped_columns == {
            "n": DroppedColumn("n", "regular", "int", T + 100),
            "gone": DroppedColumn("gone", "regular", "bigint", T + 100),
        }
    altered = change("k", tables=table_rows("t", ID, T + 100, cdc=False))
    assert learnt([create_table(first, T), altered]).schema().tables[ID].dropped_columns == {}


def test_a_column_that_was_dropped_before_its_table_was_and_the_id_created_again() -> None:
    """The DROP of the table takes the record of the dropped column along; frames that hold it may still
    come."""
    late = column_row("t", "late", T + 10, "regular", "set<int>")
    gone = [deleted_row(("t", "late"), T + 50)], [dropped_row("t", "late", T + 50, "regular", "set<int>", (T + 50) // 1000)]
    drop = change(
        "k",
        tables=[deleted_row(("t",), T + 100)],
        columns=[deleted_row(("t", name), T + 100) for name in TABLE.columns],
        dropped_columns=[deleted_row(("t", "late"), T + 100)],
    )
    history = [create_table(TABLE, T), change("k", columns=[late]), change("k", columns=gone[0], dropped_columns=gone[1]), drop]
    again = replace(TABLE, columns={name: column for name, column in TABLE.columns.items() if name != "v"})
    table = learnt([*history, create_table(again, T + 200)]).schema().tables[ID]
    assert table.columns == again.columns
    assert {name: (column.kind, column.type) for name, column in table.dropped_columns.items()} == {
        "late": ("regular", "set<int>"),
        "v": (TABLE.columns["v"].kind, TABLE.columns["v"].type),
    }
