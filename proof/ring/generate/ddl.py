"""Operations on tables and types. Each changes the model when it is generated, and must be executed before
the next one.

A column is dropped, and added again, only while every node is up and has flushed the table: whether Cassandra
returns a dropped column that is still in a memtable depends on when it is flushed.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any, Final

from proof.ring.generate.statements import insert, put, update
from proof.ring.generate.tables import ODD_NAMES, Column, Table, safe_name
from proof.ring.generate.values import KEY_TYPE, quoted
from proof.ring.generate.world import MOST_COLUMNS, World, operation
from proof.ring.operations import Operation

GC_GRACE_SECONDS: Final = (86_400, 864_000, 1_000_000)
FIELDS: Final = ("int", "text", "varint", "frozen<list<text>>", "date")
FEW: Final = 8
"""With fewer columns to drop than that, one that can be dropped is added."""


def _operation(kind: str, cql: str, **options: bool) -> list[Operation]:
    return [Operation(kind, cql, ddl=True, **options)]


def add_column(world: World) -> list[Operation]:
    table = world.table(lambda table: len(table.columns) < MOST_COLUMNS + 20 and table not in world.same_key[1:2])
    static = bool(table.clustering) and world.random.random() < 0.3
    taken = table.columns.keys() | table.gone
    free = [name for name in ODD_NAMES if name not in taken and f"x{name}" not in taken]
    name = world.random.choice(free) if free and world.random.random() < 0.3 else world.name("late ")
    few = sum(len(_droppable(table)) for table in world.tables) < FEW
    kind = world.random.choice(FIELDS) if few else table.keyspace.types.regular()
    name = safe_name(name, table.keyspace.types.parse(kind))
    column = Column(name, "static" if static else "regular", kind, steady=False)
    table.columns[name] = column
    table.changed()
    return _operation("add column", f"ALTER TABLE {table.cql} ADD {column.definition}")


def drop_column(world: World) -> list[Operation]:
    table = world.table(_droppable)
    column = world.random.choice(_droppable(table))
    del table.columns[column.name]
    table.gone.add(column.name)
    # Cassandra records a dropped user type as a tuple of its fields, which is not equal to the type.
    if not any(udt in column.type for udt in table.keyspace.udts):
        table.dropped[column.name] = column
    table.changed()
    return _operation("drop column", f"ALTER TABLE {table.cql} DROP {quoted(column.name)}", needs_all_up=True, flush=True)


def _droppable(table: Table) -> list[Column]:
    # Cassandra does not drop columns of non-frozen user types.
    columns = [column for column in table.of_kind("regular", "static") if not column.steady]
    return [column for column in columns if column not in table.made_of("udt") + table.made_of("udt", static=True)]


def type_made_again(world: World) -> list[Operation]:
    """A column is dropped, and its type made again with the fields in another order: what the column held is as long as
    a value of the new type."""
    table = world.random.choice([table for table in world.tables if table.cdc and not table.fleeting and not table.id])
    column, of = world.name("typed_"), f"{quoted(table.keyspace.name)}.{world.name('again_')}"
    where = world.where(table)
    value = f"{{left: {world.random.randrange(100)}, right: {100 + world.random.randrange(100)}}}"
    return [
        *_operation("create a type to make again", f"CREATE TYPE {of} (left int, right int)", needs_all_up=True),
        *_operation("add a column of that type", f"ALTER TABLE {table.cql} ADD {column} frozen<{of}>", needs_all_up=True),
        operation("update of that column", update(table, [(f"{column} = {value}", ())], where)),
        *_operation("drop that column", f"ALTER TABLE {table.cql} DROP {column}", needs_all_up=True, flush=True, after_batch=True),
        *_operation("drop that type", f"DROP TYPE {of}", needs_all_up=True),
        *_operation("make that type again", f"CREATE TYPE {of} (right int, left int)", needs_all_up=True),
    ]


def add_again(world: World) -> list[Operation]:
    """A column that was dropped, of the same type: what it had before stays away."""
    dropped: list[Operation] = []
    while not any(table.dropped for table in world.tables):
        dropped += drop_column(world)
    table = world.table(lambda table: table.dropped)
    name = world.random.choice(sorted(table.dropped))
    table.columns[name] = table.dropped.pop(name)
    table.changed()
    cql = f"ALTER TABLE {table.cql} ADD {table.columns[name].definition}"
    return dropped + _operation("add column again", cql, needs_all_up=True, flush=True)


def rename(world: World) -> list[Operation]:
    """A column of the primary key, most often of the clustering."""
    table = world.table(lambda table: table.clustering)
    column = world.random.choice(table.clustering if world.random.random() < 0.8 else table.partition)
    name = world.name("Renamed " if world.random.random() < 0.5 else "renamed_")
    cql = f"ALTER TABLE {table.cql} RENAME {quoted(column.name)} TO {quoted(name)}"
    table.rename(column.name, name)
    return _operation("rename key column", cql)


def add_field(world: World) -> list[Operation]:
    keyspace = world.random.choice(world.keyspaces)
    udt = world.random.choice([name for name in keyspace.udts if name != KEY_TYPE])
    return _operation(
        "add field", keyspace.add_field(udt, world.name("Field " if world.random.random() < 0.3 else "field_"), world.random.choice(FIELDS))
    )


def add_field_to_element(world: World) -> list[Operation]:
    """A set's element and a map's key stay the same ones when their user type gets a field: they are put before it, put
    again after it, and one of them is deleted then."""
    table = world.everything
    where = world.where(table)
    name, address = quoted("addresses"), ("1 Long Lane", world.random.randrange(9), None)
    of_map, shape = quoted("by shape"), ((1, "x"), None, b"code")

    def given(value: tuple[Any, ...], udt: str) -> tuple[Any, ...]:
        return (*value, *[None] * (len(table.keyspace.udts[udt].field_names) - len(value)))

    def both(kind: str, number: int) -> Operation:
        sets = [(f"{name} = {name} + ?", ([given(address, "Address")],)), put(of_map, given(shape, "shape"), number)]
        return operation(kind, update(table, sets, where))

    before = both("elements before a field", 1)
    added = [
        op
        for udt in ("Address", "shape")
        for op in _operation("add field to elements", table.keyspace.add_field(udt, world.name("field "), "decimal"))
    ]
    after = both("elements after a field", 2)
    gone = (
        (f"{name} = {name} - ?", ([given(address, "Address")],))
        if world.random.random() < 0.5
        else put(of_map, given(shape, "shape"), None)
    )
    return [before, *added, after, operation("delete an element after a field", update(table, [gone], where))]


def create_table(world: World) -> list[Operation]:
    table = world.maker.by_chance(world.random.choice(world.keyspaces), world.name("made_"), fleeting=True)
    table.cdc = world.random.random() < 0.85
    world.tables.append(table)
    return _operation("create table", table.create())


def drop_table(world: World) -> list[Operation]:
    table = _fleeting(world)
    world.tables.remove(table)
    return _operation("drop table", f"DROP TABLE {table.cql}")


def drop_and_create(world: World) -> list[Operation]:
    """The same name, other columns, another id."""
    table = _fleeting(world)
    world.tables.remove(table)
    again = world.maker.by_chance(table.keyspace, table.name, fleeting=True)
    world.tables.append(again)
    return [*_operation("drop table to create it again", f"DROP TABLE {table.cql}"), *_operation("create table again", again.create())]


def _fleeting(world: World) -> Table:
    return world.random.choice([table for table in world.tables if table.fleeting])


def cdc_off_and_on(world: World) -> list[Operation]:
    """Nothing is written in between: it would be in no log that is kept."""
    table = world.table(lambda table: table.cdc)
    off, on = (f"ALTER TABLE {table.cql} WITH cdc = {state}" for state in ("false", "true"))
    return [*_operation("cdc off", off, needs_all_up=True), *_operation("cdc on", on, needs_all_up=True)]


def alter_options(world: World) -> list[Operation]:
    """gc_grace_seconds of any table; the default TTL of those that may have one."""
    table = world.table()
    options = [f"gc_grace_seconds = {world.random.choice(GC_GRACE_SECONDS)}"]
    if table.default_ttl or table.name in ("lives_long", "lives_shortly"):
        table.default_ttl = world.random.choice((2, 3, 86_400, 40 * 86_400))
        options.append(f"default_time_to_live = {table.default_ttl}")
    return _operation("alter options", f"ALTER TABLE {table.cql} WITH {' AND '.join(options)}")


def truncate(world: World) -> list[Operation]:
    return [Operation("truncate", f"TRUNCATE {world.table().cql}", needs_all_up=True)]


def truncate_unkept(world: World, kind: str, kept_by: int) -> list[Operation]:
    """A TRUNCATE of a table that has a row, whose record is in no segment that a node keeps, or in one node's
    only.
    """
    table = world.table(lambda table: table.cdc)
    return [
        _row("insert before a truncate", world, table),
        Operation(kind, f"TRUNCATE {table.cql}", needs_all_up=True, kept_by=kept_by),
    ]


def same_id(world: World, *, changed: bool, after_batch: bool) -> list[Operation]:
    """DROP, then CREATE … WITH ID of the same id: the same columns, or others beside the same key.

    Every node is up: one that misses both takes the second table for the first, altered, and keeps the rows
    that it has.
    """
    table = world.random.choice([table for table in world.tables if table.id])
    world.tables.remove(table)
    again = replace(table, columns=dict(table.columns), dropped={}, gone=set(table.gone), groups={}, cdc=True)
    if changed:
        _change_columns(world, again)
    world.tables.append(again)
    kind = f"create table with the same id{', a batch later' if after_batch else ''}{', other columns' if changed else ''}"
    return [
        _row("insert before a drop", world, table),
        *_operation("drop table to create its id again", f"DROP TABLE {table.cql}", needs_all_up=True),
        *_operation(kind, again.create(), needs_all_up=True, after_batch=after_batch),
        _row("insert after a create", world, again),
    ]


def _change_columns(world: World, table: Table) -> None:
    """Half of the columns go, three others come; the key stays: of another one, nothing of the first life
    could be decoded.
    """
    old = [column for column in table.of_kind("static", "regular") if world.random.random() < 0.5]
    table.gone |= {column.name for column in old}
    new = [Column(world.name("other_"), "regular", kind) for kind in ("int", "text", table.keyspace.types.regular())]
    left = [column for column in table.columns.values() if column not in old]
    table.columns = {column.name: column for column in [*left, *new]}


def _row(kind: str, world: World, table: Table) -> Operation:
    columns = world.filled(table, [column.name for column in table.of_kind("regular")])
    return operation(kind, insert(table, world.partition(table), world.row(table), columns))
