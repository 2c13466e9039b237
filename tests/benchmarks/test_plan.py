"""The bench of the planner does what it says: small, so that the figures mean nothing."""

from __future__ import annotations

import json

import pytest

from benchmarks import plan
from writetime.pipeline.documents import Manifest
from writetime.pipeline.planner import plan_ingest


def test_the_listing_is_a_bucket_of_shipped_segments() -> None:
    store = plan.Listing(nodes=7, incoming=2500)
    manifest = plan_ingest(store, plan.CLUSTER, now=plan.NOW)  # type: ignore[arg-type]
    assert isinstance(manifest, Manifest)
    assert len(manifest.segments) == 1000
    assert len({segment.object for segment in manifest.segments}) == 1000
    assert {segment.ref.node.cluster for segment in manifest.segments} == {plan.CLUSTER}
    # The oldest of every node, not all of the first one.
    assert len({segment.ref.node for segment in manifest.segments}) == 7
    assert max(segment.sealed_at for segment in manifest.segments) < plan.NOW


def test_the_figures(capsys: pytest.CaptureFixture[str]) -> None:
    assert plan.main(["--objects", "3000", "--nodes", "10", "--rate", "2", "--json"]) == 0
    figures = json.loads(capsys.readouterr().out)
    assert figures["backlog"]["requests"] > figures["idle"]["requests"]
    assert figures["manifest_segments"] == 1000
    assert figures["paper"]["segments_per_second"] == pytest.approx(10 * 2e6 / (32 << 20))
    assert figures["paper"]["archive_tb_per_day"] == pytest.approx(10 * 2e6 * 86_400 / 1e12)
    assert plan.main(["--objects", "20", "--nodes", "2"]) == 0
    assert "on paper" in capsys.readouterr().out
