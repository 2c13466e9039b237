"""Replays a recorded run: the same objects in the same batches, compared with the same answers. Needs no
cluster.
"""

from __future__ import annotations

from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from proof.ring import check
from proof.ring.check import Mismatch
from proof.ring.live import Outcome, left_behind, replay_changes_nothing, show
from proof.ring.pipeline import Kept, Pipeline, give
from proof.ring.topology import ONE_DATACENTER
from tools.console import say
from writetime.errors import ObjectNotFound, WritetimeError
from writetime.pipeline.documents import Sealed


def replay(kept: Kept, folder: Path, *, rule: str | None = None, store: str = "folder") -> Outcome:
    """Repeat all batches of the run, with or without a sabotage, in a store of `in_s3.STORES`. A batch that fails is a
    mismatch and ends the replay.
    """
    outcome = Outcome()
    shipped = kept.about().get("shipped", ONE_DATACENTER.shipped)
    with Pipeline.create(folder, rule=rule, datacenters=shipped, store=store) as pipeline:
        try:
            steps = list(kept.steps())
            for step in steps:
                _do(step, kept, pipeline, outcome)
            # In an interrupted run, the result of the last batches was never compared.
            if outcome.answers and "quiet" in steps[-1]:
                outcome.mismatches += replay_changes_nothing(pipeline, outcome.answers[-1])
        except Exception as error:
            if rule is None and not isinstance(error, WritetimeError):
                raise
            # Under a sabotage the product may fail anywhere, inside Spark too: that counts as detected.
            outcome.mismatches.append(Mismatch("failure", "a batch", "*", column=type(error).__name__, ours=_first_line(error)))
        outcome.mismatches += check.check_rows_seen(outcome.answers, "end")
        outcome.events = sum(sealed.events for sealed in pipeline.sealed)
        outcome.batches = len(pipeline.sealed)
        outcome.segments = sum(len(sealed.segments) for sealed in pipeline.sealed)
    return outcome


def _do(step: dict[str, Any], kept: Kept, pipeline: Pipeline, outcome: Outcome) -> None:
    """Repeat one step of the run."""
    ((what, about),) = step.items()
    match what:
        case "batch":
            _batch(about, kept, pipeline, outcome)
        case "quiet":
            _quiet(about, kept, pipeline, outcome)
        case "damaged":
            pipeline.expect_damaged(about)
        case "let in":
            pipeline.repair(about["name"], kept.read(about["file"]), about["metadata"])
        case "release":
            pipeline.release(about)
        case "gone":
            # An object that no batch has read was never put.
            with suppress(ObjectNotFound):
                pipeline.store.delete(about)
        case "purge":
            pipeline.purge()
        case _:
            raise ValueError(f"unknown step: {what}")


def _batch(step: dict[str, object], kept: Kept, pipeline: Pipeline, outcome: Outcome) -> None:
    objects = step["objects"]
    assert isinstance(objects, list)
    list(give(pipeline.store, kept, objects))
    now = step["now"]
    assert isinstance(now, int)
    sealed = pipeline.batch(now=datetime.fromtimestamp(now, UTC))
    _judge(sealed, pipeline, outcome)


def _judge(sealed: Sealed | None, pipeline: Pipeline, outcome: Outcome) -> None:
    if sealed is not None:
        where = f"batch {sealed.number}"
        outcome.mismatches += check.check_batch(sealed, pipeline.updates(sealed), where, pipeline.damaged)


def _quiet(step: dict[str, str], kept: Kept, pipeline: Pipeline, outcome: Outcome) -> None:
    found = kept.answer(step["answer"])
    # A run in which a batch failed did not execute the last ones.
    while (sealed := pipeline.batch()) is not None:
        _judge(sealed, pipeline, outcome)
    outcome.answers.append(found)
    mismatches = [*check.check(found, pipeline.lake, step["where"]), *left_behind(pipeline, step["where"])]
    mismatches += outcome.look_back(pipeline, found, step["where"])
    outcome.mismatches += mismatches
    say(f"{step['where']}: {sum(len(table.rows) for table in found.tables)} rows, {len(mismatches)} mismatches")
    show(mismatches)


def _first_line(error: Exception) -> str:
    return next((line for line in reversed(str(error).splitlines()) if line.strip()), "")[:300]
