"""The key `archive`: packing and retention."""

from __future__ import annotations

from pydantic import Field, model_validator

from writetime.config.base import Model


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
        description="Older segments are deleted; null: never. Deleted segments cannot be replayed or used for a rebuild, "
        "and a TRUNCATE reported later than that is ignored.",
    )
    keep_ledger_days: float | None = Field(
        default=None,
        ge=1,
        description="Ledger entries of older segments are deleted, once the archive has deleted the segments; null: "
        "never. A late copy of a segment without an entry is ingested again.",
    )
    keep_batches_days: float | None = Field(
        default=None,
        ge=7,
        description="Documents of older batches (manifest, schema, seal) are deleted once they are no longer needed; "
        "null: never. The last 1000 batches and unpublished ones are kept.",
    )
    keep_reports_days: float | None = Field(
        default=90.0,
        ge=2,
        description="Older reports of cdc_verify and cdc_audit except the last of each, settled quarantine records, and "
        "the shippers' reports of disk space are deleted; null: never.",
    )
    keep_claims_days: float | None = Field(
        default=None,
        ge=1,
        description="Events stored in the bucket because they exceed the size limit (`kafka.oversized: claim-check`) are "
        "deleted after this many days; null: never. Keep them at least as long as the topics keep records, or "
        "a claim refers to a missing object.",
    )

    @model_validator(mode="after")
    def _entries_outlive_segments(self) -> ArchiveConfig:
        if self.keep_ledger_days is not None and (self.keep_days is None or self.keep_ledger_days < self.keep_days):
            raise ValueError("the ledger must be kept as long as the archive: set keep_days, not above keep_ledger_days")
        return self
