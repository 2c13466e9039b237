"""Install Debian packages, as root on Debian. Elsewhere, print what to install."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

from tools.console import step
from tools.errors import MissingPrerequisite


def install(packages: list[str], hint: str) -> None:
    """Install packages with their dependencies. MissingPrerequisite with the hint if that is not possible."""
    if not Path("/etc/debian_version").exists() or os.geteuid() != 0:
        raise MissingPrerequisite(hint)
    with step(f"install {' '.join(packages)}"):
        for arguments in (["update", "-qq"], ["install", "-y", "-qq", "--no-install-recommends", *packages]):
            env = {**os.environ, "DEBIAN_FRONTEND": "noninteractive"}
            done = subprocess.run(["apt-get", *arguments], capture_output=True, text=True, check=False, env=env)
            if done.returncode != 0:
                raise MissingPrerequisite(f"apt-get {' '.join(arguments)} failed: {done.stderr[-1000:]}. {hint}")
