"""Runs `proof.bootstrap.live` on a cluster of three nodes. Exit code 0: the tables equal the cluster's."""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from pathlib import Path

from proof.bootstrap.live import CLUSTER, Live, prove
from proof.harness.cassandra import VERSIONS, Ring, version_of
from proof.ring.pipeline import Pipeline
from tools.console import say


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", type=int, default=20_000, help="rows that the largest table has before anybody captures it")
    parser.add_argument("--nodes", type=int, default=3)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--version", type=version_of, default=VERSIONS[0], help="of Cassandra")
    options = parser.parse_args()
    begun = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="writetime-bootstrap-") as folder:
        ring = Ring(
            Path(folder) / "ring",
            nodes=options.nodes,
            spares=5 - options.nodes,
            version=options.version,
            heap="512M",
            cluster_name=CLUSTER,
            settings={"auto_snapshot": False},
        )
        with ring, Pipeline.create(Path(folder) / "run") as pipeline:
            live = Live(ring, pipeline, options.rows, options.seed)
            prove(live)
    for mismatch in live.mismatches[:50]:
        say(str(mismatch))
    say(f"{options.rows} rows, {len(live.mismatches)} mismatches, {dict(live.done)}, {time.monotonic() - begun:.0f} s")
    return 1 if live.mismatches else 0


if __name__ == "__main__":
    sys.exit(main())
