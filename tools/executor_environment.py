"""The environment of executors as one archive: `python -m tools.executor_environment FILE.tar.gz`, for
`spark.archives`.

Strategy: executors on other machines need the driver's Python and libraries in the driver's versions, so these are
copied from the environment that runs this: its base Python without its own packages, what `writetime[spark,s3]`
requires, `writetime` and `spark_jobs` with their compiled kernels, but not Spark's jars, which are on each machine.
Nothing in the archive refers to the place where it was made: `bin/python` finds its library next to itself. Before
it is packed, that Python imports what Python workers import and loads the kernels, without the environment of this
process. Machine code is for processors like this one; on others it is compiled again, once per executor.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
import tarfile
import tempfile
from collections.abc import Iterator
from importlib.metadata import Distribution, PackageNotFoundError, distribution
from pathlib import Path

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from tools import ROOT
from tools.console import say, step
from tools.errors import ToolError

PACKAGES = ("writetime", "spark_jobs")
EXTRAS = ("spark", "s3")
_QUICKLY = 1
_NOT_NEEDED = frozenset({"pyspark-client"})
"""It writes the files of pyspark; what else it requires is for Spark Connect."""
_LEFT_OUT = ("pyspark/jars/", "pyspark/bin/", "pyspark/sbin/", "pyspark/examples/", "pyspark/data/", "pyspark/licenses/")
_STDLIB = shutil.ignore_patterns("site-packages", "dist-packages", "test", "idlelib", "tkinter", "ensurepip", "turtledemo", "config-*")
_LAUNCHER = """\
#!/bin/sh
here=$(dirname "$0")/..
LD_LIBRARY_PATH="$here/lib${{LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}}" exec "$here/bin/{program}" "$@"
"""
_PROBE = """\
import importlib
import sys
from spark_jobs import daemon
daemon.import_ahead()
for name in ("sinks.data_files", "sinks.kafka", "state.shards"):
    importlib.import_module(f"spark_jobs.{name}")
for name in ("writetime.storage.gcs", "writetime.storage.s3"):
    importlib.import_module(name)
loaded = {line.split(None, 5)[5].strip() for line in open("/proc/self/maps") if line.count("/")} if sys.platform == "linux" else set()
outside = sorted(path for path in loaded if path.startswith(tuple(sys.argv[1:])))
sys.exit(f"loaded from the driver's own: {outside}" if outside else 0)
"""


def build(archive: Path) -> Path:
    """Make the archive. ToolError if its Python cannot do what executors do, or the name is not one of a `.tar.gz`:
    from others, Spark unpacks programs that cannot be executed."""
    if not archive.name.endswith((".tar.gz", ".tgz")):
        raise ToolError(f"{archive.name}: the archive has to be a .tar.gz")
    archive = archive.resolve()
    archive.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="environment-", dir=archive.parent) as name:
        folder = Path(name)
        _copy_python(folder)
        packages = folder / "lib" / _library() / "site-packages"
        for path in _files():
            _copy(path, packages / path.relative_to(_site_packages()))
        for package in PACKAGES:
            # With the times of the sources, by which machine code is found to be of them.
            shutil.copytree(ROOT / package, packages / package)
        _prepare(folder)
        _pack(folder, archive)
    return archive


def current(archive: Path) -> Path:
    """The archive, made again if a source or a library is younger than it."""
    made = archive.stat().st_mtime if archive.exists() else 0.0
    sources = [Path(__file__), ROOT / ".venv" / ".installed", *(path for name in PACKAGES for path in (ROOT / name).rglob("*.py"))]
    if any(path.exists() and path.stat().st_mtime > made for path in sources):
        with step("pack the executors' Python"):
            build(archive)
    return archive


def _library() -> str:
    return f"python{sys.version_info.major}.{sys.version_info.minor}"


def _site_packages() -> Path:
    return Path(sys.prefix) / "lib" / _library() / "site-packages"


def _copy_python(folder: Path) -> None:
    base = Path(sys.base_prefix)
    programs, libraries = folder / "bin", folder / "lib"
    programs.mkdir()
    shutil.copy2(base / "bin" / _library(), programs / _library())
    shutil.copytree(base / "lib" / _library(), libraries / _library(), ignore=_STDLIB)
    shared = list((base / "lib").glob(f"lib{_library()}.so.*"))
    for path in shared:
        shutil.copy2(path, libraries / path.name)
    if shared:
        # The program knows the library by the folder in which it was installed.
        (programs / "python").write_text(_LAUNCHER.format(program=_library()), encoding="utf-8")
        (programs / "python").chmod(0o755)
    else:
        (programs / "python").symlink_to(_library())


def _files() -> Iterator[Path]:
    """Installed files of all that executors need, and their byte code."""
    for found in _required():
        for entry in found.files or []:
            path = Path(str(found.locate_file(entry)))
            name = str(entry)
            if name.startswith(("../", *_LEFT_OUT)) or "/tests/" in name or not path.is_file():
                continue
            yield path


def _required() -> Iterator[Distribution]:
    """The distributions that `writetime` requires with EXTRAS, all that these require included."""
    waiting, seen = list[tuple[str, tuple[str, ...]]]([("writetime", EXTRAS)]), set[tuple[str, tuple[str, ...]]]()
    while waiting:
        name, extras = waiting.pop()
        if (name, extras) in seen or name in _NOT_NEEDED:
            continue
        seen.add((name, extras))
        try:
            found = distribution(name)
        except PackageNotFoundError as error:
            raise ToolError(f"{name} is not installed next to {sys.executable}. Install it: make setup") from error
        if name != "writetime":
            yield found
        for text in found.requires or []:
            wanted = Requirement(text)
            if wanted.marker is None or any(wanted.marker.evaluate({"extra": extra}) for extra in ("", *extras)):
                waiting.append((canonicalize_name(wanted.name), tuple(sorted(wanted.extras))))


def _copy(source: Path, target: Path) -> None:
    if not target.exists():
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy2(source, target)


def _prepare(folder: Path) -> None:
    """Compile what is not compiled yet, and see that the environment works by itself."""
    places = [f"{sys.prefix}/", *([] if sys.base_prefix == "/usr" else [f"{sys.base_prefix}/"])]
    python, clean = str(folder / "bin" / "python"), {"PATH": "/usr/bin:/bin", "HOME": str(folder)}
    subprocess.run(
        [python, "-m", "compileall", "-q", "-j", "0", str(folder / "lib")], env=clean, cwd=folder, capture_output=True, check=False
    )
    done = subprocess.run([python, "-c", _PROBE, *places], env=clean, cwd=folder, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise ToolError(f"the executors' Python does not work by itself:\n{done.stderr[-3000:]}")


def _pack(folder: Path, archive: Path) -> None:
    kept = archive.with_name(f"{archive.name}.new")
    # PAX keeps times to the microsecond, by which machine code is found to be of its source.
    with tarfile.open(kept, "w:gz", format=tarfile.PAX_FORMAT, compresslevel=_QUICKLY) as out:
        for path in sorted(folder.iterdir()):
            out.add(path, path.name)
    kept.rename(archive)


if __name__ == "__main__":
    try:
        made = build(Path(sys.argv[1]))
    except ToolError as error:
        say(f"✗ {error}")
        sys.exit(1)
    say(f"✓ {made}: {made.stat().st_size >> 20} MB")
