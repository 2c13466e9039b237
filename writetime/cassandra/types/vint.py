"""Variable-length integers (Cassandra 3.0-5.0, utils/vint/VIntCoding).

    first byte   leading 1-bits = number n of further bytes (0..8); its low 7-n bits are the most significant bits of the value
    n bytes      the rest, big-endian

The value is a 64-bit pattern. The caller knows whether it is a length, a wrapped difference or a zig-zag
number.
"""

from __future__ import annotations

from writetime.errors import MalformedMutation

MASK32 = 0xFFFFFFFF
MASK64 = 0xFFFFFFFFFFFFFFFF

EXTRA_BYTES = tuple(next((n for n in range(8) if not first & (0x80 >> n)), 8) for first in range(256))
"""Number of bytes that follow, by first byte."""


def read_unsigned(buf: bytes, pos: int) -> tuple[int, int]:
    """The value (0 .. 2^64-1) and the next position. Raises MalformedMutation if the bytes end early."""
    if pos >= len(buf):
        raise MalformedMutation("the bytes end where a vint should begin", operation="read a vint", position=pos)
    first = buf[pos]
    if first < 0x80:
        return first, pos + 1
    extra = EXTRA_BYTES[first]
    end = pos + 1 + extra
    if end > len(buf):
        raise MalformedMutation(f"a vint of {extra + 1} bytes is cut short", operation="read a vint", position=pos)
    return ((first & (0xFF >> extra)) << 8 * extra) | int.from_bytes(buf[pos + 1 : end], "big"), end


def read_signed(buf: bytes, pos: int) -> tuple[int, int]:
    """A zig-zag coded value (-2^63 .. 2^63-1) and the next position."""
    value, pos = read_unsigned(buf, pos)
    return (value >> 1) ^ -(value & 1), pos


def write_unsigned(value: int) -> bytes:
    """Shortest form of the low 64 bits of `value`: a negative number is written as its two's complement, in
    nine bytes."""
    value &= MASK64
    if value < 0x80:
        return bytes((value,))
    extra = min(8, (value.bit_length() - 1) // 7)
    if extra == 8:
        return b"\xff" + value.to_bytes(8, "big")
    leading = 0xFF & ~(0xFF >> extra)
    return ((leading << 8 * extra) | value).to_bytes(extra + 1, "big")


def write_signed(value: int) -> bytes:
    """Zig-zag form of a 64-bit signed value."""
    return write_unsigned((value << 1) ^ (value >> 63))


def as_int32(pattern: int) -> int:
    """The low 32 bits, read as two's complement."""
    pattern &= MASK32
    return pattern - (1 << 32) if pattern & 0x80000000 else pattern


def as_int64(pattern: int) -> int:
    """The low 64 bits, read as two's complement."""
    pattern &= MASK64
    return pattern - (1 << 64) if pattern >> 63 else pattern
