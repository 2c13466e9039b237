"""What all tests share: fixtures of real services that more than one suite uses, and how the tests may run side by side."""

from __future__ import annotations

import pytest

pytest_plugins = ["tests.ring.fixtures", "tests.tools.fixtures"]

_DEAREST_FIRST = ("cassandra", "airflow", "spark")
"""Marks in the order in which their tests begin: the longest group must not be left for the end."""


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Group tests for `pytest --numprocesses=2 --dist=loadgroup`, as `make test` runs them.

    A file's tests stay together, so what its fixtures start is started once; and all that boot Cassandra do so one after another, as a
    ring takes the addresses 127.0.0.1 and on with Cassandra's own ports.
    """
    for item in items:
        item.add_marker(pytest.mark.xdist_group("cassandra" if item.get_closest_marker("cassandra") else item.path.as_posix()))
    items.sort(key=_rank)


def _rank(item: pytest.Item) -> int:
    return next((rank for rank, mark in enumerate(_DEAREST_FIRST) if item.get_closest_marker(mark)), len(_DEAREST_FIRST))
