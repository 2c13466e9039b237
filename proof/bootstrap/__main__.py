"""`python -m proof.bootstrap --seed 1 --kills 20 --rows 3000`. Exit code 0: tables and topics equalled the cluster
at each quiet point, and the run has shown enough.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from pathlib import Path

import structlog

from proof.bootstrap import sabotage
from proof.bootstrap.report import report
from proof.bootstrap.run import CLUSTER, Act, Run
from proof.bootstrap.workload import EARLY, KEYSPACE
from proof.harness.cassandra import VERSIONS, Ring, version_of
from tools.console import say
from tools.services.kafka import Kafka


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m proof.bootstrap", description=__doc__)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--kills", type=int, default=20, help="of readers and sessions (default: 20)")
    parser.add_argument("--rows", type=int, default=3_000, help="rows that the largest table has before anybody captures it")
    parser.add_argument("--nodes", type=int, default=3)
    parser.add_argument("--version", type=version_of, default=VERSIONS[0], help="of Cassandra")
    parser.add_argument("--acts", default="first,again,unseen", help="which acts (default: all)")
    parser.add_argument("--folder", type=Path, help="keep everything in this new folder")
    parser.add_argument("--sabotage", default="", choices=["", *sabotage.RULES], help="break this rule: the run has to notice")
    options = parser.parse_args()
    names = options.acts.split(",")
    acts = [Act(name, (options.kills + at) // len(names), elements=name == "again") for at, name in enumerate(reversed(names))][::-1]
    begun = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="writetime-bootstrap-") as temporary:
        folder = options.folder or Path(temporary)
        folder.mkdir(parents=True, exist_ok=True)
        with (
            (folder / "shippers.log").open("w", encoding="utf-8") as log,
            Ring(
                folder / "ring",
                nodes=options.nodes,
                version=options.version,
                heap="400M",
                cluster_name=CLUSTER,
                segment_mb=1,
                settings={"auto_snapshot": False},
                options=["-XX:TieredStopAtLevel=1", "-XX:ReservedCodeCacheSize=128m"],
            ) as ring,
            Kafka(folder / "kafka", port=0) as kafka,
        ):
            structlog.configure(logger_factory=structlog.PrintLoggerFactory(log))
            result = Run(folder / "run", ring, kafka, options.rows, options.seed, rule=options.sabotage).play(acts)
    wrong = report(result, options.kills)
    if options.sabotage:
        early = [each for each in result.mismatches if each.table.removeprefix(f"{KEYSPACE}.") in EARLY]
        say(f"{options.sabotage}: {'noticed' if early else 'NOT NOTICED'}, {len(early)} mismatches")
        wrong = not early
    say(f"seed {options.seed}, {options.rows} rows, {time.monotonic() - begun:.0f} s")
    return int(wrong)


if __name__ == "__main__":
    sys.exit(main())
