"""Operations on rows: inserts, updates and deletes, of whole rows, columns and elements."""

from __future__ import annotations

from typing import Any, Final

from cassandra.util import OrderedMap

from proof.ring.generate.statements import (
    Statement,
    Term,
    assign,
    delete,
    insert,
    joined,
    key,
    part,
    prefixed,
    put,
    term,
    update,
)
from proof.ring.generate.tables import Column, Table
from proof.ring.generate.values import HAS_EMPTY, ONES, Raw, quoted
from proof.ring.generate.world import UNSET, World
from writetime.cassandra.types.types import CollectionType, UdtType

LARGE_BYTES: Final = 100_000
NEGATIVE: Final = (-1, -(10**15), -(2**62))
FAR: Final = (4_102_444_800_000_000, 2**62, 2**63 - 1)
"""µs; the first is in the year 2100."""


def has_regular(table: Table) -> bool:
    return bool(table.of_kind("regular"))


def has_statics(table: Table) -> bool:
    return bool(table.of_kind("static"))


def lasting(table: Table) -> bool:
    """Without a TTL of its own: timestamps that come again would tie short TTLs with long ones (see
    `ties`)."""
    return not table.default_ttl


def has_clustering(table: Table) -> bool:
    return bool(table.clustering)


# --- inserts


def insert_all(world: World) -> Statement:
    table = world.table()
    columns = world.filled(table, [column.name for column in table.of_kind("regular")])
    return insert(table, world.partition(table), world.row(table), columns)


def insert_some(world: World) -> Statement:
    table = world.table(has_regular)
    return insert(table, world.partition(table), world.row(table), world.filled(table, world.group(table, "regular")))


def insert_nulls(world: World) -> Statement:
    """Explicit nulls are tombstones."""
    table = world.table(has_regular)
    columns = world.filled(table, world.group(table, "regular"))
    columns |= {name: None for name in columns if world.random.random() < 0.5} or {next(iter(columns)): None}
    return insert(table, world.partition(table), world.row(table), columns)


def insert_unset(world: World) -> Statement:
    """What is not set is not written at all."""
    table = world.table(has_regular)
    columns = world.filled(table, world.group(table, "regular"))
    columns |= {name: UNSET for name in columns if world.random.random() < 0.5} or {next(iter(columns)): UNSET}
    return insert(table, world.partition(table), world.row(table), columns)


def insert_key(world: World) -> Statement:
    table = world.table()
    return insert(table, world.partition(table), world.row(table), {})


def insert_short(world: World) -> Statement:
    table = world.table()
    columns = world.filled(table, world.group(table, "regular"))
    return insert(table, world.partition(table), world.row(table), columns, {"TTL": world.short()})


def insert_long(world: World) -> Statement:
    table = world.table()
    columns = world.filled(table, world.group(table, "regular"))
    return insert(table, world.partition(table), world.row(table), columns, {"TTL": world.long()})


def insert_over_default(world: World) -> Statement:
    """A TTL of 0, or another one, where the table has one of its own."""
    table = world.table(lambda table: table.default_ttl)
    columns = world.filled(table, world.group(table, "regular"))
    return insert(table, world.partition(table), world.row(table), columns, {"TTL": world.random.choice((0, world.short(), world.long()))})


def insert_empty(world: World) -> Statement:
    """Values without bytes or elements, none of them null unless Cassandra says so."""
    table = world.table(lambda table: any(_empty(table, column) is not None for column in table.of_kind("regular")))
    columns = {column.name: _empty(table, column) for column in table.of_kind("regular")}
    known = [name for name, value in columns.items() if value is not None]
    chosen = world.random.sample(known, min(len(known), 6))
    return insert(table, world.partition(table), world.row(table), {name: columns[name] for name in chosen})


def _empty(table: Table, column: Column) -> Any:
    if column.type in ("text", "varchar", "ascii", "blob"):
        return b"" if column.type == "blob" else ""
    if column.type in HAS_EMPTY:
        return Raw(column.type)
    kind = table.type_of(column)
    return None if not isinstance(kind, CollectionType) else OrderedMap() if kind.kind == "map" else []


def insert_large(world: World) -> Statement:
    table = world.table(lambda table: table.simple("blob"))
    columns = {world.random.choice(table.simple("blob")).name: world.random.randbytes(1000) * (LARGE_BYTES // 1000)}
    return insert(table, world.partition(table), world.row(table), columns)


def insert_static(world: World) -> Statement:
    """Of a partition, without any row."""
    table = world.table(has_statics)
    return insert(table, world.partition(table), (), world.filled(table, world.group(table, "static")))


def insert_with_static(world: World) -> Statement:
    table = world.table(has_statics)
    names = [*world.group(table, "regular"), *world.group(table, "static")]
    return insert(table, world.partition(table), world.row(table), world.filled(table, names))


def insert_timed(world: World) -> Statement:
    table = world.table(lasting)
    columns = world.filled(table, world.group(table, "regular"))
    return insert(table, world.partition(table, "timed"), world.row(table), columns, {"TIMESTAMP": world.moment})


def insert_late(world: World) -> Statement:
    """Older than most of what its row has."""
    table = world.table(lasting)
    columns = world.filled(table, world.group(table, "regular"))
    return insert(table, world.partition(table), world.row(table), columns, {"TIMESTAMP": world.moment})


# --- updates


def _sets(world: World, table: Table, kind: str = "regular", **fixed: Any) -> list[Term]:
    names = world.group(table, kind)
    values = dict.fromkeys(names, fixed["value"]) if fixed else world.filled(table, names)
    return [assign(name, value) for name, value in values.items()]


def update_some(world: World) -> Statement:
    table = world.table(has_regular)
    return update(table, _sets(world, table), world.where(table))


def update_short(world: World) -> Statement:
    table = world.table(has_regular)
    return update(table, _sets(world, table), world.where(table), {"TTL": world.short()})


def update_long(world: World) -> Statement:
    table = world.table(has_regular)
    return update(table, _sets(world, table), world.where(table), {"TTL": world.long()})


def update_null(world: World) -> Statement:
    table = world.table(has_regular)
    return update(table, _sets(world, table, value=None), world.where(table))


def update_timed(world: World) -> Statement:
    table = world.table(lambda table: has_regular(table) and lasting(table))
    return update(table, _sets(world, table), world.where(table, "timed"), {"TIMESTAMP": world.moment})


def update_rows(world: World) -> Statement:
    """Several rows of a partition by IN on the last clustering column."""
    table = world.table(lambda table: has_regular(table) and has_clustering(table))
    return update(table, _sets(world, table), _in(world, table))


def update_static(world: World) -> Statement:
    table = world.table(has_statics)
    return update(table, _sets(world, table, "static"), key(table, world.partition(table)))


def update_static_ttl(world: World) -> Statement:
    table = world.table(has_statics)
    ttl = world.random.choice((world.short(), world.long()))
    return update(table, _sets(world, table, "static"), key(table, world.partition(table)), {"TTL": ttl})


def update_hot(world: World) -> Statement:
    """One row of one table, over and over."""
    table = world.everything
    where = key(table, table.partitions["open"][0], [choices[0] for choices in table.choices])
    return update(table, _sets(world, table), where)


def insert_hot(world: World) -> Statement:
    """One partition of one table."""
    table = world.everything
    columns = world.filled(table, world.group(table, "regular"))
    return insert(table, table.partitions["open"][0], world.row(table), columns)


def _in(world: World, table: Table) -> Term:
    *front, last = table.choices
    chosen = world.random.sample(last, min(len(last), 2))
    terms, values = joined([term(value) for value in chosen], ", ")
    start = key(table, world.partition(table), [world.random.choice(choices) for choices in front])
    return f"{start[0]} AND {quoted(table.clustering[-1].name)} IN ({terms})", start[1] + values


# --- elements


def edit(world: World, shape: str, how: Any, *, static: bool = False, **options: int) -> Statement:
    """One edit of a part of a collection or user type; `how(world, column, type)` is what is SET."""
    table = world.table(lambda table: table.made_of(shape, static=static))
    column = world.random.choice(table.made_of(shape, static=static))
    kind = table.type_of(column)
    where = key(table, world.partition(table)) if static else world.where(table)
    return update(table, [how(world, quoted(column.name), kind)], where, options)


def appended(world: World, name: str, kind: CollectionType) -> Term:
    return f"{name} = {name} + ?", (_one_or_two(world, kind),)


def prepended(world: World, name: str, kind: CollectionType) -> Term:
    return f"{name} = ? + {name}", (_one_or_two(world, kind),)


def _one_or_two(world: World, kind: CollectionType) -> list[Any]:
    return [world.values.of(kind.elements[0]) for _ in range(world.random.randint(1, 2))]


def set_added(world: World, name: str, kind: CollectionType) -> Term:
    return prefixed(f"{name} = {name} + ", _set(world, kind))


def elements_removed(world: World, name: str, kind: CollectionType) -> Term:
    return prefixed(f"{name} = {name} - ", _set(world, kind))


def _set(world: World, kind: CollectionType) -> Term:
    one = world.values.element(kind)
    # The driver writes sets of its own values only.
    return (f"{{{term(one)[0]}}}", ()) if isinstance(one, Raw) else ("?", (_elements(world, kind),))


def _elements(world: World, kind: CollectionType) -> list[Any]:
    return world.values.keys(kind, world.random.randint(1, 3))


def entry_put(world: World, name: str, kind: CollectionType) -> Term:
    return put(name, world.values.element(kind), world.values.of(kind.elements[1]))


def entry_nulled(world: World, name: str, kind: CollectionType) -> Term:
    return put(name, world.values.element(kind), None)


def equal_element(world: World) -> Statement:
    """Of one row: an element that is 1, in any spelling, is put, or now and then deleted."""
    table = world.everything
    where = key(table, table.partitions["open"][0], [choices[-1] for choices in table.choices])
    name, kind = world.random.choice((("numbers", "decimal"), ("by number", "varint")))
    element = Raw(kind, world.random.choice(ONES[kind]))
    if world.random.random() < 0.3:
        return delete(table, where, [prefixed(quoted(name), part(element))])
    if name == "numbers":
        return update(table, [(f"{quoted(name)} = {quoted(name)} + {{{term(element)[0]}}}", ())], where)
    return update(table, [put(quoted(name), element, world.random.randrange(100))], where)


def entries_added(world: World, name: str, kind: CollectionType) -> Term:
    return f"{name} = {name} + ?", (OrderedMap([(one, world.values.of(kind.elements[1])) for one in _elements(world, kind)]),)


def whole(world: World, name: str, kind: Any) -> Term:
    return f"{name} = ?", (world.values.of(kind),)


def emptied(world: World, name: str, kind: CollectionType) -> Term:
    return f"{name} = ?", (world.random.choice((None, OrderedMap() if kind.kind == "map" else [])),)


def field_set(world: World, name: str, kind: UdtType) -> Term:
    field = world.random.choice(list(kind.known_fields))
    return f"{name}.{quoted(field)} = ?", (world.values.of(kind.known_fields[field]),)


def field_nulled(world: World, name: str, kind: UdtType) -> Term:
    return f"{name}.{quoted(world.random.choice(list(kind.known_fields)))} = ?", (None,)


def edit_static(world: World) -> Statement:
    shape, how = world.random.choice((("map", entry_put), ("list", appended), ("udt", field_set), ("map", emptied), ("map", whole)))
    return edit(world, shape, how, static=True)


# --- deletes


def delete_columns(world: World, lane: str = "open", **options: int) -> Statement:
    table = world.table(has_regular)
    names = world.group(table, "regular")
    return delete(table, world.where(table, lane), [(quoted(name), ()) for name in names], options)


def delete_element(world: World) -> Statement:
    table = world.table(lambda table: any(table.made_of(shape) for shape in ("set", "map", "udt")))
    columns = [column for shape in ("set", "map", "udt") for column in table.made_of(shape)]
    column = world.random.choice(columns)
    kind = table.type_of(column)
    if isinstance(kind, UdtType):
        what: Term = (f"{quoted(column.name)}.{quoted(world.random.choice(list(kind.known_fields)))}", ())
    else:
        assert isinstance(kind, CollectionType)
        what = prefixed(quoted(column.name), part(world.values.element(kind)))
    return delete(table, world.where(table), [what])


def delete_static(world: World) -> Statement:
    table = world.table(has_statics)
    return delete(table, key(table, world.partition(table)), [(quoted(name), ()) for name in world.group(table, "static")])


def delete_row(world: World, lane: str = "open", **options: int) -> Statement:
    table = world.table(has_clustering)
    return delete(table, world.where(table, lane), (), options)


def delete_partition(world: World, lane: str = "open", **options: int) -> Statement:
    table = world.table()
    return delete(table, key(table, world.partition(table, lane)), (), options)


def delete_rows_in(world: World) -> Statement:
    table = world.table(has_clustering)
    return delete(table, _in(world, table))


def delete_prefix(world: World) -> Statement:
    """All rows whose first clustering columns have these values."""
    table = world.table(lambda table: len(table.clustering) > 1)
    row = world.row(table)
    return delete(table, key(table, world.partition(table), row[: world.random.randint(1, len(row) - 1)]))


def delete_range(world: World, lane: str = "open", *, bounds: int = 1, **options: int) -> Statement:
    """Rows beyond a bound, or between two (now and then in the wrong order) of one clustering column behind a
    prefix.
    """
    table = world.table(has_clustering)
    at = world.random.randrange(len(table.clustering))
    name = quoted(table.clustering[at].name)
    operators = [world.random.choice((">", ">=")), world.random.choice(("<", "<="))]
    if bounds == 1:
        operators = [world.random.choice(operators)]
    parts = [key(table, world.partition(table, lane), world.row(table)[:at])]
    parts += [prefixed(f"{name} {operator} ", term(world.random.choice(table.choices[at]))) for operator in operators]
    return delete(table, joined(parts, " AND "), (), options)


def delete_slice(world: World) -> Statement:
    """Rows beyond one or between two bounds of several clustering columns at once."""
    table = world.table(lambda table: len(table.clustering) > 1)
    parts = [key(table, world.partition(table))]
    operators = [world.random.choice((">", ">=")), world.random.choice(("<", "<="))]
    for operator in world.random.sample(operators, world.random.randint(1, 2)):
        row = world.row(table)[: world.random.randint(2, len(table.clustering))]
        names = ", ".join(quoted(column.name) for column in table.clustering[: len(row)])
        terms, values = joined([term(value) for value in row], ", ")
        parts.append((f"({names}) {operator} ({terms})", values))
    return delete(table, joined(parts, " AND "))


# --- extreme timestamps


def extreme(world: World, timestamp: int) -> Statement:
    """Any simple operation on the lane of its own."""
    table = world.table(lambda table: table.clustering and table.simple() and lasting(table))
    column = world.random.choice(table.simple())
    where, options = world.where(table, "extreme"), {"TIMESTAMP": timestamp}
    how = world.random.choice(("insert", "update", "update", "insert", "column", "row"))
    if how == "insert":
        values = {column.name: world.value(table, column)}
        return insert(table, world.partition(table, "extreme"), world.row(table), values, options)
    if how == "update":
        return update(table, [assign(column.name, world.value(table, column))], where, options)
    return delete(table, where, [(quoted(column.name), ())] if how == "column" else (), options)
