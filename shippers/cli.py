"""The command `writetime ship`: reads the configuration, sets up log and signals, and starts the agent.

Imports the agent, and with it the drivers, only when the command runs: the command line loads this module for its help alone.
"""

from __future__ import annotations

import contextlib
import json
import logging
import signal
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from threading import Event
from typing import TYPE_CHECKING, Annotated, Any

import typer

if TYPE_CHECKING:
    from shippers import node_identity
    from writetime.config.pipeline import PipelineConfig


def ship(
    config: Annotated[Path, typer.Option("--config", "-c", help="The pipeline's YAML, with a `node` part.", show_default=False)],
    once: Annotated[
        bool, typer.Option("--once", help="One look at the folder, then end; exit code 1 if a file could not be shipped.")
    ] = False,
    drain: Annotated[
        bool, typer.Option("--drain", help="The node is stopped and will be wiped: ship its last segments too, then end like --once.")
    ] = False,
    status: Annotated[bool, typer.Option("--status", help="Show what lies in the folder, the room left, and the last look.")] = False,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Show what would be done with each file, and do nothing.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="With --status and --dry-run: JSON instead of a table.")] = False,
) -> None:
    """Ship finished segments from this node's cdc_raw into the bucket, verify them, and only then delete them here."""
    from writetime.config.pipeline import load

    if (wanted := sum((once, drain, status, dry_run))) > 1:
        raise typer.BadParameter("--once, --drain, --status and --dry-run exclude each other")
    if as_json and not (status or dry_run):
        raise typer.BadParameter("--json goes with --status or --dry-run")
    settings = load(config)
    if status:
        _show_status(settings, as_json)
    elif dry_run:
        _show_dry_run(settings, as_json)
    elif not _run(settings, once=once, drain=drain) and wanted:
        raise typer.Exit(1)


def _run(settings: PipelineConfig, *, once: bool, drain: bool) -> bool:
    from shippers import io_priority, metrics, systemd
    from shippers.agent import Agent, Mode
    from shippers.node_identity import require_node
    from writetime.storage import open_store

    node = require_node(settings)
    configure_log()
    io_priority.lower_priority(node.ship.nice)
    mode = Mode.DRAIN if drain else Mode.ONCE if once else Mode.SERVICE
    # A drain is for a stopped node: asking it would only take time.
    with _link(settings if not drain else None) as link:
        agent = Agent(settings, open_store(settings.bucket), link=link, stop=stop_on_signals())
        server = metrics.serve(node.ship.listen, agent.metrics, agent.pulse) if node.ship.listen and mode is Mode.SERVICE else None
        systemd.notify("READY=1")
        try:
            return agent.run(mode)
        finally:
            if server is not None:
                server.close()


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

    # Names are for copying: without a terminal nothing is cut to its width.
    Console(width=None if sys.stdout.isatty() else 240).print(table(document))


@contextlib.contextmanager
def _link(settings: PipelineConfig | None) -> Iterator[node_identity.Link | None]:
    """CQL to the node, if the configuration wants it asked."""
    from shippers import node_identity

    wanted = settings and node_identity.require_node(settings)
    if not wanted or not wanted.address or not wanted.connect:
        yield None
        return
    with node_identity.Link(wanted) as link:
        yield link


def stop_on_signals() -> Event:
    """An event that SIGTERM and SIGINT set; the agent finishes the file in hand."""
    stop = Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: stop.set())
    return stop


def configure_log() -> None:
    """Structured log on stderr, libraries' warnings included: lines for a person at a terminal, JSON otherwise."""
    import structlog

    stamps: list[Any] = [structlog.processors.add_log_level, structlog.processors.TimeStamper(fmt="iso", utc=True)]
    show: Any = structlog.dev.ConsoleRenderer() if sys.stderr.isatty() else structlog.processors.JSONRenderer()
    structlog.configure(processors=[*stamps, show], logger_factory=structlog.WriteLoggerFactory(file=sys.stderr))
    strip = structlog.stdlib.ProcessorFormatter.remove_processors_meta
    handler = logging.StreamHandler()
    handler.setFormatter(structlog.stdlib.ProcessorFormatter(foreign_pre_chain=stamps, processors=[strip, show]))
    logging.basicConfig(handlers=[handler], level=logging.WARNING, force=True)
