"""All tests that need nothing but set-up, as two processes side by side: `python -m tools.tests [pytest's own options]`.

Strategy: tests that start services (Cassandra, Kafka, Airflow, Spark) wait for them most of the time, and all others compute. Together they
use a machine of two cores, and take two thirds of the time. Within each process tests run one after the other: no two start a ring at
one moment. The first process's output is shown as it comes, the second one's when the first has ended. Options go to both; where they name
tests of one kind only, the other process has nothing to do, and that is no failure.
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
from typing import Final

from tools import ROOT

ELSEWHERE: Final = "not gcs and not s3 and not browser"
"""What has a make target of its own."""
SERVICES: Final = "airflow or kafka or spark or cassandra"
NOTHING_COLLECTED: Final = 5


def commands(options: list[str]) -> tuple[list[str], list[str]]:
    """The one with services, and the one without."""
    first, second = ([sys.executable, "-m", "pytest", "-m", f"{kind} and {ELSEWHERE}"] for kind in (f"({SERVICES})", f"not ({SERVICES})"))
    return [*first, *options], [*second, *options]


def outcome(codes: tuple[int, int]) -> int:
    """Exit code for both: the first that is one of a failure; that there is nothing to do counts where both say so."""
    return next((code for code in codes if code not in (0, NOTHING_COLLECTED)), min(codes))


def main(options: list[str]) -> int:
    services, others = commands(options)
    with tempfile.TemporaryFile() as output:
        beside = subprocess.Popen(others, cwd=ROOT, stdin=subprocess.DEVNULL, stdout=output, stderr=subprocess.STDOUT)
        try:
            code = subprocess.run(services, cwd=ROOT, check=False).returncode
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
