"""The command line `writetime`: the core's commands, and those that other packages add.

Strategy: a package adds a command with an entry point of the group `writetime.commands`, whose value is a
function with typer annotations, and a check of configurations with one of `writetime.checks`; the core imports no
such package. Libraries that only some commands need are imported by those commands. An error becomes one line on
stderr and an exit code: 2 for a configuration error, otherwise 1. `--debug` shows the traceback."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from importlib.metadata import EntryPoint, entry_points
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from writetime.cli import batches as batch
from writetime.cli import conflicts, quarantine, status
from writetime.cli import segments as commitlog
from writetime.cli.metrics import metrics
from writetime.errors import ConfigError, WritetimeError

if TYPE_CHECKING:
    from writetime.config.base import Problem
    from writetime.config.pipeline import PipelineConfig

CHECKS = "writetime.checks"
"""Entry points: functions from a pipeline's configuration to what their clients refuse of it (`Problem`)."""
GROUP = "writetime.commands"
_File = Annotated[Path, typer.Argument(help="The pipeline's YAML.", show_default=False)]

config_app = typer.Typer(no_args_is_help=True, help="Inspect a pipeline's configuration.")


@config_app.command("check")
def config_check(
    file: _File,
    rules: Annotated[bool, typer.Option("--rules", help="Also check that each rule of `columns` fits a table in the bucket.")] = False,
    bucket: Annotated[bool, typer.Option("--bucket", help="Also probe the bucket: rights, and conditions of writes.")] = False,
) -> None:
    """Validate a configuration. Reports the invalid key and the reason, and exits with code 2."""
    from writetime.config.pipeline import load

    config = load(file)
    if found := list(_refused(config)):
        raise ConfigError("; ".join(map(str, found)), operation="check the configuration", obj=str(file))
    if rules:
        _check_rules(file, config)
    if bucket:
        from writetime.storage import check_store, open_store

        check_store(open_store(config.bucket))
    typer.echo(f"{file}: pipeline {config.pipeline}, cluster {config.cluster.name}, bucket {config.bucket}: valid")


def _refused(config: PipelineConfig) -> Iterator[Problem]:
    """What clients refuse of a configuration, by the checks of the packages that are installed."""
    for point in entry_points(group=CHECKS):
        try:
            check = point.load()
        except ImportError as error:
            typer.echo(f"not checked here: {point.name}: {error}", err=True)
        else:
            yield from check(config)


def _check_rules(file: Path, config: PipelineConfig) -> None:
    """ConfigError if a rule of `columns` fits no column or table of the schema that the bucket has."""
    from writetime.pipeline.rule_check import unmatched_now
    from writetime.storage import open_store

    found = unmatched_now(open_store(config.bucket), config.cluster.name, config.rules)
    if found:
        raise ConfigError("; ".join(map(str, found)), operation="check the configuration", obj=str(file))
    if found is None:
        typer.echo("the rules of `columns` are not checked: no table of the cluster is known in the bucket yet", err=True)


@config_app.command("show")
def config_show(file: _File, as_json: Annotated[bool, typer.Option("--json", help="JSON instead of YAML.")] = False) -> None:
    """Print the effective configuration, with defaults, variables replaced and secrets masked."""
    import yaml

    from writetime.config.pipeline import load

    effective = load(file).model_dump(mode="json", by_alias=True)
    masked = _masked(effective)
    text = json.dumps(masked, indent=2) if as_json else yaml.safe_dump(masked, sort_keys=False, allow_unicode=True)
    typer.echo(text.rstrip())


@config_app.command("from-debezium")
def config_from_debezium(
    file: Annotated[Path, typer.Argument(help="Properties of Debezium's connector for Cassandra.", show_default=False)],
    cluster: Annotated[str, typer.Option("--cluster", help="cluster_name of the nodes.", show_default=False)],
    datacenter: Annotated[list[str], typer.Option("--datacenter", help="Datacenter that ships; may be given again.", show_default=False)],
    bucket: Annotated[str, typer.Option("--bucket", help="gs://, s3:// or a folder.", show_default=False)],
    catalog: Annotated[str, typer.Option("--catalog", help="URI of the Iceberg catalog.", show_default=False)],
    warehouse: Annotated[str, typer.Option("--warehouse", help="Where tables are stored.", show_default=False)],
) -> None:
    """Print the YAML of a pipeline like a connector of Debezium. What the YAML cannot say goes to stderr."""
    import yaml

    from writetime.config import debezium
    from writetime.config.pipeline import PipelineConfig

    given = {
        "cluster": {"name": cluster, "datacenters": datacenter},
        "bucket": bucket,
        "catalog": {"uri": catalog, "warehouse": warehouse},
        "airflow": {"mode": "session"},
    }
    found = debezium.pipeline_of(file, given)
    found.leave_out(_refused(PipelineConfig.model_validate(found.checkable())))
    typer.echo(yaml.safe_dump(found.document, sort_keys=False, allow_unicode=True).rstrip())
    for name, note in found.notes.items():
        typer.echo(f"{name}: {note.replace('`', '')}", err=True)


def build() -> typer.Typer:
    """The app with all installed commands."""
    app = typer.Typer(no_args_is_help=True, add_completion=False, pretty_exceptions_enable=False, help=_HELP)

    @app.callback()
    def options(debug: Annotated[bool, typer.Option("--debug", help="Show the traceback of an error.")] = False) -> None:
        """Declare the option for the help; `main` handles it."""

    app.add_typer(config_app, name="config")
    app.add_typer(quarantine.app, name="quarantine")
    app.add_typer(conflicts.app, name="conflicts")
    for name, command in (commitlog.COMMANDS | batch.COMMANDS | status.COMMANDS).items():
        app.command(name)(command)
    app.command("metrics")(metrics)
    for point in sorted(entry_points(group=GROUP), key=lambda point: point.name):
        _add(app, point)
    return app


def main(arguments: list[str] | None = None) -> int:
    """Run the command line and return the exit code. The entry point of the console script."""
    arguments = sys.argv[1:] if arguments is None else arguments
    try:
        build()(args=arguments, prog_name="writetime", standalone_mode=True)
    except SystemExit as end:
        return end.code if isinstance(end.code, int) else 1
    except WritetimeError as error:
        if "--debug" in arguments:
            raise
        typer.echo(f"writetime: {error}", err=True)
        return 2 if isinstance(error, ConfigError) else 1
    return 0


_HELP = "Change data capture for Apache Cassandra."


def _add(app: typer.Typer, point: EntryPoint) -> None:
    """Add another package's command. If its libraries are missing, only that command fails."""
    try:
        app.command(point.name)(point.load())
    except ImportError as error:
        cause = error

        def unavailable() -> None:
            raise ConfigError(f"command cannot be loaded: {cause}", operation="run a command", obj=point.name) from cause

        anything = {"ignore_unknown_options": True, "allow_extra_args": True}
        app.command(point.name, context_settings=anything, help=f"Not available here: {cause}.")(unavailable)


def _masked(value: Any, key: str = "") -> Any:
    """Mask secrets: pydantic masks declared ones; free-form options and URIs are masked by name and
    format."""
    from writetime.config.base import is_secret
    from writetime.errors import MASK, without_secrets

    if isinstance(value, dict):
        return {name: _masked(item, str(name)) for name, item in value.items()}
    if isinstance(value, list):
        return [_masked(item, key) for item in value]
    if is_secret(key) and value not in (None, ""):
        return MASK
    return without_secrets(value) if isinstance(value, str) else value
