"""Batches whose catalog is in a real PostgreSQL: in a process of its own, because a JVM that runs already does not
find further drivers."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from tests.consumers.conftest import postgres
from tools import ROOT
from tools.jars import need
from tools.services.postgres import USER, Postgres

__all__ = ["postgres"]

pytestmark = [pytest.mark.spark, pytest.mark.thorough, pytest.mark.timeout(600)]

PROGRAM = """
import json, sys
from dataclasses import replace
from pathlib import Path
from pydantic import SecretStr
from spark_jobs.session import spark_session
from tests.spark_jobs.pipeline import Pipeline
from tools import verify

folder, url, user, jar, result = sys.argv[1:]
pipeline = Pipeline.create(Path(folder))
config = pipeline.config
catalog = config.catalog.model_copy(
    update={"uri": url, "options": {"jdbc.user": user}, "secrets": {"jdbc.password": SecretStr("any")}}
)
conf = {**config.spark.conf, "spark.jars": f"{config.spark.conf['spark.jars']},{jar}"}
update = {"catalog": catalog, "spark": config.spark.model_copy(update={"conf": conf})}
pipeline = replace(pipeline, config=config.model_copy(update=update))
pipeline.stage()
pipeline.ship()
batches = pipeline.batches(3)
spark = spark_session(pipeline.config, "reading")
differ = {}
for keyspace, table in pipeline.recording.cdc_tables:
    found = spark.table(f"lake.{keyspace}.{table}").toArrow().to_pylist()
    expected = verify.expected_rows(pipeline.recording, keyspace, table)
    differ[f"{keyspace}.{table}"] = verify.differences(table, expected, [verify.as_recorded(row) for row in found])
spark.stop()
Path(result).write_text(json.dumps({"batches": batches, "differ": differ}))
"""


def test_two_batches_come_to_the_rows_of_the_cluster(postgres: Postgres, tmp_path: Path) -> None:
    (jar,) = need("postgres").glob("*.jar")
    result = tmp_path / "result.json"
    arguments = [str(tmp_path / "site"), postgres.url, USER, str(jar), str(result)]
    done = subprocess.run([sys.executable, "-c", PROGRAM, *arguments], cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-3000:]
    found = json.loads(result.read_text())
    assert found["batches"] == [1, 2]
    assert found["differ"]
    assert {name: each for name, each in found["differ"].items() if each} == {}
    assert {(row["table_namespace"], row["table_name"]) for row in postgres.rows("iceberg_tables")} >= {
        ("shop", "orders"),
        ("shop__changes", "orders"),
    }
