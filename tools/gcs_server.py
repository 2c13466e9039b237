"""Build the GCS test server, fake-gcs-server, into var/bin: `python -m tools.gcs_server`. Does not start
it."""

from __future__ import annotations

import sys

from tools.console import say
from tools.errors import ToolError
from tools.go import install

PACKAGE = "github.com/fsouza/fake-gcs-server"
VERSION = "v1.56.1"


if __name__ == "__main__":
    try:
        install(PACKAGE, VERSION)
    except ToolError as error:
        say(f"✗ {error}")
        sys.exit(1)
