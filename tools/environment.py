"""Install programs that tests run into an environment of their own: `python -m tools.environment NAME`, by
tools/NAME.txt into var/NAME. For what needs other versions of libraries than the product has, or is large."""

from __future__ import annotations

import os
import subprocess
import sys
import venv
from pathlib import Path

from tools import ROOT
from tools.console import say, step
from tools.errors import ToolError

_BUILD_TOOLS = Path(sys.prefix) / "share" / "uv"
"""uv and setuptools, as tools/setup.sh installs them; some packages have to be built."""


def program(name: str, command: str) -> Path:
    """Where the environment's program of that name is; it may not be installed."""
    return ROOT / "var" / name / "bin" / command


def install(name: str) -> None:
    """Install what tools/NAME.txt locks, again if that has changed. Raises ToolError if that fails."""
    folder, requirements = ROOT / "var" / name, ROOT / "tools" / f"{name}.txt"
    installed, wanted = folder / "installed.txt", requirements.read_text(encoding="utf-8")
    if installed.exists() and installed.read_text(encoding="utf-8") == wanted:
        return
    with step(f"install {name}"):
        venv.create(folder, clear=True, with_pip=False)
        sync = 'source tools/setup.sh; use_pip_settings; exec "$UV" pip sync -q --require-hashes --no-build-isolation --python "$1" "$2"'
        command = ["bash", "-c", sync, "bash", str(program(name, "python")), str(requirements)]
        env = os.environ | {"PYTHONPATH": str(_BUILD_TOOLS)}
        done = subprocess.run(command, cwd=ROOT, env=env, capture_output=True, text=True, check=False)
        if done.returncode != 0:
            raise ToolError(f"failed to install {requirements} into {folder}:\n{done.stderr[-3000:]}")
    installed.write_text(wanted, encoding="utf-8")


if __name__ == "__main__":
    try:
        install(sys.argv[1])
    except ToolError as error:
        say(f"✗ {error}")
        sys.exit(1)
