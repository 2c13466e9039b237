"""Recordings of small compressed and encrypted segments of real nodes: one per compressor, and one per kind
of keystore.

    for recording in packed.recordings():
        recording.stage(tmp_path)                # its segments and indexes, and its keystore
        recording.truth()                        # a line per mutation, by Cassandra's own reader

`python -m proof.decoder.packed` makes them again, all or those whose names it is given; reading needs
neither Cassandra nor its driver. Their README.md describes what was recorded.
"""

from __future__ import annotations

import json
import lzma
import shutil
import sys
import tarfile
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tools import ROOT

if TYPE_CHECKING:
    from proof.decoder.compare import Case

FOLDER = ROOT / "tests" / "recordings" / "packed"
SETTINGS = "encryption.json"
PARTS = ("statics", "counters", "deletes", "lives")
README = """# Packed segments

What single Cassandra nodes left in their `cdc_raw` folders after parts of a seeded workload
({parts} of `proof/decoder/nasty.py`), with commit log segments that are compressed or
encrypted. Made by `python -m proof.decoder.packed`, which boots the nodes on loopback; read by
`proof/decoder/packed.py`. Do not edit: record anew.

| folder | Cassandra | descriptor | packed | mutations |
|---|---|---|---|---|
{rows}

| file | what |
|---|---|
| `segments.tar.xz` | `CommitLog-…` with their `_cdc.idx`, all finished |
| `mutations.jsonl.xz` | a line per mutation, in log order, as that version's own `CommitLogReader` has them (`proof/decoder/judge.py`) |
| `keystore` | with the key of encrypted segments, made by keytool |
| `encryption.json` | what the node's cassandra.yaml said of it, the password included: this key guards nothing but these segments |
"""


@dataclass(frozen=True)
class Packed:
    """A recording."""

    path: Path

    @property
    def name(self) -> str:
        return self.path.name

    @property
    def keystore(self) -> Path | None:
        """Where the key of an encrypted recording is."""
        return self.path / "keystore" if (self.path / SETTINGS).exists() else None

    @property
    def password(self) -> str:
        """Of the keystore."""
        options = json.loads((self.path / SETTINGS).read_text(encoding="utf-8"))["transparent_data_encryption_options"]
        return str(options["key_provider"][0]["parameters"][0]["keystore_password"])

    def stage(self, folder: Path) -> list[Path]:
        """Unpack segments and indexes; the segments in log order."""
        with tarfile.open(self.path / "segments.tar.xz", "r:xz") as archive:
            archive.extractall(folder, filter="data")
        return sorted(folder.glob("*.log"), key=lambda path: int(path.stem.rpartition("-")[2]))

    def truth(self) -> list[dict[str, Any]]:
        """The mutations, as `writetime dump --json --all-tables` should have them."""
        with lzma.open(self.path / "mutations.jsonl.xz", "rt", encoding="utf-8") as lines:
            return [json.loads(line) for line in lines]


def recordings() -> list[Packed]:
    """All there are, by name."""
    return [Packed(path) for path in sorted(FOLDER.iterdir()) if path.is_dir()]


def record(out: Path, names: Sequence[str] = ()) -> None:
    """Boot node after node and put the new recordings in place of the old ones: those with these names, or all."""
    from proof.decoder.compare import ENCRYPTED, Case
    from proof.harness.cassandra import PRERELEASE
    from tools.console import say, step

    cases = (
        Case("4.0.18", 7, "LZ4"),
        Case("4.1.10", 7, "Snappy"),
        Case("5.0.6", 7, "Deflate"),
        Case("5.0.6", 8, "Zstd"),
        Case(PRERELEASE, 9, "LZ4"),
        Case("4.0.18", 7, ENCRYPTED),
        Case("5.0.6", 7, ENCRYPTED),
    )
    with tempfile.TemporaryDirectory(prefix="writetime-packed-") as temporary:
        for case in (case for case in cases if not names or case.name in names):
            target = Path(temporary) / "packed" / case.name
            with step(case.name):
                _record(case, Path(temporary), target)
            shutil.rmtree(out / case.name, ignore_errors=True)
            shutil.copytree(target, out / case.name)
    rows = []
    for case in cases:
        packed = f"encrypted, {case.store_type}" if case.codec == ENCRYPTED else case.codec
        rows.append(f"| `{case.name}` | {case.version} | v{case.descriptor} | {packed} | {len(Packed(out / case.name).truth())} |")
    (out / "README.md").write_text(README.format(parts=", ".join(PARTS), rows="\n".join(rows)), encoding="utf-8")
    size = sum(path.stat().st_size for path in out.rglob("*") if path.is_file())
    say(f"{out}: {size / 2**20:.2f} MiB")


def _record(case: Case, temporary: Path, target: Path) -> None:
    """Run a node, compare what it left with Cassandra's reader, and keep it in `target`."""
    from proof.decoder.compare import compare, write

    keep = temporary / case.name
    keep.mkdir()
    target.mkdir(parents=True)
    copies = write(case, temporary / "node" / case.name, keep, PARTS, fill=False)
    result = compare(case, "finished", copies["finished"], keep)
    if result.differences:
        raise SystemExit(f"{case.name}: {result.examples}")
    _keep(case.version, keep, copies["finished"], target)


def _keep(version: str, keep: Path, copy: Path, target: Path) -> None:
    """Pack what is kept of one node."""
    from proof.decoder.judge import Judge

    settings = json.loads((keep / SETTINGS).read_text(encoding="utf-8")) if (keep / SETTINGS).exists() else {}
    lines = Judge(version, settings).dump(copy).lines
    with lzma.open(target / "mutations.jsonl.xz", "wt", encoding="utf-8", preset=9) as out:
        for line in lines:
            out.write(json.dumps(line, ensure_ascii=False, separators=(",", ":")) + "\n")
    with tarfile.open(target / "segments.tar.xz", "w:xz", preset=9) as archive:
        for path in sorted(copy.iterdir()):
            archive.add(path, path.name)
    if settings:
        shutil.copy2(keep / "keystore", target)
        settings["transparent_data_encryption_options"]["key_provider"][0]["parameters"][0]["keystore"] = "keystore"
        (target / SETTINGS).write_text(json.dumps(settings, indent=2) + "\n", encoding="utf-8")


if __name__ == "__main__":
    from tools.errors import ToolError

    try:
        record(FOLDER, sys.argv[1:])
    except ToolError as error:
        sys.exit(str(error))
