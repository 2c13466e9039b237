"""The backends that the conformance suite runs over."""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests import gcs_server
from tests.store import gcs_stub
from writetime.store import Store, open_store

# What fake-gcs-server does not do; GCS does, and so does the stub, over which the same cases run.
LAX = {
    "copy_precondition": "fake-gcs-server ignores preconditions on copies; this case runs over the stub",
    "delete_precondition": "fake-gcs-server ignores preconditions on deletions; this case runs over the stub",
}


@dataclass(frozen=True)
class Backend:
    """A store of its own for each test; `url` opens it again, as another process would."""

    kind: str
    url: str

    def open(self) -> Store:
        return open_store(self.url)

    def needs(self, what: str) -> None:
        """Skip a case that this backend's test server is too lax for."""
        if self.kind == "gcs":
            pytest.skip(LAX[what])


@pytest.fixture(scope="session")
def gcs_url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    binary = gcs_server.program()
    if binary is None:
        pytest.skip("no GCS test server: run make test-gcs")
    with gcs_server.running(binary, tmp_path_factory.mktemp("gcs")) as url:
        yield url


@pytest.fixture
def stub(monkeypatch: pytest.MonkeyPatch) -> Iterator[gcs_stub.Stub]:
    with gcs_stub.running() as stub:
        monkeypatch.setenv("STORAGE_EMULATOR_HOST", stub.url)
        yield stub


@pytest.fixture(params=["local", "stub", pytest.param("gcs", marks=pytest.mark.gcs)])
def backend(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Backend:
    if request.param == "local":
        return Backend("local", str(tmp_path / "bucket"))
    if request.param == "stub":
        request.getfixturevalue("stub")
        return Backend("stub", f"gs://{gcs_stub.BUCKET}/some/place")
    url = request.getfixturevalue("gcs_url")
    bucket = f"t-{uuid.uuid4().hex}"
    gcs_server.make_bucket(url, bucket)
    monkeypatch.setenv("STORAGE_EMULATOR_HOST", url)
    return Backend("gcs", f"gs://{bucket}/some/place")


@pytest.fixture
def store(backend: Backend) -> Store:
    return backend.open()
