"""Runs Cassandra's own CommitLogReader over segments: `java/` is a small program around it, built and run by
this module.

    judge = Judge("5.0.6")                          # CommitLogReader of that version
    found = judge.dump(folder)                      # every mutation in the folder's segments: found.lines, found.problems
    passes = judge.bench(folder, 5)                 # its speed on one thread
    with judge.each(folder) as read:                # single files, damaged or not, in one JVM
        found = read(path)

or `python -m proof.decoder.judge dump|bench FOLDER`, which prints the same as lines of JSON.

Strategy: a first pass over all segments of the folder learns the schema. Maven builds the program once per
version of Cassandra into jars/cassandra-<version>/judge, and again when a source changes. Readers of later
versions read segments of earlier ones; encrypted segments need the `transparent_data_encryption_options` of
the node that wrote them. Knows nothing about our decoder.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

from proof.harness.classpath import classpath
from proof.harness.node import access
from tools import ROOT
from tools.errors import MissingPrerequisite, ServiceError
from tools.java import java, java_home

SOURCES = Path(__file__).with_name("java")
HEAP = "1500M"
VERSION = "5.0.6"


@dataclass(frozen=True)
class Found:
    """What the reader delivered: a document per mutation, in log order, as `writetime dump --json` has them.

    From `each`, they have `crc` too, the CRC-32 of the mutation's bytes. `unknown`: mutations passed over, by
    the id of the table that nobody knows. `problems`: errors, each with `file`, `reason`, `permissible`
    (Cassandra's word for a torn tail) and `message`.
    """

    lines: list[dict[str, Any]]
    unknown: dict[str, int]
    problems: list[dict[str, Any]]


class Read(Protocol):
    """Reads one file in a running judge. ServiceError if the judge itself dies of it."""

    def __call__(self, path: Path) -> Found: ...


@dataclass(frozen=True)
class Judge:
    """CommitLogReader of a Cassandra version. `settings` go into its cassandra.yaml."""

    version: str = VERSION
    settings: Mapping[str, Any] = field(default_factory=dict)
    heap: str = HEAP

    def dump(self, folder: Path) -> Found:
        """All mutations of all segments in a folder. ServiceError with the judge's words if it fails."""
        with self._place() as place:
            out = place / "mutations.jsonl"
            (report,) = self._run(place, "dump", str(folder), str(out))
            with out.open(encoding="utf-8") as lines:
                return Found([json.loads(line) for line in lines], report["unknown"], report["problems"])

    def bench(self, folder: Path, passes: int) -> list[dict[str, Any]]:
        """Iterate all cells of the folder's segments `passes` times on one thread, nothing else. The first
        passes warm the JVM up.

        A document per pass: `seconds`, `bytes` of the files, `mutations`, `updates`, `rows`, `cells`,
        `mb_per_second` (MB = 10^6), `mutations_per_second`, `cells_per_second`.
        """
        with self._place() as place:
            return self._run(place, "bench", str(folder), str(passes))

    @contextmanager
    def each(self, folder: Path) -> Iterator[Read]:
        """A running judge that has learnt the schema from a folder and reads file after file. A file's name
        must be a segment's.
        """
        with self._asked("each", str(folder)) as ask:

            def read(path: Path) -> Found:
                found = ask(str(path))
                return Found(found["mutations"], found["unknown"], found["problems"])

            yield read

    @contextmanager
    def passes(self, folder: Path) -> Iterator[Callable[[], dict[str, Any]]]:
        """As `bench`, in a JVM that waits until the next pass is asked for."""
        with self._asked("bench", str(folder)) as ask:
            yield lambda: ask("")

    @contextmanager
    def _asked(self, *arguments: str) -> Iterator[Callable[[str], dict[str, Any]]]:
        """A running judge that answers one line per line."""
        with self._place() as place:
            errors = (place / "stderr").open("w+", encoding="utf-8")
            process = subprocess.Popen(
                self._command(place, *arguments),
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=errors,
                text=True,
                cwd=place,
            )
            assert process.stdin is not None
            assert process.stdout is not None
            given, answers = process.stdin, process.stdout

            def ask(question: str) -> dict[str, Any]:
                given.write(f"{question}\n")
                given.flush()
                answer = answers.readline()
                if not answer:
                    raise ServiceError(f"The judge died while reading {question!r}, exit code {process.wait()}:\n{_tail(errors.name)}")
                return dict(json.loads(answer))

            try:
                yield ask
            finally:
                given.close()
                try:
                    process.wait(20)
                except subprocess.TimeoutExpired:
                    process.kill()
                    process.wait()
                answers.close()
                errors.close()

    def _run(self, place: Path, *arguments: str) -> list[dict[str, Any]]:
        done = subprocess.run(self._command(place, *arguments), capture_output=True, text=True, check=False, cwd=place)
        if done.returncode != 0:
            raise ServiceError(f"judge {' '.join(arguments)}: exit code {done.returncode}\n{done.stdout[-2000:]}{done.stderr[-4000:]}")
        return [json.loads(line) for line in done.stdout.splitlines()]

    def _command(self, place: Path, *arguments: str) -> list[str]:
        properties = {
            "cassandra.config": (place / "cassandra.yaml").as_uri(),
            "logback.configurationFile": (place / "logback.xml").as_uri(),
            "cassandra.storagedir": place,
            "cassandra.logdir": place,
            "java.io.tmpdir": place,
        }
        jars = os.pathsep.join(str(jar) for jar in (build(self.version), *classpath(self.version)))
        options = [f"-Xmx{self.heap}", *access(), *(f"-D{name}={value}" for name, value in properties.items())]
        return [java(), *options, "-cp", jars, "writetime.judge.Judge", *arguments]

    @contextmanager
    def _place(self) -> Iterator[Path]:
        """A working folder with the configuration that Cassandra's classes require."""
        with tempfile.TemporaryDirectory(prefix="writetime-judge-") as temporary:
            place = Path(temporary)
            settings = cassandra_settings(place) | dict(self.settings)
            (place / "cassandra.yaml").write_text("".join(f"{name}: {json.dumps(value)}\n" for name, value in settings.items()))
            (place / "logback.xml").write_text('<configuration><root level="OFF"/></configuration>')
            yield place


def build(version: str) -> Path:
    """Folder of the program's classes for a version; built if it is not there or older than its sources."""
    target = ROOT / "jars" / f"cassandra-{version}" / "judge"
    stamp = target / "sources.sha256"
    digest = hashlib.sha256(b"".join(path.read_bytes() for path in sorted(SOURCES.rglob("*")) if path.is_file())).hexdigest()
    if not stamp.exists() or stamp.read_text(encoding="ascii") != digest:
        _maven(version, target)
        stamp.write_text(digest, encoding="ascii")
    return target / "classes"


def _maven(version: str, target: Path) -> None:
    maven = shutil.which("mvn")
    if maven is None:
        raise MissingPrerequisite("Maven is needed once to build the judge. Install it (Debian: apt-get install maven).")
    shutil.rmtree(target, ignore_errors=True)
    command = [maven, "-q", "-B", "-f", str(SOURCES / "pom.xml"), f"-Dcassandra.version={version}", f"-Doutput={target}", "compile"]
    environment = os.environ | {"JAVA_HOME": str(java_home())}
    done = subprocess.run(command, capture_output=True, text=True, check=False, env=environment)
    if done.returncode != 0:
        raise ServiceError(f"Maven could not build the judge for Cassandra {version}:\n{done.stdout[-4000:]}{done.stderr[-2000:]}")


def cassandra_settings(place: Path) -> dict[str, Any]:
    """Settings that Cassandra requires, although no node is started."""
    folders = ("commitlog_directory", "saved_caches_directory", "hints_directory", "cdc_raw_directory")
    return {
        "cluster_name": "judge",
        "partitioner": "org.apache.cassandra.dht.Murmur3Partitioner",
        "endpoint_snitch": "SimpleSnitch",
        "seed_provider": [{"class_name": "org.apache.cassandra.locator.SimpleSeedProvider", "parameters": [{"seeds": "127.0.0.1"}]}],
        "listen_address": "127.0.0.1",
        "rpc_address": "127.0.0.1",
        "commitlog_sync": "periodic",
        "commitlog_sync_period_in_ms": 10000,
        "data_file_directories": [str(place / "data")],
        **{name: str(place / name) for name in folders},
    }


def _tail(path: str) -> str:
    return Path(path).read_text(encoding="utf-8", errors="replace")[-4000:]


def main(arguments: Sequence[str]) -> int:
    """Print the judge's output; the exit code."""
    parser = argparse.ArgumentParser(prog="python -m proof.decoder.judge", description=__doc__.partition("\n\n")[0])
    parser.add_argument("what", choices=("dump", "bench"))
    parser.add_argument("folder", type=Path, help="folder of the segments")
    parser.add_argument("--version", default=VERSION, help="version of Cassandra whose reader judges")
    parser.add_argument("--passes", type=int, default=5, help="bench: how often")
    options = parser.parse_args(arguments)
    judge = Judge(options.version)
    folder = options.folder.resolve()
    documents = judge.dump(folder).lines if options.what == "dump" else judge.bench(folder, options.passes)
    for document in documents:
        print(json.dumps(document, ensure_ascii=False, separators=(",", ":")))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
