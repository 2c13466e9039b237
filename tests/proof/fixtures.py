"""Pytest fixtures that give a test a real Cassandra; loaded for all tests by tests/conftest.py.

Nothing of Cassandra is imported before a test asks for it.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from proof.harness.node import Node


@pytest.fixture(scope="session")
def cassandra_node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Node]:
    """One node of Cassandra 5.0 with CDC on and 1 MiB segments, for the whole run. Mark tests that use it
    `cassandra`.

    It has `.address`, `.port`, `.cdc_raw` and `.session()`; each test makes a keyspace of its own."""
    from proof.harness.cassandra import Ring

    with Ring(tmp_path_factory.mktemp("cassandra"), segment_mb=1) as ring:
        yield ring.nodes[0]
