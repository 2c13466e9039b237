"""Operations of several statements, conditional ones and counters."""

from __future__ import annotations

from typing import Any, Final

from proof.ring.generate import rows
from proof.ring.generate.statements import (
    Statement,
    assign,
    delete,
    insert,
    joined,
    key,
    prefixed,
    term,
    update,
)
from proof.ring.generate.tables import Column, Table
from proof.ring.generate.values import quoted
from proof.ring.generate.world import Row, World, batch, operation
from proof.ring.operations import Operation

COMPARED: Final = ("text", "int", "bigint", "boolean", "uuid", "varchar", "smallint", "varint")
"""Types of columns that conditions are about."""
UNLOGGED: Final = "UNLOGGED "


# --- batches: no row is in one twice, for all statements of a batch have one timestamp, and a ring does not always settle a whole
# collection against an element of it that one mutation holds


def _row(world: World, table: Table, partition: Row, clustering: Row, options: dict[str, int] | None = None) -> Statement:
    columns = world.filled(table, world.group(table, "regular", most=6))
    if columns and world.random.random() < 0.5:
        return update(table, [assign(name, value) for name, value in columns.items()], key(table, partition, clustering), options)
    return insert(table, partition, clustering, columns, options)


def one_partition(world: World, kind: str) -> Operation:
    table = world.table()
    partition = world.partition(table)
    return batch(kind, [_row(world, table, partition, row) for row in world.rows(table, 4)])


def one_key(world: World, kind: str) -> Operation:
    """The same partition key in several tables, captured or not: one mutation."""
    tables = world.random.sample(world.same_key, world.random.randint(2, 4))
    partition = world.partition(tables[0])
    return batch(kind, [_row(world, table, partition, row) for table in tables for row in world.rows(table, 2)])


def many_partitions(world: World, kind: str) -> Operation:
    return batch(kind, _spread(world))


def logged(world: World, kind: str) -> Operation:
    return batch(kind, _spread(world), "")


def _spread(world: World) -> list[Statement]:
    """Rows of different tables, some of them not captured, and one delete."""
    plain = [table for table in world.tables if not table.cdc]
    tables = [world.random.choice(plain), *world.random.sample(world.tables, 3)]
    chosen = {table.cql: table for table in tables}
    statements = [_row(world, table, world.partition(table), world.row(table)) for table in chosen.values()]
    others = [table for table in world.tables if table.cql not in chosen]
    table = world.random.choice(others)
    return [*statements, delete(table, key(table, world.partition(table), world.row(table)))]


def with_delete(world: World, kind: str) -> Operation:
    """Rows deleted and others inserted, in one partition, beside a table that is not captured."""
    table = world.table(rows.has_clustering)
    partition, found = world.partition(table), world.rows(table, 4)
    first, *others = found
    statements = [delete(table, key(table, partition, first))]
    statements += [_row(world, table, partition, row) for row in others]
    if world.random.random() < 0.3:
        # At equal timestamps deletes win, so nothing of this batch remains in the partition.
        statements.append(delete(table, key(table, partition)))
    plain = world.same_key[1]
    statements.append(_row(world, plain, world.partition(plain), world.row(plain)))
    world.random.shuffle(statements)
    return batch(kind, statements)


def with_timestamps(world: World, kind: str) -> Operation:
    """A partition deleted and written anew in one mutation, a little later."""
    table = world.table(rows.lasting)
    partition, moment = world.partition(table, "timed"), world.moment
    earlier = delete(table, key(table, partition), (), {"TIMESTAMP": moment - 2})
    statements = [earlier, *(_row(world, table, partition, row, {"TIMESTAMP": moment}) for row in world.rows(table, 3))]
    world.random.shuffle(statements)
    return batch(kind, statements)


# --- conditional


def _column(world: World) -> tuple[Table, Column]:
    table = world.table(lambda table: table.simple(*COMPARED))
    return table, world.random.choice(table.simple(*COMPARED))


def _conditional(kind: str, statement: Statement) -> Operation:
    return operation(kind, statement, serial=True, consistency="QUORUM")


def if_not_exists(world: World, kind: str) -> Operation:
    table = world.table()
    columns = world.filled(table, world.group(table, "regular"))
    return _conditional(kind, insert(table, world.partition(table), world.row(table), columns, condition=" IF NOT EXISTS"))


def if_equal(world: World, kind: str) -> Operation:
    table, column = _column(world)
    compared = world.random.choice((None, world.value(table, column), world.value(table, column)))
    condition = (f" IF {quoted(column.name)} = ?", (compared,))
    return _conditional(kind, update(table, [assign(column.name, world.value(table, column))], world.where(table), None, condition))


def if_unequal(world: World, kind: str) -> Operation:
    """Applied most of the time."""
    table, column = _column(world)
    condition = (f" IF {quoted(column.name)} != ?", (world.value(table, column),))
    return _conditional(kind, update(table, [assign(column.name, world.value(table, column))], world.where(table), None, condition))


def delete_if_exists(world: World, kind: str) -> Operation:
    table = world.table()
    return _conditional(kind, delete(table, world.where(table), (), None, (" IF EXISTS", ())))


def static_if(world: World, kind: str) -> Operation:
    table = world.table(lambda table: table.simple(*COMPARED, static=True))
    column = world.random.choice(table.simple(*COMPARED, static=True))
    condition = (f" IF {quoted(column.name)} = ?", (world.random.choice((None, world.value(table, column))),))
    where = key(table, world.partition(table))
    return _conditional(kind, update(table, [assign(column.name, world.value(table, column))], where, None, condition))


def batch_if(world: World, kind: str) -> Operation:
    """Two rows of a partition, both or neither."""
    table = world.table(rows.has_clustering)
    partition = world.partition(table)
    statements = []
    for row in world.rows(table, 2):
        columns = world.filled(table, world.group(table, "regular"))
        statements.append(insert(table, partition, row, columns, condition=" IF NOT EXISTS"))
    return batch(kind, statements, UNLOGGED, serial=True, consistency="QUORUM")


# --- counters


def _up(name: str, amount: int) -> Any:
    return f"{quoted(name)} = {quoted(name)} {'+' if amount >= 0 else '-'} ?", (abs(amount),)


def _amount(world: World) -> int:
    return world.random.choice((1, 1, -1, 0, 7, -(2**40), 2**40, world.random.randrange(-1000, 1000)))


def counted(world: World) -> Statement:
    table, partition, row = world.counter_row()
    names = [column.name for column in table.of_kind("regular")]
    chosen = world.random.sample(names, world.random.randint(1, len(names)))
    return update(table, [_up(name, _amount(world)) for name in chosen], key(table, partition, row))


def counted_static(world: World) -> Statement:
    table = world.counts
    return update(table, [_up("s", _amount(world))], key(table, world.partition(table)))


def counted_together(world: World, kind: str) -> Operation:
    return batch(kind, [counted(world) for _ in range(world.random.randint(2, 4))], "COUNTER ")


def counter_deleted(world: World) -> Statement:
    row = world.counter_row()
    world.bury(row)
    table, partition, clustering = row
    return delete(table, key(table, partition, clustering))


# --- scripts: operations one right after the other


def list_by_index(world: World) -> list[Operation]:
    """The coordinator reads the list before it writes: the row has to be there, so it is one of its own."""
    table = world.table(lambda table: table.made_of("list") and (not table.default_ttl or table.default_ttl > 60))
    column = world.random.choice(table.made_of("list"))
    kind = table.type_of(column)
    name, partition, row = quoted(column.name), world.maker.fresh_partition(table), world.row(table)
    values = [world.values.of(kind.elements[0]) for _ in range(4)]  # type: ignore[attr-defined]
    where = key(table, partition, row)
    changed = world.values.of(kind.elements[0])  # type: ignore[attr-defined]
    steps = {
        "list: insert": insert(table, partition, row, {column.name: values}),
        "list: set by index": update(table, [(f"{name}[?] = ?", (world.random.randrange(4), changed))], where),
        "list: delete by index": delete(table, where, [(f"{name}[?]", (world.random.randrange(4),))]),
        "list: remove values": update(table, [(f"{name} = {name} - ?", (values[:1],))], where),
    }
    return [operation(kind, statement, consistency="QUORUM") for kind, statement in steps.items()]


CROWD_BATCHES, CROWD_ROWS = 30, 100


def crowd(world: World) -> list[Operation]:
    """Thousands of rows of one partition, of which a range goes, then all but some."""
    table = world.crowd
    partition = world.maker.fresh_partition(table)
    operations = []
    for number in range(CROWD_BATCHES):
        found = [(number * CROWD_ROWS + at, world.random.choice("ab")) for at in range(CROWD_ROWS)]
        operations.append(batch("crowd: insert", [insert(table, partition, row, {"v": row[0]}) for row in found]))
    operations.append(operation("crowd: static", insert(table, partition, (), {"s": "many"})))
    last = CROWD_BATCHES * CROWD_ROWS
    for low, high in ((last // 4, last // 2), (last // 8, last)):
        bounds = [key(table, partition), prefixed('"a" >= ', term(low)), prefixed('"a" < ', term(high))]
        operations.append(operation("crowd: delete range", delete(table, joined(bounds, " AND "))))
    return operations
