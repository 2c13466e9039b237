"""Buckets whose accounts have the rights of deploy/rights, and nothing more."""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests import s3_server
from tests.rights import s3_site
from tests.rights.places import PLACES, RIGHTS_FIRST, Place, S3Place, of_server, of_stub
from tests.storage import gcs_stub
from writetime.storage.layout import NodeName


@pytest.fixture(scope="session")
def s3(tmp_path_factory: pytest.TempPathFactory) -> Iterator[s3_site.Site]:
    binary = s3_server.program()
    if binary is None:
        pytest.skip("no S3 test server: run make test-s3")
    with s3_site.running(binary, tmp_path_factory.mktemp("s3")) as site:
        yield site


@pytest.fixture(params=PLACES)
def place(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[Place]:
    if request.param == "s3":
        yield S3Place(request.getfixturevalue("s3"), monkeypatch)
        return
    if request.param == "gcs":
        found = of_server(request.getfixturevalue("gcs_url"), monkeypatch)
        with found.stack:
            yield found
        return
    with gcs_stub.running() as stub:
        found = of_stub(stub, monkeypatch, rights_first=request.param == RIGHTS_FIRST)
        with found.stack:
            yield found


@pytest.fixture
def node(tmp_path: Path) -> NodeName:
    """A node of a cluster that no other test has; its name has to be escaped."""
    return NodeName(f"ring {uuid.uuid4().hex[:8]}", "dc1", "7b1c0a52-0c43-4f0a-8a57-0242ac120002")
