"""What is shown of the quarantine, and what must not be."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tests.monitoring import bucket
from tests.storage.memory import MemoryStore
from writetime.cassandra.schema.model import DroppedColumn, Schema
from writetime.events.masking import Rules
from writetime.pipeline.batch_history import Batches
from writetime.pipeline.quarantine.contents import Look, look, look_at
from writetime.pipeline.quarantine.record import list_records, read_record

SECRETS = ("hunter2", "key-7", b"hunter2".hex(" "), b"key-7".hex(" "))


def shown(found: Look) -> str:
    return "\n".join((found.table, found.hidden, *found.lines, *found.hex))


def at(body: bytes, rules: Rules | None = None, *, values: bool = True) -> Look:
    return look_at(body, bucket.learner(), rules or Rules(), version=7, values=values)


def test_records_are_listed_with_their_reasons(batches: Batches) -> None:
    (kept,), following = list_records(batches)
    assert (kept.position, kept.kind, kept.message, kept.batch) == (4711, "MalformedMutation", "<script>boo</script>", 3)
    assert (kept.datacenter, kept.node) == (bucket.NODES[0].datacenter, bucket.NODES[0].host_id)
    assert (kept.segment, following) == (bucket.ref(0, 6).segment.stem, "")
    assert read_record(batches, kept.name) == kept
    assert read_record(batches, "ledger/x.bin") is None
    assert read_record(batches, kept.name.replace("4711", "4712")) is None


def test_pages_follow_each_other() -> None:
    store = MemoryStore()
    for position in range(5):
        stem = bucket.ref(0, 1).quarantined(position, 1)
        store.put(f"{stem}.bin", b"x")
        store.put(f"{stem}.json", b"{}")
    store.put(bucket.ref(0, 1).quarantined(9, 9) + ".json", b"no JSON")
    batches = Batches(store, bucket.CLUSTER)
    found, cursor = list_records(batches, size=3)
    more, end = list_records(batches, size=3, cursor=cursor)
    assert [kept.position for kept in (*found, *more)] == [0, 1, 2, 3, 4]
    assert end == ""
    assert list_records(batches, size=3, cursor="ledger/")[0] == found


def test_values_are_shown_only_if_they_are_asked_for(batches: Batches) -> None:
    (kept,), _ = list_records(batches)
    hidden, asked = (look(batches, kept, bucket.learner(), Rules(), values=values) for values in (False, True))
    assert not [secret for secret in SECRETS if secret in shown(hidden)]
    assert "note  7 bytes" in shown(hidden)
    assert "shop.orders" in shown(hidden)
    assert [secret for secret in SECRETS[:2] if secret in shown(asked)] == list(SECRETS[:2])
    assert len(asked.hex) == 4


@pytest.mark.parametrize(
    "body",
    [
        bucket.mutation(bucket.SECRET),
        bucket.mutation(bucket.ORDERS, bucket.SECRET),
        bucket.mutation(bucket.SECRET, bucket.ORDERS),
        bucket.mutation(bucket.ORDERS, bucket.SECRET)[:-3],
        bucket.mutation(bucket.SECRET)[:-3],
        b"",
        b"\x01",
        b"\xff" * 64 + b"hunter2",
    ],
    ids=["not captured", "one of two", "the other of two", "cut short, two", "cut short", "empty", "one byte", "garbage"],
)
@pytest.mark.parametrize("values", [True, False])
def test_what_is_not_captured_is_never_shown(body: bytes, values: bool) -> None:
    found = at(body, values=values)
    assert found.hidden
    assert (found.lines, found.hex) == ((), ())
    assert not [secret for secret in SECRETS if secret in shown(found)]


def test_what_cannot_be_decoded_of_a_captured_table_is_shown_in_hex() -> None:
    found = at(bucket.mutation(bucket.ORDERS)[:-3])
    assert (found.table, found.hidden, len(found.hex)) == ("shop.orders", "", 4)
    assert at(bucket.mutation(bucket.ORDERS)[:-3], values=False).hex == ()


RULES = {
    "a column is masked": Rules(masks={3: ["shop.orders.note"]}),
    "a column is left out": Rules(exclude=["shop.orders.note"]),
    "a key is hashed": Rules(hashes={"sha256": ["shop.orders.id", "shop.orders.note"]}, salt="pepper"),
    "rows are filtered": Rules(rows={"shop.orders": "note != 'hunter2'"}),
}


@pytest.mark.parametrize("rules", RULES.values(), ids=RULES)
@pytest.mark.parametrize("cut", [0, 3], ids=["whole", "cut short"])
def test_what_the_pipeline_keeps_inside_stays_hidden(rules: Rules, cut: int) -> None:
    body = bucket.mutation(bucket.ORDERS)
    found = at(body[: len(body) - cut], rules)
    assert "hides columns or rows of this table" in found.hidden
    assert found.hex == ()
    assert "hunter2" not in shown(found)
    assert "pepper" not in shown(found)
    assert found.lines


def test_a_column_that_was_dropped_stays_hidden_where_there_are_rules() -> None:
    known = bucket.learner().schema()
    orders = known.tables[bucket.ORDERS]
    dropped = DroppedColumn("note", "regular", "text", 1)
    later = replace(orders, columns={"id": orders.columns["id"]}, dropped_columns={"note": dropped}, cdc=True)

    class Later:
        cdc_ever = frozenset({bucket.ORDERS})

        def schema(self) -> Schema:
            return replace(known, tables={**known.tables, bucket.ORDERS: later})

    body = bucket.mutation(bucket.ORDERS)
    assert "hunter2" in shown(look_at(body, Later(), Rules(), version=7, values=True))
    for cut in (0, 3):
        ruled = look_at(body[: len(body) - cut], Later(), Rules(exclude=["shop.orders.note"]), version=7, values=True)
        assert "hunter2" not in shown(ruled)
        assert ruled.hex == ()


@pytest.mark.parametrize(
    ("kind", "open_"), [("corrupt_frame", True), ("corrupt_section", False), ("torn_tail", False), ("NotASegment", False)]
)
def test_only_single_frames_are_looked_at(kind: str, open_: bool) -> None:
    store = MemoryStore()
    stem = bucket.ref(0, 1).quarantined(1, 1)
    store.put(f"{stem}.bin", b"8 bytes." + bucket.mutation(bucket.ORDERS) + b"crc.")
    store.put(f"{stem}.json", f'{{"kind": "{kind}"}}'.encode())
    batches = Batches(store, bucket.CLUSTER)
    (kept,), _ = list_records(batches)
    found = look(batches, kept, bucket.learner(), Rules(), values=True)
    assert bool(found.hex) == open_
    assert bool(found.hidden) != open_


def test_bytes_that_are_gone_say_so() -> None:
    store = MemoryStore()
    store.put(bucket.ref(0, 1).quarantined(1, 1) + ".json", b'{"kind": "MalformedMutation"}')
    (kept,), _ = list_records(Batches(store, bucket.CLUSTER))
    assert look(Batches(store, bucket.CLUSTER), kept, bucket.learner(), Rules(), values=True).hidden == "its bytes do not exist any more"
