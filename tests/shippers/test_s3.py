"""The shipper with S3: the command as a process, with a real server; a second run over existing objects loses
nothing.
"""

from __future__ import annotations

import os
import subprocess
import sys
import time
import uuid
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from shippers.agent import Agent
from shippers.upload import Outcome
from tests import s3_server
from tests.shippers.conftest import Folder, ref
from tests.storage import s3_stub
from writetime.storage import open_store
from writetime.storage import s3 as s3_module
from writetime.storage.checksum import crc32c


@pytest.mark.s3
def test_the_command_ships_to_a_real_server(folder: Folder, tmp_path: Path, s3: s3_server.Server, monkeypatch: pytest.MonkeyPatch) -> None:
    bucket = f"t-{uuid.uuid4().hex}"
    s3.make_bucket(bucket)
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    s3_server.into_environment(monkeypatch, "", s3.access, s3.secret)
    url = f"{s3.url.replace('http', 's3+http')}/{bucket}/cdc"
    (tmp_path / "pipeline.yaml").write_text(
        f"pipeline: demo\ncluster: {{name: ring, datacenters: [dc1]}}\nbucket: {url}\n"
        f"node: {{cdc_raw: {folder.path}, host_id: host-1, datacenter: dc1, connect: false}}\n"
    )
    command = [sys.executable, "-m", "writetime.cli", "ship", "--once", "--config", str(tmp_path / "pipeline.yaml")]
    written = {1: folder.segment(1), 2: folder.segment(2, os.urandom(20 << 20)), 3: folder.segment(3, b"")}
    store = open_store(url)
    for _ in range(2):
        done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
        assert done.returncode == 0, done.stderr
        assert "nobody-minds" not in done.stderr
        assert {number: store.read(ref(number).incoming) for number in written} == written
        assert folder.names == []
        # They come back, as after a crash between the deletion of a log and that of its idx.
        for number, data in written.items():
            folder.segment(number, data)
    other = folder.segment(2, b"other bytes")
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0
    assert "segment in conflict" in done.stderr
    assert folder.names == []
    assert store.read(ref(2).incoming) == written[2]
    assert store.read(ref(2).conflict(crc32c(other))) == other


def test_a_service_that_overwrites_gets_no_segment(
    folder: Folder, agent_over: Callable[..., Agent], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(s3_module, "_FAULTS", {})
    monkeypatch.setattr(s3_module, "_MAY_NOT_PROBE", set())
    folder.segment(1)

    def require(_: s3_stub.Stub, key: str, __: object) -> None:
        # As for a node's account, which may write under its own prefixes only.
        if "probes/" in key:
            raise s3_stub.Refused(403, "AccessDenied")

    monkeypatch.setattr(s3_stub.Stub, "require", require)
    with s3_stub.running() as stub:
        s3_server.into_environment(monkeypatch, stub.url, "any", "any")
        result = agent_over(open_store(f"s3://{s3_stub.BUCKET}")).round()
        assert result.shipped == {}
        assert "this service ignores `If-None-Match: *`" in str(result.failed[0])
        assert folder.names == ["CommitLog-7-1.log", "CommitLog-7-1_cdc.idx"]
        assert not any(name.startswith("cdc/") for name in stub.objects)


@pytest.mark.parametrize("body", [b"", b"<Error><Code>Int", b"<html>proxy</html>", b"\xff\xfe"])
def test_an_answer_that_nobody_can_read_deletes_nothing(
    body: bytes, folder: Folder, agent_over: Callable[..., Agent], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A service or a proxy answers a write with an error that cannot be parsed, and keeps an empty object, or none."""
    monkeypatch.setattr("botocore.retries.standard.ExponentialBackoff.delay_amount", lambda *_: 0)
    real = s3_stub._Handler._put
    harm = {"kept": True, "status": 400}

    def put(handler: Any) -> Any:
        if "/cdc/" not in handler.path or not harm:
            return real(handler)
        if harm["kept"]:
            handler.memory.objects[handler.key] = s3_stub.Held(b"", handler._sent_metadata(), None, at=time.time())
        return harm["status"], body, {}

    monkeypatch.setattr(s3_stub._Handler, "_put", put)
    with s3_stub.running() as stub:
        s3_server.into_environment(monkeypatch, stub.url, "any", "any")
        agent = agent_over(open_store(f"s3://{s3_stub.BUCKET}"))
        agent.round()
        data = folder.segment(1)
        for harm["kept"], harm["status"] in ((False, 400), (False, 503), (False, 200), (True, 400), (True, 200)):
            result = agent.round()
            assert result.shipped == {}, harm
            assert len(result.failed) == 1
            assert folder.names == ["CommitLog-7-1.log", "CommitLog-7-1_cdc.idx"]
            stub.objects = {name: held for name, held in stub.objects.items() if not name.startswith("cdc/")}
        harm.clear()
        assert agent.round().shipped == {Outcome.UPLOADED: 1}
        assert stub.objects[ref(1).incoming].data == data
