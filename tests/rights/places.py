"""One bucket and its accounts, whichever service it is at: what the tests of rights run over."""

from __future__ import annotations

import contextlib
import uuid
from dataclasses import dataclass, field
from typing import Final, Protocol

import pytest

from tests import gcs_server, s3_server
from tests.rights import gcs_site, s3_site
from tests.storage import gcs_stub
from writetime.storage import open_store
from writetime.storage.layout import NodeName
from writetime.storage.store import Store

S3: Final = pytest.param("s3", marks=pytest.mark.s3)
PLACES: Final = ("stub", S3, pytest.param("gcs", marks=pytest.mark.gcs))
RIGHTS_FIRST: Final = "stub-rights-first"
"""A Google that refuses who may not replace an object before it looks at `ifGenerationMatch`."""


def at(*places: object) -> pytest.MarkDecorator:
    """Runs a test over these places instead of `PLACES`."""
    return pytest.mark.parametrize("place", places, indirect=True)


class Place(Protocol):
    """A bucket. `url` is what a configuration names; who asks is in the environment of this process."""

    kind: str
    url: str

    def root(self) -> Store:
        """The bucket for an account that may do everything."""

    def become(self, role: str, node: NodeName | None = None, *, cluster: str = "", without: str | None = None) -> Store:
        """The bucket for an account with a role's rights, of `node` or for `cluster`; stores that are opened
        from now on are its."""


@dataclass
class S3Place:
    """Of versitygw."""

    site: s3_site.Site
    monkeypatch: pytest.MonkeyPatch
    kind: str = "s3"

    def __post_init__(self) -> None:
        # One bucket serves all tests: each has a place of its own.
        self.url = f"s3://{s3_site.BUCKET}"

    def root(self) -> Store:
        return self._opened(self.site.root)

    def become(self, role: str, node: NodeName | None = None, *, cluster: str = "", without: str | None = None) -> Store:
        return self._opened(self.site.account(role, node, cluster=cluster, without=without))

    def _opened(self, key: s3_site.Key) -> Store:
        s3_server.into_environment(self.monkeypatch, self.site.url, key.access, key.secret)
        store = open_store(self.url)
        # Now, while the environment is the account's.
        assert getattr(store, "_client") is not None  # noqa: B009
        return store


@dataclass
class GcsPlace:
    """Of a server of GCS at `upstream`."""

    kind: str
    upstream: str
    bucket: str
    monkeypatch: pytest.MonkeyPatch
    rights_first: bool = False
    stack: contextlib.ExitStack = field(default_factory=contextlib.ExitStack)

    def __post_init__(self) -> None:
        self.url = f"gs://{self.bucket}"

    def root(self) -> Store:
        return self._opened(self.upstream)

    def become(self, role: str, node: NodeName | None = None, *, cluster: str = "", without: str | None = None) -> Store:
        may = gcs_site.grants(role, node, node.cluster if node else cluster, without)
        account = gcs_site.account(self.upstream, self.bucket, may, rights_first=self.rights_first)
        return self._opened(self.stack.enter_context(account).url)

    def _opened(self, url: str) -> Store:
        self.monkeypatch.setenv("STORAGE_EMULATOR_HOST", url)
        store = open_store(self.url)
        # Now, while the environment is the account's.
        assert getattr(store, "_bucket") is not None  # noqa: B009
        return store


def of_stub(stub: gcs_stub.Stub, monkeypatch: pytest.MonkeyPatch, *, rights_first: bool) -> GcsPlace:
    return GcsPlace("stub", stub.url, gcs_stub.BUCKET, monkeypatch, rights_first)


def of_server(url: str, monkeypatch: pytest.MonkeyPatch) -> GcsPlace:
    bucket = f"t-{uuid.uuid4().hex}"
    gcs_server.make_bucket(url, bucket)
    return GcsPlace("gcs", url, bucket, monkeypatch)
