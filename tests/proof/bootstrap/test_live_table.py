"""A table of a real ring is read while it is written to, and equals the ring in the end. `make
bootstrap-proof` takes larger ones."""

from __future__ import annotations

from pathlib import Path

import pytest

from proof.bootstrap.live import CLUSTER, Live, prove
from proof.harness.cassandra import Ring
from proof.ring.pipeline import Pipeline

pytestmark = [pytest.mark.cassandra, pytest.mark.spark, pytest.mark.timeout(900), pytest.mark.thorough]


def test_a_living_table_is_read_and_equals_the_ring(tmp_path: Path) -> None:
    settings = {"auto_snapshot": False}
    with (
        Ring(tmp_path / "ring", spares=4, cluster_name=CLUSTER, segment_mb=1, settings=settings) as ring,
        Pipeline.create(tmp_path / "run") as pipeline,
    ):
        live = Live(ring, pipeline, rows=400)
        prove(live)
    assert [str(mismatch) for mismatch in live.mismatches] == []
    assert live.done["read again"]
    assert live.done["frames of the second run"] == 0
