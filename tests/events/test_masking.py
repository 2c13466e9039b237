"""Which columns and rows leave, as what."""

from __future__ import annotations

import hashlib
import hmac
import pickle
from dataclasses import replace
from decimal import Decimal
from typing import Any
from uuid import UUID

import pytest
from pydantic import ValidationError

from writetime.cassandra.schema.model import Column, Schema, Table, UserType
from writetime.cassandra.types.types import EMPTY, parse_type
from writetime.config.tables import ColumnsConfig
from writetime.events.masking import Mask, Rules, algorithm, parse_filter

COLUMNS = {"Id": "uuid", "at": "timestamp", "name": "text", "Total": "decimal", "tags": "set<text>", "n": "int", "a.b": "blob"}
TABLE = Table(
    "shop",
    "orders",
    UUID(int=1),
    {
        name: Column(name, "partition_key" if name == "Id" else "clustering" if name == "at" else "regular", kind, max(at, 0))
        for at, (name, kind) in enumerate(COLUMNS.items())
    },
)
ROW = {"Id": UUID(int=7), "at": 0, "name": "Ada", "Total": Decimal("1.50"), "tags": ["x", "y"], "n": 3, "a.b": b"\0"}


def rules(**given: Any) -> Rules:
    return ColumnsConfig.model_validate(given).rules


def shown(given: Rules, row: dict[str, Any] = ROW) -> dict[str, Any]:
    return pickle.loads(pickle.dumps(given.of(TABLE, {}))).compiled()(row)


def test_nothing_is_the_default() -> None:
    found = Rules().of(TABLE, {})
    assert not found
    assert (found.rejection_reason(), found.shown(), found.compiled()(ROW), found.keeps()(ROW)) == (None, TABLE, ROW, True)


def test_columns_that_stay_inside() -> None:
    without = rules(**{"column.exclude.list": "shop.orders.NAME, .*\\.tags"})
    assert list(shown(without)) == list(without.of(TABLE, {}).shown().columns) == ["Id", "at", "Total", "n", "a.b"]
    only = rules(**{"column.include.list": ["shop.orders.a.b"]})
    assert shown(only) == {"Id": UUID(int=7), "at": 0, "a.b": b"\0"}
    # The whole of a name, of this table.
    assert shown(rules(**{"column.exclude.list": "shop.orders.nam, shop.order.name"})) == ROW


def test_hashes_are_salted_and_the_same_for_the_same_text() -> None:
    given = {"column.mask.hash.SHA-256.with.salt": "shop.orders.(id|name|total|a.b|tags)", "salt": "pepper"}
    found = shown(rules(**given))
    expected = hmac.new(b"pepper", b"Ada", hashlib.sha256).hexdigest()
    assert found["name"] == expected
    assert found["Id"] == hmac.new(b"pepper", str(UUID(int=7)).encode(), "sha256").hexdigest()
    assert found["tags"] == hmac.new(b"pepper", b'["x","y"]', "sha256").hexdigest()
    assert found["n"] == 3
    table = rules(**given).of(TABLE, {}).shown()
    assert {name: table.columns[name].type for name in ("Id", "name", "Total", "n")} == {
        "Id": "text",
        "name": "text",
        "Total": "text",
        "n": "int",
    }
    assert shown(rules(**(given | {"salt": "other"})))["name"] != expected
    assert shown(rules(**given), {"name": None})["name"] is None
    assert "pepper" not in repr(rules(**given)) + repr(rules(**given).of(TABLE, {})) + repr(ColumnsConfig.model_validate(given))


def test_rules_stay_with_a_key_column_that_is_renamed() -> None:
    """Nobody can change the rule before the batch that brings the RENAME."""
    columns = {"mail": Column("mail", "partition_key", "text", 0), "at": Column("at", "clustering", "text", 0)}
    former = tuple(Column(name, "partition_key", "text", 0) for name in ("email", "address"))
    table = Table("k", "t", UUID(int=1), columns, former_keys=former)
    schema = Schema(tables={table.id: table})
    for name in ("mail", "email", "address"):
        found = rules(salt="s", **{"column.mask.hash.sha256.with.salt": rf"k\.t\.{name}"})
        assert found.of(table, {}).masks.keys() == {"mail"}
        assert found.unmatched(schema) == []
    # Nothing else can be done with a key, unless such a rule is of another column, which has the name now.
    for key in ("column.exclude.list", "column.mask.with.3.chars", "column.truncate.to.2.chars", "field.exclude.list"):
        assert "mail is part of the primary key" in str(rules(**{key: "k.t.email"}).of(table, {}).rejection_reason())
    again = replace(table, columns={**columns, "email": Column("email", "regular", "text")})
    found = rules(**{"column.exclude.list": "k.t.email"}).of(again, {})
    assert (found.excluded, found.rejection_reason()) == ({"email"}, None)
    assert not rules(salt="s", **{"column.mask.hash.sha256.with.salt": "k.t.at"}).of(table, {}).masks.keys() & {"mail"}


def test_masks_and_cuts() -> None:
    given = rules(**{"column.mask.with.4.chars": "shop.orders.(n|total)", "column.truncate.to.2.chars": "shop.orders.name"})
    found = given.of(TABLE, {})
    assert shown(given) == {**ROW, "n": "****", "Total": "****", "name": "Ad"}
    assert found.shown().columns["n"].type == "text"
    assert found.hidden == {"n", "Total", "name"}


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"column.exclude.list": "shop.orders.id"}, "Id is part of the primary key"),
        ({"column.mask.with.4.chars": "shop.orders.at"}, "at is part of the primary key"),
        ({"column.truncate.to.4.chars": "shop.orders.n"}, "only text can be truncated"),
        ({"rows": {"shop.orders": "nothing == 1"}}, "no column nothing"),
    ],
)
def test_what_a_table_cannot_do(given: dict[str, Any], said: str) -> None:
    assert said in str(rules(**given).of(TABLE, {}).rejection_reason())


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"column.mask.hash.sha256.with.salt": "a"}, "salt"),
        ({"column.mask.hash.rot13.with.salt": "a", "salt": "x"}, "rot13"),
        ({"column.exclude.list": "*.a"}, "not a regular expression"),
        ({"column.exclude.list": "a.b.c", "column.include.list": "a.b.d"}, "exclude each other"),
        ({"column.mask.with.many.chars": "a"}, "not permitted"),
        ({"cuts": {-3: "a.b.c"}}, "a number of characters from 0 to 32767"),
        ({"masks": {"many": "a.b.c"}}, "a number of characters from 0"),
        ({"column.mask.with.100000000000.chars": "a.b.c"}, "a number of characters from 0"),
        ({"rows": {"a.b": "__import__('os')"}}, "is not supported there"),
        ({"rows": {"a.b": "a.b == 1"}}, "is not supported there"),
        ({"rows": {"a.b": "a =="}}, "is not a valid filter"),
    ],
)
def test_what_a_configuration_cannot_say(given: dict[str, Any], said: str) -> None:
    with pytest.raises(ValidationError, match=said):
        ColumnsConfig.model_validate(given)


def test_the_hash_of_a_user_type_outlives_alter_type() -> None:
    """It may be that of a key."""
    mask, hashed = Mask("hash", algorithm="sha256", salt="pepper"), set()
    for fields, kinds in ((("a", "b"), ("int", "text")), (("x", "b"), ("int", "text")), (("a", "b", "c"), ("int", "text", "int"))):
        types = {("shop", "pair"): UserType("shop", "pair", fields, kinds)}
        for kind in ("frozen<pair>", "frozen<list<frozen<pair>>>"):
            pair = {**dict.fromkeys(fields), fields[0]: 7, "b": "x"}
            hashed.add(mask.compiled(parse_type(kind, "shop", types))([pair] if "list" in kind else pair))
    assert len(hashed) == 2
    assert mask.compiled(parse_type("frozen<pair>", "shop", types))(EMPTY) not in hashed


@pytest.mark.parametrize("name", ["sha256", "SHA-512", "sha3-256", "blake2b", "md5"])
def test_hashes_by_name(name: str) -> None:
    mask = Mask("hash", algorithm=algorithm(name), salt="pepper")
    hashed = mask.compiled(parse_type("text", "shop", {}))
    assert [hashed(text) for text in ("ä", "")] == [hmac.new(b"pepper", text.encode(), algorithm(name)).hexdigest() for text in ("ä", "")]


@pytest.mark.parametrize(
    ("text", "holds"),
    [
        ("n == 3", True),
        ("not n == 3", False),
        ("n > 2 and name != 'Bob'", True),
        ("n in (1, 2) or 'x' in tags", True),
        ("n not in [1, 2]", True),
        ("Total == 1.5 and Total > 1 and -1 < n < 4", True),
        ("at >= '1970-01-01T00:00:00.000Z'", True),
        ("Id == '00000000-0000-0000-0000-000000000007'", True),
        ("name is None", False),
        ("name is not None", True),
        ("name > 1", False),
        ("Total > 'x'", False),
        ("-n < -2 and -Total == -1.5", True),
        ("-name < 1", False),
    ],
)
def test_filters(text: str, holds: bool) -> None:
    assert Rules(rows={"shop.orders": text}).of(TABLE, {}).keeps()(ROW) is holds


def test_null_is_neither_this_nor_that() -> None:
    for text in ("n == 3", "n != 3", "n < 3", "n in (3, 4)", "-n < 3"):
        assert not Rules(rows={"shop.orders": text}).of(TABLE, {}).keeps()({**ROW, "n": None})
    assert Rules(rows={"shop.orders": "n is None"}).of(TABLE, {}).keeps()({**ROW, "n": None})
    assert parse_filter(" n is None ").names == {"n"}


PLACE = UserType("shop", "place", ("street", "town"), ("text", "text"))
HOME = UserType("shop", "home", ("at", "since"), ("frozen<place>", "int"))
USERS = {("shop", each.name): each for each in (PLACE, HOME)}
PLACES = replace(
    TABLE,
    columns={
        **TABLE.columns,
        **{
            name: Column(name, "regular", kind)
            for name, kind in {
                "home": "home",
                "all": "list<frozen<place>>",
                "by": "map<text, frozen<home>>",
                "pair": "frozen<tuple<int, place>>",
            }.items()
        },
    },
)
THERE = {"street": "Elm 1", "town": "Ulm"}
LIVES = {"home": {"at": THERE, "since": 3}, "all": [THERE, None], "by": [("x", {"at": THERE, "since": None})], "pair": (1, THERE)}


def test_fields_of_user_types_are_null_by_name() -> None:
    names = "shop.orders.home.at.STREET, Shop.orders.all.street, shop.orders.by.at, shop.orders.pair.town, shop.orders.n"
    found = rules(**{"field.exclude.list": names}).of(PLACES, USERS)
    assert (found.rejection_reason(), found.shown().columns.keys()) == (None, PLACES.columns.keys() - {"n"})
    assert found.hidden == {"home", "all", "by", "pair", "n"}
    hidden = {"street": None, "town": "Ulm"}
    assert found.compiled()({**LIVES, "n": 1}) == {
        "home": {"at": hidden, "since": 3},
        "all": [hidden, None],
        "by": [("x", {"at": None, "since": None})],
        "pair": (1, {"street": "Elm 1", "town": None}),
    }
    assert found.compiled()({"home": None}) == {"home": None}
    # As the cluster has it, it stays.
    assert LIVES["home"]["at"] is THERE
    assert THERE["street"] == "Elm 1"


def test_a_field_that_is_none_is_no_rule() -> None:
    for name, told in (("home.zip", "home has no field zip"), ("n.x", "n has no field x"), ("Id.x", "Id is part of the primary key")):
        assert told in (rules(**{"field.exclude.list": f"shop.orders.{name}"}).of(PLACES, USERS).rejection_reason() or "")
    with pytest.raises(ValidationError, match=r"`orders\.home` is not keyspace\.table\.column"):
        rules(**{"field.exclude.list": "orders.home"})
