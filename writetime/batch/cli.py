"""The commands `writetime batches` and `writetime batch`: what became of what came in, read from the bucket.

Heavy imports wait for a command to run: the command line loads this module for its help alone."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final

import typer

if TYPE_CHECKING:
    from writetime.batch.documents import Sealed
    from writetime.store import Store

_Config = Annotated[Path, typer.Option("--config", help="The pipeline's YAML.", show_default=False)]
_AsJson = Annotated[bool, typer.Option("--json", help="The documents as JSON, one a line, instead of text for people.")]
_Last = Annotated[int, typer.Option("--last", min=1, help="How many of the latest batches.")]
_Number = Annotated[int, typer.Argument(help="Number of the batch.", min=1, show_default=False)]


def batches(config: _Config, last: _Last = 20, as_json: _AsJson = False) -> None:
    """List the latest sealed batches: where all partition updates of each went."""
    from writetime.batch.report import batches_text

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
    """Show one batch: where its partition updates went table by table, and what it could not use."""
    from writetime.batch.plan import read_sealed
    from writetime.batch.report import batch_text
    from writetime.errors import BatchError

    store, cluster = _place(config)
    sealed = read_sealed(store, cluster, number)
    if sealed is None:
        raise BatchError("it is not sealed", operation="show a batch", obj=str(number), hint="`writetime batches` lists those that are.")
    typer.echo(sealed.model_dump_json() if as_json else batch_text(sealed))


def _place(config: Path) -> tuple[Store, str]:
    from writetime.config import load
    from writetime.store import open_store

    pipeline = load(config)
    return open_store(pipeline.bucket), pipeline.cluster.name


def _latest(store: Store, cluster: str, count: int) -> Iterator[Sealed]:
    """Sealed batches, the oldest of them first."""
    from writetime.batch.plan import history, read_sealed

    newest = history(store, cluster).sealed
    if newest is None:
        return
    for number in range(max(1, newest.number - count + 1), newest.number + 1):
        sealed = read_sealed(store, cluster, number)
        if sealed is not None:
            yield sealed


COMMANDS: Final[dict[str, Callable[..., None]]] = {"batches": batches, "batch": batch}
"""What the command line takes in, by name."""
