"""CQL of single statements on tables of the model: text with `?` and the values. Makes no random choices."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from proof.ring.generate.tables import Table
from proof.ring.generate.values import Raw, quoted

Statement = tuple[str, tuple[Any, ...]]
Term = tuple[str, tuple[Any, ...]]
Using = Mapping[str, int]


def term(value: Any) -> Term:
    """A value where CQL takes one."""
    return (f"blobas{value.kind}(0x{value.data.hex()})", ()) if isinstance(value, Raw) else ("?", (value,))


def joined(terms: Sequence[Term], separator: str) -> Term:
    return separator.join(text for text, _ in terms), tuple(value for _, values in terms for value in values)


def using(options: Using) -> Term:
    """` USING TTL ? AND TIMESTAMP ?`, or nothing."""
    text, values = joined([(f"{name} ?", (value,)) for name, value in options.items()], " AND ")
    return (f" USING {text}" if text else "", values)


def key(table: Table, partition: Sequence[Any], clustering: Sequence[Any] = ()) -> Term:
    """`"p" = ? AND "c" = ?`: the partition key and as many clustering columns as there are values."""
    columns = [*table.partition, *table.clustering[: len(clustering)]]
    values = zip(columns, (*partition, *clustering), strict=True)
    return joined([prefixed(f"{quoted(column.name)} = ", term(value)) for column, value in values], " AND ")


def prefixed(text: str, what: Term) -> Term:
    return text + what[0], what[1]


def insert(
    table: Table,
    partition: Sequence[Any],
    clustering: Sequence[Any],
    columns: Mapping[str, Any],
    options: Using | None = None,
    condition: str = "",
) -> Statement:
    """INSERT of a row, or without clustering of static columns alone."""
    names = [column.name for column in (*table.partition, *table.clustering[: len(clustering)])] + list(columns)
    terms, values = joined([term(value) for value in (*partition, *clustering, *columns.values())], ", ")
    tail, more = using(options or {})
    return f"INSERT INTO {table.cql} ({', '.join(map(quoted, names))}) VALUES ({terms}){condition}{tail}", values + more


def update(table: Table, sets: Sequence[Term], where: Term, options: Using | None = None, condition: Term = ("", ())) -> Statement:
    """UPDATE … SET …; a set is `"c" = ?` with its value."""
    head, values = using(options or {})
    changes, changed = joined(sets, ", ")
    return f"UPDATE {table.cql}{head} SET {changes} WHERE {where[0]}{condition[0]}", values + changed + where[1] + condition[1]


def delete(table: Table, where: Term, what: Sequence[Term] = (), options: Using | None = None, condition: Term = ("", ())) -> Statement:
    """DELETE of columns, elements (`"m"[?]`), or rows."""
    columns, values = joined(what, ", ")
    tail, more = using(options or {})
    columns = f" {columns}" if columns else ""
    return f"DELETE{columns} FROM {table.cql}{tail} WHERE {where[0]}{condition[0]}", values + more + where[1] + condition[1]


def assign(column: str, value: Any) -> Term:
    """`"c" = ?`."""
    return prefixed(f"{quoted(column)} = ", term(value))


def put(name: str, element: Any, value: Any) -> Term:
    """`"m"[?] = ?`."""
    return prefixed(name, joined([part(element), ("?", (value,))], " = "))


def part(element: Any) -> Term:
    """`[?]`."""
    text, values = term(element)
    return f"[{text}]", values
