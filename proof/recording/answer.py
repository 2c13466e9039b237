"""Reads a table from the cluster: every row with the writetime and TTL of its columns, as JSON without loss.

A row: {"values": {column: value}, "writetime": {column: µs}, "ttl": {column: seconds}}. Key columns and null
columns have no writetime; a non-frozen collection has a list of them, one per element, in the order of the
elements. Columns without a TTL are not in `ttl`.

All TTLs of a table are read within one second of the clock, which is returned with the rows: TTL plus that
second is the expiry of a cell.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterable
from datetime import UTC, datetime
from typing import Any

from cassandra.cluster import Session
from cassandra.metadata import ColumnMetadata, TableMetadata
from cassandra.protocol import _ProtocolHandler
from cassandra.query import SimpleStatement

from tools.errors import ServiceError

ATTEMPTS = 20
Row = dict[str, dict[str, Any]]


def read(session: Session, table: TableMetadata) -> tuple[int, list[Row]]:
    """The second (Unix time) at which all rows were read, and the rows in the order of the ring."""
    columns = list(table.columns.values())
    keys = {column.name for column in table.primary_key}
    others = [column for column in columns if column.name not in keys]
    selected = [_quoted(column.name) for column in columns]
    selected += [f"WRITETIME({_quoted(column.name)})" for column in others]
    selected += [f"TTL({_quoted(column.name)})" for column in others]
    # One page: a second page would be read at a later time.
    statement = SimpleStatement(f"SELECT {', '.join(selected)} FROM {table.keyspace_name}.{table.name}", fetch_size=None)
    # The driver's compiled reader fails on nulls in a list, which TTL() of a collection returns for elements
    # without a TTL.
    session.client_protocol_handler = _ProtocolHandler
    now, result = _within_a_second(lambda: list(session.execute(statement)))
    return now, [_row(columns, others, values) for values in result]


def _within_a_second(query: Callable[[], Any]) -> tuple[int, Any]:
    """Query again until the clock before and after shows the same second, so that the `now` of the TTLs is
    known.
    """
    for _ in range(ATTEMPTS):
        time.sleep(1.0 - time.time() % 1.0)
        before = int(time.time())
        result = query()
        if int(time.time()) == before:
            return before, result
    raise ServiceError(f"the cluster took more than a second to answer, {ATTEMPTS} times in a row; the machine may be busy")


def _row(columns: list[ColumnMetadata], others: list[ColumnMetadata], values: Iterable[Any]) -> Row:
    fields = iter(values)
    row: Row = {"values": {column.name: as_json(next(fields), column.cql_type) for column in columns}}
    row["writetime"] = _present(others, fields)
    row["ttl"] = _present(others, fields)
    return row


def _present(columns: list[ColumnMetadata], fields: Any) -> dict[str, Any]:
    """Writetimes or TTLs by column; a list of nulls counts as none."""
    found = {column.name: next(fields) for column in columns}
    return {name: value for name, value in found.items() if value is not None and not (isinstance(value, list) and set(value) <= {None})}


def as_json(value: Any, cql_type: str) -> Any:
    """A driver's value of a CQL type (`map<text, int>`, `frozen<list<uuid>>`, …) as JSON."""
    if value is None:
        return None
    name, arguments = _parse(cql_type)
    if name == "frozen":
        return as_json(value, arguments[0])
    if name == "map":
        return sorted([as_json(key, arguments[0]), as_json(item, arguments[1])] for key, item in value.items())
    if name in ("list", "set"):
        items = [as_json(item, arguments[0]) for item in value]
        return sorted(items) if name == "set" else items
    return _SCALARS.get(name, str)(value)


def _parse(cql_type: str) -> tuple[str, list[str]]:
    """`map<text, list<int>>` as ("map", ["text", "list<int>"])."""
    name, bracket, inside = cql_type.partition("<")
    if not bracket:
        return name, []
    arguments, depth = [""], 0
    for character in inside[:-1]:
        depth += (character == "<") - (character == ">")
        if character == "," and depth == 0:
            arguments.append("")
        else:
            arguments[-1] += character
    return name, [argument.strip() for argument in arguments]


def _float(value: float) -> float | str:
    return value if math.isfinite(value) else str(value)


def _timestamp(value: datetime) -> str:
    return value.replace(tzinfo=UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")


def _same(value: Any) -> Any:
    return value


# Whatever is not here is text as Python writes it: uuid, inet, decimal, varint, date, time.
_SCALARS: dict[str, Callable[[Any], Any]] = {
    "ascii": _same,
    "text": _same,
    "boolean": _same,
    "bigint": _same,
    "int": _same,
    "smallint": _same,
    "tinyint": _same,
    "double": _float,
    "float": _float,
    "blob": bytes.hex,
    "timestamp": _timestamp,
}


def _quoted(name: str) -> str:
    return '"' + name.replace('"', '""') + '"'
