"""A site whose jobs run on a standalone cluster of Spark, with nothing in common but an S3 server: what
`MASTER=standalone` means.

Strategy: bucket, state and tables are in the server; the catalog is a file of the driver's, since only drivers access
it. Workers are given the server's address and an account in their own environment, as machines have rights of their
own. Everything that executors run comes as an archive with the job. docs/clusters.md describes the same for others.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tools import ROOT, executor_environment, jars
from tools.services import s3
from tools.services.spark import SparkCluster

ARCHIVE = ROOT / "var" / "cluster" / "environment.tar.gz"
BUCKET, LAKE = "s3://cdc/demo", "s3://lake/tables"


@dataclass(frozen=True)
class Standalone:
    """A running cluster, its store, and what is in the environment of everyone who uses the store."""

    cluster: SparkCluster
    environment: Mapping[str, str]
    installed: bool = False
    """The executors' Python is on each machine, in the PATH; else it comes with each job."""

    @property
    def tables(self) -> dict[str, Any]:
        """Keys of `catalog` in a pipeline's YAML."""
        return {"warehouse": LAKE, "options": s3.ICEBERG}

    @property
    def spark(self) -> dict[str, Any]:
        """Keys of `spark`."""
        with_the_job = {"spark.archives": f"{ARCHIVE}#environment", "spark.pyspark.python": "./environment/bin/python"}
        submit = {
            **({"spark.pyspark.python": "python"} if self.installed else with_the_job),
            "spark.pyspark.driver.python": sys.executable,
            "spark.executor.memory": "1g",
            "spark.jars": ",".join(map(str, sorted(jars.need("s3").glob("*.jar")))),
        }
        conf = {"spark.python.daemon.module": "spark_jobs.daemon"}
        return {"submit": submit, "conf": conf}

    @property
    def reading(self) -> dict[str, str]:
        """Properties by which pyiceberg reads the tables."""
        return s3.reading(self.environment)


@contextmanager
def running(folder: Path, *, run: Path, workers: int = 2, installed: bool = False) -> Iterator[Standalone]:
    """Run the server, over `folder`, and the cluster; `installed` as in Standalone. MissingPrerequisite if the server
    is not built."""
    with s3.S3(folder / "s3", ("cdc", "lake"), run=run) as server:
        executor_environment.current(ARCHIVE)
        python = ARCHIVE if installed else None
        with SparkCluster(run, workers=workers, env=server.environment, python=python) as cluster:
            yield Standalone(cluster, server.environment, installed)
