"""A bucket as a pipeline leaves it after some batches: documents, ledger, archive, quarantine. No segment in
it has real contents."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from uuid import UUID

from tests.node_objects import status_of
from writetime.cassandra.commitlog.encode import encode_mutation
from writetime.cassandra.model import Cell, Liveness, Mutation, PartitionUpdate, Row
from writetime.cassandra.schema.history import SchemaLearner
from writetime.pipeline.documents import (
    Accounting,
    LedgerEntry,
    Manifest,
    Mark,
    Problem,
    Sealed,
    SegmentInput,
    SegmentOutcome,
    StageCost,
    TableFiles,
    Totals,
    WarehouseFiles,
)
from writetime.pipeline.publish_progress import Published
from writetime.storage import layout

CLUSTER = "Prod <1>"
START = datetime(2026, 5, 4, 12, 0, tzinfo=UTC)
NODES = tuple(
    layout.NodeName(CLUSTER, dc, f"{number:08d}-0000-4000-8000-000000000000") for dc, number in (("dc1", 1), ("dc1", 2), ("dc2", 3))
)
TABLES = ("shop.orders", "shop.customers", 'shop."<b>X</b>"')
ORDERS, SECRET = UUID(int=7), UUID(int=9)
Put = Callable[[str, bytes], object]
"""Writes an object; metadata are of no interest to it."""


def ref(node: int, number: int) -> layout.SegmentRef:
    return layout.SegmentRef(NODES[node], layout.SegmentName(1_777_890_000_000 + number, 7))


def minute(number: float) -> datetime:
    return START + timedelta(minutes=number)


def learner() -> SchemaLearner:
    """`shop.orders` is captured, `vault.keys` is not."""
    known = SchemaLearner()
    known.apply_snapshot(
        {
            "keyspaces": [_row(k, durable_writes=True, replication={"class": "SimpleStrategy"}) for k in ("shop", "vault")],
            "tables": [_row("shop", "orders", id=str(ORDERS), cdc=True), _row("vault", "keys", id=str(SECRET), cdc=False)],
            "columns": [
                _row(k, t, column_name=c, kind=kind, type="text", position=position, clustering_order="none")
                for k, t in (("shop", "orders"), ("vault", "keys"))
                for c, kind, position in (("id", "partition_key", 0), ("note", "regular", -1))
            ],
        }
    )
    return known


def _row(keyspace: str, table: str | None = None, **values: object) -> dict[str, object]:
    return {"keyspace_name": keyspace, **({"table_name": table} if table else {}), **values, "writetime": 1}


def mutation(*tables: UUID, note: bytes = b"hunter2") -> bytes:
    row = Row((), Liveness(1_777_894_199_123_456), cells=(Cell("note", 1_777_894_199_123_456, note),))
    return encode_mutation(Mutation(tuple(PartitionUpdate(table, b"key-7", rows=(row,)) for table in tables)), learner().schema())


class Builder:
    """Writes batches of `per_node` segments a node, one a minute; each has been archived, but for one that
    batch 3 has quarantined."""

    def __init__(self, put: Put, *, per_node: int = 2, bad: bool = True) -> None:
        self.put = put
        self.per_node = per_node
        self.bad = bad
        self.held: list[str] = []
        self.totals = Totals()

    def batch(self, number: int) -> None:
        segments = [
            (ref(node, number * self.per_node + index), minute(number + index / self.per_node))
            for node in range(len(NODES))
            for index in range(self.per_node)
            if (node, number) != (1, 2)
        ]
        inputs = [SegmentInput(object=r.incoming, generation=1, size=1000 + number, crc32c=5, sealed_at=at) for r, at in segments]
        outcomes = [SegmentOutcome(object=each.object, frames=10 * number, updates=10 * number) for each in inputs]
        if self.bad and number == 3:
            outcomes[0] = outcomes[0].model_copy(update={"problems": [self._quarantine(segments[0][0])]})
            self.held.append(outcomes[0].object)
        at, accounting = minute(number + 2), list(_accounts(number))
        self.totals = self.totals.and_of("ingest", inputs, outcomes, accounting, _costs(number))
        manifest = Manifest(
            number=number, kind="ingest", cluster=CLUSTER, created_at=at, now=int(at.timestamp()), base=number - 1, segments=inputs
        )
        sealed = Sealed(
            number=number,
            kind="ingest",
            sealed_at=at + timedelta(seconds=20),
            segments=outcomes,
            accounting=accounting,
            state={},
            held=self.held,
            growing={ref(2, 10**6).growing: Mark(position=4096, logical=4096, frames=3)},
            rows={"shop.orders": 1000 * number},
            files={"shop.orders": _files(number)},
            totals=self.totals,
            events=number * 10,
        )
        self._write(number, "manifest", manifest.to_bytes())
        self._write(number, "schema", learner().to_json().encode())
        self._write(number, "sealed", sealed.to_bytes())
        for each, outcome in zip(inputs, outcomes, strict=True):
            self._settle(number, each, outcome)

    def around(self, last: int) -> None:
        """What lies beside the batches."""
        for node, fact in zip(
            NODES, ({"address": "10.0.0.1", "release_version": "5.0.6", "tokens": ["1"]}, {}, {"rack": "r<1>"}), strict=True
        ):
            self.put(status_of(node), json.dumps({"host_id": node.host_id, **fact}).encode())
        self.put(layout.published(CLUSTER), Published(batch=last - 1, events=1).to_bytes())
        self.put(ref(0, 10**6).incoming, b"not taken in yet")
        growing = SegmentInput(object=ref(2, 10**6).growing, generation=1, size=4096, crc32c=5, sealed_at=minute(last))
        self._note(last, growing, "growing", SegmentOutcome(object=growing.object, frames=3), None)

    def _write(self, number: int, what: str, document: bytes) -> None:
        self.put(layout.batch_object(CLUSTER, number, what), document)

    def _settle(self, number: int, segment: SegmentInput, outcome: SegmentOutcome) -> None:
        if outcome.problems:
            self.put(segment.object, b"damaged")
            self._note(number, segment, "quarantined", outcome, None)
            return
        target = segment.ref.archived(segment.sealed_at)
        self.put(target, segment.sealed_at.isoformat().encode())
        self._note(number, segment, "archived", outcome, target)

    def _note(self, number: int, segment: SegmentInput, state: str, outcome: SegmentOutcome, target: str | None) -> None:
        entry = LedgerEntry.model_validate(
            {
                "object": segment.object,
                "state": state,
                "size": segment.size,
                "crc32c": segment.crc32c,
                "sealed_at": segment.sealed_at,
                "batch": number,
                "frames": outcome.frames,
                "problems": outcome.problems,
                "archived_as": target,
                "updated_at": minute(number + 3),
            }
        )
        self.put(segment.ref.ledger, entry.to_bytes())

    def _quarantine(self, of: layout.SegmentRef) -> Problem:
        body = mutation(ORDERS)
        stem = of.quarantined(4711, len(body))
        problem = Problem(
            kind="MalformedMutation", position=4711, size=len(body), message="<script>boo</script>", quarantined_as=f"{stem}.bin"
        )
        self.put(f"{stem}.bin", body)
        self.put(f"{stem}.json", json.dumps({**problem.model_dump(), "batch": 3, "object": of.incoming}).encode())
        return problem


def _costs(number: int) -> list[StageCost]:
    return [
        StageCost(stage="scan", cpu_seconds=2.5, requests=12, objects=6, bytes=1000),
        StageCost(stage="merge", cpu_seconds=0.5),
        StageCost(stage="changes", table="shop.orders", cpu_seconds=0.25, requests=2, objects=1, bytes=10 * number),
    ]


def _files(number: int) -> WarehouseFiles:
    return WarehouseFiles(
        current=TableFiles(data=number, deletes=2 * number, bytes=300 * number), changes=TableFiles(data=3 * number, deletes=0, bytes=5)
    )


def _accounts(number: int) -> Iterator[Accounting]:
    for index, table in enumerate(TABLES[: 3 if number % 2 else 2]):
        updates = 30 * (index + 1)
        yield Accounting(table=table, updates_in=updates, applied=updates // 3, duplicate=updates - updates // 3, events=10 * (index + 1))


def small(folder: Path, batches: int = 8) -> None:
    """A small pipeline's bucket in a folder; `sealed_at` is in the objects' metadata, as the shipper notes
    it."""
    from writetime.storage.local import LocalStore

    store = LocalStore(folder)

    def put(name: str, data: bytes) -> None:
        noted = {"sealed_at": data.decode()} if name.startswith("cdc_archive/") else None
        store.put(name, data, metadata=noted)

    builder = Builder(put)
    for number in range(1, batches + 1):
        builder.batch(number)
    builder.around(batches)
