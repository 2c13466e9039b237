"""A file on a bad disk: whatever a library makes of a read that failed while it sends, the store says that it
was the file."""

from __future__ import annotations

import errno
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from botocore.retries import standard

from tests.storage.conftest import Backend
from writetime.errors import SourceUnreadable
from writetime.storage import gcs, source
from writetime.storage import s3 as s3_module
from writetime.storage.store import Store

SIZE = 9 << 20
"""More than any backend sends in one request."""


@pytest.fixture(autouse=True)
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gcs, "_RETRY", gcs._RETRY.with_timeout(0.2).with_delay(initial=0.01))
    monkeypatch.setattr(standard.ExponentialBackoff, "delay_amount", lambda *_: 0.0)
    monkeypatch.setattr(s3_module, "_ONE_REQUEST", 8 << 20)


@pytest.fixture(params=[100, SIZE])
def file(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    path = tmp_path / "file"
    path.write_bytes(bytes(request.param))
    return path


def bad_from(monkeypatch: pytest.MonkeyPatch, number: int) -> None:
    """Let every read of a file fail from that one on."""
    real, reads = source._File._kept, []

    def kept(self: source._File, read: Callable[..., Any], *args: Any) -> Any:
        def bad(*_: Any) -> Any:
            raise OSError(errno.EIO, "Input/output error")

        reads.append(1)
        return real(self, bad if len(reads) > number else read, *args)

    monkeypatch.setattr(source._File, "_kept", kept)


@pytest.mark.parametrize("kind", ["local", "stub", "s3-stub"])
def test_a_read_that_fails_at_any_time(
    kind: str, file: Path, request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """What was sent of it is no object, or all of it was."""
    store = _backend(kind, request, tmp_path).open()
    failed = 0
    for number in range(60):
        with monkeypatch.context() as patch:
            bad_from(patch, number)
            error = _error_of_put(store, f"at-{number}", file)
        found = store.head(f"at-{number}")
        assert found is None or found.size == file.stat().st_size
        if error is None:
            break
        failed += 1
        assert "Input/output error" in str(error)
        assert not error.retriable
    assert failed >= 2, "while its checksum is taken, and while it is sent"
    assert found is not None


def _error_of_put(store: Store, name: str, file: Path) -> SourceUnreadable | None:
    try:
        store.put(name, file)
    except SourceUnreadable as error:
        return error
    return None


def _backend(kind: str, request: pytest.FixtureRequest, folder: Path) -> Backend:
    if kind == "local":
        return Backend(kind, str(folder / "bucket"))
    request.getfixturevalue("stub" if kind == "stub" else "s3_memory")
    return Backend(kind, "gs://bucket/place" if kind == "stub" else "s3://bucket/place")
