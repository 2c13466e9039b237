"""Output of `verify`: one line per segment and a final table of all contents, or lines of JSON.

Strategy: lines are written at once; only the counts of the final table are kept. Lines have no columns, so
they wrap at a narrow terminal without losing digits. Must not know bytes."""

from __future__ import annotations

import json
import sys
from collections import Counter
from typing import Final, Protocol

from rich import box
from rich.table import Table
from rich.text import Text

from writetime.cassandra.commitlog.mutation_text import console_of_stdout
from writetime.cassandra.commitlog.segment_report import Findings, Unreadable, Verdict
from writetime.cassandra.types.literal import printable

_STYLES: Final[dict[Verdict, str]] = {"good": "green", "undecodable": "yellow", "damaged": "bold red", "unreadable": "bold red"}
_WIDEST: Final = 10_000


class Reporter(Protocol):
    """Writes findings to stdout as they arrive."""

    def __call__(self, found: Findings | Unreadable) -> None: ...

    def end(self) -> None:
        """Write the summary."""


def reporter(*, as_json: bool) -> Reporter:
    """A reporter that writes lines of JSON, or text."""
    return _JsonReporter() if as_json else _TextReporter()


class _JsonReporter:
    def __call__(self, found: Findings | Unreadable) -> None:
        sys.stdout.write(f"{json.dumps(found.as_dict(), ensure_ascii=False)}\n")

    def end(self) -> None:
        """Nothing more."""


class _TextReporter:
    def __init__(self) -> None:
        console = console_of_stdout()
        # A file has no width: do not cut off names.
        self._console = console if console.is_terminal else console_of_stdout(_WIDEST)
        self._updates: Counter[str] = Counter()
        self._unknown: Counter[str] = Counter()
        self._captured: set[str] = set()

    def __call__(self, found: Findings | Unreadable) -> None:
        text = found.error.message if isinstance(found, Unreadable) else _summary(found)
        line = Text.assemble((f"{found.verdict:<11}  ", _STYLES[found.verdict]), printable(f"{found.name}: {text}"))
        self._console.print(line, soft_wrap=True)
        if isinstance(found, Findings):
            self._updates += found.updates
            self._unknown += found.unknown_tables
            self._captured |= found.captured

    def end(self) -> None:
        """Write a table of the contents of all segments, captured tables first."""
        table = Table(box=box.SIMPLE)
        table.add_column("table", overflow="fold")
        table.add_column("cdc", no_wrap=True)
        table.add_column("updates", justify="right", no_wrap=True)
        for name, count in sorted(self._updates.items(), key=lambda item: (item[0] not in self._captured, item[0])):
            table.add_row(printable(name), "yes" if name in self._captured else "no", str(count))
        for name, count in sorted(self._unknown.items()):
            table.add_row(f"unknown table {name} (mutations)", "?", str(count), style="yellow")
        self._console.print(table)


def _summary(found: Findings) -> str:
    parts = [
        f"version {found.version}, {found.codec}, {found.size} bytes, {found.sections} sections, {found.frames} frames",
        f"ends at {found.end} ({found.ending})",
        f"idx {found.idx}",
    ]
    parts += [f"{what}: {len(each)}" for what, each in (("damaged", found.problems), ("not decoded", found.failures)) if each]
    return ", ".join(parts)
