"""Spark's daemon of Python workers with points, and with what is sabotaged."""

from __future__ import annotations

from spark_jobs import daemon
from tests.spark_jobs.kill import points, sabotage

if __name__ == "__main__":
    sabotage.install()
    points.install_in_worker()
    daemon.main()
