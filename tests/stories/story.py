"""A story: CQL in steps, and what is to be rejected.

    -- What happens, in a line or more.
    -- thorough
    -- rejected: orders_by_day materialized view
    CREATE TABLE orders (id int PRIMARY KEY, …) WITH cdc = true;
    -- step
    ALTER TABLE orders ADD …;

`thorough` leaves the story to `make test-all`. `rejected` names a table that the pipeline refuses, and a part of the
reason. Between two steps everything is shipped, ingested, published and compared. `-- wait 3` waits for so many
seconds, for a TTL to pass. Names without a keyspace are in the story's own. Knows nothing of how stories are run.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

CASES: Final = Path(__file__).parent / "cases"
_STEP: Final = re.compile(r"^-- step.*\n", re.MULTILINE)
_REJECTED: Final = re.compile(r"^-- rejected: (\S+) (.+)$", re.MULTILINE)
_WAIT: Final = re.compile(r"-- wait (\d+)")


@dataclass(frozen=True)
class Story:
    """`steps`: statements, and seconds to wait. `rejected`: part of the reason by table."""

    name: str
    steps: list[list[str | int]]
    rejected: dict[str, str] = field(default_factory=dict)
    thorough: bool = False


def stories() -> list[Story]:
    return [read(path) for path in sorted(CASES.glob("*.cql"))]


def read(path: Path) -> Story:
    text = path.read_text(encoding="utf-8")
    steps = [list(_statements(step)) for step in _STEP.split(text)]
    rejected = {found[1]: found[2] for found in _REJECTED.finditer(text)}
    return Story(path.stem, steps, rejected, thorough=bool(re.search("^-- thorough$", text, re.MULTILINE)))


def _statements(text: str) -> list[str | int]:
    """Statements end with a semicolon at the end of a line."""
    found: list[str | int] = []
    pending: list[str] = []
    for line in text.splitlines():
        if wait := _WAIT.fullmatch(line.strip()):
            found.append(int(wait[1]))
        elif line.strip() and not line.lstrip().startswith("--"):
            pending.append(line)
            if line.rstrip().endswith(";"):
                found.append("\n".join(pending))
                pending = []
    assert not pending, f"no semicolon after: {pending}"
    return found
