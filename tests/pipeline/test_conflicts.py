"""Segments of which there are other bytes: no batch takes any in, and a person decides which count."""

from __future__ import annotations

import json
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.examples import examples
from tests.pipeline.planning import plan_ingest
from tests.pipeline.test_planner import (
    CLUSTER,
    NOW,
    archive,
    ledger,
    plan,
    planned,
    ref,
    seal,
    ship,
)
from tests.storage.memory import MemoryStore
from writetime.cli import main
from writetime.config.airflow import WatchConfig
from writetime.errors import BatchError, ObjectNotFound
from writetime.monitoring.ignored import ignored
from writetime.monitoring.nodes import ring
from writetime.monitoring.watch import watch
from writetime.pipeline import conflicts
from writetime.pipeline.batch_history import Batches
from writetime.pipeline.completeness import holds
from writetime.pipeline.conflicts import Conflict, candidates, keep, undecided
from writetime.pipeline.documents import Contents
from writetime.pipeline.planner import read_sealed
from writetime.storage import layout
from writetime.storage.checksum import crc32c
from writetime.storage.local import LocalStore


@pytest.fixture
def store(tmp_path: Path) -> LocalStore:
    return LocalStore(tmp_path / "bucket")


def dispute(store: Any, segment_id: int, data: bytes = b"the node's own") -> str:
    """What a node ships where other bytes lie under the segment's name."""
    name = ref(segment_id).conflict(crc32c(data))
    store.put(name, data, if_generation=0, metadata={"sealed_at": NOW.isoformat()})
    return name


def taken(store: Any) -> list[str]:
    manifest = plan(store)
    return [] if manifest is None else [segment.object for segment in manifest.segments]


def test_no_batch_takes_either_in(store: LocalStore) -> None:
    squatted, other = ship(store, 1, b"squatted"), ship(store, 2)
    disputed = dispute(store, 1)
    assert taken(store) == [other]
    seal(store, planned(store))
    assert plan(store) is None
    (conflict,) = undecided(store, CLUSTER)
    assert (conflict.object, conflict.kept) == (squatted, None)
    assert [info.name for info in candidates(store, conflict)] == [squatted, disputed]


@pytest.mark.parametrize("mine", [True, False])
def test_what_was_decided_for_comes_in(store: LocalStore, mine: bool) -> None:
    squatted, disputed = ship(store, 1, b"squatted"), dispute(store, 1)
    assert plan(store) is None
    keep(store, CLUSTER, disputed if mine else squatted, "looked at both")
    manifest = planned(store)
    wanted, other = (b"the node's own", b"squatted") if mine else (b"squatted", b"the node's own")
    assert [(segment.object, segment.crc32c) for segment in manifest.segments] == [(squatted, crc32c(wanted))]
    assert store.read(ref(1).incoming) == wanted
    assert store.read(ref(1).rejected(crc32c(other))) == other
    assert [info.name for info in store.list("cdc/")] == [squatted]
    seal(store, manifest)
    archive(store, CLUSTER, 1)
    assert ledger(store, 1).crc32c == crc32c(wanted)
    assert (plan(store), undecided(store, CLUSTER)) == (None, [])


def test_other_bytes_of_what_was_archived(store: LocalStore) -> None:
    ship(store, 1, b"archived")
    seal(store, planned(store))
    archive(store, CLUSTER, 1)
    ship(store, 1, b"other bytes")
    assert plan(store) is None
    (conflict,) = undecided(store, CLUSTER)
    held, there = candidates(store, conflict)
    assert (held.name, there.name) == (ref(1).archived(NOW), ref(1).incoming)
    keep(store, CLUSTER, there.name, "the node is right")
    seal(store, planned(store))
    archive(store, CLUSTER, 2)
    assert ledger(store, 1).archived_as == ref(1).archived(NOW, crc32c=crc32c(b"other bytes"))
    assert plan(store) is None


def test_what_the_archive_holds_may_count(store: LocalStore) -> None:
    ship(store, 1, b"archived")
    seal(store, planned(store))
    archive(store, CLUSTER, 1)
    ship(store, 1, b"other bytes")
    assert plan(store) is None
    keep(store, CLUSTER, ref(1).archived(NOW), "the other is damaged")
    assert (plan(store), list(store.list("cdc/")), undecided(store, CLUSTER)) == (None, [], [])
    assert store.read(ref(1).rejected(crc32c(b"other bytes"))) == b"other bytes"


def test_what_comes_after_the_decision_counts_only_if_it_is_the_same(store: LocalStore) -> None:
    ship(store, 1, b"squatted")
    disputed = dispute(store, 1)
    plan(store)
    keep(store, CLUSTER, disputed, "ours")
    store.delete(ref(1).incoming)
    ship(store, 1, b"third bytes")
    assert plan(store) is None
    with pytest.raises(BatchError, match="other bytes were decided for before"):
        keep(store, CLUSTER, ref(1).incoming, "the third")


def test_a_conflict_that_no_planner_has_seen_yet(store: LocalStore) -> None:
    ship(store, 1, b"squatted")
    disputed = dispute(store, 1)
    assert [conflict.object for conflict in undecided(store, CLUSTER)] == [ref(1).incoming]
    keep(store, CLUSTER, disputed, "ours")
    assert taken(store) == [ref(1).incoming]


@pytest.mark.advice("They come in, or have.")
def test_what_was_decided_for_comes_in_whatever_is_decided_later(store: LocalStore) -> None:
    ship(store, 1, b"squatted")
    keep(store, CLUSTER, dispute(store, 1), "ours")
    third = dispute(store, 1, b"third bytes")
    with pytest.raises(BatchError, match="other bytes were decided for before"):
        keep(store, CLUSTER, third, "the third")
    manifest = planned(store)
    assert [(segment.object, segment.crc32c) for segment in manifest.segments] == [(ref(1).incoming, crc32c(b"the node's own"))]


@pytest.mark.parametrize("name", ["cdc/nobody", ref(1).incoming, ref(2).incoming, "cdc/other/dc1/h/CommitLog-7-1.log"])
def test_nothing_to_decide(store: LocalStore, name: str) -> None:
    ship(store, 2)
    with pytest.raises(ObjectNotFound, match=r"not a segment|no known conflict|another cluster"):
        keep(store, CLUSTER, name, "x")
    assert [info.name for info in store.list("")] == [ref(2).incoming]


class Death(BaseException):
    pass


class Dying(MemoryStore):
    """A store whose client dies before one of its writes."""

    left: int = 10_000

    def _step(self) -> None:
        self.left -= 1
        if self.left < 0:
            raise Death

    def put(self, *args: Any, **kwargs: Any) -> Any:
        self._step()
        return super().put(*args, **kwargs)

    def copy(self, *args: Any, **kwargs: Any) -> Any:
        self._step()
        return super().copy(*args, **kwargs)

    def delete(self, *args: Any, **kwargs: Any) -> Any:
        self._step()
        super().delete(*args, **kwargs)


@pytest.mark.parametrize("chosen", [0, 1, 2])
@pytest.mark.parametrize("steps", range(8))
def test_the_decision_may_die_between_any_two_steps(chosen: int, steps: int) -> None:
    store = Dying()
    ship(store, 1, b"squatted")  # type: ignore[arg-type]
    objects = [ref(1).incoming, dispute(store, 1), dispute(store, 1, b"and a third")]
    wanted = store.read(objects[chosen])
    store.left = steps
    with suppress(Death):
        keep(store, CLUSTER, objects[chosen], "x")
    store.left = 10_000
    keep(store, CLUSTER, objects[chosen], "x")
    assert [(info.name, store.read(info.name)) for info in store.list("cdc/")] == [(ref(1).incoming, wanted)]
    assert {store.read(info.name) for info in store.list("rejected/")} == {b"squatted", b"the node's own", b"and a third"} - {wanted}
    assert taken(store) == [ref(1).incoming]


@settings(max_examples=examples(60))
@given(st.lists(st.tuples(st.integers(1, 4), st.sampled_from([b"a", b"b"]), st.booleans()), max_size=12), st.integers(1, 3))
def test_whatever_is_shipped_no_segment_comes_in_twice_or_undecided(shipped: list[tuple[int, bytes, bool]], most: int) -> None:
    store = MemoryStore()
    folded: dict[str, set[int]] = {}
    for number, data, disputed in shipped:
        name = ref(number).conflict(crc32c(data)) if disputed else ref(number).incoming
        if store.head(name) is None:
            store.put(name, data, if_generation=0, metadata={"sealed_at": NOW.isoformat()})
        while (manifest := plan_ingest(store, CLUSTER, now=NOW, max_segments=most)) is not None:
            waiting = {conflict.object for conflict in undecided(store, CLUSTER)}
            for segment in manifest.segments:
                assert segment.object not in waiting
                assert segment.crc32c not in folded.setdefault(segment.object, set())
                folded[segment.object].add(segment.crc32c)
            seal(store, manifest)  # type: ignore[arg-type]
            archive(store, CLUSTER, manifest.number)
    assert all(len(contents) == 1 for contents in folded.values())


def test_it_holds_back_purges_and_is_seen(store: LocalStore) -> None:
    ship(store, 2)
    seal(store, planned(store))
    archive(store, CLUSTER, 1)
    ship(store, 1, b"squatted")
    disputed = dispute(store, 1)
    assert plan(store) is None
    assert disputed in [hold.by for hold in holds(store, CLUSTER, read_sealed(store, CLUSTER, 1))]
    batches = Batches(store, CLUSTER)
    found = ring(batches, now=NOW)
    assert found.in_conflict == (ref(1).incoming,)
    assert [node.waiting for node in found.nodes] == [0]
    assert ignored(batches) == []
    (trouble,) = (each for each in watch(batches, WatchConfig(), now=NOW) if each.key.startswith("conflict"))
    assert ref(1).incoming in trouble.text


@pytest.mark.advice("Both are kept, and no batch reads either: see `writetime conflicts list`.")
def test_the_commands(store: LocalStore, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    config = tmp_path / "pipeline.yaml"
    cluster = {"name": CLUSTER, "datacenters": ["dc1"]}
    config.write_text(yaml.safe_dump({"pipeline": "p", "cluster": cluster, "bucket": str(tmp_path / "bucket")}))

    def run(*arguments: str) -> str:
        assert main(["conflicts", arguments[0], "--config", str(config), *arguments[1:]]) == 0
        return capsys.readouterr().out

    assert run("list") == "no segment is in conflict\n"
    squatted, disputed = ship(store, 1, b"squatted"), dispute(store, 1)
    text = run("list")
    assert text.splitlines()[0] == squatted
    checksum = f"{crc32c(store.read(disputed)):08x}"
    assert f"    {disputed}\n        14 bytes, CRC32C {checksum}, written " in text
    (line,) = run("list", "--json").splitlines()
    assert [each["object"] for each in json.loads(line)["objects"]] == [squatted, disputed]
    assert run("keep", disputed, "--reason", "ours").startswith(f"resolved: {squatted} has 14 bytes")
    assert run("list", "--json") == ""
    record = Conflict.read(store, ref(1).conflicts)
    assert record is not None
    assert (record.kept, record.reason) == ((14, crc32c(b"the node's own")), "ours")
    assert main(["conflicts", "keep", "--config", str(config), ref(5).incoming, "--reason", "x"]) != 0


@pytest.mark.advice("`writetime conflicts list` shows all.", "`writetime conflicts list` names them.")
def test_a_wrong_name_is_found_in_the_list(store: LocalStore, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    config = tmp_path / "pipeline.yaml"
    cluster = {"name": CLUSTER, "datacenters": ["dc1"]}
    config.write_text(yaml.safe_dump({"pipeline": "p", "cluster": cluster, "bucket": str(tmp_path / "bucket")}))
    squatted, disputed = ship(store, 1, b"squatted"), dispute(store, 1)
    for wrong, told in ((ref(2).incoming, "no known conflict"), (ref(1).conflict(5), "the object does not exist")):
        with pytest.raises(ObjectNotFound, match=told) as caught:
            keep(store, CLUSTER, wrong, "x")
        assert "`writetime conflicts list`" in (caught.value.hint or "")
    assert main(["conflicts", "list", "--config", str(config), "--json"]) == 0
    listed = json.loads(capsys.readouterr().out)
    names = [each["object"] for each in listed["objects"]]
    assert names == [squatted, disputed]
    assert keep(store, CLUSTER, names[1], "ours").kept == (14, crc32c(b"the node's own"))


def test_names() -> None:
    assert conflicts.shipped(ref(1).conflict(0xAB)) == ref(1).incoming
    assert layout.SegmentRef.from_conflict(ref(1).conflict(0xAB)) == (ref(1), 0xAB)
    shipped = ref(1).conflict(0)
    for stray in (ref(1).incoming, f"{shipped}x", shipped.replace("conflict-0", "conflict-G"), shipped.replace("CommitLog", "Log")):
        assert conflicts.shipped(stray) is None


def test_what_a_key_was_erased_from_is_known_as_its_node_wrote_it(store: LocalStore) -> None:
    name = ship(store, 1, b"the node's own")
    seal(store, planned(store))
    archive(store, CLUSTER, 1)
    wrote = Contents(size=len(b"the node's own"), crc32c=crc32c(b"the node's own"))
    erased = ledger(store, 1).model_copy(update={"crc32c": crc32c(b"erased bytes.."), "erased_from": wrote})
    assert b"erased_from" in erased.to_bytes()
    assert b"erased_from" not in ledger(store, 1).to_bytes(), "versions before erasures read it"
    held = erased.archived_as
    assert held is not None
    store.put(held, b"erased bytes..")
    store.put(ref(1).ledger, erased.to_bytes())
    ship(store, 1, b"the node's own")
    assert (plan(store), store.head(name), undecided(store, CLUSTER)) == (None, None, [])
