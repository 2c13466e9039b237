"""Reads the segments given to a command, one at a time, and reports errors on stderr.

Strategy: errors do not stop reading. A file that is not a segment, a damaged position and a frame that does
not decode are each reported once, in one line with segment and position, counted, and mapped to an exit code
at the end. Of frames that fail for the same reason, only the first few are reported, so that a missing schema
does not hide other errors. Small inputs are kept in memory between the passes; large ones are read again, so
that memory holds one segment. Must not know the file format; `segment` and `dump` do."""

from __future__ import annotations

import re
import sys
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Final

import typer
from rich.console import Console

from writetime.cassandra.commitlog.encryption.keystore import Keystore
from writetime.cassandra.commitlog.idx import stop_at
from writetime.cassandra.commitlog.mutation_json import Failure, Wanted, decode, mutations_of, schema_changes
from writetime.cassandra.commitlog.segment import Engine, Frame, Problem, Scan, scan
from writetime.cassandra.commitlog.segment_report import Unreadable
from writetime.cassandra.model import Mutation
from writetime.cassandra.schema.epochs import FOLLOWED, Followed
from writetime.cassandra.schema.history import SchemaLearner
from writetime.cassandra.schema.model import Schema
from writetime.cassandra.schema.timeline import Timeline
from writetime.cassandra.types.literal import printable
from writetime.errors import ConfigError, UnknownColumn, UnknownTable, UnsupportedSegment, WritetimeError
from writetime.storage.segment_paths import Input, find, read

UNREADABLE: Final = 1
UNDECODED: Final = 3
_SMALL: Final = 64 << 20
"""Up to so many bytes are kept in memory between the passes, and read without loading the compiled reader."""
_MANY: Final = 3
"""Frames with the same failure that are reported individually."""
_BRIEF: Final = 400
_ENGINES: Final[dict[str, Engine]] = {"auto": "auto", "python": "python", "numba": "numba"}


@dataclass(frozen=True, slots=True)
class Options:
    """Reading options. `schemas`: paths of schemas to start with; `synced`: stop at the synced position of a
    growing segment."""

    schemas: tuple[str, ...] = ()
    synced: bool = False
    keystore: str | None = None
    engine: str = "auto"


class Log:
    """The segments of a command. `inputs` may be narrowed before reading begins."""

    def __init__(self, paths: Iterable[str], options: Options) -> None:
        self.console = Console(stderr=True, highlight=False, markup=False, soft_wrap=True)
        self.synced = options.synced
        self.keys = None if options.keystore is None else Keystore.from_environment(options.keystore)
        self.learner = SchemaLearner()
        for path in options.schemas:
            self.learner.apply_document(read(path), obj=path)
        self.inputs, errors = find(paths)
        self.small = sum(each.size for each in self.inputs) <= _SMALL
        self.engine = _engine(options.engine, small=self.small)
        self.unreadable: list[Unreadable] = []
        self.lost = self.undecoded = 0
        self.unknown: set[str] = set()
        self._reasons: Counter[tuple[type[WritetimeError], str, str]] = Counter()
        self._timelines: dict[str, Timeline] = {}
        self._reported: set[tuple[str, object]] = set()
        self._kept: dict[str, Scan] = {}
        for error in errors:
            self._unreadable(error.obj or "", error)

    def learn(self) -> None:
        """The first pass: learn the schema from the segments."""
        base = self.learner.to_json()
        followed: dict[str, Followed | None] = {}
        for each, found in self.scans():
            timeline = self._timelines.setdefault(each.node, Timeline(SchemaLearner.from_json(base)))
            failures: list[Failure] = []
            mutations = mutations_of(found, FOLLOWED, self.unknown)
            changes, followed[each.node] = schema_changes(mutations, found, failures, followed.get(each.node))
            for failure in failures:
                self.failed(each, failure)
            for change in changes:
                timeline.add_logged((each.order, change.position), change)
                self.learner.apply_logged(change)
        self.report_left_out()

    def decode(self, each: Input, found: Scan, schema: Schema, wanted: Wanted | None = None) -> Iterator[tuple[Frame, Mutation | Failure]]:
        """Decode frames. A frame that fails with the merged schema is tried with the schema at its own
        position in the log."""
        timeline = self._timelines[each.node]
        return decode(found, schema, wanted, lambda frame: timeline.at((each.order, frame.position)))

    def report_left_out(self) -> None:
        """Report tables and types without a complete definition, and schema fields of newer Cassandra
        versions."""
        for name, error in self.learner.left_out.items():
            self.say(f"{name} left out of the schema: {error.message}{_hint(error)}")
        if self.unknown:
            self.say(f"ignored fields of a newer Cassandra version: {', '.join(sorted(self.unknown))}")

    def narrow(self, at: str | None) -> tuple[int, int] | None:
        """Keep one node's segments up to SEGMENT:POSITION and return (id, position). Raises ConfigError if no
        node, or more than one, has that segment."""
        if at is None:
            return None
        where: dict[str, Any] = {"operation": "parse a position", "obj": f"--at {at}"}
        match = re.fullmatch(r"(?:.*CommitLog-\d+-)?(\d+)(?:\.log(?:\.zst)?)?:(\d+)", at)
        if match is None:
            raise ConfigError("expected SEGMENT:POSITION", **where)
        nodes = {each.node for each in self.inputs if each.id == int(match[1])}
        if len(nodes) != 1:
            raise ConfigError(f"{len(nodes)} folders contain that segment", hint="Give the paths of one node's log", **where)
        self.inputs = [each for each in self.inputs if each.node in nodes and each.id is not None and each.id <= int(match[1])]
        return int(match[1]), int(match[2])

    def scans(self) -> Iterator[tuple[Input, Scan]]:
        """Iterate over readable segments in log order, and report damage."""
        with self._progress() as advance:
            for each in self.inputs:
                found = self._kept.get(each.where) or self._scan(each)
                if found is not None:
                    yield each, found
                advance(each)

    def failed(self, each: Input, failure: Failure) -> None:
        """Report a frame that does not decode, unless enough others failed for the same reason."""
        if self._once(each, failure.frame.position):
            self.undecoded += 1
            error = failure.error
            reason = type(error), error.message, error.obj or ""
            self._reasons[reason] += 1
            if self._reasons[reason] > _MANY:
                return
            where = f" ({error.obj})" if error.obj else ""
            self.say(f"{each.where}:{failure.frame.position}: {type(error).__name__}: {_brief(error.message)}{where}{_hint(error)}")

    def damaged(self, each: Input, problem: Problem) -> None:
        """Report a damaged position."""
        if self._once(each, (problem.in_file, problem.position)):
            self.lost += 1
            place = f"byte {problem.position} of the file" if problem.in_file else problem.position
            self.say(f"{each.where}:{place}: {type(problem.error).__name__}: {problem.error.message}")

    def say(self, line: str) -> None:
        """Write a line to stderr."""
        self.console.print(printable(line))

    def summarize(self, *parts: str) -> None:
        """Report repeated failures, then the counts."""
        self.report_repeated()
        trouble = (
            (len(self.unreadable), "unreadable"),
            (self.lost, "damaged"),
            (self.undecoded, "not decoded"),
        )
        said = [*filter(None, parts), f"segments: {len(self.inputs)}", *(f"{what}: {count}" for count, what in trouble if count)]
        self.say("; ".join(said))

    def report_repeated(self) -> None:
        """Report how often failures repeated, with a hint."""
        for (kind, message, obj), count in self._reasons.items():
            if count > _MANY:
                where = f" ({obj})" if obj else ""
                self.say(f"{count - _MANY} more: {kind.__name__}: {_brief(message)}{where}. Places: `writetime verify --json`")
        if any(issubclass(kind, UnknownTable | UnknownColumn) for kind, _, _ in self._reasons):
            self.say("Pass the missing schema as --schema FILE: a snapshot, or a schema that a batch wrote")

    def end(self, *, strict: bool, nothing: bool = False) -> None:
        """Exit with the code for the errors found. `nothing`: no frame was decoded, an error if any frame
        failed."""
        if self.unreadable:
            raise typer.Exit(UNREADABLE)
        if (strict or nothing) and (self.lost or self.undecoded):
            raise typer.Exit(UNDECODED)

    def _scan(self, each: Input) -> Scan | None:
        try:
            stop = stop_at(each.read_idx()) if self.synced else None
            found = self._opened(each, stop)
        except WritetimeError as error:
            if self._once(each, None):
                self._unreadable(each.where, error)
            return None
        for problem in found.problems:
            self.damaged(each, problem)
        if self.small:
            self._kept[each.where] = found
        return found

    def _opened(self, each: Input, stop: int | None) -> Scan:
        try:
            return scan(each.read(), synced=stop, name=each.where, engine=self.engine, keys=self.keys)
        except ImportError as error:
            hint = "Install it with pip install 'writetime[spark]'"
            raise UnsupportedSegment(
                f"{error.name} is required to decompress it", operation="read a segment", obj=each.where, hint=hint
            ) from error

    def _unreadable(self, name: str, error: WritetimeError) -> None:
        self.unreadable.append(Unreadable(name, error))
        self.say(f"writetime: {error}")

    def _once(self, each: Input, what: object) -> bool:
        """Whether this is reported for the first time."""
        if (each.where, what) in self._reported:
            return False
        self._reported.add((each.where, what))
        return True

    @contextmanager
    def _progress(self) -> Iterator[Callable[[Input], None]]:
        """A progress bar on stderr if it is a terminal and stdout is not."""
        if not self.console.is_terminal or sys.stdout.isatty():
            yield lambda each: None
            return
        from rich.progress import Progress

        with Progress(console=self.console, transient=True) as bar:
            task = bar.add_task("reading", total=sum(each.size for each in self.inputs))
            yield lambda each: bar.update(task, advance=each.size)


def _hint(error: WritetimeError) -> str:
    return f". {error.hint}" if error.hint else ""


def _brief(text: str) -> str:
    """Shorten a message: damaged bytes can produce names of any length."""
    return text if len(text) <= _BRIEF else f"{text[:_BRIEF]}… ({len(text)} characters)"


def _engine(name: str, *, small: bool) -> Engine:
    if name not in _ENGINES:
        raise ConfigError(f"{name!r} is not one of {', '.join(_ENGINES)}", operation="choose an engine", obj="--engine")
    return "python" if small and name == "auto" else _ENGINES[name]
