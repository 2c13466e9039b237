"""One job as a process: `python -m proof.kill_batch.child CONFIG ingest 3`, `… publish`, or a session until
batch 3 is archived (`… session 3`) or everything is published (`… session`), or a request to send a table again
(`… again KEYSPACE.TABLE REQUEST`). CONFIG is a pickled
PipelineConfig.
"""

from __future__ import annotations

import os
import pickle
import sys
import threading
import time
from functools import partial
from pathlib import Path

from proof.kill_batch import points, sabotage
from spark_jobs import ingest, publish, rebuild, stream
from writetime.config.pipeline import PipelineConfig
from writetime.errors import WritetimeError
from writetime.pipeline.publish_progress import publish_due
from writetime.storage import layout, open_store
from writetime.storage.lease import Lease


def main(config: PipelineConfig, job: str, *number: str) -> int:
    os.environ[points.DRIVER] = str(os.getpgid(0))
    sabotage.install()
    points.install_in_driver()
    try:
        if job == "ingest":
            ingest.run(config, int(number[0]))
        elif job == "rebuild":
            rebuild.run(config)
        elif job == "again":
            publish.run(config, again=[number[0]], request=number[1], everything=True)
        elif job == "session":
            session(config, int(number[0]) if number else None)
        else:
            publish.run(config)
    except WritetimeError as error:
        print(f"{job} failed: {error}", file=sys.stderr)
        return 1
    return 0


def session(config: PipelineConfig, number: int | None) -> None:
    """Run a session until its work is done. Its lease is short: killed sessions follow one another."""
    stream.Lease = partial(Lease, seconds=3.0, skew=1.0)  # type: ignore[misc]
    store, cluster, stop = open_store(config.bucket), config.cluster.name, threading.Event()

    def is_done() -> bool:
        if number is not None:
            return store.head(layout.batch_object(cluster, number, "archived")) is not None
        return not publish_due(store, cluster)

    def watch() -> None:
        while not is_done():
            time.sleep(0.5)
        stop.set()

    threading.Thread(target=watch, daemon=True).start()
    stream.run(config, source=stream.Source(Path(sys.argv[1])), seconds=600, stop=stop)


if __name__ == "__main__":
    sys.exit(main(pickle.loads(Path(sys.argv[1]).read_bytes()), *sys.argv[2:]))
