"""The archive job: pack segments, delete expired ones, remove old ledger entries.
`spark-submit pack_archive.py --config FILE`

Strategy: this is not a batch, and no batch waits for it: `writetime.pipeline.archive_packing` explains why it
may run at the same time. Expired objects are deleted first, so that they are not packed. Spark workers pack
some segments per task, in rounds, the oldest first; a few threads of the driver delete objects. The time
limit is checked between rounds, and the next run does the rest. Each round records and logs its progress,
with bytes before and after (`writetime status` shows it). An object that cannot be packed or deleted is
logged and left unchanged, and does not stop the others.

Exit code: 0 done, as far as the time limit allowed; 1 some objects failed, see the log.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from functools import partial
from itertools import chain, islice
from typing import TypeVar

import structlog
from pydantic import ValidationError

from spark_jobs.job_exit import reports_failure
from spark_jobs.session import spark_session
from spark_jobs.sinks.avro_files import files_up_to
from writetime.config.archive import REPORTS_DAYS
from writetime.config.pipeline import PipelineConfig, load
from writetime.errors import WritetimeError
from writetime.pipeline import erasures, retention
from writetime.pipeline.archive_packing import (
    LATE,
    Done,
    Packed,
    Shelved,
    let_go,
    pack,
    read_shelved,
    to_let_go,
    to_pack,
)
from writetime.pipeline.job_result import leave
from writetime.pipeline.planner import history, store_clock
from writetime.pipeline.publish_progress import read_published
from writetime.pipeline.void import voided_by_now
from writetime.storage import layout, open_store
from writetime.storage.store import Listed, ObjectInfo, Store

log = structlog.get_logger()

PackAll = Callable[[Sequence[str]], Iterable[Packed]]

_Object = TypeVar("_Object", ObjectInfo, Listed, ObjectInfo | Listed)
_PER_TASK = 8
"""Segments that a task packs: enough to be worth one, few enough to look at the clock in between."""
_ROUND = 512
"""Objects that are removed between two looks at the clock."""
_AT_ONCE = 8
_SECONDS = 3600
"""Of a run."""


@reports_failure("archive maintenance")
def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description="Pack the archive's segments, and let go what need not be kept.")
    parser.add_argument("--config", required=True, help="the pipeline's YAML")
    options = parser.parse_args(arguments)
    shelved = run(load(options.config))
    print(as_line(shelved))  # noqa: T201
    if shelved.last.failed:
        leave(f"{as_line(shelved)}\nWhat stays as it is, and why, is in the log; the next run tries again.", retriable=True)
    return 1 if shelved.last.failed else 0


def run(config: PipelineConfig) -> Shelved:
    """One run, for an hour at most; the next one goes on."""
    store = open_store(config.bucket)
    now = store_clock(store, config.cluster.name)
    over = time.monotonic() + _SECONDS
    with ExitStack() as stack:
        care = Care(config, store, now, lambda: time.monotonic() > over)
        return care.run(lambda: spread(config, stack))


def spread(config: PipelineConfig, stack: ExitStack) -> tuple[PackAll, int]:
    """A function that packs segments on Spark's workers, and how many it takes at once. Spark is stopped with
    the stack."""
    spark = spark_session(config, f"writetime pack_archive {config.pipeline}")
    stack.callback(spark.stop)
    context, pack_one = spark.sparkContext, packer(config)

    def pack_all(found: Sequence[str]) -> Iterable[Packed]:
        return context.parallelize(found, max(1, -(-len(found) // _PER_TASK))).map(pack_one).collect()

    return pack_all, 2 * _PER_TASK * context.defaultParallelism


def packer(config: PipelineConfig) -> Callable[[str], Packed]:
    """A function that packs one segment, on any machine."""
    url = config.bucket

    def pack_one(name: str) -> Packed:
        try:
            return pack(open_store(url), name)
        except (WritetimeError, OSError) as error:
            return Packed(name, 0, 0, str(error))

    return pack_one


@dataclass(slots=True)
class Care:
    """One run over a cluster's archive. `over` returns whether the time is up."""

    config: PipelineConfig
    store: Store
    now: datetime
    over: Callable[[], bool]
    before: Shelved | None = None
    upto: datetime | None = None
    done: Done = field(default_factory=Done)

    def run(self, packing: Callable[[], tuple[PackAll, int]]) -> Shelved:
        """Let go, prune, pack. `packing` is asked for when there is something to pack."""
        cluster, settings = self.config.cluster.name, self.config.archive
        self.before = read_shelved(self.store, cluster)
        self.upto = self.before.packed_upto if self.before else None
        past = history(self.store, cluster)
        sealed, finished = past.sealed, True
        if sealed is not None and sealed.kept_from is not None:
            found = to_let_go(self.store, cluster, datetime.fromtimestamp(sealed.kept_from, UTC))
            finished &= self._each("let_go", found, lambda info: let_go(self.store, info))
        if settings.keep_ledger_days is not None:
            entries = retention.entries(self.store, cluster, self._ago(settings.keep_ledger_days))
            finished &= self._each("ledger", entries, self._remove)
        if sealed is not None and settings.keep_batches_days is not None:
            documents = chain.from_iterable(
                retention.batches(self.store, cluster, sealed, self._ago(settings.keep_batches_days), published(self.config, self.store))
            )
            # In sequence: the manifest of a batch is deleted first.
            finished &= self._each("batches", documents, self._remove, threads=1)
        old = self._ago(REPORTS_DAYS)
        statuses = retention.statuses(self.store, cluster, self.now - retention.STATUSES)
        finished &= self._each("reports", chain(statuses, retention.reports(self.store, cluster, old)), self._remove)
        settled = retention.settled(self.store, cluster, old, voided_by_now(self.store, cluster, past))
        # In sequence: the note of a quarantine record is deleted last.
        finished &= self._each("quarantine", settled, self._remove, threads=1)
        if settings.keep_claims_days is not None and self.config.kafka is not None:
            claims = retention.claims(self.store, self.config.kafka.topic_prefix, self._ago(settings.keep_claims_days))
            finished &= self._each("claims", claims, self._remove)
        erasures.forget_requests(self.store, cluster, past.last - past.open)
        if settings.compress_after_days is not None:
            finished &= self._pack(self._ago(settings.compress_after_days), packing)
        return self._note(finished)

    def _ago(self, days: float) -> datetime:
        return self.now - timedelta(days=days)

    def _remove(self, info: ObjectInfo | Listed) -> int:
        return retention.remove(self.store, info)

    def _each(self, what: str, found: Iterator[_Object], do: Callable[[_Object], int], *, threads: int = _AT_ONCE) -> bool:
        """Apply `do` to each item while there is time; returns whether all were done. `do` returns the bytes
        that it freed."""
        with ThreadPoolExecutor(threads) as pool:
            while some := list(islice(found, _ROUND)):
                if self.over():
                    return False
                freed = [size for size in pool.map(partial(self._try, do), some) if size]
                work = getattr(self.done, what).plus(len(freed), sum(freed))
                self.done = self.done.model_copy(update={what: work})
                self._report(what)
        return True

    def _try(self, do: Callable[[_Object], int], info: _Object) -> int:
        try:
            return do(info)
        except (WritetimeError, ValidationError) as error:
            log.error("not removed", object=info.name, error=str(error))
            self.done = self.done.model_copy(update={"failed": self.done.failed + 1})
            return 0

    def _pack(self, before: datetime, packing: Callable[[], tuple[PackAll, int]]) -> bool:
        since = self.upto - LATE if self.upto else None
        found = to_pack(self.store, self.config.cluster.name, before, since)
        first = next(found, None)
        if first is None:
            self._packed_upto(layout.hour_of(before))
            return True
        pack_all, wanted = packing()
        waiting = chain([first], found)
        while some := list(islice(waiting, wanted)):
            self._packed_upto(layout.archive_hour(some[0]))
            if self.over():
                return False
            for came in pack_all(some):
                self._came(came)
            self._report("packed")
        self._packed_upto(layout.hour_of(before))
        return True

    def _packed_upto(self, hour: datetime | None) -> None:
        """The hour up to which everything is packed; late segments are in hours that were done before."""
        self.upto = max((each for each in (self.upto, hour) if each is not None), default=None)

    def _came(self, packed: Packed) -> None:
        if packed.trouble:
            log.error("segment not packed", segment=packed.name, error=packed.trouble)
            self.done = self.done.model_copy(update={"failed": self.done.failed + 1})
        else:
            self.done = self.done.model_copy(update={"packed": self.done.packed.plus(1, packed.before, packed.after)})

    def _report(self, what: str) -> None:
        work = getattr(self.done, what)
        log.info(f"archive: {what}", objects=work.objects, before=work.before, after=work.after)
        self._note(False)

    def _note(self, finished: bool) -> Shelved:
        ever = self.before.ever if self.before else Done()
        shelved = Shelved(at=self.now, packed_upto=self.upto, finished=finished, last=self.done, ever=ever.with_(self.done))
        self.store.put(layout.shelved(self.config.cluster.name), shelved.to_bytes())
        return shelved


def published(config: PipelineConfig, store: Store) -> int:
    """The last batch that all sinks have finished; 0 if a sink has not started."""
    sinks = []
    if config.kafka is not None:
        note = read_published(store, config.cluster.name)
        sinks.append(note.sent_by_all if note else 0)
    if config.files is not None:
        sinks.append(files_up_to(config.files))
    sealed = history(store, config.cluster.name).sealed
    return min(sinks, default=sealed.number if sealed else 0)


def as_line(shelved: Shelved) -> str:
    """The result of the run as one line of text."""
    last = shelved.last
    packed = f"{last.packed.objects} segments packed, {last.packed.before} -> {last.packed.after} bytes"
    pruned = f"{last.ledger.objects} ledger entries and {last.batches.objects} documents of batches removed"
    left = "" if shelved.finished else "; time was up, the next run goes on"
    failed = f"; {last.failed} objects failed, see the log" if last.failed else ""
    return f"{packed}; {last.let_go.objects} let go, {last.let_go.before} bytes; {pruned}{failed}{left}"


if __name__ == "__main__":
    sys.exit(main())
