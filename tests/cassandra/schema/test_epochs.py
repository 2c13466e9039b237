"""Schema changes of Cassandra 6.0: ordered by epoch, whatever the nodes' clocks say."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from random import Random
from typing import Any
from uuid import UUID

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

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
from writetime.cassandra.model import Cell, DeletionTime, Liveness, Mutation, PartitionUpdate, Row
from writetime.cassandra.schema import epochs
from writetime.cassandra.schema.epochs import Followed, follow
from writetime.cassandra.schema.history import SchemaLearner
from writetime.cassandra.schema.model import Column, Schema, Table
from writetime.cassandra.schema.system_tables import LOCAL
from writetime.cassandra.types.vint import write_signed, write_unsigned

T = 1_800_000_000_000_000
SECOND = 1_000_000
COUNTED = 0x1B255F4D_EF25_40A6


def table_id(number: int) -> UUID:
    return UUID(int=(COUNTED << 64) | number)


TABLE = Table(
    "k",
    "t",
    table_id(4),
    {
        "p": Column("p", "partition_key", "int", 0),
        "c": Column("c", "clustering", "int", 0),
        "v": Column("v", "regular", "int"),
        "w": Column("w", "regular", "text"),
    },
    cdc=True,
)


# --- what a node of 6.0 logs


def entry(epoch: int, executed: int = 0, *, kind: int = 4, cql: str = "ALTER", keyspace: str | None = "k") -> Mutation:
    strings = [each.encode() for each in (keyspace, cql) if each is not None]
    text = b"".join(len(each).to_bytes(2, "big") + each for each in strings)
    transformation = write_unsigned(9) + bytes((keyspace is not None,)) + text + write_signed(executed)
    values = {"entry_id": epoch.to_bytes(8, "big"), "kind": kind.to_bytes(4, "big"), "transformation": transformation}
    row = Row((), Liveness(executed), cells=tuple(Cell(name, executed, value) for name, value in values.items()))
    return Mutation((PartitionUpdate(epochs.METADATA_LOG.id, epoch.to_bytes(8, "big"), rows=(row,)),))


def version(epoch: int, at: int = T) -> Mutation:
    row = Row((), cells=(Cell("schema_version", at, UUID(int=epoch).bytes),))
    return Mutation((PartitionUpdate(LOCAL.id, b"local", rows=(row,)),))


@dataclass
class History:
    """A cluster's schema changes, and what it has at each epoch. Times are offsets to a node's clock."""

    keyspace: bool = False
    tables: dict[str, Table] = field(default_factory=dict)
    changes: list[Any] = field(default_factory=list)
    states: list[dict[str, Table] | None] = field(default_factory=lambda: [None])

    @property
    def epoch(self) -> int:
        return len(self.changes)

    def add(self, mutation: Any) -> None:
        self.changes.append(mutation)
        self.states.append(dict(self.tables) if self.keyspace else None)

    def step(self, random: Random) -> None:
        """Some schema change that is possible now. A change is a function of when a node enacts it."""
        if not self.keyspace:
            self.keyspace = True
            self.add(lambda at: _with_6_0(create_keyspace("k", at), at))
            return
        name = random.choice("tuv")
        table = self.tables.get(name)
        kind = random.choice(("add", "drop column", "rename", "cdc", "drop", "drop", "drop keyspace")) if table else "create"
        if kind == "create":
            made = replace(TABLE, name=name, id=table_id(self.epoch))
            self._now(name, made, lambda at: _with_6_0(create_table(made, at), at))
        elif table is None:
            return
        elif kind == "drop":
            del self.tables[name]
            gone = [deleted_row((name, column), 0) for column in table.columns]
            columns = [*gone, *(deleted_row((name, column), 0) for column in table.dropped_columns)]
            dropped = [deleted_row((name, column), 0) for column in table.dropped_columns]
            self.add(lambda at: _at(change("k", tables=[deleted_row((name,), 0)], columns=columns, dropped_columns=dropped), at))
        elif kind == "drop keyspace":
            self.keyspace, self.tables = False, {}
            self.add(lambda at: drop_keyspace("k", at))
        else:
            self._alter(kind, table)

    def _alter(self, kind: str, table: Table) -> None:
        def whole(made: Table, at: int) -> list[Row]:
            return table_rows(made.name, made.id, at, cdc=made.cdc)

        if kind == "cdc":
            made = replace(table, cdc=not table.cdc)
            self._now(table.name, made, lambda at: _with_6_0(change("k", tables=whole(made, at)), at))
        elif kind == "add":
            name = next(f"x{i}" for i in range(9) if f"x{i}" not in table.columns)
            made = replace(table, columns={**table.columns, name: Column(name, "regular", "int")})
            columns = [(name, "regular", "int")]
            self._now(
                table.name,
                made,
                lambda at: _with_6_0(
                    change("k", tables=whole(made, at), columns=[column_row(made.name, n, at, k, t) for n, k, t in columns]), at
                ),
            )
        elif kind == "rename":
            (old,) = table.clustering
            new = replace(old, name="d" if old.name == "c" else "c")
            kept = {name: column for name, column in table.columns.items() if name != old.name}
            made = replace(table, columns={**kept, new.name: new})
            self._now(
                table.name,
                made,
                lambda at: _with_6_0(
                    change(
                        "k",
                        tables=whole(made, at),
                        columns=[
                            deleted_row((made.name, old.name), at),
                            column_row(made.name, new.name, at, "clustering", "int", 0, "asc"),
                        ],
                    ),
                    at,
                ),
            )
        elif regulars := [column for column in table.columns.values() if column.kind == "regular"]:
            gone = regulars[-1]
            made = replace(table, columns={name: column for name, column in table.columns.items() if name != gone.name})
            dropped_ms = (T + self.epoch) // 1000
            self._now(
                table.name,
                made,
                lambda at: _with_6_0(
                    change(
                        "k",
                        tables=whole(made, at),
                        columns=[deleted_row((made.name, gone.name), at)],
                        dropped_columns=[dropped_row(made.name, gone.name, at, "regular", gone.type, dropped_ms)],
                    ),
                    at,
                ),
            )

    def _now(self, name: str, made: Table, mutation: Any) -> None:
        self.tables[name] = made
        self.add(mutation)


def _at(mutation: Mutation, at: int) -> Mutation:
    """With all deletions of rows at that time."""
    updates = (
        replace(each, rows=tuple(replace(row, deletion=row.deletion and DeletionTime(at, at // SECOND)) for row in each.rows))
        for each in mutation.updates
    )
    return _with_6_0(Mutation(tuple(updates)), at)


def _with_6_0(mutation: Mutation, at: int) -> Mutation:
    """With the row of keyspaces that each change has."""
    row = schema_row("keyspaces", (), at, {"durable_writes": True, "replication": [("class", "x")], "fast_path": [("kind", "y")]})
    others = tuple(each for each in mutation.updates if each.table_id != epochs._KEYSPACES)
    return Mutation((*others, PartitionUpdate(epochs._KEYSPACES, b"k", rows=(row,))))


def rewrite(tables: dict[str, Table] | None, at: int) -> list[Mutation]:
    """What a node writes at its start: the schema of all keyspaces anew."""
    own = [_with_6_0(create_table(replace(TABLE, keyspace=name, id=table_id(900)), at), at) for name in ("system_auth", "system_traces")]
    if tables is None:
        return own
    parts = [create_table(replace(table, dropped_columns={}), at) for table in tables.values()]
    rows: dict[UUID, list[Row]] = {}
    for update in (update for part in parts for update in part.updates):
        rows.setdefault(update.table_id, []).extend(update.rows)
    whole = Mutation(
        tuple(PartitionUpdate(each, b"k", rows=tuple(sorted(found, key=lambda row: row.clustering or ()))) for each, found in rows.items())
    )
    return [own[0], _with_6_0(whole, at), own[1]]


def log_of(history: History, clock: int, pauses: Sequence[tuple[int, int]]) -> Iterator[tuple[int, list[tuple[int, Mutation]]]]:
    """A node's segments. Its clock is off by `clock`; `pauses`: it stops at an epoch, and starts when the cluster
    is at another, with the schema of when it stopped; then it enacts what it has missed."""
    segment, position, mutations = 1000, 0, list[tuple[int, Mutation]]()

    def add(*more: Mutation) -> None:
        nonlocal position
        for each in more:
            position += 100
            mutations.append((position, each))

    stops = dict(pauses)
    now = T + clock
    for epoch, mutation in enumerate(history.changes, 1):
        now = max(now + 2 * SECOND, T + clock + 60 * SECOND * epoch)
        add(entry(epoch, T + 60 * SECOND * epoch), mutation(now), version(epoch, now))
        if epoch in stops:
            yield segment, list(mutations)
            mutations.clear()
            segment += 500
            now = max(now, T + clock + 60 * SECOND * (stops[epoch] + 1))
            add(*rewrite(history.states[epoch], now), version(epoch, now))
    yield segment, mutations


def learnt(segments: Sequence[tuple[str, int, list[tuple[int, Mutation]]]]) -> SchemaLearner:
    """Segments of any nodes, in any order."""
    learner, last = SchemaLearner(), dict[str, Followed | None]()
    for host, number, mutations in segments:
        changes, found = follow(number, mutations, last.get(host), has_epochs=True)
        last[host] = found
        for each in changes:
            learner.apply_logged(each)
    return learner


def of_user(schema: Schema) -> dict[UUID, Table]:
    return {each: table for each, table in schema.tables.items() if table.keyspace == "k"}


def living(schema: Schema) -> dict[str, Table]:
    found = {table.name: table for table in of_user(schema).values() if not table.dropped}
    return {name: replace(table, dropped_columns={}) for name, table in found.items()}


@st.composite
def clusters(draw: st.DrawFn) -> tuple[History, list[tuple[int, list[tuple[int, int]]]]]:
    history, random = History(), Random(draw(st.integers(0, 2**32)))
    for _ in range(draw(st.integers(1, 25))):
        history.step(random)
    nodes = []
    for _ in range(3):
        clock = draw(st.integers(-3600, 3600)) * SECOND
        stops = draw(st.lists(st.integers(1, history.epoch), max_size=3, unique=True))
        nodes.append((clock, [(at, draw(st.integers(at, history.epoch))) for at in sorted(stops)]))
    return history, nodes


@settings(max_examples=150)
@given(cluster=clusters(), seed=st.integers(0, 2**32))
def test_logs_of_all_nodes_make_the_history_in_any_order(cluster: Any, seed: int) -> None:
    history, nodes = cluster
    segments = [(str(host), *segment) for host, (clock, stops) in enumerate(nodes) for segment in log_of(history, clock, stops)]
    one = learnt([("0", *segment) for segment in log_of(history, 0, [])])
    Random(seed).shuffle(segments)
    learner = learnt(segments)
    assert of_user(learner.schema()) == of_user(one.schema())
    assert living(learner.schema()) == history.states[-1] or history.states[-1] is None
    assert learner.cdc_ever - {table_id(900)} == one.cdc_ever
    times = {each: (table.dropped_at, table.replaced) for each, table in of_user(learner.schema()).items()}
    assert times == {each: (table.dropped_at, table.replaced) for each, table in of_user(one.schema()).items()}
    again = SchemaLearner.from_json(learner.to_json())
    assert again.schema() == learner.schema()
    assert again.to_json() == learner.to_json()


@settings(max_examples=100)
@given(cluster=clusters(), data=st.data())
def test_snapshots_make_up_for_segments_that_were_not_kept(cluster: Any, data: st.DataObject) -> None:
    history, nodes = cluster
    segments = [(str(host), *segment) for host, (clock, stops) in enumerate(nodes) for segment in log_of(history, clock, stops)]
    kept = [segment for segment in segments if data.draw(st.booleans())]
    learner = learnt(kept)
    for epoch in data.draw(st.lists(st.integers(1, history.epoch), max_size=3)):
        learner.apply_snapshot(snapshot_of(history, epoch))
    learner.apply_snapshot(snapshot_of(history, history.epoch))
    assert living(learner.schema()) == (history.states[-1] or {})
    before = learner.to_json()
    for _, clock, mutations in segments:
        changes, _ = follow(clock, mutations, has_epochs=True)
        for each in changes:
            learner.apply_logged(each)
    assert living(learner.schema()) == (history.states[-1] or {}), before


def snapshot_of(history: History, epoch: int) -> dict[str, Any]:
    """The document that a shipper sends, from a node whose clock is an hour behind."""
    at = T - 3600 * SECOND + 60 * SECOND * epoch
    rows: dict[str, list[dict[str, Any]]] = {"tables": [], "columns": [], "dropped_columns": [], "types": [], "views": []}
    rows["keyspaces"] = [{"keyspace_name": "system_schema", "durable_writes": True, "replication": {"class": "x"}, "writetime": at}]
    rows["tables"].append({"keyspace_name": "system_schema", "table_name": "tables", "id": str(table_id(1)), "writetime": at})
    rows["columns"].append(
        {"keyspace_name": "system_schema", "table_name": "tables", "column_name": "id", "kind": "regular", "writetime": at}
    )
    state = history.states[epoch]
    if state is not None:
        rows["keyspaces"].append({"keyspace_name": "k", "durable_writes": True, "replication": {"class": "x"}, "writetime": at})
    for table in (state or {}).values():
        place = {"keyspace_name": "k", "table_name": table.name, "writetime": at}
        options = {"flags": ["compound"], "gc_grace_seconds": 864000, "default_time_to_live": 0, "cdc": table.cdc}
        rows["tables"].append({**place, "id": str(table.id), **options})
        for column in table.columns.values():
            order = "asc" if column.kind == "clustering" else "none"
            shape = {"kind": column.kind, "type": column.type, "position": column.position, "clustering_order": order}
            rows["columns"].append({**place, "column_name": column.name, **shape})
    return {"taken_at": "2027-01-15T08:00:00+00:00", "schema_version": str(UUID(int=epoch)), "agreed": False, **rows}


# --- single cases


def create(at: int = T) -> list[tuple[int, Mutation]]:
    mutations = [
        entry(4, T),
        create_keyspace("k", at),
        version(4),
        entry(5, T + SECOND),
        _with_6_0(create_table(TABLE, at + 1), at + 1),
        version(5),
    ]
    return list(enumerate(mutations, 1))


def drop_w(at: int) -> Mutation:
    gone = [dropped_row("t", "w", at, "regular", "text", (T + 2 * SECOND) // 1000)]
    return _with_6_0(
        change("k", tables=table_rows("t", TABLE.id, at, cdc=True), columns=[deleted_row(("t", "w"), at)], dropped_columns=gone), at
    )


def test_three_copies_of_a_change_are_one() -> None:
    """Times are those of the entries, and not of the clocks."""
    learner = learnt([(str(host), 1, create(T + host * SECOND)) for host in range(3)])
    one = learnt([("0", 1, create())])
    assert learner.to_json() == one.to_json()
    assert of_user(learner.schema()) == {TABLE.id: TABLE}


def test_a_restart_brings_nothing_back() -> None:
    """A node that was down writes the column that was dropped meanwhile, by its clock after the drop."""
    drop = [(10, entry(6, T + 2 * SECOND)), (11, drop_w(T + 3 * SECOND)), (12, version(6))]
    late = T + 3600 * SECOND
    restart = list(enumerate([*rewrite({"t": TABLE}, late), version(5)], 1))
    learner = learnt([("0", 1, create()), ("1", 1, create()), ("0", 2, drop), ("1", 900, restart)])
    (table,) = of_user(learner.schema()).values()
    assert set(table.columns) == {"p", "c", "v"}
    assert (table.dropped_columns["w"].said_at, table.dropped_columns["w"].said_epoch) == (T + 2 * SECOND, 6)
    assert all(learner.drops(each.mutation) == {} for each in follow(900, restart, has_epochs=True)[0])


def test_that_changes_are_ordered_by_clock_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("changed_at", "known_as_of"):
        monkeypatch.setattr(epochs, name, lambda mutation, epoch: mutation)
    with pytest.raises(AssertionError, match="'w'"):
        test_a_restart_brings_nothing_back()


def test_a_drop_whose_entry_is_in_another_segment() -> None:
    """DROP TABLE completes the segment: its entry is in the one before, which may not have been kept."""
    gone = change("k", tables=[deleted_row(("t",), T + 9)], columns=[deleted_row(("t", name), T + 9) for name in TABLE.columns])
    behind = [(1, _with_6_0(gone, T + 9)), (2, version(6))]
    for before in ([*create(), (9, entry(6, T + 2 * SECOND))], create()):
        first, state = follow(1, before, has_epochs=True)
        second, _ = follow(2, behind, state, has_epochs=True)
        learner = SchemaLearner()
        for each in (*first, *second):
            learner.apply_logged(each)
        (table,) = of_user(learner.schema()).values()
        assert table.dropped
        assert learner.drops(second[0].mutation) == {TABLE.id: table.dropped_at}
    assert table.dropped_at == T + 9


@pytest.mark.parametrize("is_logged", [True, False])
def test_a_table_that_comes_back_with_its_id_after_a_drop_that_only_a_snapshot_showed(is_logged: bool) -> None:
    """Its CREATE says where in the log the first one ended, unless the DROP is in the log, too."""
    first, state = follow(1, create(), has_epochs=True)
    learner = SchemaLearner()
    for each in first:
        learner.apply_logged(each)
    history = History(True, {}, [None] * 6, [None] * 6 + [{}])
    assert learner.apply_snapshot(snapshot_of(history, 6))
    assert of_user(learner.schema())[TABLE.id].dropped
    gone = change("k", tables=[deleted_row(("t",), T + 9)], columns=[deleted_row(("t", name), T + 9) for name in TABLE.columns])
    drop = [(1, entry(6, T + 2 * SECOND)), (2, _with_6_0(gone, T + 9))] if is_logged else []
    at = T + 3 * SECOND
    again = [(3, entry(7, at)), (4, _with_6_0(create_table(TABLE, at + 5), at + 5)), (5, version(7))]
    second, _ = follow(2, [*drop, *again], state, has_epochs=True)
    for each in second:
        learner.apply_logged(each)
    assert not of_user(learner.schema())[TABLE.id].dropped
    found = [(each.position, learner.drops(each.mutation)) for each in second if learner.drops(each.mutation)]
    assert found == [(2, {TABLE.id: T + 2 * SECOND})] if is_logged else [(4, {TABLE.id: at - 1})]


def test_a_drop_seen_as_it_is_logged_although_its_version_is_not() -> None:
    first, state = follow(1, [*create(), (9, entry(6, T + 2 * SECOND)), (10, drop_w(T + 3 * SECOND))], has_epochs=True)
    assert state == Followed(1, 6, False)
    learner = SchemaLearner()
    for each in first:
        learner.apply_logged(each)
    assert "w" in of_user(learner.schema())[TABLE.id].dropped_columns


def test_a_part_of_a_segment_ends_between_entry_and_change() -> None:
    _, state = follow(1, [*create(), (9, entry(6, T + 2 * SECOND))])
    assert state == Followed(1, 6, True)
    second, _ = follow(1, [(10, drop_w(T + 3 * SECOND))], state)
    assert [epochs.epoch_of(epochs.last_timestamp(each.mutation)) for each in second] == [6]
    stranger, _ = follow(7, [(10, drop_w(T + 3 * SECOND))], state)
    assert all(epochs.is_as_of(epochs.last_timestamp(each.mutation)) for each in stranger)


def test_an_upgrade_keeps_one_timeline() -> None:
    """Changes by clock come before those with epochs, whatever the clock said; a node that is upgraded repeats
    the schema and drops nothing, and so do snapshots."""
    learner = SchemaLearner()
    far = T + 365 * 86400 * SECOND
    for each in (create_keyspace("k", far), create_table(TABLE, far + 1)):
        learner.apply(each)
    before = learner.schema()
    start = list(enumerate([*rewrite({"t": TABLE}, T), version(3)], 1))
    for each in follow(5, start)[0]:
        assert learner.drops(each.mutation) == {}
        learner.apply_logged(each)
    assert of_user(learner.schema()) == of_user(before)
    drop = [(10, entry(6, T + 2 * SECOND)), (11, drop_w(T + 3 * SECOND)), (12, version(6))]
    for each in follow(6, drop)[0]:
        learner.apply_logged(each)
    assert set(of_user(learner.schema())[TABLE.id].columns) == {"p", "c", "v"}


def test_a_node_of_6_0_in_a_cluster_that_is_being_upgraded_drops_nothing() -> None:
    """It has no epochs yet: its version is a digest."""
    learner = SchemaLearner()
    for each in (create_keyspace("k", T), create_table(TABLE, T + 1)):
        learner.apply(each)
    digest = UUID("c1b5d0ba-9a44-3f0f-9e33-3f0c2c9c0b3e")
    start = list(enumerate([*rewrite({"t": TABLE}, T + 9 * SECOND), version(digest.int)], 1))
    for each in follow(5, start)[0]:
        learner.apply_logged(each)
        assert learner.drops(each.mutation) == {}
    assert of_user(learner.schema()) == {TABLE.id: TABLE}


def test_logs_of_nodes_before_6_0_are_as_before() -> None:
    digest = UUID("c1b5d0ba-9a44-3f0f-9e33-3f0c2c9c0b3e")
    mutations = [create_keyspace("k", T), version(digest.int), create_table(TABLE, T + 1), version(digest.int)]
    changes, state = follow(1, list(enumerate(mutations)))
    assert [each.mutation for each in changes] == [mutations[0], mutations[2]]
    assert state is None


def test_a_snapshot_shows_what_was_dropped_without_any_agreement() -> None:
    history, random = History(), Random(1)
    while not (history.epoch > 3 and not history.tables and history.keyspace):
        history.step(random)
    epoch = max(each for each, state in enumerate(history.states) if state)
    learner = SchemaLearner()
    assert learner.apply_snapshot(snapshot_of(history, epoch))
    assert not learner.apply_snapshot(snapshot_of(history, epoch))
    assert living(learner.schema()) == history.states[epoch]
    assert learner.apply_snapshot(snapshot_of(history, history.epoch))
    assert living(learner.schema()) == {}
    assert not learner.apply_snapshot(snapshot_of(history, epoch)), "an earlier one, late"
    assert living(learner.schema()) == {}


def test_repeating_the_schema_does_not_grow_the_facts() -> None:
    learner = learnt([("0", 1, create())])
    size = len(learner.to_json())
    restarts = [
        (str(host), 100 * n, list(enumerate([*rewrite({"t": TABLE}, T + n), version(5)], 1))) for host in range(3) for n in range(2, 9)
    ]
    repeated = [restarts[0], *restarts]
    more = SchemaLearner.from_json(learner.to_json())
    for _, number, mutations in repeated:
        for each in follow(number, mutations, has_epochs=True)[0]:
            more.apply_logged(each)
    assert of_user(more.schema()) == of_user(learner.schema())
    assert len(more.to_json()) < 3 * size, "only the system keyspaces, once"


@pytest.mark.parametrize("number", [-1, epochs.MOST, 2**63])
def test_what_is_no_epoch(number: int) -> None:
    with pytest.raises(ValueError, match="is no epoch"):
        epochs.stamp(number)
    key = (number % 2**64).to_bytes(8, "big")
    assert epochs.entry_of(PartitionUpdate(epochs.METADATA_LOG.id, key, rows=entry(1).updates[0].rows)) is None


@pytest.mark.parametrize("cut", range(12))
def test_an_entry_that_is_cut_short_has_no_time(cut: int) -> None:
    update = entry(7, T).updates[0]
    cells = tuple(replace(cell, value=cell.value[:cut]) if cell.column == "transformation" else cell for cell in update.rows[0].cells)
    found = epochs.entry_of(replace(update, rows=(replace(update.rows[0], cells=cells),)))
    assert found == (7, True, None)


def test_an_entry() -> None:
    assert epochs.entry_of(entry(7, T).updates[0]) == (7, True, T)
    assert epochs.entry_of(entry(7, T, keyspace=None).updates[0]) == (7, True, T)
    assert epochs.entry_of(entry(8, T, kind=36).updates[0]) == (8, False, None)


def test_a_timestamp_above_all_stamps_is_that_of_a_clock() -> None:
    latest = (1 << 63) - 1
    assert epochs.epoch_of(latest) is None
    assert epochs.epoch_of(epochs.stamp(epochs.MOST - 1)) == epochs.MOST - 1
    assert SchemaLearner().time_of(latest) == latest
