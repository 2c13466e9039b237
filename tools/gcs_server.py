"""Build the GCS test server, fake-gcs-server, into var/bin: `python -m tools.gcs_server`.

Strategy: `go install` of a pinned version; Go's checksum database guards what is built. A Go from 1.21 on fetches the newer toolchain
that the module asks for by itself; an older one, as Debian has it, is made to fetch a newer one first. Does not start the server.
"""

from __future__ import annotations

import json
import os
import platform
import re
import shutil
import subprocess
import sys
from pathlib import Path

from tools import ROOT
from tools.console import say, step
from tools.errors import MissingPrerequisite, ToolError

MODULE = "github.com/fsouza/fake-gcs-server"
VERSION = "v1.56.1"
BINARY = ROOT / "var" / "bin" / "fake-gcs-server"
TOOLCHAINS = ROOT / "var" / "gopath" / "pkg" / "mod" / "golang.org"
GO_VERSION = "v0.0.1-go1.26.5"
_MACHINES = {"x86_64": "amd64", "amd64": "amd64", "aarch64": "arm64", "arm64": "arm64"}


def build() -> Path:
    """The server's program; built if it is not there in the wanted version."""
    stamp = BINARY.with_suffix(".version")
    if BINARY.exists() and stamp.exists() and stamp.read_text(encoding="utf-8") == VERSION:
        return BINARY
    go = usable_go()
    with step(f"build fake-gcs-server {VERSION} (a minute or two)"):
        env = os.environ | {"GOBIN": str(BINARY.parent), "GOTOOLCHAIN": "auto"}
        done = subprocess.run([go, "install", f"{MODULE}@{VERSION}"], env=env, capture_output=True, text=True, check=False)
        if done.returncode != 0:
            raise ToolError(f"go install {MODULE}@{VERSION} failed:\n{done.stderr[-3000:]}")
    stamp.write_text(VERSION, encoding="utf-8")
    return BINARY


def usable_go() -> str:
    """A Go that can fetch the toolchain a module asks for by itself, which is 1.21 and later."""
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
    """Go as Debian has it; MissingPrerequisite where it may not or cannot be installed."""
    if not Path("/etc/debian_version").exists() or os.geteuid() != 0:
        raise MissingPrerequisite("The GCS test server is a Go program. Install Go 1.21 or later, and run this again.")
    with step("no Go on the PATH: install golang-go"):
        for arguments in (["update", "-qq"], ["install", "-y", "-qq", "--no-install-recommends", "golang-go"]):
            done = subprocess.run(["apt-get", *arguments], capture_output=True, text=True, check=False)
            if done.returncode != 0:
                raise MissingPrerequisite(f"apt-get {' '.join(arguments)} failed: {done.stderr[-1000:]}. Install Go, and run this again.")
    return shutil.which("go") or "go"


def _newer(go: str) -> str:
    """A newer Go by an older one: toolchains are modules, and Go's checksum database guards them like any other."""
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


if __name__ == "__main__":
    try:
        build()
    except ToolError as error:
        say(f"✗ {error}")
        sys.exit(1)
