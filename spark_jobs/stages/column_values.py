"""The values of one column as Arrow arrays, as the rules of `columns` publish them.

Strategy: nearly all values are converted by column (`writetime.events.arrow_columns`). Hashes and values of other types
are converted one by one, each distinct value once a page. A masked column is not decoded, and clear values of a hashed one
are in no array that leaves. Equivalent to `TableRules.compiled` and `arrow_converter` on each value. Knows no events."""

from __future__ import annotations

from collections.abc import Callable, Collection
from itertools import pairwise
from typing import Any, Final, Generic, NamedTuple, TypeVar

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from spark_jobs.stages.event_pages import around
from writetime.cassandra.types.native import NATIVE
from writetime.cassandra.types.types import CollectionType, CqlType, TupleType, UdtType, assemble, elements
from writetime.events import arrow_columns
from writetime.events.arrow import arrow_converter
from writetime.events.arrow_columns import arrow_type
from writetime.events.masking import Mask, Path, TableRules
from writetime.kernels.projection import Flags, Ints, ShownRows

_IN_BYTE_ORDER: Final = frozenset({"ascii", "text", "varchar", "blob", "date", "time"})
_IN_ORDER_OF_NUMBERS: Final = frozenset({"tinyint", "smallint", "int", "bigint", "timestamp"})


class Places(NamedTuple):
    """Where values are: their starts and lengths in the data; length -1 for null."""

    data: npt.NDArray[np.uint8]
    at: Ints
    length: Ints


class Elements(NamedTuple):
    """A column of unfrozen collections or user types: its number among the columns of the rows."""

    rows: ShownRows
    number: int


Source = TypeVar("Source", Places, Elements)


class Published:
    """What the rules make of one column. `change`: of a value that is not null; None if it is published as it is."""

    def __init__(self, name: str, kind: CqlType, rules: TableRules) -> None:
        self.kind, self.change = kind, rules.changes().get(name)
        self.mask, self.fields = rules.masks.get(name), rules.nested.get(name, frozenset[Path]())
        shown = NATIVE["text"] if self.mask is not None else kind
        self.type, self.convert = arrow_type(shown), arrow_converter(shown)

    def value(self, value: Any) -> Any:
        """A value for Arrow."""
        return self.convert(value if self.change is None else self.change(value))

    def column(self, clear: Any) -> Any:
        """The published array of an array of values that are not hashed."""
        if self.mask is not None:
            return pc.utf8_slice_codeunits(clear, 0, self.mask.length)
        return without(self.kind, clear, self.fields)

    @property
    def is_hashed(self) -> bool:
        return self.mask is not None and self.mask.kind == "hash"

    @property
    def asterisks(self) -> Mask | None:
        """The mask, if no value shows anything of the clear one."""
        return self.mask if self.mask is not None and self.mask.kind == "mask" else None


class Values(Generic[Source]):
    """Makes arrays of a column's values. `decode`: the Python value of what `distinct` lists."""

    def __init__(self, published: Published, decode: Callable[[Any], Any]) -> None:
        self.published, self.decode = published, decode

    def arrays(self, *sources: Source) -> list[Any]:
        """The published values of each source."""
        published = self.published
        if published.asterisks is not None:
            return [_asterisks(self._there(source), published.asterisks.length) for source in sources]
        if not published.is_hashed:
            found = [self._by_column(source) for source in sources]
            if all(each is not None for each in found):
                return [published.column(each) for each in found]
        clear, indices = self.clear(*sources)
        made = pa.array([published.value(each) for each in clear], published.type)
        return [made.take(each) for each in indices]

    def clear(self, *sources: Source) -> tuple[list[Any], list[Any]]:
        """The distinct clear values of all sources, and for each source which one each row has (null: none)."""
        distinct, indices = self.distinct(*sources)
        return [self.decode(each) for each in distinct], indices

    def distinct(self, *sources: Source) -> tuple[list[Any], list[Any]]:
        """As `clear`, not decoded."""
        raise NotImplementedError

    def _by_column(self, source: Source) -> Any:
        """The clear values; None if they have to be converted one by one."""
        raise NotImplementedError

    def _there(self, source: Source) -> Flags:
        """Which rows have a value."""
        raise NotImplementedError


class SimpleValues(Values[Places]):
    """Of values in one piece."""

    by_column = True

    def distinct(self, *sources: Places) -> tuple[list[Any], list[Any]]:
        raw = pa.concat_arrays([arrow_columns.column(NATIVE["blob"], *source) for source in sources]).dictionary_encode()
        ends = np.cumsum([len(source.at) for source in sources]).tolist()
        return raw.dictionary.to_pylist(), [raw.indices[end - len(source.at) : end] for end, source in zip(ends, sources, strict=True)]

    def _by_column(self, source: Places) -> Any:
        return arrow_columns.column(self.published.kind, *source) if self.by_column else None

    def _there(self, source: Places) -> Flags:
        found: Flags = source.length >= 0
        return found


class SpelledValues(SimpleValues):
    """Of values that have to be decoded by `decode`: counters, and clusterings that equal ones spell otherwise."""

    by_column = False


class _Cell(NamedTuple):
    value: bytes
    path: bytes | None


class ElementValues(Values[Elements]):
    """Of collections and user types with a cell per element."""

    def __init__(self, published: Published) -> None:
        super().__init__(published, lambda cells: assemble(published.kind, [_Cell(*cell) for cell in cells]))

    def distinct(self, *sources: Elements) -> tuple[list[Any], list[Any]]:
        known: dict[Any, int] = {}
        indices = []
        for rows, number in sources:
            cells, ends = list(rows.of_cells(rows.of_column(number))), np.cumsum(rows.count[number]).tolist()
            spans = pairwise([0, *ends])
            found = [known.setdefault(tuple(cells[begin:end]), len(known)) if end > begin else None for begin, end in spans]
            indices.append(pa.array(found, pa.int64()))
        return [*known], indices

    def _there(self, source: Elements) -> Flags:
        found: Flags = source.rows.count[source.number] > 0
        return found

    def _by_column(self, source: Elements) -> Any:
        """The cells of all rows, each row's in the order of `assemble`."""
        (rows, number), kind = source, self.published.kind
        count, found = rows.count[number], rows.cells
        if not count.any():
            return pa.nulls(len(count), arrow_type(kind))
        cells, row_of = rows.of_column(number), np.repeat(np.arange(len(count)), count)
        if isinstance(kind, UdtType):
            return _by_fields(kind, rows, cells, row_of, count > 0)
        assert isinstance(kind, CollectionType)
        order = _order(kind, rows, cells, row_of)
        if order is None:
            return None
        cells = cells[order]
        paths, values = (found.path_at[cells], found.path_length[cells]), (found.value_at[cells], found.value_length[cells])
        wanted = {"list": [values], "set": [paths], "map": [paths, values]}[kind.kind]
        end = np.concatenate((np.zeros(1, np.int32), np.cumsum(count, dtype=np.int32)))
        return arrow_columns.collections(kind, rows.data, wanted, end, count > 0)


def without(kind: CqlType, array: Any, paths: Collection[Path]) -> Any:
    """The values with null in these fields of user types, as `masking` leaves them out of each value."""
    if not paths:
        return array
    if isinstance(kind, UdtType):
        inner = [{path[1:] for path in paths if path[0] == name.lower()} for name in kind.known_fields]
        fields = zip(kind.known_fields.values(), inner, strict=True)
        return _struct(array, [None if () in each else without(part, array.field(at), each) for at, (part, each) in enumerate(fields)])
    if isinstance(kind, TupleType):
        return _struct(array, [without(part, array.field(at), paths) for at, part in enumerate(kind.fields)])
    if isinstance(kind, CollectionType) and kind.kind == "map":
        # Keys with fields are converted one by one: they could become equal.
        parts = [array.keys, without(kind.elements[1], array.items, paths)]
        return around(array, array.type, pa.StructArray.from_arrays(parts, fields=[array.type.key_field, array.type.item_field]))
    within = elements(kind)
    return around(array, array.type, without(within[0], array.values, paths)) if within else array


def _struct(array: Any, parts: list[Any]) -> Any:
    """The structs with other fields; None for one that is null."""
    made = [pa.nulls(len(array), field.type) if part is None else part for field, part in zip(array.type, parts, strict=True)]
    return pa.StructArray.from_arrays(made, fields=list(array.type), mask=array.is_null() if array.null_count else None)


def _asterisks(there: Flags, length: int) -> Any:
    return pc.if_else(pa.array(there), pa.scalar("*" * length), pa.scalar(None, pa.string()))


# --- elements


def _by_fields(kind: UdtType, rows: ShownRows, cells: Ints, row_of: Ints, there: Flags) -> Any:
    """User types: a cell's path is the number of a field."""
    paths = rows.cells.path_at[cells], rows.cells.path_length[cells]
    field = None if np.any(paths[1] != 2) else arrow_columns.numbers(2, rows.data, *paths)
    if field is None or np.any(field[0] < 0):
        return None
    known = field[0] < len(kind.known_fields)
    cells, place = cells[known], (field[0][known], row_of[known])
    at, length = (np.full((len(kind.known_fields), len(there)), -1, np.int64) for _ in range(2))
    at[place], length[place] = rows.cells.value_at[cells], rows.cells.value_length[cells]
    return arrow_columns.structs(kind, rows.data, at, length, there)


def _order(kind: CollectionType, rows: ShownRows, cells: Ints, row_of: Ints) -> Any:
    """The order of elements (`assemble`) of a column's cells; None if they must be converted one by one."""
    at, length = rows.cells.path_at[cells], rows.cells.path_length[cells]
    if np.any(length < 0):
        return None
    name = "timeuuid" if kind.kind == "list" else str(kind.elements[0])
    if kind.kind == "list" or name in _IN_ORDER_OF_NUMBERS:
        width = 16 if kind.kind == "list" else arrow_columns.WIDTHS[name]
        if np.any(length != width):
            return None
        if kind.kind == "list":
            return _by_time(rows.data, at, row_of)
        found = arrow_columns.numbers(width, rows.data, at, length)
        return None if found is None else np.lexsort((found[0], row_of))
    return slice(None) if name in _IN_BYTE_ORDER else None


def _by_time(data: Any, at: Ints, row_of: Ints) -> Ints:
    """The order of list elements by their timeuuids (`native.timeuuid_key`)."""
    raw = data[at[:, None] + np.arange(16)]
    high, low = (np.ascontiguousarray(half).view(">u8")[:, 0].astype(np.uint64) for half in (raw[:, :8], raw[:, 8:] ^ 0x80))
    time = (
        (high & np.uint64(0x0FFF)) << np.uint64(48) | (high >> np.uint64(16) & np.uint64(0xFFFF)) << np.uint64(32) | high >> np.uint64(32)
    )
    return np.lexsort((low, time, row_of))
