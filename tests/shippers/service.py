"""The shipper's real command as a service over a folder store, for tests of what only a process can show."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

ROOT = Path(__file__).resolve().parents[2]
_RUN = "\nimport sys, writetime.cli\nsys.exit(writetime.cli.main(sys.argv[1:]))"
PATIENCE = 120.0
"""Seconds for what takes a few at most on an idle machine."""


@dataclass
class Service:
    """A running shipper that answers on `listen`."""

    process: subprocess.Popen[bytes]
    listen: str

    def get(self, path: str) -> tuple[int, str]:
        """(0, error) while nobody answers."""
        try:
            with urllib.request.urlopen(f"http://{self.listen}{path}", timeout=10) as answer:
                return answer.status, answer.read().decode()
        except urllib.error.HTTPError as error:
            return error.code, error.read().decode()
        except OSError as error:
            return 0, str(error)

    def metric(self, name: str) -> float:
        lines = [line for line in self.get("/metrics")[1].splitlines() if line.startswith(f"writetime_ship_{name} ")]
        return float(lines[0].split()[1]) if lines else -1.0

    def stop(self) -> int:
        """Ask it to stop; its exit code. TimeoutExpired if it does not end within its grace period."""
        self.process.terminate()
        return self.process.wait(PATIENCE)


def command(folder: Path, bucket: str, *options: str, prelude: str = "", **ship: Any) -> list[str]:
    """The command line for the segments in `folder`. `prelude` is Python that runs before it in the process."""
    node = {"cdc_raw": str(folder), "host_id": "host-1", "datacenter": "dc1", "poll_seconds": 0.1}
    node |= {"data_file_directories": [], "ship": {"listen": None, "tail_seconds": None, "disk_reserve": 0, **ship}}
    document = {"pipeline": "p", "cluster": {"name": "ring", "datacenters": ["dc1"]}, "bucket": bucket, "node": node}
    file = folder.parent / "pipeline.yaml"
    file.write_text(yaml.safe_dump(document), encoding="utf-8")
    return [sys.executable, "-c", prelude + _RUN, "ship", "--config", str(file), *options]


@contextmanager
def running(folder: Path, bucket: str, *, prelude: str = "", host: str = "127.0.0.1", **popen: Any) -> Iterator[Service]:
    """The service. `host` is what it listens on, with a free port."""
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    arguments = command(folder, bucket, prelude=prelude, listen=f"{host}:{port}")
    popen["env"] = {**os.environ, **popen.get("env", {})}
    process = subprocess.Popen(arguments, cwd=ROOT, **popen)
    try:
        yield Service(process, f"127.0.0.1:{port}")
    finally:
        process.kill()
        process.wait()


def until(holds: Callable[[], Any], seconds: float = PATIENCE) -> bool:
    """Wait until it holds. False if it does not in time."""
    end = time.monotonic() + seconds
    while not holds():
        if time.monotonic() > end:
            return False
        time.sleep(0.05)
    return True
