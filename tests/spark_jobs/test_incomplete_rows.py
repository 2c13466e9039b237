"""Rows that the log leaves incomplete are noted among all records of a shard, which pass unchanged."""

from __future__ import annotations

import json
from pathlib import Path
from uuid import UUID

from spark_jobs.stages.incomplete_rows import IncompleteRows
from spark_jobs.state.shards import Record, in_batches
from writetime.cassandra.merge import row_codec, unknown_marker
from writetime.cassandra.merge.unknown_marker import STATED
from writetime.cassandra.model import Cell, Liveness, Row
from writetime.cassandra.types.byte_comparable import record_key
from writetime.storage import open_store

NOW = 1_700_000_000
TABLE = UUID(int=7)


def test_incomplete_rows_are_noted_by_key(tmp_path: Path) -> None:
    known = row_codec.encode(Row((), liveness=Liveness(5)))
    unknown = row_codec.encode(Row((), liveness=unknown_marker.liveness(5)))
    states = {b"b": unknown, b"a": unknown, b"known": known, b"deleted": b""}
    given = [batch for key, state in states.items() for batch in in_batches([Record(record_key(b"pk", key), state, None)])]
    found, store = IncompleteRows(NOW, counter=False), open_store(str(tmp_path))
    assert list(found.of(given)) == given
    found.put(store, "noted.json", 3, TABLE.bytes)
    keys = [record_key(b"pk", key).hex() for key in (b"a", b"b")]
    assert json.loads(store.read("noted.json")) == {"batch": 3, "table_id": str(TABLE), "keys": keys}


def test_what_is_noted_is_a_mark_and_not_a_value_that_looks_like_one(tmp_path: Path) -> None:
    values = (STATED, STATED + b"\0opaque", unknown_marker.list_path(0, 5))
    rows = [Row((), Liveness(5), cells=(Cell("v", 5, value),)) for value in values]
    found, store = IncompleteRows(NOW, counter=False), open_store(str(tmp_path))
    list(found.of(in_batches([Record(record_key(b"pk", b"r%d" % at), row_codec.encode(row), None) for at, row in enumerate(rows)])))
    found.put(store, "noted.json", 3, TABLE.bytes)
    assert [info.name for info in store.names()] == []


def test_nothing_is_noted_of_complete_rows(tmp_path: Path) -> None:
    found, store = IncompleteRows(NOW, counter=False), open_store(str(tmp_path))
    list(found.of(in_batches([Record(record_key(b"pk"), b"", None)])))
    found.put(store, "noted.json", 3, TABLE.bytes)
    assert [info.name for info in store.names()] == []
