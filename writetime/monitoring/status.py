"""The status of a pipeline, as tables for a terminal and as a JSON document."""

from __future__ import annotations

from dataclasses import asdict
from datetime import datetime
from typing import Any, Final

from writetime.cassandra.merge.reconcile import policy_of
from writetime.monitoring.complete_until import CompleteUntil
from writetime.monitoring.durations import span
from writetime.monitoring.grids import as_lines, new_grid
from writetime.monitoring.health import NOT_COMPARED, Expected, Health, health
from writetime.monitoring.ignored import ignored
from writetime.monitoring.nodes import NodeStatus, RingStatus
from writetime.monitoring.overview import overview
from writetime.monitoring.tables import TablesStatus
from writetime.pipeline.archive_packing import Shelved, read_shelved
from writetime.pipeline.batch_history import Batches
from writetime.pipeline.batch_report import void_text
from writetime.pipeline.chains import Rebuild, current
from writetime.pipeline.comparisons import Comparison
from writetime.pipeline.external_tables import ExternalTable, read_external_tables
from writetime.pipeline.maintenance_report import Maintained, read_maintained
from writetime.pipeline.pace import Pace, read_pace
from writetime.pipeline.sessions import SessionState

_SHOWN: Final = 10
"""Batches listed in the text; totals cover all."""
_IGNORED: Final = 20
_NAMED: Final = 5
"""Tables without capture that are named."""
EXPECTED: Final = Expected()
NO_NODES: Final = "No node has shipped anything yet: run `writetime ship --config …` on each node."
NO_BATCHES: Final = "No batch is sealed yet: unpause cdc_ingest (in mode `session`, cdc_stream). It plans one when segments have arrived."
NO_TABLES: Final = "No captured table yet: `ALTER TABLE … WITH cdc = true`, and check `tables` in the pipeline's YAML."


def as_text(batches: Batches, last: int, expected: Expected = EXPECTED) -> str:
    """The health and lag of each table, the nodes, the last batches, the tables, and what needs an operator."""
    seen = overview(batches, last=last)
    found, of_tables = seen.ring, seen.tables
    lines = [_head(found)]
    if seen.session is not None:
        lines.append(_session(seen.session, found.now))
    if seen.until is not None:
        lines += _complete(seen.until, found.now)
    lines += _pace(read_pace(batches.store, batches.cluster))
    lines += _health(health(batches, seen, expected), found.now)
    if of_tables.captured and not expected.cql:
        lines.append(NOT_COMPARED)
    lines += ["", _nodes(found)] if found.nodes else [NO_NODES]
    if found.batches:
        lines += ["", _batches(found)]
    elif found.nodes:
        lines.append(NO_BATCHES)
    if of_tables.captured:
        lines += ["", _tables(of_tables)]
    elif found.batches:
        lines.append(NO_TABLES)
    lines += _others(of_tables)
    if (shelved := read_shelved(batches.store, batches.cluster)) is not None:
        lines += ["", *_archive(shelved, found.kept_from)]
    if (maintained := read_maintained(batches.store, batches.cluster)) is not None:
        lines += ["", *_maintained(maintained)]
    lines += [
        f"short of space ({node.space.level}): {node.address or node.node.host_id}, {node.space.share:.0%} of what cdc_raw may hold"
        for node in found.nodes
        if node.space and node.space.level != "ok"
    ]
    lines += [f"drops captured writes: {node.address or node.node.host_id}: {each}" for node in found.nodes for each in node.unsafe]
    lines += [
        f"TRUNCATEs of node {node.address or node.node.host_id} are known from its segments only: "
        + ("it was never queried" if node.answered is None else f"no answer since {node.answered:%Y-%m-%d %H:%M:%S}Z")
        for node in found.nodes
        if node.is_not_asked(found.now)
    ]
    lines += [
        f"may be removed by a TRUNCATE: {updates} updates of {name}, which no record decides; run cdc_bootstrap for the table"
        for name, updates in found.undecided.items()
    ]
    lines += [void_text(batch.number, batch.void, batch.sealed_at) for batch in found.voids if batch.void is not None]
    lines += _merging(found)
    lines += _rebuilt(current(batches.store, batches.cluster))
    lines += [f"table rejected: {name}: {reason}" for name, reason in of_tables.refused.items()]
    lines += [f"not in the commit log: {name}: {of_tables.missing(name)}" for name in of_tables.not_in_log]
    lines += [f"not in the commit log: {name}: {each.text}" for name, each in of_tables.apart.items() if not each.is_late]
    lines += [
        f"cannot be published: {name}, since batch {waits.sent}: {waits.reason or 'see the log of cdc_publish'}"
        for name, waits in of_tables.waiting.items()
    ]
    lines += [
        f"BigQuery shows an old snapshot: {name}, since {each.failing_since:%Y-%m-%d %H:%M:%S}Z: {each.error}"
        for name, each in failing_external_tables(batches).items()
    ]
    lines += [
        f"waiting for a reader: {count} segments of commit log version {version}, from {node.address or node.node.host_id}; "
        "upgrade writetime: the first batch afterwards reads them"
        for node in found.nodes
        for version, count in sorted(node.unreadable.items())
    ]
    lines += [f"held: {name}" for name in found.held]
    lines += [f"in conflict: {name}: different bytes were shipped; see `writetime conflicts list`" for name in found.in_conflict]
    passed_over = ignored(batches, now=found.now)
    lines += [f"ignored: {each.object}: {each.reason}" for each in passed_over[:_IGNORED]]
    if len(passed_over) > _IGNORED:
        lines.append(f"ignored: {len(passed_over) - _IGNORED} more objects; `--json` lists them")
    return "\n".join(lines)


def as_document(batches: Batches, last: int, expected: Expected = EXPECTED) -> dict[str, Any]:
    """The same as a JSON document: times in ISO 8601, sizes in bytes, durations in seconds."""
    seen = overview(batches, last=last)
    found, of_tables = seen.ring, seen.tables
    return {
        "cluster": found.cluster,
        "now": found.now.isoformat(),
        "since": _iso(found.since),
        "open_batch": found.open_batch,
        "complete": found.complete,
        "health": health(batches, seen, expected).to_document(),
        "session": None if seen.session is None else seen.session.model_dump(mode="json"),
        "complete_until": None if seen.until is None else seen.until.to_document(),
        "pace": _pace_document(read_pace(batches.store, batches.cluster)),
        "voids": [
            {"number": batch.number, "kind": batch.kind, "sealed_at": batch.sealed_at.isoformat(), **batch.void.model_dump()}
            for batch in found.voids
            if batch.void is not None
        ],
        "nodes": [_node(node, found.now) for node in found.nodes],
        "batches": [
            {
                "number": batch.number,
                "kind": batch.kind,
                "sealed_at": batch.sealed_at.isoformat(),
                "segments": batch.segments,
                "problems": batch.problems,
                "lag": batch.lag,
                "accounting": batch.total.model_dump(exclude={"table"}),
            }
            for batch in found.batches
        ],
        "tables": [
            {
                **table.total.model_dump(),
                "events_per_minute": round(table.per_minute, 3),
                "last_event": _iso(table.last_event),
                "unpublished": table.unpublished,
                "rows": table.rows,
                "captured": table.is_captured,
                "compared": None if (known := of_tables.compared.get(table.name)) is None else _compared(known),
            }
            for table in of_tables.tables
        ],
        "undecided": found.undecided,
        "merging": {"rule": found.merge_rule, "releases": found.releases, "ties": found.ties},
        "rebuild": None if (rebuild := current(batches.store, batches.cluster)) is None else rebuild.model_dump(mode="json"),
        "published": of_tables.published,
        "refused": of_tables.refused,
        "not_in_log": of_tables.not_in_log,
        "apart": {
            name: {"mode": each.mode, "seconds": each.seconds, "last": _iso(each.last), "late": each.is_late}
            for name, each in of_tables.apart.items()
        },
        "waiting": {name: {"published": waits.sent, "reason": waits.reason} for name, waits in of_tables.waiting.items()},
        "bigquery": {name: each.error for name, each in failing_external_tables(batches).items()},
        "held": list(found.held),
        "in_conflict": list(found.in_conflict),
        "ignored": [asdict(each) for each in ignored(batches, now=found.now)],
        "archive": _archive_document(read_shelved(batches.store, batches.cluster), found.kept_from),
        "maintenance": None
        if (maintained := read_maintained(batches.store, batches.cluster)) is None
        else maintained.model_dump(mode="json"),
    }


def failing_external_tables(batches: Batches) -> dict[str, ExternalTable]:
    found = read_external_tables(batches.store, batches.cluster)
    return found.failing if found is not None else {}


def _health(found: Health, now: datetime) -> list[str]:
    """The problems of all tables, then each table with the finding that decides, the worst first."""
    lines = [f"{problem.level}: {problem.text}" for problem in found.problems]
    if not found.tables:
        return lines
    grid = new_grid("health", "table", "complete up to", right=("behind",))
    grid.add_column("because", overflow="fold")
    for table in found.tables:
        until = "unknown" if table.until is None else f"{table.until:%Y-%m-%d %H:%M:%S}Z"
        behind = "" if table.until is None else span((now - table.until).total_seconds())
        grid.add_row(table.level, table.name, until, behind, "" if table.level == "ok" else table.worst.text)
    return [*lines, "", as_lines(grid)]


def _others(found: TablesStatus) -> list[str]:
    """The tables that are not captured, on one line."""
    if not found.others:
        return []
    names = [table.name for table in found.others]
    more = f" and {len(names) - _NAMED} more" if len(names) > _NAMED else ""
    updates = sum(table.total.updates_in for table in found.others)
    return [f"not captured: {', '.join(names[:_NAMED])}{more}: {updates} updates"]


def _session(state: SessionState, now: datetime) -> str:
    silent = (now - state.updated_at).total_seconds()
    doing = f"ended: {state.ended}" if state.ended else state.step or "waiting for segments"
    last = "" if state.batch_seconds is None else f", the last one, {state.batch}, in {span(state.batch_seconds)}"
    error = f"; publishing fails: {state.publish_error}" if state.publish_error else ""
    return (
        f"session since {state.started_at:%Y-%m-%d %H:%M:%S}Z: {doing}; {state.batches} batches{last}; published up to "
        f"{state.published}; reported {span(silent)} ago{error}"
    )


def _complete(until: CompleteUntil, now: datetime) -> list[str]:
    def ago(at: datetime | None) -> str:
        return "unknown" if at is None else f"{at:%Y-%m-%d %H:%M:%S}Z ({span((now - at).total_seconds())} ago)"

    lines = [f"complete up to: tables {ago(until.tables)}, topics {ago(until.topics)}; {until.reason}"]
    return lines + [f"complete up to: table {name} {ago(held.until)}; held by {held.by}" for name, held in until.held.items()]


def _pace(found: Pace) -> list[str]:
    """How large batches may be, once one was nearly as large as that."""
    if not found.measures:
        return []
    limit, last = found.limit(found.target) / 2**30, found.measures[-1]
    took = f"batch {last.batch} took {span(last.seconds)} for {last.bytes / 2**30:.1f} GiB"
    return [f"batches take in up to {limit:.1f} GiB, to take {span(found.target)} (batch_seconds); {took}"]


def _rebuilt(rebuild: Rebuild | None) -> list[str]:
    """A rebuild that is in progress or incomplete."""
    if rebuild is None:
        return []
    lines = []
    if rebuild.finished_at is None:
        lines.append(f"a rebuild is under way since {rebuild.begun_at:%Y-%m-%d %H:%M:%S}Z: `writetime rebuild` finishes it")
    if rebuild.chain.partial:
        lines.append(f"incomplete: rebuilt from an archive that lacked {rebuild.lacking} segments ({_first(rebuild.missing)})")
    return lines


def _first(missing: list[str]) -> str:
    return f"{missing[0]} …" if missing else "expired, or read as damaged"


def _merging(found: RingStatus) -> list[str]:
    """The merge rule for cells of equal timestamp, if it is not that of 4.0."""
    if found.merge_rule == "4.0":
        return []
    rest = sum(count for release, count in found.releases.items() if policy_of([release]) == "4.0")
    mixed = f", until the last node is upgraded from it ({rest} of {sum(found.releases.values())} are)" if rest else ""
    ties = f"; {found.ties} cells of these batches may differ from the cluster" if found.ties else ""
    return [f"cells of equal timestamp are merged by the rule of Cassandra 3.11{mixed}{ties}"]


def _node(node: NodeStatus, now: datetime) -> dict[str, Any]:
    about = asdict(node)
    about.pop("node")
    about["position"] = None if node.position is None else {"segment": node.position.segment.filename, "bytes": node.position.bytes}
    if node.space is not None:
        about["space"] |= {"at": _iso(node.space.at), "settings": node.space.settings.to_document()}
    times = {name: _iso(about[name]) for name in ("newest", "oldest", "oldest_waiting", "answered")}
    age = None if node.newest is None else (now - node.newest).total_seconds()
    since = {"age": age, "late_after_seconds": node.late_after.total_seconds()}
    return {"datacenter": node.node.datacenter, "host_id": node.node.host_id, **about, **times, **since}


def _compared(found: Comparison) -> dict[str, Any]:
    """`complete`: the last complete comparison; `share`: how much of the ring the one under way has compared."""
    about = found.model_dump(mode="json", include={"at", "report", "trouble", "complete"})
    return {**about, "share": found.share, "drift": found.drift_rows}


def _iso(moment: datetime | None) -> str | None:
    return None if moment is None else moment.isoformat()


def _head(found: RingStatus) -> str:
    if not found.batches:
        return f"{found.cluster}: no batch is sealed yet"
    newest = found.batches[0]
    lag = f", {span(newest.lag[0])} after its newest segment" if newest.lag else ""
    going = f"; batch {found.open_batch} is open" if found.open_batch else ""
    return f"{found.cluster}: batch {newest.number} ({newest.kind}) sealed {newest.sealed_at:%Y-%m-%d %H:%M:%S}Z{lag}{going}"


def _nodes(found: RingStatus) -> str:
    grid = new_grid(
        "node", "address", "datacenter", "newest segment", right=("age", "waiting", "MiB", "growing", "held", "segments", "frames")
    )
    for node in found.nodes:
        newest = "before these batches" if node.newest is None else f"{node.newest:%Y-%m-%d %H:%M:%S}Z"
        age = "" if node.newest is None else span((found.now - node.newest).total_seconds())
        waiting = f"{node.waiting}{'' if found.complete else '+'}"
        about = (node.node.host_id, node.address, node.node.datacenter, newest, age, waiting, f"{node.waiting_size / 2**20:.1f}")
        grid.add_row(*about, *map(str, (node.growing, node.held, node.segments, node.frames)))
    return as_lines(grid)


def _batches(found: RingStatus) -> str:
    right = ("segments", "problems", "updates in", "applied", "duplicate", "superseded", "not ours", "quarantined", "events", "lag")
    grid = new_grid("batch", "kind", "sealed at", right=right)
    for batch in found.batches[:_SHOWN]:
        sums = batch.total
        counts = (sums.updates_in, sums.applied, sums.duplicate, sums.superseded, sums.not_ours, sums.quarantined, sums.events)
        lag = span(batch.lag[1]) if batch.lag else ""
        about = (str(batch.number), batch.kind, f"{batch.sealed_at:%Y-%m-%d %H:%M:%S}Z")
        grid.add_row(*about, *map(str, (batch.segments, batch.problems, *counts)), lag)
    return as_lines(grid)


def _tables(found: TablesStatus) -> str:
    """The captured tables."""
    grid = new_grid("table", "last event", right=("rows", "updates in", "applied", "events", "events/min", "batches not published"))
    for table in found.captured:
        last = "" if table.last_event is None else f"{table.last_event:%Y-%m-%d %H:%M:%S}Z"
        counts = map(str, ("" if table.rows is None else table.rows, table.total.updates_in, table.total.applied, table.total.events))
        grid.add_row(table.name, last, *counts, f"{table.per_minute:.1f}", str(table.unpublished))
    return as_lines(grid)


def _archive(shelved: Shelved, kept_from: datetime | None) -> list[str]:
    upto = "nothing is packed" if shelved.packed_upto is None else f"packed up to {shelved.packed_upto:%Y-%m-%d %H}:00Z"
    kept = "" if kept_from is None else f", kept from {kept_from:%Y-%m-%d %H}:00Z on"
    left = "" if shelved.finished else "; the last run had no time to finish"
    grid = new_grid("archive", right=("last run", "MiB before", "MiB after", "ever", "MiB before", "MiB after"))
    for name, about in (
        ("packed", "segments packed"),
        ("let_go", "segments deleted"),
        ("ledger", "ledger entries pruned"),
        ("batches", "documents of batches pruned"),
        ("reports", "reports pruned"),
        ("quarantine", "settled quarantine records"),
        ("claims", "events too large for their topics"),
    ):
        numbers = (getattr(done, name) for done in (shelved.last, shelved.ever))
        grid.add_row(about, *(text for n in numbers for text in (str(n.objects), f"{n.before / 2**20:.1f}", f"{n.after / 2**20:.1f}")))
    failed = [f"{shelved.last.failed} objects of the archive failed: see the log of cdc_maintain"] if shelved.last.failed else []
    return [f"archive: {upto}{kept}{left}", as_lines(grid), *failed]


def _maintained(found: Maintained) -> list[str]:
    grid = new_grid(
        "maintenance", right=("objects before", "after", "MiB before", "after", "deletes before", "after", "snapshots before", "after")
    )

    def row(about: str, objects: tuple[int, int], size: tuple[int, int], *more: int) -> None:
        numbers = [str(n) for n in objects] + [f"{n / 2**20:.1f}" for n in size] + [str(n) for n in more]
        grid.add_row(about, *numbers, *[""] * (8 - len(numbers)))

    before, after = found.before, found.after
    row("state", (before.objects, after.objects), (before.bytes, after.bytes))
    row("its indexes", (before.index_objects, after.index_objects), (before.index_bytes, after.index_bytes))
    for table in found.tables:
        if (was := table.before) is not None and (now := table.after) is not None:
            row(table.name, (was.data, now.data), (was.bytes, now.bytes), was.deletes, now.deletes, was.snapshots, now.snapshots)
    failed = f", {found.failed} failed" if found.failed else ""
    about = f"maintenance: batch {found.batch}, {found.at:%Y-%m-%d %H:%M:%S}Z: {found.purged} of {found.shards} shards purged{failed}"
    notes = [f"not maintained: {table.name}: {table.trouble}" for table in found.tables if table.trouble]
    notes += [
        f"purge held back by {span(each.seconds)}: {each.table}, because of {each.by} since {each.since:%Y-%m-%d %H:%M:%S}Z"
        for each in found.held_back
    ]
    return [about, as_lines(grid), *notes]


def _pace_document(found: Pace) -> dict[str, Any] | None:
    return {"limit": found.limit(found.target), **found.model_dump()} if found.measures else None


def _archive_document(shelved: Shelved | None, kept_from: datetime | None) -> dict[str, Any] | None:
    return None if shelved is None else {**shelved.model_dump(mode="json"), "kept_from": _iso(kept_from)}
