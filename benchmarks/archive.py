"""Savings and cost of packing the archive: `make bench-archive`.

Strategy: segments that a real node wrote for `benchmarks.decode` are packed and unpacked at several levels of
Zstandard, plain and as a node with `commitlog_compression: LZ4` writes them. Then all steps for a segment at
the configured level (`writetime.pipeline.archive_packing`), in a folder: read, pack, write, read back,
unpack, compare, ledger, delete. One core, by CPU time, because the machine may be busy; each figure is the
best of the passes.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from collections.abc import Callable, Iterable
from datetime import UTC, datetime
from typing import Any

from rich.console import Console
from rich.table import Table

from benchmarks import data
from benchmarks.report import report
from tests.cassandra.commitlog.packed import repack
from writetime.pipeline.archive_packing import pack
from writetime.pipeline.documents import LedgerEntry
from writetime.storage import layout, segment_object
from writetime.storage.checksum import crc32c
from writetime.storage.local import LocalStore

LEVELS = (1, 3, 6, 9, 12, 19)
SEALED_AT = datetime(2026, 5, 4, 12, 30, tzinfo=UTC)
NODE = layout.NodeName("ring", "dc1", "00000000-0000-4000-8000-000000000001")


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.archive", description=__doc__.partition("\n\n")[0])
    parser.add_argument("--segments", type=int, default=3, help="how many of the segments (default: 3)")
    parser.add_argument("--passes", type=int, default=3, help="measured passes (default: 3)")
    parser.add_argument("--levels", type=int, nargs="+", default=LEVELS, help=f"levels of Zstandard (default: {LEVELS})")
    parser.add_argument("--json", action="store_true", help="print the figures as JSON")
    options = parser.parse_args(arguments)
    return report(lambda: measure(options.segments, options.levels, options.passes), show, as_json=options.json)


def measure(count: int, levels: Iterable[int], passes: int) -> dict[str, Any]:
    """By kind of segment and level: the ratio, and MB of plain segments per second of CPU."""
    plain = [path.read_bytes() for path in data.segments()[:count]]
    kinds = {"plain": plain, "LZ4 by its node": [repack(content, "LZ4Compressor") for content in plain]}
    return {
        "kinds": {kind: {level: levelled(contents, level, passes) for level in levels} for kind, contents in kinds.items()},
        "bytes": {kind: sum(map(len, contents)) for kind, contents in kinds.items()},
        "whole": {"level": segment_object.LEVEL, "mb_cpu_s": whole(plain, segment_object.LEVEL, passes)},
    }


def levelled(contents: list[bytes], level: int, passes: int) -> dict[str, float]:
    """Figures of one level. `ratio`: plain bytes per stored byte."""
    size = sum(map(len, contents)) / 1e6
    stored = [segment_object.pack(content, level) for content in contents]
    return {
        "ratio": size * 1e6 / sum(map(len, stored)),
        "pack_mb_cpu_s": size / best(passes, lambda: [segment_object.pack(content, level) for content in contents]),
        "unpack_mb_cpu_s": size / best(passes, lambda: [segment_object.unpack("x.zst", each) for each in stored]),
    }


def whole(contents: list[bytes], level: int, passes: int) -> float:
    """MB per CPU second of all steps for a segment."""
    with tempfile.TemporaryDirectory(prefix="writetime-bench-") as folder:
        store, numbers = LocalStore(folder), iter(range(1, 1 << 30))
        found = []
        for _ in range(passes):
            made = [archive(store, next(numbers), content) for content in contents]
            found.append(best(1, lambda made=made: [pack(store, name, level) for name in made]))  # type: ignore[misc]
        return sum(map(len, contents)) / 1e6 / min(found)


def archive(store: LocalStore, number: int, content: bytes) -> str:
    """A segment as a batch leaves it."""
    ref = layout.SegmentRef(NODE, layout.SegmentName(number, 7))
    name = ref.archived(SEALED_AT)
    store.put(name, content)
    entry = LedgerEntry(
        object=ref.incoming,
        state="archived",
        size=len(content),
        crc32c=crc32c(content),
        sealed_at=SEALED_AT,
        batch=1,
        archived_as=name,
        updated_at=SEALED_AT,
    )
    store.put(ref.ledger, entry.to_bytes())
    return name


def best(passes: int, do: Callable[[], object]) -> float:
    """Seconds of CPU of the fastest pass."""
    found = []
    for _ in range(passes):
        cpu = time.process_time()
        do()
        found.append(time.process_time() - cpu)
    return min(found)


def show(figures: dict[str, Any]) -> None:
    table = Table("segments", "level", "one byte for", "pack, MB/s of CPU", "unpack, MB/s of CPU")
    for kind, levels in figures["kinds"].items():
        for level, found in levels.items():
            numbers = f"{found['ratio']:.2f}", f"{found['pack_mb_cpu_s']:.0f}", f"{found['unpack_mb_cpu_s']:.0f}"
            table.add_row(f"{kind}, {figures['bytes'][kind] / 1e6:.0f} MB", str(level), *numbers)
    Console().print(table)
    Console().print(f"a segment's whole care, level {figures['whole']['level']}: {figures['whole']['mb_cpu_s']:.0f} MB/s of CPU")


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
