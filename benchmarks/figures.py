"""The figures of `make bench`: what each is, its unit, its goal, and the document that has them all.

A figure is the median of the values of single passes. A ratio is taken within a pass or a pair of passes, of two
things that ran one after the other on the same machine; so ratios of two runs can be compared, and rates only
where the machine is the same.
"""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True)
class Key:
    """`least`: the goal that is to be reached, `aim` the one that is hoped for; with `low`, both are upper
    bounds. None: no goal.
    """

    unit: str
    meaning: str
    least: float | None = None
    aim: float | None = None
    low: bool = False

    def reached(self, value: float) -> bool | None:
        """Whether the value reaches the goal; None if there is none."""
        if self.least is None:
            return None
        return value <= self.least if self.low else value >= self.least


MB_S, EVENTS_S = "MB/s a core", "events/s a core"
OTHER_TABLES = ("wide", "narrow", "collections", "deletes")
KEYS: dict[str, Key] = {
    "whole_mb_s_per_core": Key(MB_S, "bucket to tables, state and every event in Kafka, three replicas, by the clock", 15, 30),
    "whole_mb_per_cpu_s": Key("MB per CPU s", "the same per CPU second, with maintenance of what was written, without the broker", 20, 30),
    "whole_events_s_per_core": Key(EVENTS_S, "unique events of the whole path, by the clock"),
    "events_vs_debezium": Key("ratio", "the same against unique events of a tuned Debezium on the same three replicas", 2, 4),
    "publish_events_s_per_core": Key(EVENTS_S, "JSON events, from the changes table to Kafka, by the clock", 25_000, 50_000),
    "avro_vs_json": Key("ratio", "CPU of publishing an event as Avro against JSON", 3, None, low=True),
    "decode_vs_cassandra": Key("ratio", "mapped segment files to Arrow against Cassandra's CommitLogReader, one core", 3.8, 6),
    "decode_read_vs_cassandra": Key("ratio", "the same with files read into memory", 3.8, 6),
    "decode_v9_vs_v8": Key("ratio", "CPU time for the same mutations in commit log version 9 against version 8", 1.02, None, low=True),
    "batch_time_10x_table": Key("ratio", "100,000 changes: the whole batch, table of 10 M rows against 1 M", 1.5, 1.2, low=True),
    "current_commit_time_10x_table": Key("ratio", "100,000 changes: commit of current rows, 10 M rows against 1 M", 1.5, 1.2, low=True),
    "core_scaling_1_to_2": Key("ratio", "time of the whole path on one core against two; the broker shares them", 1.7, 1.9),
    "cold_start_s": Key("s", "first decode of a fresh process less the second", 1, None, low=True),
    "small_batch_s": Key("s", "1,000 rows of one table, warm, ingest and publish", 3, 1, low=True),
    "small_batch_20_tables_s": Key("s", "1,000 rows over 20 tables, warm, ingest and publish", 6, 3, low=True),
    "read_after_1000_batches_vs_compacted": Key("ratio", "reading current rows after many batches against compacted", 1.5, 1.2, low=True),
    "maintenance_cpu_share": Key("ratio", "CPU of the maintenance after a large batch against that of its ingest", 0.2, 0.1, low=True),
    "peak_rss_mb": Key("MB", "most memory of driver, JVM and workers at one time, shared pages counted once", low=True),
    "shipper_cpu_share_10mb_s": Key("share of a core", "the shipper beside a node that logs 10 MB/s", low=True),
    **{
        f"whole_mb_s_per_core.{name}": Key(MB_S, f"the whole path with the table {name}; half of that of orders is to be reached")
        for name in OTHER_TABLES
    },
}  # fmt: skip


@dataclass
class Peer:
    """Another way to do the work or a part of it, and what it took. `does_not`: of what writetime does in the
    figure beside it.
    """

    name: str
    does: str
    does_not: str
    figures: dict[str, float]


@dataclass
class Found:
    """What the parts of a run have measured: values by key, one a pass; reasons of keys without values; notes."""

    values: dict[str, list[float]] = field(default_factory=dict)
    left_out: dict[str, str] = field(default_factory=dict)
    notes: dict[str, str] = field(default_factory=dict)
    peers: list[Peer] = field(default_factory=list)
    steps: dict[str, dict[str, float]] = field(default_factory=dict)

    def median(self, key: str) -> float | None:
        return statistics.median(self.values[key]) if self.values.get(key) else None

    def document(self, about: Mapping[str, Any]) -> dict[str, Any]:
        """All of it as one document: each key of KEYS with its figure, or its reason under `left_out`."""
        figures = {key: _figure(KEYS[key], self.values[key], self.notes.get(key)) for key in KEYS if self.values.get(key)}
        reasons = {key: self.left_out.get(key, "not measured") for key in KEYS if key not in figures}
        return {
            "about": dict(about),
            **figures,
            "left_out": reasons,
            "below_half_of_orders": self._below_half(),
            "steps": self.steps,
            "peers": [vars(peer) for peer in self.peers],
        }

    def _below_half(self) -> list[str]:
        orders = self.median("whole_mb_s_per_core")
        found = {name: self.median(f"whole_mb_s_per_core.{name}") for name in OTHER_TABLES}
        return [name for name, value in found.items() if orders is not None and value is not None and value < orders / 2]


def _figure(key: Key, values: Sequence[float], note: str | None) -> dict[str, Any]:
    median = statistics.median(values)
    return {
        "median": _rounded(median),
        "unit": key.unit,
        "passes": len(values),
        "spread": [_rounded(min(values)), _rounded(max(values))],
        "values": [_rounded(value) for value in values],
        "meaning": key.meaning,
        "goal": {"at_most" if key.low else "at_least": key.least, "aim": key.aim} if key.least is not None else None,
        "reached": key.reached(median),
        **({"note": note} if note else {}),
    }


def text_of(value: float | None) -> str:
    """For people: four digits, or all before the point."""
    if value is None:
        return ""
    return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:,.4g}"


def _rounded(value: float) -> float:
    """To four significant digits."""
    return float(f"{value:.4g}") if abs(value) < 10_000 else round(value)
