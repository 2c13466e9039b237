"""The result of a job, for the Airflow task that started it: Airflow's Spark operator only sees the driver's
exit code.

Strategy: the caller names a file in the environment (`SETTING`), and the job writes its result there: the
error text, and whether a retry may help. Without the variable nothing is written. A driver that was killed
writes nothing, and only its exit code is known. Does not know Airflow or Spark.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Final

from pydantic import BaseModel, ValidationError

from writetime.errors import WritetimeError, without_secrets

SETTING: Final = "WRITETIME_LAST_WORDS"
_MOST: Final = 4000
"""Maximum characters: notifications go to pagers, too. The log has the full text."""
_RAISED: Final = re.compile(r"^(?:: |Caused by: )?(?:[A-Za-z_]\w*\.)+(\w*(?:Error|Exception|Failure)\w*|[A-Z]\w+): ?(.*)$", re.MULTILINE)
"""The last line of a traceback, as Python and the JVM write it."""


class JobResult(BaseModel):
    """`text`: why the job failed; empty if it did not. `retriable`: whether a retry may help. `report`: the
    object that it wrote."""

    text: str = ""
    retriable: bool = False
    report: str = ""


def leave(text: str = "", *, retriable: bool = False, report: str = "") -> None:
    """Write the result, if the caller asked for it. It goes to logs and to pagers: errors of drivers like to quote the URL of a
    database with its password."""
    asked = os.environ.get(SETTING)
    if asked:
        text = without_secrets(text)
        shown = text if len(text) <= _MOST else f"{text[:_MOST]}\n… the log has the full text"
        Path(asked).write_text(JobResult(text=shown, retriable=retriable, report=report).model_dump_json(), encoding="utf-8")


def leave_error(what: str, error: BaseException) -> None:
    """Write an error as the result. For an error from a Spark worker, only its cause."""
    leave(without_secrets(f"{what}: {cause(error)}"), retriable=error.retriable if isinstance(error, WritetimeError) else True)


def cause(error: BaseException) -> str:
    """An error of ours as it is. Of any other whose text contains tracebacks, the root cause: the last exception
    named in it."""
    if isinstance(error, WritetimeError):
        return str(error)
    text = str(error).strip()
    raised = _RAISED.findall(text) if "Traceback" in text or "\tat " in text else []
    if raised:
        name, message = raised[-1]
        return f"{name}: {message}".rstrip(": ")
    return f"{type(error).__name__}: {text.partition(chr(10))[0]}".rstrip(": ")


class Heard:
    """The result of a job, readable once it has ended."""

    def __init__(self, file: Path) -> None:
        self._file = file

    def read(self) -> JobResult:
        """The result; empty if there is none that can be read: the job succeeded, was killed, or its disk
        was full."""
        try:
            return JobResult.model_validate_json(self._file.read_text(encoding="utf-8"))
        except (OSError, ValidationError):
            return JobResult()


@contextmanager
def listening() -> Iterator[Heard]:
    """Let jobs that this process starts within the context write their result."""
    before = os.environ.get(SETTING)
    with TemporaryDirectory(prefix="writetime-") as folder:
        file = Path(folder) / "last-words.json"
        os.environ[SETTING] = str(file)
        try:
            yield Heard(file)
        finally:
            if before is None:
                del os.environ[SETTING]
            else:
                os.environ[SETTING] = before
