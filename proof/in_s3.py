"""Bucket, state and tables of a proof in an S3 server instead of its folder: `--store s3`.

Strategy: one server for a run and all processes that it starts, which find it by their environment, as jobs on real
machines do; the catalog stays a file. What several pipelines put there is apart by their folders' names. Knows
configurations, no object.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from tools import jars
from tools.services import s3
from writetime.config.pipeline import PipelineConfig

STORES = ("folder", "s3")
HELP = "where bucket, state and tables are: in the run's folder (default), or in a local S3 server"
_BUCKET, _LAKE = "cdc", "lake"


@contextmanager
def serving(store: str, folder: Path) -> Iterator[None]:
    """For the store `s3`, run the server over `folder` and let this process, and those that it starts, find it.
    MissingPrerequisite if the server is not built."""
    if store == "folder":
        yield
        return
    with s3.S3(folder / "s3", (_BUCKET, _LAKE)) as server:
        os.environ.update(server.environment)
        yield


def moved(config: PipelineConfig, folder: Path) -> PipelineConfig:
    """The same pipeline in the server, under the name of its folder."""
    assert config.catalog is not None
    place = folder.resolve().relative_to("/")
    with_s3 = [config.spark.conf["spark.jars"], *map(str, sorted(jars.need("s3").glob("*.jar")))]
    catalog = {"warehouse": f"s3://{_LAKE}/{place}", "options": s3.ICEBERG}
    update = {
        "bucket": f"s3://{_BUCKET}/{place}",
        "state": None,
        "catalog": config.catalog.model_copy(update=catalog),
        "spark": config.spark.model_copy(update={"conf": {**config.spark.conf, "spark.jars": ",".join(with_s3)}}),
    }
    return config.model_copy(update=update)


def reading(config: PipelineConfig) -> Mapping[str, str]:
    """Properties by which pyiceberg reads the pipeline's tables, wherever they are."""
    return s3.reading(os.environ) if config.bucket.startswith("s3://") else {}
