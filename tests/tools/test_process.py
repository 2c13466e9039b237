"""Services are stopped with their children, and no other process is."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tools.errors import ServiceError
from tools.services import process
from tools.services.process import Service

Start = Callable[..., Service]


def quiet(_: str) -> None:
    pass


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Start]:
    """Start Python code as a service; it is killed after the test."""
    started: list[Service] = []

    def run(code: str, name: str = "it") -> Service:
        service = process.start(name, [sys.executable, "-c", code], run=tmp_path / "run", log=tmp_path / f"{name}.log")
        started.append(service)
        return service

    yield run
    for service in started:
        service.stop(seconds=0)


def until(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 30
    while not condition():
        assert time.monotonic() < deadline, "did not come true"
        time.sleep(0.05)


def said(service: Service, text: str) -> Callable[[], bool]:
    return lambda: text in Path(service.log).read_text()


def test_a_service_runs_until_it_is_stopped(start: Start, tmp_path: Path) -> None:
    service = start("import time; time.sleep(600)")
    assert service.alive
    assert process.recorded(tmp_path / "run") == [service]
    assert service.stop()
    assert not service.alive
    assert process.recorded(tmp_path / "run") == []
    assert not service.stop(), "it was gone before"


def test_one_that_ignores_term_is_killed(start: Start) -> None:
    service = start("import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); print('up', flush=True); time.sleep(600)")
    until(said(service, "up"))
    service.stop(seconds=0.3)
    assert not service.alive


def test_children_go_down_with_it(start: Start) -> None:
    service = start("import subprocess; child = subprocess.Popen(['sleep', '600']); print(child.pid, flush=True); child.wait()")
    until(said(service, "\n"))
    child = int(Path(service.log).read_text())
    assert process.start_time(child) is not None
    service.stop()
    until(lambda: process.start_time(child) is None)


def test_another_process_with_the_same_pid_is_left_alone(tmp_path: Path) -> None:
    stranger = subprocess.Popen(["sleep", "600"], start_new_session=True)
    try:
        record = tmp_path / "it.json"
        record.write_text(json.dumps({"name": "it", "pid": stranger.pid, "started": "ticks:1", "log": "", "record": str(record)}))
        (service,) = process.recorded(tmp_path)
        assert not service.alive
        assert not service.stop()
        assert stranger.poll() is None, "a stranger was stopped"
        assert not record.exists(), "the record of a process that is gone is cleared away"
    finally:
        stranger.kill()
        stranger.wait()


def test_a_second_one_of_that_name_is_refused_while_the_first_runs(start: Start) -> None:
    first = start("import time; time.sleep(600)")
    with pytest.raises(ServiceError, match=rf"it is running already \(pid {first.pid}"):
        start("pass")
    first.stop()
    assert start("import time; time.sleep(600)").alive


def test_one_that_dies_while_starting_shows_the_end_of_its_log(start: Start) -> None:
    service = start("print('line', 1); raise SystemExit('no such file: broker.properties')")
    with pytest.raises(ServiceError, match=r"(?s)it ended while starting.*no such file: broker\.properties"):
        service.wait(lambda: False, seconds=30, notify=quiet)


def test_one_that_never_gets_ready_is_given_up(start: Start) -> None:
    service = start("import time; time.sleep(600)")
    with pytest.raises(ServiceError, match="it was not ready within 0 s"):
        service.wait(lambda: False, seconds=0.2, notify=quiet)
    assert service.alive, "whether to stop it is the caller's decision"


def test_a_program_that_is_not_there_is_named(tmp_path: Path) -> None:
    with pytest.raises(ServiceError, match="it cannot be started: /no/such/program: No such file"):
        process.start("it", ["/no/such/program"], run=tmp_path, log=tmp_path / "log")


def test_several_are_stopped_together(start: Start, tmp_path: Path) -> None:
    services = [start("import time; time.sleep(600)", name) for name in ("a", "b")]
    told: list[str] = []
    process.stop_all(process.recorded(tmp_path / "run"), notify=told.append)
    assert not any(service.alive for service in services)
    assert sorted(told) == ["  a stopped", "  b stopped"]


def test_a_zombie_does_not_count_as_alive() -> None:
    child = os.fork()
    if child == 0:
        os._exit(0)
    try:
        until(lambda: process.start_time(child) is None)
    finally:
        os.waitpid(child, 0)


@pytest.mark.skipif(not Path("/proc").is_dir(), reason="only /proc tells of threads")
def test_a_process_whose_first_thread_has_ended_still_runs() -> None:
    """As a JVM may for a moment while it ends: the first thread is a zombie, and the others have its files
    open.
    """
    code = "import ctypes, threading, time; threading.Thread(target=time.sleep, args=(600,)).start(); ctypes.CDLL(None).pthread_exit(None)"
    child = subprocess.Popen([sys.executable, "-c", code])
    try:
        until(lambda: " Z " in Path(f"/proc/{child.pid}/stat").read_text())
        assert process.start_time(child.pid) is not None
    finally:
        child.kill()
        child.wait()


def test_a_record_that_cannot_be_read_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / "half.json").write_text('{"name": "ha')
    assert process.recorded(tmp_path) == []
    assert (tmp_path / "half.json").exists()


def test_start_time_tells_processes_apart() -> None:
    first = subprocess.Popen(["sleep", "600"])
    try:
        assert process.start_time(first.pid) == process.start_time(first.pid) is not None
        assert process.start_time(first.pid) != process.start_time(os.getpid())
    finally:
        first.send_signal(signal.SIGKILL)
        first.wait()
    assert process.start_time(first.pid) is None
