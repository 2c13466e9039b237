"""Make a recording: `python -m proof.recording.record [--out FOLDER] [--seed N] [--keep FOLDER]`, or `make
record`.

Strategy: run the workload on three nodes with small segments, with one node down for a while; query the
cluster when every node is up again and short TTLs have expired; then stop all nodes in order, which completes
their segments. The recording is only kept if all three nodes logged the same captured mutations. It replaces
the old one as a whole.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import lzma
import shutil
import sys
import tarfile
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any
from uuid import UUID

from cassandra.cluster import Session

from proof.harness.cassandra import VERSIONS, Ring
from proof.harness.node import Node
from proof.recording import answer, shop, workload
from proof.recording.recording import DEFAULT, FileInfo
from shippers.schema_snapshot import take_snapshot
from tools.console import say, step
from tools.errors import ServiceError, ToolError
from writetime.cassandra.commitlog import idx
from writetime.cassandra.commitlog.segment import peek, scan

SEED = 20260301
HINTS_SECONDS = 120.0
# Two seconds of TTL, and as much again for clocks that are cut to whole seconds.
SETTLE_SECONDS = 2 * workload.SHORT_TTL_SECONDS
README = """# A recorded ring

What three real Cassandra {version} nodes (RF 3, {datacenter}) left in their `cdc_raw` folders after a seeded workload of {statements}
statements, and what the ring answered in the end. Made by `make record`, which boots such a ring on loopback; read by
`proof/recording/recording.py`. Tests and the demo stage it as three nodes' folders. Do not edit: record anew.

| file | what |
|---|---|
| `recording.json` | nodes, their files with mtime and SHA-256, statements by kind, tables with row counts and `read_at` |
| `segments.tar.xz` | `<address>/cdc_raw/CommitLog-…`: segments (1 MiB, plain, version 7) with their `_cdc.idx`, all finished |
| `answer/<keyspace>.<table>.jsonl.xz` | one row of the ring's final answer per line |
| `schema-snapshot.json` | the schema at the end, in the form that the shipper ships |
| `schema.cql` | the same as CQL |

## What happened
Tables `shop.customers` and `shop.orders` are captured (`cdc = true`), `shop.audit_trail` is not. Statements of all kinds at ALL; a column
added on the way; one node down while the others wrote on at QUORUM, then back and fed by hints; list operations, conditional
statements, writetimes that tie. TTLs are 2 seconds (over before the answer was read) or 10 years (alive for long).
Every node holds the same multiset of captured mutations: {mutations} each. Empty segments that a node had prepared for its next writes
stay in cdc_raw when it ends, without an index; they are not kept here.

## The answer
A line is `{{"values": {{…}}, "writetime": {{…}}, "ttl": {{…}}}}`, each by column. It was read at ALL, every node up.

- `writetime`: µs; absent for key columns and nulls. A non-frozen collection has a list, one entry per element in the order of its keys.
- `ttl`: seconds left at `read_at` (recording.json, Unix seconds, by table), so a cell expires at `read_at + ttl`. Absent without TTL.
- `values`: `text`, `boolean`, integers up to `bigint`, `float` and `double` are JSON's (NaN and infinities are text); `decimal` and
  `varint` text with all digits; `blob` hex; `timestamp` ISO 8601 with ms and `Z`; `date` ISO; `uuid` and `inet` text; `list` a list;
  `set` a sorted list; `map` a sorted list of `[key, value]`; null is null.
- A partition of `shop.orders` that has nothing but its static column is one row with null clustering columns, as CQL shows it.
"""


def main(arguments: list[str]) -> int:
    """Make a recording and print the result; the exit code."""
    parser = argparse.ArgumentParser(prog="python -m proof.recording.record", description=__doc__.partition("\n\n")[0])
    parser.add_argument("--out", type=Path, default=DEFAULT, help="folder of the recording")
    parser.add_argument("--seed", type=int, default=SEED, help="seed of the workload")
    parser.add_argument("--version", default=VERSIONS[0], help="version of Cassandra")
    parser.add_argument("--keep", type=Path, help="a new folder in which the nodes' folders are kept, to look at")
    options = parser.parse_args(arguments)
    try:
        with tempfile.TemporaryDirectory(prefix="writetime-ring-") as temporary:
            record(options.out, options.keep or Path(temporary), seed=options.seed, version=options.version)
    except ToolError as error:
        say(str(error))
        return 1
    return 0


def record(out: Path, folder: Path, *, seed: int, version: str) -> None:
    """Start the cluster in `folder`, run the workload, and replace the recording at `out`."""
    fresh = folder / "recording"
    (fresh / "answer").mkdir(parents=True)
    ring = Ring(folder, nodes=3, version=version, cluster_name="demo", datacenter=shop.DATACENTER, segment_mb=1)
    with step(f"three nodes of Cassandra {version}"):
        ring.start()
    try:
        document = _run(ring, seed, fresh)
    finally:
        with step("stopping the nodes"):
            ring.close()
    table_ids = {UUID(str(row["id"])): f"{row['keyspace_name']}.{row['table_name']}" for row in _snapshot(fresh)["tables"]}
    document["captured_mutations"] = _check_replicas(ring, document, table_ids)
    _keep_segments(ring, document, fresh)
    _write_json(fresh / "recording.json", document)
    (fresh / "README.md").write_text(_readme(document), encoding="utf-8")
    shutil.rmtree(out, ignore_errors=True)
    shutil.copytree(fresh, out)
    size = sum(path.stat().st_size for path in out.rglob("*") if path.is_file())
    say(f"{out}: {size / 2**20:.2f} MiB, {document['captured_mutations']} captured mutations on each of {len(ring.nodes)} nodes")


def _run(ring: Ring, seed: int, fresh: Path) -> dict[str, Any]:
    """All steps that need running nodes."""
    session = ring.session("ALL")
    workload.create_tables(session)
    with step("workload"):
        counts = workload.run(session, seed, _interruption(ring), say)
    time.sleep(SETTLE_SECONDS)
    with step("the ring's answer"):
        tables = _keep_answer(session, fresh)
    _write_json(fresh / "schema-snapshot.json", take_snapshot(ring.nodes[0].session()))
    schema = session.cluster.metadata.keyspaces[shop.KEYSPACE].export_as_string()
    (fresh / "schema.cql").write_text(schema + "\n", encoding="utf-8")
    return {
        "format": 1,
        "cluster_name": ring.cluster_name,
        "cassandra_version": ring.version,
        "seed": seed,
        "recorded_at": datetime.now(UTC).isoformat(timespec="seconds"),
        "statements": dict(sorted(counts.items())),
        "tables": tables,
        "nodes": [_identity(node) for node in ring.nodes],
    }


def _interruption(ring: Ring) -> workload.Interruption:
    """Stop the last node and restart it; it is back when no hints for it are left."""
    away = ring.nodes[-1]

    def begin() -> Session:
        say(f"stopping {away.name}")
        ring.stop(away)
        return ring.session("QUORUM")

    def end() -> None:
        _wait_for_hints(ring, written=True)
        ring.restart(away)
        _wait_for_hints(ring, written=False)

    return workload.Interruption(begin, end)


def _wait_for_hints(ring: Ring, *, written: bool) -> None:
    """Wait until there are hint files that no longer grow, or until there are none."""
    deadline = time.monotonic() + HINTS_SECONDS
    before: dict[Path, int] = {}
    while time.monotonic() < deadline:
        # Longer than the period at which hints are written from memory to files.
        time.sleep(3.0)
        files = {path: path.stat().st_size for node in ring.nodes for path in node.hints.glob("*.hints")}
        if bool(files) == written and files == before:
            return
        before = files
    raise ServiceError(f"hints: {before} after {HINTS_SECONDS:.0f} s, where there should be {'some' if written else 'none'}")


def _keep_answer(session: Session, fresh: Path) -> dict[str, Any]:
    session.cluster.refresh_keyspace_metadata(shop.KEYSPACE)
    tables = session.cluster.metadata.keyspaces[shop.KEYSPACE].tables
    kept = {}
    for name in sorted(tables):
        read_at, rows = answer.read(session, tables[name])
        with lzma.open(fresh / "answer" / f"{shop.KEYSPACE}.{name}.jsonl.xz", "wt", preset=9, encoding="utf-8") as lines:
            lines.writelines(json.dumps(row, ensure_ascii=False, separators=(",", ":")) + "\n" for row in rows)
        kept[f"{shop.KEYSPACE}.{name}"] = {"cdc": name in shop.CDC_TABLES, "rows": len(rows), "read_at": read_at}
        say(f"  {shop.KEYSPACE}.{name}: {len(rows)} rows")
    return kept


def _identity(node: Node) -> dict[str, Any]:
    row = node.session().execute("SELECT host_id, data_center, rack, tokens, release_version FROM system.local").one()
    return {
        "host_id": str(row.host_id),
        "address": node.address,
        "datacenter": row.data_center,
        "rack": row.rack,
        "tokens": sorted(row.tokens, key=int),
        "release_version": row.release_version,
    }


def _check_replicas(ring: Ring, document: dict[str, Any], table_ids: dict[UUID, str]) -> int:
    """The number of captured mutations of each node. ServiceError if they differ or a segment is not
    completed.
    """
    held = [Counter(captured_mutations(node.cdc_raw, document["tables"], table_ids)) for node in ring.nodes]
    for node, mutations in zip(ring.nodes, held, strict=True):
        say(f"  {node.name}: {len(finished_segments(node.cdc_raw))} segments, {mutations.total()} captured mutations")
        lacking, surplus = held[0] - mutations, mutations - held[0]
        if lacking or surplus:
            raise ServiceError(
                f"{node.name} is missing {lacking.total()} mutations of {ring.nodes[0].name} and has {surplus.total()} others"
            )
    return held[0].total()


def captured_mutations(cdc_raw: Path, tables: dict[str, Any], table_ids: dict[UUID, str]) -> Iterator[bytes]:
    """Bytes of all mutations that touch a captured table, in finished segments.

    A mutation of several tables counts by its first one: a batch that begins with a table that is not
    captured is one all the same here, because the workload has no batch without a captured table.
    """
    for path in finished_segments(cdc_raw):
        content = path.read_bytes()
        found = scan(content, name=path.name)
        if found.problems:
            raise ServiceError(f"{path}: {found.problems[0].error}")
        for frame in found.frames:
            body = content[frame.body_offset : frame.body_offset + frame.body_length]
            count, table_id, _ = peek(body, version=found.descriptor.version)
            table = tables.get(table_ids.get(table_id, ""))
            if table is not None and (count > 1 or table["cdc"]):
                yield body


def finished_segments(cdc_raw: Path) -> list[Path]:
    """Segments that their index calls completed, by name. ServiceError if another one holds anything.

    Segments that a node had prepared for its next writes lie in cdc_raw after its end, empty and without an
    index.
    """
    finished = []
    for path in sorted(cdc_raw.glob("*.log")):
        index_file = path.with_name(f"{path.stem}_cdc.idx")
        index = idx.parse(index_file.read_bytes()) if index_file.exists() else None
        if index is not None and index.completed:
            finished.append(path)
        elif scan(path.read_bytes(), name=path.name).frames:
            raise ServiceError(f"{path} contains mutations but is not completed: its index is {index}")
    return finished


def _keep_segments(ring: Ring, document: dict[str, Any], fresh: Path) -> None:
    """All files of all nodes in one archive, so that what three replicas hold alike is compressed once."""
    with tarfile.open(fresh / "segments.tar.xz", "w:xz", preset=9) as archive:
        for node, known in zip(ring.nodes, document["nodes"], strict=True):
            paths = [path for log in finished_segments(node.cdc_raw) for path in (log, log.with_name(f"{log.stem}_cdc.idx"))]
            known["files"] = [_file(path).__dict__ for path in paths]
            for path in paths:
                archive.add(path, f"{node.address}/cdc_raw/{path.name}", filter=_anonymous)


def _file(path: Path) -> FileInfo:
    status = path.stat()
    return FileInfo(path.name, status.st_size, status.st_mtime_ns, hashlib.sha256(path.read_bytes()).hexdigest())


def _anonymous(member: tarfile.TarInfo) -> tarfile.TarInfo:
    """Without the user's name, and readable for all users."""
    member.uid = member.gid = 0
    member.uname = member.gname = ""
    member.mode = 0o644
    return member


def _snapshot(fresh: Path) -> dict[str, Any]:
    return dict(json.loads((fresh / "schema-snapshot.json").read_text(encoding="utf-8")))


def _readme(document: dict[str, Any]) -> str:
    return README.format(
        version=document["cassandra_version"],
        datacenter=shop.DATACENTER,
        statements=sum(document["statements"].values()),
        mutations=document["captured_mutations"],
    )


def _write_json(path: Path, document: dict[str, Any]) -> None:
    path.write_text(json.dumps(document, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
