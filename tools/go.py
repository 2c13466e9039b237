"""Go programs that tests use, built into var/bin.

Strategy: `go install` of a pinned version; Go's checksum database verifies what is built. Go 1.21 and later
downloads the toolchain that a module requires; an older one, as on Debian, is made to download a newer one
first. Does not start them.
"""

from __future__ import annotations

import json
import os
import platform
import re
import shutil
import subprocess
from pathlib import Path

from tools import ROOT, debian
from tools.console import step
from tools.errors import MissingPrerequisite, ToolError

PROGRAMS = ROOT / "var" / "bin"
TOOLCHAINS = ROOT / "var" / "gopath" / "pkg" / "mod" / "golang.org"
GO_VERSION = "v0.0.1-go1.26.5"
_MACHINES = {"x86_64": "amd64", "amd64": "amd64", "aarch64": "arm64", "arm64": "arm64"}


def install(package: str, version: str) -> Path:
    """The program of a package; built if it is missing in the requested version."""
    program = PROGRAMS / package.rpartition("/")[2]
    stamp = program.with_suffix(".version")
    if program.exists() and stamp.exists() and stamp.read_text(encoding="utf-8") == version:
        return program
    go = usable_go()
    with step(f"build {program.name} {version} (a minute or two)"):
        env = os.environ | {"GOBIN": str(PROGRAMS), "GOTOOLCHAIN": "auto"}
        done = subprocess.run([go, "install", f"{package}@{version}"], env=env, capture_output=True, text=True, check=False)
        if done.returncode != 0:
            raise ToolError(f"go install {package}@{version} failed:\n{done.stderr[-3000:]}")
    stamp.write_text(version, encoding="utf-8")
    return program


def usable_go() -> str:
    """A Go that downloads required toolchains by itself: 1.21 or later."""
    old = None
    for candidate in (shutil.which("go"), *sorted(TOOLCHAINS.glob("*/bin/go"))):
        if candidate is None:
            continue
        if _version(str(candidate)) >= (1, 21):
            return str(candidate)
        old = old or str(candidate)
    return _newer(old or _debians_go())


def _version(go: str) -> tuple[int, int]:
    answer = subprocess.run([go, "version"], capture_output=True, text=True, check=False).stdout
    found = re.search(r"go(\d+)\.(\d+)", answer)
    return (int(found[1]), int(found[2])) if found else (0, 0)


def _debians_go() -> str:
    """Debian's Go; MissingPrerequisite if it cannot be installed."""
    debian.install(["golang-go"], "The test servers are Go programs. Install Go 1.21 or later, and run this again.")
    return shutil.which("go") or "go"


def _newer(go: str) -> str:
    """Install a newer Go with an older one: toolchains are modules, verified by Go's checksum database."""
    machine = f"{platform.system().lower()}-{_MACHINES.get(platform.machine().lower(), platform.machine())}"
    module = f"golang.org/toolchain@{GO_VERSION}.{machine}"
    env = os.environ | {"GOPATH": str(ROOT / "var" / "gopath"), "GOFLAGS": "-modcacherw"}
    with step(f"this Go is older than 1.21: fetch {module} (70 MB)"):
        done = subprocess.run([go, "mod", "download", "-json", module], env=env, capture_output=True, text=True, check=False)
        if done.returncode != 0:
            raise MissingPrerequisite(
                f"{module} cannot be fetched: {done.stdout}{done.stderr}. Install Go 1.21 or later, and run this again."
            )
    folder = Path(json.loads(done.stdout)["Dir"])
    for program in [*(folder / "bin").iterdir(), *(folder / "pkg" / "tool").rglob("*")]:
        program.chmod(0o755)  # modules carry no permissions
    return str(folder / "bin" / "go")
