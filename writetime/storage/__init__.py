"""Object storage: the store protocol and its backends, the names of objects, and how segments are stored in
them.

    store            the protocol (`Store`, `ObjectInfo`), with the semantics of Google Cloud Storage
    address          the URLs of stores, taken apart and put together
    gcs, s3, local   one backend each; `open_store` imports the one for the URL
    s3_conditions    whether a service keeps the conditions of writes
    s3_credentials   credentials that are rotated, or come later
    s3_endpoint, no_proxy   what every client of a service reads alike in the environment
    source, checksum, object_names, refusals   shared by the backends
    layout           the names of all objects in the bucket
    segment_object, segment_parts, segment_paths   segments as objects: archived, growing, and from command-line paths
    lease            exclusive write access by create-if-absent
    untrusted_objects  documents that nodes write, read with limits
    concurrency      parallel requests
    request_count, sent_bytes   what is asked of and sent to stores

This room must not know batches, the configuration, Spark or Airflow.
"""

from __future__ import annotations

from writetime.errors import ConfigError
from writetime.storage import address
from writetime.storage.store import Store


def open_store(url: str) -> Store:
    """The store at `gs://bucket[/prefix]`, `s3://bucket[/prefix]`, `s3+https://host/bucket[/prefix]`,
    `file:///folder` or a folder (`writetime.storage.address`)."""
    found = address.parse(url)
    if found.scheme == "gs":
        from writetime.storage.gcs import GcsStore

        return GcsStore(url)
    if found.scheme == "s3":
        return _s3(url)
    from writetime.storage.local import LocalStore

    return LocalStore(found.path)


def check_store(store: Store) -> None:
    """StoreError if the bucket cannot be listed, or its service does not keep the conditions of writes and deletions."""
    next(store.names(page=1), None)
    if store.url.startswith(("s3://", "s3+")):
        from writetime.storage.s3 import S3Store

        if isinstance(store, S3Store):
            store.require_conditions()


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
