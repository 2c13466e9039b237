"""Tables that people alter between batches, with real Spark and Iceberg: after each batch a table equals what was written, with
what people added left alone, or it is refused by name and says what to do."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from typing import Any, Final

import pytest
from pyspark.sql import SparkSession

from spark_jobs.session import spark_session
from spark_jobs.sinks.iceberg import Warehouse
from spark_jobs.sinks.iceberg_table import IcebergTable
from spark_jobs.sinks.own_columns import PROPERTY
from tests.spark_jobs.examples import THEN, insert, schema_of, table
from tests.spark_jobs.pipeline import Pipeline
from tests.spark_jobs.test_ddl import outgoing
from tests.spark_jobs.test_iceberg import rows, write
from writetime.cassandra.schema.model import Column, Schema, Table, UserType
from writetime.errors import BatchError
from writetime.events.envelope import place_of

pytestmark = [pytest.mark.spark, pytest.mark.timeout(3600)]

PLACE: Final = UserType("shop", "place", ("x", "y"), ("int", "int"))
COLUMNS: Final = {"id": "int", "line": "int", "name": "text", "amount": "int", "home": "frozen<place>", "all": "map<text, frozen<place>>"}
QUICK: Final = 3


@pytest.fixture(scope="module")
def pipeline(tmp_path_factory: pytest.TempPathFactory) -> Pipeline:
    return Pipeline.create(tmp_path_factory.mktemp("altered"))


@pytest.fixture(scope="module")
def spark(pipeline: Pipeline) -> Iterator[SparkSession]:
    session = spark_session(pipeline.config, "tests of altered tables")
    yield session
    session.stop()


@pytest.fixture(scope="module")
def warehouse(spark: SparkSession) -> Warehouse:
    return Warehouse(spark, "lake")


@dataclass
class Shop:
    """A table and its rows by key, which batches change; and what people do to its tables of the warehouse."""

    warehouse: Warehouse
    table: Table
    place: UserType = PLACE
    batch: int = 0
    known: dict[tuple[int, int], dict[str, Any]] = field(default_factory=dict)
    events: list[tuple[int, dict[str, Any]]] = field(default_factory=list)
    theirs: dict[str, dict[tuple[int, int], Any]] = field(default_factory=dict)

    @classmethod
    def of(cls, warehouse: Warehouse, number: int) -> Shop:
        return cls(warehouse, table(f"altered_{number}", 1000 + number, COLUMNS, clustering=1))

    @property
    def schema(self) -> Schema:
        return schema_of(self.table, types={("shop", "place"): self.place})

    @property
    def current(self) -> str:
        return f"lake.shop.{self.table.name}"

    @property
    def changes(self) -> str:
        return f"lake.shop__changes.{self.table.name}"

    def sql(self, statement: str) -> None:
        # A test that fails shows what was done.
        print(statement)
        self.warehouse.spark.sql(statement)

    def written(self, keys: list[tuple[int, int]]) -> None:
        """A batch that writes all columns of these rows."""
        batch = self.batch + 1
        print(f"batch {batch}: {keys}")
        made = {key: self._values(key, batch) for key in keys}
        found = [insert(self.table, key[0], row, key[1], timestamp=THEN + batch, schema=self.schema) for key, row in made.items()]
        write(self.warehouse, self.table, batch, *found, schema=self.schema)
        self.batch = batch
        for (key, line), row in made.items():
            self.known[key, line] = shown = {"id": key, "line": line, **{n: dict(v) if n == "all" else v for n, v in row.items()}}
            self.events.append((batch, {**shown}))
        for values in self.theirs.values():
            for each in keys:
                values.setdefault(each, None)

    def _values(self, key: tuple[int, int], batch: int) -> dict[str, Any]:
        here = {name: key[0] * 1000 + batch * 10 + at for at, name in enumerate(self.place.field_names)}
        kinds = {"int": key[0] * 100 + batch, "text": f"{key}, {batch}", "frozen<place>": here, "map<text, frozen<place>>": [("a", here)]}
        return {column.name: kinds[column.type] for column in self.table.regular_columns}

    def added(self, name: str) -> None:
        """ALTER TABLE of the cluster."""
        columns = {**self.table.columns, name: Column(name, "regular", "int")}
        self.table = replace(self.table, columns=columns)
        for row in self.known.values():
            row[name] = None

    # --- what has to be there

    def expect(self) -> None:
        names = [*COLUMNS, *(name for name in self.table.columns if name not in COLUMNS)]
        found = rows(self.warehouse, self.current.removeprefix("lake."))
        there = {(row["id"], row["line"]): {name: row[name] for name in names} for row in found}
        assert {key: _as(row, self.known.get(key)) for key, row in there.items()} == self.known
        assert len(found) == len(self.known)
        assert all(row["_writetime"].keys() >= {"name", "amount"} for row in found)
        for name, values in self.theirs.items():
            assert {(row["id"], row["line"]): row[name] for row in found} == values, name
        events = {
            (row["batch"], row["key"]["id"], row["key"]["line"]): row for row in rows(self.warehouse, self.changes.removeprefix("lake."))
        }
        told = {(batch, row["id"], row["line"]): row for batch, row in self.events}
        assert {key: _as(row["after"], told.get(key)) for key, row in events.items()} == told
        assert {row["op"] for row in events.values()} == {"c"}

    def expect_published(self, pipeline: Pipeline) -> None:
        found = outgoing(pipeline, self.warehouse, self.table, self.batch)
        sent = {(place_of(value)[0], key["id"], key["line"]): value["after"] for key, value, _ in found}
        assert len(found) == len(self.events)
        assert sent == {(batch, row["id"], row["line"]): row for batch, row in self.events}


def _as(value: Any, wanted: Any) -> Any:
    """The value without what people have added within it."""
    if isinstance(value, dict) and isinstance(wanted, dict):
        return {name: _as(value[name], wanted[name]) for name in wanted if name in value}
    return value


# --- what people do, and a batch has to go on


def moved(shop: Shop, chance: random.Random) -> None:
    of_current = [*COLUMNS, "_writetime", "home.x", "all.value.y"]
    of_changes = ["batch", "key", "after", "before", "op", "key.line", "after.amount", "after.id", "before.line", "after.home.y"]
    if chance.random() < 0.5:
        shop.sql(f"ALTER TABLE {shop.current} ALTER COLUMN {chance.choice(of_current)} FIRST")
    else:
        shop.sql(f"ALTER TABLE {shop.changes} ALTER COLUMN {chance.choice(of_changes)} FIRST")


def added(shop: Shop, chance: random.Random) -> None:
    name, kind = f"theirs_{chance.randrange(10**6)}", chance.choice(["STRING", "INT", "BIGINT", "STRUCT<x: INT>"])
    place = chance.choice(["FIRST", "AFTER line", "", "AFTER _writetime"])
    shop.sql(f"ALTER TABLE {shop.current} ADD COLUMN {name} {kind} {place}")
    shop.theirs[name] = dict.fromkeys(shop.known)
    if kind == "STRING":
        shop.sql(f"UPDATE {shop.current} SET {name} = concat('of ', id, line)")
        shop.theirs[name] = {key: f"of {key[0]}{key[1]}" for key in shop.known}


def added_within(shop: Shop, chance: random.Random) -> None:
    where = chance.choice(["after", "before", "key", "after.home", "bounds.start", "after.all.value"])
    place = chance.choice(["FIRST", ""])
    shop.sql(f"ALTER TABLE {shop.changes} ADD COLUMN {where}.theirs_{chance.randrange(10**6)} INT {place}")
    shop.sql(f"ALTER TABLE {shop.current} ADD COLUMN {chance.choice(['home', 'all.value'])}.theirs_{chance.randrange(10**6)} INT {place}")


def dropped_again(shop: Shop, chance: random.Random) -> None:
    if shop.theirs:
        name = chance.choice(sorted(shop.theirs))
        del shop.theirs[name]
        shop.sql(f"ALTER TABLE {shop.current} DROP COLUMN {name}")


def renamed_again(shop: Shop, chance: random.Random) -> None:
    if shop.theirs:
        name, new = chance.choice(sorted(shop.theirs)), f"theirs_{chance.randrange(10**6)}"
        shop.theirs[new] = shop.theirs.pop(name)
        shop.sql(f"ALTER TABLE {shop.current} RENAME COLUMN {name} TO {new}")


def widened(shop: Shop, chance: random.Random) -> None:
    if chance.random() < 0.5:
        shop.sql(f"ALTER TABLE {shop.current} ALTER COLUMN {chance.choice(['amount', 'id', 'line', 'home.x', 'all.value.y'])} TYPE BIGINT")
    else:
        shop.sql(f"ALTER TABLE {shop.changes} ALTER COLUMN {chance.choice(['after.amount', 'before.home.y', 'key.line'])} TYPE BIGINT")


def laid_out(shop: Shop, chance: random.Random) -> None:
    of = chance.choice([shop.current, shop.changes])
    column = "name" if of == shop.current else "op"
    shop.sql(f"ALTER TABLE {of} {chance.choice([f'WRITE ORDERED BY {column}', 'WRITE UNORDERED', 'WRITE DISTRIBUTED BY PARTITION'])}")


def partitioned(shop: Shop, chance: random.Random) -> None:
    held = IcebergTable(shop.warehouse.spark, shop.current)
    held.refresh()
    names = [each.name() for each in held._table.spec().fields()]
    if names:
        shop.sql(f"ALTER TABLE {shop.current} DROP PARTITION FIELD {names[0]}")
    else:
        shop.sql(f"ALTER TABLE {shop.current} ADD PARTITION FIELD {chance.choice(['bucket(2, id) AS shard', 'name', 'truncate(2, name)'])}")


def described(shop: Shop, chance: random.Random) -> None:
    shop.sql(f"ALTER TABLE {shop.current} ALTER COLUMN name COMMENT 'the name'")
    shop.sql(f"ALTER TABLE {shop.changes} SET TBLPROPERTIES ('write.parquet.compression-codec' = 'snappy', 'curated.by' = 'them')")


def identified(shop: Shop, chance: random.Random) -> None:
    held = IcebergTable(shop.warehouse.spark, shop.current)
    held.refresh()
    update = held._table.updateSchema().allowIncompatibleChanges().requireColumn("id").requireColumn("line")
    update.setIdentifierFields(["id", "line"]).commit()
    shop.warehouse.spark.catalog.refreshTable(shop.current)


def forgotten(shop: Shop, chance: random.Random) -> None:
    """As in tables of earlier versions. What is there with the next batch is taken for ours."""
    if not shop.theirs:
        shop.sql(f"ALTER TABLE {shop.current} UNSET TBLPROPERTIES ('{PROPERTY}')")
        shop.written([chance.choice([*shop.known])])


HONOURED: Final[list[Callable[[Shop, random.Random], None]]] = [
    *(
        moved,
        moved,
        added,
        added,
        added_within,
        dropped_again,
        renamed_again,
        widened,
        laid_out,
        partitioned,
        described,
        identified,
        forgotten,
    )
]


# --- what people do, and a table has to be refused


def renamed(shop: Shop, chance: random.Random) -> list[str]:
    of = chance.choice([shop.current, shop.changes])
    of_current, of_changes = (
        ["name", "id", "home", "home.y", "_writetime"],
        ["op", "after", "after.name", "key.id", "before.home.x", "batch"],
    )
    path = chance.choice(of_current if of == shop.current else of_changes)
    parent, _, name = path.rpartition(".")
    new = f"{name}_by_them"
    shop.sql(f"ALTER TABLE {of} RENAME COLUMN {path} TO {new}")
    return [f"ALTER TABLE {of} RENAME COLUMN {f'{parent}.' if parent else ''}{new} TO {name}"]


def taken(shop: Shop, chance: random.Random) -> list[str]:
    """A column of theirs is called as one that the cluster gets."""
    name = f"c{chance.randrange(10**6)}"
    of, path = chance.choice([(shop.current, name), (shop.changes, f"after.{name}"), (shop.current, name.upper())])
    shop.sql(f"ALTER TABLE {of} ADD COLUMN {path} STRING FIRST")
    shop.added(name)
    return [f"ALTER TABLE {of} RENAME COLUMN {path} TO theirs_{name}"]


def taken_by_partition(shop: Shop, chance: random.Random) -> list[str]:
    """A partition field of theirs is."""
    name = f"c{chance.randrange(10**6)}"
    shop.sql(f"ALTER TABLE {shop.current} ADD PARTITION FIELD bucket(3, id) AS {name}")
    shop.added(name)
    table = shop.current.removeprefix("lake.")
    return [
        f"ALTER TABLE {shop.current} DROP PARTITION FIELD {name}",
        f"CALL lake.system.expire_snapshots(table => '{table}', clean_expired_metadata => true)",
    ]


REFUSED: Final[list[Callable[[Shop, random.Random], list[str]]]] = [renamed, renamed, taken, taken_by_partition]


@pytest.mark.parametrize("seed", [*range(QUICK), *(pytest.param(seed, marks=pytest.mark.thorough) for seed in range(QUICK, 40))])
def test_whatever_people_alter_rows_are_right_or_the_table_is_refused(pipeline: Pipeline, warehouse: Warehouse, seed: int) -> None:
    chance, shop = random.Random(seed), Shop.of(warehouse, seed)
    shop.written([(1, 1), (1, 2), (2, 1)])
    for _ in range(4):
        for act in chance.choices(HONOURED, k=chance.randint(1, 3)):
            act(shop, chance)
        if chance.random() < 0.4:
            undone = chance.choice(REFUSED)(shop, chance)
            with pytest.raises(BatchError, match="somebody has"):
                shop.written([(1, 1), (7, 7)])
            for statement in undone:
                shop.sql(statement)
        if chance.random() < 0.3:
            shop.added(f"d{chance.randrange(10**6)}")
        shop.written(sorted({chance.choice([*shop.known]), (chance.randrange(3, 9), chance.randrange(3))}))
        shop.expect()
    shop.expect_published(pipeline)


def test_a_key_that_somebody_made_wider_keeps_its_publisher(pipeline: Pipeline, warehouse: Warehouse) -> None:
    """Who sends an event decides whose progress says that it was sent."""
    shop = Shop.of(warehouse, 100)
    keys = [(key, key % 3) for key in range(1, 21)]
    shop.written(keys)
    for name in ("key.id", "key.line", "after.id"):
        shop.sql(f"ALTER TABLE {shop.changes} ALTER COLUMN {name} TYPE BIGINT")
    shop.sql(f"ALTER TABLE {shop.changes} ALTER COLUMN key.line FIRST")
    shop.written(keys)
    shop.expect()
    shop.expect_published(pipeline)
    shares = {(key["id"], row["publisher"]) for key, _, row in outgoing(pipeline, warehouse, shop.table, shop.batch)}
    assert len(shares) == len(keys)
    assert {publisher for _, publisher in shares} == {0, 1}
