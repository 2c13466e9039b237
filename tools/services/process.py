"""Start a program as a service, wait until it is ready, and stop it.

Strategy: every service leads its own process group, so that its children are stopped too. A record of name,
pid and *start time* is written to `<run>/<name>.json`: a pid alone may be reused by another process. Stopping
means TERM to the group, a wait, then KILL. Knows nothing about the programs.

On Linux process data comes from /proc, elsewhere from `ps`.
"""

from __future__ import annotations

import json
import os
import pwd
import signal
import subprocess
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path

from tools.console import say
from tools.errors import ServiceError

_PROC = Path("/proc")
_POLL_SECONDS = 0.1
_REMIND_SECONDS = 10.0
_LOG_TAIL = 25


@dataclass(frozen=True)
class Service:
    """A started service: name, pid, start time, log, record, and its port or URL for display."""

    name: str
    pid: int
    started: str
    log: str
    record: str
    detail: str = ""

    @property
    def alive(self) -> bool:
        """Whether this process still runs. A later process with the same pid and a zombie do not count."""
        with suppress(ChildProcessError):  # not our child any more: another process reaps it
            os.waitpid(self.pid, os.WNOHANG)
        return start_time(self.pid) == self.started

    def tail(self, lines: int = _LOG_TAIL) -> str:
        """The last lines of the log, for an error message."""
        try:
            text = Path(self.log).read_text(encoding="utf-8", errors="replace")
        except OSError:
            return "(no log)"
        return "\n".join(text.splitlines()[-lines:])

    def wait(self, ready: Callable[[], bool], *, seconds: float, notify: Callable[[str], None] = say) -> float:
        """Wait until `ready()`; returns the seconds it took. ServiceError with the end of the log if it dies
        or takes longer.
        """
        begun = time.monotonic()
        remind = begun + _REMIND_SECONDS
        while not ready():
            now = time.monotonic()
            if not self.alive:
                raise ServiceError(f"{self.name} ended while starting. The end of {self.log}:\n{self.tail()}")
            if now - begun > seconds:
                raise ServiceError(f"{self.name} was not ready within {seconds:.0f} s. The end of {self.log}:\n{self.tail()}")
            if now > remind:
                notify(f"  {self.name}: still starting ({now - begun:.0f} s)")
                remind += _REMIND_SECONDS
            time.sleep(_POLL_SECONDS)
        return time.monotonic() - begun

    def terminate(self) -> bool:
        """Send TERM to the group without waiting. False if the process is already gone."""
        was_alive = self.alive
        if was_alive:
            self._signal(signal.SIGTERM)
        return was_alive

    def stop(self, seconds: float = 20.0) -> bool:
        """TERM, then KILL after `seconds`; deletes the record. False if the process was already gone."""
        was_alive = self.alive
        if was_alive:
            self._signal(signal.SIGTERM)
            if not self._gone_within(seconds):
                self._signal(signal.SIGKILL)
                if not self._gone_within(5.0):
                    raise ServiceError(
                        f"{self.name} (pid {self.pid}) does not end, not even by SIGKILL. Look at it with: ps -fp {self.pid}"
                    )
        Path(self.record).unlink(missing_ok=True)
        return was_alive

    def _signal(self, number: int) -> None:
        with suppress(ProcessLookupError):
            os.killpg(self.pid, number)

    def _gone_within(self, seconds: float) -> bool:
        deadline = time.monotonic() + seconds
        while self.alive or _group_members(self.pid):
            if time.monotonic() > deadline:
                return False
            time.sleep(_POLL_SECONDS)
        return True


def start(
    name: str,
    command: Sequence[str],
    *,
    run: Path,
    log: Path,
    env: Mapping[str, str] | None = None,
    cwd: Path | None = None,
    detail: str = "",
    user: str | None = None,
) -> Service:
    """Start `command` as the service `name`: output to `log` (appended), record in `run`. `env` replaces the
    environment. `user`: whose process it is, with no other groups than their own; needs root.

    ServiceError if the program cannot be started, or if a service of that name recorded in `run` still runs.
    """
    refuse_second(name, run=run)
    record = run / f"{name}.json"
    run.mkdir(parents=True, exist_ok=True)
    log.parent.mkdir(parents=True, exist_ok=True)
    with log.open("ab") as output:
        try:
            child = subprocess.Popen(
                list(command),
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                env=env,
                cwd=cwd,
                start_new_session=True,
                user=user,
                group=None if user is None else pwd.getpwnam(user).pw_gid,
                extra_groups=None if user is None else [],
            )
        except OSError as error:
            raise ServiceError(f"{name} cannot be started: {command[0]}: {error.strerror}") from error
    child.returncode = 0  # from now on it is monitored by pid, also by processes other than its parent
    service = Service(name, child.pid, start_time(child.pid) or "", str(log), str(record), detail)
    record.write_text(json.dumps(asdict(service), indent=1) + "\n", encoding="utf-8")
    return service


def refuse_second(name: str, *, run: Path) -> None:
    """ServiceError if the service recorded in `run` under that name still runs."""
    other = _read(run / f"{name}.json")
    if other is not None and other.alive:
        raise ServiceError(f"{name} is running already (pid {other.pid}, {other.detail or other.log}). Stop it first: make down")


def recorded(run: Path) -> list[Service]:
    """Services recorded in `run`, the newest first; unreadable records are skipped."""
    paths = sorted(run.glob("*.json"), key=lambda path: path.stat().st_mtime, reverse=True)
    return [service for path in paths if (service := _read(path)) is not None]


def stop_all(services: Sequence[Service], *, seconds: float = 20.0, notify: Callable[[str], None] = say) -> None:
    """Stop several services: terminate all first, then wait for each."""
    were_alive = [service.terminate() for service in services]
    for service, was_alive in zip(services, were_alive, strict=True):
        service.stop(seconds)
        if was_alive:
            notify(f"  {service.name} stopped")


def start_time(pid: int) -> str | None:
    """When a process started, as text that no later process with the same pid shares; None if it is not
    running.
    """
    if _PROC.is_dir():
        fields = _stat(pid)
        # Fields after the name: state, parent, group, …; the 20th is the start time in clock ticks since
        # boot. proc(5)
        return f"ticks:{fields[19]}" if fields is not None and not _is_over(fields) else None
    answer = _ps("-o", "stat=,lstart=", "-p", str(pid)).split(None, 1)
    return f"at:{answer[1].strip()}" if len(answer) == 2 and not answer[0].startswith("Z") else None


def _group_members(group: int) -> list[int]:
    """Running processes of a group, except zombies."""
    return [pid for pid, over, of in _processes() if of == group and not over]


def _processes() -> Iterator[tuple[int, bool, int]]:
    if _PROC.is_dir():
        for entry in _PROC.iterdir():
            if entry.name.isdigit() and (fields := _stat(int(entry.name))) is not None:
                yield int(entry.name), _is_over(fields), int(fields[2])
        return
    for line in _ps("-A", "-o", "pid=,stat=,pgid=").splitlines():
        pid, state, group = line.split()
        yield int(pid), state.startswith("Z"), int(group)


def _is_over(fields: list[str]) -> bool:
    """Whether it is a zombie without other threads (the 18th field counts all threads): a remaining thread
    keeps files open.
    """
    return fields[0] == "Z" and int(fields[17]) <= 1


def _stat(pid: int) -> list[str] | None:
    try:
        text = (_PROC / str(pid) / "stat").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return None
    return text.rpartition(")")[2].split()


def _ps(*arguments: str) -> str:
    return subprocess.run(["ps", *arguments], capture_output=True, text=True, check=False).stdout


def _read(record: Path) -> Service | None:
    try:
        return Service(**json.loads(record.read_text(encoding="utf-8")))
    except (OSError, ValueError, TypeError):
        return None
