"""Maintenance of the warehouse tables: compact small files, apply deletes, expire old snapshots, delete orphan files.

Strategy: Iceberg's own procedures do the work, except where files need only be copied (`file_merge`). They run
inside the maintenance batch, before the seal, so that no ingest commits at the same time to files that are being
replaced; a session also merges small files between two batches (`spark_jobs.sinks.compaction`). Current rows are
sorted by key when maintenance rewrites them, so that a reader with a key opens few files, and little of them;
changes stay grouped by day. Files are counted before and after. A failure is logged and left to the next run: a table with many
files is still correct.

Every commit writes a metadata.json with all snapshots, so there must not be too many. Those of the last hour
stay, because a reader may use them, and so do the newest NEWEST. Of older ones, those that are not
the last of their hour go first, the oldest before the others: history becomes coarser, not shorter. What a
batch needs of snapshots is never older than the batch: whether it or a voided batch has committed, and the
snapshot before that. While a batch is open no snapshot is expired.

Orphan files are those that no snapshot has. They may be young: a driver that is late, or another writer, commits
them yet. So they stay for some days, and Iceberg refuses less than one.

Knows Iceberg's procedures and which tables belong to the pipeline; must not know batches or rows.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from functools import partial
from typing import NamedTuple, TypeVar

import structlog
from pyspark.sql import SparkSession
from pyspark.sql import functions as F

from spark_jobs.failures import kind_of, reason_of
from spark_jobs.sinks.file_merge import merge_files
from spark_jobs.sinks.iceberg import Warehouse
from spark_jobs.sinks.iceberg_table import IcebergTable
from spark_jobs.sinks.schema_evolution import quoted
from writetime.cassandra.schema.model import Table
from writetime.config.warehouse import ORPHANS_DAYS, WarehouseConfig
from writetime.events.naming import to_column
from writetime.pipeline.maintenance_report import Files, Tidied

log = structlog.get_logger()

T = TypeVar("T")
IN_USE = timedelta(hours=1)
"""How long a snapshot stays however many there are: the publisher, or a query, may read it."""
NEWEST = 20
"""Snapshots that stay however old they are."""
MOST = 1000
"""Snapshots of a table above which history becomes coarser: each commit writes the list of all of them."""
_MANIFEST_SIZE = "commit.manifest.target-size-bytes"
MANY_DELETES = 2
"""Files of deletes that a data file may have before it is written anew."""
LEFT = 16
"""Files that may be too small before Iceberg merges them where `file_merge` does: it leaves up to four of each size."""
SMALL = 16 << 20
"""Bytes of a data file that sessions leave alone: larger ones are merged by maintenance, so that what a session
rewrites depends on what it has written, not on the size of the table."""


def tidy(warehouse: Warehouse, tables: Iterable[Table], *, now: datetime | None = None) -> list[Tidied]:
    """Maintain the current rows and the changes of the existing tables as configured; returns the results."""
    layout, found = warehouse.layout, list[Tidied]()
    for label, name, order in _places(warehouse, tables, found):
        try:
            held = IcebergTable(warehouse.spark, name)
            held.refresh()
            before = count(held)
            _compact(warehouse.spark, name, order)
            held.refresh()
            if layout.keep_snapshots_days is not None:
                moment = now or datetime.now(UTC)
                _expire(held, layout, moment, _surplus_of(held, moment))
            _delete_orphans(warehouse.spark, held, datetime.now(UTC) - timedelta(days=ORPHANS_DAYS))
            found.append(Tidied(name=_plain(name), before=before, after=count(held)))
        except Exception as error:
            if kind_of(error) == "driver":
                raise
            trouble = reason_of(error)
            log.warning("table maintenance failed", table=label, name=name, error=trouble)
            found.append(Tidied(name=_plain(name), trouble=trouble))
    return found


def count(held: IcebergTable) -> Files | None:
    """The number of data and delete files and of snapshots, and the bytes of all files; None if the last commit
    does not state them."""
    files = held.files
    return None if files is None else Files(data=files.data, bytes=files.bytes, deletes=files.deletes, snapshots=len(held.kept))


def _places(warehouse: Warehouse, tables: Iterable[Table], failed: list[Tidied]) -> Iterator[tuple[str, str, list[str]]]:
    """The existing tables: display name, name, and the columns by which their rows are sorted. `failed` receives those
    that cannot be looked at."""
    for table in tables:
        keys = [to_column(column.name) for column in (*table.partition_key, *table.clustering)]
        current, changes = _looked(table.label, partial(_names_of, warehouse, table), failed) or (None, None)
        if current is not None:
            yield table.label, current, keys
        if changes is not None:
            yield table.label, changes, []
    for label, look in (("quarantine", warehouse.quarantine), ("completeness", warehouse.completeness)):
        if (name := _looked(label, look, failed)) is not None:
            yield label, name, []


def _names_of(warehouse: Warehouse, table: Table) -> tuple[str | None, str | None]:
    return warehouse.current_of(table), warehouse.changes_of(table)


def _looked(label: str, look: Callable[[], T], failed: list[Tidied]) -> T | None:
    """What the catalog says of a table; None if it cannot be looked at, which `failed` receives."""
    try:
        return look()
    except Exception as error:
        if kind_of(error) == "driver":
            raise
        log.warning("table maintenance failed", table=label, error=reason_of(error))
        failed.append(Tidied(name=label, trouble=reason_of(error)))
        return None


def _compact(spark: SparkSession, name: str, keys: Sequence[str]) -> None:
    catalog, table = _split(name)
    merged = merge_files(spark, name, order=keys)
    order = ", ".join(f"{quoted(key)} ASC NULLS FIRST" for key in keys)
    how = f"strategy => 'sort', sort_order => '{_text(order)}'" if order else "strategy => 'binpack'"
    options = _options(merged, {"delete-file-threshold": MANY_DELETES})
    spark.sql(f"CALL {catalog}.system.rewrite_data_files(table => '{table}', {how}, options => {options})").collect()


def merge_small(spark: SparkSession, name: str) -> None:
    """Merge the small data files, and apply the deletes in them. They are not sorted: each holds keys from
    the whole table anyway."""
    catalog, table = _split(name)
    merged = merge_files(spark, name, SMALL)
    # A large file is maintenance's, however many of its rows are deleted.
    options = _options(merged, {"min-file-size-bytes": SMALL, "delete-ratio-threshold": 1.0})
    spark.sql(f"CALL {catalog}.system.rewrite_data_files(table => '{table}', strategy => 'binpack', options => {options})").collect()


def _options(merged: bool, options: Mapping[str, float]) -> str:
    """Options of rewrite_data_files. Where small files are `merged` by sizes, it has those that this leaves: a few of
    each size."""
    every = {**options, "remove-dangling-deletes": "true", **({"min-input-files": LEFT} if merged else {})}
    return f"map({', '.join(repr(str(text)) for item in every.items() for text in item)})"


# --- snapshots


class Snapshot(NamedTuple):
    """A snapshot with the one before it, and the time of its commit."""

    id: int
    parent: int | None
    at: datetime


def surplus(snapshots: Iterable[Snapshot], current: int | None, now: datetime) -> list[int]:
    """The ids of the snapshots to expire because there are more than MOST, the oldest first.
    `current`: the one that readers see."""
    oldest_first = sorted(snapshots, key=lambda snapshot: snapshot.at)
    visible = _visible(oldest_first, current)
    kept = set(visible[:NEWEST]) | {each.id for each in oldest_first if each.at > now - IN_USE}
    unshown = kept | _rolled_back(oldest_first, visible)
    # The last of each hour.
    hourly = {each.at.replace(minute=0, second=0, microsecond=0): each.id for each in oldest_first if each.id not in unshown}
    kept.update(list(hourly.values())[max(0, len(hourly) - max(0, MOST - NEWEST)) :])
    fine = [each.id for each in oldest_first if each.id not in kept]
    return fine[: max(0, len(oldest_first) - MOST)]


def _rolled_back(oldest_first: list[Snapshot], visible: list[int]) -> set[int]:
    """Snapshots that stand beside the visible ones. Of those before the visible ones nothing is known."""
    since = [each.id for each in oldest_first]
    return set(since[since.index(visible[-1]) :]) - set(visible) if visible else set()


def _visible(snapshots: Iterable[Snapshot], current: int | None) -> list[int]:
    """The current snapshot and those before it, the newest first, up to one that has expired."""
    parents, found = {each.id: each.parent for each in snapshots}, list[int]()
    while current in parents:
        found.append(current)
        current = parents[current]
    return found


def thin(spark: SparkSession, name: str, layout: WarehouseConfig) -> None:
    """Expire surplus snapshots if there are many."""
    if layout.keep_snapshots_days is None:
        return
    now, held = datetime.now(UTC), IcebergTable(spark, name)
    held.refresh()
    found = _surplus_of(held, now)
    # Each expiry reads the manifests of all snapshots.
    if len(found) > MOST // 4:
        _expire(held, layout, now, found)


def _expire(held: IcebergTable, layout: WarehouseConfig, now: datetime, gone: Iterable[int]) -> None:
    """Expire the snapshots that are too old, and the given ones; none if the files are somebody else's to delete, as
    with a catalog server that has branches (Nessie)."""
    if held.deletes_no_files:
        log.info("snapshots not expired: gc.enabled is false", table=_plain(held.name))
        return
    held.expire(now - timedelta(days=layout.keep_snapshots_days or 0), NEWEST, gone)


def _delete_orphans(spark: SparkSession, held: IcebergTable, before: datetime) -> None:
    """Delete the files of the table's folder that are older and that no snapshot has; none if the files are somebody
    else's to delete. Where only the scheme or the bucket of a name differs from what the table knows, it stays."""
    if not _is_older(held, before) or held.deletes_no_files:
        return
    catalog, table = _split(held.name)
    moment = before.astimezone(UTC).strftime("%Y-%m-%d %H:%M:%S.%f")
    statement = (
        f"CALL {catalog}.system.remove_orphan_files(table => '{table}', older_than => TIMESTAMP '{moment}', "
        "prefix_mismatch_mode => 'IGNORE', prefix_listing => true, stream_results => true)"
    )
    gone = spark.sql(statement).count()
    if gone:
        log.info("orphan files deleted", table=_plain(held.name), files=gone)


def _is_older(held: IcebergTable, before: datetime) -> bool:
    """Whether the table was written before then: if not, its folder has no older file."""
    oldest = min(held.kept, key=lambda each: each.at, default=None)
    return oldest is not None and (oldest.parent is not None or oldest.at <= before)


def _surplus_of(held: IcebergTable, now: datetime) -> list[int]:
    found = [Snapshot(each.id, each.parent, each.at) for each in held.kept]
    # Iceberg refuses to expire what a person's tag or branch names.
    named = set(held.refs.values())
    return [each for each in surplus(found, held.snapshot, now) if each not in named]


def scrub(spark: SparkSession, name: str, before: datetime, check: Callable[[], None] = lambda: None) -> list[str]:
    """Reduce the table to what its current snapshot shows: files with deleted rows are rewritten, and so are
    the manifests, which contain minima and maxima of removed files; then, after the `check`, all older snapshots and
    their files are deleted, but those of branches and tags. A commit that comes after the check is the last one, and
    stays. If no files may be deleted, all snapshots stay.

    Returns the files that only expired snapshots had and that are still there: Iceberg only warns if a store refuses to delete
    one, and deletes none with a catalog's `s3.delete-enabled: false`."""
    catalog, table = _split(name)
    options = "map('delete-file-threshold', '1', 'remove-dangling-deletes', 'true')"
    spark.sql(f"CALL {catalog}.system.rewrite_data_files(table => '{table}', options => {options})").collect()
    _rewrite_manifests(spark, name)
    check()
    held = IcebergTable(spark, name)
    held.refresh()
    if held.deletes_no_files:
        log.warning("snapshots not expired: gc.enabled is false", table=_plain(name))
        return []
    former = _files(spark, name)
    moment = before.astimezone(UTC).strftime("%Y-%m-%d %H:%M:%S.%f")
    # By their ids, too: a retention that somebody has given the branch main would keep them.
    named = {held.snapshot, *held.refs.values()}
    older = ", ".join(f"{each.id}L" for each in held.lineage if each.id not in named)
    spark.sql(
        f"CALL {catalog}.system.expire_snapshots(table => '{table}', older_than => TIMESTAMP '{moment}', retain_last => 1, "
        f"stream_results => true{f', snapshot_ids => array({older})' if older else ''})"
    ).collect()
    return held.existing(former - _files(spark, name))


def _files(spark: SparkSession, name: str) -> set[str]:
    """Data files, delete files and their manifests, of all snapshots."""
    spark.catalog.refreshTable(name)
    found = spark.sql(f"SELECT file_path FROM {name}.all_files UNION SELECT path FROM {name}.all_manifests")  # noqa: S608
    return {row[0] for row in found.collect()}


def _rewrite_manifests(spark: SparkSession, name: str) -> None:
    """Rewrite the manifests without entries of removed files."""
    catalog, table = _split(name)
    statement = f"CALL {catalog}.system.rewrite_manifests(table => '{table}', use_caching => false)"
    spark.sql(statement).collect()
    gone, live = (spark.table(f"{name}.entries").filter(which).count() for which in ("status = 2", "status <> 2"))
    if gone and live:
        # Iceberg does not rewrite a single manifest, unless it is to become two.
        size = spark.table(f"{name}.manifests").agg(F.sum("length")).collect()[0][0]
        spark.sql(f"ALTER TABLE {name} SET TBLPROPERTIES ('{_MANIFEST_SIZE}' = '{max(1, size // 2)}')")
        spark.sql(statement).collect()
        spark.sql(f"ALTER TABLE {name} UNSET TBLPROPERTIES ('{_MANIFEST_SIZE}')")
    elif gone:
        # The next commit drops manifests without files.
        spark.table(name).limit(0).writeTo(name).overwrite(F.lit(False))


def _plain(name: str) -> str:
    """The name without quotes, which our names do not need."""
    return name.replace("`", "")


def _split(name: str) -> tuple[str, str]:
    """Catalog, and the whole name escaped for an SQL literal: of a name without a catalog, Iceberg logs an exception,
    because it first looks for a catalog that has the namespace's name."""
    return name.partition(".")[0], _text(name)


def _text(sql: str) -> str:
    return sql.replace("\\", "\\\\").replace("'", "\\'")
