"""`python -m tests.ring.proof`: see docs/proof.md, and `--help`."""

from __future__ import annotations

import sys

from tests.ring.proof.cli import main

if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
