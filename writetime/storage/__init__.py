"""Object storage: the store protocol and its backends, the names of objects, and how segments are stored in
them.

    store            the protocol (`Store`, `ObjectInfo`), with the semantics of Google Cloud Storage
    gcs, s3, local   one backend each; `open_store` imports the one for the URL
    source, checksum, object_names   shared by the backends
    layout           the names of all objects in the bucket
    segment_object, segment_parts, segment_paths   segments as objects: archived, growing, and from command-line paths
    lease            exclusive write access by create-if-absent
    untrusted_objects  documents that nodes write, read with limits
    concurrency      parallel requests

This room must not know batches, the configuration, Spark or Airflow.
"""

from __future__ import annotations

import re

from writetime.errors import ConfigError
from writetime.storage.store import Store

SCHEMES = ("gs://", "s3://", "s3+https://", "s3+http://", "file://")
"""What the URL of a store begins with, unless it is a folder."""


_AZURE = re.compile(r"(az|azure|adl|abfss?|wasbs?)://|https?://[^/]*\.(blob|dfs)\.core\.windows\.net")


def is_store(url: str) -> bool:
    """Whether `open_store` knows the kind of store."""
    return "://" not in url or url.startswith(SCHEMES)


def not_a_store(url: str) -> str:
    """Why `open_store` does not open this URL, and what to use instead."""
    azure = "; Azure Blob Storage is not supported (docs/faq.md)" if _AZURE.match(url) else ""
    return f"`{url}` is no kind of object store that writetime knows{azure}. Use gs:// or s3://bucket, or a folder"


def open_store(url: str) -> Store:
    """The store at `gs://bucket[/prefix]`, `s3://bucket[/prefix]`, `s3+https://host/bucket[/prefix]`,
    `file:///folder` or a folder."""
    if url.startswith("gs://"):
        from writetime.storage.gcs import GcsStore

        return GcsStore(url)
    if url.startswith(("s3://", "s3+https://", "s3+http://")):
        return _s3(url)
    if not is_store(url):
        raise ConfigError(not_a_store(url), operation="open the store", obj=url)
    from writetime.storage.local import LocalStore

    return LocalStore(url.removeprefix("file://"))


def _s3(url: str) -> Store:
    try:
        from writetime.storage.s3 import S3Store
    except ModuleNotFoundError as error:
        if error.name != "botocore":
            raise
        raise ConfigError(
            "botocore is not installed", operation="open the store", obj=url, hint="Install the extra `s3`: pip install 'writetime[s3]'."
        ) from error
    return S3Store(url)
