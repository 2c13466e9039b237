"""Integers of any size as decimal numbers and texts, and back.

Python's own conversions between the two bases take a time that grows with the square of the length (one of 1 MB
takes a minute), and `str` and `int` refuse more than some thousand digits. A client may write millions.

Strategy: divide and conquer. Halves are joined by a multiplication of `decimal`, or taken apart by a division, which
are fast for long numbers; what is short is left to Python. Knows no CQL type.
"""

from __future__ import annotations

from decimal import MAX_EMAX, MAX_PREC, MIN_EMIN, ROUND_DOWN, Context, Decimal, Inexact, InvalidOperation, Overflow, Rounded
from typing import Final

EXACT: Final = Context(prec=MAX_PREC, Emax=MAX_EMAX, Emin=MIN_EMIN, traps=[Inexact, InvalidOperation, Overflow, Rounded])
"""Computes with numbers of any length, and never rounds."""
_SHORT: Final = 4096
"""Bits that Python converts by itself."""
_BITS_PER_DIGIT: Final = 3.3219281
"""A little more than log2(10)."""
_TWO: Final = Decimal(2)


def to_decimal(value: int) -> Decimal:
    """The integer as a decimal number."""
    number = _joined(abs(value), abs(value).bit_length(), {})
    # Not `-number`, which rounds.
    return number.copy_negate() if value < 0 else number


def to_integer(number: Decimal) -> int:
    """The decimal number without what is after its point."""
    if not number:
        return 0
    bits = int((max(number.adjusted(), 0) + 1) * _BITS_PER_DIGIT) + 1
    if bits <= _SHORT:
        return int(number)
    value = _taken_apart(number.copy_abs().to_integral_value(ROUND_DOWN, EXACT), bits, {})
    return -value if number < 0 else value


def exponent_of(number: Decimal) -> int:
    """ValueError if the number is not finite."""
    exponent = number.as_tuple().exponent
    if not isinstance(exponent, int):
        raise ValueError("not a finite number")
    return exponent


def unscaled(number: Decimal) -> int:
    """All digits of the number as an integer. ValueError if it is not finite."""
    return to_integer(number.scaleb(-exponent_of(number), EXACT))


def integer_text(value: int) -> str:
    """All digits of an integer of any size."""
    return f"{to_decimal(value):f}"


def _joined(value: int, bits: int, powers: dict[int, Decimal]) -> Decimal:
    if bits <= _SHORT:
        return Decimal(value)
    half = bits >> 1
    high, low = value >> half, value & ((1 << half) - 1)
    return EXACT.fma(_joined(high, bits - half, powers), _power(half, powers), _joined(low, half, powers))


def _taken_apart(number: Decimal, bits: int, powers: dict[int, Decimal]) -> int:
    if bits <= _SHORT:
        return int(number)
    half = bits >> 1
    high, low = EXACT.divmod(number, _power(half, powers))
    return _taken_apart(high, bits - half, powers) << half | _taken_apart(low, half, powers)


def _power(bits: int, powers: dict[int, Decimal]) -> Decimal:
    """2 ** bits; both halves of all numbers of one length need the same ones."""
    if (found := powers.get(bits)) is None:
        found = powers[bits] = EXACT.power(_TWO, Decimal(bits))
    return found
