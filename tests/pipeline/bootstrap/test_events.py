"""What a reading has brought is told as such, or not at all."""

from __future__ import annotations

from typing import Any

import pytest

from spark_jobs.stages.typed_events import EventPlan, TypedEvents
from tests.spark_jobs.examples import HOSTS, NOW, ORDERS, SCHEMA, THEN, delete, folded, frame, insert, of_kind, payloads
from writetime.cassandra.merge.row_codec import Engine

READ, LOGGED = 0, 1


def told(rows: list[dict[str, Any]], *, apart: frozenset[bytes] = frozenset()) -> list[dict[str, Any]]:
    """The events as the stream has them; segment 0 was read from the ring."""
    hosts = ["", *HOSTS[1:]]
    plan = EventPlan(SCHEMA, NOW, [f"{host}.log" for host in hosts], hosts, {ORDERS.id.bytes: 3}, read=frozenset({READ}), apart=apart)
    typed = TypedEvents(plan, ORDERS.id)
    return [typed.event(row) for row in of_kind(rows, "event")]


@pytest.mark.parametrize("engine", ["auto", "python"])
def test_a_row_that_only_the_reading_knows_is_read_and_one_that_is_otherwise_is_updated(engine: Engine) -> None:
    rows = [
        frame(insert(ORDERS, 1, {"name": "read"}, 1, timestamp=THEN), segment=READ),
        frame(insert(ORDERS, 2, {"name": "logged"}, 1, timestamp=THEN), segment=LOGGED),
        frame(insert(ORDERS, 3, {"name": "logged"}, 1, timestamp=THEN), segment=LOGGED),
        frame(insert(ORDERS, 3, {"name": "read"}, 1, timestamp=THEN + 1), segment=READ),
    ]
    events = {(event["key"]["id"], event["op"]): event for event in told(folded(rows, engine=engine))}
    assert {key: (event["reason"], event["nodes"]) for key, event in events.items()} == {
        (1, "r"): ("snapshot", []),
        (2, "c"): (None, [HOSTS[LOGGED]]),
        (3, "c"): (None, [HOSTS[LOGGED]]),
        (3, "u"): ("snapshot", []),
    }


@pytest.mark.parametrize("engine", ["auto", "python"])
def test_a_deletion_that_only_the_reading_knows_says_so_if_the_table_is_in_no_log(engine: Engine) -> None:
    rows = [
        frame(insert(ORDERS, 1, {"name": "read"}, 1, timestamp=THEN), segment=LOGGED),
        frame(delete(ORDERS, 1, THEN + 1), segment=READ),
    ]
    found = folded(rows, engine=engine)
    for apart, reason in ((frozenset({ORDERS.id.bytes}), "snapshot"), (frozenset[bytes](), "partition_delete")):
        (event,) = [event for event in told(found, apart=apart) if event["op"] == "d"]
        assert event["reason"] == reason, apart


@pytest.mark.parametrize("engine", ["auto", "python"])
def test_what_is_not_to_be_told_has_no_number_and_is_counted(engine: Engine) -> None:
    rows = [
        frame(insert(ORDERS, 1, {"name": "read"}, 1, timestamp=THEN), segment=READ),
        frame(insert(ORDERS, 2, {"name": "logged"}, 1, timestamp=THEN), segment=LOGGED),
        frame(insert(ORDERS, 3, {"name": "read"}, 1, timestamp=THEN), segment=READ),
        frame(insert(ORDERS, 4, {"name": "logged"}, 1, timestamp=THEN), segment=LOGGED),
    ]
    found = folded(rows, engine=engine, untold=frozenset({READ}))
    numbers: dict[int, list[int | None]] = {READ: [], LOGGED: []}
    for row in of_kind(found, "event"):
        numbers[row["copies"][0]["segment"]].append(row["seq"])
    assert numbers == {READ: [None, None], LOGGED: [0, 1]}
    (account,) = payloads(found, "account")
    assert (account["events"], account["untold"]) == (2, 2)
    assert len(of_kind(found, "record")) == 4
