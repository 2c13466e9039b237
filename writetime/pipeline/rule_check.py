"""Whether the rules of `columns`, and names in `tables.exclude`, fit the tables of the cluster.

Strategy: a rule that fits nothing hides nothing, most often because of a letter, and what is published then cannot be
called back. So no batch is planned with one, by the schema that the bucket has; before a schema is known, nothing can
be published either. Knows no sink.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from writetime.cassandra.schema.model import Schema
from writetime.cassandra.schema.system_tables import SYSTEM_KEYSPACES
from writetime.config.pipeline import PipelineConfig
from writetime.errors import ConfigError
from writetime.events.masking import Rules, Unmatched
from writetime.pipeline.segment_check import known_schema
from writetime.storage.store import Store

HINT: Final = (
    "Correct the rule, or remove it; `unmatched: alarm` under `columns` lets batches go on with rules of tables that are created later."
)


def unmatched(rules: Rules, schema: Schema) -> list[Unmatched] | None:
    """The rules that fit no table or column; None if no table is known that they could fit."""
    if all(table.keyspace in SYSTEM_KEYSPACES for table in schema.tables.values()):
        return None
    return rules.unmatched(schema)


def rule_check(store: Store, config: PipelineConfig) -> Callable[[], None]:
    """What raises ConfigError before a batch is planned, if a rule fits nothing."""

    def check() -> None:
        cluster = config.cluster.name
        if config.columns.unmatched == "stop" and (found := unmatched_now(store, cluster, config.rules)):
            raise ConfigError("; ".join(map(str, found)), operation="plan a batch", obj=cluster, hint=HINT)

    return check


def unmatched_now(store: Store, cluster: str, rules: Rules) -> list[Unmatched] | None:
    """As `unmatched`, by the last batch's schema and the snapshots that have arrived since."""
    return unmatched(rules, known_schema(store, cluster).schema()) if rules else []
