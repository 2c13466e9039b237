"""A Kafka broker of one node, KRaft mode, from the locked jars.

Strategy: `StorageTool format` once per folder, then `kafka.Kafka` with a small heap. Everything is single:
one broker that is its own controller, replication factor 1 for Kafka's own topics. Listens on loopback only.
It is ready when a client receives metadata. With `secured`, the settings of a second listener (SASL over
TLS), its users have only the rights that they are granted; users of the first listener have all. Knows
nothing about topics and records.
"""

from __future__ import annotations

import subprocess
import uuid
from base64 import urlsafe_b64encode
from collections.abc import Mapping
from pathlib import Path
from typing import Self

from tools import ROOT
from tools.errors import ServiceError
from tools.java import java
from tools.services import ports, process
from tools.services.server import Server

PORT = 9092
JARS = ROOT / "jars" / "kafka"


class Kafka(Server):
    """A broker in a folder; `port=0` takes any free port, otherwise that one or the next free one.

    `with Kafka(folder) as kafka:` starts and stops it, as do `start()` and `stop()`. Its data stays in the
    folder and is available after the next start.
    """

    def __init__(
        self, folder: Path, *, port: int = PORT, run: Path | None = None, jars: Path = JARS, secured: Mapping[str, str] | None = None
    ) -> None:
        super().__init__()
        self.folder = folder.resolve()
        self.secured = secured
        self.secured_port = 0
        self.run = run or self.folder / "run"
        self.jars = jars
        self._preferred = port

    @property
    def bootstrap(self) -> str:
        """`host:port` for bootstrap.servers."""
        return f"{ports.LOOPBACK}:{self.port}"

    def start(self) -> Self:
        """Start the broker and wait until it answers."""
        if not any(self.jars.glob("kafka_*.jar")):
            raise ServiceError(f"Kafka's jars are missing in {self.jars}. Download them: make setup")
        process.refuse_second("kafka", run=self.run)
        # A restarted broker keeps its port for its clients.
        self.port = ports.choose(self.port or self._preferred, "Kafka")
        controller = ports.any_free()
        self.folder.mkdir(parents=True, exist_ok=True)
        properties = self.folder / "server.properties"
        settings = server_settings(self.folder, self.port, controller)
        if self.secured is not None:
            self.secured_port = ports.any_free()
            settings |= second_listener(settings, self.secured_port, self.secured)
        properties.write_text("".join(f"{key}={value}\n" for key, value in settings.items()), encoding="utf-8")
        self._format(properties)
        service = process.start(
            "kafka",
            self._java("-Xmx512m", "kafka.Kafka", str(properties)),
            run=self.run,
            log=self.folder / "kafka.log",
            cwd=self.folder,
            detail=self.bootstrap,
        )
        return self._ready(service, self._answers, "Kafka", seconds=90)

    def _format(self, properties: Path) -> None:
        """Format the log folder with a cluster id, unless it has one."""
        if (self.folder / "logs" / "meta.properties").exists():
            return
        cluster = urlsafe_b64encode(uuid.uuid4().bytes).decode().rstrip("=")
        # Written with `=`, because an id may start with a dash.
        command = self._java("-Xmx128m", "kafka.tools.StorageTool", "format", f"--cluster-id={cluster}", "--config", str(properties))
        done = subprocess.run(command, capture_output=True, text=True, check=False, cwd=self.folder)
        if done.returncode != 0:
            raise ServiceError(f"Failed to format Kafka's log folder in {self.folder}:\n{done.stdout}{done.stderr}")

    def _java(self, heap: str, main: str, *arguments: str) -> list[str]:
        options = [heap, "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", "-Djava.awt.headless=true", "-Djava.net.preferIPv4Stack=true"]
        logging = ["-Dorg.slf4j.simpleLogger.defaultLogLevel=warn", "-Dorg.slf4j.simpleLogger.showDateTime=true"]
        return [java(), *options, *logging, "-cp", f"{self.jars}/*", main, *arguments]

    def _answers(self) -> bool:
        return ports.answers(self.port) and has_metadata(self.bootstrap)


def has_metadata(bootstrap: str) -> bool:
    """Whether a client receives the list of brokers."""
    from confluent_kafka import KafkaException
    from confluent_kafka.admin import AdminClient

    client = AdminClient({"bootstrap.servers": bootstrap, "log_level": 0, "socket.timeout.ms": 2000})
    try:
        return len(client.list_topics(timeout=2).brokers) == 1
    except KafkaException:
        return False


def second_listener(settings: Mapping[str, object], port: int, options: Mapping[str, str]) -> dict[str, object]:
    """The settings with a second listener (SASL over TLS), the given options, and authorization."""
    own = f"SECURED://{ports.LOOPBACK}:{port}"
    return {
        "listeners": f"{settings['listeners']},{own}",
        "advertised.listeners": f"{settings['advertised.listeners']},{own}",
        "listener.security.protocol.map": f"{settings['listener.security.protocol.map']},SECURED:SASL_SSL",
        "authorizer.class.name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
        "super.users": "User:ANONYMOUS",
        **{f"listener.name.secured.{name}": value for name, value in options.items()},
    }


def server_settings(folder: Path, port: int, controller: int) -> dict[str, object]:
    """The broker's configuration for one node that keeps its files under `folder`."""
    host = ports.LOOPBACK
    return {
        "process.roles": "broker,controller",
        "node.id": 1,
        "controller.quorum.voters": f"1@{host}:{controller}",
        "controller.listener.names": "CONTROLLER",
        "listeners": f"PLAINTEXT://{host}:{port},CONTROLLER://{host}:{controller}",
        "advertised.listeners": f"PLAINTEXT://{host}:{port}",
        "listener.security.protocol.map": "PLAINTEXT:PLAINTEXT,CONTROLLER:PLAINTEXT",
        "log.dirs": folder / "logs",
        # A misspelt topic must fail, not be created.
        "auto.create.topics.enable": "false",
        "offsets.topic.num.partitions": 1,
        "offsets.topic.replication.factor": 1,
        "transaction.state.log.num.partitions": 4,
        "transaction.state.log.replication.factor": 1,
        "transaction.state.log.min.isr": 1,
        "share.coordinator.state.topic.num.partitions": 1,
        "share.coordinator.state.topic.replication.factor": 1,
        "share.coordinator.state.topic.min.isr": 1,
        "group.initial.rebalance.delay.ms": 0,
        "num.network.threads": 2,
        "num.io.threads": 4,
        "log.cleaner.dedupe.buffer.size": 16 * 1024 * 1024,
    }
