"""What is lost or put back beneath the pipeline, by people or from backups: it is noticed by name before anything is built upon it,
other tables go on, and the command that is printed brings it back. The pipeline is whole; Spark, Iceberg and Kafka are doubles."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from typing import Any

import pytest

from proof.doubles.warehouse import DoubleCatalog, Metadata
from proof.interleavings import drivers
from proof.interleavings.jobs import CLUSTER, IDS, ORDERS, PREFIX, USERS, Here, Mutation, Place, installed
from proof.interleavings.schedule import Deviations
from proof.interleavings.world import World
from spark_jobs import publish
from spark_jobs.sinks import iceberg
from writetime.events.naming import progress_topic
from writetime.monitoring.status import as_text
from writetime.pipeline import again
from writetime.pipeline.batch_history import Batches
from writetime.pipeline.planner import history, store_clock
from writetime.pipeline.publish_progress import read_published
from writetime.pipeline.quarantine.rejected_tables import release_made_again

CURRENT, CHANGES = (f"`lake`.`{namespace}`.`orders`" for namespace in ("shop", "shop__changes"))
TOPIC = f"{PREFIX}.{ORDERS.full_name}"


class Pipeline:
    """A pipeline whose two tables are written to in each batch, and what is kept of it before each."""

    def __init__(self, here: Here) -> None:
        self.place = here.place = Place.create(World(most=1_000_000))
        self.catalogs: list[dict[str, Metadata]] = []
        self.at = 0

    @property
    def tables(self) -> dict[str, Metadata]:
        return self.place.catalog._tables

    def do(self, work: Callable[[Place], Any]) -> Any:
        (driver,) = self.place.world.run([("driver", partial(work, self.place))], Deviations(()))
        if driver.error is not None:
            raise driver.error
        return driver

    def write(self, *mutations: tuple[str, str | None], users: bool = True) -> None:
        """Values of orders by key, and a row of users."""
        self.at += 1
        self.catalogs.append(dict(self.tables))
        made = [Mutation(ORDERS.full_name, key, self.at, value) for key, value in mutations]
        others = [Mutation(USERS.full_name, f"u{self.at}", self.at, "here")] if users else []
        self.place.ship([*made, *others], with_schema=not self.place.segments)

    def ingest(self) -> None:
        self.do(drivers.ingest_until_idle)

    def publish(self) -> None:
        self.do(drivers.publish_if_due)

    def batch(self, *mutations: tuple[str, str | None], users: bool = True) -> None:
        self.write(*mutations, users=users)
        self.ingest()

    def refused(self) -> dict[str, str]:
        sealed = history(self.place.store, CLUSTER).sealed
        assert sealed is not None
        return {table.table: table.reason for table in sealed.refused}

    def waiting(self) -> dict[str, str]:
        published = read_published(self.place.store, CLUSTER)
        assert published is not None
        assert published.waiting.keys() == published.reasons.keys()
        return published.reasons

    def ask(self, *, with_events: bool) -> None:
        """What the command does."""
        past, now = history(self.place.store, CLUSTER), store_clock(self.place.store, CLUSTER)
        again.ask(self.place.store, CLUSTER, [ORDERS], since=past.last, sealed=past.sealed, with_events=with_events, by="me", now=now)

    def run_command(self, reason: str) -> None:
        """Do what the reason says, and let the next runs of the pipeline follow."""
        command = reason.partition("run `")[2].partition("`")[0]
        assert command in (f"writetime again {ORDERS.full_name}", f"writetime again {ORDERS.full_name} --rows"), reason
        self.ask(with_events=not command.endswith("--rows"))
        self.ingest()
        release_made_again(self.place.store, CLUSTER)
        self.ingest()
        self.publish()

    def rows(self, table: str) -> dict[str, str]:
        return {row["id"]: row["value"] for row in self.place.rows("shop") if row["of"] == table}

    def cluster(self, table: str) -> dict[str, str]:
        return {key: each.value for key, each in self.place.expected()[table].items() if each.value is not None}

    def consumer(self, table: str) -> dict[str, str]:
        """What somebody has who keeps the last value of each key, and forgets all when a table is emptied."""
        last: dict[str, tuple[tuple[int, int], str | None]] = {}
        emptied = (0, 0)
        for key, value in self._records(f"{PREFIX}.{table}"):
            place = value["batch"], value["ordinal"]
            if value["op"] == "t":
                emptied = max(emptied, place)
            else:
                last[key] = place, (value["after"] or {}).get("value")
        return {key: value for key, (place, value) in last.items() if place > emptied and value is not None}

    def _records(self, topic: str) -> Iterator[tuple[str, dict[str, Any]]]:
        for partition in self.place.broker.committed(topic):
            yield from (((key or b"").decode(), json.loads(value)) for key, value in partition if value is not None)

    def expect_whole(self, *names: str) -> None:
        for name in names or IDS:
            assert self.rows(name) == self.cluster(name), name
            assert self.consumer(name) == self.cluster(name), name

    # --- what people do

    def drop(self, name: str) -> None:
        del self.tables[name]

    def rename(self, name: str) -> None:
        self.tables[name.replace("orders", "orders_2025")] = self.tables.pop(name)

    def roll_back(self, name: str) -> None:
        """To the snapshot before the last; the table goes on from there."""
        held = self.tables[name]
        assert held.snapshot is not None
        self.tables[name] = replace(held, current=held.snapshot.parent)

    def restore(self, name: str) -> None:
        """As it was before the last batch, as of the catalog's backup."""
        self.tables[name] = self.catalogs[-1][name]

    def restore_catalog(self, _: str = "") -> None:
        self.tables.clear()
        self.tables.update(self.catalogs[-1])

    def delete_last(self, name: str) -> None:
        last = history(self.place.store, CLUSTER).base
        DoubleCatalog(self.place.catalog).delete(name, lambda row: row["batch"] == last)

    def make_anew(self, _: str = "") -> None:
        self.place.broker.delete_topic(TOPIC)
        self.place.broker.create_topic(TOPIC, 3)

    def lose_topic(self, _: str = "") -> None:
        self.place.broker.delete_topic(TOPIC)

    def lose_broker(self, _: str = "") -> None:
        for topic in list(self.place.broker.topics):
            self.place.broker.delete_topic(topic)

    def lose_progress(self, _: str = "") -> None:
        self.place.broker.delete_topic(progress_topic(PREFIX))


@pytest.fixture
def pipeline() -> Iterator[Pipeline]:
    with installed() as here:
        found = Pipeline(here)
        found.batch(("a", "1"), ("b", "1"), ("gone", "1"))
        found.publish()
        found.batch(("b", "2"), ("c", "2"), ("gone", None))
        yield found


BENEATH_BATCHES = {
    "current table dropped": (Pipeline.drop, CURRENT, "is not there", False),
    "current table renamed": (Pipeline.rename, CURRENT, "dropped or renamed", False),
    "current table rolled back": (Pipeline.roll_back, CURRENT, "shop.orders lacks batch 2", False),
    "current table of a backup": (Pipeline.restore, CURRENT, "shop.orders lacks batch 2", False),
    "changes dropped": (Pipeline.drop, CHANGES, "shop__changes.orders is not there", True),
    "changes renamed": (Pipeline.rename, CHANGES, "dropped or renamed", True),
    "changes rolled back": (Pipeline.roll_back, CHANGES, "shop__changes.orders lacks batch 2", True),
    "changes of a backup": (Pipeline.restore, CHANGES, "shop__changes.orders lacks batch 2", True),
}


@pytest.mark.parametrize("published", [True, False])
@pytest.mark.parametrize("what", BENEATH_BATCHES)
@pytest.mark.advice("the next batch makes the table again from its state. Other tables go on")
def test_a_table_that_lacks_what_the_seals_say_is_left_out_until_it_is_made_again(pipeline: Pipeline, what: str, published: bool) -> None:
    damage, name, says, is_told = BENEATH_BATCHES[what]
    if published:
        pipeline.publish()
    damage(pipeline, name)
    pipeline.batch(("a", "3"), ("d", "3"))
    reason = pipeline.refused()[ORDERS.full_name]
    assert says in reason
    assert (" --rows`" in reason) is not is_told
    assert f"table rejected: {ORDERS.full_name}: {reason}" in as_text(Batches(pipeline.place.store, CLUSTER), 10)
    # Nothing is built upon it, and the other table is complete.
    assert not any(row["value"] == "3" for row in pipeline.place.rows("shop"))
    pipeline.publish()
    pipeline.expect_whole(USERS.full_name)
    # It stays so, however many batches come.
    pipeline.batch(("a", "4"))
    assert pipeline.refused().keys() == {ORDERS.full_name}
    pipeline.run_command(reason)
    assert (pipeline.refused(), pipeline.waiting()) == ({}, {})
    pipeline.expect_whole()
    pipeline.batch(("a", "5"), ("b", None))
    pipeline.publish()
    pipeline.expect_whole()


def test_a_table_that_is_idle_is_looked_at_too(pipeline: Pipeline) -> None:
    pipeline.drop(CURRENT)
    pipeline.batch()
    assert pipeline.refused().keys() == {ORDERS.full_name}


def test_what_is_put_back_as_it_was_goes_on(pipeline: Pipeline) -> None:
    kept = pipeline.tables[CURRENT]
    pipeline.drop(CURRENT)
    pipeline.batch(("a", "3"))
    assert pipeline.refused()
    pipeline.tables[CURRENT] = kept
    pipeline.do(drivers.clear_held)
    pipeline.ingest()
    pipeline.publish()
    assert pipeline.refused() == {}
    pipeline.expect_whole()


def test_a_catalog_from_a_backup_is_noticed_for_each_table(pipeline: Pipeline) -> None:
    pipeline.publish()
    pipeline.restore_catalog()
    pipeline.batch(("a", "3"))
    found = pipeline.refused()
    assert found.keys() == IDS.keys()
    assert all(f"run `writetime again {name}`" in reason and "lacks batch 2" in reason for name, reason in found.items())


def test_a_table_that_others_have_compacted_or_whose_snapshots_have_expired_is_whole(pipeline: Pipeline) -> None:
    for name in (CURRENT, CHANGES):
        held = DoubleCatalog(pipeline.place.catalog).load(name)
        held.rewrite_files()
        held.expire(pipeline.place.world.date(), 1)
    pipeline.batch(("a", "3"))
    pipeline.publish()
    assert (pipeline.refused(), pipeline.waiting()) == ({}, {})
    pipeline.expect_whole()


BENEATH_PUBLISHING = {
    "events deleted": (Pipeline.delete_last, CHANGES, "has 0 events of batch 2, and the seal says 3"),
    "changes dropped": (Pipeline.drop, CHANGES, "its changes table is not there"),
    "changes renamed": (Pipeline.rename, CHANGES, "its changes table is not there"),
    "changes rolled back": (Pipeline.roll_back, CHANGES, "has 0 events of batch 2, and the seal says 3"),
    "changes of a backup": (Pipeline.restore, CHANGES, "has 0 events of batch 2, and the seal says 3"),
    "topic deleted": (Pipeline.lose_topic, "", "ends at 0"),
    "topic made anew": (Pipeline.make_anew, "", "ends at 0"),
}


@pytest.mark.parametrize("what", BENEATH_PUBLISHING)
@pytest.mark.advice("makes the table again from its state and tells all its rows")
def test_nothing_is_sent_over_a_hole(pipeline: Pipeline, what: str) -> None:
    damage, name, says = BENEATH_PUBLISHING[what]
    before = pipeline.consumer(ORDERS.full_name)
    damage(pipeline, name)
    pipeline.publish()
    assert pipeline.waiting().keys() == {ORDERS.full_name}
    reason = pipeline.waiting()[ORDERS.full_name]
    assert says in reason
    assert f"cannot be published: {ORDERS.full_name}, since batch 1: {reason}" in as_text(Batches(pipeline.place.store, CLUSTER), 10)
    assert pipeline.consumer(ORDERS.full_name) in (before, {})
    pipeline.expect_whole(USERS.full_name)
    # Nor later.
    pipeline.batch(("a", "3"), ("d", "3"))
    pipeline.publish()
    assert pipeline.waiting().keys() == {ORDERS.full_name}
    pipeline.run_command(reason)
    assert (pipeline.refused(), pipeline.waiting()) == ({}, {})
    pipeline.expect_whole()
    pipeline.batch(("a", "5"), ("c", None))
    pipeline.publish()
    pipeline.expect_whole()


@pytest.mark.parametrize("lose", [Pipeline.lose_broker, Pipeline.lose_progress])
@pytest.mark.parametrize("remedy", ["again", "beginning", "send again"])
def test_kafka_that_is_lost_gets_all_again(pipeline: Pipeline, lose: Callable[[Pipeline], None], remedy: str) -> None:
    pipeline.publish()
    lose(pipeline)
    # As `cdc_publish` goes on by itself: to batches of one table, then of the other.
    pipeline.batch(("a", "3"), users=False)
    pipeline.publish()
    found = pipeline.waiting()
    assert found.keys() == IDS.keys()
    assert all("Kafka knows of none" in reason or "ends at 0" in reason for reason in found.values())
    assert not pipeline.place.broker.topics.keys() & {TOPIC} or lose is Pipeline.lose_progress
    if remedy == "beginning":
        pipeline.do(lambda place: drivers.publish_run(place, everything=True))
    elif remedy == "send again":
        pipeline.do(lambda place: drivers.publish_run(place, again=list(IDS)))
    else:
        past, now = history(pipeline.place.store, CLUSTER), store_clock(pipeline.place.store, CLUSTER)
        again.ask(pipeline.place.store, CLUSTER, [ORDERS, USERS], since=past.last, sealed=past.sealed, with_events=True, by="me", now=now)
        pipeline.ingest()
        pipeline.publish()
    assert pipeline.waiting() == {}
    pipeline.expect_whole()
    pipeline.batch(("a", "5"))
    pipeline.publish()
    assert pipeline.waiting() == {}
    pipeline.expect_whole()


def test_one_topic_made_anew_is_not_met_by_looking_at_all_batches(pipeline: Pipeline) -> None:
    """Kafka's own progress says that its events were sent."""
    pipeline.publish()
    pipeline.make_anew()
    pipeline.do(lambda place: drivers.publish_run(place, everything=True))
    assert pipeline.waiting().keys() == {ORDERS.full_name}
    pipeline.do(lambda place: drivers.publish_run(place, again=[ORDERS.full_name]))
    assert pipeline.waiting() == {}
    pipeline.expect_whole()


def test_rows_alone_are_made_again_without_events(pipeline: Pipeline) -> None:
    pipeline.publish()
    before = list(pipeline.place.rows("shop__changes"))
    pipeline.ask(with_events=False)
    pipeline.ingest()
    pipeline.publish()
    assert pipeline.place.rows("shop__changes") == before
    pipeline.expect_whole()


def test_a_request_is_met_once_and_by_a_batch_of_its_own(pipeline: Pipeline) -> None:
    pipeline.ask(with_events=True)
    pipeline.ingest()
    last = history(pipeline.place.store, CLUSTER).base
    assert last == 3
    pipeline.ingest()
    assert history(pipeline.place.store, CLUSTER).base == last
    # One for rows after that is another one, and one for events is not made less by it.
    pipeline.ask(with_events=True)
    pipeline.ask(with_events=False)
    pipeline.ingest()
    sealed = history(pipeline.place.store, CLUSTER).sealed
    assert sealed is not None
    assert (sealed.number, sealed.again[ORDERS.id].with_events) == (4, 4)
    pipeline.publish()
    pipeline.expect_whole()


def test_a_voided_batch_meets_no_request(pipeline: Pipeline) -> None:
    pipeline.ask(with_events=True)
    pipeline.do(drivers.void_planned)
    pipeline.ingest()
    sealed = history(pipeline.place.store, CLUSTER).sealed
    assert sealed is not None
    assert sealed.again[ORDERS.id].with_events == sealed.number == 4
    pipeline.publish()
    pipeline.expect_whole()


def rolled_back_and_written(pipeline: Pipeline, name: str) -> None:
    """The sequence numbers of its snapshots go on."""
    pipeline.roll_back(name)
    DoubleCatalog(pipeline.place.catalog).delete(name, lambda row: row.get("id") == "a")


SABOTAGE: dict[str, tuple[Any, str, Any, Callable[[Pipeline], Any]]] = {
    "tables": (iceberg, "_loss", lambda *_: None, lambda each: each.drop(CURRENT)),
    "snapshots": (iceberg, "_is_before", lambda *_: True, lambda each: rolled_back_and_written(each, CURRENT)),
    "events": (publish.Outbox, "_holes", lambda *_: {}, lambda each: (each.delete_last(CHANGES), each.publish())),
    "topics": (publish.Outbox, "_lost", lambda *_: {}, lambda each: (each.publish(), each.make_anew())),
    "broker": (publish.Outbox, "_lost", lambda *_: {}, lambda each: (each.publish(), each.lose_broker())),
}


@pytest.mark.parametrize("check", SABOTAGE)
def test_a_check_that_is_left_out_is_noticed(pipeline: Pipeline, monkeypatch: pytest.MonkeyPatch, check: str) -> None:
    """Without it something is missing, and nobody is told."""
    of, name, instead, damage = SABOTAGE[check]
    monkeypatch.setattr(of, name, instead)
    damage(pipeline)
    pipeline.batch(("new", "3"))
    pipeline.publish()
    assert not pipeline.refused()
    assert not pipeline.waiting()
    with pytest.raises(AssertionError):
        pipeline.expect_whole()


@pytest.mark.parametrize("check", SABOTAGE)
def test_with_the_check_somebody_is_told(pipeline: Pipeline, check: str) -> None:
    *_, damage = SABOTAGE[check]
    damage(pipeline)
    pipeline.batch(("new", "3"))
    pipeline.publish()
    assert pipeline.refused() or pipeline.waiting()
