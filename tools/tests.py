"""The test suites, as two processes side by side: `python -m tools.tests [--all | --rest] [pytest's own
options]`.

    (default)   the quick suite: every main path once on real parts; hypothesis tries a fifth of its examples
    --all       everything that needs nothing but set-up
    --rest      what the quick suite leaves out, and hypothesis with all its examples

Strategy: tests with Cassandra nodes or Airflow wait most of the time, and the others, most of those with
Spark and Kafka among them, compute; tests of drivers that die go with the former, so that both processes end
at about the same time. Together they use a machine of two cores, and take about half of the time. Within each
process tests run one after the other: no two start a cluster at one moment. The first process's output is
shown as it comes, the second one's when the first has ended. Options go to both; where they select tests of
one process only, the other has nothing to do, and that is no failure."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from typing import Final

from tools import ROOT

ELSEWHERE: Final = "not gcs and not s3 and not browser and not engines"
"""What has a make target of its own."""
WAITING: Final = "airflow or cassandra or drivers"
SUITES: Final = {"--quick": "not thorough", "--rest": "(thorough or hypothesis)", "--all": ""}
NOTHING_COLLECTED: Final = 5


def commands(suite: str, options: list[str]) -> tuple[list[str], list[str]]:
    """The one that waits, and the one that computes."""
    wanted = [ELSEWHERE, *filter(None, [SUITES[suite]])]
    first, second = ([sys.executable, "-m", "pytest", "-m", " and ".join([kind, *wanted])] for kind in (f"({WAITING})", f"not ({WAITING})"))
    return [*first, *options], [*second, *options]


def outcome(codes: tuple[int, int]) -> int:
    """Exit code for both: the first that is one of a failure; that there is nothing to do counts where both
    say so."""
    return next((code for code in codes if code not in (0, NOTHING_COLLECTED)), min(codes))


def main(options: list[str]) -> int:
    suite = options.pop(0) if options and options[0] in SUITES else "--quick"
    waiting, others = commands(suite, options)
    # tests/examples.py reads it.
    env = os.environ | {"WRITETIME_TESTS": suite.removeprefix("--")}
    with tempfile.TemporaryFile() as output:
        second = subprocess.Popen(others, cwd=ROOT, env=env, stdin=subprocess.DEVNULL, stdout=output, stderr=subprocess.STDOUT)
        try:
            code = subprocess.run(waiting, cwd=ROOT, env=env, check=False).returncode
            codes = code, second.wait()
        except BaseException:
            second.terminate()
            second.wait()
            raise
        output.seek(0)
        sys.stdout.write("\n" + output.read().decode(errors="replace"))
    return outcome(codes)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
