"""Arrow batches as Spark's JVM hands them over, made whole.

Where no row of a batch has an element, the arrays of elements have no rows, and the lists, maps and texts among them no
offsets: Arrow's format wants one, and the JVM writes none (SPARK-55056, arrow-java 343). Arrow reads what is there
instead, and a worker ends with a segmentation fault, so that no table of its job gets on. Must not know what rows mean.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pyarrow as pa

from spark_jobs.stages.event_pages import around
from spark_jobs.stages.scan import Batches


def made_whole(batches: Batches) -> Iterator[pa.RecordBatch]:
    """The batches, with offsets in all arrays. Rows are not copied."""
    for batch in batches:
        yield pa.RecordBatch.from_arrays([_whole(column) for column in batch.columns], schema=batch.schema)


def _whole(array: Any) -> Any:
    kind = array.type
    if not len(array):
        return pa.array([], kind)
    if pa.types.is_struct(kind):
        parts = [_whole(array.field(at)) for at in range(kind.num_fields)]
        return pa.StructArray.from_arrays(parts, fields=[*kind], mask=array.is_null()) if parts else array
    if pa.types.is_map(kind):
        entries = pa.StructArray.from_arrays([_whole(array.keys), _whole(array.items)], fields=[kind.key_field, kind.item_field])
        return around(array, kind, entries)
    return around(array, kind, _whole(array.values)) if pa.types.is_list(kind) else array
