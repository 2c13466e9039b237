"""Whole segments as lines of JSON, for comparison with Cassandra's own reader. The command line prints one
segment at a time."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from writetime.cassandra.commitlog.mutation_json import Failure, Lines, decode, learn
from writetime.cassandra.commitlog.segment import scan
from writetime.cassandra.commitlog.system_mutations import is_schema_change
from writetime.cassandra.schema.history import SchemaLearner


def dump_lines(segments: Sequence[tuple[str, bytes]], learner: SchemaLearner | None = None) -> Iterator[str | Failure]:
    """Lines of all valid frames of the segments, given as (file name, content) in log order.

    The schema of `learner` and of all segments is learnt before the first line. Raises SegmentError for a
    file that is not a readable segment; damage inside is skipped (see `segment.scan`).
    """
    learner = learner or SchemaLearner()
    scans = [scan(content, name=name) for name, content in segments]
    for found in scans:
        yield from learn(found, learner)
    known = learner.schema()
    lines = Lines(known, learner.cdc_ever)
    for found in scans:
        for frame, decoded in decode(found, known):
            if not isinstance(decoded, Failure):
                yield lines.line(found, frame, decoded)
            elif not is_schema_change(found.body(frame), version=found.descriptor.version):
                yield decoded
