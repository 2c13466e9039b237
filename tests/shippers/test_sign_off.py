"""What a shipper signs off: never more than it has shipped, and nothing for a node that may not have been
running."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
import structlog
from structlog.testing import capture_logs

from shippers import report
from shippers.agent import Agent
from shippers.open_file_probe import nobody_writes
from shippers.sign_off import CaughtUp, Ring, SignOff, take_ring
from tests.shippers.conftest import FakeLink, Folder
from tests.shippers.faults import FaultyStore
from tests.shippers.test_tail import growing
from writetime.cassandra.cdc_settings import CdcSettings
from writetime.config.node import ShipConfig
from writetime.config.pipeline import PipelineConfig
from writetime.errors import StoreUnavailable
from writetime.storage.local import LocalStore
from writetime.storage.store import Store

PERIODIC = CdcSettings(commitlog_sync="periodic", commitlog_sync_ms=10_000)
SYNC = {"commitlog_sync": "periodic", "commitlog_sync_ms": 10_000}


def sign_off(link: FakeLink | None) -> SignOff:
    return SignOff(None if link is None else link.ring, ["dc1"], structlog.get_logger())


def now() -> CaughtUp:
    return CaughtUp(time.time(), time.monotonic())


def test_a_scan_counts_between_two_answers_of_one_generation() -> None:
    link = FakeLink()
    signing, early = sign_off(link), now()
    assert signing.of(early, PERIODIC) is None, "the node may have started since"
    assert signing.of(early, PERIODIC) is None
    scan = now()
    signed = signing.of(scan, PERIODIC)
    assert signed is not None
    assert signed.at == datetime.fromtimestamp(scan.at, UTC)
    assert signed.unsynced_ms == 25_000
    assert signed.members == {"dc1": ["host-1", "host-2"]}, "dc2 does not ship"


def test_a_node_that_has_restarted_has_signed_nothing_off_since() -> None:
    link = FakeLink()
    signing = sign_off(link)
    signing.of(None, PERIODIC)
    scan = now()
    link.generation = 2
    assert signing.of(scan, PERIODIC) is None
    assert signing.of(scan, PERIODIC) is None
    assert signing.of(now(), PERIODIC) is not None


def test_a_node_that_does_not_answer_signs_nothing_off() -> None:
    link = FakeLink()
    signing = sign_off(link)
    signing.of(None, PERIODIC)
    link.down = True
    assert signing.of(now(), PERIODIC) is None
    link.down = False
    assert signing.of(now(), PERIODIC) is None, "another node may answer now"
    assert signing.of(now(), PERIODIC) is not None


@pytest.mark.parametrize("settings", [None, CdcSettings(), CdcSettings(commitlog_sync="periodic")])
def test_without_the_sync_interval_nothing_is_signed_off(settings: CdcSettings | None) -> None:
    signing = sign_off(FakeLink())
    assert [signing.of(now(), settings) for _ in range(3)] == [None] * 3
    assert sign_off(None).of(now(), PERIODIC) is None


@pytest.mark.parametrize(
    ("settings", "seconds"),
    [
        (PERIODIC, 25),
        (CdcSettings(commitlog_sync="periodic", commitlog_sync_ms=1000, commitlog_sync_lag_ms=4000), 5),
        (CdcSettings(commitlog_sync="group", commitlog_sync_ms=1000), 2),
        (CdcSettings(commitlog_sync="batch"), 0),
        (CdcSettings(commitlog_sync="of a later version", commitlog_sync_ms=1), None),
    ],
)
def test_how_long_a_mutation_may_be_unsynced(settings: CdcSettings, seconds: float | None) -> None:
    assert settings.unsynced == (None if seconds is None else timedelta(seconds=seconds))


# --- a shipper


@pytest.fixture(autouse=True)
def often(monkeypatch: pytest.MonkeyPatch) -> None:
    """A sign-off with every round."""
    monkeypatch.setattr(report, "SIGNED_OFF", timedelta(seconds=0.05))


@pytest.fixture
def shipper(settings: PipelineConfig, agent_over: Callable[..., Agent]) -> Callable[..., Agent]:
    def make(store: Store, link: FakeLink, tail: float | None = 0.0001) -> Agent:
        assert settings.node is not None
        node = settings.node.model_copy(update={"ship": ShipConfig(tail_seconds=tail)})
        return agent_over(store, link=link, config=settings.model_copy(update={"node": node}))

    return make


def signed(store: Store) -> list[dict[str, Any]]:
    found = (json.loads(store.read(info.name)) for info in store.list("nodes/"))
    return [each["signed_off"] for each in found if "signed_off" in each]


def rounds(agent: Agent, count: int = 3) -> Iterator[None]:
    for _ in range(count):
        time.sleep(0.06)
        agent.round()
        yield


def test_a_shipper_that_has_caught_up_signs_off(store: LocalStore, folder: Folder, shipper: Callable[..., Agent]) -> None:
    segment = growing(folder)
    folder.segment(1)
    begun = datetime.now(UTC)
    with (folder.path / segment.name.filename).open("ab"):
        list(rounds(shipper(store, FakeLink(sync=SYNC))))
    found = signed(store)
    assert found
    assert begun <= datetime.fromisoformat(found[-1]["at"]) <= datetime.now(UTC)
    assert found[-1]["unsynced_ms"] == 25_000


@pytest.mark.advice("Compare node.cdc_raw with cdc_raw_directory of the node")
@pytest.mark.parametrize("left", ["nothing", "a segment of an earlier life"])
def test_nothing_is_signed_off_while_the_node_writes_to_another_folder(
    left: str,
    store: LocalStore,
    folder: Folder,
    settings: PipelineConfig,
    shipper: Callable[..., Agent],
    agent_over: Callable[..., Agent],
    tmp_path: Path,
) -> None:
    """Its cdc_raw_directory was changed, or another disk is mounted there: nothing ever waits here."""
    if nobody_writes(Path(__file__)) is None:
        pytest.skip("the kernel cannot tell on this file system whether a file is open for writing")
    if left != "nothing":
        growing(folder)
    elsewhere = Folder(tmp_path / "elsewhere")
    elsewhere.path.mkdir()
    link, name = FakeLink(sync=SYNC), growing(elsewhere, number=8).name.filename
    with (elsewhere.path / name).open("ab"), capture_logs() as logs:
        list(rounds(shipper(store, link), 5))
        assert signed(store) == []
        assert [each["event"] for each in logs].count("node does not write to this cdc_raw") == 1
        # Where CDC is off, that is what is wrong.
        off = SignOff(link.ring, ["dc1"], structlog.get_logger())
        off.of(None, PERIODIC)
        assert off.of(CaughtUp(time.time(), time.monotonic(), in_use=False), replace(PERIODIC, cdc_enabled=False)) is not None
        assert settings.node is not None
        right = settings.node.model_copy(update={"cdc_raw": elsewhere.path, "ship": ShipConfig(tail_seconds=0.0001)})
        list(rounds(agent_over(store, link=link, config=settings.model_copy(update={"node": right}))))
        assert signed(store) != []


@pytest.mark.parametrize("what", ["a part", "a segment"])
def test_what_is_not_shipped_is_not_signed_off(store: LocalStore, folder: Folder, shipper: Callable[..., Agent], what: str) -> None:
    class Without(FaultyStore):
        """Does not take this kind of object."""

        def put(self, name: str, *rest: Any, **more: Any) -> Any:
            if name.startswith("cdc_parts/" if what == "a part" else "cdc/"):
                raise StoreUnavailable("no", operation="put", obj=name, retriable=False)
            return super().put(name, *rest, **more)

    growing(folder)
    folder.segment(1)
    list(rounds(shipper(Without(store), FakeLink(sync=SYNC))))
    assert signed(store) == []


def test_an_idx_that_is_being_rewritten_hides_what_is_synced(store: LocalStore, folder: Folder, shipper: Callable[..., Agent]) -> None:
    growing(folder)
    next(folder.path.glob("*_cdc.idx")).write_bytes(b"")
    list(rounds(shipper(store, FakeLink(sync=SYNC))))
    assert signed(store) == []


def test_without_tails_up_to_the_last_finished_segment(store: LocalStore, folder: Folder, shipper: Callable[..., Agent]) -> None:
    growing(folder)
    agent = shipper(store, FakeLink(sync=SYNC), None)
    list(rounds(agent))
    assert signed(store) == [], "nothing is finished"
    folder.segment(1)
    ended = folder.path.joinpath("CommitLog-7-1.log").stat().st_mtime
    list(rounds(agent))
    (found,) = signed(store)
    assert datetime.fromisoformat(found["at"]).timestamp() == pytest.approx(ended, abs=0.001)


def test_not_more_often_than_due(store: LocalStore, folder: Folder, shipper: Callable[..., Agent], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(report, "SIGNED_OFF", timedelta(minutes=1))
    growing(folder)
    link = FakeLink(sync=SYNC)
    agent = shipper(store, link)
    for _ in range(20):
        agent.round()
    assert link.asked.count("ring") == 1


def test_the_members_are_the_node_and_its_peers() -> None:
    class Session:
        def execute(self, statement: str) -> Any:
            return self if "system.local" in statement else [("dc1", "b"), ("dc2", "c"), (None, "d"), ("dc1", None)]

        def one(self) -> tuple[int, str, str]:
            return 7, "dc1", "a"

    assert take_ring(Session()) == Ring(7, {"dc1": ["a", "b"], "dc2": ["c"]})


def test_a_shipping_datacenter_without_nodes_is_named() -> None:
    """Otherwise nobody could say that the last of its nodes has left."""
    signing = SignOff(FakeLink().ring, ["dc1", "dc3"], structlog.get_logger())
    signing.of(None, PERIODIC)
    signed = signing.of(now(), PERIODIC)
    assert signed is not None
    assert signed.members == {"dc1": ["host-1", "host-2"], "dc3": []}


def test_the_settings_of_a_restarted_node_are_read_again() -> None:
    link, restarts = FakeLink(), []
    signing = SignOff(link.ring, ["dc1"], structlog.get_logger(), lambda: restarts.append(1))
    signing.of(None, PERIODIC)
    signing.of(now(), PERIODIC)
    link.generation = 2
    signing.of(now(), PERIODIC)
    assert len(restarts) == 2


def test_without_tails_an_older_segment_that_a_crash_left_is_waited_for(
    store: LocalStore, folder: Folder, shipper: Callable[..., Agent]
) -> None:
    growing(folder, number=1)
    agent = shipper(store, FakeLink(sync=SYNC), None)
    folder.segment(2)
    list(rounds(agent))
    assert signed(store) == []
