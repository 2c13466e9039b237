"""The shipper as a process: the real agent with a faulty folder store, which kills itself at a point.

A point is before or after a store call, the deletion or renaming of a file, or in the middle of an upload.
Names of points say what happens, not to which segment. Outages are controlled from outside: while a file of
that name exists, the store is down. Some processes have `EVENTS` besides: the disk of their log is full, their
credentials are rotated, their clock jumps, their link is slow.
"""

from __future__ import annotations

import os
import random
import signal
import sys
import time
from collections.abc import Collection, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, BinaryIO

from proof.kill_shipper import sabotage
from shippers import log
from shippers.agent import Agent, Mode
from writetime.config.cluster import ClusterConfig
from writetime.config.node import NodeConfig, ShipConfig
from writetime.config.pipeline import PipelineConfig
from writetime.errors import ChecksumMismatch, PreconditionFailed, StoreError, StoreUnavailable
from writetime.signals import stop_on
from writetime.storage import local
from writetime.storage.local import LocalStore
from writetime.storage.store import PAGE, Listed, ObjectInfo, Store

CLUSTER, DATACENTER, HOST = "ring", "dc1", "host-1"
POINTS = (
    *(f"{when} {what}" for what in ("put", "head") for when in ("before", "after")),
    "in the middle of put",
    *(f"{when} {what} of {of}" for what in ("deletion", "rename") for of in ("log", "idx") for when in ("before", "after")),
)
FULL_LOG, ROTATED, CLOCK, SLOW = EVENTS = ("full log disk", "rotated credentials", "clock jumps", "slow link")
SHARE_OF_FAULTS = 0.08
SECONDS_OF_SLOW_HALVES = 0.1
MOST_SECONDS_OF_CLOCK = 30 * 86_400
TAIL = {"tail_seconds": 0.02}


class Points:
    """Counts how often `point` is passed, and kills the process at the selected time. `point` None: never."""

    def __init__(self, point: str | None, at: int) -> None:
        self._point = point
        self._left = at

    def pass_(self, point: str) -> None:
        if point == self._point:
            self._left -= 1
            if self._left < 0:
                os.kill(os.getpid(), signal.SIGKILL)


class Stormy:
    """A store whose calls fail randomly, as remote ones do. The worst faults affect segments only. `rotated`: its
    credentials expire again and again, and a few calls are refused before the new ones are used."""

    def __init__(self, inner: Store, points: Points, chance: random.Random, share: float, outage: Path, *, rotated: bool = False) -> None:
        self._inner, self._points, self._chance, self._share, self._outage = inner, points, chance, share, outage
        self._rotated, self._refused = rotated, 0
        self.url = inner.url

    def list(self, prefix: str = "", *, start_after: str = "") -> Iterator[ObjectInfo]:
        raise AssertionError("the shipper must not list objects")

    def names(self, prefix: str = "", *, start_after: str = "", page: int = PAGE) -> Iterator[Listed]:
        raise AssertionError("the shipper must not list objects")

    def folders(self, prefix: str = "") -> Iterator[str]:
        raise AssertionError("the shipper must not list objects")

    def head(self, name: str) -> ObjectInfo | None:
        self._weather("head")
        self._points.pass_("before head")
        found = self._inner.head(name)
        self._points.pass_("after head")
        return found

    def read(self, name: str, *, generation: int | None = None, start: int = 0, end: int | None = None) -> bytes:
        raise AssertionError("the shipper must not read objects")

    def put(
        self, name: str, data: bytes | Path, *, if_generation: int | None = None, metadata: Mapping[str, str] | None = None
    ) -> ObjectInfo:
        self._weather("put")
        self._points.pass_("before put")
        faults, share = _FAULTS.get(name.partition("/")[0], ((), 0))
        fault = self._chance.choice(faults) if self._chance.random() < share * self._share else ""
        if fault == "damaged":
            # The bytes were damaged on the way, and the store accepts them.
            with self._outage.with_name("damaged").open("a") as damaged:
                damaged.write(f"{name}\n")
            sent = data if isinstance(data, bytes) else data.read_bytes()
            info = self._inner.put(name, sent[:-1] + bytes([sent[-1] ^ 1]), if_generation=if_generation, metadata=metadata)
            self._points.pass_("after put")
            return info
        info = self._inner.put(name, data, if_generation=if_generation, metadata=metadata)
        self._points.pass_("after put")
        if fault == "gone":
            with self._outage.with_name("gone").open("a") as gone:
                gone.write(f"{name}\n")
            self._inner.delete(name)
        elif fault == "lost":
            raise StoreUnavailable("the answer was lost", operation="put", obj=name)
        elif fault == "repeated":
            raise PreconditionFailed("the library tried again and met its own object", operation="put", obj=name)
        elif fault == "mismatch":
            raise ChecksumMismatch("the answer's checksum was wrong", operation="put", obj=name)
        return info

    def copy(self, source: str, target: str, *, if_generation: int | None = 0) -> ObjectInfo:
        raise AssertionError("the shipper must not copy objects")

    def delete(self, name: str, *, if_generation: int | None = None) -> None:
        raise AssertionError("the shipper must not delete objects")

    def discard(self, names: Iterable[str]) -> None:
        raise AssertionError("the shipper must not delete objects")

    def _weather(self, what: str) -> None:
        if self._outage.exists() or self._chance.random() < self._share / 2:
            raise StoreUnavailable("503", operation=what)
        if self._rotated and not self._refused and self._chance.random() < 0.1:
            self._refused = self._chance.randint(2, 6)
        self._refused = max(0, self._refused - 1)
        if self._refused or self._chance.random() < self._share / 8:
            raise StoreError("the credentials have expired", operation=what)


_FAULTS = {
    "cdc": (("lost", "repeated", "mismatch", "gone", "damaged"), 1.0),
    "cdc_parts": (("lost", "repeated", "mismatch", "damaged"), 3.0),
}
"""By folder: what becomes of a put, and how much more often than of others. Parts are few."""


def settings(folder: Path, space: int) -> PipelineConfig:
    """The configuration of all shippers of a run. `space` in bytes is cdc_total_space."""
    ship = ShipConfig.model_validate({"cdc_total_space": space, "disk_reserve": 0, "when_store_is_down": "spill", "listen": None} | TAIL)
    node = NodeConfig(cdc_raw=folder / "cdc_raw", host_id=HOST, datacenter=DATACENTER, poll_seconds=0.02, ship=ship)
    cluster = ClusterConfig(name=CLUSTER, datacenters=[DATACENTER])
    return PipelineConfig(pipeline="kill", cluster=cluster, bucket=str(folder / "bucket"), node=node)


def main(
    config: PipelineConfig,
    folder: Path,
    seed: int,
    point: str | None,
    at: int,
    rule: str | None,
    *,
    calm: bool,
    mode: Mode,
    events: Collection[str] = (),
) -> int:
    """Run the shipper; the exit code of the process."""
    # /dev/full: each write ends with ENOSPC.
    log_file = Path("/dev/full") if FULL_LOG in events else folder / "shipper.log"
    os.dup2(os.open(log_file, os.O_WRONLY | os.O_CREAT | os.O_APPEND), 2)
    sys.stderr = open(2, "w", buffering=1, closefd=False)  # noqa: SIM115 - for as long as the process lives
    log.configure()
    points = Points(point, at)
    _patch(points, config, SECONDS_OF_SLOW_HALVES if SLOW in events else 0.0)
    chance = random.Random(seed)
    if CLOCK in events:
        _let_clock_jump(random.Random(seed + 1))
    if rule is not None:
        sabotage.RULES[rule]()
    share = 0.0 if calm else SHARE_OF_FAULTS
    store = Stormy(LocalStore(config.bucket), points, chance, share, folder / "outage", rotated=ROTATED in events)
    return 0 if Agent(config, store, link=None, stop=stop_on(signal.SIGTERM, signal.SIGINT), pause=0.0).run(mode) else 1


def _let_clock_jump(chance: random.Random) -> None:
    """Set this process's clock forth and back, by up to a month, at random moments."""
    real, real_ns, ahead = time.time, time.time_ns, 0.0

    def jumped() -> float:
        nonlocal ahead
        if chance.random() < 0.02:
            ahead = chance.choice((0.0, chance.uniform(-1, 1) * chance.choice((60, 3600, MOST_SECONDS_OF_CLOCK))))
        return ahead

    time.time = lambda: real() + jumped()
    time.time_ns = lambda: real_ns() + int(jumped() * 1e9)


def _patch(points: Points, config: PipelineConfig, pause: float) -> None:
    """Install points at deletions, renames and within uploads, of which each half waits for `pause` s."""
    assert config.node is not None
    here = {config.node.cdc_raw, config.node.spill}
    unlink, rename, chunks = Path.unlink, os.rename, local.chunks

    def kind(path: Path) -> str:
        return "idx" if path.name.endswith(".idx") else "log"

    def pointed_unlink(path: Path, missing_ok: bool = False) -> None:
        if path.parent not in here:
            unlink(path, missing_ok)
            return
        points.pass_(f"before deletion of {kind(path)}")
        unlink(path, missing_ok)
        points.pass_(f"after deletion of {kind(path)}")

    def pointed_rename(source: Any, target: Any, **more: Any) -> None:
        if not isinstance(source, Path) or source.parent not in here:
            rename(source, target, **more)
            return
        points.pass_(f"before rename of {kind(source)}")
        rename(source, target, **more)
        points.pass_(f"after rename of {kind(source)}")

    def halves(source: BinaryIO) -> Iterator[bytes]:
        for chunk in chunks(source):
            time.sleep(pause)
            yield chunk[: len(chunk) // 2]
            points.pass_("in the middle of put")
            time.sleep(pause)
            yield chunk[len(chunk) // 2 :]

    Path.unlink = pointed_unlink  # type: ignore[method-assign]
    os.rename = pointed_rename
    local.chunks = halves
