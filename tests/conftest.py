"""What all tests share: fixtures of real services that more than one suite uses, and how hypothesis chooses."""

from __future__ import annotations

import os

from hypothesis import settings

pytest_plugins = ["tests.proof.fixtures", "tests.spark_jobs.one_context", "tests.tools.fixtures"]

# The quick suite tries the same examples each time: a change fails by what it does, and not by chance. All tests, every night, go on
# looking.
settings.register_profile("quick", derandomize=True)
if os.environ.get("WRITETIME_TESTS") == "quick":
    settings.load_profile("quick")
