"""The fences, one of which is left out at a time: some schedule has to notice.

Strategy: a rule either replaces a function of the product, or lets the store forget a condition of writes to some objects.
Knows where the product keeps its fences, and nothing of schedules."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import Any, Final
from unittest import mock

from proof.interleavings.jobs import SteppingStore
from spark_jobs import publish, rebuild
from spark_jobs.sinks import kafka, voids
from spark_jobs.sinks.iceberg import Fence, Warehouse
from writetime.pipeline import planner, void
from writetime.pipeline.documents import Sealed
from writetime.storage import segment_object
from writetime.storage.lease import Lease


@dataclass(frozen=True)
class Rule:
    """`what` is left out. `by`: the scenarios that have to notice, any if none; `unconditional`: objects whose writes have no
    condition; `instead`: by object and name, what stands in."""

    what: str
    by: Sequence[str] = ()
    unconditional: str | None = None
    instead: tuple[tuple[Any, str, Any], ...] = ()


def _nothing(*_: Any, **__: Any) -> None:
    pass


def _never_done(warehouse: Warehouse, held: Any, *_: Any, **__: Any) -> tuple[int | None, bool]:
    held.refresh()
    return held.snapshot, False


RULES: Final = {
    "own-chain": Rule(
        "a driver commits on top of later batches, whatever the table holds",
        by=("restored-bucket",),
        instead=(
            (Warehouse, "_expect_own_chain", _nothing),
            (Warehouse, "_expect_no_later_chain", _nothing),
            (Warehouse, "_look_at", _never_done),
            (Fence, "check", _nothing),
        ),
    ),
    "take-over": Rule("the rows of an earlier chain stay", by=("rebuild-publish",), instead=((Warehouse, "_succeeds", lambda *_: False),)),
    "manifest": Rule("a manifest is written over", by=("two-ingests", "late-ingest"), unconditional=r"batches/.*/manifest\.json"),
    "seal": Rule("a seal is written over", by=("void", "session-void"), unconditional=r"batches/.*/sealed\.json"),
    "schema": Rule("a batch's schema is written over", by=("late-ingest",), unconditional=r"batches/.*/schema\.json"),
    "absent": Rule("each run of a batch reads what it finds", by=("late-ingest", "two-ingests"), unconditional=r"batches/.*/absent\.json"),
    "config": Rule("each run of a batch uses its own configuration", by=("late-ingest", "two-ingests"), unconditional=r"batches/.*/config"),
    "verdicts": Rule("each run judges tables by itself", by=("late-ingest", "two-ingests"), unconditional=r"batches/.*/verdicts"),
    "local": Rule("what nodes said is written over", by=("late-ingest", "two-ingests"), unconditional=r"batches/.*/local"),
    "conflicts": Rule("a conflict and its decision are written over", by=("conflict",), unconditional=r"(conflicts|rejected)/"),
    "erasures": Rule("what an erasure notes is written over", by=("two-erases", "session-erase"), unconditional=r"erasures/"),
    "revoked": Rule("a late run erases for a batch that was voided", by=("erase-rebuild",), instead=((void.erasures, "revoke", _nothing),)),
    "left": Rule(
        "a batch reads no segment from which a key was erased since it was planned",
        by=("erase-rebuild",),
        instead=((segment_object, "_left_of", _nothing),),
    ),
    "session": Rule("a session writes over its successor's state", by=("two-sessions", "session-stop"), unconditional=r"sessions/.*/state"),
    "incoming": Rule("a shipper writes over a segment", by=("conflict",), unconditional=r"cdc/"),
    "lease": Rule(
        "leases are taken and renewed without a condition",
        by=("leases",),
        unconditional=r"(leases/|.*/archiver|.*/lease)",
    ),
    "state": Rule(
        "shards are written without their lease",
        by=("leases",),
        instead=((Lease, "check", _nothing), (Lease, "finish", _nothing)),
    ),
    "archived-first": Rule(
        "a batch is planned while the last one is not archived",
        by=("two-ingests", "session-ingest", "late-ingest"),
        instead=((planner, "_expect_archived", _nothing),),
    ),
    "settled-first": Rule(
        "batches are planned during a rebuild", by=("session-rebuild",), instead=((planner, "expect_settled", _nothing),)
    ),
    "paused-publisher": Rule(
        "events are published during a rebuild", by=("rebuild-publish",), instead=((publish.chains, "unfinished", _nothing),)
    ),
    "one-transactional-id": Rule(
        "publishers do not fence each other",
        by=("two-publishers",),
        instead=((kafka.Publisher, "_transactional_id", lambda self, publisher: f"{id(self)}.{publisher}"),),
    ),
    "progress-first": Rule(
        "a publisher relies on the recorded progress", by=("two-publishers",), instead=((kafka, "_beyond", lambda rows, *_: iter(rows)),)
    ),
    "take-back": Rule(
        "commits of voided batches stay",
        by=("void", "session-void"),
        instead=((voids, "take_back", _nothing), (voids, "expect_settled", _nothing)),
    ),
    "settled-tables": Rule(
        "rows of a voided batch are not looked for before the seal",
        by=("late-void",),
        instead=((voids, "expect_settled", _nothing), (Fence, "check", _nothing)),
    ),
    "late-rejections": Rule(
        "rows of a table stay that another run of their batch has rejected",
        by=("late-rejection",),
        instead=((Sealed, "with_late_rejections", lambda *_: {}),),
    ),
    "current-rebuild": Rule(
        "a late driver of a rebuild goes on", by=("rebuild-again", "two-rebuilds"), instead=((rebuild.Current, "check", _nothing),)
    ),
    "chains": Rule(
        "who begins and ends a rebuild writes over what is there", by=("two-rebuilds", "session-rebuild"), unconditional=r"chains/"
    ),
    "published": Rule(
        "a publisher writes over what another one has published", by=("session-again", "session-publish"), unconditional=r"published/"
    ),
    "complete": Rule("a late driver says an earlier time to be complete", by=("two-sessions", "late-ingest"), unconditional=r"complete/"),
    "ledger": Rule("entries of segments are written over", by=("late-ingest", "two-ingests"), unconditional=r"ledger/"),
    "archive": Rule("the archive is written over", by=("erase-pack", "two-packs", "late-ingest"), unconditional=r"cdc_archive/"),
}


@contextmanager
def applied(rule: str | None) -> Iterator[None]:
    with ExitStack() as stack:
        if rule is not None:
            found = RULES[rule]
            for of, name, value in found.instead:
                stack.enter_context(mock.patch.object(of, name, value))
            stack.enter_context(mock.patch.object(SteppingStore, "unconditional", found.unconditional and re.compile(found.unconditional)))
        yield
