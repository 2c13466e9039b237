"""A worker of Kafka Connect with one connector, from the locked jars (group `connect`).

Strategy: Connect's standalone mode, which needs no topics of its own; offsets of a sink are its consumer
group's, in Kafka. It is ready when its REST server shows the connector's task. Reads committed records only.
"""

from __future__ import annotations

import json
import os
import urllib.error
import urllib.request
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Self

from tools.jars import need
from tools.java import java
from tools.services import ports, process
from tools.services.server import Server


class Connect(Server):
    """`with Connect(folder, bootstrap, connector, environment) as connect:` starts and stops it. `connector`: its
    properties, `name` among them; `environment`: variables that these refer to."""

    def __init__(self, folder: Path, bootstrap: str, connector: Mapping[str, str], environment: Mapping[str, str]) -> None:
        super().__init__()
        self.folder = folder.resolve()
        self.bootstrap = bootstrap
        self.connector = dict(connector)
        self.environment = dict(environment)

    def start(self) -> Self:
        self.folder.mkdir(parents=True, exist_ok=True)
        self.port = ports.any_free()
        worker = {
            "bootstrap.servers": self.bootstrap,
            "config.providers": "env",
            "config.providers.env.class": "org.apache.kafka.common.config.provider.EnvVarConfigProvider",
            "consumer.isolation.level": "read_committed",
            "key.converter": "org.apache.kafka.connect.json.JsonConverter",
            "listeners": f"HTTP://{ports.LOOPBACK}:{self.port}",
            "offset.flush.interval.ms": "1000",
            "offset.storage.file.filename": str(self.folder / "offsets"),
            "plugin.discovery": "only_scan",
            "value.converter": "org.apache.kafka.connect.json.JsonConverter",
        }
        files = [self._written("worker", worker), self._written("connector", self.connector)]
        options = ["-Xmx512m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", "-Djava.net.preferIPv4Stack=true"]
        logging = ["-Dorg.slf4j.simpleLogger.defaultLogLevel=warn", "-Dorg.slf4j.simpleLogger.showDateTime=true"]
        service = process.start(
            "connect",
            [java(), *options, *logging, "-cp", f"{need('connect')}/*", "org.apache.kafka.connect.cli.ConnectStandalone", *files],
            run=self.folder / "run",
            log=self.folder / "connect.log",
            cwd=self.folder,
            env=os.environ | self.environment,
            detail=f"{ports.LOOPBACK}:{self.port}",
        )
        return self._ready(service, lambda: bool(self.tasks()), "Kafka Connect", seconds=120)

    def tasks(self) -> list[dict[str, Any]]:
        """The connector's tasks: `state`, and `trace` of one that failed. None before the worker answers."""
        try:
            with urllib.request.urlopen(
                f"http://{ports.LOOPBACK}:{self.port}/connectors/{self.connector['name']}/status", timeout=5
            ) as answer:
                found: list[dict[str, Any]] = json.load(answer)["tasks"]
        except (urllib.error.URLError, OSError):
            return []
        return found

    def _written(self, name: str, properties: Mapping[str, str]) -> str:
        path = self.folder / f"{name}.properties"
        path.write_text("".join(f"{key}={value}\n" for key, value in properties.items()), encoding="utf-8")
        return str(path)
