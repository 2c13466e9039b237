"""How many examples hypothesis tries: all of them, or a fifth in the quick suite (`make test`)."""

from __future__ import annotations

import os

_QUICK = os.environ.get("WRITETIME_TESTS") == "quick"


def examples(number: int) -> int:
    """`number` of them; in the quick suite a fifth, and five at least."""
    return max(5, number // 5) if _QUICK else number
