"""A proof's pipeline in the S3 server: what finds it, and that pipelines of one run are apart."""

from __future__ import annotations

import os
from pathlib import Path
from unittest import mock

import pytest
from pyiceberg.io.pyarrow import PyArrowFileIO

from proof import in_s3
from proof.ring.pipeline import Pipeline
from tools.errors import MissingPrerequisite
from tools.services import s3
from writetime.storage import open_store


@pytest.mark.s3
def test_pipelines_of_one_run_find_their_objects_in_the_server_and_are_apart(tmp_path: Path) -> None:
    if not s3.PROGRAM.exists():
        pytest.skip("no S3 test server: run make test-s3")
    with mock.patch.dict(os.environ), in_s3.serving("s3", tmp_path):
        one, other = (Pipeline.create(tmp_path / name / "site", store="s3") for name in ("one", "other"))
        one.store.put("cdc/a", b"of one")
        assert [each.name for each in one.store.list()] == ["cdc/a"]
        assert list(other.store.list()) == []
        assert one.config.catalog is not None
        assert one.config.state is None
        warehouse = one.config.catalog.warehouse
        open_store(warehouse).put("a.parquet", b"a table's")
        with PyArrowFileIO(dict(in_s3.reading(one.config))).new_input(f"{warehouse}/a.parquet").open() as file:
            assert file.read() == b"a table's"
    assert not (tmp_path / "one" / "site" / "bucket").exists()


def test_a_pipeline_in_a_folder_needs_no_server(tmp_path: Path) -> None:
    with in_s3.serving("folder", tmp_path):
        made = Pipeline.create(tmp_path / "site")
    assert made.config.bucket == str(tmp_path / "site" / "bucket")
    assert in_s3.reading(made.config) == {}


def test_a_server_that_is_not_built_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(s3, "PROGRAM", tmp_path / "versitygw")
    with pytest.raises(MissingPrerequisite, match="server is not built"), in_s3.serving("s3", tmp_path):
        pass
