"""The node's identity: from the configuration, from the node itself, and from its recorded last answer.

Strategy: the three sources are merged into one `NodeFacts`. If configuration and node disagree about cluster,
datacenter or host id, the shipper stops, because objects under a wrong name are hard to correct later. `Link`
is the only part that connects to Cassandra, over CQL to this one node; it connects on demand and reconnects
after an error. `Identity` asks it until it answers, and again over each new connection. A recorded answer
counts only for the address that gave it, and on the machine where it was given: a machine that is made from an
image of another node has that node's record. Knows nothing about segments.
"""

from __future__ import annotations

import errno
import hashlib
import json
import socket
import ssl
import time
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Self, TypeVar

from shippers import state_file
from shippers.cdc_settings import SettingsMonitor, take_settings
from shippers.schema_snapshot import plain, schema_version, take_snapshot
from shippers.sign_off import Ring, take_ring
from shippers.truncations import take_truncations
from writetime.cassandra.cdc_settings import CdcSettings
from writetime.cassandra.token_ring import MURMUR3, partitioner_name
from writetime.config.node import NodeConfig
from writetime.config.pipeline import PipelineConfig
from writetime.errors import ConfigError, ShipError
from writetime.storage import layout

T = TypeVar("T")

_CONNECT_SECONDS = 10.0
_REQUEST_SECONDS = 30.0
_SLOW_SECONDS = 1.0
_REST_SECONDS = 30.0
"""Seconds for which a node is not asked after a question that failed slowly: it is frozen, or a firewall drops what is sent."""
_MACHINE_ID = Path("/etc/machine-id")
_LINK = "Check node.address, node.port, user and password."
_TLS_FILES = "Check the files of node.tls. They are read again for each connection, and segments are shipped meanwhile."
_ORIGIN = frozenset({"asked", "machine"})
"""Keys of a record beside those of `NodeFacts`: which address answered, and a hash of the machine's id."""


@dataclass(frozen=True, slots=True)
class NodeFacts:
    """A node's identity and other facts; None: unknown. `tokens` are decimal strings, if the `partitioner` is
    Murmur3Partitioner; nothing that is shipped depends on them."""

    cluster: str
    datacenter: str
    host_id: str
    address: str | None = None
    rack: str | None = None
    release_version: str | None = None
    partitioner: str | None = None
    tokens: list[str] | None = None

    @property
    def name(self) -> layout.NodeName:
        return layout.NodeName(self.cluster, self.datacenter, self.host_id)

    def metadata(self) -> dict[str, str]:
        """The facts that are stored in the metadata of each segment's object."""
        fields = ("host_id", "datacenter", "address", "release_version")
        return {field: value for field in fields if (value := getattr(self, field)) is not None}


class Link:
    """A CQL connection to one node. Every method raises ShipError (retriable) while the node is
    unavailable."""

    def __init__(self, config: NodeConfig) -> None:
        self._config = config
        self._cluster: Any = None
        self._session: Any = None
        self._rests_until = 0.0
        self.introduced = False
        """Whether the node was identified over this connection: a new one may lead to another node."""

    def facts(self) -> dict[str, Any]:
        """The node's own facts, in the fields of NodeFacts."""
        facts = self._ask("query the node's identity", _facts)
        self.introduced = True
        return facts

    def schema_version(self) -> str:
        return self._ask("query the node's schema version", schema_version)

    def snapshot(self) -> dict[str, Any]:
        """The node's schema; see shippers.schema_snapshot."""
        return self._ask("query the node's schema", take_snapshot)

    def truncations(self) -> list[dict[str, Any]]:
        """The node's records of TRUNCATE; see shippers.truncations."""
        return self._ask("query the node's truncation records", take_truncations)

    def settings(self) -> CdcSettings:
        """The node's CDC settings; see shippers.cdc_settings."""
        return self._ask("query the node's CDC settings", take_settings)

    def ring(self) -> Ring:
        """The node's generation and the ring's members; see shippers.sign_off."""
        return self._ask("query the ring", take_ring)

    def close(self) -> None:
        if self._cluster is not None:
            self._cluster.shutdown()
        self._cluster = self._session = None
        self.introduced = False

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _ask(self, operation: str, query: Callable[[Any], T]) -> T:
        from cassandra import DriverException
        from cassandra.cluster import NoHostAvailable

        address, begun = f"{self._config.address}:{self._config.port}", time.monotonic()
        if begun < self._rests_until:
            # Each question would take as long again, and segments wait meanwhile.
            raise ShipError(
                "the node did not answer a moment ago, not asking", operation=operation, obj=address, retriable=True, hint=_LINK
            )
        try:
            return query(self._connected())
        except (DriverException, NoHostAvailable, OSError, TypeError, ValueError) as error:
            # TypeError and ValueError: the row is missing or has a value of an unexpected type.
            self.close()
            if time.monotonic() - begun > _SLOW_SECONDS:
                self._rests_until = time.monotonic() + _REST_SECONDS
            raise ShipError(f"{type(error).__name__}: {error}", operation=operation, obj=address, retriable=True, hint=_LINK) from error

    def _connected(self) -> Any:
        if self._session is None:
            from cassandra.auth import PlainTextAuthProvider
            from cassandra.cluster import EXEC_PROFILE_DEFAULT, Cluster, ExecutionProfile
            from cassandra.policies import WhiteListRoundRobinPolicy

            config = self._config
            secret = config.password.get_secret_value() if config.password else ""
            # Connect to this node only: another node's identity would name the segments wrongly.
            policy = WhiteListRoundRobinPolicy([config.address])
            profile = ExecutionProfile(load_balancing_policy=policy, request_timeout=_REQUEST_SECONDS)
            self._cluster = Cluster(
                [config.address],
                port=config.port,
                # The newest protocol of all supported versions, so nothing has to be negotiated.
                protocol_version=4,
                ssl_context=_tls(config),
                ssl_options={"server_hostname": config.tls.server_name or config.address} if config.tls else None,
                auth_provider=PlainTextAuthProvider(config.username, secret) if config.username else None,
                execution_profiles={EXEC_PROFILE_DEFAULT: profile},
                connect_timeout=_CONNECT_SECONDS,
                schema_metadata_enabled=False,
                token_metadata_enabled=False,
            )
            self._session = self._cluster.connect()
        return self._session


class Identity:
    """The node's identity during a run. `link` is None if the node is not queried."""

    def __init__(self, config: PipelineConfig, link: Link | None, settings: SettingsMonitor, log: Any) -> None:
        self._config = config
        self._link = link
        self._settings = settings
        self._log = log
        self._notes = notes_file(require_node(config))
        self._facts: NodeFacts | None = None
        self._changed_to: set[str] = set()
        self._not_used: str | None = None

    def determine(self) -> NodeFacts:
        """Query the node until it answers, and again over each new connection.

        Until then, the last known identity is used. ConfigError and ShipError as `merge`.
        """
        if self._facts is not None and (self._link is None or self._link.introduced):
            return self._facts
        answer: dict[str, Any] = {}
        unanswered = False
        if self._link is not None:
            try:
                answer = self._link.facts()
            except ShipError as error:
                self._log.warning("failed to query the node's identity", **error.as_dict())
                unanswered = True
                if self._facts is not None:
                    return self._facts
        recalled = recall(self._notes)
        if not answer and recalled:
            self._log_unused(rejection_reason(self._config, recalled, unanswered=unanswered))
        facts = merge(self._config, answer, recalled, unanswered=unanswered)
        if answer:
            # The recorded identity may be older than the one in memory: it cannot always be written.
            self._compare(self._facts.host_id if self._facts is not None else recalled.get("host_id", facts.host_id), facts.host_id)
            self._remember(facts)
        if answer or self._link is None:
            self._facts = facts
        return facts

    def _compare(self, before: str, now: str) -> None:
        """Log a change of the host id, once for each. The settings are those of the node before."""
        if before == now:
            return
        self._settings.forget()
        if now not in self._changed_to:
            self._changed_to.add(now)
            hint = "Drain a node before it is wiped."
            self._log.warning("node identity changed; segments in the folder are shipped as the new node's", was=before, hint=hint)

    def _log_unused(self, reason: str | None) -> None:
        """Log why the recorded identity is not used, once for each reason."""
        if reason is not None and reason != self._not_used:
            hint = "If it is still the same node, its next answer settles it; until then set node.host_id, or segments wait."
            self._log.warning("recorded node identity is not used", reason=reason, file=str(self._notes), hint=hint)
        self._not_used = reason

    def _remember(self, facts: NodeFacts) -> None:
        try:
            remember(self._notes, facts, asked=_asked(require_node(self._config)))
        except ShipError as error:
            # The file is only needed for a start while the node is down. Segments must not wait for it.
            self._log.warning("failed to persist the node's identity", **error.as_dict())


def merge(config: PipelineConfig, answer: Mapping[str, Any], remembered: Mapping[str, Any], *, unanswered: bool = False) -> NodeFacts:
    """Merge the configuration, the node's current answer and its recorded earlier answer.

    ConfigError if the configuration contradicts the node, or if the host id or datacenter is unknown. If the
    node was queried and did not answer (`unanswered`), a retriable ShipError instead: a bootstrapping node
    keeps its CQL port closed for hours.
    """
    node = require_node(config)
    written = {"cluster": config.cluster.name, "datacenter": node.datacenter, "host_id": node.host_id}
    for field, value in written.items():
        said = answer.get(field)
        if value is not None and said is not None and value != said:
            raise ConfigError(
                f"{field} is `{value}` in the configuration but `{said}` on the node",
                operation="identify the node",
                obj=str(node.cdc_raw),
                hint="Correct the configuration: object names contain this value.",
            )
    usable = rejection_reason(config, remembered, unanswered=unanswered) is None
    known = answer or {key: value for key, value in remembered.items() if usable and key not in _ORIGIN}
    facts = {"address": node.address, **known, **{k: v for k, v in written.items() if v is not None}}
    for field in ("host_id", "datacenter"):
        if not facts.get(field) and unanswered:
            raise ShipError(
                f"node.{field} is not configured and the node has not answered yet",
                operation="identify the node",
                obj=str(node.cdc_raw),
                retriable=True,
                hint=f"Segments wait until the node answers or node.{field} is set.",
            )
        if not facts.get(field):
            raise ConfigError(
                f"node.{field} is not configured and the node was not queried",
                operation="identify the node",
                obj=str(node.cdc_raw),
                hint=f"Set node.{field}, or set node.address so that the node is queried while it is up.",
            )
    if facts["datacenter"] not in config.cluster.datacenters:
        raise ConfigError(
            f"datacenter `{facts['datacenter']}` is not among cluster.datacenters ({', '.join(config.cluster.datacenters)})",
            operation="identify the node",
            obj=str(node.cdc_raw),
        )
    return NodeFacts(**facts)


def rejection_reason(config: PipelineConfig, remembered: Mapping[str, Any], *, unanswered: bool) -> str | None:
    """Why a recorded answer says nothing about this node, or None: another node may use the folder now, or the folder may
    be a copy of another node's.

    A drain may run on another machine, with the stopped node's disk: the machine counts only if the node was queried.
    """
    node = require_node(config)
    written = {"cluster": config.cluster.name, "datacenter": node.datacenter, "host_id": node.host_id}
    for field, value in written.items():
        if value is not None and remembered.get(field) != value:
            return f"its {field} is `{remembered.get(field)}`, the configuration has `{value}`"
    if node.host_id is not None:
        return None
    if _asked(node) != remembered.get("asked"):
        return f"the node at {remembered.get('asked')} gave it, the configuration has {_asked(node)}"
    if unanswered and "machine" in remembered and remembered["machine"] != _machine():
        return "it was recorded on another machine"
    return None


def require_node(config: PipelineConfig) -> NodeConfig:
    """The `node` section of the configuration; ConfigError if it is missing."""
    if config.node is None:
        raise ConfigError("the `node` section is missing", operation="start the shipper", hint="Add `node: {cdc_raw: …}`.")
    return config.node


def answers(node: NodeConfig) -> bool:
    """Whether the node's CQL port accepts connections. ShipError if that cannot be determined."""
    operation = "check whether the node is stopped"
    if node.address is None:
        hint = "Set node.address: the kernel cannot say here whether a segment is open for writing, so the CQL port is checked."
        raise ShipError("node.address is not set", operation=operation, obj=str(node.cdc_raw), hint=hint)
    try:
        with socket.create_connection((node.address, node.port), timeout=_CONNECT_SECONDS):
            return True
    except OSError as error:
        if isinstance(error, (ConnectionRefusedError, TimeoutError)) or error.errno in (errno.EHOSTUNREACH, errno.ENETUNREACH):
            return False
        hint = "Check node.address and node.port."
        raise ShipError(
            f"failed to connect to the CQL port: {error}", operation=operation, obj=f"{node.address}:{node.port}", hint=hint
        ) from error


def notes_file(node: NodeConfig) -> Path:
    return node.state / "node.json"


def remember(path: Path, facts: NodeFacts, *, asked: str | None = None) -> None:
    """Record the facts for a start while the node is down. `asked`: the configured address that gave them."""
    document = _document({**asdict(facts), "asked": asked, "machine": _machine()})
    try:
        if path.exists() and path.read_bytes() == document:
            return
        state_file.replace(path, document.decode())
    except OSError as error:
        raise ShipError(
            f"failed to write the file: {error.strerror}", operation="record the node's identity", obj=str(path), hint="Set node.state_dir."
        ) from error


def recall(path: Path) -> dict[str, Any]:
    """The facts that an earlier run recorded; {} if missing or unreadable."""
    try:
        noted = json.loads(path.read_bytes())
    except (OSError, ValueError):
        return {}
    return noted if isinstance(noted, dict) and noted.keys() <= NodeFacts.__dataclass_fields__.keys() | _ORIGIN else {}


def _asked(node: NodeConfig) -> str | None:
    return None if node.address is None else f"{node.address}:{node.port}"


def _machine() -> str | None:
    """A hash of this machine's id (machine-id(5) asks not to expose it); None if it has none, as in most containers."""
    try:
        found = _MACHINE_ID.read_bytes().strip()
    except OSError:
        return None
    return hashlib.blake2b(found, digest_size=8, person=b"writetime").hexdigest() if found else None


def _facts(session: Any) -> dict[str, Any]:
    columns = "cluster_name, data_center, host_id, rpc_address, rack, release_version, partitioner, tokens"
    row = session.execute(f"SELECT {columns} FROM system.local").one()  # noqa: S608 - constant columns
    cluster, datacenter, host_id, address, rack, release, partitioner, tokens = row
    name = partitioner_name(partitioner or "")
    return {
        "cluster": cluster,
        "datacenter": datacenter,
        "host_id": str(host_id),
        "address": str(address),
        "rack": rack,
        "release_version": release,
        "partitioner": name,
        "tokens": sorted(plain(tokens or []), key=int) if name == MURMUR3 else None,
    }


def _tls(config: NodeConfig) -> ssl.SSLContext | None:
    """The TLS context of the configuration. ShipError (retriable) if its files cannot be used: they may be replaced right now,
    and segments are shipped without the node."""
    if config.tls is None:
        return None
    tls = config.tls
    # With None, OpenSSL would prompt on the terminal.
    password = tls.key_password.get_secret_value() if tls.key_password else ""
    try:
        context = ssl.create_default_context(cafile=tls.ca)
        if tls.certificate is not None:
            context.load_cert_chain(tls.certificate, tls.key, password)
    except OSError as error:
        # SSLError is an OSError and may have no strerror.
        raise ShipError(
            f"failed to load the TLS files: {error}", operation="read node.tls", obj=str(config.address), retriable=True, hint=_TLS_FILES
        ) from error
    return context


def _document(value: Mapping[str, Any]) -> bytes:
    return json.dumps(value, indent=1, sort_keys=True).encode() + b"\n"
