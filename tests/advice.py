"""The pieces of advice in errors (`hint=`), and the test that follows each: `python -m tests.advice` writes docs/advice.md.

Strategy: an AST scan. Advice is the text of the argument `hint` of any call, and that of the rows of tables of refusals and
limits; names are resolved to the constants of the module, or of the one that it imports them from; what is computed shows as
`…`. A test says which advice it follows by the mark `pytest.mark.advice("some words of it")`: it makes the failure, does what
the advice says, and sees that it works afterwards. Words that no advice has fail tests/test_advice.py, and so does a page
that is not up to date."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Final

from tests.test_rooms import parsed

ROOT: Final = Path(__file__).resolve().parents[1]
PAGE: Final = ROOT / "docs" / "advice.md"
ROOMS: Final = ("writetime", "spark_jobs", "shippers", "plugins", "dags")
NOBODY: Final = "by nobody yet"
_POSITIONAL: Final = {"Refusal": 2, "_Limit": 3, "UnsafeSetting": 3}
"""Where calls without the keyword have their advice."""
_HEAD: Final = """\
# Advice

What errors and log events advise, and the test that follows it: that makes the failure, does what the text says, and sees
that it works afterwards. {count} of {all} pieces are followed by a test. Written by `python -m tests.advice`; a test marks
itself with `pytest.mark.advice("some words of it")`.

| advice | where | followed by |
|---|---|---|
"""


Known = dict[str, list[ast.expr]]
"""What is assigned to names."""


@dataclass
class Advice:
    """One text, the files with it, and the tests that follow it."""

    text: str
    files: set[str] = field(default_factory=set)
    tests: set[str] = field(default_factory=set)


@cache
def advice() -> list[Advice]:
    """All of it, by file and text."""
    modules = {path: parsed(path) for room in ROOMS for path in sorted((ROOT / room).rglob("*.py"))}
    constants = {_module(path): _constants(tree) for path, tree in modules.items()}
    found: dict[str, Advice] = {}
    for path, tree in modules.items():
        known = {**constants[_module(path)], **_imported(tree, constants)}
        for text in _texts(tree, known):
            found.setdefault(text, Advice(text)).files.add(str(path.relative_to(ROOT)))
    for words, test in followed():
        # What is the whole of one text is no part of others.
        meant = [found[words]] if words in found else [each for each in found.values() if words in each.text]
        for each in meant:
            each.tests.add(test)
    return sorted(found.values(), key=lambda each: (min(each.files), each.text))


@cache
def followed() -> list[tuple[str, str]]:
    """(words, test) of all marks."""
    return list(_marks())


def _marks() -> Iterator[tuple[str, str]]:
    for path in sorted((ROOT / "tests").rglob("test_*.py")):
        for node in ast.walk(parsed(path)):
            if isinstance(node, ast.FunctionDef):
                for mark in node.decorator_list:
                    if isinstance(mark, ast.Call) and ast.unparse(mark.func) == "pytest.mark.advice":
                        for words in mark.args:
                            yield ast.literal_eval(words), f"{path.relative_to(ROOT)}::{node.name}"


def page() -> str:
    pieces = advice()
    rows = "".join(f"| {_cell(each.text)} | {_files(each.files)} | {_files(each.tests) or NOBODY} |\n" for each in pieces)
    return _HEAD.format(count=sum(bool(each.tests) for each in pieces), all=len(pieces)) + rows


def _module(path: Path) -> str:
    return ".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__")


def _constants(tree: ast.Module) -> Known:
    """Assignments of the module and of its functions, by name."""
    found: Known = {}
    for node in ast.walk(tree):
        if isinstance(node, ast.Assign) and len(node.targets) == 1 and isinstance(node.targets[0], ast.Name):
            found.setdefault(node.targets[0].id, []).append(node.value)
        elif isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name) and node.value is not None:
            found.setdefault(node.target.id, []).append(node.value)
    return found


def _imported(tree: ast.Module, constants: dict[str, Known]) -> Known:
    return {
        name.asname or name.name: constants[node.module][name.name]
        for node in ast.walk(tree)
        if isinstance(node, ast.ImportFrom) and node.module in constants
        for name in node.names
        if name.name in constants[node.module]
    }


def _texts(tree: ast.Module, known: Known) -> Iterator[str]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Call):
            name = node.func.id if isinstance(node.func, ast.Name) else ""
            place = _POSITIONAL.get(name, len(node.args))
            given = [keyword.value for keyword in node.keywords if keyword.arg == "hint"] + node.args[place : place + 1]
            for value in given:
                yield from filter(str.strip, _values(value, known))


def _values(value: ast.expr, known: Known, depth: int = 3) -> list[str]:
    """The texts that an expression may have; none if nothing is known of it."""
    if isinstance(value, ast.Constant):
        return [value.value] if isinstance(value.value, str) else []
    if isinstance(value, ast.IfExp):
        return [*_values(value.body, known, depth), *_values(value.orelse, known, depth)]
    if isinstance(value, ast.Name) and value.id in known and depth:
        return [text for each in known[value.id] for text in _values(each, known, depth - 1)]
    if isinstance(value, ast.JoinedStr):
        parts = [part.value if isinstance(part, ast.Constant) else _inner(part, known, depth) for part in value.values]
        return ["".join(map(str, parts))]
    if isinstance(value, ast.BinOp) and isinstance(value.op, ast.Add):
        return [
            left + right for left in _values(value.left, known, depth) or ["…"] for right in _values(value.right, known, depth) or ["…"]
        ]
    return []


def _inner(part: ast.expr, known: Known, depth: int) -> str:
    found = _values(part.value, known, depth) if isinstance(part, ast.FormattedValue) else []
    return found[0] if len(found) == 1 else "…"


def _cell(text: str) -> str:
    return " ".join(text.split()).replace("|", "\\|").replace("<", "&lt;")


def _files(files: set[str]) -> str:
    return "<br>".join(f"`{each}`" for each in sorted(files))


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
