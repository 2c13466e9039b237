"""Erase a key from the bucket: from archived segments, quarantine records, and notes of incomplete rows.

Strategy: a segment is searched for the bytes that begin an update of the key (table id and partition key),
and decoded only if it contains them. The update is cut out so that everything else stays in its place
(`writetime.cassandra.commitlog.redact`), and the object is replaced in one step. Its metadata keep the
original size and checksum, so that the same bytes uploaded again are recognized; then the ledger entry is
updated. Frames of tables that are not captured are removed completely if they contain the key's bytes:
`system.batches` and `system.paxos` hold copies of mutations. Every step is repeatable, also by concurrent
runs.

Does not know state, warehouse or Spark; the caller distributes the objects.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Final, NamedTuple
from uuid import UUID

from pydantic import Field

from writetime.cassandra.commitlog import redact
from writetime.cassandra.commitlog.descriptor import parse
from writetime.cassandra.commitlog.encode import encode_update, mutation_head
from writetime.cassandra.commitlog.encryption.keystore import Keystore
from writetime.cassandra.commitlog.mutation import decode_placed, read_head
from writetime.cassandra.commitlog.segment import Scan, scan
from writetime.cassandra.model import PartitionUpdate
from writetime.cassandra.schema.model import Schema
from writetime.cassandra.types.byte_comparable import RowKeys, record_key
from writetime.cassandra.types.vint import write_unsigned
from writetime.errors import DecodeError, ObjectNotFound, PreconditionFailed, SegmentError, WritetimeError
from writetime.pipeline.documents import Contents, Document, LedgerEntry
from writetime.pipeline.erasures import Erased
from writetime.pipeline.quarantine import frame_ranges
from writetime.pipeline.quarantine.record import change_note, note_of
from writetime.pipeline.unreached import Unreached, table_of
from writetime.storage import layout, segment_object
from writetime.storage.checksum import crc32c
from writetime.storage.store import ObjectInfo, Store

_TRIES: Final = 5
_EPOCH: Final = (
    rb"(?:[\x00-\x7f]|[\x80-\xbf].|[\xc0-\xdf]..|[\xe0-\xef].{3}|[\xf0-\xf7].{4}"
    rb"|[\xf8-\xfb].{5}|[\xfc-\xfd].{6}|\xfe.{7}|\xff.{8})?"
)
"""A pattern of a vint of any length, or nothing."""
"""zstd's default; for segments that are packed again."""


class Found(Document):
    """What one object held of the key: `frames` removed or shortened; `trouble`: why it was left
    unchanged."""

    object: str
    frames: int = 0
    trouble: str = ""


class Outcome(Document):
    """What a run has found of a key and, if `done`, has erased.

    `live`: why the key must not be erased yet; empty: nothing prevents it. `segments`: archived segments
    that held the key. `waiting`: objects that are not archived yet; they are left unchanged. `records`: of
    the state; `rows`: by table of the warehouse. `pieces`: quarantine records; `touched`: notes of
    incomplete rows; `events`: objects with events outside the tables. `troubles`: what could not be erased;
    `unreached`: places that may hold copies, and until when (`beyond`: the same as texts)."""

    table: str
    batch: int | None = None
    done: bool = False
    live: list[str] = Field(default=[])
    segments: list[Found] = Field(default=[])
    waiting: list[Found] = Field(default=[])
    pieces: int = 0
    touched: int = 0
    events: int = 0
    records: int = 0
    rows: dict[str, int] = Field(default={})
    troubles: list[str] = Field(default=[])
    beyond: list[str] = Field(default=[])
    unreached: list[Unreached] = Field(default=[])

    @property
    def again(self) -> bool:
        """Whether the command has to be run again later."""
        return bool(self.waiting or self.troubles or any(each.holds_key for each in self.unreached))


def outcome_text(found: Outcome) -> str:
    """The outcome as text."""
    verb = f"erased by batch {found.batch}" if found.done else "found"
    counts = {
        "segments of the archive": sum(1 for each in found.segments if each.frames),
        "records of the state": found.records,
        "quarantine records": found.pieces,
        "notes of incomplete rows": found.touched,
        "objects with events": found.events,
        **{f"rows of {name.replace('`', '')}": count for name, count in found.rows.items()},
    }
    lines = [f"{found.table}: {verb}", *(f"  {count} {what}" for what, count in counts.items())]
    lines += [f"cannot be erased yet: {why}" for why in found.live]
    lines += [f"not erased: {why}" for why in found.troubles]
    lines += [f"{'not erased' if found.done else 'will not be erased'}: {each.text}" for each in found.unreached if each.holds_key]
    lines += [f"contains the key, not archived yet: {each.object}" for each in found.waiting]
    if found.done and (found.waiting or found.troubles):
        lines.append("Run the same command again after the next batch.")
    lines += ["Not reached:", *table_of(found.unreached)]
    if not found.done:
        lines.append("Nothing was changed. Use --yes to erase it permanently.")
    return "\n".join(lines)


@dataclass(frozen=True, slots=True)
class Search:
    """One key of one table, as workers search for it: `tables` are its incarnations, `captured` all tables
    ever captured."""

    schema: Schema
    captured: frozenset[UUID]
    tables: tuple[UUID, ...]
    key: bytes
    erased: Mapping[bytes, Erased]
    row: bytes | None = None
    """The row's key, where only one row is erased."""
    marks: tuple[re.Pattern[bytes], ...] = field(init=False)
    """The bytes that begin an update of the key, for each incarnation: its id, an epoch if the segment's version
    has any, and the key."""

    def __post_init__(self) -> None:
        sized = re.escape(write_unsigned(len(self.key)) + self.key)
        marks = (re.compile(re.escape(table.bytes) + _EPOCH + sized, re.DOTALL) for table in self.tables)
        object.__setattr__(self, "marks", tuple(marks))

    def may_be_in(self, data: bytes) -> bool:
        return any(mark.search(data) for mark in self.marks)

    def is_record(self, record: bytes) -> bool:
        """Whether a record key of the state belongs to the erased key."""
        if self.row is not None:
            return record == record_key(self.key, self.row)
        return record.startswith(record_key(self.key))

    def change(self, body: bytes, version: int) -> bytes | None:
        """What is to stand in the place of a mutation, `b""` for nothing; None to leave it. DecodeError if it
        holds the key and cannot be taken apart."""
        if not self.may_be_in(body):
            return None
        try:
            placed = decode_placed(body, self.schema, version=version)
        except DecodeError:
            count, table_id, *_ = read_head(body, version=version)
            if count == 1 and table_id not in self.captured:
                return b""
            raise
        kept, changed = [], False
        for each in placed:
            left = self._left(each.update, body[each.start : each.end], version)
            changed = changed or left is not None
            kept.append(body[each.start : each.end] if left is None else left)
        if not changed:
            return None
        rest = [each for each in kept if each]
        return mutation_head(len(rest), body[0], version=version) + b"".join(rest) if rest else b""

    def _left(self, update: PartitionUpdate, encoded: bytes, version: int) -> bytes | None:
        """The encoded rest of an update; None if nothing is removed."""
        table = self.schema.tables[update.table_id]
        if (found := self.erased.get(update.table_id.bytes)) is not None:
            left = found.left(update, RowKeys(table, self.schema.types), counter=table.is_counter)
            if left is None:
                return b""
            return None if left is update else encode_update(left, table, self.schema.types, version=version)
        # A table that is not captured, with a copy of a mutation.
        return b"" if update.table_id not in self.captured and self.may_be_in(encoded) else None


# --- the archive


def archive_objects(store: Store, cluster: str) -> list[str]:
    """All archived segments, packed and plain."""
    return [info.name for info in store.names(layout.archive_prefix(cluster)) if layout.is_segment(info.name)]


def waiting_objects(store: Store, cluster: str) -> list[str]:
    """Objects that are not archived yet: whole segments, generated frames, and parts of growing segments."""
    prefixes = layout.incoming_prefix(cluster), layout.frames_prefix(cluster), layout.parts_prefix(cluster)
    return [info.name for prefix in prefixes for info in store.names(prefix) if layout.is_segment(info.name)]


def in_segment(store: Store, name: str, search: Search, keys: Keystore | None = None) -> Found:
    """What a segment holds of the key; changes nothing."""
    try:
        content = segment_object.read(store, name)
        if name.startswith("cdc_parts/"):
            return Found(object=name, frames=int(search.may_be_in(content)))
        return _looked(name, content, search, keys)[0]
    except ObjectNotFound:
        # Ingested, packed or deleted in the meantime.
        return Found(object=name)
    except WritetimeError as error:
        return Found(object=name, trouble=str(error))


def from_segment(store: Store, name: str, search: Search, keys: Keystore | None = None) -> Found:
    """Remove the key from an archived segment, and update its ledger entry; also from its packed form, if it has been packed since
    it was listed."""
    found = _from_object(store, name, search, keys)
    if (found is None or found.frames) and not layout.is_packed(name):
        # One that is written later, packing deletes itself.
        packed = _from_object(store, layout.packed(name), search, keys)
        found = packed if found is None or (packed is not None and packed.trouble) else found
    return found or Found(object=name)


def _from_object(store: Store, name: str, search: Search, keys: Keystore | None) -> Found | None:
    """None: there is no such object."""
    for _ in range(_TRIES):
        info = store.head(name)
        if info is None:
            return None
        try:
            found, held = _replace(store, info, search, keys)
            _note(store, held)
        except (ObjectNotFound, PreconditionFailed):
            # Another run or archive maintenance changed it: try again.
            continue
        except WritetimeError as error:
            return Found(object=name, trouble=str(error))
        return found
    return Found(object=name, trouble="the object was changed concurrently, giving up")


def _replace(store: Store, info: ObjectInfo, search: Search, keys: Keystore | None) -> tuple[Found, ObjectInfo]:
    content = segment_object.read(store, info.name, generation=info.generation)
    found, made = _looked(info.name, content, search, keys)
    if made == content:
        return found, info
    before, size, checksum = segment_object.content_of(info), len(made), crc32c(made)
    original = segment_object.original_of(info) or before
    about = {
        segment_object.ORIGINAL_SIZE: str(original.size),
        segment_object.ORIGINAL_CRC32C: str(original.crc32c),
        segment_object.REPLACED_SIZE: str(before.size),
        segment_object.REPLACED_CRC32C: str(before.crc32c),
    }
    stored = made
    if layout.is_packed(info.name):
        stored = segment_object.pack(made)
        about |= {segment_object.SIZE: str(size), segment_object.CRC32C: str(checksum)}
    return found, store.put(info.name, stored, if_generation=info.generation, metadata={**info.metadata, **about})


def _looked(name: str, content: bytes, search: Search, keys: Keystore | None) -> tuple[Found, bytes]:
    """What the segment holds of the key, and the segment without it."""
    segment = layout.SegmentRef.from_object(name).segment
    if not _is_packed(content) and not search.may_be_in(content):
        return Found(object=name), content
    found = scan(content, name=segment.filename, keys=keys)
    if not search.may_be_in(found.image):
        return Found(object=name), content
    changed = redact.changes(found, lambda body: _changed(body, found, search, name))
    return Found(object=name, frames=len(changed)), redact.without(found, changed, search.may_be_in, name=name, keys=keys)


def _changed(body: bytes, found: Scan, search: Search, name: str) -> bytes | None:
    try:
        return search.change(body, found.descriptor.version)
    except DecodeError as error:
        why = f"a mutation with the key cannot be decoded: {error.message}"
        raise SegmentError(why, operation="erase from a segment", obj=name) from error


def _is_packed(content: bytes) -> bool:
    """Whether the segment is compressed or encrypted, so that its bytes cannot be searched directly."""
    try:
        return parse(content)[0].codec is not None
    except SegmentError:
        return False


def _note(store: Store, held: ObjectInfo) -> None:
    """Update the ledger entry of a segment from which a key was erased."""
    original = segment_object.original_of(held)
    if original is None:
        return
    ledger = layout.SegmentRef.from_object(held.name).ledger
    info = store.head(ledger)
    if info is None:
        return
    entry = LedgerEntry.model_validate_json(store.read(ledger, generation=info.generation))
    now, noted = segment_object.content_of(held), segment_object.Content(entry.size, entry.crc32c)
    is_of_it = entry.archived_as is not None and layout.plain(entry.archived_as) == layout.plain(held.name)
    if not is_of_it or noted == now or not segment_object.stands_for(held, noted):
        return
    changed = {
        "size": now.size,
        "crc32c": now.crc32c,
        "stored": held.size if layout.is_packed(held.name) else None,
        "erased_from": Contents(**original._asdict()),
        "updated_at": datetime.now(UTC),
    }
    store.put(ledger, entry.model_copy(update=changed).to_bytes(), if_generation=info.generation)


# --- quarantine


class ErasableRecord(NamedTuple):
    """A quarantine record that contains the key: `left` are the bytes that remain."""

    info: ObjectInfo
    left: bytes


def quarantine_records(store: Store, cluster: str, search: Search) -> Iterator[ErasableRecord]:
    """The quarantine records with the key, of frames and damaged ranges. One that cannot be split is removed
    completely."""
    unpublished = layout.unpublishable_prefix(cluster)
    for info in store.list(layout.quarantine_prefix(cluster)):
        if not info.name.endswith(".bin") or info.name.startswith(unpublished):
            continue
        try:
            data = store.read(info.name, generation=info.generation)
        except ObjectNotFound:
            continue
        if search.may_be_in(data):
            yield ErasableRecord(info, _left_of(info.name, data, search))


def _left_of(name: str, data: bytes, search: Search) -> bytes:
    try:
        if layout.quarantined_frames(name) > 1:
            bodies = frame_ranges.unpack(data)
            return frame_ranges.pack(body for body in bodies if not search.may_be_in(body))
    except ValueError:
        return b""
    return b""


def erase_record(store: Store, record: ErasableRecord, batch: int) -> None:
    """Remove the key's bytes from a quarantine record; if none are left, its note says that they were
    erased."""
    change_note(store, note_of(record.info.name), erased_in=batch)
    try:
        if record.left:
            store.put(record.info.name, record.left, if_generation=record.info.generation)
        else:
            store.delete(record.info.name, if_generation=record.info.generation)
    except (ObjectNotFound, PreconditionFailed):
        # Another run of the batch did it.
        return


# --- incomplete rows


def incomplete_rows(store: Store, cluster: str, search: Search, *, erase: bool) -> int:
    """The number of notes that list rows of the key as incomplete; with `erase` these rows are removed from
    them."""
    found = 0
    for info in store.list(layout.incomplete_rows_prefix(cluster)):
        try:
            document = json.loads(store.read(info.name, generation=info.generation))
            if UUID(document["table_id"]) not in search.tables:
                continue
            kept = [key for key in document["keys"] if not search.is_record(bytes.fromhex(key))]
            if len(kept) == len(document["keys"]):
                continue
            found += 1
            if erase and kept:
                text = json.dumps({**document, "keys": kept}, indent=1).encode() + b"\n"
                store.put(info.name, text, if_generation=info.generation)
            elif erase:
                store.delete(info.name, if_generation=info.generation)
        except (ObjectNotFound, PreconditionFailed):
            continue
    return found
