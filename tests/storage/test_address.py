"""URLs of stores: taken apart and put together again, or refused."""

from __future__ import annotations

import pytest

from writetime.errors import ConfigError
from writetime.storage import address, open_store


@pytest.mark.parametrize(
    ("url", "bucket", "path", "endpoint", "escaped"),
    [
        ("gs://lake", "lake", "", None, "gs://lake/"),
        ("gs://lake/a b/", "lake", "a b", None, "gs://lake/a%20b"),
        ("s3://lake/a%20b", "lake", "a%20b", None, "s3://lake/a%2520b"),
        ("s3+https://host:9000/lake/x/y", "lake", "x/y", "https://host:9000", "s3://lake/x/y"),
        ("s3+http://[::1]:9000/lake", "lake", "", "http://[::1]:9000", "s3://lake/"),
        ("/a b/c#d", "", "/a b/c#d", None, "/a b/c#d"),
        ("file:///a%20b", "", "/a%20b", None, "/a%20b"),
    ],
)
def test_a_url_is_taken_apart_and_put_together_again(url: str, bucket: str, path: str, endpoint: str | None, escaped: str) -> None:
    found = address.parse(url)
    assert (found.bucket, found.path, found.endpoint, found.escaped) == (bucket, path, endpoint, escaped)
    assert found.url == url.removeprefix("file://").rstrip("/")
    assert address.parse(found.url) == found
    assert open_store(url).url == found.url


def test_the_name_of_an_object_is_what_follows_the_bucket_whoever_serves_it() -> None:
    for root in ("gs://lake", "s3://lake", "s3+https://host/lake"):
        bucket, name = address.parse_object(f"{root}/cdc/team#1/x?.log")
        assert (bucket.url, name) == (root, "cdc/team#1/x?.log")
    with pytest.raises(ConfigError, match="is in no bucket"):
        address.parse_object("/cdc/x.log")


def test_a_childs_address_is_below() -> None:
    assert address.parse("s3+http://h/lake").child("state/x").url == "s3+http://h/lake/state/x"
    assert address.parse("/").child("state").url == "/state"


@pytest.mark.parametrize(
    ("url", "why"),
    [
        ("s3://", "`` is not the name of a bucket"),
        ("s3:/lake/x", "no kind of object store"),
        ("file:/lake/x", "no kind of object store"),
        ("S3://lake/x", "no kind of object store"),
        ("s3a://lake/x", "no kind of object store"),
        ("s3+https:///lake", "names no host"),
        ("s3+https://host", "not the name of a bucket"),
        ("s3://lake;x/y", "not the name of a bucket"),
        ("s3://lake\\x", "not the name of a bucket"),
        ("s3://arn:aws:s3:eu-west-1:1:accesspoint/x", "ends in -s3alias"),
        ("gs://lake/team#1/cdc", "`#` ends a name"),
        ("s3+https://host/lake/pre?x=1", "`.` ends a name"),
        ("s3://lake/a//b", "empty, `.` and `..` parts"),
        ("s3://lake//b", "empty, `.` and `..` parts"),
        ("gs://lake/./b", "empty, `.` and `..` parts"),
        ("gs://lake/.writetime", "reserved"),
        ("gs://lake/a\x7f", "control characters"),
        ("/lake/a\x7f", "control characters"),
        ("gs://lake/" + "x/" * 231, "more than 460 bytes"),
    ],
)
def test_what_not_every_part_can_reach_is_refused(url: str, why: str) -> None:
    with pytest.raises(ConfigError, match=why):
        address.parse(url)


@pytest.mark.parametrize("url", ["s3+https://user:password@host/lake", "s3://user:password@lake", "https://user:password@host/x"])
def test_an_account_in_a_url_is_not_repeated(url: str) -> None:
    with pytest.raises(ConfigError) as caught:
        address.parse(url)
    assert "password" not in str(caught.value)


@pytest.mark.parametrize(
    ("url", "why"),
    [("s3+https://host/lake", "s3.endpoint"), ("gs://lake/a#b", "`#` ends"), ("hdfs://host/lake#", None), ("/lake/a#b", None)],
)
def test_where_tables_cannot_lie(url: str, why: str | None) -> None:
    found = address.reason_no_warehouse(url)
    assert found is None if why is None else why in (found or "")
