"""Uploads over slow and bad links: that they move is reported, and they go on where they broke off."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest

from tests.storage import gcs_stub, s3_stub
from writetime.errors import StoreUnavailable
from writetime.storage import gcs, progress, s3
from writetime.storage.checksum import CHUNK
from writetime.storage.gcs import GcsStore
from writetime.storage.s3 import S3Store

PARTS = 3
BIG = b"0123456789abcdef" * (PARTS * s3._PART // 16 - 1)
BLOCK = 256 << 10
"""More than the blocks in which libraries send a file."""


@pytest.fixture
def remote(s3_memory: s3_stub.Stub, stub: gcs_stub.Stub, request: pytest.FixtureRequest) -> S3Store | GcsStore:
    assert s3_memory.url
    assert stub.url
    return S3Store(f"s3://{s3_stub.BUCKET}") if request.param == "s3" else GcsStore(f"gs://{gcs_stub.BUCKET}")


@pytest.mark.parametrize("remote", ["s3", "gcs"], indirect=True)
@pytest.mark.parametrize("once", [True, False], ids=["at once", "in parts"])
def test_each_block_that_is_sent_is_progress(
    remote: S3Store | GcsStore, once: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if not once:
        monkeypatch.setattr(s3, "_ONE_REQUEST", 0)
    source = tmp_path / "source"
    # Google's library takes a request of its own for up to 8 MiB.
    source.write_bytes(BIG[: 6 << 20] if once else BIG)
    size = source.stat().st_size
    for data in (source, source.read_bytes()):
        moves: list[int] = []
        with progress.reported_to(lambda moves=moves: moves.append(1)):
            remote.put(f"object-{isinstance(data, bytes)}", data, if_generation=0)
        assert len(moves) - size / CHUNK > size / BLOCK, "apart from the checksum's reads"
    before = len(moves)
    remote.put("another", b"1")
    assert len(moves) == before, "nobody listens any more"


@pytest.fixture
def in_parts(s3_memory: s3_stub.Stub, monkeypatch: pytest.MonkeyPatch) -> S3Store:
    assert s3_memory.url
    monkeypatch.setattr(s3, "_ONE_REQUEST", 0)
    monkeypatch.setattr(s3, "_ATTEMPTS", 2)
    return S3Store(f"s3://{s3_stub.BUCKET}")


def break_off(memory: s3_stub.Stub, at: str) -> None:
    """From that request on the service is unavailable for writes."""

    def watch(request: str) -> None:
        if at in request:
            memory.only, memory.faults = {"PUT", "POST"}, [(503, "SlowDown")] * 100

    memory.watch = watch


def recover(memory: s3_stub.Stub) -> None:
    memory.watch = lambda _: None
    memory.faults.clear()


def sent_parts(memory: s3_stub.Stub) -> Counter[str]:
    return Counter(request.partition("partNumber=")[2].partition("&")[0] for request in memory.requests if "partNumber" in request)


def test_an_upload_in_parts_goes_on_where_it_broke_off(in_parts: S3Store, s3_memory: s3_stub.Stub) -> None:
    break_off(s3_memory, "partNumber=3")
    with pytest.raises(StoreUnavailable):
        in_parts.put("a", BIG, if_generation=0, metadata={"n": "1"})
    recover(s3_memory)
    made = in_parts.put("a", BIG, if_generation=0, metadata={"n": "1"})
    assert sent_parts(s3_memory) == {"1": 1, "2": 1, "3": 3}
    assert (in_parts.head("a"), in_parts.read("a")) == (made, BIG)
    assert not s3_memory.uploads


@pytest.mark.parametrize("other", [BIG[:-1], BIG], ids=["other bytes", "other metadata"])
def test_only_the_same_object_goes_on(in_parts: S3Store, s3_memory: s3_stub.Stub, other: bytes) -> None:
    break_off(s3_memory, "partNumber=2")
    with pytest.raises(StoreUnavailable):
        in_parts.put("a", BIG, if_generation=0)
    recover(s3_memory)
    in_parts.put("a", other, if_generation=0, metadata={"n": "2"})
    assert in_parts.read("a") == other
    assert sent_parts(s3_memory)["1"] == 2
    assert not s3_memory.uploads, "what is not gone on with is aborted"


def test_an_upload_that_the_service_forgot_begins_again(in_parts: S3Store, s3_memory: s3_stub.Stub) -> None:
    break_off(s3_memory, "partNumber=2")
    with pytest.raises(StoreUnavailable):
        in_parts.put("a", BIG, if_generation=0)
    recover(s3_memory)
    s3_memory.uploads.clear()
    with pytest.raises(StoreUnavailable, match="NoSuchUpload"):
        in_parts.put("a", BIG, if_generation=0)
    in_parts.put("a", BIG, if_generation=0)
    assert in_parts.read("a") == BIG


def test_after_a_request_that_broke_off_parts_are_sent(s3_memory: s3_stub.Stub, monkeypatch: pytest.MonkeyPatch) -> None:
    """A link over which no large request gets through."""
    monkeypatch.setattr(s3, "_ATTEMPTS", 2)
    store = S3Store(f"s3://{s3_stub.BUCKET}")

    def watch(request: str) -> None:
        if request.startswith("PUT") and "partNumber" not in request:
            raise ConnectionResetError("the link is down")

    s3_memory.watch = watch
    with pytest.raises(StoreUnavailable):
        store.put("a", BIG, if_generation=0)
    store.put("a", BIG, if_generation=0)
    assert store.read("a") == BIG
    assert sent_parts(s3_memory) == {"1": 1, "2": 1, "3": 1}


def test_a_chunk_is_sent_again_and_not_the_whole_object(stub: gcs_stub.Stub, monkeypatch: pytest.MonkeyPatch) -> None:
    """A slow link: one chunk takes longer than the time within which other requests are repeated."""
    monkeypatch.setattr(gcs, "_RETRY", gcs._RETRY.with_timeout(0.0))
    monkeypatch.setattr(gcs, "_RETRY_CHUNK", gcs._RETRY_CHUNK.with_delay(initial=0.01))
    chunks: list[str] = []

    def watch(request: str) -> None:
        if request.startswith("PUT"):
            chunks.append(request)
            if len(chunks) in (2, 3):
                stub.faults.append(503)

    stub.watch = watch
    GcsStore(f"gs://{gcs_stub.BUCKET}").put("a", BIG, if_generation=0)
    assert stub.objects["a"].data == BIG
    assert len(chunks) == -(-len(BIG) // gcs._CHUNK) + 2
