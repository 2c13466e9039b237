"""Break one rule of the product at a time, from outside: each function that holds a rule gives way to one that does not.

The product knows nothing of this. A rule is applied in the driver's process and, by `tests.ring.proof.worker`, in Spark's Python workers
before they fork; wherever a module has bound the function by name, it is bound anew. A rule whose function is gone is an error: a
sabotage that breaks nothing proves nothing.
"""

from __future__ import annotations

import hashlib
import importlib
import sys
from collections.abc import Callable
from dataclasses import dataclass, replace
from types import SimpleNamespace
from typing import Any

VARIABLE = "WRITETIME_PROOF_SABOTAGE"
_PRODUCT = ("writetime.", "spark_jobs.", "shippers.")
_MODULES = ("spark_jobs.ingest", "spark_jobs.frames", "spark_jobs.fold", "spark_jobs.state", "spark_jobs.warehouse", "writetime.batch.plan")


@dataclass(frozen=True)
class Rule:
    """`what` is broken; `apply` does it, in this process."""

    name: str
    what: str
    apply: Callable[[], None]


def apply(name: str) -> None:
    """Break a rule in this process, for good. ValueError with all rules' names if there is no such rule."""
    if name not in RULES:
        raise ValueError(f"`{name}` is no rule that can be broken. These are:\n{listed()}")
    for module in _MODULES:
        importlib.import_module(module)
    RULES[name].apply()


def listed() -> str:
    """The rules, a line each."""
    return "\n".join(f"  {rule.name:20} {rule.what}" for rule in RULES.values())


def _module(name: str) -> Any:
    return importlib.import_module(name)


def _put(place: str, name: str, make: Callable[[Any], Any]) -> None:
    """Put `make(function)` in place of the function of that name of a module or class (`module:Class`), wherever it is bound."""
    module_name, _, class_name = place.partition(":")
    holder = getattr(_module(module_name), class_name) if class_name else _module(module_name)
    before = holder.__dict__[name]
    after = make(before)
    setattr(holder, name, after)
    for module in [module for key, module in sys.modules.items() if key.startswith(_PRODUCT)]:
        for key, value in list(vars(module).items()):
            if value is before:
                setattr(module, key, after)


# --- the rules ------------------------------------------------------------------------------------------------------------------------


def _tie_by_smaller_value() -> None:
    def make(_: Any) -> Any:
        def rank(cell: Any) -> Any:
            dies = cell.local_deletion_time != NO_DELETION_TIME
            return dies, dies and cell.ttl == 0, cell.local_deletion_time, -cell.ttl, bytes(255 - byte for byte in cell.value) + b"\xff"

        return rank

    from writetime.model import NO_DELETION_TIME

    _put("writetime.join.reconcile", "_tie_rank", make)


def _tie_for_the_living() -> None:
    def make(honest: Any) -> Any:
        return lambda cell: (not honest(cell)[0], *honest(cell)[1:])

    _put("writetime.join.reconcile", "_tie_rank", make)


def _deletion_loses_ties() -> None:
    _put("writetime.model:DeletionTime", "deletes", lambda _: lambda self, timestamp: timestamp < self.marked_for_delete_at)


def _last_come() -> None:
    def make(honest: Any) -> Any:
        def reconcile(a: Any, b: Any, *, counter: bool = False) -> Any:
            return honest(a, b, counter=counter) if counter or a.timestamp == b.timestamp else b

        return reconcile

    _put("writetime.join.reconcile", "reconcile_cells", make)


def _ends_inclusive() -> None:
    def make(honest: Any) -> Any:
        return lambda self, bound: honest(self, replace(bound, inclusive=True))

    _put("writetime.join.order:ClusteringOrder", "end", make)


def _starts_inclusive() -> None:
    def make(honest: Any) -> Any:
        return lambda self, bound: honest(self, replace(bound, inclusive=True))

    _put("writetime.join.order:ClusteringOrder", "start", make)


def _ascending_only() -> None:
    _put("writetime.join.order", "_sort_key", lambda honest: lambda column, *rest: honest(replace(column, descending=False), *rest))


def _partition_deletion_spares_statics() -> None:
    def make(honest: Any) -> Any:
        return lambda a, b, *, active, counter: honest(a, b, active=None, counter=counter)

    _put("writetime.join.reconcile", "merge_static_rows", make)


def _partition_deletion_ignored() -> None:
    _put("writetime.join.ranges:PartitionDeletions", "delete_partition", lambda _: lambda self, deletion: False)


def _collections_are_added_to() -> None:
    def make(honest: Any) -> Any:
        return lambda row, active: honest(replace(row, complex_deletions={}), active)

    _put("writetime.join.reconcile", "_settle", make)


def _nothing_expires() -> None:
    from writetime.model import NO_DELETION_TIME, NO_TTL

    def make(_: Any) -> Any:
        return lambda cell, now: cell.local_deletion_time == NO_DELETION_TIME or cell.ttl != NO_TTL

    _put("writetime.join.view", "is_live_cell", make)


def _no_liveness() -> None:
    _put("writetime.join.view", "is_live", lambda _: lambda liveness, now: False)


def _no_statics() -> None:
    _put("writetime.join.view", "with_statics", lambda _: lambda row, static_cells: row)


def _dropped_columns_come_back() -> None:
    def make(honest: Any) -> Any:
        def init(self: Any, table: Any, types: Any) -> None:
            honest(self, table, types)
            self.dropped = {}

        return init

    _put("writetime.join.order:ClusteringOrder", "__init__", make)


def _digests_of_a_byte() -> None:
    def short(body: bytes, **_: Any) -> Any:
        digest = hashlib.blake2b(body, digest_size=1).digest()
        return SimpleNamespace(digest=lambda: digest)

    frames = _module("spark_jobs.frames")
    frames.hashlib = SimpleNamespace(blake2b=short)


def _forgetful() -> None:
    from writetime.join.partition import PartitionState

    state = _module("spark_jobs.state")
    _put(
        "spark_jobs.state:Shard",
        "partitions",
        lambda _: lambda self, keys, table: {key: state.Known(PartitionState(), None) for key in keys},
    )


def _first_table_only() -> None:
    def make(honest: Any) -> Any:
        def tables(frame: Any, routes: Any) -> Any:
            found = honest(frame, routes)
            return dict(list(found.items())[:1])

        return tables

    _put("spark_jobs.frames", "_tables_of", make)


def _one_replica_is_not_enough() -> None:
    def make(honest: Any) -> Any:
        def fold_key(self: Any, key: bytes, rows: list[dict[str, Any]], known: Any) -> Any:
            seen: dict[bytes, int] = {}
            for row in rows:
                seen[row["digest"]] = seen.get(row["digest"], 0) + 1
            self.counts["superseded"] += sum(row["updates"] for row in rows if seen[row["digest"]] == 1)
            kept = [row for row in rows if seen[row["digest"]] > 1]
            return honest(self, key, kept, known)

        return fold_key

    _put("spark_jobs.fold:_ShardFold", "_fold_key", make)


def _late_segments_ignored() -> None:
    """What was sealed before the last batch looked is late."""

    def make(honest: Any) -> Any:
        def create(store: Any, cluster: str, past: Any, kind: Any, segments: list[Any], *rest: Any) -> Any:
            if past.sealed is not None and kind == "ingest":
                last = max((segment.sealed_at for segment in plan.read_manifest(store, cluster, past.last).segments), default=None)
                segments = [segment for segment in segments if last is None or segment.sealed_at > last]
            return honest(store, cluster, past, kind, segments, *rest)

        return create

    plan = _module("writetime.batch.plan")
    _put("writetime.batch.plan", "_create", make)


def _counters_keep_the_first() -> None:
    _put("writetime.join.counters", "merge_shards", lambda _: lambda a, b: a)


def _duplicates_applied_twice() -> None:
    """Copies are told apart by who holds them."""

    def make(honest: Any) -> Any:
        def routed(frame: dict[str, Any], *rest: Any) -> Any:
            row = honest(frame, *rest)
            if row["digest"] is not None:
                row["digest"] = hashlib.blake2b(row["digest"] + bytes([frame["segment"] % 256]), digest_size=16).digest()
            return row

        return routed

    _put("spark_jobs.frames", "_routed", make)


_ALL = [
    Rule("tie-break", "of equal timestamps the smaller value wins", _tie_by_smaller_value),
    Rule("tie-tombstone", "of equal timestamps the living cell wins", _tie_for_the_living),
    Rule("tie-deletion", "a deletion spares what was written at its very timestamp", _deletion_loses_ties),
    Rule("last-come", "what comes last wins, whatever its timestamp", _last_come),
    Rule("range-end", "a range's exclusive end is taken for inclusive", _ends_inclusive),
    Rule("range-start", "a range's exclusive start is taken for inclusive", _starts_inclusive),
    Rule("descending", "reversed clustering columns are compared as if they were not", _ascending_only),
    Rule("partition-deletion", "a partition's deletion deletes nothing", _partition_deletion_ignored),
    Rule("partition-static", "a partition's deletion spares its static row", _partition_deletion_spares_statics),
    Rule("complex-deletion", "a collection that is replaced keeps its old elements", _collections_are_added_to),
    Rule("expiry", "cells never expire", _nothing_expires),
    Rule("liveness", "a row without cells does not show", _no_liveness),
    Rule("static-row", "static cells do not show on rows", _no_statics),
    Rule("dropped-column", "what was written before a column was dropped comes back with it", _dropped_columns_come_back),
    Rule("digest", "digests are one byte long", _digests_of_a_byte),
    Rule("state", "batches know nothing of what came before", _forgetful),
    Rule("batch-tables", "of a mutation's tables only the first is taken in", _first_table_only),
    Rule("one-replica", "what one replica alone holds is not believed", _one_replica_is_not_enough),
    Rule("late", "segments that come after younger ones are left out", _late_segments_ignored),
    Rule("counter", "of two states of a counter's shard the first stays", _counters_keep_the_first),
]
RULES = {rule.name: rule for rule in _ALL}
