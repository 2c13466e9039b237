"""The audit job: read the segments of some hours again, and compare what each replica logged with what it should
have logged.

    spark-submit audit.py --config FILE --start TIME --end TIME [--late HOURS] [--ranges N]
        [--reread alarms|gaps [--most N]]

Strategy: writes of [start, end) are in segments that were finished later, so the job reads the archive from
one hour before `start` until `--late` hours after `end`, and the segments that wait in cdc/. A worker makes
one row per captured update: table, token, minute, digest, node; values do not leave the worker. Rows are
grouped by table, range and minute; the owners of tokens are known from the nodes' own logs and from the
shippers' reports, and the groups are compared there (`writetime.pipeline.audit`). The job only reads; the
report goes into the bucket. On demand, the token ranges with gaps are read from the cluster at ALL, as a
bootstrap reads them: rows that the tables lack become frames, which the next batch ingests.

Exit code: 0 no alarm; 1 alarms, ranges that could not be read again, or a failed audit.
"""

from __future__ import annotations

import argparse
import hashlib
import sys
import zlib
from bisect import bisect_left
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from itertools import groupby
from operator import itemgetter
from pathlib import Path
from typing import Any, Final, NamedTuple, get_args
from uuid import UUID

import numpy as np
import pyarrow as pa
import structlog
from pyspark.sql import SparkSession
from pyspark.sql.pandas.types import from_arrow_schema

from spark_jobs import bootstrap
from spark_jobs.failures import kind_of, reason_of
from spark_jobs.job_exit import reports_failure
from spark_jobs.session import spark_session
from spark_jobs.stages.scan import Batches, chunked, content, tasks
from writetime.cassandra.commitlog.encryption.keystore import Keystore
from writetime.cassandra.commitlog.mutation import read_head, without_epochs
from writetime.cassandra.commitlog.segment import Frame, Scan, scan
from writetime.cassandra.commitlog.system_mutations import decode_own
from writetime.cassandra.schema.model import Schema
from writetime.cassandra.schema.node_metadata import PEERS, LocalFacts
from writetime.cassandra.schema.system_tables import LOCAL, TABLES
from writetime.cassandra.token_ring import HIGHEST, LOWEST, MURMUR3, Member, Ownership, expect_replication, partitioner_name, token
from writetime.config.pipeline import PipelineConfig, load
from writetime.errors import BatchError, ConfigError, DecodeError, NotASegment, ObjectNotFound, SchemaError, SegmentError
from writetime.kernels import mutation_columns, mutation_decoder
from writetime.pipeline import audit
from writetime.pipeline.audit import (
    AuditReport,
    Came,
    Group,
    Held,
    NodeAudit,
    TableReread,
)
from writetime.pipeline.bootstrap.run import Run
from writetime.pipeline.documents import SegmentInput
from writetime.pipeline.interval import checked_interval
from writetime.pipeline.job_result import leave
from writetime.pipeline.node_facts import read_facts
from writetime.pipeline.planner import history, node_addresses
from writetime.pipeline.segment_check import known_schema
from writetime.storage import layout, open_store, segment_object
from writetime.storage.store import ObjectInfo, Store

log = structlog.get_logger()

OPERATION: Final = "audit an interval"
MOST_GROUPS: Final = 20_000
MOST_REREAD: Final = 64
"""Token ranges of tables that are read again at most."""
_DIGEST_BYTES: Final = 16
_TOPOLOGY: Final = frozenset({LOCAL.id, *(table.id for table in PEERS)})

_FOUND: Final = pa.schema(
    [
        ("kind", pa.string()),  # update | segment | topology
        ("segment", pa.int32()),
        ("table", pa.string()),
        ("range", pa.int32()),
        ("minute", pa.int64()),
        ("token", pa.int64()),
        ("digest", pa.binary()),
        ("node", pa.string()),
    ]
)
"""`segment` comes once a segment: in `minute` the first that it holds, in `token` whether it could be read
whole. The `digest` of `topology` is a mutation of system.local or of system.peers*."""
_GROUPS: Final = pa.schema([("group", pa.string()), ("table", pa.string()), ("trouble", pa.string())])
"""A group; or a table of which none can be made, and why."""


@reports_failure("the audit")
def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description="Compare what the replicas' logs held.")
    parser.add_argument("--config", required=True, help="the pipeline's YAML")
    parser.add_argument("--start", required=True, help="first minute, ISO-8601; UTC if it does not say")
    parser.add_argument("--end", required=True, help="end, excluded")
    parser.add_argument("--late", type=int, default=3, help="hours that hints and shippers may take (default: 3)")
    parser.add_argument("--ranges", type=int, default=16, help="token ranges to distinguish (default: 16)")
    parser.add_argument("--reread", choices=get_args(audit.Which), default="none", help="read ranges with alarms, or any gap, again at ALL")
    parser.add_argument(
        "--most", type=int, default=MOST_REREAD, help=f"maximum number of token ranges to read again (default: {MOST_REREAD})"
    )
    parser.add_argument("--json", action="store_true", help="print the report as JSON")
    given = parser.parse_args(arguments)
    asked = Rereading(given.reread, given.most)
    report = run(load(given.config), given.start, given.end, late=given.late, ranges=given.ranges, reread=asked)
    print(report.model_dump_json() if given.json else audit.report_text(report))  # noqa: T201
    print(f"report: {report.name}", file=sys.stderr)  # noqa: T201
    leave("" if report.ok else audit.in_short(report), report=report.name)
    return 0 if report.ok else 1


class Rereading(NamedTuple):
    """Which gaps' token ranges are read again from the cluster, and the maximum number of ranges."""

    which: audit.Which = "none"
    most: int = MOST_REREAD


NOTHING: Final = Rereading()


def run(
    config: PipelineConfig, start: str | datetime, end: str | datetime, *, late: int = 3, ranges: int = 16, reread: Rereading = NOTHING
) -> AuditReport:
    """Audit the minutes in [start, end), put the report into the bucket, and read again what is asked for."""
    start, end = checked_interval(start, end, OPERATION)
    _expect_kept(config, start)
    if reread.which != "none" and config.cluster.cql is None:
        raise ConfigError(
            "`cluster.cql` is missing",
            operation="read from the ring",
            hint="Say in the pipeline's YAML where the ring is, or have nothing read.",
        )
    store = open_store(config.bucket)
    spark = spark_session(config, f"writetime audit {config.pipeline}")
    try:
        report = Audit(config, spark, start, end, late, ranges).report(datetime.now(UTC))
        # Reading takes long, so the report is stored first.
        audit.write_report(store, report)
        if reread.which != "none":
            report = read_again(config, spark, report, reread)
            audit.write_report(store, report)
    finally:
        spark.stop()
    return report


def read_again(config: PipelineConfig, spark: SparkSession, report: AuditReport, asked: Rereading) -> AuditReport:
    """Read token ranges of the report's gaps again; returns the report with the results."""
    wanted, left_out = audit.to_read(report.gaps, asked.which, asked.most)
    parts = {table: [report.ranges[number] for number in numbers] for table, numbers in wanted.items()}
    done = []
    for (table, numbers), found in zip(wanted.items(), bootstrap.read_again(config, spark, parts), strict=True):
        outcome: dict[str, Any] = {"trouble": str(found)}
        if isinstance(found, Run):
            outcome = {"run": found.name, "consistency": found.consistency, "rows": found.rows, "frames": found.frames}
        done.append(TableReread(table=table, ranges=numbers, **outcome))
    return report.model_copy(update={"reread": done, "not_reread": left_out})


def _expect_kept(config: PipelineConfig, start: datetime) -> None:
    """ConfigError if the archive has deleted part of the interval, which would look like a gap."""
    sealed = history(open_store(config.bucket), config.cluster.name).sealed
    if sealed is not None and sealed.kept_from is not None and start.timestamp() < sealed.kept_from:
        kept = datetime.fromtimestamp(sealed.kept_from, UTC)
        hint = f"Audit what was written from {kept:%Y-%m-%dT%H:%M:%SZ} on (archive.keep_days)."
        raise ConfigError("the archive no longer holds the segments of that interval", operation=OPERATION, obj=str(start), hint=hint)


# --- driver


class Audit:
    """One run of the job. The schema is what the bucket knows."""

    def __init__(self, config: PipelineConfig, spark: SparkSession, start: datetime, end: datetime, late: int, ranges: int) -> None:
        self.config, self.spark, self.start, self.end, self.late = config, spark, start, end, late
        self.store, self.cluster = open_store(config.bucket), config.cluster.name
        learner = known_schema(self.store, self.cluster)
        self.schema = learner.schema()
        self.captured = frozenset(table.id for table in learner.captured(config.tables.captures))
        self.ranges = audit.ranges(ranges)

    def report(self, now: datetime) -> AuditReport:
        """`now`: what is old is judged by it."""
        started = datetime.now(UTC)
        segments = list(self._segments())
        found = self._found(segments).cache()
        try:
            members = self._members(segments, [row.asDict() for row in found.filter("kind = 'topology'").collect()])
            came = _came(segments, [row.asDict() for row in found.filter("kind = 'segment'").collect()])
            ownership = Ownership(members, self.config.cluster.datacenters)
            replication = {table.full_name: self._replication(table.keyspace) for table in self._tables()}
            updates = (
                found.filter("kind = 'update'").repartition("table", "range", "minute").sortWithinPartitions("table", "range", "minute")
            )
            rows = updates.mapInArrow(grouping(ownership, replication), schema=from_arrow_schema(_GROUPS)).toLocalIterator()
            groups, trouble = list[Group](), dict[str, str]()
            for row in rows:
                if row["trouble"] is None:
                    groups.append(Group.model_validate_json(row["group"]))
                elif trouble.setdefault(row["table"], row["trouble"]) is row["trouble"]:
                    log.error("table not audited", table=row["table"], error=row["trouble"])
        finally:
            found.unpersist()
        groups.sort(key=lambda group: (group.complete, group.table, group.minute, group.range))
        log.info("audited", segments=len(segments), groups=len(groups), incomplete=sum(not group.complete for group in groups))
        step = audit.step_of(self.start, self.end)
        return AuditReport(
            cluster=self.cluster,
            started_at=started,
            finished_at=datetime.now(UTC),
            start=self.start,
            end=self.end,
            datacenters=self.config.cluster.datacenters,
            ranges=self.ranges,
            nodes=self._nodes(ownership, came, groups, step),
            tables=audit.tables_of(groups),
            gaps=audit.gaps(groups, came, now, self.late * 60),
            groups=groups[:MOST_GROUPS],
            step=step,
            trouble=trouble,
        )

    def _tables(self) -> list[Any]:
        return [self.schema.tables[table_id] for table_id in self.captured]

    def _replication(self, keyspace: str) -> dict[str, str]:
        found = self.schema.keyspaces.get(keyspace)
        try:
            expect_replication(found.replication if found else {})
        except SchemaError:
            # Its tables are rejected.
            found = None
        return dict(found.replication) if found else {"class": "LocalStrategy"}

    def _segments(self) -> Iterator[SegmentInput]:
        """Segments of nodes that may hold writes of the interval, archived or waiting."""
        hour = layout.hour_of(self.start) - timedelta(hours=1)
        while hour <= self.end + timedelta(hours=self.late):
            yield from _of_nodes(segment_object.every(self.store, layout.archive_hour_prefix(self.cluster, hour)))
            hour += timedelta(hours=1)
        yield from _of_nodes(self.store.list(layout.incoming_prefix(self.cluster)))

    def _found(self, segments: Sequence[SegmentInput]) -> Any:
        hosts = [segment.ref.node.host_id for segment in segments]
        versions = [segment.ref.segment.version for segment in segments]
        tables = Schema(tables={**self.schema.tables, **TABLES}, types=self.schema.types)
        scope = Scope(self.captured, tables, _minute(self.start), _minute(self.end), [end for _, end in self.ranges], hosts, versions)
        reading = holding(scope, self.config.bucket, self.config.cluster.commitlog_keystore)
        return tasks(self.spark, segments, [[at] for at in range(len(segments))], reading, _FOUND)

    def _members(self, segments: Sequence[SegmentInput], rows: Sequence[Mapping[str, Any]]) -> list[Member]:
        """The cluster's nodes, by the shippers' reports, by their own logs, and by what these contain about
        other nodes."""
        facts: dict[str, LocalFacts] = defaultdict(LocalFacts)
        reported = read_facts(self.store, self.cluster)
        for row in rows:
            version = segments[row["segment"]].ref.segment.version
            facts[row["node"]].apply(decode_own(bytes(row["digest"]), version=version).mutation)
        _expect_murmur3({*(str(local.node.get("partitioner") or "") for local in facts.values()), *(fact.partitioner for fact in reported)})
        members: dict[str, Member] = {}
        for local in facts.values():
            for peer in local.peers:
                _add(members, str(peer.get("host_id") or ""), peer)
        for host_id, local in facts.items():
            _add(members, host_id, local.node)
        for fact in reported:
            node = fact.node
            _add(members, node.host_id, {"tokens": fact.tokens, "rack": fact.rack, "data_center": node.datacenter})
        return list(members.values())

    def _nodes(self, ownership: Ownership, came: Mapping[str, Sequence[Came]], groups: Sequence[Group], step: int) -> list[NodeAudit]:
        addresses = node_addresses(read_facts(self.store, self.cluster))
        sums = audit.by_step(groups, self.start, self.end, step)
        shipping = [member for member in ownership.members.values() if member.datacenter in self.config.cluster.datacenters]
        return [
            NodeAudit(
                host_id=member.host_id,
                address=addresses.get(member.host_id, ""),
                datacenter=member.datacenter,
                segments=len(found := came.get(member.host_id, ())),
                unreadable=sum(not each.readable for each in found),
                upto=max((each.sealed_at for each in found), default=None),
                expected=sum(sums[member.host_id][0]),
                held=sum(sums[member.host_id][1]),
                expected_by_step=sums[member.host_id][0],
                held_by_step=sums[member.host_id][1],
            )
            for member in sorted(shipping, key=lambda member: (member.datacenter, addresses.get(member.host_id, ""), member.host_id))
        ]


def _expect_murmur3(partitioners: Iterable[str]) -> None:
    """BatchError if a node has another partitioner: who owns a token is not known then."""
    names = sorted({partitioner_name(each) for each in partitioners} - {"", MURMUR3})
    if names:
        hint = f"Replicas' logs are compared only in clusters with {MURMUR3}."
        raise BatchError(f"unsupported partitioner {', '.join(names)}", operation="find the replicas of tokens", hint=hint)


def _of_nodes(found: Iterable[ObjectInfo]) -> Iterator[SegmentInput]:
    for info in found:
        try:
            segment = SegmentInput.from_object(info)
            if segment.ref.node.origin == "log":
                yield segment
        except NotASegment:
            continue


def _add(members: dict[str, Member], host_id: str, node: Mapping[str, Any]) -> None:
    """Add a node's report, unless it is incomplete, or has a token that is none."""
    try:
        tokens = tuple(int(each) for each in node.get("tokens") or ())
    except (TypeError, ValueError):
        return
    if not all(LOWEST <= each <= HIGHEST for each in tokens):
        return
    if host_id and tokens and node.get("data_center"):
        members[host_id] = Member(host_id, str(node["data_center"]), str(node.get("rack") or ""), tokens)


def _came(segments: Sequence[SegmentInput], rows: Iterable[Mapping[str, Any]]) -> dict[str, list[Came]]:
    found: dict[str, list[Came]] = defaultdict(list)
    for row in rows:
        segment = segments[row["segment"]]
        name = segment.ref.segment
        found[row["node"]].append(Came(name.id, name.version, segment.sealed_at, row["minute"], bool(row["token"])))
    return {host_id: sorted(each) for host_id, each in found.items()}


def _minute(at: datetime) -> int:
    return int(at.timestamp()) // 60


# --- workers


@dataclass(frozen=True)
class Scope:
    """What is read: tables, minutes [start, end), token ranges by their ends; nodes and versions of segments
    by their index."""

    captured: frozenset[UUID]
    schema: Schema
    start: int
    end: int
    ends: list[int]
    hosts: list[str]
    versions: list[int]


def holding(scope: Scope, bucket_url: str, keystore: Path | None) -> Callable[[Batches], Batches]:
    """SEGMENTS to _FOUND."""

    def read(batches: Batches) -> Batches:
        store = open_store(bucket_url)
        keys = None if keystore is None else Keystore.from_environment(keystore)
        for batch in batches:
            for place in (place for row in batch.to_pylist() for place in row["segments"]):
                yield from chunked(_held(scope, store, place, keys), _FOUND)

    return read


def _held(scope: Scope, store: Store, place: Mapping[str, Any], keys: Keystore | None) -> Iterator[dict[str, Any]]:
    number = place["segment"]
    about = dict.fromkeys(_FOUND.names) | {"segment": number, "node": scope.hosts[number]}
    try:
        found = scan(content(store, place), name=place["object"], keys=keys)
    except (SegmentError, ObjectNotFound) as error:
        log.warning("segment not read", object=place["object"], error=str(error))
        yield about | {"kind": "segment", "token": 0}
        return
    minutes: list[int] = []
    frames, topology, refused = _chosen(found, scope.captured)
    yield from (about | {"kind": "topology", "digest": found.body(frame)} for frame in topology)
    for table_id, key, minute, body in _updates(found, frames, scope, number):
        minutes.append(minute)
        if scope.start <= minute < scope.end and table_id in scope.captured:
            at = token(key)
            place_of = bisect_left(scope.ends, at)
            digest = hashlib.blake2b(body, digest_size=_DIGEST_BYTES).digest()
            place = {"table": scope.schema.tables[table_id].full_name, "range": place_of, "minute": minute, "token": at, "digest": digest}
            yield about | {"kind": "update"} | place
    # Writetimes are arbitrary: a few of them must not decide.
    first = int(np.percentile(minutes, 2)) if minutes else None
    yield about | {"kind": "segment", "minute": first, "token": int(not found.problems and not refused)}


def _chosen(found: Scan, captured: frozenset[UUID]) -> tuple[list[Frame], list[Frame], int]:
    """Frames that may hold updates of captured tables, frames that describe the cluster's topology, and the
    number of unreadable ones."""
    frames: list[Frame] = []
    topology: list[Frame] = []
    refused = 0
    for frame in found.frames:
        try:
            count, table_id, *_ = read_head(found.body(frame), version=found.descriptor.version)
        except DecodeError:
            refused += 1
            continue
        if table_id in _TOPOLOGY:
            topology.append(frame)
        elif table_id in captured or count > 1:
            frames.append(frame)
    return frames, topology, refused


def _updates(found: Scan, frames: Sequence[Frame], scope: Scope, number: int) -> Iterator[tuple[UUID, bytes, int, bytes]]:
    """Table, key, minute of the latest writetime, and bytes of the mutation that replicas have in common, of each
    update that can be decoded."""
    bodies = {frame.position: frame for frame in frames}
    for chunk in mutation_decoder.decode(found.image, frames, scope.schema, version=scope.versions[number]):
        latest = _latest(chunk)
        ids = [UUID(bytes=each) for each in chunk.updates["table"].dictionary.to_pylist()]
        columns = (chunk.updates["table"].indices.to_pylist(), chunk.updates["key"].to_pylist(), chunk.updates["position"].to_pylist())
        for code, key, position, timestamp in zip(*columns, latest.tolist(), strict=True):
            common = without_epochs(found.body(bodies[position]), scope.schema, version=scope.versions[number])
            yield ids[code], key, timestamp // audit.MINUTE, common


_NEVER: Final = -(2**63)


def _latest(chunk: mutation_columns.Decoded) -> Any:
    """The latest writetime (µs) of each update of a chunk."""

    def column(batch: Any, name: str) -> Any:
        return batch[name].fill_null(_NEVER).to_numpy(zero_copy_only=False).astype(np.int64)

    rows = np.maximum(column(chunk.rows, "liveness_timestamp"), column(chunk.rows, "deletion_timestamp"))
    for part, name in ((chunk.cells, "timestamp"), (chunk.complex_deletions, "deletion_timestamp")):
        np.maximum.at(rows, part["row"].to_numpy(), column(part, name))
    updates = column(chunk.updates, "deletion_timestamp").copy()
    np.maximum.at(updates, chunk.rows["update"].to_numpy(), rows)
    np.maximum.at(updates, chunk.ranges["update"].to_numpy(), column(chunk.ranges, "deletion_timestamp"))
    return updates


def grouping(ownership: Ownership, replication: Mapping[str, Mapping[str, str]]) -> Callable[[Batches], Batches]:
    """`update` rows of _FOUND, sorted by table, range and minute, to _GROUPS."""

    def group(batches: Batches) -> Batches:
        rows = (row for batch in batches for row in batch.to_pylist())
        places = groupby(rows, key=itemgetter("table", "range", "minute"))
        yield from chunked((of_place(*place, rows=some) for place, some in places), _GROUPS)

    def of_place(table: str, number: int, minute: int, *, rows: Iterable[Mapping[str, Any]]) -> dict[str, Any]:
        try:
            made = _group(ownership, replication[table], table, number, minute, rows)
        except Exception as error:
            if kind_of(error) != "table":
                raise
            return {"group": None, "table": table, "trouble": reason_of(error)}
        return {"group": made.model_dump_json(), "table": table, "trouble": None}

    return group


def _group(
    ownership: Ownership, replication: Mapping[str, str], table: str, number: int, minute: int, rows: Iterable[Mapping[str, Any]]
) -> Group:
    holders: dict[tuple[bytes, int], set[str]] = defaultdict(set)
    for row in rows:
        holders[row["digest"], row["token"]].add(row["node"])
    expected: dict[str, list[bytes]] = defaultdict(list)
    held: dict[str, list[bytes]] = defaultdict(list)
    alone: Counter[str] = Counter()
    for (digest, at), nodes in sorted(holders.items()):
        for host_id in ownership.replicas(replication, at):
            expected[host_id].append(digest)
            if host_id in nodes:
                held[host_id].append(digest)
            elif len(nodes) == 1:
                alone[host_id] += 1
    counted = [
        Held(
            host_id=host_id,
            expected=len(digests),
            held=len(held[host_id]),
            alone=alone[host_id],
            expected_crc32=zlib.crc32(b"".join(digests)),
            held_crc32=zlib.crc32(b"".join(held[host_id])),
        )
        for host_id, digests in sorted(expected.items())
    ]
    return Group(table=table, range=number, minute=minute, mutations=len(holders), nodes=counted)


if __name__ == "__main__":
    sys.exit(main())
