"""Credentials that are rotated, or come later than the first request, count without a restart."""

from __future__ import annotations

import base64
import contextlib
import functools
import json
import os
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs

import pytest
from botocore.credentials import Credentials
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import rsa

from tests.storage import gcs_stub, s3_stub
from writetime.errors import StoreError
from writetime.storage import gcs, open_store, s3, s3_credentials
from writetime.storage.s3_credentials import EVERY, SOON, LiveCredentials
from writetime.storage.store import Store

BUCKET = f"s3://{s3_stub.BUCKET}"


class Clock:
    now = 1000.0

    def __call__(self) -> float:
        return self.now


class Service:
    """An S3 service that accepts some keys."""

    def __init__(self, stub: s3_stub.Stub, monkeypatch: pytest.MonkeyPatch, refuses_with: tuple[int, str]) -> None:
        self.stub = stub
        self.valid = {"KEY1"}
        self.asked: Counter[str] = Counter()
        real = s3_stub._Handler._put
        real_part = s3_stub._Handler._part
        service = self

        def checked(route: Any) -> Any:
            def answer(handler: Any) -> Any:
                key = (handler.headers.get("Authorization") or "").partition("Credential=")[2].partition("/")[0]
                service.asked[key] += 1
                if key not in service.valid:
                    raise s3_stub.Refused(*refuses_with)
                return route(handler)

            return answer

        monkeypatch.setattr(s3_stub._Handler, "_put", checked(real))
        monkeypatch.setattr(s3_stub._Handler, "_part", checked(real_part))


@pytest.fixture
def environment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An environment without credentials; returns the path of the credentials file that it names."""
    for name in [name for name in os.environ if name.startswith("AWS_")]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("AWS_CONFIG_FILE", os.devnull)
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    file = tmp_path / "credentials"
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", str(file))
    return file


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock()
    monkeypatch.setattr(s3, "LiveCredentials", functools.partial(LiveCredentials, clock=clock))
    return clock


@pytest.fixture(params=[(400, "ExpiredToken"), (403, "InvalidAccessKeyId"), (403, "AccessDenied"), (403, "SignatureDoesNotMatch")])
def service(request: pytest.FixtureRequest, environment: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Service]:
    with s3_stub.running() as stub:
        monkeypatch.setenv("AWS_ENDPOINT_URL_S3", stub.url)
        yield Service(stub, monkeypatch, request.param)


def write(file: Path, key: str) -> None:
    file.write_text(f"[default]\naws_access_key_id = {key}\naws_secret_access_key = hidden-{key}\naws_session_token = token\n")


def refused(put: Callable[[], object]) -> StoreError:
    with pytest.raises(StoreError) as caught:
        put()
    assert "hidden" not in str(caught.value)
    return caught.value


def test_a_file_that_is_rotated(service: Service, environment: Path, clock: Clock) -> None:
    write(environment, "KEY1")
    store = open_store(BUCKET)
    store.put("a", b"1")
    service.valid = {"KEY2"}
    refused(lambda: store.put("a", b"2"))
    assert service.asked == {"KEY1": 2}, "what is refused is not repeated with the same key"
    write(environment, "KEY2")
    clock.now += SOON
    store.put("a", b"3")
    assert (service.asked, store.read("a")) == ({"KEY1": 3, "KEY2": 1}, b"3")
    store.put("a", b"4")
    assert service.asked["KEY1"] == 3


def test_a_file_that_is_rotated_before_the_old_key_expires(environment: Path, clock: Clock, monkeypatch: pytest.MonkeyPatch) -> None:
    with s3_stub.running() as stub:
        monkeypatch.setenv("AWS_ENDPOINT_URL_S3", stub.url)
        service = Service(stub, monkeypatch, (403, "AccessDenied"))
        service.valid = {"KEY1", "KEY2"}
        write(environment, "KEY1")
        store = open_store(BUCKET)
        store.put("a", b"1")
        for broken in ("", "[default]\naws_access_key_id = KEY3\n", "[def", "\xff"):
            environment.write_text(broken, encoding="latin-1")
            clock.now += EVERY
            store.put("a", b"2")
        assert service.asked == {"KEY1": 5}, "a file that is being written leaves the last key"
        write(environment, "KEY2")
        clock.now += EVERY
        store.put("a", b"3")
        assert service.asked == {"KEY1": 5, "KEY2": 1}


def test_a_key_that_expires_in_the_middle_of_an_upload(
    service: Service, environment: Path, clock: Clock, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("_ONE_REQUEST", "_PART"):
        monkeypatch.setattr(s3, name, 1 << 16)
    path = tmp_path / "file"
    path.write_bytes(os.urandom(4 << 16))
    write(environment, "KEY1")
    store = open_store(BUCKET)
    store.put("first", b"")
    parts = []

    def rotate(request: str) -> None:
        if "partNumber=" in request:
            parts.append(request)
            if len(parts) == 2:
                service.valid = {"KEY2"}
                write(environment, "KEY2")
                clock.now += SOON

    service.stub.watch = rotate
    store.put("big", path)
    assert store.read("big") == path.read_bytes()
    assert len(parts) == 5, "one part was sent again"


def test_a_file_that_is_written_later(service: Service, environment: Path, clock: Clock) -> None:
    store = open_store(BUCKET)
    assert "credentials" in str(refused(lambda: store.put("a", b"1")))
    write(environment, "KEY1")
    clock.now += SOON
    store.put("a", b"2")
    assert store.read("a") == b"2"


def test_threads_that_are_refused_at_once(environment: Path, clock: Clock, monkeypatch: pytest.MonkeyPatch) -> None:
    """The first finds the new key, and the others use it too."""
    with s3_stub.running() as stub:
        monkeypatch.setenv("AWS_ENDPOINT_URL_S3", stub.url)
        service = Service(stub, monkeypatch, (403, "InvalidAccessKeyId"))
        write(environment, "KEY1")
        store = open_store(BUCKET)
        store.put("a", b"1")
        service.valid = {"KEY2"}
        write(environment, "KEY2")
        clock.now += SOON
        failed: list[Exception] = []

        def put(number: int) -> None:
            try:
                store.put(f"b{number}", b"2")
            except StoreError as error:
                failed.append(error)

        threads = [threading.Thread(target=put, args=(number,)) for number in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert failed == []


class _Metadata(BaseHTTPRequestHandler):
    """The metadata service of a machine with a role."""

    def log_message(self, *_: Any) -> None: ...

    def _say(self, text: str) -> None:
        self.send_response(200)
        self.send_header("Content-Length", str(len(text)))
        self.end_headers()
        self.wfile.write(text.encode())

    def do_PUT(self) -> None:
        self._say("token")

    def do_GET(self) -> None:
        if self.path.rstrip("/").endswith("security-credentials"):
            self._say("role")
            return
        until = (datetime.now(UTC) + timedelta(hours=6)).strftime("%Y-%m-%dT%H:%M:%SZ")
        keys = {"AccessKeyId": "KEY1", "SecretAccessKey": "hidden", "Token": "t", "LastUpdated": until, "Expiration": until}
        self._say(json.dumps({"Code": "Success", "Type": "AWS-HMAC", **keys}))


@contextlib.contextmanager
def serving(handler: type[BaseHTTPRequestHandler], port: int = 0) -> Iterator[str]:
    server = ThreadingHTTPServer(("127.0.0.1", port), handler)
    server.daemon_threads = True
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        yield f"http://127.0.0.1:{server.server_address[1]}"
    finally:
        server.shutdown()
        server.server_close()


def test_a_role_that_answers_later(environment: Path, clock: Clock, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("AWS_EC2_METADATA_DISABLED")
    monkeypatch.setenv("AWS_METADATA_SERVICE_TIMEOUT", "1")
    with s3_stub.running() as stub:
        monkeypatch.setenv("AWS_ENDPOINT_URL_S3", stub.url)
        service = Service(stub, monkeypatch, (403, "InvalidAccessKeyId"))
        with serving(_Metadata) as url:
            pass
        monkeypatch.setenv("AWS_EC2_METADATA_SERVICE_ENDPOINT", f"{url}/")
        store = open_store(BUCKET)
        refused(lambda: store.put("a", b"1"))
        with serving(_Metadata, int(url.rpartition(":")[2])):
            clock.now += SOON
            store.put("a", b"2")
        store.put("a", b"3")
        assert service.asked == {"KEY1": 2}


def test_credentials_are_not_looked_for_at_every_request() -> None:
    clock, asked = Clock(), []

    def find(method: str | None) -> Any:
        asked.append(clock.now)
        return None if method is None else Credentials("KEY1", "hidden", None, method)

    def requests(method: str | None, seconds: int) -> int:
        live = LiveCredentials(functools.partial(find, method), clock)
        del asked[:]
        for _ in range(seconds):
            clock.now += 1
            for _ in range(3):
                with contextlib.suppress(Exception):
                    live.get_frozen_credentials()
                    live.retry_if_renewed((None, {"Error": {"Code": "AccessDenied"}}) if method == "env" else None)
        return len(asked)

    assert requests("shared-credentials-file", 60) == 2
    assert requests(None, 60) == 12
    assert requests("custom-process", 60) == 1, "a program without an expiry is asked once"
    assert requests("env", 60) == 1, "refused, and a process keeps its environment"


def test_what_the_library_finds_is_found(environment: Path) -> None:
    assert s3_credentials._found() is None
    write(environment, "KEY1")
    assert s3_credentials._found().access_key == "KEY1"


# --- Google


@pytest.fixture
def google(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[tuple[Path, set[str], Callable[[str], None]]]:
    """(key file, ids of keys that are valid, what writes the file); tokens last for no time."""
    valid: set[str] = {"1"}
    secret = rsa.generate_private_key(65537, 2048)
    pem = secret.private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()).decode()

    class Tokens(BaseHTTPRequestHandler):
        def log_message(self, *_: Any) -> None: ...

        def do_POST(self) -> None:
            sent = parse_qs(self.rfile.read(int(self.headers["Content-Length"])).decode())
            head = sent["assertion"][0].partition(".")[0]
            key = json.loads(base64.urlsafe_b64decode(head + "=="))["kid"]
            good = {"access_token": "hidden", "expires_in": 1, "token_type": "Bearer"}
            bad = {"error": "invalid_grant", "error_description": "Invalid JWT Signature."}
            body = json.dumps(good if key in valid else bad).encode()
            self.send_response(200 if key in valid else 400)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

    file = tmp_path / "key.json"
    with gcs_stub.running() as stub, serving(Tokens) as tokens:

        def write_key(number: str) -> None:
            about = {"type": "service_account", "project_id": "p", "client_email": "node@p.iam", "client_id": "1"}
            file.write_text(json.dumps({**about, "private_key_id": number, "private_key": pem, "token_uri": f"{tokens}/token"}))

        monkeypatch.delenv("STORAGE_EMULATOR_HOST", raising=False)
        monkeypatch.setenv("GOOGLE_APPLICATION_CREDENTIALS", str(file))
        monkeypatch.setenv("NO_GCE_CHECK", "true")
        real = gcs.storage.Client
        monkeypatch.setattr(gcs.storage, "Client", functools.partial(real, client_options={"api_endpoint": stub.url}))
        yield file, valid, write_key


def test_a_google_key_file_that_is_rotated(google: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    file, valid, write_key = google
    clock = Clock()
    monkeypatch.setattr(gcs.time, "monotonic", clock)
    write_key("1")
    store: Store = open_store(f"gs://{gcs_stub.BUCKET}")
    store.put("a", b"1")
    valid.clear()
    valid.add("2")
    refused(lambda: store.put("a", b"2"))
    write_key("2")
    clock.now += 31
    store.put("a", b"3")
    assert store.read("a") == b"3"
    file.write_text("{")
    clock.now += 31
    store.put("a", b"4")
    assert store.read("a") == b"4", "a file that is being written leaves the last key"


def test_a_google_key_file_that_is_written_later(google: Any) -> None:
    _, _, write_key = google
    store = open_store(f"gs://{gcs_stub.BUCKET}")
    refused(lambda: store.put("a", b"1"))
    write_key("1")
    store.put("a", b"2")
    assert store.read("a") == b"2"
