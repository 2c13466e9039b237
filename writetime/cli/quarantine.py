"""The commands `writetime quarantine list | show | retry | release`.

A commit log contains every keyspace of its node, so data that may belong to tables that are not captured is
hidden by default. Heavy imports are delayed until a command runs, since the command line loads this module
for its help."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any
from uuid import UUID

import typer

if TYPE_CHECKING:
    from writetime.cassandra.commitlog.encryption.keystore import Keystore
    from writetime.cassandra.schema.history import SchemaLearner
    from writetime.pipeline.quarantine.record import QuarantineRecord
    from writetime.storage.store import Store

_Config = Annotated[Path, typer.Option("--config", "-c", help="The pipeline's YAML.", show_default=False)]
_AsJson = Annotated[bool, typer.Option("--json", help="Print JSON, one record per line, instead of text.")]
_AllTables = Annotated[
    bool, typer.Option("--all-tables", help="Include data that may belong to tables that are not captured; it may contain secrets.")
]

app = typer.Typer(no_args_is_help=True, help="Inspect quarantined data and retry it.")


@app.command("list")
def list_(config: _Config, as_json: _AsJson = False) -> None:
    """List quarantine records with their reasons and positions."""
    store, cluster, _ = _place(config)
    found = list(_records(store, cluster))
    if as_json:
        for record in found:
            typer.echo(json.dumps(_about(record)))
    elif not found:
        typer.echo("nothing is in quarantine")
    else:
        for record in found:
            # The name has a line of its own, so that it can be copied.
            typer.secho(record.name.split("/", 2)[2], bold=True)
            typer.echo(f"    {record.kind}: {record.message}")
            typer.echo(f"    {_place_of(record)}")
            if record.settled_in is not None:
                typer.echo(f"    settled: read by batch {record.settled_in}")


@app.command()
def show(
    config: _Config,
    record: Annotated[str, typer.Argument(help="A record, as `list` names it.", show_default=False)],
    values: Annotated[bool, typer.Option("--values", help="Show bytes and values too; they may contain secrets.")] = False,
    all_tables: _AllTables = False,
) -> None:
    """Show a quarantine record: its reason, its position, and its decoded contents as far as they may be
    shown."""
    from writetime.config.pipeline import load
    from writetime.events.masking import Rules
    from writetime.pipeline.batch_history import Batches
    from writetime.pipeline.quarantine.contents import hex_lines, look
    from writetime.pipeline.segment_check import known_schema

    store, cluster, _ = _place(config)
    found = _named(store, cluster, record)
    typer.echo(f"{found.kind}: {found.message}")
    typer.echo(_place_of(found))
    rules = Rules() if all_tables else load(config).columns.rules
    seen = look(Batches(store, cluster), found, _Everything(known_schema(store, cluster), all_tables), rules, values=values)
    if seen.table:
        typer.echo(f"table {seen.table}")
    for line in seen.lines:
        typer.echo(line)
    shown = seen.hex or (hex_lines(store.read(found.name)) if all_tables and values else ())
    for line in shown:
        typer.echo(line)
    if seen.hidden and not shown:
        hint = "use --values to show them" if not values else "use --all-tables to show it"
        typer.echo(f"{seen.hidden} ({hint})")


@app.command("retry")
def retry_(
    config: _Config,
    records: Annotated[list[str] | None, typer.Argument(help="Records, as `list` names them.", show_default=False)] = None,
    everything: Annotated[bool, typer.Option("--all", help="Retry all records that wait.")] = False,
) -> None:
    """Let the next batch read records again. Exits with code 1 if a given record still cannot be read."""
    from writetime.errors import ConfigError
    from writetime.pipeline.quarantine.retry import retry

    if bool(records) == everything:
        raise ConfigError("expected records or --all", operation="retry quarantine records")
    store, cluster, keys = _place(config)
    waiting = (each for each in _records(store, cluster) if each.settled_in is None and not each.topic)
    found = list(waiting) if everything else [_named(store, cluster, name) for name in records or ()]
    done = retry(store, cluster, found, keys)
    for name in done.segments:
        typer.echo(f"the next batch reads: {name}")
    for name in done.objects:
        typer.echo(f"written as frames: {name}")
    for name, reason in done.refused.items():
        typer.echo(f"still cannot be read: {name}: {reason}", err=True)
    if done.refused and not everything:
        raise typer.Exit(1)


@app.command("release")
def release_(
    config: _Config,
    segment: Annotated[str, typer.Argument(help="The object of a held segment, as `writetime status` prints it.", show_default=False)],
    reason: Annotated[str, typer.Option("--reason", help="Reason; stored with the segment.", show_default=False)],
) -> None:
    """Give up the unreadable data of a held segment, so that it no longer holds back the purge.

    The segment moves to the archive unchanged. Only a replay reads it from there: completely into a new
    namespace; into the live tables without rows that a purged tombstone may have deleted."""
    from writetime.pipeline.archiver import release

    store, cluster, _ = _place(config)
    done = release(store, cluster, segment, reason)
    typer.echo(f"released: {done.object} is archived as {done.archived_as}")


class _Everything:
    """A schema learner that optionally treats all tables as captured."""

    def __init__(self, learner: SchemaLearner, all_tables: bool) -> None:
        self._learner, self._all = learner, all_tables

    def schema(self) -> Any:
        return self._learner.schema()

    @property
    def cdc_ever(self) -> frozenset[UUID]:
        return frozenset(self.schema().tables) if self._all else self._learner.cdc_ever


def _place(config: Path) -> tuple[Store, str, Keystore | None]:
    from writetime.cassandra.commitlog.encryption.keystore import Keystore
    from writetime.config.pipeline import load
    from writetime.storage import open_store

    pipeline = load(config)
    keystore = pipeline.cluster.commitlog_keystore
    return open_store(pipeline.bucket), pipeline.cluster.name, None if keystore is None else Keystore.from_environment(keystore)


def _records(store: Store, cluster: str) -> Iterator[QuarantineRecord]:
    from writetime.pipeline.batch_history import Batches
    from writetime.pipeline.quarantine.record import list_records

    cursor = ""
    while True:
        found, cursor = list_records(Batches(store, cluster), cursor=cursor)
        yield from found
        if not cursor:
            return


def _named(store: Store, cluster: str, name: str) -> QuarantineRecord:
    from writetime.errors import ConfigError
    from writetime.pipeline.batch_history import Batches
    from writetime.pipeline.quarantine.record import read_record
    from writetime.storage.layout import quarantine_prefix

    full = name if name.startswith("quarantine/") else f"{quarantine_prefix(cluster)}{name}"
    found = read_record(Batches(store, cluster), full)
    if found is None:
        raise ConfigError("quarantine record not found", operation="read quarantine", obj=name, hint="See `writetime quarantine list`.")
    return found


def _about(record: QuarantineRecord) -> dict[str, Any]:
    fields = {
        name: getattr(record, name)
        for name in ("name", "segment", "position", "size", "kind", "message", "batch", "object", "settled_in", "node", "topic")
    }
    # An event that was not sent has an ordinal; this output has always shown it as its position.
    return fields if record.topic is None else fields | {"segment": "", "position": record.ordinal, "object": ""}


def _place_of(record: QuarantineRecord) -> str:
    if record.topic:
        return f"event {record.ordinal} of batch {record.batch}, {record.size} bytes, was not sent to {record.topic}"
    return f"{record.size} bytes at {record.position} of {record.object}, batch {record.batch or 'unknown'}"
