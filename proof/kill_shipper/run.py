"""The run: a writing node, shippers that are killed, a pipeline that archives; at the end the rest is shipped
and counted.
"""

from __future__ import annotations

import os
import random
import signal
import time
import traceback
from collections import Counter
from collections.abc import Collection
from dataclasses import dataclass, field
from pathlib import Path

from proof.kill_shipper import check, shipper
from proof.kill_shipper.node import Node
from proof.kill_shipper.shipper import CLOCK, EVENTS, MOST_SECONDS_OF_CLOCK, POINTS
from proof.recording.recording import Recording
from shippers.agent import Mode
from writetime.cassandra.commitlog.segment import scan
from writetime.config.pipeline import PipelineConfig
from writetime.storage.layout import SegmentRef

SPACE = 400_000
MAX_SECONDS = 3.0
MAX_RANDOM_SECONDS = 0.6
STEPS_BEFORE = 25
STEP_SECONDS = 0.03
SHARE_OF_EVENTS = 0.2
LAST_ROUNDS = 8


@dataclass
class Result:
    """The result of a run. `points`: how often the shipper was killed at each; "at random" for the others. `events`: how many
    shippers had each of `shipper.EVENTS`; the node's clock jumped with theirs."""

    segments: int = 0
    bytes: int = 0
    crashes: int = 0
    orphans: int = 0
    archived: int = 0
    put_aside: int = 0
    wrong_objects: int = 0
    conflicts: int = 0
    again: int = 0
    parts: int = 0
    points: Counter[str] = field(default_factory=Counter)
    events: Counter[str] = field(default_factory=Counter)
    found: check.Found = field(default_factory=check.Found)

    @property
    def kills(self) -> int:
        return self.points.total()


class Run:
    """See the module's docstring. Everything is under `folder`; except for the times of random kills it
    depends on the seed.
    """

    def __init__(self, folder: Path, seed: int, rule: str | None = None) -> None:
        self.folder, self.seed, self.rule = folder, seed, rule
        self.chance = random.Random(seed)
        folder.mkdir(parents=True)
        self.node = Node(folder, mutations(folder / "recording"), random.Random(seed + 1))
        self.config: PipelineConfig = shipper.settings(folder, SPACE)
        assert self.config.node is not None
        self.spill = self.config.node.spill
        self.outage = folder / "outage"
        self.bucket = check.Bucket(folder / "bucket", self.node, folder / "gone")
        self.result = Result()
        self._aside: set[str] = set()

    def run(self, kills: int, *, stop_at_first: bool = False) -> Result:
        for number in range(kills):
            self._run_and_kill(number)
            check.between(self.node, self.spill, self.bucket, self.result.found)
            if stop_at_first and self.result.found.all:
                return self._counted()
            self._archive_some()
        self._finish()
        check.at_the_end(self.node, self.spill, self.bucket, self.result.found)
        return self._counted()

    def _run_and_kill(self, number: int) -> None:
        """Half of the shippers are killed at a named point, in turn; the others at a random time."""
        point = POINTS[number // 2 % len(POINTS)] if number % 2 == 0 else None
        for _ in range(STEPS_BEFORE):
            self.node.step()
        if point is not None and "rename" in point:
            self._fill()
        elif point is None and self.chance.random() < 0.2:
            self.outage.touch()
        events = [event for event in EVENTS if self.chance.random() < SHARE_OF_EVENTS]
        self.result.events.update(events)
        self.node.ahead = self.chance.uniform(-1, 1) * MOST_SECONDS_OF_CLOCK if CLOCK in events else 0.0
        pid = self._start(number, point, at=self.chance.randint(0, 2), events=events)
        died = self._live(pid, MAX_SECONDS if point else self.chance.uniform(0.0, MAX_RANDOM_SECONDS))
        self.outage.unlink(missing_ok=True)
        self.result.points[point if point and died else "at random"] += 1

    def _fill(self) -> None:
        """Fill the node's space while the store is down."""
        self.outage.touch()
        while sum(path.stat().st_size for path in self.node.cdc_raw.glob("*.log")) < 2 * SPACE:
            self.node.step()

    def _start(
        self, number: int, point: str | None, at: int, *, calm: bool = False, mode: Mode = Mode.SERVICE, events: Collection[str] = ()
    ) -> int:
        pid = os.fork()
        if pid:
            return pid
        code = 70
        try:
            self.node.close_in_child()
            rule = None if calm else self.rule
            seed = self.seed * 100_003 + number
            code = shipper.main(self.config, self.folder, seed, point, at, rule, calm=calm, mode=mode, events=events)
        except BaseException:  # noqa: BLE001 - whatever it is, the parent has to hear of it by the exit code
            traceback.print_exc()
        finally:
            os._exit(code)

    def _live(self, pid: int, seconds: float) -> bool:
        """Run the shipper next to the node; whether it has killed itself in time. Any other exit is a
        defect."""
        deadline = time.monotonic() + seconds
        while True:
            ended, status = os.waitpid(pid, os.WNOHANG)
            if ended:
                break
            if time.monotonic() >= deadline:
                os.kill(pid, signal.SIGKILL)
                os.waitpid(pid, 0)
                return False
            self.node.step()
            if self.chance.random() < 0.05:
                self._archive_some()
            time.sleep(STEP_SECONDS)
        if not os.WIFSIGNALED(status):
            self.result.found.stuck.append(f"the shipper ended by itself with code {os.waitstatus_to_exitcode(status)}: see shipper.log")
            return False
        return True

    def _archive_some(self) -> None:
        """Archive some segments, as the pipeline does while a shipper runs."""
        incoming = sorted(self.bucket.look())
        for number in self.chance.sample(incoming, len(incoming) // 3):
            self.result.archived += self.bucket.archive(number)
        self._aside |= {path.name for path in self.spill.glob("*.log")} if self.spill.is_dir() else set()

    def _finish(self) -> None:
        """Stop the node, ship with a working store, resolve rejected segments as an operator does; nothing
        may be left.
        """
        self.node.stop()
        for number in range(LAST_ROUNDS):
            code = self._wait(self._start(number, None, 0, calm=True, mode=Mode.ONCE))
            if code == 0:
                break
            self._settle()
        if self._wait(self._start(0, None, 0, calm=True, mode=Mode.DRAIN)) != 0:
            self.result.found.stuck.append("the drain failed: see shipper.log")

    def _settle(self) -> None:
        """Resolve segments that cannot be shipped, as an operator does: delete objects that have only other
        bytes.
        """
        for number, infos in self.bucket.look().items():
            here = any((folder / f"CommitLog-7-{number}.log").exists() for folder in (self.node.cdc_raw, self.spill))
            if here and not any(self.bucket.is_good(number, info) for info in infos):
                for info in infos:
                    self.bucket.store.delete(info.name)
                    self.result.wrong_objects += 1

    @staticmethod
    def _wait(pid: int) -> int:
        return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])

    def _counted(self) -> Result:
        result, node = self.result, self.node
        result.segments, result.crashes, result.orphans = len(node.written), node.crashes, node.orphans
        result.put_aside, result.parts, result.again = len(self._aside), self.bucket.parts, self.bucket.again
        found = [info.name for infos in self.bucket.look().values() for info in infos]
        result.conflicts = sum(SegmentRef.from_conflict(name) is not None for name in found)
        result.bytes = sum(len(written.data) for written in node.written.values())
        return result


def mutations(folder: Path) -> list[bytes]:
    """Bodies of frames that a real cluster wrote."""
    found: list[bytes] = []
    for raw in Recording.open().stage(folder).values():
        for path in sorted(raw.glob("*.log")):
            scanned = scan(path.read_bytes(), name=path.name, engine="python")
            found += [scanned.body(frame) for frame in scanned.frames[:500]]
    return [body for body in found if len(body) < 20_000]
