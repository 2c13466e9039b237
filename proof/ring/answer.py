"""Reads the cluster's captured tables at ALL: every row with the writetime and expiry of its columns, in the
form of `values`.

Non-frozen collections and user types have one writetime and TTL per element: the greatest writetime counts,
and the earliest expiry, which is when the value changes next. Before Cassandra 5.0 CQL returns neither of
them. `Answer.to_json` and `from_json` store an answer for a replay.
"""

from __future__ import annotations

import json
import time
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, field
from decimal import Decimal
from typing import Any, ClassVar, Self

from cassandra import ReadFailure
from cassandra.cluster import Session
from cassandra.protocol import ResultMessage, _ProtocolHandler
from cassandra.query import SimpleStatement

from proof.ring.values import Json, from_ring
from writetime.events.naming import to_column

OWN_KEYSPACE = "proof_filler"
SINGLE_KEYSPACE = "proof_single"
"""With one replica: what a node takes with it when it dies is in the log and not in the ring, so nothing of
it is compared.
"""


class _RawResult(ResultMessage):
    """Rows as raw bytes: the driver has no Python value for some CQL values."""

    def recv_results_rows(self, f: Any, protocol_version: int, user_type_map: Any, result_metadata: Any, *_: Any) -> None:
        self.recv_results_metadata(f, user_type_map)
        columns = self.column_metadata or result_metadata
        (count,) = (int.from_bytes(f.read(4), "big", signed=True),)
        self.column_names = [column[2] for column in columns]
        self.column_types = [column[3] for column in columns]
        self.parsed_rows = [tuple(self.recv_row(f, len(columns))) for _ in range(count)]


class RawHandler(_ProtocolHandler):
    """For `Session.client_protocol_handler`."""

    message_types_by_opcode: ClassVar = {**_ProtocolHandler.message_types_by_opcode, ResultMessage.opcode: _RawResult}


@dataclass(frozen=True)
class Row:
    """A row: values by the column's name in the warehouse; writetimes (µs) and expiries (s) by CQL name, of
    what is not null.
    """

    key: str
    values: dict[str, Json]
    writetime: dict[str, int] = field(default_factory=dict)
    expires_at: dict[str, int] = field(default_factory=dict)


@dataclass(frozen=True)
class TableAnswer:
    """A table at one time. `slack` (s): how much later than `read_at` the ring may have looked at its clock.
    `numbers` are the clustering columns of type decimal: 1 and 1.00 are one row, and it depends on the
    replica which of them is shown. `untold` are the columns, by CQL name, of which the ring tells no
    writetimes and expiries.
    """

    keyspace: str
    name: str
    id: str
    keys: list[str]
    rows: dict[str, Row]
    read_at: int = 0
    slack: int = 1
    numbers: list[str] = field(default_factory=list)
    untold: list[str] = field(default_factory=list)

    @property
    def label(self) -> str:
        return f"{self.keyspace}.{self.name}"


@dataclass(frozen=True)
class Answer:
    """All captured tables at one quiet point. `unreadable`: tables (`keyspace.name`) that replicas failed to
    read, with the error: they are not compared.
    """

    tables: list[TableAnswer]
    unreadable: dict[str, str] = field(default_factory=dict)

    def to_json(self) -> str:
        return json.dumps([asdict(table) for table in self.tables], indent=1)

    @classmethod
    def from_json(cls, text: str) -> Self:
        tables = [TableAnswer(**{**t, "rows": {key: Row(**row) for key, row in t["rows"].items()}}) for t in json.loads(text)]
        return cls(tables)


def key_of(values: dict[str, Json], keys: Sequence[str]) -> str:
    """The primary key as text, by columns of the warehouse."""
    return json.dumps([values[name] for name in keys])


def with_numbers(values: dict[str, Json], numbers: Sequence[str]) -> dict[str, Json]:
    """The values, those columns of them in the one spelling that numbers of equal value share."""
    return {name: _number(value) if name in numbers and value else value for name, value in values.items()}


def _number(text: Json) -> str:
    sign, digits, exponent = Decimal(str(text)).as_tuple()
    significant = "".join(map(str, digits)).rstrip("0")
    return f"{'-' * sign}{significant}e{int(exponent) + len(digits) - len(significant)}" if significant else "0"


def read(session: Session, *, page_rows: int | None = None) -> Answer:
    """Read every table that is captured now. The session must be at ALL; it cannot be used for anything else
    afterwards.

    Without `page_rows`, each table comes in one page, so that all rows are read at one time; with more than a
    coordinator can hold, in many, which is right only while nobody writes and nothing expires.
    """
    described = list(_captured(session))
    of_elements = int(session.execute("SELECT release_version FROM system.local").one().release_version.split(".")[0]) >= 5
    session.client_protocol_handler = RawHandler
    found = Answer([])
    for about in described:
        try:
            found.tables.append(_read_table(session, about, page_rows, of_elements=of_elements))
        except ReadFailure as error:
            # Every replica answered, and some of them that it failed: its log says how. (5.0.6: a
            # NullPointerException in Row.Merger.)
            found.unreadable[f"{about.keyspace}.{about.name}"] = str(error)
    return found


@dataclass(frozen=True)
class Captured:
    """A table whose cdc is on: its columns with their kinds, clustering columns of type decimal, and columns
    that have elements. `hidden`: columns that cannot be selected, of a table WITH COMPACT STORAGE.
    """

    keyspace: str
    name: str
    id: str
    columns: list[tuple[str, str]]
    numbers: list[str]
    multicell: list[str]
    hidden: list[str]


def _captured(session: Session) -> Iterator[Captured]:
    for row in session.execute("SELECT keyspace_name, table_name, id, cdc FROM system_schema.tables"):
        if not row.cdc or row.keyspace_name.startswith("system") or row.keyspace_name == SINGLE_KEYSPACE:
            continue
        query = "SELECT column_name, kind, position, type FROM system_schema.columns WHERE keyspace_name = %s AND table_name = %s"
        columns = list(session.execute(query, (row.keyspace_name, row.table_name)))
        shown = _shown(session, row.keyspace_name, row.table_name)
        hidden = [column.column_name for column in columns if column.column_name not in shown]
        ordered = sorted(
            (column for column in columns if column.column_name in shown),
            key=lambda column: (_RANK[column.kind], column.position, column.column_name),
        )
        numbers = [column.column_name for column in ordered if (column.kind, column.type) == ("clustering", "decimal")]
        found = session.execute("SELECT type_name FROM system_schema.types WHERE keyspace_name = %s", (row.keyspace_name,))
        user_types = {name for each in found for name in (each.type_name, quoted(each.type_name))}
        multicell = [c.column_name for c in ordered if c.type in user_types or c.type.startswith(("list<", "set<", "map<"))]
        kinds = [(column.column_name, column.kind) for column in ordered]
        yield Captured(row.keyspace_name, row.table_name, str(row.id), kinds, numbers, multicell, hidden)


def _shown(session: Session, keyspace: str, name: str) -> set[str]:
    """The columns of SELECT *: a table WITH COMPACT STORAGE has others that cannot be selected."""
    prepared = session.prepare(f"SELECT * FROM {quoted(keyspace)}.{quoted(name)}")
    return {column[2] for column in prepared.result_metadata}


_RANK = {"partition_key": 0, "clustering": 1, "static": 2, "regular": 3}


def _read_table(session: Session, about: Captured, page_rows: int | None, *, of_elements: bool) -> TableAnswer:
    numbers = [to_column(column) for column in about.numbers]
    untold = about.hidden if of_elements else [*about.hidden, *about.multicell]
    keys = [column for column, kind in about.columns if _RANK[kind] < 2]
    others = [column for column, kind in about.columns if _RANK[kind] >= 2 and column not in untold]
    selected = [quoted(column) for column, _ in about.columns]
    selected += [f"{function}({quoted(column)})" for function in ("WRITETIME", "TTL") for column in others]
    table = f"{quoted(about.keyspace)}.{quoted(about.name)}"
    statement = SimpleStatement(f"SELECT {', '.join(selected)} FROM {table}", fetch_size=page_rows)
    began, slack, found = int(time.time()), 1, []
    for read_at, kinds, page in _pages(session, statement):
        slack = max(slack, int(time.time()) - read_at + 1)
        found += [_row(about, others, keys, numbers, kinds, raw, read_at) for raw in page]
    rows = {row.key: row for row in found}
    if len(rows) != len(found):
        raise AssertionError(f"{about.keyspace}.{about.name}: the ring has a key twice")
    return TableAnswer(about.keyspace, about.name, about.id, [to_column(key) for key in keys], rows, began, slack, numbers, untold)


def _pages(session: Session, statement: SimpleStatement) -> Iterator[tuple[int, list[Any], list[tuple[bytes | None, ...]]]]:
    """Each page of an answer: when it was asked for (s), the columns' types, the rows. The driver's own rows
    are named tuples: it could not name these columns.
    """
    read_at = int(time.time())
    future = session.execute_async(statement)
    while True:
        result = future.result()
        yield read_at, result.column_types, [tuple(row) for row in result.current_rows]
        if not future.has_more_pages:
            return
        read_at = int(time.time())
        future.start_fetching_next_page()


def _row(
    about: Captured,
    others: list[str],
    keys: list[str],
    numbers: list[str],
    kinds: list[Any],
    raw: tuple[bytes | None, ...],
    now: int,
) -> Row:
    columns = about.columns
    elements = [column in about.multicell for column, _ in columns] + [False] * (len(kinds) - len(columns))
    decoded = [from_ring(*given) for given in zip(kinds, raw, elements, strict=True)]
    values = with_numbers({to_column(column): value for (column, _), value in zip(columns, decoded, strict=False)}, numbers)
    start = len(columns)
    writetimes = dict(zip(others, decoded[start : start + len(others)], strict=True))
    ttls = dict(zip(others, decoded[start + len(others) :], strict=True))
    return Row(
        key_of(values, [to_column(key) for key in keys]),
        values,
        {name: found for name, value in writetimes.items() if (found := _pick(value, max)) is not None},
        {name: now + found for name, value in ttls.items() if (found := _pick(value, min)) is not None},
    )


def _pick(value: Any, pick: Any) -> int | None:
    elements = [item for item in (value if isinstance(value, list) else [value]) if item is not None]
    return int(pick(elements)) if elements else None


def quoted(name: str) -> str:
    return '"' + name.replace('"', '""') + '"'
