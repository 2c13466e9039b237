"""Output of `writetime schema`: the schema and node metadata in segments, as text that cqlsh can run, or as
JSON.

Everything that is not CQL is in `--` comments: each change with its position and writetime, truncations, and
metadata of the node and its peers. Segments are read in log order. Each folder is another node; its changes
are mostly the same, and then not repeated."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from typing import Any
from uuid import UUID

from writetime.cassandra.commitlog.mutation_json import Failure, mutations_of, schema_changes
from writetime.cassandra.commitlog.segment import Frame, Scan
from writetime.cassandra.model import Mutation
from writetime.cassandra.schema.create_statements import comment, schema_cql
from writetime.cassandra.schema.epochs import FOLLOWED, Followed
from writetime.cassandra.schema.history import SchemaLearner
from writetime.cassandra.schema.node_metadata import LocalFacts
from writetime.cassandra.schema.system_tables import LOCAL_TABLES, SYSTEM_KEYSPACES
from writetime.cassandra.schema.timeline import Change, Timeline
from writetime.cassandra.types.literal import micros_text, timestamp_text
from writetime.storage.segment_paths import Input

_LEARNED_TABLES = {
    **FOLLOWED,
    **{table_id: table for table_id, table in LOCAL_TABLES.items() if table.name in ("local", "peers", "peers_v2")},
}


class Lessons:
    """Collects schema and node metadata from segments, up to and including `last` (segment id, position) if
    given."""

    def __init__(self, learner: SchemaLearner, last: tuple[int, int] | None = None) -> None:
        self.timeline = Timeline(learner)
        self.last = last
        self.changes: list[tuple[str, Change]] = []
        self.nodes: dict[str, LocalFacts] = {}
        self._followed: dict[str, Followed | None] = {}
        self.unknown: set[str] = set()

    def take(self, each: Input, found: Scan) -> Iterator[Failure]:
        """Learn from one segment; yields frames that do not decode."""
        node = self.nodes.setdefault(each.node, LocalFacts())
        failures: list[Failure] = []
        mutations = list(self._up_to_the_last(found))
        changes, self._followed[each.node] = schema_changes(mutations, found, failures, self._followed.get(each.node))
        yield from failures
        for _, mutation in mutations:
            if not isinstance(mutation, Failure):
                node.apply(mutation)
        for logged in changes:
            change = self.timeline.add_logged((each.order, logged.position), logged)
            if change is not None:
                self.changes.append((f"{each.name}:{logged.position}", change))

    def _up_to_the_last(self, found: Scan) -> Iterator[tuple[Frame, Mutation | Failure]]:
        for frame, mutation in mutations_of(found, _LEARNED_TABLES, self.unknown):
            if self.last is not None and (found.descriptor.id, frame.position) > self.last:
                return
            yield frame, mutation

    def as_text(self, *, system: bool) -> str:
        """CQL with comments."""
        when = "at the end" if self.last is None else f"at {self.last[0]}:{self.last[1]}"
        parts = [
            _comments(["changes, in the order of the log", *self._changes(system)]),
            _comments([f"the schema {when}"]),
            *schema_cql(self.timeline.now, system=system),
            _comments(["truncations", *(line for facts in self.nodes.values() for line in self._truncations(facts))]),
            *(_comments(_node(folder, facts)) for folder, facts in self.nodes.items()),
        ]
        return "\n\n".join(parts) + "\n"

    def as_json(self, *, system: bool) -> str:
        """A JSON object: changes, cql, and truncations, node and peers by folder."""
        document = {
            "changes": [
                {"at": place, "timestamp": change.timestamp, "what": what}
                for place, change in self.changes
                if (what := _what(change, system))
            ],
            "cql": list(schema_cql(self.timeline.now, system=system)),
            "nodes": {folder: self._node_document(facts) for folder, facts in self.nodes.items()},
        }
        return json.dumps(document, indent=2, ensure_ascii=False, default=str) + "\n"

    def _changes(self, system: bool) -> Iterator[str]:
        for place, change in self.changes:
            yield from (f"{place}  {micros_text(change.timestamp)}  {line}" for line in _what(change, system))

    def _truncations(self, facts: LocalFacts) -> Iterator[str]:
        for each in facts.truncations:
            yield f"{self._table(each.table_id)} emptied up to {each.segment}:{each.position} at {timestamp_text(each.at)}"

    def _table(self, table_id: UUID) -> str:
        table = self.timeline.now.tables.get(table_id)
        return f"table {table_id}" if table is None else f"{table.label} (id {table_id})"

    def _node_document(self, facts: LocalFacts) -> dict[str, Any]:
        truncations = [
            {"table": self._table(each.table_id), "id": each.table_id, "segment": each.segment, "position": each.position, "at_ms": each.at}
            for each in facts.truncations
        ]
        return {"truncations": truncations, "node": facts.node, "peers": facts.peers}


def _comments(lines: Iterable[str]) -> str:
    return "\n".join(map(comment, lines))


def _what(change: Change, system: bool) -> list[str]:
    return [text for keyspace, text in change.what if system or keyspace not in SYSTEM_KEYSPACES]


def _node(folder: str, facts: LocalFacts) -> Iterator[str]:
    yield f"the node of {folder or '.'}"
    yield from (f"  {name}: {_value(value)}" for name, value in facts.node.items())
    for peer in facts.peers:
        yield f"its peer {peer['peer']}"
        yield from (f"  {name}: {_value(value)}" for name, value in peer.items() if name != "peer")


def _value(value: Any) -> str:
    return ", ".join(map(str, value)) if isinstance(value, list) else str(value)
