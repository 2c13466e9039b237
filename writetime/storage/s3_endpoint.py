"""The S3 service that the environment names, for every client of one. Without the library for S3."""

from __future__ import annotations

import os


def named_endpoint() -> str | None:
    """The service's URL, https by default. None: Amazon's."""
    named = os.environ.get("AWS_ENDPOINT_URL_S3") or os.environ.get("AWS_ENDPOINT_URL")
    return named if not named or "://" in named else f"https://{named}"
