"""The jars of a Cassandra version, resolved by Maven once and recorded in
jars/cassandra-<version>/classpath.txt.

The jars stay in the local Maven repository. While they exist, neither Maven nor a network is needed. Knows
nothing about starting a node.
"""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

from tools import ROOT
from tools.errors import MissingPrerequisite, ServiceError

POM = Path(__file__).with_name("pom.xml")
_PLUGIN = "org.apache.maven.plugins:maven-dependency-plugin:3.8.1"


def classpath(version: str) -> list[Path]:
    """Jars of `org.apache.cassandra:cassandra-all:<version>` and all that it needs.

    MissingPrerequisite if Maven is needed and not there, ServiceError with Maven's words if it cannot resolve
    them.
    """
    remembered = ROOT / "jars" / f"cassandra-{version}" / "classpath.txt"
    if not _usable(remembered):
        _resolve(version, remembered)
    return _read(remembered)


def _usable(remembered: Path) -> bool:
    return remembered.exists() and all(jar.exists() for jar in _read(remembered))


def _read(remembered: Path) -> list[Path]:
    return [Path(jar) for jar in remembered.read_text(encoding="utf-8").strip().split(os.pathsep)]


def _resolve(version: str, target: Path) -> None:
    maven = shutil.which("mvn")
    if maven is None:
        raise MissingPrerequisite(f"Maven is needed once to fetch Cassandra {version}. Install it (Debian: apt-get install maven).")
    target.parent.mkdir(parents=True, exist_ok=True)
    # Maven writes to a temporary name, so that an interrupted run does not look complete.
    fresh = target.with_suffix(f".{os.getpid()}")
    goal = f"{_PLUGIN}:build-classpath"
    command = [maven, "-q", "-B", "-f", str(POM), f"-Dcassandra.version={version}", goal, f"-Dmdep.outputFile={fresh}"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise ServiceError(f"Maven could not resolve Cassandra {version}:\n{done.stdout[-2000:]}{done.stderr[-2000:]}")
    fresh.rename(target)
