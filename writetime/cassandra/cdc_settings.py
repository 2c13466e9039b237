"""A node's CDC settings, and which of them make Cassandra drop captured writes without an error.

Strategy: one name and one unit per setting for all releases. None means unknown, and an unknown setting is
never reported as unsafe. The shipper reads the settings from its node (`shippers.cdc_settings`) and writes
them to the node's status, which the jobs and the status command read. They are validated like everything that
nodes write. This module does not know CQL or the bucket.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from datetime import timedelta
from typing import Any, ClassVar, Final, Self

from writetime import untrusted
from writetime.untrusted import Untrusted

_MODE: Final = 32
"""Characters of `commitlog_sync`: periodic, batch, group."""


@dataclass(frozen=True, slots=True)
class UnsafeSetting:
    """A setting with which a node drops captured writes. `consequence`: what happens; `hint`: what to
    change."""

    name: str
    value: bool
    consequence: str
    hint: str

    def __str__(self) -> str:
        return f"{self.name} is {str(self.value).lower()}: {self.consequence}. {self.hint}"


@dataclass(frozen=True, slots=True)
class CdcSettings:
    """CDC settings with their names in Cassandra 4.1; None means unknown.

    `cdc_total_space` is in bytes. `commitlog_sync_ms`: milliseconds between two syncs of the commit log, in
    the modes `periodic` and `group`. `commitlog_sync_lag_ms`: how long a sync of mode `periodic` may be late
    before Cassandra blocks writes; by default 1.5 times the period. Cassandra 4.0 has no `cdc_block_writes`
    (it always rejects writes when the space is full) and no `cdc_on_repair_enabled` (what is streamed to captured tables
    is always logged), 3.11 does not expose settings."""

    CHECKED: ClassVar = ("cdc_enabled", "cdc_block_writes", "cdc_on_repair_enabled")
    """The settings that `unsafe` checks."""

    cdc_enabled: bool | None = None
    cdc_block_writes: bool | None = None
    cdc_on_repair_enabled: bool | None = None
    cdc_total_space: int | None = None
    commitlog_sync: str | None = None
    commitlog_sync_ms: int | None = None
    commitlog_sync_lag_ms: int | None = None

    @classmethod
    def parse(cls, document: object) -> Self:
        """Parse a document's field, the inverse of `to_document`. Unknown keys are ignored. Raises
        Untrusted."""
        if document is None:
            return cls()
        if not isinstance(document, Mapping):
            raise Untrusted("settings are not a JSON object")
        return cls(
            cdc_enabled=_flag(document, "cdc_enabled"),
            cdc_block_writes=_flag(document, "cdc_block_writes"),
            cdc_on_repair_enabled=_flag(document, "cdc_on_repair_enabled"),
            cdc_total_space=_number(document, "cdc_total_space"),
            commitlog_sync=untrusted.text(document.get("commitlog_sync"), "commitlog_sync", longest=_MODE) or None,
            commitlog_sync_ms=_number(document, "commitlog_sync_ms"),
            commitlog_sync_lag_ms=_number(document, "commitlog_sync_lag_ms"),
        )

    @property
    def unsynced(self) -> timedelta | None:
        """How long a mutation may be in the log before it is synced, and so visible in the idx; None if
        unknown. Mode `periodic`: one period until the next sync begins, which may take as long as Cassandra
        accepts writes meanwhile (AbstractCommitLogService). In the other modes a sync begins at once or
        within the window, and writes are not acknowledged before."""
        if self.commitlog_sync == "batch":
            return timedelta(0)
        if self.commitlog_sync not in ("periodic", "group") or self.commitlog_sync_ms is None:
            return None
        period = timedelta(milliseconds=self.commitlog_sync_ms)
        if self.commitlog_sync == "group":
            return 2 * period
        lag = self.commitlog_sync_lag_ms
        return period + (1.5 * period if lag is None else timedelta(milliseconds=lag))

    def to_document(self) -> dict[str, Any]:
        """The known settings, JSON-ready."""
        return {name: value for name, value in asdict(self).items() if value is not None}

    def unsafe(self) -> Iterator[UnsafeSetting]:
        """The settings with which the node drops captured writes without an error."""
        if self.cdc_enabled is False:
            yield UnsafeSetting(
                "cdc_enabled",
                False,
                "Cassandra accepts writes to captured tables and keeps no segment of them in cdc_raw",
                "Set `cdc_enabled: true` in cassandra.yaml and restart the node.",
            )
        if self.cdc_block_writes is False:
            yield UnsafeSetting(
                "cdc_block_writes",
                False,
                "when cdc_raw is full, Cassandra deletes the oldest segments, shipped or not",
                "Set `cdc_block_writes: true` in cassandra.yaml, or by JMX on the running node.",
            )
        if self.cdc_on_repair_enabled is False:
            yield UnsafeSetting(
                "cdc_on_repair_enabled",
                False,
                "what is streamed to captured tables, by sstableloader or a repair, is in no segment of this node",
                "Set `cdc_on_repair_enabled: true` in cassandra.yaml, or by JMX on the running node, before anything is bulk-loaded.",
            )


def _flag(document: Mapping[str, Any], name: str) -> bool | None:
    value = document.get(name)
    if value is not None and not isinstance(value, bool):
        raise Untrusted(f"{name} is not a boolean")
    return value


def _number(document: Mapping[str, Any], name: str) -> int | None:
    value = document.get(name)
    return None if value is None else untrusted.integer(value, name)
