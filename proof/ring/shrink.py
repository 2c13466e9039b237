"""Finds the smallest run that still fails: without chaos if possible, with fewer operations and fewer kinds.

Each attempt starts a cluster, so there are few: bisection over the number of operations, then halves of the
kinds.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from proof.ring.wanted import Wanted

_TRIES = 24


def shrink(wanted: Wanted, fails: Callable[[Wanted], bool], kinds: frozenset[str] = frozenset()) -> Wanted:
    """`wanted` is known to fail. What fails by chance alone may not shrink: the last run that did fail is the
    answer.
    """
    tries = [0]

    def still(smaller: Wanted) -> bool:
        tries[0] += 1
        return tries[0] <= _TRIES and fails(smaller)

    if wanted.chaos and still(calm := replace(wanted, chaos=False)):
        wanted = calm
    wanted = _fewer_operations(wanted, still)
    return _fewer_kinds(wanted, sorted(kinds - wanted.without), still)


def _fewer_operations(wanted: Wanted, still: Callable[[Wanted], bool]) -> Wanted:
    """The shortest prefix that fails, assuming that failing is monotonic in its length."""
    good, bad = 0, wanted.prefix if wanted.prefix is not None else wanted.ops
    while bad - good > max(1, bad // 50):
        middle = (good + bad) // 2
        if still(replace(wanted, prefix=middle)):
            bad = middle
        else:
            good = middle
    return wanted if bad == wanted.ops and wanted.prefix is None else replace(wanted, prefix=bad)


def _fewer_kinds(wanted: Wanted, kinds: list[str], still: Callable[[Wanted], bool]) -> Wanted:
    """Leave out halves, then quarters, … of the kinds."""
    size = len(kinds) // 2
    while size >= 1:
        for start in range(0, len(kinds), size):
            smaller = replace(wanted, without=wanted.without | frozenset(kinds[start : start + size]))
            if smaller != wanted and still(smaller):
                wanted = smaller
        size //= 2
    return wanted
