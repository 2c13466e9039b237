"""Services that do not keep the conditions of writes and deletions are refused by name, before anything is overwritten."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests import s3_server
from tests.storage import s3_stub
from writetime.cli import main
from writetime.errors import PreconditionFailed, StoreError, StoreUnavailable
from writetime.storage import open_store
from writetime.storage import s3 as s3_module
from writetime.storage.lease import Lease
from writetime.storage.s3_conditions import Probe

URL = f"s3://{s3_stub.BUCKET}/some/place"
Headers = Any


@pytest.fixture
def stub(monkeypatch: pytest.MonkeyPatch) -> Iterator[s3_stub.Stub]:
    monkeypatch.setattr(s3_module, "_FAULTS", {})
    monkeypatch.setattr(s3_module, "_MAY_NOT_PROBE", set())
    with s3_stub.running() as stub:
        s3_server.into_environment(monkeypatch, stub.url, "any", "any")
        yield stub


def without(*ignored: str, of: tuple[str, ...] = ("PUT", "POST", "DELETE")) -> Callable[..., None]:
    """`Stub.require` of a service that ignores these headers of requests with these methods."""
    real = s3_stub.Stub.require

    def require(self: s3_stub.Stub, key: str, headers: Headers) -> None:
        method = self.requests[-1].partition(" ")[0]
        kept = {name: headers.get(name) for name in ("If-None-Match", "If-Match") if not (name in ignored and method in of)}
        real(self, key, kept)

    return require


def inverted(self: s3_stub.Stub, key: str, headers: Headers) -> None:
    if headers.get("If-None-Match") == "*" and key not in self.objects:
        raise s3_stub.Refused(412, "PreconditionFailed")


def creating(self: s3_stub.Stub, key: str, headers: Headers) -> None:
    """A service that looks at `If-Match` only where there is an object."""
    if key in self.objects or headers.get("If-None-Match") is not None:
        KEEPS(self, key, headers)


def strict_tags(self: s3_stub.Stub, key: str, headers: Headers) -> None:
    """A service that compares tags with other spellings."""
    KEEPS(self, key, headers)
    if headers.get("If-Match") is not None:
        raise s3_stub.Refused(412, "PreconditionFailed")


KEEPS = s3_stub.Stub.require
BROKEN = {
    "overwrites": (without("If-None-Match"), "ignores `If-None-Match: *` of a write"),
    "overwrites in parts": (without("If-None-Match", of=("POST",)), "ignores `If-None-Match: *` of the completion"),
    "inverted": (inverted, "refuses to create an object under `If-None-Match: *`"),
    "replaces": (without("If-Match"), "ignores `If-Match` of a write"),
    "replaces in parts": (without("If-Match", of=("POST",)), "ignores `If-Match` of the completion"),
    "creates": (creating, "creates an object that does not exist under `If-Match`"),
    "own tag": (strict_tags, "refuses a write under `If-Match`"),
    "deletes": (without("If-Match", of=("DELETE",)), "ignores `If-Match` of a deletion"),
}


@pytest.mark.parametrize("kind", BROKEN)
def test_a_service_that_does_not_keep_a_condition_is_refused_by_its_name(
    stub: s3_stub.Stub, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    require, said = BROKEN[kind]
    monkeypatch.setattr(s3_stub.Stub, "require", require)
    stub.objects["some/place/a"] = s3_stub.Held(b"first", {}, s3_stub.crc32c(b"first"))
    store = open_store(URL)
    for attempt in (
        lambda: store.put("a", b"second", if_generation=0),
        lambda: store.copy("a", "b"),
        lambda: store.delete("a"),
        lambda: Lease(store, "leases/x").__enter__(),
    ):
        with pytest.raises(StoreError, match="probe conditional writes") as refused:
            attempt()
        assert said in str(refused.value)
        assert not refused.value.retriable
    # Nothing was done, and nothing of the probe is left.
    assert {key: held.data for key, held in stub.objects.items()} == {"some/place/a": b"first"}
    assert stub.uploads == {}
    # Writes without a condition need none.
    assert store.put("c", b"any").size == 3


def test_a_service_that_keeps_them_is_probed_once_in_a_process(stub: s3_stub.Stub) -> None:
    first, second = open_store(URL), open_store(f"s3://{s3_stub.BUCKET}/elsewhere")
    info = first.put("a", b"first", if_generation=0)
    assert list(stub.objects) == ["some/place/a"]
    assert stub.uploads == {}
    assert any(" /bucket/some/place/probes/" in request for request in stub.requests)
    stub.requests.clear()
    first.put("a", b"second", if_generation=info.generation)
    second.put("a", b"other", if_generation=0)
    second.delete("a")
    assert not any("probes" in request for request in stub.requests)


def test_lost_answers_of_the_probe_are_no_refusals(stub: s3_stub.Stub) -> None:
    for lost in range(1, 4):
        stub.lose_answers = lost
        s3_module._FAULTS.clear()
        open_store(URL).put(f"a{lost}", b"first", if_generation=0)


def test_a_probe_that_gets_no_answer_decides_nothing(stub: s3_stub.Stub, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("botocore.retries.standard.ExponentialBackoff.delay_amount", lambda *_: 0.0)
    store = open_store(URL)
    stub.faults, stub.only = [(503, "SlowDown")] * 5, {"PUT"}
    with pytest.raises(StoreUnavailable) as down:
        store.put("a", b"first", if_generation=0)
    assert down.value.retriable
    assert s3_module._FAULTS == {}
    stub.faults = []
    assert store.put("a", b"first", if_generation=0).size == 5


def forbidden(monkeypatch: pytest.MonkeyPatch, real: Callable[..., None]) -> None:
    """A service where this account may write nothing under probes/."""

    def require(self: s3_stub.Stub, key: str, headers: Headers) -> None:
        if "/probes/" in key:
            raise s3_stub.Refused(403, "AccessDenied")
        real(self, key, headers)

    monkeypatch.setattr(s3_stub.Stub, "require", require)


def test_who_may_not_probe_creates_its_first_object_twice(stub: s3_stub.Stub, monkeypatch: pytest.MonkeyPatch) -> None:
    forbidden(monkeypatch, KEEPS)
    store = open_store(URL)
    made = store.put("a", b"first", if_generation=0, metadata={"of": "me"})
    assert store.head("a") == made
    assert (made.metadata, store.read("a")) == ({"of": "me"}, b"first")
    assert sum(request == "PUT /bucket/some/place/a" for request in stub.requests) == 2
    with pytest.raises(PreconditionFailed):
        store.put("a", b"second", if_generation=0)
    store.put("b", b"first", if_generation=0)
    assert sum(request == "PUT /bucket/some/place/b" for request in stub.requests) == 1
    assert sum("probes" in request and request.startswith("PUT") for request in stub.requests) == 1


def test_who_may_not_probe_refuses_a_service_that_overwrites(stub: s3_stub.Stub, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    forbidden(monkeypatch, without("If-None-Match"))
    segment = tmp_path / "segment"
    segment.write_bytes(b"x" * 1000)
    store = open_store(URL)
    for _ in range(2):
        with pytest.raises(StoreError, match="ignores `If-None-Match: \\*` of a write") as refused:
            store.put("a", segment, if_generation=0)
        assert not refused.value.retriable


def test_amazons_own_service_is_probed_on_request_only(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Probe, "fault", lambda _: pytest.fail("probed"))
    for endpoint in (None, "https://s3.eu-west-1.amazonaws.com", "https://bucket.vpce-1a2b.s3.eu-west-1.vpce.amazonaws.com/"):
        monkeypatch.setattr(s3_module, "named_endpoint", lambda: endpoint)  # noqa: B023
        assert s3_module.S3Store("s3://bucket")._keeps_conditions()


@pytest.mark.advice("`writetime config check --bucket` probes it again.")
def test_config_check_probes_the_bucket(
    stub: s3_stub.Stub, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "pipeline.yaml"
    file.write_text(f"pipeline: p\ncluster: {{name: ring, datacenters: [dc1]}}\nbucket: {URL}\n")

    def checked(*options: str) -> tuple[int, str]:
        return main(["config", "check", *options, str(file)]), capsys.readouterr().err

    assert checked("--bucket")[0] == 0
    assert any("probes" in request for request in stub.requests)
    monkeypatch.setattr(s3_stub.Stub, "require", without("If-Match", of=("DELETE",)))
    code, said = checked("--bucket")
    assert (code, "ignores `If-Match` of a deletion" in said) == (1, True)
    assert checked()[0] == 0
    monkeypatch.setattr(s3_stub.Stub, "require", KEEPS)
    assert checked("--bucket")[0] == 0
    # What such a service said before counts no more.
    open_store(URL).put("a", b"first", if_generation=0)
