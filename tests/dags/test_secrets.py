"""Secrets of a pipeline in the logs of Airflow's tasks, which have all that Spark, its drivers and libraries print."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.dags.one_process import run
from tests.monitoring import bucket

YAML = f"""
pipeline: p
cluster:
  name: '{bucket.CLUSTER}'
  datacenters: [dc1]
bucket: bucket
catalog:
  uri: jdbc:postgresql://db.example/iceberg?user=writetime&password=${{URL_PASSWORD}}
  warehouse: lake
  secrets: {{jdbc.password: "${{CATALOG_PASSWORD}}"}}
kafka:
  bootstrap.servers: localhost:9092
  topic.prefix: p
  producer: {{sasl.password: "${{KAFKA_PASSWORD}}", client.id: not-a-secret}}
"""
SECRETS = {"URL_PASSWORD": "hunter-url", "CATALOG_PASSWORD": "hunter-catalog", "KAFKA_PASSWORD": "hunter-kafka"}

_MASKED = """
from airflow.sdk._shared.secrets_masker import redact
import writetime_operators as ops
config, _ = ops.opened(os.environ["WRITETIME_CONFIG"])
lines = [f"Failed to connect: {config.catalog.uri}", *(os.environ[name] for name in os.environ["NAMES"].split()), "client.id=not-a-secret"]
say([redact(line) for line in lines])
"""


def test_airflow_masks_the_secrets_of_the_yaml(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    names = {**SECRETS, "WRITETIME_CQL_PASSWORD": "hunter-cql"}
    for name, value in SECRETS.items():
        monkeypatch.setenv(name, value)
    config = tmp_path / "pipeline.yaml"
    config.write_text(YAML, encoding="utf-8")
    url, *found, other = run(_MASKED, tmp_path, config, [], {**names, "NAMES": "CATALOG_PASSWORD KAFKA_PASSWORD WRITETIME_CQL_PASSWORD"})
    assert url == "Failed to connect: ***"
    assert found == ["***"] * 3
    assert other == "client.id=not-a-secret"
