"""A forwarding proxy of HTTP in this process, where rights are enforced before a test server of a store.

A `Guard` sees each request before the server does, and each answer before the client does. Bodies are held in
memory. Knows no store.
"""

from __future__ import annotations

import contextlib
import http.client
import ssl
from collections.abc import Iterator
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler
from typing import Any, Protocol
from urllib.parse import parse_qs, unquote, urlsplit

from tests.storage.http_stub import serving

_OF_THE_CONNECTION = ("connection", "expect", "keep-alive", "transfer-encoding")


@dataclass
class Request:
    """A request: `path` and `query` are decoded, `target` is not; names of header fields are in lower
    case."""

    method: str
    target: str
    headers: dict[str, str]
    body: bytes
    path: str = field(init=False)
    query: dict[str, str] = field(init=False)

    def __post_init__(self) -> None:
        url = urlsplit(self.target)
        self.path = unquote(url.path)
        self.query = {key: values[0] for key, values in parse_qs(url.query, keep_blank_values=True).items()}


@dataclass
class Answer:
    """An answer; names of header fields are in lower case."""

    status: int
    body: bytes = b""
    headers: dict[str, str] = field(default_factory=dict)


class Guard(Protocol):
    """What looks at requests and answers."""

    def ask(self, request: Request) -> Answer | None:
        """None lets the request pass, which may be changed; an answer is given in place of the server's."""

    def amend(self, request: Request, answer: Answer) -> Answer:
        """What the client is to see of the server's answer."""


def send(upstream: str, request: Request) -> Answer:
    """Ask the server."""
    connection = http.client.HTTPConnection(upstream.removeprefix("http://"), timeout=60)
    with contextlib.closing(connection):
        connection.putrequest(request.method, request.target, skip_host="host" in request.headers, skip_accept_encoding=True)
        for name, value in request.headers.items():
            if name not in _OF_THE_CONNECTION:
                connection.putheader(name, value)
        connection.endheaders(request.body)
        answer = connection.getresponse()
        headers = {name.lower(): value for name, value in answer.getheaders() if name.lower() not in _OF_THE_CONNECTION}
        return Answer(answer.status, answer.read(), headers)


@contextlib.contextmanager
def forwarding(upstream: str, guard: Guard, tls: ssl.SSLContext | None = None) -> Iterator[str]:
    """Stand before the server at `upstream` (http://host:port); gives the URL to use in its place. With `tls`,
    clients have to speak that."""

    class Handler(_Handler):
        server_url = upstream
        watch = guard

    with serving(Handler, tls) as url:
        yield url


class _Handler(BaseHTTPRequestHandler):
    server_url: str
    watch: Guard
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True

    def log_message(self, format: str, *args: Any) -> None:
        """Quiet."""

    def _forward(self) -> None:
        headers = {name.lower(): value for name, value in self.headers.items()}
        request = Request(self.command, self.path, headers, self.rfile.read(int(headers.get("content-length") or 0)))
        answer = self.watch.ask(request)
        if answer is None:
            answer = self.watch.amend(request, send(self.server_url, request))
        self.send_response(answer.status)
        for name, value in {"content-length": str(len(answer.body)), **answer.headers}.items():
            self.send_header(name, value)
        self.end_headers()
        if self.command != "HEAD":
            # Who asked may be gone.
            with contextlib.suppress(ConnectionError):
                self.wfile.write(answer.body)

    do_GET = do_HEAD = do_PUT = do_POST = do_DELETE = do_PATCH = _forward  # noqa: N815
