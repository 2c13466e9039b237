"""One bucket for all that looks at it: nothing here writes."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.monitoring import bucket
from writetime.pipeline.batch_history import Batches
from writetime.storage.local import LocalStore


@pytest.fixture(scope="session")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    found = tmp_path_factory.mktemp("bucket")
    bucket.small(found)
    return found


@pytest.fixture
def batches(folder: Path) -> Batches:
    return Batches(LocalStore(folder), bucket.CLUSTER)
