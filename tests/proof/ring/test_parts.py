"""The parts of the proof that need neither ring nor Spark: schedule, comparison, shrinking, and that every
sabotage finds its rule."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Sequence
from dataclasses import replace
from decimal import Decimal
from itertools import pairwise
from types import SimpleNamespace
from typing import Any
from unittest.mock import Mock
from uuid import UUID

import pyarrow as pa
import pytest
from cassandra import ReadFailure
from cassandra.cqltypes import lookup_casstype

from proof.ring import answer, check, cli, held, sabotage
from proof.ring.answer import Answer, Captured, Row, TableAnswer
from proof.ring.cli import Wanted
from proof.ring.generate import Generator
from proof.ring.lake import Event, _snapshot_after
from proof.ring.schedule import HELD, LONGEST_STRETCH, MISSED, Step, schedule, upgrade
from proof.ring.shrink import shrink
from proof.ring.topology import Topology
from proof.ring.values import from_lake, from_ring
from tests.spark_jobs.examples import ORDERS, insert, schema_of
from writetime.cassandra.commitlog.encode import encode_mutation, encode_segment
from writetime.cassandra.commitlog.mutation import decode_mutation
from writetime.cassandra.commitlog.segment import peek, scan
from writetime.cassandra.types.native import Duration
from writetime.cassandra.types.types import parse_type
from writetime.errors import DecodeError
from writetime.events.arrow import arrow_type, to_arrow_value

# --- the ring's answer


def test_a_table_that_cassandra_itself_cannot_read_is_named_and_the_others_are_read(monkeypatch: pytest.MonkeyPatch) -> None:
    def read_table(_: object, about: Captured, *__: object, of_elements: bool) -> TableAnswer:
        if about.name == "broken":
            raise ReadFailure("Replica(s) failed to execute read")
        return TableAnswer(about.keyspace, about.name, "id", [], {}, untold=[] if of_elements else about.multicell)

    captured = [Captured("proof", name, "id", [], [], ["l"], hidden=[]) for name in ("a", "broken", "b")]
    monkeypatch.setattr(answer, "_captured", lambda _: iter(captured))
    monkeypatch.setattr(answer, "_read_table", read_table)
    session = Mock()
    session.execute.return_value.one.return_value.release_version = "4.1.10"
    found = answer.read(session)
    assert [table.untold for table in found.tables] == [["l"], ["l"]]
    assert [table.name for table in found.tables] == ["a", "b"]
    assert list(found.unreadable) == ["proof.broken"]
    assert "failed to execute" in found.unreadable["proof.broken"]


# --- the schedule


@pytest.mark.parametrize("seed", range(20))
@pytest.mark.parametrize("ops", [10, 600, 20_000])
def test_a_schedule_keeps_two_nodes_up_and_ends_quietly(seed: int, ops: int) -> None:
    steps = schedule(seed, ops)
    assert steps == schedule(seed, ops)
    assert steps != schedule(seed + 1, ops)
    assert [step.at for step in steps] == sorted(step.at for step in steps)
    assert (steps[-1].at, steps[-1].what) == (ops, "quiet")
    quiet = [0, *(step.at for step in steps if step.what == "quiet")]
    assert max(b - a for a, b in pairwise(quiet)) <= LONGEST_STRETCH
    away: set[int] = set()
    for step in steps:
        if step.what in ("stop", "kill"):
            away.add(step.node)
        if step.what == "start":
            away.discard(step.node)
        assert len(away) <= 1
    assert {"stop", "kill"} & {step.what for step in steps}


@pytest.mark.parametrize("seed", range(20))
@pytest.mark.parametrize("ops", [2_000, 20_000])
def test_a_long_run_changes_the_ring_and_ends_with_three_nodes(seed: int, ops: int) -> None:
    changes = [step for step in schedule(seed, ops) if step.what in ("join", "leave", "replace")]
    assert [step.what for step in changes] == ["join", "leave", "replace"]
    # The others find the ring by asking the first one.
    assert all(step.node != 0 for step in changes)


@pytest.mark.parametrize("seed", range(20))
@pytest.mark.parametrize("ops", [240, 600, 20_000])
def test_in_each_stretch_something_expires_and_a_node_is_alone_of_which_segments_come_late(seed: int, ops: int) -> None:
    steps = schedule(seed, ops)
    quiet = [number for number, step in enumerate(steps) if step.what == "quiet"]
    for start, end in pairwise([-1, *quiet]):
        stretch = steps[start + 1 : end]
        assert any(_comes_late(stretch[:number], stretch[number:]) for number, step in enumerate(stretch) if step.what == "alone")


def _comes_late(before: list[Step], alone: list[Step]) -> bool:
    """Whether all are there, something is to expire, and a batch takes in what another one has sealed
    since."""
    ended, came = ([step.node for step in before if step.what in what] for what in (("stop", "kill"), ("start",)))
    at = next((step.at for step in alone if step.what == "together"), None)
    after = [step for step in alone if step.at == at and step.what in ("together", "roll", "ship", "batch")]
    others = {step.node for step in after if step.what == "ship"} - {alone[0].node}
    return (
        len(ended) == len(came)
        and [step.what for step in before[-1:]] == ["expire"]
        and bool(others)
        and {step.what for step in after} == {"together", "roll", "ship", "batch"}
    )


@pytest.mark.parametrize("seed", range(20))
@pytest.mark.parametrize("ops", [120, 600, 20_000])
def test_in_each_stretch_segments_are_held_over_a_purge_with_all_nodes_up(seed: int, ops: int) -> None:
    steps = schedule(seed, ops)
    quiet = [number for number, step in enumerate(steps) if step.what == "quiet"]
    for start, end in pairwise([-1, *quiet]):
        stretch = steps[start + 1 : end]
        assert [step.what for step in stretch if step.what in HELD] == list(HELD)
        before = [step.what for step in stretch[: next(n for n, step in enumerate(stretch) if step.what == "hold")]]
        assert before.count("start") == before.count("stop") + before.count("kill")
        assert stretch[-1].what == "let in" or stretch[-1].at == stretch[-2].at == steps[end].at


@pytest.mark.parametrize("seed", range(20))
@pytest.mark.parametrize("ops", [120, 600, 2_000, 20_000])
def test_where_schema_changes_have_epochs_a_node_misses_one_in_each_stretch(seed: int, ops: int) -> None:
    steps = schedule(seed, ops, has_epochs=True)
    # All else is as it is without.
    assert [step for step in steps if step.what != MISSED] == schedule(seed, ops)
    quiet = [number for number, step in enumerate(steps) if step.what == "quiet"]
    for start, end in pairwise([-1, *quiet]):
        stretch = steps[start + 1 : end]
        (at,) = (number for number, step in enumerate(stretch) if step.what == MISSED)
        before = [step.what for step in stretch[:at]]
        # It ends no outage early, and a segment that is held may hold what it has written.
        assert before.count("start") == before.count("stop") + before.count("kill")
        assert "hold" not in before


@pytest.mark.parametrize(("version", "missed"), [("5.0.6", 0), ("6.0-alpha2", 1)])
def test_a_node_misses_a_change_in_a_run_of_6_0_only(version: str, missed: int) -> None:
    wanted = Wanted(1, 240, version)
    steps = cli._steps(wanted, cli.Part(cli._generator(wanted), wanted))
    assert [step.what for step in steps].count(MISSED) == missed


@pytest.mark.parametrize("seed", range(5))
def test_an_upgrade_is_among_operations_that_a_ring_of_two_versions_takes(seed: int) -> None:
    operations = list(Generator(seed, 900))
    steps = upgrade(operations)
    assert [(step.what, step.node) for step in steps] == [("upgrade", node) for node in range(3)]
    first, last = steps[0].at, steps[-1].at
    assert 300 <= first < last < 600
    assert not any(operation.needs_one_version for operation in operations[first : last + 1])
    assert last - first >= 20


def test_without_chaos_nobody_goes_away() -> None:
    steps = schedule(1, 2000, chaos=False, has_epochs=True)
    assert not {"stop", "kill", "alone", "join", "leave", "replace", MISSED, *HELD} & {step.what for step in steps}


# --- segments that are held

_SCHEMA = schema_of(ORDERS)
_SEGMENT = [encode_mutation(insert(ORDERS, number, {"name": name}, 7), _SCHEMA) for number, name in enumerate(("one", "held", "two"))]


def _frames(data: bytes) -> list[bytes]:
    found = scan(data)
    return [found.body(frame) for frame in found.frames]


def test_a_flipped_byte_costs_its_frame_and_no_other() -> None:
    whole = encode_segment(1, 7, _SEGMENT)
    damaged = held.damaged(whole, b"held", held.flip)
    assert damaged is not None
    assert len(damaged) == len(whole)
    assert _frames(damaged) == [_SEGMENT[0], _SEGMENT[2]]
    assert [problem.kind for problem in scan(damaged).problems] == ["corrupt_frame"]
    assert held.damaged(whole, b"nowhere", held.flip) is None


def test_a_garbled_frame_is_whole_and_of_its_table_and_cannot_be_decoded() -> None:
    damaged = held.damaged(encode_segment(1, 7, _SEGMENT), b"held", held.garble)
    assert damaged is not None
    assert scan(damaged).problems == []
    one, garbled, two = _frames(damaged)
    assert [one, two] == [_SEGMENT[0], _SEGMENT[2]]
    assert peek(garbled, version=7) == peek(_SEGMENT[1], version=7)
    with pytest.raises(DecodeError):
        decode_mutation(garbled, _SCHEMA)


# --- values

VALUES: list[tuple[str, str, Any]] = [
    ("int", "Int32Type", -5),
    ("text", "UTF8Type", "größe"),
    ("varint", "IntegerType", -(2**70)),
    ("decimal", "DecimalType", Decimal("-1.500E+7")),
    ("float", "FloatType", 0.10000000149011612),
    ("double", "DoubleType", -0.0),
    ("blob", "BytesType", b"\x00\xff"),
    ("boolean", "BooleanType", True),
    ("uuid", "UUIDType", UUID(int=7)),
    ("inet", "InetAddressType", "2001:db8::1"),
    ("timestamp", "TimestampType", -62135596800001),
    ("date", "SimpleDateType", -800_000),
    ("time", "TimeType", 86_399_999_999_999),
    ("duration", "DurationType", Duration(-1, -2, -(2**40))),
    ("frozen<list<int>>", "ListType(Int32Type)", [1, None, 3]),
    ("frozen<map<text, frozen<list<int>>>>", "MapType(UTF8Type,ListType(Int32Type))", [("a", [1]), ("b", [])]),
    ("tuple<int, text>", "TupleType(Int32Type,UTF8Type)", (1, None)),
    ("vector<float, 2>", "VectorType(FloatType,2)", [1.5, -2.0]),
    ("vector<text, 2>", "VectorType(UTF8Type,2)", ["a", "bc" * 100]),
]


@pytest.mark.parametrize(("cql", "name", "value"), VALUES, ids=[cql for cql, _, _ in VALUES])
def test_both_sides_take_one_form(cql: str, name: str, value: Any) -> None:
    kind = parse_type(cql, "k", {})
    driver = lookup_casstype(name)
    column = pa.array([to_arrow_value(kind, value), None], arrow_type(kind))
    told = [from_ring(driver, kind.encode(value)), from_ring(driver, None)]
    assert check.same(told, from_lake(column))
    assert told[0] is not None


@pytest.mark.parametrize(
    ("name", "raw", "elements", "told"),
    [
        ("SetType(DecimalType)", "00000001 00000005 000000010a", True, ["1"]),
        ("SetType(DecimalType)", "00000001 00000005 000000010a", False, ["1.0"]),
        ("SetType(TupleType(DecimalType))", "00000001 00000009 00000005 fffffffe01", True, [{"field_1": "100"}]),
        ("MapType(DecimalType,DecimalType)", "00000001 00000005 000000010a 00000005 000000010a", True, [["1", "1.0"]]),
        ("ListType(DecimalType)", "00000001 00000005 000000010a", True, ["1.0"]),
    ],
)
def test_decimals_that_identify_elements_have_one_spelling(name: str, raw: str, elements: bool, told: Any) -> None:
    assert from_ring(lookup_casstype(name), bytes.fromhex(raw), elements) == told


def test_near_is_not_the_same() -> None:
    assert not check.same(0.0, -0.0)
    assert not check.same(1, True)
    assert not check.same({"a": None}, None)
    assert check.same({"a": 1, "b": None}, {"a": 1})


# --- the comparison

ONE = {"p": 1, "v": "a"}
TWO = {"p": 1, "v": "b"}


class FakeLake:
    def __init__(self, rows: list[Row], events: list[Event]) -> None:
        self.rows, self.events = rows, events

    def current(self, _: TableAnswer) -> list[Row]:
        return self.rows

    def changes(self, _: TableAnswer) -> list[Event]:
        return self.events

    def numbers(self, *_: str) -> list[tuple[int, int]]:
        return sorted((event.batch, event.ordinal) for event in self.events)


def event(
    ordinal: int, before: Any, after: Any, changed: Sequence[str] = ("v",), op: str | None = None, record: bytes = b'{"p":1}'
) -> Event:
    op = op or ("c" if before is None else "d" if after is None else "u")
    return Event(1, ordinal, op, None, "[1]", before, after, list(changed), 5, "id", {}, record)


RING = Row("[1]", TWO, {"v": 5}, {"v": 1000})
GOOD = [event(1, None, ONE), event(2, ONE, TWO)]


def found(ring: Row, rows: list[Row], events: list[Event]) -> set[str]:
    answer = TableAnswer("k", "t", "id", ["p"], {ring.key: ring}, 900, 1)
    return {mismatch.check for mismatch in check.check_table(answer, FakeLake(rows, events), "here")}  # type: ignore[arg-type]


def test_what_is_right_is_right() -> None:
    assert found(RING, [RING], GOOD) == set()
    assert found(RING, [replace(RING, expires_at={"v": 1001})], GOOD) == set()


@pytest.mark.parametrize(
    ("rows", "events", "checks"),
    [
        ([replace(RING, values=ONE)], [event(1, None, ONE)], {"table"}),
        ([replace(RING, writetime={"v": 4})], GOOD, {"table"}),
        ([replace(RING, expires_at={"v": 1003})], GOOD, {"table"}),
        ([replace(RING, expires_at={})], GOOD, {"table"}),
        ([], [*GOOD, event(3, TWO, None)], {"table"}),
        ([RING, RING], GOOD, {"table"}),
        ([RING], [event(1, None, ONE)], {"fold"}),
        ([RING], [event(1, None, ONE), event(2, None, TWO)], {"before"}),
        ([RING], [event(1, None, TWO), event(2, TWO, TWO)], {"event"}),
        ([RING], [event(1, None, TWO, op="u")], {"event"}),
        ([RING], [event(1, None, ONE), event(2, ONE, TWO, changed=())], {"event"}),
        ([RING], [event(1, None, ONE), event(2, ONE, TWO, record=b'{"q":1}')], {"consumer"}),
        ([RING], [event(1, None, TWO), event(2, TWO, None), event(3, None, TWO), event(4, TWO, None)], {"consumer"}),
        ([RING], [event(1, None, ONE), event(3, ONE, TWO)], {"duplicate"}),
        ([RING], [event(1, None, ONE), event(1, ONE, TWO)], {"duplicate"}),
    ],
)
def test_what_is_wrong_is_told(rows: list[Row], events: list[Event], checks: set[str]) -> None:
    assert checks <= found(RING, rows, events)


def test_a_truncate_ends_all_rows() -> None:
    events = [event(1, None, ONE), Event(1, 2, "t", None, "", None, None, [], 6, "id", {}), event(3, None, TWO)]
    assert found(RING, [RING], events) == set()


# --- shrinking and sabotages


def test_shrinking_finds_a_short_prefix_and_few_kinds() -> None:
    kinds = frozenset("abcdefgh")

    def fails(wanted: Wanted) -> bool:
        return (wanted.prefix if wanted.prefix is not None else wanted.ops) >= 130 and "c" not in wanted.without

    smallest = shrink(Wanted(1, 1000), fails, kinds)
    assert not smallest.chaos
    assert smallest.prefix is not None
    assert 130 <= smallest.prefix <= 150
    assert "c" not in smallest.without
    assert len(smallest.without) >= 5
    assert smallest.command.startswith("make ring SEED=1 OPS=1000 ARGS=")


def test_the_command_that_repeats_a_run_names_its_store() -> None:
    assert Wanted(7, 400, store="s3").command == "make ring SEED=7 OPS=400 STORE=s3"
    assert Wanted(7, 400).command == "make ring SEED=7 OPS=400"


def test_a_rule_that_is_none_is_refused_with_all_names() -> None:
    with pytest.raises(ValueError, match="tie-break"):
        sabotage.apply("nothing")


def test_a_sabotage_that_would_only_crash_is_refused() -> None:
    def honest(body: bytes, *, counter: bool, policy: str = "4.0") -> None: ...

    sabotage._expect_alike(honest, lambda body, **options: None, "honest")
    sabotage._expect_alike(honest, lambda body, *, counter, policy="4.0": None, "honest")
    for crashes in (lambda body, counter: None, lambda body, *, counter: None, lambda **options: None):
        with pytest.raises(ValueError, match="in place of honest"):
            sabotage._expect_alike(honest, crashes, "honest")


def test_every_sabotage_finds_what_it_breaks() -> None:
    """In a process of its own: a rule stays broken."""
    assert len(sabotage.RULES) >= 12
    code = "from proof.ring import sabotage\nfor rule in sabotage.RULES: sabotage.apply(rule)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


class Snapshots:
    """A table of the catalog, of whose snapshots (id, parent, batch) the last one is current."""

    def __init__(self, *snapshots: tuple[int, int | None, int | None]) -> None:
        self.found = {number: self._snapshot(number, parent, batch) for number, parent, batch in snapshots}

    def _snapshot(self, number: int, parent: int | None, batch: int | None) -> SimpleNamespace:
        more = {} if batch is None else {"writetime.batch": str(batch)}
        return SimpleNamespace(snapshot_id=number, parent_snapshot_id=parent, summary=SimpleNamespace(additional_properties=more))

    def current_snapshot(self) -> SimpleNamespace | None:
        return list(self.found.values())[-1] if self.found else None

    def snapshot_by_id(self, number: int) -> SimpleNamespace | None:
        return self.found.get(number)


@pytest.mark.parametrize(("batch", "snapshot"), [(0, None), (1, 10), (2, 30), (3, 30), (4, 30), (5, 60), (9, 60)])
def test_the_snapshot_of_a_batch_is_the_last_one_up_to_it(batch: int, snapshot: int | None) -> None:
    """30 is a compaction after batch 2, 40 was rolled back, 60 a compaction after batch 5."""
    table = Snapshots((10, None, 1), (20, 10, 2), (30, 20, None), (40, 30, 4), (50, 30, 5), (60, 50, None))
    assert _snapshot_after(table, batch) == snapshot  # type: ignore[arg-type]
    expired = Snapshots((20, 10, 2), (30, 20, None))
    assert _snapshot_after(expired, 1) is None  # type: ignore[arg-type]


def test_a_table_that_was_not_what_the_cluster_answered_is_found() -> None:
    answer = TableAnswer("k", "t", "id", ["p"], {RING.key: RING}, 900, 1)
    lakes = {7: [RING], 8: [replace(RING, values=ONE)], 9: None}
    lake: Any = SimpleNamespace(current_after=lambda _, batch: lakes[batch])
    compared, found = check.check_history([(batch, Answer([answer])) for batch in lakes], lake, "end")
    assert compared == 2
    assert [(each.where, each.column) for each in found] == [("end, as of batch 8", "v")]


def test_a_run_of_two_datacenters_cuts_the_link_between_them() -> None:
    wanted = Wanted(4, 240, tiny=True, topology=Topology(2, 2))
    assert {"cut", "cut for long"} & {step.what for step in cli._steps(wanted, cli._generator(wanted))}
