"""Addresses of stores, and of objects in them: the one place that takes their URLs apart and puts them together.

    gs://bucket[/prefix]                      Google Cloud Storage
    s3://bucket[/prefix]                      Amazon S3, or the service that the environment names
    s3+https://host[:port]/bucket[/prefix]    another service with S3's protocol; s3+http for one without TLS
    file:///folder, or a path                 a folder

Strategy: a URL here is the scheme, the bucket and the name as it is, without escapes: `%20` means these three
characters, not a space. Libraries read URLs in different ways (Lance decodes them once, Iceberg cuts them off at `?`
and `#`), so each gets the form in which it reaches the same object (`Address.escaped`), and what one of them cannot
reach is refused here, where the configuration is read, and nowhere later. docs/names.md lists the kinds of names;
tests put them to every store. Without any library of a store; does no I/O.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from typing import Final, Literal
from urllib.parse import quote

from writetime.errors import ConfigError
from writetime.storage.object_names import reason_invalid, reason_unprintable

Scheme = Literal["gs", "s3", "file"]

LONGEST_PREFIX: Final = 460
"""Bytes of a prefix: services allow 1024 for a whole name, and the longest below a prefix need 550."""

_URL: Final = re.compile(r"(gs|s3|s3\+https?)://(.*)", re.DOTALL)
_LIKE_A_URL: Final = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*://|(?:gs|s3|s3a|s3n|s3\+https?|https?|file|abfss?):/", re.IGNORECASE)
_AZURE: Final = re.compile(r"(az|azure|adl|abfss?|wasbs?)://|https?://[^/]*\.(blob|dfs)\.core\.windows\.net", re.IGNORECASE)
_BUCKET: Final = re.compile(r"[a-z0-9](?:[a-z0-9._-]{0,220}[a-z0-9])?")
_HOST: Final = re.compile(r"(?:\[[0-9A-Fa-f:.]+\]|[A-Za-z0-9._-]+)(?::[0-9]{1,5})?")
_ACCOUNT: Final = re.compile(r"://[^/]*@")
_FORMS: Final = "gs://bucket[/prefix], s3://bucket[/prefix], s3+https://host[:port]/bucket[/prefix], or a folder"


@dataclass(frozen=True, slots=True)
class Address:
    """A store, or a place in it. `bucket` is "" for a folder; `path` is the prefix without slashes around it, of a
    folder its path; `endpoint` the URL of the service that an `s3+https://` address names, else None."""

    scheme: Scheme
    bucket: str
    path: str
    endpoint: str | None = None

    @property
    def url(self) -> str:
        """As `parse` takes it."""
        if self.scheme == "file":
            return self.path
        return f"{self._root}/{self.path}" if self.path else self._root

    @property
    def prefix(self) -> str:
        """What the names of a bucket's objects begin with: "", or the path and a slash."""
        return f"{self.path}/" if self.path else ""

    @property
    def escaped(self) -> str:
        """For libraries that decode a URL once, and know no service in it; of a folder, its path as it is."""
        return self.path if self.scheme == "file" else f"{self.scheme}://{self.bucket}/{quote(self.path)}"

    @property
    def _root(self) -> str:
        return f"{self.scheme}://{self.bucket}" if self.endpoint is None else f"s3+{self.endpoint}/{self.bucket}"

    def child(self, name: str) -> Address:
        """The place of that object name."""
        return replace(self, path=f"{self.path.rstrip('/')}/{name}" if self.path else name)


def parse(url: str) -> Address:
    """The address of a store. ConfigError with the reason if it is none, or one that not everything can reach."""
    address = _split(url)
    why = reason_unprintable(address.path) if address.scheme == "file" else _prefix_trouble(address)
    if why is not None:
        raise _refused(url, why)
    return address


def parse_place(url: str) -> Address:
    """Any place in a store: an object, or a prefix that nobody configured. No rule of prefixes applies."""
    return _split(url)


def parse_object(url: str) -> tuple[Address, str]:
    """The bucket of a URL, and the rest of it, which is the name of an object or what such names begin with."""
    place = _split(url)
    if place.scheme == "file":
        raise _refused(url, f"is in no bucket. Use {_FORMS}")
    return replace(place, path=""), place.path


def reason_no_warehouse(url: str) -> str | None:
    """Why Iceberg's tables cannot lie there; None if they can. URLs of stores that writetime does not know itself are
    Iceberg's own matter."""
    if url.startswith("s3+"):
        return "Iceberg takes no host in a URL: write s3://bucket[/prefix], and the host as `s3.endpoint` of `catalog.options`"
    if is_url(url) and not url.startswith(("gs://", "s3://")):
        return None
    try:
        parse(url)
    except ConfigError as error:
        return f"`{error.obj}`: {error.message}"
    return None


def is_url(text: str) -> bool:
    """Whether it names a bucket; else it is a folder's or file's path, maybe as file:///path."""
    return "://" in text and not text.startswith("file://")


def _split(url: str) -> Address:
    match = _URL.fullmatch(url)
    if match is None:
        if not url.startswith("file://") and _LIKE_A_URL.match(url):
            azure = "; Azure Blob Storage is not supported (docs/faq.md)" if _AZURE.match(url) else ""
            raise _refused(url, f"is no kind of object store that writetime knows{azure}. Use {_FORMS}")
        return Address("file", "", url.removeprefix("file://"))
    scheme, rest = match.groups()
    host, endpoint = "", None
    if scheme.startswith("s3+"):
        host, _, rest = rest.partition("/")
        endpoint = f"{scheme.removeprefix('s3+')}://{host}"
    bucket, _, path = rest.partition("/")
    if "@" in host or "@" in bucket:
        raise _refused(url, "has an account in it. Credentials belong in the environment")
    if endpoint is not None and not _HOST.fullmatch(host):
        raise _refused(url, "names no host[:port] after s3+https://")
    if (why := _bucket_trouble(bucket)) is not None:
        raise _refused(url, why)
    return Address("gs" if scheme == "gs" else "s3", bucket, path.rstrip("/"), endpoint)


def _bucket_trouble(bucket: str) -> str | None:
    if bucket.startswith("arn:"):
        return "names its bucket by an ARN. Use the access point's alias, which ends in -s3alias and is named like a bucket"
    if bucket.endswith("--x-s3"):
        return "is a directory bucket, which lists its objects in no order"
    if not _BUCKET.fullmatch(bucket):
        return f"`{bucket}` is not the name of a bucket: a-z, 0-9, dot, - and _, with a letter or digit at both ends"
    return None


def _prefix_trouble(address: Address) -> str | None:
    for mark in "#?":
        if mark in address.path:
            return f"`{mark}` ends a name for libraries that read URLs, so tables and state would lie elsewhere. Use another prefix"
    if address.scheme == "gs" and ";" in address.path:
        return "Google's client for Iceberg does not escape `;` when it lists objects, and may list others. Use another prefix"
    if not address.path:
        return None
    if (why := reason_invalid(address.path)) is not None:
        return f"the prefix is invalid: {why}"
    if len(address.path.encode()) > LONGEST_PREFIX:
        return f"the prefix has more than {LONGEST_PREFIX} bytes, and names below it would be too long for the service"
    return None


def _refused(url: str, why: str) -> ConfigError:
    return ConfigError(why, operation="read the address of a store", obj=_ACCOUNT.sub("://", url))
