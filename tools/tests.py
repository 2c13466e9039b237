"""All tests that need nothing but set-up, as two processes side by side: `python -m tools.tests [pytest's own options]`.

Strategy: tests with a ring of Cassandra's or with Airflow wait most of the time, and the others, most of those with Spark and Kafka among
them, compute; tests of drivers that die go with the former, so that both end at about the same time. Together they use a machine of two
cores, and take about half of the time. Within each process tests run one after the other: no
two start a ring at one moment. The first process's output is shown as it comes, the second one's when the first has ended. Options go to
both; where they name tests of one kind only, the other process has nothing to do, and that is no failure.
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
from typing import Final

from tools import ROOT

ELSEWHERE: Final = "not gcs and not s3 and not browser"
"""What has a make target of its own."""
WAITING: Final = "airflow or cassandra or drivers"
NOTHING_COLLECTED: Final = 5


def commands(options: list[str]) -> tuple[list[str], list[str]]:
    """The one that waits, and the one that computes."""
    first, second = ([sys.executable, "-m", "pytest", "-m", f"{kind} and {ELSEWHERE}"] for kind in (f"({WAITING})", f"not ({WAITING})"))
    return [*first, *options], [*second, *options]


def outcome(codes: tuple[int, int]) -> int:
    """Exit code for both: the first that is one of a failure; that there is nothing to do counts where both say so."""
    return next((code for code in codes if code not in (0, NOTHING_COLLECTED)), min(codes))


def main(options: list[str]) -> int:
    waiting, others = commands(options)
    with tempfile.TemporaryFile() as output:
        beside = subprocess.Popen(others, cwd=ROOT, stdin=subprocess.DEVNULL, stdout=output, stderr=subprocess.STDOUT)
        try:
            code = subprocess.run(waiting, cwd=ROOT, check=False).returncode
            codes = code, beside.wait()
        except BaseException:
            beside.terminate()
            beside.wait()
            raise
        output.seek(0)
        sys.stdout.write("\n" + output.read().decode(errors="replace"))
    return outcome(codes)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
