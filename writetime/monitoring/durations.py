"""Durations as text."""

from __future__ import annotations


def span(seconds: float) -> str:
    """Format a duration: 42 s, 3.5 min, 2.0 h, 4.1 d."""
    for size, unit in ((86400, "d"), (3600, "h"), (60, "min")):
        if abs(seconds) >= 2 * size:
            return f"{seconds / size:.1f} {unit}"
    return f"{seconds:.0f} s"
