"""docs/advice.md names each piece of advice, with the tests that follow it."""

from __future__ import annotations

import ast

import pytest

from tests import advice
from tests.advice import Advice
from writetime.storage import refusals


def test_the_page_is_up_to_date() -> None:
    assert advice.PAGE.read_text(encoding="utf-8") == advice.page(), "run: python -m tests.advice"


def test_each_mark_names_some_advice() -> None:
    texts = [each.text for each in advice.advice()]
    assert [(words, test) for words, test in advice.followed() if not any(words in text for text in texts)] == []


@pytest.mark.parametrize(
    ("source", "texts"),
    [
        ("f(hint='Do it.')", ["Do it."]),
        ("f(hint='Do ' 'it.' if a else None)", ["Do it."]),
        ("A = 'Do it.'\nf(hint=A)", ["Do it."]),
        (
            "def g():\n    hint = f'Do {it}.'\n    f(hint=hint)",
            [
                "Do ….",
            ],
        ),
        ("A = 'this'\nf(hint=f'Do {A}.')", ["Do this."]),
        ("f(hint='Do ' + x)", ["Do …"]),
        ("f(hint=row.hint)", []),
        ("Refusal(codes, Error, 'Do it.')", ["Do it."]),
        ("Other(codes, Error, 'Do it.')", []),
    ],
)
def test_what_is_found(source: str, texts: list[str]) -> None:
    tree = ast.parse(source)
    assert list(advice._texts(tree, advice._constants(tree))) == texts


def test_most_important_ones_are_followed() -> None:
    """What an operator is told when the store, Kafka or the shipper refuses to go on."""
    pieces = advice.advice()
    assert [each.text for each in pieces if not each.tests and "writetime/storage/refusals.py" in each.files] == [refusals.LACKS]
    assert sum(bool(each.tests) for each in pieces) >= 50


def test_a_name_of_another_module_is_resolved() -> None:
    (found,) = [each for each in advice.advice() if each.text.startswith("The bytes changed in transit")]
    assert isinstance(found, Advice)
    assert {"writetime/storage/gcs.py", "writetime/storage/refusals.py"} <= found.files
