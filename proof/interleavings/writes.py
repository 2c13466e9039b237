"""Who may write an object when: the table of docs/bucket.md.

Strategy: a name has the rules of the row that matches it. Knows nothing of drivers; tests and the doubled store ask."""

from __future__ import annotations

import re
from collections.abc import Iterator
from functools import cache, lru_cache
from itertools import product
from pathlib import Path
from typing import Final

TABLE: Final = Path(__file__).parents[2] / "docs" / "bucket.md"
RULES: Final = frozenset({"once", "generation", "own", "last"})


@cache
def rows() -> list[tuple[re.Pattern[str], frozenset[str]]]:
    """Patterns of names, each with the rules of its row."""
    return list(_rows())


def _rows() -> Iterator[tuple[re.Pattern[str], frozenset[str]]]:
    for line in TABLE.read_text(encoding="utf-8").splitlines():
        if line.startswith("| `"):
            names, _, rules = (cell.strip() for cell in line.strip("|").split(" | "))
            yield from ((_pattern(name), frozenset(rules.strip().split("; "))) for name in re.findall(r"`([^`]+)`", names))


def _pattern(name: str) -> re.Pattern[str]:
    alternatives = [piece[1:-1].split(",") if piece.startswith("{") else [piece] for piece in re.split(r"({[^}]*})", name)]
    spelled = ("".join(some) for some in product(*alternatives))
    return re.compile("|".join(re.sub(r"\\?<[^>]*>", "[^/]+", re.escape(each).replace(r"\<", "<").replace(r"\>", ">")) for each in spelled))


@lru_cache(maxsize=100_000)
def rules_of(name: str) -> frozenset[str]:
    """The rules of the row that matches, the one with the fewest placeholders and the longest. LookupError if there is none."""
    matching = ((pattern.pattern, rules) for pattern, rules in rows() if pattern.fullmatch(name))
    found = [((text.count("[^/]+"), -len(text)), rules) for text, rules in matching]
    if not found:
        raise LookupError(f"docs/bucket.md has no row for {name}")
    return min(found, key=lambda each: each[0])[1]


def allowed(rules: frozenset[str], generation: int | None) -> bool:
    """Whether an object with these rules may be written under the condition `generation`; None: without one."""
    if generation is None:
        return bool(rules & {"own", "last"})
    return generation == 0 or bool(rules & {"generation", "last"})
