"""The commands `writetime dump`, `verify` and `schema`, which read commit log segments.

Strategy: segments are read one at a time, in two passes: first for the schema, which is merged from all of
them, then for the output. Only output goes to stdout; errors go to stderr, one line each, with a count at the
end. Damage does not stop reading. Exit codes: 0 success, 1 a file could not be read (verify: or is damaged),
2 usage error, 3 something did not decode.

Must not know the segment format; `dump`, `show` and the schema package do. Heavy imports are delayed until a
command runs, since the command line loads this module for its help."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from functools import wraps
from typing import Annotated, Any, Final

import typer

from writetime.errors import WritetimeError

Paths = Annotated[
    list[str],
    typer.Argument(
        metavar="PATH...",
        help="Segments: files, folders (searched recursively), gs://bucket/… objects or prefixes.",
        show_default=False,
    ),
]
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON instead of text.")]
Schemas = Annotated[
    list[str] | None,
    typer.Option(
        "--schema",
        help="A schema snapshot, or a schema that a batch wrote: JSON files or objects, applied before the log.",
        show_default=False,
    ),
]
KeystoreFile = Annotated[
    str | None,
    typer.Option(
        "--keystore", help="Java keystore for encrypted segments; its password in WRITETIME_KEYSTORE_PASSWORD.", show_default=False
    ),
]
EngineName = Annotated[str, typer.Option("--engine", help="Reader of the segments: auto, python or numba.")]

UNREADABLE: Final = 1


def _command(*, cut_short: int = 0) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Make a command exit with code `cut_short`, without an error message, if stdout is closed (`| head`)."""

    def decorate(run: Callable[..., None]) -> Callable[..., None]:
        @wraps(run)
        def wrapped(*args: Any, **kwargs: Any) -> None:
            for stream in (sys.stdout, sys.stderr):
                # Column names may be invalid UTF-8; JSON escapes keep their bytes.
                if hasattr(stream, "reconfigure"):
                    stream.reconfigure(encoding="utf-8", errors="backslashreplace")
            try:
                run(*args, **kwargs)
                sys.stdout.flush()
            except BrokenPipeError:
                _close_stdout()
                raise typer.Exit(cut_short) from None
            except OSError as error:
                # Reading raises its own errors (`inputs`), so this one is from writing, for example to a full
                # disk.
                _close_stdout()
                raise WritetimeError(error.strerror or str(error), operation="write the answer", obj="stdout") from error

        return wrapped

    return decorate


def _close_stdout() -> None:
    # Otherwise Python flushes stdout at exit and reports an error.
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _rules(config: str) -> Any:
    from writetime.config.pipeline import load

    return load(config).columns.rules


@_command()
def dump(
    paths: Paths,
    as_json: AsJson = False,
    table: Annotated[
        list[str] | None, typer.Option("--table", help="Only this table: keyspace.name or its id; may be repeated.", show_default=False)
    ] = None,
    key: Annotated[
        list[str] | None,
        typer.Option("--key", help="Only this partition: 42, text, 'a':1 for a composite key, or 0x and bytes in hex.", show_default=False),
    ] = None,
    all_tables: Annotated[bool, typer.Option("--all-tables", help="Include tables without cdc and system tables.")] = False,
    schema: Schemas = None,
    synced: Annotated[bool, typer.Option("--synced", help="Stop a growing segment at the position in its _cdc.idx.")] = False,
    strict: Annotated[bool, typer.Option("--strict", help="Exit with code 3 if anything could not be read or decoded.")] = False,
    keystore: KeystoreFile = None,
    engine: EngineName = "auto",
    config: Annotated[
        str | None,
        typer.Option("--config", help="The pipeline's YAML: columns that it masks or omits are not shown.", show_default=False),
    ] = None,
    unmasked: Annotated[bool, typer.Option("--unmasked", help="Show masked and omitted columns too.")] = False,
) -> None:
    """Print the mutations of segments.

    Without --all-tables, only updates of tables that have or had cdc are shown. Errors are reported on stderr with their
    position. Exit codes: 0: success, except for errors on stderr. 1: a file cannot be read. 2: usage error. 3: with
    --strict, something is damaged or does not decode; without it, nothing decodes.
    """
    from writetime.cassandra.commitlog.mutation_json import Failure
    from writetime.cassandra.commitlog.mutation_text import mutation_writer
    from writetime.cassandra.commitlog.update_filter import select
    from writetime.cli.segment_log import Log, Options
    from writetime.events.masking import Hiding, Rules

    log = Log(paths, Options(tuple(schema or ()), synced=synced, keystore=keystore, engine=engine))
    log.learn()
    known, cdc_ever = log.learner.schema(), log.learner.cdc_ever
    selection = select(known, cdc_ever, tables=table or (), keys=key or (), all_tables=all_tables)
    show = mutation_writer(known, cdc_ever, as_json=as_json)
    hiding = Hiding(Rules() if config is None or unmasked else _rules(config), known)
    decoded_any, shown = False, 0
    for each, found in log.scans():
        for frame, decoded in log.decode(each, found, known, None if selection.is_everything else selection):
            if isinstance(decoded, Failure):
                log.failed(each, decoded)
                continue
            decoded_any = True
            if (visible := hiding.mutation(decoded)) is not None:
                shown += 1
                show(each.name, found, frame, visible)
    show.flush()
    log.summarize(f"mutations: {shown}", selection.left_out_as_text(), hiding.summary())
    log.end(strict=strict, nothing=not decoded_any)


@_command(cut_short=UNREADABLE)
def verify(
    paths: Paths,
    as_json: AsJson = False,
    schema: Schemas = None,
    keystore: KeystoreFile = None,
    engine: EngineName = "auto",
) -> None:
    """Read and decode segments completely, and report their contents and errors.

    A segment that its node still writes to is read up to the position in its _cdc.idx. --json prints one line
    per segment. Exit codes: 0: no errors. 1: a segment is damaged, or a file cannot be read. 2: usage error.
    3: no damage, but some frames do not decode, because the schema of their tables or columns is unknown."""
    from writetime.cassandra.commitlog.segment_report import examine
    from writetime.cli.segment_log import Log, Options
    from writetime.cli.segment_tables import reporter

    log = Log(paths, Options(tuple(schema or ()), synced=True, keystore=keystore, engine=engine))
    log.learn()
    known, cdc_ever = log.learner.schema(), log.learner.cdc_ever
    report = reporter(as_json=as_json)
    for each, found in log.scans():
        findings = examine(each.where, found, each.read_idx(), log.decode(each, found, known), known, cdc_ever)
        for failure in findings.failures:
            log.failed(each, failure)
        report(findings)
    for unreadable in log.unreadable:
        report(unreadable)
    report.end()
    log.summarize()
    if log.lost:
        raise typer.Exit(UNREADABLE)
    log.end(strict=True)


@_command()
def schema(
    paths: Paths,
    as_json: AsJson = False,
    at: Annotated[
        str | None, typer.Option("--at", help="The schema at SEGMENT:POSITION; a segment's id or name.", show_default=False)
    ] = None,
    all_tables: Annotated[bool, typer.Option("--all-tables", help="Include system keyspaces.")] = False,
    schema: Schemas = None,
    keystore: KeystoreFile = None,
    engine: EngineName = "auto",
) -> None:
    """Print the schema in segments as CQL: each change with its position, then the resulting schema.

    Truncations and the metadata of the node and its peers follow as comments. Exit codes: 1 if a file cannot
    be read, 2 for a usage error."""
    from writetime.cli.schema_report import Lessons
    from writetime.cli.segment_log import Log, Options

    log = Log(paths, Options(tuple(schema or ()), keystore=keystore, engine=engine))
    lessons = Lessons(log.learner, log.narrow(at))
    for each, found in log.scans():
        for failure in lessons.take(each, found):
            log.failed(each, failure)
    log.unknown |= lessons.unknown
    log.report_left_out()
    log.report_repeated()
    sys.stdout.write(lessons.as_json(system=all_tables) if as_json else lessons.as_text(system=all_tables))
    log.end(strict=False)


COMMANDS: Final[dict[str, Callable[..., None]]] = {"dump": dump, "verify": verify, "schema": schema}
"""Commands by name."""
