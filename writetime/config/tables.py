"""The keys `tables` and `columns`: what is captured, and what of it is published."""

from __future__ import annotations

import re
from fnmatch import fnmatchcase
from typing import Annotated, Any, Literal

from pydantic import Field, SecretStr, field_validator, model_validator

from writetime.config.base import COMMAS, LOWER, Model, comma_list
from writetime.events import masking

NotInLog = Literal["alarm", "read", "leave_out"]


class TablesConfig(Model):
    """Which tables are captured. Only tables with `cdc = true`, now or before, can be."""

    include: Annotated[list[str], COMMAS] = Field(
        default=["*.*"], description="keyspace.table patterns, as a list or separated by commas; `*` stands for any text."
    )
    exclude: Annotated[list[str], COMMAS] = Field(default=[], description="Patterns that are excluded.")
    not_in_log: Annotated[NotInLog, LOWER] = Field(
        default="alarm",
        description="Captured tables whose writes reach no commit log: those of Accord (transactional_mode other than off), and of tracked "
        "keyspaces. alarm: they are reported as a failure. read: cdc_bootstrap reads them again and again; events and rows come from it "
        "alone. leave_out: nothing is taken of them.",
    )
    not_in_log_seconds: int = Field(
        default=3600,
        ge=60,
        description="With `not_in_log: read`, a reading begins this long after the one before; cdc_bootstrap looks each time it is "
        "scheduled (`airflow.bootstrap_schedule`).",
    )

    def captures(self, full_name: str) -> bool:
        """Whether a table, as keyspace.table, is captured if it has cdc."""
        included = any(fnmatchcase(full_name, pattern) for pattern in self.include)
        return included and not any(fnmatchcase(full_name, pattern) for pattern in self.exclude)

    @field_validator("include", "exclude")
    @classmethod
    def _patterns_have_a_keyspace(cls, patterns: list[str]) -> list[str]:
        for pattern in patterns:
            if "." not in pattern:
                raise ValueError(f"`{pattern}` is not a keyspace.table pattern; did you mean `{pattern}.*`?")
        return patterns


class ColumnsConfig(Model):
    """Which columns and rows are published, and how. Further keys: `column.mask.hash.<algorithm>.with.salt`,
    `column.mask.with.<n>.chars` and `column.truncate.to.<n>.chars`. Patterns are regular expressions for the
    whole of keyspace.table.column, as a list or separated by commas."""

    include: list[str] = Field(default=[], alias="column.include.list", description="Only these columns, and all keys.")
    exclude: list[str] = Field(default=[], alias="column.exclude.list", description="All columns but these.")
    fields: Annotated[list[str], COMMAS] = Field(
        default=[],
        alias="field.exclude.list",
        description="Names instead of patterns: columns that are excluded (keyspace.table.column), and fields of user types that "
        "are null (keyspace.table.column.field).",
    )
    hashes: dict[str, list[str]] = Field(default={}, description="Columns that are hashed, by algorithm.")
    masks: dict[int, list[str]] = Field(default={}, description="Columns replaced by asterisks, by number of asterisks.")
    cuts: dict[int, list[str]] = Field(default={}, description="Texts that are truncated, by number of characters kept.")
    salt: SecretStr | None = Field(default=None, description="Salt of the hashes; write ${NAME} and set it in the environment.")
    rows: dict[str, str] = Field(
        default={}, description="Filter of published rows by keyspace.table: a Python expression such as `region == 'eu' and total > 3`."
    )

    @model_validator(mode="before")
    @classmethod
    def _gathers_by_number(cls, given: Any) -> Any:
        if not isinstance(given, dict):
            return given
        plain: dict[str, Any] = {}
        for key, value in given.items():
            where, found = next(((name, m[1]) for name, each in _BY_NUMBER.items() if (m := each.fullmatch(str(key)))), (key, None))
            value = comma_list(value) if str(key).startswith("column.") else value
            if found is None:
                plain[where] = value
            else:
                plain[where] = {**plain.get(where, {}), found: value}
        return plain

    @field_validator("fields")
    @classmethod
    def _are_names(cls, names: list[str]) -> list[str]:
        for name in names:
            if name.count(".") < 2:
                raise ValueError(f"`{name}` is not keyspace.table.column, nor a field within one")
        return names

    @field_validator("include", "exclude")
    @classmethod
    def _are_patterns(cls, patterns: list[str]) -> list[str]:
        for pattern in patterns:
            try:
                re.compile(pattern)
            except re.error as error:
                raise ValueError(f"`{pattern}` is not a regular expression: {error}") from error
        return patterns

    @field_validator("hashes", "masks", "cuts")
    @classmethod
    def _hold_patterns(cls, by_number: dict[Any, list[str]]) -> dict[Any, list[str]]:
        for patterns in by_number.values():
            cls._are_patterns(patterns)
        return {masking.algorithm(key) if isinstance(key, str) else key: patterns for key, patterns in by_number.items()}

    @field_validator("rows")
    @classmethod
    def _are_filters(cls, rows: dict[str, str]) -> dict[str, str]:
        for text in rows.values():
            masking.parse_filter(text)
        return rows

    @model_validator(mode="after")
    def _fits_together(self) -> ColumnsConfig:
        if self.include and self.exclude:
            raise ValueError("column.include.list and column.exclude.list exclude each other")
        if self.hashes and (self.salt is None or not self.salt.get_secret_value()):
            raise ValueError("hashes need a `salt`: write ${NAME} and set it in the environment")
        return self

    @property
    def rules(self) -> masking.Rules:
        """The rules as the library takes them."""
        salt = self.salt.get_secret_value() if self.salt else ""
        return masking.Rules(self.include, self.exclude, self.fields, self.hashes, self.masks, self.cuts, self.rows, salt)


_BY_NUMBER = {
    "hashes": re.compile(r"column\.mask\.hash(?:\.v2)?\.([\w-]+)\.with\.salt"),
    "masks": re.compile(r"column\.mask\.with\.(\d+)\.chars"),
    "cuts": re.compile(r"column\.truncate\.to\.(\d+)\.chars"),
}
