"""`make prove NAME=kill MASTER=standalone SEED=1 KILLS=6`: exit code 0 when everything is as it should be."""

from __future__ import annotations

import argparse
import signal
import sys
import tempfile
from pathlib import Path

from proof.kill_cluster.run import ClusterKills
from tools.console import say
from tools.errors import ToolError


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(prog="python -m proof.kill_cluster", description=__doc__)
    parser.add_argument("--seed", type=int, default=1, help="seed of kills and moments (default: 1)")
    parser.add_argument("--kills", type=int, default=6, help="how many processes are killed (default: 6)")
    options = parser.parse_args(arguments)
    # Stop all services also if the proof is terminated from outside.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))
    with tempfile.TemporaryDirectory(prefix="writetime-cluster-") as folder:
        try:
            result = ClusterKills(Path(folder), options.seed, options.kills).play()
        except ToolError as error:
            say(f"✗ {error}")
            return 1
    for problem in result.problems[:10]:
        say(f"  {problem[:500]}")
    say(str(result))
    return 0 if result.holds else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
