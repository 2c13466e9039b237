"""An erasure leaves nothing: afterwards every object of bucket and warehouse is decoded and searched for the key, on a folder,
in S3 and in GCS. What is left lies where the command says so. And whichever step of an erasure is left out, that is
noticed here.

With Spark and Iceberg; `test_erased_bucket` does the same for the bucket, in seconds."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import functions as F

from spark_jobs import erase, ingest, publish, rebuild
from spark_jobs.session import spark_session
from spark_jobs.sinks import table_maintenance
from spark_jobs.stages import erase_key, erased_events
from spark_jobs.state.shards import Written
from tests import gcs_server, s3_server
from tests.cassandra.commitlog.packed import ALIAS, PACKINGS, make_keystore, repack
from tests.spark_jobs.bytes_of import Searched, held_in, searched
from tests.spark_jobs.conf import spark_conf
from tests.spark_jobs.synthetic import CLUSTER, ORDERS, Ring, delete_partition, i32, insert, micros, update
from tools import jars
from writetime.cassandra.commitlog.encode import encode_mutation, encode_segment
from writetime.cassandra.commitlog.encryption.keystore import Keystore
from writetime.cassandra.model import Cell, Liveness, Mutation, PartitionUpdate, Row
from writetime.cassandra.schema.model import Column, Schema
from writetime.cassandra.types.byte_comparable import record_key
from writetime.config.kafka import KafkaConfig, QuarantineConfig
from writetime.events import envelope
from writetime.pipeline import archive_packing
from writetime.pipeline.archiver import archive
from writetime.pipeline.erase import Outcome, outcome_text
from writetime.pipeline.planner import history
from writetime.pipeline.publish_progress import Published
from writetime.storage import layout, open_store
from writetime.storage.store import Store

pytestmark = [pytest.mark.spark, pytest.mark.timeout(3600)]

TABLE, PASSWORD = "shop.orders", "a password of tests"
TOPIC = envelope.topic("p", "shop", "orders")
AS_IT_IS = re.compile(r"\.(?:crc|txn|manifest)$|/salt$|^(?:.*/)?clock/[^/]+$|^catalog\.db$|quarantine/.*\.bin$")
"""Objects that pack nothing: Lance's transactions and manifests, frames in quarantine, checksums, names of files."""
PACKED = dict(zip("cdefgh", PACKINGS, strict=True))
"""Nodes that compress or encrypt their logs."""
MARKS = {0x5EC2E7A0 + at * 0x01010101: 0x6DA7C0D0 + at * 0x01010101 for at in range(5)}
"""Keys, and a value of their rows, that stand nowhere else. The last ones are the greatest of each file."""


@dataclass
class Place:
    """A ring whose bucket and warehouse lie in a folder or in buckets; `stores` are all objects there are."""

    ring: Ring
    stores: tuple[Store, ...]
    keystore: Keystore
    key_of_node: bytes
    kafka: KafkaConfig = field(
        default_factory=lambda: KafkaConfig.model_validate({"bootstrap.servers": "127.0.0.1:1", "topic.prefix": "p"})
    )

    def holders(self, key: int) -> set[str]:
        """The objects that hold the key or its value, whatever their form."""
        found = (held_in(store, key, MARKS[key], keys=self.keystore) for store in self.stores)
        return set().union(*found)

    def searched(self) -> list[Searched]:
        return [searched(store, self.keystore) for store in self.stores]

    def unreported(self, key: int, outcome: Outcome) -> set[str]:
        """The same, but for those that the command names as not reached."""
        reported = {each.object for each in outcome.waiting}
        prefixes = tuple(each.place for each in outcome.unreached if each.place.endswith("/"))
        return {name for name in self.holders(key) if not any(_ends(name, each) for each in reported) and not _below(name, prefixes)}

    def erase(self, key: int) -> Outcome:
        return erase.run(self.ring.config.model_copy(update={"kafka": self.kafka}), TABLE, json.dumps({"id": key}), by="a test", yes=True)


def _ends(name: str, of: str) -> bool:
    """Whether it is that object; names here may have the prefix of the pipeline's URL."""
    return name == of or name.endswith(f"/{of}")


def _below(name: str, prefixes: tuple[str, ...]) -> bool:
    # Of quarantine only what the command could not take apart, which this test has nothing of.
    return any(name.startswith(prefix) or f"/{prefix}" in name for prefix in prefixes if not prefix.startswith("quarantine/"))


@pytest.fixture(
    params=[
        pytest.param("folder", marks=pytest.mark.thorough),
        pytest.param("S3", marks=pytest.mark.s3),
        pytest.param("GCS", marks=pytest.mark.gcs),
    ]
)
def place(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, own_jvm: None) -> Iterator[Place]:
    with ExitStack() as stack:
        yield _place(request.param, tmp_path, monkeypatch, stack)


def _place(kind: str, folder: Path, monkeypatch: pytest.MonkeyPatch, stack: ExitStack) -> Place:
    ring = Ring.create(folder, "a", *PACKED)
    path, key = make_keystore(folder, PASSWORD, ALIAS)
    monkeypatch.setenv("WRITETIME_KEYSTORE_PASSWORD", PASSWORD)
    workers = {"WRITETIME_KEYSTORE_PASSWORD": PASSWORD}
    update: dict[str, Any] = {"quarantine": QuarantineConfig(bytes="captured")}
    update["cluster"] = ring.config.cluster.model_copy(update={"commitlog_keystore": path})
    assert ring.config.catalog is not None
    stores, more = (open_store(str(folder / "bucket")), open_store(str(folder / "lake"))), ()
    if kind != "folder":
        scheme, options, workers, more = (_s3 if kind == "S3" else _gcs)(folder, monkeypatch, stack, workers)
        update |= {"bucket": f"{scheme}://cdc/some place", "state": None, "files": ring.config.files}
        assert ring.config.files is not None
        update["files"] = ring.config.files.model_copy(update={"url": f"{scheme}://cdc/some place/events/{layout.part(CLUSTER)}"})
        update["catalog"] = ring.config.catalog.model_copy(update={"warehouse": f"{scheme}://lake/100%/tables", "options": options})
        stores = open_store(f"{scheme}://cdc"), open_store(f"{scheme}://lake")
    conf = spark_conf(folder, *more) | {f"spark.executorEnv.{name}": value for name, value in workers.items()}
    update["spark"] = ring.config.spark.model_copy(update={"conf": conf})
    made = replace(ring, config=ring.config.model_copy(update=update))
    return Place(made, stores, Keystore.open(path, PASSWORD), key)


def _s3(folder: Path, monkeypatch: pytest.MonkeyPatch, stack: ExitStack, workers: dict[str, str]) -> Any:
    binary = s3_server.program()
    if binary is None:
        pytest.skip("no S3 test server: run make test-s3")
    server = stack.enter_context(s3_server.running(binary, folder))
    for bucket in ("cdc", "lake"):
        server.make_bucket(bucket)
    s3_server.into_environment(monkeypatch, server.url, server.access, server.secret)
    account = {"AWS_ENDPOINT_URL_S3": server.url, "AWS_ACCESS_KEY_ID": server.access, "AWS_SECRET_ACCESS_KEY": server.secret}
    options = {"io-impl": "org.apache.iceberg.aws.s3.S3FileIO", "s3.endpoint": server.url, "s3.path-style-access": "true"}
    options |= {"client.region": "us-east-1", "s3.access-key-id": server.access, "s3.secret-access-key": server.secret}
    return "s3", options, workers | account | {"AWS_REGION": "us-east-1"}, (jars.need("s3"),)


def _gcs(folder: Path, monkeypatch: pytest.MonkeyPatch, stack: ExitStack, workers: dict[str, str]) -> Any:
    program = gcs_server.program()
    if program is None:
        pytest.skip("no GCS test server: run make test-gcs")
    url = stack.enter_context(gcs_server.running(program, folder, xml=True))
    for bucket in ("cdc", "lake"):
        gcs_server.make_bucket(url, bucket)
    monkeypatch.setenv("STORAGE_EMULATOR_HOST", url)
    options = {"io-impl": "org.apache.iceberg.gcp.gcs.GCSFileIO", "gcs.service.host": url, "gcs.no-auth": "true", "gcs.project-id": "test"}
    return "gs", options, workers | {"STORAGE_EMULATOR_HOST": url}, (jars.need("gcs"),)


# --- a pipeline with a key in everything it has


def shipped(place: Place, *bodies: bytes, at: float) -> None:
    ring = place.ring
    for body in bodies:
        ring.write(body)
    for host in tuple(ring.nodes):
        kept = ring.folder / "finished" / f"{host}-{ring.nodes[host].segment}"
        name = ring.finish(host, at)
        if host in PACKED:
            kept.write_bytes(repack(kept.read_bytes(), PACKED[host], key=place.key_of_node))
        ring.ship(name)


def batch(place: Place, now: float) -> None:
    ring = place.ring
    sealed = ingest.run(ring.config, ring.plan(now).number)
    archive(ring.store, CLUSTER, sealed.number)


def unreadable() -> bytes:
    """A mutation of a column that no schema has, for quarantine."""
    extra = replace(ORDERS, columns={**ORDERS.columns, "zzz": Column("zzz", "regular", "int")})
    row = Row((i32(1),), Liveness(micros(2)), cells=(Cell("zzz", micros(2), i32(3)),))
    return encode_mutation(Mutation((PartitionUpdate(ORDERS.id, i32(1), rows=(row,)),)), Schema(tables={ORDERS.id: extra}))


def with_keys(place: Place, keys: list[int]) -> None:
    """Write, change and delete the keys, among another; publish, rebuild, publish again; and put them to where only larger
    pipelines have them."""
    ring = place.ring
    shipped(place, insert(1, 1, 1, name=7), *(insert(key, 1, 1, name=MARKS[key], note=MARKS[key]) for key in keys), at=10)
    batch(place, 20)
    for name in [
        each for each in archive_packing.to_pack(ring.store, CLUSTER, before=datetime(2027, 1, 1, tzinfo=UTC)) if "/c/" not in each
    ]:
        archive_packing.pack(ring.store, name, 3)
    shipped(place, update(1, 1, 31, amount=9), *(update(key, 1, 32, amount=MARKS[key]) for key in keys), at=40)
    batch(place, 50)
    publish.run(ring.config)
    set_aside(place, keys)
    # Its events are not published: these files and claims stay as they are.
    rebuild.run(ring.config)
    shipped(place, *(delete_partition(key, 61) for key in keys), at=70)
    # Held, so in a segment that nothing else needs.
    ring.write(unreadable(), "a")
    ring.finish_and_ship(75, "a")
    batch(place, 80)
    publish.run(ring.config)
    set_aside(place, keys)
    sealed = history(ring.store, CLUSTER).sealed
    assert sealed is not None
    ring.store.put(f"published/{layout.part(CLUSTER)}.json", Published(batch=sealed.number, events=1).to_bytes())
    for at, key in enumerate(keys):
        quarantined(place, at, key)
        keys_of_rows = [record_key(i32(each)).hex() for each in (1, key)]
        note = {"batch": at, "table_id": str(ORDERS.id), "keys": keys_of_rows}
        ring.store.put(layout.incomplete_rows(CLUSTER, at, str(ORDERS.id), 0), json.dumps(note).encode())
        report = json.dumps({"differences": [{"key": {"id": key}}]}).encode()
        ring.store.put(f"{layout.verify_prefix(CLUSTER)}2026050{at}T000000Z.json", report)
        ref = layout.SegmentRef(layout.NodeName(CLUSTER, "dc1", "a"), layout.SegmentName(100 + at, 7))
        ring.store.put(ref.rejected(7), encode_segment(100 + at, 7, [insert(key, 1, 1, name=MARKS[key])]))
        ring.store.put(ref.incoming, encode_segment(100 + at, 7, [insert(key, 1, 1, name=MARKS[key])]))


def events_of(place: Place, keys: list[int]) -> Iterator[tuple[int, int, int]]:
    """Key and place of each event of the changes table."""
    spark = spark_session(place.ring.config, "to look")
    rows = spark.sql("SELECT key.id, batch, ordinal FROM lake.shop__changes.orders").collect()
    spark.stop()
    yield from ((row[0], row[1], row[2]) for row in rows if row[0] in keys)


def set_aside(place: Place, keys: list[int]) -> None:
    """As publishing does with events that are too large: as claims, and as events that were not sent."""
    store = place.ring.store
    for key, number, ordinal in list(events_of(place, keys)):
        event = json.dumps({"before": None, "after": {"id": key, "line": 1, "name": MARKS[key]}, "op": "u"}).encode()
        store.put(layout.claim(TOPIC, number, ordinal), event)
        stem = layout.unpublishable(CLUSTER, TOPIC, number, ordinal)
        store.put(f"{stem}.bin", event)
        store.put(f"{stem}.json", json.dumps({"key": json.dumps({"id": key, "line": 1}).encode().hex()}).encode())


def quarantined(place: Place, at: int, key: int) -> None:
    """A record of a frame with the key, in the bucket and in the table."""
    ring = place.ring
    ref = layout.SegmentRef(layout.NodeName(CLUSTER, "dc1", "a"), layout.SegmentName(1, 7))
    stem, body = ref.quarantined(1000 + at, 77), insert(key, 1, 1, name=MARKS[key])
    ring.store.put(f"{stem}.bin", body)
    ring.store.put(f"{stem}.json", b'{"kind": "UnknownColumn"}')
    spark = spark_session(ring.config, "to quarantine")
    table = "lake._writetime.quarantine"
    row = spark.table(table).limit(1).withColumn("name", F.lit(f"{stem}.bin")).withColumn("bytes", F.lit(bytearray(body)))
    row.writeTo(table).append()
    spark.stop()


# --- nothing is left


def test_nothing_of_a_key_is_left_but_where_the_command_says_so(
    place: Place, record_testsuite_property: Callable[[str, object], None]
) -> None:
    key, *_ = MARKS
    with_keys(place, [key])
    held = place.holders(key)
    # Requests, whose names begin with the batch, are there while an erasure runs.
    places = {name: step for steps in GROUPS for name, step in steps.items() if name != "the request"}
    assert [name for name, step in places.items() if not any(map(step.left, held))] == []
    outcome = place.erase(key)
    assert place.unreported(key, outcome) == set()
    read = place.searched()
    for name in ("objects", "stored", "decoded"):
        record_testsuite_property(name, sum(getattr(each, name) for each in read))
    assert {name for each in read for name in each.undecoded if not AS_IT_IS.search(name)} == set()
    assert outcome.troubles == []
    told = outcome_text(outcome)
    for said in ("topic p.shop.orders", "verify/", "rejected/", "retention.ms", "until", "after 3 days", "materialized views"):
        assert said in told, told
    assert [each.object for each in outcome.waiting] == [
        each.name for each in place.ring.store.names("cdc/") if "CommitLog-7-100" in each.name
    ]


# --- each step


@dataclass(frozen=True)
class Step:
    """A step that is left out by patching, and what is then left: some name that this is true of."""

    leave_out: Callable[[pytest.MonkeyPatch], None]
    left: Callable[[str], bool]


def _without(of: Any, name: str, instead: Any = lambda *_, **__: None) -> Callable[[pytest.MonkeyPatch], None]:
    return lambda patch: patch.setattr(of, name, instead)


def _sql_without(word: str) -> Callable[[pytest.MonkeyPatch], None]:
    """The statements of `scrub` but for those with that word."""

    class Silent:
        def __init__(self, spark: Any) -> None:
            self._spark = spark

        def __getattr__(self, name: str) -> Any:
            return getattr(self._spark, name)

        def sql(self, statement: str) -> Any:
            return self._spark.sql("SELECT 1" if word in statement else statement)

    scrub = table_maintenance.scrub
    return lambda patch: patch.setattr(erase_key, "scrub", lambda spark, *rest: scrub(Silent(spark), *rest))


def _only_scrub(work: Any, warehouse: Any, name: str, *_: Any) -> int:
    erase_key.scrub(work.spark, name, datetime.now(UTC) + erase_key._AHEAD)
    return 0


_kept = lambda uri, base, *_, **__: Written(base, None)  # noqa: E731
"""Without a name, so that workers get it by its code, as it is here."""


def _of_plain_only() -> Any:
    """Erases from segments as if none were compressed or encrypted; patched where it runs, in a worker."""

    def from_segment(store: Store, name: str, search: Any, keys: Any = None) -> Any:
        from writetime.pipeline import erase as module

        is_packed, from_plain = module._is_packed, module.from_segment
        module._is_packed = lambda _: False
        try:
            return from_plain(store, name, search, keys)
        finally:
            module._is_packed = is_packed

    return from_segment


def _in(*parts: str, but: tuple[str, ...] = ()) -> Callable[[str], bool]:
    return lambda name: all(part in name for part in parts) and not any(part in name for part in but)


bucket = erase_key.bucket
DATA = _in("/shop__changes/", ".parquet")
GROUPS: list[dict[str, Step]] = [
    {
        "the archive": Step(_without(bucket, "from_segment", bucket.in_segment), _in("cdc_archive/", "/a/")),
        "quarantine records": Step(_without(bucket, "erase_record"), _in("quarantine/", "/CommitLog-7-1/", ".bin")),
        "notes of rows": Step(_without(bucket, "incomplete_rows", lambda *_, **__: 0), _in("touched/")),
        "claims": Step(_without(erase_key.Erasing, "_delete"), _in("claims/")),
        "events not sent": Step(_without(erase_key.Erasing, "_delete"), _in("unpublished/")),
        "files of events": Step(_without(erase_key, "_without_events", lambda *_: ""), _in("events/", ".avro")),
        "older versions of the state": Step(_without(erase_key, "forget"), _in("state/", ".lance", but=("/g0000/",))),
        "older generations of the state": Step(_without(erase_key, "remove_before", lambda *_: 0), _in("state/", "/g0000/", ".lance")),
        "deleted rows in files": Step(_sql_without("rewrite_data_files"), _in("/shop/", ".parquet")),
        "the request": Step(_without(erase_key.erasures, "forget_requests"), _in("erasures/", "/requests/")),
    },
    {
        "compressed and encrypted segments": Step(_without(bucket, "from_segment", _of_plain_only()), _in("cdc_archive/", "/h/")),
        "the quarantine table": Step(_without(erase_key.Erasing, "_erase_bytes"), _in("_writetime/quarantine", ".parquet")),
        "claims of before a rebuild": Step(_without(erased_events, "delete_claim"), _in("claims/")),
        "files of before a rebuild": Step(_without(erase_key.Erasing, "_without_key", lambda *_: ""), _in("events/", ".avro")),
        "older snapshots": Step(_sql_without("expire_snapshots"), DATA),
    },
    {
        "the state": Step(_without(erase_key, "rewrite", _kept), _in("state/", ".lance")),
        "bounds in manifests": Step(_sql_without("rewrite_manifests"), _in("/metadata/", ".avro")),
        "what is not archived yet": Step(_without(bucket, "waiting_objects", lambda *_: []), _in("cdc/", "/CommitLog-7-10")),
    },
    {"rows of tables": Step(_without(erase_key.Erasing, "_erase_rows", _only_scrub), DATA)},
]


@pytest.mark.thorough
def test_a_step_that_is_left_out_is_noticed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of steps that are left out together, each leaves something that no other does. Each group has a key of its own, and
    the last key is erased by all steps."""
    with ExitStack() as stack:
        place = _place("folder", tmp_path, monkeypatch, stack)
        # The greatest first, because only least and greatest values stand in manifests.
        keys = sorted(MARKS, reverse=True)
        with_keys(place, keys)
        noticed: dict[str, set[str]] = {}
        for key, steps in zip(keys, GROUPS, strict=False):
            with monkeypatch.context() as patch:
                for step in steps.values():
                    step.leave_out(patch)
                outcome = place.erase(key)
            left = place.unreported(key, outcome)
            noticed |= {name: {each for each in left if step.left(each)} for name, step in steps.items()}
            assert {each for each in left if not any(step.left(each) for step in steps.values())} == set()
        assert {name for name, left in noticed.items() if not left} == set()
        assert place.unreported(keys[-1], place.erase(keys[-1])) == set()
