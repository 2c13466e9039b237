"""Output of a benchmark: its figures as one line of JSON or as tables, or one line that names what is missing."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

from tools.console import progress_apart, say
from tools.errors import ToolError


def report(measure: Callable[[], dict[str, Any]], show: Callable[[dict[str, Any]], None], *, as_json: bool) -> int:
    """Measure and print. The exit code: 1 if it could not be measured."""
    try:
        with progress_apart(as_json):
            figures = measure()
    except ToolError as error:
        say(str(error))
        return 1
    if as_json:
        print(json.dumps(figures))
    else:
        show(figures)
    return 0
