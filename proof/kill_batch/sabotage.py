"""Rules of exactly-once processing, each of which can be broken in the driver and in workers: a run must
detect that.

Each rule names the kills or other events with which its absence is detected.
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
    """`break_it` breaks the rule. Detected by: `points` (kills there), `late` (a publisher is stopped there,
    and resumed when another one has finished), `edited` (the configuration is edited after the batch was
    begun), `voids` (batches are voided), `restores` (`batches/` is restored from a backup), `switches`
    (`kafka.partition_by` is switched half-way). `segments`: how many segments each node's log must be split into
    for that.
    """

    break_it: Callable[[], None]
    points: tuple[str, ...] = ()
    late: str = ""
    edited: bool = False
    voids: bool = False
    restores: bool = False
    switches: bool = False
    segments: int = 1


def install() -> None:
    """Break the rule named in the environment, if any."""
    if rule := os.environ.get(RULE):
        RULES[rule].break_it()


# --- publishing


def _progress_outside(*, early: bool) -> None:
    """A separate producer sends the progress, before or after the events' transaction commits."""
    from spark_jobs.sinks import kafka

    pending: list[tuple[str, bytes, bytes, int]] = []
    real, plain = kafka._produce, kafka.Producer

    def produce(
        producer: Any, topic: str, key: Any, value: Any, delivered: Any, partition: int = kafka._BY_KEY, *rest: Any, **options: Any
    ) -> None:
        # The owner of the topics stays where it is: its transaction is not about events.
        if topic.endswith(".__progress") and bytes(key) != kafka._OWNER_KEY:
            pending.append((topic, bytes(key), bytes(value), partition))
        else:
            real(producer, topic, key, value, delivered, partition, *rest, **options)

    class Producer(plain):  # type: ignore[valid-type,misc]
        def __init__(self, options: dict[str, Any]) -> None:
            super().__init__(options)
            self._separate = plain({"bootstrap.servers": options["bootstrap.servers"]})

        def commit_transaction(self, *arguments: Any) -> None:
            steps = [self._send_progress, lambda: plain.commit_transaction(self, *arguments)]
            sends_events = bool(pending)
            for step in steps if early else reversed(steps):
                step()
                if sends_events:
                    points.passed(BETWEEN)

        def _send_progress(self) -> None:
            for topic, key, value, partition in pending:
                self._separate.produce(topic, value=value, key=key, partition=partition)
            self._separate.flush(30)
            pending.clear()

    kafka._produce = produce
    kafka.Producer = Producer  # type: ignore[misc]


def _progress_after() -> None:
    _progress_outside(early=False)


def _progress_before() -> None:
    _progress_outside(early=True)


def _no_progress() -> None:
    """Progress is ignored: everything is sent again."""
    from spark_jobs.sinks import kafka

    kafka._read_progress = lambda *_, **__: ({}, None)


def _no_fence() -> None:
    """Open transactions of other publishers are neither ended nor awaited."""
    from spark_jobs.sinks import kafka

    kafka._expect_end = lambda *_: None
    kafka.Publisher._transactional_id = lambda self, publisher: f"{publisher}.{uuid.uuid4()}"  # type: ignore[method-assign]


# --- ingesting


def _append_changes() -> None:
    """Rows of an earlier attempt of the batch are not replaced."""
    from spark_jobs.sinks import iceberg

    iceberg._earlier_attempt = lambda *_: "nothing"


def _seal_first() -> None:
    """The batch is sealed before its rows are committed."""
    from spark_jobs import ingest

    real = ingest.Batch._commit_state

    def commit_state(self: Any, folded: Any, captured: Any) -> Any:
        state = real(self, folded, captured)
        self._seal(state)
        return state

    ingest.Batch._commit_state = commit_state  # type: ignore[method-assign]


def _newest_state() -> None:
    """A batch reads the newest state, not the state of the previous batch."""
    from spark_jobs.state import shards

    shards._at = lambda uri, _: shards._open(uri)


def _no_batch_in_current() -> None:
    """Whether a batch's rows are already in the current table is not checked, nor the snapshot that it
    read."""
    from spark_jobs.sinks import iceberg

    def never(*_: Any) -> bool:
        return True

    iceberg._has_batch = never


def _present_configuration() -> None:
    """Each run of a batch uses the present configuration."""
    from writetime.pipeline import pinned

    pinned.configuration = lambda _, __, config: config


def _void_keeps_rows() -> None:
    """The commits of a voided batch are not reverted."""
    from spark_jobs.sinks import voids

    voids._lately = lambda *_: {}


def _rebuild_sent() -> None:
    """The events of a rebuild are published."""
    from spark_jobs import rebuild
    from writetime.pipeline import chains

    chains.begins_after = lambda *_: 0
    rebuild.write_published = lambda *_, **__: None


def _numbers_of_the_bucket() -> None:
    """A new chain continues the bucket's numbers, regardless of warehouse and Kafka."""
    from spark_jobs import rebuild
    from writetime.pipeline import rebuild as planning
    from writetime.pipeline.planner import history

    planning.seen = lambda store, cluster, _: history(store, cluster).last
    rebuild._seen_outside = lambda *_: [0]


def _as_merged(folded: Any) -> Any:
    return folded


def _row_by_row() -> None:
    """Events of a partition are in the order of its rows."""
    from spark_jobs.stages import row_packs

    row_packs.by_writetime = _as_merged


def _placed_by_row() -> None:
    """The record's key decides its partition of the topic."""
    from spark_jobs.sinks import kafka

    kafka.murmur2 = lambda *_: kafka._BY_KEY


def _unmarked() -> None:
    """Topics are not told that they are partitioned otherwise."""
    from spark_jobs.sinks import kafka

    kafka.Publisher.mark_switch = lambda *_: {}  # type: ignore[method-assign]


RULES: Final[dict[str, Rule]] = {
    "progress-after-the-transaction": Rule(_progress_after, points=(BETWEEN,)),
    "progress-before-the-transaction": Rule(_progress_before, points=(BETWEEN,)),
    "no-progress": Rule(_no_progress, points=("before note",)),
    "no-fence": Rule(_no_fence, late="after progress"),
    "append-changes": Rule(_append_changes, points=("before step commit_state",)),
    "seal-first": Rule(_seal_first, points=("before step commit_current",)),
    # A first batch always starts with empty state.
    "newest-state": Rule(_newest_state, points=("before step commit_current",), segments=3),
    "present-configuration": Rule(_present_configuration, edited=True),
    "void-keeps-rows": Rule(_void_keeps_rows, voids=True),
    "row-by-row": Rule(_row_by_row, switches=True, segments=2),
    "placed-by-row": Rule(_placed_by_row, switches=True, segments=2),
    "unmarked": Rule(_unmarked, switches=True, segments=2),
    "rebuild-sent": Rule(_rebuild_sent, restores=True, segments=3),
    "numbers-of-the-bucket": Rule(_numbers_of_the_bucket, restores=True, segments=3),
    "never-current": Rule(_no_batch_in_current, points=("before step commit_current",)),
}
