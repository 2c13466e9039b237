"""A schema registry (Apicurio) for tests, from the locked archive: in memory, on loopback, with Confluent's
API under `url`.

Strategy: the archive is downloaded on first use and unpacked into the service's folder; it is ready when the
API answers. All registered schemas are lost when it stops.
"""

from __future__ import annotations

import os
import tarfile
import urllib.error
import urllib.request
from pathlib import Path
from types import TracebackType
from typing import Self

from tools.console import say
from tools.jars import need
from tools.java import java
from tools.services import ports, process


class Registry:
    """`with Registry(folder) as registry:` starts and stops it."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder.resolve()
        self.port = 0
        self.service: process.Service | None = None

    @property
    def url(self) -> str:
        """Base of the Confluent API."""
        return f"http://{ports.LOOPBACK}:{self.port}/apis/ccompat/v7"

    def start(self) -> Self:
        (archive,) = need("registry").glob("*.tar.gz")
        with tarfile.open(archive) as packed:
            packed.extractall(self.folder, filter="data")
        (runner,) = self.folder.glob("*-runner.jar")
        self.port = ports.any_free()
        settings = {"QUARKUS_HTTP_HOST": ports.LOOPBACK, "QUARKUS_HTTP_PORT": str(self.port), "JAVA_HOME": os.environ.get("JAVA_HOME", "")}
        self.service = process.start(
            "registry",
            [java(), "-Xmx384m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", "-jar", str(runner)],
            run=self.folder / "run",
            log=self.folder / "registry.log",
            env=settings,
            cwd=self.folder,
            detail=self.url,
        )
        try:
            took = self.service.wait(self._answers, seconds=180)
        except BaseException:
            self.stop()
            raise
        say(f"✓ Registry on {self.url}: {took:.1f} s")
        return self

    def stop(self) -> None:
        """Stop it, if it is running."""
        if self.service is not None:
            self.service.stop()
            self.service = None

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.stop()

    def _answers(self) -> bool:
        try:
            with urllib.request.urlopen(f"{self.url}/subjects", timeout=2) as answer:  # noqa: S310 - our own loopback
                return bool(answer.status == 200)
        except (urllib.error.URLError, OSError):
            return False
