"""What nodes write, read with limits: documents under nodes/, space/ and schemas/, and the notes on parts and segments.

A node's credentials are on a machine that runs a database for others, so nothing that it writes is trusted: a document is of limited size
and depth, its numbers and times are in range, its texts are short and can be written again. Whatever is not so is `Untrusted`, a ValueError
that says why. Whoever reads such a document passes over it and goes on; `writetime status` names it. This module does no I/O of its own.
"""

from __future__ import annotations

import json
import re
from datetime import UTC, datetime, timedelta
from typing import Any, Final, NoReturn

FACTS: Final = 1 << 20
"""Bytes of a document on a node: 1,536 tokens are 32 KB."""
SCHEMA: Final = 64 << 20
"""Bytes of a snapshot of system_schema: 10,000 tables of 20 columns are 40 MB."""
SEGMENT: Final = 2 << 30
"""Bytes of a segment, or of what there is of one that grows: Cassandra counts positions in 31 bits."""
DEEPEST: Final = 32
"""Levels of arrays and objects in a document; a snapshot has five."""
NAME: Final = 1024
"""Characters of a name or an address."""
I64: Final = 2**63 - 1
EARLIEST: Final = datetime(1970, 1, 1, tzinfo=UTC) + timedelta(days=1)
LATEST: Final = datetime(2200, 1, 1, tzinfo=UTC)
"""Times that a note may name; far enough from the limits of `datetime` that a zone or an hour can be added."""

_TOKENS: Final = re.compile(rb'"(?:[^"\\]|\\.)*+"|[\[\]{}]', re.DOTALL)
_LONGEST_MOMENT: Final = 64


class Untrusted(ValueError):
    """Something that a node has written is not what it should be. The text says why."""


def parse_object(text: bytes, *, largest: int = FACTS) -> dict[str, Any]:
    """The JSON object in a document of at most that many bytes. Raises Untrusted."""
    document = parse(text, largest=largest)
    if not isinstance(document, dict):
        raise Untrusted("it is no JSON object")
    return document


def parse(text: bytes, *, largest: int = FACTS) -> Any:
    """The JSON in a document of at most that many bytes. Raises Untrusted."""
    if len(text) > largest:
        raise Untrusted(f"{len(text)} bytes, more than {largest}")
    _expect_shallow(text)
    try:
        return json.loads(text.decode(), parse_constant=_no_number)
    except (ValueError, RecursionError) as error:
        raise Untrusted(f"it is no JSON: {error}") from error


def text(value: object, what: str, *, longest: int = NAME) -> str:
    """A text that is not too long and can be written as UTF-8; null is "". Raises Untrusted."""
    if value is None:
        return ""
    if not isinstance(value, str):
        raise Untrusted(f"{what} is no text")
    if len(value) > longest:
        raise Untrusted(f"{what} has {len(value)} characters, more than {longest}")
    if not value.isprintable():
        raise Untrusted(f"{what} has characters that cannot be shown")
    return value


def integer(value: object, what: str, *, low: int = 0, high: int = I64) -> int:
    """A whole number from `low` to `high`. Raises Untrusted."""
    if isinstance(value, bool) or not isinstance(value, int):
        raise Untrusted(f"{what} is no whole number")
    if not low <= value <= high:
        raise Untrusted(f"{what} is not from {low} to {high}")
    return value


def number(value: object, what: str, *, low: float, high: float) -> float:
    """A number from `low` to `high`. Raises Untrusted."""
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not low <= value <= high:
        raise Untrusted(f"{what} is no number from {low} to {high}")
    return float(value)


def moment(value: object, what: str) -> datetime:
    """An ISO-8601 time, in UTC; one without a zone is taken for UTC. Raises Untrusted."""
    if not isinstance(value, str) or len(value) > _LONGEST_MOMENT:
        raise Untrusted(f"{what} is no time")
    try:
        found = datetime.fromisoformat(value)
        found = found.replace(tzinfo=UTC) if found.tzinfo is None else found.astimezone(UTC)
    except (ValueError, OverflowError) as error:
        raise Untrusted(f"{what} is no time") from error
    if not EARLIEST <= found <= LATEST:
        raise Untrusted(f"{what} is not between {EARLIEST:%Y} and {LATEST:%Y}")
    return found


def _expect_shallow(text: bytes) -> None:
    """By brackets outside strings, before a parser recurses into them."""
    if text.count(b"[") + text.count(b"{") <= DEEPEST:
        return
    depth = 0
    for found in _TOKENS.finditer(text):
        token = found[0]
        if token in (b"[", b"{"):
            depth += 1
            if depth > DEEPEST:
                raise Untrusted(f"it is nested deeper than {DEEPEST} levels")
        elif token in (b"]", b"}"):
            depth -= 1


def _no_number(text: str) -> NoReturn:
    raise ValueError(f"{text} is no number of JSON")
