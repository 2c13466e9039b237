"""What is wrong with a pipeline while none of its tasks fails: nodes that are late, short of space or set to drop
writes, a batch that does not end, a backlog, events that stay.

Everything comes from the bucket, as for `writetime status`. The limits are those of the alert rules for Prometheus, for whoever has none.
What a task fails for is not told here again: segments that wait for a person have their red squares.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime, timedelta

from writetime.config.pipeline import WatchConfig
from writetime.monitoring.nodes import LISTED, NodeStatus, RingStatus, ring_with_late_nodes
from writetime.monitoring.status import span
from writetime.monitoring.tables import tables
from writetime.pipeline.batch_history import Batches
from writetime.pipeline.planner import read_manifest
from writetime.storage import layout


@dataclass(frozen=True, slots=True)
class Trouble:
    """`key`: what it is about, the same for as long as it lasts. `text`: what, where, since when, and what to do next."""

    key: str
    text: str


def watch(batches: Batches, limits: WatchConfig, *, publishes: bool = True, now: datetime | None = None) -> list[Trouble]:
    """What is beyond the limits as of now. `publishes`: whether the pipeline sends its events anywhere."""
    found = ring_with_late_nodes(batches, now=now)
    unpublished = _unpublished(batches, limits) if publishes else ()
    of_nodes = [*_late(found, limits), *_short(found, limits), *_unsafe(found, limits)]
    return [*of_nodes, *_in_conflict(found), *_stuck(batches, found, limits), *_backlog(found, limits), *unpublished]


def _late(found: RingStatus, limits: WatchConfig) -> Iterator[Trouble]:
    if limits.late_minutes is None:
        return
    fixed = None if limits.late_minutes == "auto" else timedelta(minutes=limits.late_minutes)
    for node in found.nodes:
        if node.node.origin != "log":
            continue
        # Of a node of which nothing came with these batches it is known only that it has been silent for as long as they go back.
        since = node.newest or found.since
        if since is not None and found.now - since > (fixed or node.late_after):
            yield Trouble(f"late {node.node.path}", _late_text(found, node, (found.now - since).total_seconds()))


def _short(found: RingStatus, limits: WatchConfig) -> Iterator[Trouble]:
    told = {None: (), "warn": ("warn", "alarm"), "alarm": ("alarm",)}[limits.space]
    for node in found.nodes:
        if (space := node.space) is not None and space.level in told:
            yield Trouble(
                f"space {node.node.path} {space.level}",
                f"space: node {_name(node)} of {found.cluster}: {space.level} ({space.at:%Y-%m-%d %H:%MZ}): {space.share:.0%} of what "
                f"cdc_raw may hold is in use, {space.disk_free / 2**30:.1f} GiB of its disk are free. At 100% Cassandra refuses writes to "
                "captured tables. Can its shipper keep up, and reach the store? Delete no segment by hand.",
            )


def _unsafe(found: RingStatus, limits: WatchConfig) -> Iterator[Trouble]:
    if not limits.settings:
        return
    for node in found.nodes:
        for setting in node.unsafe:
            yield Trouble(
                f"settings {node.node.path} {setting.name}",
                f"settings: node {_name(node)} of {found.cluster}: {setting} Read the captured tables again with cdc_bootstrap if it was "
                "like that for some time.",
            )


def _name(node: NodeStatus) -> str:
    name = node.node
    return f"{node.address} ({name.datacenter}, {name.host_id})" if node.address else f"{name.host_id} ({name.datacenter})"


def _late_text(found: RingStatus, node: NodeStatus, age: float) -> str:
    last = (
        f"newest segment that came is of {node.newest:%Y-%m-%d %H:%MZ}, {span(age)} ago" if node.newest else f"no segment for {span(age)}"
    )
    return (
        f"late: node {_name(node)} of {found.cluster}: {last}. Does its shipper run, and is the node written to? Ingest goes on without "
        f"it; rows that only it has are missing. If it has left the ring for good, delete what begins with "
        f"{layout.node_documents(node.node)} in the bucket."
    )


def _in_conflict(found: RingStatus) -> Iterator[Trouble]:
    for name in found.in_conflict:
        yield Trouble(
            f"conflict {name}",
            f"in conflict: the bucket has, or had, other bytes for {name} of {found.cluster}. No batch takes any of them in: their rows "
            "are missing, and no tombstone is purged meanwhile. `writetime conflicts list` shows them; `writetime conflicts keep OBJECT "
            "--reason TEXT` decides.",
        )


def _stuck(batches: Batches, found: RingStatus, limits: WatchConfig) -> Iterator[Trouble]:
    if limits.stuck_minutes is None or found.open_batch is None:
        return
    begun = read_manifest(batches.store, batches.cluster, found.open_batch).created_at
    if found.now - begun > timedelta(minutes=limits.stuck_minutes):
        yield Trouble(
            f"stuck {found.open_batch}",
            f"stuck: batch {found.open_batch} of {found.cluster} was begun {span((found.now - begun).total_seconds())} ago and is not "
            "sealed. Is cdc_ingest paused, or red? Clear its task `ingest`: the very same batch runs again, and nothing is doubled. "
            f"If it cannot be finished: `writetime void {found.open_batch}`.",
        )


def _backlog(found: RingStatus, limits: WatchConfig) -> Iterator[Trouble]:
    waiting = sum(node.waiting for node in found.nodes)
    if limits.backlog_segments is not None and (waiting > limits.backlog_segments or not found.complete):
        count = str(waiting) if found.complete else f"more than {LISTED}"
        yield Trouble(
            "backlog",
            f"backlog: {count} segments of {found.cluster} wait in the bucket: batches take in fewer than come. Does cdc_ingest run? More "
            "executors make its batches faster.",
        )


def _unpublished(batches: Batches, limits: WatchConfig) -> Iterator[Trouble]:
    if limits.unpublished_batches is None:
        return
    for table in tables(batches).tables:
        if table.unpublished > limits.unpublished_batches:
            yield Trouble(
                f"unpublished {table.name}",
                f"unpublished: events of {table.unpublished} batches of {table.name} in {batches.cluster} are not in Kafka. Is cdc_publish "
                "paused, or red? Its log says why this table waits; others go on.",
            )
