"""The commands `writetime quarantine list | show | retry | release`.

What need not be of captured tables is hidden unless it is asked for: a log holds every keyspace of its node. Heavy imports wait for a
command to run: the command line loads this module for its help alone."""

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
    from writetime.pipeline.quarantine.contents import Kept
    from writetime.storage.store import Store

_Config = Annotated[Path, typer.Option("--config", "-c", help="The pipeline's YAML.", show_default=False)]
_AsJson = Annotated[bool, typer.Option("--json", help="JSON, a piece a line, instead of text for people.")]
_AllTables = Annotated[bool, typer.Option("--all-tables", help="Also what may be of tables that are not captured: it may hold secrets.")]

app = typer.Typer(no_args_is_help=True, help="Look at what could not be used, and try it again.")


@app.command("list")
def list_(config: _Config, as_json: _AsJson = False) -> None:
    """List what is in quarantine: its reason, and where it stood."""
    store, cluster, _ = _place(config)
    found = list(_pieces(store, cluster))
    if as_json:
        for piece in found:
            typer.echo(json.dumps(_about(piece)))
    elif not found:
        typer.echo("nothing is in quarantine")
    else:
        for piece in found:
            # A name is there to be copied: it stands whole, in a line of its own.
            typer.secho(piece.name.split("/", 2)[2], bold=True)
            typer.echo(f"    {piece.kind}: {piece.message}")
            typer.echo(f"    {_place_of(piece)}")
            if piece.settled_in is not None:
                typer.echo(f"    settled: batch {piece.settled_in} could use it")


@app.command()
def show(
    config: _Config,
    piece: Annotated[str, typer.Argument(help="A piece, as `list` names it.", show_default=False)],
    values: Annotated[bool, typer.Option("--values", help="Show bytes and values too, which may be anybody's secrets.")] = False,
    all_tables: _AllTables = False,
) -> None:
    """Show one piece: its reason, its place, and as far as may be seen its bytes and what they say."""
    from writetime.config.pipeline import load
    from writetime.events.masking import Rules
    from writetime.pipeline.batch_history import Batches
    from writetime.pipeline.quarantine.contents import hex_lines, look
    from writetime.pipeline.segment_check import known_schema

    store, cluster, _ = _place(config)
    found = _named(store, cluster, piece)
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
        hint = "--values shows them" if not values else "--all-tables shows it all the same"
        typer.echo(f"{seen.hidden} ({hint})")


@app.command("retry")
def retry_(
    config: _Config,
    pieces: Annotated[list[str] | None, typer.Argument(help="Pieces, as `list` names them.", show_default=False)] = None,
    everything: Annotated[bool, typer.Option("--all", help="All that is in quarantine and waits.")] = False,
) -> None:
    """Let the next batch try pieces again. Ends with code 1 if one of those named cannot be used yet."""
    from writetime.errors import ConfigError
    from writetime.pipeline.quarantine.retry import retry

    if bool(pieces) == everything:
        raise ConfigError("give pieces or --all", operation="retry what is in quarantine")
    store, cluster, keys = _place(config)
    waiting = (piece for piece in _pieces(store, cluster) if piece.settled_in is None and not piece.topic)
    found = list(waiting) if everything else [_named(store, cluster, name) for name in pieces or ()]
    done = retry(store, cluster, found, keys)
    for name in done.segments:
        typer.echo(f"comes in with the next batch: {name}")
    for name in done.objects:
        typer.echo(f"put as frames: {name}")
    for name, reason in done.refused.items():
        typer.echo(f"cannot be used yet: {name}: {reason}", err=True)
    if done.refused and not everything:
        raise typer.Exit(1)


@app.command("release")
def release_(
    config: _Config,
    segment: Annotated[str, typer.Argument(help="A held segment's object, as `writetime status` names it.", show_default=False)],
    reason: Annotated[str, typer.Option("--reason", help="Why; it is kept with the segment.", show_default=False)],
) -> None:
    """Give up what could not be used of a held segment, so that it holds back no purge.

    The segment moves to the archive as it is. Only a replay reads it from there: into a fresh namespace whole, into the live tables
    without what a purge may have beaten."""
    from writetime.pipeline.archiver import release

    store, cluster, _ = _place(config)
    done = release(store, cluster, segment, reason)
    typer.echo(f"released: {done.object} is archived as {done.archived_as}")


class _Everything:
    """A learner to whom all tables are captured, if that is wanted."""

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


def _pieces(store: Store, cluster: str) -> Iterator[Kept]:
    from writetime.pipeline.batch_history import Batches
    from writetime.pipeline.quarantine.contents import quarantined

    cursor = ""
    while True:
        found, cursor = quarantined(Batches(store, cluster), cursor=cursor)
        yield from found
        if not cursor:
            return


def _named(store: Store, cluster: str, name: str) -> Kept:
    from writetime.errors import ConfigError
    from writetime.pipeline.batch_history import Batches
    from writetime.pipeline.quarantine.contents import piece
    from writetime.storage.layout import quarantine_prefix

    full = name if name.startswith("quarantine/") else f"{quarantine_prefix(cluster)}{name}"
    found = piece(Batches(store, cluster), full)
    if found is None:
        raise ConfigError(
            "there is no such piece", operation="look into quarantine", obj=name, hint="`writetime quarantine list` names all."
        )
    return found


def _about(piece: Kept) -> dict[str, Any]:
    fields = {
        name: getattr(piece, name) for name in ("name", "segment", "position", "size", "kind", "message", "batch", "object", "settled_in")
    }
    return {**fields, "node": piece.node.host_id if piece.node else None, "topic": piece.topic or None}


def _place_of(piece: Kept) -> str:
    if piece.topic:
        return f"event {piece.position} of batch {piece.batch}, {piece.size} bytes, was not sent to {piece.topic}"
    return f"{piece.size} bytes at {piece.position} of {piece.object}, batch {piece.batch or 'unknown'}"
