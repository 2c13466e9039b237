"""One node and one pipeline in turns: somebody writes, then everything is shipped and ingested, then all is compared.
For tests of tables whose writes reach no log; `run` has everything at the same time.
"""

from __future__ import annotations

import time
from collections import Counter
from dataclasses import dataclass, field

from cassandra.cluster import Session

from proof.bootstrap.workload import KEYSPACE
from proof.harness.cassandra import Ring
from proof.ring import answer, check
from proof.ring.answer import Answer
from proof.ring.check import Mismatch
from proof.ring.pipeline import Pipeline, _Replaced
from spark_jobs import bootstrap
from tools.console import say
from writetime.config.cluster import CqlConfig, SnapshotConfig
from writetime.pipeline.bootstrap.run import Run
from writetime.storage import layout

CLUSTER = "living"
"""No other ring's name: nodes of one name find each other, whoever has started them."""
PAGE_ROWS = 5000


@dataclass
class Live:
    """One ring, one pipeline."""

    ring: Ring
    pipeline: Pipeline
    mismatches: list[Mismatch] = field(default_factory=list)
    done: Counter[str] = field(default_factory=Counter)
    _fillers: int = 0

    def __post_init__(self) -> None:
        node = self.ring.nodes[0]
        cql = CqlConfig(contact_points=[node.address], port=node.port)
        snapshot = SnapshotConfig(ranges=8, page_rows=200, margin_seconds=1.0)
        cluster = self.pipeline.config.cluster.model_copy(update={"cql": cql, "name": self.ring.cluster_name})
        tables = self.pipeline.config.tables.model_copy(update={"include": [f"{KEYSPACE}.*"]})
        self.pipeline.config = self.pipeline.config.model_copy(update={"cluster": cluster, "snapshot": snapshot, "tables": tables})
        self.session: Session = self.ring.session("ALL" if len(self.ring.nodes) > 1 else "ONE")

    def bootstrap(self) -> list[Run]:
        """Read the tables that are due."""
        with _Replaced(bootstrap, "spark_session", self.pipeline._session):
            found = bootstrap.run(self.pipeline.config, due=True)
        say("\n".join(f"{run.line()}, {(run.finished_at or run.updated_at) - run.started_at}" for run in found))
        return found

    def take_in(self) -> None:
        """Everything that has been written, to the end; and what has to be read again, until nothing has."""
        self._roll()
        for node in self.ring.nodes:
            shipped = self.pipeline.ship(node)
            assert not shipped.failed, shipped.failed
        self._batches()
        for _ in range(10):
            if not list(self.pipeline.store.list(layout.incomplete_rows_prefix(CLUSTER))):
                return
            with _Replaced(bootstrap, "spark_session", self.pipeline._session):
                bootstrap.run(self.pipeline.config, incomplete_rows=True)
            self.done["read again"] += 1
            self._batches()
        raise AssertionError("incomplete rows remain after ten reads")

    def _batches(self) -> None:
        while (sealed := self.pipeline.batch()) is not None:
            self.mismatches += check.check_batch(sealed, self.pipeline.updates(sealed), f"batch {sealed.number}")

    def _roll(self) -> None:
        """Dropping a table ends the current segment on every node."""
        self._fillers += 1
        self.session.execute(f"CREATE TABLE {KEYSPACE}.filler_{self._fillers} (p int PRIMARY KEY)")
        self.session.execute(f"DROP TABLE {KEYSPACE}.filler_{self._fillers}")
        time.sleep(1.0)

    def compare(self, where: str) -> Answer:
        reader = self.ring.session("ALL")
        found = answer.read(reader, page_rows=PAGE_ROWS)
        reader.cluster.shutdown()
        self.take_in()
        mismatches = check.check(found, self.pipeline.lake, where)
        say(f"{where}: {sum(len(table.rows) for table in found.tables)} rows, {len(mismatches)} mismatches, {dict(self.done)}")
        self.mismatches += mismatches
        return found
