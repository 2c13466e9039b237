"""Google Cloud Storage as an object store, through google-cloud-storage.

Strategy: a thin wrapper. The library provides preconditions, resumable uploads and retries; this module maps
names and errors, and compares the store's CRC32C and size with what was sent. The CRC32C of a file is
computed before the upload and sent along, so that the service rejects other bytes. The library's own check
after a resumable upload is switched off: on failure it deletes the object by name, which a node's account may
not do and a store must not do unasked.

A retried request whose first answer was lost can end in PreconditionFailed although it succeeded: with
`if_generation=0` the caller reads the existing object. The service may check the right to replace before that
condition: if an object exists, both refusals become PreconditionFailed. `STORAGE_EMULATOR_HOST` is honored,
with anonymous credentials.

The library reads a key file once, when a client is made. When the file has changed, or the credentials were refused, the
next call makes a new client; if that fails, because the file is half-written, the former one is used. Must not know
segments or batches.
"""

from __future__ import annotations

import contextlib
import os
import re
import time
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

import requests
from google.api_core import exceptions as api
from google.auth import exceptions as auth
from google.cloud import storage
from google.cloud.storage import exceptions as media
from google.cloud.storage.retry import DEFAULT_RETRY

from writetime.errors import (
    ChecksumMismatch,
    ObjectNotFound,
    PreconditionFailed,
    StoreError,
    StoreUnavailable,
    WritetimeError,
)
from writetime.storage import progress, request_count
from writetime.storage.address import parse
from writetime.storage.checksum import crc32c, from_base64, to_base64
from writetime.storage.concurrency import AT_ONCE
from writetime.storage.object_names import is_name, require_name, require_next
from writetime.storage.refusals import CHANGED, GCS, PLACES_GCS, RENEW_GCS, refusal_of
from writetime.storage.source import measured, opened, sending
from writetime.storage.store import PAGE, Listed, ObjectInfo, require_facts, require_nothing

_TIMEOUT = 60.0
_RETRY = DEFAULT_RETRY.with_timeout(60.0)
_LOOKS_AT_KEY = 30.0
"""Seconds between two looks at the key file, and between two clients that are made because of a refusal."""
# Of one chunk of a resumable upload, which may take a minute by itself: it is sent again, and not the whole object.
_RETRY_CHUNK = DEFAULT_RETRY.with_timeout(300.0)
_ONE_REQUEST = 8 << 20
_CHUNK = 4 << 20
_LISTED = "items(name,size,generation,crc32c,timeCreated,metadata),nextPageToken"
_FOLDERS = "prefixes,nextPageToken"
# The id allows writing to the upload without credentials.
_UPLOAD_ID = re.compile(r"(upload_id=)[^\s&'\"<>]+")


class _Adapter(requests.adapters.HTTPAdapter):
    """Sends what the library hands over as one block of bytes in small blocks."""

    def send(self, request: Any, *args: Any, **options: Any) -> Any:
        if request.body and isinstance(request.body, bytes):
            request.body = progress.Body(request.body)
        return super().send(request, *args, **options)


class GcsStore:
    """See the module's docstring. `url` is gs://bucket or gs://bucket/prefix. No connection is made before
    the first call."""

    def __init__(self, url: str) -> None:
        address = parse(url)
        self.url, self._bucket_name, self._prefix = address.url, address.bucket, address.prefix
        self._bucket_or_none: Any = None
        self._key: tuple[int, ...] | None = None
        self._looked = 0.0
        self._was_refused = False

    def __reduce__(self) -> tuple[Any, ...]:
        # A connection cannot be pickled; the URL can.
        return GcsStore, (self.url,)

    def list(self, prefix: str = "", *, start_after: str = "") -> Iterator[ObjectInfo]:
        """See Store.list."""
        with self._explained("list objects", prefix):
            yield from map(self._info, self._blobs(prefix, start_after, fields=_LISTED))

    def names(self, prefix: str = "", *, start_after: str = "", page: int = PAGE) -> Iterator[Listed]:
        """See Store.names."""
        with self._explained("list objects", prefix):
            # The service's offset is inclusive.
            size = min(page + bool(start_after), PAGE)
            for info in map(self._info, self._blobs(prefix, start_after, fields=_LISTED, page_size=size)):
                yield Listed(info.name, info.size, info.created, info)

    def folders(self, prefix: str = "") -> Iterator[str]:
        """See Store.folders."""
        with self._explained("list objects", prefix):
            found = self._listing(prefix, delimiter="/", fields=_FOLDERS)
            last = b""
            for page in found.pages:
                for each in sorted(page.prefixes, key=str.encode):
                    last = require_next(each, last, self._prefix + prefix)
                    name = each.removeprefix(self._prefix)
                    if is_name(name.removesuffix("/")):
                        yield name

    def _blobs(self, prefix: str, start_after: str, **wanted: Any) -> Iterator[Any]:
        last, start = b"", f"{self._prefix}{start_after}".encode() if start_after else b""
        for blob in self._listing(prefix, start_offset=self._prefix + start_after if start_after else None, **wanted):
            last = require_next(blob.name, last, self._prefix + prefix)
            if last < start:
                raise ValueError(f"the listing begins before {start_after!a}")
            name = blob.name.removeprefix(self._prefix)
            # The service's offset is inclusive; and "folders" created in a console are objects named `…/`.
            if name != start_after and is_name(name):
                yield blob

    def _listing(self, prefix: str, **wanted: Any) -> Any:
        return self._bucket.client.list_blobs(self._bucket, prefix=self._prefix + prefix, timeout=_TIMEOUT, retry=_RETRY, **wanted)

    def head(self, name: str) -> ObjectInfo | None:
        """See Store.head."""
        blob = self._blob(name, "look up an object")
        try:
            with self._explained("look up an object", name):
                blob.reload(timeout=_TIMEOUT, retry=_RETRY)
                return self._info(blob)
        except ObjectNotFound:
            return None

    def read(self, name: str, *, generation: int | None = None, start: int = 0, end: int | None = None) -> bytes:
        """See Store.read. A range beyond the end returns the bytes that exist. Whole objects are checked
        against their CRC32C."""
        blob = self._blob(name, "read an object", generation)
        whole = start == 0 and end is None
        with self._explained("read an object", name):
            if end is not None and end <= start:
                blob.reload(timeout=_TIMEOUT, retry=_RETRY)
                return b""
            try:
                data = bytes(
                    blob.download_as_bytes(
                        start=start or None,
                        end=None if end is None else end - 1,
                        checksum="crc32c" if whole else None,
                        raw_download=True,
                        timeout=_TIMEOUT,
                        retry=_RETRY,
                    )
                )
            except api.RequestRangeNotSatisfiable:
                # Beyond the end, or the library resumed a response that broke off at its end.
                blob.reload(timeout=_TIMEOUT, retry=_RETRY)
                return require_nothing(self._info(blob), start)
            # The library does not verify a resumed download if the resumed response is complete.
            if whole and blob.crc32c and crc32c(data) != from_base64(blob.crc32c):
                raise ChecksumMismatch("the bytes received do not match the store's CRC32C", operation="read an object", obj=name)
            return data

    def put(
        self, name: str, data: bytes | Path, *, if_generation: int | None = None, metadata: Mapping[str, str] | None = None
    ) -> ObjectInfo:
        """See Store.put. A file is read twice: for its CRC32C and for the upload."""
        blob = self._blob(name, "write an object")
        blob.metadata = dict(metadata or {})
        # For uploads only: a download in chunks is not verified.
        blob.chunk_size = _CHUNK
        with (
            opened(data, "write an object", name) as source,
            self._explained("write an object", name),
            self._refused_by_condition(name, if_generation),
        ):
            crc, size = measured(source)
            sending(source)
            blob.upload_from_file(
                source,
                size=size,
                content_type="application/json" if name.endswith(".json") else "application/octet-stream",
                if_generation_match=if_generation,
                checksum="crc32c" if size <= _ONE_REQUEST else None,
                crc32c_checksum_value=to_base64(crc),
                timeout=_TIMEOUT,
                retry=_RETRY if size <= _ONE_REQUEST else _RETRY_CHUNK,
            )
            return self._verified(self._info(blob), size, crc)

    @contextlib.contextmanager
    def _refused_by_condition(self, name: str, if_generation: int | None) -> Iterator[None]:
        """A forbidden creation becomes PreconditionFailed if the object exists."""
        try:
            yield
        except api.Forbidden as error:
            if if_generation == 0 and self._is_seen(name):
                raise PreconditionFailed(error.message, operation="write an object", obj=f"{self.url}/{name}") from error
            raise

    def _is_seen(self, name: str) -> bool:
        """Whether the object exists and may be read."""
        try:
            return self.head(name) is not None
        except StoreError as error:
            if error.retriable:
                raise
            return False

    def copy(self, source: str, target: str, *, if_generation: int | None = 0) -> ObjectInfo:
        """See Store.copy."""
        before = self.head(source)
        if before is None:
            raise ObjectNotFound("the object does not exist", operation="copy an object", obj=source)
        origin, blob = self._blob(source, "copy an object"), self._blob(target, "copy an object")
        blob.metadata = dict(before.metadata)
        token = None
        with self._explained("copy an object", f"{source} to {target}"):
            while True:
                token, _, _ = blob.rewrite(
                    origin,
                    token=token,
                    if_generation_match=if_generation,
                    if_source_generation_match=before.generation,
                    timeout=_TIMEOUT,
                    retry=_RETRY,
                )
                if token is None:
                    break
            blob.reload(timeout=_TIMEOUT, retry=_RETRY)
            return self._verified(self._info(blob), before.size, before.crc32c)

    def delete(self, name: str, *, if_generation: int | None = None) -> None:
        """See Store.delete."""
        with self._explained("delete an object", name):
            # Retried only with a condition: a repeated unconditional deletion could delete a newer object.
            retry = None if if_generation is None else _RETRY
            self._blob(name, "delete an object").delete(if_generation_match=if_generation, timeout=_TIMEOUT, retry=retry)

    def discard(self, names: Iterable[str]) -> None:
        """See Store.discard. The service's batches of requests are charged, and take as long, as single ones."""
        for name in names:
            with contextlib.suppress(ObjectNotFound):
                self.delete(name)

    @property
    def _bucket(self) -> Any:
        if self._bucket_or_none is None or self._may_have_other_credentials():
            self._looked, self._was_refused, key = time.monotonic(), False, _key_file()
            try:
                self._bucket_or_none, self._key = self._opened(), key
            except StoreError:
                if self._bucket_or_none is None:
                    raise
        return self._bucket_or_none

    def _may_have_other_credentials(self) -> bool:
        if time.monotonic() < self._looked + _LOOKS_AT_KEY:
            return False
        self._looked = time.monotonic()
        return self._was_refused or _key_file() != self._key

    def _opened(self) -> Any:
        try:
            # Objects need no project; requiring one would fail for accounts without a project.
            client = storage.Client(project=None)
        except (auth.GoogleAuthError, ValueError) as error:
            # ValueError: the key file is no JSON, or has no key. Its text may show some of it.
            raise StoreError(
                str(error) if isinstance(error, auth.GoogleAuthError) else "the key file cannot be parsed",
                operation="open the store",
                obj=self.url,
                hint="Set GOOGLE_APPLICATION_CREDENTIALS, or run where an account is attached.",
            ) from None
        client._http.hooks["response"].append(request_count.count)
        for scheme in ("https://", "http://"):
            # Connections beyond the pool's size are made anew for each request.
            client._http.mount(scheme, _Adapter(pool_maxsize=AT_ONCE))
        return client.bucket(self._bucket_name)

    def _blob(self, name: str, operation: str, generation: int | None = None) -> Any:
        require_name(name, operation)
        return self._bucket.blob(self._prefix + name, generation=generation)

    def _info(self, blob: Any) -> ObjectInfo:
        metadata = {str(key): str(value) for key, value in (blob.metadata or {}).items()}
        return require_facts(
            ObjectInfo(
                name=blob.name.removeprefix(self._prefix),
                size=int(blob.size),
                generation=int(blob.generation),
                crc32c=from_base64(blob.crc32c),
                created=blob.time_created,
                metadata=metadata,
            )
        )

    @staticmethod
    def _verified(info: ObjectInfo, size: int, crc: int) -> ObjectInfo:
        if (info.size, info.crc32c) != (size, crc):
            raise ChecksumMismatch(
                f"{size} bytes with CRC32C {crc:08x} were sent, the store holds {info.size} bytes with {info.crc32c:08x}",
                operation="verify an object",
                obj=info.name,
                hint="The object is left unchanged: inspect it before it is written again.",
            )
        return info

    @contextlib.contextmanager
    def _explained(self, operation: str, name: str) -> Iterator[None]:
        """Translate the library's errors, and those of unexpected responses, which may come from a proxy."""
        try:
            yield
        except WritetimeError:
            raise
        except Exception as error:
            self._was_refused = self._was_refused or isinstance(error, (auth.GoogleAuthError, api.Unauthorized))
            raise self._translate(error, operation, f"{self.url}/{name}") from error

    def _translate(self, error: Exception, operation: str, where: str) -> StoreError:
        text = _UPLOAD_ID.sub(r"\1…", str(error))
        if isinstance(error, api.NotFound):
            if "bucket does not exist" in text.lower() or "no such bucket" in text.lower():
                return StoreError("the bucket does not exist", operation=operation, obj=where, hint="Create it, or correct `bucket`.")
            return ObjectNotFound("the object does not exist", operation=operation, obj=where)
        said = f"{type(error).__name__}: {text}"
        if isinstance(error, api.GoogleAPICallError) and (row := refusal_of(GCS, (error.code or 0,), text)) is not None:
            return row.kind(said, operation=operation, obj=where, hint=row.hint)
        for kinds, make, hint in _TABLE:
            if isinstance(error, kinds):
                return make(said, operation=operation, obj=where, hint=hint)
        if isinstance(error, api.BadRequest) and "crc32c" in text.lower():
            return ChecksumMismatch(text, operation=operation, obj=where, hint=CHANGED)
        kind = StoreError if isinstance(error, _OF_THE_LIBRARY) else StoreUnavailable
        return kind(said, operation=operation, obj=where)


def _key_file() -> tuple[int, ...] | None:
    """What tells a key file from the one that is there after a rotation; None: there is none."""
    try:
        found = os.stat(os.environ["GOOGLE_APPLICATION_CREDENTIALS"])
    except (KeyError, OSError):
        return None
    return found.st_ino, found.st_size, found.st_mtime_ns


# First match wins: the library's classes are not a hierarchy (a connection error is an OSError too).
_TABLE: tuple[tuple[tuple[type[Exception], ...], type[StoreError], str | None], ...] = (
    ((media.DataCorruption,), ChecksumMismatch, None),
    ((api.ServerError, api.RetryError, auth.TransportError), StoreUnavailable, None),
    ((requests.exceptions.InvalidURL, requests.exceptions.InvalidSchema, requests.exceptions.MissingSchema), StoreError, PLACES_GCS),
    ((requests.exceptions.RequestException, ConnectionError, TimeoutError), StoreUnavailable, None),
    ((auth.GoogleAuthError,), StoreError, RENEW_GCS),
)
_OF_THE_LIBRARY = (api.GoogleAPIError, auth.GoogleAuthError, media.DataCorruption, media.InvalidResponse, OSError)
