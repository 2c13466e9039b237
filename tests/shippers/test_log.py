"""A log that cannot be written: nothing waits for it, and what is missing is counted."""

from __future__ import annotations

import errno
import fcntl
import json
import os
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
import structlog

from shippers import log
from tests.shippers.conftest import Folder
from tests.shippers.service import ROOT, command, running, until

F_SETPIPE_SZ = 1031


@contextmanager
def reader_gone() -> Iterator[int]:
    read, write = os.pipe()
    os.close(read)
    yield write
    os.close(write)


@contextmanager
def reader_stalls() -> Iterator[int]:
    read, write = os.pipe()
    fcntl.fcntl(write, F_SETPIPE_SZ, 4096)
    os.write(write, b"x" * 4096)
    yield write
    os.close(read)
    os.close(write)


@contextmanager
def disk_full() -> Iterator[int]:
    with Path("/dev/full").open("wb") as full:
        yield full.fileno()


@pytest.mark.parametrize("trouble", [reader_gone, reader_stalls, disk_full])
def test_a_log_that_cannot_be_written_stops_nothing(trouble: object, folder: Folder, tmp_path: Path) -> None:
    for number in (1, 2, 3):
        folder.segment(number)
    assert callable(trouble)
    with trouble() as stderr, running(folder.path, str(tmp_path / "bucket"), stderr=stderr) as service:
        assert until(lambda: folder.names == []), "not shipped"
        assert until(lambda: service.get("/healthz")[0] == 200)
        if trouble is not reader_stalls:
            assert until(lambda: service.metric("lost_log_lines_total") >= 3)
        begun = time.monotonic()
        assert service.stop() == 0
        assert time.monotonic() - begun < 60
    assert len(list((tmp_path / "bucket" / "cdc").rglob("*.log"))) == 3


def test_a_log_on_a_full_disk_is_no_failure_of_a_run(folder: Folder, tmp_path: Path) -> None:
    folder.segment(1)
    with disk_full() as stderr:
        done = subprocess.run(command(folder.path, str(tmp_path / "bucket"), "--once"), cwd=ROOT, stderr=stderr, check=False)
    assert done.returncode == 0
    assert folder.names == []


def test_without_a_stderr_no_other_file_is_written_to(folder: Folder, tmp_path: Path) -> None:
    folder.segment(1)
    line = [*command(folder.path, str(tmp_path / "bucket"), "--once")]
    done = subprocess.run(["/bin/sh", "-c", 'exec "$@" 2>&-', "sh", *line], cwd=ROOT, check=False)
    assert done.returncode == 0
    assert folder.names == []


def test_an_error_at_the_end_does_not_wait_for_the_log(folder: Folder, tmp_path: Path) -> None:
    """The command's last words go the same way: here that another shipper holds the folder."""
    (tmp_path / "bucket").mkdir()
    holder = os.open(folder.path, os.O_RDONLY)
    fcntl.flock(holder, fcntl.LOCK_EX)
    with reader_stalls() as stderr:
        done = subprocess.run(command(folder.path, str(tmp_path / "bucket"), "--once"), cwd=ROOT, stderr=stderr, check=False, timeout=120)
    os.close(holder)
    assert done.returncode == 1


def test_lines_that_do_not_fit_are_counted_and_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    read, write = os.pipe()
    fcntl.fcntl(write, F_SETPIPE_SZ, 4096)
    before = log.LOST._value.get()
    stream = log.Stream(write)
    monkeypatch.setattr(log.structlog, "get_logger", lambda _: structlog.wrap_logger(structlog.WriteLogger(stream)))
    line = json.dumps({"event": "e" * 200}) + "\n"
    begun = time.monotonic()
    for _ in range(2000):
        stream.write(line)
    stream.finish(0.1)
    assert time.monotonic() - begun < 10
    lost = log.LOST._value.get() - before
    # A writer that gets no time has taken no line yet.
    assert 900 < lost <= 1000
    received: list[bytes] = []
    reader = threading.Thread(target=lambda: [received.append(data) for data in iter(lambda: os.read(read, 65536), b"")])
    reader.start()
    stream.finish(60)
    # The report comes behind the lines.
    time.sleep(0.2)
    stream.finish(60)
    os.close(write)
    reader.join(60)
    os.close(read)
    text = b"".join(received).decode()
    assert text.count(line) == 2000 - lost
    assert "log lines were dropped" in text
    assert f"{int(lost)}" in text.replace(line, "")


def test_a_line_that_was_written_in_part_does_not_spoil_the_next(monkeypatch: pytest.MonkeyPatch) -> None:
    """As on a disk that fills up in the middle of a line, and has room again later."""
    written: list[bytes] = []
    room = [5]

    def write(_: int, data: bytes) -> int:
        if not room[0]:
            raise OSError(errno.ENOSPC, "No space left on device")
        written.append(bytes(data[: room[0]]))
        room[0] -= len(written[-1])
        return len(written[-1])

    monkeypatch.setattr(log.os, "write", write)
    stream = log.Stream(99)
    stream.write('{"event": "first"}\n')
    stream.finish(30)
    room[0] = 1000
    stream.write('{"event": "second"}\n')
    stream.finish(30)
    assert b"".join(written).startswith(b'{"eve\n{"event": "second"}\n')


def test_a_pipe_that_another_process_made_non_blocking() -> None:
    read, write = os.pipe()
    os.set_blocking(write, False)
    stream = log.Stream(write)
    for number in range(900):
        stream.write(f"{number} {'x' * 200}\n")
    received = b""
    while received.count(b"\n") < 900:
        received += os.read(read, 65536)
    assert received.splitlines()[-1].startswith(b"899 ")
    for each in (read, write):
        os.close(each)


def test_a_stop_while_the_main_thread_holds_the_lock_of_the_event() -> None:
    """A handler that took that lock would wait for the thread that it interrupts, for ever."""
    script = (
        "import os, signal, time; from writetime.signals import stop_on; stop = stop_on(signal.SIGTERM)\n"
        "with stop._cond: os.kill(os.getpid(), signal.SIGTERM); time.sleep(0.1)\n"
        "assert stop.wait(60)"
    )
    subprocess.run([sys.executable, "-c", script], cwd=ROOT, check=True, timeout=120)
