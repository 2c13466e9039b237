"""`make kill-batch SEED=1 KILLS=100`, `make kill-batch SABOTAGE=all`: exit code 0 when everything is as it
should be.
"""

from __future__ import annotations

import argparse
import shutil
import sys
import tempfile
from pathlib import Path

from proof import in_s3
from proof.kill_batch.run import Kills, Result
from proof.kill_batch.sabotage import RULES
from tools.console import say
from tools.errors import ToolError


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(prog="python -m proof.kill_batch", description=__doc__)
    parser.add_argument("--seed", type=int, default=1, help="seed of batches, kills and moments (default: 1)")
    parser.add_argument("--kills", type=int, default=100, help="how many jobs are killed (default: 100)")
    parser.add_argument("--sabotage", choices=[*RULES, "all"], help="break this rule of the product, or each, and see that it shows")
    parser.add_argument("--mode", choices=("batch", "session"), default="batch", help="what runs the batches: a job each, or sessions")
    parser.add_argument("--switch", action="store_true", help="switch kafka.partition_by to partition_key half-way")
    parser.add_argument("--store", choices=in_s3.STORES, default="folder", help=in_s3.HELP)
    options = parser.parse_args(arguments)
    try:
        return _run(options)
    except ToolError as error:
        say(f"✗ {error}")
        return 2


def _run(options: argparse.Namespace) -> int:
    if options.sabotage is None:
        result = play(options.seed, options.kills, session=options.mode == "session", switches=options.switch, store=options.store)
        report(result)
        return 0 if result.holds else 1
    unnoticed = []
    for rule in RULES if options.sabotage == "all" else [options.sabotage]:
        result = play(options.seed, 0, rule, store=options.store)
        say(f"{'✗ not noticed' if result.holds else '✓ noticed'}: {rule}")
        report(result)
        unnoticed += [rule] if result.holds else []
    return 1 if unnoticed else 0


def play(seed: int, kills: int, rule: str | None = None, *, session: bool = False, switches: bool = False, store: str = "folder") -> Result:
    folder = Path(tempfile.mkdtemp(prefix="writetime-kills-"))
    with in_s3.serving(store, folder):
        segments = RULES[rule].segments if rule is not None else max(3, kills // 6)
        run = Kills(folder, seed, kills, rule=rule, segments=segments, session=session, switches=switches, store=store)
        result = run.play()
    if result.holds or rule is not None:
        shutil.rmtree(folder)
    else:
        say(f"  bucket, tables, topics and jobs.log stay in {folder}")
    return result


def report(result: Result) -> None:
    for problem in result.problems[:10]:
        say(f"  {problem[:500]}")
    say(str(result))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
