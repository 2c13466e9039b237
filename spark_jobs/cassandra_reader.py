"""CQL queries to the cluster: the only module of the jobs that imports Cassandra's driver. Results are rows
of raw bytes, as tuples.

Strategy: values are sent and received as bytes, which is also what a log holds, because the driver has no
Python value for some CQL values. Pages are requested one by one, and a page is requested again after an error
that may be temporary. Passwords are read on the worker, from the environment only."""

from __future__ import annotations

import os
import ssl
import time
from collections.abc import Iterator, Sequence
from types import TracebackType
from typing import Any, ClassVar, Final, NamedTuple, Self

from cassandra import ConsistencyLevel, DriverException, InvalidRequest, Unauthorized
from cassandra.auth import PlainTextAuthProvider
from cassandra.cluster import EXEC_PROFILE_DEFAULT, Cluster, ExecutionProfile, NoHostAvailable, Session
from cassandra.metadata import Murmur3Token
from cassandra.policies import DCAwareRoundRobinPolicy, FallthroughRetryPolicy, TokenAwarePolicy
from cassandra.protocol import ResultMessage, SyntaxException, _ProtocolHandler
from cassandra.query import BoundStatement
from tenacity import Retrying, retry_if_exception, stop_after_attempt, wait_exponential_jitter

from writetime.cassandra.token_ring import MURMUR3, partitioner_name
from writetime.config.cluster import CqlConfig
from writetime.errors import BatchError, ConfigError
from writetime.pipeline.bootstrap.rows import MICROSECONDS, Answer, Reading

PASSWORD: Final = "WRITETIME_CQL_PASSWORD"  # noqa: S105 - the name of a variable
KEY_PASSWORD: Final = "WRITETIME_CQL_KEY_PASSWORD"  # noqa: S105 - the name of a variable
_CONNECT_SECONDS: Final = 20.0
_PAGE_SECONDS: Final = 60.0
_ATTEMPTS: Final = 8
"""Of a page, before its range fails."""
_LONGEST_WAIT: Final = 20.0
_HINT: Final = "Check cluster.cql, the user's rights, and that all nodes are up: at ALL every replica has to answer."


class Page(NamedTuple):
    """Some rows of a result; `reading`: what is known of the time of reading; `asked`, `answered` (s): the request and
    its answer, by the clock of this machine."""

    rows: list[Answer]
    reading: Reading
    asked: float = 0.0
    answered: float = 0.0


class _RawResult(ResultMessage):  # type: ignore[misc]
    def recv_results_rows(self, f: Any, protocol_version: int, user_type_map: Any, result_metadata: Any, *_: Any) -> None:
        self.recv_results_metadata(f, user_type_map)
        columns = self.column_metadata or result_metadata
        count = int.from_bytes(f.read(4), "big", signed=True)
        self.column_names = [column[2] for column in columns]
        self.column_types = [column[3] for column in columns]
        self.parsed_rows = [tuple(self.recv_row(f, len(columns))) for _ in range(count)]


class _RawHandler(_ProtocolHandler):  # type: ignore[misc]
    message_types_by_opcode: ClassVar = {**_ProtocolHandler.message_types_by_opcode, ResultMessage.opcode: _RawResult}


class RowRate:
    """Keeps one of several readers to its share of `snapshot.rows_per_second`; None: no limit."""

    def __init__(self, rows_per_second: int | None, readers: int) -> None:
        self._seconds_per_row = 0.0 if rows_per_second is None else readers / rows_per_second
        self._free_at = time.monotonic()

    def wait(self, rows: int) -> None:
        """Wait until so many more rows may have been read. Time in which nothing was read is not caught up."""
        self._free_at = max(self._free_at, time.monotonic() - rows * self._seconds_per_row) + rows * self._seconds_per_row
        time.sleep(max(0.0, self._free_at - time.monotonic()))


class Ring:
    """A session with the cluster, at one consistency level. `as_of`: see `Reading`. Methods raise BatchError,
    retriable where a retry may help."""

    def __init__(self, config: CqlConfig, *, datacenter: str, consistency: str = "ALL", page_rows: int = 1000) -> None:
        self._page_rows = page_rows
        self._address = f"{', '.join(config.contact_points)}, port {config.port}"
        profile = ExecutionProfile(
            load_balancing_policy=TokenAwarePolicy(DCAwareRoundRobinPolicy(local_dc=datacenter)),
            # A failed page is requested again here, as a whole.
            retry_policy=FallthroughRetryPolicy(),
            consistency_level=ConsistencyLevel.name_to_value[consistency],
            request_timeout=_PAGE_SECONDS,
        )
        self._cluster = Cluster(
            config.contact_points,
            port=config.port,
            # The newest protocol version that all supported releases have.
            protocol_version=4,
            ssl_context=tls_context(config),
            auth_provider=PlainTextAuthProvider(config.username, os.environ.get(PASSWORD, "")) if config.username else None,
            execution_profiles={EXEC_PROFILE_DEFAULT: profile},
            connect_timeout=_CONNECT_SECONDS,
            control_connection_timeout=_CONNECT_SECONDS,
            schema_metadata_enabled=False,
        )
        self._session = self._retried("connect to the ring", lambda: self._connected(datacenter))
        self._release = self._text("SELECT release_version FROM system.local")
        # After the queries above, because results are raw bytes from here on.
        self._session.client_protocol_handler = _RawHandler
        self._prepared: dict[str, Any] = {}

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self._cluster.shutdown()

    def _connected(self, datacenter: str) -> Session:
        try:
            return self._cluster.connect()
        except NoHostAvailable as error:
            known = sorted({host.datacenter for host in self._cluster.metadata.all_hosts() if host.datacenter})
            if not known or datacenter in known:
                raise
            # The driver only says that it has tried no node.
            raise BatchError(
                f"no node is in the datacenter {datacenter}; the cluster has {', '.join(known)}",
                operation="connect to the ring",
                obj=self._address,
                hint="Correct cluster.cql.datacenter, or cluster.datacenters.",
            ) from error

    # --- about the cluster

    @property
    def has_element_times(self) -> bool:
        """Whether WRITETIME and TTL work for unfrozen collections: from 5.0 on (CASSANDRA-8877)."""
        return int(self._release.split(".")[0]) >= 5

    def tokens(self) -> list[int]:
        """Tokens of all nodes. BatchError for a partitioner other than Murmur3."""
        found, partitioner = self._cluster.metadata.token_map, partitioner_name(self._cluster.metadata.partitioner or "")
        ring = found.ring if found else []
        if not ring or not all(isinstance(token, Murmur3Token) for token in ring):
            raise BatchError(
                f"unsupported partitioner {partitioner or '(unknown)'}",
                operation="ask for the ring's tokens",
                obj=self._address,
                hint=f"Tables are read and compared only in clusters with {MURMUR3}; their logs are ingested all the same.",
            )
        return [int(token.value) for token in ring]

    def table_id(self, keyspace: str, table: str) -> bytes | None:
        """The id of the table in the cluster now; None if there is no such table."""
        rows = self.rows(
            "SELECT id FROM system_schema.tables WHERE keyspace_name = ? AND table_name = ?", [keyspace.encode(), table.encode()], 0
        ).rows
        return rows[0][0] if rows else None

    # --- rows

    def rows(self, query: str, values: Sequence[bytes | None], as_of: int) -> Page:
        """All rows of a small result."""
        found: list[Answer] = []
        page = Page(found, Reading(as_of, 0))
        for page in self.pages(query, values, as_of):
            found += page.rows
        return page._replace(rows=found)

    def pages(self, query: str, values: Sequence[bytes | None], as_of: int) -> Iterator[Page]:
        """A result page by page. If TTLs are selected, the last column must be the coordinator's clock in
        ms."""
        if query not in self._prepared:
            self._prepared[query] = self._retried("prepare a question", lambda: self._session.prepare(query))
        state: bytes | None = None
        while True:
            bound = BoundStatement(self._prepared[query], fetch_size=self._page_rows)
            bound.values = list(values)
            page, state = self._retried("read rows", lambda bound=bound, state=state: self._page(bound, state, as_of))
            yield page
            if state is None:
                return

    def _page(self, bound: Any, state: bytes | None, as_of: int) -> tuple[Page, bytes | None]:
        asked, before = time.time(), time.monotonic()
        result = self._session.execute(bound, paging_state=state)
        rows: list[Answer] = [tuple(row) for row in result.current_rows]
        elapsed = time.monotonic() - before
        # The coordinator read its clock after the request and before it made the row: the time is in between.
        clock = min((int.from_bytes(row[-1], "big", signed=True) for row in rows if row[-1] and len(row[-1]) == 8), default=0)
        return Page(rows, Reading(as_of, int((clock / 1000) - elapsed)), asked, time.time()), result.paging_state

    def _text(self, query: str) -> str:
        return str(self._retried("ask the ring for its version", lambda: self._session.execute(query).one())[0])

    def _retried(self, operation: str, call: Any) -> Any:
        retrying = Retrying(
            retry=retry_if_exception(_may_pass),
            stop=stop_after_attempt(_ATTEMPTS),
            wait=wait_exponential_jitter(multiplier=0.2, max=_LONGEST_WAIT),
            reraise=True,
        )
        try:
            return retrying(call)
        except (DriverException, NoHostAvailable, OSError) as error:
            message = f"{type(error).__name__}: {error}"
            raise BatchError(message, operation=operation, obj=self._address, retriable=_may_pass(error), hint=_HINT) from error


def token_of(key: bytes) -> int:
    """The token of a partition key (Murmur3)."""
    return int(Murmur3Token.hash_fn(key))


def as_of(margin_seconds: float) -> int:
    """µs since the epoch: everything written before that time is visible in later reads."""
    return int((time.time() - margin_seconds) * MICROSECONDS)


def _may_pass(error: BaseException) -> bool:
    refused = isinstance(error, InvalidRequest | Unauthorized | SyntaxException)
    return not refused and isinstance(error, DriverException | NoHostAvailable | OSError)


def tls_context(config: CqlConfig) -> ssl.SSLContext | None:
    """TLS as `cluster.cql.tls` says; None: without. ConfigError for files that cannot be used."""
    if config.tls is None:
        return None
    try:
        context = ssl.create_default_context(cafile=config.tls.ca)
        context.check_hostname = config.tls.check_hostname
        if config.tls.certificate is not None:
            # None would make OpenSSL prompt at the terminal.
            context.load_cert_chain(config.tls.certificate, config.tls.key, os.environ.get(KEY_PASSWORD, ""))
    except OSError as error:
        raise ConfigError(f"cannot be used: {error}", operation="read cluster.cql.tls", obj=", ".join(config.contact_points)) from error
    return context
