"""The commands `writetime dump`, `verify` and `schema`: a commit log, for whoever is on call.

Strategy: segments are opened one at a time, twice: first for the schema, which all of them teach together, then for the answer. The answer
goes to stdout and nothing else does; what could not be read goes to stderr, a line each, and a count at the end. Reading never stops
at damage. Codes: 0 all was shown, 1 a file could not be read (verify: or is damaged), 2 wrong usage, 3 something did not decode.

This module knows terminals. What is in a segment it leaves to `dump`, `show` and the schema package. Heavy imports wait for a command
to run: the command line loads this module for its help alone.
"""

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
        help="Segments: files, folders (searched to the bottom), gs://bucket/… objects or prefixes.",
        show_default=False,
    ),
]
AsJson = Annotated[bool, typer.Option("--json", help="JSON for machines instead of text for people.")]
Schemas = Annotated[
    list[str] | None,
    typer.Option(
        "--schema", help="A schema snapshot, or what a batch learnt: JSON files or objects, known before the log's own.", show_default=False
    ),
]
KeystoreFile = Annotated[
    str | None,
    typer.Option(
        "--keystore", help="Java keystore for encrypted segments; its password in WRITETIME_KEYSTORE_PASSWORD.", show_default=False
    ),
]
EngineName = Annotated[str, typer.Option("--engine", help="Who walks the segments: auto, python or numba.")]

UNREADABLE: Final = 1


def _command(*, cut_short: int = 0) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """A command that ends quietly, with code `cut_short`, when nobody reads on (`| head`)."""

    def decorate(run: Callable[..., None]) -> Callable[..., None]:
        @wraps(run)
        def wrapped(*args: Any, **kwargs: Any) -> None:
            for stream in (sys.stdout, sys.stderr):
                # Names of columns may be no UTF-8; in JSON the escapes stand for what they are.
                if hasattr(stream, "reconfigure"):
                    stream.reconfigure(encoding="utf-8", errors="backslashreplace")
            try:
                run(*args, **kwargs)
                sys.stdout.flush()
            except BrokenPipeError:
                _close_stdout()
                raise typer.Exit(cut_short) from None
            except OSError as error:
                # Files are read behind errors of their own (`inputs`); what is left is the answer, to a disk that is full.
                _close_stdout()
                raise WritetimeError(error.strerror or str(error), operation="write the answer", obj="stdout") from error

        return wrapped

    return decorate


def _close_stdout() -> None:
    # Python would flush once more at its end, and complain.
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _rules(config: str) -> Any:
    from writetime.config.pipeline import load

    return load(config).columns.rules


@_command()
def dump(
    paths: Paths,
    as_json: AsJson = False,
    table: Annotated[
        list[str] | None, typer.Option("--table", help="Only this table, keyspace.name or its id; may be repeated.", show_default=False)
    ] = None,
    key: Annotated[
        list[str] | None,
        typer.Option("--key", help="Only this partition: 42, text, 'a':1 for a composite key, or 0x and raw bytes.", show_default=False),
    ] = None,
    all_tables: Annotated[bool, typer.Option("--all-tables", help="Tables without cdc too, Cassandra's own included.")] = False,
    schema: Schemas = None,
    synced: Annotated[bool, typer.Option("--synced", help="Of a growing segment, stop at the position in its _cdc.idx.")] = False,
    strict: Annotated[bool, typer.Option("--strict", help="Code 3 if anything could not be read or decoded.")] = False,
    keystore: KeystoreFile = None,
    engine: EngineName = "auto",
    config: Annotated[
        str | None,
        typer.Option("--config", help="The pipeline's YAML: what its `columns` mask or leave out is not shown.", show_default=False),
    ] = None,
    unmasked: Annotated[bool, typer.Option("--unmasked", help="Show it all the same.")] = False,
) -> None:
    """Print the mutations of segments.

    Without --all-tables only updates of tables that have or had cdc are shown. What cannot be read or decoded is told on stderr, with
    its place. Code 0: all was shown, but for what stderr tells. 1: a file cannot be read at all. 2: wrong usage. 3: with --strict,
    something is damaged or does not decode; without it, nothing decodes at all.
    """
    from writetime.cassandra.commitlog.mutation_json import Failure
    from writetime.cassandra.commitlog.mutation_text import shower
    from writetime.cassandra.commitlog.update_filter import select
    from writetime.cli.segment_log import Log, Options
    from writetime.events.masking import Hiding, Rules

    log = Log(paths, Options(tuple(schema or ()), synced=synced, keystore=keystore, engine=engine))
    log.learn()
    known, cdc_ever = log.learner.schema(), log.learner.cdc_ever
    selection = select(known, cdc_ever, tables=table or (), keys=key or (), all_tables=all_tables)
    show = shower(known, cdc_ever, as_json=as_json)
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
    log.tell(f"mutations: {shown}", selection.left_out_as_text(), hiding.told())
    log.end(strict=strict, nothing=not decoded_any)


@_command(cut_short=UNREADABLE)
def verify(
    paths: Paths,
    as_json: AsJson = False,
    schema: Schemas = None,
    keystore: KeystoreFile = None,
    engine: EngineName = "auto",
) -> None:
    """Read and decode everything in segments, and tell what is in them and what is wrong.

    A segment that its node still writes is read up to the position in its _cdc.idx. With --json a line a segment. Code 0: all good.
    1: bytes are lost, or a file cannot be read. 2: wrong usage. 3: all bytes are right, but some do not decode: the schema of their
    tables or columns is not known.
    """
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
    log.tell()
    if log.lost:
        raise typer.Exit(UNREADABLE)
    log.end(strict=True)


@_command()
def schema(
    paths: Paths,
    as_json: AsJson = False,
    at: Annotated[
        str | None, typer.Option("--at", help="The schema at SEGMENT:POSITION, a segment's id or name.", show_default=False)
    ] = None,
    all_tables: Annotated[bool, typer.Option("--all-tables", help="Cassandra's own keyspaces too.")] = False,
    schema: Schemas = None,
    keystore: KeystoreFile = None,
    engine: EngineName = "auto",
) -> None:
    """Print what segments teach of the schema, as CQL: each change with its place, then what it comes to.

    Truncations and what the node says of itself and its peers follow as comments. Code 1 if a file cannot be read, 2 for wrong usage.
    """
    from writetime.cli.schema_report import Lessons
    from writetime.cli.segment_log import Log, Options

    log = Log(paths, Options(tuple(schema or ()), keystore=keystore, engine=engine))
    lessons = Lessons(log.learner, log.narrow(at))
    for each, found in log.scans():
        for failure in lessons.take(each, found):
            log.failed(each, failure)
    log.unknown |= lessons.unknown
    log.tell_left_out()
    log.tell_more()
    sys.stdout.write(lessons.as_json(system=all_tables) if as_json else lessons.as_text(system=all_tables))
    log.end(strict=False)


COMMANDS: Final[dict[str, Callable[..., None]]] = {"dump": dump, "verify": verify, "schema": schema}
"""What the command line takes in, by name."""
