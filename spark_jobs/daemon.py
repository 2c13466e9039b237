"""The process from which Spark forks its Python workers, with everything they need already loaded
(`spark.python.daemon.module`).

Strategy: Spark's own daemon does the work. Before it starts, three things are done once that each worker would
otherwise repeat; there are many workers, because an idle one ends after a minute.

- The modules of the stages are imported, including the compiled kernels. A forked worker has them at once.
- Archives are removed from the module path. Before each task, a worker invalidates Python's import caches
  (importlib.invalidate_caches) and then reads the directory of each archive again: pyspark.zip and the jar of
  spark-core, with thousands of classes, took half of a worker's time in a small batch. An installed pyspark
  needs neither.
- What there is by then is taken out of the garbage collector's sight. A worker collects all garbage after each task,
  and looking through some hundred thousand objects of modules, none of which is garbage, took 70 ms each time.

Nothing here may start a thread: a forked process does not inherit threads. Knows no job."""

from __future__ import annotations

import gc
import importlib
import importlib.util
import sys
import warnings
from collections.abc import Sequence
from importlib.machinery import PathFinder
from typing import Final

AHEAD: Final = (
    "spark_jobs.stages.typed_events",
    "spark_jobs.stages.explode",
    "spark_jobs.stages.merge_stream",
    "spark_jobs.stages.row_packs",
    "spark_jobs.stages.scan",
    "spark_jobs.stages.incomplete_rows",
)
COMPILED: Final = (
    "writetime.kernels.segment_walk",
    "writetime.kernels.mutation_buffers",
    "writetime.kernels.merge",
    "writetime.kernels.values",
    "writetime.kernels.clustering_keys",
    "writetime.kernels.json_text",
)
ENVIRONMENT: Final = {
    # Each thread would keep freed memory in an arena of its own; Hadoop's daemons limit it, too.
    "MALLOC_ARENA_MAX": "2",
    # malloc maps fresh memory for each object of 32 MB or more, as a segment is, and unmaps it when it is freed. Clearing
    # the pages takes a third of the time of decoding. Objects of up to 128 MB reuse memory, of which 256 MB are kept.
    "MALLOC_MMAP_THRESHOLD_": str(128 << 20),
    "MALLOC_TRIM_THRESHOLD_": str(256 << 20),
    # Arrow's allocator would return memory after 10 ms.
    "MIMALLOC_PURGE_DELAY": "-1",
}
"""Environment of Python workers: they keep freed memory for the next batch of rows. An idle worker ends after a minute."""
_NEEDED: Final = ("pyspark", "py4j", "spark_jobs", "writetime")


def without_archives(path: Sequence[str]) -> list[str]:
    """The module path without archives, if everything that workers need is installed elsewhere; always
    without jars, which contain no modules."""
    lean = [entry for entry in path if not entry.endswith((".zip", ".jar"))]
    if all(PathFinder.find_spec(name, lean) for name in _NEEDED):
        return lean
    return [entry for entry in path if not entry.endswith(".jar")]


def import_ahead() -> None:
    """Import modules and load compiled kernels."""
    for name in AHEAD:
        importlib.import_module(name)
    for name in COMPILED if importlib.util.find_spec("numba") is not None else ():
        importlib.import_module(name).compile_ahead()


def main() -> None:
    """Run Spark's daemon until Spark closes the standard input."""
    sys.path[:] = without_archives(sys.path)
    sys.path_importer_cache.clear()
    # Lance warns about every fork. It starts its threads when it is first used, in a worker.
    warnings.filterwarnings("ignore", message="lance is not fork-safe")
    import_ahead()
    daemon = importlib.import_module("pyspark.daemon")
    gc.collect()
    gc.freeze()
    daemon.manager()


if __name__ == "__main__":
    main()
