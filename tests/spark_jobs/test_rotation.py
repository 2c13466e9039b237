"""What changes while a pipeline runs: the salt of masks, the nodes' keystore, credentials, and which tables
are captured."""

from __future__ import annotations

import hashlib
import hmac
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from pyiceberg.catalog.sql import SqlCatalog

from spark_jobs import cassandra_reader as cql
from spark_jobs import ingest, rebuild
from tests.cassandra.commitlog.packed import make_keystore, repack
from tests.spark_jobs.synthetic import CLUSTER, ORDERS, START, Ring, insert, update
from writetime.cassandra.commitlog.encryption.keystore import PASSWORD_VARIABLE
from writetime.cassandra.types.types import parse_type
from writetime.config.cluster import CqlConfig
from writetime.config.tables import ColumnsConfig, TablesConfig
from writetime.events.masking import Mask
from writetime.pipeline.archiver import archive
from writetime.pipeline.planner import plan_replay
from writetime.storage.s3 import S3Store

pytestmark = pytest.mark.thorough

OLD, NEW = "the first salt", "the second salt"
PASSWORD = "of a test's keystore"


def hashed(value: int, salt: str) -> str:
    return hmac.new(salt.encode(), str(value).encode(), hashlib.sha256).hexdigest()


def with_salt(ring: Ring, salt: str, column: str) -> None:
    rules = {"salt": salt, "column.mask.hash.sha256.with.salt": f"shop.orders.{column}"}
    ring.config = ring.config.model_copy(update={"columns": ColumnsConfig.model_validate(rules)})


def shipped(ring: Ring, *bodies: bytes, at: float) -> None:
    for body in bodies:
        ring.write(body)
    ring.finish_and_ship(at)


def orders(ring: Ring) -> list[dict[str, Any]]:
    catalog = SqlCatalog("lake", uri=f"sqlite:///{ring.folder / 'lake' / 'catalog.db'}")
    rows: list[dict[str, Any]] = catalog.load_table(("shop", "orders")).scan().to_arrow().to_pylist()
    return rows


def test_the_hash_of_the_tests_is_that_of_the_product() -> None:
    assert Mask("hash", algorithm="sha256", salt=OLD).compiled(parse_type("int", "shop", {}))(5) == hashed(5, OLD)


@pytest.mark.spark
@pytest.mark.drivers
@pytest.mark.timeout(900)
def test_a_new_salt_counts_from_the_next_batch_on_and_a_rebuild_makes_all_alike(tmp_path: Path) -> None:
    ring = Ring.create(tmp_path, "a")
    with_salt(ring, OLD, "name")
    shipped(ring, insert(1, 1, 1, name=5), insert(2, 1, 2, name=5), at=10)
    ring.batch(20)
    with_salt(ring, NEW, "name")
    shipped(ring, update(1, 1, 31, amount=6), at=40)
    ring.batch(50)
    # The row that was touched has the new hash in all that its event shows; the other one keeps the old.
    assert {row["id"]: row["name"] for row in orders(ring)} == {1: hashed(5, NEW), 2: hashed(5, OLD)}
    first, last = (event for event in ring.events() if event["key"]["id"] == 1)
    assert first["after"]["name"] == hashed(5, OLD)
    assert (last["before"]["name"], last["after"]["name"], last["changed"]) == (hashed(5, NEW), hashed(5, NEW), ["amount"])
    rebuild.run(ring.config)
    assert {row["id"]: row["name"] for row in orders(ring)} == {1: hashed(5, NEW), 2: hashed(5, NEW)}


@pytest.mark.spark
@pytest.mark.drivers
@pytest.mark.timeout(900)
def test_with_a_masked_key_the_old_row_stays_until_a_rebuild(tmp_path: Path) -> None:
    ring = Ring.create(tmp_path, "a")
    with_salt(ring, OLD, "id")
    shipped(ring, insert(1, 1, 1, name=5), at=10)
    ring.batch(20)
    with_salt(ring, NEW, "id")
    shipped(ring, update(1, 1, 31, name=6), at=40)
    ring.batch(50)
    assert {row["id"]: row["name"] for row in orders(ring)} == {hashed(1, OLD): 5, hashed(1, NEW): 6}
    rebuild.run(ring.config)
    assert {row["id"]: row["name"] for row in orders(ring)} == {hashed(1, NEW): 6}


@pytest.mark.spark
@pytest.mark.drivers
@pytest.mark.timeout(900)
def test_segments_of_an_old_key_and_of_a_new_one(tmp_path: Path) -> None:
    """The keystore gets the new key beside the old one; a rebuild reads segments of both."""
    ring = Ring.create(tmp_path, "a")
    keystore, first = make_keystore(tmp_path, PASSWORD, "key-1")
    cluster = ring.config.cluster.model_copy(update={"commitlog_keystore": keystore})
    # An earlier test may have started the JVM: its environment is what it was.
    conf = {**ring.config.spark.conf, f"spark.executorEnv.{PASSWORD_VARIABLE}": PASSWORD}
    spark = ring.config.spark.model_copy(update={"conf": conf})
    ring.config = ring.config.model_copy(update={"cluster": cluster, "spark": spark})

    def encrypted(at: float, key: bytes, alias: str) -> None:
        name = ring.finish("a", at)
        (kept,) = (path for path in (tmp_path / "finished").iterdir() if path.name == f"a-{ring.nodes['a'].segment - 1}")
        kept.write_bytes(repack(kept.read_bytes(), "encrypted", key=key, alias=alias))
        ring.ship(name)

    ring.write(insert(1, 1, 1, name=5))
    encrypted(10, first, "key-1")
    ring.batch(20)
    _, second = make_keystore(tmp_path, PASSWORD, "key-2")
    assert first != second
    ring.write(insert(2, 1, 31, name=6))
    encrypted(40, second, "key-2")
    # One that was still being written when the key was changed.
    ring.write(insert(3, 1, 41, name=7))
    encrypted(45, first, "key-1")
    ring.batch(50)
    rows = {(1, 1): {"name": 5}, (2, 1): {"name": 6}, (3, 1): {"name": 7}}
    assert ring.current() == rows
    rebuild.run(ring.config)
    assert ring.current() == rows


@pytest.mark.spark
@pytest.mark.drivers
@pytest.mark.timeout(900)
def test_a_table_that_is_added_while_the_pipeline_runs(tmp_path: Path) -> None:
    """What was written before comes in with a replay of those hours; until then a row that is changed shows
    what was written since."""
    ring = Ring.create(tmp_path, "a", "b")
    ring.config = ring.config.model_copy(update={"tables": TablesConfig(include=["shop.other"])})
    shipped(ring, insert(1, 1, 1, name=1, amount=1), insert(2, 1, 2, name=2), at=10)
    first = ring.batch(20)
    assert {account.table: account.not_ours for account in first.accounting}["shop.orders"] == 4
    assert first.state == {}

    ring.config = ring.config.model_copy(update={"tables": TablesConfig(include=["shop.*"])})
    shipped(ring, update(1, 1, 31, name=9), insert(3, 1, 32, name=3), at=40)
    second = ring.batch(50)
    assert list(second.state) == [str(ORDERS.id)]
    assert ring.current() == {(1, 1): {"name": 9}, (3, 1): {"name": 3}}

    hours = {"start": START, "end": START + timedelta(hours=1), "now": START + timedelta(seconds=100)}
    manifest = plan_replay(ring.store, CLUSTER, **hours)
    assert manifest is not None
    ingest.run(ring.config, manifest.number)
    archive(ring.store, CLUSTER, manifest.number)
    assert ring.current() == {(1, 1): {"name": 9, "amount": 1}, (2, 1): {"name": 2}, (3, 1): {"name": 3}}


# --- credentials


def test_each_connection_to_the_ring_takes_the_password_that_holds_then(monkeypatch: pytest.MonkeyPatch) -> None:
    given: list[str] = []

    class Refused(Exception):
        pass

    def connect(*_: Any, auth_provider: Any, **__: Any) -> None:
        given.append(auth_provider.password)
        raise Refused

    monkeypatch.setattr(cql, "Cluster", connect)
    config = CqlConfig.model_validate({"contact_points": ["10.0.0.1"], "username": "cdc"})
    for password in ("old", "new"):
        monkeypatch.setenv(cql.PASSWORD, password)
        with pytest.raises(Refused):
            cql.Ring(config, datacenter="dc1")
    assert given == ["old", "new"]


def test_a_store_keeps_the_credentials_that_it_began_with(monkeypatch: pytest.MonkeyPatch) -> None:
    """A shipper opens its store once: new keys in its environment need a restart. A job opens its own."""
    monkeypatch.setenv("AWS_DEFAULT_REGION", "eu-central-1")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "secret")

    def key_of(store: S3Store) -> str:
        found: str = store._client._request_signer._credentials.access_key
        return found

    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "old")
    running = S3Store("s3://bucket")
    assert key_of(running) == "old"
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "new")
    assert key_of(running) == "old"
    assert key_of(S3Store("s3://bucket")) == "new"
