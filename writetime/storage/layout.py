"""Names of all objects in the bucket: sortable, self-describing, readable with `gsutil ls` and `cat`.

    cdc/<cluster>/<dc>/<node>/CommitLog-7-<id>.log                       a segment as a node shipped it, not yet processed
    cdc_parts/<cluster>/<dc>/<node>/CommitLog-7-<id>/<from>-<to>          whole sections of a growing segment: bytes [from, to)
    cdc_archive/<cluster>/date=/hour=/<dc>/<node>/CommitLog-7-<id>.log    processed; by the hour (UTC) in which its node completed it
    cdc_archive/<cluster>/date=/hour=/<dc>/<node>/CommitLog-7-<id>.log.zst  the same, packed: `zstd -d` restores the file
    cdc/<cluster>/<dc>/<node>/conflict-<crc32c>/CommitLog-7-<id>.log      other bytes of a segment that exists already
    conflicts/<cluster>/<dc>/<node>/CommitLog-7-<id>.json                 a segment in conflict, and which copy is valid
    rejected/<cluster>/<dc>/<node>/CommitLog-7-<id>~<crc32c>.log          the rejected bytes of such a segment
    schemas/<cluster>/<dc>/<node>/<utc time>-<schema version>.json        a snapshot of system_schema, as the node returned it
    nodes/<cluster>/<dc>/<node>/<utc time>-<crc32c>.json                  a node's status: identity, disk space, position of its log
    truncations/<cluster>/<dc>/<node>/<utc time>-<crc32c>.json            a node's records of TRUNCATEs, as the node returned them
    batches/<cluster>/<number>/held-<crc32c>.json                         the held segments of its seal, if they are many
    batches/<cluster>/<number>/{manifest,schema,local,sealed,archived}.json  one pipeline run: fixed input, schema, outcome
    batches/<cluster>/<number>/{config,absent,verdicts,verdicts-0001}.json  decisions of its first run (writetime.pipeline.pinned)
    pipelines/<cluster>.json                                              the pipeline's identity, written once
    chains/<cluster>/<number of its first batch>.json                     a rebuild, and the chain of batches that it started
    probes/<id>                                                           written to try whether a service keeps conditions
    clock/<cluster>                                                       written to read the store's clock
    events/<cluster>/<keyspace>.<table>/<batch>-….avro                    events as files, without Kafka
    published/<cluster>.json                                              the position of publishing
    published/<cluster>.told.json                                         waiting tables that were notified
    published/<cluster>.schemas.json                                      ids of the schema registry that records have
    complete/<cluster>.json                                               up to when the tables are complete
    complete/<cluster>.hours.json                                         the last completed hour that was notified
    sessions/<cluster>/{lease,state,failures,stop,turn}.json              the streaming session, and what others ask of it
    sessions/<cluster>/notified.json                                      the problems that cdc_watch has notified
    maintained/<cluster>.json                                             the result of the last maintenance
    maintained/<cluster>.{pace,nodes}.json                                what the last batches took; copies of node statuses
    shelved/<cluster>.json                                                progress of archive packing and retention
    ledger/<cluster>/<dc>/<node>/CommitLog-7-<id>.json                    state and history of a segment
    retries/<cluster>/<dc>/<node>/CommitLog-7-<id>.json                   a held segment that the next batch retries
    again/<cluster>/<table id>.json                                       a table that is to be made again, and who asked
    released/<cluster>/<dc>/<node>/CommitLog-7-<id>.json                  a held segment that an operator released, and why
    quarantine/<cluster>/<dc>/<node>/CommitLog-7-<id>/<position>-<size>.{bin,json}
    quarantine/<cluster>/<dc>/<node>/CommitLog-7-<id>/<position>-<size>-<frames>.{bin,json}  many frames of one table
    quarantine/<cluster>/unpublished/<topic>/<batch>-<ordinal>.{bin,json} an event that was not sent
    claims/<topic>/<batch>-<ordinal>                                      an event that is too large for its topic
    {batches,state,leases}/<cluster>.replay.<namespace>/                  the same, of replays into a shadow namespace
    state/<cluster>/<table id>/g<generation>[.of<buckets>]/b<bucket>/     state shards
    leases/<cluster>/<table id>/g<generation>[.of<buckets>]/b<bucket>.json  the writer of a state shard, and its last write
    frames/<cluster>/<origin>-<run>/CommitLog-8-<n>.log                   frames from other sources: table reads, or retries
    bootstrap/<cluster>/<keyspace>.<table>/<run>.json                     one read of a table from the cluster, and its progress
    bootstrap/<cluster>/<keyspace>.<table>/<run>/<range>.json             a completed token range
    touched/<cluster>/<batch>-<table id>-b<bucket>.json                   keys of rows to be read from the cluster again
    erasures/<cluster>/<batch>.json                                       an erased key, as a keyed hash, and the writetime limit
    erasures/<cluster>/<batch>.done.json                                  the result of the erasure
    erasures/<cluster>/salt                                               the key of these hashes
    erasures/<cluster>/requests/<batch id>.json                           the key itself, until its batch is sealed
    verify/<cluster>/<utc time>.{json,svg}                                tables compared with the cluster: report and chart
    verify/<cluster>.json                                                 how far each table was compared with the cluster
    audit/<cluster>/<utc time>.{json,svg}                                 the replicas' logs compared: report and chart

<node> is the node's host id. External names (cluster, datacenter, keyspace, table) are percent-escaped, so
that none can add a path part; `unpart` is the inverse of `part`. Must not know a store; does no I/O.
"""

from __future__ import annotations

import hashlib
import re
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import lru_cache
from typing import Final, Literal, cast
from urllib.parse import quote, unquote

from writetime.errors import NotASegment

_ARCHIVED = re.compile(r"(?:~[0-9a-f]{8})?\.log(?:\.zst)?$")
_HOUR = re.compile(r"cdc_archive/[^/]+/date=(\d{4}-\d\d-\d\d)/hour=(\d\d)/")
_PART = re.compile(r"([0-9]{10,19})-([0-9]{10,19})")
_SEGMENT = re.compile(r"CommitLog-([0-9]{1,4})-([0-9]{1,19})\.log")
_SNAPSHOT = re.compile(r"schemas/[^/]+/[^/]+/[^/]+/[0-9]{8}T[0-9]{6}Z-[^/]+\.json")
_CONFLICT = re.compile(r"(cdc/[^/]+/[^/]+/[^/]+)/conflict-([0-9a-f]{8})/([^/]+)")
_FRAMES = re.compile(r"/[0-9]+-[0-9]+-([0-9]{1,18})\.(?:bin|json)$")
_BATCH = re.compile(r"batches/[^/]+/([0-9]{10,18})/[^/]+")
_LARGEST_ID: Final = 2**63 - 1
"""Segment ids in Cassandra are signed 64-bit integers."""
_MADE = re.compile(r"(snapshot|reread|retry)-(.+)")
_LONGEST: Final = 200
"""Bytes of a table's path part. A file system allows 255, of which a sink may need some."""
_LONGEST_CLUSTER: Final = 200
"""Bytes of a cluster's path part, to which `.replay.<namespace>` and the like are added."""
_OF_ANOTHER_CLUSTER: Final = re.compile(r"\.replay\.[a-z0-9_]+$|\.(?:told|schemas|bigquery|hours|pace|nodes)$")
"""How a cluster's name would end that objects of another cluster have: `published/<cluster>.told.json`."""
ARCHIVE: Final = "cdc_archive"
_PACKED: Final = ".zst"
FRAMES: Final = "frames"
"""In place of the datacenter, for frames that are not from a node's log."""

Origin = Literal["log", "snapshot", "reread", "retry"]


@lru_cache(maxsize=4096)
def part(text: str) -> str:
    """One path part: everything but letters, digits, `_`, `-` and inner dots is percent-escaped; "" and dots
    alone too."""
    escaped = quote(text, safe="")
    if escaped.strip(".") == "":
        escaped = escaped.replace(".", "%2E") or "%"
    return escaped.replace("~", "%7E")


def table_folder(keyspace: str, table: str) -> str:
    """`<keyspace>.<table>` as one path part; the end of one that is too long for a folder is hashed."""
    folder = f"{part(keyspace)}.{part(table)}"
    if len(folder) <= _LONGEST:
        return folder
    digest = hashlib.blake2b(folder.encode(), digest_size=16).hexdigest()
    return f"{folder[: _LONGEST - len(digest) - 1]}~{digest}"


def unpart(text: str) -> str:
    """Inverse of `part`."""
    return "" if text == "%" else unquote(text)


def reason_no_cluster(name: str) -> str | None:
    """Why objects of a cluster of that name would not have names of their own; None if they have."""
    try:
        size = len(part(name))
    except UnicodeEncodeError:
        return "it cannot be encoded in UTF-8"
    if size > _LONGEST_CLUSTER:
        return f"escaped for names of objects it has {size} bytes, and {_LONGEST_CLUSTER} are possible"
    if match := _OF_ANOTHER_CLUSTER.search(name):
        return f"with `{match[0]}` at its end, its objects would have the names of those of the cluster `{name[: match.start()]}`"
    return None


@dataclass(frozen=True, slots=True, order=True)
class SegmentName:
    """A commit log segment's file name: descriptor version and id. A node's ids increase: order by id, not by
    name."""

    id: int
    version: int

    @classmethod
    def parse(cls, filename: str) -> SegmentName:
        match = _SEGMENT.fullmatch(filename)
        if match is None or int(match[2]) > _LARGEST_ID:
            raise NotASegment("not named CommitLog-<version>-<id>.log", operation="read a segment's name", obj=filename)
        return cls(id=int(match[2]), version=int(match[1]))

    @property
    def filename(self) -> str:
        return f"CommitLog-{self.version}-{self.id}.log"

    @property
    def stem(self) -> str:
        return f"CommitLog-{self.version}-{self.id}"

    @property
    def idx_filename(self) -> str:
        return f"{self.stem}_cdc.idx"


@dataclass(frozen=True, slots=True, order=True)
class NodeName:
    """A node in object names: cluster, datacenter, host id."""

    cluster: str
    datacenter: str
    host_id: str

    @property
    def path(self) -> str:
        return f"{part(self.cluster)}/{part(self.datacenter)}/{part(self.host_id)}"

    @property
    def origin(self) -> Origin:
        """The source of its frames: a node's log, a table read, or a retry. Host ids are UUIDs, so they are
        distinct."""
        match = _MADE.fullmatch(self.host_id) if self.datacenter == FRAMES else None
        return cast(Origin, match[1]) if match else "log"

    @property
    def is_reading(self) -> bool:
        """Whether its frames, or those that are retried, were read from tables."""
        match = _MADE.fullmatch(self.ring_host or self.host_id) if self.datacenter == FRAMES else None
        return match is not None and match[1] in ("snapshot", "reread")

    @property
    def ring_host(self) -> str | None:
        """The node that logged the frames, also for retried ones; None for other frames."""
        origin = self.origin
        return self.host_id if origin == "log" else self.host_id.split("~", 1)[1] if origin == "retry" else None

    @classmethod
    def of_facts(cls, name: str) -> NodeName | None:
        """The node of an object under nodes/; None for other names."""
        parts = name.removesuffix(".json").split("/")
        return cls._spelt(*parts[1:4]) if len(parts) == 5 and parts[0] == "nodes" and name.endswith(".json") else None

    @classmethod
    def _spelt(cls, *path: str) -> NodeName | None:
        """The node of these parts of a name; None if they are not in canonical form: a node has one name."""
        node = cls(*map(unpart, path))
        return node if node.path == "/".join(path) else None

    @classmethod
    def of_truncations(cls, name: str) -> NodeName | None:
        """The node of an object under truncations/; None for other names."""
        parts = name.split("/")
        return cls._spelt(*parts[1:4]) if len(parts) == 5 and parts[0] == "truncations" and name.endswith(".json") else None

    @classmethod
    def made(cls, cluster: str, origin: Origin, run: str) -> NodeName:
        """A placeholder node for frames from another source. The `run` of a retry ends with ~ and the host id
        of its node."""
        return cls(cluster, FRAMES, f"{origin}-{run}")


@dataclass(frozen=True, slots=True, order=True)
class SegmentRef:
    """A segment of a node."""

    node: NodeName
    segment: SegmentName

    @property
    def incoming(self) -> str:
        if self.node.origin != "log":
            return f"{frames_prefix(self.node.cluster)}{part(self.node.host_id)}/{self.segment.filename}"
        return f"cdc/{self.node.path}/{self.segment.filename}"

    def conflict(self, crc32c: int) -> str:
        """The name for the node's upload if other bytes exist under `incoming`."""
        return f"cdc/{self.node.path}/conflict-{crc32c:08x}/{self.segment.filename}"

    @property
    def conflicts(self) -> str:
        """The document of a segment in conflict and of the operator's decision."""
        return f"{conflicts_prefix(self.node.cluster)}{part(self.node.datacenter)}/{part(self.node.host_id)}/{self.segment.stem}.json"

    def rejected(self, crc32c: int) -> str:
        """The name for rejected bytes of the segment."""
        return f"rejected/{self.node.path}/{self.segment.stem}~{crc32c:08x}.log"

    @property
    def growing(self) -> str:
        """The prefix of a growing segment's parts."""
        return f"cdc_parts/{self.node.path}/{self.segment.stem}"

    def part(self, start: int, end: int) -> str:
        """The part with bytes [start, end) of the segment's file; names sort by start."""
        return f"{self.growing}/{start:010d}-{end:010d}"

    @property
    def ledger(self) -> str:
        return f"{ledger_prefix(self.node)}{self.segment.stem}.json"

    @property
    def released(self) -> str:
        return f"released/{self.node.path}/{self.segment.stem}.json"

    @property
    def retry(self) -> str:
        """Marks the segment for a retry; the ledger holds the details."""
        return f"retries/{self.node.path}/{self.segment.stem}.json"

    def archived(self, sealed_at: datetime, *, crc32c: int | None = None) -> str:
        """The place in the archive; `sealed_at` (aware) is when the node finished the segment. With `crc32c`,
        the name for bytes that differ from those in the archive under the segment's name:
        `CommitLog-7-<id>~<crc32c>.log`."""
        utc = sealed_at.astimezone(UTC)
        cluster = part(self.node.cluster)
        node = f"{part(self.node.datacenter)}/{part(self.node.host_id)}"
        other = "" if crc32c is None else f"~{crc32c:08x}"
        return f"{ARCHIVE}/{cluster}/date={utc:%Y-%m-%d}/hour={utc:%H}/{node}/{self.segment.stem}{other}.log"

    def quarantined(self, position: int, size: int, frames: int = 1) -> str:
        """Stem of a quarantine record: a range of bytes, or `frames` frames together; `.bin` holds the bytes,
        `.json` the reason."""
        return f"{self.quarantine}{position:010d}-{size}" + (f"-{frames}" if frames > 1 else "")

    @property
    def quarantine(self) -> str:
        """Prefix of the segment's quarantine records."""
        return f"quarantine/{self.node.path}/{self.segment.stem}/"

    @classmethod
    def from_retry(cls, name: str) -> SegmentRef | None:
        """The segment of an object under retries/; None for other names."""
        ref = cls._of_document(name)
        return ref if ref is not None and ref.retry == name else None

    @classmethod
    def from_ledger(cls, name: str) -> SegmentRef | None:
        """The segment of an object under ledger/; None for other names."""
        ref = cls._of_document(name)
        return ref if ref is not None and ref.ledger == name else None

    @classmethod
    def _of_document(cls, name: str) -> SegmentRef | None:
        """The segment of a document below some folder, in any spelling."""
        parts = name.split("/")
        if len(parts) != 5:
            return None
        try:
            segment = SegmentName.parse(f"{parts[4].removesuffix('.json')}.log")
        except NotASegment:
            return None
        return cls(NodeName(*map(unpart, parts[1:4])), segment)

    @classmethod
    def from_conflict(cls, name: str) -> tuple[SegmentRef, int] | None:
        """The segment in conflict of an object under cdc/, and the CRC32C in its name; None for other
        names."""
        match = _CONFLICT.fullmatch(name)
        if match is None:
            return None
        try:
            ref = cls.from_object(f"{match[1]}/{match[3]}")
        except NotASegment:
            return None
        return ref, int(match[2], 16)

    @classmethod
    def from_object(cls, name: str) -> SegmentRef:
        """The segment of an object under cdc/, cdc_archive/ or cdc_parts/."""
        parts = name.split("/")
        if parts[0] == "cdc" and len(parts) == 5:
            cluster, datacenter, host_id, filename = parts[1:]
        elif parts[0] == FRAMES and len(parts) == 4:
            (cluster, host_id, filename), datacenter = parts[1:], FRAMES
        elif parts[0] == ARCHIVE and len(parts) == 7:
            cluster, datacenter, host_id, filename = parts[1], *parts[4:]
            filename = _ARCHIVED.sub(".log", filename)
        elif parts[0] == "cdc_parts" and len(parts) in (5, 6):
            cluster, datacenter, host_id, filename = *parts[1:4], f"{parts[4]}.log"
        else:
            raise NotASegment("not where segments are kept", operation="read an object's name", obj=name)
        node = NodeName(unpart(cluster), unpart(datacenter), unpart(host_id))
        ref = cls(node, SegmentName.parse(filename))
        # Of two spellings of one name, one is the segment's: else two objects stand for one segment, or a
        # node's for frames of nobody.
        spelt = {"cdc": ref.incoming, FRAMES: ref.incoming, "cdc_parts": ref.growing}.get(parts[0])
        if not name.startswith(spelt or f"{ARCHIVE}/{part(node.cluster)}/") or (parts[0] == "cdc_parts" and node.origin != "log"):
            raise NotASegment("not written as names are", operation="read an object's name", obj=name)
        return ref


def retries_prefix(cluster: str) -> str:
    return f"retries/{part(cluster)}/"


def schema_looked_at(cluster: str) -> str:
    """Says for which schema, rules and held segments it was last asked whether any of these can come in."""
    return f"{retries_prefix(cluster)}looked-at"


def is_segment(name: str) -> bool:
    """Whether an object is named like one that holds a segment, all of it or some."""
    try:
        SegmentRef.from_object(name)
    except NotASegment:
        return False
    return True


def incoming_prefix(cluster: str) -> str:
    return f"cdc/{part(cluster)}/"


def parts_prefix(cluster: str) -> str:
    return f"cdc_parts/{part(cluster)}/"


def part_range(name: str) -> tuple[int, int]:
    """Which bytes [start, end) of its segment's file a part holds. NotASegment if the object is none."""
    match = _PART.fullmatch(name.rpartition("/")[2]) if name.startswith("cdc_parts/") else None
    if match is None or int(match[1]) >= int(match[2]):
        raise NotASegment("not named <from>-<to> below its segment", operation="read a part's name", obj=name)
    return int(match[1]), int(match[2])


def frames_prefix(cluster: str) -> str:
    return f"{FRAMES}/{part(cluster)}/"


def bootstrap_prefix(cluster: str, keyspace: str = "", table: str = "") -> str:
    """Prefix for all tables, or for one."""
    return f"bootstrap/{part(cluster)}/" + (f"{table_folder(keyspace, table)}/" if table else "")


def bootstrap_run(cluster: str, keyspace: str, table: str, run: str) -> str:
    return f"{bootstrap_prefix(cluster, keyspace, table)}{part(run)}.json"


def bootstrap_range(cluster: str, keyspace: str, table: str, run: str, number: int) -> str:
    return f"{bootstrap_prefix(cluster, keyspace, table)}{part(run)}/{number:06d}.json"


def incomplete_rows_prefix(cluster: str) -> str:
    return f"touched/{part(cluster)}/"


def undecided(cluster: str, batch: int, table_id: str, bucket: int) -> str:
    """Keys of rows for which no record decides whether a TRUNCATE applies; next to `incomplete_rows`."""
    return f"{incomplete_rows(cluster, batch, table_id, bucket).removesuffix('.json')}-undecided.json"


def incomplete_rows(cluster: str, batch: int, table_id: str, bucket: int) -> str:
    return f"{incomplete_rows_prefix(cluster)}{batch:010d}-{part(table_id)}-b{bucket:05d}.json"


def erasures_prefix(cluster: str) -> str:
    return f"erasures/{part(cluster)}/"


def erasure(cluster: str, batch: int) -> str:
    """The key that the batch erases (`writetime.pipeline.erasures`)."""
    return f"{erasures_prefix(cluster)}{batch:010d}.json"


def erasure_done(cluster: str, batch: int) -> str:
    return f"{erasures_prefix(cluster)}{batch:010d}.done.json"


def erasure_salt(cluster: str) -> str:
    return f"{erasures_prefix(cluster)}salt"


def erasure_requests(cluster: str) -> str:
    """Prefix of the keys that are being erased."""
    return f"{erasures_prefix(cluster)}requests/"


def erasure_request(cluster: str, batch_id: str) -> str:
    return f"{erasure_requests(cluster)}{part(batch_id)}.json"


def verify_prefix(cluster: str) -> str:
    return f"verify/{part(cluster)}/"


def verify_report(cluster: str, when: datetime) -> str:
    """The report; the chart's name ends with .svg."""
    return f"{verify_prefix(cluster)}{_second(when)}.json"


def comparisons(cluster: str) -> str:
    """How far each table was compared (`writetime.pipeline.comparisons`)."""
    return f"verify/{part(cluster)}.json"


def audit_prefix(cluster: str) -> str:
    return f"audit/{part(cluster)}/"


def audit_report(cluster: str, when: datetime) -> str:
    """The report; the chart's name ends with .svg."""
    return f"{audit_prefix(cluster)}{_second(when)}.json"


def _second(when: datetime) -> str:
    return f"{when.astimezone(UTC):%Y%m%dT%H%M%SZ}"


def archive_prefix(cluster: str) -> str:
    return f"{ARCHIVE}/{part(cluster)}/"


def packed(name: str) -> str:
    """The name of an archived segment after packing."""
    return f"{name}{_PACKED}"


def is_packed(name: str) -> bool:
    return name.endswith(_PACKED)


def plain(name: str) -> str:
    """Inverse of `packed`; other names are returned unchanged."""
    return name.removesuffix(_PACKED)


def archive_hour(name: str) -> datetime | None:
    """The hour in which an archived segment was completed; None if it is not in the name."""
    match = _HOUR.match(name)
    try:
        return datetime.fromisoformat(f"{match[1]}T{match[2]}:00:00+00:00") if match else None
    except ValueError:
        return None


def hour_of(moment: datetime) -> datetime:
    """The hour (UTC) of an aware time, for the archive's folders."""
    return moment.astimezone(UTC).replace(minute=0, second=0, microsecond=0)


def archive_hour_prefix(cluster: str, hour: datetime) -> str:
    """Prefix of all segments completed in the hour that starts at `hour` (aware)."""
    utc = hour.astimezone(UTC)
    return f"{archive_prefix(cluster)}date={utc:%Y-%m-%d}/hour={utc:%H}/"


def schema_prefix(cluster: str) -> str:
    return f"schemas/{part(cluster)}/"


def node_schema(node: NodeName, taken_at: datetime, version: str) -> str:
    """A snapshot of system_schema, read from the node at `taken_at`."""
    return f"schemas/{node.path}/{_second(taken_at)}-{part(version)}.json"


def quarantined_frames(name: str) -> int:
    """Number of frames in a quarantine record, by its name; 1 if the name has none."""
    match = _FRAMES.search(name)
    return int(match[1]) if match else 1


def is_schema_snapshot(name: str) -> bool:
    """Whether the name of an object under schemas/ is that of a snapshot."""
    return _SNAPSHOT.fullmatch(name) is not None


def truncations_prefix(cluster: str) -> str:
    return f"truncations/{part(cluster)}/"


def node_truncations(node: NodeName, taken_at: datetime, checksum: str) -> str:
    """The node's records of TRUNCATEs, read at `taken_at`; `checksum` is the content's."""
    return f"truncations/{node.path}/{_second(taken_at)}-{part(checksum)}.json"


def truncations_checksum(name: str) -> str:
    """The checksum in the name of a `truncations` object."""
    return unpart(name.removesuffix(".json").rpartition("-")[2])


def node_status(node: NodeName, at: datetime, checksum: str) -> str:
    """The node's status at that time; `checksum` is the content's."""
    return f"nodes/{node.path}/{_second(at)}-{checksum}.json"


def node_documents(node: NodeName) -> str:
    """Prefix of all objects of the node under nodes/."""
    return f"nodes/{node.path}"


def conflicts_prefix(cluster: str) -> str:
    return f"conflicts/{part(cluster)}/"


def ledger_of(cluster: str) -> str:
    """Prefix of the ledger of all nodes."""
    return f"ledger/{part(cluster)}/"


def made_again_prefix(cluster: str) -> str:
    """Prefix of requests to make tables again."""
    return f"again/{part(cluster)}/"


def made_again(cluster: str, table_id: str) -> str:
    return f"{made_again_prefix(cluster)}{part(table_id)}.json"


def released_prefix(cluster: str) -> str:
    """Prefix of segments that an operator released from quarantine."""
    return f"released/{part(cluster)}/"


def ledger_prefix(node: NodeName) -> str:
    return f"ledger/{node.path}/"


def quarantine_prefix(cluster: str) -> str:
    return f"quarantine/{part(cluster)}/"


def nodes_prefix(cluster: str) -> str:
    return f"nodes/{part(cluster)}/"


def shadow_chain(cluster: str, namespace: str) -> str:
    """The name in place of the cluster's, in batches and state of replays into a shadow namespace."""
    return f"{cluster}.replay.{namespace}"


def batches_prefix(cluster: str) -> str:
    return f"batches/{part(cluster)}/"


def batch_folder(cluster: str, number: int) -> str:
    """Sorts before the batch's objects and after those of earlier batches."""
    return f"{batches_prefix(cluster)}{number:010d}"


def batch_object(cluster: str, number: int, what: str) -> str:
    """`what` is manifest, schema, local, sealed, archiver or archived, or of `writetime.pipeline.pinned`."""
    return f"{batch_folder(cluster, number)}/{what}.json"


def batch_folders_end(cluster: str) -> str:
    """Sorts after all batches."""
    return f"{batches_prefix(cluster)}:"


def batch_number(name: str) -> int | None:
    """The batch of an object under batches/; None if it is not a document of a batch."""
    match = _BATCH.fullmatch(name)
    number = int(match[1]) if match else 0
    return number if match and match[1] == f"{number:010d}" and number > 0 else None


def owner(cluster: str) -> str:
    """The pipeline's identity (`writetime.pipeline.identity`)."""
    return f"pipelines/{part(cluster)}.json"


def chains_prefix(cluster: str) -> str:
    return f"chains/{part(cluster)}/"


def chain(cluster: str, first: int) -> str:
    """The rebuild that starts with that batch (`writetime.pipeline.chains`)."""
    return f"{chains_prefix(cluster)}{first:010d}.json"


def live(chain: str, namespace: str | None) -> str:
    """The cluster of a chain, or of a chain of replays into a shadow `namespace`."""
    return chain if namespace is None else chain.removesuffix(f".replay.{namespace}")


def clock(cluster: str) -> str:
    return f"clock/{part(cluster)}"


def shelved(cluster: str) -> str:
    return f"shelved/{part(cluster)}.json"


def events_prefix(cluster: str) -> str:
    """Default prefix of events as Avro files."""
    return f"events/{part(cluster)}/"


def pace(cluster: str) -> str:
    """How long the last batches took (`writetime.pipeline.pace`)."""
    return f"maintained/{part(cluster)}.pace.json"


def statuses(cluster: str) -> str:
    """Copies of the newest statuses of many nodes (`writetime.pipeline.node_facts`)."""
    return f"maintained/{part(cluster)}.nodes.json"


def maintained(cluster: str) -> str:
    return f"maintained/{part(cluster)}.json"


def published(cluster: str) -> str:
    return f"published/{part(cluster)}.json"


def complete(cluster: str) -> str:
    """Up to when the tables are complete (`writetime.pipeline.watermark`)."""
    return f"complete/{part(cluster)}.json"


def complete_hours(cluster: str) -> str:
    """The last completed hour that was notified (`writetime.pipeline.completed_hours`)."""
    return f"complete/{part(cluster)}.hours.json"


def sessions_prefix(cluster: str) -> str:
    """Prefix of what the streaming session, its requesters and cdc_watch write."""
    return f"sessions/{part(cluster)}/"


def watch_notified(cluster: str) -> str:
    """The problems that cdc_watch has notified (`writetime.monitoring.watch`)."""
    return f"{sessions_prefix(cluster)}notified.json"


def session(cluster: str, what: Literal["lease", "state", "stop", "turn", "failures"]) -> str:
    """A document of the streaming session (`writetime.pipeline.sessions`)."""
    return f"{sessions_prefix(cluster)}{what}.json"


def state_lease(cluster: str, table_id: str, generation: int, bucket: int, of: int | None = None) -> str:
    return f"leases/{part(cluster)}/{part(table_id)}/{_generation_folder(generation, of)}/b{bucket:05d}.json"


def leases_prefix(cluster: str) -> str:
    """Prefix of the leases of all state shards."""
    return f"leases/{part(cluster)}/"


def published_notified(cluster: str) -> str:
    return f"published/{part(cluster)}.told.json"


def used_schemas(cluster: str) -> str:
    """The ids of a schema registry that records have (`writetime.pipeline.used_schemas`)."""
    return f"published/{part(cluster)}.schemas.json"


def external_tables(cluster: str) -> str:
    """What is known of external tables in BigQuery (`writetime.pipeline.external_tables`)."""
    return f"published/{part(cluster)}.bigquery.json"


def states_prefix(cluster: str) -> str:
    """Prefix of all state."""
    return f"state/{part(cluster)}/"


def state_prefix(cluster: str, table_id: str) -> str:
    """Prefix of all state of a table's incarnation."""
    return f"{states_prefix(cluster)}{part(table_id)}/"


def state_shard(cluster: str, table_id: str, generation: int, bucket: int, of: int | None = None) -> str:
    """`of`: the number of buckets among which a generation was distributed anew; None: as it began."""
    return f"{state_prefix(cluster, table_id)}{_generation_folder(generation, of)}/b{bucket:05d}"


def _generation_folder(generation: int, of: int | None) -> str:
    return f"g{generation:04d}" if of is None else f"g{generation:04d}.of{of:05d}"


def state_generation(name: str) -> tuple[int, int]:
    """The generation of a shard's object, and the number of buckets among which it was distributed anew (0: it was
    not): of a table's state, the greater is the later."""
    generation, _, of = name.split("/")[3].removeprefix("g").partition(".of")
    return int(generation), int(of or 0)


def claim(topic: str, batch: int, ordinal: int) -> str:
    """The name of an event that is too large for its topic; topic names need no escape."""
    return f"claims/{topic}/{batch:010d}-{ordinal}"


def claims_prefix(topic_prefix: str) -> str:
    """Prefix of such events for topics that start with `prefix`."""
    return f"claims/{topic_prefix}."


def unpublishable(cluster: str, topic: str, batch: int, ordinal: int) -> str:
    """Stem of an event that was not sent; `.bin` holds the record's value, `.json` its key and the reason."""
    return f"{unpublishable_prefix(cluster)}{topic}/{batch:010d}-{ordinal}"


def unpublishable_prefix(cluster: str) -> str:
    return f"{quarantine_prefix(cluster)}unpublished/"


def unpublishable_batch(name: str) -> int:
    """The batch of an event that was not sent, by an object's name."""
    return int(name.rpartition("/")[2].partition("-")[0])
