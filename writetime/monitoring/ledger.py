"""Search for segments by node, minute, name or state, one page at a time.

Strategy: the ledger is never listed. Without a name or a minute, the search walks back from the last seal,
batch by batch. A minute is looked up in the archive folder of its hour, a name directly at each node. The few
waiting, growing and quarantined segments are in the last seal or in cdc/. Ledger entries are read only for
the rows of the page."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from itertools import islice
from typing import Final, Literal, get_args

from writetime.errors import NotASegment, StoreError
from writetime.pipeline.batch_history import Batches
from writetime.pipeline.documents import LedgerEntry, SegmentInput
from writetime.storage import layout, segment_object
from writetime.storage.concurrency import at_once
from writetime.storage.store import ObjectInfo, Store

State = Literal["waiting", "growing", "quarantined", "retry", "archived", "expired"]
STATES: Final[tuple[State, ...]] = get_args(State)
PAGE: Final = 100
"""Rows of a page."""
_BATCHES: Final = 200
"""Batches that one page searches for a node or a state."""
_AHEAD: Final = 16
"""Batches that are read at once."""
_LISTED: Final = 5000
"""Maximum number of objects to check of an hour."""
_ALIKE: Final = 100
"""Maximum number of names with the same prefix to check."""
_NAME: Final = re.compile(r"(?:CommitLog-(?P<version>\d{1,2})-)?(?P<id>\d{1,19})(?:\.log|\.json)?")
_WHOLE: Final = 13
"""Digits of a segment's id: ms since the epoch."""
_VERSIONS: Final = (7, 8, 9, 6)


@dataclass(frozen=True, slots=True)
class Row:
    """A segment. `entry`: its ledger entry, None until a batch reads it; `batch`: the batch in which it was
    found."""

    ref: layout.SegmentRef
    object: str
    size: int
    sealed_at: datetime
    batch: int | None = None
    entry: LedgerEntry | None = None

    @property
    def state(self) -> State:
        return "waiting" if self.entry is None else self.entry.state


@dataclass(frozen=True, slots=True)
class Query:
    """Search criteria. `node`: a host id or its prefix; `minute`: UTC; `name`: a file name, an id, a prefix
    of an id, or an object name."""

    node: str = ""
    minute: datetime | None = None
    name: str = ""
    state: str = ""

    def takes(self, row: Row) -> bool:
        """Whether the row matches."""
        return (
            row.ref.node.host_id.startswith(self.node)
            and (not self.state or row.state == self.state)
            and (self.minute is None or self.minute <= row.sealed_at < self.minute + timedelta(minutes=1))
        )


@dataclass(frozen=True, slots=True)
class Page:
    """Rows, newest first. `next`: the cursor of the next page, "" if there is none. `note`: what was not
    searched."""

    rows: tuple[Row, ...]
    next: str = ""
    note: str = ""


def search(batches: Batches, query: Query, *, cursor: str = "", size: int = PAGE) -> Page:
    """A page of results. An invalid cursor starts from the beginning."""
    if query.name:
        named = _by_name(batches, query.name, query.node)
        note = f"Only the first {_ALIKE} names with this prefix are shown." if len(named) == _ALIKE else ""
        return _slice(named, query, cursor, size, batches.store, note)
    if query.state and query.state not in ("archived", "expired"):
        return _slice(_unusual(batches, query.state), query, cursor, size, batches.store)
    if query.minute is not None:
        found = list(_of_minute(batches, query.minute, query.node))
        note = f"Only {_LISTED} segments of that hour were searched: specify a node." if len(found) > _LISTED else ""
        return _slice(found, query, cursor, size, batches.store, note)
    return _walk(batches, query, cursor, size)


def find(batches: Batches, name: str) -> Row | None:
    """The segment of an object, with its ledger entry; None if it is not found or the name is not a segment
    name."""
    try:
        ref = layout.SegmentRef.from_object(name)
    except NotASegment:
        return None
    if ref.node.cluster != batches.cluster:
        return None
    return _looked_up(batches.store, ref)


# --- from the last seal backwards


def _walk(batches: Batches, query: Query, cursor: str, size: int) -> Page:
    newest = batches.newest().sealed
    number, offset = _place(cursor, newest.number if newest else 0)
    rows: list[Row] = []
    last = max(0, number - _BATCHES)
    ahead: dict[int, list[Row]] = {}
    while number > last:
        if number not in ahead:
            ahead = _of_batches(batches, range(number, max(last, number - _AHEAD), -1), query)
        found = ahead[number]
        missing = size - len(rows)
        some = found[offset : offset + missing]
        rows += [row for row in _with_entries(batches.store, some) if query.takes(row)]
        if offset + len(some) < len(found):
            return Page(tuple(rows), f"{number}.{offset + len(some)}")
        number, offset = number - 1, 0
        if len(rows) >= size:
            break
    return Page(
        tuple(rows),
        f"{number}.0" if number > 0 else "",
        "" if rows or number <= 0 else f"Nothing found in {_BATCHES} batches; continue on the next page.",
    )


def _of_batches(batches: Batches, numbers: range, query: Query) -> dict[int, list[Row]]:
    """The rows of each of these batches, which descend; read at once."""
    taken = {facts.number: facts.nodes for facts in batches.latest(len(numbers), before=numbers[0] + 1)}
    wanted = [number for number in numbers if any(node.host_id.startswith(query.node) for node in taken.get(number, ()))]
    found = at_once(lambda number: list(_of_batch(batches, number, query)), wanted)
    return {number: [] for number in numbers} | dict(zip(wanted, found, strict=True))


def _place(cursor: str, newest: int) -> tuple[int, int]:
    number, _, offset = cursor.partition(".")
    if number.isdecimal() and offset.isdecimal() and len(number) + len(offset) < 20:
        return min(int(number), newest), int(offset)
    return newest, 0


def _of_batch(batches: Batches, number: int, query: Query) -> Iterator[Row]:
    """Segments of a batch, most recently completed first."""
    documents = batches.documents(number)
    if documents is None:
        return
    for segment in sorted(documents[0].segments, key=lambda segment: (segment.sealed_at, segment.object), reverse=True):
        if segment.ref.node.host_id.startswith(query.node):
            yield Row(segment.ref, segment.object, segment.size, segment.sealed_at, number)


# --- straight to it


def _by_name(batches: Batches, text: str, node: str) -> list[Row]:
    """Segments with that name or name prefix, of any node whose host id starts with `node`."""
    row = find(batches, text.strip())
    if row is not None:
        return [row]
    match = _NAME.fullmatch(text.strip())
    if match is None:
        return []
    versions = (int(match["version"]),) if match["version"] else _VERSIONS
    nodes = [each for each in _nodes(batches) if each.host_id.startswith(node)]
    if len(match["id"]) >= _WHOLE:
        refs = [layout.SegmentRef(node, layout.SegmentName(int(match["id"]), version)) for node in nodes for version in versions]
        found = [row for row in at_once(lambda ref: _looked_up(batches.store, ref), refs) if row is not None]
        if found:
            return found
    prefixes = [f"{layout.ledger_prefix(node)}CommitLog-{version}-{match['id']}" for node in nodes for version in versions]
    listed = (info.name for prefix in prefixes for info in batches.store.names(prefix))
    entries = at_once(lambda name: LedgerEntry.read(batches.store, name), islice(listed, _ALIKE))
    return [_row(layout.SegmentRef.from_object(entry.object), entry) for entry in entries if entry is not None]


def _looked_up(store: Store, ref: layout.SegmentRef) -> Row | None:
    try:
        entry = LedgerEntry.read(store, ref.ledger)
        if entry is not None:
            return _row(ref, entry)
        info = store.head(ref.incoming)
    except StoreError as error:
        if error.retriable:
            raise
        # The text is not a valid object name.
        return None
    return None if info is None else _waiting(info)


def _of_minute(batches: Batches, minute: datetime, node: str) -> Iterator[Row]:
    """All segments of that hour in the archive, and segments that are not archived; the caller filters by
    minute."""
    prefix = layout.archive_hour_prefix(batches.cluster, minute)
    nodes = [each for each in _nodes(batches) if node and each.host_id.startswith(node)]
    prefixes = [f"{prefix}{layout.part(each.datacenter)}/{layout.part(each.host_id)}/" for each in nodes] or [prefix]
    for info in islice((info for each in prefixes for info in segment_object.listed(batches.store, each)), _LISTED + 1):
        segment = SegmentInput.from_object(info)
        yield Row(segment.ref, info.name, segment.size, segment.sealed_at)
    for state in ("quarantined", "growing", "waiting"):
        yield from _unusual(batches, state)


def _unusual(batches: Batches, state: str) -> list[Row]:
    """Segments that are waiting, growing or held, by the last seal and the incoming objects."""
    sealed = batches.newest().sealed
    held = list(sealed.held if sealed else ())
    if state == "waiting":
        prefixes = (layout.incoming_prefix(batches.cluster), layout.frames_prefix(batches.cluster))
        incoming = islice((info for prefix in prefixes for info in batches.store.list(prefix)), _LISTED)
        return sorted((row for info in incoming if info.name not in held and (row := _waiting(info))), key=_newest, reverse=True)
    wanted = list(sealed.growing) if sealed and state == "growing" else held
    refs = [layout.SegmentRef.from_object(name) for name in wanted]
    found = at_once(lambda ref: _looked_up(batches.store, ref), refs)
    return sorted((row for row in found if row is not None), key=_newest, reverse=True)


def _waiting(info: ObjectInfo) -> Row | None:
    try:
        segment = SegmentInput.from_object(info)
        return Row(segment.ref, info.name, info.size, segment.sealed_at)
    except NotASegment:
        return None


def _newest(row: Row) -> tuple[datetime, str]:
    return row.sealed_at, row.object


# --- pages


def _slice(rows: Iterable[Row], query: Query, cursor: str, size: int, store: Store, note: str = "") -> Page:
    """A page of rows in memory. Ledger entries are read only for rows that may match."""
    start = int(cursor) if cursor.isdecimal() and len(cursor) < 10 else 0
    without_state = Query(query.node, query.minute, query.name)
    by_ref = {row.ref: row for row in rows if without_state.takes(row)}
    kept = list(by_ref.values())
    if query.state:
        kept = [row for row in _with_entries(store, kept) if query.takes(row)]
    some = kept[start : start + size]
    return Page(tuple(_with_entries(store, some)), str(start + size) if start + size < len(kept) else "", note)


def _with_entries(store: Store, rows: Sequence[Row]) -> list[Row]:
    def read(row: Row) -> LedgerEntry | None:
        return row.entry or LedgerEntry.read(store, row.ref.ledger)

    return [
        row if entry is None else Row(row.ref, entry.object, row.size, row.sealed_at, row.batch or entry.batch, entry)
        for row, entry in zip(rows, at_once(read, rows), strict=True)
    ]


def _row(ref: layout.SegmentRef, entry: LedgerEntry) -> Row:
    return Row(ref, entry.object, entry.size, entry.sealed_at, entry.batch, entry)


def _nodes(batches: Batches) -> list[layout.NodeName]:
    """Nodes with an identity document, or with segments in recent batches."""
    found = {node for facts in batches.latest() for node in facts.nodes}
    for info in batches.store.names(layout.nodes_prefix(batches.cluster)):
        if (node := layout.NodeName.of_facts(info.name)) is not None:
            found.add(node)
    return sorted(found)


def minute_of(text: str) -> datetime | None:
    """Parse a minute as in forms (`2026-05-04T12:30`, UTC if it has no offset); None if it is invalid."""
    try:
        moment = datetime.fromisoformat(text.strip())
    except ValueError:
        return None
    moment = moment.replace(tzinfo=UTC) if moment.tzinfo is None else moment.astimezone(UTC)
    return moment.replace(second=0, microsecond=0)
