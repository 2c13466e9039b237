"""Events as Avro files: a sink that needs no service. `cdc_publish` writes them if `files` is configured.

    <url>/<keyspace>.<table>/<batch>-<table id>-<schema version>-<part>.avro

Strategy: the events of a batch and a table are written to files of their own (object container files, with
the schema inside), in the order of events; a part holds a fixed range of ordinals. A file's name follows from
its content, so a rerun writes the same bytes again and no event appears twice. `<url>/_published.json` holds
the last batch that is complete. It is written last; readers that follow it see whole batches only. Knows
Spark; does not know the readers."""

from __future__ import annotations

import hashlib
import io
import re
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from itertools import groupby
from typing import Any, Final
from uuid import UUID

import fastavro
import pyarrow as pa
import structlog
from pyspark.sql import SparkSession
from pyspark.sql import functions as F
from pyspark.sql.pandas.types import from_arrow_schema

from spark_jobs.promised_events import hole, promised_by
from spark_jobs.sinks.iceberg import Warehouse
from spark_jobs.sinks.kafka_records import Encoder, Incarnation
from spark_jobs.spark_errors import spark_failures
from spark_jobs.stages.jvm_batches import made_whole
from spark_jobs.stages.scan import Batches
from writetime.cassandra.schema.model import Table
from writetime.config.kafka import EventsConfig, FilesConfig
from writetime.config.pipeline import PipelineConfig
from writetime.errors import ChecksumMismatch, WritetimeError
from writetime.events.envelope import About, place_of, rows_of
from writetime.events.serialization import avro_schemas, avro_value, row_name
from writetime.pipeline import again
from writetime.pipeline.documents import Document, Sealed
from writetime.pipeline.planner import read_manifest, read_schema, read_sealed
from writetime.pipeline.publish_progress import CompleteBefore
from writetime.storage import open_store
from writetime.storage.concurrency import at_once
from writetime.storage.layout import table_folder
from writetime.storage.store import Store

log = structlog.get_logger()

EVENTS_PER_FILE: Final = 100_000
WRITTEN: Final = pa.schema([("name", pa.string()), ("events", pa.int64())])
_NOTE: Final = "_published.json"


class Filed(Document):
    """Every event of the batches up to `batch` is in the files; `events` were written by the last run."""

    batch: int
    events: int


def files_up_to(files: FilesConfig) -> int:
    """The batch up to which all events are in the files."""
    done = Filed.read(open_store(files.url), _NOTE)
    return done.batch if done else 0


def last_filed(files: FilesConfig) -> int:
    """The highest batch with a file, complete or not; 0 without any."""
    found = (re.fullmatch(r"[^/]+/([0-9]{10,18})-[^/]+[.]avro", info.name) for info in open_store(files.url).list(""))
    return max([files_up_to(files), *(int(each[1]) for each in found if each)])


def to_files(config: PipelineConfig, files: FilesConfig, store: Store, spark: SparkSession, since: int, sealed: Sealed) -> Filed:
    """Write the events of the batches after `since`, up to `sealed`, without those of voided batches. An
    error in one table is raised after the others are written: then none of these batches is recorded as
    complete, and the next run writes the same files again."""
    upto = sealed.number
    learner = read_schema(store, config.cluster.name, upto)
    addresses = read_manifest(store, config.cluster.name, upto).nodes
    warehouse = Warehouse(spark, config.catalog.name if config.catalog else "")
    complete = CompleteBefore(store, config.cluster.name, range(since + 1, upto + 1))
    name = config.kafka.topic_prefix if config.kafka else config.pipeline
    begins, written, failed = again.begins(sealed), defaultdict[str, Counter[int]](Counter), None
    for table in learner.captured():
        try:
            with spark_failures(table.full_name):
                if (changes := warehouse.open_changes(table, sealed.without_effect(table.id))) is not None:
                    about = About(config.cluster.name, table.keyspace, table.name, addresses, name, complete.of(table.id))
                    incarnation = Incarnation(table, changes, about, "")
                    start = max(since, begins.get(table.id, 0) - 1)
                    written[table.full_name] += _write(FileWriter.of(files, config.events, incarnation), incarnation, start, upto)
        except WritetimeError as error:
            log.error("table not written to files", table=table.full_name, **error.as_dict())
            failed = error
    failed = failed or _hole(config, store, learner.captured(), written, begins, range(since + 1, upto + 1))
    if failed is not None:
        raise failed
    done = Filed(batch=upto, events=sum(events.total() for events in written.values()))
    open_store(files.url).put(_NOTE, done.to_bytes())
    return done


def _hole(
    config: PipelineConfig,
    store: Store,
    tables: Iterable[Table],
    written: Mapping[str, Counter[int]],
    begins: Mapping[UUID, int],
    numbers: range,
) -> WritetimeError | None:
    """The error of a table of which not as many events were written as the seals say."""
    cluster, found = config.cluster.name, None
    promised = dict(zip(numbers, at_once(lambda number: promised_by(read_sealed(store, cluster, number)), numbers), strict=True))
    first = {table.full_name: begins[table.id] for table in tables if table.id in begins}
    for name in sorted({name for events in promised.values() for name in +(events or Counter())}):
        since = {number: events for number, events in promised.items() if number >= first.get(name, 0)}
        if (error := hole(store, cluster, name, written.get(name, {}), since)) is not None:
            log.error("events are missing in files", table=name, **error.as_dict())
            found = error
    return found


@dataclass(slots=True)
class FileWriter:
    """Writes the events of one incarnation; all events of a file come in one run of rows, in order. It is
    sent to executors."""

    encoder: Encoder
    url: str

    @classmethod
    def of(cls, files: FilesConfig, events: EventsConfig, incarnation: Incarnation) -> FileWriter:
        numbers = files.decimal_handling_mode
        encoder = Encoder(incarnation.changes.versions, incarnation.about, incarnation.topic, "avro", numbers, events, incarnation.stored)
        return cls(encoder, files.url)

    def __call__(self, batches: Batches) -> Batches:
        store = open_store(self.url)
        for (batch, version, part), rows in groupby(_rows(batches), key=lambda row: (row["batch"], row["schema_version"], row["part"])):
            events = list(rows)
            about = self.encoder.about
            name = f"{table_folder(about.keyspace, about.table)}/{batch:010d}-{events[0]['table_id']}-{version}-{part:05d}.avro"
            store.put(name, self._content(version, events, name))
            yield pa.RecordBatch.from_pylist([{"name": name, "events": len(events)}], schema=WRITTEN)

    def _content(self, version: str, events: list[dict[str, Any]], name: str) -> bytes:
        shape = self.encoder.shapes(self.encoder.stored)(version)
        schemas = avro_schemas(shape, self.encoder.about, wide=any(map(shape.is_wide, events)))
        row = row_name(schemas)
        values = (avro_value(shape.value(event, self.encoder.about), row) for event in events)
        return _packed(name, schemas.value, values)


def _packed(name: str, schema: Any, values: Iterable[Any]) -> bytes:
    out = io.BytesIO()
    # The sync marker differs between files and is the same in each run.
    marker = hashlib.md5(name.encode(), usedforsecurity=False).digest()
    fastavro.writer(out, fastavro.parse_schema(schema), values, codec="deflate", sync_marker=marker)
    return out.getvalue()


def files_with(store: Store, table: Table, places: Iterable[tuple[int, int]]) -> list[str]:
    """Names of the files in the store of `files.url` that hold events of the table at these positions (batch,
    ordinal)."""
    wanted = set(places)
    folder = table_folder(table.keyspace, table.name)
    listed = (info.name for batch in sorted({batch for batch, _ in wanted}) for info in store.list(f"{folder}/{batch:010d}-"))
    return [name for name in listed if any(place_of(event) in wanted for event in _events(store.read(name)))]


def without_events(store: Store, name: str, places: Iterable[tuple[int, int]]) -> None:
    """Write the file again without the events at these positions. ChecksumMismatch, with nothing written, if
    the other events would change."""
    gone = set(places)
    rewritten(store, name, lambda event: place_of(event) not in gone)


def rewritten(store: Store, name: str, keep: Callable[[Any], bool]) -> None:
    """Write the file again with the events that are to be kept; errors as above."""
    content = store.read(name)
    kept = [event for event in _events(content) if keep(event)]
    made = _packed(name, fastavro.reader(io.BytesIO(content)).writer_schema, kept)
    if _events(made) != kept:
        raise ChecksumMismatch("other events of the file would change", operation="erase events from a file", obj=name)
    store.put(name, made)


def _events(content: bytes) -> list[Any]:
    return list(fastavro.reader(io.BytesIO(content)))


def _rows(batches: Batches) -> Iterator[dict[str, Any]]:
    for batch in made_whole(batches):
        yield from rows_of(batch)


def _write(writer: FileWriter, incarnation: Incarnation, since: int, upto: int) -> Counter[int]:
    """Write the incarnation's events of the batches after `since`, up to `upto`; returns how many there are of each. The
    rows of a file are in one task."""
    rows = incarnation.changes.rows.filter(F.col("batch").between(since + 1, upto) & (F.col("table_id") == str(incarnation.table.id)))
    parted = rows.withColumn("part", F.floor((F.col("ordinal") - 1) / EVENTS_PER_FILE).cast("long"))
    gathered = parted.repartition("batch", "schema_version", "part").sortWithinPartitions("batch", "schema_version", "part", "ordinal")
    done = gathered.mapInArrow(writer, schema=from_arrow_schema(WRITTEN)).collect()
    events: Counter[int] = Counter()
    for row in done:
        events[int(row["name"].rpartition("/")[2].partition("-")[0])] += row["events"]
    return events
