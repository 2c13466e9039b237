"""How far each table was compared with the cluster, and what `cdc_verify` compares next. One document in the
bucket; does not know a driver or Spark.

Strategy: comparisons go around the token ring. The pass of a table has come up to the token `upto`; any comparison
that covers what follows advances it, and at the end of the ring the pass is complete and the next one begins. A
comparison counts only if it began after the first reading of the table was finished and ingested: before that, rows
are missing by nature. Ranges with drift are remembered, and compared again by each run, until they are equal.

A table that was never compared completely is compared in slices of an hour each, so that a run that is killed has
lost little. One that was is compared by a share per run.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any, Final
from uuid import UUID

from pydantic import Field

from writetime.cassandra.schema.model import Table
from writetime.config.cluster import SnapshotConfig
from writetime.pipeline.bootstrap.run import HIGHEST, LOWEST, Range, Run, joined, runs
from writetime.pipeline.documents import Document
from writetime.pipeline.verification import TableResult
from writetime.storage import layout
from writetime.storage.store import Store

TOKENS: Final = HIGHEST - LOWEST
WHOLE: Final = (LOWEST, HIGHEST)
_SLICE_SECONDS: Final = 3600


class Pass(Document):
    """A complete comparison of a table, perhaps in many parts."""

    begun_at: datetime
    finished_at: datetime
    rows: int
    drift: int


class Drift(Document):
    """A token range in which that many rows differ from the cluster."""

    start: int
    end: int
    rows: int


class Comparison(Document):
    """What is known of a table incarnation. `at`: when it was compared last, with that `report`; `trouble`: why
    it could not be. `complete`: the last complete pass; null: none. `upto`, `begun_at`, `rows` and `found`: of the
    pass under way: the token, its beginning, the compared rows, and those with drift. `drift`: where rows differ."""

    table: str
    at: datetime
    report: str
    trouble: str = ""
    complete: Pass | None = None
    upto: int = LOWEST
    begun_at: datetime | None = None
    rows: int = 0
    found: int = 0
    drift: list[Drift] = Field(default=[])

    @property
    def drift_rows(self) -> int:
        return sum(each.rows for each in self.drift)

    @property
    def share(self) -> float:
        """How much of the ring the pass under way has compared."""
        return (self.upto - LOWEST) / TOKENS


class Comparisons(Document):
    """Of all tables, by id."""

    tables: dict[UUID, Comparison] = Field(default={})


def read(store: Store, cluster: str) -> Comparisons:
    return Comparisons.read(store, layout.comparisons(cluster)) or Comparisons()


def record(
    store: Store,
    cluster: str,
    results: Sequence[TableResult],
    *,
    report: str,
    began: datetime,
    at: datetime,
    read: Collection[UUID],
    existing: Collection[UUID] = (),
) -> None:
    """Add results. `read`: the tables that were read and ingested when the comparison `began`; of all others but the
    `existing` ones what was known is dropped."""

    def change(known: Comparisons | None) -> Comparisons:
        tables = {table_id: each for table_id, each in (known.tables if known else {}).items() if table_id in existing}
        for each in results:
            before = tables.get(each.table_id) or Comparison(table=each.table, at=at, report=report)
            tables[each.table_id] = _after(before, each, report, began, at, counts=each.table_id in read)
        return Comparisons(tables=tables)

    Comparisons.update(store, layout.comparisons(cluster), change)


def _after(before: Comparison, result: TableResult, report: str, began: datetime, at: datetime, *, counts: bool) -> Comparison:
    update: dict[str, Any] = {"table": result.table, "at": at, "report": report, "trouble": result.trouble}
    if not result.trouble:
        spans = joined((each.start, each.end) for each in result.ranges)
        kept = [each for each in before.drift if not any(start <= each.start and each.end <= end for start, end in spans)]
        new = [Drift(start=each.start, end=each.end, rows=each.drift) for each in result.ranges if each.drift]
        update["drift"] = sorted([*kept, *new], key=lambda each: each.start)
        update |= _advanced(before, result, spans, began, at) if counts else {}
    return before.model_copy(update=update)


def _advanced(before: Comparison, result: TableResult, spans: Sequence[Range], began: datetime, at: datetime) -> dict[str, Any]:
    upto, first = (LOWEST, began) if spans == [WHOLE] else (before.upto, before.begun_at or began)
    end = next((end for start, end in spans if start <= upto < end), None)
    if end is None:
        return {}
    passed = [each for each in result.ranges if upto <= each.start < end]
    is_first = upto == LOWEST
    rows = sum(each.rows for each in passed) + (0 if is_first else before.rows)
    found = sum(each.drift for each in passed) + (0 if is_first else before.found)
    if end == HIGHEST:
        complete = Pass(begun_at=first, finished_at=at, rows=rows, drift=found)
        return {"complete": complete, "upto": LOWEST, "begun_at": None, "rows": 0, "found": 0}
    return {"upto": end, "begun_at": first, "rows": rows, "found": found}


# --- what is due


@dataclass(frozen=True)
class Due:
    """A table and the token ranges to compare, in slices, one after the other."""

    table: Table
    slices: list[list[Range]]


def read_and_ingested(store: Store, cluster: str) -> set[UUID]:
    """Ids of the tables whose last reading of the whole table is finished, and of which no frame waits to be
    ingested."""
    prefix = layout.frames_prefix(cluster)
    waiting = {layout.unpart(info.name.removeprefix(prefix).partition("/")[0]) for info in store.names(prefix)}
    last: dict[UUID, Run] = {}
    unsettled: set[UUID] = set()
    for run in runs(store, cluster):
        if run.node.host_id in waiting:
            unsettled.add(run.table_id)
        if run.part is None and (run.table_id not in last or last[run.table_id].started_at <= run.started_at):
            last[run.table_id] = run
    return {table_id for table_id, run in last.items() if run.finished_at is not None} - unsettled


def due(
    known: Comparisons,
    tables: Iterable[Table],
    snapshot: SnapshotConfig,
    now: datetime,
    *,
    read: Collection[UUID],
    rows: Mapping[str, int],
    whole: Collection[UUID] = (),
) -> list[Due]:
    """What a scheduled run compares of the tables that were `read`, those first that were never compared
    completely. `rows`: the size of tables, by name; `whole`: those that can only be compared as a whole. Tables
    whose writes reach no log are left out: they differ between two readings."""
    first, others = [], []
    for table in sorted(tables, key=lambda table: table.full_name):
        if table.id not in read or table.bypasses_log:
            continue
        found = known.tables.get(table.id)
        if found is None or found.complete is None:
            upto = LOWEST if found is None or table.id in whole else found.upto
            first.append(Due(table, [[WHOLE]] if table.id in whole else _slices(upto, rows.get(table.full_name, 0), snapshot)))
        elif table.id not in whole:
            others.append(Due(table, [_next(found, snapshot.verify_share)]))
        elif found.drift or now - found.complete.finished_at >= timedelta(days=1 / snapshot.verify_share):
            others.append(Due(table, [[WHOLE]]))
    return [*first, *others]


def _slices(upto: int, rows: int, snapshot: SnapshotConfig) -> list[list[Range]]:
    """The ring after `upto` in parts that take an hour at the rate limit."""
    rest = HIGHEST - upto
    most = (snapshot.rows_per_second or 0) * _SLICE_SECONDS
    count = max(1, -(-(rows * rest // TOKENS) // most)) if most else 1
    edges = [upto + rest * at // count for at in range(count + 1)]
    return [[(edges[at], edges[at + 1])] for at in range(count)]


def _next(found: Comparison, share: float) -> list[Range]:
    """What drifts, and the next share."""
    step = round(TOKENS * share)
    # No small rest for another run.
    end = found.upto + step if HIGHEST - found.upto > 1.5 * step else HIGHEST
    return joined([(found.upto, end), *((each.start, each.end) for each in found.drift)])
