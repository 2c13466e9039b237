"""The command `writetime metrics`: the pipeline's metrics as text in Prometheus' format.

Heavy imports are delayed until the command runs, since the command line loads this module for its help."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from writetime.cli.status import batches_of


def metrics(
    config: Annotated[Path, typer.Option("--config", help="The pipeline's YAML.", show_default=False)],
    output: Annotated[Path | None, typer.Option("--output", help="Write to this file, atomically, instead of stdout.")] = None,
) -> None:
    """Print the pipeline's metrics for Prometheus, in the format of node_exporter's textfile collector."""
    from writetime.config.pipeline import load
    from writetime.monitoring.metrics import as_text, samples

    pipeline = load(config)
    session = pipeline.airflow.mode == "session"
    text = as_text(samples(batches_of(pipeline), session=session, rules=pipeline.rules))
    if output is None:
        typer.echo(text, nl=False)
        return
    fresh = output.with_name(f".{output.name}.new")
    fresh.write_text(text, encoding="utf-8")
    fresh.replace(output)
