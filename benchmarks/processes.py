"""CPU, memory and open files of process trees while a benchmark runs.

Strategy: /proc is sampled every other second, and what each process has used since the last sample is added
to its label's sum. So a process that ends takes nothing back, whether or not its parent waits for it (the
workers of Spark are not waited for). A process belongs to the nearest labelled process above it.
"""

from __future__ import annotations

import os
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

from tools.background import in_background

_EVERY = 2.0
_TICKS = os.sysconf("SC_CLK_TCK")


class Label(NamedTuple):
    """The label of a process, and of those below it."""

    own: str
    below: str


class Size(NamedTuple):
    """Memory of a kind of processes, each shared page counted once (MB); their open files; how many."""

    mb: float
    files: int
    processes: int


class Meter:
    """CPU seconds by label. `roots`: the labelled processes, by process id."""

    def __init__(self, roots: Mapping[int, Label]) -> None:
        self._roots = roots
        self._seen: dict[tuple[int, int], int] = {}
        self.used: Counter[str] = Counter()

    @contextmanager
    def running(self) -> Iterator[Meter]:
        self.sample()
        self.used.clear()
        with in_background(self._run):
            yield self
        self.sample()

    def _run(self, over: threading.Event) -> None:
        while not over.wait(_EVERY):
            self.sample()

    def sample(self) -> None:
        found = dict(_processes())
        for process, (parent, since, ticks) in found.items():
            if (label := self._label(process, parent, found)) is not None:
                self.used[label] += (ticks - self._seen.get((process, since), 0)) / _TICKS
                self._seen[process, since] = ticks

    def sizes(self, label: str, kind: Callable[[str], str | None]) -> dict[str, Size]:
        """Memory and open files of the processes with that label, by `kind` of their command line."""
        found = dict(_processes())
        sizes: dict[str, Size] = {}
        for process, (parent, *_) in found.items():
            if self._label(process, parent, found) == label and (what := kind(_command(process))) is not None:
                before = sizes.get(what, Size(0, 0, 0))
                sizes[what] = Size(before.mb + _megabytes(process), before.files + _files(process), before.processes + 1)
        return sizes

    def _label(self, process: int, parent: int, found: Mapping[int, tuple[int, int, int]]) -> str | None:
        if process in self._roots:
            return self._roots[process].own
        while parent:
            if parent in self._roots:
                return self._roots[parent].below
            parent = found[parent][0] if parent in found else 0
        return None


def shares(roots: Mapping[int, Label], seconds: float) -> dict[str, float]:
    """Shares of a core that each label uses, in so many seconds."""
    with Meter(roots).running() as meter:
        time.sleep(seconds)
    return {label: meter.used[label] / seconds for label in sorted({name for label in roots.values() for name in label})}


def _processes() -> Iterator[tuple[int, tuple[int, int, int]]]:
    """By process id: its parent, its start and its CPU, both in ticks."""
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            fields = (folder / "stat").read_text().rpartition(")")[2].split()
        except OSError:
            continue
        yield int(folder.name), (int(fields[1]), int(fields[19]), int(fields[11]) + int(fields[12]))


def _command(process: int) -> str:
    try:
        return Path(f"/proc/{process}/cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
    except OSError:
        return ""


def _megabytes(process: int) -> float:
    try:
        lines = Path(f"/proc/{process}/smaps_rollup").read_text().splitlines()
    except OSError:
        return 0.0
    return sum(int(line.split()[1]) for line in lines if line.startswith("Pss:")) / 1024


def _files(process: int) -> int:
    try:
        return len(list(Path(f"/proc/{process}/fd").iterdir()))
    except OSError:
        return 0
