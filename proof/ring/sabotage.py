"""Breaks one rule of the product at a time, by replacing the function that implements it.

Strategy: a rule is applied in the driver's process and, by `proof.ring.worker`, in Spark's Python workers
before they fork. Every module that imported the function by name is patched too. A rule whose function no
longer exists, or is called in another way, is an error: a sabotage that breaks nothing proves nothing, nor does
one that merely crashes. The product knows nothing about this.
"""

from __future__ import annotations

import hashlib
import importlib
import inspect
import sys
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

VARIABLE = "WRITETIME_PROOF_SABOTAGE"
_PRODUCT = ("writetime.", "spark_jobs.", "shippers.")
_MODULES = (
    "spark_jobs.ingest",
    "spark_jobs.maintain",
    *(f"spark_jobs.stages.{name}" for name in ("scan", "explode", "merge_stream", "typed_events")),
    "spark_jobs.state.shards",
    "spark_jobs.sinks.iceberg",
    "spark_jobs.sinks.kafka_records",
)


@dataclass(frozen=True)
class Rule:
    """`what` is broken; `apply` does it, in this process."""

    name: str
    what: str
    apply: Callable[[], None]


def apply(name: str) -> None:
    """Break a rule in this process, permanently. ValueError with all rules' names if it is unknown."""
    if name not in RULES:
        raise ValueError(f"`{name}` is not a known rule. Known rules:\n{listed()}")
    for module in _MODULES:
        importlib.import_module(module)
    _readable_engine()
    RULES[name].apply()


def listed() -> str:
    """The rules, a line each."""
    return "\n".join(f"  {rule.name:20} {rule.what}" for rule in RULES.values())


def _module(name: str) -> Any:
    return importlib.import_module(name)


def _put(place: str, name: str, make: Callable[[Any], Any]) -> None:
    """Replace the function of a module or class (`module:Class`) by `make(function)`, wherever it is
    bound."""
    module_name, _, class_name = place.partition(":")
    holder = getattr(_module(module_name), class_name) if class_name else _module(module_name)
    before = holder.__dict__[name]
    after = make(before)
    _expect_alike(before, after, f"{place}.{name}")
    # Another rule may replace it again.
    after.__signature__ = inspect.signature(before)
    setattr(holder, name, after)
    for module in [module for key, module in sys.modules.items() if key.startswith(_PRODUCT)]:
        for key, value in list(vars(module).items()):
            if value is before:
                setattr(module, key, after)


def _expect_alike(before: Any, after: Any, name: str) -> None:
    """ValueError if `after` cannot be called as `before`, with optional arguments by position or by name: a batch that
    fails for it would count as a rule that was noticed."""
    parameters = inspect.signature(before).parameters.values()
    by_place = [each for each in parameters if each.kind in (each.POSITIONAL_ONLY, each.POSITIONAL_OR_KEYWORD)]
    needed = [each for each in by_place if each.default is each.empty]
    by_name = {each.name: None for each in parameters if each.kind is each.KEYWORD_ONLY}
    optional = {each.name: None for each in by_place if each.default is not each.empty}
    for places, names in ((by_place, by_name), (needed, by_name | optional)):
        try:
            inspect.signature(after).bind(*(None for _ in places), **names)
        except TypeError as error:
            raise ValueError(f"what is in place of {name} cannot be called as it is: {error}") from error


def _readable_engine() -> None:
    """Rules are broken where they can be read; compiled code would go on keeping them."""
    ingest = _module("spark_jobs.ingest")
    for plan in ("ExplodePlan", "FoldPlan"):
        setattr(ingest, plan, partial(getattr(ingest, plan), engine="python"))


# --- the rules


def _tie_by_smaller_value() -> None:
    def make(_: Any) -> Any:
        def rank(cell: Any) -> Any:
            dies = cell.local_deletion_time != NO_DELETION_TIME
            return dies, dies and cell.ttl == 0, cell.local_deletion_time, -cell.ttl, bytes(255 - byte for byte in cell.value) + b"\xff"

        return rank

    from writetime.cassandra.model import NO_DELETION_TIME

    _put("writetime.cassandra.merge.reconcile", "_tie_rank", make)


def _tie_for_the_living() -> None:
    def make(honest: Any) -> Any:
        return lambda cell: (not honest(cell)[0], *honest(cell)[1:])

    _put("writetime.cassandra.merge.reconcile", "_tie_rank", make)


def _elements_by_bytes() -> None:
    _put("writetime.cassandra.types.canonical", "canonical", lambda _: lambda kind: None)


def _deletion_loses_ties() -> None:
    _put("writetime.cassandra.model:DeletionTime", "deletes", lambda _: lambda self, timestamp: timestamp < self.marked_for_delete_at)


def _last_come() -> None:
    def make(honest: Any) -> Any:
        def reconcile(a: Any, b: Any, *, counter: bool = False, **options: Any) -> Any:
            return honest(a, b, counter=counter, **options) if counter or a.timestamp == b.timestamp else b

        return reconcile

    _put("writetime.cassandra.merge.reconcile", "reconcile_cells", make)


def _ends_inclusive() -> None:
    def make(honest: Any) -> Any:
        return lambda self, bound: honest(self, replace(bound, inclusive=True))

    for holder in ("writetime.cassandra.merge.clustering:ClusteringOrder", "writetime.cassandra.types.byte_comparable:RowKeys"):
        _put(holder, "end", make)


def _starts_inclusive() -> None:
    def make(honest: Any) -> Any:
        return lambda self, bound: honest(self, replace(bound, inclusive=True))

    for holder in ("writetime.cassandra.merge.clustering:ClusteringOrder", "writetime.cassandra.types.byte_comparable:RowKeys"):
        _put(holder, "start", make)


def _ascending_only() -> None:
    for module, name in (
        ("writetime.cassandra.merge.clustering", "_sort_key"),
        ("writetime.cassandra.types.byte_comparable", "_column_encoder"),
    ):
        _put(module, name, lambda honest: lambda column, *rest: honest(replace(column, descending=False), *rest))


def _partition_deletion_spares_statics() -> None:
    def make(honest: Any) -> Any:
        return lambda a, b, *, active, **options: honest(a, b, active=None, **options)

    _put("writetime.cassandra.merge.reconcile", "merge_static_rows", make)


def _partition_deletion_ignored() -> None:
    _put("writetime.cassandra.merge.range_tombstones:PartitionDeletions", "delete_partition", lambda _: lambda self, deletion: False)


def _collections_are_added_to() -> None:
    def make(honest: Any) -> Any:
        return lambda row, active: honest(replace(row, complex_deletions={}), active)

    _put("writetime.cassandra.merge.reconcile", "_settle", make)


def _nothing_expires() -> None:
    from writetime.cassandra.model import NO_DELETION_TIME, NO_TTL

    def make(_: Any) -> Any:
        return lambda cell, now: cell.local_deletion_time == NO_DELETION_TIME or cell.ttl != NO_TTL

    _put("writetime.cassandra.merge.liveness", "is_live_cell", make)


def _no_liveness() -> None:
    _put("writetime.cassandra.merge.liveness", "is_live", lambda _: lambda liveness, now: False)


def _no_statics() -> None:
    def make(honest: Any) -> Any:
        return lambda row, static: honest(row, b"" if _flat_cells(row) else static)

    _put("spark_jobs.stages.typed_events", "_shown", make)


def _flat_cells(row: bytes) -> bool:
    """Whether it is a clustered row that shows a cell."""
    decoded = _module("writetime.cassandra.merge.row_codec").decode(row) if row else None
    return decoded is not None and decoded.clustering is not None and bool(decoded.cells)


def _dropped_columns_come_back() -> None:
    def make(honest: Any) -> Any:
        def init(self: Any, table: Any, types: Any) -> None:
            honest(self, table, types)
            self.dropped = {}

        return init

    _put("writetime.cassandra.merge.clustering:ClusteringOrder", "__init__", make)


def _types_of_today() -> None:
    """A dropped column has the types that there are when it is read."""

    def make(honest: Any) -> Any:
        def init(self: Any, keyspace: str, facts: Any, at: int) -> None:
            honest(self, keyspace, facts, 1 << 63)

        return init

    _put("writetime.cassandra.schema.history:_TypesAt", "__init__", make)


def _views_as_tables() -> None:
    _put("writetime.events.masking", "_of_view", lambda _: lambda table, view: None)


def _digests_of_a_byte() -> None:
    _put("spark_jobs.stages.scan", "_digest", lambda _: lambda body, version: hashlib.blake2b(body, digest_size=1).digest() * 16)


def _forgetful() -> None:
    _put("spark_jobs.state.shards:Shard", "get_parts", lambda _: lambda self, keys: iter([(keys, {})] if keys else ()))
    _put("spark_jobs.state.shards:Shard", "scan_all", lambda _: lambda self, intervals: iter(()))


def _first_table_only() -> None:
    def make(honest: Any) -> Any:
        def parse(self: Any, *rest: Any) -> Any:
            for index, tables in honest(self, *rest):
                yield index, dict(list(tables.items())[:1]) if isinstance(tables, dict) else tables

        return parse

    _put("spark_jobs.stages.scan:_Task", "_parse", make)


def _one_replica_is_not_enough() -> None:
    def make(honest: Any) -> Any:
        def mutation(self: Any, found: dict[str, Any], *rest: Any) -> Any:
            if len(found["copies"]) > 1:
                yield from honest(self, found, *rest)
            else:
                self.counts["folded"] += found["updates"]

        return mutation

    _put("spark_jobs.stages.explode:_Explosion", "_mutation", make)


def _late_segments_ignored() -> None:
    """What was sealed before the youngest segment of an earlier batch is late, for good. A batch of nothing else is
    none."""
    plan = _module("writetime.pipeline.planner")

    def make(honest: Any) -> Any:
        def create(store: Any, cluster: str, past: Any, kind: Any, segments: list[Any], *rest: Any, **options: Any) -> Any:
            if kind == "ingest":
                earlier = [plan.read_manifest(store, cluster, number) for number in range(1, past.last + 1)]
                last = max((segment.sealed_at for manifest in earlier for segment in manifest.segments), default=None)
                given, segments = segments, [segment for segment in segments if last is None or segment.sealed_at > last]
                if given and not segments:
                    return None
            return honest(store, cluster, past, kind, segments, *rest, **options)

        return create

    _put("writetime.pipeline.planner", "_create", make)


def _truncates_take_nothing() -> None:
    _put("writetime.pipeline.truncations:Cuts", "decide", lambda _: lambda self, *update: "kept")


def _truncates_take_everything() -> None:
    """Whatever a batch holds of a table that was ever truncated."""

    def decide(self: Any, table_id: bytes, *update: Any) -> str:
        return "gone" if table_id in self.tables else "kept"

    _put("writetime.pipeline.truncations:Cuts", "decide", lambda _: decide)


def _no_events_of_expiry() -> None:
    """Time passes for a row only when somebody writes to it."""
    _put("spark_jobs.state.shards:Shard", "due", lambda _: lambda self, now: iter(()))


def _counters_keep_the_first() -> None:
    _put("writetime.cassandra.merge.counters", "merge_shards", lambda _: lambda a, b: a)


def _answers_ignored() -> None:
    """They count as taken in, or there would be a batch for them for ever."""

    def make(honest: Any) -> Any:
        def read(*arguments: Any) -> Any:
            _, asked, rejected = honest(*arguments)
            return {}, asked, rejected

        return read

    _put("writetime.pipeline.truncation_reports", "read_answers", make)


def _purge_whatever_is_held() -> None:
    _put("writetime.pipeline.completeness", "holds", lambda _: lambda *arguments: [])


def _purged_comes_back() -> None:
    _put("writetime.pipeline.truncations:Cuts", "purged", lambda _: lambda self, table_id: None)


def _drops_take_nothing() -> None:
    _put("writetime.pipeline.node_logs", "_drops", lambda _: lambda known, more: {})


def _schema_by_clock() -> None:
    """As before 6.0: what is logged and what snapshots say counts by the timestamps that the nodes gave it."""
    for name in ("changed_at", "known_as_of"):
        _put("writetime.cassandra.schema.epochs", name, lambda _: lambda mutation, epoch: mutation)
    _put("writetime.cassandra.schema.snapshot", "epoch", lambda _: lambda document: None)


def _clusterings_as_written() -> None:
    _put("writetime.events.key_spelling", "clustering_spelling", lambda _: lambda kind: None)


def _without_statics(table: Any) -> list[str]:
    return [] if table.static_columns else [column.name for column in table.clustering]


def _record_keys_of_the_day() -> None:
    """Each has the names that the columns have by then, and a field is required as long as the table has no static
    columns."""

    def make(honest: Any) -> Any:
        def init(self: Any, keys: Any, columns: Any, stored: Any, **options: Any) -> None:
            honest(self, keys, columns, stored, **{**options, "key_names": ()})

        return init

    _put("writetime.events.envelope:Shape", "__init__", make)
    _put("spark_jobs.sinks.kafka_records", "required_keys", lambda honest: lambda table: [*honest(table), *_without_statics(table)])


SINCE_6_0 = ("schema-clock",)
"""Rules that earlier versions of Cassandra give no occasion to break."""
BY_STORIES = ("views", "key-spelling", "record-key")
"""Rules that no operation of a run breaks, or few do, and a story does: `SABOTAGE=RULE pytest tests/stories`."""
_ALL = [
    Rule("tie-break", "of equal timestamps the smaller value wins", _tie_by_smaller_value),
    Rule("tie-tombstone", "of equal timestamps the living cell wins", _tie_for_the_living),
    Rule("tie-deletion", "a deletion spares what was written at its very timestamp", _deletion_loses_ties),
    Rule("element-bytes", "elements of collections are compared by their bytes", _elements_by_bytes),
    Rule("last-come", "what comes last wins, whatever its timestamp", _last_come),
    Rule("range-end", "a range's exclusive end is taken for inclusive", _ends_inclusive),
    Rule("range-start", "a range's exclusive start is taken for inclusive", _starts_inclusive),
    Rule("descending", "reversed clustering columns are compared as if they were not", _ascending_only),
    Rule("partition-deletion", "a partition's deletion deletes nothing", _partition_deletion_ignored),
    Rule("partition-static", "a partition's deletion spares its static row", _partition_deletion_spares_statics),
    Rule("complex-deletion", "a collection that is replaced keeps its old elements", _collections_are_added_to),
    Rule("expiry", "cells never expire", _nothing_expires),
    Rule("expiry-due", "what expires is noticed only where somebody writes", _no_events_of_expiry),
    Rule("liveness", "a row without cells does not show", _no_liveness),
    Rule("static-row", "static cells do not show on rows", _no_statics),
    Rule("dropped-column", "what was written before a column was dropped comes back with it", _dropped_columns_come_back),
    Rule("dropped-type", "a dropped column is read by the types of today", _types_of_today),
    Rule("views", "materialized views are captured as tables are", _views_as_tables),
    Rule("truncate", "a truncate takes nothing of what comes late", _truncates_take_nothing),
    Rule("truncate-position", "a truncate takes what was written after it", _truncates_take_everything),
    Rule("truncation-answers", "what nodes answer of their TRUNCATEs is ignored", _answers_ignored),
    Rule("same-id", "a DROP takes nothing of the table that gets its id", _drops_take_nothing),
    Rule("purge-clock", "tombstones are purged while segments are held", _purge_whatever_is_held),
    Rule("purged", "what comes in again is folded below the purge", _purged_comes_back),
    Rule("digest", "digests are one byte long", _digests_of_a_byte),
    Rule("state", "batches know nothing of what came before", _forgetful),
    Rule("batch-tables", "of a mutation's tables only the first is taken in", _first_table_only),
    Rule("one-replica", "what one replica alone holds is not believed", _one_replica_is_not_enough),
    Rule("late", "segments that come after younger ones are left out", _late_segments_ignored),
    Rule("schema-clock", "schema changes of 6.0 are ordered by the nodes' clocks", _schema_by_clock),
    Rule("key-spelling", "a clustering is published as it was written last", _clusterings_as_written),
    Rule("record-key", "record keys change with the table", _record_keys_of_the_day),
    Rule("counter", "of two states of a counter's shard the first stays", _counters_keep_the_first),
]
RULES = {rule.name: rule for rule in _ALL}
