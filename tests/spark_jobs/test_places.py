"""Where Lance finds a shard: in the store that `open_store` opens for the same URL."""

from __future__ import annotations

import pytest

from spark_jobs.state.places import reached

VARIABLES = ("AWS_ENDPOINT_URL", "AWS_ENDPOINT_URL_S3", "AWS_REGION", "AWS_DEFAULT_REGION", "STORAGE_EMULATOR_HOST")


@pytest.fixture(autouse=True)
def _plain(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in VARIABLES:
        monkeypatch.delenv(name, raising=False)


@pytest.mark.parametrize("url", ["/var/lib/state/b00000", "s3://bucket/state/b00000", "gs://bucket/state/b00000"])
def test_without_a_service_of_their_own_places_are_what_they_are(url: str) -> None:
    assert reached(url) == (url, None)


def test_the_host_in_a_url_is_the_service(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_ENDPOINT_URL_S3", "https://another.example")
    url, options = reached("s3+https://objects.example:9000/bucket/some/state/b00000")
    assert url == "s3://bucket/some/state/b00000"
    assert options is not None
    assert options["aws_endpoint_url_s3"] == "https://objects.example:9000"
    assert "aws_allow_http" not in options
    assert (reached("s3+http://127.0.0.1:9/bucket/x").options or {})["aws_allow_http"] == "true"


@pytest.mark.parametrize("name", ["AWS_ENDPOINT_URL", "AWS_ENDPOINT_URL_S3"])
def test_else_the_environment_may_name_one(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    monkeypatch.setenv(name, "objects.example")
    monkeypatch.setenv("AWS_REGION", "eu-central-1")
    url, options = reached("s3://bucket/state")
    assert (url, (options or {})["aws_endpoint_url_s3"]) == ("s3://bucket/state", "https://objects.example")
    assert (options or {})["aws_region"] == "eu-central-1"


def test_an_emulator_of_google_is_asked_without_credentials(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("STORAGE_EMULATOR_HOST", "http://127.0.0.1:9")
    options = reached("gs://bucket/state").options
    assert options == {"google_base_url": "http://127.0.0.1:9", "google_storage_token": "none", "allow_http": "true"}
