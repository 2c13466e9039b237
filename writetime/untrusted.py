"""Validation of what nodes write: documents under nodes/, space/ and schemas/, and metadata of parts and
segments.

A node's credentials are on a machine that runs a database for others, so nothing that it writes is trusted:
documents have a limited size and depth, numbers and times a range, texts a length. A violation raises
`Untrusted`, a ValueError that states the reason. Readers skip such a document; `writetime status` lists it.
Does no I/O.
"""

from __future__ import annotations

import json
import re
from datetime import UTC, datetime, timedelta
from typing import Any, Final, NoReturn

FACTS: Final = 1 << 20
"""Bytes of a document about a node: 1,536 tokens take 32 KB."""
SCHEMA: Final = 64 << 20
"""Bytes of a snapshot of system_schema: 10,000 tables of 20 columns take 40 MB."""
SEGMENT: Final = 2 << 30
"""Bytes of a segment, completed or growing: positions in Cassandra have 31 bits."""
DEEPEST: Final = 32
"""Levels of arrays and objects in a document; a snapshot has five."""
NAME: Final = 1024
"""Characters of a name or an address."""
I64: Final = 2**63 - 1
EARLIEST: Final = datetime(1970, 1, 1, tzinfo=UTC) + timedelta(days=1)
LATEST: Final = datetime(2200, 1, 1, tzinfo=UTC)
"""Range of times; a zone or an hour can still be added within the limits of `datetime`."""

_TOKENS: Final = re.compile(rb'"(?:[^"\\]|\\.)*+"|[\[\]{}]', re.DOTALL)
_LONGEST_MOMENT: Final = 64


class Untrusted(ValueError):
    """A document or metadata of a node is invalid. The text states the reason."""


def parse_object(text: bytes, *, largest: int = FACTS) -> dict[str, Any]:
    """The JSON object in a document of at most `largest` bytes. Raises Untrusted."""
    document = parse(text, largest=largest)
    if not isinstance(document, dict):
        raise Untrusted("not a JSON object")
    return document


def parse(text: bytes, *, largest: int = FACTS) -> Any:
    """The JSON value in a document of at most `largest` bytes. Raises Untrusted."""
    if len(text) > largest:
        raise Untrusted(f"{len(text)} bytes, more than {largest}")
    _expect_shallow(text)
    try:
        return json.loads(text.decode(), parse_constant=_no_number)
    except (ValueError, RecursionError) as error:
        raise Untrusted(f"invalid JSON: {error}") from error


def text(value: object, what: str, *, longest: int = NAME) -> str:
    """A printable text of limited length; null becomes "". Raises Untrusted."""
    if value is None:
        return ""
    if not isinstance(value, str):
        raise Untrusted(f"{what} is not a string")
    if len(value) > longest:
        raise Untrusted(f"{what} has {len(value)} characters, more than {longest}")
    if not value.isprintable():
        raise Untrusted(f"{what} has non-printable characters")
    return value


def integer(value: object, what: str, *, low: int = 0, high: int = I64) -> int:
    """A whole number from `low` to `high`. Raises Untrusted."""
    if isinstance(value, bool) or not isinstance(value, int):
        raise Untrusted(f"{what} is not an integer")
    if not low <= value <= high:
        raise Untrusted(f"{what} is not between {low} and {high}")
    return value


def number(value: object, what: str, *, low: float, high: float) -> float:
    """A number from `low` to `high`. Raises Untrusted."""
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not low <= value <= high:
        raise Untrusted(f"{what} is not a number from {low} to {high}")
    return float(value)


def moment(value: object, what: str) -> datetime:
    """An ISO-8601 time, in UTC, which is the default zone. Raises Untrusted."""
    if not isinstance(value, str) or len(value) > _LONGEST_MOMENT:
        raise Untrusted(f"{what} is not an ISO-8601 time")
    try:
        found = datetime.fromisoformat(value)
        found = found.replace(tzinfo=UTC) if found.tzinfo is None else found.astimezone(UTC)
    except (ValueError, OverflowError) as error:
        raise Untrusted(f"{what} is not an ISO-8601 time") from error
    if not EARLIEST <= found <= LATEST:
        raise Untrusted(f"{what} is not between {EARLIEST:%Y} and {LATEST:%Y}")
    return found


def _expect_shallow(text: bytes) -> None:
    """Count brackets outside strings, before the parser recurses."""
    if text.count(b"[") + text.count(b"{") <= DEEPEST:
        return
    depth = 0
    for found in _TOKENS.finditer(text):
        token = found[0]
        if token in (b"[", b"{"):
            depth += 1
            if depth > DEEPEST:
                raise Untrusted(f"nested deeper than {DEEPEST} levels")
        elif token in (b"]", b"}"):
            depth -= 1


def _no_number(text: str) -> NoReturn:
    raise ValueError(f"{text} is not a JSON number")
