"""Why a job failed, for the task that started it: Airflow's Spark operator knows of a driver's end nothing but its exit code.

Strategy: whoever starts a job names a file in the environment (`SETTING`), and the job leaves its last words there: the text of its error,
and whether a retry may help. Nobody who names no file gets one. A driver that was killed leaves none, and then its exit code is all there
is to tell. Knows neither Airflow nor Spark.
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

from writetime.errors import WritetimeError

SETTING: Final = "WRITETIME_LAST_WORDS"
_MOST: Final = 4000
"""Characters: a notice goes to pagers, too. The whole is in the log."""
_RAISED: Final = re.compile(r"^(?:: |Caused by: )?(?:[A-Za-z_]\w*\.)+(\w*(?:Error|Exception|Failure)\w*|[A-Z]\w+): ?(.*)$", re.MULTILINE)
"""The last line of a traceback, as Python and the JVM write it."""


class LastWords(BaseModel):
    """`text`: why it failed, empty if it did not. `retriable`: whether the same again may succeed. `report`: the object that it wrote."""

    text: str = ""
    retriable: bool = False
    report: str = ""


def leave(text: str = "", *, retriable: bool = False, report: str = "") -> None:
    """Leave these words to whoever has asked for them, if anybody has."""
    asked = os.environ.get(SETTING)
    if asked:
        shown = text if len(text) <= _MOST else f"{text[:_MOST]}\n… the log tells the rest"
        Path(asked).write_text(LastWords(text=shown, retriable=retriable, report=report).model_dump_json(), encoding="utf-8")


def leave_error(what: str, error: BaseException) -> None:
    """The words of an error. Of one that a worker of Spark has raised the cause, and not the way that it came."""
    if isinstance(error, WritetimeError):
        leave(f"{what}: {error}", retriable=error.retriable)
    else:
        leave(f"{what}: {cause(error)}", retriable=True)


def cause(error: BaseException) -> str:
    """What lies at the bottom of an error that has tracebacks for its text: the last of them that names one."""
    text = str(error).strip()
    raised = _RAISED.findall(text) if "Traceback" in text or "\tat " in text else []
    if raised:
        name, message = raised[-1]
        return f"{name}: {message}".rstrip(": ")
    return f"{type(error).__name__}: {text.partition(chr(10))[0]}".rstrip(": ")


class Heard:
    """What a job has left, once it has ended."""

    def __init__(self, file: Path) -> None:
        self._file = file

    def read(self) -> LastWords:
        """Empty if it left nothing that can be read: it did not fail, it was killed, or its disk was full."""
        try:
            return LastWords.model_validate_json(self._file.read_text(encoding="utf-8"))
        except (OSError, ValidationError):
            return LastWords()


@contextmanager
def listening() -> Iterator[Heard]:
    """Let jobs that this process starts meanwhile leave their last words."""
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
