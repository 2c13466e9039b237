"""What an erasure does not reach, and until when each place keeps it: the table at the end of `writetime erase`.

Strategy: a place is listed if the pipeline has it, or if nobody can say that it has not: with its number of objects where
the bucket tells it, and with the setting that removes it where there is one. Whether a listed object holds the key is not
looked at. Places of tables, which only Spark sees, are the caller's. Must not know Spark."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from writetime.config.archive import REPORTS_DAYS
from writetime.config.pipeline import PipelineConfig
from writetime.config.warehouse import ORPHANS_DAYS
from writetime.events import envelope
from writetime.events.naming import quarantine_topic
from writetime.pipeline.documents import Document
from writetime.pipeline.planner import namespaces
from writetime.storage import layout
from writetime.storage.store import Store


class Unreached(Document):
    """`place`: an object's or topic's name, or what such names begin with, or who has it. `what` may lie there, `until` when.
    `objects`: how many there are now; None: nobody knows. `holds_key`: the key is known to be there, and has to be erased again
    once that place is let go."""

    place: str
    what: str
    until: str
    objects: int | None = None
    holds_key: bool = False

    @property
    def text(self) -> str:
        return f"{self.place}: {self.what}, until {self.until}"


def unreached(config: PipelineConfig, store: Store, table: str) -> list[Unreached]:
    """The places that a key of the table (full name) may be left in, but for those of tables."""
    found = [*_of_kafka(config, table), *_of_bucket(config, store), *_of_replays(config, store), *_of_others(config)]
    return [each for each in found if each.objects != 0]


def _of_kafka(config: PipelineConfig, table: str) -> Iterator[Unreached]:
    if config.kafka is None:
        return
    keyspace, _, name = table.partition(".")
    topic = envelope.topic(config.kafka.topic_prefix, keyspace, name)
    compacted = (
        "retention.ms of the topic has passed; compacted: its cleaner has met the key's tombstone, and delete.retention.ms has passed"
    )
    yield Unreached(place=f"topic {topic}", what="records sent already", until=compacted)
    if config.quarantine.topic:
        of_quarantine = quarantine_topic(config.kafka.topic_prefix)
        yield Unreached(
            place=f"topic {of_quarantine}", what="quarantine records sent already", until="retention.ms of the topic has passed"
        )


def _of_bucket(config: PipelineConfig, store: Store) -> Iterator[Unreached]:
    cluster = config.cluster.name
    yield from _counted(
        store,
        (f"rejected/{layout.part(cluster)}/", "bytes of segments that were rejected", "you delete them (`writetime conflicts`)"),
        (layout.conflicts_prefix(cluster), "segments in conflict, under cdc/…/conflict-*", "they are decided, then as those rejected"),
    )
    until = f"maintenance deletes them after {REPORTS_DAYS:g} days"
    what = "reports, with keys of rows that differed"
    yield from _counted(store, *((prefix, what, until) for prefix in (layout.verify_prefix(cluster), layout.audit_prefix(cluster))))
    damaged = sum(1 for info in store.names(layout.quarantine_prefix(cluster)) if info.name.endswith(".bin"))
    yield Unreached(
        place=layout.quarantine_prefix(cluster),
        what="damaged ranges: only searched for the bytes of the key",
        until=f"they are released, and {REPORTS_DAYS:g} days have passed",
        objects=damaged,
    )


def _counted(store: Store, *places: tuple[str, str, str]) -> Iterator[Unreached]:
    for place, what, until in places:
        yield Unreached(place=place, what=what, until=until, objects=sum(1 for _ in store.names(place)))


def _of_replays(config: PipelineConfig, store: Store) -> Iterator[Unreached]:
    for chain in namespaces(store, config.cluster.name):
        yield Unreached(place=f"replay {chain}", what="state and tables of a namespace of its own", until="you drop them")


def _of_others(config: PipelineConfig) -> Iterator[Unreached]:
    until = f"maintenance deletes them after {ORPHANS_DAYS:g} days"
    what = "files without a snapshot, left by jobs that crashed, or that the store did not delete"
    yield Unreached(place="warehouse", what=what, until=until)
    again = "they are shipped: run the command again then"
    yield Unreached(place="nodes", what="segments that are not shipped yet; no batch takes the key from them", until=again)
    yield Unreached(
        place="backups", what="copies of bucket and warehouse, and old versions of objects in a versioned bucket", until="you delete them"
    )
    places = [config.bucket, config.state or config.bucket]
    places += [config.catalog.warehouse] if config.catalog else []
    places += [config.files.url] if config.files else []
    if any(place.startswith(("s3://", "s3+")) for place in places):
        aborted = "a rule of the bucket aborts them (AbortIncompleteMultipartUpload), or you do"
        yield Unreached(place="uploads", what="parts of uploads to S3 that were broken off, which no listing shows", until=aborted)
    if any(place.startswith("gs://") for place in places):
        kept = "the soft delete policy of the bucket has passed: 7 days, unless you change it"
        yield Unreached(place="soft delete", what="objects that were deleted or replaced in Google Cloud Storage", until=kept)
    yield Unreached(place="materialized views", what="their rows: they are tables of their own", until="you erase the key there")
    yield Unreached(place="readers", what="what others made of tables, topics and files", until="they delete it")


def table_of(places: Iterable[Unreached]) -> list[str]:
    """The places as lines of a table for people."""
    rows = [
        ("place", "objects", "what may be left", "until"),
        *((p.place, "" if p.objects is None else str(p.objects), p.what, p.until) for p in places),
    ]
    widths = [max(len(row[at]) for row in rows) for at in range(3)]
    return ["  " + "  ".join([*(cell.ljust(width) for cell, width in zip(row, widths, strict=False)), row[3]]).rstrip() for row in rows]
