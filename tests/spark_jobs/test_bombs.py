"""Segments that somebody has made up to cost much: each is one problem and one record, and all others go on.
Real Spark and Iceberg."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from uuid import UUID

import pytest

from tests.spark_jobs.synthetic import CLUSTER, START, Ring, insert
from tests.spark_jobs.test_quarantine_table import run
from writetime.cassandra.commitlog.encode import encode_segment
from writetime.cassandra.commitlog.segment import MOST_PROBLEMS, scan
from writetime.pipeline.archiver import mark_for_retry
from writetime.pipeline.quarantine import frame_ranges
from writetime.pipeline.segment_check import check_segment
from writetime.storage import layout

pytestmark = pytest.mark.thorough

MANY = 5 * MOST_PROBLEMS


def wrong_crcs(number: int, good: bytes) -> bytes:
    """A good frame in the middle of frames with wrong CRCs."""
    whole = bytearray(encode_segment(number, 7, [b"x" * 10] * MANY + [good] + [b"x" * 10] * MANY))
    for at, frame in enumerate(scan(bytes(whole)).frames):
        whole[frame.position - 1] ^= at != MANY
    return bytes(whole)


def no_mutations(number: int, good: bytes) -> bytes:
    """A good frame in the middle of frames that do not say whose they are."""
    return encode_segment(number, 7, [b"\0" * 10] * MANY + [good] + [b"\0" * 10] * MANY)


def of_many_tables(number: int, good: bytes) -> bytes:
    """Frames of more tables than any node has."""
    return encode_segment(number, 7, [good] + [b"\1" + UUID(int=at).bytes + b"\1k" for at in range(frame_ranges.MOST_TABLES)])


def half_packed(number: int, good: bytes) -> bytes:
    """A segment whose very many sections cannot be unpacked."""
    from tests.cassandra.commitlog.packed import pack

    packed = pack([b"x" * 30] * MANY, "LZ4Compressor", segment_id=number)
    whole = bytearray(packed.file)
    for start in packed.markers:
        whole[start + 12 : start + 16] = b"\xff" * 4
    assert good
    return bytes(whole)


BOMBS: list[tuple[Callable[[int, bytes], bytes], bool]] = [
    (wrong_crcs, True),
    (no_mutations, True),
    (of_many_tables, False),
    (half_packed, False),
]
"""With whether its good frame comes in all the same."""


def ref(number: int) -> layout.SegmentRef:
    return layout.SegmentRef(layout.NodeName(CLUSTER, "dc1", "a"), layout.SegmentName(number, 7))


def test_what_ingest_would_say_of_each(tmp_path: Path) -> None:
    """Without Spark: what a person is shown of a held segment is bounded too."""
    ring = Ring.create(tmp_path)
    for number, (bomb, _) in enumerate(BOMBS, 100):
        ring.store.put(ref(number).incoming, bomb(number, insert(number, 1, 2)))
        assert 1 <= len(check_segment(ring.store, CLUSTER, ref(number).incoming)) <= MOST_PROBLEMS + 2


@pytest.mark.spark
@pytest.mark.timeout(900)
def test_each_is_one_problem_and_all_others_go_on(tmp_path: Path) -> None:
    ring = Ring.create(tmp_path, "a")
    ring.write(insert(1, 1, 1, name=1))
    ring.finish_and_ship(10)
    wanted = {(1, 1)}
    for number, (bomb, comes) in enumerate(BOMBS, 100):
        data = bomb(number, insert(number, 1, 2, name=2))
        ring.store.put(ref(number).incoming, data, metadata={"sealed_at": START.isoformat()})
        wanted |= {(number, 1)} if comes else set()
    sealed = run(ring, 100)
    problems = {outcome.object: outcome.problems for outcome in sealed.segments if outcome.problems}
    assert problems.keys() == {ref(number).incoming for number, _ in enumerate(BOMBS, 100)} == set(sealed.held)
    assert all(len(found) == 1 for found in problems.values())
    assert ring.current().keys() == wanted
    assert all(account.balanced for account in sealed.accounting)
    kept = {info.name: info.size for info in ring.store.list(layout.quarantine_prefix(CLUSTER))}
    assert len(kept) == 2 * len(BOMBS), "bytes and a note of each"
    for (problem,) in problems.values():
        assert problem.size > frame_ranges.BROUGHT
        assert kept[str(problem.quarantined_as)] == problem.size

    # A good copy settles it, as it settles any other record.
    mended, good = ref(100), encode_segment(100, 7, [insert(100, 2, 3, name=3)])
    ring.store.put(mended.incoming, good, metadata={"sealed_at": START.isoformat()})
    mark_for_retry(ring.store, mended.incoming)
    again = run(ring, 200)
    (outcome,) = again.segments
    assert [each.quarantined_as for each in outcome.settled] == [problems[mended.incoming][0].quarantined_as]
    assert ring.current().keys() == wanted | {(100, 2)}
