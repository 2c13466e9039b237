"""A standalone cluster: its machines share nothing with this process, and one that is killed can be replaced."""

from __future__ import annotations

import os
import subprocess
import time
from pathlib import Path

import pytest

from tools.services.spark import SparkCluster

pytestmark = pytest.mark.thorough


def test_machines_are_apart_and_can_be_replaced(tmp_path: Path) -> None:
    with SparkCluster(tmp_path / "run") as cluster:
        assert cluster.alive_workers() == 2
        first, second = cluster.workers
        homes = [machine.home for machine in cluster.workers]
        assert [home.stat().st_mode & 0o777 for home in homes] == [0o700, 0o700]
        users = {first.user, second.user}
        if os.geteuid() == 0:
            assert len(users - {None, "root"}) == 2
            for user, other in ((first.user, second.home), (second.user, first.home), (first.user, tmp_path)):
                assert subprocess.run(["ls", str(other)], user=user, capture_output=True, check=False).returncode != 0
        (service,) = second.services
        cluster.kill_worker(second)
        assert not service.alive
        cluster.start_worker(second)
        # The master still counts the one that was killed, until it misses its heartbeats.
        give_up = time.monotonic() + 60
        while len((cluster.state() or {"workers": []})["workers"]) < 3 and time.monotonic() < give_up:
            time.sleep(0.2)
        assert len((cluster.state() or {"workers": []})["workers"]) == 3
    assert not [home for home in homes if home.exists()]
    if os.geteuid() == 0:
        assert all(subprocess.run(["id", str(user)], capture_output=True, check=False).returncode for user in users)
