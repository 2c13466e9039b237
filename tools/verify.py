"""Compares the pipeline's output with the cluster's recorded answers, cell by cell, and reports each
difference.

Strategy: three independent readers: pyiceberg for the tables, a `read_committed` consumer for the events, the
bucket for the batches' documents. The reference is the recording: every row with the writetime and the TTL of
each column, as the cluster returned them at ALL at the end. Knows the pipeline's outputs only, not how they
were produced.
"""

from __future__ import annotations

import base64
import json
import math
from collections import Counter, defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, field
from datetime import UTC, date, datetime
from typing import Any

import numpy as np
import pyarrow as pa
from confluent_kafka import Consumer, KafkaError, TopicPartition
from pyiceberg.catalog.sql import SqlCatalog
from rich.console import Console
from rich.table import Table as Grid

from proof.recording.recording import Recording
from tools.errors import ServiceError
from tools.site import Site
from writetime.cassandra.commitlog.mutation import decode_mutation
from writetime.cassandra.commitlog.segment import scan
from writetime.cassandra.schema.model import Schema
from writetime.events.envelope import place_of
from writetime.events.naming import from_column
from writetime.pipeline.documents import Accounting, Sealed, total
from writetime.pipeline.planner import history, read_schema, read_sealed
from writetime.storage import layout, open_store, segment_object
from writetime.storage.layout import SegmentRef
from writetime.storage.store import Store

TOPIC_PREFIX = "demo"
FACTS = ("_writetime", "_expires_at")
_SHOWN = 3


@dataclass
class Report:
    """The result. `problems` is empty if everything holds."""

    segments: int = 0
    frames: int = 0
    quarantined: int = 0
    accounting: list[Accounting] = field(default_factory=list)
    per_node: dict[str, int] = field(default_factory=dict)
    rows: dict[str, int] = field(default_factory=dict)
    events_by_table: dict[str, int] = field(default_factory=dict)
    event_samples: list[dict[str, Any]] = field(default_factory=list)
    row_samples: dict[str, list[dict[str, Any]]] = field(default_factory=dict)
    problems: list[str] = field(default_factory=list)

    @property
    def events(self) -> int:
        return sum(self.events_by_table.values())

    @property
    def good(self) -> bool:
        return not self.problems


def verify(site: Site, recording: Recording, bootstrap: str, prefix: str = TOPIC_PREFIX) -> Report:
    """Compare tables, events of the topics below `prefix`, and accounts with the recording."""
    store = open_store(site.bucket_url)
    report = Report()
    batches = list(_sealed(store, recording.cluster_name))
    _check_accounts(report, store, recording, batches)
    catalog = SqlCatalog("lake", uri=f"sqlite:///{site.catalog}", **site.lake)
    for keyspace, table in recording.cdc_tables:
        found = catalog.load_table((keyspace, table)).scan().to_arrow()
        rows = found.to_pylist()
        singles = frozenset(column.name for column in found.schema if pa.types.is_float32(column.type))
        name = f"{keyspace}.{table}"
        report.rows[name] = len(rows)
        report.row_samples[name] = rows[:_SHOWN]
        report.problems += differences(name, expected_rows(recording, keyspace, table), [as_recorded(row) for row in rows])
        events = list(consume(bootstrap, f"{prefix}.{name}"))
        report.events_by_table[name] = len(events)
        report.event_samples += events[-1:]
        report.problems += _check_events(name, events, rows, singles)
    for keyspace, table in set(recording.tables) - set(recording.cdc_tables):
        if catalog.table_exists((keyspace, table)):
            report.problems.append(f"{keyspace}.{table} is not captured, but has a table in the warehouse")
    # Segments that a person has added may hold other tables.
    captured = {f"{keyspace}.{table}" for keyspace, table in recording.cdc_tables}
    expected = sum(account.events for sealed in batches for account in sealed.accounting if account.table in captured)
    if report.events != expected:
        report.problems.append(f"the seals count {expected} events, Kafka has {report.events}")
    return report


# --- what the batches say


def _sealed(store: Store, cluster: str) -> Iterator[Sealed]:
    last = history(store, cluster).last
    for number in range(1, last + 1):
        sealed = read_sealed(store, cluster, number)
        if sealed is not None:
            yield sealed


def _check_accounts(report: Report, store: Store, recording: Recording, batches: list[Sealed]) -> None:
    """Every partition update of every replica is accounted for: as many as in the archive, the same from each
    node.
    """
    ingested = [sealed for sealed in batches if sealed.kind == "ingest"]
    report.segments = sum(len(sealed.segments) for sealed in ingested)
    report.frames = sum(outcome.frames for sealed in ingested for outcome in sealed.segments)
    report.quarantined = sum(len(outcome.problems) for sealed in ingested for outcome in sealed.segments)
    accounts: dict[str, list[Accounting]] = defaultdict(list)
    for sealed in ingested:
        for account in sealed.accounting:
            accounts[account.table].append(account)
    captured = {f"{keyspace}.{table}" for keyspace, table in recording.cdc_tables}
    report.accounting = [
        total(found).model_copy(update={"table": name}) for name, found in sorted(accounts.items()) if name in captured
    ] + [total(account for name, found in accounts.items() if name not in captured for account in found)]
    if report.quarantined:
        return  # a repaired segment was read twice: counts of batches and archive differ by design
    report.per_node = _updates_per_node(store, recording, captured, batches[-1].number if batches else 0)
    came_in = sum(account.updates_in for account in report.accounting[:-1])
    if len(set(report.per_node.values())) != 1:
        report.problems.append(f"the replicas' logs hold different numbers of partition updates: {report.per_node}")
    if came_in != sum(report.per_node.values()):
        report.problems.append(f"{came_in} partition updates were accounted for, the archive holds {report.per_node}")


def _updates_per_node(store: Store, recording: Recording, captured: set[str], batch: int) -> dict[str, int]:
    """Partition updates of captured tables in the archived segments, by node address."""

    schema = read_schema(store, recording.cluster_name, batch).schema()
    addresses = {node.host_id: node.address for node in recording.nodes}
    counts: Counter[str] = Counter()
    for info in segment_object.listed(store, f"{layout.ARCHIVE}/"):
        node = addresses[SegmentRef.from_object(info.name).node.host_id]
        counts[node] += _captured_updates(segment_object.read(store, info.name), schema, captured)
    return dict(sorted(counts.items()))


def _captured_updates(buffer: bytes, schema: Schema, captured: set[str]) -> int:
    count = 0
    found = scan(buffer)
    for frame in found.frames:
        mutation = decode_mutation(found.body(frame), schema)
        count += sum(schema.tables[update.table_id].full_name in captured for update in mutation.updates)
    return count


# --- tables


def expected_rows(recording: Recording, keyspace: str, table: str) -> list[dict[str, Any]]:
    """The cluster's rows: values, writetimes (the latest of a collection), expiries (the earliest of a
    collection).
    """
    read_at = recording.read_at(keyspace, table)
    return [
        {
            "values": row["values"],
            "writetime": {name: _of_elements(value, max) for name, value in row["writetime"].items()},
            "expires_at": {name: read_at + _of_elements(value, min) for name, value in row["ttl"].items()},
        }
        for row in recording.answer(keyspace, table)
    ]


def _of_elements(value: Any, pick: Any) -> int:
    return int(pick(item for item in value if item is not None) if isinstance(value, list) else value)


def as_recorded(row: dict[str, Any]) -> dict[str, Any]:
    """A row of the warehouse in the form of the recording."""
    return {
        "values": {from_column(name): _plain(value) for name, value in row.items() if name not in FACTS},
        "writetime": dict(row["_writetime"] or []),
        "expires_at": dict(row["_expires_at"] or []),
    }


def _plain(value: Any) -> Any:
    if isinstance(value, bytes):
        return value.hex()
    if isinstance(value, datetime):
        return value.astimezone(UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
    if isinstance(value, date):
        return value.isoformat()
    if isinstance(value, list):
        pairs = bool(value) and isinstance(value[0], tuple)
        return sorted([_plain(key), _plain(item)] for key, item in value) if pairs else [_plain(item) for item in value]
    return value


def differences(name: str, expected: list[dict[str, Any]], actual: list[dict[str, Any]]) -> list[str]:
    """Rows that only one side has, as text; compared exactly, as JSON."""
    theirs = Counter(json.dumps(row, sort_keys=True) for row in expected)
    ours = Counter(json.dumps(row, sort_keys=True) for row in actual)
    missing = [f"{name}: the ring has, the table has not: {row}" for row in (theirs - ours).elements()]
    surplus = [f"{name}: the table has, the ring has not: {row}" for row in (ours - theirs).elements()]
    return sorted(missing + surplus)


# --- events


def consume(bootstrap: str, topic: str) -> Iterator[dict[str, Any]]:
    """All committed events of a topic with their `key`, in order within a key, without tombstone records."""
    consumer = Consumer(
        {
            "bootstrap.servers": bootstrap,
            "group.id": "writetime-verify",
            "enable.auto.commit": False,
            "isolation.level": "read_committed",
            "enable.partition.eof": True,
        }
    )
    try:
        found = consumer.list_topics(topic, timeout=30).topics[topic]
        if found.error is not None:
            raise ServiceError(f"Failed to read topic {topic}: {found.error}")
        consumer.assign([TopicPartition(topic, partition, 0) for partition in found.partitions])
        open_partitions = set(found.partitions)
        while open_partitions:
            message = consumer.poll(30)
            if message is None:
                raise ServiceError(f"Kafka stopped responding while reading {topic}")
            if (error := message.error()) is not None:
                if error.code() != KafkaError._PARTITION_EOF:
                    raise ServiceError(f"{topic}: {error}")
                open_partitions.discard(message.partition())
            elif (value := message.value()) is not None:
                yield {"key": json.loads(message.key() or b"null"), **json.loads(value)}
    finally:
        consumer.close()


def _check_events(name: str, events: list[dict[str, Any]], rows: list[dict[str, Any]], singles: frozenset[str]) -> list[str]:
    """Each event once, each `before` equal to the last `after` of its key, and the fold equal to the table.
    `singles`: the table's 32-bit floats.
    """
    problems = []
    sequences = Counter(place_of(event) for event in events)
    problems += [f"{name}: event {sequence} came {count} times" for sequence, count in sequences.items() if count > 1]
    folded: dict[str, Any] = {}
    for event in events:
        key = json.dumps(event["key"], sort_keys=True)
        if event["before"] != folded.get(key):
            problems.append(f"{name}: event {place_of(event)} of {key} does not begin where the last one ended")
        folded[key] = event["after"]
    remaining = Counter(json.dumps(after, sort_keys=True) for after in folded.values() if after is not None)
    table = Counter(json.dumps(_as_event(row, singles), sort_keys=True) for row in rows)
    problems += [f"{name}: the events end with a row that the table has not: {row}" for row in (remaining - table).elements()]
    problems += [f"{name}: the table has a row that no event ends with: {row}" for row in (table - remaining).elements()]
    return problems


def _as_event(row: dict[str, Any], singles: frozenset[str]) -> dict[str, Any]:
    """A row of the warehouse in the form of events."""

    def shown(value: Any) -> Any:
        if isinstance(value, bytes):
            return base64.b64encode(value).decode()
        if isinstance(value, list) and value and isinstance(value[0], tuple):
            pairs = [(shown(key), shown(item)) for key, item in value]
            return dict(pairs) if all(isinstance(key, str) for key, _ in value) else [{"key": key, "value": item} for key, item in pairs]
        return [shown(item) for item in value] if isinstance(value, list) else _plain(value)

    def of_column(name: str, value: Any) -> Any:
        # numpy's text of a 32-bit float is the shortest one, as in the events.
        return float(str(np.float32(value))) if name in singles and value is not None and math.isfinite(value) else shown(value)

    return {from_column(name): of_column(name, value) for name, value in row.items() if name not in FACTS}


# --- for people


def show(report: Report) -> None:
    """Print the report as tables, with some events and rows."""
    console = Console(soft_wrap=True, highlight=False, width=max(140, Console().width))
    grid = Grid(title="What went in and what came out", title_justify="left")
    for heading in ("table", "updates in", "duplicate", "superseded", "applied", "not ours", "quarantined", "events", "rows"):
        grid.add_column(heading, justify="left" if heading == "table" else "right")
    for account in report.accounting:
        name = "all others" if account.table == "*" else account.table
        numbers = (account.updates_in, account.duplicate, account.superseded, account.applied, account.not_ours, account.quarantined)
        grid.add_row(name, *map(str, numbers), str(account.events), str(report.rows.get(account.table, "")))
    console.print(grid)
    console.print(f"{report.segments} segments, {report.frames} frames, {report.events} events in Kafka, {report.quarantined} quarantined")
    if report.per_node:
        each = next(iter(report.per_node.values()))
        console.print(f"{len(report.per_node)} × {each} partition updates of captured tables: {report.per_node}")
    for event in report.event_samples:
        console.print(f"event {json.dumps(event, ensure_ascii=False)[:400]} …", markup=False)
    for name, rows in report.row_samples.items():
        for row in rows[:1]:
            console.print(f"row of {name}: {json.dumps(as_recorded(row)['values'], ensure_ascii=False)[:300]} …", markup=False)
    if report.good:
        console.print("Tables and events equal the ring's answer, cell for cell, writetimes and expiries included.")
    for problem in report.problems[:20]:
        console.print(f"✗ {problem[:1000]}", markup=False)
    if len(report.problems) > 20:
        console.print(f"✗ … and {len(report.problems) - 20} more")
