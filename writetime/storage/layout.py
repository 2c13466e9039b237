"""Names of objects in the bucket, in one place: sortable, self-describing, made for people with `gsutil ls` and `cat`.

    cdc/<cluster>/<dc>/<node>/CommitLog-7-<id>.log                       a segment as a node shipped it, not yet processed
    cdc_parts/<cluster>/<dc>/<node>/CommitLog-7-<id>/<from>-<to>          whole sections of one that grows: bytes [from, to) of its file
    cdc_archive/<cluster>/date=/hour=/<dc>/<node>/CommitLog-7-<id>.log    processed; the hour (UTC) it was sealed on its node
    cdc_archive/<cluster>/date=/hour=/<dc>/<node>/CommitLog-7-<id>.log.zst  the same, packed since: `zstd -d` makes the very file of it
    cdc/<cluster>/<dc>/<node>/conflict-<crc32c>/CommitLog-7-<id>.log      other bytes of a segment that is there already
    conflicts/<cluster>/<dc>/<node>/CommitLog-7-<id>.json                 a segment of which there are two, and which of them counts
    rejected/<cluster>/<dc>/<node>/CommitLog-7-<id>~<crc32c>.log          bytes of such a segment that do not count
    schemas/<cluster>/<dc>/<node>/<utc time>-<schema version>.json        a snapshot of system_schema, as the node answered
    schemas/<cluster>/<utc time>-<schema version>.json                    the same of shippers up to 0.1
    nodes/<cluster>/<dc>/<node>/<utc time>-<crc32c>.json                  a node's status: who it is, its room, how far its log is shipped
    nodes/<cluster>/<dc>/<node>.json                                      who it is, of shippers up to 0.1
    truncations/<cluster>/<dc>/<node>/<utc time>-<crc32c>.json            what a node records of its TRUNCATEs, as it answered
    space/<cluster>/date=/<dc>/<node>/<utc time>-<level>.json             the room that a node has for its log, of shippers up to 0.1
    batches/<cluster>/<number>/held-<crc32c>.json                         what its seal holds, where that is much
    batches/<cluster>/<number>/{manifest,schema,local,sealed,archived}.json  one pipeline run: frozen input, what was learnt, outcome
    batches/<cluster>/<number>/{config,absent,verdicts,verdicts-0001}.json  what its first run decided (writetime.pipeline.pinned)
    pipelines/<cluster>.json                                              who the pipeline is, made once
    chains/<cluster>/<number of its first batch>.json                     a rebuild, and the chain of batches that it began
    clock/<cluster>                                                       written to see what time the store has
    events/<cluster>/<keyspace>.<table>/<batch>-….avro                    events as files, where there is no Kafka
    published/<cluster>.json                                              how far publishing is known to be
    published/<cluster>.told.json                                         tables that wait, and of which people were told
    maintained/<cluster>.json                                             what the last maintenance came to
    shelved/<cluster>.json                                                how far the archive is packed, and what was let go
    ledger/<cluster>/<dc>/<node>/CommitLog-7-<id>.json                    what became of a segment
    retries/<cluster>/<dc>/<node>/CommitLog-7-<id>.json                   a held segment that the next batch is to try again
    released/<cluster>/<dc>/<node>/CommitLog-7-<id>.json                  a held segment that a person released, and why
    quarantine/<cluster>/<dc>/<node>/CommitLog-7-<id>/<position>-<size>.{bin,json}
    quarantine/<cluster>/<dc>/<node>/CommitLog-7-<id>/<position>-<size>-<frames>.{bin,json}  many frames of one table
    quarantine/<cluster>/unpublished/<topic>/<batch>-<ordinal>.{bin,json} an event that is not sent
    claims/<topic>/<batch>-<ordinal>                                      an event that is too large for its topic
    {batches,state,leases}/<cluster>.replay.<namespace>/                  the same of replays into a namespace of their own
    state/<cluster>/<table id>/g<generation>/b<bucket>/                   state shards
    leases/<cluster>/<table id>/g<generation>/b<bucket>.json              who writes to a state shard, and what was written last
    frames/<cluster>/<origin>-<run>/CommitLog-8-<n>.log                   frames that no node logged: read from the ring, or retried
    bootstrap/<cluster>/<keyspace>.<table>/<run>.json                     one reading of a table from the ring, and how far it is
    bootstrap/<cluster>/<keyspace>.<table>/<run>/<range>.json             a range that is finished
    touched/<cluster>/<batch>-<table id>-b<bucket>.json                   keys that are to be read from the ring again
    erasures/<cluster>/<batch>.json                                       a key that was erased, as a keyed hash, and up to which writetime
    erasures/<cluster>/<batch>.done.json                                  what the erasure came to
    erasures/<cluster>/salt                                               what these hashes are keyed with
    erasures/<cluster>/requests/<batch id>.json                           the key itself, until its batch is sealed
    verify/<cluster>/<utc time>.{json,svg}                                tables compared with the ring: report and picture
    audit/<cluster>/<utc time>.{json,svg}                                 what each replica's log held, compared: report and picture

<node> is the node's host id. Parts that come from outside (cluster, datacenter, keyspace, table names) are percent-escaped, so
that none can reach out of its place; `part` and `unpart` are each other's inverse. This module knows no store and does no I/O.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from datetime import UTC, date, datetime
from typing import Final, Literal, cast
from urllib.parse import quote, unquote

from writetime.errors import NotASegment

_ARCHIVED = re.compile(r"(?:~[0-9a-f]{8})?\.log(?:\.zst)?$")
_HOUR = re.compile(r"cdc_archive/[^/]+/date=(\d{4}-\d\d-\d\d)/hour=(\d\d)/")
_PART = re.compile(r"([0-9]{10,19})-([0-9]{10,19})")
_SEGMENT = re.compile(r"CommitLog-([0-9]{1,4})-([0-9]{1,19})\.log")
_SNAPSHOT = re.compile(r"schemas/[^/]+/(?:[^/]+/[^/]+/)?[0-9]{8}T[0-9]{6}Z-[^/]+\.json")
_CONFLICT = re.compile(r"(cdc/[^/]+/[^/]+/[^/]+)/conflict-([0-9a-f]{8})/([^/]+)")
_FRAMES = re.compile(r"/[0-9]+-[0-9]+-([0-9]{1,18})\.(?:bin|json)$")
_BATCH = re.compile(r"batches/[^/]+/([0-9]{10,18})/[^/]+")
_LARGEST_ID: Final = 2**63 - 1
"""Of a segment: Cassandra's ids are 64 bits, signed."""
_MADE = re.compile(r"(snapshot|reread|retry)-(.+)")
ARCHIVE: Final = "cdc_archive"
_PACKED: Final = ".zst"
FRAMES: Final = "frames"
"""What stands for the datacenter of frames that no node logged."""

Origin = Literal["log", "snapshot", "reread", "retry"]


def part(text: str) -> str:
    """One path part: everything but letters, digits, `_`, `-` and inner dots is percent-escaped; "" and dots alone too."""
    escaped = quote(text, safe="")
    if escaped.strip(".") == "":
        escaped = escaped.replace(".", "%2E") or "%"
    return escaped.replace("~", "%7E")


def unpart(text: str) -> str:
    """Inverse of `part`."""
    return "" if text == "%" else unquote(text)


@dataclass(frozen=True, slots=True, order=True)
class SegmentName:
    """A commit log segment's file name: descriptor version and id. Ids increase over one node's life: order by id, not by name."""

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
    """A node as it appears in names: cluster, datacenter, host id."""

    cluster: str
    datacenter: str
    host_id: str

    @property
    def path(self) -> str:
        return f"{part(self.cluster)}/{part(self.datacenter)}/{part(self.host_id)}"

    @property
    def origin(self) -> Origin:
        """Where its frames come from: the log of a node, or something that makes frames. Host ids are UUIDs, so they cannot be confused."""
        match = _MADE.fullmatch(self.host_id) if self.datacenter == FRAMES else None
        return cast(Origin, match[1]) if match else "log"

    @property
    def ring_host(self) -> str | None:
        """The node of the ring whose frames they are; None of frames that were made. Of retried ones it is known still."""
        origin = self.origin
        return self.host_id if origin == "log" else self.host_id.split("~", 1)[1] if origin == "retry" else None

    @classmethod
    def of_facts(cls, name: str) -> NodeName | None:
        """The node that an object under nodes/ describes; None if it is no such object."""
        pieces = name.removesuffix(".json").split("/")
        return cls._spelt(*pieces[1:4]) if len(pieces) in (4, 5) and pieces[0] == "nodes" and name.endswith(".json") else None

    @classmethod
    def _spelt(cls, *path: str) -> NodeName | None:
        """The node of these parts of a name; None if its name would be spelt in another way: a node has one object."""
        node = cls(*map(unpart, path))
        return node if node.path == "/".join(path) else None

    @classmethod
    def of_space(cls, name: str) -> NodeName | None:
        """The node of which an object under space/ tells; None if it is no such object."""
        pieces = name.split("/")
        return cls._spelt(pieces[1], *pieces[3:5]) if len(pieces) == 6 and pieces[0] == "space" and name.endswith(".json") else None

    @classmethod
    def of_truncations(cls, name: str) -> NodeName | None:
        """The node whose records an object under truncations/ holds; None if it is no such object."""
        pieces = name.split("/")
        return cls._spelt(*pieces[1:4]) if len(pieces) == 5 and pieces[0] == "truncations" and name.endswith(".json") else None

    @classmethod
    def made(cls, cluster: str, origin: Origin, run: str) -> NodeName:
        """The stand-in for a node of frames that no node logged. The `run` of a retry ends with ~ and the host id of who logged them."""
        return cls(cluster, FRAMES, f"{origin}-{run}")


@dataclass(frozen=True, slots=True, order=True)
class SegmentRef:
    """One node's one segment."""

    node: NodeName
    segment: SegmentName

    @property
    def incoming(self) -> str:
        if self.node.origin != "log":
            return f"{frames_prefix(self.node.cluster)}{part(self.node.host_id)}/{self.segment.filename}"
        return f"cdc/{self.node.path}/{self.segment.filename}"

    def conflict(self, crc32c: int) -> str:
        """Where its node ships it if other bytes lie under `incoming`."""
        return f"cdc/{self.node.path}/conflict-{crc32c:08x}/{self.segment.filename}"

    @property
    def conflicts(self) -> str:
        """The document of what is known of such bytes, and of what a person decided."""
        return f"{conflicts_prefix(self.node.cluster)}{part(self.node.datacenter)}/{part(self.node.host_id)}/{self.segment.stem}.json"

    def rejected(self, crc32c: int) -> str:
        """Where bytes of it go that do not count."""
        return f"rejected/{self.node.path}/{self.segment.stem}~{crc32c:08x}.log"

    @property
    def growing(self) -> str:
        """What a segment goes by as long as only parts of it are there; they lie below."""
        return f"cdc_parts/{self.node.path}/{self.segment.stem}"

    def part(self, start: int, end: int) -> str:
        """The part that holds bytes [start, end) of the segment's file; in order of names they are in order of their starts."""
        return f"{self.growing}/{start:010d}-{end:010d}"

    @property
    def ledger(self) -> str:
        return f"{ledger_prefix(self.node)}{self.segment.stem}.json"

    @property
    def released(self) -> str:
        return f"released/{self.node.path}/{self.segment.stem}.json"

    @property
    def retry(self) -> str:
        """Says that the ledger has noted the segment for another try; what names it there is the ledger."""
        return f"retries/{self.node.path}/{self.segment.stem}.json"

    def archived(self, sealed_at: datetime, *, crc32c: int | None = None) -> str:
        """The place in the archive; `sealed_at` (aware) is when the node finished the segment. With `crc32c`, the place for other bytes
        than those that the archive holds under the segment's name: `CommitLog-7-<id>~<crc32c>.log`."""
        utc = sealed_at.astimezone(UTC)
        cluster = part(self.node.cluster)
        node = f"{part(self.node.datacenter)}/{part(self.node.host_id)}"
        other = "" if crc32c is None else f"~{crc32c:08x}"
        return f"{ARCHIVE}/{cluster}/date={utc:%Y-%m-%d}/hour={utc:%H}/{node}/{self.segment.stem}{other}.log"

    def quarantined(self, position: int, size: int, frames: int = 1) -> str:
        """Stem of what is kept of a bad range, or of `frames` frames together; `.bin` holds the bytes, `.json` the reason."""
        return f"{self.quarantine}{position:010d}-{size}" + (f"-{frames}" if frames > 1 else "")

    @property
    def quarantine(self) -> str:
        """Prefix of all that is kept of the segment so."""
        return f"quarantine/{self.node.path}/{self.segment.stem}/"

    @classmethod
    def from_retry(cls, name: str) -> SegmentRef | None:
        """The segment that an object under retries/ stands for; None if it is no such object."""
        pieces = name.split("/")
        if len(pieces) != 5:
            return None
        try:
            segment = SegmentName.parse(f"{pieces[4].removesuffix('.json')}.log")
        except NotASegment:
            return None
        ref = cls(NodeName(*map(unpart, pieces[1:4])), segment)
        return ref if ref.retry == name else None

    @classmethod
    def from_conflict(cls, name: str) -> tuple[SegmentRef, int] | None:
        """The segment whose other bytes an object under cdc/ holds, and their CRC32C by its name; None if it is no such object."""
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
        """The segment that an object under cdc/, cdc_archive/ or cdc_parts/ holds, all of it or some."""
        pieces = name.split("/")
        if pieces[0] == "cdc" and len(pieces) == 5:
            cluster, datacenter, host_id, filename = pieces[1:]
        elif pieces[0] == FRAMES and len(pieces) == 4:
            (cluster, host_id, filename), datacenter = pieces[1:], FRAMES
        elif pieces[0] == ARCHIVE and len(pieces) == 7:
            cluster, datacenter, host_id, filename = pieces[1], *pieces[4:]
            filename = _ARCHIVED.sub(".log", filename)
        elif pieces[0] == "cdc_parts" and len(pieces) in (5, 6):
            cluster, datacenter, host_id, filename = *pieces[1:4], f"{pieces[4]}.log"
        else:
            raise NotASegment("not where segments are kept", operation="read an object's name", obj=name)
        node = NodeName(unpart(cluster), unpart(datacenter), unpart(host_id))
        ref = cls(node, SegmentName.parse(filename))
        # Of two spellings of one name, one is the segment's: else two objects stand for one segment, or a node's for frames of nobody.
        spelt = {"cdc": ref.incoming, FRAMES: ref.incoming, "cdc_parts": ref.growing}.get(pieces[0])
        if not name.startswith(spelt or f"{ARCHIVE}/{part(node.cluster)}/") or (pieces[0] == "cdc_parts" and node.origin != "log"):
            raise NotASegment("not written as names are", operation="read an object's name", obj=name)
        return ref


def retries_prefix(cluster: str) -> str:
    return f"retries/{part(cluster)}/"


def retries_adopted(cluster: str) -> str:
    """Is there once segments that an earlier release has noted for another try have such objects too."""
    return f"{retries_prefix(cluster)}adopted.json"


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
    """Of all tables, or of one."""
    return f"bootstrap/{part(cluster)}/" + (f"{part(keyspace)}.{part(table)}/" if table else "")


def bootstrap_run(cluster: str, keyspace: str, table: str, run: str) -> str:
    return f"{bootstrap_prefix(cluster, keyspace, table)}{part(run)}.json"


def bootstrap_range(cluster: str, keyspace: str, table: str, run: str, number: int) -> str:
    return f"{bootstrap_prefix(cluster, keyspace, table)}{part(run)}/{number:06d}.json"


def touched_prefix(cluster: str) -> str:
    return f"touched/{part(cluster)}/"


def undecided(cluster: str, batch: int, table_id: str, bucket: int) -> str:
    """Keys of rows of which no record says whether a TRUNCATE took what the batch has of them; beside `touched`."""
    return f"{touched(cluster, batch, table_id, bucket).removesuffix('.json')}-undecided.json"


def touched(cluster: str, batch: int, table_id: str, bucket: int) -> str:
    return f"{touched_prefix(cluster)}{batch:010d}-{part(table_id)}-b{bucket:05d}.json"


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
    """The picture beside it ends with .svg."""
    return f"{verify_prefix(cluster)}{_second(when)}.json"


def audit_prefix(cluster: str) -> str:
    return f"audit/{part(cluster)}/"


def audit_report(cluster: str, when: datetime) -> str:
    """The picture beside it ends with .svg."""
    return f"{audit_prefix(cluster)}{_second(when)}.json"


def _second(when: datetime) -> str:
    return f"{when.astimezone(UTC):%Y%m%dT%H%M%SZ}"


def archive_prefix(cluster: str) -> str:
    return f"{ARCHIVE}/{part(cluster)}/"


def packed(name: str) -> str:
    """Where a segment of the archive lies once it is packed."""
    return f"{name}{_PACKED}"


def is_packed(name: str) -> bool:
    return name.endswith(_PACKED)


def plain(name: str) -> str:
    """Inverse of `packed`; a name that is no packed one's stays."""
    return name.removesuffix(_PACKED)


def archive_hour(name: str) -> datetime | None:
    """The hour in which the segment of an object of the archive was sealed; None if its name does not say."""
    match = _HOUR.match(name)
    try:
        return datetime.fromisoformat(f"{match[1]}T{match[2]}:00:00+00:00") if match else None
    except ValueError:
        return None


def hour_of(moment: datetime) -> datetime:
    """The hour (UTC) that a moment (aware) lies in: the archive is by hours."""
    return moment.astimezone(UTC).replace(minute=0, second=0, microsecond=0)


def archive_hour_prefix(cluster: str, hour: datetime) -> str:
    """Prefix of all segments sealed in the hour that begins at `hour` (aware)."""
    utc = hour.astimezone(UTC)
    return f"{archive_prefix(cluster)}date={utc:%Y-%m-%d}/hour={utc:%H}/"


def schema_prefix(cluster: str) -> str:
    return f"schemas/{part(cluster)}/"


def schema_snapshot(cluster: str, taken_at: datetime, version: str) -> str:
    """As shippers up to 0.1 named it: of no node."""
    return f"{schema_prefix(cluster)}{_second(taken_at)}-{part(version)}.json"


def node_schema(node: NodeName, taken_at: datetime, version: str) -> str:
    """A snapshot of system_schema that the node answered at `taken_at`."""
    return f"schemas/{node.path}/{_second(taken_at)}-{part(version)}.json"


def quarantined_frames(name: str) -> int:
    """How many frames of one table a piece of quarantine holds together, by its name; 1 for any other piece."""
    match = _FRAMES.search(name)
    return int(match[1]) if match else 1


def is_schema_snapshot(name: str) -> bool:
    """Whether an object under schemas/ is named like a snapshot."""
    return _SNAPSHOT.fullmatch(name) is not None


def truncations_prefix(cluster: str) -> str:
    return f"truncations/{part(cluster)}/"


def node_truncations(node: NodeName, taken_at: datetime, checksum: str) -> str:
    """What the node records of its TRUNCATEs, as it answered at `taken_at`; `checksum` is the content's."""
    return f"truncations/{node.path}/{_second(taken_at)}-{part(checksum)}.json"


def truncations_checksum(name: str) -> str:
    """The checksum in the name of such an object."""
    return unpart(name.removesuffix(".json").rpartition("-")[2])


def node_facts(node: NodeName) -> str:
    """The node's document of shippers up to 0.1."""
    return f"nodes/{node.path}.json"


def node_status(node: NodeName, at: datetime, checksum: str) -> str:
    """The node's status at that time; `checksum` is the content's."""
    return f"nodes/{node.path}/{_second(at)}-{checksum}.json"


def node_documents(node: NodeName) -> str:
    """With which the names of all that is written under nodes/ for the node begin."""
    return f"nodes/{node.path}"


def conflicts_prefix(cluster: str) -> str:
    return f"conflicts/{part(cluster)}/"


def spaces_prefix(cluster: str) -> str:
    return f"space/{part(cluster)}/"


def space_prefix(cluster: str, day: date) -> str:
    return f"{spaces_prefix(cluster)}date={day:%Y-%m-%d}/"


def node_space(node: NodeName, at: datetime, level: str) -> str:
    at = at.astimezone(UTC)
    return f"{space_prefix(node.cluster, at.date())}{part(node.datacenter)}/{part(node.host_id)}/{at:%H%M%S}Z-{level}.json"


def ledger_of(cluster: str) -> str:
    """Prefix of the ledger of all nodes."""
    return f"ledger/{part(cluster)}/"


def released_prefix(cluster: str) -> str:
    """Of segments that a person released from quarantine."""
    return f"released/{part(cluster)}/"


def ledger_prefix(node: NodeName) -> str:
    return f"ledger/{node.path}/"


def quarantine_prefix(cluster: str) -> str:
    return f"quarantine/{part(cluster)}/"


def nodes_prefix(cluster: str) -> str:
    return f"nodes/{part(cluster)}/"


def beside(cluster: str, namespace: str) -> str:
    """What stands for the cluster in names of batches and state, of replays into a namespace of their own."""
    return f"{cluster}.replay.{namespace}"


def batches_prefix(cluster: str) -> str:
    return f"batches/{part(cluster)}/"


def batch_folder(cluster: str, number: int) -> str:
    """Comes before all that is in it, and after all batches before."""
    return f"{batches_prefix(cluster)}{number:010d}"


def batch_object(cluster: str, number: int, what: str) -> str:
    """`what` is manifest, schema, local, sealed, archiver or archived, or of `writetime.pipeline.pinned`."""
    return f"{batch_folder(cluster, number)}/{what}.json"


def batch_folders_end(cluster: str) -> str:
    """Comes after the folders of all batches."""
    return f"{batches_prefix(cluster)}:"


def batch_number(name: str) -> int | None:
    """The batch that an object under batches/ belongs to; None for one that is no document of a batch."""
    match = _BATCH.fullmatch(name)
    number = int(match[1]) if match else 0
    return number if match and match[1] == f"{number:010d}" and number > 0 else None


def owner(cluster: str) -> str:
    """Who the pipeline is (`writetime.pipeline.identity`)."""
    return f"pipelines/{part(cluster)}.json"


def chains_prefix(cluster: str) -> str:
    return f"chains/{part(cluster)}/"


def chain(cluster: str, first: int) -> str:
    """The rebuild whose first batch has that number (`writetime.pipeline.chains`)."""
    return f"{chains_prefix(cluster)}{first:010d}.json"


def live(chain: str, namespace: str | None) -> str:
    """The cluster whose chain of batches, or of replays into a `namespace`, has that name."""
    return chain if namespace is None else chain.removesuffix(f".replay.{namespace}")


def clock(cluster: str) -> str:
    return f"clock/{part(cluster)}"


def shelved(cluster: str) -> str:
    return f"shelved/{part(cluster)}.json"


def events_prefix(cluster: str) -> str:
    """Where events go as Avro files, unless the configuration names another place."""
    return f"events/{part(cluster)}/"


def maintained(cluster: str) -> str:
    return f"maintained/{part(cluster)}.json"


def published(cluster: str) -> str:
    return f"published/{part(cluster)}.json"


def state_lease(cluster: str, table_id: str, generation: int, bucket: int) -> str:
    return f"leases/{part(cluster)}/{part(table_id)}/g{generation:04d}/b{bucket:05d}.json"


def leases_prefix(cluster: str) -> str:
    """Of all state shards."""
    return f"leases/{part(cluster)}/"


def published_told(cluster: str) -> str:
    return f"published/{part(cluster)}.told.json"


def states_prefix(cluster: str) -> str:
    """Prefix of all state."""
    return f"state/{part(cluster)}/"


def state_prefix(cluster: str, table_id: str) -> str:
    """Prefix of all state of a table's incarnation."""
    return f"{states_prefix(cluster)}{part(table_id)}/"


def state_shard(cluster: str, table_id: str, generation: int, bucket: int) -> str:
    return f"{state_prefix(cluster, table_id)}g{generation:04d}/b{bucket:05d}"


def state_generation(name: str) -> int:
    """The generation to which an object of a shard belongs."""
    return int(name.split("/")[3].removeprefix("g"))


def claim(topic: str, batch: int, ordinal: int) -> str:
    """Where an event lies that is too large for its topic (whose name needs no escape)."""
    return f"claims/{topic}/{batch:010d}-{ordinal}"


def claims_prefix(topic_prefix: str) -> str:
    """Prefix of what lies there for topics with that prefix, and with a longer one."""
    return f"claims/{topic_prefix}."


def unpublishable(cluster: str, topic: str, batch: int, ordinal: int) -> str:
    """Stem of what is kept of an event that is not sent; `.bin` holds the record's value, `.json` its key and the reason."""
    return f"{unpublishable_prefix(cluster)}{topic}/{batch:010d}-{ordinal}"


def unpublishable_prefix(cluster: str) -> str:
    return f"{quarantine_prefix(cluster)}unpublished/"


def unpublishable_batch(name: str) -> int:
    """The batch of an event that is not sent, by the name of one of its objects."""
    return int(name.rpartition("/")[2].partition("-")[0])
