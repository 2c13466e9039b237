"""A small, strict S3 in memory: the REST API as far as S3Store uses it, with every condition and checksum
honoured.

It answers with faults on request, and as strictly where a test server is laxer. Signatures are not checked.
It is no model of the service's performance or of its permissions."""

from __future__ import annotations

import base64
import contextlib
import hashlib
import itertools
import re
import ssl
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from datetime import UTC, datetime
from email.utils import formatdate
from http.server import BaseHTTPRequestHandler
from typing import Any
from urllib.parse import parse_qs, quote, unquote, urlsplit
from xml.etree import ElementTree
from xml.sax.saxutils import escape

import google_crc32c

from tests.storage.http_stub import Answer, serving

BUCKET = "bucket"
_PAGE = 3
_AT = 1_767_225_600


class Refused(Exception):
    """An answer other than success."""

    def __init__(self, status: int, code: str, says: str = "refused") -> None:
        super().__init__(code)
        self.status = status
        self.code = code
        self.says = says


@dataclass
class Held:
    """An object. `crc` None: it came without a checksum; `parts`: of how many it is made, 0 for a plain
    one."""

    data: bytes
    metadata: dict[str, str]
    crc: str | None = None
    parts: int = 0
    at: float = _AT

    @property
    def tag(self) -> str:
        return f'"{hashlib.md5(self.data, usedforsecurity=False).hexdigest()}{f"-{self.parts}" if self.parts else ""}"'


@dataclass
class Upload:
    """An object in parts that is not complete."""

    key: str
    metadata: dict[str, str]
    parts: dict[int, bytes] = field(default_factory=dict)


@dataclass
class Stub:
    """The server's memory.

    `watch` is called with each request before it is answered. `faults` are (status, code) or (status, code, message) for the next
    requests, of those whose method is in `only`; `lose_answers` drops the answers to so many writes that were
    done; `truncate` breaks off so many downloads; `lie_about_crc` falsifies what it says it holds; `undeletable` are
    objects that stay when many are deleted, with the code of the refusal; `mangle`
    makes another answer of one; `ignores` are parameters that it does not know."""

    url: str = ""
    objects: dict[str, Held] = field(default_factory=dict)
    uploads: dict[str, Upload] = field(default_factory=dict)
    faults: list[tuple[int, str] | tuple[int, str, str]] = field(default_factory=list)
    only: set[str] = field(default_factory=lambda: {"GET", "HEAD", "PUT", "POST", "DELETE"})
    lose_answers: int = 0
    truncate: int = 0
    lie_about_crc: bool = False
    undeletable: dict[str, str] = field(default_factory=dict)
    requests: list[str] = field(default_factory=list)
    watch: Callable[[str], None] = lambda _: None
    mangle: Callable[[Answer], Answer] = lambda answer: answer
    ignores: tuple[str, ...] = ()
    lock: Any = field(default_factory=threading.RLock)
    numbers: Iterator[int] = field(default_factory=lambda: itertools.count(1))

    def require(self, key: str, headers: Any) -> None:
        held = self.objects.get(key)
        if headers.get("If-None-Match") == "*" and held is not None:
            raise Refused(412, "PreconditionFailed")
        wanted = headers.get("If-Match")
        if wanted is not None and held is None:
            raise Refused(404, "NoSuchKey")
        if wanted is not None and held is not None and wanted != held.tag:
            raise Refused(412, "PreconditionFailed")

    def find(self, key: str) -> Held:
        if key not in self.objects:
            raise Refused(404, "NoSuchKey")
        return self.objects[key]

    def upload(self, number: str) -> Upload:
        if number not in self.uploads:
            raise Refused(404, "NoSuchUpload")
        return self.uploads[number]


def crc32c(data: bytes) -> str:
    return base64.b64encode(google_crc32c.value(data).to_bytes(4, "big")).decode()


@contextlib.contextmanager
def running(tls: ssl.SSLContext | None = None) -> Iterator[Stub]:
    """A stub on a free loopback port, with one bucket named `bucket`."""
    stub = Stub()

    class Handler(_Handler):
        memory = stub

    with serving(Handler, tls) as stub.url:
        yield stub


class _Handler(BaseHTTPRequestHandler):
    memory: Stub
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True

    def log_message(self, format: str, *args: Any) -> None:
        """Quiet."""

    def do_GET(self) -> None:
        self._answer(self._get if self.key else self._list)

    def do_HEAD(self) -> None:
        self._answer(self._head)

    def do_PUT(self) -> None:
        self._answer(self._part if "uploadId" in self.query else self._put)

    def do_POST(self) -> None:
        self._answer(self._complete if "uploadId" in self.query else self._discard if "delete" in self.query else self._begin)

    def do_DELETE(self) -> None:
        self._answer(self._abort if "uploadId" in self.query else self._delete)

    def parse_request(self) -> bool:
        if not super().parse_request():
            return False
        url = urlsplit(self.path)
        asked = parse_qs(url.query, keep_blank_values=True)
        self.query = {key: values[0] for key, values in asked.items() if key not in self.memory.ignores}
        bucket, _, key = url.path.removeprefix("/").partition("/")
        self.bucket, self.key = unquote(bucket), unquote(key)
        return True

    def _answer(self, route: Any) -> None:
        self.body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        self.memory.requests.append(f"{self.command} {self.path}")
        self.memory.watch(self.memory.requests[-1])
        try:
            if self.memory.faults and self.command in self.memory.only:
                raise Refused(*self.memory.faults.pop(0))
            if self.bucket != BUCKET:
                raise Refused(404, "NoSuchBucket")
            with self.memory.lock:
                status, body, headers = route()
        except Refused as refusal:
            status, headers = refusal.status, {"Content-Type": "application/xml"}
            body = f"<Error><Code>{refusal.code}</Code><Message>{escape(refusal.says)}</Message></Error>".encode()
        if self.memory.lose_answers and status < 300 and self._makes_an_object_or_deletes_one():
            self.memory.lose_answers -= 1
            self.close_connection = True
            return
        before = headers
        status, body, headers = self.memory.mangle((status, body, headers))
        self.close_connection = self.close_connection or headers.get("Content-Length") != before.get("Content-Length")
        self.send_response(status)
        for key, value in {"Content-Length": str(len(body)), **headers}.items():
            self.send_header(key, value)
        self.end_headers()
        if self.memory.truncate and self.command == "GET" and self.key:
            self.memory.truncate -= 1
            body, self.close_connection = body[: len(body) // 2], True
        if self.command != "HEAD":
            # Who asked may have been killed.
            with contextlib.suppress(ConnectionError):
                self.wfile.write(body)

    def _makes_an_object_or_deletes_one(self) -> bool:
        return self.command == "DELETE" or (
            "partNumber" not in self.query and self.command in ("PUT", "POST") and "uploads" not in self.query
        )

    def _xml(self, name: str, inner: str) -> tuple[int, bytes, dict[str, str]]:
        return 200, f"<{name}>{inner}</{name}>".encode(), {"Content-Type": "application/xml"}

    # --- objects

    def _list(self) -> tuple[int, bytes, dict[str, str]]:
        after = (self.query.get("continuation-token") or self.query.get("start-after", "")).encode()
        keys = sorted((key for key in self.memory.objects if key.startswith(self.query.get("prefix", ""))), key=str.encode)
        keys = [key for key in keys if key.encode() > after]
        assert self.query["encoding-type"] == "url"
        inner = "<EncodingType>url</EncodingType>"
        size = min(_PAGE, int(self.query.get("max-keys", _PAGE)))
        folders, shown, last = set(), 0, ""
        for key in keys:
            first, slash, _ = key.removeprefix(self.query.get("prefix", "")).partition("/")
            folder = self.query.get("prefix", "") + first + slash if slash and self.query.get("delimiter") else ""
            # As the service does, go on behind a folder that an earlier page ended with.
            if folder and (folder in folders or (folder <= after.decode() and after.decode().startswith(folder))):
                last = key
                continue
            if shown == size:
                break
            folders |= {folder} if folder else set()
            shown, last = shown + 1, key
            inner += "" if folder else self._entry(key)
        more = bool(keys) and last != keys[-1]
        inner += "".join(f"<CommonPrefixes><Prefix>{escape(quote(each))}</Prefix></CommonPrefixes>" for each in sorted(folders))
        inner += f"<IsTruncated>{str(more).lower()}</IsTruncated>"
        inner += f"<NextContinuationToken>{escape(last)}</NextContinuationToken>" if more else ""
        return self._xml("ListBucketResult", inner)

    def _entry(self, key: str) -> str:
        held = self.memory.objects[key]
        at = f"{datetime.fromtimestamp(held.at, UTC):%Y-%m-%dT%H:%M:%S.000Z}"
        return f"<Contents><Key>{escape(quote(key))}</Key><Size>{len(held.data)}</Size><LastModified>{at}</LastModified></Contents>"

    def _facts(self, held: Held) -> dict[str, str]:
        headers = {"ETag": held.tag, "Last-Modified": formatdate(held.at, usegmt=True)}
        headers |= {f"x-amz-meta-{key}": value for key, value in held.metadata.items()}
        if held.crc is not None and self.headers.get("x-amz-checksum-mode") == "ENABLED" and not self.headers.get("Range"):
            headers["x-amz-checksum-crc32c"] = crc32c(b"another") if self.memory.lie_about_crc else held.crc
            headers["x-amz-checksum-type"] = "COMPOSITE" if "-" in held.crc else "FULL_OBJECT"
        return headers

    def _head(self) -> tuple[int, bytes, dict[str, str]]:
        if not self.key:
            return 200, b"", {}
        held = self.memory.find(self.key)
        return 200, b"", {**self._facts(held), "Content-Length": str(len(held.data))}

    def _get(self) -> tuple[int, bytes, dict[str, str]]:
        held = self.memory.find(self.key)
        self.memory.require(self.key, self.headers)
        wanted = re.fullmatch(r"bytes=(\d+)-(\d*)", self.headers.get("Range") or "")
        if wanted is None:
            return 200, held.data, self._facts(held)
        start, end = int(wanted[1]), int(wanted[2] or len(held.data) - 1)
        if start >= len(held.data):
            raise Refused(416, "InvalidRange")
        piece = held.data[start : end + 1]
        return 206, piece, {**self._facts(held), "Content-Range": f"bytes {start}-{start + len(piece) - 1}/{len(held.data)}"}

    def _sent_metadata(self) -> dict[str, str]:
        return {
            key.lower().removeprefix("x-amz-meta-"): value for key, value in self.headers.items() if key.lower().startswith("x-amz-meta-")
        }

    def _checked(self) -> str | None:
        sent: str | None = self.headers.get("x-amz-checksum-crc32c")
        if sent is not None and sent != crc32c(self.body):
            raise Refused(400, "BadDigest")
        return sent

    def _put(self) -> tuple[int, bytes, dict[str, str]]:
        self.memory.require(self.key, self.headers)
        held = Held(self.body, self._sent_metadata(), self._checked(), at=time.time())
        self.memory.objects[self.key] = held
        return 200, b"", {"ETag": held.tag}

    def _delete(self) -> tuple[int, bytes, dict[str, str]]:
        self.memory.require(self.key, self.headers)
        self.memory.objects.pop(self.key, None)
        return 204, b"", {}

    def _discard(self) -> tuple[int, bytes, dict[str, str]]:
        if not any(name.lower() == "content-md5" or name.lower().startswith("x-amz-checksum-") for name in self.headers):
            raise Refused(400, "InvalidRequest")
        root, errors = ElementTree.fromstring(self.body), ""
        keys = [each.text or "" for each in root.iter() if each.tag.rpartition("}")[2] == "Key"]
        if not 1 <= len(keys) <= 1000:
            raise Refused(400, "MalformedXML")
        for key in keys:
            if (code := self.memory.undeletable.get(key)) is not None:
                errors += f"<Error><Key>{escape(key)}</Key><Code>{code}</Code><Message>refused</Message></Error>"
            else:
                self.memory.objects.pop(key, None)
        return self._xml("DeleteResult", errors)

    # --- objects in parts

    def _begin(self) -> tuple[int, bytes, dict[str, str]]:
        if (self.headers.get("x-amz-checksum-algorithm"), self.headers.get("x-amz-checksum-type")) != ("CRC32C", "FULL_OBJECT"):
            raise Refused(400, "InvalidRequest")
        number = str(next(self.memory.numbers))
        self.memory.uploads[number] = Upload(self.key, self._sent_metadata())
        return self._xml("InitiateMultipartUploadResult", f"<UploadId>{number}</UploadId>")

    def _part(self) -> tuple[int, bytes, dict[str, str]]:
        upload = self.memory.upload(self.query["uploadId"])
        number = int(self.query["partNumber"])
        if (source := self.headers.get("x-amz-copy-source")) is None:
            if self._checked() is None:
                # The service would take it: the fault would show at the end only, after all parts.
                raise Refused(400, "InvalidRequest")
            upload.parts[number] = self.body
            return 200, b"", {"ETag": Held(self.body, {}).tag}
        held = self.memory.find(unquote(source).split("/", 1)[1])
        if self.headers.get("x-amz-copy-source-if-match") != held.tag:
            raise Refused(412, "PreconditionFailed")
        first, last = self.headers["x-amz-copy-source-range"].removeprefix("bytes=").split("-")
        piece = upload.parts[number] = held.data[int(first) : int(last) + 1]
        tag, crc = escape(Held(piece, {}).tag), crc32c(piece)
        return self._xml("CopyPartResult", f"<ETag>{tag}</ETag><ChecksumCRC32C>{crc}</ChecksumCRC32C>")

    def _complete(self) -> tuple[int, bytes, dict[str, str]]:
        upload = self.memory.upload(self.query["uploadId"])
        data = b""
        for part in ElementTree.fromstring(self.body):
            fields = {child.tag.rpartition("}")[2]: child.text or "" for child in part}
            piece = upload.parts[int(fields["PartNumber"])]
            if fields["ETag"] != Held(piece, {}).tag or fields["ChecksumCRC32C"] != crc32c(piece):
                raise Refused(400, "InvalidPart")
            data += piece
        self.memory.require(self.key, self.headers)
        if self.headers.get("x-amz-checksum-crc32c") != crc32c(data):
            raise Refused(400, "BadDigest")
        self.memory.objects[self.key] = Held(data, upload.metadata, crc32c(data), len(upload.parts), at=time.time())
        del self.memory.uploads[self.query["uploadId"]]
        return self._xml("CompleteMultipartUploadResult", f"<ETag>{escape(self.memory.objects[self.key].tag)}</ETag>")

    def _abort(self) -> tuple[int, bytes, dict[str, str]]:
        self.memory.upload(self.query["uploadId"])
        del self.memory.uploads[self.query["uploadId"]]
        return 204, b"", {}
