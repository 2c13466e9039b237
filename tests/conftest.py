"""What all tests share: fixtures of real services that more than one suite uses, and how the tests run side by side."""

from __future__ import annotations

from functools import lru_cache
from pathlib import Path
from typing import Any

import pytest
from xdist.scheduler import LoadFileScheduling

pytest_plugins = ["tests.ring.fixtures", "tests.tools.fixtures"]

_ROOT = Path(__file__).resolve().parents[1]
_DEAREST_FIRST = ("cassandra", "airflow", "spark")
"""Marks in the order in which their tests begin: the longest group must not be left for the end."""


class Scheduling(LoadFileScheduling):
    """`pytest --numprocesses=2 --dist=loadfile`, as `make test` runs them: a file's tests stay together, so what its fixtures start is
    started once; and all files that boot Cassandra are one, as a ring takes the addresses 127.0.0.1 and on with Cassandra's own ports."""

    def _split_scope(self, nodeid: str) -> str:
        file = super()._split_scope(nodeid)
        return "cassandra" if _boots_cassandra(file) else str(file)


@lru_cache
def _boots_cassandra(file: str) -> bool:
    # Who deals out the tests does not collect them.
    return "mark.cassandra" in (_ROOT / file).read_text(encoding="utf-8")


def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Scheduling | None:
    return Scheduling(config, log) if config.getoption("dist") == "loadfile" else None


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    items.sort(key=_rank)


def _rank(item: pytest.Item) -> int:
    return next((rank for rank, mark in enumerate(_DEAREST_FIRST) if item.get_closest_marker(mark)), len(_DEAREST_FIRST))
