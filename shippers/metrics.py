"""The shipper's monitoring: Prometheus metrics, /healthz, and a status file on disk for `writetime ship
--status`.

Strategy: the agent passes facts after each segment and each round; this module exports them as gauges and
counters of its own registry, and as one JSON document. /healthz returns 200 while the loop or an upload moves:
problems with the store or with space are for alerts, because a restart does not solve them. The server starts
in a thread of its own, which tries again while the port is taken or its host's name is not resolved: shipping
needs neither.
"""

from __future__ import annotations

import json
import os
import socket
import threading
import time
from collections import deque
from collections.abc import Callable, Collection
from contextlib import suppress
from dataclasses import asdict, dataclass
from http.server import BaseHTTPRequestHandler
from pathlib import Path
from socketserver import TCPServer, ThreadingMixIn
from typing import Any, Final

import structlog
from prometheus_client import CONTENT_TYPE_LATEST, CollectorRegistry, Counter, Gauge, Histogram, generate_latest

from shippers import state_file
from shippers.log import LOST
from writetime.cassandra.cdc_settings import CdcSettings

NOTE = "status.json"
STILL_ALIVE_SECONDS = 900.0
"""Seconds without a sign of life after which the shipper counts as hung. A store that does not answer is given up
earlier."""
CONNECTIONS = 16
"""Connections to the server of /metrics at once."""
_SECONDS_TO_ASK = 10.0
_TAKEN: Final = "Shipping goes on. Set node.ship.listen, or stop what uses the port."
_AGAIN_SECONDS: Final = 15.0
"""Seconds until the server is started again after that failed."""


@dataclass(frozen=True, slots=True)
class Sight:
    """The numbers of one scan: times in s since the epoch, sizes in bytes.

    `oldest` is the last write to the oldest segment that is not shipped yet.
    """

    at: float
    level: str
    used: int
    limit: int
    share: float
    free: int
    to_ship: int
    to_ship_bytes: int
    oldest: float | None
    waiting: int
    foreign: int
    spilled: int
    spilled_bytes: int

    @property
    def lag(self) -> float:
        """How long the oldest segment has been waiting, in s; 0 if the clock was set back."""
        return 0.0 if self.oldest is None else max(0.0, self.at - self.oldest)


@dataclass(frozen=True, slots=True)
class TailSeen:
    """A growing segment: its synced position, the time of the sync (s since the epoch), its shipped position
    (None: unknown).

    Positions are in bytes of the unpacked segment, as in its idx.
    """

    segment: str
    synced: int
    written: float
    shipped: int | None


class Metrics:
    """Counters since the start, and gauges of the last scan."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        self.registry.register(LOST)
        counter, gauge = self._counter, self._gauge
        self._bytes = counter("bytes", "Bytes of segments that the store has confirmed.")
        self._segments = counter("segments", "Segments shipped, by how the store came to hold them.", "outcome")
        self._failures = counter("failures", "Segments or rounds that failed, by error class.", "error")
        self._spills = counter("spilled_segments", "Segments spilled while the store was unavailable.")
        self._parts = counter("parts", "Parts of growing segments that the store has confirmed.")
        self._part_bytes = counter("part_bytes", "Bytes of these parts. The bytes of the whole segments are not included.")
        self._seconds = Histogram(
            "writetime_ship_segment_seconds", "Time to ship a segment, up to its deletion.", registry=self.registry,
            buckets=(0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 300),
        )  # fmt: skip
        self._gauges = {
            "lag_seconds": gauge("lag_seconds", "Age of the oldest segment to ship; 0 if there is none."),
            "to_ship": gauge("to_ship_segments", "Segments ready to ship at the last scan."),
            "to_ship_bytes": gauge("lag_bytes", "Bytes of the segments ready to ship."),
            "oldest": gauge("oldest_unshipped_timestamp_seconds", "Last write to the oldest segment to ship; 0 if there is none."),
            "waiting": gauge("growing_segments", "Segments that the node still owns."),
            "foreign": gauge("foreign_files", "Files that the shipper does not recognize and ignores."),
            "used": gauge("cdc_used_bytes", "Size of the files in cdc_raw, as Cassandra counts it."),
            "limit": gauge("cdc_limit_bytes", "cdc_total_space."),
            "share": gauge("cdc_used_ratio", "Share of the limit in use; from 1 on Cassandra rejects CDC writes."),
            "free": gauge("disk_free_bytes", "Free space on the disk of cdc_raw."),
            "spilled": gauge("aside_segments", "Spilled segments that are not shipped yet."),
            "spilled_bytes": gauge("aside_bytes", "Bytes of the spilled segments."),
            "at": gauge("last_look_timestamp_seconds", "When the shipper last scanned cdc_raw."),
        }
        self._tail_synced = gauge("tail_synced_bytes", "Synced bytes of growing segments, counted unpacked.")
        self._tail_shipped = gauge("tail_shipped_bytes", "Shipped bytes of growing segments, counted unpacked.")
        self._tail_lag = gauge(
            "tail_lag_seconds", "Age of the oldest last sync of a growing segment with unshipped bytes; 0 if all are shipped."
        )
        self._level = gauge("space_level", "0: enough space, 1: warning, 2: alarm.")
        self._can_spill = gauge("can_spill", "1 if segments can be spilled while the store is unavailable; 0 if not, or not configured.")
        self._unsafe = gauge(
            "unsafe_setting", "1: with this setting the node drops captured writes without an error; 0: it does not.", "setting"
        )

    def can_spill(self, can: bool) -> None:
        """Whether the spill folder can be used."""
        self._can_spill.set(can)

    def shipped(self, outcome: str, size: int, seconds: float) -> None:
        self._segments.labels(outcome).inc()
        self._bytes.inc(size)
        self._seconds.observe(seconds)

    def shipped_part(self, size: int) -> None:
        self._parts.inc()
        self._part_bytes.inc(size)

    def saw_tails(self, tails: Collection[TailSeen]) -> None:
        late = [tail.written for tail in tails if tail.synced > (tail.shipped or 0)]
        self._tail_synced.set(sum(tail.synced for tail in tails))
        self._tail_shipped.set(sum(tail.shipped or 0 for tail in tails))
        self._tail_lag.set(max(0.0, time.time() - min(late)) if late else 0.0)

    def failed(self, error: str) -> None:
        self._failures.labels(error).inc()

    def put_aside(self) -> None:
        self._spills.inc()

    def saw(self, sight: Sight) -> None:
        for name, gauge in self._gauges.items():
            gauge.set(sight.lag if name == "lag_seconds" else getattr(sight, name) or 0)
        self._level.set({"ok": 0, "warn": 1, "alarm": 2}[sight.level])

    def saw_settings(self, settings: CdcSettings) -> None:
        """Export a sample for each known setting, and none for unknown ones."""
        unsafe = {each.name for each in settings.unsafe()}
        for name in CdcSettings.CHECKED:
            if getattr(settings, name) is not None:
                self._unsafe.labels(name).set(name in unsafe)

    def _counter(self, name: str, about: str, *labels: str) -> Any:
        return Counter(f"writetime_ship_{name}", about, labels, registry=self.registry)

    def _gauge(self, name: str, about: str, *labels: str) -> Any:
        return Gauge(f"writetime_ship_{name}", about, labels, registry=self.registry)


class Pulse:
    """Signs of life of the loop. The loop and its uploads call `beat`; other threads read the properties."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._last = clock()

    def beat(self, rest: float = 0.0) -> None:
        """The loop moves. After this it is meant to rest for `rest` seconds."""
        self._last = self._clock() + rest

    @property
    def silent_for(self) -> float:
        """Seconds since the last beat, or since the end of the rest after it."""
        return max(0.0, self._clock() - self._last)

    @property
    def alive(self) -> bool:
        return self.silent_for < STILL_ALIVE_SECONDS


class Server:
    """/metrics and /healthz on `listen` (host:port; port 0: any free one), with a thread per connection.

    With more than `CONNECTIONS` connections the oldest is closed, so that idle ones do not block new
    requests.
    """

    def __init__(self, listen: str, metrics: Metrics, pulse: Pulse) -> None:
        host, _, port = listen.rpartition(":")

        class Handler(BaseHTTPRequestHandler):
            timeout = _SECONDS_TO_ASK

            def do_GET(self) -> None:
                path = self.path.partition("?")[0]
                if path == "/metrics":
                    self._answer(200, CONTENT_TYPE_LATEST, generate_latest(metrics.registry))
                elif path == "/healthz":
                    body = json.dumps({"alive": pulse.alive, "silent_seconds": round(pulse.silent_for, 1)}).encode()
                    self._answer(200 if pulse.alive else 503, "application/json", body)
                else:
                    self._answer(404, "text/plain", b"/metrics, /healthz\n")

            def do_HEAD(self) -> None:
                self.do_GET()

            def _answer(self, status: int, kind: str, body: bytes) -> None:
                self.send_response(status)
                self.send_header("Content-Type", kind)
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                if self.command != "HEAD":
                    self.wfile.write(body)

            def log_message(self, *_: Any) -> None:
                """Do not log scrapes."""

        self._server = _server_class(host)((host.strip("[]"), int(port)), Handler)
        self.address = f"{host}:{self._server.server_address[1]}"
        threading.Thread(target=self._server.serve_forever, name="metrics", daemon=True).start()

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()


class Serving:
    """Starts the server in a thread, and again while it cannot listen: shipping matters more than metrics."""

    def __init__(self, listen: str, metrics: Metrics, pulse: Pulse) -> None:
        self._over = threading.Event()
        self._log = structlog.get_logger("ship")
        self.server: Server | None = None
        # Without a thread (a limit of the system), there are no metrics.
        with suppress(RuntimeError):
            threading.Thread(target=self._start, args=(listen, metrics, pulse), name="metrics start", daemon=True).start()

    def close(self) -> None:
        """Stop serving. Waits neither for a name nor for a port."""
        self._over.set()
        if self.server is not None:
            self.server.close()

    def _start(self, listen: str, metrics: Metrics, pulse: Pulse) -> None:
        failed = ""
        while not self._over.is_set():
            try:
                self.server = Server(listen, metrics, pulse)
            except (OSError, OverflowError, RuntimeError) as error:
                if str(error) != failed:
                    self._log.error("failed to start the metrics server, retrying", listen=listen, message=str(error), hint=_TAKEN)
                failed = str(error)
                self._over.wait(_AGAIN_SECONDS)
            else:
                self._log.info("metrics server started", listen=self.server.address)
                return


def note(path: Path, sight: Sight, **more: Any) -> None:
    """Write the scan to the status file for `--status`. OSError if that fails."""
    state_file.replace(path, json.dumps({**asdict(sight), "lag": sight.lag, "pid": os.getpid(), **more}, indent=1) + "\n")


def noted(path: Path) -> dict[str, Any]:
    """Read what `note` wrote; {} if missing or unreadable."""
    try:
        document = json.loads(path.read_bytes())
    except (OSError, ValueError):
        return {}
    return document if isinstance(document, dict) else {}


def _server_class(host: str) -> type[TCPServer]:
    # http.server's own class looks up the host's name, which takes minutes without a name server.
    class Bound(ThreadingMixIn, TCPServer):
        allow_reuse_address = True
        daemon_threads = True
        address_family = socket.AF_INET6 if host.startswith("[") else socket.AF_INET

        def __init__(self, *arguments: Any) -> None:
            self._open: deque[socket.socket] = deque()
            self._lock = threading.Lock()
            super().__init__(*arguments)

        def process_request(self, request: Any, client_address: Any) -> None:
            with self._lock:
                self._open.append(request)
                oldest = self._open.popleft() if len(self._open) > CONNECTIONS else None
            if oldest is not None:
                # Its thread then reads the end of the connection and closes the socket.
                with suppress(OSError):
                    oldest.shutdown(socket.SHUT_RDWR)
            super().process_request(request, client_address)

        def shutdown_request(self, request: Any) -> None:
            with self._lock, suppress(ValueError):
                self._open.remove(request)
            super().shutdown_request(request)

        def handle_error(self, request: Any, client_address: Any) -> None:
            """Do not log clients that disconnected or were closed for newer ones."""

    return Bound
