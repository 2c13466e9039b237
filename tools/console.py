"""Console output of the tools: one line at a time, flushed, with seconds for slow steps.

Knows nothing about the content.
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
    """Print the start of a step, and its duration when it is done. An error is printed and raised."""
    begun = time.monotonic()
    say(f"▸ {title} …")
    try:
        yield
    except BaseException:
        say(f"✗ {title}: failed after {time.monotonic() - begun:.1f} s")
        raise
    say(f"✓ {title}: {time.monotonic() - begun:.1f} s")


def progress_apart(as_json: bool) -> AbstractContextManager[Any]:
    """Print progress to stderr if JSON is requested: then stdout contains only JSON."""
    return redirect_stdout(sys.stderr) if as_json else nullcontext()
