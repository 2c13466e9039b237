"""Every error that writetime raises on purpose.

    WritetimeError
    ├── ConfigError                    the pipeline's YAML is wrong; never retriable
    ├── StoreError                     an object store call failed
    │   ├── ObjectNotFound
    │   ├── PreconditionFailed         the object's generation is not the expected one
    │   ├── ChecksumMismatch           the store holds other bytes than were sent or promised
    │   ├── StoreUnavailable           retriable: time-out, 5xx, connection refused
    │   ├── SourceUnreadable           the local file that was to be written cannot be read; nothing is wrong with the store
    │   └── LeaseLost                  retriable: another process holds the lease, or has taken it over
    ├── SegmentError                   bytes of a commit log segment are not what they should be
    │   ├── NotASegment                no commit log at all (name or header)
    │   ├── UnsupportedSegment         a real segment that is not read: its version or codec, or its key lacks
    │   ├── CorruptDescriptor          header CRC or contents
    │   ├── CorruptSection             a sync marker or frame length cannot be trusted: the rest of the section is lost
    │   ├── CorruptFrame               one frame's CRC is wrong; the next frame can be read
    │   └── TornTail                   the last section ends early: normal for a live or crashed node, not corruption
    ├── DecodeError                    a frame with good CRCs cannot be turned into cells
    │   ├── UnknownTable               no schema for a table id
    │   ├── UnknownColumn              the schema in force lacks a column
    │   └── MalformedMutation          bytes do not follow the grammar
    ├── SchemaError                    the schema cannot be learnt or parsed
    ├── BatchError
    │   ├── BatchBusy                  retriable: another batch is still unsealed, or another run is at this one
    │   └── AccountingMismatch         partition updates in != the sum of what became of them
    ├── ShipError                      the shipper cannot go on with a file or at all
    └── PublishError                   events cannot be handed to a sink

An error says what was being done (`operation`), on which object, at which position, whether the same call may succeed later
(`retriable`), and what a person should do next (`hint`). A checksum failure is always an error, never a log line.
"""

from __future__ import annotations

from typing import Any


class WritetimeError(Exception):
    """Base of all. `str()` gives one line for a person; `as_dict()` the same for machines."""

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
        super().__init__(message)
        self.message = message
        self.operation = operation
        self.obj = obj
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
        line += " (a retry may help)" if self.retriable else ""
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
    """There is no such object (or no such generation of it)."""


class PreconditionFailed(StoreError):
    """The object's generation is not the expected one: somebody else wrote or already created it."""


class ChecksumMismatch(StoreError):
    """The store holds other bytes than were sent or promised."""


class StoreUnavailable(StoreError):
    """The store did not answer as it should; the same call may succeed later."""

    retriable = True


class SourceUnreadable(StoreError):
    """The local file that was to be written cannot be read. Nothing is wrong with the store."""


class LeaseLost(StoreError):
    """Another process holds the lease on what is to be written, or has taken it over."""

    retriable = True


class SegmentError(WritetimeError):
    """Bytes of a commit log segment are not what they should be."""


class NotASegment(SegmentError):
    """The file is no commit log segment."""


class UnsupportedSegment(SegmentError):
    """A real segment that is not read: of an unknown version or codec; retriable where its key lacks, or room for what it unpacks to."""


class CorruptDescriptor(SegmentError):
    """The segment's header is damaged; nothing in the file can be trusted."""


class CorruptSection(SegmentError):
    """A sync marker or a frame's length cannot be trusted; the rest of the section is lost."""


class CorruptFrame(SegmentError):
    """One frame's bytes do not match its CRC; its length could be trusted, so the next frame is readable."""


class TornTail(SegmentError):
    """The last section ends early. Normal for a node that is alive or has crashed; not corruption."""


class DecodeError(WritetimeError):
    """A frame with good CRCs cannot be turned into cells."""


class UnknownTable(DecodeError):
    """No schema is known for a table id. `table_id` is its UUID as text."""

    def __init__(self, message: str, *, table_id: str, **kwargs: Any) -> None:
        super().__init__(message, **kwargs)
        self.table_id = table_id


class UnknownColumn(DecodeError):
    """The schema in force lacks a column that the mutation names: `column`, and whether it is `static`."""

    def __init__(self, message: str, *, column: str = "", static: bool = False, **kwargs: Any) -> None:
        super().__init__(message, **kwargs)
        self.column = column
        self.static = static


class MalformedMutation(DecodeError):
    """The bytes do not follow the mutation grammar of the schema in force."""


class SchemaError(WritetimeError):
    """The schema cannot be learnt or parsed."""


class BatchError(WritetimeError):
    """A batch cannot be planned, run or sealed."""


class BatchBusy(BatchError):
    """Another batch is still unsealed, or another run is at this one."""

    retriable = True


class AccountingMismatch(BatchError):
    """Partition updates in do not equal the sum of what became of them."""


class ShipError(WritetimeError):
    """The shipper cannot go on with a file, or at all."""


class PublishError(WritetimeError):
    """Events cannot be handed to a sink."""
