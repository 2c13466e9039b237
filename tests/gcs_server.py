"""Start and stop fake-gcs-server, a GCS server for tests: `var/bin/fake-gcs-server` of the repository, or
$FAKE_GCS_SERVER.

It honours if_generation_match on uploads only, and does not look at CRC32Cs that are sent; the few tests that
need more run against `tests/storage/gcs_stub.py`. `tests/gcs_xml.py` may be in front of it. Does not build the
server: `make test-gcs` does."""

from __future__ import annotations

import contextlib
import os
import shutil
import subprocess
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path

from tests import gcs_xml
from tools.services import ports

_BUILT = Path(__file__).resolve().parent.parent / "var" / "bin" / "fake-gcs-server"
_READY_SECONDS = 30.0


def program() -> Path | None:
    """The server's program, or None if it has not been built."""
    named = os.environ.get("FAKE_GCS_SERVER")
    if named:
        found = shutil.which(named)
        return Path(found) if found else None
    return _BUILT if _BUILT.exists() else None


@contextlib.contextmanager
def running(binary: Path, folder: Path, *, xml: bool = False) -> Iterator[str]:
    """Run the server over `folder` on a free loopback port; gives its URL, for STORAGE_EMULATOR_HOST. `xml`: with
    Google's XML API, which Lance needs."""
    port = ports.any_free()
    behind = ports.any_free() if xml else port
    url = f"http://127.0.0.1:{port}"
    flags = ["-scheme", "http", "-host", "127.0.0.1", "-port", str(behind), "-public-host", f"127.0.0.1:{port}"]
    flags += ["-external-url", url, "-backend", "memory", "-log-level", "error"]
    log = folder / "fake-gcs-server.log"
    with log.open("wb") as output:
        process = subprocess.Popen([str(binary), *flags], stdout=output, stderr=subprocess.STDOUT)
    try:
        _wait(process, f"http://127.0.0.1:{behind}", log)
        with gcs_xml.running(port, behind) if xml else contextlib.nullcontext():
            yield url
    finally:
        process.terminate()
        process.wait(timeout=20)


@contextlib.contextmanager
def with_xml(url: str) -> Iterator[str]:
    """Another URL of a running server, with Google's XML API, for STORAGE_EMULATOR_HOST."""
    port = ports.any_free()
    with gcs_xml.running(port, int(url.rpartition(":")[2])):
        yield f"http://127.0.0.1:{port}"


def make_bucket(url: str, name: str) -> None:
    """Create a bucket; no error if it exists."""
    body = f'{{"name": "{name}"}}'.encode()
    request = urllib.request.Request(f"{url}/storage/v1/b?project=test", body, {"Content-Type": "application/json"})
    try:
        urllib.request.urlopen(request, timeout=10).close()
    except urllib.error.HTTPError as error:
        if error.code != 409:
            raise


def _wait(process: subprocess.Popen[bytes], url: str, log: Path) -> None:
    deadline = time.monotonic() + _READY_SECONDS
    while time.monotonic() < deadline:
        if process.poll() is not None:
            raise RuntimeError(f"fake-gcs-server ended with code {process.returncode}: {log.read_text()}")
        with contextlib.suppress(OSError):
            urllib.request.urlopen(f"{url}/storage/v1/b?project=test", timeout=1).close()
            return
        time.sleep(0.05)
    raise RuntimeError(f"fake-gcs-server was not ready within {_READY_SECONDS} s: {log.read_text()}")
