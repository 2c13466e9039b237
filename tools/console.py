"""How the tools talk to the person in front: one line at a time, flushed, with seconds where something took long.

Knows nothing of what is being said.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext, redirect_stdout
from typing import Any

from rich.console import Console

_console = Console(highlight=False, soft_wrap=True)


def say(text: str) -> None:
    """Print one line, as it is."""
    _console.print(text, markup=False)


@contextmanager
def step(title: str) -> Iterator[None]:
    """Say what begins, and how long it took once it is done. An error passes through, after a line that says so."""
    begun = time.monotonic()
    say(f"▸ {title} …")
    try:
        yield
    except BaseException:
        say(f"✗ {title}: failed after {time.monotonic() - begun:.1f} s")
        raise
    say(f"✓ {title}: {time.monotonic() - begun:.1f} s")


def progress_apart(as_json: bool) -> AbstractContextManager[Any]:
    """Progress is for people: where JSON is wanted, standard output holds nothing else."""
    return redirect_stdout(sys.stderr) if as_json else nullcontext()
