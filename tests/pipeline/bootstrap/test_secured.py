"""A node that wants TLS on both sides, a password and rights: the shipper and the bootstrap do with least of
them.

The roles: `shipper` may log in and nothing else, `reader` has SELECT on one keyspace."""

from __future__ import annotations

import ssl
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from threading import Event
from typing import Any

import pytest
from cassandra.auth import PlainTextAuthProvider
from cassandra.cluster import EXEC_PROFILE_DEFAULT, Cluster, ExecutionProfile, NoHostAvailable, Session
from cassandra.policies import RoundRobinPolicy
from cryptography import x509
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.serialization import BestAvailableEncryption, pkcs12
from pydantic import ByteSize, SecretStr
from tenacity import retry, retry_if_exception_type, stop_after_delay, wait_fixed

from proof.harness.cassandra import Ring
from proof.ring.pipeline import Pipeline, _Replaced
from shippers.agent import Agent
from shippers.node_identity import Link
from spark_jobs import bootstrap, cassandra_reader
from spark_jobs.cassandra_reader import KEY_PASSWORD, PASSWORD
from spark_jobs.cassandra_reader import Ring as Reader
from tests.shippers.test_tls import Identity, identity
from writetime.config.cluster import CqlConfig, CqlTlsConfig
from writetime.config.node import NodeConfig, ShipConfig, TlsConfig
from writetime.errors import BatchError, ShipError

pytestmark = [pytest.mark.cassandra, pytest.mark.spark, pytest.mark.timeout(600), pytest.mark.thorough]

CLUSTER = "secured"
STORES = "of the stores"
KEY = b"of the key"
DATACENTER = "dc1"
ROWS = 25
AT_ONCE = ("-Dcassandra.superuser_setup_delay_ms=0",)
"""The first user is made without waiting for other nodes."""


@dataclass
class Secured:
    """A ring of one node, who may speak to it, and a pipeline beside it."""

    ring: Ring
    client: Identity
    node: Identity
    pipeline: Pipeline

    def cql(self) -> CqlConfig:
        tls = CqlTlsConfig(ca=self.node.certificate, certificate=self.client.certificate, key=self.client.key)
        return CqlConfig(contact_points=["127.0.0.1"], port=self.ring.nodes[0].port, username="reader", tls=tls)

    def about_node(self, password: str) -> NodeConfig:
        tls = TlsConfig(
            ca=self.node.certificate, certificate=self.client.certificate, key=self.client.key, key_password=SecretStr(KEY.decode())
        )
        node = self.ring.nodes[0]
        ship = ShipConfig(disk_reserve=ByteSize(0), tail_seconds=None)
        return NodeConfig(
            cdc_raw=node.cdc_raw, address=node.address, port=node.port, username="shipper", password=SecretStr(password), tls=tls, ship=ship
        )


def stores(folder: Path, own: Identity, trusted: Identity) -> dict[str, Any]:
    """client_encryption_options, with both stores in files."""
    key = serialization.load_pem_private_key(own.key.read_bytes(), None)
    certificates = [x509.load_pem_x509_certificate(each.certificate.read_bytes()) for each in (own, trusted)]
    locked = BestAvailableEncryption(STORES.encode())
    (folder / "keys.p12").write_bytes(pkcs12.serialize_key_and_certificates(b"node", key, certificates[0], None, locked))  # type: ignore[arg-type]
    trust = [pkcs12.PKCS12Certificate(certificates[1], b"client")]
    (folder / "trusted.p12").write_bytes(pkcs12.serialize_java_truststore(trust, locked))
    return {
        "enabled": True,
        "optional": False,
        "keystore": str(folder / "keys.p12"),
        "keystore_password": STORES,
        "require_client_auth": True,
        "truststore": str(folder / "trusted.p12"),
        "truststore_password": STORES,
        "store_type": "PKCS12",
    }


@pytest.fixture(scope="module")
def secured(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Secured]:
    folder = tmp_path_factory.mktemp("secured")
    own, client = identity(folder, "node"), identity(folder, "client", password=KEY)
    settings = {
        "authenticator": "PasswordAuthenticator",
        "authorizer": "CassandraAuthorizer",
        "client_encryption_options": stores(folder, own, client),
    }
    with (
        Ring(folder / "ring", segment_mb=1, cluster_name=CLUSTER, settings=settings, options=AT_ONCE) as ring,
        Pipeline.create(folder / "run") as pipeline,
    ):
        fill(ring, own, client)
        secured = Secured(ring, client, own, pipeline)
        config = pipeline.config
        cluster = config.cluster.model_copy(update={"name": CLUSTER, "cql": secured.cql()})
        # What a worker's environment has of secrets comes to it by the operator's hand.
        spark = config.spark.model_copy(
            update={
                "conf": {**config.spark.conf, f"spark.executorEnv.{PASSWORD}": "r", f"spark.executorEnv.{KEY_PASSWORD}": KEY.decode()},
            }
        )
        pipeline.config = config.model_copy(update={"cluster": cluster, "spark": spark})
        yield secured


def fill(ring: Ring, own: Identity, client: Identity) -> None:
    """Roles and a table, by the user that every ring begins with."""
    context = ssl.create_default_context(cafile=own.certificate)
    context.load_cert_chain(client.certificate, client.key, KEY)
    session = first_user(ring.nodes[0].port, context)
    try:
        for statement in (
            "CREATE ROLE shipper WITH LOGIN = true AND PASSWORD = 's'",
            "CREATE ROLE reader WITH LOGIN = true AND PASSWORD = 'r'",
            f"CREATE KEYSPACE shop WITH replication = {{'class': 'NetworkTopologyStrategy', '{DATACENTER}': 1}}",
            "CREATE TABLE shop.orders (id int PRIMARY KEY, note text) WITH cdc = true",
            "GRANT SELECT ON KEYSPACE shop TO reader",
        ):
            session.execute(statement)
        for number in range(ROWS):
            session.execute("INSERT INTO shop.orders (id, note) VALUES (%s, %s)", (number, f"note {number}"))
    finally:
        session.cluster.shutdown()


@retry(retry=retry_if_exception_type(NoHostAvailable), stop=stop_after_delay(60), wait=wait_fixed(1), reraise=True)
def first_user(port: int, context: ssl.SSLContext) -> Session:
    """A node makes its first user some seconds after it has begun to answer."""
    return Cluster(
        ["127.0.0.1"],
        port=port,
        protocol_version=4,
        ssl_context=context,
        auth_provider=PlainTextAuthProvider("cassandra", "cassandra"),
        execution_profiles={EXEC_PROFILE_DEFAULT: ExecutionProfile(load_balancing_policy=RoundRobinPolicy())},
    ).connect()


def test_a_table_is_read_over_tls_by_a_role_that_may_only_select(secured: Secured, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(PASSWORD, "r")
    monkeypatch.setenv(KEY_PASSWORD, KEY.decode())
    config = secured.pipeline.config
    link = Link(secured.about_node("s"))
    with link:
        own = config.model_copy(update={"node": secured.about_node("s")})
        assert not Agent(own, secured.pipeline.store, link=link, stop=Event(), pause=0.05).round().failed
    with _Replaced(bootstrap, "spark_session", secured.pipeline._session):
        (run,) = bootstrap.run(config, tables=["shop.orders"])
    assert (run.rows, run.frames, run.remaining) == (ROWS, ROWS, 0)
    told = b"".join(secured.pipeline.store.read(info.name) for info in secured.pipeline.store.list("bootstrap/"))
    assert KEY not in told


def test_without_the_right_password_it_is_told_what_to_look_at(secured: Secured, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cassandra_reader, "_ATTEMPTS", 1)
    monkeypatch.setenv(PASSWORD, "guessed")
    monkeypatch.setenv(KEY_PASSWORD, KEY.decode())
    with pytest.raises(BatchError, match="user's rights") as caught:
        Reader(secured.cql(), datacenter=DATACENTER)
    assert "guessed" not in str(caught.value)
    with Link(secured.about_node("guessed")) as link, pytest.raises(ShipError, match="user and password") as refused:
        link.facts()
    assert "guessed" not in str(refused.value)


def test_who_shows_no_certificate_is_turned_away(secured: Secured, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cassandra_reader, "_ATTEMPTS", 1)
    monkeypatch.setenv(PASSWORD, "r")
    bare = secured.cql().model_copy(update={"tls": CqlTlsConfig(ca=secured.node.certificate)})
    with pytest.raises(BatchError, match="connect to the ring"):
        Reader(bare, datacenter=DATACENTER)
