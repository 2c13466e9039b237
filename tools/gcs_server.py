"""Build the GCS test server, fake-gcs-server, into var/bin: `python -m tools.gcs_server`.

Strategy: `go install` of a pinned version; Go's checksum database guards what is built. A Go from 1.21 on fetches the newer toolchain
that the module asks for by itself. Where there is no such Go, one is unpacked into var/go: from Go's module proxy, which `go install`
needs anyway, checked against the digest below; nothing is installed into the system. Does not start the server.
"""

from __future__ import annotations

import hashlib
import os
import platform
import re
import shutil
import subprocess
import sys
import urllib.request
import zipfile
from pathlib import Path

from tools import ROOT
from tools.console import say, step
from tools.errors import MissingPrerequisite, ToolError

MODULE = "github.com/fsouza/fake-gcs-server"
VERSION = "v1.56.1"
BINARY = ROOT / "var" / "bin" / "fake-gcs-server"
GO_FOLDER = ROOT / "var" / "go"
GO_VERSION = "v0.0.1-go1.26.5"
GO_SHA256 = {
    "linux-amd64": "fa1f92e41b70c6649bd78b1ab98b940f19adf3e71aeb0bcb5a177bcc25699df5",
    "linux-arm64": "3cfc9c4e6df7487d753692a704ac81e25fc07b0be4cd02d59c2f9884c1d114cf",
    "darwin-arm64": "e53418c1be1296acb941920fa767dd8d8978740e9712c60b7d05475b17b2459d",
}
_MACHINES = {"x86_64": "amd64", "amd64": "amd64", "aarch64": "arm64", "arm64": "arm64"}


def build() -> Path:
    """The server's program; built if it is not there in the wanted version."""
    stamp = BINARY.with_suffix(".version")
    if BINARY.exists() and stamp.exists() and stamp.read_text(encoding="utf-8") == VERSION:
        return BINARY
    go = usable_go() or fetch_go()
    with step(f"build fake-gcs-server {VERSION} (a minute or two)"):
        env = os.environ | {"GOBIN": str(BINARY.parent), "GOTOOLCHAIN": "auto"}
        done = subprocess.run([go, "install", f"{MODULE}@{VERSION}"], env=env, capture_output=True, text=True, check=False)
        if done.returncode != 0:
            raise ToolError(f"go install {MODULE}@{VERSION} failed:\n{done.stderr[-3000:]}")
    stamp.write_text(VERSION, encoding="utf-8")
    return BINARY


def usable_go() -> str | None:
    """A Go on the PATH, or in var/go, that can fetch a newer toolchain by itself (1.21 and later)."""
    for candidate in (shutil.which("go"), GO_FOLDER / "bin" / "go"):
        if candidate is None or not Path(candidate).exists():
            continue
        answer = subprocess.run([str(candidate), "version"], capture_output=True, text=True, check=False).stdout
        found = re.search(r"go(\d+)\.(\d+)", answer)
        if found and (int(found[1]), int(found[2])) >= (1, 21):
            return str(candidate)
    return None


def fetch_go() -> str:
    """Unpack a Go toolchain into var/go. MissingPrerequisite where there is none for this machine or the proxy is out of reach."""
    name = f"{platform.system().lower()}-{_MACHINES.get(platform.machine().lower(), platform.machine())}"
    if name not in GO_SHA256:
        raise MissingPrerequisite(f"The GCS test server is a Go program. Install Go 1.21 or later for {name}, and run this again.")
    url = f"{_proxy()}/golang.org/toolchain/@v/{GO_VERSION}.{name}.zip"
    archive = GO_FOLDER.with_suffix(".zip")
    archive.parent.mkdir(parents=True, exist_ok=True)
    with step(f"no Go 1.21 or later on the PATH: fetch one into {GO_FOLDER.relative_to(ROOT)} (70 MB)"):
        try:
            with urllib.request.urlopen(url, timeout=60) as response, archive.open("wb") as file:  # noqa: S310 - https, see _proxy
                shutil.copyfileobj(response, file)
        except OSError as error:
            raise MissingPrerequisite(f"Go cannot be fetched from {url}: {error}. Install Go 1.21 or later, and run this again.") from error
        _unpack(archive, GO_SHA256[name])
    return str(GO_FOLDER / "bin" / "go")


def _unpack(archive: Path, sha256: str) -> None:
    """Unpack a module zip, whose names start with `<module>@<version>/`, once its digest is right."""
    with archive.open("rb") as file:
        found = hashlib.file_digest(file, "sha256").hexdigest()
    if found != sha256:
        archive.unlink()
        raise ToolError(f"The fetched Go has SHA-256 {found}, but should have {sha256}. It was not kept.")
    shutil.rmtree(GO_FOLDER, ignore_errors=True)
    unpacked = GO_FOLDER.with_suffix(".new")
    shutil.rmtree(unpacked, ignore_errors=True)
    with zipfile.ZipFile(archive) as file:
        file.extractall(unpacked)
    (inner,) = (unpacked / "golang.org").iterdir()
    for program in [*(inner / "bin").iterdir(), *(inner / "pkg" / "tool").rglob("*")]:
        program.chmod(0o755)  # module zips carry no permissions
    inner.rename(GO_FOLDER)
    shutil.rmtree(unpacked)
    archive.unlink()


def _proxy() -> str:
    """The first https proxy of GOPROXY, or Go's default."""
    for choice in re.split(r"[,|]", os.environ.get("GOPROXY", "")):
        if choice.startswith("https://"):
            return choice.rstrip("/")
    return "https://proxy.golang.org"


if __name__ == "__main__":
    try:
        build()
    except ToolError as error:
        say(f"✗ {error}")
        sys.exit(1)
