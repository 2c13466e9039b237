"""Metrics of a pipeline in Prometheus' text format, read from its bucket: the command `writetime metrics`.

Strategy: only the shipper is a long-running process, so there is no HTTP endpoint to scrape. A cron job
writes the text to the folder of node_exporter's textfile collector, or pushes it. All values come from the
bucket, so it can run anywhere. Counters are sums that each seal carries on from the one before: they need no
memory here, and restart at zero where a rebuild begins a new chain of batches, as counters may. `METRICS`
lists all names; the dashboard and rules under deploy/ use only these and the shipper's own. Heavy imports are
delayed until the command runs."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from datetime import datetime
from typing import TYPE_CHECKING, Final, TypeVar

if TYPE_CHECKING:
    from writetime.events.masking import Rules
    from writetime.monitoring.nodes import RingStatus
    from writetime.monitoring.tables import TablesStatus
    from writetime.pipeline.batch_history import Batches
    from writetime.pipeline.documents import Document
    from writetime.storage.store import Store

Report = TypeVar("Report", bound="Document")
Sample = tuple[str, dict[str, str], float]

METRICS: Final[Mapping[str, str]] = {
    "writetime_metrics_timestamp_seconds": "When these metrics were read from the bucket. Old if `writetime metrics` does not run.",
    "writetime_batch_number": "Number of the last sealed batch.",
    "writetime_batch_sealed_timestamp_seconds": "When it was sealed.",
    "writetime_batch_open": "1 while a batch is open.",
    "writetime_session_timestamp_seconds": "In mode `session`: when the streaming session last reported; 0: never.",
    "writetime_complete_until_timestamp_seconds": 'Up to when all tables (`in="tables"`) and topics (`in="topics"`) are complete.',
    "writetime_node_complete_until_timestamp_seconds": "By node: up to when its log is in; 0: it has not signed anything off yet.",
    "writetime_batches_total": "Sealed batches by kind.",
    "writetime_batches_voided_total": "Voided batches.",
    "writetime_segments_total": "Segments that batches read; a growing one counts with each batch that reads parts of it.",
    "writetime_segment_bytes_total": "Their bytes.",
    "writetime_problems_total": "Frames and damaged ranges of segments that batches could not use.",
    "writetime_updates_total": "Partition updates by table and class (applied, duplicate, superseded, …).",
    "writetime_events_total": "Change events by table.",
    "writetime_ties_total": "Cells by table that won a tie which a cluster of Cassandra 3.11 may resolve differently.",
    "writetime_published_events_total": "By table: change events that are known to be in Kafka.",
    "writetime_cost_cpu_seconds_total": "CPU seconds of batches, by stage and the table it worked for; no table: for several.",
    "writetime_cost_requests_total": "Requests to the store, likewise.",
    "writetime_cost_objects_total": "Objects read or written, likewise.",
    "writetime_cost_bytes_total": "Their bytes.",
    "writetime_voided_batches": "Batches that were voided, of the last sixty.",
    "writetime_batch_segments": "Segments of the last batch.",
    "writetime_batch_events": "Change events of the last batch.",
    "writetime_batch_updates": "Partition updates of the last batch by table and class.",
    "writetime_batch_ties": "Ties of the last batch by table.",
    "writetime_batch_problems": "Frames and damaged ranges that the last batch could not use.",
    "writetime_batch_limit_bytes": "Bytes of segments that the next batch may take in, by what the last ones took (`batch_seconds`).",
    "writetime_batch_run_seconds": "Seconds of the run that sealed the last batch that was nearly as large as it could be.",
    "writetime_held_segments": "Segments in quarantine that need an operator.",
    "writetime_segments_in_conflict": "Segments for which different bytes were shipped, until an operator decides.",
    "writetime_refused_tables": "Rejected tables.",
    "writetime_unmatched_rules": "Rules of `columns` that fit no column or table that is or was there, so that they hide nothing.",
    "writetime_not_in_log_tables": "Captured tables whose writes are in no segment, and that are not read from the cluster in time.",
    "writetime_purge_held_back_seconds": "By table: delay of the purge of its tombstones, because a log is incomplete (`by`).",
    "writetime_table_files": 'By table, of its current rows (`in="current"`) and its changes (`in="changes"`): data files.',
    "writetime_table_delete_files": "Delete files, likewise.",
    "writetime_table_bytes": "Bytes of both, likewise.",
    "writetime_published_batch": "The last batch whose events are known to be in Kafka.",
    "writetime_unpublished_batches": "By table: sealed batches with unpublished events, of the last sixty.",
    "writetime_waiting_tables": "Tables whose events cannot be published.",
    "writetime_bigquery_failing_since_timestamp_seconds": "By external table of BigQuery that shows an old snapshot: since when.",
    "writetime_source_timestamp_seconds": "By node: completion time of its newest segment in the bucket.",
    "writetime_position_segment_id": "By node: the newest segment that batches have read, by the number in its file name.",
    "writetime_position_bytes": "By node: how far into that file.",
    "writetime_late_after_seconds": "By node: age at which its newest segment counts as late, by its rate and cdc_total_space.",
    "writetime_waiting_segments": "By node: its segments in the bucket that no batch has read.",
    "writetime_waiting_bytes": "Their bytes.",
    "writetime_unreadable_segments": "By node and commit log version: waiting segments that only a later release of writetime can read.",
    "writetime_growing_segments": "By node: its growing segments with parts in the bucket.",
    "writetime_verify_finished_timestamp_seconds": "When cdc_verify last finished.",
    "writetime_verify_drift_rows": "By table: rows that differ from the cluster, by the last comparison of each token range.",
    "writetime_verify_complete_timestamp_seconds": "By table: when all of it was last compared with the cluster; 0: never.",
    "writetime_verify_unsettled_rows": "Rows that differed in the last report, but may be in flight.",
    "writetime_verify_tie_rows": "Rows that differed in the last report because Cassandra 3.11 resolves a tie by its clock.",
    "writetime_verify_failed_tables": "Tables whose last comparison failed.",
    "writetime_bootstrap_started_timestamp_seconds": "By table: start of its last bootstrap run.",
    "writetime_bootstrap_finished_timestamp_seconds": "By table: end of the run; 0: it is not finished.",
    "writetime_bootstrap_duration_seconds": "From its start to its end, or to its last report.",
    "writetime_bootstrap_aborted": "1 if the run is not finished and nothing reads: it failed, or has been silent for ten minutes.",
    "writetime_bootstrap_remaining_ranges": "Unfinished token ranges of the run; 0: it is finished.",
    "writetime_bootstrap_ranges": "Token ranges of the run.",
    "writetime_bootstrap_rows": "Rows read by the run.",
    "writetime_bootstrap_frames": "Frames that the run wrote to the bucket, for missing rows.",
    "writetime_audit_finished_timestamp_seconds": "When cdc_audit last finished.",
    "writetime_audit_alarms": "Unexplained gaps in the replicas' logs in the last report.",
    "writetime_audit_gaps": "All gaps in the last report.",
}
_CLASSES: Final = ("applied", "duplicate", "superseded", "not_ours", "quarantined")


def samples(batches: Batches, *, session: bool = False, rules: Rules | None = None) -> list[Sample]:
    """All samples. Each one has the label `cluster`. `session`: the pipeline's mode is `session`; `rules`: what it does
    not publish."""
    from writetime.monitoring.nodes import ring_with_late_nodes
    from writetime.monitoring.tables import tables, unmatched_rules

    found = ring_with_late_nodes(batches)
    found_samples = [
        ("writetime_metrics_timestamp_seconds", {}, found.now.timestamp()),
        *_of_batches(found),
        *_of_nodes(found),
        *(_of_session(batches.store, batches.cluster) if session else ()),
        *_of_completeness(batches, found),
        *_of_reports(batches.store, batches.cluster),
        *_of_bootstrap(batches, found.now),
        *_of_totals(batches),
        *_of_files(batches),
        *_of_pace(batches),
    ]
    about = tables(batches, nodes=found.nodes)
    found_samples += _of_comparisons(about)
    found_samples.append(("writetime_refused_tables", {}, len(about.refused)))
    found_samples.append(("writetime_not_in_log_tables", {}, len(about.not_in_log)))
    if rules is not None and (unmatched := unmatched_rules(batches, rules)) is not None:
        found_samples.append(("writetime_unmatched_rules", {}, len(unmatched)))
    if about.published is not None:
        found_samples.append(("writetime_waiting_tables", {}, len(about.waiting)))
        found_samples.append(("writetime_published_batch", {}, about.published))
        found_samples += _of_published(batches, about)
    found_samples += _of_maintenance(batches.store, batches.cluster)
    found_samples += _of_external_tables(batches.store, batches.cluster)
    found_samples += [("writetime_unpublished_batches", {"table": table.name}, table.unpublished) for table in about.tables]
    return [(name, {"cluster": batches.cluster, **labels}, value) for name, labels, value in found_samples]


def as_text(found: list[Sample]) -> str:
    """The samples in the text exposition format, in the order of METRICS."""
    lines: list[str] = []
    for name, about in METRICS.items():
        mine = [(labels, value) for metric, labels, value in found if metric == name]
        if mine:
            lines += [f"# HELP {name} {about}", f"# TYPE {name} {'counter' if name.endswith('_total') else 'gauge'}"]
            lines += [f"{name}{{{_labels(labels)}}} {value:.15g}" for labels, value in mine]
    return "".join(f"{line}\n" for line in lines)


def _labels(labels: Mapping[str, str]) -> str:
    return ",".join(f'{name}="{_escaped(value)}"' for name, value in labels.items())


def _escaped(value: str) -> str:
    return value.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")


def _of_batches(ring: RingStatus) -> Iterator[Sample]:
    yield "writetime_batch_open", {}, ring.open_batch is not None
    yield "writetime_voided_batches", {}, len(ring.voids)
    yield "writetime_held_segments", {}, len(ring.held)
    yield "writetime_segments_in_conflict", {}, len(ring.in_conflict)
    if not ring.batches:
        return
    last = ring.batches[0]
    yield "writetime_batch_number", {}, last.number
    yield "writetime_batch_sealed_timestamp_seconds", {}, last.sealed_at.timestamp()
    yield "writetime_batch_segments", {}, last.segments
    yield "writetime_batch_events", {}, last.events
    yield "writetime_batch_problems", {}, last.problems
    for account in last.accounting:
        for each in _CLASSES:
            yield "writetime_batch_updates", {"table": account.table, "class": each}, getattr(account, each)
        yield "writetime_batch_ties", {"table": account.table}, account.ties


def _of_totals(batches: Batches) -> Iterator[Sample]:
    yield "writetime_batches_voided_total", {}, len(batches.voided())
    sealed = batches.newest().sealed
    if sealed is None or sealed.totals is None:
        return
    totals = sealed.totals
    for kind, count in totals.batches.items():
        yield "writetime_batches_total", {"kind": kind}, count
    yield "writetime_segments_total", {}, totals.segments
    yield "writetime_segment_bytes_total", {}, totals.bytes
    yield "writetime_problems_total", {}, totals.problems
    for account in totals.tables:
        for each in _CLASSES:
            yield "writetime_updates_total", {"table": account.table, "class": each}, getattr(account, each)
        yield "writetime_events_total", {"table": account.table}, account.events
        yield "writetime_ties_total", {"table": account.table}, account.ties
    for cost in totals.costs:
        labels = {"stage": cost.stage, "table": cost.table}
        yield "writetime_cost_cpu_seconds_total", labels, cost.cpu_seconds
        yield "writetime_cost_requests_total", labels, cost.requests
        yield "writetime_cost_objects_total", labels, cost.objects
        yield "writetime_cost_bytes_total", labels, cost.bytes


def _of_published(batches: Batches, about: TablesStatus) -> Iterator[Sample]:
    """The events of each table up to the last batch of which all are in Kafka. That is the same batch for all
    tables that do not wait."""
    from writetime.pipeline.planner import effective, read_sealed

    newest, events = batches.newest().sealed, dict[int, dict[str, int]]()
    for table in about.tables:
        waits = about.waiting.get(table.name)
        number = waits.sent if waits else about.published or 0
        if number not in events:
            found = newest if newest and newest.number == number else read_sealed(batches.store, batches.cluster, number)
            found = effective(batches.store, batches.cluster, found) if found else None
            events[number] = {each.table: each.events for each in found.totals.tables} if found and found.totals else {}
        if table.name in events[number]:
            yield "writetime_published_events_total", {"table": table.name}, events[number][table.name]


def _of_files(batches: Batches) -> Iterator[Sample]:
    sealed = batches.newest().sealed
    for name, files in sealed.files.items() if sealed else ():
        for part, found in (("current", files.current), ("changes", files.changes)):
            if found is not None:
                labels = {"table": name, "in": part}
                yield "writetime_table_files", labels, found.data
                yield "writetime_table_delete_files", labels, found.deletes
                yield "writetime_table_bytes", labels, found.bytes


def _of_pace(batches: Batches) -> Iterator[Sample]:
    from writetime.pipeline.pace import read_pace

    if (found := read_pace(batches.store, batches.cluster)).measures:
        yield "writetime_batch_limit_bytes", {}, found.limit(found.target)
        yield "writetime_batch_run_seconds", {}, found.measures[-1].seconds


def _of_session(store: Store, cluster: str) -> Iterator[Sample]:
    from writetime.pipeline.sessions import read_state

    # A pipeline whose first session never started has a sample too, so that its alert fires.
    state = read_state(store, cluster)
    yield "writetime_session_timestamp_seconds", {}, state.updated_at.timestamp() if state else 0.0


def _of_completeness(batches: Batches, ring: RingStatus) -> Iterator[Sample]:
    from writetime.monitoring.complete_until import complete_until

    if (found := complete_until(batches)) is None:
        return
    for place, at in (("tables", found.all_tables), ("topics", found.topics)):
        if at is not None:
            yield "writetime_complete_until_timestamp_seconds", {"in": place}, at.timestamp()
    addresses = {node.node: node.address for node in ring.nodes}
    for name, at in found.signed.items():
        labels = {"datacenter": name.datacenter, "host_id": name.host_id, "address": addresses.get(name, "")}
        yield "writetime_node_complete_until_timestamp_seconds", labels, at.timestamp() if at is not None else 0.0


def _of_nodes(ring: RingStatus) -> Iterator[Sample]:
    for node in ring.nodes:
        if node.node.origin != "log":
            continue
        labels = {"datacenter": node.node.datacenter, "host_id": node.node.host_id, "address": node.address}
        # A node without a segment in these batches was silent for at least as long. Without a sample no alert
        # would fire.
        newest = node.newest or ring.since
        if newest is not None:
            yield "writetime_source_timestamp_seconds", labels, newest.timestamp()
        if node.position is not None:
            yield "writetime_position_segment_id", labels, node.position.segment.id
            yield "writetime_position_bytes", labels, node.position.bytes
        yield "writetime_late_after_seconds", labels, node.late_after.total_seconds()
        yield "writetime_waiting_segments", labels, node.waiting
        yield "writetime_waiting_bytes", labels, node.waiting_size
        for version, count in sorted(node.unreadable.items()):
            yield "writetime_unreadable_segments", {**labels, "version": str(version)}, count
        yield "writetime_growing_segments", labels, node.growing


def _of_maintenance(store: Store, cluster: str) -> Iterator[Sample]:
    from writetime.pipeline.maintenance_report import read_maintained

    last = read_maintained(store, cluster)
    for each in last.held_back if last else ():
        yield "writetime_purge_held_back_seconds", {"table": each.table, "by": each.by}, each.seconds


def _of_external_tables(store: Store, cluster: str) -> Iterator[Sample]:
    from writetime.pipeline.external_tables import read_external_tables

    found = read_external_tables(store, cluster)
    for name, each in found.failing.items() if found else ():
        if each.failing_since is not None:
            labels = {"table": each.table, "external_table": name}
            yield "writetime_bigquery_failing_since_timestamp_seconds", labels, each.failing_since.timestamp()


def _of_bootstrap(batches: Batches, now: datetime) -> Iterator[Sample]:
    """The last run of each table that still exists: nobody finishes one of a dropped table."""
    from writetime.monitoring.tables import known_tables
    from writetime.pipeline.bootstrap.run import last_runs

    sealed = batches.newest().sealed
    known = known_tables(batches, sealed.number) if sealed else {}
    for name, run in last_runs(batches.store, batches.cluster).items():
        if run.table_id in known and known[run.table_id].dropped:
            continue
        labels = {"table": name}
        yield "writetime_bootstrap_started_timestamp_seconds", labels, run.started_at.timestamp()
        yield "writetime_bootstrap_finished_timestamp_seconds", labels, run.finished_at.timestamp() if run.finished_at else 0.0
        yield "writetime_bootstrap_duration_seconds", labels, run.duration.total_seconds()
        yield "writetime_bootstrap_aborted", labels, run.is_aborted(now)
        yield "writetime_bootstrap_remaining_ranges", labels, run.remaining
        yield "writetime_bootstrap_ranges", labels, len(run.ranges)
        yield "writetime_bootstrap_rows", labels, run.rows
        yield "writetime_bootstrap_frames", labels, run.frames


def _of_reports(store: Store, cluster: str) -> Iterator[Sample]:
    from writetime.pipeline.audit import AuditReport
    from writetime.pipeline.verification import VerifyReport
    from writetime.storage import layout

    verified = _last(store, layout.verify_prefix(cluster), VerifyReport)
    if verified is not None:
        yield "writetime_verify_finished_timestamp_seconds", {}, _seconds(verified.finished_at)
        for table in verified.tables:
            yield "writetime_verify_unsettled_rows", {"table": table.table}, table.unsettled
            yield "writetime_verify_tie_rows", {"table": table.table}, table.ties
    audited = _last(store, layout.audit_prefix(cluster), AuditReport)
    if audited is not None:
        yield "writetime_audit_finished_timestamp_seconds", {}, _seconds(audited.finished_at)
        yield "writetime_audit_alarms", {}, audited.alarms
        yield "writetime_audit_gaps", {}, len(audited.gaps)


def _of_comparisons(about: TablesStatus) -> Iterator[Sample]:
    known = {table.name: about.compared.get(table.name) for table in about.captured}
    for name, found in known.items():
        complete = None if found is None else found.complete
        yield "writetime_verify_drift_rows", {"table": name}, 0 if found is None else found.drift_rows
        yield "writetime_verify_complete_timestamp_seconds", {"table": name}, 0 if complete is None else complete.finished_at.timestamp()
    yield "writetime_verify_failed_tables", {}, sum(found is not None and bool(found.trouble) for found in known.values())


def _last(store: Store, prefix: str, kind: type[Report]) -> Report | None:
    name = max((info.name for info in store.names(prefix) if info.name.endswith(".json")), default=None)
    return None if name is None else kind.read(store, name)


def _seconds(at: datetime) -> float:
    return at.timestamp()
