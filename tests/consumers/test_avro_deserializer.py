"""Confluent's AvroDeserializer, as docs/consumers.md uses it."""

from __future__ import annotations

from typing import Any
from uuid import UUID

import pytest

from tests.consumers.conftest import Publish, block
from tests.spark_jobs.pipeline import Pipeline
from tools.verify import FACTS

pytestmark = [pytest.mark.spark, pytest.mark.kafka, pytest.mark.timeout(600), pytest.mark.thorough]


def comparable(value: Any) -> Any:
    """Iceberg's maps are lists of pairs, Avro's are maps; a UUID is text in Iceberg's rows."""
    if isinstance(value, UUID):
        return str(value)
    if isinstance(value, list) and value and isinstance(value[0], tuple):
        return dict(value)
    return value


def test_it_ends_with_the_rows_of_the_tables(warehouse: Pipeline, published: Publish, page: str, schema_registry: str) -> None:
    kafka = published(**{"format": "avro", "schema.registry.url": schema_registry})
    code = block(page, "python", "AvroDeserializer")
    for table, rows in (("customers", 77), ("orders", 894)):
        names = {"REGISTRY": schema_registry, "BOOTSTRAP": kafka.bootstrap_servers, "TOPIC": f"{kafka.topic_prefix}.shop.{table}"}
        seen: dict[str, Any] = dict(names)
        exec(compile(code.replace('"orders"', f'"{table}"').replace("poll(10)", "poll(30)"), "consumers.md", "exec"), seen)
        expected = [{name: comparable(value) for name, value in row.items() if name not in FACTS} for row in warehouse.rows("shop", table)]
        found = [{name: comparable(value) for name, value in row.items()} for row in seen["table"]]
        assert len(found) == len(expected) == rows
        assert [row for row in expected if row not in found] == [], [row for row in found if row not in expected][:2]
