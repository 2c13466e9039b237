"""Parallel requests to a store or a catalog."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from typing import Final, TypeVar

_In = TypeVar("_In")
_Out = TypeVar("_Out")
AT_ONCE: Final = 64
"""As many connections are kept open to a store."""


def at_once(call: Callable[[_In], _Out], wanted: Iterable[_In], *, workers: int = AT_ONCE) -> list[_Out]:
    """The results of `call` for each item, in order, with `workers` threads. The first error is raised after
    all calls are done."""
    asked = list(wanted)
    if len(asked) < 2:
        return [call(each) for each in asked]
    with ThreadPoolExecutor(workers) as pool:
        return list(pool.map(call, asked))
