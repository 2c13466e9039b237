"""The commands `writetime batches`, `writetime batch`, `writetime void` and `writetime again`: the results of batches,
read from the bucket, and what people decide about them.

Heavy imports are delayed until a command runs, since the command line loads this module for its help."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final

import typer

if TYPE_CHECKING:
    from writetime.pipeline.documents import Sealed
    from writetime.storage.store import Store

_Config = Annotated[Path, typer.Option("--config", help="The pipeline's YAML.", show_default=False)]
_AsJson = Annotated[bool, typer.Option("--json", help="Print the documents as JSON, one per line, instead of text.")]
_Last = Annotated[int, typer.Option("--last", min=1, help="Number of latest batches.")]
_Number = Annotated[int, typer.Argument(help="Number of the batch.", min=1, show_default=False)]

_SEALED = "`writetime batches` lists those that are sealed, `writetime status` names the one that is open."


def batches(config: _Config, last: _Last = 20, as_json: _AsJson = False) -> None:
    """List the latest sealed and voided batches, with the accounting of their partition updates."""
    from writetime.pipeline.batch_report import batches_text

    store, cluster = _place(config)
    found = list(_latest(store, cluster, last))
    if as_json:
        for sealed in found:
            typer.echo(sealed.model_dump_json())
    elif found:
        typer.echo(batches_text(found))
    else:
        typer.echo("no batch is sealed yet")


def batch(number: _Number, config: _Config, as_json: _AsJson = False) -> None:
    """Show one batch: the accounting of its partition updates by table, and its problems."""
    from writetime.errors import BatchError
    from writetime.pipeline.batch_report import batch_text
    from writetime.pipeline.planner import read_sealed

    store, cluster = _place(config)
    sealed = read_sealed(store, cluster, number)
    if sealed is None:
        raise BatchError("batch is not sealed", operation="show a batch", obj=str(number), hint=_SEALED)
    typer.echo(sealed.model_dump_json() if as_json else batch_text(sealed))


def void(
    number: _Number,
    config: _Config,
    reason: Annotated[str, typer.Option("--reason", help="Why the batch cannot be finished; stored in its seal.", show_default=False)],
    namespace: Annotated[str, typer.Option("--namespace", help="The shadow namespace, if the batch is a replay into one.")] = "",
    yes: Annotated[bool, typer.Option("--yes", help="Do not ask for confirmation.")] = False,
    as_json: _AsJson = False,
) -> None:
    """Void the open batch, if it cannot be finished: the next batch reverts its commits and reads its
    input."""
    import sys

    from writetime.pipeline.batch_report import void_text
    from writetime.pipeline.planner import history, read_sealed
    from writetime.pipeline.void import expect_open
    from writetime.pipeline.void import void as seal_void

    store, cluster = _place(config, namespace)
    if read_sealed(store, cluster, number) is None:
        manifest = expect_open(store, cluster, number, history(store, cluster))
        about = f"Void batch {number} ({manifest.kind}) of {cluster}, planned {manifest.created_at:%Y-%m-%d %H:%M:%S}Z over "
        about += f"{len(manifest.segments)} segments? This cannot be undone, and its number is not used again."
        if not yes and sys.stdin.isatty():
            typer.confirm(about, abort=True, err=True)
    sealed = seal_void(store, cluster, number, reason=reason, by=user())
    assert sealed.void is not None
    if as_json:
        typer.echo(sealed.model_dump_json())
        return
    then = "the next replay into that namespace" if namespace else "the next batch (cdc_ingest)"
    typer.echo(void_text(number, sealed.void, sealed.sealed_at))
    typer.echo(f"Its commits are reverted by {then}, which reads its input.")


def made_again(
    table: Annotated[list[str], typer.Argument(help="keyspace.table; several may be given.", show_default=False)],
    config: _Config,
    rows: Annotated[bool, typer.Option("--rows", help="Only the table of current rows; no events.")] = False,
    as_json: _AsJson = False,
) -> None:
    """Let the next batch make tables again from their state: current rows, and events of all of them."""
    from writetime.errors import ConfigError
    from writetime.pipeline import again
    from writetime.pipeline.planner import history, store_clock
    from writetime.pipeline.segment_check import known_schema

    store, cluster = _place(config)
    past = history(store, cluster)
    state = past.sealed.state if past.sealed is not None else {}
    known = {each.full_name: each for each in known_schema(store, cluster).schema().tables.values() if not each.dropped}
    known = {name: each for name, each in known.items() if str(each.id) in state}
    if unknown := [name for name in table if name not in known]:
        hint = f"Known are {', '.join(sorted(known))}." if known else "No batch has taken in a table yet."
        raise ConfigError("no table with a state has this name", operation="make tables again", obj=", ".join(unknown), hint=hint)
    asked = [known[name] for name in dict.fromkeys(table)]
    now = store_clock(store, cluster)
    for request in again.ask(store, cluster, asked, since=past.last, sealed=past.sealed, with_events=not rows, by=user(), now=now):
        what = "its current rows and sends all of them as events" if request.with_events else "its current rows"
        typer.echo(request.model_dump_json() if as_json else f"{request.table}: the next batch makes {what}, from the state")


def user() -> str:
    """The user who runs the command."""
    import getpass

    try:
        return getpass.getuser()
    except (KeyError, OSError):
        return "unknown user"


def _place(config: Path, namespace: str = "") -> tuple[Store, str]:
    from writetime.config.pipeline import load
    from writetime.storage import open_store

    pipeline = load(config)
    pipeline = pipeline.shadow(namespace) if namespace else pipeline
    return open_store(pipeline.bucket), pipeline.cluster.name


def _latest(store: Store, cluster: str, count: int) -> Iterator[Sealed]:
    """The latest sealed batches, oldest first."""
    from writetime.pipeline.planner import history, read_sealed

    newest = history(store, cluster)
    last = newest.last - newest.open
    for number in range(max(1, last - count + 1), last + 1):
        sealed = read_sealed(store, cluster, number)
        if sealed is not None:
            yield sealed


COMMANDS: Final[dict[str, Callable[..., None]]] = {"batches": batches, "batch": batch, "void": void, "again": made_again}
"""Commands by name."""
