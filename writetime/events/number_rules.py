"""Which `decimal` and `varint` columns of current rows are numbers with a fixed number of digits, by the rules of
`warehouse.decimal` and `warehouse.varint`, and which values fit them.

A value fits if the column holds it exactly; nothing is ever rounded. Primary keys stay text: their spelling
identifies a row. Must not know Arrow."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from decimal import Decimal
from fnmatch import fnmatchcase
from typing import Final, NamedTuple

from writetime.cassandra.schema.model import Column, Table
from writetime.errors import DecodeError
from writetime.events.type_mapping import MAX_PRECISION
from writetime.events.values import to_digits

_FORM: Final = re.compile(r"decimal\(\s*(\d{1,3})\s*(?:,\s*(\d{1,3})\s*)?\)", re.IGNORECASE)
_WILDCARDS: Final = frozenset("*?[")


class Digits(NamedTuple):
    """DECIMAL(precision, scale) of SQL: digits in all, and after the point."""

    precision: int
    scale: int

    def __str__(self) -> str:
        return f"DECIMAL({self.precision}, {self.scale})"

    def fitted(self, text: str) -> Decimal | None:
        """The number with that text, with exactly this scale; None if it has more digits before or after the
        point. ValueError if the text is no finite number."""
        try:
            number = Decimal(text)
        except ArithmeticError as error:
            raise ValueError(f"{text[:40]!r} is not a number") from error
        if not number.is_finite():
            raise ValueError(f"{text[:40]!r} is not a number")
        try:
            return to_digits(number, *self, "number")
        except DecodeError:
            return None


def parse(text: str) -> Digits | None:
    """`decimal(p)` or `decimal(p, s)`; None for `text`. ValueError for anything else."""
    if text.strip().lower() == "text":
        return None
    match = _FORM.fullmatch(text.strip())
    found = Digits(int(match[1]), int(match[2] or 0)) if match else Digits(0, 0)
    if not (1 <= found.precision <= MAX_PRECISION and found.scale <= found.precision):
        raise ValueError(f"`{text}` is neither text nor decimal(p, s) with at most {MAX_PRECISION} digits, s of them after the point")
    return found


@dataclass(frozen=True)
class NumberRules:
    """Types by pattern of keyspace.table.column, of columns of each CQL type. The first pattern that matches
    decides; text if none does."""

    by_type: Mapping[str, Mapping[str, Digits | None]] = field(default_factory=dict)

    def of(self, table: Table) -> dict[str, Digits]:
        """The columns that are numbers, by CQL name."""
        found = {column.name: self._of_column(table, column) for column in table.columns.values() if not _is_key(column)}
        return {name: digits for name, digits in found.items() if digits is not None}

    def rejection_reason(self, table: Table) -> str | None:
        """Why a rule does not fit the table, or None: it names a column that it cannot apply to."""
        for kind, rules in self.by_type.items():
            for column in table.columns.values():
                full = f"{table.full_name}.{column.name}"
                named = [pattern for pattern, digits in rules.items() if digits and _names_one(pattern) and fnmatchcase(full, pattern)]
                if named and _is_key(column):
                    return f"`warehouse.{kind}`: {column.name} is part of the primary key, which stays text"
                if named and column.type != kind:
                    return f"`warehouse.{kind}`: {column.name} is {column.type}"
        return None

    def _of_column(self, table: Table, column: Column) -> Digits | None:
        full, rules = f"{table.full_name}.{column.name}", self.by_type.get(column.type, {})
        return next((digits for pattern, digits in rules.items() if fnmatchcase(full, pattern)), None)


def _is_key(column: Column) -> bool:
    return column.kind in ("partition_key", "clustering")


def _names_one(pattern: str) -> bool:
    """Whether the pattern names a column, not several."""
    return not _WILDCARDS & set(pattern.rpartition(".")[2])
