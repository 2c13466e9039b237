"""A table that cannot be read holds up no other, without Spark and a ring."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from spark_jobs import bootstrap
from spark_jobs.bootstrap import Bootstrap
from writetime.config import PipelineConfig
from writetime.errors import BatchError, WritetimeError


def test_one_table_that_cannot_be_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    read: list[str] = []

    def read_table(_: Any, table: Any, __: Any) -> str:
        read.append(table.full_name)
        if table.full_name == "shop.orders":
            raise BatchError("no SELECT permission", operation="read a table from the ring", obj=table.full_name)
        return str(table.full_name)

    def read_touched(_: Any, failed: list[WritetimeError]) -> int:
        assert len(failed) == 1
        read.append("touched")
        return 0

    cluster = SimpleNamespace(name="c", cql=SimpleNamespace())
    config = cast(PipelineConfig, SimpleNamespace(cluster=cluster, pipeline="p", bucket=str(tmp_path)))
    monkeypatch.setattr(bootstrap, "spark_session", lambda *_: SimpleNamespace(stop=lambda: None))
    monkeypatch.setattr(bootstrap.runs, "table_named", lambda _, name: SimpleNamespace(full_name=name))
    monkeypatch.setattr(Bootstrap, "__post_init__", lambda job: setattr(job, "schema", None))
    monkeypatch.setattr(Bootstrap, "read_table", read_table)
    monkeypatch.setattr(Bootstrap, "read_touched", read_touched)
    with pytest.raises(BatchError, match="no SELECT"):
        bootstrap.run(config, tables=["shop.orders", "shop.notes"], touched=True)
    assert read == ["shop.orders", "shop.notes", "touched"]
