"""Whatever a store answers, a call ends in the right value or in a StoreError: never in an error of a library
or of the parser.

Strategy: the stubs answer as the services do, and some of the answers are mangled on their way: fields that
are missing or of another kind, numbers that are none, checksums that are none, bodies that are cut or
replaced, redirects, status codes that nobody expects."""

from __future__ import annotations

import contextlib
import json
import logging
import os
import random
import re
from collections.abc import Callable, Iterator
from datetime import datetime
from pathlib import Path
from typing import Any

import pytest
from botocore.retries import standard
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.storage import gcs_stub, s3_stub
from tests.storage.http_stub import Answer
from writetime.errors import StoreError, StoreUnavailable
from writetime.storage import gcs
from writetime.storage import s3 as s3_module
from writetime.storage.checksum import crc32c
from writetime.storage.gcs import GcsStore
from writetime.storage.s3 import S3Store
from writetime.storage.store import ObjectInfo, Store

DATA = b"0123456789" * 10
BIG = bytes(9 << 20)
VALUES = ["", "x", "-1", "-0", "1e400", "NaN", "9" * 5000, "\u0661\u0662", "0x10", " 7 ", "null", "!!!!", "AAAA", "AAAAAAAAAAAA", "=="]
"""Texts in the place of numbers, times, tags and checksums."""
JSON_VALUES: list[Any] = [None, True, [], {}, [[]], {"a": 1}, -1, 0, 1.5, 10**400, *VALUES]
BODIES = [b"", b"null", b"[]", b"5", b"{", b"\xff\xfe", b"<html>", b"<a><b></a>", b"<Error/>", b"<Error><Code/></Error>", b"[" * 20_000]
STATUSES = [200, 201, 204, 206, 300, 301, 302, 304, 307, 308, 400, 403, 404, 409, 410, 412, 416, 418, 500, 503, 599, 700]
LOCATIONS = ["", "/", "http://", "http://127.0.0.1:1/", "ftp://x/", "http://[::1", "http://:port/", "//"]
HEADERS = (
    "ETag", "Last-Modified", "Content-Length", "Content-Type", "Content-Range", "Content-Encoding", "X-Goog-Hash", "X-Goog-Generation",
    "x-amz-checksum-crc32c", "x-amz-checksum-type", "x-amz-meta-writetime-generation", "Range", "Location", "x-amz-meta-%zz",
)  # fmt: skip


class Mangler:
    """Mangles the answers of one call, by a seed: each with that chance, in one or two ways."""

    def __init__(self, seed: int, share: float, ways: str = "body field field header header status cut") -> None:
        self._chance, self._share, self._ways = random.Random(seed), share, ways.split()

    def __call__(self, answer: Answer) -> Answer:
        if self._chance.random() >= self._share:
            return answer
        for _ in range(self._chance.randint(1, 2)):
            answer = getattr(self, f"_{self._chance.choice(self._ways)}")(answer)
        return answer

    def _body(self, answer: Answer) -> Answer:
        status, _, headers = answer
        return status, self._chance.choice(BODIES), {key: value for key, value in headers.items() if key != "Content-Length"}

    def _field(self, answer: Answer) -> Answer:
        """One field of a JSON document, or one element of XML, is gone or something else."""
        status, body, headers = answer
        try:
            document = json.loads(body)
        except ValueError:
            return status, self._element(body), headers
        holder = document
        while isinstance(holder, dict) and holder and self._chance.random() < 0.9:
            key = self._chance.choice(list(holder))
            inner = holder[key][0] if isinstance(holder[key], list) and holder[key] else holder[key]
            if isinstance(inner, dict) and self._chance.random() < 0.7:
                holder = inner
            elif self._chance.random() < 0.3:
                del holder[key]
                break
            else:
                holder[key] = self._chance.choice(JSON_VALUES)
                break
        return status, json.dumps(document).encode(), headers

    def _element(self, body: bytes) -> bytes:
        found = list(re.finditer(rb"<(\w+)>([^<]*)</\1>", body))
        if not found:
            return body
        match = self._chance.choice(found)
        value = self._chance.choice([v for v in VALUES if v.isprintable()]).encode()
        return body[: match.start()] + self._chance.choice([b"", b"<%s>%s</%s>" % (match[1], value, match[1])]) + body[match.end() :]

    def _header(self, answer: Answer) -> Answer:
        status, body, headers = answer
        name = self._chance.choice([*headers, *HEADERS])
        if self._chance.random() < 0.3:
            return status, body, {key: value for key, value in headers.items() if key != name}
        value = self._chance.choice([value for value in VALUES if value.isascii()])
        if name == "Content-Encoding":
            value = self._chance.choice(["gzip", "deflate", "br", "x"])
        if name == "X-Goog-Hash":
            value = self._chance.choice([value, f"crc32c={value}", "crc32c=AAAAAA==", "md5=x", "=", ","])
        return status, body, {**headers, name: self._chance.choice(LOCATIONS) if name == "Location" else value}

    def _status(self, answer: Answer) -> Answer:
        _, body, headers = answer
        return self._chance.choice(STATUSES), body, {**headers, "Location": self._chance.choice(LOCATIONS)}

    def _cut(self, answer: Answer) -> Answer:
        status, body, headers = answer
        return status, body[: self._chance.randint(0, len(body))], {**headers, "Content-Length": str(len(body))}


CALLS: dict[str, Callable[[Store, Path], Any]] = {
    "list": lambda store, _: list(store.list("a")),
    "head": lambda store, _: store.head("a/1"),
    "head of none": lambda store, _: store.head("a/none"),
    "read": lambda store, _: store.read("a/1"),
    "read a range": lambda store, _: store.read("a/1", start=3, end=7),
    "read an empty range": lambda store, _: store.read("a/1", start=3, end=3),
    "put": lambda store, _: store.put("b", DATA, metadata={"k": "v"}),
    "put if there is none": lambda store, _: store.put("c", DATA, if_generation=0),
    "put a file": lambda store, file: store.put("d", file, if_generation=0),
    "replace": lambda store, _: store.put("a/1", DATA, if_generation=7),
    "copy": lambda store, _: store.copy("a/1", "e"),
    "delete": lambda store, _: store.delete("a/2"),
}


@pytest.fixture(scope="module", autouse=True)
def hasty() -> Iterator[None]:
    """No waiting, and few attempts."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(gcs, "_RETRY", gcs._RETRY.with_timeout(0.05).with_delay(initial=0.001, maximum=0.002))
        patch.setattr(gcs, "_TIMEOUT", 5.0)
        patch.setattr(standard.ExponentialBackoff, "delay_amount", lambda *_: 0.0)
        patch.setattr(s3_module, "_ATTEMPTS", 2)
        patch.setattr(s3_module, "_ONE_REQUEST", 8 << 20)
        # What the libraries log of such answers is theirs.
        logging.disable(logging.CRITICAL)
        yield
        logging.disable(logging.NOTSET)


@pytest.fixture(scope="module")
def file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("answers") / "file"
    path.write_bytes(BIG)
    return path


EXAMPLES = int(os.environ.get("ANSWERS", "120"))
SEEDS = st.integers(0, 2**32)
SHARES = st.sampled_from([1.0, 0.5, 0.2])
FUZZ = settings(max_examples=EXAMPLES, suppress_health_check=[HealthCheck.function_scoped_fixture])


@FUZZ
@given(call=st.sampled_from(sorted(CALLS)), seed=SEEDS, share=SHARES)
def test_gcs(stub: gcs_stub.Stub, file: Path, call: str, seed: int, share: float) -> None:
    stub.mangle = lambda answer: answer
    store = GcsStore("gs://bucket")
    stub.objects = {f"a/{n}": gcs_stub.Held(DATA, 7, {"k": "v"}) for n in range(1, 6)}
    stub.mangle = Mangler(seed, share)
    require_right(lambda: CALLS[call](store, file))


@pytest.mark.thorough
@FUZZ
@given(call=st.sampled_from(sorted(CALLS)), seed=SEEDS, share=SHARES)
def test_s3(s3_memory: s3_stub.Stub, file: Path, call: str, seed: int, share: float) -> None:
    store = S3Store("s3://bucket")
    noted = {"writetime-generation": "7", "k": "v"}
    s3_memory.objects = {f"a/{n}": s3_stub.Held(DATA, noted, s3_stub.crc32c(DATA)) for n in range(1, 6)}
    s3_memory.mangle = Mangler(seed, share)
    require_right(lambda: CALLS[call](store, file))


@pytest.mark.thorough
@FUZZ
@given(seed=SEEDS)
def test_a_body_that_is_cut_or_replaced_is_never_taken_for_the_object(stub: gcs_stub.Stub, s3_memory: s3_stub.Stub, seed: int) -> None:
    """Whole objects are checked, so headers that are right are enough."""
    stub.objects = {"a/1": gcs_stub.Held(DATA, 7, {})}
    s3_memory.objects = {"a/1": s3_stub.Held(DATA, {}, s3_stub.crc32c(DATA))}
    stub.mangle, s3_memory.mangle = Mangler(seed, 1.0, "body cut"), Mangler(seed, 1.0, "body cut")
    for store in (GcsStore("gs://bucket"), S3Store("s3://bucket")):
        with contextlib.suppress(StoreError):
            assert store.read("a/1") == DATA


def test_a_listing_that_goes_round_in_circles_ends(stub: gcs_stub.Stub) -> None:
    def same_page(answer: Answer) -> Answer:
        status, body, headers = answer
        return status, json.dumps(json.loads(body) | {"nextPageToken": "a/1"}).encode(), headers

    stub.objects = {"a/1": gcs_stub.Held(DATA, 7, {})}
    stub.mangle = same_page
    with pytest.raises(StoreUnavailable, match="out of order"):
        list(GcsStore("gs://bucket").list())


def test_a_listing_that_breaks_off_is_not_taken_for_its_end(s3_memory: s3_stub.Stub, monkeypatch: pytest.MonkeyPatch) -> None:
    def without_token(answer: Answer) -> Answer:
        status, body, headers = answer
        return status, re.sub(rb"<NextContinuationToken>.*</NextContinuationToken>", b"", body), headers

    monkeypatch.setattr(s3_stub, "_PAGE", 2)
    s3_memory.objects = {f"a/{n}/x": s3_stub.Held(DATA, {}) for n in range(5)}
    assert len(list(S3Store("s3://bucket").names())) == 5
    s3_memory.mangle = without_token
    for listing in (S3Store("s3://bucket").names(), S3Store("s3://bucket").folders("a/")):
        with pytest.raises(StoreUnavailable, match="breaks off"):
            list(listing)


def test_a_service_that_does_not_know_where_to_begin_is_found_out(stub: gcs_stub.Stub, s3_memory: s3_stub.Stub) -> None:
    """Names from before would be taken for those of new segments."""
    stub.objects = {f"a/{n}": gcs_stub.Held(DATA, 7, {}) for n in range(3)}
    s3_memory.objects = {f"a/{n}": s3_stub.Held(DATA, {}) for n in range(3)}
    stores: tuple[Store, ...] = (GcsStore("gs://bucket"), S3Store("s3://bucket"))
    for store in stores:
        assert [each.name for each in store.names("a/", start_after="a/1")] == ["a/2"]
    stub.ignores = s3_memory.ignores = ("startOffset", "start-after")
    for store in stores:
        with pytest.raises(StoreUnavailable, match=r"listing (is out of order|begins before)"):
            list(store.names("a/", start_after="a/1"))


def require_right(call: Callable[[], Any]) -> None:
    """The call ends in a StoreError, or in values of the right kind. A write that is said to be done holds
    what was sent."""
    with contextlib.suppress(StoreError):
        found = call()
        if isinstance(found, list):
            assert [info.name for info in found] == sorted({info.name for info in found if info.name.startswith("a")})
        for each in found if isinstance(found, list) else [found]:
            assert each is None or isinstance(each, bytes) or _is_info(each), each


def _is_info(info: Any) -> bool:
    assert isinstance(info, ObjectInfo)
    numbers = (info.size, info.generation, info.crc32c)
    assert all(type(number) is int and number >= 0 for number in numbers), info
    assert info.crc32c < 2**32
    assert isinstance(info.created, datetime)
    assert info.created.tzinfo is not None
    assert all(isinstance(text, str) for pair in info.metadata.items() for text in pair), info
    if info.name in "bcd":
        sent = BIG if info.name == "d" else DATA
        assert (info.size, info.crc32c) == (len(sent), crc32c(sent))
    return True
