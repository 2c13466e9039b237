"""Rules for published data: excluded columns, masked columns, filtered rows. The only place of these rules.

Strategy: a table is projected to another one, without excluded columns and with `text` for hashed or masked
ones. Values are changed where they are typed (spark_jobs.stages.typed_events); everything downstream
(warehouse, topics, files) sees the projected table only. State, archive and quarantine keep the original
bytes: they are secret stores.

    column.exclude.list, column.include.list     key columns always stay
    column.mask.hash.<algorithm>.with.salt       HMAC of the value's text, keyed by the salt, in hex; equal values stay equal
    column.mask.with.<n>.chars                   n asterisks
    column.truncate.to.<n>.chars                 the first n characters of a text
    field.exclude.list                           names: of columns, as the first rule; of fields of user types, which are null

A pattern is a regular expression for the whole of `<keyspace>.<table>.<column>`, in letters of either case; a
name is that text itself, or followed by fields, in either case. The first rule that fits, in the order above, is the one.
A rule that fits nothing is none: `Rules.unmatched` names those. Rules stay with a key column that is renamed.
null stays null. A filter is a Python expression of comparisons, `and`, `or`, `not`, `in`, column names and
constants; what it compares with null is not so. Knows no sink.
"""

from __future__ import annotations

import ast
import hashlib
import hmac
import json
import re
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from decimal import Decimal
from functools import lru_cache, partial
from operator import itemgetter
from typing import Any, Final
from uuid import UUID

from writetime.cassandra.model import Mutation, PartitionUpdate, Row
from writetime.cassandra.schema.create_statements import identifier
from writetime.cassandra.schema.fingerprint import describe
from writetime.cassandra.schema.model import Column, Schema, Table, View
from writetime.cassandra.schema.system_tables import SYSTEM_KEYSPACES
from writetime.cassandra.token_ring import expect_replication
from writetime.cassandra.types.compound import MAX_PARTS
from writetime.cassandra.types.types import (
    EMPTY,
    CollectionType,
    CqlType,
    CustomType,
    NativeType,
    TupleType,
    Types,
    UdtType,
    VectorType,
    parse_type,
    parts,
)
from writetime.errors import SchemaError
from writetime.events.arrow import to_arrow_value
from writetime.events.converters import has_user_type, key_text
from writetime.events.json import to_json_value
from writetime.events.row_values import TableView

Values = Mapping[str, Any]
LEFT_OUT: Final = "tables.exclude"
Path = tuple[str, ...]
"""Names of fields in lower case, from the outermost."""
_PUBLISHED: Final = (NativeType, CollectionType, CustomType, TupleType, UdtType, VectorType)
"""The types that have a form in all outputs; the order of a clustering is no type here."""
_TEXTS: Final = frozenset({"text", "varchar", "ascii"})
_NUMBERS: Final = frozenset({"varint", "decimal"})
_COMPARED: Final[dict[type[ast.cmpop], Callable[[Any, Any], bool]]] = {
    ast.Eq: lambda a, b: a == b,
    ast.NotEq: lambda a, b: a != b,
    ast.Lt: lambda a, b: a < b,
    ast.LtE: lambda a, b: a <= b,
    ast.Gt: lambda a, b: a > b,
    ast.GtE: lambda a, b: a >= b,
    ast.In: lambda a, b: a in b,
    ast.NotIn: lambda a, b: a not in b,
}


@dataclass(frozen=True, slots=True)
class Rules:
    """The rules of a pipeline's configuration. `fields`: names of columns and of fields within them; `hashes`:
    patterns by algorithm; `masks`, `cuts`: by number of characters; `rows`: filters by `<keyspace>.<table>`; `left_out`: names of
    tables that are not captured, of which only `unmatched` knows."""

    include: Sequence[str] = ()
    exclude: Sequence[str] = ()
    fields: Sequence[str] = ()
    hashes: Mapping[str, Sequence[str]] = field(default_factory=dict)
    masks: Mapping[int, Sequence[str]] = field(default_factory=dict)
    cuts: Mapping[int, Sequence[str]] = field(default_factory=dict)
    rows: Mapping[str, str] = field(default_factory=dict)
    salt: str = field(default="", repr=False)
    left_out: Sequence[str] = ()

    def __bool__(self) -> bool:
        return any((self.include, self.exclude, self.fields, self.hashes, self.masks, self.cuts, self.rows, self.left_out))

    def of(self, table: Table, types: Types) -> TableRules:
        """The rules of one table. SchemaError for an undefined type."""
        found, names = TableRules(table, types), {each.lower() for each in self.fields}
        for name, column in table.columns.items():
            label = f"{table.keyspace}.{table.name}.{name}"
            key = column.kind in ("partition_key", "clustering")
            former = [f"{table.keyspace}.{table.name}.{each}" for each in table.former_names(column) if each not in table.columns]
            excluded = (each.lower() in names or _fits(self.exclude, each) for each in (label, *former))
            if any(excluded) or (self.include and not key and not _fits(self.include, label)):
                found.excluded.add(name)
            elif mask := self._mask(label) or self._mask_of_former(table, column):
                found.masks[name] = mask
            elif paths := {tuple(each[len(label) + 1 :].split(".")) for each in names if each.startswith(f"{label}.".lower())}:
                found.nested[name] = frozenset(paths)
        if (text := next((text for name, text in self.rows.items() if name.lower() == table.full_name.lower()), None)) is not None:
            found.filter = parse_filter(text)
        return found

    def unmatched(self, schema: Schema) -> list[Unmatched]:
        """The rules that fit no column or table, by all tables that are or were there."""
        tables = [with_dropped(table) for table in schema.tables.values() if table.keyspace not in SYSTEM_KEYSPACES]
        labels = dict.fromkeys(f"{t.full_name}.{name}" for t in tables for name in (*t.columns, *(each.name for each in t.former_keys)))
        names = {table.full_name.lower() for table in tables}
        found = [
            Unmatched(key, pattern)
            for key, patterns in self._patterns()
            for pattern in patterns
            if pattern and not any(_fits([pattern], label) for label in labels)
        ]
        found += [Unmatched("field.exclude.list", name) for name in self.fields if not any(_names(name, t, schema) for t in tables)]
        found += [Unmatched("rows", name) for name in self.rows if name.lower() not in names]
        return found + [Unmatched(LEFT_OUT, name) for name in self.left_out if name not in {t.full_name for t in schema.tables.values()}]

    def _patterns(self) -> Iterator[tuple[str, Sequence[str]]]:
        """The lists of patterns, each with the key that has it."""
        yield "column.include.list", self.include
        yield "column.exclude.list", self.exclude
        yield from ((f"column.mask.hash.{name}.with.salt", patterns) for name, patterns in self.hashes.items())
        yield from ((f"column.mask.with.{length}.chars", patterns) for length, patterns in self.masks.items())
        yield from ((f"column.truncate.to.{length}.chars", patterns) for length, patterns in self.cuts.items())

    def _mask_of_former(self, table: Table, column: Column) -> Mask | None:
        """The mask of a key column by a name that it had before it was renamed: it is hidden until the rule goes. If another
        column has the name now, a rule that no key can have is of that one."""
        for name in table.former_names(column):
            mask = self._mask(f"{table.keyspace}.{table.name}.{name}")
            if mask is not None and (mask.kind == "hash" or name not in table.columns):
                return mask
        return None

    def _mask(self, label: str) -> Mask | None:
        for algorithm, patterns in self.hashes.items():
            if _fits(patterns, label):
                return Mask("hash", algorithm=algorithm, salt=self.salt)
        for kind, by_length in (("mask", self.masks), ("cut", self.cuts)):
            for length, patterns in by_length.items():
                if _fits(patterns, label):
                    return Mask(kind, length=length)
        return None


@dataclass(frozen=True, slots=True)
class Unmatched:
    """A rule that fits nothing: the key within `columns`, or `tables.exclude`, and the pattern or name."""

    key: str
    rule: str

    def __str__(self) -> str:
        if self.key == LEFT_OUT:
            return f"`{self.key}`: `{self.rule}` fits no table (names of tables differ by case)"
        what = "table" if self.key == "rows" else "column"
        return f"`columns.{self.key}`: `{self.rule}` fits no {what}"


def rejection_reason(table: Table, schema: Schema, rules: Rules | None = None) -> str | None:
    """The reason why the table's rows cannot be published (an unknown type, an impossible rule), or None."""
    if table.view is not None and table.cdc and not table.dropped:
        return _of_view(table, table.view)
    try:
        _expect_bounded(table, schema.types)
        expect_replication(schema.keyspaces[table.keyspace].replication if table.keyspace in schema.keyspaces else {})
        TableView(table, schema.types)
        describe(table, schema.types)
        return None if rules is None else rules.of(table, schema.types).rejection_reason()
    except SchemaError as error:
        return str(error)
    except Exception as error:  # noqa: BLE001 - nothing here but what a node says of this table can be the cause
        return f"its definition is not usable: {type(error).__name__}: {error}"


def _expect_bounded(table: Table, types: Types) -> None:
    """Raises SchemaError for a type whose values cannot be published, and for more columns and fields than a table of
    the warehouse can have."""
    found = 0
    for column in table.columns.values():
        kinds = [*parts(parse_type(column.type, table.keyspace, types))]
        found += len(kinds)
        if odd := next((kind for kind in kinds if not isinstance(kind, _PUBLISHED)), None):
            raise SchemaError(
                f"column {column.name}: values of {odd} cannot be published", operation="read a table's types", obj=table.full_name
            )
        if found > MAX_PARTS:
            raise SchemaError(f"more than {MAX_PARTS} columns and fields", operation="read a table's types", obj=table.full_name)


def _of_view(table: Table, view: View) -> str:
    """A node builds the updates of its view from the rows that it has, so the logs lack deletions that the view's
    replicas apply."""
    name, base = (f"{identifier(table.keyspace)}.{identifier(each)}" for each in (table.name, view.base_table))
    return (
        "materialized views cannot be captured: the log of a view lacks deletions that its replicas apply, so deleted rows would stay. "
        f"ALTER MATERIALIZED VIEW {name} WITH cdc = false; and capture its base table {base}"
    )


@dataclass(frozen=True, slots=True)
class Mask:
    """The change of one column's values. `kind`: hash, mask or cut."""

    kind: str
    length: int = 0
    algorithm: str = ""
    salt: str = field(default="", repr=False)

    def compiled(self, kind: CqlType) -> Callable[[Any], Any]:
        """A function from a non-null value of a type to its published form."""
        if self.kind == "mask":
            return lambda _: "*" * self.length
        if self.kind == "cut":
            return lambda value: value[: self.length]
        text = _text_of(kind)
        # Made of hashlib's objects: a copy takes a third less than a new one, and than one of OpenSSL's own.
        keyed = hmac.new(self.salt.encode(), digestmod=partial(hashlib.new, self.algorithm))

        def hashed(value: Any) -> str:
            found = keyed.copy()
            found.update(text(value))
            return found.hexdigest()

        return hashed


@dataclass
class TableRules:
    """One table's rules. Travels to the executors."""

    table: Table
    types: Types
    excluded: set[str] = field(default_factory=set)
    masks: dict[str, Mask] = field(default_factory=dict)
    nested: dict[str, frozenset[Path]] = field(default_factory=dict)
    """Fields of user types that are null, by column."""
    filter: Filter | None = None

    def __bool__(self) -> bool:
        return bool(self.excluded or self.masks or self.nested or self.filter)

    @property
    def hidden(self) -> set[str]:
        """Columns whose values are not published as they are."""
        return self.excluded | self.masks.keys() | self.nested.keys()

    def rejection_reason(self) -> str | None:
        """The reason why the rules do not fit the table, or None."""
        for name, column in self.table.columns.items():
            key = column.kind in ("partition_key", "clustering")
            mask = self.masks.get(name)
            if key and (name in self.excluded or name in self.nested or (mask is not None and mask.kind != "hash")):
                return f"`columns`: {name} is part of the primary key, which can be hashed, but not excluded, masked or truncated"
            if mask is not None and mask.kind == "cut" and column.type not in _TEXTS:
                return f"`columns`: {name} is {column.type}, and only text can be truncated; hash or mask it"
        for name, paths in sorted(self.nested.items()):
            if missing := sorted(path for path in paths if not _has(self._kind(name), path)):
                return f"`columns`: {name} has no field {'.'.join(missing[0])} of a user type"
        unknown = sorted((self.filter.names if self.filter else set()) - self.table.columns.keys())
        return f"`columns.rows`: the table has no column {unknown[0]}" if unknown else None

    def shown(self) -> Table:
        """The table as published."""
        return replace(self.table, columns={n: self._shown(n, c) for n, c in self.table.columns.items() if n not in self.excluded})

    def _shown(self, name: str, column: Column) -> Column:
        mask = self.masks.get(name)
        return column if mask is None or mask.kind == "cut" else replace(column, type="text")

    def compiled(self) -> Callable[[dict[str, Any]], dict[str, Any]]:
        """A function from a row's (or key's, or bound's) values by CQL name to the published values."""
        changes, excluded = self.changes(), self.excluded
        if not changes and not excluded:
            return lambda values: values

        def change(values: dict[str, Any]) -> dict[str, Any]:
            shown = {name: value for name, value in values.items() if name not in excluded} if excluded else dict(values)
            for name, change_value in changes.items():
                if (value := shown.get(name)) is not None:
                    shown[name] = change_value(value)
            return shown

        return change

    def changes(self) -> dict[str, Callable[[Any], Any]]:
        """By column whose values are changed, a function from a non-null value to the published one."""
        masks: dict[str, Callable[[Any], Any]] = {name: mask.compiled(self._kind(name)) for name, mask in self.masks.items()}
        return masks | {name: partial(_without, self._kind(name), paths=paths) for name, paths in self.nested.items()}

    def keeps(self) -> Callable[[Values], bool]:
        """Whether a row, by its true values, is one that is shown."""
        if self.filter is None:
            return lambda _: True
        kinds, test = {name: self._kind(name) for name in self.filter.names}, self.filter.compiled()
        return lambda row: test({name: comparable(kind, row.get(name)) for name, kind in kinds.items()})

    def _kind(self, name: str) -> CqlType:
        return parse_type(self.table.columns[name].type, self.table.keyspace, self.types)


def _has(kind: CqlType, path: Path) -> bool:
    """Whether a type has that field of a user type, in itself or in its elements."""
    if not path:
        return True
    if isinstance(kind, UdtType):
        return any(_has(inner, path[1:]) for name, inner in kind.known_fields.items() if name.lower() == path[0])
    return any(_has(part, path) for part in _parts(kind))


def _without(kind: CqlType, value: Any, paths: Collection[Path]) -> Any:
    """The value with null in these fields."""
    if value is None or value is EMPTY or not paths:
        return value
    if isinstance(kind, UdtType):
        inner = {name: {path[1:] for path in paths if path[0] == name.lower()} for name in kind.known_fields}
        return {name: None if () in inner[name] else _without(kind.known_fields[name], part, inner[name]) for name, part in value.items()}
    if isinstance(kind, TupleType):
        return tuple(_without(part, each, paths) for part, each in zip(kind.fields, value, strict=True))
    if isinstance(kind, CollectionType) and kind.kind == "map":
        of_key, of_value = kind.elements
        return [(_without(of_key, key, paths), _without(of_value, each, paths)) for key, each in value]
    if isinstance(kind, CollectionType | VectorType):
        (element,) = _parts(kind)
        return [_without(element, each, paths) for each in value]
    return value


def _parts(kind: CqlType) -> tuple[CqlType, ...]:
    """The types within a type that is not a user type."""
    if isinstance(kind, CollectionType):
        return kind.elements
    if isinstance(kind, VectorType):
        return (kind.element,)
    return kind.fields if isinstance(kind, TupleType) else ()


def _names(name: str, table: Table, schema: Schema) -> bool:
    """Whether a name is that of a column of the table, or of a field within one."""
    for column, about in table.columns.items():
        label = f"{table.full_name}.{column}".lower()
        if name.lower() == label:
            return True
        if name.lower().startswith(f"{label}."):
            try:
                kind = parse_type(about.type, table.keyspace, schema.types)
            except SchemaError:
                # The table is rejected for it.
                return True
            if _has(kind, tuple(name.lower()[len(label) + 1 :].split("."))):
                return True
    return False


def _fits(patterns: Sequence[str], label: str) -> bool:
    return any(re.fullmatch(pattern, label, re.IGNORECASE | re.DOTALL) for pattern in patterns)


def _text_of(kind: CqlType) -> Callable[[Any], bytes]:
    """What stands for a value in its hash: a text itself, anything else as its JSON, of user types in the form that no ALTER
    TYPE changes: the hash of a key would be another one."""
    if str(kind) in _TEXTS:
        return lambda value: str(value).encode("utf-8", "surrogatepass")
    if has_user_type(kind):

        def of_key(value: Any) -> bytes:
            held = to_arrow_value(kind, value)
            return b"" if held is None else _key_text(kind)(held).encode("utf-8", "surrogatepass")

        return of_key

    def of_value(value: Any) -> bytes:
        shown = to_json_value(kind, value)
        return (shown if isinstance(shown, str) else _as_json(shown)).encode("utf-8", "surrogatepass")

    return of_value


_as_json: Final = json.JSONEncoder(separators=(",", ":")).encode
_key_text: Final = lru_cache(maxsize=4096)(key_text)
_PART_OF_NAME: Final = re.compile(r"""\s*(?:"((?:[^"]|"")+)"|([^".]*[^".\s]))\s*(?:\.|$)""")


def plain_name(text: str) -> str:
    """A name such as `shop."Orders" . name` without quotes, and without spaces around its dots. ValueError if it is none."""
    parts: list[str] = []
    at = 0
    while at < len(text) or not parts:
        found = _PART_OF_NAME.match(text, at)
        if found is None or (text[-1] == "." and found.end() == len(text)):
            raise ValueError(f"`{text}` is not a name of a table or a column")
        parts.append(found[2] if found[1] is None else found[1].replace('""', '"'))
        at = found.end()
    return ".".join(parts)


def algorithm(name: str) -> str:
    """A hash by its name here: SHA-256 is sha256. ValueError for one that is not to be had everywhere, or has
    no length."""
    plain = name.lower().replace("-", "")
    found = next((each for each in hashlib.algorithms_guaranteed if each.replace("_", "") == plain.replace("_", "")), None)
    if found is None or found.startswith("shake"):
        raise ValueError(f"`{name}` is not a known hash algorithm; use sha256")
    return found


class Hiding:
    """Takes what is not for everybody out of mutations that are shown to people: cells of columns that are
    hidden, be they dropped by now; and whole updates of tables whose key is, as nothing of them can be shown
    without, or whose rows are filtered, as a mutation does not tell whole rows. Counts them."""

    def __init__(self, rules: Rules, schema: Schema) -> None:
        self._rules, self._schema = rules, schema
        self._known: dict[UUID, TableRules | None] = {}
        self.cells = self.updates = self.filtered = 0

    def mutation(self, mutation: Mutation) -> Mutation | None:
        """The mutation without them, or None if nothing is left of it."""
        kept = tuple(shown for update in mutation.updates if (shown := self._update(update)) is not None)
        return replace(mutation, updates=kept) if kept else None

    def _update(self, update: PartitionUpdate) -> PartitionUpdate | None:
        found = self._of(update.table_id)
        if not found:
            return update
        table, hidden = self._schema.tables[update.table_id], found.hidden
        if found.filter is not None:
            self.filtered += 1
            return None
        if any(column.name in hidden for column in (*table.partition_key, *table.clustering)):
            self.updates += 1
            return None
        static = update.static_row and self._row(update.static_row, hidden)
        return replace(update, static_row=static, rows=tuple(self._row(row, hidden) for row in update.rows))

    def _row(self, row: Row, hidden: set[str]) -> Row:
        cells = tuple(cell for cell in row.cells if cell.column not in hidden)
        self.cells += len(row.cells) - len(cells)
        return replace(row, cells=cells)

    def _of(self, table_id: UUID) -> TableRules | None:
        if table_id not in self._known:
            table = self._schema.tables.get(table_id)
            self._known[table_id] = self._rules.of(with_dropped(table), self._schema.types) if table else None
        return self._known[table_id]

    def summary(self) -> str:
        """A summary of what was left out; "" if nothing was."""
        counts = {
            "cells of masked columns": self.cells,
            "updates with masked keys": self.updates,
            "updates of tables with filtered rows": self.filtered,
        }
        found = ", ".join(f"{count} {what}" for what, count in counts.items() if count)
        return f"hidden: {found} (--unmasked shows them)" if found else ""


def with_dropped(table: Table) -> Table:
    """The table including its dropped columns: rules apply to their values, too."""
    dropped = {name: Column(name, column.kind, column.type) for name, column in table.dropped_columns.items()}
    return replace(table, columns={**dropped, **table.columns})


# --- filters


@dataclass(frozen=True, slots=True)
class Filter:
    """A filter's text, which `parse_filter` has checked, and the columns in it."""

    text: str
    names: frozenset[str]

    def compiled(self) -> Callable[[Values], bool]:
        """Whether it holds of a row. What cannot be compared is not so."""
        holds = _evaluation(ast.parse(self.text, mode="eval").body)
        return lambda values: bool(holds(values))


def parse_filter(text: str) -> Filter:
    """ValueError for what is no filter."""
    try:
        tree = ast.parse(text.strip(), mode="eval").body
    except SyntaxError as error:
        raise ValueError(f"`{text}` is not a valid filter: {error.msg}") from error
    names: set[str] = set()
    _check(tree, names, text)
    return Filter(text.strip(), frozenset(names))


def _check(node: ast.expr, names: set[str], text: str) -> None:
    if isinstance(node, ast.Name):
        names.add(node.id)
    elif isinstance(node, ast.BoolOp):
        for part in node.values:
            _check(part, names, text)
    elif isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.Not | ast.USub):
        _check(node.operand, names, text)
    elif isinstance(node, ast.Compare) and all(type(op) in _COMPARED or isinstance(op, ast.Is | ast.IsNot) for op in node.ops):
        for part in (node.left, *node.comparators):
            _check(part, names, text)
    elif isinstance(node, ast.Tuple | ast.List):
        for part in node.elts:
            _check(part, names, text)
    elif not (isinstance(node, ast.Constant) and isinstance(node.value, str | int | float | bool | None)):
        raise ValueError(f"`{text}` is not a valid filter: `{ast.unparse(node)}` is not supported there")


def _evaluation(node: ast.expr) -> Callable[[Values], Any]:
    """A function from the values of a row to that of a checked expression."""
    if isinstance(node, ast.Name):
        return itemgetter(node.id)
    if isinstance(node, ast.Constant):
        constant = node.value
        return lambda _: constant
    if isinstance(node, ast.Tuple | ast.List):
        elements = [_evaluation(part) for part in node.elts]
        return lambda values: [each(values) for each in elements]
    if isinstance(node, ast.BoolOp):
        parts, all_or_any = [_evaluation(part) for part in node.values], all if isinstance(node.op, ast.And) else any
        return lambda values: all_or_any(bool(each(values)) for each in parts)
    if isinstance(node, ast.UnaryOp):
        operand = _evaluation(node.operand)
        return (lambda values: not operand(values)) if isinstance(node.op, ast.Not) else (lambda values: _negative(operand(values)))
    assert isinstance(node, ast.Compare), "it was checked"
    first, *others = [_evaluation(part) for part in (node.left, *node.comparators)]
    steps = [(_comparison(op), each) for op, each in zip(node.ops, others, strict=True)]

    def holds(values: Values) -> bool:
        left, right = first(values), [each(values) for _, each in steps]
        return all(compare(a, b) for (compare, _), a, b in zip(steps, [left, *right], right, strict=False))

    if len(steps) > 1:
        return holds
    ((compare, second),) = steps
    return lambda values: compare(first(values), second(values))


def _negative(value: Any) -> Any:
    """Null of what is no number: it is compared like any other null."""
    return -value if isinstance(value, int | float | Decimal) else None


def _comparison(op: ast.cmpop) -> Callable[[Any, Any], bool]:
    if isinstance(op, ast.Is | ast.IsNot):
        is_same = isinstance(op, ast.Is)
        return lambda left, right: (left is right) == is_same
    compare = _COMPARED[type(op)]

    def holds(left: Any, right: Any) -> bool:
        if left is None or right is None:
            return False
        try:
            return bool(compare(left, right))
        except TypeError:
            return False

    return holds


def comparable(kind: CqlType, value: Any) -> Any:
    """A value as filters see it: numbers, truths and texts as they are, all else in its JSON form."""
    if value is None:
        return None
    if isinstance(kind, NativeType) and kind.name in _NUMBERS and isinstance(value, int | Decimal):
        return value
    return to_json_value(kind, value)
