"""The segments that benchmarks read, written by a node of their own."""

from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks import data
from writetime.cassandra.commitlog.segment import scan


@pytest.mark.cassandra
@pytest.mark.thorough
@pytest.mark.timeout(600)
def test_a_node_writes_the_segments_that_a_clone_lacks(tmp_path: Path) -> None:
    folder = tmp_path / "segments"
    (segment,) = data.segments(folder, count=1)
    about = data.manifest(folder)
    assert (about["segments"], about["bytes"]) == (1, segment.stat().st_size)
    assert about["statements"] > 0
    assert len(scan(segment.read_bytes(), name=segment.name).frames) > 1000
