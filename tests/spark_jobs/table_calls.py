"""The project's calls that are about one table: found while a job runs, and made to fail one by one.

Strategy: a profile hook sees each call in the driver's threads and in Python's workers. A call counts if exactly one
table is among its arguments: a Table, an id, a label, or the table of its object. What is to be done, to `find` or to
`fail`, is in a file, which each worker reads before each task. This is also the module of the workers' daemon
(`spark.python.daemon.module`). A hook that has raised is gone from its thread until the next attempt."""

from __future__ import annotations

import errno
import importlib
import json
import os
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import CodeType, FrameType
from typing import Any, Final, NamedTuple
from unittest import mock
from uuid import UUID

import pyarrow as pa

from spark_jobs import daemon
from writetime.cassandra.schema.model import Table
from writetime.errors import LeaseLost, StoreUnavailable

FOLDER: Final = "WRITETIME_TABLE_CALLS"
_ROOT: Final = Path(__file__).resolve().parent.parent.parent
_ROOMS: Final = tuple(f"{_ROOT / room}{os.sep}" for room in ("spark_jobs", "writetime"))
_LEFT_OUT: Final = tuple(
    str(_ROOT / name)
    for name in (
        "writetime/cassandra/schema/model.py",
        "writetime/pipeline/documents.py",
        "spark_jobs/failures.py",
        "spark_jobs/rejected_tables.py",
    )
)
"""What a table says of itself, what adds up figures of all tables, and what rejects a table."""
NOT_SURROUNDED: Final = frozenset(
    {
        "SchemaLearner._in_time",
        "_incarnations",
        "TablesConfig.captures",
        "Batch._learn.<locals>.<lambda>",
        "Dictionaries.of.<locals>.<lambda>",
    }
)
"""Calls that the schema of all tables is learnt with, and that sort tables: if they fail, no table is known."""

OF_THE_TABLE: Final = ("RuntimeError", "RecursionError", "MemoryError", "ArrowInvalid", "NumberFormatException")
OF_THE_WORLD: Final = ("StoreUnavailable", "ConnectionResetError", "ENOSPC", "ConnectException", "LeaseLost")
OF_JAVA: Final = ("NumberFormatException", "ConnectException")


class Call(NamedTuple):
    """A function by file and name, and where it ran."""

    file: str
    name: str
    in_worker: bool

    def __str__(self) -> str:
        return f"{Path(self.file).relative_to(_ROOT)}:{self.name}{' (worker)' if self.in_worker else ''}"


def thrown(name: str, jvm: Any = None) -> Any:
    """Raise that error; those of Java from a call that fails."""
    if name == "NumberFormatException":
        return jvm.java.lang.Integer.parseInt("not a number")
    if name == "ConnectException":
        return jvm.java.net.Socket("127.0.0.1", 1)
    if name == "killed":
        os.kill(os.getpid(), signal.SIGKILL)
    if name == "ENOSPC":
        raise OSError(errno.ENOSPC, "No space left on device")
    kinds: dict[str, Callable[[str], Exception]] = {
        "RuntimeError": RuntimeError,
        "RecursionError": RecursionError,
        "MemoryError": MemoryError,
        "ArrowInvalid": pa.ArrowInvalid,
        "ConnectionResetError": ConnectionResetError,
        "StoreUnavailable": StoreUnavailable,
        "LeaseLost": LeaseLost,
    }
    raise kinds[name]("made by a test")


class _Hook:
    """The profile hook of a process."""

    def __init__(self, plan: dict[str, Any], jvm: Any = None) -> None:
        self.tables = {UUID(each): names for each, names in plan["tables"].items()}
        self.names = {name: each for each, names in self.tables.items() for name in (*names, str(each))}
        self.place, self.error, self.victim = plan.get("place"), plan.get("error"), plan.get("victim")
        self.jvm, self.found, self.raised = jvm, set[tuple[str, str]](), 0
        self.known: dict[CodeType, tuple[str, str] | None] = {}

    def __call__(self, frame: FrameType, event: str, _: Any) -> None:
        if event != "call":
            return
        code = frame.f_code
        if code not in self.known:
            file = code.co_filename
            is_ours = file.startswith(_ROOMS) and file not in _LEFT_OUT and code.co_qualname not in NOT_SURROUNDED
            self.known[code] = (file, code.co_qualname) if is_ours else None
        place = self.known[code]
        if place is None or (self.place is not None and list(place) != self.place) or place in self.found:
            return
        tables = {table for value in _given(frame) if (table := self._table(value)) is not None}
        if len(tables) != 1:
            return
        if self.place is None:
            self.found.add(place)
        elif str(tables.pop()) == self.victim:
            self.raised += 1
            thrown(str(self.error), self.jvm)

    def _table(self, value: Any) -> UUID | None:
        if isinstance(value, Table):
            return value.id
        if isinstance(value, UUID):
            return value if value in self.tables else None
        if isinstance(value, bytes):
            return found if len(value) == 16 and (found := UUID(bytes=value)) in self.tables else None
        return self.names.get(value) if isinstance(value, str) else None


def _given(frame: FrameType) -> Iterator[Any]:
    code = frame.f_code
    for name in code.co_varnames[: code.co_argcount + code.co_kwonlyargcount]:
        value = frame.f_locals.get(name)
        yield value
        if name == "self" and not isinstance(value, Table):
            yield getattr(value, "__dict__", {}).get("table")


class Calls:
    """What is done about the calls of the driver and of its workers, which read it in the folder."""

    def __init__(self, folder: Path, tables: dict[UUID, list[str]], jvm: Callable[[], Any]) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self.folder, self.tables, self.jvm = folder, {str(each): names for each, names in tables.items()}, jvm

    @contextmanager
    def finding(self) -> Iterator[set[Call]]:
        """The calls that are made meanwhile."""
        found: set[Call] = set()
        with self._hooked({}) as hook:
            yield found
        found |= {Call(*place, in_worker=False) for place in hook.found}
        for told in self.folder.glob("*.found"):
            found |= {Call(*place, in_worker=True) for place in json.loads(told.read_text())}
            told.unlink()

    @contextmanager
    def failing(self, call: Call, error: str, victim: UUID) -> Iterator[None]:
        """That call fails if it is about the victim, once in each thread and attempt."""
        with self._hooked({"place": [call.file, call.name], "error": error, "victim": str(victim), "in_worker": call.in_worker}):
            yield

    @contextmanager
    def _hooked(self, plan: dict[str, Any]) -> Iterator[_Hook]:
        whole = {"tables": self.tables, **plan}
        hook = _Hook(whole, self.jvm())
        (self.folder / "plan").write_text(json.dumps(whole))
        beginning = importlib.import_module("spark_jobs.ingest").Batch.run

        def run(batch: Any) -> Any:
            if not plan.get("in_worker"):
                sys.setprofile(hook)
            return beginning(batch)

        try:
            with mock.patch("spark_jobs.ingest.Batch.run", run):
                if not plan.get("in_worker"):
                    threading.setprofile(hook)
                    sys.setprofile(hook)
                yield hook
        finally:
            sys.setprofile(None)
            threading.setprofile(None)
            (self.folder / "plan").unlink()


def _in_worker(main: Callable[..., Any]) -> Callable[..., Any]:
    """Spark's loop of a worker, with the hook of the plan."""

    def hooked(*streams: Any) -> Any:
        folder = Path(os.environ[FOLDER])
        try:
            plan = json.loads((folder / "plan").read_text())
        except FileNotFoundError:
            plan = None
        if plan is None or not plan.get("in_worker", True):
            return main(*streams)
        hook = _Hook(plan)
        sys.setprofile(hook)
        try:
            return main(*streams)
        finally:
            sys.setprofile(None)
            if hook.found:
                (folder / f"{os.getpid()}-{threading.get_ident()}-{id(hook)}.found").write_text(json.dumps(sorted(hook.found)))

    return hooked


if __name__ == "__main__":
    sparks = importlib.import_module("pyspark.daemon")
    sparks.worker_main = _in_worker(sparks.worker_main)  # type: ignore[attr-defined]
    daemon.main()
