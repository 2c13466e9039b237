"""The tables of the demo's shop, and values to fill them with. Every value comes from a seeded generator;
knows no ring.
"""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from random import Random
from typing import Any
from uuid import UUID

from cassandra.query import UNSET_VALUE

KEYSPACE = "shop"
DATACENTER = "dc1"
CDC_TABLES = ("customers", "orders")
TABLES = ("audit_trail", *CDC_TABLES)

CREATE = (
    f"CREATE KEYSPACE {KEYSPACE} WITH replication = {{'class': 'NetworkTopologyStrategy', '{DATACENTER}': 3}}",
    f"""CREATE TABLE {KEYSPACE}.customers (
        customer_id uuid PRIMARY KEY,
        name text, email text, points bigint, active boolean, created_at timestamp, balance decimal,
        phones set<text>, preferences map<text, text>
    ) WITH cdc = true""",
    f"""CREATE TABLE {KEYSPACE}.orders (
        customer_id uuid, placed_at timestamp, order_id uuid,
        delivery_note text static,
        status text, amount bigint, price double, weight float, discount decimal, items int, paid boolean,
        shipped_at timestamp, deliver_on date, tracking uuid, client_ip inet, receipt blob, checksum varint,
        tags set<text>, attributes map<text, text>, ratings list<int>,
        PRIMARY KEY (customer_id, placed_at, order_id)
    ) WITH CLUSTERING ORDER BY (placed_at DESC, order_id ASC) AND cdc = true""",
    f"""CREATE TABLE {KEYSPACE}.audit_trail (
        customer_id uuid, at timestamp, seq int, action text, detail text,
        PRIMARY KEY (customer_id, at, seq)
    )""",
)
ALTER = f"ALTER TABLE {KEYSPACE}.orders ADD gift_message text"

OPENED = datetime(2026, 3, 1, 9, tzinfo=UTC)
_STATUSES = ("placed", "paid", "packed", "shipped", "delivered", "returned")
_FIRST = ("Ada", "Björn", "Chloé", "Dmitri", "Emre", "Fatima", "Grace", "Hiroshi", "Inês", "Jürgen", "Kwame", "Łucja", "Māra", "Noor")
_LAST = ("Okafor", "Svensson", "Nguyen", "O'Brien", "García", "Müller", "Tanaka", "Kowalska", "Silva", "李", "Haddad", "Петров")
_COLOURS = ("red", "blue", "green", "grün", "naïve", "木")
_THINGS = ("gift", "fragile", "express", "sale", "spare", "refill", "organic", "cotton", "steel", "vegan", "boxed", "café", "☕")
_WORDS = _COLOURS + _THINGS


class Values:
    """Plausible values, the same ones for the same seed."""

    def __init__(self, seed: int) -> None:
        self.random = Random(seed)

    def uuid(self) -> UUID:
        return UUID(int=self.random.getrandbits(128), version=4)

    def words(self, most: int) -> str:
        return " ".join(self.random.choices(_WORDS, k=self.random.randint(1, most)))

    def instant(self) -> datetime:
        """A moment in the shop's first half year, in whole ms."""
        return OPENED + timedelta(milliseconds=self.random.randrange(180 * 86_400_000))

    def day(self) -> date:
        return self.instant().date()

    def decimal(self) -> Decimal:
        """Of either sign, with scales from 0 to 6."""
        return Decimal(self.random.randint(-(10**7), 10**7)).scaleb(-self.random.randint(0, 6))

    def address(self) -> str:
        if self.random.random() < 0.3:
            return f"2001:db8::{self.random.getrandbits(16):x}"
        return f"198.51.100.{self.random.randrange(256)}"

    def blob(self) -> bytes:
        return self.random.randbytes(self.random.choice((0, 1, 8, 48)))

    def order(self) -> dict[str, Any]:
        """All columns of an order except its key; collections are sometimes omitted."""
        columns = {column: self.of_order(column) for column in ORDER_COLUMNS}
        return columns | {column: UNSET_VALUE for column in COLLECTIONS if self.random.random() < 0.2}

    def of_order(self, column: str) -> Any:
        """A value for one column of an order."""
        return ORDER_COLUMNS[column](self)

    def customer(self) -> dict[str, Any]:
        """All columns of a customer except the key."""
        first, last = self.random.choice(_FIRST), self.random.choice(_LAST)
        return {
            "name": f"{first} {last}",
            "email": f"{first}.{self.random.getrandbits(20):x}@example.org".lower(),
            "points": self.random.getrandbits(12),
            "active": self.random.random() < 0.9,
            "created_at": self.instant(),
            "balance": self.decimal(),
            "phones": {f"+49 30 {self.random.randrange(10**6):06}" for _ in range(self.random.randint(0, 3))},
            "preferences": {key: self.words(2) for key in self.random.sample(("language", "theme", "contact", "size"), 2)},
        }


COLLECTIONS = ("tags", "attributes", "ratings")
ORDER_COLUMNS: dict[str, Callable[[Values], Any]] = {
    "status": lambda values: values.random.choice(_STATUSES),
    # Both ends of the range come up, so do small numbers.
    "amount": lambda values: values.random.choice(
        (-(2**63), 2**63 - 1, 0, -1, values.random.getrandbits(20), values.random.getrandbits(40))
    ),
    "price": lambda values: values.random.choice((0.0, -0.0, 1e308, round(values.random.uniform(1, 900), 2))),
    "weight": lambda values: values.random.randrange(1, 4096) / 64,
    "discount": lambda values: values.decimal(),
    "items": lambda values: values.random.randint(1, 40),
    "paid": lambda values: values.random.random() < 0.5,
    "shipped_at": lambda values: values.instant(),
    "deliver_on": lambda values: values.day(),
    "tracking": lambda values: values.uuid(),
    "client_ip": lambda values: values.address(),
    "receipt": lambda values: values.blob(),
    "checksum": lambda values: values.random.choice((0, -1, 127, 128, values.random.getrandbits(80), -values.random.getrandbits(70))),
    "tags": lambda values: set(values.words(6).split()),
    "attributes": lambda values: {key: values.words(8) for key in values.random.sample(_WORDS, values.random.randint(0, 4))},
    "ratings": lambda values: [values.random.randint(1, 5) for _ in range(values.random.randint(0, 4))],
}
"""How to make a value, by column."""
