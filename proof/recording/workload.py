"""The demo's workload: a few thousand statements on the shop, the same for the same seed.

Strategy: `Shop` makes statements and remembers rows and customers, so that updates and deletes hit existing
rows. One table lists the kinds of statements and their frequency; special cases with equal writetimes follow
at the end. Statements are executed one after the other, so the cluster's answer depends on the seed and the
clock only.

Part of them is written while one node is down, at QUORUM; all others at ALL. The caller runs the nodes.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any
from uuid import UUID

from cassandra.cluster import Session
from cassandra.query import UNSET_VALUE, BatchStatement, BatchType

from proof.recording.shop import ALTER, COLLECTIONS, CREATE, KEYSPACE, Values

CUSTOMERS = 80
SHORT_TTL_SECONDS = 2
LONG_TTL_SECONDS = 10 * 365 * 86_400
TIE_WRITETIME = 1_790_000_000_000_000
"""µs; writetimes that tie are counted from here."""

OrderKey = tuple[UUID, datetime, UUID]


@dataclass(frozen=True)
class Statement:
    """CQL with its values, and what kind of statement it is, for the count. `table` and `keyspace` are spelt
    out in the CQL.
    """

    kind: str
    cql: str
    values: tuple[Any, ...] = ()


@dataclass(frozen=True)
class Batch:
    """Statements that are sent as one batch."""

    kind: str
    type: BatchType
    statements: tuple[Statement, ...]


@dataclass
class Runner:
    """Runs statements on a session, and counts them by kind. Statements are prepared once per session."""

    session: Session
    counts: Counter[str] = field(default_factory=Counter)
    _prepared: dict[str, Any] = field(default_factory=dict, repr=False)

    def run(self, item: Statement | Batch) -> None:
        self.counts[item.kind] += 1
        if isinstance(item, Statement):
            self.session.execute(self._prepare(item.cql), item.values)
            return
        batch = BatchStatement(item.type)
        for statement in item.statements:
            batch.add(self._prepare(statement.cql), statement.values)
        self.session.execute(batch)

    def run_all(self, items: Iterator[Statement | Batch]) -> None:
        for item in items:
            self.run(item)

    def _prepare(self, cql: str) -> Any:
        if cql not in self._prepared:
            self._prepared[cql] = self.session.prepare(cql)
        return self._prepared[cql]


class Shop:
    """The statements of one seed, in the order of the calls."""

    def __init__(self, seed: int) -> None:
        self.values = Values(seed)
        self.random = self.values.random
        self.customers = [self.values.uuid() for _ in range(CUSTOMERS)]
        self.orders: list[OrderKey] = []
        self.audited = 0
        self.gifts = False
        kinds = [(weight, make) for weight, make in _kinds(self)]
        self._weights = [weight for weight, _ in kinds]
        self._makers = [make for _, make in kinds]

    def first_statements(self) -> Iterator[Statement]:
        """A customer for every id, and an order for most."""
        for customer in self.customers:
            yield self.new_customer(customer)
            if self.random.random() < 0.8:
                yield self.new_order(customer)

    def traffic(self, count: int) -> Iterator[Statement | Batch]:
        """`count` statements of all kinds."""
        for make in self.random.choices(self._makers, self._weights, k=count):
            yield make()

    # Orders

    def new_order(self, customer: UUID | None = None) -> Statement:
        return self._insert_order("insert order", self._new_order_key(customer), self._order_values())

    def order_with_nulls(self) -> Statement:
        """Explicit nulls are tombstones; omitted columns are not written."""
        columns = self._order_values()
        *nulls, a, b, c = self.random.sample([name for name in columns if name not in COLLECTIONS], 7)
        columns |= dict.fromkeys(nulls) | dict.fromkeys((a, b, c), UNSET_VALUE)
        return self._insert_order("insert order with nulls", self._new_order_key(), columns)

    def bare_order(self) -> Statement:
        """A row with key columns only."""
        return self._insert_order("insert key only", self._new_order_key(), {})

    def order_again(self) -> Statement:
        return self._insert_order("insert over an order", self._order_key(), self._order_values())

    def short_lived_order(self) -> Statement:
        return self._insert_order("insert with TTL 2 s", self._new_order_key(), self._order_values(), ttl=SHORT_TTL_SECONDS)

    def long_lived_order(self) -> Statement:
        return self._insert_order("insert with TTL 10 years", self._new_order_key(), self._order_values(), ttl=LONG_TTL_SECONDS)

    def update_order(self) -> Statement:
        columns = self.random.choice(_UPDATED_TOGETHER)
        return self._update_order("update order", {name: self.values.of_order(name) for name in columns})

    def update_nobody(self) -> Statement:
        """An UPDATE writes cells without liveness info: the row is gone once its cells are."""
        return self._update_order("update of no row", {"status": "unknown"}, key=self._new_order_key())

    def update_short_lived(self) -> Statement:
        return self._update_order("update with TTL 2 s", {"status": "flash", "items": 1}, ttl=SHORT_TTL_SECONDS)

    def update_long_lived(self) -> Statement:
        values = {"status": "reserved", "discount": self.values.decimal()}
        return self._update_order("update with TTL 10 years", values, ttl=LONG_TTL_SECONDS)

    def delete_columns(self) -> Statement:
        columns = self.random.choice(_UPDATED_TOGETHER)
        return Statement("delete columns", f"DELETE {', '.join(columns)} FROM {KEYSPACE}.orders WHERE {_ORDER_KEY}", self._order_key())

    def delete_order(self) -> Statement:
        return Statement("delete row", f"DELETE FROM {KEYSPACE}.orders WHERE {_ORDER_KEY}", self._order_key())

    def delete_day(self) -> Statement:
        """A range of clusterings: one customer's orders around one of them."""
        customer, placed_at, _ = self._order_key()
        cql = f"DELETE FROM {KEYSPACE}.orders WHERE customer_id = ? AND placed_at >= ? AND placed_at < ?"
        return Statement("delete range", cql, (customer, placed_at - timedelta(hours=12), placed_at + timedelta(hours=12)))

    def delete_tail(self) -> Statement:
        """An open range, whose bound stands in the middle of the order by placed_at DESC."""
        customer, placed_at, _ = self._order_key()
        return Statement(
            "delete open range", f"DELETE FROM {KEYSPACE}.orders WHERE customer_id = ? AND placed_at > ?", (customer, placed_at)
        )

    def delete_all_orders(self) -> Statement:
        return Statement("delete partition", f"DELETE FROM {KEYSPACE}.orders WHERE customer_id = ?", (self._customer(),))

    def edit_collection(self) -> Statement:
        """One edit of part of a collection, of any kind that needs no read."""
        edit, value = self.random.choice(_COLLECTION_EDITS)
        return Statement(
            "edit collection", f"UPDATE {KEYSPACE}.orders SET {edit} WHERE {_ORDER_KEY}", (*value(self.values), *self._order_key())
        )

    def edit_collection_long_lived(self) -> Statement:
        cql = f"UPDATE {KEYSPACE}.orders USING TTL ? SET attributes[?] = ?, tags = tags + ? WHERE {_ORDER_KEY}"
        values = (LONG_TTL_SECONDS, "loan", self.values.words(1), {"loan"})
        return Statement("edit collection with TTL 10 years", cql, (*values, *self._order_key()))

    def edit_collection_short_lived(self) -> Statement:
        cql = f"UPDATE {KEYSPACE}.orders USING TTL ? SET attributes[?] = ? WHERE {_ORDER_KEY}"
        return Statement("edit collection with TTL 2 s", cql, (SHORT_TTL_SECONDS, "flash", "now", *self._order_key()))

    def note(self) -> Statement:
        """The static column; for customers without orders too."""
        cql = f"UPDATE {KEYSPACE}.orders SET delivery_note = ? WHERE customer_id = ?"
        return Statement("update static", cql, (self.values.words(4), self._customer()))

    def forget_note(self) -> Statement:
        return Statement("delete static", f"DELETE delivery_note FROM {KEYSPACE}.orders WHERE customer_id = ?", (self._customer(),))

    # Customers

    def new_customer(self, customer: UUID | None = None) -> Statement:
        columns = {"customer_id": customer or self._customer(), **self.values.customer()}
        return _insert("insert customer", "customers", columns)

    def update_customer(self) -> Statement:
        cql = f"UPDATE {KEYSPACE}.customers SET points = ?, active = ?, balance = ?, phones = phones + ? WHERE customer_id = ?"
        fresh = self.values.customer()
        return Statement("update customer", cql, (fresh["points"], fresh["active"], fresh["balance"], fresh["phones"], self._customer()))

    def prefer(self) -> Statement:
        cql = f"UPDATE {KEYSPACE}.customers SET preferences[?] = ? WHERE customer_id = ?"
        return Statement("update map element", cql, ("theme", self.values.words(1), self._customer()))

    def delete_customer(self) -> Statement:
        return Statement("delete customer", f"DELETE FROM {KEYSPACE}.customers WHERE customer_id = ?", (self._customer(),))

    # Tables that are not captured, and several tables at once

    def audit(self, customer: UUID | None = None) -> Statement:
        self.audited += 1
        columns = {
            "customer_id": customer or self._customer(),
            "at": self.values.instant(),
            "seq": self.audited,
            "action": self.values.words(1),
            "detail": self.values.words(12),
        }
        return _insert("insert into audit trail", "audit_trail", columns)

    def purchase(self) -> Batch:
        """One partition key in three tables, captured and not: one mutation with three updates."""
        customer = self._customer()
        points = Statement("", f"UPDATE {KEYSPACE}.customers SET points = ? WHERE customer_id = ?", (self.random.getrandbits(12), customer))
        parts = [self.audit(customer), self.new_order(customer), points]
        self.random.shuffle(parts)
        return Batch("unlogged batch over three tables", BatchType.UNLOGGED, tuple(parts))

    def correction(self) -> Batch:
        """A delete and an insert of one partition in one mutation, together with the table that is not
        captured.
        """
        key = self._order_key()
        delete = Statement("", f"DELETE FROM {KEYSPACE}.orders WHERE {_ORDER_KEY}", key)
        return Batch("unlogged batch with a delete", BatchType.UNLOGGED, (delete, self.new_order(key[0]), self.audit(key[0])))

    def transfer(self) -> Batch:
        """Two customers in a logged batch: two atomic mutations and a batch log entry."""
        giver, taker = self.random.sample(self.customers, 2)
        cql = f"UPDATE {KEYSPACE}.customers SET points = ? WHERE customer_id = ?"
        parts = [Statement("", cql, (self.random.getrandbits(12), customer)) for customer in (giver, taker)]
        return Batch(
            "logged batch over three tables", BatchType.LOGGED, (*parts, self.new_order(giver), self.audit(giver), self.audit(taker))
        )

    # Cases that need rows of their own

    def reborn(self) -> Iterator[Statement]:
        """Row and partition deleted and inserted again; sometimes the delete is last."""
        for number in range(12):
            customer = self.values.uuid()
            key = self._new_order_key(customer)
            columns = self._order_values()
            yield self._insert_order("insert order", key, columns)
            if number % 2:
                yield Statement("delete row", f"DELETE FROM {KEYSPACE}.orders WHERE {_ORDER_KEY}", key)
            else:
                yield Statement("delete partition", f"DELETE FROM {KEYSPACE}.orders WHERE customer_id = ?", (customer,))
            if number % 3:
                yield self._insert_order("insert again", key, {"status": "reborn", "attributes": {"life": "second"}})

    def notes_alone(self) -> Iterator[Statement]:
        """Static content of partitions without rows: never had any, or lost them."""
        for number in range(6):
            customer = self.values.uuid()
            key = self._new_order_key(customer)
            if number % 2:
                yield self._insert_order("insert order", key, self._order_values())
            cql = f"UPDATE {KEYSPACE}.orders SET delivery_note = ? WHERE customer_id = ?"
            yield Statement("update static", cql, (self.values.words(4), customer))
            if number % 2:
                yield Statement("delete row", f"DELETE FROM {KEYSPACE}.orders WHERE {_ORDER_KEY}", key)

    def lists(self) -> Iterator[Statement]:
        """List operations for which the coordinator reads before it writes."""
        for _ in range(8):
            key = self._new_order_key()
            table = f"{KEYSPACE}.orders"
            yield self._insert_order("insert order", key, self._order_values() | {"ratings": [1, 2, 3, 2]})
            yield Statement("set list element", f"UPDATE {table} SET ratings[1] = ? WHERE {_ORDER_KEY}", (5, *key))
            yield Statement("remove from list", f"UPDATE {table} SET ratings = ratings - ? WHERE {_ORDER_KEY}", ([2], *key))
            yield Statement("delete list element", f"DELETE ratings[0] FROM {table} WHERE {_ORDER_KEY}", key)

    def conditional(self) -> Iterator[Statement]:
        """Lightweight transactions, some of which are not applied."""
        for _ in range(8):
            customer = self.values.uuid()
            insert = f"INSERT INTO {KEYSPACE}.customers (customer_id, name, points) VALUES (?, ?, ?) IF NOT EXISTS"
            update = f"UPDATE {KEYSPACE}.customers SET points = ? WHERE customer_id = ? IF points = ?"
            yield Statement("conditional insert", insert, (customer, "Once", 10))
            yield Statement("conditional insert, not applied", insert, (customer, "Twice", 20))
            yield Statement("conditional update", update, (11, customer, 10))
            yield Statement("conditional update, not applied", update, (12, customer, 10))

    def ties(self) -> Iterator[Statement]:
        """Equal writetimes, in both orders of arrival: the same side has to win."""
        for number, (first, second) in enumerate(_ties()):
            for statements in ((first, second), (second, first)):
                key = self._new_order_key(self.values.uuid())
                for statement in statements:
                    yield Statement("writetime tie", statement[0], (*statement[1], *key)[: statement[0].count("?")])
                yield self._insert_order("older than the tie", key, {"weight": float(number)}, writetime=TIE_WRITETIME - 1)

    # Keys

    def _customer(self) -> UUID:
        return self.random.choice(self.customers)

    def _order_key(self) -> OrderKey:
        """The key of an order that was written before; it may be deleted."""
        return self.random.choice(self.orders[-300:])

    def _new_order_key(self, customer: UUID | None = None) -> OrderKey:
        key = (customer or self._customer(), self.values.instant(), self.values.uuid())
        self.orders.append(key)
        return key

    def _order_values(self) -> dict[str, Any]:
        return self.values.order() | ({"gift_message": self.values.words(3)} if self.gifts else {})

    def _insert_order(
        self, kind: str, key: OrderKey, columns: dict[str, Any], *, ttl: int | None = None, writetime: int | None = None
    ) -> Statement:
        named = dict(zip(("customer_id", "placed_at", "order_id"), key, strict=True))
        return _insert(kind, "orders", named | columns, ttl=ttl, writetime=writetime)

    def _update_order(self, kind: str, columns: dict[str, Any], *, ttl: int | None = None, key: OrderKey | None = None) -> Statement:
        using = "" if ttl is None else " USING TTL ?"
        sets = ", ".join(f"{name} = ?" for name in columns)
        cql = f"UPDATE {KEYSPACE}.orders{using} SET {sets} WHERE {_ORDER_KEY}"
        return Statement(kind, cql, (*([] if ttl is None else [ttl]), *columns.values(), *(key or self._order_key())))


_UPDATED_TOGETHER = (
    ("status",),
    ("status", "shipped_at", "tracking"),
    ("amount", "price", "discount", "paid"),
    ("weight", "items", "checksum"),
    ("deliver_on", "client_ip"),
    ("receipt", "tags"),
    ("attributes", "ratings", "status"),
)
_ORDER_KEY = "customer_id = ? AND placed_at = ? AND order_id = ?"


def _kinds(shop: Shop) -> list[tuple[int, Callable[[], Statement | Batch]]]:
    """The relative frequency of each kind of statement."""
    return [
        (24, shop.new_order),
        (3, shop.order_with_nulls),
        (1, shop.bare_order),
        (3, shop.order_again),
        (2, shop.short_lived_order),
        (2, shop.long_lived_order),
        (16, shop.update_order),
        (2, shop.update_nobody),
        (2, shop.update_short_lived),
        (2, shop.update_long_lived),
        (3, shop.delete_columns),
        (4, shop.delete_order),
        (2, shop.delete_day),
        (1, shop.delete_tail),
        (1, shop.delete_all_orders),
        (9, shop.edit_collection),
        (1, shop.edit_collection_long_lived),
        (1, shop.edit_collection_short_lived),
        (3, shop.note),
        (1, shop.forget_note),
        (3, shop.new_customer),
        (6, shop.update_customer),
        (3, shop.prefer),
        (2, shop.delete_customer),
        (4, shop.audit),
        (5, shop.purchase),
        (2, shop.correction),
        (2, shop.transfer),
    ]


_COLLECTION_EDITS: tuple[tuple[str, Callable[[Values], tuple[Any, ...]]], ...] = (
    ("tags = tags + ?", lambda values: (set(values.words(2).split()),)),
    ("tags = tags - ?", lambda values: (set(values.words(3).split()),)),
    ("tags = ?", lambda values: (set(values.words(3).split()),)),
    ("attributes[?] = ?", lambda values: (values.words(1), values.words(2))),
    ("attributes[?] = ?", lambda values: (values.words(1), None)),
    ("attributes = attributes + ?", lambda values: ({values.words(1): values.words(1)},)),
    ("attributes = attributes - ?", lambda values: (set(values.words(3).split()),)),
    ("attributes = ?", lambda values: (values.of_order("attributes"),)),
    ("ratings = ratings + ?", lambda values: ([values.random.randint(1, 5)],)),
    ("ratings = ? + ratings", lambda values: ([values.random.randint(1, 5)],)),
    ("ratings = ?", lambda values: (values.of_order("ratings"),)),
)


def _ties() -> list[tuple[tuple[str, tuple[Any, ...]], tuple[str, tuple[Any, ...]]]]:
    """Pairs of statements of equal writetime on one row; the row's key follows the values."""
    update = f"UPDATE {KEYSPACE}.orders USING TIMESTAMP {TIE_WRITETIME}"
    set_status = f"{update} SET status = ? WHERE {_ORDER_KEY}"
    with_ttl = f"{update} AND TTL {LONG_TTL_SECONDS} SET status = ? WHERE {_ORDER_KEY}"
    longer_ttl = f"{update} AND TTL {LONG_TTL_SECONDS + 86_400} SET status = ? WHERE {_ORDER_KEY}"
    short_ttl = f"{update} AND TTL {SHORT_TTL_SECONDS} SET status = ? WHERE {_ORDER_KEY}"
    delete = f"DELETE FROM {KEYSPACE}.orders USING TIMESTAMP {TIE_WRITETIME} WHERE {_ORDER_KEY}"
    delete_cell = f"DELETE status FROM {KEYSPACE}.orders USING TIMESTAMP {TIE_WRITETIME} WHERE {_ORDER_KEY}"
    delete_all = f"DELETE FROM {KEYSPACE}.orders USING TIMESTAMP {TIE_WRITETIME} WHERE customer_id = ?"
    element = f"{update} SET attributes['k'] = ? WHERE {_ORDER_KEY}"
    whole = f"{update} SET attributes = ? WHERE {_ORDER_KEY}"
    return [
        ((set_status, ("a",)), (set_status, ("b",))),
        ((set_status, ("a",)), (set_status, ("aa",))),
        ((set_status, ("z",)), (set_status, ("é",))),
        ((set_status, ("z",)), (delete_cell, ())),
        ((set_status, ("z",)), (delete, ())),
        ((set_status, ("z",)), (delete_all, ())),
        ((set_status, ("z",)), (with_ttl, ("a",))),
        ((with_ttl, ("z",)), (longer_ttl, ("a",))),
        ((set_status, ("z",)), (short_ttl, ("a",))),
        ((delete_cell, ()), (with_ttl, ("z",))),
        ((element, ("z",)), (element, ("y",))),
        ((element, ("z",)), (whole, ({"other": "x"},))),
    ]


def _insert(kind: str, table: str, columns: dict[str, Any], *, ttl: int | None = None, writetime: int | None = None) -> Statement:
    options = {"TTL": ttl, "TIMESTAMP": writetime}
    given = {name: value for name, value in options.items() if value is not None}
    using = f" USING {' AND '.join(f'{name} ?' for name in given)}" if given else ""
    cql = f"INSERT INTO {KEYSPACE}.{table} ({', '.join(columns)}) VALUES ({', '.join('?' * len(columns))}){using}"
    return Statement(kind, cql, (*columns.values(), *given.values()))


@dataclass(frozen=True)
class Interruption:
    """Takes a node out of the cluster, gives a session for the meantime, and brings the node back with all
    its hints.
    """

    begin: Callable[[], Session]
    end: Callable[[], None]


def create_tables(session: Session) -> None:
    """The shop's keyspace and tables."""
    for statement in CREATE:
        session.execute(statement)


def run(session: Session, seed: int, interruption: Interruption, say: Callable[[str], None]) -> Counter[str]:
    """The whole workload on empty tables; how many statements of each kind were run. `session` writes at
    ALL."""
    shop = Shop(seed)
    runner = Runner(session)
    # The first of these follow the DDL so closely that they keep its segment in cdc_raw on every node.
    runner.run_all(shop.first_statements())
    runner.run_all(shop.traffic(1300))
    runner.run_all(shop.reborn())
    say(f"altering a table after {runner.counts.total()} statements")
    session.execute(ALTER)
    shop.gifts = True
    runner.run_all(shop.traffic(500))
    meanwhile = Runner(interruption.begin(), runner.counts)
    meanwhile.run_all(shop.traffic(900))
    say(f"bringing the node back after {runner.counts.total()} statements")
    interruption.end()
    runner.run_all(shop.traffic(700))
    # Last, so that nothing else touches their rows.
    runner.run_all(shop.notes_alone())
    runner.run_all(shop.lists())
    runner.run_all(shop.conditional())
    runner.run_all(shop.ties())
    return runner.counts
