"""An erasure leaves nothing in bucket, state and files: every object is decoded and searched afterwards, on a folder, in S3
and in GCS. What is left is named by the command; and whichever step is left out, that is noticed here.

Without Spark: tasks run in the driver, and tables of the warehouse are left out (`test_erase`, `test_scrub`)."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from uuid import uuid4

import pytest

from spark_jobs.sinks import voids
from spark_jobs.stages import erase_key, erased_events
from spark_jobs.state.shards import Record, Written, in_batches, upsert
from tests import gcs_server, s3_server
from tests.cassandra.commitlog.packed import KEYS, PACKINGS, repack
from tests.spark_jobs.bytes_of import held_in
from tests.spark_jobs.synthetic import CLUSTER, ORDERS, SCHEMA, START, Ring, i32, insert, micros
from tests.spark_jobs.test_erased_events import avro_file
from writetime.cassandra.commitlog.encode import encode_segment
from writetime.cassandra.merge import row_codec
from writetime.cassandra.model import Cell, Liveness, Row
from writetime.cassandra.types.byte_comparable import RowKeys, record_key
from writetime.config.kafka import FilesConfig, KafkaConfig
from writetime.errors import BatchBusy, BatchError
from writetime.events import envelope
from writetime.pipeline import archive_packing, planner
from writetime.pipeline.archiver import archive
from writetime.pipeline.documents import LocalDocument, Sealed, SegmentOutcome, ShardVersions
from writetime.pipeline.erase import Outcome
from writetime.pipeline.erasures import Request
from writetime.storage import layout, open_store
from writetime.storage.store import Store

KEY, MARK = 0x5EC2E7A9, 0x6DA7C0DE
"""A key, and a value of its row, that stand nowhere else."""
TOPIC = envelope.topic("p", "shop", "orders")
PACKED = dict(zip("cdefgh", PACKINGS, strict=True))
"""Nodes that compress or encrypt their logs."""


class NoTables:
    """A warehouse of which only the events' places matter."""

    def changes_of(self, table: Any) -> str | None:
        return "changes" if table.id == ORDERS.id else None

    def current_of(self, table: Any) -> None:
        return None

    def quarantine(self) -> None:
        return None

    @contextlib.contextmanager
    def fenced(self, number: int) -> Iterator[None]:
        yield


class InDriver(erase_key.Erasing):
    """An erasure whose tasks run here."""

    @property
    def learner(self) -> Any:  # type: ignore[override]
        return SimpleNamespace(schema=lambda: SCHEMA, cdc_ever={ORDERS.id})

    def _warehouse(self) -> Any:
        return NoTables()

    def _matching(self, name: str, columns: str, where: str = "") -> list[Any]:
        return [(0,)] if columns == "count(*)" else [(1, 1)]

    def _erase_rows(self, *_: Any) -> int:
        return 0

    def _references(self, name: str) -> Iterator[Any]:
        yield from ()

    def spread(self, items: list[Any], work: Callable[[Store, Any], Any]) -> list[Any]:
        return [work(open_store(self.config.bucket), item) for item in items]


@dataclass
class Place:
    """A pipeline; `stores` are all objects there are, whatever the pipeline's prefix."""

    ring: Ring
    whole: Store

    def left(self) -> set[str]:
        return held_in(self.whole, KEY, MARK, keys=KEYS)

    def unreported(self, outcome: Outcome) -> set[str]:
        """What is left where the command does not say so."""
        waiting = {each.object for each in outcome.waiting}
        places = tuple(each.place for each in outcome.unreached if each.place.startswith(("rejected/", "verify/", "claims/")))
        prefix = "" if self.whole.url == self.ring.store.url else f"{self.ring.store.url.removeprefix(self.whole.url).strip('/')}/"
        names = {name: name.removeprefix(prefix) for name in self.left()}
        return {name for name, short in names.items() if short not in waiting and not short.startswith(places)}

    def erase(self) -> Outcome:
        config, store = self.ring.config, self.ring.store
        base = planner.history(store, CLUSTER).sealed
        assert base is not None
        request = Request.of("shop.orders", i32(KEY), None, "a test")
        manifest = planner.plan_erase(store, CLUSTER, request, base.number, now=planner.store_clock(store, CLUSTER))
        erase_key.erase(config, store, None, manifest, base)  # type: ignore[arg-type]
        outcome = Outcome.read(store, layout.erasure_done(CLUSTER, manifest.number))
        assert outcome is not None
        return outcome


@pytest.fixture(params=["folder", pytest.param("S3", marks=pytest.mark.s3), pytest.param("GCS", marks=pytest.mark.gcs)])
def place(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Place:
    bucket, url = f"t-{uuid4().hex}", str(tmp_path / "bucket")
    if request.param == "S3":
        server: s3_server.Server = request.getfixturevalue("s3")
        server.make_bucket(bucket)
        s3_server.into_environment(monkeypatch, server.url, server.access, server.secret)
        url = f"s3://{bucket}"
    elif request.param == "GCS":
        emulator = request.getfixturevalue("gcs_url")
        gcs_server.make_bucket(emulator, bucket)
        monkeypatch.setenv("STORAGE_EMULATOR_HOST", emulator)
        url = f"gs://{bucket}"
    prefix = url if request.param == "folder" else f"{url}/some place"
    monkeypatch.setattr(erase_key, "Erasing", InDriver)
    monkeypatch.setattr(voids, "take_back", lambda *_: None)
    # As if a rebuild had begun with batch 1 (`test_erased_events` has one).
    monkeypatch.setattr(erased_events, "first_batch", lambda *_: 1)
    monkeypatch.setattr(erase_key.Keystore, "from_environment", lambda _: KEYS)
    ring = Ring.create(tmp_path, "a", *PACKED)
    kafka = KafkaConfig.model_validate({"bootstrap.servers": "127.0.0.1:1", "topic.prefix": "p"})
    files = FilesConfig(url=f"{prefix}/events/{layout.part(CLUSTER)}")
    cluster = ring.config.cluster.model_copy(update={"commitlog_keystore": tmp_path / "keys.p12"})
    update = {"bucket": prefix, "state": None, "kafka": kafka, "files": files, "cluster": cluster}
    made = Place(replace(ring, config=ring.config.model_copy(update=update)), open_store(url))
    fill(made)
    return made


# --- a pipeline with the key in everything it has


def fill(place: Place) -> None:
    ring, store = place.ring, place.ring.store
    for body in (insert(1, 1, 1, name=7), insert(KEY, 1, 2, name=MARK)):
        ring.write(body)
    for host in tuple(ring.nodes):
        kept = ring.folder / "finished" / f"{host}-1"
        name = ring.finish(host, 10)
        kept.write_bytes(repack(kept.read_bytes(), PACKED[host]) if host in PACKED else kept.read_bytes())
        ring.ship(name)
    manifest = ring.plan(20)
    versions = state(place)
    store.put(layout.batch_object(CLUSTER, 1, "schema"), b"{}")
    store.put(layout.batch_object(CLUSTER, 1, "local"), LocalDocument().to_bytes())
    outcomes = [SegmentOutcome(object=segment.object, frames=2) for segment in manifest.segments]
    sealed = Sealed(number=1, kind="ingest", sealed_at=datetime.now(UTC), segments=outcomes, accounting=[], state=versions)
    planner.seal(store, CLUSTER, sealed)
    archive(store, CLUSTER, 1)
    for name in list(archive_packing.to_pack(store, CLUSTER, before=START + timedelta(days=2))):
        if "/a/" not in name and "/c/" not in name:
            archive_packing.pack(store, name, 3)
    events(place)
    ref = layout.SegmentRef(layout.NodeName(CLUSTER, "dc1", "a"), layout.SegmentName(9, 7))
    frame, segment = insert(KEY, 1, 1, name=MARK), encode_segment(9, 7, [insert(KEY, 1, 1, name=MARK)])
    stem = ref.quarantined(100, 52)
    keys = [record_key(i32(each)).hex() for each in (1, KEY)]
    for name, content in {
        f"{stem}.bin": frame,
        f"{stem}.json": b'{"kind": "UnknownColumn"}',
        layout.incomplete_rows(CLUSTER, 1, str(ORDERS.id), 0): json.dumps({"batch": 1, "table_id": str(ORDERS.id), "keys": keys}).encode(),
        ref.incoming: segment,
        ref.rejected(7): segment,
        f"{layout.verify_prefix(CLUSTER)}20260504T000000Z.json": json.dumps({"key": {"id": KEY}}).encode(),
    }.items():
        store.put(name, content)


def state(place: Place) -> dict[str, ShardVersions]:
    """Two generations, the later in two versions."""
    ring, store = place.ring, place.ring.store
    keys = RowKeys(ORDERS, {})

    def record(key: int, value: int) -> Record:
        row = Row((i32(1),), Liveness(micros(1)), cells=(Cell("name", micros(1), i32(value)),))
        return Record(record_key(i32(key), keys.key(row.clustering or ())), row_codec.encode(row), None)

    version = 0
    for generation, batch, records in ((0, 0, [record(KEY, MARK)]), (1, 0, [record(KEY, MARK), record(1, 7)]), (1, 1, [record(1, 8)])):
        shard = CLUSTER, str(ORDERS.id), generation, 0
        base = version if batch else 0
        uri, lease = ring.config.state_url(layout.state_shard(*shard)), layout.state_lease(*shard)
        version = upsert(uri, base, batch, in_batches(records), store, lease).version
    return {str(ORDERS.id): ShardVersions(generation=1, buckets=[version])}


def events(place: Place) -> None:
    """Claims, events that were not sent, and files: of the current chain of batches, and of one before a rebuild."""
    store, config = place.ring.store, place.ring.config
    assert config.files is not None
    event = json.dumps({"before": None, "after": {"id": KEY, "line": 1, "name": MARK}}).encode()
    files, folder = open_store(config.files.url), layout.table_folder("shop", "orders")
    for batch in (0, 1):
        store.put(layout.claim(TOPIC, batch, 1), event)
        stem = layout.unpublishable(CLUSTER, TOPIC, batch, 1)
        store.put(f"{stem}.bin", event)
        store.put(f"{stem}.json", json.dumps({"key": json.dumps({"id": KEY}).encode().hex()}).encode())
        files.put(f"{folder}/{batch:010d}-x.avro", avro_file((KEY, batch, 1), (1, batch, 2)))


# --- nothing is left


def test_nothing_of_a_key_is_left_but_where_the_command_says_so(place: Place) -> None:
    held = place.left()
    assert all(any(step.left(name) for name in held) for name, step in STEPS.items() if name != "the request"), held
    outcome = place.erase()
    assert place.unreported(outcome) == set()
    assert outcome.troubles == []
    assert {each.object for each in outcome.waiting} == {each.name for each in place.ring.store.names("cdc/")}
    assert len(outcome.segments) == 1 + len(PACKED)
    assert (outcome.pieces, outcome.touched, outcome.records) == (1, 1, 1)
    counted = {each.place: each.objects for each in outcome.unreached}
    assert (counted[layout.verify_prefix(CLUSTER)], counted[f"rejected/{layout.part(CLUSTER)}/"]) == (1, 1)


def test_an_event_of_before_a_rebuild_that_cannot_be_read_is_reported(place: Place) -> None:
    """In Avro of a registry: nobody knows whose it is, so it stays, and the command says so."""
    name = layout.claim(TOPIC, 0, 7)
    place.ring.store.put(name, b"\0\0\0\0\1" + i32(KEY))
    outcome = place.erase()
    found = next(each for each in outcome.unreached if each.place == f"claims/{TOPIC}/")
    assert found.objects == 1
    assert "keep_claims_days" in found.until
    assert place.ring.store.head(name) is not None
    assert place.unreported(outcome) == set()


@pytest.mark.parametrize(("begins_after", "refused"), [(0, True), (14, False)])
def test_events_of_a_rebuild_are_not_waited_for(place: Place, monkeypatch: pytest.MonkeyPatch, begins_after: int, refused: bool) -> None:
    """They are never published, so files and Kafka never come to its last batch."""
    base = SimpleNamespace(number=14)
    work = InDriver(place.ring.config, place.ring.store, None, Request.of("shop.orders", i32(KEY), None, "a test"), base)  # type: ignore[arg-type]
    monkeypatch.setattr(work, "_count", lambda _, where: 3 if int(where.rpartition(" ")[2]) < 14 else 0)
    monkeypatch.setattr(erase_key.chains, "begins_after", lambda *_: begins_after)
    assert bool(work._unpublished(NoTables())) == refused  # type: ignore[arg-type]


# --- each step


@dataclass(frozen=True)
class Step:
    """What is patched so that a step is left out, and of what is left then: some name that this is true of."""

    of: Any
    name: str
    instead: Any
    left: Callable[[str], bool]


def _nothing(*_: Any, **__: Any) -> None: ...


def _kept(uri: str, base: int, *_: Any, **__: Any) -> Written:
    return Written(base, None)


def _in(*parts: str) -> Callable[[str], bool]:
    return lambda name: all(part in name for part in parts)


bucket = erase_key.bucket
STEPS = {
    "the archive": Step(bucket, "from_segment", bucket.in_segment, _in("cdc_archive/", "/a/")),
    **{
        f"segments packed by {packing}": Step(bucket, "_is_packed", lambda _: False, _in("cdc_archive/", f"/{host}/"))
        for host, packing in PACKED.items()
        # What is not compressed is found as it is.
        if packing != "NoopCompressor"
    },
    "packed forms of segments": Step(bucket, "archive_objects", lambda *_: [], _in("cdc_archive/", ".zst")),
    "what waits": Step(bucket, "waiting_objects", lambda *_: [], _in("cdc/")),
    "quarantine records": Step(bucket, "erase_record", _nothing, _in("quarantine/", "/CommitLog-7-9/", ".bin")),
    "notes of rows": Step(bucket, "incomplete_rows", lambda *_, **__: 0, _in("touched/")),
    "claims": Step(InDriver, "_delete", _nothing, _in("claims/", "0000000001-1")),
    "events not sent": Step(InDriver, "_delete", _nothing, _in("unpublished/", "0000000001-1")),
    "files of events": Step(erase_key, "_without_events", lambda *_: "", _in("events/", "0000000001-x")),
    "claims of before a rebuild": Step(erased_events, "delete_claim", _nothing, _in("claims/", "0000000000-1")),
    "events not sent before a rebuild": Step(erased_events, "delete_claim", _nothing, _in("unpublished/", "0000000000-1")),
    "files of before a rebuild": Step(InDriver, "_without_key", lambda *_: "", _in("events/", "0000000000-x")),
    "the state": Step(erase_key, "rewrite", _kept, _in("state/", "/g0001/")),
    "older versions of the state": Step(erase_key, "forget", _nothing, _in("state/", "/g0001/")),
    "older generations of the state": Step(erase_key, "remove_before", lambda *_: 0, _in("state/", "/g0000/")),
    "the request": Step(erase_key.erasures, "forget_requests", _nothing, _in("erasures/", "/requests/")),
}


@pytest.mark.parametrize("place", ["folder"], indirect=True)
@pytest.mark.parametrize("name", STEPS)
def test_a_step_that_is_left_out_is_noticed(place: Place, monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    step = STEPS[name]
    monkeypatch.setattr(step.of, step.name, step.instead)
    left = place.unreported(place.erase())
    assert [each for each in left if step.left(each)], left


def test_a_table_that_fails_leaves_no_open_batch(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    """What the tables lack is named, and can be erased again; all else is erased."""

    def refused(*_: Any) -> int:
        raise BatchError("it may only be read", operation="commit a batch", obj="changes")

    with monkeypatch.context() as patch:
        patch.setattr(InDriver, "_erase_rows", refused)
        outcome = place.erase()
    assert [each for each in outcome.troubles if each.startswith("table changes: ")] == [
        "table changes: commit a batch: changes: it may only be read"
    ]
    assert (outcome.done, outcome.again) == (True, True)
    assert not planner.history(place.ring.store, CLUSTER).open
    assert place.unreported(outcome) == set()
    assert not place.erase().troubles


def test_a_failure_that_is_not_the_tables_leaves_the_batch_to_the_next_run(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    def busy(*_: Any) -> int:
        raise BatchBusy("another run works on it", operation="commit a batch", obj="changes")

    with monkeypatch.context() as patch:
        patch.setattr(InDriver, "_erase_rows", busy)
        with pytest.raises(BatchBusy):
            place.erase()
    assert planner.history(place.ring.store, CLUSTER).open
    assert not place.erase().troubles
