"""What is particular to S3: addresses, faults, lost answers, lies, objects that came another way, and what an
error says. Over the stub."""

from __future__ import annotations

import datetime
import ipaddress
import ssl
import sys
import uuid
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from botocore.retries import standard
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

import writetime.storage
from spark_jobs.state.places import reached
from tests import s3_server
from tests.storage import s3_stub
from tests.storage.s3_stub import Held, Stub
from writetime.errors import ChecksumMismatch, ConfigError, ObjectNotFound, PreconditionFailed, StoreError, StoreUnavailable
from writetime.storage import open_store, request_count
from writetime.storage import s3 as s3_module
from writetime.storage.checksum import crc32c, crc32c_of
from writetime.storage.s3 import S3Store
from writetime.storage.s3_endpoint import named_endpoint

PART = 1 << 16
BIG = b"0123456789abcdef" * (PART // 16 * 3) + b"end"


@pytest.fixture(autouse=True)
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    """Small parts, and no waiting between attempts."""
    for name in ("_ONE_REQUEST", "_PART", "_COPIED_PART"):
        monkeypatch.setattr(s3_module, name, PART)
    monkeypatch.setattr(standard.ExponentialBackoff, "delay_amount", lambda *_: 0.0)


@pytest.fixture
def store(s3_memory: Stub) -> S3Store:
    return S3Store(f"s3://{s3_stub.BUCKET}")


# --- addresses


@pytest.mark.parametrize(
    "url",
    ["s3://", "s3:///prefix", "s3+https://host", "s3+https://host/", "s3://user:word@bucket", "s3://bucket?x=y", "s3://b--use1-az4--x-s3"],
)
def test_urls_that_are_refused(url: str) -> None:
    with pytest.raises(ConfigError) as caught:
        open_store(url)
    assert "word" not in str(caught.value)


def test_without_the_library_it_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(sys.modules, "writetime.storage.s3")
    monkeypatch.delattr(writetime.storage, "s3")
    monkeypatch.setitem(sys.modules, "botocore", None)
    with pytest.raises(ConfigError, match=r"writetime\[s3\]"):
        open_store("s3://bucket")


def test_a_url_can_name_the_service(s3_memory: Stub, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("AWS_ENDPOINT_URL_S3")
    store = open_store(f"{s3_memory.url.replace('http', 's3+http')}/{s3_stub.BUCKET}/some/place/")
    store.put("a", b"1")
    assert list(s3_memory.objects) == ["some/place/a"]
    assert open_store(store.url).read("a") == b"1"


@pytest.mark.parametrize(
    "text",
    [
        "[default]\nendpoint_url = http://minio:9000\n",
        "[default]\nservices = here\n[services here]\ns3 =\n  endpoint_url = http://minio:9000\n",
        "[default]\nregion = x\n[profile lake]\nendpoint_url = http://minio:9000\n",
    ],
)
def test_every_client_reaches_the_service_that_the_librarys_files_name(text: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Lance and Iceberg do not read these files."""
    for name in ("AWS_ENDPOINT_URL_S3", "AWS_ENDPOINT_URL", "AWS_PROFILE"):
        monkeypatch.delenv(name, raising=False)
    (tmp_path / "config").write_text(text)
    monkeypatch.setenv("AWS_CONFIG_FILE", str(tmp_path / "config"))
    if "lake" in text:
        assert named_endpoint() is None
        monkeypatch.setenv("AWS_PROFILE", "lake")
    store = S3Store("s3://lake/cdc")
    # Conditions are probed, and the bucket is in the path.
    assert store._endpoint == store._client.meta.endpoint_url == "http://minio:9000"
    assert store._client.meta.config.s3 == {"addressing_style": "path"}
    assert (reached("s3://lake/cdc").options or {})["aws_endpoint_url_s3"] == "http://minio:9000"
    monkeypatch.setenv("AWS_ENDPOINT_URL_S3", "http://other:9000")
    assert S3Store("s3://lake/cdc")._endpoint == "http://other:9000"
    monkeypatch.delenv("AWS_ENDPOINT_URL_S3")
    monkeypatch.setenv("AWS_IGNORE_CONFIGURED_ENDPOINT_URLS", "true")
    assert named_endpoint() is None
    assert "amazonaws.com" in S3Store("s3://lake/cdc")._client.meta.endpoint_url


@pytest.mark.parametrize("no_proxy", ["127.0.0.0/8", "10.0.0.1, 127.0.0.1", "*"])
def test_no_proxy_knows_networks(no_proxy: str, s3_memory: Stub, monkeypatch: pytest.MonkeyPatch) -> None:
    """Lance's and the registry's clients know them, and would reach the service by another way."""
    for name in ("http_proxy", "HTTP_PROXY"):
        monkeypatch.setenv(name, "http://127.0.0.1:1")
    for name in ("no_proxy", "NO_PROXY"):
        monkeypatch.setenv(name, "10.0.0.0/8")
    with pytest.raises(StoreUnavailable, match="ProxyConnectionError"):
        S3Store(f"s3+{s3_memory.url}/{s3_stub.BUCKET}").head("x")
    for name in ("no_proxy", "NO_PROXY"):
        monkeypatch.setenv(name, no_proxy)
    assert S3Store(f"s3+{s3_memory.url}/{s3_stub.BUCKET}").head("x") is None


def test_tls_is_what_is_meant_without_a_word(monkeypatch: pytest.MonkeyPatch) -> None:
    s3_server.into_environment(monkeypatch, "minio.example:9000", "any", "any")
    assert S3Store("s3://bucket")._client.meta.endpoint_url == "https://minio.example:9000"
    monkeypatch.delenv("AWS_ENDPOINT_URL_S3")
    assert S3Store("s3://bucket")._client.meta.endpoint_url.startswith("https://s3.")


def test_a_prefix_keeps_stores_apart(s3_memory: Stub) -> None:
    one, two = S3Store("s3://bucket/one"), S3Store("s3://bucket/one/two/")
    two.put("x", b"2")
    assert [info.name for info in one.list()] == ["two/x"]
    assert [info.name for info in two.list()] == ["x"]
    assert list(s3_memory.objects) == ["one/two/x"]


def certificate(folder: Path) -> Path:
    """A key and a certificate of its own for 127.0.0.1, in one file."""
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "test")])
    now = datetime.datetime.now(datetime.UTC)
    made = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(1)
        .not_valid_before(now - datetime.timedelta(days=1))
        .not_valid_after(now + datetime.timedelta(days=1))
        .add_extension(x509.SubjectAlternativeName([x509.IPAddress(ipaddress.ip_address("127.0.0.1"))]), critical=False)
        .add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
        .sign(key, hashes.SHA256())
    )
    path = folder / "server.pem"
    form = serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    path.write_bytes(key.private_bytes(serialization.Encoding.PEM, *form) + made.public_bytes(serialization.Encoding.PEM))
    return path


def test_who_the_service_is_has_to_be_shown(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pem = certificate(tmp_path)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(pem)
    with s3_stub.running(context) as stub:
        s3_server.into_environment(monkeypatch, stub.url, "any", "any")
        with pytest.raises(StoreError, match="AWS_CA_BUNDLE") as caught:
            S3Store("s3://bucket").head("a")
        assert not caught.value.retriable
        monkeypatch.setenv("AWS_CA_BUNDLE", str(pem))
        assert S3Store("s3://bucket").put("a", BIG).size == len(BIG)
        assert stub.url.startswith("https://")


# --- faults

EVERY_CALL: dict[str, Callable[[S3Store], Any]] = {
    "put": lambda store: store.put("a", b"1"),
    "put in parts": lambda store: store.put("a", BIG),
    "read": lambda store: store.read("a"),
    "head": lambda store: store.head("a"),
    "list": lambda store: list(store.list()),
    "copy": lambda store: store.copy("a", "b"),
    "delete": lambda store: store.delete("a"),
}


PASSING = [(500, "InternalError"), (503, "SlowDown"), (429, "TooManyRequests"), (504, "")]


@pytest.mark.parametrize(("status", "code"), PASSING)
def test_passing_faults_are_ridden_out(store: S3Store, s3_memory: Stub, status: int, code: str) -> None:
    for call in EVERY_CALL.values():
        store.put("a", b"1")
        s3_memory.faults[:] = [(status, code)] * (s3_module._ATTEMPTS - 1)
        call(store)
        assert not s3_memory.faults
        s3_memory.objects.pop("b", None)


@pytest.mark.parametrize(("status", "code"), PASSING)
def test_a_lasting_fault_is_retriable(store: S3Store, s3_memory: Stub, status: int, code: str) -> None:
    store.put("a", b"1")
    for call in EVERY_CALL.values():
        s3_memory.faults[:] = [(status, code)] * 100
        with pytest.raises(StoreUnavailable) as caught:
            call(store)
        assert caught.value.retriable
        assert caught.value.operation


# What a look at an object ends in has no body, and so no code.
@pytest.mark.parametrize(
    ("status", "code", "hint", "hint_of_looks"),
    [
        (400, "ExpiredToken", "Renew the credentials", "Renew the credentials"),
        (403, "ExpiredToken", "Renew the credentials", "ListBucket"),
        (403, "AccessDenied", "ListBucket", "ListBucket"),
        (403, "InvalidAccessKeyId", "Renew the credentials", "ListBucket"),
        (403, "RequestTimeTooSkewed", "Set this machine's clock", "ListBucket"),
        (501, "NotImplemented", "lacks something", "lacks something"),
    ],
)
def test_what_a_person_has_to_settle_is_not_retriable(
    store: S3Store, s3_memory: Stub, status: int, code: str, hint: str, hint_of_looks: str
) -> None:
    store.put("a", b"1")
    for name, call in EVERY_CALL.items():
        s3_memory.faults[:] = [(status, code)] * 100
        with pytest.raises(StoreError, match=hint_of_looks if name in ("head", "copy", "delete") else hint) as caught:
            call(store)
        assert not caught.value.retriable
        assert not isinstance(caught.value, ObjectNotFound)


@pytest.mark.usefixtures("s3_memory")
@pytest.mark.advice("Create it, or correct `bucket`.")
def test_a_missing_bucket_is_no_absence() -> None:
    store = S3Store("s3://another")
    for call in EVERY_CALL.values():
        with pytest.raises(StoreError, match="bucket does not exist") as caught:
            call(store)
        assert not isinstance(caught.value, ObjectNotFound)
    assert S3Store("s3://bucket").head("a") is None


def test_nobody_listens(monkeypatch: pytest.MonkeyPatch) -> None:
    s3_server.into_environment(monkeypatch, "http://127.0.0.1:9", "any", "any")
    with pytest.raises(StoreUnavailable):
        S3Store("s3://bucket").head("a")


def test_no_credentials(monkeypatch: pytest.MonkeyPatch) -> None:
    s3_server.into_environment(monkeypatch, "http://127.0.0.1:9", "any", "any")
    monkeypatch.delenv("AWS_ACCESS_KEY_ID")
    monkeypatch.delenv("AWS_SECRET_ACCESS_KEY")
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    with pytest.raises(StoreError, match="AWS_ACCESS_KEY_ID") as caught:
        S3Store("s3://bucket").head("a")
    assert not caught.value.retriable


def test_a_download_that_breaks_off_is_begun_again(store: S3Store, s3_memory: Stub) -> None:
    store.put("a", BIG)
    s3_memory.truncate = 2
    assert store.read("a") == BIG
    s3_memory.truncate = 100
    with pytest.raises(StoreUnavailable):
        store.read("a")
    with pytest.raises(StoreUnavailable):
        store.read("a", start=5, end=500)


# --- answers that are lost


@pytest.mark.parametrize("data", [b"1", BIG], ids=["at once", "in parts"])
def test_a_write_whose_answer_was_lost_has_succeeded(store: S3Store, s3_memory: Stub, data: bytes) -> None:
    s3_memory.lose_answers = 1
    first = store.put("a", data, if_generation=0, metadata={"n": "1"})
    s3_memory.lose_answers = 1
    second = store.put("a", data, if_generation=first.generation, metadata={"n": "2"})
    assert s3_memory.lose_answers == 0
    assert (store.head("a"), store.read("a")) == (second, data)
    assert first.generation != second.generation
    assert not s3_memory.uploads


def test_of_two_who_send_parts_the_later_is_refused(store: S3Store, s3_memory: Stub) -> None:
    def overtake(request: str) -> None:
        if "partNumber=2" in request:
            s3_memory.watch = lambda _: None
            S3Store(store.url).put("a", b"first")

    s3_memory.watch = overtake
    with pytest.raises(PreconditionFailed):
        store.put("a", BIG, if_generation=0)
    assert store.read("a") == b"first"
    assert not s3_memory.uploads


@pytest.mark.parametrize("data", [b"1", BIG], ids=["at once", "in parts"])
def test_all_answers_are_lost(store: S3Store, s3_memory: Stub, data: bytes) -> None:
    """The object is there, whole: who asks again hears so."""

    def go_quiet(request: str) -> None:
        if not request.startswith("HEAD") and "uploads" not in request and "partNumber" not in request:
            s3_memory.only, s3_memory.faults = {"HEAD"}, [(503, "SlowDown")] * 100

    s3_memory.watch, s3_memory.lose_answers = go_quiet, 1
    with pytest.raises(StoreUnavailable):
        store.put("a", data, if_generation=0)
    s3_memory.watch, s3_memory.lose_answers = lambda _: None, 0
    s3_memory.faults.clear()
    with pytest.raises(PreconditionFailed):
        store.put("a", data, if_generation=0)
    assert store.read("a") == data


def test_a_conflict_leaves_it_open_who_wins(store: S3Store, s3_memory: Stub) -> None:
    s3_memory.only, s3_memory.faults = {"PUT"}, [(409, "ConditionalRequestConflict")]
    with pytest.raises(StoreUnavailable):
        store.put("a", b"1", if_generation=0)
    before = store.put("a", b"1", if_generation=0)
    s3_memory.faults = [(409, "ConditionalRequestConflict")]
    with pytest.raises(PreconditionFailed):
        store.put("a", b"2", if_generation=0)
    assert store.head("a") == before


def test_a_creation_that_is_forbidden_is_refused_for_what_is_there(store: S3Store, s3_memory: Stub) -> None:
    """A service can look at the right to replace before it looks at the condition."""
    s3_memory.only, s3_memory.faults = {"PUT"}, [(403, "AccessDenied")]
    with pytest.raises(StoreError, match="ListBucket") as free:
        store.put("a", b"1", if_generation=0)
    assert not isinstance(free.value, PreconditionFailed)
    first = store.put("a", b"1", if_generation=0)
    s3_memory.faults = [(403, "AccessDenied")]
    with pytest.raises(PreconditionFailed):
        store.put("a", b"2", if_generation=0)
    for condition in (None, first.generation):
        s3_memory.faults = [(403, "AccessDenied")]
        with pytest.raises(StoreError) as replaced:
            store.put("a", b"2", if_generation=condition)
        assert not isinstance(replaced.value, PreconditionFailed)
    assert store.read("a") == b"1"


def test_who_may_not_look_creates_all_the_same(store: S3Store, s3_memory: Stub, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without the right to list, an object that is not there looks forbidden: before an upload in parts, and
    after a conflict."""
    s3_memory.only, s3_memory.faults = {"HEAD"}, [(403, "AccessDenied")]
    assert store.put("a", BIG, if_generation=0).size == len(BIG)
    s3_memory.only, s3_memory.faults = {"PUT", "HEAD"}, [(409, "ConditionalRequestConflict"), (403, "AccessDenied")]
    with pytest.raises(StoreUnavailable):
        store.put("b", b"1", if_generation=0)
    s3_memory.only, s3_memory.faults = {"HEAD"}, [(503, "SlowDown")] * 100
    with pytest.raises(StoreUnavailable):
        store.put("c", BIG, if_generation=0)


@pytest.mark.parametrize("look", [1, 2])
def test_a_deletion_takes_only_what_was_looked_at(look: int, store: S3Store, s3_memory: Stub, monkeypatch: pytest.MonkeyPatch) -> None:
    first = store.put("a", b"1")
    real: Callable[..., Any] = S3Store._answer
    looks: list[Any] = []

    def overtaken(self: S3Store, name: str, operation: str) -> Any:
        found = real(self, name, operation)
        looks.extend([found] if operation.startswith("delete") else [])
        if operation.startswith("delete") and len(looks) == look:
            S3Store(self.url).put("a", b"2")
        return found

    monkeypatch.setattr(S3Store, "_answer", overtaken)
    with pytest.raises(PreconditionFailed):
        store.delete("a", if_generation=first.generation)
    assert s3_memory.objects["a"].data == b"2"


@pytest.mark.parametrize("torn", [1, 2])
def test_a_look_that_is_part_old_and_part_new_overwrites_nothing(
    torn: int, store: S3Store, s3_memory: Stub, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A service that reads generation and tag one after the other, and another writer in between."""
    first = store.put("a", b"1")
    real: Callable[..., Any] = S3Store._look
    looks: list[Any] = []

    def look(self: S3Store, name: str, operation: str) -> Any:
        looks.append(real(self, name, operation))
        if len(looks) != torn:
            return looks[-1]
        S3Store(self.url).put("a", b"2")
        return looks[torn - 1]._replace(tag=real(self, name, operation).tag)

    monkeypatch.setattr(S3Store, "_look", look)
    with pytest.raises(PreconditionFailed):
        store.put("a", b"3", if_generation=first.generation)
    assert s3_memory.objects["a"].data == b"2"


# --- uploads that break off


def test_an_upload_that_fails_is_called_off(store: S3Store, s3_memory: Stub, tmp_path: Path) -> None:
    path = tmp_path / "f"
    path.write_bytes(BIG)
    s3_memory.only, s3_memory.faults = {"PUT"}, [(403, "AccessDenied")]
    with pytest.raises(StoreError, match="ListBucket"):
        store.put("a", path)
    assert (s3_memory.objects, s3_memory.uploads) == ({}, {})
    assert store.put("a", path, if_generation=0).crc32c == crc32c(BIG)


def test_an_upload_that_somebody_calls_off_can_be_made_again(store: S3Store, s3_memory: Stub) -> None:
    s3_memory.only, s3_memory.faults = {"PUT"}, [(404, "NoSuchUpload")]
    with pytest.raises(StoreUnavailable):
        store.put("a", BIG)
    assert store.put("a", BIG, if_generation=0).size == len(BIG)


def test_what_is_there_already_is_not_sent(store: S3Store, s3_memory: Stub) -> None:
    store.put("a", BIG)
    s3_memory.requests.clear()
    with pytest.raises(PreconditionFailed, match="no object was expected"):
        store.put("a", BIG, if_generation=0)
    assert {request.split()[0] for request in s3_memory.requests} == {"HEAD"}


def test_many_parts_are_larger_ones(store: S3Store, s3_memory: Stub, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(s3_module, "_MOST_PARTS", 2)
    assert store.put("a", BIG).size == len(BIG)
    assert s3_memory.objects["a"].parts == 2


# --- lies, and objects that came another way


@pytest.mark.parametrize("data", [b"1", BIG], ids=["at once", "in parts"])
def test_a_store_that_holds_other_bytes(store: S3Store, s3_memory: Stub, data: bytes) -> None:
    s3_memory.lie_about_crc = True
    with pytest.raises(ChecksumMismatch):
        store.put("a", data)
    assert "a" in s3_memory.objects


@pytest.mark.parametrize("size", [5, len(BIG)])
def test_a_file_that_changes_between_checksum_and_upload(
    store: S3Store, s3_memory: Stub, size: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "f"
    path.write_bytes(b"x" * size)
    before = crc32c_of(path)
    monkeypatch.setattr(s3_module, "measured", lambda _: before)
    for changed in (b"y" * size, b"x" * (size - 1), b"x" * (size + 1)):
        path.write_bytes(changed)
        with pytest.raises(ChecksumMismatch):
            store.put("a", path)
        assert (s3_memory.objects, s3_memory.uploads) == ({}, {})


@pytest.mark.parametrize("size", [5, len(BIG)])
def test_an_object_is_created_without_the_right_to_list(store: S3Store, s3_memory: Stub, size: int) -> None:
    """Without it, the service answers 403 where there is no object."""

    def forbid(request: str) -> None:
        method, _, path = request.partition(" ")
        if method == "HEAD" and path.partition("?")[0].rpartition("/")[2] not in s3_memory.objects:
            s3_memory.faults[:] = [(403, "")]

    s3_memory.watch = forbid
    with pytest.raises(StoreError, match="ListBucket"):
        store.head("a")
    store.put("a", b"x" * size, if_generation=0)
    with pytest.raises(PreconditionFailed):
        store.put("a", b"y" * size, if_generation=0)
    assert store.read("a") == b"x" * size


def test_a_damaged_download(store: S3Store, s3_memory: Stub) -> None:
    store.put("a", b"hello")
    s3_memory.lie_about_crc = True
    with pytest.raises(ChecksumMismatch):
        store.read("a")


@pytest.mark.parametrize(("code", "kind"), [("AccessDenied", StoreError), ("InternalError", StoreUnavailable)])
def test_one_of_many_that_is_not_deleted(store: S3Store, s3_memory: Stub, code: str, kind: type[StoreError]) -> None:
    for name in "abc":
        store.put(name, b"1")
    (key,) = (each for each in s3_memory.objects if each.endswith("b"))
    s3_memory.undeletable[key] = code
    before = len(s3_memory.requests)
    with pytest.raises(kind, match=code) as caught:
        store.discard(["a", "b", "c"])
    assert (type(caught.value), caught.value.retriable) == (kind, kind is StoreUnavailable)
    assert str(caught.value).count("/b")
    assert len(s3_memory.requests) - before == 1
    assert [each.name for each in store.names()] == ["b"]


def test_what_others_wrote_is_measured_and_deleted_unread(store: S3Store, s3_memory: Stub) -> None:
    for number in range(3):
        s3_memory.objects[f"state/{number}"] = Held(BIG, {}, None)
    assert [(each.name, each.size) for each in store.names("state/")] == [(f"state/{number}", len(BIG)) for number in range(3)]
    store.delete("state/1")
    assert [each.name for each in store.names()] == ["state/0", "state/2"]
    read = [request for request in s3_memory.requests if request.startswith("GET") and "list-type" not in request]
    assert read == []


@pytest.mark.parametrize("crc", [None, "AAAAAA==-2"], ids=["none", "of its parts"])
def test_the_checksum_of_an_object_that_came_another_way(store: S3Store, s3_memory: Stub, crc: str | None) -> None:
    s3_memory.objects["by/hand"] = Held(BIG, {"note": "100%25"}, crc)
    info = store.head("by/hand")
    assert info is not None
    assert (info.size, info.crc32c, info.metadata) == (len(BIG), crc32c(BIG), {"note": "100%25"})
    assert list(store.list()) == [info]
    assert store.read("by/hand", generation=info.generation) == BIG
    assert store.copy("by/hand", "copied").crc32c == info.crc32c
    with pytest.raises(PreconditionFailed):
        store.put("by/hand", b"", if_generation=info.generation + 1)
    assert store.put("by/hand", b"x", if_generation=info.generation).generation != info.generation
    with pytest.raises(ObjectNotFound):
        store.read("by/hand", generation=info.generation)


def test_repair_by_hand_is_another_generation(store: S3Store, s3_memory: Stub) -> None:
    before = store.put("a", b"damaged")
    s3_memory.objects["a"] = Held(b"repaired", {})
    after = store.head("a")
    assert after is not None
    assert after.generation != before.generation
    s3_memory.objects["a"].at += 1
    assert store.head("a") != after


def test_placeholders_of_folders_are_no_objects(store: S3Store, s3_memory: Stub) -> None:
    store.put("a/b", b"")
    s3_memory.objects["a/"] = s3_memory.objects["a/b"]
    assert [info.name for info in store.list()] == ["a/b"]


def test_what_vanishes_while_it_is_listed_is_left_out(store: S3Store, s3_memory: Stub, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in "abc":
        store.put(name, b"")
    real: Callable[..., Any] = S3Store._look

    def late(self: S3Store, name: str, operation: str) -> Any:
        if name == "b":
            s3_memory.objects.pop("b", None)
        return real(self, name, operation)

    monkeypatch.setattr(S3Store, "_look", late)
    assert [info.name for info in store.list()] == ["a", "c"]


def test_metadata_come_back_as_they_were(store: S3Store) -> None:
    metadata = {
        "Upper.case": " ü two  blanks ",
        "per%cent": "100%25",
        "empty": "",
        "zeile": "a\r\nb: c",
        "sealed_at": "2026-01-01T00:00:00+00:00",
    }
    assert store.put("a", b"", metadata=metadata).metadata == metadata


def test_listing_is_lazy(store: S3Store, s3_memory: Stub, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(s3_module, "_LOOKS", 1)
    for number in range(20):
        store.put(f"{number:02d}", b"")
    s3_memory.requests.clear()
    listing = store.list()
    next(listing)
    assert sum(request.startswith("GET /bucket?") for request in s3_memory.requests) == 2
    assert len(list(listing)) == 19


# --- the same over a real server, as far as it goes


@pytest.fixture
def bucket(s3: s3_server.Server, monkeypatch: pytest.MonkeyPatch) -> str:
    for name in ("_ONE_REQUEST", "_PART"):
        # The least that a part may have.
        monkeypatch.setattr(s3_module, name, 5 << 20)
    bucket = f"t-{uuid.uuid4().hex}"
    s3.make_bucket(bucket)
    s3_server.into_environment(monkeypatch, s3.url, s3.access, s3.secret)
    return bucket


@pytest.mark.s3
@pytest.mark.parametrize("size", [5, 11 << 20])
def test_the_server_refuses_other_bytes(bucket: str, size: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "f"
    path.write_bytes(b"x" * size)
    before = crc32c_of(path)
    monkeypatch.setattr(s3_module, "measured", lambda _: before)
    path.write_bytes(b"y" * size)
    with pytest.raises(ChecksumMismatch, match="BadDigest"):
        S3Store(f"s3://{bucket}").put("a", path)
    assert S3Store(f"s3://{bucket}").head("a") is None


@pytest.mark.s3
def test_objects_of_other_clients(bucket: str, s3: s3_server.Server) -> None:
    client, store = s3.client(), S3Store(f"s3://{bucket}")
    client.put_object(Bucket=bucket, Key="plain", Body=b"hello", Metadata={"note": "theirs"})
    upload = {"Bucket": bucket, "Key": "parts"}
    upload["UploadId"] = client.create_multipart_upload(**upload)["UploadId"]
    pieces = [b"x" * (5 << 20), b"end"]
    tags = [client.upload_part(**upload, PartNumber=n, Body=piece)["ETag"] for n, piece in enumerate(pieces, 1)]
    client.complete_multipart_upload(**upload, MultipartUpload={"Parts": [{"PartNumber": n, "ETag": tag} for n, tag in enumerate(tags, 1)]})
    for name, data in (("plain", b"hello"), ("parts", b"".join(pieces))):
        info = store.head(name)
        assert info is not None
        assert (info.size, info.crc32c) == (len(data), crc32c(data))
        assert store.read(name, generation=info.generation) == data
        assert store.put(name, b"ours", if_generation=info.generation).generation != info.generation
    assert [info.size for info in store.list()] == [4, 4]


@pytest.mark.s3
def test_other_credentials_are_refused(bucket: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "wrong")
    for call in EVERY_CALL.values():
        with pytest.raises(StoreError, match=r"credentials|ListBucket") as caught:
            call(S3Store(f"s3://{bucket}"))
        assert not caught.value.retriable
        assert "wrong" not in str(caught.value)


def test_requests_are_counted(store: S3Store) -> None:
    before = request_count.sent()
    store.put("counted", b"x")
    put = request_count.sent() - before
    assert (store.read("counted"), put >= 1) == (b"x", True)
    assert request_count.sent() - before > put
