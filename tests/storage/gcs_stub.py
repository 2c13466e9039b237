"""A small, strict GCS in memory: the JSON API as far as GcsStore uses it, with every precondition and
checksum honoured.

It stands in where the test server is laxer than the service, and answers with faults on request. It is no
model of the service's performance or of its permissions."""

from __future__ import annotations

import base64
import contextlib
import email
import email.policy
import itertools
import json
import re
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler
from typing import Any
from urllib.parse import parse_qs, unquote, urlsplit

import google_crc32c

from tests.storage.http_stub import Answer, serving

BUCKET = "bucket"
_PAGE = 3


class Refused(Exception):
    """An answer other than success."""

    def __init__(self, code: int, message: str) -> None:
        super().__init__(message)
        self.code = code


@dataclass
class Held:
    """An object."""

    data: bytes
    generation: int
    metadata: dict[str, str]


@dataclass
class Stub:
    """The server's memory.

    `faults` are status codes, or status codes and messages, for the next requests; `lie_about_crc` falsifies what it says it holds; `watch`
    is called with each request before it is answered; `mangle` makes another answer of one; `ignores` are parameters
    that it does not know."""

    url: str = ""
    objects: dict[str, Held] = field(default_factory=dict)
    uploads: dict[str, tuple[dict[str, Any], dict[str, str], bytearray]] = field(default_factory=dict)
    faults: list[int | tuple[int, str]] = field(default_factory=list)
    lose_answers: int = 0
    lie_about_crc: bool = False
    requests: int = 0
    watch: Callable[[str], None] = lambda _: None
    mangle: Callable[[Answer], Answer] = lambda answer: answer
    ignores: tuple[str, ...] = ()
    lock: Any = field(default_factory=threading.RLock)
    numbers: Iterator[int] = field(default_factory=lambda: itertools.count(1_700_000_000_000_000))

    def resource(self, name: str) -> dict[str, Any]:
        held = self.objects[name]
        crc = crc32c(held.data + (b"!" if self.lie_about_crc else b""))
        return {
            "kind": "storage#object",
            "bucket": BUCKET,
            "name": name,
            "size": str(len(held.data)),
            "generation": str(held.generation),
            "metageneration": "1",
            "crc32c": crc,
            "timeCreated": "2026-01-01T00:00:00.000000Z",
            "metadata": held.metadata,
        }

    def require(self, name: str, wanted: str | None) -> None:
        found = self.objects[name].generation if name in self.objects else 0
        if wanted is not None and int(wanted) != found:
            raise Refused(412, "At least one of the pre-conditions you specified did not hold.")

    def find(self, name: str, generation: str | None = None) -> Held:
        held = self.objects.get(name)
        if held is None or (generation is not None and held.generation != int(generation)):
            raise Refused(404, f"No such object: {BUCKET}/{name}")
        return held

    def store(self, properties: dict[str, Any], query: dict[str, str], data: bytes) -> dict[str, Any]:
        name = properties.get("name") or query["name"]
        with self.lock:
            self.require(name, query.get("ifGenerationMatch"))
            if properties.get("crc32c") not in (None, crc32c(data)):
                raise Refused(400, f'Provided CRC32C "{properties["crc32c"]}" doesn\'t match calculated CRC32C "{crc32c(data)}".')
            self.objects[name] = Held(data, next(self.numbers), dict(properties.get("metadata") or {}))
            return self.resource(name)


def crc32c(data: bytes) -> str:
    return base64.b64encode(google_crc32c.value(data).to_bytes(4, "big")).decode()


@contextlib.contextmanager
def running() -> Iterator[Stub]:
    """A stub on a free loopback port, with one bucket named `bucket`."""
    stub = Stub()

    class Handler(_Handler):
        memory = stub

    with serving(Handler) as stub.url:
        yield stub


class _Handler(BaseHTTPRequestHandler):
    memory: Stub
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True

    def log_message(self, format: str, *args: Any) -> None:
        """Quiet."""

    def do_GET(self) -> None:
        self._answer({r"/storage/v1/b/[^/]+/o": self._list, r"(?:/download)?/storage/v1/b/[^/]+/o/([^/]+)": self._get})

    def do_POST(self) -> None:
        rewrite = r"/storage/v1/b/[^/]+/o/([^/]+)/rewriteTo/b/[^/]+/o/([^/]+)"
        self._answer({r"/upload/storage/v1/b/[^/]+/o": self._upload, rewrite: self._rewrite})

    def do_PUT(self) -> None:
        self._answer({r"/upload/([0-9]+)": self._chunk})

    def do_DELETE(self) -> None:
        self._answer({r"/storage/v1/b/[^/]+/o/([^/]+)": self._delete})

    def _answer(self, routes: dict[str, Callable[..., tuple[int, bytes, dict[str, str]]]]) -> None:
        self.body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        url = urlsplit(self.path)
        asked = parse_qs(url.query, keep_blank_values=True)
        self.query = {key: values[0] for key, values in asked.items() if key not in self.memory.ignores}
        self.memory.requests += 1
        self.memory.watch(f"{self.command} {self.path}")
        try:
            if self.memory.faults:
                fault = self.memory.faults.pop(0)
                raise Refused(*(fault if isinstance(fault, tuple) else (fault, "a fault on request")))
            if re.match(r".*/b/([^/]+)", url.path) and f"/b/{BUCKET}/" not in url.path:
                raise Refused(404, "The specified bucket does not exist.")
            for pattern, route in routes.items():
                if match := re.fullmatch(pattern, url.path):
                    code, body, headers = route(*map(unquote, match.groups()))
                    break
            else:
                raise Refused(501, f"the stub has no {self.command} {url.path}")
        except Refused as refusal:
            code, headers = refusal.code, {"Content-Type": "application/json"}
            body = json.dumps({"error": {"code": refusal.code, "message": str(refusal)}}).encode()
        if self.memory.lose_answers and code < 300 and self.command != "GET":
            self.memory.lose_answers -= 1
            self.close_connection = True
            return
        code, body, headers = self.memory.mangle((code, body, headers))
        self.send_response(code)
        for key, value in {"Content-Length": str(len(body)), **headers}.items():
            self.send_header(key, value)
        self.end_headers()
        # Who does not like the answer goes away.
        with contextlib.suppress(ConnectionError):
            self.wfile.write(body)
        self.close_connection = self.close_connection or "Content-Length" in headers

    def _json(self, value: dict[str, Any]) -> tuple[int, bytes, dict[str, str]]:
        return 200, json.dumps(value).encode(), {"Content-Type": "application/json"}

    def _list(self) -> tuple[int, bytes, dict[str, str]]:
        first = self.query.get("pageToken") or self.query.get("startOffset", "")
        prefix = self.query.get("prefix", "")
        names = sorted((n for n in self.memory.objects if n.startswith(prefix)), key=str.encode)
        names = [n for n in names if n.encode() >= first.encode()]
        size = min(_PAGE, int(self.query.get("maxResults", _PAGE)))
        if (delimiter := self.query.get("delimiter")) is not None:
            folders = sorted(
                {prefix + n.removeprefix(prefix).partition(delimiter)[0] + delimiter for n in names if delimiter in n[len(prefix) :]}
            )
            following = next((n for n in names if len(folders) > size and n.startswith(folders[size])), None)
            return self._json({"prefixes": folders[:size], **({"nextPageToken": following} if following else {})})
        page: dict[str, Any] = {"items": [self.memory.resource(n) for n in names[:size]]}
        if len(names) > size:
            page["nextPageToken"] = names[size]
        return self._json(page)

    def _get(self, name: str) -> tuple[int, bytes, dict[str, str]]:
        held = self.memory.find(name, self.query.get("generation"))
        if self.query.get("alt") != "media":
            return self._json(self.memory.resource(name))
        headers = {"Content-Type": "application/octet-stream", "X-Goog-Hash": f"crc32c={self.memory.resource(name)['crc32c']}"}
        headers["X-Goog-Generation"] = str(held.generation)
        wanted = re.fullmatch(r"bytes=(\d+)-(\d*)", self.headers.get("Range") or "")
        if wanted is None:
            return 200, held.data, headers
        start, end = int(wanted[1]), int(wanted[2] or len(held.data) - 1)
        if start >= len(held.data):
            raise Refused(416, "The requested range cannot be satisfied.")
        piece = held.data[start : end + 1]
        headers["Content-Range"] = f"bytes {start}-{start + len(piece) - 1}/{len(held.data)}"
        return 206, piece, headers

    def _upload(self) -> tuple[int, bytes, dict[str, str]]:
        if self.query["uploadType"] == "resumable":
            number = str(next(self.memory.numbers))
            self.memory.uploads[number] = (json.loads(self.body), self.query, bytearray())
            return 200, b"", {"Location": f"{self.memory.url}/upload/{number}?upload_id=secret-{number}"}
        head = f"Content-Type: {self.headers['Content-Type']}\r\n\r\n".encode()
        parts = email.message_from_bytes(head + self.body, policy=email.policy.HTTP)
        properties, _ = list(parts.iter_parts())  # type: ignore[attr-defined]
        boundary = parts.get_boundary().encode()
        # Taken from the raw body: the mail parser would change line ends.
        raw = self.body.split(b"--" + boundary)[2].split(b"\r\n\r\n", 1)[1][:-2]
        return self._json(self.memory.store(json.loads(properties.get_content()), self.query, raw))

    def _chunk(self, number: str) -> tuple[int, bytes, dict[str, str]]:
        properties, query, data = self.memory.uploads[number]
        sent = self.headers["Content-Range"]
        if begin := re.match(r"bytes (\d+)-", sent):
            if int(begin[1]) != len(data):
                raise Refused(400, "not where the upload stopped")
            data += self.body
            if sent.endswith(f"/{len(data)}"):
                return self._json(self.memory.store(properties, query, bytes(data)))
        # Otherwise it was the question how much has come.
        return 308, b"", {"Range": f"bytes=0-{len(data) - 1}"} if data else {}

    def _rewrite(self, source: str, target: str) -> tuple[int, bytes, dict[str, str]]:
        with self.memory.lock:
            held = self.memory.find(source)
            self.memory.require(source, self.query.get("ifSourceGenerationMatch"))
            self.memory.require(target, self.query.get("ifGenerationMatch"))
            metadata = json.loads(self.body or b"{}").get("metadata") or {}
            self.memory.objects[target] = Held(held.data, next(self.memory.numbers), metadata)
            size = str(len(held.data))
            done = {"done": True, "totalBytesRewritten": size, "objectSize": size, "resource": self.memory.resource(target)}
            return self._json(done)

    def _delete(self, name: str) -> tuple[int, bytes, dict[str, str]]:
        with self.memory.lock:
            self.memory.find(name)
            self.memory.require(name, self.query.get("ifGenerationMatch"))
            del self.memory.objects[name]
        return 204, b"", {}
