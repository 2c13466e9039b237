"""Names in Avro, Spark and Iceberg, and Kafka: reversible, injective, valid; plain ones stay."""

from __future__ import annotations

import re
import unicodedata
from collections import defaultdict
from collections.abc import Callable
from uuid import UUID

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from spark_jobs.sinks.kafka import clashes
from tests.examples import examples
from writetime.errors import SchemaError
from writetime.events.naming import (
    MAX_FOLDER,
    MAX_TOPIC,
    OWN_NAMESPACE,
    from_avro,
    from_column,
    from_topic,
    is_shadow_name,
    namespace_clash,
    to_avro,
    to_changes_namespace,
    to_column,
    to_namespace,
    to_table,
    to_topic,
    topic_clashes,
)
from writetime.storage.layout import table_folder

NAMES = (
    st.text(max_size=12)
    | st.text("_x0123456789abcdefAZ", max_size=12)
    | st.binary(max_size=8).map(lambda raw: raw.decode("utf-8", "surrogateescape"))
)
PLAIN = st.from_regex(r"[a-z][a-z0-9_]*", fullmatch=True)
ALLOWED = {to_avro: re.compile(r"[A-Za-z_][A-Za-z0-9_]*"), to_column: re.compile(r"\w+")}
BACK = {to_avro: from_avro, to_column: from_column}
To = Callable[[str], str]


def part(name: str) -> str:
    return to_topic("p", "k", name).removeprefix("p.k.")


def from_part(name: str) -> str:
    if "." in name:
        raise SchemaError("more than one part")
    return from_topic(f"p.k.{name}")[2]


ALLOWED[part] = re.compile(r"[a-zA-Z0-9_-]+")
BACK[part] = from_part
HOUSES = pytest.mark.parametrize("to", list(ALLOWED), ids=lambda to: to.__name__)


@pytest.mark.parametrize(
    ("name", "avro", "column", "topic"),
    [
        ("order_id", "order_id", "order_id", "order_id"),
        ("tax_x1_value", "tax_x1_value", "tax_x1_value", "tax_x1_value"),
        ("Name", "Name", "__x4e_ame", "Name"),
        ("a.b c", "_a_x2e_b_x20_c", "_a_x2e_b_x20_c", "_a_x2e_b_x20_c"),
        ("größe", "_gr_xf6__xdf_e", "größe", "_gr_xf6__xdf_e"),
        ("with`tick", "_with_x60_tick", "_with_x60_tick", "_with_x60_tick"),
        ("1st", "_1st", "_1st", "1st"),
        ("a-b", "_a_x2d_b", "_a_x2d_b", "a-b"),
        ("_ttl", "__ttl", "__ttl", "__ttl"),
        ("", "_", "_", "_"),
        ("木", "__x6728_", "木", "__x6728_"),
        ("\udcff", "__xdcff_", "__xdcff_", "__xdcff_"),
        ("_x41_", "__x5f_x41_", "__x5f_x41_", "__x5f_x41_"),
        ("_x4ü", "__x5f_x4_xfc_", "__x4ü", "__x5f_x4_xfc_"),
        ("-1", "__x2d_1", "__x2d_1", "-1"),
    ],
)
def test_names(name: str, avro: str, column: str, topic: str) -> None:
    assert (to_avro(name), to_column(name), part(name)) == (avro, column, topic)


@HOUSES
@settings(max_examples=examples(400))
@given(NAMES)
@example("_x_xfc_")
@example("_xffffff_")
@example("__x5f_")
def test_reversible_and_valid(to: To, name: str) -> None:
    assert BACK[to](to(name)) == name
    assert ALLOWED[to].fullmatch(to(name))


@HOUSES
@settings(max_examples=examples(400))
@given(NAMES)
def test_what_stands_for_a_name_stands_for_no_other(to: To, name: str) -> None:
    """Injective from the other side: whatever can be read is what is written."""
    try:
        found = BACK[to](name)
    except SchemaError:
        return
    assert to(found) == name


@HOUSES
@given(PLAIN)
def test_plain_names_stay(to: To, name: str) -> None:
    assert to(name) == name


@given(NAMES, NAMES)
@example("Name", "name")
@example("ı", "I")
@example("K", "k")
def test_columns_never_meet_whatever_the_case(one: str, other: str) -> None:
    assert (_folded(to_column(one)) == _folded(to_column(other))) == (one == other)


@given(st.lists(NAMES | st.from_regex(r"[a-z]{0,3}_{0,3}(__changes){0,2}_{0,3}", fullmatch=True), min_size=2, max_size=2, unique=True))
@example(["shop", "shop__changes"])
@example(["a.b", "a_x2e_b__changes"])
@example(["shop__changes", "shop__changes_"])
def test_no_keyspace_meets_another_or_anybodys_changes(keyspaces: list[str]) -> None:
    named = [to(keyspace) for keyspace in keyspaces for to in (to_namespace, to_changes_namespace)]
    assert len(set(named)) == 4


def test_namespaces() -> None:
    assert [to_namespace(name) for name in ("shop", "Shop", "a__changes")] == ["shop", "__x53_hop", "a__changes_"]
    assert to_changes_namespace("Shop") == "__x53_hop__changes"
    with pytest.raises(SchemaError):
        from_column(OWN_NAMESPACE)
    assert not OWN_NAMESPACE.endswith("__changes")


LONGEST = "U" * 48
"""CQL allows no longer name of a keyspace or a table before 6.0, where a table may have 222 characters."""


@pytest.mark.parametrize("name", [LONGEST, "Ü" * 48, "A" * 222, "a" * 222, LONGEST[:-1] + "V"])
def test_long_names_fit_a_folder(name: str) -> None:
    """Iceberg adds a UUID, and a table that was created anew its id."""
    assert len(f"{to_table(name)}__01234567-{UUID(int=0)}".encode()) <= 255
    assert len(to_changes_namespace(name, "a_shadow_of_thirty_characters_").encode()) <= 255
    assert len(table_folder(name, name).encode()) <= 255


@given(NAMES | st.text("Aa_U", min_size=30, max_size=60), NAMES | st.text("Aa_U", min_size=30, max_size=60))
def test_names_of_tables_stay_distinct(one: str, other: str) -> None:
    assert (to_table(one) == to_table(other)) == (one == other)
    assert (to_namespace(one) == to_namespace(other)) == (one == other)
    assert to_table(one) == to_column(one) or len(to_column(one).encode()) > MAX_FOLDER
    if to_table(one) != to_column(one):
        with pytest.raises(SchemaError):
            from_column(to_table(one))


@given(st.text("Aa_U%~é", max_size=300), st.text("Aa_U%~é", max_size=300))
def test_folders_of_tables_stay_distinct(one: str, other: str) -> None:
    assert (table_folder("k", one) == table_folder("k", other)) == (one == other)
    assert len(table_folder(one, other).encode()) <= 255


HIDDEN = ["_file", "_pos", "_deleted", "_spec_id", "_partition", "_change_type", "_change_ordinal", "_commit_snapshot_id", "_row_id"]
HIDDEN += ["_last_updated_sequence_number", "_metadata", "_writetime", "_expires_at", "_op"]


@pytest.mark.parametrize("hidden", HIDDEN)
def test_no_column_is_called_as_one_of_icebergs_sparks_or_our_own(hidden: str) -> None:
    with pytest.raises(SchemaError):
        from_column(hidden)


def test_iceberg_takes_every_column_as_it_is() -> None:
    """Iceberg writes what Java holds for neither letter nor digit as `_x<HEX>` in Parquet: "a①" there would
    meet a_x2460."""
    kept = {unicodedata.category(c) for c in map(chr, range(0x20000)) if to_column(f"a{c}") == f"a{c}" and c != "_"}
    assert kept == {"Ll", "Lm", "Lo", "Lu", "Nd"}


def test_no_two_characters_of_columns_are_one_letter() -> None:
    """Over the two planes of Unicode that have letters with cases, as Java's equalsIgnoreCase and toLowerCase
    see it."""
    stay = [c for c in map(chr, range(0x20000)) if to_column(f"a{c}") == f"a{c}"]
    assert len(stay) > 40_000
    for fold in (_one_letter, str.lower):
        groups = defaultdict(list)
        for c in stay:
            groups[fold(c)].append(c)
        assert [group for group in groups.values() if len(group) > 1] == []


def _one_letter(c: str) -> str:
    upper = c.upper()
    lower = (upper if len(upper) == 1 else c).lower()
    return lower if len(lower) == 1 else c


def _folded(name: str) -> str:
    return "".join(map(_one_letter, name)).lower()


@pytest.mark.parametrize("name", ["_", "_a", "a b", "__x61_", "__x41__x", "_xffffff_", "__x0041_", "1a", "ü.", "é"])
def test_what_is_no_name_of_ours(name: str) -> None:
    if name == "_":
        assert from_avro(name) == ""
        return
    with pytest.raises(SchemaError):
        from_avro(name)


@given(st.from_regex(r"[a-zA-Z0-9._-]{1,20}", fullmatch=True), NAMES, NAMES)
def test_topics(prefix: str, keyspace: str, table: str) -> None:
    topic = to_topic(prefix, keyspace, table)
    assert from_topic(topic) == (prefix, keyspace, table)
    assert re.fullmatch(r"[a-zA-Z0-9._-]{1,249}", topic)


@pytest.mark.advice("Use a shorter topic prefix.", "Use letters, digits, `.`, `_`, `-`.")
def test_topics_that_kafka_would_not_take() -> None:
    assert len(to_topic("p", "k", "t" * (MAX_TOPIC - 4))) == MAX_TOPIC
    for prefix, table in (("p", "t" * (MAX_TOPIC - 3)), ("p q", "t"), ("", "t")):
        with pytest.raises(SchemaError):
            to_topic(prefix, "k", table)
    with pytest.raises(SchemaError):
        to_topic("prefix", "k", "t" * (MAX_TOPIC - 4))
    assert to_topic("p_q", "k", "t") == "p_q.k.t"
    for topic in ("orders", "shop.orders", "p q.shop.orders", "p.shop.ü", "p.k." + "t" * MAX_TOPIC):
        with pytest.raises(SchemaError):
            from_topic(topic)


def test_topics_that_kafka_takes_for_one() -> None:
    clash = [to_topic("cdc", "shop", "eu_orders"), to_topic("cdc", "shop_eu", "orders")]
    assert clash[0] != clash[1]
    assert topic_clashes([*clash, "cdc.shop.orders"]) == [sorted(clash)]
    assert topic_clashes(["cdc.shop.orders", "cdc.shop.orders"]) == []
    refused = clashes(clash[:1], [clash[1], "cdc.shop.orders"])
    assert list(refused) == [clash[1]]
    assert "cdc.shop.eu_orders and cdc.shop_eu.orders" in str(refused[clash[1]])
    assert sorted(clashes([], clash)) == sorted(clash)
    # What is there already is Kafka's business.
    assert clashes(clash, [*clash, "cdc.shop.orders"]) == {}


@pytest.mark.parametrize(
    ("keyspaces", "shadow", "clash"), [({"shop", "shop_x"}, "x", None), ({"shop", "shop__x"}, "x", "shop__x"), ({"shop__x"}, "x", None)]
)
def test_a_keyspace_that_is_called_as_replays_of_another_one(keyspaces: set[str], shadow: str, clash: str | None) -> None:
    assert namespace_clash(keyspaces, shadow) == clash


@given(
    st.lists(st.sampled_from(("a", "a_", "a__b", "_", "x__changes", "X")), min_size=2, max_size=2),
    st.lists(st.from_regex(r"[a-z_]{1,6}", fullmatch=True).filter(is_shadow_name), min_size=2, max_size=2),
)
def test_no_two_replays_share_a_namespace(keyspaces: list[str], besides: list[str]) -> None:
    pairs = set(zip(keyspaces, besides, strict=True))
    made = {
        namespace for keyspace, shadow in pairs for namespace in (to_namespace(keyspace, shadow), to_changes_namespace(keyspace, shadow))
    }
    assert len(made) == 2 * len(pairs)
