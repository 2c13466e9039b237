"""Tails of growing segments: recorded segments, cut at possible sync positions, and possible errors."""

from __future__ import annotations

import contextlib
import itertools
import json
import os
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from threading import Event
from typing import Any

import pytest
import yaml
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st
from rich.console import Console
from structlog.testing import capture_logs

from proof.decoder import packed
from proof.recording.recording import Recording
from shippers import tail
from shippers.agent import Agent, Mode
from shippers.status import status, status_table
from shippers.tail import Tail
from shippers.upload import Outcome
from tests.examples import examples
from tests.shippers.conftest import NODE, FakeLink, Folder, ref
from tests.shippers.faults import Died, Faults, FaultyStore, Harm
from writetime.cassandra.commitlog.descriptor import Descriptor
from writetime.cassandra.commitlog.encode import encode_segment
from writetime.config.node import ShipConfig
from writetime.config.pipeline import PipelineConfig
from writetime.errors import ShipError, StoreUnavailable
from writetime.storage import layout, segment_parts
from writetime.storage.checksum import crc32c
from writetime.storage.layout import SegmentName, SegmentRef
from writetime.storage.local import LocalStore

FACTS = {"host_id": NODE.host_id}
WRITTEN = 1_767_225_600.0
KINDS = (
    "plain",
    "4.0.18-v7-LZ4",
    "4.1.10-v7-Snappy",
    "5.0.6-v7-Deflate",
    "5.0.6-v8-Zstd",
    "6.0-alpha2-v9-LZ4",
    "4.0.18-v7-encrypted",
    "5.0.6-v7-encrypted",
)


@dataclass
class Segment:
    """A finished segment, and where its sections end: in its file, and as the idx counts."""

    name: SegmentName
    data: bytes
    ends: list[tuple[int, int]]

    @classmethod
    def of(cls, path: Path) -> Segment:
        data, name = path.read_bytes(), SegmentName.parse(path.name)
        start = 18 + int.from_bytes(data[12:14], "big")
        plain = start == 20
        ends = []
        at = logical = start
        while at + 8 <= len(data) and (following := int.from_bytes(data[at : at + 4], "big")):
            logical += following - at if plain else 8 + int.from_bytes(data[at + 8 : at + 12], "big")
            at = following
            ends.append((at, logical))
        # A node that stops writes an empty section behind the last that it counts.
        assert int(path.with_name(name.idx_filename).read_text().split()[0]) in [logical for _, logical in ends[-2:]]
        return cls(name, data, ends)

    @property
    def ref(self) -> SegmentRef:
        return SegmentRef(NODE, self.name)

    def grow(self, folder: Path, sections: int, *, more: bytes = b"\xff" * 40) -> int:
        """Write the file as it is once `sections` are synced, with `more` unsynced bytes behind; returns the
        idx's position.
        """
        end, logical = self.ends[sections - 1]
        (folder / self.name.filename).write_bytes(self.data[:end] + more)
        (folder / self.name.idx_filename).write_text(str(logical))
        return logical


@pytest.fixture(scope="module")
def recorded(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Segment]:
    """The recorded segment of that kind with the most sections."""
    known: dict[str, Segment] = {}

    def get(kind: str) -> Segment:
        if kind not in known:
            folder = tmp_path_factory.mktemp(kind)
            (Recording.open() if kind == "plain" else packed.Packed(packed.FOLDER / kind)).stage(folder)
            found = (idx.with_name(idx.name.replace("_cdc.idx", ".log")) for idx in folder.rglob("*.idx"))
            known[kind] = max(map(Segment.of, found), key=lambda segment: len(segment.ends))
        return known[kind]

    return get


def made(folder: Path, data: bytes) -> Segment:
    """A plain segment, encoded as completed."""
    path = folder / SegmentName(int.from_bytes(data[4:12], "big"), 7).filename
    path.write_bytes(data)
    path.with_name(f"{path.stem}_cdc.idx").write_text(f"{len(data)}\nCOMPLETED")
    return Segment.of(path)


def shipped(store: LocalStore, of: SegmentRef) -> bytes:
    """The parts' bytes, as readers choose them; overlapping parts must be equal."""
    data = b""
    for part in segment_parts.run(segment_parts.of(store, of), 0):
        data = data[: part.start] + store.read(part.info.name)
    for part in segment_parts.of(store, of):
        content = store.read(part.info.name)
        assert content == data[part.start : part.end]
        assert (part.info.crc32c, part.info.metadata["crc32c"]) == (crc32c(content), str(crc32c(content)))
    return data


def apart(store: LocalStore, of: SegmentRef) -> bool:
    """Whether no byte is in two parts."""
    found = segment_parts.of(store, of)
    return all(one.end <= other.start for one, other in itertools.pairwise(found))


@pytest.mark.parametrize("kind", KINDS)
def test_parts_are_what_the_node_has_synced(kind: str, recorded: Callable[[str], Segment], store: LocalStore, tmp_path: Path) -> None:
    segment = recorded(kind)
    assert len(segment.ends) > 2
    long = Tail(store, tmp_path, tmp_path / "state")
    for count in (1, 1, len(segment.ends) // 2 or 1, len(segment.ends)):
        # One that goes on, and one that has just started.
        for each in (long, Tail(store, tmp_path, tmp_path / "state")):
            list(each.ship(segment.ref, segment.grow(tmp_path, count), WRITTEN, FACTS))
            assert shipped(store, segment.ref) == segment.data[: segment.ends[count - 1][0]]
            assert each.reached(segment.ref) == segment.ends[count - 1]
            assert apart(store, segment.ref)
    last = segment_parts.of(store, segment.ref)[-1]
    assert last.info.metadata["logical_to"] == str(segment.ends[-1][1])
    assert (last.info.metadata["sealed_at"], last.info.metadata["host_id"]) == ("2026-01-01T00:00:00+00:00", NODE.host_id)


@pytest.mark.parametrize("kind", ["plain", "4.0.18-v7-LZ4"])
def test_half_an_idx_ships_whole_sections_only(kind: str, recorded: Callable[[str], Segment], store: LocalStore, tmp_path: Path) -> None:
    segment = recorded(kind)
    synced = segment.grow(tmp_path, len(segment.ends))
    for number in (synced - 1, int(str(synced)[:-1]), int(str(synced)[:-2]), 1):
        list(Tail(store, tmp_path, tmp_path / "state").ship(segment.ref, number, WRITTEN, FACTS))
        whole = max([end for end, logical in segment.ends if logical <= max(number, synced // 10)], default=0)
        assert len(shipped(store, segment.ref)) in {end for end, _ in segment.ends} | {0}
        assert len(shipped(store, segment.ref)) >= whole


def test_nothing_behind_the_synced_offset_is_read(
    recorded: Callable[[str], Segment], store: LocalStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real, furthest = os.pread, [0]

    def pread(file: int, size: int, start: int) -> bytes:
        furthest[0] = max(furthest[0], start + size)
        return real(file, size, start)

    monkeypatch.setattr(os, "pread", pread)
    for kind in KINDS:
        segment, furthest[0] = recorded(kind), 0
        for count in sorted({1, 2, len(segment.ends) // 2, len(segment.ends)}):
            list(Tail(store, tmp_path, tmp_path / "state").ship(segment.ref, segment.grow(tmp_path, count), WRITTEN, FACTS))
            assert furthest[0] == segment.ends[count - 1][0]


BODIES = [bytes([number]) * (50 + number) for number in range(40)]
STEP = st.tuples(st.integers(1, 40), st.booleans(), st.sampled_from(["", "lost", "away"]))
"""How many sections are synced, whether the shipper is a new one, and what becomes of its next put."""
MADE = encode_segment(7, 7, BODIES, per_section=1)


@settings(max_examples=examples(30), suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.lists(STEP, min_size=1, max_size=5), st.integers(110, 900))
def test_parts_together_are_what_was_synced_whatever_happens(
    tmp_path_factory: pytest.TempPathFactory, steps: list[tuple[int, bool, str]], most: int
) -> None:
    folder = tmp_path_factory.mktemp("tail")
    segment, store = made(folder, MADE), LocalStore(folder / "bucket")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(tail, "MOST", most)
        weather: list[str] = []
        each = Tail(_Weather(store, weather), folder, folder / "state")
        for count, again, fault in sorted(steps):
            weather[:] = [fault] if fault else []
            each = Tail(_Weather(store, weather), folder, folder / "state") if again else each
            synced = segment.grow(folder, count)
            try:
                list(each.ship(segment.ref, synced, WRITTEN, FACTS))
            except StoreUnavailable:
                weather[:] = []
                list(each.ship(segment.ref, synced, WRITTEN, FACTS))
            assert shipped(store, segment.ref) == segment.data[: segment.ends[count - 1][0]]
            assert all(part.info.size <= most + 20 for part in segment_parts.of(store, segment.ref))
            assert apart(store, segment.ref)


class _Weather:
    """A store whose next put comes to nothing (`away`), or whose answer is lost."""

    def __init__(self, inner: LocalStore, faults: list[str]) -> None:
        self._inner, self._faults, self.url = inner, faults, inner.url

    def put(self, name: str, data: Any, *, if_generation: int | None = None, metadata: Mapping[str, str] | None = None) -> Any:
        fault = self._faults.pop() if self._faults else ""
        info = None if fault == "away" else self._inner.put(name, data, if_generation=if_generation, metadata=metadata)
        if fault:
            raise StoreUnavailable("503", operation="put")
        return info

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)


def test_a_section_that_is_too_large_to_be_held_goes_by_a_file(store: LocalStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tail, "MOST", 500)
    data = encode_segment(7, 7, [b"a" * 100, b"b" * 600, b"c" * 100, b"d" * 100], per_section=1)
    segment, put = made(tmp_path, data), []

    class Watched(FaultyStore):
        def put(self, name: str, data: bytes | Path, **more: Any) -> Any:
            put.append(isinstance(data, Path))
            return super().put(name, data, **more)

    list(Tail(Watched(store), tmp_path, tmp_path / "state").ship(segment.ref, segment.grow(tmp_path, 4), WRITTEN, FACTS))
    assert put == [False, True, False]
    assert shipped(store, segment.ref) == segment.data
    assert [path.name for path in (tmp_path / "state").iterdir()] == [tail.NOTE]


def growing(folder: Folder, number: int = 7, count: int = 3, of: int = 5, seed: bytes = b"x") -> Segment:
    """A small plain segment in cdc_raw, of which some sections are synced. It is another file than one that
    was there before.
    """
    before = folder.path / f"CommitLog-7-{number}.log"
    if before.exists():
        # As long as it is there, its inode is nobody else's.
        before.rename(folder.path.parent / f"kept-{time.monotonic_ns()}")
    segment = made(folder.path, encode_segment(number, 7, [seed * (40 + each) for each in range(of)], per_section=1))
    segment.grow(folder.path, count, more=bytes(100))
    return segment


def test_parts_with_other_bytes_stop_the_tail_and_nothing_else(store: LocalStore, folder: Folder) -> None:
    other = growing(folder, seed=b"o")
    list(Tail(store, folder.path, folder.path.parent / "state").ship(other.ref, other.ends[2][1], WRITTEN, FACTS))
    before = {part.info.name: part.info.generation for part in segment_parts.of(store, other.ref)}
    segment = growing(folder)
    for _ in range(2):
        with pytest.raises(ShipError, match="differs from the segment"):
            list(Tail(store, folder.path, folder.path.parent / "state").ship(segment.ref, segment.ends[2][1], WRITTEN, FACTS))
    assert {part.info.name: part.info.generation for part in segment_parts.of(store, other.ref)} == before


def test_a_part_damaged_on_its_way_is_noticed(store: LocalStore, folder: Folder) -> None:
    class Damaging(FaultyStore):
        def put(self, name: str, data: Any, **more: Any) -> Any:
            return super().put(name, data[:-1] + b"?", **more)

    segment = growing(folder)
    with pytest.raises(ShipError, match="differs from the segment"):
        list(Tail(Damaging(store), folder.path, folder.path.parent / "state").ship(segment.ref, segment.ends[2][1], WRITTEN, FACTS))


@pytest.mark.parametrize(
    ("content", "why"),
    [
        (b"", "invalid segment header"),
        (MADE, "does not match the file name"),
        (encode_segment(8, 7, [b"a"])[:20] + bytes(500), "sync marker is missing"),
        (encode_segment(8, 7, [b"a" * 99, b"b"], per_section=1)[:100], "shorter than its idx|sync marker is missing"),
        (None, "failed to open the file"),
    ],
)
def test_what_has_no_tail(content: bytes | None, why: str, store: LocalStore, folder: Folder) -> None:
    if content is not None:
        (folder.path / "CommitLog-7-8.log").write_bytes(content)
    with pytest.raises(ShipError, match=why):
        list(Tail(store, folder.path, folder.path.parent / "state").ship(ref(8), 400, WRITTEN, FACTS))
    assert list(store.list("cdc_parts/")) == []


def test_parts_of_a_longer_life_wait_for_the_idx(store: LocalStore, folder: Folder) -> None:
    segment = growing(folder, count=4)
    list(Tail(store, folder.path, folder.path.parent / "state").ship(segment.ref, segment.ends[3][1], WRITTEN, FACTS))
    again = Tail(store, folder.path, folder.path.parent / "state")
    assert list(again.ship(segment.ref, segment.ends[1][1], WRITTEN, FACTS)) == []
    assert list(again.ship(segment.ref, segment.ends[3][1], WRITTEN, FACTS)) == []
    assert again.reached(segment.ref) == segment.ends[3], "the idx was half-written: nothing follows from it"


def test_the_note_says_where_a_new_start_goes_on(store: LocalStore, folder: Folder) -> None:
    segment, state = growing(folder), folder.path.parent / "state"
    list(Tail(store, folder.path, state).ship(segment.ref, segment.ends[2][1], WRITTEN, FACTS))
    segment.grow(folder.path, 5)
    watched = FaultyStore(store)
    list(Tail(watched, folder.path, state).ship(segment.ref, segment.ends[4][1], WRITTEN, FACTS))
    assert watched.calls == [("put", segment.ref.part(segment.ends[2][0], segment.ends[4][0]))]


DAMAGED = st.one_of(
    st.binary(max_size=60),
    st.recursive(
        st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=9),
        lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=9), inner, max_size=3),
        max_leaves=9,
    ).map(lambda value: json.dumps(value).encode()),
    st.tuples(st.integers(-2, 400) | st.integers(), st.integers(-2, 400) | st.integers()).map(lambda places: _note(*places)),
    st.lists(st.integers() | st.floats() | st.text(max_size=3), max_size=4).map(lambda numbers: _note(*numbers)),
)
"""What is there instead."""
CHANGED_BYTE = st.tuples(st.integers(0, 150), st.integers(0, 255))
"""A place in what is there, and its new value."""


def _note(*numbers: object) -> bytes:
    """A note of the growing segment of the test below; `inode` stands for that of its file."""
    return json.dumps({"store": "STORE", "reached": {f"cdc_parts/{NODE.path}/CommitLog-7-7": [*numbers, "INODE"]}}).encode()


@settings(max_examples=examples(80), suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(note=st.none() | DAMAGED | CHANGED_BYTE)
@example(note=b'{"store": "STORE", "reached": {"cdc_parts/ring/dc1/host-1/CommitLog-7-7": [1e999, 5, 5]}}')
@example(note=b"[" * 100_000)
@example(note=_note(0, 330))
@example(note=_note(266, 0))
def test_a_note_that_is_lost_or_damaged_costs_no_byte(
    tmp_path_factory: pytest.TempPathFactory, note: bytes | tuple[int, int] | None
) -> None:
    """The segment is shipped completely in at most two scans, from its beginning if necessary."""
    path = tmp_path_factory.mktemp("note")
    (path / "cdc_raw").mkdir()
    folder, store, state = Folder(path / "cdc_raw"), LocalStore(path / "bucket"), path / "state"
    segment = growing(folder)
    list(Tail(store, folder.path, state).ship(segment.ref, segment.ends[2][1], WRITTEN, FACTS))
    inode = str((folder.path / segment.name.filename).stat().st_ino)
    segment.grow(folder.path, 5)
    if note is None:
        (state / tail.NOTE).unlink()
    elif isinstance(note, tuple):
        data = bytearray((state / tail.NOTE).read_bytes())
        data[note[0] % len(data)] = note[1]
        (state / tail.NOTE).write_bytes(data)
    else:
        (state / tail.NOTE).write_bytes(note.replace(b"STORE", store.url.encode()).replace(b'"INODE"', inode.encode()))
    again = Tail(store, folder.path, state)
    for _ in range(2):
        with contextlib.suppress(ShipError):
            list(again.ship(segment.ref, segment.ends[4][1], WRITTEN, FACTS))
    assert again.reached(segment.ref) == segment.ends[4]
    assert shipped(store, segment.ref) == segment.data[: segment.ends[4][0]]


def test_a_note_of_another_file_is_no_note(store: LocalStore, folder: Folder) -> None:
    """The same name and the same places of sections, and other bytes: nothing of the two may be joined."""
    other, state = growing(folder, seed=b"o"), folder.path.parent / "state"
    list(Tail(store, folder.path, state).ship(other.ref, other.ends[2][1], WRITTEN, FACTS))
    segment = growing(folder, count=5)
    assert segment.ends == other.ends
    watched = FaultyStore(store)
    list(Tail(watched, folder.path, state).ship(segment.ref, segment.ends[4][1], WRITTEN, FACTS))
    assert [name for what, name in watched.calls if what == "put"] == [segment.ref.part(0, segment.ends[4][0])]


def test_a_note_for_another_store_or_node_is_no_note(store: LocalStore, folder: Folder) -> None:
    segment, state = growing(folder), folder.path.parent / "state"
    another = SegmentRef(replace(NODE, host_id="host-2"), segment.name)
    there = LocalStore(folder.path.parent / "another bucket")
    for each, of in ((store, segment.ref), (there, segment.ref), (there, another)):
        list(Tail(each, folder.path, state).ship(of, segment.ends[2][1], WRITTEN, FACTS))
        assert shipped(each, of) == segment.data[: segment.ends[2][0]]


def test_a_note_that_cannot_be_written_stops_nothing(store: LocalStore, folder: Folder) -> None:
    segment = growing(folder)
    (folder.path.parent / "file").write_bytes(b"")
    each = Tail(store, folder.path, folder.path.parent / "file")
    list(each.ship(segment.ref, segment.ends[2][1], WRITTEN, FACTS))
    assert shipped(store, segment.ref) == segment.data[: segment.ends[2][0]]
    assert each.reached(segment.ref) == segment.ends[2]


# --- the agent


@pytest.fixture
def tailing(settings: PipelineConfig) -> PipelineConfig:
    assert settings.node is not None
    node = settings.node.model_copy(update={"ship": settings.node.ship.model_copy(update={"tail_seconds": 0.001})})
    return settings.model_copy(update={"node": node})


MakeAgent = Callable[..., Agent]


def names_in(store: LocalStore, prefix: str = "cdc") -> list[str]:
    return [info.name for info in store.list(prefix)]


@pytest.fixture
def by_default(settings: PipelineConfig) -> PipelineConfig:
    assert settings.node is not None
    return settings.model_copy(update={"node": settings.node.model_copy(update={"ship": ShipConfig()})})


def test_tails_are_shipped_by_default_and_null_turns_them_off(
    store: LocalStore, folder: Folder, settings: PipelineConfig, by_default: PipelineConfig, agent_over: MakeAgent
) -> None:
    segment = growing(folder)
    off = ShipConfig.model_validate(yaml.safe_load("tail_seconds: null"))
    assert settings.node is not None
    without = settings.model_copy(update={"node": settings.node.model_copy(update={"ship": off})})
    assert agent_over(store, config=without).round().ok
    assert names_in(store) == []
    assert agent_over(store, config=by_default).round().ok
    assert names_in(store) == [segment.ref.part(0, segment.ends[2][0])]


def test_a_sync_is_one_object_at_most_and_one_for_what_is_larger(
    store: LocalStore, folder: Folder, by_default: PipelineConfig, agent_over: MakeAgent, monkeypatch: pytest.MonkeyPatch
) -> None:
    """However often the shipper looks, and of however many sections a sync is: a plain segment has a marker
    every 100 ms.
    """
    monkeypatch.setattr(tail, "MOST", 1000)
    segment, watched = growing(folder, count=1, of=40), FaultyStore(store)
    agent = agent_over(watched, config=by_default)
    agent.round()
    shipped_before = segment.ends[0][0]
    for count in (2, 9, 10, 40):
        segment.grow(folder.path, count)
        before = len(names_in(store, "cdc_parts/"))
        agent.round()
        assert len(names_in(store, "cdc_parts/")) == before, "the next look is due a second after the last one"
        for _ in range(3):
            agent._growing.due_at = 0.0
            agent.round()
        size = segment.ends[count - 1][0] - shipped_before
        assert len(names_in(store, "cdc_parts/")) - before == (1 if size <= 1000 else 3)
        shipped_before = segment.ends[count - 1][0]
    assert shipped(store, segment.ref) == segment.data
    assert size > 2000, "the last sync was one of several parts"


def test_a_node_of_3_11_has_no_tail(store: LocalStore, folder: Folder, by_default: PipelineConfig, agent_over: MakeAgent) -> None:
    """Its segments appear in cdc_raw when they are finished; there is nothing to ship before, and nothing to
    report.
    """
    log = folder.path / "CommitLog-6-7.log"
    log.write_bytes(b"a segment of 3.11")
    agent = agent_over(store, config=by_default)
    with capture_logs() as logs:
        with log.open("r+b"):
            moving = agent.round()
        assert (moving.ok, moving.waiting, names_in(store)) == (True, 1, [])
        agent._growing.due_at = 0.0
        assert agent.round().shipped == {Outcome.UPLOADED: 1}
    assert names_in(store) == ["cdc/ring/dc1/host-1/CommitLog-6-7.log"]
    assert [log["event"] for log in logs if log["log_level"] in ("warning", "error")] == []
    assert not [log for log in logs if "tail" in log["event"] or "part" in log["event"]]
    assert (metric(agent, "parts_total"), metric(agent, "tail_synced_bytes"), metric(agent, "tail_lag_seconds")) == (0, 0, 0)
    document = status(by_default)
    assert document["shipper"]["tails"] == []


def test_a_segment_of_an_unknown_version_is_shipped_whole(
    store: LocalStore, folder: Folder, tailing: PipelineConfig, agent_over: MakeAgent
) -> None:
    """Where its sections end cannot be told before it is completed. That is no failure, and delays no other."""
    data = Descriptor(250, 8).encode() + b"whatever a later version writes"
    log, idx = (folder.path / f"CommitLog-250-8{end}" for end in (".log", "_cdc.idx"))
    log.write_bytes(data)
    idx.write_text(str(len(data)))
    other = growing(folder, count=2)
    agent = agent_over(store, config=tailing)
    with capture_logs() as logs:
        for _ in range(2):
            assert agent.round().ok
            agent._growing.due_at = 0.0
    assert names_in(store, "cdc_parts/") == [part.info.name for part in segment_parts.of(store, other.ref)] != []
    assert [log["version"] for log in logs if log["log_level"] == "warning"] == [250]
    assert agent._growing.caught_up is None
    idx.write_text(f"{len(data)}\nCOMPLETED")
    assert agent.round().shipped == {Outcome.UPLOADED: 1}
    assert store.read("cdc/ring/dc1/host-1/CommitLog-250-8.log") == data


def test_a_round_ships_tails_after_all_else_and_a_segment_once_it_is_finished(
    store: LocalStore, folder: Folder, tailing: PipelineConfig, agent_over: MakeAgent
) -> None:
    folder.segment(3)
    segment = growing(folder, count=2)
    watched = FaultyStore(store)
    agent = agent_over(watched, config=tailing)
    assert agent.round().shipped == {Outcome.UPLOADED: 1}
    puts = [name for what, name in watched.calls if what == "put" and name.startswith("cdc")]
    assert puts == [ref(3).incoming, segment.ref.part(0, segment.ends[1][0])]
    assert folder.names == ["CommitLog-7-7.log", "CommitLog-7-7_cdc.idx"], "a tail deletes nothing"
    segment.grow(folder.path, 5)
    agent.round()
    assert shipped(store, segment.ref) == segment.data
    (folder.path / segment.name.idx_filename).write_text(f"{segment.ends[4][1]}\nCOMPLETED")
    (folder.path / segment.name.filename).write_bytes(segment.data)
    agent.round()
    assert store.read(segment.ref.incoming) == segment.data
    assert folder.names == []


def test_tails_are_shipped_between_two_rounds(store: LocalStore, folder: Folder, tailing: PipelineConfig, agent_over: MakeAgent) -> None:
    assert tailing.node is not None
    slow = tailing.model_copy(update={"node": tailing.node.model_copy(update={"poll_seconds": 3600.0})})
    segment, stop = growing(folder, count=1), Event()

    class Growing(FaultyStore):
        def put(self, name: str, *args: Any, **more: Any) -> Any:
            info = super().put(name, *args, **more)
            if name.startswith("cdc_parts/"):
                segment.grow(folder.path, min(5, 1 + len(names_in(store, "cdc_parts/"))))
            if info.name.endswith(f"-{segment.ends[4][0]:010d}"):
                stop.set()
            return info

    agent_over(Growing(store), config=slow, stop=stop).run(Mode.SERVICE)
    assert shipped(store, segment.ref) == segment.data
    assert [part.end for part in segment_parts.of(store, segment.ref)] == [end for end, _ in segment.ends]


def test_the_schema_goes_before_what_may_need_it(
    store: LocalStore, folder: Folder, tailing: PipelineConfig, agent_over: MakeAgent, monkeypatch: pytest.MonkeyPatch
) -> None:
    segment, link, watched = growing(folder, count=1), FakeLink(), FaultyStore(store)
    agent = agent_over(watched, config=tailing, link=link)
    agent.round()
    # A table is made while the shipper waits for its next round, and written to.
    link.version = "v2"
    segment.grow(folder.path, 2)
    agent._growing.due_at = 0.0
    agent._growing.ship_if_due(agent._facts)
    puts = [name.split("/")[0] for what, name in watched.calls if what == "put"]
    puts.remove("truncations")
    assert puts == ["nodes", "schemas", "cdc_parts", "schemas", "cdc_parts"]
    asked = len(link.asked)
    agent._growing.due_at = 0.0
    agent._growing.ship_if_due(agent._facts)
    assert len(link.asked) == asked, "nothing is new"


def test_trouble_with_a_tail_is_reported_every_round_and_holds_up_nothing(
    store: LocalStore, folder: Folder, tailing: PipelineConfig, agent_over: MakeAgent
) -> None:
    other = growing(folder, seed=b"o")
    agent_over(store, config=tailing).round()
    growing(folder)
    good = growing(folder, number=9)
    agent = agent_over(store, config=tailing)
    for number in (3, 4):
        folder.segment(number)
        result = agent.round()
        assert [(type(error), error.obj) for error in result.failed] == [(ShipError, other.ref.part(0, other.ends[2][0]))]
        assert result.shipped == {Outcome.UPLOADED: 1}
    assert shipped(store, good.ref) == good.data[: good.ends[2][0]]
    assert metric(agent, "failures_total") == 1, "it is compared once, and then left alone for a while"


def test_a_store_that_is_away_is_asked_once_a_look(
    store: LocalStore, folder: Folder, tailing: PipelineConfig, agent_over: MakeAgent
) -> None:
    segments = [growing(folder, number=number) for number in (7, 8, 9)]

    class Away(FaultyStore):
        def put(self, name: str, *args: Any, **more: Any) -> Any:
            if name.startswith("cdc_parts/") and len([1 for what, _ in self.calls if what == "put"]) < 4:
                self.calls.append(("put", name))
                raise StoreUnavailable("503", operation="put")
            return super().put(name, *args, **more)

    watched = Away(store)
    agent = agent_over(watched, config=tailing)
    rounds = []
    for _ in range(5):
        time.sleep(0.005)  # longer than `tail_seconds`, so that each round looks at the tails
        rounds.append(agent.round())
    assert [result.ok for result in rounds[-1:]] == [True]
    assert [len(result.failed) for result in rounds if not result.ok] == [1] * sum(not result.ok for result in rounds)
    assert all(shipped(store, segment.ref) == segment.data[: segment.ends[2][0]] for segment in segments)


def test_at_an_alarm_no_tail_is_shipped(store: LocalStore, folder: Folder, tailing: PipelineConfig, agent_over: MakeAgent) -> None:
    assert tailing.node is not None
    growing(folder)
    ship = tailing.node.ship.model_copy(update={"cdc_total_space": 100})
    tight = tailing.model_copy(update={"node": tailing.node.model_copy(update={"ship": ship})})
    agent_over(store, config=tight).round()
    assert names_in(store) == []


def test_a_drain_ships_whole_files_alone(store: LocalStore, folder: Folder, tailing: PipelineConfig, agent_over: MakeAgent) -> None:
    segment = growing(folder)
    for path in folder.path.iterdir():
        os.utime(path, (WRITTEN, WRITTEN))
    assert agent_over(store, config=tailing).run(Mode.DRAIN)
    assert names_in(store) == [segment.ref.incoming]


def test_the_metrics_say_how_far_it_is(store: LocalStore, folder: Folder, tailing: PipelineConfig, agent_over: MakeAgent) -> None:
    segment = growing(folder)
    agent = agent_over(store, config=tailing)
    agent.round()
    end = segment.ends[2][0]
    assert (metric(agent, "parts_total"), metric(agent, "part_bytes_total")) == (1, end)
    assert (metric(agent, "tail_synced_bytes"), metric(agent, "tail_shipped_bytes"), metric(agent, "tail_lag_seconds")) == (end, end, 0)


def test_the_status_says_how_far_it_is(
    store: LocalStore, folder: Folder, tailing: PipelineConfig, agent_over: MakeAgent, capsys: pytest.CaptureFixture[str]
) -> None:
    segment = growing(folder)
    agent_over(store, config=tailing).round()
    document = status(tailing)
    (growing_now,) = document["shipper"]["tails"]
    assert (growing_now["segment"], growing_now["synced"], growing_now["shipped"]) == (
        segment.name.filename,
        segment.ends[2][1],
        segment.ends[2][1],
    )
    Console(width=200).print(status_table(document))
    assert f"{segment.name.filename} grows: {segment.ends[2][1]} B of {segment.ends[2][1]} B shipped" in capsys.readouterr().out


def metric(agent: Agent, name: str) -> float:
    samples = [sample for family in agent.metrics.registry.collect() for sample in family.samples]
    return sum(sample.value for sample in samples if sample.name == f"writetime_ship_{name}")


def test_it_may_die_between_any_two_steps(
    folder: Folder, tailing: PipelineConfig, agent_over: MakeAgent, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tail, "MOST", 100)
    segment = growing(folder, count=4)
    died = 0
    for number in range(200):
        # A bucket of its own for each point of death: then the next start has to go on from just there.
        store, faults = LocalStore(tmp_path / f"bucket-{number}"), Faults(number, Harm.DEATH)
        try:
            agent_over(FaultyStore(store, faults), config=tailing).round()
        except Died:
            died += 1
            agent_over(store, config=tailing).round()
        assert shipped(store, segment.ref) == segment.data[: segment.ends[3][0]]
        if not faults.struck:
            break
    assert died >= 8, "before and after each of four parts"
    assert layout.part_range(segment_parts.of(LocalStore(tmp_path / "bucket-0"), segment.ref)[0].info.name)[0] == 0


def test_a_record_that_is_ahead_of_its_file_does_not_count(store: LocalStore, tmp_path: Path) -> None:
    """A machine that is set back to an earlier state goes on in the same file with other bytes. A number that is read while the
    idx is rewritten looks the same, but not twice."""
    before = made(tmp_path, encode_segment(1, 7, [b"one"] * 6, per_section=1))
    tail = Tail(store, tmp_path, tmp_path / "state")
    list(tail.ship(before.ref, before.grow(tmp_path, 6), WRITTEN, FACTS))
    synced = before.grow(tmp_path, 2)
    assert list(tail.ship(before.ref, synced, WRITTEN, FACTS)) == []
    list(tail.ship(before.ref, before.grow(tmp_path, 6), WRITTEN, FACTS))
    assert list(tail.ship(before.ref, synced, WRITTEN, FACTS)) == [], "each was read once"
    assert tail.reached(before.ref) == before.ends[5]
    after = Segment(before.name, encode_segment(1, 7, [b"one", b"two", b"two"], per_section=1), before.ends[:3])
    synced = after.grow(tmp_path, 3)
    list(tail.ship(after.ref, synced, WRITTEN, FACTS))
    assert [store.read(part.name) for part in tail.ship(after.ref, synced, WRITTEN, FACTS)] == [after.data]
    assert tail.reached(after.ref) == after.ends[2]


@pytest.mark.parametrize("digits", [1, 2])
def test_a_truncated_number_signs_nothing_off(
    digits: int, store: LocalStore, folder: Folder, agent_over: Callable[..., Agent], settings: PipelineConfig
) -> None:
    """What the node has synced since is not known then."""
    assert settings.node is not None
    node = settings.node.model_copy(update={"ship": ShipConfig(tail_seconds=1e-6)})
    agent = agent_over(store, config=settings.model_copy(update={"node": node}))
    segment = made(folder.path, encode_segment(1, 7, [b"mutation"] * 60, per_section=1))
    synced = segment.grow(folder.path, 30)
    agent.round()
    before = agent._growing.caught_up
    assert before is not None
    segment.grow(folder.path, 60)
    (folder.path / segment.name.idx_filename).write_text(str(synced)[:digits])
    agent.round()
    assert agent._growing.caught_up == before
    segment.grow(folder.path, 60)
    agent.round()
    assert agent._growing.caught_up not in (None, before)
