"""The schema at each position: every kind of change, its description and the resulting schema."""

from __future__ import annotations

from dataclasses import replace
from uuid import UUID

import pytest

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
from writetime.cassandra.model import Mutation, PartitionUpdate
from writetime.cassandra.schema.history import SchemaLearner
from writetime.cassandra.schema.model import Column, Schema, Table
from writetime.cassandra.schema.timeline import Timeline

T = 1_700_000_000_000_000
DAY = 86_400_000_000
ID, OTHER = UUID("11111111-e583-11f1-817f-f173fd8e050e"), UUID("22222222-e583-11f1-817f-f173fd8e050e")
TABLE = Table(
    "k",
    "t",
    ID,
    {
        "p": Column("p", "partition_key", "int", 0),
        "c": Column("c", "clustering", "text", 0),
        "v": Column("v", "regular", "int"),
        "u": Column("u", "regular", "addr"),
    },
    cdc=True,
)
RECREATED = Table("k", "t", OTHER, {"p": Column("p", "partition_key", "text", 0), "z": Column("z", "regular", "blob")})


def table_of(schema: Schema, table_id: UUID = ID) -> Table:
    return schema.tables[table_id]


def told(timeline: Timeline) -> list[str]:
    return [difference.text for difference in timeline.changes[-1].what]


@pytest.fixture
def timeline() -> Timeline:
    timeline = Timeline()
    timeline.add((1, 100), create_keyspace("k", T))
    timeline.add((1, 200), create_table(TABLE, T + 1))
    return timeline


def test_creation(timeline: Timeline) -> None:
    assert [[each.text for each in made.what] for made in timeline.changes] == [
        ["keyspace k created"],
        [f"table k.t created, id {ID}, cdc on"],
    ]
    assert timeline.changes[1].timestamp == T + 1
    assert timeline.at((1, 199)).tables.get(ID) is None
    assert table_of(timeline.at((1, 200))) == TABLE
    assert timeline.at((0, 10**9)).keyspaces == {}


def test_what_is_not_new_is_no_change(timeline: Timeline) -> None:
    """Another replica, or a restarted node, logs the same changes again."""
    assert timeline.add((1, 300), create_table(TABLE, T + 1)) is None
    assert timeline.add((1, 400), Mutation((PartitionUpdate(ID, b"k"),))) is None
    assert len(timeline.changes) == 2


def test_positions_do_not_go_back(timeline: Timeline) -> None:
    with pytest.raises(ValueError, match="before"):
        timeline.add((1, 150), create_table(RECREATED, T + DAY))


def test_alter(timeline: Timeline) -> None:
    timeline.add((2, 10), change("k", columns=[column_row("t", "w", T + DAY, "static", "text")]))
    assert told(timeline) == ["table k.t: column w text static added"]
    assert "w" not in table_of(timeline.at((2, 9))).columns
    assert table_of(timeline.at((2, 10))).columns["w"].kind == "static"


def test_drop_and_return_of_a_column(timeline: Timeline) -> None:
    """Java and we decode by the live column of a name; whether it can be decoded at all is asked of the
    schema of its time."""
    drop = change(
        "k",
        columns=[deleted_row(("t", "v"), T + DAY)],
        dropped_columns=[dropped_row("t", "v", T + DAY, "regular", "int", (T + DAY) // 1000)],
    )
    timeline.add((2, 10), drop)
    assert told(timeline) == ["table k.t: column v dropped"]
    timeline.add((2, 20), change("k", columns=[column_row("t", "v", T + 2 * DAY, "regular", "blob")]))
    assert told(timeline) == ["table k.t: column v blob added"]
    assert table_of(timeline.at((2, 9))).columns["v"].type == "int"
    assert "v" not in table_of(timeline.at((2, 19))).columns
    now = table_of(timeline.now)
    assert (now.columns["v"].type, now.dropped_columns["v"].type) == ("blob", "int")


def test_rename_of_a_clustering_column(timeline: Timeline) -> None:
    timeline.add(
        (2, 10), change("k", columns=[deleted_row(("t", "c"), T + DAY), column_row("t", "Née", T + DAY, "clustering", "text", 0, "asc")])
    )
    assert told(timeline) == ["table k.t: column c renamed to Née"]
    assert [column.name for column in table_of(timeline.at((2, 10))).clustering] == ["Née"]
    assert [column.name for column in table_of(timeline.at((2, 9))).clustering] == ["c"]


def test_cdc_off_and_on_and_other_options(timeline: Timeline) -> None:
    timeline.add((2, 10), change("k", tables=table_rows("t", ID, T + DAY, cdc=False)))
    assert told(timeline) == ["table k.t: cdc off"]
    timeline.add((2, 20), change("k", tables=table_rows("t", ID, T + 2 * DAY, cdc=True)))
    assert told(timeline) == ["table k.t: cdc on"]
    timeline.add(
        (2, 30), change("k", tables=[schema_row("tables", ("t",), T + 3 * DAY, {"default_time_to_live": 9, "gc_grace_seconds": 1})])
    )
    assert told(timeline) == ["table k.t: default_time_to_live = 9; gc_grace_seconds = 1"]
    assert [table_of(timeline.at((2, position))).cdc for position in (9, 10, 20)] == [True, False, True]
    assert timeline.learner.cdc_ever == {ID}


def test_drop_and_creation_anew(timeline: Timeline) -> None:
    rows = [deleted_row(("t", name), T + DAY) for name in sorted(TABLE.columns)]
    timeline.add((2, 10), change("k", tables=[deleted_row(("t",), T + DAY)], columns=rows))
    assert told(timeline) == [f"table k.t: dropped, id {ID}"]
    timeline.add((2, 20), create_table(RECREATED, T + 2 * DAY))
    assert told(timeline) == [f"table k.t created, id {OTHER}"]
    # Late frames of the dropped incarnation still decode.
    assert table_of(timeline.now) == replace(TABLE, dropped=True)
    assert timeline.at((2, 10)).table("k", "t") is None
    assert timeline.now.table("k", "t") == RECREATED


def test_types_and_keyspaces(timeline: Timeline) -> None:
    first = schema_row("types", ("addr",), T, {"field_names": ["street"], "field_types": ["text"]})
    more = schema_row("types", ("addr",), T + DAY, {"field_names": ["street", "zip"], "field_types": ["text", "int"]})
    for position, row, what in [
        (10, first, "type k.addr created"),
        (20, more, "type k.addr altered: zip added"),
        (30, deleted_row(("addr",), T + 2 * DAY), "type k.addr dropped"),
    ]:
        timeline.add((2, position), change("k", types=[row]))
        assert told(timeline) == [what]
    timeline.add((2, 40), drop_keyspace("k", T + 3 * DAY))
    assert told(timeline) == ["keyspace k dropped", f"table k.t: dropped, id {ID}"]


def test_the_base_holds_from_the_start(timeline: Timeline) -> None:
    """The schema learned from earlier segments is passed to the next by `to_json`."""
    following = Timeline(SchemaLearner.from_json(timeline.learner.to_json()))
    assert table_of(following.at((0, 0))) == TABLE
    following.add((9, 1), change("k", columns=[column_row("t", "w", T + DAY, "regular", "text")]))
    assert [each.text for each in following.changes[0].what] == ["table k.t: column w text added"]


def test_a_non_frozen_user_type_dropped_by_3_11_keeps_its_cells_shape(timeline: Timeline) -> None:
    """3.11 records a tuple for it, which would be read as one cell; the cells in the log have a path each."""
    drop = change(
        "k",
        columns=[deleted_row(("t", "u"), T + DAY)],
        dropped_columns=[dropped_row("t", "u", T + DAY, None, "frozen<tuple<text, int>>", (T + DAY) // 1000)],
    )
    timeline.add((2, 10), drop)
    assert table_of(timeline.now).dropped_columns["u"].type == "addr"
    unseen = Timeline()
    unseen.add((1, 1), create_table(replace(TABLE, columns={name: c for name, c in TABLE.columns.items() if name != "u"}), T + 1))
    unseen.add((2, 10), drop)
    assert table_of(unseen.now).dropped_columns["u"].type == "frozen<tuple<text, int>>"


def test_a_dropped_static_column_without_a_kind_is_what_it_was() -> None:
    """3.11 left the kind out at first."""
    static = replace(TABLE, columns={**TABLE.columns, "s": Column("s", "static", "text")})
    timeline = Timeline()
    timeline.add((1, 1), create_table(static, T))
    dropped = dropped_row("t", "s", T + DAY, None, "text", (T + DAY) // 1000)
    timeline.add((1, 2), change("k", columns=[deleted_row(("t", "s"), T + DAY)], dropped_columns=[dropped]))
    assert table_of(timeline.now).dropped_columns["s"].kind == "static"
