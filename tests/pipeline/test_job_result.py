"""What a job leaves for the task that started it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from spark_jobs.job_exit import reports_failure
from writetime.errors import StoreUnavailable
from writetime.pipeline import job_result
from writetime.pipeline.job_result import JobResult, cause, leave, listening

ROOT = Path(__file__).resolve().parents[2]

FROM_A_WORKER = """
  An exception was thrown from the Python worker. Please see the stack trace below.
Traceback (most recent call last):
  File "/opt/writetime/spark_jobs/stages/merge_stream.py", line 12, in fold
    raise MalformedMutation("a cell has no value")
writetime.errors.MalformedMutation: decode: x at position 7: a cell has no value

\tat org.apache.spark.api.python.BasePythonRunner.handle(PythonRunner.scala:1)
\tat java.base/java.lang.Thread.run(Thread.java:840)
"""


def test_nobody_asked_nothing_left(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.delenv(job_result.SETTING, raising=False)
    monkeypatch.chdir(tmp_path)
    leave("no")
    assert not list(tmp_path.iterdir())


def test_a_password_in_the_url_of_a_database_is_not_told() -> None:
    url = "jdbc:postgresql://db.example/iceberg?user=writetime&password=hunter22&ssl=true"
    with listening() as heard:
        leave(f"the batch failed: UncheckedSQLException: Failed to connect: {url}")
        text = heard.read().text
    assert "hunter22" not in text
    assert "Failed to connect: jdbc:postgresql://db.example/iceberg?user=writetime&password=" in text


def test_a_process_of_its_own_tells_its_error() -> None:
    """A real job, over a file that is not there: what goes to the task is its error, and that no retry
    helps."""
    command = [sys.executable, "-m", "spark_jobs.publish", "--config", "nowhere.yaml"]
    with listening() as heard:
        done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
        words = heard.read()
    assert done.returncode == 1
    assert words.text.startswith("publishing failed: ")
    assert "nowhere.yaml" in words.text
    assert words.text in done.stderr
    assert not words.retriable
    assert job_result.SETTING not in os.environ


def test_what_may_pass_is_told_so_and_what_nobody_expected_goes_on() -> None:
    @reports_failure("the job")
    def away(arguments: list[str] | None) -> int:
        raise StoreUnavailable("no answer", operation="read", obj="cdc/x")

    @reports_failure("the job")
    def odd(arguments: list[str] | None) -> int:
        raise RuntimeError("odd\nand long")

    with listening() as heard:
        assert away([]) == 1
        assert heard.read() == JobResult(text="the job failed: read: cdc/x: no answer (a retry may help)", retriable=True)
        with pytest.raises(RuntimeError):
            odd([])
        assert heard.read() == JobResult(text="the job failed: RuntimeError: odd", retriable=True)


def test_one_that_was_killed_left_nothing() -> None:
    with listening() as heard:
        assert heard.read() == JobResult()
        Path(os.environ[job_result.SETTING]).write_text(json.dumps({"text": 7})[:-3], encoding="utf-8")
        assert heard.read() == JobResult()


def test_an_error_of_a_worker_is_told_by_its_cause() -> None:
    assert cause(RuntimeError(FROM_A_WORKER)) == "MalformedMutation: decode: x at position 7: a cell has no value"
    jvm = "An error occurred while calling o1.save.\n: java.net.ConnectException: Connection refused\n\tat java.base/x.y(Z.java:1)\n"
    assert cause(RuntimeError(jvm)) == "ConnectException: Connection refused"


def test_of_a_long_one_the_beginning() -> None:
    with listening() as heard:
        leave("x" * 9000)
        assert heard.read().text.startswith("x" * 4000 + "\n")
        assert len(heard.read().text) < 4100
