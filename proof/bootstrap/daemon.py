"""Spark's daemon of Python workers, under a sabotage."""

from __future__ import annotations

from proof.bootstrap import sabotage
from spark_jobs import daemon

if __name__ == "__main__":
    sabotage.apply_of_environment()
    daemon.main()
