"""Erasing a key, with real Spark: not a byte of it is left in bucket and warehouse, and all else is as it
was."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from spark_jobs import erase, ingest, publish, rebuild
from spark_jobs.session import spark_session
from spark_jobs.stages import erase_key
from tests.spark_jobs.bytes_of import holders
from tests.spark_jobs.synthetic import CLUSTER, ORDERS, START, Ring, delete_partition, delete_row, insert, update
from writetime import cli
from writetime.config.kafka import KafkaConfig
from writetime.errors import BatchBusy, BatchClosed, BatchError, ConfigError
from writetime.pipeline import archive_packing, erasures, planner
from writetime.pipeline import rebuild as archive_of
from writetime.pipeline.erase import Outcome
from writetime.pipeline.erasures import Erasure
from writetime.pipeline.planner import history, read_manifest
from writetime.storage import layout
from writetime.storage.store import Store

pytestmark = [pytest.mark.spark, pytest.mark.timeout(900), pytest.mark.thorough]

KEY, MARK, NEW = 0x5EC2E7A9, 0x6DA7C0DE, 0x71B2E55D
"""A partition key, and a value of its rows before and after it was erased, that stand nowhere else."""
TABLE = "shop.orders"
CHANGES, CURRENT = "`lake`.`shop__changes`.`orders`", "`lake`.`shop`.`orders`"


def shipped(ring: Ring, *bodies: bytes, at: float, hosts: tuple[str, ...] = ()) -> None:
    for body in bodies:
        ring.write(body, *hosts)
    ring.finish_and_ship(at, *hosts)


def with_a_key(folder: Path) -> Ring:
    """A ring whose key was written and changed, among others; a part of the archive is packed."""
    ring = Ring.create(folder, "a", "b")
    shipped(ring, insert(KEY, 1, 1, name=MARK, note=MARK), insert(1, 1, 2, name=7), insert(KEY, 2, 3, name=2), at=10)
    ring.batch(20)
    for name in list(archive_packing.to_pack(ring.store, CLUSTER, before=START + timedelta(days=2))):
        archive_packing.pack(ring.store, name, 3)
    shipped(ring, update(KEY, 2, 31, amount=MARK), insert(2, 1, 32, name=8), update(1, 1, 33, amount=9), at=40)
    ring.batch(50)
    return ring


def deleted(ring: Ring) -> None:
    shipped(ring, delete_partition(KEY, 61), at=70)
    ring.batch(80)
    publish.run(ring.config)


def erased(ring: Ring, key: dict[str, Any] | None = None, **how: Any) -> Outcome:
    return erase.run(ring.config, TABLE, json.dumps(key or {"id": KEY}), by="a test", **{"yes": True, **how})


def others(ring: Ring) -> tuple[dict[Any, Any], list[dict[str, Any]]]:
    """Current rows and events of all other keys."""
    rows = {key: row for key, row in ring.current().items() if key[0] != KEY}
    return rows, [event for event in ring.events() if event["key"]["id"] != KEY]


def expect_gone(ring: Ring, *needles: int) -> None:
    assert holders(ring.folder / "bucket", *needles) == set()
    assert holders(ring.folder / "lake", *needles) == set()


@contextmanager
def dies_before(monkeypatch: pytest.MonkeyPatch, step: str, of: Any = erase) -> Iterator[None]:
    class Death(BaseException):
        pass

    def die(*arguments: Any, **named: Any) -> Any:
        raise Death

    with monkeypatch.context() as patch:
        patch.setattr(of, step, die)
        with pytest.raises(Death):
            yield


@pytest.mark.advice("Delete it in the ring, let cdc_ingest and cdc_publish run, and erase it then.")
def test_nothing_of_a_key_is_left_and_all_else_is_as_it_was(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    ring = with_a_key(tmp_path)
    with pytest.raises(BatchError, match="still has rows of the key"):
        erased(ring)
    shipped(ring, delete_partition(KEY, 61), at=70)
    ring.batch(80)
    with pytest.raises(BatchError, match="5 events of the key are not in the files yet"):
        erased(ring)
    publish.run(ring.config)
    before, places = others(ring), ("cdc_archive", "state", "events")
    held = holders(tmp_path / "bucket", KEY, MARK)
    assert all(any(name.startswith(place) for name in held) for place in places)
    assert any(name.endswith(".parquet") for name in holders(tmp_path / "lake", MARK))

    command = ["erase", TABLE, "--config", str(tmp_path / "pipeline.yaml"), "--key", json.dumps({"id": KEY})]
    assert cli.main([*command, "--json"]) == 0
    looked = Outcome.model_validate_json(capsys.readouterr().out.splitlines()[-1])
    assert (looked.done, looked.live, looked.records > 0, len(looked.segments)) == (False, [], True, 6)
    assert holders(tmp_path / "bucket", KEY, MARK) == held

    assert cli.main([*command, "--yes"]) == 0
    told = capsys.readouterr().out
    assert "erased by batch 4" in told
    assert "5 rows of lake.shop__changes.orders" in told
    assert "copies of bucket and warehouse" in told
    expect_gone(ring, KEY, MARK)
    assert others(ring) == before
    assert len(before[1]) == len(ring.events())


def test_earlier_writes_stay_out_and_later_ones_come_in(tmp_path: Path) -> None:
    ring = with_a_key(tmp_path)
    deleted(ring)
    late = insert(KEY, 3, 5, name=MARK)
    ring.join("c")
    done = erased(ring)
    assert (done.done, done.again) == (True, False)
    before = others(ring)

    # A replica that was away, and a segment that is put again.
    shipped(ring, late, insert(3, 1, 6, name=3), at=90, hosts=("c",))
    again = layout.SegmentRef(layout.NodeName(CLUSTER, "dc1", "a"), layout.SegmentName(id=1, version=7)).incoming
    # As if care of the archive had taken its entry away: else planning would know it.
    ring.store.delete(layout.SegmentRef.from_object(again).ledger)
    ring.ship(again)
    sealed = ring.batch(100)
    assert {account.table: account.superseded for account in sealed.accounting}[TABLE] == 4
    assert {key: row for key, row in ring.current().items() if key[0] == KEY} == {}
    assert ring.store.head(again) is None
    assert archive_of.look(ring.store, CLUSTER).whole
    assert ring.remembered() == [key for key in ring.remembered() if (key if isinstance(key, int) else key[0]) != KEY]

    now = (history(ring.store, CLUSTER).sealed or sealed).number
    after = read_manifest(ring.store, CLUSTER, done.batch or 0).created_at.timestamp() - START.timestamp() + 10
    shipped(ring, insert(KEY, 1, after, name=NEW), at=110)
    ring.batch(120)
    assert {key: row for key, row in ring.current().items() if key[0] == KEY} == {(KEY, 1): {"name": NEW}}
    assert [event["op"] for event in ring.events(now + 1)] == ["c"]

    rows = ring.current()
    rebuild.run(ring.config)
    assert ring.current() == rows
    assert {key: row for key, row in others(ring)[0].items() if key != (3, 1)} == before[0]

    # What came late lies in the archive as it came; the key lives again, and is deleted once more.
    shipped(ring, delete_partition(KEY, after + 1), at=130)
    ring.batch(140)
    publish.run(ring.config)
    assert holders(tmp_path / "bucket", MARK)


def test_it_goes_on_after_a_death_at_any_step(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest) -> None:
    ring = with_a_key(tmp_path)
    deleted(ring)
    before = others(ring)
    spark = spark_session(ring.config, "one for all")
    request.addfinalizer(spark.stop)
    steps: list[tuple[Any, str]] = [
        (ingest, "erase"),
        (erase_key.bucket, "quarantine_records"),
        (erase_key.Erasing, "_rewrite_state"),
        (erase_key.Erasing, "_erase_rows"),
        (erase_key, "scrub"),
        (erase_key, "carry_over"),
        (erase_key, "seal"),
        (erase_key, "after_seal"),
    ]
    for of, step in steps:
        with dies_before(monkeypatch, step, of):
            erased(ring, spark=spark)
        if step != "after_seal":
            with pytest.raises(BatchBusy, match=r"batch 4 \(erase\) is not sealed yet"):
                erased(ring, {"id": 9}, spark=spark)
    # It is sealed, and only what comes after that is lacking: the next erasure makes up for it.
    assert holders(tmp_path / "bucket", KEY) != set()
    erased(ring, spark=spark)
    expect_gone(ring, KEY, MARK)
    assert others(ring) == before


def test_ingest_finishes_one_that_was_begun(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    ring = with_a_key(tmp_path)
    deleted(ring)
    with dies_before(monkeypatch, "_erase_rows", erase_key.Erasing):
        erased(ring)
    shipped(ring, insert(4, 1, 91, name=4), at=95)
    assert ring.batch(100).kind == "erase"
    expect_gone(ring, KEY, MARK)
    assert ring.batch(110).kind == "ingest"
    assert ring.current()[4, 1] == {"name": 4}


def test_it_waits_for_a_replay_that_is_planned_at_the_same_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It pins archived segments, and would write rows of the key into tables that the erasure has searched."""
    ring = with_a_key(tmp_path)
    deleted(ring)
    before = holders(ring.folder / "bucket", MARK)
    looked = planner.expect_no_open_replay

    def beside(store: Store, cluster: str, operation: str) -> None:
        looked(store, cluster, operation)
        assert planner.plan_replay(store, cluster, start=START, end=START + timedelta(hours=1), now=START, namespace="check")

    monkeypatch.setattr(planner, "expect_no_open_replay", beside)
    with pytest.raises(BatchBusy, match=r"batch 2 \(replay\) is not sealed yet"):
        erased(ring)
    assert holders(ring.folder / "bucket", MARK) == before


def test_a_void_that_was_interrupted_is_finished_by_the_batch(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    ring = with_a_key(tmp_path)
    deleted(ring)
    before = holders(ring.folder / "bucket", MARK)
    noted = erasures.note

    def late(store: Store, cluster: str, erasure: Erasure) -> Erasure:
        erasures.revoke(store, cluster, erasure.number, by="ann")
        return noted(store, cluster, erasure)

    with monkeypatch.context() as patch:
        patch.setattr(erasures, "note", late)
        with pytest.raises(BatchClosed, match="it was voided by ann"):
            erased(ring)
    assert holders(ring.folder / "bucket", MARK) == before
    assert erased(ring).done
    expect_gone(ring, KEY, MARK)


def test_one_row_of_a_partition(tmp_path: Path) -> None:
    ring = Ring.create(tmp_path, "a", "b")
    kept = {"name": 5, "note": 6}
    shipped(ring, insert(KEY, 1, 1, **kept), insert(KEY, NEW, 2, name=MARK), insert(1, 1, 2, name=7), at=10)
    ring.batch(20)
    shipped(ring, delete_row(KEY, NEW, 31), at=40)
    ring.batch(50)
    publish.run(ring.config)
    done = erased(ring, {"id": KEY, "line": NEW})
    assert (done.rows[CHANGES], done.records, done.troubles) == (2, 1, [])
    expect_gone(ring, MARK, NEW)
    assert ring.current() == {(KEY, 1): kept, (1, 1): {"name": 7}}
    rebuild.run(ring.config)
    assert ring.current() == {(KEY, 1): kept, (1, 1): {"name": 7}}


def test_what_is_no_key(tmp_path: Path) -> None:
    ring = Ring.create(tmp_path, "a")
    with pytest.raises(BatchError, match="no batch is sealed yet"):
        erased(ring)
    shipped(ring, insert(1, 1, 1), at=10)
    ring.batch(20)
    wrong = {
        '{"id": "x"}': "id is not a valid int",
        '{"line": 1}': "Give id, or also line",
        "[1]": "not a JSON object",
        "{": "not valid JSON",
    }
    for text, why in wrong.items():
        with pytest.raises(ConfigError, match=why):
            erase.run(ring.config, TABLE, text, by="a test")
    with pytest.raises(ConfigError, match="no table of that name"):
        erase.run(ring.config, "shop.other", '{"id": 1}', by="a test")


def test_events_set_aside_are_found_by_their_place(tmp_path: Path) -> None:
    """Claims, of one content or several, and events that were not sent; no others whose numbers begin
    alike."""
    ring = Ring.create(tmp_path)
    kafka = KafkaConfig.model_validate({"bootstrap.servers": "127.0.0.1:1", "topic.prefix": "p"})
    config, store = ring.config.model_copy(update={"kafka": kafka}), ring.store
    topic = "p.shop.orders"
    claim, stem = layout.claim(topic, 3, 7), layout.unpublishable(CLUSTER, topic, 3, 7)
    mine = {claim, f"{claim}~0000abcd", f"{stem}.bin", f"{stem}.json"}
    for name in (*mine, f"{claim}1", f"{stem}1.bin", layout.claim(topic, 4, 7), layout.claim("p.shop.orders2", 3, 7)):
        store.put(name, b"an event")
    work = erase_key.Erasing(config, store, None, None, None)  # type: ignore[arg-type]
    assert set(work._set_aside(ORDERS, 3, 7)) == mine


def sql(ring: Ring, *statements: str) -> None:
    """What somebody else does to the tables."""
    spark = spark_session(ring.config, "a user")
    for statement in statements:
        spark.sql(statement).collect()
    spark.stop()


def test_what_somebody_has_named_is_found_before_and_goes_when_it_is_let_go(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A tag, a branch, a retention of main, and a catalog that forbids to delete files: none stops the batch or the next one."""
    ring = with_a_key(tmp_path)
    sql(
        ring,
        "ALTER TABLE lake.shop.orders CREATE TAG q2 RETAIN 365 DAYS",
        "ALTER TABLE lake.shop__changes.orders CREATE BRANCH audit",
        "ALTER TABLE lake.shop__changes.orders REPLACE BRANCH main WITH SNAPSHOT RETENTION 100 SNAPSHOTS 90 DAYS",
    )
    deleted(ring)
    sql(ring, "ALTER TABLE lake.shop.orders SET TBLPROPERTIES ('gc.enabled'='false')")
    found = erased(ring, yes=False)
    held = {each.what.partition(":")[0].rpartition("which ")[2]: each for each in found.unreached if each.holds_key}
    assert {"the tag q2 keeps", "the branch audit keeps"} < held.keys()
    assert len(held) == 3
    assert "when it expires; or you drop it (ALTER TABLE lake.shop.orders DROP TAG `q2`), and erase" in held["the tag q2 keeps"].until
    assert held["the branch audit keeps"].until.startswith("you drop it (ALTER TABLE lake.shop__changes.orders DROP BRANCH `audit`)")
    command = ["erase", TABLE, "--config", str(tmp_path / "pipeline.yaml"), "--key", json.dumps({"id": KEY}), "--yes"]
    assert cli.main(command) == 1, "something is left that is known to hold it"
    said = capsys.readouterr().out
    assert said.count("\nnot erased: table lake.shop") == 3
    assert "gc.enabled=false forbids to delete files" in said
    assert holders(ring.folder / "lake", KEY, MARK)
    shipped(ring, insert(3, 1, 91, name=5), at=95)
    ring.batch(100)
    assert not history(ring.store, CLUSTER).open
    sql(
        ring,
        "ALTER TABLE lake.shop.orders DROP TAG `q2`",
        "ALTER TABLE lake.shop__changes.orders DROP BRANCH `audit`",
        "ALTER TABLE lake.shop.orders SET TBLPROPERTIES ('gc.enabled'='true')",
    )
    assert cli.main(command) == 0
    expect_gone(ring, KEY, MARK)
