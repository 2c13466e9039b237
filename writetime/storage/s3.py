"""Amazon S3 and compatible services as an object store, through botocore.

Strategy: S3 has no generation numbers, so each write stores its own: a number in the metadata, unique to that
write. To replace a generation, the store looks it up and makes the request conditional on the entity tag; to
create an object, it sends `If-None-Match: *`, and the service decides. If the answer to a write is lost, the
write succeeded if the object has its number. Larger data is written in parts, one at a time in memory;
nothing is visible before all are complete. If a part fails, the same call goes on with it the next time. After
a request that broke off, parts are used for all that is larger than one, since a bad link lets small requests
through.

The CRC32C of the whole and of each part is computed before the upload and sent along, so that the service
rejects other bytes; then the service is asked for the CRC32C it holds. Objects written by other tools may
lack a CRC32C or a number: the CRC32C is then computed from the bytes, the generation from tag and time.

Limitation: a tag does not cover metadata. A replacement can miss that another writer wrote identical bytes
since the lookup. Required of a service: conditional writes and deletions, CRC32C of whole objects, listings
in UTF-8 byte order. Whether one other than Amazon's keeps conditions is probed before the first of a process
(`s3_conditions`), as services ignore without a word what they do not know. An account that may not write the
probe's object repeats its first creation instead.

Credentials come from the environment, the library's files or the machine's role, never from the URL, and are those of
now (`s3_credentials`). Must not know segments or batches.
"""

from __future__ import annotations

import contextlib
import functools
import hashlib
import io
import itertools
import os
import re
import secrets
import threading
import time
from collections.abc import Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple
from urllib.parse import quote, unquote
from urllib.request import getproxies_environment

import botocore.loaders
import botocore.session
from botocore import exceptions as boto
from botocore.config import Config
from tenacity import retry, retry_if_exception_type, stop_after_attempt

from writetime.errors import (
    ChecksumMismatch,
    ObjectNotFound,
    PreconditionFailed,
    StoreError,
    StoreUnavailable,
    WritetimeError,
)
from writetime.storage import progress, request_count, s3_conditions
from writetime.storage.address import parse
from writetime.storage.checksum import CHUNK, crc32c, from_base64, to_base64
from writetime.storage.concurrency import AT_ONCE
from writetime.storage.no_proxy import bypasses
from writetime.storage.object_names import is_name, require_name, require_next
from writetime.storage.refusals import ENVIRONMENT, PROXY, RENEW, S3, BeyondTheEnd, Refusal, refusal_of
from writetime.storage.s3_credentials import LiveCredentials
from writetime.storage.s3_endpoint import named_endpoint
from writetime.storage.source import measured, opened, sending
from writetime.storage.store import PAGE, Listed, ObjectInfo, require_facts, require_nothing

_ATTEMPTS = 5
_ONE_REQUEST = 64 << 20
_PART = 8 << 20
_PARTS_SECONDS = 3600.0
_MOST_PARTS = 10_000
_COPIED_PART = 1 << 30
_LOOKS = 8
_LOOKS_AGAIN = 10
_GENERATION = "writetime-generation"
_NO_LISTS = frozenset({"NotImplemented", "MissingContentMD5", "InvalidRequest", "501"})
_NOT_THERE = frozenset({"NoSuchKey", "NoSuchVersion"})
_AMAZONS = re.compile(r"\.amazonaws\.com(\.cn)?(:\d+)?/?$")
_FORBIDDEN = frozenset({"AccessDenied", "Forbidden", "403"})
_PROXY_ADDRESS = re.compile(r"(\[[0-9A-Fa-f:.%]+\]|[^\s:/@\[\]]+)(:\d{1,5})?/?")
_NUMBER = re.compile(r"[0-9]{1,19}")
_PLAIN_VALUE = "".join(chr(code) for code in range(33, 127) if chr(code) != "%")
_PLAIN_KEY = frozenset(b"abcdefghijklmnopqrstuvwxyz0123456789-_.")
_NEEDS_CONDITIONS = (
    "Without them one process overwrites or deletes what another wrote: use a version of the service that keeps them, or another service "
    "(docs/adr/0062). `writetime config check --bucket` probes it again."
)


class _Found(NamedTuple):
    """An object and its entity tag for conditional requests."""

    info: ObjectInfo
    tag: str


class _Unfinished(NamedTuple):
    """An upload in parts that broke off: the call that began it, and the parts that have arrived."""

    call: tuple[Any, ...]
    upload: dict[str, str]
    generation: int
    noted: list[dict[str, Any]]


_FAULTS: dict[tuple[str | None, str], str | None] = {}
"""What is known of conditions in a bucket of an endpoint, by this process and those that it forks: None: they are kept."""
_MAY_NOT_PROBE: set[tuple[str | None, str]] = set()
_PROBING = threading.Lock()


class _BrokenOff(StoreUnavailable):
    """A response that ended early."""


class S3Store:
    """See the module's docstring. `url` is s3://bucket[/prefix]; s3+https://host[:port]/bucket[/prefix] for
    services other than Amazon's.

    Without a host in the URL, the environment may name one (AWS_ENDPOINT_URL_S3). s3+http:// is for services
    without TLS. No connection is made before the first call.
    """

    def __init__(self, url: str) -> None:
        address = parse(url)
        self._endpoint = address.endpoint or named_endpoint()
        self.url, self._bucket, self._prefix = address.url, address.bucket, address.prefix
        self._client_or_none: Any = None
        self._bucket_is_there = False
        self._parts_until = 0.0
        """Until when, in seconds of `time.monotonic`, larger data than a part is sent in parts."""
        self._unfinished: _Unfinished | None = None

    def __reduce__(self) -> tuple[Any, ...]:
        # A connection does not travel to another process; the address does.
        return S3Store, (self.url,)

    def list(self, prefix: str = "", *, start_after: str = "") -> Iterator[ObjectInfo]:
        """See Store.list. The service's listing says too little of an object: each is looked up, some at
        once."""
        names = (each.name for each in self.names(prefix, start_after=start_after))
        with ThreadPoolExecutor(_LOOKS) as pool:
            while some := list(itertools.islice(names, 4 * _LOOKS)):
                # None: it vanished between the listing and the look.
                yield from (info for info in pool.map(self.head, some) if info is not None)

    def names(self, prefix: str = "", *, start_after: str = "", page: int = PAGE) -> Iterator[Listed]:
        """See Store.names."""
        after = {"StartAfter": self._prefix + start_after} if start_after else {}
        with self._explained("list objects", prefix):
            # A service that does not know `StartAfter` begins with the first name.
            last = after.get("StartAfter", "").encode()
            for found in self._pages(prefix, MaxKeys=min(page, PAGE), **after):
                for entry in found.get("Contents", ()):
                    last = require_next(entry["Key"], last, self._prefix + prefix)
                    name = entry["Key"].removeprefix(self._prefix)
                    # "Folders" created in a console are objects named `…/`.
                    if is_name(name):
                        yield Listed(name, int(entry["Size"]), entry["LastModified"])

    def folders(self, prefix: str = "") -> Iterator[str]:
        """See Store.folders."""
        with self._explained("list objects", prefix):
            last = b""
            for found in self._pages(prefix, Delimiter="/"):
                for entry in found.get("CommonPrefixes", ()):
                    last = require_next(entry["Prefix"], last, self._prefix + prefix)
                    name = entry["Prefix"].removeprefix(self._prefix)
                    if is_name(name.removesuffix("/")):
                        yield name

    def head(self, name: str) -> ObjectInfo | None:
        """See Store.head."""
        found = self._look(name, "look up an object")
        return found.info if found else None

    def read(self, name: str, *, generation: int | None = None, start: int = 0, end: int | None = None) -> bytes:
        """See Store.read. A range beyond the end gives what there is. Whole objects are checked against their
        CRC32C."""
        require_name(name, "read an object")
        if end is None or end > start:
            last = "" if end is None else end - 1
            wanted = {"ChecksumMode": "ENABLED"} if (start, end) == (0, None) else {"Range": f"bytes={start}-{last}"}
            with contextlib.suppress(BeyondTheEnd):
                return self._read(name, generation, wanted)
        info = self.head(name)
        if info is None or generation not in (None, info.generation):
            raise _gone(name, generation)
        return b"" if end is not None and end <= start else require_nothing(info, start)

    def put(
        self, name: str, data: bytes | Path, *, if_generation: int | None = None, metadata: Mapping[str, str] | None = None
    ) -> ObjectInfo:
        """See Store.put. A file is read twice: for its CRC32C, and to be sent."""
        require_name(name, "write an object")
        with opened(data, "write an object", name) as source, self._explained("write an object", name):
            crc, size = measured(source)
            repeats = if_generation is not None and not self._keeps_conditions()
            condition = self._condition(name, if_generation, "write an object")
            if size <= _ONE_REQUEST and repeats and if_generation == 0:
                return self._created_twice(name, source, (size, crc), metadata or {})
            if size <= (_PART if time.monotonic() < self._parts_until else _ONE_REQUEST):
                with self._smaller_next_time():
                    return self._put_at_once(name, source, (size, crc), condition, metadata or {})
            if if_generation == 0 and (there := self._looked(name)):
                # It would be refused all the same, when all parts are sent.
                raise _precondition("write an object", name, 0, there.info.generation)
            step = max(_PART, -(-size // _MOST_PARTS))
            parts = iter(lambda: source.read(step), b"")
            return self._put_in_parts(name, (size, crc), condition, metadata or {}, step, (self._sent(data) for data in parts))

    def copy(self, source: str, target: str, *, if_generation: int | None = 0) -> ObjectInfo:
        """See Store.copy. The service copies the bytes, as parts of an object whose completion is
        conditional: not every service has conditions on copies."""
        require_name(target, "copy an object")
        found = self._look(source, "copy an object")
        if found is None:
            raise ObjectNotFound("the object does not exist", operation="copy an object", obj=source)
        info = found.info
        if if_generation is not None:
            self._keeps_conditions()
        with self._explained("copy an object", f"{source} to {target}"):
            condition = self._condition(target, if_generation, "copy an object")
            if info.size == 0:
                return self._put_at_once(target, io.BytesIO(), (0, 0), condition, info.metadata)
            ranges = ((start, min(start + _COPIED_PART, info.size) - 1) for start in range(0, info.size, _COPIED_PART))
            parts = (self._copied(source, found.tag, span) for span in ranges)
            return self._put_in_parts(target, (info.size, info.crc32c), condition, info.metadata, _COPIED_PART, parts)

    def delete(self, name: str, *, if_generation: int | None = None) -> None:
        """See Store.delete."""
        self._keeps_conditions()
        for _ in range(_LOOKS_AGAIN):
            answer = self._answer(name, "delete an object")
            if answer is None:
                raise ObjectNotFound("the object does not exist", operation="delete an object", obj=name)
            if if_generation not in (None, found := _generation(answer)):
                raise _precondition("delete an object", name, if_generation, found)
            tag = answer["ETag"]
            tag = tag if if_generation is None else self._tag_of(name, found, "delete an object", seen=tag)
            # Delete the generation that was looked up, or nothing: the service also confirms deletion of a
            # missing object.
            with contextlib.suppress(PreconditionFailed), self._explained("delete an object", name):
                self._client.delete_object(**self._key(name), IfMatch=tag)
                return
        raise _restless("delete an object", name)

    def discard(self, names: Iterable[str]) -> None:
        """See Store.discard."""
        wanted = iter(names)
        while some := list(itertools.islice(wanted, PAGE)):
            for name in some:
                require_name(name, "delete objects")
            keys = [{"Key": self._prefix + name} for name in some]
            with self._explained("delete objects", some[0]):
                try:
                    answer = self._client.delete_objects(Bucket=self._bucket, Delete={"Objects": keys, "Quiet": True})
                except boto.ClientError as error:
                    if _code(error) not in _NO_LISTS:
                        raise
                    # Some services take no list, or only one with an MD5.
                    answer = {}
                    for key in keys:
                        self._client.delete_object(Bucket=self._bucket, **key)
            # The request succeeds, whatever became of each object.
            for refused in answer.get("Errors", ()):
                if refused.get("Code") not in _NOT_THERE:
                    raise _not_deleted(refused, f"{self.url}/{refused['Key'].removeprefix(self._prefix)}")

    # --- looking

    def _pages(self, prefix: str, **wanted: Any) -> Iterator[Any]:
        """The answers of a listing. Objects and folders are in order, each kind by itself."""
        pages = self._client.get_paginator("list_objects_v2").paginate(Bucket=self._bucket, Prefix=self._prefix + prefix, **wanted)
        more = False
        for page in pages:
            self._bucket_is_there = True
            more = page.get("IsTruncated", False) and not page.get("NextContinuationToken")
            yield page
        if more:
            # The library takes that for the end.
            raise ValueError("the listing breaks off: the service says that there is more, and not how to go on")

    def _answer(self, name: str, operation: str) -> Mapping[str, Any] | None:
        """What the service says of an object, which may lack a CRC32C; None if it does not exist."""
        require_name(name, operation)
        try:
            with self._explained(operation, name):
                answer: Mapping[str, Any] = self._client.head_object(**self._key(name), ChecksumMode="ENABLED")
                self._bucket_is_there = True
                return answer
        except ObjectNotFound:
            self._require_bucket(operation)
            return None

    def _look(self, name: str, operation: str) -> _Found | None:
        for _ in range(_LOOKS_AGAIN):
            if (answer := self._answer(name, operation)) is None:
                return None
            try:
                with self._explained(operation, name):
                    crc = _whole_crc(answer)
                    crc = self._computed(name, answer["ETag"]) if crc is None else crc
                    return _Found(_info(name, answer, crc), answer["ETag"])
            except ObjectNotFound:
                return None
            except PreconditionFailed:
                # It was replaced while its CRC32C was computed.
                continue
        raise _restless(operation, name)

    def _looked(self, name: str) -> _Found | None:
        """As `_look`, but also None if forbidden: without the right to list, a missing object looks
        forbidden."""
        try:
            return self._look(name, "write an object")
        except StoreError as error:
            if error.retriable:
                raise
            return None

    def _require_bucket(self, operation: str) -> None:
        """The response for a missing object equals that for a missing bucket."""
        if not self._bucket_is_there:
            try:
                with self._explained(operation, ""):
                    self._client.head_bucket(Bucket=self._bucket)
            except ObjectNotFound as error:
                raise _no_bucket(operation, self.url) from error
            self._bucket_is_there = True

    def _computed(self, name: str, tag: str) -> int:
        """CRC32C of an object without one, from all its bytes. PreconditionFailed if the tag has changed."""
        crc = 0
        body = self._client.get_object(**self._key(name), IfMatch=tag)["Body"]
        with contextlib.closing(body):
            for chunk in body.iter_chunks(CHUNK):
                crc = crc32c(chunk, crc)
        return crc

    # The library retries requests, but not responses that broke off.
    @retry(retry=retry_if_exception_type(_BrokenOff), stop=stop_after_attempt(3), reraise=True)
    def _read(self, name: str, generation: int | None, wanted: dict[str, str]) -> bytes:
        with self._explained("read an object", name):
            answer = self._client.get_object(**self._key(name), **wanted)
            with contextlib.closing(answer["Body"]) as body:
                if generation is not None and _generation(answer) != generation:
                    raise _gone(name, generation)
                try:
                    data = bytes(body.read())
                except boto.BotoCoreError as error:
                    raise _BrokenOff(str(error), operation="read an object", obj=f"{self.url}/{name}") from error
            crc = None if "Range" in wanted else _whole_crc(answer)
        if crc is not None and crc32c(data) != crc:
            raise ChecksumMismatch(
                f"{len(data)} bytes with CRC32C {crc32c(data):08x} came, the store promised {crc:08x}", operation="read an object", obj=name
            )
        return data

    # --- writing

    def require_conditions(self) -> None:
        """StoreError if the service does not keep the conditions of writes and deletions."""
        fault = self._probed()
        _FAULTS[self._endpoint, self._bucket] = fault
        if fault is not None:
            raise self._does_not_keep(fault)

    def _keeps_conditions(self) -> bool:
        """Whether the service is known to keep conditions; StoreError if it is known not to. False: this account may not
        probe it."""
        place = self._endpoint, self._bucket
        if self._endpoint is None or _AMAZONS.search(self._endpoint):
            return True
        with _PROBING:
            if place not in _FAULTS and place not in _MAY_NOT_PROBE:
                try:
                    _FAULTS[place] = self._probed()
                except StoreError as error:
                    if not isinstance(error.__cause__, boto.ClientError) or _code(error.__cause__) not in _FORBIDDEN:
                        raise
                    _MAY_NOT_PROBE.add(place)
            if place not in _FAULTS:
                return False
        if (fault := _FAULTS[place]) is not None:
            raise self._does_not_keep(fault)
        return True

    def _probed(self) -> str | None:
        name = s3_conditions.fresh_name()
        with self._explained("probe conditional writes", name):
            return s3_conditions.Probe(self._client, self._bucket, self._prefix + name).fault()

    def _does_not_keep(self, fault: str) -> StoreError:
        return StoreError(f"this service {fault}", operation="probe conditional writes", obj=self.url, hint=_NEEDS_CONDITIONS)

    def _created_twice(self, name: str, source: BinaryIO, whole: tuple[int, int], metadata: Mapping[str, str]) -> ObjectInfo:
        """Create an object, and again, which the service must refuse. It is the probe of who may do no more than that."""
        only_if_absent = self._condition(name, 0, "write an object")
        made = self._put_at_once(name, source, whole, only_if_absent, metadata)
        source.seek(0)
        try:
            self._put_at_once(name, source, whole, only_if_absent, metadata)
            fault: str | None = s3_conditions.OVERWRITES
        except PreconditionFailed:
            fault = None
        _FAULTS[self._endpoint, self._bucket] = fault
        if fault is not None:
            raise self._does_not_keep(fault)
        return made

    def _condition(self, name: str, if_generation: int | None, operation: str) -> dict[str, str]:
        """The condition of a write on the target's generation. PreconditionFailed if it has changed
        already."""
        if if_generation is None:
            return {}
        if if_generation == 0:
            return {"IfNoneMatch": "*"}
        return {"IfMatch": self._tag_of(name, if_generation, operation)}

    def _tag_of(self, name: str, generation: int, operation: str, *, seen: str = "") -> str:
        """The tag of that generation. PreconditionFailed if the current one differs.

        Looked at twice: a service may put an answer together from several reads, one from before a write and
        the next from behind it. The other generation's tag would then pass for this one's, and what was just
        written be overwritten. Who has seen a new tag once sees the new generation the next time. `seen`: the tag
        that the caller has just seen together with that generation.
        """
        tags = {seen} if seen else set()
        for _ in range(2 - len(tags)):
            found = self._look(name, operation)
            if found is None or found.info.generation != generation:
                raise _precondition(operation, name, generation, found.info.generation if found else 0)
            tags.add(found.tag)
        return tags.pop() if len(tags) == 1 else self._tag_of(name, generation, operation)

    def _put_at_once(
        self, name: str, source: BinaryIO, whole: tuple[int, int], condition: dict[str, str], metadata: Mapping[str, str]
    ) -> ObjectInfo:
        """Write an object of `whole` (size, CRC32C) in one request, which the library streams from the
        source."""
        generation = _fresh_generation()
        with self._settled(name, generation, condition):
            self._client.put_object(
                **self._key(name), Body=source, ChecksumCRC32C=to_base64(whole[1]), **condition, **_described(name, generation, metadata)
            )
        return self._verified(ObjectInfo(name, whole[0], generation, whole[1], datetime.now(UTC), dict(metadata)))

    @contextlib.contextmanager
    def _smaller_next_time(self) -> Iterator[None]:
        """After a request that broke off, smaller ones: over a bad link a large one may never get through."""
        try:
            yield
        except (boto.ConnectionClosedError, boto.ReadTimeoutError):
            self._parts_until = time.monotonic() + _PARTS_SECONDS
            raise

    def _put_in_parts(
        self,
        name: str,
        whole: tuple[int, int],
        condition: dict[str, str],
        metadata: Mapping[str, str],
        step: int,
        parts: Iterator[Any],
    ) -> ObjectInfo:
        """Write an object of `whole` (size, CRC32C). Each of `parts` is a function that uploads a part of `step`
        bytes and returns the service's response.

        An upload that the same call began before goes on behind the parts that have arrived."""
        same = (name, whole, step, tuple(condition.items()), tuple(metadata.items()))
        unfinished, self._unfinished = self._unfinished, None
        if unfinished is not None and unfinished.call != same:
            self._abort(unfinished)
            unfinished = None
        begun = unfinished or self._begun(name, same)
        upload, generation, noted = begun.upload, begun.generation, begun.noted
        try:
            for n, make in enumerate(parts, 1):
                if n > len(noted):
                    noted.append({"PartNumber": n, **make({**upload, "PartNumber": n})})
            with self._settled(name, generation, condition):
                self._client.complete_multipart_upload(
                    **upload,
                    MultipartUpload={"Parts": noted},
                    ChecksumCRC32C=to_base64(whole[1]),
                    ChecksumType="FULL_OBJECT",
                    MpuObjectSize=whole[0],
                    **condition,
                )
        except BaseException as error:
            if _is_passing(error):
                self._unfinished = begun
            else:
                self._abort(begun)
            raise
        return self._verified(ObjectInfo(name, whole[0], generation, whole[1], datetime.now(UTC), dict(metadata)))

    def _begun(self, name: str, call: tuple[Any, ...]) -> _Unfinished:
        generation = _fresh_generation()
        begun = self._client.create_multipart_upload(
            **self._key(name), ChecksumAlgorithm="CRC32C", ChecksumType="FULL_OBJECT", **_described(name, generation, dict(call[-1]))
        )
        return _Unfinished(call, {**self._key(name), "UploadId": begun["UploadId"]}, generation, [])

    def _abort(self, unfinished: _Unfinished) -> None:
        """An incomplete upload is not an object, but it is stored and paid for until it is aborted or a bucket
        rule removes it."""
        with contextlib.suppress(Exception):
            self._client.abort_multipart_upload(**unfinished.upload)

    def _sent(self, data: bytes) -> Any:
        def send(part: dict[str, Any]) -> dict[str, str]:
            checksum = to_base64(crc32c(data))
            answer = self._client.upload_part(**part, Body=progress.Body(data), ChecksumCRC32C=checksum)
            return {"ETag": answer["ETag"], "ChecksumCRC32C": checksum}

        return send

    def _copied(self, source: str, tag: str, span: tuple[int, int]) -> Any:
        def copy(part: dict[str, Any]) -> dict[str, str]:
            answer = self._client.upload_part_copy(
                **part, CopySource=self._key(source), CopySourceIfMatch=tag, CopySourceRange=f"bytes={span[0]}-{span[1]}"
            )["CopyPartResult"]
            return {key: answer[key] for key in ("ETag", "ChecksumCRC32C") if key in answer}

        return copy

    @contextlib.contextmanager
    def _settled(self, name: str, generation: int, condition: Mapping[str, str]) -> Iterator[None]:
        """A refused write may be the library's retry of one that succeeded: then the object has this write's
        number. A forbidden creation may mean that the name is taken: a service may check the right to replace
        first."""
        try:
            yield
        except boto.ClientError as error:
            forbidden = _status(error) == 403 and "IfNoneMatch" in condition
            if not forbidden and _code(error) not in _REFUSED:
                raise
            found = self._looked(name)
            if found is None and (forbidden or _status(error) == 409):
                raise
            if found is None or found.info.generation != generation:
                raise PreconditionFailed(
                    f"there is {f'generation {found.info.generation}' if found else 'none'}: {error}",
                    operation="write an object",
                    obj=name,
                ) from error

    def _verified(self, sent: ObjectInfo) -> ObjectInfo:
        """The stored facts of a write. If another writer replaced it since: the facts that were sent, which
        the store checked."""
        found = self._look(sent.name, "verify an object")
        if found is None or found.info.generation != sent.generation:
            return sent
        held = found.info
        if (held.size, held.crc32c) != (sent.size, sent.crc32c):
            raise ChecksumMismatch(
                f"{sent.size} bytes with CRC32C {sent.crc32c:08x} were sent, the store holds {held.size} bytes with {held.crc32c:08x}",
                operation="verify an object",
                obj=sent.name,
                hint="The object is left unchanged: inspect it before it is written again.",
            )
        return held

    # --- the service

    def _key(self, name: str) -> dict[str, str]:
        return {"Bucket": self._bucket, "Key": self._prefix + name}

    @property
    def _client(self) -> Any:
        if self._client_or_none is None:
            self._client_or_none = self._made()
        return self._client_or_none

    def _made(self) -> Any:
        """A client, without a connection. StoreError for values of its environment that it refuses."""
        self._expect_proxy()
        try:
            return self._client_of(botocore.session.get_session())
        except (boto.BotoCoreError, ValueError) as error:
            raise StoreError(f"{type(error).__name__}: {error}", operation="open the store", obj=self.url, hint=ENVIRONMENT) from error

    def _expect_proxy(self) -> None:
        """StoreError if there is a proxy for this store that cannot be used. The library's own errors show parts of its password."""
        found, url = getproxies_environment(), self._endpoint or "https://amazonaws.com"
        scheme = url.partition(":")[0]
        proxy = found.get(scheme, "")
        if not proxy or bypasses(found.get("no", ""), url):
            return
        kind, separator, rest = proxy.rpartition("://")
        login, _, address = rest.rpartition("@")
        why = None
        if separator and kind.lower() not in ("http", "https"):
            why = "only HTTP proxies are supported"
        elif re.search("[#?/]", login):
            why = "its password has a sign that ends a URL: write # as %23, ? as %3F, / as %2F"
        elif _PROXY_ADDRESS.fullmatch(address) is None:
            why = "its value is not the URL of a proxy: http://[user:password@]host:port"
        if why is not None:
            raise StoreError(why, operation="open the store", obj=f"{scheme.upper()}_PROXY", hint=PROXY)

    def _client_of(self, session: Any) -> Any:
        session.register_component("data_loader", _models())
        live = LiveCredentials()
        session.register_component("credential_provider", live)
        client = session.create_client(
            "s3",
            endpoint_url=self._endpoint,
            region_name=os.environ.get("AWS_REGION") or session.get_config_variable("region") or "us-east-1",
            config=Config(
                signature_version="s3v4",
                connect_timeout=10,
                read_timeout=60,
                max_pool_connections=max(_LOOKS, AT_ONCE),
                retries={"mode": "standard", "total_max_attempts": _ATTEMPTS},
                request_checksum_calculation="when_required",
                response_checksum_validation="when_required",
                # The library's own reading of NO_PROXY knows no networks.
                proxies={} if self._endpoint and bypasses(getproxies_environment().get("no", ""), self._endpoint) else None,
                # Other services have no host name per bucket.
                s3={"addressing_style": "path"} if self._endpoint else None,
            ),
        )
        client.meta.events.register("before-send.s3", request_count.count)
        client.meta.events.register("before-send.s3", _sends)
        client.meta.events.register("needs-retry.s3", live.retry_if_renewed)
        client.meta.events.register("response-received.s3", _moved)
        return client

    @contextlib.contextmanager
    def _explained(self, operation: str, name: str) -> Iterator[None]:
        """Translate the library's errors, and those of unexpected responses, which may come from a proxy."""
        try:
            yield
        except WritetimeError:
            raise
        except Exception as error:
            raise _translate(error, operation, f"{self.url}/{name}") from error


@functools.cache
def _models() -> Any:
    """The library's service model, loaded once per process: it takes most of a client's set-up time and
    memory."""
    return botocore.loaders.create_loader()


def _sends(request: Any, **_: Any) -> None:
    """A hook of the library: the request's body was read for its signature, and is sent now."""
    sending(request.body, until_seek=True)


def _is_passing(error: BaseException) -> bool:
    """Whether an upload in parts can go on after it. One that the service has forgotten cannot."""
    if isinstance(error, boto.ClientError) and _code(error) == "NoSuchUpload":
        return False
    if isinstance(error, WritetimeError):
        return error.retriable
    return isinstance(error, Exception) and _translate(error, "write an object", "").retriable


def _moved(response_dict: object = None, **_: object) -> None:
    if response_dict is not None:
        progress.moved()


def _not_deleted(refused: Mapping[str, str], obj: str) -> StoreError:
    """The error of one object among those that were to be deleted."""
    code, message = str(refused.get("Code")), f"{refused.get('Code')}: {refused.get('Message')}"
    if code in ("InternalError", "ServiceUnavailable"):
        return StoreUnavailable(message, operation="delete an object", obj=obj)
    row = refusal_of(S3, (code,), message) or Refusal(frozenset(), StoreError)
    return row.kind(message, operation="delete an object", obj=obj, hint=row.hint)


def _fresh_generation() -> int:
    """A unique number for a write: ms since the epoch and 20 random bits."""
    return time.time_ns() // 1_000_000 << 20 | secrets.randbits(20)


def _described(name: str, generation: int, metadata: Mapping[str, str]) -> dict[str, Any]:
    """Headers of an object. User metadata are sent as headers: names and values are percent-escaped."""
    noted = {_escaped_key(key): quote(value, safe=_PLAIN_VALUE) for key, value in metadata.items()}
    return {
        "Metadata": {**noted, _GENERATION: str(generation)},
        "ContentType": "application/json" if name.endswith(".json") else "application/octet-stream",
    }


def _escaped_key(key: str) -> str:
    """Header names are case-insensitive, so upper case is escaped."""
    return "".join(chr(byte) if byte in _PLAIN_KEY else f"%{byte:02x}" for byte in key.encode())


def _info(name: str, answer: Mapping[str, Any], crc: int) -> ObjectInfo:
    noted = answer["Metadata"]
    # Only this module's escapes are decoded; metadata of other tools stay unchanged.
    ours = {unquote(key): unquote(value) for key, value in noted.items() if key != _GENERATION} if _GENERATION in noted else noted
    return require_facts(ObjectInfo(name, int(answer["ContentLength"]), _generation(answer), crc, answer["LastModified"], dict(ours)))


def _generation(answer: Mapping[str, Any]) -> int:
    """The number of the write; for objects of other tools it is derived from tag and time."""
    number = answer["Metadata"].get(_GENERATION, "")
    if _NUMBER.fullmatch(number):
        return int(number)
    made = hashlib.blake2b(f"{answer['ETag']} {answer['LastModified'].timestamp():.0f}".encode(), digest_size=7)
    return int.from_bytes(made.digest(), "big") + 1


def _whole_crc(answer: Mapping[str, Any]) -> int | None:
    """The stored CRC32C of all bytes. For an object in parts it may be a checksum of checksums, which is
    ignored."""
    text = answer.get("ChecksumCRC32C")
    return None if text is None or answer.get("ChecksumType") == "COMPOSITE" or "-" in text else from_base64(text)


def _gone(name: str, generation: int | None) -> ObjectNotFound:
    what = "the object does not exist" if generation is None else f"generation {generation} is gone"
    return ObjectNotFound(what, operation="read an object", obj=name)


def _no_bucket(operation: str, where: str) -> StoreError:
    return StoreError("the bucket does not exist", operation=operation, obj=where, hint="Create it, or correct `bucket`.")


def _restless(operation: str, name: str) -> StoreUnavailable:
    return StoreUnavailable("it is another object at every look", operation=operation, obj=name)


def _precondition(operation: str, name: str, wanted: int | None, found: int) -> PreconditionFailed:
    expected = "no object" if wanted == 0 else f"generation {wanted}"
    present = f"generation {found}" if found else "none"
    return PreconditionFailed(f"{expected} was expected, there is {present}", operation=operation, obj=name)


def _code(error: boto.ClientError) -> str:
    return str(error.response.get("Error", {}).get("Code", ""))


def _status(error: boto.ClientError) -> int:
    return int(error.response.get("ResponseMetadata", {}).get("HTTPStatusCode", 0))


def _translate(error: Exception, operation: str, where: str) -> StoreError:
    what: dict[str, Any] = {"operation": operation, "obj": where}
    text = f"{type(error).__name__}: {error}"
    if not isinstance(error, boto.ClientError):
        for kinds, make, hint in _OF_THE_LIBRARY:
            if isinstance(error, kinds):
                return make(text, hint=hint, **what)
        return (StoreError if isinstance(error, _RAISED) else StoreUnavailable)(text, **what)
    if _code(error) == "NoSuchBucket":
        return _no_bucket(operation, where)
    if (row := refusal_of(S3, (_code(error), _status(error)), text)) is not None:
        return row.kind(text, hint=row.hint, **what)
    return (StoreUnavailable if _status(error) >= 500 else StoreError)(text, **what)


_REFUSED = ("PreconditionFailed", "ConditionalRequestConflict", "NoSuchKey", "NoSuchUpload", "404", "409", "412")
_OF_THE_LIBRARY: tuple[tuple[tuple[type[Exception], ...], type[StoreError], str | None], ...] = (
    ((boto.EndpointProviderError, boto.InvalidProxiesConfigError), StoreError, ENVIRONMENT),
    ((boto.SSLError,), StoreError, "AWS_CA_BUNDLE names a file with the certificates to trust."),
    ((boto.HTTPClientError, boto.ConnectionError, boto.IncompleteReadError, ConnectionError, TimeoutError), StoreUnavailable, None),
    ((boto.MetadataRetrievalError, boto.CredentialRetrievalError), StoreUnavailable, RENEW),
    ((boto.NoCredentialsError, boto.PartialCredentialsError), StoreError, RENEW),
)
_RAISED = (boto.ClientError, boto.BotoCoreError, OSError)
