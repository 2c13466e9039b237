"""Uploads of whole segments as a shipper makes them: by a process that has little memory, and that can be
killed at any moment."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.storage import gcs_stub, s3_stub
from tests.storage.conftest import Backend
from writetime.storage import gcs, open_store
from writetime.storage.checksum import crc32c_of
from writetime.storage.store import Store

MB = 1 << 20
NAME = "cdc/ring/dc1/host-1/CommitLog-7-1.log"
# Peak RSS in MB before and after a segment is sent. A small object first: what the library loads at its first
# call is not the upload's.
# Not ru_maxrss, which begins with what the parent had when it forked.
SEND = """
import re, sys
from pathlib import Path
from writetime.storage import open_store
peak = lambda: int(re.search(r"VmHWM:\\s+(\\d+) kB", Path("/proc/self/status").read_text())[1]) // 1024
store = open_store(sys.argv[1])
store.put("warm", b"x", if_generation=0)
before = peak()
print("begun", flush=True)
for path in sys.argv[3:]:
    store.put(sys.argv[2], Path(path), metadata={"n": "1"})
print(before, peak(), flush=True)
"""


@pytest.fixture(params=["stub", "s3-stub"])
def remote(request: pytest.FixtureRequest) -> tuple[str, Any]:
    """A URL to upload to, and the stub behind it."""
    if request.param == "stub":
        return f"gs://{gcs_stub.BUCKET}", request.getfixturevalue("stub")
    return f"s3://{s3_stub.BUCKET}", request.getfixturevalue("s3_memory")


def segment(folder: Path, size: int) -> Path:
    path = folder / f"{size}.log"
    with path.open("wb") as file:
        for number in range(size // MB):
            file.write(number.to_bytes(4, "big") * (MB // 4))
        file.write(b"end")
    return path


def start(url: str, *paths: Path) -> subprocess.Popen[str]:
    return subprocess.Popen([sys.executable, "-c", SEND, url, NAME, *map(str, paths)], stdout=subprocess.PIPE, text=True)


@pytest.mark.thorough
@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="the peak of a process's memory is read from /proc")
def test_memory_does_not_grow_with_the_file(backend: Backend, tmp_path: Path) -> None:
    if backend.kind == "memory":
        pytest.skip("its memory is the process's own")
    # One that is sent in one request by S3, one in parts.
    path = segment(tmp_path, 96 * MB)
    sender = start(backend.url, segment(tmp_path, 60 * MB), path)
    told, _ = sender.communicate(timeout=300)
    assert sender.returncode == 0
    before, after = map(int, told.splitlines()[1].split())
    assert after - before < 40
    assert after < 120
    info = backend.open().head(NAME)
    assert info is not None
    assert (info.crc32c, info.size) == crc32c_of(path)


class Killed:
    """Kills a process at the n-th request of its upload."""

    def __init__(self, at: int) -> None:
        self.at, self.seen, self.victim = at, 0, 0

    def __call__(self, request: str) -> None:
        if self.victim and request.split()[0] in ("POST", "PUT"):
            self.seen += 1
            if self.seen == self.at:
                os.kill(self.victim, signal.SIGKILL)
                # Its answer must find nobody.
                time.sleep(0.05)


@pytest.fixture
def victims() -> Iterator[list[subprocess.Popen[str]]]:
    started: list[subprocess.Popen[str]] = []
    yield started
    for process in started:
        process.kill()
        process.wait()


@pytest.mark.parametrize("at", [1, 2, 3])
def test_a_killed_upload_leaves_nothing_half(
    remote: tuple[str, Any], at: int, tmp_path: Path, victims: list[subprocess.Popen[str]]
) -> None:
    url, stub = remote
    path = segment(tmp_path, 68 * MB)
    stub.watch = killer = Killed(at)
    victims.append(start(url, path))
    assert victims[0].stdout is not None
    assert victims[0].stdout.readline() == "begun\n"
    killer.victim = victims[0].pid
    assert victims[0].wait(timeout=120) == -signal.SIGKILL
    store: Store = open_store(url)
    assert [info.name for info in store.list()] == ["warm"]
    assert store.head(NAME) is None
    killer.victim = 0
    info = store.put(NAME, path, if_generation=0)
    assert (info.crc32c, info.size) == crc32c_of(path)


@pytest.mark.parametrize("faults", [[503], [503, 503, 429]])
def test_a_resumable_upload_goes_on_where_it_was(
    stub: gcs_stub.Stub, faults: list[int], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(gcs, "_RETRY", gcs._RETRY.with_delay(initial=0.01))
    path = segment(tmp_path, 20 * MB)
    chunks: list[str] = []

    def fail_the_second(request: str) -> None:
        if request.startswith("PUT"):
            chunks.append(request)
            if len(chunks) == 2:
                stub.faults += faults

    stub.watch = fail_the_second
    info = open_store(f"gs://{gcs_stub.BUCKET}").put(NAME, path, if_generation=0)
    assert (info.crc32c, info.size) == crc32c_of(path)
    assert len(chunks) > 3
    assert not stub.faults
