"""What fake-gcs-server lacks of Google's XML API, in front of it: uploads, downloads, listings, deletions and uploads in
parts, as the Rust library object_store asks for them, which Lance is built on.

Strategy: a proxy. Requests of the XML API (`/<bucket>/<object>`) are translated to those of the JSON API; all others
pass unchanged. Conditions on uploads are the server's own. Nothing is kept but the parts of unfinished uploads."""

from __future__ import annotations

import contextlib
import http.client
import itertools
import json
import threading
from collections.abc import Iterator
from datetime import datetime
from email.utils import format_datetime
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import parse_qs, quote, unquote, urlencode, urlsplit
from xml.sax.saxutils import escape

_OF_JSON = ("storage", "upload", "download", "batch", "resumable", "_internal", "b")
_PASSED_ON = ("Authorization", "Content-Type", "Content-Range", "Range", "Accept")
_HOP = ("connection", "transfer-encoding", "keep-alive", "content-length")


@contextlib.contextmanager
def running(port: int, behind: int) -> Iterator[None]:
    """Listen on the loopback port, in front of a server on another one."""

    handler = type("Handler", (_Handler,), {"upstream": behind, "parts": {}, "numbers": itertools.count(1)})
    server = ThreadingHTTPServer(("127.0.0.1", port), handler)
    server.daemon_threads = True
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        yield
    finally:
        server.shutdown()
        server.server_close()


class _Handler(BaseHTTPRequestHandler):
    upstream: int
    parts: dict[str, dict[int, bytes]]
    numbers: itertools.count[int]
    protocol_version = "HTTP/1.1"

    def log_message(self, format: str, *args: Any) -> None:
        pass

    def do_GET(self) -> None:
        self._serve()

    do_HEAD = do_PUT = do_POST = do_DELETE = do_PATCH = do_GET  # noqa: N815

    def _serve(self) -> None:
        body = self._body()
        parts = urlsplit(self.path)
        bucket, _, name = parts.path.removeprefix("/").partition("/")
        if bucket in _OF_JSON:
            self._pass_on(body)
            return
        query = {key: values[0] for key, values in parse_qs(parts.query, keep_blank_values=True).items()}
        self._xml(unquote(bucket), unquote(name), query, body)

    def _body(self) -> bytes:
        if "chunked" not in self.headers.get("Transfer-Encoding", ""):
            return self.rfile.read(int(self.headers.get("Content-Length") or 0))
        found = b""
        while size := int(self.rfile.readline().split(b";")[0], 16):
            found += self.rfile.read(size)
            self.rfile.readline()
        self.rfile.readline()
        return found

    # --- what passes unchanged

    def _pass_on(self, body: bytes) -> None:
        headers = {name: value for name, value in self.headers.items() if name.lower() not in (*_HOP, "host")}
        status, sent, data = self._ask(self.command, self.path, body, headers | {"Host": self.headers["Host"]})
        self._answer(status, data, {name: value for name, value in sent.items() if name.lower() not in _HOP}, sent.get("Content-Length"))

    def _ask(self, method: str, path: str, body: bytes = b"", headers: dict[str, str] | None = None) -> tuple[int, Any, bytes]:
        connection = http.client.HTTPConnection("127.0.0.1", self.upstream, timeout=60)
        with contextlib.closing(connection):
            connection.request(method, path, body or None, headers or {})
            answer = connection.getresponse()
            return answer.status, answer.headers, answer.read()

    def _answer(self, status: int, data: bytes = b"", headers: dict[str, str] | None = None, length: str | None = None) -> None:
        self.send_response_only(status)
        for name, value in (headers or {}).items():
            self.send_header(name, value)
        is_head = self.command == "HEAD"
        self.send_header("Content-Length", str((length or 0) if is_head else len(data)))
        self.end_headers()
        if not is_head:
            self.wfile.write(data)

    # --- what is translated

    def _xml(self, bucket: str, name: str, query: dict[str, str], body: bytes) -> None:
        upload = query.get("uploadId", "")
        if not name:
            self._list(bucket, query)
        elif self.command == "PUT" and upload:
            self.parts[upload][int(query["partNumber"])] = body
            self._answer(200, headers={"ETag": f'"{query["partNumber"]}"'})
        elif self.command == "PUT" and "x-goog-copy-source" in self.headers:
            self._copy(bucket, name)
        elif self.command == "PUT":
            self._upload(bucket, name, body)
        elif self.command == "POST" and upload:
            parts = self.parts.pop(upload)
            self._upload(bucket, name, b"".join(parts[number] for number in sorted(parts)), whole=True)
        elif self.command == "POST":
            started = str(next(self.numbers))
            self.parts[started] = {}
            inner = f"<Bucket>{bucket}</Bucket><Key>{escape(name)}</Key><UploadId>{started}</UploadId>"
            self._answer(200, f"<InitiateMultipartUploadResult>{inner}</InitiateMultipartUploadResult>".encode())
        elif self.command == "DELETE":
            status, _, data = self._ask("DELETE", _object(bucket, name)) if not upload else (204, {}, b"")
            self._answer(204 if status < 300 else status, data if status >= 300 else b"")
        else:
            self._download(bucket, name)

    def _list(self, bucket: str, query: dict[str, str]) -> None:
        wanted = {name: query[name] for name in ("prefix", "delimiter") if name in query}
        after = query.get("start-after", "")
        asked = {**wanted, **({"pageToken": query["continuation-token"]} if "continuation-token" in query else {})}
        status, _, data = self._ask("GET", f"/storage/v1/b/{quote(bucket, safe='')}/o?{urlencode(asked)}")
        if status != 200:
            self._answer(status, data)
            return
        found = json.loads(data)
        inner = "".join(
            f"<Contents><Key>{escape(item['name'])}</Key><Size>{item['size']}</Size><LastModified>{item['updated']}</LastModified>"
            f"<ETag>{escape(_tag(item))}</ETag></Contents>"
            for item in found.get("items", ())
            if item["name"] > after
        )
        inner += "".join(f"<CommonPrefixes><Prefix>{escape(prefix)}</Prefix></CommonPrefixes>" for prefix in found.get("prefixes", ()))
        token = found.get("nextPageToken", "")
        inner += f"<NextContinuationToken>{escape(token)}</NextContinuationToken>" if token else ""
        self._answer(200, f"<ListBucketResult>{inner}</ListBucketResult>".encode(), {"Content-Type": "application/xml"})

    def _upload(self, bucket: str, name: str, body: bytes, *, whole: bool = False) -> None:
        asked = {"uploadType": "media", "name": name, **self._condition()}
        headers = {"Content-Type": self.headers.get("Content-Type") or "application/octet-stream", "Content-Length": str(len(body))}
        status, _, data = self._ask("POST", f"/upload/storage/v1/b/{quote(bucket, safe='')}/o?{urlencode(asked)}", body, headers)
        if status != 200:
            self._answer(status, data)
            return
        facts = self._facts(json.loads(data))
        inner = f"<CompleteMultipartUploadResult><ETag>{escape(facts['ETag'])}</ETag></CompleteMultipartUploadResult>" if whole else ""
        self._answer(200, inner.encode(), facts)

    def _copy(self, bucket: str, name: str) -> None:
        source, _, held = unquote(self.headers["x-goog-copy-source"]).removeprefix("/").partition("/")
        path = f"{_object(source, held)}/rewriteTo/b/{quote(bucket, safe='')}/o/{quote(name, safe='')}?{urlencode(self._condition())}"
        # The server does not look at conditions on copies.
        if self._condition() and self._ask("GET", _object(bucket, name))[0] == 200:
            self._answer(412)
            return
        status, _, data = self._ask("POST", path, b"{}", {"Content-Type": "application/json"})
        self._answer(status, b"" if status == 200 else data)

    def _download(self, bucket: str, name: str) -> None:
        status, _, data = self._ask("GET", _object(bucket, name))
        if status != 200:
            self._answer(status, data)
            return
        about = json.loads(data)
        if self.command == "HEAD":
            self._answer(200, headers=self._facts(about), length=about["size"])
            return
        headers = {name: self.headers[name] for name in ("Range",) if name in self.headers}
        status, sent, data = self._ask("GET", f"{_object(bucket, name)}?alt=media", headers=headers)
        span = {"Content-Range": sent["Content-Range"]} if "Content-Range" in sent else {}
        self._answer(status, data, self._facts(about) | span)

    def _condition(self) -> dict[str, str]:
        wanted = self.headers.get("x-goog-if-generation-match")
        return {} if wanted is None else {"ifGenerationMatch": wanted}

    def _facts(self, about: dict[str, Any]) -> dict[str, str]:
        at = datetime.fromisoformat(about["updated"])
        return {"ETag": _tag(about), "x-goog-generation": about["generation"], "Last-Modified": format_datetime(at, usegmt=True)}


def _object(bucket: str, name: str) -> str:
    return f"/storage/v1/b/{quote(bucket, safe='')}/o/{quote(name, safe='')}"


def _tag(about: dict[str, Any]) -> str:
    return f'"{about["generation"]}"'
