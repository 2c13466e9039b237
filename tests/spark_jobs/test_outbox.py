"""What the publish job does about tables that cannot be sent, without Spark and Kafka."""

from __future__ import annotations

import pickle
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from types import SimpleNamespace
from typing import Any, NamedTuple, cast
from uuid import UUID

import pytest
from pyspark.errors import PySparkException

from spark_jobs import publish
from spark_jobs.failures import failed
from spark_jobs.publish import Outbox, Part, _Sinks
from spark_jobs.sinks.avro_files import last_filed
from spark_jobs.sinks.kafka import Chain, Position, Sent
from spark_jobs.spark_errors import spark_failures
from tests.cassandra.schema.examples import create_table
from tests.spark_jobs.examples import table
from writetime.cassandra.schema.history import SchemaLearner
from writetime.config.kafka import EventsConfig, FilesConfig, KafkaConfig, QuarantineConfig
from writetime.config.pipeline import PipelineConfig
from writetime.config.tables import TablesConfig
from writetime.errors import RETRY, ConfigError, PublishError, StoreUnavailable
from writetime.pipeline.documents import Accounting, Manifest, PartitionedFrom, Sealed, Void
from writetime.pipeline.publish_progress import Published, read_published, write_published
from writetime.storage import layout
from writetime.storage.local import LocalStore


def outbox(folder: Path, upto: int) -> Outbox:
    about = {"pipeline": "p", "bucket": str(folder), "catalog": None, "quarantine": QuarantineConfig(), "events": EventsConfig()}
    config = cast(PipelineConfig, SimpleNamespace(cluster=SimpleNamespace(name="c"), **about))
    kafka = KafkaConfig.model_validate({"bootstrap.servers": "127.0.0.1:1", "topic.prefix": "t"})
    return Outbox(config, kafka, LocalStore(folder), cast(Any, None), upto)


@pytest.fixture(autouse=True)
def in_kafka(monkeypatch: pytest.MonkeyPatch) -> dict[str, int]:
    """How often streams were to be sent again, by Kafka's own progress."""
    found: dict[str, int] = {}
    monkeypatch.setattr(publish, "read_epochs", lambda _: found)
    return found


@pytest.mark.parametrize("retriable", [False, True])
def test_what_fails_in_a_task_is_an_error_of_ours(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, retriable: bool) -> None:
    said = PublishError("no broker", operation="publish events", obj="t.publisher.0", retriable=retriable, hint="Start one.")

    def collect() -> None:
        raise PySparkException(f"Job aborted\n  Traceback\n  writetime.errors.PublishError: {said}\n at java")

    monkeypatch.setattr(Outbox, "_records", lambda *_: ([SimpleNamespace()], {}))
    monkeypatch.setattr(Outbox, "_sent", lambda *_: collect())
    with pytest.raises(PublishError, match="no broker") as raised:
        outbox(tmp_path, 1).drain(everything=False)
    assert str(raised.value).replace(RETRY, "") == str(said).replace(RETRY, "")
    assert raised.value.retriable == retriable, "what the worker's error says of itself"


@pytest.mark.parametrize("oversized", ["claim-check", "wait"])
def test_batches_are_no_larger_than_the_smallest_topic_of_the_run_takes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, oversized: str
) -> None:
    sizes = {"t.shop.large": 900_000, "t.shop.small": 50_000, "t.__progress": 800_000}
    box = outbox(tmp_path, 1)
    box.kafka = box.kafka.model_copy(update={"oversized": oversized})
    monkeypatch.setattr(publish, "message_limits", lambda _, topics: ({topic: sizes[topic] for topic in topics}, {}))
    assert box._limit({}, ["t.shop.large"], None) == {}
    assert box._publisher.batch_bytes == 800_000
    assert box._limit({}, ["t.shop.large", "t.shop.small"], None) == {}
    assert box._publisher.batch_bytes == 50_000
    # Whose limit is not known waits; without the progress topic's nothing can be sent.
    down = PublishError("no answer", retriable=True)
    monkeypatch.setattr(publish, "message_limits", lambda *_: ({"t.__progress": 800_000}, {"t.shop.small": down}))
    assert box._limit({}, ["t.shop.small"], None) == {"t.shop.small": down}
    monkeypatch.setattr(publish, "message_limits", lambda *_: ({}, {"t.__progress": down}))
    with pytest.raises(PublishError, match="no answer"):
        box._limit({}, ["t.shop.small"], None)


@pytest.mark.parametrize("everything", [False, True])
def test_a_table_whose_changes_are_not_found_waits(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, everything: bool) -> None:
    monkeypatch.setattr(publish, "read_schema", lambda *_: SchemaLearner())
    monkeypatch.setattr(publish, "read_manifest", lambda *_: SimpleNamespace(nodes={}, id=None))
    monkeypatch.setattr(publish, "ensure_topics", lambda *_: {})
    monkeypatch.setattr(publish, "expect_own", lambda *_: None)
    box = outbox(tmp_path, 3)
    write_published(box.store, "c", Published(batch=2, events=1, waiting={"shop.old": 1, "t": 1, "t.__quarantine": 1}))
    accounting = [Accounting(table="shop.sold@aaaaaaaa", events=2), Accounting(table="shop.quiet", updates_in=1, not_ours=1)]
    sealed = Sealed(number=3, kind="ingest", sealed_at=datetime(2026, 5, 4, tzinfo=UTC), segments=[], accounting=accounting, state={})
    box.store.put(layout.batch_object("c", 3, "sealed"), sealed.to_bytes())
    sent = (0, 0) if everything else (1, 2)
    expected = Published(batch=3, events=0, waiting=dict(zip(("shop.old", "shop.sold"), sent, strict=True)))
    drained = box.drain(everything=everything)
    assert drained == read_published(box.store, "c")
    assert drained.model_copy(update={"reasons": {}}) == expected
    assert [(name, "its changes table is not there" in reason) for name, reason in drained.reasons.items()] == [
        ("shop.old", True),
        ("shop.sold", True),
    ]


@pytest.mark.parametrize("in_publisher", [False, True])
def test_a_table_that_fails_alone_waits_and_the_others_are_sent(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, in_publisher: bool
) -> None:
    box, sold = outbox(tmp_path, 1), table("sold", 50, {"id": "int"})
    learner = SchemaLearner()
    learner.apply(create_table(sold, 1))
    monkeypatch.setattr(publish, "read_schema", lambda *_: learner)
    monkeypatch.setattr(publish, "read_manifest", lambda *_: SimpleNamespace(id=None))
    error = failed(next(each for each in learner.schema().tables.values() if each.name == sold.name), RecursionError("too deep"))

    def records(*_: Any) -> Any:
        if box._failed or in_publisher:
            return [SimpleNamespace()], dict(box._failed)
        raise error

    def sent(*_: Any) -> Any:
        if in_publisher and not box._failed:
            raise PySparkException(f"Job aborted\n  Traceback\nspark_jobs.failures.FailedInWorker: {error.as_line()}\n at java")
        return [SimpleNamespace(sent=pickle.dumps(Sent(7)))]

    monkeypatch.setattr(Outbox, "_records", records)
    monkeypatch.setattr(Outbox, "_sent", sent)
    drained = box.drain(everything=False)
    assert (drained.batch, drained.events, drained.waiting) == (1, 7, {"shop.sold": 0})
    assert "RecursionError: too deep" in drained.reasons["shop.sold"]


DEAD = PySparkException("org.apache.spark.SparkException: Python worker exited unexpectedly (crashed)")


class Records(NamedTuple):
    """The events of some tables: those of `victims`, and of more than `most` tables together, kill their worker."""

    names: frozenset[str]
    victims: frozenset[str]
    most: int

    def packs(self) -> Records:
        return self

    def count(self) -> int:
        if self.names & self.victims or len(self.names) > self.most:
            raise DEAD
        return len(self.names)


def boxed(folder: Path, monkeypatch: pytest.MonkeyPatch, victims: set[str], most: int = 9, deaths: int = 99) -> tuple[Outbox, list[int]]:
    """An outbox of four tables, in which sending dies of the `victims`, or of more than `most` tables, so many times."""
    box, learner, sent = outbox(folder, 1), SchemaLearner(), list[int]()
    for number, name in enumerate(("a", "b", "c", "d")):
        learner.apply(create_table(replace(table(name, 50 + number, {"id": "int"}), cdc=True), 1))
    monkeypatch.setattr(publish, "read_schema", lambda *_: learner)
    monkeypatch.setattr(publish, "read_manifest", lambda *_: SimpleNamespace(id=None))
    monkeypatch.setattr(Outbox, "_with_events", lambda *_: lambda _: True)

    def records(self: Outbox, known: Published, part: Part) -> Any:
        names = frozenset(each.full_name for each in self._tables(known, part))
        return [Records(names, frozenset(victims), most)], dict(self._failed)

    def send(_: Outbox, found: list[Records]) -> list[Any]:
        sent.append(len(found[0].names))
        if len(sent) <= deaths:
            found[0].count()
        return [SimpleNamespace(sent=pickle.dumps(Sent(7)))]

    monkeypatch.setattr(Outbox, "_records", records)
    monkeypatch.setattr(Outbox, "_sent", send)
    return box, sent


@pytest.mark.parametrize("victims", [set[str](), {"shop.a"}, {"shop.c"}, {"shop.b", "shop.d"}, {"shop.a", "shop.b", "shop.c", "shop.d"}])
def test_a_table_whose_events_kill_workers_waits_and_the_others_are_sent(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, victims: set[str]
) -> None:
    box, sent = boxed(tmp_path, monkeypatch, victims)
    drained = box.drain(everything=False)
    assert drained.waiting == dict.fromkeys(victims, 0)
    assert all("dies, each time" in reason for reason in drained.reasons.values())
    # Each is looked for after two deaths.
    assert len(sent) == 2 * len(victims) + 1


def test_no_table_waits_for_a_machine_that_is_too_small_or_a_worker_that_dies_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    box, _ = boxed(tmp_path, monkeypatch, set(), most=2)
    with pytest.raises(PublishError) as raised:
        box.drain(everything=False)
    assert raised.value.retriable
    box, sent = boxed(tmp_path, monkeypatch, {"shop.a"}, deaths=1)
    assert (box.drain(everything=False).waiting, sent) == ({}, [4, 4])


def test_what_is_to_be_sent_again_waits_from_the_beginning_until_it_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, in_kafka: dict[str, int]
) -> None:
    box = outbox(tmp_path, 3)
    learner = SchemaLearner()
    learner.apply(create_table(table("sold", 50, {"id": "int"}), 1))
    monkeypatch.setattr(publish, "known_schema", lambda *_: learner)
    in_kafka["t.shop.sold"] = 4
    sealed = [3]
    monkeypatch.setattr(publish, "history", lambda *_: SimpleNamespace(sealed=SimpleNamespace(number=sealed[-1])))
    write_published(box.store, "c", Published(batch=2, events=1, waiting={"shop.old": 1}, reasons={"shop.old": "why"}))

    def requested(request: str) -> Published:
        publish._request_again(box.config, box.kafka, box.store, ["shop.sold"], request)
        known = read_published(box.store, "c")
        assert known is not None
        return known

    known = requested("first")
    assert (known.batch, known.waiting, sorted(known.reasons)) == (2, {"shop.old": 1, "shop.sold": 0}, ["shop.old", "shop.sold"])
    assert known.epochs == {"shop.sold": 5}, "Kafka knows of four times, whatever the record says"
    # An attempt of the same run, after one that failed, and somebody else: what is being sent does not go out once more.
    assert requested("first").epochs == requested("second").epochs == {"shop.sold": 5}
    # Another run has sent it meanwhile.
    write_published(box.store, "c", known.model_copy(update={"batch": 3, "waiting": {}, "reasons": {}, "asked": []}))
    assert requested("first").waiting == {}
    assert requested("second").waiting == {}, "it was asked for while it was being sent"
    assert requested("third").epochs == {"shop.sold": 6}
    # A batch is sealed, and published with all that was asked for, while a late attempt begins.
    sealed.append(4)
    write_published(
        box.store, "c", known.model_copy(update={"batch": 4, "waiting": {}, "reasons": {}, "asked": [], "epochs": {"shop.sold": 6}})
    )
    assert (requested("third").waiting, requested("third").epochs) == ({}, {"shop.sold": 6})
    with pytest.raises(ConfigError, match=r"unknown table.*Known are shop\.sold"):
        publish._request_again(box.config, box.kafka, box.store, ["shop.none"], "fourth")


def test_a_note_of_files_says_nothing_of_a_kafka_that_came_later(tmp_path: Path) -> None:
    store = LocalStore(tmp_path)
    write_published(store, "c", Published(batch=7, events=1, kafka=False))
    assert publish._known(store, "c", 8, read_published(store, "c")) is None
    write_published(store, "c", Published(batch=7, events=1))
    assert publish._known(store, "c", 8, read_published(store, "c")) == Published(batch=7, events=1)


def test_files_that_cannot_be_written_do_not_hold_up_kafka(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    sealed, drained = SimpleNamespace(number=2, voided={}), []
    kafka = KafkaConfig.model_validate({"bootstrap.servers": "127.0.0.1:1", "topic.prefix": "t"})
    files = FilesConfig(url=str(tmp_path / "events"))
    place = {"cluster": SimpleNamespace(name="c"), "bucket": str(tmp_path / "bucket"), "pipeline": "p"}
    config = cast(PipelineConfig, SimpleNamespace(**place, kafka=kafka, files=files))

    def drain(*_: Any, everything: bool, process: bool) -> Published:
        drained.append(everything)
        return Published(batch=2, events=5)

    def to_files(*_: Any) -> None:
        raise PublishError("the disk is full", operation="write files", obj="events", hint="")

    monkeypatch.setattr(publish, "history", lambda *_: SimpleNamespace(sealed=sealed))
    monkeypatch.setattr(publish, "spark_session", lambda *_: SimpleNamespace(stop=lambda: None, sparkContext=None))
    monkeypatch.setattr(publish, "Meter", lambda *_, **__: None)
    monkeypatch.setattr(publish, "to_files", to_files)
    monkeypatch.setattr(Outbox, "drain", drain)
    with pytest.raises(PublishError, match="disk is full"):
        publish.run(config)
    assert drained == [False]


@pytest.mark.parametrize("fails", ["files_up_to", "to_files"])
def test_files_that_cannot_be_written_hold_up_no_kafka(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, fails: str) -> None:
    """Neither what cannot be told of them, nor what fails in a worker."""
    refused = StoreUnavailable("no answer", operation="read an object", obj="_published.json")

    def fail(*_: Any) -> Any:
        raise refused

    store = LocalStore(tmp_path)
    cluster = SimpleNamespace(name="c")
    kafka = KafkaConfig.model_validate({"bootstrap.servers": "127.0.0.1:1", "topic.prefix": "t"})
    about = {"cluster": cluster, "catalog": None, "bucket": str(tmp_path), "pipeline": "p", "kafka": kafka}
    config = cast(PipelineConfig, SimpleNamespace(**about, files=FilesConfig(url=str(tmp_path / "files"))))
    monkeypatch.setattr(publish, "history", lambda *_: SimpleNamespace(sealed=SimpleNamespace(number=3, voided={})))
    monkeypatch.setattr(publish, "spark_session", lambda *_: SimpleNamespace(stop=lambda: None, sparkContext=None))
    monkeypatch.setattr(publish, "Meter", lambda *_, **__: None)
    monkeypatch.setattr(publish, fails, fail)
    drained = Published(batch=3, events=7)
    monkeypatch.setattr(Outbox, "drain", lambda *_, **__: write_published(store, "c", drained) or drained)
    with pytest.raises(StoreUnavailable, match="no answer"):
        publish.run(config)
    assert read_published(store, "c") == drained


def test_what_fails_in_a_worker_that_writes_files_is_told_by_table() -> None:
    with (
        pytest.raises(PublishError, match=r"shop\.orders: java\.lang\.OutOfMemoryError") as raised,
        spark_failures("shop.orders"),
    ):
        raise PySparkException("An error occurred while calling o1.collect.\n: java.lang.OutOfMemoryError: heap")
    assert raised.value.retriable


def test_what_a_voided_batch_had_learnt_is_not_told(tmp_path: Path) -> None:
    box = outbox(tmp_path, 3)
    box.config.tables = TablesConfig()  # type: ignore[misc]
    learned_at, learner, known = datetime(2026, 5, 4, tzinfo=UTC), SchemaLearner(), ""
    for number, name in ((1, "first"), (2, "given_up"), (3, "last")):
        if number == 3:
            # It starts from what the first one knew.
            learner = SchemaLearner.from_json(known)
        learner.apply(create_table(table(name, 50 + number, {"id": "int"}), number))
        known = learner.to_json() if number == 1 else known
        box.store.put(layout.batch_object("c", number, "schema"), learner.to_json().encode())
        manifest = Manifest(number=number, kind="ingest", cluster="c", created_at=learned_at, now=1, base=0, segments=[])
        box.store.put(layout.batch_object("c", number, "manifest"), manifest.to_bytes())
    box._seals[3] = sealed = Sealed(number=3, kind="ingest", sealed_at=learned_at, segments=[], accounting=[], state={}, voided={2: None})
    assert [(number, each.table.name) for number, _, _, each in box._statements(0, 3) if each.table] == [(1, "first"), (3, "last")]
    box._seals[3] = sealed.model_copy(update={"voided": {}})
    assert (2, "given_up") in [(number, each.table.name) for number, _, _, each in box._statements(0, 3) if each.table], "what it is about"


def test_progress_of_an_earlier_chain_is_accepted_and_of_another_is_not(tmp_path: Path) -> None:
    chain = Chain(str(tmp_path), "c", upto=9, first=7)
    assert chain.rejection_reason("t.shop.orders", Position(6, 3, "another")) is None
    assert chain.rejection_reason("t.shop.orders", Position(8, 1)) is None
    beyond = chain.rejection_reason("t.shop.orders", Position(10, 1))
    assert beyond is not None
    assert "writetime rebuild" in str(beyond)


def test_a_worker_that_outlives_a_restored_backup_learns_the_new_ids(tmp_path: Path) -> None:
    store, ids = LocalStore(tmp_path), (UUID(int=1), UUID(int=2))
    for found in ids:
        about = {"number": 3, "kind": "ingest", "cluster": "c", "created_at": datetime(2026, 5, 4, tzinfo=UTC), "now": 1, "base": 0}
        store.put(layout.batch_object("c", 3, "manifest"), Manifest.model_validate({**about, "segments": [], "id": found}).to_bytes())
        chain = Chain(str(tmp_path), "c", upto=3)
        assert chain.id_of(3) == str(found)
        assert (chain.rejection_reason("t.s.o", Position(3, 1, str(ids[0]))) is None) == (found == ids[0])


def test_files_beyond_the_last_seal_are_of_another_chain(tmp_path: Path) -> None:
    files = FilesConfig(url=str(tmp_path / "events"))
    store = LocalStore(tmp_path / "events")
    assert last_filed(files) == 0
    store.put("_published.json", b'{"batch": 5, "events": 2}')
    store.put("shop.orders/0000000006-table-version-00000.avro", b"")
    store.put("shop.orders/README.txt", b"")
    assert last_filed(files) == 6
    config = cast(PipelineConfig, SimpleNamespace(cluster=SimpleNamespace(name="c"), files=files, kafka=None))
    assert _Sinks(config, LocalStore(tmp_path / "bucket"), cast(Sealed, SimpleNamespace(number=5)), everything=False).not_filed is None
    refused = _Sinks(config, LocalStore(tmp_path / "bucket"), cast(Sealed, SimpleNamespace(number=4)), everything=False)
    assert (refused.files_due, "another chain of batches" in str(refused.not_filed)) == (False, True)


def test_a_table_that_waits_has_not_to_have_events_in_each_part(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The first batch was voided, so that another one is the first with a rule of partitions: two parts, one of no events."""
    sold, held = table("sold", 50, {"id": "int"}), list[frozenset[str]]()
    learner = SchemaLearner()
    learner.apply(create_table(sold, 1))
    monkeypatch.setattr(publish, "read_schema", lambda *_: learner)
    monkeypatch.setattr(publish, "read_manifest", lambda *_: SimpleNamespace(nodes={}, id=None))
    monkeypatch.setattr(publish, "ensure_topics", lambda *_: {})
    monkeypatch.setattr(publish, "expect_own", lambda *_: None)
    store = LocalStore(tmp_path)
    at, rules = datetime(2026, 5, 4, tzinfo=UTC), [PartitionedFrom(batch=2, by="primary_key")]
    void = Sealed(
        number=1, kind="ingest", sealed_at=at, segments=[], accounting=[], state={}, void=Void(reason="it hangs", by="us", base=0)
    )
    sealed = Sealed(
        number=2,
        kind="ingest",
        sealed_at=at,
        segments=[],
        accounting=[Accounting(table="shop.sold", events=2)],
        state={},
        partition_by=rules,
    )
    for each in (void, sealed):
        store.put(layout.batch_object("c", each.number, "sealed"), each.to_bytes())
    asked = {"waiting": {"shop.sold": 0, "shop.quiet": 0}, "asked": ["shop.quiet", "shop.sold"]}
    write_published(store, "c", Published(batch=2, events=1, **asked))
    box = outbox(tmp_path, 2)
    assert [part.last for part in publish.parts(box.rules, 0, 2)] == [1, 2]

    whole = Outbox._records

    def records(self: Outbox, known: Published, part: Part) -> Any:
        held.append(part.held)
        return whole(self, known, part) if part.last == 1 else ([], {})

    monkeypatch.setattr(Outbox, "_records", records)
    drained = box.drain(everything=False)
    assert (held, drained.waiting, drained.asked) == ([frozenset(), frozenset()], {}, [])
