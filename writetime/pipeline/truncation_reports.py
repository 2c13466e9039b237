"""The nodes' reports of their TRUNCATEs, which shippers query (`shippers.truncations`), as planning and
batches read them.

Strategy: `system.local.truncated_at` holds the last TRUNCATE of each table, so only the newest report of a
node counts, by the store's clock: a node's own clock may be wrong. A manifest names the new reports; a batch
uses their records like those in the log. Reports are untrusted: one that is too large or invalid is reported
and skipped, without affecting other nodes. Does not know Spark.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from contextlib import suppress
from datetime import datetime, timedelta
from typing import Annotated, Final
from uuid import UUID

from pydantic import BaseModel, Field, ValidationError

from writetime.cassandra.schema.node_metadata import Truncation
from writetime.errors import ObjectNotFound, PreconditionFailed
from writetime.storage import layout
from writetime.storage.checksum import crc32c
from writetime.storage.store import Listed, Store

LARGEST: Final = 16 << 20
"""Maximum bytes of a report; enough for 100,000 tables."""
AHEAD: Final = timedelta(days=1)
"""Maximum lead of a node's clock over the store's: a TRUNCATE in the future would remove later writes."""
_NO_RECORDS: Final = f"{crc32c(b'[]'):08x}"
_I64: Final = 2**63 - 1


class _Record(BaseModel):
    table_id: UUID
    segment: Annotated[int, Field(ge=0, le=_I64)]
    position: Annotated[int, Field(ge=-(2**31), lt=2**31)]
    at: Annotated[int, Field(ge=0, le=_I64)]


class _Answer(BaseModel):
    taken_at: datetime
    truncated_at: list[_Record]


def newest_answers(store: Store, cluster: str) -> dict[layout.NodeName, Listed]:
    """The last report of each node, by the store's clock."""
    found: dict[layout.NodeName, Listed] = {}
    for info in store.names(layout.truncations_prefix(cluster)):
        node = layout.NodeName.of_truncations(info.name)
        if node is None:
            continue
        known = found.get(node)
        if known is None or (info.created, info.name) > (known.created, known.name):
            found[node] = info
    return found


def new_answers(store: Store, cluster: str, asked: Mapping[str, str]) -> list[str]:
    """Names of the newest reports with content that no batch has read; `asked` is what batches have
    (`LocalDocument.asked`). A repeated report, or one without records, does not start a batch."""
    newest = newest_answers(store, cluster)
    return sorted(
        info.name for node, info in newest.items() if layout.truncations_checksum(info.name) != _checksum_of(asked.get(node.host_id))
    )


def _checksum_of(name: str | None) -> str:
    return _NO_RECORDS if name is None else layout.truncations_checksum(name)


def sweep_answers(store: Store, cluster: str) -> int:
    """Delete reports that are superseded by a newer one of the node; returns the bytes freed. No batch may
    be open: its manifest names some."""
    kept = {info.name for info in newest_answers(store, cluster).values()}
    freed = 0
    for info in list(store.names(layout.truncations_prefix(cluster))):
        if info.name not in kept and layout.NodeName.of_truncations(info.name) is not None:
            with suppress(ObjectNotFound, PreconditionFailed):
                store.delete(info.name)
                freed += info.size
    return freed


def read_answers(store: Store, answers: Iterable[str]) -> tuple[dict[str, list[Truncation]], dict[str, str], list[str]]:
    """The records by host id, the reports by host id, and why reports are rejected, one text each."""
    records: dict[str, list[Truncation]] = {}
    asked: dict[str, str] = {}
    rejected: list[str] = []
    for name in answers:
        node = layout.NodeName.of_truncations(name)
        if node is None:
            continue
        asked[node.host_id] = name
        try:
            records[node.host_id] = _read(store, name)
        except (ValueError, ObjectNotFound) as error:
            rejected.append(f"{name}: {_reason(error)}")
    return records, asked, rejected


def _read(store: Store, name: str) -> list[Truncation]:
    """Raises ObjectNotFound; ValueError if it is not a valid report."""
    info = store.head(name)
    if info is not None and info.size > LARGEST:
        raise ValueError(f"{info.size} bytes, more than {LARGEST}")
    answer = _Answer.model_validate_json(store.read(name))
    if info is not None and (ahead := [each for each in answer.truncated_at if each.at > (info.created + AHEAD).timestamp() * 1000]):
        raise ValueError(f"a TRUNCATE of table {ahead[0].table_id} is more than a day ahead of the store's clock")
    # The record's writetime cannot be queried before 5.0, and is not used.
    return [Truncation(each.at, each.table_id, each.segment, each.position, each.at * 1000) for each in answer.truncated_at]


def _reason(error: Exception) -> str:
    if isinstance(error, ValidationError):
        first = error.errors(include_input=False, include_url=False)[0]
        return f"{first['msg']} at {'.'.join(map(str, first['loc'])) or 'its start'}"
    return str(error)
