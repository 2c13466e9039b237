"""Rules of exactly once, each of which can be broken, in the driver and in workers alike: then a run has to tell.

Each rule says with which kills, or with what beside, its absence shows.
"""

from __future__ import annotations

import os
import uuid
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final

from proof.kill_batch import points

RULE: Final = "WRITETIME_SABOTAGE"
BETWEEN: Final = "between progress and commit"


@dataclass(frozen=True)
class Rule:
    """`break_it` breaks it; `points`: kills after which that shows; `rivals`: two of a job at once show it;
    `edited`: a configuration does that is edited after the batch was begun; `voids`: batches do that are
    voided; `restores`: a `batches/` that is restored from a backup does. `pieces`: segments that each node's
    log has to be cut into, so that it can."""

    break_it: Callable[[], None]
    points: tuple[str, ...] = ()
    rivals: bool = False
    edited: bool = False
    voids: bool = False
    restores: bool = False
    pieces: int = 1


def install() -> None:
    """Break the rule that the environment names, if any."""
    if rule := os.environ.get(RULE):
        RULES[rule].break_it()


# --- publishing ------------------------------------------------------------------------------------------------------------------


def _progress_outside(*, early: bool) -> None:
    """How far it got is told by a producer of its own, before the events' transaction commits or after it."""
    from spark_jobs.sinks import kafka

    told: list[tuple[str, bytes, bytes, int]] = []
    real, plain = kafka._produce, kafka.Producer

    def produce(producer: Any, topic: str, key: Any, value: Any, delivered: Any, partition: int = kafka._BY_KEY, **options: Any) -> None:
        if topic.endswith(".__progress"):
            told.append((topic, bytes(key), bytes(value), partition))
        else:
            real(producer, topic, key, value, delivered, partition, **options)

    class Producer(plain):  # type: ignore[valid-type,misc]
        def __init__(self, options: dict[str, Any]) -> None:
            super().__init__(options)
            self._beside = plain({"bootstrap.servers": options["bootstrap.servers"]})

        def commit_transaction(self, *arguments: Any) -> None:
            steps = [self._tell, lambda: plain.commit_transaction(self, *arguments)]
            for step in steps if early else reversed(steps):
                step()
                points.passed(BETWEEN)

        def _tell(self) -> None:
            for topic, key, value, partition in told:
                self._beside.produce(topic, value=value, key=key, partition=partition)
            self._beside.flush(30)
            told.clear()

    kafka._produce = produce
    kafka.Producer = Producer  # type: ignore[misc]


def _progress_after() -> None:
    _progress_outside(early=False)


def _progress_before() -> None:
    _progress_outside(early=True)


def _no_progress() -> None:
    """Whatever was sent is sent again."""
    from spark_jobs.sinks import kafka

    kafka._read_progress = lambda *_, **__: ({}, None)


def _no_fence() -> None:
    """Nobody ends what another of the same name has begun, and nobody minds that it is open."""
    from spark_jobs.sinks import kafka

    kafka._expect_end = lambda *_: None
    kafka.Publisher._transactional_id = lambda self, publisher: f"{publisher}.{uuid.uuid4()}"  # type: ignore[method-assign]


# --- ingesting -------------------------------------------------------------------------------------------------------------------


def _append_changes() -> None:
    """What an earlier attempt has left of a batch stays."""
    from spark_jobs.sinks.iceberg import Warehouse

    real = Warehouse._overwrite

    def overwrite(self: Any, name: str, seen: Any, rows: Any, where: Any, properties: Any) -> None:
        if "__changes" in name:
            rows.writeTo(name).append()
        else:
            real(self, name, seen, rows, where, properties)

    Warehouse._overwrite = overwrite  # type: ignore[method-assign]


def _seal_first() -> None:
    """A batch counts as done before its rows are in."""
    from spark_jobs import ingest

    real = ingest.Batch._commit_state

    def commit_state(self: Any, folded: Any, captured: Any) -> Any:
        state = real(self, folded, captured)
        self._seal(state)
        return state

    ingest.Batch._commit_state = commit_state  # type: ignore[method-assign]


def _newest_state() -> None:
    """A batch starts from what is newest, not from what the batch before has left."""
    import lance

    from spark_jobs.state import shards

    shards._at = lambda uri, _: lance.dataset(uri)


def _no_batch_in_current() -> None:
    """Nobody looks whether a batch's rows are in the current rows already, and the snapshot that it saw does not count."""
    from spark_jobs.sinks import iceberg

    def never(*_: Any) -> bool:
        return True

    iceberg._has_batch = never


def _present_configuration() -> None:
    """Each run of a batch goes by the configuration as it is then."""
    from writetime.pipeline import pinned

    pinned.configuration = lambda _, __, config: config


def _void_keeps_rows() -> None:
    """What a voided batch has committed stays where it is."""
    from spark_jobs.sinks import voids

    voids._lately = lambda *_: {}


def _rebuild_sent() -> None:
    """What a rebuild makes again is sent like all else."""
    from spark_jobs import rebuild
    from writetime.pipeline import chains

    chains.begins_after = lambda *_: 0
    rebuild.write_published = lambda *_: None


def _numbers_of_the_bucket() -> None:
    """A new chain begins above what the bucket has, whatever warehouse and Kafka have seen."""
    from spark_jobs import rebuild
    from writetime.pipeline import rebuild as planning
    from writetime.pipeline.planner import history

    planning.seen = lambda store, cluster, _: history(store, cluster).last
    rebuild._seen_outside = lambda *_: [0]


RULES: Final[dict[str, Rule]] = {
    "progress-after-the-transaction": Rule(_progress_after, points=(BETWEEN,)),
    "progress-before-the-transaction": Rule(_progress_before, points=(BETWEEN,)),
    "no-progress": Rule(_no_progress, points=("before note",)),
    "no-fence": Rule(_no_fence, rivals=True),
    "append-changes": Rule(_append_changes, points=("before step commit_state",)),
    "seal-first": Rule(_seal_first, points=("before step commit_current",)),
    # A first batch starts from nothing, whatever lies there.
    "newest-state": Rule(_newest_state, points=("before step commit_current",), pieces=3),
    "present-configuration": Rule(_present_configuration, edited=True),
    "void-keeps-rows": Rule(_void_keeps_rows, voids=True),
    "rebuild-sent": Rule(_rebuild_sent, restores=True, pieces=3),
    "numbers-of-the-bucket": Rule(_numbers_of_the_bucket, restores=True, pieces=3),
    "never-current": Rule(_no_batch_in_current, points=("before step commit_current",)),
}
