"""Segment files to Arrow cells, compared with Cassandra's CommitLogReader: `make bench-decode`, or `python -m
benchmarks.decode [--json]`.

Strategy: both run on one core, on the same files, in turns, so that disturbances affect both. The first
passes only warm them up. Java iterates over the cells and counts them; we scan the file and fill record
batches, which is more work: once over a mapping of the file, once with the file in memory, as jobs and
commands do. Both must count the same mutations and cells, otherwise there is no result. Each figure is that
of the best pass. The process allocates memory as Spark's Python workers do.

Memory, and the first call of a fresh process, are measured in separate processes.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from benchmarks import data
from benchmarks.report import report
from spark_jobs.daemon import ENVIRONMENT
from tools.console import say
from tools.errors import ToolError

MEBIBYTE = 1 << 20
SIZES = (8, 16, 32, 64)
"""Sizes of segments, in MiB, for which memory is measured."""
WARM_UP = 3
_BOTH_VERSIONS = 32 * MEBIBYTE
"""Bytes of mutations that are compared in two versions of the log."""
_PAIRS = 4
"""Of versions, for each pass: one takes a tenth of a second, and both together less than a disturbance."""
AIMS = {"ratio": 3.0, "kernel": 600.0, "memory": 4.0, "first call": 1.0, "versions": 1.02}


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.decode", description=__doc__.partition("\n\n")[0])
    parser.add_argument("--folder", type=Path, help=f"folder of segments (default: {data.FOLDER.name}, made if it is not there)")
    parser.add_argument("--passes", type=int, default=12, help="measured passes over all segments (default: 12)")
    parser.add_argument("--speed", action="store_true", help="without memory")
    parser.add_argument("--json", action="store_true", help="print the figures as JSON")
    parser.add_argument("--child", choices=sorted(CHILDREN), help=argparse.SUPPRESS)
    parser.add_argument("path", nargs="*", type=Path, help=argparse.SUPPRESS)
    options = parser.parse_args(arguments)
    if options.child:
        print(json.dumps(CHILDREN[options.child](*options.path)))
        return 0

    def figures() -> dict[str, Any]:
        paths = data.segments() if options.folder is None else sorted(options.folder.glob("CommitLog-*.log"))
        return measure(paths, options.passes, () if options.speed else SIZES)

    return report(figures, show, as_json=options.json)


def measure(paths: list[Path], passes: int, sizes: Sequence[int] = SIZES) -> dict[str, Any]:
    """All figures as one document: rates in MB/s (10^6 bytes of file) and per second, memory in bytes, for
    segments of each size in MiB, times in s.
    """
    core = max(os.sched_getaffinity(0))
    os.sched_setaffinity(0, {core})
    with tempfile.TemporaryDirectory(prefix="writetime-bench-") as temporary:
        schema = Path(temporary, "schema.json")
        learn(paths, schema)
        return {
            "files": {"segments": len(paths), "bytes": sum(path.stat().st_size for path in paths)},
            **race(paths, schema, passes),
            "versions": versions(paths, schema, Path(temporary), _PAIRS * passes),
            "memory": [memory(paths, schema, size, Path(temporary)) for size in sizes],
            **first_call(paths[-1], schema),
        }


# --- speed


def race(paths: list[Path], schema: Path, passes: int) -> dict[str, Any]:
    """Passes of both in turns; the best of each."""
    from proof.decoder.judge import Judge
    from writetime.cassandra.commitlog.files import mapped

    ours = Ours(paths, schema)
    java: list[dict[str, Any]] = []
    found: list[dict[str, Any]] = []
    copied: list[dict[str, Any]] = []
    with Judge().passes(paths[0].parent) as java_pass:
        for number in range(WARM_UP + passes):
            print(f"  pass {number + 1} of {WARM_UP + passes}", file=sys.stderr)
            java.append(java_pass())
            found.append(ours.run(mapped))
            copied.append(ours.run(Path.read_bytes))
    best_java, best, best_copied = (min(each[WARM_UP:], key=lambda one: one["seconds"]) for each in (java, found, copied))
    same = {name: (best[name], best_copied[name], best_java[name]) for name in ("mutations", "cells")}
    if any(len(set(counts)) > 1 for counts in same.values()):
        raise ToolError(f"The counts differ (ours twice, Java's): {same}")
    kernel = min(each["scan"] + each["kernel"] for each in found)
    return {
        "cassandra": Judge().version,
        "java": _rates(best_java, best_java["bytes"]),
        "ours": _rates(best, best_java["bytes"]),
        "copied": _rates(best_copied, best_java["bytes"]),
        "ratio": best_java["seconds"] / best["seconds"],
        "ratio copied": best_java["seconds"] / best_copied["seconds"],
        "ratios": _ratios(java, found),
        "ratios copied": _ratios(java, copied),
        "kernel": {"seconds": kernel, "mb_per_second": best_java["bytes"] / 1e6 / kernel},
        "parts": {part: min(each[part] for each in found) for part in ("read", "scan", "kernel", "rest")},
    }


def _ratios(java: list[dict[str, Any]], ours: list[dict[str, Any]]) -> list[float]:
    """Pass by pass, without those that warm up."""
    return [theirs["seconds"] / mine["seconds"] for theirs, mine in zip(java, ours, strict=True)][WARM_UP:]


def _rates(one: dict[str, Any], size: int) -> dict[str, Any]:
    counts = {name: one[name] for name in ("mutations", "cells")}
    return {"seconds": one["seconds"], **counts, "mb_per_second": size / 1e6 / one["seconds"]} | {
        f"{name}_per_second": count / one["seconds"] for name, count in counts.items()
    }


class Ours:
    """Reads files, scans and decodes them; keeps the time that compiled code takes apart from the rest."""

    def __init__(self, paths: list[Path], schema: Path) -> None:
        from writetime.kernels import mutation_kernel

        self.paths = paths
        self.schema = schema_from(schema)
        self.kernel = 0.0
        compiled: Callable[..., Any] = mutation_kernel.decode

        def timed(arguments: Any) -> None:
            begun = time.perf_counter()
            compiled(arguments)
            self.kernel += time.perf_counter() - begun

        mutation_kernel.decode = timed

    def run(self, open_file: Callable[[Path], bytes]) -> dict[str, Any]:
        from writetime.cassandra.commitlog.segment import scan
        from writetime.kernels.mutation_decoder import decode_segment

        self.kernel = read = walk = 0.0
        mutations = cells = 0
        begun = time.perf_counter()
        for path in self.paths:
            before = time.perf_counter()
            content = open_file(path)
            after = time.perf_counter()
            scanned = scan(content, name=path.name)
            read, walk = read + after - before, walk + time.perf_counter() - after
            for chunk in decode_segment(scanned, self.schema, engine="numba"):
                if chunk.failures:
                    raise ToolError(f"{path.name}: {chunk.failures[0].error}")
                cells += chunk.cells.num_rows
            mutations += len(scanned.frames)
        seconds = time.perf_counter() - begun
        parts = {"read": read, "scan": walk, "kernel": self.kernel, "rest": seconds - read - walk - self.kernel}
        return {"seconds": seconds, "mutations": mutations, "cells": cells, **parts}


def versions(paths: list[Path], schema: Path, folder: Path, pairs: int) -> list[float]:
    """The CPU time for mutations in a segment of version 9, which has flags and epochs, against that for the same ones
    in version 8, pair by pair. Which is the first of a pair alternates.
    """
    from proof.fuzz.structure import with_epochs
    from writetime.cassandra.commitlog.encode import encode_segment

    known, bodies = schema_from(schema), list(_bodies(paths, _BOTH_VERSIONS))
    epochs = {table_id: 100 + number for number, table_id in enumerate(known.tables)}
    of_version = {8: bodies, 9: [with_epochs(body, known, 0, epochs.__getitem__) for body in bodies]}
    files = {version: folder / f"CommitLog-{version}-1.log" for version in of_version}
    for version, path in files.items():
        path.write_bytes(encode_segment(1, version, of_version[version], per_section=1000))
    ratios = []
    for number in range(WARM_UP + pairs):
        seconds = {}
        for version in sorted(files, reverse=bool(number % 2)):
            begun = time.process_time()
            _decode_all(files[version], known, keep=False)
            seconds[version] = time.process_time() - begun
        ratios.append(seconds[9] / seconds[8])
    return ratios[WARM_UP:]


# --- memory and the first call


def memory(paths: list[Path], schema: Path, size: int, folder: Path) -> dict[str, Any]:
    """What a process takes beyond what it had before it read a segment of `size` MiB: with each chunk let go,
    and with all kept.
    """
    path = folder / f"CommitLog-7-{size}.log"
    path.write_bytes(segment_of(paths, size * MEBIBYTE, size))
    kept, streamed = (_child(name, schema, path)["peak"] for name in ("kept", "streamed"))
    return {"segment": path.stat().st_size, "streamed": streamed, "kept": kept}


def segment_of(paths: list[Path], size: int, segment_id: int) -> bytes:
    """A segment of about that size, of the mutations that the node wrote."""
    from writetime.cassandra.commitlog.encode import encode_segment

    return encode_segment(segment_id, 7, list(_bodies(paths, size - 64 * 1024)), per_section=1000, size=size)


def _bodies(paths: list[Path], size: int) -> Iterator[bytes]:
    from writetime.cassandra.commitlog.segment import scan

    while True:
        for path in paths:
            scanned = scan(path.read_bytes(), name=path.name)
            for frame in scanned.frames:
                size -= frame.body_length + 12
                if size < 0:
                    return
                yield scanned.body(frame)


def first_call(path: Path, schema: Path) -> dict[str, Any]:
    """Seconds of the first and the second call in a fresh process, imports and the loading of machine code
    included; best of five, and the difference of each.

    By the clock, and of the CPU: on a busy machine they differ.
    """
    runs = [_child("calls", schema, path) for _ in range(5)]
    apart = [run["first"] - run["second"] for run in runs]
    return {"first call": runs[apart.index(min(apart))], "first calls apart": apart}


def _child(name: str, *paths: Path) -> dict[str, Any]:
    command = [sys.executable, "-m", "benchmarks.decode", "--child", name, *map(str, paths)]
    return dict(json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout))


def _decode_all(path: Path, schema: Any, *, keep: bool) -> list[Any]:
    from writetime.cassandra.commitlog.files import mapped
    from writetime.cassandra.commitlog.segment import scan
    from writetime.kernels.mutation_decoder import decode_segment

    chunks = decode_segment(scan(mapped(path), name=path.name), schema, engine="numba")
    return list(chunks) if keep else [0 for _ in chunks]


def _peak(schema: Path, path: Path, *, keep: bool) -> dict[str, Any]:
    known = schema_from(schema)
    from writetime.kernels import mutation_buffers, segment_walk

    segment_walk.compile_ahead()
    mutation_buffers.compile_ahead()
    before = _resident("VmRSS")
    # Reset the peak.
    Path("/proc/self/clear_refs").write_text("5")
    _decode_all(path, known, keep=keep)
    return {"peak": _resident("VmHWM") - before}


def _resident(field: str) -> int:
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith(field)) * 1024


def _calls(schema: Path, path: Path) -> dict[str, Any]:
    known = schema_from(schema)
    found = {}
    for call in ("first", "second"):
        begun, begun_cpu = time.perf_counter(), time.process_time()
        _decode_all(path, known, keep=False)
        found |= {call: time.perf_counter() - begun, f"{call} cpu": time.process_time() - begun_cpu}
    return found


CHILDREN: dict[str, Callable[..., dict[str, Any]]] = {
    "kept": lambda schema, path: _peak(schema, path, keep=True),
    "streamed": lambda schema, path: _peak(schema, path, keep=False),
    "calls": _calls,
}


# --- schema


def learn(paths: list[Path], into: Path) -> None:
    """Learn the schema before the measurement: Java learns in a first pass too."""
    from writetime.cassandra.commitlog.mutation_json import learn as learn_from
    from writetime.cassandra.commitlog.segment import scan
    from writetime.cassandra.schema.history import SchemaLearner

    learner = SchemaLearner()
    for path in paths:
        learn_from(scan(path.read_bytes(), name=path.name), learner)
    into.write_text(learner.to_json(), encoding="utf-8")


def schema_from(path: Path) -> Any:
    from writetime.cassandra.schema.history import SchemaLearner

    return SchemaLearner.from_json(path.read_text(encoding="utf-8")).schema()


# --- for people


def show(figures: dict[str, Any]) -> None:
    files, ours, java = figures["files"], figures["ours"], figures["java"]
    table = Table(title=f"{files['segments']} segments, {files['bytes'] / 1e6:.0f} MB, one core, best pass")
    for column in ("", "MB/s", "mutations/s", "cells/s"):
        table.add_column(column, justify="right" if column else "left")
    rows = (
        (f"Cassandra {figures['cassandra']} CommitLogReader", java),
        ("writetime, mapped file to Arrow", ours),
        ("writetime, file read, to Arrow", figures["copied"]),
    )
    for name, one in rows:
        table.add_row(name, f"{one['mb_per_second']:.0f}", f"{one['mutations_per_second']:,.0f}", f"{one['cells_per_second']:,.0f}")
    table.add_row("  compiled code: scan and decode", f"{figures['kernel']['mb_per_second']:.0f}", "", "")
    Console().print(table)
    spread = sorted(figures["ratios"])
    middle = spread[len(spread) // 2]
    copied = f"with files read {figures['ratio copied']:.2f}"
    passes = f"pass by pass {spread[0]:.2f} to {spread[-1]:.2f}, median {middle:.2f}"
    say(f"ratio {figures['ratio']:.2f} (aim: {AIMS['ratio']}); {copied}; {passes}")
    say("time by part: " + ", ".join(f"{part} {seconds / ours['seconds']:.0%}" for part, seconds in figures["parts"].items()))
    of_versions = sorted(figures["versions"])
    pairs = f"{of_versions[0]:.3f} to {of_versions[-1]:.3f} in {len(of_versions)} pairs"
    times = f"{statistics.median(of_versions):.3f} x the CPU time of version 8 (median; {pairs}; aim: {AIMS['versions']})"
    say(f"the same mutations in version 9, with epochs: {times}")
    for one in figures["memory"]:
        times = {name: one[name] / one["segment"] for name in ("streamed", "kept")}
        say(
            f"memory for {one['segment'] / MEBIBYTE:.0f} MiB: {times['streamed']:.1f} x with chunks let go,"
            f" {times['kept']:.1f} x with all kept (aim: {AIMS['memory']:.0f})"
        )
    call = figures["first call"]
    say(
        f"fresh process: first call {call['first']:.2f} s ({call['first cpu']:.2f} s of the CPU), second {call['second']:.2f} s"
        f" ({call['second cpu']:.2f} s) (aim: {AIMS['first call']} s apart)"
    )


if __name__ == "__main__":
    if not ENVIRONMENT.items() <= os.environ.items():
        # Allocators read it when a process starts.
        os.execve(sys.executable, [sys.executable, "-m", "benchmarks.decode", *sys.argv[1:]], os.environ | ENVIRONMENT)
    sys.exit(main(sys.argv[1:]))
