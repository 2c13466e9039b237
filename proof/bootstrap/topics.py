"""What an upsert consumer of the topics holds: by the key of each record its last row, and nothing after a
null record or a delete.
"""

from __future__ import annotations

import base64
import json
from typing import Any, Final

from confluent_kafka.admin import AdminClient

from proof.kill_batch.run import committed
from proof.ring.answer import Answer, Row, TableAnswer, key_of, with_numbers
from proof.ring.check import Mismatch, same
from proof.ring.lake import cql_name
from proof.ring.values import Json
from writetime.events import envelope
from writetime.events.naming import to_column

_BLOBS: Final = frozenset(["Odd name"])
_MAPS: Final = frozenset(["m"])
"""The columns of `workload.SCHEMA` that look another way in JSON."""


def check_topics(answer: Answer, bootstrap: str, prefix: str, where: str) -> list[Mismatch]:
    """What differs between the cluster's answer and what a consumer holds."""
    there = AdminClient({"bootstrap.servers": bootstrap}).list_topics(timeout=30).topics
    found = []
    for table in answer.tables:
        topic = envelope.topic(prefix, table.keyspace, table.name)
        held = consumed(bootstrap, topic) if topic in there else {}
        found += compared(table, held, where)
    return found


def records(bootstrap: str, prefix: str, tables: list[TableAnswer]) -> int:
    """How many records the topics have."""
    there = AdminClient({"bootstrap.servers": bootstrap}).list_topics(timeout=30).topics
    topics = {envelope.topic(prefix, table.keyspace, table.name) for table in tables} & set(there)
    return sum(1 for topic in topics for _ in committed(bootstrap, topic))


def consumed(bootstrap: str, topic: str) -> dict[bytes, dict[str, Any]]:
    """The last row of each record key that has one."""
    held: dict[bytes, dict[str, Any]] = {}
    for _, key, value in committed(bootstrap, topic):
        after = None if value is None else json.loads(value)["after"]
        if key is None:
            continue
        if after is None:
            held.pop(key, None)
        else:
            held[key] = after
    return held


def compared(table: TableAnswer, held: dict[bytes, dict[str, Any]], where: str) -> list[Mismatch]:
    rows: dict[str, Row] = {}
    found = []
    for after in held.values():
        values = with_numbers({to_column(name): _value(name, value) for name, value in after.items()}, table.numbers)
        row = Row(key_of(values, table.keys), values)
        if row.key in rows:
            found.append(Mismatch("topic", where, table.label, row.key, "", "one row", "two, under two record keys"))
        rows[row.key] = row
    for key in sorted(table.rows.keys() | rows.keys()):
        ring, ours = table.rows.get(key), rows.get(key)
        if ring is None or ours is None:
            found.append(Mismatch("topic", where, table.label, key, "", ring and ring.values, ours and ours.values))
            continue
        for name in sorted(ring.values.keys() | ours.values.keys()):
            expected, value = ring.values.get(name), ours.values.get(name)
            if not same(expected, value):
                found.append(Mismatch("topic", where, table.label, key, cql_name(name), expected, value))
    return found


def _value(name: str, value: Json) -> Json:
    """A value of an event as `proof.ring.values` has it."""
    if value is None:
        return None
    if name in _BLOBS:
        return base64.b64decode(value).hex()
    if name in _MAPS:
        return [[key, inner] for key, inner in value.items()]
    return value
