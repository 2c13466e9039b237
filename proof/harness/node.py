"""One Cassandra node as a process on a loopback address: its folder, its cassandra.yaml, its command line.

Strategy: a node keeps everything in its own folder. Settings are written with their 4.0 names, which 4.1 and
5.0 still accept, so that one table serves all versions. Knows nothing about other nodes except the seed's
address.
"""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from cassandra.cluster import Session

from proof.harness import driver
from proof.harness.classpath import classpath
from tools.errors import ServiceError
from tools.java import java
from tools.services import process

START_SECONDS = 420.0
"""A node of 6.0 that replaces another moves the metadata of the cluster first: on a busy machine that took more than
three minutes."""
STOP_SECONDS = 90.0

# Cassandra reaches into the JDK in these places (its own jvm11-server.options and jvm17-server.options).
_EXPORTS = (
    "java.base/jdk.internal.misc",
    "java.base/jdk.internal.ref",
    "java.base/sun.nio.ch",
    "java.management.rmi/com.sun.jmx.remote.internal.rmi",
    "java.rmi/sun.rmi.registry",
    "java.rmi/sun.rmi.server",
    "java.sql/java.sql",
)
_OPENS = (
    "java.base/java.io",
    "java.base/java.lang",
    "java.base/java.lang.module",
    "java.base/java.lang.reflect",
    "java.base/java.math",
    "java.base/java.net",
    "java.base/java.nio",
    "java.base/java.util",
    "java.base/java.util.concurrent",
    "java.base/java.util.concurrent.atomic",
    "java.base/jdk.internal.loader",
    "java.base/jdk.internal.math",
    "java.base/jdk.internal.module",
    "java.base/jdk.internal.ref",
    "java.base/jdk.internal.reflect",
    "java.base/jdk.internal.util.jar",
    "java.base/sun.nio.ch",
    "java.rmi/sun.rmi.transport.tcp",
    "jdk.management/com.sun.management.internal",
)
_LOGBACK = """<configuration>
  <appender name="OUT" class="ch.qos.logback.core.ConsoleAppender">
    <encoder><pattern>%-5level [%thread] %date{ISO8601} %F:%L - %msg%n</pattern></encoder>
  </appender>
  <root level="INFO"><appender-ref ref="OUT"/></root>
</configuration>
"""


@dataclass(frozen=True)
class Ports:
    """CQL and storage port, the same on every address of a ring."""

    cql: int
    storage: int


@dataclass
class Node:
    """A node that may be running or not. `number` counts from 1; `settings` are what its cassandra.yaml says
    besides the folders.

    `options` go on the JVM's command line.
    """

    number: int
    address: str
    folder: Path
    version: str
    heap: str
    ports: Ports
    jmx_port: int
    settings: Mapping[str, Any]
    datacenter: str
    rack: str
    options: Sequence[str] = ()
    _service: process.Service | None = field(default=None, repr=False)
    _connections: driver.Connections = field(default_factory=driver.Connections, repr=False)

    @property
    def name(self) -> str:
        return f"cassandra-{self.number}"

    @property
    def port(self) -> int:
        """CQL port."""
        return self.ports.cql

    @property
    def cdc_raw(self) -> Path:
        """Folder that the node links its segments into."""
        return self.folder / "cdc_raw"

    @property
    def hints(self) -> Path:
        """Folder of the hints that this node stores for others."""
        return self.folder / "hints"

    @property
    def log(self) -> Path:
        return self.folder / "node.log"

    @property
    def running(self) -> bool:
        return self._service is not None and self._service.alive

    @property
    def pid(self) -> int:
        """Process id of the running node."""
        assert self._service is not None
        return self._service.pid

    def session(self, consistency: str = "ONE") -> Session:
        """A driver session that connects to this node only; closed with the node's cluster."""
        return self._connections.open([self.address], self.port, consistency, only=True)

    def start(self) -> None:
        """Start and wait until CQL answers; otherwise ServiceError with the end of the log."""
        self._write_configuration()
        environment = dict(os.environ, CASSANDRA_CONF=str(self.folder), CASSANDRA_HOME=str(self.folder))
        self._service = process.start(
            self.name, self._command(), run=self.folder / "run", log=self.log, env=environment, cwd=self.folder, detail=self.address
        )
        try:
            self._service.wait(lambda: _answers(self.address, self.port), seconds=START_SECONDS, notify=lambda _: None)
        except BaseException:
            self.stop()
            raise

    def stop(self) -> None:
        """Stop cleanly, if running: on SIGTERM Cassandra drains, which completes its segments."""
        if self._service is not None:
            self._service.stop(STOP_SECONDS)
        self._service = None

    def terminate(self) -> None:
        """Ask the node to stop, without waiting."""
        self._connections.close()
        if self._service is not None:
            self._service.terminate()

    def kill(self) -> None:
        """SIGKILL: the state after a crash."""
        if self._service is not None and self._service.alive:
            with suppress(ProcessLookupError):
                os.killpg(self._service.pid, signal.SIGKILL)
        self.stop()
        # The kernel closes a dead process's sockets a moment later: until then it would look like its
        # successor.
        deadline = time.monotonic() + STOP_SECONDS
        while _answers(self.address, self.port):
            if time.monotonic() > deadline:
                raise ServiceError(f"{self.name} was killed, but {self.address}:{self.port} still answers")
            time.sleep(0.05)

    def nodetool(self, *arguments: str) -> str:
        """Run nodetool against this node; returns its output. ServiceError if it fails."""
        main = "org.apache.cassandra.tools.NodeTool"
        options = ["-Xmx128m", "-XX:TieredStopAtLevel=1", "-Dcom.sun.jndi.rmiURLParsing=legacy"]
        command = [java(), *options, *access(), *self._properties(), "-cp", self._jars(), main]
        command += ["-h", "127.0.0.1", "-p", str(self.jmx_port), *arguments]
        done = subprocess.run(command, cwd=self.folder, capture_output=True, text=True, check=False)
        if done.returncode != 0:
            raise ServiceError(f"nodetool {' '.join(arguments)} on {self.name}: exit code {done.returncode}\n{done.stdout}{done.stderr}")
        return done.stdout

    def _command(self) -> list[str]:
        jamm = next(jar for jar in classpath(self.version) if jar.name.startswith("jamm"))
        memory = [f"-Xms{self.heap}", f"-Xmx{self.heap}", "-Xss512k", "-XX:MaxDirectMemorySize=256M", "-XX:+UseG1GC"]
        own = [
            f"-javaagent:{jamm}",
            f"-Dcassandra-rackdc.properties={(self.folder / 'cassandra-rackdc.properties').as_uri()}",
            f"-Dcassandra.jmx.local.port={self.jmx_port}",
            "-Dcassandra-foreground=yes",
            # All nodes are started by this process, one after the other: no need to wait for gossip.
            "-Dcassandra.skip_wait_for_gossip_to_settle=0",
            "-Dcassandra.ring_delay_ms=2000",
            "-Dcassandra.shutdown_announce_in_ms=500",
            "-Djava.net.preferIPv4Stack=true",
            f"-Djava.io.tmpdir={self.folder}",
            *self.options,
        ]
        return [java(), *memory, *own, *access(), *self._properties(), "-cp", self._jars(), "org.apache.cassandra.service.CassandraDaemon"]

    def _properties(self) -> list[str]:
        return [
            f"-Dcassandra.config={(self.folder / 'cassandra.yaml').as_uri()}",
            f"-Dlogback.configurationFile={(self.folder / 'logback.xml').as_uri()}",
            f"-Dcassandra.storagedir={self.folder}",
            f"-Dcassandra.logdir={self.folder}",
        ]

    def _jars(self) -> str:
        return os.pathsep.join(str(jar) for jar in classpath(self.version))

    def _write_configuration(self) -> None:
        folders = {"commitlog_directory": "commitlog", "saved_caches_directory": "saved_caches", "hints_directory": "hints"}
        settings: dict[str, Any] = {name: str(self.folder / folder) for name, folder in folders.items()}
        settings |= {"cdc_raw_directory": str(self.cdc_raw), "data_file_directories": [str(self.folder / "data")]}
        settings.update(self.settings)
        for folder in ("data", "cdc_raw", *folders.values()):
            (self.folder / folder).mkdir(parents=True, exist_ok=True)
        # JSON is valid YAML, and distinguishes text from numbers.
        lines = (f"{name}: {json.dumps(value)}\n" for name, value in settings.items())
        (self.folder / "cassandra.yaml").write_text("".join(lines), encoding="utf-8")
        (self.folder / "cassandra-rackdc.properties").write_text(f"dc={self.datacenter}\nrack={self.rack}\n", encoding="utf-8")
        (self.folder / "logback.xml").write_text(_LOGBACK, encoding="utf-8")


def access() -> list[str]:
    """JVM options that open the JDK packages that Cassandra accesses."""
    return [f"--add-exports={name}=ALL-UNNAMED" for name in _EXPORTS] + [f"--add-opens={name}=ALL-UNNAMED" for name in _OPENS]


def _answers(address: str, port: int) -> bool:
    try:
        socket.create_connection((address, port), 1.0).close()
    except OSError:
        return False
    return True
