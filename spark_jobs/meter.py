"""What a batch costs: CPU and requests to the store, of each stage, and of each table where a stage works for one.

Strategy: a stage is a function for `mapInArrow`, which runs in a Python worker that runs nothing else meanwhile.
So the worker's CPU time from the first record batch to the last is the stage's, with what Arrow, Lance and compiled
code use. Tasks report it by an accumulator of Spark; attempts that are run again count again, as they cost. The
driver's process, and its JVM, are stages of their own. In local mode that JVM runs the tasks too; on a cluster the
JVMs of executors are not counted here: Spark's own metrics have them. Does not know batches."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final

from pyspark import SparkContext
from pyspark.accumulators import AccumulatorParam

from spark_jobs.stages.scan import Batches
from writetime.pipeline.documents import StageCost, sum_of_costs
from writetime.storage import request_count

Made = Callable[[Batches], Batches]
Found = dict[tuple[str, str], tuple[float, int]]
"""CPU seconds and requests, by stage and table."""
DRIVER: Final = "driver"
JVM: Final = "jvm"
MAINTENANCE: Final = "maintenance"
PUBLISH: Final = "publish"


class _Sum(AccumulatorParam[Found]):
    """Adds up by stage and table."""

    def zero(self, value: Found) -> Found:
        return {}

    def addInPlace(self, value1: Found, value2: Found) -> Found:  # noqa: N802 - Spark's name
        for key, (seconds, requests) in value2.items():
            before = value1.get(key, (0.0, 0))
            value1[key] = (before[0] + seconds, before[1] + requests)
        return value1


@dataclass(frozen=True, slots=True)
class Used:
    """CPU seconds of this process and its requests so far."""

    seconds: float
    requests: int

    @classmethod
    def now(cls) -> Used:
        return cls(time.process_time(), request_count.sent())

    def since(self, before: Used) -> tuple[float, int]:
        return self.seconds - before.seconds, self.requests - before.requests


class Meter:
    """Meters one run. `whole`: the process was started for it, so that its start counts. `driver`, `jvm`: the stages
    of the driver's process and of its JVM."""

    def __init__(self, context: SparkContext, *, whole: bool, driver: str = DRIVER, jvm: str = JVM) -> None:
        self._stages = driver, jvm
        self._found: Any = context.accumulator({}, _Sum())
        self._jvm: Any = context._jvm
        self._began = Used(0.0, 0) if whole else Used.now()
        self._jvm_began = 0.0 if whole else self._jvm_seconds()
        self._noted: list[StageCost] = []

    def stage(self, name: str, table: str = "") -> Callable[[Made], Made]:
        """A decorator of a function for `mapInArrow`: what its tasks use is the stage's, and the table's, if the
        stage works for that table only."""
        found, key = self._found, (name, table)

        def metered(made: Made) -> Made:
            def run(batches: Batches) -> Batches:
                before = Used.now()
                try:
                    yield from made(batches)
                finally:
                    found.add({key: Used.now().since(before)})

            return run

        return metered

    def share(self, name: str, table: str) -> Callable[[Made], Made]:
        """A decorator of a function that a metered one of that stage, which works for several tables, takes batches
        from: what it uses to make them is the table's."""
        found, key = self._found, (name, table)

        def metered(made: Made) -> Made:
            def run(batches: Batches) -> Batches:
                source = iter(made(batches))
                while True:
                    before = Used.now()
                    batch = next(source, None)
                    seconds, requests = Used.now().since(before)
                    found.add({key: (seconds, requests), (name, ""): (-seconds, -requests)})
                    if batch is None:
                        return
                    yield batch

            return run

        return metered

    def note(self, cost: StageCost) -> None:
        """Add what the driver knows of a stage: objects and their bytes."""
        self._noted.append(cost)

    def costs(self, *, process: bool = True) -> list[StageCost]:
        """What was used and noted so far, by stage and table; `process`: with the driver's process and its JVM."""
        driver, jvm = self._stages
        found: list[tuple[str, str, float, int]] = [(*key, *used) for key, used in self._found.value.items()]
        if process:
            found += [(driver, "", *Used.now().since(self._began)), (jvm, "", self._jvm_seconds() - self._jvm_began, 0)]
        used = (
            StageCost(stage=stage, table=table, cpu_seconds=round(seconds, 3), requests=requests)
            for stage, table, seconds, requests in found
        )
        return sum_of_costs([*used, *self._noted])

    def _jvm_seconds(self) -> float:
        bean = self._jvm.java.lang.management.ManagementFactory.getOperatingSystemMXBean()
        # The bean's class is internal to the JDK; its interface is not.
        kind = self._jvm.java.lang.Class.forName("com.sun.management.OperatingSystemMXBean")
        return int(kind.getMethod("getProcessCpuTime", None).invoke(bean, None)) / 1e9
