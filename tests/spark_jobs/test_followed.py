"""Schema changes of Cassandra 6.0 in the logs of several nodes, over several batches."""

from __future__ import annotations

from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest

from spark_jobs.ingest import Batch, _schema_places
from tests.cassandra.schema.examples import change, create_keyspace, create_table, deleted_row
from tests.cassandra.schema.test_epochs import SECOND, TABLE, T, create, drop_w, entry, rewrite, version
from writetime.cassandra.commitlog.encode import encode_mutation
from writetime.cassandra.model import Mutation
from writetime.cassandra.schema.history import SchemaLearner
from writetime.cassandra.schema.model import Schema
from writetime.cassandra.schema.system_tables import LOCAL, TABLES
from writetime.storage import layout

Logged = list[tuple[int, Mutation]]
DIGEST = 0xC1B5D0BA_9A44_3F0F_9E33_3F0C2C9C0B3E


class Logs:
    """The rows of a survey."""

    def __init__(self, segments: list[tuple[int, int, Logged]], descriptor: int) -> None:
        self.refs = [reference(host, number, descriptor) for host, number, _ in segments]
        self.found: dict[str, list[Any]] = {"schema": [], "local": []}
        for index, (_, _, mutations) in enumerate(segments):
            # Spark has no order.
            for position, mutation in reversed(mutations):
                kind = "local" if mutation.updates[0].table_id == LOCAL.id else "schema"
                body = encode_mutation(mutation, Schema(tables=TABLES), version=descriptor)
                self.found[kind].append(SimpleNamespace(segment=index, position=position, body=bytearray(body)))

    def rows(self, kind: str, *_: str) -> Iterator[Any]:
        return iter(self.found[kind])


def reference(host: int, number: int, descriptor: int) -> Any:
    node, segment = SimpleNamespace(host_id=str(host)), layout.SegmentName(number, descriptor)
    return SimpleNamespace(node=node, segment=segment)


def learn(learner: SchemaLearner, *segments: tuple[int, int, Logged], descriptor: int = 9) -> dict[str, Any]:
    """A batch with these segments (node, number, mutations): the drops in their logs."""
    logs = Logs(list(segments), descriptor)
    batch = Batch.__new__(Batch)
    batch.manifest = SimpleNamespace(number=1, segments=[SimpleNamespace(ref=ref) for ref in logs.refs])  # type: ignore[assignment]
    logged = batch._follow(logs, learner)  # type: ignore[arg-type]
    for _, each in logged:
        learner.apply_logged(each)
    return dict(_schema_places(logged, learner).drops)


@pytest.mark.parametrize("descriptor", [7, 9])
def test_nodes_whose_clocks_differ(descriptor: int) -> None:
    learner = SchemaLearner()
    segments = [(host, 1, create(T - host * 3600 * SECOND)) for host in (2, 0, 1)]
    assert learn(learner, *segments, descriptor=descriptor) == {}
    assert learner.schema().tables[TABLE.id] == TABLE
    assert {host: followed.epoch for host, followed in learner.followed.items()} == {"0": 5, "1": 5, "2": 5}
    drop: Logged = [(10, entry(6, T + 2 * SECOND)), (11, drop_w(T - 9999 * SECOND)), (12, version(6))]
    restart: Logged = list(enumerate([*rewrite({"t": TABLE}, T + 9999 * SECOND), version(5)], 1))
    learner = SchemaLearner.from_json(learner.to_json())
    assert learn(learner, (1, 900, restart), (0, 2, drop), descriptor=descriptor) == {}
    assert set(learner.schema().tables[TABLE.id].columns) == {"p", "c", "v"}


def test_a_drop_of_which_each_batch_sees_a_half() -> None:
    learner = SchemaLearner()
    learn(learner, (0, 1, [*create(), (9, entry(6, T + 2 * SECOND))]))
    learner = SchemaLearner.from_json(learner.to_json())
    gone = change("k", tables=[deleted_row(("t",), T + 9)], columns=[deleted_row(("t", name), T + 9) for name in TABLE.columns])
    (found,) = learn(learner, (0, 2, [(7, gone)]))["0"]
    assert (found.table_id, found.segment, found.position, found.timestamp) == (TABLE.id, 2, 7, T + 2 * SECOND)
    assert learner.schema().tables[TABLE.id].dropped_at == T + 2 * SECOND


def test_logs_of_5_0_are_not_ordered_by_epoch() -> None:
    learner = SchemaLearner()
    mutations = [create_keyspace("k", T), version(DIGEST), create_table(TABLE, T + 1), version(DIGEST)]
    assert learn(learner, (0, 1, list(enumerate(mutations))), descriptor=8) == {}
    assert learner.schema().tables[TABLE.id] == TABLE
    assert (learner.followed, '"times"' in learner.to_json()) == ({}, False)
