"""State shards: what is written is what is read, in order, once, whatever dies and whoever races."""

from __future__ import annotations

import multiprocessing
import os
import signal
import time
import uuid
from collections.abc import Callable, Iterable, Iterator
from multiprocessing.context import SpawnProcess
from pathlib import Path
from typing import Any

import lance
import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from lance.dataset import DatasetOptimizer

from spark_jobs.failures import kind_of
from spark_jobs.state import shards
from spark_jobs.state.places import reached
from spark_jobs.state.shards import SCHEMA, Record, Shard, Written, cleanup, in_batches, upsert
from tests import gcs_server, s3_server
from tests.examples import examples
from writetime.errors import BatchError, LeaseLost
from writetime.storage import open_store
from writetime.storage.lease import notes
from writetime.storage.store import Store

LEASE = "leases/ring/t/g0000/b00000.json"
LAST = b"\xff" * 8
QUICK = {"seconds": 0.6, "wait": 30.0, "skew": 0.2}


def numbered(numbers: Iterable[int], state: bytes = b"state", expires_at: int | None = None) -> list[Record]:
    return [Record(b"%06d" % number, state, expires_at) for number in numbers]


class Place:
    """A shard's uri, its store, and what a test does with them; pickled to other processes."""

    def __init__(self, root: str) -> None:
        self.uri, self.bucket = f"{root}/state/b00000", f"{root}/bucket"

    @property
    def store(self) -> Store:
        return open_store(self.bucket)

    def upsert(self, base: int, batch: int, records: Iterable[Record], **timing: float) -> Written:
        return upsert(self.uri, base, batch, in_batches(records), self.store, LEASE, **timing)

    def open(self, version: int | None = None) -> lance.LanceDataset:
        """As Lance knows it."""
        url, options = reached(self.uri)
        return lance.dataset(url, version=version, storage_options=options)

    def all(self, version: int) -> dict[bytes, bytes]:
        found = list(Shard(self.uri, version).scan(b"", LAST))
        assert found == sorted(found)
        assert len(dict(found)) == len(found)
        return dict(found)


@pytest.fixture(params=["folder", pytest.param("s3", marks=pytest.mark.s3), pytest.param("gcs", marks=pytest.mark.gcs)])
def place(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Place]:
    kind, bucket = request.param, f"t-{uuid.uuid4().hex}"
    # Of its own: tests undo theirs.
    with pytest.MonkeyPatch.context() as monkeypatch:
        if kind == "folder":
            yield Place(str(tmp_path))
        elif kind == "gcs":
            url = request.getfixturevalue("gcs_url")
            gcs_server.make_bucket(url, bucket)
            monkeypatch.setenv("STORAGE_EMULATOR_HOST", url)
            yield Place(f"gs://{bucket}/some")
        else:
            server: s3_server.Server = request.getfixturevalue("s3")
            server.make_bucket(bucket)
            s3_server.into_environment(monkeypatch, server.url, server.access, server.secret)
            yield Place(f"s3://{bucket}/some")


def test_what_was_written_is_found_by_key(place: Place) -> None:
    version = place.upsert(0, 1, numbered(range(10_000))).version
    shard = Shard(place.uri, version)
    wanted = [b"%06d" % number for number in range(0, 20_000, 2)]
    assert shard.get([*wanted, *wanted[:5]]) == dict.fromkeys(wanted[:5000], b"state")
    assert shard.get([]) == {}


def test_a_shard_that_does_not_exist_knows_nothing(place: Place) -> None:
    shard = Shard(place.uri, 0)
    assert (shard.get([b"a"]), list(shard.scan(b"", LAST)), list(shard.due(10)), shard.earliest_expiry()) == ({}, [], [], None)


@pytest.mark.s3
def test_a_shard_is_where_its_url_says(s3: s3_server.Server, monkeypatch: pytest.MonkeyPatch) -> None:
    s3_server.into_environment(monkeypatch, "http://127.0.0.1:1", s3.access, s3.secret)
    s3.make_bucket(bucket := f"t-{uuid.uuid4().hex}")
    place = Place(f"s3+{s3.url}/{bucket}/some")
    first = place.upsert(0, 1, numbered(range(20))).version
    second = place.upsert(first, 2, numbered(range(10), b""))
    assert set(place.all(second.version)) == {b"%06d" % number for number in range(10, 20)}
    assert any(each.name.startswith("state/b00000/data/") for each in open_store(f"s3+{s3.url}/{bucket}/some").names())


def test_versions_stay_as_they_were(place: Place) -> None:
    first = place.upsert(0, 1, numbered(range(4), b"old"))
    second = place.upsert(first.version, 2, [*numbered([1, 9], b"new"), *numbered([2, 77], b"")])
    assert place.all(first.version) == {b"%06d" % number: b"old" for number in range(4)}
    assert place.all(second.version) == {b"000000": b"old", b"000001": b"new", b"000003": b"old", b"000009": b"new"}


def test_a_batch_without_records_writes_nothing(place: Place) -> None:
    first = place.upsert(0, 1, [])
    assert place.all(first.version) == {}
    assert place.upsert(first.version, 2, []) == first


@pytest.mark.parametrize("count", [0, 1, 63, 64, 65, 500, 1001])
def test_scans_of_any_length_are_cut_and_lose_nothing(place: Place, count: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shards, "STREAMED", 128)
    # Two files whose keys interleave.
    first = place.upsert(0, 1, numbered(range(0, count, 2)))
    version = place.upsert(first.version, 2, numbered(range(1, count, 2))).version
    shard = Shard(place.uri, version)
    assert [key for key, _ in shard.scan(b"", LAST)] == [b"%06d" % number for number in range(count)]
    assert [key for key, _ in shard.scan(b"000003", b"000300")] == [b"%06d" % number for number in range(3, min(count, 300))]
    assert list(shard.scan(b"5", b"4")) == []
    intervals = [(b"%06d" % number, b"%06d" % (number + 3)) for number in range(0, count, 5)]
    assert [key for key, _ in shard.scan_all(intervals)] == [b"%06d" % number for number in range(count) if number % 5 < 3]


def test_a_scan_holds_a_piece_at_a_time(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shards, "STREAMED", 128)
    version = place.upsert(0, 1, numbered(range(3000))).version
    held = watch_held(monkeypatch)
    assert len(list(Shard(place.uri, version).scan(b"", LAST))) == 3000
    assert max(found.num_rows for found in held) <= 2 * 128


def watch_held(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """The tables of states that are held from now on."""
    held, hold = [], Shard._hold

    def watched(self: Shard, *args: Any, **kwargs: Any) -> Any:
        found = hold(self, *args, **kwargs)
        if found is not None:
            held.append(found)
        return found

    monkeypatch.setattr(Shard, "_hold", watched)
    return held


# Of each thousand, some hundred in a row are large, and a few larger than what may be held.
SIZES = {number: 100 if number % 1000 < 700 else 2_000 for number in range(3000)} | dict.fromkeys((5, 1800, 1801, 2999), 50_000)


def test_states_are_held_and_merged_by_their_bytes(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shards, "HELD", 40_000)
    merged, merge = [], shards._Chain._merge

    def watched(self: Any, table: Any, *, forget: bool) -> None:
        merged.append(table)
        merge(self, table, forget=forget)

    monkeypatch.setattr(shards, "WRITTEN", 250)
    monkeypatch.setattr(shards._Chain, "_merge", watched)
    some = {number: SIZES[number] for number in range(1600, 2000)}
    states = {b"%06d" % number: bytes(size) for number, size in some.items()}
    first = place.upsert(0, 1, [Record(key, state, None) for key, state in states.items()])
    assert max(table.num_rows for table in merged) <= 250
    assert max(table["state"].nbytes for table in merged if "state" in table.column_names) < 40_000 + 50_000 + 2_000

    monkeypatch.setattr(shards, "HELD", shards.HELD * 100)
    states = {b"%06d" % number: bytes(size) for number, size in SIZES.items()}
    version = place.upsert(first.version, 2, [Record(key, state, None) for key, state in states.items()]).version
    monkeypatch.setattr(shards, "HELD", 40_000)
    held = watch_held(monkeypatch)
    shard = Shard(place.uri, version)
    wanted = [*states, *(b"%06d" % number for number in range(5000, 5100))]
    assert shard.get(wanted) == states
    parts = list(shard.get_parts(wanted))
    assert [key for keys, _ in parts for key in keys] == wanted
    assert all(found == {key: states[key] for key in keys if key in states} for keys, found in parts)
    assert list(shard.scan(b"", LAST)) == list(states.items())
    assert list(shard.scan_all([(b"%06d" % n, b"%06d" % (n + 10)) for n in range(0, 3000, 10)])) == list(states.items())
    assert all(found.nbytes <= 40_000 or found.num_rows == 1 for found in held)


def test_what_is_due_comes_in_order(place: Place) -> None:
    records = [Record(b"c", b"s", 10), Record(b"a", b"s", 20), Record(b"b", b"s", 5), Record(b"d", b"s", None)]
    first = place.upsert(0, 1, records)
    shard = Shard(place.uri, first.version)
    assert [list(shard.due(now)) for now in (4, 5, 10, 99)] == [[], [b"b"], [b"b", b"c"], [b"a", b"b", b"c"]]
    assert first.earliest_expiry == shard.earliest_expiry() == 5
    second = place.upsert(first.version, 2, [Record(b"b", b"", None), Record(b"c", b"s", None)])
    assert second.earliest_expiry == 20
    assert place.upsert(second.version, 3, [Record(b"a", b"t", None)]).earliest_expiry is None


def test_where_nothing_expired_what_is_written_tells_when_something_does(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shards, "WRITTEN", 2)

    def read(_: Shard) -> int:
        raise AssertionError("it reads a column of the whole shard")

    def write(base: Written, batch: int, *expiries: int | None) -> Written:
        return place.upsert(base.version, batch, [Record(b"%d %d" % (batch, at), b"s", second) for at, second in enumerate(expiries)])

    with monkeypatch.context() as patch:
        patch.setattr(Shard, "earliest_expiry", read)
        first = place.upsert(0, 1, numbered(range(5)))
        second = write(first, 2, None, None, 9, 8, None)
        assert (first.earliest_expiry, second.earliest_expiry) == (None, 8)
        with pytest.raises(AssertionError, match="whole shard"):
            write(second, 3, 20)
    third = write(second, 3, 20)
    assert third.earliest_expiry == 8
    # Somebody has removed the lease: what it said of the base is not known.
    place.store.delete(LEASE)
    assert write(third, 4, 30).earliest_expiry == 8


KEYS = st.binary(max_size=3)


@pytest.mark.parametrize("searched", [0, shards.SEARCHED])
@settings(max_examples=examples(8), suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.lists(st.dictionaries(KEYS, st.sampled_from([b"", b"one", b"two"]), max_size=8), min_size=1, max_size=6), st.data())
def test_a_shard_is_a_sorted_dictionary(
    tmp_path_factory: pytest.TempPathFactory,
    monkeypatch: pytest.MonkeyPatch,
    searched: int,
    batches: list[dict[bytes, bytes]],
    data: st.DataObject,
) -> None:
    """Whether keys are found by the index or by reading them all."""
    monkeypatch.setattr(shards, "SEARCHED", searched)
    place = Place(str(tmp_path_factory.mktemp("shard")))
    known: dict[bytes, bytes] = {}
    version = 0
    for number, batch in enumerate(batches, 1):
        version = place.upsert(version, number, [Record(key, state, None) for key, state in batch.items()]).version
        known = {key: state for key, state in {**known, **batch}.items() if state}
        assert place.all(version) == known
    start, end = data.draw(KEYS), data.draw(KEYS)
    inside = [(key, state) for key, state in sorted(known.items()) if start <= key < end]
    shard = Shard(place.uri, version)
    assert list(shard.scan(start, end)) == inside
    assert shard.get([*batches[0], start]) == {key: known[key] for key in {*batches[0], start} if key in known}


# --- batches that are run again, die, race and sleep


def test_a_batch_writes_once_however_often_it_is_run(place: Place) -> None:
    first = place.upsert(0, 1, numbered(range(3)))
    assert place.upsert(0, 1, numbered(range(3))) == first
    second = place.upsert(first.version, 2, numbered([1], b"new"))
    assert place.upsert(first.version, 2, numbered([1], b"new")) == second
    assert place.open().version == second.version


def test_a_rerun_with_other_records_is_told_and_changes_nothing(place: Place) -> None:
    """Of a segment that could be read before, say: the state would be that of one run, the events those of
    another."""
    records = numbered(range(3))
    first = place.upsert(0, 1, records)
    assert place.upsert(0, 1, reversed(records)) == first, "in whatever order"
    others = (records[:2], [*records, *numbered([9])], numbered(range(3), b"other"), [records[0]._replace(expires_at=5), *records[1:]])
    for other in others:
        with pytest.raises(BatchError, match="an earlier run of the batch wrote other records"):
            place.upsert(0, 1, other)
    assert place.upsert(0, 1, records) == first


def test_a_rerun_is_the_same_however_its_records_are_cut(place: Place) -> None:
    records = [*numbered(range(7)), *numbered(range(7, 9), b"", None), *numbered([9], expires_at=0), *numbered([10], expires_at=2**33)]
    first = place.upsert(0, 1, records)
    whole = pa.Table.from_batches(in_batches(records), SCHEMA)
    for size in (1, 2, 5):
        cut = whole.to_batches(max_chunksize=size)
        assert upsert(place.uri, 0, 1, reversed(cut), place.store, LEASE) == first
        with pytest.raises(BatchError, match="other records"):
            upsert(place.uri, 0, 1, cut[1:], place.store, LEASE)


def test_many_records_are_merged_in_parts(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    """By number and by bytes, wherever a batch of them ends."""
    sizes: list[int] = []
    merge = shards._Chain._merge

    def noted(chain: Any, table: pa.Table, *, forget: bool) -> None:
        sizes.append(table.num_rows)
        merge(chain, table, forget=forget)

    monkeypatch.setattr(shards._Chain, "_merge", noted)
    monkeypatch.setattr(shards, "WRITTEN", 1000)
    first = place.upsert(0, 1, numbered(range(2500)))
    assert sizes == [1000, 1000, 500]
    assert len(place.all(first.version)) == 2500
    sizes.clear()
    monkeypatch.setattr(shards, "HELD", 5000)
    second = place.upsert(first.version, 2, numbered(range(20), bytes(1000)))
    assert sizes == [5, 5, 5, 5]
    assert len(place.all(second.version)) == 2500


def test_a_batch_that_is_behind_or_elsewhere_is_refused(place: Place) -> None:
    first = place.upsert(0, 1, numbered(range(3)))
    second = place.upsert(first.version, 2, numbered([1]))
    for base, batch in ((0, 1), (second.version, 2)):
        with pytest.raises(BatchError, match="has written it"):
            place.upsert(base, batch, [])


def test_a_record_that_comes_twice_is_a_defect(place: Place) -> None:
    with pytest.raises(BatchError, match="duplicate record key"):
        place.upsert(0, 1, numbered([1, 1]))
    assert place.all(place.upsert(0, 1, numbered([1])).version) == {b"000001": b"state"}


def test_a_version_that_is_gone_is_told(place: Place) -> None:
    place.upsert(0, 1, numbered([1]))
    with pytest.raises(BatchError, match="version 99 is gone"):
        Shard(place.uri, 99)


STEPS = ("write_dataset", "create_scalar_index", "merge_insert", "commit", "optimize_indices", "restore", "finish")


def count_steps(monkeypatch: pytest.MonkeyPatch, before: Callable[[int, str], None]) -> None:
    """Call `before` with number and name of each step of a write."""
    steps = 0

    def wrapped(name: str, step: Any) -> Any:
        def call(*args: Any, **kwargs: Any) -> Any:
            nonlocal steps
            steps += 1
            before(steps, name)
            return step(*args, **kwargs)

        return call

    owners: list[tuple[Any, str]] = [(lance, "write_dataset"), (lance.LanceDataset, "create_scalar_index")]
    owners += [(lance.LanceDataset, name) for name in ("merge_insert", "restore")]
    owners += [(DatasetOptimizer, "optimize_indices"), (shards.Lease, "finish")]
    for owner, name in owners:
        monkeypatch.setattr(owner, name, wrapped(name, getattr(owner, name)))
    monkeypatch.setattr(lance.LanceDataset, "commit", staticmethod(wrapped("commit", lance.LanceDataset.commit)))


class Death(Exception):
    pass


@pytest.mark.parametrize("base", ["none", "some"])
def test_a_batch_that_dies_anywhere_ends_the_same(place: Place, base: str, monkeypatch: pytest.MonkeyPatch) -> None:
    start = place.upsert(0, 1, numbered(range(5), b"old")).version if base == "some" else 0
    expected = {**(place.all(start) if start else {}), **{b"%06d" % number: b"new" for number in (3, 4, 5, 6)}}
    expected.pop(b"000000", None)
    records = [*numbered([3, 4, 5, 6], b"new"), *numbered([0], b"")]
    for died_at in range(1, 30):

        def die(step: int, name: str, at: int = died_at) -> None:
            if step == at:
                raise Death(name)

        with monkeypatch.context() as patch:
            count_steps(patch, die)
            try:
                written = place.upsert(start, 2, records)
            except Death:
                continue
        assert place.all(written.version) == expected
        # It died at each step of the way, and each time after all the steps that it takes to undo what the
        # last one left.
        assert died_at > (6 if start else 5)
        return
    pytest.fail("it never came to its end")


def in_another_process(target: Callable[..., None], *args: Any) -> SpawnProcess:
    process = multiprocessing.get_context("spawn").Process(target=target, args=args)
    process.start()
    return process


def race(place: Place, base: int, batch: int, go: Any, out: Any) -> None:
    """Write the batch as soon as the others are there; tell the version."""
    records = numbered(range(100), b"batch %d" % batch)
    go.wait()
    while True:
        try:
            out.put(place.upsert(base, batch, records, **QUICK))
            return
        except LeaseLost:
            continue


@pytest.mark.thorough
def test_processes_that_write_one_batch_at_once_write_it_once(place: Place) -> None:
    first = place.upsert(0, 1, numbered(range(50, 150), b"old"))
    context = multiprocessing.get_context("spawn")
    go, out = context.Barrier(4), context.Queue()
    racers = [in_another_process(race, place, first.version, 2, go, out) for _ in range(4)]
    written = [out.get(timeout=120) for _ in racers]
    for racer in racers:
        racer.join(60)
    assert len(set(written)) == 1
    assert place.all(written[0].version) == {b"%06d" % n: b"batch 2" if n < 100 else b"old" for n in range(150)}


def write_and_stop(place: Place, base: int, stop_at: int, path: str) -> None:
    """Write batch 2, but stop for good, threads and all, before the step with this number; leave a file there
    and one at the end."""
    patch = pytest.MonkeyPatch()

    def stop(step: int, name: str) -> None:
        if step == stop_at:
            Path(path).write_text(name)
            os.kill(os.getpid(), signal.SIGSTOP)

    count_steps(patch, stop)
    try:
        written = place.upsert(base, 2, numbered(range(100), b"batch 2"), **QUICK)
        Path(path + ".end").write_text(str(written.version))
    except LeaseLost as error:
        Path(path + ".end").write_text(str(error))


@pytest.fixture
def stalled(place: Place, tmp_path: Path) -> Iterator[Callable[[int, int], SpawnProcess]]:
    processes: list[SpawnProcess] = []

    def start(base: int, step: int) -> SpawnProcess:
        process = in_another_process(write_and_stop, place, base, step, str(tmp_path / "stopped"))
        processes.append(process)
        give_up = time.monotonic() + 60
        while not (tmp_path / "stopped").exists():
            assert process.is_alive()
            assert time.monotonic() < give_up
            time.sleep(0.05)
        return process

    yield start
    for process in processes:
        process.kill()
        process.join()


# merge_insert and commit of records, index, finish.
@pytest.mark.parametrize("step", [2, 3, 4])
@pytest.mark.parametrize("fate", ["killed", "wakes up"])
def test_who_takes_over_writes_what_counts(
    place: Place, tmp_path: Path, stalled: Callable[[int, int], SpawnProcess], step: int, fate: str
) -> None:
    first = place.upsert(0, 1, numbered(range(50, 150), b"old"))
    process = stalled(first.version, step)
    if fate == "killed":
        process.kill()
    second = place.upsert(first.version, 2, numbered(range(100), b"batch 2"), **QUICK)
    expected = {b"%06d" % n: b"batch 2" if n < 100 else b"old" for n in range(150)}
    if fate == "wakes up":
        assert process.pid is not None
        os.kill(process.pid, signal.SIGCONT)
        process.join(60)
        assert "another" in (tmp_path / "stopped.end").read_text()
    assert place.upsert(first.version, 2, numbered(range(100), b"batch 2"), **QUICK) == second
    assert place.all(second.version) == expected
    # Whatever a sleeper has left on top, the next batch starts from what counts.
    third = place.upsert(second.version, 3, numbered([7], b"batch 3"), **QUICK)
    assert place.all(third.version) == {**expected, b"000007": b"batch 3"}


@pytest.mark.advice("Run it again.")
def test_a_commit_that_came_between_is_noticed(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    first = place.upsert(0, 1, numbered(range(3), b"old"))

    def intrude(_: int, name: str) -> None:
        if name == "commit":
            monkeypatch.undo()
            place.open().delete("key = X'ff'")

    count_steps(monkeypatch, intrude)
    with pytest.raises(LeaseLost, match="another process has written"):
        place.upsert(first.version, 2, numbered(range(5), b"new"))
    assert len(place.all(place.upsert(first.version, 2, numbered(range(5), b"new")).version)) == 5


# --- over many batches


def test_many_batches_leave_few_files_and_an_index_that_knows_all(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shards, "FRAGMENTS", 5)
    monkeypatch.setattr(shards, "INDEX_PARTS", 3)
    version, known = 0, {}
    for batch in range(1, 20):
        records = [*numbered(range(batch * 3, batch * 3 + 9), b"batch %d" % batch), *numbered([batch], b"")]
        version = place.upsert(version, batch, records).version
        known.update({record.key: record.state for record in records})
        dataset = place.open(version)
        told = dataset.stats.index_stats(shards.INDEX)
        assert len(dataset.get_fragments()) <= 6
        assert (told["num_unindexed_rows"], told["num_indices"] <= 4) == (0, True)
    assert place.all(version) == {key: state for key, state in known.items() if state}


def test_versions_that_nobody_needs_are_removed(place: Place) -> None:
    version, versions = 0, []
    for batch in range(1, 6):
        version = place.upsert(version, batch, numbered(range(500), b"batch %d" % batch * 50)).version
        versions.append(version)
    assert cleanup(place.uri, [versions[2]], place.store, LEASE) > 0
    # The last write may not be sealed: a rerun starts from where it did.
    for kept, batch in ((versions[2], 3), (versions[3], 4), (versions[4], 5)):
        assert place.all(kept)[b"000001"] == b"batch %d" % batch * 50
    with pytest.raises(BatchError, match="gone"):
        Shard(place.uri, versions[1])
    assert place.upsert(versions[4], 6, numbered([1])).version > versions[4]
    assert notes(place.store, LEASE)["batch"] == 6
    assert cleanup(str(place.uri) + "-none", [], place.store, "leases/none.json") == 0


@pytest.mark.parametrize("what", ["forget", "cleanup"])
def test_who_was_suspended_removes_no_version_that_came_later(place: Place, monkeypatch: pytest.MonkeyPatch, what: str) -> None:
    records = {batch: list(numbered(range(50), b"batch %d" % batch)) for batch in (1, 2, 3, 4)}
    first = place.upsert(0, 1, records[1]).version
    mine = place.upsert(first, 2, records[2]).version
    later: list[int] = []
    opened = []

    def late(uri: str) -> lance.LanceDataset:
        opened.append(uri)
        if len(opened) == 2:
            # While it was suspended, others took its lease over.
            for batch in (3, 4):
                written = upsert(uri, later[-1] if later else mine, batch, in_batches(records[batch]), place.store, "leases/others.json")
                later.append(written.version)
        return real(uri)

    real = shards._open
    monkeypatch.setattr(shards, "_open", late)
    if what == "forget":
        shards.forget(place.uri, mine, place.store, LEASE)
    else:
        cleanup(place.uri, [mine], place.store, LEASE)
    for version, batch in ((mine, 2), *zip(later, (3, 4), strict=True)):
        assert place.all(version)[b"000001"] == b"batch %d" % batch
    if what == "forget":
        with pytest.raises(BatchError, match="gone"):
            Shard(place.uri, first)


@pytest.mark.parametrize("part", ["data", "_indices", "_versions"])
def test_a_file_that_is_gone_concerns_the_table_and_no_retry_helps(tmp_path: Path, part: str) -> None:
    place = Place(str(tmp_path))
    first = place.upsert(0, 1, numbered(range(100)))
    for path in (tmp_path / "state").rglob(f"{part}/**/*"):
        if path.is_file():
            path.unlink()
    attempts: dict[str, Callable[[], Any]] = {
        "read": lambda: Shard(place.uri, first.version).get([b"%06d" % 7]),
        "scanned": lambda: place.all(first.version),
        "written": lambda: place.upsert(first.version, 2, numbered([7], b"new")),
    }
    found = {}
    # Nothing that another test has left in memory.
    shards._session.cache_clear()
    for name, attempt in attempts.items():
        try:
            attempt()
        except Exception as error:  # noqa: BLE001 - whatever it is
            found[name] = kind_of(error)
    assert found
    assert set(found.values()) == {"table"}
