"""What a run has shown: the rows that differ, with the cluster's value, the table's and the consumer's."""

from __future__ import annotations

from collections import Counter
from typing import Final

from proof.bootstrap.run import Result
from proof.ring.check import Mismatch
from tools.console import say

_SHOWN: Final = 30
_NEEDED: Final = ("frames before their log", "readings during which batches were sealed", "readings of incomplete rows")
"""What a run that is large enough has to have done."""
_LARGE: Final = 20
"""Kills of such a run."""


def report(result: Result, kills: int) -> bool:
    """Print it; whether something was wrong."""
    troubles = list(result.troubles)
    if result.kills.total() < kills:
        troubles.append(f"only {result.kills.total()} of {kills} kills")
    if kills >= _LARGE:
        troubles += [f"no {what}: the run shows too little" for what in _NEEDED if not result.done[what]]
    for line in differences(result.mismatches)[:_SHOWN]:
        say(line)
    for trouble in troubles:
        say(f"✗ {trouble}")
    counts = Counter(mismatch.check for mismatch in result.mismatches)
    say(f"{result.rows} rows compared, kills {dict(result.kills)}, {dict(sorted(result.done.items()))}")
    say(f"{len(result.mismatches)} mismatches {dict(counts) if counts else ''}, {len(troubles)} troubles")
    return bool(result.mismatches or troubles)


def differences(mismatches: list[Mismatch]) -> list[str]:
    """A line for each place that differs. Those of tables and of topics that are about the same place are one."""
    by_place: dict[tuple[str, str, str, str], dict[str, Mismatch]] = {}
    lines = []
    for each in mismatches:
        if each.check in ("table", "topic"):
            by_place.setdefault((each.where, each.table, each.key, each.column), {})[each.check] = each
        else:
            lines.append(str(each)[:600])
    for (where, table, key, column), found in by_place.items():
        cluster = next(iter(found.values())).ring
        in_table, consumer = (repr(found[name].ours) if name in found else "equal" for name in ("table", "topic"))
        place = f"{table} {key}{f' {column}' if column else ''}"
        lines.insert(0, f"✗ {where}: {place}: cluster {cluster!r}, table {in_table}, consumer {consumer}"[:600])
    return lines
