"""The same segments in different orders and batches, some of them twice: `python -m proof.orders --orders 20
--seed 1`, or `make orders ORDERS=20`.

Strategy: each order has its own site with the shipped objects of the recorded cluster except the segments.
Each node's log is split into small segments, at different places each time; they arrive shuffled, over
several batches. Some segments that were read before arrive again, and at the end the whole archive is
replayed. In any order, current rows and folded changes must equal the cluster's answers. Starts no Cassandra;
uses the batch job by its entry point only.
"""

from __future__ import annotations

import argparse
import json
import shutil
import sys
import tempfile
from collections import Counter
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from pathlib import Path
from random import Random
from typing import Any

from pyiceberg.exceptions import NoSuchTableError

from spark_jobs import pack_archive
from tests.spark_jobs.pipeline import Pipeline
from tools import verify
from tools.console import say
from writetime.cassandra.commitlog.encode import encode_segment
from writetime.cassandra.commitlog.segment import scan
from writetime.events.naming import to_changes_namespace, to_column
from writetime.pipeline.archiver import archive
from writetime.pipeline.documents import Sealed
from writetime.pipeline.planner import plan_replay
from writetime.storage import layout
from writetime.storage.layout import NodeName, SegmentName, SegmentRef

SEGMENTS = 6
"""Segments that each node's log is cut into."""


@dataclass(frozen=True)
class Segment:
    """A segment of a node: its name in the bucket, its bytes, and when the node completed it."""

    name: str
    data: bytes
    sealed_at: datetime


@dataclass
class Order:
    """The result of one order. `current` and `folded`: rows as JSON by table; `problems` is empty if
    everything holds.
    """

    seed: int
    batches: list[int] = field(default_factory=list)
    again: int = 0
    events: int = 0
    current: dict[str, list[str]] = field(default_factory=dict)
    folded: dict[str, list[str]] = field(default_factory=dict)
    problems: list[str] = field(default_factory=list)

    def __str__(self) -> str:
        rows = sum(map(len, self.current.values()))
        sizes = ", ".join(map(str, self.batches))
        return f"order {self.seed}: batches of {sizes} segments, {self.again} of them again; {self.events} events, {rows} rows"


class Orders:
    """Orders of one recording. All files are under `folder`."""

    def __init__(self, folder: Path, *, segments: int = SEGMENTS) -> None:
        self.folder = folder
        self.segments = segments
        self.shipped = Pipeline.create(folder / "shipped")
        self.shipped.stage()
        self.shipped.ship()
        self._logs = {node.host_id: _log(self.shipped, number) for number, node in enumerate(self.shipped.recording.nodes)}

    def run(self, seed: int, *, most_batches: int = 6, replay: bool = True) -> Order:
        """Process all segments in the order of a seed, in two or more batches, then replay the archive."""
        random = Random(f"{seed} order")
        pipeline, order = self.filled(Pipeline.create(self.folder / f"order-{seed}")), Order(seed)
        segments = list(self.cut(random))
        random.shuffle(segments)
        done: list[Segment] = []
        for group in _groups(random, segments, most_batches):
            again = random.sample(done, min(len(done), random.choice((0, 1, 3))))
            self._take_in(pipeline, order, [*group, *again], len(again))
            done += group
        if replay:
            self._replay(pipeline, order, segments)
        self._compare(pipeline, order)
        shutil.rmtree(pipeline.site.folder)
        return order

    def filled(self, pipeline: Pipeline) -> Pipeline:
        """An empty pipeline with the facts of nodes and schema, without segments."""
        source, target = self.shipped.store, pipeline.store
        for info in source.list(""):
            if not info.name.startswith(layout.incoming_prefix(self.shipped.cluster)):
                target.put(info.name, source.read(info.name), metadata=info.metadata)
        return pipeline

    def cut(self, random: Random) -> Iterator[Segment]:
        """Split every node's log into segments at random places."""
        for host_id, (node, first, sealed_at, bodies) in self._logs.items():
            assert host_id == node.host_id
            cuts = sorted(random.sample(range(1, len(bodies)), self.segments - 1))
            for number, (start, end) in enumerate(zip([0, *cuts], [*cuts, len(bodies)], strict=True)):
                segment = SegmentName(first.id + number, first.version)
                data = encode_segment(segment.id, segment.version, bodies[start:end], per_section=50)
                yield Segment(SegmentRef(node, segment).incoming, data, sealed_at + timedelta(seconds=number))

    def _take_in(self, pipeline: Pipeline, order: Order, segments: list[Segment], again: int) -> None:
        for segment in segments[len(segments) - again :]:
            pipeline.forget(segment.name)
        for segment in segments:
            pipeline.store.put(segment.name, segment.data, metadata={"sealed_at": segment.sealed_at.isoformat()})
        sealed = pipeline.batch()
        order.batches.append(len(segments))
        order.again += again
        self._check(order, sealed, len(segments))

    def _replay(self, pipeline: Pipeline, order: Order, segments: list[Segment]) -> None:
        """Replay the whole packed archive: nothing may change."""
        shelved = pack_archive.run(pipeline.config)
        if (shelved.last.packed.objects, shelved.last.failed) != (len(segments), 0):
            order.problems.append(f"of {len(segments)} segments were packed: {shelved.last}")
        moments = [segment.sealed_at for segment in segments]
        start = min(moments).replace(minute=0, second=0, microsecond=0)
        end = max(moments).replace(minute=0, second=0, microsecond=0) + timedelta(hours=1)
        manifest = plan_replay(pipeline.store, pipeline.cluster, start=start, end=end, now=datetime.now(UTC))
        assert manifest is not None
        assert all(layout.is_packed(segment.object) for segment in manifest.segments)
        sealed = pipeline.run(manifest)
        archive(pipeline.store, pipeline.cluster, sealed.number)
        self._check(order, sealed, len(segments))
        if sealed.events:
            order.problems.append(f"the replay of everything gave {sealed.events} events")

    def _check(self, order: Order, sealed: Sealed, segments: int) -> None:
        order.events += sealed.events
        if len(sealed.segments) != segments:
            order.problems.append(f"batch {sealed.number} took in {len(sealed.segments)} segments of {segments}")
        order.problems += [f"batch {sealed.number}: {outcome.object} has problems" for outcome in sealed.segments if not outcome.ok]
        order.problems += [f"batch {sealed.number}: {account} does not balance" for account in sealed.accounting if not account.balanced]

    def _compare(self, pipeline: Pipeline, order: Order) -> None:
        recording = pipeline.recording
        for keyspace, table in recording.cdc_tables:
            name = f"{keyspace}.{table}"
            rows = rows_of(pipeline, keyspace, table)
            expected = verify.expected_rows(recording, keyspace, table)
            order.problems += verify.differences(name, expected, [verify.as_recorded(row) for row in rows])
            changes = rows_of(pipeline, to_changes_namespace(keyspace), to_column(table))
            values = [{column: value for column, value in row.items() if column not in verify.FACTS} for row in rows]
            order.current[name] = sorted(map(_text, values))
            order.folded[name] = self._folded(order, name, changes)
            if order.current[name] != order.folded[name]:
                surplus = Counter(order.folded[name])
                surplus.subtract(order.current[name])
                order.problems.append(f"{name}: the changes fold to other rows: {[row for row, count in surplus.items() if count][:3]}")

    def _folded(self, order: Order, name: str, changes: list[dict[str, Any]]) -> list[str]:
        """The rows after all changes; each `before` must equal the last `after` of its key."""
        rows: dict[str, Any] = {}
        for change in sorted(changes, key=lambda change: (change["batch"], change["ordinal"])):
            key = _text(change["key"])
            if change["before"] != rows.get(key):
                order.problems.append(f"{name}: ordinal {change['ordinal']} of {key} does not begin as the last one ended")
            rows[key] = change["after"]
        return sorted(_text(row) for row in rows.values() if row is not None)


def rows_of(pipeline: Pipeline, namespace: str, table: str) -> list[dict[str, Any]]:
    """The rows of a table; none if it does not exist, which is reported as missing rows."""
    with suppress(NoSuchTableError):
        return pipeline.rows(namespace, table)
    return []


def _log(pipeline: Pipeline, number: int) -> tuple[NodeName, SegmentName, datetime, list[bytes]]:
    """A node with its first segment's name and time, and every body of its log in order."""
    info = pipeline.node(number)
    node = NodeName(pipeline.cluster, info.datacenter, info.host_id)
    segments = [entry for entry in pipeline.store.list(layout.incoming_prefix(pipeline.cluster)) if f"/{info.host_id}/" in entry.name]
    refs = sorted((SegmentRef.from_object(entry.name).segment, entry.name, entry.metadata["sealed_at"]) for entry in segments)
    scans = [scan(pipeline.store.read(name)) for _, name, _ in refs]
    bodies = [found.body(frame) for found in scans for frame in found.frames]
    return node, refs[0][0], datetime.fromisoformat(refs[0][2]), bodies


def _groups(random: Random, segments: list[Segment], most: int) -> Iterator[list[Segment]]:
    """Batches of random sizes."""
    cuts = sorted(random.sample(range(1, len(segments)), random.randint(1, most - 1)))
    for start, end in zip([0, *cuts], [*cuts, len(segments)], strict=True):
        yield segments[start:end]


def _text(value: Any) -> str:
    return json.dumps(value, sort_keys=True, default=repr)


def different(orders: list[Order]) -> list[str]:
    """Problems of each order, and differences from the first order."""
    problems = [f"order {order.seed}: {problem}" for order in orders for problem in order.problems]
    first = orders[0]
    for order in orders[1:]:
        if (order.current, order.folded) != (first.current, first.folded):
            problems.append(f"order {order.seed} ends with other rows than order {first.seed}")
    return problems


def main(arguments: list[str]) -> int:
    """Run orders and print the results; the exit code."""
    parser = argparse.ArgumentParser(prog="python -m proof.orders", description=__doc__.partition("\n\n")[0])
    parser.add_argument("--orders", type=int, default=20, help="how many orders")
    parser.add_argument("--seed", type=int, default=1, help="seed of the first one; the others follow")
    options = parser.parse_args(arguments)
    found: list[Order] = []
    with tempfile.TemporaryDirectory(prefix="writetime-orders-") as temporary:
        orders = Orders(Path(temporary))
        for seed in range(options.seed, options.seed + options.orders):
            found.append(orders.run(seed))
            say(f"{found[-1]}, {len(found[-1].problems)} problems")
    problems = different(found)
    for problem in problems[:20]:
        say(f"✗ {problem[:1000]}")
    say(f"{len(found)} orders, {len(problems)} problems")
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
