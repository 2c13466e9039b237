"""Properties of Debezium that hide tables, columns or values, as keys of a pipeline's YAML: part of `writetime.config.debezium`.

Strategy: no rule is lost. What `columns` and `tables` can say is translated, also under a former name, and also if
Debezium's connector for Cassandra takes no notice of it; whatever else hides something is refused by name. A salt is part
of a property's name there, so names are shown without it. Must not know files.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Any, Final

from writetime.config.base import pattern_list
from writetime.errors import ConfigError

OPERATION: Final = "translate Debezium's properties"
SALT: Final = "COLUMNS_SALT"
"""The environment variable for the salt of hashes."""
_SERVER: Final = {"debezium.source.": "", "debezium.sink.kafka.": "kafka.", "debezium.transforms": "transforms"}
"""What Debezium Server puts before the names of properties."""
_FORMER: Final = {
    f"{what}.{before}": f"{what}.{now}"
    for what in ("field", "column", "table")
    for before, now in (("blacklist", "exclude.list"), ("whitelist", "include.list"))
} | {"value.converter.schema.registry.basic.auth.user.info": "value.converter.basic.auth.user.info"}
_OF_COLUMNS: Final = re.compile(r"column\.(?:(?:ex|in)clude\.list|mask\.with\.\d+\.chars|truncate\.to\.\d+\.chars)")
_HASH: Final = re.compile(r"(column\.mask\.hash\.(?:v2\.)?[\w-]+\.with\.salt)\.(.*)", re.DOTALL)
_OF_TABLES: Final = re.compile(r"table\.((?:ex|in)clude)\.list")
_NAME_OF_TABLE: Final = re.compile(r"\w+\\?\.\w+")
_HIDES: Final = re.compile(
    r"(?:table|column|field|keyspace|database|schema|collection)\.(?:.*\.)?(?:exclude|include|mask|truncate|\w+list)\b.*"
)
_TRANSFORM: Final = re.compile(r"transforms\..+\.type")
_HIDING_TRANSFORM: Final = re.compile(r"(?:.*[.$])?\w*(?:Replace|Mask|Drop|Filter|Redact|Hash|Cipher|Encrypt|Tokeni[sz]e)\w*(?:\$\w+)?")
_TAKEN: Final = "hides it here; Debezium's connector for Cassandra does not know the property"


def plain_names(properties: Mapping[str, str]) -> dict[str, str]:
    """The properties without Debezium Server's beginnings of names, and by the names that are in use now."""
    found: dict[str, str] = {}
    for given, value in properties.items():
        start = next((each for each in _SERVER if given.startswith(each)), "")
        name = _SERVER.get(start, "") + given.removeprefix(start)
        name = _FORMER.get(name, name)
        if found.setdefault(name, value) != value:
            raise _refused(name, "it is given by two names, with two values", "Write it once.")
    return found


def shown(name: str) -> str:
    """The property's name without a salt in it."""
    hashed = _HASH.fullmatch(name)
    return hashed[1] if hashed else name


def expect_once(given_twice: Iterable[str]) -> None:
    """ConfigError for a rule among properties that are given more than once: all but the last one would be lost."""
    for name in map(shown, given_twice):
        if name == "field.exclude.list" or _HIDES.fullmatch(_FORMER.get(name, name)):
            raise _refused(name, "it is given more than once, and only the last one would count", "Write it once.")


def take(properties: Mapping[str, str], document: dict[str, Any], notes: dict[str, str]) -> dict[str, str]:
    """Put the rules into the document, with notes for people; returns the other properties. ConfigError for what hides
    something and has no counterpart."""
    left, salts = dict(properties), set[str]()
    for name, value in properties.items():
        if hashed := _HASH.fullmatch(name):
            salts.add(hashed[2])
            _columns(document).setdefault(hashed[1], []).extend(pattern_list(value))
            notes[hashed[1]] = f"{_TAKEN}; set {SALT} in the environment, and hashes are HMACs, others than Debezium's"
        elif _OF_COLUMNS.fullmatch(name):
            _columns(document)[name] = pattern_list(value)
            notes[name] = _TAKEN
        elif of_tables := _OF_TABLES.fullmatch(name):
            document.setdefault("tables", {})[of_tables[1]] = _tables(name, value)
            notes[name] = _TAKEN
        elif (name != "field.exclude.list" and _HIDES.fullmatch(name)) or _is_hiding_transform(name, value):
            hint = "Take it out of the file, and write what it hides into `columns` or `tables` of the YAML."
            raise _refused(f"{name}={value}", "it hides something, and there is nothing that it could become", hint)
        else:
            continue
        del left[name]
    if len(salts) > 1:
        raise _refused("column.mask.hash.….with.salt", "`columns` has one salt for all hashes", "Write all these rules with the same salt.")
    if salts:
        _columns(document)["salt"] = f"${{{SALT}}}"
    return left


def _columns(document: dict[str, Any]) -> dict[str, Any]:
    found: dict[str, Any] = document.setdefault("columns", {})
    return found


def _tables(name: str, value: str) -> list[str]:
    patterns = pattern_list(value)
    if not all(map(_NAME_OF_TABLE.fullmatch, patterns)):
        hint = "Take it out of the file, and write the tables into `tables`, with `*` for any text."
        raise _refused(f"{name}={value}", "it has more than names of tables", hint)
    return [pattern.replace("\\", "") for pattern in patterns]


def _is_hiding_transform(name: str, value: str) -> bool:
    return _TRANSFORM.fullmatch(name) is not None and _HIDING_TRANSFORM.fullmatch(value) is not None


def _refused(obj: str, why: str, hint: str) -> ConfigError:
    return ConfigError(why, operation=OPERATION, obj=obj, hint=hint)
