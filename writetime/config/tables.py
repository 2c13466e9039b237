"""The keys `tables` and `columns`: what is captured, and what of it is published."""

from __future__ import annotations

import re
from collections.abc import Iterator
from fnmatch import fnmatchcase
from typing import Annotated, Any, Literal

from pydantic import Field, SecretStr, field_validator, model_validator

from writetime.config.base import COMMAS, LOWER, Model, pattern_list
from writetime.events import masking

_OF_NO_PATTERN = "\\\"'`()|+^${}"
"""What patterns of tables never have, but regular expressions and quoted names."""
_MOST_CHARACTERS = 32_767
NotInLog = Literal["alarm", "read", "leave_out"]


class TablesConfig(Model):
    """Which tables are captured. Only tables with `cdc = true`, now or before, can be."""

    include: Annotated[list[str], COMMAS] = Field(
        default=["*.*"], description="keyspace.table patterns, as a list or separated by commas; `*` stands for any text."
    )
    exclude: Annotated[list[str], COMMAS] = Field(
        default=[], description="Patterns that are excluded. A name without `*`, `?` or `[`: see `columns.unmatched`."
    )
    not_in_log: Annotated[NotInLog, LOWER] = Field(
        default="alarm",
        description="Captured tables whose writes reach no commit log: those of Accord (transactional_mode other than off), of tracked "
        "keyspaces, and of those with durable_writes = false. alarm: they are reported as a failure. read: cdc_bootstrap reads them "
        "again and again; events and rows come from it alone. leave_out: nothing is taken of them.",
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

    @property
    def left_out(self) -> list[str]:
        """The tables that are excluded by name."""
        return [pattern for pattern in self.exclude if not set("*?[") & set(pattern)]

    @field_validator("include", "exclude")
    @classmethod
    def _are_patterns(cls, patterns: list[str]) -> list[str]:
        found = [pattern.strip() for pattern in patterns]
        for pattern in found:
            keyspace, dot, table = pattern.partition(".")
            if not dot:
                raise ValueError(f"`{pattern}` is not a keyspace.table pattern; did you mean `{pattern}.*`?")
            if not keyspace or not table:
                raise ValueError(f"`{pattern}` is not a keyspace.table pattern; `*.*` stands for all tables")
            if odd := next((sign for sign in _OF_NO_PATTERN if sign in pattern), None):
                raise ValueError(
                    f"`{pattern}` has a {odd}: it is no regular expression, and names are not quoted in it; `*` stands for any text, "
                    "`?` for one character"
                )
        return found


class ColumnsConfig(Model):
    """Which columns and rows are published, and how. Further keys: `column.mask.hash.<algorithm>.with.salt`,
    `column.mask.with.<n>.chars` and `column.truncate.to.<n>.chars`. Patterns are regular expressions for the
    whole of keyspace.table.column, in either case, as a list or separated by commas."""

    include: list[str] = Field(default=[], alias="column.include.list", description="Only these columns, and all keys.")
    exclude: list[str] = Field(default=[], alias="column.exclude.list", description="All columns but these.")
    fields: list[str] = Field(
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
        default={},
        description="Filter of published rows by keyspace.table, in either case: a Python expression such as `region == 'eu' and "
        "total > 3`.",
    )
    unmatched: Literal["stop", "alarm"] = Field(
        default="stop",
        description="What happens if a rule, or a name in `tables.exclude`, fits no column or table that the cluster has or had. stop: no "
        "batch is planned. alarm: cdc_watch fails, and batches go on; for rules of tables that are created later. The status and the page "
        "name such rules.",
    )

    @model_validator(mode="before")
    @classmethod
    def _joins_spellings(cls, given: Any) -> Any:
        """One list for each rule, however many keys say it: the number of a mask may be written 8 or 08, a hash sha256 or
        v2.SHA-256."""
        if not isinstance(given, dict):
            return given
        joined: dict[str, Any] = {}
        for key, value in given.items():
            for name, number, patterns in _rules_in(str(key), value):
                if number is None:
                    joined[name] = patterns
                else:
                    joined.setdefault(name, {}).setdefault(number, []).extend(patterns)
        return joined

    @field_validator("fields")
    @classmethod
    def _are_names(cls, names: list[str]) -> list[str]:
        plain = [masking.plain_name(name) for name in names]
        for name in plain:
            if name.count(".") < 2:
                raise ValueError(f"`{name}` is not keyspace.table.column, nor a field within one")
        return plain

    @field_validator("rows")
    @classmethod
    def _are_filters(cls, rows: dict[str, str]) -> dict[str, str]:
        found: dict[str, str] = {}
        spelled: dict[str, str] = {}
        for table, text in rows.items():
            name = masking.plain_name(table)
            if name.count(".") != 1:
                raise ValueError(f"`{table}` is not keyspace.table")
            if (other := spelled.setdefault(name.lower(), table)) != table:
                raise ValueError(f"`{other}` and `{table}` are one table: join both filters with `and`")
            masking.parse_filter(text)
            found[name] = text
        return found

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
_PATTERNS = ("include", "exclude", "column.include.list", "column.exclude.list")
_NAMES = ("fields", "field.exclude.list")
_LITERAL = re.compile(r"(?:\w|\\?\.)*")
"""A pattern that is a name, with dots that are escaped or not."""


def _rules_in(key: str, value: Any) -> Iterator[tuple[str, str | int | None, Any]]:
    """What a key says: the model's key, the number or algorithm within it (None: there is none), and the value."""
    for name, of_key in _BY_NUMBER.items():
        if found := of_key.fullmatch(key):
            yield name, _number(name, found[1]), _patterns(key, value)
            return
        if key == name and isinstance(value, dict):
            for number, patterns in value.items():
                yield name, _number(name, str(number)), _patterns(f"{key}.{number}", patterns)
            return
    if key in _PATTERNS:
        value = _patterns(key, value)
    elif key in _NAMES and isinstance(value, str):
        value = pattern_list(value)
    yield key, None, value


def _number(name: str, text: str) -> str | int:
    if name == "hashes":
        return masking.algorithm(text)
    try:
        number = int(text)
    except ValueError:
        number = -1
    # Python counts a negative number from the end: -1 would show all but the last character.
    if number not in range(_MOST_CHARACTERS + 1):
        raise ValueError(f"`{name}.{text}`: a number of characters from 0 to {_MOST_CHARACTERS} is due")
    return number


def _patterns(key: str, value: Any) -> list[str]:
    """The patterns of a key. ValueError for what is no list of patterns, and for a pattern that cannot fit any column."""
    patterns = pattern_list(value) if isinstance(value, str) else value
    if not isinstance(patterns, list) or not all(isinstance(pattern, str) for pattern in patterns):
        raise ValueError(f"`{key}`: a list of patterns is due, or a text with commas between them")
    found = [pattern.strip() for pattern in patterns]
    for pattern in found:
        _check_pattern(key, pattern)
    return found


def _check_pattern(key: str, pattern: str) -> None:
    try:
        re.compile(pattern)
    except re.error as error:
        raise ValueError(f"`{key}`: `{pattern}` is not a regular expression: {error}") from error
    if quote := next((each for each in "\"'`" if each in pattern), None):
        raise ValueError(f"`{key}`: `{pattern}` has a {quote}: names are not quoted in a pattern, and fit in either case")
    if len(pattern_list(pattern)) > 1:
        raise ValueError(f"`{key}`: `{pattern}` is several patterns: make each an item of the list; a comma in a name is `[,]`")
    if pattern and _LITERAL.fullmatch(pattern) and pattern.count(".") < 2:
        raise ValueError(f"`{key}`: `{pattern}` is not keyspace.table.column; did you mean `.*\\.{pattern}`?")
