"""Ranges, runs that are gone on with, and the tables that are due."""

from __future__ import annotations

import json
import re
from datetime import UTC, datetime, timedelta
from itertools import pairwise
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.node_objects import schema_name
from tests.storage.memory import MemoryStore
from writetime.cassandra.schema import history
from writetime.cassandra.schema.model import Schema, Table
from writetime.cli import main
from writetime.config.pipeline import PipelineConfig
from writetime.errors import ConfigError
from writetime.pipeline.bootstrap import run as runs
from writetime.pipeline.bootstrap.run import (
    HIGHEST,
    LOWEST,
    RangeDone,
    Run,
    parse_part,
    split,
)
from writetime.pipeline.documents import Watermark
from writetime.storage import layout
from writetime.storage.local import LocalStore
from writetime.storage.store import Store

NOW = datetime(2026, 5, 4, 12, tzinfo=UTC)
CLUSTER = "ring"


def report_schema(store: Store, *, cdc: bool = True, at: int = 1, mode: str | None = None) -> None:
    """`mode`: how writes to `orders` go."""
    about = {"keyspace_name": "shop", "writetime": at}
    document: dict[str, Any] = {
        "keyspaces": [{**about, "durable_writes": True, "replication": {"class": "SimpleStrategy"}}],
        "tables": [{**about, "table_name": name, "id": str(id_), "cdc": cdc} for name, id_ in (("orders", ORDERS), ("notes", NOTES))],
        "columns": [
            {**about, "table_name": name, "column_name": "id", "kind": "partition_key", "type": "text", "position": 0}
            | {"clustering_order": "none"}
            for name in ("orders", "notes")
        ],
    }
    if mode is not None:
        document["tables"][0]["transactional_mode"], document["schema_version"] = mode, str(UUID(int=at))
    store.put(schema_name(CLUSTER, NOW + timedelta(seconds=min(at, 1000)), f"v{at}"), json.dumps(document).encode())


ORDERS, NOTES = "00000000-0000-1000-8000-000000000007", "00000000-0000-1000-8000-000000000009"


def config(mode: str = "initial", **more: Any) -> PipelineConfig:
    cluster = {"name": CLUSTER, "datacenters": ["dc1"], "cql": {"contact_points": ["10.0.0.1"]}}
    return PipelineConfig.model_validate({"pipeline": "p", "cluster": cluster, "bucket": "/b", "snapshot": {"mode": mode}, **more})


@pytest.fixture
def store() -> MemoryStore:
    made = MemoryStore()
    report_schema(made)
    return made


def schema(store: Store) -> Schema:
    from writetime.pipeline.segment_check import known_schema

    return known_schema(store, CLUSTER).schema()


def table(store: Store, name: str = "shop.orders") -> Table:
    return runs.table_named(schema(store), name)


def begun(store: Store, name: str = "shop.orders", part: runs.Range | None = None, ranges: int = 2) -> Run:
    return runs.begin(store, CLUSTER, table(store, name), part=part, ranges=split([], part, ranges), consistency="ALL", now=NOW)


def finish(store: Store, run: Run, *numbers: int) -> Run:
    for number in numbers:
        runs.finish_range(store, run, number, RangeDone(rows=10, frames=number, objects=[]))
    return runs.update(store, run, NOW)


# --- ranges


@given(tokens=st.lists(st.integers(LOWEST, HIGHEST), max_size=20), wanted=st.integers(1, 50))
def test_ranges_cover_the_ring_once_and_cross_no_token(tokens: list[int], wanted: int) -> None:
    found = split(tokens, None, wanted)
    assert found[0][0] == LOWEST
    assert found[-1][1] == HIGHEST
    assert all(low < high for low, high in found)
    assert all(a[1] == b[0] for a, b in pairwise(found))
    assert not any(low < token < high for token in tokens for low, high in found)
    assert len(found) >= min(wanted, 50)


def test_a_part_of_the_ring() -> None:
    part = parse_part("0:4611686018427387904")
    assert part == (0, 2**62)
    assert parse_part(":0") == (LOWEST, 0)
    found = split([-5, 7], part, 2)
    assert (found[0][0], found[-1][1]) == part
    assert 7 in {low for low, _ in found}


@pytest.mark.parametrize("text", ["", "5", "a:b", "7:7", "8:7", f"0:{2**63}"])
@pytest.mark.advice("Write A:B with ")
def test_what_is_no_range_is_refused(text: str) -> None:
    with pytest.raises(ConfigError) as refused:
        parse_part(text)
    advised = re.search(r"Write A:B with (-\d+) <= A < B <= (\d+)\.", str(refused.value))
    assert advised is not None
    assert parse_part(f"{advised[1]}:{advised[2]}") == (LOWEST, HIGHEST)


@pytest.mark.advice("Name the table whose tokens are to be read")
def test_a_range_belongs_to_a_table() -> None:
    """Otherwise that part of all tables that are due would be read, and their first reading would miss the rest."""
    assert runs.part_of([], "") is None
    with pytest.raises(ConfigError, match=r"0:100: a token range without a table"):
        runs.part_of([], "0:100")
    assert runs.part_of(["shop.orders"], "0:100") == (0, 100)
    with pytest.raises(ConfigError, match="invalid token range"):
        runs.part_of(["shop.orders"], "100:0")


# --- runs


def test_a_run_is_gone_on_with_until_it_is_finished(store: MemoryStore) -> None:
    run = begun(store)
    assert runs.unfinished(store, CLUSTER, table(store), None, "ALL") == run
    half = finish(store, run, 1)
    assert (half.rows, half.frames, half.remaining, half.finished_at) == (10, 1, 1, None)
    assert "1 of 2 ranges remain" in half.line()
    assert runs.finished_ranges(store, run).keys() == {1}
    done = finish(store, run, 0, 1)
    assert (done.remaining, done.finished_at) == (0, NOW)
    assert runs.unfinished(store, CLUSTER, table(store), None, "ALL") is None
    assert json.loads(store.read(run.name))["rows"] == 20


def test_another_part_is_another_run(store: MemoryStore) -> None:
    part = (0, 5)
    run = begun(store, part=part)
    assert runs.unfinished(store, CLUSTER, table(store), None, "ALL") is None
    assert runs.unfinished(store, CLUSTER, table(store), [part], "ALL") == run
    parts = [(0, 5), (7, 9)]
    assert runs.unfinished(store, CLUSTER, table(store), parts, "ALL") is None
    some = runs.begin(store, CLUSTER, table(store), part=(0, 9), ranges=runs.split_parts([2, 6], parts, 2), consistency="ALL", now=NOW)
    assert some.ranges == [(0, 2), (2, 5), (7, 9)]
    assert runs.unfinished(store, CLUSTER, table(store), parts, "ALL") == some
    assert runs.unfinished(store, CLUSTER, table(store), [(0, 9)], "ALL") is None
    assert runs.unfinished(store, CLUSTER, table(store), [part], "ALL") == run


@given(edges=st.lists(st.integers(-100, 100), min_size=2, max_size=12, unique=True), tokens=st.lists(st.integers(-100, 100), max_size=9))
def test_parts_of_the_ring_are_covered_and_nothing_else(edges: list[int], tokens: list[int]) -> None:
    edges = sorted(edges)
    parts = list(zip(edges[::2], edges[1::2], strict=False))
    found = runs.split_parts(tokens, parts, 8)
    assert runs.joined(found) == parts
    assert not any(low < token < high for token in tokens for low, high in found)
    assert all(a[1] <= b[0] for a, b in pairwise(found))


def test_an_unknown_table_is_refused(store: MemoryStore) -> None:
    assert table(store, '"shop"."orders"').name == "orders"
    with pytest.raises(ConfigError, match="no schema of the table is known"):
        table(store, "shop.nothing")


# --- what is due


def due(store: Store, settings: PipelineConfig) -> list[str]:
    return [each.name for each in runs.due(store, settings)]


def completed(store: Store, until: datetime) -> None:
    store.put(layout.complete(CLUSTER), Watermark(until=until).to_bytes())


def test_tables_that_were_never_read_are_due_until_they_are(store: MemoryStore) -> None:
    assert due(store, config()) == ["notes", "orders"]
    run = begun(store)
    assert due(store, config()) == ["notes", "orders"]
    finish(store, run, 0, 1)
    assert due(store, config()) == ["notes"]
    finish(store, begun(store, "shop.notes", part=(0, 5)), 0, 1)
    assert due(store, config()) == ["notes"], "a part is not all"


def test_nothing_is_due_where_nobody_wants_it_or_can(store: MemoryStore) -> None:
    assert due(store, config("never")) == []
    assert due(store, config(tables={"include": ["shop.o*"]})) == ["orders"]
    unreachable = config().model_copy(update={"cluster": config().cluster.model_copy(update={"cql": None})})
    assert due(store, unreachable) == []


def test_by_always_a_table_is_read_again_when_its_cdc_is_switched_on_again(store: MemoryStore) -> None:
    always = config("always")
    assert due(store, always) == ["notes", "orders"]
    for name in ("shop.orders", "shop.notes"):
        finish(store, begun(store, name), 0, 1)
        runs.no_longer_due(store, CLUSTER, table(store, name))
    assert due(store, always) == []
    report_schema(store, cdc=False, at=2)
    assert due(store, always) == []
    report_schema(store, cdc=True, at=3)
    assert due(store, always) == [], "the log from before may still bring rows that were deleted since"
    completed(store, datetime.now(UTC) - timedelta(hours=1))
    assert due(store, always) == []
    completed(store, datetime.now(UTC))
    assert due(store, always) == ["notes", "orders"]
    assert due(store, config("initial")) == []


@pytest.mark.parametrize("mode", ["initial", "never"])
def test_a_table_that_is_in_no_log_is_due_at_intervals_if_it_is_to_be_read(store: MemoryStore, mode: str) -> None:
    def at(seconds: int, choice: str = "read") -> list[str]:
        chosen = config(mode, tables={"not_in_log": choice, "not_in_log_seconds": 600})
        return [each.name for each in runs.due(store, chosen, NOW + timedelta(seconds=seconds))]

    others = {"initial": ["notes"], "never": []}[mode]
    report_schema(store, at=2, mode="full")
    assert at(0) == [*others, "orders"]
    assert at(0, "leave_out") == others
    finish(store, begun(store), 0, 1)
    assert (at(599), at(600)) == (others, [*others, "orders"]), "from the start of the reading before"
    assert at(600, "alarm") == at(600, "leave_out") == others
    report_schema(store, at=3, mode="off")
    assert at(600) == others


def test_what_was_off_and_on_between_two_looks_is_noticed(store: MemoryStore) -> None:
    """The logs tell of both; nobody had looked in between."""
    always = config("always")
    assert due(store, always) == ["notes", "orders"]
    for name in ("shop.orders", "shop.notes"):
        finish(store, begun(store, name), 0, 1)
        runs.no_longer_due(store, CLUSTER, table(store, name))
    ranges = split([], None, 2)
    a_minute_later = NOW + timedelta(minutes=1)
    half_way = runs.begin(store, CLUSTER, table(store), part=None, ranges=ranges, consistency="ALL", now=a_minute_later)
    assert due(store, always) == ["orders"], "it is gone on with"
    later = int((NOW + timedelta(minutes=5)).timestamp() * 1_000_000)
    report_schema(store, cdc=False, at=later)
    report_schema(store, cdc=True, at=later + 1)
    completed(store, NOW + timedelta(minutes=6))
    assert due(store, always) == ["notes", "orders"]
    assert runs.unfinished(store, CLUSTER, table(store), None, "ALL") is None, half_way
    for name in ("shop.orders", "shop.notes"):
        read = runs.begin(
            store, CLUSTER, table(store, name), part=None, ranges=half_way.ranges, consistency="ALL", now=NOW + timedelta(minutes=6)
        )
        finish(store, read, 0, 1)
        runs.no_longer_due(store, CLUSTER, table(store, name))
    assert due(store, always) == []


@pytest.mark.parametrize(
    ("switches", "since"),
    [
        ([], None),
        ([(1, True)], None),
        ([(1, False), (2, True)], None),
        ([(1, True), (2, False)], None),
        ([(1, True), (2, False), (3, True), (4, True)], 3),
        ([(1, True), (2, False), (3, True), (4, False), (5, True)], 5),
        ([(1, True), (2, False), (3, True), (4, False)], None),
    ],
)
def test_since_when_cdc_is_on_again(switches: list[tuple[int, bool]], since: int | None) -> None:
    assert history._back(switches) == since


def test_a_run_from_before_cdc_was_off_is_not_gone_on_with(store: MemoryStore) -> None:
    assert due(store, config()) == ["notes", "orders"]
    old = begun(store)
    assert runs.unfinished(store, CLUSTER, table(store), None, "ALL") == old
    report_schema(store, cdc=False, at=2)
    assert due(store, config()) == []
    report_schema(store, cdc=True, at=3)
    runs.due(store, config(), NOW + timedelta(seconds=5))
    assert runs.unfinished(store, CLUSTER, table(store), None, "ALL") is None
    new = runs.begin(store, CLUSTER, table(store), part=None, ranges=old.ranges, consistency="ALL", now=NOW + timedelta(seconds=6))
    runs.due(store, config(), NOW + timedelta(seconds=7))
    assert runs.unfinished(store, CLUSTER, table(store), None, "ALL") == new


def test_a_run_at_another_consistency_is_not_gone_on_with(store: MemoryStore) -> None:
    begun(store)
    assert runs.unfinished(store, CLUSTER, table(store), None, "ONE") is None


def test_names_of_tables_stay_in_their_places() -> None:
    odd = layout.bootstrap_run("c", "a/b", "t.x", "r")
    assert odd.count("/") == 3
    assert layout.bootstrap_prefix("c", "a/b", "t.x") in odd


# --- command


def test_the_command_shows_the_runs_so_far(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    place = LocalStore(tmp_path / "bucket")
    report_schema(place)
    finish(place, begun(place), 0)
    file = tmp_path / "pipeline.yaml"
    file.write_text("pipeline: p\ncluster: {name: ring, datacenters: [dc1]}\nbucket: bucket\n", encoding="utf-8")
    assert main(["bootstrap", "--config", str(file), "--status"]) == 0
    assert "shop.orders" in capsys.readouterr().out
    assert main(["bootstrap", "--config", str(file)]) == 2
    assert "no table was selected" in capsys.readouterr().err
    assert main(["bootstrap", "--config", str(file), "--table", "shop.orders"]) == 2
    assert "cluster.cql" in capsys.readouterr().err
