"""The shipper with Google Cloud Storage, on the stub: small and large segments, and a lost response."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from shippers.agent import Agent
from shippers.upload import Outcome
from tests.shippers.conftest import FakeLink, Folder, ref
from tests.storage import gcs_stub
from writetime.storage import gcs, open_store


@pytest.mark.parametrize("lost", [0, 1])
def test_segments_reach_the_bucket(folder: Folder, agent_over: Callable[..., Agent], monkeypatch: pytest.MonkeyPatch, lost: int) -> None:
    monkeypatch.setattr(gcs, "_RETRY", gcs._RETRY.with_delay(initial=0.01))
    written = {1: folder.segment(1), 2: folder.segment(2, b"big" * (3 << 20)), 3: folder.segment(3, b"")}
    with gcs_stub.running() as stub:
        monkeypatch.setenv("STORAGE_EMULATOR_HOST", stub.url)
        store = open_store(f"gs://{gcs_stub.BUCKET}/p")
        agent = agent_over(store, link=FakeLink())
        agent.round()  # facts and schema go first: the lost answer is to be that of a segment
        stub.objects = {name: held for name, held in stub.objects.items() if "/cdc/" not in name}
        for number, data in written.items():
            folder.segment(number, data)
        stub.lose_answers = lost
        result = agent.round()
        assert result.ok
        assert result.shipped == {Outcome.UPLOADED: 3 - lost} | ({Outcome.ALREADY_THERE: lost} if lost else {})
        assert {number: store.read(ref(number).incoming) for number in written} == written
    assert folder.names == []
