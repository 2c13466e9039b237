"""The wheel, installed as a user would: a fresh environment with `writetime[ship]` ships a segment."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from tests.shippers.conftest import Folder, ref
from tools import ROOT
from writetime.storage.local import LocalStore

UV = ROOT / ".venv" / "share" / "uv" / "bin" / "uv"

pytestmark = [pytest.mark.thorough, pytest.mark.timeout(600)]


def run(*command: object, cwd: Path) -> str:
    env = {name: value for name, value in os.environ.items() if name not in ("PYTHONPATH", "VIRTUAL_ENV")}
    done = subprocess.run([*map(str, command)], cwd=cwd, env=env, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_a_fresh_environment_with_the_wheel_ships_a_segment(tmp_path: Path) -> None:
    # Setuptools builds where the sources are.
    source = tmp_path / "source"
    for package in ("writetime", "shippers", "spark_jobs"):
        shutil.copytree(ROOT / package, source / package, ignore=shutil.ignore_patterns("__pycache__"))
    for file in ("pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(ROOT / file, source)
    run(UV, "build", "--wheel", "-q", "--out-dir", tmp_path, source, cwd=tmp_path)
    (wheel,) = tmp_path.glob("writetime-*.whl")
    run(UV, "venv", "-q", "--python", sys.executable, "fresh", cwd=tmp_path)
    fresh = tmp_path / "fresh" / "bin"
    run(UV, "pip", "install", "-q", "--python", fresh / "python", "-c", ROOT / "requirements.txt", f"{wheel}[ship]", cwd=tmp_path)
    folder = Folder(tmp_path / "cdc_raw")
    folder.path.mkdir()
    node = {"cdc_raw": str(folder.path), "host_id": "host-1", "datacenter": "dc1"}
    bucket = tmp_path / "bucket"
    document = {"pipeline": "p", "cluster": {"name": "ring", "datacenters": ["dc1"]}, "bucket": f"file://{bucket}", "node": node}
    (tmp_path / "pipeline.yaml").write_text(yaml.safe_dump(document), encoding="utf-8")
    data = folder.segment(1)
    run(fresh / "writetime", "ship", "--config", tmp_path / "pipeline.yaml", "--once", cwd=tmp_path)
    assert LocalStore(bucket).read(ref(1).incoming) == data
    assert folder.names == []
