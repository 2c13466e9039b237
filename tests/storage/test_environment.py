"""What the environment of a store's client says, and the client refuses: an error of ours that names it, is final, and shows no
password. Nothing is connected."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from writetime.errors import StoreError, StoreUnavailable
from writetime.storage import open_store

S3 = "s3://lake"


@pytest.fixture(autouse=True)
def plain(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [name for name in os.environ if name.upper().startswith(("AWS_", "HTTP", "NO_PROXY", "ALL_PROXY", "GOOGLE_", "STORAGE_"))]:
        monkeypatch.delenv(name)
    for name in ("AWS_CONFIG_FILE", "AWS_SHARED_CREDENTIALS_FILE"):
        monkeypatch.setenv(name, os.devnull)
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "me")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "hunter2")


@pytest.mark.parametrize(
    ("variable", "value", "named"),
    [
        ("AWS_ENDPOINT_URL_S3", "http://", "AWS_ENDPOINT_URL_S3"),
        ("AWS_ENDPOINT_URL_S3", "http://a b:9", "AWS_ENDPOINT_URL_S3"),
        ("AWS_ENDPOINT_URL_S3", "ftp://127.0.0.1:9", "AWS_ENDPOINT_URL_S3"),
        ("AWS_ENDPOINT_URL_S3", "https://u:hunter2@a b", "AWS_ENDPOINT_URL_S3"),
        ("AWS_CA_BUNDLE", "", "AWS_CA_BUNDLE"),
        ("AWS_PROFILE", "nobody", "AWS_PROFILE"),
        ("AWS_REGION", "eu west 1", "AWS_REGION"),
        ("HTTPS_PROXY", "socks5://u:hunter2@127.0.0.1:9", "HTTPS_PROXY"),
        ("HTTPS_PROXY", "http://u:hunter2#x@127.0.0.1:9", "HTTPS_PROXY"),
        ("HTTPS_PROXY", "u:hunter2@127.0.0.1:port", "HTTPS_PROXY"),
    ],
)
@pytest.mark.advice("Correct what the environment or the library's files say")
def test_what_a_client_of_s3_refuses(monkeypatch: pytest.MonkeyPatch, variable: str, value: str, named: str) -> None:
    monkeypatch.setenv(variable, value)
    with pytest.raises(StoreError) as caught:
        open_store(S3).head("a")
    assert (type(caught.value), caught.value.retriable) == (StoreError, False)
    assert named in str(caught.value)
    assert "hunter2" not in str(caught.value)


@pytest.mark.advice("Name an HTTP proxy, or list the store's host in NO_PROXY.")
def test_a_proxy_that_is_not_for_the_store(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HTTP_PROXY", "socks5://127.0.0.1:9")
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")
    with pytest.raises(StoreUnavailable, match="Could not connect to the endpoint URL"):
        open_store("s3+http://127.0.0.1:9/lake").head("a")


def test_a_broken_file_of_the_library(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "config").write_text("[default\nregion = x\n")
    monkeypatch.setenv("AWS_CONFIG_FILE", str(tmp_path / "config"))
    with pytest.raises(StoreError, match=r"ConfigParseError.*AWS_CONFIG_FILE"):
        open_store(S3).head("a")


def test_a_place_of_google_without_a_scheme(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("STORAGE_EMULATOR_HOST", "127.0.0.1:9")
    with pytest.raises(StoreError, match="STORAGE_EMULATOR_HOST") as caught:
        open_store("gs://lake").head("a")
    assert not caught.value.retriable
