"""The node's CDC settings: their form in each release, when they are queried, and the effect of a change."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import pytest
import structlog
from cassandra import InvalidRequest, Unauthorized
from hypothesis import given
from hypothesis import strategies as st
from structlog.testing import capture_logs

from shippers.agent import Agent
from shippers.cdc_settings import EVERY_SECONDS, SettingsMonitor, duration_of, parse_settings, size_of, take_settings
from tests.shippers.conftest import FakeLink
from writetime.cassandra.cdc_settings import CdcSettings
from writetime.errors import ShipError
from writetime.storage.local import LocalStore

GIB = 1 << 30
SAFE = CdcSettings(cdc_enabled=True, cdc_block_writes=True, cdc_total_space=4 * GIB, commitlog_sync="periodic", commitlog_sync_ms=10_000)
OF_4_0 = {
    "cdc_enabled": "true",
    "cdc_total_space_in_mb": "4096",
    "commitlog_sync": "periodic",
    "commitlog_sync_period_in_ms": "10000",
    "commitlog_sync_group_window_in_ms": "NaN",
}
OF_5_0 = {
    "cdc_enabled": "true",
    "cdc_block_writes": "true",
    "cdc_total_space": "4096MiB",
    "cdc_total_space_in_mb": "4096",
    "commitlog_sync": "periodic",
    "commitlog_sync_period": "10000ms",
    "commitlog_sync_period_in_ms": "10000",
    "commitlog_sync_group_window": "0ms",
}


class Session:
    """A session whose node has these settings, or raises that."""

    def __init__(self, settings: dict[str, str] | Exception) -> None:
        self.settings = settings

    def execute(self, _: str, parameters: tuple[Sequence[str]]) -> list[tuple[str, str | None]]:
        if isinstance(self.settings, Exception):
            raise self.settings
        return [(name, self.settings[name]) for name in parameters[0] if name in self.settings]


@pytest.mark.parametrize(
    ("rows", "settings"),
    [
        (OF_5_0, SAFE),
        (OF_4_0, replace(SAFE, cdc_block_writes=None)),
        (OF_5_0 | {"cdc_block_writes": "false"}, replace(SAFE, cdc_block_writes=False)),
        (OF_5_0 | {"cdc_on_repair_enabled": "false"}, replace(SAFE, cdc_on_repair_enabled=False)),
        (
            OF_5_0 | {"commitlog_sync": "group", "commitlog_sync_group_window": "1s"},
            replace(SAFE, commitlog_sync="group", commitlog_sync_ms=1000),
        ),
        (OF_5_0 | {"commitlog_sync": "batch"}, replace(SAFE, commitlog_sync="batch", commitlog_sync_ms=None)),
        (OF_5_0 | {"cdc_total_space": "0MiB", "cdc_enabled": "perhaps"}, replace(SAFE, cdc_total_space=None, cdc_enabled=None)),
        ({}, CdcSettings()),
        (InvalidRequest("keyspace system_views does not exist"), CdcSettings()),
        (Unauthorized("User shipper has no SELECT permission"), CdcSettings()),
    ],
    ids=["5.0", "4.0", "drops", "streams", "group", "batch", "nonsense", "none", "3.11", "not allowed"],
)
def test_settings_as_releases_show_them(rows: dict[str, str] | Exception, settings: CdcSettings) -> None:
    assert take_settings(Session(rows)) == settings


@pytest.mark.parametrize(
    ("text", "size"),
    [("4096MiB", 4 * GIB), ("4GiB", 4 * GIB), ("512 B", 512), ("2KiB", 2048), ("0MiB", None), ("", None), ("many", None), ("NaNMiB", None)],
)
def test_sizes_as_cassandra_writes_them(text: str, size: int | None) -> None:
    assert size_of(text) == size


@pytest.mark.parametrize(
    ("text", "milliseconds"),
    [
        ("1000ms", 1000),
        ("10s", 10_000),
        ("2m", 120_000),
        ("1h", 3_600_000),
        ("0.0ms", 0),
        ("NaNms", None),
        ("", None),
        ("1w", None),
        ("٣s", None),
    ],
)
def test_durations_as_cassandra_writes_them(text: str, milliseconds: int | None) -> None:
    assert duration_of(text) == milliseconds


@given(st.dictionaries(st.sampled_from([*OF_5_0, *OF_4_0]), st.text(max_size=20) | st.sampled_from([*OF_5_0.values()])))
def test_whatever_a_node_shows_is_read_back_from_its_document(rows: dict[str, str]) -> None:
    found = parse_settings(rows)
    assert CdcSettings.parse(found.to_document()) == found


def test_what_drops_writes() -> None:
    assert [each.name for each in SAFE.unsafe()] == []
    assert [each.name for each in CdcSettings().unsafe()] == []
    assert [each.name for each in replace(SAFE, cdc_block_writes=None).unsafe()] == []
    all_of_them = replace(SAFE, cdc_block_writes=False, cdc_enabled=False, cdc_on_repair_enabled=False)
    assert [each.name for each in all_of_them.unsafe()] == list(CdcSettings.CHECKED)
    assert "cdc_enabled is false" in str(next(all_of_them.unsafe()))
    # Before 4.1 there is none, and what is streamed is logged.
    assert [each.name for each in replace(SAFE, cdc_on_repair_enabled=None).unsafe()] == []


class Node:
    """Answers with `found`; None: it does not answer."""

    def __init__(self, found: CdcSettings | None) -> None:
        self.found, self.asked, self.now = found, 0, 0.0

    def ask(self) -> CdcSettings:
        self.asked += 1
        if self.found is None:
            raise ShipError("connection refused", operation="query the node's CDC settings", retriable=True)
        return self.found


def test_it_is_asked_until_it_answers_and_each_minute_then() -> None:
    node = Node(None)
    monitor = SettingsMonitor(structlog.get_logger(), clock=lambda: node.now)
    for _ in range(3):
        monitor.refresh(node.ask)
    assert (node.asked, monitor.known) == (3, None)
    node.found = SAFE
    for _ in range(3):
        monitor.refresh(node.ask)
    assert (node.asked, monitor.known) == (4, SAFE)
    node.now, node.found = EVERY_SECONDS, None
    monitor.refresh(node.ask)
    monitor.refresh(node.ask)
    assert (node.asked, monitor.known) == (5, SAFE), "the last answer counts while it is down"
    monitor.forget()
    monitor.refresh(node.ask)
    assert (node.asked, monitor.known) == (6, None)


@pytest.mark.advice(
    "Set `cdc_block_writes: true` in cassandra.yaml", "Set `cdc_enabled: true` in cassandra.yaml", "Set `cdc_on_repair_enabled: true`"
)
def test_each_change_is_one_line_in_the_log() -> None:
    node = Node(SAFE)
    monitor = SettingsMonitor(structlog.get_logger(), clock=lambda: node.now)

    def errors() -> list[tuple[str, str]]:
        with capture_logs() as logs:
            monitor.refresh(node.ask)
        node.now += EVERY_SECONDS
        return [(log["event"], log["setting"]) for log in logs if "setting" in log]

    assert errors() == []
    node.found = replace(SAFE, cdc_block_writes=False)
    assert errors() == [("node drops captured writes without an error", "cdc_block_writes")]
    assert errors() == []
    node.found = replace(node.found, cdc_enabled=False, commitlog_sync="batch")
    assert errors() == [("node drops captured writes without an error", "cdc_enabled")]
    node.found = replace(node.found, cdc_on_repair_enabled=False)
    assert errors() == [("node drops captured writes without an error", "cdc_on_repair_enabled")]
    node.found = SAFE
    assert sorted(errors()) == [("node no longer drops captured writes", name) for name in sorted(CdcSettings.CHECKED)]


def test_the_metric_claims_nothing_of_what_is_not_known(store: LocalStore, agent_over: Callable[..., Agent]) -> None:
    link = FakeLink(block_writes=None)
    agent = agent_over(store, link=link)

    def sample(setting: str) -> Any:
        return agent.metrics.registry.get_sample_value("writetime_ship_unsafe_setting", {"setting": setting})

    agent.round()
    assert (sample("cdc_enabled"), sample("cdc_block_writes")) == (0, None)
    link.block_writes = False
    agent = agent_over(store, link=link)
    agent.round()
    assert (sample("cdc_enabled"), sample("cdc_block_writes")) == (0, 1)
