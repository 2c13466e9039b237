"""Problems of a pipeline while no task fails: nodes that are late, short of space or configured to drop
writes, a batch that is stuck, a backlog, unpublished events.

Strategy: everything is read from the bucket, as for `writetime status`. Limits and severities equal those of
the alert rules for Prometheus, for installations without it. Held segments are not reported here: their own
tasks fail."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Final, Literal
from urllib.parse import quote, urlencode

from writetime.config.airflow import WatchConfig
from writetime.events.masking import Rules
from writetime.monitoring.complete_until import CompleteUntil
from writetime.monitoring.durations import span
from writetime.monitoring.nodes import LISTED, NodeStatus, RingStatus
from writetime.monitoring.overview import Overview, overview
from writetime.monitoring.tables import TablesStatus, unmatched_rules
from writetime.pipeline.batch_history import Batches
from writetime.pipeline.planner import read_manifest
from writetime.pipeline.rule_check import HINT
from writetime.pipeline.sessions import SessionState
from writetime.storage import layout

SESSION_SILENT: Final = timedelta(minutes=10)
"""A session reports every 30 s; after a failure the next one starts within 5 minutes."""

NO_RULES: Final = Rules()
Severity = Literal["warning", "critical"]


@dataclass(frozen=True, slots=True)
class Trouble:
    """`key` identifies the problem while it lasts. `text`: what, where, since when, and what to do next.
    `view`: the view of the page that shows it, below the pipeline's path. `table`: the table that it
    concerns, empty if it concerns all."""

    key: str
    text: str
    severity: Severity = "warning"
    view: str = ""
    table: str = ""


def watch(
    batches: Batches,
    limits: WatchConfig,
    *,
    publishes: bool = True,
    session: bool = False,
    rules: Rules = NO_RULES,
    now: datetime | None = None,
) -> list[Trouble]:
    """Problems that exceed the limits now. `publishes`: whether the pipeline publishes events; `session`:
    whether a streaming session has to run; `rules`: what it does not publish."""
    seen = overview(batches, now=now).with_late_nodes(batches)
    return troubles(batches, seen, limits, publishes=publishes, session=session, rules=rules)


def troubles(
    batches: Batches, seen: Overview, limits: WatchConfig, *, publishes: bool, session: bool, rules: Rules = NO_RULES
) -> list[Trouble]:
    """The same by what was read already."""
    found = seen.ring
    of_nodes = [*_late(found, limits), *_short(found, limits), *_unsafe(found), *_unreadable(found)]
    of_nodes += _without_session(seen.session, found) if session else []
    of_nodes += _incomplete(seen.until, found, limits)
    unpublished = _unpublished(seen.tables, found, limits) if publishes else ()
    of_batches = [*_in_conflict(found), *_stuck(batches, found, limits), *_backlog(found, limits)]
    return [*of_nodes, *_unmatched(batches, rules), *_not_in_log(seen.tables, found), *of_batches, *unpublished]


def _unmatched(batches: Batches, rules: Rules) -> Iterator[Trouble]:
    for each in unmatched_rules(batches, rules) or ():
        yield Trouble(
            f"rule {each.key} {each.rule}",
            f"rule without effect: {each} of {batches.cluster}: what it is to hide is published as it is. {HINT}",
            "critical",
        )


def _late(found: RingStatus, limits: WatchConfig) -> Iterator[Trouble]:
    if limits.late_minutes is None:
        return
    fixed = None if limits.late_minutes == "auto" else timedelta(minutes=limits.late_minutes)
    for node in found.nodes:
        if node.node.origin != "log":
            continue
        # A node without a segment in these batches has been silent for at least as long as they cover.
        since = node.newest or found.since
        if since is not None and found.now - since > (fixed or node.late_after):
            text = _late_text(found, node, (found.now - since).total_seconds())
            yield Trouble(f"late {node.node.path}", text, view=_segments_of(node))


def _short(found: RingStatus, limits: WatchConfig) -> Iterator[Trouble]:
    reported = {None: (), "warn": ("warn", "alarm"), "alarm": ("alarm",)}[limits.space]
    for node in found.nodes:
        if (space := node.space) is not None and space.level in reported:
            yield Trouble(
                f"space {node.node.path} {space.level}",
                f"space: node {_name(node)} of {found.cluster}: {space.level} ({space.at:%Y-%m-%d %H:%MZ}): {space.share:.0%} of the "
                f"limit of cdc_raw is used, {space.disk_free / 2**30:.1f} GiB of its disk are free. At 100% Cassandra refuses writes to "
                "captured tables. Check that its shipper keeps up and reaches the store. Delete no segment by hand.",
                "critical" if space.level == "alarm" else "warning",
            )


def _unsafe(found: RingStatus) -> Iterator[Trouble]:
    for node in found.nodes:
        for setting in node.unsafe:
            yield Trouble(
                f"settings {node.node.path} {setting.name}",
                f"settings: node {_name(node)} of {found.cluster}: {setting} Read the captured tables again with cdc_bootstrap if the "
                "node ran with this setting.",
                "critical",
            )


def _segments_of(node: NodeStatus) -> str:
    return "segments?" + urlencode({"node": node.node.host_id})


def _name(node: NodeStatus) -> str:
    name = node.node
    return f"{node.address} ({name.datacenter}, {name.host_id})" if node.address else f"{name.host_id} ({name.datacenter})"


def _late_text(found: RingStatus, node: NodeStatus, age: float) -> str:
    last = f"the newest segment is of {node.newest:%Y-%m-%d %H:%MZ}, {span(age)} ago" if node.newest else f"no segment for {span(age)}"
    return (
        f"late: node {_name(node)} of {found.cluster}: {last}. Check that its shipper runs and that the node receives writes. "
        f"Ingest continues without it; rows that only this node logged are missing. If the node was removed from the cluster, "
        f"delete the objects under {layout.node_documents(node.node)} in the bucket."
    )


def _unreadable(found: RingStatus) -> Iterator[Trouble]:
    for node in found.nodes:
        for version, count in sorted(node.unreadable.items()):
            yield Trouble(
                f"reader {node.node.path} {version}",
                f"waiting for a reader: {count} segments of node {_name(node)} of {found.cluster} have commit log version {version}, "
                "which this release does not know. They stay in the bucket and no batch reads them. Upgrade writetime: the first batch "
                "afterwards reads them, nothing has to be cleared.",
                view=_segments_of(node),
            )


def _in_conflict(found: RingStatus) -> Iterator[Trouble]:
    for name in found.in_conflict:
        yield Trouble(
            f"conflict {name}",
            f"in conflict: different bytes were shipped for {name} of {found.cluster}. No batch reads any of them: their rows are "
            "missing, and no tombstone is purged meanwhile. `writetime conflicts list` shows them; `writetime conflicts keep OBJECT "
            "--reason TEXT` decides.",
            view="segments?" + urlencode({"name": layout.SegmentRef.from_object(name).segment.stem}),
        )


def _without_session(state: SessionState | None, found: RingStatus) -> Iterator[Trouble]:
    if state is not None and found.now - state.updated_at <= SESSION_SILENT:
        return
    last = f"the last one reported at {state.updated_at:%Y-%m-%d %H:%MZ}" if state else "none has reported yet"
    why = f"; it ended: {state.ended}" if state and state.ended else ""
    yield Trouble(
        "session",
        f"session: no streaming session of {found.cluster} runs: {last}{why}. Nothing is ingested or published meanwhile. Check whether "
        "cdc_stream is paused, and the log of its task `session`.",
        "critical",
    )


def _incomplete(until: CompleteUntil | None, found: RingStatus, limits: WatchConfig) -> Iterator[Trouble]:
    if until is None or until.tables is None or limits.complete_minutes is None:
        return
    if found.now - until.tables > timedelta(minutes=limits.complete_minutes):
        yield Trouble(
            "completeness",
            f"completeness: the tables of {found.cluster} are complete up to {until.tables:%Y-%m-%d %H:%M:%S}Z only, "
            f"{span((found.now - until.tables).total_seconds())} ago; {until.reason}. Check that the node and its shipper run. A node that "
            "was removed from the cluster no longer counts once another node says so. docs/runbook.md, `Completeness stands still`.",
        )


def _stuck(batches: Batches, found: RingStatus, limits: WatchConfig) -> Iterator[Trouble]:
    if limits.stuck_minutes is None or found.open_batch is None:
        return
    begun = read_manifest(batches.store, batches.cluster, found.open_batch).created_at
    if found.now - begun > timedelta(minutes=limits.stuck_minutes):
        yield Trouble(
            f"stuck {found.open_batch}",
            f"stuck: batch {found.open_batch} of {found.cluster} was planned {span((found.now - begun).total_seconds())} ago and is not "
            "sealed. Check whether cdc_ingest is paused or failed. Clear its task `ingest`: "
            "the same batch runs again, nothing is duplicated. "
            f"If it cannot be finished: `writetime void {found.open_batch}`.",
            "critical",
            f"batches/{found.open_batch}",
        )


def _backlog(found: RingStatus, limits: WatchConfig) -> Iterator[Trouble]:
    waiting = sum(node.waiting - sum(node.unreadable.values()) for node in found.nodes)
    if limits.backlog_segments is not None and (waiting > limits.backlog_segments or not found.complete):
        count = str(waiting) if found.complete else f"more than {LISTED}"
        yield Trouble(
            "backlog",
            f"backlog: {count} segments of {found.cluster} wait in the bucket: they arrive faster than batches process them. Check that "
            "cdc_ingest runs; more executors make its batches faster.",
            view="segments?state=waiting",
        )


def _not_in_log(about: TablesStatus, found: RingStatus) -> Iterator[Trouble]:
    for name in about.not_in_log:
        yield Trouble(
            f"not in the log {name}",
            f"not in the commit log: {name} in {found.cluster}: {about.missing(name)}. {about.remedy(name)}",
            "critical",
            f"tables#{quote(name)}",
            name,
        )


def _unpublished(about: TablesStatus, found: RingStatus, limits: WatchConfig) -> Iterator[Trouble]:
    if limits.unpublished_batches is None:
        return
    for table in about.tables:
        if table.unpublished > limits.unpublished_batches:
            yield Trouble(
                f"unpublished {table.name}",
                f"unpublished: events of {table.unpublished} batches of {table.name} in {found.cluster} are not in Kafka. Check "
                "whether cdc_publish is paused or failed; its log contains the reason. Other tables continue.",
                view=f"tables#{quote(table.name)}",
                table=table.name,
            )
