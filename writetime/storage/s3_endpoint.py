"""The S3 service that the environment names, or the library's files (`endpoint_url` in ~/.aws/config), for every client of
one: Lance and Iceberg do not read these files, and would ask Amazon's service. The library for S3 is not needed."""

from __future__ import annotations

import os
from functools import lru_cache
from importlib.util import find_spec

_FILES = ("HOME", "AWS_CONFIG_FILE", "AWS_PROFILE", "AWS_DEFAULT_PROFILE", "AWS_IGNORE_CONFIGURED_ENDPOINT_URLS")
"""The environment that says which file is read, and what of it."""


def named_endpoint() -> str | None:
    """The service's URL, https by default. None: Amazon's."""
    named = os.environ.get("AWS_ENDPOINT_URL_S3") or os.environ.get("AWS_ENDPOINT_URL")
    named = named or _in_files(tuple(os.environ.get(name) for name in _FILES))
    return named if not named or "://" in named else f"https://{named}"


@lru_cache(maxsize=8)
def _in_files(_: tuple[str | None, ...]) -> str | None:
    """The URL in the library's files as they are now."""
    if find_spec("botocore") is None:
        return None
    import botocore.session
    from botocore.configprovider import ConfiguredEndpointProvider
    from botocore.exceptions import BotoCoreError

    session = botocore.session.get_session()
    try:
        if session.get_config_variable("ignore_configured_endpoint_urls"):
            return None
        found = ConfiguredEndpointProvider(full_config=session.full_config, scoped_config=session.get_scoped_config(), client_name="s3")
        return str(found.provide() or "") or None
    except BotoCoreError:
        # The client of the store says what is wrong with them.
        return None
