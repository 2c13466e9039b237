"""What all tests share: fixtures of real services that more than one suite uses, and how hypothesis chooses."""

from __future__ import annotations

import os

from hypothesis import HealthCheck, settings

pytest_plugins = ["tests.proof.fixtures", "tests.spark_jobs.one_context", "tests.tools.fixtures"]

# A busy machine may stop a test for seconds: examples have no deadline, and may come slowly; what hangs is ended by pytest's
# timeout. The quick suite tries the same examples each time: a change fails by what it does, and not by chance. All tests, every
# night, go on looking.
settings.register_profile("all", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.register_profile("quick", settings.get_profile("all"), derandomize=True)
settings.load_profile("quick" if os.environ.get("WRITETIME_TESTS") == "quick" else "all")
