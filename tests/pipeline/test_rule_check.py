"""Rules that fit nothing forbid a batch, by the schema that is known."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from pathlib import Path
from typing import NoReturn

import pytest
import yaml

from spark_jobs import rebuild
from tests.node_objects import schema_name
from writetime.cli import main
from writetime.config.pipeline import PipelineConfig, load
from writetime.config.tables import ColumnsConfig
from writetime.errors import ConfigError
from writetime.pipeline.planner import history, plan_ingest
from writetime.pipeline.rule_check import rule_check, unmatched_now
from writetime.storage.local import LocalStore

CLUSTER = "ring"
NOW = datetime(2026, 5, 4, 12, 30, tzinfo=UTC)
WRONG = {"column.exclude.list": "shop.orders.nota"}


def _row(keyspace: str, table: str | None = None, **values: object) -> dict[str, object]:
    return {"keyspace_name": keyspace, **({"table_name": table} if table else {}), **values, "writetime": 1}


def _column(name: str, kind: str, position: int) -> dict[str, object]:
    return _row("shop", "orders", column_name=name, kind=kind, type="text", position=position, clustering_order="none")


SNAPSHOT = json.dumps(
    {
        "keyspaces": [_row("shop", durable_writes=True, replication={"class": "SimpleStrategy"})],
        "tables": [_row("shop", "orders", id="00000000-0000-0000-0000-000000000007", cdc=True)],
        "columns": [_column("id", "partition_key", 0), _column("note", "regular", -1)],
        "dropped_columns": [_row("shop", "orders", column_name="gone", dropped_time=1_700_000_000_000, kind="regular", type="text")],
    }
).encode()


@pytest.fixture
def store(tmp_path: Path) -> LocalStore:
    """A bucket with a snapshot of the schema, and no batch."""
    store = LocalStore(tmp_path / "bucket")
    store.put(schema_name(CLUSTER, NOW, "v1"), SNAPSHOT)
    return store


def _config(columns: dict[str, str], **more: object) -> PipelineConfig:
    document = {"pipeline": "p", "cluster": {"name": CLUSTER, "datacenters": ["d"]}, "bucket": "bucket", "columns": columns}
    return PipelineConfig.model_validate({**document, **more})


def test_a_rule_that_fits_nothing_forbids_a_batch(store: LocalStore) -> None:
    config = _config(WRONG)
    with pytest.raises(ConfigError, match=r"plan a batch: ring: `columns\.column\.exclude\.list`: `shop\.orders\.nota` fits no column"):
        plan_ingest(store, CLUSTER, now=NOW, check=rule_check(store, config))
    assert history(store, CLUSTER).last == 0
    alarmed = _config(WRONG | {"unmatched": "alarm"})
    manifest = plan_ingest(store, CLUSTER, now=NOW, check=rule_check(store, alarmed))
    assert manifest is not None
    # An open batch goes on: its rules are those of its first run.
    assert plan_ingest(store, CLUSTER, now=NOW, check=rule_check(store, config)) == manifest


def test_no_rebuild_begins_with_one(store: LocalStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    document = {"pipeline": "p", "cluster": {"name": CLUSTER, "datacenters": ["d"]}, "bucket": "bucket", "columns": WRONG}
    (tmp_path / "p.yaml").write_text(yaml.safe_dump(document))

    def started(*_: object) -> NoReturn:
        raise AssertionError("Spark is started")

    monkeypatch.setattr(rebuild, "spark_session", started)
    with pytest.raises(ConfigError, match=r"`shop\.orders\.nota` fits no column"):
        rebuild.run(load(tmp_path / "p.yaml"))
    with pytest.raises(AssertionError, match="Spark is started"):
        rebuild.run(load(tmp_path / "p.yaml").model_copy(update={"columns": ColumnsConfig()}))


def test_a_rule_of_a_column_or_table_that_was_dropped_fits(store: LocalStore) -> None:
    gone = ColumnsConfig.model_validate({"column.exclude.list": "shop.orders.gone", "field.exclude.list": "shop.orders.note"})
    assert unmatched_now(store, CLUSTER, gone.rules) == []


def test_nothing_is_forbidden_before_a_table_is_known(tmp_path: Path) -> None:
    empty = LocalStore(tmp_path / "empty")
    config = _config(WRONG)
    assert unmatched_now(empty, CLUSTER, config.rules) is None
    rule_check(empty, config)()


@pytest.mark.parametrize(("name", "fits"), [("shop.orders", True), ("shop.Orders", False), ("shop.order", False), ("s*.order", True)])
def test_a_table_that_is_excluded_by_name_is_there(store: LocalStore, name: str, fits: bool) -> None:
    check = rule_check(store, _config({}, tables={"exclude": [name]}))
    if fits:
        check()
    else:
        with pytest.raises(ConfigError, match=rf"`tables\.exclude`: `{name}` fits no table \(names of tables differ by case\)"):
            check()


def test_the_command_checks_rules_by_the_bucket(store: LocalStore, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    def check(cluster: str, **columns: str) -> int:
        document = {"pipeline": "p", "cluster": {"name": cluster, "datacenters": ["d"]}, "bucket": "bucket", "columns": columns}
        (tmp_path / "p.yaml").write_text(yaml.safe_dump(document))
        return main(["config", "check", "--rules", str(tmp_path / "p.yaml")])

    assert check(CLUSTER, **{"column.exclude.list": "shop.orders.note"}) == 0
    assert check(CLUSTER, **WRONG) == 2
    assert "`shop.orders.nota` fits no column" in capsys.readouterr().err
    assert check("another", **WRONG) == 0
    assert "are not checked" in capsys.readouterr().err
