"""The executors' Python: what is in it, and that what Spark cannot unpack is refused. `make demo MASTER=standalone`
runs it."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tools import executor_environment
from tools.errors import ToolError


def test_it_has_what_the_jobs_require_and_nothing_of_airflow() -> None:
    names = {found.metadata["Name"].lower() for found in executor_environment._required()}
    assert names >= {"pyspark", "py4j", "pylance", "pyarrow", "numba", "llvmlite", "botocore", "google-cloud-storage", "confluent-kafka"}
    assert not {name for name in names if name.startswith(("apache-airflow", "pytest", "pyspark-client", "writetime"))}


def test_sparks_jars_stay_at_home() -> None:
    files = [str(path) for path in executor_environment._files()]
    assert any(path.endswith("pyspark/worker.py") for path in files)
    assert not [path for path in files if "/pyspark/jars/" in path or path.endswith("bin/airflow")]


def test_an_archive_that_spark_unpacks_without_rights_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ToolError, match=r"has to be a \.tar\.gz"):
        executor_environment.build(tmp_path / "environment.tar")


def test_it_is_packed_again_when_a_source_is_younger(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[Path] = []

    def build(archive: Path) -> Path:
        archive.write_bytes(b"")
        made.append(archive)
        return archive

    monkeypatch.setattr(executor_environment, "build", build)
    monkeypatch.setattr(executor_environment, "ROOT", tmp_path)
    source = tmp_path / "writetime" / "module.py"
    source.parent.mkdir()
    source.write_text("")
    archive = tmp_path / "environment.tar.gz"
    for _ in range(2):
        executor_environment.current(archive)
    assert made == [archive]
    later = archive.stat().st_mtime + 10
    source.touch()

    os.utime(source, (later, later))
    executor_environment.current(archive)
    assert made == [archive, archive]
