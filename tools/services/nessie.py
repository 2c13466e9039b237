"""A catalog server (Nessie) with Iceberg's REST protocol, for tests, from the locked jar: in memory, on loopback, under
`url`; tables of its one warehouse, `lake`, lie in a bucket of a GCS test server.

Strategy: the jar is downloaded on first use; the server is ready when the protocol answers. It forgets its tables
when it stops, and needs a newer JDK than the jobs.
"""

from __future__ import annotations

from pathlib import Path
from typing import Final, Self

from tools.jars import need
from tools.java import newest_java
from tools.services import ports, process
from tools.services.server import Server, responds

WAREHOUSE: Final = "lake"
JDK: Final = 21
"""The oldest JDK on which it runs."""


class Nessie(Server):
    """`with Nessie(folder, location, gcs) as nessie:` starts and stops it. `location`: of the tables, in gs://; `gcs`:
    URL of the test server.
    """

    def __init__(self, folder: Path, location: str, gcs: str) -> None:
        super().__init__()
        self.folder = folder.resolve()
        gcs_options = "nessie.catalog.service.gcs.default-options"
        self._settings = {
            "quarkus.http.host": ports.LOOPBACK,
            "quarkus.management.host": ports.LOOPBACK,
            "nessie.version.store.type": "IN_MEMORY",
            "nessie.catalog.default-warehouse": WAREHOUSE,
            f"nessie.catalog.warehouses.{WAREHOUSE}.location": location,
            f"{gcs_options}.host": gcs,
            f"{gcs_options}.project-id": "test",
            f"{gcs_options}.auth-type": "NONE",
        }

    @property
    def url(self) -> str:
        """Base of Iceberg's REST protocol."""
        return f"http://{ports.LOOPBACK}:{self.port}/iceberg"

    def start(self) -> Self:
        (runner,) = need("nessie").glob("*-runner.jar")
        self.folder.mkdir(parents=True, exist_ok=True)
        self.port = ports.any_free()
        settings = {**self._settings, "quarkus.http.port": self.port, "quarkus.management.port": ports.any_free()}
        service = process.start(
            "nessie",
            [
                newest_java(JDK),
                "-Xmx512m",
                "-XX:+UseSerialGC",
                "-XX:TieredStopAtLevel=1",
                *(f"-D{k}={v}" for k, v in settings.items()),
                "-jar",
                str(runner),
            ],
            run=self.folder / "run",
            log=self.folder / "nessie.log",
            cwd=self.folder,
            detail=self.url,
        )
        return self._ready(service, self._answers, "Nessie", seconds=180)

    def _answers(self) -> bool:
        return responds(f"{self.url}/v1/config")
