"""Pages of events: their schema, and what the sinks read from them.

A page is a record batch with some events of one table (`page_schema`), packed like all rows that travel
(`row_packs`): a few MB in one value. `typed_events` and `typed_columns` fill pages; PAGES has their counts in
columns of its own. Sinks write pages to tables column by column, without a Python object per row. Does not
know Iceberg."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import reduce
from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc

from spark_jobs.stages.arrow_runs import whole
from spark_jobs.stages.number_columns import as_digits
from spark_jobs.stages.row_packs import pack, unpacked
from spark_jobs.stages.scan import Batches
from spark_jobs.stages.table_events import Event
from spark_jobs.stages.table_rows import EXPIRES_AT, OP, WRITETIME, RowShape, changes_schema
from writetime.events.arrow import plain_values

PAGES: Final = pa.schema([("table_id", pa.binary()), ("told", pa.int64()), ("last", pa.int64()), ("payload", pa.binary())])
"""`told`: how many of the page's events the stream tells; `last`: how many are the last ones of their rows;
`payload`: the page."""

Pages = Iterable[pa.RecordBatch]

FIRST_MICROS: Final = -62_135_596_800_000_000
LAST_MICROS: Final = 253_402_300_799_999_999
"""The years 1 to 9999: what all readers of a timestamp understand."""

_OF_THE_BATCH: Final = ("batch", "table_id", "schema_version")
"""What the sink knows."""


def page_schema(shape: RowShape) -> pa.Schema:
    """Schema of events. `last`: whether an event is the last of its row in the batch, needed by current rows
    only. The other columns are those of a changes table, as far as events have them. `ordinal` is null for
    events that are not published."""
    columns = changes_schema(shape)
    return pa.schema([("last", pa.bool_()), *(field for field in columns if field.name not in _OF_THE_BATCH)])


def page_row(table_id: bytes, page: pa.RecordBatch) -> dict[str, Any]:
    """A row of PAGES."""
    numbered = page.num_rows - page["ordinal"].null_count
    return {"table_id": table_id, "told": numbered, "last": page["last"].true_count, "payload": pack(page)}


def page_of(shape: RowShape, events: Iterable[tuple[int | None, bool, Event]]) -> pa.RecordBatch:
    """A page of events given as dictionaries (see `table_events`), each with its ordinal and whether it is
    the last of its row."""
    rows = [{**_row(event), "ordinal": ordinal, "last": last} for ordinal, last, event in events]
    return pa.RecordBatch.from_pylist(rows, schema=page_schema(shape))


def _row(event: Event) -> dict[str, Any]:
    return {
        **event,
        # USING TIMESTAMP takes any 64 bits; ts_micro keeps them, a calendar does not.
        "changed_at": max(FIRST_MICROS, min(event["ts_micro"], LAST_MICROS)),
        "processed_at": event["now"] * 1_000_000,
        **{fact: list(event[fact].items()) for fact in ("writetime", "expires_at")},
    }


def pages(batches: Batches) -> Pages:
    """The pages of PAGES."""
    for batch in batches:
        yield from unpacked(batch["payload"].to_pylist())


# --- changes


def change_rows(columns: pa.Schema, about: Mapping[str, Any], *, cells: bool) -> Callable[[Pages], Batches]:
    """Pages to rows of a changes table with these columns. `about`: what the sink adds, by column. `cells`:
    whether changes include writetimes and expiries of cells."""

    def rows(given: Pages) -> Batches:
        for page in given:
            # Events without an ordinal are for current rows only.
            numbered = _filtered(page, pc.is_valid(page["ordinal"]))
            if numbered.num_rows:
                yield pa.RecordBatch.from_arrays([column(numbered, field) for field in columns], schema=columns)

    def column(numbered: pa.RecordBatch, field: pa.Field) -> Any:
        if field.name in about:
            return pa.repeat(pa.scalar(about[field.name], field.type), numbered.num_rows)
        if field.name not in numbered.schema.names or (field.name in ("writetime", "expires_at") and not cells):
            return pa.nulls(numbered.num_rows, field.type)
        return aligned(numbered[field.name], field.type)

    return rows


# --- current rows


def last_rows(columns: pa.Schema) -> Callable[[Pages], Batches]:
    """Pages to actions on current rows, with these columns, one of which is OP. NumberTooLong for a number that its column
    does not hold."""
    as_events = pa.schema([field.with_type(pa.string()) if pa.types.is_decimal(field.type) else field for field in columns])

    def rows(given: Pages) -> Batches:
        for page in given:
            yield from (_with_numbers(batch, columns) for batch in _last_rows(page, as_events))

    return rows


def _with_numbers(batch: pa.RecordBatch, columns: pa.Schema) -> pa.RecordBatch:
    """The rows with texts of numbers as decimals, where these are the columns' types."""
    if batch.schema.types == columns.types:
        return batch
    found = [
        as_digits(field.name, array, field.type) if pa.types.is_decimal(field.type) else array
        for array, field in zip(batch.columns, columns, strict=True)
    ]
    return pa.RecordBatch.from_arrays(found, schema=columns)


def one_of_each_key(rows: Callable[[Pages], Batches], partition: Sequence[str], clustering: Sequence[str]) -> Callable[[Pages], Batches]:
    """Rows of `last_rows`, one of each key of the warehouse.

    A clustering of no bytes (`blobAsInt(0x)`) reads as null, and so does the clustering of static content alone.
    That is visible only while its partition has no row, so at most one of both exists when a batch ends, and the
    deletion of the other must not remove it. All rows of a partition are in one task, one after the other."""

    def unique(given: Pages) -> Batches:
        waiting: list[pa.RecordBatch] = []
        for batch in rows(given):
            lacks = reduce(pc.or_, (pc.is_null(batch[name]) for name in clustering))
            if not lacks.true_count:
                yield batch
                continue
            yield _filtered(batch, pc.invert(lacks))
            found = whole([*waiting, _filtered(batch, lacks)])
            places = texts(found, partition)
            # The last partition may go on in the next batch.
            ended = next((at for at in range(len(places), 0, -1) if places[at - 1] != places[-1]), 0)
            yield _one_of_each(found.slice(0, ended), [*partition, *clustering])
            waiting = [found.slice(ended)]
        for batch in waiting:
            yield _one_of_each(batch, [*partition, *clustering])

    return lambda given: (batch for batch in unique(given) if batch.num_rows)


def _one_of_each(rows: pa.RecordBatch, key: Sequence[str]) -> pa.RecordBatch:
    """One row of each key; one that is not deleted, if there is one."""
    is_deleted = pc.equal(rows[OP], "d").to_pylist()
    chosen: dict[str, int] = {}
    for at, text in enumerate(texts(rows, key)):
        if text not in chosen or is_deleted[chosen[text]]:
            chosen[text] = at
    return rows.take(pa.array(sorted(chosen.values()), pa.int64()))


def texts(rows: pa.RecordBatch, columns: Sequence[str]) -> list[str]:
    """Of each row these columns' values as text: in a value NaN does not equal itself."""
    return [repr(values) for values in zip(*(plain_values(rows[name]) for name in columns), strict=True)]


def kept_rows(columns: pa.Schema) -> Callable[[pa.RecordBatch], Batches]:
    """Rows with these columns, of a batch of `last_rows`: those that are not deleted. Columns that they lack are
    null."""

    def kept(batch: pa.RecordBatch) -> Batches:
        there = _filtered(batch, pc.not_equal(batch[OP], "d"))
        if there.num_rows:
            names = there.schema.names
            found = [there[field.name] if field.name in names else pa.nulls(there.num_rows, field.type) for field in columns]
            yield pa.RecordBatch.from_arrays(found, schema=columns)

    return kept


def _last_rows(page: pa.RecordBatch, columns: pa.Schema) -> Iterator[pa.RecordBatch]:
    """The resulting row of each key; for a deleted row its key."""
    there = pc.is_valid(page["after"])
    kept = _filtered(page.select(["after", "op", "writetime", "expires_at"]), pc.and_(page["last"], there))
    gone = _filtered(page.select(["key"]), pc.and_not(page["last"], there))
    if kept.num_rows:
        facts = {WRITETIME: "writetime", EXPIRES_AT: "expires_at"}
        values = {name: kept[fact] for name, fact in facts.items() if name in columns.names}
        yield _batch(kept["after"], {**values, OP: kept["op"]}, columns)
    if gone.num_rows:
        yield _batch(gone["key"], {OP: pa.repeat("d", gone.num_rows)}, columns)


def _filtered(page: pa.RecordBatch, mask: Any) -> pa.RecordBatch:
    """Values where the mask is true; free if all or none are."""
    count = mask.true_count
    return page if count == len(mask) else page.filter(mask) if count else page.slice(0, 0)


def _batch(rows: Any, values: Mapping[str, Any], columns: pa.Schema) -> pa.RecordBatch:
    """Rows, an array of structs, with further columns. Columns that a row lacks are null."""
    found = dict(zip((field.name for field in rows.type), rows.flatten(), strict=True)) | dict(values)
    return pa.RecordBatch.from_arrays(
        [aligned(found[field.name], field.type) if field.name in found else _nothing(field, len(rows)) for field in columns],
        schema=columns,
    )


def _nothing(field: pa.Field, size: int) -> Any:
    facts = field.name in (WRITETIME, EXPIRES_AT)
    return pa.repeat(pa.scalar([], field.type), size) if facts else pa.nulls(size, field.type)


# --- shapes


def aligned(array: Any, kind: pa.DataType) -> Any:
    """The values in another type: fields of structs by name, missing ones null, and numbers of another width.
    ArrowInvalid for a number that does not fit."""
    if array.type == kind:
        return array
    if pa.types.is_struct(kind):
        here = dict(zip((field.name for field in array.type), _fields(array), strict=True))
        parts = [aligned(here[f.name], f.type) if f.name in here else pa.nulls(len(array), f.type) for f in kind]
        return pa.StructArray.from_arrays(parts, fields=list(kind), mask=pc.is_null(array))
    if pa.types.is_map(kind):
        parts = [aligned(array.keys, kind.key_type), aligned(array.items, kind.item_type)]
        return around(array, kind, pa.StructArray.from_arrays(parts, fields=[kind.key_field, kind.item_field]))
    if pa.types.is_list(kind):
        return around(array, kind, aligned(array.values, kind.value_type))
    return array.cast(kind)


def _fields(structs: Any) -> list[Any]:
    return [structs.field(at) for at in range(structs.type.num_fields)]


def around(array: Any, kind: pa.DataType, values: Any) -> Any:
    """A list or map array with other values in its places."""
    return pa.Array.from_buffers(kind, len(array), array.buffers()[:2], array.null_count, array.offset, children=[values])
