"""Who may write an object when: the table of docs/bucket.md, against what drivers beside each other write."""

from __future__ import annotations

import re
from collections.abc import Iterator
from functools import cache
from itertools import product
from pathlib import Path
from typing import Any

import pytest

from proof.interleavings.jobs import SteppingStore, installed
from proof.interleavings.scenario import ALL, Stage
from proof.interleavings.schedule import Deviations

_TABLE = Path(__file__).parents[2] / "docs" / "bucket.md"
_RULES = {"once", "generation", "own", "last"}


@cache
def rows() -> list[tuple[re.Pattern[str], set[str]]]:
    """Patterns of names, each with the rules of its row."""
    return list(_rows())


def _rows() -> Iterator[tuple[re.Pattern[str], set[str]]]:
    for line in _TABLE.read_text(encoding="utf-8").splitlines():
        if line.startswith("| `"):
            names, _, rules = (cell.strip() for cell in line.strip("|").split(" | "))
            yield from ((_pattern(name), {*rules.strip().split("; ")}) for name in re.findall(r"`([^`]+)`", names))


def _pattern(name: str) -> re.Pattern[str]:
    alternatives = [piece[1:-1].split(",") if piece.startswith("{") else [piece] for piece in re.split(r"({[^}]*})", name)]
    spelled = ("".join(some) for some in product(*alternatives))
    return re.compile("|".join(re.sub(r"\\?<[^>]*>", "[^/]+", re.escape(each).replace(r"\<", "<").replace(r"\>", ">")) for each in spelled))


def rules_of(name: str) -> set[str]:
    """The rules of the row that matches, the one with the fewest placeholders and the longest."""
    matching = ((pattern.pattern, rules) for pattern, rules in rows() if pattern.fullmatch(name))
    found = [((text.count("[^/]+"), -len(text)), rules) for text, rules in matching]
    assert found, f"docs/bucket.md has no row for {name}"
    return min(found, key=lambda each: each[0])[1]


def allowed(rules: set[str], generation: int | None) -> bool:
    if generation is None:
        return bool(rules & {"own", "last"})
    return generation == 0 or bool(rules & {"generation", "last"})


def test_the_table_names_known_rules() -> None:
    assert all(rules <= _RULES for _, rules in rows())
    assert rules_of("batches/ring/0000000003/sealed.json") == {"once"}
    assert not allowed({"once"}, None)
    assert not allowed({"once"}, 7)
    assert not allowed({"generation"}, None)
    with pytest.raises(AssertionError, match="has no row for unknown/"):
        rules_of("unknown/ring.json")


def test_drivers_write_as_the_table_says(monkeypatch: pytest.MonkeyPatch) -> None:
    found: dict[str, set[int | None]] = {}

    def noted(method: str, at: int) -> None:
        real = getattr(SteppingStore, method)

        def write(store: SteppingStore, *names: Any, if_generation: int | None = None, **about: Any) -> Any:
            found.setdefault(names[at], set()).add(if_generation)
            return real(store, *names, if_generation=if_generation, **about)

        monkeypatch.setattr(SteppingStore, method, write)

    noted("put", 0)
    noted("copy", 1)
    with installed() as here:
        stage = Stage(here)
        for scenario in ALL.values():
            stage.play(scenario, Deviations([]))
    assert len({name.partition("/")[0] for name in found}) > 10
    rules = {name: rules_of(name) for name in found}
    wrong = {name: (rules[name], each) for name, generations in found.items() for each in generations if not allowed(rules[name], each)}
    assert wrong == {}
