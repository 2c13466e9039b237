"""Acknowledged writes, and every T that was published, held against them.

Strategy: each write has a key of its own, so a row in the table or an event in Kafka is proof of it. A T in the
tables is held against the rows as soon as it is seen; later rows could only hide that it came too early. A T in
Kafka is held against the events that the broker has received before the heartbeat.
"""

from __future__ import annotations

import json
import statistics
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from cassandra.cluster import Session
from cassandra.metadata import Murmur3Token
from confluent_kafka import OFFSET_BEGINNING, Consumer, Message, TopicPartition
from pyiceberg.catalog.sql import SqlCatalog

from tools.background import in_background
from writetime.pipeline.documents import Watermark
from writetime.storage import layout
from writetime.storage.store import Store

KEYSPACE, TABLE = "complete", "rows"


@dataclass
class Writes:
    """Writes rows at a constant rate, each once. `acknowledged`: when the node had answered, in s since the
    epoch. `skips`: whether no row with that token is written at the moment."""

    session: Session
    rate: float
    acknowledged: dict[int, float] = field(default_factory=dict)
    skips: Callable[[int], bool] = lambda _: False
    refused: int = 0
    lost: set[int] = field(default_factory=set)
    """Acknowledged, and lost by the ring itself: a killed node had not synced them."""

    @contextmanager
    def running(self) -> Iterator[Writes]:
        with in_background(self._run):
            yield self

    def _run(self, over: threading.Event) -> None:
        insert = self.session.prepare(f"INSERT INTO {KEYSPACE}.{TABLE} (id, text) VALUES (?, ?)")
        number = 0
        while not over.wait(1 / self.rate):
            number += 1
            if self.skips(token(number)):
                continue
            try:
                self.session.execute(insert, (number, f"row {number}"), timeout=5)
            except Exception:  # noqa: BLE001 - a killed node's connections fail in many ways; the row counts as not acknowledged
                self.refused += 1
                continue
            self.acknowledged[number] = time.time()

    def before(self, until: float) -> set[int]:
        return {number for number, at in dict(self.acknowledged).items() if at < until}

    def note_lost(self, killed: float, unsynced: float) -> list[str]:
        """Find out which rows the ring itself has lost; returns what cannot be explained by the kill."""
        there = {row[0] for row in self.session.execute(f"SELECT id FROM {KEYSPACE}.{TABLE}")}
        self.lost = set(self.acknowledged) - there
        other = [number for number in self.lost if not killed - unsynced <= self.acknowledged[number] <= killed + 5]
        return [f"the ring lost {len(other)} rows that were not written just before the kill, as {min(other)}"] if other else []


def token(number: int) -> int:
    """The token of a row's partition."""
    return int(Murmur3Token.hash_fn(number.to_bytes(8, "big", signed=True)))


@dataclass
class Tables:
    """Every T of the tables, when it is published; `behind`: its age (s), by when it was looked at."""

    store: Store
    cluster: str
    catalog: Path
    writes: Writes
    seen: list[float] = field(default_factory=list)
    behind: list[tuple[float, float]] = field(default_factory=list)
    went_back: list[str] = field(default_factory=list)
    missing: list[tuple[float, set[int]]] = field(default_factory=list)
    last: Watermark = field(default_factory=Watermark)

    @contextmanager
    def watched(self) -> Iterator[Tables]:
        with in_background(self._run):
            yield self

    @property
    def until(self) -> float:
        return 0.0 if self.last.until is None else self.last.until.timestamp()

    def _run(self, over: threading.Event) -> None:
        catalog = SqlCatalog("lake", uri=f"sqlite:///{self.catalog}")
        while not over.wait(0.5):
            found = Watermark.read(self.store, layout.complete(self.cluster))
            if found is None or found.until is None:
                continue
            before, self.last = self.until, found
            self.behind.append((time.time(), time.time() - self.until))
            if self.until == before:
                continue
            if self.until < before:
                self.went_back.append(f"T went back from {before:.3f} to {self.until:.3f}")
            self.seen.append(self.until)
            self._hold(catalog, self.until)

    def _hold(self, catalog: SqlCatalog, until: float) -> None:
        wanted = self.writes.before(until)
        rows = catalog.load_table((KEYSPACE, TABLE)).scan(selected_fields=("id",)).to_arrow()
        if missing := wanted - set(rows["id"].to_pylist()):
            self.missing.append((until, missing))

    def troubles(self) -> Iterator[str]:
        yield from self.went_back
        for until, missing in self.missing:
            if late := missing - self.writes.lost:
                yield f"tables: {len(late)} rows acknowledged before T {until:.3f} were missing, as {min(late)}"


@dataclass
class Topics:
    """Events and heartbeats: when the broker's clock says that each was written, in ms."""

    events: dict[int, int] = field(default_factory=dict)
    said: list[tuple[int, int]] = field(default_factory=list)
    """(T, when it was said)."""
    places: dict[int, tuple[int, int]] = field(default_factory=dict)
    """(partition, offset) of each event."""
    markers: list[tuple[int, int, int]] = field(default_factory=list)
    """(T, partition, offset) of each marker in the topic."""

    def troubles(self, writes: Writes) -> Iterator[str]:
        latest = 0
        for until, at in sorted(self.said, key=lambda each: each[1]):
            if until < latest:
                yield f"Kafka: T went back to {until}"
            latest = max(latest, until)
            if late := [number for number in writes.before(until / 1000) - writes.lost if self.events.get(number, at + 1) > at]:
                yield f"Kafka: {len(late)} events of writes acknowledged before T {until} came after the heartbeat, as {min(late)}"
        for until, partition, offset in self.markers:
            places = (self.places.get(number) for number in writes.before(until / 1000) - writes.lost)
            if late_in := [at for there, at in filter(None, places) if there == partition and at > offset]:
                yield f"Kafka: {len(late_in)} events of writes acknowledged before T {until} come after the marker in {partition}, {offset}"

    @contextmanager
    def read(self, bootstrap: str, topic: str, heartbeats: str) -> Iterator[Topics]:
        with in_background(lambda over: self._run(over, bootstrap, topic, heartbeats)):
            try:
                yield self
            finally:
                # Everything that is there.
                time.sleep(3)

    def _run(self, over: threading.Event, bootstrap: str, *topics: str) -> None:
        options = {"bootstrap.servers": bootstrap, "group.id": "proof", "isolation.level": "read_committed", "enable.auto.commit": False}
        consumer = Consumer(options)
        assigned: list[TopicPartition] = []
        while not over.is_set():
            if len({each.topic for each in assigned}) < len(topics):
                listed = consumer.list_topics(timeout=10).topics
                new = [topic for topic in topics if topic in listed and topic not in {each.topic for each in assigned}]
                found = [TopicPartition(topic, partition, OFFSET_BEGINNING) for topic in new for partition in listed[topic].partitions]
                assigned += found
                if found:
                    consumer.incremental_assign(found)
                else:
                    time.sleep(0.5)
            for message in consumer.consume(500, timeout=0.5) if assigned else ():
                if message.error() is None:
                    self._note(message)
        consumer.close()

    def _note(self, message: Message) -> None:
        at, place = message.timestamp()[1], (message.partition() or 0, message.offset() or 0)
        if (record := message.value()) is None:
            found = dict(message.headers() or [])
            if found.get("writetime.op") == b"complete":
                self.markers.append((int(found["writetime.complete_until_ms"] or 0), *place))
            return
        value: dict[str, Any] = json.loads(record)
        if "after" in value:
            self.events.setdefault(value["after"]["id"], at)
            self.places.setdefault(value["after"]["id"], place)
        elif value.get("complete_until_ms") is not None:
            self.said.append((value["complete_until_ms"], at))


def quantiles(ages: list[float]) -> dict[str, float]:
    if len(ages) < 2:
        return {"p50": 0.0, "p95": 0.0, "most": 0.0}
    found = statistics.quantiles(ages, n=100, method="inclusive")
    return {"p50": found[49], "p95": found[94], "most": max(ages)}
