"""What is particular to Google Cloud Storage: faults, lost answers, lies, and what an error says. Over the
stub."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.storage.gcs_stub import Stub
from writetime.errors import ChecksumMismatch, ConfigError, ObjectNotFound, PreconditionFailed, StoreError, StoreUnavailable
from writetime.storage import gcs, open_store, request_count
from writetime.storage.checksum import crc32c_of
from writetime.storage.gcs import GcsStore

BIG = 9 << 20


@pytest.fixture
def store(stub: Stub) -> GcsStore:
    return GcsStore("gs://bucket")


@pytest.fixture
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gcs, "_RETRY", gcs._RETRY.with_timeout(0.05).with_delay(initial=0.01))


@pytest.mark.parametrize("url", ["gs://", "gs:///prefix", "gcs://bucket"])
def test_urls_that_are_refused(url: str) -> None:
    with pytest.raises(ConfigError):
        open_store(url)


def test_a_passing_fault_is_ridden_out_by_the_library(store: GcsStore, stub: Stub, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gcs, "_RETRY", gcs._RETRY.with_delay(initial=0.01))
    stub.faults += [503, 429]
    store.put("a", b"1", if_generation=0)
    stub.faults += [500]
    assert store.read("a") == b"1"
    assert not stub.faults


@pytest.mark.usefixtures("impatient")
@pytest.mark.parametrize("code", [429, 500, 502, 503, 504])
def test_a_lasting_fault_is_retriable(store: GcsStore, stub: Stub, code: int) -> None:
    stub.objects.clear()
    for call in (
        lambda: store.put("a", b"1"),
        lambda: store.read("a"),
        lambda: store.head("a"),
        lambda: list(store.list()),
        lambda: store.delete("a"),
    ):
        stub.faults[:] = [code] * 100
        with pytest.raises(StoreUnavailable) as caught:
            call()
        assert caught.value.retriable
        assert caught.value.operation


@pytest.mark.parametrize("code", [401, 403])
def test_a_missing_permission_is_no_absence(store: GcsStore, stub: Stub, code: int) -> None:
    stub.faults += [code]
    with pytest.raises(StoreError, match=r"storage\.objects|credentials") as caught:
        store.head("a")
    assert not caught.value.retriable
    assert not isinstance(caught.value, ObjectNotFound)


@pytest.mark.parametrize("code", [403, 410])
def test_an_error_does_not_tell_the_id_of_an_upload(store: GcsStore, stub: Stub, code: int) -> None:
    """Whoever reads the log could write to the upload."""

    def refuse(request: str) -> None:
        if request.startswith("PUT"):
            assert "upload_id=secret-" in request
            stub.faults[:] = [code]

    stub.watch = refuse
    with pytest.raises(StoreError) as caught:
        store.put("a", b"x" * BIG)
    assert "upload_id=…" in str(caught.value)
    assert "secret" not in str(caught.value)


@pytest.mark.usefixtures("stub")
def test_a_missing_bucket_is_no_absence() -> None:
    store = open_store("gs://another")
    with pytest.raises(StoreError, match="bucket does not exist") as caught:
        store.head("a")
    assert not isinstance(caught.value, ObjectNotFound)


@pytest.mark.usefixtures("impatient")
def test_nobody_listens(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("STORAGE_EMULATOR_HOST", "http://127.0.0.1:9")
    with pytest.raises(StoreUnavailable):
        open_store("gs://bucket").head("a")


def test_no_credentials(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.delenv("STORAGE_EMULATOR_HOST", raising=False)
    monkeypatch.setenv("GOOGLE_APPLICATION_CREDENTIALS", str(tmp_path / "nowhere.json"))
    with pytest.raises(StoreError, match="GOOGLE_APPLICATION_CREDENTIALS"):
        open_store("gs://bucket").head("a")


@pytest.mark.parametrize("size", [5, BIG])
def test_a_store_that_holds_other_bytes(store: GcsStore, stub: Stub, size: int) -> None:
    stub.lie_about_crc = True
    with pytest.raises(ChecksumMismatch):
        store.put("a", b"x" * size)
    # The library would have deleted it by name; what is there is for a person to see.
    assert "a" in stub.objects


def test_a_damaged_download(store: GcsStore, stub: Stub) -> None:
    store.put("a", b"hello")
    stub.lie_about_crc = True
    with pytest.raises(ChecksumMismatch):
        store.read("a")


@pytest.mark.parametrize("size", [5, BIG])
def test_a_file_that_changes_between_checksum_and_upload(
    store: GcsStore, stub: Stub, size: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "f"
    path.write_bytes(b"x" * size)
    before = crc32c_of(path)
    monkeypatch.setattr(gcs, "measured", lambda _: before)
    path.write_bytes(b"y" * size)
    with pytest.raises(ChecksumMismatch):
        store.put("a", path)


def test_a_creation_that_is_forbidden_is_refused_for_what_is_there(store: GcsStore, stub: Stub) -> None:
    """Without the right to replace: the service may look at that before it looks at the condition."""
    store.put("a", b"1")
    refused = ["POST /upload/"]
    stub.watch = lambda request: stub.faults.append(403) if request.startswith(tuple(refused)) else None
    with pytest.raises(PreconditionFailed):
        store.put("a", b"2", if_generation=0)
    for name, condition in (("a", None), ("a", 7), ("b", 0)):
        with pytest.raises(StoreError, match=r"storage\.objects\.create"):
            store.put(name, b"2", if_generation=condition)
    refused.append("GET /storage/v1/b/bucket/o/")
    with pytest.raises(StoreError, match=r"storage\.objects\.create"):
        store.put("a", b"2", if_generation=0)


@pytest.mark.parametrize("size", [5, BIG])
def test_a_lost_answer_ends_in_a_failed_precondition_and_the_object_is_there(
    store: GcsStore, stub: Stub, size: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(gcs, "_RETRY", gcs._RETRY.with_delay(initial=0.01))
    data = b"x" * size
    if size < BIG:
        stub.lose_answers = 1
        with pytest.raises(PreconditionFailed):
            store.put("a", data, if_generation=0)
    else:
        store.put("a", data, if_generation=0)
        with pytest.raises(PreconditionFailed):
            store.put("a", data, if_generation=0)
    assert store.read("a") == data


def test_placeholders_of_folders_are_no_objects(store: GcsStore, stub: Stub) -> None:
    store.put("a/b", b"")
    stub.objects["a/"] = stub.objects["a/b"]
    assert [info.name for info in store.list()] == ["a/b"]


def test_a_prefix_keeps_stores_apart(stub: Stub) -> None:
    one, two = GcsStore("gs://bucket/one"), GcsStore("gs://bucket/one/two/")
    two.put("x", b"2")
    assert [info.name for info in one.list()] == ["two/x"]
    assert [info.name for info in two.list()] == ["x"]
    assert list(stub.objects) == ["one/two/x"]


def test_requests_are_counted(store: GcsStore) -> None:
    before = request_count.sent()
    store.put("counted", b"x")
    put = request_count.sent() - before
    assert (store.read("counted"), put >= 1) == (b"x", True)
    assert request_count.sent() - before > put
