"""The command `writetime ship`: reads the configuration, sets up log and signals, and starts the agent.

Imports the agent, and with it the drivers, only when the command runs: the command line loads this module for its help alone.
"""

from __future__ import annotations

import logging
import signal
import sys
from pathlib import Path
from threading import Event
from typing import Annotated, Any

import typer


def ship(
    config: Annotated[Path, typer.Option("--config", "-c", help="The pipeline's YAML, with a `node` part.", show_default=False)],
    once: Annotated[
        bool, typer.Option("--once", help="One look at the folder, then end; exit code 1 if a file could not be shipped.")
    ] = False,
    drain: Annotated[
        bool, typer.Option("--drain", help="The node is stopped and will be wiped: ship its last segments too, then end like --once.")
    ] = False,
) -> None:
    """Ship finished segments from this node's cdc_raw into the bucket, verify them, and only then delete them here."""
    from shippers import gentle, node, seen
    from shippers.agent import Agent, Mode
    from writetime.config import load
    from writetime.store import open_store

    if once and drain:
        raise typer.BadParameter("--once and --drain exclude each other")
    settings = load(config)
    wanted = node.require_node(settings)
    configure_log()
    gentle.lower_priority(wanted.ship.nice)
    mode = Mode.DRAIN if drain else Mode.ONCE if once else Mode.SERVICE
    # A drain is for a stopped node: asking it would only take time.
    link = node.Link(wanted) if wanted.address and wanted.connect and not drain else None
    agent = Agent(settings, open_store(settings.bucket), link=link, stop=stop_on_signals())
    server = seen.serve(wanted.ship.listen, agent.metrics, agent.pulse) if wanted.ship.listen and mode is Mode.SERVICE else None
    try:
        done = agent.run(mode)
    finally:
        if server is not None:
            server.close()
        if link is not None:
            link.close()
    if mode is not Mode.SERVICE and not done:
        raise typer.Exit(1)


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
