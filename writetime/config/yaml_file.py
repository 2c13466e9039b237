"""A YAML file as keys and values, from which nothing is lost in reading.

Strategy: the file is parsed into nodes by PyYAML, and this module makes values of them. A key that is given twice,
directly or by a merge (`<<`), is refused: a parser would keep one of the two without a word. A word without quotes
is read as YAML 1.2 reads it: only true and false are truth values, a number is written in decimal digits, anything
else is text (`no`, `010`, `1:30`, `2026-02-30`). PyYAML follows YAML 1.1, where these are false, 8, 90 and an
impossible date. A text that YAML 1.1 reads as something else is an `Unquoted`, so that a key whose type is open can
refuse it. Also remembers the line of each key, for errors. Must not know what the keys mean.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, Final

import yaml
from yaml.nodes import MappingNode, Node, ScalarNode, SequenceNode

Path = tuple[str | int, ...]
"""Keys and positions in lists, from the outermost."""

_STR: Final = "tag:yaml.org,2002:str"
_BY_YAML_1_1: Final[Any] = yaml.resolver.Resolver()
_MERGE: Final = "tag:yaml.org,2002:merge"
_TRUTHS: Final = {"true": True, "True": True, "TRUE": True, "false": False, "False": False, "FALSE": False}
_NULLS: Final = frozenset({"", "~", "null", "Null", "NULL"})
_INTEGER: Final = re.compile(r"[-+]?(0|[1-9][0-9]*)")
_FLOAT: Final = re.compile(r"[-+]?(\.[0-9]+|(0|[1-9][0-9]*)(\.[0-9]*)?)([eE][-+]?[0-9]+)?")
_MOST_VALUES: Final = 100_000
"""Keys and values of a file, aliases written out: ten lines of aliases of aliases are a billion."""
_MOST_DIGITS: Final = 1000
_DEEPEST: Final = 100


class Unquoted(str):
    """A text without quotes that YAML 1.1 reads as a truth value, a number or a date."""

    __slots__ = ()


class Refused(ValueError):
    """The file cannot be read without losing something. The text states the key, the line and the reason."""


@dataclass
class Document:
    """`values`: what the file says. `lines`: the line of each key and list item, from 1."""

    values: Any
    lines: dict[Path, int] = field(default_factory=dict)

    def line(self, path: Path) -> int | None:
        """The line of a key, or of the innermost key around it; None if there is none."""
        return next((self.lines[path[:length]] for length in range(len(path), 0, -1) if path[:length] in self.lines), None)


def read(text: str) -> Document:
    """The file's keys and values. Raises Refused, or yaml.YAMLError for what is no YAML."""
    node = yaml.compose(text, Loader=yaml.SafeLoader)
    if node is None:
        return Document(None)
    _expect_bounded(node)
    found = Document(None)
    found.values = _value(node, (), found)
    return found


def key_text(path: Path) -> str:
    """A path as errors name it: `kafka.producer.linger.ms`, `cluster.datacenters[0]`."""
    return "".join(f"[{part}]" if isinstance(part, int) else f".{part}" for part in path).lstrip(".") or "the file"


def _value(node: Node, path: Path, found: Document) -> Any:
    if path:
        found.lines.setdefault(path, _line(node))
    if isinstance(node, ScalarNode):
        return _scalar(node, path)
    if isinstance(node, SequenceNode) and node.tag == "tag:yaml.org,2002:seq":
        return [_value(each, (*path, place), found) for place, each in enumerate(node.value)]
    if isinstance(node, MappingNode) and node.tag == "tag:yaml.org,2002:map":
        return _mapping(node, path, found)
    raise _unknown_tag(node, path)


def _mapping(node: MappingNode, path: Path, found: Document) -> dict[str, Any]:
    values: dict[str, Any] = {}
    lines: dict[str, int] = {}
    for key, value in _pairs(node, path):
        name, line = _key(key, path), _line(key)
        if name in lines:
            places = f"on line {line}" if line == lines[name] else f"on lines {lines[name]} and {line}"
            raise Refused(f"`{key_text((*path, name))}` is given twice, {places}: only one of the two would count. Write it once")
        lines[name] = found.lines[*path, name] = line
        values[name] = _value(value, (*path, name), found)
    return values


def _pairs(node: MappingNode, path: Path) -> Iterator[tuple[Node, Node]]:
    """Keys and values of a mapping, those of merged mappings included."""
    for key, value in node.value:
        if not (isinstance(key, ScalarNode) and key.tag == _MERGE):
            yield key, value
            continue
        merged = value.value if isinstance(value, SequenceNode) else [value]
        for each in merged:
            if not isinstance(each, MappingNode):
                raise Refused(f"`{key_text((*path, '<<'))}` on line {_line(key)} merges what is no mapping of keys")
            yield from _pairs(each, path)


def _key(node: Node, path: Path) -> str:
    if not isinstance(node, ScalarNode):
        raise Refused(f"a key of `{key_text(path)}` on line {_line(node)} is a list or a mapping, and keys are texts")
    if node.style is None and node.value in _NULLS:
        raise Refused(f"a key of `{key_text(path)}` on line {_line(node)} is empty")
    return str(node.value)


def _scalar(node: ScalarNode, path: Path) -> Any:
    text = str(node.value)
    if node.style is not None or node.tag == _STR:
        if node.tag != _STR:
            raise _unknown_tag(node, path)
        return text
    # A plain word has the tag that YAML 1.1 gives it, or one that is written before it.
    if _BY_YAML_1_1.resolve(ScalarNode, text, (True, False)) != node.tag:
        raise _unknown_tag(node, path)
    if text in _NULLS:
        return None
    if text in _TRUTHS:
        return _TRUTHS[text]
    if _INTEGER.fullmatch(text) and len(text) <= _MOST_DIGITS:
        return int(text)
    if _FLOAT.fullmatch(text) and len(text) <= _MOST_DIGITS:
        return float(text)
    return Unquoted(text)


def _unknown_tag(node: Node, path: Path) -> Refused:
    return Refused(
        f"`{key_text(path)}` on line {_line(node)} has a tag (`!…`): a configuration has texts, numbers, lists and mappings. "
        "Quote a text that begins with !"
    )


def _line(node: Node) -> int:
    return int(node.start_mark.line) + 1


def _expect_bounded(node: Node) -> None:
    """Raises Refused for a mapping or list that contains itself, one that is too deep, and for too many values."""
    sizes: dict[int, int] = {}
    inside: set[int] = set()

    def size(node: Node) -> int:
        if isinstance(node, ScalarNode):
            return 1
        if id(node) in inside:
            raise Refused(f"an alias on line {_line(node)} contains itself")
        if len(inside) >= _DEEPEST:
            raise Refused(f"nested too deeply on line {_line(node)}")
        if id(node) not in sizes:
            inside.add(id(node))
            parts = node.value if isinstance(node, SequenceNode) else [part for pair in node.value for part in pair]
            sizes[id(node)] = 1 + sum(map(size, parts))
            inside.remove(id(node))
            if sizes[id(node)] > _MOST_VALUES:
                raise Refused(f"more than {_MOST_VALUES} keys and values below line {_line(node)}, aliases written out")
        return sizes[id(node)]

    size(node)
