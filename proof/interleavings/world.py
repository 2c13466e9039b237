"""One process in which several drivers run as if each had its own: threads, time and randomness are the world's.

Strategy: each thread of a driver is a greenlet, and one of them runs at a time. The doubles of store, broker and
warehouse call `step` before each request, and there the schedule decides who goes on. A driver can stall for as
long as a lease lasts, while the clock moves and others renew what they hold; it can be killed, and then nothing of
it runs again, as after SIGKILL. Modules of the product see the world in the place of `time`, `threading`,
`datetime`, `uuid4` and thread pools, so what is above needs no hook. Renewing threads of leases run when they are
due, and without a choice. Knows nothing of batches."""

from __future__ import annotations

import random
import sys
import threading as real_threading
import time as real_time
import uuid as real_uuid
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor as RealPool
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import UTC
from datetime import datetime as real_datetime
from functools import cached_property
from types import SimpleNamespace
from typing import Any, Final, Protocol, Self

from greenlet import GreenletExit, getcurrent, greenlet

BEGIN: Final = 1_777_900_000.0
"""When each world begins, in seconds since the epoch."""
TICK: Final = 0.05
"""Seconds that a request takes."""
STALL: Final = 75.0
"""Seconds that a driver stalls: longer than a lease with its allowance, and than a transaction."""
_KEEPER: Final = "lease "
"""How the names of threads begin that renew leases."""
_READS: Final = (
    *("store: list", "store: head", "store: read", "state: read", "warehouse: load", "warehouse: refresh", "warehouse: list"),
    *("broker: fetch", "broker: list_topics", "broker: describe_configs"),
)
"""How requests begin that change nothing."""
_PACKAGES: Final = ("writetime.", "spark_jobs.", "proof.doubles.", "proof.interleavings.")


class Endless(AssertionError):
    """The drivers do not come to an end."""


@dataclass(eq=False)
class Task:
    """A thread of a driver. `ready`: whether it can go on, None: it can; `until`: the second at which it goes on
    anyhow; `what`: the request that it is about to make."""

    name: str
    driver: Driver
    greenlet: Any = None
    ready: Callable[[], bool] | None = None
    until: float | None = None
    what: str = "begins"
    over: bool = False
    history: int = 0

    @cached_property
    def is_keeper(self) -> bool:
        return self.name.startswith(_KEEPER)

    @property
    def changes(self) -> bool:
        """Whether the request that it is about to make changes something."""
        return not self.what.startswith(_READS)

    def can_go(self, now: float) -> bool:
        waits = self.ready is not None and not self.ready()
        return not self.over and not self.driver.dead and (not waits or (self.until is not None and self.until <= now))


@dataclass(eq=False)
class Driver:
    """A process. `outcome`: what its work returned, or the `error` that it raised; `over`: it has come to its end, and was not
    killed before; `ahead`: seconds by which its machine's clock is fast."""

    name: str
    dead: bool = False
    stalled: bool = False
    outcome: Any = None
    error: BaseException | None = None
    over: bool = False
    ahead: float = 0.0
    tasks: list[Task] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class Choice:
    """What happens at a step: `to` goes on; the driver of the current task may stall or be killed before that, or the answer to
    its request may be lost."""

    to: Task | None
    stall: bool = False
    kill: bool = False
    lose: bool = False


class Schedule(Protocol):
    """Decides at each step. `current`: the task that was going on, if it can; `others`: those that can, too."""

    def choose(self, current: Task | None, others: list[Task], world: World) -> Choice: ...


class World:
    """See the module's docstring. `writes`: how many of the steps change something; `trace`: who did what, if it is kept; `effects`: a
    digest of all requests so far that have changed something, in their order; `loses`: the answer to the next request is lost, if that
    changes something."""

    def __init__(self, *, most: int = 20_000, keep: bool = False) -> None:
        self.now = BEGIN
        self.random = random.Random(0)
        self.effects = 0
        self.loses = False
        self.steps = 0
        self.writes = 0
        self.trace: list[str] | None = [] if keep else None
        self._most = most
        self._schedule: Schedule | None = None
        self._tasks: list[Task] = []
        self._hub: Any = None
        self._current: Task | None = None
        self._atomic = False

    # --- what the doubles and the product call

    def clock(self) -> float:
        return self.now

    def date(self) -> real_datetime:
        return real_datetime.fromtimestamp(self.now, UTC)

    def step(self, what: str) -> None:
        """A request is about to be made."""
        task = self._task()
        if task is None:
            return
        if task.driver.dead:
            raise GreenletExit
        self.now += TICK
        if self._atomic or task.is_keeper:
            return
        self.steps += 1
        if self.steps > self._most:
            raise Endless(f"{self._most} requests, and no end: {task.driver.name}: {what}")
        task.what, task.ready, task.until = what, None, None
        self._to_hub(task)
        if task.changes:
            self.writes += 1
            self.effects = hash((self.effects, task.driver.name, what))
        task.history = hash((task.history, what, self.effects))
        if self.trace is not None:
            self.trace.append(f"{task.driver.name}: {what}")

    def takes_answer(self) -> bool:
        """Whether the answer to the request that was just made is lost."""
        lost, self.loses = self.loses, False
        return lost

    def note(self, what: str) -> None:
        if self.trace is not None:
            self.trace.append(what)

    def block(self, ready: Callable[[], bool], seconds: float | None = None) -> bool:
        """Wait until it is so, at most so many seconds; whether it is."""
        task = self._task()
        if task is None:
            if not ready():
                self.now += seconds or 0.0
            return ready()
        if task.driver.dead:
            raise GreenletExit
        if ready():
            return True
        task.ready, task.until = ready, None if seconds is None else self.now + max(0.0, seconds)
        self._to_hub(task)
        return ready()

    def spawn(self, name: str, driver: Driver, work: Callable[[], Any]) -> Task:
        task = Task(name, driver)
        task.greenlet = greenlet(lambda: self._run_task(task, work), self._hub)
        driver.tasks.append(task)
        self._tasks.append(task)
        return task

    def current_driver(self) -> Driver | None:
        task = self._task()
        return None if task is None else task.driver

    def _task(self) -> Task | None:
        return self._current if self._current is not None and getcurrent() is self._current.greenlet else None

    def _to_hub(self, task: Task) -> None:
        self._hub.switch()
        if task.driver.dead:
            raise GreenletExit

    @staticmethod
    def _run_task(task: Task, work: Callable[[], Any]) -> None:
        try:
            outcome = work()
            if task is task.driver.tasks[0]:
                task.driver.outcome = outcome
        except GreenletExit:
            pass
        except BaseException as error:  # noqa: BLE001 - what ends a driver is looked at when all have ended
            if task is task.driver.tasks[0] or not isinstance(error, Exception):
                task.driver.error = error
        finally:
            task.over = True
            if task is task.driver.tasks[0] and not task.driver.dead:
                # The other threads of a process end with it.
                task.driver.over = task.driver.dead = True

    def state(self, current: Task | None) -> int:
        """A digest of where everybody is and of what has been changed so far: from two states of the same digest, the same can
        happen. Who has read something has read it between the same changes."""
        tasks = ((task.name, task.driver.name, task.history, task.over, task.driver.dead, task.driver.stalled) for task in self._tasks)
        return hash((self.effects, tuple(tasks), None if current is None else (current.driver.name, current.name), round(self.now, 1)))

    # --- running

    def run(self, drivers: Iterable[tuple[str, Callable[[], Any]]], schedule: Schedule) -> list[Driver]:
        """Let the drivers run until all have ended or been killed. Endless if they do not."""
        self._hub, self._schedule, self._tasks = getcurrent(), schedule, []
        made = []
        for name, work in drivers:
            driver = Driver(name)
            made.append(driver)
            self.spawn(name, driver, work)
        try:
            self._loop()
        finally:
            self._end()
        return made

    def _loop(self) -> None:
        assert self._schedule is not None
        current: Task | None = None
        while True:
            self._renew()
            able = [task for task in self._tasks if not task.is_keeper and task.can_go(self.now)]
            awake = [task for task in able if not task.driver.stalled]
            if not able:
                if not self._sleep_until_due():
                    return
                continue
            if not awake:
                # All others have ended, or wait: who stalled goes on.
                awake = able
            going = current if current in awake else None
            others = [task for task in able if task is not going]
            choice = self._schedule.choose(going, others, self)
            if going is not None and choice.lose:
                self.note(f"(the answer to {going.driver.name} is lost)")
                self.loses = True
            elif going is not None and choice.kill:
                self._kill(going.driver)
            elif going is not None and choice.stall:
                self._stall(going.driver)
            current = choice.to or going or (awake[0] if awake else able[0])
            if current.driver.dead:
                current = None
                continue
            if current.driver.stalled and current is not going:
                current.driver.stalled = False
                self.note(f"({current.driver.name} goes on)")
            self._switch(current)

    def _switch(self, task: Task) -> None:
        before, self._current = self._current, task
        task.ready, task.until = None, None
        try:
            task.greenlet.switch()
        finally:
            self._current = before

    def _kill(self, driver: Driver) -> None:
        self.note(f"({driver.name} is killed)")
        driver.dead = True

    def _stall(self, driver: Driver) -> None:
        self.note(f"({driver.name} stalls for {STALL:.0f} s)")
        driver.stalled = True
        end = self.now + STALL
        while (due := self._next_renewal()) is not None and due <= end:
            self.now = max(self.now, due)
            self._renew()
        self.now = max(self.now, end)

    def _keepers(self) -> list[Task]:
        return [task for task in self._tasks if task.is_keeper and not (task.over or task.driver.dead or task.driver.stalled)]

    def _next_renewal(self) -> float | None:
        return min((task.until for task in self._keepers() if task.until is not None), default=None)

    def _renew(self) -> None:
        """Let the renewing threads run that are due."""
        for task in self._keepers():
            if task.can_go(self.now):
                self._switch(task)

    def _sleep_until_due(self) -> bool:
        """Move the clock to when somebody goes on by the time; whether there is anybody."""
        waiting = [task for task in self._tasks if not task.over and not task.driver.dead and task.until is not None]
        waiting = [task for task in waiting if not (task.is_keeper and task.driver.stalled)]
        if not [task for task in waiting if not task.is_keeper]:
            return False
        self.now = max(self.now, min(task.until for task in waiting if task.until is not None))
        self.steps += 1
        if self.steps > self._most:
            raise Endless(f"they wait for each other: {', '.join(f'{task.name}: {task.what}' for task in waiting)}")
        return True

    def _end(self) -> None:
        """Nothing of this world runs again."""
        for task in self._tasks:
            task.driver.dead = True
            if not task.over and task.greenlet:
                self._switch_to_end(task)
        self._tasks, self._current = [], None

    def _switch_to_end(self, task: Task) -> None:
        before, self._current = self._current, task
        try:
            task.greenlet.throw(GreenletExit)
        finally:
            self._current = before

    @contextmanager
    def unhindered(self) -> Iterator[None]:
        """Requests of this piece are made at once, without a choice."""
        before, self._atomic = self._atomic, True
        try:
            yield
        finally:
            self._atomic = before


# --- what the product sees


class Current:
    """The world that the product sees now, for as long as it is `installed`."""

    def __init__(self) -> None:
        self.world = World()

    def clock(self) -> float:
        """The clock of the current driver's machine."""
        driver = self.world.current_driver()
        return self.world.now + (driver.ahead if driver is not None else 0.0)

    def monotonic(self) -> float:
        return self.world.now

    def block(self, ready: Callable[[], bool], seconds: float | None = None) -> bool:
        return self.world.block(ready, seconds)

    def spawn(self, name: str, driver: Driver, work: Callable[[], Any]) -> Task:
        return self.world.spawn(name, driver, work)

    def current_driver(self) -> Driver | None:
        return self.world.current_driver()


@contextmanager
def installed(current: Current, others: Iterable[tuple[Any, Any]] = ()) -> Iterator[None]:
    """The product's modules see the current world's time, threads and randomness. `others`: what is seen in the place of what."""
    instead = [*_instead(current), *others]
    by_id = {id(old): (old, new) for old, new in instead}
    changed: list[tuple[Any, str, Any]] = []
    for name, module in list(sys.modules.items()):
        if not name.startswith(_PACKAGES) or name == __name__ or module is None:
            continue
        for attribute, value in list(vars(module).items()):
            found = by_id.get(id(value))
            if found is not None:
                changed.append((module, attribute, value))
                setattr(module, attribute, found[1])
    try:
        yield
    finally:
        for module, attribute, value in changed:
            setattr(module, attribute, value)


def _instead(current: Current) -> list[tuple[Any, Any]]:
    threads = SimpleNamespace(
        **{name: getattr(real_threading, name) for name in ("current_thread", "get_ident", "local", "main_thread")},
        Thread=lambda *given, **named: _Thread(current, *given, **named),
        Lock=lambda: _Lock(current),
        RLock=lambda: _Lock(current, again=True),
        Event=lambda: _Event(current),
        Condition=lambda lock=None: _Condition(current, lock),
    )
    times = SimpleNamespace(
        **{name: getattr(real_time, name) for name in ("strftime", "gmtime", "perf_counter", "process_time", "thread_time", "struct_time")},
        time=current.clock,
        monotonic=current.monotonic,
        time_ns=lambda: int(current.clock() * 1e9),
        monotonic_ns=lambda: int(current.world.now * 1e9),
        sleep=lambda seconds: current.block(lambda: False, seconds),
    )

    def uuid4() -> real_uuid.UUID:
        return real_uuid.UUID(int=current.world.random.getrandbits(128), version=4)

    return [
        (real_threading, threads),
        (real_time, times),
        (real_uuid, SimpleNamespace(**{**vars(real_uuid), "uuid4": uuid4})),
        (real_uuid.uuid4, uuid4),
        (real_datetime, _datetime(current)),
        (RealPool, _Pool),
        (real_threading.Lock, threads.Lock),
        (real_threading.Event, threads.Event),
        (real_threading.Thread, threads.Thread),
        (real_threading.Condition, threads.Condition),
    ]


def _datetime(current: Current) -> Any:
    class Instances(type):
        def __instancecheck__(cls, instance: object) -> bool:
            return isinstance(instance, real_datetime)

    class Datetime(real_datetime, metaclass=Instances):
        @classmethod
        def now(cls, tz: Any = None) -> Any:
            return real_datetime.fromtimestamp(current.clock(), tz or UTC)

    return Datetime


class _Lock:
    def __init__(self, world: Current, *, again: bool = False) -> None:
        self._world, self._again = world, again
        self._held, self._by = 0, None

    def acquire(self, blocking: bool = True, timeout: float = -1) -> bool:
        is_mine = self._again and self._by is getcurrent()
        if not is_mine and not (blocking and self._world.block(lambda: not self._held, None if timeout < 0 else timeout)) and self._held:
            return False
        self._held, self._by = self._held + 1, getcurrent()
        return True

    def release(self) -> None:
        self._held -= 1

    def locked(self) -> bool:
        return bool(self._held)

    def __enter__(self) -> Self:
        self.acquire()
        return self

    def __exit__(self, *_: object) -> None:
        self.release()


class _Event:
    def __init__(self, world: Current) -> None:
        self._world, self._is_set = world, False

    def set(self) -> None:
        self._is_set = True

    def clear(self) -> None:
        self._is_set = False

    def is_set(self) -> bool:
        return self._is_set

    def wait(self, timeout: float | None = None) -> bool:
        return self._world.block(lambda: self._is_set, timeout)


class _Condition:
    def __init__(self, world: Current, lock: Any = None) -> None:
        self._world, self._lock, self._calls = world, lock or _Lock(world, again=True), 0

    def __enter__(self) -> Self:
        self._lock.acquire()
        return self

    def __exit__(self, *_: object) -> None:
        self._lock.release()

    def wait_for(self, predicate: Callable[[], bool], timeout: float | None = None) -> bool:
        while not predicate():
            self._lock.release()
            self._world.block(predicate, timeout)
            self._lock.acquire()
        return True

    def notify(self, n: int = 1) -> None:
        """Who waits looks again by itself."""

    notify_all = notify


class _Thread:
    """A thread of the driver that starts it."""

    def __init__(
        self, world: Current, group: None = None, target: Any = None, name: str = "thread", args: Any = (), *, daemon: bool | None = None
    ) -> None:
        self._world, self._work, self.name = world, lambda: target(*args), name
        self._task: Task | None = None

    def start(self) -> None:
        driver = self._world.current_driver()
        if driver is not None:
            self._task = self._world.spawn(self.name, driver, self._work)

    def join(self, timeout: float | None = None) -> None:
        self._world.block(lambda: self._task is None or self._task.over, timeout)

    def is_alive(self) -> bool:
        return self._task is not None and not self._task.over


class _Pool:
    """Calls one after the other; the first error is raised when all are done, as by `Executor.map`."""

    def __init__(self, *_: object, **__: object) -> None:
        pass

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        pass

    def map(self, call: Callable[[Any], Any], wanted: Iterable[Any]) -> Iterator[Any]:
        found: list[Any] = []
        failure: Exception | None = None
        for each in wanted:
            try:
                found.append(call(each))
            except Exception as error:  # noqa: BLE001 - as a pool does
                failure = failure or error
        if failure is not None:
            raise failure
        return iter(found)
