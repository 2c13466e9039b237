"""The key `archive`: packing and retention."""

from __future__ import annotations

from pydantic import Field

from writetime.config.base import Model

LATE_COPY_DAYS = 365.0
"""How long after its segment an entry of the ledger stays."""
BATCHES_DAYS = 7.0
"""The least that documents of batches stay."""
REPORTS_DAYS = 30.0
"""Days after which older reports of cdc_verify and cdc_audit go, except the last of each, settled quarantine records, and the
shippers' reports of disk space."""


class ArchiveConfig(Model):
    """Packing and retention of ingested segments and their documents, done by cdc_maintain days after the
    batch."""

    compress_after_days: float | None = Field(
        default=1.0,
        ge=0,
        description="Segments completed by their nodes this many days ago are packed, each as one Zstandard frame "
        "(`<name>.zst`); null: never.",
    )
    keep_days: float | None = Field(
        default=None,
        ge=1,
        description="Older segments are deleted, and documents of batches that nothing needs, after 7 days at least; entries of the ledger "
        "a year later. null: never. Deleted segments cannot be replayed or used for a rebuild, and a TRUNCATE reported later than that is "
        "ignored.",
    )
    keep_claims_days: float | None = Field(
        default=None,
        ge=1,
        description="Events stored in the bucket because they exceed the size limit (`kafka.oversized: claim-check`) are "
        "deleted after this many days; null: never. Keep them at least as long as the topics keep records, or "
        "a claim refers to a missing object.",
    )

    @property
    def keep_ledger_days(self) -> float | None:
        """Days after which entries of the ledger go, once their segments have gone; None: never. A late copy of a segment
        without an entry would be ingested again."""
        return None if self.keep_days is None else self.keep_days + LATE_COPY_DAYS

    @property
    def keep_batches_days(self) -> float | None:
        """Days after which documents of batches go that nothing needs; None: never."""
        return None if self.keep_days is None else max(self.keep_days, BATCHES_DAYS)
