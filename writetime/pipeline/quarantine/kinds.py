"""Kinds of quarantined data, and what follows from a kind.

Strategy: a kind is stored with the record in the bucket, the warehouse and the topic, so its text never
changes. Some texts are names that errors had when they were first stored; errors may be renamed since
`of_error` maps classes to kinds. A text that this version does not know, written by a later one, stays what
it is and is treated with most caution: it is no single frame and waits for an operator.
"""

from __future__ import annotations

from enum import StrEnum
from types import MappingProxyType
from typing import Final, Self

from writetime import errors


class QuarantineKind(StrEnum):
    """Why data was quarantined."""

    GONE = "gone"
    """The segment's object does not exist any more."""
    REPLACED = "replaced"
    """The segment's object was replaced after the batch had read it."""
    OVERSIZED = "oversized"
    """An event exceeds the sink's size limit."""
    CORRUPT_SECTION = "corrupt_section"
    """A range that holds no readable section; the rest of the segment was read."""
    CORRUPT_FRAME = "corrupt_frame"
    """A frame, with its length and checksums, whose checksum does not match."""
    TORN_TAIL = "torn_tail"
    """The end of a segment whose last section is incomplete."""
    SEGMENT_ERROR = "SegmentError"
    """A whole segment that cannot be read, like the next four."""
    NOT_A_SEGMENT = "NotASegment"
    UNSUPPORTED_SEGMENT = "UnsupportedSegment"
    CORRUPT_DESCRIPTOR = "CorruptDescriptor"
    UNREADABLE_SECTION = "CorruptSection"
    DECODE_ERROR = "DecodeError"
    """A mutation that cannot be decoded, like the next four."""
    UNKNOWN_TABLE = "UnknownTable"
    UNKNOWN_COLUMN = "UnknownColumn"
    MALFORMED_MUTATION = "MalformedMutation"
    SCHEMA_ERROR = "SchemaError"
    """The table's schema cannot be used: it cannot be parsed, or the table is rejected."""

    @classmethod
    def _missing_(cls, value: object) -> Self:
        """A kind of a later version, under its own text."""
        member = str.__new__(cls, value)
        member._name_, member._value_ = "UNRECOGNIZED", str(value)
        return member

    @property
    def is_single_frame(self) -> bool:
        """Whether such a problem concerns one frame only: all other frames of the segment were read."""
        return self is QuarantineKind.CORRUPT_FRAME or self.is_mutation

    @property
    def is_mutation(self) -> bool:
        """Whether the record's bytes are one mutation with a valid checksum."""
        return self in _MUTATIONS

    @property
    def waits_for_schema(self) -> bool:
        """Whether a newer schema may solve such a problem."""
        return self in _WAIT_FOR_SCHEMA


_WAIT_FOR_SCHEMA: Final = frozenset({QuarantineKind.UNKNOWN_TABLE, QuarantineKind.UNKNOWN_COLUMN, QuarantineKind.SCHEMA_ERROR})
_MUTATIONS: Final = _WAIT_FOR_SCHEMA | {QuarantineKind.DECODE_ERROR, QuarantineKind.MALFORMED_MUTATION}
_OF_ERRORS: Final = MappingProxyType(
    {
        errors.ObjectNotFound: QuarantineKind.GONE,
        errors.SegmentError: QuarantineKind.SEGMENT_ERROR,
        errors.NotASegment: QuarantineKind.NOT_A_SEGMENT,
        errors.UnsupportedSegment: QuarantineKind.UNSUPPORTED_SEGMENT,
        errors.CorruptDescriptor: QuarantineKind.CORRUPT_DESCRIPTOR,
        errors.CorruptSection: QuarantineKind.UNREADABLE_SECTION,
        errors.DecodeError: QuarantineKind.DECODE_ERROR,
        errors.UnknownTable: QuarantineKind.UNKNOWN_TABLE,
        errors.UnknownColumn: QuarantineKind.UNKNOWN_COLUMN,
        errors.MalformedMutation: QuarantineKind.MALFORMED_MUTATION,
        errors.SchemaError: QuarantineKind.SCHEMA_ERROR,
    }
)


def of_error(error: errors.WritetimeError) -> QuarantineKind:
    """The kind of what could not be used because of the error, by the nearest class that has one. TypeError
    for an error that quarantines nothing."""
    for cls in type(error).__mro__:
        if (kind := _OF_ERRORS.get(cls)) is not None:
            return kind
    raise TypeError(f"{type(error).__name__} is no reason to quarantine data")
