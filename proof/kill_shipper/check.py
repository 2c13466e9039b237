"""Invariants whenever no shipper runs, and at the end of a run. Reads files and objects only; uses no code of
the shipper.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from proof.kill_shipper.node import Node
from proof.kill_shipper.shipper import CLUSTER, DATACENTER, HOST
from writetime.storage import segment_parts
from writetime.storage.layout import NodeName, SegmentName, SegmentRef
from writetime.storage.local import LocalStore
from writetime.storage.store import ObjectInfo


@dataclass
class Found:
    """Violations as text, by kind: lost, doubled, early (deleted before the store had it), stuck, and wrong
    parts.

    Doubled: overwritten, or the same bytes under two names that both count.
    """

    lost: list[str] = field(default_factory=list)
    doubled: list[str] = field(default_factory=list)
    early: list[str] = field(default_factory=list)
    stuck: list[str] = field(default_factory=list)
    tail: list[str] = field(default_factory=list)

    @property
    def all(self) -> list[str]:
        return self.lost + self.doubled + self.early + self.stuck + self.tail

    @property
    def counts(self) -> dict[str, int]:
        return {kind: len(getattr(self, kind)) for kind in ("lost", "doubled", "early", "stuck", "tail")}


class Bucket:
    """The bucket as pipeline and operator see it. The content of each object generation is read once."""

    def __init__(self, folder: Path, node: Node, gone: Path) -> None:
        self.store = LocalStore(folder)
        self.parts = 0
        self.again = 0
        self._node = node
        self._damaged = gone.with_name("damaged")
        self._parts: dict[str, int] = {}
        self._gone = gone
        self._good: dict[tuple[str, int], bool] = {}
        self._seen: dict[str, int] = {}
        self._gone_before: Counter[str] = Counter()

    def look(self) -> dict[int, list[ObjectInfo]]:
        """All objects with segments, including conflicts, by the segment's number."""
        found: dict[int, list[ObjectInfo]] = {}
        for prefix in ("cdc/", "cdc_archive/"):
            for info in self.store.list(prefix):
                conflict = SegmentRef.from_conflict(info.name)
                segment = conflict[0] if conflict else SegmentRef.from_object(info.name)
                found.setdefault(segment.segment.id, []).append(info)
        return found

    def counted(self, number: int, infos: list[ObjectInfo]) -> list[str]:
        """The names under which the segment counts. If it is archived, the same bytes under cdc/ do not
        count: planning recognizes them by the ledger.
        """
        good = [info.name for info in infos if self.is_good(number, info)]
        if self.store.head(ref(number).ledger) is None:
            return good
        return [name for name in good if name.startswith("cdc_archive/")]

    @property
    def damaged(self) -> set[str]:
        """Names of objects that a fault damaged during the upload."""
        return set(self._damaged.read_text().split()) if self._damaged.exists() else set()

    def is_good(self, number: int, info: ObjectInfo) -> bool:
        """Whether the object has the node's bytes."""
        key = (info.name, info.generation)
        if key not in self._good:
            known = self._node.written.get(number)
            self._good[key] = known is not None and self.store.read(info.name) == known.data
        return self._good[key]

    def overwritten(self, objects: dict[int, list[ObjectInfo]]) -> Iterator[str]:
        """Objects that were replaced since the last call, except those that a fault deleted meanwhile."""
        gone = Counter(self._gone.read_text().split()) if self._gone.exists() else Counter()
        for infos in objects.values():
            for info in infos:
                before = self._seen.get(info.name, info.generation)
                if before != info.generation and gone[info.name] == self._gone_before[info.name]:
                    yield f"{info.name} was overwritten"
        self._seen = {info.name: info.generation for infos in objects.values() for info in infos}
        self._gone_before = gone

    def tails(self) -> Iterator[str]:
        """Violations of parts: together they must be the beginning of what the node has synced, each written
        once. They may overlap. After a damaged part none may follow.
        """
        damaged = self.damaged
        reached: dict[int, int] = {}
        seen: dict[str, int] = {}
        listed = (part for _, part in segment_parts.found(self.store, "cdc_parts/"))
        for part in segment_parts.with_facts(self.store, listed):
            name, number = part.info.name, SegmentRef.from_object(part.info.name).segment.id
            seen[name] = part.info.generation
            self.parts += name not in self._parts
            if self._parts.get(name, part.info.generation) != part.info.generation:
                yield f"{name} was overwritten"
            if part.start > reached.get(number, 0):
                yield f"{name} begins where no part with the segment's bytes ends"
            elif self.store.read(name) == self._node.synced(number)[part.start : part.end]:
                reached[number] = max(part.end, reached.get(number, 0))
            elif name not in damaged:
                yield f"{name} is not what the node had synced"
        self._parts = seen

    def archive(self, number: int) -> bool:
        """Archive a valid segment under cdc/ as the pipeline does; see `writetime.pipeline.archiver`. If it
        is already archived, only delete it.
        """
        segment = ref(number)
        info = self.store.head(segment.incoming)
        target = segment.archived(info.created) if info else ""
        if info is None or not self.is_good(number, info):
            return False
        known = self.store.head(segment.ledger) is not None
        if not known:
            self.store.copy(segment.incoming, target)
            self.store.put(segment.ledger, b'{"state": "archived", "archived_as": "%s"}' % target.encode())
        self.again += known
        self.store.delete(segment.incoming)
        self._seen.pop(segment.incoming, None)
        for part in segment_parts.of(self.store, segment):
            self.store.delete(part.info.name)
        return not known


def ref(number: int) -> SegmentRef:
    return SegmentRef(NodeName(CLUSTER, DATACENTER, HOST), SegmentName(number, 7))


def between(node: Node, spill: Path, bucket: Bucket, found: Found) -> None:
    """After each kill: every segment is complete on the node or in the bucket, and growing segments are
    unchanged.
    """
    objects = bucket.look()
    found.doubled += bucket.overwritten(objects)
    found.tail += bucket.tails()
    for segment in node.growing:
        raw = node.cdc_raw / f"CommitLog-7-{segment.number}.log"
        if not raw.exists() or not raw.samefile(segment.file.name):
            found.early.append(f"{raw.name} was taken while the node wrote to it")
    found.doubled += _doubled(bucket, objects)
    for number, written in node.written.items():
        here = [path for folder in (node.cdc_raw, spill) if (path := folder / written.log.name).exists()]
        whole = [path for path in here if path.read_bytes() == written.data]
        if len(whole) != len(here):
            found.lost.append(f"{written.log.name} was changed on disk")
        if not whole and not any(bucket.is_good(number, info) for info in objects.get(number, [])):
            found.early.append(f"{written.log.name} is gone, and the bucket does not have it")
        raw = node.cdc_raw / written.log.name
        if raw.exists() and not raw.with_name(f"{raw.stem}_cdc.idx").exists():
            found.stuck.append(f"{raw.name} has lost its idx, and looks like a new one")


def _doubled(bucket: Bucket, objects: dict[int, list[ObjectInfo]]) -> list[str]:
    """Segments that count under more than one name."""
    counted = {number: bucket.counted(number, infos) for number, infos in objects.items()}
    return [f"segment {number} is there as {', '.join(names)}" for number, names in counted.items() if len(names) > 1]


def at_the_end(node: Node, spill: Path, bucket: Bucket, found: Found) -> None:
    """Every segment is in the bucket once with the node's bytes, except for damage by faults; nothing is left
    on the node.
    """
    objects = bucket.look()
    found.doubled += _doubled(bucket, objects)
    damaged = bucket.damaged
    for number, written in node.written.items():
        infos = objects.pop(number, [])
        if not bucket.counted(number, infos):
            found.lost.append(f"{written.log.name} is not in the bucket")
        wrong = [info.name for info in infos if not bucket.is_good(number, info)]
        found.doubled += [f"{name} holds bytes that no node wrote" for name in wrong if name not in damaged]
        found.stuck += [str(path) for folder in (node.cdc_raw, spill) if (path := folder / written.log.name).exists()]
    found.tail += bucket.tails()
    if not bucket.parts:
        found.tail.append("no part was ever shipped")
    found.doubled += [f"{info.name} holds no segment of the node" for infos in objects.values() for info in infos]
