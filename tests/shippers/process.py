"""The shipper as a process next to a single-node cluster, for harnesses that measure it or kill it by
signals.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import yaml

from proof.harness.cassandra import Ring

_COMMAND = "import sys, writetime.cli; sys.exit(writetime.cli.main(sys.argv[1:]))"


@contextmanager
def shipping(
    ring: Ring, folder: Path, bucket: str, ship: Mapping[str, Any], *, poll_seconds: float = 5, environment: Mapping[str, str] | None = None
) -> Iterator[subprocess.Popen[bytes]]:
    """The shipper's command, as a service would run it; `ship` is its `node.ship`. Its log is `ship.log` in
    the folder.
    """
    (node,) = ring.nodes
    document = {
        "pipeline": "shipping",
        "cluster": {"name": ring.cluster_name, "datacenters": ["dc1"]},
        "bucket": bucket,
        "node": {
            "cdc_raw": str(node.cdc_raw),
            "address": node.address,
            "port": node.port,
            "poll_seconds": poll_seconds,
            "state_dir": str(folder / "state"),
            "ship": {"listen": None, **ship},
        },
    }
    (folder / "pipeline.yaml").write_text(yaml.safe_dump(document), encoding="utf-8")
    with (folder / "ship.log").open("wb") as log:
        command = [sys.executable, "-c", _COMMAND, "ship", "-c", str(folder / "pipeline.yaml")]
        process = subprocess.Popen(command, stderr=log, env={**os.environ, **(environment or {})})
        try:
            yield process
        finally:
            process.send_signal(signal.SIGTERM)
            process.wait(120)
