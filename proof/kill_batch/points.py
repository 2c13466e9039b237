"""Points at which a job is killed: before and after each of its steps, its commits, and the work of its
Python workers.

A point names what happens, not the table. It is passed in the driver or in a worker; the process that passes
it for the requested time kills the whole job, including JVM and workers, with SIGKILL. The environment, which
workers inherit, selects the point.
"""

from __future__ import annotations

import contextlib
import os
import signal
import time
from collections.abc import Callable
from functools import wraps
from typing import Any, Final

POINT: Final = "WRITETIME_KILL_POINT"
AT: Final = "WRITETIME_KILL_AT"
DRIVER: Final = "WRITETIME_KILL_DRIVER"
VICTIM: Final = "WRITETIME_KILL_VICTIM"
"""A process group that is killed in the job's place: the broker's."""
STOPPED: Final = "WRITETIME_KILL_STOPPED"
"""A file: the job is not killed but stopped (SIGSTOP), and this names the process groups that are to be
woken.
"""

STEPS: Final = (
    "survey",
    "learn",
    "fold",
    "account",
    "note_problems",
    "typed_events",
    "write_files",
    "commit_changes",
    "commit_state",
    "commit_current",
    "seal",
)
_WHEN: Final = ("before", "after")
INGEST: Final = (
    *(f"{when} step {step}" for step in STEPS for when in _WHEN),
    *(f"{when} {what} of a table" for what in ("changes", "overwrite", "current") for when in _WHEN),
    *(f"{when} {what}" for what in ("write of a file", "commit of files", "commit of rows") for when in _WHEN),
    *(f"{when} write of a shard" for when in _WHEN),
    *(f"{when} end of a shard" for when in _WHEN),
)
PAST_FENCE: Final = "before overwrite of a table"
"""Where a driver has looked at the fence for the last time before a commit."""
FILES_WRITTEN: Final = "before commit of files"
"""Where only the commit of a table's files is left."""
COMMITTING: Final = (
    "after step commit_changes",
    "after step commit_state",
    *(f"{when} {what} of a table" for what in ("changes", "current") for when in _WHEN),
    "after step commit_current",
)
"""Where a batch has committed something and is not sealed."""
PUBLISH: Final = (
    *(f"{when} {what}" for what in ("topics", "note") for when in _WHEN),
    *(f"{when} {what}" for what in ("fencing", "progress", "transaction", "commit") for when in _WHEN),
    "in the middle of a transaction",
)
OUTAGES: Final = ("before fencing", "after transaction", "in the middle of a transaction", "before commit")
"""Where the broker dies under a publisher."""


class _Points:
    left: int | None = None


def passed(point: str) -> None:
    """Pass a point, and kill the job if it is the selected one."""
    if os.environ.get(POINT) != point:
        return
    if _Points.left is None:
        _Points.left = int(os.environ.get(AT, "0"))
    _Points.left -= 1
    if _Points.left == -1:
        kill()


def kill() -> None:
    """Kill the job: the driver with its JVM, then this process's own group. Or kill the service that it
    depends on instead, or stop the job until it is resumed.
    """
    if file := os.environ.get(STOPPED):
        _stop(file)
        return
    if victim := os.environ.get(VICTIM):
        with contextlib.suppress(ProcessLookupError):
            os.killpg(int(victim), signal.SIGKILL)
        return
    with contextlib.suppress(ProcessLookupError):
        os.killpg(int(os.environ[DRIVER]), signal.SIGKILL)
    os.killpg(0, signal.SIGKILL)
    time.sleep(60)


def _stop(file: str) -> None:
    """Stop the job once: after it is resumed, others of its processes pass the point, too."""
    try:
        os.close(os.open(f"{file}.once", os.O_CREAT | os.O_EXCL))
    except FileExistsError:
        return
    driver, own = int(os.environ[DRIVER]), os.getpgid(0)
    with open(f"{file}.new", "w") as groups:
        groups.write(f"{driver} {own}")
    os.rename(f"{file}.new", file)
    if driver != own:
        os.killpg(driver, signal.SIGSTOP)
    os.killpg(own, signal.SIGSTOP)


def around(function: Callable[..., Any], what: str) -> Callable[..., Any]:
    """The function with a point before and after it."""

    @wraps(function)
    def call(*arguments: Any, **options: Any) -> Any:
        passed(f"before {what}")
        found = function(*arguments, **options)
        passed(f"after {what}")
        return found

    return call


def install_in_driver() -> None:
    """Install the points of drivers."""
    from spark_jobs import ingest, publish
    from spark_jobs.sinks.iceberg import Warehouse
    from spark_jobs.sinks.iceberg_table import IcebergTable

    for step in STEPS:
        setattr(ingest.Batch, f"_{step}", around(getattr(ingest.Batch, f"_{step}"), f"step {step}"))
    Warehouse.commit_changes = around(Warehouse.commit_changes, "changes of a table")  # type: ignore[method-assign]
    Warehouse._replace = around(Warehouse._replace, "overwrite of a table")  # type: ignore[method-assign]
    IcebergTable.overwrite = around(IcebergTable.overwrite, "commit of files")  # type: ignore[method-assign]
    IcebergTable.replace_rows = around(IcebergTable.replace_rows, "commit of rows")  # type: ignore[method-assign]
    Warehouse.commit_current = around(Warehouse.commit_current, "current of a table")  # type: ignore[method-assign]
    publish.ensure_topics = around(publish.ensure_topics, "topics")
    publish.write_published = around(publish.write_published, "note")


def install_in_worker() -> None:
    """Install the points of workers."""
    from spark_jobs.sinks import data_files, kafka, row_positions
    from spark_jobs.state import shards
    from writetime.storage.lease import Lease

    data_files.put = row_positions.put = around(data_files.put, "write of a file")
    shards.upsert = around(shards.upsert, "write of a shard")
    Lease.finish = around(Lease.finish, "end of a shard")  # type: ignore[method-assign]
    kafka._read_progress = around(kafka._read_progress, "progress")

    class Producer(kafka.Producer):
        """A producer whose steps are points."""

        def init_transactions(self, *arguments: Any) -> None:
            passed("before fencing")
            super().init_transactions(*arguments)
            passed("after fencing")

        def begin_transaction(self) -> None:
            passed("before transaction")
            super().begin_transaction()
            passed("after transaction")

        def produce(self, *arguments: Any, **options: Any) -> None:
            super().produce(*arguments, **options)
            passed("in the middle of a transaction")

        def commit_transaction(self, *arguments: Any) -> None:
            passed("before commit")
            super().commit_transaction(*arguments)
            passed("after commit")

    kafka.Producer = Producer  # type: ignore[misc]
