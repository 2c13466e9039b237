"""What all tests share: fixtures of real services that more than one suite uses."""

from __future__ import annotations

pytest_plugins = ["tests.proof.fixtures", "tests.spark_jobs.one_context", "tests.tools.fixtures"]
