"""Jars by a lock file: `python -m tools.jars sync` brings jars/<group>/ to exactly what jars.lock lists;
`lock` writes jars.lock.

Strategy: jars.lock lists every artefact with its SHA-256, including transitive ones, so nothing is resolved
at set-up: Maven only downloads (with its own mirrors, proxies and credentials), and each file is verified by
its checksum. Intact files are not downloaded again, so a second run needs no network. A group's folder is a
class path (`jars/kafka/*`): all other files in it are removed. Groups that only some tests use (ON_DEMAND)
are downloaded when these need them.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from xml.sax.saxutils import escape

from tools import ROOT
from tools.console import say
from tools.errors import JarError, MissingPrerequisite
from tools.java import java_home

LOCK = ROOT / "jars.lock"
FOLDER = ROOT / "jars"
_PLUGIN = "org.apache.maven.plugins:maven-dependency-plugin:3.8.1"


@dataclass(frozen=True, order=True)
class Artefact:
    """A Maven artefact; written `group:artifact:version[:packaging[:classifier]]`, as Maven's own
    dependency:get reads it.
    """

    group: str
    artifact: str
    version: str
    packaging: str = "jar"
    classifier: str = ""

    @classmethod
    def parse(cls, text: str) -> Artefact:
        """JarError if the text does not have three to five non-empty parts."""
        parts = text.split(":")
        if not 3 <= len(parts) <= 5 or not all(parts):
            raise JarError(f"`{text}` is no artefact; expected group:artifact:version[:packaging[:classifier]]")
        return cls(*parts)

    def __str__(self) -> str:
        parts = [self.group, self.artifact, self.version, self.packaging, self.classifier]
        if not self.classifier:
            parts = parts[:4] if self.packaging != "jar" else parts[:3]
        return ":".join(parts)

    @property
    def file_name(self) -> str:
        """Name that Maven gives the file."""
        return f"{self.artifact}-{self.version}{'-' if self.classifier else ''}{self.classifier}.{self.packaging}"


@dataclass(frozen=True)
class Root:
    """The source of a locked group: artefacts, with or without their run-time dependencies; `without`:
    dependencies to leave out, as `group:artifact`."""

    artefacts: tuple[str, ...]
    transitive: bool
    without: frozenset[str] = frozenset()


ROOTS = {
    # Spark has its own classes; only missing ones are added.
    "spark": Root(("org.apache.iceberg:iceberg-spark-runtime-4.1_2.13:1.12.0", "org.xerial:sqlite-jdbc:3.50.3.0"), transitive=False),
    # slf4j-simple, because without a binding the broker logs nothing.
    "kafka": Root(("org.apache.kafka:kafka_2.13:4.1.0", "org.slf4j:slf4j-simple:1.7.36"), transitive=True),
    # The Google client for Iceberg's GCSFileIO, which is in the runtime above. iceberg-gcp-bundle contains
    # the same.
    "gcs": Root(("com.google.cloud:google-cloud-storage:2.64.0",), transitive=True),
    # The same for S3FileIO: Amazon's client, and what Iceberg loads with it.
    "s3": Root(("org.apache.iceberg:iceberg-aws-bundle:1.12.0",), transitive=False),
    "registry": Root(("io.apicurio:apicurio-registry-app:2.6.13.Final:tar.gz:all",), transitive=False),
    # Consumers in Kafka Connect: a worker, Debezium's transforms, and its JDBC sink with PostgreSQL's driver only.
    "connect": Root(
        (
            "io.debezium:debezium-connector-jdbc:3.5.0.Final",
            "org.apache.kafka:connect-json:4.1.0",
            "org.apache.kafka:connect-runtime:4.1.0",
            "org.apache.kafka:connect-transforms:4.1.0",
            "org.slf4j:slf4j-simple:1.7.36",
        ),
        transitive=True,
        without=frozenset(
            {
                "com.microsoft.sqlserver:mssql-jdbc",
                "com.mysql:mysql-connector-j",
                "com.oracle.database.jdbc:ojdbc11",
                "org.mariadb.jdbc:mariadb-java-client",
            }
        ),
    ),
    # A catalog server, the last release that is published with all it needs.
    "nessie": Root(("org.projectnessie.nessie:nessie-quarkus:0.99.0:jar:runner",), transitive=False),
    # A server without plugins, and the one plugin that is needed.
    "trino": Root(("io.trino:trino-iceberg:476:zip", "io.trino:trino-server-core:476:tar.gz"), transitive=False),
    # A catalog in PostgreSQL.
    "postgres": Root(("org.postgresql:postgresql:42.7.7",), transitive=False),
    # A peer in `make bench`, as one jar with all it needs. The parent of 3.5.0.Beta1, the newest, is not published.
    "debezium": Root(("io.debezium:debezium-connector-cassandra-5:3.4.1.Final:jar:jar-with-dependencies",), transitive=False),
    # Spark's own Kafka source and sink: a consumer in tests, and the benchmark that compares our sink with it.
    "spark-kafka": Root(
        (
            "org.apache.spark:spark-sql-kafka-0-10_2.13:4.1.3",
            "org.apache.spark:spark-token-provider-kafka-0-10_2.13:4.0.0",
            "org.apache.kafka:kafka-clients:4.1.0",
            "org.apache.commons:commons-pool2:2.12.1",
        ),
        transitive=False,
    ),
}
ON_DEMAND = frozenset({"gcs", "s3", "registry", "connect", "nessie", "postgres", "debezium", "spark-kafka", "trino"})
"""Groups that only some tests or benchmarks need: `need` fetches them, set-up does not."""

Lock = dict[str, dict[Artefact, str]]
"""Group → artefact → SHA-256 in hex."""


def read_lock(path: Path = LOCK) -> Lock:
    """Parse jars.lock. JarError names the invalid line."""
    lock: Lock = {}
    group: dict[Artefact, str] | None = None
    for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), 1):
        text = line.strip()
        if not text or text.startswith("#"):
            continue
        if text.startswith("[") and text.endswith("]"):
            group = lock.setdefault(text[1:-1], {})
            continue
        name, _, checksum = text.partition(" sha256:")
        if group is None or len(checksum) != 64 or set(checksum) - set("0123456789abcdef"):
            raise JarError(
                f"{path.name}, line {number}: expected `[group]`, then `group:artifact:version sha256:<64 hex digits>`, not `{text}`"
            )
        group[Artefact.parse(name)] = checksum
    return lock


def write_lock(lock: Lock, path: Path = LOCK) -> None:
    """Write jars.lock, sorted, so that a difference between two versions of it is a difference in content."""
    lines = ["# Jars and their checksums. Written by: make lock-jars (from tools/jars.py, ROOTS)"]
    for group, artefacts in lock.items():
        lines += ["", f"[{group}]"]
        lines += [f"{artefact} sha256:{checksum}" for artefact, checksum in sorted(artefacts.items())]
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")


def sync(lock: Lock, folder: Path = FOLDER) -> int:
    """Make every group's folder contain exactly its artefacts; returns the number of downloads.

    JarError if a file does not match the lock (it is deleted), or Maven cannot download it.
    """
    wanted: dict[str, list[Artefact]] = {}
    for group, artefacts in lock.items():
        (folder / group).mkdir(parents=True, exist_ok=True)
        _remove_others(folder / group, {artefact.file_name for artefact in artefacts})
        wanted[group] = [
            artefact for artefact, checksum in artefacts.items() if not _is_intact(folder / group / artefact.file_name, checksum)
        ]
    missing = sorted({artefact for artefacts in wanted.values() for artefact in artefacts})
    if missing:
        say(f"▸ fetch {len(missing)} jars …")
        with tempfile.TemporaryDirectory(dir=folder) as fetched:
            fetch(missing, Path(fetched))
            for group, needed in wanted.items():
                for artefact in needed:
                    _take(Path(fetched) / artefact.file_name, folder / group, artefact, lock[group][artefact])
    return len(missing)


def need(group: str, folder: Path = FOLDER) -> Path:
    """The folder of a group with all its artefacts. Errors as of `sync`."""
    sync({group: read_lock()[group]}, folder)
    return folder / group


def fetch(artefacts: Iterable[Artefact], folder: Path) -> None:
    """Download exactly these artefacts to a folder with Maven, without dependencies."""
    with _Pom(artefacts, transitive=False) as pom:
        _maven(pom, f"{_PLUGIN}:copy-dependencies", f"-DoutputDirectory={folder}", "-Dmdep.useBaseVersion=true")


def resolve(root: Root) -> list[Artefact]:
    """All artefacts of a root, in the versions that Maven chooses."""
    roots = [Artefact.parse(text) for text in root.artefacts]
    if not root.transitive:
        return roots
    with _Pom(roots, transitive=True) as pom:
        listing = pom.path.with_suffix(".txt")
        _maven(pom, f"{_PLUGIN}:list", "-DincludeScope=runtime", f"-DoutputFile={listing}")
        found = _listed(listing.read_text(encoding="utf-8"))
        return sorted(each for each in found if f"{each.group}:{each.artifact}" not in root.without)


def lock_all() -> Lock:
    """Resolve all groups again and compute the checksums of their artefacts."""
    lock: Lock = {}
    for group, root in ROOTS.items():
        artefacts = resolve(root)
        with tempfile.TemporaryDirectory() as fetched:
            fetch(artefacts, Path(fetched))
            lock[group] = {artefact: sha256(Path(fetched) / artefact.file_name) for artefact in artefacts}
    return lock


def sha256(path: Path) -> str:
    """Checksum of a file, in hex."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _is_intact(path: Path, checksum: str) -> bool:
    if not path.exists():
        return False
    if sha256(path) == checksum:
        return True
    say(f"  {path.name} does not match jars.lock: downloading it again")
    return False


def _take(source: Path, folder: Path, artefact: Artefact, checksum: str) -> None:
    """Move a downloaded file to its place if its checksum matches."""
    found = sha256(source)
    if found != checksum:
        raise JarError(
            f"{artefact}: fetched a file with SHA-256 {found}, but jars.lock says {checksum}. It was not kept. "
            "Find out who changed it (a mirror, a cached copy in ~/.m2, or jars.lock itself) before running set-up again."
        )
    # Copied to a temporary name, then renamed: another group may need the same file, and an incomplete one
    # must not be visible.
    partial = folder / f".{artefact.file_name}"
    shutil.copyfile(source, partial)
    partial.replace(folder / artefact.file_name)


def _remove_others(folder: Path, names: set[str]) -> None:
    for path in folder.iterdir():
        if path.name not in names:
            path.unlink()


def _listed(listing: str) -> Iterator[Artefact]:
    """Artefacts of a dependency:list, `group:artifact:packaging[:classifier]:version:scope` per line."""
    for line in listing.splitlines():
        parts = line.split(" -- ")[0].strip().split(":")
        if len(parts) == 5:
            yield Artefact(parts[0], parts[1], parts[3], parts[2])
        elif len(parts) == 6:
            yield Artefact(parts[0], parts[1], parts[4], parts[2], parts[3])


class _Pom:
    """A temporary project that depends on the artefacts."""

    def __init__(self, artefacts: Iterable[Artefact], *, transitive: bool) -> None:
        self._folder = tempfile.TemporaryDirectory()
        self.path = Path(self._folder.name) / "pom.xml"
        dependencies = "".join(_dependency(artefact, transitive) for artefact in artefacts)
        self.path.write_text(
            '<project xmlns="http://maven.apache.org/POM/4.0.0"><modelVersion>4.0.0</modelVersion>'
            "<groupId>writetime</groupId><artifactId>jars</artifactId><version>1</version><packaging>pom</packaging>"
            f"<dependencies>{dependencies}</dependencies></project>",
            encoding="utf-8",
        )

    def __enter__(self) -> _Pom:
        return self

    def __exit__(self, *exception: object) -> None:
        self._folder.cleanup()


def _dependency(artefact: Artefact, transitive: bool) -> str:
    fields = {"groupId": artefact.group, "artifactId": artefact.artifact, "version": artefact.version, "type": artefact.packaging}
    if artefact.classifier:
        fields["classifier"] = artefact.classifier
    text = "".join(f"<{key}>{escape(value)}</{key}>" for key, value in fields.items())
    everything = "<exclusions><exclusion><groupId>*</groupId><artifactId>*</artifactId></exclusion></exclusions>"
    return f"<dependency>{text}{'' if transitive else everything}</dependency>"


def _maven(pom: _Pom, *arguments: str) -> None:
    program = shutil.which("mvn")
    if program is None:
        raise MissingPrerequisite("Maven (`mvn`) is not on the PATH. Install it (Debian: apt-get install maven)")
    command = [program, "-q", "-B", "-f", str(pom.path), *arguments]
    done = subprocess.run(command, capture_output=True, text=True, check=False, env=os.environ | {"JAVA_HOME": str(java_home())})
    if done.returncode != 0:
        raise JarError(f"Maven failed ({' '.join(command[3:])}):\n{(done.stdout + done.stderr)[-3000:]}")


def main(arguments: list[str]) -> int:
    """`sync` or `lock`; exit code 0, or 1 with the reason."""
    if arguments not in (["sync"], ["lock"]):
        say("usage: python -m tools.jars sync|lock")
        return 2
    try:
        if arguments == ["lock"]:
            write_lock(lock_all())
        fetched = sync({group: artefacts for group, artefacts in read_lock().items() if group not in ON_DEMAND})
    except (JarError, MissingPrerequisite) as error:
        say(f"Error: {error}")
        return 1
    if fetched:
        say(f"✓ {fetched} jars fetched, their checksums are right")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
