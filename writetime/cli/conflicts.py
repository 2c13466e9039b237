"""The commands `writetime conflicts list | keep`: segments for which different bytes were shipped.

Heavy imports are delayed until a command runs, since the command line loads this module for its help."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

if TYPE_CHECKING:
    from writetime.pipeline.conflicts import Conflict
    from writetime.storage.store import ObjectInfo, Store

_Config = Annotated[Path, typer.Option("--config", "-c", help="The pipeline's YAML.", show_default=False)]

app = typer.Typer(no_args_is_help=True, help="List segments for which different bytes were shipped, and choose which to keep.")


@app.command("list")
def list_(
    config: _Config, as_json: Annotated[bool, typer.Option("--json", help="Print JSON, one segment per line, instead of text.")] = False
) -> None:
    """List segments in conflict, with the objects to choose from."""
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
            # The name has a line of its own, so that it can be copied.
            typer.echo(f"    {each['object']}\n        {each['size']} bytes, CRC32C {each['crc32c']}, written {each['created']}")
    if not found and not as_json:
        typer.echo("no segment is in conflict")


@app.command()
def keep(
    config: _Config,
    object_: Annotated[str, typer.Argument(metavar="OBJECT", help="The object to keep, as `list` names it.", show_default=False)],
    reason: Annotated[str, typer.Option("--reason", help="Reason; stored with the decision.", show_default=False)],
) -> None:
    """Choose which bytes of a segment to keep: the next batch reads them. The others are moved to rejected/.

    If the archive has the chosen bytes, nothing is read again. Rows that a batch has read from other bytes
    remain in the tables."""
    from writetime.pipeline.conflicts import keep as decide

    store, cluster = _place(config)
    done = decide(store, cluster, object_, reason)
    typer.echo(f"resolved: {done.object} has {done.kept[0] if done.kept else 0} bytes; its other bytes are under rejected/")


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
