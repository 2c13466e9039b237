"""Proof that the commit log is decoded as Cassandra decodes it: `python -m proof.decoder.compare`, or `make
test-decoder`.

Strategy: for every version, writer and codec, a real node runs the workload of `nasty` with segments of 1
MiB: all of it for plain and encrypted segments, parts of it for other codecs, because the content of
mutations does not depend on them. cdc_raw is copied with a growing segment; after a crash; and after a clean
shutdown. For each copy, Cassandra's own reader of that version prints a line per mutation (`judge`), and so
does `writetime dump --json --all-tables`: all lines of all keyspaces must be equal, in the same order. The
compiled decoder must give the same mutations as the readable one, and the idx of a growing segment must limit
the scan. One node runs at a time, while a second process compares the previous copies.

Prints a table of the comparisons. Exit code 1 on a difference. Takes some minutes; no network once Maven's
cache is filled.
"""

from __future__ import annotations

import argparse
import json
import os
import secrets
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ProcessPoolExecutor
from dataclasses import asdict, dataclass, field
from multiprocessing import get_context
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from proof.decoder import nasty
from proof.decoder.judge import Judge, build
from proof.harness.cassandra import KNOWN, Ring, version_of
from proof.harness.node import Node
from tools import ROOT
from tools.console import say
from tools.errors import ServiceError, ToolError
from tools.java import java_home
from writetime.cassandra.commitlog import idx
from writetime.cassandra.commitlog.encryption.keystore import PASSWORD_VARIABLE, Keystore
from writetime.cassandra.commitlog.mutation_json import Failure, learn
from writetime.cassandra.commitlog.mutation_json import decode as decode_readably
from writetime.cassandra.commitlog.segment import Scan, scan
from writetime.cassandra.schema.history import SchemaLearner
from writetime.kernels.mutation_columns import unflatten
from writetime.kernels.mutation_decoder import decode

SEED = 20260315
COMPRESSORS = {"LZ4": "LZ4Compressor", "Snappy": "SnappyCompressor", "Deflate": "DeflateCompressor", "Zstd": "ZstdCompressor"}
ENCRYPTED, DIRECT, PLAIN = "encrypted", "direct I/O", "plain"
CODECS = (PLAIN, *COMPRESSORS, ENCRYPTED)
THOROUGH = (PLAIN, ENCRYPTED)
"""Where the whole workload is run, and where the node crashes on the way."""
BRIEF = ("native_types", "keys", "deletes", "collections", "batches", "lives")
"""The parts for all others."""
KEY_ALIAS = "Commitlog:1"
"""In upper case too: a JCEKS store lowers it, the segment's header does not."""
_SHOWN = 3


@dataclass(frozen=True)
class Case:
    """A version of Cassandra, the descriptor version that it writes, and the codec of the log."""

    version: str
    descriptor: int
    codec: str

    @property
    def name(self) -> str:
        return f"{self.version}-v{self.descriptor}-{self.codec.replace(' ', '-').replace('/', '')}"

    @property
    def store_type(self) -> str:
        """Of the keystore: one kind for each descriptor version that is written, the other for the older
        Cassandra.
        """
        return "JCEKS" if self.version.startswith("4.0") or self.descriptor >= 8 else "PKCS12"

    @property
    def compatibility(self) -> str | None:
        """The storage_compatibility_mode in which the version writes that descriptor version; None: its default."""
        return {("5", 8): "NONE", ("6", 7): "CASSANDRA_4"}.get((self.version[0], self.descriptor))


@dataclass(frozen=True)
class Result:
    """The result for one copy. `unknown`: mutations that neither reader can decode without a schema.
    `seconds` of the comparison.
    """

    version: str
    descriptor: int
    codec: str
    state: str
    segments: int
    mutations: int
    updates: int
    cells: int
    unknown: int
    differences: int
    seconds: float
    examples: list[str] = field(default_factory=list)


def cases(versions: Sequence[str] = KNOWN, codecs: Sequence[str] = (*CODECS, DIRECT)) -> Iterator[Case]:
    """All there are. 5.0 writes version 8, and 6.0 version 9, only if no older node has to understand it;
    direct I/O is new in 5.0.
    """
    for version in versions:
        for descriptor in {"5": (7, 8), "6": (7, 9)}.get(version[0], (7,)):
            for codec in codecs:
                if codec != DIRECT or descriptor >= 8:
                    yield Case(version, descriptor, codec)


# --- writing


def write(case: Case, folder: Path, keep: Path, parts: Sequence[str] = (), *, fill: bool = True) -> dict[str, Path]:
    """Run a node of its own in `folder` and leave copies of its cdc_raw in `keep`: by what they are,
    `growing`, `crashed` and `finished`.

    `parts` of the workload by name, those that suit the case if none are given; `fill` segments with random
    bytes, so that there are many.
    """
    settings, options = _settings(case, keep)
    ring = Ring(
        folder,
        version=case.version,
        segment_mb=1,
        compression=COMPRESSORS.get(case.codec),
        compatibility=case.compatibility,
        settings=settings,
        options=options,
    )
    wanted = parts or (BRIEF if case.codec not in THOROUGH else [part.__name__ for part in nasty.PARTS])
    chosen = [part for part in nasty.PARTS if part.__name__ in wanted]
    middle = chosen[len(chosen) // 2].__name__
    copies: dict[str, Path] = {}

    def copy(name: str) -> None:
        copies[name] = keep / name
        _copy(node, copies[name])

    with ring:
        node = ring.nodes[0]
        nasty.run(
            node.session(),
            case.version,
            seed=SEED,
            parts=chosen,
            fill=fill,
            pause=lambda part: copy("growing") if part == middle else None,
        )
        if case.codec in THOROUGH and fill:
            ring.kill(node)
            copy("crashed")
            ring.restart(node)
            nasty.run_again(node.session())
    copy("finished")
    return copies


def _settings(case: Case, keep: Path) -> tuple[dict[str, Any], list[str]]:
    """The case's settings in cassandra.yaml and on the JVM's command line."""
    settings: dict[str, Any] = {
        "enable_materialized_views": True,
        "enable_drop_compact_storage": True,
        "auto_snapshot": False,
        # More and smaller sections than by default.
        "commitlog_sync_period_in_ms": 200,
    }
    if case.codec == ENCRYPTED:
        settings |= make_keystore(case, keep)
    if case.codec == DIRECT:
        settings["commitlog_disk_access_mode"] = "direct"
    # What expires after 2038 is cut to the last moment that version 7 can write down. A node that lives for a
    # minute needs no optimising.
    cut = [] if case.descriptor >= 8 else ["-Dcassandra.expiration_date_overflow_policy=CAP"]
    return settings, ["-XX:TieredStopAtLevel=1", *cut]


def make_keystore(case: Case, folder: Path) -> dict[str, Any]:
    """A keystore with one key in `folder`, made by Java's keytool; the settings that let a node encrypt with
    it.
    """
    path = folder / "keystore"
    password = secrets.token_hex(16)
    tool = [str(java_home() / "bin" / "keytool"), "-genseckey", "-alias", KEY_ALIAS, "-keyalg", "AES", "-keysize", "256"]
    tool += ["-storetype", case.store_type, "-keystore", str(path), "-storepass:env", PASSWORD_VARIABLE, "-keypass:env", PASSWORD_VARIABLE]
    done = subprocess.run(tool, env=os.environ | {PASSWORD_VARIABLE: password}, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise ServiceError(f"keytool could not make a keystore: {done.stdout}{done.stderr}")
    parameters = {"keystore": str(path), "keystore_password": password, "store_type": case.store_type, "key_password": password}
    provider = {"class_name": "org.apache.cassandra.security.JKSKeyProvider", "parameters": [parameters]}
    options = {"enabled": True, "chunk_length_kb": 64, "cipher": "AES/CBC/PKCS5Padding", "key_alias": KEY_ALIAS, "key_provider": [provider]}
    settings = {"transparent_data_encryption_options": options}
    (folder / "encryption.json").write_text(json.dumps(settings), encoding="utf-8")
    return settings


def _copy(node: Node, to: Path) -> None:
    """Copy indexes first: the segments then contain what the indexes state."""
    to.mkdir()
    for pattern in ("*_cdc.idx", "*.log"):
        for path in node.cdc_raw.glob(pattern):
            shutil.copy2(path, to)


# --- comparing


def compare(case: Case, state: str, folder: Path, keep: Path) -> Result:
    """Read a copy with all readers and count the mutations that differ."""
    begun = time.monotonic()
    settings = json.loads((keep / "encryption.json").read_text(encoding="utf-8")) if case.codec == ENCRYPTED else {}
    judged = Judge(case.version, settings).dump(folder)
    lines, failures = _dump(folder, keep if settings else None, settings)
    keys = Keystore.open(keep / "keystore", _password(settings)) if settings else None
    segments = sorted(folder.glob("*.log"), key=lambda path: int(path.stem.rpartition("-")[2]))
    examples = [f"Cassandra's reader: {problem}" for problem in judged.problems]
    examples += list(between(judged.lines, lines))
    examples += list(_between_twins(segments, keys))
    examples += [f"the index: {found}" for path in segments if (found := _against_index(path, keys))]
    unknown = sum(judged.unknown.values())
    if unknown != failures:
        examples.append(f"{unknown} mutations are of tables that Cassandra's reader does not know, {failures} could not be decoded by us")
    updates = [update for line in judged.lines for update in line["updates"]]
    return Result(
        case.version,
        case.descriptor,
        case.codec,
        state,
        segments=len(segments),
        mutations=len(judged.lines),
        updates=len(updates),
        cells=sum(len(row["cells"]) for update in updates for row in (*update["rows"], update.get("static", {"cells": []}))),
        unknown=unknown,
        differences=len(examples),
        seconds=round(time.monotonic() - begun, 1),
        examples=examples[:_SHOWN],
    )


def _password(settings: dict[str, Any]) -> str:
    return str(settings["transparent_data_encryption_options"]["key_provider"][0]["parameters"][0]["keystore_password"])


def _dump(folder: Path, keep: Path | None, settings: dict[str, Any]) -> tuple[list[dict[str, Any]], int]:
    """The lines of the command, and how many frames it could not decode."""
    command = [sys.executable, "-m", "writetime.cli", "dump", "--json", "--all-tables", str(folder)]
    environment = dict(os.environ)
    if keep is not None:
        command += ["--keystore", str(keep / "keystore")]
        environment[PASSWORD_VARIABLE] = _password(settings)
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, check=False)
    if done.returncode != 0:
        raise ServiceError(f"writetime dump: exit code {done.returncode}\n{done.stderr.decode(errors='replace')[-4000:]}")
    return [json.loads(line) for line in done.stdout.splitlines()], done.stderr.count(b"UnknownTable")


def between(judged: list[dict[str, Any]], ours: list[dict[str, Any]]) -> Iterator[str]:
    """Mutations that are missing on one side, differ, or are in another order."""
    theirs_by_place, ours_by_place = ({(line["seg"], line["pos"]): line for line in lines} for lines in (judged, ours))
    for place in sorted(theirs_by_place.keys() | ours_by_place.keys()):
        theirs, own = theirs_by_place.get(place), ours_by_place.get(place)
        if theirs != own:
            yield f"{place[0]}:{place[1]}: {first_difference(theirs, own)}"
    order = [[(line["seg"], line["pos"]) for line in lines] for lines in (judged, ours)]
    if theirs_by_place.keys() == ours_by_place.keys() and order[0] != order[1]:
        yield "the same mutations, but not in the same order, or not as often"


def first_difference(theirs: Any, ours: Any, at: str = "") -> str:
    """The first difference of two documents."""
    if isinstance(theirs, dict) and isinstance(ours, dict) and theirs.keys() == ours.keys():
        return next(first_difference(theirs[key], ours[key], f"{at}.{key}") for key in theirs if theirs[key] != ours[key])
    if isinstance(theirs, list) and isinstance(ours, list) and len(theirs) == len(ours):
        return next(first_difference(a, b, f"{at}[{i}]") for i, (a, b) in enumerate(zip(theirs, ours, strict=True)) if a != b)
    return f"{at.lstrip('.') or 'the mutation'}: Cassandra {json.dumps(theirs)[:300]}, we {json.dumps(ours)[:300]}"


def _between_twins(segments: Sequence[Path], keys: Keystore | None) -> Iterator[str]:
    """Mutations that the compiled and the readable decoder decode differently."""
    scans = [(path, scan(path.read_bytes(), name=path.name, keys=keys, engine="python")) for path in segments]
    learner = SchemaLearner()
    for _, found in scans:
        learn(found, learner)
    schema = learner.schema()
    for path, found in scans:
        compiled = scan(path.read_bytes(), name=path.name, keys=keys, engine="numba")
        if _comparable(compiled) != _comparable(found):
            yield f"{path.name}: the compiled scan finds other frames"
        readable = {frame.position: mutation for frame, mutation in decode_readably(found, schema) if not isinstance(mutation, Failure)}
        fast = dict(_compiled(found, schema))
        for position in sorted(readable.keys() | fast.keys()):
            if readable.get(position) != fast.get(position):
                yield f"{path.name}:{position}: the compiled decoder gives {fast.get(position)!r:.300}, not {readable.get(position)!r:.300}"


def _comparable(found: Scan) -> tuple[Any, ...]:
    """The comparable parts of a scan: error objects are only equal to themselves."""
    return found.frames, found.image, found.ending, [(problem.kind, problem.position, problem.size) for problem in found.problems]


def _compiled(found: Scan, schema: Any) -> Iterator[tuple[int, Any]]:
    for chunk in decode(found.image, found.frames, schema, version=found.descriptor.version, engine="numba"):
        yield from unflatten(chunk)


def _against_index(path: Path, keys: Keystore | None) -> str | None:
    """A scan up to the index's position must find exactly the frames that end there or before."""
    try:
        index = idx.parse(path.with_name(f"{path.stem}_cdc.idx").read_bytes())
    except FileNotFoundError:
        return None
    if index is None:
        return f"{path.name}: cannot be read"
    content = path.read_bytes()
    everything = [frame.position for frame in scan(content, name=path.name, keys=keys).frames]
    synced = [frame.position for frame in scan(content, name=path.name, keys=keys, synced=index.synced).frames]
    if synced != [position for position in everything if position <= index.synced]:
        return f"{path.name}: {len(synced)} frames up to {index.synced}, not those of {len(everything)} that end there"
    return None


# --- all of it


def run(chosen: Sequence[Case], work: Path, parts: Sequence[str], log: Callable[[str], None]) -> Iterator[Result]:
    """Write and compare all cases; yields results in the order of the cases."""
    for version in dict.fromkeys(case.version for case in chosen):
        build(version)
    waiting: list[Future[Result]] = []
    with ProcessPoolExecutor(1, mp_context=get_context("spawn")) as executor:
        for case in chosen:
            keep = work / case.name
            keep.mkdir(parents=True)
            begun = time.monotonic()
            with tempfile.TemporaryDirectory(prefix="node-", dir=work) as folder:
                copies = write(case, Path(folder), keep, parts)
            log(f"  {case.name}: written in {time.monotonic() - begun:.0f} s")
            waiting += [executor.submit(compare, case, state, folder, keep) for state, folder in copies.items()]
            while waiting and waiting[0].done():
                yield waiting.pop(0).result()
        for result in waiting:
            yield result.result()


def show(results: Sequence[Result]) -> None:
    """Print the table and the first differences."""
    table = Table("version", "descriptor", "codec", "copy")
    for title in ("segments", "mutations", "updates", "cells", "unknown", "differences", "seconds"):
        table.add_column(title, justify="right")
    for result in results:
        values = (result.segments, result.mutations, result.updates, result.cells, result.unknown, result.differences, result.seconds)
        table.add_row(result.version, f"v{result.descriptor}", result.codec, result.state, *map(str, values))
    Console(width=132).print(table)
    for result in results:
        for example in result.examples:
            say(f"{result.version} v{result.descriptor} {result.codec}, {result.state}: {example}")


def main(arguments: Sequence[str]) -> int:
    """Run the comparison and print the result; the exit code."""
    parser = argparse.ArgumentParser(prog="python -m proof.decoder.compare", description=__doc__.partition("\n\n")[0])
    parser.add_argument(
        "--version", action="append", type=version_of, choices=KNOWN, help="only this version of Cassandra, or 6.0; may be repeated"
    )
    parser.add_argument("--codec", action="append", choices=(*CODECS, DIRECT), help="only this codec; may be repeated")
    parser.add_argument("--part", action="append", choices=[part.__name__ for part in nasty.PARTS], help="only this part of the workload")
    parser.add_argument("--json", action="store_true", help="results as lines of JSON, and nothing else on stdout")
    parser.add_argument("--keep", type=Path, help="a new folder in which the copies are kept, to look at")
    options = parser.parse_args(arguments)
    chosen = list(cases(options.version or tuple(reversed(KNOWN)), options.codec or (*CODECS, DIRECT)))
    results: list[Result] = []
    try:
        with tempfile.TemporaryDirectory(prefix="writetime-decoder-") as temporary:
            work = (options.keep or Path(temporary)).resolve()
            for result in run(chosen, work, options.part or (), (lambda _: None) if options.json else say):
                results.append(result)
                if options.json:
                    print(json.dumps(asdict(result)), flush=True)
    except ToolError as error:
        say(str(error))
        return 1
    if not options.json:
        show(results)
        total, different = sum(result.mutations for result in results), sum(result.differences for result in results)
        say(f"{total} mutations in {len(results)} copies, {different} differences")
    return 1 if any(result.differences for result in results) or not results else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
