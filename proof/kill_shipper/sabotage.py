"""Ways to break the shipper, one per rule that it must keep. They patch the shipper's process; the check must
detect each one.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from shippers import completed, folder, spill, tail, upload
from shippers.folder import Found, State
from shippers.upload import Local, Outcome
from writetime.cassandra.commitlog.sections import Place
from writetime.errors import PreconditionFailed, ShipError
from writetime.storage.store import ObjectInfo, Store


def delete_before_upload() -> None:
    """The file is deleted before its upload."""

    def send(store: Store, local: Local, metadata: Mapping[str, str], look_first: bool) -> Outcome:
        data = local.log.read_bytes()
        local.log.unlink()
        store.put(local.ref.incoming, data, if_generation=0, metadata=metadata)
        return Outcome.UPLOADED

    upload._upload = send
    upload._require_unchanged = lambda local: None


def delete_before_verify() -> None:
    """The result of `put` is not verified, nor an existing object compared."""

    def send(store: Store, local: Local, metadata: Mapping[str, str], look_first: bool) -> Outcome:
        try:
            store.put(local.ref.incoming, local.log, if_generation=0, metadata=metadata)
        except PreconditionFailed:
            return Outcome.ALREADY_THERE
        return Outcome.UPLOADED

    upload._upload = send


def compare_sizes_only() -> None:
    """An object of the same size counts as equal."""
    upload._is_same = lambda local, stored: local.size == stored.size


def overwrite() -> None:
    """Uploads replace existing objects."""
    real = upload._upload

    def send(store: Store, local: Local, metadata: Mapping[str, str], look_first: bool) -> Outcome:
        class Careless:
            def put(self, name: str, data: Any, *, if_generation: int | None = None, metadata: Any = None) -> Any:
                return store.put(name, data, metadata=metadata)

            def __getattr__(self, name: str) -> Any:
                return getattr(store, name)

        return real(Careless(), local, metadata, False)  # type: ignore[arg-type]

    upload._upload = send


def conflict_not_shipped() -> None:
    """In a conflict the node's own bytes are discarded."""
    real = upload._create

    def create(store: Store, name: str, local: Local, metadata: Mapping[str, str], look_first: bool) -> tuple[bool, ObjectInfo]:
        if name == local.ref.incoming:
            return real(store, name, local, metadata, look_first)
        return False, ObjectInfo(name, local.size, 1, local.crc32c, local.sealed_at)

    upload._create = create


def conflict_without_comparing() -> None:
    """Every existing object counts as a conflict."""

    def send(store: Store, local: Local, metadata: Mapping[str, str], look_first: bool) -> Outcome:
        written, _ = upload._create(store, local.ref.incoming, local, metadata, look_first)
        if not written:
            upload._create(store, local.ref.conflict(local.crc32c), local, metadata, look_first)
        return Outcome.UPLOADED if written else Outcome.IN_CONFLICT

    upload._upload = send


def ship_what_grows() -> None:
    """A segment with an idx counts as completed."""
    real = folder._judge

    def judge(*args: Any) -> Found:
        found = real(*args)
        if found.state is not State.GROWING:
            return found
        return Found(found.name, State.COMPLETED, found.segment, "", 0, found.size, found.mtime)

    folder._judge = judge


def idx_first() -> None:
    """The idx is deleted before its log, which then looks like a new segment."""
    real = upload.remove

    def remove(path: Path) -> None:
        real(path.with_name(f"{path.stem}_cdc.idx") if path.suffix == ".log" else path.with_name(path.name.replace("_cdc.idx", ".log")))

    upload.remove = remove


def delete_when_full() -> None:
    """At level ALARM with the store down, segments are deleted to free space."""

    def put_aside(cdc_raw: Path, aside: Path, items: Any, helps: Callable[[int], bool]) -> Any:
        for item in items:
            if item.state is State.COMPLETED and helps(0):
                os.unlink(cdc_raw / item.name)
                yield item

    spill.put_aside = put_aside


def any_ending_is_an_orphan() -> None:
    """A segment counts as closed by its age alone."""
    from shippers import after_crash, scan

    real = after_crash.settle
    after_crash.nobody_writes = lambda path: True  # type: ignore[assignment]
    scan.after_crash.settle = lambda path, found, *, now, patience: real(path, found, now=now, patience=-1.0)  # type: ignore[attr-defined]


def tail_beyond_the_sync() -> None:
    """Bytes behind the synced position are shipped too."""
    real = tail._next_end

    def next_end(growing: tail.Growing, place: Place, synced: int) -> Place | None:
        end = real(growing, place, synced)
        return None if end is None else Place(end.position + 40, end.logical + 40)

    tail._next_end = next_end


def tail_skips_a_section() -> None:
    """After a restart the tail continues at the node's current position."""
    real = tail.Tail._place

    def place(self: tail.Tail, growing: tail.Growing) -> Place:
        found = real(self, growing)
        with suppress(ShipError):
            for end in growing.ends(found, 1 << 62) if self.reached(growing.ref) is None else ():
                found = end
        return found

    tail.Tail._place = place  # type: ignore[method-assign]


def tail_believes_what_is_there() -> None:
    """Existing parts are not compared with the segment."""
    tail._require_same = lambda growing, stored, crc, size: None


RULES: dict[str, Callable[[], None]] = {
    "delete-before-upload": delete_before_upload,
    "delete-before-verify": delete_before_verify,
    "compare-sizes-only": compare_sizes_only,
    "overwrite": overwrite,
    "conflict-not-shipped": conflict_not_shipped,
    "conflict-without-comparing": conflict_without_comparing,
    "ship-what-grows": ship_what_grows,
    "idx-first": idx_first,
    "delete-when-full": delete_when_full,
    "age-alone": any_ending_is_an_orphan,
    "tail-beyond-the-sync": tail_beyond_the_sync,
    "tail-skips-a-section": tail_skips_a_section,
    "tail-believes-what-is-there": tail_believes_what_is_there,
}
assert completed.upload is upload, "the shipper calls what is patched here"
