"""Events as Avro files, with real Spark and Iceberg."""

from __future__ import annotations

import io
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import fastavro
import pytest

from spark_jobs import publish
from spark_jobs.session import spark_session
from spark_jobs.sinks import avro_files
from spark_jobs.sinks.iceberg import Warehouse
from tests.cassandra.schema.examples import create_table
from tests.spark_jobs.examples import THEN, insert, schema_of, table
from tests.spark_jobs.pipeline import Pipeline
from tests.spark_jobs.test_iceberg import events
from writetime.cassandra.schema.history import SchemaLearner
from writetime.config.kafka import FilesConfig
from writetime.errors import ConfigError
from writetime.events.envelope import place_of
from writetime.pipeline.publish_progress import Published, read_published

pytestmark = [pytest.mark.spark, pytest.mark.timeout(900)]
TABLE = table("Filed", 80, {"id": "int", "v": "text"})


def contents(folder: Path) -> dict[str, bytes]:
    return {path.relative_to(folder).as_posix(): path.read_bytes() for path in sorted(folder.glob("[!.]*/*.avro"))}


def test_each_batch_has_files_of_its_own_which_are_the_same_in_every_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pipeline = Pipeline.create(tmp_path)
    config = pipeline.config.model_copy(update={"kafka": None, "files": FilesConfig(url=str(tmp_path / "events"))})
    learner = SchemaLearner()
    learner.apply(create_table(TABLE, THEN))
    sealed = SimpleNamespace(number=0, voided={}, again={}, without_effect=lambda _: frozenset())
    for module in (publish, avro_files):
        monkeypatch.setattr(module, "read_schema", lambda *_: learner)
        monkeypatch.setattr(module, "read_manifest", lambda *_: SimpleNamespace(nodes={}, id=None))
    monkeypatch.setattr(publish, "history", lambda *_: SimpleNamespace(sealed=sealed))
    monkeypatch.setattr(avro_files, "EVENTS_PER_FILE", 3)
    spark = spark_session(config, "tests of files")
    monkeypatch.setattr(publish, "spark_session", lambda *_: spark)
    stop = spark.stop
    monkeypatch.setattr(type(spark), "stop", lambda _: None)
    try:
        schema = schema_of(TABLE)
        for number in (1, 2):
            told = [insert(TABLE, key, {"v": f"{number}"}, timestamp=THEN + number, schema=schema) for key in range(1, 6)]
            Warehouse(spark, "lake").write_changes(TABLE, schema, events(spark, told, schema), number)
            sealed.number = number
            assert publish.run(config) == Published(batch=number, events=5, kafka=False)
        first = contents(tmp_path / "events")
        names = list(first)
        assert [name.split("-")[0] for name in names] == 2 * ["shop.Filed/0000000001"] + 2 * ["shop.Filed/0000000002"]
        found: list[Any] = [event for name in names for event in fastavro.reader(io.BytesIO(first[name]))]
        assert [place_of(event) for event in found] == [(batch, ordinal) for batch in (1, 2) for ordinal in range(1, 6)]
        assert sorted((event["after"]["id"], event["after"]["v"]) for event in found) == [(key, v) for key in range(1, 6) for v in "12"]
        # Nothing is due; and all of it again is the same.
        assert publish.run(config) == Published(batch=2, events=0, kafka=False)
        again = publish.run(config, everything=True)
        assert again == Published(batch=2, events=10, kafka=False) == read_published(pipeline.store, pipeline.cluster)
        assert contents(tmp_path / "events").keys() == first.keys()
        assert {name: data for name, data in contents(tmp_path / "events").items() if name in names} == {
            name: first[name] for name in names
        }
    finally:
        stop()


def test_somewhere_events_have_to_go(tmp_path: Path) -> None:
    pipeline = Pipeline.create(tmp_path)
    with pytest.raises(ConfigError, match="neither"):
        publish.run(pipeline.config.model_copy(update={"kafka": None}))
