"""The generator: the kinds of operations, their frequency and their order.

Strategy: `CARDS` is the table of kinds. A shuffled deck contains every card as often as listed, so each kind
occurs, and a run of n operations contains all kinds of each completed deck. Some cards are scripts of several
operations; the two halves of a tie are separated. Cards that need every node up are together at the end of a
deck, so that nodes may be down before.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any, Final

from proof.ring.generate import ddl, rows, ties, together
from proof.ring.generate.statements import Statement
from proof.ring.generate.world import World, operation
from proof.ring.operations import Operation
from proof.ring.topology import ONE_DATACENTER

SELDOM: Final = 4
APART: Final = 25
"""The halves of a tie are up to so many operations apart."""
SLACK: Final = 2
"""Operations that a deck may have on top of its cards: a column has to be dropped before it comes again."""

Later = Callable[[], Operation]


@dataclass(frozen=True)
class Card:
    """`make` gives what is to be run now and what is to follow later; `kinds` are those of all that it
    gives."""

    kinds: tuple[str, ...]
    make: Callable[[World], tuple[list[Operation], list[Later]]]
    all_up: bool = False


def _one(kind: str, make: Callable[[World], Statement]) -> Card:
    return Card((kind,), lambda world: ([operation(kind, make(world))], []))


def _whole(kind: str, make: Callable[[World, str], Operation]) -> Card:
    return Card((kind,), lambda world: ([make(world, kind)], []))


def _script(make: Callable[[World], list[Operation]], *kinds: str, all_up: bool = False) -> Card:
    return Card(kinds, lambda world: (make(world), []), all_up)


def _tie(name: str) -> Card:
    kind = f"tie: {name}"

    def make(world: World) -> tuple[list[Operation], list[Later]]:
        first, second = ties.pair(world, name)
        return [operation(kind, first())], [lambda: operation(kind, second())]

    return Card((kind, kind), make)


def _unkept(kind: str, kept_by: int) -> Card:
    make = partial(ddl.truncate_unkept, kind=kind, kept_by=kept_by)
    return _script(make, "insert before a truncate", kind, all_up=True)


def _same_id(*, changed: bool, after_batch: bool) -> Card:
    make = partial(ddl.same_id, changed=changed, after_batch=after_batch)
    create = f"create table with the same id{', a batch later' if after_batch else ''}{', other columns' if changed else ''}"
    return _script(make, "insert before a drop", "drop table to create its id again", create, "insert after a create", all_up=True)


def _edit(shape: str, how: Any, **options: Any) -> Callable[[World], Statement]:
    return lambda world: rows.edit(world, shape, how, **options)


def _edit_ttl(shape: str, how: Any) -> Callable[[World], Statement]:
    return lambda world: rows.edit(world, shape, how, TTL=world.random.choice((world.short(), world.long())))


def _timed(make: Callable[..., Statement], **options: Any) -> Callable[[World], Statement]:
    return lambda world: make(world, "timed", TIMESTAMP=world.moment, **options)


_INSERTS: Final = {
    "insert": (20, rows.insert_all),
    "insert of some columns": (50, rows.insert_some),
    "insert with nulls": (6, rows.insert_nulls),
    "insert with unset": (4, rows.insert_unset),
    "insert of a key": (6, rows.insert_key),
    "insert with a short TTL": (8, rows.insert_short),
    "insert with a long TTL": (6, rows.insert_long),
    "insert over a default TTL": (3, rows.insert_over_default),
    "insert of empty values": (4, rows.insert_empty),
    "insert of a large value": (1, rows.insert_large),
    "insert of statics alone": (5, rows.insert_static),
    "insert with statics": (6, rows.insert_with_static),
    "insert with a timestamp": (12, rows.insert_timed),
    "insert that is late": (4, rows.insert_late),
    "insert into the hot partition": (10, rows.insert_hot),
}
_UPDATES: Final = {
    "update": (30, rows.update_some),
    "update with a short TTL": (7, rows.update_short),
    "update with a long TTL": (6, rows.update_long),
    "update to null": (5, rows.update_null),
    "update with a timestamp": (10, rows.update_timed),
    "update of rows": (4, rows.update_rows),
    "update of statics": (6, rows.update_static),
    "update of statics with a TTL": (3, rows.update_static_ttl),
    "update of the hot row": (8, rows.update_hot),
}
_EDITS: Final = {
    "list: append": (5, _edit("list", rows.appended)),
    "list: prepend": (4, _edit("list", rows.prepended)),
    "list: replace": (3, _edit("list", rows.whole)),
    "set: add": (5, _edit("set", rows.set_added)),
    "set: remove": (3, _edit("set", rows.elements_removed)),
    "map: put": (5, _edit("map", rows.entry_put)),
    "map: add": (3, _edit("map", rows.entries_added)),
    "map: remove": (3, _edit("map", rows.elements_removed)),
    "map: null": (2, _edit("map", rows.entry_nulled)),
    "equal elements": (8, rows.equal_element),
    "map: empty": (3, _edit("map", rows.emptied)),
    "set: empty": (2, _edit("set", rows.emptied)),
    "map: put with a TTL": (4, _edit_ttl("map", rows.entry_put)),
    "set: add with a TTL": (3, _edit_ttl("set", rows.set_added)),
    "list: append with a TTL": (3, _edit_ttl("list", rows.appended)),
    "user type: set a field": (5, _edit("udt", rows.field_set)),
    "user type: null a field": (2, _edit("udt", rows.field_nulled)),
    "user type: replace": (3, _edit("udt", rows.whole)),
    "user type: set a field with a TTL": (2, _edit_ttl("udt", rows.field_set)),
    "static collection": (5, rows.edit_static),
}
_DELETES: Final = {
    "delete columns": (6, rows.delete_columns),
    "delete an element": (4, rows.delete_element),
    "delete statics": (4, rows.delete_static),
    "delete a row": (9, rows.delete_row),
    "delete rows by IN": (2, rows.delete_rows_in),
    "delete a partition": (4, rows.delete_partition),
    "delete by a prefix": (4, rows.delete_prefix),
    "delete a range of one bound": (5, rows.delete_range),
    "delete a range of two bounds": (5, partial(rows.delete_range, bounds=2)),
    "delete a slice of several columns": (5, rows.delete_slice),
    "delete columns at a timestamp": (3, _timed(rows.delete_columns)),
    "delete a row at a timestamp": (4, _timed(rows.delete_row)),
    "delete a range at a timestamp": (3, _timed(rows.delete_range, bounds=2)),
    "delete a partition at a timestamp": (2, _timed(rows.delete_partition)),
}
_OTHERS: Final = {
    "timestamp before 1970": (3, lambda world: rows.extreme(world, world.random.choice(rows.NEGATIVE))),
    "timestamp far ahead": (3, lambda world: rows.extreme(world, world.random.choice(rows.FAR))),
    "counter": (8, together.counted),
    "static counter": (3, together.counted_static),
    "delete a counter": (2, together.counter_deleted),
}
_TOGETHER: Final = {
    "counter batch": (3, together.counted_together),
    "batch of a partition": (5, together.one_partition),
    "batch over tables": (6, together.one_key),
    "batch over partitions": (4, together.many_partitions),
    "logged batch": (6, together.logged),
    "batch with deletes": (5, together.with_delete),
    "batch with timestamps": (3, together.with_timestamps),
    "if not exists": (4, together.if_not_exists),
    "if equal": (3, together.if_equal),
    "if unequal": (3, together.if_unequal),
    "delete if exists": (2, together.delete_if_exists),
    "static if equal": (2, together.static_if),
    "batch if not exists": (2, together.batch_if),
}
CARDS: Final[list[tuple[int, Card]]] = [
    *((count, _one(kind, make)) for kind, (count, make) in (_INSERTS | _UPDATES | _EDITS | _DELETES | _OTHERS).items()),
    *((count, _whole(kind, make)) for kind, (count, make) in _TOGETHER.items()),
    *((1, _tie(name)) for name in ties.TIES),
    (1, _script(together.list_by_index, "list: insert", "list: set by index", "list: delete by index", "list: remove values")),
    (2, _script(ddl.add_column, "add column")),
    (1, _script(ddl.rename, "rename key column")),
    (1, _script(ddl.add_field, "add field")),
    (
        1,
        _script(
            ddl.add_field_to_element,
            "elements before a field",
            *["add field to elements"] * 2,
            "elements after a field",
            "delete an element after a field",
        ),
    ),
    (1, _script(ddl.create_table, "create table")),
    (1, _script(ddl.drop_table, "drop table")),
    (1, _script(ddl.drop_and_create, "drop table to create it again", "create table again")),
    (1, _script(ddl.alter_options, "alter options")),
    (2, _script(ddl.drop_column, "drop column", all_up=True)),
    (1, _script(ddl.add_again, "add column again", all_up=True)),
    (1, _script(ddl.cdc_off_and_on, "cdc off", "cdc on", all_up=True)),
    (1, _script(ddl.truncate, "truncate", all_up=True)),
    (1, _unkept("truncate in no kept segment", 0)),
    *((1, _same_id(changed=changed, after_batch=False)) for changed in (False, True)),
]
"""How often a card is in a deck, and the card."""
_CROWD: Final = _script(
    together.crowd, *["crowd: insert"] * together.CROWD_BATCHES, "crowd: static", "crowd: delete range", "crowd: delete range"
)
_TYPE_MADE_AGAIN: Final = _script(
    ddl.type_made_again,
    "create a type to make again",
    "add a column of that type",
    "update of that column",
    "drop that column",
    "drop that type",
    "make that type again",
    all_up=True,
)
_SELDOM: Final = [
    _CROWD,
    _TYPE_MADE_AGAIN,
    _unkept("truncate in one node's kept segment", 1),
    *(_same_id(changed=changed, after_batch=True) for changed in (False, True)),
]
"""What takes its time: in every `SELDOM`th deck."""
KINDS: Final = tuple(dict.fromkeys(kind for card in [*(card for _, card in CARDS), *_SELDOM] for kind in card.kinds))


def _deck(number: int) -> list[Card]:
    cards = [card for count, card in CARDS for _ in range(count)]
    return cards + (_SELDOM if number % SELDOM == 0 else [])


class Generator:
    """`ops` operations of a seed, the same ones every time. See `proof.ring.operations.Generator`."""

    kinds = KINDS

    def __init__(self, seed: int, ops: int, replication: str = ONE_DATACENTER.replication) -> None:
        self.seed, self.ops, self.replication = seed, ops, replication

    def schema(self) -> list[str]:
        return World(self.seed).schema(self.replication)

    def minimum(self, ops: int) -> dict[str, int]:
        """The kinds of all decks that a run of `ops` operations finishes."""
        counts: Counter[str] = Counter(dict.fromkeys(KINDS, 0))
        number, left = 0, ops
        while True:
            kinds = [kind for card in _deck(number) for kind in card.kinds]
            left, number = left - len(kinds) - SLACK, number + 1
            if left < 0:
                # Late writes affect which nodes keep a segment: not every attempt succeeds.
                return {kind: -(-count // 2) if "kept segment" in kind else count for kind, count in counts.items()}
            counts.update(kinds)

    def __iter__(self) -> Iterator[Operation]:
        world = World(self.seed)
        for made, given in zip(self._all(world), range(self.ops), strict=False):
            world.number = given + 1
            yield made

    def _all(self, world: World) -> Iterator[Operation]:
        number = 0
        while True:
            yield from self._dealt(world, number)
            number += 1

    def _dealt(self, world: World, number: int) -> Iterator[Operation]:
        """One deck. What is to come later comes before the deck ends."""
        waiting: deque[tuple[int, Later]] = deque()
        for card in self._ordered(world, number):
            while waiting and waiting[0][0] <= world.number:
                yield waiting.popleft()[1]()
            now, later = card.make(world)
            yield from now
            waiting.extend((world.number + world.random.randint(0, APART), one) for one in later)
        while waiting:
            yield waiting.popleft()[1]()

    def _ordered(self, world: World, number: int) -> list[Card]:
        deck = _deck(number)
        world.random.shuffle(deck)
        together_ = [card for card in deck if card.all_up]
        others = [card for card in deck if not card.all_up]
        tail = len(others) // 10
        last = [*others[-tail:], *together_]
        world.random.shuffle(last)
        return [*others[:-tail], *last]
