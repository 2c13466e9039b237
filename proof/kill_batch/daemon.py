"""Spark's daemon of Python workers, with points and sabotage installed."""

from __future__ import annotations

from proof.kill_batch import points, sabotage
from spark_jobs import daemon

if __name__ == "__main__":
    sabotage.install()
    points.install_in_worker()
    daemon.main()
