"""Start and stop versitygw, an S3 server over a folder: `var/bin/versitygw` of the repository, or $VERSITYGW.

It honours If-Match and If-None-Match on writes, completions and deletions, verifies CRC32Cs and signatures.
The folder must lie on a file system with extended attributes. Does not build the server: `make test-s3`
does."""

from __future__ import annotations

import contextlib
import os
import shutil
import socket
import subprocess
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import botocore.session
import pytest
from botocore.config import Config

from tools.services import ports

_BUILT = Path(__file__).resolve().parent.parent / "var" / "bin" / "versitygw"
_READY_SECONDS = 30.0


@dataclass(frozen=True)
class Server:
    """A server that is running, and the account that may do everything."""

    url: str
    access: str = "tester"
    secret: str = "nobody-minds"

    def client(self) -> Any:
        """The library's own client, as anybody would use it."""
        return botocore.session.get_session().create_client(
            "s3",
            endpoint_url=self.url,
            region_name="us-east-1",
            aws_access_key_id=self.access,
            aws_secret_access_key=self.secret,
            config=Config(s3={"addressing_style": "path"}),
        )

    def make_bucket(self, name: str) -> None:
        self.client().create_bucket(Bucket=name)


def into_environment(monkeypatch: pytest.MonkeyPatch, url: str, access: str, secret: str) -> None:
    """Let stores that are opened from now on find the server, and nothing of this machine's own settings."""
    for name in ("AWS_ENDPOINT_URL", "AWS_PROFILE", "AWS_REGION", "AWS_DEFAULT_REGION", "AWS_SESSION_TOKEN", "AWS_CA_BUNDLE"):
        monkeypatch.delenv(name, raising=False)
    for name in ("AWS_CONFIG_FILE", "AWS_SHARED_CREDENTIALS_FILE"):
        monkeypatch.setenv(name, os.devnull)
    monkeypatch.setenv("AWS_ENDPOINT_URL_S3", url)
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", access)
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", secret)


def program() -> Path | None:
    """The server's program, or None if it has not been built."""
    named = os.environ.get("VERSITYGW")
    if named:
        found = shutil.which(named)
        return Path(found) if found else None
    return _BUILT if _BUILT.exists() else None


@contextlib.contextmanager
def running(binary: Path, folder: Path, *options: str, port: int | None = None) -> Iterator[Server]:
    """Run the server over `folder` on a loopback port, by default a free one. What it held when it was
    stopped it holds again."""
    port = ports.any_free() if port is None else port
    server = Server(f"http://127.0.0.1:{port}")
    (folder / "objects").mkdir(exist_ok=True)
    log = folder / "versitygw.log"
    command = [str(binary), "--port", f"127.0.0.1:{port}", "--quiet", *options]
    environment = os.environ | {"ROOT_ACCESS_KEY": server.access, "ROOT_SECRET_KEY": server.secret}
    with log.open("wb") as output:
        process = subprocess.Popen(
            [*command, "posix", str(folder / "objects")],
            stdout=output,
            stderr=subprocess.STDOUT,
            env=environment,
        )
    try:
        _wait(process, port, log)
        yield server
    finally:
        process.terminate()
        process.wait(timeout=20)


def _wait(process: subprocess.Popen[bytes], port: int, log: Path) -> None:
    deadline = time.monotonic() + _READY_SECONDS
    while time.monotonic() < deadline:
        if process.poll() is not None:
            raise RuntimeError(f"versitygw ended with code {process.returncode}: {log.read_text()}")
        with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), timeout=1):
            return
        time.sleep(0.05)
    raise RuntimeError(f"versitygw was not ready within {_READY_SECONDS} s: {log.read_text()}")
