"""The backends that the conformance suite runs over."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests import gcs_server, s3_server
from tests.storage import gcs_stub, memory, s3_stub
from writetime.storage import open_store
from writetime.storage import s3 as s3_module
from writetime.storage.store import Store

# What a test server does not do; the service does, and so does the stub, over which the same cases run.
LAX = {
    ("gcs", "copy_precondition"): "fake-gcs-server ignores preconditions on copies; this case runs over the stub",
    ("gcs", "delete_precondition"): "fake-gcs-server ignores preconditions on deletions; this case runs over the stub",
}


@dataclass(frozen=True)
class Backend:
    """A store of its own for each test; `open` opens it again, as another process would."""

    kind: str
    url: str
    opener: Callable[[str], Store] = open_store

    def open(self) -> Store:
        return self.opener(self.url)

    def needs(self, what: str) -> None:
        """Skip a case that this backend's test server is too lax for."""
        if (self.kind, what) in LAX:
            pytest.skip(LAX[self.kind, what])


@pytest.fixture
def stub(monkeypatch: pytest.MonkeyPatch) -> Iterator[gcs_stub.Stub]:
    with gcs_stub.running() as stub:
        monkeypatch.setenv("STORAGE_EMULATOR_HOST", stub.url)
        yield stub


@pytest.fixture
def s3_memory(monkeypatch: pytest.MonkeyPatch) -> Iterator[s3_stub.Stub]:
    with s3_stub.running() as stub:
        s3_server.into_environment(monkeypatch, stub.url, "any", "any")
        # Tests count requests; that it keeps conditions is what tests/storage/test_s3_conditions.py finds out.
        monkeypatch.setitem(s3_module._FAULTS, (stub.url, s3_stub.BUCKET), None)
        yield stub


@pytest.fixture(
    params=["local", "memory", "stub", "s3-stub", pytest.param("gcs", marks=pytest.mark.gcs), pytest.param("s3", marks=pytest.mark.s3)]
)
def backend(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Backend:
    kind: str = request.param
    if kind == "local":
        return Backend(kind, str(tmp_path / "bucket"))
    if kind == "memory":
        return Backend(kind, f"memory:{uuid.uuid4().hex}", memory.MemoryStore)
    if kind == "stub":
        request.getfixturevalue("stub")
        return Backend(kind, f"gs://{gcs_stub.BUCKET}/some/place")
    if kind.startswith("s3"):
        # Files of the suite go in parts.
        monkeypatch.setattr(s3_module, "_ONE_REQUEST", 8 << 20)
    if kind == "s3-stub":
        request.getfixturevalue("s3_memory")
        return Backend(kind, f"s3://{s3_stub.BUCKET}/some/place")
    bucket = f"t-{uuid.uuid4().hex}"
    if kind == "s3":
        server: s3_server.Server = request.getfixturevalue("s3")
        server.make_bucket(bucket)
        s3_server.into_environment(monkeypatch, server.url, server.access, server.secret)
        return Backend(kind, f"s3://{bucket}/some/place")
    url = request.getfixturevalue("gcs_url")
    gcs_server.make_bucket(url, bucket)
    monkeypatch.setenv("STORAGE_EMULATOR_HOST", url)
    return Backend(kind, f"gs://{bucket}/some/place")


@pytest.fixture
def store(backend: Backend) -> Store:
    return backend.open()
