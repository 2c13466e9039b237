"""Files of events as tasks write them, without Spark."""

from __future__ import annotations

import io
from pathlib import Path
from typing import Any

import fastavro
import pyarrow as pa

from spark_jobs.sinks.avro_files import FileWriter
from spark_jobs.sinks.kafka_records import Encoder
from spark_jobs.stages.table_rows import RowShape, changes_schema
from tests.spark_jobs.examples import schema_of, table
from writetime.cassandra.schema.fingerprint import describe
from writetime.config.kafka import EventsConfig
from writetime.events.envelope import About, place_of
from writetime.storage.local import LocalStore

TABLE = table("to.files", 81, {"id": "int", "v": "text"})


def written(folder: Path, places: list[tuple[int, int, int]]) -> list[dict[str, Any]]:
    """Names and counts of the files of events at (batch, part, ordinal)."""
    stored = changes_schema(RowShape.of(TABLE, schema_of(TABLE)))
    about = {"op": "c", "processed_at": 0, "before": None, "changed": ["v"], "nodes": [], "ts_micro": 5}
    about |= {"table_id": str(TABLE.id), "schema_version": "v1", "replicas_expected": 1}
    rows = [{**about, "batch": at, "ordinal": n, "key": {"id": n}, "after": {"id": n, "v": f"{at}"}} for at, _, n in places]
    parts = pa.array([part for _, part, _ in places], pa.int64())
    batch = pa.RecordBatch.from_pylist(rows, schema=stored).append_column("part", parts)
    encoder = Encoder({"v1": describe(TABLE, {})}, About("ring", "shop", "to.files", {}), "", "avro", "string", EventsConfig(), stored)
    batches = iter([batch.slice(0, 2), batch.slice(2)])
    return [row for out in FileWriter(encoder, str(folder))(batches) for row in out.to_pylist()]


def test_a_file_holds_a_part_of_a_batch_and_is_the_same_again(tmp_path: Path) -> None:
    places = [(1, 0, 1), (1, 0, 2), (1, 0, 3), (1, 1, 4), (2, 0, 1)]
    found = written(tmp_path, places)
    names = [f"shop.to.files/{batch:010d}-{TABLE.id}-v1-{part:05d}.avro" for batch, part in ((1, 0), (1, 1), (2, 0))]
    assert found == [{"name": name, "events": count} for name, count in zip(names, (3, 1, 1), strict=True)]
    store = LocalStore(tmp_path)
    contents = [store.read(name) for name in names]
    events: list[Any] = [event for content in contents for event in fastavro.reader(io.BytesIO(content))]
    assert [(*place_of(event), event["after"]) for event in events] == [
        (batch, ordinal, {"id": ordinal, "v": f"{batch}"}) for batch, _, ordinal in places
    ]
    assert written(tmp_path, places) == found
    assert [store.read(name) for name in names] == contents
