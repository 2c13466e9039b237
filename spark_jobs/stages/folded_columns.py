"""Results of the merge by column: FOLDED rows of one shard from arrays, in batches of bounded size. Shared by what merges
rows many at once; knows neither how they are merged nor where they go."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from spark_jobs.stages.arrow_runs import Ints, lengths, without_prefix
from writetime.cassandra.merge.partition_fold import Settings, new_ties
from writetime.cassandra.types.byte_comparable import LENGTH_BYTES
from writetime.kernels.mutation_columns import chunks
from writetime.kernels.row_batches import Joined

_BYTES_PER_BATCH: Final = 4 << 20


@dataclass(frozen=True, slots=True)
class FoldedColumns:
    """What is the same for all results of a shard. `counts` are those of the whole shard's merge, by which events are
    numbered; `untold`: segments whose changes alone make no events."""

    settings: Settings
    about: dict[str, Any]
    schema: pa.Schema
    counts: Counter[str]
    untold: frozenset[int] = frozenset()

    def applied(self, items: pa.RecordBatch, applied: Ints) -> list[pa.RecordBatch]:
        """Count updates as the stream does: those of one item here; for the others each item is named."""
        parts = items["parts"].to_numpy()[applied]
        self.counts["applied"] += int((parts == 1).sum())
        several = pa.array(applied[parts > 1])
        if not len(several):
            return []
        self.counts["several"] += len(several)
        return self._batches("applied", key=items["content"].take(several))

    def events(
        self, source: pa.RecordBatch, row: Ints, *, before: tuple[Any, Any], after: tuple[Any, Any], ts: Any, reason: Any
    ) -> list[pa.RecordBatch]:
        """Events, those of a `row` (its number) one after the other. `source`: of each the item that caused it; `before`,
        `after`: what shows of the row and of static cells."""
        if not len(row):
            return []
        return self._batches(
            "event",
            seq=self._numbered(source["copies"]),
            last=pa.array(np.append(row[1:] != row[:-1], True)),
            pk=without_prefix(source["pk"], LENGTH_BYTES),
            before=before[0],
            static_before=before[1],
            after=after[0],
            static_after=after[1],
            ts=ts,
            reason=reason,
            copies=source["copies"],
        )

    def records(self, keys: list[bytes], before: Sequence[bytes], changed: npt.NDArray[np.bool_], found: Joined) -> list[pa.RecordBatch]:
        """Records of the groups that have `changed`; by group, `keys` and the states `before`."""
        at = np.flatnonzero(changed)
        if len(at) == 0:
            return []
        states = found.states.take(pa.array(at))
        written = [keys[group] for group in at.tolist()]
        if self.settings.policy == "3.11":
            pairs = zip(at.tolist(), states.to_pylist(), strict=True)
            if ties := sum(new_ties(before[group], after, engine=self.settings.engine) for group, after in pairs):
                self.counts["ties"] += ties
        return self._batches("record", key=pa.array(written, pa.binary()), state=states, expires_at=found.expiries.take(pa.array(at)))

    def _numbered(self, copies: Any) -> Any:
        """The numbers of the next events; null for those that are not published."""
        hidden = np.array([untold(each, self.untold) for each in copies.to_pylist()], bool) if self.untold else np.zeros(len(copies), bool)
        first = self.counts["events"]
        numbered = len(hidden) - int(hidden.sum())
        self.counts["events"] += numbered
        if numbered < len(hidden):
            self.counts["untold"] += len(hidden) - numbered
        return pa.array(first + np.cumsum(~hidden) - 1, mask=hidden)

    def _batches(self, kind: str, **columns: Any) -> list[pa.RecordBatch]:
        """Rows of that kind, in batches of bounded size."""
        size = len(next(iter(columns.values())))
        same = {"kind": kind, **self.about}
        arrays = [
            columns[field.name]
            if field.name in columns
            else pa.repeat(pa.scalar(same[field.name], field.type), size)
            if field.name in same
            else pa.nulls(size, field.type)
            for field in self.schema
        ]
        batch = pa.RecordBatch.from_arrays(arrays, schema=self.schema)
        bytes_ = sum(lengths(column) for column in columns.values() if pa.types.is_binary(column.type))
        return [batch.slice(start, end - start) for start, end in chunks(bytes_, _BYTES_PER_BATCH)]


def untold(copies: Sequence[dict[str, int]] | None, segments: frozenset[int]) -> bool:
    """Whether a mutation occurs in these segments only."""
    return bool(segments and copies) and all(copy["segment"] in segments for copy in copies or ())
