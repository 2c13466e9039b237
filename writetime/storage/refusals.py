"""What S3, services like it and Google Cloud Storage refuse, and what to do about it: one table for each.

Strategy: a row names answers by code or status, and, where a service has one code for many reasons, by its words; the first
row that fits decides. Retriable are answers that may change by themselves: throttling, conflicts, time-outs. What a person
has to change first (a lock, a quota, a key) is not, even where the service calls it temporary. Must not know a client's
library, nor what the caller does.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Sequence
from typing import Final, NamedTuple

from writetime.errors import ChecksumMismatch, ObjectNotFound, PreconditionFailed, StoreError, StoreUnavailable


class BeyondTheEnd(StoreError):
    """A range beyond the end of the object."""


class Refusal(NamedTuple):
    """Answers with one of these `codes` (text or HTTP status) whose text matches `says`."""

    codes: frozenset[str | int]
    kind: type[StoreError]
    hint: str | None = None
    says: re.Pattern[str] | None = None


def refusal_of(table: Sequence[Refusal], codes: Collection[str | int], text: str) -> Refusal | None:
    """The first row that fits an answer with these codes; None if none does."""
    return next((row for row in table if row.codes & set(codes) and (row.says is None or row.says.search(text))), None)


def _says(*phrases: str) -> re.Pattern[str]:
    return re.compile("|".join(phrases), re.IGNORECASE)


CHANGED: Final = "The bytes changed in transit, or the file changed during the upload."
COLD: Final = (
    "It is in a storage class that has to be restored first: restore it (`aws s3api restore-object`), then run this again. Let the "
    "bucket's lifecycle move objects only to classes that are read at once: batches, replays and erasures read cdc_archive/ at any time."
)
LOCKED: Final = (
    "An object lock, a retention rule or a hold protects it: writetime replaces and deletes objects outside of cdc_archive/ in each "
    "batch. Remove the lock from the bucket, or limit it to cdc_archive/, where it delays retention and erasures."
)
FULL: Final = "Free space or raise the quota. Nothing is lost: shippers keep their segments, and batches run again."
KEY: Final = "Enable the key with which the bucket is encrypted, or let the bucket use another one; objects under a deleted key are lost."
KEY_RIGHTS: Final = (
    "Let the account use the key with which the bucket is encrypted: kms:GenerateDataKey and kms:Decrypt, with Google "
    "cloudkms.cryptoKeyVersions.useToEncrypt and useToDecrypt for the service agent of Cloud Storage."
)
KEY_BUSY: Final = "The key service throttles: enable S3 bucket keys, or raise the quota of KMS requests."
BILLING: Final = "Enable billing for the bucket's project. Nothing is lost: shippers keep their segments, and batches run again."
ACCOUNT: Final = "The account that owns the bucket is closed or not paid for: ask its owner. Nothing is lost: shippers keep their segments."
PERIMETER: Final = (
    "A service perimeter or a constraint of the organisation refuses it, whatever the account's rights are: have this machine and this "
    "bucket allowed there."
)
REQUESTER_PAYS: Final = "Turn off requester pays for the bucket: requests here name no project or payer."
REGION: Final = "Set AWS_REGION to the region of the bucket."
CLOCK: Final = "Set this machine's clock."
LACKS: Final = "This service lacks something that is needed: see docs/adr/0012."
RENEW: Final = "Renew the credentials: AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, or the account that the machine is attached to."
RENEW_GCS: Final = "Renew the credentials: GOOGLE_APPLICATION_CREDENTIALS, or the account that the machine is attached to."
ENVIRONMENT: Final = (
    "Correct what the environment or the library's files say: AWS_ENDPOINT_URL_S3 (https://host[:port]), AWS_REGION, AWS_PROFILE, "
    "AWS_CONFIG_FILE, AWS_CA_BUNDLE, HTTPS_PROXY (http://[user:password@]host:port)."
)
PROXY: Final = "Name an HTTP proxy, or list the store's host in NO_PROXY."
PLACES_GCS: Final = (
    "Correct HTTPS_PROXY (http://[user:password@]host:port; SOCKS is not supported) or STORAGE_EMULATOR_HOST (http://host:port)."
)
S3_RIGHTS: Final = (
    "Check the account's rights (docs/security.md): s3:GetObject, PutObject and AbortMultipartUpload where a node ships; ListBucket and "
    "DeleteObject for the pipeline. Without ListBucket a missing object looks forbidden."
)
GCS_RIGHTS: Final = (
    "Check the account's rights (docs/security.md): storage.objects.create and get where a node ships; list and delete for the pipeline. "
    "Without list a missing object looks forbidden."
)

_LOCK_WORDS: Final = _says("object lock", "WORM", "retention", "legal hold", "temporary hold", "event-based hold", "protected by")

# Amazon answers expired credentials with status 400, other services with 403; "400" is the code of an answer without a
# body, which to a well-formed question means just that.
S3: Final = (
    Refusal(
        frozenset({"BadDigest", "InvalidDigest", "XAmzContentSHA256Mismatch", "XAmzContentChecksumMismatch"}), ChecksumMismatch, CHANGED
    ),
    Refusal(frozenset({"RequestTimeTooSkewed"}), StoreError, CLOCK),
    Refusal(frozenset({"AccountProblem", "AllAccessDisabled", "NotSignedUp"}), StoreError, ACCOUNT),
    Refusal(frozenset({"InvalidObjectState"}), StoreError, COLD),
    Refusal(frozenset({"ObjectLocked", "ObjectUnderRetention", "FileImmutable", 405}), StoreError, LOCKED),
    Refusal(frozenset({"AccessDenied", "InvalidRequest", 403}), StoreError, LOCKED, _LOCK_WORDS),
    Refusal(
        frozenset({"QuotaExceeded", "XMinioStorageFull", "XMinioAdminBucketQuotaExceeded", "InsufficientStorage", 507}), StoreError, FULL
    ),
    Refusal(frozenset({"KMS.ThrottlingException", "KMS.LimitExceededException", "KMS.KMSInternalException"}), StoreUnavailable, KEY_BUSY),
    Refusal(
        frozenset({"KMS.DisabledException", "KMS.NotFoundException", "KMS.KMSInvalidStateException", "KMS.InvalidStateException"}),
        StoreError,
        KEY,
    ),
    Refusal(frozenset({"KMS.AccessDeniedException"}), StoreError, KEY_RIGHTS),
    Refusal(frozenset({"AccessDenied", 403}), StoreError, KEY_RIGHTS, _says(r"\bkms:")),
    Refusal(frozenset({"AccessDenied", 403}), StoreError, REQUESTER_PAYS, _says("requester.?pays")),
    Refusal(
        frozenset({"AuthorizationHeaderMalformed", "PermanentRedirect", "IllegalLocationConstraintException", 301}), StoreError, REGION
    ),
    Refusal(
        frozenset({"ExpiredToken", "TokenRefreshRequired", "InvalidToken", "InvalidAccessKeyId", "SignatureDoesNotMatch", "400", 401}),
        StoreError,
        RENEW,
    ),
    Refusal(
        frozenset({"NoSuchUpload", "RequestTimeout", "IncompleteBody", "SlowDown", "Throttling", "ThrottlingException",
                   "RequestLimitExceeded", "TooManyRequests", "OperationAborted", 409, 429}),
        StoreUnavailable,
    ),
    Refusal(frozenset({"NotImplemented", 501}), StoreError, LACKS),
    Refusal(frozenset({"AccessDenied", 403}), StoreError, S3_RIGHTS),
    Refusal(frozenset({404}), ObjectNotFound),
    Refusal(frozenset({412}), PreconditionFailed),
    Refusal(frozenset({416}), BeyondTheEnd),
)  # fmt: skip
"""By `Error.Code` and status. Statuses from 500 on that are not here are retriable."""

GCS: Final = (
    Refusal(frozenset({412}), PreconditionFailed),
    Refusal(frozenset({403}), StoreError, BILLING, _says("billing", "accountDisabled")),
    Refusal(frozenset({403}), StoreError, LOCKED, _says("retention", r"\bhold\b")),
    Refusal(frozenset({400, 403}), StoreError, KEY, _says("key.* (?:is|was) (?:disabled|destroyed|not enabled)")),
    Refusal(frozenset({400, 403}), StoreError, KEY_RIGHTS, _says("Cloud KMS", "cryptoKey")),
    Refusal(frozenset({403}), StoreUnavailable, None, _says("rate ?limit", "quota ?exceeded")),
    Refusal(frozenset({400, 403}), StoreError, REQUESTER_PAYS, _says("requester pays")),
    Refusal(frozenset({403}), StoreError, PERIMETER, _says("VPC Service Controls", "organization's constraint", "constraints/")),
    Refusal(frozenset({401}), StoreError, RENEW_GCS),
    Refusal(frozenset({403}), StoreError, GCS_RIGHTS),
    Refusal(frozenset({409, 429}), StoreUnavailable),
)
"""By status. Statuses from 500 on are retriable."""
