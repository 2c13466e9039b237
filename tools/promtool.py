"""promtool, for the test of the alert rules, from Debian's package `prometheus`."""

from __future__ import annotations

import shutil

from tools import debian
from tools.errors import MissingPrerequisite


def need() -> str:
    """Path of promtool; installed if it is missing and that is allowed. MissingPrerequisite if neither."""
    if shutil.which("promtool") is None:
        debian.install(["prometheus"], "Install promtool (Prometheus) on the PATH.")
    if (found := shutil.which("promtool")) is None:
        raise MissingPrerequisite("The package prometheus was installed, and promtool is not on the PATH.")
    return found
