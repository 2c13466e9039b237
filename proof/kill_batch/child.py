"""One job as a process: `python -m proof.kill_batch.child CONFIG ingest 3`, or `… publish`. CONFIG is a
pickled PipelineConfig.
"""

from __future__ import annotations

import os
import pickle
import sys
from pathlib import Path

from proof.kill_batch import points, sabotage
from spark_jobs import ingest, publish, rebuild
from writetime.config.pipeline import PipelineConfig
from writetime.errors import WritetimeError


def main(config: PipelineConfig, job: str, *number: str) -> int:
    os.environ[points.DRIVER] = str(os.getpgid(0))
    sabotage.install()
    points.install_in_driver()
    try:
        if job == "ingest":
            ingest.run(config, int(number[0]))
        elif job == "rebuild":
            rebuild.run(config)
        else:
            publish.run(config)
    except WritetimeError as error:
        print(f"{job} failed: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(pickle.loads(Path(sys.argv[1]).read_bytes()), *sys.argv[2:]))
