"""The process from which Spark's Python workers are forked."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from zipfile import ZipFile

import pytest

from spark_jobs import daemon

HERE = [entry for entry in sys.path if entry and not entry.endswith(".zip")]


@pytest.fixture
def archives(tmp_path: Path) -> list[str]:
    """As Spark puts them before everything else: Python in a zip, and a jar."""
    found = []
    for name in ("pyspark.zip", "py4j-1-src.zip", "spark-core.jar"):
        with ZipFile(tmp_path / name, "w") as archive:
            for package in ("pyspark", "py4j", "spark_jobs", "writetime"):
                archive.writestr(f"{package}/__init__.py", "")
        found.append(str(tmp_path / name))
    return found


def test_archives_go_where_all_is_installed(archives: list[str]) -> None:
    assert daemon.without_archives([*archives, *HERE]) == HERE


def test_archives_stay_where_something_is_only_in_them(archives: list[str]) -> None:
    assert daemon.without_archives(archives) == archives[:2]
    assert daemon.without_archives([*archives, "/nowhere"]) == [*archives[:2], "/nowhere"]


def test_what_is_imported_ahead_starts_no_thread() -> None:
    """A fork would lack it. Those that Spark's own daemon has are of BLAS and of Arrow's allocator, which
    know of forks."""
    program = (
        "import os, pyspark.daemon, pyarrow; pyarrow.array([1]); before = len(os.listdir('/proc/self/task'));"
        "from spark_jobs import daemon; daemon.import_ahead(); print(len(os.listdir('/proc/self/task')) - before)"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "0"


def test_workers_look_for_garbage_among_their_own_objects_only() -> None:
    """They do after each task; modules are none."""
    program = (
        "import gc, pyspark.daemon; from spark_jobs import daemon;"
        "pyspark.daemon.manager = lambda: print(gc.get_freeze_count() > 50_000, len(gc.get_objects()) < 1_000); daemon.main()"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["True", "True"]
