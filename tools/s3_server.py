"""Build the S3 test server, versitygw, into var/bin: `python -m tools.s3_server`. Does not start it."""

from __future__ import annotations

import sys

from tools.console import say
from tools.errors import ToolError
from tools.go import install

PACKAGE = "github.com/versity/versitygw/cmd/versitygw"
VERSION = "v1.8.0"


if __name__ == "__main__":
    try:
        install(PACKAGE, VERSION)
    except ToolError as error:
        say(f"✗ {error}")
        sys.exit(1)
