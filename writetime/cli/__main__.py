"""`python -m writetime.cli`: the command line without the installed script."""

import sys

from writetime.cli import main

sys.exit(main())
