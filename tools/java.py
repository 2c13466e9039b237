"""Find a JDK 17, which Cassandra, Kafka and Spark all support.

Strategy: JAVA_HOME if it is a 17, then the usual folders of Debian and macOS, then `java` on the PATH. Reads
each candidate's `release` file instead of starting a JVM. Installs nothing.
"""

from __future__ import annotations

import os
import re
import shutil
from collections.abc import Iterator
from functools import cache
from pathlib import Path

from tools.errors import MissingPrerequisite

VERSION = 17
_RELEASE = re.compile(r'^JAVA_VERSION="(\d+)', re.MULTILINE)


@cache
def java_home() -> Path:
    """Folder of a JDK 17. MissingPrerequisite says what to install when there is none."""
    for folder in _candidates():
        if major_version(folder) == VERSION:
            return folder
    raise MissingPrerequisite(
        f"No JDK {VERSION} found. Install it (Debian: apt-get install openjdk-17-jdk-headless), or point JAVA_HOME at one."
    )


def java() -> str:
    """Path of the `java` program of that JDK."""
    return str(java_home() / "bin" / "java")


def newest_java(least: int) -> str:
    """Path of the `java` program of the newest JDK, which is that version or a later one. MissingPrerequisite if there
    is none.
    """
    found = {folder: major_version(folder) or 0 for folder in (*_candidates(), *Path("/usr/lib/jvm").glob("*"))}
    newest = max(found, key=lambda folder: found[folder], default=None)
    if newest is None or found[newest] < least:
        raise MissingPrerequisite(f"No JDK {least} or later found: point JAVA_HOME at one.")
    return str(newest / "bin" / "java")


def major_version(folder: Path) -> int | None:
    """Major version of the JDK in a folder; None if it is not a JDK."""
    try:
        found = _RELEASE.search((folder / "release").read_text(encoding="utf-8"))
    except OSError:
        return None
    return int(found[1]) if found else None


def _candidates() -> Iterator[Path]:
    if home := os.environ.get("JAVA_HOME"):
        yield Path(home)
    yield from sorted(Path("/usr/lib/jvm").glob("*17*"))
    yield from sorted(Path("/Library/Java/JavaVirtualMachines").glob("*17*/Contents/Home"))
    if program := shutil.which("java"):
        yield Path(program).resolve().parent.parent
