"""A segment that takes longer than what counts as hung: the watchdog hears that it moves, or that it does not."""

from __future__ import annotations

import socket
import threading
import time
from pathlib import Path
from typing import Any

import pytest

from tests.shippers.conftest import Folder
from tests.shippers.service import running, until
from tests.storage import s3_stub
from tests.storage.http_stub import serving

pytestmark = pytest.mark.thorough

HUNG_SECONDS = 12.0
BLOCK = 1 << 18


class Link:
    """Reads a block of a request every `pause` seconds, and none while it `stalls`."""

    def __init__(self, file: Any, pause: float, stalls: threading.Event) -> None:
        self.file, self.pause, self.stalls = file, pause, stalls

    def read(self, size: int) -> bytes:
        data = b""
        while len(data) < size:
            while self.stalls.is_set():
                time.sleep(0.05)
            data += self.file.read(min(BLOCK, size - len(data)))
            if size > BLOCK:
                time.sleep(self.pause)
        return data

    def __getattr__(self, name: str) -> Any:
        return getattr(self.file, name)


def test_an_upload_is_alive_while_it_moves_and_no_longer(folder: Folder, tmp_path: Path) -> None:
    stub, stalls, begun = s3_stub.Stub(), threading.Event(), threading.Event()

    class Handler(s3_stub._Handler):
        memory = stub

        def setup(self) -> None:
            super().setup()
            self.rfile = Link(self.rfile, 0.3, stalls)

        def parse_request(self) -> bool:
            fine = super().parse_request()
            if fine and self.command == "PUT" and "cdc/" in self.path:
                begun.set()
            return fine

    heard: list[float] = []
    with serving(Handler) as stub.url, socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as manager:
        manager.bind(str(tmp_path / "notify"))
        threading.Thread(target=lambda: [heard.append(time.monotonic()) for _ in iter(lambda: manager.recv(99), b"")], daemon=True).start()
        keys = {"AWS_ACCESS_KEY_ID": "any", "AWS_SECRET_ACCESS_KEY": "any", "AWS_EC2_METADATA_DISABLED": "true"}
        notify = {"NOTIFY_SOCKET": str(tmp_path / "notify"), "WATCHDOG_USEC": "1000000"}
        # Without time-outs, an upload that does not move hangs, and is not given up and repeated.
        prelude = (
            f"import socket; from shippers import metrics; metrics.STILL_ALIVE_SECONDS = {HUNG_SECONDS}\n"
            "socket.socket.settimeout = lambda *_: None"
        )
        bucket = f"s3+{stub.url}/{s3_stub.BUCKET}"
        folder.segment(1, b"0123456789abcdef" * (24 << 16))
        with running(folder.path, bucket, prelude=prelude, env={**keys, **notify}) as service:
            assert until(begun.is_set), "no upload"
            started, answers = time.monotonic(), []
            while folder.names and time.monotonic() < started + 200:
                answers.append(service.get("/healthz")[0])
                time.sleep(0.5)
            assert folder.names == []
            assert time.monotonic() - started > 2 * HUNG_SECONDS, "it was not slow"
            assert set(answers[1:]) == {200}
            assert sum(at > started + HUNG_SECONDS for at in heard) > HUNG_SECONDS / 2
            stalls.set()
            folder.segment(2, b"0123456789abcdef" * (24 << 16))
            assert until(lambda: service.get("/healthz")[0] == 503), "an upload that hangs counts as alive"
            before = len(heard)
            time.sleep(2)
            assert len(heard) <= before + 1
            stalls.clear()
