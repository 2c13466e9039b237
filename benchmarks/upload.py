"""Uploading segments to a store, compared with the store's own library on the same files: `make
bench-upload`.

Strategy: a real server on the loopback for each store (fake-gcs-server, versitygw) and a folder; the same
random files. The two sides take turns; the figures are each one's best, by the clock and by the CPU of the
sending process. The library does the minimum for a create-only copy: one call, its own checksum, no
verification. We read a file twice, send it in parts, and verify the stored object. A server on the same
machine shares its cores and has no latency.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import sys
import tempfile
import time
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from rich.console import Console
from rich.table import Table

from tests import gcs_server, s3_server
from writetime.storage import open_store

MB = 1 << 20
Send = Callable[[str, Path], object]


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.upload", description=__doc__.partition("\n\n")[0])
    parser.add_argument("--files", type=int, default=4, help="segments of a pass (default: 4)")
    parser.add_argument("--size", type=int, default=32, help="MiB of a segment (default: 32)")
    parser.add_argument("--passes", type=int, default=5, help="measured passes (default: 5)")
    parser.add_argument("--json", action="store_true", help="print the figures as JSON")
    options = parser.parse_args(arguments)
    with tempfile.TemporaryDirectory(prefix="writetime-bench-") as name:
        folder = Path(name)
        files = [folder / f"CommitLog-7-{number}.log" for number in range(options.files)]
        for path in files:
            path.write_bytes(os.urandom(options.size * MB))
        figures = {}
        for kind, sides in (("folder", local), ("gcs", gcs), ("s3", s3)):
            with sides(folder / kind) as (ours, library):
                figures[kind] = compare(files, ours, library, options.passes)
    if options.json:
        print(json.dumps(figures, indent=2))
    else:
        show(figures)
    return 0


def compare(files: list[Path], ours: Send, library: Send, passes: int) -> dict[str, float]:
    """MB/s of both sides by the clock and by the CPU, best of the passes, and the ratios."""
    size = sum(path.stat().st_size for path in files) / 1e6
    best: dict[str, list[tuple[float, float]]] = {"ours": [], "library": []}
    for number in range(passes + 1):
        for side, send in (("ours", ours), ("library", library)):
            clock, cpu = time.perf_counter(), time.process_time()
            for path in files:
                send(f"{side}/{number}/{path.name}", path)
            # The first pass warms up.
            if number:
                best[side].append((time.perf_counter() - clock, time.process_time() - cpu))
    found = {
        f"{side}_{what}": size / min(pair[i] for pair in pairs)
        for side, pairs in best.items()
        for i, what in enumerate(("mb_s", "mb_cpu_s"))
    }
    return found | {"ratio": found["ours_mb_s"] / found["library_mb_s"], "ratio_cpu": found["ours_mb_cpu_s"] / found["library_mb_cpu_s"]}


@contextmanager
def local(folder: Path) -> Iterator[tuple[Send, Send]]:
    store = open_store(str(folder / "ours"))

    def copy(name: str, path: Path) -> None:
        target = folder / name
        target.parent.mkdir(parents=True, exist_ok=True)
        with path.open("rb") as source, target.open("xb") as sink:
            shutil.copyfileobj(source, sink, MB)
            os.fsync(sink.fileno())

    yield lambda name, path: store.put(name, path, if_generation=0), copy


@contextmanager
def gcs(folder: Path) -> Iterator[tuple[Send, Send]]:
    from google.cloud import storage

    binary = gcs_server.program()
    if binary is None:
        raise SystemExit("no GCS test server: run make test-gcs")
    folder.mkdir()
    with gcs_server.running(binary, folder) as url:
        gcs_server.make_bucket(url, "bucket")
        os.environ["STORAGE_EMULATOR_HOST"] = url
        store, bucket = open_store("gs://bucket"), storage.Client(project=None).bucket("bucket")
        yield (
            lambda name, path: store.put(name, path, if_generation=0),
            lambda name, path: bucket.blob(name).upload_from_filename(path, if_generation_match=0),
        )


@contextmanager
def s3(folder: Path) -> Iterator[tuple[Send, Send]]:
    binary = s3_server.program()
    if binary is None:
        raise SystemExit("no S3 test server: run make test-s3")
    folder.mkdir()
    with s3_server.running(binary, folder) as server:
        bucket, client = f"t-{uuid.uuid4().hex}", server.client()
        server.make_bucket(bucket)
        os.environ |= {"AWS_ENDPOINT_URL_S3": server.url, "AWS_ACCESS_KEY_ID": server.access, "AWS_SECRET_ACCESS_KEY": server.secret}
        store = open_store(f"s3://{bucket}")

        def put(name: str, path: Path) -> None:
            with path.open("rb") as source:
                client.put_object(Bucket=bucket, Key=name, Body=source, IfNoneMatch="*")

        yield lambda name, path: store.put(name, path, if_generation=0), put


def show(figures: dict[str, dict[str, float]]) -> None:
    columns = ("", "MB/s", "library's", "ratio", "MB per s of CPU", "library's", "ratio")
    table = Table(*columns, title="Sending segments: the store's put against its library's own")
    for kind, found in figures.items():
        values = ("ours_mb_s", "library_mb_s", "ratio", "ours_mb_cpu_s", "library_mb_cpu_s", "ratio_cpu")
        table.add_row(kind, *(f"{found[value]:.2f}" if "ratio" in value else f"{found[value]:.0f}" for value in values))
    Console().print(table)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
