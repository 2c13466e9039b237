"""Whether a service that speaks S3's protocol keeps the conditions of writes and deletions.

Strategy: the conditions that `s3` relies on are tried on a small object of its own, which is deleted again. A service that
does not know a condition often ignores it without a word (an overwritten segment, a lease with two holders), so the answers
are compared with what the object then is. Random names keep probes of other processes apart. An answer that was lost may
have been repeated by the client: a refusal counts only if the write was not done.

Must not know how objects of the store are written, when a probe is due, nor the client's library.
"""

from __future__ import annotations

import contextlib
import secrets
from typing import Any, Final

from writetime.storage.checksum import crc32c, to_base64

FOLDER: Final = "probes"
_NO_TAG: Final = '"00000000000000000000000000000000"'
_DATA: Final = b"writetime tries whether this service keeps conditions of writes (docs/bucket.md); it may be deleted.\n"
_REFUSED: Final = ("PreconditionFailed", "ConditionalRequestConflict", "NoSuchKey", "412")
OVERWRITES: Final = "ignores `If-None-Match: *` of a write: an object that exists would be overwritten"


def fresh_name() -> str:
    """The name of an object to probe with."""
    return f"{FOLDER}/{secrets.token_hex(16)}"


class Probe:
    """Requests for the object `key` of a bucket by a client of botocore, which raises what it raises."""

    def __init__(self, client: Any, bucket: str, key: str) -> None:
        self._client = client
        self._key = {"Bucket": bucket, "Key": key}

    def fault(self) -> str | None:
        """What the service does with conditions that it must not do, for people; None if it keeps them all."""
        try:
            return self._fault()
        finally:
            for suffix in ("", "-missing"):
                with contextlib.suppress(Exception):
                    self._client.delete_object(**self._named(suffix))

    def _fault(self) -> str | None:
        if self._is_refused(self._put, IfNoneMatch="*") and not self._is_there():
            return "refuses to create an object under `If-None-Match: *`"
        if not self._is_refused(self._put, IfNoneMatch="*"):
            return OVERWRITES
        if not self._is_refused(self._put_in_parts, IfNoneMatch="*"):
            return "ignores `If-None-Match: *` of the completion of an upload in parts: an object that exists would be overwritten"
        if not self._is_refused(self._put, IfMatch=_NO_TAG):
            return "ignores `If-Match` of a write: what another process wrote would be overwritten"
        if not self._is_refused(self._put_in_parts, IfMatch=_NO_TAG):
            return "ignores `If-Match` of the completion of an upload in parts: what another process wrote would be overwritten"
        if not self._is_refused(self._put, "-missing", IfMatch=_NO_TAG):
            return "creates an object that does not exist under `If-Match`: what was deleted would come back"
        # The same bytes have the same tag: a repeated request is no other one.
        if self._is_refused(self._put, IfMatch=self._tag()):
            return "refuses a write under `If-Match` with the tag of the object"
        if not self._is_refused(self._client.delete_object, **self._key, IfMatch=_NO_TAG):
            return "ignores `If-Match` of a deletion: what another process wrote would be deleted"
        if self._is_refused(self._client.delete_object, **self._key, IfMatch=self._tag()) and self._is_there():
            return "refuses a deletion under `If-Match` with the tag of the object"
        return None

    def _named(self, suffix: str = "") -> dict[str, str]:
        return {**self._key, "Key": self._key["Key"] + suffix}

    def _put(self, suffix: str = "", **condition: str) -> None:
        self._client.put_object(**self._named(suffix), Body=_DATA, ChecksumCRC32C=to_base64(crc32c(_DATA)), **condition)

    def _put_in_parts(self, **condition: str) -> None:
        checksum = to_base64(crc32c(_DATA))
        begun = self._client.create_multipart_upload(**self._key, ChecksumAlgorithm="CRC32C", ChecksumType="FULL_OBJECT")
        upload = {**self._key, "UploadId": begun["UploadId"]}
        try:
            part = self._client.upload_part(**upload, PartNumber=1, Body=_DATA, ChecksumCRC32C=checksum)
            parts = [{"PartNumber": 1, "ETag": part["ETag"], "ChecksumCRC32C": checksum}]
            self._client.complete_multipart_upload(
                **upload, MultipartUpload={"Parts": parts}, ChecksumCRC32C=checksum, ChecksumType="FULL_OBJECT", **condition
            )
        finally:
            with contextlib.suppress(Exception):
                self._client.abort_multipart_upload(**upload)

    def _tag(self) -> str:
        return str(self._client.head_object(**self._key)["ETag"])

    def _is_there(self) -> bool:
        try:
            self._client.head_object(**self._key)
        except Exception as error:
            if _status(error) == 404:
                return False
            raise
        return True

    @staticmethod
    def _is_refused(call: Any, *what: str, **about: Any) -> bool:
        try:
            call(*what, **about)
        except Exception as error:
            if _code(error) in _REFUSED or _status(error) == 412:
                return True
            raise
        return False


def _code(error: Exception) -> str:
    response: Any = getattr(error, "response", None) or {}
    return str(response.get("Error", {}).get("Code", ""))


def _status(error: Exception) -> int:
    """Of the service's answer; 0 for errors without one."""
    response: Any = getattr(error, "response", None) or {}
    return int(response.get("ResponseMetadata", {}).get("HTTPStatusCode", 0))
