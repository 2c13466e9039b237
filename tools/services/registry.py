"""A schema registry (Apicurio) for tests, from the locked archive: in memory, on loopback, with Confluent's
API under `url`.

Strategy: the archive is downloaded on first use and unpacked into the service's folder; it is ready when the
API answers. All registered schemas are lost when it stops.
"""

from __future__ import annotations

import os
import tarfile
from pathlib import Path
from typing import Self

from tools.jars import need
from tools.java import java
from tools.services import ports, process
from tools.services.server import Server, responds


class Registry(Server):
    """`with Registry(folder) as registry:` starts and stops it."""

    def __init__(self, folder: Path) -> None:
        super().__init__()
        self.folder = folder.resolve()

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
        service = process.start(
            "registry",
            [java(), "-Xmx384m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", "-jar", str(runner)],
            run=self.folder / "run",
            log=self.folder / "registry.log",
            env=settings,
            cwd=self.folder,
            detail=self.url,
        )
        return self._ready(service, self._answers, "Registry", seconds=180)

    def _answers(self) -> bool:
        return responds(f"{self.url}/subjects")
