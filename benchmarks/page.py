"""The page and its reads over a ledger of 100,000 segments in a folder: the time of each view, first and
repeated.

    make bench-page
    make bench-page ARGS='--folder DIR --batches 1000 --keep'

The bucket contains what a pipeline leaves: manifests, seals, ledger entries, archived segments (names only),
of twelve nodes in two datacenters, and some quarantine records. Documents are plain files, as a folder store
reads them. Each view is requested once from a new app (cold, but with the files in the system's page cache),
then several times.
"""

from __future__ import annotations

import json
import random
import resource
import shutil
import sys
import time
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from statistics import median
from tempfile import mkdtemp
from typing import Annotated, Any
from uuid import UUID

import typer

from tools import ROOT
from writetime.events.masking import Rules
from writetime.pipeline.batch_history import Batches
from writetime.pipeline.documents import (
    Accounting,
    LedgerEntry,
    Manifest,
    Mark,
    Problem,
    Sealed,
    SegmentInput,
    SegmentOutcome,
)
from writetime.pipeline.publish_progress import Published
from writetime.storage import layout, open_store

CLUSTER = "production"
PLACES = (("eu-west", 7), ("eu-central", 5))
NODES = [
    layout.NodeName(CLUSTER, dc, str(UUID(int=random.Random(f"{dc}{n}").getrandbits(128), version=4)))
    for dc, count in PLACES
    for n in range(count)
]
TABLES = ("shop.orders", "shop.customers", "shop.carts", "shop.stock", "billing.invoices", "billing.payments")
SCHEMA = b'{"format": 1, "partitions": []}'


@dataclass
class Fleet:
    """Writes the bucket. The last batch was sealed just now, so that ages look like those of a pipeline that
    runs.
    """

    root: Path
    batches: int
    per_batch: int
    chance: random.Random

    def write(self) -> int:
        """Write the bucket; the number of ledger entries."""
        now = datetime.now(UTC).replace(microsecond=0)
        entries = 0
        held: list[str] = []
        for number in range(1, self.batches + 1):
            entries += self._batch(number, now - timedelta(minutes=self.batches - number), held)
        for index, node in enumerate(NODES):
            fact = {
                "address": f"10.0.{index // 7}.{11 + index % 7}",
                "rack": f"r{1 + index % 3}",
                "release_version": "5.0.6",
                "tokens": ["1"] * 16,
            }
            space = {"level": "warn", "share": 0.71, "used": 2908 << 20, "limit": 4 << 30, "disk_free": 61 << 30} if index == 2 else None
            status = {"at": now.isoformat(), "host_id": node.host_id, **fact, "space": space}
            self._put(layout.node_status(node, now, "00000000"), json.dumps(status).encode())
        self._put(layout.published(CLUSTER), Published(batch=self.batches, events=0).to_bytes())
        for index in range(20):
            self._put(self._ref(NODES[index % 12], 10**7 + index).incoming, b"x" * 100)
        return entries

    def _batch(self, number: int, sealed_at: datetime, held: list[str]) -> int:
        busy = 1.0 + 0.6 * (number % 97 > 70)
        created = sealed_at - timedelta(seconds=20 + self.chance.random() * 15 * busy)
        inputs, outcomes = [], []
        for index in range(self.per_batch):
            node = NODES[index % len(NODES)]
            if node is NODES[4] and 20 < self.batches - number < 32:
                continue
            ref = self._ref(node, number * self.per_batch + index)
            at = created - timedelta(seconds=5 + 55 * self.chance.random())
            size = 32 << 20
            inputs.append(SegmentInput(object=ref.incoming, generation=number, size=size, crc32c=index, sealed_at=at))
            frames = int(20_000 * busy * (0.2 + self.chance.random()) * (0.01 if node is NODES[9] else 1))
            problems = [self._quarantine(ref, number)] if index == 3 and (number % 333 == 0 or number == self.batches - 40) else []
            outcomes.append(SegmentOutcome(object=ref.incoming, frames=frames, updates=frames, problems=problems))
            if problems and number == self.batches - 40:
                held.append(ref.incoming)
        self._documents(number, created, sealed_at, inputs, outcomes, list(held))
        for segment, outcome in zip(inputs, outcomes, strict=True):
            self._ledger(number, segment, outcome, waits=segment.object in held)
        return len(inputs)

    def _documents(
        self,
        number: int,
        created: datetime,
        sealed_at: datetime,
        inputs: list[SegmentInput],
        outcomes: list[SegmentOutcome],
        held: list[str],
    ) -> None:
        accounting = [
            Accounting(table=table, updates_in=3 * n, applied=n - n // 50, duplicate=2 * n, superseded=n // 50, events=n)
            for table in TABLES
            if (n := int(self.chance.random() ** 3 * 40_000)) > 300
        ]
        growing = {self._ref(node, 10**8).growing: Mark(position=1 << 20, logical=1 << 20, frames=100) for node in NODES[:3]}
        manifest = Manifest(
            number=number,
            kind="ingest",
            cluster=CLUSTER,
            created_at=created,
            now=int(created.timestamp()),
            base=number - 1,
            segments=inputs,
        )
        sealed = Sealed(
            number=number,
            kind="ingest",
            sealed_at=sealed_at,
            segments=outcomes,
            accounting=accounting,
            state={},
            held=held,
            growing=growing,
            events=sum(account.events for account in accounting),
        )
        for what, document in (("manifest", manifest.to_bytes()), ("schema", SCHEMA), ("local", b"{}"), ("sealed", sealed.to_bytes())):
            self._put(layout.batch_object(CLUSTER, number, what), document)

    def _ledger(self, number: int, segment: SegmentInput, outcome: SegmentOutcome, *, waits: bool) -> None:
        target = None if waits else segment.ref.archived(segment.sealed_at)
        entry = LedgerEntry(
            object=segment.object,
            state="quarantined" if waits else "archived",
            size=segment.size,
            crc32c=segment.crc32c,
            sealed_at=segment.sealed_at,
            batch=number,
            frames=outcome.frames,
            problems=outcome.problems,
            archived_as=target,
            updated_at=segment.sealed_at + timedelta(seconds=90),
        )
        self._put(segment.ref.ledger, entry.to_bytes())
        self._put(target or segment.object, b"x", at=segment.sealed_at)

    def _quarantine(self, ref: layout.SegmentRef, number: int) -> Problem:
        stem = ref.quarantined(4711 * number, 412)
        message = "the frame's CRC32 is 5f0c1b7e, its bytes have 0c41d0aa"
        problem = Problem(kind="corrupt_frame", position=4711 * number, size=412, message=message, quarantined_as=f"{stem}.bin")
        self._put(f"{stem}.bin", b"\x00" * 412)
        self._put(f"{stem}.json", json.dumps({**problem.model_dump(), "batch": number, "object": ref.incoming}).encode())
        return problem

    def _ref(self, node: layout.NodeName, number: int) -> layout.SegmentRef:
        return layout.SegmentRef(node, layout.SegmentName(1_777_890_000_000 + number, 7))

    def _put(self, name: str, data: bytes, *, at: datetime | None = None) -> None:
        """Without a sync, and with what the store notes beside an object: what is measured is reading."""
        path = self.root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(data)
        noted = {"crc32c": 0, "metadata": {"sealed_at": at.isoformat()} if at else {}}
        meta = self.root / ".writetime" / "meta" / f"{name}.{path.stat().st_mtime_ns}.json"
        meta.parent.mkdir(parents=True, exist_ok=True)
        meta.write_text(json.dumps(noted), encoding="utf-8")


class Everybody:
    """An Airflow in which every user may do everything."""

    hosts: frozenset[str] = frozenset()
    shows_values = False

    async def user(self, request: Any) -> str:
        return "me"

    def may_read(self, user: Any, dag_id: str) -> bool:
        return True

    def may_trigger(self, user: Any, dag_id: str) -> bool:
        return True

    def trigger(self, user: Any, dag_id: str, settings: dict[str, str], note: str) -> Any:
        raise NotImplementedError


def views(root: Path, batches: int, per_batch: int) -> dict[str, str]:
    """Name and address of each view."""
    minute = f"{datetime.now(UTC) - timedelta(minutes=30):%Y-%m-%dT%H:%M}"
    number = 1_777_890_000_000 + batches // 2 * per_batch
    return {
        "rings, 60 batches": "",
        "rings, 500 batches": "?last=500",
        "segments, first page": "segments",
        "segments of a node": f"segments?node={NODES[3].host_id}",
        "segment by its name": f"segments?name=CommitLog-7-{number}.log",
        "names that begin alike": f"segments?name=CommitLog-7-{str(number)[:-2]}",
        "segments of a minute": f"segments?minute={minute}",
        "segments of a minute and node": f"segments?minute={minute}&node={NODES[3].host_id}",
        "quarantined segments": "segments?state=quarantined",
        "batches": "batches",
        "one batch": f"batches/{batches // 2}",
        "tables": "tables",
        "quarantine": "quarantine",
    }


app = typer.Typer(add_completion=False)


@app.command()
def main(
    batches: Annotated[int, typer.Option(help="Batches, one a minute.")] = 1000,
    per_batch: Annotated[int, typer.Option(help="Segments of a batch.")] = 100,
    folder: Annotated[Path | None, typer.Option(help="Where the bucket is made; one that is there is used again.")] = None,
    keep: Annotated[bool, typer.Option(help="Leave it there.")] = False,
    passes: Annotated[int, typer.Option(help="How often each view is asked for when it is warm.")] = 5,
) -> None:
    """Measure, and print milliseconds."""
    root = folder or Path(mkdtemp(prefix="writetime-page-"))
    if not (root / "ledger").exists():
        entries = Fleet(root, batches, per_batch, random.Random(1)).write()
        print(f"{entries} ledger entries in {batches} batches", flush=True)
    try:
        _measure(root, batches, per_batch, passes)
    finally:
        if not keep and folder is None:
            shutil.rmtree(root)


def _measure(root: Path, batches: int, per_batch: int, passes: int) -> None:
    sys.path.insert(0, str(ROOT / "plugins"))
    from fastapi.testclient import TestClient
    from writetime_page_app import Shown, build

    def client() -> TestClient:
        known = Batches(open_store(str(root)), CLUSTER)
        return TestClient(build(Shown(CLUSTER, lambda: known, Rules), Everybody()))

    warm = client()
    print(f"{'view':32} {'cold ms':>9} {'warm ms':>9} {'cpu ms':>9} {'KiB':>7}")
    for name, address in views(root, batches, per_batch).items():
        cold, _, _ = _timed(client(), address)
        found = [_timed(warm, address) for _ in range(passes + 1)][1:]
        print(
            f"{name:32} {cold:9.0f} {median(f[0] for f in found):9.0f} {median(f[1] for f in found):9.0f} {found[0][2] / 1024:7.0f}",
            flush=True,
        )


def _timed(client: Any, address: str) -> tuple[float, float, int]:
    begun, cpu = time.perf_counter(), _cpu()
    answer = client.get(f"/{address}")
    took, used = time.perf_counter() - begun, _cpu() - cpu
    assert answer.status_code == 200, answer.text
    return took * 1000, used * 1000, len(answer.content)


def _cpu() -> float:
    usage = resource.getrusage(resource.RUSAGE_SELF)
    return usage.ru_utime + usage.ru_stime


if __name__ == "__main__":
    app()
