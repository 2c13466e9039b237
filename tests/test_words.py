"""Retired words stay out of the product's identifiers, log events and error messages (docs/glossary.md has
the words in use)."""

from __future__ import annotations

import ast
import io
import re
import tokenize
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.test_rooms import ROOMS, ROOT, modules, parsed

RETIRED = (
    *("tell", "told", "tells", "telling", "beside", "last_words", "shelve", "let_in", "why_not", "why_still"),
    *("waiting_tables", "pieces", "life", "opaque", "touched", "gentle"),
)
LOG_METHODS = {"debug", "info", "warning", "error", "exception", "critical"}
STORED = {
    ("writetime/pipeline/audit.py", "told"),
    *((file, name) for file in ("writetime/pipeline/erase.py", "spark_jobs/stages/erase_key.py") for name in ("pieces", "touched")),
}
"""Fields of stored documents."""
FLAGS = ("--touched",)


def retired(name: str) -> list[str]:
    """Which of the words an identifier or a text has as a whole word."""
    words = re.sub(r"([a-z0-9])([A-Z])", r"\1_\2", name).lower()
    words = "_" + re.sub(r"[^a-z0-9]+", "_", words).strip("_") + "_"
    return [word for word in RETIRED if f"_{word}_" in words]


def without_flags(text: str) -> str:
    for flag in FLAGS:
        text = text.replace(flag, "")
    return text


def identifiers(path: Path) -> Iterator[str]:
    text = path.read_text(encoding="utf-8")
    yield from (token.string for token in tokenize.generate_tokens(io.StringIO(text).readline) if token.type == tokenize.NAME)


def messages(path: Path) -> Iterator[str]:
    """First arguments of log calls, and the text of errors that are raised."""
    for node in ast.walk(parsed(path)):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr in LOG_METHODS and node.args:
            yield from texts(node.args[0])
        elif isinstance(node, ast.Raise) and isinstance(node.exc, ast.Call):
            for argument in (*node.exc.args, *(each.value for each in node.exc.keywords)):
                yield from texts(argument)


def texts(node: ast.expr) -> Iterator[str]:
    yield from (each.value for each in ast.walk(node) if isinstance(each, ast.Constant) and isinstance(each.value, str))


@pytest.mark.parametrize("room", ROOMS)
def test_identifiers_have_no_retired_word(room: str) -> None:
    found = {(path.relative_to(ROOT).as_posix(), name) for path in modules(room) for name in identifiers(path) if retired(name)}
    assert sorted(each for each in found if each not in STORED) == []


@pytest.mark.parametrize("room", ROOMS)
def test_log_events_and_errors_have_no_retired_word(room: str) -> None:
    found = [(path.relative_to(ROOT).as_posix(), text) for path in modules(room) for text in messages(path) if retired(without_flags(text))]
    assert found == []


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("published_told", ["told"]),
        ("ToldOf", ["told"]),
        ("WaitingTablesOperator", ["waiting_tables"]),
        ("_why_not", ["why_not"]),
        ("told the node", ["told"]),
        ("lifetime", []),
        ("stellar", []),
    ],
)
def test_the_check_sees_whole_words(name: str, words: list[str]) -> None:
    assert retired(name) == words
