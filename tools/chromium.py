"""Chromium and its driver, for browser tests: `python -m tools.chromium` installs them if they are
missing."""

from __future__ import annotations

import shutil
import sys

from tools import debian
from tools.console import say
from tools.errors import MissingPrerequisite, ToolError

_NAMES = {"chromium": ("chromium", "chromium-browser", "google-chrome"), "chromedriver": ("chromedriver",)}


def programs() -> tuple[str, str] | None:
    """Paths of the browser and of its driver, None if one of them is not on the PATH."""
    found = [next((path for name in names if (path := shutil.which(name))), None) for names in _NAMES.values()]
    return (found[0], found[1]) if found[0] and found[1] else None


def need() -> tuple[str, str]:
    """Paths of both; installs them if they are missing and that is allowed."""
    if (found := programs()) is None:
        debian.install(["chromium", "chromium-driver"], "Install Chromium and chromedriver of one version, and run this again.")
        found = programs()
    if found is None:
        raise MissingPrerequisite("Chromium was installed and is not on the PATH.")
    return found


if __name__ == "__main__":
    try:
        need()
    except ToolError as error:
        say(f"✗ {error}")
        sys.exit(1)
