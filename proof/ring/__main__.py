"""`python -m proof.ring`: see docs/proof.md, and `--help`."""

from __future__ import annotations

import sys

from proof.ring.cli import main

if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
