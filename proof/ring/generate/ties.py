"""Pairs of statements with one timestamp on one row, in either order and several operations apart: the same
one must win.

One tie is excluded: two TTLs of which one expires before the other statement is executed. Cassandra converts
the expired cell to a tombstone when it compacts, and a tombstone wins: the answer depends on when the cluster
compacts.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any, Final

from cassandra.util import OrderedMap

from proof.ring.generate.statements import (
    Statement,
    assign,
    delete,
    insert,
    key,
    prefixed,
    put,
    term,
    update,
)
from proof.ring.generate.tables import LONG_TTL_SECONDS, Column, Table
from proof.ring.generate.values import NATIVE, quoted
from proof.ring.generate.world import Row, World
from writetime.cassandra.types.types import CollectionType


@dataclass(frozen=True)
class Spot:
    """The row that a tie is about, one simple column of it, and the timestamp."""

    world: World
    table: Table
    partition: Row
    row: Row
    column: Column
    timestamp: int

    def options(self, ttl: int | None) -> dict[str, int]:
        return {"TIMESTAMP": self.timestamp} | ({} if ttl is None else {"TTL": ttl})

    @property
    def where(self) -> Any:
        return key(self.table, self.partition, self.row)


Side = Callable[[Spot], Statement]


def value(spot: Spot, ttl: int | None = None) -> Statement:
    return update(spot.table, [assign(spot.column.name, spot.world.value(spot.table, spot.column))], spot.where, spot.options(ttl))


def null(spot: Spot) -> Statement:
    return update(spot.table, [assign(spot.column.name, None)], spot.where, spot.options(None))


def row(spot: Spot, ttl: int | None = None) -> Statement:
    columns = {spot.column.name: spot.world.value(spot.table, spot.column)}
    return insert(spot.table, spot.partition, spot.row, columns, spot.options(ttl))


def key_only(spot: Spot, ttl: int | None = None) -> Statement:
    return insert(spot.table, spot.partition, spot.row, {}, spot.options(ttl))


def column_deleted(spot: Spot) -> Statement:
    return delete(spot.table, spot.where, [(quoted(spot.column.name), ())], spot.options(None))


def row_deleted(spot: Spot) -> Statement:
    return delete(spot.table, spot.where, (), spot.options(None))


def range_deleted(spot: Spot) -> Statement:
    """From the row on, or up to it, or all rows that begin as it does."""
    *front, last = spot.row
    start = key(spot.table, spot.partition, front)
    operator = spot.world.random.choice((">=", "<="))
    bound = prefixed(f" AND {quoted(spot.table.clustering[-1].name)} {operator} ", term(last))
    where = (start[0] + bound[0], start[1] + bound[1])
    return delete(spot.table, start if front and spot.world.random.random() < 0.3 else where, (), spot.options(None))


def partition_deleted(spot: Spot) -> Statement:
    return delete(spot.table, key(spot.table, spot.partition), (), spot.options(None))


def _of_map(spot: Spot, set_: tuple[str, tuple[Any, ...]]) -> Statement:
    return update(spot.table, [set_], spot.where, spot.options(None))


def _map(spot: Spot) -> tuple[str, CollectionType]:
    column = next(column for column in spot.table.made_of("map") if column.steady)
    kind = spot.table.type_of(column)
    assert isinstance(kind, CollectionType)
    return quoted(column.name), kind


def element(spot: Spot) -> Statement:
    name, kind = _map(spot)
    return _of_map(spot, put(name, spot.world.values.element(kind), spot.world.values.of(kind.elements[1])))


def same_element(spot: Spot) -> Statement:
    name, kind = _map(spot)
    first = spot.world.values.of(kind.elements[1])
    return _of_map(spot, (f"{name}[?] = ?", (_one_key(kind), first)))


def element_deleted(spot: Spot) -> Statement:
    name, kind = _map(spot)
    return delete(spot.table, spot.where, [(f"{name}[?]", (_one_key(kind),))], spot.options(None))


def _one_key(kind: CollectionType) -> Any:
    return NATIVE[str(kind.elements[0])][0]


def collection(spot: Spot) -> Statement:
    name, kind = _map(spot)
    return _of_map(spot, (f"{name} = ?", (OrderedMap([(_one_key(kind), spot.world.values.of(kind.elements[1]))]),)))


def collection_deleted(spot: Spot) -> Statement:
    return delete(spot.table, spot.where, [(_map(spot)[0], ())], spot.options(None))


def static(spot: Spot) -> Statement:
    column = spot.table.of_kind("static")[0]
    return update(
        spot.table, [assign(column.name, spot.world.value(spot.table, column))], key(spot.table, spot.partition), spot.options(None)
    )


def static_nulled(spot: Spot) -> Statement:
    return delete(spot.table, key(spot.table, spot.partition), [(quoted(spot.table.of_kind("static")[0].name), ())], spot.options(None))


_LONG, _LONGER, _SHORT = LONG_TTL_SECONDS[0], LONG_TTL_SECONDS[1], 2
TIES: Final[dict[str, tuple[Side, Side]]] = {
    "value, value": (value, value),
    "value, null": (value, null),
    "value, TTL": (value, partial(value, ttl=_LONG)),
    "value, short TTL": (value, partial(value, ttl=_SHORT)),
    "TTL, TTL": (partial(value, ttl=_LONG), partial(value, ttl=_LONGER)),
    "one TTL": (partial(value, ttl=_LONG), partial(value, ttl=_LONG)),
    "null, TTL": (null, partial(value, ttl=_LONG)),
    "column delete, insert": (column_deleted, row),
    "row delete, insert": (row_deleted, row),
    "row delete, TTL": (row_deleted, partial(row, ttl=_LONG)),
    "range delete, insert": (range_deleted, row),
    "range delete, row delete": (range_deleted, row_deleted),
    "partition delete, insert": (partition_deleted, row),
    "partition delete, static": (partition_deleted, static),
    "row, row with TTL": (key_only, partial(key_only, ttl=_LONG)),
    "row, row with short TTL": (key_only, partial(key_only, ttl=_SHORT)),
    "collection, element": (collection, element),
    "collection delete, element": (collection_deleted, element),
    "element, element": (same_element, same_element),
    "element, element delete": (same_element, element_deleted),
    "static, static": (static, static),
    "static, static delete": (static, static_nulled),
}
"""What ties with what."""


def pair(world: World, name: str) -> list[Callable[[], Statement]]:
    """The two statements, in either order; made when they are asked for, for names may change until then."""
    # Both have statics, maps and no TTL of their own, and are never dropped.
    table = world.random.choice((world.everything, world.same_key[2]))
    column = world.random.choice(table.simple())
    spot = Spot(world, table, world.partition(table, "timed"), world.row(table), column, world.tie())
    sides = list(TIES[name])
    world.random.shuffle(sides)
    return [partial(side, spot) for side in sides]
