"""The command `writetime ship`: reads the configuration, sets up logging and signals, and starts the agent.

Imports the agent and the drivers only when the command runs: the command line also loads this module for
`--help`.
"""

from __future__ import annotations

import contextlib
import io
import json
import signal
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

if TYPE_CHECKING:
    from shippers import node_identity
    from writetime.config.pipeline import PipelineConfig


def ship(
    config: Annotated[Path, typer.Option("--config", "-c", help="The pipeline's YAML, with a `node` section.", show_default=False)],
    once: Annotated[bool, typer.Option("--once", help="Run one round, then exit; exit code 1 if a file could not be shipped.")] = False,
    drain: Annotated[
        bool, typer.Option("--drain", help="Ship the last segments of a stopped node too, before it is wiped; then exit like --once.")
    ] = False,
    status: Annotated[bool, typer.Option("--status", help="Show the files in the folder, the free space and the last scan.")] = False,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Show the planned action for each file without executing it.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="With --status or --dry-run: print JSON instead of a table.")] = False,
) -> None:
    """Upload completed segments from this node's cdc_raw to the bucket, verify them, then delete them
    locally.
    """
    from writetime.config.pipeline import load

    if (wanted := sum((once, drain, status, dry_run))) > 1:
        raise typer.BadParameter("--once, --drain, --status and --dry-run are mutually exclusive")
    if as_json and not (status or dry_run):
        raise typer.BadParameter("--json requires --status or --dry-run")
    settings = load(config)
    if status:
        _show_status(settings, as_json)
    elif dry_run:
        _show_dry_run(settings, as_json)
    elif not _run(settings, once=once, drain=drain) and wanted:
        raise typer.Exit(1)


def _run(settings: PipelineConfig, *, once: bool, drain: bool) -> bool:
    from shippers import io_priority, log, metrics, systemd
    from shippers.agent import Agent, Mode
    from shippers.node_identity import require_node
    from writetime.signals import stop_on
    from writetime.storage import open_store

    node = require_node(settings)
    log.configure()
    io_priority.lower_priority()
    mode = Mode.DRAIN if drain else Mode.ONCE if once else Mode.SERVICE
    # A drained node is stopped: connecting to it would only take time.
    with _link(settings if not drain else None) as link:
        agent = Agent(settings, open_store(settings.bucket), link=link, stop=stop_on(signal.SIGTERM, signal.SIGINT))
        serving = metrics.Serving(node.ship.listen, agent.metrics, agent.pulse) if node.ship.listen and mode is Mode.SERVICE else None
        try:
            with systemd.watched(lambda: agent.pulse.alive):
                return agent.run(mode)
        finally:
            if serving is not None:
                serving.close()


def _show_status(settings: PipelineConfig, as_json: bool) -> None:
    from shippers.status import status, status_table

    document = status(settings)
    _print(document, as_json, status_table)


def _show_dry_run(settings: PipelineConfig, as_json: bool) -> None:
    from shippers.status import dry_run, dry_run_table
    from writetime.storage import open_store

    with _link(settings) as link:
        plans = dry_run(settings, open_store(settings.bucket), link)
    _print(plans, as_json, dry_run_table)


def _print(document: Any, as_json: bool, table: Callable[[Any], Any]) -> None:
    if as_json:
        typer.echo(json.dumps(document, indent=2))
        return
    from rich.console import Console

    # A file's name may be no text in the terminal's encoding.
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="backslashreplace")
    # File names must stay copyable: without a terminal, do not cut lines to its width.
    Console(width=None if sys.stdout.isatty() else 240).print(table(document))


@contextlib.contextmanager
def _link(settings: PipelineConfig | None) -> Iterator[node_identity.Link | None]:
    """A CQL connection to the node, if configured."""
    from shippers import node_identity

    wanted = settings and node_identity.require_node(settings)
    if not wanted or not wanted.address or not wanted.connect:
        yield None
        return
    with node_identity.Link(wanted) as link:
        yield link
