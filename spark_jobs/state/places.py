"""Where Lance finds a shard, and how it gets there: `reached`.

Strategy: Lance opens object stores by itself. It must reach the same one as `open_store`, whose URLs name a service's
host (`s3+https://host/bucket`), and whose environment may name one for all URLs; so both are handed to Lance. Not
credentials: it finds these where the services' own libraries look for them. It decodes the URL once, so it gets the
escaped one. Knows no shards."""

from __future__ import annotations

import os
from typing import NamedTuple

from writetime.storage import address
from writetime.storage.s3_endpoint import named_endpoint


class Place(NamedTuple):
    """A URL as Lance knows them, and Lance's options for its store; None: none."""

    url: str
    options: dict[str, str] | None


def reached(url: str) -> Place:
    """The place of a URL or path of our stores."""
    found = address.parse_place(url)
    emulator = os.environ.get("STORAGE_EMULATOR_HOST")
    if found.scheme == "s3" and (endpoint := found.endpoint or named_endpoint()):
        return Place(found.escaped, _at(endpoint))
    if found.scheme == "gs" and emulator:
        return Place(found.escaped, {"google_base_url": emulator, "google_storage_token": "none", "allow_http": "true"})
    return Place(found.escaped, None)


def _at(endpoint: str) -> dict[str, str]:
    # Requests are signed for a region, which a service other than Amazon's need not have.
    region = os.environ.get("AWS_REGION") or os.environ.get("AWS_DEFAULT_REGION") or "us-east-1"
    plain = {"aws_allow_http": "true"} if endpoint.startswith("http://") else {}
    return {"aws_endpoint_url_s3": endpoint, "aws_region": region, "aws_virtual_hosted_style_request": "false", **plain}
