"""A run: one reading of a table, or of a part of it, and its progress. Documents in the bucket, readable
with `cat`; does not know a driver or Spark.

    <run>.json            what is read, the ranges, and progress: `rows` read, `frames` created, `remaining` ranges
    <run>/<range>.json    created when a range is finished: a restarted run skips these

An unfinished run is resumed by any caller. Reading a range twice is harmless, so there is no lease.
"""

from __future__ import annotations

import secrets
from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from itertools import pairwise
from typing import Final
from uuid import UUID

from pydantic import Field

from writetime.cassandra.schema.model import Schema, Table
from writetime.config.pipeline import PipelineConfig
from writetime.errors import ConfigError
from writetime.pipeline.documents import Document, Watermark
from writetime.pipeline.segment_check import known_schema
from writetime.storage import layout
from writetime.storage.store import Store

LOWEST: Final = -(2**63)
HIGHEST: Final = 2**63 - 1
"""Tokens of the Murmur3 partitioner. No partition has the lowest."""
_RING: Final = 2**64
SILENT: Final = timedelta(minutes=10)
"""How long a run may be without a report: a process that reads reports every few seconds."""

Range = tuple[int, int]
"""Tokens > start and <= end."""


class Run(Document):
    """`part` None: the whole ring; for several parts, from the start of the first to the end of the last.
    `finished_at` None: not finished. `failed_at`, `error`: when and why its last process failed, None and
    empty after progress."""

    run: str
    cluster: str
    keyspace: str
    table: str
    table_id: UUID
    consistency: str
    part: Range | None = None
    ranges: list[Range]
    started_at: datetime
    updated_at: datetime
    finished_at: datetime | None = None
    rows: int = Field(default=0, description="Rows read from the cluster.")
    frames: int = Field(default=0, description="Rows with new data, written as frames.")
    remaining: int = Field(description="Ranges that are not finished.")
    failed_at: datetime | None = None
    error: str = ""

    @property
    def duration(self) -> timedelta:
        """From its start to its end, its failure, or its last report; with pauses."""
        return (self.finished_at or self.failed_at or self.updated_at) - self.started_at

    def is_aborted(self, now: datetime) -> bool:
        """Whether it is not finished and nothing reads: its process has failed, or has been silent for
        `SILENT`."""
        return self.finished_at is None and (self.failed_at is not None or now - self.updated_at > SILENT)

    @property
    def name(self) -> str:
        return layout.bootstrap_run(self.cluster, self.keyspace, self.table, self.run)

    @property
    def node(self) -> layout.NodeName:
        """The node name under which its frames are written."""
        return layout.NodeName.made(self.cluster, "snapshot", self.run)

    def range_name(self, number: int) -> str:
        return layout.bootstrap_range(self.cluster, self.keyspace, self.table, self.run, number)

    def line(self) -> str:
        """The progress as text."""
        state = "finished" if self.finished_at else f"{self.remaining} of {len(self.ranges)} ranges remain"
        state += f", failed {self.failed_at:%Y-%m-%d %H:%M:%S}Z: {self.error}" if self.failed_at else ""
        return f"{self.keyspace}.{self.table}, run {self.run}: {self.rows} rows read, {self.frames} with new data, {state}"


class RangeDone(Document):
    """A finished range: its rows, its frames, and the objects with these."""

    rows: int
    frames: int
    objects: list[str]


# --- ranges


def parse_part(text: str) -> Range:
    """Parse `A:B`: tokens > A and <= B; if one is omitted, the lowest or the highest. ConfigError if the
    text is invalid."""
    start, colon, end = text.partition(":")
    try:
        found = int(start or LOWEST), int(end or HIGHEST)
    except ValueError:
        colon = ""
        found = (0, 0)
    if not colon or not LOWEST <= found[0] < found[1] <= HIGHEST:
        raise ConfigError(
            "invalid token range", operation="read a token range", obj=text, hint=f"Write A:B with {LOWEST} <= A < B <= {HIGHEST}."
        )
    return found


def part_of(tables: Sequence[str], text: str) -> Range | None:
    """The part of `tables` that is asked for; None: all tokens. ConfigError if the text is invalid, or if no table is given:
    of tables that are due, all tokens have to be read."""
    if not text:
        return None
    if not tables:
        raise ConfigError(
            "a token range without a table", operation="read a token range", obj=text, hint="Name the table whose tokens are to be read."
        )
    return parse_part(text)


def split(tokens: Sequence[int], part: Range | None, wanted: int) -> list[Range]:
    """The ring, or a part of it, in at least about `wanted` ranges with one owner each. They ascend and do
    not overlap."""
    start, end = part or (LOWEST, HIGHEST)
    cuts = [start, *sorted({token for token in tokens if start < token < end}), end]
    most = max(1, -(-(end - start) // max(1, wanted)))
    found: list[Range] = []
    for low, high in pairwise(cuts):
        parts = -(-(high - low) // most)
        edges = [low + (high - low) * at // parts for at in range(parts + 1)]
        found += pairwise(edges)
    return found


def joined(found: Iterable[Range]) -> list[Range]:
    """The same tokens in as few ranges as possible, in order."""
    made: list[Range] = []
    for start, end in sorted(found):
        if made and start <= made[-1][1]:
            made[-1] = (made[-1][0], max(end, made[-1][1]))
        else:
            made.append((start, end))
    return made


def split_parts(tokens: Sequence[int], parts: Sequence[Range], wanted: int) -> list[Range]:
    """Parts of the ring in about `wanted` ranges in total, see `split`."""
    whole = sum(end - start for start, end in parts)
    return [each for start, end in parts for each in split(tokens, (start, end), max(1, wanted * (end - start) // whole))]


# --- runs


def begin(store: Store, cluster: str, table: Table, *, part: Range | None, ranges: Sequence[Range], consistency: str, now: datetime) -> Run:
    """Create a new run."""
    run = Run(
        run=f"{now.astimezone(UTC):%Y%m%dT%H%M%SZ}-{secrets.token_hex(2)}",
        cluster=cluster,
        keyspace=table.keyspace,
        table=table.name,
        table_id=table.id,
        consistency=consistency,
        part=part,
        ranges=list(ranges),
        started_at=now,
        updated_at=now,
        remaining=len(ranges),
    )
    store.put(run.name, run.to_bytes(), if_generation=0)
    return run


def runs(store: Store, cluster: str, keyspace: str = "", table: str = "") -> Iterator[Run]:
    """The runs of all tables, or of one; by table, oldest first."""
    prefix = layout.bootstrap_prefix(cluster, keyspace, table)
    depth = layout.bootstrap_run(cluster, "k", "t", "r").count("/")
    for info in store.names(prefix):
        if info.name.endswith(".json") and info.name.count("/") == depth:
            yield Run.model_validate_json(store.read(info.name))


def unfinished(store: Store, cluster: str, table: Table, parts: Sequence[Range] | None, consistency: str) -> Run | None:
    """The unfinished run to resume, of this table incarnation and these parts (None: the whole table): one
    with the requested consistency, begun since the table's cdc was last seen switched on. Data read by an
    older one may have been deleted unseen."""
    on_since = (Captured.read(store, _captured(cluster)) or Captured()).since.get(table.id)
    found = [
        run
        for run in runs(store, cluster, table.keyspace, table.name)
        if run.finished_at is None
        and run.table_id == table.id
        and run.consistency == consistency
        and (on_since is None or run.started_at >= on_since)
    ]
    return next((run for run in reversed(found) if (None if run.part is None else joined(run.ranges)) == parts), None)


def read_to_the_end(found: Iterable[Run]) -> set[UUID]:
    """Ids of the tables that one of these runs has read completely."""
    return {run.table_id for run in found if run.part is None and run.finished_at is not None}


def finished_ranges(store: Store, run: Run) -> dict[int, RangeDone]:
    """Finished ranges by number."""
    prefix = run.name.removesuffix(".json") + "/"
    found = ((info.name, store.read(info.name)) for info in store.names(prefix))
    return {int(name.rpartition("/")[2].removesuffix(".json")): RangeDone.model_validate_json(data) for name, data in found}


def finish_range(store: Store, run: Run, number: int, done: RangeDone) -> None:
    """Note that the range is read, unless another process has finished it."""
    done.create(store, run.range_name(number))


def update(store: Store, run: Run, now: datetime, error: str = "") -> Run:
    """Update the run's progress. `error`: why its process fails; nothing if the run is finished all the same."""

    def change(before: Run | None) -> Run:
        done = finished_ranges(store, run)
        remaining = len(run.ranges) - len(done)
        finished_at = (before or run).finished_at or (None if remaining else now)
        failed = bool(error) and finished_at is None
        return (before or run).model_copy(
            update={
                "rows": sum(each.rows for each in done.values()),
                "frames": sum(each.frames for each in done.values()),
                "remaining": remaining,
                "updated_at": now,
                "finished_at": finished_at,
                "failed_at": now if failed else None,
                "error": error if failed else "",
            }
        )

    return Run.update(store, run.name, change) or run


def last_runs(store: Store, cluster: str) -> dict[str, Run]:
    """The last run of each table, by its full name, in the order of the names."""
    last: dict[str, Run] = {}
    for run in runs(store, cluster):
        name = f"{run.keyspace}.{run.table}"
        if name not in last or last[name].started_at <= run.started_at:
            last[name] = run
    return dict(sorted(last.items()))


# --- what is due


class Captured(Document):
    """The tables (ids) that were captured at the last check; those captured at an earlier check and not now
    (`off`); those switched on since and not read yet (`due`); and when a table was seen to be captured again
    (`since`)."""

    tables: list[UUID] = Field(default=[])
    off: list[UUID] = Field(default=[])
    due: list[UUID] = Field(default=[])
    since: dict[UUID, datetime] = Field(default={})


def _captured(cluster: str) -> str:
    return f"{layout.bootstrap_prefix(cluster)}captured.json"


def due(store: Store, config: PipelineConfig, now: datetime | None = None) -> list[Table]:
    """The tables that have to be read automatically: in mode `initial` captured tables that were never read
    completely; in mode `always` also those whose cdc was switched on again, as soon as the log from before that is
    complete: what it brings late a reading could not delete. In any mode those whose writes reach no log, each time
    their interval has passed, if the configuration says so. Records which tables are captured now."""
    cluster, mode, choice = config.cluster.name, config.snapshot.mode, config.tables.not_in_log
    if config.cluster.cql is None or (mode == "never" and choice != "read"):
        return []
    now = now or datetime.now(UTC)
    learner = known_schema(store, cluster)
    schema = learner.schema()
    tables = [table for table in schema.tables.values() if table.cdc and not table.dropped and table.view is None]
    captured = [table for table in tables if config.tables.captures(table.full_name)]
    if choice == "leave_out":
        captured = [table for table in captured if not table.bypasses_log]
    found = list(runs(store, cluster))
    at_intervals = _stale(captured, found, now, timedelta(seconds=config.tables.not_in_log_seconds)) if choice == "read" else set()
    if mode == "never":
        return sorted((table for table in captured if table.id in at_intervals), key=lambda table: table.full_name)
    finished = read_to_the_end(found)
    open_runs = _begun(found)
    known = {table.id for table in schema.tables.values() if not table.dropped}

    def change(noted: Captured | None) -> Captured | None:
        before = noted or Captured()
        back = _back_since(learner.cdc_back, before, found)
        switched = {table.id for table in captured if table.id not in before.tables or table.id in back}
        again = switched | set(before.due)
        seen = dict.fromkeys(switched & set(before.off), now) | back
        after = Captured(
            tables=sorted((table.id for table in captured), key=str),
            off=sorted((set(before.tables) | set(before.off)) & known - {table.id for table in captured}, key=str),
            due=sorted(again, key=str) if mode == "always" else [],
            since={table_id: at for table_id, at in (before.since | seen).items() if table_id in known},
        )
        return None if after == before else after

    noted = Captured.update(store, _captured(cluster), change) or Captured()
    due_again = open_runs | at_intervals | _with_complete_log(store, cluster, noted)
    wanted = [table for table in captured if table.id not in finished or table.id in due_again]
    return sorted(wanted, key=lambda table: table.full_name)


def _with_complete_log(store: Store, cluster: str, captured: Captured) -> set[UUID]:
    """Of the tables in `due`, those whose log from before they were captured again is complete."""
    if not captured.due:
        return set()
    complete = Watermark.read(store, layout.complete(cluster)) or Watermark()

    def is_complete(table_id: UUID) -> bool:
        since, until = captured.since.get(table_id), complete.of(table_id)
        return since is None or (until is not None and until >= since)

    return set(filter(is_complete, captured.due))


def _stale(captured: Iterable[Table], found: Iterable[Run], now: datetime, interval: timedelta) -> set[UUID]:
    """Ids of the tables whose writes reach no log, and whose last complete reading began an interval ago."""
    begun = last_readings(found)
    return {table.id for table in captured if table.bypasses_log and (table.id not in begun or now - begun[table.id] >= interval)}


def last_readings(found: Iterable[Run]) -> dict[UUID, datetime]:
    """By table id: when the last reading of the whole table that was finished began."""
    begun: dict[UUID, datetime] = {}
    for run in found:
        if run.part is None and run.finished_at is not None:
            begun[run.table_id] = max(run.started_at, begun.get(run.table_id, run.started_at))
    return begun


def _begun(found: Iterable[Run]) -> set[UUID]:
    """Ids of the tables whose last complete reading is not finished. Earlier unfinished runs are obsolete."""
    last: dict[UUID, Run] = {}
    for run in found:
        if run.part is None and (run.table_id not in last or last[run.table_id].started_at <= run.started_at):
            last[run.table_id] = run
    return {table_id for table_id, run in last.items() if run.finished_at is None}


def _back_since(reported: Mapping[UUID, int], before: Captured, found: Iterable[Run]) -> dict[UUID, datetime]:
    """Since when tables are captured again, from logs and snapshots: this includes tables switched off and
    on between two checks. Tables recorded or completely read since then are left out."""
    read = last_readings(found)
    times = {table_id: datetime.fromtimestamp(at / 1_000_000, UTC) for table_id, at in reported.items()}

    def is_new(table_id: UUID, at: datetime) -> bool:
        noted = before.since.get(table_id)
        return (noted is None or noted < at) and (table_id not in read or read[table_id] < at)

    return {table_id: at for table_id, at in times.items() if table_id in before.tables and is_new(table_id, at)}


def no_longer_due(store: Store, cluster: str, table: Table) -> None:
    """Remove the table from `due`: its run is finished."""

    def change(before: Captured | None) -> Captured | None:
        if before is None or table.id not in before.due:
            return None
        return before.model_copy(update={"due": [each for each in before.due if each != table.id]})

    Captured.update(store, _captured(cluster), change)


def table_named(schema: Schema, full_name: str) -> Table:
    """The existing table of that name (`keyspace.table`, quoted if necessary). ConfigError if there is
    none."""
    for table in schema.tables.values():
        if not table.dropped and full_name in (table.full_name, table.label, f"{_quoted(table.keyspace)}.{_quoted(table.name)}"):
            return table
    raise ConfigError(
        "no schema of the table is known",
        operation="find a table",
        obj=full_name,
        hint="Shippers upload the schema: check that they run.",
    )


def _quoted(name: str) -> str:
    return '"' + name.replace('"', '""') + '"'
