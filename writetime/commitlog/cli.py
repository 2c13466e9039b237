"""The commands `writetime dump`, `verify` and `schema`: a commit log, for whoever is on call.

Strategy: segments are opened one at a time, twice: first for the schema, which all of them teach together, then for the answer. The answer
goes to stdout and nothing else does; what could not be read goes to stderr, a line each, and a count at the end. Reading never stops
at damage. Codes: 0 all was shown, 1 a file could not be read (verify: or is damaged), 2 wrong usage, 3 something did not decode.

This module knows terminals. What is in a segment it leaves to `dump`, `show` and the schema package. Heavy imports wait for a command
to run: the command line loads this module for its help alone.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from functools import wraps
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

if TYPE_CHECKING:
    from rich.console import Console

    from writetime.commitlog.dump import Failure
    from writetime.commitlog.inputs import Input
    from writetime.commitlog.segment import Engine, Scan
    from writetime.errors import WritetimeError
    from writetime.schema.learn import SchemaLearner

Paths = Annotated[
    list[str],
    typer.Argument(help="Segments: files, folders (searched to the bottom), gs://bucket/… objects or prefixes.", show_default=False),
]
AsJson = Annotated[bool, typer.Option("--json", help="JSON for machines instead of text for people.")]
Schemas = Annotated[
    list[str] | None,
    typer.Option(
        "--schema", help="A schema snapshot, or what a batch learnt: JSON files or objects, known before the log's own.", show_default=False
    ),
]
EngineName = Annotated[str, typer.Option("--engine", help="Who walks the segments: auto, python or numba.")]

UNREADABLE, UNDECODED = 1, 3


def _command(run: Callable[..., None]) -> Callable[..., None]:
    """A command that ends quietly when nobody reads on (`| head`)."""

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
            # Python would flush once more at its end, and complain.
            import os

            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
            raise typer.Exit(0) from None

    return wrapped


@_command
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
    engine: EngineName = "auto",
) -> None:
    """Print the mutations of segments.

    Without --all-tables only updates of tables that have or had cdc are shown. Frames that cannot be read or decoded are told on
    stderr, with their place. Code 1 if a file could not be read at all.
    """
    from writetime.commitlog.dump import Failure, decode
    from writetime.commitlog.select import select
    from writetime.commitlog.show import shower

    log = _Log(paths, schema, synced=synced, engine=engine)
    log.learn()
    known = log.learner.schema()
    selection = select(known, log.learner.cdc_ever, tables=table or (), keys=key or (), all_tables=all_tables)
    show = shower(known, log.learner.cdc_ever, as_json=as_json)
    shown = 0
    for each, found in log.scans():
        for frame, decoded in decode(found, known, selection):
            if isinstance(decoded, Failure):
                log.failed(each, decoded)
            else:
                shown += 1
                show(each.name, found, frame, decoded)
    show.flush()
    log.tell(f"{shown} mutations", selection.left_out_as_text())
    log.end(strict=strict)


class _Log:
    """The segments of a command. What cannot be read is told once and counted."""

    def __init__(self, paths: Iterable[str], schemas: Iterable[str] | None, *, synced: bool = False, engine: str) -> None:
        from rich.console import Console

        from writetime.commitlog.inputs import find

        self.console: Console = Console(stderr=True, highlight=False, markup=False, soft_wrap=True)
        self.synced = synced
        self.engine = _engine(engine)
        self.learner = _learner(schemas or ())
        self.inputs, errors = find(paths)
        self.unreadable = self.lost = self.undecoded = 0
        self._told: set[tuple[str, int]] = set()
        for error in errors:
            self._unreadable(error)

    def learn(self) -> None:
        """The first pass: take in what the segments teach of the schema."""
        from writetime.commitlog.dump import learn

        for each, found in self.scans():
            for failure in learn(found, self.learner):
                self.failed(each, failure)

    def scans(self) -> Iterator[tuple[Input, Scan]]:
        """Each segment that can be read, with damage told."""
        with self._progress() as advance:
            for each in self.inputs:
                found = self._scan(each)
                if found is not None:
                    yield each, found
                advance(each)

    def failed(self, each: Input, failure: Failure) -> None:
        """Tell of a frame that is no mutation."""
        if self._once(each, failure.frame.position):
            self.undecoded += 1
            error = failure.error
            hint = f". {error.hint}" if error.hint else ""
            where = f" ({error.obj})" if error.obj else ""
            self.say(f"{each.where}:{failure.frame.position}: {type(error).__name__}: {error.message}{where}{hint}")

    def say(self, line: str) -> None:
        """A line on stderr."""
        self.console.print(line)

    def tell(self, *parts: str) -> None:
        """The count at the end."""
        trouble = [
            (self.unreadable, "files could not be read"),
            (self.lost, "places are damaged"),
            (self.undecoded, "frames could not be decoded"),
        ]
        said = [*filter(None, parts), f"{len(self.inputs)} segments", *(f"{count} {what}" for count, what in trouble if count)]
        self.say("; ".join(said))

    def end(self, *, strict: bool) -> None:
        """Leave with the code that fits what was met."""
        if self.unreadable:
            raise typer.Exit(UNREADABLE)
        if strict and (self.lost or self.undecoded):
            raise typer.Exit(UNDECODED)

    def _scan(self, each: Input) -> Scan | None:
        from writetime.commitlog import idx
        from writetime.commitlog.segment import scan
        from writetime.errors import SegmentError, StoreError

        try:
            index = idx.parse(each.read_idx() or b"") if self.synced else None
            stop = None if index is None or index.completed else index.synced
            found = scan(each.read(), synced=stop, name=each.name, engine=self.engine)
        except (SegmentError, StoreError) as error:
            if self._once(each, -1):
                self._unreadable(error)
            return None
        for problem in found.problems:
            if self._once(each, problem.position):
                self.lost += 1
                self.say(f"{each.where}:{problem.position}: {type(problem.error).__name__}: {problem.error.message}")
        return found

    def _unreadable(self, error: WritetimeError) -> None:
        self.unreadable += 1
        self.say(f"writetime: {error}")

    def _once(self, each: Input, position: int) -> bool:
        known = (each.where, position) in self._told
        self._told.add((each.where, position))
        return not known

    @contextmanager
    def _progress(self) -> Iterator[Callable[[Input], None]]:
        """A bar on stderr where a person looks at it and the answer goes elsewhere."""
        if not self.console.is_terminal or sys.stdout.isatty():
            yield lambda each: None
            return
        from rich.progress import Progress

        with Progress(console=self.console, transient=True) as bar:
            task = bar.add_task("reading", total=sum(each.size for each in self.inputs))
            yield lambda each: bar.update(task, advance=each.size)


def _engine(name: str) -> Engine:
    if name not in ("auto", "python", "numba"):
        raise typer.BadParameter(f"{name!r} is none of auto, python, numba", param_hint="--engine")
    return name  # type: ignore[return-value]


def _learner(paths: Iterable[str]) -> SchemaLearner:
    from writetime.commitlog.inputs import read
    from writetime.schema.learn import SchemaLearner

    learner = SchemaLearner()
    for path in paths:
        learner.apply_document(read(path), obj=path)
    return learner


COMMANDS: Final[dict[str, Callable[..., None]]] = {"dump": dump}
"""What the command line takes in, by name."""
