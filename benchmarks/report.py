"""How a benchmark ends: its figures as JSON or as tables, or one line that says what it lacks."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from contextlib import nullcontext, redirect_stdout
from typing import Any

from tools.console import say
from tools.errors import ToolError


def report(measure: Callable[[], dict[str, Any]], show: Callable[[dict[str, Any]], None], *, as_json: bool) -> int:
    """Measure and show. The exit code: 1 if it could not be measured."""
    try:
        # Progress is for people: of JSON, standard output holds nothing else.
        with redirect_stdout(sys.stderr) if as_json else nullcontext():
            figures = measure()
    except ToolError as error:
        say(str(error))
        return 1
    if as_json:
        print(json.dumps(figures, indent=2))
    else:
        show(figures)
    return 0
