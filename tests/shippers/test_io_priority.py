"""Resource use: memory with the drivers loaded, priority, and the page cache."""

from __future__ import annotations

import ctypes
import json
import mmap
import os
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

from shippers import io_priority, tail
from shippers.upload import Outcome, ship
from tests.shippers.conftest import Folder, ref
from tests.storage import gcs_stub
from writetime.cassandra.commitlog.encode import encode_segment
from writetime.storage.local import LocalStore

ROOT = Path(__file__).resolve().parents[2]
MOST_MB = 128
"""What deploy/kubernetes requests. Shared libraries count by what the kernel has mapped of them: 98 to 123 on
different machines.
"""
SEGMENT = 32 << 20

# The command itself, as a process of its own; it tells its peak when it ends.
SCRIPT = """
import json, os, sys
import writetime.cli
code = writetime.cli.main(sys.argv[1:])
status = dict(line.split(":", 1) for line in open("/proc/self/status"))
modules = [name for name in ("cassandra.cluster", "google.cloud.storage") if name in sys.modules]
print(json.dumps({"code": code, "peak_mb": int(status["VmHWM"].split()[0]) / 1024, "nice": os.nice(0), "modules": modules}))
"""


def test_memory_and_niceness_while_big_segments_go_to_gcs(folder: Folder, tmp_path: Path) -> None:
    """Three segments of Cassandra's usual size, and the tail of one that grows, in parts as large as they
    get, in memory and past it; the driver is loaded too, for a node that does not answer.
    """
    block = os.urandom(1 << 20)
    most = block * (tail.MOST >> 20)
    grows = encode_segment(4, 7, [most[:-100], most[:-100], 4 * most], per_section=1)
    folder.segment(4, grows, idx=str(len(grows)).encode())
    for number in (1, 2, 3):
        folder.segment(number, block * (SEGMENT >> 20))
    file = tmp_path / "pipeline.yaml"
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    node = {"cdc_raw": str(folder.path), "host_id": "host-1", "datacenter": "dc1", "address": "127.0.0.1", "port": port}
    with gcs_stub.running() as stub:
        bucket = f"gs://{gcs_stub.BUCKET}"
        document: dict[str, Any] = {"pipeline": "p", "cluster": {"name": "ring", "datacenters": ["dc1"]}, "bucket": bucket}
        document["node"] = node | {"ship": {"tail_seconds": 1}}
        file.write_text(yaml.safe_dump(document))
        command = [sys.executable, "-c", SCRIPT, "ship", "--config", str(file), "--once"]
        env = os.environ | {"STORAGE_EMULATOR_HOST": stub.url}
        done = subprocess.run(command, cwd=ROOT, env=env, capture_output=True, text=True, check=False, timeout=300)
        assert done.returncode == 0, done.stderr
        assert {ref(number).incoming for number in (1, 2, 3)} <= stub.objects.keys()
        assert sum(name.startswith(ref(4).growing) for name in stub.objects) == 3
    told = json.loads(done.stdout)
    assert told["code"] == 0, done.stderr
    assert told["modules"] == ["cassandra.cluster", "google.cloud.storage"]
    assert told["nice"] >= 10
    assert told["peak_mb"] <= MOST_MB
    assert folder.names == ["CommitLog-7-4.log", "CommitLog-7-4_cdc.idx"]


@pytest.mark.parametrize(("before", "added"), [(0, [10]), (7, [3]), (10, []), (19, [])])
def test_niceness_is_only_added(monkeypatch: pytest.MonkeyPatch, before: int, added: list[int]) -> None:
    asked: list[int] = []
    monkeypatch.setattr(os, "nice", lambda by: asked.append(by) or before)
    io_priority.lower_priority()
    assert [by for by in asked if by] == added


def test_pages_are_forgotten(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "file"
    path.write_bytes(b"x")
    told: list[tuple[int, int, int]] = []
    monkeypatch.setattr(os, "posix_fadvise", lambda _, *rest: told.append(rest))
    io_priority.forget(path)
    io_priority.forget(tmp_path / "nowhere")
    assert told == [(0, 0, os.POSIX_FADV_DONTNEED)]


def test_a_shipped_segment_leaves_no_pages_though_the_node_holds_a_link(store: LocalStore, folder: Folder, tmp_path: Path) -> None:
    link = tmp_path / "commitlog.log"
    folder.segment(1, os.urandom(64 * mmap.PAGESIZE))
    link.hardlink_to(folder.path / "CommitLog-7-1.log")
    with link.open("rb") as file:
        os.fsync(file.fileno())
    assert resident(link) > 0
    io_priority.forget(link)
    if resident(link):
        pytest.skip("the file system of the tests keeps all pages in memory")
    assert ship(store, ref(1), folder.path, {}) is Outcome.UPLOADED
    assert resident(link) == 0


def resident(path: Path) -> int:
    """Pages of the file in the page cache (mincore)."""
    libc = ctypes.CDLL(None, use_errno=True)
    libc.mmap.restype = ctypes.c_void_p
    size = path.stat().st_size
    flags = (ctypes.c_ubyte * (size // mmap.PAGESIZE))()
    with path.open("rb") as file:
        start = libc.mmap(None, ctypes.c_size_t(size), mmap.PROT_READ, mmap.MAP_SHARED, file.fileno(), ctypes.c_long(0))
    try:
        assert libc.mincore(ctypes.c_void_p(start), ctypes.c_size_t(size), flags) == 0
    finally:
        libc.munmap(ctypes.c_void_p(start), ctypes.c_size_t(size))
    return sum(flag & 1 for flag in flags)
