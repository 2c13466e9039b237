"""An S3 server over a folder, versitygw as tools/s3_server.py builds it, with one account that may do everything.

Strategy: who uses the server finds it by its environment, as any program finds S3 (`environment`); nothing of it is in
a URL or a file. Listens on loopback only. Knows nothing about objects.
"""

from __future__ import annotations

import os
import secrets
from collections.abc import Mapping
from pathlib import Path
from typing import Final, Self

import botocore.session
from botocore.config import Config

from tools.errors import MissingPrerequisite
from tools.go import PROGRAMS
from tools.services import ports, process
from tools.services.server import Server

PROGRAM = PROGRAMS / "versitygw"
ICEBERG: Final = {"io-impl": "org.apache.iceberg.aws.s3.S3FileIO", "s3.path-style-access": "true"}
"""Options of a catalog whose tables are there, for jobs that have the server in their environment."""


def reading(environment: Mapping[str, str]) -> dict[str, str]:
    """Properties by which pyiceberg reads tables in the server that is in this environment, where it would not look."""
    return {
        "s3.endpoint": environment["AWS_ENDPOINT_URL_S3"],
        "s3.access-key-id": environment["AWS_ACCESS_KEY_ID"],
        "s3.secret-access-key": environment["AWS_SECRET_ACCESS_KEY"],
        "s3.region": environment["AWS_REGION"],
    }


class S3(Server):
    """A server of the buckets `buckets`, in a folder, which needs extended attributes; they are there after the next
    start."""

    def __init__(self, folder: Path, buckets: tuple[str, ...], *, run: Path | None = None) -> None:
        super().__init__()
        self.folder = folder.resolve()
        self.run = run or self.folder / "run"
        self._buckets, self._secret = buckets, secrets.token_urlsafe(16)

    @property
    def url(self) -> str:
        """Address of the service."""
        return f"http://{ports.LOOPBACK}:{self.port}"

    @property
    def environment(self) -> dict[str, str]:
        """What programs need in their environment, and nothing of this machine's own settings."""
        return {
            "AWS_ENDPOINT_URL_S3": self.url,
            "AWS_ACCESS_KEY_ID": "writetime",
            "AWS_SECRET_ACCESS_KEY": self._secret,
            "AWS_REGION": "us-east-1",
            "AWS_CONFIG_FILE": os.devnull,
            "AWS_SHARED_CREDENTIALS_FILE": os.devnull,
        }

    def start(self) -> Self:
        """Start the server and wait until it answers; create missing buckets. MissingPrerequisite if it is not built."""
        if not PROGRAM.exists():
            raise MissingPrerequisite("The S3 test server is not built. Build it: .venv/bin/python -m tools.s3_server")
        self.port = ports.any_free()
        (self.folder / "objects").mkdir(parents=True, exist_ok=True)
        account = {"ROOT_ACCESS_KEY": "writetime", "ROOT_SECRET_KEY": self._secret}
        service = process.start(
            "s3",
            [str(PROGRAM), "--port", f"{ports.LOOPBACK}:{self.port}", "--quiet", "posix", str(self.folder / "objects")],
            run=self.run,
            log=self.folder / "versitygw.log",
            env=os.environ | account,
            detail=self.url,
        )
        self._ready(service, lambda: ports.answers(self.port), "S3", seconds=30)
        client = botocore.session.get_session().create_client(
            "s3",
            endpoint_url=self.url,
            region_name="us-east-1",
            aws_access_key_id="writetime",
            aws_secret_access_key=self._secret,
            config=Config(s3={"addressing_style": "path"}),
        )
        there = {bucket["Name"] for bucket in client.list_buckets()["Buckets"]}
        for bucket in sorted(set(self._buckets) - there):
            client.create_bucket(Bucket=bucket)
        return self
