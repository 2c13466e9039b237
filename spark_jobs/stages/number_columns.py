"""Text columns of numbers as DECIMAL columns, exactly: `as_digits`, and what it raises.

Arrow converts a column of plain, short texts at once, and refuses what it would have to round; all others are
converted one by one. Does not know which columns these are (`writetime.events.number_rules`)."""

from __future__ import annotations

from decimal import Decimal
from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc

from writetime.events.number_rules import Digits
from writetime.events.type_mapping import MAX_PRECISION

_SHORT: Final = MAX_PRECISION // 2
"""Before the point and after it, in a short text."""
HINT: Final = "Set a wider type in `warehouse.decimal` or `warehouse.varint`, or `text`."


class NumberTooLong(Exception):
    """A value does not fit the DECIMAL type of its column, and would not fit again."""


def as_digits(column: str, texts: Any, kind: pa.Decimal128Type) -> Any:
    """An array of texts as decimals of that type; "" is null. NumberTooLong, which names the column, for a number that
    it does not hold exactly."""
    if _are_short(texts, kind.scale):
        try:
            return texts.cast(kind)
        except pa.ArrowInvalid:
            # One of them does not fit.
            pass
    digits = Digits(kind.precision, kind.scale)
    return pa.array([_fitted(column, text, digits) for text in texts.to_pylist()], kind)


def _are_short(texts: Any, scale: int) -> bool:
    """Whether Arrow can be trusted with all of them: it does not notice that a number with that scale overflows its
    128 bits, and some exponents end the process."""
    before = min(_SHORT, MAX_PRECISION - scale)
    plain = rf"^-?[0-9]{{1,{before}}}(\.[0-9]{{1,{_SHORT}}})?$"
    return before > 0 and pc.all(pc.match_substring_regex(texts, plain), min_count=0).as_py() is not False


def _fitted(column: str, text: str | None, digits: Digits) -> Decimal | None:
    if not text:
        return None
    found = digits.fitted(text)
    if found is None:
        raise NumberTooLong(too_long(column, digits, *_figures(Decimal(text))))
    return found


def number_or_null(text: str | None, digits: Digits) -> Decimal | None:
    """The number with that text; null if it does not fit, or if the text is not a number."""
    try:
        return digits.fitted(text) if text else None
    except ValueError:
        return None


def lacking(text: str | None, digits: Digits) -> tuple[int, int] | None:
    """The digits that the number with that text needs before the point and after it; null if it fits, or if the
    text is not a number."""
    try:
        return None if not text or digits.fitted(text) is not None else _figures(Decimal(text))
    except ValueError:
        return None


def _figures(number: Decimal) -> tuple[int, int]:
    _, figures, exponent = number.as_tuple()
    text = "".join(map(str, figures))
    significant = text.strip("0")
    lowest = int(exponent) + len(text) - len(text.rstrip("0"))
    return max(0, lowest + len(significant)), max(0, -lowest)


def too_long(column: str, digits: Digits, before: int, after: int) -> str:
    """States which type would do, without a value, which may be nobody's business."""
    return f"column {column} is {digits}, and a value needs {before} digits before the point and {after} after it. {HINT}"
