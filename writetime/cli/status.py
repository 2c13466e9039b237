"""The commands `writetime status` (health, nodes, last batches and tables) and `writetime cost`, as text or as one
JSON document.

Heavy imports are delayed until the command runs, since the command line loads this module for its help."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final

import typer

if TYPE_CHECKING:
    from writetime.config.pipeline import PipelineConfig
    from writetime.pipeline.batch_history import Batches

_Config = Annotated[Path, typer.Option("--config", help="The pipeline's YAML.", show_default=False)]
_AsJson = Annotated[bool, typer.Option("--json", help="Print one JSON document instead of text.")]
_Last = Annotated[int, typer.Option("--last", min=1, max=2000, help="Number of latest batches.")]


def status(config: _Config, last: _Last = 60, as_json: _AsJson = False) -> None:
    """Show the health and lag of each table, nodes and their freshness, waiting segments, and batches."""
    from writetime.config.pipeline import load
    from writetime.monitoring.health import Expected
    from writetime.monitoring.status import as_document, as_text

    pipeline = load(config)
    batches, expected = batches_of(pipeline), Expected.of(pipeline, str(config))
    typer.echo(json.dumps(as_document(batches, last, expected), indent=1) if as_json else as_text(batches, last, expected))


def cost(
    config: _Config,
    days: Annotated[int, typer.Option("--days", min=1, max=366, help="Number of days, today included.")] = 7,
    as_json: _AsJson = False,
) -> None:
    """Show what the pipeline cost, by day, stage and table: CPU seconds, bytes, objects, requests."""
    from writetime.monitoring.cost_report import as_document, as_text
    from writetime.pipeline.costs import costs

    found = costs(open_batches(config), days=days)
    typer.echo(json.dumps(as_document(found), indent=1) if as_json else as_text(found))


def open_batches(config: Path) -> Batches:
    """The batches of the pipeline that a YAML describes."""
    from writetime.config.pipeline import load

    return batches_of(load(config))


def batches_of(pipeline: PipelineConfig) -> Batches:
    """The batches of a pipeline."""
    from writetime.pipeline.batch_history import Batches
    from writetime.storage import open_store

    return Batches(open_store(pipeline.bucket), pipeline.cluster.name)


COMMANDS: Final[dict[str, Callable[..., None]]] = {"status": status, "cost": cost}
"""Commands by name."""
