"""TLS to the node: certificates that the link accepts and presents. The node is a socket that speaks TLS and
disconnects.
"""

from __future__ import annotations

import contextlib
import datetime
import ipaddress
import socket
import ssl
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID
from structlog.testing import capture_logs

from shippers.agent import Agent
from shippers.node_identity import Link
from tests.shippers.conftest import Folder
from writetime.config.node import NodeConfig, TlsConfig
from writetime.config.pipeline import load
from writetime.errors import ShipError
from writetime.storage.local import LocalStore

pytestmark = pytest.mark.thorough


@dataclass
class Identity:
    """A self-signed certificate and its key, in files."""

    certificate: Path
    key: Path


def identity(folder: Path, name: str, *, address: str = "127.0.0.1", password: bytes | None = None) -> Identity:
    key = ec.generate_private_key(ec.SECP256R1())
    subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
    now = datetime.datetime.now(datetime.UTC)
    names = x509.SubjectAlternativeName([x509.IPAddress(ipaddress.ip_address(address)), x509.DNSName(name)])
    certificate = (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(subject)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - datetime.timedelta(days=1))
        .not_valid_after(now + datetime.timedelta(days=1))
        .add_extension(names, critical=False)
        .add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
        .sign(key, hashes.SHA256())
    )
    made = Identity(folder / f"{name}.crt", folder / f"{name}.key")
    made.certificate.write_bytes(certificate.public_bytes(serialization.Encoding.PEM))
    locked = serialization.BestAvailableEncryption(password) if password else serialization.NoEncryption()
    made.key.write_bytes(key.private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, locked))
    return made


@contextlib.contextmanager
def node(own: Identity, *, trusts: Identity | None = None) -> Iterator[tuple[int, list[str]]]:
    """(port, what came of each connection: `trusted`, with the client's name if it has to have one, or
    `refused`).
    """
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(own.certificate, own.key)
    if trusts is not None:
        context.verify_mode = ssl.CERT_REQUIRED
        context.load_verify_locations(trusts.certificate)
    came: list[str] = []

    def serve(listener: socket.socket) -> None:
        while True:
            try:
                plain, _ = listener.accept()
            except OSError:
                return
            with plain:
                try:
                    with context.wrap_socket(plain, server_side=True) as client:
                        # With TLS 1.3 a client's certificate is judged after its side of the handshake: only
                        # data shows that all is well.
                        came.append(f"trusted {_common_name(client.getpeercert())}".strip() if client.recv(1) else "refused")
                except OSError:
                    came.append("refused")

    with socket.create_server(("127.0.0.1", 0)) as listener:
        thread = threading.Thread(target=serve, args=(listener,), daemon=True)
        thread.start()
        yield listener.getsockname()[1], came
        listener.shutdown(socket.SHUT_RDWR)
    thread.join(10)


def _common_name(certificate: Any) -> str:
    return next((value for part in (certificate or {}).get("subject", ()) for key, value in part if key == "commonName"), "")


def asked(tmp_path: Path, own: Identity, tls: TlsConfig | None, *, trusts: Identity | None = None) -> tuple[ShipError, set[str]]:
    """The link's error at the node `own`, and what came of its connections.

    They are read when the node has stopped: until then its thread may still be busy with one that the client gave up.
    """
    with node(own, trusts=trusts) as (port, came):
        config = NodeConfig(cdc_raw=tmp_path, address="127.0.0.1", port=port, tls=tls)
        with Link(config) as link, pytest.raises(ShipError) as caught:
            link.facts()
    return caught.value, set(came)


def test_a_node_that_is_trusted(tmp_path: Path) -> None:
    own = identity(tmp_path, "node")
    assert asked(tmp_path, own, TlsConfig(ca=own.certificate))[1] == {"trusted"}


@pytest.mark.parametrize("whose", ["another authority", "the system's"])
def test_a_node_that_is_not_trusted(tmp_path: Path, whose: str) -> None:
    own, other = identity(tmp_path, "node"), identity(tmp_path, "other")
    error, came = asked(tmp_path, own, TlsConfig(ca=other.certificate if whose == "another authority" else None))
    assert "CERTIFICATE_VERIFY_FAILED" in str(error)
    assert came == {"refused"}


def test_a_node_of_another_name(tmp_path: Path) -> None:
    own = identity(tmp_path, "node", address="192.0.2.1")
    assert asked(tmp_path, own, TlsConfig(ca=own.certificate))[1] == {"refused"}
    assert asked(tmp_path, own, TlsConfig(ca=own.certificate, server_name="node"))[1] == {"trusted"}


def test_without_tls_nothing_is_encrypted(tmp_path: Path) -> None:
    assert asked(tmp_path, identity(tmp_path, "node"), None)[1] == {"refused"}


def test_a_node_that_asks_who_we_are(tmp_path: Path) -> None:
    own, ours = identity(tmp_path, "node"), identity(tmp_path, "shipper", password=b"secret")
    mutual = {"ca": own.certificate, "certificate": ours.certificate, "key": ours.key}
    tls = TlsConfig.model_validate(mutual | {"key_password": "secret"})
    assert asked(tmp_path, own, tls, trusts=ours)[1] == {"trusted shipper"}
    assert asked(tmp_path, own, TlsConfig(ca=own.certificate), trusts=ours)[1] == {"refused"}
    for password in ({}, {"key_password": "wrong"}):
        with pytest.raises(ShipError, match="failed to load the TLS files"):
            Link(NodeConfig(cdc_raw=tmp_path, address="127.0.0.1", tls=TlsConfig.model_validate(mutual | password))).facts()


@pytest.mark.advice("Check the files of node.tls.")
def test_files_that_are_replaced_right_now_stop_no_shipping(
    tmp_path: Path, folder: Folder, store: LocalStore, agent_over: Callable[..., Agent]
) -> None:
    """As when certificates are renewed while the node restarts."""
    own = identity(tmp_path, "node")
    whole = own.certificate.read_bytes()
    with (
        node(own) as (port, came),
        Link(NodeConfig(cdc_raw=tmp_path, address="127.0.0.1", port=port, tls=TlsConfig(ca=own.certificate))) as link,
    ):
        agent = agent_over(store, link=link)
        for number, rest in enumerate((whole[:60], b"", None)):
            own.certificate.unlink()
            if rest is not None:
                own.certificate.write_bytes(rest)
            folder.segment(number)
            with capture_logs() as logs:
                assert agent.round().shipped.total() == 1
            assert any("failed to load the TLS files" in each.get("message", "") for each in logs)
            own.certificate.touch()
        assert came == []
        own.certificate.write_bytes(whole)
        agent.round()
    assert "trusted" in came


def test_settings(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ValueError, match="a key without a certificate"):
        TlsConfig(key=tmp_path / "key")
    with pytest.raises(ShipError, match="failed to load the TLS files"):
        Link(NodeConfig(cdc_raw=tmp_path, address="127.0.0.1", tls=TlsConfig(ca=tmp_path / "nowhere"))).facts()
    monkeypatch.setenv("KEY_PASSWORD", "secret")
    file = tmp_path / "pipeline.yaml"
    file.write_text(
        "pipeline: p\ncluster: {name: c, datacenters: [dc1]}\nbucket: b\n"
        "node: {cdc_raw: raw, tls: {ca: ca.pem, certificate: our.pem, key_password: '${KEY_PASSWORD}'}}\n"
    )
    config = load(file).node
    assert config is not None
    assert config.tls is not None
    assert (config.tls.ca, config.tls.certificate, config.tls.key) == (tmp_path / "ca.pem", tmp_path / "our.pem", None)
    assert "secret" not in repr(config)
