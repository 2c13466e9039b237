"""Ports in use are skipped, with a message."""

from __future__ import annotations

import socket
from collections.abc import Iterator

import pytest

from tools.errors import ServiceError
from tools.services import ports


@pytest.fixture
def taken() -> Iterator[int]:
    """A port with a listener."""
    with socket.socket() as server:
        server.bind((ports.LOOPBACK, 0))
        server.listen()
        yield server.getsockname()[1]


def test_a_free_port_is_taken_without_a_word() -> None:
    said: list[str] = []
    port = ports.any_free()
    assert ports.choose(port, "It", notify=said.append) == port
    assert said == []


def test_a_port_in_use_is_stepped_over_and_said(taken: int) -> None:
    said: list[str] = []
    port = ports.choose(taken, "The broker", notify=said.append)
    assert port > taken
    assert ports.is_free(port)
    assert said == [f"Port {taken} is in use: The broker gets {port} instead."]


def test_ports_to_avoid_are_avoided(taken: int) -> None:
    first = ports.choose(taken, "It", notify=lambda _: None)
    assert ports.choose(taken, "It", avoid=frozenset({first}), notify=lambda _: None) > first


def test_a_range_without_a_free_port_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ports, "is_free", lambda port: False)
    with pytest.raises(ServiceError, match=r"No free port for The broker: 9092 to 9191"):
        ports.choose(9092, "The broker")


def test_answers_tells_a_listener_from_silence(taken: int) -> None:
    assert ports.answers(taken)
    assert not ports.answers(ports.any_free())
