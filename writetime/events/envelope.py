"""The change event: Debezium's envelope, so that consumers of Debezium can read it.

Input: a row of a changes table (`rows_of`). Output: plain values of the record's key and value, as converted
by `writetime.events.converters`; `writetime.events.serialization` encodes them. Must not know Kafka or Spark.

The key is the full primary key. Static content without a row has null clustering columns, and so has a delete
of many rows that is one event. A truncate and a drop of the table have no key.

Value: `before`, `after` (full rows or null), `op` (c created, u updated, d deleted, t the table was truncated
or dropped), `ts_ms` (when it was processed), `changed` (columns), `changed_elements` (by column, what changed
within collections), `source` {version, connector, cluster, keyspace, table, table_id, hostname, nodes,
replicas_seen, replicas_expected, file, pos, ts_us, sequence [batch, ordinal] as text, snapshot, reason,
schema_version, bounds}. `bounds`, of a range delete that is one event: {start, start_inclusive, end,
end_inclusive}, start and end by clustering column, null where the bound says nothing of it. An event too
large for its topic has no rows and a `claim` {url, size, crc32c}: there the whole value lies.

By `cells` each column of `before` and `after` is {value, deletion_ts, set, writetime}: what it holds, when
that expires (µs, null: never), whether this event wrote it, and when it was written (µs); of `before` only
the values are known.
"""

from __future__ import annotations

import json
import re
from collections import defaultdict
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

import pyarrow as pa

import writetime
from writetime.cassandra.types.native import NATIVE
from writetime.cassandra.types.types import CqlType
from writetime.events.arrow import arrow_type, plain_values
from writetime.events.converters import JSON, Convert, Form, has_user_type, key_text
from writetime.events.naming import from_column, to_column, to_topic

TEXT: Final = NATIVE["text"]
_ASIDE: Final = re.compile(r"_was_\d+_(.+)")


@dataclass(frozen=True, slots=True)
class About:
    """Facts shared by all events of a table. `addresses` maps host ids to node addresses. `name` is Debezium's
    logical name, the prefix of the topics. `complete`: by batch, up to when the table was complete before it
    (µs)."""

    cluster: str
    keyspace: str
    table: str
    addresses: Mapping[str, str]
    name: str = ""
    complete: Mapping[int, int] = field(default_factory=dict)


def topic(prefix: str, keyspace: str, table: str) -> str:
    """`<topic.prefix>.<keyspace>.<table>`, see `naming.to_topic`."""
    return to_topic(prefix, keyspace, table)


def rows_of(batch: pa.RecordBatch) -> list[dict[str, Any]]:
    """Rows of a changes table as plain values, timestamps as µs and dates as days since the epoch (see
    `arrow.plain_values`)."""
    columns = [plain_values(column) for column in batch.columns]
    return [dict(zip(batch.schema.names, values, strict=True)) for values in zip(*columns, strict=True)]


class Shape:
    """How one version of a table shows in events, whatever the table that keeps them has become since.

    `keys` and `columns` (keys first) are the version's, by CQL name; `stored` is the Arrow schema of the
    changes table; `history` the columns of its versions. Key columns, fields of user types and parts of
    tuples go by place: they keep theirs when they are renamed. Other columns go by name. One that the version
    does not have shows where it has a value: it was dropped, and the event tells what it held. One that was
    made anew with another type has its older values in `_was_<n>_<name>`
    (spark_jobs.sinks.schema_evolution).

    `record_keys` are the fields of a record's key, which stay what they are in the life of a topic, since Kafka knows a
    row by the bytes of its key (docs/adr/0054). They have the names `key_names`, which the columns had first, and
    a column of a user type is a text, which no ALTER TYPE changes. `required` are the key columns that no
    key lacks; here by the names of the fields."""

    def __init__(
        self,
        keys: Mapping[str, CqlType],
        columns: Mapping[str, CqlType],
        stored: pa.Schema,
        *,
        form: Form = JSON,
        history: Sequence[Mapping[str, CqlType]] = (),
        cells: bool = False,
        required: Collection[str] = (),
        key_names: Sequence[str] = (),
    ) -> None:
        self.form, self.cells = form, cells
        self.keys, self.columns = keys, columns
        called = dict(zip(keys, key_names or keys, strict=True))
        self.required = frozenset(called[name] for name in required)
        texts = [has_user_type(kind) for kind in keys.values()]
        self.record_keys: dict[str, CqlType] = {
            called[name]: TEXT if is_text else kind for (name, kind), is_text in zip(keys.items(), texts, strict=True)
        }
        self._key_texts = {at: key_text(kind) for at, (kind, is_text) in enumerate(zip(keys.values(), texts, strict=True)) if is_text}
        rows = stored.field("after").type
        self._columns = list(_columns(keys, columns, rows, history, form))
        self.shown = [column for column in self._columns if not column.dropped]
        self.dropped = {column.name: column.kind for column in self._columns if column.dropped}
        self.dropped_at = [place for column in self._columns if column.dropped for place, _ in column.places]
        self._key = form.fields(self.record_keys)
        within = stored.field("bounds").type.field("start").type.num_fields if "bounds" in stored.names else 0
        self.clustering = dict(list(keys.items())[len(keys) - within :])
        self._bound = form.fields(self.clustering)

    def key(self, row: Mapping[str, Any]) -> dict[str, Any] | None:
        """The record's key for a changes row; None for events of the whole table."""
        return None if row["key"] is None else self._key(self.key_values(row["key"]))

    def key_values(self, key: Mapping[str, Any]) -> dict[str, Any]:
        """A stored key's values by field, which the form converts."""
        values = list(key.values())
        for at, as_text in self._key_texts.items():
            values[at] = None if values[at] is None else as_text(values[at])
        return dict(zip(self.record_keys, values, strict=True))

    def key_columns(self, keys: Any) -> Any:
        """The same of many keys, an array of structs without nulls."""
        if not self._key_texts:
            return keys
        columns = [keys.field(at) for at in range(keys.type.num_fields)]
        for at, as_text in self._key_texts.items():
            values = plain_values(columns[at])
            columns[at] = pa.array([None if value is None else as_text(value) for value in values], pa.string())
        return pa.StructArray.from_arrays(columns, list(self.record_keys))

    def dropped_fields(self, stored: pa.StructType) -> list[str]:
        """Fields of a stored row for dropped columns."""
        return [stored.field(place).name for place in self.dropped_at]

    def is_wide(self, row: Mapping[str, Any]) -> bool:
        """Whether the event shows a column that the version does not have."""
        if not self.dropped_at:
            return False
        parts = [list(row[part].values()) for part in ("before", "after") if row[part] is not None]
        return any(values[place] is not None for values in parts for place in self.dropped_at)

    def value(self, row: Mapping[str, Any], about: About) -> dict[str, Any]:
        """The envelope of a changes row."""
        elements = json.loads(text) if (text := row.get("changed_elements")) else {}
        return {
            "before": self._row("before", row),
            "after": self._row("after", row),
            "op": row["op"],
            **_times(row["processed_at"]),
            "changed": row["changed"],
            "changed_elements": elements,
            "source": self._source(row, about),
        }

    def row(self, values: Mapping[str, Any]) -> dict[str, Any]:
        """The row with these values, of the stored columns in their order, as an event has it in `after`."""
        found = self._row("after", {"after": values})
        assert found is not None
        return found

    def claim(self, row: Mapping[str, Any], about: About, *, url: str, size: int, crc32c: int) -> dict[str, Any]:
        """The envelope that replaces one that is too large."""
        whole = self.value({**row, "before": None, "after": None, "changed_elements": None}, about)
        return {**whole, "claim": {"url": url, "size": size, "crc32c": crc32c}}

    def _source(self, row: Mapping[str, Any], about: About) -> dict[str, Any]:
        nodes = [about.addresses.get(host) or host for host in row["nodes"]]
        place = {"file": row["file"], "pos": row["pos"]}
        of_table = {"keyspace": about.keyspace, "table": about.table}
        replicas = {
            "table_id": row["table_id"],
            "hostname": nodes[0] if nodes else None,
            "nodes": nodes,
            "replicas_seen": len(nodes),
            "replicas_expected": row["replicas_expected"],
        }
        cause = {"reason": row["reason"], "schema_version": row["schema_version"]}
        bounds = {"bounds": self._bounds(row["bounds"]) if row.get("bounds") else None}
        product = {"version": writetime.__version__, "connector": "writetime"}
        is_snapshot = row["reason"] == "snapshot"
        times = _times(row["ts_micro"])
        debezium = {
            **product,
            "name": about.name,
            "ts_ms": times["ts_ms"],
            "snapshot": str(is_snapshot).lower(),
            "db": about.keyspace,
            "sequence": f'["{row["batch"]}","{row["ordinal"]}"]',
            "ts_us": times["ts_us"],
            "ts_ns": times["ts_ns"],
            "cluster": about.cluster,
            **place,
            **of_table,
        }
        late = not is_snapshot and row["ts_micro"] < about.complete.get(row["batch"], LONG_AGO)
        return {**debezium, **replicas, **cause, "late": late, **bounds}

    def _bounds(self, bounds: Mapping[str, Any]) -> dict[str, Any]:
        return {name: self._bound(part) if name in ("start", "end") and part is not None else part for name, part in bounds.items()}

    def _row(self, part: str, row: Mapping[str, Any]) -> dict[str, Any] | None:
        if row[part] is None:
            return None
        values = list(row[part].values())
        shown: dict[str, Any] = {}
        for column in self._columns:
            found = None
            for place, change in column.places:
                if (held := values[place]) is not None:
                    found = held if change is None else change(held)
                    break
            if found is not None or not column.dropped:
                shown[column.shown] = found
        return self._as_cells(shown, part, row) if self.cells else shown

    def _as_cells(self, values: dict[str, Any], part: str, row: Mapping[str, Any]) -> dict[str, Any]:
        after = part == "after"
        written, expires = (dict(row.get(name) or ()) if after else {} for name in ("writetime", "expires_at"))
        changed = set(row["changed"])
        return {
            column.shown: {
                "value": values[column.shown],
                "deletion_ts": expires[column.name] * 1_000_000 if column.name in expires else None,
                "set": column.name in self.keys or (after and (column.name in changed or written.get(column.name) == row["ts_micro"])),
                "writetime": written.get(column.name),
            }
            for column in self._columns
            if column.shown in values
        }


def place_of(event: Mapping[str, Any]) -> tuple[int, int]:
    """Batch and ordinal of an event."""
    batch, ordinal = map(int, json.loads(event["source"]["sequence"]))
    return batch, ordinal


LONG_AGO: Final = -(2**63)
"""Before all writetimes (µs)."""


def _times(micros: int) -> dict[str, int]:
    """A moment as Debezium's fields; nanoseconds saturate, for writetimes are what clients say."""
    return {"ts_ms": micros // 1000, "ts_us": micros, "ts_ns": max(min(micros * 1000, 2**63 - 1), -(2**63))}


@dataclass(frozen=True, slots=True)
class _Column:
    """A column by its CQL name and as the form calls it: its type, where a row may hold it, with what makes
    such a value one of the form, and whether it shows for what it held only."""

    name: str
    shown: str
    kind: CqlType
    places: list[tuple[int, Convert | None]]
    dropped: bool


def _columns(
    keys: Mapping[str, CqlType],
    columns: Mapping[str, CqlType],
    stored: pa.StructType,
    history: Sequence[Mapping[str, CqlType]],
    form: Form,
) -> Iterator[_Column]:
    here = {to_column(name): name for name in columns}
    held: dict[str, list[int]] = defaultdict(list)
    for place, each in enumerate(stored):
        aside = None if each.name in here else _ASIDE.fullmatch(each.name)
        if place >= len(keys):
            held[aside[1] if aside else each.name].append(place)
    for place, (called, name) in enumerate(here.items()):
        kind = columns[name]
        places = [place] if place < len(keys) else held.pop(called, [])
        yield _Column(name, form.name(name), kind, [(each, form.converter(kind)) for each in places], False)
    for called, places in held.items():
        name = from_column(called)
        if kinds := [other[name] for other in history if name in other]:
            held_as = [(place, _kind_of(stored.field(place).type, kinds)) for place in places]
            yield _Column(name, form.name(name), held_as[-1][1], [(place, form.converter(kind)) for place, kind in held_as], True)


def _kind_of(stored: pa.DataType, kinds: Sequence[CqlType]) -> CqlType:
    """Which of the types that a column has had is stored. One whose user types have got fields since has
    another Arrow type."""
    return next((kind for kind in kinds if arrow_type(kind) == stored), kinds[-1])


def encode(value: Any) -> bytes:
    """JSON as UTF-8, compact, keys in the given order."""
    return json.dumps(value, ensure_ascii=False, separators=(",", ":"), allow_nan=False).encode()
