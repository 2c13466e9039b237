"""Tables of a real node are read while they are written to and their log is ingested, with readers and sessions
killed: tables and topics equal the node. `make prove NAME=bootstrap` takes three nodes and longer.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from proof.bootstrap.run import CLUSTER, Act, Run
from proof.harness.cassandra import Ring
from tools.services.kafka import Kafka

pytestmark = [pytest.mark.cassandra, pytest.mark.spark, pytest.mark.timeout(900), pytest.mark.thorough]


def test_tables_that_are_read_while_their_log_is_ingested_equal_the_node(tmp_path: Path) -> None:
    settings = {"auto_snapshot": False}
    with (
        Ring(tmp_path / "ring", cluster_name=CLUSTER, segment_mb=1, settings=settings) as ring,
        Kafka(tmp_path / "kafka", port=0) as kafka,
    ):
        result = Run(tmp_path / "run", ring, kafka, rows=200, seed=1).play([Act("first", kills=2)])
    assert [str(mismatch) for mismatch in result.mismatches] == []
    assert result.troubles == []
    assert result.kills.total() == 2
    assert result.done["readings"]
    assert result.rows
