"""The command; see the package's docstring."""

from __future__ import annotations

import argparse
import shutil
import sys
import tempfile
import time
from pathlib import Path

from proof.kill_shipper.run import Result, Run
from proof.kill_shipper.sabotage import RULES

SHOWN = 10


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m proof.kill_shipper", description=__doc__)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--kills", type=int, default=200)
    parser.add_argument("--sabotage", choices=[*RULES, "all"], help="break the shipper by that rule: code 0 if it was noticed")
    parser.add_argument("--folder", type=Path, help="where to work, and to leave everything; default: a temporary folder")
    options = parser.parse_args()
    # Only processes are killed, not the machine: a memory file system is sufficient, and syncs to disk would
    # take most of the time.
    memory = Path("/dev/shm")
    with tempfile.TemporaryDirectory(prefix="writetime-kill-", dir=memory if memory.is_dir() else None) as temporary:
        root = options.folder or Path(temporary)
        if options.folder:
            shutil.rmtree(options.folder, ignore_errors=True)
        if options.sabotage is None:
            return plain(Run(root / "run", options.seed), options.kills)
        rules = list(RULES) if options.sabotage == "all" else [options.sabotage]
        return max(sabotaged(Run(root / rule, options.seed, rule), rule, options.kills) for rule in rules)


def plain(run: Run, kills: int) -> int:
    begun = time.monotonic()
    result = run.run(kills)
    report(result, time.monotonic() - begun)
    return 1 if result.found.all else 0


def sabotaged(run: Run, rule: str, kills: int) -> int:
    result = run.run(kills, stop_at_first=True)
    if not result.found.all:
        print(f"{rule}: NOT NOTICED after {result.kills} kills, {result.segments} segments")
        return 1
    print(f"{rule}: noticed after {result.kills} kills: {result.found.all[0]}")
    return 0


def report(result: Result, seconds: float) -> None:
    for point, count in sorted(result.points.items()):
        print(f"  killed {point}: {count}")
    for event, count in sorted(result.events.items()):
        print(f"  shippers with {event}: {count}")
    for text in result.found.all[:SHOWN]:
        print(f"  {text}")
    counts = ", ".join(f"{kind} {count}" for kind, count in result.found.counts.items())
    print(
        f"{result.segments} segments ({result.bytes >> 10} KiB), {result.crashes} crashes of the node, {result.orphans} orphans, "
        f"{result.archived} archived meanwhile, {result.again} shipped again after that, {result.put_aside} found put aside, "
        f"{result.conflicts} in conflict, {result.wrong_objects} wrong objects settled by hand, {result.parts} parts"
    )
    print(f"kills {result.kills}, segments {result.segments}, {counts} ({seconds:.0f} s)")


if __name__ == "__main__":
    sys.exit(main())
