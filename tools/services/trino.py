"""A Trino server for tests, from the locked archives: one node on loopback, which reads Iceberg tables in folders.

Strategy: the core server and the plugin for Iceberg, and no others, are downloaded on first use and unpacked into
the service's folder. Its own catalog, `lake`, is a folder with a file for each table; `register_table` brings tables
into it. It needs a newer JDK than everything else here.
"""

from __future__ import annotations

import json
import tarfile
import urllib.error
import urllib.request
import zipfile
from pathlib import Path
from typing import Final, Self

from tools.jars import need
from tools.java import newest_java
from tools.services import ports, process
from tools.services.server import Server

JDK: Final = 24
"""The oldest JDK on which it runs."""
_OPTIONS: Final = (
    *("-Xmx2g", "-XX:+UseSerialGC", "--add-modules=jdk.incubator.vector", "--enable-native-access=ALL-UNNAMED"),
    *("-Djdk.attach.allowAttachSelf=true", "-Djdk.nio.maxCachedBufferSize=2000000", "--sun-misc-unsafe-memory-access=allow"),
)
_CATALOG: Final = """connector.name=iceberg
iceberg.catalog.type=TESTING_FILE_METASTORE
hive.metastore.catalog.dir=local:///{catalog}
iceberg.register-table-procedure.enabled=true
fs.native-local.enabled=true
local.location=/
"""


class Trino(Server):
    """`with Trino(folder) as trino:` starts and stops it."""

    def __init__(self, folder: Path) -> None:
        super().__init__()
        self.folder = folder.resolve()

    def start(self) -> Self:
        (core,), (plugin,) = (list(need("trino").glob(pattern)) for pattern in ("*.tar.gz", "*.zip"))
        with tarfile.open(core) as packed:
            packed.extractall(self.folder, filter="data")
        (home,) = self.folder.glob("trino-server-core-*")
        with zipfile.ZipFile(plugin) as zipped:
            zipped.extractall(self.folder)  # noqa: S202 - its checksum is locked
        (unpacked,) = (each for each in self.folder.glob("trino-iceberg-*") if each.is_dir())
        unpacked.rename(home / "plugin" / "iceberg")
        self.port = ports.any_free()
        etc, catalog = home / "etc", self.folder / "catalog"
        (etc / "catalog").mkdir(parents=True)
        catalog.mkdir()
        settings = ("coordinator=true", "node-scheduler.include-coordinator=true", f"http-server.http.port={self.port}")
        (etc / "config.properties").write_text("\n".join((*settings, f"discovery.uri=http://{ports.LOOPBACK}:{self.port}\n")))
        (etc / "catalog" / "lake.properties").write_text(_CATALOG.format(catalog=str(catalog).lstrip("/")))
        node = {
            "environment": "test",
            "id": "one",
            "data-dir": self.folder / "data",
            "bind-ip": ports.LOOPBACK,
            "internal-address": ports.LOOPBACK,
        }
        service = process.start(
            "trino",
            [
                *(newest_java(JDK), *_OPTIONS, *(f"-Dnode.{name}={value}" for name, value in node.items())),
                *("-Dconfig=etc/config.properties", "-cp", "lib/*", "io.trino.server.TrinoServer"),
            ],
            run=self.folder / "run",
            log=self.folder / "trino.log",
            cwd=home,
            detail=f"{ports.LOOPBACK}:{self.port}",
        )
        return self._ready(service, self._answers, "Trino", seconds=180)

    def _answers(self) -> bool:
        try:
            with urllib.request.urlopen(f"http://{ports.LOOPBACK}:{self.port}/v1/info", timeout=2) as answer:
                return not json.load(answer)["starting"]
        except (urllib.error.URLError, OSError):
            return False
