"""Spark Structured Streaming on our topics, as docs/consumers.md does it: in a process of its own, because
a JVM that runs already does not find further jars."""

from __future__ import annotations

import json
import subprocess
import sys
from decimal import Decimal
from pathlib import Path

import pytest

from tests.consumers.conftest import Publish, block
from tests.spark_jobs.conf import SPARK
from tests.spark_jobs.pipeline import Pipeline
from tools.jars import need

pytestmark = [pytest.mark.spark, pytest.mark.kafka, pytest.mark.timeout(600), pytest.mark.thorough]

PROGRAM = """
from pyspark.sql import SparkSession
builder = SparkSession.builder
for name, value in {conf!r}.items():
    builder = builder.config(name, value)
spark = builder.getOrCreate()
{names}
{code}
rows.select(F.to_json(F.struct("*"), {{"ignoreNullFields": "false"}})).write.text(ROWS)
"""


def test_it_ends_with_the_rows_of_the_table(warehouse: Pipeline, published: Publish, page: str, tmp_path: Path) -> None:
    kafka = published(format="json")
    code = block(page, "python", "readStream")
    jars = ",".join(str(jar) for jar in sorted(need("spark-kafka").glob("*.jar")))
    names = {
        "BOOTSTRAP": kafka.bootstrap_servers,
        "TOPIC": f"{kafka.topic_prefix}.shop.customers",
        "EVENTS": str(tmp_path / "events"),
        "CHECKPOINT": str(tmp_path / "checkpoint"),
        "ROWS": str(tmp_path / "rows"),
    }
    settings = "\n".join(f"{name} = {value!r}" for name, value in names.items())
    program = tmp_path / "program.py"
    program.write_text(PROGRAM.format(conf={**SPARK, "spark.jars": jars}, names=settings, code=code), encoding="utf-8")
    done = subprocess.run([sys.executable, str(program)], capture_output=True, text=True, check=False, cwd=tmp_path)
    assert done.returncode == 0, done.stderr[-3000:]
    found = [json.loads(line, parse_float=Decimal) for path in (tmp_path / "rows").glob("*.txt") for line in path.read_text().splitlines()]
    columns = ("customer_id", "name", "points", "balance", "phones")
    expected = [{name: row[name] for name in columns} for row in warehouse.rows("shop", "customers")]
    for row in expected:
        row["balance"] = None if row["balance"] is None else Decimal(row["balance"])
    assert len(found) == len(expected) == 77
    assert [row for row in expected if row not in found] == [], found[:2]
