"""What S3 and Google refuse, as an error with the right advice: simulated answers through the stores themselves."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from botocore.retries import standard

from tests.storage import gcs_stub, s3_stub
from writetime.errors import ChecksumMismatch, ConfigError, ObjectNotFound, PreconditionFailed, StoreError, StoreUnavailable
from writetime.storage import gcs, open_store, refusals
from writetime.storage.refusals import GCS, S3, Refusal
from writetime.storage.store import Store

LOCK = "Access Denied because object protected by object lock."
KMS = "User: arn:aws:iam::1:user/x is not authorized to perform: kms:GenerateDataKey on resource: arn:aws:kms:eu-west-1:1:key/2"
Answer = tuple[int, str, str]
OF_S3: list[tuple[Answer, type[StoreError], str | None]] = [
    ((400, "BadDigest", "refused"), ChecksumMismatch, refusals.CHANGED),
    ((403, "RequestTimeTooSkewed", "refused"), StoreError, refusals.CLOCK),
    ((403, "InvalidObjectState", "The operation is not valid for the object's storage class"), StoreError, refusals.COLD),
    ((405, "MethodNotAllowed", "refused"), StoreError, refusals.LOCKED),
    ((403, "AccessDenied", LOCK), StoreError, refusals.LOCKED),
    ((400, "InvalidRequest", "Object is WORM protected and cannot be overwritten"), StoreError, refusals.LOCKED),
    ((403, "QuotaExceeded", "refused"), StoreError, refusals.FULL),
    ((507, "XMinioStorageFull", "Storage backend has reached its minimum free drive threshold."), StoreError, refusals.FULL),
    ((400, "XMinioAdminBucketQuotaExceeded", "Bucket quota exceeded"), StoreError, refusals.FULL),
    ((507, "InsufficientStorage", "refused"), StoreError, refusals.FULL),
    ((400, "KMS.ThrottlingException", "Rate exceeded"), StoreUnavailable, refusals.KEY_BUSY),
    ((400, "KMS.DisabledException", "is disabled."), StoreError, refusals.KEY),
    ((400, "KMS.NotFoundException", "does not exist"), StoreError, refusals.KEY),
    ((400, "KMS.KMSInvalidStateException", "is pending deletion."), StoreError, refusals.KEY),
    ((400, "KMS.AccessDeniedException", "refused"), StoreError, refusals.KEY_RIGHTS),
    ((403, "AccessDenied", KMS), StoreError, refusals.KEY_RIGHTS),
    ((403, "AccessDenied", "Bucket is requester pays bucket but no payer was provided"), StoreError, refusals.REQUESTER_PAYS),
    ((400, "AuthorizationHeaderMalformed", "expecting 'eu-west-1'"), StoreError, refusals.REGION),
    ((400, "IllegalLocationConstraintException", "refused"), StoreError, refusals.REGION),
    ((400, "ExpiredToken", "refused"), StoreError, refusals.RENEW),
    ((400, "TokenRefreshRequired", "refused"), StoreError, refusals.RENEW),
    ((403, "InvalidAccessKeyId", "refused"), StoreError, refusals.RENEW),
    ((503, "SlowDown", "Please reduce your request rate."), StoreUnavailable, None),
    ((503, "RequestLimitExceeded", "refused"), StoreUnavailable, None),
    ((429, "TooManyRequests", "refused"), StoreUnavailable, None),
    ((409, "OperationAborted", "refused"), StoreUnavailable, None),
    ((500, "InternalError", "refused"), StoreUnavailable, None),
    ((501, "NotImplemented", "refused"), StoreError, refusals.LACKS),
    ((403, "AccessDenied", "Access Denied"), StoreError, refusals.S3_RIGHTS),
    ((403, "AllAccessDisabled", "All access to this object has been disabled"), StoreError, refusals.ACCOUNT),
    ((403, "AccountProblem", "refused"), StoreError, refusals.ACCOUNT),
    ((400, "IncompleteBody", "You did not provide the number of bytes specified"), StoreUnavailable, None),
]
RETENTION = (
    "Object 'bucket/a' is subject to bucket's retention policy or object retention and cannot be deleted or overwritten until 2027-01-01"
)
OF_GCS: list[tuple[tuple[int, str], type[StoreError], str | None]] = [
    ((403, "The billing account for the owning project is disabled in state closed"), StoreError, refusals.BILLING),
    ((403, RETENTION), StoreError, refusals.LOCKED),
    ((401, "Invalid Credentials"), StoreError, refusals.RENEW_GCS),
    (
        (403, "Request is prohibited by organization's policy. vpcServiceControlsUniqueIdentifier: x (VPC Service Controls)"),
        StoreError,
        refusals.PERIMETER,
    ),
    (
        (403, "Object 'bucket/a' is under active Event-Based hold and cannot be deleted, overwritten or archived"),
        StoreError,
        refusals.LOCKED,
    ),
    ((403, "Object 'bucket/a' is under active Temporary hold and cannot be deleted, overwritten or archived"), StoreError, refusals.LOCKED),
    ((403, "Cloud KMS key projects/p/cryptoKeys/k/cryptoKeyVersions/1 is disabled"), StoreError, refusals.KEY),
    ((400, "Cloud KMS key projects/p/cryptoKeys/k is not enabled, current state is: DESTROYED"), StoreError, refusals.KEY),
    (
        (403, "Permission denied on Cloud KMS key. Please ensure that your service account has been authorized"),
        StoreError,
        refusals.KEY_RIGHTS,
    ),
    ((403, "Rate Limit Exceeded"), StoreUnavailable, None),
    ((429, "The object bucket/a exceeded the rate limit for object mutation operations"), StoreUnavailable, None),
    ((400, "Bucket is a requester pays bucket but no user project provided."), StoreError, refusals.REQUESTER_PAYS),
    ((403, "x@y does not have storage.objects.create access to the Google Cloud Storage object."), StoreError, refusals.GCS_RIGHTS),
    ((409, "conflict"), StoreUnavailable, None),
    ((503, "backend error"), StoreUnavailable, None),
    ((412, "At least one of the pre-conditions you specified did not hold."), PreconditionFailed, None),
]
CALLS: dict[str, Callable[[Store], object]] = {
    "read": lambda store: store.read("a"),
    "write": lambda store: store.put("b", b"1"),
    "create": lambda store: store.put("b", b"1", if_generation=0),
    "delete": lambda store: store.delete("a"),
}


def refused(call: Callable[[Store], object], store: Store) -> StoreError:
    with pytest.raises(StoreError) as raised:
        call(store)
    return raised.value


@pytest.fixture(autouse=True)
def _at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(standard.ExponentialBackoff, "delay_amount", lambda *_: 0.0)
    monkeypatch.setattr(gcs, "_RETRY", gcs._RETRY.with_timeout(0.05).with_delay(initial=0.001, maximum=0.002))


def is_as(error: StoreError, kind: type[StoreError], hint: str | None) -> bool:
    retriable = kind is StoreUnavailable
    return (type(error), error.hint, error.retriable) == (kind, hint, retriable) and (hint or "") in str(error)


@pytest.mark.parametrize(
    ("answer", "kind", "hint"), OF_S3, ids=lambda value: "-".join(map(str, value[:2])) if isinstance(value, tuple) else ""
)
@pytest.mark.advice(
    "The bytes changed in transit",
    "Free space or raise the quota.",
    "Enable the key with which",
    "restore it (`aws s3api restore-object`)",
    "An object lock, a retention rule or a hold",
    "The key service throttles",
    "Renew the credentials: AWS_ACCESS_KEY_ID",
    "Set this machine's clock.",
    "Let the account use the key",
    "Turn off requester pays",
    "Set AWS_REGION to the region",
    "s3:GetObject, PutObject and AbortMultipartUpload where",
    "The account that owns the bucket is closed",
)
def test_s3(s3_memory: s3_stub.Stub, answer: Answer, kind: type[StoreError], hint: str | None) -> None:
    store = open_store(f"s3://{s3_stub.BUCKET}")
    s3_memory.objects["a"] = s3_stub.Held(b"abc", {}, s3_stub.crc32c(b"abc"))
    for name, (method, call) in {
        "read": ("GET", CALLS["read"]),
        "write": ("PUT", CALLS["write"]),
        "delete": ("DELETE", CALLS["delete"]),
    }.items():
        s3_memory.faults, s3_memory.only = [answer] * 9, {method}
        error = refused(call, store)
        assert is_as(error, kind, hint), (name, error)
    # What the advice is about is the service's: it answers as after the advice was followed.
    s3_memory.faults = []
    assert (store.read("a"), store.put("b", b"1").size) == (b"abc", 1)
    # One of many that were to be deleted at once.
    s3_memory.faults = []
    s3_memory.undeletable = {"a": answer[1]}
    error = refused(lambda store: store.discard(["a"]), store)
    if answer[2] == "refused" and kind is not ChecksumMismatch:
        assert error.hint == hint or answer[0] in (405, 507), error


@pytest.mark.parametrize(("answer", "kind", "hint"), OF_GCS, ids=lambda value: str(value[0]) if isinstance(value, tuple) else "")
@pytest.mark.advice(
    "Enable billing for the bucket's project.",
    "storage.objects.create and get where a node ships",
    "A service perimeter or a constraint",
    "Renew the credentials: GOOGLE_APPLICATION_CREDENTIALS",
)
def test_gcs(stub: gcs_stub.Stub, answer: tuple[int, str], kind: type[StoreError], hint: str | None) -> None:
    store = open_store(f"gs://{gcs_stub.BUCKET}")
    stub.objects["a"] = gcs_stub.Held(b"abc", 1, {})
    for name in ("read", "write", "delete"):
        stub.faults = [answer] * 99
        error = refused(CALLS[name], store)
        assert is_as(error, kind, hint), (name, error)
    # As above.
    stub.faults = []
    assert (store.read("a"), store.put("b", b"1").size) == (b"abc", 1)


def test_each_row_has_an_answer_here() -> None:
    def rows(table: tuple[Refusal, ...], answers: list[tuple[set[str | int], str]]) -> set[int]:
        return {id(refusals.refusal_of(table, codes, text)) for codes, text in answers}

    plain = [(404, ObjectNotFound), (412, PreconditionFailed), (416, refusals.BeyondTheEnd)]
    of_s3: list[tuple[set[str | int], str]] = [({code, status}, f"{code} {text}") for (status, code, text), _, _ in OF_S3]
    of_s3 += [({status}, "") for status, _ in plain]
    of_gcs: list[tuple[set[str | int], str]] = [({status}, text) for (status, text), _, _ in OF_GCS]
    assert rows(S3, of_s3) >= {id(row) for row in S3}
    assert rows(GCS, of_gcs) >= {id(row) for row in GCS}


@pytest.mark.parametrize("code", ["MissingContentMD5", "InvalidRequest", "NotImplemented"])
def test_a_service_that_takes_no_list_is_asked_for_each_deletion(s3_memory: s3_stub.Stub, code: str) -> None:
    store = open_store(f"s3://{s3_stub.BUCKET}")
    s3_memory.objects |= {name: s3_stub.Held(b"abc", {}) for name in "abc"}
    s3_memory.faults, s3_memory.only = [(501 if code == "NotImplemented" else 400, code)], {"POST"}
    store.discard(["a", "b", "missing"])
    assert list(s3_memory.objects) == ["c"]


def test_an_access_point_is_named_by_its_alias() -> None:
    with pytest.raises(ConfigError, match="alias"):
        open_store("s3://arn:aws:s3:eu-west-1:123456789012:accesspoint/orders/cdc")
    assert open_store("s3://orders-abcdef-s3alias/cdc").url == "s3://orders-abcdef-s3alias/cdc"
