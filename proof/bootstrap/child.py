"""One of the jobs as a process of its own: `python -m proof.bootstrap.child session --config F`, or `read`, with
the arguments of `spark_jobs.stream` and `spark_jobs.bootstrap`.
"""

from __future__ import annotations

import sys
from functools import partial

from proof.bootstrap import sabotage
from spark_jobs import bootstrap, stream
from writetime.storage.lease import Lease


def main(job: str, *arguments: str) -> int:
    sabotage.apply_of_environment()
    # Killed sessions follow one another: the next one does not wait for half a minute.
    stream.Lease = partial(Lease, seconds=8.0, skew=1.0)  # type: ignore[misc]
    return {"session": stream.main, "read": bootstrap.main}[job](list(arguments))


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
