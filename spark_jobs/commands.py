"""The commands `writetime bootstrap`, `rebuild`, `erase`, `registry`, `history`, `verify-tables` and `audit`. Spark and the driver
are imported when a command runs, because the command line loads this module for its help, too."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, cast, get_args

import typer

if TYPE_CHECKING:
    from writetime.config.pipeline import PipelineConfig
    from writetime.pipeline.bootstrap.run import Run
    from writetime.pipeline.chains import Rebuild
    from writetime.pipeline.documents import Sealed


def bootstrap(
    config: Annotated[Path, typer.Option("--config", "-c", help="The pipeline's YAML, with `cluster.cql`.", show_default=False)],
    table: Annotated[list[str] | None, typer.Option("--table", help="keyspace.table; may be given several times.")] = None,
    token_range: Annotated[str, typer.Option("--token-range", help="Only tokens > A and <= B.", metavar="A:B")] = "",
    due: Annotated[bool, typer.Option("--due", help="The tables that are due, by snapshot.mode.")] = False,
    incomplete_rows: Annotated[bool, typer.Option("--touched", help="Read incomplete rows again.")] = False,
    status: Annotated[bool, typer.Option("--status", help="Only show the runs so far.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Runs as JSON, one a line.")] = False,
) -> None:
    """Read tables from the cluster while they are in use; the next batch ingests what is new. Resumes
    unfinished runs."""
    from writetime.config.pipeline import load
    from writetime.errors import ConfigError
    from writetime.pipeline.bootstrap import run as runs
    from writetime.storage import open_store

    settings = load(config)
    if status:
        found = list(runs.runs(open_store(settings.bucket), settings.cluster.name))
        made = [run for run in found if not table or f"{run.keyspace}.{run.table}" in table]
    elif not (table or due or incomplete_rows):
        raise ConfigError("no table was selected", operation="run a command", obj="bootstrap", hint="Give --table, --due or --touched.")
    else:
        part = runs.part_of(table or [], token_range)
        made = _read(settings, table or [], part, due=due, incomplete_rows=incomplete_rows, quiet=as_json)
    for run in made:
        typer.echo(run.model_dump_json() if as_json else run.line())


def _read(
    settings: PipelineConfig, tables: list[str], part: tuple[int, int] | None, *, due: bool, incomplete_rows: bool, quiet: bool
) -> list[Run]:
    from spark_jobs import bootstrap as job

    if quiet:
        return job.run(settings, tables=tables, part=part, due=due, incomplete_rows=incomplete_rows)
    with _bars() as notify:
        return job.run(settings, tables=tables, part=part, due=due, incomplete_rows=incomplete_rows, notify=notify)


@contextmanager
def _bars() -> Iterator[Callable[[Run], None]]:
    """One progress bar per table, counting its ranges; without a terminal only the final lines."""
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TextColumn("ranges"), TimeElapsedColumn())
    with Progress(*columns, console=Console(stderr=True), transient=True) as progress:
        bars: dict[str, object] = {}

        def notify(run: Run) -> None:
            about = f"{run.keyspace}.{run.table}: {run.rows} rows, {run.frames} news"
            if run.run not in bars:
                bars[run.run] = progress.add_task(about, total=len(run.ranges))
            progress.update(bars[run.run], description=about, completed=len(run.ranges) - run.remaining)  # type: ignore[arg-type]

        yield notify


def rebuild(
    config: Annotated[Path, typer.Option("--config", "-c", help="The pipeline's YAML.", show_default=False)],
    topics: Annotated[str | None, typer.Option("--topics", help="Publish all events again, under this prefix.", metavar="PREFIX")] = None,
    partial: Annotated[bool, typer.Option("--partial", help="Continue without segments that are missing from the archive.")] = False,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask for confirmation.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="The rebuild's document as JSON.")] = False,
) -> None:
    """Build state and tables again from the archive, as a new chain of batches. Resumes an unfinished
    rebuild."""
    from spark_jobs import rebuild as job
    from writetime.config.pipeline import load
    from writetime.pipeline import chains
    from writetime.storage import open_store

    settings = load(config)
    going_on = chains.unfinished(open_store(settings.bucket), settings.cluster.name) is not None
    if not going_on and not yes:
        text = "This makes the state and all warehouse tables of the pipeline again from the archive. Go on?"
        typer.confirm(text, abort=True, err=True)
    if as_json:
        typer.echo(job.run(settings, topics=topics, partial=partial).model_dump_json())
        return
    with _rebuild_bar() as notify:
        done = job.run(settings, topics=topics, partial=partial, notify=notify)
    typer.echo(chains.text(done))


@contextmanager
def _rebuild_bar() -> Iterator[Callable[[Rebuild, int, Sealed], None]]:
    """A progress bar of segments on a terminal, else one line per batch."""
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

    console = Console(stderr=True)
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TextColumn("segments"), TimeElapsedColumn())
    with Progress(*columns, console=console, transient=True, disable=not console.is_terminal) as progress:
        bar = progress.add_task("rebuild", total=None)

        def notify(found: Rebuild, done: int, sealed: Sealed) -> None:
            progress.update(bar, description=f"batch {sealed.number}", completed=done, total=found.segments)
            if not console.is_terminal:
                typer.echo(f"batch {sealed.number}: {done} of {found.segments} segments, {sealed.events} events", err=True)

        yield notify


def erase(
    table: Annotated[str, typer.Argument(help="keyspace.table, as in CQL.", show_default=False)],
    config: Annotated[Path, typer.Option("--config", "-c", help="The pipeline's YAML.", show_default=False)],
    key: Annotated[str, typer.Option("--key", help="JSON: all columns of the partition key, or of the primary key.", show_default=False)],
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Erase. Without it, the key is only searched for.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print the result as JSON.")] = False,
) -> None:
    """Erase all data of a key that is deleted in the cluster: archive, state, tables, quarantine. Exit code 1
    if data remains."""
    from spark_jobs import erase as job
    from writetime.cli.batches import user
    from writetime.config.pipeline import load
    from writetime.pipeline.erase import outcome_text

    outcome = job.run(load(config), table, key, by=user(), yes=yes)
    typer.echo(outcome.model_dump_json() if as_json else outcome_text(outcome))
    if outcome.done and outcome.again:
        raise typer.Exit(1)


def registry(
    config: Annotated[Path, typer.Option("--config", "-c", help="The pipeline's YAML, with Avro.", show_default=False)],
    restore: Annotated[bool, typer.Option("--restore", help="Register what is missing again, under the same ids.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Ids, subjects and what is wrong as JSON.")] = False,
) -> None:
    """Compare the schema registry with the ids that records of the topics have. Exit code 1 if one of them means something
    else, or nothing."""
    from spark_jobs import publish as job
    from writetime.config.pipeline import load
    from writetime.errors import ConfigError
    from writetime.storage import open_store

    settings = load(config)
    if settings.kafka is None or settings.kafka.format != "avro":
        raise ConfigError("it has no registry", operation="run a command", obj="registry", hint="Set `kafka.format: avro` and its URL.")
    with job.opened_registry(settings, settings.kafka, open_store(settings.bucket), check=False) as asked:
        if restore and (restored := asked.restore()):
            typer.echo(f"registered again: {', '.join(map(str, restored))}", err=True)
        lost = asked.lost()
    found = [{"id": number, "subjects": each.subjects, "lost": lost.get(number)} for number, each in asked.used.items()]
    lines = [f"{number:>8}  {lost.get(number, 'right')}  {', '.join(each.subjects)}" for number, each in asked.used.items()]
    typer.echo(json.dumps(found) if as_json else "\n".join(lines or ["no records with schema ids are known"]))
    if lost:
        raise typer.Exit(1)


# --- commands that only look


def history(
    table: Annotated[str, typer.Argument(help="keyspace.table, as in CQL.", show_default=False)],
    config: Annotated[Path, typer.Option("--config", "-c", help="The pipeline's YAML.", show_default=False)],
    batch: Annotated[int | None, typer.Option("--batch", help="Only the snapshot that is the table after this batch.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Snapshots as JSON, one a line.")] = False,
) -> None:
    """Show which snapshots are a table as it was after its batches. Exit code 1 if none is the table after `--batch`."""
    from spark_jobs import table_history as job
    from writetime.config.pipeline import load

    states = job.run(load(config), table)
    if batch is None:
        for state in states:
            typer.echo(state.model_dump_json() if as_json else state.text)
        return
    found = job.after(states, batch)
    text = f"{found.snapshot}" if found.exact else f"none; the last one before: {found.snapshot}"
    typer.echo(found.model_dump_json() if as_json else text)
    if not found.exact:
        raise typer.Exit(1)


def verify_tables(
    config: Annotated[Path, typer.Option("--config", "-c", help="The pipeline's YAML, with `cluster.cql`.", show_default=False)],
    table: Annotated[list[str] | None, typer.Option("--table", help="keyspace.table; may be given several times; default: all.")] = None,
    share: Annotated[float, typer.Option("--share", help="Share of the token ranges to compare.")] = 1.0,
    seed: Annotated[int, typer.Option("--seed", help="Seed for the selection of ranges.")] = 0,
    token_range: Annotated[str, typer.Option("--token-range", help="Only tokens > A and <= B.", metavar="A:B")] = "",
    due: Annotated[
        bool,
        typer.Option("--due", help="Tables that were never compared completely, and the next share of the others (snapshot.verify_share)."),
    ] = False,
    wait: Annotated[float, typer.Option("--wait", help="Seconds to wait until what differs can be judged.")] = 0.0,
    at_rest: Annotated[
        bool, typer.Option("--at-rest", help="No writes are in progress and all segments are ingested: every difference is drift.")
    ] = False,
    values: Annotated[bool, typer.Option("--values", help="Include the values of rows that differ in the report.")] = False,
    topics: Annotated[
        bool,
        typer.Option("--topics", help="Also compare the last record of each key in the topics with the tables, for that share."),
    ] = False,
    as_json: Annotated[bool, typer.Option("--json", help="The report as JSON.")] = False,
) -> None:
    """Compare the current-row tables with the cluster: values, writetimes, expiries. Exit code 1 if rows
    drift."""
    from spark_jobs import verify as job
    from writetime.config.pipeline import load
    from writetime.pipeline import verification
    from writetime.pipeline.bootstrap.run import parse_part

    part = parse_part(token_range) if token_range else None
    report = job.run(load(config), job.Options(table or [], share, seed, part, wait, at_rest, values, topics, due))
    text = report.model_dump_json() if as_json else verification.report_text(report, str(config))
    _print_report(text, report.name, ok=report.ok)


def audit(
    config: Annotated[Path, typer.Option("--config", "-c", help="The pipeline's YAML.", show_default=False)],
    start: Annotated[str, typer.Option("--start", help="First minute, such as 2026-01-31T10:00Z.", show_default=False)],
    end: Annotated[str, typer.Option("--end", help="End, excluded.", show_default=False)],
    late: Annotated[int, typer.Option("--late", help="Hours that hints and shippers may take.")] = 3,
    ranges: Annotated[int, typer.Option("--ranges", help="Token ranges to distinguish.")] = 16,
    reread: Annotated[str, typer.Option("--reread", help="alarms, gaps: read their token ranges again from the ring, at ALL.")] = "none",
    most: Annotated[int, typer.Option("--most", help="Maximum number of token ranges to read again.")] = 64,
    as_json: Annotated[bool, typer.Option("--json", help="The report as JSON.")] = False,
) -> None:
    """Compare each replica's log with what it should contain. Exit code 1 if a gap is unexplained."""
    from spark_jobs import audit as job
    from writetime.config.pipeline import load
    from writetime.errors import ConfigError
    from writetime.pipeline import audit

    if reread not in get_args(audit.Which):
        raise ConfigError("is none of: none, alarms, gaps", operation="run a command", obj=f"--reread {reread}")
    asked = job.Rereading(cast(audit.Which, reread), most)
    report = job.run(load(config), start, end, late=late, ranges=ranges, reread=asked)
    _print_report(report.model_dump_json() if as_json else audit.report_text(report), report.name, ok=report.ok)


def _print_report(text: str, name: str, *, ok: bool) -> None:
    typer.echo(text)
    typer.echo(f"report: {name}", err=True)
    if not ok:
        raise typer.Exit(1)
