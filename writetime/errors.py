"""Every error that writetime raises on purpose.

    WritetimeError
    ├── ConfigError                    the pipeline's YAML is wrong; never retriable
    ├── StoreError                     an object store call failed
    │   ├── ObjectNotFound
    │   ├── PreconditionFailed         the object's generation is not the expected one
    │   ├── ChecksumMismatch           the store's bytes differ from what was sent or announced
    │   ├── StoreUnavailable           retriable: time-out, 5xx, connection refused
    │   ├── SourceUnreadable           the local file to upload cannot be read; the store is not at fault
    │   └── LeaseLost                  retriable: another process holds the lease or took it over
    ├── SegmentError                   the bytes of a commit log segment are invalid
    │   ├── NotASegment                not a commit log segment (by name or header)
    │   ├── UnsupportedSegment         a segment that cannot be read: version, codec or missing key
    │   ├── CorruptDescriptor          invalid header CRC or contents
    │   ├── CorruptSection             a sync marker or frame length is invalid: the rest of the section is lost
    │   ├── CorruptFrame               one frame's CRC does not match; the next frame can be read
    │   └── TornTail                   the last section ends early: normal for a live or crashed node, not corruption
    ├── DecodeError                    a frame with valid CRCs cannot be decoded
    │   ├── UnknownTable               no schema for a table id
    │   ├── UnknownColumn              the current schema lacks a column
    │   └── MalformedMutation          bytes do not follow the grammar
    ├── SchemaError                    the schema cannot be read or parsed
    ├── BatchError
    │   ├── BatchBusy                  retriable: another batch is not sealed, or another run works on this one
    │   ├── BatchClosed                the batch is sealed or voided: nothing may be written for it any more
    │   ├── ChainMismatch              the warehouse holds another chain of batches than the bucket
    │   └── AccountingMismatch         partition updates read != the sum of their outcomes
    ├── SparkLimit                     Spark came to a limit of its configuration or machines: memory, size of results, disk
    ├── ShipError                      the shipper cannot continue, with one file or at all
    └── PublishError                   events cannot be written to a sink

An error states the operation, the object, the position, whether the same call may succeed later
(`retriable`), and what the operator should do next (`hint`). A checksum failure is always an error, never a
log line.
"""

from __future__ import annotations

import re
from typing import Any, Final

MASK: Final = "**********"
_A_VALUE: Final = r"""(?:\{(?:[^}]|\}\})*\}|"[^"]*"|'[^']*'|[^;&\s)]+)"""
_SECRET_IN_TEXT: Final = re.compile(
    rf"((?:passw\w*|passphrase|pwd|secret|token|signature|\bsig|(?:api|access|account|shared)_?key|private_key\w*)\s?=)\s?{_A_VALUE}"
    # A password may have a slash or an @, so it ends at the last @ before a parameter.
    r"|(://[^/@:\s]*:)[^\s?;]+(?=@)|(jdbc:oracle:\w+:[^/@\s]*/)[^\s?;]+(?=@)",
    re.IGNORECASE,
)
RETRY: Final = " (a retry may help)"
"""What the text of an error says that is retriable: that of a worker's error is all that a driver has of it."""


def without_secrets(text: str) -> str:
    """A text without the passwords in its URLs and parameters."""
    return _SECRET_IN_TEXT.sub(lambda found: f"{found[1] or found[2] or found[3]}{MASK}", text)


class WritetimeError(Exception):
    """Base class. `str()` returns one line of text; `as_dict()` the same as fields. No text has a password of a URL: messages
    of libraries, which some errors pass on, may have one."""

    retriable: bool = False

    def __init__(
        self,
        message: str,
        *,
        operation: str | None = None,
        obj: str | None = None,
        position: int | None = None,
        retriable: bool | None = None,
        hint: str | None = None,
    ) -> None:
        message = without_secrets(message)
        super().__init__(message)
        self.message = message
        self.operation = operation
        self.obj = None if obj is None else without_secrets(obj)
        self.position = position
        self.hint = hint
        if retriable is not None:
            self.retriable = retriable

    def __str__(self) -> str:
        where = self.obj or ""
        if self.position is not None:
            where = f"{where} at position {self.position}".strip()
        parts = [part for part in (self.operation, where, self.message) if part]
        line = ": ".join(parts)
        line += RETRY if self.retriable else ""
        return f"{line}. {self.hint}" if self.hint else line

    def __reduce__(self) -> tuple[Any, ...]:
        # Errors cross process borders (Spark workers); the default pickling drops keyword-only arguments.
        return (_rebuild, (type(self), self.message, self.__dict__.copy()))

    def as_dict(self) -> dict[str, Any]:
        """The error as JSON-ready fields: kind, message, operation, object, position, retriable, hint."""
        return {
            "kind": type(self).__name__,
            "message": self.message,
            "operation": self.operation,
            "object": self.obj,
            "position": self.position,
            "retriable": self.retriable,
            "hint": self.hint,
        }


def _rebuild(cls: type[WritetimeError], message: str, state: dict[str, Any]) -> WritetimeError:
    error = cls.__new__(cls)
    Exception.__init__(error, message)
    error.__dict__.update(state)
    return error


class ConfigError(WritetimeError):
    """The configuration is wrong."""


class StoreError(WritetimeError):
    """An object store call failed."""


class ObjectNotFound(StoreError):
    """The object, or that generation of it, does not exist."""


class PreconditionFailed(StoreError):
    """The object's generation is not the expected one: another writer created or replaced it."""


class ChecksumMismatch(StoreError):
    """The store's bytes differ from what was sent or announced."""


class StoreUnavailable(StoreError):
    """The store failed to answer; the same call may succeed later."""

    retriable = True


class SourceUnreadable(StoreError):
    """The local file to upload cannot be read. The store is not at fault."""


class LeaseLost(StoreError):
    """Another process holds the lease or took it over."""

    retriable = True


class SegmentError(WritetimeError):
    """The bytes of a commit log segment are invalid."""


class NotASegment(SegmentError):
    """The file is not a commit log segment."""


class UnsupportedSegment(SegmentError):
    """A segment of an unknown version or codec; retriable if its decryption key or the space to unpack it is
    missing."""


class CorruptDescriptor(SegmentError):
    """The segment's header is damaged; nothing in the file can be trusted."""


class CorruptSection(SegmentError):
    """A sync marker or a frame length is invalid; the rest of the section is lost."""


class CorruptFrame(SegmentError):
    """One frame's bytes do not match its CRC; its length is valid, so the next frame can be read."""


class TornTail(SegmentError):
    """The last section ends early. Normal for a running or crashed node; not corruption."""


class DecodeError(WritetimeError):
    """A frame with valid CRCs cannot be decoded."""


class UnknownTable(DecodeError):
    """No schema for a table id. `table_id` is its UUID as text."""

    def __init__(self, message: str, *, table_id: str, **kwargs: Any) -> None:
        super().__init__(message, **kwargs)
        self.table_id = table_id


class UnknownColumn(DecodeError):
    """The current schema lacks a column of the mutation: `column`, and whether it is `static`."""

    def __init__(self, message: str, *, column: str = "", static: bool = False, **kwargs: Any) -> None:
        super().__init__(message, **kwargs)
        self.column = column
        self.static = static


class MalformedMutation(DecodeError):
    """The bytes do not follow the mutation grammar under the current schema."""


class SchemaError(WritetimeError):
    """The schema cannot be read or parsed."""


class BatchError(WritetimeError):
    """A batch cannot be planned, run or sealed."""


class BatchBusy(BatchError):
    """Another batch is not sealed, or another run works on this one."""

    retriable = True


class BatchClosed(BatchError):
    """The batch is sealed or voided: nothing may be written for it any more."""


class ChainMismatch(BatchError):
    """The warehouse holds another chain of batches than the bucket."""


class AccountingMismatch(BatchError):
    """Partition updates read do not equal the sum of their outcomes."""


class SparkLimit(WritetimeError):
    """Spark came to a limit of its configuration or of its machines: memory, size of results, disk. Retriable if another
    attempt may have more."""


class ShipError(WritetimeError):
    """The shipper cannot continue, with one file or at all."""


class PublishError(WritetimeError):
    """Events cannot be written to a sink."""
