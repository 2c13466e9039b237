"""What jobs refuse before they start Spark: who does what the error advises gets further."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest
import yaml

from spark_jobs import audit, erase, rebuild, session, verify
from spark_jobs.rebuild import Current
from tests.cassandra.schema.examples import create_keyspace, create_table
from tests.pipeline.planning import plan_ingest
from tests.pipeline.test_planner import CLUSTER, NOW, seal, ship
from tests.pipeline.test_rebuild import rebuilt, started, taken_in
from writetime import cli
from writetime.cassandra.schema.history import SchemaLearner
from writetime.cassandra.schema.model import Column, Table
from writetime.config.pipeline import PipelineConfig
from writetime.errors import BatchBusy, BatchError, ConfigError
from writetime.pipeline import chains
from writetime.pipeline import rebuild as planning
from writetime.pipeline.interval import checked_interval
from writetime.storage import layout
from writetime.storage.local import LocalStore

MICROS = int(NOW.timestamp() * 1_000_000)
ID, LINE = Column("id", "partition_key", "int", 0), Column("line", "clustering", "int", 0)
TABLE = Table("Shop", "orders", UUID(int=7), {"id": ID, "line": LINE}, cdc=True)
CATALOG = {"uri": "jdbc:sqlite:c.db", "warehouse": "w"}
KAFKA = {"bootstrap.servers": "127.0.0.1:1", "topic.prefix": "p"}
CQL = {"contact_points": ["127.0.0.1"]}


class Started(Exception):
    """A job has begun with Spark."""


@pytest.fixture
def store(tmp_path: Path) -> LocalStore:
    return LocalStore(tmp_path / "bucket")


@pytest.fixture
def no_spark(monkeypatch: pytest.MonkeyPatch) -> None:
    def start(*_: Any) -> None:
        raise Started

    for job in (audit, erase, verify):
        monkeypatch.setattr(job, "spark_session", start)


def config(tmp_path: Path, *, cql: dict[str, Any] | None = None, **more: Any) -> PipelineConfig:
    cluster = {"name": CLUSTER, "datacenters": ["dc1"]} | ({"cql": cql} if cql else {})
    return PipelineConfig.model_validate({"pipeline": "p", "cluster": cluster, "bucket": str(tmp_path / "bucket"), **more})


def learner() -> SchemaLearner:
    found = SchemaLearner()
    for each in (create_keyspace("Shop", MICROS), create_table(TABLE, MICROS)):
        found.apply(each)
    return found


@pytest.mark.advice("Write keyspace.table, as in CQL without quotes.")
def test_names_of_tables() -> None:
    for name in ('"Shop".orders', "shop.orders", "orders"):
        with pytest.raises(ConfigError, match="no table of that name is captured"):
            erase.parse_key(learner(), name, '{"id": 7}')
        with pytest.raises(ConfigError, match="unknown table name"):
            verify._named(learner().schema(), name)
    assert erase.parse_key(learner(), "Shop.orders", '{"id": 7}').table.id == TABLE.id
    assert verify._named(learner().schema(), "Shop.orders").id == TABLE.id


@pytest.mark.advice('Such as {"id": 7}.', "Give ….")
def test_keys() -> None:
    for text, told in (("[7]", "not a JSON object"), ('{"line": 1}', "Give id, or also line")):
        with pytest.raises(ConfigError, match=told):
            erase.parse_key(learner(), "Shop.orders", text)
    seven = (7).to_bytes(4, "big")
    for text, row in (('{"id": 7}', None), ('{"id": 7, "line": 7}', (seven,))):
        found = erase.parse_key(learner(), "Shop.orders", text)
        assert (found.pk, found.clustering) == (seven, row)


@pytest.mark.usefixtures("no_spark")
@pytest.mark.advice("Let cdc_ingest run first: segments that were shipped may hold the key.")
def test_an_erasure_before_the_first_batch(store: LocalStore, tmp_path: Path) -> None:
    def run() -> None:
        erase.run(config(tmp_path, catalog=CATALOG), "Shop.orders", '{"id": 7}', by="a test")

    ship(store, 1)
    with pytest.raises(BatchError, match="no batch is sealed yet"):
        run()
    manifest = plan_ingest(store, CLUSTER, now=NOW)
    assert manifest is not None
    seal(store, manifest)
    store.put(layout.batch_object(CLUSTER, 1, "schema"), learner().to_json().encode())
    with pytest.raises(Started):
        run()


@pytest.mark.advice("Say in the pipeline's YAML where the tables live.")
def test_a_pipeline_without_tables(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="`catalog` is missing"):
        session.options(config(tmp_path))
    assert session.options(config(tmp_path, catalog=CATALOG))["spark.sql.catalog.lake.warehouse"] == "w"


@pytest.mark.advice("Say in the pipeline's YAML where it is.", "Give another one: all events are sent again")
def test_topics_of_a_rebuild(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="`kafka` is missing"):
        rebuild._expect_prefix(config(tmp_path), "p")
    with pytest.raises(ConfigError, match="it is the pipeline's own prefix"):
        rebuild._expect_prefix(config(tmp_path, kafka=KAFKA), "p")
    rebuild._expect_prefix(config(tmp_path, kafka=KAFKA), "p-again")


@pytest.mark.advice("Nothing is left to do.", "`writetime status` shows how far it is.")
def test_a_driver_that_is_late_in_a_rebuild(store: LocalStore, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    taken_in(store, 1)
    late = Current(store=store, cluster=CLUSTER, rebuild=started(store))
    late.check()
    rebuilt(store)
    with pytest.raises(BatchBusy, match="another driver has finished it") as caught:
        late.check()
    assert (caught.value.hint, chains.unfinished(store, CLUSTER)) == ("Nothing is left to do.", None)
    assert planning.look(store, CLUSTER).whole
    started(store)
    with pytest.raises(BatchBusy, match="is under way"):
        late.check()
    yaml_file = tmp_path / "pipeline.yaml"
    yaml_file.write_text(yaml.safe_dump({"pipeline": "p", "cluster": {"name": CLUSTER, "datacenters": ["dc1"]}, "bucket": store.url}))
    cli.main(["status", "--config", str(yaml_file)])
    assert "a rebuild is under way since" in capsys.readouterr().out


@pytest.mark.advice("Audit what was written from … on (archive.keep_days).")
def test_an_audit_of_what_the_archive_has_let_go(store: LocalStore, tmp_path: Path) -> None:
    ship(store, 1)
    manifest = plan_ingest(store, CLUSTER, now=NOW)
    assert manifest is not None
    sealed = seal(store, manifest).model_copy(update={"kept_from": int(NOW.timestamp())})
    store.put(layout.batch_object(CLUSTER, 1, "sealed"), sealed.to_bytes())
    with pytest.raises(ConfigError, match="the archive no longer holds") as caught:
        audit._expect_kept(config(tmp_path), datetime(2020, 1, 1, tzinfo=UTC))
    advised = (caught.value.hint or "").split()[5]
    start, _ = checked_interval(advised, NOW + timedelta(days=1), audit.OPERATION)
    audit._expect_kept(config(tmp_path), start)


@pytest.mark.usefixtures("no_spark")
@pytest.mark.advice(
    "Say in the pipeline's YAML where the ring is, or have nothing read.",
    "Say in the pipeline's YAML where the ring is.",
    "The pipeline publishes to no topics: leave out --topics.",
)
def test_jobs_that_read_the_cluster_or_topics(tmp_path: Path) -> None:
    start, end, reread = datetime(2026, 1, 1, tzinfo=UTC), datetime(2026, 1, 2, tzinfo=UTC), audit.Rereading("gaps")
    with pytest.raises(ConfigError, match=r"`cluster\.cql` is missing"):
        audit.run(config(tmp_path), start, end, reread=reread)
    with pytest.raises(ConfigError, match="`kafka` is missing"):
        verify.run(config(tmp_path), verify.Options(topics=True))
    with pytest.raises(ConfigError, match=r"`cluster\.cql` is missing"):
        verify.run(config(tmp_path), verify.Options())
    for advised in (
        lambda: audit.run(config(tmp_path), start, end),
        lambda: audit.run(config(tmp_path, cql=CQL), start, end, reread=reread),
        lambda: verify.run(config(tmp_path, cql=CQL), verify.Options()),
    ):
        with pytest.raises(Started):
            advised()


@pytest.mark.advice("Give --table, --due or --touched.")
def test_a_bootstrap_of_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr("spark_jobs.commands._read", lambda *_, **__: [])
    yaml_file = tmp_path / "pipeline.yaml"
    document = {"pipeline": "p", "cluster": {"name": CLUSTER, "datacenters": ["dc1"]}, "bucket": str(tmp_path / "bucket")}
    yaml_file.write_text(yaml.safe_dump(document))
    command = ["bootstrap", "--config", str(yaml_file)]
    assert cli.main(command) != 0
    assert "no table was selected" in capsys.readouterr().err
    for options in (["--table", "shop.orders"], ["--due"], ["--touched"]):
        assert cli.main([*command, *options]) == 0
