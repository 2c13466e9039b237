"""The commands `writetime conflicts list | keep`: segments of which the bucket has, or had, other bytes.

Heavy imports wait for a command to run: the command line loads this module for its help alone."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

if TYPE_CHECKING:
    from writetime.pipeline.conflicts import Conflict
    from writetime.storage.store import ObjectInfo, Store

_Config = Annotated[Path, typer.Option("--config", "-c", help="The pipeline's YAML.", show_default=False)]

app = typer.Typer(no_args_is_help=True, help="See segments of which there are other bytes, and decide which of them count.")


@app.command("list")
def list_(
    config: _Config, as_json: Annotated[bool, typer.Option("--json", help="JSON, a segment a line, instead of text for people.")] = False
) -> None:
    """List segments in conflict, and for each the objects of which one can be kept."""
    from writetime.pipeline.conflicts import candidates, undecided

    store, cluster = _place(config)
    found = [(conflict, candidates(store, conflict)) for conflict in undecided(store, cluster)]
    for conflict, objects in found:
        if as_json:
            typer.echo(json.dumps(_about(conflict, objects)))
            continue
        typer.secho(conflict.object, bold=True)
        typer.echo(f"    found {conflict.found_at:%Y-%m-%d %H:%M:%S}Z")
        for each in _about(conflict, objects)["objects"]:
            # A name is there to be copied: it stands whole, in a line of its own.
            typer.echo(f"    {each['object']}\n        {each['size']} bytes, CRC32C {each['crc32c']}, written {each['created']}")
    if not found and not as_json:
        typer.echo("no segment is in conflict")


@app.command()
def keep(
    config: _Config,
    object_: Annotated[str, typer.Argument(metavar="OBJECT", help="The object whose bytes count, as `list` names it.", show_default=False)],
    reason: Annotated[str, typer.Option("--reason", help="Why; it is kept with the decision.", show_default=False)],
) -> None:
    """Decide which bytes of a segment count: the next batch takes them in. The others move to rejected/ and stay there.

    If the archive holds those that count, nothing comes in. What a batch has taken in of other bytes before stays in the tables."""
    from writetime.pipeline.conflicts import keep as decide

    store, cluster = _place(config)
    done = decide(store, cluster, object_, reason)
    typer.echo(f"decided: {done.object} has {done.kept[0] if done.kept else 0} bytes; other bytes of it lie under rejected/")


def _about(conflict: Conflict, objects: list[ObjectInfo]) -> dict[str, Any]:
    from writetime.storage.segment_object import content_of

    return {
        "segment": conflict.object,
        "found_at": conflict.found_at.isoformat(),
        "objects": [
            {"object": info.name, "size": size, "crc32c": f"{crc32c:08x}", "created": info.created.isoformat()}
            for info in objects
            for size, crc32c in [content_of(info)]
        ],
    }


def _place(config: Path) -> tuple[Store, str]:
    from writetime.config.pipeline import load
    from writetime.storage import open_store

    pipeline = load(config)
    return open_store(pipeline.bucket), pipeline.cluster.name
